//! Groups and their offsets.

use super::rows;
use crate::config::row::{Area, Row, reason};

pub(super) const ROWS: &[Row] = rows! { Area::Groups;
    Int "group.coordinator.append.linger.ms" = "-1", AtLeast(-1), ReadOnly, NoEffect(reason::OWN_PACE) =>
        "Milliseconds for which the coordinator gathers writes before it appends them; -1 adapts to the \
         load.";
    Int "group.coordinator.background.threads" = "2", AtLeast(1), ReadOnly, NoEffect(reason::THREADS) =>
        "Threads for the coordinator's background work.";
    Int "group.coordinator.cached.buffer.max.bytes" = "1048588",
        AtLeast(524_288), ClusterWide,
        NoEffect(reason::THREADS) =>
        "Largest buffer in bytes that the coordinator keeps for reuse.";
    List "group.coordinator.rebalance.protocols" = "classic",
        EachOf(&["classic"]), ReadOnly,
        Partly("only the classic protocol is served; the others are refused") =>
        "Which group protocols the broker serves.";
    Int "group.coordinator.threads" = "4", AtLeast(1), ReadOnly, NoEffect(reason::THREADS) =>
        "Threads that run group coordinators.";
    Int "group.initial.rebalance.delay.ms" = "3000", Any, ReadOnly, Honoured =>
        "Milliseconds for which an empty group waits for more members after the first joins, so that a \
         starting application rebalances once.";
    Int "group.max.session.timeout.ms" = "1800000", Any, ReadOnly, Honoured =>
        "Longest session timeout in milliseconds that a classic group member may ask for.";
    Int "group.max.size" = "2147483647", AtLeast(1), ReadOnly, Honoured =>
        "Most members in one classic group; further ones are refused.";
    Int "group.min.session.timeout.ms" = "6000", Any, ReadOnly, Honoured =>
        "Shortest session timeout in milliseconds that a classic group member may ask for.";
    Int "offset.metadata.max.bytes" = "4096", Any, ReadOnly, Honoured =>
        "Longest note that a client may store beside a committed offset.";
    Int "offsets.commit.timeout.ms" = "5000", AtLeast(1), ReadOnly, Honoured =>
        "Milliseconds that a commit may wait until it is stored; then it is answered with an error.";
    Int "offsets.load.buffer.size" = "5242880", AtLeast(1), ReadOnly, NoEffect(reason::OWN_PACE) =>
        "Bytes read at a time while groups are loaded.";
    Long "offsets.retention.check.interval.ms" = "600000", AtLeast(1), ReadOnly, Honoured =>
        "Milliseconds between two looks for offsets that have expired.";
    Int "offsets.retention.minutes" = "10080", AtLeast(1), ReadOnly, Honoured =>
        "How long, in minutes, the offsets of a group without members are kept.";
    Int "offsets.topic.compression.codec" = "0", Any, ReadOnly, NoEffect(reason::OWN_PACE) =>
        "Codec of the batches that the coordinator writes: 0 none, 1 gzip, 2 snappy, 3 lz4, 4 zstd.";
    Int "offsets.topic.num.partitions" = "50", AtLeast(1), ReadOnly, Honoured =>
        "Partitions of `__consumer_offsets`. Fixed once the topic exists.";
    Short "offsets.topic.replication.factor" = "3", AtLeast(1), ReadOnly, Honoured =>
        "Copies of `__consumer_offsets`. It begins with one, and gets the others as brokers join.";
    Int "offsets.topic.segment.bytes" = "104857600", AtLeast(1), ReadOnly, Honoured =>
        "Segment size in bytes of `__consumer_offsets`; small segments load and compact sooner.";
};
