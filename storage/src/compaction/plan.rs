//! What a round would work on, and whether it is worth it.

use std::collections::{BTreeMap, BTreeSet};
use std::sync::Arc;

use felix_protocol::ids::{Offset, PartitionId};
use felix_protocol::time::WallTime;

use super::{CompactionConfig, Progress};
use crate::disk::Disk;
use crate::error::ReadError;
use crate::index::TIME_ENTRY;
use crate::layout::Kind;
use crate::log::LogReader;
use crate::segment::Segment;

/// Positions in a segment are 32 bits, signed in Kafka's eyes.
const MOST_BYTES: u64 = i32::MAX as u64;

/// What must stay of a producer.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(crate) enum LastOfProducer {
    /// The batch that ends at this offset: it carries the last sequence.
    Batch(Offset),
    /// A marker of this epoch: nothing else is known.
    Marker(i16),
}

/// The closed segments of a log that a round may work on, and what it must know of the log; a snapshot.
pub struct Compaction<D: Disk> {
    pub(crate) reader: LogReader<D>,
    /// How often the log had been cut.
    pub(crate) cuts: u64,
    /// From the log start on, without a gap.
    pub(crate) segments: Vec<Arc<Segment<D>>>,
    /// Where the last of them ends.
    pub(crate) until: Offset,
    pub(crate) progress: Progress,
    pub(crate) config: CompactionConfig,
    pub(crate) segment_bytes: u64,
    pub(crate) index_bytes: u64,
    pub(crate) index_interval: u64,
    pub(crate) last: BTreeMap<i64, LastOfProducer>,
    /// First offsets of generations.
    pub(crate) begins: BTreeSet<Offset>,
}

/// How dirty a log is.
#[derive(Clone, Copy, Debug, Default, PartialEq)]
pub struct Dirtiness {
    /// Bytes of segments that no round has been through.
    pub dirty_bytes: u64,
    /// Bytes of all segments that a round would read.
    pub bytes: u64,
    /// Records have waited for longer than they may.
    pub overdue: bool,
    /// A round would free something even if nothing is dirty.
    pub expired: bool,
    min_dirty_millionths: u32,
}

impl Dirtiness {
    /// The dirty part, in millionths.
    pub fn millionths(&self) -> u32 {
        let share = (u128::from(self.dirty_bytes) * 1_000_000).checked_div(u128::from(self.bytes));
        share.and_then(|share| u32::try_from(share).ok()).unwrap_or(0)
    }

    /// Whether a round is worth it.
    pub fn is_worth_it(&self) -> bool {
        (self.overdue && self.dirty_bytes > 0)
            || self.millionths() > self.min_dirty_millionths
            || (self.expired && self.bytes > 0)
    }
}

impl<D: Disk> Compaction<D> {
    /// A reader of the log.
    pub fn reader(&self) -> &LogReader<D> {
        &self.reader
    }

    /// The partition.
    pub fn partition(&self) -> PartitionId {
        self.reader.partition()
    }

    /// Leaves out records that are too young, and says how dirty the rest is. Looks at files.
    pub fn assess(&mut self, now: WallTime) -> Result<Dirtiness, ReadError> {
        self.leave_out_young(now)?;
        let mut dirtiness = Dirtiness {
            min_dirty_millionths: self.config.min_dirty_millionths,
            expired: self.progress.again_at.is_some_and(|at| now.0 >= at),
            ..Dirtiness::default()
        };
        for at in 0..self.segments.len() {
            let segment = &self.segments[at];
            dirtiness.bytes += segment.size();
            if self.next_of(at) <= self.progress.end {
                continue;
            }
            dirtiness.dirty_bytes += segment.size();
            if self.config.max_lag_ms < i64::MAX {
                let first = self.first_timestamp(segment)?;
                dirtiness.overdue |= now.0.saturating_sub(first) > self.config.max_lag_ms;
            }
        }
        Ok(dirtiness)
    }

    /// Where the segment ends.
    pub(super) fn next_of(&self, at: usize) -> Offset {
        self.segments.get(at + 1).map_or(self.until, |next| next.base())
    }

    fn leave_out_young(&mut self, now: WallTime) -> Result<(), ReadError> {
        if self.config.min_lag_ms <= 0 {
            return Ok(());
        }
        let oldest = now.0.saturating_sub(self.config.min_lag_ms);
        for at in 0..self.segments.len() {
            if self.next_of(at) <= self.progress.end {
                continue;
            }
            let segment = &self.segments[at];
            let newest = match segment.max_timestamp()? {
                Some(max) => max.timestamp,
                None => self.modified(segment)?.0,
            };
            if newest > oldest {
                self.until = segment.base();
                self.segments.truncate(at);
                return Ok(());
            }
        }
        Ok(())
    }

    fn first_timestamp(&self, segment: &Segment<D>) -> Result<i64, ReadError> {
        let file = segment.file().map_err(|error| segment.log_error(error))?;
        let header = segment.header_at(&file, segment.size(), 0)?;
        match header.map(|header| header.max_timestamp) {
            Some(first) if first >= 0 => Ok(first),
            Some(_) | None => Ok(self.modified(segment)?.0),
        }
    }

    pub(super) fn modified(&self, segment: &Segment<D>) -> Result<WallTime, ReadError> {
        let path = segment.path(Kind::Log);
        self.reader.dir().disk().modified(&path).map_err(|source| ReadError::Io { path, source })
    }

    /// Neighbours that fit into one segment together, of the segments below `end`.
    pub(super) fn groups(&self, end: Offset) -> Vec<std::ops::Range<usize>> {
        let mut groups: Vec<std::ops::Range<usize>> = Vec::new();
        let mut bytes = 0;
        for (at, segment) in self.segments.iter().enumerate() {
            if segment.base() >= end {
                break;
            }
            let size = segment.size();
            if let Some(group) = groups.last_mut()
                && bytes + size <= self.segment_bytes.min(MOST_BYTES)
                && ((bytes + size) / self.index_interval + 2) * TIME_ENTRY as u64 <= self.index_bytes
                && self.next_of(at) - self.segments[group.start].base() <= i64::from(i32::MAX)
            {
                group.end = at + 1;
                bytes += size;
            } else {
                groups.push(at..at + 1);
                bytes = size;
            }
        }
        groups
    }
}
