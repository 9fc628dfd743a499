use super::*;
use crate::disk::{Disk, OpenMode, write_all_at};

fn filled(disk: &MemDisk) -> Log<MemDisk> {
    let mut log = create(disk, small());
    for at in 0..30 {
        let number = u32::try_from(1 + at / 12).unwrap();
        log.append(&numbered(7, 0, at * 20, 20), generation(number), NOW).unwrap();
    }
    flush(&mut log);
    log
}

#[test]
fn a_clean_log_opens_without_reading_sealed_data() {
    let disk = MemDisk::new();
    let mut log = create(&disk, LogConfig { segment_bytes: 100_000, ..LogConfig::default() });
    for at in 0..200 {
        append(&mut log, &batch(1, 4_000, at));
    }
    let end = log.end();
    let recovered = close(log);
    let before = disk.counters().read_bytes;
    let (log, report) = open(&disk, LogConfig::default(), recovered);
    let read = disk.counters().read_bytes - before;
    assert_eq!((log.end(), report), (end, LoadReport::default()));
    assert!(read < 70_000, "{read} bytes were read of {}", log.size_bytes());
    let before = disk.counters().writes;
    close(log);
    assert_eq!(disk.counters().writes, before, "an idle log stops without a write");
}

#[test]
fn sequences_survive_a_clean_stop_and_a_crash() {
    let disk = MemDisk::new();
    let log = filled(&disk);
    let producers = log.producers().clone();
    let crashed = disk.crash(Crash::LoseUnsynced);
    let (after, report) = open(&crashed, small(), stopped(&log));
    assert_eq!(report.rebuilt, []);
    assert_eq!(*after.producers(), producers);
    let recovered = close(log);
    let (after, report) = open(&disk, small(), recovered);
    assert_eq!(report, LoadReport::default());
    for (id, producer) in producers.iter() {
        let (_, found) = after.producers().iter().find(|(other, _)| *other == id).unwrap();
        assert_eq!(found.batches, producer.batches);
    }
    let again = numbered(7, 0, 29 * 20, 20);
    let verdict = after.producers().check(again.header());
    assert!(matches!(verdict, crate::Verdict::Duplicate { base_offset: 580, .. }));
}

#[test]
fn a_torn_tail_is_cut_at_the_last_whole_batch() {
    let disk = MemDisk::new();
    let mut log = create(&disk, LogConfig::default());
    append(&mut log, &batch(1, 1_000, 5));
    flush(&mut log);
    append(&mut log, &batch(1, 1_000, 5));
    let recovered = stopped(&log);
    let path = in_folder(0, Kind::Log);
    let whole = disk.content(&path).unwrap();
    let one = whole.len() / 2;
    for (cut, end) in
        [(0, 0), (1, 0), (60, 0), (one - 1, 0), (one, 1), (one + 1, 1), (2 * one - 1, 1), (2 * one, 2)]
    {
        let after = disk.crash(Crash::KeepAll);
        after.put(&path, &whole[..cut]).unwrap();
        let opened = try_open(&after, LogConfig::default(), recovered);
        if end == 0 {
            // The first batch was flushed.
            let Err(StorageError::Damaged(damaged)) = opened.map(drop) else { panic!("{cut}") };
            assert!(damaged.promised);
            assert_eq!(after.content(&path).unwrap().len(), cut, "nothing is cut");
            continue;
        }
        let (mut log, report) = opened.unwrap();
        assert_eq!(log.end(), end, "{cut}");
        assert_eq!(report.cut_bytes, (cut - one * usize::try_from(end).unwrap()) as u64);
        assert_eq!(log.synced(), 1);
        let job = log.flush_job();
        assert!(job.is_some());
        flush(&mut { log });
    }
}

#[test]
fn bytes_that_may_not_have_reached_the_disk_are_written_again() {
    let disk = MemDisk::new();
    let mut log = create(&disk, LogConfig::default());
    flush(&mut log);
    append(&mut log, &batch(1, 1_000, 5));
    disk.fail_sync_after(0);
    let outcome = log.flush_job().unwrap().run();
    assert!(outcome.is_err());
    log.flushed(&outcome);
    let recovered = stopped(&log);
    drop(log);
    // The process starts again; the page cache still has the batch, and thinks that it is clean.
    let (mut log, _) = open(&disk, LogConfig::default(), recovered);
    assert_eq!(log.end(), 1);
    flush(&mut log);
    let recovered = Recovered { mark: 1, ..stopped(&log) };
    let (log, _) = open(&disk.crash(Crash::LoseUnsynced), LogConfig::default(), recovered);
    assert_eq!(log.end(), 1);
}

#[test]
fn damage_below_readable_batches_is_never_cut() {
    let disk = MemDisk::new();
    let mut log = create(&disk, LogConfig::default());
    for _ in 0..3 {
        append(&mut log, &batch(1, 1_000, 5));
    }
    let path = in_folder(0, Kind::Log);
    let whole = disk.content(&path).unwrap();
    let one = whole.len() / 3;
    for at in [one + 3, one + 10, one + 16, one + 25, one + 500] {
        let after = disk.crash(Crash::KeepAll);
        let mut wrong = whole.clone();
        wrong[at] ^= 0x55;
        after.put(&path, &wrong).unwrap();
        for (mark, promised) in [(1, false), (2, true)] {
            let recovered = Recovered { mark, ..Recovered::default() };
            let opened = try_open(&after, LogConfig::default(), recovered);
            let Err(StorageError::Damaged(damaged)) = opened.map(drop) else { panic!("byte {at}") };
            assert_eq!((damaged.offset, damaged.position, damaged.promised), (1, one as u64, promised));
            assert_eq!(after.content(&path).unwrap(), wrong);
        }
        let allowed = Recovered { mark: 1, cut_ambiguous: true, ..Recovered::default() };
        let (log, report) = open(&after, LogConfig::default(), allowed);
        assert_eq!((log.end(), report.cut_bytes), (1, 2 * one as u64));
    }
}

#[test]
fn a_segment_that_lost_its_end_is_damage_when_another_follows() {
    let disk = MemDisk::new();
    let log = filled(&disk);
    let bases = segment_bases(&log);
    let path = in_folder(bases[1], Kind::Log);
    let whole = disk.content(&path).unwrap();
    for lost in [whole.len(), whole.len() / 2, 1] {
        let after = disk.crash(Crash::LoseUnsynced);
        after.put(&path, &whole[..whole.len() - lost]).unwrap();
        let opened = try_open(&after, small(), Recovered::default());
        let Err(StorageError::Damaged(damaged)) = opened.map(drop) else { panic!("{lost}") };
        assert!(!damaged.promised);
        let allowed = Recovered { cut_ambiguous: true, ..Recovered::default() };
        let (mut log, _) = open(&after, small(), allowed);
        assert!(log.end() >= bases[1] && log.end() < bases[2]);
        flush(&mut log);
        append_more(&mut log);
        let count = everything(&log.reader()).len();
        let recovered = close(log);
        let (log, _) = open(&after, small(), recovered);
        assert_eq!(everything(&log.reader()).len(), count);
    }
}

fn append_more(log: &mut Log<MemDisk>) {
    for _ in 0..10 {
        log.append(&batch(1, 300, 9), generation(9), NOW).unwrap();
    }
}

#[test]
fn any_side_file_may_be_missing_empty_torn_nonsense_or_a_folder() {
    let reference = MemDisk::new();
    let log = filled(&reference);
    let (map, producers, end) = (log.generations().clone(), log.producers().clone(), log.end());
    let unclean = Recovered { mark: end, ..stopped(&log) };
    let clean = close(log);
    let names: Vec<String> = crate::disk::Disk::read_dir(&reference, &folder())
        .unwrap()
        .into_iter()
        .map(|entry| entry.name)
        .filter(|name| !name.ends_with(".log"))
        .collect();
    assert!(names.len() > 10);
    for harm in 0..6 {
        for name in &names {
            for recovered in [clean, unclean, Recovered::default()] {
                let disk = reference.crash(Crash::KeepAll);
                let path = folder().join(name);
                let content = disk.content(&path).unwrap();
                match harm {
                    0 => disk.remove_file(&path).unwrap(),
                    1 => disk.put(&path, b"").unwrap(),
                    2 => disk.put(&path, &content[..content.len() / 2]).unwrap(),
                    3 => disk.put(&path, &vec![0xA7; content.len().max(5)]).unwrap(),
                    4 => disk.put(&path, &vec![0; content.len().max(5)]).unwrap(),
                    _ => {
                        disk.remove_file(&path).unwrap();
                        disk.create_dir(&path).unwrap();
                    }
                }
                let opened = try_open(&disk, small(), recovered);
                let (mut log, _) = opened.unwrap_or_else(|error| panic!("{harm} {name}: {error}"));
                assert_eq!(log.end(), end, "{harm} {name}");
                assert_eq!(*log.generations(), map, "{harm} {name} {recovered:?}");
                for (id, producer) in producers.iter() {
                    let (_, found) = log.producers().iter().find(|(other, _)| *other == id).unwrap();
                    assert_eq!(found.batches, producer.batches, "{harm} {name} {recovered:?}");
                }
                assert_eq!(everything(&log.reader()).len(), 30, "{harm} {name}");
                assert!(log.reader().max_timestamp(end).unwrap().is_some());
                flush(&mut log);
                append_more(&mut log);
                let again = close(log);
                let (log, report) = open(&disk, small(), again);
                assert_eq!(report, LoadReport::default(), "{harm} {name}");
                assert_eq!(everything(&log.reader()).len(), 40);
            }
        }
    }
}

#[test]
fn a_stale_or_lying_map_is_not_believed() {
    for text in ["0\n1\n9 0\n", "0\n1\n1 0\n", "0\n2\n1 0\n2 100000\n", "0\n0\n"] {
        let disk = MemDisk::new();
        let log = filled(&disk);
        let map = log.generations().clone();
        let recovered = close(log);
        disk.put(&folder().join(layout::EPOCH_CHECKPOINT), text.as_bytes()).unwrap();
        let (log, report) = open(&disk, small(), recovered);
        assert_eq!(*log.generations(), map, "{text:?}");
        assert_eq!(report.rebuilt, [SideFile::GenerationMap]);
    }
}

#[test]
fn leftovers_are_removed_and_a_log_without_files_begins_anew() {
    let disk = MemDisk::new();
    let log = filled(&disk);
    let recovered = close(log);
    for name in ["00000000000000000003.log.deleted", "leader-epoch-checkpoint.tmp", "x.tmp"] {
        disk.put(&folder().join(name), b"leftover").unwrap();
    }
    let (log, report) = open(&disk, small(), recovered);
    assert_eq!(report, LoadReport::default());
    let names = crate::disk::Disk::read_dir(&disk, &folder()).unwrap();
    assert!(!names.iter().any(|entry| entry.name.ends_with("deleted") || entry.name.ends_with("tmp")));
    drop(log);
    let bare = MemDisk::new();
    let dir = data_dir(&bare);
    bare.create_dir(&folder()).unwrap();
    let none = Recovered::default();
    let (log, _) = Log::open(&dir, partition(), small(), none, NOW).unwrap();
    assert_eq!(log.end(), 0);
    let missing = PartitionId { index: 5, ..partition() };
    let (log, _) = Log::open(&dir, missing, small(), none, NOW).unwrap();
    assert_eq!(log.end(), 0, "its creation was cut short");
    let promised = Recovered { mark: 3, ..none };
    let absent = PartitionId { index: 6, ..partition() };
    let opened = Log::open(&dir, absent, small(), promised, NOW);
    assert!(matches!(opened.map(drop), Err(StorageError::Missing(_))));
}

/// Records may be acknowledged seconds before the table says so.
#[test]
fn a_log_that_was_ready_once_is_not_made_again_where_nothing_of_it_is_left() {
    let made = Recovered { made: true, ..Recovered::default() };
    let missing = |disk: &MemDisk, row| {
        let opened = Log::open(&data_dir(disk), partition(), small(), row, NOW);
        matches!(opened.map(drop), Err(StorageError::Missing(_)))
    };
    let empty = MemDisk::new();
    data_dir(&empty);
    for cut_ambiguous in [false, true] {
        for log_start in [0, 7] {
            assert!(missing(&empty, Recovered { cut_ambiguous, log_start, ..made }));
        }
    }
    assert!(empty.read_dir(&folder()).is_err(), "and no folder is left that looks like one");
    let bare = MemDisk::new();
    data_dir(&bare);
    bare.create_dir(&folder()).unwrap();
    assert!(missing(&bare, made));
    assert!(!missing(&bare, Recovered { log_start: 7, ..made }), "all segments may have left it");
    // With all that it had when it was ready, it opens.
    let disk = MemDisk::new();
    let mut log = create(&disk, small());
    flush(&mut log);
    drop(log);
    let disk = disk.crash(Crash::LoseUnsynced);
    assert_eq!(open(&disk, small(), made).0.end(), 0);
}

#[test]
fn a_full_disk_does_not_stop_an_open() {
    let disk = MemDisk::new();
    let log = filled(&disk);
    let unclean = Recovered { mark: log.end(), ..stopped(&log) };
    let end = log.end();
    let path = folder().join(layout::EPOCH_CHECKPOINT);
    disk.remove_file(&path).unwrap();
    let after = disk.crash(Crash::KeepAll);
    after.set_capacity(Some(0));
    let (log, _) = open(&after, small(), unclean);
    assert_eq!(log.end(), end);
    assert_eq!(everything(&log.reader()).len(), 30);
    assert!(log.reader().max_timestamp(end).unwrap().is_some());
}

#[test]
fn cutting_forgets_what_is_cut_in_memory_and_on_disk() {
    for to in [0, 1, 20, 250, 251, 259, 300, 599, 600, 700] {
        let disk = MemDisk::new();
        let mut log = filled(&disk);
        let reader = log.reader();
        let end = log.truncate(to, NOW).unwrap();
        assert_eq!(end, (to / 20 * 20).min(600), "before the batch that {to} lies inside of");
        assert_eq!((reader.end(), log.end()), (end, end));
        assert_eq!(everything(&reader).len() as i64, end / 20);
        assert!(log.generations().latest().is_none_or(|(_, first)| first < end));
        assert_eq!(log.producers().describe().first().map(|p| p.last_sequence), last_sequence(end));
        let crashed = disk.crash(Crash::LoseUnsynced);
        let recovered = Recovered { mark: end, ..stopped(&log) };
        let (after, _) = open(&crashed, small(), recovered);
        assert_eq!(after.end(), end);
        assert_eq!(after.generations(), log.generations());
        append_more(&mut log);
        assert_eq!(everything(&reader).len() as i64, end / 20 + 10);
        drop(reader);
        let recovered = close(log);
        let (log, report) = open(&disk, small(), recovered);
        assert_eq!(report, LoadReport::default());
        assert_eq!(everything(&log.reader()).len() as i64, end / 20 + 10);
    }
}

fn last_sequence(end: Offset) -> Option<i32> {
    (end > 0).then(|| i32::try_from(end - 1).unwrap())
}

#[test]
fn bytes_damaged_while_running_are_not_served() {
    let disk = MemDisk::new();
    let log = filled(&disk);
    let recovered = close(log);
    let (log, _) = open(&disk, small(), recovered);
    let path = in_folder(0, Kind::Log);
    let mut content = disk.content(&path).unwrap();
    content[200] ^= 1;
    let file = disk.open(&path, OpenMode::Write).unwrap();
    write_all_at(&file, &content, 0).unwrap();
    let outcome = log.reader().read(0, 1 << 20, Offset::MAX, true);
    assert!(matches!(outcome, Err(ReadError::Damaged(_))));
    content[200] ^= 1;
    let second = numbered(7, 0, 0, 20).bytes().len() + 100;
    content[second] ^= 1;
    write_all_at(&file, &content, 0).unwrap();
    let good = log.reader().read(0, 1 << 20, Offset::MAX, true).unwrap();
    assert!(good.next > 0 && good.bytes < second, "what lies before the damage is served");
    let outcome = log.reader().read(good.next, 1 << 20, Offset::MAX, true);
    assert!(matches!(outcome, Err(ReadError::Damaged(_))));
    let last = log.reader().read(590, 1 << 20, Offset::MAX, true).unwrap();
    assert_eq!(ranges(&last), [(580, 600)], "the rest goes on");
}

#[test]
fn a_log_start_beyond_everything_begins_anew_there() {
    let disk = MemDisk::new();
    let mut log = create(&disk, small());
    append(&mut log, &batch(10, 10, 5));
    flush(&mut log);
    drop(log);
    let recovered = Recovered { log_start: 50, ..Recovered::default() };
    let (mut log, _) = open(&disk, small(), recovered);
    assert_eq!((log.start(), log.end()), (50, 50));
    assert_eq!(append(&mut log, &batch(1, 1, 5)).base_offset, 50);
    let recovered = close(log);
    let (log, _) = open(&disk, small(), recovered);
    assert_eq!((log.start(), log.end()), (50, 51));
    let content = read_whole(&disk, &in_folder(50, Kind::Log), 1 << 20).unwrap();
    assert!(!content.is_empty());
}

#[test]
fn a_long_last_segment_is_believed_by_its_indexes() {
    let disk = MemDisk::new();
    let config = LogConfig { segment_bytes: 1 << 30, ..LogConfig::default() };
    let mut log = create(&disk, config.clone());
    for at in 0..200 {
        append(&mut log, &batch(1, 1_000, at));
    }
    let recovered = close(log);
    let before = disk.counters().read_bytes;
    let (mut log, report) = open(&disk, config.clone(), recovered);
    assert_eq!((log.end(), report), (200, LoadReport::default()));
    assert!(disk.counters().read_bytes - before < 20_000);
    assert_eq!(log.reader().max_timestamp(200).unwrap().unwrap().offset, 199);
    append(&mut log, &batch(1, 1_000, 900));
    assert_eq!(log.reader().offset_for_timestamp(200, 201).unwrap().unwrap().offset, 200);
    let recovered = close(log);
    for (kind, harm) in
        [(Kind::Index, 0), (Kind::Index, 8), (Kind::Index, 5), (Kind::TimeIndex, 0), (Kind::TimeIndex, 12)]
    {
        let after = disk.crash(Crash::KeepAll);
        let path = in_folder(0, kind);
        let content = after.content(&path).unwrap();
        after
            .put(&path, &content[..content.len().saturating_sub(if harm == 0 { usize::MAX } else { harm })])
            .unwrap();
        let (log, report) = open(&after, config.clone(), recovered);
        assert_eq!(log.end(), 201);
        assert_eq!(everything(&log.reader()).len(), 201);
        assert_eq!(log.reader().max_timestamp(201).unwrap().unwrap().offset, 200);
        // What the last entry behind the cut said is known from the batches only.
        assert!(report.scanned_bytes > 0, "{kind:?} {harm}");
    }
}
