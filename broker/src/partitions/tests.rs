//! Lanes, flushers and upkeep with real threads, on a real disk, with a control store that says yes.

use std::collections::BTreeSet;
use std::path::Path;

use felix_partition::append::{Acks, Append, Origin};
use felix_partition::config::{FlushPolicy, PartitionConfig};
use felix_partition::copy::{DeleteRecordsError, DeleteTo};
use felix_partition::fence;
use felix_partition::opening::{OpenRequest, Outcome};
use felix_partition::published::Stage;
use felix_protocol::batch::{BatchBuilder, CheckedBatch};
use felix_protocol::ids::{Generation, LogId, Offset, TopicId, Uuid};
use felix_replication::eligible::{KeyState, Last, Report, Revision};
use felix_replication::event::ReportAnswer;
use felix_replication::halted::HaltReason;
use felix_replication::lease::Lease;
use felix_storage::Limits;
use parking_lot::Condvar;
use tempfile::TempDir;

use super::report::Then;
use super::*;

mod compacting;
mod following;
mod leased;
mod replicated;

/// A report with what its answer is told to.
type Asked = (Report, Then<ReportAnswer>);

/// A control store that lands every report, or sits on it.
#[derive(Default)]
struct Yes {
    /// Reports that are kept back while `Some`.
    kept: Mutex<Option<Vec<Asked>>>,
    asked: Condvar,
}

impl ControlStore for Yes {
    fn report(&self, _: PartitionId, _: Generation, report: Report, then: Then<ReportAnswer>) {
        match &mut *self.kept.lock() {
            Some(kept) => kept.push((report, then)),
            None => then(ReportAnswer::Landed(Revision(report.revision.0 + 1))),
        }
        self.asked.notify_all();
    }

    fn read_key(&self, _: PartitionId, then: Then<Option<KeyState>>) {
        then(None);
    }
}

struct Broker {
    partitions: Arc<Partitions>,
    control: Arc<Yes>,
    runtime: tokio::runtime::Runtime,
}

fn key_at(revision: Revision) -> KeyState {
    KeyState {
        revision,
        topic: revision,
        eligible: BTreeSet::new(),
        last: Last::Never,
        replicas: BTreeSet::new(),
        generation: Generation::ZERO,
        led: true,
    }
}

fn partition(index: i32) -> PartitionId {
    PartitionId { topic: TopicId(Uuid::from_u128(5)), index }
}

fn runtime() -> tokio::runtime::Runtime {
    tokio::runtime::Builder::new_multi_thread().worker_threads(2).enable_all().build().unwrap()
}

fn setup(dir: DataDir<OsDisk>, replicas: Replicas<OsDisk>) -> Setup {
    Setup {
        dir,
        replicas: Arc::new(replicas),
        flush_mode: FlushMode::Auto,
        broker: BrokerId(1),
        clock: SystemClock::start(),
        lanes: 2,
        flushers: 4,
        retain_every: Duration::from_secs(300),
        scrub: Pace { bytes_per_second: None, every_ms: 1 },
        cleaner: felix_cluster::config::BrokerConfig::default().logs.cleaner,
        flush_seconds: crate::metrics::Metrics::new().unwrap().flush_seconds,
    }
}

impl Broker {
    fn start(path: &Path) -> Broker {
        let dir = DataDir::open(OsDisk, path, Limits::default()).unwrap();
        let (replicas, report) = Replicas::open(&dir).unwrap();
        fence::settle_identities(&replicas, &report, 1).unwrap();
        let setup = setup(dir, replicas);
        let control = Arc::new(Yes::default());
        let partitions =
            Partitions::start_with(setup, Arc::clone(&control) as Arc<dyn ControlStore>).unwrap();
        let runtime = runtime();
        Broker { partitions, control, runtime }
    }

    fn open(
        &self,
        index: i32,
        number: u32,
        named: Option<LogId>,
        config: PartitionConfig,
    ) -> PartitionHandle {
        let request = OpenRequest {
            partition: partition(index),
            generation: Generation::new(number).unwrap(),
            named,
            unclean: false,
            config: Arc::new(config),
        };
        let Some(Outcome::Ready(copy, _)) = self.partitions.opener.open(&[request], &Lease::of_lock()).pop()
        else {
            panic!("not ready");
        };
        let revision = Revision(1);
        let key = key_at(revision);
        let mut changes = self.partitions.changes();
        self.partitions.lane_of(&partition(index)).send(Message::Adopt { copy, key });
        self.runtime.block_on(async {
            loop {
                if let Some(handle) = self.partitions.get(&partition(index)) {
                    return handle;
                }
                changes.changed().await.unwrap();
            }
        })
    }

    fn append(&self, handle: &PartitionHandle, append: Append) -> Result<Appended, AppendError> {
        self.runtime.block_on(handle.submit(append))
    }
}

fn batch(records: usize) -> CheckedBatch {
    let mut builder = BatchBuilder::new();
    // Of today: retention takes out what is old.
    let now = felix_protocol::time::Clock::wall(&SystemClock::start()).0;
    for record in 0..records {
        builder.push(now + record as i64, None, Some(&[3; 50]));
    }
    builder.build().unwrap()
}

fn append(batch: CheckedBatch, acks: Acks) -> Append {
    let frame_bytes = batch.bytes().len();
    Append { batch, acks, timeout: Duration::from_secs(30), origin: Origin::Client, frame_bytes }
}

fn page_cache() -> PartitionConfig {
    let flush = FlushPolicy { messages: i64::MAX, within: None };
    PartitionConfig { flush, ..PartitionConfig::default() }
}

fn read(handle: &PartitionHandle) -> usize {
    handle.reader().read(handle.log_start(), 1 << 24, handle.mark(), true).unwrap().bytes
}

#[test]
fn many_writers_share_flushes_and_each_keeps_its_order() {
    const WRITERS: usize = 16;
    const APPENDS: usize = 100;
    let place = TempDir::new().unwrap();
    let broker = Broker::start(place.path());
    let handles: Vec<_> =
        (0..3).map(|index| broker.open(index, 1, None, PartitionConfig::default())).collect();
    let before = broker.partitions.flushes();
    let writers: Vec<_> = (0..WRITERS)
        .map(|writer| {
            let handle = handles[writer % handles.len()].clone();
            tasks_spawn(&broker, async move {
                let mut offsets = Vec::new();
                for _ in 0..APPENDS / 5 {
                    // A pipeline of five: submitted in order, awaited afterwards.
                    let answers: Vec<_> =
                        (0..5).map(|_| handle.submit(append(batch(2), Acks::All))).collect();
                    for answer in answers {
                        offsets.push(answer.await.unwrap().base_offset);
                    }
                }
                offsets
            })
        })
        .collect();
    let mut all = vec![BTreeSet::new(); handles.len()];
    for (writer, offsets) in writers.into_iter().enumerate() {
        let offsets = broker.runtime.block_on(offsets).unwrap().unwrap();
        assert!(offsets.is_sorted(), "writer {writer}: {offsets:?}");
        for offset in offsets {
            assert!(all[writer % handles.len()].insert(offset), "offset {offset} twice");
        }
    }
    for (handle, offsets) in handles.iter().zip(&all) {
        let expected: BTreeSet<Offset> = (0..offsets.len() as i64).map(|at| at * 2).collect();
        assert_eq!(*offsets, expected, "dense");
        assert_eq!(handle.mark(), offsets.len() as i64 * 2);
    }
    let flushes = broker.partitions.flushes();
    let logs = flushes.logs - before.logs;
    let appends = (WRITERS * APPENDS) as u64;
    assert!(logs * 3 < appends, "{logs} flushed logs for {appends} appends: no group commit");
    broker.partitions.stop();
}

fn tasks_spawn<F>(broker: &Broker, future: F) -> tokio::task::JoinHandle<Result<F::Output, tasks::Panicked>>
where
    F: Future + Send + 'static,
    F::Output: Send + 'static,
{
    let _inside = broker.runtime.enter();
    tasks::spawn("writer", future)
}

/// Small batches are carried out in place where the lane is idle, large ones always queue: the log itself tells
/// whether one overtook the other, by the producer's sequences.
#[test]
fn no_batch_overtakes_an_earlier_one_of_its_connection() {
    const WRITERS: i64 = 6;
    const ROUNDS: i32 = 60;
    let place = TempDir::new().unwrap();
    let broker = Broker::start(place.path());
    let handles: Vec<_> = (0..3).map(|index| broker.open(index, 1, None, page_cache())).collect();
    let numbered = |producer: i64, sequence: i32| {
        let mut builder = BatchBuilder::new().producer(producer, 0, sequence);
        // Every third is too large to be carried out in place.
        let value = vec![1; if sequence % 3 == 0 { 20_000 } else { 30 }];
        builder.push(1_700_000_000_000, None, Some(&value));
        append(builder.build().unwrap(), Acks::All)
    };
    let writers: Vec<_> = (0..WRITERS)
        .map(|producer| {
            let handle = handles[usize::try_from(producer).unwrap() % handles.len()].clone();
            tasks_spawn(&broker, async move {
                for round in 0..ROUNDS {
                    let answers: Vec<_> =
                        (0..5).map(|step| handle.submit(numbered(producer, round * 5 + step))).collect();
                    for answer in answers {
                        answer.await.unwrap();
                    }
                }
            })
        })
        .collect();
    for writer in writers {
        broker.runtime.block_on(writer).unwrap().unwrap();
    }
    let written: Offset = handles.iter().map(PartitionHandle::log_end).sum();
    assert_eq!(written, WRITERS * i64::from(ROUNDS) * 5);
    broker.partitions.stop();
}

#[test]
fn a_dropped_answer_loses_only_the_answer() {
    let place = TempDir::new().unwrap();
    let broker = Broker::start(place.path());
    let handle = broker.open(0, 1, None, PartitionConfig::default());
    drop(handle.submit(append(batch(3), Acks::All)));
    assert_eq!(broker.append(&handle, append(batch(1), Acks::All)).unwrap().base_offset, 3);
    broker.partitions.stop();
}

#[test]
fn readers_are_woken_when_the_mark_moves() {
    let place = TempDir::new().unwrap();
    let broker = Broker::start(place.path());
    let handle = broker.open(0, 1, None, PartitionConfig::default());
    let other = broker.open(1, 1, None, PartitionConfig::default());
    let wait = FetchWait::new(1);
    let _kept = [&handle, &other].map(|at| at.register(&wait, Isolation::ReadUncommitted).unwrap());
    let (waiting, at) = (Arc::clone(&wait), handle.clone());
    let reader = tasks_spawn(&broker, async move {
        // Opening may have woken it once already.
        while at.mark() == 0 {
            waiting.woken().await;
        }
        at.mark()
    });
    broker.append(&handle, append(batch(4), Acks::Leader)).unwrap();
    assert_eq!(broker.runtime.block_on(reader).unwrap().unwrap(), 4);
    assert!(read(&handle) > 0);
    broker.partitions.stop();
}

#[test]
fn a_panic_halts_one_partition_and_no_other() {
    let place = TempDir::new().unwrap();
    let broker = Broker::start(place.path());
    let handles: Vec<_> = (0..8).map(|index| broker.open(index, 1, None, page_cache())).collect();
    let panics = tasks::panics();
    broker.append(&handles[3], append(batch(1), Acks::All)).unwrap();
    broker.partitions.lane_of(&partition(3)).send(Message::Break { partition: partition(3) });
    let answer = broker.append(&handles[3], append(batch(1), Acks::All));
    assert_eq!(answer, Err(AppendError::Halted("broken".to_owned())));
    assert_eq!(tasks::panics(), panics + 1);
    assert_eq!(handles[3].stage(), Stage::Halted);
    assert!(!handles[3].is_leader());
    assert!(read(&handles[3]) > 0, "what was committed can still be read");
    let halted = broker.partitions.halted();
    assert_eq!((halted.len(), halted[0].partition, halted[0].reason), (1, partition(3), HaltReason::Broken));
    for handle in handles.iter().filter(|handle| handle.id() != partition(3)) {
        broker.append(handle, append(batch(1), Acks::All)).unwrap();
    }
    broker.partitions.stop();
}

#[test]
fn what_was_taken_in_before_the_stop_is_answered_and_the_stop_is_clean() {
    let place = TempDir::new().unwrap();
    let broker = Broker::start(place.path());
    let handle = broker.open(0, 1, None, PartitionConfig::default());
    let answers: Vec<_> = (0..50).map(|_| handle.submit(append(batch(1), Acks::All))).collect();
    broker.partitions.stop();
    for answer in answers {
        broker.runtime.block_on(answer).unwrap();
    }
    assert_eq!(broker.append(&handle, append(batch(1), Acks::All)), Err(AppendError::NotLeader));
    assert!(broker.partitions.get(&partition(0)).is_none());
    let id = broker.partitions.opener.replicas.get(&partition(0)).unwrap().log_id;
    drop((broker, handle));
    let broker = Broker::start(place.path());
    let row = broker.partitions.opener.replicas.get(&partition(0)).unwrap();
    assert!(row.clean);
    assert_eq!((row.mark, row.synced), (50, 50));
    let handle = broker.open(0, 2, Some(id), PartitionConfig::default());
    assert_eq!((handle.mark(), handle.log_end()), (50, 50));
    broker.partitions.stop();
}

#[test]
fn while_opening_writers_are_parked() {
    let place = TempDir::new().unwrap();
    let broker = Broker::start(place.path());
    *broker.control.kept.lock() = Some(Vec::new());
    let handle = broker.open(0, 1, None, page_cache());
    let answer = handle.submit(append(batch(1), Acks::Leader));
    let (report, then) = {
        let mut kept = broker.control.kept.lock();
        while kept.as_ref().is_none_or(Vec::is_empty) {
            broker.control.asked.wait(&mut kept);
        }
        kept.take().and_then(|mut kept| kept.pop()).unwrap()
    };
    assert_eq!((handle.stage(), handle.mark()), (Stage::Opening, 0));
    then(ReportAnswer::Landed(Revision(report.revision.0 + 1)));
    assert_eq!(broker.runtime.block_on(answer).unwrap().base_offset, 0);
    assert_eq!((handle.stage(), handle.mark()), (Stage::Open, 1));
    broker.partitions.stop();
}

#[test]
fn the_end_of_a_tenure_reaches_its_handles() {
    let place = TempDir::new().unwrap();
    let broker = Broker::start(place.path());
    let handle = broker.open(0, 1, None, page_cache());
    broker.append(&handle, append(batch(1), Acks::All)).unwrap();
    let lane = broker.partitions.lane_of(&partition(0));
    lane.send(Message::End { partition: partition(0), generation: handle.generation() });
    assert_eq!(broker.append(&handle, append(batch(1), Acks::All)), Err(AppendError::NotLeader));
    assert!(broker.partitions.get(&partition(0)).is_none());
    assert!(!handle.is_leader());
    // The same copy leads again at the next generation.
    let revision = Revision(9);
    let key = key_at(revision);
    let next = handle.generation().next().unwrap();
    lane.send(Message::Lead {
        partition: partition(0),
        generation: next,
        lease: Lease::of_lock(),
        key,
        unclean_at: None,
    });
    let mut changes = broker.partitions.changes();
    let again = broker.runtime.block_on(async {
        loop {
            if let Some(handle) = broker.partitions.get(&partition(0)) {
                return handle;
            }
            changes.changed().await.unwrap();
        }
    });
    assert_eq!(again.generation(), next);
    assert_eq!(broker.append(&again, append(batch(1), Acks::All)).unwrap().base_offset, 1);
    assert_eq!(broker.append(&handle, append(batch(1), Acks::All)), Err(AppendError::NotLeader));
    broker.partitions.stop();
}

#[test]
fn deleted_records_stay_deleted_over_a_kill() {
    let place = TempDir::new().unwrap();
    let broker = Broker::start(place.path());
    let handle = broker.open(0, 1, None, PartitionConfig::default());
    broker.append(&handle, append(batch(10), Acks::All)).unwrap();
    let delete = |to| broker.runtime.block_on(handle.delete_records(to));
    let beyond = DeleteRecordsError::OutOfRange { asked: 11, start: 0, mark: 10 };
    assert_eq!(delete(DeleteTo::Offset(11)), Err(beyond));
    assert_eq!(delete(DeleteTo::Offset(4)), Ok(4));
    assert_eq!(handle.log_start(), 4);
    let row = broker.partitions.opener.replicas.get(&partition(0)).unwrap();
    assert_eq!(row.log_start, 4, "durable before it was answered");
    broker.partitions.stop();
}

#[test]
fn a_weaker_flush_policy_takes_effect_once_it_is_noted() {
    let place = TempDir::new().unwrap();
    let broker = Broker::start(place.path());
    let handle = broker.open(0, 1, None, PartitionConfig::default());
    broker.append(&handle, append(batch(1), Acks::All)).unwrap();
    let lane = broker.partitions.lane_of(&partition(0));
    lane.send(Message::Configure { partition: partition(0), config: Arc::new(page_cache()) });
    let before = broker.partitions.flushes().logs;
    let mut unflushed = 0;
    // Each append is acknowledged either way; from some append on no flush comes with it.
    while unflushed < 20 {
        let flushes = broker.partitions.flushes().logs;
        broker.append(&handle, append(batch(1), Acks::All)).unwrap();
        unflushed = if broker.partitions.flushes().logs == flushes { unflushed + 1 } else { 0 };
        assert!(broker.partitions.flushes().logs - before < 10_000, "the policy never changed");
    }
    assert!(broker.partitions.opener.replicas.get(&partition(0)).unwrap().unsynced);
    broker.partitions.stop();
}

#[test]
fn a_failed_flush_halts_the_copy_and_calls_for_the_end_of_the_process() {
    let place = TempDir::new().unwrap();
    let broker = Broker::start(place.path());
    let handle = broker.open(0, 1, None, PartitionConfig::default());
    broker.append(&handle, append(batch(1), Acks::All)).unwrap();
    let mut fatal = broker.partitions.fatal();
    assert_eq!(*fatal.borrow(), None);
    let failure = FlushError { path: place.path().to_owned(), reason: "the device is gone".to_owned() };
    let outcome = Err(failure.clone());
    broker
        .partitions
        .lane_of(&partition(0))
        .flushed(vec![flusher::Flushed { partition: partition(0), outcome }]);
    let told = broker.runtime.block_on(fatal.wait_for(Option::is_some)).unwrap().clone();
    assert_eq!(told, Some(failure));
    let halted = AppendError::Halted("storage".to_owned());
    assert_eq!(broker.append(&handle, append(batch(1), Acks::All)), Err(halted));
    assert_eq!(broker.partitions.halted()[0].reason, HaltReason::Storage);
    let row = || broker.partitions.opener.replicas.get(&partition(0)).unwrap();
    // Noted by another thread.
    while !row().unsynced {
        std::thread::yield_now();
    }
    broker.partitions.stop();
    let row = row();
    assert!(!row.clean, "what the disk holds is unknown");
    let id = row.log_id;
    drop((broker, handle));
    let broker = Broker::start(place.path());
    let row = broker.partitions.opener.replicas.get(&partition(0)).unwrap();
    assert_ne!(row.log_id, id, "in doubt since");
    broker.partitions.stop();
}

#[test]
fn more_appends_than_a_lane_queues_are_refused_at_once() {
    let lane = LaneSender::unserved();
    let submit = || {
        let (answer, receiver) = oneshot::channel();
        lane.append(partition(0), Generation::ZERO, append(batch(1), Acks::All), answer);
        receiver
    };
    let mut queued: Vec<_> = (0..16_384).map(|_| submit()).collect();
    assert_eq!(submit().try_recv().unwrap(), Err(AppendError::Busy));
    assert_eq!(lane.queued(), queued.len());
    assert!(queued.iter_mut().all(|answer| answer.try_recv().is_err()), "the others wait");
}
