//! Reading and changing settings of topics, brokers, groups and subscriptions: what the three handlers of configs
//! share.

use std::collections::HashMap;
use std::panic::{AssertUnwindSafe, catch_unwind};
use std::sync::Arc;

use felix_cluster::config::edit::{self, Edit, EditError, Scope};
use felix_cluster::config::{Entry, Op, resolve};
use felix_cluster::overrides::{ConfigTarget, EditRefused};
use felix_cluster::state::Overrides;
use felix_cluster::topics::check_name;
use felix_cluster::view::{ConfigScope, View};
use felix_control::agent::AdminError;
use felix_protocol::error_code::ErrorCode;
use felix_protocol::ids::BrokerId;
use felix_protocol::messages::StrBytes;
use felix_replication::mark;
use parking_lot::Mutex;

use crate::admin::Refused;
use crate::node::Node;
use crate::tasks;
use crate::wire_code::WireCode;

/// Kafka's number for a topic.
pub const TOPIC: i8 = 2;
/// A broker; "" is the whole cluster.
pub const BROKER: i8 = 4;
/// The loggers of a broker.
pub const BROKER_LOGGER: i8 = 8;
/// A subscription to the metrics of clients.
pub const CLIENT_METRICS: i8 = 16;
/// A group.
pub const GROUP: i8 = 32;

/// What has settings.
#[derive(Clone, Debug, PartialEq, Eq)]
pub enum Resource {
    /// A topic.
    Topic(String),
    /// One broker.
    Broker(BrokerId),
    /// All brokers.
    Cluster,
    /// A group.
    Group(String),
    /// A subscription to the metrics of clients.
    ClientMetrics(String),
}

impl Resource {
    /// The resource of that type and name, whether it is there or not.
    pub fn parse(resource_type: i8, name: &str) -> Result<Resource, Refused> {
        let refused = |text: String| Refused::new(ErrorCode::InvalidRequest, text);
        let named = |what: &str| {
            if name.is_empty() {
                Err(refused(format!("{what} name must not be empty")))
            } else {
                Ok(name.to_owned())
            }
        };
        match resource_type {
            TOPIC => check_name(name)
                .map(|()| Resource::Topic(name.to_owned()))
                .map_err(|error| Refused::new(ErrorCode::InvalidTopicException, error.to_string())),
            BROKER if name.is_empty() => Ok(Resource::Cluster),
            BROKER => match name.parse() {
                Ok(id) => Ok(Resource::Broker(BrokerId(id))),
                Err(_) => Err(refused(format!("Broker id must be an integer, but it is: {name}"))),
            },
            BROKER_LOGGER => Err(refused("Unsupported resource type: BROKER_LOGGER".to_owned())),
            CLIENT_METRICS => named("Client metrics subscription").map(Resource::ClientMetrics),
            GROUP => named("Group").map(Resource::Group),
            other => Err(refused(format!("Unknown resource type {other}"))),
        }
    }

    /// Whose overrides they are.
    fn target(&self) -> ConfigTarget {
        match self {
            Resource::Topic(name) => ConfigTarget::Topic(name.clone()),
            Resource::Broker(id) => ConfigTarget::Scope(ConfigScope::Broker(*id)),
            Resource::Cluster => ConfigTarget::Scope(ConfigScope::Cluster),
            Resource::Group(name) => ConfigTarget::Scope(ConfigScope::Group(name.clone())),
            Resource::ClientMetrics(name) => ConfigTarget::Scope(ConfigScope::ClientMetrics(name.clone())),
        }
    }

    /// Settings of a broker are asked of that broker: only it knows those that it was started with.
    fn check_here(&self, node: &Node) -> Result<(), Refused> {
        match self {
            Resource::Broker(id) if *id != node.id => {
                let text = format!("Unexpected broker id, expected {}, but received {id}", node.id);
                Err(Refused::new(ErrorCode::InvalidRequest, text))
            }
            Resource::Broker(_)
            | Resource::Topic(_)
            | Resource::Cluster
            | Resource::Group(_)
            | Resource::ClientMetrics(_) => Ok(()),
        }
    }
}

/// How many copies of so many hold what is acknowledged, unless an operator has said otherwise.
pub fn need(replicas: usize) -> usize {
    mark::need(replicas, None)
}

/// Every setting of a resource, sorted by name.
pub fn describe(node: &Node, view: &View, resource: &Resource) -> Result<Vec<Entry>, Refused> {
    resource.check_here(node)?;
    let layers = node.configs.layers(view);
    Ok(match resource {
        Resource::Topic(name) => {
            let topic = view.topic_named(name).ok_or(ErrorCode::UnknownTopicOrPartition)?;
            let replicas = view.counted_replicas(&topic.id);
            resolve::describe_topic_needing(need(replicas), &topic.overrides, &layers)
        }
        Resource::Broker(_) => resolve::describe_broker(&layers),
        Resource::Cluster => resolve::describe_cluster(view.cluster_overrides()),
        Resource::Group(name) => resolve::describe_group(view.group_overrides(name), &layers),
        Resource::ClientMetrics(name) => {
            resolve::describe_client_metrics(view.overrides(&ConfigScope::ClientMetrics(name.clone())))
        }
    })
}

/// What is to become of a resource's settings.
#[derive(Clone, Debug)]
pub enum Change {
    /// Single ones change.
    Steps(Vec<Edit>),
    /// These replace all of them.
    Whole(Vec<(String, Option<String>)>),
}

/// A change of one resource, as a client asked for it.
pub struct Alteration {
    /// Kafka's number of the resource's type.
    pub resource_type: i8,
    /// The resource.
    pub resource_name: StrBytes,
    /// The change, unless it makes no sense.
    pub change: Result<Change, Refused>,
}

/// Carries out each change by itself, and answers in the same order with type and name.
pub async fn alter(
    node: &Arc<Node>,
    alterations: Vec<Alteration>,
    validate_only: bool,
) -> Vec<(i8, StrBytes, Result<(), Refused>)> {
    let mut times: HashMap<(i8, StrBytes), usize> = HashMap::new();
    for one in &alterations {
        *times.entry((one.resource_type, one.resource_name.clone())).or_default() += 1;
    }
    let mut outcomes = Vec::with_capacity(alterations.len());
    for one in alterations {
        let key = (one.resource_type, one.resource_name.clone());
        let outcome = if times.get(&key).is_some_and(|count| *count > 1) {
            Err(Refused::new(ErrorCode::InvalidRequest, "Each resource must appear at most once."))
        } else {
            alter_one(node, one, validate_only).await
        };
        outcomes.push((key.0, key.1, outcome));
    }
    outcomes
}

async fn alter_one(node: &Arc<Node>, one: Alteration, validate_only: bool) -> Result<(), Refused> {
    if one.resource_type == TOPIC && one.resource_name.is_empty() {
        let text = "Default topic resources are not allowed.";
        return Err(Refused::new(ErrorCode::InvalidRequest, text));
    }
    let resource = Resource::parse(one.resource_type, &one.resource_name)?;
    resource.check_here(node)?;
    let change = one.change?;
    let target = resource.target();
    // The edit runs on the control thread, perhaps several times, and can only say no by a text: the code that goes
    // with the newest text is kept here.
    let refusal: Arc<Mutex<Option<ErrorCode>>> = Arc::default();
    let edit = {
        let (node, refusal) = (Arc::clone(node), Arc::clone(&refusal));
        move |current: &Overrides| {
            // A mistake in the table of settings must cost this request and not the control thread.
            let edited = catch_unwind(AssertUnwindSafe(|| edited(&node, &resource, current, &change)));
            let (code, text) = match edited {
                Ok(Ok(after)) => return Ok(after),
                Ok(Err(error)) => (code(&resource, &error), error.to_string()),
                Err(panic) => {
                    tasks::report_panic("alter-configs", &*panic);
                    (ErrorCode::UnknownServerError, "the change made the broker stumble".to_owned())
                }
            };
            *refusal.lock() = Some(code);
            Err(text)
        }
    };
    let altered = node.agent.alter_configs(target, validate_only, edit).await;
    altered.map_err(|error| match error {
        AdminError::Refused(EditRefused::Unknown(_)) => {
            let text = "The topic does not exist.";
            Refused::new(ErrorCode::UnknownTopicOrPartition, text)
        }
        AdminError::Refused(EditRefused::Refused(text)) => {
            Refused::new(refusal.lock().unwrap_or(ErrorCode::InvalidConfig), text)
        }
        AdminError::Control(error) => Refused::new(error.code(), error.to_string()),
    })
}

fn edited(
    node: &Node,
    resource: &Resource,
    current: &Overrides,
    change: &Change,
) -> Result<Overrides, EditError> {
    let view = node.view();
    let layers = node.configs.layers(&view);
    match (resource, change) {
        (Resource::Topic(_), Change::Steps(steps)) => edit::topic(current, steps, &layers),
        (Resource::Topic(_), Change::Whole(values)) => edit::whole_topic(values, &layers),
        (Resource::Broker(_), Change::Steps(steps)) => edit::broker(Scope::Broker, current, steps, &layers),
        (Resource::Broker(_), Change::Whole(values)) => edit::whole_broker(Scope::Broker, values, &layers),
        (Resource::Cluster, Change::Steps(steps)) => edit::broker(Scope::Cluster, current, steps, &layers),
        (Resource::Cluster, Change::Whole(values)) => edit::whole_broker(Scope::Cluster, values, &layers),
        (Resource::Group(_), Change::Steps(steps)) => edit::group(current, steps, &layers),
        (Resource::Group(_), Change::Whole(values)) => edit::whole_group(values, &layers),
        (Resource::ClientMetrics(_), Change::Steps(steps)) => edit::client_metrics(current, steps),
        (Resource::ClientMetrics(_), Change::Whole(values)) => {
            let set = |(name, value): &(String, Option<String>)| Edit {
                name: name.clone(),
                op: Op::Set,
                value: value.clone(),
            };
            let steps: Vec<Edit> = values.iter().map(set).collect();
            edit::client_metrics(&Overrides::new(), &steps)
        }
    }
}

/// Kafka's code for a change that is not made. It differs by resource: brokers and subscriptions answer
/// INVALID_REQUEST where topics and groups answer INVALID_CONFIG.
fn code(resource: &Resource, error: &EditError) -> ErrorCode {
    let lenient = match resource {
        Resource::Topic(_) | Resource::Group(_) => false,
        Resource::Broker(_) | Resource::Cluster | Resource::ClientMetrics(_) => true,
    };
    match error {
        EditError::NoValue { .. } | EditError::Twice(_) => ErrorCode::InvalidRequest,
        EditError::Value(_)
        | EditError::ReadOnly { .. }
        | EditError::OneBroker { .. }
        | EditError::Conflict(_)
            if lenient =>
        {
            ErrorCode::InvalidRequest
        }
        EditError::Unknown { .. } if matches!(resource, Resource::ClientMetrics(_)) => {
            ErrorCode::InvalidRequest
        }
        EditError::Unknown { .. }
        | EditError::Value(_)
        | EditError::NotAList { .. }
        | EditError::ReadOnly { .. }
        | EditError::OneBroker { .. }
        | EditError::Conflict(_) => ErrorCode::InvalidConfig,
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn resources_by_type_and_name() {
        let parse = |kind, name| Resource::parse(kind, name).map_err(|refused| refused.code);
        assert_eq!(parse(2, "orders"), Ok(Resource::Topic("orders".to_owned())));
        assert_eq!(parse(2, "a b"), Err(ErrorCode::InvalidTopicException));
        assert_eq!(parse(4, ""), Ok(Resource::Cluster));
        assert_eq!(parse(4, "3"), Ok(Resource::Broker(BrokerId(3))));
        assert_eq!(parse(4, "three"), Err(ErrorCode::InvalidRequest));
        assert_eq!(parse(8, "1"), Err(ErrorCode::InvalidRequest));
        assert_eq!(parse(16, "all"), Ok(Resource::ClientMetrics("all".to_owned())));
        assert_eq!(parse(32, "g"), Ok(Resource::Group("g".to_owned())));
        assert_eq!(parse(32, ""), Err(ErrorCode::InvalidRequest));
        assert_eq!(parse(1, "x"), Err(ErrorCode::InvalidRequest));
    }

    #[test]
    fn codes_differ_by_resource() {
        let topic = Resource::Topic("t".to_owned());
        let wrong = |resource: &Resource, edits: &[Edit]| {
            let layers = felix_cluster::config::Layers::DEFAULTS;
            let error = match resource {
                Resource::Topic(_) => edit::topic(&Overrides::new(), edits, &layers),
                Resource::Broker(_) | Resource::Cluster | Resource::Group(_) | Resource::ClientMetrics(_) => {
                    edit::broker(Scope::Cluster, &Overrides::new(), edits, &layers)
                }
            };
            code(resource, &error.unwrap_err())
        };
        let set = |name: &str, value: Option<&str>| {
            [Edit { name: name.to_owned(), op: Op::Set, value: value.map(str::to_owned) }]
        };
        assert_eq!(wrong(&topic, &set("no.such", Some("1"))), ErrorCode::InvalidConfig);
        assert_eq!(wrong(&topic, &set("retention.ms", Some("soon"))), ErrorCode::InvalidConfig);
        assert_eq!(wrong(&topic, &set("retention.ms", None)), ErrorCode::InvalidRequest);
        assert_eq!(
            wrong(&Resource::Cluster, &set("log.retention.ms", Some("soon"))),
            ErrorCode::InvalidRequest
        );
        assert_eq!(wrong(&Resource::Cluster, &set("node.id", Some("2"))), ErrorCode::InvalidRequest);
        let append = [Edit { name: "retention.ms".to_owned(), op: Op::Append, value: Some("1".to_owned()) }];
        assert_eq!(wrong(&topic, &append), ErrorCode::InvalidConfig);
    }

    #[test]
    fn the_majority_holds_what_is_acknowledged() {
        assert_eq!([1, 2, 3, 5].map(need), [1, 2, 2, 3]);
    }
}
