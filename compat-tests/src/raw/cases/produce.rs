//! What is appended, what is refused, and how it comes back.

use anyhow::{Context, Result};

use crate::raw::Case;
use crate::raw::ask::code;
use crate::raw::ask::records::{Fetch, Want};
use crate::raw::batch::{Batch, Record};
use crate::raw::conn::{Connection, key};
use crate::raw::expect::{equal, holds, one_of};
use crate::raw::stage::{Stage, now_ms, time};
use crate::raw::wire::W;

pub const CASES: &[Case] = &[
    Case {
        name: "produce-codecs-dense-offsets",
        proves: "batches of 10 in every codec get dense offsets, come back byte for byte but for base offset and epoch (B028, surface 31)",
        run: codecs,
    },
    Case {
        name: "produce-two-batches-refused",
        proves: "two batches in one partition entry are refused and nothing is appended (B028, surface 29)",
        run: two_batches,
    },
    Case {
        name: "produce-wrong-counts-refused",
        proves: "a record count other than last delta + 1, gaps in the deltas, trailing bytes: refused, log end unchanged (B028, surface 30)",
        run: wrong_counts,
    },
    Case {
        name: "produce-damaged-batches-refused",
        proves: "a wrong checksum, old magic, control bit, unknown codec or cut batch is refused with Kafka's code, log end unchanged (surface 29, 30)",
        run: damaged,
    },
    Case {
        name: "produce-bad-requests",
        proves: "acks other than -1, 0, 1, an unknown topic or partition, and a batch beyond max.message.bytes are answered with their codes (surface 28, 30)",
        run: bad_requests,
    },
    Case {
        name: "produce-duplicate-headers-recompressed",
        proves: "a topic with compression.type=zstd re-encodes a gzip batch and keeps duplicate header keys, null and empty values (surface 32)",
        run: recompressed,
    },
    Case {
        name: "produce-log-append-time",
        proves: "LogAppendTime stamps batch and answer, with a right checksum (surface 31)",
        run: append_time,
    },
    Case {
        name: "produce-timestamp-bounds",
        proves: "timestamps beyond message.timestamp.before/after.max.ms are refused with INVALID_TIMESTAMP; by default only the future is bounded (B048, surface 34)",
        run: timestamp_bounds,
    },
    Case {
        name: "produce-keyless-to-compacted",
        proves: "a record without key on a compacted topic fails by itself, with its index (surface 33)",
        run: keyless,
    },
    Case {
        name: "produce-zstd-needs-version-7",
        proves: "zstd in Produce 6 is UNSUPPORTED_COMPRESSION_TYPE and nothing is appended; in Produce 7 it is taken (surface 32)",
        run: old_zstd,
    },
    Case {
        name: "produce-min-insync-of-one-copy",
        proves: "min.insync.replicas above the number of copies means all of them: acks=all is taken on a topic with one copy (surface 28)",
        run: more_than_all,
    },
    Case {
        name: "produce-by-topic-id",
        proves: "Produce 13 takes a topic by id, echoes it, and answers UNKNOWN_TOPIC_ID for another (surface 35)",
        run: by_id,
    },
];

fn codecs(stage: &mut Stage) -> Result<()> {
    let topic = stage.name("t");
    let mut to = stage.connect()?;
    to.create(&topic, 1, &[])?;
    let values: Vec<String> = (0..10).map(|number| format!("value {number}")).collect();
    let values: Vec<&str> = values.iter().map(String::as_str).collect();
    for codec in 0..=4 {
        let batch = Batch::of(&values, time()).codec(codec);
        let base = to.append(&topic, &batch)?;
        equal("base offset", base, i64::from(codec) * 10)?;
        let fetched = to.fetch(&Fetch::now(vec![Want::of(&topic, base)]))?;
        let got = fetched.only()?;
        let sent = batch.encode()?;
        equal("length of the stored batch", got.bytes.len(), sent.len())?;
        // All but base offset (8 bytes) and leader epoch (4 bytes at 12) is what was sent.
        equal("bytes between", &got.bytes[8..12], &sent[8..12])?;
        equal("bytes behind the epoch", &got.bytes[16..], &sent[16..])?;
        let batches = got.batches()?;
        equal("values", Batch::values(&batches).len(), 10)?;
        equal("stored base offset", batches.first().context("no batch")?.base_offset, base)?;
        holds("a leader epoch", batches[0].leader_epoch >= 0)?;
    }
    equal("values of all", to.read_all(&topic, 0)?.len(), 50)?;
    let dense = to.read_all(&topic, 0)?.iter().enumerate().all(|(at, (offset, _))| at as i64 == *offset);
    holds("offsets are dense", dense)
}

/// Produces bytes, expects a code, and that the log did not grow.
fn refused(to: &mut Connection, topic: &str, what: &str, bytes: &[u8], codes: &[i16]) -> Result<()> {
    let before = to.end_of(topic)?;
    let produced = to.produce_bytes(topic, 0, bytes).with_context(|| what.to_owned())?;
    one_of(what, produced.error, codes)?;
    equal(&format!("{what}: base offset"), produced.base_offset, -1)?;
    equal(&format!("{what}: log end"), to.end_of(topic)?, before)
}

fn two_batches(stage: &mut Stage) -> Result<()> {
    let topic = stage.name("t");
    let mut to = stage.connect()?;
    to.create(&topic, 1, &[])?;
    let mut two = Batch::of(&["one"], time()).encode()?;
    let second = Batch { base_offset: 1, ..Batch::of(&["two"], time()) };
    two.extend(second.encode()?);
    refused(&mut to, &topic, "two batches", &two, &[code::INVALID_RECORD])
}

fn wrong_counts(stage: &mut Stage) -> Result<()> {
    let topic = stage.name("t");
    let mut to = stage.connect()?;
    to.create(&topic, 1, &[])?;
    let good = Batch::of(&["a", "b", "c"], time());
    let wrong = [
        ("last delta beyond the count", Batch { last_delta: 5, ..good.clone() }),
        ("last delta below the count", Batch { last_delta: 1, ..good.clone() }),
        ("no records at all", Batch { records: Vec::new(), count: 0, last_delta: -1, ..good.clone() }),
    ];
    for (what, batch) in wrong {
        refused(&mut to, &topic, what, &batch.encode()?, &[code::INVALID_RECORD, code::CORRUPT_MESSAGE])?;
    }
    // What a broker sees only when it reads the records: it must do so where it re-encodes them.
    let strict = stage.name("strict");
    to.create(&strict, 1, &[("compression.type", "gzip")])?;
    let more = Batch { count: 4, last_delta: 3, ..good.clone() };
    let what = "a count beyond the records";
    refused(&mut to, &strict, what, &more.encode()?, &[code::INVALID_RECORD, code::CORRUPT_MESSAGE])?;
    // Kafka gives the records of a batch that it re-encodes new, dense offsets; to refuse the batch is as good.
    let mut gap = good.clone();
    gap.records[1].delta = 2;
    let produced = to.produce_bytes(&strict, 0, &gap.encode()?)?;
    let end = if produced.error == 0 { 3 } else { 0 };
    equal("log end after a gap in the deltas", to.end_of(&strict)?, end)?;
    let offsets: Vec<i64> = to.read_all(&strict, 0)?.iter().map(|(offset, _)| *offset).collect();
    equal("offsets after a gap in the deltas", offsets, (0..end).collect())?;
    let base = to.append(&topic, &good)?;
    equal("the good one", base, 0)
}

fn damaged(stage: &mut Stage) -> Result<()> {
    let topic = stage.name("t");
    let mut to = stage.connect()?;
    to.create(&topic, 1, &[])?;
    let good = Batch::of(&["a", "b"], time());
    let mut flipped = good.encode()?;
    let last = flipped.len() - 1;
    flipped[last] ^= 1;
    refused(&mut to, &topic, "wrong checksum", &flipped, &[code::CORRUPT_MESSAGE])?;
    let control = Batch { attributes: 0x20, ..good.clone() };
    refused(&mut to, &topic, "control batch", &control.encode()?, &[code::INVALID_RECORD])?;
    let cut = good.encode()?;
    let cut = &cut[..cut.len() - 3];
    for (what, bytes) in [("cut batch", cut), ("eleven bytes", &cut[..11]), ("no bytes", &[])] {
        let before = to.end_of(&topic)?;
        // Kafka refuses some of these with a code and some by closing.
        match to.produce_bytes(&topic, 0, bytes) {
            Ok(produced) => holds(&format!("{what}: error {}", produced.error), produced.error != 0)?,
            Err(_) => to = stage.connect()?,
        }
        equal(&format!("{what}: log end"), to.end_of(&topic)?, before)?;
    }
    for magic in [0, 1, 3] {
        let before = to.end_of(&topic)?;
        match to.produce_bytes(&topic, 0, &Batch { magic, ..good.clone() }.encode()?) {
            Ok(produced) => holds(&format!("magic {magic}: error {}", produced.error), produced.error != 0)?,
            Err(_) => to = stage.connect()?,
        }
        equal(&format!("magic {magic}: log end"), to.end_of(&topic)?, before)?;
    }
    equal("the good one", to.append(&topic, &good)?, 0)
}

fn bad_requests(stage: &mut Stage) -> Result<()> {
    let topic = stage.name("t");
    let mut to = stage.connect()?;
    to.create(&topic, 1, &[("max.message.bytes", "1000")])?;
    let good = Batch::of(&["a"], time()).encode()?;
    let ask = |to: &mut Connection, acks, topic: &str, partition, bytes: &[u8]| -> Result<i16> {
        let body = Connection::produce_body(acks, topic, partition, bytes);
        Ok(Connection::read_produced(to.call(key::PRODUCE, 8, &body)?)?.error)
    };
    equal("acks=2", ask(&mut to, 2, &topic, 0, &good)?, code::INVALID_REQUIRED_ACKS)?;
    equal("acks=-2", ask(&mut to, -2, &topic, 0, &good)?, code::INVALID_REQUIRED_ACKS)?;
    equal(
        "unknown topic",
        ask(&mut to, 1, &stage.name("absent"), 0, &good)?,
        code::UNKNOWN_TOPIC_OR_PARTITION,
    )?;
    equal("unknown partition", ask(&mut to, 1, &topic, 7, &good)?, code::UNKNOWN_TOPIC_OR_PARTITION)?;
    equal("negative partition", ask(&mut to, 1, &topic, -1, &good)?, code::UNKNOWN_TOPIC_OR_PARTITION)?;
    let large = "x".repeat(1_500);
    let large = Batch::of(&[&large], time()).encode()?;
    equal("too large", ask(&mut to, 1, &topic, 0, &large)?, code::MESSAGE_TOO_LARGE)?;
    equal("acks=1", ask(&mut to, 1, &topic, 0, &good)?, code::NONE)?;
    equal("log end", to.end_of(&topic)?, 1)
}

fn recompressed(stage: &mut Stage) -> Result<()> {
    let topic = stage.name("t");
    let mut to = stage.connect()?;
    to.create(&topic, 1, &[("compression.type", "zstd")])?;
    let header = |name: &str, value: Option<&[u8]>| (name.to_owned(), value.map(<[u8]>::to_vec));
    let mut batch = Batch::stamped(&[(time(), "first"), (time() + 5, "second")]).codec(1);
    batch.records[0].headers =
        vec![header("a", Some(b"1")), header("b", None), header("a", Some(b"3")), header("", Some(b""))];
    batch.records[1] = Record { key: Some(Vec::new()), value: None, ..batch.records[1].clone() };
    to.append(&topic, &batch)?;
    let fetched = to.fetch(&Fetch::now(vec![Want::of(&topic, 0)]))?;
    let batches = fetched.only()?.batches()?;
    equal("batches", batches.len(), 1)?;
    equal("codec", batches[0].attributes & 7, 4)?;
    equal("records", &batches[0].records, &batch.records)?;
    equal("greatest timestamp", batches[0].max_timestamp, time() + 5)
}

fn append_time(stage: &mut Stage) -> Result<()> {
    let topic = stage.name("t");
    let mut to = stage.connect()?;
    to.create(&topic, 1, &[("message.timestamp.type", "LogAppendTime")])?;
    let before = now_ms();
    for codec in [0, 3] {
        let produced =
            to.produce(&topic, &Batch::stamped(&[(time(), "a"), (time() + 9, "b")]).codec(codec))?;
        equal("error", produced.error, code::NONE)?;
        let clock = before - 1_000..now_ms() + 1_000;
        holds(
            &format!("append time {} is now", produced.append_time),
            clock.contains(&produced.append_time),
        )?;
        let fetched = to.fetch(&Fetch::now(vec![Want::of(&topic, produced.base_offset)]))?;
        let batches = fetched.only()?.batches()?;
        equal("timestamp type bit", batches[0].attributes & 8, 8)?;
        equal("greatest timestamp", batches[0].max_timestamp, produced.append_time)?;
        equal("codec", batches[0].attributes & 7, codec)?;
        let found = to.offset_at(&topic, 0, produced.append_time)?;
        equal("found by append time", (found.error, found.timestamp), (0, produced.append_time))?;
    }
    let plain = stage.name("create-time");
    to.create(&plain, 1, &[])?;
    equal("append time under CreateTime", to.produce(&plain, &Batch::of(&["a"], time()))?.append_time, -1)
}

fn timestamp_bounds(stage: &mut Stage) -> Result<()> {
    let plain = stage.name("plain");
    let bounded = stage.name("bounded");
    let mut to = stage.connect()?;
    to.create(&plain, 1, &[])?;
    let bounds = [("message.timestamp.before.max.ms", "60000"), ("message.timestamp.after.max.ms", "60000")];
    to.create(&bounded, 1, &bounds)?;
    let now = now_ms();
    let thirty_days = 30 * 86_400_000_i64;
    for (topic, timestamp, expected) in [
        (&plain, now, code::NONE),
        (&plain, now - thirty_days, code::NONE),
        (&plain, 0, code::NONE),
        (&plain, now * 1_000, code::INVALID_TIMESTAMP),
        (&plain, now + 2 * 3_600_000, code::INVALID_TIMESTAMP),
        (&plain, now + 1_800_000, code::NONE),
        // No timestamp at all is no violation of any bound.
        (&plain, -1, code::NONE),
        (&bounded, -1, code::NONE),
        (&bounded, now, code::NONE),
        (&bounded, now - 120_000, code::INVALID_TIMESTAMP),
        (&bounded, now + 120_000, code::INVALID_TIMESTAMP),
    ] {
        let produced = to.produce(topic, &Batch::of(&["x"], timestamp))?;
        equal(&format!("{topic}, now{:+} ms", timestamp - now), produced.error, expected)?;
        if expected != code::NONE {
            equal("no offset", produced.base_offset, -1)?;
        }
    }
    Ok(())
}

/// The error of a Produce of version 5, 6 or 7, which are alike.
fn produce_old(to: &mut Connection, version: i16, topic: &str, batch: &Batch) -> Result<i16> {
    let body = Connection::produce_body(-1, topic, 0, &batch.encode()?);
    let mut answer = to.call(key::PRODUCE, version, &body)?;
    let errors = answer.each(|topic| {
        topic.str()?;
        topic.each(|partition| {
            partition.i32()?;
            let error = partition.i16()?;
            partition.raw(24)?;
            Ok(error)
        })
    })?;
    answer.i32()?;
    answer.end()?;
    errors.into_iter().flatten().next().context("no partition in the answer to Produce")
}

fn old_zstd(stage: &mut Stage) -> Result<()> {
    let topic = stage.name("t");
    let mut to = stage.connect()?;
    to.create(&topic, 1, &[])?;
    let batch = Batch::of(&["a", "b"], time());
    let zstd = batch.clone().codec(4);
    equal("version 6", produce_old(&mut to, 6, &topic, &zstd)?, code::UNSUPPORTED_COMPRESSION_TYPE)?;
    equal("log end", to.end_of(&topic)?, 0)?;
    equal("version 7", produce_old(&mut to, 7, &topic, &zstd)?, code::NONE)?;
    equal("version 6 with lz4", produce_old(&mut to, 6, &topic, &batch.codec(3))?, code::NONE)?;
    equal("log end", to.end_of(&topic)?, 4)
}

fn more_than_all(stage: &mut Stage) -> Result<()> {
    let topic = stage.name("t");
    let mut to = stage.connect()?;
    to.create(&topic, 1, &[("min.insync.replicas", "2")])?;
    let bytes = Batch::of(&["a"], time()).encode()?;
    for (acks, offset) in [(-1, 0), (1, 1)] {
        let body = Connection::produce_body(acks, &topic, 0, &bytes);
        let produced = Connection::read_produced(to.call(key::PRODUCE, 8, &body)?)?;
        equal(&format!("acks={acks}"), (produced.error, produced.base_offset), (0, offset))?;
    }
    Ok(())
}

fn keyless(stage: &mut Stage) -> Result<()> {
    let topic = stage.name("t");
    let mut to = stage.connect()?;
    to.create(&topic, 1, &[("cleanup.policy", "compact")])?;
    for codec in [0, 1] {
        let mut batch = Batch::of(&["a", "b", "c"], time()).codec(codec);
        batch.records[0].key = Some(b"k".to_vec());
        batch.records[2].key = Some(b"k".to_vec());
        let produced = to.produce(&topic, &batch)?;
        equal("error", produced.error, code::INVALID_RECORD)?;
        equal("indexes of refused records", produced.record_errors, vec![1])?;
        equal("log end", to.end_of(&topic)?, 0)?;
    }
    let mut batch = Batch::of(&["a"], time());
    batch.records[0].key = Some(b"k".to_vec());
    equal("with a key", to.append(&topic, &batch)?, 0)
}

fn by_id(stage: &mut Stage) -> Result<()> {
    let topic = stage.name("t");
    let mut to = stage.connect()?;
    let id = to.create(&topic, 1, &[])?;
    let records = Batch::of(&["by id"], time()).encode()?;
    for (id, expected) in [(id, code::NONE), ([7; 16], code::UNKNOWN_TOPIC_ID)] {
        let body =
            W::new().cnstr(None).i16(-1).i32(10_000).carray(1).raw(&id).carray(1).i32(0).cbytes(&records);
        let mut answer = to.call(key::PRODUCE, 13, &body.tags().tags().tags())?;
        equal("topics", answer.carray()?, 1)?;
        equal("topic id", answer.uuid()?, id)?;
        equal("partitions", answer.carray()?, 1)?;
        equal("partition", answer.i32()?, 0)?;
        equal("error", answer.i16()?, expected)?;
    }
    equal("log end", to.end_of(&topic)?, 1)
}
