//! What the store in memory holds: every key with its history, until that is compacted.

use std::collections::{BTreeMap, VecDeque};
use std::ops::Bound;
use std::sync::Arc;

use felix_cluster::decision::{Decision, Write};
use felix_cluster::state::Revision;

use super::{After, Batch, Entry, Page, Position, StoreError, change, transaction};

/// Transactions that are kept; older ones are compacted away, so that a long test does not grow without limit.
const HISTORY: usize = 20_000;

/// See [`super::Server::snapshot`].
#[derive(Clone)]
pub struct Snapshot {
    revision: u64,
    keys: BTreeMap<String, Vec<Version>>,
}

#[derive(Clone)]
struct Version {
    revision: Revision,
    /// `None`: deleted.
    value: Option<Vec<u8>>,
}

pub(super) struct State {
    store: u64,
    revision: u64,
    /// Revisions below this one are not kept.
    compacted: u64,
    /// Invariant: versions rise in revision, and at most the first one is below `compacted`.
    keys: BTreeMap<String, Vec<Version>>,
    /// Every transaction above `compacted`.
    history: VecDeque<Arc<Batch>>,
    /// Transactions that are still on their way, and how many requests overtake each.
    late: Vec<(usize, Vec<Decision>)>,
}

impl State {
    pub(super) fn new() -> State {
        // As in a new etcd, something has been written already.
        State {
            store: 1,
            revision: 1,
            compacted: 1,
            keys: BTreeMap::new(),
            history: VecDeque::new(),
            late: Vec::new(),
        }
    }

    pub(super) fn revision(&self) -> Revision {
        Revision(self.revision)
    }

    pub(super) fn position(&self) -> Position {
        Position { store: self.store, revision: self.revision() }
    }

    pub(super) fn become_another(&mut self) {
        self.store += 1;
    }

    /// A key at a revision.
    pub(super) fn entry(&self, key: &str, at: Revision) -> Option<Entry> {
        entry(self.keys.get(key)?, at)
    }

    /// Whether the history from there on is still known.
    pub(super) fn reachable(&self, after: Revision) -> Result<(), StoreError> {
        if after.0 < self.compacted { Err(StoreError::Compacted(after)) } else { Ok(()) }
    }

    pub(super) fn page(&self, prefix: &str, after: Option<&After>, limit: usize) -> Result<Page, StoreError> {
        let revision = after.map_or(self.revision(), |after| after.revision);
        self.reachable(revision)?;
        let from = after.map_or(Bound::Included(prefix), |after| Bound::Excluded(after.key.as_str()));
        let keys = self.keys.range::<str, _>((from, Bound::Unbounded));
        let mut found = keys
            .take_while(|(key, _)| key.starts_with(prefix))
            .filter_map(|(key, versions)| Some((key, entry(versions, revision)?)))
            .map(|(key, entry)| change(key, Some(entry.value), entry.revision));
        let entries = found.by_ref().take(limit).collect();
        let more = found.next().is_some();
        Ok(Page { entries, revision, more })
    }

    /// The first transaction after a revision, if it has happened yet.
    pub(super) fn after(&self, told: Revision) -> Result<Option<Arc<Batch>>, StoreError> {
        self.reachable(told)?;
        let at = self.history.partition_point(|batch| batch.revision <= told);
        Ok(self.history.get(at).map(Arc::clone))
    }

    /// One transaction, whose writes are all of different keys.
    pub(super) fn write(&mut self, writes: &[&Write]) {
        self.revision += 1;
        let revision = self.revision();
        let mut changes = Vec::with_capacity(writes.len());
        for write in writes {
            let key = write.key().to_string();
            let value = match write {
                Write::Put(_, value) => Some(value.clone()),
                Write::Delete(_) => None,
            };
            changes.push(change(&key, value.clone(), revision));
            self.keys.entry(key).or_default().push(Version { revision, value });
        }
        self.history.push_back(Arc::new(Batch { revision, changes }));
        if self.history.len() > HISTORY {
            self.compact_to(self.revision - (HISTORY as u64) / 2);
        }
    }

    pub(super) fn compact(&mut self) {
        self.compact_to(self.revision);
    }

    fn compact_to(&mut self, revision: u64) {
        self.compacted = revision;
        while self.history.front().is_some_and(|batch| batch.revision.0 <= revision) {
            self.history.pop_front();
        }
        self.keys.retain(|_, versions| {
            let kept = versions.partition_point(|version| version.revision.0 <= revision).saturating_sub(1);
            versions.drain(..kept);
            versions.len() > 1 || versions.iter().any(|version| version.value.is_some())
        });
    }

    /// A request arrives; those that it overtakes come nearer. Whether one has arrived.
    pub(super) fn tick(&mut self) -> bool {
        let mut arrived = Vec::new();
        self.late.retain_mut(|(requests, decisions)| {
            if *requests == 0 {
                arrived.push(std::mem::take(decisions));
                return false;
            }
            *requests -= 1;
            true
        });
        for decisions in &arrived {
            transaction(self, decisions, &[]);
        }
        !arrived.is_empty()
    }

    pub(super) fn postpone(&mut self, decisions: Vec<Decision>, requests: usize) {
        self.late.push((requests, decisions));
    }

    pub(super) fn deliver_all(&mut self) {
        for (_, decisions) in std::mem::take(&mut self.late) {
            transaction(self, &decisions, &[]);
        }
    }

    pub(super) fn snapshot(&self) -> Snapshot {
        Snapshot { revision: self.revision, keys: self.keys.clone() }
    }

    pub(super) fn restore(&mut self, snapshot: &Snapshot) {
        self.revision = snapshot.revision;
        self.keys = snapshot.keys.clone();
        self.late.clear();
        self.history.clear();
        self.compact();
    }
}

fn entry(versions: &[Version], at: Revision) -> Option<Entry> {
    let version = versions.iter().rev().find(|version| version.revision <= at)?;
    Some(Entry { value: version.value.clone()?, revision: version.revision })
}
