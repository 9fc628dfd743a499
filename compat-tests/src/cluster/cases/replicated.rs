//! Topics with three replicas while their brokers are killed, stopped and wiped under load.

use std::time::{Duration, Instant};

use anyhow::{Context, Result};

use super::partitioned::BOTH;
use crate::cluster::Case;
use crate::cluster::load::Loads;
use crate::cluster::plan::{AGREE, Cluster};
use crate::cluster::stage::{Loader, Stage, median, shown};
use crate::cluster::topics::{Journal, PASSING, stored};
use crate::raw::ask::cluster::PartitionDescribed;
use crate::raw::ask::code;
use crate::raw::expect::{equal, holds, one_of};
use crate::wait;

pub const CASES: &[Case] = &[
    Case {
        name: "leader-killed",
        proves: "kill -9 of a leader, again and again, under load from an idempotent librdkafka producer with acks=all and a group: nothing that \
                 was acknowledged is lost or doubled, order is kept, the group skips nothing; the partitions go on without the broker, which \
                 is in sync again by itself when it returns",
        seconds: 150,
        run: leader_killed,
    },
    Case {
        name: "follower-stopped",
        proves: "a follower that stands still (SIGSTOP) stalls the producers for a moment only; no replica report is made in the steady state, nor \
                 while it is away; it catches up and is in sync again by itself",
        seconds: 120,
        run: follower_stopped,
    },
    Case {
        name: "follower-wiped",
        proves: "a follower whose data directory was emptied under load comes back with its id, is filled again, and then leads alone with all \
                 that was acknowledged",
        seconds: 120,
        run: follower_wiped,
    },
];

/// Three partitions, each led by another broker at first.
const EACH_LEADS: [[i32; 3]; 3] = [[1, 2, 3], [2, 3, 1], [3, 1, 2]];
/// Three partitions of which broker 3 leads none.
const THIRD_FOLLOWS: [[i32; 3]; 3] = [[1, 2, 3], [2, 1, 3], [1, 3, 2]];
const GOALS: [Duration; 2] = [Duration::from_millis(1_500), Duration::from_millis(500)];
const ALL: [i32; 3] = [1, 2, 3];
/// So long without a report, under load, nothing changes any more.
const STEADY: Duration = Duration::from_secs(3);
/// What is under load from librdkafka alone, whose stalls are told.
const RDKAFKA: [(Loader, &str); 1] = [(Loader::Rdkafka, "t")];
const OFFSETS: &str = "__consumer_offsets";

fn placed(replicas: &[[i32; 3]; 3]) -> Vec<Vec<i32>> {
    replicas.iter().map(|replicas| replicas.to_vec()).collect()
}

/// A cluster with topics under load whose partitions, and those of the group, are in sync everywhere.
fn under_load(
    stage: &Stage,
    replicas: &[[i32; 3]; 3],
    loaded: &[(Loader, &str)],
) -> Result<(Cluster, Loads)> {
    let mut cluster = stage.plan().replicated().start()?;
    for (_, topic) in loaded {
        cluster.create_placed(1, topic, &placed(replicas))?;
    }
    let load = stage.loads_existing(&cluster, loaded, 3)?;
    cluster.wait_in_sync(1, OFFSETS, &ALL)?;
    Ok((cluster, load))
}

/// Ends the load, which compares everything, and holds the copies of all brokers against each other.
fn finish(stage: &Stage, mut cluster: Cluster, load: Loads, partitions: u64) -> Result<String> {
    let sent = load.finish()?;
    cluster.all_run()?;
    let compared = stage.verify_copies(&mut cluster, partitions)?;
    Ok(format!("{} records; {compared}", sent.iter().sum::<u64>()))
}

/// A figure may be far from its goal on a loaded machine; ten times as much means that it does not work.
fn is_within_reach(found: &[Duration], goal: Duration) -> bool {
    median(found.to_vec()) < goal * 10
}

fn within_reach(what: &str, found: &[Duration], goal: Duration) -> Result<()> {
    holds(&format!("{what}: {}, the goal is {goal:?}", shown(found)), is_within_reach(found, goal))
}

/// Appends to a partition whose leader was killed at `since`, asking the brokers that are left in turn, until one of them has
/// acknowledged with acks=all; how long after.
pub fn unavailable(
    cluster: &mut Cluster,
    journal: &mut Journal,
    number: i32,
    gone: i32,
    since: Instant,
) -> Result<Duration> {
    let mut left = Vec::new();
    for at in cluster.others(gone) {
        left.push(cluster.broker(at)?.connect()?);
    }
    wait::until("an acknowledgement without the leader", AGREE, || {
        for to in &mut left {
            match journal.try_append(to, number)? {
                code::NONE => return Ok(Some(since.elapsed())),
                // The next leader may have to wait for its only follower, which was late.
                code::LEADER_NOT_AVAILABLE => {}
                error => one_of("what others say", error, &PASSING)?,
            }
        }
        Ok(None)
    })
}

fn leader_killed(stage: &Stage) -> Result<String> {
    let (mut cluster, mut load) = under_load(stage, &EACH_LEADS, &RDKAFKA)?;
    cluster.create_placed(1, "raw", &placed(&EACH_LEADS))?;
    let mut journal = Journal::new("raw");
    let (mut gaps, mut stalls, mut returns) = (Vec::new(), Vec::new(), Vec::new());
    for round in 0..stage.rounds(3, 30) {
        let number = round % 3;
        let (leader, epoch) = cluster.wait_leader(1, "raw", number, None)?;
        for _ in 0..10 {
            journal.append_to_leader(&mut cluster, leader, i32::try_from(number)?)?;
        }
        load.measure()?;
        let killed = Instant::now();
        cluster.broker(leader)?.kill();
        gaps.push(unavailable(&mut cluster, &mut journal, i32::try_from(number)?, leader, killed)?);
        let (_, later) = cluster.wait_leader(leader % 3 + 1, "raw", number, Some(leader))?;
        holds(&format!("the generation rises: {epoch}, {later}"), later > epoch)?;
        load.go_on()?;
        stalls.push(load.longest_stall()?);
        let began = Instant::now();
        cluster.broker(leader)?.start()?;
        cluster.wait_alive(&ALL)?;
        for topic in ["t", "raw", OFFSETS] {
            cluster.wait_in_sync(leader, topic, &ALL)?;
        }
        returns.push(began.elapsed());
    }
    load.go_on()?;
    within_reach("unavailable", &gaps, GOALS[0])?;
    journal.check(&mut cluster)?;
    let rest = finish(stage, cluster, load, 9)?;
    Ok(format!(
        "a partition was unavailable for {}; longest stall of librdkafka {}; in sync again {}; {rest}",
        shown(&gaps),
        shown(&stalls),
        shown(&returns)
    ))
}

/// Waits until load has gone on for so long without a single report, and answers how many there were before. A machine that is too
/// busy for a copy to keep up has it dropped by right: then it begins anew.
fn without_reports(cluster: &Cluster, load: &mut Loads, long: Duration) -> Result<f64> {
    let reports = || cluster.sum(&[1, 2], "felix_broker_replica_reports_total");
    let mut seen = (reports()?, Instant::now());
    wait::until(&format!("{long:?} under load without reports"), long * 4 + Duration::from_secs(30), || {
        load.progress(10)?;
        let now = reports()?;
        if now > seen.0 {
            seen = (now, Instant::now());
        }
        Ok((seen.1.elapsed() >= long).then_some(seen.0))
    })
}

/// Waits until a broker is not among those of `t` that may lead.
fn wait_dropped(cluster: &mut Cluster, gone: i32) -> Result<()> {
    let mut last = Vec::new();
    let waited = wait::until(&format!("{gone} to be dropped"), Duration::from_secs(20), || {
        last = cluster.described(1, "t")?;
        let counts = |one: &PartitionDescribed| one.isr.contains(&gone) || one.elr.contains(&gone);
        Ok((!last.iter().any(counts)).then_some(()))
    });
    waited.with_context(|| format!("{last:?}"))
}

fn follower_stopped(stage: &Stage) -> Result<String> {
    let (mut cluster, mut load) = under_load(stage, &THIRD_FOLLOWS, &RDKAFKA)?;
    let away = Duration::from_secs(if stage.full { 30 } else { 4 });
    let (mut usual, mut stalls, mut returns) = (Vec::new(), Vec::new(), Vec::new());
    // One that is far from the goal is looked at twice more: the machine may have been busy.
    let rounds = stage.rounds(1, 5);
    while stalls.len() < rounds || (stalls.len() < 3 && !is_within_reach(&stalls, GOALS[1])) {
        load.measure()?;
        let before = without_reports(&cluster, &mut load, STEADY).context("in the steady state")?;
        usual.push(load.longest_stall()?);
        load.measure()?;
        cluster.broker(3)?.pause()?;
        wait_dropped(&mut cluster, 3)?;
        let dropped = without_reports(&cluster, &mut load, away).context("while it is away")?;
        holds("it was dropped by reports", dropped > before)?;
        let began = Instant::now();
        cluster.broker(3)?.resume()?;
        for topic in ["t", OFFSETS] {
            cluster.wait_in_sync(1, topic, &ALL)?;
        }
        returns.push(began.elapsed());
        load.go_on()?;
        stalls.push(load.longest_stall()?);
    }
    within_reach("producers stalled", &stalls, GOALS[1])?;
    let rest = finish(stage, cluster, load, 6)?;
    Ok(format!(
        "longest stall of a producer {} (without trouble {}); in sync again {}; {rest}",
        shown(&stalls),
        shown(&usual),
        shown(&returns)
    ))
}

fn follower_wiped(stage: &Stage) -> Result<String> {
    let (mut cluster, mut load) = under_load(stage, &THIRD_FOLLOWS, &BOTH)?;
    cluster.create_placed(1, "kept", &[vec![1, 2, 3]])?;
    let mut journal = Journal::new("kept");
    for _ in 0..200 {
        journal.append_to_leader(&mut cluster, 1, 0)?;
    }
    cluster.broker(3)?.kill();
    cluster.broker(3)?.wipe()?;
    for _ in 0..200 {
        journal.append_to_leader(&mut cluster, 1, 0)?;
    }
    let began = Instant::now();
    cluster.broker(3)?.start()?;
    for topic in ["t", "j", OFFSETS, "kept"] {
        cluster.wait_in_sync(1, topic, &ALL)?;
    }
    let filled = began.elapsed();
    load.go_on()?;
    let (leader, _) = cluster.wait_leader(1, "t", 0, None)?;
    holds("the one that was wiped does not lead yet", leader != 3)?;
    cluster.broker(leader)?.kill();
    cluster.wait_leader(3, "t", 0, Some(leader))?;
    load.go_on()?;
    cluster.broker(leader)?.start()?;
    for topic in ["t", "j", OFFSETS, "kept"] {
        cluster.wait_in_sync(3, topic, &ALL)?;
    }
    let sent = load.finish()?;
    // Alone it has everything.
    for topic in ["t", "j", "kept"] {
        cluster.tell_marks(3, topic)?;
    }
    // Whoever was late for a moment was dropped, and would not lead. Nothing is written from here on, so nobody is dropped again.
    for topic in ["t", "j", "kept"] {
        cluster.wait_in_sync(3, topic, &ALL)?;
    }
    for gone in [1, 2] {
        cluster.broker(gone)?.kill();
    }
    let mut to = cluster.broker(3)?.connect()?;
    let (after, _) = cluster.wait_leader(3, "kept", 0, None)?;
    equal("who leads", after, 3)?;
    journal.check_as_seen_by(&mut cluster, 3)?;
    for ((_, topic), sent) in BOTH.into_iter().zip(&sent) {
        let mut found = 0;
        for partition in 0..3 {
            let (leader, _) = cluster.wait_leader(3, topic, partition, None)?;
            equal("who leads", leader, 3)?;
            let all = stored(&mut to, topic, i32::try_from(partition)?)?;
            // Those that told the marks are not of the load.
            let of_load = all.iter().filter(|(_, _, value)| !value.starts_with("record "));
            found += u64::try_from(of_load.count())?;
        }
        equal("records of the load that it has", found, *sent)?;
    }
    for gone in [1, 2] {
        cluster.broker(gone)?.start()?;
    }
    for topic in ["t", "j", OFFSETS, "kept"] {
        cluster.wait_in_sync(3, topic, &ALL)?;
    }
    cluster.all_run()?;
    let compared = stage.verify_copies(&mut cluster, 10)?;
    Ok(format!("filled and in sync after {:.2} s; {sent:?} records; {compared}", filled.as_secs_f64()))
}
