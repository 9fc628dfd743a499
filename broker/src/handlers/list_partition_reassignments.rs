//! ListPartitionReassignments: the partitions whose replicas are being changed.
//!
//! Null topics mean all of them. Partitions that are not being moved, and those that do not exist, are left out, as in
//! Kafka.

use std::sync::Arc;

use felix_cluster::view::{PartitionView, TopicView, View};
use felix_protocol::ids::PartitionId;
use felix_protocol::messages::list_partition_reassignments_request::ListPartitionReassignmentsTopics;
use felix_protocol::messages::list_partition_reassignments_response::{
    OngoingPartitionReassignment, OngoingTopicReassignment,
};
use felix_protocol::messages::{
    ApiKey, BrokerId, ListPartitionReassignmentsRequest, ListPartitionReassignmentsResponse, TopicName,
};

use super::{Api, Call, Class, Handled, text};
use crate::node::Node;

pub const API: Api = Api {
    key: ApiKey::ListPartitionReassignments,
    oldest: 0,
    newest: 0,
    listed_from: 0,
    class: Class::Admin,
    start: handle,
};

fn handle(node: &Arc<Node>, call: Call) -> Handled {
    let request: ListPartitionReassignmentsRequest = call.decode()?;
    let view = node.view();
    let topics = list(&view, request.topics.as_deref());
    let response = ListPartitionReassignmentsResponse::default().with_error_message(None).with_topics(topics);
    call.answer(&response)
}

fn list(view: &View, asked: Option<&[ListPartitionReassignmentsTopics]>) -> Vec<OngoingTopicReassignment> {
    let moving = |topic: &Arc<TopicView>, wanted: Option<&[i32]>| {
        let partitions: Vec<_> = match wanted {
            None => view.partitions_of(&topic.id).filter_map(|partition| ongoing(partition)).collect(),
            Some(wanted) => wanted
                .iter()
                .filter_map(|index| view.partition(&PartitionId { topic: topic.id, index: *index }))
                .filter_map(|partition| ongoing(partition))
                .collect(),
        };
        (!partitions.is_empty()).then(|| {
            OngoingTopicReassignment::default()
                .with_name(TopicName(text(topic.name.to_string())))
                .with_partitions(partitions)
        })
    };
    match asked {
        None => view.topics().filter_map(|topic| moving(topic, None)).collect(),
        Some(asked) => asked
            .iter()
            .filter_map(|one| moving(view.topic_named(&one.name)?, Some(&one.partition_indexes)))
            .collect(),
    }
}

fn ongoing(partition: &PartitionView) -> Option<OngoingPartitionReassignment> {
    let state = &partition.state;
    if state.adding.is_empty() && state.removing.is_empty() {
        return None;
    }
    let wire = |ids: &[felix_protocol::ids::BrokerId]| ids.iter().map(|id| BrokerId(id.0)).collect();
    Some(
        OngoingPartitionReassignment::default()
            .with_partition_index(partition.id.index)
            .with_replicas(wire(&state.replicas))
            .with_adding_replicas(wire(&state.adding))
            .with_removing_replicas(wire(&state.removing)),
    )
}

#[cfg(test)]
mod tests {
    use felix_protocol::ids::BrokerId as Broker;

    use super::*;
    use crate::admin::testing;

    fn asked(name: &str, partitions: &[i32]) -> ListPartitionReassignmentsTopics {
        ListPartitionReassignmentsTopics::default()
            .with_name(TopicName(text(name)))
            .with_partition_indexes(partitions.to_vec())
    }

    #[test]
    fn only_what_is_being_moved_is_listed() {
        let mut view = testing::view_with(&[("a", 2), ("b", 1)]);
        assert!(list(&view, None).is_empty());
        testing::change(&mut view, "a", 1, |partition| {
            partition.replicas = vec![Broker(1), Broker(2)];
            partition.adding = vec![Broker(2)];
            partition.removing = vec![Broker(1)];
        });
        let all = list(&view, None);
        let [topic] = &all[..] else { panic!("{all:?}") };
        let [moving] = &topic.partitions[..] else { panic!("{topic:?}") };
        assert_eq!((topic.name.to_string(), moving.partition_index), ("a".to_owned(), 1));
        let ids = |ids: &[BrokerId]| ids.iter().map(|id| id.0).collect::<Vec<_>>();
        assert_eq!(ids(&moving.replicas), [1, 2]);
        assert_eq!((ids(&moving.adding_replicas), ids(&moving.removing_replicas)), (vec![2], vec![1]));
        assert_eq!(list(&view, Some(&[asked("a", &[0, 1]), asked("b", &[0]), asked("c", &[0])])).len(), 1);
        assert!(list(&view, Some(&[asked("a", &[0])])).is_empty());
    }
}
