//! A copy of a partition: one log, the machine of its tenure, and what happens between them.
//!
//! One thread owns a copy (a lane of the broker, or the simulator). It calls [`Copy::append`] for each write
//! of a batch of requests and then [`Copy::settle`] once: what the flush policy counts without a flush is
//! acknowledged there, and [`Copy::take_flush`] says whether the rest asks for one. Flushing happens
//! elsewhere; its outcome comes back by [`Copy::flushed`].

use std::sync::Arc;
use std::time::Duration;

use felix_protocol::batch::BatchHeader;
use felix_protocol::ids::{Generation, LogId, Offset, PartitionId};
use felix_protocol::peer::standing::Standing;
use felix_protocol::time::{Clock, MonoTime};
use felix_replication::action::Action;
use felix_replication::eligible::{KeyState, Pair};
use felix_replication::event::{Event, ReportAnswer};
use felix_replication::halted::HaltReason;
use felix_replication::leader::{CUT_OFF_REST, Leader, Phase, Tenure};
use felix_replication::lease::Lease;
use felix_replication::waiters::Word;
use felix_storage::disk::Disk;
use felix_storage::{
    FlushError, FlushJob, Log, LogReader, ProducerDescription, Replica, StorageError, Verdict,
};

use crate::actions::Ports;
use crate::admission;
use crate::append::{Acks, Append, AppendError, Appended};
use crate::config::PartitionConfig;
use crate::following::Following;
use crate::pending::{Pending, Waiting};
use crate::published::{Published, Stage};
use crate::shipping::Cursors;
use crate::visible::Visible;

mod compaction;
mod lease;
mod refused;
mod told;
mod upkeep;

pub use upkeep::{Closing, DeleteRecordsError, DeleteTo};

/// No writer waits for less than this: its timeout bounds the wait for other replicas, and must not turn the
/// leader's own flush into a failure.
const LEAST_WAIT: Duration = Duration::from_millis(250);

/// One broker's copy of one partition. `W` names a waiting writer.
pub struct Copy<D: Disk, C: Clock, W> {
    pub(crate) id: PartitionId,
    pub(crate) log: Log<D>,
    pub(crate) lease: Lease,
    pub(crate) clock: C,
    /// The tenure's machine; `None` while this broker does not lead. One that ended stays until the next.
    pub(crate) leader: Option<Leader>,
    pub(crate) published: Arc<Published>,
    pub(crate) pending: Pending<W>,
    pub(crate) visible: Visible,
    /// What a copy keeps that has heard of a leader; `None` while this broker leads.
    pub(crate) following: Option<Box<Following>>,
    /// Whom a leader ships to.
    pub(crate) cursors: Cursors,
    /// When a tenure was given up last because no follower was heard of.
    pub(crate) cut_off_at: Option<MonoTime>,
    /// When the copy's leader last handed over because the disk was full.
    gave_way_at: Option<MonoTime>,
    /// When it last told that its disk refuses writes.
    told_of_disk_at: Option<MonoTime>,
    /// The newest unclean promotion, as of this tenure.
    pub(crate) unclean_at: Option<Generation>,
    own: Pair,
    config: Arc<PartitionConfig>,
    pub(crate) row: Replica,
    /// Whether the row says that unsynced bytes are counted, be it now or as soon as it is durable.
    counts_unsynced: bool,
    /// When the oldest append that no flush covers was made.
    dirty_since: Option<MonoTime>,
    flush_in_flight: bool,
    /// Written to in this process's life.
    written: bool,
    /// A segment was closed: it is flushed, whatever the policy, so that recovery need not read it and its
    /// file need not stay open.
    segment_closed: bool,
    halted: Option<HaltReason>,
}

impl<D: Disk, C: Clock, W> Copy<D, C, W> {
    /// A copy that leads nothing yet. `row` is durable and says what was accepted (C7); every byte of the
    /// log is flushed.
    pub fn new(
        log: Log<D>,
        own: Pair,
        row: Replica,
        config: Arc<PartitionConfig>,
        lease: Lease,
        clock: C,
    ) -> Self {
        let mark = row.mark.clamp(log.start(), log.end());
        let published = Arc::new(Published::new(row.accepted, log.start(), mark, log.end()));
        published.set_stage(Stage::Closed);
        Copy {
            id: log.partition(),
            log,
            lease,
            clock,
            leader: None,
            published,
            pending: Pending::default(),
            visible: Visible::default(),
            following: None,
            cursors: Cursors::default(),
            cut_off_at: None,
            gave_way_at: None,
            told_of_disk_at: None,
            unclean_at: None,
            own,
            counts_unsynced: config.flush.counts_unsynced(),
            config,
            row,
            dirty_since: None,
            flush_in_flight: false,
            written: false,
            segment_closed: false,
            halted: None,
        }
    }

    /// The partition.
    pub fn id(&self) -> PartitionId {
        self.id
    }

    /// What the tenure shows to readers. A new one begins with each tenure.
    pub fn published(&self) -> &Arc<Published> {
        &self.published
    }

    /// A reader of the log.
    pub fn reader(&self) -> LogReader<D> {
        self.log.reader()
    }

    /// Where the log begins and ends.
    pub fn bounds(&self) -> (Offset, Offset) {
        (self.log.start(), self.log.end())
    }

    /// This copy's identity.
    pub fn own(&self) -> Pair {
        self.own
    }

    /// How far it is, for whoever looks for somebody to lead.
    pub fn standing(&self) -> Standing {
        Standing {
            partition: self.id,
            log: Some(self.own.log),
            accepted: self.row.accepted,
            end: self.stored(),
            doubt: self.stopped().is_some(),
        }
    }

    /// Whether a tenure of this broker goes on.
    pub fn leads(&self) -> bool {
        self.leader.as_ref().is_some_and(|leader| leader.phase() != Phase::Ended)
    }

    /// Durable up to here, as the flush policy counts.
    pub(crate) fn stored(&self) -> Offset {
        self.config.flush.counted(self.log.durable(), self.log.end())
    }

    pub(crate) fn is_flushing(&self) -> bool {
        self.flush_in_flight
    }

    /// Something was written.
    pub(crate) fn wrote(&mut self, rolled: bool, now: MonoTime) {
        self.dirty_since.get_or_insert(now);
        self.written = true;
        self.segment_closed |= rolled;
    }

    /// Everything that is here is flushed.
    pub(crate) fn nothing_is_dirty(&mut self) {
        (self.dirty_since, self.segment_closed) = (None, false);
    }

    /// The same bytes have another identity.
    pub(crate) fn renew(&mut self, log: LogId) {
        self.own.log = log;
    }

    /// Why the copy has stopped for good.
    pub fn halted(&self) -> Option<HaltReason> {
        self.halted
    }

    /// Why the copy confirms nothing, as far as that outlives a restart.
    pub fn stopped(&self) -> Option<HaltReason> {
        self.halted.or(self.row.diverged.then_some(HaltReason::Diverged))
    }

    /// The settings in force.
    pub fn config(&self) -> &Arc<PartitionConfig> {
        &self.config
    }

    /// The copy has durably accepted a newer generation (C7), on the way to a new tenure, which is of the session with
    /// that lease.
    pub fn accepted(&mut self, generation: Generation, lease: Lease, ports: &mut impl Ports<Writer = W>) {
        debug_assert!(generation >= self.row.accepted, "a fence never moves back");
        self.end_tenure(ports);
        self.row.accepted = generation;
        self.row.diverged = false;
        self.lease = lease;
    }

    /// Begins a tenure at the generation that the copy has durably accepted. The opening report goes out at
    /// once; writes are taken from now on and acknowledged when it has landed.
    pub fn lead(&mut self, key: KeyState, ports: &mut impl Ports<Writer = W>) {
        self.end_tenure(ports);
        let end = self.log.end();
        let stored = self.config.flush.counted(self.log.durable(), end);
        let mark = self.published.mark().min(stored);
        let generation = self.row.accepted;
        let tenure = Tenure { generation, own: self.own, key, mark, end, stored, need: self.config.need };
        let (mut leader, actions) = Leader::open(tenure);
        if let Some(at) = self.cut_off_at {
            leader.not_cut_off_before(at.after(CUT_OFF_REST));
        }
        self.published = Arc::new(Published::new(generation, self.log.start(), mark, end));
        self.visible = Visible::default();
        self.leader = Some(leader);
        // Whoever waits for an answer of the follower is told by whoever runs the copy.
        self.following = None;
        self.drop_cursors(ports);
        self.carry_out(actions, ports);
    }

    /// The tenure is over: whoever waits is told, and nothing is admitted any more.
    pub fn end_tenure(&mut self, ports: &mut impl Ports<Writer = W>) {
        // The machine may have ended by itself.
        self.drop_cursors(ports);
        let Some(leader) = &mut self.leader else { return };
        if leader.phase() == Phase::Ended {
            return;
        }
        let actions = leader.step(Event::Ended, self.clock.now());
        self.published.set_stage(Stage::Closed);
        self.carry_out(actions, ports);
        ports.changed(self.id);
    }

    /// The tenure is to end: nothing is admitted from here on, readers are told, and once what was taken in is done with
    /// the leader resigns ([`Event::Leave`]). Then, or when [`Copy::end_tenure`] says so, it is over.
    pub fn leave(&mut self, until: MonoTime, anyway: bool, ports: &mut impl Ports<Writer = W>) {
        let Some(leader) = self.leader.as_mut().filter(|leader| leader.phase() != Phase::Ended) else {
            return;
        };
        let actions = leader.step(Event::Leave { until, anyway }, self.clock.now());
        self.published.set_stage(Stage::Closed);
        self.carry_out(actions, ports);
        ports.changed(self.id);
    }

    /// Whether the tenure was asked for and is not over yet.
    pub fn is_leaving(&self) -> bool {
        self.leader.as_ref().is_some_and(Leader::is_leaving)
    }

    /// Stops the copy for good. Its bytes stay as they are.
    pub fn halt(&mut self, reason: HaltReason, ports: &mut impl Ports<Writer = W>) {
        if self.halted.is_some() {
            return;
        }
        self.halted = Some(reason);
        self.leader = None;
        self.following = None;
        self.drop_cursors(ports);
        self.published.set_stage(Stage::Halted);
        // Nothing of the machine is trusted here, so the writers are answered directly.
        for waiting in self.pending.drain().collect::<Vec<_>>() {
            ports.answer(waiting.writer, Err(AppendError::Halted(reason.to_string())));
        }
        ports.changed(self.id);
    }

    /// Takes one write in, or refuses it; the answer goes through `ports` now or later. `asked` is the
    /// generation that the writer's handle belongs to.
    pub fn append(
        &mut self,
        asked: Generation,
        append: Append,
        writer: W,
        ports: &mut impl Ports<Writer = W>,
    ) {
        match self.take_in(asked, &append) {
            Ok((appended, word, actions)) => {
                self.carry_out(actions, ports);
                self.promise(appended, word, append.timeout, writer, ports);
            }
            Err(error) => {
                let by_disk = matches!(error, AppendError::DiskFull | AppendError::Storage(_));
                let why = by_disk.then(|| error.to_string());
                ports.answer(writer, Err(error));
                if let Some(why) = why {
                    self.tell_of_disk(&why, ports);
                    self.give_way(&why, ports);
                }
            }
        }
    }

    fn word(&self, acks: Acks) -> Option<Word> {
        match acks {
            Acks::None => None,
            Acks::Leader if !self.config.quorum => Some(Word::Stored),
            Acks::Leader | Acks::All => Some(Word::Mark),
        }
    }

    fn take_in(
        &mut self,
        asked: Generation,
        append: &Append,
    ) -> Result<(Appended, Option<Word>, Vec<Action>), AppendError> {
        if let Some(reason) = self.halted {
            return Err(AppendError::Halted(reason.to_string()));
        }
        let word = self.word(append.acks);
        let now = self.clock.now();
        let generation =
            admission::admit(self.leader.as_ref(), &self.lease, now, asked, append.origin, word)?;
        let header = append.batch.header();
        if let Some(duplicate) = self.check_producer(header, generation)? {
            return Ok((duplicate, word, Vec::new()));
        }
        let limit = self.config.log.segment_bytes;
        if header.bytes as u64 > limit {
            return Err(AppendError::LargerThanSegment { bytes: header.bytes, limit });
        }
        let (lease, clock) = (&self.lease, &self.clock);
        let stored = self
            .log
            .append_if(&append.batch, generation, clock.wall(), append.frame_bytes, || {
                // Second check: between the first and the bytes reaching the log anything may have taken
                // arbitrarily long.
                lease.may_commit(clock.now())
            })
            .map_err(refused_by_storage)?;
        self.wrote(stored.rolled, now);
        self.visible.push(stored.end, stored.bytes);
        self.published.set_log_end(stored.end);
        // A write alone gives no word, but it may be time to say who holds what.
        let event = Event::Appended { end: stored.end };
        let actions = self.leader.as_mut().map_or_else(Vec::new, |leader| leader.step(event, now));
        let appended = Appended {
            base_offset: stored.base_offset,
            last_offset: stored.last_offset,
            log_start: self.log.start(),
            generation,
            duplicate: false,
            max_timestamp: header.max_timestamp,
        };
        Ok((appended, word, actions))
    }

    /// What the log knows of the batch's producer: nothing against it, a duplicate, or an error.
    fn check_producer(
        &self,
        header: &BatchHeader,
        generation: Generation,
    ) -> Result<Option<Appended>, AppendError> {
        if !header.has_producer() || header.is_control() {
            return Ok(None);
        }
        if header.base_sequence < 0 {
            return Err(AppendError::Unfit("a batch with a producer needs a sequence"));
        }
        let producer_id = header.producer_id;
        match self.log.producers().check(header) {
            Verdict::Append => Ok(None),
            Verdict::Duplicate { base_offset, last_offset, timestamp } => Ok(Some(Appended {
                base_offset,
                last_offset,
                log_start: self.log.start(),
                generation,
                duplicate: true,
                max_timestamp: timestamp,
            })),
            Verdict::OutOfOrder { expected, found } => {
                Err(AppendError::OutOfOrderSequence { producer_id, expected, found })
            }
            Verdict::StaleEpoch { current, found } => {
                Err(AppendError::StaleProducerEpoch { producer_id, current, found })
            }
            Verdict::TransactionOpen => Err(AppendError::TransactionOpen { producer_id }),
        }
    }

    /// The batch is in the log; its writer is told when the word asked for is given.
    fn promise(
        &mut self,
        appended: Appended,
        word: Option<Word>,
        timeout: Duration,
        writer: W,
        ports: &mut impl Ports<Writer = W>,
    ) {
        let (Some(word), Some(leader)) = (word, &mut self.leader) else {
            ports.answer(writer, Ok(appended));
            return;
        };
        let ticket = self.pending.put(Waiting {
            writer,
            base_offset: appended.base_offset,
            last_offset: appended.last_offset,
            duplicate: appended.duplicate,
            max_timestamp: appended.max_timestamp,
        });
        let now = self.clock.now();
        let deadline = now.after(timeout.max(LEAST_WAIT));
        let event = Event::Wait { ticket, word, end: appended.last_offset + 1, deadline };
        let actions = leader.step(event, now);
        self.carry_out(actions, ports);
    }

    /// After a batch of appends: acknowledges what counts as durable without a flush.
    pub fn settle(&mut self, ports: &mut impl Ports<Writer = W>) {
        let end = self.stored();
        self.step(|leader| (end > leader.stored()).then_some(Event::Stored { end }), ports);
        self.settle_following(ports);
        self.ship_on(ports);
    }

    /// What to flush now, if the policy asks for it (or `forced`); one job at a time.
    pub fn take_flush(&mut self, now: MonoTime, forced: bool) -> Option<FlushJob<D>> {
        if self.flush_in_flight || self.halted.is_some() {
            return None;
        }
        let (flushed, end) = (self.log.durable(), self.log.end());
        // The side files of a segment that was closed are flushed, too, though nothing was written behind it.
        if flushed >= end && !self.segment_closed {
            return None;
        }
        let is_waited_for = self.following.as_ref().is_some_and(|following| following.wants_flush());
        let asked = forced || is_waited_for || self.segment_closed || self.config.flush.asks(flushed, end);
        if !asked && self.flush_due() > now {
            return None;
        }
        let job = self.log.flush_job()?;
        self.flush_in_flight = true;
        self.segment_closed = false;
        self.dirty_since = None;
        Some(job)
    }

    fn flush_due(&self) -> MonoTime {
        match (self.dirty_since, self.config.flush.within) {
            (Some(since), Some(within)) => since.after(within),
            _ => MonoTime::NEVER,
        }
    }

    /// The outcome of a flush. After a failure nothing is acknowledged any more: the caller stops the
    /// process, because no copy of the directory can vouch for itself.
    pub fn flushed(&mut self, outcome: &Result<Offset, FlushError>, ports: &mut impl Ports<Writer = W>) {
        self.flush_in_flight = false;
        self.log.flushed(outcome);
        match outcome {
            Ok(_) => {
                self.settle(ports);
                self.cut_if_due(ports);
            }
            Err(_) => self.halt(HaltReason::Storage, ports),
        }
    }

    /// The control store answered the report of that tenure.
    pub fn report_answered(
        &mut self,
        generation: Generation,
        number: u64,
        answer: ReportAnswer,
        ports: &mut impl Ports<Writer = W>,
    ) {
        let event = Event::ReportAnswered { number, answer };
        self.step(|leader| (leader.generation() == generation).then_some(event), ports);
    }

    /// The partition's key was read for that tenure.
    pub fn key_read(
        &mut self,
        generation: Generation,
        key: Option<KeyState>,
        ports: &mut impl Ports<Writer = W>,
    ) {
        self.step(|leader| (leader.generation() == generation).then_some(Event::KeyRead { key }), ports);
    }

    /// When the copy wants a [`Copy::tick`] (or a flush by time); never, while nothing waits.
    pub fn next_due(&self) -> MonoTime {
        let tick = self.leader.as_ref().map_or(MonoTime::NEVER, Leader::next_tick);
        let tick = tick.min(self.last_words_until()).min(self.cursors.next_tick());
        let tick = tick.min(self.following.as_ref().map_or(MonoTime::NEVER, |it| it.next_tick()));
        if self.flush_in_flight { tick } else { tick.min(self.flush_due()) }
    }

    /// Time has passed.
    pub fn tick(&mut self, ports: &mut impl Ports<Writer = W>) {
        self.step(|_| Some(Event::Tick), ports);
        self.tell_if_lease_is_over(ports);
        self.tick_cursors(ports);
        self.begin_anew_if_due(ports);
    }

    /// New settings, from the next write on. Refused (false) if they count bytes that no flush covers while
    /// the table of copies does not say so durably: note [`Copy::row_counting_unsynced`] first.
    pub fn configure(&mut self, config: Arc<PartitionConfig>, ports: &mut impl Ports<Writer = W>) -> bool {
        if config.flush.counts_unsynced() && !self.row.unsynced {
            return false;
        }
        self.counts_unsynced = config.flush.counts_unsynced();
        self.log.set_config(config.log.clone());
        let need = config.need;
        self.config = config;
        self.step(|_| Some(Event::Need(need)), ports);
        self.settle(ports);
        true
    }

    /// The row that says that unsynced bytes may be counted. Every later row says so too; the settings that
    /// count them may be given once this one is durable.
    pub fn row_counting_unsynced(&mut self) -> Replica {
        self.row.unsynced = true;
        self.counts_unsynced = true;
        self.row()
    }

    /// A flush failed somewhere in the directory: the row that puts this copy in doubt
    /// ([`crate::fence::suspect`]), if it was written to in this process's life.
    pub fn row_in_doubt(&mut self) -> Option<Replica> {
        self.written.then(|| self.row_counting_unsynced())
    }

    /// Whether no writer waits for a word, no flush is under way, and no tenure is on its way out.
    pub fn is_quiet(&self) -> bool {
        self.pending.is_empty() && !self.flush_in_flight && !self.is_leaving()
    }

    /// All producers that the log remembers.
    pub fn describe_producers(&self) -> Vec<ProducerDescription> {
        self.log.producers().describe()
    }

    pub(crate) fn step(
        &mut self,
        event: impl FnOnce(&Leader) -> Option<Event>,
        ports: &mut impl Ports<Writer = W>,
    ) {
        let Some(leader) = &mut self.leader else { return };
        let Some(event) = event(leader) else { return };
        let actions = leader.step(event, self.clock.now());
        let is_over = leader.phase() == Phase::Ended;
        if !actions.is_empty() {
            self.carry_out(actions, ports);
        }
        if is_over {
            self.drop_cursors(ports);
        }
    }
}

fn refused_by_storage(error: StorageError) -> AppendError {
    match error {
        StorageError::Full { .. } => AppendError::DiskFull,
        StorageError::NotAdmitted => AppendError::NotLeader,
        StorageError::OffsetsExhausted(_) => AppendError::Unfit("the log has used up its offsets"),
        StorageError::Io { .. }
        | StorageError::Damaged(_)
        | StorageError::Poisoned
        | StorageError::StaleGeneration { .. }
        | StorageError::Overlap { .. }
        | StorageError::OutOfRange { .. }
        | StorageError::Exists(_)
        | StorageError::Missing(_)
        | StorageError::Locked(_)
        | StorageError::Identity { .. } => AppendError::Storage(error.to_string()),
    }
}

#[cfg(test)]
mod tests;
