//! What an operator asks and decides with `felix` itself.

use anyhow::{Context, Result};

use crate::cluster::Case;
use crate::cluster::plan::{AGREE, Cluster};
use crate::cluster::stage::Stage;
use crate::cluster::topics::Journal;
use crate::raw::ask::code;
use crate::raw::expect::{equal, holds};
use crate::wait;

pub const CASES: &[Case] = &[
    Case {
        name: "status",
        proves: "felix status ends with 0 where nothing is wrong, with 1 where a broker was killed, and says which one and what has no leader, \
                 and with 2 where nobody can be asked",
        seconds: 60,
        run: status,
    },
    Case {
        name: "recover-partition",
        proves: "felix recover partition shows what would be lost of a wiped broker's partition and changes nothing; with --yes it is led again, \
                 and that is counted as a loss; it is refused where somebody leads, and recover store while brokers live",
        seconds: 90,
        run: recover_partition,
    },
];

/// What `felix status` says when it asks these brokers: its exit code and its output.
pub fn asked(stage: &Stage, cluster: &mut Cluster, ids: &[i32]) -> Result<(Option<i32>, String)> {
    let mut words = vec!["status".to_owned()];
    for id in ids {
        words.extend(["--server".to_owned(), cluster.broker(*id)?.pages().to_string()]);
    }
    let words: Vec<&str> = words.iter().map(String::as_str).collect();
    let (status, output) = stage.felix(&words)?;
    Ok((status.code(), output))
}

/// Waits until `felix status` ends with that code and says all of that.
pub fn wait_says(
    stage: &Stage,
    cluster: &mut Cluster,
    ids: &[i32],
    code: i32,
    says: &[String],
) -> Result<String> {
    let mut last = String::new();
    let waited = wait::until(&format!("felix status of {ids:?} to end with {code}"), AGREE, || {
        let (ended, output) = asked(stage, cluster, ids)?;
        let done = ended == Some(code) && says.iter().all(|text| output.contains(text));
        last = format!("it ended with {ended:?}, not saying all of {says:?}:\n{output}");
        Ok(done.then_some(output))
    });
    waited.context(last)
}

fn status(stage: &Stage) -> Result<String> {
    let mut cluster = stage.plan().start()?;
    cluster.create(1, "t", 9)?;
    let output = wait_says(stage, &mut cluster, &[1, 2, 3], 0, &["1 topics, 9 partitions".to_owned()])?;
    equal("brokers where nothing is wrong", output.matches("nothing is wrong").count(), 3)?;

    let numbers = cluster.led_by(3, "t")?;
    cluster.broker(3)?.kill();
    let mut says = vec![
        "node 3 is down".to_owned(),
        format!("{} partitions have no leader", numbers.len()),
        format!("{} partitions without a leader", numbers.len()),
    ];
    says.extend(numbers.iter().map(|number| format!("  t-{number}: leader none")));
    let output = wait_says(stage, &mut cluster, &[1, 2], 1, &says)?;
    holds(&output, !output.contains("node 1 is") && !output.contains("node 2 is"))?;
    let said =
        output.lines().find(|line| line.contains("node 3 is down")).unwrap_or_default().trim().to_owned();
    let gone = format!("{}: ", cluster.broker(3)?.pages());
    let (ended, output) = asked(stage, &mut cluster, &[1, 3])?;
    holds(&output, ended == Some(1) && output.contains(&gone))?;
    let (ended, output) = asked(stage, &mut cluster, &[3])?;
    holds(&output, ended == Some(2) && output.contains(&gone))?;

    cluster.broker(3)?.start()?;
    wait_says(stage, &mut cluster, &[1, 2, 3], 0, &[])?;
    cluster.all_run()?;
    Ok(said)
}

fn recover_partition(stage: &Stage) -> Result<String> {
    let mut cluster = stage.plan().start()?;
    cluster.create(1, "t", 3)?;
    let mut journal = Journal::new("t");
    let number = cluster.led_by(2, "t")?[0];
    let led = cluster.led_by(1, "t")?[0];
    journal.append(&mut cluster.broker(2)?.connect()?, number)?;
    cluster.broker(2)?.kill();
    cluster.broker(2)?.wipe()?;
    cluster.broker(2)?.start()?;
    cluster.wait_alive(&[1, 2, 3])?;
    cluster.wait_leaderless(2, "t", &[number])?;

    let etcd = cluster.etcd[0].address().to_string();
    let (name, of_1) = (format!("t-{number}"), format!("t-{led}"));
    let server = cluster.broker(2)?.pages().to_string();
    let recover = |words: &[&str]| -> Result<(Option<i32>, String)> {
        let (status, output) = stage.felix(&[&["recover"], words, &["--etcd", &etcd]].concat())?;
        Ok((status.code(), output))
    };
    let before = cluster.partitions(1, "t")?[usize::try_from(number)?].clone();
    let (ended, shown) = recover(&["partition", &name, "--ask", &server])?;
    let says = ["-> broker 2: live", "LOST: ", "Nothing was written"];
    holds(&shown, ended == Some(0) && says.iter().all(|text| shown.contains(text)))?;
    let (ended, output) = recover(&["partition", &name, "--to", "1", "--yes"])?;
    holds(&output, ended == Some(1) && output.contains("broker 1 holds no copy"))?;
    let (ended, output) = recover(&["partition", &of_1, "--yes"])?;
    holds(&output, ended == Some(1) && output.contains("broker 1 leads it"))?;
    let (ended, output) = recover(&["store", "--yes"])?;
    holds(&output, ended == Some(2) && !output.contains("Done"))?;
    let refused = output.lines().last().unwrap_or_default().to_owned();
    let after = cluster.partitions(1, "t")?[usize::try_from(number)?].clone();
    equal("leader and epoch", (after.leader, after.epoch), (-1, before.epoch))?;
    let error = journal.try_append(&mut cluster.broker(2)?.connect()?, number)?;
    equal("appending to what is lost", error, code::NOT_LEADER_OR_FOLLOWER)?;
    let losses = cluster.broker(2)?.metric("felix_broker_loss_events_total")?;

    let (ended, output) = recover(&["partition", &name, "--yes"])?;
    holds(&output, ended == Some(0) && output.contains("1 partitions have a leader"))?;
    cluster.wait_serves(2, "t", &[number])?;
    let end = cluster.broker(2)?.connect()?.offset_at("t", number, -1)?;
    equal("the end of what is left", end.offset, 0)?;
    equal("losses counted", cluster.broker(2)?.metric("felix_broker_loss_events_total")?, losses + 1.0)?;
    let mut anew = Journal::new("t");
    anew.append(&mut cluster.broker(2)?.connect()?, number)?;
    anew.check(&mut cluster)?;
    wait_says(stage, &mut cluster, &[1, 2, 3], 0, &[])?;
    cluster.all_run()?;
    let lost = shown.lines().find(|line| line.contains("LOST: ")).unwrap_or_default().trim();
    Ok(format!("{lost} | {refused}"))
}
