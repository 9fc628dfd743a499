//! Partitions that could not be opened for want of something that the system may grant later (space, files, a folder that can be read),
//! and when they are tried again. News of other partitions, which come many times a second, are no reason to try.

use std::collections::BTreeSet;
use std::time::Duration;

use felix_protocol::ids::PartitionId;
use felix_protocol::time::MonoTime;

use super::room::Room;

/// The first wait; it doubles up to [`LONGEST_WAIT`] as long as anything is left.
const FIRST_WAIT: Duration = Duration::from_secs(1);
/// Longest wait between two tries.
const LONGEST_WAIT: Duration = Duration::from_secs(30);
/// How often a longer wait looks whether the disk has room again: one cheap question, whatever waits.
const SPACE_CHECK: Duration = Duration::from_secs(1);

/// See the module.
pub(super) struct Retries {
    waiting: BTreeSet<PartitionId>,
    wait: Duration,
    /// When, and what is known of the room since the wait began; nothing while no wait has begun.
    round: Option<(MonoTime, Room)>,
}

impl Retries {
    pub(super) fn new() -> Retries {
        Retries { waiting: BTreeSet::new(), wait: FIRST_WAIT, round: None }
    }

    /// Could not be opened.
    pub(super) fn add(&mut self, partition: PartitionId) {
        self.waiting.insert(partition);
    }

    /// What is to be tried now: nothing, or all of it. `free`: the disk's free bytes.
    pub(super) fn take_due(
        &mut self,
        now: MonoTime,
        free: impl FnOnce() -> Option<u64>,
    ) -> BTreeSet<PartitionId> {
        if self.waiting.is_empty() {
            (self.wait, self.round) = (FIRST_WAIT, None);
            return BTreeSet::new();
        }
        let Some((due, room)) = &mut self.round else {
            self.round = Some((now.after(self.wait), Room::new(free())));
            return BTreeSet::new();
        };
        if now < *due && !room.has_come(free()) {
            return BTreeSet::new();
        }
        self.round = None;
        self.wait = (self.wait * 2).min(LONGEST_WAIT);
        std::mem::take(&mut self.waiting)
    }

    /// How long from now until [`Retries::take_due`] is to be asked again, if nothing happens meanwhile.
    pub(super) fn ask_again(&self, now: MonoTime) -> Option<Duration> {
        let due = self.round.as_ref().map_or(now, |(due, _)| *due);
        (!self.waiting.is_empty()).then(|| due.since(now).min(SPACE_CHECK))
    }
}

#[cfg(test)]
mod tests {
    use felix_protocol::ids::TopicId;

    use super::*;

    fn at(ms: u64) -> MonoTime {
        MonoTime(ms * 1_000_000)
    }

    fn full() -> Option<u64> {
        Some(0)
    }

    fn partition() -> PartitionId {
        PartitionId { topic: TopicId::random(), index: 0 }
    }

    #[test]
    fn tries_come_by_time_alone_and_less_and_less_often() {
        let mut retries = Retries::new();
        assert_eq!(retries.ask_again(at(0)), None);
        let one = partition();
        let (mut now, mut tried) = (0, Vec::new());
        retries.add(one);
        while tried.len() < 8 {
            // Something happens all the time.
            if retries.take_due(at(now), full).contains(&one) {
                tried.push(now);
                retries.add(one);
            }
            now += 50;
        }
        let waits: Vec<u64> = tried.windows(2).map(|pair| (pair[1] - pair[0]) / 1000).collect();
        assert_eq!((tried[0], waits), (1000, vec![2, 4, 8, 16, 30, 30, 30]));
        assert_eq!(retries.ask_again(at(now)), Some(Duration::ZERO), "a wait is to be begun");
        assert!(retries.take_due(at(now), full).is_empty());
        assert_eq!(retries.ask_again(at(now)), Some(SPACE_CHECK));
    }

    #[test]
    fn room_on_the_disk_is_a_reason_and_once_all_is_open_the_next_wait_is_short() {
        let mut retries = Retries::new();
        let one = partition();
        for _ in 0..6 {
            retries.add(one);
            assert!(retries.take_due(at(0), full).is_empty());
            retries.take_due(at(40_000), full);
        }
        retries.add(one);
        assert!(retries.take_due(at(0), full).is_empty());
        assert!(retries.take_due(at(100), full).is_empty());
        assert_eq!(retries.take_due(at(200), || Some(1 << 20)).len(), 1, "there is room");
        assert!(retries.take_due(at(250), full).is_empty(), "and it was opened");
        retries.add(one);
        assert!(retries.take_due(at(300), full).is_empty());
        assert_eq!(retries.take_due(at(1300), full).len(), 1);
    }
}
