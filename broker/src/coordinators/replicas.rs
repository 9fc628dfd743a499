//! Gives `__consumer_offsets` the replicas that it is configured to have, as brokers join: it is made with one.
//!
//! The broker that decides for the cluster does so, one look a change of the view. Replicas are only ever added, to partitions
//! that nobody moves at the moment; taking some away is an operator's business.

use std::collections::BTreeSet;
use std::sync::Arc;
use std::time::Duration;

use felix_cluster::reassign;
use felix_cluster::state::{NodeState, Partition};
use felix_cluster::topics::CONSUMER_OFFSETS;
use felix_cluster::view::View;
use felix_protocol::ids::{BrokerId, PartitionId};
use tokio_util::sync::CancellationToken;

use super::Coordinators;

/// Partitions that are given replicas at one time.
const SLICE: usize = 16;
/// After a refusal or a failure.
const REST: Duration = Duration::from_secs(5);

impl Coordinators {
    /// Until the broker closes.
    pub(super) async fn add_replicas(self: Arc<Self>, closing: CancellationToken) {
        let agent = &self.shared.agent;
        let mut changed = agent.changed();
        loop {
            changed.mark_unchanged();
            let view = agent.view();
            let wanted =
                if view.controller() == Some(agent.node()) { self.lacking(&view) } else { Vec::new() };
            let mut rest = None;
            if !wanted.is_empty() {
                tracing::info!(partitions = wanted.len(), "committed offsets get more replicas");
                let wanted = wanted.into_iter().map(|(id, target)| (id, Some(target))).collect();
                let answers = agent.alter_reassignments(wanted, true).await;
                if let Some(Err(error)) = answers.into_iter().find(Result::is_err) {
                    tracing::warn!(%error, "committed offsets cannot get more replicas now");
                    rest = Some(REST);
                }
            }
            let wait = async {
                match rest {
                    Some(rest) => tokio::time::sleep(rest).await,
                    None => drop(changed.changed().await),
                }
            };
            tokio::select! {
                () = closing.cancelled() => return,
                () = wait => {}
            }
            if changed.has_changed().is_err() {
                return;
            }
        }
    }

    fn lacking(&self, view: &View) -> Vec<(PartitionId, Vec<BrokerId>)> {
        let Some(topic) = view.topic_named(CONSUMER_OFFSETS) else { return Vec::new() };
        let live: BTreeSet<BrokerId> =
            view.nodes().filter(|(_, node)| node.node.state == NodeState::Live).map(|(id, _)| id).collect();
        let factor = self.shared.config(view).offsets.topic_replication_factor;
        let factor = usize::try_from(factor).unwrap_or(1);
        let partitions = view.partitions_of(&topic.id);
        let lacking = partitions.filter_map(|partition| {
            let target = target(partition.id.index, &partition.state, &live, factor)?;
            Some((partition.id, target))
        });
        lacking.take(SLICE).collect()
    }
}

/// The replicas that the partition is to have, if those are more than it has.
fn target(index: i32, state: &Partition, live: &BTreeSet<BrokerId>, factor: usize) -> Option<Vec<BrokerId>> {
    let lacking = factor.saturating_sub(state.replicas.len());
    let mut others: Vec<BrokerId> =
        live.iter().copied().filter(|broker| !state.replicas.contains(broker)).collect();
    if lacking == 0 || others.is_empty() || reassign::in_progress(state) {
        return None;
    }
    // Partitions beside each other begin with different brokers.
    let first = usize::try_from(index).unwrap_or(0) % others.len();
    others.rotate_left(first);
    Some(state.replicas.iter().copied().chain(others.into_iter().take(lacking)).collect())
}

#[cfg(test)]
mod tests {
    use super::*;

    fn brokers(ids: &[i32]) -> Vec<BrokerId> {
        ids.iter().copied().map(BrokerId).collect()
    }

    #[test]
    fn replicas_are_added_as_brokers_are_there_and_never_taken_away() {
        let on = |replicas: &[i32]| Partition::placed(brokers(replicas));
        let live = |ids: &[i32]| brokers(ids).into_iter().collect::<BTreeSet<_>>();
        assert_eq!(target(0, &on(&[1]), &live(&[1]), 3), None, "nobody else is there");
        assert_eq!(target(0, &on(&[1]), &live(&[1, 2]), 3), Some(brokers(&[1, 2])));
        assert_eq!(target(0, &on(&[1]), &live(&[1, 2, 3, 4]), 3), Some(brokers(&[1, 2, 3])));
        assert_eq!(target(1, &on(&[1]), &live(&[1, 2, 3, 4]), 3), Some(brokers(&[1, 3, 4])));
        assert_eq!(target(1, &on(&[1, 2]), &live(&[1, 3]), 3), Some(brokers(&[1, 2, 3])));
        assert_eq!(target(0, &on(&[1, 2, 3]), &live(&[1, 2, 3]), 2), None);
        let moving = Partition { adding: brokers(&[2]), ..on(&[1, 2]) };
        assert_eq!(target(0, &moving, &live(&[1, 2, 3]), 3), None, "one after the other");
    }
}
