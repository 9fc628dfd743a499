//! What the next leader answers about the log that it took over: by time, by epoch, and to a consumer that committed before.

use std::time::Instant;

use anyhow::{Context, Result};

use super::coordinators::loaded;
use super::partitioned::{ALL, OFFSETS, all_in_sync, served};
use crate::cluster::Case;
use crate::cluster::plan::{AGREE, Cluster};
use crate::cluster::stage::{Stage, shown};
use crate::cluster::topics::{Journal, end_of, stored};
use crate::raw::ask::code;
use crate::raw::ask::groups::commit_error;
use crate::raw::batch::Batch;
use crate::raw::conn::{Connection, key};
use crate::raw::expect::{equal, holds, one_of};
use crate::raw::stage::time;
use crate::raw::wire::W;
use crate::wait;

pub const CASES: &[Case] = &[
    Case {
        name: "greatest-time-after-failover",
        proves: "the first record of the greatest timestamp in batches of every codec is found by the leader, by the next one, and by a third that \
                 began without time indexes; under LogAppendTime, too (B047)",
        seconds: 90,
        run: greatest,
    },
    Case {
        name: "epochs-after-failovers",
        proves: "after leaders of epochs 0, 1 and 3 wrote and that of 2 did not, OffsetForLeaderEpoch answers -1, 0 to 4 as Kafka does at the leader, and \
                 followers send away; a Java consumer that committed in an older epoch goes on where it was, with auto.offset.reset=none (B010)",
        seconds: 90,
        run: epochs,
    },
    Case {
        name: "grown-killed-shrunk",
        proves: "a topic that grew from one replica to three needs two copies for acks=all from then on, and one again when it has shrunk; in between \
                 its leader is killed and started again at once, then the next one as soon as it leads: somebody leads each time, with all that was \
                 acknowledged",
        seconds: 60,
        run: grown_killed_shrunk,
    },
];

/// The next leader of all of `topics`, which 1, 2 and 3 lead in turn: `gone` is killed, and started again when another leads.
fn fail_over(cluster: &mut Cluster, gone: i32, topics: &[String]) -> Result<i32> {
    let witness = gone % 3 + 1;
    cluster.broker(gone)?.kill();
    let mut next = 0;
    for topic in topics {
        (next, _) = cluster.wait_leader(witness, topic, 0, Some(gone))?;
    }
    Ok(next)
}

fn greatest(stage: &Stage) -> Result<String> {
    let mut cluster = stage.plan().start()?;
    let codecs: Vec<String> = (0..=4).map(|codec| format!("codec-{codec}")).collect();
    let appended = "appended".to_owned();
    let topics: Vec<String> = codecs.iter().chain([&appended]).cloned().collect();
    for topic in &topics {
        cluster.create_placed(1, topic, &[vec![1, 2, 3]])?;
    }
    let mut to = served(&mut cluster, 1)?;
    equal("by append", to.alter(&appended, "message.timestamp.type", 0, Some("LogAppendTime"))?, 0)?;
    for (codec, topic) in (0..).zip(&codecs) {
        let stamped = [(time() + 10, "a"), (time() + 30, "b"), (time() + 20, "c")];
        to.append(topic, &Batch::stamped(&stamped).codec(codec))?;
        to.append(topic, &Batch::stamped(&[(time() + 30, "later"), (time() + 5, "d")]).codec(codec))?;
    }
    let first = to.produce(&appended, &Batch::stamped(&[(time(), "a"), (time(), "b")]))?;
    holds("the broker gives the time", first.append_time >= time())?;
    let check = |cluster: &mut Cluster, at: i32, when: &str| -> Result<()> {
        for topic in &topics {
            let (at, _) = cluster.wait_leader(at, topic, 0, None)?;
            let mut to = served(cluster, at)?;
            // The newest record is told when enough copies have it again.
            let found = wait::until("the newest record", AGREE, || {
                let found = to.offset_at(topic, 0, -3)?;
                Ok((found.error == code::NONE).then_some(found))
            })?;
            let expected = if *topic == appended { (0, first.append_time) } else { (1, time() + 30) };
            equal(&format!("{topic} {when}"), (found.offset, found.timestamp), expected)?;
        }
        Ok(())
    };
    check(&mut cluster, 1, "at its first leader")?;
    let next = fail_over(&mut cluster, 1, &topics)?;
    check(&mut cluster, next, "at the next leader")?;
    let removed = remove_time_indexes(&cluster, 1)?;
    cluster.broker(1)?.start()?;
    cluster.wait_alive(&ALL)?;
    let names: Vec<&str> = topics.iter().map(String::as_str).collect();
    all_in_sync(&mut cluster, &names)?;
    for topic in &topics {
        wait::until("it to be elected", AGREE, || {
            let mut to = cluster.broker(next)?.connect()?;
            to.elect_preferred(topic, 0)?;
            Ok((to.describe_partitions(topic)?[0].leader == 1).then_some(()))
        })?;
    }
    check(&mut cluster, 1, "without its time indexes")?;
    cluster.all_run()?;
    let compared = stage.verify_copies(&mut cluster, 6)?;
    Ok(format!("{removed} time indexes removed; {compared}"))
}

/// Removes the time indexes of a broker that does not run; how many there were. A short log may have none, which is the same.
fn remove_time_indexes(cluster: &Cluster, id: i32) -> Result<usize> {
    let broker = cluster.brokers().find(|broker| broker.id() == id).context("no such broker")?;
    let mut removed = 0;
    for folder in std::fs::read_dir(broker.data_dir())? {
        let folder = folder?.path();
        for file in std::fs::read_dir(&folder).into_iter().flatten().flatten() {
            if file.path().extension().is_some_and(|ending| ending == "timeindex") {
                std::fs::remove_file(file.path())?;
                removed += 1;
            }
        }
    }
    Ok(removed)
}

/// OffsetCommit version 7 with the epoch of the last record that was read: the error code.
fn commit_at(to: &mut Connection, group: &str, topic: &str, offset: i64, epoch: i32) -> Result<i16> {
    let body = W::new().str(group).i32(-1).str("").nstr(None).array(1).str(topic);
    let body = body.array(1).i32(0).i64(offset).i32(epoch).nstr(None);
    commit_error(to.call(key::OFFSET_COMMIT, 7, &body)?)
}

fn epochs(stage: &Stage) -> Result<String> {
    let mut cluster = stage.plan().replicated().start()?;
    cluster.create_placed(1, "t", &[vec![1, 2, 3]])?;
    let mut journal = Journal::new("t");
    let (mut leader, first) = cluster.wait_leader(1, "t", 0, None)?;
    // How many records each epoch gets, counted from the first.
    let written = [3, 2, 0, 4];
    let mut starts = vec![(first, 0_i64)];
    for (at, records) in written.into_iter().enumerate() {
        if at > 0 {
            let gone = leader;
            let witness = gone % 3 + 1;
            // In order, so that each change is one epoch.
            cluster.broker(gone)?.stop()?;
            let (now, epoch) = cluster.wait_leader(witness, "t", 0, Some(gone))?;
            leader = now;
            starts.push((epoch, end_of(&mut served(&mut cluster, leader)?, "t")?));
            cluster.broker(gone)?.start()?;
            cluster.wait_alive(&ALL)?;
            all_in_sync(&mut cluster, &["t"])?;
            // Nobody gave it back meanwhile.
            equal("who leads", cluster.wait_leader(1, "t", 0, None)?, (leader, epoch))?;
        }
        for _ in 0..records {
            journal.append(&mut served(&mut cluster, leader)?, 0)?;
        }
    }
    let end = end_of(&mut served(&mut cluster, leader)?, "t")?;
    let [(e0, _), (e1, first_end), (e2, second_end), (e3, _)] = [0, 1, 2, 3].map(|at: usize| starts[at]);
    let mut to = served(&mut cluster, leader)?;
    let rows = [
        (-1, (-1, -1)),
        (e0, (e0, first_end)),
        (e1, (e1, second_end)),
        // Nothing was written in it: the newest before it, up to the next that wrote.
        (e2, (e1, second_end)),
        (e3, (e3, end)),
        (e3 + 1, (-1, -1)),
    ];
    for (asked, (epoch, offset)) in rows {
        let told = to.end_of_epoch("t", -1, asked)?;
        equal(&format!("epoch {asked} of {starts:?}"), told, (code::NONE, epoch, offset))?;
        for other in cluster.others(leader) {
            let told = served(&mut cluster, other)?.end_of_epoch("t", -1, asked)?.0;
            equal("at a follower", told, code::NOT_LEADER_OR_FOLLOWER)?;
        }
    }
    equal("a stale epoch", to.end_of_epoch("t", e2, e3)?.0, code::FENCED_LEADER_EPOCH)?;
    equal("one to come", to.end_of_epoch("t", e3 + 1, e3)?.0, code::UNKNOWN_LEADER_EPOCH)?;

    // A consumer that read four records, the last of them in the second epoch.
    let group = "g";
    let (_, coordinates) = wait::until("a coordinator", AGREE, || {
        let named = to.coordinator_of(group)?;
        Ok((named.0 == code::NONE).then_some(named))
    })?;
    let mut at = served(&mut cluster, coordinates)?;
    at.coordinator(group)?;
    // Its partition is new, and may still be short of copies.
    equal("committing", loaded(|| commit_at(&mut at, group, "t", 4, e1))?, code::NONE)?;
    let bootstrap = cluster.bootstrap();
    let rest = (end - 4).to_string();
    let mut words = vec!["--bootstrap-server", &bootstrap, "--topic", "t", "--group", group];
    words.extend(["--max-messages", &rest, "--timeout-ms", "30000"]);
    words.extend([
        "--command-property",
        "auto.offset.reset=none",
        "--formatter-property",
        "print.offset=true",
    ]);
    let (status, output) = stage.tool("org.apache.kafka.tools.consumer.ConsoleConsumer", &words)?;
    holds(&output, status.success())?;
    let read: Vec<&str> = output.lines().filter(|line| line.starts_with("Offset:")).collect();
    let all = stored(&mut to, "t", 0)?;
    let expected: Vec<String> = all
        .iter()
        .filter(|(offset, ..)| *offset >= 4)
        .map(|(offset, _, value)| format!("Offset:{offset}\t{value}"))
        .collect();
    equal("what the consumer read", read, expected.iter().map(String::as_str).collect())?;
    all_in_sync(&mut cluster, &[OFFSETS])?;
    journal.check(&mut cluster)?;
    cluster.all_run()?;
    let compared = stage.verify_copies(&mut cluster, 4)?;
    Ok(format!("epochs {starts:?}; {compared}"))
}

/// With both others gone a leader of three replicas acknowledges nothing with acks=all.
fn alone_is_not_enough(cluster: &mut Cluster, journal: &mut Journal) -> Result<()> {
    let (at, _) = cluster.wait_leader(1, "t", 0, None)?;
    for gone in cluster.others(at) {
        cluster.broker(gone)?.kill();
    }
    cluster.wait_alive_as_seen_by(&[at], &[at])?;
    let mut to = served(cluster, at)?;
    let refused = journal.try_append(&mut to, 0)?;
    one_of("acks=all by one of three", refused, &[code::NOT_ENOUGH_REPLICAS, code::REQUEST_TIMED_OUT])?;
    for back in cluster.others(at) {
        cluster.broker(back)?.start()?;
    }
    cluster.wait_alive(&ALL)?;
    all_in_sync(cluster, &["t"])
}

fn grown_killed_shrunk(stage: &Stage) -> Result<String> {
    let mut cluster = stage.plan().start()?;
    cluster.create(1, "t", 1)?;
    cluster.broker(1)?.connect()?.reassign("t", 1, Some(&ALL))?;
    all_in_sync(&mut cluster, &["t"])?;
    let mut journal = Journal::new("t");
    let mut took = Vec::new();
    alone_is_not_enough(&mut cluster, &mut journal)?;
    for _ in 0..stage.rounds(4, 60) {
        let (at, epoch) = cluster.wait_leader(1, "t", 0, None)?;
        let witness = at % 3 + 1;
        journal.append_to_leader(&mut cluster, witness, 0)?;
        let began = Instant::now();
        cluster.broker(at)?.kill();
        let (_, later) = cluster.wait_leader(witness, "t", 0, Some(at))?;
        took.push(began.elapsed());
        holds(&format!("the generation rises: {epoch}, {later}"), later > epoch)?;
        cluster.broker(at)?.start()?;
        cluster.wait_alive(&ALL)?;
    }
    all_in_sync(&mut cluster, &["t"])?;
    alone_is_not_enough(&mut cluster, &mut journal)?;
    journal.check(&mut cluster)?;
    let (leader, _) = cluster.wait_leader(1, "t", 0, None)?;
    cluster.create_placed(leader, "all", &[ALL.to_vec()])?;
    Journal::new("all").append_to_leader(&mut cluster, leader, 0)?;
    cluster.broker(leader)?.connect()?.reassign("t", 1, Some(&[leader]))?;
    wait::until("one replica to be left", AGREE, || {
        Ok((cluster.described(leader, "t")?[0].replicas == [leader]).then_some(()))
    })?;
    for gone in cluster.others(leader) {
        cluster.broker(gone)?.kill();
    }
    let mut to = served(&mut cluster, leader)?;
    wait::until("an acknowledgement by the only replica", AGREE, || {
        Ok((journal.try_append(&mut to, 0)? == code::NONE).then_some(()))
    })?;
    journal.check_as_seen_by(&mut cluster, leader)?;
    for back in cluster.others(leader) {
        cluster.broker(back)?.start()?;
    }
    cluster.wait_alive(&ALL)?;
    all_in_sync(&mut cluster, &["all"])?;
    cluster.all_run()?;
    let compared = stage.verify_copies(&mut cluster, 1)?;
    Ok(format!("another leads {}; {compared}", shown(&took)))
}
