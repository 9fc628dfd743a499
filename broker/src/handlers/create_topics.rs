//! CreateTopics: each topic on its own, so that one refusal does not touch the others.
//!
//! - -1 partitions or replicas mean the broker's default.
//! - 4: a topic whose replicas are all listed needs neither number.
//! - 5 and later: the answer describes the topic, its settings and where each was said; 7: its id.
//! - 6: a client over `controller_mutation_rate` is refused (THROTTLING_QUOTA_EXCEEDED); older ones are let through and rest.
//! - The answer comes when the partitions are led, or when the client's timeout has passed: what exists is answered
//!   as created either way.
//! - Broker defaults are never written into the topic: what nobody said stays unsaid.
//!
//! Every broker carries this out; there is none that must be looked for first.

use std::collections::{BTreeMap, HashSet};
use std::sync::Arc;

use felix_cluster::config::{Layers, resolve};
use felix_cluster::state::Overrides;
use felix_cluster::topics::{
    CLUSTER_METADATA, CreateRefused, CreatedTopic, MAX_PARTITIONS_PER_REQUEST, NewTopic,
};
use felix_cluster::view::View;
use felix_protocol::error_code::ErrorCode;
use felix_protocol::ids::BrokerId;
use felix_protocol::messages::create_topics_request::CreatableTopic;
use felix_protocol::messages::create_topics_response::{CreatableTopicConfigs, CreatableTopicResult};
use felix_protocol::messages::{ApiKey, CreateTopicsRequest, CreateTopicsResponse, StrBytes, TopicName};

use super::{Answer, Api, Call, Class, Handled, Reply, named_twice, text};
use crate::admin::{Refused, count_changes, patience};
use crate::node::Node;
use crate::view::Configs;
use crate::wire_code::WireCode;

pub const API: Api = Api {
    key: ApiKey::CreateTopics,
    oldest: 2,
    newest: 7,
    listed_from: 2,
    class: Class::Admin,
    start: handle,
};

fn handle(node: &Arc<Node>, call: Call) -> Handled {
    let request: CreateTopicsRequest = call.decode()?;
    let node = Arc::clone(node);
    Answer::later(async move { create(&node, &call, request).await })
}

/// After so many topics the connections on this thread get their turn.
const TURN: usize = 64;

async fn create(node: &Arc<Node>, call: &Call, request: CreateTopicsRequest) -> Result<Reply, Reply> {
    let count = request.topics.len();
    if count > usize::try_from(MAX_PARTITIONS_PER_REQUEST).unwrap_or(usize::MAX) {
        let error = CreateRefused::TooManyPartitions(i64::try_from(count).unwrap_or(i64::MAX));
        let refused = || Refused::new(error.code(), error.to_string());
        let results = request.topics.into_iter().map(|topic| failure(topic.name, refused()));
        return call.reply(&CreateTopicsResponse::default().with_topics(results.collect()));
    }
    let twice = named_twice(request.topics.iter().map(|topic| topic.name.clone()));
    let mut view = node.view();
    if request.topics.iter().any(|topic| view.topic_named(&topic.name).is_some()) {
        // Another broker may have deleted it.
        match node.agent.catch_up().await {
            Ok(current) => view = current,
            Err(error) => tracing::debug!(%error, "topics are refused by a view that may lag"),
        }
    }
    let mut wanted = Vec::new();
    let mut places = Vec::new();
    let mut results = Vec::with_capacity(request.topics.len());
    let mut told_twice = HashSet::new();
    for (number, topic) in (1_usize..).zip(request.topics) {
        if number.is_multiple_of(TURN) {
            tokio::task::yield_now().await;
        }
        if twice.contains(&topic.name) {
            if told_twice.insert(topic.name.clone()) {
                let refused = Refused::new(ErrorCode::InvalidRequest, "Duplicate topic name.");
                results.push(failure(topic.name, refused));
            }
            continue;
        }
        let name = topic.name.clone();
        let new = new_topic(&node.configs, &view, topic);
        match new.and_then(|new| counted(node, call, request.validate_only, new)) {
            Ok(new) => {
                places.push(results.len());
                wanted.push(new);
                results.push(failure(name, Refused::from(ErrorCode::UnknownServerError)));
            }
            Err(refused) => results.push(failure(name, refused)),
        }
    }
    drop(view);
    let overrides: Vec<Overrides> = wanted.iter().map(|new| new.overrides.clone()).collect();
    let wait = patience(request.timeout_ms);
    let created = node.agent.create_topics(wanted, request.validate_only, wait).await;
    let view = node.view();
    for ((place, created), overrides) in places.into_iter().zip(created).zip(overrides) {
        if place % TURN == TURN - 1 {
            tokio::task::yield_now().await;
        }
        let name = results[place].name.clone();
        results[place] = match created {
            Ok(created) => {
                if !request.validate_only && needs_both(&node.configs.layers(&view), &created, &overrides) {
                    tracing::info!(
                        topic = created.name,
                        "of two replicas acks=all needs both, and waits while one broker is away; with min.insync.replicas=1 it \
                         goes on"
                    );
                }
                success(node, &view, call.version(), &created, &overrides)
            }
            Err(error) => failure(name, Refused::from_admin(&error)),
        };
    }
    call.reply(&CreateTopicsResponse::default().with_topics(results))
}

/// The topic, once it is counted as what this client makes.
fn counted(node: &Node, call: &Call, validate_only: bool, new: NewTopic) -> Result<NewTopic, Refused> {
    if !validate_only {
        let partitions = match &new.assignments {
            Some(assignments) => assignments.len(),
            None => usize::try_from(new.partitions).unwrap_or(0),
        };
        count_changes(node, call.client_id(), partitions, call.version() >= 6)?;
    }
    Ok(new)
}

/// The topic that a client asks for, its defaults filled in and its settings checked.
fn new_topic(configs: &Configs, view: &View, topic: CreatableTopic) -> Result<NewTopic, Refused> {
    if &**topic.name == CLUSTER_METADATA {
        let why = format!("Creation of internal topic {CLUSTER_METADATA} is prohibited.");
        return Err(Refused::new(ErrorCode::InvalidRequest, why));
    }
    // An error about the name comes first, whatever else is wrong.
    felix_cluster::topics::check_name(&topic.name)
        .map_err(|error| Refused::new(ErrorCode::InvalidTopicException, error.to_string()))?;
    if view.topic_named(&topic.name).is_some() {
        let why = format!("Topic '{}' already exists.", &*topic.name);
        return Err(Refused::new(ErrorCode::TopicAlreadyExists, why));
    }
    let overrides = overrides(configs, view, &topic)?;
    let config = configs.broker(view);
    let mut new = NewTopic { name: topic.name.to_string(), overrides, ..NewTopic::default() };
    if !topic.assignments.is_empty() {
        new.assignments = Some(assignments(&topic)?);
        return Ok(new);
    }
    new.replication_factor = match topic.replication_factor {
        -1 => i16::try_from(config.topics.replication_factor).unwrap_or(i16::MAX),
        factor if factor > 0 => factor,
        _ => {
            let why = "Replication factor must be larger than 0, or -1 to use the default value.";
            return Err(Refused::new(ErrorCode::InvalidReplicationFactor, why));
        }
    };
    new.partitions = match topic.num_partitions {
        -1 => config.topics.partitions,
        partitions if partitions > 0 => partitions,
        _ => {
            let why = "Number of partitions was set to an invalid non-positive value.";
            return Err(Refused::new(ErrorCode::InvalidPartitions, why));
        }
    };
    Ok(new)
}

/// What the client sets on the topic. A setting that is named twice gets the later value, as in Kafka.
fn overrides(configs: &Configs, view: &View, topic: &CreatableTopic) -> Result<Overrides, Refused> {
    if topic.configs.is_empty() {
        return Ok(Overrides::new());
    }
    let without: Vec<&str> =
        topic.configs.iter().filter(|config| config.value.is_none()).map(|config| &*config.name).collect();
    if !without.is_empty() {
        let why = format!("Null value not supported for topic configs: {}", without.join(","));
        return Err(Refused::new(ErrorCode::InvalidConfig, why));
    }
    let last: BTreeMap<&str, Option<String>> = topic
        .configs
        .iter()
        .map(|config| (&*config.name, config.value.as_ref().map(ToString::to_string)))
        .collect();
    let values: Vec<(String, Option<String>)> =
        last.into_iter().map(|(name, value)| (name.to_owned(), value)).collect();
    felix_cluster::config::edit::whole_topic(&values, &configs.layers(view))
        .map_err(|error| Refused::new(ErrorCode::InvalidConfig, error.to_string()))
}

fn assignments(topic: &CreatableTopic) -> Result<BTreeMap<i32, Vec<BrokerId>>, Refused> {
    let not_both = |what: &str| {
        let why = format!("A manual partition assignment was specified, but {what} was not set to -1.");
        Err(Refused::new(ErrorCode::InvalidRequest, why))
    };
    if topic.replication_factor != -1 {
        return not_both("replication factor");
    }
    if topic.num_partitions != -1 {
        return not_both("numPartitions");
    }
    let mut assignments = BTreeMap::new();
    for one in &topic.assignments {
        let brokers = one.broker_ids.iter().map(|id| BrokerId(id.0)).collect();
        if assignments.insert(one.partition_index, brokers).is_some() {
            let why =
                format!("Found multiple manual partition assignments for partition {}", one.partition_index);
            return Err(Refused::new(ErrorCode::InvalidReplicaAssignment, why));
        }
    }
    Ok(assignments)
}

fn failure(name: TopicName, refused: Refused) -> CreatableTopicResult {
    CreatableTopicResult::default()
        .with_name(name)
        .with_error_code(refused.code as i16)
        .with_error_message(refused.message.map(text))
        .with_configs(Some(Vec::new()))
}

/// Whether one broker of the two that hold the topic stops acks=all: nobody said otherwise, or said so.
fn needs_both(layers: &Layers<'_>, created: &CreatedTopic, overrides: &Overrides) -> bool {
    const NAME: &str = "min.insync.replicas";
    created.replication_factor == 2
        && resolve::describe_topic_needing(crate::admin::configs::need(2), overrides, layers)
            .iter()
            .any(|entry| entry.row.name == NAME && entry.value.as_deref() != Some("1"))
}

fn success(
    node: &Node,
    view: &View,
    version: i16,
    created: &CreatedTopic,
    overrides: &Overrides,
) -> CreatableTopicResult {
    let replicas = usize::try_from(created.replication_factor).unwrap_or(1);
    let configs = if version >= 5 {
        let layers = node.configs.layers(view);
        let need = crate::admin::configs::need(replicas);
        resolve::describe_topic_needing(need, overrides, &layers)
            .into_iter()
            .map(|entry| {
                CreatableTopicConfigs::default()
                    .with_name(StrBytes::from_static_str(entry.row.name))
                    .with_value(entry.value.map(text))
                    .with_read_only(entry.read_only)
                    .with_config_source(entry.source.code())
                    .with_is_sensitive(entry.row.sensitive())
            })
            .collect()
    } else {
        Vec::new()
    };
    CreatableTopicResult::default()
        .with_name(TopicName(text(created.name.clone())))
        .with_topic_id(created.id.0)
        .with_error_message(None)
        .with_num_partitions(created.partitions)
        .with_replication_factor(created.replication_factor)
        .with_configs(Some(configs))
}

#[cfg(test)]
mod tests {
    use felix_cluster::config::StaticConfig;
    use felix_protocol::ids::TopicId;
    use felix_protocol::messages::create_topics_request::{CreatableReplicaAssignment, CreatableTopicConfig};
    use felix_protocol::messages::{BrokerId as WireBrokerId, StrBytes};

    use super::*;
    use crate::admin::testing;

    fn asked(name: &str, partitions: i32, factor: i16) -> CreatableTopic {
        CreatableTopic::default()
            .with_name(TopicName(text(name)))
            .with_num_partitions(partitions)
            .with_replication_factor(factor)
    }

    fn made(topic: CreatableTopic) -> Result<NewTopic, ErrorCode> {
        let mut fixed = StaticConfig::new();
        fixed.set("num.partitions", "3", "test").unwrap();
        let configs = Configs::new(BrokerId(1), fixed);
        new_topic(&configs, &testing::view(&["taken"]), topic).map_err(|refused| refused.code)
    }

    fn set(name: &str, value: Option<&str>) -> CreatableTopicConfig {
        CreatableTopicConfig::default().with_name(text(name)).with_value(value.map(text))
    }

    fn assigned(partition: i32, brokers: &[i32]) -> CreatableReplicaAssignment {
        let brokers = brokers.iter().map(|id| WireBrokerId(*id)).collect();
        CreatableReplicaAssignment::default().with_partition_index(partition).with_broker_ids(brokers)
    }

    #[test]
    fn minus_one_means_the_brokers_default() {
        let new = made(asked("t", -1, -1)).unwrap();
        assert_eq!((new.partitions, new.replication_factor), (3, 1));
        assert!(new.overrides.is_empty(), "a default is not written down");
        assert_eq!(made(asked("t", 0, 1)), Err(ErrorCode::InvalidPartitions));
        assert_eq!(made(asked("t", -2, 1)), Err(ErrorCode::InvalidPartitions));
        assert_eq!(made(asked("t", 1, 0)), Err(ErrorCode::InvalidReplicationFactor));
        assert_eq!(made(asked("t", 1, -2)), Err(ErrorCode::InvalidReplicationFactor));
    }

    #[test]
    fn of_two_replicas_both_are_needed_unless_the_operator_said_otherwise() {
        let configs = Configs::new(BrokerId(1), StaticConfig::new());
        let view = testing::view(&[]);
        let needs = |factor, least: Option<&str>| {
            let created = CreatedTopic {
                id: TopicId::NONE,
                name: "t".to_owned(),
                partitions: 1,
                replication_factor: factor,
            };
            let set = least.map(|least| ("min.insync.replicas".to_owned(), least.to_owned()));
            needs_both(&configs.layers(&view), &created, &set.into_iter().collect())
        };
        assert!(needs(2, None) && needs(2, Some("2")));
        assert!(!needs(2, Some("1")) && !needs(3, None) && !needs(1, None));
    }

    #[test]
    fn names_are_looked_at_first() {
        assert_eq!(made(asked("a b", 0, 0)), Err(ErrorCode::InvalidTopicException));
        assert_eq!(made(asked("taken", 0, 0)), Err(ErrorCode::TopicAlreadyExists));
        assert_eq!(made(asked(CLUSTER_METADATA, 1, 1)), Err(ErrorCode::InvalidRequest));
    }

    #[test]
    fn settings_are_checked_and_the_later_of_two_counts() {
        let with = |configs: &[(&'static str, Option<&str>)]| {
            let configs = configs.iter().map(|(name, value)| set(name, *value)).collect();
            made(asked("t", 1, 1).with_configs(configs))
        };
        let new = with(&[("retention.ms", Some("5")), ("retention.ms", Some("6"))]).unwrap();
        assert_eq!(new.overrides, Overrides::from([("retention.ms".to_owned(), "6".to_owned())]));
        assert_eq!(with(&[("retention.ms", None)]), Err(ErrorCode::InvalidConfig));
        assert_eq!(with(&[("retention.ms", Some("soon"))]), Err(ErrorCode::InvalidConfig));
        assert_eq!(with(&[("no.such", Some("1"))]), Err(ErrorCode::InvalidConfig));
    }

    #[test]
    fn listed_replicas_leave_no_room_for_numbers() {
        let with = |partitions, factor, all: &[(i32, &[i32])]| {
            let all = all.iter().map(|(partition, brokers)| assigned(*partition, brokers)).collect();
            made(asked("t", partitions, factor).with_assignments(all))
        };
        let new = with(-1, -1, &[(0, &[1]), (1, &[1])]).unwrap();
        assert_eq!(new.assignments.map(|all| all.len()), Some(2));
        assert_eq!(with(2, -1, &[(0, &[1])]), Err(ErrorCode::InvalidRequest));
        assert_eq!(with(-1, 1, &[(0, &[1])]), Err(ErrorCode::InvalidRequest));
        assert_eq!(with(-1, -1, &[(0, &[1]), (0, &[1])]), Err(ErrorCode::InvalidReplicaAssignment));
    }

    #[test]
    fn a_refusal_says_nothing_of_a_topic() {
        let result = failure(TopicName(text("t")), Refused::new(ErrorCode::InvalidPartitions, "no"));
        assert_eq!((result.error_code, result.num_partitions, result.replication_factor), (37, -1, -1));
        assert_eq!(result.error_message, Some(StrBytes::from_static_str("no")));
    }
}
