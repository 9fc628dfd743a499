//! How many copies are rebuilt at a time, and how fast.
//!
//! A rebuild is a full transfer of a partition. All halted copies at once, over every partition that a failed broker led,
//! would turn a recovery into an outage. Slots are counted by leader's broker, since a broker sees only its own followers.

use std::collections::BTreeSet;
use std::time::Duration;

use felix_protocol::ids::{BrokerId, PartitionId};
use felix_protocol::time::MonoTime;

/// `FELIX_REPLICATION_REBUILD_MAX_CONCURRENT` and who has a slot.
///
/// Invariant: at most `most` are held, except those that were taken while more were allowed.
#[derive(Clone, Debug, Default)]
pub struct Slots {
    most: usize,
    held: BTreeSet<(PartitionId, BrokerId)>,
}

impl Slots {
    /// So many at a time; none: every halted copy is an operator's.
    pub fn new(most: usize) -> Slots {
        Slots { most, held: BTreeSet::new() }
    }

    /// Another number, from the next one on.
    pub fn set_most(&mut self, most: usize) {
        self.most = most;
    }

    /// Takes a slot, if one is free. Asked again by the same follower, it is the same slot.
    pub fn take(&mut self, partition: PartitionId, follower: BrokerId) -> bool {
        let held = self.held.contains(&(partition, follower));
        if !held && self.held.len() >= self.most {
            return false;
        }
        self.held.insert((partition, follower));
        true
    }

    /// Gives a slot back.
    pub fn release(&mut self, partition: PartitionId, follower: BrokerId) -> bool {
        self.held.remove(&(partition, follower))
    }

    /// The tenure is over: all of its slots are free.
    pub fn release_all(&mut self, partition: PartitionId) {
        self.held.retain(|(held, _)| *held != partition);
    }

    /// How many are under way.
    pub fn held(&self) -> usize {
        self.held.len()
    }
}

/// `FELIX_REPLICATION_REBUILD_BYTES_PER_SEC` for one follower.
#[derive(Clone, Debug)]
pub struct Pace {
    bytes_per_sec: u64,
    /// Whether a slot is held.
    slot: bool,
    /// When the next frame may go.
    ready_at: MonoTime,
}

impl Pace {
    /// With a slot, from now on; 0 bytes: as fast as it goes.
    pub fn new(bytes_per_sec: u64, now: MonoTime) -> Pace {
        Pace { bytes_per_sec, slot: true, ready_at: now }
    }

    /// So much was sent: the next frame waits for as long as that should have taken.
    pub fn spend(&mut self, bytes: usize, now: MonoTime) {
        if self.bytes_per_sec > 0 {
            let nanos = bytes as u128 * 1_000_000_000 / u128::from(self.bytes_per_sec);
            let wait = Duration::from_nanos(u64::try_from(nanos).unwrap_or(u64::MAX));
            self.ready_at = self.ready_at.max(now).after(wait);
        }
    }

    /// When the next frame may go.
    pub fn ready_at(&self) -> MonoTime {
        self.ready_at
    }

    /// Whether a slot is held.
    pub fn has_slot(&self) -> bool {
        self.slot
    }

    /// Takes the slot away; whether there was one.
    pub fn take_slot(&mut self) -> bool {
        std::mem::take(&mut self.slot)
    }
}

#[cfg(test)]
mod tests {
    use super::*;
    use felix_protocol::ids::TopicId;

    fn partition(index: i32) -> PartitionId {
        PartitionId { topic: TopicId::NONE, index }
    }

    #[test]
    fn no_more_than_the_slots_are_rebuilt_at_a_time() {
        let mut slots = Slots::new(2);
        assert!(slots.take(partition(1), BrokerId(2)) && slots.take(partition(1), BrokerId(3)));
        assert!(slots.take(partition(1), BrokerId(2)), "it has one");
        assert!(!slots.take(partition(2), BrokerId(2)));
        assert!(slots.release(partition(1), BrokerId(3)) && !slots.release(partition(1), BrokerId(3)));
        assert!(slots.take(partition(2), BrokerId(2)));
        slots.set_most(1);
        assert_eq!(slots.held(), 2, "what is under way goes on");
        slots.release_all(partition(1));
        assert!(!slots.take(partition(3), BrokerId(2)));
        assert!(!Slots::new(0).take(partition(1), BrokerId(2)), "an operator's business");
    }

    #[test]
    fn a_rebuild_is_as_fast_as_it_may() {
        let second = 1_000_000_000;
        let mut pace = Pace::new(1000, MonoTime(0));
        pace.spend(500, MonoTime(0));
        assert_eq!(pace.ready_at(), MonoTime(second / 2));
        pace.spend(1000, MonoTime(second));
        assert_eq!(pace.ready_at(), MonoTime(2 * second), "what was not used is not saved up");
        let mut unlimited = Pace::new(0, MonoTime(7));
        unlimited.spend(usize::MAX, MonoTime(8));
        assert_eq!(unlimited.ready_at(), MonoTime(7));
        assert!(unlimited.take_slot() && !unlimited.take_slot());
    }
}
