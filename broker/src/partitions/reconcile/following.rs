//! Copies that follow: opened, or made, because the view lists this broker among the replicas, and for no other reason.
//!
//! A copy that can no longer vouch for what it promised goes on under the new identity that opening gave it: its leader
//! compares it from the beginning.

use std::sync::Arc;

use felix_cluster::view::View;
use felix_partition::config::PartitionConfig;
use felix_partition::opening::Outcome;
use felix_protocol::ids::PartitionId;
use felix_replication::halted::HaltReason;
use felix_replication::lease::Lease;
use felix_storage::StorageError;
use felix_storage::disk::os::OsDisk;

use super::{BATCH, Held, Reconciler};
use crate::clock::SystemClock;
use crate::partitions::Writer;
use crate::partitions::authority::Known;
use crate::partitions::lane::Message;

type Wanted = (PartitionId, Arc<PartitionConfig>);

impl Reconciler {
    /// Opens those copies, in batches.
    pub(super) fn follow_leaders(&mut self, known: &Known, partitions: Vec<PartitionId>) {
        let lease = Lease::shared(known.lease.shared());
        for batch in partitions.chunks(BATCH) {
            let wanted = self.wanted(&known.view, batch);
            let renewed = self.open_followers(wanted, &lease, false);
            self.open_followers(renewed, &lease, true);
        }
    }

    fn wanted(&mut self, view: &View, batch: &[PartitionId]) -> Vec<Wanted> {
        let mut wanted = Vec::new();
        for partition in batch {
            if let (Some(topic), Some(state)) = (view.topic(&partition.topic), view.partition(partition)) {
                wanted.push((*partition, self.settings.of(view, topic, &state.state)));
            }
        }
        wanted
    }

    /// Returns those that got a new identity.
    fn open_followers(&mut self, wanted: Vec<Wanted>, lease: &Lease, renewed: bool) -> Vec<Wanted> {
        let outcomes: Vec<Outcome<OsDisk, SystemClock, Writer>> =
            self.partitions.opener.follow(&wanted, lease, renewed);
        let mut again = Vec::new();
        for ((partition, config), outcome) in wanted.into_iter().zip(outcomes) {
            match outcome {
                Outcome::Ready(copy, _) => {
                    let generation = copy.standing().accepted;
                    self.partitions.lane_of(&partition).send(Message::AdoptFollower { copy });
                    self.held.insert(partition, Held { generation, config });
                }
                Outcome::Declined { reason, .. } if !renewed => {
                    tracing::warn!(%partition, ?reason, "a copy cannot vouch for itself, and follows under a new identity");
                    again.push((partition, config));
                }
                Outcome::Failed(error @ (StorageError::Full { .. } | StorageError::Io { .. })) => {
                    tracing::warn!(%partition, %error, "a copy cannot be opened now; trying again");
                    self.retry.insert(partition);
                }
                Outcome::Failed(error) => {
                    tracing::error!(%partition, %error, "a copy that should follow cannot be opened");
                    self.halt_follower(partition);
                }
                Outcome::Declined { .. } | Outcome::Stale { .. } => {
                    tracing::error!(%partition, "a copy that should follow cannot be opened");
                    self.halt_follower(partition);
                }
            }
        }
        again
    }

    fn halt_follower(&self, partition: PartitionId) {
        let accepted = self.partitions.opener.replicas.get(&partition).map(|row| row.accepted);
        let generation = accepted.unwrap_or(felix_protocol::ids::Generation::ZERO);
        self.partitions.led.halted(&partition, generation, 0, HaltReason::Storage);
        self.partitions.upkeep.look_at_table();
    }
}
