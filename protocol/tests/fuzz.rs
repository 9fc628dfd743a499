//! The fuzz targets as plain tests: over the corpus, and over mutations chosen by a fixed seed.

#![expect(clippy::unwrap_used, clippy::panic, reason = "all of this file is a test")]

use std::alloc::System;
use std::io::Write;
use std::path::Path;

use bytes::Bytes;
use cap::Cap;
use felix_protocol::batch::{BatchBuilder, Codec, HEADER_BYTES, Header};
use felix_protocol::ids::{BrokerId, Generation, LogId, PartitionId, SessionId, TopicId, Uuid};
use felix_protocol::peer::bootstrap::{Bootstrap, Restart};
use felix_protocol::peer::hello::Hello;
use felix_protocol::peer::rebuild::Rebuild;
use felix_protocol::peer::ship::{Answer, Answers, Part, Said, Ship, TenureHeader};
use felix_protocol::peer::standing::{Standing, StandingAnswers, StandingQuery};
use felix_protocol::peer::{self, Message};

#[path = "../fuzz/checks.rs"]
mod checks;
#[path = "../fuzz/driver.rs"]
mod driver;

use driver::{Input, Target};

#[global_allocator]
static ALLOCATOR: Cap<System> = Cap::new(System, usize::MAX);

fn run(target: &Target, seeds: fn() -> Vec<Input>) {
    driver::run(env!("CARGO_MANIFEST_DIR"), target, seeds, || ALLOCATOR.total_allocated());
}

/// A batch of each codec, with keys, nulls and headers.
fn some_batch(codec: Codec, producer: bool) -> Vec<u8> {
    let mut builder = BatchBuilder::new().codec(codec, codec.default_level());
    if producer {
        builder = builder.producer(4000, 2, 17);
    }
    builder.push(1_699_999_999_000, Some(b"key"), Some(b"value"));
    builder.push(1_699_999_999_500, None, Some(&[b'v'; 300]));
    let headers = [Header { key: b"h", value: Some(b"1") }, Header { key: b"h", value: None }];
    builder.push_at(2, 1_699_999_998_000, Some(b""), None, headers.into_iter());
    builder.build().unwrap().bytes().to_vec()
}

fn batch_seeds() -> Vec<Input> {
    let mut seeds = Vec::new();
    for codec in Codec::ALL {
        for (choice, rules) in [(0x1c, "as-produced"), (0, "plain"), (0x11, "zstd-append-time"), (6, "keys")]
        {
            let mut input = vec![choice];
            input.extend(some_batch(codec, choice & 1 == 0));
            seeds.push((format!("{}-{rules}", codec.name()), input));
        }
    }
    seeds
}

#[test]
fn batch() {
    // The walk allocates a window, what the codecs take (lz4: a block of up to 4 MiB and its output), and
    // here three copies of the records besides.
    let target = Target {
        name: "batch",
        check: checks::batch,
        rounds: 20_000,
        fixed_bytes: 96 << 20,
        bytes_per_byte: 2_000,
    };
    run(&target, batch_seeds);
}

/// A few KiB that unpack to far more than is allowed: 64 MiB of one byte, and one record that claims them all.
fn bomb(codec: Codec) -> Vec<u8> {
    const BYTES: usize = 64 << 20;
    // A record's length as a zigzag varint, then its body; the content is of no interest.
    let mut plain = vec![0x80, 0x80, 0x80, 0x40];
    plain.resize(BYTES, 0);
    match codec {
        Codec::None => plain.truncate(1000),
        Codec::Gzip => {
            let mut encoder = flate2::write::GzEncoder::new(Vec::new(), flate2::Compression::best());
            encoder.write_all(&plain).unwrap();
            plain = encoder.finish().unwrap();
            // The same again and again, as members of one stream: as far as 16 KiB go.
            plain.truncate(16 << 10);
        }
        Codec::Snappy => plain = snap::raw::Encoder::new().compress_vec(&plain[..300_000]).unwrap(),
        Codec::Lz4 => {
            let info = lz4_flex::frame::FrameInfo::new()
                .block_mode(lz4_flex::frame::BlockMode::Independent)
                .block_size(lz4_flex::frame::BlockSize::Max4MB);
            let mut encoder = lz4_flex::frame::FrameEncoder::with_frame_info(info, Vec::new());
            encoder.write_all(&plain[..4 << 20]).unwrap();
            plain = encoder.finish().unwrap();
            plain.truncate(16 << 10);
        }
        Codec::Zstd => plain = zstd::stream::encode_all(&plain[..], 19).unwrap(),
    }
    plain
}

fn records_seeds() -> Vec<Input> {
    let mut seeds = Vec::new();
    for codec in Codec::ALL {
        let bits = u8::try_from(codec.bits()).unwrap();
        let batch = some_batch(codec, true);
        let mut input = vec![bits, 0, 0, 0, 3];
        input.extend_from_slice(&batch[HEADER_BYTES..]);
        seeds.push((format!("{}-three", codec.name()), input));
        let mut input = vec![bits, 0x7f, 0xff, 0xff, 0xff];
        input.extend(bomb(codec));
        seeds.push((format!("{}-bomb", codec.name()), input));
        let mut input = vec![bits | 0x20, 0, 0, 0, 1];
        input.extend(bomb(codec));
        seeds.push((format!("{}-control-bomb", codec.name()), input));
        seeds.push((format!("{}-stored", codec.name()), batch));
    }
    seeds
}

#[test]
fn records() {
    let target = Target {
        name: "records",
        check: checks::records,
        rounds: 20_000,
        fixed_bytes: 32 << 20,
        bytes_per_byte: 500,
    };
    run(&target, records_seeds);
}

/// A request of each API and version, as Apache Kafka's own client writes it.
fn frame_seeds() -> Vec<Input> {
    let fixtures = Path::new(env!("CARGO_MANIFEST_DIR")).join("../compat-tests/fixtures");
    let mut seeds = Vec::new();
    let apis = std::fs::read_dir(fixtures).unwrap().map(Result::unwrap).filter(|entry| entry.path().is_dir());
    for api in apis {
        for file in std::fs::read_dir(api.path()).unwrap().map(Result::unwrap) {
            let name = file.file_name().into_string().unwrap();
            let Some(version) = name.strip_suffix(".request.hex") else { continue };
            let text = std::fs::read_to_string(file.path()).unwrap();
            let digits: Vec<u8> = text.bytes().filter(u8::is_ascii_hexdigit).collect();
            let digits = digits.chunks(2).map(|pair| std::str::from_utf8(pair).unwrap());
            let bytes = digits.map(|pair| u8::from_str_radix(pair, 16).unwrap()).collect();
            seeds.push((format!("{}-{version}", api.file_name().to_string_lossy()), bytes));
        }
    }
    seeds.sort();
    assert!(seeds.len() > 150, "only {} requests", seeds.len());
    // The corpus needs only the newest version of each API: the rest is here anyhow.
    for at in 1..seeds.len() {
        let api = |name: &str| name.rsplit_once('-').map(|(api, _)| api.to_string());
        if api(&seeds[at].0) == api(&seeds[at - 1].0) {
            seeds[at - 1].0 = format!("{}{}", driver::NOT_KEPT, seeds[at - 1].0);
        }
    }
    seeds
}

#[test]
fn frame() {
    // What the guard announces is held against the allocator in `decode_memory.rs`; here it only must be linear.
    // A byte buys an element (256 bytes) or half a tagged field (512), decoded twice and encoded twice.
    let target = Target {
        name: "frame",
        check: checks::frame,
        rounds: 100_000,
        fixed_bytes: 64 << 10,
        bytes_per_byte: 2_000,
    };
    run(&target, frame_seeds);
}

/// One frame of each kind between brokers.
fn peer_seeds() -> Vec<Input> {
    let partition = PartitionId { topic: TopicId(Uuid::from_u128(7)), index: 3 };
    let (generation, log) = (Generation::new(5).unwrap(), LogId(Uuid::from_u128(9)));
    let header = TenureHeader {
        begins: 40,
        base: 0,
        entries: vec![(Generation::ZERO, 0), (generation, 40)],
        complete_from: Generation::ZERO,
        unclean_at: Some(generation),
    };
    let part = Part {
        partition,
        key_revision: 17,
        generation,
        log: Some(log),
        header: Some(header),
        mark: 38,
        log_start: 2,
        log_end: 43,
        from: 40,
        next: 43,
        before: Some(Generation::ZERO),
        records: vec![Bytes::from(some_batch(Codec::None, false))],
    };
    let empty = Part { header: None, records: Vec::new(), from: 43, ..part.clone() };
    let restart = Restart { partition, key_revision: 17, generation, log, base: 2, log_start: 4 };
    let said = [Said::Stored, Said::NeedMap(generation), Said::Halted(3), Said::Other(77)];
    let answer = |said: &Said| Answer { partition, generation, log: Some(log), end: 43, said: *said };
    let standing = Standing { partition, log: None, accepted: generation, end: 43, doubt: true };
    let hello =
        Hello { version: 1, oldest: 1, cluster: "c".to_owned(), node: BrokerId(1), session: SessionId(2) };
    let messages = [
        ("hello", Message::Hello(hello)),
        ("unsupported", Message::UnsupportedKind(99)),
        ("ship", Message::Ship(Ship { parts: vec![part, empty] })),
        ("answers", Message::Answers(Answers { answers: said.iter().map(answer).collect() })),
        ("bootstrap", Message::Bootstrap(Bootstrap(restart))),
        ("rebuild", Message::Rebuild(Rebuild(restart))),
        ("query", Message::StandingQuery(StandingQuery { partitions: vec![partition; 3] })),
        ("standings", Message::StandingAnswers(StandingAnswers { standings: vec![standing; 2] })),
    ];
    let frame = |(name, message): (&str, Message)| {
        let bytes = peer::encode(1, &message).unwrap().concat();
        (name.to_owned(), bytes[4..].to_vec())
    };
    messages.into_iter().map(frame).collect()
}

#[test]
fn peer() {
    // A byte buys at most a map entry's share of a list that grows as it is read, twice, and its frame once more.
    let target = Target {
        name: "peer",
        check: checks::peer,
        rounds: 100_000,
        fixed_bytes: 16 << 10,
        bytes_per_byte: 60,
    };
    run(&target, peer_seeds);
}
