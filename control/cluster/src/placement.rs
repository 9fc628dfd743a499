//! Where replicas go: evenly, spread over racks, and the same for everyone who computes it.

use std::collections::BTreeMap;

use felix_protocol::ids::{BrokerId, PartitionId};

use crate::state::NodeState;
use crate::view::{NodeView, View};

/// What one broker carries.
#[derive(Clone, Debug, Default, PartialEq, Eq)]
struct Load {
    standing: Standing,
    rack: Option<String>,
    replicas: usize,
    /// Partitions whose first replica it is: it leads them when all is well.
    preferred: usize,
}

/// Who is taken first.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq, PartialOrd, Ord)]
enum Standing {
    #[default]
    Live,
    Draining,
    /// Only to make up the number of replicas, where a broker was lost since the topic was asked for.
    Fenced,
}

/// Brokers and what each carries; grows with every placement, so that a batch comes out even.
#[derive(Clone, Debug, Default, PartialEq, Eq)]
pub struct Loads {
    brokers: BTreeMap<BrokerId, Load>,
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
        let mut brokers: BTreeMap<BrokerId, Load> = view.nodes().map(|(id, node)| (id, load(node))).collect();
        for partition in view.partitions() {
            for (at, id) in partition.state.replicas.iter().enumerate() {
                if let Some(load) = brokers.get_mut(id) {
                    load.replicas += 1;
                    load.preferred += usize::from(at == 0);
                }
            }
        }
        Loads { brokers }
    }

    /// Chooses `count` brokers for a partition, or as many as there are; the first is the one that should lead.
    /// Nobody, while nobody is live.
    pub fn place(&mut self, partition: PartitionId, count: usize) -> Vec<BrokerId> {
        if self.brokers.values().all(|load| load.standing == Standing::Fenced) {
            return Vec::new();
        }
        let mut chosen: Vec<BrokerId> = Vec::with_capacity(count);
        while chosen.len() < count {
            let free = self.brokers.iter().filter(|(id, _)| !chosen.contains(id));
            let best = free.min_by_key(|(id, load)| {
                let shared = chosen.iter().filter(|other| self.rack_of(**other) == load.rack.as_deref());
                // Brokers without a rack do not count as sharing one.
                let shared = if load.rack.is_some() { shared.count() } else { 0 };
                (load.standing, shared, load.replicas, score(partition, **id))
            });
            let Some((id, _)) = best else { break };
            chosen.push(*id);
        }
        let preferred = |id: &BrokerId| self.brokers.get(id).map(|load| (load.standing, load.preferred));
        let first = chosen.iter().enumerate().min_by_key(|(at, id)| (preferred(id), *at)).map(|(at, _)| at);
        if let Some(first) = first {
            chosen.swap(0, first);
        }
        self.add(&chosen);
        chosen
    }

    /// Counts replicas that were placed by someone else.
    pub fn add(&mut self, replicas: &[BrokerId]) {
        for (at, id) in replicas.iter().enumerate() {
            if let Some(load) = self.brokers.get_mut(id) {
                load.replicas += 1;
                load.preferred += usize::from(at == 0);
            }
        }
    }

    fn rack_of(&self, id: BrokerId) -> Option<&str> {
        self.brokers.get(&id).and_then(|load| load.rack.as_deref())
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
mod tests {
    use felix_protocol::ids::TopicId;

    use super::*;

    fn loads(racks: &[Option<&str>]) -> Loads {
        let brokers = racks
            .iter()
            .zip(1..)
            .map(|(rack, id)| (BrokerId(id), Load { rack: rack.map(str::to_owned), ..Load::default() }));
        Loads { brokers: brokers.collect() }
    }

    fn place_all(loads: &mut Loads, partitions: i32, count: usize) -> Vec<Vec<BrokerId>> {
        let topic = TopicId::random();
        (0..partitions).map(|index| loads.place(PartitionId { topic, index }, count)).collect()
    }

    #[test]
    fn replicas_and_leaders_are_even_within_one() {
        for brokers in 1..6_usize {
            for count in 1..=brokers {
                let mut loads = loads(&vec![None; brokers]);
                place_all(&mut loads, 97, count);
                let replicas: Vec<usize> = loads.brokers.values().map(|load| load.replicas).collect();
                let preferred: Vec<usize> = loads.brokers.values().map(|load| load.preferred).collect();
                let spread = |of: &[usize]| of.iter().max().unwrap() - of.iter().min().unwrap();
                assert!(spread(&replicas) <= 1, "{brokers} brokers, factor {count}: {replicas:?}");
                assert!(spread(&preferred) <= 2, "{brokers} brokers, factor {count}: {preferred:?}");
            }
        }
    }

    #[test]
    fn no_rack_holds_two_replicas_while_another_holds_none() {
        let mut loads = loads(&[Some("a"), Some("a"), Some("b"), Some("b"), Some("c"), Some("c")]);
        for replicas in place_all(&mut loads, 60, 3) {
            let mut racks: Vec<_> = replicas.iter().map(|id| loads.rack_of(*id).unwrap()).collect();
            racks.sort_unstable();
            assert_eq!(racks, ["a", "b", "c"]);
        }
    }

    #[test]
    fn there_are_never_more_replicas_than_brokers() {
        let mut loads = loads(&[None, None]);
        let placed = place_all(&mut loads, 1, 3);
        assert_eq!(placed[0].len(), 2);
    }
}
