//! Which partitions this broker leads: what the lanes publish, and everyone else looks up.

use std::collections::{BTreeMap, BTreeSet, HashMap};
use std::sync::atomic::{AtomicU64, Ordering};

use felix_protocol::ids::{BrokerId, Generation, Offset, PartitionId};
use felix_replication::halted::{HaltReason, Halted};
use felix_storage::FlushError;
use parking_lot::{Mutex, RwLock};
use tokio::sync::{Notify, watch};

use crate::partitions::handle::PartitionHandle;

/// The directory of tenures.
pub(crate) struct Led {
    node: BrokerId,
    handles: RwLock<HashMap<PartitionId, PartitionHandle>>,
    halted: Mutex<BTreeMap<PartitionId, Halted>>,
    /// Those of them that nobody looked at yet.
    newly_halted: Mutex<BTreeSet<PartitionId>>,
    halting: Notify,
    /// Counts changes of `handles` and `halted`.
    changes: watch::Sender<u64>,
    /// The first failure that this process must not survive.
    fatal: watch::Sender<Option<FlushError>>,
    /// Promotions at which acknowledged records may have been lost.
    losses: AtomicU64,
}

impl Led {
    pub(super) fn new(node: BrokerId) -> Led {
        Led {
            node,
            handles: RwLock::new(HashMap::new()),
            halted: Mutex::new(BTreeMap::new()),
            newly_halted: Mutex::new(BTreeSet::new()),
            halting: Notify::new(),
            changes: watch::Sender::new(0),
            fatal: watch::Sender::new(None),
            losses: AtomicU64::new(0),
        }
    }

    pub(super) fn get(&self, partition: &PartitionId) -> Option<PartitionHandle> {
        self.handles.read().get(partition).cloned()
    }

    pub(super) fn all(&self) -> Vec<PartitionHandle> {
        let mut all: Vec<_> = self.handles.read().values().cloned().collect();
        all.sort_by_key(PartitionHandle::id);
        all
    }

    pub(super) fn len(&self) -> usize {
        self.handles.read().len()
    }

    pub(super) fn insert(&self, handle: PartitionHandle) {
        self.halted.lock().remove(&handle.id());
        self.handles.write().insert(handle.id(), handle);
        self.changes.send_modify(|changes| *changes += 1);
    }

    pub(super) fn remove(&self, partition: &PartitionId) {
        if self.handles.write().remove(partition).is_some() {
            self.changes.send_modify(|changes| *changes += 1);
        }
    }

    pub(super) fn changes(&self) -> watch::Receiver<u64> {
        self.changes.subscribe()
    }

    /// A copy stopped for good. Its handle stays: readers of what is below its mark, and writers, learn from
    /// it that the copy is halted.
    pub(super) fn halted(
        &self,
        partition: &PartitionId,
        generation: Generation,
        position: Offset,
        reason: HaltReason,
    ) {
        let row = Halted { partition: *partition, node: self.node, generation, position, reason };
        let before = self.halted.lock().insert(*partition, row.clone());
        if before.is_some_and(|before| before == row) {
            return;
        }
        tracing::error!(%partition, %generation, position, %reason, remedy = reason.remedy(), "a copy is halted");
        self.changes.send_modify(|changes| *changes += 1);
        self.newly_halted.lock().insert(*partition);
        self.halting.notify_one();
    }

    /// Waits until a copy halts that [`Led::take_newly_halted`] has not given out.
    pub(super) async fn halting(&self) {
        self.halting.notified().await;
    }

    /// The copies that have halted since this was last called.
    pub(super) fn take_newly_halted(&self) -> BTreeSet<PartitionId> {
        std::mem::take(&mut self.newly_halted.lock())
    }

    /// A copy that had stopped goes on.
    pub(super) fn resumed(&self, partition: &PartitionId) {
        if self.halted.lock().remove(partition).is_some() {
            tracing::info!(%partition, "a copy that was halted goes on");
            self.changes.send_modify(|changes| *changes += 1);
        }
    }

    /// The partition is not this broker's any more.
    pub(super) fn forget(&self, partition: &PartitionId) {
        self.remove(partition);
        if self.halted.lock().remove(partition).is_some() {
            self.changes.send_modify(|changes| *changes += 1);
        }
    }

    /// A copy leads although it could not vouch for everything that was acknowledged.
    pub(super) fn lossy(&self, partition: &PartitionId, generation: Generation, start: Offset, end: Offset) {
        self.losses.fetch_add(1, Ordering::Relaxed);
        tracing::error!(
            %partition, %generation, log_start = start, log_end = end,
            "loss event: a copy in doubt was promoted because nobody holds more; what is in its log is served, records \
             that were acknowledged may be missing from it"
        );
    }

    /// A leader that heard of no follower gave up records that perhaps only it has.
    pub(super) fn cut_off(&self, partition: &PartitionId, generation: Generation, exposed: i64) {
        self.losses.fetch_add(1, Ordering::Relaxed);
        tracing::error!(
            %partition, %generation, exposed,
            "loss event: no eligible follower answers, so the partition is given up; so many records that this broker alone \
             acknowledged may be lost"
        );
    }

    /// A leader whose copy has halted gave its tenure up; so many records may be on that copy alone.
    pub(super) fn gave_up(&self, partition: &PartitionId, generation: Generation, exposed: i64) {
        if exposed <= 0 {
            tracing::warn!(%partition, %generation, "the copy that leads is halted: another broker is to lead");
            return;
        }
        self.losses.fetch_add(1, Ordering::Relaxed);
        tracing::error!(
            %partition, %generation, exposed,
            "loss event: the copy that leads is halted, and another broker is to lead; so many records that this broker alone \
             acknowledged may be lost"
        );
    }

    pub(super) fn losses(&self) -> u64 {
        self.losses.load(Ordering::Relaxed)
    }

    pub(super) fn halted_here(&self, partition: &PartitionId) -> Option<Halted> {
        self.halted.lock().get(partition).cloned()
    }

    pub(super) fn all_halted(&self) -> Vec<Halted> {
        self.halted.lock().values().cloned().collect()
    }

    /// A flush failed: the directory cannot be trusted, and the process must end. Returns whether it is the first.
    pub(super) fn fatal(&self, error: &FlushError) -> bool {
        let first = self.fatal.send_if_modified(|fatal| {
            let first = fatal.is_none();
            fatal.get_or_insert_with(|| error.clone());
            first
        });
        if first {
            tracing::error!(%error, "a flush failed: the disk may have lost what it was told to keep");
        }
        first
    }

    pub(super) fn fatal_watch(&self) -> watch::Receiver<Option<FlushError>> {
        self.fatal.subscribe()
    }
}
