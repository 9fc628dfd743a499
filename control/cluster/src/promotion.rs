//! Who may lead next, or nobody (`replication.md` section 5, "Promotion" and "Unclean promotion").
//!
//! The one question whose wrong answer loses acknowledged records. It is answered from a view and from what
//! candidates said of themselves, and written only if nothing it was answered from has changed.

use std::cmp::Reverse;
use std::collections::BTreeMap;

use felix_protocol::ids::{BrokerId, Generation, LogId, Offset};

use crate::decision::Decision;
use crate::keys::Key;
use crate::state::{DeclineReason, Gone, Last, Leader, NodeState, Partition};
use crate::view::{PartitionView, View};

/// What a candidate says of its copy when asked.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub struct Standing {
    /// The log it holds.
    pub log: LogId,
    /// The newest generation it accepted.
    pub accepted: Generation,
    /// Its durable end.
    pub end: Offset,
    /// Whether part of what it acknowledged may be missing.
    pub doubt: bool,
}

/// What the candidates said; one that is silent is not in it and ranks last.
pub type Standings = BTreeMap<BrokerId, Standing>;

/// The answer.
#[derive(Clone, Debug, PartialEq, Eq)]
pub enum Next {
    /// The leader's session is alive: it stays.
    Keep,
    /// This one leads from now on. `unclean`: acknowledged records may be lost.
    Lead {
        /// Who, and with which copy.
        leader: Leader,
        /// Its generation.
        generation: Generation,
        /// Whether this is an unclean promotion.
        unclean: bool,
    },
    /// Nobody may; the partition waits for a candidate to return, or for an operator.
    Nobody,
}

/// Answers for one partition. `unclean_allowed` is the operator's word (`unclean.leader.election.enable`).
pub fn next(view: &View, partition: &Partition, standings: &Standings, unclean_allowed: bool) -> Next {
    if let Some(leader) = &partition.leader
        && view.may_lead(leader.broker, leader.session)
    {
        return Next::Keep;
    }
    let Some(generation) = partition.generation.next() else { return Next::Nobody };
    if let Some(leader) = clean(view, partition, standings) {
        return Next::Lead { leader, generation, unclean: false };
    }
    let in_doubt = all_in_doubt(partition);
    if in_doubt || unclean_allowed {
        let found = unclean(view, partition, in_doubt);
        if let Some(leader) = found {
            return Next::Lead { leader, generation, unclean: true };
        }
    }
    Next::Nobody
}

/// The best candidate that holds everything acknowledged.
fn clean(view: &View, partition: &Partition, standings: &Standings) -> Option<Leader> {
    if partition.untouched() {
        // Nothing was acknowledged: any live replica will do, with any copy, the preferred one first.
        let live = partition.replicas.iter().filter_map(|id| seat(view, *id, None));
        return live.min_by_key(|leader| draining(view, leader.broker));
    }
    let live = |pairs: &mut dyn Iterator<Item = crate::state::Pair>| {
        pairs
            .filter(|pair| partition.replicas.contains(&pair.broker))
            .filter_map(|pair| seat(view, pair.broker, Some(pair.log)))
            .max_by_key(|leader| {
                let told = standings.get(&leader.broker).filter(|told| Some(told.log) == leader.log);
                let place = partition.replicas.iter().position(|id| *id == leader.broker);
                (
                    !draining(view, leader.broker),
                    told.map(|told| (!told.doubt, told.accepted, told.end)),
                    Reverse(place),
                )
            })
    };
    if let Some(resigned) = &partition.resigned
        && let Some(leader) = live(&mut resigned.pairs.iter().copied())
    {
        return Some(leader);
    }
    live(&mut partition.promotable().into_iter())
}

/// Whether every copy that held everything acknowledged has declined in doubt, none being wiped: then
/// nothing better can ever return, and waiting for an operator would help nobody.
fn all_in_doubt(partition: &Partition) -> bool {
    let in_doubt = |gone: &Gone| gone.reason == DeclineReason::Doubt && gone.current.is_some();
    partition.promotable().is_empty() && !partition.gone.is_empty() && partition.gone.iter().all(in_doubt)
}

/// The copy that comes nearest to what was lost.
fn unclean(view: &View, partition: &Partition, in_doubt: bool) -> Option<Leader> {
    let declined = partition.gone.iter().filter(|gone| partition.replicas.contains(&gone.pair.broker));
    let nearest = declined
        .filter_map(|gone| Some((gone, seat(view, gone.pair.broker, gone.current)?)))
        .max_by_key(|(gone, _)| (gone.current.is_some(), gone.accepted, gone.end))
        .map(|(_, leader)| leader);
    if nearest.is_some() || in_doubt {
        return nearest;
    }
    // No one who declined is there; an operator who allows loss also allows an empty copy.
    partition.replicas.iter().find_map(|id| seat(view, *id, None))
}

/// A tenure for the node's present session, if that may lead and its directory can be trusted.
fn seat(view: &View, broker: BrokerId, log: Option<LogId>) -> Option<Leader> {
    let node = &view.broker(broker)?.node;
    let able = node.state != NodeState::Fenced && !node.suspect;
    able.then_some(Leader { broker, session: node.session, log })
}

fn draining(view: &View, broker: BrokerId) -> bool {
    view.broker(broker).is_some_and(|node| node.node.state == NodeState::Draining)
}

/// The decision that carries the answer out; `None` when nothing is to be written.
pub fn decide(view: &View, partition: &PartitionView, next: &Next) -> Option<Decision> {
    let mut state = partition.state.clone();
    let node_at = |id: BrokerId| view.broker(id).map_or(crate::state::Revision::ABSENT, |node| node.revision);
    let mut decision = Decision::new();
    // The old leader is dead because its node's key says so.
    if let Some(old) = &state.leader {
        decision = decision.at(Key::Node(old.broker), node_at(old.broker));
    }
    match next {
        Next::Keep => return None,
        Next::Nobody => {
            state.leader.take()?;
        }
        Next::Lead { leader, generation, unclean } => {
            if state.leader.is_none_or(|old| old.broker != leader.broker) {
                decision = decision.at(Key::Node(leader.broker), node_at(leader.broker));
            }
            state.leader = Some(*leader);
            state.generation = *generation;
            state.resigned = None;
            if *unclean {
                state.last = Last::Nobody;
                state.eligible.clear();
                state.unclean_at = Some(*generation);
            }
        }
    }
    let key = Key::Partition(partition.id);
    Some(decision.at(key.clone(), partition.revision).put(key, &state))
}

#[cfg(test)]
mod tests;
