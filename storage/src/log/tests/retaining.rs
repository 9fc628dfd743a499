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
    assert_eq!(retired.not_before, WallTime(NOW.0 + 10));
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
