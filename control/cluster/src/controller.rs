//! The controller: fills in the partitions that topics promise, removes those of deleted topics, promotes, completes
//! reassignments, and moves leaders that are to go.
//!
//! Every broker may run one; all come to the same decisions, and compares let one of them land. It looks only at
//! what changed: [`Controller::note`] says what, [`Controller::decide`] what follows. When nothing is left to
//! decide, nothing is written. Time comes with [`Controller::tick`]: a leader that does not open, or does not resign
//! when asked, is given up after L.

use std::collections::{BTreeMap, BTreeSet};
use std::time::Duration;

use felix_protocol::ids::{BrokerId, PartitionId, TopicId};
use felix_protocol::time::MonoTime;
use waits::{Until, Waits};

use crate::decision::Decision;
use crate::keys::Key;
use crate::moves::{self, Wanted};
use crate::placement::Loads;
use crate::promotion::{self, Next, Standings, StandingsOf};
use crate::reassign::{self, Progress};
use crate::state::{Leader, Partition};
use crate::view::{Changes, PartitionView, TopicView, View};

mod waits;

/// The config by which an operator lets a partition lose records rather than wait.
pub const UNCLEAN_CONFIG: &str = "unclean.leader.election.enable";

/// See the module.
#[derive(Clone, Debug, Default)]
pub struct Controller {
    dirty: BTreeSet<PartitionId>,
    /// Moves may have become wanted or possible.
    moves_due: bool,
    wanted: Wanted,
    waits: Waits,
}

impl Controller {
    /// Something changed; `view` is the view after it.
    pub fn note(&mut self, changes: &Changes, view: &View) {
        self.dirty.extend(changes.partitions.iter().copied());
        for topic in &changes.topics {
            self.note_topic(topic, view);
        }
        for node in &changes.revocations {
            let asked = view.revocations(*node).into_iter().flat_map(|set| set.value.iter());
            self.dirty.extend(asked.map(|tenure| tenure.partition));
            self.moves_due = true;
        }
        if changes.nodes || changes.configs {
            let concerned = view.partitions().filter(|partition| is_unsettled(view, partition));
            self.dirty.extend(concerned.map(|partition| partition.id));
            // Partitions that found nobody to hold them may now.
            let promised: usize =
                view.topics().map(|topic| usize::try_from(topic.partition_count).unwrap_or(0)).sum();
            if promised != view.partition_count() {
                self.note_all(view);
            }
        }
    }

    /// Looks at everything anew: after a start, or when a decision's fate is unknown.
    pub fn note_all(&mut self, view: &View) {
        self.dirty.extend(view.partitions().map(|partition| partition.id));
        let topics: Vec<TopicId> = view.topics().map(|topic| topic.id).collect();
        for topic in topics {
            self.note_topic(&topic, view);
        }
        self.moves_due = true;
    }

    fn note_topic(&mut self, id: &TopicId, view: &View) {
        match view.topic(id) {
            Some(topic) => {
                let indexes = 0..topic.partition_count;
                self.dirty.extend(indexes.map(|index| PartitionId { topic: *id, index }));
            }
            None => self.dirty.extend(view.partitions_of(id).map(|partition| partition.id)),
        }
    }

    /// Time has passed, by the clock of this process. To be called before deciding, and when [`Controller::next_tick`]
    /// says so.
    pub fn tick(&mut self, view: &View, now: MonoTime) {
        // The longest lease that anybody may still go by.
        let lease_ms = view.cluster().map_or(0, |at| at.value.lease_ms.max(at.value.lease_in_force_ms));
        self.dirty.extend(self.waits.tick(now, Duration::from_millis(lease_ms)));
    }

    /// When something may be overdue.
    pub fn next_tick(&self) -> MonoTime {
        self.waits.next_tick()
    }

    /// Whether there is nothing to look at.
    pub fn is_quiet(&self) -> bool {
        self.dirty.is_empty() && !self.moves_due
    }

    /// Whose word is needed for what is to be decided now, of the partitions that `is_known` does not know: brokers by
    /// partition, nobody where there is nothing to ask. Time must have been told ([`Controller::tick`]).
    pub fn to_ask(
        &mut self,
        view: &View,
        is_known: impl Fn(&PartitionId) -> bool,
    ) -> BTreeMap<PartitionId, BTreeSet<BrokerId>> {
        let mut asked = BTreeMap::new();
        for id in self.dirty.iter().filter(|id| !is_known(id)) {
            let (Some(topic), Some(partition)) = (view.topic(&id.topic), view.partition(id)) else {
                continue;
            };
            let state = &partition.state;
            let unclean = unclean_allowed(view, topic);
            let is_due = match state.leader {
                Some(leader) if view.may_lead(leader.broker, leader.session) => {
                    !state.opened() && self.waits.is_overdue(*id, &leader)
                }
                Some(_) | None => true,
            };
            let whom = if is_due { promotion::to_ask(view, state, unclean) } else { BTreeSet::new() };
            if !whom.is_empty() {
                asked.insert(*id, whom);
            }
        }
        asked
    }

    /// Whether a partition is yet to be looked at.
    pub fn is_waiting(&self, id: &PartitionId) -> bool {
        self.dirty.contains(id)
    }

    /// What is to be decided now, at most `limit` decisions. Each partition is looked at once; a lost compare
    /// means that something changed, and that is noted again.
    pub fn decide(&mut self, view: &View, standings: &StandingsOf, limit: usize) -> Vec<Decision> {
        let mut loads = None;
        let mut decisions = Vec::new();
        while decisions.len() < limit {
            let Some(id) = self.dirty.pop_first() else { break };
            decisions.extend(self.look(view, id, standings, &mut loads));
            self.moves_due = true;
        }
        if self.dirty.is_empty() && self.moves_due && decisions.len() < limit {
            let waits = &self.waits;
            let mut slices = self.wanted.slices(view, |id| waits.rests(id));
            let room = limit - decisions.len();
            self.moves_due = slices.len() > room;
            slices.truncate(room);
            decisions.append(&mut slices);
        }
        decisions
    }

    fn look(
        &mut self,
        view: &View,
        id: PartitionId,
        standings: &StandingsOf,
        loads: &mut Option<Loads>,
    ) -> Option<Decision> {
        let silent = Standings::new();
        let standings = standings.get(&id).unwrap_or(&silent);
        match (view.topic(&id.topic), view.partition(&id)) {
            (Some(topic), None) => place(view, topic, id, loads),
            (Some(topic), Some(partition)) => self.look_at(view, topic, partition, standings),
            (None, Some(orphan)) => {
                self.waits.forget(&id);
                let key = Key::Partition(id);
                let decision = Decision::new().absent(Key::Topic(id.topic)).at(key.clone(), orphan.revision);
                Some(decision.delete(key))
            }
            (None, None) => {
                self.waits.forget(&id);
                None
            }
        }
    }

    fn look_at(
        &mut self,
        view: &View,
        topic: &TopicView,
        partition: &PartitionView,
        standings: &Standings,
    ) -> Option<Decision> {
        let state = &partition.state;
        if reassign::in_progress(state)
            && let Progress::Done(after) = reassign::progress(view, partition, state)
        {
            return reassign::decision(view, partition, &after);
        }
        let next = promotion::next(view, state, standings, unclean_allowed(view, topic));
        match state.leader {
            Some(leader) if next == Next::Keep && state.opened() => {
                self.waits.opened(&partition.id, &leader);
                let move_on = self.look_at_move(view, partition, &leader);
                move_on.or_else(|| moves::drop_spare(view, partition))
            }
            Some(leader) if next == Next::Keep => self.look_at_opening(view, partition, &leader, standings),
            Some(_) | None => {
                self.waits.end(&partition.id);
                promotion::decide(view, partition, &next)
            }
        }
    }

    /// Named, and not opened: replaced when it takes too long, if there is somebody else. Nothing can have been
    /// acknowledged at its generation, so that is one compare.
    fn look_at_opening(
        &mut self,
        view: &View,
        partition: &PartitionView,
        leader: &Leader,
        standings: &Standings,
    ) -> Option<Decision> {
        let (id, state) = (partition.id, &partition.state);
        let mut passed_over = self.waits.tried(&id);
        passed_over.insert(leader.broker);
        let mut next = promotion::without(view, state, standings, &passed_over);
        let anew = next == Next::Nobody;
        if anew {
            // All others were tried: the first of them once more.
            next = promotion::without(view, state, standings, &BTreeSet::from([leader.broker]));
        }
        let until = if moves::may_still_serve(state) { Until::OpenedAgain } else { Until::Opened };
        self.waits.begin(id, state.generation, until);
        if next == Next::Nobody || !self.waits.is_overdue(id, leader) {
            return None;
        }
        self.waits.failed(id, leader.broker, anew);
        promotion::decide(view, partition, &next)
    }

    fn look_at_move(&mut self, view: &View, partition: &PartitionView, leader: &Leader) -> Option<Decision> {
        let id = partition.id;
        if moves::asked(view, partition).is_none() {
            self.waits.end(&id);
            if !self.waits.rests(&id) && moves::is_wanted(view, partition) {
                self.wanted.insert(leader.broker, id);
            }
            return None;
        }
        self.waits.begin(id, partition.generation(), Until::Resigned);
        if !self.waits.is_overdue(id, leader) {
            return None;
        }
        self.waits.rest(id);
        moves::give_back(view, partition)
    }
}

/// Whether a node that came, went or changed may matter to a partition: nobody leads it, or its leader is not there, has
/// not opened or is to go, or its replicas are being changed.
fn is_unsettled(view: &View, partition: &PartitionView) -> bool {
    let state = &partition.state;
    let Some(leader) = state.leader else { return true };
    !view.may_lead(leader.broker, leader.session)
        || !state.opened()
        || moves::is_draining(view, leader.broker)
        || moves::has_draining(view, state)
        || reassign::in_progress(state)
}

/// Places one partition: as the client said, or where there is room.
fn place(view: &View, topic: &TopicView, id: PartitionId, loads: &mut Option<Loads>) -> Option<Decision> {
    if id.index >= topic.partition_count {
        return None;
    }
    let loads = loads.get_or_insert_with(|| Loads::of(view));
    let replicas = match topic.assignments.get(&id.index) {
        Some(replicas) => {
            loads.add(view, id.topic, replicas);
            replicas.clone()
        }
        None => loads.place(view, id, usize::try_from(topic.replication_factor).unwrap_or(1)),
    };
    // Nobody is live to hold it: the next node that registers brings this up again.
    if replicas.is_empty() {
        return None;
    }
    let key = Key::Partition(id);
    let decision = Decision::new().absent(key.clone()).at(Key::Topic(topic.id), topic.revision);
    Some(decision.put(key, &Partition::placed(replicas)))
}

fn unclean_allowed(view: &View, topic: &TopicView) -> bool {
    let set = topic.overrides.get(UNCLEAN_CONFIG).or_else(|| view.cluster_overrides().get(UNCLEAN_CONFIG));
    set.is_some_and(|value| value == "true")
}

#[cfg(test)]
mod tests;
