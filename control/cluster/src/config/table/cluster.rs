//! The node and its cluster.

use super::rows;
use crate::config::row::{Area, Row, reason};

pub(super) const ROWS: &[Row] = rows! { Area::Cluster;
    Int "broker.heartbeat.interval.ms" = "2000", Any, ReadOnly, NoEffect(reason::LEASE) =>
        "Milliseconds between two heartbeats of a broker to the controller.";
    Int "broker.id" = "-1", Any, ReadOnly, Honoured =>
        "The broker's number; the same as `node.id` and the flag `--node-id`, which wins.";
    String "broker.rack" = null, Any, ReadOnly, Honoured =>
        "The rack where the broker stands; the same as the flag `--rack`, which wins.";
    Int "broker.session.timeout.ms" = "9000", Any, ReadOnly, NoEffect(reason::LEASE) =>
        "Milliseconds without a heartbeat after which a broker counts as dead.";
    List "controller.listener.names" = "", Any, ReadOnly, NoEffect(reason::KRAFT) =>
        "Listeners for controllers.";
    #internal Long "controller.performance.always.log.threshold.ms" = "2000",
        AtLeast(0), ReadOnly,
        NoEffect(reason::KRAFT) =>
        "Milliseconds from which a slow controller event is logged.";
    #internal Long "controller.performance.sample.period.ms" = "60000",
        AtLeast(100), ReadOnly,
        NoEffect(reason::KRAFT) =>
        "Milliseconds between two logs of controller performance.";
    Int "controller.quorum.append.linger.ms" = "25", AtLeast(0), ReadOnly, NoEffect(reason::KRAFT) =>
        "Milliseconds for which the controller gathers writes.";
    Boolean "controller.quorum.auto.join.enable" = "false", Any, ReadOnly, NoEffect(reason::KRAFT) =>
        "Whether a controller joins the quorum by itself.";
    List "controller.quorum.bootstrap.servers" = "", Any, ReadOnly, Refused(reason::JOIN) =>
        "Addresses of a KRaft quorum to join.";
    Int "controller.quorum.election.backoff.max.ms" = "1000", AtLeast(0), ReadOnly, NoEffect(reason::KRAFT) =>
        "Longest pause in milliseconds before another quorum election.";
    Int "controller.quorum.election.timeout.ms" = "1000", AtLeast(0), ReadOnly, NoEffect(reason::KRAFT) =>
        "Milliseconds without a quorum leader's answer before an election.";
    Int "controller.quorum.fetch.max.bytes" = "1048576", AtLeast(1), ReadOnly, NoEffect(reason::KRAFT) =>
        "Bytes of metadata in one fetch.";
    Int "controller.quorum.fetch.snapshot.max.bytes" = "1048576",
        AtLeast(1), ReadOnly,
        NoEffect(reason::KRAFT) =>
        "Bytes of a metadata snapshot in one fetch.";
    Int "controller.quorum.fetch.timeout.ms" = "2000", AtLeast(0), ReadOnly, NoEffect(reason::KRAFT) =>
        "Milliseconds without a successful fetch before a voter asks for an election.";
    Int "controller.quorum.request.timeout.ms" = "2000", AtLeast(0), ReadOnly, NoEffect(reason::KRAFT) =>
        "Milliseconds that a quorum member waits for an answer.";
    Int "controller.quorum.retry.backoff.ms" = "20", AtLeast(0), ReadOnly, NoEffect(reason::KRAFT) =>
        "Milliseconds between tries of a failed quorum request.";
    List "controller.quorum.voters" = "", Any, ReadOnly, Refused(reason::JOIN) =>
        "Members of a KRaft quorum to join.";
    Int "controller.socket.timeout.ms" = "30000", Any, ReadOnly, NoEffect(reason::KRAFT) =>
        "Milliseconds that a controller waits for a broker's answer.";
    Int "initial.broker.registration.timeout.ms" = "60000", Any, ReadOnly, NoEffect(reason::LEASE) =>
        "Milliseconds that a broker tries to register before it gives up.";
    String "inter.broker.listener.name" = null, Any, ReadOnly, NoEffect(reason::OWN_PORT) =>
        "Listener that other brokers use.";
    #internal Long "internal.metadata.delete.delay.millis" = "60000",
        Any, ReadOnly, NoEffect(reason::KRAFT) =>
        "Milliseconds before old metadata files are removed.";
    #internal Int "internal.metadata.log.segment.bytes" = null, Any, ReadOnly, NoEffect(reason::KRAFT) =>
        "Segment size in bytes of the metadata log, for tests.";
    #internal Int "internal.metadata.max.batch.size.in.bytes" = "8388608",
        Any, ReadOnly,
        NoEffect(reason::KRAFT) =>
        "Largest batch in bytes of the metadata log.";
    String "metadata.log.dir" = null, Any, ReadOnly, NoEffect(reason::KRAFT) =>
        "Where the metadata log is kept.";
    Long "metadata.log.max.record.bytes.between.snapshots" = "20971520",
        AtLeast(1), ReadOnly,
        NoEffect(reason::KRAFT) =>
        "Bytes of metadata after which a snapshot is written.";
    Long "metadata.log.max.snapshot.interval.ms" = "3600000", AtLeast(0), ReadOnly, NoEffect(reason::KRAFT) =>
        "Milliseconds after which a snapshot of the metadata is written.";
    Int "metadata.log.segment.bytes" = "1073741824", AtLeast(8_388_608), ReadOnly, NoEffect(reason::KRAFT) =>
        "Segment size in bytes of the metadata log.";
    Long "metadata.log.segment.ms" = "604800000", Any, ReadOnly, NoEffect(reason::KRAFT) =>
        "Age in milliseconds at which the metadata log starts a new segment.";
    Int "metadata.max.idle.interval.ms" = "500", AtLeast(0), ReadOnly, NoEffect(reason::KRAFT) =>
        "Milliseconds between two writes that show that the metadata log is alive.";
    Long "metadata.max.retention.bytes" = "104857600", Any, ReadOnly, NoEffect(reason::KRAFT) =>
        "Bytes of metadata log and snapshots that are kept.";
    Long "metadata.max.retention.ms" = "604800000", Any, ReadOnly, NoEffect(reason::KRAFT) =>
        "Milliseconds for which metadata log and snapshots are kept.";
    Int "node.id" = "1", AtLeast(0), ReadOnly, Honoured =>
        "The broker's number, stable over restarts; the same as the flag `--node-id`, which wins.";
    List "process.roles" = "broker,controller",
        EachOf(&["broker", "controller"]), ReadOnly,
        NoEffect(reason::KRAFT) =>
        "Roles of the process. Every node is a broker and may run the cluster's rules.";
    #internal Long "server.max.startup.time.ms" = "9223372036854775807",
        AtLeast(0), ReadOnly,
        NoEffect(reason::OWN_PACE) =>
        "Milliseconds that a start may take.";
    #internal Boolean "unstable.feature.versions.enable" = "false",
        Any, ReadOnly, NoEffect(reason::UNSTABLE) =>
        "Whether feature levels that are still being designed may be used.";
};
