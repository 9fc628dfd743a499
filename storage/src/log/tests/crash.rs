use super::*;

/// Ways in which each crash is tried.
const SEEDS: u64 = 40;

/// Does something to a flushed log on a disk, then crashes at an unlucky moment in many ways: whatever is left
/// must open to a log between `least` and `most`.
fn crashes(prepare: impl Fn(&MemDisk) -> (Log<MemDisk>, Recovered, (Offset, Offset))) {
    for seed in 0..SEEDS {
        let disk = MemDisk::new();
        let (log, row, (least, most)) = prepare(&disk);
        let after = disk.crash(if seed == 0 { Crash::LoseUnsynced } else { Crash::Random(seed) });
        drop(log);
        let opened = match try_open(&after, small(), row) {
            Err(StorageError::Damaged(damaged)) if !damaged.promised => {
                try_open(&after, small(), Recovered { cut_ambiguous: true, ..row })
            }
            other => other,
        };
        let (mut log, _) = opened.unwrap_or_else(|error| panic!("seed {seed}: {error}"));
        assert!((least..=most).contains(&log.end()), "seed {seed}: {} of {least} to {most}", log.end());
        let all = everything(&log.reader());
        assert!(all.windows(2).all(|pair| pair[0].1 == pair[1].0), "seed {seed}: no holes");
        assert!(log.generations().entries().iter().all(|(_, first)| *first < log.end()));
        log.append(&batch(1, 10, 5), generation(9), NOW).unwrap();
        flush(&mut log);
        let row = Recovered { synced: log.end(), mark: log.end(), ..stopped(&log) };
        let end = log.end();
        let (log, _) = open(&after.crash(Crash::LoseUnsynced), small(), row);
        assert_eq!(log.end(), end, "seed {seed}");
    }
}

fn with(disk: &MemDisk, flushed: i64) -> (Log<MemDisk>, Recovered) {
    disk.create_dir(Path::new("/data")).unwrap();
    crate::disk::Disk::sync_dir(disk, Path::new("/")).unwrap();
    let mut log = create(disk, small());
    for at in 0..flushed {
        let number = u32::try_from(1 + at / 3).unwrap();
        log.append(&batch(1, 400, at), generation(number), NOW).unwrap();
    }
    flush(&mut log);
    let row = Recovered { mark: log.end(), ..stopped(&log) };
    (log, row)
}

use crate::disk::Disk;

#[test]
fn while_a_log_is_made() {
    crashes(|disk| {
        disk.create_dir(Path::new("/data")).unwrap();
        disk.sync_dir(Path::new("/")).unwrap();
        let mut log = create(disk, small());
        append(&mut log, &batch(1, 400, 5));
        (log, Recovered::default(), (0, 1))
    });
}

#[test]
fn while_batches_are_appended_and_segments_rolled() {
    for more in [1, 3, 12] {
        crashes(|disk| {
            let (mut log, row) = with(disk, 5);
            for at in 0..more {
                log.append(&batch(1, 400, at), generation(7), NOW).unwrap();
            }
            let end = log.end();
            (log, row, (5, end))
        });
    }
}

#[test]
fn while_the_log_is_flushed() {
    for syncs in 0..12 {
        crashes(|disk| {
            let (mut log, row) = with(disk, 5);
            for at in 0..9 {
                log.append(&batch(1, 400, at), generation(7), NOW).unwrap();
            }
            // The flush stops somewhere: as good as a crash in the middle of it.
            disk.fail_sync_after(syncs);
            let outcome = log.flush_job().unwrap().run();
            let least = if outcome.is_ok() { 14 } else { 5 };
            let row = Recovered { mark: least, synced: least, ..row };
            (log, row, (least, 14))
        });
    }
}

#[test]
fn while_the_end_is_cut() {
    for to in [0, 3, 7, 11] {
        for syncs in [0, 1, 2, 3, 4, 6, 100] {
            crashes(|disk| {
                let (mut log, row) = with(disk, 12);
                // The owner lowers what it promises first.
                let row = Recovered { mark: to, synced: to, ..row };
                disk.fail_sync_after(syncs);
                let most = log.truncate(to, NOW).unwrap_or(12);
                (log, row, (to, most))
            });
        }
    }
}

#[test]
fn while_the_start_moves_up() {
    for hidden in [false, true] {
        crashes(|disk| {
            let (mut log, row) = with(disk, 14);
            log.set_config(LogConfig { retention_bytes: Some(2_500), ..small() });
            let mut retired = log.retain(14, NOW).unwrap();
            assert!(retired.segments >= 2);
            let row = Recovered { log_start: retired.start, ..row };
            if hidden {
                retired.hide().unwrap();
                retired.remove().unwrap();
            }
            (log, row, (14, 14))
        });
    }
}

#[test]
fn while_the_log_is_closed() {
    for syncs in 0..8 {
        crashes(|disk| {
            let (mut log, row) = with(disk, 9);
            log.append(&batch(1, 400, 9), generation(8), NOW).unwrap();
            flush(&mut log);
            let (other, clean_row) = (create_other(disk), Recovered { mark: 10, synced: 10, ..row });
            disk.fail_sync_after(syncs);
            let outcome = log.close_clean(NOW).unwrap().run();
            // Only after the job may the copy be marked clean.
            let row = Recovered { clean: outcome.is_ok(), ..clean_row };
            (other, row, (10, 10))
        });
    }
}

/// Some other log, to have one to return.
fn create_other(disk: &MemDisk) -> Log<MemDisk> {
    let dir = DataDir::open(disk.clone(), Path::new("/other"), Limits::default()).unwrap();
    Log::create(&dir, partition(), small(), 0, NOW).unwrap()
}

#[test]
fn readers_see_whole_batches_while_the_log_is_written_rolled_cut_and_trimmed() {
    use std::sync::atomic::AtomicBool;

    for tail_bytes in [0, 30_000] {
        let disk = MemDisk::new();
        let dir = limited(&disk, Limits { tail_bytes, open_files: 8, ..Limits::default() });
        let mut log = Log::create(&dir, partition(), small(), 0, NOW).unwrap();
        let reader = log.reader();
        let done = AtomicBool::new(false);
        std::thread::scope(|scope| {
            for worker in 0..3 {
                let (reader, done) = (reader.clone(), &done);
                scope.spawn(move || {
                    let mut from = 0;
                    let mut batches = 0;
                    while !done.load(Ordering::Relaxed) {
                        match reader.read(from, 300 * (worker + 1), Offset::MAX, true) {
                            Ok(read) => {
                                let found = ranges(&read);
                                assert!(found.first().is_none_or(|first| first.0 <= from));
                                batches += found.len();
                                from = if found.is_empty() { reader.start() } else { read.next };
                            }
                            Err(ReadError::BelowStart { start }) => from = start,
                            Err(ReadError::BeyondEnd { end }) => from = end,
                            Err(error) => panic!("{error}"),
                        }
                    }
                    assert!(batches > 0);
                });
            }
            for round in 0..3_000_i64 {
                let number = u32::try_from(round + 1).unwrap();
                log.append(&batch(round % 7 + 1, 60, round), generation(number), NOW).unwrap();
                if round % 50 == 0 {
                    flush(&mut log);
                    let to = log.end() - 20;
                    log.truncate(to.max(log.start()), NOW).unwrap();
                }
                if round % 90 == 0 {
                    log.set_config(LogConfig { retention_bytes: Some(6_000), ..small() });
                    let mut retired = log.retain(log.end(), NOW).unwrap();
                    retired.hide().unwrap();
                    retired.remove().unwrap();
                }
            }
            done.store(true, Ordering::Relaxed);
        });
    }
}

#[test]
fn after_a_write_that_was_cut_short_by_a_full_disk() {
    for room in [1, 70, 200] {
        crashes(|disk| {
            let (mut log, row) = with(disk, 4);
            disk.set_capacity(Some(disk.used() + room));
            assert!(log.append(&batch(1, 300, 5), generation(7), NOW).is_err());
            disk.set_capacity(None);
            for at in 0..9 {
                log.append(&batch(1, 400, at), generation(7), NOW).unwrap();
            }
            (log, row, (4, 13))
        });
    }
}
