//! The holding side of a session: beats, and what each answer is worth (`replication.md` section 3, "Heartbeat").
//!
//! One beat renews every lease of the node. A renewal counts from the instant *before* its beat was sent, and only once
//! it is confirmed and the broker has taken in what the store said up to then:
//!
//! ```text
//!  sent           answered at revision 17      applied up to 17
//!   |----------------|----------------------------|------------------------> own clock
//!   | anchored here  | confirmed                  | used: the lease ends at sent + L − ε
//! ```
//!
//! An answer that never comes extends nothing, and resolves nothing: the next beat is sent all the same, because a beat
//! compares the node's key alone. That ends with the lease: whoever hears nothing for so long is silent, too, and only
//! reads, so that the others see it. A beat that lost its compare is read back. Deliberately absent: what others conclude
//! from beats (`observe`), and registering anew (`registration`).

use std::collections::VecDeque;
use std::time::Duration;

use felix_protocol::ids::{BrokerId, SessionId};
use felix_protocol::time::MonoTime;

use crate::decision::Decision;
use crate::keys::Key;
use crate::lease::Terms;
use crate::revoke::RevokeSet;
use crate::state::{Beat, Node, NodeState, Revision};

/// Renewals that wait for what they rest on to be taken in. More are never of use: they cover several L.
const MOST_RENEWALS: usize = 64;

/// What became of a beat.
#[derive(Clone, Debug, PartialEq, Eq)]
pub enum Answer {
    /// It landed.
    Landed {
        /// At this revision.
        revision: Revision,
        /// What the node was asked to give up at that moment.
        revoked: RevokeSet,
    },
    /// The node's key was not as it should be.
    Refused,
    /// Nothing was heard; it may have landed.
    Unknown,
}

/// What reaches the machine.
#[derive(Clone, Debug, PartialEq, Eq)]
pub enum Event {
    /// Time has passed.
    Tick,
    /// The answer of the beat with that number.
    Answered(u64, Answer),
    /// The node's key, read linearizably; `None`: there is none.
    ReadBack(Option<(Revision, Node)>),
    /// It could not be read.
    ReadFailed,
    /// The broker has recorded everything up to `revision` and stopped what it lost by it, and so for the first `handed`
    /// sets of revocations that were handed on.
    Applied {
        /// Up to here.
        revision: Revision,
        /// How many sets.
        handed: u64,
    },
    /// The cluster's terms, at the start and when they change.
    Terms(Terms),
}

/// Why a session is over.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum Lost {
    /// Others waited for it in vain and fenced it, or an operator's tool did.
    Fenced,
    /// Another process holds the node's id.
    Superseded(SessionId),
    /// The node was removed from the cluster.
    Removed,
}

/// What is to be done.
#[derive(Clone, Debug, PartialEq, Eq)]
pub enum Action {
    /// Send this beat now. The clock was read before; every delay from here on is at the holder's expense.
    Send {
        /// Its number, for the answer.
        number: u64,
        /// The node's key must be of this revision.
        node: Revision,
        /// What is written.
        beat: Beat,
        /// Without an answer by then it counts as unknown.
        within: Duration,
    },
    /// Read the node's key, linearizably.
    ReadBack {
        /// Give up after this.
        within: Duration,
    },
    /// The lease ends then, and not before.
    Extend(MonoTime),
    /// A beat was confirmed just now.
    Confirmed,
    /// The node is asked to give these tenures up. They are the whole set, as of a renewal that does not count before
    /// this set is done with.
    GiveUp {
        /// The set's number, from 1 on.
        number: u64,
        /// The set.
        set: RevokeSet,
    },
    /// The session is over: all its tenures are, at once.
    Lost(Lost),
}

/// A confirmed beat that may extend the lease.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
struct Renewal {
    sent_at: MonoTime,
    revision: Revision,
    /// Sets of revocations that must be done with.
    handed: u64,
    /// L − ε when it was sent.
    holds: Duration,
}

#[derive(Clone, Copy, Debug, PartialEq, Eq)]
enum Doing {
    /// Waits for the next beat's time.
    Nothing,
    /// A beat is on its way.
    Beat { number: u64, sent_at: MonoTime, holds: Duration },
    /// The node's key is being read.
    Reading,
    /// It could not be read: again at the next beat's time.
    ReadLater,
    /// The session is over.
    Over,
}

/// See the module. One session's.
#[derive(Clone, Debug)]
pub struct Heartbeat {
    session: SessionId,
    node: Revision,
    counter: u64,
    terms: Terms,
    doing: Doing,
    next_at: MonoTime,
    renewals: VecDeque<Renewal>,
    /// What was taken in, and when the newest renewal that rests on no more was sent.
    applied: Revision,
    applied_sent_at: MonoTime,
    handed: u64,
    handed_done: u64,
    revoked: RevokeSet,
    until: MonoTime,
    /// When a lease counted from the registration would be over.
    first_until: MonoTime,
}

/// The decision that a beat is.
pub fn decision(id: BrokerId, node: Revision, beat: &Beat) -> Decision {
    Decision::new().at(Key::Node(id), node).put(Key::Beat(id), beat)
}

impl Heartbeat {
    /// A session that registered by a transaction sent at `sent_at`, which landed at `registered`. Everything up to there
    /// is known to the broker, which leads nothing yet. Registering is no renewal: the first beat is sent at once.
    pub fn new(session: SessionId, registered: Revision, sent_at: MonoTime, terms: Terms) -> Heartbeat {
        Heartbeat {
            session,
            node: registered,
            counter: 0,
            terms,
            doing: Doing::Nothing,
            next_at: MonoTime(0),
            renewals: VecDeque::new(),
            applied: registered,
            applied_sent_at: sent_at,
            handed: 0,
            handed_done: 0,
            revoked: RevokeSet::default(),
            until: MonoTime(0),
            first_until: sent_at.after(terms.holds()),
        }
    }

    /// Whose beats.
    pub fn session(&self) -> SessionId {
        self.session
    }

    /// When it wants a [`Event::Tick`]; never, while it waits for an answer.
    pub fn next_tick(&self) -> MonoTime {
        match self.doing {
            Doing::Nothing | Doing::ReadLater => self.next_at,
            Doing::Beat { .. } | Doing::Reading | Doing::Over => MonoTime::NEVER,
        }
    }

    /// Takes one event in. `now` is the holder's clock, the one that ran further.
    pub fn step(&mut self, event: Event, now: MonoTime) -> Vec<Action> {
        if self.doing == Doing::Over {
            return Vec::new();
        }
        match event {
            Event::Tick => self.tick(now),
            Event::Answered(number, answer) => self.answered(number, answer, now),
            Event::ReadBack(found) => self.read_back(found, now),
            Event::ReadFailed => {
                if self.doing == Doing::Reading {
                    self.doing = Doing::ReadLater;
                    self.next_at = self.next_at.max(now.after(self.terms.beat_every()));
                }
                Vec::new()
            }
            Event::Applied { revision, handed } => {
                self.applied = self.applied.max(revision);
                self.handed_done = self.handed_done.max(handed);
                self.extend()
            }
            Event::Terms(terms) => {
                self.terms = terms;
                Vec::new()
            }
        }
    }

    fn tick(&mut self, now: MonoTime) -> Vec<Action> {
        if now < self.next_at {
            return Vec::new();
        }
        match self.doing {
            Doing::Nothing => self.send(now),
            Doing::ReadLater => self.read(),
            Doing::Beat { .. } | Doing::Reading | Doing::Over => Vec::new(),
        }
    }

    fn send(&mut self, now: MonoTime) -> Vec<Action> {
        self.counter += 1;
        self.next_at = now.after(self.terms.beat_every());
        let number = self.counter;
        self.doing = Doing::Beat { number, sent_at: now, holds: self.terms.holds() };
        let beat = Beat { session: self.session, counter: self.counter };
        vec![Action::Send { number, node: self.node, beat, within: self.terms.answer_within() }]
    }

    fn read(&mut self) -> Vec<Action> {
        self.doing = Doing::Reading;
        vec![Action::ReadBack { within: self.terms.answer_within() }]
    }

    fn answered(&mut self, answered: u64, answer: Answer, now: MonoTime) -> Vec<Action> {
        let Doing::Beat { number, sent_at, holds } = self.doing else { return Vec::new() };
        if number != answered {
            return Vec::new();
        }
        self.doing = Doing::Nothing;
        match answer {
            Answer::Landed { revision, revoked } => {
                let mut actions = vec![Action::Confirmed];
                if revoked != self.revoked {
                    self.revoked = revoked.clone();
                    // What was taken off the list needs nobody to do anything, but the list is told as a whole.
                    self.handed += 1;
                    actions.push(Action::GiveUp { number: self.handed, set: revoked });
                }
                if self.renewals.len() == MOST_RENEWALS {
                    self.renewals.pop_front();
                }
                self.renewals.push_back(Renewal { sent_at, revision, handed: self.handed, holds });
                actions.extend(self.extend());
                actions
            }
            Answer::Refused => self.read(),
            // It may have landed. The next one says so to whoever watches, and its own answer counts.
            Answer::Unknown if now < self.until.max(self.first_until) => self.tick(now),
            // With the lease over, beats that land while their answers are lost would only keep others from taking over
            // what this node cannot serve: it is silent until it hears the store again.
            Answer::Unknown => {
                self.doing = Doing::ReadLater;
                self.tick(now)
            }
        }
    }

    fn read_back(&mut self, found: Option<(Revision, Node)>, now: MonoTime) -> Vec<Action> {
        if self.doing != Doing::Reading {
            return Vec::new();
        }
        let lost = match found {
            // Somebody else wrote the key: an operator, a controller, or this node itself. The session goes on.
            Some((revision, node)) if node.session == self.session && node.state != NodeState::Fenced => {
                self.node = revision;
                return self.send(now);
            }
            Some((_, node)) if node.session == self.session => Lost::Fenced,
            Some((_, node)) => Lost::Superseded(node.session),
            None => Lost::Removed,
        };
        self.doing = Doing::Over;
        self.renewals.clear();
        vec![Action::Lost(lost)]
    }

    /// Uses the renewals whose basis was taken in, or was at most half an L before them.
    fn extend(&mut self) -> Vec<Action> {
        for renewal in &self.renewals {
            if renewal.revision <= self.applied && renewal.handed <= self.handed_done {
                self.applied_sent_at = self.applied_sent_at.max(renewal.sent_at);
            }
        }
        let latest = self.applied_sent_at.after(self.terms.lag());
        let usable = self
            .renewals
            .iter()
            .filter(|renewal| renewal.sent_at <= latest && renewal.handed <= self.handed_done);
        let until = usable.map(|renewal| renewal.sent_at.after(renewal.holds)).max();
        let applied_sent_at = self.applied_sent_at;
        self.renewals.retain(|renewal| renewal.sent_at > applied_sent_at);
        match until {
            Some(until) if until > self.until => {
                self.until = until;
                vec![Action::Extend(until)]
            }
            Some(_) | None => Vec::new(),
        }
    }
}

#[cfg(test)]
mod tests;
