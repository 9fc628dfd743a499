//! One segment: a file of batches and its two sparse indexes.
//!
//! The indexes of the segment that is being written are in the file as far as they were spilled, and in
//! memory beyond. Those of an older segment are looked at when somebody first needs them: missing or
//! impossible ones are built again from the batches. Nothing here trusts an index further than to begin
//! looking somewhere; the batch found there must agree.

use std::io;
use std::path::PathBuf;
use std::sync::atomic::{AtomicBool, AtomicI64, AtomicU32, AtomicU64, AtomicUsize, Ordering};
use std::sync::{Arc, OnceLock};

use arc_swap::ArcSwapOption;
use felix_protocol::batch::BatchHeader;
use felix_protocol::batch::control::{Marker, TransactionEnd};
use felix_protocol::ids::{Offset, PartitionId};
use felix_protocol::time::WallTime;
use parking_lot::{Mutex, MutexGuard};

use crate::data_dir::DataDir;
use crate::disk::{Disk, DiskFile, OpenMode, write_all_at};
use crate::error::{Damaged, Doing, ReadError, StorageError};
use crate::handles::Slot;
use crate::index::txn::AbortedTransaction;
use crate::index::{IndexEntry, OffsetEntry, TimeEntry};
use crate::layout::{self, Kind};
use crate::seal::marks::Sealed;
use crate::seal::{self, Running};

mod aborted;
mod lookup;
pub(crate) mod output;
mod sealed;
pub(crate) mod walk;

use output::Kept;
use walk::{Broken, Walk};

/// Index entries that are gathered in memory before they are written to the file together.
const SPILL: usize = 512;

/// Where a log lives.
pub(crate) struct Home<D: Disk> {
    pub dir: DataDir<D>,
    pub folder: PathBuf,
    pub partition: PartitionId,
    /// `index.interval.bytes`, as it is now.
    pub interval: AtomicU32,
    /// The folder has another name by now, and what stands at this one is another log's. Held while files are given other names or
    /// removed by threads that do not own the log.
    pub given_up: Mutex<bool>,
}

pub(crate) struct Segment<D: Disk> {
    home: Arc<Home<D>>,
    base: Offset,
    /// Bytes that readers may look at.
    size: AtomicU64,
    log: Arc<Slot<D::File>>,
    /// Made when they are first needed: most segments of most logs are short or cold.
    offsets: OnceLock<Arc<Slot<D::File>>>,
    times: OnceLock<Arc<Slot<D::File>>>,
    indexes: Mutex<Indexes>,
    /// Aborted transactions; `None`: the file knows.
    aborted: Mutex<Option<Vec<AbortedTransaction>>>,
    /// The files, once another segment has taken this one's place.
    kept: ArcSwapOption<Kept<D::File>>,
    /// Held while somebody checks or builds the indexes again.
    repair: Mutex<()>,
    /// Where sequential readers go on: relative offset and position, each in 32 bits.
    hints: [AtomicU64; 4],
    next_hint: AtomicUsize,
    /// When its bytes were last known to be right, by the wall; 0: not in this process's life.
    checked_at: AtomicI64,
    /// Where it is damaged, once that is known.
    damage: OnceLock<Box<Damaged>>,
    /// Held while its seal is made or taken away; true once other bytes are about to take its place.
    replaced: Mutex<bool>,
    /// The seal, while somebody reads the segment by it.
    sealed: ArcSwapOption<Sealed>,
    /// What stands behind its seal was found wrong.
    unsealable: AtomicBool,
}

#[derive(Default)]
struct Indexes {
    /// What follows holds; otherwise the files were not looked at yet.
    ready: bool,
    /// The files were found wrong: build them, do not look at them.
    distrusted: bool,
    /// What the files say is of an earlier life: the first spill replaces them.
    outdated: bool,
    offsets_on_file: usize,
    times_on_file: usize,
    offsets: Vec<OffsetEntry>,
    times: Vec<TimeEntry>,
    /// The greatest timestamp, and the last offset of the first batch that has it.
    max: Option<TimeEntry>,
    /// The last timestamp that entered the time index.
    indexed_time: Option<i64>,
    /// Bytes of batches since the last entry.
    since: u64,
}

impl Indexes {
    /// Of a segment that is read or written from its beginning.
    fn anew() -> Indexes {
        Indexes { ready: true, outdated: true, ..Indexes::default() }
    }

    /// Takes in a batch, in Kafka's way: an entry for the first batch after more than `interval` bytes.
    fn add(&mut self, header: &BatchHeader, position: u64, interval: u32) {
        let offset = header.last_offset();
        if dates(header) && self.max.is_none_or(|max| header.max_timestamp > max.timestamp) {
            self.max = Some(TimeEntry { timestamp: header.max_timestamp, offset });
        }
        if self.since > u64::from(interval)
            && let Ok(position) = u32::try_from(position)
        {
            self.offsets.push(OffsetEntry { offset, position });
            self.add_time();
            self.since = 0;
        }
        self.since += header.bytes as u64;
    }

    fn add_time(&mut self) {
        if let Some(max) = self.max
            && self.indexed_time.is_none_or(|last| max.timestamp > last)
        {
            self.times.push(max);
            self.indexed_time = Some(max.timestamp);
        }
    }
}

/// Whether a batch has a record of its greatest timestamp: one that compaction emptied has not.
pub(crate) fn dates(header: &BatchHeader) -> bool {
    header.max_timestamp >= 0 && header.records > 0
}

fn encoded<E: IndexEntry>(entries: &[E], base: Offset) -> Vec<u8> {
    let mut bytes = Vec::with_capacity(entries.len() * E::BYTES);
    for entry in entries {
        entry.encode(base, &mut bytes);
    }
    bytes
}

impl<D: Disk> Segment<D> {
    /// A segment whose indexes will be looked at when they are needed.
    pub(crate) fn existing(home: Arc<Home<D>>, base: Offset, size: u64) -> Segment<D> {
        Segment {
            home,
            base,
            size: AtomicU64::new(size),
            log: Slot::new(),
            offsets: OnceLock::new(),
            times: OnceLock::new(),
            indexes: Mutex::new(Indexes::default()),
            aborted: Mutex::new(None),
            kept: ArcSwapOption::empty(),
            repair: Mutex::new(()),
            hints: Default::default(),
            next_hint: AtomicUsize::new(0),
            checked_at: AtomicI64::new(0),
            damage: OnceLock::new(),
            replaced: Mutex::new(false),
            sealed: ArcSwapOption::empty(),
            unsealable: AtomicBool::new(false),
        }
    }

    /// Whether its bytes were not looked at for `every_ms`. What is known to be damaged is not looked at again.
    pub(crate) fn is_unchecked(&self, now: WallTime, every_ms: i64) -> bool {
        let checked = self.checked_at.load(Ordering::Relaxed);
        let since = now.0.saturating_sub(checked);
        self.damage.get().is_none() && (checked == 0 || !(0..every_ms.max(1)).contains(&since))
    }

    /// Its bytes are right, or about to be looked at.
    pub(crate) fn set_checked(&self, now: WallTime) {
        self.checked_at.store(now.0.max(1), Ordering::Relaxed);
    }

    /// It was not looked at after all.
    pub(crate) fn set_unchecked(&self) {
        self.checked_at.store(0, Ordering::Relaxed);
    }

    /// Readers of what is behind that place are told of it from now on. The first place counts.
    pub(crate) fn condemn(&self, damaged: Damaged) {
        let _ = self.damage.set(Box::new(damaged));
    }

    /// Where it is known to be damaged.
    pub(crate) fn damage(&self) -> Option<&Damaged> {
        self.damage.get().map(Box::as_ref)
    }

    /// Keeps the seal from being made or taken away by others. True: it must not be made any more.
    pub(crate) fn hold_seal(&self) -> MutexGuard<'_, bool> {
        self.replaced.lock()
    }

    /// Takes the seal away because the bytes are about to change, or (`replaced`) another file is about to take
    /// their place.
    pub(crate) fn discard_seal(&self, replaced: bool) -> io::Result<()> {
        let mut held = self.hold_seal();
        *held |= replaced;
        self.sealed.store(None);
        seal::discard(self.disk(), &self.home.folder, self.base)
    }

    /// Makes the file of an empty segment. A file of that name is a leftover without a batch: nothing at or
    /// beyond the log end is ever ours.
    pub(crate) fn create(
        home: Arc<Home<D>>,
        base: Offset,
        reserve: Option<u64>,
    ) -> Result<Segment<D>, StorageError> {
        let segment = Segment::existing(home, base, 0);
        let path = segment.path(Kind::Log);
        let file = Arc::new(segment.disk().open(&path, OpenMode::Replace).doing("create", &path)?);
        if let Some(bytes) = reserve {
            // An optimisation only: where it is refused, blocks are found at the write.
            let _ = file.reserve(bytes);
        }
        segment.home.dir.handles().put(&segment.log, file);
        segment.start_empty_indexes();
        for kind in [Kind::Index, Kind::TimeIndex] {
            // Kafka's tools expect them beside every segment; a full disk is no reason to have none.
            let _ = segment.empty_index(kind);
        }
        segment.gather_aborted(Vec::new());
        Ok(segment)
    }

    /// Begins the indexes anew, in memory; what the files may say is replaced at the first spill.
    pub(crate) fn start_empty_indexes(&self) {
        *self.indexes.lock() = Indexes::anew();
        self.close_indexes();
    }

    fn disk(&self) -> &D {
        self.home.dir.disk()
    }

    /// Whether bytes read from the file have their CRC checked.
    pub(crate) fn verifies(&self) -> bool {
        self.home.dir.limits().verify_reads
    }

    fn interval(&self) -> u32 {
        self.home.interval.load(Ordering::Relaxed)
    }

    pub(crate) fn base(&self) -> Offset {
        self.base
    }

    pub(crate) fn size(&self) -> u64 {
        self.size.load(Ordering::Acquire)
    }

    /// Lets readers see the file up to `size`.
    pub(crate) fn publish(&self, size: u64) {
        self.size.store(size, Ordering::Release);
    }

    pub(crate) fn path(&self, kind: Kind) -> PathBuf {
        layout::file_path(&self.home.folder, self.base, kind)
    }

    /// The batches' file.
    pub(crate) fn file(&self) -> io::Result<Arc<D::File>> {
        let found = match self.log.opened() {
            Some(file) => Ok(file),
            None => {
                self.home.dir.handles().get(&self.log, self.disk(), &self.path(Kind::Log), OpenMode::Write)
            }
        };
        // Asked last: the files are kept before others get their names, so what was opened meanwhile may be
        // another's.
        self.kept.load().as_ref().map_or(found, |kept| Ok(kept.log()))
    }

    /// The batches' file, if it is open.
    pub(crate) fn file_nowait(&self) -> Option<Arc<D::File>> {
        let found = self.log.opened();
        self.kept.load().as_ref().map_or(found, |kept| Some(kept.log()))
    }

    fn index_file(&self, kind: Kind, mode: OpenMode) -> io::Result<Arc<D::File>> {
        let slot = if kind == Kind::Index { &self.offsets } else { &self.times }.get_or_init(Slot::new);
        let found = self.home.dir.handles().get(slot, self.disk(), &self.path(kind), mode);
        self.kept.load().as_ref().map_or(found, |kept| kept.index(kind))
    }

    /// The data directory.
    pub(crate) fn dir(&self) -> &DataDir<D> {
        &self.home.dir
    }

    /// The log's folder.
    pub(crate) fn folder(&self) -> &std::path::Path {
        &self.home.folder
    }

    /// Closes the files; they open again when needed.
    pub(crate) fn close_files(&self) {
        self.log.close();
        self.close_indexes();
    }

    fn io_error(&self, kind: Kind, source: io::Error) -> ReadError {
        if source.kind() == io::ErrorKind::WouldBlock {
            return ReadError::WouldBlock;
        }
        ReadError::Io { path: self.path(kind), source }
    }

    /// An error of the batches' file.
    pub(crate) fn log_error(&self, source: io::Error) -> ReadError {
        self.io_error(Kind::Log, source)
    }

    pub(crate) fn damaged(&self, position: u64, offset: Offset, reason: String) -> Damaged {
        Damaged { segment: self.path(Kind::Log), position, offset, promised: true, reason }
    }

    fn broken(&self, broken: Broken, offset: Offset) -> ReadError {
        match broken {
            Broken::Io(source) => self.log_error(source),
            Broken::Batch { position, reason } => self.damaged(position, offset, reason).into(),
        }
    }

    // ---- the writer's side ----

    /// Takes a batch that was written at `position` into the indexes.
    pub(crate) fn index(&self, header: &BatchHeader, position: u64) {
        let interval = self.interval();
        let due = {
            let mut indexes = self.indexes.lock();
            indexes.add(header, position, interval);
            let gathered = indexes.offsets.len();
            // A full disk must not be asked again at every batch.
            gathered > 0 && gathered.is_multiple_of(SPILL) && indexes.since == header.bytes as u64
        };
        if due {
            // What cannot be written stays in memory, and is written later or built again.
            let _ = self.spill();
        }
    }

    /// Writes gathered entries to the files; they stay in memory when that fails.
    pub(crate) fn spill(&self) -> io::Result<()> {
        let (offsets, times, offsets_at, times_at, outdated) = {
            let indexes = self.indexes.lock();
            let (offsets, times) = (indexes.offsets.clone(), indexes.times.clone());
            (offsets, times, indexes.offsets_on_file, indexes.times_on_file, indexes.outdated)
        };
        self.spill_entries(Kind::Index, &offsets, offsets_at, outdated)?;
        self.spill_entries(Kind::TimeIndex, &times, times_at, outdated)?;
        let mut indexes = self.indexes.lock();
        indexes.outdated = false;
        indexes.offsets_on_file += offsets.len();
        indexes.offsets.clear();
        indexes.times_on_file += times.len();
        indexes.times.clear();
        Ok(())
    }

    fn spill_entries<E: IndexEntry>(
        &self,
        kind: Kind,
        entries: &[E],
        at: usize,
        outdated: bool,
    ) -> io::Result<()> {
        if outdated {
            self.empty_index(kind)?;
        }
        if entries.is_empty() {
            return Ok(());
        }
        let file = self.index_file(kind, OpenMode::Create)?;
        write_all_at(&*file, &encoded(entries, self.base), (at * E::BYTES) as u64)
    }

    /// Makes an index file that says nothing.
    fn empty_index(&self, kind: Kind) -> io::Result<()> {
        self.close_index(kind);
        let path = self.path(kind);
        match self.disk().open(&path, OpenMode::Replace) {
            // A folder in the file's place is nobody's.
            Err(error) if error.kind() == io::ErrorKind::IsADirectory => {
                self.disk().remove_dir_all(&path)?;
                self.disk().open(&path, OpenMode::Replace).map(drop)
            }
            other => other.map(drop),
        }
    }

    fn close_index(&self, kind: Kind) {
        let slot = if kind == Kind::Index { &self.offsets } else { &self.times };
        if let Some(slot) = slot.get() {
            slot.close();
        }
    }

    pub(crate) fn close_indexes(&self) {
        self.close_index(Kind::Index);
        self.close_index(Kind::TimeIndex);
    }

    /// Makes both index files say nothing, as far as they can be written.
    pub(crate) fn empty_indexes(&self) {
        let _ = self.empty_index(Kind::Index);
        let _ = self.empty_index(Kind::TimeIndex);
    }

    fn remove_index(&self, kind: Kind) {
        self.close_index(kind);
        let path = self.path(kind);
        if self.disk().remove_file(&path).is_err() && self.disk().read_dir(&path).is_ok() {
            let _ = self.disk().remove_dir_all(&path);
        }
    }

    /// Completes the index files: the greatest timestamp is always in the time index of a segment that is no
    /// longer written. Returns what must be flushed. Files that cannot be completed are removed, so that
    /// nobody takes them for whole; the entries stay in memory.
    pub(crate) fn complete_indexes(&self) -> Vec<(PathBuf, Arc<D::File>)> {
        self.indexes.lock().add_time();
        if self.spill().is_err() {
            let mut indexes = self.indexes.lock();
            indexes.ready = false;
            indexes.distrusted = true;
            drop(indexes);
            self.remove_index(Kind::Index);
            self.remove_index(Kind::TimeIndex);
            return Vec::new();
        }
        let (any_offsets, any_times) = {
            let mut indexes = self.indexes.lock();
            indexes.offsets.shrink_to_fit();
            indexes.times.shrink_to_fit();
            (indexes.offsets_on_file > 0, indexes.times_on_file > 0)
        };
        [(Kind::Index, any_offsets), (Kind::TimeIndex, any_times)]
            .into_iter()
            .filter(|(_, any)| *any)
            .filter_map(|(kind, _)| Some((self.path(kind), self.index_file(kind, OpenMode::Write).ok()?)))
            .collect()
    }

    /// Entries in the larger of the two indexes, in bytes as the larger entry counts.
    pub(crate) fn index_bytes(&self) -> u64 {
        let indexes = self.indexes.lock();
        let offsets = (indexes.offsets_on_file + indexes.offsets.len()) * OffsetEntry::BYTES;
        let times = (indexes.times_on_file + indexes.times.len()) * TimeEntry::BYTES;
        offsets.max(times) as u64
    }

    /// Cuts the indexes back to what lies before `size`.
    pub(crate) fn cut_indexes(&self, size: u64) -> Result<(), ReadError> {
        // The greatest timestamp may have gone with the cut, so the batches decide.
        self.start_empty_indexes();
        let file = self.file().map_err(|error| self.log_error(error))?;
        let built = self.build(&*file, size, self.interval())?;
        *self.indexes.lock() = built;
        self.spill().map_err(|error| self.io_error(Kind::Index, error))
    }

    fn build(&self, file: &D::File, size: u64, interval: u32) -> Result<Indexes, ReadError> {
        let mut indexes = Indexes::anew();
        let mut walk = Walk::new(file, 0, size, self.base);
        let mut next = self.base;
        while let Some(step) = walk.next_header().map_err(|broken| self.broken(broken, next))? {
            next = step.header.next_offset();
            indexes.add(&step.header, step.position, interval);
        }
        Ok(indexes)
    }

    /// Builds the indexes of a short segment from its batches, in memory; returns the last batch, the checksum that
    /// the batches' own make, and whether a transaction was aborted in it.
    pub(crate) fn build_in_memory(&self) -> Result<(Option<BatchHeader>, Running, bool), Broken> {
        self.start_empty_indexes();
        let file = self.file()?;
        let mut walk = Walk::new(&*file, 0, self.size(), self.base);
        let mut last: Option<BatchHeader> = None;
        let mut indexes = Indexes::anew();
        let mut running = Running::new();
        let mut aborts = false;
        while let Some(step) = walk.next_checked()? {
            indexes.add(&step.header, step.position, self.interval());
            let due = last.map_or(self.base, |last| last.next_offset());
            let batch = walk.batch(&step)?;
            running.add(&step.header, batch, due);
            aborts |=
                Marker::of(&step.header, batch).is_some_and(|marker| marker.end == TransactionEnd::Abort);
            last = Some(step.header);
        }
        *self.indexes.lock() = indexes;
        Ok((last, running, aborts))
    }

    /// Adopts the index files of a segment that was closed properly and will be written again, given the
    /// position up to which they are complete and the greatest timestamp up to there.
    pub(crate) fn adopt_indexes(&self, offsets: usize, times: usize, max: Option<TimeEntry>) {
        *self.indexes.lock() = Indexes {
            ready: true,
            offsets_on_file: offsets,
            times_on_file: times,
            max,
            indexed_time: max.map(|max| max.timestamp),
            ..Indexes::default()
        };
    }

    /// Bytes since the last index entry, for [`Segment::adopt_indexes`].
    pub(crate) fn adopt_since(&self, header: &BatchHeader) {
        let mut indexes = self.indexes.lock();
        indexes.since += header.bytes as u64;
        if dates(header) && indexes.max.is_none_or(|max| header.max_timestamp > max.timestamp) {
            indexes.max = Some(TimeEntry { timestamp: header.max_timestamp, offset: header.last_offset() });
        }
    }

    /// Where an earlier read that ended before `offset` left off.
    pub(crate) fn hint(&self, offset: Offset) -> Option<u64> {
        let wanted = u32::try_from(offset - self.base).ok()?;
        self.hints.iter().find_map(|hint| {
            let hint = hint.load(Ordering::Relaxed);
            let position = hint & u64::from(u32::MAX);
            (hint >> 32 == u64::from(wanted) && position > 0).then_some(position)
        })
    }

    /// Remembers that the batch at `position` is the first at or behind `offset`.
    pub(crate) fn set_hint(&self, offset: Offset, position: u64) {
        let (Ok(relative), Ok(position)) = (u32::try_from(offset - self.base), u32::try_from(position))
        else {
            return;
        };
        let at = self.next_hint.fetch_add(1, Ordering::Relaxed) % self.hints.len();
        self.hints[at].store(u64::from(relative) << 32 | u64::from(position), Ordering::Relaxed);
    }

    /// Forgets where readers were: the file was cut.
    pub(crate) fn clear_hints(&self) {
        for hint in &self.hints {
            hint.store(0, Ordering::Relaxed);
        }
    }
}
