//! Damage that was met in copies in use, by a reader or by the scrub: such a copy cannot vouch any more for what it
//! promised (`replication.md` section 5).
//!
//! A note of the damage is made durable, so that every later start looks there. The copy is closed properly, gets a
//! new identity, and this broker declines to lead in the name of the old one. Whoever else holds the records leads on;
//! where nobody does, the copy is promoted as one in doubt, a loss event, and opens around the damage.

use std::sync::Arc;

use felix_cluster::eligible::Declined;
use felix_cluster::state::DeclineReason;
use felix_partition::copy::Closing;
use felix_protocol::ids::Generation;
use felix_storage::damage;
use felix_storage::disk::os::OsDisk;

use super::Reconciler;
use crate::partitions::lane::Message;

impl Reconciler {
    /// Settles what was met since the last time. A copy that is not led just now is settled by its next open, which
    /// finds the note.
    pub(super) fn settle_damage(&mut self) {
        let met = self.partitions.opener.dir.damage().take_unsettled();
        let mut leaving = Vec::new();
        for (partition, places) in met {
            for damaged in &places {
                if let Err(error) = damage::remember(&self.partitions.opener.dir, damaged) {
                    tracing::warn!(%partition, %error, "damage could not be noted; the next start may not look there");
                }
            }
            let Some(held) = self.held.remove(&partition) else { continue };
            let (answer, closed) = crossbeam_channel::bounded(1);
            self.partitions.lane_of(&partition).send(Message::Close { partition, answer });
            leaving.push((partition, held, closed));
        }
        let mut closed = Vec::new();
        for (partition, held, answer) in leaving {
            match answer.recv() {
                Ok(Some(closing)) => closed.push((closing, held.generation)),
                // Halted, and shown so; or the lane is gone.
                Ok(None) | Err(_) => drop(self.held.insert(partition, held)),
            }
        }
        if !closed.is_empty() {
            self.doubt(closed);
        }
    }

    /// Gives closed copies new identities, durably, and declines in the name of the old ones.
    fn doubt(&mut self, closed: Vec<(Closing<OsDisk>, Generation)>) {
        let (mut jobs, mut rows) = (Vec::new(), Vec::new());
        for (closing, generation) in closed {
            let Closing { id, job, row } = closing.in_doubt();
            jobs.push(job);
            rows.push((id, row, generation));
        }
        let outcomes = self.partitions.opener.flusher.run(jobs);
        for ((partition, row, generation), outcome) in rows.into_iter().zip(outcomes) {
            if let Err(error) = outcome {
                if self.partitions.led.fatal(&error) {
                    self.partitions.upkeep.suspect();
                }
                continue;
            }
            // By the upkeep: rows that the lane gave to it before come first.
            let (answer, noted) = crossbeam_channel::bounded(1);
            self.partitions.upkeep.note_row_then(partition, row, move |noted| {
                // The reconciler waits for this.
                let _ = answer.send(noted.is_ok());
            });
            if noted.recv() != Ok(true) {
                // The table's failure ends the process where it lasts; the next open finds the note otherwise.
                tracing::error!(%partition, "a damaged copy could not be given a new identity");
                self.retry.add(partition);
                continue;
            }
            let view = Arc::clone(&self.seen);
            let (reason, current) = (DeclineReason::Doubt, Some(row.log_id));
            let declined = Declined { reason, current, accepted: row.accepted, end: row.synced };
            self.decline(&view, partition, generation, declined);
            // Declining may come to nothing, for a view that is outdated, say; opening would say it again.
            self.retry.add(partition);
        }
    }
}
