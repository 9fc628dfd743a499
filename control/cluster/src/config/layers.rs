//! Where a broker setting's value can come from, and the settings that a node is started with.

use std::fmt;

use thiserror::Error;

use super::row::{Row, State};
use super::table::{Resource, broker_names_of_topic};
use super::value::{Problem, Value, protocol_map};
pub use crate::state::Overrides;

/// The layers above the defaults, strongest first.
#[derive(Clone, Copy, Debug)]
pub struct Layers<'a> {
    /// Changed while running, for this broker.
    pub broker: &'a Overrides,
    /// Changed while running, for the whole cluster.
    pub cluster: &'a Overrides,
    /// Given at the start.
    pub fixed: &'a Overrides,
}

static EMPTY: Overrides = Overrides::new();

impl Layers<'_> {
    /// Nothing but the defaults.
    pub const DEFAULTS: Layers<'static> = Layers { broker: &EMPTY, cluster: &EMPTY, fixed: &EMPTY };
}

/// Why a node cannot be started with its settings, in one line: what, where from, what is allowed.
#[derive(Debug, Error, PartialEq, Eq)]
pub enum StartError {
    /// No such setting.
    #[error("{name} (from {origin}): unknown broker config{hint}")]
    Unknown {
        /// As it was given.
        name: String,
        /// Where it was given.
        origin: String,
        /// What was probably meant; begins with "; " or is empty.
        hint: String,
    },
    /// A value that the setting cannot have.
    #[error("{} = \"{}\" (from {origin}): {}", problem.name, problem.value, problem.allowed)]
    Value {
        /// The setting and its value.
        problem: Problem,
        /// Where it was given.
        origin: String,
    },
    /// Values that do not go together.
    #[error("{0}")]
    Conflict(String),
}

/// The settings that a node is started with: from flags, environment, file and `--set`, by Kafka's names.
#[derive(Clone, Debug, Default, PartialEq, Eq)]
pub struct StaticConfig {
    values: Overrides,
    /// Where each value came from, for messages.
    origins: Overrides,
}

impl StaticConfig {
    /// No settings.
    pub fn new() -> Self {
        StaticConfig::default()
    }

    /// Takes one setting; a later one of the same name replaces it. `origin` is for messages, such as
    /// "flag --set".
    pub fn set(&mut self, name: &str, value: &str, origin: impl fmt::Display) -> Result<(), StartError> {
        let origin = origin.to_string();
        let Some(row) = Resource::Broker.row(name) else {
            return Err(StartError::Unknown { name: name.to_owned(), hint: hint(name), origin });
        };
        if let Err(problem) = row.parse(value) {
            return Err(StartError::Value { problem, origin });
        }
        // Two names of one number: Kafka's tools read the older one.
        let names: &[&str] = match name {
            "node.id" | "broker.id" => &["node.id", "broker.id"],
            _ => &[name],
        };
        // A broker.id of -1 ("none") says nothing about node.id, which cannot be -1.
        let admits = |other: &&&str| {
            **other == name || Resource::Broker.row(other).is_some_and(|row| row.parse(value).is_ok())
        };
        for name in names.iter().filter(admits) {
            self.values.insert((*name).to_owned(), value.trim().to_owned());
            self.origins.insert((*name).to_owned(), origin.clone());
        }
        Ok(())
    }

    /// The settings, as a layer.
    pub fn values(&self) -> &Overrides {
        &self.values
    }

    /// Where a setting came from.
    pub fn origin(&self, name: &str) -> Option<&str> {
        self.origins.get(name).map(String::as_str)
    }

    /// The settings that were given and do nothing or not all that they promise, with why. To be logged once
    /// at the start, so that nobody relies on them.
    pub fn without_full_effect(&self) -> impl Iterator<Item = (&'static Row, &'static str)> + '_ {
        self.values.iter().filter_map(|(name, value)| {
            let row = Resource::Broker.row(name)?;
            let is_default = row.default.is_some_and(|default| default == value);
            match row.state {
                State::NoEffect(why) | State::Partly(why) if !is_default => Some((row, why)),
                State::Honoured | State::Refused(_) | State::NoEffect(_) | State::Partly(_) => None,
            }
        })
    }

    /// Checks what can only be judged when all settings are known. A value that is replaced while running is
    /// judged again, more mildly, as Kafka does.
    pub fn check(&self) -> Result<(), StartError> {
        let fixed = Layers { fixed: &self.values, ..Layers::DEFAULTS };
        let topic = super::resolve::topic(&EMPTY, &fixed).config;
        let broker = super::resolve::broker(&fixed).config;
        let conflict = |text: String| Err(StartError::Conflict(text));
        if topic.retention_ms == Some(0) {
            return conflict(
                "log.retention.ms (or .minutes, .hours): 0 would delete everything; must be 1 or more, or -1"
                    .to_owned(),
            );
        }
        if topic.segment_ms < 1 {
            return conflict("log.roll.ms (or .hours): must be 1 or more".to_owned());
        }
        if topic.segment_jitter_ms < 0 {
            return conflict("log.roll.jitter.ms (or .hours): must be 0 or more".to_owned());
        }
        let lags = &topic.compaction;
        if lags.min_lag_ms > lags.max_lag_ms {
            return conflict(format!(
                "log.cleaner.min.compaction.lag.ms ({}) must not exceed log.cleaner.max.compaction.lag.ms ({})",
                lags.min_lag_ms, lags.max_lag_ms
            ));
        }
        let groups = &broker.groups;
        if groups.min_session_timeout_ms > groups.max_session_timeout_ms {
            return conflict(format!(
                "group.min.session.timeout.ms ({}) must not exceed group.max.session.timeout.ms ({})",
                groups.min_session_timeout_ms, groups.max_session_timeout_ms
            ));
        }
        let net = &broker.net;
        if let Some(queued) = net.queued_bytes.filter(|queued| *queued < net.request_max_bytes.into()) {
            return conflict(format!(
                "queued.max.request.bytes ({queued}) must not be below socket.request.max.bytes ({}), or 0 or less",
                net.request_max_bytes
            ));
        }
        if net.max_connections_per_ip == 0 && net.max_connections_per_ip_overrides.is_empty() {
            return conflict(
                "max.connections.per.ip = 0 refuses everybody; it needs max.connections.per.ip.overrides"
                    .to_owned(),
            );
        }
        if broker.node.data_dir.contains(',') {
            return conflict(format!(
                "log.dirs (or log.dir): a node has one data directory, not several: {}",
                broker.node.data_dir
            ));
        }
        self.check_protocols()
    }

    /// A listener that was meant to be protected must not be opened without protection.
    fn check_protocols(&self) -> Result<(), StartError> {
        let (Some(listeners), Some(map)) =
            (self.values.get("listeners"), self.values.get("listener.security.protocol.map"))
        else {
            return Ok(());
        };
        for (name, protocol) in protocol_map(map).unwrap_or_default() {
            let in_use = listeners.split(',').any(|one| {
                one.split_once("://").is_some_and(|(own, _)| own.trim().eq_ignore_ascii_case(&name))
            });
            if in_use && protocol != "PLAINTEXT" {
                return Err(StartError::Conflict(format!(
                    "listener.security.protocol.map: the listener {name} would need {protocol}, which is not \
                     served yet; only PLAINTEXT is"
                )));
            }
        }
        Ok(())
    }
}

/// What a wrong name was probably meant to be.
/// Names longer than this are nobody's typing mistake.
const LONGEST_MISSPELT: usize = 100;

fn hint(name: &str) -> String {
    if name.starts_with("listener.name.") {
        return "; settings of single listeners are not supported".to_owned();
    }
    if name.starts_with("zookeeper.") {
        return "; there is no ZooKeeper".to_owned();
    }
    if name == "super.users" || name == "allow.everyone.if.no.acl.found" {
        return "; access control is not enforced yet".to_owned();
    }
    if let Some(broker) = broker_names_of_topic(name).first() {
        return format!("; this is a topic config, the broker's default for it is {}", broker.name);
    }
    if Resource::Topic.row(name).is_some() {
        return "; this is a topic config".to_owned();
    }
    // A name of any length can be given, and the comparison takes time for each letter.
    let probable = name.len() <= LONGEST_MISSPELT;
    let near = Resource::Broker
        .rows()
        .iter()
        .filter(|_| probable)
        .map(|row| (distance(name, row.name), row.name))
        .min();
    match near {
        Some((edits, near)) if edits <= 3 => format!("; did you mean {near}?"),
        Some(_) | None => String::new(),
    }
}

/// How many letters must be added, removed or changed to get from one name to the other.
fn distance(from: &str, to: &str) -> usize {
    let to = to.as_bytes();
    let mut row: Vec<usize> = (0..=to.len()).collect();
    for (at, letter) in from.bytes().enumerate() {
        let mut diagonal = row[0];
        row[0] = at + 1;
        for (index, other) in to.iter().enumerate() {
            let changed = diagonal + usize::from(letter != *other);
            diagonal = row[index + 1];
            row[index + 1] = changed.min(row[index] + 1).min(diagonal + 1);
        }
    }
    row[to.len()]
}

impl Value {
    /// The value in smaller units.
    pub(super) fn times(self, unit: i64) -> Value {
        match self {
            Value::Number(number) => Value::Number(number.saturating_mul(unit)),
            Value::Boolean(_) | Value::Double(_) | Value::Text(_) | Value::List(_) => self,
        }
    }
}
