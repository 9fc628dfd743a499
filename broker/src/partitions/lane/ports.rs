//! What a lane does for a copy: the broker's side of the copy's ports.
//!
//! What goes to other brokers is put by until the batch of messages is done: what many partitions say shares a request, and wakes whoever
//! sends it once.

use felix_partition::actions::{Ports, Removal};
use felix_partition::append::{AppendError, Appended};
use felix_partition::following::Noted;
use felix_partition::shipping::Shipment;
use felix_protocol::ids::{BrokerId, Generation, Offset, PartitionId};
use felix_replication::eligible::Report;
use felix_replication::follower::{Reply, Token};
use felix_replication::halted::HaltReason;
use felix_storage::disk::os::OsDisk;
use felix_storage::{LogReader, Replica};

use crate::partitions::lane::LaneSender;
use crate::partitions::lane::message::Message;
use crate::partitions::lane::replicating::{self, Asking, Told};
use crate::partitions::lane::state::{LaneContext, Slot};
use crate::partitions::shipping::{Ships, Wanted};
use crate::partitions::wait::Waits;
use crate::partitions::{LaneCopy, Writer};

/// What is to go to other brokers when the batch is done. Bounded by the batch, and by the copies that are due at once.
#[derive(Default)]
pub(super) struct Outbox {
    shipments: Vec<(BrokerId, Wanted)>,
    told: Vec<(Told, Reply)>,
}

impl Outbox {
    pub(super) fn send(&mut self, ships: &Ships) {
        for (follower, wanted) in self.shipments.drain(..) {
            ships.ship(follower, wanted);
        }
        for (told, reply) in self.told.drain(..) {
            told(Some(reply));
        }
        if self.shipments.capacity() > LARGE || self.told.capacity() > LARGE {
            *self = Outbox::default();
        }
    }
}

/// An outbox that was larger gives its memory back.
const LARGE: usize = 256;

/// What the lane lends to a copy while it carries out actions.
pub(super) struct LanePorts<'a> {
    pub(super) lane: &'a LaneSender,
    pub(super) waits: &'a Waits,
    pub(super) context: &'a LaneContext,
    pub(super) reader: &'a LogReader<OsDisk>,
    pub(super) asking: &'a mut Asking,
    pub(super) outbox: &'a mut Outbox,
}

impl<'a> LanePorts<'a> {
    pub(super) fn of(
        lane: &'a LaneSender,
        context: &'a LaneContext,
        outbox: &'a mut Outbox,
        slot: &'a mut Slot,
    ) -> (Self, &'a mut LaneCopy) {
        let Slot { copy, reader, waits, asking, .. } = slot;
        (LanePorts { lane, waits, context, reader, asking, outbox }, copy)
    }
}

impl Ports for LanePorts<'_> {
    type Writer = Writer;

    fn answer(&mut self, writer: Writer, answer: Result<Appended, AppendError>) {
        // The writer may be gone: its connection was closed. The batch stays where it is.
        let _ = writer.send(answer);
    }

    fn report(&mut self, partition: PartitionId, generation: Generation, report: Report) {
        let (lane, number) = (self.lane.clone(), report.number);
        let then = move |answer| lane.send(Message::ReportAnswered { partition, generation, number, answer });
        self.context.control.report(partition, generation, report, Box::new(then));
    }

    fn read_key(&mut self, partition: PartitionId, generation: Generation) {
        let lane = self.lane.clone();
        let then = move |key| lane.send(Message::KeyRead { partition, generation, key });
        self.context.control.read_key(partition, Box::new(then));
    }

    fn opened(&mut self, _partition: PartitionId, _generation: Generation) {}

    fn cut_off(&mut self, partition: PartitionId, generation: Generation, exposed: i64) {
        self.context.led.cut_off(&partition, generation, exposed);
    }

    fn failed(&mut self, partition: PartitionId, why: &str) {
        tracing::error!(%partition, error = why, "the disk refuses what a copy cannot do without");
    }

    fn gave_way(&mut self, partition: PartitionId, generation: Generation, why: &str) {
        tracing::warn!(%partition, %generation, error = why, "the disk refuses writes: the partition is handed over to a broker that has all of it");
    }

    fn ship(&mut self, _partition: PartitionId, follower: BrokerId, shipment: Shipment) {
        let wanted = Wanted { shipment, reader: self.reader.clone(), lane: self.lane.clone() };
        self.outbox.shipments.push((follower, wanted));
    }

    fn may_restart(&mut self, partition: PartitionId, follower: BrokerId, rebuild: bool) -> Option<u64> {
        self.context.rebuilds.begin(partition, follower, rebuild)
    }

    fn rebuilt(&mut self, partition: PartitionId, follower: BrokerId, completed: bool) {
        self.context.rebuilds.end(partition, follower, completed);
    }

    fn discarded(&mut self, removal: Removal) {
        self.context.upkeep.free(removal);
    }

    fn note(&mut self, partition: PartitionId, row: Replica, noted: Noted) {
        replicating::note(self.lane, &self.context.upkeep, partition, row, noted);
    }

    fn told(&mut self, token: Token, reply: Reply) {
        self.outbox.told.extend(self.asking.answered(token).map(|told| (told, reply)));
    }

    fn halted(
        &mut self,
        partition: PartitionId,
        generation: Generation,
        position: Offset,
        reason: HaltReason,
    ) {
        self.context.led.halted(&partition, generation, position, reason);
    }

    fn resumed(&mut self, partition: PartitionId) {
        self.context.led.resumed(&partition);
    }

    fn moved(&mut self, _partition: PartitionId, mark_bytes: u64, stable_bytes: u64) {
        self.waits.moved(mark_bytes, stable_bytes);
    }

    fn changed(&mut self, _partition: PartitionId) {
        self.waits.wake_all();
    }
}
