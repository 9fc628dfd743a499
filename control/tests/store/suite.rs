//! What every control store must do: the contract of `felix_control::store`, as one suite that each of them passes.

use std::collections::BTreeMap;
use std::sync::Arc;
use std::time::Duration;

use felix_cluster::decision::{Change, Compare, Decision, Write};
use felix_cluster::keys::Key;
use felix_cluster::state::Revision;
use felix_control::store::{After, Batch, Store, StoreError, Watch, list_all};
use felix_protocol::ids::BrokerId;

/// More than anything here takes on a busy machine.
const BOUND: Duration = Duration::from_secs(30);

/// Runs everything, each check on a store of its own that holds nothing of ours.
pub async fn all<S: Store>(fresh: impl AsyncFn() -> S) {
    compares_decide_each_decision_alone(&mut fresh().await).await;
    what_changes_nothing_is_told_so(&mut fresh().await).await;
    values_of_every_kind_come_back(&mut fresh().await).await;
    a_prefix_is_read_in_pages_at_one_revision(&mut fresh().await).await;
    a_list_may_be_larger_than_one_answer(&mut fresh().await).await;
    an_exchange_reads_what_is_there_after_it(&mut fresh().await).await;
    a_watch_tells_everything_after_its_revision_once(&mut fresh().await).await;
    a_watch_of_one_prefix_is_not_told_of_another(&mut fresh().await).await;
    every_revision_that_was_answered_reaches_the_watch(&mut fresh().await).await;
    transactions_up_to_the_limit_are_taken(&mut fresh().await).await;
    for seed in 0..4 {
        it_is_as_the_model_says(&mut fresh().await, seed).await;
    }
    let mut last = fresh().await;
    bounded(last.close()).await.unwrap();
}

pub async fn bounded<T>(future: impl Future<Output = T>) -> T {
    tokio::time::timeout(BOUND, future).await.expect("it takes too long")
}

pub fn key(node: i32) -> Key {
    Key::Node(BrokerId(node))
}

pub fn path(node: i32) -> String {
    key(node).to_string()
}

pub fn put(node: i32, value: &str) -> Decision {
    Decision::new().put(key(node), &value)
}

pub async fn written<S: Store>(store: &mut S, node: i32, value: &str) -> Revision {
    let committed = bounded(store.commit(&[put(node, value)])).await.unwrap();
    assert_eq!(committed.landed, [true]);
    committed.revision
}

pub async fn read<S: Store>(store: &mut S, node: i32) -> Option<String> {
    let entry = bounded(store.get(&path(node))).await.unwrap()?;
    Some(serde_json::from_slice(&entry.value).unwrap())
}

async fn compares_decide_each_decision_alone<S: Store>(store: &mut S) {
    let first = written(store, 1, "a").await;
    let decisions = [
        put(1, "lost").absent(key(1)),
        put(2, "won").at(key(1), first),
        put(3, "lost").at(key(1), Revision(first.0 + 1)),
        put(4, "won").holds(key(1), b"\"a\"".to_vec()),
        put(5, "lost").holds(key(9), b"\"a\"".to_vec()),
        put(6, "lost").holds(key(1), b"\"A\"".to_vec()),
        // Judged by the state before the transaction.
        put(7, "won").absent(key(2)),
        // Of two writes of one key the second loses, whatever became of the first.
        put(2, "lost"),
        put(3, "lost"),
        Decision::new().delete(key(4)),
        // A decision needs no write, and no compare.
        Decision::new().at(key(1), first),
        Decision::new().absent(key(1)),
        put(8, "won").at(key(1), first).absent(key(9)).holds(key(1), b"\"a\"".to_vec()),
        put(10, "lost").at(key(1), first).absent(key(9)).absent(key(1)),
    ];
    let committed = bounded(store.commit(&decisions)).await.unwrap();
    let won = [1, 3, 6, 10, 12];
    let expected: Vec<bool> = (0..decisions.len()).map(|at| won.contains(&at)).collect();
    assert_eq!(committed.landed, expected);
    assert!(committed.revision > first);
    for node in 1..=10 {
        let wanted = match node {
            1 => Some("a"),
            2 | 4 | 7 | 8 => Some("won"),
            _ => None,
        };
        assert_eq!(read(store, node).await.as_deref(), wanted, "{node}");
    }
    let entry = bounded(store.get(&path(2))).await.unwrap().unwrap();
    assert_eq!(entry.revision, committed.revision, "a key's revision is its transaction's");
}

async fn what_changes_nothing_is_told_so<S: Store>(store: &mut S) {
    let first = written(store, 1, "a").await;
    let lost = bounded(store.commit(&[put(1, "lost").absent(key(1))])).await.unwrap();
    assert_eq!((lost.landed.as_slice(), lost.revision >= first), (&[false][..], true));
    let nothing = bounded(store.commit(&[Decision::new().delete(key(9))])).await.unwrap();
    assert_eq!((nothing.landed.as_slice(), nothing.revision >= lost.revision), (&[true][..], true));
    assert_eq!(bounded(store.get(&path(1))).await.unwrap().unwrap().revision, first);
    assert_eq!(bounded(store.get(&path(9))).await.unwrap(), None);
    assert!(store.position().revision >= nothing.revision);
    let deleted = bounded(store.commit(&[Decision::new().delete(key(1))])).await.unwrap();
    assert_eq!(bounded(store.get(&path(1))).await.unwrap(), None);
    // A key that is gone is absent again, at no revision.
    let again = [put(1, "lost").at(key(1), first), put(1, "lost").at(key(1), deleted.revision)];
    assert_eq!(bounded(store.commit(&again[..1])).await.unwrap().landed, [false]);
    assert_eq!(bounded(store.commit(&again[1..])).await.unwrap().landed, [false]);
    assert_eq!(bounded(store.commit(&[put(1, "b").absent(key(1))])).await.unwrap().landed, [true]);
    assert_eq!(read(store, 1).await.as_deref(), Some("b"));
}

async fn values_of_every_kind_come_back<S: Store>(store: &mut S) {
    let long = "x".repeat(300_000);
    let odd = "\u{0}\u{1}\u{fffd}\u{10ffff}\r\n";
    for (at, value) in ["", odd, &long].iter().enumerate() {
        let node = i32::try_from(at).unwrap();
        written(store, node, value).await;
        assert_eq!(read(store, node).await.as_deref(), Some(*value));
        let same = serde_json::to_vec(value).unwrap();
        let decision = Decision::new().holds(key(node), same);
        assert_eq!(bounded(store.commit(&[decision])).await.unwrap().landed, [true]);
    }
    // Names may hold what looks like a pattern, or like the end of a range.
    for name in ["a", "a%b", "a~", "~", "a\u{7f}"] {
        let key = Key::GroupConfigs(name.to_owned());
        bounded(store.commit(&[Decision::new().put(key.clone(), &name)])).await.unwrap();
        assert!(bounded(store.get(&key.to_string())).await.unwrap().is_some());
    }
    assert_eq!(bounded(list_all(store, "/configs/groups/")).await.unwrap().0.len(), 5);
}

async fn a_prefix_is_read_in_pages_at_one_revision<S: Store>(store: &mut S) {
    let many: Vec<Decision> = (10..35).map(|node| put(node, "x")).collect();
    let made = bounded(store.commit(&many)).await.unwrap().revision;
    bounded(store.commit(&[Decision::new().put(Key::Features, &1)])).await.unwrap();
    let first = bounded(store.list("/nodes/", None, 10)).await.unwrap();
    // A page may be shorter than was asked for, but not empty.
    let read = first.entries.len();
    assert!(first.more && (1..=10).contains(&read));
    assert!(first.entries.iter().all(|change| change.revision == made));
    let after = After { key: first.entries[read - 1].key.clone(), revision: first.revision };
    let second = bounded(store.list("/nodes/", Some(&after), 10)).await.unwrap();
    let begins = path(10 + i32::try_from(read).unwrap());
    assert_eq!((second.entries[0].key.clone(), second.revision), (begins, first.revision));
    let between = written(store, 1, "between").await;
    bounded(store.commit(&[put(20, "changed"), Decision::new().delete(key(21))])).await.unwrap();
    // A store may keep what was, or say that it does not.
    match bounded(store.list("/nodes/", Some(&after), 100)).await {
        Ok(rest) => {
            assert_eq!(rest.revision, first.revision);
            assert!(rest.more || read + rest.entries.len() == 25);
            assert!(rest.entries.iter().all(|change| change.revision == made));
        }
        Err(error) => assert_eq!(error, StoreError::Compacted(first.revision)),
    }
    let (all, revision) = bounded(list_all(store, "/nodes/")).await.unwrap();
    assert!(all.len() == 25 && revision > between);
    let sorted = all.windows(2).all(|pair| pair[0].key < pair[1].key);
    assert!(sorted && all.iter().all(|change| change.key.starts_with("/nodes/")));
    let last = After { key: all.last().unwrap().key.clone(), revision };
    let none = bounded(store.list("/nodes/", Some(&last), 10)).await.unwrap();
    assert!(none.entries.is_empty() && !none.more);
    assert!(bounded(store.list("/nothing/", None, 10)).await.unwrap().entries.is_empty());
}

async fn a_list_may_be_larger_than_one_answer<S: Store>(store: &mut S) {
    let value = "x".repeat(250_000);
    for node in 100..130 {
        written(store, node, &value).await;
    }
    let (all, _) = bounded(list_all(store, "/")).await.unwrap();
    assert_eq!(all.len(), 30);
    let bytes: usize = all.iter().filter_map(|change| change.value.as_ref()).map(Vec::len).sum();
    assert_eq!(bytes, 30 * 250_002);
}

async fn an_exchange_reads_what_is_there_after_it<S: Store>(store: &mut S) {
    let first = written(store, 1, "a").await;
    let (one, two, three) = (path(1), path(2), path(3));
    let reads = [two.as_str(), one.as_str(), three.as_str(), one.as_str()];
    let exchanged = bounded(store.exchange(&put(2, "b").at(key(1), first), &reads)).await.unwrap();
    assert_eq!(exchanged.committed.landed, [true]);
    let found: Vec<Option<Revision>> =
        exchanged.found.iter().map(|entry| entry.as_ref().map(|entry| entry.revision)).collect();
    assert_eq!(found, [Some(exchanged.committed.revision), Some(first), None, Some(first)]);
    let lost = bounded(store.exchange(&put(2, "lost").absent(key(1)), &reads[..2])).await.unwrap();
    assert_eq!(lost.committed.landed, [false]);
    assert_eq!(lost.found.len(), 2);
    assert_eq!(lost.found[0].as_ref().unwrap().value, b"\"b\"");
    // Several writes and none.
    let more = put(3, "c").delete(key(1)).absent(key(3));
    let more = bounded(store.exchange(&more, &[&one, &three])).await.unwrap();
    assert_eq!(
        (more.found[0].as_ref(), more.found[1].as_ref().unwrap().value.as_slice()),
        (None, &b"\"c\""[..])
    );
    let none = bounded(store.exchange(&Decision::new(), &[&two])).await.unwrap();
    assert!(none.committed.landed[0] && none.found[0].is_some());
}

async fn next<W: Watch>(watch: &mut W) -> Arc<Batch> {
    bounded(watch.next()).await.unwrap()
}

/// The next batch with changes in it.
async fn next_change<W: Watch>(watch: &mut W) -> Arc<Batch> {
    loop {
        let batch = next(watch).await;
        if !batch.changes.is_empty() {
            return batch;
        }
    }
}

async fn a_watch_tells_everything_after_its_revision_once<S: Store>(store: &mut S) {
    let first = written(store, 1, "a").await;
    let both =
        bounded(store.commit(&[put(2, "b"), put(3, "c"), put(1, "lost").absent(key(1))])).await.unwrap();
    let mut watch = bounded(store.watch("/nodes/", first)).await.unwrap();
    let gone = [Decision::new().delete(key(1)).delete(key(7)).put(key(2), &"d")];
    let gone = bounded(store.commit(&gone)).await.unwrap();
    let told = next_change(&mut watch).await;
    assert_eq!((told.revision, told.changes.len()), (both.revision, 2));
    let told = next_change(&mut watch).await;
    let mut changes = told.changes.clone();
    changes.sort_by(|one, other| one.key.cmp(&other.key));
    let revision = gone.revision;
    let deleted = Change { key: path(1), value: None, revision };
    let put_anew = Change { key: path(2), value: Some(b"\"d\"".to_vec()), revision };
    assert_eq!((told.revision, changes), (revision, vec![deleted, put_anew]));
    // A second one from here on is told nothing of it.
    let mut late = bounded(store.watch("/nodes/", revision)).await.unwrap();
    let more = written(store, 5, "e").await;
    assert_eq!(next_change(&mut watch).await.revision, more);
    assert_eq!(next_change(&mut late).await.revision, more);
}

async fn a_watch_of_one_prefix_is_not_told_of_another<S: Store>(store: &mut S) {
    let first = written(store, 1, "a").await;
    let mut watch = bounded(store.watch("/nodes/", first)).await.unwrap();
    bounded(store.commit(&[Decision::new().put(Key::Features, &2), put(2, "b")])).await.unwrap();
    bounded(store.commit(&[Decision::new().put(Key::ClusterConfigs, &2)])).await.unwrap();
    let last = written(store, 3, "c").await;
    let mut told = Vec::new();
    loop {
        let batch = next(&mut watch).await;
        told.extend(batch.changes.iter().map(|change| change.key.clone()));
        if batch.revision >= last {
            break;
        }
    }
    assert_eq!(told, [path(2), path(3)]);
}

async fn every_revision_that_was_answered_reaches_the_watch<S: Store>(store: &mut S) {
    let mut watch = bounded(store.watch("/nodes/", store.position().revision)).await.unwrap();
    let mut reached = store.position().revision;
    for round in 0..6 {
        let node = round * 10;
        let decisions = match round % 3 {
            0 => vec![put(node, "x")],
            1 => vec![put(0, "lost").absent(key(0)), Decision::new().delete(key(999))],
            _ => vec![Decision::new().put(Key::Features, &round)],
        };
        let revision = bounded(store.commit(&decisions)).await.unwrap().revision;
        while reached < revision {
            let batch = next(&mut watch).await;
            assert!(batch.revision > reached, "{} after {reached}", batch.revision);
            reached = batch.revision;
        }
        let lost = put(0, "lost").absent(key(0));
        let revision = bounded(store.exchange(&lost, &[&path(1)])).await.unwrap().committed.revision;
        while reached < revision {
            reached = next(&mut watch).await.revision;
        }
    }
}

async fn transactions_up_to_the_limit_are_taken<S: Store>(store: &mut S) {
    let limit = store.batch_limit();
    let each = (limit.operations / limit.decisions).clamp(2, 16);
    let count = limit.decisions.min(limit.operations / each);
    let decisions: Vec<Decision> = (0..count)
        .map(|at| {
            let node = i32::try_from(at).unwrap();
            let compares = (1..each).fold(Decision::new(), |all, _| all.absent(key(node)));
            compares.put(key(node), &"x")
        })
        .collect();
    assert!(decisions.iter().map(Decision::operations).sum::<usize>() <= limit.operations);
    let committed = bounded(store.commit(&decisions)).await.unwrap();
    assert!(committed.landed.iter().all(|landed| *landed) && committed.landed.len() == count);
    let lost = bounded(store.commit(&decisions)).await.unwrap();
    assert!(!lost.landed.contains(&true));
    // As many bytes as it says.
    let value = "x".repeat(limit.bytes / 8 - 1000);
    let large: Vec<Decision> = (0..8).map(|node| put(node, &value)).collect();
    assert_eq!(bounded(store.commit(&large)).await.unwrap().landed, [true; 8]);
    // One decision alone may be larger than what shares a transaction.
    let keys = 0..60;
    let all = keys.clone().fold(Decision::new(), |all, node| all.put(key(100_000 + node), &node));
    let all = keys.fold(all, |all, node| all.absent(key(100_000 + node)));
    assert_eq!(bounded(store.commit(&[all])).await.unwrap().landed, [true]);
}

/// Random transactions, beside a model that is too simple to be wrong; the watch tells the same.
async fn it_is_as_the_model_says<S: Store>(store: &mut S, seed: u64) {
    const KEYS: i32 = 12;
    let mut dice = Dice(seed);
    let mut model: BTreeMap<String, (Vec<u8>, Revision)> = BTreeMap::new();
    let mut told: BTreeMap<String, (Vec<u8>, Revision)> = BTreeMap::new();
    let mut watch = bounded(store.watch("/", store.position().revision)).await.unwrap();
    let mut reached = store.position().revision;
    for _ in 0..60 {
        let mut decisions = Vec::new();
        for _ in 0..=dice.below(6) {
            let mut decision = Decision::new();
            for _ in 0..dice.below(3) {
                let node = i32::try_from(dice.below(KEYS as u64)).unwrap();
                let now = model.get(&path(node));
                decision = match dice.below(4) {
                    0 => decision.absent(key(node)),
                    1 => decision.at(key(node), now.map_or(Revision(1), |(_, revision)| *revision)),
                    2 => decision.holds(key(node), now.map_or(b"1".to_vec(), |(value, _)| value.clone())),
                    _ => decision.at(key(node), Revision(dice.below(40))),
                };
            }
            let first = i32::try_from(dice.below(KEYS as u64)).unwrap();
            for step in 0..i32::try_from(dice.below(3)).unwrap() {
                let node = (first + step * 5) % KEYS;
                decision = match dice.below(4) {
                    0 => decision.delete(key(node)),
                    _ => decision.put(key(node), &dice.below(3)),
                };
            }
            decisions.push(decision);
        }
        let committed = bounded(store.commit(&decisions)).await.unwrap();
        assert_eq!(committed.landed, judged(&model, &decisions), "seed {seed}: {decisions:?}");
        for (decision, landed) in decisions.iter().zip(&committed.landed) {
            for write in decision.writes().iter().filter(|_| *landed) {
                match write {
                    Write::Put(key, value) => {
                        model.insert(key.to_string(), (value.clone(), committed.revision));
                    }
                    Write::Delete(key) => drop(model.remove(&key.to_string())),
                }
            }
        }
        while reached < committed.revision {
            let batch = next(&mut watch).await;
            reached = batch.revision;
            for change in &batch.changes {
                assert_eq!(change.revision, batch.revision);
                match &change.value {
                    Some(value) => told.insert(change.key.clone(), (value.clone(), change.revision)),
                    None => told.remove(&change.key),
                };
            }
        }
        assert_eq!(told, model, "seed {seed}");
    }
    let (all, revision) = bounded(list_all(store, "/")).await.unwrap();
    let listed = all.into_iter().map(|change| (change.key, (change.value.unwrap(), change.revision)));
    assert_eq!(listed.collect::<BTreeMap<_, _>>(), model);
    assert!(revision >= reached);
}

fn judged(model: &BTreeMap<String, (Vec<u8>, Revision)>, decisions: &[Decision]) -> Vec<bool> {
    let mut written: Vec<String> = Vec::new();
    let mut landed = Vec::new();
    for decision in decisions {
        let holds = decision.compares().iter().all(|compare| {
            let now = model.get(&compare.key().to_string());
            match compare {
                Compare::Revision(_, wanted) => now.map_or(Revision(0), |(_, at)| *at) == *wanted,
                Compare::Value(_, wanted) => now.is_some_and(|(value, _)| value == wanted),
            }
        });
        let keys: Vec<String> = decision.writes().iter().map(|write| write.key().to_string()).collect();
        landed.push(holds && !keys.iter().any(|key| written.contains(key)));
        written.extend(keys);
    }
    landed
}

/// A small generator of numbers: the same for the same seed.
struct Dice(u64);

impl Dice {
    fn below(&mut self, end: u64) -> u64 {
        self.0 = self.0.wrapping_add(0x9e37_79b9_7f4a_7c15);
        let mut mixed = (self.0 ^ (self.0 >> 30)).wrapping_mul(0xbf58_476d_1ce4_e5b9);
        mixed = (mixed ^ (mixed >> 27)).wrapping_mul(0x94d0_49bb_1331_11eb);
        (mixed ^ (mixed >> 31)) % end
    }
}
