//! Offsets by time.

use anyhow::{Context, Result};

use crate::raw::Case;
use crate::raw::ask::code;
use crate::raw::ask::records::Found;
use crate::raw::batch::Batch;
use crate::raw::conn::{Connection, key};
use crate::raw::expect::{equal, holds, one_of};
use crate::raw::stage::{Stage, time};
use crate::raw::wire::{R, W};
use crate::target::Kind;

pub const CASES: &[Case] = &[
    Case {
        name: "time-lookup-in-batches",
        proves: "the look-up by time finds the first record at or after it, inside compressed batches, with disordered timestamps, over segments, after a restart and without the time index (B012, surface 64)",
        run: lookup,
    },
    Case {
        name: "time-edges",
        proves: "nothing found is offset -1 and timestamp -1 without error; earliest, latest and the tiered ones on empty, plain and trimmed logs (B013, surface 65, 66)",
        run: edges,
    },
    Case {
        name: "time-every-version",
        proves: "every version, isolation level and special timestamp on an empty, a plain and a trimmed log; special ones newer than the version are UNSUPPORTED_VERSION (B013, surface 65)",
        run: matrix,
    },
    Case {
        name: "time-greatest",
        proves: "the greatest timestamp's first record is found for every codec, under LogAppendTime, after a restart and without the time index (B047, surface 65)",
        run: greatest,
    },
];

/// Fifty timestamps in an order that is neither sorted nor random, no two alike.
fn shuffled() -> Vec<i64> {
    (0..50).map(|number| time() + (number * 37 % 50) * 10).collect()
}

fn check_all(to: &mut Connection, topic: &str, stamps: &[i64], when: &str) -> Result<()> {
    for target in (time() - 5..=time() + 500).step_by(5) {
        let expected = stamps.iter().enumerate().find(|(_, stamp)| **stamp >= target);
        let expected = expected.map_or((-1, -1), |(offset, stamp)| (offset as i64, *stamp));
        let found = to.offset_at(topic, 0, target)?;
        equal("error", found.error, 0)?;
        equal(
            &format!("{topic} {when}, {:+} ms", target - time()),
            (found.offset, found.timestamp),
            expected,
        )?;
    }
    Ok(())
}

/// Removes the time indexes of stopped logs; how many there were. A short log may have none, which is the same.
fn remove_time_indexes(stage: &Stage, topics: &[(String, [u8; 16])]) -> Result<usize> {
    let mut removed = 0;
    for (topic, id) in topics {
        let folder = stage.broker.partition_dir(topic, &stage.text_id(*id), 0)?;
        for entry in std::fs::read_dir(&folder)? {
            let file = entry?.path();
            if file.extension().is_some_and(|ending| ending == "timeindex") {
                std::fs::remove_file(&file).with_context(|| file.display().to_string())?;
                removed += 1;
            }
        }
    }
    Ok(removed)
}

fn lookup(stage: &mut Stage) -> Result<()> {
    let mut to = stage.connect()?;
    let stamps = shuffled();
    let mut topics = Vec::new();
    for (size, codec) in [1, 5, 50].into_iter().flat_map(|size| [0, 3, 4].map(|codec| (size, codec))) {
        let topic = stage.name(&format!("{size}-{codec}"));
        // The smallest segments allowed, and an index entry for every batch.
        let id = to.create(&topic, 1, &[("segment.bytes", "1048576"), ("index.interval.bytes", "1")])?;
        // Uncompressed batches of five are large enough to need more than one segment.
        let value = if (size, codec) == (5, 0) { "v".repeat(40_000) } else { "value".to_owned() };
        for part in stamps.chunks(size) {
            let values: Vec<(i64, &str)> = part.iter().map(|stamp| (*stamp, value.as_str())).collect();
            to.append(&topic, &Batch::stamped(&values).codec(codec))?;
        }
        check_all(&mut to, &topic, &stamps, "at first")?;
        topics.push((topic, id));
    }
    stage.broker.restart()?;
    to = stage.connect()?;
    for (topic, _) in &topics {
        to.wait_led(topic, 1)?;
        check_all(&mut to, topic, &stamps, "after a restart")?;
    }
    if stage.broker.kind() == Kind::Kafka {
        // Apache Kafka makes an empty index of a missing one in a sealed segment, and then finds nothing there.
        return Ok(());
    }
    stage.broker.stop()?;
    holds("no time index in any of the logs", remove_time_indexes(stage, &topics)? > 0)?;
    stage.broker.start_again()?;
    to = stage.connect()?;
    for (topic, _) in &topics {
        to.wait_led(topic, 1)?;
        check_all(&mut to, topic, &stamps, "without the time index")?;
    }
    Ok(())
}

fn edges(stage: &mut Stage) -> Result<()> {
    let (empty, plain, trimmed) = (stage.name("empty"), stage.name("plain"), stage.name("trimmed"));
    let mut to = stage.connect()?;
    for topic in [&empty, &plain, &trimmed] {
        to.create(topic, 1, &[])?;
    }
    for topic in [&plain, &trimmed] {
        to.append(topic, &Batch::stamped(&[(time(), "a"), (time() + 1, "b"), (time() + 2, "c")]))?;
    }
    equal("delete", to.delete_records(&trimmed, 2)?, (0, 2))?;
    let none = |found: Found| (found.error, found.offset, found.timestamp);
    for topic in [&empty, &plain, &trimmed] {
        equal("far future", none(to.offset_at(topic, 0, time() + 1_000_000)?), (0, -1, -1))?;
    }
    for (topic, start, end) in [(&empty, 0, 0), (&plain, 0, 3), (&trimmed, 2, 3)] {
        equal(&format!("latest of {topic}"), none(to.offset_at(topic, 0, -1)?), (0, end, -1))?;
        equal(&format!("earliest of {topic}"), none(to.offset_at(topic, 0, -2)?), (0, start, -1))?;
    }
    equal("by time in the trimmed log", to.offset_at(&trimmed, 0, time())?.offset, 2)?;
    equal("greatest in an empty log", none(to.offset_at(&empty, 0, -3)?), (0, -1, -1))?;
    let found = to.offset_at(&plain, 0, time())?;
    holds("the epoch of the found record", found.epoch >= 0)?;
    equal(
        "unknown topic",
        to.offset_at(&stage.name("absent"), 0, -1)?.error,
        code::UNKNOWN_TOPIC_OR_PARTITION,
    )?;
    equal("unknown partition", to.offset_at(&plain, 5, -1)?.error, code::UNKNOWN_TOPIC_OR_PARTITION)?;
    let odd = to.offset_at(&plain, 0, -77)?;
    one_of("a timestamp nobody knows", odd.error, &[code::UNSUPPORTED_VERSION, code::INVALID_REQUEST])
}

fn greatest(stage: &mut Stage) -> Result<()> {
    let mut to = stage.connect()?;
    let mut topics = Vec::new();
    for codec in 0..=4 {
        let topic = stage.name(&format!("codec-{codec}"));
        let id = to.create(&topic, 1, &[])?;
        to.append(
            &topic,
            &Batch::stamped(&[(time() + 10, "a"), (time() + 30, "b"), (time() + 20, "c")]).codec(codec),
        )?;
        to.append(&topic, &Batch::stamped(&[(time() + 30, "later"), (time() + 5, "d")]).codec(codec))?;
        topics.push((topic, id));
    }
    let appended = stage.name("appended");
    to.create(&appended, 1, &[("message.timestamp.type", "LogAppendTime")])?;
    to.append(&appended, &Batch::stamped(&[(time(), "a"), (time(), "b")]))?;
    for when in ["at first", "after a restart", "without the time index"] {
        match when {
            // Apache Kafka makes an empty index of a missing one in a sealed segment, and then finds nothing there.
            "without the time index" if stage.broker.kind() == Kind::Kafka => return Ok(()),
            "at first" => {}
            "after a restart" => stage.broker.restart()?,
            _ => {
                stage.broker.stop()?;
                remove_time_indexes(stage, &topics)?;
                stage.broker.start_again()?;
            }
        }
        to = stage.connect()?;
        for topic in topics.iter().map(|(topic, _)| topic).chain([&appended]) {
            to.wait_led(topic, 1)?;
        }
        for (topic, _) in &topics {
            let found = to.offset_at(topic, 0, -3)?;
            let got = (found.error, found.offset, found.timestamp);
            equal(&format!("{topic} {when}"), got, (0, 1, time() + 30))?;
        }
        equal("LogAppendTime", to.offset_at(&appended, 0, -3)?.offset, 0)?;
    }
    Ok(())
}

/// ListOffsets of partition 0 in any version: (error, offset, timestamp).
fn list_offsets(
    to: &mut Connection,
    version: i16,
    isolation: i8,
    topic: &str,
    timestamp: i64,
) -> Result<(i16, i64, i64)> {
    let flexible = version >= 6;
    let mut body = W::new().i32(-1);
    if version >= 2 {
        body = body.i8(isolation);
    }
    body = if flexible { body.carray(1).cstr(topic).carray(1) } else { body.array(1).str(topic).array(1) };
    body = body.i32(0);
    if version >= 4 {
        body = body.i32(-1);
    }
    body = body.i64(timestamp);
    if flexible {
        body = body.tags().tags();
        // From version 10 on the broker is told how long it may look in far storage.
        body = if version >= 10 { body.i32(5_000).tags() } else { body.tags() };
    }
    let mut answer = to.call(key::LIST_OFFSETS, version, &body)?;
    if version >= 2 {
        answer.i32()?;
    }
    let mut one = |answer: &mut R| -> Result<(i16, i64, i64)> {
        answer.i32()?;
        let (error, timestamp, offset) = (answer.i16()?, answer.i64()?, answer.i64()?);
        if version >= 4 {
            answer.i32()?;
        }
        if flexible {
            answer.tags()?;
        }
        Ok((error, offset, timestamp))
    };
    let topics = if flexible {
        let topics = answer.ceach(|topic| {
            topic.cstr()?;
            let found = topic.ceach(&mut one)?;
            topic.tags()?;
            Ok(found)
        })?;
        answer.tags()?;
        topics
    } else {
        answer.each(|topic| {
            topic.str()?;
            topic.each(&mut one)
        })?
    };
    answer.end()?;
    topics.into_iter().flatten().next().context("no partition in the answer")
}

fn matrix(stage: &mut Stage) -> Result<()> {
    let (empty, plain, trimmed) = (stage.name("empty"), stage.name("plain"), stage.name("trimmed"));
    let mut to = stage.connect()?;
    for topic in [&empty, &plain, &trimmed] {
        to.create(topic, 1, &[])?;
    }
    for topic in [&plain, &trimmed] {
        let stamps = [(time() + 1, "a"), (time() + 9, "b"), (time() + 5, "c")];
        to.append(topic, &Batch::stamped(&stamps))?;
    }
    equal("delete", to.delete_records(&trimmed, 2)?, (0, 2))?;
    let none = (0, -1, -1);
    // Kafka finds a deleted record while the batch that holds it is there.
    let greatest_left = match stage.broker.kind() {
        Kind::Felix => (0, 2, time() + 5),
        Kind::Kafka => (0, 1, time() + 9),
    };
    // The timestamp, the first version that knows it, and what is found in the three logs. Without far storage the earliest local
    // record is the earliest, and there is neither a last one in it nor one that waits for it.
    let asked = [
        (-1, 1, [(0, 0, -1), (0, 3, -1), (0, 3, -1)]),
        (-2, 1, [(0, 0, -1), (0, 0, -1), (0, 2, -1)]),
        (-3, 7, [none, (0, 1, time() + 9), greatest_left]),
        (-4, 8, [(0, 0, -1), (0, 0, -1), (0, 2, -1)]),
        (-5, 9, [none, none, none]),
        (-6, 11, [none, none, none]),
        (time() + 2, 1, [none, (0, 1, time() + 9), (0, 2, time() + 5)]),
        (time() + 10, 1, [none, none, none]),
    ];
    for version in 1..=11 {
        for isolation in if version >= 2 { 0..=1 } else { 0..=0 } {
            for (timestamp, since, found) in &asked {
                for (topic, found) in [&empty, &plain, &trimmed].into_iter().zip(found) {
                    let expected =
                        if version >= *since { *found } else { (code::UNSUPPORTED_VERSION, -1, -1) };
                    let what = format!("version {version}, isolation {isolation}, {topic} at {timestamp}");
                    equal(&what, list_offsets(&mut to, version, isolation, topic, *timestamp)?, expected)?;
                }
            }
        }
    }
    Ok(())
}
