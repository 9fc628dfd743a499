//! Links between brokers that are slow, or lose what goes in one direction.

use std::time::Duration;

use anyhow::{Context, Result};

use super::partitioned::{ALL, BOTH, OFFSETS, all_in_sync};
use crate::cluster::Case;
use crate::cluster::load::Loads;
use crate::cluster::plan::{AGREE, Cluster};
use crate::cluster::proxy::Direction;
use crate::cluster::stage::{Stage, shown, timed};
use crate::wait;

pub const CASES: &[Case] = &[Case {
    name: "bad-links-between-brokers",
    proves: "a follower whose link is slow leaves the set, and writers wait for it no longer; links that lose what is shipped, or what is answered, \
             lose no record; each time the follower is in sync again by itself",
    seconds: 150,
    run: bad_links,
}];

const TOPICS: [&str; 2] = ["t", "j"];

/// Three partitions of which broker 3 leads none.
fn third_follows() -> Vec<Vec<i32>> {
    [[1, 2, 3], [2, 1, 3], [1, 3, 2]].map(|replicas| replicas.to_vec()).to_vec()
}

/// Waits until broker 3 is not in sync for any partition under load.
fn wait_left_behind(cluster: &mut Cluster) -> Result<()> {
    let mut last = Vec::new();
    let waited = wait::until("broker 3 to be out of sync", AGREE, || {
        last = Vec::new();
        for topic in TOPICS {
            last.extend(cluster.described(1, topic)?);
        }
        Ok((!last.iter().any(|one| one.isr.contains(&3) || one.elr.contains(&3))).then_some(()))
    });
    waited.with_context(|| format!("{last:?}"))
}

/// Heals, and waits until broker 3 is back; how long that took.
fn back_in_sync(cluster: &mut Cluster, load: &mut Loads) -> Result<Duration> {
    let ((), took) = timed(|| all_in_sync(cluster, &["t", "j", OFFSETS]))?;
    load.go_on()?;
    Ok(took)
}

/// What was measured.
#[derive(Default)]
struct Measured {
    stalls: Vec<Duration>,
    returns: Vec<Duration>,
    told: Vec<String>,
}

/// In full on several clusters: on one, a follower that comes and goes is waited for twice as long each time, up to a minute, before it is
/// in the set again.
fn bad_links(stage: &Stage) -> Result<String> {
    let mut measured = Measured::default();
    for _ in 0..stage.rounds(1, 5) {
        bad_links_once(stage, &mut measured)?;
    }
    Ok(format!(
        "longest stalls, the slow link's and behind it, {}; in sync again {}; {}",
        shown(&measured.stalls),
        shown(&measured.returns),
        measured.told.join("; ")
    ))
}

fn bad_links_once(stage: &Stage, measured: &mut Measured) -> Result<()> {
    let mut cluster = stage.plan().replicated().ways_between_brokers().start()?;
    for topic in TOPICS {
        cluster.create_placed(1, topic, &third_follows())?;
    }
    let mut load = stage.loads_existing(&cluster, &BOTH, 3)?;
    all_in_sync(&mut cluster, &[OFFSETS])?;

    // Slower than anybody waits for, and not so slow that the link is taken for dead.
    let delay = Duration::from_millis(1_200);
    load.measure()?;
    for direction in [Direction::There, Direction::Back] {
        cluster.way_between(3)?.delay(direction, delay);
    }
    wait_left_behind(&mut cluster)?;
    load.go_on()?;
    measured.stalls.push(load.longest_stall()?);
    // A busy machine may stall them once. If anybody still waited for broker 3, every look would show it.
    let mut stall = Duration::MAX;
    let short = wait::until("nobody to wait for it any more", Duration::from_secs(60), || {
        load.measure()?;
        load.progress(300)?;
        stall = load.longest_stall()?;
        Ok((stall < delay * 2).then_some(()))
    });
    short.with_context(|| format!("{stall:?}"))?;
    measured.stalls.push(stall);
    for direction in [Direction::There, Direction::Back] {
        cluster.way_between(3)?.delay(direction, Duration::ZERO);
    }
    measured.returns.push(back_in_sync(&mut cluster, &mut load)?);

    for direction in [Direction::There, Direction::Back] {
        cluster.way_between(3)?.lose(direction, true);
        wait_left_behind(&mut cluster)?;
        load.go_on()?;
        cluster.way_between(3)?.lose(direction, false);
        measured.returns.push(back_in_sync(&mut cluster, &mut load)?);
    }
    // Connections that end while records are on their way.
    for to in ALL {
        cluster.way_between(to)?.end_all();
        load.progress(20)?;
    }
    all_in_sync(&mut cluster, &["t", "j", OFFSETS])?;
    let sent = load.finish()?;
    cluster.all_run()?;
    let compared = stage.verify_copies(&mut cluster, 9)?;
    measured.told.push(format!("{sent:?} records; {compared}"));
    Ok(())
}
