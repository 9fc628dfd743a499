//! The fuzz target as a plain test: over the corpus, and over mutations chosen by a fixed seed.

#![expect(clippy::panic, reason = "all of this file is a test")]

use std::alloc::System;

use cap::Cap;
use felix_cluster::config::table::Resource;

#[path = "../fuzz/checks.rs"]
mod checks;
#[path = "../../../protocol/fuzz/driver.rs"]
mod driver;

use driver::{Input, Target};

#[global_allocator]
static ALLOCATOR: Cap<System> = Cap::new(System, usize::MAX);

/// Every setting with its default, some a file; and values at the edges for those that are numbers.
fn seeds() -> Vec<Input> {
    let mut seeds: Vec<Input> = Vec::new();
    for resource in [Resource::Topic, Resource::Broker, Resource::Group, Resource::ClientMetrics] {
        for (at, rows) in resource.rows().chunks(8).enumerate() {
            let lines: Vec<String> =
                rows.iter().map(|row| format!("{}={}", row.name, row.default.unwrap_or(""))).collect();
            seeds.push((format!("{}-{at}", resource.name()), lines.join("\n").into_bytes()));
        }
    }
    let lines = [
        "cleanup.policy=compact,delete",
        "-cleanup.policy=delete",
        "+cleanup.policy=delete",
        "!cleanup.policy",
        "retention.ms=-1",
        "retention.bytes=9223372036854775807",
        "segment.bytes=14",
        "min.compaction.lag.ms=9223372036854775807",
        "max.compaction.lag.ms=1",
        "compression.type=zstd",
        "message.timestamp.type=LogAppendTime",
        "min.cleanable.dirty.ratio=0.5e-3",
        "unclean.leader.election.enable=TRUE",
        "listeners=PLAINTEXT://:9092,INTERNAL://[::1]:9093",
        "listener.security.protocol.map=PLAINTEXT:PLAINTEXT,INTERNAL:PLAINTEXT",
        "max.connections.per.ip.overrides=127.0.0.1:5,[::1]:7",
    ];
    seeds.push(("mixed".into(), lines.join("\n").into_bytes()));
    seeds
}

#[test]
fn configs() {
    // Each edit describes or resolves whole tables several times over.
    let target = Target {
        name: "configs",
        check: checks::configs,
        rounds: 300,
        fixed_bytes: 64 << 20,
        bytes_per_byte: 20_000,
    };
    driver::run(env!("CARGO_MANIFEST_DIR"), &target, seeds, || ALLOCATOR.total_allocated());
}
