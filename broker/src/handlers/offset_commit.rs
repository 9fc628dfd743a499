//! OffsetCommit: a group's positions are stored.
//!
//! - 2 to 4: the client may say for how long. 5 and later: the broker's retention, counted from when the group became
//!   empty. 6: leader epochs. 7: static members. 9: a group that does not exist is GROUP_ID_NOT_FOUND (before:
//!   ILLEGAL_GENERATION). 10: topics by id.
//! - Partitions that do not exist are refused one by one (UNKNOWN_TOPIC_OR_PARTITION, by id UNKNOWN_TOPIC_ID), and so
//!   is metadata that is too long; everything else of the request is refused or stored as a whole.
//! - The group without a name may store offsets, as in Kafka.
//!
//! Differences from Apache Kafka: none known.

use std::sync::Arc;

use felix_cluster::view::{TopicView, View};
use felix_coordinator::request::{CommitOffsets, CommitPartition};
use felix_coordinator::{GroupError, Reply as GroupReply};
use felix_protocol::error_code::ErrorCode;
use felix_protocol::ids::TopicId;
use felix_protocol::messages::offset_commit_request::{
    OffsetCommitRequestPartition, OffsetCommitRequestTopic,
};
use felix_protocol::messages::offset_commit_response::{
    OffsetCommitResponsePartition, OffsetCommitResponseTopic,
};
use felix_protocol::messages::offsets::OffsetCommit;
use felix_protocol::messages::{ApiKey, OffsetCommitRequest, OffsetCommitResponse};

use super::{Answer, Api, Call, Class, Handled};
use crate::node::Node;
use crate::wire_code::WireCode;

pub const API: Api = Api {
    key: ApiKey::OffsetCommit,
    oldest: 2,
    newest: 10,
    listed_from: 2,
    class: Class::Groups,
    start: handle,
};

fn handle(node: &Arc<Node>, call: Call) -> Handled {
    let OffsetCommit(request) = call.decode()?;
    let version = call.version();
    let mut verdicts = Vec::new();
    let view = node.view();
    let nothing_known = sort(&request, version, &view, &mut verdicts).is_empty();
    if nothing_known {
        return call.answer(&answered(&request, version, &verdicts, Ok(Vec::new())));
    }
    let group: Arc<str> = Arc::from(&**request.group_id);
    let commit = |view: &View| {
        verdicts.clear();
        let topics = sort(&request, version, view, &mut verdicts);
        wanted(&request, version, topics)
    };
    match node.coordinators.commit(&group, commit) {
        Err(error) => call.answer(&answered(&request, version, &verdicts, Err(error.code()))),
        Ok(asked) => Answer::later(async move {
            let results = match asked.await {
                Ok(GroupReply::Commit(Ok(results))) => {
                    Ok(results.into_iter().flat_map(|(_, of_topic)| of_topic).map(|(_, one)| one).collect())
                }
                Ok(GroupReply::Commit(Err(error))) => Err(error.code()),
                Ok(_) => Err(ErrorCode::UnknownServerError),
                Err(error) => Err(error.code()),
            };
            call.reply(&answered(&request, version, &verdicts, results))
        }),
    }
}

/// The partitions that exist; `verdicts` says of every partition of the request why it does not.
fn sort(
    request: &OffsetCommitRequest,
    version: i16,
    view: &View,
    verdicts: &mut Vec<Option<ErrorCode>>,
) -> Vec<(Arc<str>, Vec<CommitPartition>)> {
    let mut topics = Vec::new();
    for topic in &request.topics {
        let found = find(topic, version, view);
        let mut known = Vec::with_capacity(topic.partitions.len());
        for partition in &topic.partitions {
            let exists = match &found {
                Ok(found) if (0..found.partition_count).contains(&partition.partition_index) => Ok(()),
                Ok(_) => Err(ErrorCode::UnknownTopicOrPartition),
                Err(code) => Err(*code),
            };
            if exists.is_ok() {
                known.push(position(partition, version));
            }
            verdicts.push(exists.err());
        }
        if let Ok(found) = found
            && !known.is_empty()
        {
            topics.push((Arc::clone(&found.name), known));
        }
    }
    topics
}

fn find<'a>(
    topic: &OffsetCommitRequestTopic,
    version: i16,
    view: &'a View,
) -> Result<&'a TopicView, ErrorCode> {
    let found = if version >= 10 {
        view.topic(&TopicId(topic.topic_id)).ok_or(ErrorCode::UnknownTopicId)
    } else {
        view.topic_named(&topic.name).ok_or(ErrorCode::UnknownTopicOrPartition)
    };
    found.map(|topic| &**topic)
}

fn position(partition: &OffsetCommitRequestPartition, version: i16) -> CommitPartition {
    CommitPartition {
        partition: partition.partition_index,
        offset: partition.committed_offset,
        leader_epoch: if version >= 6 { partition.committed_leader_epoch } else { -1 },
        metadata: Arc::from(partition.committed_metadata.as_deref().unwrap_or_default()),
    }
}

fn wanted(
    request: &OffsetCommitRequest,
    version: i16,
    topics: Vec<(Arc<str>, Vec<CommitPartition>)>,
) -> CommitOffsets {
    let retention = request.retention_time_ms;
    CommitOffsets {
        group: Arc::from(&**request.group_id),
        member: Arc::from(&*request.member_id),
        instance: request.group_instance_id.as_deref().map(Arc::from),
        generation: request.generation_id_or_member_epoch,
        retention_ms: (version <= 4 && retention >= 0).then_some(retention),
        knows_group_not_found: version >= 9,
        topics,
    }
}

/// Every partition of the request in its order: those that do not exist with their verdict, the others with what
/// the group said of them, or of all.
fn answered(
    request: &OffsetCommitRequest,
    version: i16,
    verdicts: &[Option<ErrorCode>],
    results: Result<Vec<Result<(), GroupError>>, ErrorCode>,
) -> OffsetCommitResponse {
    let mut verdicts = verdicts.iter();
    let all = results.as_ref().err().copied();
    let mut results = results.unwrap_or_default().into_iter();
    let topics = request.topics.iter().map(|topic| {
        let partitions = topic.partitions.iter().map(|partition| {
            let code = match (verdicts.next().copied().flatten(), all) {
                (Some(missing), _) => missing,
                (None, Some(code)) => code,
                (None, None) => match results.next() {
                    Some(Ok(())) => ErrorCode::None,
                    Some(Err(error)) => error.code(),
                    None => ErrorCode::UnknownServerError,
                },
            };
            OffsetCommitResponsePartition::default()
                .with_partition_index(partition.partition_index)
                .with_error_code(code as i16)
        });
        let answer = OffsetCommitResponseTopic::default().with_partitions(partitions.collect());
        if version >= 10 {
            answer.with_topic_id(topic.topic_id)
        } else {
            answer.with_name(topic.name.clone())
        }
    });
    OffsetCommitResponse::default().with_topics(topics.collect())
}

#[cfg(test)]
mod tests {
    use super::*;
    use felix_protocol::messages::{StrBytes, TopicName};

    #[test]
    fn each_partition_gets_its_own_word() {
        let partitions = (0..3).map(|index| {
            OffsetCommitRequestPartition::default().with_partition_index(index).with_committed_offset(5)
        });
        let topic = OffsetCommitRequestTopic::default()
            .with_name(TopicName(StrBytes::from_static_str("t")))
            .with_partitions(partitions.collect());
        let request = OffsetCommitRequest::default().with_topics(vec![topic]);
        let verdicts = [None, Some(ErrorCode::UnknownTopicOrPartition), None];
        let codes = |results| {
            let response = answered(&request, 8, &verdicts, results);
            let partitions = &response.topics[0].partitions;
            partitions.iter().map(|partition| partition.error_code).collect::<Vec<_>>()
        };
        assert_eq!(codes(Ok(vec![Ok(()), Err(GroupError::MetadataTooLarge)])), [0, 3, 12]);
        assert_eq!(codes(Err(ErrorCode::IllegalGeneration)), [22, 3, 22]);
    }
}
