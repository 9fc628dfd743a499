//! Planned moves: a leader that works is asked to hand its partition over (`replication.md` section 3).
//!
//! ```text
//!  controller   adds (P, G) to the leader's revoke set, at most a slice at a time
//!  leader       reads it with its next beat, stops admitting, ships, writes `resigned`: leader none, pairs that hold all
//!  controller   names one of these pairs at G+1; without `resigned` after L: the old leader itself at G+1
//!  node         takes what is over off its set
//! ```
//!
//! A tenure that nobody opened is replaced by compare alone and never asked for. Who asks: a broker that drains, a
//! reassignment whose leader leaves, and an operator who wants preferred leaders (`elect`). A broker that drains is also
//! taken out of the sets in which it follows ([`drop_spare`]). Deliberately absent: time (the controller's waits), and who
//! succeeds (`promotion`).

use std::collections::BTreeSet;

use felix_protocol::ids::{BrokerId, PartitionId, SessionId};

use crate::decision::Decision;
use crate::eligible;
use crate::keys::Key;
use crate::reassign::{self, Progress};
use crate::revoke::{Revocation, RevokeSet};
use crate::state::{Leader, NodeState, Pair, Partition};
use crate::view::{PartitionView, View};

/// The most partitions that one node is giving up at a time: each is without leader for a moment.
pub const SLICE: usize = 128;

/// How far a node's draining is.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq)]
pub struct Drain {
    /// Partitions that this session leads.
    pub leads: usize,
    /// Those of them that somebody else could lead: the node waits for these before it exits.
    pub movable: usize,
    /// Partitions of others in whose sets it stands and is not needed: it waits until it is out of them, too.
    pub follows: usize,
}

impl Drain {
    /// Whether the node need not wait for anything more.
    pub fn is_done(&self) -> bool {
        self.movable == 0 && self.follows == 0
    }
}

/// How far the draining of that life of that node is.
pub fn drain(view: &View, node: BrokerId, session: SessionId) -> Drain {
    let mut drain = Drain::default();
    for partition in view.partitions() {
        if partition.led_by(node, session).is_some() {
            drain.leads += 1;
            drain.movable += usize::from(has_successor(view, &partition.state));
        } else {
            drain.follows += usize::from(spare(view, partition).any(|pair| pair.broker == node));
        }
    }
    drain
}

/// Eligible copies on brokers that drain, which the partition can do without (C9): who waits for their word would wait in
/// vain before long.
fn spare<'a>(view: &'a View, partition: &'a PartitionView) -> impl Iterator<Item = &'a Pair> {
    let state = &partition.state;
    let stays = acting(view, state).is_some_and(|leader| !is_draining(view, leader.broker));
    let floor = eligible::need(state, reassign::min_insync(view, partition)).saturating_sub(1);
    let most = if stays { state.eligible.len().saturating_sub(floor) } else { 0 };
    state.eligible.iter().filter(|pair| is_draining(view, pair.broker)).take(most)
}

/// Takes one copy on a broker that drains out of the set, if C9 allows. Within a tenure everybody may make the set
/// smaller; the leader hears of it by the compare that it loses.
pub fn drop_spare(view: &View, partition: &PartitionView) -> Option<Decision> {
    let dropped = spare(view, partition).next()?;
    let (topic, node) = (view.topic(&partition.id.topic)?, view.broker(dropped.broker)?);
    let mut state = partition.state.clone();
    state.eligible.remove(dropped);
    let key = Key::Partition(partition.id);
    let decision = Decision::new()
        .at(Key::Node(node.id), node.revision)
        .at(Key::Topic(topic.id), topic.revision)
        .at(key.clone(), partition.revision);
    Some(decision.put(key, &state))
}

/// Whether any copy that counts is on a broker that drains.
pub(crate) fn has_draining(view: &View, state: &Partition) -> bool {
    state.eligible.iter().any(|pair| is_draining(view, pair.broker))
}

/// Whether a working leader's partition is to be led by somebody else.
pub fn is_wanted(view: &View, partition: &PartitionView) -> bool {
    let state = &partition.state;
    let Some(leader) = acting(view, state) else { return false };
    if is_draining(view, leader.broker) && has_successor(view, state) {
        return true;
    }
    reassign::in_progress(state) && reassign::progress(view, partition, state) == Progress::LeaderLeaves
}

/// The leader, if it lives and has opened.
fn acting(view: &View, state: &Partition) -> Option<Leader> {
    state.leader.filter(|leader| state.opened() && view.may_lead(leader.broker, leader.session))
}

/// Whether the session that is named, and has not opened, may be writing at an earlier generation: it led then, and need not
/// have heard of this one. Another broker may be named only when it must have.
pub fn may_still_serve(state: &Partition) -> bool {
    let last = state.last.pair().map(|pair| pair.broker);
    !state.opened() && state.leader.is_some_and(|leader| Some(leader.broker) == last)
}

pub(crate) fn is_draining(view: &View, broker: BrokerId) -> bool {
    view.broker(broker).is_some_and(|node| node.node.state == NodeState::Draining)
}

/// Whether a copy besides the leader's could lead, on a broker that stays.
fn has_successor(view: &View, state: &Partition) -> bool {
    let leader = state.leader.map(|leader| leader.broker);
    let able = |id: BrokerId| {
        view.broker(id).is_some_and(|node| node.node.state == NodeState::Live && !node.node.suspect)
    };
    let mut others = state.replicas.iter().filter(|id| Some(**id) != leader && able(**id));
    let promotable = state.promotable();
    others.any(|id| state.untouched() || promotable.iter().any(|pair| pair.broker == *id))
}

/// The tenure, if its leader has been asked to end it.
pub fn asked(view: &View, partition: &PartitionView) -> Option<Revocation> {
    let tenure = Revocation { partition: partition.id, generation: partition.generation() };
    let leader = partition.leader_id()?;
    view.revocations(leader).is_some_and(|set| set.value.contains(&tenure)).then_some(tenure)
}

/// Whether a tenure that its node is asked to end is still there.
fn is_open(view: &View, node: BrokerId, tenure: &Revocation) -> bool {
    view.partition(&tenure.partition).is_some_and(|partition| {
        partition.generation() == tenure.generation && partition.leader_id() == Some(node)
    })
}

/// Asks a node for the next of `wanted`, as many as are to be in flight at a time; `None` while enough are, or when
/// nothing is left. One write a node, whatever it is asked for.
pub fn slice<'a>(
    view: &View,
    node: BrokerId,
    wanted: impl Iterator<Item = &'a PartitionId>,
) -> Option<Decision> {
    let mut set = view.revocations(node).map_or_else(RevokeSet::default, |at| at.value.clone());
    let in_flight = set.iter().filter(|tenure| is_open(view, node, tenure)).count();
    // Not for every single one that was given up: a slice is worth a write.
    if in_flight > SLICE / 2 {
        return None;
    }
    let before = set.len();
    for id in wanted {
        if in_flight + set.len() - before >= SLICE {
            break;
        }
        let Some(partition) = view.partition(id) else { continue };
        let led = acting(view, &partition.state).is_some_and(|leader| leader.broker == node);
        if led && set.add(Revocation { partition: *id, generation: partition.generation() }).is_err() {
            break;
        }
    }
    (set.len() > before).then(|| write(view, node, &set)).flatten()
}

/// What the node itself takes off its set: tenures that are over. `None` when all are still asked for.
pub fn tidy(view: &View, node: BrokerId) -> Option<Decision> {
    let before = &view.revocations(node)?.value;
    let mut set = before.clone();
    for tenure in before.iter().filter(|tenure| !is_open(view, node, tenure)) {
        set.remove(tenure);
    }
    (set.len() < before.len()).then(|| write(view, node, &set)).flatten()
}

fn write(view: &View, node: BrokerId, set: &RevokeSet) -> Option<Decision> {
    let key = Key::Revoke(node);
    let registered = view.broker(node)?.revision;
    let decision = Decision::new().at(Key::Node(node), registered);
    Some(decision.at(key.clone(), view.revision_of(&key)).put_bytes(key, set.encode()))
}

/// Ends a move whose leader did not resign in time: it leads on, at the next generation. Whatever it still does about the
/// old one loses its compare.
pub fn give_back(view: &View, partition: &PartitionView) -> Option<Decision> {
    let mut state = partition.state.clone();
    let leader = acting(view, &state)?;
    let node = view.broker(leader.broker)?;
    state.generation = view.next_generation(&state)?;
    // Its copy is known, because it opened.
    state.leader = Some(Leader { log: state.last.pair().map(|pair| pair.log), ..leader });
    let key = Key::Partition(partition.id);
    let decision = Decision::new().at(Key::Node(leader.broker), node.revision);
    Some(decision.at(key.clone(), partition.revision).put(key, &state))
}

/// Partitions whose moves wait, by the node that leads them.
#[derive(Clone, Debug, Default)]
pub(crate) struct Wanted(BTreeSet<(BrokerId, PartitionId)>);

impl Wanted {
    pub(crate) fn insert(&mut self, node: BrokerId, partition: PartitionId) {
        self.0.insert((node, partition));
    }

    /// The next slice of each node; forgets what is not wanted any more.
    pub(crate) fn slices(&mut self, view: &View, resting: impl Fn(&PartitionId) -> bool) -> Vec<Decision> {
        self.0.retain(|(node, id)| {
            view.partition(id).is_some_and(|partition| {
                partition.leader_id() == Some(*node)
                    && is_wanted(view, partition)
                    && asked(view, partition).is_none()
                    && !resting(id)
            })
        });
        let nodes: BTreeSet<BrokerId> = self.0.iter().map(|(node, _)| *node).collect();
        let of = |node: BrokerId| self.0.iter().filter(move |(of, _)| *of == node).map(|(_, id)| id);
        nodes.into_iter().filter_map(|node| slice(view, node, of(node))).collect()
    }
}

#[cfg(test)]
mod tests;
