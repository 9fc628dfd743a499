//! One tenure of one partition's leadership.
//!
//! ```text
//!            report landed         asked to leave             resigned, or any of these:
//!   Opening ────────────────▶ Open ────────────────▶ Leaving ───────────────────────────▶ Ended
//!      │                       │           session given up, newer generation, topic gone    ▲
//!      └───────────────────────┴─────────────────────────────────────────────────────────────┘
//! ```
//!
//! | phase | a write | a word |
//! |---|---|---|
//! | Opening | taken in; the writer is parked | none, not even acks=1: the control store does not know yet that this leader may have said something (C10) |
//! | Open | taken in, if enough members stand for it | by the mark, or by the disk and the lease |
//! | Leaving | refused | as while open, until it resigns: then whoever still waits is told that this is not the leader |
//! | Ended | refused | none; whoever waits is told so at once |
//!
//! A leader that is asked to go resigns once everything it wrote is durable here and every eligible pair has confirmed all of
//! it, or the time for that is over and one pair has. If none has, it stays silent, and the move is cancelled by a newer
//! generation: what it acknowledged on its own word would be lost. Only a broker that goes away resigns then as well. The
//! positions come by [`Event::Confirmed`], from whoever ships. One that is asked before its opening landed goes when it has:
//! a tenure that never opened has nothing to hand over.
//!
//! The lease is not in here: it changes several times a second for all partitions together, so whoever runs
//! the machine checks it where it matters (before the bytes are written, and before a word that rests on it),
//! and says when it is over while writers wait ([`Event::LeaseOver`]).

mod core;
mod cut_off;
mod members;

use std::time::Duration;

use felix_protocol::ids::{BrokerId, Generation, Offset};
use felix_protocol::time::MonoTime;

pub use self::core::{Core, Phase, Tenure};
pub use self::cut_off::{CUT_OFF_AFTER, CUT_OFF_REST};
use self::members::Members;
pub use self::members::{FIRST_LEVEL, LONGEST_LEVEL, MOST_SLOW};
use crate::action::{Action, Vouch};
use crate::eligible::Pair;
use crate::event::{Event, ReportAnswer};
use crate::invariants;
use crate::rules::{AllRules, Rules};
use crate::waiters::{Ticket, Waiters, Word};

/// First wait after a report without an answer; doubles up to [`LONGEST_RETRY`].
const FIRST_RETRY: Duration = Duration::from_millis(50);
/// Longest wait between two tries.
const LONGEST_RETRY: Duration = Duration::from_secs(1);

/// Followers that live have so long to give their first word to a leader that has just opened. Writers wait for that instead of being
/// refused: of a topic that was made this instant nobody is in the set yet.
pub const FIRST_WORD: Duration = Duration::from_secs(2);

/// Why a write is not taken in.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum Refusal {
    /// The tenure is over.
    Ended,
    /// Fewer members stand for an acknowledgement than it needs.
    TooFewMembers {
        /// Members, the leader included.
        have: usize,
        /// What is needed.
        need: usize,
    },
    /// As many writers wait as may.
    Full,
}

/// The leader: its safety core, and the pacing around it.
#[derive(Clone, Debug)]
pub struct Leader<R: Rules = AllRules> {
    core: Core<R>,
    waiters: Waiters,
    /// When to read the key because a report has no answer; never, if none is due.
    retry_at: MonoTime,
    retry_wait: Duration,
    leaving: Option<Leaving>,
    opened_at: MonoTime,
    members: Members,
    /// It does not give up before this because nobody answers.
    cut_off_from: MonoTime,
    /// Nobody answers, as it seems.
    silence: Option<cut_off::Silence>,
}

/// It was asked to leave.
#[derive(Clone, Copy, Debug)]
struct Leaving {
    /// Until when all eligible pairs may catch up; never, once that is over.
    until: MonoTime,
    is_late: bool,
    anyway: bool,
    /// Nobody asked: it is cut off.
    cut_off: bool,
}

impl<R: Rules> Leader<R> {
    /// Begins a tenure: the first action is its opening report.
    pub fn open(tenure: Tenure) -> (Leader<R>, Vec<Action>) {
        let mut core = Core::new(tenure);
        let report = core.propose_opening();
        let leader = Leader {
            core,
            waiters: Waiters::default(),
            retry_at: MonoTime::NEVER,
            retry_wait: FIRST_RETRY,
            leaving: None,
            opened_at: MonoTime::NEVER,
            members: Members::default(),
            cut_off_from: MonoTime(0),
            silence: None,
        };
        (leader, vec![Action::Report(report)])
    }

    /// The copy resigned because it was cut off, not long ago: not again before `at` ([`CUT_OFF_REST`] behind it).
    pub fn not_cut_off_before(&mut self, at: MonoTime) {
        self.cut_off_from = at;
    }

    /// Gives memory back that an idle tenure does not need.
    pub fn give_back(&mut self) {
        self.waiters.give_back();
        self.members.give_back(self.core.mark);
    }

    /// The generation led at.
    pub fn generation(&self) -> Generation {
        self.core.generation
    }

    /// How far the tenure has come.
    pub fn phase(&self) -> Phase {
        self.core.phase
    }

    /// The mark.
    pub fn mark(&self) -> Offset {
        self.core.mark
    }

    /// The durable end, as the flush policy counts.
    pub fn stored(&self) -> Offset {
        self.core.stored
    }

    /// The log end when the tenure began.
    pub fn takeover(&self) -> Offset {
        self.core.takeover
    }

    /// The partition's key as last learned.
    pub fn key(&self) -> &crate::eligible::KeyState {
        self.core.eligible.known()
    }

    /// What it was told of the nodes.
    pub fn nodes(&self) -> &crate::event::Nodes {
        self.members.nodes()
    }

    /// The safety core, for checks.
    pub fn core(&self) -> &Core<R> {
        &self.core
    }

    /// How many records the slowest follower lacks of the log that has not stopped: what would be lost with the leader's disk.
    pub fn lag(&self) -> i64 {
        let key = self.core.eligible.known();
        let followers = key.replicas.iter().filter(|broker| **broker != self.core.own.broker);
        let behind = followers.filter_map(|broker| {
            let pairs = self.core.confirmed.iter().filter(|(pair, _)| pair.broker == *broker);
            let (pair, position) = pairs.max_by_key(|(_, position)| **position)?;
            (!self.members.is_halted(pair)).then_some(self.core.end - position)
        });
        behind.max().unwrap_or(0).max(0)
    }

    /// C12: whether this copy may be told to begin anew. One that may be promoted is dropped first.
    pub fn may_restart(&self, pair: &Pair) -> bool {
        self.core.may_restart(pair)
    }

    /// Copies that can confirm anything: the leader's, and those on brokers whose session is not over. The set may name others: C9
    /// keeps them in it.
    fn alive(&self) -> usize {
        let (key, fenced) = (self.core.eligible.known(), &self.members.nodes().fenced);
        let own = self.core.own.broker;
        1 + key.replicas.iter().filter(|broker| **broker != own && !fenced.contains(broker)).count()
    }

    /// Copies on brokers that live which have said nothing yet in this tenure: they may be level.
    fn unheard(&self) -> usize {
        let (key, fenced) = (self.core.eligible.known(), &self.members.nodes().fenced);
        let own = self.core.own.broker;
        let may_be_level = |broker: &&BrokerId| {
            let has_spoken = self.core.confirmed.keys().any(|pair| pair.broker == **broker);
            **broker != own && !fenced.contains(broker) && !has_spoken && !self.members.has_halted(**broker)
        };
        key.replicas.iter().filter(may_be_level).count()
    }

    /// Whether a write that waits for `word` is taken in now (`None`: it waits for nothing). While the
    /// tenure is only opening, or its followers have not had the time for a word, or a copy that lives may take the place of one that
    /// does not, writers are parked instead of refused: their own deadline bounds the wait.
    pub fn admits(&self, word: Option<Word>, now: MonoTime) -> Result<(), Refusal> {
        if self.core.phase == Phase::Ended || self.leaving.is_some() {
            return Err(Refusal::Ended);
        }
        if word.is_some() && !self.waiters.has_room() {
            return Err(Refusal::Full);
        }
        let (have, need) = (self.core.members().min(self.alive()), self.core.need);
        if word == Some(Word::Mark) && self.core.phase == Phase::Open && have < need {
            let is_early = now < self.opened_at.after(FIRST_WORD);
            if !is_early || (have + self.unheard()).min(self.alive()) < need {
                return Err(Refusal::TooFewMembers { have, need });
            }
        }
        Ok(())
    }

    /// Whether everything below `end` has been given this word already, so that nobody needs to wait.
    pub fn has_given(&self, word: Word, end: Offset) -> bool {
        self.core.may_acknowledge()
            && match word {
                Word::Stored => end <= self.core.stored,
                Word::Mark => end <= self.core.mark,
            }
    }

    /// Whether one who may be promoted holds all of the log and is alive by its beats: a leader that can take nothing in any
    /// more can hand over to it at once.
    pub fn has_heir(&self) -> bool {
        let beating = &self.members.nodes().beating;
        let is_ready = self.core.phase == Phase::Open && self.leaving.is_none() && self.core.is_settled();
        is_ready && self.core.level().iter().any(|pair| beating.contains(&pair.broker))
    }

    /// Whether the tenure was asked for and is not over yet.
    pub fn is_leaving(&self) -> bool {
        self.leaving.is_some() && self.core.phase != Phase::Ended
    }

    /// When the machine wants a [`Event::Tick`]; never, while nothing waits.
    pub fn next_tick(&self) -> MonoTime {
        let waits = self.leaving.filter(|_| self.may_resign() && !self.core.is_level());
        let until = waits.map_or(MonoTime::NEVER, |leaving| leaving.until);
        let waits = self.waiters.earliest_deadline().min(self.retry_at).min(until);
        if self.core.phase != Phase::Open {
            return waits;
        }
        let review_at = if self.is_reporting() { MonoTime::NEVER } else { self.members.review_at() };
        waits.min(review_at).min(self.look_for_silence_at())
    }

    /// A report is on its way, or its fate is yet to be read.
    fn is_reporting(&self) -> bool {
        self.core.eligible.has_reports_in_flight() || self.retry_at != MonoTime::NEVER
    }

    /// Leaving, with everything durable here and no last word on its way.
    fn may_resign(&self) -> bool {
        self.core.phase == Phase::Leaving && self.core.is_settled() && !self.core.eligible.has_resigned()
    }

    /// Takes in one event.
    pub fn step(&mut self, event: Event, now: MonoTime) -> Vec<Action> {
        let mut actions = Vec::new();
        if self.core.phase == Phase::Ended {
            // Answers and flushes of a tenure that is over mean nothing any more; a writer that still came
            // in is told.
            if let Event::Wait { ticket, .. } = event {
                actions.push(Action::Refuse { tickets: vec![ticket] });
            }
            return actions;
        }
        match event {
            Event::Appended { end } => self.core.appended(end),
            Event::Stored { end } => {
                self.core.stored(end);
                self.members.passed(&self.core, now);
                self.give_words(now, &mut actions);
                self.resign_if_ready(now, &mut actions);
            }
            Event::Wait { ticket, word, end, deadline } => {
                self.wait(ticket, word, end, deadline, now, &mut actions);
            }
            Event::ReportAnswered { number, answer } => self.answered(number, answer, now, &mut actions),
            Event::KeyRead { key } => self.key_read(key, now, &mut actions),
            Event::Confirmed { pair, position } => {
                self.members.confirmed(&self.core, pair, position, now);
                self.core.confirmed(pair, position);
                self.give_words(now, &mut actions);
                self.resign_if_ready(now, &mut actions);
            }
            Event::Heard(broker) => self.members.heard(broker, now),
            Event::Lost(broker) => self.members.lost(broker),
            Event::Dead(pair) => {
                self.core.dead(pair);
                self.members.look_again();
            }
            Event::Halted(pair) => self.members.halted(pair),
            Event::Nodes(nodes) => self.members.set_nodes(nodes),
            Event::Need(need) => {
                self.core.need = need;
                self.members.look_again();
                self.give_words(now, &mut actions);
            }
            Event::Leave { until, anyway } => self.leave(until, anyway, now, &mut actions),
            Event::LeaseOver => self.refuse_all(&mut actions),
            Event::Ended => self.end(&mut actions),
            Event::Tick => self.tick(now, &mut actions),
        }
        if self.core.phase == Phase::Open {
            self.notice_cut_off(now, &mut actions);
            self.review(now, &mut actions);
        }
        debug_assert_eq!(invariants::check(&self.core), Ok(()));
        actions
    }

    fn wait(
        &mut self,
        ticket: Ticket,
        word: Word,
        end: Offset,
        deadline: MonoTime,
        now: MonoTime,
        actions: &mut Vec<Action>,
    ) {
        if self.has_given(word, end) {
            actions.push(Action::Release { tickets: vec![ticket], vouch: vouch(word) });
        } else if deadline <= now {
            actions.push(Action::Expire { tickets: vec![ticket] });
        } else {
            self.waiters.wait(word, end, ticket, deadline);
        }
    }

    fn answered(&mut self, number: u64, answer: ReportAnswer, now: MonoTime, actions: &mut Vec<Action>) {
        match answer {
            ReportAnswer::Landed(revision) => {
                let opened = self.core.landed(number, revision);
                if self.core.phase == Phase::Ended {
                    // It resigned.
                    self.end(actions);
                } else if self.core.eligible.has_reports_in_flight() {
                    // Nothing was written, and something else may still be.
                    self.retry_later(now);
                } else {
                    self.after_key(opened, now, actions);
                }
            }
            ReportAnswer::Refused(key) => self.key_read(Some(key), now, actions),
            ReportAnswer::Unknown if R::C3_TIMEOUT_RESOLVES_NOTHING => self.retry_later(now),
            ReportAnswer::Unknown => {
                self.core.eligible.forget(number);
                self.after_key(false, now, actions);
            }
        }
    }

    fn key_read(&mut self, key: Option<crate::eligible::KeyState>, now: MonoTime, actions: &mut Vec<Action>) {
        let Some(key) = key else {
            self.retry_later(now);
            return;
        };
        let (learned, opened) = self.core.observed(key);
        if learned == crate::eligible::Learned::Nothing && self.core.eligible.has_reports_in_flight() {
            // The read resolved nothing; the report may land yet, or never have been sent. Sending the same
            // proposal again on the same revision is safe: at most one of them can land. Whoever is not wanted any more by
            // then is dropped by the next.
            actions.extend(self.core.eligible.unresolved().cloned().map(Action::Report));
            return;
        }
        self.after_key(opened, now, actions);
        if self.core.phase == Phase::Opening && !self.core.eligible.has_reports_in_flight() {
            // Somebody else wrote the key (another setting of the partition): open on what it says now.
            let report = self.core.propose_opening();
            actions.push(Action::Report(report));
        }
    }

    fn after_key(&mut self, opened: bool, now: MonoTime, actions: &mut Vec<Action>) {
        self.retry_at = MonoTime::NEVER;
        self.members.look_again();
        if self.core.is_over() {
            self.end(actions);
            return;
        }
        if opened {
            self.opened_at = now;
            // What is below the takeover's end and not confirmed is waited for from now on.
            self.members.passed(&self.core, now);
        }
        if opened && self.leaving.is_some() {
            self.core.leave();
        } else if opened {
            actions.push(Action::Opened);
        }
        if self.core.phase != Phase::Leaving {
            self.retry_wait = FIRST_RETRY;
        }
        self.give_words(now, actions);
        self.resign_if_ready(now, actions);
    }

    fn leave(&mut self, until: MonoTime, anyway: bool, now: MonoTime, actions: &mut Vec<Action>) {
        // One that goes away may have been asked for this one before.
        if self.leaving.is_none_or(|leaving| anyway && !leaving.anyway) {
            self.leaving = Some(Leaving { until, is_late: false, anyway, cut_off: false });
        }
        if self.core.phase == Phase::Open {
            self.core.leave();
        }
        self.resign_if_ready(now, actions);
    }

    /// Resigns when there is nothing left to wait for.
    fn resign_if_ready(&mut self, now: MonoTime, actions: &mut Vec<Action>) {
        let Some(leaving) = self.leaving.as_mut().filter(|_| self.core.phase == Phase::Leaving) else {
            return;
        };
        if leaving.until <= now {
            (leaving.until, leaving.is_late) = (MonoTime::NEVER, true);
        }
        let cut_off = leaving.cut_off;
        let is_enough = leaving.is_late && (leaving.anyway || !self.core.level().is_empty());
        if !self.may_resign() || !(self.core.is_level() || is_enough) {
            return;
        }
        // They ask for the word of others, who have not given it.
        self.refuse_all(actions);
        actions.push(Action::Report(self.core.propose_resigning(cut_off)));
    }

    /// Reports who may be promoted, where that is not what the key says.
    fn review(&mut self, now: MonoTime, actions: &mut Vec<Action>) {
        if self.core.phase != Phase::Open || self.is_reporting() {
            self.await_follower(None, now, actions);
        } else if self.members.is_due(now) {
            let set = self.members.review(&self.core, now);
            if let Some(set) = set {
                actions.push(Action::Report(self.core.propose_set(set)));
            }
            // What is reported counts anyhow, and nobody is waited for while the store is.
            let awaited = self.members.awaited().filter(|_| !self.is_reporting());
            self.await_follower(awaited, now, actions);
        }
    }

    /// Has the mark wait for this follower, and for none that it waited for before.
    fn await_follower(&mut self, pair: Option<Pair>, now: MonoTime, actions: &mut Vec<Action>) {
        if std::mem::replace(&mut self.core.awaited, pair).is_some_and(|before| pair != Some(before)) {
            self.give_words(now, actions);
        }
    }

    fn retry_later(&mut self, now: MonoTime) {
        self.retry_at = now.after(self.retry_wait);
        self.retry_wait = (self.retry_wait * 2).min(LONGEST_RETRY);
    }

    /// Moves the mark and releases whoever has their word.
    fn give_words(&mut self, now: MonoTime, actions: &mut Vec<Action>) {
        if self.core.advance() {
            self.members.marked(self.core.mark, now);
            actions.push(Action::Advance { mark: self.core.mark });
        }
        if !self.core.may_acknowledge() || self.waiters.is_empty() {
            return;
        }
        for (word, position) in [(Word::Stored, self.core.stored), (Word::Mark, self.core.mark)] {
            let tickets = self.waiters.release(word, position);
            if !tickets.is_empty() {
                actions.push(Action::Release { tickets, vouch: vouch(word) });
            }
        }
    }

    fn tick(&mut self, now: MonoTime, actions: &mut Vec<Action>) {
        let tickets = self.waiters.expire(now);
        if !tickets.is_empty() {
            actions.push(Action::Expire { tickets });
        }
        if self.retry_at <= now {
            self.retry_at = MonoTime::NEVER;
            actions.push(Action::ReadKey);
        } else {
            self.resign_if_ready(now, actions);
        }
    }

    fn end(&mut self, actions: &mut Vec<Action>) {
        self.core.end();
        self.retry_at = MonoTime::NEVER;
        self.refuse_all(actions);
    }

    fn refuse_all(&mut self, actions: &mut Vec<Action>) {
        let tickets = self.waiters.drain();
        if !tickets.is_empty() {
            actions.push(Action::Refuse { tickets });
        }
    }
}

fn vouch(word: Word) -> Vouch {
    match word {
        Word::Stored => Vouch::Lease,
        Word::Mark => Vouch::Mark,
    }
}

#[cfg(test)]
mod tests;
