use std::path::{Path, PathBuf};

use bytes::Bytes;
use felix_protocol::batch::scan::Batches;
use felix_protocol::batch::{BatchBuilder, CheckedBatch, Codec};
use felix_protocol::ids::{Generation, Offset, PartitionId, TopicId, Uuid};
use felix_protocol::time::WallTime;

use super::*;
use crate::config::Limits;
use crate::disk::mem::{Crash, MemDisk};
use crate::disk::read_whole;
use crate::flush::{FlushMode, Flusher};

mod aborted;
mod append;
mod compaction;
mod damage;
mod files;
mod filling;
mod flushing;
mod fuzzed;
mod holes;
mod model;
mod page;
mod readers;
mod recovery;
mod retaining;
mod scrubbing;
mod sealed_reads;
mod sealing;
mod starting;
mod timestamps;
mod verifying;

const NOW: WallTime = WallTime(1_000_000);

fn generation(number: u32) -> Generation {
    Generation::new(number).unwrap()
}

fn partition() -> PartitionId {
    PartitionId { topic: TopicId(Uuid::from_u128(0x1234_5678_9abc_def0_1111_2222_3333_4444)), index: 0 }
}

fn data_dir(disk: &MemDisk) -> DataDir<MemDisk> {
    limited(disk, Limits::default())
}

fn limited(disk: &MemDisk, limits: Limits) -> DataDir<MemDisk> {
    DataDir::open(disk.clone(), Path::new("/data"), limits).unwrap()
}

/// Nothing stays in memory: every read is of the files.
fn without_tail(disk: &MemDisk) -> DataDir<MemDisk> {
    limited(disk, Limits { tail_bytes: 0, ..Limits::default() })
}

/// Small segments and dense indexes, so that few batches make many of each.
fn small() -> LogConfig {
    LogConfig {
        segment_bytes: 2_000,
        index_interval_bytes: 300,
        retention_ms: None,
        file_delete_delay_ms: 10,
        ..LogConfig::default()
    }
}

fn create(disk: &MemDisk, config: LogConfig) -> Log<MemDisk> {
    Log::create(&data_dir(disk), partition(), config, 0, NOW).unwrap()
}

fn folder() -> PathBuf {
    Path::new("/data").join(partition().to_string())
}

fn in_folder(offset: Offset, kind: Kind) -> PathBuf {
    layout::file_path(&folder(), offset, kind)
}

/// A batch of `records` records of `size` bytes each, whose timestamps rise by one from `from`.
fn batch(records: i64, size: usize, from: i64) -> CheckedBatch {
    let mut builder = BatchBuilder::new();
    for at in 0..records {
        let fill = u8::try_from((from + at) & 0xFF).unwrap();
        builder.push(from + at, None, Some(&vec![fill; size]));
    }
    builder.build().unwrap()
}

/// A batch of an idempotent producer.
fn numbered(producer: i64, epoch: i16, sequence: i32, records: i64) -> CheckedBatch {
    let mut builder = BatchBuilder::new().producer(producer, epoch, sequence);
    for at in 0..records {
        builder.push(500 + at, None, Some(b"value"));
    }
    builder.build().unwrap()
}

fn append(log: &mut Log<MemDisk>, batch: &CheckedBatch) -> Appended {
    log.append(batch, generation(1), NOW).unwrap()
}

fn flush(log: &mut Log<MemDisk>) {
    while let Some(job) = log.flush_job() {
        let outcome = job.run();
        log.flushed(&outcome);
        outcome.unwrap();
    }
}

/// How the table of copies would describe a log that is stopped now.
fn stopped(log: &Log<MemDisk>) -> Recovered {
    Recovered { clean: false, mark: 0, log_start: log.start(), synced: log.synced(), ..Recovered::default() }
}

fn close(mut log: Log<MemDisk>) -> Recovered {
    flush(&mut log);
    let (start, end) = (log.start(), log.end());
    log.close_clean(NOW).unwrap().run().unwrap();
    Recovered { clean: true, mark: end, log_start: start, synced: end, ..Recovered::default() }
}

fn open(disk: &MemDisk, config: LogConfig, recovered: Recovered) -> (Log<MemDisk>, LoadReport) {
    try_open(disk, config, recovered).unwrap()
}

fn try_open(
    disk: &MemDisk,
    config: LogConfig,
    recovered: Recovered,
) -> Result<(Log<MemDisk>, LoadReport), StorageError> {
    Log::open(&without_tail(disk), partition(), config, recovered, NOW)
}

fn joined(read: &Read) -> Bytes {
    Bytes::from(read.slices.concat())
}

/// The batches of a read: base offset and next offset of each, checksums checked.
fn ranges(read: &Read) -> Vec<(Offset, Offset)> {
    Batches::new(joined(read))
        .map(|batch| {
            let batch = batch.unwrap();
            felix_protocol::batch::verify_crc(&batch.header, &batch.bytes).unwrap();
            (batch.header.base_offset, batch.header.next_offset())
        })
        .collect()
}

/// Every batch of a log, read in small pieces.
fn everything(reader: &LogReader<MemDisk>) -> Vec<(Offset, Offset)> {
    let mut all = Vec::new();
    let mut from = reader.start();
    while from < reader.end() {
        let read = reader.read(from, 700, Offset::MAX, true).unwrap();
        assert!(read.next > from, "no progress at {from}");
        all.extend(ranges(&read));
        from = read.next;
    }
    all
}

fn segment_bases(log: &Log<MemDisk>) -> Vec<Offset> {
    log.segments().iter().map(|segment| segment.base()).collect()
}
