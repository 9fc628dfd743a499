//! One partition's log: one writer ([`Log`]), any number of readers ([`LogReader`]).
//!
//! SIGNATURES FIRST: bodies follow in the next commits.
use std::marker::PhantomData;

use bytes::Bytes;
use felix_protocol::batch::CheckedBatch;
use felix_protocol::generation_map::{GenerationEnd, GenerationMap};
use felix_protocol::ids::{Generation, Offset, PartitionId};
use felix_protocol::time::WallTime;

use crate::config::LogConfig;
use crate::data_dir::DataDir;
use crate::disk::Disk;
use crate::error::{FlushError, ReadError, StorageError};
use crate::flush::FlushJob;
use crate::producers::Producers;

/// What is known, from the table of copies, about a log that is opened.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
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
    /// readable batches behind it. The caller gave the copy a new log id.
    pub cut_ambiguous: bool,
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
    /// `leader-epoch-checkpoint`.
    GenerationMap,
    /// `partition.metadata`.
    Metadata,
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
    /// Where to read on: one past the last batch, or the offset asked for when nothing was read.
    pub next: Offset,
}

/// A record found by its timestamp.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub struct Found {
    /// Its offset.
    pub offset: Offset,
    /// Its timestamp.
    pub timestamp: i64,
    /// The generation that stored it.
    pub generation: Option<Generation>,
}

/// Segments that left the log. Two steps, both free to run on another thread: [`Retired::hide`] once the new
/// log start is durable in [`crate::Replicas`], [`Retired::remove`] at or after `not_before`. A crash in
/// between leaves files that the next open removes.
pub struct Retired<D: Disk> {
    /// Log start now.
    pub start: Offset,
    /// How many segments left.
    pub segments: usize,
    /// How many bytes they hold.
    pub bytes: u64,
    /// When to remove them for good.
    pub not_before: WallTime,
    disk: PhantomData<D>,
}

impl<D: Disk> Retired<D> {
    /// Whether nothing left.
    pub fn is_empty(&self) -> bool {
        self.segments == 0
    }

    /// Renames the files, so that no later open takes them for the log's.
    pub fn hide(&mut self) -> Result<(), StorageError> {
        Ok(())
    }

    /// Removes the files.
    pub fn remove(self) -> Result<(), StorageError> {
        Ok(())
    }
}

/// A deleted log: its folder has another name already; [`Deleted::remove`] frees the space.
pub struct Deleted<D: Disk> {
    disk: PhantomData<D>,
}

impl<D: Disk> Deleted<D> {
    /// Removes the folder and all that is in it.
    pub fn remove(self) -> Result<(), StorageError> {
        Ok(())
    }
}

/// The writer of a log.
pub struct Log<D: Disk> {
    disk: PhantomData<D>,
    generations: GenerationMap,
    producers: Producers,
    config: LogConfig,
    partition: PartitionId,
}

impl<D: Disk> Log<D> {
    /// Makes an empty log that begins at `start` (0 but for a copy bootstrapped from a peer).
    pub fn create(
        _dir: &DataDir<D>,
        _partition: PartitionId,
        _config: LogConfig,
        _start: Offset,
        _now: WallTime,
    ) -> Result<Log<D>, StorageError> {
        Err(StorageError::Poisoned)
    }

    /// Opens an existing log. Unless [`Recovered::clean`], [`Log::flush_job`] then covers every byte that
    /// was not known to be flushed: run it before any end is answered.
    pub fn open(
        _dir: &DataDir<D>,
        _partition: PartitionId,
        _config: LogConfig,
        _recovered: Recovered,
        _now: WallTime,
    ) -> Result<(Log<D>, LoadReport), StorageError> {
        Err(StorageError::Poisoned)
    }

    /// Appends a producer's batch at the end, as of `generation`. Does not look at its sequences:
    /// [`Producers::check`] does, before.
    pub fn append(
        &mut self,
        batch: &CheckedBatch,
        generation: Generation,
        now: WallTime,
    ) -> Result<Appended, StorageError> {
        let frame_bytes = batch.bytes().len();
        self.append_if(batch, generation, now, frame_bytes, || true)
    }

    /// [`Log::append`] with a last question asked just before the bytes are written ("do I still hold the
    /// lease?"), and with the size of the buffer that the batch is a slice of, so that the memory tail does
    /// not pin a large buffer for a small batch.
    pub fn append_if(
        &mut self,
        _batch: &CheckedBatch,
        _generation: Generation,
        _now: WallTime,
        _frame_bytes: usize,
        _admit: impl FnOnce() -> bool,
    ) -> Result<Appended, StorageError> {
        Err(StorageError::Poisoned)
    }

    /// Appends a batch that carries its offsets and generation already (a follower's append).
    pub fn append_stored(&mut self, _batch: &CheckedBatch, _now: WallTime) -> Result<Appended, StorageError> {
        Err(StorageError::Poisoned)
    }

    /// The partition.
    pub fn partition(&self) -> PartitionId {
        self.partition
    }

    /// First offset that readers may have.
    pub fn start(&self) -> Offset {
        0
    }

    /// One past the last record.
    pub fn end(&self) -> Offset {
        0
    }

    /// Everything below is flushed; goes to [`crate::Replica::synced`].
    pub fn synced(&self) -> Offset {
        0
    }

    /// Bytes in all segments.
    pub fn size_bytes(&self) -> u64 {
        0
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
        self.config = config;
    }

    /// A reader; clones of it are cheap.
    pub fn reader(&self) -> LogReader<D> {
        LogReader { disk: PhantomData }
    }

    /// What is not durable; `None` when everything is, or while an earlier job has not been reported by
    /// [`Log::flushed`].
    pub fn flush_job(&mut self) -> Option<FlushJob<D>> {
        None
    }

    /// Reports the outcome of the job. After a failure the log takes nothing more
    /// ([`StorageError::Poisoned`]).
    pub fn flushed(&mut self, _outcome: &Result<Offset, FlushError>) {}

    /// Begins a new segment when the active one is due by time. Returns whether it did.
    pub fn roll_if_due(&mut self, _now: WallTime) -> Result<bool, StorageError> {
        Ok(false)
    }

    /// Applies retention by size, time and log start; nothing at or above `mark` goes.
    pub fn retain(&mut self, _mark: Offset, _now: WallTime) -> Result<Retired<D>, StorageError> {
        Err(StorageError::Poisoned)
    }

    /// Moves the log start up to exactly `to` (DeleteRecords). Lower values change nothing.
    pub fn advance_start(&mut self, _to: Offset) -> Result<Offset, StorageError> {
        Ok(0)
    }

    /// Cuts the log to end at `to`, or before the batch that `to` lies inside of; durable on return. Returns
    /// the new end.
    pub fn truncate(&mut self, _to: Offset, _now: WallTime) -> Result<Offset, StorageError> {
        Ok(0)
    }

    /// Forgets producers that have been idle for `producer.id.expiration.ms`.
    pub fn expire_producers(&mut self, _now: WallTime) {}

    /// Ends writing: completes the side files and gives the job after which the copy may be marked clean.
    pub fn close_clean(self, _now: WallTime) -> Result<FlushJob<D>, StorageError> {
        Err(StorageError::Poisoned)
    }

    /// Renames the folder away, durably; readers find the log gone.
    pub fn delete(self) -> Result<Deleted<D>, StorageError> {
        Err(StorageError::Poisoned)
    }
}

/// Reads a log while it is written. No call waits for the writer or for a flush.
pub struct LogReader<D: Disk> {
    disk: PhantomData<D>,
}

impl<D: Disk> Clone for LogReader<D> {
    fn clone(&self) -> Self {
        LogReader { disk: PhantomData }
    }
}

impl<D: Disk> LogReader<D> {
    /// First offset that readers may have.
    pub fn start(&self) -> Offset {
        0
    }

    /// One past the last record.
    pub fn end(&self) -> Offset {
        0
    }

    /// Bytes in all segments.
    pub fn size_bytes(&self) -> u64 {
        0
    }

    /// Whole batches from the one that contains `from` on, none that reaches to or past `limit`, at most
    /// `max_bytes` of them; with `at_least_one` the first comes even when it alone is larger.
    pub fn read(
        &self,
        _from: Offset,
        _max_bytes: usize,
        _limit: Offset,
        _at_least_one: bool,
    ) -> Result<Read, ReadError> {
        Err(ReadError::Gone)
    }

    /// The same, but [`ReadError::WouldBlock`] rather than wait for the device.
    pub fn read_nowait(
        &self,
        _from: Offset,
        _max_bytes: usize,
        _limit: Offset,
        _at_least_one: bool,
    ) -> Result<Read, ReadError> {
        Err(ReadError::Gone)
    }

    /// Whether a read at `from` would be served from memory.
    pub fn in_memory(&self, _from: Offset) -> bool {
        false
    }

    /// The first record below `limit`, in log order, whose timestamp is at least `timestamp`.
    pub fn offset_for_timestamp(&self, _timestamp: i64, _limit: Offset) -> Result<Option<Found>, ReadError> {
        Ok(None)
    }

    /// The first record below `limit` that has the greatest timestamp.
    pub fn max_timestamp(&self, _limit: Offset) -> Result<Option<Found>, ReadError> {
        Ok(None)
    }

    /// Where a generation ended (OffsetForLeaderEpoch).
    pub fn generation_end(&self, _asked: Generation) -> Option<GenerationEnd> {
        None
    }

    /// Which generation wrote `offset`.
    pub fn generation_at(&self, _offset: Offset) -> Option<Generation> {
        None
    }

    /// Which generation wrote which offsets, now.
    pub fn generations(&self) -> GenerationMap {
        GenerationMap::default()
    }
}
