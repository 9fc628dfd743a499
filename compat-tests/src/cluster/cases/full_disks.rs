//! Brokers of replicated topics whose disks are small and fill up.

use std::time::{Duration, Instant};

use anyhow::{Context, Result, ensure};

use super::partitioned::{ALL, OFFSETS, all_in_sync, each_leads, resumed, served};
use crate::cluster::Case;
use crate::cluster::plan::{AGREE, Cluster, Plan};
use crate::cluster::stage::Stage;
use crate::cluster::topics::{Journal, stored};
use crate::raw::ask::code;
use crate::raw::conn::Connection;
use crate::raw::expect::{equal, holds, one_of};
use crate::raw::small_disk::SmallDisk;
use crate::wait;

pub const CASES: &[Case] = &[
    Case {
        name: "one-disk-full",
        proves: "the disk of one of three brokers fills up under acks=all: what it led is led by another, writes, group commits and the deletion of topics \
                 go on, and it serves reads; killed and started while full it is there again; when space returns, all copies are in sync \
                 within 30 s, nothing acknowledged is lost (B067)",
        seconds: 120,
        run: one_full,
    },
    Case {
        name: "small-disks-and-a-stalled-follower",
        proves: "three brokers on small disks, a follower stands still, acks=1 at full speed, a topic that may keep little: no broker ends, nothing is \
                 deleted at or above the mark of those that stand for it, what can be read has no gaps, and the follower comes back (B078)",
        seconds: 120,
        run: stalled,
    },
];

const MIB: usize = 1 << 20;
/// Space must have made up for all within this.
const HEALED: Duration = Duration::from_secs(30);

/// Starts a cluster some of whose brokers have a small disk of so many mebibytes.
fn on_small_disks(stage: &Stage, plan: Plan, sizes: &[(i32, u32)]) -> Result<(Cluster, Vec<SmallDisk>)> {
    let mut cluster = plan.start_etcd()?;
    let mut disks = Vec::new();
    for _ in ALL {
        let id = cluster.prepare_broker()?;
        if let Some((_, size)) = sizes.iter().find(|(broker, _)| *broker == id) {
            let folder = cluster.broker(id)?.data_dir().to_path_buf();
            std::fs::create_dir_all(&folder)?;
            disks.push(SmallDisk::mount_on(folder, *size, &stage.log("mount.log"))?);
        }
    }
    for id in ALL {
        cluster.broker(id)?.spawn()?;
    }
    for id in ALL {
        cluster.broker(id)?.wait_ready()?;
    }
    cluster.wait_alive(&ALL)?;
    Ok((cluster, disks))
}

/// Appends with acks=all to a leader until it refuses; what it says then.
fn until_refused(to: &mut Connection, journal: &mut Journal, filler: &str) -> Result<i16> {
    for _ in 0..10_000 {
        let error = journal.try_append_filled(to, 0, filler)?;
        if error != code::NONE {
            return Ok(error);
        }
    }
    anyhow::bail!("the disk does not fill up")
}

/// A commit that is taken in the end, by whoever coordinates the group.
fn commit(cluster: &mut Cluster, at: i32, group: &str, offset: i64) -> Result<()> {
    let mut last = String::new();
    let committed = wait::until(&format!("a commit of {group}"), AGREE, || {
        let (error, id) = cluster.broker(at)?.connect()?.coordinator_of(group)?;
        last = format!("{id}: {error}");
        if error != code::NONE {
            return Ok(None);
        }
        let committed = cluster.broker(id)?.connect().and_then(|mut to| to.commit(group, "led", offset));
        last = format!("{id}: {committed:?}");
        Ok(committed.is_ok_and(|error| error == code::NONE).then_some(()))
    });
    committed.with_context(|| last)
}

fn one_full(stage: &Stage) -> Result<String> {
    let plan = stage.plan().replicated().set("log.segment.bytes", "1048576").set("min.insync.replicas", "2");
    let (mut cluster, disks) = on_small_disks(stage, plan, &[(1, 64)])?;
    let disk = disks.first().context("no disk")?;
    let [led, followed, doomed] = ["led", "followed", "doomed"];
    for (topic, placed) in [(led, [1, 2, 3]), (followed, [2, 3, 1]), (doomed, [1, 3, 2])] {
        cluster.create_placed(2, topic, &[placed.to_vec()])?;
    }
    let groups = ["g0", "g1", "g2", "g3", "g4", "g5"];
    for group in groups {
        commit(&mut cluster, 2, group, 1)?;
    }
    all_in_sync(&mut cluster, &[OFFSETS])?;
    disk.fill(16 << 20)?;
    let mut journals = [Journal::new(led), Journal::new(followed)];
    let mut to = served(&mut cluster, 1)?;
    let refused = until_refused(&mut to, &mut journals[0], &"x".repeat(60_000))?;
    one_of("a full disk", refused, &[code::KAFKA_STORAGE_ERROR, code::NOT_LEADER_OR_FOLLOWER])?;
    let taken = journals[0].len();
    holds(&format!("{taken} records taken"), taken > 100)?;
    // Whatever was left is gone, too.
    disk.fill(0)?;
    let began = Instant::now();
    for journal in &mut journals {
        for _ in 0..20 {
            journal.append_to_leader(&mut cluster, 2, 0)?;
        }
    }
    let went_on = began.elapsed();
    let (leader, _) = cluster.wait_leader(2, led, 0, None)?;
    holds("another leads what it led", leader != 1)?;
    for group in groups {
        commit(&mut cluster, 2, group, 2)?;
    }
    cluster.broker(2)?.connect()?.delete(doomed)?;
    holds("it answers", to.sees_a_broker()?)?;
    cluster.all_run()?;

    disk.fill(0)?;
    cluster.broker(1)?.kill();
    cluster.broker(1)?.start().context("a start on a full disk")?;
    cluster.wait_alive(&ALL)?;
    for (journal, topic) in journals.iter_mut().zip([led, followed]) {
        journal.append_to_leader(&mut cluster, 3, 0)?;
        journal.check_as_seen_by(&mut cluster, 2).context(topic)?;
    }
    let began = Instant::now();
    std::fs::remove_file(disk.0.join("balloon"))?;
    // The others may be out of a set for a while for reasons of their own.
    for topic in [led, followed, OFFSETS] {
        let left = HEALED.saturating_sub(began.elapsed());
        wait::until(&format!("it to be in sync for {topic}"), left, || {
            let all = cluster.described(2, topic)?;
            Ok((!all.is_empty() && all.iter().all(|seen| seen.isr.contains(&1))).then_some(()))
        })?;
    }
    let healed = began.elapsed();
    all_in_sync(&mut cluster, &[led, followed, OFFSETS])?;
    // It leads again, and takes writes.
    wait::until("it to be elected", AGREE, || {
        cluster.broker(2)?.connect()?.elect_preferred(led, 0)?;
        Ok((cluster.partitions(2, led)?[0].leader == 1).then_some(()))
    })?;
    cluster.wait_serves(1, led, &[0])?;
    let mut to = served(&mut cluster, 1)?;
    wait::until("a write to be taken", AGREE, || {
        Ok((journals[0].try_append(&mut to, 0)? == code::NONE).then_some(()))
    })?;
    for journal in &journals {
        journal.check(&mut cluster)?;
    }
    for group in groups {
        let (_, id) = cluster.broker(1)?.connect()?.coordinator_of(group)?;
        let mut to = cluster.broker(id)?.connect()?;
        to.coordinator(group)?;
        equal(group, to.committed_offset(group, led)?, 2)?;
    }
    cluster.all_run()?;
    let compared = stage.verify_copies(&mut cluster, 5)?;
    Ok(format!(
        "refused with {refused} after {taken} records; the next 40 were acknowledged within {:.2} s; in sync {:.2} s after space came; {compared}",
        went_on.as_secs_f64(),
        healed.as_secs_f64()
    ))
}

fn stalled(stage: &Stage) -> Result<String> {
    let size = if stage.full { 256 } else { 96 };
    let plan = stage.plan().set("log.retention.check.interval.ms", "500");
    let (mut cluster, disks) = on_small_disks(stage, plan, &ALL.map(|id| (id, size)))?;
    cluster.create_placed(1, "t", &each_leads())?;
    let mut to = served(&mut cluster, 1)?;
    // What is deleted makes room soon.
    let little =
        [("segment.bytes", "1048576"), ("retention.bytes", "4194304"), ("file.delete.delay.ms", "500")];
    for (name, value) in little {
        equal(name, to.alter("t", name, 0, Some(value))?, code::NONE)?;
    }
    let follower = 3;
    let mut tos = vec![(1, 0, served(&mut cluster, 1)?), (2, 1, served(&mut cluster, 2)?)];
    cluster.broker(follower)?.pause()?;
    let mut journal = Journal::new("t").acks(1);
    let filler = "x".repeat(900_000);
    let long = Duration::from_secs(if stage.full { 60 } else { 4 });
    let much = 2 * usize::try_from(size)? * MIB / filler.len();
    let (began, mut refused, mut taken) = (Instant::now(), 0_u64, 0_usize);
    let mut least = u64::MAX;
    while began.elapsed() < long || taken < much {
        ensure!(began.elapsed() < long * 30, "only {taken} of {much} records were taken");
        for (at, number, to) in &mut tos {
            match journal.try_append_filled(to, *number, &filler)? {
                code::NONE => taken += 1,
                // Whoever has no room says so, or has somebody else lead.
                error => {
                    one_of(
                        "a write that is not taken",
                        error,
                        &[code::KAFKA_STORAGE_ERROR, code::NOT_LEADER_OR_FOLLOWER, code::REQUEST_TIMED_OUT],
                    )?;
                    refused += 1;
                    let number = usize::try_from(*number)?;
                    (*at, _) = cluster.wait_leader(1, "t", number, Some(follower))?;
                    *to = served(&mut cluster, *at)?;
                }
            }
        }
        for disk in &disks {
            least = least.min(disk.free()?);
        }
        cluster.all_run()?;
    }
    let written = taken * filler.len() / MIB;
    for (at, number, _) in &tos {
        let mut to = served(&mut cluster, *at)?;
        // Retention may go on for a moment, and pass what is being read.
        let there = wait::until("all to be read", AGREE, || Ok(stored(&mut to, "t", *number).ok()))?;
        let first = there.first().map_or(0, |(offset, ..)| *offset);
        let offsets: Vec<i64> = there.iter().map(|(offset, ..)| *offset).collect();
        equal("what is left has no gaps", &offsets, &(first..first + i64::try_from(there.len())?).collect())?;
        holds("old records are gone", first > 0)?;
    }
    let back = resumed(&mut cluster, follower)?;
    cluster.all_run()?;
    let compared = stage.verify_copies(&mut cluster, 3)?;
    Ok(format!(
        "{written} MiB on disks of {size} MiB in {taken} records taken, {refused} refused, {} MiB free at least; the follower back after {:.2} s; {compared}",
        least >> 20,
        back.as_secs_f64()
    ))
}
