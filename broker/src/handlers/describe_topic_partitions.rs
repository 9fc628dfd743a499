//! DescribeTopicPartitions: topics and their partitions page by page, sorted by name.
//!
//! - No topics means all of them. Nothing is ever created.
//! - A page holds at most as many partitions as the client wants and `max.request.partition.size.limit` allows. The
//!   cursor says where the next one begins; it must name a topic of the request, if that names any.
//! - Besides those in sync, the replicas that may be promoted though they are down are listed (KIP-966).

use std::collections::BTreeSet;
use std::sync::Arc;

use felix_cluster::topics::{check_name, is_internal};
use felix_cluster::view::{PartitionView, TopicView, View};
use felix_protocol::error_code::ErrorCode;
use felix_protocol::ids::PartitionId;
use felix_protocol::messages::describe_topic_partitions_response::{
    Cursor, DescribeTopicPartitionsResponsePartition, DescribeTopicPartitionsResponseTopic,
};
use felix_protocol::messages::{
    ApiKey, BrokerId, DescribeTopicPartitionsRequest, DescribeTopicPartitionsResponse, TopicName,
};

use super::{Api, Call, Class, Handled, text};
use crate::admin::TOPIC_OPERATIONS;
use crate::node::Node;

pub const API: Api = Api {
    key: ApiKey::DescribeTopicPartitions,
    oldest: 0,
    newest: 0,
    listed_from: 0,
    class: Class::Discovery,
    start: handle,
};

fn handle(node: &Arc<Node>, call: Call) -> Handled {
    let request: DescribeTopicPartitionsRequest = call.decode()?;
    let view = node.view();
    let most = node.configs.broker(&view).net.describe_partitions_max;
    let most = i32::try_from(most).unwrap_or(i32::MAX).min(request.response_partition_limit).max(1);
    let not_leading: Vec<_> = node.without_lease().into_iter().collect();
    let from = Source { view: &view, listener: &call.client.listener, not_leading: &not_leading };
    call.answer(&describe(from, &request, most))
}

/// What an answer is made of.
#[derive(Clone, Copy)]
struct Source<'a> {
    view: &'a View,
    listener: &'a str,
    /// Brokers that must not be called leaders now.
    not_leading: &'a [felix_protocol::ids::BrokerId],
}

fn describe(
    told: Source<'_>,
    request: &DescribeTopicPartitionsRequest,
    most: i32,
) -> DescribeTopicPartitionsResponse {
    let view = told.view;
    let mut page = Page { told, room: most, response: DescribeTopicPartitionsResponse::default() };
    let (first, at) = match &request.cursor {
        Some(cursor) => (&*cursor.topic_name.0, cursor.partition_index),
        None => ("", 0),
    };
    if request.topics.is_empty() {
        if at >= 0 {
            for topic in view.topics_after(first) {
                if !page.topic(topic, if *topic.name == *first { at } else { 0 }) {
                    break;
                }
            }
        }
        return page.response;
    }
    let names: BTreeSet<&str> =
        request.topics.iter().map(|topic| &*topic.name.0).filter(|name| *name >= first).collect();
    if at < 0 || (request.cursor.is_some() && !names.contains(first)) {
        let refused = request.topics.iter().map(|topic| failure(&topic.name.0, ErrorCode::InvalidRequest));
        return page.response.with_topics(refused.collect());
    }
    for name in names {
        let more = match view.topic_named(name) {
            Some(topic) => page.topic(topic, if name == first { at } else { 0 }),
            None => page.missing(name),
        };
        if !more {
            break;
        }
    }
    page.response
}

/// An answer that fills up.
struct Page<'a> {
    told: Source<'a>,
    /// Partitions that still fit.
    room: i32,
    response: DescribeTopicPartitionsResponse,
}

impl Page<'_> {
    /// Whether there is room for another topic; if not, the next page begins with it.
    fn has_room(&mut self, name: &str, at: i32) -> bool {
        if self.room <= 0 {
            self.response.next_cursor =
                Some(Cursor::default().with_topic_name(topic_name(name)).with_partition_index(at));
        }
        self.room > 0
    }

    /// Adds a topic from that partition on; whether the page goes on.
    fn topic(&mut self, topic: &TopicView, from: i32) -> bool {
        if !self.has_room(&topic.name, from) {
            return false;
        }
        // Those that a controller has yet to place are not told of: they have no replicas to name.
        let count = self.told.view.placed_count(&topic.id);
        let code = if count == 0 { ErrorCode::LeaderNotAvailable } else { ErrorCode::None };
        let end = from.saturating_add(self.room).min(count);
        let partitions: Vec<_> = (from..end)
            .filter_map(|index| self.told.view.partition(&PartitionId { topic: topic.id, index }))
            .map(|partition| self.partition(partition))
            .collect();
        self.room -= i32::try_from(partitions.len()).unwrap_or(i32::MAX);
        self.response.topics.push(
            DescribeTopicPartitionsResponseTopic::default()
                .with_name(Some(topic_name(&topic.name)))
                .with_topic_id(topic.id.0)
                .with_error_code(code as i16)
                .with_is_internal(topic.is_internal())
                .with_partitions(partitions)
                .with_topic_authorized_operations(TOPIC_OPERATIONS),
        );
        end >= count || self.has_room(&topic.name, end)
    }

    fn missing(&mut self, name: &str) -> bool {
        if !self.has_room(name, 0) {
            return false;
        }
        let code = match check_name(name) {
            Ok(()) => ErrorCode::UnknownTopicOrPartition,
            Err(_) => ErrorCode::InvalidTopicException,
        };
        let topic = failure(name, code).with_topic_authorized_operations(TOPIC_OPERATIONS);
        self.response.topics.push(topic);
        true
    }

    fn partition(&self, partition: &PartitionView) -> DescribeTopicPartitionsResponsePartition {
        let (code, leader) = match self.told.view.leader(partition) {
            Some(leader) if self.told.not_leading.contains(&leader) => (ErrorCode::LeaderNotAvailable, -1),
            Some(leader) if Node::endpoint(self.told.view, leader, self.told.listener).is_some() => {
                (ErrorCode::None, leader.0)
            }
            Some(_) => (ErrorCode::ListenerNotFound, -1),
            None => (ErrorCode::LeaderNotAvailable, -1),
        };
        DescribeTopicPartitionsResponsePartition::default()
            .with_error_code(code as i16)
            .with_partition_index(partition.id.index)
            .with_leader_id(BrokerId(leader))
            .with_leader_epoch(partition.generation().leader_epoch())
            .with_replica_nodes(wire(&partition.state.replicas))
            .with_isr_nodes(wire(&self.told.view.isr(partition)))
            .with_eligible_leader_replicas(Some(wire(&self.told.view.elr(partition))))
            .with_last_known_elr(Some(Vec::new()))
            .with_offline_replicas(wire(&self.told.view.offline(partition)))
    }
}

fn failure(name: &str, code: ErrorCode) -> DescribeTopicPartitionsResponseTopic {
    DescribeTopicPartitionsResponseTopic::default()
        .with_error_code(code as i16)
        .with_name(Some(topic_name(name)))
        .with_is_internal(is_internal(name))
}

fn topic_name(name: &str) -> TopicName {
    TopicName(text(name.to_owned()))
}

fn wire(ids: &[felix_protocol::ids::BrokerId]) -> Vec<BrokerId> {
    ids.iter().map(|id| BrokerId(id.0)).collect()
}

#[cfg(test)]
mod tests {
    use felix_protocol::messages::describe_topic_partitions_request::{Cursor as From, TopicRequest};

    use super::*;
    use crate::admin::testing;

    /// Topic names with the numbers of their partitions, or the error; and the cursor.
    type Told = (Vec<(String, i16, Vec<i32>)>, Option<(String, i32)>);

    fn ask(view: &View, topics: &[&str], cursor: Option<(&str, i32)>, most: i32) -> Told {
        let topics = topics.iter().map(|name| TopicRequest::default().with_name(topic_name(name))).collect();
        let cursor = cursor
            .map(|(name, at)| From::default().with_topic_name(topic_name(name)).with_partition_index(at));
        let request = DescribeTopicPartitionsRequest::default().with_topics(topics).with_cursor(cursor);
        let told = Source { view, listener: "PLAINTEXT", not_leading: &[] };
        let response = describe(told, &request, most);
        let topics = response.topics.into_iter().map(|topic| {
            let partitions = topic.partitions.iter().map(|one| one.partition_index).collect();
            (topic.name.unwrap().to_string(), topic.error_code, partitions)
        });
        let next = response.next_cursor.map(|next| (next.topic_name.to_string(), next.partition_index));
        (topics.collect(), next)
    }

    fn line(name: &str, partitions: &[i32]) -> (String, i16, Vec<i32>) {
        (name.to_owned(), 0, partitions.to_vec())
    }

    #[test]
    fn all_topics_page_by_page() {
        let view = testing::view_with(&[("b", 3), ("a", 2), ("c", 1)]);
        let all = vec![line("a", &[0, 1]), line("b", &[0, 1, 2]), line("c", &[0])];
        assert_eq!(ask(&view, &[], None, 2000), (all, None));
        assert_eq!(ask(&view, &[], None, 1), (vec![line("a", &[0])], Some(("a".to_owned(), 1))));
        assert_eq!(ask(&view, &[], None, 2), (vec![line("a", &[0, 1])], Some(("b".to_owned(), 0))));
        let second = (vec![line("b", &[2]), line("c", &[0])], None);
        assert_eq!(ask(&view, &[], Some(("b", 2)), 2), second);
        // The cursor's topic was deleted meanwhile.
        assert_eq!(ask(&view, &[], Some(("bb", 7)), 5), (vec![line("c", &[0])], None));
    }

    #[test]
    fn a_broker_that_leads_nothing_now_is_not_named() {
        let view = testing::view_with(&[("a", 1)]);
        let topics = vec![TopicRequest::default().with_name(topic_name("a"))];
        let request = DescribeTopicPartitionsRequest::default().with_topics(topics);
        let leader = |not_leading: &[_]| {
            let told = Source { view: &view, listener: "PLAINTEXT", not_leading };
            let response = describe(told, &request, 10);
            let partition = &response.topics[0].partitions[0];
            (partition.error_code, partition.leader_id.0)
        };
        let own = view.topics().find_map(|topic| view.partitions_of(&topic.id).next()?.leader_id()).unwrap();
        assert_eq!(leader(&[]), (0, own.0));
        let other = felix_protocol::ids::BrokerId(own.0 + 1);
        assert_eq!(leader(&[other]), (0, own.0));
        assert_eq!(leader(&[own]), (ErrorCode::LeaderNotAvailable as i16, -1));
    }

    #[test]
    fn named_topics_sorted_with_those_that_are_not_there() {
        let view = testing::view_with(&[("b", 1), ("a", 1)]);
        let missing = |name: &str, code: ErrorCode| (name.to_owned(), code as i16, vec![]);
        let told = vec![
            line("a", &[0]),
            line("b", &[0]),
            missing("b c", ErrorCode::InvalidTopicException),
            missing("d", ErrorCode::UnknownTopicOrPartition),
        ];
        assert_eq!(ask(&view, &["d", "b", "a", "b c", "b"], None, 10), (told, None));
    }

    #[test]
    fn a_cursor_must_make_sense() {
        let view = testing::view_with(&[("b", 1), ("a", 1)]);
        let (told, next) = ask(&view, &["a", "b"], Some(("aa", 0)), 10);
        assert!(told.iter().all(|(_, code, _)| *code == ErrorCode::InvalidRequest as i16));
        assert_eq!((told.len(), next), (2, None));
        let (told, _) = ask(&view, &["a", "b"], Some(("a", -1)), 10);
        assert!(told.iter().all(|(_, code, _)| *code == ErrorCode::InvalidRequest as i16));
        assert_eq!(ask(&view, &["a", "b"], Some(("b", 0)), 10), (vec![line("b", &[0])], None));
    }
}
