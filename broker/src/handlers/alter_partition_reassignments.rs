//! AlterPartitionReassignments: moves partitions' replicas to other brokers, or cancels that.
//!
//! - Null replicas cancel the move under way; a list begins one, in place of what is under way.
//! - 1: a client that does not allow it is refused another number of replicas (INVALID_REPLICATION_FACTOR).
//! - Answered when it is written down: the partition is listed by ListPartitionReassignments until its new copies are level.
//!   What needs no copying (another order, a partition that was never opened) is done at once.
//!
//! Differences from Apache Kafka: cancelling ends at the replicas that were there before the first move, also where a
//! second has replaced it (decision 17); it never needs an unclean election.

use std::sync::Arc;

use felix_cluster::reassign;
use felix_cluster::view::View;
use felix_control::agent::{AdminError, Target};
use felix_protocol::error_code::ErrorCode;
use felix_protocol::ids::{BrokerId, PartitionId};
use felix_protocol::messages::alter_partition_reassignments_request::ReassignableTopic;
use felix_protocol::messages::alter_partition_reassignments_response::{
    ReassignablePartitionResponse, ReassignableTopicResponse,
};
use felix_protocol::messages::{
    AlterPartitionReassignmentsRequest, AlterPartitionReassignmentsResponse, ApiKey,
};

use super::{Answer, Api, Call, Class, Handled, Reply, text};
use crate::admin::Refused;
use crate::node::Node;
use crate::wire_code::WireCode;

pub const API: Api = Api {
    key: ApiKey::AlterPartitionReassignments,
    oldest: 0,
    newest: 1,
    listed_from: 0,
    class: Class::Admin,
    start: handle,
};

fn handle(node: &Arc<Node>, call: Call) -> Handled {
    let request: AlterPartitionReassignmentsRequest = call.decode()?;
    let node = Arc::clone(node);
    Answer::later(async move { alter(&node, &call, request).await })
}

async fn alter(
    node: &Node,
    call: &Call,
    request: AlterPartitionReassignmentsRequest,
) -> Result<Reply, Reply> {
    let may_change_factor = call.version() == 0 || request.allow_replication_factor_change;
    let view = match node.agent.catch_up().await {
        Ok(view) => view,
        Err(error) => {
            let response = AlterPartitionReassignmentsResponse::default();
            let why = Some(text(error.to_string()));
            return call.reply(&response.with_error_code(error.code() as i16).with_error_message(why));
        }
    };
    let wanted = wanted(&view, &request.topics);
    let results = node.agent.alter_reassignments(wanted, may_change_factor).await;
    let response = AlterPartitionReassignmentsResponse::default()
        .with_error_message(None)
        .with_responses(answer(&view, request.topics, results));
    call.reply(&if call.version() >= 1 {
        response.with_allow_replication_factor_change(may_change_factor)
    } else {
        response
    })
}

/// The partitions of topics that there are, in the order of the request.
fn wanted(view: &View, topics: &[ReassignableTopic]) -> Vec<(PartitionId, Target)> {
    let mut wanted = Vec::new();
    for topic in topics {
        let Some(found) = view.topic_named(&topic.name) else { continue };
        for one in &topic.partitions {
            let target = one.replicas.as_ref();
            let target = target.map(|ids| ids.iter().map(|id| BrokerId(id.0)).collect());
            wanted.push((PartitionId { topic: found.id, index: one.partition_index }, target));
        }
    }
    wanted
}

/// The results, as many as partitions were wanted from the same view.
fn answer(
    view: &View,
    topics: Vec<ReassignableTopic>,
    results: Vec<Result<(), AdminError<reassign::Refused>>>,
) -> Vec<ReassignableTopicResponse> {
    let mut results = results.into_iter();
    let mut answer = Vec::with_capacity(topics.len());
    for topic in topics {
        let known = view.topic_named(&topic.name).is_some();
        let partitions = topic.partitions.iter().map(|one| {
            let result = if known { results.next() } else { None };
            let refused = match result {
                Some(Ok(())) => None,
                Some(Err(error)) => Some(Refused::from_admin(&error)),
                None => Some(Refused::new(ErrorCode::UnknownTopicOrPartition, "there is no such topic")),
            };
            partition_answer(one.partition_index, refused)
        });
        let partitions = partitions.collect();
        answer.push(ReassignableTopicResponse::default().with_name(topic.name).with_partitions(partitions));
    }
    answer
}

fn partition_answer(index: i32, refused: Option<Refused>) -> ReassignablePartitionResponse {
    let answer =
        ReassignablePartitionResponse::default().with_partition_index(index).with_error_message(None);
    match refused {
        None => answer,
        Some(refused) => {
            answer.with_error_code(refused.code as i16).with_error_message(refused.message.map(text))
        }
    }
}

#[cfg(test)]
mod tests {
    use felix_protocol::messages::TopicName;
    use felix_protocol::messages::alter_partition_reassignments_request::ReassignablePartition;

    use super::*;
    use crate::admin::testing;

    fn topic(name: &'static str, partitions: &[(i32, Option<&[i32]>)]) -> ReassignableTopic {
        let wire = |ids: &[i32]| ids.iter().map(|id| felix_protocol::messages::BrokerId(*id)).collect();
        let partitions = partitions.iter().map(|(index, replicas)| {
            ReassignablePartition::default().with_partition_index(*index).with_replicas(replicas.map(wire))
        });
        ReassignableTopic::default().with_name(TopicName(text(name))).with_partitions(partitions.collect())
    }

    #[test]
    fn each_partition_is_answered_as_it_was_named() {
        let view = testing::view_with(&[("a", 2)]);
        let topics = vec![topic("b", &[(0, Some(&[1]))]), topic("a", &[(1, Some(&[2, 1])), (0, None)])];
        let wanted = wanted(&view, &topics);
        assert_eq!(wanted.len(), 2);
        assert_eq!(wanted[0].1, Some(vec![BrokerId(2), BrokerId(1)]));
        assert_eq!((wanted[1].0.index, &wanted[1].1), (0, &None));
        let results = vec![Ok(()), Err(AdminError::Refused(reassign::Refused::NotInProgress))];
        let told = answer(&view, topics, results);
        let codes = |at: usize| -> Vec<(i32, i16)> {
            told[at].partitions.iter().map(|one| (one.partition_index, one.error_code)).collect()
        };
        assert_eq!(codes(0), [(0, ErrorCode::UnknownTopicOrPartition as i16)]);
        assert_eq!(codes(1), [(1, 0), (0, ErrorCode::NoReassignmentInProgress as i16)]);
    }
}
