//! Frames, versions, ApiVersions, and the order of answers on one connection.

use std::time::{Duration, Instant};

use anyhow::{Context, Result, bail};

use crate::raw::Case;
use crate::raw::ask::code;
use crate::raw::ask::records::{Fetch, Want};
use crate::raw::batch::Batch;
use crate::raw::conn::{Connection, key};
use crate::raw::expect::{equal, holds};
use crate::raw::stage::{Stage, time};
use crate::raw::wire::{R, W};

pub const CASES: &[Case] = &[
    Case {
        name: "api-versions-answers",
        proves: "ApiVersions keeps response header 0 in every version, and answers a version it does not know in the layout of version 0 with error 35 and the list of keys (surface 1, 2)",
        run: api_versions,
    },
    Case {
        name: "api-versions-client-name",
        proves: "a client software name outside Kafka's pattern is answered INVALID_REQUEST (surface 3)",
        run: client_name,
    },
    Case {
        name: "api-versions-ranges",
        proves: "Produce and JoinGroup are advertised from 0, InitProducerId up to 5 at most, version 3 names no feature that starts at 0 (surface 4, 9, headlines 4 and 5)",
        run: ranges,
    },
    Case {
        name: "versions-outside-close",
        proves: "one version above each advertised range, and an unknown key, close the connection (surface 5, B025)",
        run: outside,
    },
    Case {
        name: "frames-of-impossible-size",
        proves: "sizes beyond the limit, negative ones and frames cut short close the connection, others do not notice",
        run: sizes,
    },
    Case {
        name: "frames-with-hostile-counts",
        proves: "array, string and tag counts that the frame cannot hold close the connection before anything is allocated (surface 8)",
        run: counts,
    },
    Case {
        name: "frames-of-random-bytes",
        proves: "random bytes behind every API key leave the broker serving, and of a sane size",
        run: random,
    },
    Case {
        name: "frames-with-unknown-tags",
        proves: "unknown tagged fields in header and body are skipped; a null client id is taken (surface 7)",
        run: tags,
    },
    Case {
        name: "frames-byte-by-byte",
        proves: "a request that arrives one byte at a time is answered",
        run: slowly,
    },
    Case {
        name: "answers-in-order",
        proves: "a waiting fetch, Metadata, Produce acks=0 and ApiVersions sent at once are answered in that order, acks=0 not at all (B056, surface 10)",
        run: order,
    },
    Case {
        name: "acks-0-error-closes",
        proves: "acks=0 that cannot be carried out closes the connection without an answer (B056, surface 27)",
        run: acks_0_error,
    },
    Case {
        name: "recorded-requests-replayed",
        proves: "every recorded request, its ids long stale, is answered or closes its connection, and Metadata works on a new one after each API (B005, B025)",
        run: replay,
    },
];

type Range = (i16, i16, i16);

/// Reads the list of a version 0 body.
fn classic_ranges(from: &mut R) -> Result<Vec<Range>> {
    from.each(|range| Ok((range.i16()?, range.i16()?, range.i16()?)))
}

/// What the broker advertises.
fn advertised(to: &mut Connection) -> Result<Vec<Range>> {
    let mut answer = to.call(key::API_VERSIONS, 0, &W::new())?;
    equal("error of ApiVersions 0", answer.i16()?, code::NONE)?;
    let ranges = classic_ranges(&mut answer)?;
    answer.end()?;
    Ok(ranges)
}

fn api_versions(stage: &mut Stage) -> Result<()> {
    let mut to = stage.connect()?;
    let plain = advertised(&mut to)?;
    holds("ApiVersions lists itself", plain.iter().any(|(key, ..)| *key == key::API_VERSIONS))?;
    for version in [1, 2] {
        let mut answer = to.call(key::API_VERSIONS, version, &W::new())?;
        equal("error", answer.i16()?, code::NONE)?;
        equal("ranges", classic_ranges(&mut answer)?, plain.clone())?;
        answer.i32()?;
        answer.end()?;
    }
    for version in [3, 4] {
        let body = W::new().cstr("raw").cstr("1.0").tags();
        let mut answer = to.call(key::API_VERSIONS, version, &body)?;
        equal("error", answer.i16()?, code::NONE)?;
        let ranges = answer.ceach(|range| {
            let all = (range.i16()?, range.i16()?, range.i16()?);
            range.tags()?;
            Ok(all)
        })?;
        equal("ranges", ranges, plain.clone())?;
        answer.i32()?;
        answer.tags()?;
        answer.end()?;
    }
    for version in [99, 0x7fff] {
        // The body of a version nobody knows may be anything.
        let mut answer = to.call(key::API_VERSIONS, version, &W::new().cstr("raw").cstr("1").i64(7))?;
        equal("error for an unknown version", answer.i16()?, code::UNSUPPORTED_VERSION)?;
        let ranges = classic_ranges(&mut answer)?;
        holds("the range of ApiVersions is told", ranges.iter().any(|(key, ..)| *key == key::API_VERSIONS))?;
        answer.end()?;
    }
    // And the connection is still good.
    advertised(&mut to).map(|_| ())
}

fn client_name(stage: &mut Stage) -> Result<()> {
    let mut to = stage.connect()?;
    for (name, version, expected) in [
        ("apache-kafka-java", "4.4.0", code::NONE),
        ("a", "1", code::NONE),
        ("", "1", code::INVALID_REQUEST),
        ("-dash", "1", code::INVALID_REQUEST),
        ("two words", "1", code::INVALID_REQUEST),
        ("good", "bad.", code::INVALID_REQUEST),
    ] {
        let mut answer = to.call(key::API_VERSIONS, 3, &W::new().cstr(name).cstr(version).tags())?;
        equal(&format!("error for {name:?} {version:?}"), answer.i16()?, expected)?;
    }
    Ok(())
}

fn ranges(stage: &mut Stage) -> Result<()> {
    let mut to = stage.connect()?;
    let ranges = advertised(&mut to)?;
    let of = |wanted: i16| {
        ranges.iter().find(|(key, ..)| *key == wanted).with_context(|| format!("no key {wanted}"))
    };
    equal("Produce's minimum", of(key::PRODUCE)?.1, 0)?;
    equal("JoinGroup's minimum", of(key::JOIN_GROUP)?.1, 0)?;
    equal("InitProducerId's maximum", of(key::INIT_PRODUCER_ID)?.2, 5)?;
    holds("Fetch reaches 13 for topic ids", of(key::FETCH)?.2 >= 13)?;
    for (key, min, max) in &ranges {
        holds(&format!("key {key}: {min} to {max}"), 0 <= *min && min <= max)?;
        let controllers_only = matches!(key, 4..=7 | 52..=54 | 56 | 58 | 59 | 62 | 63 | 67 | 70 | 73 | 82);
        holds(&format!("key {key} is not for clients"), !controllers_only)?;
    }
    let mut answer = to.call(key::API_VERSIONS, 3, &W::new().cstr("raw").cstr("1").tags())?;
    answer.i16()?;
    answer.ceach(|range| {
        range.raw(6)?;
        range.tags()
    })?;
    answer.i32()?;
    for (tag, content) in answer.tags()? {
        let mut content = R::new(content);
        match tag {
            0 => {
                let mins = content.ceach(|feature| {
                    let name = feature.cstr()?;
                    let min = feature.i16()?;
                    feature.i16()?;
                    feature.tags()?;
                    Ok((name, min))
                })?;
                holds(
                    &format!("a supported feature starts at 0: {mins:?}"),
                    mins.iter().all(|(_, min)| *min > 0),
                )?;
            }
            1 => holds("the epoch of finalised features is not negative", content.i64()? >= 0)?,
            _ => {}
        }
    }
    Ok(())
}

fn outside(stage: &mut Stage) -> Result<()> {
    let ranges = advertised(&mut stage.connect()?)?;
    for (key, _, max) in ranges.iter().filter(|(key, ..)| *key != key::API_VERSIONS) {
        let mut to = stage.connect()?;
        to.send(*key, max + 1, &W::new())?;
        to.expect_close().with_context(|| format!("key {key} version {}", max + 1))?;
    }
    for (key, version) in [
        (key::PRODUCE, 0),
        (key::PRODUCE, 2),
        (key::FETCH, 3),
        (32_000, 0),
        (-1, 0),
        (4, 0),
        (key::METADATA, -1),
    ] {
        let mut to = stage.connect()?;
        to.send(key, version, &W::new())?;
        to.expect_close().with_context(|| format!("key {key} version {version}"))?;
    }
    Ok(())
}

fn sizes(stage: &mut Stage) -> Result<()> {
    let mut other = stage.connect()?;
    for size in [i32::MAX, 0x7000_0000, 200 << 20, -1, i32::MIN] {
        let mut to = stage.connect()?;
        to.send_raw(&size.to_be_bytes())?;
        to.expect_close().with_context(|| format!("a frame of {size} bytes"))?;
    }
    for size in [0_i32, 3, 7] {
        let mut to = stage.connect()?;
        to.send_raw(&W::new().i32(size).raw(&vec![0; size as usize]).done())?;
        to.expect_close().with_context(|| format!("a frame of {size} bytes"))?;
    }
    // A frame that is never completed.
    let mut to = stage.connect()?;
    to.send_raw(&W::new().i32(100).raw(&[0; 50]).done())?;
    to.finish_sending()?;
    to.expect_close().context("half a frame and no more")?;
    holds("the other connection goes on", other.sees_a_broker()?)
}

fn counts(stage: &mut Stage) -> Result<()> {
    let huge_tag = || W::new().uvarint(u32::MAX);
    let hostile: Vec<(&str, i16, i16, W)> = vec![
        ("Metadata topics", key::METADATA, 1, W::new().i32(i32::MAX)),
        ("Metadata topics, compact", key::METADATA, 12, W::new().uvarint(0x7fff_ffff)),
        (
            "Fetch topics",
            key::FETCH,
            11,
            W::new().i32(-1).i32(0).i32(0).i32(1).i8(0).i32(0).i32(-1).i32(0x0fff_ffff),
        ),
        ("Produce topics", key::PRODUCE, 8, W::new().nstr(None).i16(-1).i32(1).i32(0x7fff_fff0)),
        (
            "Produce records",
            key::PRODUCE,
            8,
            W::new().nstr(None).i16(-1).i32(1).array(1).str("t").array(1).i32(0).i32(i32::MAX),
        ),
        ("CreateTopics name", key::CREATE_TOPICS, 4, W::new().array(1).i16(i16::MAX)),
        (
            "JoinGroup protocols",
            key::JOIN_GROUP,
            5,
            W::new().str("g").i32(1).i32(1).str("").nstr(None).str("c").i32(i32::MAX),
        ),
        ("DescribeConfigs keys", key::DESCRIBE_CONFIGS, 3, W::new().array(1).i8(2).str("t").i32(i32::MAX)),
        (
            "Metadata body tags",
            key::METADATA,
            12,
            W::new().carray(0).bool(false).bool(false).raw(&huge_tag().done()),
        ),
        ("OffsetFetch groups", key::OFFSET_FETCH, 8, W::new().uvarint(0x7fff_ffff)),
        ("null array", key::CREATE_TOPICS, 4, W::new().i32(-1).i32(1_000).bool(false)),
        ("negative string", key::FIND_COORDINATOR, 0, W::new().i16(-5)),
    ];
    for (what, key, version, body) in hostile {
        let mut to = stage.connect()?;
        to.send(key, version, &body)?;
        to.expect_close().context(what)?;
    }
    // Tag count in the header itself.
    let mut to = stage.connect()?;
    let message = W::new().i16(key::METADATA).i16(12).i32(1).nstr(None).uvarint(u32::MAX).done();
    to.send_raw(&W::new().bytes(&message).done())?;
    to.expect_close().context("tags of the header")?;
    holds("the broker goes on", stage.connect()?.sees_a_broker()?)
}

/// Numbers that look random and are the same in every run.
struct Dice(u64);

impl Dice {
    fn roll(&mut self) -> u64 {
        self.0 ^= self.0 << 13;
        self.0 ^= self.0 >> 7;
        self.0 ^= self.0 << 17;
        self.0
    }
}

fn random(stage: &mut Stage) -> Result<()> {
    let ranges = advertised(&mut stage.connect()?)?;
    let mut dice = Dice(0x5eed_cafe_f00d_1234);
    let rounds = if stage.full { 200 } else { 8 };
    let mut to = stage.connect()?;
    for _ in 0..rounds {
        for (key, _, max) in &ranges {
            let bytes: Vec<u8> = (0..dice.roll() % 64).map(|_| (dice.roll() & 0xff) as u8).collect();
            let version = i16::try_from(dice.roll() % (u64::from(max.unsigned_abs()) + 1))?;
            // Whatever happens to the connection is right, as long as it happens; the answer may come late (a join that waits).
            if to.send(*key, version, &W::new().raw(&bytes)).is_err() {
                to = stage.connect()?;
            }
            to.patience(Duration::from_millis(20))?;
            if to.receive().is_err() {
                to = stage.connect()?;
            }
        }
    }
    holds("the broker goes on", stage.connect()?.sees_a_broker()?)
}

fn tags(stage: &mut Stage) -> Result<()> {
    let mut to = stage.connect()?;
    let unknown = |out: W| out.uvarint(2).uvarint(77).uvarint(3).raw(b"abc").uvarint(9000).uvarint(0);
    let header = unknown(W::new().i16(key::METADATA).i16(12).i32(55).nstr(None));
    let message = unknown(header.carray(0).bool(false).bool(false)).done();
    to.send_raw(&W::new().bytes(&message).done())?;
    let answer = to.receive_for(55, key::METADATA, 12)?;
    holds("an answer", answer.left() > 10)
}

fn slowly(stage: &mut Stage) -> Result<()> {
    let mut to = stage.connect()?;
    let (correlation, frame) = to.frame(key::METADATA, 1, &W::new().array(0));
    for byte in frame {
        to.send_raw(&[byte])?;
    }
    to.receive_for(correlation, key::METADATA, 1).map(|_| ())
}

fn order(stage: &mut Stage) -> Result<()> {
    let topic = stage.name("t");
    let mut to = stage.connect()?;
    to.create(&topic, 2, &[])?;
    let waiting = Fetch {
        max_wait: 1_000,
        min_bytes: 1,
        ..Fetch::now(vec![Want { partition: 1, ..Want::of(&topic, 0) }])
    };
    let produce = |acks, value: &str| -> Result<W> {
        Ok(Connection::produce_body(acks, &topic, 0, &Batch::of(&[value], time()).encode()?))
    };
    let requests: Vec<(i16, i16, W)> = vec![
        (key::FETCH, 11, waiting.body()),
        (key::METADATA, 1, W::new().array(0)),
        (key::PRODUCE, 8, produce(0, "unanswered")?),
        (key::API_VERSIONS, 0, W::new()),
        (key::PRODUCE, 8, produce(-1, "answered")?),
        (key::LIST_OFFSETS, 5, W::new().i32(-1).i8(0).array(1).str(&topic).array(1).i32(0).i32(-1).i64(-1)),
        (key::API_VERSIONS, 3, W::new().cstr("raw").cstr("1").tags()),
        (key::METADATA, 9, W::new().carray(0).bool(false).bool(false).bool(false).tags()),
    ];
    let mut all = Vec::new();
    let mut due = Vec::new();
    for _ in 0..6 {
        for (key, version, body) in &requests {
            let (correlation, frame) = to.frame(*key, *version, body);
            all.extend(frame);
            let unanswered = *key == key::PRODUCE && body.clone().done()[2..4] == [0, 0];
            if !unanswered {
                due.push((correlation, *key, *version));
            }
        }
    }
    to.patience(Duration::from_secs(20))?;
    to.send_raw(&all)?;
    for (correlation, key, version) in due {
        to.receive_for(correlation, key, version)?;
    }
    equal("records appended", to.end_of(&topic)?, 12)
}

fn acks_0_error(stage: &mut Stage) -> Result<()> {
    let topic = stage.name("absent");
    let mut to = stage.connect()?;
    let body = Connection::produce_body(0, &topic, 0, &Batch::of(&["lost"], time()).encode()?);
    to.send(key::PRODUCE, 8, &body)?;
    to.expect_close()
}

fn replay(stage: &mut Stage) -> Result<()> {
    let root = std::path::Path::new(env!("CARGO_MANIFEST_DIR")).join("fixtures");
    let mut replayed = 0;
    for folder in std::fs::read_dir(&root)? {
        let folder = folder?.path();
        if !folder.is_dir() {
            continue;
        }
        for file in std::fs::read_dir(&folder)? {
            let file = file?.path();
            if !file.to_string_lossy().ends_with(".request.hex") {
                continue;
            }
            let frame = unhex(&std::fs::read_to_string(&file)?)?;
            let correlation = i32::from_be_bytes(frame[4..8].try_into()?);
            let mut to = stage.connect()?;
            let sent = Instant::now();
            to.send_raw(&W::new().bytes(&frame).done())?;
            match to.receive() {
                Ok((got, _)) => equal(&format!("correlation id for {}", file.display()), got, correlation)?,
                Err(error) if sent.elapsed() > Duration::from_secs(9) => {
                    bail!("{}: neither answer nor end of the connection: {error}", file.display())
                }
                Err(_) => {}
            }
            replayed += 1;
        }
        holds(&format!("Metadata after {}", folder.display()), stage.connect()?.sees_a_broker()?)?;
    }
    holds(&format!("only {replayed} requests"), replayed > 100)?;
    holds("the broker goes on", stage.connect()?.sees_a_broker()?)
}

fn unhex(text: &str) -> Result<Vec<u8>> {
    let digits: String = text.split_whitespace().collect();
    (0..digits.len()).step_by(2).map(|at| Ok(u8::from_str_radix(&digits[at..at + 2], 16)?)).collect()
}
