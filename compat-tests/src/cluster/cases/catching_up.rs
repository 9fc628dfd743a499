//! A broker that comes back far behind, while others write on: how fast it is filled, what that costs, and what the writers feel of it.

use std::net::SocketAddrV4;
use std::time::{Duration, Instant};

use anyhow::{Context, Result, bail};

use crate::cluster::Case;
use crate::cluster::plan::{AGREE, Cluster};
use crate::cluster::stage::Stage;
use crate::cluster::topics::PASSING;
use crate::raw::ask::code;
use crate::raw::batch::Batch;
use crate::raw::conn::{Connection, key};
use crate::raw::expect::{equal, holds, one_of};
use crate::raw::stage::time;
use crate::wait;

mod pulse;

use pulse::{Pulse, Waits};

pub const CASES: &[Case] = &[
    Case {
        name: "catching-up",
        proves: "a broker that comes back far behind, and one whose disk is empty, are filled from closed segments while producers with acks=all go on \
                 at a fixed rate, on the partition that is filled and on another; they do not stand still for it, and all copies end equal",
        seconds: 240,
        run: catching_up,
    },
    Case {
        name: "replication-cost",
        proves: "what a record costs in three copies, acks=all, beside what it costs in one: CPU time of all brokers together",
        seconds: 120,
        run: replication_cost,
    },
];

const ALL: [i32; 3] = [1, 2, 3];
const MIB: usize = 1 << 20;
/// Partitions of the topic that is wide; the other one has one.
const WIDE: i32 = 8;
/// Records of a batch; with the next, 64 KiB.
const BATCH_RECORDS: usize = 64;
const VALUE_BYTES: usize = 1_010;
/// Requests under way of each connection that fills.
const WINDOW: usize = 4;
/// A producer that waits longer than that stands still, and than ten times what it waits with one broker away.
const STANDS_STILL: Duration = Duration::from_secs(5);
/// How long the producers are watched with nothing else going on.
const QUIET: Duration = Duration::from_secs(4);
/// Between two looks at a metrics page: looking costs the broker something.
const LOOK: Duration = Duration::from_millis(100);

fn catching_up(stage: &Stage) -> Result<String> {
    let (mib, segment) = if stage.full { (4_096, 256 * MIB) } else { (256, 16 * MIB) };
    let mut cluster = stage.plan().set("log.segment.bytes", &segment.to_string()).start()?;
    for (topic, partitions) in [("live", 1), ("deep", 1), ("wide", WIDE)] {
        cluster.create_placed(1, topic, &vec![vec![1, 2, 3]; usize::try_from(partitions)?])?;
    }
    let told = cluster.brokers().map(crate::cluster::broker::Broker::told).collect::<Vec<_>>();
    let pulses = [Pulse::start(told.clone(), "live"), Pulse::start(told, "deep")];
    let (mut phase, mut phases, mut told) = (0, vec!["all there"], Vec::new());
    let mut quiet = Watch::begin(&cluster)?;
    pause(QUIET)?;
    let usual = quiet.end(&cluster)?;
    let mut enter = |name| {
        phase += 1;
        phases.push(name);
        for pulse in &pulses {
            pulse.enter(phase);
        }
    };
    for (away, filled) in
        [("filling for one that is away", "away"), ("filling for one that is wiped", "wiped")]
    {
        enter(away);
        cluster.broker(3)?.stop()?;
        cluster.wait_in_sync(1, "live", &[1, 2])?;
        let bytes = fill(&mut cluster, mib)?;
        if filled == "wiped" {
            cluster.broker(3)?.wipe()?;
        }
        enter("one away");
        pause(QUIET)?;
        enter(filled);
        told.push(format!("{filled}: {}", catch_up(&mut cluster, bytes, usual)?));
    }
    let waits: Vec<Vec<Waits>> =
        pulses.into_iter().map(|pulse| pulse.stop(phases.len())).collect::<Result<_>>()?;
    let mut felt = Vec::new();
    for (at, phase) in phases.iter().enumerate() {
        for (topic, waits) in ["live", "deep"].iter().zip(&waits) {
            // Filling is more than the disk can take, and no part of what is judged.
            let before = waits[at.saturating_sub(1)].longest;
            let waits = waits[at];
            let is_judged = ["away", "wiped"].contains(phase);
            let most = if is_judged { STANDS_STILL.max(before * 10) } else { Duration::MAX };
            holds(&format!("{topic} stood still ({phase}): {waits}"), waits.longest < most)?;
            felt.push(format!("{topic} ({phase}) {waits}"));
        }
    }
    cluster.all_run()?;
    let compared = stage.verify_copies(&mut cluster, 10)?;
    Ok(format!("{}; p50/p99/longest: {}; {compared}", told.join("; "), felt.join(", ")))
}

/// Starts broker 3, which lacks so many bytes, and waits until it has them and is in sync again.
fn catch_up(cluster: &mut Cluster, bytes: usize, usual: Spent) -> Result<String> {
    let bound = Duration::from_secs(60) + Duration::from_millis(u64::try_from(bytes / MIB)? * 200);
    let shipped = |cluster: &Cluster| {
        cluster.sum(&[1], "felix_peer_shipped_bytes_total").context("what broker 1 has shipped")
    };
    let wanted = shipped(cluster)? + bytes as f64;
    cluster.broker(3)?.spawn()?;
    let mut watch = Watch::begin(cluster)?;
    wait::until(&format!("{} MiB to be shipped", bytes / MIB), bound, || {
        pause(LOOK)?;
        Ok((shipped(cluster)? >= wanted).then_some(()))
    })?;
    let spent = watch.end(cluster)?;
    let by_seals = spent.read[1] / bytes as f64;
    holds(&format!("closed segments are read by their seals: {by_seals:.2} of it"), by_seals > 0.5)?;
    let began = Instant::now();
    for topic in ["live", "deep", "wide"] {
        cluster.wait_in_sync(1, topic, &ALL)?;
    }
    let (seconds, gigabytes) = (spent.time.as_secs_f64(), bytes as f64 / 1e9);
    let of = |at: usize| (spent.cpu[at] - usual.cpu[at] / usual.time.as_secs_f64() * seconds) / gigabytes;
    Ok(format!(
        "{} MiB in {seconds:.1} s, {:.0} MiB/s, in sync {:.1} s later; CPU-s/GB beyond the usual: leader {:.2}, follower {:.2}; read {:.2} times \
         by seals, {:.2} batch by batch",
        bytes / MIB,
        bytes as f64 / MIB as f64 / seconds,
        began.elapsed().as_secs_f64(),
        of(0),
        of(2),
        spent.read[1] / bytes as f64,
        spent.read[0] / bytes as f64
    ))
}

fn replication_cost(stage: &Stage) -> Result<String> {
    let mib = if stage.full { 1_024 } else { 128 };
    let mut cluster = stage.plan().start()?;
    let mut told = Vec::new();
    let mut topics = 0;
    for (class, flush) in [("flushed", None), ("page cache", Some("9223372036854775807"))] {
        let mut costs = [Vec::new(), Vec::new()];
        // The first round only warms up.
        for round in 0..=stage.rounds(2, 5) {
            for (copies, costs) in [3, 1].into_iter().zip(&mut costs) {
                topics += 1;
                let cost = cost_of(&mut cluster, &format!("t{topics}"), copies, flush, mib)?;
                if round > 0 {
                    costs.push(cost);
                }
            }
        }
        let [of_three, of_one] = costs.map(|mut costs| {
            costs.sort_by(f64::total_cmp);
            costs
        });
        let ratio = of_three[of_three.len() / 2] / of_one[of_one.len() / 2];
        told.push(format!(
            "{class}: CPU-s/GB of three copies {of_three:.2?}, of one {of_one:.2?}, ratio of the medians {ratio:.1}"
        ));
        holds(&format!("three copies cost {ratio:.1} times as much as one"), ratio < 35.0)?;
    }
    cluster.all_run()?;
    let compared = stage.verify_copies(&mut cluster, 2)?;
    Ok(format!("{}; {compared}", told.join("; ")))
}

/// CPU time of all brokers for a GB that is written to a new topic with so many copies of four partitions.
fn cost_of(cluster: &mut Cluster, topic: &str, copies: i32, flush: Option<&str>, mib: usize) -> Result<f64> {
    let placed = vec![(1..=copies).collect::<Vec<i32>>(); 4];
    let (error, message) = cluster.broker(1)?.connect()?.create_on(topic, -1, -1, &placed)?;
    holds(&format!("creating {topic}: {error} {message:?}"), error == code::NONE)?;
    cluster.wait_led(1, topic)?;
    cluster.wait_in_sync(1, topic, &placed[0])?;
    if let Some(flush) = flush {
        let altered = cluster.broker(1)?.connect()?.alter(topic, "flush.messages", 0, Some(flush))?;
        equal("flush.messages", altered, code::NONE)?;
    }
    let mut watch = Watch::begin(cluster)?;
    let partitions: Vec<(String, i32)> = (0..4).map(|at| (topic.to_owned(), at)).collect();
    let bytes = fill_all(cluster, &partitions, mib)?;
    let spent = watch.end(cluster)?;
    Ok(spent.cpu.iter().sum::<f64>() / (bytes as f64 / 1e9))
}

/// Appends so many MiB, half of them to `deep`, half to all partitions of `wide`, at the same time; how many bytes of records.
fn fill(cluster: &mut Cluster, mib: usize) -> Result<usize> {
    let wide: Vec<(String, i32)> = (0..WIDE).map(|partition| ("wide".to_owned(), partition)).collect();
    let bytes = fill_all(cluster, &[("deep".to_owned(), 0)], mib / 2)?;
    Ok(bytes + fill_all(cluster, &wide, mib / 2)?)
}

/// Appends so many MiB to these partitions of broker 1, in four threads, with acks=all.
fn fill_all(cluster: &mut Cluster, partitions: &[(String, i32)], mib: usize) -> Result<usize> {
    let to = cluster.broker(1)?.told();
    let each = mib * MIB / partitions.len();
    let mut threads = Vec::new();
    for part in partitions.chunks(partitions.len().div_ceil(4)) {
        let part = part.to_vec();
        threads.push(std::thread::spawn(move || -> Result<usize> {
            let mut bytes = 0;
            for (topic, partition) in &part {
                bytes += fill_one(to, topic, *partition, each)?;
            }
            Ok(bytes)
        }));
    }
    let mut bytes = 0;
    for thread in threads {
        match thread.join() {
            Ok(filled) => bytes += filled?,
            Err(_) => bail!("filling panicked"),
        }
    }
    Ok(bytes)
}

fn fill_one(to: SocketAddrV4, topic: &str, partition: i32, bytes: usize) -> Result<usize> {
    let value = "x".repeat(VALUE_BYTES);
    let batch = Batch::of(&[value.as_str(); BATCH_RECORDS], time()).encode()?;
    let body = Connection::produce_body(-1, topic, partition, &batch);
    let mut to = Connection::open(to, Duration::from_secs(60))?;
    let count = bytes.div_ceil(batch.len());
    let mut under_way = std::collections::VecDeque::new();
    let (mut taken, mut refused_since) = (0, None);
    while taken < count {
        while under_way.len() < WINDOW && taken + under_way.len() < count {
            under_way.push_back(to.send(key::PRODUCE, 8, &body)?);
        }
        let correlation = under_way.pop_front().context("nothing is under way")?;
        let error = Connection::read_produced(to.receive_for(correlation, key::PRODUCE, 8)?)?.error;
        if error == code::NONE {
            (taken, refused_since) = (taken + 1, None);
            continue;
        }
        // What counts is bytes: what a leader refuses that has no lease now, or whose followers are late, is sent once more.
        one_of(&format!("filling {topic}/{partition}"), error, &PASSING)?;
        let since = *refused_since.get_or_insert_with(Instant::now);
        holds(&format!("{topic}/{partition}: error {error} for long"), since.elapsed() < AGREE)?;
    }
    Ok(count * batch.len())
}

/// Lets time pass.
fn pause(time: Duration) -> Result<()> {
    let until = Instant::now() + time;
    wait::until("time to pass", time * 2 + Duration::from_secs(1), || {
        Ok((Instant::now() >= until).then_some(()))
    })
}

/// CPU time of the brokers while something goes on.
struct Watch {
    began: Instant,
    cpu: Vec<f64>,
    read: [f64; 2],
}

/// What that came to.
#[derive(Debug, Clone, Copy)]
struct Spent {
    time: Duration,
    /// Of each broker.
    cpu: [f64; 3],
    /// Bytes that broker 1 read from its disk for others, batch by batch and by seals.
    read: [f64; 2],
}

impl Watch {
    fn begin(cluster: &Cluster) -> Result<Self> {
        Ok(Self { began: Instant::now(), cpu: cpu(cluster)?, read: read(cluster) })
    }

    fn end(&mut self, cluster: &Cluster) -> Result<Spent> {
        let mut spent = [0.0; 3];
        for ((spent, before), now) in spent.iter_mut().zip(&self.cpu).zip(cpu(cluster)?) {
            *spent = now - before;
        }
        let now = read(cluster);
        let read = [now[0] - self.read[0], now[1] - self.read[1]];
        Ok(Spent { time: self.began.elapsed(), cpu: spent, read })
    }
}

/// User and system time of each broker's process, in seconds.
fn cpu(cluster: &Cluster) -> Result<Vec<f64>> {
    let ticks = rustix::param::clock_ticks_per_second() as f64;
    let of = |broker: &crate::cluster::broker::Broker| {
        let pid = broker.node.pid().context("it does not run")?;
        let stat = std::fs::read_to_string(format!("/proc/{pid}/stat"))?;
        let (_, rest) = stat.rsplit_once(") ").context("a line of /proc")?;
        let words: Vec<&str> = rest.split(' ').collect();
        let word = |at: usize| words.get(at).and_then(|word| word.parse::<f64>().ok()).context("a number");
        Ok((word(11)? + word(12)?) / ticks)
    };
    cluster.brokers().map(of).collect()
}

/// Bytes of records that broker 1 read from its disk for others, and those of them that it compared with seals. The series are not there
/// before the first byte.
fn read(cluster: &Cluster) -> [f64; 2] {
    ["disk", "sealed"].map(|source| {
        let series = format!("felix_peer_shipping_read_bytes_total{{source=\"{source}\"}}");
        cluster.sum(&[1], &series).unwrap_or_default()
    })
}
