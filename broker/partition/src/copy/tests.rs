//! Stories of one copy on a disk in memory.

use std::path::Path;
use std::sync::atomic::{AtomicU64, Ordering};

use bytes::Bytes;
use felix_protocol::batch::{BatchBuilder, CheckedBatch};
use felix_protocol::ids::{BrokerId, LogId, TopicId, Uuid};
use felix_protocol::time::WallTime;
use felix_replication::eligible::{Last, Report, Revision};
use felix_replication::follower::{Reply, Token};
use felix_storage::disk::mem::{Crash, MemDisk};
use felix_storage::{DataDir, FlushMode, Flusher, Limits, LogConfig, Replicas};

use super::*;
use crate::actions::Removal;
use crate::append::Origin;
use crate::config::FlushPolicy;
use crate::following::Noted;
use crate::opening::{Decline, OpenRequest, Opener, Outcome};
use crate::shipping::Shipment;

mod crash;
mod failing;
mod following;
mod lease;
mod leaving;
mod opening;
mod stopping;

/// A clock that a test moves.
#[derive(Clone, Default)]
struct TestClock(Arc<AtomicU64>);

impl TestClock {
    fn advance(&self, by: Duration) {
        self.0.fetch_add(u64::try_from(by.as_nanos()).unwrap(), Ordering::SeqCst);
    }
}

impl Clock for TestClock {
    fn now(&self) -> MonoTime {
        MonoTime(1_000_000_000 + self.0.load(Ordering::SeqCst))
    }

    fn wall(&self) -> WallTime {
        WallTime(1_700_000_000_000 + i64::try_from(self.0.load(Ordering::SeqCst) / 1_000_000).unwrap())
    }
}

type TestCopy = Copy<MemDisk, TestClock, &'static str>;

/// What a copy asked of whoever runs it.
#[derive(Default)]
struct TestPorts {
    answers: Vec<(&'static str, Result<Appended, AppendError>)>,
    reports: Vec<Report>,
    opened: usize,
    moved: (u64, u64),
    changed: usize,
    shipments: Vec<(BrokerId, Shipment)>,
    notes: Vec<(Replica, Noted)>,
    told: Vec<(Token, Reply)>,
    halted: Vec<HaltReason>,
    failed: Vec<String>,
    /// Whether there is a slot for rebuilding.
    slots: bool,
    rebuilt: Vec<bool>,
}

impl Ports for TestPorts {
    type Writer = &'static str;

    fn answer(&mut self, writer: &'static str, answer: Result<Appended, AppendError>) {
        self.answers.push((writer, answer));
    }

    fn report(&mut self, _: PartitionId, _: Generation, report: Report) {
        self.reports.push(report);
    }

    fn read_key(&mut self, _: PartitionId, _: Generation) {}

    fn opened(&mut self, _: PartitionId, _: Generation) {
        self.opened += 1;
    }

    fn cut_off(&mut self, _: PartitionId, _: Generation, _: i64) {}

    fn gave_way(&mut self, _: PartitionId, _: Generation, _: &str) {}

    fn failed(&mut self, _: PartitionId, why: &str) {
        self.failed.push(why.to_owned());
    }

    fn ship(&mut self, _: PartitionId, follower: BrokerId, shipment: Shipment) {
        self.shipments.push((follower, shipment));
    }

    fn may_restart(&mut self, _: PartitionId, _: BrokerId, rebuild: bool) -> Option<u64> {
        (!rebuild || self.slots).then_some(0)
    }

    fn rebuilt(&mut self, _: PartitionId, _: BrokerId, completed: bool) {
        self.rebuilt.push(completed);
    }

    fn discarded(&mut self, removal: Removal) {
        removal().unwrap();
    }

    fn note(&mut self, _: PartitionId, row: Replica, noted: Noted) {
        self.notes.push((row, noted));
    }

    fn told(&mut self, token: Token, reply: Reply) {
        self.told.push((token, reply));
    }

    fn halted(&mut self, _: PartitionId, _: Generation, _: Offset, reason: HaltReason) {
        self.halted.push(reason);
    }

    fn resumed(&mut self, _: PartitionId) {
        self.halted.clear();
    }

    fn moved(&mut self, _: PartitionId, mark_bytes: u64, stable_bytes: u64) {
        self.moved.0 += mark_bytes;
        self.moved.1 += stable_bytes;
    }

    fn changed(&mut self, _: PartitionId) {
        self.changed += 1;
    }
}

/// One broker's disk and what stands around its copies.
struct World {
    disk: MemDisk,
    opener: Opener<MemDisk, TestClock>,
    clock: TestClock,
    lease: Lease,
    ports: TestPorts,
}

fn partition() -> PartitionId {
    PartitionId { topic: TopicId(Uuid::from_u128(77)), index: 3 }
}

/// A key that names nobody eligible.
fn key(revision: u64, last: Last) -> KeyState {
    KeyState {
        revision: Revision(revision),
        topic: Revision(1),
        eligible: Default::default(),
        last,
        replicas: Default::default(),
        generation: Generation::ZERO,
        led: true,
    }
}

fn generation(number: u32) -> Generation {
    Generation::new(number).unwrap()
}

impl World {
    fn new() -> World {
        World::on(MemDisk::new(), 1)
    }

    /// A start on that disk, in that boot of the machine.
    fn on(disk: MemDisk, boot: u128) -> World {
        let clock = TestClock::default();
        let dir = DataDir::open(disk.clone(), Path::new("/data"), Limits::default()).unwrap();
        let (replicas, report) = Replicas::open(&dir).unwrap();
        crate::fence::settle_identities(&replicas, &report, boot).unwrap();
        let flusher = Arc::new(Flusher::new(&dir, FlushMode::File).unwrap());
        let lease = Lease::of_lock();
        let opener =
            Opener { dir, replicas: Arc::new(replicas), flusher, broker: BrokerId(1), clock: clock.clone() };
        World { disk, opener, clock, lease, ports: TestPorts::default() }
    }

    /// The same machine after its process, or its power, was lost.
    fn after(self, crash: Crash, boot: u128) -> World {
        let disk = self.disk.crash(crash);
        drop(self);
        World::on(disk, boot)
    }

    fn try_open(
        &self,
        generation: Generation,
        named: Option<LogId>,
        config: PartitionConfig,
    ) -> Outcome<MemDisk, TestClock, &'static str> {
        let request = OpenRequest {
            partition: partition(),
            generation,
            named,
            unclean: false,
            config: Arc::new(config),
        };
        self.opener.open(&[request], &self.lease).pop().unwrap()
    }

    fn ready(&self, number: u32, named: Option<LogId>, config: PartitionConfig) -> Box<TestCopy> {
        match self.try_open(generation(number), named, config) {
            Outcome::Ready(copy, _) => copy,
            Outcome::Declined { reason, .. } => panic!("declined: {reason:?}"),
            Outcome::Stale { accepted } => panic!("stale: {accepted}"),
            Outcome::Failed(error) => panic!("failed: {error}"),
        }
    }

    /// A copy that leads at generation 1, opened.
    fn leading(&mut self, config: PartitionConfig) -> Box<TestCopy> {
        let copy = self.ready(1, None, config);
        self.lead(copy)
    }

    fn lead(&mut self, mut copy: Box<TestCopy>) -> Box<TestCopy> {
        let key = key(5, Last::Never);
        copy.lead(key, &mut self.ports);
        self.land_opening(&mut copy);
        copy
    }

    fn land_opening(&mut self, copy: &mut TestCopy) {
        let report = self.ports.reports.pop().unwrap();
        let answer = ReportAnswer::Landed(Revision(6));
        let at = copy.published().generation();
        copy.report_answered(at, report.number, answer, &mut self.ports);
    }

    fn append(&mut self, copy: &mut TestCopy, writer: &'static str, append: Append) {
        let at = copy.published().generation();
        copy.append(at, append, writer, &mut self.ports);
        copy.settle(&mut self.ports);
    }

    fn flush(&mut self, copy: &mut TestCopy) -> bool {
        let Some(job) = copy.take_flush(self.clock.now(), false) else { return false };
        let outcome = self.opener.flusher.run(vec![job]).pop().unwrap();
        copy.flushed(&outcome, &mut self.ports);
        true
    }

    fn answers(&mut self) -> Vec<(&'static str, Result<Appended, AppendError>)> {
        std::mem::take(&mut self.ports.answers)
    }
}

fn batch(records: usize) -> CheckedBatch {
    let mut builder = BatchBuilder::new();
    for record in 0..records {
        builder.push(1_700_000_000_000 + record as i64, Some(b"key"), Some(&[7; 100]));
    }
    builder.build().unwrap()
}

fn numbered(sequence: i32, records: usize) -> CheckedBatch {
    let mut builder = BatchBuilder::new().producer(9, 0, sequence);
    for record in 0..records {
        builder.push(1_700_000_000_000 + record as i64, None, Some(b"value"));
    }
    builder.build().unwrap()
}

fn append(batch: CheckedBatch, acks: Acks) -> Append {
    let frame_bytes = batch.bytes().len();
    Append { batch, acks, timeout: Duration::from_secs(30), origin: Origin::Client, frame_bytes }
}

fn base(answer: &Result<Appended, AppendError>) -> Offset {
    answer.as_ref().unwrap().base_offset
}

fn page_cache() -> PartitionConfig {
    let flush = FlushPolicy { messages: i64::MAX, within: None };
    PartitionConfig { flush, ..PartitionConfig::default() }
}

fn read_all(copy: &TestCopy) -> Vec<Bytes> {
    copy.reader().read(copy.log.start(), 1 << 20, copy.published().mark(), true).unwrap().slices
}

#[test]
fn by_default_nothing_is_acknowledged_before_its_flush() {
    let mut world = World::new();
    let mut copy = world.leading(PartitionConfig::default());
    world.append(&mut copy, "a", append(batch(3), Acks::Leader));
    world.append(&mut copy, "b", append(batch(2), Acks::All));
    world.append(&mut copy, "c", append(batch(1), Acks::None));
    let answers = world.answers();
    assert_eq!(answers.len(), 1, "acks=0 waits for nothing");
    assert_eq!((answers[0].0, base(&answers[0].1)), ("c", 5));
    assert_eq!((copy.published().mark(), copy.published().log_end()), (0, 6));
    let syncs = world.disk.counters().file_syncs;
    assert!(world.flush(&mut copy));
    assert_eq!(world.disk.counters().file_syncs, syncs + 1, "one flush for all of them");
    let answers: Vec<_> = world.answers().iter().map(|(who, answer)| (*who, base(answer))).collect();
    assert_eq!(answers, [("a", 0), ("b", 3)]);
    assert_eq!(copy.published().mark(), 6);
    assert!(!world.flush(&mut copy), "nothing is left");
    assert_eq!(world.ports.moved.0, read_all(&copy).iter().map(|slice| slice.len() as u64).sum::<u64>());
}

#[test]
fn nothing_is_acknowledged_while_opening() {
    let mut world = World::new();
    let mut copy = world.ready(1, None, page_cache());
    let key = key(5, Last::Never);
    copy.lead(key, &mut world.ports);
    assert_eq!(copy.published().stage(), Stage::Opening);
    world.append(&mut copy, "a", append(batch(1), Acks::Leader));
    assert_eq!(world.answers(), []);
    assert_eq!(copy.published().mark(), 0);
    world.land_opening(&mut copy);
    assert_eq!(copy.published().stage(), Stage::Open);
    assert_eq!(world.answers().len(), 1);
    assert_eq!(copy.published().mark(), 1);
}

#[test]
fn the_page_cache_is_enough_where_the_topic_says_so() {
    let mut world = World::new();
    let mut copy = world.leading(page_cache());
    world.append(&mut copy, "a", append(batch(3), Acks::All));
    assert_eq!(world.answers().len(), 1);
    assert_eq!(copy.published().mark(), 3);
    assert!(!world.flush(&mut copy), "no flush is asked for");
    assert_eq!(copy.next_due(), MonoTime::NEVER);
}

#[test]
fn a_flush_every_few_records() {
    let mut world = World::new();
    let flush = FlushPolicy { messages: 4, within: None };
    let mut copy = world.leading(PartitionConfig { flush, ..PartitionConfig::default() });
    world.append(&mut copy, "a", append(batch(2), Acks::All));
    assert_eq!(world.answers().len(), 1);
    assert!(!world.flush(&mut copy));
    world.append(&mut copy, "b", append(batch(2), Acks::All));
    assert_eq!(world.answers(), [], "the fourth record makes a flush due, and its writer waits for it");
    assert!(world.flush(&mut copy));
    assert_eq!(world.answers().len(), 1);
}

#[test]
fn a_flush_by_time() {
    let mut world = World::new();
    let flush = FlushPolicy { messages: i64::MAX, within: Some(Duration::from_millis(200)) };
    let mut copy = world.leading(PartitionConfig { flush, ..PartitionConfig::default() });
    assert_eq!(copy.next_due(), MonoTime::NEVER, "an idle copy waits for nothing");
    world.append(&mut copy, "a", append(batch(2), Acks::All));
    assert_eq!(copy.next_due(), world.clock.now().after(Duration::from_millis(200)));
    assert!(!world.flush(&mut copy));
    world.clock.advance(Duration::from_millis(200));
    assert!(world.flush(&mut copy));
    assert_eq!(copy.next_due(), MonoTime::NEVER);
}

#[test]
fn a_closed_segment_is_flushed_whatever_the_policy() {
    let mut world = World::new();
    let mut config = page_cache();
    config.log = LogConfig { segment_bytes: 1000, ..LogConfig::default() };
    let mut copy = world.leading(config);
    world.append(&mut copy, "a", append(batch(5), Acks::All));
    assert!(!world.flush(&mut copy));
    world.append(&mut copy, "b", append(batch(5), Acks::All));
    assert_eq!(world.answers().len(), 2, "nobody waits for it");
    assert!(world.flush(&mut copy));
    assert_eq!(copy.row().synced, 10);
    assert!(!world.flush(&mut copy));
}

#[test]
fn acks_one_is_held_to_the_mark_where_the_topic_says_so() {
    let mut world = World::new();
    let mut config = page_cache();
    config.quorum = true;
    let mut copy = world.ready(1, None, config);
    let follower = Pair { broker: BrokerId(2), log: LogId::random() };
    let last = Last::Opened { pair: follower, generation: generation(0) };
    copy.lead(key(5, last), &mut world.ports);
    world.land_opening(&mut copy);
    world.append(&mut copy, "a", append(batch(1), Acks::Leader));
    assert_eq!(world.answers(), [], "the member of the set has confirmed nothing");
    copy.configure(Arc::new(page_cache()), &mut world.ports);
    world.append(&mut copy, "b", append(batch(1), Acks::Leader));
    assert_eq!(world.answers()[0].0, "b");
}

#[test]
fn a_handle_of_another_tenure_writes_nothing() {
    let mut world = World::new();
    let mut copy = world.leading(page_cache());
    copy.append(generation(0), append(batch(1), Acks::All), "old", &mut world.ports);
    let mut loaded = append(batch(1), Acks::All);
    loaded.origin = Origin::Broker { generation: generation(0) };
    copy.append(generation(1), loaded, "coordinator", &mut world.ports);
    let other = AppendError::OtherGeneration { expected: generation(0), found: generation(1) };
    assert_eq!(world.answers(), [("old", Err(AppendError::NotLeader)), ("coordinator", Err(other))]);
}

#[test]
fn the_end_of_a_tenure_answers_everyone() {
    let mut world = World::new();
    let mut copy = world.leading(PartitionConfig::default());
    world.append(&mut copy, "a", append(batch(1), Acks::All));
    copy.end_tenure(&mut world.ports);
    world.append(&mut copy, "b", append(batch(1), Acks::All));
    assert_eq!(world.answers(), [("a", Err(AppendError::NotLeader)), ("b", Err(AppendError::NotLeader))]);
    assert_eq!(copy.published().stage(), Stage::Closed);
    assert!(world.flush(&mut copy), "what was written is flushed all the same");
    assert_eq!(copy.published().mark(), 0, "but nothing is acknowledged any more");
}

#[test]
fn a_retry_is_answered_with_the_first_offset_and_only_when_that_is_committed() {
    let mut world = World::new();
    let mut copy = world.leading(PartitionConfig::default());
    world.append(&mut copy, "first", append(numbered(0, 3), Acks::All));
    world.append(&mut copy, "retry", append(numbered(0, 3), Acks::All));
    world.append(&mut copy, "next", append(numbered(3, 2), Acks::All));
    assert_eq!(world.answers(), [], "not even the retry");
    assert!(world.flush(&mut copy));
    let answers = world.answers();
    let told: Vec<_> = answers
        .iter()
        .map(|(who, answer)| (*who, base(answer), answer.as_ref().unwrap().duplicate))
        .collect();
    assert_eq!(told, [("first", 0, false), ("retry", 0, true), ("next", 3, false)]);
    world.append(&mut copy, "late", append(numbered(0, 3), Acks::All));
    assert_eq!(world.answers()[0].1.as_ref().unwrap().base_offset, 0, "answered at once now");
    assert_eq!(copy.log.end(), 5);
}

#[test]
fn gaps_and_old_epochs_are_refused_with_their_values() {
    let mut world = World::new();
    let mut copy = world.leading(page_cache());
    world.append(&mut copy, "a", append(numbered(0, 3), Acks::All));
    world.append(&mut copy, "gap", append(numbered(7, 1), Acks::All));
    let mut newer = BatchBuilder::new().producer(9, 2, 0);
    newer.push(0, None, None);
    world.append(&mut copy, "newer", append(newer.build().unwrap(), Acks::All));
    world.append(&mut copy, "old", append(numbered(3, 1), Acks::All));
    let answers = world.answers();
    let gap = AppendError::OutOfOrderSequence { producer_id: 9, expected: 3, found: 7 };
    assert_eq!(answers[1], ("gap", Err(gap)));
    assert_eq!(base(&answers[2].1), 3);
    let old = AppendError::StaleProducerEpoch { producer_id: 9, current: 2, found: 0 };
    assert_eq!(answers[3], ("old", Err(old)));
}

#[test]
fn time_runs_out_while_waiting_for_others() {
    let mut world = World::new();
    let mut copy = world.ready(1, None, page_cache());
    let follower = Pair { broker: BrokerId(2), log: LogId::random() };
    let last = Last::Opened { pair: follower, generation: generation(0) };
    copy.lead(key(5, last), &mut world.ports);
    world.land_opening(&mut copy);
    let mut request = append(numbered(0, 1), Acks::All);
    request.timeout = Duration::from_secs(1);
    world.append(&mut copy, "a", request.clone());
    assert_eq!(copy.next_due(), world.clock.now().after(Duration::from_secs(1)));
    world.clock.advance(Duration::from_millis(999));
    copy.tick(&mut world.ports);
    assert_eq!(world.answers(), []);
    world.clock.advance(Duration::from_millis(1));
    copy.tick(&mut world.ports);
    assert_eq!(world.answers(), [("a", Err(AppendError::TimedOut))]);
    world.append(&mut copy, "retry", request);
    assert_eq!(world.answers(), [], "the record is there, but nobody vouches for it yet");
    assert_eq!(copy.log.end(), 1);
}

#[test]
fn a_full_disk_refuses_writes_lets_reads_go_on_and_heals() {
    let mut world = World::new();
    let mut copy = world.leading(PartitionConfig::default());
    world.append(&mut copy, "a", append(batch(5), Acks::All));
    world.flush(&mut copy);
    assert!(world.answers()[0].1.is_ok());
    world.disk.set_capacity(Some(world.disk.used() + 100));
    world.append(&mut copy, "b", append(batch(5), Acks::All));
    assert_eq!(world.answers(), [("b", Err(AppendError::DiskFull))]);
    world.append(&mut copy, "b", append(batch(5), Acks::All));
    assert_eq!(world.answers(), [("b", Err(AppendError::DiskFull))]);
    assert_eq!(world.ports.failed, [AppendError::DiskFull.to_string()], "not of every write");
    assert!(!read_all(&copy).is_empty());
    assert_eq!(copy.halted(), None);
    world.disk.set_capacity(None);
    world.append(&mut copy, "c", append(batch(5), Acks::All));
    world.flush(&mut copy);
    assert_eq!(base(&world.answers()[0].1), 5, "nothing of the refused batch was kept");
}

#[test]
fn a_failed_flush_halts_the_copy_and_acknowledges_nothing() {
    let mut world = World::new();
    let mut copy = world.leading(PartitionConfig::default());
    world.append(&mut copy, "a", append(batch(1), Acks::All));
    world.disk.fail_sync_after(0);
    assert!(world.flush(&mut copy));
    assert_eq!(copy.halted(), Some(HaltReason::Storage));
    assert_eq!(copy.published().stage(), Stage::Halted);
    let halted = AppendError::Halted("storage".to_owned());
    assert_eq!(world.answers(), [("a", Err(halted.clone()))]);
    world.append(&mut copy, "b", append(batch(1), Acks::All));
    assert_eq!(world.answers(), [("b", Err(halted))]);
    assert!(!world.flush(&mut copy), "a flush is never tried again");
}

#[test]
fn a_batch_larger_than_a_segment_is_refused() {
    let mut world = World::new();
    let mut config = page_cache();
    config.log = LogConfig { segment_bytes: 1000, ..LogConfig::default() };
    let mut copy = world.leading(config);
    let large = batch(20);
    let bytes = large.bytes().len();
    world.append(&mut copy, "large", append(large, Acks::All));
    assert_eq!(world.answers(), [("large", Err(AppendError::LargerThanSegment { bytes, limit: 1000 }))]);
}

#[test]
fn records_are_deleted_from_the_front() {
    let mut world = World::new();
    let mut copy = world.leading(page_cache());
    world.append(&mut copy, "a", append(batch(10), Acks::All));
    let out_of_range = |asked| DeleteRecordsError::OutOfRange { asked, start: 0, mark: 10 };
    let delete = |copy: &mut TestCopy, world: &mut World, to| copy.delete_records(to, &mut world.ports);
    assert_eq!(delete(&mut copy, &mut world, DeleteTo::Offset(11)), Err(out_of_range(11)));
    assert_eq!(delete(&mut copy, &mut world, DeleteTo::Offset(-2)), Err(out_of_range(-2)));
    assert_eq!(delete(&mut copy, &mut world, DeleteTo::Offset(4)), Ok(4));
    assert_eq!(copy.published().log_start(), 4);
    assert_eq!(copy.row().log_start, 4);
    assert_eq!(delete(&mut copy, &mut world, DeleteTo::Offset(2)), Ok(4), "it never moves back");
    assert_eq!(delete(&mut copy, &mut world, DeleteTo::Mark), Ok(10));
    world.append(&mut copy, "b", append(batch(1), Acks::All));
    let (_, appended) = world.answers().pop().unwrap();
    assert_eq!((appended.as_ref().unwrap().base_offset, appended.unwrap().log_start), (10, 10));
}
