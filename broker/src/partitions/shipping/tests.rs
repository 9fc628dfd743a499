//! What goes to a peer, and in which order.

use std::path::Path;

use felix_cluster::throttle::Throttled;
use felix_protocol::batch::BatchBuilder;
use felix_protocol::ids::{Generation, TopicId, Uuid};
use felix_protocol::time::WallTime;
use felix_storage::{DataDir, Limits, Log, LogConfig};
use tempfile::TempDir;

use super::*;
use crate::admin::testing;
use crate::clock::SystemClock;
use crate::metrics::Metrics;
use crate::partitions::throttle::Rates;

const NOW: WallTime = WallTime(1_000);

fn partition(index: i32) -> PartitionId {
    PartitionId { topic: TopicId(Uuid::from_u128(5)), index }
}

fn generation() -> Generation {
    Generation::new(1).unwrap()
}

/// A log of three batches of 20 KiB each.
fn log(dir: &Path, tail_bytes: usize, index: i32) -> Log<OsDisk> {
    let limits = Limits { tail_bytes, ..Limits::default() };
    let dir = DataDir::open(OsDisk, dir, limits).unwrap();
    let mut log = Log::create(&dir, partition(index), LogConfig::default(), 0, NOW).unwrap();
    for _ in 0..3 {
        let mut builder = BatchBuilder::new();
        builder.push(NOW.0, None, Some(&[7; 20 << 10]));
        log.append(&builder.build().unwrap(), generation(), NOW).unwrap();
    }
    log
}

fn wanted(log: &Log<OsDisk>, frame: u64, from: Offset, most: Option<usize>, lane: &LaneSender) -> Wanted {
    let part = Part {
        partition: log.partition(),
        key_revision: 1,
        generation: generation(),
        log: None,
        header: None,
        mark: 0,
        log_start: log.start(),
        log_end: log.end(),
        from,
        next: from,
        before: None,
        records: Vec::new(),
    };
    let shipment = Shipment { frame: FrameId(frame), part, most, restart: None, is_member: false };
    Wanted { shipment, reader: log.reader(), lane: lane.clone() }
}

fn toll() -> Toll {
    let gate = Arc::new(Gate::new(BrokerId(1), SystemClock::start()));
    Toll { gate, figures: Figures::of(&Metrics::new().unwrap()) }
}

/// Sizes of all that is sent within a moment.
async fn sent(outgoing: &mut mpsc::UnboundedReceiver<Vec<bytes::Bytes>>, count: usize) -> Vec<usize> {
    let mut sizes = Vec::new();
    while sizes.len() < count {
        let pieces = tokio::time::timeout(Duration::from_secs(60), outgoing.recv()).await;
        sizes.push(pieces.unwrap().unwrap().iter().map(bytes::Bytes::len).sum());
    }
    sizes
}

/// Waits until a lane was told so many things; no more come.
async fn told(lane: &LaneSender, count: usize) {
    let all = async {
        while lane.queued() < count {
            tokio::task::yield_now().await;
        }
    };
    tokio::time::timeout(Duration::from_secs(60), all).await.unwrap();
    assert_eq!(lane.queued(), count);
}

/// Far behind, many partitions ask for what must be read from the disk of the leader, and the peer's disk has no answer: what is in
/// memory goes at once, and what waits for the disk goes on when there are answers.
#[tokio::test(flavor = "multi_thread", worker_threads = 2)]
async fn whoever_is_far_behind_holds_nobody_up() {
    let (cold, warm) = (TempDir::new().unwrap(), TempDir::new().unwrap());
    let (behind, live) = (log(cold.path(), 0, 1), log(warm.path(), 1 << 20, 2));
    let toll = toll();
    let (link, up, mut outgoing) = Link::to_nobody(BrokerId(2));
    let (tail, mut at_tail) = mpsc::unbounded_channel();
    let (far, mut far_behind) = mpsc::unbounded_channel();
    let lane = LaneSender::unserved();
    let shipping = {
        let (link, toll) = (Arc::clone(&link), toll.clone());
        tasks::spawn("shipping", async move {
            tokio::select! {
                () = ship_all(&link, up, &mut at_tail, &toll) => {}
                () = bulk::ship(&link, up, &mut far_behind, &toll) => {}
            }
        })
    };
    let total = 3 * bulk::MOST as u64;
    for frame in 0..total {
        let wanted = wanted(&behind, frame, 0, Some(30 << 10), &lane);
        assert!(wanted.is_far_behind());
        far.send(wanted).unwrap();
    }
    // Nothing is known yet of how long answers take.
    assert!(sent(&mut outgoing, 1).await[0] > 20 << 10);
    for frame in 0..5 {
        let wanted = wanted(&live, frame, 2, Some(30 << 10), &lane);
        assert!(!wanted.is_far_behind());
        tail.send(wanted).unwrap();
        // Nothing of what is far behind comes in front of it: all its places are taken.
        let sizes = sent(&mut outgoing, 1).await;
        assert!(sizes[0] > 20 << 10 && sizes[0] < 22 << 10, "{sizes:?}");
    }
    // The cursors of what was sent are told, and may go on.
    told(&lane, 1 + 5).await;
    // Answers make room for more, of whatever partition; requests are numbered as they are sent, those of the tail have none.
    let (mut waiting, mut number, mut count) = (VecDeque::from([2]), 2 + 5, 1);
    while count < total {
        link.refuse(waiting.pop_front().expect("one is on its way"));
        // Where answers were slow, others may have to come first.
        let more = usize::from(waiting.is_empty());
        let mut sizes = sent(&mut outgoing, more).await;
        while let Ok(pieces) = outgoing.try_recv() {
            sizes.push(pieces.iter().map(bytes::Bytes::len).sum());
        }
        for size in sizes {
            assert!(size > 20 << 10);
            (number, count) = (number + 1, count + 1);
            waiting.push_back(number);
        }
        assert!(waiting.len() <= bulk::MOST, "{waiting:?}");
    }
    assert!(outgoing.try_recv().is_err());
    drop((tail, far));
    shipping.await.unwrap().unwrap();
}

/// What cannot be read is said, and nothing is sent for it.
#[tokio::test(flavor = "multi_thread", worker_threads = 2)]
async fn what_is_damaged_on_the_leaders_disk_is_not_shipped() {
    let folder = TempDir::new().unwrap();
    let behind = log(folder.path(), 0, 1);
    let path = behind.reader().folder().join("00000000000000000000.log");
    let mut bytes = std::fs::read(&path).unwrap();
    let last = bytes.len() - 1;
    bytes[last] ^= 1;
    std::fs::write(&path, bytes).unwrap();
    let toll = toll();
    let (link, up, mut outgoing) = Link::to_nobody(BrokerId(2));
    let (far, mut far_behind) = mpsc::unbounded_channel();
    let lane = LaneSender::unserved();
    far.send(wanted(&behind, 0, 2, Some(1 << 20), &lane)).unwrap();
    far.send(wanted(&behind, 1, 0, Some(1 << 20), &lane)).unwrap();
    drop(far);
    bulk::ship(&link, up, &mut far_behind, &toll).await;
    let sizes = sent(&mut outgoing, 1).await;
    assert!(sizes[0] > 40 << 10 && sizes[0] < 42 << 10, "what stands before the damage: {sizes:?}");
    assert!(outgoing.try_recv().is_err());
    told(&lane, 2).await;
}

/// A closed segment in front of one that is written; three batches of 20 KiB in it.
fn closed(dir: &Path) -> Log<OsDisk> {
    let limits = Limits { tail_bytes: 0, ..Limits::default() };
    let dir = DataDir::open(OsDisk, dir, limits).unwrap();
    let config = LogConfig { segment_bytes: 70 << 10, ..LogConfig::default() };
    let mut log = Log::create(&dir, partition(1), config, 0, NOW).unwrap();
    for _ in 0..4 {
        let mut builder = BatchBuilder::new();
        builder.push(NOW.0, None, Some(&[7; 20 << 10]));
        log.append(&builder.build().unwrap(), generation(), NOW).unwrap();
    }
    log.flush_job().unwrap().run().unwrap();
    log
}

/// Each of the bytes that no batch's own checksum covers is changed in turn, in a closed segment of the leader: nothing of the segment
/// goes off, and the damage is told.
#[tokio::test(flavor = "multi_thread", worker_threads = 2)]
async fn what_was_sealed_otherwise_is_not_shipped() {
    for place in 0..22 {
        let folder = TempDir::new().unwrap();
        let behind = closed(folder.path());
        let path = behind.reader().folder().join("00000000000000000000.log");
        let changed = place < 21;
        if changed {
            let mut bytes = std::fs::read(&path).unwrap();
            let second = bytes.len() / 3;
            bytes[second + place] ^= 1;
            std::fs::write(&path, bytes).unwrap();
        }
        let toll = toll();
        let (link, up, mut outgoing) = Link::to_nobody(BrokerId(2));
        let (far, mut far_behind) = mpsc::unbounded_channel();
        let lane = LaneSender::unserved();
        far.send(wanted(&behind, 0, 0, Some(1 << 20), &lane)).unwrap();
        if changed {
            // What is still written has no seal, and is none the worse for it.
            far.send(wanted(&behind, 1, 3, Some(1 << 20), &lane)).unwrap();
        }
        drop(far);
        bulk::ship(&link, up, &mut far_behind, &toll).await;
        let sizes = sent(&mut outgoing, 1).await;
        let expected = if changed { 20 << 10..22 << 10 } else { 60 << 10..62 << 10 };
        assert!(expected.contains(&sizes[0]), "byte {place}: {sizes:?}");
        assert!(outgoing.try_recv().is_err(), "byte {place}");
        told(&lane, 1 + usize::from(changed)).await;
        assert_eq!(behind.reader().damage().len(), usize::from(changed), "byte {place}");
    }
}

/// What is throttled waits, in the order of asking, for its bytes and for nobody else's; what is a member's, or has no records, passes
/// it by.
#[tokio::test(flavor = "multi_thread", worker_threads = 2)]
async fn what_is_held_back_waits_for_its_turn() {
    let folder = TempDir::new().unwrap();
    let log = log(folder.path(), 1 << 20, 0);
    let mut view = testing::view(&["t"]);
    let both = ("follower.replication.throttled.replicas", "0:2,1:2");
    testing::configure(&mut view, "t", &[both]);
    let topic = view.topic_named("t").unwrap().id;
    let mut lists = Throttled::default();
    lists.take_in(&view, [&topic]);
    let gate = Arc::new(Gate::new(BrokerId(1), SystemClock::start()));
    let rates = |rate| Rates { own: None, followers: [(BrokerId(2), rate)].into() };
    gate.configure(&lists, rates(1_000));
    let lane = LaneSender::unserved();
    let of = |frame, index, most, is_member| {
        let mut wanted = wanted(&log, frame, 0, most, &lane);
        wanted.shipment.part.partition = PartitionId { topic, index };
        wanted.shipment.is_member = is_member;
        wanted
    };
    let frame = |wanted: &Wanted| (wanted.shipment.frame.0, wanted.shipment.most);
    let mut held = Held::new(BrokerId(2), Arc::clone(&gate));
    // Nothing is owed yet: as much as half a second gives.
    let first = held.pass(of(0, 0, Some(9_000), false)).expect("nothing is owed");
    assert_eq!(frame(&first), (0, Some(500)));
    gate.shipped(&PartitionId { topic, index: 0 }, BrokerId(2), 1_000_000);
    for (number, index) in [(1, 0), (2, 1)] {
        assert!(held.pass(of(number, index, Some(9_000), false)).is_none());
    }
    let passes = [of(3, 0, Some(9_000), true), of(4, 0, None, false), of(5, 7, Some(9_000), false)];
    for wanted in passes {
        let asked = frame(&wanted);
        let passed = held.pass(wanted).expect("a member's, a word, one that is not listed");
        assert_eq!(frame(&passed), asked);
    }
    let wait = held.wait().expect("something waits");
    assert!(wait <= IDLE, "a follower is told how far the log is: {wait:?}");
    let mut waiting = VecDeque::from([1, 2]);
    // On a machine that stood still for a second.
    if let Some(told) = held.released() {
        assert_eq!(Some(frame(&told)), waiting.pop_front().map(|number| (number, Some(NOTHING))));
    }
    // The rate is lifted: who waits is rung for, and goes in the order of asking.
    let (queue, mut asked) = mpsc::unbounded_channel();
    let lifted = {
        let gate = Arc::clone(&gate);
        tasks::spawn("lifting the rate", async move { gate.configure(&lists, Rates::default()) })
    };
    for number in waiting {
        let next = held.next(&mut asked).await.expect("it is released");
        assert_eq!(frame(&next), (number, Some(9_000)));
    }
    lifted.await.unwrap().unwrap();
    assert!(held.wait().is_none());
    queue.send(of(6, 0, Some(3), false)).unwrap();
    assert_eq!(frame(&held.next(&mut asked).await.unwrap()), (6, Some(3)));
    drop(queue);
    assert!(held.next(&mut asked).await.is_none());
}
