//! Produce: one batch a partition, into the partitions that this broker leads.
//!
//! - 0–2 are listed and refused by closing: librdkafka before 2.11 takes their absence for a broker without
//!   compression (KAFKA-18659).
//! - 3 and later: exactly one batch of format v2 a partition. 7: zstd. 8: errors name records and say why. 10: a
//!   refusal of leadership says who leads. 13: topics by id.
//! - Everything is handed to the partitions' lanes before this returns, so that the requests of one connection
//!   reach a partition in their order; the answers are awaited apart from that.
//! - acks=0 is answered by nothing; an error closes the connection, so that the client looks for the leader anew.
//!
//! Differences from Apache Kafka: transactions are not served yet, so transactional batches are refused
//! (INVALID_TXN_STATE).

use std::sync::Arc;
use std::time::Duration;

use felix_cluster::config::TopicConfig;
use felix_cluster::config::topic::{Compression, Timestamps as TopicTimestamps};
use felix_cluster::view::{TopicView, View};
use felix_partition::append::{Acks, Append, AppendError, Appended, Origin};
use felix_protocol::batch::compression::Codec;
use felix_protocol::batch::reader::Limits;
use felix_protocol::batch::validate::{RecordError, Rejection, Rules, Storage, Timestamps, validate};
use felix_protocol::error_code::ErrorCode;
use felix_protocol::ids::{PartitionId, TopicId};
use felix_protocol::messages::produce_request::{PartitionProduceData, TopicProduceData};
use felix_protocol::messages::produce_response::{
    BatchIndexAndErrorMessage, LeaderIdAndEpoch, NodeEndpoint, PartitionProduceResponse, TopicProduceResponse,
};
use felix_protocol::messages::{ApiKey, BrokerId, ProduceRequest, ProduceResponse, StrBytes};
use felix_protocol::time::Clock;

use super::{Answer, Api, Call, Class, Handled, Reply};
use crate::node::Node;
use crate::partitions::{self, PartitionHandle};
use crate::view::other_leader;
use crate::wire_code::WireCode;

pub const API: Api =
    Api { key: ApiKey::Produce, oldest: 3, newest: 13, listed_from: 0, class: Class::Records, start: handle };

/// The client id by which Kafka's own tools may write to internal topics.
const ADMIN_CLIENT: &str = "__admin_client";

/// How long a writer waits: as it says, and for others no longer than the broker's own limit, if it has one.
fn patience(acks: Option<Acks>, timeout_ms: i32, most_ms: Option<u64>) -> Duration {
    let asked = Duration::from_millis(u64::try_from(timeout_ms).unwrap_or(0));
    let most = most_ms.filter(|_| acks == Some(Acks::All));
    most.map_or(asked, |most| asked.min(Duration::from_millis(most)))
}

fn handle(node: &Arc<Node>, call: Call) -> Handled {
    let request: ProduceRequest = call.decode()?;
    let acks = match request.acks {
        0 => Some(Acks::None),
        1 => Some(Acks::Leader),
        -1 => Some(Acks::All),
        _ => None,
    };
    let view = node.view();
    let most = node.configs.broker(&view).producers.quorum_timeout_ms;
    let timeout = patience(acks, request.timeout_ms, most);
    let writing = Writing { node, call: &call, view: &view, acks, timeout };
    let topics: Vec<Topic> = request.topic_data.into_iter().map(|topic| writing.topic(topic)).collect();
    let silent = acks == Some(Acks::None);
    let node = Arc::clone(node);
    if topics.iter().all(Topic::is_done) {
        let done = topics.into_iter().map(Topic::now).collect();
        return answer(&node, &call, done, silent).map(Answer::Now);
    }
    Answer::later(async move {
        let mut done = Vec::with_capacity(topics.len());
        for topic in topics {
            done.push(topic.finish().await);
        }
        answer(&node, &call, done, silent)
    })
}

/// One request on its way into the lanes.
struct Writing<'a> {
    node: &'a Arc<Node>,
    call: &'a Call,
    view: &'a View,
    /// `None`: not a number that Kafka knows.
    acks: Option<Acks>,
    timeout: Duration,
}

/// A topic of the answer, its partitions in the order of the request.
struct Topic {
    response: TopicProduceResponse,
    partitions: Vec<Partition>,
}

enum Partition {
    Done(Outcome),
    Waiting {
        answer: partitions::Answer<Appended, AppendError>,
        id: PartitionId,
        index: i32,
        appended_at: i64,
    },
}

/// A partition's answer, with the partition if it is known.
struct Outcome {
    response: PartitionProduceResponse,
    id: Option<PartitionId>,
}

/// A refusal before anything was written.
struct Refused {
    code: ErrorCode,
    message: Option<String>,
    records: Vec<BatchIndexAndErrorMessage>,
}

impl Refused {
    fn new(code: ErrorCode, message: impl Into<String>) -> Refused {
        Refused { code, message: Some(message.into()), records: Vec::new() }
    }
}

impl From<ErrorCode> for Refused {
    fn from(code: ErrorCode) -> Refused {
        Refused { code, message: None, records: Vec::new() }
    }
}

impl Writing<'_> {
    fn topic(&self, data: TopicProduceData) -> Topic {
        let by_id = self.call.version() >= 13;
        let known = if by_id {
            self.view.topic(&TopicId(data.topic_id)).ok_or(ErrorCode::UnknownTopicId)
        } else {
            self.view.topic_named(&data.name).ok_or(ErrorCode::UnknownTopicOrPartition)
        };
        let config = known.as_ref().ok().map(|topic| self.node.configs.topic(self.view, topic));
        let partitions = data.partition_data.into_iter().map(|partition| {
            let id = known.as_ref().ok().map(|topic| PartitionId { topic: topic.id, index: partition.index });
            let index = partition.index;
            match (&known, &config) {
                (Ok(topic), Some(config)) => self
                    .partition(topic, config, partition)
                    .unwrap_or_else(|refused| self.refused(index, id, refused)),
                (Err(code), _) => self.refused(index, id, Refused::from(*code)),
                (Ok(_), None) => self.refused(index, id, Refused::from(ErrorCode::UnknownServerError)),
            }
        });
        let partitions = partitions.collect();
        let response = TopicProduceResponse::default().with_name(data.name).with_topic_id(data.topic_id);
        Topic { response, partitions }
    }

    fn partition(
        &self,
        topic: &TopicView,
        config: &TopicConfig,
        data: PartitionProduceData,
    ) -> Result<Partition, Refused> {
        let acks = self.acks.ok_or(ErrorCode::InvalidRequiredAcks)?;
        if topic.is_internal() && self.call.client_id() != ADMIN_CLIENT {
            return Err(Refused::new(
                ErrorCode::InvalidTopicException,
                "clients do not write to internal topics",
            ));
        }
        if !(0..topic.partition_count).contains(&data.index) {
            return Err(ErrorCode::UnknownTopicOrPartition.into());
        }
        let id = PartitionId { topic: topic.id, index: data.index };
        let led = self.node.partitions.get(&id).filter(PartitionHandle::is_leader);
        let handle = led.ok_or(ErrorCode::NotLeaderOrFollower)?;
        let records = data.records.unwrap_or_default();
        let rules = rules(config, self.call.version());
        let validated = validate(&records, &rules, self.node.clock.wall()).map_err(rejected)?;
        if validated.batch.header().is_transactional() {
            return Err(Refused::new(ErrorCode::InvalidTxnState, "transactions are not served yet"));
        }
        let appended_at = validated.appended_at.map_or(-1, |time| time.0);
        let packed_bytes = validated.batch.bytes().len();
        let append = Append {
            batch: validated.batch,
            acks,
            timeout: self.timeout,
            origin: Origin::Client,
            // A batch that was packed anew has a buffer of its own.
            frame_bytes: if validated.repacked { packed_bytes } else { self.call.backing },
        };
        Ok(Partition::Waiting { answer: handle.submit(append), id, index: data.index, appended_at })
    }

    fn refused(&self, index: i32, id: Option<PartitionId>, refused: Refused) -> Partition {
        let mut response = failure(index, refused.code);
        if self.call.version() >= 8 {
            response = response
                .with_record_errors(refused.records)
                .with_error_message(refused.message.map(StrBytes::from_string));
        }
        Partition::Done(Outcome { response, id })
    }
}

fn failure(index: i32, code: ErrorCode) -> PartitionProduceResponse {
    PartitionProduceResponse::default()
        .with_index(index)
        .with_error_code(code as i16)
        .with_base_offset(-1)
        .with_log_append_time_ms(-1)
        .with_log_start_offset(-1)
}

impl Topic {
    fn is_done(&self) -> bool {
        self.partitions.iter().all(|partition| matches!(partition, Partition::Done(_)))
    }

    /// The answer of a topic for which nothing is waited.
    fn now(self) -> (TopicProduceResponse, Vec<Outcome>) {
        let outcomes = self.partitions.into_iter().filter_map(|partition| match partition {
            Partition::Done(outcome) => Some(outcome),
            Partition::Waiting { .. } => None,
        });
        (self.response, outcomes.collect())
    }

    async fn finish(self) -> (TopicProduceResponse, Vec<Outcome>) {
        let mut outcomes = Vec::with_capacity(self.partitions.len());
        for partition in self.partitions {
            outcomes.push(match partition {
                Partition::Done(outcome) => outcome,
                Partition::Waiting { answer, id, index, appended_at } => {
                    let response = appended(index, answer.await, appended_at);
                    Outcome { response, id: Some(id) }
                }
            });
        }
        (self.response, outcomes)
    }
}

fn appended(index: i32, result: Result<Appended, AppendError>, appended_at: i64) -> PartitionProduceResponse {
    match result {
        Ok(appended) => {
            // A duplicate got its time when it was stored.
            let time =
                if appended.duplicate && appended_at >= 0 { appended.max_timestamp } else { appended_at };
            PartitionProduceResponse::default()
                .with_index(index)
                .with_base_offset(appended.base_offset)
                .with_log_append_time_ms(time)
                .with_log_start_offset(appended.log_start)
        }
        Err(error) => failure(index, error.code()),
    }
}

fn answer(
    node: &Node,
    call: &Call,
    topics: Vec<(TopicProduceResponse, Vec<Outcome>)>,
    silent: bool,
) -> Result<Reply, Reply> {
    let failed = topics.iter().flat_map(|(_, outcomes)| outcomes).find(|one| one.response.error_code != 0);
    if silent {
        return match failed {
            None => Ok(Reply::None),
            Some(one) => Err(Reply::Close(format!(
                "a write with acks=0 failed with code {} for partition {}",
                one.response.error_code, one.response.index
            ))),
        };
    }
    let mut response = ProduceResponse::default();
    let hints = failed.is_some() && call.version() >= 10;
    let mut leaders: Vec<felix_protocol::ids::BrokerId> = Vec::new();
    let view = hints.then(|| node.view());
    for (mut topic, outcomes) in topics {
        for mut outcome in outcomes {
            if let Some(view) = &view
                && outcome.response.error_code == ErrorCode::NotLeaderOrFollower as i16
                && let Some((leader, epoch)) = outcome.id.and_then(|id| other_leader(view, &id, node.id))
            {
                outcome.response.current_leader =
                    LeaderIdAndEpoch::default().with_leader_id(BrokerId(leader.0)).with_leader_epoch(epoch);
                if !leaders.contains(&leader) {
                    leaders.push(leader);
                }
            }
            topic.partition_responses.push(outcome.response);
        }
        response.responses.push(topic);
    }
    if let Some(view) = &view {
        for leader in leaders {
            if let Some(place) = Node::endpoint(view, leader, &call.client.listener) {
                let endpoint = NodeEndpoint::default()
                    .with_node_id(BrokerId(leader.0))
                    .with_host(StrBytes::from_string(place.host))
                    .with_port(i32::from(place.port))
                    .with_rack(place.rack.map(StrBytes::from_string));
                response.node_endpoints.push(endpoint);
            }
        }
    }
    call.reply(&response)
}

/// What a topic asks of the batches that producers send.
fn rules(config: &TopicConfig, version: i16) -> Rules {
    let max_message_bytes = config.max_message_bytes as usize;
    let packed = |codec, level| Storage::Packed { codec, level };
    Rules {
        max_message_bytes,
        limits: Limits {
            record_bytes: usize::try_from(config.max_decompressed_bytes).unwrap_or(usize::MAX),
            ..Limits::for_packed(max_message_bytes)
        },
        keys: config.compacts,
        timestamps: match config.timestamps {
            TopicTimestamps::Append => Timestamps::Append,
            TopicTimestamps::Create => Timestamps::Create {
                before_max_ms: config.timestamp_before_max_ms,
                after_max_ms: config.timestamp_after_max_ms,
            },
        },
        storage: match config.compression {
            Compression::Producer => Storage::AsProduced,
            Compression::Uncompressed => packed(Codec::None, 0),
            Compression::Gzip(level) => {
                packed(Codec::Gzip, level.and_then(|level| i32::try_from(level).ok()).unwrap_or(GZIP_LEVEL))
            }
            Compression::Snappy => packed(Codec::Snappy, 0),
            Compression::Lz4(level) => packed(Codec::Lz4, level),
            Compression::Zstd(level) => packed(Codec::Zstd, level),
        },
        zstd: version >= 7,
    }
}

/// Deflate's own default.
const GZIP_LEVEL: i32 = 6;

fn rejected(rejection: Rejection) -> Refused {
    let mut refused = Refused::new(rejection.code(), rejection.to_string());
    if let Rejection::Records(list) = &rejection {
        let line = |error: &RecordError| {
            BatchIndexAndErrorMessage::default()
                .with_batch_index(error.index)
                .with_batch_index_error_message(Some(StrBytes::from_string(error.reason.to_string())))
        };
        refused.records = list.errors.iter().map(line).collect();
    }
    refused
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn the_brokers_limit_shortens_what_a_client_waits_for_others() {
        let millis = |acks, asked, most| patience(acks, asked, most).as_millis();
        assert_eq!(millis(Some(Acks::All), 30_000, None), 30_000);
        assert_eq!(millis(Some(Acks::All), 30_000, Some(500)), 500);
        assert_eq!(millis(Some(Acks::All), 100, Some(500)), 100);
        assert_eq!(millis(Some(Acks::Leader), 30_000, Some(500)), 30_000, "it waits for nobody else");
        assert_eq!(millis(Some(Acks::All), -1, None), 0);
    }
}
