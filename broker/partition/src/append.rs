//! What a writer asks of a partition, and what it is told.

use std::time::Duration;

use felix_protocol::batch::CheckedBatch;
use felix_protocol::ids::{Generation, Offset};
use thiserror::Error;

/// Whose word a writer waits for (`docs/replication.md`, section 7).
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum Acks {
    /// No answer at all; errors still come back, so that the connection can be closed on them.
    None,
    /// The leader's durable commit point, with its lease still valid at that time.
    Leader,
    /// The mark has passed the batch.
    All,
}

/// Who writes.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum Origin {
    /// A client's Produce request: sequences are checked.
    Client,
    /// The broker itself (a coordinator's records, markers), which loaded its state at this generation
    /// and must not write at another.
    Broker {
        /// The generation the writer's state was loaded at.
        generation: Generation,
    },
}

/// One batch for one partition.
#[derive(Clone, Debug)]
pub struct Append {
    /// The batch, validated.
    pub batch: CheckedBatch,
    /// Whose word the writer waits for.
    pub acks: Acks,
    /// How long it waits at most, counted from the append. Never refuses an append that was quick.
    pub timeout: Duration,
    /// Who writes.
    pub origin: Origin,
    /// Bytes of the buffer that the batch is a slice of, so that a small batch does not keep a large request
    /// alive in memory.
    pub frame_bytes: usize,
}

/// The batch is in the log, and the word asked for was given.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub struct Appended {
    /// Offset of the batch's first record: for a duplicate, where it was stored the first time.
    pub base_offset: Offset,
    /// Offset of its last record.
    pub last_offset: Offset,
    /// First offset that the log still holds.
    pub log_start: Offset,
    /// The generation that the partition is at.
    pub generation: Generation,
    /// Whether the batch was there already and nothing was written.
    pub duplicate: bool,
    /// Greatest timestamp of the stored batch (a duplicate's own, not the retry's).
    pub max_timestamp: i64,
}

/// Why a batch is not vouched for. Whether it may be in the log all the same is said with each.
#[derive(Clone, Debug, PartialEq, Eq, Error)]
pub enum AppendError {
    /// This broker does not lead the partition (any more). After the write, the batch may survive or not.
    #[error("this broker does not lead the partition")]
    NotLeader,
    /// The writer's state belongs to another generation. Nothing was written.
    #[error("the writer loaded generation {expected}, the partition is at {found}")]
    OtherGeneration {
        /// The generation the writer named.
        expected: Generation,
        /// The generation of the tenure.
        found: Generation,
    },
    /// Too few members hold what is acknowledged. Nothing was written.
    #[error("{have} replicas stand for an acknowledgement, {need} are needed")]
    NotEnoughReplicas {
        /// Members, the leader included.
        have: usize,
        /// What the partition needs.
        need: usize,
    },
    /// The word did not come in time. The batch is in the log and may yet be committed.
    #[error("no acknowledgement in time: the write cannot be vouched for")]
    TimedOut,
    /// The sequence does not follow the producer's last. Nothing was written.
    #[error("producer {producer_id} sent sequence {found}, expected {expected}")]
    OutOfOrderSequence {
        /// The producer.
        producer_id: i64,
        /// The sequence that would follow.
        expected: i32,
        /// The batch's first sequence.
        found: i32,
    },
    /// A newer epoch of the same producer has written. Nothing was written.
    #[error("producer {producer_id} writes at epoch {found}, its newest is {current}")]
    StaleProducerEpoch {
        /// The producer.
        producer_id: i64,
        /// The newest epoch seen.
        current: i16,
        /// The batch's.
        found: i16,
    },
    /// The producer has a transaction open, and the batch is not part of it. Nothing was written.
    #[error("producer {producer_id} has a transaction open")]
    TransactionOpen {
        /// The producer.
        producer_id: i64,
    },
    /// The batch is not one that a log can hold, whatever the state. Nothing was written.
    #[error("the batch cannot be stored: {0}")]
    Unfit(&'static str),
    /// The batch is larger than a whole segment may be. Nothing was written.
    #[error("a batch of {bytes} bytes does not fit a segment of {limit}")]
    LargerThanSegment {
        /// The batch.
        bytes: usize,
        /// `segment.bytes`.
        limit: u64,
    },
    /// No space left. Nothing was kept; heals by itself when space returns.
    #[error("the disk is full")]
    DiskFull,
    /// The storage failed. The batch may be in the log or not.
    #[error("storage failed: {0}")]
    Storage(String),
    /// This copy has stopped for good; its other partitions go on.
    #[error("this copy is halted: {0}")]
    Halted(String),
    /// More is queued than the broker takes. Nothing was written; worth trying again.
    #[error("too many appends are queued")]
    Busy,
}
