//! One partition's log on disk, synchronous, behind the [`disk::Disk`] trait.
//!
//! A [`Log`] has one writer and any number of [`LogReader`]s, which read while it writes: no lock is held
//! during a read or a flush. Deliberately absent: clocks (time comes as an argument), threads other than the
//! flusher's own, leases, and every opinion on who may write.

mod check;
pub mod compaction;
pub mod config;
#[cfg(test)]
mod crash;
pub mod damage;
pub mod data_dir;
pub mod disk;
pub mod dump;
pub mod error;
pub mod flush;
mod handles;
mod index;
pub mod layout;
pub mod log;
pub mod producers;
pub mod replicas;
pub mod scrub;
mod seal;
mod segment;
mod tail;
pub mod verify;

pub use config::{Limits, LogConfig};
pub use data_dir::DataDir;
pub use error::{Damaged, FlushError, ReadError, StorageError};
pub use flush::{FlushJob, FlushMode, Flusher};
pub use index::txn::AbortedTransaction;
pub use log::{Appended, Deleted, Found, LoadReport, Log, LogReader, Read, Recovered, Retired, SideFile};
pub use producers::{ProducerDescription, Producers, Verdict};
pub use replicas::{Replica, Replicas};
