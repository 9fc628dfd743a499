//! CreatePartitions: gives topics more partitions; they never become fewer.
//!
//! - The number asked for is the new total, not what is added.
//! - The answer names every topic of the request once.
//! - 3: a client over `controller_mutation_rate` is refused (THROTTLING_QUOTA_EXCEEDED); older ones are let through and rest.
//! - It comes when the new partitions are led, or when the client's timeout has passed.

use std::collections::HashSet;
use std::sync::Arc;

use felix_protocol::error_code::ErrorCode;
use felix_protocol::ids::BrokerId;
use felix_protocol::messages::create_partitions_request::CreatePartitionsTopic;
use felix_protocol::messages::create_partitions_response::CreatePartitionsTopicResult;
use felix_protocol::messages::{ApiKey, CreatePartitionsRequest, CreatePartitionsResponse};
use felix_protocol::time::Clock;

use super::{Answer, Api, Call, Class, Handled, Reply, named_twice, text};
use crate::admin::{Refused, count_changes, patience};
use crate::node::Node;

pub const API: Api = Api {
    key: ApiKey::CreatePartitions,
    oldest: 0,
    newest: 3,
    listed_from: 0,
    class: Class::Admin,
    start: handle,
};

fn handle(node: &Arc<Node>, call: Call) -> Handled {
    let request: CreatePartitionsRequest = call.decode()?;
    let node = Arc::clone(node);
    Answer::later(async move { create(&node, &call, request).await })
}

async fn create(node: &Node, call: &Call, request: CreatePartitionsRequest) -> Result<Reply, Reply> {
    let twice = named_twice(request.topics.iter().map(|topic| topic.name.clone()));
    let mut told = HashSet::new();
    let mut results = Vec::with_capacity(request.topics.len());
    let deadline = node.clock.now().after(patience(request.timeout_ms));
    for topic in request.topics {
        let name = topic.name.clone();
        if !told.insert(name.clone()) {
            continue;
        }
        let outcome = if twice.contains(&name) {
            Err(Refused::new(ErrorCode::InvalidRequest, "Duplicate topic name."))
        } else {
            let wait = deadline.since(node.clock.now());
            match counted(node, call, &topic, request.validate_only) {
                Ok(()) => widen(node, topic, request.validate_only, wait).await,
                Err(refused) => Err(refused),
            }
        };
        let result = CreatePartitionsTopicResult::default().with_name(name).with_error_message(None);
        results.push(match outcome {
            Ok(()) => result,
            Err(refused) => {
                result.with_error_code(refused.code as i16).with_error_message(refused.message.map(text))
            }
        });
    }
    call.reply(&CreatePartitionsResponse::default().with_results(results))
}

/// Counts what this client adds.
fn counted(
    node: &Node,
    call: &Call,
    topic: &CreatePartitionsTopic,
    validate_only: bool,
) -> Result<(), Refused> {
    let current = node.view().topic_named(&topic.name).map(|found| found.partition_count);
    let added = current.and_then(|current| usize::try_from(topic.count.saturating_sub(current)).ok());
    match added.filter(|added| *added > 0 && !validate_only) {
        Some(added) => count_changes(node, call.client_id(), added, call.version() >= 3),
        None => Ok(()),
    }
}

async fn widen(
    node: &Node,
    topic: CreatePartitionsTopic,
    validate_only: bool,
    wait: std::time::Duration,
) -> Result<(), Refused> {
    let assignments = topic.assignments.map(|all| {
        let brokers = all.into_iter().map(|one| one.broker_ids.iter().map(|id| BrokerId(id.0)).collect());
        brokers.collect()
    });
    let widened =
        node.agent.create_partitions(&topic.name, topic.count, assignments, validate_only, wait).await;
    widened.map_err(|error| Refused::from_admin(&error))
}
