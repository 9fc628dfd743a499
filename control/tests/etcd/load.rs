//! Writers and watchers that know what must come of what they do, whatever becomes of the servers.

use std::cell::{Cell, RefCell};
use std::path::Path;
use std::time::{Duration, Instant};

use felix_cluster::decision::Decision;
use felix_cluster::keys::Key;
use felix_cluster::state::Revision;
use felix_control::store::etcd::Etcd;
use felix_control::store::{Store, StoreError, Watch, list_all};
use felix_protocol::ids::{PartitionId, TopicId};

use crate::server::{Cluster, block_on};
use crate::suite::{key, path};

const KEY: i32 = 1;
/// Written when the count has ended.
const END: i32 = 2;

/// Shared between the writer, the watcher and whoever troubles the servers.
#[derive(Default)]
pub struct Run {
    pub over: Cell<bool>,
    /// Steps that were written.
    pub steps: Cell<u64>,
    pub last: Cell<Revision>,
    pub unknown: Cell<u64>,
    pub refused: Cell<u64>,
    pub longest: Cell<Duration>,
    pub relists: Cell<u64>,
    seen: RefCell<Vec<u64>>,
    /// When each step was answered.
    answered: RefCell<Vec<Instant>>,
    /// How much later one was told.
    late: Cell<Duration>,
}

impl Run {
    /// Waits until so many more steps were written, which shows that the store works.
    pub async fn progress(&self, steps: u64) {
        let wanted = self.steps.get() + steps;
        let reached = async {
            while self.steps.get() < wanted {
                tokio::time::sleep(Duration::from_millis(5)).await;
            }
        };
        let bound = Duration::from_secs(30);
        tokio::time::timeout(bound, reached).await.expect("nothing is written any more");
    }

    /// Waits until the watch has told what is written by now, however the servers fare.
    pub async fn all_told(&self) {
        let wanted = self.steps.get();
        let told = async {
            while (self.seen.borrow().len() as u64) < wanted {
                tokio::time::sleep(Duration::from_millis(5)).await;
            }
        };
        tokio::time::timeout(Duration::from_secs(5), told).await.expect("what was written is not told");
    }

    pub fn told(&self) -> String {
        format!(
            "{} steps, {} of unknown outcome, {} refused, longest pause {} ms, told at most {} ms after the answer, {} lists anew",
            self.steps.get(),
            self.unknown.get(),
            self.refused.get(),
            self.longest.get().as_millis(),
            self.late.get().as_millis(),
            self.relists.get()
        )
    }
}

/// Counts up in one key, one step a transaction, each step comparing the revision of the one before. A step of which it
/// is not known whether it was written is read back; it may also be written later, by itself.
pub async fn count(store: &mut Etcd, run: &Run) {
    let (mut number, mut revision) = (0_u64, Revision::ABSENT);
    let mut since = Instant::now();
    while !run.over.get() {
        let next = number + 1;
        let step = Decision::new().at(key(KEY), revision).put(key(KEY), &next);
        let landed = match store.commit(&[step]).await {
            Ok(committed) => committed.landed[0].then_some(committed.revision),
            Err(StoreError::Unknown(_)) => {
                run.unknown.set(run.unknown.get() + 1);
                None
            }
            Err(StoreError::Unavailable(_)) => {
                run.refused.set(run.refused.get() + 1);
                None
            }
            Err(other) => panic!("{other}"),
        };
        let now = match landed {
            Some(at) => Some((next, at)),
            None => match store.get(&path(KEY)).await {
                Ok(Some(entry)) => Some((serde_json::from_slice(&entry.value).unwrap(), entry.revision)),
                Ok(None) => Some((0, Revision::ABSENT)),
                Err(StoreError::Unavailable(_)) => None,
                Err(other) => panic!("{other}"),
            },
        };
        let Some((found, at)) = now else {
            tokio::time::sleep(Duration::from_millis(20)).await;
            continue;
        };
        // Nobody else writes it: it is where it was, or one step further.
        assert!(found == number || found == next, "{found} after {number}");
        if found == next {
            run.longest.set(run.longest.get().max(since.elapsed()));
            since = Instant::now();
            run.steps.set(next);
            run.answered.borrow_mut().push(since);
            run.last.set(at);
        }
        (number, revision) = (found, at);
    }
    while store.commit(&[crate::suite::put(END, "end")]).await.is_err() {
        tokio::time::sleep(Duration::from_millis(20)).await;
    }
}

/// Follows the count to its end: every step must be told, once, in order.
pub async fn follow(store: &mut Etcd, run: &Run) {
    let mut reached = store.position().revision;
    let mut watch = store.watch("/", reached).await.unwrap();
    let mut ended = false;
    while !ended {
        // What was answered is told within moments, however the servers fared.
        let Ok(told) = tokio::time::timeout(Duration::from_secs(30), watch.next()).await else {
            panic!("nothing is told after {reached}, {} was answered", run.last.get());
        };
        match told {
            Ok(batch) => {
                assert!(batch.revision > reached, "{} after {reached}", batch.revision);
                reached = batch.revision;
                ended = batch.changes.iter().any(|change| change.key == path(END));
                for change in batch.changes.iter().filter(|change| change.key == path(KEY)) {
                    let value = change.value.as_ref().unwrap();
                    let step: u64 = serde_json::from_slice(value).unwrap();
                    run.seen.borrow_mut().push(step);
                    let index = usize::try_from(step - 1).unwrap();
                    if let Some(answered) = run.answered.borrow().get(index) {
                        run.late.set(run.late.get().max(answered.elapsed()));
                    }
                }
            }
            Err(StoreError::Unavailable(_) | StoreError::Compacted(_)) => {
                run.relists.set(run.relists.get() + 1);
                let Ok((all, revision)) = list_all(store, "/").await else { continue };
                let now = all
                    .iter()
                    .find(|change| change.key == path(KEY))
                    .and_then(|change| change.value.as_ref());
                let now = now.map_or(0, |value| serde_json::from_slice(value).unwrap());
                let missed = run.seen.borrow().last().copied().unwrap_or(0) + 1;
                run.seen.borrow_mut().extend(missed..=now);
                ended = all.iter().any(|change| change.key == path(END));
                reached = revision;
                watch = store.watch("/", reached).await.unwrap();
            }
            Err(other) => panic!("{other}"),
        }
    }
    let seen = run.seen.borrow();
    assert_eq!(seen.len() as u64, run.steps.get(), "each step is told once");
    assert!(run.late.get() < Duration::from_secs(5), "told after {:?}", run.late.get());
    assert!(seen.iter().zip(1..).all(|(seen, wanted)| *seen == wanted), "in order: {seen:?}");
}

/// What a failover of ten thousand partitions costs: written in full transactions, then listed, then changed at once.
pub fn ten_thousand(server: &Path) -> String {
    const TOPICS: usize = 100;
    const PARTITIONS: i32 = 100;
    let cluster = Cluster::start(server, 1);
    block_on(async {
        let mut store = cluster.connect("/ten").await;
        let topics: Vec<TopicId> = (0..TOPICS).map(|_| TopicId::random()).collect();
        let partitions = |topic: &TopicId| {
            let topic = *topic;
            (0..PARTITIONS).map(move |index| Key::Partition(PartitionId { topic, index }))
        };
        let all: Vec<Key> = topics.iter().flat_map(partitions).collect();
        let value = "x".repeat(300);
        let make = |key: &Key| Decision::new().absent(key.clone()).put(key.clone(), &value);
        let (mut revision, made, transactions) = {
            let began = Instant::now();
            let mut revision = Revision::ABSENT;
            let mut transactions = 0;
            for keys in all.chunks(store.batch_limit().decisions) {
                let decisions: Vec<Decision> = keys.iter().map(make).collect();
                let committed = store.commit(&decisions).await.unwrap();
                assert!(!committed.landed.contains(&false));
                revision = committed.revision;
                transactions += 1;
            }
            (revision, began.elapsed(), transactions)
        };
        let began = Instant::now();
        let (listed, at) = list_all(&mut store, "/").await.unwrap();
        let listing = began.elapsed();
        assert_eq!((listed.len(), at), (all.len(), revision));
        let mut watch = store.watch("/", at).await.unwrap();
        let began = Instant::now();
        for keys in listed.chunks(store.batch_limit().decisions) {
            let step = |change: &felix_cluster::decision::Change| {
                let key = Key::parse(&change.key).unwrap();
                Decision::new().at(key.clone(), change.revision).put(key, &value)
            };
            let decisions: Vec<Decision> = keys.iter().map(step).collect();
            let committed = store.commit(&decisions).await.unwrap();
            assert!(!committed.landed.contains(&false));
            revision = committed.revision;
        }
        let changing = began.elapsed();
        let mut told = 0;
        while told < all.len() {
            let batch = crate::suite::bounded(watch.next()).await.unwrap();
            assert!(batch.revision <= revision);
            told += batch.changes.len();
        }
        let watching = began.elapsed();
        assert_eq!(told, all.len());
        let ms = |took: Duration| took.as_millis();
        format!(
            "{} partitions in {transactions} transactions: made in {} ms, listed in {} ms, changed in {} ms, told in {} ms",
            all.len(),
            ms(made),
            ms(listing),
            ms(changing),
            ms(watching)
        )
    })
}
