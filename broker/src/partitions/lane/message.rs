//! What a lane is asked.

use std::sync::Arc;

use crossbeam_channel::Sender;
use felix_partition::append::Append;
use felix_partition::config::PartitionConfig;
use felix_partition::copy::{Closing, DeleteRecordsError, DeleteTo};
use felix_partition::following::{Noted, Shipped};
use felix_protocol::ids::{BrokerId, Generation, Offset, PartitionId};
use felix_protocol::time::MonoTime;
use felix_replication::cursor::Event as CursorEvent;
use felix_replication::eligible::KeyState;
use felix_replication::event::{Nodes, ReportAnswer};
use felix_replication::follower::Restart;
use felix_replication::lease::Lease;
use felix_storage::ProducerDescription;
use felix_storage::disk::os::OsDisk;
use tokio::sync::oneshot;

use crate::partitions::flusher::Flushed;
use crate::partitions::lags::Lag;
use crate::partitions::lane::compaction::Step;
use crate::partitions::lane::replicating::Told;
use crate::partitions::standing::Gathering;
use crate::partitions::{LaneCopy, ProducersError, Writer};
use crate::peers::Up;

/// A closed copy: what is left to flush, and its row.
pub(crate) type Closed = Closing<OsDisk>;

/// A copy that the lane gave up; `None` when it has none.
pub(crate) type GivenUp = Option<Box<LaneCopy>>;

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
    /// How far these copies are.
    Standings { partitions: Vec<PartitionId>, gathering: Arc<Gathering> },
    /// How far copies are behind.
    Lags { answer: Sender<Vec<Lag>> },
    /// A leader's frame for a copy.
    Follow { partition: PartitionId, shipped: Shipped, told: Told },
    /// A leader's word to a copy to begin anew.
    Restart { partition: PartitionId, restart: Restart, told: Told },
    /// What the control store says of the nodes, which is something else than before.
    Nodes(Arc<Nodes>),
    /// The partition's key, as the view has it.
    KeySeen { partition: PartitionId, generation: Generation, key: KeyState },
    /// A row is durable, or cannot be made so.
    RowNoted { partition: PartitionId, noted: Noted, durable: bool },
    /// A copy that follows.
    AdoptFollower { copy: Box<LaneCopy> },
    /// A connection to a peer ended, or another one began.
    Connected { broker: BrokerId, before: Option<Up>, up: Option<Up> },
    /// What became of something that was shipped.
    Shipped { partition: PartitionId, generation: Generation, broker: BrokerId, event: CursorEvent },
    /// A peer does not answer; its cursor begins anew.
    ShipAnew { partition: PartitionId, generation: Generation, broker: BrokerId },
    /// A copy that is ready: the lane owns it from now on, and its tenure begins.
    Adopt { copy: Box<LaneCopy>, key: KeyState },
    /// The lane's copy has durably accepted this generation, and leads at it from now on, under that lease.
    Lead {
        partition: PartitionId,
        generation: Generation,
        lease: Lease,
        key: KeyState,
        unclean_at: Option<Generation>,
    },
    /// The tenure at this generation is asked for: it resigns, by `until` if it must wait for others. Earlier ones are over.
    Leave { partition: PartitionId, generation: Generation, until: MonoTime },
    /// Tenures up to this generation are over.
    End { partition: PartitionId, generation: Generation },
    /// Everything sent before this has been done.
    Barrier { answer: Sender<()> },
    /// New settings.
    Configure { partition: PartitionId, config: Arc<PartitionConfig> },
    /// The topic is gone: end the tenure and give the copy up.
    GiveUp { partition: PartitionId, answer: Sender<GivenUp> },
    /// Retention is due.
    Retain,
    /// A step of compaction.
    Compaction(Step),
    /// End the tenure and close the copy properly, once what is under way is done: `None` when there is none, or it
    /// has stopped for good.
    Close { partition: PartitionId, answer: Sender<Option<Closed>> },
    /// Rows that changed are to be noted.
    CollectRows,
    /// A flush failed somewhere: what was written to is in doubt.
    Suspect,
    /// Panic in the work of one partition.
    #[cfg(test)]
    Break { partition: PartitionId },
    /// End as a killed process does: nothing is finished, nothing is closed.
    #[cfg(test)]
    Abandon,
    /// Finish what was taken in, resign first where that is wanted, close every copy, and end.
    Stop { resign: bool, answer: Sender<Vec<Closed>> },
}
