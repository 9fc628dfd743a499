//! The gate that throttled copies' bytes pass on their way to followers (KIP-73).
//!
//! Shipping asks it before it reads anything for a follower, and tells it what was read. It keeps this broker's own bucket and one
//! for each follower, of which this broker has a share (`felix_cluster::throttle`). What goes to members of the
//! eligible set never waits: acknowledgements wait for them. It counts all the same, so that the rate holds for all
//! that a listed copy is sent, as in Kafka.

use std::collections::BTreeMap;
use std::sync::atomic::{AtomicBool, Ordering};

use felix_cluster::throttle::Throttled;
use felix_protocol::ids::{BrokerId, PartitionId};
use felix_protocol::time::{Clock, MonoTime};
use felix_replication::throttle::Bucket;
use parking_lot::Mutex;
use tokio::sync::watch;

use crate::clock::SystemClock;

/// The rates in bytes a second; none: no limit.
#[derive(Clone, Debug, Default, PartialEq, Eq)]
pub(crate) struct Rates {
    /// What this broker may send.
    pub(crate) own: Option<u64>,
    /// Its share of what each other may be sent, where that is limited.
    pub(crate) followers: BTreeMap<BrokerId, u64>,
}

struct State {
    lists: Throttled,
    rates: Rates,
    own: Bucket,
    followers: BTreeMap<BrokerId, Bucket>,
}

/// See the module.
pub(crate) struct Gate {
    broker: BrokerId,
    clock: SystemClock,
    /// Whether anything can be throttled at all: mostly nothing is, and then nobody takes the lock.
    closes: AtomicBool,
    state: Mutex<State>,
    changes: watch::Sender<()>,
}

impl Gate {
    pub(crate) fn new(broker: BrokerId, clock: SystemClock) -> Gate {
        let state = State {
            lists: Throttled::default(),
            rates: Rates::default(),
            own: Bucket::new(None),
            followers: BTreeMap::new(),
        };
        let closes = AtomicBool::new(false);
        Gate { broker, clock, closes, state: Mutex::new(state), changes: watch::Sender::new(()) }
    }

    /// Other lists and rates from now on.
    pub(crate) fn configure(&self, lists: &Throttled, rates: Rates) {
        let now = self.now();
        let mut state = self.state.lock();
        if state.lists == *lists && state.rates == rates {
            return;
        }
        state.lists = lists.clone();
        state.own.set_rate(rates.own, now);
        state.followers.retain(|id, _| rates.followers.contains_key(id));
        for (id, rate) in &rates.followers {
            let bucket = state.followers.entry(*id).or_insert_with(|| Bucket::new(Some(*rate)));
            bucket.set_rate(Some(*rate), now);
        }
        let closes = !lists.is_empty() && (rates.own.is_some() || !rates.followers.is_empty());
        state.rates = rates;
        self.closes.store(closes, Ordering::Release);
        drop(state);
        self.changes.send_replace(());
    }

    /// Changes with the lists and rates.
    pub(crate) fn changes(&self) -> watch::Receiver<()> {
        self.changes.subscribe()
    }

    pub(crate) fn now(&self) -> MonoTime {
        self.clock.now()
    }

    /// When that partition may be shipped to that follower, and how much of it at most; `None`: at once, and as much as there is.
    pub(crate) fn waits(&self, partition: &PartitionId, follower: BrokerId) -> Option<(MonoTime, usize)> {
        if !self.closes.load(Ordering::Acquire) {
            return None;
        }
        let state = self.state.lock();
        let buckets = state.buckets(partition, self.broker, follower);
        buckets
            .map(|bucket| (bucket.ready_at(), bucket.frame_bytes()))
            .reduce(|one, other| (one.0.max(other.0), one.1.min(other.1)))
    }

    /// So much of it was shipped.
    pub(crate) fn shipped(&self, partition: &PartitionId, follower: BrokerId, bytes: usize) {
        if !self.closes.load(Ordering::Acquire) {
            return;
        }
        let now = self.now();
        let mut state = self.state.lock();
        let State { lists, own, followers, .. } = &mut *state;
        if lists.sends(partition, self.broker) {
            own.spend(bytes, now);
        }
        if lists.receives(partition, follower)
            && let Some(bucket) = followers.get_mut(&follower)
        {
            bucket.spend(bytes, now);
        }
    }
}

impl State {
    /// Those that shipping it passes.
    fn buckets(
        &self,
        partition: &PartitionId,
        leader: BrokerId,
        follower: BrokerId,
    ) -> impl Iterator<Item = &Bucket> {
        let own = self.lists.sends(partition, leader).then_some(&self.own);
        let theirs = self.lists.receives(partition, follower).then(|| self.followers.get(&follower));
        own.into_iter().chain(theirs.flatten())
    }
}

#[cfg(test)]
mod tests {
    use super::*;
    use crate::admin::testing;

    fn gate(configs: &[(&str, &str)], rates: Rates) -> (Gate, PartitionId) {
        let mut view = testing::view(&["t"]);
        testing::configure(&mut view, "t", configs);
        let id = PartitionId { topic: view.topic_named("t").unwrap().id, index: 0 };
        let mut lists = Throttled::default();
        lists.take_in(&view, [&id.topic]);
        let gate = Gate::new(BrokerId(1), SystemClock::start());
        gate.configure(&lists, rates);
        (gate, id)
    }

    const SENDING: (&str, &str) = ("leader.replication.throttled.replicas", "0:1");
    const RECEIVING: (&str, &str) = ("follower.replication.throttled.replicas", "0:2");

    #[test]
    fn whoever_is_listed_waits_once_the_rate_is_used_up() {
        let rates = Rates { own: Some(1000), followers: [(BrokerId(2), 100)].into() };
        let (gate, id) = gate(&[SENDING, RECEIVING], rates);
        let now = gate.now();
        let (ready, most) = gate.waits(&id, BrokerId(2)).unwrap();
        assert!(ready <= now && most == 50, "the slower of both");
        gate.shipped(&id, BrokerId(2), 1100);
        let left = |follower| gate.waits(&id, BrokerId(follower)).unwrap().0.since(gate.now()).as_millis();
        // Ten seconds, less what the machine takes meanwhile; a clock that has just begun leaves less than a burst.
        assert!((2_000..=11_000).contains(&left(2)), "{}", left(2));
        assert!(left(3) <= 1_100, "only what is sent here: {}", left(3));
        let other = PartitionId { index: 1, ..id };
        assert_eq!(gate.waits(&other, BrokerId(2)), None);
    }

    #[test]
    fn without_lists_or_rates_nobody_waits() {
        let (gate, id) = gate(&[], Rates { own: Some(1), followers: BTreeMap::new() });
        gate.shipped(&id, BrokerId(2), 1000);
        assert_eq!(gate.waits(&id, BrokerId(2)), None);
        let (gate, id) = self::gate(&[SENDING, RECEIVING], Rates::default());
        gate.shipped(&id, BrokerId(2), 1000);
        assert_eq!(gate.waits(&id, BrokerId(2)), None);
    }

    #[test]
    fn other_rates_ring_and_hold_at_once() {
        let rates = Rates { own: Some(10), followers: BTreeMap::new() };
        let (gate, id) = gate(&[SENDING], rates);
        gate.shipped(&id, BrokerId(2), 1000);
        let mut changes = gate.changes();
        changes.mark_unchanged();
        let lists = gate.state.lock().lists.clone();
        gate.configure(&lists, Rates { own: Some(10), followers: BTreeMap::new() });
        assert!(!changes.has_changed().unwrap());
        gate.configure(&lists, Rates::default());
        assert!(changes.has_changed().unwrap());
        assert_eq!(gate.waits(&id, BrokerId(2)), None);
    }
}
