//! The follower's safety core: what it holds, and what it may claim of it.

use felix_protocol::generation_map::GenerationMap;
use felix_protocol::ids::{Generation, LogId, Offset};
use felix_protocol::peer::ship::TenureHeader;

use super::{BatchFacts, Frame, Hole, Restart};
use crate::halted::HaltReason;
use crate::reconcile::{self, Offer, Verdict};
use crate::rules::Rules;

/// No frame spans more offsets than this, and what claims to is not taken: a hole takes a batch for each 2^31 of them.
const MOST_AT_ONCE: Offset = 1 << 40;

/// What a copy is when it begins to follow.
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct Held {
    /// Its identity.
    pub log: LogId,
    /// The newest generation that it accepted, durably.
    pub accepted: Generation,
    /// First offset.
    pub start: Offset,
    /// One past the last record.
    pub end: Offset,
    /// Durable up to here, as the flush policy counts.
    pub stored: Offset,
    /// Its mark.
    pub mark: Offset,
    /// The generation at which it was learned.
    pub mark_generation: Generation,
    /// Which generation wrote what.
    pub map: GenerationMap,
    /// It had stopped, and a restart does not change that: diverged, say.
    pub halted: Option<HaltReason>,
}

/// What a follower may claim. A model checker drives this alone.
#[derive(Clone, Debug, PartialEq, Eq, PartialOrd, Ord, Hash)]
pub struct Core<R: Rules> {
    rules: R,
    pub(crate) log: LogId,
    /// The fence.
    pub(crate) accepted: Generation,
    /// Whether this log was compared with that of the leader at `accepted`, and cut (T3).
    pub(crate) reconciled: bool,
    pub(crate) start: Offset,
    /// Invariant: stored ≤ end, mark ≤ stored.
    pub(crate) stored: Offset,
    /// One past the last batch. It never lies in a hole: a batch without records stands there then.
    pub(crate) end: Offset,
    pub(crate) mark: Offset,
    pub(crate) mark_generation: Generation,
    /// The greatest mark that this tenure's leader told.
    heard_mark: Offset,
    pub(crate) map: GenerationMap,
    /// Entries of the leader's map.
    leaders: Vec<(Generation, Offset)>,
    pub(crate) halted: Option<HaltReason>,
}

/// How a frame's batches lie to the log.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(super) enum Fit {
    /// They begin behind its end.
    Gap,
    /// They are not of the same history.
    Differs,
    /// Nothing of them is new.
    Nothing,
    /// These are new.
    Append(Overlap),
}

/// How many batches are here already, and from which on they are compared.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(super) struct Overlap {
    pub skip: usize,
    pub compare: usize,
}

impl<R: Rules> Core<R> {
    pub(super) fn new(held: Held) -> Core<R> {
        let stored = held.stored.min(held.end);
        Core {
            rules: R::default(),
            log: held.log,
            accepted: held.accepted,
            reconciled: false,
            start: held.start,
            stored,
            end: held.end,
            mark: held.mark.min(stored),
            mark_generation: held.mark_generation,
            heard_mark: 0,
            map: held.map,
            leaders: Vec::new(),
            halted: held.halted,
        }
    }

    /// Its identity.
    pub fn log(&self) -> LogId {
        self.log
    }

    /// The generation that it accepts.
    pub fn accepted(&self) -> Generation {
        self.accepted
    }

    /// Its mark, and the generation at which that was learned.
    pub fn mark(&self) -> (Offset, Generation) {
        (self.mark, self.mark_generation)
    }

    /// First offset, durable end and end.
    pub fn bounds(&self) -> (Offset, Offset, Offset) {
        (self.start, self.stored, self.end)
    }

    /// Its map.
    pub fn map(&self) -> &GenerationMap {
        &self.map
    }

    /// Whether it was reconciled with the leader that it accepts.
    pub fn is_reconciled(&self) -> bool {
        self.reconciled
    }

    /// Why it has stopped.
    pub fn halted(&self) -> Option<HaltReason> {
        self.halted
    }

    pub(super) fn is_empty(&self) -> bool {
        self.start >= self.end
    }

    /// Another leader: all that was known about the earlier one is forgotten. Returns whether a copy that had stopped goes on.
    pub(super) fn accept(&mut self, generation: Generation) -> bool {
        self.accepted = generation;
        self.reconciled = false;
        self.heard_mark = 0;
        self.leaders.clear();
        // It stopped because of that leader.
        let resumes = matches!(self.halted, Some(HaltReason::NeedsBootstrap | HaltReason::BelowMark));
        if resumes {
            self.halted = None;
        }
        resumes
    }

    pub(super) fn reconcile(&self, frame: &Frame, header: &TenureHeader) -> Verdict {
        if !R::T2_CUTS {
            return Verdict::Keep { to: self.end, mark: self.mark };
        }
        let rises = header.entries.windows(2).all(|pair| pair[0].0 < pair[1].0 && pair[0].1 < pair[1].1);
        if !rises {
            // No leader has such a map. Nothing is cut on its word.
            return Verdict::BelowMark;
        }
        let offer = Offer {
            generation: frame.generation,
            begins: header.begins,
            entries: &header.entries,
            complete_from: header.complete_from,
            base: header.base,
            log_end: frame.log_end,
            unclean_at: header.unclean_at,
        };
        let held = reconcile::Held {
            map: &self.map,
            // A log may begin, for its readers, within its first batch, which is yet to come.
            log_start: self.start.min(self.end),
            log_end: self.end,
            mark: if R::T3_KEEPS_MARK { self.mark } else { self.start },
            mark_generation: self.mark_generation,
        };
        reconcile::reconcile(&offer, &held)
    }

    /// The generation that a mark counts as learned at, once the log is cut: one that was lowered was so by this leader.
    pub(super) fn mark_generation_at(&self, mark: Offset) -> Generation {
        if mark < self.mark { self.accepted } else { self.mark_generation }
    }

    /// The log ends here now, durably.
    pub(super) fn cut(&mut self, end: Offset) {
        let mark = self.mark.min(end);
        self.mark_generation = self.mark_generation_at(mark);
        self.mark = mark;
        (self.end, self.stored) = (end, end);
        self.map.cut(end);
    }

    pub(super) fn reconciled_with(&mut self, header: &TenureHeader) {
        self.reconciled = true;
        self.leaders.clone_from(&header.entries);
    }

    /// Takes over what the leader's map says of the range that is here (T0).
    pub(super) fn adopt_map(&mut self) -> Option<GenerationMap> {
        let missing = |(generation, first): &(Generation, Offset)| {
            *first < self.end && *first >= self.start && !self.map.knows(*generation)
        };
        if !self.leaders.iter().any(missing) {
            return None;
        }
        let joined = self.map.joined(&self.leaders, self.end);
        (joined != self.map).then(|| {
            self.map = joined;
            // An entry below the start is the start's.
            self.map.trim(self.start);
            self.map.clone()
        })
    }

    /// How the frame's batches lie to the log (T4).
    pub(super) fn fit(&self, frame: &Frame) -> Fit {
        if frame.from > self.end || frame.next - self.end > MOST_AT_ONCE {
            return Fit::Gap;
        }
        let whole = frame
            .batches
            .windows(2)
            .all(|pair| pair[0].last < pair[1].base && pair[0].generation <= pair[1].generation);
        let within = frame.batches.iter().all(|batch| {
            frame.from <= batch.base
                && batch.base <= batch.last
                && batch.last < frame.next
                && batch.generation <= frame.generation
        });
        if !whole || !within || (R::T4_COMPARES && self.parted_before(frame)) {
            return Fit::Differs;
        }
        let skip = frame.batches.partition_point(|batch| batch.last < self.end);
        let (here, new) = frame.batches.split_at(skip);
        let other = |batch: &BatchFacts| {
            let held = self.map.generation_at(batch.base);
            batch.base >= self.start && held != Some(batch.generation)
        };
        if R::T4_COMPARES && here.iter().any(other) {
            return Fit::Differs;
        }
        // No leader's batch lies across the end of a log that is a part of its own.
        if new.first().is_some_and(|batch| batch.base < self.end) {
            return Fit::Differs;
        }
        // Below the mark compaction makes bytes differ, and nothing can have been replaced.
        let compare = here.partition_point(|batch| batch.last < self.mark);
        if new.is_empty() && compare == skip && frame.next <= self.end {
            return Fit::Nothing;
        }
        Fit::Append(Overlap { skip, compare })
    }

    /// Whether both maps know who wrote what stands before the frame, and disagree.
    fn parted_before(&self, frame: &Frame) -> bool {
        if frame.from <= self.start {
            return false;
        }
        let held = self.map.generation_at(frame.from - 1);
        held.is_some() && frame.before.is_some() && held != frame.before
    }

    /// What stands between the last of the frame's batches, or the log end, and the end of the frame, where that is further on: as
    /// many holes as generations wrote there, as far as the leader's map tells.
    pub(super) fn holes(&self, frame: &Frame, skip: usize) -> Vec<Hole> {
        let last = frame.batches[skip..].last();
        let mut from = last.map_or(self.end, |last| last.last + 1).max(self.end);
        let mut holes = Vec::new();
        if frame.next <= from {
            return holes;
        }
        let here = last.map(|last| last.generation).max(self.map.latest().map(|(newest, _)| newest));
        let told = frame.before.filter(|before| *before <= frame.generation);
        let mut generation = here.or(told).unwrap_or(Generation::ZERO);
        for (later, first) in &self.leaders {
            if *later <= generation || *later > frame.generation || *first >= frame.next {
                continue;
            }
            if *first > from {
                holes.push(Hole { next: *first, generation });
                from = *first;
            }
            generation = *later;
        }
        holes.push(Hole { next: frame.next, generation });
        holes
    }

    /// These batches were appended, and what takes the place of these holes behind them, up to `end`.
    pub(super) fn written(&mut self, batches: &[BatchFacts], holes: &[Hole], end: Offset) {
        for batch in batches {
            self.map.begin(batch.generation, batch.base);
        }
        let mut from = batches.last().map_or(self.end, |last| last.last + 1);
        for hole in holes.iter().filter(|hole| hole.next > self.end) {
            if from < end {
                self.map.begin(hole.generation, from);
            }
            from = hole.next;
        }
        self.end = self.end.max(end);
    }

    /// The log is durable up to here.
    pub(super) fn stored(&mut self, end: Offset) {
        self.stored = self.stored.max(end.min(self.end));
    }

    pub(super) fn hear_mark(&mut self, mark: Offset) {
        self.heard_mark = self.heard_mark.max(mark);
    }

    /// Moves the mark as far as the leader's and the own disk allow. Returns whether anything changed.
    pub(super) fn advance_mark(&mut self) -> bool {
        let may = self.reconciled || !R::T3_CUTS_BEFORE_MARK;
        let mark = self.heard_mark.min(self.stored);
        if !may || self.halted.is_some() || mark < self.mark {
            return false;
        }
        let before = (self.mark, self.mark_generation);
        (self.mark, self.mark_generation) = (mark, self.accepted);
        before != (self.mark, self.mark_generation)
    }

    /// The leader's log begins here; returns where this one may begin, if that is later than now.
    pub(super) fn follow_start(&mut self, leaders: Offset) -> Option<Offset> {
        let start = leaders.min(self.mark);
        (start > self.start).then(|| {
            self.started(start);
            start
        })
    }

    pub(super) fn started(&mut self, start: Offset) {
        self.start = self.start.max(start);
        self.map.trim(self.start);
    }

    /// C12: the message means this copy at this tenure. A leader says "rebuild" only of a copy that nobody counts on; one that
    /// holds what the leader lacks, or whose disk fails, does not obey even then.
    pub(super) fn may_restart(&self, restart: &Restart) -> bool {
        if !R::C12_NAMES_COPY {
            return true;
        }
        let given_up = restart.rebuild && self.halted.is_none_or(HaltReason::is_rebuilt);
        let empty = self.is_empty() && self.halted.is_none();
        restart.log == self.log && (given_up || empty)
    }

    pub(super) fn begin_anew(&mut self, log: LogId, start: Offset, end: Offset) {
        self.log = log;
        (self.start, self.stored, self.end) = (start, end, end);
        (self.mark, self.mark_generation) = (start.min(end), self.accepted);
        self.heard_mark = 0;
        self.map = GenerationMap::default();
        self.leaders.clear();
        self.reconciled = false;
        self.halted = None;
    }

    pub(super) fn renew(&mut self, log: LogId) {
        self.log = log;
        (self.mark, self.mark_generation) = (self.start.min(self.stored), self.accepted);
        self.reconciled = false;
    }

    pub(super) fn halt(&mut self, reason: HaltReason) {
        self.halted = Some(reason);
        self.reconciled = false;
    }
}
