//! A crash at any step of a round.

use super::transactions::committed;
use super::*;
use crate::disk::Disk;
use crate::log::tests::aborted::in_transaction;

/// What no crash and no round may change: the newest of each key, and what is known of generations and
/// producers.
type Essence = (BTreeMap<String, Kept>, Offset, GenerationMap, Vec<(i64, i32, i16)>);

fn essence(log: &Log<MemDisk>) -> Essence {
    let mut newest = BTreeMap::new();
    for record in committed(log) {
        newest.insert(record.1.clone().unwrap(), record);
    }
    let producers = log.producers().describe();
    let producers =
        producers.iter().map(|known| (known.producer_id, known.last_sequence, known.epoch)).collect();
    (newest, log.end(), log.generations().clone(), producers)
}

/// Many small segments of two producers, three generations and an aborted transaction, all closed.
fn story(log: &mut Log<MemDisk>) {
    for at in 0..36_i32 {
        let number = 1 + u32::try_from(at).unwrap() / 13;
        let mut builder = BatchBuilder::new().codec(Codec::ALL[usize::try_from(at).unwrap() % 5], 1);
        if at % 4 == 0 {
            builder = builder.producer(5, 1, at / 4 * 2);
        }
        for within in 0..2 {
            let key = format!("k{}", (at * 5 + within) % 11);
            builder.push(500, Some(key.as_bytes()), Some(format!("{at} {}", "x".repeat(120)).as_bytes()));
        }
        log.append(&builder.build().unwrap(), generation(number), NOW).unwrap();
        if at == 20 {
            log.append(&in_transaction(8, 0, 2), generation(number), NOW).unwrap();
        }
        if at == 30 {
            log.append(&marker(8, TransactionEnd::Abort), generation(number), NOW).unwrap();
        }
        if at % 3 == 2 {
            roll(log);
        }
    }
}

#[test]
fn nothing_is_lost_and_nothing_comes_back() {
    let disk = MemDisk::new();
    disk.create_dir(Path::new("/data")).unwrap();
    disk.sync_dir(Path::new("/")).unwrap();
    let mut log = Log::create(&without_tail(&disk), partition(), compacted(), 0, NOW).unwrap();
    story(&mut log);
    let wanted = essence(&log);
    let row = Recovered { mark: log.end(), ..stopped(&log) };
    // Crashed at three places of each group, before and after all of them.
    let mut crashed = Vec::new();
    let mut step = 0;
    let mut crash = |crashed: &mut Vec<MemDisk>| {
        crashed.push(disk.crash(Crash::LoseUnsynced));
        crashed.push(disk.crash(Crash::KeepAll));
        for seed in 0..12 {
            crashed.push(disk.crash(Crash::Random(step * 100 + seed)));
        }
        step += 1;
    };
    crash(&mut crashed);
    round_with(&mut log, NOW, 1 << 20, |_, _, _| crash(&mut crashed)).unwrap();
    crash(&mut crashed);
    let last = records(&log);
    assert!(last.len() < 25 && crashed.len() > 150, "{} {}", last.len(), crashed.len());
    assert_eq!(essence(&log), wanted);
    let mut ways = std::collections::BTreeSet::new();
    for (number, disk) in crashed.into_iter().enumerate() {
        let (mut log, _) = open(&disk, compacted(), row);
        assert_eq!(essence(&log), wanted, "crash {number}");
        check_files(&disk, &log);
        for entry in disk.read_dir(&folder()).unwrap() {
            let left = [layout::CLEANED, layout::SWAP].iter().any(|ending| entry.name.ends_with(ending));
            assert!(!left, "crash {number}: {} is left", entry.name);
        }
        ways.insert(segment_bases(&log));
        flush(&mut log);
        // The next round comes to where the first one would have come.
        round(&mut log, NOW);
        assert_eq!(records(&log), last, "crash {number}");
        assert_eq!(essence(&log), wanted);
        check_files(&disk, &log);
        // A second crash in the middle of the opening is survived, too.
        let again = disk.crash(Crash::LoseUnsynced);
        drop(log);
        let (log, _) = open(&again, compacted(), row);
        assert_eq!(essence(&log), wanted);
    }
    assert!(ways.len() >= 4, "the crashes came at different steps: {ways:?}");
}

#[test]
fn a_full_disk_ends_the_round_and_leaves_everything() {
    let disk = MemDisk::new();
    let mut log = Log::create(&without_tail(&disk), partition(), compacted(), 0, NOW).unwrap();
    story(&mut log);
    let wanted = essence(&log);
    disk.set_capacity(Some(disk.used() + 300));
    let outcome = round_with(&mut log, NOW, 1 << 20, |_, _, _| {});
    assert!(matches!(outcome, Err(CompactionError::Storage(StorageError::Full { .. }))), "{outcome:?}");
    assert_eq!(essence(&log), wanted);
    disk.set_capacity(None);
    round(&mut log, NOW);
    assert_eq!(essence(&log), wanted);
}

#[test]
fn a_write_that_fails_ends_the_round_wherever_it_is() {
    for good in 0..40 {
        let disk = MemDisk::new();
        let mut log = Log::create(&without_tail(&disk), partition(), compacted(), 0, NOW).unwrap();
        story(&mut log);
        let wanted = essence(&log);
        disk.fail_writes_after(Some(good));
        let failed = round_with(&mut log, NOW, 1 << 20, |_, _, _| {}).is_err();
        disk.fail_writes_after(None);
        assert_eq!(essence(&log), wanted, "after {good}");
        if !failed {
            return;
        }
        round(&mut log, NOW);
        assert_eq!(essence(&log), wanted, "after {good}");
        check_files(&disk, &log);
    }
}
