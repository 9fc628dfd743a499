//! Compacted topics: what is left, what clients see, what a kill leaves, when tombstones go; and the topic of committed offsets, which is one.

use std::path::Path;
use std::time::{Duration, Instant};

use anyhow::{Context, Result};

use crate::raw::Case;
use crate::raw::ask::records::{Fetch, Keyed, Want};
use crate::raw::compacted::{self, SOON, Writer};
use crate::raw::conn::Connection;
use crate::raw::expect::{equal, holds};
use crate::raw::stage::Stage;
use crate::target::{Broker, Kind};
use crate::wait;

pub const CASES: &[Case] = &[
    Case {
        name: "compaction-survivors",
        proves: "of a log in every codec, over several segments, exactly the newest record of each key stays, tombstones included, at its offset; from every offset in a hole a fetch leads on, over a million of them too; also after a restart and a kill (B058)",
        run: survivors,
    },
    Case {
        name: "compaction-killed",
        proves: "kill -9 six times while segments are written anew: each time the newest record of every key is there, and in the end nothing else",
        run: killed,
    },
    Case {
        name: "compaction-tombstones",
        proves: "a tombstone stays for delete.retention.ms after the round that found it, however often the log is compacted, and goes then; its value never comes back",
        run: tombstones,
    },
    Case {
        name: "compaction-offsets-topic",
        proves: "__consumer_offsets has Kafka's settings and is compacted; offsets committed before are there afterwards, deleted groups and offsets are not, also after kill -9 (B021)",
        run: offsets_topic,
    },
];

const PATIENCE: Duration = Duration::from_secs(20);

fn settings(pairs: &[(&str, &str)]) -> Vec<(String, String)> {
    pairs.iter().map(|(name, value)| ((*name).to_owned(), (*value).to_owned())).collect()
}

fn survivors(stage: &mut Stage) -> Result<()> {
    let mut broker = Broker::start(&stage.origin, "raw-compaction-survivors", &[])?;
    let mut to = Connection::open(broker.address(), PATIENCE)?;
    let topic = stage.name("t");
    let left = compacted::prepare(&mut to, &topic)?;
    let end = left.last().context("nothing is left")?.0 + 1;
    holds("a hole of a million offsets", end > 1_000_000)?;
    for restart in 0..3 {
        match restart {
            1 => broker.restart()?,
            2 => broker.kill_and_restart()?,
            _ => {}
        }
        to = Connection::open(broker.address(), PATIENCE)?;
        to.wait_led(&topic, 1)?;
        equal(&format!("records, restart {restart}"), to.read_keyed(&topic, 0)?, left.clone())?;
        equal("end", to.end_of(&topic)?, end)?;
        // Every offset of the small holes, some of the wide one, and around its ends.
        let wide = (0..100).map(|at| 70 + at * 9_999);
        for from in (0..80).chain(wide).chain(end - 60..end) {
            leads_on(&mut to, &topic, from, &left)?;
        }
    }
    broker.stop()?;
    verify(&broker)
}

/// The first batches from there on are whole, end behind the offset, and the next record is the first of those that are left.
fn leads_on(to: &mut Connection, topic: &str, from: i64, left: &[Keyed]) -> Result<()> {
    let mut next = from;
    loop {
        let one = Fetch { max_bytes: 1, ..Fetch::now(vec![Want::of(topic, next)]) };
        let fetched = to.fetch(&one)?;
        let batches = fetched.only()?.batches()?;
        let last = batches.last().with_context(|| format!("nothing at {next}"))?;
        holds(&format!("{} is behind {next}", last.next()), last.next() > next)?;
        let offsets = batches
            .iter()
            .flat_map(|batch| batch.records.iter().map(|record| batch.base_offset + record.delta));
        if let Some(found) = offsets.filter(|offset| *offset >= from).min() {
            let wanted = left.iter().map(|(offset, ..)| *offset).find(|offset| *offset >= from);
            return equal(&format!("the first record from {from} on"), Some(found), wanted);
        }
        next = last.next();
    }
}

/// `felix verify` finds nothing wrong; Apache Kafka has no such thing.
fn verify(broker: &Broker) -> Result<()> {
    if broker.kind() == Kind::Kafka {
        return Ok(());
    }
    let output = std::process::Command::new(broker.binary()).arg("verify").arg(broker.data_dir()).output()?;
    let said = String::from_utf8_lossy(&output.stdout).into_owned();
    holds(&format!("felix verify: {said}"), output.status.success())
}

/// Whether segments are being written anew in a folder.
fn is_being_compacted(folder: &Path) -> Result<bool> {
    let names = std::fs::read_dir(folder)?.filter_map(|entry| entry.ok()?.file_name().into_string().ok());
    Ok(names.into_iter().any(|name| name.ends_with(".log.cleaned") || name.ends_with(".log.swap")))
}

/// How often a kill waits for the cleaner.
const MOST_ROUNDS: usize = 8;

fn killed(stage: &mut Stage) -> Result<()> {
    // Rounds are to take long enough to be met: the cleaner is slowed down after each buffer, so that buffers must be small for files to be
    // on their way for long.
    let slow = settings(&[
        ("log.cleaner.io.max.bytes.per.second", "1000000.0"),
        ("log.cleaner.io.buffer.size", "8192"),
    ]);
    let mut broker = Broker::start(&stage.origin, "raw-compaction-killed", &slow)?;
    let mut to = Connection::open(broker.address(), PATIENCE)?;
    let topic = stage.name("t");
    let id = to.create(&topic, 1, &compacted::settings())?;
    let folder = broker.partition_dir(&topic, &stage.text_id(id), 0)?;
    let mut writer = Writer::new(&topic);
    let value = "v".repeat(2_000);
    let times = if broker.kind() == Kind::Kafka { 3 } else { 6 };
    for round in 0..times {
        // A round that was over before anybody looked is followed by another.
        let mut met = false;
        'met: for again in 0..MOST_ROUNDS {
            for batch in 0..20 {
                let keys: Vec<String> =
                    (0..20).map(|at| format!("k{}", (batch * 7 + at * 3 + round) % 90)).collect();
                let value = format!("{round}-{again}-{batch}-{value}");
                let records: Vec<_> = keys.iter().map(|key| (key.as_str(), Some(value.as_str()))).collect();
                writer.send(&mut to, [0, 3, 4][batch % 3], &records)?;
                if batch % 4 == 3 {
                    writer.close_segment();
                }
                // On a slow machine everything that was closed is compacted before the last batch is written.
                met = is_being_compacted(&folder)?;
                if met {
                    break 'met;
                }
            }
            writer.close(&mut to)?;
            let look = || Ok(is_being_compacted(&folder)?.then_some(()));
            met = wait::until("segments that are written anew", Duration::from_secs(5), look).is_ok();
            if met {
                break 'met;
            }
        }
        holds(&format!("segments are written anew, round {round}"), met)?;
        broker.kill_and_restart()?;
        to = Connection::open(broker.address(), PATIENCE)?;
        to.wait_led(&topic, 1)?;
        let read = to.read_keyed(&topic, 0)?;
        holds("offsets rise", read.is_sorted_by(|a, b| a.0 < b.0))?;
        let written = writer.written();
        let strange = read.iter().find(|record| written.binary_search(record).is_err());
        equal(&format!("a record that nobody wrote, round {round}"), strange, None)?;
        for record in writer.survivors() {
            holds(&format!("{} {} is there, round {round}", record.0, record.1), read.contains(&record))?;
        }
    }
    writer.close(&mut to)?;
    writer.wait_compacted(&mut to)?;
    broker.stop()?;
    verify(&broker)
}

fn tombstones(stage: &mut Stage) -> Result<()> {
    const KEPT: Duration = Duration::from_secs(4);
    let mut to = stage.connect()?;
    let topic = stage.name("t");
    to.create(&topic, 1, &compacted::settings())?;
    equal("retention", to.alter(&topic, "delete.retention.ms", 0, Some(&KEPT.as_millis().to_string()))?, 0)?;
    let mut writer = Writer::new(&topic);
    writer.send(&mut to, 0, &[("gone", Some("first")), ("stays", Some("first"))])?;
    writer.close_segment();
    writer.send(&mut to, 4, &[("gone", None), ("gone too", None), ("stays", Some("second"))])?;
    let since = Instant::now();
    writer.close(&mut to)?;
    let of = |records: &[Keyed], key: &str| -> Vec<Option<String>> {
        records.iter().filter(|(_, of, _)| of == key).map(|(.., value)| value.clone()).collect()
    };
    wait::until("the first round", SOON, || {
        let read = to.read_keyed(&topic, 0)?;
        Ok((of(&read, "gone") == [None] && of(&read, "stays").len() == 1).then_some(()))
    })?;
    // Rounds go on, each finding something; until its time has passed the tombstone stays through all of them.
    let mut rounds = 0;
    let gone = wait::until("the tombstones to go", SOON, || {
        writer.send(&mut to, 0, &[("stays", Some("again"))])?;
        writer.close(&mut to)?;
        rounds += 1;
        let asked = since.elapsed();
        let read = to.read_keyed(&topic, 0)?;
        holds("no value of a removed key", of(&read, "gone").iter().all(Option::is_none))?;
        let left = [of(&read, "gone").len(), of(&read, "gone too").len()];
        if asked < KEPT {
            // It cannot be due before that time has passed since it was written.
            holds(&format!("{left:?} tombstones after {asked:?}"), left == [1, 1])?;
        }
        Ok((left == [0, 0]).then_some(since.elapsed()))
    })?;
    holds(&format!("{rounds} rounds until {gone:?}"), rounds > 3 && gone >= KEPT)?;
    equal("what stays", of(&to.read_keyed(&topic, 0)?, "stays").pop(), Some(Some("again".to_owned())))
}

const OFFSETS: &str = "__consumer_offsets";

fn offsets_topic(stage: &mut Stage) -> Result<()> {
    let mut to = stage.connect()?;
    to.coordinator("anyone")?;
    let configs = to.configs(2, OFFSETS)?;
    for (name, expected) in [
        ("cleanup.policy", "compact"),
        ("compression.type", "producer"),
        ("segment.bytes", "104857600"),
        ("retention.ms", "604800000"),
        ("delete.retention.ms", "86400000"),
        ("min.cleanable.dirty.ratio", "0.5"),
        ("min.compaction.lag.ms", "0"),
        ("max.compaction.lag.ms", "9223372036854775807"),
    ] {
        let found = configs.iter().find(|(known, ..)| known == name).and_then(|(_, value, ..)| value.clone());
        equal(name, found.as_deref(), Some(expected))?;
    }
    // Kafka's way of telling which of them the topic itself sets.
    let mut own: Vec<&str> =
        configs.iter().filter(|(.., source, _)| *source == 1).map(|(name, ..)| name.as_str()).collect();
    own.sort_unstable();
    equal("settings of its own", own, vec!["cleanup.policy", "compression.type", "segment.bytes"])?;
    compacted_offsets(stage)
}

fn compacted_offsets(stage: &mut Stage) -> Result<()> {
    let small = settings(&[
        ("offsets.topic.num.partitions", "1"),
        ("offsets.topic.segment.bytes", "1048576"),
        ("log.cleaner.min.cleanable.ratio", "0.01"),
    ]);
    let mut broker = Broker::start(&stage.origin, "raw-compaction-offsets", &small)?;
    let mut to = Connection::open(broker.address(), PATIENCE)?;
    to.create("t", 1, &[])?;
    for group in ["kept", "deleted", "forgotten", "busy"] {
        to.coordinator(group)?;
    }
    for (group, offset) in [("kept", 7), ("deleted", 8), ("forgotten", 9)] {
        equal("commit", to.commit(group, "t", offset)?, 0)?;
    }
    let id = to.wait_led(OFFSETS, 1)?;
    let folder = broker.partition_dir(OFFSETS, &stage.text_id(id), 0)?;
    busy(&mut to, 0)?;
    equal("delete the group", to.delete_group("deleted")?, 0)?;
    let since = Instant::now();
    equal("forget the offset", to.delete_offset("forgotten", "t")?, 0)?;
    for restart in 1..3 {
        broker.kill_and_restart()?;
        to = Connection::open(broker.address(), PATIENCE)?;
        is_as_committed(&mut to, restart)?;
        busy(&mut to, restart)?;
        shrinks(&folder).with_context(|| format!("{:?} after the first deletion", since.elapsed()))?;
        is_as_committed(&mut to, restart + 1)?;
    }
    broker.restart()?;
    to = Connection::open(broker.address(), PATIENCE)?;
    is_as_committed(&mut to, 3)?;
    broker.stop()?;
    verify(&broker)
}

const COMMITS: i64 = 700;

/// Commits offsets over and over: some megabytes, all of one key.
fn busy(to: &mut Connection, round: i64) -> Result<()> {
    let metadata = "m".repeat(4_000);
    for offset in round * COMMITS..(round + 1) * COMMITS {
        equal("commit", to.commit_as("busy", -1, "", "t", offset, &metadata)?, 0)?;
    }
    Ok(())
}

/// Waits until the segments of the topic hold next to nothing beside what is being written.
fn shrinks(folder: &Path) -> Result<()> {
    let mut bytes = 0;
    wait::until("the topic of committed offsets to be compacted", SOON, || {
        bytes = 0;
        for entry in std::fs::read_dir(folder)? {
            let path = entry?.path();
            if path.extension().is_some_and(|ending| ending == "log") {
                // It may go at any time.
                bytes += std::fs::metadata(&path).map_or(0, |metadata| metadata.len());
            }
        }
        Ok((bytes < 1_200_000).then_some(()))
    })
    .with_context(|| format!("{bytes} bytes"))
}

fn is_as_committed(to: &mut Connection, rounds: i64) -> Result<()> {
    for (group, expected) in [("kept", 7), ("deleted", -1), ("forgotten", -1), ("busy", rounds * COMMITS - 1)]
    {
        to.coordinator(group)?;
        equal(&format!("{group} after {rounds} rounds"), to.committed_offset(group, "t")?, expected)?;
    }
    let groups = to.groups()?;
    equal("the deleted group is listed", groups.iter().any(|group| group == "deleted"), false)
}
