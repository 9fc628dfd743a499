//! Streams groups.

use super::rows;
use crate::config::row::{Area, Row, reason};

pub(super) const ROWS: &[Row] = rows! { Area::StreamsGroups;
    #internal Long "group.streams.acceptable.recovery.lag" = "10000",
        AtLeast(0), ReadOnly,
        NoEffect(reason::STREAMS) =>
        "Records that a task's state may lag and still count as ready.";
    Int "group.streams.assignment.interval.ms" = "1000", AtLeast(0), ClusterWide, NoEffect(reason::STREAMS) =>
        "Least milliseconds between two assignments of one streams group.";
    #internal Boolean "group.streams.assignor.offload.enable" = "true",
        Any, ClusterWide,
        NoEffect(reason::STREAMS) =>
        "Whether assignments are computed on a thread of their own.";
    List "group.streams.assignors" = "sticky", Any, ReadOnly, NoEffect(reason::STREAMS) =>
        "The assignor of streams groups.";
    Int "group.streams.heartbeat.interval.ms" = "5000", AtLeast(1), ReadOnly, NoEffect(reason::STREAMS) =>
        "Milliseconds between two heartbeats of a member of a streams group.";
    Int "group.streams.initial.rebalance.delay.ms" = "3000",
        AtLeast(0), ReadOnly, NoEffect(reason::STREAMS) =>
        "Milliseconds for which an empty streams group waits for more members after the first joins.";
    Int "group.streams.max.assignment.interval.ms" = "15000",
        AtLeast(0), ReadOnly, NoEffect(reason::STREAMS) =>
        "Largest value that a group may set for `streams.assignment.interval.ms`.";
    Int "group.streams.max.heartbeat.interval.ms" = "15000",
        AtLeast(1), ReadOnly, NoEffect(reason::STREAMS) =>
        "Largest value that a group may set for `streams.heartbeat.interval.ms`.";
    Int "group.streams.max.session.timeout.ms" = "60000", AtLeast(1), ReadOnly, NoEffect(reason::STREAMS) =>
        "Largest value that a group may set for `streams.session.timeout.ms`.";
    Int "group.streams.max.size" = "2147483647", AtLeast(1), ReadOnly, NoEffect(reason::STREAMS) =>
        "Most members in one streams group.";
    Int "group.streams.max.standby.replicas" = "2", AtLeast(0), ReadOnly, NoEffect(reason::STREAMS) =>
        "Largest value that a group may set for `streams.num.standby.replicas`.";
    #internal Int "group.streams.max.warmup.replicas" = "20",
        AtLeast(0), ReadOnly, NoEffect(reason::STREAMS) =>
        "Largest value that a group may set for `streams.num.warmup.replicas`.";
    Int "group.streams.min.assignment.interval.ms" = "0", AtLeast(0), ReadOnly, NoEffect(reason::STREAMS) =>
        "Smallest value that a group may set for `streams.assignment.interval.ms`.";
    Int "group.streams.min.heartbeat.interval.ms" = "5000", AtLeast(1), ReadOnly, NoEffect(reason::STREAMS) =>
        "Smallest value that a group may set for `streams.heartbeat.interval.ms`.";
    Int "group.streams.min.session.timeout.ms" = "45000", AtLeast(1), ReadOnly, NoEffect(reason::STREAMS) =>
        "Smallest value that a group may set for `streams.session.timeout.ms`.";
    #internal Int "group.streams.min.task.offset.interval.ms" = "15000",
        AtLeast(1), ReadOnly,
        NoEffect(reason::STREAMS) =>
        "Smallest value that a group may set for `streams.task.offset.interval.ms`.";
    Int "group.streams.num.standby.replicas" = "0", AtLeast(0), ReadOnly, NoEffect(reason::STREAMS) =>
        "Standby tasks kept beside each stateful task of a streams group.";
    #internal Int "group.streams.num.warmup.replicas" = "2",
        AtLeast(0), ReadOnly, NoEffect(reason::STREAMS) =>
        "Extra tasks that may warm up at one time in a streams group.";
    List "group.streams.rack.aware.assignment.tags" = "", Any, ReadOnly, NoEffect(reason::STREAMS) =>
        "Client tags by which standby tasks are spread.";
    Int "group.streams.session.timeout.ms" = "45000", AtLeast(1), ReadOnly, NoEffect(reason::STREAMS) =>
        "Milliseconds without a heartbeat after which a member of a streams group is removed.";
    #internal Int "group.streams.task.offset.interval.ms" = "60000",
        AtLeast(1), ReadOnly,
        NoEffect(reason::STREAMS) =>
        "Milliseconds between two reports of task offsets by a member.";
    Class "group.streams.topology.description.plugin.class" = null, Any, ReadOnly, NoEffect(reason::PLUGIN) =>
        "Class that stores descriptions of streams topologies.";
};
