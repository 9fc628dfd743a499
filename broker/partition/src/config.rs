//! What a copy obeys: its topic's configs, already resolved to numbers. All partitions of a topic share one.

use std::time::Duration;

use felix_protocol::ids::Offset;
use felix_storage::LogConfig;

/// Settings of one copy; changed on a live copy by [`crate::Copy::configure`].
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct PartitionConfig {
    /// The log's own.
    pub log: LogConfig,
    /// When appends become durable.
    pub flush: FlushPolicy,
    /// `felix.consistency=quorum`: acks=1 is held to the mark too.
    pub quorum: bool,
    /// How many members an acknowledgement needs ([`felix_replication::mark::need`]).
    pub need: usize,
}

impl Default for PartitionConfig {
    fn default() -> Self {
        PartitionConfig { log: LogConfig::default(), flush: FlushPolicy::default(), quorum: false, need: 1 }
    }
}

/// `flush.messages` and `flush.ms`.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub struct FlushPolicy {
    /// Fewer records than this may be counted without being flushed: 1 counts only what is flushed,
    /// `i64::MAX` counts whatever is written (the page cache's promise).
    pub messages: i64,
    /// Nothing stays unflushed for longer than this.
    pub within: Option<Duration>,
}

impl Default for FlushPolicy {
    fn default() -> Self {
        FlushPolicy { messages: 1, within: None }
    }
}

impl FlushPolicy {
    /// Up to where the log counts as durable, written to `end` and flushed to `flushed`. An
    /// acknowledgement never waits for a flush that the policy does not ask for, and never goes before one
    /// that it does:
    ///
    /// ```text
    ///   messages = 4        flushed         counted       end
    ///        ───────────────────●─────┼─────┼─────○─────┼────○       counted = min(end, flushed + 3)
    /// ```
    pub fn counted(&self, flushed: Offset, end: Offset) -> Offset {
        end.min(flushed.saturating_add(self.messages.max(1) - 1))
    }

    /// Whether so many unflushed records ask for a flush now.
    pub fn asks(&self, flushed: Offset, end: Offset) -> bool {
        end - flushed >= self.messages.max(1)
    }

    /// Whether bytes that no flush covered may be counted at all.
    pub fn counts_unsynced(&self) -> bool {
        self.messages > 1
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn what_counts_as_durable() {
        let policy = |messages| FlushPolicy { messages, within: None };
        assert_eq!(policy(1).counted(10, 25), 10);
        assert_eq!(policy(4).counted(10, 12), 12);
        assert_eq!(policy(4).counted(10, 25), 13);
        assert_eq!(policy(i64::MAX).counted(10, 25), 25);
        assert_eq!(policy(0).counted(10, 25), 10, "nonsense is the strictest");
    }

    #[test]
    fn a_flush_is_asked_for_exactly_when_something_does_not_count() {
        for messages in [1, 2, 4, 100, i64::MAX] {
            let policy = FlushPolicy { messages, within: None };
            for end in 10..130 {
                assert_eq!(policy.asks(10, end), policy.counted(10, end) < end, "{messages} {end}");
            }
        }
    }
}
