//! What a tenure shows to readers, who never visit its lane.

use std::sync::atomic::{AtomicBool, AtomicI64, AtomicU8, AtomicU64, Ordering};

use felix_protocol::ids::{Generation, Offset};

/// How far a tenure has come.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum Stage {
    /// Writes may be in the log, but the opening report has not landed: nothing is acknowledged yet.
    Opening,
    /// The tenure is opened.
    Open,
    /// Another generation leads, or the broker stops.
    Closed,
    /// The copy stopped for good: a broken invariant, or storage that failed.
    Halted,
}

/// The positions of one copy at one generation. Written by the lane that owns the copy, read by anyone.
///
/// Each number is read by itself; two of them may be a moment apart. The order that readers rely on:
/// `log_start` ≤ `last_stable` ≤ `mark` ≤ `log_end`, for a mark read before the log end.
#[derive(Debug)]
pub struct Published {
    generation: Generation,
    stage: AtomicU8,
    mark: AtomicI64,
    last_stable: AtomicI64,
    log_start: AtomicI64,
    log_end: AtomicI64,
    visible_bytes: AtomicU64,
    settled: AtomicBool,
}

impl Published {
    /// A tenure that is only opening.
    pub fn new(generation: Generation, log_start: Offset, mark: Offset, log_end: Offset) -> Self {
        Published {
            generation,
            stage: AtomicU8::new(0),
            mark: AtomicI64::new(mark),
            last_stable: AtomicI64::new(mark),
            log_start: AtomicI64::new(log_start),
            log_end: AtomicI64::new(log_end),
            visible_bytes: AtomicU64::new(0),
            settled: AtomicBool::new(mark >= log_end),
        }
    }

    /// The generation of the tenure.
    pub fn generation(&self) -> Generation {
        self.generation
    }

    /// How far the tenure has come.
    pub fn stage(&self) -> Stage {
        match self.stage.load(Ordering::Acquire) {
            0 => Stage::Opening,
            1 => Stage::Open,
            2 => Stage::Closed,
            _ => Stage::Halted,
        }
    }

    /// The high watermark: consumers see up to here, exclusive.
    pub fn mark(&self) -> Offset {
        self.mark.load(Ordering::Acquire)
    }

    /// The last stable offset: the first offset of the oldest open transaction, at most the mark.
    pub fn last_stable(&self) -> Offset {
        self.last_stable.load(Ordering::Acquire)
    }

    /// First offset that may be read.
    pub fn log_start(&self) -> Offset {
        self.log_start.load(Ordering::Acquire)
    }

    /// One past the last record written.
    pub fn log_end(&self) -> Offset {
        self.log_end.load(Ordering::Acquire)
    }

    /// Bytes that became visible below the mark since the tenure began: only ever grows.
    pub fn visible_bytes(&self) -> u64 {
        self.visible_bytes.load(Ordering::Acquire)
    }

    /// Whether the mark has reached the log end of the takeover. Until then "latest" has no answer.
    pub fn settled(&self) -> bool {
        self.settled.load(Ordering::Acquire)
    }

    pub(crate) fn set_stage(&self, stage: Stage) {
        let number = match stage {
            Stage::Opening => 0,
            Stage::Open => 1,
            Stage::Closed => 2,
            Stage::Halted => 3,
        };
        self.stage.store(number, Ordering::Release);
    }

    pub(crate) fn set_log_end(&self, end: Offset) {
        self.log_end.store(end, Ordering::Release);
    }

    pub(crate) fn set_log_start(&self, start: Offset) {
        self.log_start.store(start, Ordering::Release);
    }

    pub(crate) fn advance(&self, mark: Offset, last_stable: Offset, bytes: u64) {
        self.mark.store(mark, Ordering::Release);
        self.last_stable.store(last_stable, Ordering::Release);
        self.visible_bytes.fetch_add(bytes, Ordering::AcqRel);
    }

    pub(crate) fn set_settled(&self) {
        self.settled.store(true, Ordering::Release);
    }
}
