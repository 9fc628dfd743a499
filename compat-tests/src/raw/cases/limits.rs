//! Many connections, readers that do not read, storms of requests, and connections that have fallen silent.

use std::time::{Duration, Instant};

use anyhow::{Context, Result};
use rustix::process::{Resource, Rlimit, getrlimit, setrlimit};

use crate::raw::Case;
use crate::raw::ask::records::{Fetch, Want};
use crate::raw::batch::Batch;
use crate::raw::conn::{Connection, key};
use crate::raw::expect::holds;
use crate::raw::stage::{Stage, skip, time};
use crate::raw::wire::W;
use crate::target::{Broker, Kind};
use crate::wait;

pub const CASES: &[Case] = &[
    Case {
        name: "limits-silent-connections",
        proves: "10,000 connections that say nothing (2,000 unless --full) cost little memory, others are served meanwhile, and their descriptors come back",
        run: silent,
    },
    Case {
        name: "limits-client-that-never-reads",
        proves: "clients that ask for much and never read cost bounded memory; others are served meanwhile",
        run: never_reads,
    },
    Case {
        name: "limits-metadata-storm",
        proves: "hundreds of sockets asking for all of many partitions at once, half of them never reading: bounded memory, a producer goes on (B070)",
        run: storm,
    },
    Case {
        name: "limits-large-frames-announced",
        proves: "a hundred connections that announce 90 MB each and send little do not get that much memory",
        run: announced,
    },
    Case {
        name: "limits-idle-connections-closed",
        proves: "connections.max.idle.ms closes a silent connection in order, and not one whose fetch waits (B077)",
        run: idle,
    },
];

/// Resident memory of a process in bytes.
pub fn resident(pid: i32) -> Result<u64> {
    let status = std::fs::read_to_string(format!("/proc/{pid}/status"))?;
    let line = status.lines().find(|line| line.starts_with("VmRSS:")).context("no VmRSS")?;
    let kib: u64 = line.split_whitespace().nth(1).context("no figure")?.parse()?;
    Ok(kib * 1024)
}

/// Lets this process hold many sockets.
pub fn raise_descriptor_limit(wanted: u64) -> Result<()> {
    let limit = getrlimit(Resource::Nofile);
    if limit.current.is_none_or(|current| current >= wanted) {
        return Ok(());
    }
    let maximum = limit.maximum.map_or(wanted, |maximum| maximum.max(wanted));
    setrlimit(Resource::Nofile, Rlimit { current: Some(wanted), maximum: Some(maximum) })?;
    Ok(())
}

/// Produces on a connection of its own and answers how long the slowest of ten took.
fn slowest_produce(stage: &Stage, topic: &str) -> Result<Duration> {
    let mut to = stage.connect()?;
    let mut slowest = Duration::ZERO;
    for _ in 0..10 {
        let started = Instant::now();
        to.append(topic, &Batch::of(&["x"], time()))?;
        slowest = slowest.max(started.elapsed());
    }
    Ok(slowest)
}

fn within(what: &str, got: u64, limit: u64) -> Result<()> {
    holds(&format!("{what}: {} MiB, {} MiB allowed", got >> 20, limit >> 20), got <= limit)
}

fn silent(stage: &mut Stage) -> Result<()> {
    let count = if stage.full { 10_000 } else { 2_000 };
    raise_descriptor_limit(count + 1_000)?;
    let topic = stage.name("t");
    stage.connect()?.create(&topic, 1, &[])?;
    let pid = stage.broker.pid().context("no broker")?;
    let before = resident(pid)?;
    let descriptors = || Ok::<_, anyhow::Error>(std::fs::read_dir(format!("/proc/{pid}/fd"))?.count());
    let open_before = descriptors()?;
    let mut quiet = Vec::new();
    for number in 0..count {
        let mut to = stage.connect().with_context(|| format!("connection {number}"))?;
        if number % 2 == 0 {
            // Half of them say a little: the start of a frame.
            to.send_raw(&[0, 0, 0, 50, 0, 3])?;
        }
        quiet.push(to);
    }
    let slowest = slowest_produce(stage, &topic)?;
    holds(&format!("a produce took {slowest:?}"), slowest < Duration::from_secs(2))?;
    if stage.broker.kind() == Kind::Felix {
        within("memory for silent connections", resident(pid)?.saturating_sub(before), count * 16_384)?;
    }
    drop(quiet);
    wait::until("their descriptors to come back", Duration::from_secs(20), || {
        Ok((descriptors()? <= open_before + 20).then_some(()))
    })
}

fn never_reads(stage: &mut Stage) -> Result<()> {
    let topic = stage.name("t");
    let mut to = stage.connect()?;
    to.create(&topic, 1, &[])?;
    let large = "x".repeat(900_000);
    for _ in 0..20 {
        to.append(&topic, &Batch::of(&[&large], time()))?;
    }
    let pid = stage.broker.pid().context("no broker")?;
    let before = resident(pid)?;
    let body = Fetch::now(vec![Want { max_bytes: 20 << 20, ..Want::of(&topic, 0) }]).body();
    let mut deaf = Vec::new();
    for _ in 0..20 {
        let mut to = stage.connect()?;
        // 18 MB an answer, 50 asked for on each of 20 connections: 18 GB if anything were kept.
        for _ in 0..50 {
            to.send(key::FETCH, 11, &body)?;
        }
        deaf.push(to);
    }
    for _ in 0..3 {
        let slowest = slowest_produce(stage, &topic)?;
        holds(&format!("a produce took {slowest:?}"), slowest < Duration::from_secs(3))?;
    }
    if stage.broker.kind() == Kind::Felix {
        within("memory for clients that do not read", resident(pid)?.saturating_sub(before), 600 << 20)?;
    }
    Ok(())
}

fn storm(stage: &mut Stage) -> Result<()> {
    let (partitions, sockets) = if stage.full { (5_000, 1_000) } else { (600, 200) };
    raise_descriptor_limit(sockets + 1_000)?;
    let (wide, topic) = (stage.name("wide"), stage.name("t"));
    let mut to = stage.connect()?;
    to.patience(Duration::from_secs(60))?;
    to.create(&topic, 1, &[])?;
    for part in 0..partitions / 100 {
        equal_created(&mut to, &format!("{wide}-{part}"), 100)?;
    }
    let pid = stage.broker.pid().context("no broker")?;
    let before = resident(pid)?;
    let mut asking = Vec::new();
    for number in 0..sockets {
        let mut to = stage.connect()?;
        let mut due = Vec::new();
        for _ in 0..10 {
            due.push(to.send(
                key::METADATA,
                9,
                &W::new().carray(0).raw(&[]).bool(false).bool(false).bool(false).tags(),
            )?);
            due.push(to.send(key::METADATA, 1, &W::new().i32(-1))?);
        }
        asking.push((number % 2 == 0, to, due));
    }
    let slowest = slowest_produce(stage, &topic)?;
    holds(&format!("a produce took {slowest:?} in the storm"), slowest < Duration::from_secs(5))?;
    for (reads, to, due) in &mut asking {
        if *reads {
            to.patience(Duration::from_secs(30))?;
            for pair in due.chunks(2) {
                to.receive_for(pair[0], key::METADATA, 9)?;
                to.receive_for(pair[1], key::METADATA, 1)?;
            }
        }
    }
    if stage.broker.kind() == Kind::Felix {
        within("memory in a storm", resident(pid)?.saturating_sub(before), 500 << 20)?;
    }
    drop(asking);
    let started = Instant::now();
    let slowest = slowest_produce(stage, &topic)?;
    holds(
        &format!("{slowest:?} and {:?} after the storm", started.elapsed()),
        slowest < Duration::from_secs(2),
    )?;
    for part in 0..partitions / 100 {
        to.delete(&format!("{wide}-{part}"))?;
    }
    Ok(())
}

fn equal_created(to: &mut Connection, topic: &str, partitions: i32) -> Result<()> {
    crate::raw::expect::equal("created", to.try_create(topic, partitions, &[])?, 0)
}

fn announced(stage: &mut Stage) -> Result<()> {
    let topic = stage.name("t");
    stage.connect()?.create(&topic, 1, &[])?;
    let pid = stage.broker.pid().context("no broker")?;
    let before = resident(pid)?;
    let mut liars = Vec::new();
    for _ in 0..100 {
        let mut to = stage.connect()?;
        to.send_raw(&(90_i32 << 20).to_be_bytes())?;
        // The broker may close at once, then the rest is not taken.
        let _ = to.send_raw(&vec![0; 10_000]);
        liars.push(to);
    }
    let slowest = slowest_produce(stage, &topic)?;
    holds(&format!("a produce took {slowest:?}"), slowest < Duration::from_secs(3))?;
    if stage.broker.kind() == Kind::Felix {
        within("memory for announced frames", resident(pid)?.saturating_sub(before), 200 << 20)?;
    }
    Ok(())
}

fn idle(stage: &mut Stage) -> Result<()> {
    if stage.broker.kind() == Kind::Kafka {
        return skip("Apache Kafka closes waiting fetches, too");
    }
    let settings = [("connections.max.idle.ms".to_owned(), "2000".to_owned())];
    let broker = Broker::start(&stage.origin, "raw-idle", &settings)?;
    let mut quiet = Connection::open(broker.address(), Duration::from_secs(10))?;
    let mut waiting = Connection::open(broker.address(), Duration::from_secs(10))?;
    quiet.create("t", 1, &[])?;
    let since = Instant::now();
    let fetch = Fetch { max_wait: 5_000, min_bytes: 1, ..Fetch::now(vec![Want::of("t", 0)]) };
    let correlation = waiting.send(key::FETCH, 11, &fetch.body())?;
    quiet.expect_close()?;
    let closed = since.elapsed();
    holds(&format!("closed after {closed:?}"), (1_900..5_000).contains(&closed.as_millis()))?;
    waiting.receive_for(correlation, key::FETCH, 11).context("the fetch that waits")?;
    holds(&format!("the fetch waited {:?}", since.elapsed()), since.elapsed() >= Duration::from_millis(4_900))
}
