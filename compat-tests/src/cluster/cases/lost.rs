//! Brokers that are killed, stopped and started again; with one replica a partition is away as long as its broker.

use std::collections::BTreeSet;
use std::time::{Duration, Instant};

use anyhow::{Context, Result};

use crate::cluster::Case;
use crate::cluster::plan::{AGREE, Cluster, Plan};
use crate::cluster::stage::{Stage, median, shown, timed};
use crate::cluster::topics::Journal;
use crate::raw::ask::code;
use crate::raw::expect::{equal, holds};
use crate::wait;

pub const CASES: &[Case] = &[
    Case {
        name: "killed",
        proves: "kill -9 of a broker with a lease of 1 s: the others call its partitions leaderless and offline after W, in every answer that \
                 tells of them, and the rest goes on; when it returns it leads again at a higher epoch with every record",
        seconds: 90,
        run: |stage| killed(stage, stage.plan()),
    },
    Case {
        name: "killed-default-lease",
        proves: "the same with the default lease of 2 s",
        seconds: 90,
        run: |stage| killed(stage, stage.plan().lease(Duration::from_secs(2))),
    },
    Case {
        name: "killed-and-back-at-once",
        proves: "a broker that returns within its lease takes over its own session at once: nobody waits for W",
        seconds: 60,
        run: back_at_once,
    },
    Case {
        name: "stopped",
        proves: "SIGTERM: the others know at once, without waiting for W, and it ends with 0; started again it leads again",
        seconds: 60,
        run: stopped,
    },
    Case {
        name: "new-and-offline-brokers",
        proves: "a new topic goes to brokers that are there: not to one that is gone, and to one that has just joined",
        seconds: 60,
        run: new_and_offline,
    },
];

/// What everybody who is left says of a broker that is gone.
fn seen_gone(cluster: &mut Cluster, gone: i32) -> Result<()> {
    let left: Vec<i32> = cluster.ids().into_iter().filter(|id| *id != gone).collect();
    for id in left.clone() {
        let mut to = cluster.broker(id)?.connect()?;
        let seen = to.metadata()?;
        equal("brokers", seen.brokers.iter().map(|broker| broker.id).collect::<Vec<_>>(), left.clone())?;
        for (partition, described) in seen.topics["t"].iter().zip(to.describe_partitions("t")?) {
            let is_gone = partition.replicas == [gone];
            equal("leader", partition.leader == -1, is_gone)?;
            equal("error", partition.error, if is_gone { code::LEADER_NOT_AVAILABLE } else { code::NONE })?;
            equal("described leader", described.leader, partition.leader)?;
            equal("described as offline", described.offline, if is_gone { vec![gone] } else { Vec::new() })?;
            holds("the epoch is kept", partition.epoch >= 0)?;
        }
        let mut described: Vec<i32> = to.describe_cluster()?.1.iter().map(|broker| broker.id).collect();
        described.sort_unstable();
        equal("DescribeCluster", described, left.clone())?;
    }
    Ok(())
}

fn killed(stage: &Stage, plan: Plan) -> Result<String> {
    let mut cluster = plan.start()?;
    let wait = cluster.longest_wait();
    cluster.create(1, "t", 9)?;
    let mut journal = Journal::new("t");
    let (mut fenced, mut returned) = (Vec::new(), Vec::new());
    let rounds = stage.rounds(3, 15);
    for round in 0..rounds {
        let gone = i32::try_from(round)? % 3 + 1;
        let numbers = cluster.led_by(gone, "t")?;
        let before = cluster.partitions(gone, "t")?;
        for number in &numbers {
            journal.append(&mut cluster.broker(gone)?.connect()?, *number)?;
        }
        let began = Instant::now();
        cluster.broker(gone)?.kill();
        cluster.wait_leaderless(gone, "t", &numbers)?;
        fenced.push(began.elapsed());
        seen_gone(&mut cluster, gone)?;
        for id in cluster.ids().into_iter().filter(|id| *id != gone) {
            let number = cluster.led_by(id, "t")?[0];
            journal.append(&mut cluster.broker(id)?.connect()?, number)?;
        }
        let began = Instant::now();
        cluster.broker(gone)?.spawn()?;
        cluster.wait_serves(gone, "t", &numbers)?;
        returned.push(began.elapsed());
        cluster.broker(gone)?.wait_ready()?;
        cluster.wait_alive(&[1, 2, 3])?;
        let after = cluster.partitions(gone, "t")?;
        for ((number, before), after) in (0..).zip(&before).zip(&after) {
            let higher = numbers.contains(&number);
            holds("the epoch rises where the leader was gone", (after.epoch > before.epoch) == higher)?;
        }
        journal.check(&mut cluster)?;
    }
    // Where nobody runs for a third of a lease, the wait begins anew; how long it takes without that, one round shows.
    holds(&format!("fenced within {wait:?}: {fenced:?}"), fenced.iter().any(|took| *took <= wait))?;
    cluster.all_run()?;
    Ok(format!("fenced: {}; leads again after its start: {}", shown(&fenced), shown(&returned)))
}

fn back_at_once(stage: &Stage) -> Result<String> {
    // So long that whoever waited would be seen to wait.
    let mut cluster = stage.plan().lease(Duration::from_secs(10)).start()?;
    cluster.create(1, "t", 9)?;
    let mut journal = Journal::new("t");
    let mut returned = Vec::new();
    for _ in 0..stage.rounds(5, 30) {
        let numbers = cluster.led_by(2, "t")?;
        journal.append(&mut cluster.broker(2)?.connect()?, numbers[0])?;
        let began = Instant::now();
        cluster.broker(2)?.kill();
        cluster.broker(2)?.spawn()?;
        cluster.wait_serves(2, "t", &numbers)?;
        returned.push(began.elapsed());
        cluster.broker(2)?.wait_ready()?;
    }
    journal.check(&mut cluster)?;
    let middle = median(returned.clone());
    holds(&format!("back at once: {returned:?}"), middle < Duration::from_secs(3))?;
    cluster.all_run()?;
    Ok(format!("from the kill until it leads again: {}", shown(&returned)))
}

fn stopped(stage: &Stage) -> Result<String> {
    let mut cluster = stage.plan().lease(Duration::from_secs(10)).start()?;
    cluster.create(1, "t", 9)?;
    let mut journal = Journal::new("t");
    let (mut stopped, mut known, mut returned) = (Vec::new(), Vec::new(), Vec::new());
    for round in 0..stage.rounds(3, 15) {
        let gone = i32::try_from(round)? % 3 + 1;
        let numbers = cluster.led_by(gone, "t")?;
        journal.append(&mut cluster.broker(gone)?.connect()?, numbers[0])?;
        let began = Instant::now();
        let (_, took) = timed(|| cluster.broker(gone)?.stop())?;
        stopped.push(took);
        cluster.wait_leaderless(gone, "t", &numbers)?;
        known.push(began.elapsed());
        seen_gone(&mut cluster, gone)?;
        let began = Instant::now();
        cluster.broker(gone)?.spawn()?;
        cluster.wait_serves(gone, "t", &numbers)?;
        returned.push(began.elapsed());
        cluster.broker(gone)?.wait_ready()?;
        cluster.wait_alive(&[1, 2, 3])?;
    }
    journal.check(&mut cluster)?;
    let middle = median(known.clone());
    holds(&format!("known at once: {known:?}"), middle < Duration::from_secs(5))?;
    cluster.all_run()?;
    let (stopped, known, returned) = (shown(&stopped), shown(&known), shown(&returned));
    Ok(format!("stopped: {stopped}; known to the others: {known}; leads again after its start: {returned}"))
}

fn new_and_offline(stage: &Stage) -> Result<String> {
    let mut cluster = stage.plan().start()?;
    let create = |cluster: &mut Cluster, topic: &str| -> Result<BTreeSet<i32>> {
        equal("creating", cluster.broker(1)?.connect()?.create_on(topic, 8, 1, &[])?.0, 0)?;
        let seen = cluster.broker(1)?.connect()?.metadata()?;
        let partitions = seen.topics.get(topic).context("the topic is not there")?;
        Ok(partitions.iter().flat_map(|partition| partition.replicas.clone()).collect())
    };
    equal("all three", create(&mut cluster, "before")?, BTreeSet::from([1, 2, 3]))?;
    let numbers = cluster.led_by(3, "before")?;
    cluster.broker(3)?.kill();
    cluster.wait_leaderless(3, "before", &numbers)?;
    equal("the two that are there", create(&mut cluster, "meanwhile")?, BTreeSet::from([1, 2]))?;
    cluster.broker(3)?.start()?;
    let new = cluster.prepare_broker()?;
    cluster.broker(new)?.start()?;
    cluster.wait_alive(&[1, 2, 3, 4])?;
    equal("all four", create(&mut cluster, "after")?, BTreeSet::from([1, 2, 3, 4]))?;
    wait::until("all to be led", AGREE, || {
        let seen = cluster.agreed("Metadata", |to| to.metadata())?;
        let led = |topic: &str| seen.topics[topic].iter().all(|partition| partition.leader > 0);
        Ok(["before", "meanwhile", "after"].into_iter().all(led).then_some(()))
    })?;
    cluster.all_run()?;
    Ok(String::new())
}
