//! ListOffsets: where a partition begins and ends, and which record has a timestamp.
//!
//! - -1 the end that the client may read to, -2 the log start, -3 (7 and later) the record with the greatest
//!   timestamp, -4 (8) the start on local disk, which is the log start, -5 (9) the end of what is in remote storage and
//!   -6 (11) the start of what waits for it: there is none, so -1.
//! - A timestamp finds the first record, inside compressed batches too, that is not older.
//! - 4 and later: leader epochs are compared and answered.
//! - After a takeover the end is not known until the mark has reached the log end: OFFSET_NOT_AVAILABLE (5 and
//!   later) or LEADER_NOT_AVAILABLE. Nor is it known without a lease: NOT_LEADER_OR_FOLLOWER.

use std::collections::HashSet;
use std::sync::Arc;

use felix_cluster::view::View;
use felix_protocol::error_code::ErrorCode;
use felix_protocol::ids::{Generation, Offset, PartitionId};
use felix_protocol::messages::list_offsets_request::ListOffsetsPartition;
use felix_protocol::messages::list_offsets_response::{
    ListOffsetsPartitionResponse, ListOffsetsTopicResponse,
};
use felix_protocol::messages::{ApiKey, ListOffsetsRequest, ListOffsetsResponse, TopicName};

use super::{Answer, Api, Call, Class, Handled, Reply};
use crate::node::Node;
use crate::partitions::{Isolation, PartitionHandle};
use crate::wire_code::WireCode;

pub const API: Api = Api {
    key: ApiKey::ListOffsets,
    oldest: 1,
    newest: 11,
    listed_from: 1,
    class: Class::Records,
    start: handle,
};

const LATEST: i64 = -1;
const EARLIEST: i64 = -2;
const MAX_TIMESTAMP: i64 = -3;
const EARLIEST_LOCAL: i64 = -4;
const LATEST_TIERED: i64 = -5;
const EARLIEST_PENDING_UPLOAD: i64 = -6;

fn handle(node: &Arc<Node>, call: Call) -> Handled {
    let request: ListOffsetsRequest = call.decode()?;
    let reads = request
        .topics
        .iter()
        .flat_map(|topic| &topic.partitions)
        .any(|partition| partition.timestamp >= 0 || partition.timestamp == MAX_TIMESTAMP);
    if !reads {
        return list(node, &call, request).map(Answer::Now);
    }
    // Looking for a timestamp reads batches.
    let readers = node.readers.clone();
    let node = Arc::clone(node);
    Answer::later(async move {
        let listed = readers.run("list-offsets", move || list(&node, &call, request)).await;
        listed.unwrap_or_else(|| Err(Reply::Close("a look-up was given up".to_owned())))
    })
}

fn list(node: &Node, call: &Call, request: ListOffsetsRequest) -> Result<Reply, Reply> {
    let view = node.view();
    let isolation = match request.isolation_level {
        1 => Isolation::ReadCommitted,
        _ => Isolation::ReadUncommitted,
    };
    let mut seen = HashSet::new();
    let mut twice = HashSet::new();
    for topic in &request.topics {
        for partition in &topic.partitions {
            let key = (topic.name.clone(), partition.partition_index);
            if !seen.insert(key.clone()) {
                twice.insert(key);
            }
        }
    }
    let topics = request.topics.into_iter().map(|topic| {
        let partitions = topic.partitions.iter().map(|partition| {
            let index = partition.partition_index;
            let found = if twice.contains(&(topic.name.clone(), index)) {
                Err(ErrorCode::InvalidRequest)
            } else {
                find(node, &view, call.version(), &topic.name, partition, isolation)
            };
            let response = ListOffsetsPartitionResponse::default().with_partition_index(index);
            match found {
                Ok(found) => {
                    let epoch = if call.version() >= 4 { found.epoch } else { -1 };
                    response
                        .with_offset(found.offset)
                        .with_timestamp(found.timestamp)
                        .with_leader_epoch(epoch)
                }
                Err(code) => response.with_error_code(code as i16).with_offset(-1).with_timestamp(-1),
            }
        });
        let partitions = partitions.collect();
        ListOffsetsTopicResponse::default().with_name(topic.name).with_partitions(partitions)
    });
    call.reply(&ListOffsetsResponse::default().with_topics(topics.collect()))
}

struct Position {
    offset: Offset,
    timestamp: i64,
    epoch: i32,
}

impl Position {
    const NONE: Position = Position { offset: -1, timestamp: -1, epoch: -1 };

    fn at(offset: Offset, generation: Option<Generation>) -> Position {
        Position { offset, timestamp: -1, epoch: generation.map_or(-1, Generation::leader_epoch) }
    }
}

fn find(
    node: &Node,
    view: &View,
    version: i16,
    topic: &TopicName,
    wanted: &ListOffsetsPartition,
    isolation: Isolation,
) -> Result<Position, ErrorCode> {
    let handle = readable(node, view, topic, wanted.partition_index)?;
    check_epoch(&handle, wanted.current_leader_epoch)?;
    let oldest = match wanted.timestamp {
        MAX_TIMESTAMP => 7,
        EARLIEST_LOCAL => 8,
        LATEST_TIERED => 9,
        EARLIEST_PENDING_UPLOAD => 11,
        timestamp if timestamp < EARLIEST_PENDING_UPLOAD => i16::MAX,
        _ => 1,
    };
    if version < oldest {
        return Err(ErrorCode::UnsupportedVersion);
    }
    let needs_end = matches!(wanted.timestamp, LATEST | MAX_TIMESTAMP) || wanted.timestamp >= 0;
    // What is below the mark stays so; where the end is, another leader may know better by now.
    if needs_end && !handle.is_leader() {
        return Err(ErrorCode::NotLeaderOrFollower);
    }
    if needs_end && !handle.latest_known() {
        return Err(unknown_end(version));
    }
    let end = handle.visible_end(isolation);
    let reader = handle.reader();
    let found = match wanted.timestamp {
        LATEST => {
            let newest = reader.generations().latest().map(|(generation, _)| generation);
            return Ok(Position::at(end, newest.or(Some(handle.generation()))));
        }
        EARLIEST | EARLIEST_LOCAL => {
            let start = handle.log_start();
            let generation = reader.generation_at(start).unwrap_or_else(|| handle.generation());
            return Ok(Position::at(start, Some(generation)));
        }
        LATEST_TIERED | EARLIEST_PENDING_UPLOAD => return Ok(Position::NONE),
        MAX_TIMESTAMP => reader.max_timestamp(end),
        timestamp => reader.offset_for_timestamp(timestamp, end),
    };
    let found = found.map_err(|error| {
        tracing::error!(partition = %handle.id(), %error, "a look-up by timestamp failed");
        error.code()
    })?;
    Ok(found.map_or(Position::NONE, |found| Position {
        timestamp: found.timestamp,
        ..Position::at(found.offset, found.generation)
    }))
}

/// The partition, if this broker leads it.
pub fn lead(node: &Node, view: &View, topic: &str, index: i32) -> Result<PartitionHandle, ErrorCode> {
    let handle = readable(node, view, topic, index)?;
    if handle.is_leader() { Ok(handle) } else { Err(ErrorCode::NotLeaderOrFollower) }
}

/// The partition, if this broker leads it, or did until its lease expired a moment ago.
fn readable(node: &Node, view: &View, topic: &str, index: i32) -> Result<PartitionHandle, ErrorCode> {
    let topic = view.topic_named(topic).ok_or(ErrorCode::UnknownTopicOrPartition)?;
    if !(0..topic.partition_count).contains(&index) {
        return Err(ErrorCode::UnknownTopicOrPartition);
    }
    let id = PartitionId { topic: topic.id, index };
    node.partitions.get(&id).filter(PartitionHandle::may_read).ok_or(ErrorCode::NotLeaderOrFollower)
}

/// Compares the leader epoch that a client believes in with ours; -1 is no belief.
pub fn check_epoch(handle: &PartitionHandle, believed: i32) -> Result<(), ErrorCode> {
    let ours = handle.generation().leader_epoch();
    match believed {
        _ if believed < 0 || believed == ours => Ok(()),
        _ if believed < ours => Err(ErrorCode::FencedLeaderEpoch),
        _ => Err(ErrorCode::UnknownLeaderEpoch),
    }
}

/// What a client is told while nobody knows where the end is: that it should ask again. Older ones have no code of their own for it.
fn unknown_end(version: i16) -> ErrorCode {
    if version >= 5 { ErrorCode::OffsetNotAvailable } else { ErrorCode::LeaderNotAvailable }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn before_version_5_an_end_that_is_not_known_is_another_code() {
        assert_eq!(unknown_end(4), ErrorCode::LeaderNotAvailable);
        assert_eq!(unknown_end(5), ErrorCode::OffsetNotAvailable);
    }
}
