//! All deadlines of the partition's groups in one ordered structure: no timer a member.
//!
//! Whoever has a deadline keeps it in a slot of its own, so that moving it needs no search. Invariant G1:
//! slots and queue say the same.

use std::collections::BTreeSet;
use std::sync::Arc;

use felix_protocol::time::MonoTime;

/// What is due.
#[derive(Clone, Debug, PartialEq, Eq, PartialOrd, Ord)]
pub(crate) enum Alarm {
    /// The join phase ends.
    Join,
    /// Members that have not asked for their assignment are removed.
    Sync,
    /// A member was silent for too long.
    Session(Arc<str>),
    /// A client did not come back with the member id that it was given.
    Pending(Arc<str>),
}

/// The queue.
#[derive(Clone, Debug, Default)]
pub(crate) struct Timers {
    queue: BTreeSet<(MonoTime, Arc<str>, Alarm)>,
}

impl Timers {
    /// Sets or moves the deadline in `slot`.
    pub(crate) fn set(&mut self, group: &Arc<str>, alarm: Alarm, slot: &mut Option<MonoTime>, at: MonoTime) {
        self.cancel(group, alarm.clone(), slot);
        *slot = Some(at);
        self.queue.insert((at, group.clone(), alarm));
    }

    /// Takes the deadline in `slot` back.
    pub(crate) fn cancel(&mut self, group: &Arc<str>, alarm: Alarm, slot: &mut Option<MonoTime>) {
        if let Some(at) = slot.take() {
            self.queue.remove(&(at, group.clone(), alarm));
        }
    }

    /// The next alarm that is due. The owner must clear its slot.
    pub(crate) fn pop_due(&mut self, now: MonoTime) -> Option<(Arc<str>, Alarm)> {
        if self.queue.first()?.0 > now {
            return None;
        }
        self.queue.pop_first().map(|(_, group, alarm)| (group, alarm))
    }

    /// When the next alarm is due.
    pub(crate) fn next(&self) -> Option<MonoTime> {
        self.queue.first().map(|(at, ..)| *at)
    }

    /// How many alarms are set.
    pub(crate) fn len(&self) -> usize {
        self.queue.len()
    }

    /// Whether this alarm is set for this time.
    pub(crate) fn holds(&self, group: &Arc<str>, alarm: Alarm, at: MonoTime) -> bool {
        self.queue.contains(&(at, group.clone(), alarm))
    }
}
