use std::sync::Arc;

use felix_cluster::keys::Key;
use felix_protocol::ids::BrokerId;
use felix_storage::disk::mem::{Crash, MemDisk};
use felix_storage::disk::os::OsDisk;
use tokio::runtime::Runtime;

use super::*;
use crate::store::list_all;

fn runtime() -> Runtime {
    tokio::runtime::Builder::new_current_thread().build().unwrap()
}

fn put(node: i32, value: &str) -> Decision {
    Decision::new().put(Key::Node(BrokerId(node)), &value)
}

fn key(node: i32) -> Key {
    Key::Node(BrokerId(node))
}

fn path(node: i32) -> String {
    key(node).to_string()
}

fn directory(disk: &MemDisk) -> PathBuf {
    let path = PathBuf::from("/data");
    if disk.read_dir(&path).is_err() {
        disk.create_dir(&path).unwrap();
        disk.sync_dir(Path::new("/")).unwrap();
    }
    path
}

fn open(disk: &MemDisk) -> Result<Embedded<MemDisk>, StoreError> {
    Embedded::open(disk.clone(), &directory(disk))
}

#[test]
fn what_was_committed_is_there_after_reopening() {
    runtime().block_on(async {
        let folder = tempfile::tempdir().unwrap();
        let disk = OsDisk;
        let mut store = Embedded::open(disk, folder.path()).unwrap();
        let committed = store.commit(&[put(1, "a"), put(2, "b")]).await.unwrap();
        assert_eq!(committed, Committed { revision: Revision(1), landed: vec![true, true] });
        store.commit(&[put(2, "c")]).await.unwrap();
        // The process dies: nothing is closed in order.
        drop(store);
        let mut store = Embedded::open(disk, folder.path()).unwrap();
        assert_eq!(store.get(&path(1)).await.unwrap().unwrap().revision, Revision(1));
        let entry = store.get(&path(2)).await.unwrap().unwrap();
        assert_eq!((entry.value.as_slice(), entry.revision), (&b"\"c\""[..], Revision(2)));
        assert_eq!(store.get(&path(3)).await.unwrap(), None);
        store.close().await.unwrap();
    });
}

#[test]
fn compares_decide_each_decision_alone() {
    runtime().block_on(async {
        let mut store = open(&MemDisk::new()).unwrap();
        store.commit(&[put(1, "a")]).await.unwrap();
        let decisions = [
            put(1, "lost").absent(key(1)),
            put(2, "won").at(key(1), Revision(1)),
            put(3, "lost").at(key(1), Revision(2)),
            put(4, "won").holds(key(1), b"\"a\"".to_vec()),
            put(5, "lost").holds(key(9), b"\"a\"".to_vec()),
            // Judged by the state before the transaction, and of two writes the first lands.
            put(6, "won").absent(key(2)),
            put(2, "lost"),
        ];
        let committed = store.commit(&decisions).await.unwrap();
        assert_eq!(committed.landed, [false, true, false, true, false, true, false]);
        assert_eq!(committed.revision, Revision(2));
        let none = store.commit(&[put(1, "lost").absent(key(1))]).await.unwrap();
        assert_eq!(none, Committed { revision: Revision(2), landed: vec![false] });
    });
}

#[test]
fn a_prefix_is_read_in_pages_at_one_revision() {
    runtime().block_on(async {
        let mut store = open(&MemDisk::new()).unwrap();
        let many: Vec<Decision> = (10..35).map(|node| put(node, "x")).collect();
        store.commit(&many).await.unwrap();
        store.commit(&[Decision::new().put(Key::Features, &1)]).await.unwrap();
        let first = store.list("/nodes/", None, 10).await.unwrap();
        assert!(first.more && first.entries.len() == 10);
        let after = After { key: first.entries[9].key.clone(), revision: first.revision };
        let second = store.list("/nodes/", Some(&after), 10).await.unwrap();
        assert_eq!(second.entries[0].key, path(20));
        store.commit(&[put(1, "between")]).await.unwrap();
        let late = store.list("/nodes/", Some(&after), 10).await;
        assert_eq!(late, Err(StoreError::Compacted(Revision(2))));
        let (all, revision) = list_all(&mut store, "/nodes/").await.unwrap();
        assert_eq!((all.len(), revision), (26, Revision(3)));
    });
}

#[test]
fn a_watch_tells_everything_after_its_revision_once() {
    runtime().block_on(async {
        let mut store = open(&MemDisk::new()).unwrap();
        store.commit(&[put(1, "a")]).await.unwrap();
        store.commit(&[put(2, "b"), Decision::new().put(Key::Features, &1)]).await.unwrap();
        let mut watch = store.watch("/nodes/", Revision(1)).await.unwrap();
        store.commit(&[Decision::new().put(Key::Features, &2)]).await.unwrap();
        store.commit(&[Decision::new().delete(key(1)).delete(key(7))]).await.unwrap();
        let told = watch.next().await.unwrap();
        assert_eq!((told.revision, told.changes.len()), (Revision(2), 1));
        let told = watch.next().await.unwrap();
        assert_eq!((told.revision, told.changes.len()), (Revision(3), 0), "it concerns others");
        let told = watch.next().await.unwrap();
        let gone = Change { key: path(1), value: None, revision: Revision(4) };
        assert_eq!(told, Arc::new(Batch { revision: Revision(4), changes: vec![gone] }));
        // What happened long ago, or in another life, is not told again.
        for _ in 0..=HISTORY_BATCHES {
            store.commit(&[put(1, "again")]).await.unwrap();
        }
        assert!(matches!(store.watch("/nodes/", Revision(1)).await, Err(StoreError::Compacted(_))));
    });
}

#[test]
fn a_power_cut_loses_no_commit_and_tears_none() {
    for seed in 0..40 {
        runtime().block_on(async {
            let disk = MemDisk::new();
            let mut store = open(&disk).unwrap();
            for round in 0..seed % 7 + 1 {
                let decisions: Vec<Decision> = (0..20).map(|node| put(node, &format!("{round}"))).collect();
                store.commit(&decisions).await.unwrap();
            }
            let expected = list_all(&mut store, "/").await.unwrap();
            let after =
                if seed == 0 { disk.crash(Crash::LoseUnsynced) } else { disk.crash(Crash::Random(seed)) };
            let mut store = open(&after).unwrap();
            assert_eq!(list_all(&mut store, "/").await.unwrap(), expected, "seed {seed}");
        });
    }
}

#[test]
fn a_power_cut_inside_a_commit_leaves_all_of_it_or_nothing() {
    for seed in 0..60 {
        runtime().block_on(async {
            let disk = MemDisk::new();
            let mut store = open(&disk).unwrap();
            let all = |value: &str| (0..50).map(|node| put(node, value)).collect::<Vec<_>>();
            store.commit(&all("old")).await.unwrap();
            disk.fail_writes_after(Some(seed % 12));
            let torn = store.commit(&all("new")).await;
            let after = disk.crash(Crash::Random(seed));
            after.fail_writes_after(None);
            let mut store = open(&after).unwrap();
            let (found, _) = list_all(&mut store, "/").await.unwrap();
            let new = found.iter().filter(|change| change.value.as_deref() == Some(b"\"new\"")).count();
            match torn {
                Ok(_) => assert_eq!(new, 50, "seed {seed}"),
                Err(_) => assert!(new == 0 || new == 50, "seed {seed}: {new} of 50"),
            }
        });
    }
}

#[test]
fn a_refused_write_is_survived_and_a_failed_flush_is_not() {
    runtime().block_on(async {
        let disk = MemDisk::new();
        let mut store = open(&disk).unwrap();
        store.commit(&[put(1, "kept")]).await.unwrap();
        disk.fail_writes_after(Some(0));
        let big = "x".repeat(200_000);
        let refused = store.commit(&[put(2, &big)]).await;
        assert!(matches!(refused, Err(StoreError::Unknown(_))), "{refused:?}");
        // What happened is read back from the file: nothing.
        disk.fail_writes_after(None);
        assert_eq!(store.get(&path(2)).await.unwrap(), None);
        assert!(store.get(&path(1)).await.unwrap().is_some());
        assert_eq!(store.commit(&[put(2, &big)]).await.unwrap().landed, [true]);
        disk.fail_sync_after(0);
        assert!(matches!(store.commit(&[put(3, "gone")]).await, Err(StoreError::Failed(_))));
        assert!(matches!(store.get(&path(1)).await, Err(StoreError::Failed(_))));
    });
}

#[test]
fn a_damaged_file_is_refused_with_its_name() {
    runtime().block_on(async {
        let disk = MemDisk::new();
        let mut store = open(&disk).unwrap();
        let many: Vec<Decision> = (0..200).map(|node| put(node, "some value that fills a page")).collect();
        store.commit(&many).await.unwrap();
        store.close().await.unwrap();
        drop(store);
        let file = directory(&disk).join(FILE_NAME);
        let whole = disk.content(&file).unwrap();
        let mut refused = 0;
        let scattered = (0..40).map(|step| whole.len() * step / 40);
        for at in [0, 8, 70].into_iter().chain(scattered) {
            let mut broken = whole.clone();
            for byte in broken.iter_mut().skip(at).take(64) {
                *byte ^= 0x5a;
            }
            disk.put(&file, &broken).unwrap();
            match open(&disk) {
                Err(StoreError::Damaged(what)) => {
                    refused += 1;
                    assert!(what.contains(FILE_NAME), "{what}");
                }
                Err(other) => panic!("{other}"),
                // Bytes that belong to no live page.
                Ok(mut store) => assert_eq!(list_all(&mut store, "/").await.unwrap().0.len(), 200),
            }
        }
        assert!(refused > 5, "{refused}");
        disk.put(&file, b"not a database at all, but long enough to look at").unwrap();
        assert!(matches!(open(&disk), Err(StoreError::Damaged(_))));
    });
}

#[test]
fn an_idle_store_writes_nothing() {
    runtime().block_on(async {
        let disk = MemDisk::new();
        let mut store = open(&disk).unwrap();
        store.commit(&[put(1, "a")]).await.unwrap();
        let before = disk.counters();
        store.get(&path(1)).await.unwrap();
        list_all(&mut store, "/").await.unwrap();
        store.commit(&[put(1, "lost").absent(key(1))]).await.unwrap();
        assert_eq!(disk.counters().writes, before.writes);
        assert_eq!(disk.counters().file_syncs, before.file_syncs);
        store.commit(&[put(1, "b")]).await.unwrap();
        assert_eq!(disk.counters().file_syncs, before.file_syncs + 1, "one flush a transaction");
    });
}
