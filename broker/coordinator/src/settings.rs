//! What the broker's configuration says about groups. Every field may change while groups live.

use std::time::Duration;

/// Configured bounds and delays. The defaults are Kafka's.
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct Settings {
    /// `group.min.session.timeout.ms`
    pub min_session_timeout_ms: i32,
    /// `group.max.session.timeout.ms`
    pub max_session_timeout_ms: i32,
    /// `group.initial.rebalance.delay.ms`: how long the first join of an empty group waits for others.
    pub initial_rebalance_delay: Duration,
    /// `group.max.size`
    pub max_members: usize,
    /// How long a member that has just joined may wait for the join to complete. It does not know its id
    /// yet, so it cannot send heartbeats.
    pub new_member_join_timeout: Duration,
    /// `offsets.retention.minutes`
    pub offsets_retention: Duration,
    /// `offsets.retention.check.interval.ms`
    pub retention_check_interval: Duration,
    /// `offset.metadata.max.bytes`: letters of an offset's metadata, as Kafka counts them (UTF-16 units).
    pub offset_metadata_max: usize,
    /// How many bytes of metadata and assignments one group may hold: it is stored as one record.
    pub group_bytes_max: usize,
    /// How many member ids may be given out to clients that have not joined with them, per group.
    pub pending_members_max: usize,
    /// How many groups may exist in memory only, before their first generation is stored.
    pub unstored_groups_max: usize,
}

impl Default for Settings {
    fn default() -> Self {
        Settings {
            min_session_timeout_ms: 6_000,
            max_session_timeout_ms: 1_800_000,
            initial_rebalance_delay: Duration::from_secs(3),
            max_members: usize::MAX,
            new_member_join_timeout: Duration::from_secs(300),
            offsets_retention: Duration::from_secs(7 * 24 * 3600),
            retention_check_interval: Duration::from_secs(600),
            offset_metadata_max: 4096,
            group_bytes_max: 64 << 20,
            pending_members_max: 10_000,
            unstored_groups_max: 100_000,
        }
    }
}

/// The longest name (group id, member id, topic) that a stored record can carry: its length is an `i16`.
pub const NAME_MAX: usize = i16::MAX as usize;
