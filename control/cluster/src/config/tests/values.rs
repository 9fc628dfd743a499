//! What is allowed and what is said about the rest.

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
        ("max.connections.per.ip.overrides", "::1:5,10.0.0.1:7", "::1:5,10.0.0.1:7"),
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
        ("min.cleanable.dirty.ratio", "2", "min.cleanable.dirty.ratio = \"2\": must be a number from 0 to 1"),
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
        ("max.connections.per.ip.overrides", "localhost:5"),
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
