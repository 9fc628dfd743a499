//! Transactions and compaction: KAFKA-8351 and KAFKA-8522 (B042).

use super::*;
use crate::log::tests::aborted::in_transaction;

fn data(producer: i64, sequence: i32, key: &str, value: &str) -> CheckedBatch {
    let mut builder = BatchBuilder::new().producer(producer, 0, sequence).transactional();
    builder.push(500, Some(key.as_bytes()), Some(value.as_bytes()));
    builder.build().unwrap()
}

/// What a consumer that reads only what was committed gets, as clients do it: records of a producer are
/// dropped from the first offset of an aborted transaction of his on, until the next marker of his.
pub(super) fn committed(log: &Log<MemDisk>) -> Vec<Kept> {
    let reader = log.reader();
    let stable = log.producers().first_open_transaction().unwrap_or(log.end());
    let mut all = Vec::new();
    let mut from = reader.start();
    while from < stable {
        let read = reader.read(from, 300, stable, true).unwrap();
        assert!(read.next > from, "no progress at {from}");
        let mut told = reader.aborted(from, read.next).unwrap();
        told.sort_by_key(|entry| entry.first_offset);
        let mut told = told.into_iter().peekable();
        let mut aborted = std::collections::BTreeSet::new();
        for batch in Batches::new(joined(&read)) {
            let batch = batch.unwrap();
            let header = batch.header;
            while let Some(entry) = told.next_if(|entry| entry.first_offset <= header.last_offset()) {
                aborted.insert(entry.producer_id);
            }
            if header.is_control() {
                aborted.remove(&header.producer_id);
                continue;
            }
            if header.is_transactional() && aborted.contains(&header.producer_id) {
                continue;
            }
            let mut records = BatchRecords::new(&header, &batch.bytes, Unpacked::NONE).unwrap();
            while let Some(record) = records.next() {
                let record = record.unwrap();
                let text =
                    |bytes: Option<&[u8]>| bytes.map(|bytes| String::from_utf8_lossy(bytes).into_owned());
                let offset = header.base_offset + i64::from(record.offset_delta);
                all.push((offset, text(record.key), text(record.value)));
            }
        }
        from = read.next;
    }
    all
}

/// A producer's record (of that turn), or the end of its transaction.
type Deed = (i64, Option<TransactionEnd>, i32);

/// The newest of each key.
fn newest(records: &[Kept]) -> BTreeMap<String, (Offset, String)> {
    let mut newest = BTreeMap::new();
    for (offset, key, value) in records {
        newest.insert(key.clone().unwrap(), (*offset, value.clone().unwrap()));
    }
    newest
}

/// Control batches that are left: offset and whether they have their record.
fn markers(log: &Log<MemDisk>) -> Vec<(Offset, bool)> {
    let mut from = log.start();
    let mut all = Vec::new();
    while from < log.end() {
        let read = log.reader().read(from, 1 << 20, Offset::MAX, true).unwrap();
        for batch in Batches::new(joined(&read)) {
            let header = batch.unwrap().header;
            if header.is_control() {
                all.push((header.base_offset, header.records > 0));
            }
        }
        from = read.next;
    }
    all
}

#[test]
fn three_transactions_over_six_segments_one_of_them_aborted() {
    let disk = MemDisk::new();
    let mut log = Log::create(&without_tail(&disk), partition(), compacted(), 0, NOW).unwrap();
    // What was committed: offset, key, value.
    let mut model: Vec<Kept> = Vec::new();
    let mut open: BTreeMap<i64, Vec<Kept>> = BTreeMap::new();
    let mut write = |log: &mut Log<MemDisk>, model: &mut Vec<Kept>, what: Deed| {
        let (producer, end, turn) = what;
        match end {
            None => {
                let key = format!("k{}", (producer + i64::from(turn)) % 4);
                let value = format!("{producer}.{turn} {}", "x".repeat(150));
                let appended = append(log, &data(producer, turn, &key, &value));
                open.entry(producer).or_default().push((appended.base_offset, Some(key), Some(value)));
            }
            Some(end) => {
                append(log, &marker(producer, end));
                let written = open.remove(&producer).unwrap_or_default();
                if end == TransactionEnd::Commit {
                    model.extend(written);
                    model.sort();
                }
            }
        }
    };
    let (commit, abort) = (Some(TransactionEnd::Commit), Some(TransactionEnd::Abort));
    let segments: [&[Deed]; 6] = [
        &[(1, None, 0), (2, None, 0), (3, None, 0)],
        &[(1, None, 1), (2, None, 1), (3, None, 1)],
        &[(2, None, 2), (1, commit, 0), (3, None, 2)],
        &[(2, None, 3), (1, None, 2), (3, commit, 0)],
        // The abort marker lies far behind its data.
        &[(1, None, 3), (2, abort, 0), (3, None, 3)],
        &[(1, commit, 0), (3, commit, 0)],
    ];
    let mut time = 0;
    let check = |log: &mut Log<MemDisk>, model: &[Kept], time: i64| {
        // Consumers of committed records see those below the first undecided transaction.
        let stable = log.producers().first_open_transaction().unwrap_or(Offset::MAX);
        let below: Vec<Kept> = model.iter().filter(|record| record.0 < stable).cloned().collect();
        assert_eq!(newest(&committed(log)), newest(&below), "before, at {time}");
        round_with(log, at(time), 1 << 20, |_, _, _| {}).unwrap();
        assert_eq!(newest(&committed(log)), newest(&below), "after, at {time}");
        check_files(&disk, log);
    };
    for segment in segments {
        for what in segment {
            write(&mut log, &mut model, *what);
        }
        roll(&mut log);
        check(&mut log, &model, time);
        time += 10;
    }
    let abort_at = 13;
    assert!(markers(&log).contains(&(abort_at, true)));
    // The producers forget, so that nothing is kept for their sake, and go on elsewhere.
    log.producers = Producers::default();
    log.roll(log.end(), NOW).unwrap();
    // The data of the aborted one is gone; its marker stays for its time.
    assert!(
        committed(&log).len() <= 4
            && records(&log)
                .iter()
                .all(|(_, _, value)| { !value.as_deref().unwrap_or_default().starts_with("2.") })
    );
    append(&mut log, &keyed(&[("other", Some("1"))]));
    model.push((log.end() - 1, Some("other".to_string()), Some("1".to_string())));
    roll(&mut log);
    // In this round the last of its batches goes, which was there for its producer's sequence.
    check(&mut log, &model, 100);
    assert!(markers(&log).contains(&(abort_at, true)));
    append(&mut log, &keyed(&[("other", Some("2"))]));
    model.push((log.end() - 1, Some("other".to_string()), Some("2".to_string())));
    roll(&mut log);
    // Now nothing of it is left, and the marker's own time begins.
    check(&mut log, &model, 200);
    assert!(markers(&log).contains(&(abort_at, true)));
    check(&mut log, &model, 1_199);
    assert!(markers(&log).contains(&(abort_at, true)), "one millisecond early");
    check(&mut log, &model, 1_200);
    assert!(!markers(&log).iter().any(|(offset, _)| *offset == abort_at));
    assert!(log.reader().aborted(0, Offset::MAX).unwrap().is_empty());
}

#[test]
fn aborted_records_never_take_the_place_of_others() {
    let disk = MemDisk::new();
    let mut log = Log::create(&without_tail(&disk), partition(), compacted(), 0, NOW).unwrap();
    append(&mut log, &keyed(&[("a", Some("committed"))]));
    append(&mut log, &data(1, 0, "a", "aborted"));
    roll(&mut log);
    append(&mut log, &marker(1, TransactionEnd::Abort));
    append(&mut log, &in_transaction(2, 0, 1));
    append(&mut log, &marker(2, TransactionEnd::Commit));
    // The marker is not in the part that is compacted.
    let summary = round(&mut log, NOW);
    assert_eq!(summary.end, 2);
    assert_eq!(records(&log)[0].2.as_deref(), Some("committed"));
    assert_eq!(committed(&log)[0].2.as_deref(), Some("committed"));
    assert!(!records(&log).iter().any(|record| record.2.as_deref() == Some("aborted")));
    // The producer's last sequence is not lost with it.
    assert_eq!(log.producers().describe()[0].last_sequence, 0);
    roll(&mut log);
    round(&mut log, NOW);
    assert_eq!(committed(&log).len(), 2);
    let wanted = log.reader().aborted(0, Offset::MAX).unwrap();
    assert_eq!((wanted.len(), wanted[0].first_offset, wanted[0].last_offset), (1, 1, 2));
    let row = close(log);
    let (log, _) = open(&disk, compacted(), row);
    assert_eq!(log.reader().aborted(0, Offset::MAX).unwrap(), wanted);
    assert_eq!(committed(&log).len(), 2);
}

#[test]
fn an_aborted_transaction_is_finished_although_nothing_new_is_written() {
    let disk = MemDisk::new();
    let mut log = Log::create(&without_tail(&disk), partition(), compacted(), 0, NOW).unwrap();
    append(&mut log, &data(1, 0, "a", "aborted"));
    append(&mut log, &marker(1, TransactionEnd::Abort));
    append(&mut log, &data(1, 1, "b", "kept"));
    append(&mut log, &marker(1, TransactionEnd::Commit));
    roll(&mut log);
    assert_eq!(round(&mut log, at(0)).again_at, Some(at(1000).0));
    assert_eq!(markers(&log).len(), 2);
    assert_eq!(round(&mut log, at(1000)).again_at, Some(at(2000).0), "the marker's own time begins");
    assert_eq!(markers(&log).len(), 2);
    assert_eq!(round(&mut log, at(2000)).again_at, None);
    assert_eq!(markers(&log), [(3, true)], "that of the other transaction stays with its record");
    assert_eq!(offsets(&log), [2]);
    assert_eq!(round(&mut log, at(9000)), Summary::default());
}
