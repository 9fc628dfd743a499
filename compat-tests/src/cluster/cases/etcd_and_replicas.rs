//! Topics with three replicas while members of etcd fail, watches are cut, and a broker that is cut off comes back.

use std::collections::BTreeMap;
use std::sync::Arc;
use std::sync::atomic::{AtomicBool, Ordering};
use std::time::{Duration, Instant};

use anyhow::{Context, Result, anyhow, bail, ensure};

use super::cuts::until_refused;
use super::partitioned::{ALL, OFFSETS, all_in_sync, finish, served, under_load};
use super::store::another_leads;
use crate::cluster::Case;
use crate::cluster::plan::{AGREE, Cluster};
use crate::cluster::stage::{Stage, shown};
use crate::cluster::topics::Journal;
use crate::raw::ask::code;
use crate::raw::ask::records::{Fetch, Want};
use crate::raw::conn::Connection;
use crate::raw::expect::{equal, holds};
use crate::wait;

pub const CASES: &[Case] = &[
    Case {
        name: "etcd-leader-stalled",
        proves: "three replicas, three members of etcd whose leader stands still again and again for longer than leases, under load from librdkafka and \
                 Java: brokers keep their sessions or come back unaided, nothing acknowledged is lost or doubled (B081)",
        seconds: 120,
        run: etcd_leader_stalled,
    },
    Case {
        name: "replicas-moved-while-cut",
        proves: "a broker is cut off from etcd while replicated topics are deleted and made, leaders change and the history is compacted; healed, all \
                 brokers tell the same as etcd's newest state within five seconds (B085)",
        seconds: 90,
        run: moved_while_cut,
    },
    Case {
        name: "cut-off-and-started-again",
        proves: "a leader is cut off from etcd alone: of acks=all and acks=1 nothing is acknowledged behind its lease, and a reader at any broker never \
                 goes back; started again at once under its id it is there within its lease and five seconds, at a higher epoch (B088)",
        seconds: 90,
        run: cut_and_restarted,
    },
];

fn etcd_leader_stalled(stage: &Stage) -> Result<String> {
    let cluster = stage.plan().etcd(3).etcd_on_disk().replicated().start()?;
    let (mut cluster, mut load) = under_load(stage, cluster)?;
    let mut journal = Journal::new("p");
    let stalled = cluster.lease() * if stage.full { 10 } else { 3 };
    let mut stalls = Vec::new();
    for _ in 0..stage.rounds(2, 30) {
        load.measure()?;
        let leader = cluster.etcd_leader()?;
        let began = Instant::now();
        cluster.etcd[leader].pause()?;
        another_leads(&cluster, leader)?;
        for number in 0..3 {
            journal.append_to_leader(&mut cluster, 1, number)?;
        }
        wait::until("it to have stood still for long", stalled * 2, || {
            load.alive()?;
            Ok((began.elapsed() >= stalled).then_some(()))
        })?;
        cluster.etcd[leader].resume()?;
        load.go_on()?;
        stalls.push(load.longest_stall()?);
    }
    cluster.wait_alive(&ALL)?;
    all_in_sync(&mut cluster, &["p", "t", "j", OFFSETS])?;
    let rest = finish(stage, cluster, load, &journal)?;
    Ok(format!("longest stalls of a partition {}; {rest}", shown(&stalls)))
}

/// Elects the first of a partition's replicas in their new order.
fn turn(cluster: &mut Cluster, at: i32, topic: &str, order: &[i32]) -> Result<()> {
    let mut to = cluster.broker(at)?.connect()?;
    to.reassign(topic, 1, Some(order))?;
    wait::until(&format!("{topic} to be led by {}", order[0]), AGREE, || {
        to.elect_preferred(topic, 0)?;
        Ok((to.describe_partitions(topic)?[0].leader == order[0]).then_some(()))
    })
}

fn moved_while_cut(stage: &Stage) -> Result<String> {
    let mut cluster = stage.plan().start()?;
    for topic in ["kept", "old-0", "old-1"] {
        cluster.create_placed(1, topic, &[vec![1, 2, 3]])?;
    }
    let mut journal = Journal::new("kept");
    let mut took = Vec::new();
    for round in 0..stage.rounds(3, 100) {
        let (there, back) = [(true, false), (false, true), (true, true)][round % 3];
        // Who leads is none of those that will be cut off, so that what is asked for can be done.
        let (first, second) = if round % 2 == 0 { (3, 1) } else { (1, 3) };
        cluster.cut_from_etcd(2, there, back)?;
        cluster.wait_alive_as_seen_by(&[1, 3], &[1, 3])?;
        turn(&mut cluster, 1, "kept", &[first, second, 2])?;
        journal.append_to_leader(&mut cluster, 1, 0)?;
        for number in 0..2 {
            let old =
                if round == 0 { format!("old-{number}") } else { format!("new-{}-{number}", round - 1) };
            cluster.broker(1)?.connect()?.delete(&old)?;
            let new = format!("new-{round}-{number}");
            let (error, message) =
                cluster.broker(3)?.connect()?.create_on(&new, -1, -1, &[vec![first, second, 2]])?;
            ensure!(error == 0, "creating {new}: error {error}: {message:?}");
        }
        let revision = cluster.etcd[0].revision()?;
        cluster.etcd[0].compact(revision)?;
        let began = Instant::now();
        cluster.network.heal_all()?;
        let mut last = Vec::new();
        wait::until("all to agree after healing", Duration::from_secs(5), || {
            let seen =
                cluster.brokers().map(|broker| broker.connect()?.metadata()).collect::<Result<Vec<_>>>()?;
            let all = seen.iter().all(|one| one.brokers.len() == 3 && one.topics == seen[0].topics);
            let led = seen[0].topics.values().flatten().all(|partition| partition.leader >= 0);
            let good = all && led && seen[0].topics.len() == 3;
            last = seen;
            Ok(good.then_some(()))
        })
        .with_context(|| format!("{last:?}"))?;
        took.push(began.elapsed());
        all_in_sync(&mut cluster, &["kept"])?;
    }
    journal.check(&mut cluster)?;
    cluster.all_run()?;
    let compared = stage.verify_copies(&mut cluster, 1)?;
    Ok(format!("agreed {}; {compared}", shown(&took)))
}

/// A reader at every broker, each of which goes on from where it is and must never be shown less, or something else at a place.
fn readers(cluster: &Cluster, over: &Arc<AtomicBool>) -> std::thread::JoinHandle<Result<usize>> {
    let (over, brokers) =
        (Arc::clone(over), cluster.brokers().map(|broker| broker.told()).collect::<Vec<_>>());
    std::thread::spawn(move || {
        let mut seen: BTreeMap<i64, String> = BTreeMap::new();
        let mut next = vec![0_i64; brokers.len()];
        while !over.load(Ordering::SeqCst) {
            for (address, next) in brokers.iter().zip(&mut next) {
                let Ok(mut to) = Connection::open(*address, Duration::from_secs(5)) else { continue };
                let Ok(fetched) = to.fetch(&Fetch::now(vec![Want::of("t", *next)])) else { continue };
                let got = fetched.only()?;
                match got.error {
                    code::NONE => {}
                    code::NOT_LEADER_OR_FOLLOWER | code::LEADER_NOT_AVAILABLE => continue,
                    error => bail!("{address} answers a reader at {next} with error {error}"),
                }
                for batch in got.batches()? {
                    *next = batch.next();
                    for (offset, value) in crate::raw::batch::Batch::values(std::slice::from_ref(&batch)) {
                        let before = seen.insert(offset, value.clone());
                        ensure!(
                            before.is_none_or(|before| before == value),
                            "{address} shows {value} at {offset}, where something else was"
                        );
                    }
                }
            }
        }
        Ok(seen.len())
    })
}

fn cut_and_restarted(stage: &Stage) -> Result<String> {
    let mut cluster = stage.plan().start()?;
    cluster.create_placed(1, "t", &[vec![1, 2, 3]])?;
    let over = Arc::new(AtomicBool::new(false));
    let reading = readers(&cluster, &over);
    let mut journal = Journal::new("t");
    let (mut lasts, mut returns) = (Vec::new(), Vec::new());
    for _ in 0..stage.rounds(2, 20) {
        let (at, epoch) = cluster.wait_leader(1, "t", 0, None)?;
        let witness = at % 3 + 1;
        for _ in 0..10 {
            journal.append_to_leader(&mut cluster, witness, 0)?;
        }
        // With acks=all the last one may never be answered but by its time: it has a connection of its own.
        let mut all = served(&mut cluster, at)?;
        let began = Instant::now();
        cluster.cut_from_etcd(at, true, true)?;
        let over = |seen: &crate::raw::ask::topics::PartitionSeen| seen.epoch > epoch || seen.leader != at;
        let mut alone = Journal::new("t").acks(1);
        let (last, fenced) = until_refused(&mut cluster, &mut alone, (at, "t", 0), began, over)?;
        lasts.push(last);
        holds(&format!("last acknowledged {last:?}, fenced {fenced:?}"), last < fenced)?;
        equal("acks=all", journal.try_append(&mut all, 0)?, code::NOT_LEADER_OR_FOLLOWER)?;
        let claims = cluster.partitions(at, "t")?.iter().filter(|partition| partition.leader == at).count();
        equal("partitions that it says it leads", claims, 0)?;
        let (_, later) = cluster.wait_leader(witness, "t", 0, Some(at))?;
        holds(&format!("the generation rises: {epoch}, {later}"), later > epoch)?;
        journal.append_to_leader(&mut cluster, witness, 0)?;
        cluster.broker(at)?.kill();
        cluster.network.heal_all()?;
        let began = Instant::now();
        cluster.broker(at)?.start()?;
        cluster.wait_alive(&ALL)?;
        let took = began.elapsed();
        returns.push(took);
        let bound = cluster.lease() + Duration::from_secs(5);
        holds(&format!("started again after {took:?}"), took < bound)?;
        all_in_sync(&mut cluster, &["t"])?;
    }
    over.store(true, Ordering::SeqCst);
    let seen = reading.join().map_err(|_| anyhow!("the readers panicked"))??;
    journal.check(&mut cluster)?;
    cluster.all_run()?;
    let compared = stage.verify_copies(&mut cluster, 1)?;
    Ok(format!(
        "last acknowledged {}; started again {}; {seen} records read; {compared}",
        shown(&lasts),
        shown(&returns)
    ))
}
