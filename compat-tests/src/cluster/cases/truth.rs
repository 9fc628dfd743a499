//! What Kafka's own tools say of replicas that fall behind, are gone and come back, asked of another broker.

use anyhow::{Context, Result};

use crate::cluster::Case;
use crate::cluster::plan::{AGREE, Cluster};
use crate::cluster::replicas::IN_SYNC;
use crate::cluster::stage::Stage;
use crate::cluster::topics::{Journal, end_of};
use crate::raw::expect::{equal, holds};
use crate::wait;

pub const CASES: &[Case] = &[Case {
    name: "tools-tell-the-truth",
    proves: "a follower is killed, stays behind after its return and is level again: kafka-topics --describe (with Elr), --under-replicated-partitions, \
             --under-min-isr-partitions, --at-min-isr-partitions and --unavailable-partitions, kafka-log-dirs (offsetLag), \
             kafka-metadata-quorum --replication and --status and kafka-get-offsets say so each time, asked of another broker",
    seconds: 240,
    run: truth,
}];

/// Kafka's tools, asked of one broker.
pub struct Tools<'a> {
    stage: &'a Stage,
    at: String,
}

impl<'a> Tools<'a> {
    /// Asked of this one.
    pub fn of(stage: &'a Stage, cluster: &mut Cluster, at: i32) -> Result<Self> {
        Ok(Self { stage, at: cluster.broker(at)?.told().to_string() })
    }

    /// What a tool prints; it must end well.
    pub fn ask(&self, class: &str, words: &[&str]) -> Result<String> {
        let words = [&["--bootstrap-server", self.at.as_str()], words].concat();
        let (status, output) = self.stage.tool(class, &words)?;
        holds(&format!("{words:?} succeeds: {output}"), status.success())?;
        Ok(output)
    }

    fn topics(&self, words: &[&str]) -> Result<String> {
        self.ask("org.apache.kafka.tools.TopicCommand", &[&["--describe"], words].concat())
    }

    /// Topics that are listed under a filter.
    pub fn listed(&self, filter: &str) -> Result<Vec<String>> {
        let said = self.topics(&[filter])?;
        let topic = |line: &str| Some(line.split_once("Topic: ")?.1.split_whitespace().next()?.to_owned());
        let mut topics: Vec<String> =
            said.lines().filter_map(topic).filter(|topic| !topic.starts_with("__")).collect();
        topics.sort();
        Ok(topics)
    }

    /// The only partition's line of a topic: Leader, Replicas, Isr, Elr.
    pub fn partition(&self, topic: &str) -> Result<[String; 4]> {
        let said = self.topics(&["--topic", topic])?;
        let line = said.lines().find(|line| line.contains("Partition: 0")).with_context(|| said.clone())?;
        let field = |name: &str| -> Result<String> {
            let (_, rest) = line.split_once(&format!("{name}: ")).with_context(|| line.to_owned())?;
            Ok(rest.split('\t').next().unwrap_or_default().trim().to_owned())
        };
        Ok([field("Leader")?, field("Replicas")?, field("Isr")?, field("Elr")?])
    }

    /// `offsetLag` of a topic on a broker; nothing, if it has no copy.
    pub fn lag(&self, broker: i32, topic: &str) -> Result<Option<i64>> {
        let (broker, partition) = (broker.to_string(), format!("{topic}-0"));
        let words = ["--describe", "--broker-list", &broker, "--topic-list", topic];
        let said = self.ask("org.apache.kafka.tools.LogDirsCommand", &words)?;
        let json = said.lines().find(|line| line.starts_with('{')).with_context(|| said.clone())?;
        let told: serde_json::Value = serde_json::from_str(json)?;
        let partitions = told.pointer("/brokers/0/logDirs/0/partitions").and_then(|all| all.as_array());
        let found = partitions.into_iter().flatten().find(|one| one["partition"] == partition.as_str());
        Ok(found.and_then(|one| one["offsetLag"].as_i64()))
    }

    /// Lag and status of a node, by kafka-metadata-quorum.
    fn in_quorum(&self, node: i32) -> Result<(i64, i64, String)> {
        let said =
            self.ask("org.apache.kafka.tools.MetadataQuorumCommand", &["describe", "--replication"])?;
        let node = node.to_string();
        let row = said.lines().map(|line| line.split_whitespace().collect::<Vec<_>>());
        let row = row.into_iter().find(|row| row.first() == Some(&node.as_str()));
        let row = row.with_context(|| said.clone())?;
        let [_, _, _, lag, heard, _, status] = row[..] else { anyhow::bail!("{said}") };
        Ok((lag.parse()?, heard.parse()?, status.to_owned()))
    }

    fn end_of(&self, topic: &str) -> Result<String> {
        let said = self.ask("org.apache.kafka.tools.GetOffsetShell", &["--topic", topic])?;
        let lines: Vec<&str> = said.lines().filter(|line| line.starts_with(topic)).collect();
        Ok(lines.join(" "))
    }
}

fn create(cluster: &mut Cluster, topic: &str, replicas: &[i32]) -> Result<()> {
    let mut to = cluster.broker(1)?.connect()?;
    let (error, message) = to.create_on(topic, 1, 1, &[replicas.to_vec()])?;
    equal(&format!("creating {topic}: {message:?}"), error, 0)?;
    wait_isr(cluster, topic, replicas)
}

fn wait_isr(cluster: &mut Cluster, topic: &str, isr: &[i32]) -> Result<()> {
    let mut last = String::new();
    let waited = wait::until(&format!("{isr:?} to be in sync of {topic}"), IN_SYNC, || {
        let found = cluster.broker(1)?.connect()?.describe_partitions(topic)?;
        last = format!("{found:?}");
        Ok(found.first().is_some_and(|found| found.isr == isr).then_some(()))
    });
    waited.context(last)
}

/// Records that the follower lacks when it comes back, at least: what was refused may be there as well.
const LACKED: i64 = 40;

/// Waits until what a tool says is that. On a busy machine a follower may be late for a moment, and be out of the set until it is back.
fn told<T: PartialEq + std::fmt::Debug>(what: &str, ask: impl Fn() -> Result<T>, expected: T) -> Result<()> {
    let mut last = String::new();
    let waited = wait::until(what, IN_SYNC, || {
        let said = ask()?;
        last = format!("expected {expected:?}, got {said:?}");
        Ok((said == expected).then_some(()))
    });
    waited.context(last)
}

fn strings(all: &[&str]) -> Vec<String> {
    all.iter().map(|one| (*one).to_owned()).collect()
}

fn truth(stage: &Stage) -> Result<String> {
    let mut cluster = stage.plan().start()?;
    create(&mut cluster, "three", &[1, 2, 3])?;
    create(&mut cluster, "strict", &[2, 1, 3])?;
    create(&mut cluster, "alone", &[3])?;
    let mut to = cluster.broker(1)?.connect()?;
    equal("min.insync.replicas", to.alter("strict", "min.insync.replicas", 0, Some("3"))?, 0)?;
    let mut journal = Journal::new("three");
    journal.append(&mut to, 0)?;
    let tools = Tools::of(stage, &mut cluster, 2)?;
    let three = |isr: &str, elr: &str| ["1", "1,2,3", isr, elr].map(str::to_owned);

    told("all to be there", || tools.partition("three"), three("1,2,3", ""))?;
    told(
        "broker 3 to be in the quorum",
        || tools.in_quorum(3).map(|(lag, _, status)| (lag, status)),
        (0, "Observer".to_owned()),
    )?;
    let (_, before, _) = tools.in_quorum(3)?;
    told("a follower not to lag", || tools.lag(3, "three"), Some(0))?;
    let had = end_of(&mut to, "three")?;

    // Gone. Where that leaves too few it may still lead, if it comes back; where it leaves enough it is out.
    cluster.broker(3)?.kill();
    wait_isr(&mut cluster, "three", &[1, 2])?;
    wait_isr(&mut cluster, "strict", &[2, 1])?;
    let strict = ["2", "2,1,3", "2,1", "3"].map(str::to_owned);
    equal("gone, and counted on", tools.partition("strict")?, strict)?;
    wait::until("broker 3 is out", AGREE, || {
        Ok((tools.partition("three")? == three("1,2", "")).then_some(()))
    })?;
    for number in 0..LACKED {
        journal.append(&mut to, 0).with_context(|| format!("record {number}"))?;
    }
    let end = end_of(&mut to, "three")?;
    let lacked = end - had;
    holds(&format!("{had}, then {end}"), lacked >= LACKED)?;
    // Broker 2 may have been late for the last of them.
    wait_isr(&mut cluster, "three", &[1, 2])?;
    equal("left behind", tools.partition("three")?, three("1,2", ""))?;
    equal(
        "under-replicated",
        tools.listed("--under-replicated-partitions")?,
        strings(&["alone", "strict", "three"]),
    )?;
    equal("under min.insync", tools.listed("--under-min-isr-partitions")?, strings(&["alone", "strict"]))?;
    equal("at min.insync", tools.listed("--at-min-isr-partitions")?, strings(&["three"]))?;
    equal("unavailable", tools.listed("--unavailable-partitions")?, strings(&["alone"]))?;
    let said = tools.ask("org.apache.kafka.tools.MetadataQuorumCommand", &["describe", "--status"])?;
    holds(&said, said.contains("LeaderId:") && said.contains("MaxFollowerLag:"))?;
    let (lag, heard, _) = tools.in_quorum(3)?;
    holds(&format!("broker 3 has not heard of {lag} changes"), lag > 0)?;
    holds(&format!("last heard at {heard}, {before} before"), heard >= before)?;
    equal("the end", tools.end_of("three")?, format!("three:0:{end}"))?;

    // Back, and behind: nothing is sent to it.
    let listed = to.alter("three", "leader.replication.throttled.replicas", 0, Some("*"))?;
    equal("listing its copies", listed, 0)?;
    set_rate(&mut to, Some("0"))?;
    cluster.broker(3)?.start()?;
    cluster.wait_alive(&[1, 2, 3])?;
    wait::until("broker 3 to know how far it is behind", AGREE, || {
        Ok((tools.lag(3, "three")? == Some(lacked)).then_some(()))
    })?;
    // Until it is known that broker 3 leads it again.
    wait_isr(&mut cluster, "alone", &[3])?;
    wait_isr(&mut cluster, "strict", &[2, 1, 3])?;
    equal("behind", tools.partition("three")?, three("1,2", ""))?;
    told(
        "only one to be under-replicated",
        || tools.listed("--under-replicated-partitions"),
        strings(&["three"]),
    )?;

    // Level again.
    set_rate(&mut to, None)?;
    wait_isr(&mut cluster, "three", &[1, 2, 3])?;
    wait_isr(&mut cluster, "strict", &[2, 1, 3])?;
    told("it to be back", || tools.partition("three"), three("1,2,3", ""))?;
    told("it not to lag", || tools.lag(3, "three"), Some(0))?;
    for filter in ["--under-replicated-partitions", "--under-min-isr-partitions"] {
        told(filter, || tools.listed(filter), strings(&[]))?;
    }
    told(
        "it to be heard of again",
        || tools.in_quorum(3).map(|(lag, heard_again, _)| (lag, heard_again > heard)),
        (0, true),
    )?;
    journal.append(&mut to, 0)?;
    journal.check(&mut cluster)?;
    cluster.all_run()?;
    stage.verify(&mut cluster)?;
    Ok(String::new())
}

/// Sets what every broker may send of throttled copies, or removes that.
fn set_rate(to: &mut crate::raw::conn::Connection, rate: Option<&str>) -> Result<()> {
    let operation = if rate.is_some() { 0 } else { 1 };
    let error = to.alter_broker("", "leader.replication.throttled.rate", operation, rate)?;
    equal("setting the rate", error, 0)
}
