//! What must hold whatever stands on the disk. Called by `../tests/fuzz.rs` over a corpus and by the cargo-fuzz
//! targets.
//!
//! An input is a small data directory: a byte of flags (see [`Flags`]), a byte each for what was promised and
//! for the log start, then files, each a byte of kind, 8 bytes of base offset, 2 bytes of length, and that
//! many bytes. Files of a data directory stand beside the partition's folder.

use std::collections::BTreeMap;
use std::path::{Path, PathBuf};

use felix_protocol::batch::scan::Batches;
use felix_protocol::batch::{BatchBuilder, BatchHeader, HEADER_BYTES, verify_crc};
use felix_protocol::ids::{Generation, Offset, PartitionId, TopicId, Uuid};
use felix_protocol::time::WallTime;
use felix_storage::data_dir::DataDir;
use felix_storage::disk::Disk;
use felix_storage::disk::mem::{Crash, MemDisk};
use felix_storage::dump::dump;
use felix_storage::layout::{self, Kind};
use felix_storage::{Limits, Log, LogConfig, LogReader, Recovered, Replicas, StorageError};

/// The time of all that happens here.
pub const NOW: WallTime = WallTime(1_700_000_000_000);
const DATA: &str = "/data";

/// The copy that all inputs are about.
pub fn partition() -> PartitionId {
    PartitionId { topic: TopicId(Uuid::from_u128(0x1234_5678_9abc_def0_1111_2222_3333_4444)), index: 0 }
}

/// Small segments and dense indexes, so that few batches make many of each.
pub fn config() -> LogConfig {
    LogConfig {
        segment_bytes: 2_000,
        index_interval_bytes: 300,
        retention_ms: None,
        file_delete_delay_ms: 10,
        ..LogConfig::default()
    }
}

fn data_dir(disk: &MemDisk) -> DataDir<MemDisk> {
    let limits = Limits { tail_bytes: 0, open_files: 8, ..Limits::default() };
    DataDir::open(disk.clone(), Path::new(DATA), limits).expect("a data directory opens")
}

fn folder() -> PathBuf {
    Path::new(DATA).join(partition().to_string())
}

/// What the first byte of an input says.
#[derive(Clone, Copy)]
struct Flags {
    /// The copy was closed properly.
    clean: bool,
    /// Something was promised, and the log start was moved.
    promised: bool,
    /// An ambiguous tail may be cut.
    cut_ambiguous: bool,
    /// Checksums are made right, so that what they guard is looked at.
    sealed: bool,
}

/// One file of an input.
#[derive(Clone, Debug)]
pub struct InFile {
    /// Where: see [`InFile::path`].
    pub kind: u8,
    /// The offset in its name.
    pub base: Offset,
    /// What it holds.
    pub content: Vec<u8>,
}

/// The kinds of [`InFile`] that are not a [`Kind`].
const MAP: u8 = 6;
const METADATA: u8 = 7;
const TABLE: u8 = 8;
const IDENTITY: u8 = 9;
const FOLDER: u8 = 10;
const KINDS: u8 = 11;

impl InFile {
    fn path(&self) -> PathBuf {
        match self.kind % KINDS {
            MAP => folder().join(layout::EPOCH_CHECKPOINT),
            METADATA => folder().join(layout::PARTITION_METADATA),
            TABLE => Path::new(DATA).join(layout::REPLICAS),
            IDENTITY => Path::new(DATA).join(layout::META_PROPERTIES),
            FOLDER => layout::file_path(&folder(), self.base, Kind::Index),
            kind => layout::file_path(&folder(), self.base, Kind::ALL[usize::from(kind)]),
        }
    }

    /// A file of a directory as an input's file; `None` for names that inputs do not have.
    pub fn of(name: &str, content: Vec<u8>) -> Option<InFile> {
        let (kind, base) = match layout::parse_file_name(name) {
            Some((base, kind)) => (Kind::ALL.iter().position(|known| *known == kind)? as u8, base),
            None if name == layout::EPOCH_CHECKPOINT => (MAP, 0),
            None if name == layout::PARTITION_METADATA => (METADATA, 0),
            None if name == layout::REPLICAS => (TABLE, 0),
            None if name == layout::META_PROPERTIES => (IDENTITY, 0),
            None => return None,
        };
        Some(InFile { kind, base, content })
    }
}

/// An input with these flags and files.
pub fn input(flags: u8, promised: u8, start: u8, files: &[InFile]) -> Vec<u8> {
    let mut input = vec![flags, promised, start];
    for file in files {
        input.push(file.kind);
        input.extend_from_slice(&file.base.to_be_bytes());
        let length = u16::try_from(file.content.len()).expect("inputs have small files");
        input.extend_from_slice(&length.to_be_bytes());
        input.extend_from_slice(&file.content);
    }
    input
}

struct Case {
    flags: Flags,
    promised: Offset,
    start: Offset,
    files: BTreeMap<PathBuf, InFile>,
}

fn case(input: &[u8]) -> Option<Case> {
    let ([flags, promised, start], mut rest) = input.split_first_chunk::<3>()?;
    let flags = Flags {
        clean: flags & 1 != 0,
        promised: flags & 2 != 0,
        cut_ambiguous: flags & 4 != 0,
        sealed: flags & 8 != 0,
    };
    let mut files = BTreeMap::new();
    while let Some(([kind, named @ ..], behind)) = rest.split_first_chunk::<11>() {
        let base = i64::from_be_bytes(*named.first_chunk().expect("8 of 10 bytes"));
        let length = usize::from(u16::from_be_bytes(*named.last_chunk().expect("2 of 10 bytes")));
        let (content, behind) = behind.split_at(length.min(behind.len()));
        rest = behind;
        let mut file = InFile { kind: *kind, base: base & Offset::MAX, content: content.to_vec() };
        if flags.sealed {
            seal(&mut file);
        }
        files.insert(file.path(), file);
        if files.len() == 64 {
            break;
        }
    }
    Some(Case { flags, promised: Offset::from(*promised), start: Offset::from(*start), files })
}

/// Gives batches, snapshots and the table's frames the checksums that their bytes have.
fn seal(file: &mut InFile) {
    let content = &mut file.content;
    match file.kind % KINDS {
        0 => {
            let mut at = 0;
            while at + HEADER_BYTES <= content.len() {
                let size = 12 + u32::from_be_bytes(four(&content[at + 8..])) as usize;
                if size < HEADER_BYTES || at + size > content.len() {
                    break;
                }
                let crc = crc32c::crc32c(&content[at + 21..at + size]);
                content[at + 17..at + 21].copy_from_slice(&crc.to_be_bytes());
                at += size;
            }
        }
        3 if content.len() >= 6 => {
            let crc = crc32c::crc32c(&content[6..]);
            content[2..6].copy_from_slice(&crc.to_be_bytes());
        }
        TABLE => {
            const UNIT: usize = 96;
            let mut at = 0;
            while at + UNIT <= content.len() {
                let count = u32::from_be_bytes(four(&content[at + 12..])) as usize;
                let size = count.saturating_add(1).saturating_mul(UNIT);
                if content[at] != b'F' || size > content.len() - at {
                    at += UNIT;
                    continue;
                }
                let crc = crc32c::crc32c(&content[at + 4..at + 16]);
                let crc = crc32c::crc32c_append(crc, &content[at + 20..at + size]);
                content[at + 16..at + 20].copy_from_slice(&crc.to_be_bytes());
                at += size;
            }
        }
        _ => {}
    }
}

fn four(bytes: &[u8]) -> [u8; 4] {
    *bytes.first_chunk().expect("four bytes are there")
}

fn disk(case: &Case) -> MemDisk {
    let disk = MemDisk::new();
    drop(data_dir(&disk));
    disk.create_dir(&folder()).expect("an empty directory takes a folder");
    for (path, file) in &case.files {
        if file.kind % KINDS == FOLDER {
            disk.create_dir(path).expect("the names differ");
        } else {
            disk.put(path, &file.content).expect("the folder is there");
        }
    }
    disk
}

/// A partition's folder with anything in it, opened as a copy that was or was not closed properly.
pub fn log(input: &[u8]) {
    let Some(case) = case(input) else { return };
    let disk = disk(&case);
    let Flags { clean, promised, cut_ambiguous, .. } = case.flags;
    if !clean && !promised {
        recovered(&case, &disk);
        return;
    }
    let (mark, log_start) = if promised { (case.promised, case.start) } else { (0, 0) };
    let row = Recovered { clean, mark, log_start, synced: mark, cut_ambiguous, ..Recovered::default() };
    let (log, report) = match Log::open(&data_dir(&disk), partition(), config(), row, NOW) {
        Ok(opened) => opened,
        Err(StorageError::Damaged(_)) => return,
        Err(error) => panic!("neither opened nor found damaged: {error}"),
    };
    assert!(log.end() >= mark.max(log_start), "what was promised is there");
    assert!(log.start() >= log_start && log.start() <= log.end());
    // What was promised and is damaged, the log is opened around.
    let trust = match (clean, report.damage.is_empty()) {
        (_, false) => Trust::Damaged,
        (true, true) => Trust::Believed,
        (false, true) => Trust::Checked,
    };
    used(log, &disk, trust);
}

/// Nothing was promised: whatever stands there, the log opens, and holds the longest prefix of whole batches; or nothing, where
/// the table says that the log begins before its first segment.
fn recovered(case: &Case, disk: &MemDisk) {
    let (mut wanted, mut end) = longest_prefix(case);
    let segments = case.files.values().filter(|file| file.kind % KINDS == 0);
    let first = segments.map(|file| file.base).min().unwrap_or(0);
    let log_start = if case.flags.cut_ambiguous { 0 } else { first };
    let row = Recovered { cut_ambiguous: true, log_start, ..Recovered::default() };
    let opened = Log::open(&data_dir(disk), partition(), config(), row, NOW);
    let (mut log, _) = opened.expect("a copy that promised nothing opens");
    if log_start < first && log.end() == log_start {
        (wanted, end) = (Vec::new(), log_start);
    }
    assert_eq!(log.end(), end);
    assert_eq!(everything(&log.reader(), true), wanted);
    flush(&mut log);
    let (log_start, synced) = (log.start(), log.synced());
    assert_eq!(log.durable(), end, "everything is flushed");
    // Once more, as after the loss of power right behind the flush.
    drop(log);
    let crashed = disk.crash(Crash::LoseUnsynced);
    let row = Recovered { synced, mark: synced, log_start, ..Recovered::default() };
    let (log, _) = Log::open(&data_dir(&crashed), partition(), config(), row, NOW).expect("it was flushed");
    assert_eq!(log.end(), end);
    assert_eq!(everything(&log.reader(), true), wanted);
    used(log, &crashed, Trust::Checked);
}

/// A batch that a reader gives out: base offset, next offset, bytes.
type Found = (Offset, Offset, Vec<u8>);

/// The batches from the beginning of the first segment up to the first byte that does not belong to one, parsed here
/// without the help of what is tested, and the offset behind them.
fn longest_prefix(case: &Case) -> (Vec<Found>, Offset) {
    let segments: BTreeMap<Offset, &[u8]> = case
        .files
        .values()
        .filter(|file| file.kind % KINDS == 0)
        .map(|file| (file.base, &file.content[..]))
        .collect();
    let mut found = Vec::new();
    let mut newest = -1;
    let mut end = segments.keys().next().copied().unwrap_or(0);
    let mut before = None;
    for (base, content) in segments {
        // A segment begins where the one before ended, but for a leap that no segment could hold.
        let leaps = before.is_some_and(|before| base - before > i64::from(i32::MAX)) && base > end;
        if base != end && !leaps {
            break;
        }
        before = Some(base);
        let mut at = 0;
        while let Some(size) = batch_at(&content[at..], base, end.max(base), newest) {
            let batch = &content[at..at + size];
            let first = i64::from_be_bytes(*batch.first_chunk().expect("it is whole"));
            let delta = i32::from_be_bytes(four(&batch[23..]));
            newest = newest.max(i32::from_be_bytes(four(&batch[12..])));
            end = first + i64::from(delta) + 1;
            found.push((first, end, batch.to_vec()));
            at += size;
        }
        // What a leap was made for has to be there.
        if at < content.len() || (leaps && at == 0) {
            break;
        }
    }
    (found, end)
}

/// The size of the whole batch at the beginning of `bytes`, if one that may follow stands there.
fn batch_at(bytes: &[u8], segment: Offset, due: Offset, newest: i32) -> Option<usize> {
    let size = usize::try_from(i32::from_be_bytes(four(bytes.get(8..)?.get(..4)?))).ok()? + 12;
    if size < HEADER_BYTES || bytes.len() < size || bytes[16] != 2 {
        return None;
    }
    let first = i64::from_be_bytes(*bytes.first_chunk()?);
    let delta = i32::from_be_bytes(four(&bytes[23..]));
    let generation = i32::from_be_bytes(four(&bytes[12..]));
    let fits = first >= due
        && delta >= 0
        && first < Offset::MAX - i64::from(i32::MAX)
        && first + i64::from(delta) - segment <= i64::from(i32::MAX)
        && (generation < 0 || generation >= newest)
        && crc32c::crc32c(&bytes[21..size]).to_be_bytes() == bytes[17..21];
    fits.then_some(size)
}

/// Every batch of a log, read in small pieces, its checksum checked. Unless `whole`, reading may meet damage.
fn everything(reader: &LogReader<MemDisk>, whole: bool) -> Vec<Found> {
    let mut all = Vec::new();
    let mut from = reader.start();
    while from < reader.end() {
        let read = match reader.read(from, 700, Offset::MAX, true) {
            Ok(read) => read,
            Err(error) => {
                assert!(!whole, "at {from}: {error}");
                break;
            }
        };
        if read.next <= from {
            // Compaction may have left nothing up to the end.
            assert!(read.bytes == 0, "no progress at {from}");
            break;
        }
        for batch in Batches::new(read.slices.concat().into()) {
            let batch = batch.expect("readers get whole batches");
            verify_crc(&batch.header, &batch.bytes).expect("readers get no damaged batches");
            all.push((batch.header.base_offset, batch.header.next_offset(), batch.bytes.to_vec()));
        }
        from = read.next;
    }
    all
}

fn flush(log: &mut Log<MemDisk>) {
    while let Some(job) = log.flush_job() {
        let outcome = job.run();
        log.flushed(&outcome);
        outcome.expect("this disk flushes");
    }
}

/// What an open knew of what it opened.
#[derive(Clone, Copy, PartialEq, Eq)]
enum Trust {
    /// Every batch is whole.
    Checked,
    /// It was closed properly, and may turn out to be damaged.
    Believed,
    /// It is damaged, and that was told.
    Damaged,
}

/// A log that opened can be asked, appended to, closed and opened again, and says the same then.
fn used(mut log: Log<MemDisk>, disk: &MemDisk, trust: Trust) {
    let trusted = trust != Trust::Checked;
    let reader = log.reader();
    for from in [reader.start(), reader.end() - 1, reader.end()] {
        let _ = reader.read(from, 100, Offset::MAX, true);
        let _ = reader.generation_at(from);
    }
    for timestamp in [-2, -1, 0, 500, NOW.0, i64::MAX] {
        let _ = reader.offset_for_timestamp(timestamp, Offset::MAX);
    }
    let _ = reader.max_timestamp(Offset::MAX);
    let _ = (log.producers().describe(), log.producers().first_open_transaction());
    let before = everything(&reader, !trusted);
    let appended = appended(&mut log);
    let after = everything(&log.reader(), !trusted);
    assert_eq!(after[..before.len().min(after.len())], before, "an append changes nothing below");
    if let Some(appended) = &appended
        && !trusted
    {
        assert_eq!(after.last().map(|batch| &batch.2[HEADER_BYTES..]), Some(&appended[HEADER_BYTES..]));
    }
    flush(&mut log);
    let (start, end) = (log.start(), log.end());
    drop(reader);
    let job = log.close_clean(NOW).expect("it is flushed");
    job.run().expect("this disk flushes");
    let row = Recovered { clean: true, mark: end, log_start: start, synced: end, ..Recovered::default() };
    let opened = Log::open(&data_dir(disk), partition(), config(), row, NOW);
    let (mut log, report) = match opened {
        Ok(opened) => opened,
        // What was believed after a clean stop may turn out to be damaged when it is read.
        Err(StorageError::Damaged(_)) if trusted => return,
        Err(error) => panic!("closed properly, and does not open: {error}"),
    };
    assert_eq!((log.start(), log.end()), (start, end));
    assert!(trusted || report.damage.is_empty(), "{:?}", report.damage);
    if trust != Trust::Damaged && report.damage.is_empty() {
        assert_eq!(everything(&log.reader(), !trusted), after);
    }
    let _ = log.retain(end, NOW);
    let _ = log.truncate(start.max(end / 2), NOW);
    let _ = everything(&log.reader(), false);
}

/// Appends a batch; `None` where the log has used up its offsets.
fn appended(log: &mut Log<MemDisk>) -> Option<Vec<u8>> {
    let mut builder = BatchBuilder::new();
    builder.push(NOW.0, Some(b"key"), Some(b"after all that"));
    let batch = builder.build().expect("a small batch");
    let generation = log.generations().latest().map(|(generation, _)| generation);
    let generation = generation.or(Generation::new(1)).expect("there is a first generation");
    match log.append(&batch, generation, NOW) {
        Ok(appended) => {
            assert_eq!(appended.end, log.end());
            Some(batch.bytes().to_vec())
        }
        Err(StorageError::OffsetsExhausted(_)) => None,
        Err(error) => panic!("a log that opened takes batches: {error}"),
    }
}

/// The table of copies and `meta.properties`: what they say is the same when it is written again.
pub fn directory(input: &[u8]) {
    let Some(case) = case(input) else { return };
    let disk = disk(&case);
    let dir = data_dir(&disk);
    if let Ok(Some(identity)) = dir.identity() {
        dir.set_identity(&identity).expect("this disk takes it");
        assert_eq!(dir.identity().expect("it was written"), Some(identity));
    }
    let (table, first) = Replicas::open(&dir).expect("whatever stands there, the table opens");
    let rows = table.all();
    assert!(rows.len() <= input.len() / 96);
    drop(table);
    let (table, second) = Replicas::open(&dir).expect("it was written anew");
    assert_eq!(table.all(), rows);
    assert_eq!(second.boot_id, first.boot_id);
    let doubted = |damaged: usize, lost: Option<&str>| damaged > 0 || lost.is_some();
    assert_eq!(
        doubted(second.damaged, second.lost),
        doubted(first.damaged, first.lost),
        "damage is not forgotten before something was done about it"
    );
    if let Some((partition, row)) = rows.first() {
        let mut changed = *row;
        changed.clean = !row.clean;
        table.commit(table.stage(*partition, changed)).expect("this disk takes it");
        drop(table);
        drop(dir);
        let crashed = disk.crash(Crash::LoseUnsynced);
        let (table, last) = Replicas::open(&data_dir(&crashed)).expect("it was committed");
        assert_eq!(last.damaged, 0, "written anew, it is whole");
        assert_eq!(table.get(partition), Some(changed));
        assert_eq!(table.all().len(), rows.len());
    }
}

/// `felix dump-log` prints anything, changes nothing, and says no more than a few times what is there.
pub fn dumped(input: &[u8]) {
    let Some(case) = case(input) else { return };
    let disk = disk(&case);
    let mut printed = Vec::new();
    dump(&disk, Path::new(DATA), &mut printed).expect("a vector takes it all");
    assert!(printed.len() <= 4_096 + 64 * input.len(), "{} bytes about {}", printed.len(), input.len());
    for (path, file) in &case.files {
        let found = disk.content(path);
        assert!(file.kind % KINDS == FOLDER || found.is_ok_and(|found| found == file.content));
    }
    // Headers alone tell whether every whole batch at the front of a segment was named.
    for file in case.files.values().filter(|file| file.kind % KINDS == 0) {
        let Ok(header) = BatchHeader::parse(&file.content) else { continue };
        let whole = batch_at(&file.content, file.base, file.base, -1).is_some();
        let named = format!("offsets: {}..{} ", header.base_offset, header.last_offset());
        assert!(!whole || String::from_utf8_lossy(&printed).contains(&named));
    }
}
