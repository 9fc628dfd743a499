//! One partition's log: one writer ([`Log`]), any number of readers ([`LogReader`]).
//!
//! What both share is published without locks: the list of segments, the size of the one being written, log
//! start and log end. A reader takes them in the opposite order to the one the writer publishes them in, so
//! that whatever lies below the end it saw can be found. A cut (truncation) raises a counter; a reader that
//! sees it changed reads again.

use std::path::PathBuf;
use std::sync::Arc;
use std::sync::atomic::{AtomicBool, AtomicI64, AtomicU32, AtomicU64, Ordering};

use arc_swap::ArcSwap;
use bytes::Bytes;
pub use felix_protocol::batch::scan::Found;
use felix_protocol::generation_map::GenerationMap;
use felix_protocol::ids::{Generation, Offset, PartitionId};
use felix_protocol::time::WallTime;
use parking_lot::{Mutex, RwLock};

use crate::compaction::Progress;
use crate::config::LogConfig;
use crate::data_dir::DataDir;
use crate::disk::{Disk, OpenMode, write_all_at};
use crate::error::{Damaged, Doing, FlushError, ReadError, StorageError};
use crate::flush::{Dirty, FlushJob, Held, SideWrite};
use crate::layout::{self, Kind};
use crate::producers::{Producers, snapshot};
use crate::seal::{Running, Seal};
use crate::segment::{Home, Segment};
use crate::tail::Tail;

/// A last segment up to this size is read when its log is opened rather than described by side files: an open
/// costs one read instead of three, and a stop nothing.
const SHORT: u64 = 64 << 10;

mod aborted;
mod append;
mod compact;
mod decided;
mod fill;
mod load;
mod lookup;
mod read;
mod retention;
mod roll;
mod sealed;
mod truncate;

#[cfg(test)]
mod tests;

use compact::Claim;
use decided::Decided;
pub use read::LogReader;
pub(crate) use retention::delete_folder;
pub use retention::{Deleted, Retired};

/// What is known, from the table of copies, about a log that is opened.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq)]
pub struct Recovered {
    /// Closed properly: trust the files, read no sealed data.
    pub clean: bool,
    /// The mark: whatever is missing below it is damage.
    pub mark: Offset,
    /// First offset that readers may have.
    pub log_start: Offset,
    /// Everything below was flushed ([`crate::Replica::synced`]).
    pub synced: Offset,
    /// Allows cutting a tail that a power loss left ambiguous: unreadable, above mark and `synced`, with
    /// readable batches behind it; and opening although what was promised is damaged: that is left as it is, and the
    /// log goes on behind it. The caller gave the copy a new log id.
    pub cut_ambiguous: bool,
    /// The newest generation that was ever accepted. With `cut_ambiguous`, a batch of a newer one is damaged: whoever
    /// decides about generations has not given it away.
    pub accepted: Option<Generation>,
    /// It was ready to take records once: its folder and its first segment were durable before that. Records may have
    /// been acknowledged since of which the table does not say yet, so a log whose folder is not there, or has lost
    /// all segments while the log start was 0, is [`StorageError::Missing`], also where nothing is known to be promised.
    pub made: bool,
}

/// A side file, derived from the log.
#[derive(Clone, Copy, Debug, PartialEq, Eq, PartialOrd, Ord)]
pub enum SideFile {
    /// `.index`.
    OffsetIndex,
    /// `.timeindex`.
    TimeIndex,
    /// `.snapshot`.
    ProducerSnapshot,
    /// `.seal`.
    Seal,
    /// `leader-epoch-checkpoint`.
    GenerationMap,
}

/// What opening a log found and did.
#[derive(Clone, Debug, Default, PartialEq, Eq)]
pub struct LoadReport {
    /// Bytes whose CRC was checked.
    pub scanned_bytes: u64,
    /// Bytes cut off behind the last whole batch.
    pub cut_bytes: u64,
    /// Side files that were missing or wrong, and rebuilt.
    pub rebuilt: Vec<SideFile>,
    /// What is damaged or gone in the log although it was promised: reads of it fail, everything else goes on. The
    /// caller gives the copy a new log id, unless it has done so already.
    pub damage: Vec<Damaged>,
}

/// What an append did.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub struct Appended {
    /// Offset of the first record.
    pub base_offset: Offset,
    /// Offset of the last record.
    pub last_offset: Offset,
    /// Log end now.
    pub end: Offset,
    /// Bytes written.
    pub bytes: usize,
    /// A new segment was begun for it.
    pub rolled: bool,
}

/// Batches read, in stored form.
#[derive(Clone, Debug, Default)]
pub struct Read {
    /// Whole batches, in order; a batch may be spread over two slices.
    pub slices: Vec<Bytes>,
    /// Bytes in all slices.
    pub bytes: usize,
    /// Memory that the slices keep: they may be parts of larger buffers.
    pub held: usize,
    /// Where to read on: one past the last batch, or the offset asked for when nothing was read.
    pub next: Offset,
}

/// What the writer and its readers share.
pub(crate) struct Shared<D: Disk> {
    pub(crate) home: Arc<Home<D>>,
    pub(crate) segments: ArcSwap<Vec<Arc<Segment<D>>>>,
    pub(crate) start: AtomicI64,
    pub(crate) end: AtomicI64,
    /// How often the log was cut.
    pub(crate) cuts: AtomicU64,
    pub(crate) bytes: AtomicU64,
    pub(crate) gone: AtomicBool,
    pub(crate) generations: RwLock<GenerationMap>,
    pub(crate) tail: Arc<Tail>,
}

impl<D: Disk> Drop for Shared<D> {
    fn drop(&mut self) {
        self.tail.clear(self.home.dir.tail());
    }
}

/// The writer of a log.
pub struct Log<D: Disk> {
    shared: Arc<Shared<D>>,
    config: LogConfig,
    generations: GenerationMap,
    producers: Producers,
    active: Arc<Segment<D>>,
    /// Bytes in the active segment.
    position: u64,
    end: Offset,
    /// When the active segment was made.
    active_since: WallTime,
    /// Timestamp of the active segment's first batch, when it was looked up.
    first_timestamp: Option<i64>,
    /// By how much the active segment's time is shortened.
    jitter_ms: i64,
    /// Transactions decided lately.
    decided: Decided,
    /// Segments that end here or below are flushed with all their side files.
    closed: Offset,
    /// How far it is compacted.
    progress: Progress,
    /// What a round of compaction is about to put in place.
    claim: Option<Claim>,
    /// A failed write left bytes behind the end, and they could not be cut yet.
    ragged: bool,
    /// The checksum of the active segment; unknown where it was cut, or adopted without its seal.
    running: Option<Running>,
    /// The last segment's files beside the batches lag behind what is in memory.
    touched: bool,
    pending: Pending<D>,
    /// Everything below is flushed.
    durable: Offset,
    /// Everything below is flushed, side files that recovery needs included.
    synced: Offset,
    poisoned: bool,
}

/// What is not durable yet, and what is being made so.
struct Pending<D: Disk> {
    dirty: Vec<Dirty<D>>,
    /// The active segment is among `dirty`.
    active_dirty: bool,
    side: Vec<SideWrite>,
    folders: Vec<PathBuf>,
    /// The generation map changed since it was written.
    map_changed: bool,
    /// The file lacks what it should have by now: nothing more is taken for recoverable before that is made
    /// good.
    map_owed: bool,
    /// A job is out.
    running: bool,
    /// Where the active segment began when it was given out.
    closing: Offset,
    side_failed: Arc<AtomicBool>,
}

impl<D: Disk> Default for Pending<D> {
    fn default() -> Self {
        Pending {
            dirty: Vec::new(),
            active_dirty: false,
            side: Vec::new(),
            folders: Vec::new(),
            map_changed: false,
            map_owed: false,
            running: false,
            closing: 0,
            side_failed: Arc::default(),
        }
    }
}

impl<D: Disk> Log<D> {
    /// Makes an empty log that begins at `start` (0 but for a copy bootstrapped from a peer). It is durable
    /// after its first [`Log::flush_job`].
    pub fn create(
        dir: &DataDir<D>,
        partition: PartitionId,
        config: LogConfig,
        start: Offset,
        now: WallTime,
    ) -> Result<Log<D>, StorageError> {
        let folder = dir.folder(&partition);
        match dir.disk().create_dir(&folder) {
            Ok(()) => {}
            Err(error) if error.kind() == std::io::ErrorKind::AlreadyExists => {
                return Err(StorageError::Exists(folder));
            }
            Err(error) => return Err(StorageError::io("create", &folder, error)),
        }
        let home = home(dir, partition, &config);
        let made = Self::begin(home, config, start, now);
        if made.is_err() {
            // Half a folder must not stand in the way of the next attempt.
            let _ = dir.disk().remove_dir_all(&folder);
        }
        made
    }

    /// The first segment of an empty folder.
    fn begin(
        home: Arc<Home<D>>,
        config: LogConfig,
        start: Offset,
        now: WallTime,
    ) -> Result<Log<D>, StorageError> {
        let disk = home.dir.disk().clone();
        let mut pending = Pending::default();
        let metadata = home.folder.join(layout::PARTITION_METADATA);
        let text = layout::format_partition_metadata(home.partition.topic);
        let file = disk.open(&metadata, OpenMode::Replace).doing("create", &metadata)?;
        // Not flushed: nothing trusts it, and an open makes it again.
        write_all_at(&file, text.as_bytes(), 0).doing("write", &metadata)?;
        let active = Segment::create(home.clone(), start, reserve(&config))?;
        pending.folders.push(home.dir.path().to_path_buf());
        pending.folders.push(home.folder.clone());
        let mut log = Log::assemble(home, config, vec![Arc::new(active)], start, now);
        (log.durable, log.synced) = (start, start);
        log.pending = pending;
        Ok(log)
    }

    fn assemble(
        home: Arc<Home<D>>,
        config: LogConfig,
        segments: Vec<Arc<Segment<D>>>,
        end: Offset,
        now: WallTime,
    ) -> Log<D> {
        let bytes = segments.iter().map(|segment| segment.size()).sum();
        let start = segments.first().map_or(end, |first| first.base());
        // A log always has at least one segment.
        let active =
            segments.last().cloned().unwrap_or_else(|| Arc::new(Segment::existing(home.clone(), end, 0)));
        let jitter_ms = roll::jitter(&home.partition, active.base(), config.segment_jitter_ms);
        let position = active.size();
        let shared = Arc::new(Shared {
            home,
            segments: ArcSwap::from_pointee(segments),
            start: AtomicI64::new(start),
            end: AtomicI64::new(end),
            cuts: AtomicU64::new(0),
            bytes: AtomicU64::new(bytes),
            gone: AtomicBool::new(false),
            generations: RwLock::default(),
            tail: Tail::new(),
        });
        Log {
            shared,
            config,
            generations: GenerationMap::default(),
            producers: Producers::default(),
            active,
            position,
            end,
            active_since: now,
            first_timestamp: None,
            jitter_ms,
            decided: Decided::default(),
            closed: 0,
            progress: Progress::default(),
            claim: None,
            ragged: false,
            running: (position == 0).then(Running::new),
            touched: false,
            pending: Pending::default(),
            durable: 0,
            synced: 0,
            poisoned: false,
        }
    }

    /// The partition.
    pub fn partition(&self) -> PartitionId {
        self.shared.home.partition
    }

    /// First offset that readers may have.
    pub fn start(&self) -> Offset {
        self.shared.start.load(Ordering::Relaxed)
    }

    /// One past the last record.
    pub fn end(&self) -> Offset {
        self.end
    }

    /// Everything below is flushed: what acknowledgements rest on.
    pub fn durable(&self) -> Offset {
        self.durable
    }

    /// Everything below is flushed, and recovery may trust it; goes to [`crate::Replica::synced`]. It stays
    /// behind [`Log::durable`] while a side file cannot be written (a full disk, say).
    pub fn synced(&self) -> Offset {
        self.synced
    }

    /// Bytes in all segments.
    pub fn size_bytes(&self) -> u64 {
        self.shared.bytes.load(Ordering::Relaxed)
    }

    /// Takes over a map that knows generations of which no record here tells: a leader's, for the range that was copied
    /// from it. Durable with the next flush.
    pub fn adopt_generations(&mut self, map: GenerationMap) {
        self.generations = map;
        self.pending.map_changed = true;
        self.publish_map();
    }

    /// Which generation wrote which offsets.
    pub fn generations(&self) -> &GenerationMap {
        &self.generations
    }

    /// The producers.
    pub fn producers(&self) -> &Producers {
        &self.producers
    }

    /// The settings in force.
    pub fn config(&self) -> &LogConfig {
        &self.config
    }

    /// Changes the settings from the next append on.
    pub fn set_config(&mut self, config: LogConfig) {
        self.shared.home.interval.store(config.index_interval_bytes, Ordering::Relaxed);
        self.jitter_ms =
            roll::jitter(&self.shared.home.partition, self.active.base(), config.segment_jitter_ms);
        self.config = config;
    }

    /// A reader; clones of it are cheap.
    pub fn reader(&self) -> LogReader<D> {
        LogReader::new(self.shared.clone())
    }

    /// Whether everything below the end is durable.
    pub fn is_flushed(&self) -> bool {
        let pending = &self.pending;
        !pending.running && pending.dirty.is_empty() && pending.folders.is_empty() && pending.side.is_empty()
    }

    /// What is not durable; `None` when everything is, or while an earlier job has not been reported by
    /// [`Log::flushed`].
    pub fn flush_job(&mut self) -> Option<FlushJob<D>> {
        if self.pending.running || self.poisoned {
            return None;
        }
        // Not on its own: a disk that refuses the map would be asked again and again.
        let anything = !(self.pending.dirty.is_empty() && self.pending.folders.is_empty());
        if self.pending.map_owed && anything {
            self.stage_map();
        }
        let pending = &mut self.pending;
        if pending.dirty.is_empty() && pending.folders.is_empty() && pending.side.is_empty() {
            return None;
        }
        pending.running = true;
        pending.closing = self.active.base();
        pending.active_dirty = false;
        pending.side_failed = Arc::default();
        Some(self.take_job())
    }

    fn take_job(&mut self) -> FlushJob<D> {
        let pending = &mut self.pending;
        FlushJob {
            dir: self.shared.home.dir.clone(),
            folder: self.shared.home.folder.clone(),
            end: self.end,
            dirty: std::mem::take(&mut pending.dirty),
            side: std::mem::take(&mut pending.side),
            folders: std::mem::take(&mut pending.folders),
            side_failed: pending.side_failed.clone(),
        }
    }

    /// Reports the outcome of the job. After a failure the log takes nothing more
    /// ([`StorageError::Poisoned`]).
    pub fn flushed(&mut self, outcome: &Result<Offset, FlushError>) {
        self.pending.running = false;
        match outcome {
            Ok(end) => {
                // A cut may have come in between.
                let end = (*end).min(self.end);
                self.durable = self.durable.max(end);
                self.pending.map_owed |= self.pending.side_failed.load(Ordering::Relaxed);
                // Without the map, recovery must scan from where it had to before; it is written with a later
                // flush.
                if !self.pending.map_owed {
                    self.synced = self.synced.max(end);
                    self.closed = self.closed.max(self.pending.closing);
                }
            }
            Err(_) => self.poisoned = true,
        }
    }

    /// Whether a flush of this log failed.
    pub fn is_poisoned(&self) -> bool {
        self.poisoned
    }

    /// Forgets producers that have been idle for `producer.id.expiration.ms`.
    pub fn expire_producers(&mut self, now: WallTime) {
        self.producers.expire(now, self.config.producer_expiry_ms);
    }

    /// Ends writing: completes the side files and gives the job after which the copy may be marked clean. No
    /// flush job may be out.
    pub fn close_clean(mut self, now: WallTime) -> Result<FlushJob<D>, StorageError> {
        if self.poisoned || self.pending.running {
            return Err(StorageError::Poisoned);
        }
        self.producers.expire(now, self.config.producer_expiry_ms);
        self.cut_ragged()?;
        let short = self.position <= SHORT;
        if self.touched {
            // Of a short segment they are for Kafka's tools alone: an open reads the batches, so no flush is
            // spent on them.
            let indexes = self.active.complete_indexes();
            if !short {
                self.mark_others_dirty(indexes);
                if let Some(running) = self.running.take() {
                    self.stage_seal(&running.sealed(Seal {
                        open: true,
                        aborted: !self.active.gathered_aborted().is_empty(),
                        ..running.seal(self.active.base(), self.end, false)
                    }));
                }
            }
        }
        self.stage_map();
        let active = self.active.clone();
        self.stage_aborted(&active);
        self.stage_last_snapshot(short);
        Ok(self.take_job())
    }

    /// The producers as of the end, unless a file says so already or there is nothing to say.
    fn stage_last_snapshot(&mut self, short: bool) {
        let name = layout::file_name(self.end, Kind::Snapshot);
        if short && self.producers.is_empty() {
            // Where there is little to read, nobody needs to be told that there are no producers but Kafka's
            // tools.
            if self.touched && self.position > 0 {
                let content = snapshot::encode(&self.producers);
                let path = self.folder().join(name);
                let written = self
                    .disk()
                    .open(&path, OpenMode::Replace)
                    .and_then(|file| write_all_at(&file, &content, 0));
                if written.is_err() {
                    let _ = self.disk().remove_file(&path);
                }
            }
            return;
        }
        if !self.snapshot_is_current(&name) {
            self.pending.side.push(SideWrite { name, content: snapshot::encode(&self.producers) });
        }
    }

    /// Whether a snapshot at the end says what we know already: an idle log restarts without a write.
    fn snapshot_is_current(&self, name: &str) -> bool {
        let path = self.shared.home.folder.join(name);
        let wanted = snapshot::encode(&self.producers);
        crate::disk::read_whole(self.shared.home.dir.disk(), &path, crate::data_dir::SIDE_FILE_LIMIT)
            .is_ok_and(|found| found == wanted)
    }

    /// Puts the generation map among the side files of the next flush, if the file does not have it.
    fn stage_map(&mut self) {
        if !(self.pending.map_changed || self.pending.map_owed) {
            return;
        }
        self.pending.map_changed = false;
        self.pending.map_owed = false;
        let content = layout::format_epoch_checkpoint(&self.generations).into_bytes();
        self.pending.side.retain(|side| side.name != layout::EPOCH_CHECKPOINT);
        self.pending.side.push(SideWrite { name: layout::EPOCH_CHECKPOINT.to_string(), content });
    }

    /// Marks the active segment as holding bytes that are not durable.
    fn mark_dirty(&mut self, file: Arc<D::File>) {
        if !self.pending.active_dirty {
            self.pending.active_dirty = true;
            let held = Held::new(&self.shared.home.dir, file);
            self.pending.dirty.push(Dirty::Segment(self.active.clone(), held));
        }
    }

    /// Marks side files as holding bytes that are not durable.
    fn mark_others_dirty(&mut self, files: Vec<(PathBuf, Arc<D::File>)>) {
        let dir = &self.shared.home.dir;
        let dirty = files.into_iter().map(|(path, file)| Dirty::Other(path, Held::new(dir, file)));
        self.pending.dirty.extend(dirty);
    }

    fn publish_map(&self) {
        self.shared.generations.write().clone_from(&self.generations);
    }

    fn folder(&self) -> &std::path::Path {
        &self.shared.home.folder
    }

    fn disk(&self) -> &D {
        self.shared.home.dir.disk()
    }

    pub(crate) fn segments(&self) -> Arc<Vec<Arc<Segment<D>>>> {
        self.shared.segments.load_full()
    }
}

/// A reader's error where a writer met it.
fn of_reading(error: ReadError) -> StorageError {
    match error {
        ReadError::Damaged(damaged) => StorageError::Damaged(damaged),
        ReadError::Io { path, source } => StorageError::io("read", &path, source),
        ReadError::WouldBlock
        | ReadError::Gone
        | ReadError::BelowStart { .. }
        | ReadError::BeyondEnd { .. } => StorageError::Poisoned,
    }
}

fn home<D: Disk>(dir: &DataDir<D>, partition: PartitionId, config: &LogConfig) -> Arc<Home<D>> {
    Arc::new(Home {
        dir: dir.clone(),
        folder: dir.folder(&partition),
        partition,
        interval: AtomicU32::new(config.index_interval_bytes),
        given_up: Mutex::new(false),
    })
}

/// Blocks to reserve for a new segment.
fn reserve(config: &LogConfig) -> Option<u64> {
    config.preallocate.then_some(config.segment_bytes)
}
