//! An operator gives a partition a leader that cannot prove to hold everything that was acknowledged (`replication.md`
//! section 5, "Unclean promotion").
//!
//! Everything that can be known beforehand is in the [`Plan`]: who could lead, what each is known to hold, and who is
//! to. The operator's word is needed only where the ordinary rules name nobody, and is refused where they would.

use felix_protocol::ids::{BrokerId, Generation, LogId, Offset, PartitionId};
use thiserror::Error;

use crate::decision::Decision;
use crate::promotion::{self, Next, Standings};
use crate::state::{DeclineReason, Leader, NodeState, Partition};
use crate::view::View;

/// What is known of a replica's copy.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub struct Holding {
    /// Its identity.
    pub log: LogId,
    /// The newest generation that it accepted.
    pub accepted: Generation,
    /// Where it ends.
    pub end: Offset,
    /// Its broker said so just now; else it is what was said when it declined.
    pub fresh: bool,
}

impl Holding {
    /// Whose log reaches further: by the generation first.
    fn reach(&self) -> (Generation, Offset) {
        (self.accepted, self.end)
    }
}

/// A replica, as an operator has to see it.
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct Candidate {
    /// Its broker.
    pub broker: BrokerId,
    /// In which state that is; `None`: not registered.
    pub state: Option<NodeState>,
    /// The copy that is vouched for, if one here is: it holds everything.
    pub vouched: Option<LogId>,
    /// Why it declined to lead, if it did.
    pub declined: Option<DeclineReason>,
    /// What is known of its copy.
    pub holding: Option<Holding>,
}

impl Candidate {
    /// Whether it could lead now.
    pub fn is_there(&self) -> bool {
        self.state.is_some_and(|state| state != NodeState::Fenced)
    }
}

/// What would be lost, as far as that can be known.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum Loss {
    /// No copy that is known reaches further; what others held that are not there is not known.
    NothingKnown,
    /// A copy that is known reaches further by so many records, at the same generation.
    Records(u64),
    /// A copy that is known accepted a newer generation: what was written since is lost.
    NewerGeneration,
    /// Nothing is known of the chosen copy: it may be empty.
    Everything,
}

/// One partition's promotion, before it is written.
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct Plan {
    /// The partition.
    pub id: PartitionId,
    /// Its replicas, in their order.
    pub candidates: Vec<Candidate>,
    /// Who is to lead.
    pub leader: Leader,
    /// At which generation.
    pub generation: Generation,
    /// What that costs.
    pub loss: Loss,
    /// What is to be written.
    pub decision: Decision,
}

/// Why nobody is promoted.
#[derive(Clone, Debug, PartialEq, Eq, Error)]
pub enum Refused {
    /// There is no such partition.
    #[error("there is no such partition")]
    Unknown,
    /// There is nothing to recover.
    #[error("broker {0} leads it: there is nothing to recover")]
    Led(BrokerId),
    /// The ordinary rules name somebody, without loss.
    #[error(
        "broker {0} is there and holds everything: it is named without any loss as soon as a broker has looked"
    )]
    Clean(BrokerId),
    /// Only replicas hold copies.
    #[error("broker {0} holds no copy: its replicas are {1:?}")]
    NotAReplica(BrokerId, Vec<i32>),
    /// It has no session that could lead, or its disk is not to be trusted.
    #[error("broker {0} is not there: start it first, or name another")]
    NotThere(BrokerId),
    /// None of them is.
    #[error("none of its replicas ({0:?}) is there: start one first")]
    NobodyThere(Vec<i32>),
    /// There is more than one choice.
    #[error("brokers {0:?} could lead it: name one with --to")]
    Choose(Vec<i32>),
    /// The generations are used up.
    #[error("its generations are used up")]
    UsedUp,
}

/// What is known of each replica.
pub fn candidates(view: &View, partition: &Partition, standings: &Standings) -> Vec<Candidate> {
    let promotable = partition.promotable();
    let of = |id: &BrokerId| {
        let gone = partition.gone.iter().find(|gone| gone.pair.broker == *id);
        let told = standings.get(id).map(|told| Holding {
            log: told.log,
            accepted: told.accepted,
            end: told.end,
            fresh: true,
        });
        let declined = gone.and_then(|gone| {
            let log = gone.current?;
            Some(Holding { log, accepted: gone.accepted, end: gone.end, fresh: false })
        });
        Candidate {
            broker: *id,
            state: view.broker(*id).map(|node| node.node.state),
            vouched: promotable.iter().find(|pair| pair.broker == *id).map(|pair| pair.log),
            declined: gone.map(|gone| gone.reason),
            holding: told.or(declined),
        }
    };
    partition.replicas.iter().map(of).collect()
}

/// Plans the promotion of `to`, or of the only one that could lead. `standings` is what brokers say of their copies.
/// `is_alone`: the store is that of a single node, which is stopped. It is named by the session that it had, and once
/// more when it starts.
pub fn plan(
    view: &View,
    id: PartitionId,
    to: Option<BrokerId>,
    standings: &Standings,
    is_alone: bool,
) -> Result<Plan, Refused> {
    let partition = view.partition(&id).ok_or(Refused::Unknown)?;
    let state = &partition.state;
    let leader = state.leader.filter(|leader| view.may_lead(leader.broker, leader.session));
    if let Some(leader) = leader.filter(|_| !is_alone) {
        return Err(Refused::Led(leader.broker));
    }
    let candidates = candidates(view, state, standings);
    match promotion::next(view, state, standings, false) {
        Next::Lead { leader, unclean: false, .. } => return Err(Refused::Clean(leader.broker)),
        // Of a node that has stopped nobody is there, and what it is vouched to hold it leads with when it starts.
        _ if is_alone && (state.untouched() || candidates.iter().any(|one| one.vouched.is_some())) => {
            return Err(Refused::Clean(candidates[0].broker));
        }
        Next::Lead { unclean: true, .. } | Next::Nobody | Next::Keep => {}
    }
    let chosen = choose(view, state, &candidates, to, is_alone)?;
    let node = view.broker(chosen.broker).filter(|node| !node.node.suspect);
    let session = node.ok_or(Refused::NotThere(chosen.broker))?.node.session;
    let log = chosen.holding.map(|holding| holding.log);
    let leader = Leader { broker: chosen.broker, session, log };
    let generation = view.next_generation(state).ok_or(Refused::UsedUp)?;
    let loss = loss(chosen, &candidates);
    let next = Next::Lead { leader, generation, unclean: true };
    let decision = promotion::decide(view, partition, &next).ok_or(Refused::UsedUp)?;
    Ok(Plan { id, candidates, leader, generation, loss, decision })
}

fn choose<'a>(
    view: &View,
    state: &Partition,
    candidates: &'a [Candidate],
    to: Option<BrokerId>,
    is_alone: bool,
) -> Result<&'a Candidate, Refused> {
    let numbers = |ids: Vec<BrokerId>| ids.into_iter().map(|id| id.0).collect::<Vec<i32>>();
    let able = |one: &&Candidate| {
        (one.is_there() || is_alone) && view.broker(one.broker).is_some_and(|node| !node.node.suspect)
    };
    if let Some(to) = to {
        let chosen = candidates.iter().find(|one| one.broker == to);
        let chosen = chosen.ok_or_else(|| Refused::NotAReplica(to, numbers(state.replicas.clone())))?;
        return Some(chosen).filter(able).ok_or(Refused::NotThere(to));
    }
    let there: Vec<&Candidate> = candidates.iter().filter(able).collect();
    match there[..] {
        [] => Err(Refused::NobodyThere(numbers(state.replicas.clone()))),
        [only] => Ok(only),
        _ => Err(Refused::Choose(numbers(there.iter().map(|one| one.broker).collect()))),
    }
}

fn loss(chosen: &Candidate, all: &[Candidate]) -> Loss {
    let Some(own) = chosen.holding else { return Loss::Everything };
    let furthest = all.iter().filter_map(|one| one.holding).max_by_key(Holding::reach).unwrap_or(own);
    if furthest.accepted > own.accepted {
        Loss::NewerGeneration
    } else if furthest.end > own.end {
        Loss::Records(furthest.end.abs_diff(own.end))
    } else {
        Loss::NothingKnown
    }
}

#[cfg(test)]
mod tests;
