//! What a lane does for replication: frames of leaders to the copies it owns, and its own leaders' shipments and answers.

use std::collections::BTreeMap;
use std::sync::Arc;

use felix_partition::following::{Noted, Shipped};
use felix_protocol::ids::{BrokerId, Generation, PartitionId};
use felix_replication::cursor::Event;
use felix_replication::event::Nodes;
use felix_replication::follower::{Reply, Restart, Token};
use felix_storage::Replica;

use crate::partitions::LaneCopy;
use crate::partitions::lags::{Lag, SILENCE};
use crate::partitions::lane::LaneSender;
use crate::partitions::lane::message::Message;
use crate::partitions::lane::state::{Slot, State};
use crate::partitions::upkeep::Upkeep;
use crate::peers::Up;

/// Told what a copy says to a frame; nothing, where there is no copy to say anything.
pub(crate) type Told = Box<dyn FnOnce(Option<Reply>) + Send>;

/// Whoever waits for a copy's word on a frame.
#[derive(Default)]
pub(super) struct Asking {
    next: u64,
    waiting: BTreeMap<Token, Told>,
}

impl Asking {
    fn put(&mut self, told: Told) -> Token {
        let token = Token(self.next);
        self.next += 1;
        self.waiting.insert(token, told);
        token
    }

    /// The copy has said something: to whom.
    pub(super) fn answered(&mut self, token: Token) -> Option<Told> {
        self.waiting.remove(&token)
    }

    /// The copy does not follow any more.
    pub(super) fn give_up(&mut self) {
        for (_, told) in std::mem::take(&mut self.waiting) {
            told(None);
        }
    }
}

impl Drop for Asking {
    fn drop(&mut self) {
        self.give_up();
    }
}

/// Has a copy's row made durable; the lane hears of it.
pub(super) fn note(lane: &LaneSender, upkeep: &Upkeep, partition: PartitionId, row: Replica, noted: Noted) {
    let lane = lane.clone();
    upkeep.note_row_at_last(partition, row, move |outcome| {
        lane.send(Message::RowNoted { partition, noted, durable: outcome.is_ok() });
    });
}

impl State {
    /// A leader's frame for a copy.
    pub(super) fn follow(&mut self, partition: PartitionId, mut shipped: Shipped, told: Told) {
        let Some(slot) = self.slots.get_mut(&partition).filter(|slot| slot.leaving.is_none()) else {
            told(None);
            return;
        };
        shipped.frame.token = slot.asking.put(told);
        if slot.copy.leads() && shipped.frame.generation > slot.copy.published().generation() {
            self.context.led.remove(&partition);
        }
        self.work(&partition, |copy, ports| copy.follow(shipped, ports));
    }

    /// A leader's word to a copy to begin anew.
    pub(super) fn restart(&mut self, partition: PartitionId, mut restart: Restart, told: Told) {
        let Some(slot) = self.slots.get_mut(&partition).filter(|slot| slot.leaving.is_none()) else {
            told(None);
            return;
        };
        restart.token = slot.asking.put(told);
        if slot.copy.leads() && restart.generation > slot.copy.published().generation() {
            self.context.led.remove(&partition);
        }
        self.work(&partition, |copy, ports| copy.restart(restart, ports));
    }

    pub(super) fn row_noted(&mut self, partition: PartitionId, noted: Noted, durable: bool) {
        self.work(&partition, |copy, ports| copy.row_noted(noted, durable, ports));
        // It may have begun anew.
        if noted == Noted::Renewed
            && let Some(slot) = self.slots.get_mut(&partition)
        {
            slot.reader = slot.copy.reader();
        }
    }

    pub(super) fn lags(&self) -> Vec<Lag> {
        let lag = |(partition, slot): (&PartitionId, &Slot)| Lag {
            partition: *partition,
            leads: slot.copy.leads(),
            records: slot.copy.lag(SILENCE),
            bytes: slot.reader.size_bytes(),
        };
        self.slots.iter().map(lag).collect()
    }

    /// The control store says something else of the nodes than before.
    pub(super) fn tell_of_nodes(&mut self, nodes: Arc<Nodes>) {
        let mut concerned: Vec<PartitionId> = self
            .slots
            .iter()
            .filter(|(_, slot)| slot.copy.followers().next().is_some())
            .map(|(partition, _)| *partition)
            .collect();
        concerned.sort();
        for partition in concerned {
            self.work(&partition, |copy, ports| copy.nodes(&nodes, ports));
        }
        self.nodes = nodes;
    }

    /// A copy that follows.
    pub(super) fn adopt_follower(&mut self, copy: Box<LaneCopy>) {
        let partition = copy.id();
        // One that leads by now is newer.
        if self.slots.contains_key(&partition) {
            return;
        }
        let (standing, stopped) = (copy.standing(), copy.stopped());
        self.slots.insert(partition, Slot::new(copy));
        if let Some(reason) = stopped {
            self.context.led.halted(&partition, standing.accepted, standing.end, reason);
        }
    }

    /// A connection to a peer ended, or another one began.
    pub(super) fn connected(&mut self, broker: BrokerId, ended: Option<Up>, up: Option<Up>) {
        let before = self.connections.get(&broker).copied();
        // The end of one that another has taken the place of by now is no news.
        if before == up || (up.is_none() && before != ended) {
            return;
        }
        match up {
            Some(up) => self.connections.insert(broker, up),
            None => self.connections.remove(&broker),
        };
        let concerned: Vec<PartitionId> = self.led_with(broker);
        for partition in concerned {
            self.work(&partition, |copy, ports| {
                if before.is_some() {
                    copy.connected(broker, false, ports);
                }
                if up.is_some() {
                    copy.connected(broker, true, ports);
                }
            });
        }
    }

    fn led_with(&mut self, broker: BrokerId) -> Vec<PartitionId> {
        let mut led: Vec<PartitionId> = self
            .slots
            .iter()
            .filter(|(_, slot)| slot.copy.followers().any(|follower| follower == broker))
            .map(|(partition, _)| *partition)
            .collect();
        led.sort();
        led
    }

    /// Something became of a shipment.
    pub(super) fn shipped(
        &mut self,
        partition: PartitionId,
        generation: Generation,
        broker: BrokerId,
        event: Event,
    ) {
        self.work(&partition, |copy, ports| copy.shipped(broker, generation, event, ports));
    }

    /// Nobody answers: that follower is begun anew.
    pub(super) fn ship_anew(&mut self, partition: PartitionId, generation: Generation, broker: BrokerId) {
        if !self.connections.contains_key(&broker) {
            // The connection's end did that, or will.
            return;
        }
        self.work(&partition, |copy, ports| copy.shipped(broker, generation, Event::Unanswered, ports));
    }

    /// Has a leader ship to whom its key names.
    pub(super) fn ship_to_replicas(&mut self, partition: &PartitionId) {
        let (connections, nodes) = (self.connections.clone(), Arc::clone(&self.nodes));
        self.work(partition, |copy, ports| {
            copy.ship_to_replicas(|broker| connections.contains_key(&broker), ports);
            // Of ten thousand partitions without followers none needs to know.
            if copy.followers().next().is_some() {
                copy.know_nodes(&nodes, ports);
            }
        });
    }
}
