//! What handlers hold of a partition: writes go to its lane in order, reads never visit it.

use std::future::Future;
use std::pin::Pin;
use std::sync::Arc;
use std::task::{Context, Poll};

use felix_partition::append::{Append, AppendError, Appended};
use felix_partition::copy::{DeleteRecordsError, DeleteTo};
use felix_partition::published::{Published, Stage};
use felix_protocol::ids::{Generation, Offset, PartitionId};
use felix_protocol::time::Clock;
use felix_replication::lease::Lease;
use felix_storage::disk::os::OsDisk;
use felix_storage::{LogReader, ProducerDescription};
use tokio::sync::oneshot;

use crate::clock::SystemClock;
use crate::partitions::ProducersError;
use crate::partitions::lane::{LaneSender, Message};
use crate::partitions::wait::{FetchWait, Isolation, Registration, TooManyWaits, Waits};

/// One tenure of this broker's leadership of one partition. Cheap to clone.
///
/// A handle belongs to its generation: when leadership moves on, it answers
/// [`AppendError::NotLeader`] for ever and [`is_leader`](Self::is_leader) turns false; ask
/// [`Partitions::get`](super::Partitions::get) for the next one.
#[derive(Clone)]
pub struct PartitionHandle {
    pub(super) shared: Arc<Tenure>,
}

/// What all handles of one tenure share.
pub(super) struct Tenure {
    pub(super) id: PartitionId,
    pub(super) published: Arc<Published>,
    pub(super) reader: LogReader<OsDisk>,
    pub(super) waits: Arc<Waits>,
    pub(super) lane: LaneSender,
    pub(super) lease: Lease,
    pub(super) clock: SystemClock,
}

/// The answer to a submitted request; the request goes on when this is dropped.
///
/// If the lane drops the request unanswered (its partition broke, or the broker stops), the answer is the
/// error given here.
pub struct Answer<T, E> {
    receiver: oneshot::Receiver<Result<T, E>>,
    lost: fn() -> E,
}

impl<T, E> Future for Answer<T, E> {
    type Output = Result<T, E>;

    fn poll(mut self: Pin<&mut Self>, context: &mut Context<'_>) -> Poll<Self::Output> {
        let lost = self.lost;
        Pin::new(&mut self.receiver).poll(context).map(|answer| answer.unwrap_or_else(|_| Err(lost())))
    }
}

impl PartitionHandle {
    /// The partition.
    pub fn id(&self) -> PartitionId {
        self.shared.id
    }

    /// The generation of this tenure; on the wire, the leader epoch.
    pub fn generation(&self) -> Generation {
        self.shared.published.generation()
    }

    /// How far the tenure has come.
    pub fn stage(&self) -> Stage {
        self.shared.published.stage()
    }

    /// Whether this broker may answer as the leader now: the tenure has not ended and the lease has not
    /// expired. True while only opening: writes are taken then and acknowledged when the opening landed.
    pub fn is_leader(&self) -> bool {
        matches!(self.stage(), Stage::Opening | Stage::Open)
            && self.shared.lease.may_admit(self.shared.clock.now())
    }

    /// Whether records below the mark may be shown: as long as the tenure has not ended, also for a while after the lease
    /// has expired.
    pub fn may_read(&self) -> bool {
        matches!(self.stage(), Stage::Opening | Stage::Open)
            && self.shared.lease.may_read(self.shared.clock.now())
    }

    /// Hands a batch to the partition's lane. Batches are appended in the order of these calls; the answer
    /// is awaited apart from that, and dropping it loses only the answer.
    pub fn submit(&self, append: Append) -> Answer<Appended, AppendError> {
        let (answer, receiver) = oneshot::channel();
        self.shared.lane.append(self.shared.id, self.generation(), append, answer);
        Answer { receiver, lost: || AppendError::NotLeader }
    }

    /// Reads the log while it is written. What may be shown is below [`visible_end`](Self::visible_end).
    pub fn reader(&self) -> &LogReader<OsDisk> {
        &self.shared.reader
    }

    /// The high watermark: readers see up to here, exclusive.
    pub fn mark(&self) -> Offset {
        self.shared.published.mark()
    }

    /// The last stable offset: what readers of committed records see, exclusive.
    pub fn last_stable(&self) -> Offset {
        self.shared.published.last_stable()
    }

    /// First offset that may be read.
    pub fn log_start(&self) -> Offset {
        self.shared.published.log_start()
    }

    /// One past the last record written.
    pub fn log_end(&self) -> Offset {
        self.shared.published.log_end()
    }

    /// Whether "latest" has an answer: the mark has reached the log end of the takeover.
    pub fn latest_known(&self) -> bool {
        self.shared.published.settled()
    }

    /// The end that a reader of this isolation may read up to, exclusive.
    pub fn visible_end(&self, isolation: Isolation) -> Offset {
        match isolation {
            Isolation::ReadUncommitted => self.mark(),
            Isolation::ReadCommitted => self.last_stable(),
        }
    }

    /// Puts a Fetch's wait on this partition's list until the registration is dropped. Register first, then
    /// look at the offsets once more: what moved in between is not told again.
    pub fn register(
        &self,
        wait: &Arc<FetchWait>,
        isolation: Isolation,
    ) -> Result<Registration, TooManyWaits> {
        self.shared.waits.register(wait, isolation)
    }

    /// Deletes records from the front; answers the new log start once it is durable.
    pub fn delete_records(&self, to: DeleteTo) -> Answer<Offset, DeleteRecordsError> {
        let (answer, receiver) = oneshot::channel();
        self.shared.lane.send(Message::DeleteRecords { partition: self.shared.id, to, answer });
        Answer { receiver, lost: || DeleteRecordsError::NotLeader }
    }

    /// The producers that the log remembers.
    pub fn describe_producers(&self) -> Answer<Vec<ProducerDescription>, ProducersError> {
        let (answer, receiver) = oneshot::channel();
        self.shared.lane.send(Message::Producers { partition: self.shared.id, answer });
        Answer { receiver, lost: || ProducersError::NotLeader }
    }
}
