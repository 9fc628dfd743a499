//! Copies that follow: opened, or made, because the view lists this broker among the replicas, and for no other reason.
//!
//! A copy that can no longer vouch for what it promised goes on under the new identity that opening gave it: its leader
//! compares it from the beginning.

use std::sync::Arc;
use std::time::Duration;

use felix_cluster::state::Partition;
use felix_cluster::view::View;
use felix_partition::config::PartitionConfig;
use felix_partition::opening::Outcome;
use felix_protocol::ids::{BrokerId, Generation, PartitionId};
use felix_replication::halted::HaltReason;
use felix_replication::lease::Lease;
use felix_storage::StorageError;
use felix_storage::disk::os::OsDisk;

use super::{BATCH, Held, Reconciler, counted};
use crate::clock::SystemClock;
use crate::partitions::Writer;
use crate::partitions::authority::Known;
use crate::partitions::lane::Message;
use crate::partitions::report::key_state;

type Wanted = (PartitionId, Arc<PartitionConfig>);

/// Whether the partition is other brokers' for good: one of them leads it, with an open copy, and this one is neither among the
/// replicas nor among those that may be promoted.
pub(super) fn left(state: &Partition, node: BrokerId) -> bool {
    state.opened()
        && state.leader.is_some_and(|leader| leader.broker != node)
        && !state.replicas.contains(&node)
        && state.promotable().iter().all(|pair| pair.broker != node)
}

impl Reconciler {
    /// Opens those copies, in batches.
    pub(super) fn follow_leaders(&mut self, known: &Known, partitions: Vec<PartitionId>) {
        let lease = Lease::shared(known.lease.shared());
        for batch in partitions.chunks(BATCH) {
            let wanted = self.wanted(&known.view, batch);
            let renewed = self.open_followers(&known.view, wanted, &lease, false);
            self.open_followers(&known.view, renewed, &lease, true);
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
    fn open_followers(
        &mut self,
        view: &View,
        wanted: Vec<Wanted>,
        lease: &Lease,
        renewed: bool,
    ) -> Vec<Wanted> {
        let outcomes: Vec<Outcome<OsDisk, SystemClock, Writer>> =
            self.partitions.opener.follow(&wanted, lease, renewed);
        let mut again = Vec::new();
        for ((partition, config), outcome) in wanted.into_iter().zip(outcomes) {
            match outcome {
                Outcome::Ready(copy, _) => {
                    let generation = copy.standing().accepted;
                    self.partitions.led.resumed(&partition);
                    self.partitions.lane_of(&partition).send(Message::AdoptFollower { copy });
                    let counted = counted(view, &partition);
                    self.held.insert(partition, Held { generation, counted, config });
                }
                Outcome::Declined { reason, .. } if !renewed => {
                    tracing::warn!(%partition, ?reason, "a copy cannot vouch for itself, and follows under a new identity");
                    again.push((partition, config));
                }
                Outcome::Failed(error @ (StorageError::Full { .. } | StorageError::Io { .. })) => {
                    tracing::warn!(%partition, %error, "a copy cannot be opened now; trying again");
                    self.later(partition, self.accepted(&partition), &error);
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

    /// Tells a leader what the view says of its key: of use where somebody else wrote it.
    pub(super) fn tell_of_key(&self, view: &View, partition: PartitionId, generation: Generation) {
        if let Some(key) = key_state(view, &partition) {
            self.partitions.lane_of(&partition).send(Message::KeySeen { partition, generation, key });
        }
    }

    /// Copies that were moved to other brokers: they leave the disk after the usual time. What a store that may have gone back says
    /// is not believed.
    pub(super) fn leave(&mut self, view: &View, partitions: Vec<PartitionId>) {
        if partitions.is_empty() {
            return;
        }
        if self.agent.is_unverified() {
            tracing::warn!(
                copies = partitions.len(),
                "the control store says that copies here were moved away, and may have gone back; they are kept"
            );
            return;
        }
        // It may be back in the list by now: then the next view says so.
        let (node, newest) = (self.agent.node(), self.agent.view());
        let left = |id: &PartitionId| newest.partition(id).is_some_and(|it| left(&it.state, node));
        let mut held = Vec::new();
        for partition in partitions.into_iter().filter(left) {
            tracing::info!(%partition, "other brokers hold this partition now; the copy here is given up");
            if self.held.contains_key(&partition) {
                held.push(partition);
                continue;
            }
            let wanted = self.wanted(view, &[partition]).pop();
            let delay_ms = wanted.map_or(0, |(_, config)| config.log.file_delete_delay_ms);
            let delay = Duration::from_millis(u64::try_from(delay_ms).unwrap_or(0));
            self.removed(partition, Some(self.partitions.opener.dir.discard(&partition)), delay);
            self.partitions.led.forget(&partition);
        }
        self.delete(held);
        // Should it be given to this broker again, its row must be a new one.
        self.partitions.upkeep.barrier();
    }

    fn halt_follower(&self, partition: PartitionId) {
        let position = self.partitions.opener.replicas.get(&partition).map_or(0, |row| row.synced);
        self.partitions.led.halted(&partition, self.accepted(&partition), position, HaltReason::Storage);
        self.partitions.upkeep.look_at_table();
    }

    fn accepted(&self, partition: &PartitionId) -> Generation {
        let row = self.partitions.opener.replicas.get(partition);
        row.map_or(Generation::ZERO, |row| row.accepted)
    }
}
