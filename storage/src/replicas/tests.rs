use std::path::Path;

use felix_protocol::ids::{TopicId, Uuid};

use super::*;
use crate::config::Limits;
use crate::disk::mem::{Crash, MemDisk};

fn dir(disk: &MemDisk) -> DataDir<MemDisk> {
    DataDir::open(disk.clone(), Path::new("/data"), Limits::default()).unwrap()
}

fn partition(number: u128) -> PartitionId {
    PartitionId { topic: TopicId(Uuid::from_u128(number + 1)), index: 3 }
}

fn row(mark: Offset) -> Replica {
    Replica {
        log_id: LogId(Uuid::from_u128(77)),
        accepted: Generation::new(5).unwrap(),
        mark,
        mark_generation: Generation::new(4).unwrap(),
        log_start: 1,
        synced: mark + 1,
        clean: mark % 2 == 0,
        unsynced: mark % 3 == 0,
        diverged: mark % 5 == 0,
    }
}

fn table() -> std::path::PathBuf {
    Path::new("/data").join(layout::REPLICAS)
}

#[test]
fn what_was_committed_is_there_after_a_crash_and_what_was_not_may_not_be() {
    let disk = MemDisk::new();
    let (replicas, report) = Replicas::open(&dir(&disk)).unwrap();
    assert_eq!(report, ReplicasReport::default());
    for number in 0..10 {
        replicas.stage(partition(number), row(i64::try_from(number).unwrap()));
    }
    replicas.stage_boot_id(42);
    let ticket = replicas.stage_removal(&partition(3));
    replicas.commit(ticket).unwrap();
    replicas.stage(partition(0), row(1000));
    let after = disk.crash(Crash::LoseUnsynced);
    let (found, report) = Replicas::open(&dir(&after)).unwrap();
    assert_eq!(report.boot_id, Some(42));
    assert_eq!(report.damaged, 0);
    assert_eq!(found.all().len(), 9);
    assert_eq!(found.get(&partition(0)), Some(row(0)));
    assert_eq!(found.get(&partition(3)), None);
}

#[test]
fn many_changes_share_one_flush() {
    let disk = MemDisk::new();
    let (replicas, _) = Replicas::open(&dir(&disk)).unwrap();
    let first = replicas.stage(partition(0), row(1));
    replicas.commit(first).unwrap();
    let before = disk.counters();
    let tickets: Vec<_> = (0..10_000).map(|number| replicas.stage(partition(number), row(7))).collect();
    for ticket in &tickets {
        replicas.commit(tickets[9_999].max(*ticket)).unwrap();
    }
    let after = disk.counters();
    assert!(after.file_syncs - before.file_syncs <= 2);
    assert!(after.writes - before.writes <= 2);
}

#[test]
fn a_torn_commit_is_forgotten_as_a_whole() {
    let disk = MemDisk::new();
    let (replicas, _) = Replicas::open(&dir(&disk)).unwrap();
    let ticket = replicas.stage(partition(0), row(1));
    replicas.commit(ticket).unwrap();
    let durable = disk.content(&table()).unwrap();
    for number in 0..20 {
        replicas.stage(partition(number), row(50));
    }
    let ticket = replicas.stage_boot_id(9);
    replicas.commit(ticket).unwrap();
    let whole = disk.content(&table()).unwrap();
    // Any mix of sectors of the second commit.
    for mix in 0..32_u32 {
        let mut torn = durable.clone();
        for sector in 0..5 {
            if mix & (1 << sector) != 0 {
                let range = sector * 512..(sector + 1) * 512;
                torn[range.clone()].copy_from_slice(&whole[range]);
            }
        }
        let after = MemDisk::new();
        after.create_dir(Path::new("/data")).unwrap();
        after.put(&table(), &torn).unwrap();
        let (found, report) = Replicas::open(&dir(&after)).unwrap();
        assert_eq!(report.damaged, 0, "{mix:b}");
        let all = torn[..] == whole[..];
        assert_eq!(found.all().len(), if all { 20 } else { 1 }, "{mix:b}");
        assert_eq!(found.get(&partition(0)), Some(row(if all { 50 } else { 1 })));
    }
}

#[test]
fn damage_below_later_commits_is_told() {
    let disk = MemDisk::new();
    let (replicas, _) = Replicas::open(&dir(&disk)).unwrap();
    for mark in 0..3 {
        let ticket = replicas.stage(partition(0), row(mark));
        replicas.commit(ticket).unwrap();
    }
    let mut content = disk.content(&table()).unwrap();
    content[2 * UNIT + 50] ^= 1;
    let after = MemDisk::new();
    after.create_dir(Path::new("/data")).unwrap();
    after.put(&table(), &content).unwrap();
    let (found, report) = Replicas::open(&dir(&after)).unwrap();
    assert_eq!(report.damaged, 1);
    assert_eq!(found.get(&partition(0)), Some(row(2)));
}

/// Found by fuzzing: opening wrote the table anew and forgot the damage, so that a process which ended right then
/// took outdated rows for sound at its next start.
#[test]
fn damage_is_told_until_a_commit_has_dealt_with_it() {
    let disk = MemDisk::new();
    let (replicas, _) = Replicas::open(&dir(&disk)).unwrap();
    for mark in 0..3 {
        replicas.commit(replicas.stage(partition(0), row(mark))).unwrap();
    }
    drop(replicas);
    let mut content = disk.content(&table()).unwrap();
    content[2 * UNIT + 50] ^= 1;
    disk.put(&table(), &content).unwrap();
    for _ in 0..2 {
        let (_, report) = Replicas::open(&dir(&disk)).unwrap();
        assert_eq!(report.damaged, 1);
    }
    let (replicas, _) = Replicas::open(&dir(&disk)).unwrap();
    replicas.commit(replicas.stage(partition(0), row(9))).unwrap();
    drop(replicas);
    let (found, report) = Replicas::open(&dir(&disk.crash(Crash::LoseUnsynced))).unwrap();
    assert_eq!((report.damaged, found.get(&partition(0))), (0, Some(row(9))));
}

#[test]
fn only_copies_that_nothing_newer_is_known_of_are_outdated() {
    let disk = MemDisk::new();
    let (replicas, _) = Replicas::open(&dir(&disk)).unwrap();
    for number in [0, 1, 2, 1] {
        let ticket = replicas.stage(partition(number), row(i64::try_from(number).unwrap() + 10));
        replicas.commit(ticket).unwrap();
        // Differs from the one before.
        replicas.stage(partition(1), row(99));
    }
    let whole = disk.content(&table()).unwrap();
    let open = |hit: usize| {
        let mut content = whole.clone();
        content[hit] ^= 1;
        let after = MemDisk::new();
        after.create_dir(Path::new("/data")).unwrap();
        after.put(&table(), &content).unwrap();
        Replicas::open(&dir(&after)).unwrap()
    };
    // In the second commit, behind which the third writes 1 and 2 anew.
    let (_, report) = open(2 * UNIT + UNIT + 30);
    assert_eq!((report.damaged, report.outdated), (1, vec![partition(0)]));
    // In the last one: it was written as a whole, so it is no torn tail.
    let last = whole.iter().rposition(|byte| *byte != 0).unwrap();
    let (_, report) = open(last - 5);
    assert_eq!((report.damaged, report.outdated.len()), (1, 3));
}

#[test]
fn a_table_that_says_nothing_beside_copies_is_told_put_aside_and_begun_anew() {
    for content in [None, Some(&b""[..]), Some(b"x"), Some(&[0; 4096]), Some(&[0xFF; 5000])] {
        let disk = MemDisk::new();
        disk.create_dir(Path::new("/data")).unwrap();
        disk.create_dir(&Path::new("/data").join(partition(1).to_string())).unwrap();
        match content {
            Some(content) => disk.put(&table(), content).unwrap(),
            None => disk.create_dir(&table()).unwrap(),
        }
        let (replicas, report) = Replicas::open(&dir(&disk)).unwrap();
        assert!(report.lost.is_some());
        replicas.commit(replicas.stage(partition(1), row(1))).unwrap();
        let aside = Path::new("/data").join(format!("{}{}", layout::REPLICAS, layout::ASIDE));
        let garbage = content.filter(|content| content.iter().any(|byte| *byte != 0));
        assert_eq!(disk.content(&aside).ok().as_deref(), garbage);
        let (found, report) = Replicas::open(&dir(&disk.crash(Crash::KeepAll))).unwrap();
        assert_eq!((found.all().len(), report.lost), (1, None));
    }
}

#[test]
fn garbage_is_an_empty_table_and_does_not_stop_a_start() {
    for content in [&b""[..], b"x", &[0; 4096], &[0xFF; 5000]] {
        let disk = MemDisk::new();
        disk.create_dir(Path::new("/data")).unwrap();
        disk.sync_dir(Path::new("/")).unwrap();
        disk.put(&table(), content).unwrap();
        let (replicas, _) = Replicas::open(&dir(&disk)).unwrap();
        assert!(replicas.all().is_empty());
        let ticket = replicas.stage(partition(1), row(1));
        replicas.commit(ticket).unwrap();
        let (found, report) = Replicas::open(&dir(&disk.crash(Crash::LoseUnsynced))).unwrap();
        assert_eq!((found.all().len(), report.damaged), (1, 0));
    }
}

#[test]
fn a_full_disk_lets_the_table_open_and_keeps_changes_for_later() {
    let disk = MemDisk::new();
    {
        let (replicas, _) = Replicas::open(&dir(&disk)).unwrap();
        let ticket = replicas.stage(partition(0), row(1));
        replicas.commit(ticket).unwrap();
    }
    disk.set_capacity(Some(disk.used()));
    let (replicas, _) = Replicas::open(&dir(&disk)).unwrap();
    // The reserve takes some changes even now.
    let ticket = replicas.stage(partition(1), row(2));
    replicas.commit(ticket).unwrap();
    let mut full = None;
    for number in 0..10_000 {
        let ticket = replicas.stage(partition(number), row(3));
        if let Err(error) = replicas.commit(ticket) {
            full = Some((error, ticket));
            break;
        }
    }
    let (error, ticket) = full.unwrap();
    assert!(matches!(error, StorageError::Full { .. }), "{error}");
    disk.set_capacity(None);
    replicas.commit(ticket).unwrap();
    let count = replicas.all().len();
    let (found, report) = Replicas::open(&dir(&disk.crash(Crash::LoseUnsynced))).unwrap();
    assert_eq!((found.all().len(), report.damaged), (count, 0));
}

#[test]
fn a_failed_flush_is_final() {
    let disk = MemDisk::new();
    let (replicas, _) = Replicas::open(&dir(&disk)).unwrap();
    let ticket = replicas.stage(partition(0), row(1));
    disk.fail_sync_after(0);
    assert!(matches!(replicas.commit(ticket), Err(StorageError::Io { .. })));
    assert!(matches!(replicas.commit(ticket), Err(StorageError::Poisoned)));
    assert!(replicas.is_poisoned());
}

#[test]
fn the_file_stays_small_and_random_crashes_keep_what_was_committed() {
    for seed in 0..10 {
        let disk = MemDisk::new();
        let (replicas, _) = Replicas::open(&dir(&disk)).unwrap();
        for mark in 0..3_000_i64 {
            let ticket = replicas.stage(partition(u128::from(mark.unsigned_abs() % 7)), row(mark));
            if mark % 3 == 0 || mark > 2_990 {
                replicas.commit(ticket).unwrap();
            }
        }
        assert!(disk.content(&table()).unwrap().len() <= 20 * RESERVE);
        replicas.stage(partition(0), row(9_999));
        let committed: Vec<_> = replicas.all();
        let (found, report) = Replicas::open(&dir(&disk.crash(Crash::Random(seed)))).unwrap();
        assert_eq!(report.damaged, 0);
        assert_eq!(found.all()[1..], committed[1..]);
    }
}
