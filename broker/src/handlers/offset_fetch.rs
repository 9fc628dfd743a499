//! OffsetFetch: the positions that groups have stored.
//!
//! - 1 to 7: one group. 8 and later: several, each with its own error. Null topics (2 and later): all that have a
//!   position. 5: leader epochs. 7: "stable only", which changes nothing while there are no transactions. 10: topics
//!   by id.
//! - A partition without a position is -1 with empty metadata and no error, also in a group that does not exist.
//! - 1 has no place for the error of a group: it stands with each partition.
//! - What is answered is stored: the answer waits for commits that came before it.
//!
//! Differences from Apache Kafka: a group that is named twice is answered once.

use std::collections::HashSet;
use std::sync::Arc;

use felix_cluster::view::View;
use felix_coordinator::reply::{Fetched, FetchedTopic};
use felix_coordinator::request::FetchOffsets;
use felix_coordinator::{GroupError, Reply as GroupReply, Request};
use felix_protocol::error_code::ErrorCode;
use felix_protocol::ids::{TopicId, Uuid};
use felix_protocol::messages::offset_fetch_response::{
    OffsetFetchResponseGroup, OffsetFetchResponsePartition, OffsetFetchResponsePartitions,
    OffsetFetchResponseTopic, OffsetFetchResponseTopics,
};
use felix_protocol::messages::offsets::OffsetFetch;
use felix_protocol::messages::{ApiKey, GroupId, OffsetFetchResponse, StrBytes, TopicName};

use super::{Answer, Api, Call, Class, Handled};
use crate::coordinators::{Asked, Unavailable};
use crate::node::Node;
use crate::wire_code::WireCode;

pub const API: Api = Api {
    key: ApiKey::OffsetFetch,
    oldest: 1,
    newest: 10,
    listed_from: 1,
    class: Class::Groups,
    start: handle,
};

/// A topic of the request, by name or, from version 10 on, by id.
struct Wanted {
    name: StrBytes,
    id: Uuid,
    partitions: Vec<i32>,
}

/// One group's part of the request on its way.
struct Asking {
    group: GroupId,
    /// `None`: all topics.
    wanted: Option<Vec<Wanted>>,
    asked: Result<Asked, Unavailable>,
}

fn handle(node: &Arc<Node>, call: Call) -> Handled {
    let OffsetFetch(request) = call.decode()?;
    let version = call.version();
    let view = node.view();
    let stable = request.require_stable;
    let asking: Vec<Asking> = if version >= 8 {
        // Once each is enough: a small request must not ask for a huge answer.
        let mut seen = HashSet::new();
        let groups = request.groups.into_iter().filter(|group| seen.insert(group.group_id.clone()));
        let groups = groups.map(|group| {
            let topics = group.topics.map(|topics| {
                let topics = topics.into_iter().map(|topic| Wanted {
                    name: topic.name.0,
                    id: topic.topic_id,
                    partitions: topic.partition_indexes,
                });
                topics.collect()
            });
            ask(node, &view, version, group.group_id, topics, stable)
        });
        groups.collect()
    } else {
        let topics = request.topics.map(|topics| {
            let topics = topics.into_iter().map(|topic| Wanted {
                name: topic.name.0,
                id: Uuid::nil(),
                partitions: topic.partition_indexes,
            });
            topics.collect()
        });
        vec![ask(node, &view, version, request.group_id, topics, stable)]
    };
    Answer::later(async move {
        let mut groups = Vec::with_capacity(asking.len());
        for one in asking {
            let result = match one.asked {
                Ok(asked) => match asked.await {
                    Ok(GroupReply::Fetch(Ok(topics))) => Ok(topics),
                    Ok(GroupReply::Fetch(Err(error))) => Err(error.code()),
                    Ok(_) => Err(ErrorCode::UnknownServerError),
                    Err(error) => Err(unavailable(error)),
                },
                Err(error) => Err(unavailable(error)),
            };
            groups.push((one.group, one.wanted, result));
        }
        let response = if version >= 8 {
            let groups = groups.into_iter();
            let groups = groups.map(|(group, wanted, result)| told(group, wanted, result, version, &view));
            OffsetFetchResponse::default().with_groups(groups.collect())
        } else {
            // The one group that there was.
            let (wanted, result) = groups
                .pop()
                .map_or((None, Err(ErrorCode::UnknownServerError)), |(_, wanted, result)| (wanted, result));
            told_flat(wanted, result, version)
        };
        call.reply(&response)
    })
}

/// Consumers before 3.9 do not expect COORDINATOR_NOT_AVAILABLE here; NOT_COORDINATOR makes them look again.
fn unavailable(error: Unavailable) -> ErrorCode {
    match error {
        Unavailable::NotAvailable => ErrorCode::NotCoordinator,
        Unavailable::NotCoordinator | Unavailable::Loading => error.code(),
    }
}

fn ask(
    node: &Node,
    view: &View,
    version: i16,
    group: GroupId,
    wanted: Option<Vec<Wanted>>,
    require_stable: bool,
) -> Asking {
    let name: Arc<str> = Arc::from(&**group);
    let by_name = |wanted: &Wanted| {
        let topic = if version >= 10 {
            Arc::clone(&view.topic(&TopicId(wanted.id))?.name)
        } else {
            Arc::from(&*wanted.name)
        };
        Some((topic, wanted.partitions.clone()))
    };
    // Topics whose id is not known are not asked for.
    let topics = wanted.as_ref().map(|wanted| wanted.iter().filter_map(by_name).collect());
    let request = FetchOffsets { group: Arc::clone(&name), topics, require_stable };
    let asked = node.coordinators.ask(&name, Request::Fetch(request));
    Asking { group, wanted, asked }
}

type Partitions = Vec<(i32, Result<Option<Fetched>, GroupError>)>;

fn told(
    group: GroupId,
    wanted: Option<Vec<Wanted>>,
    result: Result<Vec<FetchedTopic>, ErrorCode>,
    version: i16,
    view: &View,
) -> OffsetFetchResponseGroup {
    let answer = OffsetFetchResponseGroup::default().with_group_id(group);
    let found = match result {
        Err(code) => return answer.with_error_code(code as i16),
        Ok(found) => found,
    };
    if version < 10 {
        let topics = found.into_iter().map(|topic| {
            OffsetFetchResponseTopics::default()
                .with_name(TopicName(StrBytes::from_string(topic.topic.to_string())))
                .with_partitions(topic.partitions.into_iter().map(partition).collect())
        });
        return answer.with_topics(topics.collect());
    }
    let by_id = |id: Uuid, partitions: Partitions| {
        OffsetFetchResponseTopics::default()
            .with_topic_id(id)
            .with_partitions(partitions.into_iter().map(partition).collect())
    };
    let topics = match wanted {
        // Positions of topics that are gone have no id to be told under.
        None => found
            .into_iter()
            .filter_map(|topic| Some(by_id(view.topic_named(&topic.topic)?.id.0, topic.partitions)))
            .collect(),
        Some(wanted) => {
            let mut found = found.into_iter();
            let known = |wanted: &Wanted| view.topic(&TopicId(wanted.id)).is_some();
            let topics = wanted.into_iter().map(|wanted| {
                if known(&wanted)
                    && let Some(topic) = found.next()
                {
                    return by_id(wanted.id, topic.partitions);
                }
                let refuse = |index| absent(index, ErrorCode::UnknownTopicId);
                OffsetFetchResponseTopics::default()
                    .with_topic_id(wanted.id)
                    .with_partitions(wanted.partitions.into_iter().map(refuse).collect())
            });
            topics.collect()
        }
    };
    answer.with_topics(topics)
}

fn partition((index, result): (i32, Result<Option<Fetched>, GroupError>)) -> OffsetFetchResponsePartitions {
    match result {
        Err(error) => absent(index, error.code()),
        Ok(None) => absent(index, ErrorCode::None),
        Ok(Some(found)) => OffsetFetchResponsePartitions::default()
            .with_partition_index(index)
            .with_committed_offset(found.offset)
            .with_committed_leader_epoch(found.leader_epoch)
            .with_metadata(Some(StrBytes::from_string(found.metadata.to_string()))),
    }
}

fn absent(index: i32, code: ErrorCode) -> OffsetFetchResponsePartitions {
    OffsetFetchResponsePartitions::default()
        .with_partition_index(index)
        .with_committed_offset(-1)
        .with_committed_leader_epoch(-1)
        .with_metadata(Some(StrBytes::default()))
        .with_error_code(code as i16)
}

fn told_flat(
    wanted: Option<Vec<Wanted>>,
    result: Result<Vec<FetchedTopic>, ErrorCode>,
    version: i16,
) -> OffsetFetchResponse {
    let answer = OffsetFetchResponse::default();
    let flat = |one: OffsetFetchResponsePartitions| {
        let answer = OffsetFetchResponsePartition::default()
            .with_partition_index(one.partition_index)
            .with_committed_offset(one.committed_offset)
            .with_metadata(one.metadata)
            .with_error_code(one.error_code);
        if version >= 5 { answer.with_committed_leader_epoch(one.committed_leader_epoch) } else { answer }
    };
    match result {
        Ok(found) => {
            let topics = found.into_iter().map(|topic| {
                OffsetFetchResponseTopic::default()
                    .with_name(TopicName(StrBytes::from_string(topic.topic.to_string())))
                    .with_partitions(topic.partitions.into_iter().map(|one| flat(partition(one))).collect())
            });
            answer.with_topics(topics.collect())
        }
        Err(code) if version >= 2 => answer.with_error_code(code as i16),
        Err(code) => {
            let topics = wanted.unwrap_or_default().into_iter().map(|topic| {
                let partitions = topic.partitions.into_iter().map(|index| flat(absent(index, code)));
                OffsetFetchResponseTopic::default()
                    .with_name(TopicName(topic.name))
                    .with_partitions(partitions.collect())
            });
            answer.with_topics(topics.collect())
        }
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    fn wanted() -> Option<Vec<Wanted>> {
        Some(vec![Wanted { name: StrBytes::from_static_str("t"), id: Uuid::nil(), partitions: vec![0, 1] }])
    }

    #[test]
    fn version_1_has_the_groups_error_with_each_partition() {
        let response = told_flat(wanted(), Err(ErrorCode::NotCoordinator), 1);
        assert_eq!(response.error_code, 0);
        let codes: Vec<i16> = response.topics[0].partitions.iter().map(|one| one.error_code).collect();
        assert_eq!(codes, [16, 16]);
        let response = told_flat(wanted(), Err(ErrorCode::NotCoordinator), 2);
        assert_eq!((response.error_code, response.topics.len()), (16, 0));
    }

    #[test]
    fn no_position_is_no_error() {
        let found = vec![FetchedTopic { topic: "t".into(), partitions: vec![(0, Ok(None))] }];
        let response = told_flat(wanted(), Ok(found), 7);
        let one = &response.topics[0].partitions[0];
        assert_eq!((one.committed_offset, one.committed_leader_epoch, one.error_code), (-1, -1, 0));
        assert_eq!(one.metadata.as_deref(), Some(""));
    }
}
