//! What leaves a lane's logs at their beginning: by request, and by retention.

use felix_partition::copy::DeleteRecordsError;
use felix_protocol::ids::PartitionId;
use felix_protocol::time::Clock;
use tokio::sync::oneshot;

use crate::partitions::lane::state::State;

/// Copies looked after by retention between two looks at the mailbox.
const RETAIN_SLICE: usize = 32;

impl State {
    pub(super) fn delete_records(
        &mut self,
        partition: PartitionId,
        to: felix_partition::copy::DeleteTo,
        answer: oneshot::Sender<Result<i64, DeleteRecordsError>>,
    ) {
        let mut deleted = None;
        self.work(&partition, |copy, ports| {
            deleted = Some(copy.delete_records(to, ports).map(|start| (start, copy.row())));
        });
        match deleted {
            Some(Ok((start, row))) => {
                // Answered once the new start is durable: it must not come back after a restart.
                self.context.upkeep.note_row_then(partition, row, move |noted| {
                    let _ = answer.send(match noted {
                        Ok(()) => Ok(start),
                        Err(error) => Err(DeleteRecordsError::Storage(error.to_string())),
                    });
                });
                self.retaining.push_back(partition);
            }
            Some(Err(error)) => drop(answer.send(Err(error))),
            None => drop(answer.send(Err(DeleteRecordsError::NotLeader))),
        }
    }

    /// Retention, a slice of copies at a time.
    pub(super) fn retain_some(&mut self) {
        if self.retaining.is_empty() {
            return;
        }
        let wall = self.steady.time(self.context.clock.now(), self.context.clock.wall());
        for _ in 0..RETAIN_SLICE {
            let Some(partition) = self.retaining.pop_front() else { return };
            let mut retired = None;
            self.work(&partition, |copy, ports| {
                if copy.halted().is_none() {
                    retired = Some((copy.retain(wall, ports), copy.row()));
                }
            });
            match retired {
                Some((Ok(retired), row)) if !retired.is_empty() => {
                    self.context.upkeep.retire(partition, row, retired);
                }
                Some((Err(error), _)) => {
                    tracing::warn!(%partition, %error, "retention of a partition failed; it is tried again");
                }
                _ => {}
            }
        }
    }
}
