//! The fuzz targets as plain tests: over the corpus, and over mutations chosen by a fixed seed.

#![expect(clippy::unwrap_used, clippy::panic, reason = "all of this file is a test")]

use std::alloc::System;

use bytes::{BufMut, Bytes, BytesMut};
use cap::Cap;
use felix_coordinator::RawRecord;

#[path = "../fuzz/checks.rs"]
mod checks;
#[path = "../../../protocol/fuzz/driver.rs"]
mod driver;

use driver::{Input, Target};

#[global_allocator]
static ALLOCATOR: Cap<System> = Cap::new(System, usize::MAX);

fn run(target: &Target, seeds: fn() -> Vec<Input>) {
    driver::run(env!("CARGO_MANIFEST_DIR"), target, seeds, || ALLOCATOR.total_allocated());
}

/// Writes Kafka's plain and compact encodings.
struct Bytewise(BytesMut);

impl Bytewise {
    fn version(version: i16) -> Bytewise {
        let mut bytes = BytesMut::new();
        bytes.put_i16(version);
        Bytewise(bytes)
    }

    fn text(mut self, text: &str, compact: bool) -> Bytewise {
        if compact {
            self.0.put_u8(u8::try_from(text.len()).unwrap() + 1);
        } else {
            self.0.put_i16(i16::try_from(text.len()).unwrap());
        }
        self.0.put_slice(text.as_bytes());
        self
    }

    fn int(mut self, value: i32) -> Bytewise {
        self.0.put_i32(value);
        self
    }

    fn long(mut self, value: i64) -> Bytewise {
        self.0.put_i64(value);
        self
    }

    fn raw(mut self, bytes: &[u8]) -> Bytewise {
        self.0.put_slice(bytes);
        self
    }

    fn done(self) -> Bytes {
        self.0.freeze()
    }
}

fn offset_record(group: &str, version: i16) -> RawRecord {
    let key = Bytewise::version(1).text(group, false).text("t", false).int(3).done();
    let value = Bytewise::version(version).long(42);
    let value = if version >= 3 { value.int(7) } else { value };
    let value = value.text("note", version >= 4).long(1_700_000_000_000);
    let value = if version == 1 { value.long(1_700_000_100_000) } else { value };
    let value = if version >= 4 { value.raw(&[1, 9, 2, 1, 1]) } else { value };
    RawRecord { key, value: Some(value.done()) }
}

fn group_record(group: &str, version: i16, members: i32) -> RawRecord {
    let key = Bytewise::version(2).text(group, false).done();
    let compact = version >= 4;
    let mut value = Bytewise::version(version)
        .text("consumer", compact)
        .int(5)
        .text("range", compact)
        .text("m0", compact);
    if version >= 2 {
        value = value.long(1_699_999_999_000);
    }
    value = if compact { value.raw(&[u8::try_from(members).unwrap() + 1]) } else { value.int(members) };
    for member in 0..members {
        value = value.text(&format!("m{member}"), compact);
        if version >= 3 {
            value = value.text(&format!("instance-{member}"), compact);
        }
        value = value.text("client", compact).text("/127.0.0.1", compact);
        if version >= 1 {
            value = value.int(60_000);
        }
        value = value.int(10_000);
        for bytes in [&b"\0\0\0\0\0\x01\0\x01t\xff\xff\xff\xff"[..], b"\0\0\0\0\0\0"] {
            let length = u8::try_from(bytes.len()).unwrap();
            value = if compact { value.raw(&[length + 1]) } else { value.int(i32::from(length)) };
            value = value.raw(bytes);
        }
        value = if compact { value.raw(&[0]) } else { value };
    }
    let value = if compact { value.raw(&[0]) } else { value };
    RawRecord { key, value: Some(value.done()) }
}

fn offsets_seeds() -> Vec<Input> {
    let mut seeds = Vec::new();
    for version in 0..=4 {
        let records = [
            group_record("g", version, 2),
            offset_record("g", version),
            offset_record("other", version),
            group_record("empty", version, 0),
            RawRecord { value: None, ..offset_record("other", version) },
        ];
        seeds.push((format!("v{version}"), checks::written(&records)));
    }
    // What newer brokers write of the groups of KIP-848, and of share groups.
    for kind in [3, 8, 14, 77] {
        let key = Bytewise::version(kind).text("new", false).done();
        let value = Some(Bytewise::version(0).raw(&[0, 0, 0, 5, 0]).done());
        seeds.push((format!("kind-{kind}"), checks::written(&[RawRecord { key, value }])));
    }
    seeds
}

#[test]
fn offsets() {
    // Eight groups are lived with at most; every step of a debug build checks all invariants.
    let target = Target {
        name: "offsets",
        check: checks::offsets,
        rounds: 3_000,
        fixed_bytes: 16 << 20,
        bytes_per_byte: 20_000,
    };
    run(&target, offsets_seeds);
}

fn metadata_seeds() -> Vec<Input> {
    let topics = |version: i16, names: &[&str]| {
        let mut metadata = Bytewise::version(version).int(i32::try_from(names.len()).unwrap());
        for name in names {
            metadata = metadata.text(name, false);
        }
        // User data, owned partitions, generation, rack: what later versions append.
        let metadata = metadata.int(3).raw(b"abc").int(1).text("t", false).int(1).int(0).int(-1);
        metadata.text("rack", false).done().to_vec()
    };
    vec![
        ("none".into(), topics(0, &[])),
        ("one".into(), topics(1, &["t"])),
        ("many".into(), topics(3, &["t", "u", "topic.with-a_name"])),
        ("not-a-subscription".into(), b"anything else".to_vec()),
    ]
}

#[test]
fn metadata() {
    let target = Target {
        name: "metadata",
        check: checks::metadata,
        rounds: 3_000,
        fixed_bytes: 4 << 20,
        bytes_per_byte: 2_000,
    };
    run(&target, metadata_seeds);
}
