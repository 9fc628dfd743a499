//! What a lane is asked, and the way to it.

use std::sync::Arc;
use std::sync::atomic::{AtomicUsize, Ordering};

use crossbeam_channel::Sender;
use felix_partition::append::{Append, AppendError};
use felix_partition::config::PartitionConfig;
use felix_partition::copy::{Closing, DeleteRecordsError, DeleteTo};
use felix_protocol::ids::{Generation, Offset, PartitionId};
use felix_replication::eligible::KeyState;
use felix_replication::event::ReportAnswer;
use felix_storage::disk::os::OsDisk;
use felix_storage::{Deleted, ProducerDescription, StorageError};
use tokio::sync::oneshot;

use crate::partitions::flusher::Flushed;
use crate::partitions::{LaneCopy, ProducersError, Writer};

/// A closed copy: what is left to flush, and its row.
pub(crate) type Closed = Closing<OsDisk>;

/// What became of a copy that was to be deleted; `None` when the lane has none.
pub(crate) type DeletedCopy = Option<Result<Deleted<OsDisk>, StorageError>>;

/// One message to a lane.
pub(crate) enum Message {
    /// A write for a tenure.
    Append { partition: PartitionId, generation: Generation, append: Append, answer: Writer },
    /// Outcomes of flushes.
    Flushed(Vec<Flushed>),
    /// The control store's answer to a report.
    ReportAnswered { partition: PartitionId, generation: Generation, number: u64, answer: ReportAnswer },
    /// The partition's key was read.
    KeyRead { partition: PartitionId, generation: Generation, key: Option<KeyState> },
    /// DeleteRecords.
    DeleteRecords {
        partition: PartitionId,
        to: DeleteTo,
        answer: oneshot::Sender<Result<Offset, DeleteRecordsError>>,
    },
    /// DescribeProducers.
    Producers {
        partition: PartitionId,
        answer: oneshot::Sender<Result<Vec<ProducerDescription>, ProducersError>>,
    },
    /// A copy that is ready: the lane owns it from now on, and its tenure begins.
    Adopt { copy: Box<LaneCopy>, key: KeyState },
    /// The lane's copy has durably accepted this generation, and leads at it from now on.
    Lead { partition: PartitionId, generation: Generation, key: KeyState },
    /// Tenures up to this generation are over.
    End { partition: PartitionId, generation: Generation },
    /// New settings.
    Configure { partition: PartitionId, config: Arc<PartitionConfig> },
    /// The topic is gone.
    Delete { partition: PartitionId, answer: Sender<DeletedCopy> },
    /// Retention is due.
    Retain,
    /// Rows that changed are to be noted.
    CollectRows,
    /// Panic in the work of one partition.
    #[cfg(test)]
    Break { partition: PartitionId },
    /// End as a killed process does: nothing is finished, nothing is closed.
    #[cfg(test)]
    Abandon,
    /// Finish what was taken in, close every copy, and end.
    Stop { answer: Sender<Vec<Closed>> },
}

/// The way to a lane. Order is kept; appends are bounded in number, everything else is bounded by what
/// causes it.
#[derive(Clone)]
pub(crate) struct LaneSender {
    queue: Sender<Message>,
    queued_appends: Arc<AtomicUsize>,
    max_queued_appends: usize,
}

impl LaneSender {
    pub(super) fn new(
        queue: Sender<Message>,
        queued_appends: Arc<AtomicUsize>,
        max_queued_appends: usize,
    ) -> LaneSender {
        LaneSender { queue, queued_appends, max_queued_appends }
    }

    /// A way to nowhere.
    #[cfg(test)]
    pub(crate) fn for_test(queue: Sender<Message>, max_queued_appends: usize) -> LaneSender {
        LaneSender { queue, queued_appends: Arc::default(), max_queued_appends }
    }

    /// Queues a write, or answers it at once when too many wait or the lane is gone.
    pub(crate) fn append(
        &self,
        partition: PartitionId,
        generation: Generation,
        append: Append,
        answer: Writer,
    ) {
        if self.queued_appends.fetch_add(1, Ordering::Relaxed) >= self.max_queued_appends {
            self.queued_appends.fetch_sub(1, Ordering::Relaxed);
            // The writer may be gone; then nobody needs the answer.
            let _ = answer.send(Err(AppendError::Busy));
            return;
        }
        // If the lane is gone, the answer is dropped with the message, and the writer notices.
        self.send(Message::Append { partition, generation, append, answer });
    }

    /// Whether both lead to the same lane.
    pub(crate) fn same(&self, other: &LaneSender) -> bool {
        self.queue.same_channel(&other.queue)
    }

    /// Queues anything else. A lane that is gone has stopped with the broker: nobody needs it any more.
    pub(crate) fn send(&self, message: Message) {
        let _ = self.queue.send(message);
    }
}
