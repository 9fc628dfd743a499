//! Groups of the consumer protocol.

use super::rows;
use crate::config::row::{Area, Row, reason};

pub(super) const ROWS: &[Row] = rows! { Area::ConsumerGroups;
    Int "group.consumer.assignment.interval.ms" = "1000",
        AtLeast(0), ClusterWide, NoEffect(reason::NEXT_GEN) =>
        "Least milliseconds between two assignments of one group.";
    #internal Boolean "group.consumer.assignor.offload.enable" = "true",
        Any, ClusterWide,
        NoEffect(reason::NEXT_GEN) =>
        "Whether assignments are computed on a thread of their own.";
    List "group.consumer.assignors" = "uniform,range", Any, ReadOnly, NoEffect(reason::NEXT_GEN) =>
        "Assignors that the broker offers to groups of the consumer protocol; the first is the default.";
    Int "group.consumer.heartbeat.interval.ms" = "5000", AtLeast(1), ReadOnly, NoEffect(reason::NEXT_GEN) =>
        "Milliseconds between two heartbeats of a member of a consumer group.";
    Int "group.consumer.max.assignment.interval.ms" = "15000",
        AtLeast(0), ReadOnly,
        NoEffect(reason::NEXT_GEN) =>
        "Largest value that a group may set for `consumer.assignment.interval.ms`.";
    Int "group.consumer.max.heartbeat.interval.ms" = "15000",
        AtLeast(1), ReadOnly,
        NoEffect(reason::NEXT_GEN) =>
        "Largest value that a group may set for `consumer.heartbeat.interval.ms`.";
    Int "group.consumer.max.session.timeout.ms" = "60000", AtLeast(1), ReadOnly, NoEffect(reason::NEXT_GEN) =>
        "Largest value that a group may set for `consumer.session.timeout.ms`.";
    Int "group.consumer.max.size" = "2147483647", AtLeast(1), ReadOnly, NoEffect(reason::NEXT_GEN) =>
        "Most members in one group of the consumer protocol.";
    String "group.consumer.migration.policy" = "bidirectional",
        AnyCase(&["DISABLED", "DOWNGRADE", "UPGRADE", "BIDIRECTIONAL"]), ReadOnly,
        NoEffect(reason::NEXT_GEN) =>
        "Whether a group may move between the classic and the consumer protocol, and in which direction.";
    Int "group.consumer.min.assignment.interval.ms" = "0", AtLeast(0), ReadOnly, NoEffect(reason::NEXT_GEN) =>
        "Smallest value that a group may set for `consumer.assignment.interval.ms`.";
    Int "group.consumer.min.heartbeat.interval.ms" = "5000",
        AtLeast(1), ReadOnly, NoEffect(reason::NEXT_GEN) =>
        "Smallest value that a group may set for `consumer.heartbeat.interval.ms`.";
    Int "group.consumer.min.session.timeout.ms" = "45000", AtLeast(1), ReadOnly, NoEffect(reason::NEXT_GEN) =>
        "Smallest value that a group may set for `consumer.session.timeout.ms`.";
    #internal Int "group.consumer.regex.refresh.interval.ms" = "600000",
        AtLeast(10_000), ReadOnly,
        NoEffect(reason::NEXT_GEN) =>
        "Milliseconds between two looks for topics that match a group's pattern.";
    Int "group.consumer.session.timeout.ms" = "45000", AtLeast(1), ReadOnly, NoEffect(reason::NEXT_GEN) =>
        "Milliseconds without a heartbeat after which a member of a consumer group is removed.";
};
