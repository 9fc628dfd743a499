//! OffsetDelete: an operator removes committed offsets of topics that the group does not consume.
//!
//! Differences from Apache Kafka: none known.

use std::sync::Arc;

use felix_coordinator::reply::PartitionResults;
use felix_coordinator::request::DeleteOffsets;
use felix_coordinator::{GroupError, Reply as GroupReply, Request};
use felix_protocol::error_code::ErrorCode;
use felix_protocol::messages::offset_delete_response::{
    OffsetDeleteResponsePartition, OffsetDeleteResponseTopic,
};
use felix_protocol::messages::{ApiKey, OffsetDeleteRequest, OffsetDeleteResponse, StrBytes, TopicName};

use super::{Answer, Api, Call, Class, Handled};
use crate::node::Node;
use crate::wire_code::WireCode;

pub const API: Api = Api {
    key: ApiKey::OffsetDelete,
    oldest: 0,
    newest: 0,
    listed_from: 0,
    class: Class::Groups,
    start: handle,
};

fn handle(node: &Arc<Node>, call: Call) -> Handled {
    let request: OffsetDeleteRequest = call.decode()?;
    let group: Arc<str> = Arc::from(&**request.group_id);
    let view = node.view();
    let mut unknown: PartitionCodes = Vec::new();
    let mut topics = Vec::new();
    for topic in &request.topics {
        let name: Arc<str> = Arc::from(&**topic.name);
        let count = view.topic_named(&topic.name).map_or(0, |found| found.partition_count);
        let indexes = topic.partitions.iter().map(|partition| partition.partition_index);
        let (known, missing): (Vec<i32>, Vec<i32>) = indexes.partition(|index| (0..count).contains(index));
        let missing = missing.into_iter().map(|index| (index, ErrorCode::UnknownTopicOrPartition)).collect();
        unknown.push((Arc::clone(&name), missing));
        topics.push((name, known));
    }
    let request = DeleteOffsets { group: Arc::clone(&group), topics };
    match node.coordinators.ask(&group, Request::DeleteOffsets(request)) {
        Err(error) => call.answer(&refused(error.code())),
        Ok(asked) => Answer::later(async move {
            let response = match asked.await {
                Ok(GroupReply::DeleteOffsets(Ok(results))) => answered(results, unknown),
                Ok(GroupReply::DeleteOffsets(Err(error))) => refused(error.code()),
                Ok(_) => refused(ErrorCode::UnknownServerError),
                Err(error) => refused(error.code()),
            };
            call.reply(&response)
        }),
    }
}

/// Codes by topic and partition.
type PartitionCodes = Vec<(Arc<str>, Vec<(i32, ErrorCode)>)>;

/// Both lists have the topics of the request, in its order.
fn answered(results: PartitionResults, unknown: PartitionCodes) -> OffsetDeleteResponse {
    let code = |result: Result<(), GroupError>| result.err().map_or(ErrorCode::None, |error| error.code());
    let topics = results.into_iter().zip(unknown).map(|((name, known), (_, unknown))| {
        let known = known.into_iter().map(|(index, result)| (index, code(result)));
        let partitions = known.chain(unknown).map(|(index, code)| {
            OffsetDeleteResponsePartition::default().with_partition_index(index).with_error_code(code as i16)
        });
        OffsetDeleteResponseTopic::default()
            .with_name(TopicName(StrBytes::from_string(name.to_string())))
            .with_partitions(partitions.collect())
    });
    OffsetDeleteResponse::default().with_topics(topics.collect())
}

fn refused(code: ErrorCode) -> OffsetDeleteResponse {
    OffsetDeleteResponse::default().with_error_code(code as i16)
}
