//! Reading while the log is written: whole stored batches, from the memory tail or by one read of the file.

use std::io;
use std::path::Path;
use std::sync::Arc;
use std::sync::atomic::Ordering;

use bytes::Bytes;
use felix_protocol::batch::{self, BatchHeader, HEADER_BYTES};
use felix_protocol::generation_map::{GenerationEnd, GenerationMap};
use felix_protocol::ids::{Generation, Offset, PartitionId};

use super::{Read, Shared};
use crate::compaction::checkpoint;
use crate::data_dir::DataDir;
use crate::disk::{Disk, DiskFile};
use crate::error::{Damaged, ReadError, StorageError};
use crate::layout::{self, Kind};
use crate::segment::{Segment, walk};

/// Fetched beyond what was asked for when only the neighbourhood of the first batch is known.
const SLACK: usize = 8 << 10;
/// How often a read begins again because the log was cut under it.
pub(super) const ATTEMPTS: usize = 16;

/// Reads a log while it is written. No call waits for the writer or for a flush.
pub struct LogReader<D: Disk> {
    shared: Arc<Shared<D>>,
}

impl<D: Disk> Clone for LogReader<D> {
    fn clone(&self) -> Self {
        LogReader { shared: self.shared.clone() }
    }
}

impl<D: Disk> LogReader<D> {
    pub(super) fn new(shared: Arc<Shared<D>>) -> LogReader<D> {
        LogReader { shared }
    }

    /// The partition.
    pub fn partition(&self) -> PartitionId {
        self.shared.home.partition
    }

    /// First offset that readers may have.
    pub fn start(&self) -> Offset {
        self.shared.start.load(Ordering::Acquire)
    }

    /// One past the last record.
    pub fn end(&self) -> Offset {
        self.shared.end.load(Ordering::Acquire)
    }

    /// Bytes in all segments.
    pub fn size_bytes(&self) -> u64 {
        self.shared.bytes.load(Ordering::Relaxed)
    }

    /// Whether the log was deleted.
    pub fn is_gone(&self) -> bool {
        self.shared.gone.load(Ordering::Acquire)
    }

    /// Whole batches from the one that contains `from` on, none that reaches to or past `limit`, at most
    /// `max_bytes` of them; with `at_least_one` the first comes even when it alone is larger. Where no batch
    /// contains `from` (it was compacted away), the first one behind it is the first.
    pub fn read(
        &self,
        from: Offset,
        max_bytes: usize,
        limit: Offset,
        at_least_one: bool,
    ) -> Result<Read, ReadError> {
        self.shared.read(&Wanted { from, max_bytes, limit, at_least_one, wait: true, emptied: true })
    }

    /// The same for a consumer: batches that compaction left without records come first only where nothing else
    /// follows. Some clients never get past an answer of nothing but those.
    pub fn read_records(
        &self,
        from: Offset,
        max_bytes: usize,
        limit: Offset,
        at_least_one: bool,
    ) -> Result<Read, ReadError> {
        self.shared.read(&Wanted { from, max_bytes, limit, at_least_one, wait: true, emptied: false })
    }

    /// The same, but [`ReadError::WouldBlock`] rather than wait for the device.
    pub fn read_records_nowait(
        &self,
        from: Offset,
        max_bytes: usize,
        limit: Offset,
        at_least_one: bool,
    ) -> Result<Read, ReadError> {
        self.shared.read(&Wanted { from, max_bytes, limit, at_least_one, wait: false, emptied: false })
    }

    /// Whether a read at `from` would be served from memory.
    pub fn in_memory(&self, from: Offset) -> bool {
        from >= self.end() || self.shared.tail.covers(from)
    }

    /// Where a generation ended (OffsetForLeaderEpoch).
    pub fn generation_end(&self, asked: Generation) -> Option<GenerationEnd> {
        self.shared.generations.read().end_of(asked, self.end())
    }

    /// Which generation wrote `offset`.
    pub fn generation_at(&self, offset: Offset) -> Option<Generation> {
        self.shared.generations.read().generation_at(offset)
    }

    /// Which generation wrote which offsets, now.
    pub fn generations(&self) -> GenerationMap {
        self.shared.generations.read().clone()
    }

    /// Where the log lives.
    pub fn folder(&self) -> &Path {
        &self.shared.home.folder
    }

    /// Notes how far compaction came ([`crate::Log::compacted`]). Not durably: without it a round reads more.
    pub fn note_compaction(&self, content: &str) -> Result<(), StorageError> {
        let (disk, folder) = (self.dir().disk(), self.folder());
        layout::write_unsynced(disk, folder, checkpoint::NAME, content.as_bytes())?;
        layout::finish(disk, folder, checkpoint::NAME)
    }

    /// How often the log was cut.
    pub(crate) fn cuts(&self) -> u64 {
        self.shared.cuts.load(Ordering::Acquire)
    }

    /// The data directory.
    pub(crate) fn dir(&self) -> &DataDir<D> {
        &self.shared.home.dir
    }

    pub(crate) fn shared(&self) -> &Shared<D> {
        &self.shared
    }
}

impl<D: Disk> Shared<D> {
    fn read(&self, wanted: &Wanted) -> Result<Read, ReadError> {
        let Wanted { from, max_bytes, at_least_one, .. } = *wanted;
        self.stable(
            |end| {
                let limit = wanted.limit.min(end);
                if from >= limit {
                    return Ok(Read { next: from, ..Read::default() });
                }
                if let Some(read) = self.tail.read(from, max_bytes, limit, at_least_one) {
                    return Ok(read);
                }
                let wanted = Wanted { limit, ..*wanted };
                match self.read_segments(&wanted) {
                    Ok(Found { read, passed }) if passed.is_none() || read.bytes > 0 => Ok(read),
                    // Nothing but emptied batches, before whatever it is that ends the read.
                    Ok(_) | Err(ReadError::Damaged(_)) => {
                        self.read_segments(&Wanted { emptied: true, ..wanted }).map(|found| found.read)
                    }
                    Err(error) => Err(error),
                }
            },
            from,
        )
    }

    /// Looks for the first batch in one segment after the other.
    fn read_segments(&self, wanted: &Wanted) -> Result<Found, ReadError> {
        let (from, limit) = (wanted.from, wanted.limit);
        let segments = self.segments.load();
        let at = segments.partition_point(|segment| segment.base() <= from).saturating_sub(1);
        // The last batch of a segment may lie below `from` where compaction left a gap.
        let mut before: Option<&Arc<Segment<D>>> = None;
        let mut passed = None;
        for segment in segments.iter().skip(at) {
            let due = passed.unwrap_or(from);
            if segment.base() > due && !may_leave_room(before, segment) {
                return Err(self.missing(before, segment, due).into());
            }
            let damage = segment.damage().filter(|damage| damage.offset < limit);
            let limit = damage.map_or(limit, |damage| damage.offset);
            if let Some(damage) = damage.filter(|_| from >= limit) {
                return Err(damage.clone().into());
            }
            let here = segment.read(&Wanted { limit, ..*wanted }, self.home.dir.limits().verify_reads)?;
            passed = here.passed.or(passed);
            if let Some(read) = here.read {
                return Ok(Found { read, passed });
            }
            if let Some(damage) = damage {
                return Err(damage.clone().into());
            }
            before = Some(segment);
        }
        Ok(Found { read: Read { next: from, ..Read::default() }, passed })
    }

    /// There is nothing between two segments although there should be; named as an open would.
    fn missing(&self, before: Option<&Arc<Segment<D>>>, next: &Segment<D>, due: Offset) -> Damaged {
        let reason = format!("segment {} follows where {due} was due", next.base());
        match before {
            Some(before) => before.damaged(before.size(), due, reason),
            None => {
                let start = self.start.load(Ordering::Acquire);
                let segment = layout::file_path(&self.home.folder, start, Kind::Log);
                Damaged { segment, position: 0, offset: due, promised: true, reason }
            }
        }
    }

    /// Runs a read on a log that is not cut, deleted or retired under it: one that raced with such a change is run again on what the
    /// log has become.
    pub(super) fn stable<T>(
        &self,
        read: impl Fn(Offset) -> Result<T, ReadError>,
        from: Offset,
    ) -> Result<T, ReadError> {
        let mut last = ReadError::Gone;
        for _ in 0..ATTEMPTS {
            if self.gone.load(Ordering::Acquire) {
                return Err(ReadError::Gone);
            }
            let cuts = self.cuts.load(Ordering::Acquire);
            let end = self.end.load(Ordering::Acquire);
            let start = self.start.load(Ordering::Acquire);
            if from < start {
                return Err(ReadError::BelowStart { start });
            }
            if from > end {
                return Err(ReadError::BeyondEnd { end });
            }
            let outcome = read(end);
            // Retired segments leave the list after the start has moved: what was read may be what follows
            // them.
            let changed =
                self.cuts.load(Ordering::Acquire) != cuts || self.start.load(Ordering::Acquire) > from;
            match outcome {
                Ok(outcome) if !changed => return Ok(outcome),
                Ok(_) => {}
                Err(error) => {
                    // A file that is not there any more was retired or deleted: the next look shows that.
                    let moved = matches!(&error, ReadError::Io { source, .. }
                        if source.kind() == io::ErrorKind::NotFound);
                    if !changed && !moved {
                        if let ReadError::Damaged(damaged) = &error {
                            self.home.dir.damage().meet(self.home.partition, damaged);
                        }
                        return Err(error);
                    }
                    last = error;
                }
            }
        }
        Err(last)
    }
}

/// Segments join without a gap, also where they were compacted; only a leap in offsets that no one segment could
/// hold leaves room between two.
pub(super) fn may_leave_room<D: Disk>(before: Option<&Arc<Segment<D>>>, next: &Segment<D>) -> bool {
    before.is_some_and(|before| next.base() - before.base() > i64::from(i32::MAX))
}

/// What a reader asks of one segment.
#[derive(Clone, Copy)]
struct Wanted {
    from: Offset,
    max_bytes: usize,
    limit: Offset,
    at_least_one: bool,
    wait: bool,
    /// A batch without records may be the first.
    emptied: bool,
}

/// What a look through the segments came to.
struct Found {
    read: Read,
    /// Where the emptied batches end that were passed over.
    passed: Option<Offset>,
}

/// What a look through one segment came to.
struct Here {
    /// `None` when there is no first batch in it.
    read: Option<Read>,
    /// Where the emptied batches end that were passed over.
    passed: Option<Offset>,
}

impl Here {
    const NOTHING: Here = Here { read: None, passed: None };
}

impl<D: Disk> Segment<D> {
    /// Reads from this segment.
    fn read(&self, wanted: &Wanted, verify: bool) -> Result<Here, ReadError> {
        if let Some(position) = self.hint(wanted.from) {
            match self.read_at(wanted, verify, position, true) {
                Ok(here) if here.read.is_some() || here.passed.is_some() => return Ok(here),
                // Left there by a reader that raced with a cut.
                Ok(_) | Err(ReadError::Damaged(_)) => self.clear_hints(),
                Err(error) => return Err(error),
            }
        }
        let position = if wanted.from == self.base() {
            0
        } else if wanted.wait {
            self.position_for(wanted.from)?
        } else {
            self.position_nowait(wanted.from).ok_or(ReadError::WouldBlock)?
        };
        self.read_at(wanted, verify, position, false)
    }

    /// Reads from a position at which a batch begins; where `exact`, one that begins with `from`.
    fn read_at(&self, wanted: &Wanted, verify: bool, position: u64, exact: bool) -> Result<Here, ReadError> {
        let size = self.size();
        if position >= size {
            return Ok(Here::NOTHING);
        }
        let file = if wanted.wait {
            self.file().map_err(|error| self.log_error(error))?
        } else {
            self.file_nowait().ok_or(ReadError::WouldBlock)?
        };
        let mut window =
            Window { segment: self, file: &*file, size, wait: wanted.wait, at: position, buf: Vec::new() };
        // Skip what lies below.
        let ask = wanted.max_bytes.saturating_add(if exact { 0 } else { SLACK }).max(HEADER_BYTES + SLACK);
        window.fill(position, ask)?;
        let mut at = position;
        let mut floor = self.base();
        let mut passed = None;
        let first = loop {
            if at >= size {
                return Ok(Here { read: None, passed });
            }
            if at + HEADER_BYTES as u64 > window.end() {
                window.fill(at, ask)?;
            }
            let header = window.header(at, floor)?;
            if exact && at == position && header.base_offset != wanted.from {
                return Ok(Here::NOTHING);
            }
            if header.last_offset() >= wanted.from {
                if header.records > 0 || wanted.emptied {
                    break header;
                }
                passed = Some(header.next_offset());
            }
            floor = header.next_offset();
            at += header.bytes as u64;
        };
        let mut read = Read { next: wanted.from, ..Read::default() };
        if first.next_offset() > wanted.limit || (first.bytes > wanted.max_bytes && !wanted.at_least_one) {
            return Ok(Here { read: Some(read), passed });
        }
        if at + first.bytes as u64 > window.end() {
            window.fill(at, ask.max(first.bytes))?;
        }
        window.whole(at, &first, verify)?;
        let begin = at;
        let mut last = first;
        loop {
            at += last.bytes as u64;
            read.next = last.next_offset();
            let fits = |header: &BatchHeader| {
                at - begin + header.bytes as u64 <= wanted.max_bytes as u64
                    && header.next_offset() <= wanted.limit
            };
            // What is wrong with a later batch is said when a read begins there.
            last = match window.header(at, read.next) {
                Ok(header) if fits(&header) && window.whole(at, &header, verify).is_ok() => header,
                Ok(_) | Err(_) => break,
            };
        }
        self.set_hint(read.next, at);
        let (from, to) = (window.index(begin), window.index(at));
        read.bytes = to - from;
        read.held = window.buf.capacity();
        read.slices.push(Bytes::from(window.buf).slice(from..to));
        Ok(Here { read: Some(read), passed })
    }
}

/// A part of a segment's file in memory.
struct Window<'a, D: Disk> {
    segment: &'a Segment<D>,
    file: &'a D::File,
    size: u64,
    wait: bool,
    /// Where in the file `buf` begins.
    at: u64,
    buf: Vec<u8>,
}

impl<D: Disk> Window<'_, D> {
    fn end(&self) -> u64 {
        self.at + self.buf.len() as u64
    }

    fn index(&self, at: u64) -> usize {
        usize::try_from(at - self.at).unwrap_or(usize::MAX)
    }

    /// Makes the window begin at `at` and hold `len` bytes, fewer only where the segment ends.
    fn fill(&mut self, at: u64, len: usize) -> Result<(), ReadError> {
        let left = usize::try_from(self.size - at).unwrap_or(usize::MAX);
        let len = len.min(left);
        let keep = if at >= self.at && at < self.end() { self.index(at) } else { self.buf.len() };
        let mut buf = Vec::with_capacity(len);
        buf.extend_from_slice(&self.buf[keep..]);
        self.buf = buf;
        self.at = at;
        while self.buf.len() < len {
            let have = self.buf.len();
            let from = at + have as u64;
            let outcome = if self.wait {
                self.file.read_at(&mut self.buf, len - have, from)
            } else {
                self.file.read_at_nowait(&mut self.buf, len - have, from)
            };
            match outcome {
                Ok(0) => {
                    let reason = format!("the file ends there, {} bytes early", self.size - from);
                    return Err(self.segment.damaged(from, self.segment.base(), reason).into());
                }
                Ok(_) => {}
                Err(error) if error.kind() == io::ErrorKind::Interrupted => {}
                // What is in memory may be enough: whoever needs more asks again.
                Err(error) if error.kind() == io::ErrorKind::WouldBlock && have > 0 => {
                    return if have >= HEADER_BYTES { Ok(()) } else { Err(ReadError::WouldBlock) };
                }
                Err(error) => return Err(self.segment.log_error(error)),
            }
        }
        Ok(())
    }

    fn header(&self, at: u64, floor: Offset) -> Result<BatchHeader, ReadError> {
        let bytes = self.buf.get(self.index(at)..).unwrap_or_default();
        let damaged = |reason: String| ReadError::from(self.segment.damaged(at, floor, reason));
        let header = BatchHeader::parse(bytes).map_err(|error| damaged(error.to_string()))?;
        if !walk::has_sound_offsets(&header) || header.base_offset < floor {
            return Err(damaged(format!(
                "batch of offset {} where {floor} or more was due",
                header.base_offset
            )));
        }
        if at + header.bytes as u64 > self.size {
            return Err(damaged(format!("batch of {} bytes reaches beyond the segment", header.bytes)));
        }
        Ok(header)
    }

    /// Whether all of a batch is in the window, and undamaged.
    fn whole(&self, at: u64, header: &BatchHeader, verify: bool) -> Result<(), ReadError> {
        let from = self.index(at);
        match self.buf.get(from..from + header.bytes) {
            Some(bytes) if verify => batch::verify_crc(header, bytes)
                .map_err(|error| self.segment.damaged(at, header.base_offset, error.to_string()).into()),
            Some(_) => Ok(()),
            // For the first batch of a read: only one that may not wait has less than it asked for.
            None => Err(ReadError::WouldBlock),
        }
    }
}
