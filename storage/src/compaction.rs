//! Compaction: of each key only the newest record stays, as Kafka's cleaner has it. Offsets never change.
//!
//! One round over a log, on a thread of its own, from a snapshot of the closed segments:
//!
//! 1. [`Log::compaction`](crate::Log::compaction) says what could be done (on the log's own thread, no file is
//!    looked at), [`Compaction::assess`] whether a round is worth it, and
//!    [`Log::compaction_round`](crate::Log::compaction_round) gives the plan.
//! 2. [`Compaction::begin`] reads the dirty part and notes the newest offset of each key in an [`OffsetMap`]
//!    of fixed size. A full map ends the round earlier; the next one goes on from there.
//! 3. [`Round::next_group`] writes neighbouring segments anew, together as one, beside the old files.
//! 4. [`Log::claim`](crate::Log::claim) (the log's thread) holds retention off these segments,
//!    [`Cleaned::commit`] makes the new file the one that counts after a crash, and
//!    [`Log::swap`](crate::Log::swap) (the log's thread) puts it in place. Readers keep the old files until
//!    they are done.
//! 5. [`Log::compacted`](crate::Log::compacted) notes how far the round came.
//!
//! What stays beside the newest records: transaction markers while a record of their transaction is there and
//! for `delete.retention.ms` after, tombstones for as long; and batches without records where they carry what
//! must not be forgotten: the last one of a producer (its sequence), of a segment (its end, so that segments
//! join without a gap), and the first of a generation (so that the generation map can be built again from the
//! batches).

use felix_protocol::ids::Offset;
use thiserror::Error;

use crate::error::{ReadError, StorageError};

pub(crate) mod checkpoint;
mod offset_map;
mod plan;
mod rewrite;
mod transactions;

pub use offset_map::OffsetMap;
pub(crate) use plan::LastOfProducer;
pub use plan::{Compaction, Dirtiness};
pub use rewrite::{Cleaned, Replaced, Round, Summary};

/// What compaction of one log obeys.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub struct CompactionConfig {
    /// `delete.retention.ms`: how long tombstones and markers stay.
    pub delete_retention_ms: i64,
    /// `min.compaction.lag.ms`: younger records are left alone.
    pub min_lag_ms: i64,
    /// `max.compaction.lag.ms`: older ones are worth a round of their own.
    pub max_lag_ms: i64,
    /// `min.cleanable.dirty.ratio`, in millionths.
    pub min_dirty_millionths: u32,
}

/// Kafka's defaults.
impl Default for CompactionConfig {
    fn default() -> Self {
        CompactionConfig {
            delete_retention_ms: 24 * 60 * 60 * 1000,
            min_lag_ms: 0,
            max_lag_ms: i64::MAX,
            min_dirty_millionths: 500_000,
        }
    }
}

/// Why a round ended early. What it has put in place stays; the next round begins anew.
#[derive(Debug, Error)]
pub enum CompactionError {
    /// The caller said so.
    #[error("told to stop")]
    Stopped,
    /// The log changed meanwhile (retention, a cut, its deletion).
    #[error("the log changed meanwhile")]
    Changed,
    /// The map cannot hold a single key.
    #[error("no memory for a single key")]
    NoMemory,
    /// The storage failed; where it is [`StorageError::Damaged`], every later round would fail, too.
    #[error(transparent)]
    Storage(#[from] StorageError),
}

impl From<ReadError> for CompactionError {
    fn from(error: ReadError) -> Self {
        match error {
            ReadError::Damaged(damaged) => CompactionError::Storage(StorageError::Damaged(damaged)),
            ReadError::Io { source, .. } if source.kind() == std::io::ErrorKind::NotFound => {
                CompactionError::Changed
            }
            ReadError::Io { path, source } => {
                CompactionError::Storage(StorageError::io("read", &path, source))
            }
            ReadError::BelowStart { .. }
            | ReadError::BeyondEnd { .. }
            | ReadError::WouldBlock
            | ReadError::Gone => CompactionError::Changed,
        }
    }
}

/// Asked after so many bytes were read or written; false ends the round.
pub type Pace<'a> = dyn FnMut(u64) -> bool + 'a;

/// How far a log is compacted.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq)]
pub(crate) struct Progress {
    /// Below this offset everything has been through a round.
    pub end: Offset,
    /// From this time on another round would free something although nothing new was written.
    pub again_at: Option<i64>,
}
