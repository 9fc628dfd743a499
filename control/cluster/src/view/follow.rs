//! How a view follows the store: change by change, or by comparing itself with a full list.

use std::collections::BTreeSet;
use std::sync::Arc;

use felix_protocol::ids::{BrokerId, TopicId};
use serde::de::DeserializeOwned;

use super::{At, ConfigScope, Features, NodeView, PartitionView, TopicView, View};
use crate::decision::Change;
use crate::keys::Key;
use crate::revoke::{self, RevokeSet};
use crate::state::{
    Cluster, FinalizedFeatures, Node, Overrides, Partition, ProducerIds, Quotas, Revision, Topic, Unreadable,
    decode,
};

impl View {
    /// The store has told everything up to `revision`, even where nothing of it concerns this view.
    pub fn advance(&mut self, revision: Revision) {
        self.revision = self.revision.max(revision);
    }

    /// Takes one change in. One that is older than what is known changes nothing (a list may overtake a
    /// watch); a key of a later version is passed over; an unreadable value is refused.
    pub fn apply(&mut self, change: &Change) -> Result<(), Unreadable> {
        let Some(key) = Key::parse(&change.key) else { return Ok(()) };
        let at = change.revision;
        if at < self.revision_of(&key) {
            return Ok(());
        }
        match &key {
            Key::Cluster => {
                self.cluster = read::<Cluster>(change)?.map(|value| Arc::new(At { revision: at, value }));
            }
            Key::Node(id) => match read::<Node>(change)? {
                Some(node) => {
                    self.nodes.insert(*id, Arc::new(NodeView { id: *id, revision: at, node }));
                }
                None => {
                    self.nodes.remove(id);
                }
            },
            // Beats concern the machines that wait and renew, nobody else.
            Key::Beat(_) => {}
            Key::Revoke(id) => self.apply_revocations(*id, change)?,
            Key::Topic(id) => self.apply_topic(*id, read::<Topic>(change)?, at),
            Key::TopicName(name) => {
                match change.value {
                    Some(_) => self.folded.insert(Arc::from(name.as_str()), at),
                    None => self.folded.remove(name.as_str()),
                };
            }
            Key::Partition(id) => match read::<Partition>(change)? {
                Some(state) => {
                    self.partitions.insert(*id, Arc::new(PartitionView { id: *id, revision: at, state }));
                }
                None => {
                    self.partitions.remove(id);
                }
            },
            Key::BrokerConfigs(id) => self.apply_configs(ConfigScope::Broker(*id), change)?,
            Key::ClusterConfigs => self.apply_configs(ConfigScope::Cluster, change)?,
            Key::GroupConfigs(group) => self.apply_configs(ConfigScope::Group(group.clone()), change)?,
            Key::ClientMetricsConfigs(name) => {
                self.apply_configs(ConfigScope::ClientMetrics(name.clone()), change)?;
            }
            Key::Quotas(entity) => match read::<Quotas>(change)? {
                Some(value) => {
                    self.quotas.insert(entity.clone(), Arc::new(At { revision: at, value }));
                }
                None => {
                    self.quotas.remove(entity);
                }
            },
            Key::ProducerIds => {
                self.producer_ids =
                    read::<ProducerIds>(change)?.map(|value| Arc::new(At { revision: at, value }));
            }
            Key::Features => {
                let finalized = read::<FinalizedFeatures>(change)?.unwrap_or_default().levels;
                let epoch = i64::try_from(at.0).unwrap_or(i64::MAX);
                self.features = Arc::new(Features { epoch, finalized });
            }
        }
        self.advance(at);
        Ok(())
    }

    fn apply_topic(&mut self, id: TopicId, topic: Option<Topic>, at: Revision) {
        let old = self.topics.remove(&id);
        if let Some(old) = &old
            && self.names.get(&old.name).is_some_and(|named| named.id == id)
        {
            self.names.remove(&old.name);
        }
        let Some(topic) = topic else { return };
        let view = Arc::new(TopicView {
            id,
            name: Arc::from(topic.name),
            revision: at,
            partition_count: topic.partitions,
            replication_factor: topic.replication_factor,
            overrides: Arc::new(topic.overrides),
            assignments: Arc::new(topic.assignments),
        });
        self.names.insert(Arc::clone(&view.name), Arc::clone(&view));
        self.topics.insert(id, view);
    }

    fn apply_revocations(&mut self, id: BrokerId, change: &Change) -> Result<(), Unreadable> {
        match &change.value {
            Some(bytes) => {
                let unreadable = |problem: revoke::Unreadable| Unreadable {
                    key: change.key.clone(),
                    problem: problem.to_string(),
                };
                let value = RevokeSet::decode(bytes).map_err(unreadable)?;
                self.revocations.insert(id, Arc::new(At { revision: change.revision, value }));
            }
            None => {
                self.revocations.remove(&id);
            }
        }
        Ok(())
    }

    fn apply_configs(&mut self, scope: ConfigScope, change: &Change) -> Result<(), Unreadable> {
        match read::<Overrides>(change)? {
            Some(value) => {
                self.configs.insert(scope, Arc::new(At { revision: change.revision, value }));
            }
            None => {
                self.configs.remove(&scope);
            }
        }
        Ok(())
    }

    /// Whether a view has a place for such a key.
    pub fn keeps(key: &Key) -> bool {
        !matches!(key, Key::Beat(_))
    }

    /// When the key was last written, as far as this view knows; for keys that a view does not keep, absent.
    pub fn revision_of(&self, key: &Key) -> Revision {
        let found = match key {
            Key::Cluster => self.cluster.as_ref().map(|at| at.revision),
            Key::Node(id) => self.nodes.get(id).map(|node| node.revision),
            Key::Beat(_) => None,
            Key::Revoke(id) => self.revocations.get(id).map(|set| set.revision),
            Key::Topic(id) => self.topics.get(id).map(|topic| topic.revision),
            Key::TopicName(name) => self.folded.get(name.as_str()).copied(),
            Key::Partition(id) => self.partitions.get(id).map(|partition| partition.revision),
            Key::BrokerConfigs(id) => Some(self.overrides_at(&ConfigScope::Broker(*id))),
            Key::ClusterConfigs => Some(self.overrides_at(&ConfigScope::Cluster)),
            Key::GroupConfigs(name) => Some(self.overrides_at(&ConfigScope::Group(name.clone()))),
            Key::ClientMetricsConfigs(name) => {
                Some(self.overrides_at(&ConfigScope::ClientMetrics(name.clone())))
            }
            Key::Quotas(entity) => self.quotas.get(entity).map(|quotas| quotas.revision),
            Key::ProducerIds => self.producer_ids.as_ref().map(|at| at.revision),
            Key::Features => u64::try_from(self.features.epoch).ok().filter(|epoch| *epoch > 0).map(Revision),
        };
        found.unwrap_or(Revision::ABSENT)
    }

    /// Every key the view keeps, for comparing with a full list.
    pub fn keys(&self) -> BTreeSet<Key> {
        let single = [
            self.cluster.as_ref().map(|_| Key::Cluster),
            self.producer_ids.as_ref().map(|_| Key::ProducerIds),
            (self.features.epoch > 0).then_some(Key::Features),
        ];
        single
            .into_iter()
            .flatten()
            .chain(self.nodes.keys().copied().map(Key::Node))
            .chain(self.revocations.keys().copied().map(Key::Revoke))
            .chain(self.topics.keys().copied().map(Key::Topic))
            .chain(self.folded.keys().map(|name| Key::TopicName(name.to_string())))
            .chain(self.partitions.keys().copied().map(Key::Partition))
            .chain(self.configs.keys().map(ConfigScope::key))
            .chain(self.quotas.keys().cloned().map(Key::Quotas))
            .collect()
    }
}

fn read<T: DeserializeOwned>(change: &Change) -> Result<Option<T>, Unreadable> {
    change.value.as_deref().map(|bytes| decode(&change.key, bytes)).transpose()
}
