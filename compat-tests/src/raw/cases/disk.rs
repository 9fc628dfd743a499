//! Disks that fill up, and answers that wait for the flush.

use std::path::Path;
use std::process::Command;
use std::time::Duration;

use anyhow::{Context, Result, bail};

use crate::process::Process;
use crate::raw::Case;
use crate::raw::ask::code;
use crate::raw::batch::Batch;
use crate::raw::conn::Connection;
use crate::raw::expect::{equal, holds, one_of};
use crate::raw::small_disk::SmallDisk;
use crate::raw::stage::{Stage, skip, time};
use crate::target::{Broker, Kind};
use crate::wait;

pub const CASES: &[Case] = &[
    Case {
        name: "disk-full",
        proves: "a full disk refuses appends with KAFKA_STORAGE_ERROR and serves reads; the broker restarts while full and heals when space returns; nothing acknowledged is lost (B067)",
        run: full,
    },
    Case {
        name: "disk-full-at-the-last-page",
        proves: "segments that roll while the last pages of the disk go: no death by signal, all is readable when space returns (B068)",
        run: last_page,
    },
    Case {
        name: "flush-before-answer",
        proves: "strace shows a flush between every append (acks=1 and all), offset commit or new log start and its answer; with flush.messages at Kafka's default there is none for appends (product.md, durability)",
        run: flush,
    },
];

fn connect(broker: &Broker) -> Result<Connection> {
    Connection::open(broker.address(), Duration::from_secs(10))
}

/// Produces numbered values until one is refused; how many were taken.
fn produce_until_refused(to: &mut Connection, topic: &str, first: i64, filler: &str) -> Result<(i64, i16)> {
    let mut number = first;
    loop {
        let value = format!("{number} {filler}");
        let produced = to.produce(topic, &Batch::of(&[&value], time()))?;
        if produced.error != 0 {
            return Ok((number - first, produced.error));
        }
        equal("offset", produced.base_offset, number)?;
        number += 1;
        holds("the disk does not fill up", number < 100_000)?;
    }
}

fn check_values(to: &mut Connection, topic: &str, count: i64) -> Result<()> {
    let all = to.read_all(topic, 0)?;
    holds(&format!("{} records, {count} acknowledged", all.len()), all.len() as i64 >= count)?;
    for (at, (offset, value)) in all.iter().enumerate() {
        equal("offset", *offset, at as i64)?;
        if (at as i64) < count {
            equal("value", value.split(' ').next().map(str::to_owned), Some(at.to_string()))?;
        }
    }
    Ok(())
}

fn full(stage: &mut Stage) -> Result<()> {
    if stage.broker.kind() == Kind::Kafka {
        return skip("Apache Kafka stops when its disk is full");
    }
    let disk = SmallDisk::mount(48, stage.broker.log())?;
    let balloon = disk.0.join("balloon");
    std::fs::write(&balloon, vec![1_u8; 24 << 20])?;
    let data = disk.0.join("data");
    std::fs::create_dir(&data)?;
    let mut broker = Broker::start_on(&stage.origin, "raw-disk-full", &[], &data, &[])?;
    let (topic, group) = ("filled", "a-group");
    let mut to = connect(&broker)?;
    to.create(topic, 1, &[("segment.bytes", "1048576")])?;
    to.coordinator(group)?;
    let (taken, error) = produce_until_refused(&mut to, topic, 0, &"x".repeat(60_000))?;
    equal("error of a full disk", error, code::KAFKA_STORAGE_ERROR)?;
    holds(&format!("{taken} taken"), taken > 50)?;
    check_values(&mut to, topic, taken)?;
    holds("metadata", to.sees_a_broker()?)?;
    broker.kill_and_restart().context("a restart while the disk is full")?;
    let mut to = connect(&broker)?;
    to.wait_led(topic, 1)?;
    check_values(&mut to, topic, taken)?;
    let value = format!("{taken} {}", "x".repeat(60_000));
    let refused = to.produce(topic, &Batch::of(&[&value], time()))?;
    one_of("still full", refused.error, &[code::KAFKA_STORAGE_ERROR])?;
    std::fs::remove_file(&balloon)?;
    wait::until("appends to go on", Duration::from_secs(30), || {
        let produced = to.produce(topic, &Batch::of(&["more"], time()))?;
        one_of("while it heals", produced.error, &[0, code::KAFKA_STORAGE_ERROR])?;
        Ok((produced.error == 0).then_some(()))
    })?;
    equal("commit", to.commit(group, topic, 5)?, 0)?;
    check_values(&mut to, topic, taken)?;
    broker.stop()
}

fn last_page(stage: &mut Stage) -> Result<()> {
    if stage.broker.kind() == Kind::Kafka {
        return skip("Apache Kafka stops when its disk is full");
    }
    let disk = SmallDisk::mount(32, stage.broker.log())?;
    let data = disk.0.join("data");
    std::fs::create_dir(&data)?;
    let mut broker = Broker::start_on(&stage.origin, "raw-last-page", &[], &data, &[])?;
    let mut to = connect(&broker)?;
    let settings =
        [("segment.bytes", "1048576"), ("index.interval.bytes", "1"), ("segment.index.bytes", "4096")];
    to.create("rolls", 1, &settings)?;
    let mut taken = 0;
    let rounds = if stage.full { 40 } else { 6 };
    for round in 0..rounds {
        // All of the disk but a few pages, a different number each time.
        let balloon = disk.fill((round + 1) * 4_096)?;
        let (more, error) = produce_until_refused(&mut to, "rolls", taken, &"y".repeat(300))?;
        equal("error of a full disk", error, code::KAFKA_STORAGE_ERROR)?;
        taken += more;
        holds("the broker runs", broker.runs())?;
        check_values(&mut to, "rolls", taken)?;
        std::fs::remove_file(&balloon)?;
        wait::until("appends to go on", Duration::from_secs(30), || {
            let value = format!("{taken} back");
            let produced = to.produce("rolls", &Batch::of(&[&value], time()))?;
            Ok((produced.error == 0).then_some(()))
        })?;
        taken += 1;
        // Some more with space enough, so that segments roll.
        for _ in 0..300 {
            let value = format!("{taken} {}", "z".repeat(2_000));
            equal("offset", to.append("rolls", &Batch::of(&[&value], time()))?, taken)?;
            taken += 1;
        }
    }
    broker.kill_and_restart()?;
    let mut to = connect(&broker)?;
    to.wait_led("rolls", 1)?;
    check_values(&mut to, "rolls", taken)?;
    broker.stop()
}

/// Starts `strace` on all threads of a process.
pub(super) fn attached(pid: i32, strace: &mut Command, log: &Path) -> Result<Process> {
    strace.arg("-p").arg(pid.to_string());
    let mut tracer = Process::spawn_logged(strace, log)?;
    wait::until("strace to attach", Duration::from_secs(10), || {
        if tracer.ended().is_some() {
            return skip("strace may not attach here");
        }
        let status = std::fs::read_to_string(format!("/proc/{pid}/status"))?;
        let traced = status.lines().any(|line| line.starts_with("TracerPid:") && !line.ends_with("\t0"));
        Ok(traced.then_some(()))
    })?;
    // Every thread must be attached, not only the first.
    wait::until("strace to attach to all threads", Duration::from_secs(10), || {
        let mut all = true;
        for task in std::fs::read_dir(format!("/proc/{pid}/task"))? {
            let status = std::fs::read_to_string(task?.path().join("status")).unwrap_or_default();
            all &= !status.lines().any(|line| line == "TracerPid:\t0");
        }
        Ok(all.then_some(()))
    })?;
    Ok(tracer)
}

/// Traces the broker while `work` runs; the system calls that flush or send, in the order of their ends.
fn traced(stage: &Stage, log: &Path, work: impl FnOnce() -> Result<()>) -> Result<Vec<String>> {
    let pid = stage.broker.pid().context("no broker")?;
    let trace = stage.scratch()?.join("trace");
    let mut strace = Command::new("strace");
    strace.args([
        "-f",
        "-y",
        "-e",
        "trace=fdatasync,fsync,sync_file_range,write,writev,sendto,sendmsg,pwritev,pwritev2",
        "-s",
        "16",
    ]);
    strace.arg("-o").arg(&trace);
    let mut tracer = attached(pid, &mut strace, log)?;
    let done = work();
    tracer
        .terminate(Duration::from_secs(10))
        .map(|_| ())
        .or_else(|error| if tracer.ended().is_some() { Ok(()) } else { Err(error) })?;
    done?;
    let text = std::fs::read_to_string(&trace)?;
    if text.is_empty() {
        bail!("strace wrote nothing");
    }
    Ok(text.lines().map(str::to_owned).collect())
}

/// Answers on sockets in a trace, and how many of them began without any flush having ended since the one before.
fn unflushed_answers(lines: &[String]) -> (usize, usize) {
    let (mut flushed, mut answers, mut unflushed) = (false, 0, 0);
    for line in lines {
        let flush = line.contains("fdatasync") || line.contains("fsync");
        // A flush counts from its end, an answer from its beginning; a line that resumes a call does not name the file.
        let ends = !line.contains("<unfinished");
        let socket = line.contains("<socket:") || line.contains("<TCP:");
        if flush && ends {
            flushed = true;
        } else if socket && !flush {
            answers += 1;
            unflushed += usize::from(!flushed);
            flushed = false;
        }
    }
    (answers, unflushed)
}

fn flush(stage: &mut Stage) -> Result<()> {
    if stage.broker.kind() == Kind::Kafka {
        return skip("Apache Kafka does not flush before it answers");
    }
    if crate::process::on_path("strace").is_none() {
        return skip("strace is not installed");
    }
    let (flushed, cached) = (stage.name("flushed"), stage.name("cached"));
    let mut to = stage.connect()?;
    to.create(&flushed, 1, &[])?;
    to.create(&cached, 1, &[("flush.messages", "9223372036854775807")])?;
    let log = stage.broker.log().with_file_name("strace.log");
    let count = 20;
    for (topic, waits) in [(&flushed, true), (&cached, false)] {
        let lines = traced(stage, &log, || {
            for acks in [1, -1] {
                for _ in 0..count / 2 {
                    let bytes = Batch::of(&["x"], time()).encode()?;
                    let body = Connection::produce_body(acks, topic, 0, &bytes);
                    equal("error", Connection::read_produced(to.call(0, 8, &body)?)?.error, 0)?;
                }
            }
            Ok(())
        })?;
        let (answers, unflushed) = unflushed_answers(&lines);
        holds(&format!("{answers} answers seen of {count}"), answers >= count)?;
        holds(
            "all appends went to the log",
            lines.iter().filter(|line| line.contains(".log>")).count() >= count,
        )?;
        if waits {
            holds(&format!("{unflushed} of {answers} answers without a flush"), unflushed == 0)?;
        } else {
            holds(&format!("{unflushed} of {answers} answers without a flush"), unflushed >= answers - 2)?;
        }
    }
    flushed_commits(stage, &mut to, &flushed, &log)?;
    flushed_table(stage, &mut to, &log)
}

/// A committed offset is flushed before it is acknowledged, whatever other topics do.
fn flushed_commits(stage: &Stage, to: &mut Connection, topic: &str, log: &Path) -> Result<()> {
    let group = stage.name("group");
    to.coordinator(&group)?;
    equal("a first commit", to.commit(&group, topic, 0)?, 0)?;
    let lines = traced(stage, log, || {
        for offset in 1..=10 {
            equal("commit", to.commit(&group, topic, offset)?, 0)?;
        }
        Ok(())
    })?;
    let (answers, unflushed) = unflushed_answers(&lines);
    holds(&format!("{answers} answers seen of 10"), answers >= 10)?;
    holds(&format!("{unflushed} of {answers} commits answered without a flush"), unflushed == 0)
}

/// A new log start is in the table of copies, flushed, before DeleteRecords is answered.
fn flushed_table(stage: &Stage, to: &mut Connection, log: &Path) -> Result<()> {
    let topic = stage.name("deleted");
    to.create(&topic, 1, &[])?;
    for _ in 0..10 {
        to.append(&topic, &Batch::of(&["x"], time()))?;
    }
    let lines = traced(stage, log, || {
        for before in 1..=5 {
            equal("new start", to.delete_records(&topic, before)?, (0, before))?;
        }
        Ok(())
    })?;
    let flushed =
        lines.iter().filter(|line| line.contains("fdatasync") && line.contains("replicas.table")).count();
    holds(&format!("{flushed} flushes of the table for 5 new starts"), flushed >= 5)?;
    let (answers, unflushed) = unflushed_answers(&lines);
    holds(&format!("{unflushed} of {answers} new starts answered without a flush"), unflushed == 0)
}

#[cfg(test)]
mod tests {
    use super::unflushed_answers;

    #[test]
    fn a_flush_counts_from_its_end() {
        let trace = [
            "7 pwritev(19</d/0.log>, ..., 2, 70) = 71",
            "8 fdatasync(19</d/0.log> <unfinished ...>",
            "9 writev(16<socket:[1]>, ..., 1) = 53",
            "8 <... fdatasync resumed>) = 0",
            "9 writev(16<socket:[1]>, ..., 1 <unfinished ...>",
            "9 <... writev resumed>) = 53",
        ];
        assert_eq!(unflushed_answers(&trace.map(str::to_owned)), (2, 1));
    }
}
