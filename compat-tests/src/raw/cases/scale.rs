//! Many partitions on one node, and logs much larger than what a start may read.

use std::collections::BTreeMap;
use std::fs::OpenOptions;
use std::time::{Duration, Instant};

use anyhow::{Context, Result};

use super::limits::{raise_descriptor_limit, resident};
use crate::raw::Case;
use crate::raw::batch::Batch;
use crate::raw::conn::{Connection, key};
use crate::raw::expect::{equal, holds};
use crate::raw::stage::{Stage, skip, time};
use crate::raw::wire::W;
use crate::target::{Broker, Kind};
use crate::wait;

pub const CASES: &[Case] = &[
    Case {
        name: "scale-many-partitions",
        proves: "10,000 partitions (1,000 unless --full) made in one request and in many, written, restarted and killed: all records are there, files, memory and threads stay bounded, idle ones cost no time",
        run: many,
    },
    Case {
        name: "scale-descriptors",
        proves: "with 512 descriptors, 600 partitions and more connections than fit: writes go on, the connections that are too many are turned away",
        run: descriptors,
    },
    Case {
        name: "scale-sealed-data-unread",
        proves: "a start over 100 GiB of closed segments reads next to nothing, after a stop and after a kill",
        run: sealed,
    },
];

/// Partitions named in one request.
const CHUNK: i32 = 500;
/// A start of many partitions may take so long before somebody looks.
const PATIENCE: Duration = Duration::from_secs(120);

fn connect(broker: &Broker) -> Result<Connection> {
    Connection::open(broker.address(), PATIENCE)
}

/// What the process uses.
#[derive(Debug)]
struct Use {
    resident: u64,
    files: usize,
    threads: usize,
    /// CPU time in hundredths of a second.
    ticks: u64,
    /// How often a thread went to sleep.
    sleeps: u64,
    /// Bytes read by system calls.
    read: u64,
}

fn number(text: &str, name: &str) -> Result<u64> {
    let line = text.lines().find_map(|line| line.strip_prefix(name)).with_context(|| format!("no {name}"))?;
    Ok(line.trim().trim_end_matches(" kB").parse()?)
}

/// Threads that begin when there is something for them: four readers, and those on which large requests take turns. None of
/// them is a partition's.
const LATE_THREADS: usize = 8;

fn usage(broker: &Broker) -> Result<Use> {
    let pid = broker.pid().context("no broker")?;
    let proc = format!("/proc/{pid}");
    let stat = std::fs::read_to_string(format!("{proc}/stat"))?;
    // Behind the name, which may hold anything.
    let fields: Vec<&str> = stat.rsplit(')').next().unwrap_or_default().split_whitespace().collect();
    let field = |at: usize| fields.get(at).context("a short stat")?.parse::<u64>().context("no number");
    let (mut threads, mut sleeps) = (0, 0);
    for task in std::fs::read_dir(format!("{proc}/task"))? {
        threads += 1;
        // It may end meanwhile.
        let status = std::fs::read_to_string(task?.path().join("status")).unwrap_or_default();
        sleeps += number(&status, "voluntary_ctxt_switches:").unwrap_or(0);
    }
    Ok(Use {
        resident: resident(pid)?,
        files: std::fs::read_dir(format!("{proc}/fd"))?.count(),
        threads,
        ticks: field(11)? + field(12)?,
        sleeps,
        read: number(&std::fs::read_to_string(format!("{proc}/io"))?, "rchar:")?,
    })
}

/// Error and offset of every partition of a topic.
fn offsets(to: &mut Connection, topic: &str, count: i32, timestamp: i64) -> Result<Vec<(i16, i64)>> {
    let mut found = BTreeMap::new();
    let mut body = W::new().i32(-1).i8(0).array(1).str(topic).array(usize::try_from(count)?);
    for partition in 0..count {
        body = body.i32(partition).i32(-1).i64(timestamp);
    }
    let mut answer = to.call(key::LIST_OFFSETS, 5, &body)?;
    answer.i32()?;
    answer.each(|topic| {
        topic.str()?;
        topic.each(|partition| {
            let (index, error) = (partition.i32()?, partition.i16()?);
            partition.i64()?;
            found.insert(index, (error, partition.i64()?));
            partition.i32()
        })
    })?;
    answer.end()?;
    equal("partitions in the answer", found.len(), usize::try_from(count)?)?;
    Ok(found.into_values().collect())
}

fn wait_led(to: &mut Connection, topics: &[(String, i32)]) -> Result<()> {
    for (topic, count) in topics {
        wait::until(&format!("leaders of {topic}"), PATIENCE, || {
            let all = offsets(to, topic, *count, -1)?;
            Ok(all.iter().all(|(error, _)| *error == 0).then_some(()))
        })?;
    }
    Ok(())
}

/// One record to every partition.
fn write_all(to: &mut Connection, topics: &[(String, i32)]) -> Result<()> {
    let bytes = Batch::of(&["a small record"], time()).encode()?;
    for (topic, count) in topics {
        for from in (0..*count).step_by(usize::try_from(CHUNK)?) {
            let upto = (from + CHUNK).min(*count);
            let mut body = W::new().nstr(None).i16(-1).i32(60_000).array(1).str(topic);
            body = body.array(usize::try_from(upto - from)?);
            for partition in from..upto {
                body = body.i32(partition).bytes(&bytes);
            }
            let mut answer = to.call(key::PRODUCE, 8, &body)?;
            answer.each(|topic| {
                topic.str()?;
                topic.each(|partition| {
                    let index = partition.i32()?;
                    equal(&format!("error of partition {index}"), partition.i16()?, 0)?;
                    partition.raw(24)?;
                    partition.each(|_| Ok(()))?;
                    partition.nstr()
                })
            })?;
        }
    }
    Ok(())
}

/// That every partition ends at `end` and that records are there to be read.
fn check_all(to: &mut Connection, topics: &[(String, i32)], end: i64, when: &str) -> Result<()> {
    for (topic, count) in topics {
        for (index, found) in offsets(to, topic, *count, -1)?.into_iter().enumerate() {
            equal(&format!("error and end of {topic}-{index} {when}"), found, (0, end))?;
        }
        let newest = offsets(to, topic, *count, time())?;
        holds(&format!("records of {topic} {when}"), newest.iter().all(|found| *found == (0, 0)))?;
    }
    Ok(())
}

/// Metadata of everything, and all pages of DescribeTopicPartitions.
fn describe_all(to: &mut Connection, partitions: usize) -> Result<()> {
    let mut answer = to.call(key::METADATA, 12, &W::new().carray(0).bool(false).bool(false).tags())?;
    // An empty array is none of them, a null one is all.
    holds("a short answer for no topic", answer.left() < 1_000)?;
    answer.i32()?;
    let all = to.call(key::METADATA, 12, &W::new().uvarint(0).bool(false).bool(false).tags())?;
    let each = all.left() / partitions;
    holds(&format!("{each} bytes of metadata for each partition"), each < 100)?;
    let mut cursor: Option<(String, i32)> = None;
    let mut seen = 0;
    loop {
        let body = W::new().carray(0).i32(2_000);
        let body = match &cursor {
            Some((topic, from)) => body.i8(1).cstr(topic).i32(*from).tags().tags(),
            None => body.i8(-1).tags(),
        };
        let mut answer = to.call(key::DESCRIBE_TOPIC_PARTITIONS, 0, &body)?;
        answer.i32()?;
        let mut here = 0;
        answer.ceach(|topic| {
            topic.i16()?;
            topic.cnstr()?;
            topic.uuid()?;
            topic.bool()?;
            topic.ceach(|partition| {
                here += 1;
                equal("error", partition.i16()?, 0)?;
                partition.raw(12)?;
                for _ in 0..5 {
                    partition.ceach(|replica| replica.i32())?;
                }
                partition.tags()
            })?;
            topic.i32()?;
            topic.tags()
        })?;
        holds(&format!("{here} partitions in a page"), here <= 2_000)?;
        seen += here;
        if answer.i8()? < 0 {
            break;
        }
        cursor = Some((answer.cstr()?, answer.i32()?));
    }
    // The topic of groups may be there too.
    holds(&format!("{seen} partitions described of {partitions}"), seen >= partitions)
}

fn many(stage: &mut Stage) -> Result<()> {
    if stage.broker.kind() == Kind::Kafka {
        return skip("Apache Kafka keeps files open and buffers mapped for every partition");
    }
    let count: i32 = if stage.full { 10_000 } else { 1_000 };
    let mut broker = Broker::start(&stage.origin, "raw-many-partitions", &[])?;
    let mut to = connect(&broker)?;
    let before = usage(&broker)?;
    let began = Instant::now();
    let mut topics = vec![(stage.name("wide"), count / 2)];
    topics.extend((0..10).map(|at| (stage.name(&format!("narrow-{at}")), count / 20)));
    for (topic, partitions) in &topics {
        equal(&format!("creating {topic}"), to.try_create(topic, *partitions, &[])?, 0)?;
    }
    wait_led(&mut to, &topics)?;
    let made = began.elapsed();
    write_all(&mut to, &topics)?;
    check_all(&mut to, &topics, 1, "at first")?;
    let written = usage(&broker)?;
    describe_all(&mut to, usize::try_from(count)?)?;
    let mut after = vec![("written", made, written)];
    for (when, clean) in [("stopped", true), ("killed", false), ("killed again", false)] {
        drop(to);
        if clean {
            broker.stop()?;
        } else {
            broker.kill();
        }
        let began = Instant::now();
        broker.start_again()?;
        to = connect(&broker)?;
        wait_led(&mut to, &topics)?;
        let took = began.elapsed();
        let used = usage(&broker)?;
        check_all(&mut to, &topics, 1, when)?;
        after.push((when, took, used));
    }
    // The last start recovered from the one before; writes go on everywhere.
    write_all(&mut to, &topics)?;
    check_all(&mut to, &topics, 2, "in the end")?;
    let partitions = u64::try_from(count)?;
    let small = before.resident;
    for (when, took, used) in &after {
        let each = used.resident.saturating_sub(small) / partitions;
        eprintln!("{count} partitions, {when}: {took:?}, {each} bytes resident each, {used:?}");
        holds(&format!("{each} bytes of memory for each partition, {when}"), each < 40 << 10)?;
        holds(&format!("{} open files, {when}", used.files), used.files < 2 * 2_048 + 64)?;
        holds(
            &format!("{} threads where there were {}, {when}", used.threads, before.threads),
            used.threads <= before.threads + LATE_THREADS,
        )?;
        holds(
            &format!("{} bytes read, {when}", used.read),
            *when == "written" || used.read < partitions * 20_000,
        )?;
    }
    idle(&broker)?;
    broker.stop()
}

/// Nothing happens in a broker that nobody asks: no timer for each partition.
fn idle(broker: &Broker) -> Result<()> {
    let window = |length: Duration| -> Result<(u64, u64)> {
        let (from, began) = (usage(broker)?, Instant::now());
        wait::until("a while", length * 10, || Ok((began.elapsed() >= length).then_some(())))?;
        let to = usage(broker)?;
        Ok((to.ticks - from.ticks, to.sleeps - from.sleeps))
    };
    // What was written just now is still being noted down.
    wait::until("an idle second", Duration::from_secs(30), || {
        let (ticks, sleeps) = window(Duration::from_secs(1))?;
        Ok((ticks <= 10 && sleeps <= 200).then_some(()))
    })
}

fn descriptors(stage: &mut Stage) -> Result<()> {
    if stage.broker.kind() == Kind::Kafka {
        return skip("Apache Kafka needs several descriptors for every partition");
    }
    if crate::process::on_path("prlimit").is_none() {
        return skip("prlimit is not installed");
    }
    raise_descriptor_limit(2_000)?;
    let mut broker = Broker::start(&stage.origin, "raw-descriptors", &[])?;
    broker.limit_descriptors(512);
    broker.restart()?;
    let mut to = connect(&broker)?;
    let topics = vec![(stage.name("t"), 600)];
    equal("creating", to.try_create(&topics[0].0, 600, &[])?, 0)?;
    wait_led(&mut to, &topics)?;
    write_all(&mut to, &topics)?;
    let mut crowd = Vec::new();
    for _ in 0..600 {
        crowd.push(Connection::open(broker.address(), PATIENCE)?);
    }
    // Those that were turned away are told so; those that were let in are served.
    let (mut served, mut turned_away) = (0, 0);
    for one in &mut crowd {
        match one.sees_a_broker() {
            Ok(_) => served += 1,
            Err(_) => turned_away += 1,
        }
    }
    holds(&format!("{served} connections are served, {turned_away} turned away"), served > 200)?;
    holds(&format!("{turned_away} connections are turned away"), turned_away > 50)?;
    for round in 2..4 {
        write_all(&mut to, &topics)?;
        check_all(&mut to, &topics, round, "in a crowd")?;
    }
    let used = usage(&broker)?;
    holds(&format!("{} descriptors", used.files), used.files <= 512)?;
    holds("the broker runs", broker.runs())?;
    drop(crowd);
    broker.kill_and_restart()?;
    let mut to = connect(&broker)?;
    wait_led(&mut to, &topics)?;
    check_all(&mut to, &topics, 3, "after a kill")?;
    broker.stop()
}

/// Closed segments that are mostly holes: a start that read them would read for minutes.
fn sealed(stage: &mut Stage) -> Result<()> {
    const PARTITIONS: i32 = 20;
    const HOLE: u64 = 5 << 30;
    if stage.broker.kind() == Kind::Kafka {
        return skip("the segments are made by Felix");
    }
    let mut broker = Broker::start(&stage.origin, "raw-sealed", &[])?;
    let mut to = connect(&broker)?;
    let topic = stage.name("t");
    let id = to.create(&topic, PARTITIONS, &[("segment.ms", "1"), ("flush.messages", "1")])?;
    let topics = vec![(topic.clone(), PARTITIONS)];
    let append = |to: &mut Connection, timestamp: i64| -> Result<()> {
        for partition in 0..PARTITIONS {
            let bytes = Batch::of(&["of a segment of its own"], timestamp).encode()?;
            equal("produce", to.produce_bytes(&topic, partition, &bytes)?.error, 0)?;
        }
        Ok(())
    };
    for at in 0..3 {
        append(&mut to, time() + at * 1_000)?;
    }
    broker.stop()?;
    let mut holes = 0;
    for partition in 0..PARTITIONS {
        let folder = broker.partition_dir(&topic, &stage.text_id(id), partition)?;
        let first = folder.join("00000000000000000000.log");
        OpenOptions::new().write(true).open(&first)?.set_len(HOLE)?;
        holes += HOLE;
        // It would tell that the segment is another.
        std::fs::remove_file(first.with_extension("seal")).or_else(|error| {
            if error.kind() == std::io::ErrorKind::NotFound { Ok(()) } else { Err(error) }
        })?;
    }
    holds("100 GiB", holes == 100 << 30)?;
    for when in ["stopped", "killed"] {
        broker.start_again()?;
        to = connect(&broker)?;
        wait_led(&mut to, &topics)?;
        let used = usage(&broker)?;
        eprintln!("100 GiB, {when}: {used:?}");
        holds(&format!("{} bytes read, {when}", used.read), used.read < 16 << 20)?;
        let end = if when == "stopped" { 3 } else { 4 };
        let ends = offsets(&mut to, &topic, PARTITIONS, -1)?;
        holds("the ends", ends.iter().all(|found| *found == (0, end)))?;
        append(&mut to, time() + 10_000 * end)?;
        broker.kill();
    }
    Ok(())
}
