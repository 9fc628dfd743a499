use super::*;

#[test]
fn batches_get_offsets_and_generations_and_read_back_as_sent() {
    let disk = MemDisk::new();
    let mut log = create(&disk, LogConfig::default());
    let first = append(&mut log, &batch(3, 10, 100));
    assert_eq!((first.base_offset, first.last_offset, first.end, first.rolled), (0, 2, 3, false));
    let sent = batch(2, 10_000, 200);
    let second = log.append(&sent, generation(4), NOW).unwrap();
    assert_eq!((second.base_offset, second.end), (3, 5));
    let reader = log.reader();
    for tail in [true, false] {
        if !tail {
            log.shared.tail.clear(log.shared.home.dir.tail());
        }
        let read = reader.read(3, 1 << 20, Offset::MAX, false).unwrap();
        let bytes = joined(&read);
        assert_eq!((read.bytes, read.next), (sent.bytes().len(), 5));
        assert_eq!(bytes[16..], sent.bytes()[16..]);
        let stored = Batches::new(bytes).next().unwrap().unwrap();
        assert_eq!((stored.header.base_offset, stored.header.generation), (3, Some(generation(4))));
    }
    assert_eq!(log.generations().entries(), [(generation(1), 0), (generation(4), 3)]);
    assert_eq!(reader.generation_at(2), Some(generation(1)));
    assert_eq!(reader.generation_end(generation(1)).unwrap().end, 3);
}

#[test]
fn an_append_is_one_write() {
    let disk = MemDisk::new();
    let mut log = create(&disk, LogConfig::default());
    let before = disk.counters().writes;
    for _ in 0..100 {
        append(&mut log, &batch(1, 100, 5));
    }
    assert_eq!(disk.counters().writes - before, 100);
}

#[test]
fn reads_are_bounded_as_asked() {
    let disk = MemDisk::new();
    let dir = without_tail(&disk);
    for dir in [dir.clone(), dir] {
        let _ = dir.disk().remove_dir_all(&folder());
        let mut log = Log::create(&dir, partition(), LogConfig::default(), 0, NOW).unwrap();
        for _ in 0..10 {
            append(&mut log, &batch(10, 10, 5));
        }
        let one = batch(10, 10, 5).bytes().len();
        let reader = log.reader();
        let read = |from, max, limit, least| ranges(&reader.read(from, max, limit, least).unwrap());
        assert_eq!(read(25, 2 * one, 100, false), [(20, 30), (30, 40)]);
        assert_eq!(read(25, 2 * one + 1, 35, false), [(20, 30)]);
        assert_eq!(read(25, one - 1, 100, false), []);
        assert_eq!(read(25, one - 1, 100, true), [(20, 30)]);
        assert_eq!(read(25, 0, 100, true), [(20, 30)]);
        assert_eq!(read(25, 1 << 20, 25, true), [], "the batch reaches beyond the limit");
        assert_eq!(read(100, 100, 100, true), []);
        assert!(matches!(reader.read(101, 1, 200, true), Err(ReadError::BeyondEnd { end: 100 })));
        log.advance_start(25).unwrap();
        assert!(matches!(reader.read(24, 1, 200, true), Err(ReadError::BelowStart { start: 25 })));
        assert_eq!(read(25, 1, 100, true), [(20, 30)]);
    }
}

#[test]
fn segments_roll_by_size_index_and_time() {
    let disk = MemDisk::new();
    let mut log = create(&disk, small());
    let size = batch(1, 400, 5).bytes().len();
    for _ in 0..12 {
        append(&mut log, &batch(1, 400, 5));
    }
    let each = i64::try_from(2_000 / size).unwrap();
    assert_eq!(segment_bases(&log)[..3], [0, each, 2 * each]);
    let huge = append(&mut log, &batch(1, 50_000, 5));
    assert!(huge.rolled, "a batch larger than a segment has one of its own");
    assert!(append(&mut log, &batch(1, 10, 5)).rolled);
    let before = log.segments().len();
    log.set_config(LogConfig { segment_ms: 1_000, segment_bytes: 1 << 20, ..small() });
    append(&mut log, &batch(1, 10, 1_005));
    assert_eq!(log.segments().len(), before);
    assert!(append(&mut log, &batch(1, 10, 1_006)).rolled, "records span more than segment.ms");
    log.set_config(LogConfig { index_bytes: 60, segment_bytes: 1 << 20, ..small() });
    let rolled = (0..12).filter(|_| append(&mut log, &batch(1, 400, 1_006)).rolled).count();
    assert!(rolled >= 1, "an index is full");
    assert_eq!(everything(&log.reader()).len(), 12 + 2 + 2 + 12);
}

#[test]
fn time_rolls_by_the_wall_clock_where_records_have_no_time() {
    let disk = MemDisk::new();
    let mut log = create(&disk, LogConfig { segment_ms: 1_000, ..LogConfig::default() });
    let mut timeless = BatchBuilder::new();
    timeless.push(-1, None, Some(b"x"));
    let timeless = timeless.build().unwrap();
    append(&mut log, &timeless);
    assert!(!log.roll_if_due(WallTime(NOW.0 + 1_000)).unwrap());
    assert!(log.roll_if_due(WallTime(NOW.0 + 1_001)).unwrap());
    assert!(!log.roll_if_due(WallTime(NOW.0 + 9_001)).unwrap(), "an empty segment is never due");
}

#[test]
fn a_full_disk_refuses_whole_batches_and_heals() {
    let disk = MemDisk::new();
    let mut log = create(&disk, LogConfig::default());
    append(&mut log, &batch(1, 100, 5));
    let stored = disk.content(&in_folder(0, Kind::Log)).unwrap();
    disk.set_capacity(Some(disk.used() + 50));
    let error = log.append(&batch(1, 100, 5), generation(1), NOW).unwrap_err();
    assert!(matches!(error, StorageError::Full { .. }), "{error}");
    assert_eq!(disk.content(&in_folder(0, Kind::Log)).unwrap(), stored, "no part of it stays");
    assert_eq!(ranges(&log.reader().read(0, 1 << 20, 10, true).unwrap()), [(0, 1)]);
    disk.set_capacity(None);
    assert_eq!(append(&mut log, &batch(1, 100, 5)).base_offset, 1);
    assert_eq!(everything(&log.reader()), [(0, 1), (1, 2)]);
}

#[test]
fn a_roll_that_fails_leaves_the_log_as_it_was() {
    let disk = MemDisk::new();
    let mut log = create(&disk, small());
    for _ in 0..3 {
        append(&mut log, &batch(1, 400, 5));
    }
    disk.fail_writes_after(Some(0));
    assert!(log.append(&batch(1, 1_400, 5), generation(1), NOW).is_err());
    disk.fail_writes_after(None);
    append(&mut log, &batch(1, 400, 5));
    assert_eq!(everything(&log.reader()).len(), 4);
    let recovered = close(log);
    let (log, report) = open(&disk, small(), recovered);
    assert_eq!(report, LoadReport::default());
    assert_eq!(everything(&log.reader()).len(), 4);
}

#[test]
fn the_last_question_can_stop_a_write_and_an_old_generation_is_refused() {
    let disk = MemDisk::new();
    let mut log = create(&disk, LogConfig::default());
    log.append(&batch(1, 1, 5), generation(3), NOW).unwrap();
    let batch = batch(1, 1, 5);
    let refused = log.append_if(&batch, generation(3), NOW, 100, || false);
    assert!(matches!(refused, Err(StorageError::NotAdmitted)));
    let refused = log.append(&batch, generation(2), NOW);
    assert!(matches!(refused, Err(StorageError::StaleGeneration { .. })));
    assert_eq!(log.end(), 1);
    assert_eq!(everything(&log.reader()), [(0, 1)]);
}

#[test]
fn stored_batches_keep_their_offsets_and_gaps_are_read_over() {
    let disk = MemDisk::new();
    let mut log = Log::create(&without_tail(&disk), partition(), small(), 5, NOW).unwrap();
    let stored = |base, generation_number| {
        let mut builder = BatchBuilder::new().base_offset(base).generation(generation(generation_number));
        builder.push(7, None, Some(&[1; 300]));
        builder.build().unwrap()
    };
    for base in [5, 6, 20, 21, 22, 40, 41, 42, 60, 5_000_000_000] {
        log.append_stored(&stored(base, 2), NOW).unwrap();
    }
    let refused = log.append_stored(&stored(60, 2), NOW);
    assert!(matches!(refused, Err(StorageError::Overlap { base: 60, .. })));
    let reader = log.reader();
    assert_eq!(ranges(&reader.read(10, 1, Offset::MAX, true).unwrap()), [(20, 21)]);
    assert_eq!(ranges(&reader.read(43, 1, Offset::MAX, true).unwrap()), [(60, 61)]);
    assert_eq!(ranges(&reader.read(61, 1, Offset::MAX, true).unwrap()), [(5_000_000_000, 5_000_000_001)]);
    flush(&mut log);
    let recovered = stopped(&log);
    let (log, _) = open(&disk.crash(Crash::KeepAll), small(), recovered);
    assert_eq!(everything(&log.reader()).len(), 10);
    assert_eq!(log.start(), 5);
}

#[test]
fn producers_are_followed() {
    let disk = MemDisk::new();
    let mut log = create(&disk, LogConfig::default());
    append(&mut log, &numbered(7, 0, 0, 3));
    let again = numbered(7, 0, 0, 3);
    assert_eq!(
        log.producers().check(again.header()),
        crate::Verdict::Duplicate { base_offset: 0, last_offset: 2, timestamp: 502 }
    );
    assert_eq!(log.producers().check(numbered(7, 0, 3, 1).header()), crate::Verdict::Append);
}

#[test]
fn a_deleted_log_is_gone_for_its_readers_and_its_name_is_free() {
    let disk = MemDisk::new();
    let mut log = create(&disk, LogConfig::default());
    append(&mut log, &batch(1, 1, 5));
    let reader = log.reader();
    let dir = log.shared.home.dir.clone();
    let deleted = log.delete().unwrap();
    assert!(matches!(reader.read(0, 1, 1, true), Err(ReadError::Gone)));
    assert_eq!(dir.partitions().unwrap(), []);
    assert!(matches!(dir.discard(&partition()), Err(StorageError::Missing(_))), "it is gone already");
    assert_eq!(dir.leftovers().unwrap().len(), 1);
    Log::create(&dir, partition(), LogConfig::default(), 0, NOW).unwrap();
    deleted.remove().unwrap();
    assert_eq!(dir.leftovers().unwrap().len(), 0);
    assert_eq!(dir.partitions().unwrap(), [partition()]);
}
