//! What can go wrong, without Kafka's codes: the broker maps each variant.

use std::io;
use std::path::{Path, PathBuf};

use felix_protocol::ids::{Generation, Offset};
use thiserror::Error;

use crate::disk;

/// A failure of an operation on a log or a data directory.
#[derive(Debug, Error)]
pub enum StorageError {
    /// The device (or a quota) is full. Nothing was stored; reads go on; a later attempt may succeed.
    #[error("no space left to {doing} {}", path.display())]
    Full {
        /// What was tried.
        doing: &'static str,
        /// On what.
        path: PathBuf,
    },
    /// The file system refused.
    #[error("cannot {doing} {}: {source}", path.display())]
    Io {
        /// What was tried.
        doing: &'static str,
        /// On what.
        path: PathBuf,
        /// The system's word.
        source: io::Error,
    },
    /// Bytes that were promised are damaged or gone: nothing was cut.
    #[error(transparent)]
    Damaged(#[from] Damaged),
    /// A flush failed earlier: what the disk holds is unknown, so nothing more is taken.
    #[error("a flush of this log failed, so that its durable state is unknown")]
    Poisoned,
    /// The caller's last check, just before the bytes would have been written, said no.
    #[error("the write was not admitted")]
    NotAdmitted,
    /// The offsets of a log end at 2^63-1.
    #[error("the log has used up its offsets at {0}")]
    OffsetsExhausted(Offset),
    /// A batch of an older generation than the newest in the log.
    #[error("generation {asked} is older than the log's {newest}")]
    StaleGeneration {
        /// The batch's.
        asked: Generation,
        /// The log's newest.
        newest: Generation,
    },
    /// A batch that names its own offsets begins below the log's end.
    #[error("batch begins at {base}, the log ends at {end}")]
    Overlap {
        /// The batch's first offset.
        base: Offset,
        /// The log's end.
        end: Offset,
    },
    /// An offset outside the log was named.
    #[error("offset {offset} is outside of [{start}, {end}]")]
    OutOfRange {
        /// The offset.
        offset: Offset,
        /// Log start.
        start: Offset,
        /// Log end.
        end: Offset,
    },
    /// A log of that partition is there already.
    #[error("{} exists already", .0.display())]
    Exists(PathBuf),
    /// No log of that partition is there.
    #[error("{} does not exist", .0.display())]
    Missing(PathBuf),
    /// The data directory is in use by another process.
    #[error("{} is locked by another process", .0.display())]
    Locked(PathBuf),
    /// The data directory belongs to another cluster, node or version.
    #[error("{}: {reason}", path.display())]
    Identity {
        /// The file that says so.
        path: PathBuf,
        /// What does not fit.
        reason: String,
    },
}

impl StorageError {
    pub(crate) fn io(doing: &'static str, path: &Path, source: io::Error) -> StorageError {
        let path = path.to_path_buf();
        if disk::is_full(&source) {
            StorageError::Full { doing, path }
        } else {
            StorageError::Io { doing, path, source }
        }
    }
}

/// Adds what was tried and on what to an [`io::Error`].
pub(crate) trait Doing<T> {
    fn doing(self, what: &'static str, path: &Path) -> Result<T, StorageError>;
}

impl<T> Doing<T> for io::Result<T> {
    fn doing(self, what: &'static str, path: &Path) -> Result<T, StorageError> {
        self.map_err(|source| StorageError::io(what, path, source))
    }
}

/// Where a log is damaged. Never repaired by cutting: the caller gives the copy a new log id and decides.
#[derive(Clone, Debug, PartialEq, Eq, Error)]
#[error(
    "{} is damaged at byte {position}: offset {offset} cannot be read ({reason}); {}",
    segment.display(),
    if *promised { "it was promised to be durable" } else { "readable batches follow it" }
)]
pub struct Damaged {
    /// The segment's file.
    pub segment: PathBuf,
    /// Where its readable part ends.
    pub position: u64,
    /// The first offset that cannot be read.
    pub offset: Offset,
    /// The damage lies below the mark or below what was flushed: a disk's fault. Otherwise it may be an
    /// ambiguous tail after a power loss, which [`crate::Recovered::cut_ambiguous`] allows to cut.
    pub promised: bool,
    /// What is wrong there.
    pub reason: String,
}

/// Why a read gave nothing.
#[derive(Debug, Error)]
pub enum ReadError {
    /// Below the log start.
    #[error("the log starts at {start}")]
    BelowStart {
        /// The log start.
        start: Offset,
    },
    /// Beyond the log end.
    #[error("the log ends at {end}")]
    BeyondEnd {
        /// The log end.
        end: Offset,
    },
    /// Stored bytes do not hold together.
    #[error(transparent)]
    Damaged(#[from] Damaged),
    /// The file system refused.
    #[error("cannot read {}: {source}", path.display())]
    Io {
        /// On what.
        path: PathBuf,
        /// The system's word.
        source: io::Error,
    },
    /// Asked not to wait, and the bytes are not in memory.
    #[error("the bytes are not in memory")]
    WouldBlock,
    /// The log was deleted or closed under the reader.
    #[error("the log is gone")]
    Gone,
}

/// A flush that failed. Never retried: the kernel may have dropped the bytes.
#[derive(Clone, Debug, PartialEq, Eq, Error)]
#[error("cannot flush {}: {reason}", path.display())]
pub struct FlushError {
    /// What was being flushed.
    pub path: PathBuf,
    /// The system's word.
    pub reason: String,
}
