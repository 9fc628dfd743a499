//! Topics of which a partition has just lost its leader: the answer waits a moment for the next one.
//!
//! Clients ask again at lengthening intervals, half a second to a second apart by the time that a lease is over. One that asked just
//! before the new leader was named learned of it that much later. So the answer waits: until all that is about to be led is led,
//! for [`LONGEST`] at most, and only for as long as the client wants nothing else of this connection, whose answers go out
//! in the order of the requests.
//!
//! Deliberately absent: partitions that nobody who is there may lead. Nothing is about to change for them.

use std::sync::Arc;

use felix_cluster::view::{PartitionView, View};
use felix_protocol::ids::{BrokerId, TopicId};
use tokio::time::{Duration, timeout};

use crate::handlers::Client;
use crate::node::Node;

/// Longer than this nobody waits for what may not come. Clients wait for an answer for many times as long.
const LONGEST: Duration = Duration::from_millis(500);

/// Whether somebody who is there may lead a partition that has no leader.
fn is_awaited(view: &View, partition: &PartitionView, not_leading: &[BrokerId]) -> bool {
    let leads = |id: &BrokerId| !not_leading.contains(id);
    let is_there = |id: BrokerId| leads(&id) && view.broker(id).is_some_and(|broker| !broker.is_fenced());
    view.leader(partition).filter(leads).is_none()
        && partition.state.promotable().iter().any(|pair| is_there(pair.broker))
}

/// The number of the topic's first partition from `from` on that is awaited.
fn first(view: &View, topic: &TopicId, from: usize, not_leading: &[BrokerId]) -> Option<usize> {
    let mut partitions = view.partitions_of(topic).enumerate().skip(from);
    partitions.find(|(_, partition)| is_awaited(view, partition, not_leading)).map(|(index, _)| index)
}

/// Whether the answer about these topics should wait.
pub(super) fn is_any(view: &View, topics: &[TopicId], not_leading: &[BrokerId]) -> bool {
    topics.iter().any(|topic| first(view, topic, 0, not_leading).is_some())
}

/// Waits until it should not any more.
pub(super) async fn settle(node: &Arc<Node>, client: &Client, topics: Vec<TopicId>) {
    tokio::select! {
        _ = timeout(LONGEST, led(node, topics)) => {}
        () = client.asks.notified() => {}
        () = node.closing.cancelled() => {}
    }
}

/// Waits until nothing of these topics is awaited. What was found to be led is not looked at again: thousands may wait at a time.
async fn led(node: &Arc<Node>, topics: Vec<TopicId>) {
    let mut changed = node.agent.changed();
    for topic in topics {
        let mut from = 0;
        loop {
            changed.mark_unchanged();
            let view = node.view();
            match first(&view, &topic, from, &node.not_leading(&view)) {
                Some(index) => from = index,
                None => break,
            }
            if changed.changed().await.is_err() {
                return;
            }
        }
    }
}

#[cfg(test)]
mod tests {
    use felix_cluster::state::{NodeState, Pair};
    use felix_protocol::ids::LogId;

    use super::*;
    use crate::admin::testing;

    #[test]
    fn what_somebody_there_may_lead_is_awaited() {
        let mut view = testing::view_with(&[("a", 3)]);
        let topic = view.topic_named("a").unwrap().id;
        let own = view.partitions_of(&topic).next().unwrap().leader_id().unwrap();
        assert!(!is_any(&view, &[topic], &[]), "all are led");
        assert!(!is_any(&view, &[topic], &[own]), "it holds the only replica");
        testing::node(&mut view, BrokerId(2), NodeState::Live);
        let copy = Pair { broker: BrokerId(2), log: LogId::random() };
        testing::change(&mut view, "a", 1, |state| {
            state.replicas.push(BrokerId(2));
            state.eligible.insert(copy);
        });
        assert!(!is_any(&view, &[topic], &[]));
        assert!(is_any(&view, &[topic], &[own]));
        assert_eq!(first(&view, &topic, 0, &[own]), Some(1), "the others have no other replica");
        assert_eq!(first(&view, &topic, 2, &[own]), None);
        assert!(!is_any(&view, &[topic], &[own, BrokerId(2)]), "that one has gone as well");
        testing::node(&mut view, BrokerId(2), NodeState::Fenced);
        assert!(!is_any(&view, &[topic], &[own]));
    }
}
