//! What this broker obeys: its settings and those of topics, resolved from the layers in which they were said.
//!
//! Resolving walks a table of some hundred rows, so results are kept until one of the layers changes. The
//! revisions of the keys they came from tell whether they still hold.

use std::collections::HashMap;
use std::sync::Arc;

use arc_swap::ArcSwapOption;
use felix_cluster::config::resolve;
use felix_cluster::config::{BrokerConfig, Layers, StaticConfig, TopicConfig};
use felix_cluster::state::Revision;
use felix_cluster::view::{ConfigScope, TopicView, View};
use felix_protocol::ids::{BrokerId, PartitionId, TopicId};
use parking_lot::RwLock;

/// Topics whose settings are kept; beyond it the memory is emptied and begins anew.
const MOST_TOPICS: usize = 20_000;

/// Whom a client should ask instead, and the leader epoch, when this broker does not lead (KIP-951). Nobody while the newest that is
/// known still names this broker: it is about to learn better, or waits for its lease.
pub fn other_leader(view: &View, partition: &PartitionId, here: BrokerId) -> Option<(BrokerId, i32)> {
    leader(view, partition).filter(|(leader, _)| *leader != here)
}

/// Who leads, this broker included, and at which leader epoch.
pub fn leader(view: &View, partition: &PartitionId) -> Option<(BrokerId, i32)> {
    let partition = view.partition(partition)?;
    Some((view.leader(partition)?, partition.generation().leader_epoch()))
}

/// Which state of the broker's layers a result came from.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
struct LayersAt {
    broker: Revision,
    cluster: Revision,
}

struct TopicAt {
    layers: LayersAt,
    topic: Revision,
    config: Arc<TopicConfig>,
}

/// The settings in force.
pub struct Configs {
    broker_id: BrokerId,
    fixed: StaticConfig,
    broker: ArcSwapOption<(LayersAt, Arc<BrokerConfig>)>,
    topics: RwLock<HashMap<TopicId, TopicAt>>,
}

impl Configs {
    /// Settings of a broker that was started with `fixed`.
    pub fn new(broker_id: BrokerId, fixed: StaticConfig) -> Configs {
        Configs { broker_id, fixed, broker: ArcSwapOption::empty(), topics: RwLock::default() }
    }

    /// The layers above the defaults, as that view has them.
    pub fn layers<'a>(&'a self, view: &'a View) -> Layers<'a> {
        Layers {
            broker: view.broker_overrides(self.broker_id),
            cluster: view.cluster_overrides(),
            fixed: self.fixed.values(),
        }
    }

    fn at(&self, view: &View) -> LayersAt {
        LayersAt {
            broker: view.overrides_at(&ConfigScope::Broker(self.broker_id)),
            cluster: view.overrides_at(&ConfigScope::Cluster),
        }
    }

    /// What this broker obeys.
    pub fn broker(&self, view: &View) -> Arc<BrokerConfig> {
        let at = self.at(view);
        if let Some(kept) = self.broker.load().as_ref()
            && kept.0 == at
        {
            return Arc::clone(&kept.1);
        }
        let config = Arc::new(resolve::broker(&self.layers(view)).config);
        self.broker.store(Some(Arc::new((at, Arc::clone(&config)))));
        config
    }

    /// What a topic obeys.
    pub fn topic(&self, view: &View, topic: &TopicView) -> Arc<TopicConfig> {
        let layers = self.at(view);
        if let Some(kept) = self.topics.read().get(&topic.id)
            && kept.layers == layers
            && kept.topic == topic.revision
        {
            return Arc::clone(&kept.config);
        }
        let config = Arc::new(resolve::topic(&topic.overrides, &self.layers(view)).config);
        let mut topics = self.topics.write();
        if topics.len() >= MOST_TOPICS {
            topics.clear();
        }
        let kept = TopicAt { layers, topic: topic.revision, config: Arc::clone(&config) };
        topics.insert(topic.id, kept);
        config
    }
}

#[cfg(test)]
mod tests {
    use super::*;
    use crate::admin::testing;

    #[test]
    fn clients_are_sent_to_another_broker_and_never_back() {
        let mut view = testing::view(&["t"]);
        let partition = PartitionId { topic: view.topic_named("t").unwrap().id, index: 0 };
        assert_eq!(leader(&view, &partition), Some((BrokerId(1), 0)));
        assert_eq!(other_leader(&view, &partition, BrokerId(1)), None);
        assert_eq!(other_leader(&view, &partition, BrokerId(2)), Some((BrokerId(1), 0)));
        testing::change(&mut view, "t", 0, |partition| partition.leader = None);
        assert_eq!(other_leader(&view, &partition, BrokerId(2)), None);
        let gone = PartitionId { topic: TopicId::random(), index: 0 };
        assert_eq!(leader(&view, &gone), None);
    }
}
