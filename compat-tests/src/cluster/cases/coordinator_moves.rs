//! Coordinators whose partitions are moved, and what a coordinator that takes over knows.

use std::collections::BTreeMap;
use std::time::Instant;

use anyhow::{Context, Result};

use super::coordinators::{coordinator, loaded};
use super::partitioned::{ALL, BOTH, OFFSETS, all_in_sync, each_leads, served};
use crate::cluster::Case;
use crate::cluster::plan::{AGREE, Cluster};
use crate::cluster::stage::{Stage, shown};
use crate::raw::ask::code;
use crate::raw::ask::groups::Join;
use crate::raw::expect::{equal, holds};
use crate::wait;

pub const CASES: &[Case] = &[
    Case {
        name: "coordinator-moved",
        proves: "the partitions of groups are led elsewhere by election under groups of librdkafka and Java: the old broker answers NOT_COORDINATOR, all \
                 brokers name the new one within the lease, members go on at their generation, no commit is lost (B063)",
        seconds: 120,
        run: moved,
    },
    Case {
        name: "groups-after-failover",
        proves: "a group and an offset are deleted, a static member is taken over by another process, and the coordinator is killed at once: at the next one \
                 the group and the offset are gone (B021), the new member is valid and the old one fenced (B051); again after a restart",
        seconds: 90,
        run: after_failover,
    },
];

fn moved(stage: &Stage) -> Result<String> {
    // One partition, so that every group moves with it.
    let plan = stage.plan().replicated().set("offsets.topic.num.partitions", "1");
    let mut cluster = plan.start()?;
    for topic in ["t", "j"] {
        cluster.create_placed(1, topic, &each_leads())?;
    }
    let mut load = stage.loads_existing(&cluster, &BOTH, 3)?;
    all_in_sync(&mut cluster, &[OFFSETS])?;
    let at = coordinator(&mut cluster, 1, "own")?;
    let mut to = served(&mut cluster, at)?;
    to.coordinator("own")?;
    let member = to.join_new(&Join::consumer("own").patient())?;
    let assigned = [(member.member.as_str(), &b"all"[..])];
    equal("syncing", to.sync("own", member.generation, &member.member, None, &assigned)?.0, code::NONE)?;
    let (mut named, mut seen) = (Vec::new(), BTreeMap::<i16, u64>::new());
    for round in 0..stage.rounds(3, 30) {
        let at = coordinator(&mut cluster, 1, "own")?;
        let mut old = served(&mut cluster, at)?;
        let offset = i64::try_from(round)?;
        let committed = loaded(|| old.commit_as("own", member.generation, &member.member, "t", offset, ""))?;
        equal("committing", committed, code::NONE)?;
        let next = at % 3 + 1;
        let order = [next, next % 3 + 1, at];
        served(&mut cluster, at)?.reassign(OFFSETS, 1, Some(&order))?;
        let mut began = Instant::now();
        wait::until(&format!("{next} to be elected"), AGREE, || {
            // On a busy machine it may have been dropped from the set a moment ago.
            began = Instant::now();
            Ok((served(&mut cluster, at)?.elect_preferred(OFFSETS, 0)? == code::NONE).then_some(()))
        })?;
        for witness in ALL {
            wait::until(&format!("{witness} to name {next}"), AGREE, || {
                let (error, id) = served(&mut cluster, witness)?.coordinator_of("own")?;
                Ok((error == code::NONE && id == next).then_some(()))
            })?;
        }
        named.push(began.elapsed());
        let error = old.heartbeat("own", member.generation, &member.member, None)?;
        equal("the one before", error, code::NOT_COORDINATOR)?;
        let mut to = served(&mut cluster, next)?;
        wait::until("a heartbeat at the same generation", AGREE, || {
            let beat = to.heartbeat("own", member.generation, &member.member, None)?;
            *seen.entry(beat).or_default() += 1;
            holds(
                &format!("a heartbeat is answered with {beat}"),
                [code::NONE, code::COORDINATOR_LOAD_IN_PROGRESS, code::NOT_COORDINATOR].contains(&beat),
            )?;
            Ok((beat == code::NONE).then_some(()))
        })?;
        equal("the offset", to.committed_offset("own", "t")?, offset)?;
        load.go_on()?;
        all_in_sync(&mut cluster, &[OFFSETS])?;
    }
    let sent = load.finish()?;
    cluster.all_run()?;
    let compared = stage.verify_copies(&mut cluster, 7)?;
    Ok(format!("named everywhere {}; heartbeats {seen:?}; {sent:?} records; {compared}", shown(&named)))
}

/// A static member of a group that joins anew; its member id.
fn join_static(cluster: &mut Cluster, at: i32, group: &str) -> Result<(String, i32)> {
    let mut to = served(cluster, at)?;
    to.coordinator(group)?;
    let joined = to.join(&Join::consumer(group).patient().instance("one"))?;
    equal("joining", joined.error, code::NONE)?;
    let assigned = [(joined.member.as_str(), &b"all"[..])];
    let synced = to.sync(group, joined.generation, &joined.member, Some("one"), &assigned)?.0;
    equal("syncing", synced, code::NONE)?;
    Ok((joined.member, joined.generation))
}

/// What must hold of the groups at any coordinator that has read them.
fn check(cluster: &mut Cluster, witness: i32, old: &(String, i32), new: &(String, i32)) -> Result<()> {
    let at = coordinator(cluster, witness, "static")?;
    let mut to = served(cluster, at)?;
    // Waits until what was written of it is read: a heartbeat does not tell who was fenced before that.
    to.coordinator("static")?;
    let beat = loaded(|| to.heartbeat("static", new.1, &new.0, Some("one")))?;
    equal("the member that took over", beat, code::NONE)?;
    let beat = to.heartbeat("static", old.1, &old.0, Some("one"))?;
    equal("the one before", beat, code::FENCED_INSTANCE_ID)?;
    to.coordinator("gone")?;
    holds("the group is gone", !to.groups()?.contains(&"gone".to_owned()))?;
    equal("its offset", to.committed_offset("gone", "t")?, -1)?;
    to.coordinator("kept")?;
    equal("an offset that was deleted", to.committed_offset("kept", "t")?, -1)?;
    equal("one that was not", to.committed_offset("kept", "u")?, 8)
}

fn after_failover(stage: &Stage) -> Result<String> {
    let plan = stage.plan().replicated().set("offsets.topic.num.partitions", "1");
    let mut cluster = plan.start()?;
    for topic in ["t", "u"] {
        cluster.create_placed(1, topic, &[vec![1, 2, 3]])?;
    }
    let at = coordinator(&mut cluster, 1, "gone")?;
    let mut to = served(&mut cluster, at)?;
    to.coordinator("gone")?;
    all_in_sync(&mut cluster, &[OFFSETS])?;
    for (group, topic, offset) in [("gone", "t", 7), ("kept", "t", 7), ("kept", "u", 8)] {
        equal("committing", to.commit(group, topic, offset)?, code::NONE)?;
    }
    let old = join_static(&mut cluster, at, "static")?;
    let new = join_static(&mut cluster, at, "static")?;
    holds("it has another id", old.0 != new.0)?;
    equal("deleting the group", to.delete_group("gone")?, code::NONE)?;
    equal("deleting an offset", to.delete_offset("kept", "t")?, code::NONE)?;
    cluster.broker(at)?.kill();
    let began = Instant::now();
    let witness = at % 3 + 1;
    let (next, _) = cluster.wait_leader(witness, OFFSETS, 0, Some(at))?;
    check(&mut cluster, next, &old, &new).context("after a failover")?;
    let took = began.elapsed();
    cluster.broker(at)?.start()?;
    cluster.wait_alive(&ALL)?;
    all_in_sync(&mut cluster, &[OFFSETS])?;
    cluster.broker(next)?.kill();
    cluster.broker(next)?.start()?;
    cluster.wait_alive(&ALL)?;
    check(&mut cluster, at, &old, &new).context("after a restart")?;
    cluster.all_run()?;
    let compared = stage.verify_copies(&mut cluster, 3)?;
    Ok(format!("answered {:.2} s after the kill; {compared}", took.as_secs_f64()))
}
