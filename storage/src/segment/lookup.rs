//! The readers' side of the indexes: looked at when first needed, built again when they cannot be right.

use felix_protocol::batch::{BatchHeader, HEADER_BYTES};
use felix_protocol::ids::Offset;

use super::walk::{self, Broken, Walk};
use super::{Indexes, Segment, encoded};
use crate::disk::{Disk, DiskFile, OpenMode, read_up_to};
use crate::error::ReadError;
use crate::index::{self, IndexEntry, OffsetEntry, TimeEntry};
use crate::layout::{self, Kind};

impl<D: Disk> Segment<D> {
    /// Makes the indexes usable: looks at the files, and builds them again when they cannot be right.
    fn ready(&self) -> Result<(), ReadError> {
        if self.indexes.lock().ready {
            return Ok(());
        }
        let _repair = self.repair.lock();
        let distrusted = {
            let indexes = self.indexes.lock();
            if indexes.ready {
                return Ok(());
            }
            indexes.distrusted
        };
        let size = self.size();
        let log = self.file().map_err(|error| self.log_error(error))?;
        if !distrusted && let Some(found) = self.look_at_files(&log, size)? {
            *self.indexes.lock() = found;
            return Ok(());
        }
        let interval = self.interval();
        let mut built = self.build(&log, size, interval)?;
        built.add_time();
        let offsets = encoded(&built.offsets, self.base);
        let times = encoded(&built.times, self.base);
        self.close_indexes();
        let folder = &self.home.folder;
        // Under these names others may read another segment's.
        let replaced = self.is_replaced();
        // No reader waits for a flush: what a crash tears reads as zeros, which lead to the beginning at worst.
        let write = |kind, content: &[u8]| {
            layout::write_loosely(self.disk(), folder, &layout::file_name(self.base, kind), content)
        };
        let written =
            !replaced && write(Kind::Index, &offsets).and_then(|()| write(Kind::TimeIndex, &times)).is_ok();
        if written {
            built.offsets_on_file = built.offsets.len();
            built.times_on_file = built.times.len();
            built.offsets = Vec::new();
            built.times = Vec::new();
            built.outdated = false;
        }
        // Otherwise (a full disk, say) they serve from memory.
        *self.indexes.lock() = built;
        Ok(())
    }

    /// Both files as they are, or `None` when one of them is missing or cannot be right.
    fn look_at_files(&self, log: &D::File, size: u64) -> Result<Option<Indexes>, ReadError> {
        let Some((offsets, last_offset)) = self.last_entry::<OffsetEntry>(Kind::Index) else {
            return Ok(None);
        };
        let Some((times, last_time)) = self.last_entry::<TimeEntry>(Kind::TimeIndex) else {
            return Ok(None);
        };
        let (mut from, mut floor, mut skip) = (0, self.base, false);
        if let Some(entry) = last_offset {
            if !self.agrees(log, size, &entry)? {
                return Ok(None);
            }
            (from, floor, skip) = (u64::from(entry.position), self.base, true);
        }
        // Were there batches behind the last entry that should have had one, then the file lost its end.
        let mut walk = Walk::new(log, from, size, floor);
        let mut since = 0;
        let limit = u64::from(self.interval());
        let indexed = last_time.map_or(-1, |entry| entry.timestamp);
        while let Some(step) = walk.next_header().map_err(|broken| self.broken(broken, floor))? {
            // Nor may the greatest timestamp be missing in the time index.
            if (since > limit && !skip) || (step.header.records > 0 && step.header.max_timestamp > indexed) {
                return Ok(None);
            }
            skip = false;
            since += step.header.bytes as u64;
            floor = step.header.next_offset();
        }
        if let Some(entry) = last_time {
            let in_order = times < 2
                || self
                    .entry_at::<TimeEntry>(Kind::TimeIndex, times - 2)
                    .is_some_and(|before| before.timestamp < entry.timestamp && before.offset < entry.offset);
            if !in_order || !self.time_agrees(log, size, offsets, &entry)? {
                return Ok(None);
            }
        } else if size > 0 {
            // Right only if no record has a timestamp; the batches know.
            return Ok(None);
        }
        Ok(Some(Indexes {
            ready: true,
            offsets_on_file: offsets,
            times_on_file: times,
            max: last_time,
            indexed_time: last_time.map(|entry| entry.timestamp),
            ..Indexes::default()
        }))
    }

    /// Number of entries and the last of them; `None` when the file is missing, unreadable or of a length
    /// that no index has.
    pub(crate) fn last_entry<E: IndexEntry>(&self, kind: Kind) -> Option<(usize, Option<E>)> {
        let file = self.index_file(kind, OpenMode::Write).ok()?;
        let len = usize::try_from(file.len().ok()?).ok()?;
        if len % E::BYTES != 0 {
            return None;
        }
        let count = len / E::BYTES;
        let last = if count > 0 { Some(self.entry_at::<E>(kind, count - 1)?) } else { None };
        Some((count, last))
    }

    fn entry_at<E: IndexEntry>(&self, kind: Kind, at: usize) -> Option<E> {
        let file = self.index_file(kind, OpenMode::Write).ok()?;
        index::read_entries::<E, _>(&*file, self.base, at, at + 1).ok()?.first().copied()
    }

    /// The header of the batch at `position`, if one can begin there.
    pub(crate) fn header_at(
        &self,
        log: &D::File,
        size: u64,
        position: u64,
    ) -> Result<Option<BatchHeader>, ReadError> {
        if position + HEADER_BYTES as u64 > size {
            return Ok(None);
        }
        let bytes = read_up_to(log, HEADER_BYTES, position).map_err(|error| self.log_error(error))?;
        Ok(BatchHeader::parse(&bytes).ok().filter(|header| {
            walk::has_sound_offsets(header)
                && header.base_offset >= self.base
                && position + header.bytes as u64 <= size
        }))
    }

    /// Whether the batch that an entry of the offset index names is there.
    pub(crate) fn agrees(&self, log: &D::File, size: u64, entry: &OffsetEntry) -> Result<bool, ReadError> {
        let header = self.header_at(log, size, u64::from(entry.position))?;
        Ok(header.is_some_and(|header| header.last_offset() == entry.offset))
    }

    /// Whether the batch that an entry of the time index names has that timestamp.
    fn time_agrees(
        &self,
        log: &D::File,
        size: u64,
        offsets: usize,
        entry: &TimeEntry,
    ) -> Result<bool, ReadError> {
        let file = self.index_file(Kind::Index, OpenMode::Write);
        let from = match file {
            Ok(file) if offsets > 0 => {
                index::last_where(&*file, self.base, offsets, |at: &OffsetEntry| at.offset <= entry.offset)
                    .map_err(|error| self.io_error(Kind::Index, error))?
                    .map_or(0, |at| u64::from(at.position))
            }
            _ => 0,
        };
        let mut walk = Walk::new(log, from, size, self.base);
        loop {
            match walk.next_header() {
                Ok(Some(step)) if step.header.last_offset() < entry.offset => {}
                Ok(Some(step)) => {
                    return Ok(step.header.last_offset() == entry.offset
                        && step.header.max_timestamp == entry.timestamp);
                }
                Ok(None) | Err(Broken::Batch { .. }) => return Ok(false),
                Err(Broken::Io(error)) => return Err(self.log_error(error)),
            }
        }
    }

    /// A position at which a batch begins, at or before the batch that contains `offset`; as near as the
    /// index knows.
    pub(crate) fn position_for(&self, offset: Offset) -> Result<u64, ReadError> {
        self.ready()?;
        let on_file = {
            let indexes = self.indexes.lock();
            let at = indexes.offsets.partition_point(|entry| entry.offset <= offset);
            if at > 0 {
                return Ok(u64::from(indexes.offsets[at - 1].position));
            }
            indexes.offsets_on_file
        };
        if on_file == 0 {
            return Ok(0);
        }
        let file = self
            .index_file(Kind::Index, OpenMode::Write)
            .map_err(|error| self.io_error(Kind::Index, error))?;
        let entry =
            index::last_where(&*file, self.base, on_file, |entry: &OffsetEntry| entry.offset <= offset)
                .map_err(|error| self.io_error(Kind::Index, error))?;
        let Some(entry) = entry else { return Ok(0) };
        let log = self.file().map_err(|error| self.log_error(error))?;
        if self.agrees(&log, self.size(), &entry)? {
            Ok(u64::from(entry.position))
        } else {
            self.distrust();
            Ok(0)
        }
    }

    /// The same from what is in memory; `None` when the file would have to be read.
    pub(crate) fn position_nowait(&self, offset: Offset) -> Option<u64> {
        let indexes = self.indexes.lock();
        if !indexes.ready {
            return None;
        }
        match indexes.offsets.partition_point(|entry| entry.offset <= offset) {
            0 if indexes.offsets_on_file == 0 => Some(0),
            0 => None,
            at => Some(u64::from(indexes.offsets[at - 1].position)),
        }
    }

    /// The index files say what is not so: build them again before the next use. The files of the segment
    /// that is being written are complemented by memory and are left alone.
    fn distrust(&self) {
        let mut indexes = self.indexes.lock();
        if indexes.offsets.is_empty() && indexes.times.is_empty() {
            indexes.ready = false;
            indexes.distrusted = true;
        }
    }

    /// The greatest timestamp in the segment, and the last offset of the first batch that has it.
    pub(crate) fn max_timestamp(&self) -> Result<Option<TimeEntry>, ReadError> {
        self.ready()?;
        Ok(self.indexes.lock().max)
    }

    /// A position before which every record's timestamp is below `timestamp`.
    pub(crate) fn position_for_time(&self, timestamp: i64) -> Result<u64, ReadError> {
        self.ready()?;
        let (gathered, on_file, offsets) = {
            let indexes = self.indexes.lock();
            let at = indexes.times.partition_point(|entry| entry.timestamp <= timestamp);
            let gathered = at.checked_sub(1).map(|at| indexes.times[at]);
            (gathered, indexes.times_on_file, indexes.offsets_on_file)
        };
        if let Some(entry) = gathered {
            return self.position_for(entry.offset);
        }
        if on_file == 0 {
            return Ok(0);
        }
        let file = self
            .index_file(Kind::TimeIndex, OpenMode::Write)
            .map_err(|error| self.io_error(Kind::TimeIndex, error))?;
        let entry =
            index::last_where(&*file, self.base, on_file, |entry: &TimeEntry| entry.timestamp <= timestamp)
                .map_err(|error| self.io_error(Kind::TimeIndex, error))?;
        let Some(entry) = entry else { return Ok(0) };
        let log = self.file().map_err(|error| self.log_error(error))?;
        if self.time_agrees(&log, self.size(), offsets, &entry)? {
            self.position_for(entry.offset)
        } else {
            self.distrust();
            Ok(0)
        }
    }
}
