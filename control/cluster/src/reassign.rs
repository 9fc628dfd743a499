//! Moving a partition's replicas to other brokers, as Kafka's reassignments do (`replication.md` section 5).
//!
//! ```text
//!  begin      replicas [1 2 3] -> [4 2 3 1], adding [4], removing [1]: broker 4's copy is staged, and counts in no quorum
//!  meanwhile  broker 4 copies; the leader finds it level and makes it eligible; a leader that leaves is moved first
//!  complete   one write: replicas := [4 2 3], eligible := those of them
//! ```
//!
//! The old set is always `replicas` without `adding`, the new one `replicas` without `removing`; a broker in both lists
//! belongs to neither: an earlier reassignment staged it, and its copy counts by now. Cancelling is a reassignment to the
//! old set. Deliberately absent: the copying (`felix-replication`), and moving the leader (`moves`).

use std::collections::BTreeSet;

use felix_protocol::ids::{BrokerId, PartitionId};
use thiserror::Error;

use crate::decision::Decision;
use crate::eligible;
use crate::keys::Key;
use crate::state::Partition;
use crate::view::{PartitionView, View};

/// Why a reassignment is not begun or cancelled.
#[derive(Clone, Debug, PartialEq, Eq, Error)]
pub enum Refused {
    /// There is no such partition.
    #[error("there is no such partition")]
    Unknown,
    /// A list of replicas that cannot be.
    #[error(transparent)]
    Target(#[from] TargetError),
    /// Another number of replicas, where the client said that it is to stay.
    #[error("the partition has {from} replica(s); {to} would change that, which the request does not allow")]
    Factor {
        /// As it is.
        from: usize,
        /// As asked for.
        to: usize,
    },
    /// Nothing to cancel.
    #[error("no reassignment is in progress")]
    NotInProgress,
}

/// What is wrong with a list of replicas.
#[derive(Clone, Copy, Debug, PartialEq, Eq, Error)]
pub enum TargetError {
    /// Nobody in it.
    #[error("the list of replicas is empty")]
    Empty,
    /// A broker twice.
    #[error("broker {0} is in the list of replicas more than once")]
    Twice(BrokerId),
    /// A broker that is not there.
    #[error("broker {0} is in the list of replicas, but no such broker is registered")]
    Unregistered(BrokerId),
}

/// How far a reassignment is.
#[derive(Clone, Debug, PartialEq, Eq)]
pub enum Progress {
    /// It may be completed: the partition afterwards.
    Done(Box<Partition>),
    /// All is ready but the leader, which leaves: it is to be moved to one of the new set.
    LeaderLeaves,
    /// Copies are not level, or nobody has opened.
    Waits,
}

/// Whether the partition's replicas are being changed.
pub fn in_progress(state: &Partition) -> bool {
    !state.adding.is_empty() || !state.removing.is_empty()
}

/// The set that counts, in the order of `replicas`.
pub fn old_set(state: &Partition) -> Vec<BrokerId> {
    state.replicas.iter().copied().filter(|id| !state.adding.contains(id)).collect()
}

/// The set that is to be, in the order that was asked for.
pub fn new_set(state: &Partition) -> Vec<BrokerId> {
    state.replicas.iter().copied().filter(|id| !state.removing.contains(id)).collect()
}

/// Partitions whose replicas are being changed.
pub fn list(view: &View) -> impl Iterator<Item = &PartitionView> {
    view.partitions().map(AsRef::as_ref).filter(|partition| in_progress(&partition.state))
}

/// Begins to move a partition to `target`, in place of whatever move is under way. `None`: it is there already, or on its
/// way there. What needs no copying is done at once.
pub fn begin(
    view: &View,
    id: PartitionId,
    target: &[BrokerId],
    may_change_factor: bool,
) -> Result<Option<Decision>, Refused> {
    let partition = view.partition(&id).ok_or(Refused::Unknown)?;
    check_target(view, target)?;
    // Of a move under way, where it leads to counts, as in Kafka.
    let from = new_set(&partition.state).len();
    if !may_change_factor && from != target.len() {
        return Err(Refused::Factor { from, to: target.len() });
    }
    Ok(head_for(view, partition, target))
}

/// Cancels the move that is under way. Where staged copies lead or are eligible by now, that takes a while as well.
pub fn cancel(view: &View, id: PartitionId) -> Result<Option<Decision>, Refused> {
    let partition = view.partition(&id).ok_or(Refused::Unknown)?;
    if !in_progress(&partition.state) {
        return Err(Refused::NotInProgress);
    }
    Ok(head_for(view, partition, &old_set(&partition.state)))
}

fn check_target(view: &View, target: &[BrokerId]) -> Result<(), TargetError> {
    if target.is_empty() {
        return Err(TargetError::Empty);
    }
    let mut seen = BTreeSet::new();
    for id in target {
        if !seen.insert(*id) {
            return Err(TargetError::Twice(*id));
        }
        if view.broker(*id).is_none() {
            return Err(TargetError::Unregistered(*id));
        }
    }
    Ok(())
}

fn head_for(view: &View, partition: &PartitionView, target: &[BrokerId]) -> Option<Decision> {
    let begun = begun(&partition.state, target);
    let after = match progress(view, partition, &begun) {
        Progress::Done(after) => *after,
        Progress::LeaderLeaves | Progress::Waits => begun,
    };
    decision(view, partition, &after)
}

/// The partition with `target` as its new set. Copies that an earlier move staged in vain go at once, unless they count.
fn begun(state: &Partition, target: &[BrokerId]) -> Partition {
    let old = old_set(state);
    let counting = counting(state);
    let stays = |id: &&BrokerId| !target.contains(id) && (old.contains(id) || counting.contains(id));
    let mut after = state.clone();
    after.replicas = target.iter().chain(state.replicas.iter().filter(stays)).copied().collect();
    after.adding = after.replicas.iter().copied().filter(|id| !old.contains(id)).collect();
    after.removing = after.replicas.iter().copied().filter(|id| !target.contains(id)).collect();
    after
}

/// Brokers whose copies may hold what was acknowledged, or which lead.
fn counting(state: &Partition) -> BTreeSet<BrokerId> {
    let promotable = state.promotable().into_iter().map(|pair| pair.broker);
    let gone = state.gone.iter().map(|gone| gone.pair.broker);
    promotable.chain(gone).chain(state.leader.map(|leader| leader.broker)).collect()
}

/// How far the reassignment is that `state`, a value of this partition, says.
pub fn progress(view: &View, partition: &PartitionView, state: &Partition) -> Progress {
    let (old, target) = (old_set(state), new_set(state));
    let live = |id: &BrokerId| view.broker(*id).is_some_and(|node| !node.is_fenced());
    let stays = |id: BrokerId| target.contains(&id);
    let mut after = state.clone();
    (after.replicas, after.adding, after.removing) = (target.clone(), Vec::new(), Vec::new());
    after.eligible.retain(|pair| stays(pair.broker));
    if state.untouched() {
        // Nothing was acknowledged, so nothing needs to be copied. Who was named may not have opened yet: the next is.
        after.leader = state.leader.filter(|leader| stays(leader.broker));
        return if target.iter().any(live) { Progress::Done(Box::new(after)) } else { Progress::Waits };
    }
    // Another order, or staged copies that never counted are dropped: nothing changes but the list.
    let same = old.len() == target.len() && old.iter().all(|id| stays(*id));
    if same && counting(state).into_iter().all(stays) {
        return Progress::Done(Box::new(after));
    }
    let Some(leader) = state.leader.filter(|_| state.opened()) else { return Progress::Waits };
    let eligible = |id: &BrokerId| after.eligible.iter().any(|pair| pair.broker == *id);
    let level = target.iter().all(|id| !live(id) || eligible(id) || *id == leader.broker);
    let holders = after.eligible.len() + usize::from(stays(leader.broker));
    if !level || holders < eligible::need(&after, min_insync(view, partition)) {
        return Progress::Waits;
    }
    if stays(leader.broker) {
        return Progress::Done(Box::new(after));
    }
    let successor = after.eligible.iter().any(|pair| live(&pair.broker));
    if successor { Progress::LeaderLeaves } else { Progress::Waits }
}

/// What the operator set on the topic, or on all of them. What single brokers' own files say is theirs to know; the
/// majority counts for it here.
pub(crate) fn min_insync(view: &View, partition: &PartitionView) -> Option<usize> {
    const NAME: &str = "min.insync.replicas";
    let topic = view.topic(&partition.id.topic).and_then(|topic| topic.overrides.get(NAME));
    topic.or_else(|| view.cluster_overrides().get(NAME))?.parse().ok()
}

/// Writes `after`; `None` when that is what is there.
pub fn decision(view: &View, partition: &PartitionView, after: &Partition) -> Option<Decision> {
    let topic = view.topic(&partition.id.topic)?;
    let key = Key::Partition(partition.id);
    let decision =
        Decision::new().at(key.clone(), partition.revision).at(Key::Topic(topic.id), topic.revision);
    (*after != partition.state).then(|| decision.put(key, after))
}

#[cfg(test)]
mod tests;
