//! Changes: what CreateTopics, AlterConfigs and IncrementalAlterConfigs may store.
//!
//! All functions are pure: they take the stored overrides and give the ones to store instead, or say why not. Either
//! all edits of a call are made or none. Only what is edited is checked, so that a stored value which a later
//! version no longer admits does not stand in the way of other changes.

use std::collections::BTreeSet;

use thiserror::Error;

use super::layers::{Layers, Overrides};
use super::resolve::{self, effective};
use super::row::{Dynamic, Kind, Row};
use super::table::Resource;
use super::value::{Problem, Value, split_list};
use crate::overrides::{ConfigOp, incremental};

/// What is to happen to one setting.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum Op {
    /// It gets the value.
    Set,
    /// It falls back to what it is without a value of its own.
    Delete,
    /// The value's items are added to the list.
    Append,
    /// The value's items are taken out of the list.
    Subtract,
}

impl Op {
    fn name(self) -> &'static str {
        match self {
            Op::Set => "set",
            Op::Delete => "delete",
            Op::Append => "append",
            Op::Subtract => "subtract",
        }
    }
}

/// One step of an incremental change.
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct Edit {
    /// The setting.
    pub name: String,
    /// What happens to it.
    pub op: Op,
    /// With which value; means nothing for [`Op::Delete`].
    pub value: Option<String>,
}

/// Which brokers a change is for.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum Scope {
    /// One broker.
    Broker,
    /// All, unless a broker has a value of its own.
    Cluster,
}

/// Why a change is not made. Kafka answers INVALID_CONFIG, but INVALID_REQUEST for [`EditError::NoValue`] and
/// [`EditError::Twice`], and for brokers also for values, read-only settings and scopes.
#[derive(Clone, Debug, PartialEq, Eq, Error)]
pub enum EditError {
    /// No such setting.
    #[error("Unknown {} config name: {name}", resource.name())]
    Unknown {
        /// Of what.
        resource: Resource,
        /// As it was given.
        name: String,
    },
    /// A value that the setting cannot have.
    #[error("Invalid value {} for configuration {}: {}", _0.value, _0.name, _0.allowed)]
    Value(Problem),
    /// A step that only lists know.
    #[error("Can't {op} to {name}: it is not a list")]
    NotAList {
        /// The setting.
        name: String,
        /// The step.
        op: &'static str,
    },
    /// Settings that only a restart can change.
    #[error("Cannot be changed while the broker runs: {names}")]
    ReadOnly {
        /// Their names.
        names: String,
    },
    /// Settings that each broker has for itself.
    #[error("Can only be changed for one broker, not for the cluster: {names}")]
    OneBroker {
        /// Their names.
        names: String,
    },
    /// Steps that lack their value.
    #[error("Null value not supported for: {names}")]
    NoValue {
        /// Of which settings.
        names: String,
    },
    /// A setting that is named more than once.
    #[error("{0} is named more than once")]
    Twice(String),
    /// Values that do not go together.
    #[error("{0}")]
    Conflict(String),
}

/// Changes a topic's overrides step by step.
pub fn topic(current: &Overrides, edits: &[Edit], layers: &Layers<'_>) -> Result<Overrides, EditError> {
    let after = steps(Resource::Topic, current, edits, layers)?;
    check_topic(&after, layers)?;
    Ok(after)
}

/// All overrides of a topic at once: of a new one, or by the older AlterConfigs, where what is not named is
/// dropped.
pub fn whole_topic(values: &[(String, Option<String>)], layers: &Layers<'_>) -> Result<Overrides, EditError> {
    topic(&Overrides::new(), &sets(values), layers)
}

/// Changes the overrides of a broker or of the cluster step by step. `layers` are the ones in force.
pub fn broker(
    scope: Scope,
    current: &Overrides,
    edits: &[Edit],
    layers: &Layers<'_>,
) -> Result<Overrides, EditError> {
    let rows = || {
        edits.iter().filter(|edit| edit.op != Op::Delete).filter_map(|edit| Resource::Broker.row(&edit.name))
    };
    let read_only = joined(rows().filter(|row| row.dynamic == Dynamic::ReadOnly).map(|row| row.name));
    if let Some(names) = read_only {
        return Err(EditError::ReadOnly { names });
    }
    let one_broker = joined(rows().filter(|row| row.dynamic == Dynamic::PerBroker).map(|row| row.name));
    if let (Scope::Cluster, Some(names)) = (scope, one_broker) {
        return Err(EditError::OneBroker { names });
    }
    // A list grows from what is in force in the layer that is changed and those below it.
    let base = match scope {
        Scope::Broker => Layers { broker: current, ..*layers },
        Scope::Cluster => Layers { broker: Layers::DEFAULTS.broker, cluster: current, ..*layers },
    };
    let after = steps(Resource::Broker, current, edits, &base)?;
    check_lags(
        &Overrides::new(),
        &match scope {
            Scope::Broker => Layers { broker: &after, ..*layers },
            Scope::Cluster => Layers { cluster: &after, ..*layers },
        },
    )?;
    Ok(after)
}

/// All overrides of a broker or of the cluster at once, by the older AlterConfigs.
pub fn whole_broker(
    scope: Scope,
    values: &[(String, Option<String>)],
    layers: &Layers<'_>,
) -> Result<Overrides, EditError> {
    broker(scope, &Overrides::new(), &sets(values), layers)
}

/// Changes a group's overrides step by step.
pub fn group(current: &Overrides, edits: &[Edit], layers: &Layers<'_>) -> Result<Overrides, EditError> {
    let after = steps(Resource::Group, current, edits, layers)?;
    check_group(&after, layers)?;
    Ok(after)
}

/// All overrides of a group at once, by the older AlterConfigs.
pub fn whole_group(values: &[(String, Option<String>)], layers: &Layers<'_>) -> Result<Overrides, EditError> {
    group(&Overrides::new(), &sets(values), layers)
}

/// Changes the overrides of a subscription to client metrics step by step.
pub fn client_metrics(current: &Overrides, edits: &[Edit]) -> Result<Overrides, EditError> {
    steps(Resource::ClientMetrics, current, edits, &Layers::DEFAULTS)
}

fn sets(values: &[(String, Option<String>)]) -> Vec<Edit> {
    values
        .iter()
        .map(|(name, value)| Edit { name: name.clone(), op: Op::Set, value: value.clone() })
        .collect()
}

/// What all resources have in common: names, kinds, values.
fn steps(
    resource: Resource,
    current: &Overrides,
    edits: &[Edit],
    layers: &Layers<'_>,
) -> Result<Overrides, EditError> {
    let without_value = edits.iter().filter(|edit| edit.op != Op::Delete && edit.value.is_none());
    if let Some(names) = joined(without_value.map(|edit| edit.name.as_str())) {
        return Err(EditError::NoValue { names });
    }
    let mut named = BTreeSet::new();
    for edit in edits {
        if !named.insert(edit.name.as_str()) {
            return Err(EditError::Twice(edit.name.clone()));
        }
    }
    // All names before any value, so that the answer does not depend on the order of the edits.
    let mut known = Vec::with_capacity(edits.len());
    for edit in edits {
        match resource.row(&edit.name) {
            Some(row) => known.push((row, edit)),
            // Removing what is not there succeeds, as in Kafka: a leftover of another version can go.
            None if edit.op == Op::Delete => {}
            None => return Err(EditError::Unknown { resource, name: edit.name.clone() }),
        }
    }
    let mut ops = Vec::with_capacity(edits.len());
    for (row, edit) in &known {
        ops.push((edit.name.clone(), config_op(resource, row, edit, current, layers)?));
    }
    ops.extend(
        edits
            .iter()
            .filter(|edit| resource.row(&edit.name).is_none())
            .map(|edit| (edit.name.clone(), ConfigOp::Delete)),
    );
    let after = incremental(current, &ops);
    for (row, edit) in known {
        if let Some(value) = after.get(&edit.name).filter(|_| edit.op != Op::Delete) {
            row.parse(value).map_err(EditError::Value)?;
        }
    }
    Ok(after)
}

fn config_op(
    resource: Resource,
    row: &'static Row,
    edit: &Edit,
    current: &Overrides,
    layers: &Layers<'_>,
) -> Result<ConfigOp, EditError> {
    let value = edit.value.clone().unwrap_or_default();
    if matches!(edit.op, Op::Append | Op::Subtract) && row.kind != Kind::List {
        return Err(EditError::NotAList { name: edit.name.clone(), op: edit.op.name() });
    }
    let inherited = || match effective(resource, row, current, layers) {
        Some(Value::List(list)) => list,
        Some(Value::Boolean(_) | Value::Number(_) | Value::Double(_) | Value::Text(_)) | None => Vec::new(),
    };
    Ok(match edit.op {
        Op::Set => ConfigOp::Set(value.trim().to_owned()),
        Op::Delete => ConfigOp::Delete,
        Op::Append => ConfigOp::Append { items: split_list(&value), default: inherited() },
        Op::Subtract => ConfigOp::Subtract { items: split_list(&value), default: inherited() },
    })
}

/// Kafka also compares local with total retention and such, but only where remote storage is on: here it never is.
fn check_topic(after: &Overrides, layers: &Layers<'_>) -> Result<(), EditError> {
    check_lags(after, layers)
}

fn check_lags(topic: &Overrides, layers: &Layers<'_>) -> Result<(), EditError> {
    let lags = resolve::topic(topic, layers).config.compaction;
    if lags.min_lag_ms > lags.max_lag_ms {
        return Err(EditError::Conflict(format!(
            "min.compaction.lag.ms ({}) must not exceed max.compaction.lag.ms ({})",
            lags.min_lag_ms, lags.max_lag_ms
        )));
    }
    Ok(())
}

/// A group's values lie between the broker's bounds, and a session outlasts a heartbeat.
fn check_group(after: &Overrides, layers: &Layers<'_>) -> Result<(), EditError> {
    let bound = |kind: &str, end: &str, rest: &str| {
        let row = Resource::Broker.row(&format!("group.{kind}.{end}.{rest}"))?;
        number(effective(Resource::Broker, row, &Overrides::new(), layers))
    };
    for name in after.keys() {
        let Some((kind, rest)) = name.split_once('.') else { continue };
        let Some(value) =
            Resource::Group.row(name).and_then(|row| number(effective(Resource::Group, row, after, layers)))
        else {
            continue;
        };
        let (lowest, highest) = (bound(kind, "min", rest), bound(kind, "max", rest));
        let fits =
            lowest.is_none_or(|lowest| value >= lowest) && highest.is_none_or(|highest| value <= highest);
        if !fits {
            let range = match (lowest, highest) {
                (Some(lowest), Some(highest)) => format!("from {lowest} to {highest}"),
                (Some(lowest), None) => format!("{lowest} or more"),
                (None, Some(highest)) => format!("{highest} or less"),
                (None, None) => String::new(),
            };
            return Err(EditError::Conflict(format!(
                "{name} ({value}) must be {range}: the broker's bounds are group.{kind}.min.{rest} and \
                 group.{kind}.max.{rest}"
            )));
        }
    }
    for kind in ["consumer", "share", "streams"] {
        let value = |rest: &str| {
            let row = Resource::Group.row(&format!("{kind}.{rest}"))?;
            number(effective(Resource::Group, row, after, layers))
        };
        let (session, heartbeat) = (value("session.timeout.ms"), value("heartbeat.interval.ms"));
        if session <= heartbeat {
            return Err(EditError::Conflict(format!(
                "{kind}.session.timeout.ms must be greater than {kind}.heartbeat.interval.ms"
            )));
        }
    }
    Ok(())
}

fn number(value: Option<Value>) -> Option<i64> {
    match value {
        Some(Value::Number(number)) => Some(number),
        Some(Value::Boolean(_) | Value::Double(_) | Value::Text(_) | Value::List(_)) | None => None,
    }
}

/// The names, separated by commas; `None` if there are none.
fn joined<'a>(names: impl Iterator<Item = &'a str>) -> Option<String> {
    let names: Vec<&str> = names.collect();
    if names.is_empty() { None } else { Some(names.join(", ")) }
}
