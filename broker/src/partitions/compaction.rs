//! Compaction: a few threads (`log.cleaner.threads`), each working on the dirtiest log that nobody works on.
//!
//! No partition has a timer: every `log.cleaner.backoff.ms` (and at once after a round) a thread asks the lanes
//! which logs have something to compact. A log that cannot be read is left out from then on, counted and logged:
//! nothing of it is dropped.

use std::collections::{BTreeMap, BTreeSet};
use std::io;
use std::sync::Arc;
use std::sync::atomic::{AtomicU64, Ordering};
use std::time::Duration;

use felix_cluster::config::broker::CleanerConfig;
use felix_protocol::ids::PartitionId;
use felix_protocol::time::{Clock, MonoTime};
use felix_storage::compaction::{
    Cleaned, Compaction, CompactionError, Dirtiness, OffsetMap, Replaced, Summary,
};
use felix_storage::disk::os::OsDisk;
use felix_storage::{Replicas, StorageError};
use parking_lot::{Condvar, Mutex};

use crate::clock::SystemClock;
use crate::partitions::lane::{LaneSender, Message, Step};
use crate::partitions::led::Led;
use crate::partitions::{Thread, lane_number};
use crate::tasks;

/// A log whose round failed is left alone for this long; doubles up to [`LONGEST_REST`].
const FIRST_REST: Duration = Duration::from_secs(1);
/// The longest rest after failures.
const LONGEST_REST: Duration = Duration::from_secs(300);
/// The least memory of a thread's map, whatever the setting says.
const LEAST_MAP: usize = 1 << 20;

/// What compaction did and found.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq)]
pub struct Figures {
    /// Logs that are left out because they cannot be read.
    pub uncleanable: u64,
    /// Rounds made.
    pub rounds: u64,
    /// Bytes read by them.
    pub read_bytes: u64,
    /// Bytes that they took out of logs.
    pub freed_bytes: u64,
    /// How long the last one took.
    pub last_round_ms: u64,
    /// The dirtiest log's dirty part, in hundredths.
    pub dirty_percent: u64,
}

#[derive(Default)]
struct Counters {
    rounds: AtomicU64,
    read_bytes: AtomicU64,
    freed_bytes: AtomicU64,
    last_round_ms: AtomicU64,
    dirty_percent: AtomicU64,
}

struct State {
    stopped: bool,
    workers: usize,
    threads: Vec<Thread>,
    busy: BTreeSet<PartitionId>,
    uncleanable: BTreeSet<PartitionId>,
    /// Until when logs rest whose rounds failed, and for how long next time.
    resting: BTreeMap<PartitionId, (MonoTime, Duration)>,
    /// When the bytes that were allowed so far are spent, at the permitted rate.
    paid_until: MonoTime,
}

impl State {
    fn new() -> State {
        State {
            stopped: false,
            workers: 0,
            threads: Vec::new(),
            busy: BTreeSet::new(),
            uncleanable: BTreeSet::new(),
            resting: BTreeMap::new(),
            paid_until: MonoTime(0),
        }
    }
}

struct Shared {
    config: Mutex<CleanerConfig>,
    state: Mutex<State>,
    /// Signalled when a thread that waits should look again.
    changed: Condvar,
    lanes: Vec<LaneSender>,
    led: Arc<Led>,
    replicas: Arc<Replicas<OsDisk>>,
    clock: SystemClock,
    counters: Counters,
}

/// The threads that compact.
pub(super) struct Cleaner {
    shared: Arc<Shared>,
}

impl Cleaner {
    /// Starts as many threads as the settings say.
    pub(super) fn start(
        config: CleanerConfig,
        lanes: Vec<LaneSender>,
        led: Arc<Led>,
        replicas: Arc<Replicas<OsDisk>>,
        clock: SystemClock,
    ) -> io::Result<Cleaner> {
        let shared = Shared {
            config: Mutex::new(config.clone()),
            state: Mutex::new(State::new()),
            changed: Condvar::new(),
            lanes,
            led,
            replicas,
            clock,
            counters: Counters::default(),
        };
        let cleaner = Cleaner { shared: Arc::new(shared) };
        cleaner.configure(config)?;
        Ok(cleaner)
    }

    /// New settings; threads come and go with them.
    pub(super) fn configure(&self, config: CleanerConfig) -> io::Result<()> {
        let wanted = if config.enabled { config.threads } else { 0 };
        *self.shared.config.lock() = config;
        let mut state = self.shared.state.lock();
        while !state.stopped && state.workers < wanted {
            let (shared, number) = (Arc::clone(&self.shared), state.workers);
            let thread = tasks::thread(&format!("felix-compact-{number}"), move || shared.run(number))?;
            // Those that ended when there were fewer are of no interest any more.
            state.threads.retain(|thread| !thread.is_finished());
            state.threads.push(thread);
            state.workers += 1;
        }
        drop(state);
        self.shared.changed.notify_all();
        Ok(())
    }

    /// Ends the threads; rounds under way end early.
    pub(super) fn stop(&self) {
        let threads = {
            let mut state = self.shared.state.lock();
            state.stopped = true;
            std::mem::take(&mut state.threads)
        };
        self.shared.changed.notify_all();
        for thread in threads {
            // A panic was logged and counted where it happened.
            let _ = thread.join();
        }
    }

    /// What was done.
    pub(super) fn figures(&self) -> Figures {
        self.shared.forget();
        let counters = &self.shared.counters;
        let read = |counter: &AtomicU64| counter.load(Ordering::Relaxed);
        Figures {
            uncleanable: self.shared.state.lock().uncleanable.len() as u64,
            rounds: read(&counters.rounds),
            read_bytes: read(&counters.read_bytes),
            freed_bytes: read(&counters.freed_bytes),
            last_round_ms: read(&counters.last_round_ms),
            dirty_percent: read(&counters.dirty_percent),
        }
    }
}

/// Whoever forgets to stop them must not leave them with the data directory in their hands.
impl Drop for Cleaner {
    fn drop(&mut self) {
        self.stop();
    }
}

/// Gives a log free again, also when the thread that had it panics.
struct Busy<'a> {
    shared: &'a Shared,
    partition: PartitionId,
}

impl Drop for Busy<'_> {
    fn drop(&mut self) {
        self.shared.state.lock().busy.remove(&self.partition);
    }
}

impl Shared {
    fn run(&self, number: usize) {
        while self.goes_on(number) {
            let worked = match self.choose() {
                Some(busy) => self.work(&busy.partition),
                None => false,
            };
            if !worked {
                let backoff = Duration::from_millis(self.config.lock().backoff_ms.max(1));
                let mut state = self.state.lock();
                if !state.stopped {
                    self.changed.wait_for(&mut state, backoff);
                }
            }
        }
    }

    /// Whether this thread is still wanted.
    fn goes_on(&self, number: usize) -> bool {
        let wanted = {
            let config = self.config.lock();
            if config.enabled { config.threads } else { 0 }
        };
        let mut state = self.state.lock();
        let goes_on = !state.stopped && number < wanted;
        if !goes_on {
            state.workers = state.workers.min(number);
        }
        goes_on
    }

    fn lane(&self, partition: &PartitionId) -> &LaneSender {
        &self.lanes[lane_number(partition, self.lanes.len())]
    }

    /// What is remembered of partitions goes with them.
    fn forget(&self) {
        let mut state = self.state.lock();
        state.uncleanable.retain(|partition| self.led.get(partition).is_some());
        state.resting.retain(|partition, _| self.led.get(partition).is_some());
    }

    /// Asks a lane; `None` when it has ended.
    fn ask<T>(
        &self,
        lane: &LaneSender,
        step: impl FnOnce(crossbeam_channel::Sender<T>) -> Step,
    ) -> Option<T> {
        let (answer, answered) = crossbeam_channel::bounded(1);
        lane.send(Message::Compaction(step(answer)));
        answered.recv().ok()
    }

    /// The dirtiest log that is worth a round and that nobody works on.
    fn choose(&self) -> Option<Busy<'_>> {
        self.forget();
        let mut worth = Vec::new();
        let mut dirtiest = 0;
        for lane in &self.lanes {
            for mut candidate in self.ask(lane, |answer| Step::Candidates { answer })? {
                let partition = candidate.partition();
                if self.rests(&partition) {
                    continue;
                }
                match candidate.assess(self.clock.wall()) {
                    Ok(dirtiness) => {
                        dirtiest = dirtiest.max(dirtiness.millionths());
                        if dirtiness.is_worth_it() {
                            worth.push((rank(&dirtiness), partition));
                        }
                    }
                    Err(error) => self.failed(&partition, &CompactionError::from(error)),
                }
            }
        }
        self.counters.dirty_percent.store(u64::from(dirtiest / 10_000), Ordering::Relaxed);
        worth.sort_unstable();
        let mut state = self.state.lock();
        let partition = worth.into_iter().rev().map(|(_, id)| id).find(|id| !state.busy.contains(id))?;
        state.busy.insert(partition);
        drop(state);
        Some(Busy { shared: self, partition })
    }

    fn rests(&self, partition: &PartitionId) -> bool {
        let state = self.state.lock();
        state.uncleanable.contains(partition)
            || state.busy.contains(partition)
            || state.resting.get(partition).is_some_and(|(until, _)| *until > self.clock.now())
    }

    /// One round. Returns whether it is worth looking for another at once.
    fn work(&self, partition: &PartitionId) -> bool {
        let began = self.clock.now();
        match self.round(partition) {
            Ok(Some(summary)) => {
                let counters = &self.counters;
                let took = u64::try_from(self.clock.now().since(began).as_millis()).unwrap_or(u64::MAX);
                counters.rounds.fetch_add(1, Ordering::Relaxed);
                counters.read_bytes.fetch_add(summary.read_bytes, Ordering::Relaxed);
                let freed = summary.before_bytes.saturating_sub(summary.after_bytes);
                counters.freed_bytes.fetch_add(freed, Ordering::Relaxed);
                counters.last_round_ms.store(took, Ordering::Relaxed);
                self.state.lock().resting.remove(partition);
                tracing::debug!(
                    %partition, end = summary.end, keys = summary.keys, map_bytes = summary.map_bytes,
                    records_before = summary.before_records, records_after = summary.after_records,
                    bytes_before = summary.before_bytes, bytes_after = summary.after_bytes, took_ms = took,
                    "a log was compacted"
                );
                if summary.keyless > 0 {
                    tracing::warn!(
                        %partition, records = summary.keyless,
                        "records without a key left a compacted log: they were written before it was one"
                    );
                }
                true
            }
            Ok(None) | Err(CompactionError::Stopped | CompactionError::Changed) => false,
            Err(error) => {
                self.failed(partition, &error);
                // Others must not wait because of this one.
                true
            }
        }
    }

    fn failed(&self, partition: &PartitionId, error: &CompactionError) {
        let mut state = self.state.lock();
        if let CompactionError::Storage(StorageError::Damaged(_)) = error {
            if state.uncleanable.insert(*partition) {
                tracing::error!(%partition, %error, "a log cannot be compacted and is left as it is");
            }
            return;
        }
        let rest = state.resting.get(partition).map_or(FIRST_REST, |(_, rest)| (*rest * 2).min(LONGEST_REST));
        state.resting.insert(*partition, (self.clock.now().after(rest), rest));
        tracing::warn!(%partition, %error, again_in = ?rest, "a log could not be compacted; it is tried again");
    }

    fn round(&self, partition: &PartitionId) -> Result<Option<Summary>, CompactionError> {
        let lane = self.lane(partition);
        // What the round relies on must be durable: recovery believes what lies below.
        let ticket = self.replicas.stage_with(partition, |_| {});
        self.replicas.commit(ticket)?;
        let Some(synced) = self.replicas.get(partition).map(|row| row.synced) else { return Ok(None) };
        let id = *partition;
        let plan = self.ask(lane, |answer| Step::Plan { partition: id, synced, answer }).flatten();
        let Some(mut plan) = plan else { return Ok(None) };
        let now = self.clock.wall();
        if !plan.assess(now).map_err(CompactionError::from)?.is_worth_it() {
            return Ok(None);
        }
        let (map_bytes, load_factor, buffer_bytes) = {
            let config = self.config.lock();
            let share = config.dedupe_bytes / config.threads.max(1) as u64;
            let share = usize::try_from(share).unwrap_or(usize::MAX).max(LEAST_MAP);
            (share, config.load_factor, config.buffer_bytes)
        };
        let mut map = OffsetMap::new(map_bytes, load_factor);
        let reader = plan.reader().clone();
        let summary = self.rewrite(partition, plan, &mut map, buffer_bytes)?;
        let done = self.ask(lane, |answer| Step::Done { partition: id, summary, answer }).flatten();
        if let Some(content) = done
            && let Err(error) = reader.note_compaction(&content)
        {
            tracing::warn!(%partition, %error, "how far a log is compacted is not noted; a restart costs a round");
        }
        Ok(Some(summary))
    }

    fn rewrite(
        &self,
        partition: &PartitionId,
        plan: Compaction<OsDisk>,
        map: &mut OffsetMap,
        buffer_bytes: usize,
    ) -> Result<Summary, CompactionError> {
        let mut pace = |bytes| self.pace(bytes);
        let mut round = plan.begin(map, self.clock.wall(), buffer_bytes, &mut pace)?;
        while let Some(cleaned) = round.next_group(&mut pace)? {
            let replaced = self.put_in_place(partition, cleaned)?;
            if let Err(error) = replaced.remove() {
                tracing::warn!(%partition, %error, "files of a compacted log stay until the next start");
            }
        }
        Ok(round.summary())
    }

    fn put_in_place(
        &self,
        partition: &PartitionId,
        cleaned: Cleaned<OsDisk>,
    ) -> Result<Replaced<OsDisk>, CompactionError> {
        let (lane, partition) = (self.lane(partition), *partition);
        let cleaned = Box::new(cleaned);
        let claimed = self.ask(lane, |answer| Step::Claim { partition, cleaned, answer });
        let Some((claimed, mut cleaned)) = claimed else { return Err(CompactionError::Stopped) };
        if !claimed {
            cleaned.discard();
            return Err(CompactionError::Changed);
        }
        if let Err(error) = cleaned.commit() {
            lane.send(Message::Compaction(Step::Unclaim { partition }));
            return Err(error);
        }
        match self.ask(lane, |answer| Step::Swap { partition, cleaned, answer }) {
            Some(Ok(Some(replaced))) => Ok(replaced),
            Some(Ok(None)) => Err(CompactionError::Changed),
            Some(Err(error)) => Err(error.into()),
            // The next start brings it to its place.
            None => Err(CompactionError::Stopped),
        }
    }

    /// Waits as long as so many bytes are worth at the permitted rate, all threads together; false when the
    /// threads are to stop.
    fn pace(&self, bytes: u64) -> bool {
        let rate = self.config.lock().max_bytes_per_second;
        let mut state = self.state.lock();
        if let Some(rate) = rate.filter(|_| bytes > 0) {
            let now = self.clock.now();
            let worth = Duration::from_secs_f64((bytes_as_f64(bytes) / rate).clamp(0.0, 3600.0));
            state.paid_until = state.paid_until.max(now).after(worth);
            let until = state.paid_until;
            while !state.stopped && self.clock.now() < until {
                let left = until.since(self.clock.now());
                self.changed.wait_for(&mut state, left);
            }
        }
        !state.stopped
    }
}

#[expect(clippy::cast_precision_loss, reason = "far below 2^52")]
fn bytes_as_f64(bytes: u64) -> f64 {
    bytes as f64
}

/// Overdue ones first, then the dirtiest.
fn rank(dirtiness: &Dirtiness) -> (bool, u32) {
    (dirtiness.overdue, dirtiness.millionths())
}
