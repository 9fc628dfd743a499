//! A copy that has stopped for good: why, and what an operator does about it.

use std::fmt;

use felix_protocol::ids::{BrokerId, Generation, Offset, PartitionId};

/// Why a copy stopped. It confirms nothing and acknowledges nothing from then on (I7).
#[derive(Clone, Copy, Debug, PartialEq, Eq, PartialOrd, Ord, Hash)]
pub enum HaltReason {
    /// Its history parts from the leader's within one tenure.
    Diverged,
    /// The leader no longer holds what it lacks.
    NeedsBootstrap,
    /// Following the leader would cut it below its own mark.
    BelowMark,
    /// A newer generation refused it.
    Fenced,
    /// Its storage failed or is damaged.
    Storage,
    /// The copy that was promised is not on this disk any more, and nobody else has it.
    Wiped,
    /// A promise of the code was broken; the copy was stopped rather than trusted.
    Broken,
}

impl HaltReason {
    /// Its number between brokers; never used again for another reason.
    pub fn number(self) -> u8 {
        match self {
            HaltReason::Diverged => 1,
            HaltReason::NeedsBootstrap => 2,
            HaltReason::BelowMark => 3,
            HaltReason::Fenced => 4,
            HaltReason::Storage => 5,
            HaltReason::Wiped => 6,
            HaltReason::Broken => 7,
        }
    }

    /// The reason of that number. One that a newer version has is something that only its own broker can deal with.
    pub fn numbered(number: u8) -> HaltReason {
        match number {
            1 => HaltReason::Diverged,
            2 => HaltReason::NeedsBootstrap,
            3 => HaltReason::BelowMark,
            4 => HaltReason::Fenced,
            5 => HaltReason::Storage,
            6 => HaltReason::Wiped,
            _ => HaltReason::Broken,
        }
    }

    /// Whether the leader may bring the copy back by itself, within its policy.
    pub fn is_rebuilt(self) -> bool {
        matches!(self, HaltReason::Diverged | HaltReason::NeedsBootstrap)
    }

    /// What to do about it, in a sentence.
    pub fn remedy(self) -> &'static str {
        match self {
            HaltReason::Diverged | HaltReason::NeedsBootstrap => {
                "the leader rebuilds this copy when the rebuild policy allows it; nothing acknowledged is lost"
            }
            HaltReason::BelowMark => {
                "do not delete this copy: it holds records that the leader lacks; compare the replicas with \
                 `felix verify` and decide with `felix recover`"
            }
            HaltReason::Fenced => "nothing: the partition has moved on to a newer leader",
            HaltReason::Storage => {
                "check the disk and the log line that names the file, then restart this broker"
            }
            HaltReason::Wiped => {
                "put the partition's folder back (with replicas.table, if there is a copy) and restart this broker; to \
                 begin again empty, set unclean.leader.election.enable=true for the topic"
            }
            HaltReason::Broken => {
                "report the panic in this broker's log; a restart opens the copy again from its files"
            }
        }
    }
}

/// The reason's name in listings and metrics.
impl fmt::Display for HaltReason {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        f.write_str(match self {
            HaltReason::Diverged => "diverged",
            HaltReason::NeedsBootstrap => "needs_bootstrap",
            HaltReason::BelowMark => "below_mark",
            HaltReason::Fenced => "fenced",
            HaltReason::Storage => "storage",
            HaltReason::Wiped => "wiped",
            HaltReason::Broken => "broken",
        })
    }
}

/// One row of the listing of halted copies.
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct Halted {
    /// The partition.
    pub partition: PartitionId,
    /// The broker that holds the copy.
    pub node: BrokerId,
    /// The generation it stopped at.
    pub generation: Generation,
    /// How far its log reaches.
    pub position: Offset,
    /// Why.
    pub reason: HaltReason,
}
