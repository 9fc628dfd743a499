//! What a controller waits for, and until when: leaders that were named to open, and leaders that were asked to resign.
//!
//! Both have L. It counts from the first tick after the controller saw the tenure (or the request), never from before, so a
//! controller that takes over lets everyone have the whole time again. Without ticks nothing is ever overdue.

use std::collections::{BTreeMap, BTreeSet};
use std::time::Duration;

use felix_protocol::ids::{BrokerId, Generation, PartitionId, SessionId};
use felix_protocol::time::MonoTime;

use crate::state::Leader;

/// A partition whose leader did not resign in time is left alone for so many L.
const REST: u32 = 5;

/// What is waited for.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(super) enum Until {
    /// The leader's first report.
    Opened,
    /// The same, of a session that may have led before and not have heard that this is over: it writes for up to 1.5 L more,
    /// so it gets twice the time.
    OpenedAgain,
    /// Its last one.
    Resigned,
}

impl Until {
    fn within(self, length: Duration) -> Duration {
        match self {
            Until::Opened | Until::Resigned => length,
            Until::OpenedAgain => length * 2,
        }
    }
}

#[derive(Clone, Copy, Debug)]
struct Wait {
    generation: Generation,
    until: Until,
    /// When it began; not before the next tick.
    since: Option<MonoTime>,
}

/// See the module. Bounded by the number of partitions and of nodes.
#[derive(Clone, Debug, Default)]
pub(super) struct Waits {
    now: Option<MonoTime>,
    length: Duration,
    waits: BTreeMap<PartitionId, Wait>,
    /// Begun since the last tick.
    fresh: BTreeSet<PartitionId>,
    /// When to look at which partition again.
    alarms: BTreeSet<(MonoTime, PartitionId)>,
    /// When a session last opened any partition: one that is busy opening gets the time for it.
    opened: BTreeMap<BrokerId, (SessionId, Option<MonoTime>)>,
    /// Who was named since somebody last opened, and did not open.
    tried: BTreeMap<PartitionId, BTreeSet<BrokerId>>,
    /// Partitions that are not asked for before then.
    rests: BTreeMap<PartitionId, MonoTime>,
}

impl Waits {
    /// Time has passed; returns the partitions to be looked at.
    pub(super) fn tick(&mut self, now: MonoTime, length: Duration) -> Vec<PartitionId> {
        (self.now, self.length) = (Some(now), length);
        for id in std::mem::take(&mut self.fresh) {
            if let Some(wait) = self.waits.get_mut(&id).filter(|wait| wait.since.is_none()) {
                wait.since = Some(now);
                self.alarms.insert((now.after(wait.until.within(length)), id));
            }
        }
        for (_, at) in self.opened.values_mut() {
            at.get_or_insert(now);
        }
        self.rests.retain(|_, until| *until > now);
        let mut due = Vec::new();
        while let Some((_, id)) = self.alarms.first().copied().filter(|(at, _)| *at <= now) {
            self.alarms.pop_first();
            due.push(id);
        }
        due
    }

    /// When it wants the next tick.
    pub(super) fn next_tick(&self) -> MonoTime {
        if !self.fresh.is_empty() {
            return MonoTime(0);
        }
        self.alarms.first().map_or(MonoTime::NEVER, |(at, _)| *at)
    }

    /// Waits for something of that tenure, unless that is so already.
    pub(super) fn begin(&mut self, id: PartitionId, generation: Generation, until: Until) {
        let same = |wait: &Wait| wait.generation == generation && wait.until == until;
        if !self.waits.get(&id).is_some_and(same) {
            self.waits.insert(id, Wait { generation, until, since: None });
            self.fresh.insert(id);
        }
    }

    /// Nothing is waited for there any more.
    pub(super) fn end(&mut self, id: &PartitionId) {
        self.waits.remove(id);
        self.fresh.remove(id);
    }

    /// Whether what is waited for has not come in time. If it is not yet time, somebody looks again then.
    pub(super) fn is_overdue(&mut self, id: PartitionId, leader: &Leader) -> bool {
        let Some((wait, now)) = self.waits.get(&id).copied().zip(self.now) else { return false };
        let Some(since) = wait.since else { return false };
        let busy = match (wait.until, self.opened.get(&leader.broker)) {
            (Until::Resigned, _) | (_, None) => since,
            (Until::Opened | Until::OpenedAgain, Some((session, at))) if *session == leader.session => {
                at.unwrap_or(now)
            }
            (Until::Opened | Until::OpenedAgain, Some(_)) => since,
        };
        let at = since.max(busy).after(wait.until.within(self.length));
        if at > now {
            self.alarms.insert((at, id));
        }
        at <= now
    }

    /// That session has opened the partition; if that was waited for, it did so just now.
    pub(super) fn opened(&mut self, id: &PartitionId, leader: &Leader) {
        self.tried.remove(id);
        if self.waits.get(id).is_some_and(|wait| wait.until != Until::Resigned) {
            self.end(id);
            self.opened.insert(leader.broker, (leader.session, None));
        }
    }

    /// Who was named and did not open.
    pub(super) fn tried(&self, id: &PartitionId) -> BTreeSet<BrokerId> {
        self.tried.get(id).cloned().unwrap_or_default()
    }

    /// One more did not open; `anew`: all have been tried, so they are from the beginning.
    pub(super) fn failed(&mut self, id: PartitionId, broker: BrokerId, anew: bool) {
        let tried = self.tried.entry(id).or_default();
        if anew {
            tried.clear();
        }
        tried.insert(broker);
        self.end(&id);
    }

    /// Leaves a partition alone for a while.
    pub(super) fn rest(&mut self, id: PartitionId) {
        let Some(now) = self.now else { return };
        let until = now.after(self.length * REST);
        self.rests.insert(id, until);
        self.alarms.insert((until, id));
        self.end(&id);
    }

    /// Whether it is being left alone.
    pub(super) fn rests(&self, id: &PartitionId) -> bool {
        self.rests.contains_key(id)
    }

    /// The partition is gone, or nobody leads it.
    pub(super) fn forget(&mut self, id: &PartitionId) {
        self.end(id);
        self.tried.remove(id);
    }
}
