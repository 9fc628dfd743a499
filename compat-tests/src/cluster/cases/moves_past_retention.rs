//! Replicas that move while retention passes a copy that is away: one that stays, one that is being added, one that is being removed.

use std::collections::BTreeSet;
use std::time::{Duration, Instant};

use anyhow::{Context, Result};
use felix_protocol::ids::{TopicId, Uuid};

use super::partitioned::{ALL, BOTH, OFFSETS, all_in_sync};
use super::replicated_logs::{fill, moved_start};
use crate::cluster::Case;
use crate::cluster::load::Loads;
use crate::cluster::network::Place;
use crate::cluster::plan::{AGREE, Cluster};
use crate::cluster::stage::{Stage, shown};
use crate::cluster::topics::Journal;
use crate::raw::ask::code;
use crate::raw::expect::{equal, holds};
use crate::wait;

pub const CASES: &[Case] = &[Case {
    name: "reassigned-past-retention",
    proves: "a replica moves to a fourth broker while retention.bytes, or DeleteRecords, passes a copy whose broker is away: that of a follower that stays, \
             the one that is added, the one that is removed; what comes back below the log start is begun anew, each move is completed by \
             itself, the copy that was removed leaves the disk; load goes on, nothing acknowledged above the log start is lost, and \
             all copies are the same",
    seconds: 200,
    run: past_retention,
}];

/// Whose copy is away.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
enum Away {
    Stays,
    Added,
    Removed,
}

const BROKERS: [i32; 4] = [1, 2, 3, 4];
const TARGET: [i32; 3] = [1, 2, 4];
/// How long a move may take on a loaded machine; copies that flap wait for up to a minute.
const MOVED: Duration = Duration::from_secs(180);
const RATE: &str = "leader.replication.throttled.rate";
const THROTTLED: &str = "leader.replication.throttled.replicas";

fn past_retention(stage: &Stage) -> Result<String> {
    let mut cluster = stage.plan().replicated().set("log.retention.check.interval.ms", "200").start()?;
    for (_, topic) in BOTH {
        cluster.create_placed(1, topic, &vec![ALL.to_vec(); 3])?;
    }
    let mut load = stage.loads_existing(&cluster, &BOTH, 3)?;
    all_in_sync(&mut cluster, &[OFFSETS])?;
    cluster.add_brokers(1)?;
    let (mut took, mut journals) = (Vec::new(), Vec::new());
    for round in 0..stage.rounds(1, 4) {
        for away in [Away::Stays, Away::Added, Away::Removed] {
            // In a short run each once: by size, and the one that is added by DeleteRecords.
            let by_size = (away != Away::Added) == (round % 2 == 0);
            let topic = format!("r-{round}-{away:?}-{by_size}").to_lowercase();
            let moved = move_past(&mut cluster, &mut load, &topic, away, by_size);
            let (journal, long) = moved.with_context(|| topic)?;
            took.push(long);
            journals.push(journal);
        }
    }
    let sent = load.finish()?;
    for journal in &journals {
        journal.check(&mut cluster)?;
    }
    cluster.all_run()?;
    let compared = stage.verify_copies(&mut cluster, u64::try_from(9 + journals.len())?)?;
    equal("batches that nobody has promised", compared.above, 0)?;
    Ok(format!(
        "moved and in sync after all could be reached: {}; {sent:?} records; {compared}",
        shown(&took)
    ))
}

/// Moves a replica from 3 to 4 while retention passes a copy that is away.
fn move_past(
    cluster: &mut Cluster,
    load: &mut Loads,
    topic: &str,
    away: Away,
    by_size: bool,
) -> Result<(Journal, Duration)> {
    let (error, message) = cluster.broker(1)?.connect()?.create_on(topic, -1, -1, &[ALL.to_vec()])?;
    equal(&format!("creating {topic}: {message:?}"), error, code::NONE)?;
    cluster.wait_in_sync(1, topic, &ALL)?;
    let mut to = cluster.broker(1)?.connect()?;
    equal("segment.bytes", to.alter(topic, "segment.bytes", 0, Some("1048576"))?, code::NONE)?;
    let id = to.topic(Some(topic), [0; 16], false)?.id;
    let mut journal = Journal::new(topic);
    let mut append = |cluster: &mut Cluster, count: usize| -> Result<()> {
        for _ in 0..count {
            journal.append_to_leader(cluster, 1, 0)?;
        }
        Ok(())
    };
    append(cluster, 20)?;
    let gone = match away {
        Away::Stays => 2,
        Away::Added => 4,
        Away::Removed => 3,
    };
    match away {
        // No copy can be made before that is over.
        Away::Stays => {
            ALL.iter().try_for_each(|at| cluster.network.cut_both(Place::Broker(*at), Place::Broker(4)))?
        }
        // The new copy gets next to nothing.
        Away::Added => {
            fill(cluster, topic, 2)?;
            equal(THROTTLED, to.alter(topic, THROTTLED, 0, Some("*"))?, code::NONE)?;
            equal(RATE, to.alter_broker("1", RATE, 0, Some("1"))?, code::NONE)?;
        }
        Away::Removed => {}
    }
    if away != Away::Added {
        cluster.broker(gone)?.kill();
        let left: Vec<i32> = ALL.into_iter().filter(|at| *at != gone).collect();
        cluster.wait_in_sync(1, topic, &left)?;
    }
    append(cluster, 20)?;
    to.reassign(topic, 1, Some(&TARGET))?;
    if away == Away::Added {
        let folder = |cluster: &mut Cluster| cluster.broker(4).map(|four| four.data_dir().join(copy(id)));
        wait::until("the new copy to be begun", AGREE, || Ok(folder(cluster)?.exists().then_some(())))?;
        equal("partitions being moved", to.reassigning()?, 1)?;
        cluster.broker(4)?.kill();
    }
    append(cluster, 20)?;

    // Retention passes what is away.
    if by_size {
        equal("retention.bytes", to.alter(topic, "retention.bytes", 0, Some("1048576"))?, code::NONE)?;
        fill(cluster, topic, 4)?;
    } else {
        equal("DeleteRecords", to.delete_records(topic, 55)?.0, code::NONE)?;
    }
    let start = moved_start(&mut to, topic, 42)?;
    append(cluster, 20)?;
    load.go_on()?;
    if away == Away::Stays {
        equal("partitions being moved", to.reassigning()?, 1)?;
    }

    let rebuilt = cluster.sum(&[1], "felix_broker_replication_rebuilds_total").unwrap_or_default();
    let began = Instant::now();
    if away == Away::Added {
        equal(RATE, to.alter_broker("1", RATE, 1, None)?, code::NONE)?;
    }
    cluster.broker(gone)?.start()?;
    cluster.wait_alive(&BROKERS)?;
    if away == Away::Stays {
        // Below the log start, while the move goes on.
        wait::until("the follower to be begun anew", MOVED, || {
            let isr = cluster.described(1, topic)?[0].isr.clone();
            Ok(isr.contains(&2).then_some(()))
        })?;
        let now = cluster.sum(&[1], "felix_broker_replication_rebuilds_total")?;
        holds(&format!("{now} rebuilt after {rebuilt}"), now > rebuilt)?;
        equal("partitions being moved", to.reassigning()?, 1)?;
        cluster.network.heal_all()?;
    }
    wait_moved(cluster, topic)?;
    let long = began.elapsed();
    equal("partitions being moved", to.reassigning()?, 0)?;
    let left = cluster.broker(3)?.data_dir().join(copy(id));
    wait::until("the copy that was removed to leave the disk", AGREE, || Ok((!left.exists()).then_some(())))?;
    equal("copies that have halted", cluster.sum(&BROKERS, "felix_broker_replication_halted")?, 0.0)?;
    append(cluster, 20)?;
    // Retention may go on, as far as its limit says.
    let begins = to.offset_at(topic, 0, -2)?.offset;
    holds(&format!("the log begins at {begins}, not before {start}"), begins >= start)?;
    journal.forget_below(0, begins);
    journal.check(cluster)?;
    load.go_on()?;
    Ok((journal, long))
}

/// The name of the folder of a topic's only partition.
fn copy(topic: [u8; 16]) -> String {
    format!("{}-0", TopicId(Uuid::from_bytes(topic)))
}

/// Waits until a topic is where it was moved to, and in sync.
fn wait_moved(cluster: &mut Cluster, topic: &str) -> Result<()> {
    let wanted = BTreeSet::from(TARGET);
    let mut last = Vec::new();
    let moved = wait::until(&format!("{topic} to be moved"), MOVED, || {
        last = cluster.described(1, topic)?;
        let all = |ids: &[i32]| ids.iter().copied().collect::<BTreeSet<i32>>() == wanted;
        Ok(last.iter().all(|one| all(&one.replicas) && all(&one.isr)).then_some(()))
    });
    moved.with_context(|| format!("{last:?}"))
}
