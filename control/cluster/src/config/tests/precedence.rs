//! Which value counts.

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
        resolve::topic(&Overrides::new(), &Layers { fixed: &fixed, ..Layers::DEFAULTS }).config.retention_ms
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
