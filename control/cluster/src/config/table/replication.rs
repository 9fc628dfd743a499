//! Copies on several brokers.

use super::rows;
use crate::config::row::{Area, Row, reason};

pub(super) const ROWS: &[Row] = rows! { Area::Replication;
    Int "alter.log.dirs.replication.quota.window.num" = "11",
        AtLeast(1), ReadOnly,
        NoEffect(reason::ONE_DIR) =>
        "Samples kept for the throttle on moves between data directories.";
    Int "alter.log.dirs.replication.quota.window.size.seconds" = "1",
        AtLeast(1), ReadOnly,
        NoEffect(reason::ONE_DIR) =>
        "Seconds that one such sample covers.";
    Boolean "auto.leader.rebalance.enable" = "true", Any, ReadOnly, NoEffect(reason::ONE_NODE) =>
        "Whether leadership moves back to preferred brokers by itself.";
    Boolean "controlled.shutdown.enable" = "true", Any, ReadOnly, NoEffect(reason::HANDOVER) =>
        "Whether a stopping broker hands its partitions over first.";
    Boolean "follower.fetch.last.tiered.offset.enable" = "false",
        Any, ClusterWide, NoEffect(reason::TIERED) =>
        "Whether a new follower starts where remote storage ends.";
    Long "follower.replication.throttled.rate" = "9223372036854775807",
        AtLeast(0), ClusterWide, Honoured =>
        "Bytes per second that throttled copies on this broker may be sent all together while they are not in sync \
         (`follower.replication.throttled.replicas`). Its leaders share it equally. What a broker is started with is not known to \
         them: set it while brokers run.";
    Long "leader.imbalance.check.interval.seconds" = "300",
        AtLeast(1), ReadOnly, NoEffect(reason::ONE_NODE) =>
        "Seconds between two looks for leadership away from preferred brokers.";
    Long "leader.replication.throttled.rate" = "9223372036854775807",
        AtLeast(0), ClusterWide, Honoured =>
        "Bytes per second that this broker may send of throttled copies all together to followers that are not in sync \
         (`leader.replication.throttled.replicas`).";
    Int "num.replica.alter.log.dirs.threads" = null, Any, ReadOnly, NoEffect(reason::ONE_DIR) =>
        "Threads that move copies between data directories.";
    Int "num.replica.fetchers" = "1", AtLeast(1), ClusterWide, NoEffect(reason::PUSH) =>
        "Threads that fetch from each other broker.";
    Long "replica.alter.log.dirs.io.max.bytes.per.second" = "9223372036854775807",
        AtLeast(0), ClusterWide,
        NoEffect(reason::ONE_DIR) =>
        "Bytes per second for moves between data directories.";
    Int "replica.fetch.backoff.ms" = "1000", AtLeast(0), ReadOnly, NoEffect(reason::PUSH) =>
        "Milliseconds that a follower rests after a failed fetch.";
    Int "replica.fetch.max.bytes" = "1048576", AtLeast(0), ReadOnly, NoEffect(reason::PUSH) =>
        "Bytes of one partition in a follower's fetch.";
    Int "replica.fetch.min.bytes" = "1", Any, ReadOnly, NoEffect(reason::PUSH) =>
        "Bytes that a follower's fetch waits for.";
    Int "replica.fetch.response.max.bytes" = "10485760", AtLeast(0), ReadOnly, NoEffect(reason::PUSH) =>
        "Bytes of one answer to a follower's fetch.";
    Int "replica.fetch.wait.max.ms" = "500", Any, ReadOnly, NoEffect(reason::PUSH) =>
        "Milliseconds that a follower's fetch may wait.";
    Long "replica.high.watermark.checkpoint.interval.ms" = "5000",
        Any, ReadOnly, NoEffect(reason::OWN_TABLE) =>
        "Milliseconds between two writes of the marks to disk.";
    Long "replica.lag.time.max.ms" = "30000", Any, ReadOnly, NoEffect(reason::PUSH) =>
        "Milliseconds after which a follower that is behind leaves the in-sync set.";
    String "replica.selector.class" = null, Any, ReadOnly, NoEffect(reason::PLUGIN) =>
        "Class that sends consumers to other copies than the leader's. Reads go to the leader.";
    Int "replica.socket.receive.buffer.bytes" = "65536", Any, ReadOnly, NoEffect(reason::PUSH) =>
        "Receive buffer in bytes of a follower's connection.";
    Int "replica.socket.timeout.ms" = "30000", Any, ReadOnly, NoEffect(reason::PUSH) =>
        "Milliseconds that a follower waits for its leader's answer.";
    Int "replication.quota.window.num" = "11", AtLeast(1), ReadOnly, NoEffect(reason::THROTTLE) =>
        "Samples kept for the throttle on replication.";
    Int "replication.quota.window.size.seconds" = "1", AtLeast(1), ReadOnly, NoEffect(reason::THROTTLE) =>
        "Seconds that one such sample covers.";
    Boolean "unclean.leader.election.enable" = "false", Any, ClusterWide, NoEffect(reason::UNCLEAN) =>
        "Default of the topic config of the same name.";
    #internal Long "unclean.leader.election.interval.ms" = "300000",
        AtLeast(1), ReadOnly,
        NoEffect(reason::UNCLEAN) =>
        "Milliseconds between two looks for partitions that an unclean election could help.";
};
