//! Metadata: brokers, topics, and who leads which partition.
//!
//! - 0: no topics means all of them; from 1 on null means all and empty means none.
//! - 4 and later say whether missing topics are created; before, they are. A created topic is answered once its
//!   partitions are led, or with LEADER_NOT_AVAILABLE if that takes too long, never as a topic without partitions.
//! - 10–11 carry topic ids in the answer, but take only names; 12 and later find topics by id.
//! - Every partition of a topic is listed, led or not, so that its number never seems to shrink; those that are not
//!   placed yet are not, and a topic without any is answered LEADER_NOT_AVAILABLE.
//! - A leader whose session is over is none: LEADER_NOT_AVAILABLE and -1, until another takes its place. So is, for
//!   who asks about named topics, one whose process has plainly died, for the rest of its lease: librdkafka asks again soon where there is no leader, but not where it was told the old one.
//! - Where a partition has just lost its leader, the answer about named topics waits a moment for the next one ([`awaited`]).
//! - Brokers are told by the endpoint of the listener that the client connected to; fenced ones are left out.
//! - A broker whose lease has run out says that what it led has no leader, before the others do (B088). When they have noticed, it
//!   leaves itself out, as Kafka's fenced brokers do: what it knows is old, and clients that keep to it would not find the new leaders.
//! - The answer about all topics is encoded once for all who ask at the same revision.

use std::sync::Arc;

use bytes::{Bytes, BytesMut};
use felix_cluster::state::Revision;
use felix_cluster::topics::check_name;
use felix_cluster::view::{PartitionView, TopicView, View};
use felix_protocol::error_code::ErrorCode;
use felix_protocol::ids::TopicId;
use felix_protocol::messages::metadata_request::MetadataRequestTopic;
use felix_protocol::messages::metadata_response::{
    MetadataResponseBroker, MetadataResponsePartition, MetadataResponseTopic,
};
use felix_protocol::messages::{
    ApiKey, BrokerId, Encodable, MetadataRequest, MetadataResponse, StrBytes, TopicName,
};
use indexmap::IndexSet;

use super::{Answer, Api, Call, Class, Handled, Reply};
use crate::admin::{CLUSTER_OPERATIONS, TOPIC_OPERATIONS, topics};
use crate::node::Node;
use crate::wire_code::WireCode;

mod awaited;

pub const API: Api = Api {
    key: ApiKey::Metadata,
    oldest: 0,
    newest: 13,
    listed_from: 0,
    class: Class::Discovery,
    start: handle,
};

/// What a client asks about.
enum Asked {
    All,
    Names(IndexSet<TopicName>),
    Ids(IndexSet<TopicId>),
}

fn handle(node: &Arc<Node>, call: Call) -> Handled {
    let request: MetadataRequest = call.decode()?;
    let version = call.version();
    if let Some(refused) = misused(version, request.topics.as_deref().unwrap_or_default()) {
        return call.answer(&MetadataResponse::default().with_topics(refused));
    }
    let asked = match request.topics {
        None => Asked::All,
        Some(topics) if version == 0 && topics.is_empty() => Asked::All,
        Some(topics) => asked(topics),
    };
    let operations = Operations {
        topics: request.include_topic_authorized_operations && version >= 8,
        cluster: request.include_cluster_authorized_operations && (8..=10).contains(&version),
    };
    let view = node.view();
    let (not_leading, left_out) = (node.not_leading(&view), node.left_out());
    let writer = Writer { node: Arc::clone(node), call, operations, not_leading, left_out };
    match asked {
        // Who asks about everything looks at the cluster, and is told what the control store says of the others.
        Asked::All => {
            let not_leading = node.without_lease().into_iter().collect();
            Writer { not_leading, ..writer }.all(&view).map(Answer::Now)
        }
        Asked::Names(names) => {
            let may_create = request.allow_auto_topic_creation || version < 4;
            let missing = |name: &&TopicName| view.topic_named(name).is_none() && check_name(name).is_ok();
            if may_create
                && names.iter().any(|name| missing(&name))
                && node.configs.broker(&view).topics.auto_create
            {
                let missing: Vec<TopicName> = names.iter().filter(missing).cloned().collect();
                return Answer::later(async move { writer.create(names, missing).await });
            }
            let topics = names.iter().filter_map(|name| Some(view.topic_named(name)?.id)).collect();
            match writer.awaited(&view, topics) {
                Some(topics) => Answer::later(async move {
                    let (writer, view) = writer.settled(topics).await;
                    writer.names(&view, &names, &[])
                }),
                None => writer.names(&view, &names, &[]).map(Answer::Now),
            }
        }
        Asked::Ids(ids) => match writer.awaited(&view, ids.iter().copied().collect()) {
            Some(topics) => Answer::later(async move {
                let (writer, view) = writer.settled(topics).await;
                writer.ids(&view, &ids)
            }),
            None => writer.ids(&view, &ids).map(Answer::Now),
        },
    }
}

/// Versions 10 and 11 have a field for topic ids that requests must not use.
fn misused(version: i16, topics: &[MetadataRequestTopic]) -> Option<Vec<MetadataResponseTopic>> {
    let misuses = |topic: &MetadataRequestTopic| {
        topic.name.is_none() || ((10..=11).contains(&version) && !topic.topic_id.is_nil())
    };
    if version >= 12 || !topics.iter().any(misuses) {
        return None;
    }
    let refused = topics.iter().map(|topic| {
        MetadataResponseTopic::default()
            .with_error_code(ErrorCode::InvalidRequest as i16)
            .with_name(Some(topic.name.clone().unwrap_or_default()))
            .with_topic_id(topic.topic_id)
    });
    Some(refused.collect())
}

/// Ids win over names, as in Kafka, if a request has both.
fn asked(topics: Vec<MetadataRequestTopic>) -> Asked {
    let ids: IndexSet<TopicId> =
        topics.iter().map(|topic| TopicId(topic.topic_id)).filter(|id| *id != TopicId::NONE).collect();
    if ids.is_empty() {
        Asked::Names(topics.into_iter().filter_map(|topic| topic.name).collect())
    } else {
        Asked::Ids(ids)
    }
}

#[derive(Clone, Copy, PartialEq, Eq)]
struct Operations {
    topics: bool,
    cluster: bool,
}

struct Writer {
    node: Arc<Node>,
    call: Call,
    operations: Operations,
    /// Brokers that must not be called leaders now.
    not_leading: Vec<felix_protocol::ids::BrokerId>,
    /// This broker, if clients had better ask another.
    left_out: Option<felix_protocol::ids::BrokerId>,
}

impl Writer {
    /// The topics, if their answer should wait.
    fn awaited(&self, view: &View, topics: Vec<TopicId>) -> Option<Vec<TopicId>> {
        awaited::is_any(view, &topics, &self.not_leading).then_some(topics)
    }

    /// What is to be said after that wait.
    async fn settled(self, topics: Vec<TopicId>) -> (Writer, Arc<View>) {
        awaited::settle(&self.node, &self.call.client, topics).await;
        let view = self.node.view();
        let (not_leading, left_out) = (self.node.not_leading(&view), self.node.left_out());
        (Writer { not_leading, left_out, ..self }, view)
    }

    async fn create(self, names: IndexSet<TopicName>, missing: Vec<TopicName>) -> Result<Reply, Reply> {
        let plain: Vec<&str> = missing.iter().map(|name| &***name).collect();
        let results = topics::create_by_default(&self.node, &plain).await;
        let failed: Vec<(TopicName, ErrorCode)> = missing
            .into_iter()
            .zip(results)
            .filter_map(|(name, result)| Some((name, result.err()?.code())))
            .collect();
        // Somebody else may have created it meanwhile: what is there now is what counts.
        let view = self.node.view();
        self.names(&view, &names, &failed)
    }

    fn names(
        &self,
        view: &View,
        names: &IndexSet<TopicName>,
        failed: &[(TopicName, ErrorCode)],
    ) -> Result<Reply, Reply> {
        let topics = names.iter().map(|name| match view.topic_named(name) {
            Some(topic) => self.topic(view, topic),
            None => {
                let code = match (check_name(name), failed.iter().find(|(other, _)| other == name)) {
                    (Err(_), _) => ErrorCode::InvalidTopicException,
                    (Ok(()), Some((_, code))) => *code,
                    (Ok(()), None) => ErrorCode::UnknownTopicOrPartition,
                };
                MetadataResponseTopic::default().with_error_code(code as i16).with_name(Some(name.clone()))
            }
        });
        self.call.reply(&self.response(view, topics.collect()))
    }

    fn ids(&self, view: &View, ids: &IndexSet<TopicId>) -> Result<Reply, Reply> {
        let topics = ids.iter().map(|id| match view.topic(id) {
            Some(topic) => self.topic(view, topic),
            None => MetadataResponseTopic::default()
                .with_error_code(ErrorCode::UnknownTopicId as i16)
                .with_name(None)
                .with_topic_id(id.0),
        });
        self.call.reply(&self.response(view, topics.collect()))
    }

    fn all(&self, view: &View) -> Result<Reply, Reply> {
        let key = CacheKey {
            revision: view.revision(),
            version: self.call.version(),
            listener: Arc::clone(&self.call.client.listener),
            operations: self.operations,
            not_leading: self.not_leading.clone(),
            left_out: self.left_out.is_some(),
        };
        if let Some(body) = self.node.metadata.lock().get(&key) {
            return self.call.reply_shared(body);
        }
        let topics = view.topics().map(|topic| self.topic(view, topic)).collect();
        let response = self.response(view, topics);
        let mut body = BytesMut::new();
        if let Err(error) = response.encode(&mut body, self.call.version()) {
            tracing::error!(%error, "an answer could not be encoded");
            return Err(Reply::Close(error.to_string()));
        }
        let body = body.freeze();
        self.node.metadata.lock().put(key, body.clone());
        self.call.reply_shared(body)
    }

    fn response(&self, view: &View, topics: Vec<MetadataResponseTopic>) -> MetadataResponse {
        let listener = &self.call.client.listener;
        let brokers = Node::listed(view, listener, self.left_out).into_iter().map(|(id, place)| {
            MetadataResponseBroker::default()
                .with_node_id(BrokerId(id.0))
                .with_host(StrBytes::from_string(place.host))
                .with_port(i32::from(place.port))
                .with_rack(place.rack.map(StrBytes::from_string))
        });
        let controller = view.controller().map_or(-1, |id| id.0);
        let mut response = MetadataResponse::default()
            .with_brokers(brokers.collect())
            .with_cluster_id(Some(StrBytes::from_string(view.cluster_id().to_owned())))
            .with_controller_id(BrokerId(controller))
            .with_topics(topics);
        if self.operations.cluster {
            response = response.with_cluster_authorized_operations(CLUSTER_OPERATIONS);
        }
        response
    }

    fn topic(&self, view: &View, topic: &TopicView) -> MetadataResponseTopic {
        // Those that a controller has yet to place are not told of: they have no replicas to name.
        let placed = usize::try_from(view.placed_count(&topic.id)).unwrap_or(0);
        let partitions: Vec<_> = view
            .partitions_of(&topic.id)
            .take(placed)
            .map(|partition| self.partition(view, partition))
            .collect();
        let code = if partitions.is_empty() { ErrorCode::LeaderNotAvailable } else { ErrorCode::None };
        let mut response = MetadataResponseTopic::default()
            .with_name(Some(TopicName(StrBytes::from_string(topic.name.to_string()))))
            .with_topic_id(topic.id.0)
            .with_error_code(code as i16)
            .with_is_internal(topic.is_internal())
            .with_partitions(partitions);
        if self.operations.topics {
            response = response.with_topic_authorized_operations(TOPIC_OPERATIONS);
        }
        response
    }

    fn partition(&self, view: &View, partition: &PartitionView) -> MetadataResponsePartition {
        let listener = &self.call.client.listener;
        let reachable = |id: &felix_protocol::ids::BrokerId| Node::endpoint(view, *id, listener).is_some();
        let (code, leader) = match view.leader(partition) {
            Some(leader) if self.not_leading.contains(&leader) => (ErrorCode::LeaderNotAvailable, -1),
            Some(leader) if reachable(&leader) => (ErrorCode::None, leader.0),
            Some(_) if self.call.version() >= 6 => (ErrorCode::ListenerNotFound, -1),
            Some(_) | None => (ErrorCode::LeaderNotAvailable, -1),
        };
        MetadataResponsePartition::default()
            .with_error_code(code as i16)
            .with_partition_index(partition.id.index)
            .with_leader_id(BrokerId(leader))
            .with_leader_epoch(partition.generation().leader_epoch())
            .with_replica_nodes(wire(&partition.state.replicas))
            .with_isr_nodes(wire(&view.isr(partition)))
            .with_offline_replicas(wire(&view.offline(partition)))
    }
}

fn wire(ids: &[felix_protocol::ids::BrokerId]) -> Vec<BrokerId> {
    ids.iter().map(|id| BrokerId(id.0)).collect()
}

/// What an answer about all topics depends on.
#[derive(Clone, PartialEq, Eq)]
struct CacheKey {
    revision: Revision,
    version: i16,
    listener: Arc<str>,
    operations: Operations,
    not_leading: Vec<felix_protocol::ids::BrokerId>,
    left_out: bool,
}

/// The newest answers about all topics. A storm of clients that ask for everything costs one encoding, and one copy
/// in memory however slowly they read.
#[derive(Default)]
pub struct Cache {
    kept: Vec<(CacheKey, Bytes)>,
}

/// Answers kept: the usual clients speak a handful of versions.
const MOST_KEPT: usize = 8;

impl Cache {
    fn get(&self, key: &CacheKey) -> Option<Bytes> {
        self.kept.iter().find(|(kept, _)| kept == key).map(|(_, body)| body.clone())
    }

    fn put(&mut self, key: CacheKey, body: Bytes) {
        self.kept.retain(|(kept, _)| kept.revision == key.revision);
        if self.kept.len() >= MOST_KEPT {
            self.kept.remove(0);
        }
        self.kept.push((key, body));
    }
}
