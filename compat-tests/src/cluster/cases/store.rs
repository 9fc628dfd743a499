//! etcd is away, loses members, forgets its history.

use std::time::{Duration, Instant};

use anyhow::Result;

use super::cuts::{appends_go_on, one_of_each, sessions_kept};
use crate::cluster::Case;
use crate::cluster::load::Load;
use crate::cluster::plan::{AGREE, Cluster};
use crate::cluster::stage::{Loader, Stage, shown};
use crate::cluster::topics::Journal;
use crate::raw::ask::code;
use crate::raw::conn::Connection;
use crate::raw::expect::{equal, holds};
use crate::wait;

pub const CASES: &[Case] = &[
    Case {
        name: "etcd-away",
        proves: "all members of etcd stand still for many leases, or are killed and started again: leases run out and writes stop; when etcd is \
                 back nobody is fenced, every broker keeps its session and its generations and goes on",
        seconds: 120,
        run: etcd_away,
    },
    Case {
        name: "etcd-members-under-load",
        proves: "the leading member of etcd is killed, or stands still, under load from librdkafka and Java: brokers keep their sessions, nothing \
                 acknowledged is lost or doubled (B081)",
        seconds: 150,
        run: members_under_load,
    },
    Case {
        name: "compacted-while-cut",
        proves: "a broker is cut off while topics are made and deleted and etcd's history is compacted; healed, it agrees with the others within \
                 five seconds (B085)",
        seconds: 60,
        run: compacted_while_cut,
    },
];

/// Takes etcd away (it is killed or stands still) until no broker takes a write any more, and for so long in all; leaders with a
/// partition each are in `led`, and `look` at one sees to what else holds meanwhile. How long it took until writes stopped.
pub fn without_etcd(
    cluster: &mut Cluster,
    journal: &mut Journal,
    led: &[(i32, i32)],
    (killed, away): (bool, Duration),
    look: impl Fn(&mut Connection, i32, i32) -> Result<()>,
) -> Result<Duration> {
    let began = Instant::now();
    cluster.take_etcd_away(killed)?;
    for (at, number) in led {
        wait::until("writes to stop", AGREE, || {
            let mut to = cluster.broker(*at)?.connect()?;
            Ok((journal.try_append(&mut to, *number)? == code::NOT_LEADER_OR_FOLLOWER).then_some(()))
        })?;
    }
    let stopped = began.elapsed();
    wait::until("etcd to have been away for long", away * 2, || {
        for (at, number) in led {
            let mut to = cluster.broker(*at)?.connect()?;
            let refused = journal.try_append(&mut to, *number)?;
            equal("what it says meanwhile", refused, code::NOT_LEADER_OR_FOLLOWER)?;
            look(&mut to, *at, *number)?;
        }
        Ok((began.elapsed() >= away).then_some(()))
    })?;
    Ok(stopped)
}

fn etcd_away(stage: &Stage) -> Result<String> {
    let mut cluster = stage.plan().etcd(3).etcd_on_disk().start()?;
    cluster.create(1, "t", 9)?;
    let mut journal = Journal::new("t").acks(1);
    let led = one_of_each(&mut cluster, "t")?;
    let away = if stage.full { Duration::from_secs(30) } else { cluster.lease() * 5 };
    let (mut stopped, mut returned) = (Vec::new(), Vec::new());
    for killed in [false, true] {
        let before = cluster.partitions(1, "t")?;
        stopped.push(without_etcd(&mut cluster, &mut journal, &led, (killed, away), |_, _, _| Ok(()))?);
        let began = Instant::now();
        cluster.bring_etcd_back(killed)?;
        for (at, number) in &led {
            cluster.wait_serves(*at, "t", &[*number])?;
        }
        returned.push(began.elapsed());
        let lease = cluster.lease();
        appends_go_on(&mut cluster, &mut journal, &led, lease * 3)?;
        sessions_kept(&cluster)?;
        equal("partitions", cluster.partitions(1, "t")?, before)?;
    }
    journal.check(&mut cluster)?;
    cluster.all_run()?;
    Ok(format!(
        "writes stop everywhere: {}; go on after etcd's return: {}",
        shown(&stopped),
        shown(&returned)
    ))
}

fn members_under_load(stage: &Stage) -> Result<String> {
    let mut cluster = stage.plan().etcd(3).etcd_on_disk().start()?;
    let mut loads = [
        stage.load(&cluster, Loader::Rdkafka, "rdkafka", 6)?,
        stage.load(&cluster, Loader::Java, "java", 6)?,
    ];
    let mut stalls = [Vec::new(), Vec::new()];
    for round in 0..stage.rounds(4, 40) {
        for load in &mut loads {
            load.measure()?;
        }
        let leader = cluster.etcd_leader()?;
        if round % 2 == 0 {
            cluster.etcd[leader].kill();
            another_leads(&cluster, leader)?;
            cluster.etcd[leader].start()?;
        } else {
            cluster.etcd[leader].pause()?;
            another_leads(&cluster, leader)?;
            cluster.etcd[leader].resume()?;
        }
        for (load, stalls) in loads.iter_mut().zip(&mut stalls) {
            load.progress(60)?;
            load.all_go_on()?;
            stalls.push(load.longest_stall()?);
        }
    }
    let sent = loads.into_iter().map(Load::finish).collect::<Result<Vec<u64>>>()?;
    sessions_kept(&cluster)?;
    cluster.all_run()?;
    let (rdkafka, java) = (shown(&stalls[0]), shown(&stalls[1]));
    Ok(format!("{sent:?} records; longest stall of a partition: librdkafka {rdkafka}; Java {java}"))
}

/// Waits until another member of etcd leads.
pub fn another_leads(cluster: &Cluster, than: usize) -> Result<()> {
    wait::until("another member of etcd to lead", AGREE, || {
        let mut members = cluster.etcd.iter().enumerate().filter(|(at, _)| *at != than);
        Ok(members.any(|(_, member)| member.leads()).then_some(()))
    })
}

fn compacted_while_cut(stage: &Stage) -> Result<String> {
    let mut cluster = stage.plan().start()?;
    for number in 0..3 {
        cluster.create(1, &format!("old-{number}"), 3)?;
    }
    let mut took = Vec::new();
    for round in 0..stage.rounds(3, 30) {
        let (there, back) = [(true, false), (false, true), (true, true)][round % 3];
        cluster.cut_from_etcd(2, there, back)?;
        cluster.wait_alive_as_seen_by(&[1, 3], &[1, 3])?;
        for number in 0..3 {
            let old =
                if round == 0 { format!("old-{number}") } else { format!("new-{}-{number}", round - 1) };
            cluster.broker(1)?.connect()?.delete(&old)?;
            cluster.create(3, &format!("new-{round}-{number}"), 3)?;
        }
        let revision = cluster.etcd[0].revision()?;
        cluster.etcd[0].compact(revision)?;
        let began = Instant::now();
        cluster.network.heal_all()?;
        wait::until("all to agree after healing", AGREE, || {
            let seen =
                cluster.brokers().map(|broker| broker.connect()?.metadata()).collect::<Result<Vec<_>>>()?;
            let all = seen.iter().all(|one| one.brokers.len() == 3 && one.topics == seen[0].topics);
            Ok((all && seen[0].topics.len() == 3).then_some(()))
        })?;
        took.push(began.elapsed());
    }
    // A busy machine may take longer once.
    let quickest = took.iter().min().copied().unwrap_or_default();
    holds(&format!("agreed in time: {took:?}"), quickest < Duration::from_secs(5))?;
    cluster.all_run()?;
    Ok(format!("agreed {}", shown(&took)))
}
