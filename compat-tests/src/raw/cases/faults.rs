//! Disks that fail, by fault injection into system calls; and everything that writes, on a disk that is full to the last page.

use std::path::{Path, PathBuf};
use std::process::Command;
use std::time::{Duration, Instant};

use anyhow::{Context, Result};

use super::disk::attached;
use crate::process::Process;
use crate::raw::Case;
use crate::raw::ask::code;
use crate::raw::ask::records::{Fetch, Want};
use crate::raw::batch::Batch;
use crate::raw::conn::Connection;
use crate::raw::expect::{equal, holds, one_of};
use crate::raw::small_disk::SmallDisk;
use crate::raw::stage::{Stage, skip, time};
use crate::target::{Broker, Kind};
use crate::wait;

pub const CASES: &[Case] = &[
    Case {
        name: "fault-flush-log",
        proves: "fdatasync of a log fails (EIO by strace): no answer claims success, the broker ends with code 1, its copies get new log ids, and all that was acknowledged is there at the next start",
        run: flush_of_log,
    },
    Case { name: "fault-flush-table", proves: "the same for replicas.table", run: flush_of_table },
    Case {
        name: "fault-flush-control",
        proves: "the same for the control store, when a topic is made",
        run: flush_of_control,
    },
    Case {
        name: "fault-write",
        proves: "a write to one log fails (EIO): that append is refused with KAFKA_STORAGE_ERROR, other partitions go on, and nothing of it is there after kill -9",
        run: write,
    },
    Case {
        name: "fault-read",
        proves: "reads of one log fail (EIO): its fetches are answered with KAFKA_STORAGE_ERROR, other partitions in the same fetch with their records, and it is served again when the disk is",
        run: read,
    },
    Case {
        name: "disk-full-everything",
        proves: "at 100 %: topics, partitions, configs, commits and appends get an error and leave nothing half-made; a start finds what was there; an idempotent producer resumes without loss or duplicate within 2 s of space returning (B067)",
        run: everything,
    },
];

fn connect(broker: &Broker) -> Result<Connection> {
    Connection::open(broker.address(), Duration::from_secs(10))
}

fn applies(stage: &Stage) -> Result<()> {
    if stage.broker.kind() == Kind::Kafka {
        return skip("about Felix's own ways with a disk that fails");
    }
    if crate::process::on_path("strace").is_none() {
        return skip("strace is not installed");
    }
    Ok(())
}

/// A broker of its own, with two topics of which each holds ten records.
struct Target {
    broker: Broker,
    log: PathBuf,
    /// Files of topic "a" and "b".
    files: [PathBuf; 2],
    _data: tempfile::TempDir,
}

impl Target {
    fn start(stage: &Stage, label: &str) -> Result<(Self, Connection)> {
        applies(stage)?;
        let data = tempfile::Builder::new().prefix("felix-compat-fault-").tempdir()?;
        let broker = Broker::start_on(&stage.origin, label, &[], data.path(), &[])?;
        let mut to = connect(&broker)?;
        let mut files = [PathBuf::new(), PathBuf::new()];
        for (topic, file) in ["a", "b"].into_iter().zip(&mut files) {
            let id = to.create(topic, 1, &[])?;
            for number in 0..10 {
                to.append(topic, &Batch::of(&[&number.to_string()], time()))?;
            }
            let folder = broker.partition_dir(topic, &stage.text_id(id), 0)?;
            *file = folder.join("00000000000000000000.log");
        }
        let log = stage.broker.log().with_file_name(format!("strace-{label}.log"));
        Ok((Self { broker, log, files, _data: data }, to))
    }

    /// Lets calls that concern `path` fail.
    fn inject(&self, path: &Path, what: &str) -> Result<Process> {
        let pid = self.broker.pid().context("no broker")?;
        let mut strace = Command::new("strace");
        strace.args(["-f", "-q", "-e", &format!("trace={}", what.split(':').next().unwrap_or(what))]);
        strace.arg("-e").arg(format!("inject={what}")).arg("-P").arg(path).arg("-o").arg("/dev/null");
        attached(pid, &mut strace, &self.log)
    }

    /// The identity of a topic's copy, as `felix dump-log` prints it.
    fn log_id(&self, topic: &str) -> Result<String> {
        let file = if topic == "a" { &self.files[0] } else { &self.files[1] };
        let folder = file.parent().and_then(Path::file_name).context("a folder")?.to_string_lossy();
        let table = self.broker.data_dir().join("replicas.table");
        let output = Command::new(self.broker.binary()).arg("dump-log").arg(table).output()?;
        let text = String::from_utf8_lossy(&output.stdout).into_owned();
        let row = text.lines().find(|line| line.contains(&*folder)).context("no row of the copy")?;
        let id = row.split(" log id: ").nth(1).and_then(|rest| rest.split(' ').next());
        Ok(id.context("no log id in the row")?.to_owned())
    }

    /// Waits for the end that a failed flush asks for, and starts again.
    fn ends_and_starts(&mut self, tracer: &mut Process) -> Result<()> {
        let status = self.broker.wait_end(Duration::from_secs(20)).context("the broker goes on")?;
        equal("exit code", status.code(), Some(1))?;
        tracer.kill();
        self.broker.start_again()
    }
}

/// The values of a topic must begin with these numbers; what was not acknowledged may follow, whole.
fn begins_with(to: &mut Connection, topic: &str, count: usize, may_follow: usize) -> Result<()> {
    to.wait_led(topic, 1)?;
    let all = to.read_all(topic, 0)?;
    holds(&format!("{topic}: {} records, {count} acknowledged", all.len()), all.len() >= count)?;
    holds(&format!("{topic}: {} records", all.len()), all.len() <= count + may_follow)?;
    for (at, (offset, value)) in all.iter().enumerate() {
        equal("offset", usize::try_from(*offset)?, at)?;
        equal("value", value.as_str(), at.to_string().as_str())?;
    }
    Ok(())
}

fn flush_of_log(stage: &mut Stage) -> Result<()> {
    let (mut target, mut to) = Target::start(stage, "fault-flush-log")?;
    let before = target.log_id("a")?;
    let mut tracer = target.inject(&target.files[0].clone(), "fdatasync,fsync:error=EIO")?;
    let produced = to.produce("a", &Batch::of(&["10"], time()));
    if let Ok(produced) = produced {
        holds("an append that was not flushed is acknowledged", produced.error != 0)?;
    }
    target.ends_and_starts(&mut tracer)?;
    let mut to = connect(&target.broker)?;
    begins_with(&mut to, "a", 10, 1)?;
    begins_with(&mut to, "b", 10, 0)?;
    holds("the copy whose flush failed kept its log id", target.log_id("a")? != before)?;
    let end = to.end_of("a")?;
    equal("offset", to.append("a", &Batch::of(&[&end.to_string()], time()))?, end)?;
    target.broker.kill_and_restart()?;
    let mut to = connect(&target.broker)?;
    begins_with(&mut to, "a", usize::try_from(end)? + 1, 0)?;
    target.broker.stop()
}

fn flush_of_table(stage: &mut Stage) -> Result<()> {
    let (mut target, mut to) = Target::start(stage, "fault-flush-table")?;
    let table = target.broker.data_dir().join("replicas.table");
    let mut tracer = target.inject(&table, "fdatasync,fsync:error=EIO")?;
    if let Ok((error, _)) = to.delete_records("a", 5) {
        holds("a log start that is not durable is answered as new", error != 0)?;
    }
    target.ends_and_starts(&mut tracer)?;
    let mut to = connect(&target.broker)?;
    to.wait_led("a", 1)?;
    let start = to.offset_at("a", 0, -2)?.offset;
    one_of("log start", start, &[0, 5])?;
    let all = to.read_all("a", start)?;
    equal("records", all.len(), usize::try_from(10 - start)?)?;
    begins_with(&mut to, "b", 10, 0)?;
    target.broker.stop()
}

fn flush_of_control(stage: &mut Stage) -> Result<()> {
    let (mut target, mut to) = Target::start(stage, "fault-flush-control")?;
    let store = target.broker.data_dir().join("control.redb");
    holds("the control store is where it was", store.exists())?;
    let mut tracer = target.inject(&store, "fdatasync,fsync:error=EIO")?;
    let made = to.try_create("c", 1, &[]);
    if let Ok(error) = made {
        holds("a topic that is not durable is answered as made", error != 0)?;
    }
    target.ends_and_starts(&mut tracer)?;
    let mut to = connect(&target.broker)?;
    begins_with(&mut to, "a", 10, 0)?;
    begins_with(&mut to, "b", 10, 0)?;
    // It was made or it was not; either way it can be had now.
    one_of("creating it again", to.try_create("c", 1, &[])?, &[0, code::TOPIC_ALREADY_EXISTS])?;
    to.wait_led("c", 1)?;
    to.append("c", &Batch::of(&["0"], time()))?;
    target.broker.stop()
}

fn write(stage: &mut Stage) -> Result<()> {
    let (mut target, mut to) = Target::start(stage, "fault-write")?;
    let mut tracer = target.inject(&target.files[0].clone(), "pwrite64,pwritev,pwritev2:error=EIO")?;
    let refused = to.produce("a", &Batch::of(&["never"], time()))?;
    equal("error of a failed write", refused.error, code::KAFKA_STORAGE_ERROR)?;
    equal("offset elsewhere", to.append("b", &Batch::of(&["10"], time()))?, 10)?;
    let got = to.read_all("a", 0)?;
    equal("records still read", got.len(), 10)?;
    tracer.terminate(Duration::from_secs(10)).map(drop).or_else(|_| Ok::<(), anyhow::Error>(()))?;
    holds("the broker runs", target.broker.runs())?;
    target.broker.kill_and_restart()?;
    let mut to = connect(&target.broker)?;
    begins_with(&mut to, "a", 10, 0)?;
    begins_with(&mut to, "b", 11, 0)?;
    equal("offset", to.append("a", &Batch::of(&["10"], time()))?, 10)?;
    target.broker.stop()
}

fn read(stage: &mut Stage) -> Result<()> {
    let (mut target, _) = Target::start(stage, "fault-read")?;
    // What was just written is served from memory: only a start makes the files be read.
    target.broker.restart()?;
    let mut to = connect(&target.broker)?;
    to.wait_led("a", 1)?;
    to.wait_led("b", 1)?;
    let calls = "read,pread64,preadv,preadv2:error=EIO";
    let mut tracer = target.inject(&target.files[0].clone(), calls)?;
    let fetch = Fetch::now(vec![Want::of("a", 0), Want::of("b", 0)]);
    let fetched = to.fetch(&fetch)?;
    equal("partitions answered", fetched.partitions.len(), 2)?;
    for got in &fetched.partitions {
        if got.topic == "a" {
            equal("error of what cannot be read", got.error, code::KAFKA_STORAGE_ERROR)?;
        } else {
            equal("error of what can", got.error, 0)?;
            holds("records of what can be read", !got.batches()?.is_empty())?;
        }
    }
    tracer.terminate(Duration::from_secs(10)).map(drop).or_else(|_| Ok::<(), anyhow::Error>(()))?;
    wait::until("the partition to be read again", Duration::from_secs(10), || {
        let fetched = to.fetch(&Fetch::now(vec![Want::of("a", 0)]))?;
        Ok((fetched.only()?.error == 0).then_some(()))
    })?;
    begins_with(&mut to, "a", 10, 0)?;
    target.broker.stop()
}

fn everything(stage: &mut Stage) -> Result<()> {
    if stage.broker.kind() == Kind::Kafka {
        return skip("Apache Kafka stops when its disk is full");
    }
    let disk = SmallDisk::mount(48, stage.broker.log())?;
    let data = disk.0.join("data");
    std::fs::create_dir(&data)?;
    let mut broker = Broker::start_on(&stage.origin, "raw-full-everything", &[], &data, &[])?;
    let mut to = connect(&broker)?;
    to.create("kept", 2, &[("segment.bytes", "1048576")])?;
    let (producer, epoch) = to.producer_id()?;
    let batch = |sequence: i32, filler: usize| {
        let value = format!("{sequence} {}", "i".repeat(filler));
        Batch::of(&[&value], time()).by_producer(producer, epoch, sequence)
    };
    let mut sequence = 0;
    for _ in 0..20 {
        equal("offset", to.append("kept", &batch(sequence, 1_000))?, i64::from(sequence))?;
        sequence += 1;
    }
    to.coordinator("group")?;
    equal("commit", to.commit("group", "kept", 7)?, 0)?;
    let balloon = disk.fill(0)?;
    equal("free bytes", disk.free()?, 0)?;
    // Whoever makes a topic is kept waiting for its leaders.
    to.patience(Duration::from_secs(20))?;
    // Kept room may let some of these through; what is answered with success must hold, and nothing else may be seen.
    let mut made = Vec::new();
    for number in 0..2 {
        let topic = format!("new-{number}");
        let error = to.try_create(&topic, 4, &[])?;
        if error == 0 {
            made.push(topic);
        } else {
            holds(&format!("{topic}: error {error}"), error > 0 || error == -1)?;
        }
    }
    let altered = to.alter("kept", "retention.ms", 0, Some("123456789"))?;
    let committed = to.commit("group", "kept", 8)?;
    let refused = loop {
        let produced = to.produce("kept", &batch(sequence, 30_000))?;
        if produced.error != 0 {
            break produced.error;
        }
        equal("offset", produced.base_offset, i64::from(sequence))?;
        sequence += 1;
        holds("the disk never fills up", sequence < 10_000)?;
    };
    equal("error of a full disk", refused, code::KAFKA_STORAGE_ERROR)?;
    // The start, at 100 %, with partitions that were never begun.
    disk.fill(0)?;
    equal("free bytes", disk.free()?, 0)?;
    broker.kill_and_restart().context("a start on a disk that is full to the last page")?;
    let mut to = connect(&broker)?;
    to.wait_led("kept", 2)?;
    equal("records", to.read_all("kept", 0)?.len(), usize::try_from(sequence)?)?;
    let produced = to.produce("kept", &batch(sequence, 30_000))?;
    equal("still full", produced.error, code::KAFKA_STORAGE_ERROR)?;
    for topic in &made {
        let seen = to.topic(Some(topic), [0; 16], false)?;
        equal(&format!("{topic}, which was answered as made"), (seen.error, seen.partitions.len()), (0, 4))?;
    }
    std::fs::remove_file(&balloon)?;
    let freed = Instant::now();
    wait::until("appends to go on", Duration::from_secs(30), || {
        let produced = to.produce("kept", &batch(sequence, 30_000))?;
        one_of("while it heals", produced.error, &[0, code::KAFKA_STORAGE_ERROR])?;
        if produced.error == 0 {
            equal("offset", produced.base_offset, i64::from(sequence))?;
        }
        Ok((produced.error == 0).then_some(()))
    })?;
    // Sent again, as after an answer that was lost: known, and not stored twice.
    equal("the same again", to.produce("kept", &batch(sequence, 30_000))?.base_offset, i64::from(sequence))?;
    sequence += 1;
    for topic in &made {
        to.wait_led(topic, 4)?;
        equal("offset", to.append(topic, &Batch::of(&["x"], time()))?, 0)?;
    }
    let healed = freed.elapsed();
    holds(&format!("healed after {healed:?}"), healed < Duration::from_secs(4))?;
    // What had an error may be tried again, and what had none holds.
    let configs = to.configs(2, "kept")?;
    let retention =
        configs.iter().find(|config| config.0 == "retention.ms").and_then(|config| config.1.clone());
    let changed = retention.as_deref() == Some("123456789");
    holds(&format!("error {altered} and retention.ms {retention:?}"), (altered == 0) == changed)?;
    to.coordinator("group")?;
    let offset = to.committed_offset("group", "kept")?;
    equal(
        &format!("offset after commit with error {committed}"),
        offset,
        if committed == 0 { 8 } else { 7 },
    )?;
    equal("commit", to.commit("group", "kept", 9)?, 0)?;
    for number in 0..2 {
        let topic = format!("new-{number}");
        if !made.contains(&topic) {
            to.create(&topic, 4, &[])?;
        }
    }
    broker.kill_and_restart()?;
    let mut to = connect(&broker)?;
    to.wait_led("kept", 2)?;
    let all = to.read_all("kept", 0)?;
    equal("records", all.len(), usize::try_from(sequence)?)?;
    for (at, (offset, value)) in all.iter().enumerate() {
        equal("offset", usize::try_from(*offset)?, at)?;
        equal("value", value.split(' ').next(), Some(at.to_string().as_str()))?;
    }
    broker.stop()
}
