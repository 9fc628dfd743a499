//! What must hold while servers are killed, frozen, voted out and cut off.

use std::cell::Cell;
use std::path::Path;
use std::time::{Duration, Instant};

use felix_cluster::state::Revision;
use felix_control::store::etcd::{Etcd, EtcdConfig, EtcdWays};
use felix_control::store::{After, Connect, Store, StoreError, Watch, list_all};

use crate::load::{Run, count, follow};
use crate::proxy::Proxy;
use crate::server::{Cluster, TIMEOUT, block_on};
use crate::suite::{self, bounded, put, read, written};

/// The suite, each check below a prefix of its own.
async fn suite_on(cluster: &Cluster) {
    let made = Cell::new(0);
    suite::all(async || {
        made.set(made.get() + 1);
        cluster.connect(&format!("/felix-{}", made.get())).await
    })
    .await;
}

pub fn conformance(server: &Path) -> String {
    let cluster = Cluster::start(server, 1);
    block_on(async {
        suite_on(&cluster).await;
        its_prefix_is_its_own(&cluster).await;
        old_revisions_are_told_from_the_beginning(&cluster).await;
        a_revision_of_somebody_else_reaches_the_watch(&cluster).await;
        handles_are_told_of_each_other(&cluster).await;
    });
    "one server".to_owned()
}

pub fn conformance_of_three(server: &Path) -> String {
    let cluster = Cluster::start(server, 3);
    let over = std::sync::atomic::AtomicBool::new(false);
    let others = std::thread::scope(|scope| {
        // Others write to the same etcd meanwhile.
        let noise = scope.spawn(|| {
            let mut writes = 0;
            while !over.load(std::sync::atomic::Ordering::Relaxed) {
                cluster.members[writes % 3].write_elsewhere();
                writes += 1;
            }
            writes
        });
        let outcome = std::panic::catch_unwind(std::panic::AssertUnwindSafe(|| block_on(suite_on(&cluster))));
        over.store(true, std::sync::atomic::Ordering::Relaxed);
        let writes = noise.join().unwrap();
        if let Err(panic) = outcome {
            std::panic::resume_unwind(panic);
        }
        writes
    });
    format!("three servers, {others} writes of others meanwhile")
}

/// Two clusters share one etcd, and one's prefix begins as the other's.
async fn its_prefix_is_its_own(cluster: &Cluster) {
    let mut one = cluster.connect("/own").await;
    let mut other = cluster.connect("/own-2").await;
    let mut watch = one.watch("/", one.position().revision).await.unwrap();
    written(&mut other, 1, "of the other").await;
    assert_eq!(read(&mut one, 1).await, None);
    let mine = written(&mut one, 2, "mine").await;
    assert_eq!(bounded(watch.next()).await.unwrap().revision, mine, "nothing is told of the other");
    let (all, _) = list_all(&mut one, "/").await.unwrap();
    assert_eq!(all.len(), 1);
}

async fn old_revisions_are_told_from_the_beginning(cluster: &Cluster) {
    let mut store = cluster.connect("/old").await;
    let start = store.position().revision;
    let mut wanted = Vec::new();
    for node in 0..200 {
        wanted.push(written(&mut store, node, &"x".repeat(20_000)).await);
    }
    // Several megabytes of history, in one go.
    let mut watch = store.watch("/", start).await.unwrap();
    for wanted in wanted {
        let batch = bounded(watch.next()).await.unwrap();
        assert_eq!((batch.revision, batch.changes.len()), (wanted, 1));
    }
}

async fn a_revision_of_somebody_else_reaches_the_watch(cluster: &Cluster) {
    let mut store = cluster.connect("/idle").await;
    written(&mut store, 1, "x").await;
    let mut watch = store.watch("/", store.position().revision).await.unwrap();
    for round in 0..3 {
        cluster.members[0].write_elsewhere();
        let lost = store.commit(&[put(1, "lost").absent(suite::key(1))]).await.unwrap();
        let began = Instant::now();
        let mut reached = Revision::ABSENT;
        while reached < lost.revision {
            let batch = bounded(watch.next()).await.unwrap();
            assert!(batch.changes.is_empty(), "{batch:?}");
            reached = batch.revision;
        }
        assert!(began.elapsed() < TIMEOUT, "round {round}: {:?}", began.elapsed());
    }
    // What brought that about is nobody's business.
    assert_eq!(list_all(&mut store, "/").await.unwrap().0.len(), 1);
}

/// Handles of one process, each with a connection of its own.
async fn handles_are_told_of_each_other(cluster: &Cluster) {
    let ways = EtcdWays::new(cluster.config("/handles")).unwrap();
    let mut store = ways.connect(TIMEOUT).await.unwrap();
    let mut other = ways.connect(TIMEOUT).await.unwrap();
    written(&mut store, 1, "x").await;
    let mut watch = store.watch("/", store.position().revision).await.unwrap();
    cluster.members[0].write_elsewhere();
    let lost = other.commit(&[put(1, "lost").absent(suite::key(1))]).await.unwrap();
    while bounded(watch.next()).await.unwrap().revision < lost.revision {}
    assert_eq!(store.position(), other.position());
}

/// Runs a count and somebody who follows it, while `trouble` has its way with the servers.
fn under_load(cluster: &mut Cluster, rounds: u64, trouble: impl AsyncFn(&mut Cluster, &Run, u64)) -> String {
    let run = Run::default();
    block_on(async {
        // As in a broker: the two know of each other.
        let ways = EtcdWays::new(cluster.config("/load")).unwrap();
        let (mut writer, mut follower) =
            (ways.connect(TIMEOUT).await.unwrap(), ways.connect(TIMEOUT).await.unwrap());
        let watched = follow(&mut follower, &run);
        let troubled = async {
            run.progress(50).await;
            for round in 0..rounds {
                trouble(cluster, &run, round).await;
                run.progress(50).await;
            }
            run.over.set(true);
        };
        tokio::join!(count(&mut writer, &run), watched, troubled);
    });
    run.told()
}

/// Every member is killed and started again, in turn, so the leader and the one in use are among them.
pub fn members_killed(server: &Path) -> String {
    let mut cluster = Cluster::start(server, 3);
    under_load(&mut cluster, 6, async |cluster, run, round| {
        let at = usize::try_from(round % 3).unwrap();
        cluster.kill(at);
        run.progress(50).await;
        cluster.spawn(at);
        // The next one is killed only when this one counts again.
        cluster.await_ready(at);
    })
}

pub fn leader_moves(server: &Path) -> String {
    let mut cluster = Cluster::start(server, 3);
    under_load(&mut cluster, 12, async |cluster, _, _| {
        let next = (cluster.leader() + 1) % 3;
        cluster.move_leader(next);
    })
}

/// A member that neither answers nor goes away: requests and watches find another.
pub fn member_frozen(server: &Path) -> String {
    let mut cluster = Cluster::start(server, 3);
    block_on(whoever_gives_up_early_finds_another_member(&cluster));
    under_load(&mut cluster, 6, async |cluster, run, round| {
        let at = usize::try_from(round % 3).unwrap();
        cluster.freeze(at, true);
        run.progress(50).await;
        // Whoever watches at the frozen one has found another.
        run.all_told().await;
        cluster.freeze(at, false);
    })
}

/// A caller with less patience than the store drops its request; the next one does not go the same way.
async fn whoever_gives_up_early_finds_another_member(cluster: &Cluster) {
    let frozen = (cluster.leader() + 1) % 3;
    let endpoints = [frozen, (frozen + 1) % 3].map(|at| cluster.endpoints()[at].clone()).to_vec();
    let patient = EtcdConfig { endpoints, timeout: Duration::from_secs(60), ..cluster.config("/early") };
    let mut stores = Vec::new();
    // Each begins at one of the two.
    for _ in 0..8 {
        stores.push(Etcd::connect(patient.clone(), None).await.unwrap());
    }
    cluster.freeze(frozen, true);
    let mut given_up = 0;
    for store in &mut stores {
        if tokio::time::timeout(TIMEOUT, store.get("/cluster")).await.is_err() {
            given_up += 1;
            assert_eq!(bounded(store.get("/cluster")).await, Ok(None));
        }
    }
    cluster.freeze(frozen, false);
    eprintln!("{given_up} of {} gave up early", stores.len());
}

/// Without a majority nothing is answered, and nothing is claimed; with it everything goes on, over the same handle.
pub fn majority_lost(server: &Path) -> String {
    let mut cluster = Cluster::start(server, 3);
    block_on(async {
        let mut store = cluster.connect("/felix").await;
        let first = written(&mut store, 1, "before").await;
        let mut watch = store.watch("/", first).await.unwrap();
        cluster.kill(1);
        cluster.kill(2);
        let began = Instant::now();
        let read_then = store.get(&suite::path(1)).await;
        assert!(
            matches!(&read_then, Err(StoreError::Unavailable(what)) if what.contains("127.0.0.1")),
            "{read_then:?}"
        );
        let wrote = store.commit(&[put(2, "meanwhile")]).await;
        assert!(matches!(wrote, Err(StoreError::Unavailable(_) | StoreError::Unknown(_))), "{wrote:?}");
        let refused_after = began.elapsed();
        assert!(refused_after < TIMEOUT * 10, "{refused_after:?}");
        for at in [1, 2] {
            cluster.spawn(at);
        }
        for at in [1, 2] {
            cluster.await_ready(at);
        }
        let after = written(&mut store, 3, "after").await;
        assert_eq!(read(&mut store, 1).await.as_deref(), Some("before"));
        // The watch went on, or says that it did not.
        let outcome = loop {
            match bounded(watch.next()).await {
                Ok(batch) if batch.revision >= after => break "went on",
                Ok(_) => {}
                Err(StoreError::Unavailable(_)) => break "ended and said so",
                Err(other) => panic!("{other}"),
            }
        };
        format!("two requests refused within {} ms; the watch {outcome}", refused_after.as_millis())
    })
}

pub fn compaction(server: &Path) -> String {
    let cluster = Cluster::start(server, 1);
    block_on(async {
        let mut store = cluster.connect("/felix").await;
        let old = store.position().revision;
        let mut running = store.watch("/", old).await.unwrap();
        for node in 0..30 {
            written(&mut store, node, "x").await;
        }
        let first = store.list("/", None, 10).await.unwrap();
        let last = written(&mut store, 30, "x").await;
        while bounded(running.next()).await.unwrap().revision < last {}
        cluster.members[0].compact(last.0);
        // A list that was begun before cannot go on, and one that begins anew is whole.
        let after = After { key: first.entries[9].key.clone(), revision: first.revision };
        assert_eq!(store.list("/", Some(&after), 10).await, Err(StoreError::Compacted(first.revision)));
        assert_eq!(list_all(&mut store, "/").await.unwrap().0.len(), 31);
        // So it is with a watch; one that has been told everything goes on.
        let mut late = store.watch("/", old).await.unwrap();
        assert_eq!(bounded(late.next()).await, Err(StoreError::Compacted(old)));
        let next = written(&mut store, 31, "x").await;
        assert_eq!(bounded(running.next()).await.unwrap().revision, next);
        let mut fresh = store.watch("/", last).await.unwrap();
        assert_eq!(bounded(fresh.next()).await.unwrap().revision, next);
    });
    // And once more while much is written and told.
    let mut cluster = Cluster::start(server, 3);
    under_load(&mut cluster, 20, async |cluster, run, _| {
        cluster.members[0].compact(run.last.get().0);
    })
}

/// A transaction that is carried out and whose answer never comes.
pub fn answers_lost(server: &Path) -> String {
    let cluster = Cluster::start(server, 1);
    block_on(async {
        let proxy = Proxy::to(cluster.members[0].client_port).await;
        let way = |endpoint: String| EtcdConfig { endpoints: vec![endpoint], ..cluster.config("/felix") };
        let mut store = Etcd::connect(way(format!("http://{}", proxy.address)), None).await.unwrap();
        let mut beside = cluster.connect("/felix").await;
        let first = written(&mut store, 1, "a").await;
        let mut watch = store.watch("/", first).await.unwrap();
        let second = written(&mut store, 1, "b").await;
        assert_eq!(bounded(watch.next()).await.unwrap().revision, second);
        for round in 0..3 {
            proxy.set_silent(true);
            let began = Instant::now();
            let lost = store.commit(&[put(10 + round, "carried out")]).await;
            assert!(matches!(lost, Err(StoreError::Unknown(_))), "{lost:?}");
            assert!(began.elapsed() < TIMEOUT + Duration::from_secs(1), "{:?}", began.elapsed());
            let found = read(&mut beside, 10 + round).await;
            assert_eq!(found.as_deref(), Some("carried out"));
            // And with reads it does not matter: nothing is claimed.
            let unread = store.get(&suite::path(1)).await;
            assert!(matches!(unread, Err(StoreError::Unavailable(_))), "{unread:?}");
            proxy.set_silent(false);
            // The same handle finds out what has become of it.
            assert_eq!(read(&mut store, 10 + round).await.as_deref(), Some("carried out"));
            // And its watch, whose way fell silent too, tells of everything in time.
            let wanted = written(&mut store, 20 + round, "x").await;
            let told = Instant::now();
            let mut times = 0;
            loop {
                let batch = bounded(watch.next()).await.unwrap();
                times += batch.changes.iter().filter(|change| change.key == suite::path(10 + round)).count();
                if batch.revision >= wanted {
                    break;
                }
            }
            assert_eq!(times, 1, "it was written once, not sent again");
            assert!(told.elapsed() < Duration::from_secs(10), "{:?}", told.elapsed());
        }
    });
    "3 answers lost, each found out by reading back".to_owned()
}
