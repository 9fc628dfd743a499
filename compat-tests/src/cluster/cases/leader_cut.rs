//! Topics with three replicas whose leaders are cut off from their followers, from etcd, from both, in each direction.

use std::time::Instant;

use anyhow::{Context, Result};

use super::cuts::until_refused;
use super::partitioned::{ALL, OFFSETS, all_in_sync, answered, exposed, finish, send, served, under_load};
use crate::cluster::Case;
use crate::cluster::load::Loads;
use crate::cluster::plan::{AGREE, Cluster};
use crate::cluster::stage::Stage;
use crate::cluster::topics::Journal;
use crate::raw::ask::code;
use crate::raw::ask::records::{Fetch, Want};
use crate::raw::ask::topics::PartitionSeen;
use crate::raw::expect::{equal, holds};
use crate::wait;

pub const CASES: &[Case] = &[Case {
    name: "leader-cut",
    proves: "a leader is cut off from its followers, from etcd, from both, in one direction, in the other, in both: without followers it takes acks=1, \
                 shows the lag, then gives the partition up, counts that as a loss, and keeps its session; without etcd it takes nothing once \
                 its lease has ended, which is before another leads (B088); without both it tells whoever waits then; the others go on, nothing acknowledged is lost, all heals by \
                 itself",
    seconds: 240,
    run: leader_cut,
}];

/// What a leader is cut off from.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
enum From {
    Followers,
    Etcd,
    Both,
}

/// A cut: from whom, whether what the leader sends is lost, whether what it is sent is.
type Cut = (From, bool, bool);

/// Cuts from followers come first, and each has another leader: one that was cut off gives a partition up once a minute.
const CUTS: [Cut; 9] = [
    (From::Followers, true, false),
    (From::Followers, false, true),
    (From::Followers, true, true),
    (From::Etcd, true, false),
    (From::Etcd, false, true),
    (From::Etcd, true, true),
    (From::Both, true, false),
    (From::Both, false, true),
    (From::Both, true, true),
];
/// Those of a short run.
const SHORT: [usize; 4] = [0, 1, 4, 8];

fn leader_cut(stage: &Stage) -> Result<String> {
    let (mut cluster, mut load) = under_load(stage, stage.plan().replicated().start()?)?;
    let mut journal = Journal::new("p");
    let mut told = Vec::new();
    let chosen: Vec<usize> = if stage.full { (0..CUTS.len()).collect() } else { SHORT.to_vec() };
    for (round, cut) in chosen.into_iter().map(|at| CUTS[at]).enumerate() {
        let figures = one_cut(&mut cluster, &mut load, &mut journal, cut, round % 3);
        told.push(figures.with_context(|| format!("{cut:?}"))?);
    }
    let rest = finish(stage, cluster, load, &journal)?;
    Ok(format!("{}; {rest}", told.join("; ")))
}

fn one_cut(
    cluster: &mut Cluster,
    load: &mut Loads,
    journal: &mut Journal,
    (from, there, back): Cut,
    index: usize,
) -> Result<String> {
    let number = i32::try_from(index)?;
    let (at, epoch) = cluster.wait_leader(1, "p", index, None)?;
    let witness = at % 3 + 1;
    journal.append_to_leader(cluster, witness, number)?;
    let sessions = cluster.broker(at)?.metric("felix_sessions")?;
    let losses = cluster.broker(at)?.metric("felix_broker_loss_events_total")?;
    let waiting = served(cluster, at)?;
    load.measure()?;
    let began = Instant::now();
    if from != From::Etcd {
        cluster.cut_from_brokers(at, there, back)?;
    }
    if from != From::Followers {
        cluster.cut_from_etcd(at, there, back)?;
    }
    let mut figures = format!(
        "{from:?} {}",
        if there && back {
            "both ways"
        } else if there {
            "out"
        } else {
            "in"
        }
    );
    if from == From::Followers {
        let mut lag = 0.0;
        // It is a leader like any other at first: what it takes on its own word is counted as what may be lost.
        exposed(cluster, journal, at, ("p", number))?;
        let sent = send(waiting, journal, "p", -1, number)?;
        wait::until("the lag to show", AGREE, || {
            lag = cluster.broker(at)?.metric("felix_broker_replication_lag_records")?;
            Ok((lag >= 1.0).then_some(()))
        })?;
        equal("acks=all", answered(sent, journal, number)?, code::NOT_LEADER_OR_FOLLOWER)?;
        figures += &format!(" gave up after {:.2} s", began.elapsed().as_secs_f64());
        // A machine that stood still for a moment may have cost it the lease instead, which it has again. Whoever waits is told then, and the
        // leader gives up when somebody waits again.
        wait::until("it to give up", AGREE, || {
            if cluster.partitions(witness, "p")?[index].leader != at {
                return Ok(Some(()));
            }
            let again = send(served(cluster, at)?, journal, "p", -1, number)?;
            equal("acks=all again", answered(again, journal, number)?, code::NOT_LEADER_OR_FOLLOWER)?;
            Ok(None)
        })?;
    } else {
        // Without followers as well it cannot know what they hold.
        let waits = if from == From::Both { Some(send(waiting, journal, "p", -1, number)?) } else { None };
        let mut alone = Journal::new("p").acks(1);
        let led = |seen: &PartitionSeen| seen.epoch > epoch || seen.leader != at;
        let (last, _) = until_refused(cluster, &mut alone, (at, "p", number), began, led)?;
        if let Some(sent) = waits {
            equal("acks=all", answered(sent, journal, number)?, code::NOT_LEADER_OR_FOLLOWER)?;
        }
        figures += &format!(" last acknowledged after {:.2} s", last.as_secs_f64());
    }
    let (_, later) = cluster.wait_leader(witness, "p", index, Some(at))?;
    if from != From::Followers {
        sends_away(cluster, at, number)?;
    }
    figures += &format!(", another leads after {:.2} s", began.elapsed().as_secs_f64());
    holds(&format!("the generation rises: {epoch}, {later}"), later > epoch)?;
    journal.append_to_leader(cluster, witness, number)?;
    load.go_on()?;
    if from == From::Followers {
        holds("a loss is counted", cluster.broker(at)?.metric("felix_broker_loss_events_total")? > losses)?;
        equal("its sessions", cluster.broker(at)?.metric("felix_sessions")?, sessions)?;
    }
    let began = Instant::now();
    cluster.network.heal_all()?;
    cluster.wait_alive(&ALL)?;
    all_in_sync(cluster, &["p", "t", "j", OFFSETS])?;
    load.go_on()?;
    figures += &format!(", in sync {:.2} s after healing", began.elapsed().as_secs_f64());
    figures += &format!(", longest stall {:.2} s", load.longest_stall()?.as_secs_f64());
    Ok(figures)
}

/// A broker without etcd may be read from, but sends whoever waits for more to others, and soon tells of nobody but them.
fn sends_away(cluster: &mut Cluster, at: i32, number: i32) -> Result<()> {
    let mut to = served(cluster, at)?;
    let mut want = Want { partition: number, ..Want::of("p", 0) };
    let fetched = to.fetch(&Fetch::now(vec![want.clone()]))?;
    let got = fetched.only()?;
    equal("reading what is there", (got.error, got.batches()?.is_empty()), (code::NONE, false))?;
    want.offset = got.mark;
    let fetched = to.fetch(&Fetch::now(vec![want]))?;
    equal("waiting for more", fetched.only()?.error, code::NOT_LEADER_OR_FOLLOWER)?;
    wait::until("it to leave itself out", AGREE, || {
        let seen = to.metadata()?;
        Ok((!seen.brokers.iter().any(|broker| broker.id == at)).then_some(()))
    })?;
    let named = to.coordinator_of("t-group")?;
    holds(&format!("it does not coordinate: {named:?}"), named.1 != at)
}
