//! Copies whose folders are here although the table of copies knows nothing of them: the table was lost, or part of
//! it, or a folder was put back.
//!
//! What such a copy had confirmed, accepted and flushed is not known any more, so it gets a new identity and cannot
//! vouch for what the old one promised: it is in doubt (`replication.md` section 5). Who held the same records leads
//! on; where nobody else did, the copy in doubt is promoted, as a loss event, with every record that is in its log.

use felix_protocol::ids::{Generation, LogId, PartitionId};
use felix_protocol::time::Clock;
use felix_storage::disk::Disk;
use felix_storage::{Log, Replica, StorageError};

use super::{OpenRequest, Opener};
use crate::config::PartitionConfig;
use crate::fence::with_new_id;

impl<D: Disk, C: Clock + Clone> Opener<D, C> {
    /// Gives rows to the copies among the requests that have a folder but none, durably and all together. Returns
    /// for each request why that failed, if it did.
    pub(super) fn adopt_all(&self, requests: &[OpenRequest]) -> Vec<Option<StorageError>> {
        let mut failed: Vec<Option<StorageError>> = requests.iter().map(|_| None).collect();
        let mut adopted = Vec::new();
        for (at, request) in requests.iter().enumerate() {
            // While nothing was ever acknowledged, what a crash left of a folder is nothing to keep.
            let kept = request.named.is_some() || request.unclean;
            if !kept || self.replicas.get(&request.partition).is_some() {
                continue;
            }
            match self.row_of_unknown(&request.partition, &request.config) {
                Ok(Some(row)) => adopted.push((at, row)),
                Ok(None) => {}
                Err(error) => failed[at] = Some(error),
            }
        }
        let ticket =
            adopted.iter().map(|(at, row)| self.replicas.stage(requests[*at].partition, *row)).last();
        if let Some(Err(error)) = ticket.map(|ticket| self.replicas.commit(ticket)) {
            for (at, _) in adopted {
                failed[at] = Some(super::again(&error));
            }
        }
        failed
    }

    /// What is here of a copy that this broker had given up, as `gone`: its row under an identity that was not given
    /// up, durably. `None` when nothing is here, or nothing but what the broker spoke of last (`said`).
    pub fn take_back(
        &self,
        partition: &PartitionId,
        gone: LogId,
        said: Option<LogId>,
        config: &PartitionConfig,
    ) -> Result<Option<Replica>, StorageError> {
        let row = match self.replicas.get(partition) {
            Some(row) if Some(row.log_id) == said => return Ok(None),
            Some(_) if self.dir.disk().read_dir(&self.dir.folder(partition)).is_err() => return Ok(None),
            Some(row) if row.log_id != gone => return Ok(Some(row)),
            // Whoever was given up stays so: the bytes may be those of an earlier time.
            Some(row) => with_new_id(row),
            None => match self.row_of_unknown(partition, config)? {
                Some(row) => row,
                None => return Ok(None),
            },
        };
        self.replicas.commit(self.replicas.stage(*partition, row))?;
        Ok(Some(row))
    }

    /// A row for a copy that has none, from what its folder says; every byte of it is flushed.
    fn row_of_unknown(
        &self,
        partition: &PartitionId,
        config: &PartitionConfig,
    ) -> Result<Option<Replica>, StorageError> {
        let row = |log_start, end, accepted| Replica {
            log_id: LogId::random(),
            accepted,
            mark: log_start,
            mark_generation: Generation::ZERO,
            log_start,
            synced: end,
            clean: false,
            unsynced: false,
            diverged: false,
        };
        match Log::open_unknown(&self.dir, *partition, config.log.clone(), self.clock.wall()) {
            Ok(None) => Ok(None),
            Ok(Some((mut log, _))) => {
                if let Some(job) = log.flush_job() {
                    let outcome = self.flusher.run(vec![job]).pop();
                    if !matches!(outcome, Some(Ok(_))) {
                        return Err(StorageError::Poisoned);
                    }
                }
                let accepted = log.generations().latest().map_or(Generation::ZERO, |(latest, _)| latest);
                Ok(Some(row(log.start(), log.end(), accepted)))
            }
            // Taken for promised, so that nothing behind it is ever cut.
            Err(StorageError::Damaged(damaged)) => Ok(Some(row(0, damaged.offset + 1, Generation::ZERO))),
            Err(error) => Err(error),
        }
    }
}
