//! Replicas that move with their records, by Kafka's own tool: throttled, cancelled, more of them and fewer.

use std::collections::BTreeSet;
use std::path::{Path, PathBuf};
use std::time::{Duration, Instant};

use anyhow::{Context, Result};
use felix_protocol::ids::{TopicId, Uuid};

use crate::cluster::Case;
use crate::cluster::plan::{AGREE, Cluster};
use crate::cluster::stage::Stage;
use crate::cluster::topics::Journal;
use crate::raw::ask::cluster::PartitionDescribed;
use crate::raw::batch::Batch;
use crate::raw::conn::Connection;
use crate::raw::expect::{equal, holds};
use crate::raw::stage::time;
use crate::wait;

pub const CASES: &[Case] = &[
    Case {
        name: "reassign-throttled",
        proves: "kafka-reassign-partitions moves a partition with records to other brokers under --throttle, at about that rate (KIP-73); it is \
                 listed with what is added and removed, staged copies are not in sync, and writes go on; --verify ends the throttle, and \
                 the old copies leave the disk",
        seconds: 120,
        run: throttled,
    },
    Case {
        name: "reassign-cancelled",
        proves: "a move that stands still, throttled to nothing, holds up no acks=all write of what is in sync; the throttle binds also those that \
                 are listed as `*`; --cancel goes back to the old set at once, and the staged copies leave the disk",
        seconds: 120,
        run: cancelled,
    },
    Case {
        name: "reassign-grows-and-shrinks",
        proves: "one replica becomes three and three become one of another broker, with all records, need following; each time --verify says so",
        seconds: 120,
        run: grows_and_shrinks,
    },
];

const TOOL: &str = "org.apache.kafka.tools.reassign.ReassignPartitionsCommand";
/// How long copies may take to get where they should be: on a busy machine they flap, and wait for up to a minute then.
const MOVED: Duration = Duration::from_secs(180);
/// Bytes of one batch that fills a partition.
const BATCH_BYTES: usize = 250_000;

/// A plan of moves in a file, and the tool that is given it.
struct Mover<'a> {
    stage: &'a Stage,
    bootstrap: String,
    plan: PathBuf,
}

impl<'a> Mover<'a> {
    fn new(stage: &'a Stage, cluster: &Cluster) -> Self {
        Self { stage, bootstrap: cluster.bootstrap(), plan: cluster.folder().join("moves.json") }
    }

    /// The next words are about moving partition 0 of a topic to these brokers.
    fn to(&self, topic: &str, replicas: &[i32]) -> Result<()> {
        let one = format!(r#"{{"topic":"{topic}","partition":0,"replicas":{replicas:?}}}"#);
        Ok(std::fs::write(&self.plan, format!(r#"{{"version":1,"partitions":[{one}]}}"#))?)
    }

    fn say(&self, words: &[&str]) -> Result<String> {
        let plan = self.plan.to_string_lossy();
        let mut all = vec!["--bootstrap-server", &self.bootstrap];
        if words != ["--list"] {
            all.extend(["--reassignment-json-file", &plan]);
        }
        all.extend(words);
        Ok(self.stage.tool(TOOL, &all)?.1)
    }

    /// The same, which must say all of that.
    fn hear(&self, words: &[&str], expected: &[&str]) -> Result<()> {
        let said = self.say(words)?;
        for text in expected {
            holds(&format!("{words:?} says {text:?}: {said}"), said.contains(text))?;
        }
        Ok(())
    }
}

fn partition(cluster: &mut Cluster, at: i32, topic: &str) -> Result<PartitionDescribed> {
    let mut all = cluster.broker(at)?.connect()?.describe_partitions(topic)?;
    all.pop().with_context(|| format!("no partition of {topic}"))
}

/// Waits until all replicas of a topic's partition are these and in sync, and returns its leader.
fn settled(cluster: &mut Cluster, topic: &str, replicas: &[i32]) -> Result<i32> {
    let wanted: BTreeSet<i32> = replicas.iter().copied().collect();
    let mut last = String::new();
    let settled = wait::until(&format!("{topic} to be on {replicas:?}"), MOVED, || {
        let found = partition(cluster, 1, topic)?;
        let isr: BTreeSet<i32> = found.isr.iter().copied().collect();
        last = format!("{found:?}");
        Ok((found.replicas == replicas && isr == wanted).then_some(found.leader))
    });
    settled.context(last)
}

/// Fills the partition with so many batches of records that do not compress.
fn fill(to: &mut Connection, topic: &str, batches: usize) -> Result<()> {
    let mut seed = 0x9e37_79b9_u64;
    for _ in 0..batches {
        let value: String = std::iter::repeat_with(|| {
            seed = seed.wrapping_mul(6_364_136_223_846_793_005).wrapping_add(1_442_695_040_888_963_407);
            char::from(b'a' + u8::try_from(seed >> 60).unwrap_or(0))
        })
        .take(BATCH_BYTES)
        .collect();
        to.append(topic, &Batch::of(&[&value], time()))?;
    }
    Ok(())
}

/// The folder of a partition's copy.
fn copy(cluster: &mut Cluster, at: i32, topic: [u8; 16]) -> Result<PathBuf> {
    let name = format!("{}-0", TopicId(Uuid::from_bytes(topic)));
    Ok(cluster.broker(at)?.data_dir().join(name))
}

/// Bytes of the copy's log.
fn copied(folder: &Path) -> u64 {
    // A copy that is not there yet, or whose files come and go, has as many bytes as can be seen.
    let Ok(files) = std::fs::read_dir(folder) else { return 0 };
    let logs = files.flatten().filter(|file| file.path().extension().is_some_and(|ending| ending == "log"));
    logs.filter_map(|file| Some(file.metadata().ok()?.len())).sum()
}

fn wait_off_the_disk(cluster: &mut Cluster, brokers: &[i32], topic: [u8; 16]) -> Result<()> {
    for at in brokers {
        wait::until(&format!("the copy of {at} to leave the disk"), AGREE, || {
            Ok((!copy(cluster, *at, topic)?.exists()).then_some(()))
        })?;
    }
    Ok(())
}

/// Creates a topic on these brokers, and waits until all of them are in sync. Its id.
fn create(cluster: &mut Cluster, topic: &str, replicas: &[i32]) -> Result<[u8; 16]> {
    let mut to = cluster.broker(1)?.connect()?;
    let (error, message) = to.create_on(topic, 1, 1, &[replicas.to_vec()])?;
    equal(&format!("creating {topic}: {message:?}"), error, 0)?;
    settled(cluster, topic, replicas)?;
    Ok(to.topic(Some(topic), [0; 16], false)?.id)
}

/// What is set for throttling, on a topic or a broker: `key=value`.
fn throttles(to: &mut Connection, kind: i8, name: &str) -> Result<Vec<String>> {
    let all = to.configs(kind, name)?;
    let throttle = |name: &str| name.contains("replication.throttled");
    let set = all.into_iter().filter(|(name, _, source, _)| throttle(name) && *source != 5);
    Ok(set.map(|(name, value, ..)| format!("{name}={}", value.unwrap_or_default())).collect())
}

/// Bytes a second, from when `begin` has copying begin until 7/8 of these copies are there: must be as throttled, within a factor of two. The
/// looks begin before it: the tool that `begin` runs may take its time to end.
fn measure(all: u64, rate: u64, copies: &[PathBuf], begin: impl FnOnce() -> Result<()>) -> Result<f64> {
    let now = || (copies.iter().map(|folder| copied(folder)).sum::<u64>(), Instant::now());
    let (before, _) = now();
    let looks = || {
        let first = wait::until("copying to begin", MOVED, || {
            let now = now();
            Ok((now.0 > before + all / 16).then_some(now))
        })?;
        let second = wait::until("most to be copied", MOVED, || {
            let now = now();
            Ok((now.0 >= all * 7 / 8).then_some(now))
        })?;
        Ok((first, second))
    };
    let (first, second) = std::thread::scope(|scope| -> Result<_> {
        let looks = scope.spawn(looks);
        begin()?;
        looks.join().unwrap_or_else(|_| anyhow::bail!("the thread that looks has panicked"))
    })?;
    holds(&format!("{} to {} bytes are enough to tell", first.0, second.0), first.0 < all * 5 / 8)?;
    let took = second.1.duration_since(first.1).as_secs_f64();
    #[expect(clippy::cast_precision_loss, reason = "a few megabytes")]
    let (measured, wanted) = ((second.0 - first.0) as f64 / took, rate as f64);
    let holds_it = measured > wanted / 2.0 && measured < wanted * 2.0;
    holds(&format!("{measured:.0} bytes a second for {wanted:.0}"), holds_it)?;
    Ok(measured)
}

const RATE: u64 = 1_000_000;
/// What one follower may be sent.
const FOLLOWER_RATE: u64 = 300_000;
const FILLED: usize = 20;
const TOPIC: i8 = 2;
const BROKER: i8 = 4;

fn throttled(stage: &Stage) -> Result<String> {
    let mut cluster = stage.plan().brokers(4).start()?;
    let id = create(&mut cluster, "t", &[1, 2])?;
    let mut journal = Journal::new("t");
    fill(&mut cluster.broker(1)?.connect()?, "t", FILLED)?;
    journal.append(&mut cluster.broker(1)?.connect()?, 0)?;
    let mover = Mover::new(stage, &cluster);
    mover.to("t", &[3, 4])?;
    // Slow enough for tools that take their time.
    mover.hear(&["--throttle", "1000", "--execute"], &["Successfully started"])?;
    mover.hear(&["--list"], &["t-0: ", "adding: 3,4", "removing: 1,2"])?;
    mover.hear(&["--verify"], &["is still in progress"])?;
    equal("in sync meanwhile", partition(&mut cluster, 2, "t")?.isr, vec![1, 2])?;
    journal.append(&mut cluster.broker(1)?.connect()?, 0)?;
    // Both copies share what their leader may send.
    let both = [copy(&mut cluster, 3, id)?, copy(&mut cluster, 4, id)?];
    let all = 2 * u64::try_from(FILLED * BATCH_BYTES)?;
    let measured = measure(all, RATE, &both, || {
        let words = ["--throttle", &RATE.to_string(), "--additional", "--execute"];
        mover.hear(&words, &["Successfully started"])
    })?;
    let leader = settled(&mut cluster, "t", &[3, 4])?;
    holds(&format!("{leader} leads"), [3, 4].contains(&leader))?;
    let mut to = cluster.broker(2)?.connect()?;
    holds("the topic is throttled until --verify", !throttles(&mut to, TOPIC, "t")?.is_empty())?;
    mover.hear(&["--verify"], &["is completed", "Clearing broker-level throttles"])?;
    // Each broker tells its own.
    for (kind, name, at) in [(TOPIC, "t", 2), (BROKER, "1", 1), (BROKER, "3", 3)] {
        let mut to = cluster.broker(at)?.connect()?;
        wait::until(&format!("the throttle of {name} to end"), AGREE, || {
            Ok(throttles(&mut to, kind, name)?.is_empty().then_some(()))
        })?;
    }
    wait_off_the_disk(&mut cluster, &[1, 2], id)?;
    cluster.wait_serves(leader, "t", &[0])?;
    journal.append(&mut cluster.broker(leader)?.connect()?, 0)?;
    journal.check(&mut cluster)?;
    cluster.all_run()?;
    stage.verify(&mut cluster)?;
    Ok(format!("{measured:.0} bytes a second, throttled to {RATE}"))
}

fn cancelled(stage: &Stage) -> Result<String> {
    let mut cluster = stage.plan().brokers(4).start()?;
    let id = create(&mut cluster, "t", &[1, 2])?;
    let mut journal = Journal::new("t");
    let mut leader = cluster.broker(1)?.connect()?;
    fill(&mut leader, "t", 4)?;
    let mover = Mover::new(stage, &cluster);
    mover.to("t", &[4, 3])?;
    mover.hear(&["--throttle", "1", "--execute"], &["Successfully started"])?;
    for name in ["leader.replication.throttled.replicas", "follower.replication.throttled.replicas"] {
        equal(name, leader.alter("t", name, 0, Some("*"))?, 0)?;
    }
    wait::until("the staged copies to be made", AGREE, || {
        let there = [3, 4].map(|at| copy(&mut cluster, at, id).map(|folder| folder.exists()));
        Ok(there.into_iter().collect::<Result<Vec<_>>>()?.iter().all(|there| *there).then_some(()))
    })?;
    // What the follower that is in sync is sent would take two weeks at that rate.
    let began = Instant::now();
    fill(&mut leader, "t", 5)?;
    let wrote = began.elapsed();
    holds(&format!("writes go on: {wrote:?}"), wrote < Duration::from_secs(8))?;
    journal.append(&mut leader, 0)?;
    let found = partition(&mut cluster, 3, "t")?;
    equal("in sync", found.isr, vec![1, 2])?;
    equal("replicas", found.replicas, vec![4, 3, 1, 2])?;
    let need = leader.configs(TOPIC, "t")?.into_iter().find(|(name, ..)| name == "min.insync.replicas");
    equal("need", need.context("no min.insync.replicas")?.1, Some("2".to_owned()))?;
    for at in [3, 4] {
        let staged = copied(&copy(&mut cluster, at, id)?);
        holds(&format!("{at} has {staged} bytes"), staged <= 2 * u64::try_from(BATCH_BYTES)?)?;
    }
    mover.hear(&["--cancel"], &["Successfully cancelled partition reassignment for: t-0"])?;
    equal("the leader", settled(&mut cluster, "t", &[1, 2])?, 1)?;
    mover.hear(&["--list"], &["No partition reassignments found"])?;
    wait_off_the_disk(&mut cluster, &[3, 4], id)?;
    journal.append(&mut leader, 0)?;
    // Nothing is throttled any more. What a follower may be sent its leader keeps to by itself.
    let listed = leader.alter("t", "follower.replication.throttled.replicas", 0, Some("0:3"))?;
    equal("listing the follower's copy", listed, 0)?;
    let rate = FOLLOWER_RATE.to_string();
    let set = cluster.broker(3)?.connect()?.alter_broker(
        "3",
        "follower.replication.throttled.rate",
        0,
        Some(&rate),
    )?;
    equal("setting its rate", set, 0)?;
    mover.to("t", &[1, 2, 3])?;
    let all = u64::try_from(9 * BATCH_BYTES)?;
    let third = [copy(&mut cluster, 3, id)?];
    let measured =
        measure(all, FOLLOWER_RATE, &third, || mover.hear(&["--execute"], &["Successfully started"]))?;
    settled(&mut cluster, "t", &[1, 2, 3])?;
    journal.check(&mut cluster)?;
    cluster.all_run()?;
    stage.verify(&mut cluster)?;
    Ok(format!(
        "{} bytes acknowledged in {:.2} s while another copy stood still; then {measured:.0} bytes a second, throttled to {FOLLOWER_RATE}",
        5 * BATCH_BYTES,
        wrote.as_secs_f64()
    ))
}

fn grows_and_shrinks(stage: &Stage) -> Result<String> {
    let mut cluster = stage.plan().start()?;
    let id = create(&mut cluster, "t", &[1])?;
    let mut journal = Journal::new("t");
    fill(&mut cluster.broker(1)?.connect()?, "t", 8)?;
    let mover = Mover::new(stage, &cluster);
    let mut took = Vec::new();
    for (target, need) in [(&[1, 2, 3][..], "2"), (&[3][..], "1")] {
        journal.append(&mut leading(&mut cluster)?, 0)?;
        mover.to("t", target)?;
        let began = Instant::now();
        mover.hear(&["--execute"], &["Successfully started"])?;
        let leader = settled(&mut cluster, "t", target)?;
        took.push(began.elapsed());
        mover.hear(&["--verify"], &["is completed"])?;
        let mut to = cluster.broker(leader)?.connect()?;
        let shown = to.configs(TOPIC, "t")?.into_iter().find(|(name, ..)| name == "min.insync.replicas");
        equal("need", shown.context("no min.insync.replicas")?.1, Some(need.to_owned()))?;
        journal.append(&mut leading(&mut cluster)?, 0)?;
    }
    wait_off_the_disk(&mut cluster, &[1, 2], id)?;
    journal.check(&mut cluster)?;
    cluster.all_run()?;
    stage.verify(&mut cluster)?;
    Ok(format!("from --execute until in sync: {}", crate::cluster::stage::shown(&took)))
}

/// A connection to whoever leads, once that serves.
fn leading(cluster: &mut Cluster) -> Result<Connection> {
    let leader = partition(cluster, 1, "t")?.leader;
    cluster.wait_serves(leader, "t", &[0])?;
    cluster.broker(leader)?.connect()
}
