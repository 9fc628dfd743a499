//! Where replicas go: evenly, spread over racks, and the same for everyone who computes it.
//!
//! Each topic comes out even by itself, and where several brokers would do for that, the one that carries least of the
//! whole cluster is taken: a new broker gets its share of what is created from now on, not all of it. A partition's
//! replicas are chosen together with its leader:
//!
//! ```text
//!  carries of the topic   1   1   2   2   2        two replicas: brokers 1 and 2 must have them, being the only ones
//!  broker                 1   2   3   4   5        that carry less; of those that must and may, the one leads that
//!  leads of the topic     1   0   1   1   0        leads least (2), and who else may is taken leads most
//! ```
//!
//! With one factor and no racks, replicas and leaders of a topic differ by one at most between brokers, and so do replicas
//! over the whole cluster; where factors differ, leaders over the whole cluster differ by a few. Deliberately absent: moving
//! what was placed (`reassign`, on an operator's word).

use std::cmp::Reverse;
use std::collections::BTreeMap;

use felix_protocol::ids::{BrokerId, PartitionId, TopicId};

use crate::state::NodeState;
use crate::view::{NodeView, View};

/// How many brokers are tried as leaders of a partition before its replicas are chosen without regard to that.
const MOST_TRIED: usize = 32;

/// What one broker carries.
#[derive(Clone, Debug, Default, PartialEq, Eq)]
struct Load {
    standing: Standing,
    rack: Option<String>,
    all: Carried,
    /// Of the topic that is being placed.
    topic: Carried,
}

#[derive(Clone, Copy, Debug, Default, PartialEq, Eq)]
struct Carried {
    replicas: usize,
    /// Partitions whose first replica it is: it leads them when all is well.
    preferred: usize,
}

impl Carried {
    fn add(&mut self, first: bool) {
        self.replicas += 1;
        self.preferred += usize::from(first);
    }
}

/// Who is taken first.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq, PartialOrd, Ord)]
enum Standing {
    #[default]
    Live,
    Draining,
    /// This one and the one before only to make up the number of replicas, where a broker was lost since the topic was
    /// asked for.
    Fenced,
}

/// How badly a broker fits as one more replica; less is better.
type Cost = (Standing, usize, usize, usize);

/// Brokers and what each carries; grows with every placement, so that a batch comes out even.
#[derive(Clone, Debug, Default, PartialEq, Eq)]
pub struct Loads {
    brokers: BTreeMap<BrokerId, Load>,
    /// The topic whose replicas are counted apart.
    topic: Option<TopicId>,
}

impl Loads {
    /// Counts what brokers carry.
    pub fn of(view: &View) -> Loads {
        let load = |node: &NodeView| Load {
            standing: match node.node.state {
                NodeState::Live => Standing::Live,
                NodeState::Draining => Standing::Draining,
                NodeState::Fenced => Standing::Fenced,
            },
            rack: node.node.rack.clone(),
            ..Load::default()
        };
        let brokers = view.nodes().map(|(id, node)| (id, load(node))).collect();
        let mut loads = Loads { brokers, topic: None };
        for partition in view.partitions() {
            loads.count(&partition.state.replicas, |load| &mut load.all);
        }
        loads
    }

    /// Chooses `count` brokers for a partition, or as many as there are; the first is the one that should lead.
    /// Nobody, while nobody is live.
    pub fn place(&mut self, view: &View, partition: PartitionId, count: usize) -> Vec<BrokerId> {
        if self.brokers.values().all(|load| load.standing == Standing::Fenced) {
            return Vec::new();
        }
        self.turn_to(view, partition.topic);
        let (mut chosen, cost) = self.choose(partition, count, None);
        let mut leaders: Vec<BrokerId> = self.brokers.keys().copied().collect();
        leaders.sort_by_key(|id| (self.leads(*id), self.carries(*id), score(partition, *id)));
        for leader in leaders.into_iter().take(MOST_TRIED) {
            let (with_leader, dearer) = self.choose(partition, count, Some(leader));
            if dearer <= cost {
                chosen = with_leader;
                break;
            }
        }
        let first =
            chosen.iter().enumerate().min_by_key(|(at, id)| (self.leads(**id), *at)).map(|(at, _)| at);
        if let Some(first) = first {
            chosen.swap(0, first);
        }
        self.add(view, partition.topic, &chosen);
        chosen
    }

    /// Counts replicas that were placed by someone else.
    pub fn add(&mut self, view: &View, topic: TopicId, replicas: &[BrokerId]) {
        self.turn_to(view, topic);
        self.count(replicas, |load| &mut load.all);
        self.count(replicas, |load| &mut load.topic);
    }

    /// Counts one topic's replicas apart: those that are placed already. What this value placed itself of an earlier
    /// topic is in the view only later, so a topic's partitions are to be placed in one go.
    fn turn_to(&mut self, view: &View, topic: TopicId) {
        if self.topic == Some(topic) {
            return;
        }
        self.topic = Some(topic);
        for load in self.brokers.values_mut() {
            load.topic = Carried::default();
        }
        for partition in view.partitions_of(&topic) {
            self.count(&partition.state.replicas, |load| &mut load.topic);
        }
    }

    fn count(&mut self, replicas: &[BrokerId], which: fn(&mut Load) -> &mut Carried) {
        for (at, id) in replicas.iter().enumerate() {
            if let Some(load) = self.brokers.get_mut(id) {
                which(load).add(at == 0);
            }
        }
    }

    /// The cheapest replicas one by one, beginning with `first` if given; and what they cost, sorted.
    fn choose(
        &self,
        partition: PartitionId,
        count: usize,
        first: Option<BrokerId>,
    ) -> (Vec<BrokerId>, Vec<Cost>) {
        let mut chosen: Vec<BrokerId> = Vec::with_capacity(count);
        let mut costs: Vec<Cost> = Vec::with_capacity(count);
        while chosen.len() < count {
            let free = self.brokers.iter().filter(|(id, _)| !chosen.contains(id));
            let wanted = free.filter(|(id, _)| !chosen.is_empty() || first.is_none_or(|first| first == **id));
            let best = wanted
                .map(|(id, load)| (self.cost(load, &chosen), *id))
                .min_by_key(|(cost, id)| (*cost, Reverse(self.leads(*id)), score(partition, *id)));
            let Some((cost, id)) = best else { break };
            chosen.push(id);
            costs.push(cost);
        }
        costs.sort_unstable();
        (chosen, costs)
    }

    fn cost(&self, load: &Load, chosen: &[BrokerId]) -> Cost {
        // Brokers without a rack do not count as sharing one.
        let shares = |other: &&BrokerId| {
            load.rack.is_some() && self.brokers.get(other).is_some_and(|other| other.rack == load.rack)
        };
        (load.standing, chosen.iter().filter(shares).count(), load.topic.replicas, load.all.replicas)
    }

    /// What a broker leads when all is well; one that is not live last of all.
    fn leads(&self, id: BrokerId) -> (Standing, usize, usize) {
        let load = self.brokers.get(&id);
        load.map_or_else(Default::default, |load| (load.standing, load.topic.preferred, load.all.preferred))
    }

    fn carries(&self, id: BrokerId) -> (usize, usize) {
        let load = self.brokers.get(&id);
        load.map_or_else(Default::default, |load| (load.topic.replicas, load.all.replicas))
    }
}

/// Breaks ties the same way everywhere, differently for each partition.
fn score(partition: PartitionId, broker: BrokerId) -> u64 {
    let (high, low) = partition.topic.0.as_u64_pair();
    let small = (u64::from(partition.index.unsigned_abs()) << 32) | u64::from(broker.0.unsigned_abs());
    mix(mix(mix(high) ^ low) ^ small)
}

/// Spreads the bits of a number over all of it (the finaliser of splitmix64).
fn mix(number: u64) -> u64 {
    let mut bits = number.wrapping_add(0x9e37_79b9_7f4a_7c15);
    bits = (bits ^ (bits >> 30)).wrapping_mul(0xbf58_476d_1ce4_e5b9);
    bits = (bits ^ (bits >> 27)).wrapping_mul(0x94d0_49bb_1331_11eb);
    bits ^ (bits >> 31)
}

#[cfg(test)]
mod tests;
