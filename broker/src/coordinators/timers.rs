//! When which partition's groups have something due: one ordered structure for all, and one sleep.

use std::collections::BTreeSet;
use std::time::Duration;

use felix_protocol::time::MonoTime;
use parking_lot::Mutex;
use tokio::sync::Notify;

/// The deadlines of all partitions, at most one each.
#[derive(Default)]
pub(super) struct Deadlines {
    queue: Mutex<BTreeSet<(MonoTime, i32)>>,
    moved: Notify,
}

impl Deadlines {
    /// The earliest.
    pub(super) fn next(&self) -> Option<MonoTime> {
        self.queue.lock().first().map(|(at, _)| *at)
    }

    /// Returns when the earliest deadline has become an earlier one.
    pub(super) async fn moved(&self) {
        self.moved.notified().await;
    }

    /// Sees to it that the partition is ticked no later than `next`. A deadline that moves to later is left where
    /// it is: the tick finds nothing due and asks again, which costs less than moving it with every heartbeat.
    pub(super) fn plan(&self, index: i32, planned: &mut Option<MonoTime>, next: Option<MonoTime>) {
        let Some(next) = next else { return self.forget(index, planned) };
        if planned.is_some_and(|planned| planned <= next) {
            return;
        }
        let mut queue = self.queue.lock();
        if let Some(at) = planned.replace(next) {
            queue.remove(&(at, index));
        }
        queue.insert((next, index));
        if queue.first() == Some(&(next, index)) {
            self.moved.notify_one();
        }
    }

    /// The partition has no deadline any more.
    pub(super) fn forget(&self, index: i32, planned: &mut Option<MonoTime>) {
        if let Some(at) = planned.take() {
            self.queue.lock().remove(&(at, index));
        }
    }

    /// The partitions whose time has come; they must plan anew.
    pub(super) fn take_due(&self, now: MonoTime) -> Vec<i32> {
        let mut queue = self.queue.lock();
        let mut due = Vec::new();
        while let Some((at, index)) = queue.first().copied() {
            if at > now {
                break;
            }
            queue.pop_first();
            due.push(index);
        }
        due
    }
}

/// Sleeps that long; for ever without a deadline.
pub(super) async fn rest(time: Option<Duration>) {
    match time {
        Some(time) => tokio::time::sleep(time).await,
        None => std::future::pending().await,
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn only_an_earlier_deadline_moves() {
        let deadlines = Deadlines::default();
        let (mut first, mut second) = (None, None);
        deadlines.plan(1, &mut first, Some(MonoTime(20)));
        deadlines.plan(2, &mut second, Some(MonoTime(30)));
        deadlines.plan(1, &mut first, Some(MonoTime(40)));
        assert_eq!(deadlines.next(), Some(MonoTime(20)), "later is left alone");
        deadlines.plan(2, &mut second, Some(MonoTime(10)));
        assert_eq!(deadlines.next(), Some(MonoTime(10)));
        assert_eq!(deadlines.take_due(MonoTime(20)), [2, 1]);
        assert_eq!(deadlines.next(), None);
    }

    #[test]
    fn a_partition_without_deadline_is_forgotten() {
        let deadlines = Deadlines::default();
        let mut planned = None;
        deadlines.plan(1, &mut planned, Some(MonoTime(20)));
        deadlines.plan(1, &mut planned, None);
        assert_eq!((planned, deadlines.next()), (None, None));
    }
}
