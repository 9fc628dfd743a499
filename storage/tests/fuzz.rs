//! The fuzz targets as plain tests: over the corpus, and over mutations chosen by a fixed seed.

#![expect(clippy::unwrap_used, clippy::panic, reason = "all of this file is a test")]
#![expect(clippy::cast_possible_truncation, reason = "the tests choose small numbers")]

use std::alloc::System;
use std::path::Path;

use cap::Cap;
use felix_protocol::batch::control::{Marker, TransactionEnd};
use felix_protocol::batch::{BatchBuilder, CheckedBatch, Codec};
use felix_protocol::ids::{Generation, LogId, Uuid};
use felix_storage::data_dir::{DataDir, Identity};
use felix_storage::disk::Disk;
use felix_storage::disk::mem::MemDisk;
use felix_storage::{Limits, Log, Replica, Replicas};

#[path = "../fuzz/checks.rs"]
mod checks;
#[path = "../../protocol/fuzz/driver.rs"]
mod driver;

use checks::{InFile, NOW, config, input, partition};
use driver::{Input, Target};

#[global_allocator]
static ALLOCATOR: Cap<System> = Cap::new(System, usize::MAX);

fn run(target: &Target, seeds: fn() -> Vec<Input>) {
    driver::run(env!("CARGO_MANIFEST_DIR"), target, seeds, || ALLOCATOR.total_allocated());
}

fn some_batch(at: i64) -> CheckedBatch {
    let codec = Codec::ALL[at as usize % Codec::ALL.len()];
    let mut builder = BatchBuilder::new().codec(codec, codec.default_level());
    if at % 3 == 0 {
        builder = builder.producer(7, 0, at as i32).transactional();
    }
    for record in 0..1 + at % 3 {
        builder.push(NOW.0 - 100 + at * 7 % 30 + record, Some(b"k"), Some(&[b'v'; 90]));
    }
    builder.build().unwrap()
}

/// The files of a data directory in which everything occurs.
fn files(batches: i64) -> Vec<InFile> {
    let disk = MemDisk::new();
    let dir = DataDir::open(disk.clone(), Path::new("/data"), Limits::default()).unwrap();
    dir.set_identity(&Identity { cluster_id: "c".into(), node_id: 1, directory_id: "d".into() }).unwrap();
    let mut log = Log::create(&dir, partition(), config(), 0, NOW).unwrap();
    for at in 0..batches {
        let generation = Generation::new(1 + at as u32 / 9).unwrap();
        log.append(&some_batch(at), generation, NOW).unwrap();
        if at % 10 == 4 {
            let marker = Marker { end: TransactionEnd::Abort, coordinator_epoch: 1 };
            log.append(&marker.batch(7, 0, NOW.0).unwrap(), generation, NOW).unwrap();
        }
    }
    while let Some(job) = log.flush_job() {
        log.flushed(&job.run());
    }
    let end = log.end();
    log.close_clean(NOW).unwrap().run().unwrap();
    let (table, _) = Replicas::open(&dir).unwrap();
    let row = Replica {
        log_id: LogId(Uuid::from_u128(77)),
        accepted: Generation::new(4).unwrap(),
        mark: end,
        mark_generation: Generation::new(3).unwrap(),
        log_start: 0,
        synced: end,
        clean: true,
        unsynced: false,
        diverged: false,
    };
    table.stage_boot_id(99);
    table.commit(table.stage(partition(), row)).unwrap();
    table.commit(table.stage(partition(), Replica { clean: false, ..row })).unwrap();
    let mut files = Vec::new();
    for folder in [dir.path().to_path_buf(), dir.folder(&partition())] {
        for entry in disk.read_dir(&folder).unwrap().into_iter().filter(|entry| !entry.is_dir) {
            let content = disk.content(&folder.join(&entry.name)).unwrap();
            // The table's reserve of zeros says nothing.
            let used = content.len().min(960);
            let content = if entry.name == "replicas.table" { content[..used].to_vec() } else { content };
            files.extend(InFile::of(&entry.name, content));
        }
    }
    files
}

fn seeds() -> Vec<Input> {
    let flags = [(0, "killed"), (8, "killed-sealed"), (1, "clean"), (9, "clean-sealed"), (0xe, "promised")];
    let mut seeds = Vec::new();
    for batches in [0, 1, 6, 30] {
        let files = files(batches);
        // One of each kind is enough in the corpus.
        let kept = if batches == 6 { "" } else { driver::NOT_KEPT };
        for (flags, name) in flags {
            seeds.push((format!("{kept}{batches}-{name}"), input(flags, 5, 2, &files)));
        }
        let logs: Vec<InFile> = files.into_iter().filter(|file| file.kind == 0).collect();
        seeds.push((format!("{kept}{batches}-only-logs"), input(8, 0, 0, &logs)));
    }
    seeds
}

#[test]
fn log() {
    // Walks fetch 128 KiB at once, each segment's indexes are built in memory, and the disk itself is memory.
    let target = Target {
        name: "log",
        check: checks::log,
        rounds: 1_500,
        fixed_bytes: 256 << 20,
        bytes_per_byte: 20_000,
    };
    run(&target, seeds);
}

#[test]
fn directory() {
    let target = Target {
        name: "directory",
        check: checks::directory,
        rounds: 1_500,
        fixed_bytes: 16 << 20,
        bytes_per_byte: 500,
    };
    run(&target, seeds);
}

#[test]
fn dumped() {
    let target = Target {
        name: "dumped",
        check: checks::dumped,
        rounds: 1_500,
        fixed_bytes: 64 << 20,
        bytes_per_byte: 5_000,
    };
    run(&target, seeds);
}
