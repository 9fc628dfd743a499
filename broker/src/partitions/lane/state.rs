//! What a lane owns, and what it does with each message.
//!
//! A panic in one partition's work halts that partition, is counted, and touches no other.

use std::collections::{BTreeSet, HashMap, VecDeque};
use std::panic::AssertUnwindSafe;
use std::sync::Arc;
use std::time::Duration;

use crossbeam_channel::Sender;
use felix_partition::append::AppendError;
use felix_partition::config::PartitionConfig;
use felix_protocol::ids::{Generation, PartitionId};
use felix_protocol::time::{Clock, MonoTime};
use felix_replication::event::Nodes;
use felix_replication::halted::HaltReason;
use felix_storage::LogReader;
use felix_storage::disk::os::OsDisk;

use crate::clock::SystemClock;
use crate::partitions::LaneCopy;
use crate::partitions::flusher::{FlushQueue, Flushed, ToFlush};
use crate::partitions::handle::{PartitionHandle, Tenure};
use crate::partitions::lane::LaneSender;
use crate::partitions::lane::message::{Closed, Message};
use crate::partitions::lane::ports::{LanePorts, Outbox};
use crate::partitions::lane::replicating::Asking;
use crate::partitions::led::Led;
use crate::partitions::rebuilds::Rebuilds;
use crate::partitions::report::ControlStore;
use crate::partitions::shipping::{Connections, Ships};
use crate::partitions::steady::Steady;
use crate::partitions::upkeep::Upkeep;
use crate::partitions::wait::Waits;
use crate::tasks;

/// How long a lane that is told to stop waits for flushes, other replicas and the control store.
const STOP_WITHIN: Duration = Duration::from_secs(5);
/// How long eligible followers may take to catch up with a leader that stops.
const LAST_FOLLOWERS_WITHIN: Duration = Duration::from_secs(2);

/// A copy with what the lane keeps beside it.
pub(super) struct Slot {
    pub(super) copy: Box<LaneCopy>,
    pub(super) reader: LogReader<OsDisk>,
    pub(super) waits: Arc<Waits>,
    /// Leaders that wait for its word.
    pub(super) asking: Asking,
    /// Written to or changed since the lane last looked at it.
    touched: bool,
    /// Changed since its row was last noted in the table.
    row_due: bool,
    /// It is to be closed as soon as nothing is under way, and given to whoever waits here.
    pub(super) leaving: Option<Sender<Option<Closed>>>,
    /// When the lane looks at it at the latest; its entry in `Lane::due`.
    due: MonoTime,
}

impl Slot {
    pub(super) fn new(copy: Box<LaneCopy>) -> Slot {
        Slot {
            reader: copy.reader(),
            copy,
            waits: Arc::new(Waits::default()),
            asking: Asking::default(),
            touched: false,
            row_due: false,
            leaving: None,
            due: MonoTime::NEVER,
        }
    }
}

/// What a lane works with, shared with its siblings.
pub(crate) struct LaneContext {
    pub(crate) clock: SystemClock,
    pub(crate) led: Arc<Led>,
    pub(crate) control: Arc<dyn ControlStore>,
    pub(crate) flusher: Arc<FlushQueue>,
    pub(crate) upkeep: Upkeep,
    pub(crate) ships: Arc<Ships>,
    pub(crate) rebuilds: Arc<Rebuilds>,
}

/// A lane's copies.
pub(super) struct State {
    sender: LaneSender,
    pub(super) context: LaneContext,
    pub(super) slots: HashMap<PartitionId, Slot>,
    /// What leaders are told of the nodes.
    pub(super) nodes: Arc<Nodes>,
    /// The peers that there is a connection to.
    pub(super) connections: Connections,
    touched: Vec<PartitionId>,
    outbox: Outbox,
    /// Copies with a due time, earliest first. Invariant: exactly those whose `Slot::due` is not "never".
    due: BTreeSet<(MonoTime, PartitionId)>,
    pub(super) retaining: VecDeque<PartitionId>,
    /// The wall clock, as far as retention believes it.
    pub(super) steady: Steady,
    /// Copies whose rows changed since they were last collected. The upkeep is told of the first.
    rows_due: Vec<PartitionId>,
    /// Set once the lane was told to stop.
    stopping: Option<Stopping>,
}

/// A lane that finishes what it has taken in.
struct Stopping {
    answer: Sender<Vec<Closed>>,
    /// It closes then, whatever is still waited for.
    deadline: MonoTime,
}

impl State {
    pub(super) fn new(sender: LaneSender, context: LaneContext) -> State {
        let steady = Steady::new(context.clock.now(), context.clock.wall());
        State {
            sender,
            context,
            steady,
            slots: HashMap::new(),
            nodes: Arc::default(),
            connections: Connections::default(),
            touched: Vec::new(),
            outbox: Outbox::default(),
            due: BTreeSet::new(),
            retaining: VecDeque::new(),
            rows_due: Vec::new(),
            stopping: None,
        }
    }

    /// When there is something to do without a message: at once, at a time, or never.
    pub(super) fn due(&self) -> MonoTime {
        if !self.retaining.is_empty() {
            return MonoTime(0);
        }
        let due = self.due.first().map_or(MonoTime::NEVER, |(due, _)| *due);
        self.stopping.as_ref().map_or(due, |stopping| due.min(stopping.deadline))
    }

    /// Whether the lane was told to stop.
    pub(super) fn is_stopping(&self) -> bool {
        self.stopping.is_some()
    }

    /// The time, for whoever sleeps until [`State::due`].
    pub(super) fn now(&self) -> MonoTime {
        self.context.clock.now()
    }

    /// What time asks for: a slice of retention, ticks, flushes by time.
    pub(super) fn keep_time(&mut self) {
        self.retain_some();
        self.wake_due();
    }

    /// Carries one message out.
    pub(super) fn take(&mut self, message: Message) {
        match message {
            Message::Append { partition, generation, append, answer } => {
                match self.slots.get(&partition) {
                    Some(_) if self.stopping.is_none() => self.work(&partition, |copy, ports| {
                        copy.append(generation, append, answer, ports);
                    }),
                    // The writer may be gone.
                    _ => drop(answer.send(Err(AppendError::NotLeader))),
                }
            }
            Message::Flushed(flushed) => self.flushed(flushed),
            Message::ReportAnswered { partition, generation, number, answer } => {
                self.work(&partition, |copy, ports| {
                    copy.report_answered(generation, number, answer, ports);
                });
                self.ship_to_replicas(&partition);
            }
            Message::KeyRead { partition, generation, key } => {
                self.work(&partition, |copy, ports| copy.key_read(generation, key, ports));
                self.ship_to_replicas(&partition);
            }
            Message::DeleteRecords { partition, to, answer } => self.delete_records(partition, to, answer),
            Message::Producers { partition, answer } => {
                if let Some(slot) = self.slots.get(&partition) {
                    // Whoever asked may be gone.
                    let _ = answer.send(Ok(slot.copy.describe_producers()));
                }
            }
            Message::Standings { partitions, gathering } => {
                for slot in partitions.iter().filter_map(|partition| self.slots.get(partition)) {
                    gathering.found(slot.copy.standing());
                }
            }
            // Whoever asked may have given up.
            Message::Lags { answer } => drop(answer.send(self.lags())),
            Message::Follow { partition, shipped, told } => self.follow(partition, shipped, told),
            Message::Restart { partition, restart, told } => self.restart(partition, restart, told),
            Message::Nodes(nodes) => self.tell_of_nodes(nodes),
            Message::KeySeen { partition, generation, key } => {
                self.work(&partition, |copy, ports| copy.key_seen(generation, key, ports));
                self.ship_to_replicas(&partition);
            }
            Message::RowNoted { partition, noted, durable } => self.row_noted(partition, noted, durable),
            Message::AdoptFollower { copy } => self.adopt_follower(copy),
            Message::Connected { broker, before, up } => self.connected(broker, before, up),
            Message::Shipped { partition, generation, broker, event } => {
                self.shipped(partition, generation, broker, event);
            }
            Message::ShipAnew { partition, generation, broker } => {
                self.ship_anew(partition, generation, broker);
            }
            Message::Adopt { copy, key } => self.adopt(copy, key),
            Message::Lead { partition, generation, lease, key, unclean_at } => {
                if let Some(slot) = self.slots.get_mut(&partition) {
                    // One that follows a newer leader by now stays with that.
                    if slot.copy.standing().accepted > generation {
                        return;
                    }
                    slot.asking.give_up();
                }
                let mut bounds = None;
                self.work(&partition, |copy, ports| {
                    copy.accepted(generation, lease, ports);
                    copy.lost_at(unclean_at);
                    copy.lead(key, ports);
                    bounds = Some(copy.bounds());
                });
                if let Some((start, end)) = bounds.filter(|_| unclean_at == Some(generation)) {
                    self.context.led.lossy(&partition, generation, start, end);
                }
                self.ship_to_replicas(&partition);
                self.publish(&partition);
            }
            Message::Leave { partition, generation, until } => self.leave(partition, generation, until),
            Message::End { partition, generation } => self.end(partition, generation),
            // Whoever waits may have given up.
            Message::Barrier { answer } => drop(answer.send(())),
            Message::Configure { partition, config } => self.configure(partition, config),
            Message::GiveUp { partition, answer } => {
                self.work(&partition, |copy, ports| copy.end_tenure(ports));
                let given_up = self.forget(&partition).map(|slot| slot.copy);
                // The reconciler waits for this; if it is gone, the next start deletes the copy.
                let _ = answer.send(given_up);
            }
            Message::Close { partition, answer } => {
                self.context.led.remove(&partition);
                match self.slots.get_mut(&partition) {
                    Some(slot) => slot.leaving = Some(answer),
                    // Whoever asked waits for this.
                    None => drop(answer.send(None)),
                }
                self.work(&partition, |copy, ports| copy.end_tenure(ports));
            }
            Message::Retain => {
                self.steady.time(self.context.clock.now(), self.context.clock.wall());
                let ahead_ms = self.steady.doubted_ms();
                if ahead_ms > 0 {
                    tracing::warn!(
                        ahead_ms,
                        "the clock leapt forward; retention waits until that has lasted an hour"
                    );
                }
                self.retaining = self.slots.keys().copied().collect::<BTreeSet<_>>().into_iter().collect()
            }
            Message::Compaction(step) => self.compaction(step),
            Message::CollectRows => self.collect_rows(),
            Message::Suspect => {
                let rows = sorted(&mut self.slots)
                    .filter_map(|(partition, slot)| Some((partition, slot.copy.row_in_doubt()?)))
                    .collect();
                self.context.upkeep.note_suspects(rows);
            }
            #[cfg(test)]
            Message::Break { partition } => self.work(&partition, |_, _| panic!("on purpose")),
            #[cfg(test)]
            Message::Abandon => {
                let (answer, _) = crossbeam_channel::bounded(1);
                self.slots.clear();
                self.stopping = Some(Stopping { answer, deadline: MonoTime(0) });
            }
            Message::Stop { resign, answer } => {
                let now = self.context.clock.now();
                self.stopping = Some(Stopping { answer, deadline: now.after(STOP_WITHIN) });
                if resign {
                    self.resign_all(now.after(LAST_FOLLOWERS_WITHIN));
                }
            }
        }
    }

    /// Runs `body` on a copy, if the lane has it, with its ports. A panic halts the copy alone.
    pub(super) fn work(
        &mut self,
        partition: &PartitionId,
        body: impl FnOnce(&mut LaneCopy, &mut LanePorts<'_>),
    ) {
        let Some(slot) = self.slots.get_mut(partition) else { return };
        let (mut ports, copy) = LanePorts::of(&self.sender, &self.context, &mut self.outbox, slot);
        let outcome = std::panic::catch_unwind(AssertUnwindSafe(|| body(copy, &mut ports)));
        if !slot.touched {
            slot.touched = true;
            self.touched.push(*partition);
        }
        if let Err(payload) = outcome {
            tasks::report_panic(&format!("partition {partition}"), payload.as_ref());
            self.halt(partition, HaltReason::Broken);
        }
    }

    pub(super) fn halt(&mut self, partition: &PartitionId, reason: HaltReason) {
        let Some(slot) = self.slots.get_mut(partition) else { return };
        let (mut ports, copy) = LanePorts::of(&self.sender, &self.context, &mut self.outbox, slot);
        let halted = std::panic::catch_unwind(AssertUnwindSafe(|| copy.halt(reason, &mut ports)));
        let generation = slot.copy.published().generation();
        self.context.led.halted(partition, generation, slot.copy.published().log_end(), reason);
        if halted.is_err() {
            // Not even that works: forget it. Writers' answers are dropped with it, which they notice.
            self.forget(partition);
        }
    }

    /// The copies, in order.
    pub(super) fn copies(&mut self) -> impl Iterator<Item = &LaneCopy> {
        sorted(&mut self.slots).map(|(_, slot)| &*slot.copy)
    }

    fn forget(&mut self, partition: &PartitionId) -> Option<Slot> {
        let slot = self.slots.remove(partition)?;
        self.due.remove(&(slot.due, *partition));
        self.context.led.remove(partition);
        Some(slot)
    }

    fn adopt(&mut self, copy: Box<LaneCopy>, key: felix_replication::eligible::KeyState) {
        let partition = copy.id();
        self.forget(&partition);
        self.slots.insert(partition, Slot::new(copy));
        self.work(&partition, |copy, ports| copy.lead(key, ports));
        self.ship_to_replicas(&partition);
        self.publish(&partition);
    }

    /// Makes the tenure findable.
    fn publish(&self, partition: &PartitionId) {
        let Some(slot) = self.slots.get(partition) else { return };
        let tenure = Tenure {
            id: *partition,
            published: Arc::clone(slot.copy.published()),
            reader: slot.copy.reader(),
            waits: Arc::clone(&slot.waits),
            lane: self.sender.clone(),
            lease: slot.copy.lease().clone(),
            clock: self.context.clock,
        };
        self.context.led.insert(PartitionHandle { shared: Arc::new(tenure) });
    }

    fn leave(&mut self, partition: PartitionId, generation: Generation, until: MonoTime) {
        let Some(slot) = self.slots.get(&partition) else { return };
        if slot.copy.published().generation() != generation {
            // It was given up before it began here.
            self.end(partition, generation);
            return;
        }
        self.context.led.remove(&partition);
        self.work(&partition, |copy, ports| copy.leave(until, false, ports));
    }

    /// The broker stops: each tenure gives its partition up for others, or for the next life of this one.
    fn resign_all(&mut self, until: MonoTime) {
        let partitions: BTreeSet<PartitionId> = self.slots.keys().copied().collect();
        for partition in partitions {
            self.context.led.remove(&partition);
            self.work(&partition, |copy, ports| copy.leave(until, true, ports));
        }
    }

    fn end(&mut self, partition: PartitionId, generation: Generation) {
        let Some(slot) = self.slots.get(&partition) else { return };
        if slot.copy.published().generation() <= generation {
            self.context.led.remove(&partition);
            self.work(&partition, |copy, ports| copy.end_tenure(ports));
        }
    }

    fn flushed(&mut self, flushed: Vec<Flushed>) {
        for Flushed { partition, outcome } in flushed {
            if let Err(error) = &outcome
                && self.context.led.fatal(error)
            {
                self.context.upkeep.suspect();
            }
            self.work(&partition, |copy, ports| copy.flushed(&outcome, ports));
            if outcome.is_err() {
                self.halt(&partition, HaltReason::Storage);
            }
        }
    }

    fn configure(&mut self, partition: PartitionId, config: Arc<PartitionConfig>) {
        let mut first = None;
        self.work(&partition, |copy, ports| {
            if !copy.configure(Arc::clone(&config), ports) {
                first = Some(copy.row_counting_unsynced());
            }
        });
        if let Some(row) = first {
            // Again, once the table says durably that bytes without a flush are counted here.
            let lane = self.sender.clone();
            self.context.upkeep.note_row_then(partition, row, move |noted| match noted {
                Ok(()) => lane.send(Message::Configure { partition, config }),
                Err(error) => {
                    tracing::warn!(%partition, %error, "a partition keeps its stricter flush policy");
                }
            });
        }
    }

    /// Copies whose time has come get a tick, and a chance to flush by time.
    fn wake_due(&mut self) {
        if self.due.is_empty() {
            return;
        }
        let now = self.context.clock.now();
        while let Some((due, partition)) = self.due.first().copied()
            && due <= now
        {
            self.due.pop_first();
            if let Some(slot) = self.slots.get_mut(&partition) {
                slot.due = MonoTime::NEVER;
            }
            self.work(&partition, |copy, ports| copy.tick(ports));
        }
    }

    /// After a batch: acknowledges what counts already, sends what goes to other brokers, starts flushes, notes due times.
    pub(super) fn finish_batch(&mut self) {
        if self.touched.is_empty() {
            self.outbox.send(&self.context.ships);
            return;
        }
        let now = self.context.clock.now();
        let had_no_rows = self.rows_due.is_empty();
        let mut jobs = Vec::new();
        let mut touched = std::mem::take(&mut self.touched);
        for partition in touched.drain(..) {
            if self.leaves(&partition) {
                continue;
            }
            self.work(&partition, |copy, ports| {
                copy.settle(ports);
                if let Some(job) = copy.take_flush(now, false) {
                    jobs.push((partition, job));
                }
            });
            let Some(slot) = self.slots.get_mut(&partition) else { continue };
            slot.touched = false;
            if !std::mem::replace(&mut slot.row_due, true) {
                self.rows_due.push(partition);
            }
            let due = slot.copy.next_due();
            // An entry that fires too early costs one look; moving it at each append would cost more.
            if due < slot.due {
                self.due.remove(&(slot.due, partition));
                slot.due = due;
                self.due.insert((due, partition));
            }
        }
        self.touched = touched;
        self.outbox.send(&self.context.ships);
        for (partition, job) in jobs {
            self.context.flusher.push(ToFlush { lane: self.sender.clone(), partition, job });
        }
        if had_no_rows && !self.rows_due.is_empty() {
            self.context.upkeep.rows_changed(self.sender.clone());
        }
    }

    pub(super) fn is_leaving(&self, partition: &PartitionId) -> bool {
        self.slots.get(partition).is_some_and(|slot| slot.leaving.is_some())
    }

    /// Whether a copy is to be closed. It is as soon as no flush and no compaction is under way: their ends come by
    /// here.
    fn leaves(&mut self, partition: &PartitionId) -> bool {
        let Some(slot) = self.slots.get_mut(partition).filter(|slot| slot.leaving.is_some()) else {
            return false;
        };
        slot.touched = false;
        if slot.copy.is_quiet()
            && !slot.copy.is_claimed()
            && let Some(mut slot) = self.forget(partition)
        {
            let answer = slot.leaving.take();
            let closed = self.close(partition, slot);
            if let Some(answer) = answer {
                // The reconciler waits for this.
                let _ = answer.send(closed);
            }
        }
        true
    }

    /// Gives the changed rows to the upkeep.
    fn collect_rows(&mut self) {
        let mut rows = Vec::new();
        for partition in std::mem::take(&mut self.rows_due) {
            if let Some(slot) = self.slots.get_mut(&partition) {
                slot.row_due = false;
                // By now it may be idle, and there may be ten thousand like it.
                slot.copy.give_back();
                rows.extend(slot.copy.take_changed_row().map(|row| (partition, row)));
            }
        }
        self.context.upkeep.note_rows(rows);
    }

    /// When told to stop: flushes and answers what was taken in, then ends every tenure and hands over what
    /// is left. Returns whether that is done.
    pub(super) fn stopped(&mut self) -> bool {
        let Some(stopping) = self.stopping.take() else { return false };
        let now = self.context.clock.now();
        if now < stopping.deadline && !self.is_quiet(now) {
            self.stopping = Some(stopping);
            return false;
        }
        // Whoever stops the lanes waits for this.
        let _ = stopping.answer.send(self.close_all());
        true
    }

    /// Whether no writer waits and no flush is under way; starts the flushes that are left.
    fn is_quiet(&mut self, now: MonoTime) -> bool {
        let mut quiet = true;
        for (partition, slot) in sorted(&mut self.slots) {
            if let Some(job) = slot.copy.take_flush(now, true) {
                self.context.flusher.push(ToFlush { lane: self.sender.clone(), partition, job });
            }
            quiet &= slot.copy.is_quiet();
        }
        quiet
    }

    fn close_all(&mut self) -> Vec<Closed> {
        let mut closed = Vec::new();
        let partitions: BTreeSet<PartitionId> = self.slots.keys().copied().collect();
        for partition in partitions {
            let Some(slot) = self.forget(&partition) else { continue };
            closed.extend(self.close(&partition, slot));
        }
        closed
    }

    fn close(&mut self, partition: &PartitionId, slot: Slot) -> Option<Closed> {
        let Slot { copy, reader, waits, mut asking, .. } = slot;
        if copy.halted().is_some() {
            return None;
        }
        let mut ports = LanePorts {
            lane: &self.sender,
            waits: &waits,
            context: &self.context,
            reader: &reader,
            asking: &mut asking,
            outbox: &mut self.outbox,
        };
        match std::panic::catch_unwind(AssertUnwindSafe(|| copy.close(&mut ports))) {
            Ok(Ok(closing)) => return Some(closing),
            Ok(Err(error)) => tracing::error!(%partition, %error, "a partition could not be closed"),
            Err(payload) => tasks::report_panic("closing a partition", payload.as_ref()),
        }
        None
    }
}

fn sorted(slots: &mut HashMap<PartitionId, Slot>) -> impl Iterator<Item = (PartitionId, &mut Slot)> {
    let mut all: Vec<_> = slots.iter_mut().map(|(partition, slot)| (*partition, slot)).collect();
    all.sort_by_key(|(partition, _)| *partition);
    all.into_iter()
}
