//! What an operator says after something broke that nothing in the store can mend (`felix recover`).
//!
//! *The store went back*: it was restored from a backup. Each process refuses such a store by what it remembers
//! ([`judge`]) or by what its copies have accepted ([`check_fences`]), until [`acknowledge`] has been written: a
//! higher control epoch under which every directory begins anew with the store as it is. What the store then says of who
//! holds everything is not believed (each directory gives its copies new log ids when it first meets the new epoch), no
//! generation is granted a second time (new ones begin above a floor), and no producer id (the next block lies far
//! ahead). Copies that the store does not know are kept until [`confirm`] has been written.
//!
//! *Nobody may lead* a partition, and somebody is to: [`unclean`].
//!
//! Deliberately absent: how the operator is asked and told (the broker's `recover`), and how it is written (`control`).

use std::collections::BTreeMap;

use felix_protocol::ids::{BrokerId, Generation, PartitionId, SessionId};
use thiserror::Error;

use crate::decision::{Change, Decision};
use crate::keys::Key;
use crate::state::{Cluster, Last, Node, NodeState, ProducerIds, Revision};
use crate::view::View;

pub mod unclean;

/// So many generations are passed over at least. A partition would have to be led anew so often between a backup and
/// the restoring of it to be granted one of them twice.
const GENERATIONS: u32 = 1 << 20;
/// So many more, by the time of day: a backup that is restored a second time does not lead to the generations that were
/// granted after the first.
const GENERATIONS_BY_TIME: u64 = 1 << 23;
/// So many producer ids are passed over: more than could be handed out.
const PRODUCER_IDS: i64 = 1 << 40;
/// Nodes that are fenced in one transaction with the acknowledgement; etcd takes 128 operations.
const FENCES_AT_ONCE: usize = 100;

/// How far a store has come, and in which of its histories.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub struct Place {
    /// The control epoch: rises when an operator takes a store that went back for good.
    pub epoch: u64,
    /// Which store; `None` where the directory tells.
    pub store: Option<u64>,
    /// Its revision.
    pub revision: Revision,
}

/// What to think of a store that is met by a process that remembers one.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum Verdict {
    /// It went on from what was seen.
    Same,
    /// An operator has begun a new history since. Nothing that was seen before holds for it, and copies here can vouch for
    /// nothing in it under the ids they had.
    Anew,
}

/// The store is behind what was seen of it, or another one.
#[derive(Clone, Copy, Debug, PartialEq, Eq, Error)]
#[error("the control store went back")]
pub struct WentBack;

/// Whether the store that is `found` may be believed by a process that has `seen` another place before.
///
/// Only a higher epoch makes a new history of it. A lower one is a backup of before an earlier recovery, however far its
/// revision has come.
pub fn judge(seen: &Place, found: &Place) -> Result<Verdict, WentBack> {
    if found.epoch != seen.epoch {
        return if found.epoch > seen.epoch { Ok(Verdict::Anew) } else { Err(WentBack) };
    }
    let other = matches!((seen.store, found.store), (Some(seen), Some(found)) if seen != found);
    if other || found.revision < seen.revision { Err(WentBack) } else { Ok(Verdict::Same) }
}

/// A copy here has accepted a generation that the store has not granted: the store went back, even if nobody remembers.
#[derive(Clone, Copy, Debug, PartialEq, Eq, Error)]
#[error(
    "a copy of partition {partition} has accepted generation {accepted}, and the store has granted {granted} at most"
)]
pub struct FenceAhead {
    /// The partition.
    pub partition: PartitionId,
    /// The copy's.
    pub accepted: Generation,
    /// The store's.
    pub granted: Generation,
}

/// Whether the store has granted all generations that the copies of a directory have accepted. A generation is written
/// before anybody accepts it, and never falls.
pub fn check_fences(view: &View, fences: &BTreeMap<PartitionId, Generation>) -> Result<(), FenceAhead> {
    for (id, accepted) in fences {
        // What the store does not know was deleted, or is kept until an operator says so.
        let Some(partition) = view.partition(id) else { continue };
        let granted = partition.generation().max(view.generation_floor());
        if *accepted > granted {
            return Err(FenceAhead { partition: *id, accepted: *accepted, granted });
        }
    }
    Ok(())
}

/// When each node's beat was written, by a list of all keys.
pub fn beats(listed: &[Change]) -> BTreeMap<BrokerId, Revision> {
    let beat = |change: &Change| match Key::parse(&change.key) {
        Some(Key::Beat(node)) => Some((node, change.revision)),
        Some(_) | None => None,
    };
    listed.iter().filter_map(beat).collect()
}

/// Nodes that have beaten, or registered, between two lists: somebody uses this store.
pub fn running(before: &[Change], after: &[Change]) -> Vec<BrokerId> {
    let before = beats(before);
    beats(after).into_iter().filter(|(node, at)| before.get(node) != Some(at)).map(|(node, _)| node).collect()
}

/// What an acknowledgement does.
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct Acknowledged {
    /// The new control epoch.
    pub epoch: u64,
    /// New tenures begin above it.
    pub floor: Generation,
    /// Nodes whose sessions are ended.
    pub fenced: Vec<BrokerId>,
    /// Partitions with several replicas of which the backup says that nothing was ever written. Something may have been
    /// since, at any of them, so none is named until an operator does.
    pub open: Vec<PartitionId>,
}

/// It cannot be acknowledged.
#[derive(Clone, Copy, Debug, PartialEq, Eq, Error)]
pub enum NotAcknowledged {
    /// There is no cluster in it.
    #[error("the control store holds no cluster: its prefix is another one, or it was not restored")]
    NoCluster,
    /// The generations are used up.
    #[error("the generations are used up")]
    UsedUp,
}

/// Takes a store that was restored from a backup for good: decisions, the first of which is the acknowledgement itself and
/// must land before the others are tried. `now_s` is the time of day, in seconds since 1970.
pub fn acknowledge(view: &View, now_s: u64) -> Result<(Vec<Decision>, Acknowledged), NotAcknowledged> {
    let cluster = view.cluster().ok_or(NotAcknowledged::NoCluster)?;
    // By the time of day: a backup of before an earlier recovery does not come to an epoch that was there already.
    let epoch = now_s.max(cluster.value.control_epoch.saturating_add(1));
    let newest = view.partitions().map(|partition| partition.generation()).max().unwrap_or(Generation::ZERO);
    let passed = u32::try_from(epoch % GENERATIONS_BY_TIME).unwrap_or(0) + GENERATIONS;
    let floor = newest.max(view.generation_floor()).number().checked_add(passed).and_then(Generation::new);
    let floor = floor.ok_or(NotAcknowledged::UsedUp)?;
    let after = Cluster { control_epoch: epoch, generation_floor: floor, ..cluster.value.clone() };
    let mut decision = Decision::new().at(Key::Cluster, cluster.revision).put(Key::Cluster, &after);
    // Blocks that were taken since the backup are in use.
    let (taken, next) = view.producer_ids().map_or((Revision::ABSENT, 0), |at| (at.revision, at.value.next));
    let next = next.saturating_add(PRODUCER_IDS);
    let ids = ProducerIds { next, broker: BrokerId(-1), session: SessionId(0) };
    decision = decision.at(Key::ProducerIds, taken).put(Key::ProducerIds, &ids);
    let mut told = Acknowledged { epoch, floor, fenced: Vec::new(), open: Vec::new() };
    let mut later = Vec::new();
    for (id, node) in view.brokers() {
        let fenced = Node { state: NodeState::Fenced, ..node.node.clone() };
        let key = Key::Node(id);
        if told.fenced.len() < FENCES_AT_ONCE {
            decision = decision.at(key.clone(), node.revision).put(key, &fenced);
        } else {
            later.push(Decision::new().at(key.clone(), node.revision).put(key, &fenced));
        }
        told.fenced.push(id);
    }
    for partition in view.partitions().filter(|one| one.state.untouched() && one.state.replicas.len() > 1) {
        let mut state = partition.state.clone();
        (state.last, state.leader) = (Last::Nobody, None);
        let key = Key::Partition(partition.id);
        later.push(Decision::new().at(key.clone(), partition.revision).put(key, &state));
        told.open.push(partition.id);
    }
    later.insert(0, decision);
    Ok((later, told))
}

/// From here on brokers may remove copies that the store does not know; `None` where they may already.
pub fn confirm(view: &View) -> Option<Decision> {
    let cluster = view.cluster().filter(|_| !view.is_confirmed())?;
    let after = Cluster { confirmed_epoch: cluster.value.control_epoch, ..cluster.value.clone() };
    Some(Decision::new().at(Key::Cluster, cluster.revision).put(Key::Cluster, &after))
}

#[cfg(test)]
mod tests;
