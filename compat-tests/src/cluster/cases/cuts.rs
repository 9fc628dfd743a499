//! Brokers that are cut off, and brokers that stand still.

use std::time::{Duration, Instant};

use anyhow::{Context, Result, bail};

use crate::cluster::Case;
use crate::cluster::network::Place;
use crate::cluster::plan::{AGREE, Cluster};
use crate::cluster::proxy::Direction;
use crate::cluster::stage::{Stage, shown};
use crate::cluster::topics::{Journal, stored};
use crate::raw::ask::code;
use crate::raw::ask::records::{Fetch, Want};
use crate::raw::ask::topics::PartitionSeen;
use crate::raw::conn::{Connection, key};
use crate::raw::expect::{equal, holds};
use crate::wait;

pub const CASES: &[Case] = &[
    Case {
        name: "cut-from-etcd",
        proves: "a broker that is cut off from etcd (what it sends, what it is sent, both) acknowledges nothing once its lease has ended, which \
                 is before the others call its partitions leaderless; it says itself that it does not lead, goes on serving reads, and leads \
                 again by itself under a new session when the cut is healed (B088)",
        seconds: 90,
        run: cut_from_etcd,
    },
    Case {
        name: "cut-from-one-member",
        proves: "a broker that is cut off from one of three members of etcd, one by one and both ways, keeps its session and goes on \
                 acknowledging",
        seconds: 90,
        run: cut_from_one_member,
    },
    Case {
        name: "cut-from-clients",
        proves: "a broker that clients cannot reach keeps its partitions; a broker that only other brokers cannot reach does, too",
        seconds: 60,
        run: cut_from_clients,
    },
    Case {
        name: "half-open-etcd",
        proves: "connections to etcd that are half-open, deaf in one direction or slow: the broker stops in time, and is back within ten seconds \
                 without help (B084)",
        seconds: 90,
        run: half_open_etcd,
    },
    Case {
        name: "paused-past-its-lease",
        proves: "a broker that stands still for longer than its lease acknowledges nothing at the generation that it lost: what was sent to it \
                 meanwhile is refused, or appended at a higher one; the same process registers anew by itself",
        seconds: 90,
        run: paused,
    },
];

/// Appends to a broker that can renew nothing, until another one tells of its partition what `over` looks for. Once it refuses it
/// refuses, and it does so by then. Answers when the last record was acknowledged and when that was told, both from `began`.
pub fn until_refused(
    cluster: &mut Cluster,
    journal: &mut Journal,
    (at, topic, number): (i32, &str, i32),
    began: Instant,
    over: impl Fn(&PartitionSeen) -> bool,
) -> Result<(Duration, Duration)> {
    let mut to = cluster.broker(at)?.connect()?;
    let other = at % 3 + 1;
    let mut last = Duration::ZERO;
    let mut refused = false;
    let fenced = wait::until("the broker to be fenced", AGREE, || {
        match journal.try_append(&mut to, number)? {
            code::NONE => {
                holds("once it refuses it refuses", !refused)?;
                last = began.elapsed();
            }
            error => {
                equal("what it says", error, code::NOT_LEADER_OR_FOLLOWER)?;
                refused = true;
            }
        }
        let partitions = cluster.partitions(other, topic)?;
        let partition = partitions.get(usize::try_from(number)?).context("no such partition")?;
        Ok(over(partition).then(|| began.elapsed()))
    })?;
    equal("afterwards", journal.try_append(&mut to, number)?, code::NOT_LEADER_OR_FOLLOWER)?;
    Ok((last, fenced))
}

fn cut_from_etcd(stage: &Stage) -> Result<String> {
    let mut cluster = stage.plan().etcd(3).start()?;
    cluster.create(1, "t", 9)?;
    let mut journal = Journal::new("t").acks(1);
    let numbers = cluster.led_by(2, "t")?;
    let (mut last_acks, mut fences, mut returns) = (Vec::new(), Vec::new(), Vec::new());
    for round in 0..stage.rounds(3, 30) {
        let (there, back) = [(true, false), (false, true), (true, true)][round % 3];
        let sessions = cluster.broker(2)?.metric("felix_sessions")?;
        let began = Instant::now();
        cluster.cut_from_etcd(2, there, back)?;
        let (last, fenced) =
            until_refused(&mut cluster, &mut journal, (2, "t", numbers[0]), began, |seen| seen.leader != 2)?;
        last_acks.push(last);
        fences.push(fenced);
        let mut to = cluster.broker(2)?.connect()?;
        let claims = cluster.partitions(2, "t")?.iter().filter(|partition| partition.leader == 2).count();
        equal("partitions that it says it leads", claims, 0)?;
        let want = Want { partition: numbers[0], ..Want::of("t", 0) };
        let fetched = to.fetch(&Fetch::now(vec![want]))?;
        equal("fetching what cannot change", fetched.only()?.error, code::NONE)?;
        holds("it has records", !fetched.only()?.batches()?.is_empty())?;
        let latest = to.offset_at("t", numbers[0], -1)?;
        holds("the end is not told without a lease", latest.error != code::NONE)?;
        let began = Instant::now();
        cluster.network.heal_all()?;
        cluster.wait_serves(2, "t", &numbers)?;
        returns.push(began.elapsed());
        let now = cluster.broker(2)?.metric("felix_sessions")?;
        holds(&format!("{now} sessions of the process after {sessions}"), now > sessions)?;
        journal.append(&mut cluster.broker(2)?.connect()?, numbers[0])?;
        cluster.wait_alive(&[1, 2, 3])?;
    }
    journal.check(&mut cluster)?;
    cluster.all_run()?;
    Ok(format!(
        "{} records; last acknowledged {}; fenced {}; leads again after healing {}",
        journal.len(),
        shown(&last_acks),
        shown(&fences),
        shown(&returns)
    ))
}

/// No process has had more than one session.
pub fn sessions_kept(cluster: &Cluster) -> Result<()> {
    for broker in cluster.brokers() {
        equal(&format!("sessions of broker {}", broker.id()), broker.metric("felix_sessions")?, 1.0)?;
    }
    Ok(())
}

/// In how many stretches of appending at most there is to be one in which nothing is refused.
const STRETCHES: usize = 3;

/// Appends to partitions of all brokers for some time, in which nothing may be refused; the longest wait for one acknowledgement. What
/// happened just before may cost a lease on a busy machine: then the next stretch must be whole.
pub fn appends_go_on(
    cluster: &mut Cluster,
    journal: &mut Journal,
    led: &[(i32, i32)],
    lasting: Duration,
) -> Result<Duration> {
    let mut connections: Vec<(Connection, i32)> = Vec::new();
    for (at, number) in led {
        connections.push((cluster.broker(*at)?.connect()?, *number));
    }
    let mut refused = Vec::new();
    for _ in 0..STRETCHES {
        let (began, mut longest) = (Instant::now(), Duration::ZERO);
        let before = refused.len();
        while began.elapsed() < lasting {
            for (to, number) in &mut connections {
                let sent = Instant::now();
                match journal.try_append(to, *number)? {
                    code::NONE => longest = longest.max(sent.elapsed()),
                    error => refused.push((*number, error)),
                }
            }
        }
        if refused.len() == before {
            return Ok(longest);
        }
    }
    refused.truncate(20);
    bail!("appends do not go on: {refused:?}")
}

/// A partition of each broker, with its broker.
pub fn one_of_each(cluster: &mut Cluster, topic: &str) -> Result<Vec<(i32, i32)>> {
    cluster.ids().into_iter().map(|at| Ok((at, cluster.led_by(at, topic)?[0]))).collect()
}

fn cut_from_one_member(stage: &Stage) -> Result<String> {
    let mut cluster = stage.plan().etcd(3).start()?;
    cluster.create(1, "t", 9)?;
    let mut journal = Journal::new("t");
    let led = one_of_each(&mut cluster, "t")?;
    let lease = cluster.lease();
    let mut longest = Duration::ZERO;
    for member in 0..3 {
        for (there, back) in [(true, false), (false, true), (true, true)] {
            for broker in [1, 2, 3] {
                let (broker, etcd) = (Place::Broker(broker), Place::Etcd(member));
                if there {
                    cluster.network.cut(broker, etcd)?;
                }
                if back {
                    cluster.network.cut(etcd, broker)?;
                }
            }
            longest = longest.max(appends_go_on(&mut cluster, &mut journal, &led, lease * 2)?);
            cluster.network.heal_all()?;
        }
    }
    sessions_kept(&cluster)?;
    journal.check(&mut cluster)?;
    cluster.all_run()?;
    Ok(format!("{} records, the longest wait for one {} ms", journal.len(), longest.as_millis()))
}

fn cut_from_clients(stage: &Stage) -> Result<String> {
    let mut cluster = stage.plan().start()?;
    cluster.create(1, "t", 9)?;
    let mut journal = Journal::new("t");
    let led = one_of_each(&mut cluster, "t")?;
    let before = cluster.partitions(1, "t")?;
    for other in [1, 3] {
        cluster.network.cut_both(Place::Broker(2), Place::Broker(other))?;
    }
    let lease = cluster.lease();
    appends_go_on(&mut cluster, &mut journal, &led, lease * 2)?;
    cluster.network.cut_both(Place::Broker(2), Place::Clients)?;
    let others: Vec<(i32, i32)> = led.iter().copied().filter(|(at, _)| *at != 2).collect();
    appends_go_on(&mut cluster, &mut journal, &others, lease * 3)?;
    wait::until("the partitions to be as before", AGREE, || {
        Ok((cluster.partitions(1, "t")? == before).then_some(()))
    })?;
    cluster.network.heal_all()?;
    appends_go_on(&mut cluster, &mut journal, &led, lease)?;
    sessions_kept(&cluster)?;
    journal.check(&mut cluster)?;
    cluster.all_run()?;
    Ok(format!("{} records", journal.len()))
}

fn half_open_etcd(stage: &Stage) -> Result<String> {
    let mut cluster = stage.plan().ways_to_etcd().start()?;
    cluster.create(1, "t", 9)?;
    let mut journal = Journal::new("t").acks(1);
    let led = one_of_each(&mut cluster, "t")?;
    let number = led[1].1;
    let lease = cluster.lease();
    // Slow, but not so slow that beats are late (each place of etcd has L/6 to answer): nothing happens.
    for direction in [Direction::There, Direction::Back] {
        cluster.way_to_etcd(2, 0)?.delay(direction, lease / 50);
    }
    appends_go_on(&mut cluster, &mut journal, &led, lease * 2)?;
    sessions_kept(&cluster)?;
    for direction in [Direction::There, Direction::Back] {
        cluster.way_to_etcd(2, 0)?.delay(direction, Duration::ZERO);
    }
    let mut returns = Vec::new();
    for direction in [Direction::There, Direction::Back] {
        let began = Instant::now();
        cluster.way_to_etcd(2, 0)?.lose(direction, true);
        until_refused(&mut cluster, &mut journal, (2, "t", number), began, |seen| seen.leader != 2)?;
        cluster.way_to_etcd(2, 0)?.lose(direction, false);
        let began = Instant::now();
        cluster.wait_serves(2, "t", &[number])?;
        returns.push(began.elapsed());
        // Before its tenure is written down as opened it takes nothing, and could not say so either.
        journal.append(&mut cluster.broker(2)?.connect()?, number)?;
        cluster.wait_alive(&[1, 2, 3])?;
    }
    // The other side is gone and nobody says so; whoever connects anew reaches etcd at once.
    for _ in 0..stage.rounds(2, 10) {
        let began = Instant::now();
        cluster.way_to_etcd(2, 0)?.half_open();
        cluster.wait_serves(2, "t", &[number])?;
        wait::until("an acknowledgement", AGREE, || {
            let error = journal.try_append(&mut cluster.broker(2)?.connect()?, number)?;
            Ok((began.elapsed() > lease && error == code::NONE).then_some(()))
        })?;
        returns.push(began.elapsed());
    }
    let bound = Duration::from_secs(10);
    holds(&format!("back in time: {returns:?}"), returns.iter().all(|took| *took < bound))?;
    journal.check(&mut cluster)?;
    cluster.all_run()?;
    Ok(format!("back {}", shown(&returns)))
}

fn paused(stage: &Stage) -> Result<String> {
    let mut cluster = stage.plan().start()?;
    cluster.create(1, "t", 9)?;
    let mut journal = Journal::new("t");
    let numbers = cluster.led_by(2, "t")?;
    let mut returns = Vec::new();
    for _ in 0..stage.rounds(3, 30) {
        let before = cluster.partitions(2, "t")?;
        let pid = cluster.broker(2)?.node.pid();
        let sessions = cluster.broker(2)?.metric("felix_sessions")?;
        for number in &numbers {
            journal.append(&mut cluster.broker(2)?.connect()?, *number)?;
        }
        let mut waiting = Vec::new();
        for number in &numbers {
            waiting.push((cluster.broker(2)?.connect()?, *number));
        }
        // So that each connection has been served before.
        for (to, _) in &mut waiting {
            to.metadata()?;
        }
        cluster.broker(2)?.pause()?;
        let mut sent = Vec::new();
        for (to, number) in &mut waiting {
            let value = journal.value();
            let body = Connection::produce_body(1, "t", *number, &Journal::encoded(&value)?);
            sent.push((to.send(key::PRODUCE, 8, &body)?, value));
        }
        cluster.wait_leaderless(2, "t", &numbers)?;
        let began = Instant::now();
        cluster.broker(2)?.resume()?;
        let mut taken = Vec::new();
        for ((to, number), (correlation, value)) in waiting.iter_mut().zip(sent) {
            let produced = Connection::read_produced(to.receive_for(correlation, key::PRODUCE, 8)?)?;
            match produced.error {
                code::NONE => {
                    taken.push((*number, produced.base_offset));
                    journal.note(*number, produced.base_offset, value)?;
                }
                error => equal("what was sent meanwhile", error, code::NOT_LEADER_OR_FOLLOWER)?,
            }
        }
        cluster.wait_serves(2, "t", &numbers)?;
        returns.push(began.elapsed());
        equal("the process", cluster.broker(2)?.node.pid(), pid)?;
        let now_sessions = cluster.broker(2)?.metric("felix_sessions")?;
        holds(&format!("{now_sessions} sessions after {sessions}"), now_sessions > sessions)?;
        for (number, offset) in taken {
            let stored = stored(&mut cluster.broker(2)?.connect()?, "t", number)?;
            let there = stored.iter().find(|(found, ..)| *found == offset).context("it is not there")?;
            let lost = before[usize::try_from(number)?].epoch;
            holds("what was taken afterwards is of a higher generation", there.1 > lost)?;
        }
        cluster.wait_alive(&[1, 2, 3])?;
    }
    journal.check(&mut cluster)?;
    cluster.all_run()?;
    Ok(format!("leads again {}", shown(&returns)))
}
