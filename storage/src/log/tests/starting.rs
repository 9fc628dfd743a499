//! What an open reads, counted on the disk: nothing of closed segments, however large they are.

use super::*;
use crate::disk::mem::Counters;

/// Closed segments of each log.
const CLOSED: usize = 120;

/// A log of many closed segments of so many bytes and a last one of a few; stopped, or killed after everything
/// was flushed. (A power loss takes seals away, and then the last batches of each closed segment are looked at.)
fn filled(segment_bytes: u64, clean: bool) -> (MemDisk, Recovered, Vec<Offset>) {
    let disk = MemDisk::new();
    let config = LogConfig { segment_bytes, ..small() };
    let mut log = Log::create(&without_tail(&disk), partition(), config, 0, NOW).unwrap();
    let half = usize::try_from(segment_bytes / 2).unwrap() - 100;
    for _ in 0..2 * CLOSED {
        append(&mut log, &batch(1, half, 5));
    }
    append(&mut log, &batch(1, 50, 5));
    flush(&mut log);
    let bases = segment_bases(&log);
    let row = if clean { close(log) } else { stopped(&log) };
    let disk = if clean { disk } else { disk.crash(Crash::KeepAll) };
    (disk, row, bases)
}

fn opened(segment_bytes: u64, clean: bool) -> (Counters, usize) {
    let (disk, row, bases) = filled(segment_bytes, clean);
    assert_eq!(bases.len(), CLOSED + 1);
    disk.note_reads();
    let before = disk.counters();
    let (log, report) = open(&disk, LogConfig { segment_bytes, ..small() }, row);
    assert_eq!(log.end(), i64::try_from(2 * CLOSED + 1).unwrap());
    let read = disk.files_read();
    for base in &bases[..CLOSED] {
        for kind in [Kind::Log, Kind::Index, Kind::TimeIndex] {
            let path = in_folder(*base, kind).display().to_string();
            assert!(!read.contains(&path), "{path} was read: {report:?}");
        }
    }
    let after = disk.counters();
    let counters = Counters {
        read_bytes: after.read_bytes - before.read_bytes,
        reads: after.reads - before.reads,
        opens: after.opens - before.opens,
        ..Counters::default()
    };
    (counters, bases.len())
}

#[test]
fn what_is_read_does_not_grow_with_closed_segments() {
    for clean in [true, false] {
        let (small, segments) = opened(2_000, clean);
        let (large, _) = opened(40_000, clean);
        assert_eq!(small, large, "clean: {clean}");
        // The 40 bytes of each seal, the last segment, the map, one snapshot, the topic's id.
        let seals = 40 * segments as u64;
        assert!(large.read_bytes <= seals + 1_000, "clean: {clean}, {large:?}");
        assert!(large.opens <= segments as u64 + 20, "clean: {clean}, {large:?}");
    }
}
