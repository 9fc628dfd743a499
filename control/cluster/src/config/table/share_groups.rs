//! Share groups.

use super::rows;
use crate::config::row::{Area, Row, reason};

pub(super) const ROWS: &[Row] = rows! { Area::ShareGroups;
    Boolean "errors.deadletterqueue.auto.create.topics.enable" = "false",
        Any, ClusterWide,
        NoEffect(reason::SHARE) =>
        "Whether topics for undeliverable records of share groups are created when needed.";
    String "errors.deadletterqueue.topic.name.prefix" = "dlq.", Any, ClusterWide, NoEffect(reason::SHARE) =>
        "What the names of topics for undeliverable records must begin with.";
    Int "group.share.assignment.interval.ms" = "1000", AtLeast(0), ClusterWide, NoEffect(reason::SHARE) =>
        "Least milliseconds between two assignments of one share group.";
    #internal Boolean "group.share.assignor.offload.enable" = "true",
        Any, ClusterWide,
        NoEffect(reason::SHARE) =>
        "Whether assignments are computed on a thread of their own.";
    List "group.share.assignors" = "simple", Any, ReadOnly, NoEffect(reason::SHARE) =>
        "The assignor of share groups.";
    Int "group.share.delivery.count.limit" = "5", Between(2, 10), ReadOnly, NoEffect(reason::SHARE) =>
        "How often a record of a share group is delivered before it is given up.";
    #internal String "group.share.dlq.manager.class.name" = "org.apache.kafka.server.share.dlq.DefaultShareGroupDLQManager",
        Any, ReadOnly,
        NoEffect(reason::PLUGIN) =>
        "Class that handles undeliverable records of share groups.";
    Int "group.share.heartbeat.interval.ms" = "5000", AtLeast(1), ReadOnly, NoEffect(reason::SHARE) =>
        "Milliseconds between two heartbeats of a member of a share group.";
    #internal Int "group.share.initialize.retry.interval.ms" = "30000",
        AtLeast(1), ReadOnly,
        NoEffect(reason::SHARE) =>
        "Milliseconds before setting up a share group's partitions is tried again.";
    Int "group.share.max.assignment.interval.ms" = "15000", AtLeast(0), ReadOnly, NoEffect(reason::SHARE) =>
        "Largest value that a group may set for `share.assignment.interval.ms`.";
    Int "group.share.max.delivery.count.limit" = "10", Between(5, 25), ReadOnly, NoEffect(reason::SHARE) =>
        "Largest value that a group may set for `share.delivery.count.limit`.";
    Int "group.share.max.heartbeat.interval.ms" = "15000", AtLeast(1), ReadOnly, NoEffect(reason::SHARE) =>
        "Largest value that a group may set for `share.heartbeat.interval.ms`.";
    Int "group.share.max.partition.max.record.locks" = "4000",
        Between(2000, 10_000), ReadOnly,
        NoEffect(reason::SHARE) =>
        "Largest value that a group may set for `share.partition.max.record.locks`.";
    Int "group.share.max.record.lock.duration.ms" = "60000",
        Between(30_000, 3_600_000), ReadOnly,
        NoEffect(reason::SHARE) =>
        "Largest value that a group may set for `share.record.lock.duration.ms`.";
    Int "group.share.max.session.timeout.ms" = "60000", AtLeast(1), ReadOnly, NoEffect(reason::SHARE) =>
        "Largest value that a group may set for `share.session.timeout.ms`.";
    Int "group.share.max.share.sessions" = "2000", AtLeast(1), ReadOnly, NoEffect(reason::SHARE) =>
        "Most share sessions on one broker.";
    Int "group.share.max.size" = "200", Between(1, 1000), ReadOnly, NoEffect(reason::SHARE) =>
        "Most members in one share group.";
    Int "group.share.min.assignment.interval.ms" = "0", AtLeast(0), ReadOnly, NoEffect(reason::SHARE) =>
        "Smallest value that a group may set for `share.assignment.interval.ms`.";
    Int "group.share.min.delivery.count.limit" = "2", Between(2, 5), ReadOnly, NoEffect(reason::SHARE) =>
        "Smallest value that a group may set for `share.delivery.count.limit`.";
    Int "group.share.min.heartbeat.interval.ms" = "5000", AtLeast(1), ReadOnly, NoEffect(reason::SHARE) =>
        "Smallest value that a group may set for `share.heartbeat.interval.ms`.";
    Int "group.share.min.partition.max.record.locks" = "100",
        Between(100, 2000), ReadOnly,
        NoEffect(reason::SHARE) =>
        "Smallest value that a group may set for `share.partition.max.record.locks`.";
    Int "group.share.min.record.lock.duration.ms" = "15000",
        Between(1000, 30_000), ReadOnly,
        NoEffect(reason::SHARE) =>
        "Smallest value that a group may set for `share.record.lock.duration.ms`.";
    Int "group.share.min.session.timeout.ms" = "45000", AtLeast(1), ReadOnly, NoEffect(reason::SHARE) =>
        "Smallest value that a group may set for `share.session.timeout.ms`.";
    Int "group.share.partition.max.record.locks" = "2000",
        Between(100, 10_000), ReadOnly,
        NoEffect(reason::SHARE) =>
        "Records of one partition that a share group may hold unacknowledged.";
    #internal String "group.share.persister.class.name" = "org.apache.kafka.server.share.persister.DefaultStatePersister",
        Any, ReadOnly,
        NoEffect(reason::PLUGIN) =>
        "Class that stores the state of share groups.";
    Int "group.share.record.lock.duration.ms" = "30000",
        Between(1000, 3_600_000), ReadOnly,
        NoEffect(reason::SHARE) =>
        "Milliseconds for which a record belongs to the member that fetched it.";
    Int "group.share.session.timeout.ms" = "45000", AtLeast(1), ReadOnly, NoEffect(reason::SHARE) =>
        "Milliseconds without a heartbeat after which a member of a share group is removed.";
    Int "share.coordinator.append.linger.ms" = "-1", AtLeast(-1), ReadOnly, NoEffect(reason::SHARE) =>
        "Milliseconds for which the share coordinator gathers writes before it appends them; -1 adapts to \
         the load.";
    Int "share.coordinator.cached.buffer.max.bytes" = "1048588",
        AtLeast(524_288), ClusterWide,
        NoEffect(reason::SHARE) =>
        "Largest buffer in bytes that the share coordinator keeps for reuse.";
    #internal Int "share.coordinator.cold.partition.snapshot.interval.ms" = "300000",
        AtLeast(1), ReadOnly,
        NoEffect(reason::SHARE) =>
        "Milliseconds between snapshots of partitions that see no traffic.";
    Int "share.coordinator.load.buffer.size" = "5242880", AtLeast(1), ReadOnly, NoEffect(reason::SHARE) =>
        "Bytes read at a time while share state is loaded.";
    Int "share.coordinator.snapshot.update.records.per.snapshot" = "500",
        Between(0, 500), ReadOnly,
        NoEffect(reason::SHARE) =>
        "Updates written between two full snapshots of share state.";
    Int "share.coordinator.state.topic.compression.codec" = "0", Any, ReadOnly, NoEffect(reason::SHARE) =>
        "Codec of the share state topic: 0 none, 1 gzip, 2 snappy, 3 lz4, 4 zstd.";
    Short "share.coordinator.state.topic.min.isr" = "2", AtLeast(1), ReadOnly, NoEffect(reason::SHARE) =>
        "`min.insync.replicas` of the share state topic.";
    Int "share.coordinator.state.topic.num.partitions" = "50",
        AtLeast(1), ReadOnly, NoEffect(reason::SHARE) =>
        "Partitions of the share state topic.";
    #internal Int "share.coordinator.state.topic.prune.interval.ms" = "300000",
        AtLeast(1), ReadOnly,
        NoEffect(reason::SHARE) =>
        "Milliseconds between two trims of the share state topic.";
    Short "share.coordinator.state.topic.replication.factor" = "3",
        AtLeast(1), ReadOnly,
        NoEffect(reason::SHARE) =>
        "Copies of the share state topic.";
    Int "share.coordinator.state.topic.segment.bytes" = "104857600",
        AtLeast(1), ReadOnly,
        NoEffect(reason::SHARE) =>
        "Segment size in bytes of the share state topic.";
    Int "share.coordinator.threads" = "1", AtLeast(1), ReadOnly, NoEffect(reason::SHARE) =>
        "Threads that run share coordinators.";
    Int "share.coordinator.write.timeout.ms" = "5000", AtLeast(1), ReadOnly, NoEffect(reason::SHARE) =>
        "Milliseconds that a write of share state may take.";
};
