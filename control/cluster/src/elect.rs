//! ElectLeaders: an operator asks for preferred leaders, or for any leader at all.
//!
//! Each partition is answered by itself. A preferred election where somebody works is a planned move, so it takes a while:
//! [`begin`] starts what can be started, [`ended`] says when a partition is through. Deliberately absent: who is asked
//! about which copies before an unclean one (the caller brings what they said).

use std::collections::{BTreeMap, BTreeSet};

use felix_protocol::ids::{BrokerId, Generation, PartitionId};
use thiserror::Error;

use crate::decision::Decision;
use crate::moves;
use crate::promotion::{self, Next, Standings};
use crate::state::Partition;
use crate::view::{PartitionView, View};

/// What kind of leader is asked for.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum Election {
    /// The first replica.
    Preferred,
    /// Any, where there is none, even if acknowledged records are lost.
    Unclean,
}

/// Why a partition gets no other leader.
#[derive(Clone, Copy, Debug, PartialEq, Eq, PartialOrd, Ord, Error)]
pub enum NotElected {
    /// There is no such partition.
    #[error("there is no such partition")]
    Unknown,
    /// It has the leader that was asked for.
    #[error("the partition has such a leader already")]
    NotNeeded,
    /// The first replica is not there, or does not hold everything.
    #[error("the preferred leader is not there, or not level")]
    PreferredNotAvailable,
    /// No replica is there.
    #[error("no replica is there that could lead")]
    EligibleNotAvailable,
}

/// What is to be done about one partition.
#[derive(Clone, Debug, PartialEq, Eq)]
pub enum Start {
    /// Its leader is to be asked for it, once it has opened.
    Move(BrokerId),
    /// Nobody leads, or somebody who never did: this promotes at once.
    Promote(Decision),
}

/// What an election of one partition would begin with.
pub fn start(
    view: &View,
    id: PartitionId,
    election: Election,
    standings: &Standings,
) -> Result<Start, NotElected> {
    let partition = view.partition(&id).ok_or(NotElected::Unknown)?;
    match election {
        Election::Preferred => start_preferred(view, partition, standings),
        Election::Unclean => start_unclean(view, partition, standings),
    }
}

fn start_preferred(
    view: &View,
    partition: &PartitionView,
    standings: &Standings,
) -> Result<Start, NotElected> {
    let state = &partition.state;
    let preferred = *state.replicas.first().ok_or(NotElected::PreferredNotAvailable)?;
    let leader = state.leader.filter(|leader| view.may_lead(leader.broker, leader.session));
    if leader.is_some_and(|leader| leader.broker == preferred) {
        return Err(NotElected::NotNeeded);
    }
    if moves::is_draining(view, preferred) {
        return Err(NotElected::PreferredNotAvailable);
    }
    let others: BTreeSet<BrokerId> = state.replicas.iter().copied().filter(|id| *id != preferred).collect();
    let next = promotion::without(view, state, standings, &others);
    if next == Next::Nobody {
        return Err(NotElected::PreferredNotAvailable);
    }
    match leader {
        Some(leader) if state.opened() || moves::may_still_serve(state) => Ok(Start::Move(leader.broker)),
        Some(_) | None => promotion::decide(view, partition, &next)
            .map(Start::Promote)
            .ok_or(NotElected::PreferredNotAvailable),
    }
}

fn start_unclean(view: &View, partition: &PartitionView, standings: &Standings) -> Result<Start, NotElected> {
    let next = promotion::next(view, &partition.state, standings, true);
    match next {
        Next::Keep => Err(NotElected::NotNeeded),
        Next::Nobody => Err(NotElected::EligibleNotAvailable),
        Next::Lead { .. } => promotion::decide(view, partition, &next)
            .map(Start::Promote)
            .ok_or(NotElected::EligibleNotAvailable),
    }
}

/// Begins elections, as many as there is room for: promotions, and for each node that leads one slice. What does not fit is
/// there to be begun when some are through. Those that are refused are answered at once.
pub fn begin(
    view: &View,
    ids: &BTreeSet<PartitionId>,
    election: Election,
    standings: &BTreeMap<PartitionId, Standings>,
) -> (Vec<Decision>, BTreeMap<PartitionId, NotElected>) {
    let mut decisions = Vec::new();
    let mut refused = BTreeMap::new();
    let mut moving: BTreeMap<BrokerId, Vec<PartitionId>> = BTreeMap::new();
    let silent = Standings::new();
    for id in ids {
        match start(view, *id, election, standings.get(id).unwrap_or(&silent)) {
            Ok(Start::Move(node)) => moving.entry(node).or_default().push(*id),
            Ok(Start::Promote(decision)) => decisions.push(decision),
            Err(reason) => {
                refused.insert(*id, reason);
            }
        }
    }
    for (node, ids) in moving {
        let unasked = |id: &&PartitionId| {
            view.partition(id).is_some_and(|partition| moves::asked(view, partition).is_none())
        };
        decisions.extend(moves::slice(view, node, ids.iter().filter(unasked)));
    }
    (decisions, refused)
}

/// Whether an election that began at generation `from` is through, and how; `None` while it goes on.
pub fn ended(
    view: &View,
    id: PartitionId,
    election: Election,
    from: Generation,
) -> Option<Result<(), NotElected>> {
    let Some(partition) = view.partition(&id) else { return Some(Err(NotElected::Unknown)) };
    let leader = lives(view, &partition.state)?;
    if partition.generation() == from {
        return None;
    }
    let as_asked = match election {
        Election::Preferred => partition.state.replicas.first() == Some(&leader),
        Election::Unclean => true,
    };
    Some(if as_asked { Ok(()) } else { Err(NotElected::PreferredNotAvailable) })
}

fn lives(view: &View, state: &Partition) -> Option<BrokerId> {
    let leader = state.leader?;
    view.may_lead(leader.broker, leader.session).then_some(leader.broker)
}

#[cfg(test)]
mod tests;
