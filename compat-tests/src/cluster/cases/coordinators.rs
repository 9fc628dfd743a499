//! Groups, their offsets and producer ids in a cluster; whom clients are sent to, and what is set on one broker for all.

use std::collections::BTreeSet;
use std::time::{Duration, Instant};

use anyhow::{Context, Result, bail};

use crate::cluster::Case;
use crate::cluster::plan::{AGREE, Cluster};
use crate::cluster::stage::Stage;
use crate::raw::ask::code;
use crate::raw::ask::groups::{Join, Joined};
use crate::raw::ask::quotas::Parts;
use crate::raw::batch::Batch;
use crate::raw::conn::{Connection, key};
use crate::raw::expect::{equal, holds};
use crate::raw::stage::time;
use crate::raw::wire::{R, W};
use crate::wait;

pub const CASES: &[Case] = &[
    Case {
        name: "coordinators-follow-leaders",
        proves: "with the default factor of three, groups spread over three brokers and every broker tells the same coordinator; the others answer \
                 NOT_COORDINATOR; its broker killed and started again, the coordinator is found again with members and offsets",
        seconds: 90,
        run: follow,
    },
    Case {
        name: "coordinator-without-lease",
        proves: "a member that waits for others is told NOT_COORDINATOR soon after the lease has run out while etcd stands still, and of a broker \
                 that was paused, when it wakes; the group is found again",
        seconds: 90,
        run: without_lease,
    },
    Case {
        name: "leader-hints",
        proves: "Produce 10 and Fetch 16 to a broker that does not lead name leader, epoch and endpoint (KIP-951, surface 36)",
        seconds: 60,
        run: hints,
    },
    Case {
        name: "producer-ids-apart",
        proves: "three brokers never give out one producer id twice, killed and started again meanwhile",
        seconds: 60,
        run: producer_ids,
    },
    Case {
        name: "quotas-on-every-broker",
        proves: "a quota that is set on one broker throttles on each of the others, and ends there when it is removed",
        seconds: 60,
        run: quotas,
    },
];

fn connect(cluster: &mut Cluster, at: i32) -> Result<Connection> {
    cluster.broker(at)?.connect()
}

/// The coordinator of a group, as soon as a broker knows one that answers.
pub fn coordinator(cluster: &mut Cluster, at: i32, group: &str) -> Result<i32> {
    wait::until(&format!("a coordinator of {group}"), AGREE * 3, || {
        let (error, id) = connect(cluster, at)?.coordinator_of(group)?;
        match error {
            code::NONE => Ok(Some(id)),
            code::COORDINATOR_NOT_AVAILABLE | code::COORDINATOR_LOAD_IN_PROGRESS => Ok(None),
            other => bail!("FindCoordinator: error {other}"),
        }
    })
}

/// Asks until the groups have been read.
pub fn loaded(mut ask: impl FnMut() -> Result<i16>) -> Result<i16> {
    wait::until("the groups to be read", AGREE * 3, || {
        let error = ask()?;
        let again =
            [code::COORDINATOR_LOAD_IN_PROGRESS, code::NOT_COORDINATOR, code::COORDINATOR_NOT_AVAILABLE];
        Ok((!again.contains(&error)).then_some(error))
    })
}

fn joined(to: &mut Connection, group: &str) -> Result<Joined> {
    to.coordinator(group)?;
    to.join_new(&Join::consumer(group).patient())
}

fn follow(stage: &Stage) -> Result<String> {
    let mut cluster = stage.plan().set("group.initial.rebalance.delay.ms", "0").start()?;
    cluster.create(1, "t", 3)?;
    let groups: Vec<String> = (0..12).map(|number| format!("g{number}")).collect();
    let mut coordinators = Vec::new();
    for group in &groups {
        let at = coordinator(&mut cluster, 1, group)?;
        for other in cluster.ids() {
            equal(&format!("{group} as {other} sees it"), coordinator(&mut cluster, other, group)?, at)?;
        }
        coordinators.push(at);
    }
    let spread: BTreeSet<i32> = coordinators.iter().copied().collect();
    equal("coordinators", spread.into_iter().collect::<Vec<_>>(), vec![1, 2, 3])?;
    let mut members = Vec::new();
    for (group, at) in groups.iter().zip(&coordinators) {
        let mut to = connect(&mut cluster, *at)?;
        let member = joined(&mut to, group)?;
        let (error, _) =
            to.sync(group, member.generation, &member.member, None, &[(&member.member, b"all")])?;
        equal("syncing", error, code::NONE)?;
        let stranger = at % 3 + 1;
        let error =
            connect(&mut cluster, stranger)?.heartbeat(group, member.generation, &member.member, None)?;
        equal("another broker", error, code::NOT_COORDINATOR)?;
        members.push(member);
    }
    for (group, at) in groups.iter().zip(&coordinators) {
        let own = coordinator(&mut cluster, *at, &format!("{group}-offsets"))?;
        let mut to = connect(&mut cluster, own)?;
        equal("committing", loaded(|| to.commit(&format!("{group}-offsets"), "t", 42))?, code::NONE)?;
    }
    let mut took = Vec::new();
    for id in cluster.ids() {
        cluster.broker(id)?.kill();
        let began = Instant::now();
        cluster.broker(id)?.start()?;
        for ((group, at), member) in
            groups.iter().zip(&coordinators).zip(&members).filter(|((_, at), _)| **at == id)
        {
            let witness = id % 3 + 1;
            equal("the coordinator again", coordinator(&mut cluster, witness, group)?, *at)?;
            let mut to = connect(&mut cluster, id)?;
            let beat = loaded(|| to.heartbeat(group, member.generation, &member.member, None))?;
            equal("the member goes on", beat, code::NONE)?;
        }
        took.push(began.elapsed());
    }
    for group in &groups {
        let name = format!("{group}-offsets");
        let at = coordinator(&mut cluster, 1, &name)?;
        let mut to = connect(&mut cluster, at)?;
        to.coordinator(&name)?;
        let offset = to.committed_offset(&name, "t")?;
        equal("committed", offset, 42)?;
    }
    cluster.all_run()?;
    Ok(format!("served again after a kill: {}", crate::cluster::stage::shown(&took)))
}

/// A member that has asked to join and waits for another, which does not come.
struct Waiting {
    group: String,
    at: i32,
    to: Connection,
    asked: i32,
}

/// Arranges that in a new group; nothing if the coordinator had no lease meanwhile. One that etcd answers late has it for a moment only,
/// as a lease counts from when it was asked for.
fn arranged(cluster: &mut Cluster, group: &str) -> Result<Option<Waiting>> {
    let at = coordinator(cluster, 1, group)?;
    let mut to = connect(cluster, at)?;
    to.coordinator(group)?;
    let named = to.join(&Join::consumer(group).patient())?;
    if named.error != code::MEMBER_ID_REQUIRED {
        return Ok(None);
    }
    let first = to.join(&Join::consumer(group).patient().member(&named.member))?;
    if first.error != code::NONE {
        return Ok(None);
    }
    let (error, _) = to.sync(group, first.generation, &first.member, None, &[(&first.member, b"all")])?;
    if error != code::NONE {
        return Ok(None);
    }
    let mut second = cluster.broker(at)?.connect_with(Duration::from_secs(30))?;
    let named = second.join(&Join::consumer(group))?;
    if named.error != code::MEMBER_ID_REQUIRED {
        return Ok(None);
    }
    let asked = second.send(key::JOIN_GROUP, 5, &Join::consumer(group).member(&named.member).body())?;
    let waits = wait::until("the second member to wait", AGREE, || {
        let beat = to.heartbeat(group, first.generation, &first.member, None)?;
        Ok((beat != code::NONE).then_some(beat == code::REBALANCE_IN_PROGRESS))
    })?;
    Ok(waits.then(|| Waiting { group: group.to_owned(), at, to: second, asked }))
}

/// A member that waits for another which does not come; then something happens. The group, how long it waited, and its error.
fn waits(
    cluster: &mut Cluster,
    group: &str,
    mishap: impl FnOnce(&mut Cluster, i32) -> Result<()>,
) -> Result<(String, Duration, i16)> {
    let mut tries = 0;
    let mut waiting = wait::until("a member to wait", AGREE * 2, || {
        tries += 1;
        arranged(cluster, &format!("{group}-{tries}"))
    })?;
    let began = Instant::now();
    mishap(cluster, waiting.at)?;
    let answer = Joined::read(waiting.to.receive_for(waiting.asked, key::JOIN_GROUP, 5)?)?;
    Ok((waiting.group, began.elapsed(), answer.error))
}

fn without_lease(stage: &Stage) -> Result<String> {
    let mut cluster = stage.plan().set("group.initial.rebalance.delay.ms", "0").start()?;
    let (group, stood, error) = waits(&mut cluster, "stands", |cluster, _| cluster.etcd[0].pause())?;
    equal("while etcd stands still", error, code::NOT_COORDINATOR)?;
    let lease = cluster.lease();
    // Usual is one lease; by the time that a rebalance waits for members (ten seconds) it would have been told something else.
    holds(&format!("told after {stood:?}"), stood < lease * 8)?;
    cluster.etcd[0].resume()?;
    coordinator(&mut cluster, 2, &group)?;
    let (group, paused, error) = waits(&mut cluster, "paused", |cluster, at| {
        cluster.broker(at)?.pause()?;
        let others: Vec<i32> = cluster.ids().into_iter().filter(|id| *id != at).collect();
        cluster.wait_alive_as_seen_by(&others, &others)?;
        cluster.broker(at)?.resume()
    })?;
    equal("of a broker that was paused", error, code::NOT_COORDINATOR)?;
    let at = coordinator(&mut cluster, 1, &group)?;
    let mut to = connect(&mut cluster, at)?;
    // Until its groups are read a coordinator lets every heartbeat pass, as Kafka does.
    to.coordinator(&group)?;
    let beat = loaded(|| to.heartbeat(&group, 1, "nobody", None))?;
    equal("it knows the group", beat, code::UNKNOWN_MEMBER_ID)?;
    cluster.all_run()?;
    Ok(format!(
        "told {:.2} s after etcd stood still, {:.2} s after a pause began",
        stood.as_secs_f64(),
        paused.as_secs_f64()
    ))
}

/// A hint: leader and epoch, from a tagged field of a partition.
fn leader_of(tags: Vec<(u32, Vec<u8>)>, tag: u32) -> Result<Option<(i32, i32)>> {
    let Some((_, bytes)) = tags.into_iter().find(|(found, _)| *found == tag) else { return Ok(None) };
    let mut field = R::new(bytes);
    Ok(Some((field.i32()?, field.i32()?)))
}

/// Endpoints: node, host and port, from a tagged field of the answer.
fn endpoints(tags: Vec<(u32, Vec<u8>)>) -> Result<Vec<(i32, String, i32)>> {
    let Some((_, bytes)) = tags.into_iter().find(|(found, _)| *found == 0) else { return Ok(Vec::new()) };
    R::new(bytes).ceach(|node| {
        let found = (node.i32()?, node.cstr()?, node.i32()?);
        node.cnstr()?;
        node.tags()?;
        Ok(found)
    })
}

/// What a broker says of a partition: error, leader with epoch, and where the leader is.
type Hint = (i16, Option<(i32, i32)>, Vec<(i32, String, i32)>);

fn produce_hint(to: &mut Connection, topic: &str, partition: i32) -> Result<Hint> {
    let records = Batch::of(&["x"], time()).encode()?;
    let body = W::new().cnstr(None).i16(-1).i32(10_000).carray(1).cstr(topic).carray(1).i32(partition);
    let body = body.cbytes(&records).tags().tags().tags();
    let mut answer = to.call(key::PRODUCE, 10, &body)?;
    let mut found = answer.ceach(|topic| {
        topic.cstr()?;
        let found = topic.ceach(|partition| {
            partition.i32()?;
            let error = partition.i16()?;
            partition.raw(24)?;
            partition.ceach(|record| {
                record.i32()?;
                record.cnstr()?;
                record.tags()
            })?;
            partition.cnstr()?;
            Ok((error, leader_of(partition.tags()?, 0)?))
        })?;
        topic.tags()?;
        Ok(found)
    })?;
    answer.i32()?;
    let at = endpoints(answer.tags()?)?;
    let (error, leader) = found.pop().and_then(|mut all| all.pop()).context("no partition")?;
    Ok((error, leader, at))
}

fn fetch_hint(to: &mut Connection, topic: [u8; 16], partition: i32, epoch: i32) -> Result<Hint> {
    let body = W::new().i32(0).i32(0).i32(1 << 20).i8(0).i32(0).i32(-1).carray(1).raw(&topic).carray(1);
    let body = body.i32(partition).i32(epoch).i64(0).i32(-1).i64(-1).i32(1 << 20).tags().tags();
    let mut answer = to.call(key::FETCH, 16, &body.carray(0).cstr("").tags())?;
    answer.i32()?;
    equal("error of all", answer.i16()?, code::NONE)?;
    answer.i32()?;
    let mut found = answer.ceach(|topic| {
        topic.uuid()?;
        let found = topic.ceach(|partition| {
            partition.i32()?;
            let error = partition.i16()?;
            partition.raw(24)?;
            partition.ceach(|aborted| {
                aborted.raw(16)?;
                aborted.tags()
            })?;
            partition.i32()?;
            partition.cnbytes()?;
            Ok((error, leader_of(partition.tags()?, 1)?))
        })?;
        topic.tags()?;
        Ok(found)
    })?;
    let at = endpoints(answer.tags()?)?;
    let (error, leader) = found.pop().and_then(|mut all| all.pop()).context("no partition")?;
    Ok((error, leader, at))
}

fn hints(stage: &Stage) -> Result<String> {
    let mut cluster = stage.plan().start()?;
    cluster.create(1, "t", 6)?;
    // A second tenure, so that an epoch may be too old.
    cluster.broker(2)?.kill();
    cluster.broker(2)?.start()?;
    cluster.wait_led(1, "t")?;
    let number = cluster.led_by(2, "t")?[0];
    cluster.wait_serves(2, "t", &[number])?;
    // Of the leader itself: others may hear of it later.
    let epoch = cluster.partitions(2, "t")?[usize::try_from(number)?].epoch;
    let id = connect(&mut cluster, 1)?.topic(Some("t"), [0; 16], false)?.id;
    let told = cluster.broker(2)?.told();
    let place = vec![(2, told.ip().to_string(), i32::from(told.port()))];
    let expected = (code::NOT_LEADER_OR_FOLLOWER, Some((2, epoch)), place.clone());
    for at in [1, 3] {
        let mut to = connect(&mut cluster, at)?;
        wait::until("the newest epoch", AGREE, || {
            Ok((produce_hint(&mut to, "t", number)? == expected).then_some(()))
        })?;
        equal("Fetch", fetch_hint(&mut to, id, number, -1)?, expected.clone())?;
    }
    let mut to = connect(&mut cluster, 2)?;
    let fenced = (code::FENCED_LEADER_EPOCH, Some((2, epoch)), place);
    equal("an old epoch", fetch_hint(&mut to, id, number, epoch - 1)?, fenced)?;
    equal(
        "a coming epoch",
        fetch_hint(&mut to, id, number, epoch + 1)?,
        (code::UNKNOWN_LEADER_EPOCH, None, Vec::new()),
    )?;
    // While its broker is dead and nobody leads, there is nobody to name.
    cluster.broker(2)?.kill();
    cluster.wait_leaderless(2, "t", &[number])?;
    let nobody = (code::NOT_LEADER_OR_FOLLOWER, None, Vec::new());
    equal("nobody leads", produce_hint(&mut connect(&mut cluster, 1)?, "t", number)?, nobody)?;
    Ok(String::new())
}

fn producer_ids(stage: &Stage) -> Result<String> {
    let mut cluster = stage.plan().start()?;
    let mut given = BTreeSet::new();
    for round in 0..6 {
        for id in cluster.ids() {
            let mut to = connect(&mut cluster, id)?;
            for _ in 0..50 {
                let (producer, epoch) = to.producer_id()?;
                equal("epoch", epoch, 0)?;
                holds(&format!("{producer} is new"), given.insert(producer))?;
            }
        }
        let id = round % 3 + 1;
        cluster.broker(id)?.kill();
        cluster.broker(id)?.start()?;
    }
    equal("ids", given.len(), 900)?;
    Ok(String::new())
}

/// The throttle time that a broker tells a client for a batch.
fn throttle(cluster: &mut Cluster, at: i32, client: &str, partition: i32) -> Result<i32> {
    let (error, throttle) = connect(cluster, at)?.named(client).produce_throttled("t", partition, 30_000)?;
    equal("error", error, code::NONE)?;
    Ok(throttle)
}

fn quotas(stage: &Stage) -> Result<String> {
    let mut cluster = stage.plan().set("quota.window.num", "2").start()?;
    cluster.create(1, "t", 6)?;
    let slow: Parts<'_> = &[("client-id", Some("slow"))];
    connect(&mut cluster, 1)?.set_quota(slow, "producer_byte_rate", Some(10_000.0))?;
    for id in cluster.ids() {
        let number = cluster.led_by(id, "t")?[0];
        wait::until(&format!("a throttle on {id}"), AGREE, || {
            Ok((throttle(&mut cluster, id, "slow", number)? > 0).then_some(()))
        })?;
        equal("another client", throttle(&mut cluster, id, "fast", number)?, 0)?;
    }
    connect(&mut cluster, 3)?.set_quota(slow, "producer_byte_rate", None)?;
    for id in cluster.ids() {
        let number = cluster.led_by(id, "t")?[0];
        wait::until(&format!("the end of the throttle on {id}"), AGREE, || {
            Ok((throttle(&mut cluster, id, "slow", number)? == 0).then_some(()))
        })?;
    }
    Ok(String::new())
}
