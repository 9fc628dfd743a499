use super::*;

fn other(number: u128) -> PartitionId {
    PartitionId { topic: TopicId(Uuid::from_u128(number)), index: 1 }
}

fn some_logs(dir: &DataDir<MemDisk>, count: u128) -> Vec<Log<MemDisk>> {
    (1..=count)
        .map(|number| {
            let mut log = Log::create(dir, other(number), LogConfig::default(), 0, NOW).unwrap();
            append(&mut log, &batch(1, 10, 5));
            log
        })
        .collect()
}

fn run(flusher: &Flusher<MemDisk>, logs: &mut [Log<MemDisk>]) -> Vec<Result<Offset, FlushError>> {
    let jobs = logs.iter_mut().filter_map(Log::flush_job).collect();
    let outcomes = flusher.run(jobs);
    for (log, outcome) in logs.iter_mut().zip(&outcomes) {
        log.flushed(outcome);
    }
    outcomes
}

#[test]
fn what_a_flush_covered_survives_and_nothing_else_is_claimed() {
    for (mode, own) in [(FlushMode::Auto, true), (FlushMode::File, true), (FlushMode::Filesystem, false)] {
        for count in [1, 3, 12] {
            let disk = MemDisk::new();
            disk.set_own(own);
            let dir = data_dir(&disk);
            let flusher = Flusher::new(&dir, mode).unwrap();
            let mut logs = some_logs(&dir, count);
            let outcomes = run(&flusher, &mut logs);
            assert!(outcomes.iter().all(|outcome| *outcome == Ok(1)), "{outcomes:?}");
            assert!(logs.iter_mut().all(|log| log.flush_job().is_none()));
            append(&mut logs[0], &batch(1, 10, 5));
            assert_eq!(logs[0].synced(), 1);
            let after = disk.crash(Crash::LoseUnsynced);
            for number in 1..=count {
                let recovered = Recovered { mark: 1, synced: 1, ..Recovered::default() };
                let config = LogConfig::default();
                let (log, _) = Log::open(&data_dir(&after), other(number), config, recovered, NOW).unwrap();
                assert_eq!(log.end(), 1, "{mode:?} {count} {number}");
            }
        }
    }
}

#[test]
fn few_files_are_flushed_one_by_one_and_many_at_once() {
    let disk = MemDisk::new();
    let dir = data_dir(&disk);
    let flusher = Flusher::new(&dir, FlushMode::Auto).unwrap();
    let mut logs = some_logs(&dir, 20);
    run(&flusher, &mut logs);
    assert_eq!(disk.counters().system_syncs, 1, "twenty new logs");
    for log in &mut logs[..3] {
        append(log, &batch(1, 10, 5));
    }
    let before = disk.counters();
    let jobs: Vec<_> = logs.iter_mut().filter_map(Log::flush_job).collect();
    assert_eq!(jobs.len(), 3);
    flusher.run(jobs);
    let after = disk.counters();
    assert_eq!((after.system_syncs - before.system_syncs, after.file_syncs - before.file_syncs), (0, 3));
    disk.set_own(false);
    let shared = Flusher::new(&dir, FlushMode::Auto).unwrap();
    for log in &mut logs[5..] {
        append(log, &batch(1, 10, 5));
    }
    let jobs: Vec<_> = logs[5..].iter_mut().filter_map(Log::flush_job).collect();
    shared.run(jobs);
    assert_eq!(disk.counters().system_syncs, after.system_syncs, "not for a disk shared with others");
    assert_eq!(disk.counters().file_syncs - after.file_syncs, 15);
}

#[test]
fn one_flush_serves_everything_appended_before_it() {
    let disk = MemDisk::new();
    let dir = data_dir(&disk);
    let flusher = Flusher::new(&dir, FlushMode::Auto).unwrap();
    let mut logs = some_logs(&dir, 1);
    run(&flusher, &mut logs);
    for _ in 0..50 {
        append(&mut logs[0], &batch(1, 10, 5));
    }
    let job = logs[0].flush_job().unwrap();
    append(&mut logs[0], &batch(1, 10, 5));
    assert!(logs[0].flush_job().is_none(), "one job at a time");
    let before = disk.counters().file_syncs;
    let outcome = flusher.run(vec![job]).remove(0);
    assert_eq!(outcome, Ok(51));
    assert_eq!(disk.counters().file_syncs - before, 1);
    logs[0].flushed(&outcome);
    assert_eq!((logs[0].synced(), logs[0].end()), (51, 52));
    assert_eq!(logs[0].flush_job().unwrap().end(), 52);
}

#[test]
fn a_failed_flush_is_final_for_the_log_and_for_the_directory() {
    for count in [1, 5, 12] {
        for mode in [FlushMode::File, FlushMode::Filesystem] {
            let disk = MemDisk::new();
            let dir = data_dir(&disk);
            let flusher = Flusher::new(&dir, mode).unwrap();
            let mut logs = some_logs(&dir, count);
            disk.fail_sync_after(0);
            let outcomes = run(&flusher, &mut logs);
            assert!(outcomes.iter().any(Result::is_err));
            assert!(flusher.failure().is_some());
            let failed = outcomes.iter().position(Result::is_err).unwrap();
            let refused = logs[failed].append(&batch(1, 10, 5), generation(1), NOW);
            assert!(matches!(refused, Err(StorageError::Poisoned)));
            assert!(logs[failed].flush_job().is_none());
            let mut more = vec![Log::create(&dir, other(99), LogConfig::default(), 0, NOW).unwrap()];
            assert!(run(&flusher, &mut more)[0].is_err(), "nothing is flushed behind a failure");
        }
    }
}

#[test]
fn a_roll_is_durable_with_the_flush_that_follows() {
    for mode in [FlushMode::File, FlushMode::Filesystem] {
        let disk = MemDisk::new();
        let dir = data_dir(&disk);
        let flusher = Flusher::new(&dir, mode).unwrap();
        let mut logs = vec![Log::create(&dir, partition(), small(), 0, NOW).unwrap()];
        for at in 0..30 {
            let at = u32::try_from(at).unwrap();
            logs[0].append(&batch(1, 400, 5), generation(1 + at / 10), NOW).unwrap();
        }
        assert_eq!(run(&flusher, &mut logs), [Ok(30)]);
        let recovered = Recovered { mark: 30, ..stopped(&logs[0]) };
        let (log, report) = open(&disk.crash(Crash::LoseUnsynced), small(), recovered);
        assert_eq!(log.end(), 30);
        assert_eq!(log.generations(), logs[0].generations());
        assert_eq!(report.rebuilt, []);
        assert!(report.scanned_bytes < 2_000, "sealed segments are trusted");
        assert_eq!(everything(&log.reader()).len(), 30);
    }
}

#[test]
fn a_side_file_that_does_not_fit_holds_back_what_recovery_trusts() {
    let disk = MemDisk::new();
    let mut log = create(&disk, small());
    flush(&mut log);
    append(&mut log, &batch(1, 400, 5));
    flush(&mut log);
    log.append(&batch(1, 1_700, 5), generation(2), NOW).unwrap();
    disk.set_capacity(Some(disk.used()));
    let job = log.flush_job().unwrap();
    let outcome = job.run();
    assert_eq!(outcome, Ok(2), "the batches are durable");
    log.flushed(&outcome);
    assert_eq!((log.durable(), log.synced()), (2, 1), "but the map is not");
    assert!(log.flush_job().is_none(), "the disk is not asked again for nothing");
    disk.set_capacity(None);
    let (opened, _) = open(&disk.crash(Crash::LoseUnsynced), small(), stopped(&log));
    assert_eq!(opened.generations(), log.generations());
    log.append(&batch(1, 10, 5), generation(2), NOW).unwrap();
    flush(&mut log);
    assert_eq!(log.synced(), 3, "made good");
    let (opened, report) = open(&disk.crash(Crash::LoseUnsynced), small(), stopped(&log));
    assert_eq!(opened.generations(), log.generations());
    assert_eq!(report.rebuilt, [SideFile::ProducerSnapshot], "an older one and the batches serve as well");
}
