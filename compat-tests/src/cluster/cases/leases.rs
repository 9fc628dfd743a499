//! The shortest and the longest lease.

use std::time::{Duration, Instant};

use anyhow::Result;

use super::partitioned::{ALL, BOTH, OFFSETS, all_in_sync, each_leads, served};
use super::replicated::unavailable;
use crate::cluster::Case;
use crate::cluster::plan::Cluster;
use crate::cluster::stage::{Stage, median, shown};
use crate::cluster::topics::Journal;
use crate::raw::expect::{equal, holds};
use crate::wait;

pub const CASES: &[Case] = &[
    Case {
        name: "lease-of-half-a-second",
        proves: "with leases of 0.5 s, the shortest: leaders are killed (-9) under load, another leads soon; nothing acknowledged is lost or doubled, and \
                 nobody else loses a session",
        seconds: 120,
        run: shortest,
    },
    Case {
        name: "lease-of-a-minute",
        proves: "with leases of 60 s, the longest: a cluster forms, a planned move and SIGTERM hand over at once, and so does a broker that was killed \
                 and is back at once lead on: nothing waits for a lease to run out; in full, a leader that is killed for good is missed when it has",
        seconds: 60,
        run: longest,
    },
];

fn shortest(stage: &Stage) -> Result<String> {
    let mut cluster = stage.plan().lease(Duration::from_millis(500)).replicated().start()?;
    for topic in ["t", "j", "p"] {
        cluster.create_placed(1, topic, &each_leads())?;
    }
    let mut load = stage.loads_existing(&cluster, &BOTH, 3)?;
    all_in_sync(&mut cluster, &[OFFSETS])?;
    let mut journal = Journal::new("p");
    let mut gaps = Vec::new();
    for round in 0..stage.rounds(2, 30) {
        let (index, number) = (round % 3, i32::try_from(round % 3)?);
        let (at, epoch) = cluster.wait_leader(1, "p", index, None)?;
        for _ in 0..10 {
            journal.append_to_leader(&mut cluster, at, number)?;
        }
        let killed = Instant::now();
        cluster.broker(at)?.kill();
        gaps.push(unavailable(&mut cluster, &mut journal, number, at, killed)?);
        let (_, later) = cluster.wait_leader(at % 3 + 1, "p", index, Some(at))?;
        holds(&format!("the generation rises: {epoch}, {later}"), later > epoch)?;
        load.go_on()?;
        cluster.broker(at)?.start()?;
        cluster.wait_alive(&ALL)?;
        all_in_sync(&mut cluster, &["t", "j", "p", OFFSETS])?;
    }
    // On a machine that is busy somebody may be late; ten times the usual means that it does not work.
    holds(&format!("unavailable for {}", shown(&gaps)), median(gaps.clone()) < cluster.lease() * 15)?;
    let sent = load.finish()?;
    journal.check(&mut cluster)?;
    cluster.all_run()?;
    let compared = stage.verify_copies(&mut cluster, 12)?;
    Ok(format!("a partition was unavailable for {}; {sent:?} records; {compared}", shown(&gaps)))
}

/// Appends to each partition of `p`, whoever leads it.
fn write(cluster: &mut Cluster, journal: &mut Journal, at: i32) -> Result<()> {
    (0..3).try_for_each(|number| journal.append_to_leader(cluster, at, number))
}

fn longest(stage: &Stage) -> Result<String> {
    let began = Instant::now();
    let mut cluster = stage.plan().lease(Duration::from_secs(60)).replicated().start()?;
    let formed = began.elapsed();
    cluster.create_placed(1, "p", &each_leads())?;
    let mut journal = Journal::new("p");
    write(&mut cluster, &mut journal, 1)?;

    let mut took = Vec::new();
    let mut at_once = |what: &str, cluster: &Cluster, began: Instant| -> Result<()> {
        let waited = began.elapsed();
        took.push(format!("{what} {:.2} s", waited.as_secs_f64()));
        holds(&format!("{what}: {waited:?}"), waited < cluster.lease() / 3)
    };
    // A planned move: the order of partition 0 is turned around, and the first of it elected.
    // Whoever was late for what was written was dropped, and is not elected.
    all_in_sync(&mut cluster, &["p"])?;
    let began = Instant::now();
    let mut to = served(&mut cluster, 3)?;
    to.reassign("p", 1, Some(&[2, 1, 3]))?;
    equal("the election", to.elect_preferred("p", 0)?, 0)?;
    equal("who leads", cluster.wait_leader(3, "p", 0, Some(1))?.0, 2)?;
    write(&mut cluster, &mut journal, 3)?;
    at_once("moved and written to", &cluster, began)?;

    let began = Instant::now();
    cluster.broker(2)?.stop()?;
    for index in 0..3 {
        cluster.wait_leader(1, "p", index, Some(2))?;
    }
    write(&mut cluster, &mut journal, 1)?;
    at_once("handed over by SIGTERM", &cluster, began)?;
    cluster.broker(2)?.start()?;
    cluster.wait_alive(&ALL)?;
    all_in_sync(&mut cluster, &["p"])?;

    let began = Instant::now();
    let (at, _) = cluster.wait_leader(3, "p", 0, None)?;
    cluster.broker(at)?.kill();
    cluster.broker(at)?.start()?;
    let witness = at % 3 + 1;
    write(&mut cluster, &mut journal, witness)?;
    at_once("killed and back", &cluster, began)?;
    all_in_sync(&mut cluster, &["p"])?;

    if stage.full {
        let (at, _) = cluster.wait_leader(1, "p", 0, None)?;
        let began = Instant::now();
        cluster.broker(at)?.kill();
        let witness = at % 3 + 1;
        wait::until("another to lead", cluster.longest_wait(), || {
            let leader = cluster.partitions(witness, "p")?[0].leader;
            Ok((leader >= 0 && leader != at).then_some(()))
        })?;
        took.push(format!("missed after {:.2} s", began.elapsed().as_secs_f64()));
        write(&mut cluster, &mut journal, witness)?;
        cluster.broker(at)?.start()?;
        cluster.wait_alive(&ALL)?;
        all_in_sync(&mut cluster, &["p"])?;
    }
    journal.check(&mut cluster)?;
    cluster.all_run()?;
    let compared = stage.verify_copies(&mut cluster, 3)?;
    Ok(format!("formed {:.2} s; {}; {compared}", formed.as_secs_f64(), took.join("; ")))
}
