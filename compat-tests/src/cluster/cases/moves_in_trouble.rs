//! Replicas that move to a fourth broker while something else goes wrong: the leader is killed, paused, cut off, a follower stands still or is
//! wiped, etcd is away.

use std::collections::BTreeSet;
use std::time::{Duration, Instant};

use anyhow::{Context, Result};

use super::partitioned::{BOTH, OFFSETS, all_in_sync};
use crate::cluster::Case;
use crate::cluster::load::Loads;
use crate::cluster::network::Place;
use crate::cluster::plan::Cluster;
use crate::cluster::stage::{Stage, shown};
use crate::raw::ask::cluster::PartitionDescribed;
use crate::raw::expect::{equal, holds};
use crate::wait;

pub const CASES: &[Case] = &[UNDER_TROUBLE, UNDER_CUTS];

const UNDER_TROUBLE: Case = Case {
    name: "reassigned-under-trouble",
    proves: "a replica of each partition under load moves to a fourth broker while a follower stands still, while etcd is away, and while the leader is \
             killed: the move is listed as long as it lasts and is completed by itself; another one is cancelled while its new copy cannot \
             be made; nothing is lost, and all copies are the same",
    seconds: 200,
    run: under_trouble,
};

const UNDER_CUTS: Case = Case {
    name: "reassigned-under-cuts",
    proves: "replicas move to a fourth broker while a leader is paused past its lease, is cut off from its followers, from etcd, from both, in one \
             direction, in the other, in both, and while a follower comes back wiped: each move is completed by itself, nothing is lost, and all \
             copies are the same",
    seconds: 200,
    run: under_cuts,
};

/// What goes wrong while replicas move.
#[derive(Debug, Clone, Copy)]
enum Trouble {
    /// A leader is paused past its lease.
    Paused,
    /// A leader is cut off: from the other brokers, from etcd; what it sends is lost, what it is sent is.
    Cut { brokers: bool, etcd: bool, there: bool, back: bool },
    /// A follower that stays comes back with an empty directory.
    Wiped,
}

const fn cut(brokers: bool, etcd: bool, there: bool, back: bool) -> Trouble {
    Trouble::Cut { brokers, etcd, there, back }
}

/// Those of a short run come first. A copy that was cut off from its followers gives up once a minute, so that comes to each in turn.
const TROUBLES: [Trouble; 11] = [
    cut(true, false, true, false),
    Trouble::Paused,
    cut(true, true, false, true),
    Trouble::Wiped,
    cut(true, false, false, true),
    cut(false, true, true, false),
    cut(true, true, true, true),
    cut(true, false, true, true),
    cut(false, true, true, true),
    cut(true, true, true, false),
    cut(false, true, false, true),
];
/// So many of them.
const SHORT: usize = 4;
/// All brokers there are.
const BROKERS: [i32; 4] = [1, 2, 3, 4];

/// What is under load, and moved.
const TOPICS: [&str; 2] = ["t", "j"];
/// How long a move may take on a loaded machine; copies that flap wait for up to a minute.
const MOVED: Duration = Duration::from_secs(180);

/// Moves every partition of `t` and `j` to these replicas, or cancels that.
fn alter(cluster: &mut Cluster, at: i32, replicas: Option<&[i32]>) -> Result<()> {
    let mut to = cluster.broker(at)?.connect()?;
    TOPICS.iter().try_for_each(|topic| to.reassign(topic, 3, replicas))
}

/// All partitions under load, as a broker describes them.
fn all_described(cluster: &mut Cluster, at: i32) -> Result<Vec<PartitionDescribed>> {
    let mut all = Vec::new();
    for topic in TOPICS {
        all.extend(cluster.described(at, topic)?);
    }
    Ok(all)
}

/// Waits until exactly these are in sync for everything under load.
fn wait_in_sync(cluster: &mut Cluster, at: i32, ids: &[i32]) -> Result<()> {
    TOPICS.iter().try_for_each(|topic| cluster.wait_in_sync(at, topic, ids))
}

/// Waits until all has these replicas and nothing moves any more, as a broker says.
fn wait_moved(cluster: &mut Cluster, at: i32, replicas: &[i32]) -> Result<()> {
    let wanted: BTreeSet<i32> = replicas.iter().copied().collect();
    let mut last = Vec::new();
    let waited = wait::until(&format!("all to be moved to {replicas:?}"), MOVED, || {
        last = all_described(cluster, at)?;
        let there = last.iter().all(|one| one.replicas.iter().copied().collect::<BTreeSet<i32>>() == wanted);
        let led = last.iter().all(|one| wanted.contains(&one.leader));
        let none = cluster.broker(at)?.connect()?.reassigning()? == 0;
        Ok((there && led && none).then_some(()))
    });
    waited.with_context(|| format!("{last:?}"))
}

/// Broker 1, which is the first of all replicas, leads all of it, or is elected: a leader that hears of nobody for a while gives up.
fn first_leads(cluster: &mut Cluster) -> Result<()> {
    let mut last = Vec::new();
    let waited = wait::until("broker 1 to lead all of it", MOVED, || {
        last = all_described(cluster, 1)?;
        for topic in TOPICS {
            for one in cluster.described(1, topic)?.iter().filter(|one| one.leader != 1) {
                cluster.broker(1)?.connect_with(MOVED)?.elect_preferred(topic, one.index)?;
            }
        }
        Ok(last.iter().all(|one| one.leader == 1).then_some(()))
    });
    waited.with_context(|| format!("{last:?}"))
}

/// What is under load has its replicas on three brokers, and there is a fourth.
fn with_a_spare(stage: &Stage) -> Result<(Cluster, Loads)> {
    let mut cluster = stage.plan().replicated().start()?;
    for topic in TOPICS {
        cluster.create_placed(1, topic, &vec![vec![1, 2, 3]; 3])?;
    }
    let load = stage.loads_existing(&cluster, &BOTH, 3)?;
    all_in_sync(&mut cluster, &[OFFSETS])?;
    cluster.add_brokers(1)?;
    Ok((cluster, load))
}

fn under_trouble(stage: &Stage) -> Result<String> {
    let (mut cluster, mut load) = with_a_spare(stage)?;
    first_leads(&mut cluster)?;
    let mut took = Vec::new();
    let hold = |cluster: &mut Cluster, leader: i32, target: i32, replicas: &[i32]| -> Result<()> {
        // So that no copy can be made before the trouble has begun.
        cluster.network.cut_both(Place::Broker(leader), Place::Broker(target))?;
        alter(cluster, leader, Some(replicas))?;
        equal("partitions being moved", cluster.broker(leader)?.connect()?.reassigning()?, 6)
    };

    // A follower stands still for longer than its lease.
    hold(&mut cluster, 1, 4, &[1, 2, 4])?;
    cluster.broker(2)?.pause()?;
    cluster.wait_alive_as_seen_by(&[1, 3, 4], &[1, 3])?;
    let began = Instant::now();
    cluster.network.heal_all()?;
    wait_moved(&mut cluster, 1, &[1, 2, 4])?;
    took.push(began.elapsed());
    load.go_on()?;
    cluster.broker(2)?.resume()?;
    cluster.wait_alive(&[1, 2, 3, 4])?;
    wait_in_sync(&mut cluster, 1, &[1, 2, 4])?;

    // etcd is away.
    first_leads(&mut cluster)?;
    hold(&mut cluster, 1, 3, &[1, 2, 3])?;
    cluster.etcd[0].pause()?;
    let lease = cluster.lease();
    load.stands_still(lease)?;
    cluster.network.heal_all()?;
    equal("partitions being moved without etcd", cluster.broker(1)?.connect()?.reassigning()?, 6)?;
    let began = Instant::now();
    cluster.etcd[0].resume()?;
    wait_moved(&mut cluster, 1, &[1, 2, 3])?;
    took.push(began.elapsed());
    load.go_on()?;
    wait_in_sync(&mut cluster, 1, &[1, 2, 3])?;

    // Cancelled while the new copy cannot be made and a follower is gone.
    first_leads(&mut cluster)?;
    hold(&mut cluster, 1, 4, &[1, 2, 4])?;
    cluster.broker(2)?.kill();
    load.go_on()?;
    alter(&mut cluster, 3, None)?;
    wait_moved(&mut cluster, 1, &[1, 2, 3])?;
    cluster.network.heal_all()?;
    cluster.broker(2)?.start()?;
    cluster.wait_alive(&[1, 2, 3, 4])?;
    wait_in_sync(&mut cluster, 1, &[1, 2, 3])?;

    // The leader is killed.
    first_leads(&mut cluster)?;
    hold(&mut cluster, 1, 4, &[1, 2, 4])?;
    let began = Instant::now();
    cluster.broker(1)?.kill();
    wait_moved(&mut cluster, 2, &[1, 2, 4])?;
    took.push(began.elapsed());
    load.go_on()?;
    let leader = cluster.described(2, "t")?[0].leader;
    holds("another leads", leader != 1)?;
    cluster.network.heal_all()?;
    cluster.broker(1)?.start()?;
    cluster.wait_alive(&[1, 2, 3, 4])?;
    wait_in_sync(&mut cluster, 2, &[1, 2, 4])?;

    let sent = load.finish()?;
    cluster.all_run()?;
    let compared = stage.verify_copies(&mut cluster, 9)?;
    Ok(format!(
        "completed with a follower that stands still, when etcd is back, after the leader's death: {}; {sent:?} records; {compared}",
        shown(&took)
    ))
}

fn under_cuts(stage: &Stage) -> Result<String> {
    let (mut cluster, mut load) = with_a_spare(stage)?;
    let (mut replicas, mut spare) = (vec![1, 2, 3], 4);
    let mut took = Vec::new();
    for trouble in TROUBLES.into_iter().take(stage.rounds(SHORT, TROUBLES.len())) {
        let moved = move_during(&mut cluster, &mut load, trouble, &replicas, spare);
        let (next, free, long) = moved.with_context(|| format!("{trouble:?}, {replicas:?}"))?;
        (replicas, spare) = (next, free);
        took.push(long);
    }
    let sent = load.finish()?;
    cluster.all_run()?;
    let compared = stage.verify_copies(&mut cluster, 9)?;
    Ok(format!("moved and in sync after the trouble began: {}; {sent:?} records; {compared}", shown(&took)))
}

/// Moves a replica of everything to the spare broker during a trouble. Who holds the replicas then, who does not, and how long it took.
fn move_during(
    cluster: &mut Cluster,
    load: &mut Loads,
    trouble: Trouble,
    replicas: &[i32],
    spare: i32,
) -> Result<(Vec<i32>, i32, Duration)> {
    let (leader, _) = cluster.wait_leader(replicas[0], "t", 0, None)?;
    let leaves = *replicas.iter().find(|id| **id != leader).context("nobody follows")?;
    let next: Vec<i32> = replicas.iter().map(|id| if *id == leaves { spare } else { *id }).collect();
    let stays = *next.iter().find(|id| **id != leader && **id != spare).context("nobody stays")?;
    // No copy can be made before the trouble begins.
    for id in replicas {
        cluster.network.cut_both(Place::Broker(*id), Place::Broker(spare))?;
    }
    alter(cluster, leader, Some(&next))?;
    equal("partitions being moved", cluster.broker(leader)?.connect()?.reassigning()?, 6)?;
    let began = Instant::now();
    match trouble {
        Trouble::Paused => cluster.broker(leader)?.pause()?,
        Trouble::Wiped => {
            cluster.broker(stays)?.kill();
            cluster.broker(stays)?.wipe()?;
        }
        Trouble::Cut { brokers, etcd, there, back } => {
            if brokers {
                cluster.cut_from_brokers(leader, there, back)?;
            }
            if etcd {
                cluster.cut_from_etcd(leader, there, back)?;
            }
        }
    }
    // The others may copy meanwhile.
    for id in replicas.iter().filter(|id| **id != leader) {
        cluster.network.heal(Place::Broker(*id), Place::Broker(spare))?;
    }
    match trouble {
        Trouble::Wiped => cluster.broker(stays)?.start()?,
        Trouble::Paused => {
            cluster.wait_leader(stays, "t", 0, Some(leader))?;
            cluster.broker(leader)?.resume()?;
        }
        Trouble::Cut { .. } => drop(cluster.wait_leader(stays, "t", 0, Some(leader))?),
    }
    load.go_on()?;
    cluster.network.heal_all()?;
    cluster.wait_alive(&BROKERS)?;
    wait_moved(cluster, stays, &next)?;
    let mut ids = next.clone();
    ids.sort_unstable();
    wait_in_sync(cluster, stays, &ids)?;
    load.go_on()?;
    Ok((next, leaves, began.elapsed()))
}
