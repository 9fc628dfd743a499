//! Copies that stop for good and that nobody brings back by himself: one that knows more than its leader, and one whose disk fails it.

use std::path::{Path, PathBuf};
use std::time::Instant;

use anyhow::{Context, Result, ensure};
use serde_json::Value;

use super::operating::{asked, wait_says};
use super::partitioned::{ALL, served};
use super::truth::Tools;
use crate::cluster::Case;
use crate::cluster::plan::{AGREE, Cluster};
use crate::cluster::replicas::IN_SYNC;
use crate::cluster::stage::{Loader, Stage};
use crate::cluster::topics::{Journal, end_of};
use crate::raw::ask::code;
use crate::raw::compacted::{self, Writer};
use crate::raw::expect::{equal, holds};
use crate::wait;

pub const CASES: &[Case] = &[
    Case {
        name: "halted-below-mark",
        proves: "two of three brokers come back with their logs of an earlier time, and lead: the third, which knows of more that was acknowledged, halts as \
                 below_mark, is told of by /replication/halted, the metrics, felix status and Kafka's tools, and is rebuilt by nobody, through \
                 another leader and a restart; felix verify shows what differs, felix recover has it lead with everything, and \
                 a reassignment gives it up where that is decided; others go on",
        seconds: 150,
        run: below_mark,
    },
    Case {
        name: "halted-by-its-disk",
        proves: "the folder of a follower's copy goes away under it, then cannot be read at a start, and then that of a leader's goes away: each time that copy halts as storage and is \
                 told of, writes go on by the others, and the folder and a restart, as the page says, bring it back",
        seconds: 150,
        run: by_its_disk,
    },
    Case {
        name: "halted-in-compaction",
        proves: "what compaction wrote anew cannot take its place on the leader: its copy halts as storage, it gives the partition up by its own word while it \
                 serves everything else, another leads with all of it, and when the folder is in order a restart brings the copy back",
        seconds: 120,
        run: in_compaction,
    },
    Case {
        name: "halted-until-allowed",
        proves: "with felix.replication.rebuild.max.concurrent=0 a follower that retention has passed halts as needs_bootstrap, is told of, and stays so \
                 through a restart and another leader, while writes go on; once the setting is raised, by Kafka's means and at runtime, it is rebuilt and leads \
                 with all that is left",
        seconds: 120,
        run: until_allowed,
    },
];

const TOPIC: &str = "t";
const MIB: usize = 1 << 20;

/// The only row of a broker's page of halted copies, once there is one, which must say all of that.
fn wait_halted(cluster: &mut Cluster, at: i32, partition: i32, reason: &str) -> Result<Value> {
    let mut last = Vec::new();
    let row = wait::until(&format!("broker {at} to halt {partition}"), AGREE, || {
        last = cluster.broker(at)?.halted()?;
        let found = last.iter().find(|row| row["partition"]["index"] == partition && row["reason"] == reason);
        Ok(found.cloned())
    });
    let row = row.with_context(|| format!("{last:?}"))?;
    equal("the topic", &row["partition"]["topic"], &Value::from(TOPIC))?;
    equal("the node", &row["node"], &Value::from(at))?;
    for number in ["generation", "position"] {
        holds(&format!("{number} in {row}"), row[number].is_u64())?;
    }
    holds(&row.to_string(), row["remedy"].as_str().is_some_and(|remedy| remedy.len() > 20))?;
    Ok(row)
}

/// Nothing is halted there.
fn none_halted(cluster: &mut Cluster, brokers: &[i32]) -> Result<()> {
    for at in brokers {
        equal(&format!("halted on {at}"), cluster.broker(*at)?.halted()?, Vec::new())?;
        equal(
            &format!("counted on {at}"),
            cluster.broker(*at)?.metric("felix_broker_replication_halted")?,
            0.0,
        )?;
    }
    Ok(())
}

/// The folder of a partition's copy.
fn folder(cluster: &mut Cluster, at: i32, partition: i32) -> Result<PathBuf> {
    let id = cluster.broker(1)?.connect()?.topic(Some(TOPIC), [0; 16], false)?.id;
    let name = felix_protocol::ids::TopicId(felix_protocol::ids::Uuid::from_bytes(id));
    Ok(cluster.broker(at)?.data_dir().join(format!("{name}-{partition}")))
}

/// What the copy's segments hold.
fn bytes(folder: &Path) -> Result<Vec<(PathBuf, Vec<u8>)>> {
    let mut all = Vec::new();
    for entry in std::fs::read_dir(folder)? {
        let path = entry?.path();
        if path.extension().is_some_and(|ending| ending == "log") {
            let held = std::fs::read(&path)?;
            // What was set aside for records to come is empty.
            let used = held.iter().rposition(|byte| *byte != 0).map_or(0, |last| last + 1);
            all.push((path, held[..used].to_vec()));
        }
    }
    all.sort();
    Ok(all)
}

/// Copies a broker's logs and its table of copies, and nothing that tells of its sessions, to `to`, instead of what is there.
fn copy_logs(from: &Path, to: &Path) -> Result<()> {
    for entry in std::fs::read_dir(from)? {
        let (path, name) = entry.map(|entry| (entry.path(), entry.file_name()))?;
        let target = to.join(&name);
        if path.is_dir() {
            if target.exists() {
                std::fs::remove_dir_all(&target)?;
            }
            std::fs::create_dir_all(&target)?;
            for file in std::fs::read_dir(&path)? {
                let file = file?;
                std::fs::copy(file.path(), target.join(file.file_name()))?;
            }
        } else if name == "replicas.table" {
            std::fs::copy(&path, &target)?;
        }
    }
    Ok(())
}

/// Starts brokers, and waits until they know of each other.
fn start(cluster: &mut Cluster, brokers: &[i32], alive: &[i32]) -> Result<()> {
    for at in brokers {
        cluster.broker(*at)?.spawn()?;
    }
    for at in brokers {
        cluster.broker(*at)?.wait_ready()?;
    }
    cluster.wait_alive_as_seen_by(alive, alive)
}

fn stop(cluster: &mut Cluster, brokers: &[i32]) -> Result<()> {
    brokers.iter().try_for_each(|at| cluster.broker(*at)?.stop())
}

/// Appends so many records with acks=all to each partition.
fn append(cluster: &mut Cluster, journal: &mut Journal, partitions: &[i32], count: usize) -> Result<()> {
    for partition in partitions {
        for _ in 0..count {
            journal.append_to_leader(cluster, 1, *partition)?;
        }
    }
    Ok(())
}

/// What the rest of the world says of a copy on broker 3 that has halted: its broker, `felix status` and Kafka's tools.
fn told_of(stage: &Stage, cluster: &mut Cluster, row: &Value, halted: usize) -> Result<String> {
    let number = cluster.broker(3)?.metric("felix_broker_replication_halted")?;
    holds(&format!("{number} are counted"), number == f64::from(u32::try_from(halted)?))?;
    none_halted(cluster, &[1, 2])?;
    let (reason, remedy) = (row["reason"].as_str(), row["remedy"].as_str());
    let line = format!("{}-{}: {}", TOPIC, row["partition"]["index"], reason.unwrap_or_default());
    let says = [line, remedy.unwrap_or_default().to_owned(), format!("{halted} copies")];
    wait_says(stage, cluster, &[3], 1, &says)?;
    let tools = Tools::of(stage, cluster, 2)?;
    // As long as one of the others is out of the set, too, a halted copy stays in it: too few would be left.
    let mut last = String::new();
    let isr = wait::until("3 to be in neither set", AGREE, || {
        let [leader, replicas, isr, elr] = tools.partition(TOPIC)?;
        last = format!("led by {leader}, in sync {isr}, eligible {elr}");
        let mut replicas: Vec<&str> = replicas.split(',').collect();
        replicas.sort_unstable();
        equal("replicas", replicas, vec!["1", "2", "3"])?;
        let good = ["1", "2"].contains(&leader.as_str()) && !isr.contains('3') && !elr.contains('3');
        Ok(good.then_some(isr))
    });
    let isr = isr.context(last)?;
    let listed = tools.listed("--under-replicated-partitions")?;
    let seen = ALL.map(|at| cluster.described(at, TOPIC));
    holds(&format!("under-replicated {listed:?}: {seen:?}"), listed.contains(&TOPIC.to_owned()))?;
    let lag = tools.lag(3, TOPIC)?;
    holds(&format!("its lag is not known: {lag:?}"), lag.is_none_or(|lag| lag < 0))?;
    Ok(isr)
}

fn below_mark(stage: &Stage) -> Result<String> {
    let mut cluster = stage.plan().start()?;
    cluster.create_placed(1, TOPIC, &[vec![1, 2, 3], vec![2, 1, 3]])?;
    let both = [0, 1];
    let mut before = Journal::new(TOPIC);
    append(&mut cluster, &mut before, &both, 20)?;
    let common = before.clone();
    stop(&mut cluster, &ALL)?;
    let kept = cluster.folder().join("kept");
    for at in [1, 2] {
        let to = kept.join(at.to_string());
        std::fs::create_dir_all(&to)?;
        copy_logs(cluster.broker(at)?.data_dir(), &to)?;
    }
    start(&mut cluster, &ALL, &ALL)?;
    cluster.wait_in_sync(1, TOPIC, &ALL)?;
    append(&mut cluster, &mut before, &both, 20)?;
    // The frame that brings it tells the mark before it.
    cluster.tell_marks(1, TOPIC)?;
    stop(&mut cluster, &[3, 2, 1])?;
    for at in [1, 2] {
        copy_logs(&kept.join(at.to_string()), cluster.broker(at)?.data_dir())?;
    }

    // Those two know nothing of what they have lost, lead, and take records.
    start(&mut cluster, &[1, 2], &[1, 2])?;
    let mut meanwhile = Journal::new(TOPIC);
    for partition in both {
        let (leader, _) = cluster.wait_leader(1, TOPIC, usize::try_from(partition)?, Some(3))?;
        cluster.wait_serves(leader, TOPIC, &[partition])?;
        let end = cluster.broker(leader)?.connect()?.offset_at(TOPIC, partition, -1)?.offset;
        holds(&format!("{end} records of 40 are left"), end < 40)?;
    }
    append(&mut cluster, &mut meanwhile, &both, 5)?;
    cluster.create_placed_at_some(1, "u", &[vec![1, 2], vec![2, 1]], &[1, 2])?;
    let mut load = stage.load_existing(&cluster, Loader::Rdkafka, "u", 2)?;
    load.measure()?;

    // The third does.
    let held = [folder(&mut cluster, 3, 0)?, folder(&mut cluster, 3, 1)?];
    let bytes_before = [bytes(&held[0])?, bytes(&held[1])?];
    start(&mut cluster, &[3], &ALL)?;
    let row = wait_halted(&mut cluster, 3, 0, "below_mark")?;
    wait_halted(&mut cluster, 3, 1, "below_mark")?;
    holds(&row.to_string(), row["position"].as_i64().is_some_and(|position| position > 40))?;
    told_of(stage, &mut cluster, &row, 2)?;
    load.progress(50)?;
    append(&mut cluster, &mut meanwhile, &both, 5)?;
    let unlike = |cluster: &mut Cluster| -> Result<()> {
        wait_halted(cluster, 3, 0, "below_mark")?;
        wait_halted(cluster, 3, 1, "below_mark")?;
        for (folder, before) in held.iter().zip(&bytes_before) {
            holds("its bytes are as they were", bytes(folder)? == *before)?;
        }
        let alive: Vec<i32> = cluster.brokers_that_run();
        let rebuilt = cluster.sum(&alive, "felix_broker_replication_rebuilding")?;
        equal("copies being rebuilt", rebuilt, 0.0)
    };
    unlike(&mut cluster)?;
    // Another leader, and a restart, change nothing.
    let (leader, _) = cluster.wait_leader(3, TOPIC, 0, None)?;
    cluster.broker(leader)?.stop()?;
    let (other, _) = cluster.wait_leader(3, TOPIC, 0, Some(leader))?;
    holds(&format!("{other} leads"), [1, 2].contains(&other))?;
    unlike(&mut cluster)?;
    start(&mut cluster, &[leader], &ALL)?;
    cluster.wait_in_sync(1, TOPIC, &[1, 2])?;
    cluster.broker(3)?.kill();
    start(&mut cluster, &[3], &ALL)?;
    unlike(&mut cluster)?;
    append(&mut cluster, &mut meanwhile, &both, 5)?;

    // Of partition 1 it is decided that those two are right: the third copy is given up.
    let mover = |cluster: &mut Cluster, replicas: &[i32]| -> Result<()> {
        let mut to = cluster.broker(1)?.connect()?;
        to.reassign_one(TOPIC, 1, replicas)?;
        wait::until(&format!("it to be moved to {replicas:?}"), IN_SYNC, || {
            let seen = cluster.described(1, TOPIC)?[1].clone();
            let mut isr = seen.isr.clone();
            isr.sort_unstable();
            let none = cluster.broker(1)?.connect()?.reassigning()? == 0;
            Ok((none && seen.replicas == replicas && isr.len() == replicas.len()).then_some(()))
        })
    };
    mover(&mut cluster, &[2, 1])?;
    wait::until("the copy to be given up", AGREE, || {
        Ok((cluster.broker(3)?.halted()?.len() == 1 && !held[1].exists()).then_some(()))
    })?;
    mover(&mut cluster, &[2, 1, 3])?;
    equal("halted", cluster.broker(3)?.halted()?.len(), 1)?;
    let stall = load.longest_stall()?;
    let sent = load.finish()?;

    // Of partition 0 that the third is. First the copies are compared.
    let etcd = cluster.etcd[0].address().to_string();
    let recover = |words: &[&str]| -> Result<(Option<i32>, String)> {
        let (status, output) =
            stage.felix(&[&["recover", "partition"], words, &["--etcd", &etcd]].concat())?;
        Ok((status.code(), output))
    };
    let (ended, output) = recover(&["t-0", "--to", "3", "--yes"])?;
    holds(&output, ended == Some(1) && output.contains("leads it"))?;
    stop(&mut cluster, &[3, 1, 2])?;
    let directories: Vec<String> =
        cluster.brokers().map(|broker| broker.data_dir().to_string_lossy().into_owned()).collect();
    let words: Vec<&str> = ["verify"].into_iter().chain(directories.iter().map(String::as_str)).collect();
    let (status, verified) = stage.felix(&words)?;
    holds(&verified, !status.success() && verified.contains("differ"))?;
    start(&mut cluster, &[3], &[3])?;
    cluster.wait_leader_none(3, TOPIC, 0)?;
    let server = cluster.broker(3)?.pages().to_string();
    let (ended, shown) = recover(&["t-0", "--to", "3", "--ask", &server])?;
    let says = ["-> broker 3: live", "LOST: ", "Nothing was written"];
    holds(&shown, ended == Some(0) && says.iter().all(|text| shown.contains(text)))?;
    let (ended, output) = recover(&["t-0", "--to", "3", "--yes"])?;
    holds(&output, ended == Some(0) && output.contains("1 partitions have a leader"))?;
    let (led, _) = cluster.wait_leader(3, TOPIC, 0, None)?;
    equal("who leads", led, 3)?;
    start(&mut cluster, &[1, 2], &ALL)?;
    cluster.wait_in_sync(3, TOPIC, &ALL)?;
    none_halted(&mut cluster, &ALL)?;
    let losses = cluster.sum(&ALL, "felix_broker_loss_events_total")?;
    holds(&format!("{losses} loss events"), losses >= 1.0)?;

    // Everything is there of what was acknowledged before in 0, and of what the two had and took in 1.
    let mut all = before.only(0);
    append(&mut cluster, &mut all, &[0], 10)?;
    all.check(&mut cluster)?;
    common.check(&mut cluster)?;
    meanwhile.only(1).check(&mut cluster)?;
    wait_says(stage, &mut cluster, &ALL, 0, &[])?;
    cluster.all_run()?;
    let compared = stage.verify_copies(&mut cluster, 2)?;
    let lost = shown.lines().find(|line| line.contains("LOST: ")).unwrap_or_default().trim().to_owned();
    Ok(format!(
        "halted at {} of generation {}; {lost}; {sent} records of a load went on, its longest stall {:.2} s; {compared}",
        row["position"],
        row["generation"],
        stall.as_secs_f64()
    ))
}

/// Appends so many batches of almost 1 MiB with acks=all to whoever leads.
fn fill(cluster: &mut Cluster, journal: &mut Journal, at: i32, batches: usize) -> Result<()> {
    let filler = "x".repeat(MIB - 2_000);
    for _ in 0..batches {
        let mut last = 0;
        let taken = wait::until("a large batch to be taken", AGREE, || {
            let leader = cluster.described(at, TOPIC)?[0].leader;
            let Ok(mut to) = served(cluster, leader) else { return Ok(None) };
            last = journal.try_append_filled(&mut to, 0, &filler)?;
            Ok((last == code::NONE).then_some(()))
        });
        taken.with_context(|| format!("error {last}"))?;
    }
    Ok(())
}

/// The remedy speaks of the line of the log that names the file.
fn names_file(cluster: &mut Cluster, at: i32, folder: &Path) -> Result<()> {
    let log = cluster.broker(at)?.node.log_from(0);
    let named = log.lines().any(|line| line.contains("refuses") && line.contains(&*folder.to_string_lossy()));
    holds("the log names the file", named)
}

fn by_its_disk(stage: &Stage) -> Result<String> {
    let mut cluster = stage.plan().set("log.segment.bytes", "1048576").start()?;
    cluster.create_placed(1, TOPIC, &[vec![1, 2, 3]])?;
    cluster.create_placed(1, "u", &[vec![1, 2, 3], vec![2, 3, 1], vec![3, 1, 2]])?;
    let mut load = stage.load_existing(&cluster, Loader::Rdkafka, "u", 3)?;
    let mut journal = Journal::new(TOPIC);
    append(&mut cluster, &mut journal, &[0], 10)?;
    let aside = cluster.folder().join("aside");
    let mut told = Vec::new();

    // A follower's folder goes away under it: it finds out when it begins the next segment.
    let held = folder(&mut cluster, 3, 0)?;
    std::fs::rename(&held, &aside)?;
    fill(&mut cluster, &mut journal, 1, 4)?;
    let row = wait_halted(&mut cluster, 3, 0, "storage")?;
    names_file(&mut cluster, 3, &held)?;
    told_of(stage, &mut cluster, &row, 1)?;
    append(&mut cluster, &mut journal, &[0], 10)?;
    load.progress(50)?;
    holds("its broker goes on", cluster.broker(3)?.ready())?;
    told.push(row["position"].to_string());
    // What the page says: the disk is seen to, and the broker is restarted.
    if held.exists() {
        std::fs::remove_dir_all(&held)?;
    }
    std::fs::rename(&aside, &held)?;
    cluster.broker(3)?.stop()?;
    start(&mut cluster, &[3], &ALL)?;
    cluster.wait_in_sync(1, TOPIC, &ALL)?;
    none_halted(&mut cluster, &ALL)?;

    // It cannot be read at a start.
    cluster.broker(3)?.stop()?;
    std::fs::rename(&held, &aside)?;
    std::fs::write(&held, "not a folder")?;
    start(&mut cluster, &[3], &ALL)?;
    let row = wait_halted(&mut cluster, 3, 0, "storage")?;
    told_of(stage, &mut cluster, &row, 1)?;
    append(&mut cluster, &mut journal, &[0], 10)?;
    cluster.wait_in_sync(1, "u", &ALL)?;
    load.progress(50)?;
    cluster.broker(3)?.stop()?;
    std::fs::remove_file(&held)?;
    std::fs::rename(&aside, &held)?;
    start(&mut cluster, &[3], &ALL)?;
    cluster.wait_in_sync(1, TOPIC, &ALL)?;
    none_halted(&mut cluster, &ALL)?;

    // A leader's folder: another leads.
    let (leader, _) = cluster.wait_leader(1, TOPIC, 0, None)?;
    let witness = leader % 3 + 1;
    let held = folder(&mut cluster, leader, 0)?;
    std::fs::rename(&held, &aside)?;
    fill(&mut cluster, &mut journal, witness, 4)?;
    let (other, _) = cluster.wait_leader(witness, TOPIC, 0, Some(leader))?;
    let row = wait_halted(&mut cluster, leader, 0, "storage")?;
    names_file(&mut cluster, leader, &held)?;
    told.push(row["position"].to_string());
    append(&mut cluster, &mut journal, &[0], 10)?;
    load.progress(50)?;
    let (ended, output) = asked(stage, &mut cluster, &[leader])?;
    holds(&output, ended == Some(1) && output.contains("storage"))?;
    if held.exists() {
        std::fs::remove_dir_all(&held)?;
    }
    std::fs::rename(&aside, &held)?;
    cluster.broker(leader)?.stop()?;
    start(&mut cluster, &[leader], &ALL)?;
    cluster.wait_in_sync(witness, TOPIC, &ALL)?;
    none_halted(&mut cluster, &ALL)?;
    ensure!(other != leader, "another leads");

    let sent = load.finish()?;
    journal.check(&mut cluster)?;
    cluster.all_run()?;
    let compared = stage.verify_copies(&mut cluster, 4)?;
    Ok(format!("halted at {}; {sent} records of a load went on; {compared}", told.join(" and ")))
}

/// Segments that compaction merges with the one before them.
const MERGED: usize = 3;

fn in_compaction(stage: &Stage) -> Result<String> {
    let mut cluster = stage.plan().set("log.cleaner.backoff.ms", "200").start()?;
    cluster.create_placed(1, TOPIC, &[vec![3, 1, 2]])?;
    cluster.create_placed(1, "u", &[vec![1, 2, 3], vec![2, 3, 1], vec![3, 1, 2]])?;
    let mut load = stage.load_existing(&cluster, Loader::Rdkafka, "u", 3)?;
    let mut to = served(&mut cluster, 3)?;
    let (policy, others): (Vec<_>, Vec<_>) =
        compacted::settings().into_iter().partition(|(name, _)| *name == "cleanup.policy");
    for (name, value) in others {
        equal(name, to.alter(TOPIC, name, 0, Some(value))?, 0)?;
    }
    let mut writer = Writer::new(TOPIC);
    for segment in 0..=MERGED {
        let value = format!("in segment {segment}");
        writer.send(&mut to, 0, &[("a", Some(&value)), ("b", Some(&value))])?;
        writer.close_segment();
    }
    writer.close(&mut to)?;
    cluster.wait_in_sync(1, TOPIC, &ALL)?;

    // A folder has the name that a segment is to have while it is on its way out.
    let held = folder(&mut cluster, 3, 0)?;
    let mut obstacles = Vec::new();
    for (log, _) in bytes(&held)?.into_iter().skip(1).take(MERGED) {
        let obstacle = PathBuf::from(format!("{}.deleted", log.display()));
        std::fs::create_dir(&obstacle)?;
        std::fs::write(obstacle.join("file"), "in its way")?;
        obstacles.push(obstacle);
    }
    equal("obstacles", obstacles.len(), MERGED)?;
    let (before, losses) =
        (cluster.described(1, TOPIC)?, cluster.sum(&ALL, "felix_broker_loss_events_total")?);
    for (name, value) in policy {
        equal(name, served(&mut cluster, 1)?.alter(TOPIC, name, 0, Some(value))?, 0)?;
    }
    let row = wait_halted(&mut cluster, 3, 0, "storage")?;
    let since = Instant::now();
    let (leader, epoch) = cluster.wait_leader(1, TOPIC, 0, Some(3))?;
    let took = since.elapsed();
    holds(&format!("{epoch} after {before:?}"), epoch == before[0].epoch + 1)?;
    equal("loss events", cluster.sum(&ALL, "felix_broker_loss_events_total")?, losses)?;
    told_of(stage, &mut cluster, &row, 1)?;
    holds("it serves everything else", cluster.broker(3)?.ready())?;
    load.progress(50)?;
    let mut to = served(&mut cluster, leader)?;
    writer.send(&mut to, 0, &[("a", Some("by another leader"))])?;
    writer.close(&mut to)?;
    writer.wait_compacted(&mut to)?;

    cluster.broker(3)?.stop()?;
    for obstacle in obstacles.iter().filter(|obstacle| obstacle.is_dir()) {
        std::fs::remove_dir_all(obstacle)?;
    }
    start(&mut cluster, &[3], &ALL)?;
    cluster.wait_in_sync(1, TOPIC, &ALL)?;
    none_halted(&mut cluster, &ALL)?;
    let (leader, _) = cluster.wait_leader(1, TOPIC, 0, None)?;
    writer.wait_compacted(&mut served(&mut cluster, leader)?)?;

    let sent = load.finish()?;
    cluster.all_run()?;
    let compared = stage.verify_copies(&mut cluster, 4)?;
    Ok(format!(
        "another led {:.2} s after the copy had halted; {sent} records of a load; {compared}",
        took.as_secs_f64()
    ))
}

/// How many copies may be rebuilt at the same time.
const REBUILDS: &str = "felix.replication.rebuild.max.concurrent";

fn until_allowed(stage: &Stage) -> Result<String> {
    let mut cluster = stage.plan().set(REBUILDS, "0").start()?;
    cluster.create_placed(1, TOPIC, &[vec![1, 2, 3]])?;
    cluster.create_placed(1, "u", &[vec![1, 2, 3], vec![2, 3, 1]])?;
    let mut load = stage.load_existing(&cluster, Loader::Rdkafka, "u", 2)?;
    let mut journal = Journal::new(TOPIC);
    append(&mut cluster, &mut journal, &[0], 20)?;
    cluster.wait_in_sync(1, TOPIC, &ALL)?;
    let (leader, _) = cluster.wait_leader(1, TOPIC, 0, None)?;
    let held = end_of(&mut served(&mut cluster, leader)?, TOPIC)?;
    cluster.broker(3)?.kill();
    cluster.wait_in_sync(1, TOPIC, &[1, 2])?;
    append(&mut cluster, &mut journal, &[0], 20)?;
    let (leader, _) = cluster.wait_leader(1, TOPIC, 0, Some(3))?;
    let (error, _) = cluster.broker(leader)?.connect()?.delete_records(TOPIC, held + 10)?;
    equal("DeleteRecords", error, code::NONE)?;
    journal.forget_below(0, held + 10);

    start(&mut cluster, &[3], &ALL)?;
    let row = wait_halted(&mut cluster, 3, 0, "needs_bootstrap")?;
    equal("its position", &row["position"], &Value::from(held))?;
    told_of(stage, &mut cluster, &row, 1)?;
    append(&mut cluster, &mut journal, &[0], 10)?;
    cluster.broker(3)?.kill();
    start(&mut cluster, &[3], &ALL)?;
    wait_halted(&mut cluster, 3, 0, "needs_bootstrap")?;
    cluster.broker(leader)?.stop()?;
    cluster.wait_leader(3, TOPIC, 0, Some(leader))?;
    start(&mut cluster, &[leader], &ALL)?;
    cluster.wait_in_sync(1, TOPIC, &[1, 2])?;
    wait_halted(&mut cluster, 3, 0, "needs_bootstrap")?;
    append(&mut cluster, &mut journal, &[0], 10)?;
    cluster.wait_in_sync(1, "u", &ALL)?;
    load.progress(50)?;
    load.all_go_on()?;

    let began = Instant::now();
    let set = cluster.broker(2)?.connect()?.alter_broker("", REBUILDS, 0, Some("1"))?;
    equal("raising the setting", set, code::NONE)?;
    cluster.wait_in_sync(1, TOPIC, &ALL)?;
    let took = began.elapsed();
    none_halted(&mut cluster, &ALL)?;
    append(&mut cluster, &mut journal, &[0], 10)?;
    let sent = load.finish()?;
    cluster.tell_marks(1, TOPIC)?;
    // Who was late with that record is out of the set until it has it; nothing is written any more that could make it so again.
    cluster.wait_in_sync(1, TOPIC, &ALL)?;
    for gone in [1, 2] {
        cluster.broker(gone)?.kill();
    }
    let (leader, _) = cluster.wait_leader(3, TOPIC, 0, Some(1))?;
    equal("who leads", leader, 3)?;
    journal.check_as_seen_by(&mut cluster, 3)?;
    start(&mut cluster, &[1, 2], &ALL)?;
    cluster.wait_in_sync(3, TOPIC, &ALL)?;
    cluster.all_run()?;
    let compared = stage.verify_copies(&mut cluster, 3)?;
    Ok(format!(
        "in sync {:.2} s after it was allowed; {sent} records of a load went on; {compared}",
        took.as_secs_f64()
    ))
}
