//! DeleteRecords: moves the start of partitions' logs up.
//!
//! - -1 means the high watermark: everything that consumers can see goes.
//! - The offset may lie inside a batch: the log start is exact, though the batch's bytes stay until its segment goes.
//! - Answered once the new start is durable: it holds after a crash, on every copy.
//! - Records of internal topics are not deleted, nor those of a topic that is only compacted (POLICY_VIOLATION).
//!
//! Differences from Apache Kafka: a partition that is named again is refused (INVALID_REQUEST); Kafka takes the last.

use std::collections::HashSet;
use std::sync::Arc;

use felix_cluster::topics::is_internal;
use felix_cluster::view::View;
use felix_partition::copy::{DeleteRecordsError, DeleteTo};
use felix_protocol::error_code::ErrorCode;
use felix_protocol::ids::Offset;
use felix_protocol::messages::delete_records_response::{
    DeleteRecordsPartitionResult, DeleteRecordsTopicResult,
};
use felix_protocol::messages::{ApiKey, DeleteRecordsRequest, DeleteRecordsResponse};
use felix_protocol::time::Clock;
use tokio::time::timeout;

use super::list_offsets::lead;
use super::{Answer, Api, Call, Class, Handled};
use crate::admin::patience;
use crate::node::Node;
use crate::partitions;
use crate::wire_code::WireCode;

pub const API: Api = Api {
    key: ApiKey::DeleteRecords,
    oldest: 0,
    newest: 2,
    listed_from: 0,
    class: Class::Admin,
    start: handle,
};

/// Kafka's "up to the high watermark".
const MARK: i64 = -1;

type Outcome = Result<partitions::Answer<Offset, DeleteRecordsError>, ErrorCode>;

fn handle(node: &Arc<Node>, call: Call) -> Handled {
    let request: DeleteRecordsRequest = call.decode()?;
    let view = node.view();
    let mut seen = HashSet::new();
    // All of them are on their way before the first is awaited.
    let topics: Vec<_> = request
        .topics
        .into_iter()
        .map(|topic| {
            let partitions: Vec<(i32, Outcome)> = topic
                .partitions
                .iter()
                .map(|one| {
                    let index = one.partition_index;
                    let outcome = if seen.insert((topic.name.clone(), index)) {
                        start(node, &view, &topic.name, index, one.offset)
                    } else {
                        Err(ErrorCode::InvalidRequest)
                    };
                    (index, outcome)
                })
                .collect();
            (topic.name, partitions)
        })
        .collect();
    let clock = node.clock;
    let deadline = clock.now().after(patience(request.timeout_ms));
    Answer::later(async move {
        let mut response = DeleteRecordsResponse::default();
        for (name, partitions) in topics {
            let mut topic = DeleteRecordsTopicResult::default().with_name(name);
            for (index, outcome) in partitions {
                let outcome = match outcome {
                    Err(code) => Err(code),
                    Ok(answer) => match timeout(deadline.since(clock.now()), answer).await {
                        Ok(answer) => answer.map_err(|error| error.code()),
                        Err(_) => Err(ErrorCode::RequestTimedOut),
                    },
                };
                let (start, code) = match outcome {
                    Ok(start) => (start, ErrorCode::None),
                    Err(code) => (-1, code),
                };
                let result = DeleteRecordsPartitionResult::default()
                    .with_partition_index(index)
                    .with_low_watermark(start)
                    .with_error_code(code as i16);
                topic.partitions.push(result);
            }
            response.topics.push(topic);
        }
        call.reply(&response)
    })
}

fn start(node: &Node, view: &View, topic: &str, index: i32, offset: i64) -> Outcome {
    let handle = lead(node, view, topic, index);
    // An unknown topic first, as in Kafka: an internal one may not be there yet.
    if is_internal(topic) && !matches!(handle, Err(ErrorCode::UnknownTopicOrPartition)) {
        return Err(ErrorCode::InvalidTopicException);
    }
    let to = match offset {
        MARK => DeleteTo::Mark,
        offset => DeleteTo::Offset(offset),
    };
    Ok(handle?.delete_records(to))
}
