//! Which copies are throttled while they catch up, and by what share of whose rate (KIP-73).
//!
//! Two lists of a topic name copies as `partition:broker`, or all of them as `*`. A copy in
//! `leader.replication.throttled.replicas` is throttled in what it *sends* while it leads, one in
//! `follower.replication.throttled.replicas` in what it is *sent* while it follows. The rates are each broker's own
//! (`leader.replication.throttled.rate`, `follower.replication.throttled.rate`) and count all such copies together.
//!
//! Leaders push here, so whoever sends keeps both. Of a follower's rate each broker takes the same share: the rate divided by
//! the number of brokers that lead what is throttled there and not level. Everybody counts the same in the same view, so that
//! together they stay within it, and nobody has to be asked. Deliberately absent: the bucket (`felix-replication`).

use std::collections::{BTreeMap, BTreeSet};

use felix_protocol::ids::{BrokerId, PartitionId, TopicId};

use crate::config::{Layers, Overrides, resolve};
use crate::view::{PartitionView, View};

/// The topic config that names leaders' copies.
const SENDING: &str = "leader.replication.throttled.replicas";
/// The one that names followers' copies.
const RECEIVING: &str = "follower.replication.throttled.replicas";

/// Copies of one topic.
#[derive(Clone, Debug, PartialEq, Eq)]
enum Listed {
    All,
    Copies(BTreeSet<(i32, BrokerId)>),
}

impl Listed {
    /// A list as it is stored. What its row would not admit names nobody.
    fn parse(text: &str) -> Option<Listed> {
        if text.trim() == "*" {
            return Some(Listed::All);
        }
        let pair = |item: &str| {
            let (partition, broker) = item.trim().split_once(':')?;
            Some((partition.parse().ok()?, BrokerId(broker.parse().ok()?)))
        };
        let copies: BTreeSet<_> = text.split(',').filter_map(pair).collect();
        (!copies.is_empty()).then_some(Listed::Copies(copies))
    }

    fn has(&self, index: i32, broker: BrokerId) -> bool {
        match self {
            Listed::All => true,
            Listed::Copies(copies) => copies.contains(&(index, broker)),
        }
    }
}

/// See the module.
#[derive(Clone, Debug, Default, PartialEq, Eq)]
pub struct Throttled {
    sending: BTreeMap<TopicId, Listed>,
    receiving: BTreeMap<TopicId, Listed>,
}

impl Throttled {
    /// Takes in what topics say that are new, changed or gone.
    pub fn take_in<'a>(&mut self, view: &View, topics: impl IntoIterator<Item = &'a TopicId>) {
        for id in topics {
            for (name, lists) in [(SENDING, &mut self.sending), (RECEIVING, &mut self.receiving)] {
                let said = view.topic(id).and_then(|topic| topic.overrides.get(name));
                match said.and_then(|text| Listed::parse(text)) {
                    Some(listed) => drop(lists.insert(*id, listed)),
                    None => drop(lists.remove(id)),
                }
            }
        }
    }

    /// Whether no copy is throttled at all.
    pub fn is_empty(&self) -> bool {
        self.sending.is_empty() && self.receiving.is_empty()
    }

    /// Whether what that broker sends of the partition is throttled.
    pub fn sends(&self, partition: &PartitionId, leader: BrokerId) -> bool {
        self.sending.get(&partition.topic).is_some_and(|listed| listed.has(partition.index, leader))
    }

    /// Whether what that broker is sent of the partition is throttled.
    pub fn receives(&self, partition: &PartitionId, follower: BrokerId) -> bool {
        self.receiving.get(&partition.topic).is_some_and(|listed| listed.has(partition.index, follower))
    }

    /// Of what one broker may be sent, a leader's share, in bytes a second. `None`: no limit.
    pub fn share(&self, view: &View, follower: BrokerId) -> Option<u64> {
        let nothing = Overrides::new();
        // What the other was started with is not known here; in Kafka these rates can only be set while brokers run.
        let layers = Layers {
            broker: view.broker_overrides(follower),
            cluster: view.cluster_overrides(),
            fixed: &nothing,
        };
        let rate = resolve::broker(&layers).config.logs.throttle.receiving?;
        let senders = self.senders(view, follower);
        // Never nothing, unless that was asked for.
        Some(if rate == 0 { 0 } else { (rate / senders).max(1) })
    }

    /// How many brokers lead what is throttled at that follower and not level there: one at least.
    fn senders(&self, view: &View, follower: BrokerId) -> u64 {
        let behind = |partition: &PartitionView| {
            let state = &partition.state;
            state.replicas.contains(&follower) && state.eligible.iter().all(|pair| pair.broker != follower)
        };
        let partitions = self.receiving.keys().flat_map(|topic| view.partitions_of(topic));
        let leaders: BTreeSet<BrokerId> = partitions
            .filter(|partition| self.receives(&partition.id, follower) && behind(partition))
            .filter_map(|partition| view.leader(partition))
            .filter(|leader| *leader != follower)
            .collect();
        u64::try_from(leaders.len()).unwrap_or(u64::MAX).max(1)
    }
}

#[cfg(test)]
mod tests;
