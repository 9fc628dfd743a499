//! Creating, describing and deleting topics.

use super::rows;
use crate::config::row::{Area, Row, reason};

pub(super) const ROWS: &[Row] = rows! { Area::Topics;
    Class "alter.config.policy.class.name" = null, Any, ReadOnly, Refused(reason::POLICY) =>
        "Class that decides whether a config may be changed.";
    Boolean "auto.create.topics.enable" = "true", Any, ReadOnly, Honoured =>
        "Whether a client that asks for an unknown topic, and allows it, gets it created with the \
         defaults.";
    Class "create.topic.policy.class.name" = null, Any, ReadOnly, Refused(reason::POLICY) =>
        "Class that decides whether a topic may be created.";
    Int "default.replication.factor" = "1",
        Any, ReadOnly, Honoured =>
        "How many copies a topic gets when its creator names no number; no more than there are brokers.";
    Boolean "delete.topic.enable" = "true", Any, ReadOnly, Honoured =>
        "Whether topics may be deleted; when false, the request is refused.";
    Int "max.request.partition.size.limit" = "2000", AtLeast(1), ReadOnly, Honoured =>
        "Most partitions in one answer to DescribeTopicPartitions; clients page through the rest.";
    Int "min.insync.replicas" = "1", AtLeast(1), ClusterWide, Honoured =>
        "Default of the topic config of the same name.";
    Int "num.partitions" = "1", AtLeast(1), ReadOnly, Honoured =>
        "How many partitions a topic gets when its creator names no number.";
};
