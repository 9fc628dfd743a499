//! The waiting side of sessions: every node watches every other's beats and fences those that stay silent for W
//! (`replication.md` section 3, "Waiter").
//!
//! Nobody measures how long a lease has still to run. A node starts its own clock when it *heard* of a beat, and counts
//! only time for which its own beats vouch: while the store does not take those, it takes nobody else's either, and
//! nobody must be fenced for that. Then one transaction, which lands only if neither the node's key nor its beat has
//! changed. Several nodes may come to the same end; the first wins.
//!
//! A node never fences itself. Deliberately absent: what follows from a fence (`controller`).

use std::collections::BTreeMap;
use std::time::Duration;

use felix_protocol::ids::{BrokerId, SessionId};

use crate::decision::Decision;
use crate::keys::Key;
use crate::lease::{Reading, Terms};
use crate::state::{NodeState, Revision};
use crate::view::View;

/// Nodes that are set apart; the others act together.
const MOST_RANKS: u32 = 4;

/// How long own beats have been confirmed without a gap.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub struct Unbroken {
    since: Reading,
    last: Reading,
}

impl Unbroken {
    /// An own beat was confirmed at `now`; `before` is what was known until then.
    pub fn confirmed(before: Option<Unbroken>, now: Reading, terms: Terms) -> Unbroken {
        match before {
            Some(before) if now.longest_since(before.last) <= terms.gap() => Unbroken { last: now, ..before },
            Some(_) | None => Unbroken { since: now, last: now },
        }
    }

    /// The newest confirmed beat.
    pub fn last(&self) -> Reading {
        self.last
    }

    /// How much of the time since `from` is vouched for at `now`: nothing while the last beat is too long ago.
    fn vouched(&self, from: Reading, now: Reading, terms: Terms) -> Duration {
        if now.longest_since(self.last) > terms.gap() {
            return Duration::ZERO;
        }
        now.shortest_since(from).min(now.shortest_since(self.since))
    }
}

/// What reaches the machine.
#[derive(Clone, Debug, PartialEq, Eq)]
pub enum Event {
    /// A node's beat, as it was heard of.
    Beat {
        /// Whose.
        node: BrokerId,
        /// When it was written.
        revision: Revision,
    },
    /// Own beats; `None` from the end of a session to the first confirmed beat of the next.
    Own(Option<Unbroken>),
    /// A fence was tried, and did not land: something changed that is yet to be heard of.
    Missed(BrokerId),
    /// The cluster's terms, those for waiting.
    Terms(Terms),
    /// Time has passed.
    Tick,
}

/// What is to be done: put an end to that session, if nothing of it has changed.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub struct Fence {
    /// The node.
    pub node: BrokerId,
    /// Its session, the one that was silent.
    pub session: SessionId,
    /// The beat that was its last.
    pub beat: Revision,
}

#[derive(Clone, Copy, Debug)]
struct Wait {
    session: SessionId,
    beat: Revision,
    /// When that beat was heard of.
    since: Reading,
    /// A fence is on its way.
    fencing: bool,
}

/// See the module.
#[derive(Clone, Debug)]
pub struct Observer {
    node: BrokerId,
    terms: Terms,
    own: Option<Unbroken>,
    waits: BTreeMap<BrokerId, Wait>,
}

/// The decision that carries a fence out; `None` when the node is not in the hands of that session any more.
pub fn decide(view: &View, fence: &Fence) -> Option<Decision> {
    let before = view.broker(fence.node)?;
    if before.node.session != fence.session || before.is_fenced() {
        return None;
    }
    let mut after = before.node.clone();
    after.state = NodeState::Fenced;
    let key = Key::Node(fence.node);
    let decision = Decision::new().at(key.clone(), before.revision).at(Key::Beat(fence.node), fence.beat);
    Some(decision.put(key, &after))
}

impl Observer {
    /// What `node` observes of the others.
    pub fn new(node: BrokerId, terms: Terms) -> Observer {
        Observer { node, terms, own: None, waits: BTreeMap::new() }
    }

    /// The view's nodes changed: waits begin for sessions that are new, and end for those that are over.
    pub fn follow(&mut self, view: &View, now: Reading) {
        self.waits.retain(|id, wait| view.may_lead(*id, wait.session));
        for (id, node) in view.brokers() {
            if id != self.node && !self.waits.contains_key(&id) {
                // Its beat was written with its key; one heard of later starts the clock anew.
                let (session, beat) = (node.node.session, Revision::ABSENT);
                self.waits.insert(id, Wait { session, beat, since: now, fencing: false });
            }
        }
    }

    /// Takes one event in, at a time on the waiter's clocks.
    pub fn step(&mut self, event: Event, now: Reading) -> Vec<Fence> {
        match event {
            Event::Beat { node, revision } => {
                if let Some(wait) = self.waits.get_mut(&node)
                    && revision > wait.beat
                {
                    (wait.beat, wait.since) = (revision, now);
                }
            }
            Event::Own(own) => self.own = own,
            Event::Missed(node) => {
                if let Some(wait) = self.waits.get_mut(&node) {
                    (wait.since, wait.fencing) = (now, false);
                }
            }
            Event::Terms(terms) => self.terms = terms,
            Event::Tick => {}
        }
        self.due(now)
    }

    /// How long until some wait may be over; `None` while none is counted.
    pub fn next_tick(&self, now: Reading) -> Option<Duration> {
        let own = self.own?;
        // While own beats do not come nothing is counted; the next one is an event.
        if now.longest_since(own.last) > self.terms.gap() {
            return None;
        }
        let open = self.waits.iter().filter(|(_, wait)| !wait.fencing && wait.beat > Revision::ABSENT);
        open.map(|(id, wait)| self.needed(*id).saturating_sub(own.vouched(wait.since, now, self.terms))).min()
    }

    fn due(&mut self, now: Reading) -> Vec<Fence> {
        let Some(own) = self.own else { return Vec::new() };
        let mut due = Vec::new();
        for (id, wait) in &self.waits {
            let counted = own.vouched(wait.since, now, self.terms);
            if !wait.fencing && wait.beat > Revision::ABSENT && counted >= self.needed(*id) {
                due.push(Fence { node: *id, session: wait.session, beat: wait.beat });
            }
        }
        for fence in &due {
            if let Some(wait) = self.waits.get_mut(&fence.node) {
                wait.fencing = true;
            }
        }
        due
    }

    /// W, and a little more for each live node before this one: mostly the first does it for all.
    fn needed(&self, target: BrokerId) -> Duration {
        let before = self.waits.keys().filter(|id| **id < self.node && **id != target).count();
        let rank = u32::try_from(before).unwrap_or(MOST_RANKS).min(MOST_RANKS);
        self.terms.wait() + self.terms.stagger() * rank
    }
}

#[cfg(test)]
mod tests;
