//! What a copy's owner does beside writes: DeleteRecords, retention, the durable row, closing, deleting.

use felix_protocol::ids::{Offset, PartitionId};
use felix_protocol::time::{Clock, WallTime};
use felix_storage::disk::Disk;
use felix_storage::{Deleted, FlushJob, Replica, Retired, StorageError};
use thiserror::Error;

use crate::actions::Ports;
use crate::copy::Copy;
use crate::fence::with_new_id;

/// Up to where records go.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum DeleteTo {
    /// Everything below this offset.
    Offset(Offset),
    /// Everything that consumers can see.
    Mark,
}

/// Why records were not deleted.
#[derive(Clone, Debug, PartialEq, Eq, Error)]
pub enum DeleteRecordsError {
    /// This broker does not lead the partition.
    #[error("this broker does not lead the partition")]
    NotLeader,
    /// Beyond the mark, or no offset at all.
    #[error("offset {asked} is not within the log: it starts at {start}, its mark is {mark}")]
    OutOfRange {
        /// What was asked for.
        asked: Offset,
        /// Log start.
        start: Offset,
        /// The mark.
        mark: Offset,
    },
    /// The topic is compacted only: its records go by their keys.
    #[error("records of a topic whose cleanup policy is compact alone are not deleted by offset")]
    Compacted,
    /// The storage failed.
    #[error("storage failed: {0}")]
    Storage(String),
}

/// A copy that writes nothing any more; clean once its job is done and its row is durable.
pub struct Closing<D: Disk> {
    /// The partition.
    pub id: PartitionId,
    /// What is left to flush.
    pub job: FlushJob<D>,
    /// What the table of copies says from then on.
    pub row: Replica,
}

impl<D: Disk> Closing<D> {
    /// The same under a new identity: damage was met in the copy, so that it cannot vouch any more for what it had
    /// promised.
    pub fn in_doubt(self) -> Closing<D> {
        let row = Replica { clean: self.row.clean, ..with_new_id(self.row) };
        Closing { row, ..self }
    }
}

impl<D: Disk, C: Clock, W> Copy<D, C, W> {
    /// Moves the log start up. The new start must be made durable ([`Copy::row`]) before it is answered.
    pub fn delete_records(
        &mut self,
        to: DeleteTo,
        ports: &mut impl Ports<Writer = W>,
    ) -> Result<Offset, DeleteRecordsError> {
        let (start, mark) = (self.log.start(), self.published.mark());
        let now = self.clock.now();
        let leads = self.leader.as_ref().is_some_and(|leader| leader.admits(None, now).is_ok());
        if !leads || !self.lease.may_admit(now) {
            return Err(DeleteRecordsError::NotLeader);
        }
        if self.config.log.compacts && !self.config.log.deletes {
            return Err(DeleteRecordsError::Compacted);
        }
        let asked = match to {
            DeleteTo::Offset(offset) => offset,
            DeleteTo::Mark => mark,
        };
        if asked < 0 || asked > mark {
            return Err(DeleteRecordsError::OutOfRange { asked, start, mark });
        }
        let start =
            self.log.advance_start(asked).map_err(|error| DeleteRecordsError::Storage(error.to_string()))?;
        self.publish_start(start, ports);
        Ok(start)
    }

    /// Applies retention; what left the log goes from the disk once the new start is durable. Also rolls a
    /// segment that is due by time and forgets idle producers.
    pub fn retain(
        &mut self,
        now: WallTime,
        ports: &mut impl Ports<Writer = W>,
    ) -> Result<Retired<D>, StorageError> {
        self.segment_closed |= self.log.roll_if_due(now)?;
        self.log.expire_producers(now);
        let retired = self.log.retain(self.published.mark(), now)?;
        let start = self.log.start();
        if start > self.published.log_start() {
            self.publish_start(start, ports);
            self.started(start, ports);
        }
        Ok(retired)
    }

    fn publish_start(&mut self, start: Offset, ports: &mut impl Ports<Writer = W>) {
        self.published.set_log_start(start);
        ports.changed(self.id);
    }

    /// The copy's row as it should be in the table now. The mark in it is never above what is flushed.
    pub fn row(&self) -> Replica {
        let following = self.following.as_ref();
        // What is about to be cut must not be noted as flushed.
        let synced = self.log.synced().min(following.and_then(|it| it.cutting).unwrap_or(Offset::MAX));
        let mark = self.published.mark().min(synced).max(self.row.mark);
        let moved = mark > self.row.mark;
        let learned = following.map(|it| it.mark()).filter(|(at, _)| moved || *at == mark);
        // Once everything is flushed under a policy that counts nothing else, no doubt is left.
        let settled = !self.counts_unsynced && self.log.synced() >= self.log.end();
        Replica {
            unsynced: self.row.unsynced && !settled,
            mark,
            mark_generation: match learned {
                Some((_, generation)) => generation,
                None if moved => self.published.generation(),
                None => self.row.mark_generation,
            },
            log_start: self.log.start(),
            synced,
            ..self.row
        }
    }

    /// Gives memory back that a copy needs only while it is written to. For owners of many copies, now and then: what
    /// an append then needs is allocated again.
    pub fn give_back(&mut self) {
        self.pending.give_back();
        self.visible.give_back();
        if let Some(leader) = &mut self.leader {
            leader.give_back();
        }
    }

    /// The row if it differs from the one noted last; it counts as noted from now on.
    pub fn take_changed_row(&mut self) -> Option<Replica> {
        let row = self.row();
        (row != self.row).then(|| {
            self.row = row;
            row
        })
    }

    /// Ends writing for good. Waiting writers were answered before, by the flush that the caller made and
    /// by the end of the tenure.
    pub fn close(mut self, ports: &mut impl Ports<Writer = W>) -> Result<Closing<D>, StorageError> {
        self.end_tenure(ports);
        let mut row = self.row();
        let end = self.log.end();
        let mark = self.published.mark().min(end);
        if mark > row.mark {
            row.mark = mark;
            row.mark_generation = self.published.generation();
        }
        let job = self.log.close_clean(self.clock.wall())?;
        row.synced = end;
        row.clean = true;
        row.unsynced = false;
        Ok(Closing { id: self.id, job, row })
    }

    /// Gives the partition up for good, after the end of its tenure: its topic is gone. The space is freed by
    /// [`Deleted::remove`], once the row is out of the table.
    pub fn delete(self) -> Result<Deleted<D>, StorageError> {
        self.log.delete()
    }
}
