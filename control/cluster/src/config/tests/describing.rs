//! What DescribeConfigs can tell.

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
    assert_eq!(said(find(&entries, "interval.ms")), [("interval.ms", Some("50000"), Source::ClientMetrics)]);
    assert_eq!(said(find(&entries, "match")), []);
}

#[test]
fn a_default_shows_only_under_the_first_of_the_brokers_names() {
    let described = |overrides: &Overrides, cluster: &Overrides, name: &str| {
        let layers = Layers { cluster, ..Layers::DEFAULTS };
        let entries = describe_topic(overrides, &layers);
        let synonyms = find(&entries, name).synonyms.iter().map(|one| (one.name, one.source));
        synonyms.collect::<Vec<_>>()
    };
    let none = Overrides::new();
    assert_eq!(described(&none, &none, "retention.ms"), []);
    assert_eq!(described(&none, &none, "retention.bytes"), [("log.retention.bytes", Source::Default)]);
    let own = overrides(&[("retention.ms", "5")]);
    assert_eq!(described(&own, &none, "retention.ms"), [("retention.ms", Source::Topic)]);
    let cluster = overrides(&[("log.retention.ms", "7")]);
    let both = [("log.retention.ms", Source::Cluster), ("log.retention.hours", Source::Default)];
    assert_eq!(described(&none, &cluster, "retention.ms"), both);
}
