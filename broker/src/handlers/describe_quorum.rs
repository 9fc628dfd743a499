//! DescribeQuorum: the control plane, told in Kafka's words, for the tools that ask.
//!
//! There is no metadata log. Its one partition, `__cluster_metadata-0`, is told like this: the log end is the revision
//! of the control store up to which this broker knows everything, the epoch counts restorations of the store, and the
//! only voter is the broker that is told as controller. Brokers besides it are observers, those that are down included until
//! they are unregistered: what they know ends where their session did.
//!
//! - 1: when this broker last heard of each (of a beat, where others share the store). 2: directory ids, and where each is
//!   reached.

use std::collections::BTreeMap;
use std::sync::Arc;

use felix_cluster::state::Revision;
use felix_cluster::topics::CLUSTER_METADATA;
use felix_cluster::view::{NodeView, View};
use felix_protocol::error_code::ErrorCode;
use felix_protocol::ids::BrokerId as Id;
use felix_protocol::messages::describe_quorum_response::{
    Listener, Node as QuorumNode, PartitionData, ReplicaState, TopicData,
};
use felix_protocol::messages::{ApiKey, BrokerId, DescribeQuorumRequest, DescribeQuorumResponse};
use felix_protocol::time::{Clock, MonoTime};

use super::{Api, Call, Class, Handled, text};
use crate::node::Node;

pub const API: Api = Api {
    key: ApiKey::DescribeQuorum,
    oldest: 0,
    newest: 2,
    listed_from: 0,
    class: Class::Admin,
    start: handle,
};

fn handle(node: &Arc<Node>, call: Call) -> Handled {
    let request: DescribeQuorumRequest = call.decode()?;
    let view = node.view();
    let heard = heard(&node.agent.heard(), node.clock.now(), node.clock.wall().0);
    let now = node.clock.wall().0;
    let quorum = Quorum { view: &view, version: call.version(), own: node.id, now, heard };
    let mut metadata_asked = false;
    let topics = request.topics.into_iter().map(|topic| {
        let partitions = topic.partitions.iter().map(|partition| {
            // Once is enough: a small request must not ask for a huge answer.
            if &**topic.topic_name == CLUSTER_METADATA && partition.partition_index == 0 && !metadata_asked {
                metadata_asked = true;
                quorum.partition()
            } else {
                PartitionData::default()
                    .with_partition_index(partition.partition_index)
                    .with_error_code(ErrorCode::UnknownTopicOrPartition as i16)
                    .with_error_message(Some(text("there is no such partition")))
            }
        });
        let partitions = partitions.collect();
        TopicData::default().with_topic_name(topic.topic_name).with_partitions(partitions)
    });
    let mut response =
        DescribeQuorumResponse::default().with_error_message(None).with_topics(topics.collect());
    if metadata_asked && call.version() >= 2 {
        response = response.with_nodes(quorum.nodes());
    }
    call.answer(&response)
}

/// When that was, by the wall clock.
fn heard(heard: &BTreeMap<Id, MonoTime>, now: MonoTime, wall_ms: i64) -> BTreeMap<Id, i64> {
    let ago = |at: &MonoTime| i64::try_from(now.since(*at).as_millis()).unwrap_or(i64::MAX);
    heard.iter().map(|(id, at)| (*id, wall_ms.saturating_sub(ago(at)))).collect()
}

struct Quorum<'a> {
    view: &'a View,
    version: i16,
    own: Id,
    now: i64,
    heard: BTreeMap<Id, i64>,
}

impl Quorum<'_> {
    fn partition(&self) -> PartitionData {
        let holder = self.view.controller();
        let epoch = self.view.cluster().map_or(0, |cluster| cluster.value.control_epoch);
        let (voters, observers): (Vec<_>, Vec<_>) =
            self.view.nodes().partition(|(id, _)| Some(*id) == holder);
        let states = |nodes: Vec<(_, &Arc<NodeView>)>| {
            nodes.into_iter().map(|(_, found)| self.state(found)).collect::<Vec<_>>()
        };
        PartitionData::default()
            .with_error_message(None)
            .with_leader_id(BrokerId(holder.map_or(-1, |id| id.0)))
            .with_leader_epoch(i32::try_from(epoch).unwrap_or(i32::MAX))
            .with_high_watermark(self.end())
            .with_current_voters(states(voters))
            .with_observers(states(observers))
    }

    fn end(&self) -> i64 {
        offset(self.view.revision())
    }

    fn state(&self, found: &NodeView) -> ReplicaState {
        // Its own key is the last that was written of a session that is over.
        let end = if found.is_fenced() { offset(found.revision) } else { self.end() };
        let mut state =
            ReplicaState::default().with_replica_id(BrokerId(found.id.0)).with_log_end_offset(end);
        if self.version >= 1 {
            let at = if found.id == self.own { Some(self.now) } else { self.heard.get(&found.id).copied() };
            // Where nobody shares the store there are no beats, and nobody else.
            let at = at.unwrap_or(-1);
            state = state.with_last_fetch_timestamp(at).with_last_caught_up_timestamp(at);
        }
        if self.version >= 2 {
            state = state.with_replica_directory_id(found.node.directory);
        }
        state
    }

    fn nodes(&self) -> Vec<QuorumNode> {
        let nodes = self.view.nodes().map(|(id, found)| {
            let listeners = found.node.listeners.iter().map(|listener| {
                Listener::default()
                    .with_name(text(listener.name.clone()))
                    .with_host(text(listener.host.clone()))
                    .with_port(listener.port)
            });
            QuorumNode::default().with_node_id(BrokerId(id.0)).with_listeners(listeners.collect())
        });
        nodes.collect()
    }
}

fn offset(revision: Revision) -> i64 {
    i64::try_from(revision.0).unwrap_or(i64::MAX)
}

#[cfg(test)]
mod tests {
    use felix_cluster::state::NodeState;

    use super::*;
    use crate::admin::testing;

    #[test]
    fn who_is_down_is_told_as_it_was() {
        let mut view = testing::view(&["a"]);
        testing::node(&mut view, Id(2), NodeState::Fenced);
        let ended = offset(view.revision());
        testing::node(&mut view, Id(3), NodeState::Live);
        let second = 1_000_000_000;
        let beats = [(Id(2), MonoTime(second)), (Id(3), MonoTime(59 * second))].into();
        let heard = heard(&beats, MonoTime(60 * second), 100_000);
        let told = Quorum { view: &view, version: 2, own: Id(1), now: 100_000, heard }.partition();
        let [down, up] = &told.observers[..] else { panic!("{told:?}") };
        assert_eq!((down.replica_id, down.log_end_offset), (BrokerId(2), ended));
        assert_eq!((down.last_fetch_timestamp, down.last_caught_up_timestamp), (41_000, 41_000));
        assert_eq!((up.log_end_offset, up.last_fetch_timestamp), (told.high_watermark, 99_000));
    }

    #[test]
    fn the_store_is_told_as_a_quorum_of_one() {
        let view = testing::view(&["a"]);
        let quorum = |version| Quorum { view: &view, version, own: Id(1), now: 77, heard: BTreeMap::new() };
        let told = |version| quorum(version).partition();
        let newest = told(2);
        assert_eq!(newest.leader_id, BrokerId(1));
        assert_eq!(u64::try_from(newest.high_watermark), Ok(view.revision().0));
        let [voter] = &newest.current_voters[..] else { panic!("{newest:?}") };
        assert_eq!((voter.log_end_offset, voter.last_fetch_timestamp), (newest.high_watermark, 77));
        assert!(!voter.replica_directory_id.is_nil());
        assert!(newest.observers.is_empty());
        let oldest = &told(0).current_voters[0];
        assert_eq!((oldest.last_fetch_timestamp, oldest.replica_directory_id.is_nil()), (-1, true));
        let nodes = quorum(2).nodes();
        assert_eq!((&*nodes[0].listeners[0].host, nodes[0].listeners[0].port), ("localhost", 9092));
    }
}
