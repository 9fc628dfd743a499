//! Replicas that move to a fourth broker while the leader is killed, a follower stands still, etcd is away.

use std::collections::BTreeSet;
use std::time::{Duration, Instant};

use anyhow::{Context, Result, ensure};

use super::partitioned::{OFFSETS, all_in_sync, goes_on};
use crate::cluster::Case;
use crate::cluster::network::Place;
use crate::cluster::plan::Cluster;
use crate::cluster::stage::{Loader, Stage, shown};
use crate::raw::conn::{Connection, key};
use crate::raw::expect::{equal, holds};
use crate::raw::wire::W;
use crate::wait;

pub const CASES: &[Case] = &[Case {
    name: "reassigned-under-trouble",
    proves: "a replica of each partition under load moves to a fourth broker while a follower stands still, while etcd is away, and while the leader is \
             killed: the move is listed as long as it lasts and is completed by itself; another one is cancelled while its new copy cannot \
             be made; nothing is lost, and all copies are the same",
    seconds: 200,
    run: under_trouble,
}];

/// How long a move may take on a loaded machine; copies that flap wait for up to a minute.
const MOVED: Duration = Duration::from_secs(90);

/// Moves every partition of `t` to these replicas, or cancels that.
fn alter(cluster: &mut Cluster, at: i32, replicas: Option<&[i32]>) -> Result<()> {
    let mut body = W::new().i32(10_000).carray(1).cstr("t").carray(3);
    for partition in 0..3 {
        body = match replicas {
            None => body.i32(partition).uvarint(0),
            Some(ids) => ids.iter().fold(body.i32(partition).carray(ids.len()), |body, id| body.i32(*id)),
        };
        body = body.tags();
    }
    let mut answer =
        cluster.broker(at)?.connect()?.call(key::ALTER_PARTITION_REASSIGNMENTS, 0, &body.tags().tags())?;
    answer.i32()?;
    equal("error", answer.i16()?, 0)?;
    answer.cnstr()?;
    let codes = answer.ceach(|topic| {
        topic.cstr()?;
        let codes = topic.ceach(|partition| {
            partition.i32()?;
            let told = (partition.i16()?, partition.cnstr()?);
            partition.tags()?;
            Ok(told)
        })?;
        topic.tags()?;
        Ok(codes)
    })?;
    let refused = codes.iter().flatten().find(|(code, _)| *code != 0);
    ensure!(refused.is_none(), "moving t to {replicas:?}: {refused:?}");
    Ok(())
}

/// How many partitions are listed as being moved.
fn moving(to: &mut Connection) -> Result<usize> {
    let mut answer =
        to.call(key::LIST_PARTITION_REASSIGNMENTS, 0, &W::new().i32(10_000).uvarint(0).tags())?;
    answer.i32()?;
    equal("error", answer.i16()?, 0)?;
    answer.cnstr()?;
    let ids = |partition: &mut crate::raw::wire::R| partition.ceach(|id| id.i32());
    let topics = answer.ceach(|topic| {
        topic.cstr()?;
        let partitions = topic.ceach(|partition| {
            partition.i32()?;
            for _ in ["replicas", "adding", "removing"] {
                ids(partition)?;
            }
            partition.tags()
        })?;
        topic.tags()?;
        Ok(partitions.len())
    })?;
    Ok(topics.into_iter().sum())
}

/// Waits until `t` has these replicas and nothing moves any more, as a broker says.
fn wait_moved(cluster: &mut Cluster, at: i32, replicas: &[i32]) -> Result<()> {
    let wanted: BTreeSet<i32> = replicas.iter().copied().collect();
    let mut last = Vec::new();
    let waited = wait::until(&format!("t to be moved to {replicas:?}"), MOVED, || {
        last = cluster.described(at, "t")?;
        let there = last.iter().all(|one| one.replicas.iter().copied().collect::<BTreeSet<i32>>() == wanted);
        let led = last.iter().all(|one| wanted.contains(&one.leader));
        let none = moving(&mut cluster.broker(at)?.connect()?)? == 0;
        Ok((there && led && none).then_some(()))
    });
    waited.with_context(|| format!("{last:?}"))
}

/// Who leads all of `t`: it does when nobody moved it.
fn the_leader(cluster: &mut Cluster, at: i32) -> Result<i32> {
    let leaders: BTreeSet<i32> = cluster.described(at, "t")?.iter().map(|one| one.leader).collect();
    ensure!(leaders.len() == 1, "{leaders:?} lead");
    leaders.first().copied().context("nobody leads")
}

fn under_trouble(stage: &Stage) -> Result<String> {
    let mut cluster = stage.plan().replicated().start()?;
    cluster.create_placed(1, "t", &vec![vec![1, 2, 3]; 3])?;
    let mut load = stage.load_existing(&cluster, Loader::Rdkafka, "t", 3)?;
    all_in_sync(&mut cluster, &[OFFSETS])?;
    cluster.add_brokers(1)?;
    equal("the leader", the_leader(&mut cluster, 1)?, 1)?;
    let mut took = Vec::new();
    let hold = |cluster: &mut Cluster, leader: i32, target: i32, replicas: &[i32]| -> Result<()> {
        // So that no copy can be made before the trouble has begun.
        cluster.network.cut_both(Place::Broker(leader), Place::Broker(target))?;
        alter(cluster, leader, Some(replicas))?;
        equal("partitions being moved", moving(&mut cluster.broker(leader)?.connect()?)?, 3)
    };

    // A follower stands still for longer than its lease.
    hold(&mut cluster, 1, 4, &[1, 2, 4])?;
    cluster.broker(2)?.pause()?;
    cluster.wait_alive_as_seen_by(&[1, 3, 4], &[1, 3])?;
    let began = Instant::now();
    cluster.network.heal_all()?;
    wait_moved(&mut cluster, 1, &[1, 2, 4])?;
    took.push(began.elapsed());
    goes_on(&mut load)?;
    cluster.broker(2)?.resume()?;
    cluster.wait_alive(&[1, 2, 3, 4])?;
    cluster.wait_in_sync(1, "t", &[1, 2, 4])?;

    // etcd is away.
    equal("the leader", the_leader(&mut cluster, 1)?, 1)?;
    hold(&mut cluster, 1, 3, &[1, 2, 3])?;
    cluster.etcd[0].pause()?;
    let lease = cluster.lease();
    load.stands_still(lease)?;
    cluster.network.heal_all()?;
    equal("partitions being moved without etcd", moving(&mut cluster.broker(1)?.connect()?)?, 3)?;
    let began = Instant::now();
    cluster.etcd[0].resume()?;
    wait_moved(&mut cluster, 1, &[1, 2, 3])?;
    took.push(began.elapsed());
    goes_on(&mut load)?;
    cluster.wait_in_sync(1, "t", &[1, 2, 3])?;

    // Cancelled while the new copy cannot be made and a follower is gone.
    equal("the leader", the_leader(&mut cluster, 1)?, 1)?;
    hold(&mut cluster, 1, 4, &[1, 2, 4])?;
    cluster.broker(2)?.kill();
    goes_on(&mut load)?;
    alter(&mut cluster, 3, None)?;
    wait_moved(&mut cluster, 1, &[1, 2, 3])?;
    cluster.network.heal_all()?;
    cluster.broker(2)?.start()?;
    cluster.wait_alive(&[1, 2, 3, 4])?;
    cluster.wait_in_sync(1, "t", &[1, 2, 3])?;

    // The leader is killed.
    equal("the leader", the_leader(&mut cluster, 1)?, 1)?;
    hold(&mut cluster, 1, 4, &[1, 2, 4])?;
    let began = Instant::now();
    cluster.broker(1)?.kill();
    wait_moved(&mut cluster, 2, &[1, 2, 4])?;
    took.push(began.elapsed());
    goes_on(&mut load)?;
    let leader = cluster.described(2, "t")?[0].leader;
    holds("another leads", leader != 1)?;
    cluster.network.heal_all()?;
    cluster.broker(1)?.start()?;
    cluster.wait_alive(&[1, 2, 3, 4])?;
    cluster.wait_in_sync(2, "t", &[1, 2, 4])?;

    let sent = load.finish()?;
    cluster.all_run()?;
    let compared = stage.verify_copies(&mut cluster, 6)?;
    Ok(format!(
        "completed with a follower that stands still, when etcd is back, after the leader's death: {}; {sent} records; {compared}",
        shown(&took)
    ))
}
