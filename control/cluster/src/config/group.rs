//! What a group obeys, as code reads it. The classic protocol's members bring their own timeouts: these are for
//! groups of the consumer protocol.

use super::resolve::Reader;

/// The settings of one group that count, wherever they were said.
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct GroupConfig {
    /// `consumer.session.timeout.ms`.
    pub session_timeout_ms: i32,
    /// `consumer.heartbeat.interval.ms`.
    pub heartbeat_interval_ms: i32,
    /// `consumer.assignment.interval.ms`.
    pub assignment_interval_ms: i32,
}

impl GroupConfig {
    pub(super) fn read(reader: &mut Reader<'_>) -> GroupConfig {
        GroupConfig {
            session_timeout_ms: reader.int("consumer.session.timeout.ms"),
            heartbeat_interval_ms: reader.int("consumer.heartbeat.interval.ms"),
            assignment_interval_ms: reader.int("consumer.assignment.interval.ms"),
        }
    }
}
