//! The lane's part in compaction: plans, and putting segments in place. It never waits for the disk here.

use crossbeam_channel::Sender;
use felix_protocol::ids::{Offset, PartitionId};
use felix_replication::halted::HaltReason;
use felix_storage::StorageError;
use felix_storage::compaction::{Cleaned, Compaction, Replaced, Summary};
use felix_storage::disk::os::OsDisk;

use super::state::State;

/// What the threads that compact ask of a lane. Each waits for its answer; an answer that nobody waits for any
/// more is dropped.
pub(crate) enum Step {
    /// Which logs have something to compact?
    Candidates { answer: Sender<Vec<Compaction<OsDisk>>> },
    /// The plan of a round.
    Plan { partition: PartitionId, synced: Offset, answer: Sender<Option<Compaction<OsDisk>>> },
    /// May these segments be put in place? They come back either way.
    Claim {
        partition: PartitionId,
        cleaned: Box<Cleaned<OsDisk>>,
        answer: Sender<(bool, Box<Cleaned<OsDisk>>)>,
    },
    /// They will not be.
    Unclaim { partition: PartitionId },
    /// Put them in place.
    Swap {
        partition: PartitionId,
        cleaned: Box<Cleaned<OsDisk>>,
        answer: Sender<Result<Option<Replaced<OsDisk>>, StorageError>>,
    },
    /// The round is done.
    Done { partition: PartitionId, summary: Summary, answer: Sender<Option<String>> },
}

impl State {
    pub(super) fn compaction(&mut self, step: Step) {
        match step {
            Step::Candidates { answer } => {
                let candidates = self.copies().filter_map(|copy| copy.compaction()).collect();
                let _ = answer.send(candidates);
            }
            Step::Plan { partition, synced, answer } => {
                let mut plan = None;
                self.work(&partition, |copy, _| plan = copy.compaction_round(synced));
                let _ = answer.send(plan);
            }
            Step::Claim { partition, cleaned, answer } => {
                let mut claimed = false;
                // One that is to be closed begins nothing new.
                if !self.is_leaving(&partition) {
                    self.work(&partition, |copy, _| claimed = copy.claim(&cleaned));
                }
                let _ = answer.send((claimed, cleaned));
            }
            Step::Unclaim { partition } => self.work(&partition, |copy, _| copy.unclaim()),
            Step::Swap { partition, cleaned, answer } => {
                let mut swapped = Ok(None);
                self.work(&partition, |copy, _| swapped = copy.swap(*cleaned));
                if swapped.is_err() {
                    self.halt(&partition, HaltReason::Storage);
                }
                let _ = answer.send(swapped);
            }
            Step::Done { partition, summary, answer } => {
                let mut content = None;
                self.work(&partition, |copy, _| content = copy.compacted(&summary));
                let _ = answer.send(content);
            }
        }
    }
}
