//! Which value counts, where it comes from, and what else was said: Kafka's precedence.
//!
//! A topic's or group's own value, then the broker's: changed while running for this broker, changed for the
//! cluster, given at the start, default. Within a layer, milliseconds win over minutes and minutes over hours.
//!
//! A stored value that its row no longer admits (a later version has become stricter) is passed over and reported:
//! a topic must not become unusable because of it.

use super::broker::BrokerConfig;
use super::group::GroupConfig;
use super::layers::{Layers, Overrides};
use super::row::{Kind, Row};
use super::table::{BrokerName, Resource, broker_names_of_group, broker_names_of_row, broker_names_of_topic};
use super::topic::TopicConfig;
use super::value::{Problem, Value};

/// Where a value comes from. The numbers are those of DescribeConfigs.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
#[repr(i8)]
pub enum Source {
    /// The topic's own.
    Topic = 1,
    /// Changed while running, for one broker.
    Broker = 2,
    /// Changed while running, for the cluster.
    Cluster = 3,
    /// Given at the start.
    Static = 4,
    /// Nobody said anything.
    Default = 5,
    /// The subscription's own.
    ClientMetrics = 7,
    /// The group's own.
    Group = 8,
}

impl Source {
    /// The source's number in an answer to DescribeConfigs from version 1.
    pub fn code(self) -> i8 {
        self as i8
    }
}

/// One of the values that were said about a setting.
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct Synonym {
    /// The setting under which it was said.
    pub name: &'static str,
    /// As it was said; `None` if it must not be shown.
    pub value: Option<String>,
    /// Where it was said.
    pub source: Source,
}

/// All that DescribeConfigs tells about one setting.
#[derive(Clone, Debug)]
pub struct Entry {
    /// The setting: name, kind, documentation.
    pub row: &'static Row,
    /// The value that counts; `None` if there is none or it must not be shown.
    pub value: Option<String>,
    /// Where it comes from.
    pub source: Source,
    /// Whether it can only be changed by a restart.
    pub read_only: bool,
    /// All that was said about it, strongest first.
    pub synonyms: Vec<Synonym>,
}

/// A config, and the stored values that were passed over on the way.
#[derive(Clone, Debug)]
pub struct Resolved<T> {
    /// What code reads.
    pub config: T,
    /// To be logged.
    pub problems: Vec<Problem>,
}

/// What a topic obeys.
pub fn topic(overrides: &Overrides, layers: &Layers<'_>) -> Resolved<TopicConfig> {
    let mut reader = Reader::new(Resource::Topic, overrides, layers);
    let config = TopicConfig::read(&mut reader);
    Resolved { config, problems: reader.problems }
}

/// What a broker obeys.
pub fn broker(layers: &Layers<'_>) -> Resolved<BrokerConfig> {
    let nothing = Overrides::new();
    let mut reader = Reader::new(Resource::Broker, &nothing, layers);
    let config = BrokerConfig::read(&mut reader);
    Resolved { config, problems: reader.problems }
}

/// What a group obeys.
pub fn group(overrides: &Overrides, layers: &Layers<'_>) -> Resolved<GroupConfig> {
    let mut reader = Reader::new(Resource::Group, overrides, layers);
    let config = GroupConfig::read(&mut reader);
    Resolved { config, problems: reader.problems }
}

/// Describes a topic: every row, sorted by name.
pub fn describe_topic(overrides: &Overrides, layers: &Layers<'_>) -> Vec<Entry> {
    describe(Resource::Topic, overrides, layers)
}

/// Describes a topic of which so many copies must hold a write: `min.insync.replicas` shows that number where
/// nobody has set another.
pub fn describe_topic_needing(need: usize, overrides: &Overrides, layers: &Layers<'_>) -> Vec<Entry> {
    let need = need.to_string();
    let mut entries = describe_topic(overrides, layers);
    let unsaid = entries
        .iter_mut()
        .find(|entry| entry.row.name == "min.insync.replicas" && entry.source == Source::Default);
    if let Some(entry) = unsaid {
        entry.value = Some(need.clone());
        for synonym in &mut entry.synonyms {
            synonym.value = Some(need.clone());
        }
    }
    entries
}

/// Describes a broker: every row, sorted by name.
pub fn describe_broker(layers: &Layers<'_>) -> Vec<Entry> {
    describe(Resource::Broker, &Overrides::new(), layers)
}

/// Describes what was changed for the whole cluster, and nothing else, as Kafka does for the broker named "".
pub fn describe_cluster(cluster: &Overrides) -> Vec<Entry> {
    let layers = Layers { cluster, ..Layers::DEFAULTS };
    let mut entries = describe(Resource::Broker, &Overrides::new(), &layers);
    entries.retain(|entry| cluster.contains_key(entry.row.name));
    for entry in &mut entries {
        entry.synonyms.retain(|synonym| synonym.source == Source::Cluster);
    }
    entries
}

/// Describes a group: every row, sorted by name.
pub fn describe_group(overrides: &Overrides, layers: &Layers<'_>) -> Vec<Entry> {
    describe(Resource::Group, overrides, layers)
}

/// Describes a subscription to client metrics: every row, sorted by name.
pub fn describe_client_metrics(overrides: &Overrides) -> Vec<Entry> {
    describe(Resource::ClientMetrics, overrides, &Layers::DEFAULTS)
}

fn describe(resource: Resource, overrides: &Overrides, layers: &Layers<'_>) -> Vec<Entry> {
    let mut reader = Reader::new(resource, overrides, layers);
    resource.rows().iter().filter(|row| !row.internal).map(|row| reader.entry(row)).collect()
}

/// The broker settings behind a setting, in order of precedence.
fn broker_names(resource: Resource, row: &'static Row) -> Vec<BrokerName> {
    match resource {
        Resource::Topic => broker_names_of_topic(row.name).to_vec(),
        Resource::Group => broker_names_of_group(row.name).to_vec(),
        Resource::Broker => {
            let own = BrokerName { name: row.name, unit: 1 };
            broker_names_of_row(row.name).map_or_else(|| vec![own], <[BrokerName]>::to_vec)
        }
        Resource::ClientMetrics => Vec::new(),
    }
}

/// Reads the values of one resource's rows.
pub(super) struct Reader<'a> {
    resource: Resource,
    own: &'a Overrides,
    layers: [(&'a Overrides, Source); 3],
    problems: Vec<Problem>,
}

impl<'a> Reader<'a> {
    fn new(resource: Resource, own: &'a Overrides, layers: &Layers<'a>) -> Self {
        let layers = [
            (layers.broker, Source::Broker),
            (layers.cluster, Source::Cluster),
            (layers.fixed, Source::Static),
        ];
        Reader { resource, own, layers, problems: Vec::new() }
    }

    fn own_source(&self) -> Source {
        match self.resource {
            Resource::Topic => Source::Topic,
            Resource::Group => Source::Group,
            Resource::ClientMetrics => Source::ClientMetrics,
            Resource::Broker => Source::Broker,
        }
    }

    fn entry(&mut self, row: &'static Row) -> Entry {
        let names = broker_names(self.resource, row);
        let mut synonyms = self.synonyms(row, &names);
        if self.resource == Resource::Topic {
            // Kafka tells of a default only under the first of the broker's names, or behind a value that was said
            // under it. What was said under another one is kept, so that a value's source is always among them.
            let first = names.first().map_or(row.name, |name| name.name);
            let mut behind = false;
            synonyms.retain(|synonym| {
                behind |= synonym.name == first;
                behind || synonym.source != Source::Default
            });
        }
        let value = if self.resource == Resource::Broker {
            // What was said under the setting's own name; what was said under its other names shows in theirs.
            if let Some(first) = synonyms.iter().position(|synonym| synonym.name == row.name) {
                synonyms.drain(..first);
            } else {
                synonyms.clear();
            }
            self.find(row, &[BrokerName { name: row.name, unit: 1 }])
        } else {
            self.find(row, &names)
        };
        let shown = if row.sensitive() { None } else { value.as_ref().map(|(value, _)| value.to_string()) };
        Entry {
            row,
            value: shown,
            source: value.map_or(Source::Default, |(_, source)| source),
            read_only: self.resource == Resource::Broker && row.dynamic == super::row::Dynamic::ReadOnly,
            synonyms,
        }
    }

    /// All that was said, strongest first.
    fn synonyms(&self, row: &'static Row, names: &[BrokerName]) -> Vec<Synonym> {
        let said = |row: &'static Row, value: &str, source: Source| Synonym {
            name: row.name,
            value: (!row.sensitive()).then(|| value.to_owned()),
            source,
        };
        let mut all = Vec::new();
        if let Some(own) = self.own.get(row.name) {
            all.push(said(row, own, self.own_source()));
        }
        let behind: Vec<&'static Row> =
            names.iter().filter_map(|name| Resource::Broker.row(name.name)).collect();
        for (layer, source) in self.layers {
            for broker in &behind {
                all.extend(layer.get(broker.name).map(|value| said(broker, value, source)));
            }
        }
        for broker in &behind {
            all.extend(broker.default.map(|value| said(broker, value, Source::Default)));
        }
        if behind.is_empty() && self.resource == Resource::Group {
            all.extend(row.default.map(|value| said(row, value, Source::Default)));
        }
        all
    }

    /// The value that counts.
    fn find(&mut self, row: &'static Row, names: &[BrokerName]) -> Option<(Value, Source)> {
        if let Some(value) = self.own.get(row.name).and_then(|text| admitted(row, text, &mut self.problems)) {
            return Some((value, self.own_source()));
        }
        let behind: Vec<(&'static Row, i64)> = names
            .iter()
            .filter_map(|name| Resource::Broker.row(name.name).map(|broker| (broker, name.unit)))
            .collect();
        for (layer, source) in self.layers {
            for (broker, unit) in &behind {
                let value =
                    layer.get(broker.name).and_then(|text| admitted(broker, text, &mut self.problems));
                if let Some(value) = value {
                    return Some((as_kind(value.times(*unit), row.kind), source));
                }
            }
        }
        let default = behind
            .iter()
            .find_map(|(broker, unit)| {
                broker.default_value().map(|value| as_kind(value.times(*unit), row.kind))
            })
            .or_else(|| row.default_value());
        default.map(|value| (value, Source::Default))
    }

    fn value(&mut self, name: &'static str) -> Option<Value> {
        let row = self.resource.row(name);
        debug_assert!(row.is_some(), "{name} is no row");
        let row = row?;
        self.find(row, &broker_names(self.resource, row)).map(|(value, _)| value)
    }

    /// A number that has a default.
    pub(super) fn number(&mut self, name: &'static str) -> i64 {
        self.number_if_set(name).unwrap_or_else(|| {
            debug_assert!(false, "{name} has no default or is no number");
            0
        })
    }

    /// A number that may be unset.
    pub(super) fn number_if_set(&mut self, name: &'static str) -> Option<i64> {
        match self.value(name) {
            Some(Value::Number(number)) => Some(number),
            Some(Value::Boolean(_) | Value::Double(_) | Value::Text(_) | Value::List(_)) | None => None,
        }
    }

    /// A number of 32 bits.
    pub(super) fn int(&mut self, name: &'static str) -> i32 {
        let number = self.number(name);
        i32::try_from(number).unwrap_or(if number < 0 { i32::MIN } else { i32::MAX })
    }

    /// A number of 32 bits, unless it is only the default.
    pub(super) fn int_if_said(&mut self, name: &'static str) -> Option<i32> {
        let row = self.resource.row(name)?;
        match self.find(row, &broker_names(self.resource, row)) {
            Some((_, Source::Default)) | None => None,
            Some(_) => Some(self.int(name)),
        }
    }

    /// A number that cannot be negative; negative ones count as 0.
    pub(super) fn size(&mut self, name: &'static str) -> u64 {
        u64::try_from(self.number(name)).unwrap_or(0)
    }

    /// A size of 32 bits.
    pub(super) fn size32(&mut self, name: &'static str) -> u32 {
        u32::try_from(self.size(name)).unwrap_or(u32::MAX)
    }

    /// A number whose negative values mean "no limit".
    pub(super) fn limit(&mut self, name: &'static str) -> Option<u64> {
        self.number_if_set(name).and_then(|number| u64::try_from(number).ok())
    }

    /// A boolean.
    pub(super) fn flag(&mut self, name: &'static str) -> bool {
        match self.value(name) {
            Some(Value::Boolean(flag)) => flag,
            Some(Value::Number(_) | Value::Double(_) | Value::Text(_) | Value::List(_)) | None => {
                debug_assert!(false, "{name} has no default or is no boolean");
                false
            }
        }
    }

    /// A fraction.
    pub(super) fn fraction(&mut self, name: &'static str) -> f64 {
        match self.value(name) {
            Some(Value::Double(fraction)) => fraction,
            Some(Value::Number(_) | Value::Boolean(_) | Value::Text(_) | Value::List(_)) | None => {
                debug_assert!(false, "{name} has no default or is no fraction");
                0.0
            }
        }
    }

    /// A text; empty if unset.
    pub(super) fn text(&mut self, name: &'static str) -> String {
        self.value(name).map(|value| value.to_string()).unwrap_or_default()
    }

    /// A list; empty if unset.
    pub(super) fn list(&mut self, name: &'static str) -> Vec<String> {
        match self.value(name) {
            Some(Value::List(list)) => list,
            Some(Value::Number(_) | Value::Boolean(_) | Value::Text(_) | Value::Double(_)) | None => {
                Vec::new()
            }
        }
    }
}

/// The effective value of one setting as text, as a change to a list starts from it.
pub(super) fn effective(
    resource: Resource,
    row: &'static Row,
    own: &Overrides,
    layers: &Layers<'_>,
) -> Option<Value> {
    let mut reader = Reader::new(resource, own, layers);
    reader.find(row, &broker_names(resource, row)).map(|(value, _)| value)
}

fn admitted(row: &Row, text: &str, problems: &mut Vec<Problem>) -> Option<Value> {
    row.parse(text).map_err(|problem| problems.push(problem)).ok()
}

/// A broker setting may be a list where the other one is a single text.
fn as_kind(value: Value, kind: Kind) -> Value {
    match (value, kind) {
        (Value::List(list), Kind::String) => Value::Text(list.join(",")),
        (value, _) => value,
    }
}
