//! Compaction: what stays and what goes, on whole logs.

use std::collections::BTreeMap;

use felix_protocol::batch::control::TransactionEnd;
use felix_protocol::batch::{BatchRecords, Limits as Unpacked};

use super::aborted::marker;
use super::*;
use crate::compaction::{Cleaned, CompactionConfig, CompactionError, OffsetMap, Summary};

mod crash;
mod model;
mod transactions;

/// Everything is worth a round.
pub(super) fn compacted() -> LogConfig {
    LogConfig {
        compacts: true,
        deletes: false,
        compaction: CompactionConfig {
            delete_retention_ms: 1000,
            min_dirty_millionths: 0,
            ..CompactionConfig::default()
        },
        ..small()
    }
}

pub(super) fn at(ms: i64) -> WallTime {
    WallTime(NOW.0 + ms)
}

/// A batch of keyed records; no value is a tombstone.
pub(super) fn keyed(records: &[(&str, Option<&str>)]) -> CheckedBatch {
    let mut builder = BatchBuilder::new();
    for (at, (key, value)) in records.iter().enumerate() {
        builder.push(500 + at as i64, Some(key.as_bytes()), value.map(str::as_bytes));
    }
    builder.build().unwrap()
}

/// One group after the other, with what may happen before each step.
pub(super) fn round_with(
    log: &mut Log<MemDisk>,
    now: WallTime,
    map_bytes: usize,
    mut between: impl FnMut(&mut Log<MemDisk>, &Cleaned<MemDisk>, usize),
) -> Result<Summary, CompactionError> {
    let (mark, synced) = (log.end(), log.synced());
    let Some(mut plan) = log.compaction_round(mark, synced) else { return Ok(Summary::default()) };
    if !plan.assess(now)?.is_worth_it() {
        return Ok(Summary::default());
    }
    let mut map = OffsetMap::new(map_bytes, 0.9);
    let mut round = plan.begin(&mut map, now, 100, &mut |_| true)?;
    while let Some(mut cleaned) = round.next_group(&mut |_| true)? {
        between(log, &cleaned, 0);
        if !log.claim(&cleaned) {
            cleaned.discard();
            return Err(CompactionError::Changed);
        }
        between(log, &cleaned, 1);
        if let Err(error) = cleaned.commit() {
            log.unclaim();
            return Err(error);
        }
        between(log, &cleaned, 2);
        match log.swap(cleaned)? {
            Some(replaced) => replaced.remove()?,
            None => return Err(CompactionError::Changed),
        }
    }
    let summary = round.summary();
    if let Some(content) = log.compacted(&summary) {
        log.reader().note_compaction(&content)?;
    }
    Ok(summary)
}

pub(super) fn round(log: &mut Log<MemDisk>, now: WallTime) -> Summary {
    round_with(log, now, 1 << 20, |_, _, _| {}).unwrap()
}

/// Offset, key and value of a record.
pub(super) type Kept = (Offset, Option<String>, Option<String>);

/// Every record that a reader finds, checksums checked.
pub(super) fn records(log: &Log<MemDisk>) -> Vec<Kept> {
    let reader = log.reader();
    let mut all = Vec::new();
    let mut from = reader.start();
    while from < reader.end() {
        let read = reader.read(from, 700, Offset::MAX, true).unwrap();
        assert!(read.next > from, "no progress at {from}");
        ranges(&read);
        for batch in Batches::new(joined(&read)) {
            let batch = batch.unwrap();
            if batch.header.is_control() {
                continue;
            }
            let mut records = BatchRecords::new(&batch.header, &batch.bytes, Unpacked::NONE).unwrap();
            while let Some(record) = records.next() {
                let record = record.unwrap();
                let text =
                    |bytes: Option<&[u8]>| bytes.map(|bytes| String::from_utf8_lossy(bytes).into_owned());
                let offset = batch.header.base_offset + i64::from(record.offset_delta);
                all.push((offset, text(record.key), text(record.value)));
            }
        }
        from = read.next;
    }
    all
}

pub(super) fn offsets(log: &Log<MemDisk>) -> Vec<Offset> {
    records(log).into_iter().map(|(offset, ..)| offset).collect()
}

/// Closes the active segment, flushed.
pub(super) fn roll(log: &mut Log<MemDisk>) {
    let end = log.end();
    log.roll(end, NOW).unwrap();
    flush(log);
}

/// Segments follow each other without a gap, and each closed one is sealed as its bytes are.
pub(super) fn check_files(disk: &MemDisk, log: &Log<MemDisk>) {
    let segments = log.segments();
    for pair in segments.windows(2) {
        let path = in_folder(pair[0].base(), Kind::Log);
        let content = Bytes::from(disk.content(&path).unwrap());
        let mut next = pair[0].base();
        for batch in Batches::new(content.clone()) {
            next = batch.unwrap().header.next_offset();
        }
        assert_eq!(next, pair[1].base(), "segment {} ends early", pair[0].base());
        assert_eq!(content.len() as u64, pair[0].size());
        match crate::seal::read(disk, &folder(), pair[0].base()) {
            crate::seal::Found::Seal(seal) => {
                assert_eq!((seal.size, seal.crc), (content.len() as u64, crc32c::crc32c(&content)));
            }
            crate::seal::Found::Missing => {}
            // It is not flushed: a crash may leave its length without its bytes.
            crate::seal::Found::Bad(reason) => {
                let found = disk.content(&in_folder(pair[0].base(), Kind::Seal)).unwrap();
                assert!(found.iter().all(|byte| *byte == 0), "{reason}");
            }
        }
    }
    let bytes: u64 = segments.iter().map(|segment| segment.size()).sum();
    assert_eq!(log.size_bytes(), bytes);
}

#[test]
fn of_each_key_the_newest_stays_where_it_was() {
    let disk = MemDisk::new();
    let mut log = Log::create(&without_tail(&disk), partition(), compacted(), 0, NOW).unwrap();
    append(&mut log, &keyed(&[("a", Some("1")), ("b", Some("1")), ("c", Some("1"))]));
    roll(&mut log);
    append(&mut log, &keyed(&[("b", Some("2")), ("d", Some("1"))]));
    roll(&mut log);
    append(&mut log, &keyed(&[("c", Some("2"))]));
    flush(&mut log);
    let summary = round(&mut log, NOW);
    assert_eq!((summary.end, summary.keys, summary.map_was_full), (5, 4, false));
    assert_eq!((summary.before_records, summary.after_records), (5, 4));
    // The newest c is in the segment that is being written, and is not known yet.
    assert_eq!(offsets(&log), [0, 2, 3, 4, 5]);
    assert_eq!(segment_bases(&log), [0, 5], "two small ones became one");
    check_files(&disk, &log);
    roll(&mut log);
    round(&mut log, NOW);
    assert_eq!(offsets(&log), [0, 3, 4, 5]);
    assert_eq!((log.start(), log.end()), (0, 6));
    check_files(&disk, &log);
    // From any offset the next record that is left comes.
    let reader = log.reader();
    for from in 0..6 {
        let read = reader.read(from, 1, Offset::MAX, true).unwrap();
        assert!(read.next > from);
    }
    drop(reader);
    // And so it is after every kind of restart.
    let before = records(&log);
    let row = stopped(&log);
    let (killed, _) = open(&disk.crash(Crash::LoseUnsynced), compacted(), row);
    assert_eq!(records(&killed), before);
    drop(killed);
    let row = close(log);
    let (log, _) = open(&disk, compacted(), row);
    assert_eq!(records(&log), before);
    assert!(log.compaction(6, 6).is_none(), "what was compacted is known after a restart");
}

#[test]
fn a_tombstone_stays_for_its_time_and_no_longer() {
    let disk = MemDisk::new();
    let mut log = Log::create(&without_tail(&disk), partition(), compacted(), 0, NOW).unwrap();
    append(&mut log, &keyed(&[("a", Some("1")), ("b", Some("1"))]));
    append(&mut log, &keyed(&[("a", None), ("c", Some("1"))]));
    roll(&mut log);
    let summary = round(&mut log, at(0));
    assert_eq!(summary.again_at, Some(at(1000).0));
    assert_eq!(offsets(&log), [1, 2, 3]);
    // Rounds in between leave its time as it is.
    append(&mut log, &keyed(&[("b", Some("2"))]));
    roll(&mut log);
    assert_eq!(round(&mut log, at(999)).again_at, Some(at(1000).0));
    assert_eq!(offsets(&log), [2, 3, 4]);
    let row = close(log);
    let (mut log, _) = open(&disk, compacted(), row);
    assert_eq!(round(&mut log, at(999)), Summary::default());
    // Nothing new was written, but its time has come.
    assert_eq!(round(&mut log, at(1000)).again_at, None);
    assert_eq!(offsets(&log), [3, 4]);
    assert_eq!(round(&mut log, at(5000)), Summary::default());
    check_files(&disk, &log);
}

#[test]
fn a_map_that_is_full_makes_several_rounds() {
    let disk = MemDisk::new();
    let mut log = Log::create(&without_tail(&disk), partition(), compacted(), 0, NOW).unwrap();
    for turn in 0..3 {
        for key in 0..20 {
            append(&mut log, &keyed(&[(&format!("k{key}"), Some(&format!("{turn}")))]));
        }
    }
    roll(&mut log);
    let mut rounds = 0;
    loop {
        let before = log.progress.end;
        // Room for seven keys.
        let summary = round_with(&mut log, NOW, 8 * 24, |_, _, _| {}).unwrap();
        if summary == Summary::default() {
            break;
        }
        assert!(summary.end > before && summary.map_bytes <= 8 * 24);
        rounds += 1;
        check_files(&disk, &log);
    }
    assert!(rounds >= 9, "{rounds}");
    assert_eq!(offsets(&log), (40..60).collect::<Vec<_>>());
    // One that cannot hold a single key is told.
    append(&mut log, &keyed(&[("x", Some("1"))]));
    roll(&mut log);
    let outcome = round_with(&mut log, NOW, 30, |_, _, _| {});
    assert!(matches!(outcome, Err(CompactionError::NoMemory)));
}

#[test]
fn the_mark_the_flush_and_open_transactions_are_bounds() {
    let disk = MemDisk::new();
    let mut log = Log::create(&without_tail(&disk), partition(), compacted(), 0, NOW).unwrap();
    for _ in 0..3 {
        append(&mut log, &keyed(&[("a", Some("1"))]));
        roll(&mut log);
    }
    assert_eq!(log.compaction(2, 3).unwrap().until, 2);
    assert_eq!(log.compaction(3, 1).unwrap().until, 1);
    assert!(log.compaction(0, 3).is_none());
    append(&mut log, &super::aborted::in_transaction(7, 0, 1));
    roll(&mut log);
    append(&mut log, &keyed(&[("a", Some("1"))]));
    roll(&mut log);
    assert_eq!(log.compaction(5, 5).unwrap().until, 3, "an open transaction begins at 3");
    append(&mut log, &marker(7, TransactionEnd::Commit));
    assert_eq!(log.compaction(6, 6).unwrap().until, 5);
}

#[test]
fn young_records_are_left_alone_and_old_ones_are_worth_a_round() {
    let disk = MemDisk::new();
    let lag = |min_lag_ms, max_lag_ms, min_dirty_millionths| LogConfig {
        compaction: CompactionConfig {
            min_lag_ms,
            max_lag_ms,
            min_dirty_millionths,
            ..compacted().compaction
        },
        ..compacted()
    };
    let mut log = Log::create(&without_tail(&disk), partition(), lag(0, i64::MAX, 0), 0, NOW).unwrap();
    let dated = |time: i64| {
        let mut builder = BatchBuilder::new();
        builder.push(time, Some(b"a"), Some(b"1"));
        builder.build().unwrap()
    };
    for time in [100, 300, 200, 400] {
        append(&mut log, &dated(time));
        roll(&mut log);
    }
    let until = |log: &Log<MemDisk>, now| {
        let mut plan = log.compaction(9, 9).unwrap();
        plan.assess(WallTime(now)).unwrap();
        plan.until
    };
    log.set_config(lag(50, i64::MAX, 0));
    assert_eq!([149, 150, 350, 449, 450].map(|now| until(&log, now)), [0, 1, 3, 3, 4]);
    log.set_config(lag(0, 250, 1_000_000));
    let worth =
        |log: &Log<MemDisk>, now| log.compaction(9, 9).unwrap().assess(WallTime(now)).unwrap().is_worth_it();
    assert_eq!([350, 351].map(|now| worth(&log, now)), [false, true]);
    // The share that is dirty must be larger than the limit, not equal to it.
    log.set_config(lag(0, i64::MAX, 999_999));
    assert!(worth(&log, 0));
    round(&mut log, NOW);
    append(&mut log, &dated(1));
    roll(&mut log);
    let dirtiness = log.compaction(9, 9).unwrap().assess(NOW).unwrap();
    assert!(dirtiness.millionths() < 600_000 && !dirtiness.is_worth_it(), "{dirtiness:?}");
    log.set_config(lag(0, i64::MAX, dirtiness.millionths() - 1));
    assert!(worth(&log, 0));
    log.set_config(lag(0, i64::MAX, dirtiness.millionths()));
    assert!(!worth(&log, 0));
}

#[test]
fn what_must_not_be_forgotten_stays_in_empty_batches() {
    let disk = MemDisk::new();
    let mut log = Log::create(&without_tail(&disk), partition(), compacted(), 0, NOW).unwrap();
    let by = |sequence: i32, value: &str| {
        let mut builder = BatchBuilder::new().producer(9, 2, sequence);
        builder.push(700, Some(b"a"), Some(value.as_bytes()));
        builder.build().unwrap()
    };
    for number in 1..=3_u32 {
        for turn in 0..2 {
            let sequence = i32::try_from(number - 1).unwrap() * 2 + turn;
            log.append(&by(sequence, "v"), generation(number), NOW).unwrap();
        }
    }
    // Another writer's record takes the key over.
    log.append(&keyed(&[("a", Some("end"))]), generation(3), NOW).unwrap();
    roll(&mut log);
    round(&mut log, NOW);
    assert_eq!(offsets(&log), [6]);
    let mut left = Vec::new();
    for batch in Batches::new(Bytes::from(disk.content(&in_folder(0, Kind::Log)).unwrap())) {
        let header = batch.unwrap().header;
        left.push((header.base_offset, header.records));
    }
    // The first of generations 1, 2 and 3, the producer's last, and the key's newest.
    assert_eq!(left, [(0, 0), (2, 0), (4, 0), (5, 0), (6, 1)]);
    let wanted = (log.generations().clone(), log.producers().describe());
    let row = stopped(&log);
    // Both are read from the batches when their files are gone.
    let after = disk.crash(Crash::LoseUnsynced);
    for entry in crate::disk::Disk::read_dir(&after, &folder()).unwrap() {
        if !entry.name.ends_with(".log") {
            crate::disk::Disk::remove_file(&after, &folder().join(&entry.name)).unwrap();
        }
    }
    let (log, _) = open(&after, compacted(), row);
    assert_eq!(log.generations(), &wanted.0);
    assert_eq!(log.end(), 7);
    let known = log.producers().describe();
    assert_eq!((known[0].last_sequence, known[0].epoch), (wanted.1[0].last_sequence, 2));
}

#[test]
fn no_reader_is_given_only_batches_without_records_while_records_follow() {
    let disk = MemDisk::new();
    let mut log = Log::create(&without_tail(&disk), partition(), compacted(), 0, NOW).unwrap();
    // Whole segments are taken over by later ones; the last segment's end by the active one.
    for (key, rolls) in [("a", true), ("b", true), ("a", true), ("c", false), ("b", true), ("a", true)] {
        log.append(&keyed(&[(key, Some("v"))]), generation(1), NOW).unwrap();
        if rolls {
            roll(&mut log);
        }
    }
    log.append(&keyed(&[("last", Some("v"))]), generation(1), NOW).unwrap();
    roll(&mut log);
    let mut by = BatchBuilder::new().producer(9, 2, 0);
    by.push(700, Some(b"gone"), Some(b"v"));
    log.append(&by.build().unwrap(), generation(1), NOW).unwrap();
    roll(&mut log);
    log.append(&keyed(&[("gone", None)]), generation(1), NOW).unwrap();
    roll(&mut log);
    // The second time the tombstone goes, too.
    round(&mut log, at(0));
    log.append(&keyed(&[("other", Some("v"))]), generation(1), NOW).unwrap();
    roll(&mut log);
    round(&mut log, at(5000));
    let kept = offsets(&log);
    assert!(kept.len() < usize::try_from(log.end()).unwrap());
    let reader = log.reader();
    let (mut passed, mut alone) = (0, 0);
    for max_bytes in [1, 100, 700] {
        for from in reader.start()..reader.end() {
            let read = reader.read_records(from, max_bytes, Offset::MAX, true).unwrap();
            let first = Batches::new(joined(&read)).next().unwrap().unwrap().header;
            let offset = kept.iter().find(|offset| **offset >= from).unwrap();
            assert!(first.records > 0 && first.last_offset() >= *offset, "{from}: {first:?}");
            passed += i32::from(first.base_offset > from);
            // Where nothing else may be told, the batch without records is.
            let read = reader.read_records(from, max_bytes, from + 1, true).unwrap();
            let batch = Batches::new(joined(&read)).next();
            alone += i32::from(batch.is_some_and(|batch| batch.unwrap().header.records == 0));
            assert!(read.bytes == 0 || read.next == from + 1);
        }
    }
    assert!(passed > 0 && alone > 0, "{passed}, {alone}");
}

#[test]
fn damage_is_met_and_never_passed_over() {
    let disk = MemDisk::new();
    let mut log = Log::create(&without_tail(&disk), partition(), compacted(), 0, NOW).unwrap();
    for at in 0..9 {
        append(&mut log, &keyed(&[("a", Some(&format!("{at}"))), ("b", Some("1"))]));
        if at % 3 == 2 {
            roll(&mut log);
        }
    }
    let path = in_folder(6, Kind::Log);
    let right = disk.content(&path).unwrap();
    let mut wrong = right.clone();
    let last = wrong.len() - 1;
    wrong[last] ^= 1;
    disk.put(&path, &wrong).unwrap();
    let outcome = round_with(&mut log, NOW, 1 << 20, |_, _, _| {});
    assert!(matches!(outcome, Err(CompactionError::Storage(StorageError::Damaged(_)))), "{outcome:?}");
    assert_eq!(disk.content(&path).unwrap(), wrong, "nothing is touched");
    let left = crate::disk::Disk::read_dir(&disk, &folder()).unwrap();
    assert!(!left.iter().any(|entry| entry.name.ends_with(layout::CLEANED)));
    disk.put(&path, &right).unwrap();
    round(&mut log, NOW);
    assert_eq!(offsets(&log), [16, 17]);
}

#[test]
fn readers_that_are_at_it_go_on_with_the_old_files() {
    let disk = MemDisk::new();
    let dir = limited(&disk, Limits { tail_bytes: 0, open_files: 8, ..Limits::default() });
    let mut log = Log::create(&dir, partition(), compacted(), 0, NOW).unwrap();
    for at in 0..60 {
        append(&mut log, &keyed(&[(&format!("k{}", at % 7), Some(&format!("{at} {}", "x".repeat(90))))]));
    }
    roll(&mut log);
    let old = log.segments().as_ref().clone();
    let before: Vec<Bytes> = old
        .iter()
        .map(|segment| {
            let file = segment.file().unwrap();
            Bytes::from(crate::disk::read_up_to(&*file, 1 << 20, 0).unwrap())
        })
        .collect();
    let content = |segment: &Segment<MemDisk>| {
        let file = segment.file().unwrap();
        Bytes::from(crate::disk::read_up_to(&*file, 1 << 20, 0).unwrap())
    };
    round(&mut log, NOW);
    // Whoever holds the old list reads what it read before, though names and slots are others' now.
    for (segment, before) in old[..old.len() - 1].iter().zip(&before) {
        segment.close_files();
        assert_eq!(content(segment), before);
        assert!(segment.is_replaced());
        let middle = segment.base() + 3;
        segment.position_for(middle).unwrap();
        segment.max_timestamp().unwrap();
    }
    assert_eq!(records(&log).len(), 7);
    check_files(&disk, &log);
    let open = disk.counters().open_now;
    drop(old);
    assert!(disk.counters().open_now < open, "and then they are closed");
}

#[test]
fn retention_and_cuts_in_the_middle_end_the_round() {
    for step in 0..3 {
        let disk = MemDisk::new();
        let config = LogConfig { deletes: true, ..compacted() };
        let mut log = Log::create(&without_tail(&disk), partition(), config.clone(), 0, NOW).unwrap();
        for at in 0..40 {
            append(
                &mut log,
                &keyed(&[(&format!("k{}", at % 3), Some(&format!("{at} {}", "x".repeat(200))))]),
            );
        }
        roll(&mut log);
        let whole = records(&log);
        let mut done = false;
        let outcome = round_with(&mut log, NOW, 1 << 20, |log, _, now| {
            if now == step && !done {
                done = true;
                log.truncate(3, NOW).unwrap();
            }
        });
        assert!(matches!(outcome, Err(CompactionError::Changed)), "step {step}: {outcome:?}");
        let end = log.end();
        let wanted: Vec<_> = whole.iter().filter(|record| record.0 < end).cloned().collect();
        assert_eq!(records(&log), wanted);
        // The cut holds after a restart: nothing of the round comes back.
        let row = Recovered { mark: 0, ..stopped(&log) };
        let (log, _) = open(&disk.crash(Crash::KeepAll), config.clone(), row);
        assert_eq!(records(&log), wanted, "step {step}");
        // Retention waits for what is claimed, and takes it afterwards.
        let disk = MemDisk::new();
        let mut log = Log::create(&without_tail(&disk), partition(), config.clone(), 0, NOW).unwrap();
        for at in 0..40 {
            append(
                &mut log,
                &keyed(&[(&format!("k{}", at % 3), Some(&format!("{at} {}", "x".repeat(200))))]),
            );
        }
        roll(&mut log);
        let end = log.end();
        let mut retired = Vec::new();
        let outcome = round_with(&mut log, NOW, 1 << 20, |log, _, now| {
            if now == step && retired.is_empty() {
                log.advance_start(end).unwrap();
                retired.push(log.retain(end, NOW).unwrap());
            }
        });
        assert_eq!(outcome.is_err(), step == 0, "step {step}: {outcome:?}");
        assert_eq!(retired[0].is_empty(), step > 0);
        assert_eq!(log.start(), end);
        retired.push(log.retain(end, NOW).unwrap());
        for mut retired in retired {
            retired.hide().unwrap();
            retired.remove().unwrap();
        }
        assert_eq!(log.size_bytes(), 0);
    }
}

#[test]
fn timestamps_are_found_exactly_afterwards() {
    let disk = MemDisk::new();
    let mut log = Log::create(&without_tail(&disk), partition(), compacted(), 0, NOW).unwrap();
    let mut model = BTreeMap::new();
    for at in 0..200_i64 {
        let mut builder = BatchBuilder::new().codec(Codec::ALL[(at % 5) as usize], 1);
        for within in 0..3 {
            let (offset, time) = (at * 3 + within, 1000 + (at * 7919 + within * 31) % 500);
            let key = format!("k{}", (offset * 13) % 50);
            builder.push(time, Some(key.as_bytes()), Some(&[1; 60]));
            model.insert(key, (offset, time));
        }
        append(&mut log, &builder.build().unwrap());
    }
    roll(&mut log);
    round(&mut log, NOW);
    let mut left: Vec<_> = model.into_values().collect();
    left.sort_unstable();
    assert_eq!(offsets(&log), left.iter().map(|(offset, _)| *offset).collect::<Vec<_>>());
    let check = |log: &Log<MemDisk>| {
        let reader = log.reader();
        for time in 990..1510 {
            let wanted = left.iter().find(|(_, at)| *at >= time).copied();
            let found = reader.offset_for_timestamp(time, Offset::MAX).unwrap();
            assert_eq!(found.map(|found| (found.offset, found.timestamp)), wanted, "{time}");
        }
        let latest = left.iter().rev().max_by_key(|(_, at)| *at).copied();
        let found = reader.max_timestamp(Offset::MAX).unwrap();
        assert_eq!(found.map(|found| (found.offset, found.timestamp)), latest);
    };
    check(&log);
    let row = close(log);
    let (log, report) = open(&disk, compacted(), row);
    assert_eq!(report.rebuilt, []);
    check(&log);
}

#[test]
fn a_stop_leaves_nothing_behind() {
    let disk = MemDisk::new();
    let mut log = Log::create(&without_tail(&disk), partition(), compacted(), 0, NOW).unwrap();
    for at in 0..300 {
        append(&mut log, &keyed(&[(&format!("k{}", at % 3), Some(&"x".repeat(200)))]));
    }
    roll(&mut log);
    let before = records(&log);
    let plan = log.compaction_round(log.end(), log.end()).unwrap();
    let mut map = OffsetMap::new(1 << 20, 0.9);
    let mut left = 1;
    let mut round = plan.begin(&mut map, NOW, 100, &mut |_| true).unwrap();
    let mut pace = |_| {
        left -= 1;
        left > 0
    };
    assert!(matches!(round.next_group(&mut pace), Err(CompactionError::Stopped)));
    let names = crate::disk::Disk::read_dir(&disk, &folder()).unwrap();
    assert!(!names.iter().any(|entry| entry.name.ends_with(layout::CLEANED)));
    assert_eq!(records(&log), before);
}
