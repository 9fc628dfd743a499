//! Who may lead next, or nobody (`replication.md` section 5, "Promotion" and "Unclean promotion").
//!
//! The one question whose wrong answer loses acknowledged records. It is answered from a view and from what
//! candidates said of themselves, and written only if nothing it was answered from has changed.

use std::cmp::Reverse;
use std::collections::{BTreeMap, BTreeSet};

use felix_protocol::ids::{BrokerId, Generation, LogId, Offset, PartitionId};

use crate::decision::Decision;
use crate::keys::Key;
use crate::state::{DeclineReason, Gone, Last, Leader, NodeState, Pair, Partition};
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

/// The same of several partitions.
pub type StandingsOf = BTreeMap<PartitionId, Standings>;

/// The answer.
#[derive(Clone, Debug, PartialEq, Eq)]
pub enum Next {
    /// The leader's session is alive, or its broker is waited for: it stays.
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
    let Some(generation) = view.next_generation(partition) else { return Next::Nobody };
    if let Some(leader) = clean(view, partition, standings, &BTreeSet::new()) {
        return Next::Lead { leader, generation, unclean: false };
    }
    // Chosen although it may lack something, and restarted before it could open: nothing was acknowledged since, so the
    // choice still stands.
    let chosen = partition.leader.filter(|_| partition.unclean_at == Some(partition.generation));
    let chosen = chosen.filter(|_| !partition.opened());
    if let Some(leader) = chosen.and_then(|chosen| seat(view, chosen.broker, chosen.log)) {
        return Next::Lead { leader, generation, unclean: true };
    }
    let in_doubt = all_in_doubt(partition);
    if in_doubt || unclean_allowed {
        let found = unclean(view, partition, standings, unclean_allowed);
        if let Some(leader) = found {
            return Next::Lead { leader, generation, unclean: true };
        }
    }
    // An operator's choice waits for its broker.
    if chosen.is_some() { Next::Keep } else { Next::Nobody }
}

/// Whose word on their copies decides who leads next; nobody's where there is no choice.
pub fn to_ask(view: &View, partition: &Partition, unclean_allowed: bool) -> BTreeSet<BrokerId> {
    let lives = |id: &BrokerId| partition.replicas.contains(id) && seat(view, *id, None).is_some();
    let named = partition
        .resigned
        .as_ref()
        .is_some_and(|resigned| resigned.pairs.iter().any(|pair| lives(&pair.broker)));
    if partition.untouched() || named {
        return BTreeSet::new();
    }
    let candidates: BTreeSet<BrokerId> =
        partition.promotable().iter().map(|pair| pair.broker).filter(lives).collect();
    match candidates.len() {
        // Without anybody who holds everything it matters which copy there is, even if it is the only one.
        0 if unclean_allowed => partition.replicas.iter().copied().filter(lives).collect(),
        0 | 1 => BTreeSet::new(),
        _ => candidates,
    }
}

/// Answers for a partition whose leader lives but has not opened, or is to be replaced by someone in particular: the best
/// candidate that is not among `passed_over`.
pub fn without(
    view: &View,
    partition: &Partition,
    standings: &Standings,
    passed_over: &BTreeSet<BrokerId>,
) -> Next {
    let found = clean(view, partition, standings, passed_over);
    match (found, view.next_generation(partition)) {
        (Some(leader), Some(generation)) => Next::Lead { leader, generation, unclean: false },
        (Some(_) | None, _) => Next::Nobody,
    }
}

/// Whether somebody else could lead with everything acknowledged if the leader gave its tenure up now.
pub fn has_heir(view: &View, partition: &Partition) -> bool {
    let Some(leader) = partition.leader.filter(|_| partition.opened()) else { return false };
    clean(view, partition, &Standings::new(), &BTreeSet::from([leader.broker])).is_some()
}

/// The best candidate that holds everything acknowledged.
fn clean(
    view: &View,
    partition: &Partition,
    standings: &Standings,
    passed_over: &BTreeSet<BrokerId>,
) -> Option<Leader> {
    let place = |id: BrokerId| partition.replicas.iter().position(|replica| *replica == id);
    let leaves = |id: BrokerId| partition.removing.contains(&id);
    if partition.untouched() {
        // Nothing was acknowledged: any live replica will do, with any copy, the preferred one first.
        let live = partition.replicas.iter().filter(|id| !passed_over.contains(id));
        let live = live.filter_map(|id| seat(view, *id, None));
        return live.min_by_key(|leader| (draining(view, leader.broker), leaves(leader.broker)));
    }
    let seats = |pairs: &BTreeSet<Pair>| -> Vec<Leader> {
        let able =
            pairs.iter().filter(|pair| !passed_over.contains(&pair.broker) && !left(view, partition, pair));
        able.filter(|pair| partition.replicas.contains(&pair.broker))
            .filter_map(|pair| seat(view, pair.broker, Some(pair.log)))
            .collect()
    };
    // All that a resigned leader named hold all of its log, so the operator's order counts.
    let resigned = partition.resigned.as_ref();
    let named = resigned.map_or_else(Vec::new, |resigned| seats(&resigned.pairs));
    let best = named.into_iter().max_by_key(|leader| {
        let broker = leader.broker;
        (!draining(view, broker), !leaves(broker), Reverse(place(broker)))
    });
    // One that resigned because nobody followed it comes back only where there is nobody else.
    let gave_way = resigned.filter(|resigned| resigned.pairs.is_empty()).and_then(|_| partition.last.pair());
    best.or_else(|| {
        seats(&partition.promotable()).into_iter().max_by_key(|leader| {
            let broker = leader.broker;
            let told = standings.get(&broker).filter(|told| Some(told.log) == leader.log);
            (
                gave_way.is_none_or(|pair| pair.broker != broker),
                !draining(view, broker),
                told.map(|told| (!told.doubt, told.accepted, told.end)),
                !leaves(broker),
                Reverse(place(broker)),
            )
        })
    })
}

/// Whether that copy's leader resigned because its broker goes away: it leads again in the broker's next life.
fn left(view: &View, partition: &Partition, pair: &Pair) -> bool {
    partition.resigned.is_some() && partition.last.pair() == Some(*pair) && draining(view, pair.broker)
}

/// Whether every copy that held everything acknowledged has declined in doubt, none being wiped: then
/// nothing better can ever return, and waiting for an operator would help nobody.
fn all_in_doubt(partition: &Partition) -> bool {
    let in_doubt = |gone: &Gone| gone.reason == DeclineReason::Doubt && gone.current.is_some();
    partition.promotable().is_empty() && !partition.gone.is_empty() && partition.gone.iter().all(in_doubt)
}

/// The copy that comes nearest to what was lost: by what its broker says of it, now or when it declined. Where an operator
/// allows loss, one of which nothing is known will do, and an empty one; without, only those that declined.
fn unclean(view: &View, partition: &Partition, standings: &Standings, operator: bool) -> Option<Leader> {
    let declined = |id: BrokerId| {
        let gone = partition.gone.iter().find(|gone| gone.pair.broker == id)?;
        gone.current.map(|log| (gone.accepted, gone.end, log))
    };
    let told = |id: BrokerId| standings.get(&id).map(|told| (told.accepted, told.end, told.log));
    let known = |id: BrokerId| if operator { told(id).or_else(|| declined(id)) } else { declined(id) };
    let able = partition.replicas.iter().enumerate().filter_map(|(place, id)| {
        let known = known(*id);
        let leader = seat(view, *id, known.map(|(_, _, log)| log))?;
        let furthest = known.map(|(accepted, end, _)| (accepted, end));
        (operator || known.is_some()).then_some((furthest, !draining(view, *id), Reverse(place), leader))
    });
    able.max_by_key(|(furthest, stays, place, _)| (*furthest, *stays, *place)).map(|(_, _, _, leader)| leader)
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
