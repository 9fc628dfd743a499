//! What fuzzing found, told as it happens.

use super::*;
use crate::disk::Disk;
use crate::index::{IndexEntry, OffsetEntry, TimeEntry};

/// A batch that leaps ahead further than a segment's relative offsets reach begins a segment of its own. When
/// only that segment's file came to the disk, the log went on at the old end inside of it.
#[test]
fn a_leap_in_offsets_whose_batch_is_lost_leaves_no_segment() {
    let disk = MemDisk::new();
    let mut log = create(&disk, small());
    append(&mut log, &batch(2, 10, 1));
    flush(&mut log);
    let synced = log.synced();
    let mut far = BatchBuilder::new().base_offset(10 << 32).generation(generation(1));
    far.push(5, None, Some(b"far"));
    let far = far.build().unwrap();
    log.append_stored(&far, NOW).unwrap();
    assert_eq!(segment_bases(&log), [0, 10 << 32]);
    drop(log);
    for torn in [&[][..], &far.bytes()[..40]] {
        disk.put(&in_folder(10 << 32, Kind::Log), torn).unwrap();
        let row = Recovered { synced, mark: synced, ..Recovered::default() };
        let (mut log, _) = open(&disk.crash(Crash::KeepAll), small(), row);
        assert_eq!((log.end(), segment_bases(&log)), (2, vec![0]));
        append(&mut log, &batch(1, 10, 3));
        assert_eq!(everything(&log.reader()), [(0, 2), (2, 3)]);
        log.append_stored(&far, NOW).unwrap();
        assert_eq!(everything(&log.reader()), [(0, 2), (2, 3), (10 << 32, (10 << 32) + 1)]);
    }
}

/// A file's name may claim a base near the end of all offsets.
#[test]
fn index_entries_beyond_all_offsets_do_not_overflow() {
    let entry = OffsetEntry::decode(Offset::MAX - 5, &[0xff; 8]);
    assert_eq!(entry.offset, Offset::MAX);
    let entry = TimeEntry::decode(Offset::MAX, &[0xff; 12]);
    assert_eq!(entry.offset, Offset::MAX);
}

/// Nor may a segment's name, at which one more than its offset is past all numbers.
#[test]
fn a_segment_at_the_last_offset_of_all_opens() {
    let disk = MemDisk::new();
    drop(create(&disk, small()));
    disk.put(&in_folder(Offset::MAX, Kind::Log), &[]).unwrap();
    disk.remove_file(&in_folder(0, Kind::Log)).unwrap();
    let row = Recovered { log_start: Offset::MAX, ..Recovered::default() };
    let (mut log, _) = open(&disk, small(), row);
    assert_eq!((log.start(), log.end()), (Offset::MAX, Offset::MAX));
    let refused = log.append(&batch(1, 10, 3), generation(1), NOW);
    assert!(matches!(refused, Err(StorageError::OffsetsExhausted(_))));
}
