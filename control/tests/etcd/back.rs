//! Stores that may not be believed any more, and one that has no room.

use std::path::Path;

use felix_control::store::etcd::{Etcd, EtcdError};
use felix_control::store::{Store, StoreError};
use serde_json::json;

use crate::server::{Cluster, block_on};
use crate::suite::{path, put, read, written};

/// A backup is put back under a process that knows better, and another etcd takes the place of the first.
pub fn goes_back(server: &Path) -> String {
    let mut cluster = Cluster::start(server, 1);
    block_on(async {
        let mut store = cluster.connect("/felix").await;
        written(&mut store, 1, "before").await;
        let backup = cluster.folder.path().join("backup");
        cluster.kill(0);
        copy(&cluster.members[0].data, &backup);
        cluster.spawn(0);
        cluster.await_ready(0);
        // An ordinary restart is none of it.
        assert_eq!(read(&mut store, 1).await.as_deref(), Some("before"));
        for node in 2..20 {
            written(&mut store, node, "after").await;
        }
        let seen = store.position();
        cluster.kill(0);
        std::fs::remove_dir_all(&cluster.members[0].data).unwrap();
        copy(&backup, &cluster.members[0].data);
        cluster.spawn(0);
        cluster.await_ready(0);
        let refused = store.get(&path(1)).await;
        let Err(error @ StoreError::WentBack { .. }) = refused else { panic!("{refused:?}") };
        assert!(error.to_string().contains(&seen.revision.to_string()), "{error}");
        let refused = store.commit(&[put(1, "x")]).await;
        assert!(matches!(refused, Err(StoreError::WentBack { .. })), "{refused:?}");
        // A process that starts now remembers too.
        let refused = Etcd::connect(cluster.config("/felix"), Some(seen)).await;
        assert!(matches!(refused, Err(EtcdError::Store(StoreError::WentBack { .. }))), "{:?}", refused.err());
        assert!(Etcd::connect(cluster.config("/felix"), None).await.is_ok());
    });
    block_on(async {
        let ours = Cluster::start(server, 1);
        let store = ours.connect("/felix").await;
        let other = Cluster::start_with(server, 1, "another", &[]);
        let mut there = other.connect("/felix").await;
        for node in 0..20 {
            written(&mut there, node, "further than the first").await;
        }
        let (here, there) = (store.position(), there.position());
        assert!(there.store != here.store && there.revision > here.revision);
        let refused = Etcd::connect(other.config("/felix"), Some(here)).await;
        assert!(matches!(refused, Err(EtcdError::Store(StoreError::WentBack { .. }))), "{:?}", refused.err());
    });
    "a restored copy and another etcd were refused".to_owned()
}

fn copy(from: &Path, to: &Path) {
    std::fs::create_dir_all(to).unwrap();
    for entry in std::fs::read_dir(from).unwrap() {
        let entry = entry.unwrap();
        let target = to.join(entry.file_name());
        if entry.file_type().unwrap().is_dir() {
            copy(&entry.path(), &target);
        } else {
            std::fs::copy(entry.path(), target).unwrap();
        }
    }
}

/// etcd has reached its quota: it refuses to write and says why, and still reads; after it was given room the same
/// handle writes.
pub fn full(server: &Path) -> String {
    let options = ["--quota-backend-bytes", "4194304"].map(str::to_owned);
    let cluster = Cluster::start_with(server, 1, "felix", &options);
    block_on(async {
        let mut store = cluster.connect("/felix").await;
        written(&mut store, 1, "kept").await;
        let large = "x".repeat(500_000);
        let mut wrote = 0;
        let error = loop {
            match store.commit(&[put(2, &large)]).await {
                Ok(_) => wrote += 1,
                Err(error) => break error,
            }
            assert!(wrote < 100, "it is never full");
        };
        let StoreError::Unavailable(what) = &error else { panic!("{error:?}") };
        assert!(what.contains("database space exceeded") && what.contains("127.0.0.1"), "{what}");
        assert_eq!(read(&mut store, 1).await.as_deref(), Some("kept"));
        let member = &cluster.members[0];
        member.compact(store.position().revision.0);
        member.ask("/v3/maintenance/defragment", &json!({})).unwrap();
        let alarms = member.ask("/v3/maintenance/alarm", &json!({ "action": "GET" })).unwrap();
        for alarm in alarms["alarms"].as_array().unwrap() {
            let off =
                json!({ "action": "DEACTIVATE", "memberID": alarm["memberID"], "alarm": alarm["alarm"] });
            member.ask("/v3/maintenance/alarm", &off).unwrap();
        }
        written(&mut store, 1, "again").await;
        format!("{wrote} values of 500,000 bytes went in")
    })
}
