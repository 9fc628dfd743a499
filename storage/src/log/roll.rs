//! When a new segment begins, by Kafka's rules, and what is completed then.

use std::sync::Arc;

use felix_protocol::batch::BatchHeader;
use felix_protocol::ids::{Offset, PartitionId};
use felix_protocol::time::WallTime;

use super::{Log, of_reading, reserve};
use crate::disk::Disk;
use crate::error::{Doing, StorageError};
use crate::flush::{Dirty, SideWrite};
use crate::index::TIME_ENTRY;
use crate::layout::{self, Kind};
use crate::producers::snapshot;
use crate::seal::marks::Sealed;
use crate::seal::{Running, Seal};
use crate::segment::Segment;

/// Positions in a segment are 32 bits, signed in Kafka's eyes.
const MOST_BYTES: u64 = i32::MAX as u64;

/// By how much a segment's time is shortened: the same for the same segment at every start, different for
/// others.
pub(super) fn jitter(partition: &PartitionId, base: Offset, most_ms: i64) -> i64 {
    if most_ms <= 0 {
        return 0;
    }
    let mut seed = partition.topic.0.as_u128().to_be_bytes().to_vec();
    seed.extend_from_slice(&partition.index.to_be_bytes());
    seed.extend_from_slice(&base.to_be_bytes());
    i64::from(crc32c::crc32c(&seed)) % most_ms
}

impl<D: Disk> Log<D> {
    /// Begins a new segment if the batch does not belong into the active one.
    pub(super) fn roll_for(&mut self, header: &BatchHeader, now: WallTime) -> Result<bool, StorageError> {
        let relative = header.last_offset() - self.active.base();
        let offsets_overflow = relative > i64::from(i32::MAX);
        let due = offsets_overflow
            || (self.position > 0
                && (self.position + header.bytes as u64 > self.config.segment_bytes.min(MOST_BYTES)
                    || self.index_is_full()
                    || self.time_is_up(header.max_timestamp, now)?));
        // A follower's batch may begin beyond the end: the new segment takes the batch's base where the
        // distance itself is what overflows.
        let base =
            if header.last_offset() - self.end > i64::from(i32::MAX) { header.base_offset } else { self.end };
        if due {
            self.roll(base, now)?;
        }
        Ok(due)
    }

    /// Begins a new segment when the active one is due by time. Returns whether it did.
    pub fn roll_if_due(&mut self, now: WallTime) -> Result<bool, StorageError> {
        if self.poisoned {
            return Err(StorageError::Poisoned);
        }
        let due = self.position > 0 && self.time_is_up(now.0, now)?;
        if due {
            self.cut_ragged()?;
            self.roll(self.end, now)?;
        }
        Ok(due)
    }

    /// Puts a seal among the side files of the next flush.
    pub(super) fn stage_seal(&mut self, sealed: &Sealed) {
        let name = layout::file_name(sealed.seal.base, Kind::Seal);
        self.pending.side.retain(|side| side.name != name);
        self.pending.side.push(SideWrite { name, content: sealed.encode() });
    }

    /// Forgets seals that wait to be written, but for those of segments that `keep` names.
    pub(super) fn drop_staged_seals(&mut self, keep: impl Fn(Offset) -> bool) {
        self.pending.side.retain(|side| match layout::parse_file_name(&side.name) {
            Some((base, Kind::Seal)) => keep(base),
            Some(_) | None => true,
        });
    }

    fn index_is_full(&self) -> bool {
        let most = u64::from(self.config.index_bytes);
        let interval = u64::from(self.config.index_interval_bytes).max(1);
        // So many entries cannot be there yet, so there is no need to count.
        if (self.position / interval + 2) * (TIME_ENTRY as u64) < most {
            return false;
        }
        self.active.index_bytes() + TIME_ENTRY as u64 > most
    }

    /// Records carry the time; where they carry none, or one that has not come yet, the age of the file counts.
    fn time_is_up(&mut self, timestamp: i64, now: WallTime) -> Result<bool, StorageError> {
        let first = match self.first_timestamp {
            Some(first) => first,
            None => {
                let first = self.read_first_timestamp()?;
                self.first_timestamp = Some(first);
                first
            }
        };
        // A clock that was set back must not stop the file from ageing.
        self.active_since = self.active_since.min(now);
        let waited = if (0..=now.0).contains(&first) {
            timestamp.saturating_sub(first)
        } else {
            now.0.saturating_sub(self.active_since.0)
        };
        Ok(waited > self.config.segment_ms.saturating_sub(self.jitter_ms))
    }

    fn read_first_timestamp(&self) -> Result<i64, StorageError> {
        let file = self.active.file().doing("open", &self.active.path(Kind::Log))?;
        let header = self.active.header_at(&file, self.position, 0).map_err(of_reading)?;
        Ok(header.map_or(-1, |header| header.max_timestamp))
    }

    /// Closes the active segment and begins one at `base`. The old one's files, the producers as of now and
    /// the generation map become durable with the next flush, before anything in the new segment does.
    pub(super) fn roll(&mut self, base: Offset, now: WallTime) -> Result<(), StorageError> {
        let replace = self.position == 0;
        let home = self.shared.home.clone();
        if replace && base == self.active.base() {
            return Ok(());
        }
        let next = Arc::new(Segment::create(home.clone(), base, reserve(&self.config))?);
        let old = std::mem::replace(&mut self.active, next.clone());
        let mut segments = self.segments().as_ref().clone();
        if replace {
            // An empty segment holds nothing worth keeping, and its name would promise offsets.
            segments.pop();
            let _ = self.disk().remove_file(&old.path(Kind::Log));
            self.pending
                .dirty
                .retain(|dirty| !matches!(dirty, Dirty::Segment(at, _) if Arc::ptr_eq(at, &old)));
        } else {
            let indexes = old.complete_indexes();
            self.mark_others_dirty(indexes);
            // Where the checksum is unknown, the scrub makes the seal.
            if let Some(running) = self.running.take() {
                let aborted = !old.gathered_aborted().is_empty();
                let seal = Seal { aborted, ..running.seal(old.base(), self.end, false) };
                self.stage_seal(&running.sealed(seal));
                old.set_checked(now);
            }
            self.stage_aborted(&old);
        }
        self.release_aborted();
        self.running = Some(Running::new());
        segments.push(next);
        self.shared.segments.store(Arc::new(segments));
        self.pending.active_dirty = false;
        self.pending.folders.push(home.folder.clone());
        self.position = 0;
        self.first_timestamp = None;
        self.active_since = now;
        self.jitter_ms = jitter(&home.partition, base, self.config.segment_jitter_ms);
        self.pending.side.push(SideWrite {
            name: layout::file_name(base, Kind::Snapshot),
            content: snapshot::encode(&self.producers),
        });
        self.stage_map();
        Ok(())
    }
}
