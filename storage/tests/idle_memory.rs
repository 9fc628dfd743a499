//! What a log that nobody uses keeps in memory. A test of its own because it owns the allocator of its process.

use std::alloc::System;

use cap::Cap;
use felix_protocol::batch::BatchBuilder;
use felix_protocol::ids::{Generation, PartitionId, TopicId, Uuid};
use felix_protocol::time::WallTime;
use felix_storage::disk::os::OsDisk;
use felix_storage::{DataDir, FlushMode, Flusher, Limits, Log, LogConfig, Recovered};

#[global_allocator]
static ALLOCATOR: Cap<System> = Cap::new(System, usize::MAX);

const COUNT: usize = 100;
/// More than it takes, so that a field may be added; less than what would be felt with ten thousand logs.
const MOST_BYTES: usize = 1400;
const NOW: WallTime = WallTime(1_700_000_000_000);

fn partition(number: usize) -> PartitionId {
    PartitionId { topic: TopicId(Uuid::from_u128(number as u128)), index: 0 }
}

fn weigh<T>(make: impl FnOnce() -> Vec<T>) -> (Vec<T>, usize) {
    let before = ALLOCATOR.allocated();
    let made = make();
    let taken = ALLOCATOR.allocated() - before;
    let each = (taken - made.capacity() * size_of::<T>()) / made.len() + size_of::<T>();
    (made, each)
}

#[test]
fn an_idle_log_keeps_little_in_memory() {
    let place = tempfile::tempdir().unwrap();
    let limits = Limits { tail_bytes: 0, open_files: 64, ..Limits::default() };
    let dir = DataDir::open(OsDisk, place.path(), limits).unwrap();
    let flusher = Flusher::new(&dir, FlushMode::File).unwrap();
    let generation = Generation::new(1).unwrap();
    let (mut logs, empty) = weigh(|| {
        (0..COUNT).map(|at| Log::create(&dir, partition(at), LogConfig::default(), 0, NOW).unwrap()).collect()
    });
    let mut builder = BatchBuilder::new();
    builder.push(NOW.0, None, Some(b"value"));
    let batch = builder.build().unwrap();
    for log in &mut logs {
        log.append(&batch, generation, NOW).unwrap();
    }
    let jobs: Vec<_> = logs.iter_mut().filter_map(Log::flush_job).collect();
    for (log, outcome) in logs.iter_mut().zip(flusher.run(jobs)) {
        log.flushed(&outcome);
    }
    let before = ALLOCATOR.allocated();
    let count = logs.len();
    let jobs: Vec<_> = logs.into_iter().map(|log| log.close_clean(NOW).unwrap()).collect();
    drop(flusher.run(jobs));
    let freed = (before - ALLOCATOR.allocated()) / count;
    let recovered = Recovered { clean: true, mark: 1, synced: 1, ..Recovered::default() };
    let (logs, opened) = weigh(|| {
        (0..COUNT)
            .map(|at| Log::open(&dir, partition(at), LogConfig::default(), recovered, NOW).unwrap().0)
            .collect()
    });
    // With what it waits to be flushed.
    assert!(empty < 2 * MOST_BYTES, "new: {empty} bytes");
    assert!(freed < MOST_BYTES, "written to: {freed} bytes");
    assert!(opened < MOST_BYTES, "opened: {opened} bytes");
    drop(logs);
}
