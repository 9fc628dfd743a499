//! Topics with three replicas whose logs part, are passed by retention, or are large: what copies ship to each other so that they end equal.

use std::time::{Duration, Instant};

use anyhow::Result;

use crate::cluster::Case;
use crate::cluster::network::Place;
use crate::cluster::plan::Cluster;
use crate::cluster::stage::{Loader, Stage};
use crate::cluster::topics::{Journal, stored};
use crate::raw::ask::code;
use crate::raw::batch::Batch;
use crate::raw::conn::{Connection, key};
use crate::raw::expect::{equal, holds};
use crate::raw::stage::time;
use crate::wait;

pub const CASES: &[Case] = &[
    Case {
        name: "tails",
        proves: "under load from Java, a leader that took a short and a long tail with acks=1 while what it sends to its followers is lost, and was killed, returns after \
                 one, two and three changes of leader: the tails go, what was acknowledged with acks=all is there, all copies end equal",
        seconds: 180,
        run: tails,
    },
    Case {
        name: "retention-passed",
        proves: "a follower that is away while DeleteRecords, or retention.bytes, passes its position is begun anew by itself and becomes level; \
                 it leads with all that is left",
        seconds: 120,
        run: retention_passed,
    },
    Case {
        name: "large-failover",
        proves: "a failover of a large partition ships and reads less than 1 MiB beyond the tail that has to go, by counters",
        seconds: 150,
        run: large_failover,
    },
];

const ALL: [i32; 3] = [1, 2, 3];
const TAIL_LENGTHS: [usize; 2] = [3, 3_000];
const MIB: usize = 1 << 20;
/// How long a large batch may take: a copy that flaps is let in again a minute later.
const FILL: Duration = Duration::from_secs(90);

fn place(first: i32) -> Vec<i32> {
    (0..3).map(|at| (first - 1 + at) % 3 + 1).collect()
}

/// Loses everything that a broker sends to the others; what they send still arrives.
fn mute(cluster: &mut Cluster, broker: i32) -> Result<()> {
    for other in cluster.others(broker) {
        cluster.network.cut(Place::Broker(broker), Place::Broker(other))?;
    }
    Ok(())
}

/// Appends batches with acks=1 to a broker, so many records in all.
fn append_tail(cluster: &mut Cluster, at: i32, topic: &str, partition: i32, records: usize) -> Result<()> {
    let mut to = cluster.broker(at)?.connect()?;
    let mut left = records;
    while left > 0 {
        let values: Vec<String> = (0..left.min(100)).map(|at| format!("tail {}", left - at)).collect();
        let values: Vec<&str> = values.iter().map(String::as_str).collect();
        let body = Connection::produce_body(1, topic, partition, &Batch::of(&values, time()).encode()?);
        let produced = Connection::read_produced(to.call(key::PRODUCE, 8, &body)?)?;
        equal("appending with acks=1", produced.error, code::NONE)?;
        left -= values.len();
    }
    Ok(())
}

/// How often each partition of a topic has another leader than at first, by its generations.
fn changes(cluster: &mut Cluster, at: i32, topic: &str, first: &[i32]) -> Result<Vec<i32>> {
    let described = cluster.described(at, topic)?;
    Ok(described.iter().zip(first).map(|(now, first)| now.epoch - first).collect())
}

fn tails(stage: &Stage) -> Result<String> {
    let mut cluster = stage.plan().replicated().start()?;
    cluster.create_placed(1, "j", &[place(1), place(2), place(3)])?;
    let mut load = stage.loads_existing(&cluster, &[(Loader::Java, "j")], 3)?;
    let mut told = Vec::new();
    for wanted in 1..=3 {
        for repeat in 0..stage.rounds(1, 5) {
            told.push(one_tail(&mut cluster, wanted, &format!("t-{wanted}-{repeat}"))?);
            load.go_on()?;
        }
    }
    for topic in ["j", "__consumer_offsets"] {
        cluster.wait_in_sync(1, topic, &ALL)?;
    }
    let sent = load.finish()?;
    cluster.all_run()?;
    let compared = stage.verify_copies(&mut cluster, u64::try_from(told.len() * TAIL_LENGTHS.len() + 6)?)?;
    equal("batches that nobody has promised", compared.above, 0)?;
    Ok(format!("{}; {sent:?} records of a load; {compared}", told.join("; ")))
}

/// A leader with tails that returns after so many changes; what happened.
fn one_tail(cluster: &mut Cluster, wanted: i32, topic: &str) -> Result<String> {
    let first = wanted % 3 + 1;
    let partitions = TAIL_LENGTHS.len();
    let numbers = 0..i32::try_from(partitions)?;
    cluster.create_placed(1, topic, &vec![place(first); partitions])?;
    let mut journal = Journal::new(topic);
    let others = cluster.others(first);
    let [one, other] = others[..] else { anyhow::bail!("three brokers") };
    for number in numbers.clone() {
        equal("who leads", cluster.described(1, topic)?[usize::try_from(number)?].leader, first)?;
        for _ in 0..10 {
            journal.append_to_leader(cluster, first, number)?;
        }
    }
    let epochs: Vec<i32> = cluster.described(1, topic)?.iter().map(|partition| partition.epoch).collect();
    mute(cluster, first)?;
    for (number, length) in numbers.clone().zip(TAIL_LENGTHS) {
        append_tail(cluster, first, topic, number, length)?;
    }
    cluster.broker(first)?.kill();
    for number in 0..partitions {
        cluster.wait_leader(one, topic, number, Some(first))?;
    }
    // Not before: what the dead broker's kernel still has to send would arrive, and count.
    cluster.network.heal_all()?;
    loop {
        for number in numbers.clone() {
            cluster.wait_leader(one, topic, usize::try_from(number)?, Some(first))?;
        }
        cluster.wait_in_sync(one, topic, &others)?;
        for number in numbers.clone() {
            for _ in 0..10 {
                journal.append_to_leader(cluster, one, number)?;
            }
        }
        let done = changes(cluster, one, topic, &epochs)?;
        let Some(behind) = done.iter().position(|done| *done < wanted) else { break };
        let (leader, _) = cluster.wait_leader(one, topic, behind, None)?;
        let left = if leader == one { other } else { one };
        cluster.broker(leader)?.kill();
        cluster.wait_leader(left, topic, behind, Some(leader))?;
        cluster.broker(leader)?.start()?;
        cluster.wait_alive_as_seen_by(&others, &others)?;
    }
    let done = changes(cluster, one, topic, &epochs)?;
    let began = Instant::now();
    cluster.broker(first)?.start()?;
    cluster.wait_alive(&ALL)?;
    cluster.wait_in_sync(one, topic, &ALL)?;
    let took = began.elapsed();
    journal.check_as_seen_by(cluster, one)?;
    for number in numbers {
        let (leader, _) = cluster.wait_leader(one, topic, usize::try_from(number)?, None)?;
        let all = stored(&mut cluster.broker(leader)?.connect()?, topic, number)?;
        holds("no record of the tail is there", all.iter().all(|(_, _, value)| !value.starts_with("tail")))?;
    }
    Ok(format!("back after {done:?} changes, in sync {:.2} s after its start", took.as_secs_f64()))
}

fn retention_passed(stage: &Stage) -> Result<String> {
    let mut cluster = stage.plan().set("log.retention.check.interval.ms", "200").start()?;
    let mut told = Vec::new();
    for (topic, by_size) in [("deleted", false), ("retained", true)] {
        cluster.create_placed(1, topic, &[vec![1, 2, 3]])?;
        let mut journal = Journal::new(topic);
        for _ in 0..20 {
            journal.append_to_leader(&mut cluster, 1, 0)?;
        }
        cluster.broker(3)?.kill();
        cluster.wait_in_sync(1, topic, &[1, 2])?;
        for _ in 0..20 {
            journal.append_to_leader(&mut cluster, 1, 0)?;
        }
        let (leader, _) = cluster.wait_leader(1, topic, 0, Some(3))?;
        let mut to = cluster.broker(leader)?.connect()?;
        if by_size {
            for (name, value) in [("segment.bytes", "1048576"), ("retention.bytes", "1048576")] {
                equal(name, to.alter(topic, name, 0, Some(value))?, code::NONE)?;
            }
            fill(&mut cluster, topic, 4)?;
        } else {
            let (error, _) = to.delete_records(topic, 30)?;
            equal("DeleteRecords", error, code::NONE)?;
        }
        let start = moved_start(&mut to, topic, 20)?;
        journal.forget_below(0, start);
        let rebuilt = cluster.sum(&[1, 2], "felix_broker_replication_rebuilds_total")?;
        let began = Instant::now();
        cluster.broker(3)?.start()?;
        cluster.wait_alive(&ALL)?;
        cluster.wait_in_sync(1, topic, &ALL)?;
        told.push(format!("{topic}: level after {:.2} s", began.elapsed().as_secs_f64()));
        wait::until("the rebuilding to be counted", Duration::from_secs(10), || {
            let now = cluster.sum(&[1, 2], "felix_broker_replication_rebuilds_total")?;
            Ok((now > rebuilt).then_some(()))
        })?;
        equal("copies that have halted", cluster.sum(&ALL, "felix_broker_replication_halted")?, 0.0)?;
        for _ in 0..20 {
            journal.append_to_leader(&mut cluster, 1, 0)?;
        }
        cluster.tell_marks(1, topic)?;
        // Whoever was late for a moment was dropped, and would not lead. Nothing is written from here on, so nobody is dropped again.
        cluster.wait_in_sync(1, topic, &ALL)?;
        for gone in [1, 2] {
            cluster.broker(gone)?.kill();
        }
        let (leader, _) = cluster.wait_leader(3, topic, 0, Some(1))?;
        equal("who leads", leader, 3)?;
        let mut to = cluster.broker(3)?.connect()?;
        // Retention may have gone on.
        let begins = to.offset_at(topic, 0, -2)?.offset;
        holds(&format!("its log begins at {begins}, not before {start}"), begins >= start)?;
        journal.check_as_seen_by(&mut cluster, 3)?;
        for back in [1, 2] {
            cluster.broker(back)?.start()?;
        }
        cluster.wait_alive(&ALL)?;
        cluster.wait_in_sync(3, topic, &ALL)?;
    }
    cluster.all_run()?;
    let compared = stage.verify_copies(&mut cluster, 2)?;
    equal("batches that nobody has promised", compared.above, 0)?;
    Ok(format!("{}; {compared}", told.join("; ")))
}

/// Appends so many batches of almost 1 MiB with acks=all, or more: a follower that is too slow for them is dropped, and where that leaves
/// too few, the batch is sent again until it is back.
pub fn fill(cluster: &mut Cluster, topic: &str, batches: usize) -> Result<()> {
    const TOO_FEW: [i16; 2] = [code::NOT_ENOUGH_REPLICAS, code::NOT_ENOUGH_REPLICAS_AFTER_APPEND];
    let value = "x".repeat(MIB - 1_000);
    let (leader, _) = cluster.wait_leader(1, topic, 0, None)?;
    let mut to = cluster.broker(leader)?.connect()?;
    for _ in 0..batches {
        wait::until("a large batch to be taken", FILL, || {
            let produced = to.produce(topic, &Batch::of(&[&value], time()))?;
            if TOO_FEW.contains(&produced.error) {
                return Ok(None);
            }
            equal("appending a large batch", produced.error, code::NONE)?;
            Ok(Some(()))
        })?;
    }
    Ok(())
}

/// What was shipped, and read in order to be shipped, by all brokers that run.
fn moved(cluster: &Cluster, ids: &[i32]) -> (f64, f64) {
    let sum = |metric| sum_or_none(cluster, ids, metric);
    (sum("felix_peer_shipped_bytes_total"), sum("felix_peer_shipping_read_bytes_total"))
}

/// A series with labels is not there before its first event.
fn sum_or_none(cluster: &Cluster, ids: &[i32], metric: &str) -> f64 {
    ids.iter().filter_map(|id| cluster.sum(&[*id], metric).ok()).sum()
}

fn large_failover(stage: &Stage) -> Result<String> {
    let mut cluster = stage.plan().set("log.segment.bytes", "33554432").start()?;
    cluster.create_placed(1, "t", &[vec![1, 2, 3]])?;
    let size = if stage.full { 2_048 } else { 96 };
    let began = Instant::now();
    fill(&mut cluster, "t", size)?;
    let filled = began.elapsed();
    let mut journal = Journal::new("t");
    journal.append_to_leader(&mut cluster, 1, 0)?;
    cluster.wait_in_sync(1, "t", &ALL)?;
    let before = moved(&cluster, &ALL);
    holds(&format!("all of it was shipped: {before:?}"), before.0 > (size * MIB * 19 / 10) as f64)?;
    let (leader, _) = cluster.wait_leader(2, "t", 0, None)?;
    equal("who leads", leader, 1)?;
    mute(&mut cluster, 1)?;
    append_tail(&mut cluster, 1, "t", 0, 10_000)?;
    let of_others = moved(&cluster, &[2, 3]);
    cluster.broker(1)?.kill();
    let began = Instant::now();
    cluster.wait_leader(2, "t", 0, Some(1))?;
    let led = began.elapsed();
    // Not before: what the dead broker's kernel still has to send would arrive, and count.
    cluster.network.heal_all()?;
    for _ in 0..20 {
        journal.append_to_leader(&mut cluster, 2, 0)?;
    }
    let began = Instant::now();
    cluster.broker(1)?.start()?;
    cluster.wait_alive(&ALL)?;
    cluster.wait_in_sync(2, "t", &ALL)?;
    let level = began.elapsed();
    for _ in 0..20 {
        journal.append_to_leader(&mut cluster, 2, 0)?;
    }
    // The process of broker 1 is a new one and counts from nothing.
    let after = moved(&cluster, &ALL);
    let (shipped, read) = (after.0 - of_others.0, after.1 - of_others.1);
    let told = format!(
        "{shipped} bytes shipped and {read} read by the failover of {size} MiB and what was written then"
    );
    holds(&told, shipped < MIB as f64 && read < MIB as f64 && shipped > 0.0)?;
    journal.check_as_seen_by(&mut cluster, 2)?;
    cluster.all_run()?;
    let compared = stage.verify_copies(&mut cluster, 1)?;
    equal("batches that nobody has promised", compared.above, 0)?;
    Ok(format!(
        "{told}; filled in {:.1} s, led after {:.2} s, in sync {:.2} s after its start; {compared}",
        filled.as_secs_f64(),
        led.as_secs_f64(),
        level.as_secs_f64()
    ))
}

/// Waits until the start of a log is past an offset and moves no more, for retention may go by steps; where it is then.
pub fn moved_start(to: &mut Connection, topic: &str, past: i64) -> Result<i64> {
    let mut seen = (0, Instant::now());
    wait::until("the start of the log to move", Duration::from_secs(30), || {
        let start = to.offset_at(topic, 0, -2)?.offset;
        if start != seen.0 {
            seen = (start, Instant::now());
        }
        Ok((start > past && seen.1.elapsed() > Duration::from_secs(1)).then_some(start))
    })
}
