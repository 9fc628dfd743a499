//! The table against itself and against Apache Kafka; precedence; changes.

mod changes;
mod describing;
mod precedence;
mod start;
mod values;

use super::edit::{broker, client_metrics, group, topic, whole_broker, whole_topic};
use super::resolve::{
    describe_broker, describe_client_metrics, describe_cluster, describe_group, describe_topic,
};
use super::table::Resource;
use super::topic::{Compression, Consistency, Timestamps};
use super::*;

const ALL: [Resource; 4] = [Resource::Topic, Resource::Broker, Resource::Group, Resource::ClientMetrics];

fn overrides(pairs: &[(&str, &str)]) -> Overrides {
    pairs.iter().map(|(name, value)| ((*name).to_owned(), (*value).to_owned())).collect()
}

fn edit(name: &str, op: Op, value: &str) -> Edit {
    Edit { name: name.to_owned(), op, value: Some(value.to_owned()) }
}

fn set(name: &str, value: &str) -> Edit {
    edit(name, Op::Set, value)
}

fn find<'a>(entries: &'a [Entry], name: &str) -> &'a Entry {
    entries.iter().find(|entry| entry.row.name == name).unwrap_or_else(|| panic!("{name} is not described"))
}

fn said(entry: &Entry) -> Vec<(&str, Option<&str>, Source)> {
    entry.synonyms.iter().map(|one| (one.name, one.value.as_deref(), one.source)).collect()
}

mod table {
    use super::*;

    #[test]
    fn every_default_is_a_value_of_its_row() {
        for row in ALL.iter().flat_map(|resource| resource.rows()) {
            if let Some(default) = row.default {
                let value = row.parse(default).unwrap_or_else(|problem| panic!("{problem}"));
                assert_eq!(row.default_value(), Some(value.clone()), "{}", row.name);
                assert_eq!(
                    value.to_string(),
                    default,
                    "{}: defaults are written as they are shown",
                    row.name
                );
            }
        }
    }

    #[test]
    fn every_row_is_documented_in_our_style() {
        for row in ALL.iter().flat_map(|resource| resource.rows()) {
            assert!(row.doc.ends_with('.') && row.doc.len() > 15, "{}", row.name);
            assert!(!row.doc.contains("  "), "{}", row.name);
        }
    }

    /// Where we differ from Kafka on purpose: resource, name, our default.
    const OUR_DEFAULTS: &[(&str, &str, &str)] = &[
        ("broker", "controller.listener.names", ""),
        ("broker", "group.coordinator.rebalance.protocols", "classic"),
        ("broker", "listeners", "PLAINTEXT://127.0.0.1:9092"),
        ("broker", "log.dir", "./felix-data"),
        ("broker", "log.flush.interval.messages", "1"),
        ("broker", "node.id", "1"),
        ("broker", "process.roles", "broker,controller"),
        ("broker", "socket.listen.backlog.size", "1024"),
        ("broker", "socket.receive.buffer.bytes", "-1"),
        ("broker", "socket.send.buffer.bytes", "-1"),
        ("topic", "flush.messages", "1"),
    ];

    /// Sockets are opened once: a change that would only be noted is refused.
    const OUR_SCOPES: &[(&str, &str)] =
        &[("listener.security.protocol.map", "read-only"), ("listeners", "read-only")];

    #[test]
    fn it_holds_all_that_apache_kafka_holds() {
        let facts = include_str!("../../testdata/kafka-configs.tsv");
        let mut seen = 0;
        for line in facts.lines().filter(|line| !line.starts_with('#')) {
            let fields: Vec<&str> = line.split('\t').collect();
            let [resource, name, kind, default, dynamic, internal] = fields[..] else { panic!("{line}") };
            let table = match resource {
                "topic" => Resource::Topic,
                "broker" => Resource::Broker,
                "group" => Resource::Group,
                "client-metrics" => Resource::ClientMetrics,
                _ => panic!("{line}"),
            };
            let row = table.row(name).unwrap_or_else(|| panic!("{resource} config {name} is missing"));
            assert_eq!(row.kind.name(), kind, "{name}");
            let ours = OUR_DEFAULTS.iter().find(|(of, own, _)| *of == resource && *own == name);
            let expected = ours.map_or(default, |(_, _, default)| default);
            assert_eq!(row.default.unwrap_or("<null>"), expected, "{resource} {name}");
            if table == Resource::Broker {
                let ours = OUR_SCOPES.iter().find(|(own, _)| *own == name);
                assert_eq!(row.dynamic.name(), ours.map_or(dynamic, |(_, scope)| scope), "{name}");
            }
            assert_eq!(row.internal, internal == "internal", "{name}");
            seen += 1;
        }
        let ours = ALL.iter().flat_map(|resource| resource.rows());
        let kafkas = ours.filter(|row| !row.name.starts_with("felix.")).count();
        assert_eq!(seen, kafkas, "a row of ours is no config of Kafka's and does not begin with felix.");
    }
}
