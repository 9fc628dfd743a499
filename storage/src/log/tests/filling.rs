//! Logs that end in a hole that compaction left.

use super::*;

/// Batches of generations 1 and 2, then a hole from 20 to 60 in which generations 2 and 4 wrote, then one batch of 4.
fn with_a_hole(disk: &MemDisk) -> Log<MemDisk> {
    let mut log = create(disk, small());
    log.append(&batch(10, 20, 1), generation(1), NOW).unwrap();
    log.append(&batch(10, 20, 1), generation(2), NOW).unwrap();
    let mut later = BatchBuilder::new().base_offset(60).generation(generation(4));
    (0..5).for_each(|at| later.push(at, None, Some(b"later")));
    log.append_stored(&later.build().unwrap(), NOW).unwrap();
    let map = felix_protocol::generation_map::GenerationMap::from_entries(vec![
        (generation(1), 0),
        (generation(2), 10),
        (generation(4), 45),
    ]);
    log.adopt_generations(map.unwrap());
    flush(&mut log);
    log
}

fn is_in_order(disk: &MemDisk) {
    let mut wrong = Vec::new();
    let folder = folder();
    crate::verify::verify(disk, Path::new("/data"), &mut |finding| {
        if finding.weight > crate::verify::Weight::Note && finding.path.starts_with(&folder) {
            wrong.push(finding.to_string());
        }
    })
    .unwrap();
    assert_eq!(wrong, Vec::<String>::new());
}

#[test]
fn a_log_that_is_cut_into_a_hole_ends_there_after_any_restart() {
    for (to, end) in [(20, 20), (21, 21), (45, 45), (46, 46), (59, 59), (60, 60), (63, 60)] {
        let disk = MemDisk::new();
        let mut log = with_a_hole(&disk);
        assert_eq!(log.truncate(to, NOW).unwrap(), end);
        assert_eq!((log.end(), log.durable(), log.synced()), (end, end, end));
        let map = log.generations().clone();
        assert_eq!(map.generation_at(end - 1), Some(generation(if end > 45 { 4 } else { 2 })));
        let batches = everything(&log.reader());
        assert_eq!(batches.last().unwrap().1, end);
        for (clean, crash) in [(false, Crash::LoseUnsynced), (false, Crash::KeepAll), (true, Crash::KeepAll)]
        {
            let after = disk.crash(crash);
            let row = Recovered { mark: end, ..stopped(&log) };
            let (mut opened, report) = open(&after, small(), row);
            assert_eq!((opened.end(), report.cut_bytes), (end, 0), "cut to {to}");
            assert_eq!(*opened.generations(), map, "cut to {to}");
            assert_eq!(everything(&opened.reader()), batches);
            let more = opened.append(&batch(1, 10, 1), generation(5), NOW).unwrap();
            assert_eq!(more.base_offset, end);
            if clean {
                let row = close(opened);
                assert_eq!(open(&after, small(), row).0.end(), end + 1);
                is_in_order(&after);
            }
        }
    }
}

/// Whatever fails on the way, and whatever a crash keeps of it: the end is one that was there, and what was promised is not
/// taken for there if it is not.
#[test]
fn a_cut_into_a_hole_that_stops_half_way_never_gives_an_offset_twice() {
    for syncs in 0..8 {
        for seed in 0..40 {
            let disk = MemDisk::new();
            let mut log = with_a_hole(&disk);
            let row = Recovered { mark: 50, synced: 50, log_start: 0, ..Recovered::default() };
            disk.fail_sync_after(syncs);
            let outcome = log.truncate(50, NOW);
            assert_eq!(outcome.is_err(), log.is_poisoned());
            let after = disk.crash(Crash::Random(seed));
            match try_open(&after, small(), row) {
                Ok((log, _)) => assert!([50, 65].contains(&log.end()), "{}", log.end()),
                Err(StorageError::Damaged(damaged)) => assert!(damaged.promised && outcome.is_err()),
                Err(error) => panic!("{error}"),
            }
        }
    }
}

/// A leap in offsets is no hole that compaction left, and would take batches without end.
#[test]
fn a_leap_in_offsets_is_not_filled() {
    let disk = MemDisk::new();
    let mut log = create(&disk, small());
    append(&mut log, &batch(3, 20, 1));
    let mut far = BatchBuilder::new().base_offset(1 << 60).generation(generation(1));
    far.push(5, None, Some(b"far"));
    log.append_stored(&far.build().unwrap(), NOW).unwrap();
    flush(&mut log);
    assert_eq!(log.truncate(1 << 59, NOW).unwrap(), 3);
    assert!(matches!(log.fill(1 << 59, generation(1), NOW), Err(StorageError::OutOfRange { .. })));
    assert_eq!(append(&mut log, &batch(3, 20, 1)).base_offset, 3);
}

#[test]
fn what_is_filled_is_read_over_printed_and_whole() {
    let disk = MemDisk::new();
    let mut log = with_a_hole(&disk);
    log.fill(70, generation(4), NOW).unwrap();
    log.fill(90, generation(6), NOW).unwrap();
    log.fill(80, generation(6), NOW).unwrap();
    assert_eq!(log.end(), 90);
    assert_eq!(log.generations().latest(), Some((generation(6), 70)));
    let far = 90 + 3 * (1 << 31);
    log.fill(far, generation(6), NOW).unwrap();
    log.append(&batch(2, 20, 50), generation(6), NOW).unwrap();
    assert_eq!(log.end(), far + 2);
    let reader = log.reader();
    let read = reader.read(75, 1, Offset::MAX, true).unwrap();
    assert_eq!(ranges(&read), [(70, 90)], "whoever reads there learns where to go on");
    assert_eq!(everything(&reader).last().unwrap(), &(far, far + 2));
    assert_eq!(reader.max_timestamp(Offset::MAX).unwrap().map(|found| found.offset), Some(far + 1));
    drop(reader);
    let row = close(log);
    is_in_order(&disk);
    let path = in_folder(0, Kind::Log);
    let mut printed = Vec::new();
    crate::dump::dump(&disk, &path, &mut printed).unwrap();
    let printed = String::from_utf8(printed).unwrap();
    assert!(printed.contains("89"), "{printed}");
    let (mut log, report) = open(&disk, small(), row);
    assert_eq!((log.end(), report), (far + 2, LoadReport::default()));
    assert_eq!(log.truncate(85, NOW).unwrap(), 85);
    assert_eq!(everything(&log.reader()).last().unwrap(), &(70, 85));
}
