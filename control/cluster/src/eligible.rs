//! Which reports are lawful: what a named leader may write about its partition (`replication.md` section 5,
//! C1 and C9 to C13).
//!
//! A report carries the revisions its sender last learned, and those are the compares (C1): nobody
//! substitutes a revision read later. The functions here compute the new value from the state *at that
//! revision*; a caller whose view is newer must refuse instead.

use std::collections::BTreeSet;

use felix_protocol::ids::{BrokerId, Generation, LogId, Offset, SessionId};
use thiserror::Error;

use crate::decision::Decision;
use crate::keys::Key;
use crate::state::{DeclineReason, Gone, Last, Leader, Pair, Partition, Resigned};
use crate::view::{Learned, PartitionView};

/// Whose tenure a report is about.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub struct Tenure {
    /// The broker.
    pub broker: BrokerId,
    /// Its session.
    pub session: SessionId,
    /// The generation it was given.
    pub generation: Generation,
}

/// What a candidate says when it does not lead, or a leader when it met damage in its copy.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub struct Declined {
    /// Why.
    pub reason: DeclineReason,
    /// The copy it holds instead of the named one.
    pub current: Option<LogId>,
    /// The newest generation that copy accepted.
    pub accepted: Generation,
    /// Where it ends.
    pub end: Offset,
}

/// A report.
#[derive(Clone, Debug, PartialEq, Eq)]
pub enum Report {
    /// The leader opened, with this copy (C10).
    Opened(LogId),
    /// The leader vouches for this set. `dead`: log ids it knows to be gone, which C9 lets it drop.
    Eligible {
        /// The new set.
        pairs: BTreeSet<Pair>,
        /// Members dropped because their log ids are known dead.
        dead: BTreeSet<Pair>,
        /// How many copies an acknowledgement needs.
        need: usize,
    },
    /// The candidate does not lead (C11), or the leader cannot vouch for its copy any more.
    Declined(Declined),
    /// The leader gives the partition up: where its log ends, and which eligible copies hold all of it. No copies: nobody
    /// followed it any more.
    Resigned(Resigned),
}

/// Why a report is refused.
#[derive(Clone, Copy, Debug, PartialEq, Eq, Error)]
pub enum Unlawful {
    /// The tenure is over, or never was.
    #[error("the reporter does not lead the partition at that generation")]
    NotLeader,
    /// A copy other than the one named (C11: it must decline).
    #[error("log {held} was opened where log {named} was named")]
    OtherLog {
        /// The copy that was named.
        named: LogId,
        /// The one opened.
        held: LogId,
    },
    /// A set reported before opening, or after it a decline for another reason than doubt.
    #[error("the tenure is opened already, or not yet")]
    Opening,
    /// Declining where no copy was named.
    #[error("no copy was named that could be declined")]
    NothingNamed,
    /// Two copies of one broker, the leader's own, or one on a broker without replica.
    #[error("broker {0} cannot be in the set so")]
    Member(BrokerId),
    /// C9.
    #[error("the set would shrink to {to} where {floor} is the least")]
    BelowFloor {
        /// Its new size.
        to: usize,
        /// need - 1.
        floor: usize,
    },
}

/// How many replicas count for that: all but those that are being added.
pub fn counted(partition: &Partition) -> usize {
    partition.replicas.iter().filter(|id| !partition.adding.contains(id)).count()
}

/// How many durable copies an acknowledgement needs, the leader's included. `min_insync` is what the operator
/// set; without it, the majority. Replicas being added do not count yet.
pub fn need(partition: &Partition, min_insync: Option<usize>) -> usize {
    let counted = counted(partition);
    min_insync.unwrap_or(counted / 2 + 1).min(counted)
}

/// The partition after the report, if that is lawful. A report of what is already so changes nothing.
pub fn apply(state: &Partition, from: &Tenure, report: &Report) -> Result<Partition, Unlawful> {
    let leader = state.leader.ok_or(Unlawful::NotLeader)?;
    let named =
        leader.broker == from.broker && leader.session == from.session && state.generation == from.generation;
    if !named {
        return Err(Unlawful::NotLeader);
    }
    match report {
        Report::Opened(log) => opened(state, &leader, *log),
        Report::Eligible { pairs, dead, need } => reported(state, &leader, pairs, dead, *need),
        Report::Declined(declined) => decline(state, &leader, declined),
        Report::Resigned(resigned) => resign(state, resigned),
    }
}

/// C10: eligible := (eligible ∪ {last's pair}) − {own pair}.
fn opened(state: &Partition, leader: &Leader, held: LogId) -> Result<Partition, Unlawful> {
    if let Some(named) = leader.log
        && named != held
    {
        return Err(Unlawful::OtherLog { named, held });
    }
    let pair = Pair { broker: leader.broker, log: held };
    if state.opened() {
        return if state.last.pair() == Some(pair) { Ok(state.clone()) } else { Err(Unlawful::Opening) };
    }
    let mut after = state.clone();
    after.eligible.extend(state.last.pair());
    // Another copy of the leader's own broker is known dead: it is that broker which says so.
    after.eligible.retain(|member| member.broker != leader.broker);
    after.last = Last::Opened { pair, generation: state.generation };
    after.gone.clear();
    Ok(after)
}

fn reported(
    state: &Partition,
    leader: &Leader,
    pairs: &BTreeSet<Pair>,
    dead: &BTreeSet<Pair>,
    need: usize,
) -> Result<Partition, Unlawful> {
    if !state.opened() {
        return Err(Unlawful::Opening);
    }
    let mut brokers = BTreeSet::from([leader.broker]);
    for pair in pairs {
        if !state.replicas.contains(&pair.broker) || !brokers.insert(pair.broker) {
            return Err(Unlawful::Member(pair.broker));
        }
    }
    let floor = need.saturating_sub(1);
    let dropped_living = state.eligible.difference(pairs).any(|pair| !dead.contains(pair));
    if dropped_living && pairs.len() < state.eligible.len() && pairs.len() < floor {
        return Err(Unlawful::BelowFloor { to: pairs.len(), floor });
    }
    Ok(Partition { eligible: pairs.clone(), ..state.clone() })
}

fn decline(state: &Partition, leader: &Leader, declined: &Declined) -> Result<Partition, Unlawful> {
    let pair = if state.opened() {
        // A leader that met damage in its copy cannot vouch for it any more. The copy it opened is meant: none may
        // have been named.
        let opened = state.last.pair().filter(|_| declined.reason == DeclineReason::Doubt);
        opened.ok_or(Unlawful::Opening)?
    } else {
        Pair { broker: leader.broker, log: leader.log.ok_or(Unlawful::NothingNamed)? }
    };
    let mut after = state.clone();
    after.leader = None;
    after.eligible.remove(&pair);
    if state.last.pair() == Some(pair) {
        after.last = Last::Nobody;
    }
    // What a broker says last of what it holds is what counts.
    after.gone.retain(|gone| gone.pair.broker != pair.broker);
    let Declined { reason, current, accepted, end } = *declined;
    after.gone.push(Gone { pair, reason, current, accepted, end });
    Ok(after)
}

/// The generation stays: nobody has it any more, and whoever is next gets another.
fn resign(state: &Partition, resigned: &Resigned) -> Result<Partition, Unlawful> {
    if !state.opened() {
        return Err(Unlawful::Opening);
    }
    if let Some(stranger) = resigned.pairs.difference(&state.eligible).next() {
        return Err(Unlawful::Member(stranger.broker));
    }
    Ok(Partition { leader: None, resigned: Some(resigned.clone()), ..state.clone() })
}

/// The partition after its broker found bytes of a copy that it had given up for lost: nobody leads, and what the
/// broker holds now, under an identity of its own, differs from what it said last. `None` where that is not so.
pub fn returned(state: &Partition, broker: BrokerId, held: &Declined) -> Option<Partition> {
    let before = state.gone.iter().find(|gone| gone.pair.broker == broker)?;
    let Declined { reason, current, accepted, end } = *held;
    let after = Gone { pair: before.pair, reason, current, accepted, end };
    if state.leader.is_some() || *before == after || current.is_none() {
        return None;
    }
    let gone = state.gone.iter().map(|gone| if gone.pair.broker == broker { after } else { *gone }).collect();
    Some(Partition { gone, ..state.clone() })
}

/// The decision that writes a lawful report; `None` when it says what is already so. The view's partition must
/// be the one the sender learned.
pub fn decide(
    partition: &PartitionView,
    learned: Learned,
    from: &Tenure,
    report: &Report,
) -> Result<Option<Decision>, Unlawful> {
    let after = apply(&partition.state, from, report)?;
    if after == partition.state {
        return Ok(None);
    }
    let key = Key::Partition(partition.id);
    let decision = Decision::new()
        .at(key.clone(), learned.partition)
        .at(Key::Topic(partition.id.topic), learned.topic)
        .put(key, &after);
    Ok(Some(decision))
}

#[cfg(test)]
mod tests;
