//! Seals, as the log writes and reads them.

use super::*;
use crate::disk::Disk;
use crate::seal::{self, Found, Seal};

/// A log of many segments, flushed.
fn sealed(disk: &MemDisk) -> Log<MemDisk> {
    let mut log = create(disk, small());
    for at in 0..30 {
        append(&mut log, &batch(1 + at % 3, 400, at));
    }
    flush(&mut log);
    log
}

fn seal_of(disk: &MemDisk, base: Offset) -> Seal {
    match seal::read(disk, &folder(), base) {
        Found::Seal(seal) => seal,
        other @ (Found::Missing | Found::Bad(_)) => panic!("segment {base}: {other:?}"),
    }
}

/// That each closed segment has the seal that its bytes give, and the last one has none.
fn check_seals(disk: &MemDisk, log: &Log<MemDisk>) {
    let bases = segment_bases(log);
    for pair in bases.windows(2) {
        let content = disk.content(&in_folder(pair[0], Kind::Log)).unwrap();
        let seal = seal_of(disk, pair[0]);
        assert_eq!((seal.size, seal.next), (content.len() as u64, pair[1]));
        assert_eq!(seal.crc, crc32c::crc32c(&content));
        assert!(!seal.gaps && !seal.open);
    }
    assert_eq!(seal::read(disk, &folder(), *bases.last().unwrap()), Found::Missing);
}

/// Ends the life of a log, properly or by the process's death.
fn end(log: Log<MemDisk>, clean: bool) -> Recovered {
    if clean { close(log) } else { stopped(&log) }
}

#[test]
fn each_closed_segment_is_sealed_without_being_read_and_without_a_flush() {
    let disk = MemDisk::new();
    let mut log = create(&disk, small());
    flush(&mut log);
    let before = disk.counters();
    for at in 0..30 {
        append(&mut log, &batch(1, 400, at));
    }
    flush(&mut log);
    let after = disk.counters();
    assert_eq!(after.read_bytes, before.read_bytes);
    check_seals(&disk, &log);
    let closed = segment_bases(&log).len() as u64 - 1;
    // Batches, two indexes and the snapshot of each closed segment; the last one's batches and the map.
    assert!(after.file_syncs - before.file_syncs <= 4 * closed + 2);
}

#[test]
fn a_restart_goes_on_with_the_checksum() {
    for clean in [true, false] {
        for bytes in [400, 9_000] {
            let disk = MemDisk::new();
            let config = LogConfig { segment_bytes: 200_000, ..small() };
            let mut log = create(&disk, config.clone());
            for at in 0..12 {
                append(&mut log, &batch(1, bytes, at));
            }
            flush(&mut log);
            let row = end(log, clean);
            let (mut log, _) = open(&disk, config.clone(), row);
            while segment_bases(&log).len() < 3 {
                append(&mut log, &batch(1, 9_000, 5));
            }
            flush(&mut log);
            check_seals(&disk, &log);
        }
    }
}

#[test]
fn a_crash_leaves_seals_that_are_right_or_none() {
    for seed in 0..60 {
        let disk = MemDisk::new();
        disk.create_dir(Path::new("/data")).unwrap();
        disk.sync_dir(Path::new("/")).unwrap();
        let mut log = sealed(&disk);
        for at in 0..9 {
            append(&mut log, &batch(1, 400, at));
        }
        let after = disk.crash(Crash::Random(seed));
        let (mut log, _) = open(&after, small(), Recovered { cut_ambiguous: true, ..stopped(&log) });
        flush(&mut log);
        let bases = segment_bases(&log);
        for base in &bases[..bases.len() - 1] {
            if let Found::Seal(seal) = seal::read(&after, &folder(), *base) {
                let content = after.content(&in_folder(*base, Kind::Log)).unwrap();
                assert_eq!((seal.size, seal.crc), (content.len() as u64, crc32c::crc32c(&content)));
            }
        }
    }
}

#[test]
fn a_cut_takes_the_seal_of_what_is_written_to_again() {
    let disk = MemDisk::new();
    let mut log = sealed(&disk);
    let bases = segment_bases(&log);
    // Before the second batch of the second segment.
    let to = bases[2] - 1;
    let end = log.truncate(to, NOW).unwrap();
    check_seals(&disk, &log);
    assert!(end <= to);
    while segment_bases(&log).len() < 5 {
        append(&mut log, &batch(1, 400, 5));
    }
    flush(&mut log);
    // Of the segment that was cut, only a look through its bytes can tell the checksum.
    let bases = segment_bases(&log);
    assert_eq!(seal::read(&disk, &folder(), bases[1]), Found::Missing);
    assert_eq!(seal_of(&disk, bases[2]).next, bases[3]);
}

#[test]
fn seals_leave_with_their_segments() {
    let disk = MemDisk::new();
    let mut log = sealed(&disk);
    let bases = segment_bases(&log);
    log.advance_start(bases[2]).unwrap();
    let mut retired = log.retain(log.end(), NOW).unwrap();
    assert_eq!(retired.segments, 2);
    retired.hide().unwrap();
    retired.remove().unwrap();
    assert_eq!(seal::read(&disk, &folder(), bases[0]), Found::Missing);
    check_seals(&disk, &log);
    // One that was written late is removed by the next open.
    seal::write(&disk, &folder(), b"late", bases[1]).unwrap();
    let row = close(log);
    let (log, _) = open(&disk, small(), row);
    assert!(disk.content(&in_folder(bases[1], Kind::Seal)).is_err());
    drop(log);
}

#[test]
fn a_segment_that_lost_its_end_is_noticed_by_its_size() {
    for clean in [true, false] {
        let disk = MemDisk::new();
        let log = sealed(&disk);
        let bases = segment_bases(&log);
        let row = end(log, clean);
        let path = in_folder(bases[1], Kind::Log);
        let content = disk.content(&path).unwrap();
        disk.put(&path, &content[..content.len() - 10]).unwrap();
        let (log, report) = open(&disk, small(), row);
        assert_eq!(report.damage.len(), 1);
        assert!(report.damage[0].promised);
        assert_eq!(report.damage[0].segment, path);
        drop(log);
        disk.put(&path, &content).unwrap();
        // The opposite: only the seal is out of date.
        let old = Seal { size: 17, ..seal_of(&disk, bases[1]) };
        disk.put(&in_folder(bases[1], Kind::Seal), &old.encode()).unwrap();
        let (mut log, report) = open(&disk, small(), row);
        assert_eq!(report.rebuilt, [SideFile::Seal]);
        flush(&mut log);
        assert_eq!(seal_of(&disk, bases[1]).size, content.len() as u64);
    }
}

#[test]
fn an_open_reads_no_sealed_data() {
    let disk = MemDisk::new();
    let log = sealed(&disk);
    let segments = segment_bases(&log).len() as u64;
    let (row, size) = (close(log), 400 * 60);
    let before = disk.counters().read_bytes;
    open(&disk, small(), row);
    let read = disk.counters().read_bytes - before;
    assert!(read < 40 * segments + 4_000, "{read} bytes read of about {size} in {segments} segments");
}

#[test]
fn snapshots_of_earlier_stops_do_not_gather() {
    let disk = MemDisk::new();
    let mut log = create(&disk, LogConfig::default());
    for round in 0..5 {
        append(&mut log, &numbered(1, 0, round * 5, 5));
        let row = close(log);
        (log, _) = open(&disk, LogConfig::default(), row);
        assert_eq!(log.producers().iter().count(), 1);
    }
    let names = disk.read_dir(&folder()).unwrap();
    let snapshots = names.iter().filter(|entry| entry.name.ends_with("snapshot")).count();
    assert_eq!(snapshots, 1);
}
