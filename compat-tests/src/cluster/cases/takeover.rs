//! What clients keep when another broker takes over: groups with their offsets, and the sequences of producers.

use std::collections::BTreeMap;
use std::time::{Duration, Instant};

use anyhow::{Context, Result, bail, ensure};

use crate::cluster::Case;
use crate::cluster::load::Load;
use crate::cluster::plan::{AGREE, Cluster};
use crate::cluster::stage::{Loader, Stage, shown};
use crate::cluster::topics::stored;
use crate::raw::ask::code;
use crate::raw::ask::groups::Join;
use crate::raw::batch::Batch;
use crate::raw::conn::{Connection, key};
use crate::raw::expect::equal;
use crate::raw::stage::time;
use crate::raw::wire::W;
use crate::wait;

pub const CASES: &[Case] = &[
    Case {
        name: "coordinator-killed",
        proves: "the broker of a coordinator is killed under real groups of librdkafka and Java: another has read the group (14 meanwhile, never an \
                 unknown member or an offset that is not there), every broker names it, members go on at their generation, and no \
                 consumer is reset, skips or goes back",
        seconds: 150,
        run: coordinator_killed,
    },
    Case {
        name: "producer-after-failover",
        proves: "an idempotent producer sends again what its leader took before it was killed: the next one knows the sequence from the log and \
                 answers with the same offset; what comes next is taken, a gap refused; what was on its way is there once",
        seconds: 120,
        run: producer_after_failover,
    },
    Case {
        name: "dead-leader-told",
        proves: "the broker of a leader is killed: long before its lease is over the others say that there is no leader (5, -1), and still list \
                 the broker; an answer about the topic waits a moment for the next leader, but not when the client wants something else",
        seconds: 60,
        run: dead_leader_told,
    },
];

/// The group that a load's consumers are in.
fn group_of(topic: &str) -> String {
    format!("{topic}-group")
}

/// Whom a broker names; nobody while it cannot.
fn named(cluster: &mut Cluster, at: i32, group: &str) -> Result<Option<i32>> {
    let (error, id) = cluster.broker(at)?.connect()?.coordinator_of(group)?;
    match error {
        code::NONE => Ok(Some(id)),
        code::COORDINATOR_NOT_AVAILABLE | code::COORDINATOR_LOAD_IN_PROGRESS => Ok(None),
        other => bail!("FindCoordinator: error {other}"),
    }
}

/// What a coordinator may say before it has read its groups.
const NOT_YET: [i16; 3] =
    [code::COORDINATOR_LOAD_IN_PROGRESS, code::NOT_COORDINATOR, code::COORDINATOR_NOT_AVAILABLE];

fn coordinator_killed(stage: &Stage) -> Result<String> {
    let mut cluster = stage.plan().replicated().set("group.initial.rebalance.delay.ms", "0").start()?;
    let mut loads = Vec::new();
    for (loader, topic) in [(Loader::Rdkafka, "rdkafka"), (Loader::Java, "java")] {
        let (error, message) = cluster.broker(1)?.connect()?.create_on(topic, 3, 3, &[])?;
        equal(&format!("creating {topic}: {message:?}"), error, 0)?;
        cluster.wait_in_sync(1, topic, &[1, 2, 3])?;
        loads.push(stage.load_existing(&cluster, loader, topic, 3)?);
    }
    cluster.wait_in_sync(1, "__consumer_offsets", &[1, 2, 3])?;
    let (mut found_after, mut seen, mut stalls) = (Vec::new(), BTreeMap::new(), Vec::new());
    for topic in ["rdkafka", "java"] {
        let group = group_of(topic);
        let at = wait::until("a coordinator", AGREE, || named(&mut cluster, 1, &group))?;
        // A group of the same coordinator, whose member is ours.
        let own = (0..)
            .map(|number| format!("own-{topic}-{number}"))
            .find(|own| named(&mut cluster, 1, own).is_ok_and(|found| found == Some(at)))
            .context("no group has that coordinator")?;
        let mut to = cluster.broker(at)?.connect()?;
        to.coordinator(&own)?;
        // A session that outlives a takeover on a busy machine.
        let member = to.join_new(&Join { session: 60_000, ..Join::consumer(&own) })?;
        let assigned = [(member.member.as_str(), &b"all"[..])];
        equal("syncing", to.sync(&own, member.generation, &member.member, None, &assigned)?.0, code::NONE)?;
        wait::until("the offset to be committed", AGREE, || {
            let error = to.commit_as(&own, member.generation, &member.member, topic, 42, "kept")?;
            // Followers of its partition may have been late.
            let later = NOT_YET.contains(&error) || error == code::REQUEST_TIMED_OUT;
            if !later {
                equal("committing", error, code::NONE)?;
            }
            Ok((!later).then_some(()))
        })?;
        for load in &mut loads {
            load.measure()?;
        }
        cluster.broker(at)?.kill();
        let began = Instant::now();
        let left = cluster.others(at);
        let (now, beat) = wait::until("the group to go on", AGREE, || {
            for witness in &left {
                let mut to = cluster.broker(*witness)?.connect()?;
                let beat = to.heartbeat(&own, member.generation, &member.member, None)?;
                *seen.entry(beat).or_insert(0) += 1;
                if !NOT_YET.contains(&beat) {
                    return Ok(Some((*witness, beat)));
                }
            }
            Ok(None)
        })?;
        equal("a heartbeat at the same generation", beat, code::NONE)?;
        found_after.push(began.elapsed());
        for witness in &left {
            wait::until(&format!("{witness} to name {now}"), AGREE, || {
                Ok((named(&mut cluster, *witness, &own)? == Some(now)).then_some(()))
            })?;
        }
        let mut to = cluster.broker(now)?.connect()?;
        equal("the offset", to.committed_offset(&own, topic)?, 42)?;
        let (error, state, members) = to.describe_group(&own)?;
        equal("the group", (error, state.as_str(), members.len()), (code::NONE, "Stable", 1))?;
        for load in &mut loads {
            load.progress(30)?;
            load.all_go_on()?;
            stalls.push(load.longest_stall()?);
        }
        cluster.broker(at)?.start()?;
        cluster.wait_alive(&[1, 2, 3])?;
        cluster.wait_in_sync(1, "__consumer_offsets", &[1, 2, 3])?;
        cluster.wait_in_sync(1, topic, &[1, 2, 3])?;
    }
    let sent = loads.into_iter().map(Load::finish).collect::<Result<Vec<u64>>>()?;
    cluster.all_run()?;
    let compared = stage.verify_copies(&mut cluster, 9)?;
    Ok(format!(
        "{sent:?} records; the group went on after {}; answers on the way {seen:?}; longest stall {:.2} s; {compared}",
        shown(&found_after),
        stalls.into_iter().max().unwrap_or_default().as_secs_f64()
    ))
}

/// Sends a batch to whoever leads until it is answered with anything but a word to look elsewhere: error and base offset.
fn until_answered(cluster: &mut Cluster, batch: &Batch) -> Result<(i16, i64)> {
    const LOOK_ELSEWHERE: [i16; 4] = [
        code::NOT_LEADER_OR_FOLLOWER,
        code::REQUEST_TIMED_OUT,
        code::NOT_ENOUGH_REPLICAS,
        code::NOT_ENOUGH_REPLICAS_AFTER_APPEND,
    ];
    let encoded = batch.encode()?;
    let mut last = String::new();
    let answered = wait::until("an answer of the leader", AGREE, || {
        let ids = cluster.ids();
        for at in ids {
            if !cluster.broker(at)?.node.runs() {
                continue;
            }
            let asked = cluster.broker(at)?.connect().and_then(|mut to| to.produce_bytes("t", 0, &encoded));
            match asked {
                Ok(produced) if !LOOK_ELSEWHERE.contains(&produced.error) => {
                    return Ok(Some((produced.error, produced.base_offset)));
                }
                other => last = format!("{at}: {other:?}"),
            }
        }
        Ok(None)
    });
    answered.context(last)
}

fn producer_after_failover(stage: &Stage) -> Result<String> {
    let mut cluster = stage.plan().start()?;
    equal("creating", cluster.broker(1)?.connect()?.create_on("t", 1, 3, &[])?.0, 0)?;
    cluster.wait_in_sync(1, "t", &[1, 2, 3])?;
    let (producer, epoch) = cluster.broker(2)?.connect()?.producer_id()?;
    let of = |value: &str, sequence| Batch::of(&[value], time()).by_producer(producer, epoch, sequence);
    let mut values: Vec<String> = Vec::new();
    let (mut took, mut went_on) = (Vec::new(), Vec::new());
    for _ in 0..stage.rounds(3, 30) {
        let leader = cluster.partitions(1, "t")?[0].leader;
        cluster.wait_serves(leader, "t", &[0])?;
        let mut to: Connection = cluster.broker(leader)?.connect()?;
        let sequence = i32::try_from(values.len())?;
        let taken = of(&format!("taken {sequence}"), sequence);
        // Followers that were late may leave too few: it is sent again then, as a client does.
        let (error, first) = until_answered(&mut cluster, &taken)?;
        equal("what was sent first", (error, first), (code::NONE, i64::from(sequence)))?;
        values.push(format!("taken {sequence}"));
        // One more is on its way when the leader goes: nobody knows whether it was taken.
        let on_its_way = of(&format!("on its way {sequence}"), sequence + 1);
        to.send(key::PRODUCE, 8, &Connection::produce_body(-1, "t", 0, &on_its_way.encode()?))?;
        cluster.broker(leader)?.kill();
        let began = Instant::now();
        // What is answered for the older one must come first: both are sent again, as a client does.
        equal("the first once more", until_answered(&mut cluster, &taken)?, (code::NONE, first))?;
        took.push(began.elapsed());
        let (error, offset) = until_answered(&mut cluster, &on_its_way)?;
        went_on.push(began.elapsed());
        equal("what was on its way", (error, offset), (code::NONE, first + 1))?;
        values.push(format!("on its way {sequence}"));
        let (error, _) = until_answered(&mut cluster, &of("a gap", sequence + 7))?;
        equal("a gap", error, code::OUT_OF_ORDER_SEQUENCE_NUMBER)?;
        cluster.broker(leader)?.start()?;
        cluster.wait_alive(&[1, 2, 3])?;
        cluster.wait_in_sync(1, "t", &[1, 2, 3])?;
    }
    let leader = cluster.partitions(1, "t")?[0].leader;
    let all = stored(&mut cluster.broker(leader)?.connect()?, "t", 0)?;
    let found: Vec<String> = all.into_iter().map(|(_, _, value)| value).collect();
    equal("everything once, in order", found, values)?;
    cluster.all_run()?;
    let compared = stage.verify_copies(&mut cluster, 1)?;
    Ok(format!(
        "what was taken is answered again by the next leader: {}; what was on its way: {}; {compared}",
        shown(&took),
        shown(&went_on)
    ))
}

fn dead_leader_told(stage: &Stage) -> Result<String> {
    let mut cluster = stage.plan().lease(Duration::from_secs(6)).start()?;
    equal("creating", cluster.broker(1)?.connect()?.create_on("t", 1, 3, &[])?.0, 0)?;
    cluster.wait_in_sync(1, "t", &[1, 2, 3])?;
    let dead = cluster.partitions(1, "t")?[0].leader;
    cluster.wait_serves(dead, "t", &[0])?;
    let (error, _) = until_answered(&mut cluster, &Batch::of(&["before"], time()))?;
    equal("producing", error, code::NONE)?;
    let witness = cluster.others(dead)[0];
    let mut to = cluster.broker(witness)?.connect()?;
    cluster.broker(dead)?.kill();
    let began = Instant::now();
    let told_after = wait::until("an answer without that leader", AGREE, || {
        let seen = to.metadata_of("t")?;
        let partition = seen.topics["t"][0].clone();
        if partition.leader == dead {
            return Ok(None);
        }
        equal(
            "instead of the dead leader",
            (partition.error, partition.leader),
            (code::LEADER_NOT_AVAILABLE, -1),
        )?;
        equal("whether it is listed", seen.brokers.iter().any(|broker| broker.id == dead), true)?;
        Ok(Some(began.elapsed()))
    })?;
    // Whoever asks something else in the same breath is not kept waiting for the next leader.
    let mut quickest = Duration::MAX;
    for _ in 0..5 {
        let asked = Instant::now();
        let about = to.send(key::METADATA, 12, &Connection::metadata_body("t"))?;
        let other = to.send(key::API_VERSIONS, 0, &W::new())?;
        to.receive_for(about, key::METADATA, 12)?;
        to.receive_for(other, key::API_VERSIONS, 0)?;
        quickest = quickest.min(asked.elapsed());
    }
    let mut longest = Duration::ZERO;
    let led_after = wait::until("the next leader", AGREE, || {
        let asked = Instant::now();
        let seen = to.metadata_of("t")?;
        longest = longest.max(asked.elapsed());
        let leader = seen.topics["t"][0].leader;
        equal("the dead leader is told again", leader == dead, false)?;
        Ok((leader >= 0).then(|| began.elapsed()))
    })?;
    ensure!(quickest < Duration::from_millis(400), "an answer was kept waiting for {quickest:?}");
    ensure!(
        longest >= Duration::from_millis(400),
        "no answer waited for the next leader: {longest:?} at most"
    );
    cluster.broker(dead)?.start()?;
    cluster.wait_in_sync(witness, "t", &[1, 2, 3])?;
    cluster.all_run()?;
    let compared = stage.verify_copies(&mut cluster, 1)?;
    Ok(format!(
        "told after {:.2} s, another led after {:.2} s; {compared}",
        told_after.as_secs_f64(),
        led_after.as_secs_f64()
    ))
}
