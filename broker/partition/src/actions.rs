//! The one executor of a leader's actions: the broker's lanes and the simulator carry them out here.

use felix_protocol::ids::{BrokerId, Generation, Offset, PartitionId};
use felix_protocol::time::Clock;
use felix_replication::action::{Action, Vouch};
use felix_replication::eligible::Report;
use felix_replication::follower::{Reply, Token};
use felix_replication::halted::HaltReason;
use felix_replication::waiters::Ticket;
use felix_storage::disk::Disk;
use felix_storage::{Replica, StorageError};

use crate::append::{AppendError, Appended};
use crate::copy::Copy;
use crate::following::Noted;
use crate::published::Stage;
use crate::shipping::Shipment;

/// Frees the space of a log that was given up.
pub type Removal = Box<dyn FnOnce() -> Result<(), StorageError> + Send>;

/// What a copy needs from whoever runs it.
pub trait Ports {
    /// Whom to answer.
    type Writer;

    /// Tells a writer.
    fn answer(&mut self, writer: Self::Writer, answer: Result<Appended, AppendError>);

    /// Sends a report to the control store; its answer comes back by [`Copy::report_answered`].
    fn report(&mut self, partition: PartitionId, generation: Generation, report: Report);

    /// Reads the partition's key, linearizably; it comes back by [`Copy::key_read`].
    fn read_key(&mut self, partition: PartitionId, generation: Generation);

    /// The tenure is opened.
    fn opened(&mut self, partition: PartitionId, generation: Generation);

    /// No eligible follower answers: the partition is given up, and so many records may be lost that only this copy
    /// acknowledged. A loss event.
    fn cut_off(&mut self, partition: PartitionId, generation: Generation, exposed: i64);

    /// The leader hands over because its disk is full, or refuses writes for another reason.
    fn gave_way(&mut self, partition: PartitionId, generation: Generation, why: &str);

    /// The disk refuses what a copy cannot do without. One that follows halts; one that leads refuses its writers.
    fn failed(&mut self, partition: PartitionId, why: &str);

    /// Sends something to a follower; what becomes of it comes back by [`Copy::shipped`].
    fn ship(&mut self, partition: PartitionId, follower: BrokerId, shipment: Shipment);

    /// Whether that follower's copy may begin anew now, for a rebuild with a slot; and how many bytes a second it is sent then
    /// (0: unlimited). It is asked again.
    fn may_restart(&mut self, partition: PartitionId, follower: BrokerId, rebuild: bool) -> Option<u64>;

    /// The slot is free: the follower is level, or was not rebuilt.
    fn rebuilt(&mut self, partition: PartitionId, follower: BrokerId, completed: bool);

    /// A log was given up for one that begins anew. Its space may be freed.
    fn discarded(&mut self, removal: Removal);

    /// Makes the copy's row durable, in the order of these calls; [`Copy::row_noted`] follows.
    fn note(&mut self, partition: PartitionId, row: Replica, noted: Noted);

    /// Answers a leader.
    fn told(&mut self, token: Token, reply: Reply);

    /// A copy that follows has stopped: it waits for another leader, or an operator.
    fn halted(
        &mut self,
        partition: PartitionId,
        generation: Generation,
        position: Offset,
        reason: HaltReason,
    );

    /// It goes on.
    fn resumed(&mut self, partition: PartitionId);

    /// The mark and the last stable offset moved over this many bytes each.
    fn moved(&mut self, partition: PartitionId, mark_bytes: u64, stable_bytes: u64);

    /// Something happened that every waiting reader must hear of: the tenure is over, the log start moved,
    /// "latest" has an answer.
    fn changed(&mut self, partition: PartitionId);
}

impl<D: Disk, C: Clock, W> Copy<D, C, W> {
    pub(crate) fn carry_out(&mut self, actions: Vec<Action>, ports: &mut impl Ports<Writer = W>) {
        for action in actions {
            match action {
                Action::Report(report) => ports.report(self.id, self.published.generation(), report),
                Action::ReadKey => ports.read_key(self.id, self.published.generation()),
                Action::Opened => {
                    self.published.set_stage(Stage::Open);
                    ports.opened(self.id, self.published.generation());
                    ports.changed(self.id);
                }
                Action::CutOff { exposed } => {
                    self.cut_off_at = Some(self.clock.now());
                    self.published.set_stage(Stage::Closed);
                    ports.cut_off(self.id, self.published.generation(), exposed);
                    ports.changed(self.id);
                }
                Action::Advance { mark } => self.publish_mark(mark, ports),
                Action::Release { tickets, vouch } => self.release(tickets, vouch, ports),
                Action::Expire { tickets } => self.refuse(tickets, &AppendError::TimedOut, ports),
                Action::Refuse { tickets } => self.refuse(tickets, &AppendError::NotLeader, ports),
            }
        }
    }

    /// The last stable offset, for a mark.
    pub(crate) fn last_stable(&self, mark: Offset) -> Offset {
        self.log.producers().first_open_transaction().map_or(mark, |open| open.min(mark))
    }

    fn publish_mark(&mut self, mark: Offset, ports: &mut impl Ports<Writer = W>) {
        let last_stable = self.last_stable(mark);
        let (mark_bytes, stable_bytes) = self.visible.moved(mark, last_stable);
        self.published.advance(mark, last_stable, mark_bytes);
        ports.moved(self.id, mark_bytes, stable_bytes);
        let takeover = self.leader.as_ref().map_or(mark, |leader| leader.takeover());
        if mark >= takeover && !self.published.settled() {
            self.published.set_settled();
            ports.changed(self.id);
        }
    }

    fn release(&mut self, tickets: Vec<Ticket>, vouch: Vouch, ports: &mut impl Ports<Writer = W>) {
        // A word that rests on the lease is given only while it holds *now*: the flush may have taken longer
        // than the lease did. One that rests on the mark needs no lease.
        let vouched = vouch == Vouch::Mark || self.lease.may_commit(self.clock.now());
        for ticket in tickets {
            let Some(waiting) = self.pending.take(ticket) else { continue };
            let answer = if vouched {
                Ok(Appended {
                    base_offset: waiting.base_offset,
                    last_offset: waiting.last_offset,
                    log_start: self.log.start(),
                    generation: self.published.generation(),
                    duplicate: waiting.duplicate,
                    max_timestamp: waiting.max_timestamp,
                })
            } else {
                Err(AppendError::NotLeader)
            };
            ports.answer(waiting.writer, answer);
        }
    }

    fn refuse(&mut self, tickets: Vec<Ticket>, error: &AppendError, ports: &mut impl Ports<Writer = W>) {
        for ticket in tickets {
            if let Some(waiting) = self.pending.take(ticket) {
                ports.answer(waiting.writer, Err(error.clone()));
            }
        }
    }
}
