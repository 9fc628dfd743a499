//! Topics with three replicas while leaders stand still, and while etcd is away.

use std::time::{Duration, Instant};

use anyhow::{Context, Result, ensure};

use super::cuts::sessions_kept;
use super::store::without_etcd;
use crate::cluster::Case;
use crate::cluster::load::Loads;
use crate::cluster::plan::Cluster;
use crate::cluster::stage::{Loader, Stage, shown};
use crate::cluster::topics::{Journal, stored};
use crate::raw::ask::code;
use crate::raw::ask::records::{Fetch, Want};
use crate::raw::conn::{Connection, key};
use crate::raw::expect::{equal, holds, one_of};

pub const CASES: &[Case] = &[
    Case {
        name: "leader-paused",
        proves: "a leader stands still (SIGSTOP) for longer than its lease, with records that only it has: another leads at a higher generation and \
                 goes on; of what the first one answers when it wakes, nothing that it calls acknowledged is missing; the same process \
                 follows, and its tail is gone",
        seconds: 120,
        run: leader_paused,
    },
    Case {
        name: "etcd-away-under-load",
        proves: "etcd stands still, then is killed and started again, for longer than all leases, under load on three replicas: writes stop, reads go \
                 on, nobody is fenced and no generation changes; the load goes on by itself, nothing is lost (B084)",
        seconds: 150,
        run: etcd_away,
    },
];

pub const ALL: [i32; 3] = [1, 2, 3];
pub const OFFSETS: &str = "__consumer_offsets";
/// Longer than a leader takes that waits for nobody's answer.
const PATIENCE: Duration = Duration::from_secs(25);

/// Three partitions, each led by another broker at first.
pub fn each_leads() -> Vec<Vec<i32>> {
    [[1, 2, 3], [2, 3, 1], [3, 1, 2]].map(|replicas| replicas.to_vec()).to_vec()
}

/// Waits until all three brokers are in sync for all of these topics.
pub fn all_in_sync(cluster: &mut Cluster, topics: &[&str]) -> Result<()> {
    topics.iter().try_for_each(|topic| cluster.wait_in_sync(1, topic, &ALL))
}

/// Lets a broker that stands still go on; how long it takes until it is in sync for `t` again.
pub fn resumed(cluster: &mut Cluster, broker: i32) -> Result<Duration> {
    let began = Instant::now();
    cluster.broker(broker)?.resume()?;
    cluster.wait_alive(&ALL)?;
    all_in_sync(cluster, &["t"])?;
    Ok(began.elapsed())
}

/// `t` under load from librdkafka, `j` from Java.
pub const BOTH: [(Loader, &str); 2] = [(Loader::Rdkafka, "t"), (Loader::Java, "j")];

/// A cluster with `t` and `j` under load and `p` for what the case writes itself, all in sync.
pub fn under_load(stage: &Stage, mut cluster: Cluster) -> Result<(Cluster, Loads)> {
    for topic in ["t", "j", "p"] {
        cluster.create_placed(1, topic, &each_leads())?;
    }
    let load = stage.loads_existing(&cluster, &BOTH, 3)?;
    all_in_sync(&mut cluster, &[OFFSETS])?;
    Ok((cluster, load))
}

/// Ends the load, which compares everything, and holds all copies against each other.
pub fn finish(stage: &Stage, mut cluster: Cluster, load: Loads, journal: &Journal) -> Result<String> {
    let sent = load.finish()?;
    journal.check(&mut cluster)?;
    cluster.all_run()?;
    let compared = stage.verify_copies(&mut cluster, 12)?;
    Ok(format!("{sent:?} and {} records; {compared}", journal.len()))
}

/// A record that was sent and whose answer is still to come.
pub struct Sent {
    to: Connection,
    correlation: i32,
    value: String,
}

/// Sends a record on a connection of its own that has been served before.
pub fn send(to: Connection, journal: &mut Journal, topic: &str, acks: i16, partition: i32) -> Result<Sent> {
    let (mut to, value) = (to, journal.value());
    let body = Connection::produce_body(acks, topic, partition, &Journal::encoded(&value)?);
    let correlation = to.send(key::PRODUCE, 8, &body)?;
    Ok(Sent { to, correlation, value })
}

/// A connection that has been served before.
pub fn served(cluster: &mut Cluster, at: i32) -> Result<Connection> {
    let mut to = cluster.broker(at)?.connect_with(PATIENCE)?;
    to.metadata()?;
    Ok(to)
}

/// The answer: what is acknowledged is noted and must be there; anything else says that it is not known.
pub fn answered(mut sent: Sent, journal: &mut Journal, partition: i32) -> Result<i16> {
    let answer = sent.to.receive_for(sent.correlation, key::PRODUCE, 8)?;
    let produced = Connection::read_produced(answer)?;
    if produced.error == code::NONE {
        journal.note(partition, produced.base_offset, sent.value)?;
    }
    let expected = [code::NONE, code::NOT_LEADER_OR_FOLLOWER, code::REQUEST_TIMED_OUT];
    one_of("what it says", produced.error, &expected)?;
    Ok(produced.error)
}

/// Appends records with acks=1 that must be taken, and answers their values and where the first one is.
pub fn exposed(
    cluster: &mut Cluster,
    journal: &mut Journal,
    at: i32,
    (topic, partition): (&str, i32),
) -> Result<(i64, Vec<String>)> {
    let mut to = served(cluster, at)?;
    let mut first = None;
    let mut values = Vec::new();
    for _ in 0..5 {
        let value = journal.value();
        let body = Connection::produce_body(1, topic, partition, &Journal::encoded(&value)?);
        let produced = Connection::read_produced(to.call(key::PRODUCE, 8, &body)?)?;
        equal("acks=1 at a leader", produced.error, code::NONE)?;
        first.get_or_insert(produced.base_offset);
        values.push(value);
    }
    Ok((first.context("nothing was written")?, values))
}

fn leader_paused(stage: &Stage) -> Result<String> {
    let (mut cluster, mut load) = under_load(stage, stage.plan().replicated().start()?)?;
    let mut journal = Journal::new("p");
    let (mut moved, mut returned, mut late) = (Vec::new(), Vec::new(), Vec::new());
    for round in 0..stage.rounds(2, 12) {
        let (index, number) = (round % 3, i32::try_from(round % 3)?);
        let (at, epoch) = cluster.wait_leader(1, "p", index, None)?;
        let witness = at % 3 + 1;
        journal.append_to_leader(&mut cluster, witness, number)?;
        let pid = cluster.broker(at)?.node.pid();
        let sessions = cluster.broker(at)?.metric("felix_sessions")?;
        let mut waiting = Vec::new();
        for _ in 0..3 {
            waiting.push(served(&mut cluster, at)?);
        }
        // Nothing that it sends arrives at its followers: what it takes now is its alone.
        cluster.cut_from_brokers(at, true, false)?;
        let mut sent = vec![send(waiting.remove(0), &mut journal, "p", -1, number)?];
        let (offset, tail) = exposed(&mut cluster, &mut journal, at, ("p", number))?;
        cluster.broker(at)?.pause()?;
        let began = Instant::now();
        for acks in [1, -1] {
            sent.push(send(waiting.remove(0), &mut journal, "p", acks, number)?);
        }
        let (next, later) = cluster.wait_leader(witness, "p", index, Some(at))?;
        moved.push(began.elapsed());
        holds(&format!("the generation rises: {epoch}, {later}"), later > epoch)?;
        journal.append_to_leader(&mut cluster, witness, number)?;
        cluster.network.heal_all()?;
        load.go_on()?;
        let began = Instant::now();
        cluster.broker(at)?.resume()?;
        for one in sent {
            late.push(answered(one, &mut journal, number)?);
        }
        all_in_sync(&mut cluster, &["p", "t", "j", OFFSETS])?;
        returned.push(began.elapsed());
        equal("the process", cluster.broker(at)?.node.pid(), pid)?;
        holds("it has a new session", cluster.broker(at)?.metric("felix_sessions")? > sessions)?;
        let there = stored(&mut cluster.broker(next)?.connect()?, "p", number)?;
        let left = there.iter().find(|(_, _, value)| tail.contains(value));
        ensure!(left.is_none(), "what only the first leader had from {offset} on is there: {left:?}");
        load.go_on()?;
    }
    let rest = finish(stage, cluster, load, &journal)?;
    Ok(format!(
        "another leads {}; in sync again {}; late answers {late:?}; {rest}",
        shown(&moved),
        shown(&returned)
    ))
}

fn etcd_away(stage: &Stage) -> Result<String> {
    let cluster = stage.plan().etcd(3).etcd_on_disk().replicated().start()?;
    let (mut cluster, mut load) = under_load(stage, cluster)?;
    let mut journal = Journal::new("p");
    let away = if stage.full { Duration::from_secs(30) } else { cluster.lease() * 3 };
    let (mut stopped, mut returned) = (Vec::new(), Vec::new());
    for killed in [false, true] {
        for number in 0..3 {
            journal.append_to_leader(&mut cluster, 1, number)?;
        }
        let told = |cluster: &mut Cluster| ["p", "t", "j"].map(|topic| cluster.partitions(1, topic).ok());
        let before = told(&mut cluster);
        let leaders = before[0].clone().context("p is not there")?;
        load.measure()?;
        let mut alone = Journal::new("p").acks(1);
        let led: Vec<(i32, i32)> = leaders.iter().map(|seen| seen.leader).zip(0..).collect();
        let reads = |to: &mut Connection, _: i32, partition: i32| {
            let want = Want { partition, ..Want::of("p", 0) };
            let fetched = to.fetch(&Fetch::now(vec![want]))?;
            equal("reading what cannot change", fetched.only()?.error, code::NONE)?;
            holds("it has records", !fetched.only()?.batches()?.is_empty())
        };
        stopped.push(without_etcd(&mut cluster, &mut alone, &led, (killed, away), reads)?);
        let began = Instant::now();
        cluster.bring_etcd_back(killed)?;
        load.go_on()?;
        returned.push(began.elapsed());
        sessions_kept(&cluster)?;
        equal("generations and leaders", told(&mut cluster), before)?;
        all_in_sync(&mut cluster, &["p", "t", "j", OFFSETS])?;
    }
    let rest = finish(stage, cluster, load, &journal)?;
    Ok(format!(
        "writes stop everywhere {}; the load goes on {} after etcd's return; {rest}",
        shown(&stopped),
        shown(&returned)
    ))
}
