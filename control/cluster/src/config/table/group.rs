//! What single groups can be told: every group config.

use super::rows;
use crate::config::row::{Area, Row, reason};

pub(super) const ROWS: &[Row] = rows! { Area::Group;
    Int "consumer.assignment.interval.ms" = "1000", AtLeast(0), ClusterWide, NoEffect(reason::NEXT_GEN) =>
        "Least milliseconds between two assignments of this group.";
    #internal Boolean "consumer.assignor.offload.enable" = "true",
        Any, ClusterWide,
        NoEffect(reason::NEXT_GEN) =>
        "Whether this group's assignments are computed on a thread of their own.";
    Int "consumer.heartbeat.interval.ms" = "5000", AtLeast(1), ClusterWide, NoEffect(reason::NEXT_GEN) =>
        "Milliseconds between two heartbeats of this group's members.";
    Int "consumer.session.timeout.ms" = "45000", AtLeast(1), ClusterWide, NoEffect(reason::NEXT_GEN) =>
        "Milliseconds without a heartbeat after which a member of this group is removed.";
    Boolean "errors.deadletterqueue.copy.record.enable" = "false",
        Any, ClusterWide, NoEffect(reason::SHARE) =>
        "Whether undeliverable records are copied whole to this group's topic for them.";
    String "errors.deadletterqueue.topic.name" = "", Any, ClusterWide, NoEffect(reason::SHARE) =>
        "Topic for this group's undeliverable records.";
    Int "share.assignment.interval.ms" = "1000", AtLeast(0), ClusterWide, NoEffect(reason::SHARE) =>
        "Least milliseconds between two assignments of this share group.";
    #internal Boolean "share.assignor.offload.enable" = "true", Any, ClusterWide, NoEffect(reason::SHARE) =>
        "Whether this share group's assignments are computed on a thread of their own.";
    String "share.auto.offset.reset" = "latest", OffsetReset, ClusterWide, NoEffect(reason::SHARE) =>
        "Where this share group starts on a partition that is new to it: `earliest`, `latest` or \
         `by_duration:` with an ISO duration.";
    Int "share.delivery.count.limit" = "5", AtLeast(2), ClusterWide, NoEffect(reason::SHARE) =>
        "How often a record is delivered to this share group before it is given up.";
    Int "share.heartbeat.interval.ms" = "5000", AtLeast(1), ClusterWide, NoEffect(reason::SHARE) =>
        "Milliseconds between two heartbeats of this share group's members.";
    String "share.isolation.level" = "read_uncommitted",
        OneOf(&["read_committed", "read_uncommitted"]), ClusterWide,
        NoEffect(reason::SHARE) =>
        "Whether this share group sees records of open and aborted transactions.";
    Int "share.partition.max.record.locks" = "2000", AtLeast(100), ClusterWide, NoEffect(reason::SHARE) =>
        "Records of one partition that this share group may hold unacknowledged.";
    Int "share.record.lock.duration.ms" = "30000", AtLeast(1000), ClusterWide, NoEffect(reason::SHARE) =>
        "Milliseconds for which a record belongs to the member that fetched it.";
    Boolean "share.renew.acknowledge.enable" = "true", Any, ClusterWide, NoEffect(reason::SHARE) =>
        "Whether members may prolong their hold on a record.";
    Int "share.session.timeout.ms" = "45000", AtLeast(1), ClusterWide, NoEffect(reason::SHARE) =>
        "Milliseconds without a heartbeat after which a member of this share group is removed.";
    #internal Long "streams.acceptable.recovery.lag" = "10000",
        AtLeast(0), ClusterWide,
        NoEffect(reason::STREAMS) =>
        "Records that a task's state may lag and still count as ready.";
    Int "streams.assignment.interval.ms" = "1000", AtLeast(0), ClusterWide, NoEffect(reason::STREAMS) =>
        "Least milliseconds between two assignments of this streams group.";
    String "streams.assignor.name" = null, Any, ClusterWide, NoEffect(reason::STREAMS) =>
        "This streams group's assignor.";
    #internal Boolean "streams.assignor.offload.enable" = "true",
        Any, ClusterWide, NoEffect(reason::STREAMS) =>
        "Whether this streams group's assignments are computed on a thread of their own.";
    Int "streams.heartbeat.interval.ms" = "5000", AtLeast(1), ClusterWide, NoEffect(reason::STREAMS) =>
        "Milliseconds between two heartbeats of this streams group's members.";
    Int "streams.initial.rebalance.delay.ms" = "3000", AtLeast(0), ClusterWide, NoEffect(reason::STREAMS) =>
        "Milliseconds for which this streams group waits for more members after the first joins.";
    Int "streams.num.standby.replicas" = "0", AtLeast(0), ClusterWide, NoEffect(reason::STREAMS) =>
        "Standby tasks kept beside each stateful task.";
    #internal Int "streams.num.warmup.replicas" = "2", AtLeast(0), ClusterWide, NoEffect(reason::STREAMS) =>
        "Extra tasks that may warm up at one time.";
    List "streams.rack.aware.assignment.tags" = "", Any, ClusterWide, NoEffect(reason::STREAMS) =>
        "Client tags by which standby tasks are spread.";
    Int "streams.session.timeout.ms" = "45000", AtLeast(1), ClusterWide, NoEffect(reason::STREAMS) =>
        "Milliseconds without a heartbeat after which a member of this streams group is removed.";
    #internal Int "streams.task.offset.interval.ms" = "60000",
        AtLeast(1), ClusterWide,
        NoEffect(reason::STREAMS) =>
        "Milliseconds between two reports of task offsets by a member.";
};
