//! Logs that end in a hole that compaction left.
//!
//! Where a log ends is what its last batch says. A follower's may have to end further on: its leader's log has nothing
//! more up to there, or the cut that both agree on lies in the hole. That end is confirmed, counted and, by a leader, given away from,
//! so a restart must find it: a batch without records takes the hole's place, as compaction leaves one in a segment's end.

use felix_protocol::batch::BatchHeader;
use felix_protocol::batch::thin::filler;
use felix_protocol::generation_map::GenerationMap;
use felix_protocol::ids::{Generation, Offset};
use felix_protocol::time::WallTime;

use super::Log;
use crate::disk::Disk;
use crate::error::StorageError;
use crate::layout::Kind;

/// The longest hole that is filled: a batch spans 2^31 offsets, and nothing that compaction leaves is as long as this.
pub(super) const LONGEST: Offset = 1 << 40;

impl<D: Disk> Log<D> {
    /// Has the log end at `to`, if it ends before: nothing is left of what `generation` wrote up to there. Returns whether a
    /// new segment was begun.
    pub fn fill(&mut self, to: Offset, generation: Generation, now: WallTime) -> Result<bool, StorageError> {
        if to - self.end > LONGEST {
            return Err(StorageError::OutOfRange { offset: to, start: self.start(), end: self.end });
        }
        let mut rolled = false;
        while self.end < to {
            let batch = filler(self.end, to, generation).map_err(|error| {
                StorageError::io("write", &self.active.path(Kind::Log), std::io::Error::other(error))
            })?;
            rolled |= self.append_stored(&batch, now)?.rolled;
        }
        Ok(rolled)
    }

    /// The same, as of the generations that `map` tells; durable on return. A crash in between leaves the log without it, which is
    /// damage to an open if anything was promised of the hole.
    pub(super) fn fill_durably(
        &mut self,
        to: Offset,
        map: &GenerationMap,
        now: WallTime,
    ) -> Result<(), StorageError> {
        if self.end >= to {
            return Ok(());
        }
        let newest = |log: &Log<D>| log.generations.latest().map_or(Generation::ZERO, |(newest, _)| newest);
        while self.end < to {
            let generation = map.generation_at(self.end).unwrap_or(Generation::ZERO).max(newest(self));
            let next = map.entries().iter().map(|(_, first)| *first).find(|first| *first > self.end);
            self.fill(next.map_or(to, |next| next.min(to)), generation, now)?;
        }
        if let Some(job) = self.flush_job() {
            let outcome = job.run();
            self.flushed(&outcome);
            outcome.map_err(|error| {
                StorageError::io("flush", &error.path, std::io::Error::other(error.reason))
            })?;
        }
        Ok(())
    }
}

/// Whether the batch holds a place and nothing else.
pub(super) fn is_filler(header: &BatchHeader) -> bool {
    header.records == 0 && !header.has_producer() && !header.is_control()
}
