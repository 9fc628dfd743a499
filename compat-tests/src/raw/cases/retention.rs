//! What leaves a log by age and size, whatever times its records claim.

use std::path::Path;
use std::time::Duration;

use anyhow::Result;

use crate::raw::Case;
use crate::raw::ask::code;
use crate::raw::batch::Batch;
use crate::raw::conn::Connection;
use crate::raw::expect::{equal, holds};
use crate::raw::stage::{Stage, now_ms};
use crate::target::{Broker, Kind};
use crate::wait;

pub const CASES: &[Case] = &[
    Case {
        name: "retention-by-time",
        proves: "records 30 days old, without a time, of 1970 and of the year 50000: what may be produced, and that exactly what retention.ms says leaves, also after a restart and a kill (B048)",
        run: by_time,
    },
    Case {
        name: "retention-of-the-future",
        proves: "a segment whose records claim a time to come ages with its file: it goes, and holds back nothing behind it (B048)",
        run: future,
    },
    Case {
        name: "retention-after-delete-records",
        proves: "with the start inside of a batch, fast rolls and retention by time: the log goes on at its end, its files and its size go down (B046)",
        run: after_delete,
    },
];

const DAY: i64 = 86_400_000;
/// Within this, retention has looked at everything several times.
const SOON: Duration = Duration::from_secs(40);

fn settings() -> Vec<(String, String)> {
    // Apache Kafka begins with housekeeping only after this.
    [
        ("log.retention.check.interval.ms", "100"),
        ("log.initial.task.delay.ms", "100"),
        ("log.segment.delete.delay.ms", "0"),
    ]
    .map(|(name, value)| (name.to_owned(), value.to_owned()))
    .to_vec()
}

fn start_of(to: &mut Connection, topic: &str) -> Result<i64> {
    Ok(to.offset_at(topic, 0, -2)?.offset)
}

fn wait_start(to: &mut Connection, topic: &str, start: i64) -> Result<()> {
    wait::until(&format!("the start {start} of {topic}"), SOON, || {
        Ok((start_of(to, topic)? == start).then_some(()))
    })
}

fn produce_at(to: &mut Connection, topic: &str, timestamps: &[i64]) -> Result<i16> {
    let records: Vec<(i64, &str)> = timestamps.iter().map(|timestamp| (*timestamp, "value")).collect();
    Ok(to.produce(topic, &Batch::stamped(&records))?.error)
}

fn by_time(stage: &mut Stage) -> Result<()> {
    let mut broker = Broker::start(&stage.origin, "raw-retention-by-time", &settings())?;
    let mut to = Connection::open(broker.address(), Duration::from_secs(20))?;
    let now = now_ms();
    let micros = now * 1_000;
    // What may be produced: by default only the future is bounded.
    let bounded = stage.name("bounded");
    to.create(&bounded, 1, &[("retention.ms", "-1")])?;
    for (what, timestamp, expected) in [
        ("microseconds", micros, code::INVALID_TIMESTAMP),
        ("two hours ahead", now + 2 * 3_600_000, code::INVALID_TIMESTAMP),
        ("half an hour ahead", now + 1_800_000, 0),
        ("30 days old", now - 30 * DAY, 0),
        ("no time", -1, 0),
        ("1970", 0, 0),
    ] {
        equal(what, produce_at(&mut to, &bounded, &[timestamp])?, expected)?;
    }
    equal("bound", to.alter(&bounded, "message.timestamp.before.max.ms", 0, Some("3600000"))?, 0)?;
    equal("bound", to.alter(&bounded, "message.timestamp.after.max.ms", 0, Some("9223372036854775807"))?, 0)?;
    wait::until("the bounds", SOON, || {
        Ok((produce_at(&mut to, &bounded, &[0])? == code::INVALID_TIMESTAMP).then_some(()))
    })?;
    for (what, timestamp, expected) in [
        ("microseconds", micros, 0),
        ("30 days old", now - 30 * DAY, code::INVALID_TIMESTAMP),
        ("no time", -1, 0),
    ] {
        equal(what, produce_at(&mut to, &bounded, &[timestamp])?, expected)?;
    }
    // What leaves, with retention of seven days.
    let week = (7 * DAY).to_string();
    let anything = ("message.timestamp.after.max.ms", "9223372036854775807");
    let mut made = Vec::new();
    for (what, timestamps, leaves) in [
        ("old", vec![now - 30 * DAY, now - 20 * DAY], true),
        ("first", vec![0, 1], true),
        ("mixed", vec![now - 30 * DAY, now], false),
        ("now", vec![now], false),
        ("timeless", vec![-1, -1], false),
        ("ahead", vec![micros], false),
    ] {
        let topic = stage.name(what);
        to.create(&topic, 1, &[("retention.ms", &week), anything])?;
        equal(what, produce_at(&mut to, &topic, &timestamps)?, 0)?;
        made.push((topic, i64::try_from(timestamps.len())?, leaves));
    }
    for (topic, end, _) in made.iter().filter(|(.., leaves)| *leaves) {
        wait_start(&mut to, topic, *end)?;
        equal("end", to.end_of(topic)?, *end)?;
    }
    for restart in 0..3 {
        match restart {
            1 => broker.restart()?,
            2 => broker.kill_and_restart()?,
            _ => {}
        }
        to = Connection::open(broker.address(), Duration::from_secs(20))?;
        for (topic, end, leaves) in &made {
            to.wait_led(topic, 1)?;
            let start = start_of(&mut to, topic)?;
            equal(&format!("start of {topic}, restart {restart}"), start, if *leaves { *end } else { 0 })?;
            equal(&format!("end of {topic}, restart {restart}"), to.end_of(topic)?, *end)?;
        }
    }
    // Nothing of what stays went meanwhile, and what went does not number anew.
    for (topic, end, _) in &made {
        equal(topic, to.append(topic, &Batch::stamped(&[(now, "on")]))?, *end)?;
    }
    broker.stop()
}

fn future(stage: &mut Stage) -> Result<()> {
    if stage.broker.kind() == Kind::Kafka {
        // Its own way is to keep them, with a warning, unless they are copied to remote storage.
        return crate::raw::stage::skip("Apache Kafka keeps such a segment and all that lies behind it");
    }
    let mut broker = Broker::start(&stage.origin, "raw-retention-of-the-future", &settings())?;
    let mut to = Connection::open(broker.address(), Duration::from_secs(20))?;
    let topic = stage.name("t");
    let ahead = now_ms() * 1_000;
    to.create(
        &topic,
        1,
        &[
            ("retention.ms", "3600000"),
            ("segment.ms", "1"),
            ("message.timestamp.after.max.ms", "9223372036854775807"),
        ],
    )?;
    let mut end = 0;
    for timestamps in [&[ahead, ahead + 1][..], &[i64::MAX], &[now_ms()], &[now_ms() + 1_000]] {
        equal("produce", produce_at(&mut to, &topic, timestamps)?, 0)?;
        end += i64::try_from(timestamps.len())?;
    }
    equal("found by time", to.offset_at(&topic, 0, ahead + 1)?.offset, 1)?;
    equal("greatest", to.offset_at(&topic, 0, -3)?.timestamp, i64::MAX)?;
    broker.restart()?;
    to = Connection::open(broker.address(), Duration::from_secs(20))?;
    to.wait_led(&topic, 1)?;
    equal("greatest after a restart", to.offset_at(&topic, 0, -3)?.timestamp, i64::MAX)?;
    equal("nothing is an hour old", start_of(&mut to, &topic)?, 0)?;
    equal("a second", to.alter(&topic, "retention.ms", 0, Some("1000"))?, 0)?;
    wait_start(&mut to, &topic, end)?;
    equal("goes on", to.append(&topic, &Batch::stamped(&[(now_ms(), "on")]))?, end)?;
    broker.stop()
}

/// Bytes in the segments of a folder.
fn segment_bytes(folder: &Path) -> Result<u64> {
    let mut bytes = 0;
    for entry in std::fs::read_dir(folder)? {
        let path = entry?.path();
        if path.file_name().is_some_and(|name| name.to_string_lossy().contains(".log")) {
            // It may go at any time.
            bytes += std::fs::metadata(&path).map_or(0, |metadata| metadata.len());
        }
    }
    Ok(bytes)
}

fn after_delete(stage: &mut Stage) -> Result<()> {
    let mut broker = Broker::start(&stage.origin, "raw-retention-after-delete", &settings())?;
    let mut to = Connection::open(broker.address(), Duration::from_secs(20))?;
    let topic = stage.name("t");
    let id = to.create(&topic, 1, &[("segment.bytes", "1048576"), ("retention.ms", "-1")])?;
    let folder = broker.partition_dir(&topic, &stage.text_id(id), 0)?;
    let value = "v".repeat(9_000);
    let batch = |to: &mut Connection| -> Result<i64> {
        let records: Vec<(i64, &str)> = (0..100).map(|_| (now_ms(), value.as_str())).collect();
        to.append(&topic, &Batch::stamped(&records))
    };
    for at in 0..5 {
        equal("base", batch(&mut to)?, at * 100)?;
    }
    holds("five segments", segment_bytes(&folder)? > 4_000_000)?;
    equal("to the middle of the third batch", to.delete_records(&topic, 250)?, (0, 250))?;
    wait::until(
        "the segments below to go",
        SOON,
        || Ok((segment_bytes(&folder)? < 3_000_000).then_some(())),
    )?;
    for restart in 0..3 {
        match restart {
            1 => broker.restart()?,
            2 => broker.kill_and_restart()?,
            _ => {}
        }
        to = Connection::open(broker.address(), Duration::from_secs(20))?;
        to.wait_led(&topic, 1)?;
        equal(&format!("start, restart {restart}"), start_of(&mut to, &topic)?, 250)?;
        let read = to.read_all(&topic, 250)?;
        equal("records", (read.len(), read.first().map(|(offset, _)| *offset)), (250, Some(250)))?;
    }
    equal("a second", to.alter(&topic, "retention.ms", 0, Some("1000"))?, 0)?;
    equal("fast rolls", to.alter(&topic, "segment.ms", 0, Some("500"))?, 0)?;
    wait_start(&mut to, &topic, 500)?;
    wait::until("the space to come back", SOON, || Ok((segment_bytes(&folder)? == 0).then_some(())))?;
    equal("nothing left", to.delete_records(&topic, -1)?, (0, 500))?;
    equal("goes on", batch(&mut to)?, 500)?;
    wait_start(&mut to, &topic, 600)?;
    broker.kill_and_restart()?;
    to = Connection::open(broker.address(), Duration::from_secs(20))?;
    to.wait_led(&topic, 1)?;
    equal("start in the end", start_of(&mut to, &topic)?, 600)?;
    equal("the end is not forgotten", batch(&mut to)?, 600)?;
    broker.stop()
}
