//! The controller: fills in the partitions that topics promise, removes those of deleted topics, and promotes.
//!
//! Every broker may run one; all come to the same decisions, and compares let one of them land. It looks only at
//! what changed: [`Controller::note`] says what, [`Controller::decide`] what follows. When nothing is left to
//! decide, nothing is written.

use std::collections::BTreeSet;

use felix_protocol::ids::{PartitionId, TopicId};

use crate::decision::Decision;
use crate::keys::Key;
use crate::placement::Loads;
use crate::promotion::{self, Next, Standings};
use crate::state::Partition;
use crate::view::{Changes, PartitionView, TopicView, View};

/// The config by which an operator lets a partition lose records rather than wait.
pub const UNCLEAN_CONFIG: &str = "unclean.leader.election.enable";

/// See the module.
#[derive(Clone, Debug, Default)]
pub struct Controller {
    dirty: BTreeSet<PartitionId>,
}

impl Controller {
    /// Something changed; `view` is the view after it.
    pub fn note(&mut self, changes: &Changes, view: &View) {
        self.dirty.extend(changes.partitions.iter().copied());
        for topic in &changes.topics {
            self.note_topic(topic, view);
        }
        if changes.nodes || changes.configs {
            // A node that came or went matters to those it leads and to those nobody leads.
            let concerned = view.partitions().filter(|partition| is_leaderless(view, partition));
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

    /// Whether there is nothing to look at.
    pub fn is_quiet(&self) -> bool {
        self.dirty.is_empty()
    }

    /// What is to be decided now, at most `limit` decisions. Each partition is looked at once; a lost compare
    /// means that something changed, and that is noted again.
    pub fn decide(&mut self, view: &View, standings: &Standings, limit: usize) -> Vec<Decision> {
        let mut loads = None;
        let mut decisions = Vec::new();
        while decisions.len() < limit {
            let Some(id) = self.dirty.pop_first() else { break };
            decisions.extend(look(view, id, standings, &mut loads));
        }
        decisions
    }
}

fn is_leaderless(view: &View, partition: &PartitionView) -> bool {
    partition.leader().is_none_or(|leader| !view.may_lead(leader.broker, leader.session))
}

fn look(view: &View, id: PartitionId, standings: &Standings, loads: &mut Option<Loads>) -> Option<Decision> {
    match (view.topic(&id.topic), view.partition(&id)) {
        (Some(topic), None) => place(view, topic, id, loads),
        (Some(topic), Some(partition)) => {
            let next = promotion::next(view, &partition.state, standings, unclean_allowed(view, topic));
            if next == Next::Keep { None } else { promotion::decide(view, partition, &next) }
        }
        (None, Some(orphan)) => {
            let key = Key::Partition(id);
            let decision = Decision::new().absent(Key::Topic(id.topic)).at(key.clone(), orphan.revision);
            Some(decision.delete(key))
        }
        (None, None) => None,
    }
}

/// Places one partition: as the client said, or where there is room.
fn place(view: &View, topic: &TopicView, id: PartitionId, loads: &mut Option<Loads>) -> Option<Decision> {
    if id.index >= topic.partition_count {
        return None;
    }
    let loads = loads.get_or_insert_with(|| Loads::of(view));
    let replicas = match topic.assignments.get(&id.index) {
        Some(replicas) => {
            loads.add(replicas);
            replicas.clone()
        }
        None => loads.place(id, usize::try_from(topic.replication_factor).unwrap_or(1)),
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
