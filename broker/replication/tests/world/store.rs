//! A control store of one key: compares, and requests that land late, twice or never.

use std::collections::{BTreeMap, BTreeSet};

use felix_protocol::ids::{BrokerId, Generation, LogId};
use felix_replication::eligible::{Claim, KeyState, Last, Pair, Report, Revision};
use felix_replication::rules::Rules;

/// Who leads.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub struct Named {
    pub broker: BrokerId,
    pub session: u64,
    pub log: Option<LogId>,
}

#[derive(Clone, Debug)]
pub struct Key {
    pub revision: u64,
    pub generation: Generation,
    pub named: Option<Named>,
    pub last: Last,
    pub eligible: BTreeSet<Pair>,
    pub resigned: BTreeSet<Pair>,
}

/// A report on its way.
#[derive(Clone, Debug)]
pub struct Request {
    pub node: BrokerId,
    pub session: u64,
    pub generation: Generation,
    pub report: Report,
}

pub struct Store {
    pub key: Key,
    /// The present session of each node; 0: fenced.
    pub sessions: BTreeMap<BrokerId, u64>,
    pub requests: Vec<Request>,
    pub need: usize,
    /// Reports that landed.
    pub reports: u64,
    /// Those that gave the partition up.
    pub resigned: u64,
    /// Generations at which a leader opened.
    pub tenures: BTreeSet<Generation>,
}

impl Store {
    pub fn new(brokers: &[BrokerId], need: usize) -> Store {
        let key = Key {
            revision: 1,
            generation: Generation::ZERO,
            named: None,
            last: Last::Never,
            eligible: BTreeSet::new(),
            resigned: BTreeSet::new(),
        };
        let sessions = brokers.iter().map(|id| (*id, 0)).collect();
        Store { key, sessions, requests: Vec::new(), need, reports: 0, resigned: 0, tenures: BTreeSet::new() }
    }

    pub fn state(&self) -> KeyState {
        KeyState {
            revision: Revision(self.key.revision),
            topic: Revision(1),
            eligible: self.key.eligible.clone(),
            last: self.key.last,
            replicas: self.sessions.keys().copied().collect(),
            generation: self.key.generation,
            led: self.key.named.is_some(),
        }
    }

    pub fn opened(&self) -> bool {
        matches!(self.key.last, Last::Opened { generation, .. } if generation == self.key.generation)
    }

    pub fn last_pair(&self) -> Option<Pair> {
        match self.key.last {
            Last::Opened { pair, .. } => Some(pair),
            Last::Never | Last::Declined => None,
        }
    }

    pub fn promotable(&self) -> BTreeSet<Pair> {
        self.key.eligible.iter().copied().chain(self.last_pair()).collect()
    }

    /// Lands, or loses its compare. What a report may not do whatever the rules are is an error.
    pub fn apply<R: Rules>(&mut self, request: &Request) -> Result<bool, String> {
        let Request { node, session, generation, report } = request;
        let named = self.key.named.is_some_and(|named| named.broker == *node && named.session == *session);
        if !named || self.key.generation != *generation {
            return Ok(false);
        }
        if R::C1_COMPARES_LEARNED && report.revision.0 != self.key.revision {
            return Ok(false);
        }
        let mut after = self.key.clone();
        match &report.claim {
            Claim::Opening(_) => {
                // The store of a cluster works this set out for itself.
                let mut set = self.promotable();
                set.retain(|pair| pair.broker != *node);
                if report.eligible != set {
                    return Err(format!("C10: {:?} where {set:?} was to be kept", report.eligible));
                }
                after.eligible = set;
                after.last = report.last;
                self.tenures.insert(*generation);
            }
            Claim::Eligible { dead, .. } => {
                if !self.opened() {
                    return Err("C10: a set is reported before the tenure opened".to_owned());
                }
                let (before, set) = (&self.key.eligible, &report.eligible);
                let living = before.difference(set).any(|pair| !dead.contains(pair));
                if living && set.len() < before.len() && set.len() + 1 < self.need {
                    return Err(format!("C9: {before:?} shrinks to {set:?}"));
                }
                after.eligible.clone_from(set);
            }
            Claim::Resigned(resigned) => {
                if !resigned.pairs.is_subset(&self.key.eligible) {
                    return Err("K4: strangers are named as successors".to_owned());
                }
                after.named = None;
                self.resigned += 1;
                after.resigned.clone_from(&resigned.pairs);
            }
        }
        let brokers: BTreeSet<BrokerId> = after.eligible.iter().map(|pair| pair.broker).collect();
        if brokers.len() < after.eligible.len() || brokers.contains(node) {
            return Err(format!("C13: {:?} led by {node}", after.eligible));
        }
        after.revision += 1;
        self.reports += 1;
        self.key = after;
        Ok(true)
    }

    /// Names whoever is at `choice` among those that may lead, if the named leader is dead, has resigned or has not opened.
    pub fn promote(&mut self, choice: usize) -> bool {
        let alive = |id: BrokerId| self.sessions.get(&id).copied().filter(|session| *session > 0);
        let leader_lives = self.key.named.is_some_and(|named| alive(named.broker) == Some(named.session));
        if leader_lives && self.opened() {
            return false;
        }
        let mut seats: Vec<Named> = Vec::new();
        if self.key.last == Last::Never && self.key.eligible.is_empty() {
            let live = self.sessions.keys().filter_map(|id| Some((*id, alive(*id)?)));
            seats.extend(live.map(|(broker, session)| Named { broker, session, log: None }));
        } else {
            let first = self.key.resigned.iter().find(|pair| alive(pair.broker).is_some()).copied();
            let able = first.map_or_else(|| self.promotable(), |pair| BTreeSet::from([pair]));
            for pair in able {
                if let Some(session) = alive(pair.broker) {
                    seats.push(Named { broker: pair.broker, session, log: Some(pair.log) });
                }
            }
        }
        if seats.is_empty() {
            return false;
        }
        self.key.named = Some(seats[choice % seats.len()]);
        self.key.generation = self.key.generation.next().unwrap();
        self.key.resigned.clear();
        self.key.revision += 1;
        true
    }

    /// A move that the leader did not make in time is over: it leads on, at the next generation.
    pub fn give_back(&mut self) {
        let (opened, pair) = (self.opened(), self.last_pair());
        let Some(named) = self.key.named.as_mut().filter(|_| opened) else { return };
        named.log = pair.map(|pair| pair.log);
        self.key.generation = self.key.generation.next().unwrap();
        self.key.revision += 1;
    }

    /// C11: the candidate holds another copy than the one named.
    pub fn decline(&mut self, node: BrokerId, generation: Generation) {
        let Some(Named { broker, log: Some(log), .. }) = self.key.named else { return };
        if broker != node || self.key.generation != generation {
            return;
        }
        let pair = Pair { broker, log };
        self.key.named = None;
        self.key.eligible.remove(&pair);
        if self.last_pair() == Some(pair) {
            self.key.last = Last::Declined;
        }
        self.key.revision += 1;
    }
}
