//! DescribeProducers: which producers a partition's log remembers, idempotent ones and those between transactions
//! included.
//!
//! Differences from Apache Kafka: a partition that is named again is refused (INVALID_REQUEST), so that a small request
//! cannot ask for a huge answer.

use std::collections::HashSet;
use std::sync::Arc;

use felix_cluster::topics::check_name;
use felix_cluster::view::View;
use felix_protocol::error_code::ErrorCode;
use felix_protocol::messages::describe_producers_response::{
    PartitionResponse, ProducerState, TopicResponse,
};
use felix_protocol::messages::{ApiKey, DescribeProducersRequest, DescribeProducersResponse, ProducerId};
use felix_storage::ProducerDescription;

use super::list_offsets::lead;
use super::{Answer, Api, Call, Class, Handled};
use crate::node::Node;
use crate::partitions::{self, ProducersError};
use crate::wire_code::WireCode;

pub const API: Api = Api {
    key: ApiKey::DescribeProducers,
    oldest: 0,
    newest: 0,
    listed_from: 0,
    class: Class::Admin,
    start: handle,
};

type Outcome = Result<partitions::Answer<Vec<ProducerDescription>, ProducersError>, ErrorCode>;

fn handle(node: &Arc<Node>, call: Call) -> Handled {
    let request: DescribeProducersRequest = call.decode()?;
    let view = node.view();
    let mut seen = HashSet::new();
    // All of them are on their way before the first is awaited.
    let topics: Vec<_> = request
        .topics
        .into_iter()
        .map(|topic| {
            let partitions: Vec<(i32, Outcome)> = topic
                .partition_indexes
                .iter()
                .map(|index| {
                    let outcome = if seen.insert((topic.name.clone(), *index)) {
                        start(node, &view, &topic.name, *index)
                    } else {
                        Err(ErrorCode::InvalidRequest)
                    };
                    (*index, outcome)
                })
                .collect();
            (topic.name, partitions)
        })
        .collect();
    Answer::later(async move {
        let mut response = DescribeProducersResponse::default();
        for (name, partitions) in topics {
            let mut topic = TopicResponse::default().with_name(name);
            for (index, outcome) in partitions {
                let outcome = match outcome {
                    Ok(answer) => answer.await.map_err(|error| error.code()),
                    Err(code) => Err(code),
                };
                let partition =
                    PartitionResponse::default().with_partition_index(index).with_error_message(None);
                topic.partitions.push(match outcome {
                    Ok(producers) => {
                        partition.with_active_producers(producers.into_iter().map(state).collect())
                    }
                    Err(code) => partition.with_error_code(code as i16),
                });
            }
            response.topics.push(topic);
        }
        call.reply(&response)
    })
}

fn start(node: &Node, view: &View, topic: &str, index: i32) -> Outcome {
    check_name(topic).map_err(|_| ErrorCode::InvalidTopicException)?;
    Ok(lead(node, view, topic, index)?.describe_producers())
}

fn state(producer: ProducerDescription) -> ProducerState {
    ProducerState::default()
        .with_producer_id(ProducerId(producer.producer_id))
        .with_producer_epoch(i32::from(producer.epoch))
        .with_last_sequence(producer.last_sequence)
        .with_last_timestamp(producer.last_timestamp)
        .with_coordinator_epoch(producer.coordinator_epoch)
        .with_current_txn_start_offset(producer.transaction_start.unwrap_or(-1))
}
