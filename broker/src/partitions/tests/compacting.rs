//! Compaction with real threads on a real disk.

use std::collections::BTreeMap;

use felix_protocol::batch::scan::Batches;
use felix_protocol::batch::{BatchRecords, Limits as Unpacked};
use felix_protocol::time::Clock as _;
use felix_storage::LogConfig;
use felix_storage::compaction::CompactionConfig;

use super::*;

/// How long a round may take to come.
const WITHIN: Duration = Duration::from_secs(60);

fn start(path: &Path) -> Broker {
    let dir = DataDir::open(OsDisk, path, Limits { tail_bytes: 0, ..Limits::default() }).unwrap();
    let (replicas, report) = Replicas::open(&dir).unwrap();
    fence::settle_identities(&replicas, &report, 1).unwrap();
    let mut setup = setup(dir, replicas);
    (setup.cleaner.backoff_ms, setup.cleaner.threads) = (10, 2);
    let control = Arc::new(Yes::default());
    let partitions = Partitions::start_with(setup, Arc::clone(&control) as Arc<dyn ControlStore>).unwrap();
    Broker { partitions, control, runtime: runtime() }
}

fn compacted() -> PartitionConfig {
    let compaction = CompactionConfig { min_dirty_millionths: 10_000, ..CompactionConfig::default() };
    let log = LogConfig {
        segment_bytes: 20_000,
        retention_ms: None,
        compacts: true,
        deletes: false,
        compaction,
        ..LogConfig::default()
    };
    PartitionConfig { log, ..PartitionConfig::default() }
}

fn keyed(turn: usize) -> CheckedBatch {
    let mut builder = BatchBuilder::new();
    for key in 0..10 {
        let (key, value) = (format!("k{}", (turn + key) % 40), format!("{turn} {}", "x".repeat(100)));
        builder.push(1_700_000_000_000, Some(key.as_bytes()), Some(value.as_bytes()));
    }
    builder.build().unwrap()
}

/// Offset, key and value of every record, read in small pieces.
fn records(handle: &PartitionHandle) -> Vec<(Offset, String, String)> {
    let (mut from, mut all) = (handle.log_start(), Vec::new());
    while from < handle.mark() {
        let read = handle.reader().read(from, 3000, handle.mark(), true).unwrap();
        assert!(read.next > from, "no progress at {from}");
        for batch in Batches::new(read.slices.concat().into()) {
            let batch = batch.unwrap();
            felix_protocol::batch::verify_crc(&batch.header, &batch.bytes).unwrap();
            let mut records = BatchRecords::new(&batch.header, &batch.bytes, Unpacked::NONE).unwrap();
            while let Some(record) = records.next() {
                let record = record.unwrap();
                let text = |bytes: Option<&[u8]>| String::from_utf8(bytes.unwrap().to_vec()).unwrap();
                let offset = batch.header.base_offset + i64::from(record.offset_delta);
                all.push((offset, text(record.key), text(record.value)));
            }
        }
        from = read.next;
    }
    all
}

fn wait_for(broker: &Broker, what: &str, mut done: impl FnMut() -> bool) {
    let clock = SystemClock::start();
    let until = clock.now().after(WITHIN);
    while !done() {
        assert!(clock.now() < until, "{what} within {WITHIN:?}");
        broker.runtime.block_on(async { tokio::time::sleep(Duration::from_millis(10)).await });
    }
}

#[test]
fn logs_are_compacted_while_they_are_written_and_read() {
    let place = TempDir::new().unwrap();
    let broker = start(place.path());
    let handles: Vec<_> = (0..3).map(|index| broker.open(index, 1, None, compacted())).collect();
    let mut model: BTreeMap<(i32, String), (Offset, String)> = BTreeMap::new();
    let mut turn = 0;
    let mut write = |model: &mut BTreeMap<_, _>| {
        turn += 1;
        for handle in &handles {
            let batch = keyed(turn);
            let appended = broker.append(handle, append(batch.clone(), Acks::All)).unwrap();
            let mut found = BatchRecords::new(batch.header(), batch.bytes(), Unpacked::NONE).unwrap();
            while let Some(record) = found.next() {
                let record = record.unwrap();
                let text = |bytes: Option<&[u8]>| String::from_utf8(bytes.unwrap().to_vec()).unwrap();
                let offset = appended.base_offset + i64::from(record.offset_delta);
                model.insert((handle.id().index, text(record.key)), (offset, text(record.value)));
            }
        }
    };
    let check = |model: &BTreeMap<(i32, String), (Offset, String)>, handles: &[PartitionHandle]| {
        for handle in handles {
            let mut newest = BTreeMap::new();
            for (offset, key, value) in records(handle) {
                newest.insert((handle.id().index, key), (offset, value));
            }
            let of_this = |entry: &(&(i32, String), &(Offset, String))| entry.0.0 == handle.id().index;
            let wanted = model.iter().filter(of_this).map(|(key, value)| (key.clone(), value.clone()));
            assert_eq!(newest, wanted.collect::<BTreeMap<_, _>>());
        }
    };
    wait_for(&broker, "a round over each log", || {
        write(&mut model);
        check(&model, &handles);
        broker.partitions.compaction().rounds >= 6
    });
    let end = handles[0].mark();
    let small = |handle: &PartitionHandle| handle.reader().size_bytes() < 100_000;
    wait_for(&broker, "all but the last segment compacted", || {
        write(&mut model);
        handles.iter().all(small)
    });
    assert!(end > 100 && broker.partitions.compaction().freed_bytes > 0);
    check(&model, &handles);
    let figures = broker.partitions.compaction();
    assert_eq!(figures.uncleanable, 0);
    broker.partitions.stop();
    drop(handles);
    let named = broker.partitions.opener.replicas.get(&partition(0)).map(|row| row.log_id);
    drop(broker);
    let broker = start(place.path());
    let handle = broker.open(0, 2, named, compacted());
    wait_for(&broker, "the mark", || handle.latest_known());
    check(&model, &[handle]);
    broker.partitions.stop();
}

#[test]
fn a_log_that_cannot_be_read_is_left_alone_and_counted_and_the_others_go_on() {
    let place = TempDir::new().unwrap();
    let broker = start(place.path());
    let never = LogConfig {
        compaction: CompactionConfig { min_lag_ms: i64::MAX, ..CompactionConfig::default() },
        ..compacted().log
    };
    let quiet = PartitionConfig { log: never, ..compacted() };
    let handles: Vec<_> = (0..2).map(|index| broker.open(index, 1, None, quiet.clone())).collect();
    for turn in 0..60 {
        for handle in &handles {
            broker.append(handle, append(keyed(turn), Acks::All)).unwrap();
        }
    }
    let file = place.path().join(partition(0).to_string()).join(format!("{:020}.log", 0));
    let mut content = std::fs::read(&file).unwrap();
    let middle = content.len() / 2;
    content[middle] ^= 1;
    std::fs::write(&file, &content).unwrap();
    let before = handles[0].reader().size_bytes();
    for index in 0..2 {
        let config = Arc::new(compacted());
        let message = Message::Configure { partition: partition(index), config };
        broker.partitions.lane_of(&partition(index)).send(message);
    }
    wait_for(&broker, "one log compacted, one given up", || {
        let figures = broker.partitions.compaction();
        figures.uncleanable == 1 && figures.rounds >= 1
    });
    assert_eq!(handles[0].reader().size_bytes(), before);
    assert_eq!(std::fs::read(&file).unwrap(), content);
    assert!(handles[1].reader().size_bytes() < before);
    // What is remembered of a partition goes with it.
    let (answer, given_up) = crossbeam_channel::bounded(1);
    let gone = partition(0);
    broker.partitions.lane_of(&gone).send(Message::GiveUp { partition: gone, answer });
    assert!(given_up.recv().unwrap().is_some());
    assert_eq!(broker.partitions.compaction().uncleanable, 0);
    broker.partitions.stop();
}
