//! Who a broker is: its id, its data directory, its cluster.

use anyhow::{Context, Result};

use crate::cluster::Case;
use crate::cluster::plan::AGREE;
use crate::cluster::stage::{Stage, timed};
use crate::cluster::topics::Journal;
use crate::raw::ask::code;
use crate::raw::expect::{equal, holds};
use crate::wait;

pub const CASES: &[Case] = &[
    Case {
        name: "same-id-elsewhere",
        proves: "a broker with the id of one that is alive ends with exit code 2 and says why; the one that is alive notices nothing",
        seconds: 60,
        run: same_id_elsewhere,
    },
    Case {
        name: "wiped",
        proves: "a broker whose directory was wiped returns under its id only when the others have ended its session; what it alone held stays \
                 without leader, for all to see, and is not led as if it were empty; new topics use it again",
        seconds: 60,
        run: wiped,
    },
    Case {
        name: "directory-of-another-cluster",
        proves: "a data directory of another cluster, or of another id, is refused with exit code 2 and the reason, and left as it was",
        seconds: 60,
        run: of_another_cluster,
    },
];

fn same_id_elsewhere(stage: &Stage) -> Result<String> {
    let mut cluster = stage.plan().start()?;
    cluster.create(1, "t", 9)?;
    let mut journal = Journal::new("t");
    let number = cluster.led_by(2, "t")?[0];
    cluster.prepare_impostor(9, 2)?;
    let ((status, log), took) = timed(|| cluster.broker(9)?.refuses_to_start())?;
    equal("exit code", status.code(), Some(2))?;
    let said = log.lines().last().unwrap_or_default().to_owned();
    holds(
        &format!("it says why: {said}"),
        said.contains("node-id") || said.contains("node id") || said.contains("node 2"),
    )?;
    cluster.forget(9);
    journal.append(&mut cluster.broker(2)?.connect()?, number)?;
    equal("sessions of the one that lives", cluster.broker(2)?.metric("felix_sessions")?, 1.0)?;
    cluster.all_run()?;
    Ok(format!("refused after {:.1} s: {said}", took.as_secs_f64()))
}

fn wiped(stage: &Stage) -> Result<String> {
    let mut cluster = stage.plan().start()?;
    cluster.create(1, "t", 9)?;
    let mut journal = Journal::new("t");
    let numbers = cluster.led_by(2, "t")?;
    journal.append(&mut cluster.broker(2)?.connect()?, numbers[0])?;
    cluster.broker(2)?.kill();
    cluster.broker(2)?.wipe()?;
    let (_, took) = timed(|| cluster.broker(2)?.start())?;
    cluster.wait_alive(&[1, 2, 3])?;
    // What is decided of the partition is decided by now: others that were not written to may be led again.
    cluster.wait_leaderless(2, "t", &numbers[..1])?;
    cluster.create(3, "new", 9)?;
    holds("the new topic uses it", !cluster.led_by(2, "new")?.is_empty())?;
    for at in cluster.ids() {
        let partition = cluster.partitions(at, "t")?[usize::try_from(numbers[0])?].clone();
        equal("leader", partition.leader, -1)?;
        equal("error", partition.error, code::LEADER_NOT_AVAILABLE)?;
    }
    let error = journal.try_append(&mut cluster.broker(2)?.connect()?, numbers[0])?;
    equal("appending to what is lost", error, code::NOT_LEADER_OR_FOLLOWER)?;
    cluster.all_run()?;
    Ok(format!("served again {:.2} s after its start", took.as_secs_f64()))
}

fn of_another_cluster(stage: &Stage) -> Result<String> {
    let mut cluster = stage.plan().brokers(2).start()?;
    cluster.create(1, "t", 6)?;
    let mut journal = Journal::new("t");
    let number = cluster.led_by(2, "t")?[0];
    journal.append(&mut cluster.broker(2)?.connect()?, number)?;
    cluster.broker(2)?.stop()?;
    // Another cluster below another prefix of the same etcd.
    let other = cluster.prepare_broker()?;
    cluster.broker(other)?.flag("cluster-prefix", "/other");
    cluster.broker(other)?.start()?;
    cluster.broker(2)?.flag("cluster-prefix", "/other");
    let (status, log) = cluster.broker(2)?.refuses_to_start()?;
    equal("exit code", status.code(), Some(2))?;
    let said = log.lines().last().context("it says nothing")?.to_owned();
    holds(&format!("it says why: {said}"), said.contains("cluster"))?;
    cluster.broker(2)?.without_flag("cluster-prefix");
    // Its own cluster, but another id.
    cluster.broker(2)?.flag("node-id", "7");
    let (status, log) = cluster.broker(2)?.refuses_to_start()?;
    equal("exit code", status.code(), Some(2))?;
    let of_id = log.lines().last().context("it says nothing")?.to_owned();
    holds(&format!("it says why: {of_id}"), of_id.contains("node-id"))?;
    cluster.broker(2)?.flag("node-id", "2");
    cluster.broker(2)?.start()?;
    cluster.wait_serves(2, "t", &[number])?;
    let found = wait::until("the record", AGREE, || {
        let stored = crate::cluster::topics::stored(&mut cluster.broker(2)?.connect()?, "t", number)?;
        Ok((!stored.is_empty()).then_some(stored.len()))
    })?;
    equal("records", found, 1)?;
    Ok(format!("{said} | {of_id}"))
}
