//! Aborted transactions: known while they are written, after every kind of restart, and after a cut.

use felix_protocol::batch::control::{Marker, TransactionEnd};

use super::*;
use crate::AbortedTransaction;

pub(super) fn in_transaction(producer: i64, sequence: i32, records: i64) -> CheckedBatch {
    let mut builder = BatchBuilder::new().producer(producer, 0, sequence).transactional();
    for at in 0..records {
        builder.push(500 + at, Some(b"key"), Some(&[7; 100]));
    }
    builder.build().unwrap()
}

pub(super) fn marker(producer: i64, end: TransactionEnd) -> CheckedBatch {
    Marker { end, coordinator_epoch: 3 }.batch(producer, 0, 600).unwrap()
}

/// 0..9 of producer 1, 10..19 of producer 2, abort of 1 at 20, fill over two segments, commit of 2, and
/// another abort of 1.
fn story(log: &mut Log<MemDisk>) -> Vec<AbortedTransaction> {
    append(log, &in_transaction(1, 0, 10));
    append(log, &in_transaction(2, 0, 10));
    append(log, &marker(1, TransactionEnd::Abort));
    for _ in 0..6 {
        append(log, &batch(1, 500, 5));
    }
    append(log, &in_transaction(1, 10, 2));
    append(log, &marker(2, TransactionEnd::Commit));
    append(log, &marker(1, TransactionEnd::Abort));
    append(log, &marker(3, TransactionEnd::Abort));
    vec![
        AbortedTransaction { producer_id: 1, first_offset: 0, last_offset: 20, last_stable_offset: 10 },
        AbortedTransaction { producer_id: 1, first_offset: 27, last_offset: 30, last_stable_offset: 31 },
    ]
}

fn check(log: &Log<MemDisk>, wanted: &[AbortedTransaction]) {
    let reader = log.reader();
    let start = log.start();
    assert_eq!(reader.aborted(start, Offset::MAX).unwrap(), wanted);
    let of = |from, to| reader.aborted(from, to).unwrap();
    for (from, to) in [(0, 1), (0, 28), (5, 27), (20, 21), (21, 27), (28, 29), (30, 31), (31, 40)] {
        let within = |entry: &&AbortedTransaction| entry.last_offset >= from && entry.first_offset < to;
        let wanted: Vec<_> = wanted.iter().filter(within).copied().collect();
        if from <= reader.end() {
            assert_eq!(of(from, to), wanted, "{from}..{to}");
        }
    }
}

#[test]
fn they_are_known_while_written_and_after_every_restart() {
    let disk = MemDisk::new();
    let mut log = create(&disk, small());
    let wanted = story(&mut log);
    assert!(segment_bases(&log).len() > 2);
    check(&log, &wanted);
    flush(&mut log);
    check(&log, &wanted);
    let row = stopped(&log);
    // Killed: everything above `synced` is read; then the machine loses power, then a clean stop.
    for crash in [Crash::KeepAll, Crash::LoseUnsynced] {
        let (log, _) = open(&disk.crash(crash), small(), row);
        check(&log, &wanted);
    }
    let before = Recovered { synced: 0, ..row };
    let (log_again, _) = open(&disk.crash(Crash::KeepAll), small(), before);
    check(&log_again, &wanted);
    drop(log_again);
    let row = close(log);
    let (mut log, report) = open(&disk, small(), row);
    assert_eq!(report, LoadReport::default());
    check(&log, &wanted);
    // Writing goes on where it was.
    append(&mut log, &in_transaction(1, 12, 1));
    append(&mut log, &marker(1, TransactionEnd::Abort));
    let last = *log.reader().aborted(0, Offset::MAX).unwrap().last().unwrap();
    assert_eq!((last.first_offset, last.last_offset), (32, 33));
}

#[test]
fn a_file_that_cannot_be_right_is_built_again() {
    let disk = MemDisk::new();
    let mut log = create(&disk, small());
    let wanted = story(&mut log);
    let row = close(log);
    let path = in_folder(10, Kind::TxnIndex);
    let right = disk.content(&path).unwrap();
    for wrong in [&b"nonsense"[..], &right[..33], &[0; 34]] {
        disk.put(&path, wrong).unwrap();
        let (log, _) = open(&disk, small(), row);
        check(&log, &wanted);
        assert_eq!(disk.content(&path).unwrap(), right);
    }
}

#[test]
fn a_cut_takes_those_whose_markers_go() {
    let disk = MemDisk::new();
    let mut log = create(&disk, small());
    let wanted = story(&mut log);
    flush(&mut log);
    log.truncate(30, NOW).unwrap();
    check(&log, &wanted[..1]);
    log.truncate(20, NOW).unwrap();
    check(&log, &[]);
    append(&mut log, &marker(1, TransactionEnd::Commit));
    append(&mut log, &marker(2, TransactionEnd::Abort));
    let again =
        [AbortedTransaction { producer_id: 2, first_offset: 10, last_offset: 21, last_stable_offset: 22 }];
    check(&log, &again);
    flush(&mut log);
    let row = stopped(&log);
    let (log, _) = open(&disk.crash(Crash::LoseUnsynced), small(), row);
    check(&log, &again);
}

#[test]
fn a_file_that_went_does_not_read_as_nothing_aborted() {
    let disk = MemDisk::new();
    // The last segment short, and long.
    for segment_bytes in [small().segment_bytes, 1 << 20] {
        let config = LogConfig { segment_bytes, ..small() };
        let disk = if segment_bytes == small().segment_bytes { disk.clone() } else { MemDisk::new() };
        let mut log = create(&disk, config.clone());
        let wanted = story(&mut log);
        if segment_bytes > small().segment_bytes {
            for at in 0..90 {
                append(&mut log, &batch(2, 500, at));
            }
        }
        let killed = Recovered { mark: log.end(), synced: log.end(), ..stopped(&log) };
        let row = close(log);
        let names: Vec<_> = disk.read_dir(&folder()).unwrap().into_iter().map(|entry| entry.name).collect();
        let lists: Vec<_> = names.iter().filter(|name| name.ends_with(".txnindex")).collect();
        assert!(!lists.is_empty(), "{names:?}");
        for name in lists {
            for (row, emptied, sealed) in [
                (row, false, true),
                (row, true, true),
                (row, false, false),
                (killed, false, true),
                (killed, false, false),
            ] {
                let after = disk.crash(Crash::KeepAll);
                let path = folder().join(name);
                if emptied {
                    after.put(&path, b"").unwrap();
                } else {
                    after.remove_file(&path).unwrap();
                }
                for name in names.iter().filter(|name| !sealed && name.ends_with(".seal")) {
                    after.remove_file(&folder().join(name)).unwrap();
                }
                let (log, _) = open(&after, config.clone(), row);
                check(&log, &wanted);
            }
        }
    }
}

#[test]
fn where_nothing_was_aborted_no_batch_is_read_for_it() {
    let disk = MemDisk::new();
    let mut log = create(&disk, small());
    for at in 0..12 {
        append(&mut log, &batch(1, 500, at));
    }
    append(&mut log, &in_transaction(2, 0, 3));
    append(&mut log, &marker(2, TransactionEnd::Commit));
    let row = close(log);
    let (log, report) = open(&disk, small(), row);
    assert_eq!(report, LoadReport::default());
    let bases = segment_bases(&log);
    disk.note_reads();
    assert!(log.reader().aborted(0, Offset::MAX).unwrap().is_empty());
    let read = disk.files_read();
    for base in &bases[..bases.len() - 1] {
        let path = in_folder(*base, Kind::Log).display().to_string();
        assert!(!read.contains(&path), "{path}");
    }
}
