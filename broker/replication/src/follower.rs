//! One copy that follows: it takes what leaders ship, and vouches for what is on its disk.
//!
//! ```text
//!   frame ──▶ fence? ──▶ header? reconcile, cut (T2, T3) ──▶ range and batches ──▶ append ──▶ stored: answer
//!               │ newer: durable first (C7)     │ cannot: halt                       │ differs: halt
//! ```
//!
//! | situation | a frame of this tenure | a frame of a newer one | a bootstrap or rebuild |
//! |---|---|---|---|
//! | not reconciled | with a header: T2, T3; without: NeedHeader | accepted durably, then as on the left | if it names this copy |
//! | reconciled | appended and answered, or LogGap | the same | if it names this copy; a bootstrap only if nothing is here |
//! | halted, diverged or needs_bootstrap | Halted | diverged stays so; the other is tried anew | discards the copy |
//! | halted, below_mark | Halted | tried anew | refused: it holds what the leader lacks |
//! | halted, storage | Halted | Halted | refused |
//! | the disk is full | what fits is kept, Retry | the same | the same |
//!
//! A machine that is [`Follower::is_busy`] waits for what it asked for; whoever runs it keeps frames back until then. So a
//! copy does one thing at a time, in the order in which its leader sent it. Record bytes never come here.

mod core;

use std::collections::VecDeque;
use std::time::Duration;

use felix_protocol::generation_map::GenerationMap;
use felix_protocol::ids::{Generation, LogId, Offset};
use felix_protocol::peer::ship::{Said, TenureHeader};
use felix_protocol::time::MonoTime;

pub use self::core::{Core, Held};
use self::core::{Fit, Overlap};
use crate::halted::HaltReason;
use crate::reconcile::Verdict;
use crate::rules::{AllRules, Rules};

/// Names one request of the leader. Whoever runs the machine knows what it stands for.
#[derive(Clone, Copy, Debug, PartialEq, Eq, PartialOrd, Ord, Hash)]
pub struct Token(pub u64);

/// What the machine needs to know of a batch.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub struct BatchFacts {
    /// Its first offset.
    pub base: Offset,
    /// Its last one.
    pub last: Offset,
    /// The generation that wrote it.
    pub generation: Generation,
}

/// A part of the leader's log in which compaction left nothing, at the end of a frame. A batch without records takes its place here,
/// so that the log ends where it was told to end, also after a restart.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub struct Hole {
    /// One past its last offset; it begins where the log ended.
    pub next: Offset,
    /// The generation that wrote what stood there.
    pub generation: Generation,
}

/// A part of a ship request, without its records.
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct Frame {
    /// Which request.
    pub token: Token,
    /// The tenure.
    pub generation: Generation,
    /// The copy that the leader means.
    pub log: Option<LogId>,
    /// See [`felix_protocol::peer::ship::Part::header`].
    pub header: Option<TenureHeader>,
    /// The leader's mark.
    pub mark: Offset,
    /// First offset of the leader's log.
    pub log_start: Offset,
    /// One past its last record.
    pub log_end: Offset,
    /// The range that the batches are all of.
    pub from: Offset,
    /// See `from`.
    pub next: Offset,
    /// The generation before `from`.
    pub before: Option<Generation>,
    /// The batches, checked.
    pub batches: Vec<BatchFacts>,
}

/// A bootstrap or a rebuild.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub struct Restart {
    /// Which request.
    pub token: Token,
    /// The tenure.
    pub generation: Generation,
    /// The copy that is meant (C12).
    pub log: LogId,
    /// Where the new log begins.
    pub base: Offset,
    /// What readers may have of it.
    pub log_start: Offset,
    /// Whether the leader says that this copy is to be given up; otherwise it must be empty.
    pub rebuild: bool,
}

/// One thing that happened.
#[derive(Clone, Debug, PartialEq, Eq)]
pub enum Event {
    /// A frame came.
    Frame(Frame),
    /// The leader wants the copy to begin anew.
    Restart(Restart),
    /// That generation is durable ([`Action::Accept`]).
    Accepted(Generation),
    /// The log was cut, durably; it ends here ([`Action::Cut`]).
    Cut {
        /// Where it was to end, or where the batch begins that this lies inside of.
        end: Offset,
    },
    /// The batches were compared and written, and what takes the place of holes ([`Action::Append`]).
    Written {
        /// One past the last of it.
        end: Offset,
    },
    /// Of the batches that were to be written only so many could be: the disk is full. The leader is asked to come again.
    NoRoom {
        /// How many were.
        written: usize,
        /// One past the last record.
        end: Offset,
    },
    /// A batch that was to be compared is another one here.
    Differs,
    /// The log is durable up to here, as its flush policy counts.
    Stored {
        /// One past the last durable record.
        end: Offset,
    },
    /// The copy has this identity from now on, durably ([`Action::Discard`], [`Action::Renew`]).
    Renewed {
        /// The new identity.
        log: LogId,
        /// First offset.
        start: Offset,
        /// One past the last record.
        end: Offset,
    },
    /// Retention moved the log start by itself.
    Started {
        /// First offset.
        start: Offset,
    },
    /// The storage failed.
    Failed,
}

/// One thing to do.
#[derive(Clone, Debug, PartialEq, Eq)]
pub enum Action {
    /// Make this generation the one that the copy accepts, durably; [`Event::Accepted`] follows.
    Accept(Generation),
    /// Make this mark durable, then cut the log; [`Event::Cut`] follows.
    Cut {
        /// Where it is to end.
        to: Offset,
        /// Where the mark stands then.
        mark: Offset,
        /// The generation that it was learned at.
        mark_generation: Generation,
    },
    /// The generation map is this: it has entries now that no record in the log tells.
    AdoptMap(GenerationMap),
    /// Of the frame's batches, pass over the first `skip`; those of them from `compare` on must have the same checksum as what
    /// is here. Append the others, and a batch without records for each hole behind them; [`Event::Written`] or
    /// [`Event::Differs`] follows.
    Append {
        /// Whose batches.
        token: Token,
        /// How many are here already.
        skip: usize,
        /// The first of those that is compared.
        compare: usize,
        /// What the frame ends with, where it ends behind its last batch.
        holes: Vec<Hole>,
    },
    /// The mark stands here: readers may see up to it, and it is made durable at leisure.
    AdvanceMark {
        /// The mark.
        mark: Offset,
        /// The generation that it was learned at.
        generation: Generation,
    },
    /// The leader's log begins here: nobody needs what is below.
    AdvanceStart {
        /// First offset.
        start: Offset,
    },
    /// Give the log up and begin an empty one, under a new identity; [`Event::Renewed`] follows.
    Discard {
        /// First offset of the new log.
        base: Offset,
        /// First offset of it that readers may have.
        log_start: Offset,
    },
    /// Give the same bytes a new identity; [`Event::Renewed`] follows.
    Renew,
    /// The copy has stopped.
    Halt(HaltReason),
    /// It goes on after all.
    Resume,
    /// Answer the leader.
    Answer {
        /// Which request.
        token: Token,
        /// With what.
        reply: Reply,
    },
}

/// See [`felix_protocol::peer::ship::Answer`].
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub struct Reply {
    /// The generation that the copy accepts.
    pub generation: Generation,
    /// The copy.
    pub log: LogId,
    /// Its durable end.
    pub end: Offset,
    /// What it says.
    pub said: Said,
}

/// What the machine waits for.
#[derive(Clone, Debug, PartialEq, Eq)]
enum Busy {
    Accepting(Work),
    Cutting(Frame),
    Appending(Frame, Overlap, Vec<Hole>),
    Discarding(Token),
    Renewing(Token),
}

#[derive(Clone, Debug, PartialEq, Eq)]
enum Work {
    Frame(Frame),
    Restart(Restart),
}

impl Work {
    fn generation(&self) -> Generation {
        match self {
            Work::Frame(frame) => frame.generation,
            Work::Restart(restart) => restart.generation,
        }
    }

    fn token(&self) -> Token {
        match self {
            Work::Frame(frame) => frame.token,
            Work::Restart(restart) => restart.token,
        }
    }
}

/// An answer that waits until the log is durable so far.
#[derive(Clone, Copy, Debug)]
struct Promise {
    token: Token,
    until: Offset,
}

/// The follower: its safety core, and what is under way.
#[derive(Clone, Debug)]
pub struct Follower<R: Rules = AllRules> {
    core: Core<R>,
    busy: Option<Busy>,
    /// Bounded by the frames that a leader has in flight.
    promises: VecDeque<Promise>,
    /// The leader's log end as last heard, and when.
    heard: Option<(Offset, MonoTime)>,
}

impl<R: Rules> Follower<R> {
    /// A copy that has heard nothing of a leader in this process's life.
    pub fn new(held: Held) -> Follower<R> {
        Follower { core: Core::new(held), busy: None, promises: VecDeque::new(), heard: None }
    }

    /// The safety core, for checks.
    pub fn core(&self) -> &Core<R> {
        &self.core
    }

    /// Whether something that was asked for is not done yet.
    pub fn is_busy(&self) -> bool {
        self.busy.is_some()
    }

    /// Whether an answer waits for the disk: somebody wants a flush.
    pub fn wants_flush(&self) -> bool {
        !self.promises.is_empty()
    }

    /// How many records the copy lacks of its leader's; `None` when that is not known: halted, or nothing heard for longer
    /// than `silence`.
    pub fn lag(&self, now: MonoTime, silence: Duration) -> Option<i64> {
        let (end, at) = self.heard.filter(|_| self.core.halted.is_none() && self.core.reconciled)?;
        (now.since(at) <= silence).then(|| (end - self.core.end).max(0))
    }

    /// Takes in one event.
    pub fn step(&mut self, event: Event, now: MonoTime) -> Vec<Action> {
        let mut actions = Vec::new();
        match event {
            Event::Frame(frame) => {
                if frame.generation >= self.core.accepted {
                    self.heard = Some((frame.log_end, now));
                }
                self.begin(Work::Frame(frame), &mut actions);
            }
            Event::Restart(restart) => self.begin(Work::Restart(restart), &mut actions),
            Event::Accepted(generation) => self.accepted(generation, &mut actions),
            Event::Cut { end } => {
                if let Some(Busy::Cutting(frame)) = self.take_busy(|busy| matches!(busy, Busy::Cutting(_))) {
                    self.core.cut(end);
                    self.keep_going(frame, &mut actions);
                }
            }
            Event::Written { end } => {
                let appending = self.take_busy(|busy| matches!(busy, Busy::Appending(..)));
                if let Some(Busy::Appending(frame, overlap, holes)) = appending {
                    self.core.written(&frame.batches[overlap.skip..], &holes, end);
                    self.settle(&frame, &mut actions);
                }
            }
            Event::NoRoom { written, end } => {
                let appending = self.take_busy(|busy| matches!(busy, Busy::Appending(..)));
                if let Some(Busy::Appending(frame, overlap, holes)) = appending {
                    let upto = (overlap.skip + written).min(frame.batches.len());
                    self.core.written(&frame.batches[overlap.skip..upto], &holes, end);
                    self.answer(frame.token, Said::Retry, &mut actions);
                }
            }
            Event::Differs => {
                let appending = self.take_busy(|busy| matches!(busy, Busy::Appending(..)));
                if let Some(Busy::Appending(frame, ..)) = appending {
                    self.diverge(frame.token, &mut actions);
                }
            }
            Event::Stored { end } => {
                self.core.stored(end);
                self.advance_mark(&mut actions);
                self.keep_promises(&mut actions);
            }
            Event::Renewed { log, start, end } => self.renewed(log, start, end, &mut actions),
            Event::Started { start } => self.core.started(start),
            Event::Failed => self.failed(&mut actions),
        }
        debug_assert_eq!(crate::invariants::check_follower(&self.core), Ok(()));
        actions
    }

    fn take_busy(&mut self, expected: impl Fn(&Busy) -> bool) -> Option<Busy> {
        if self.busy.as_ref().is_some_and(expected) { self.busy.take() } else { None }
    }

    fn begin(&mut self, work: Work, actions: &mut Vec<Action>) {
        if self.busy.is_some() {
            self.answer(work.token(), Said::Retry, actions);
            return;
        }
        let generation = work.generation();
        if generation < self.core.accepted {
            self.answer(work.token(), Said::Fenced, actions);
        } else if generation > self.core.accepted {
            actions.push(Action::Accept(generation));
            self.busy = Some(Busy::Accepting(work));
        } else {
            self.work(work, actions);
        }
    }

    fn accepted(&mut self, generation: Generation, actions: &mut Vec<Action>) {
        let waited = |busy: &Busy| matches!(busy, Busy::Accepting(work) if work.generation() == generation);
        let Some(Busy::Accepting(work)) = self.take_busy(waited) else { return };
        let resumed = self.core.accept(generation);
        // What was promised to an earlier leader is not this one's to cut.
        for promise in std::mem::take(&mut self.promises) {
            self.answer(promise.token, Said::Fenced, actions);
        }
        if resumed {
            actions.push(Action::Resume);
        }
        self.work(work, actions);
    }

    fn work(&mut self, work: Work, actions: &mut Vec<Action>) {
        match work {
            Work::Frame(frame) => self.frame(frame, actions),
            Work::Restart(restart) => self.restart(&restart, actions),
        }
    }

    fn frame(&mut self, frame: Frame, actions: &mut Vec<Action>) {
        if let Some(reason) = self.core.halted {
            self.answer(frame.token, Said::Halted(reason.number()), actions);
            return;
        }
        if frame.log.is_some_and(|meant| meant != self.core.log) {
            self.answer(frame.token, Said::NeedHeader, actions);
            return;
        }
        let Some(header) = &frame.header else {
            if self.core.reconciled || !R::T1_HEADER_FIRST {
                self.data(frame, actions);
            } else {
                self.answer(frame.token, Said::NeedHeader, actions);
            }
            return;
        };
        if !R::T3_CUTS_BEFORE_MARK {
            self.core.hear_mark(frame.mark);
            self.core.advance_mark();
        }
        match self.core.reconcile(&frame, header) {
            Verdict::Keep { to, mark } if to < self.core.end => {
                let mark_generation = self.core.mark_generation_at(mark);
                actions.push(Action::Cut { to, mark, mark_generation });
                self.busy = Some(Busy::Cutting(frame));
            }
            Verdict::Keep { .. } => self.keep_going(frame, actions),
            Verdict::NeedMap(since) => self.answer(frame.token, Said::NeedMap(since), actions),
            Verdict::NeedsBootstrap if self.core.is_empty() => {
                self.answer(frame.token, Said::Empty, actions);
            }
            Verdict::NeedsBootstrap => self.halt(frame.token, HaltReason::NeedsBootstrap, actions),
            Verdict::BelowMark => self.halt(frame.token, HaltReason::BelowMark, actions),
        }
    }

    /// Both logs are the same up to the end of this one.
    fn keep_going(&mut self, frame: Frame, actions: &mut Vec<Action>) {
        if let Some(header) = &frame.header {
            self.core.reconciled_with(header);
            self.adopt_map(actions);
        }
        self.data(frame, actions);
    }

    fn data(&mut self, frame: Frame, actions: &mut Vec<Action>) {
        if frame.from == frame.next && frame.batches.is_empty() {
            self.settle(&frame, actions);
            return;
        }
        match self.core.fit(&frame) {
            Fit::Gap => self.answer(frame.token, Said::LogGap, actions),
            Fit::Differs => self.diverge(frame.token, actions),
            Fit::Nothing => self.settle(&frame, actions),
            Fit::Append(overlap) => {
                let Overlap { skip, compare } = overlap;
                let holes = self.core.holes(&frame, skip);
                actions.push(Action::Append { token: frame.token, skip, compare, holes: holes.clone() });
                self.busy = Some(Busy::Appending(frame, overlap, holes));
            }
        }
    }

    /// The frame is in the log: what else it says, and the answer once it is durable.
    fn settle(&mut self, frame: &Frame, actions: &mut Vec<Action>) {
        self.adopt_map(actions);
        self.core.hear_mark(frame.mark);
        self.advance_mark(actions);
        if let Some(start) = self.core.follow_start(frame.log_start) {
            actions.push(Action::AdvanceStart { start });
        }
        // A header is answered for all that is here, anything else for its own range.
        let until = if frame.header.is_some() { self.core.end } else { frame.next.min(self.core.end) };
        self.promises.push_back(Promise { token: frame.token, until });
        self.keep_promises(actions);
    }

    fn keep_promises(&mut self, actions: &mut Vec<Action>) {
        while let Some(promise) = self.promises.front().copied() {
            if promise.until > self.core.stored {
                break;
            }
            self.promises.pop_front();
            self.answer(promise.token, Said::Stored, actions);
        }
    }

    fn adopt_map(&mut self, actions: &mut Vec<Action>) {
        if let Some(map) = self.core.adopt_map() {
            actions.push(Action::AdoptMap(map));
        }
    }

    fn advance_mark(&mut self, actions: &mut Vec<Action>) {
        if self.core.advance_mark() {
            let (mark, generation) = (self.core.mark, self.core.mark_generation);
            actions.push(Action::AdvanceMark { mark, generation });
        }
    }

    fn restart(&mut self, restart: &Restart, actions: &mut Vec<Action>) {
        if !self.core.may_restart(restart) {
            self.answer(restart.token, Said::Refused, actions);
            return;
        }
        self.drop_promises(Said::NeedHeader, actions);
        let Restart { base, log_start, .. } = *restart;
        actions.push(Action::Discard { base, log_start });
        self.busy = Some(Busy::Discarding(restart.token));
    }

    fn renewed(&mut self, log: LogId, start: Offset, end: Offset, actions: &mut Vec<Action>) {
        match self.busy.take() {
            Some(Busy::Discarding(token)) => {
                let was_halted = self.core.halted.is_some();
                self.core.begin_anew(log, start, end);
                if was_halted {
                    actions.push(Action::Resume);
                }
                self.answer(token, Said::Stored, actions);
            }
            Some(Busy::Renewing(token)) => {
                self.core.renew(log);
                self.answer(token, Said::Halted(HaltReason::Diverged.number()), actions);
            }
            other => self.busy = other,
        }
    }

    fn halt(&mut self, token: Token, reason: HaltReason, actions: &mut Vec<Action>) {
        self.core.halt(reason);
        actions.push(Action::Halt(reason));
        self.drop_promises(Said::Halted(reason.number()), actions);
        self.answer(token, Said::Halted(reason.number()), actions);
    }

    /// What is here and what the leader says are not one history: nobody may count on this copy any more, by its name.
    fn diverge(&mut self, token: Token, actions: &mut Vec<Action>) {
        self.core.halt(HaltReason::Diverged);
        actions.push(Action::Halt(HaltReason::Diverged));
        self.drop_promises(Said::Retry, actions);
        actions.push(Action::Renew);
        self.busy = Some(Busy::Renewing(token));
    }

    fn failed(&mut self, actions: &mut Vec<Action>) {
        let token = match self.busy.take() {
            Some(Busy::Accepting(work)) => Some(work.token()),
            Some(Busy::Cutting(frame) | Busy::Appending(frame, ..)) => Some(frame.token),
            Some(Busy::Discarding(token) | Busy::Renewing(token)) => Some(token),
            None => None,
        };
        self.core.halt(HaltReason::Storage);
        actions.push(Action::Halt(HaltReason::Storage));
        let said = Said::Halted(HaltReason::Storage.number());
        self.drop_promises(said, actions);
        if let Some(token) = token {
            self.answer(token, said, actions);
        }
    }

    fn drop_promises(&mut self, said: Said, actions: &mut Vec<Action>) {
        for promise in std::mem::take(&mut self.promises) {
            self.answer(promise.token, said, actions);
        }
    }

    fn answer(&self, token: Token, said: Said, actions: &mut Vec<Action>) {
        let Core { accepted, log, stored, .. } = &self.core;
        let reply = Reply { generation: *accepted, log: *log, end: *stored, said };
        actions.push(Action::Answer { token, reply });
    }
}

#[cfg(test)]
mod tests;
