//! On a real file system.

use felix_protocol::ids::LogId;

use super::*;
use crate::disk::os::OsDisk;
use crate::{Replica, Replicas};

/// Where to leave files for Kafka's own tools to read; otherwise a folder that goes away.
const KEEP: &str = "FELIX_STORAGE_SAMPLE_DIR";

struct Place {
    path: PathBuf,
    _guard: Option<tempfile::TempDir>,
}

fn place() -> Place {
    match std::env::var_os(KEEP) {
        Some(path) => Place { path: PathBuf::from(path), _guard: None },
        None => {
            let guard = tempfile::tempdir().unwrap();
            Place { path: guard.path().to_path_buf(), _guard: Some(guard) }
        }
    }
}

fn flush_all(log: &mut Log<OsDisk>, flusher: &Flusher<OsDisk>) {
    while let Some(job) = log.flush_job() {
        let outcome = flusher.run(vec![job]).remove(0);
        log.flushed(&outcome);
        outcome.unwrap();
    }
}

#[test]
fn a_log_lives_on_a_real_disk_and_its_files_are_printed() {
    let place = place();
    let dir = DataDir::open(OsDisk, &place.path, Limits { tail_bytes: 0, ..Limits::default() }).unwrap();
    assert!(matches!(
        DataDir::open(OsDisk, &place.path, Limits::default()).map(drop),
        Err(StorageError::Locked(_))
    ));
    let identity = crate::data_dir::Identity {
        cluster_id: "AAAAAAAAAAAAAAAAAAAAAQ".into(),
        node_id: 1,
        directory_id: "AAAAAAAAAAAAAAAAAAAAAw".into(),
    };
    assert_eq!(dir.identity().unwrap(), None);
    dir.set_identity(&identity).unwrap();
    assert_eq!(dir.identity().unwrap(), Some(identity));
    let flusher = Flusher::new(&dir, FlushMode::Auto).unwrap();
    let (replicas, _) = Replicas::open(&dir).unwrap();
    let config =
        LogConfig { segment_bytes: 20_000, preallocate: true, retention_ms: None, ..LogConfig::default() };
    let mut log = Log::create(&dir, partition(), config.clone(), 0, NOW).unwrap();
    for at in 0..60_i32 {
        let number = u32::try_from(1 + at / 25).unwrap();
        let codec = [Codec::None, Codec::Gzip, Codec::Snappy, Codec::Lz4, Codec::Zstd]
            [usize::try_from(at).unwrap() % 5];
        let mut builder = BatchBuilder::new().producer(i64::from(at % 3), 0, at / 3 * 10).codec(codec, 0);
        for record in 0..10 {
            let time = i64::from(at) * 100 - record;
            builder.push(time, Some(b"key"), Some(&[u8::try_from(at).unwrap(); 150]));
        }
        log.append(&builder.build().unwrap(), generation(number), NOW).unwrap();
        if at % 7 == 0 {
            flush_all(&mut log, &flusher);
        }
    }
    let reader = log.reader();
    let mut from = 0;
    while from < 600 {
        let read = reader.read(from, 3_000, Offset::MAX, true).unwrap();
        let again = reader.read_records_nowait(from, 3_000, Offset::MAX, true);
        match again {
            Ok(again) => assert_eq!(joined(&again)[..], joined(&read)[..again.bytes]),
            Err(ReadError::WouldBlock) => {}
            Err(error) => panic!("{error}"),
        }
        assert!(!ranges(&read).is_empty());
        from = read.next;
    }
    assert_eq!(reader.max_timestamp(600).unwrap().unwrap().offset, 590);
    let row = Replica {
        log_id: LogId::random(),
        accepted: generation(3),
        mark: 600,
        mark_generation: generation(3),
        log_start: 0,
        synced: 600,
        clean: true,
        unsynced: false,
        diverged: false,
    };
    flush_all(&mut log, &flusher);
    drop(reader);
    assert_eq!(flusher.run(vec![log.close_clean(NOW).unwrap()]), [Ok(600)]);
    replicas.commit(replicas.stage(partition(), row)).unwrap();
    let mut text = Vec::new();
    crate::dump::dump(&OsDisk, &place.path, &mut text).unwrap();
    let text = String::from_utf8(text).unwrap();
    for part in [
        "offsets: 0..9 records: 10 generation: 1 timestamps:",
        "codec: Zstd",
        "producer: 2 epoch: 0 sequences: 190..199",
        "topic_id: ",
        "cluster.id=",
        "2 250",
        "mark: 600 of generation: 3",
        "last sequence: 199",
    ] {
        assert!(text.contains(part), "{part} is not in\n{text}");
    }
    assert!(!text.contains("BROKEN") && !text.contains("UNREADABLE"));
    let recovered = Recovered { clean: true, mark: 600, synced: 600, ..Recovered::default() };
    let (log, report) = Log::open(&dir, partition(), config.clone(), recovered, NOW).unwrap();
    assert_eq!((log.end(), report), (600, LoadReport::default()));
    let second = log.segments()[1].path(Kind::Log);
    drop(log);
    let whole = std::fs::read(&second).unwrap();
    std::fs::write(&second, &whole[..whole.len() - 7]).unwrap();
    let mut text = Vec::new();
    crate::dump::dump(&OsDisk, &second, &mut text).unwrap();
    assert!(String::from_utf8(text).unwrap().contains("a torn tail"));
    std::fs::write(&second, whole).unwrap();
}

#[test]
fn many_idle_logs_cost_little_and_few_open_files() {
    let count = 3_000_u128;
    let disk = MemDisk::new();
    let limits = Limits { open_files: 50, ..Limits::default() };
    let dir = limited(&disk, limits);
    let flusher = Flusher::new(&dir, FlushMode::Auto).unwrap();
    let id = |number| PartitionId { topic: TopicId(Uuid::from_u128(number)), index: 0 };
    let mut logs: Vec<_> = (1..=count)
        .map(|number| Log::create(&dir, id(number), LogConfig::default(), 0, NOW).unwrap())
        .collect();
    for log in &mut logs {
        append(log, &batch(1, 50, 5));
    }
    let jobs: Vec<_> = logs.iter_mut().filter_map(Log::flush_job).collect();
    assert!(disk.counters().open_now <= 100, "half of them because they are dirty");
    let outcomes = flusher.run(jobs);
    assert_eq!(disk.counters().system_syncs, 1, "one flush for all");
    for (log, outcome) in logs.iter_mut().zip(&outcomes) {
        log.flushed(outcome);
    }
    assert!(disk.counters().open_now <= 50);
    let jobs: Vec<_> = logs.into_iter().map(|log| log.close_clean(NOW).unwrap()).collect();
    assert!(disk.counters().open_now <= 100);
    flusher.run(jobs);
    let before = disk.counters();
    let recovered = Recovered { clean: true, mark: 1, synced: 1, ..Recovered::default() };
    let logs: Vec<_> = (1..=count)
        .map(|number| Log::open(&dir, id(number), LogConfig::default(), recovered, NOW).unwrap().0)
        .collect();
    let after = disk.counters();
    assert!(after.open_now <= 50);
    assert_eq!(after.writes, before.writes, "nothing is written by a clean restart");
    assert!(logs.iter().all(|log| log.end() == 1));
    assert_eq!(logs.last().unwrap().reader().read(0, 10, 1, true).unwrap().next, 1);
}
