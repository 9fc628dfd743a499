//! What an operator does to a cluster with Kafka's tools.

use std::path::PathBuf;

use anyhow::{Context, Result, bail};

use crate::cluster::Case;
use crate::cluster::network::Place;
use crate::cluster::plan::{AGREE, Cluster};
use crate::cluster::stage::Stage;
use crate::cluster::topics::{Journal, end_of};
use crate::raw::expect::{equal, holds};
use crate::wait;

pub const CASES: &[Case] = &[
    Case {
        name: "reassign",
        proves: "kafka-reassign-partitions puts replicas into another order at once (execute, verify); a partition stays where it is until its \
                 copy is made, is listed meanwhile, goes on taking records, and the move is cancelled",
        seconds: 120,
        run: reassign,
    },
    Case {
        name: "unclean-election",
        proves: "what a wiped broker alone held is led again, empty, only when kafka-leader-election says unclean; that is counted as a loss",
        seconds: 90,
        run: unclean_election,
    },
    Case {
        name: "unclean-election-takes-the-furthest",
        proves: "two copies that lack what a dead leader alone held, to different extents: an unclean election that a third broker is asked for \
                 takes the one that reaches further, though another is preferred (replication.md section 5)",
        seconds: 90,
        run: furthest,
    },
    Case {
        name: "unregister",
        proves: "kafka-cluster unregister is refused for a broker that is alive and removes one that is gone",
        seconds: 90,
        run: unregister,
    },
];

/// A file for a tool.
fn file(cluster: &Cluster, name: &str, content: &str) -> Result<PathBuf> {
    let path = cluster.folder().join(name);
    std::fs::write(&path, content)?;
    Ok(path)
}

/// A plan of reassignments of a topic: a partition and its replicas each.
fn plan(topic: &str, moves: &[(usize, Vec<i32>)]) -> String {
    let one = |(partition, replicas): &(usize, Vec<i32>)| {
        format!(r#"{{"topic":"{topic}","partition":{partition},"replicas":{replicas:?}}}"#)
    };
    let all: Vec<String> = moves.iter().map(one).collect();
    format!(r#"{{"version":1,"partitions":[{}]}}"#, all.join(","))
}

const REASSIGN: &str = "org.apache.kafka.tools.reassign.ReassignPartitionsCommand";

fn reassign(stage: &Stage) -> Result<String> {
    let mut cluster = stage.plan().start()?;
    let bootstrap = cluster.bootstrap();
    let to = |rest: &[&str]| -> Result<String> {
        let words = [&["--bootstrap-server", bootstrap.as_str()], rest].concat();
        stage.tool(REASSIGN, &words).map(|(_, output)| output)
    };

    // Another order needs no copies.
    equal("creating", cluster.broker(1)?.connect()?.create_on("pairs", 3, 2, &[])?.0, 0)?;
    let pairs = cluster.agreed("Metadata", |to| Ok(to.metadata()?.topics.remove("pairs")))?;
    let pairs = pairs.context("the topic is not there")?;
    let turned: Vec<(usize, Vec<i32>)> = pairs
        .iter()
        .map(|partition| partition.replicas.iter().rev().copied().collect())
        .enumerate()
        .collect();
    let moves = file(&cluster, "pairs.json", &plan("pairs", &turned))?;
    let moves = moves.to_string_lossy();
    let output = to(&["--reassignment-json-file", &moves, "--execute"])?;
    holds(&output, output.contains("Successfully started partition reassignments"))?;
    let after = cluster.agreed("Metadata", |to| Ok(to.metadata()?.topics.remove("pairs")))?;
    let after = after.context("the topic is not there")?;
    let after: Vec<(usize, Vec<i32>)> =
        after.into_iter().map(|partition| partition.replicas).enumerate().collect();
    equal("replicas", after, turned)?;
    let output = to(&["--reassignment-json-file", &moves, "--verify"])?;
    equal("completed", output.matches("is completed").count(), 3)?;

    cluster.create(1, "t", 3)?;
    let mut journal = Journal::new("t");
    let from = cluster.partitions(1, "t")?[0].leader;
    let target = from % 3 + 1;
    journal.append(&mut cluster.broker(from)?.connect()?, 0)?;
    // So that the copy cannot be made before the move is cancelled.
    cluster.network.cut_both(Place::Broker(from), Place::Broker(target))?;
    let moves = file(&cluster, "t.json", &plan("t", &[(0, vec![target])]))?;
    let moves = moves.to_string_lossy();
    to(&["--reassignment-json-file", &moves, "--execute"])?;
    let output = to(&["--list"])?;
    let says = ["t-0: ", &format!("adding: {target}"), &format!("removing: {from}")];
    holds(&output, says.iter().all(|text| output.contains(text)))?;
    let output = to(&["--reassignment-json-file", &moves, "--verify"])?;
    holds(&output, output.contains("is still in progress"))?;
    journal.append(&mut cluster.broker(from)?.connect()?, 0)?;
    let output = to(&["--reassignment-json-file", &moves, "--cancel"])?;
    holds(&output, output.contains("Successfully cancelled partition reassignment for: t-0"))?;
    let output = to(&["--list"])?;
    holds(&output, output.contains("No partition reassignments found"))?;
    cluster.network.heal_all()?;
    let seen = cluster.agreed("Metadata", |to| Ok(to.metadata()?.topics.remove("t")))?;
    equal("where it is", seen.context("the topic is not there")?[0].replicas.clone(), vec![from])?;
    journal.append(&mut cluster.broker(from)?.connect()?, 0)?;
    journal.check(&mut cluster)?;
    cluster.all_run()?;
    Ok(String::new())
}

fn unclean_election(stage: &Stage) -> Result<String> {
    let mut cluster = stage.plan().start()?;
    cluster.create(1, "t", 3)?;
    let mut journal = Journal::new("t");
    let number = cluster.led_by(2, "t")?[0];
    journal.append(&mut cluster.broker(2)?.connect()?, number)?;
    cluster.broker(2)?.kill();
    cluster.broker(2)?.wipe()?;
    cluster.broker(2)?.start()?;
    cluster.wait_alive(&[1, 2, 3])?;
    cluster.wait_leaderless(2, "t", &[number])?;
    let bootstrap = cluster.bootstrap();
    let partition = number.to_string();
    let elect = |kind: &str| {
        let words = [
            "--bootstrap-server",
            &bootstrap,
            "--election-type",
            kind,
            "--topic",
            "t",
            "--partition",
            &partition,
        ];
        stage.tool("org.apache.kafka.tools.LeaderElectionCommand", &words)
    };
    let (status, output) = elect("preferred")?;
    holds(&format!("nobody is elected by preference: {output}"), !status.success())?;
    let (status, output) = elect("unclean")?;
    holds(&output, status.success() && output.contains("Successfully completed"))?;
    cluster.wait_serves(2, "t", &[number])?;
    let end = cluster.broker(2)?.connect()?.offset_at("t", number, -1)?;
    equal("the end of what is left", end.offset, 0)?;
    let losses: f64 = cluster
        .brokers()
        .map(|broker| broker.metric("felix_broker_loss_events_total"))
        .sum::<Result<f64>>()?;
    holds(&format!("a loss is counted: {losses}"), losses >= 1.0)?;
    Journal::new("t").append(&mut cluster.broker(2)?.connect()?, number)?;
    cluster.all_run()?;
    Ok(format!("{losses} losses counted"))
}

/// What a broker says that carries out an election when a candidate does not answer within a quarter of a second.
const SILENT: &str = "a candidate for leadership is not heard of";

/// On a busy machine broker 2 may be late with its word, and ranks last then, by right: that says nothing, and is tried again.
fn furthest(stage: &Stage) -> Result<String> {
    for _ in 0..3 {
        if let Some(told) = furthest_once(stage)? {
            return Ok(told);
        }
    }
    bail!("the candidate that reaches furthest was not heard of three times")
}

/// Broker 1 leads with 2 and 3 behind it, each of which is stopped at another record; then it is lost. Nothing if broker 2 was not heard of.
fn furthest_once(stage: &Stage) -> Result<Option<String>> {
    let mut cluster = stage.plan().brokers(4).start()?;
    let mut to = cluster.broker(1)?.connect()?;
    equal("creating", to.create_on("t", 1, 1, &[vec![1, 3, 2]])?.0, 0)?;
    equal("min.insync.replicas", to.alter("t", "min.insync.replicas", 0, Some("1"))?, 0)?;
    let mut journal = Journal::new("t");
    for (gone, isr) in [(0, vec![1, 3, 2]), (3, vec![1, 2]), (2, vec![1])] {
        if gone > 0 {
            cluster.broker(gone)?.kill();
        }
        wait::until(&format!("{isr:?} to be in sync"), AGREE, || {
            // What nobody waits for, nobody is dropped for.
            journal.append(&mut to, 0)?;
            Ok((to.describe_partitions("t")?[0].isr == isr).then_some(()))
        })?;
        journal.append(&mut to, 0)?;
    }
    // What was refused may be there as well.
    let end = end_of(&mut to, "t")?;
    cluster.broker(1)?.kill();
    cluster.broker(1)?.wipe()?;
    for id in [2, 3] {
        cluster.broker(id)?.start()?;
    }
    cluster.wait_alive_as_seen_by(&[2, 3, 4], &[2, 3, 4])?;
    cluster.wait_leaderless(1, "t", &[0])?;
    let asked = cluster.broker(4)?.told().to_string();
    let words =
        ["--bootstrap-server", &asked, "--election-type", "unclean", "--topic", "t", "--partition", "0"];
    let before = cluster.broker(4)?.node.log_len();
    let (status, output) = stage.tool("org.apache.kafka.tools.LeaderElectionCommand", &words)?;
    holds(&output, status.success() && output.contains("Successfully completed"))?;
    let said = cluster.broker(4)?.node.log_from(before);
    if said.lines().any(|line| line.contains(SILENT) && line.contains("broker=2")) {
        return Ok(None);
    }
    equal("who leads", cluster.partitions(4, "t")?[0].leader, 2)?;
    // With min.insync.replicas=1 it needs nobody, and broker 3 comes up to it.
    cluster.wait_serves(2, "t", &[0])?;
    let kept = cluster.broker(2)?.connect()?.offset_at("t", 0, -1)?.offset;
    holds(&format!("{kept} of {end} records are kept"), kept >= 2 && kept < end)?;
    Journal::new("t").append(&mut cluster.broker(2)?.connect()?, 0)?;
    wait::until("broker 3 to be in sync", AGREE, || {
        Ok((cluster.broker(4)?.connect()?.describe_partitions("t")?[0].isr == [3, 2]).then_some(()))
    })?;
    Ok(Some(format!("{kept} of {end} records are kept")))
}

fn unregister(stage: &Stage) -> Result<String> {
    let mut cluster = stage.plan().start()?;
    let bootstrap = cluster.bootstrap();
    let tool = || {
        let words = ["unregister", "--bootstrap-server", &bootstrap, "--id", "3"];
        stage.tool("org.apache.kafka.tools.ClusterTool", &words)
    };
    let (status, alive) = tool()?;
    holds(&format!("one that is alive is not removed: {alive}"), !status.success())?;
    cluster.wait_alive(&[1, 2, 3])?;
    cluster.broker(3)?.kill();
    cluster.wait_alive_as_seen_by(&[1, 2], &[1, 2])?;
    let (status, output) = tool()?;
    holds(&output, status.success() && output.contains("no longer registered"))?;
    // Its key is gone: started again it registers as one that is new.
    cluster.broker(3)?.start()?;
    cluster.wait_alive(&[1, 2, 3])?;
    cluster.all_run()?;
    let said = alive.lines().find(|line| line.contains("roker")).context("it says nothing")?.to_owned();
    Ok(format!("while it was alive: {said}"))
}
