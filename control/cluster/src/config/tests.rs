//! The table against itself and against Apache Kafka; precedence; changes.

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

mod values {
    use super::*;

    fn parse(name: &str, text: &str) -> Result<String, String> {
        let row = ALL.iter().find_map(|resource| resource.row(name)).unwrap();
        row.parse(text).map(|value| value.to_string()).map_err(|problem| problem.to_string())
    }

    #[test]
    fn good_values_take_their_shown_form() {
        for (name, text, shown) in [
            ("retention.ms", " 5000 ", "5000"),
            ("retention.ms", "-1", "-1"),
            ("retention.bytes", "-5", "-5"),
            ("preallocate", "TRUE", "true"),
            ("cleanup.policy", "", ""),
            ("cleanup.policy", "compact, delete", "compact,delete"),
            ("compression.gzip.level", "-1", "-1"),
            ("min.cleanable.dirty.ratio", "1", "1.0"),
            ("leader.replication.throttled.replicas", "*", "*"),
            ("leader.replication.throttled.replicas", "0:1,1:2", "0:1,1:2"),
            ("group.consumer.migration.policy", "Upgrade", "Upgrade"),
            ("share.auto.offset.reset", "by_duration:P1DT2H3.5S", "by_duration:P1DT2H3.5S"),
            ("max.connections.per.ip.overrides", "::1:5,h:7", "::1:5,h:7"),
            ("remote.storage.enable", "false", "false"),
            ("ssl.keystore.password", "", ""),
        ] {
            assert_eq!(parse(name, text).as_deref(), Ok(shown), "{name} = {text}");
        }
    }

    #[test]
    fn bad_values_say_what_is_allowed() {
        for (name, text, message) in [
            ("retention.ms", "abc", "retention.ms = \"abc\": must be a whole number, -1 or more"),
            ("retention.ms", "-2", "retention.ms = \"-2\": must be a whole number, -1 or more"),
            ("segment.bytes", "1000", "segment.bytes = \"1000\": must be a whole number, 1048576 or more"),
            (
                "retention.bytes",
                "1GB",
                "retention.bytes = \"1GB\": must be a whole number from -9223372036854775808 to 9223372036854775807",
            ),
            (
                "max.message.bytes",
                "99999999999",
                "max.message.bytes = \"99999999999\": must be a whole number, 0 or more",
            ),
            (
                "cleanup.policy",
                "Compact",
                "cleanup.policy = \"Compact\": must be a list of any of: compact, delete",
            ),
            (
                "cleanup.policy",
                "compact,",
                "cleanup.policy = \"compact,\": must not have an empty item between its commas",
            ),
            ("preallocate", "yes", "preallocate = \"yes\": must be true or false"),
            (
                "compression.gzip.level",
                "0",
                "compression.gzip.level = \"0\": must be a whole number from 1 to 9, or -1",
            ),
            (
                "min.cleanable.dirty.ratio",
                "2",
                "min.cleanable.dirty.ratio = \"2\": must be a number from 0 to 1",
            ),
            (
                "leader.replication.throttled.replicas",
                "x",
                "leader.replication.throttled.replicas = \"x\": must be * or a list of partition:broker, such as 0:1,0:2",
            ),
            (
                "remote.storage.enable",
                "true",
                "remote.storage.enable = \"true\": refused: there is no remote storage; only false is possible",
            ),
            (
                "ssl.keystore.password",
                "secret",
                "ssl.keystore.password = \"[hidden]\": refused: TLS is not served yet; connections would be unprotected",
            ),
            (
                "security.inter.broker.protocol",
                "SSL",
                "security.inter.broker.protocol = \"SSL\": refused: TLS is not served yet; connections would be \
                 unprotected; only PLAINTEXT is possible",
            ),
        ] {
            assert_eq!(parse(name, text).unwrap_err(), message, "{name} = {text}");
        }
        for (name, text) in [
            ("share.auto.offset.reset", "by_duration:P"),
            ("share.auto.offset.reset", "by_duration:PT"),
            ("share.auto.offset.reset", "by_duration:1H"),
            ("share.auto.offset.reset", "by_duration:PT1S1H"),
            ("max.connections.per.ip.overrides", "nonsense"),
            ("listener.security.protocol.map", "A:TLS"),
            ("match", "foo=x"),
            ("match", "client_id="),
            ("interval.ms", "1"),
            ("compression.zstd.level", "23"),
            ("num.partitions", "0"),
        ] {
            assert!(parse(name, text).is_err(), "{name} = {text}");
        }
    }
}

mod precedence {
    use super::*;

    #[test]
    fn nothing_said_means_kafkas_defaults_but_flushed() {
        let config = TopicConfig::default();
        assert_eq!(config.flush_messages, Some(1));
        assert_eq!(config.flush_ms, None);
        assert_eq!(config.retention_ms, Some(604_800_000));
        assert_eq!(config.retention_bytes, None);
        assert_eq!(config.segment_bytes, 1 << 30);
        assert_eq!(config.segment_ms, 604_800_000);
        assert_eq!(config.compression, Compression::Producer);
        assert_eq!(config.timestamps, Timestamps::Create);
        assert_eq!(config.timestamp_after_max_ms, 3_600_000);
        assert_eq!(config.consistency, Consistency::Acks);
        assert!(config.deletes && !config.compacts);
        let config = BrokerConfig::default();
        assert_eq!(config.net.request_max_bytes, 104_857_600);
        assert_eq!(config.net.max_idle_ms, Some(600_000));
        assert_eq!(config.offsets.retention_ms, 7 * 24 * 3_600_000);
        assert_eq!(config.offsets.topic_partitions, 50);
        assert_eq!(config.groups.min_session_timeout_ms, 6000);
        assert_eq!(config.producers.expiration_ms, 86_400_000);
        assert_eq!(config.node.data_dir, "./felix-data");
        assert_eq!(config.threads.lanes, None);
    }

    #[test]
    fn the_topic_wins_then_the_broker_then_the_cluster_then_the_start() {
        let retention = |own: &Overrides, layers: &Layers<'_>| {
            let entries = describe_topic(own, layers);
            let entry = find(&entries, "retention.ms");
            (resolve::topic(own, layers).config.retention_ms, entry.source)
        };
        let own = overrides(&[("retention.ms", "1")]);
        let broker = overrides(&[("log.retention.ms", "2")]);
        let cluster = overrides(&[("log.retention.ms", "3")]);
        let fixed = overrides(&[("log.retention.hours", "1")]);
        let none = Overrides::new();
        let mut layers = Layers { broker: &broker, cluster: &cluster, fixed: &fixed };
        assert_eq!(retention(&own, &layers), (Some(1), Source::Topic));
        assert_eq!(retention(&none, &layers), (Some(2), Source::Broker));
        layers.broker = &none;
        assert_eq!(retention(&none, &layers), (Some(3), Source::Cluster));
        layers.cluster = &none;
        assert_eq!(retention(&none, &layers), (Some(3_600_000), Source::Static));
        layers.fixed = &none;
        assert_eq!(retention(&none, &layers), (Some(604_800_000), Source::Default));
    }

    #[test]
    fn milliseconds_win_over_minutes_and_minutes_over_hours() {
        let retention = |pairs: &[(&str, &str)]| {
            let fixed = overrides(pairs);
            resolve::topic(&Overrides::new(), &Layers { fixed: &fixed, ..Layers::DEFAULTS })
                .config
                .retention_ms
        };
        let (hours, minutes, ms) =
            (("log.retention.hours", "1"), ("log.retention.minutes", "2"), ("log.retention.ms", "3"));
        assert_eq!(retention(&[hours]), Some(3_600_000));
        assert_eq!(retention(&[hours, minutes]), Some(120_000));
        assert_eq!(retention(&[hours, minutes, ms]), Some(3));
        assert_eq!(retention(&[("log.retention.hours", "-1")]), None);
        assert_eq!(retention(&[hours, ("log.retention.ms", "-1")]), None);
        let fixed = overrides(&[("log.roll.hours", "2"), ("log.roll.jitter.hours", "1")]);
        let config = resolve::topic(&Overrides::new(), &Layers { fixed: &fixed, ..Layers::DEFAULTS }).config;
        assert_eq!((config.segment_ms, config.segment_jitter_ms), (7_200_000, 3_600_000));
    }

    #[test]
    fn flush_ms_has_two_names_on_the_broker() {
        let fixed = overrides(&[("log.flush.scheduler.interval.ms", "7")]);
        let cluster = overrides(&[("log.flush.interval.ms", "5")]);
        let layers = Layers { fixed: &fixed, ..Layers::DEFAULTS };
        assert_eq!(resolve::topic(&Overrides::new(), &layers).config.flush_ms, Some(7));
        let layers = Layers { cluster: &cluster, ..layers };
        assert_eq!(resolve::topic(&Overrides::new(), &layers).config.flush_ms, Some(5));
    }

    #[test]
    fn a_stored_value_that_is_no_longer_allowed_is_passed_over_and_reported() {
        let own = overrides(&[("retention.ms", "soon"), ("compression.type", "gzip"), ("gone", "1")]);
        let resolved = resolve::topic(&own, &Layers::DEFAULTS);
        assert_eq!(resolved.config.retention_ms, Some(604_800_000));
        assert_eq!(resolved.config.compression, Compression::Gzip(None));
        assert_eq!(resolved.problems.len(), 1);
        assert_eq!(resolved.problems[0].name, "retention.ms");
    }

    #[test]
    fn a_compacting_topic_ends_its_segments_in_time() {
        let own = overrides(&[("cleanup.policy", "compact"), ("max.compaction.lag.ms", "9")]);
        let config = resolve::topic(&own, &Layers::DEFAULTS).config;
        assert!(config.compacts && !config.deletes);
        assert_eq!(config.segment_ms, 9);
        let own = overrides(&[("internal.segment.bytes", "100"), ("segment.bytes", "1048576")]);
        assert_eq!(resolve::topic(&own, &Layers::DEFAULTS).config.segment_bytes, 100);
    }
}

mod describing {
    use super::*;

    #[test]
    fn every_config_is_described_but_internal_ones() {
        let topic = describe_topic(&Overrides::new(), &Layers::DEFAULTS);
        assert_eq!(topic.len(), 38);
        assert!(topic.iter().all(|entry| !entry.read_only && !entry.row.internal));
        let broker = describe_broker(&Layers::DEFAULTS);
        assert!(broker.len() > 350);
        assert!(find(&broker, "num.partitions").read_only);
        assert!(!find(&broker, "log.retention.ms").read_only);
        // kafka-ui shows its delete button by this one.
        assert_eq!(find(&broker, "delete.topic.enable").value.as_deref(), Some("true"));
        assert_eq!(describe_client_metrics(&Overrides::new()).len(), 3);
        assert!(topic.is_sorted_by_key(|entry| entry.row.name));
    }

    #[test]
    fn a_topic_shows_all_that_was_said() {
        let broker = overrides(&[("log.retention.ms", "5000")]);
        let cluster = overrides(&[("log.retention.ms", "7000")]);
        let fixed = overrides(&[("log.retention.hours", "100")]);
        let layers = Layers { broker: &broker, cluster: &cluster, fixed: &fixed };
        let own = overrides(&[("retention.ms", "1")]);
        let entries = describe_topic(&own, &layers);
        let entry = find(&entries, "retention.ms");
        assert_eq!(entry.value.as_deref(), Some("1"));
        assert_eq!(entry.row.kind.code(), 5);
        assert_eq!(
            said(entry),
            [
                ("retention.ms", Some("1"), Source::Topic),
                ("log.retention.ms", Some("5000"), Source::Broker),
                ("log.retention.ms", Some("7000"), Source::Cluster),
                ("log.retention.hours", Some("100"), Source::Static),
                ("log.retention.hours", Some("168"), Source::Default),
            ]
        );
        let entry = find(&entries, "cleanup.policy");
        assert_eq!((entry.value.as_deref(), entry.source), (Some("delete"), Source::Default));
        assert_eq!(said(entry), [("log.cleanup.policy", Some("delete"), Source::Default)]);
    }

    #[test]
    fn the_number_of_copies_that_counts_is_shown_unless_somebody_set_another() {
        let shown = |own: &Overrides| {
            let entries = resolve::describe_topic_needing(2, own, &Layers::DEFAULTS);
            let entry = find(&entries, "min.insync.replicas");
            (entry.value.clone().unwrap(), entry.source)
        };
        assert_eq!(TopicConfig::default().min_insync_replicas, None);
        assert_eq!(shown(&Overrides::new()), ("2".to_owned(), Source::Default));
        let own = overrides(&[("min.insync.replicas", "1")]);
        assert_eq!(resolve::topic(&own, &Layers::DEFAULTS).config.min_insync_replicas, Some(1));
        assert_eq!(shown(&own), ("1".to_owned(), Source::Topic));
    }

    #[test]
    fn a_broker_config_shows_what_was_said_under_its_own_name() {
        let fixed = overrides(&[("log.retention.hours", "100"), ("offsets.topic.num.partitions", "3")]);
        let entries = describe_broker(&Layers { fixed: &fixed, ..Layers::DEFAULTS });
        let ms = find(&entries, "log.retention.ms");
        assert_eq!((ms.value.as_deref(), ms.source), (None, Source::Default));
        assert_eq!(said(ms), []);
        let hours = find(&entries, "log.retention.hours");
        assert_eq!((hours.value.as_deref(), hours.source), (Some("100"), Source::Static));
        assert_eq!(
            said(hours),
            [
                ("log.retention.hours", Some("100"), Source::Static),
                ("log.retention.hours", Some("168"), Source::Default),
            ]
        );
        let partitions = find(&entries, "offsets.topic.num.partitions");
        assert_eq!((partitions.value.as_deref(), partitions.source.code()), (Some("3"), 4));
    }

    #[test]
    fn the_cluster_shows_only_what_was_changed_for_it() {
        let cluster = overrides(&[("log.retention.ms", "7000"), ("log.cleaner.threads", "2")]);
        let entries = describe_cluster(&cluster);
        let names: Vec<_> = entries.iter().map(|entry| entry.row.name).collect();
        assert_eq!(names, ["log.cleaner.threads", "log.retention.ms"]);
        assert_eq!(said(&entries[1]), [("log.retention.ms", Some("7000"), Source::Cluster)]);
    }

    #[test]
    fn a_password_is_never_shown() {
        // Such a value cannot be set today; this one stands for a leftover.
        let fixed = overrides(&[("ssl.key.password", "hunter2")]);
        let entries = describe_broker(&Layers { fixed: &fixed, ..Layers::DEFAULTS });
        let entry = find(&entries, "ssl.key.password");
        assert!(entry.row.sensitive());
        assert_eq!(entry.value, None);
        assert_eq!(said(entry), [("ssl.key.password", None, Source::Static)]);
        assert!(!format!("{entries:?}").contains("hunter2"));
    }

    #[test]
    fn groups_and_subscriptions_are_described_as_kafka_does() {
        let own = overrides(&[("consumer.session.timeout.ms", "46000")]);
        let entries = describe_group(&own, &Layers::DEFAULTS);
        assert_eq!(
            said(find(&entries, "consumer.session.timeout.ms")),
            [
                ("consumer.session.timeout.ms", Some("46000"), Source::Group),
                ("group.consumer.session.timeout.ms", Some("45000"), Source::Default),
            ]
        );
        assert_eq!(
            said(find(&entries, "share.auto.offset.reset")),
            [("share.auto.offset.reset", Some("latest"), Source::Default)]
        );
        assert_eq!(find(&entries, "streams.assignor.name").value.as_deref(), Some("sticky"));
        assert_eq!(resolve::group(&own, &Layers::DEFAULTS).config.session_timeout_ms, 46_000);
        let entries = describe_client_metrics(&overrides(&[("interval.ms", "50000")]));
        assert_eq!(
            said(find(&entries, "interval.ms")),
            [("interval.ms", Some("50000"), Source::ClientMetrics)]
        );
        assert_eq!(said(find(&entries, "match")), []);
    }
}

mod changes {
    use super::*;

    fn change(current: &[(&str, &str)], edits: &[Edit]) -> Result<Overrides, String> {
        topic(&overrides(current), edits, &Layers::DEFAULTS).map_err(|error| error.to_string())
    }

    #[test]
    fn set_and_delete() {
        let after =
            change(&[("flush.ms", "1")], &[set("retention.ms", " 5 "), edit("flush.ms", Op::Delete, "")]);
        assert_eq!(after, Ok(overrides(&[("retention.ms", "5")])));
        assert_eq!(change(&[], &[edit("nosuch", Op::Delete, "")]), Ok(Overrides::new()));
        let stale = change(&[("gone", "1"), ("retention.ms", "x")], &[edit("gone", Op::Delete, "")]);
        assert_eq!(stale, Ok(overrides(&[("retention.ms", "x")])), "only what is edited is checked");
    }

    #[test]
    fn lists_grow_and_shrink_from_what_is_in_force() {
        let policy = |current: &[(&str, &str)], op, value| {
            change(current, &[edit("cleanup.policy", op, value)]).map(|after| after["cleanup.policy"].clone())
        };
        assert_eq!(policy(&[], Op::Append, "compact").as_deref(), Ok("delete,compact"));
        assert_eq!(policy(&[], Op::Append, "delete").as_deref(), Ok("delete"));
        assert_eq!(
            policy(&[("cleanup.policy", "delete,compact")], Op::Subtract, "delete").as_deref(),
            Ok("compact")
        );
        assert_eq!(policy(&[("cleanup.policy", "compact")], Op::Subtract, "compact").as_deref(), Ok(""));
        assert_eq!(
            policy(&[("cleanup.policy", "")], Op::Append, "compact, delete").as_deref(),
            Ok("compact,delete")
        );
        assert!(policy(&[], Op::Append, "bogus").is_err());
        let cluster = overrides(&[("log.cleanup.policy", "compact")]);
        let layers = Layers { cluster: &cluster, ..Layers::DEFAULTS };
        let after =
            topic(&Overrides::new(), &[edit("cleanup.policy", Op::Append, "delete")], &layers).unwrap();
        assert_eq!(after["cleanup.policy"], "compact,delete");
    }

    /// known-faults.md B005: such a request once took a whole broker down.
    #[test]
    fn only_lists_can_be_appended_to() {
        for op in [Op::Append, Op::Subtract] {
            let error =
                topic(&Overrides::new(), &[edit("retention.ms", op, "5")], &Layers::DEFAULTS).unwrap_err();
            assert!(matches!(error, EditError::NotAList { .. }), "{error}");
        }
    }

    #[test]
    fn all_edits_are_made_or_none() {
        assert_eq!(
            change(&[], &[set("retention.ms", "1"), set("foo", "x")]),
            Err("Unknown topic config name: foo".into())
        );
        assert_eq!(
            change(&[], &[set("retention.ms", "x"), set("foo", "x")]),
            Err("Unknown topic config name: foo".into()),
            "names before values"
        );
        assert_eq!(
            change(&[], &[set("retention.ms", "abc")]),
            Err("Invalid value abc for configuration retention.ms: must be a whole number, -1 or more".into())
        );
        assert_eq!(
            change(&[], &[set("retention.ms", "1"), set("retention.ms", "2")]),
            Err("retention.ms is named more than once".into())
        );
        let null = Edit { name: "retention.ms".to_owned(), op: Op::Set, value: None };
        assert_eq!(change(&[], &[null]), Err("Null value not supported for: retention.ms".into()));
    }

    #[test]
    fn the_lags_of_compaction_go_together() {
        let both = [set("min.compaction.lag.ms", "10"), set("max.compaction.lag.ms", "5")];
        assert!(change(&[], &both).unwrap_err().contains("must not exceed"));
        assert!(change(&[("max.compaction.lag.ms", "5")], &both[..1]).is_err());
        let cluster = overrides(&[("log.cleaner.max.compaction.lag.ms", "5")]);
        let layers = Layers { cluster: &cluster, ..Layers::DEFAULTS };
        assert!(topic(&Overrides::new(), &both[..1], &layers).is_err());
        let log_min = [set("log.cleaner.min.compaction.lag.ms", "10")];
        assert!(broker(Scope::Broker, &Overrides::new(), &log_min, &layers).is_err());
    }

    #[test]
    fn a_whole_config_replaces_everything() {
        let pairs = |pairs: &[(&str, &str)]| {
            pairs
                .iter()
                .map(|(name, value)| ((*name).to_owned(), Some((*value).to_owned())))
                .collect::<Vec<_>>()
        };
        let after =
            whole_topic(&pairs(&[("retention.ms", "1"), ("cleanup.policy", "compact")]), &Layers::DEFAULTS);
        assert_eq!(after, Ok(overrides(&[("cleanup.policy", "compact"), ("retention.ms", "1")])));
        assert_eq!(whole_topic(&[], &Layers::DEFAULTS), Ok(Overrides::new()));
        // A client that reads all configs and writes them back changes nothing it did not mean to.
        let all: Vec<_> = describe_topic(&Overrides::new(), &Layers::DEFAULTS)
            .into_iter()
            .map(|entry| (entry.row.name.to_owned(), entry.value))
            .collect();
        let after = whole_topic(&all, &Layers::DEFAULTS).unwrap();
        let expected = TopicConfig { min_insync_replicas: Some(1), ..TopicConfig::default() };
        assert_eq!(resolve::topic(&after, &Layers::DEFAULTS).config, expected);
        assert!(whole_topic(&[("retention.ms".to_owned(), None)], &Layers::DEFAULTS).is_err());
        let error =
            whole_broker(Scope::Broker, &pairs(&[("num.partitions", "2")]), &Layers::DEFAULTS).unwrap_err();
        assert!(matches!(error, EditError::ReadOnly { .. }));
    }

    #[test]
    fn brokers_keep_to_their_scopes() {
        let none = Overrides::new();
        let change = |scope, edits: &[Edit]| broker(scope, &none, edits, &Layers::DEFAULTS);
        assert!(change(Scope::Broker, &[set("log.retention.ms", "1")]).is_ok());
        assert!(change(Scope::Cluster, &[set("log.retention.ms", "1")]).is_ok());
        let error = change(Scope::Broker, &[set("num.partitions", "1"), set("log.retention.hours", "1")]);
        let names = "num.partitions, log.retention.hours".to_owned();
        assert_eq!(error, Err(EditError::ReadOnly { names }));
        let error = change(Scope::Cluster, &[set("cordoned.log.dirs", "/d")]);
        assert!(matches!(error, Err(EditError::OneBroker { .. })));
        assert!(matches!(change(Scope::Cluster, &[set("foo", "1")]), Err(EditError::Unknown { .. })));
        let error = change(Scope::Broker, &[set("ssl.keystore.password", "secret")]).unwrap_err();
        assert!(
            error.to_string().contains("unprotected") && !error.to_string().contains("secret"),
            "{error}"
        );
        let after = change(Scope::Cluster, &[edit("log.cleanup.policy", Op::Append, "compact")]).unwrap();
        assert_eq!(after["log.cleanup.policy"], "delete,compact");
        assert!(change(Scope::Cluster, &[set("leader.replication.throttled.rate", "5")]).is_ok());
    }

    #[test]
    fn groups_stay_within_the_brokers_bounds() {
        let none = Overrides::new();
        let change = |name, value| group(&none, &[set(name, value)], &Layers::DEFAULTS);
        assert!(change("consumer.session.timeout.ms", "46000").is_ok());
        let error = change("consumer.session.timeout.ms", "1").unwrap_err();
        assert!(error.to_string().contains("must be from 45000 to 60000"), "{error}");
        assert!(matches!(change("foo", "1"), Err(EditError::Unknown { resource: Resource::Group, .. })));
        assert!(change("share.auto.offset.reset", "earliest").is_ok());
        assert!(client_metrics(&none, &[set("interval.ms", "50000"), set("match", "client_id=x")]).is_ok());
        assert!(client_metrics(&none, &[set("interval.ms", "1")]).is_err());
    }
}

mod start {
    use super::*;

    fn given(pairs: &[(&str, &str)]) -> Result<StaticConfig, String> {
        let mut config = StaticConfig::new();
        for (name, value) in pairs {
            config.set(name, value, "flag --set").map_err(|error| error.to_string())?;
        }
        config.check().map_err(|error| error.to_string())?;
        Ok(config)
    }

    #[test]
    fn good_settings_become_a_layer() {
        let config =
            given(&[("log.retention.ms", "5"), ("num.partitions", " 3 "), ("broker.id", "7")]).unwrap();
        let layers = Layers { fixed: config.values(), ..Layers::DEFAULTS };
        let broker = resolve::broker(&layers).config;
        assert_eq!((broker.topics.partitions, broker.node.id), (3, 7));
        assert_eq!(resolve::topic(&Overrides::new(), &layers).config.retention_ms, Some(5));
        assert_eq!(config.origin("node.id"), Some("flag --set"));
    }

    #[test]
    fn a_wrong_start_is_one_line_that_says_what_where_from_and_what_is_allowed() {
        for (name, value, message) in [
            (
                "log.retention.ms",
                "soon",
                "log.retention.ms = \"soon\" (from flag --set): must be a whole number from \
                 -9223372036854775808 to 9223372036854775807",
            ),
            (
                "log.retension.ms",
                "1",
                "log.retension.ms (from flag --set): unknown broker config; did you mean log.retention.ms?",
            ),
            (
                "retention.ms",
                "1",
                "retention.ms (from flag --set): unknown broker config; this is a topic config, the broker's default \
                 for it is log.retention.ms",
            ),
            (
                "zookeeper.connect",
                "x",
                "zookeeper.connect (from flag --set): unknown broker config; there is no ZooKeeper",
            ),
            ("xyz", "1", "xyz (from flag --set): unknown broker config"),
            (
                "listener.name.a.ssl.keystore.location",
                "x",
                "listener.name.a.ssl.keystore.location (from flag --set): unknown broker config; settings of single \
                 listeners are not supported",
            ),
            (
                "authorizer.class.name",
                "org.Authorizer",
                "authorizer.class.name = \"org.Authorizer\" (from flag --set): refused: access control is not \
                 enforced yet; the broker would be open to everybody",
            ),
            (
                "sasl.enabled.mechanisms",
                "PLAIN",
                "sasl.enabled.mechanisms = \"PLAIN\" (from flag --set): refused: logins are not served yet; the \
                 broker would be open to everybody; only GSSAPI is possible",
            ),
        ] {
            assert_eq!(given(&[(name, value)]).unwrap_err(), message);
        }
    }

    #[test]
    fn settings_that_do_not_go_together_are_refused() {
        for pairs in [
            &[("log.retention.hours", "0")][..],
            &[("log.roll.ms", "0")],
            &[("log.roll.jitter.ms", "-1")],
            &[("group.min.session.timeout.ms", "10"), ("group.max.session.timeout.ms", "5")],
            &[("max.connections.per.ip", "0")],
            &[("log.dirs", "/a,/b")],
            &[("log.cleaner.min.compaction.lag.ms", "2"), ("log.cleaner.max.compaction.lag.ms", "1")],
            &[("listeners", "A://:1,B://:2"), ("listener.security.protocol.map", "A:PLAINTEXT,B:SASL_SSL")],
        ] {
            assert!(given(pairs).is_err(), "{pairs:?}");
        }
        assert!(
            given(&[("listeners", "A://:1"), ("listener.security.protocol.map", "A:PLAINTEXT,B:SSL")])
                .is_ok()
        );
        assert!(
            given(&[("max.connections.per.ip", "0"), ("max.connections.per.ip.overrides", "::1:5")]).is_ok()
        );
    }

    #[test]
    fn settings_without_full_effect_are_named_once() {
        let config =
            given(&[("num.io.threads", "16"), ("num.partitions", "2"), ("num.network.threads", "3")])
                .unwrap();
        let names: Vec<_> = config.without_full_effect().map(|(row, _)| row.name).collect();
        assert_eq!(names, ["num.io.threads"], "the default needs no word");
    }
}
