use super::*;

const DAY: i64 = 86_400_000;

fn filled(disk: &MemDisk, config: LogConfig) -> Log<MemDisk> {
    let mut log = create(disk, config);
    for at in 0..20 {
        append(&mut log, &batch(1, 400, at * 10));
    }
    flush(&mut log);
    log
}

fn files(disk: &MemDisk) -> Vec<String> {
    let mut names: Vec<_> =
        crate::disk::Disk::read_dir(disk, &folder()).unwrap().into_iter().map(|entry| entry.name).collect();
    names.sort();
    names
}

#[test]
fn size_takes_whole_segments_from_the_front_never_above_the_mark() {
    let disk = MemDisk::new();
    let mut log = filled(&disk, LogConfig { retention_bytes: Some(4_000), ..small() });
    let bases = segment_bases(&log);
    assert!(log.retain(bases[1] - 1, NOW).unwrap().is_empty(), "the mark is inside of the first");
    let retired = log.retain(bases[1], NOW).unwrap();
    assert_eq!((retired.segments, retired.start, log.start()), (1, bases[1], bases[1]));
    let retired = log.retain(log.end(), NOW).unwrap();
    assert!(log.size_bytes() >= 4_000 && log.size_bytes() < 4_000 + 2_000);
    assert_eq!(log.reader().start(), retired.start);
    assert!(matches!(log.reader().read(0, 1, 100, true), Err(ReadError::BelowStart { .. })));
}

#[test]
fn time_goes_by_the_newest_record_and_empties_the_log_at_last() {
    let disk = MemDisk::new();
    let mut log = filled(&disk, LogConfig { retention_ms: Some(DAY), ..small() });
    let last = log.active.base();
    let newest_below = (last - 1) * 10;
    assert!(log.retain(20, WallTime(DAY)).unwrap().is_empty());
    let retired = log.retain(20, WallTime(DAY + newest_below + 1)).unwrap();
    assert_eq!(retired.start, last);
    let retired = log.retain(20, WallTime(DAY + 191)).unwrap();
    assert_eq!((retired.start, log.start(), log.end()), (20, 20, 20));
    assert_eq!(log.size_bytes(), 0);
    assert_eq!(append(&mut log, &batch(1, 1, 5)).base_offset, 20, "the end is never forgotten");
    assert!(log.retain(20, WallTime(DAY * 9)).unwrap().is_empty(), "it lies above the mark");
}

#[test]
fn records_of_the_future_do_not_stop_retention_by_size() {
    let disk = MemDisk::new();
    let mut log = create(&disk, LogConfig { retention_ms: Some(DAY), retention_bytes: Some(1), ..small() });
    for _ in 0..10 {
        append(&mut log, &batch(1, 400, NOW.0 * 1_000));
    }
    log.retain(10, NOW).unwrap();
    assert!(log.start() > 0);
}

#[test]
fn records_without_a_time_age_with_their_file() {
    let disk = MemDisk::new();
    disk.set_now(WallTime(5_000));
    let mut log = create(&disk, LogConfig { retention_ms: Some(1_000), ..small() });
    let mut timeless = BatchBuilder::new();
    timeless.push(-1, None, Some(b"x"));
    append(&mut log, &timeless.build().unwrap());
    assert!(log.retain(1, WallTime(6_000)).unwrap().is_empty());
    assert_eq!(log.retain(1, WallTime(6_001)).unwrap().start, 1);
}

/// Known fault B048. Microseconds taken for milliseconds, or a producer whose clock is years ahead.
#[test]
fn records_of_the_future_age_with_their_file_and_hold_back_nobody() {
    let disk = MemDisk::new();
    let config = LogConfig { retention_ms: Some(DAY), ..small() };
    let mut log = create(&disk, config.clone());
    disk.set_now(NOW);
    for at in 0..6 {
        append(&mut log, &batch(1, 400, NOW.0 * 1_000 + at));
    }
    let future = log.active.base();
    disk.set_now(WallTime(NOW.0 + 100));
    log.roll(log.end(), NOW).unwrap();
    append(&mut log, &batch(1, 400, NOW.0));
    let end = log.end();
    assert!(future > 0);
    assert!(
        log.retain(end, WallTime(NOW.0 + DAY)).unwrap().is_empty(),
        "their files are not older than a day"
    );
    let start = log.retain(end, WallTime(NOW.0 + DAY + 1)).unwrap().start;
    assert_eq!(start, end, "and then they go, with what lies behind them");
    // The same after a restart.
    append(&mut log, &batch(1, 400, i64::MAX - 1));
    let recovered = close(log);
    let (mut log, _) = open(&disk, config, recovered);
    let written = NOW.0 + 100;
    assert!(log.retain(log.end(), WallTime(written + DAY)).unwrap().is_empty());
    assert_eq!(log.retain(log.end(), WallTime(written + DAY + 1)).unwrap().start, log.end());
}

#[test]
fn what_records_say_of_the_past_counts_whatever_their_file_says() {
    let disk = MemDisk::new();
    let config = LogConfig { retention_ms: Some(DAY), ..small() };
    // Written while the broker's clock was at 1970: the files' times are as wrong as the clock was.
    disk.set_now(WallTime(5));
    let mut log = create(&disk, config);
    let true_time = 1_700_000_000_000;
    append(&mut log, &batch(3, 400, true_time));
    assert!(log.retain(3, WallTime(5)).unwrap().is_empty());
    assert!(
        log.retain(3, WallTime(true_time + DAY)).unwrap().is_empty(),
        "the clock was set right, nothing goes"
    );
    assert_eq!(log.retain(3, WallTime(true_time + DAY + 3)).unwrap().start, 3);
}

/// Known fault B048: what was said is done, and only that.
#[test]
fn records_of_the_past_go_by_their_time_but_not_while_newer_ones_share_their_segment() {
    let disk = MemDisk::new();
    let now = WallTime(100 * DAY);
    let mut log = create(&disk, LogConfig { retention_ms: Some(7 * DAY), ..small() });
    append(&mut log, &batch(1, 400, 70 * DAY));
    append(&mut log, &batch(1, 400, 0));
    append(&mut log, &batch(1, 400, 100 * DAY));
    assert!(log.retain(3, now).unwrap().is_empty());
    log.roll(3, now).unwrap();
    append(&mut log, &batch(1, 400, 70 * DAY));
    assert!(log.retain(4, now).unwrap().is_empty(), "an older segment first");
    let retired = log.retain(4, WallTime(108 * DAY)).unwrap();
    assert_eq!((retired.start, retired.segments), (4, 2));
    append(&mut log, &batch(1, 400, 70 * DAY));
    assert!(log.retain(4, now).unwrap().is_empty(), "not above the mark");
    assert_eq!(log.retain(5, now).unwrap().start, 5, "the segment that is written is closed first");
    assert_eq!(log.active.base(), 5);
}

#[test]
fn segments_end_in_time_whatever_time_their_first_record_claims() {
    let config = LogConfig { segment_ms: 1_000, ..LogConfig::default() };
    for first in [-1, NOW.0 * 1_000, i64::MAX] {
        let disk = MemDisk::new();
        let mut log = create(&disk, config.clone());
        let mut builder = BatchBuilder::new();
        builder.push(first, None, Some(b"x"));
        append(&mut log, &builder.build().unwrap());
        let later = |ms| WallTime(NOW.0 + ms);
        let rolled = log.append(&batch(1, 1, NOW.0 + 900), generation(1), later(900)).unwrap().rolled;
        assert!(!rolled, "{first}");
        let rolled = log.append(&batch(1, 1, NOW.0 + 1_001), generation(1), later(1_001)).unwrap().rolled;
        assert!(rolled, "{first}");
        // A clock that goes back does not stop the next one from ageing.
        builder = BatchBuilder::new();
        builder.push(-1, None, Some(b"x"));
        log.roll(log.end(), later(1 << 40)).unwrap();
        log.append(&builder.build().unwrap(), generation(1), later(2_000)).unwrap();
        assert!(!log.roll_if_due(later(2_500)).unwrap());
        assert!(log.roll_if_due(later(3_600)).unwrap(), "{first}");
    }
}

#[test]
fn new_settings_count_from_the_next_look_and_the_next_append_on() {
    let disk = MemDisk::new();
    let mut log = filled(&disk, LogConfig { retention_ms: Some(DAY), ..small() });
    let (start, end) = (log.start(), log.end());
    assert!(log.retain(end, WallTime(DAY)).unwrap().is_empty());
    log.set_config(LogConfig { retention_ms: None, retention_bytes: Some(3_000), ..small() });
    assert!(log.retain(end, WallTime(9 * DAY)).unwrap().start > start);
    assert!(log.size_bytes() >= 3_000);
    log.set_config(LogConfig { deletes: false, retention_bytes: Some(0), ..small() });
    assert!(log.retain(end, WallTime(9 * DAY)).unwrap().is_empty(), "an empty policy deletes nothing");
    log.set_config(LogConfig { segment_bytes: 1 << 20, ..small() });
    for at in 0..20 {
        assert!(!append(&mut log, &batch(1, 400, at)).rolled, "the segment may be longer now");
    }
    log.set_config(LogConfig { segment_bytes: 500, ..small() });
    assert!(append(&mut log, &batch(1, 400, 5)).rolled);
    log.set_config(LogConfig { retention_ms: Some(1_000), ..small() });
    assert_eq!(log.retain(log.end(), WallTime(DAY)).unwrap().start, log.end());
    assert_eq!(log.size_bytes(), 0, "what is gone is not counted");
}

#[test]
fn a_reader_in_the_middle_is_told_that_the_log_begins_later_and_look_ups_go_on() {
    let disk = MemDisk::new();
    let dir = without_tail(&disk);
    let mut log =
        Log::create(&dir, partition(), LogConfig { retention_bytes: Some(0), ..small() }, 0, NOW).unwrap();
    for at in 0..20 {
        append(&mut log, &batch(1, 400, at * 10));
    }
    flush(&mut log);
    let reader = log.reader();
    let looking = reader.clone();
    let (stop, stopped) = std::sync::mpsc::channel::<()>();
    let looker = std::thread::spawn(move || {
        let mut looks = 0;
        while stopped.try_recv() == Err(std::sync::mpsc::TryRecvError::Empty) {
            // Asked before: the start may have moved on since the look-up.
            let start = looking.start();
            let greatest = looking.max_timestamp(Offset::MAX).unwrap();
            assert!(greatest.is_none_or(|found| found.offset + 1 >= start));
            looking.offset_for_timestamp(50, Offset::MAX).unwrap();
            looks += 1;
        }
        looks
    });
    for round in 0..300 {
        let end = log.end();
        for at in 0..4 {
            append(&mut log, &batch(1, 400, 200 + round * 10 + at));
        }
        flush(&mut log);
        let mut retired = log.retain(end, NOW).unwrap();
        retired.hide().unwrap();
        retired.remove().unwrap();
    }
    drop(stop);
    assert!(looker.join().unwrap() > 0);
    let start = reader.start();
    assert!(matches!(reader.read(3, 1, 100, true), Err(ReadError::BelowStart { start: at }) if at == start));
    assert_eq!(everything(&reader).first().map(|(base, _)| *base), Some(start));
}

#[test]
fn a_compacted_topic_loses_only_what_lies_below_its_start() {
    let disk = MemDisk::new();
    let config = LogConfig {
        deletes: false,
        compacts: true,
        retention_ms: Some(1),
        retention_bytes: Some(1),
        ..small()
    };
    let mut log = filled(&disk, config);
    assert!(log.retain(20, WallTime(DAY)).unwrap().is_empty());
    let second = segment_bases(&log)[2];
    log.advance_start(second + 1).unwrap();
    assert_eq!(log.retain(20, WallTime(DAY)).unwrap().segments, 2);
    assert_eq!(log.start(), second + 1);
}

#[test]
fn removal_takes_two_steps_and_survives_a_crash_between() {
    let disk = MemDisk::new();
    let config = LogConfig { retention_bytes: Some(0), ..small() };
    let mut log = filled(&disk, config.clone());
    let reader = log.reader();
    let mut retired = log.retain(20, NOW).unwrap();
    assert_eq!(retired.delay, std::time::Duration::from_millis(10));
    flush(&mut log);
    let recovered = Recovered { mark: 20, ..stopped(&log) };
    // Before the files got other names: the durable log start says that they are not the log's.
    let before = disk.crash(Crash::LoseUnsynced);
    let (opened, _) = open(&before, config.clone(), recovered);
    assert_eq!((opened.start(), opened.end()), (20, 20));
    assert_eq!(files(&before).iter().filter(|name| name.ends_with(".log")).count(), 1);
    retired.hide().unwrap();
    retired.hide().unwrap();
    assert!(files(&disk).iter().any(|name| name.ends_with(".log.deleted")));
    let between = disk.crash(Crash::KeepAll);
    let (opened, _) = open(&between, config, recovered);
    assert_eq!((opened.start(), opened.end()), (20, 20));
    assert!(!files(&between).iter().any(|name| name.ends_with(".deleted")));
    retired.remove().unwrap();
    assert!(!files(&disk).iter().any(|name| name.ends_with(".deleted")));
    assert!(matches!(reader.read(0, 1, 100, true), Err(ReadError::BelowStart { start: 20 })));
}

#[test]
fn the_log_start_may_lie_inside_of_a_batch() {
    let disk = MemDisk::new();
    let mut log = create(&disk, small());
    append(&mut log, &batch(100, 5, 1_000));
    assert_eq!(log.advance_start(50).unwrap(), 50);
    assert_eq!(log.advance_start(40).unwrap(), 50);
    assert!(matches!(log.advance_start(101), Err(StorageError::OutOfRange { .. })));
    let recovered = close(log);
    let (mut log, _) = open(&disk, small(), recovered);
    assert_eq!(log.start(), 50);
    let reader = log.reader();
    assert_eq!(ranges(&reader.read(50, 1, 100, true).unwrap()), [(0, 100)]);
    assert!(matches!(reader.read(49, 1, 100, true), Err(ReadError::BelowStart { start: 50 })));
    let found = reader.offset_for_timestamp(0, 100).unwrap().unwrap();
    assert_eq!((found.offset, found.timestamp), (50, 1_050));
    log.advance_start(100).unwrap();
    assert_eq!(log.retain(100, NOW).unwrap().segments, 0, "Kafka keeps the active segment, too");
    assert_eq!(append(&mut log, &batch(1, 1, 5)).base_offset, 100);
}

/// A crash keeps any of the names that retention took away, and may lose that of the new segment.
#[test]
fn what_is_left_below_the_log_start_may_have_holes() {
    use crate::disk::Disk;

    for kept in 0..16 {
        let disk = MemDisk::new();
        let mut log = create(&disk, small());
        for at in 0..9 {
            append(&mut log, &batch(1, 500, at));
        }
        flush(&mut log);
        log.set_config(LogConfig { retention_bytes: Some(0), ..small() });
        let gone = segment_bases(&log);
        assert_eq!(gone.len(), 3);
        assert_eq!(log.retain(9, NOW).unwrap().start, 9);
        let row = Recovered { mark: 9, synced: 9, log_start: 9, ..Recovered::default() };
        let after = disk.crash(Crash::KeepAll);
        for (at, base) in gone.iter().chain([&9]).enumerate() {
            if kept & (1 << at) == 0 {
                after.remove_file(&in_folder(*base, Kind::Log)).unwrap();
            }
        }
        let (mut log, _) = open(&after, small(), row);
        assert_eq!((log.start(), log.end()), (9, 9), "{kept:b}");
        assert_eq!(append(&mut log, &batch(1, 10, 5)).base_offset, 9);
    }
}

/// Files that retention took may wait for a long time for a row to be durable. A log that was begun anew meanwhile may have
/// files of the same names.
#[test]
fn what_retention_is_owed_of_a_log_that_was_given_up_is_not_taken_from_the_one_in_its_place() {
    for hidden_before in [false, true] {
        let disk = MemDisk::new();
        let mut log = filled(&disk, LogConfig { retention_bytes: Some(4_000), ..small() });
        let bases = segment_bases(&log);
        let mut retired = log.retain(20, NOW).unwrap();
        if hidden_before {
            retired.hide().unwrap();
        }
        log.give_up().unwrap().remove().unwrap();
        assert!(matches!(log.append(&batch(1, 1, 5), generation(1), NOW), Err(StorageError::Poisoned)));
        log.begin_anew(bases[0], NOW).unwrap();
        for at in 0..12 {
            append(&mut log, &batch(1, 400, at * 10));
        }
        flush(&mut log);
        let before = files(&disk);
        retired.hide().unwrap();
        retired.remove().unwrap();
        assert_eq!(files(&disk), before);
        assert_eq!(everything(&log.reader()).len(), 12);
    }
}
