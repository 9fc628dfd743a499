//! What a node may be started with.

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
    let config = given(&[("log.retention.ms", "5"), ("num.partitions", " 3 "), ("broker.id", "7")]).unwrap();
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
        &[("queued.max.request.bytes", "1000000")],
        &[("log.cleaner.min.compaction.lag.ms", "2"), ("log.cleaner.max.compaction.lag.ms", "1")],
        &[("listeners", "A://:1,B://:2"), ("listener.security.protocol.map", "A:PLAINTEXT,B:SASL_SSL")],
    ] {
        assert!(given(pairs).is_err(), "{pairs:?}");
    }
    assert!(
        given(&[("listeners", "A://:1"), ("listener.security.protocol.map", "A:PLAINTEXT,B:SSL")]).is_ok()
    );
    let queued = [("queued.max.request.bytes", "1000000"), ("socket.request.max.bytes", "1000000")];
    assert!(given(&queued).is_ok());
    assert!(given(&[("max.connections.per.ip", "0"), ("max.connections.per.ip.overrides", "::1:5")]).is_ok());
}

#[test]
fn settings_without_full_effect_are_named_once() {
    let config =
        given(&[("num.io.threads", "16"), ("num.partitions", "2"), ("num.network.threads", "3")]).unwrap();
    let names: Vec<_> = config.without_full_effect().map(|(row, _)| row.name).collect();
    assert_eq!(names, ["num.io.threads"], "the default needs no word");
}

/// Found by fuzzing: -1 is what `broker.id` is where nobody gives one, and no `node.id` at all.
#[test]
fn a_broker_id_of_none_is_not_a_node_id() {
    let config = given(&[("broker.id", "-1")]).unwrap();
    assert_eq!(config.values().get("node.id"), None);
    let config = given(&[("node.id", "4"), ("broker.id", "-1")]).unwrap();
    let layers = Layers { fixed: config.values(), ..Layers::DEFAULTS };
    assert_eq!(resolve::broker(&layers).config.node.id, 4);
}
