//! One partition of `__consumer_offsets` with its machine.

use std::collections::{BTreeSet, VecDeque};
use std::panic::{AssertUnwindSafe, catch_unwind};
use std::sync::Arc;
use std::sync::atomic::Ordering;
use std::time::Duration;

use bytes::Bytes;
use felix_cluster::view::View;
use felix_coordinator::{Event, Notice, Now, Outcome, RawRecord, Reply, Request, Shard, Token, When};
use felix_partition::append::{Acks, Append, AppendError, Appended, Origin};
use felix_partition::published::Stage as Tenure;
use felix_protocol::batch::CheckedBatch;
use felix_protocol::batch::build::{BatchBuilder, BuildError};
use felix_protocol::time::{Clock, MonoTime};
use parking_lot::{Mutex, MutexGuard};

use super::parked::{Asked, Parked};
use super::{Shared, Unavailable};
use crate::partitions::{Answer, PartitionHandle};
use crate::tasks;

/// Records that one batch carries at most, in bytes of keys and values; a larger record goes alone.
const BATCH_BYTES: usize = 512 << 10;
/// Appends that may be under way. What comes meanwhile is gathered and goes together when one of them is
/// acknowledged: the busier the groups, the larger the batches.
const ABREAST: usize = 4;
/// Without a lease nothing may expire, for nothing could be written. Look again after this.
const WITHOUT_LEASE: Duration = Duration::from_secs(1);

/// A partition's groups on this broker, for one tenure.
pub(super) struct Host {
    shared: Arc<Shared>,
    handle: PartitionHandle,
    state: Mutex<State>,
}

struct State {
    stage: Stage,
    parked: Parked,
    /// In the order of the log; the first is the next to be acknowledged.
    appends: VecDeque<InFlight>,
    /// What goes to the log next.
    gathered: Gathered,
    /// Whether a task waits for the first of them.
    pumping: bool,
    /// Counts the machines of this host. What was begun for an earlier one does not concern the present one.
    life: u64,
    /// What the machine knows of the cluster.
    view: Arc<View>,
    /// Topics that vanished while the machine was being read.
    gone: BTreeSet<Arc<str>>,
    /// The slot of this partition among the deadlines.
    planned: Option<MonoTime>,
}

enum Stage {
    /// The machine is being read from the log.
    Loading,
    /// It answers.
    Ready(Box<Shard>),
    /// The tenure is over, or the broker stops.
    Closed,
}

/// Records that wait for their turn, and the answers that rest on them and on all before them. Bounded by what
/// connections may have under way.
#[derive(Default)]
struct Gathered {
    records: Vec<RawRecord>,
    replies: Vec<(Token, Reply)>,
}

/// An append that is not acknowledged yet, and the answers that rest on it and on all before it.
struct InFlight {
    /// Taken by the task that waits for it.
    answer: Option<Answer<Appended, AppendError>>,
    replies: Vec<(Token, Reply)>,
}

impl Host {
    /// A host for a tenure; its machine is read from the log first. `None` if the tenure is over already.
    pub(super) fn open(shared: &Arc<Shared>, handle: PartitionHandle) -> Option<Arc<Host>> {
        let state = State {
            stage: Stage::Loading,
            parked: Parked::default(),
            appends: VecDeque::new(),
            gathered: Gathered::default(),
            pumping: false,
            life: 0,
            view: shared.agent.view(),
            gone: BTreeSet::new(),
            planned: None,
        };
        let host = Arc::new(Host { shared: Arc::clone(shared), handle, state: Mutex::new(state) });
        if !host.leads() {
            return None;
        }
        shared.loader.load(&host, 0);
        Some(host)
    }

    /// The partition's number.
    fn index(&self) -> i32 {
        self.handle.id().index
    }

    pub(super) fn handle(&self) -> &PartitionHandle {
        &self.handle
    }

    pub(super) fn shared(&self) -> &Shared {
        &self.shared
    }

    /// Whether this tenure goes on (it may lack a lease for the moment).
    pub(super) fn leads(&self) -> bool {
        matches!(self.handle.stage(), Tenure::Opening | Tenure::Open)
    }

    /// Hands a request to the machine.
    pub(super) fn ask(
        self: &Arc<Self>,
        group: &Arc<str>,
        request: impl FnOnce(&View) -> Request,
    ) -> Result<Asked, Unavailable> {
        if !self.handle.is_leader() {
            return Err(Unavailable::NotCoordinator);
        }
        // Declared before the lock, so that it is dropped after it: dropping it takes the lock.
        let asked;
        let mut state = self.state.lock();
        match &state.stage {
            Stage::Loading => return Err(Unavailable::Loading),
            Stage::Closed => return Err(Unavailable::NotCoordinator),
            Stage::Ready(_) => {}
        }
        self.catch_up(&mut state);
        let request = request(&state.view);
        let token;
        (token, asked) = state.parked.register(self, group);
        self.step(&mut state, Event::Request(token, request));
        drop(state);
        Ok(asked)
    }

    /// A client is gone before it was answered.
    pub(super) fn gone(self: &Arc<Self>, group: &Arc<str>, token: Token) {
        let mut state = self.state.lock();
        if state.parked.forget(token) {
            self.step(&mut state, Event::Gone(Arc::clone(group), token));
        }
    }

    /// Time has passed.
    pub(super) fn tick(self: &Arc<Self>) {
        let mut state = self.state.lock();
        // The queue has dropped it.
        state.planned = None;
        if self.handle.is_leader() {
            self.step(&mut state, Event::Tick);
        } else if matches!(state.stage, Stage::Ready(_)) {
            let again = self.shared.clock.now().after(WITHOUT_LEASE);
            self.shared.deadlines.plan(self.index(), &mut state.planned, Some(again));
        }
    }

    /// The lease has run out. Nothing can be written, so that those who wait for others would wait in vain: they look for whoever
    /// leads, and what the machine thinks of them is forgotten.
    pub(super) fn lapse(self: &Arc<Self>) {
        let mut state = self.state.lock();
        let ready = matches!(state.stage, Stage::Ready(_));
        // What is on its way fails by itself.
        let pending = !state.appends.is_empty() || !state.gathered.records.is_empty();
        if ready && !pending && state.parked.is_waited_for() && !self.handle.is_leader() {
            self.start_over(&mut state, Unavailable::NotCoordinator);
        }
    }

    /// The cluster's view has changed.
    pub(super) fn follow(self: &Arc<Self>) {
        let mut state = self.state.lock();
        self.catch_up(&mut state);
    }

    /// Tells the machine what differs between the view that it knows and the newest.
    fn catch_up(self: &Arc<Self>, state: &mut MutexGuard<'_, State>) {
        let view = self.shared.agent.view();
        if view.revision() == state.view.revision() {
            return;
        }
        let older = std::mem::replace(&mut state.view, Arc::clone(&view));
        let changes = view.changes_since(&older);
        // A topic that was made again under its name has another id: its old self is gone all the same.
        let gone = changes.topics.iter().filter(|id| view.topic(id).is_none());
        let gone: Vec<Arc<str>> =
            gone.filter_map(|id| older.topic(id)).map(|topic| Arc::clone(&topic.name)).collect();
        match &mut state.stage {
            Stage::Loading => state.gone.extend(gone),
            Stage::Closed => {}
            Stage::Ready(shard) => {
                if changes.configs || changes.nodes {
                    shard.configure(self.shared.settings(&view));
                }
                if !gone.is_empty() {
                    self.step(state, Event::TopicsGone(gone));
                }
            }
        }
    }

    /// The tenure is over, or the broker stops. Answers on their way still arrive if their append is acknowledged.
    pub(super) fn close(&self) {
        let mut state = self.state.lock();
        let state = &mut *state;
        state.stage = Stage::Closed;
        self.shared.deadlines.forget(self.index(), &mut state.planned);
        let replies = state.appends.iter().map(|append| &append.replies).chain([&state.gathered.replies]);
        let on_their_way = replies.flatten().map(|(token, _)| *token).collect();
        state.parked.refuse_all(Unavailable::NotCoordinator, &on_their_way);
    }

    /// The machine as it was read. Nothing happens if it is not wanted any more.
    pub(super) fn install(self: &Arc<Self>, life: u64, mut shard: Shard) {
        let mut state = self.state.lock();
        if state.life != life || !matches!(state.stage, Stage::Loading) {
            return;
        }
        self.catch_up(&mut state);
        let view = Arc::clone(&state.view);
        shard.configure(self.shared.settings(&view));
        shard.start(self.now());
        let mut gone = std::mem::take(&mut state.gone);
        gone.extend(shard.committed_topics().into_iter().filter(|topic| view.topic_named(topic).is_none()));
        state.stage = Stage::Ready(Box::new(shard));
        self.shared.loaded.notify_waiters();
        if gone.is_empty() {
            self.plan(&mut state);
        } else {
            self.step(&mut state, Event::TopicsGone(gone.into_iter().collect()));
        }
    }

    /// How many groups there are; `None` while that is not known.
    pub(super) fn group_count(&self) -> Option<usize> {
        match &self.state.lock().stage {
            Stage::Loading => None,
            Stage::Ready(shard) => Some(shard.group_count()),
            Stage::Closed => Some(0),
        }
    }

    /// Whether the machine is still to be read for this life.
    pub(super) fn wants(&self, life: u64) -> bool {
        let state = self.state.lock();
        state.life == life && matches!(state.stage, Stage::Loading)
    }

    /// As if an append had failed.
    #[cfg(test)]
    pub(super) fn fail(self: &Arc<Self>) {
        let mut state = self.state.lock();
        self.start_over(&mut state, Unavailable::NotAvailable);
    }

    #[cfg(test)]
    pub(super) fn is_ready(&self) -> bool {
        matches!(self.state.lock().stage, Stage::Ready(_))
    }

    #[cfg(test)]
    pub(super) fn waiting(&self) -> usize {
        self.state.lock().parked.len()
    }

    fn now(&self) -> Now {
        Now { mono: self.shared.clock.now(), wall: self.shared.clock.wall() }
    }

    fn step(self: &Arc<Self>, state: &mut MutexGuard<'_, State>, event: Event) {
        let now = self.now();
        let Stage::Ready(shard) = &mut state.stage else { return };
        // A machine that broke one of its promises is thrown away like one that is ahead of its log.
        match catch_unwind(AssertUnwindSafe(|| shard.step(event, now))) {
            Ok(outcome) => self.carry_out(state, outcome, now),
            Err(payload) => {
                tasks::report_panic("coordinator", payload.as_ref());
                self.start_over(state, Unavailable::NotAvailable);
            }
        }
        self.plan(state);
    }

    fn plan(&self, state: &mut MutexGuard<'_, State>) {
        let state = &mut **state;
        let next = match &state.stage {
            Stage::Ready(shard) => shard.next_deadline(),
            Stage::Loading | Stage::Closed => None,
        };
        self.shared.deadlines.plan(self.index(), &mut state.planned, next);
    }

    fn carry_out(self: &Arc<Self>, state: &mut MutexGuard<'_, State>, outcome: Outcome, now: Now) {
        for notice in &outcome.notices {
            if matches!(notice, Notice::Rebalancing { .. }) {
                self.shared.rebalances.fetch_add(1, Ordering::Relaxed);
            }
            note(notice);
        }
        state.gathered.records.extend(outcome.records);
        for answer in outcome.replies {
            let (token, reply) = (answer.token, answer.reply);
            if answer.when == When::Now {
                state.parked.answer(token, Ok(reply));
            } else if !state.gathered.records.is_empty() {
                state.gathered.replies.push((token, reply));
            } else if let Some(last) = state.appends.back_mut() {
                last.replies.push((token, reply));
            } else {
                state.parked.answer(token, Ok(reply));
            }
        }
        if !state.gathered.records.is_empty() && state.appends.len() < ABREAST {
            self.append(state, now);
        }
    }

    /// Hands what was gathered to the partition's lane. This is the order in which it will stand in the log.
    fn append(self: &Arc<Self>, state: &mut MutexGuard<'_, State>, now: Now) {
        let Gathered { records, replies } = std::mem::take(&mut state.gathered);
        let batches = match batches(&records, now.wall.0) {
            Ok(batches) => batches,
            Err(error) => {
                // The machine believes what cannot be written.
                tracing::error!(partition = self.index(), %error, "records of groups do not fit a batch");
                return self.start_over(state, Unavailable::NotAvailable);
            }
        };
        let timeout = self.shared.commit_timeout(&state.view);
        for batch in batches {
            let frame_bytes = batch.bytes().len();
            let origin = Origin::Broker { generation: self.handle.generation() };
            let append = Append { batch, acks: Acks::All, timeout, origin, frame_bytes };
            let answer = Some(self.handle.submit(append));
            state.appends.push_back(InFlight { answer, replies: Vec::new() });
        }
        if let Some(last) = state.appends.back_mut() {
            last.replies = replies;
        }
        if !state.pumping {
            state.pumping = true;
            tasks::spawn("coordinator-append", Arc::clone(self).pump(state.life));
        }
    }

    /// Waits for one append after the other, and lets go of the answers that rest on them. Ends when there is none.
    async fn pump(self: Arc<Self>, life: u64) {
        while let Some(answer) = self.next_answer(life) {
            let result = answer.await;
            let mut state = self.state.lock();
            if state.life != life {
                return;
            }
            match result {
                Ok(_) => {
                    let replies = state.appends.pop_front().map(|append| append.replies).unwrap_or_default();
                    for (token, reply) in replies {
                        state.parked.answer(token, Ok(reply));
                    }
                    if !state.gathered.records.is_empty() && state.appends.len() < ABREAST {
                        self.append(&mut state, self.now());
                    }
                }
                Err(error) => {
                    tracing::warn!(partition = self.index(), %error, "records of groups were not acknowledged");
                    return self.start_over(&mut state, unavailable(&error));
                }
            }
        }
    }

    fn next_answer(&self, life: u64) -> Option<Answer<Appended, AppendError>> {
        let mut state = self.state.lock();
        if state.life != life {
            return None;
        }
        let answer = state.appends.front_mut().and_then(|append| append.answer.take());
        state.pumping = answer.is_some();
        answer
    }

    /// The machine is ahead of its log: it is thrown away, and another is read.
    fn start_over(self: &Arc<Self>, state: &mut MutexGuard<'_, State>, error: Unavailable) {
        let state = &mut **state;
        self.shared.reloads.fetch_add(1, Ordering::Relaxed);
        state.life += 1;
        state.pumping = false;
        state.appends.clear();
        state.gathered = Gathered::default();
        state.gone.clear();
        state.parked.refuse_all(error, &BTreeSet::new());
        self.shared.deadlines.forget(self.index(), &mut state.planned);
        if !matches!(state.stage, Stage::Closed) {
            state.stage = Stage::Loading;
            self.shared.loader.load(self, state.life);
        }
    }
}

/// What those who wait are told of an append that failed.
fn unavailable(error: &AppendError) -> Unavailable {
    match error {
        AppendError::NotLeader | AppendError::OtherGeneration { .. } | AppendError::Halted(_) => {
            Unavailable::NotCoordinator
        }
        AppendError::NotEnoughReplicas { .. }
        | AppendError::TimedOut
        | AppendError::OutOfOrderSequence { .. }
        | AppendError::StaleProducerEpoch { .. }
        | AppendError::TransactionOpen { .. }
        | AppendError::Unfit(_)
        | AppendError::LargerThanSegment { .. }
        | AppendError::DiskFull
        | AppendError::Storage(_)
        | AppendError::Busy => Unavailable::NotAvailable,
    }
}

/// The records in as few batches as are sensible.
fn batches(records: &[RawRecord], timestamp: i64) -> Result<Vec<CheckedBatch>, BuildError> {
    let mut all = Vec::new();
    let mut batch = BatchBuilder::new();
    for record in records {
        let bytes = record.key.len() + record.value.as_ref().map_or(0, Bytes::len);
        if !batch.is_empty() && batch.bytes() + bytes > BATCH_BYTES {
            all.push(std::mem::take(&mut batch).build()?);
        }
        batch.push(timestamp, Some(&record.key), record.value.as_deref());
    }
    all.push(batch.build()?);
    Ok(all)
}

fn note(notice: &Notice) {
    match notice {
        Notice::Rebalancing { group, generation, reason } => {
            tracing::info!(group = %group, generation, reason, "a group rebalances");
        }
        Notice::Stable { group, generation, members } => {
            tracing::info!(group = %group, generation, members, "a group is stable");
        }
        Notice::Empty { group, generation } => {
            tracing::info!(group = %group, generation, "a group is empty");
        }
        Notice::Lost { group, member } => {
            tracing::info!(group = %group, member = %member, "a member was silent for too long");
        }
        Notice::Expired { group, offsets } => {
            tracing::info!(group = %group, offsets, "committed offsets have expired");
        }
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    fn record(bytes: usize) -> RawRecord {
        RawRecord { key: Bytes::from_static(b"k"), value: Some(Bytes::from(vec![7; bytes])) }
    }

    #[test]
    fn records_share_batches_as_far_as_they_fit() {
        let sizes = [10, 20, BATCH_BYTES - 1000, 30, 2 * BATCH_BYTES, 40];
        let records: Vec<RawRecord> = sizes.iter().map(|bytes| record(*bytes)).collect();
        let counts: Vec<i32> =
            batches(&records, 5).unwrap().iter().map(|batch| batch.header().records).collect();
        assert_eq!(counts, [4, 1, 1]);
    }

    #[test]
    fn a_tombstone_is_a_record_without_value() {
        let tombstone = RawRecord { key: Bytes::from_static(b"key"), value: None };
        let made = batches(&[tombstone], 5).unwrap();
        assert_eq!((made.len(), made[0].header().records, made[0].header().max_timestamp), (1, 1, 5));
    }
}
