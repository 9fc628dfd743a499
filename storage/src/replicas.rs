//! The durable table of all copies of a data directory.
use std::marker::PhantomData;

use felix_protocol::ids::{Generation, LogId, Offset, PartitionId};

use crate::data_dir::DataDir;
use crate::disk::Disk;
use crate::error::StorageError;

/// What must be durable about one copy.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub struct Replica {
    /// Identity of the copy.
    pub log_id: LogId,
    /// The generation it accepts: the fence.
    pub accepted: Generation,
    /// The mark, persisted lazily, never above what is flushed.
    pub mark: Offset,
    /// The generation at which that mark was learned.
    pub mark_generation: Generation,
    /// First offset that readers may have.
    pub log_start: Offset,
    /// Everything below was flushed: recovery trusts it, and takes damage there for damage.
    pub synced: Offset,
    /// Closed properly: the files can be trusted without reading them. Cleared, durably, before the log is
    /// written again.
    pub clean: bool,
    /// Counts bytes that are not flushed in answers, mark or acknowledgements.
    pub unsynced: bool,
}

/// Names a staged change: [`Replicas::commit`] makes it and all before it durable.
#[derive(Clone, Copy, Debug, PartialEq, Eq, PartialOrd, Ord)]
pub struct Ticket(u64);

/// What opening the table found.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq)]
pub struct ReplicasReport {
    /// Records read.
    pub records: usize,
    /// Records below later good ones whose checksum is wrong: not a torn tail but damage. What they said is
    /// lost, so no copy of this directory can vouch for itself.
    pub damaged: usize,
    /// The boot id that the last user of the table noted.
    pub boot_id: Option<u128>,
}

/// The table. Any number of threads may use it.
pub struct Replicas<D: Disk> {
    disk: PhantomData<D>,
}

impl<D: Disk> Replicas<D> {
    /// Reads the table of a data directory; a missing one is empty.
    pub fn open(_dir: &DataDir<D>) -> Result<(Replicas<D>, ReplicasReport), StorageError> {
        Ok((Replicas { disk: PhantomData }, ReplicasReport::default()))
    }

    /// One copy, as last staged.
    pub fn get(&self, _partition: &PartitionId) -> Option<Replica> {
        None
    }

    /// All copies, as last staged.
    pub fn all(&self) -> Vec<(PartitionId, Replica)> {
        Vec::new()
    }

    /// Changes one copy's row in memory; [`Replicas::commit`] makes it durable.
    pub fn stage(&self, _partition: PartitionId, _replica: Replica) -> Ticket {
        Ticket(0)
    }

    /// Removes one copy's row in memory.
    pub fn stage_removal(&self, _partition: &PartitionId) -> Ticket {
        Ticket(0)
    }

    /// Notes this boot of the machine in memory.
    pub fn stage_boot_id(&self, _boot_id: u128) -> Ticket {
        Ticket(0)
    }

    /// Waits until everything staged up to `ticket` is durable; callers at the same time share one flush.
    pub fn commit(&self, _ticket: Ticket) -> Result<(), StorageError> {
        Ok(())
    }
}
