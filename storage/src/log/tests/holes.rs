//! Logs whose first segments never came to the disk, although later ones did.

use super::*;
use crate::disk::Disk;

/// Three segments that follow an empty log start which retention has moved; nothing of them is known to be flushed.
/// Returns the bases of the segments.
fn after_retention(disk: &MemDisk) -> (Log<MemDisk>, Vec<Offset>) {
    let mut log = create(disk, small());
    append(&mut log, &batch(1, 10, 1));
    flush(&mut log);
    append(&mut log, &batch(14, 400, 1));
    log.set_config(LogConfig { retention_bytes: Some(0), ..small() });
    let mut retired = log.retain(1, NOW).unwrap();
    assert_eq!(retired.start, 1);
    retired.hide().unwrap();
    retired.remove().unwrap();
    log.set_config(small());
    append(&mut log, &batch(11, 400, 1));
    append(&mut log, &batch(1, 400, 1));
    let bases = segment_bases(&log);
    assert_eq!(bases, [1, 15, 26]);
    (log, bases)
}

fn lose(disk: &MemDisk, segment: Offset) -> MemDisk {
    let after = disk.crash(Crash::KeepAll);
    for kind in Kind::ALL {
        let _ = after.remove_file(&in_folder(segment, kind));
    }
    after
}

#[test]
fn what_stands_behind_a_first_segment_that_is_gone_does_not_count() {
    let disk = MemDisk::new();
    let (log, bases) = after_retention(&disk);
    let row = Recovered { mark: 1, ..stopped(&log) };
    assert_eq!((row.log_start, row.synced), (1, 1));
    let after = lose(&disk, bases[0]);
    let Err(StorageError::Damaged(damaged)) = try_open(&after, small(), row).map(drop) else { panic!() };
    assert_eq!((damaged.offset, damaged.promised), (1, false), "a power loss may leave that: {damaged}");
    assert!(after.content(&in_folder(15, Kind::Log)).is_ok(), "nothing is cut");
    let renewed = Recovered { cut_ambiguous: true, ..row };
    let (mut log, report) = open(&after, small(), renewed);
    assert_eq!((log.start(), log.end(), log.synced()), (1, 1, 1));
    assert!(report.cut_bytes > 4_400, "{report:?}");
    flush(&mut log);
    let settled = after.crash(Crash::LoseUnsynced);
    let (mut log, report) = open(&settled, small(), row);
    assert_eq!((log.start(), log.end(), report), (1, 1, LoadReport::default()));
    assert_eq!(append(&mut log, &batch(3, 10, 1)).base_offset, 1);
    let row = close(log);
    let (log, report) = open(&settled, small(), row);
    assert_eq!((everything(&log.reader()), report), (vec![(1, 4)], LoadReport::default()));
}

#[test]
fn empty_segments_behind_the_hole_go_without_a_question() {
    let disk = MemDisk::new();
    let (log, bases) = after_retention(&disk);
    let row = Recovered { mark: 1, ..stopped(&log) };
    let after = lose(&lose(&disk, bases[0]), bases[1]);
    after.put(&in_folder(bases[2], Kind::Log), b"").unwrap();
    let (log, _) = open(&after, small(), row);
    assert_eq!((log.start(), log.end()), (1, 1));
    assert!(after.content(&in_folder(bases[2], Kind::Log)).is_err());
}

#[test]
fn what_was_promised_is_damage_and_stays() {
    let disk = MemDisk::new();
    let (mut log, bases) = after_retention(&disk);
    flush(&mut log);
    let row = Recovered { mark: 20, cut_ambiguous: true, ..stopped(&log) };
    let (log, report) = open(&lose(&disk, bases[0]), small(), row);
    assert_eq!((log.start(), log.end()), (1, 27));
    assert_eq!(report.damage[0].offset, 1);
}

/// The table is of an earlier time (put back from somewhere): the log's own map says where it begins.
#[test]
fn a_log_that_retention_moved_on_since_the_table_was_written_is_whole() {
    let disk = MemDisk::new();
    let mut log = create(&disk, LogConfig { retention_bytes: Some(3_000), ..small() });
    for at in 0..12 {
        log.append(&batch(2, 400, at), generation(u32::try_from(1 + at / 5).unwrap()), NOW).unwrap();
    }
    flush(&mut log);
    let mut retired = log.retain(20, NOW).unwrap();
    retired.hide().unwrap();
    append_at(&mut log, 3);
    append_at(&mut log, 3);
    flush(&mut log);
    let (start, end) = (log.start(), log.end());
    assert!(start > 0);
    for cut_ambiguous in [false, true] {
        let after = disk.crash(Crash::LoseUnsynced);
        let (log, report) = open(&after, small(), Recovered { cut_ambiguous, ..Recovered::default() });
        assert_eq!((log.start(), log.end(), report.cut_bytes), (start, end, 0));
    }
}

fn append_at(log: &mut Log<MemDisk>, number: u32) {
    log.append(&batch(2, 700, 1), generation(number), NOW).unwrap();
}

/// A batch further on than one segment holds takes an empty first segment along.
#[test]
fn a_leap_at_the_beginning_is_no_hole() {
    let disk = MemDisk::new();
    let mut log = create(&disk, small());
    flush(&mut log);
    let far = 5_000_000_000;
    let mut stored = BatchBuilder::new().base_offset(far).generation(generation(3));
    stored.push(5, None, Some(b"far"));
    log.append_stored(&stored.build().unwrap(), NOW).unwrap();
    flush(&mut log);
    let row = stopped(&log);
    assert_eq!(segment_bases(&log), [far]);
    let (log, report) = open(&disk.crash(Crash::LoseUnsynced), small(), Recovered { synced: 0, ..row });
    assert_eq!((log.end(), report.cut_bytes), (far + 1, 0));
}
