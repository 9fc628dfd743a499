//! What is known of the cluster: a snapshot that brokers answer Metadata from and that every decision is
//! made from.
//!
//! A view is a value. Applying changes makes the next one, sharing nearly everything with the one before
//! (persistent maps of counted entries), so that publishing it on each change stays cheap with 10,000
//! topics, and [`View::changes_since`] finds what differs without looking at the rest.

use std::collections::{BTreeMap, BTreeSet};
use std::sync::Arc;

use felix_protocol::ids::{BrokerId, Generation, PartitionId, SessionId, TopicId};
use imbl::OrdMap;
use imbl::ordmap::DiffItem;

use crate::eligible;
use crate::keys::Key;
use crate::quotas::Entity;
use crate::reassign::new_set;
use crate::revoke::RevokeSet;
use crate::state::{
    Cluster, Leader, Listener, Node, NodeState, Overrides, Pair, Partition, ProducerIds, Quotas, Revision,
    Topic,
};
use crate::topics::is_internal;

mod follow;

/// A node with its key's revision.
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct NodeView {
    /// Its id.
    pub id: BrokerId,
    /// When its key was written.
    pub revision: Revision,
    /// Its key.
    pub node: Node,
}

impl NodeView {
    /// Whether its session is over.
    pub fn is_fenced(&self) -> bool {
        self.node.state == NodeState::Fenced
    }

    /// Its listener of that name.
    pub fn listener(&self, name: &str) -> Option<&Listener> {
        self.node.listeners.iter().find(|listener| listener.name == name)
    }
}

/// A topic with its key's revision.
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct TopicView {
    /// Its id.
    pub id: TopicId,
    /// Its name.
    pub name: Arc<str>,
    /// When its key was written.
    pub revision: Revision,
    /// How many partitions it has or will have in a moment.
    pub partition_count: i32,
    /// Replicas of a partition without explicit assignment.
    pub replication_factor: i16,
    /// What was set on it.
    pub overrides: Arc<Overrides>,
    /// Replicas that were asked for explicitly.
    pub assignments: Arc<BTreeMap<i32, Vec<BrokerId>>>,
}

impl TopicView {
    /// Whether it belongs to the broker itself.
    pub fn is_internal(&self) -> bool {
        is_internal(&self.name)
    }

    /// The key's value, to be edited and written back.
    pub fn value(&self) -> Topic {
        Topic {
            name: self.name.to_string(),
            partitions: self.partition_count,
            replication_factor: self.replication_factor,
            overrides: self.overrides.as_ref().clone(),
            assignments: self.assignments.as_ref().clone(),
        }
    }
}

/// A partition with its key's revision.
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct PartitionView {
    /// Its id.
    pub id: PartitionId,
    /// When its key was written.
    pub revision: Revision,
    /// Its key.
    pub state: Partition,
}

impl PartitionView {
    /// The newest tenure.
    pub fn generation(&self) -> Generation {
        self.state.generation
    }

    /// Who has it.
    pub fn leader(&self) -> Option<&Leader> {
        self.state.leader.as_ref()
    }

    /// The leading broker, be it there or not; clients are told [`View::leader`].
    pub fn leader_id(&self) -> Option<BrokerId> {
        self.state.leader.map(|leader| leader.broker)
    }

    /// Whether the leader has opened.
    pub fn opened(&self) -> bool {
        self.state.opened()
    }

    /// The generation at which that life of that broker is named leader: the control half of its authority.
    pub fn led_by(&self, broker: BrokerId, session: SessionId) -> Option<Generation> {
        let leader = self.state.leader?;
        (leader.broker == broker && leader.session == session).then_some(self.state.generation)
    }
}

/// The revisions a report must carry (C1): those its sender last learned.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub struct Learned {
    /// Of the partition's key.
    pub partition: Revision,
    /// Of its topic's key.
    pub topic: Revision,
}

/// Feature levels, as clients are told.
#[derive(Clone, Debug, Default, PartialEq, Eq)]
pub struct Features {
    /// Rises with every change; clients ignore a list below the newest they know.
    pub epoch: i64,
    /// The agreed levels.
    pub finalized: BTreeMap<String, i16>,
}

/// What differs between two views.
#[derive(Clone, Debug, Default, PartialEq, Eq)]
pub struct Changes {
    /// Partitions that are new, changed or gone, each once.
    pub partitions: Vec<PartitionId>,
    /// Topics that are new, changed or gone.
    pub topics: Vec<TopicId>,
    /// Whether any node changed.
    pub nodes: bool,
    /// Whether overrides of brokers, the cluster or groups changed.
    pub configs: bool,
    /// Whether any client quotas changed.
    pub quotas: bool,
    /// Nodes that are asked to give up something else than before.
    pub revocations: Vec<BrokerId>,
}

impl Changes {
    /// Whether nothing differs.
    pub fn is_empty(&self) -> bool {
        *self == Changes::default()
    }

    /// Adds partitions that are to be looked at again although nothing may differ. Whoever goes through the list meets each
    /// partition once: what is opened on its strength is not opened twice.
    pub fn look_at(&mut self, partitions: impl IntoIterator<Item = PartitionId>) {
        self.partitions.extend(partitions);
        self.partitions.sort_unstable();
        self.partitions.dedup();
    }
}

/// A value with its key's revision.
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct At<T> {
    /// When it was written; absent: never, or deleted.
    pub revision: Revision,
    /// The value.
    pub value: T,
}

impl<T: Default> Default for At<T> {
    fn default() -> Self {
        At { revision: Revision::ABSENT, value: T::default() }
    }
}

/// Whose overrides.
#[derive(Clone, Debug, PartialEq, Eq, PartialOrd, Ord)]
pub enum ConfigScope {
    /// One broker's.
    Broker(BrokerId),
    /// All brokers'.
    Cluster,
    /// One group's.
    Group(String),
    /// One subscription's to the metrics of clients.
    ClientMetrics(String),
}

impl ConfigScope {
    /// The key that holds them.
    pub fn key(&self) -> Key {
        match self {
            ConfigScope::Broker(id) => Key::BrokerConfigs(*id),
            ConfigScope::Cluster => Key::ClusterConfigs,
            ConfigScope::Group(name) => Key::GroupConfigs(name.clone()),
            ConfigScope::ClientMetrics(name) => Key::ClientMetricsConfigs(name.clone()),
        }
    }
}

/// See the module.
#[derive(Clone, Debug, Default)]
pub struct View {
    revision: Revision,
    cluster: Option<Arc<At<Cluster>>>,
    nodes: OrdMap<BrokerId, Arc<NodeView>>,
    revocations: OrdMap<BrokerId, Arc<At<RevokeSet>>>,
    topics: OrdMap<TopicId, Arc<TopicView>>,
    names: OrdMap<Arc<str>, Arc<TopicView>>,
    folded: OrdMap<Arc<str>, Revision>,
    partitions: OrdMap<PartitionId, Arc<PartitionView>>,
    configs: OrdMap<ConfigScope, Arc<At<Overrides>>>,
    quotas: OrdMap<Entity, Arc<At<Quotas>>>,
    producer_ids: Option<Arc<At<ProducerIds>>>,
    features: Arc<Features>,
}

static NO_OVERRIDES: Overrides = Overrides::new();

impl View {
    /// Every change up to here is in it.
    pub fn revision(&self) -> Revision {
        self.revision
    }

    /// The cluster's key, once the first node wrote it.
    pub fn cluster(&self) -> Option<&At<Cluster>> {
        self.cluster.as_deref()
    }

    /// The cluster's identity; empty before the first node wrote it.
    pub fn cluster_id(&self) -> &str {
        self.cluster.as_ref().map_or("", |cluster| &cluster.value.id)
    }

    /// L in milliseconds.
    pub fn lease_ms(&self) -> u64 {
        self.cluster.as_ref().map_or(0, |cluster| cluster.value.lease_ms)
    }

    /// How often an operator has begun a new history of the store; see [`crate::recovery`].
    pub fn control_epoch(&self) -> u64 {
        self.cluster.as_ref().map_or(0, |cluster| cluster.value.control_epoch)
    }

    /// New tenures begin above it.
    pub fn generation_floor(&self) -> Generation {
        self.cluster.as_ref().map_or(Generation::ZERO, |cluster| cluster.value.generation_floor)
    }

    /// Whether copies may be removed that the store does not know: no recovery waits for an operator's word.
    pub fn is_confirmed(&self) -> bool {
        self.cluster.as_ref().is_none_or(|at| at.value.confirmed_epoch >= at.value.control_epoch)
    }

    /// The generation that a partition's next tenure gets; `None` when the numbers are used up.
    pub fn next_generation(&self, partition: &Partition) -> Option<Generation> {
        partition.generation.max(self.generation_floor()).next()
    }

    /// Nodes whose sessions may lead, draining ones included, by id.
    pub fn brokers(&self) -> impl Iterator<Item = (BrokerId, &Arc<NodeView>)> {
        self.nodes().filter(|(_, node)| !node.is_fenced())
    }

    /// All nodes that ever registered and were not removed, by id.
    pub fn nodes(&self) -> impl Iterator<Item = (BrokerId, &Arc<NodeView>)> {
        self.nodes.iter().map(|(id, node)| (*id, node))
    }

    /// One node, fenced or not.
    pub fn broker(&self, id: BrokerId) -> Option<&Arc<NodeView>> {
        self.nodes.get(&id)
    }

    /// What a node is asked to give up, if it ever was.
    pub fn revocations(&self, id: BrokerId) -> Option<&At<RevokeSet>> {
        self.revocations.get(&id).map(AsRef::as_ref)
    }

    /// Whether that life of that broker may lead.
    pub fn may_lead(&self, broker: BrokerId, session: SessionId) -> bool {
        self.nodes.get(&broker).is_some_and(|node| node.node.may_lead(session))
    }

    /// The broker that leads a partition, as clients are told: not one whose session is over, though nobody may have
    /// taken its place yet.
    pub fn leader(&self, partition: &PartitionView) -> Option<BrokerId> {
        let leader = partition.leader()?;
        self.may_lead(leader.broker, leader.session).then_some(leader.broker)
    }

    /// The broker that clients should send administrative requests to: one that stays, if there is any. All can carry them
    /// out.
    pub fn controller(&self) -> Option<BrokerId> {
        let stays = self.brokers().find(|(_, node)| node.node.state == NodeState::Live);
        stays.or_else(|| self.brokers().next()).map(|(id, _)| id)
    }

    /// All topics by name.
    pub fn topics(&self) -> impl Iterator<Item = &Arc<TopicView>> {
        self.names.values()
    }

    /// Topics by name, from that name on (itself included).
    pub fn topics_after(&self, name: &str) -> impl Iterator<Item = &Arc<TopicView>> {
        self.names
            .range::<_, str>((std::ops::Bound::Included(name), std::ops::Bound::Unbounded))
            .map(|(_, topic)| topic)
    }

    /// How many topics there are.
    pub fn topic_count(&self) -> usize {
        self.topics.len()
    }

    /// How many partitions there are.
    pub fn partition_count(&self) -> usize {
        self.partitions.len()
    }

    /// One topic.
    pub fn topic(&self, id: &TopicId) -> Option<&Arc<TopicView>> {
        self.topics.get(id)
    }

    /// The topic of that name.
    pub fn topic_named(&self, name: &str) -> Option<&Arc<TopicView>> {
        self.names.get(name)
    }

    /// When the index entry of that folded name was written.
    pub fn folded_name(&self, folded: &str) -> Revision {
        self.folded.get(folded).copied().unwrap_or_default()
    }

    /// One partition.
    pub fn partition(&self, id: &PartitionId) -> Option<&Arc<PartitionView>> {
        self.partitions.get(id)
    }

    /// A topic's partitions, by number. For a moment after creation they may be fewer than the topic's
    /// count: a controller has yet to place the others.
    pub fn partitions_of(&self, topic: &TopicId) -> impl Iterator<Item = &Arc<PartitionView>> {
        let first = PartitionId { topic: *topic, index: 0 };
        let last = PartitionId { topic: *topic, index: i32::MAX };
        self.partitions.range(first..=last).map(|(_, partition)| partition)
    }

    /// How many of a topic's partitions, from number 0 on, are placed: clients are told of these.
    pub fn placed_count(&self, topic: &TopicId) -> i32 {
        let in_order = (0..).zip(self.partitions_of(topic)).take_while(|(at, one)| one.id.index == *at);
        i32::try_from(in_order.count()).unwrap_or(i32::MAX)
    }

    /// All partitions, by topic id and number.
    pub fn partitions(&self) -> impl Iterator<Item = &Arc<PartitionView>> {
        self.partitions.values()
    }

    /// How many replicas the topic's first partition has, or will have when it is where it goes; before it is placed, what
    /// was asked for.
    pub fn replication_factor(&self, topic: &TopicId) -> i16 {
        let placed = self.partitions_of(topic).next().map(|first| new_set(&first.state).len());
        match placed {
            Some(count) => i16::try_from(count).unwrap_or(i16::MAX),
            None => self.topic(topic).map_or(0, |topic| topic.replication_factor),
        }
    }

    /// How many replicas of the topic's first partition count for what an acknowledgement needs: while they are being moved, those that
    /// are being added do not yet.
    pub fn counted_replicas(&self, topic: &TopicId) -> usize {
        let placed = self.partitions_of(topic).next().map(|first| eligible::counted(&first.state));
        placed.unwrap_or_else(|| usize::try_from(self.replication_factor(topic)).unwrap_or(1))
    }

    /// What a report about that partition must carry.
    pub fn learned(&self, id: &PartitionId) -> Option<Learned> {
        let topic = self.topics.get(&id.topic)?.revision;
        Some(Learned { partition: self.partitions.get(id)?.revision, topic })
    }

    /// Kafka's in-sync replicas: the leader and the live eligible ones.
    pub fn isr(&self, partition: &PartitionView) -> Vec<BrokerId> {
        let state = &partition.state;
        let live = |id: &BrokerId| self.nodes.get(id).is_some_and(|node| !node.is_fenced());
        let eligible: BTreeSet<BrokerId> = state
            .eligible
            .iter()
            .map(|pair| pair.broker)
            .filter(live)
            .chain(self.leader(partition))
            .collect();
        // In the order of the replicas, as Kafka lists them.
        state.replicas.iter().copied().filter(|id| eligible.contains(id)).collect()
    }

    /// Kafka's eligible leader replicas: those that may be promoted but are not in sync, being down.
    pub fn elr(&self, partition: &PartitionView) -> Vec<BrokerId> {
        let isr = self.isr(partition);
        let promotable: BTreeSet<BrokerId> =
            partition.state.promotable().iter().map(|pair| pair.broker).collect();
        let replicas = partition.state.replicas.iter().copied();
        replicas.filter(|id| promotable.contains(id) && !isr.contains(id)).collect()
    }

    /// Replicas on nodes that are down.
    pub fn offline(&self, partition: &PartitionView) -> Vec<BrokerId> {
        let live = |id: &BrokerId| self.nodes.get(id).is_some_and(|node| !node.is_fenced());
        partition.state.replicas.iter().copied().filter(|id| !live(id)).collect()
    }

    /// What was set for one scope.
    pub fn overrides(&self, scope: &ConfigScope) -> &Overrides {
        self.configs.get(scope).map_or(&NO_OVERRIDES, |at| &at.value)
    }

    /// The same, with the key's revision.
    pub fn overrides_at(&self, scope: &ConfigScope) -> Revision {
        self.configs.get(scope).map_or(Revision::ABSENT, |at| at.revision)
    }

    /// What was set on one broker.
    pub fn broker_overrides(&self, broker: BrokerId) -> &Overrides {
        self.overrides(&ConfigScope::Broker(broker))
    }

    /// What was set for all brokers.
    pub fn cluster_overrides(&self) -> &Overrides {
        self.overrides(&ConfigScope::Cluster)
    }

    /// What was set on one group.
    pub fn group_overrides(&self, group: &str) -> &Overrides {
        self.overrides(&ConfigScope::Group(group.to_owned()))
    }

    /// Groups that have overrides, with them.
    pub fn groups_with_overrides(&self) -> impl Iterator<Item = (&str, &Overrides)> {
        self.configs.iter().filter_map(|(scope, at)| match scope {
            ConfigScope::Group(name) => Some((name.as_str(), &at.value)),
            ConfigScope::Broker(_) | ConfigScope::Cluster | ConfigScope::ClientMetrics(_) => None,
        })
    }

    /// Subscriptions to the metrics of clients, with what was set on them.
    pub fn client_metrics(&self) -> impl Iterator<Item = (&str, &Overrides)> {
        self.configs.iter().filter_map(|(scope, at)| match scope {
            ConfigScope::ClientMetrics(name) => Some((name.as_str(), &at.value)),
            ConfigScope::Broker(_) | ConfigScope::Cluster | ConfigScope::Group(_) => None,
        })
    }

    /// All entities that have quotas.
    pub fn quotas(&self) -> impl Iterator<Item = (&Entity, &Quotas)> {
        self.quotas.iter().map(|(entity, at)| (entity, &at.value))
    }

    /// One entity's own quotas.
    pub fn quotas_of(&self, entity: &Entity) -> Option<&At<Quotas>> {
        self.quotas.get(entity).map(AsRef::as_ref)
    }

    /// Whether the quotas are those of another view, as far as that is known without looking at them.
    pub fn shares_quotas(&self, other: &View) -> bool {
        self.quotas.ptr_eq(&other.quotas)
    }

    /// Where the next block of producer ids begins.
    pub fn producer_ids(&self) -> Option<&At<ProducerIds>> {
        self.producer_ids.as_deref()
    }

    /// The agreed feature levels.
    pub fn features(&self) -> &Features {
        &self.features
    }

    /// What differs from an older view (or a newer one: the answer is symmetrical).
    pub fn changes_since(&self, older: &View) -> Changes {
        fn keys<K: Ord + Clone, V: PartialEq>(older: &OrdMap<K, V>, newer: &OrdMap<K, V>) -> Vec<K> {
            if older.ptr_eq(newer) {
                return Vec::new();
            }
            let keys = older.diff(newer).map(|item| match item {
                DiffItem::Add(key, _) | DiffItem::Remove(key, _) => key.clone(),
                DiffItem::Update { new: (key, _), .. } => key.clone(),
            });
            keys.collect()
        }
        Changes {
            partitions: keys(&older.partitions, &self.partitions),
            topics: keys(&older.topics, &self.topics),
            nodes: !keys(&older.nodes, &self.nodes).is_empty(),
            configs: !keys(&older.configs, &self.configs).is_empty(),
            quotas: !keys(&older.quotas, &self.quotas).is_empty(),
            revocations: keys(&older.revocations, &self.revocations),
        }
    }

    /// All copies that partitions name, for invariants.
    pub fn pairs(&self) -> impl Iterator<Item = (PartitionId, Pair)> {
        self.partitions
            .values()
            .flat_map(|partition| partition.state.promotable().into_iter().map(|pair| (partition.id, pair)))
    }
}

#[cfg(test)]
mod tests;
