//! Copies of other brokers that leaders here have begun anew: how many at a time, how fast, and what became of them.

use std::sync::atomic::{AtomicU64, Ordering};

use felix_protocol::ids::{BrokerId, PartitionId};
use felix_replication::rebuild::Slots;
use parking_lot::Mutex;

/// The slots of this broker, shared by its lanes. Without settings there is none.
#[derive(Default)]
pub(crate) struct Rebuilds {
    slots: Mutex<Slots>,
    bytes_per_sec: AtomicU64,
    completed: AtomicU64,
    abandoned: AtomicU64,
}

/// Rebuilds since the start.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq)]
pub struct Rebuilt {
    /// Under way.
    pub running: usize,
    /// Their copies became level.
    pub completed: u64,
    /// They ended before that: the connection, the tenure or the follower's disk did.
    pub abandoned: u64,
}

impl Rebuilds {
    /// New settings, for the next rebuild: so many at a time, and so many bytes a second for each (0: unlimited).
    pub(super) fn configure(&self, most: usize, bytes_per_sec: u64) {
        self.slots.lock().set_most(most);
        self.bytes_per_sec.store(bytes_per_sec, Ordering::Relaxed);
    }

    /// Whether that copy may begin anew now, and how fast. Nothing is given up by a bootstrap, so that it needs no slot.
    pub(super) fn begin(&self, partition: PartitionId, follower: BrokerId, rebuild: bool) -> Option<u64> {
        if !rebuild {
            return Some(0);
        }
        let taken = self.slots.lock().take(partition, follower);
        taken.then(|| self.bytes_per_sec.load(Ordering::Relaxed))
    }

    /// The slot is free.
    pub(super) fn end(&self, partition: PartitionId, follower: BrokerId, completed: bool) {
        if self.slots.lock().release(partition, follower) {
            let counter = if completed { &self.completed } else { &self.abandoned };
            counter.fetch_add(1, Ordering::Relaxed);
            tracing::info!(%partition, %follower, completed, "the rebuilding of a follower's copy is over");
        }
    }

    pub(super) fn figures(&self) -> Rebuilt {
        Rebuilt {
            running: self.slots.lock().held(),
            completed: self.completed.load(Ordering::Relaxed),
            abandoned: self.abandoned.load(Ordering::Relaxed),
        }
    }
}

#[cfg(test)]
mod tests {
    use super::*;
    use felix_protocol::ids::TopicId;

    #[test]
    fn each_rebuild_is_counted_once_and_a_bootstrap_is_none() {
        let rebuilds = Rebuilds::default();
        let (partition, follower) = (PartitionId { topic: TopicId::NONE, index: 1 }, BrokerId(2));
        assert_eq!(rebuilds.begin(partition, follower, true), None, "left to the operator");
        rebuilds.configure(1, 500);
        assert_eq!(rebuilds.begin(partition, follower, false), Some(0));
        assert_eq!(rebuilds.begin(partition, follower, true), Some(500));
        assert_eq!(rebuilds.begin(partition, BrokerId(3), true), None);
        assert_eq!(rebuilds.figures(), Rebuilt { running: 1, ..Rebuilt::default() });
        rebuilds.end(partition, follower, true);
        rebuilds.end(partition, follower, false);
        assert_eq!(rebuilds.figures(), Rebuilt { completed: 1, ..Rebuilt::default() });
        assert_eq!(rebuilds.begin(partition, BrokerId(3), true), Some(500));
        rebuilds.end(partition, BrokerId(3), false);
        assert_eq!(rebuilds.figures(), Rebuilt { running: 0, completed: 1, abandoned: 1 });
    }
}
