//! Offsets by time.

use anyhow::{Context, Result};

use crate::raw::Case;
use crate::raw::ask::code;
use crate::raw::ask::records::Found;
use crate::raw::batch::Batch;
use crate::raw::conn::Connection;
use crate::raw::expect::{equal, holds, one_of};
use crate::raw::stage::{Stage, time};
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
        name: "time-greatest",
        proves: "the greatest timestamp's first record is found for every codec, under LogAppendTime, after a restart (B047, surface 65)",
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

fn lookup(stage: &mut Stage) -> Result<()> {
    let mut to = stage.connect()?;
    let stamps = shuffled();
    let mut topics = Vec::new();
    for (size, codec) in [(1, 0), (5, 0), (5, 3), (50, 4), (50, 0)] {
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
    let mut removed = 0;
    for (topic, id) in &topics {
        let folder = stage.broker.partition_dir(topic, &stage.text_id(*id), 0)?;
        // A short log may have none, which is the same.
        for entry in std::fs::read_dir(&folder)? {
            let file = entry?.path();
            if file.extension().is_some_and(|ending| ending == "timeindex") {
                std::fs::remove_file(&file).with_context(|| file.display().to_string())?;
                removed += 1;
            }
        }
    }
    holds("no time index in any of the logs", removed > 0)?;
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
        to.create(&topic, 1, &[])?;
        to.append(
            &topic,
            &Batch::stamped(&[(time() + 10, "a"), (time() + 30, "b"), (time() + 20, "c")]).codec(codec),
        )?;
        to.append(&topic, &Batch::stamped(&[(time() + 30, "later"), (time() + 5, "d")]).codec(codec))?;
        topics.push(topic);
    }
    let appended = stage.name("appended");
    to.create(&appended, 1, &[("message.timestamp.type", "LogAppendTime")])?;
    to.append(&appended, &Batch::stamped(&[(time(), "a"), (time(), "b")]))?;
    for restarted in [false, true] {
        for topic in &topics {
            let found = to.offset_at(topic, 0, -3)?;
            let got = (found.error, found.offset, found.timestamp);
            equal(&format!("{topic}, restarted: {restarted}"), got, (0, 1, time() + 30))?;
        }
        equal("LogAppendTime", to.offset_at(&appended, 0, -3)?.offset, 0)?;
        if !restarted {
            stage.broker.restart()?;
            to = stage.connect()?;
            for topic in topics.iter().chain([&appended]) {
                to.wait_led(topic, 1)?;
            }
        }
    }
    Ok(())
}
