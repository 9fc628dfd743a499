//! Known faults of systems like this one, of replication and epochs, that no other case is about.

use std::collections::BTreeSet;
use std::path::{Path, PathBuf};
use std::sync::Arc;
use std::sync::atomic::{AtomicBool, Ordering};
use std::thread::JoinHandle;
use std::time::{Duration, Instant};

use anyhow::{Context, Result, anyhow, bail, ensure};

use super::partitioned::{ALL, BOTH, OFFSETS, all_in_sync, each_leads, exposed, resumed, served};
use crate::cluster::Case;
use crate::cluster::plan::{AGREE, Cluster};
use crate::cluster::proxy::Direction;
use crate::cluster::stage::{Stage, shown};
use crate::cluster::topics::{Journal, end_of, stored};
use crate::raw::ask::code;
use crate::raw::ask::records::{Fetch, Produced, Want};
use crate::raw::batch::Batch;
use crate::raw::conn::{Connection, key};
use crate::raw::expect::{equal, holds, one_of};
use crate::raw::stage::time;
use crate::raw::wire::W;
use crate::wait;

pub const CASES: &[Case] = &[
    Case {
        name: "two-flips-and-epochs",
        proves: "leaders change twice before the first one, whose tail nobody has, was told to cut it (B033): nobody who reads from those that return sees a \
                 record of a tail (B036), all copies end equal; OffsetForLeaderEpoch after changes of leader, one without records, at the leader and \
                 elsewhere (B010)",
        seconds: 120,
        run: two_flips,
    },
    Case {
        name: "follower-cut-short",
        proves: "a follower is killed, its newest segment loses its last 64 KiB, it returns within its lease and the leader is killed at once: every \
                 acknowledged record is there (B038)",
        seconds: 120,
        run: cut_short,
    },
    Case {
        name: "error-after-the-append",
        proves: "with both followers standing still, acks=all ends in REQUEST_TIMED_OUT, the same batch sent again is not acknowledged early, and \
                 another one is refused before the append; when the followers are back each is there once (B061)",
        seconds: 60,
        run: after_append,
    },
    Case {
        name: "away-while-changed",
        proves: "a broker is away while records are deleted up to the middle of a batch (B046), and a topic is deleted and created again (B026): it has \
                 the log start and the new topic, nothing of the old one, and so has the next leader",
        seconds: 90,
        run: away_while_changed,
    },
    Case {
        name: "retention-with-stalled-follower",
        proves: "a follower stands still while acks=1 floods a topic that may keep little: the leader's disk stays small, what it has is without gaps, \
                 and the follower comes back (B078)",
        seconds: 90,
        run: stalled,
    },
    Case {
        name: "acks-lost-over-failovers",
        proves: "answers to idempotent producers of librdkafka and Java get lost and then the leader is killed, again and again: each record is there once, in order (B015)",
        seconds: 150,
        run: acks_lost,
    },
];

/// Reads from brokers without a pause from an offset on, and tells if one ever shows a record that it must not.
struct Watch {
    over: Arc<AtomicBool>,
    thread: JoinHandle<Result<u64>>,
}

impl Watch {
    fn start(cluster: &Cluster, topic: &str, from: i64, tails: Vec<String>) -> Self {
        let over = Arc::new(AtomicBool::new(false));
        let (told, topic) = (Arc::clone(&over), topic.to_owned());
        let brokers: Vec<_> = cluster.brokers().map(|broker| broker.told()).collect();
        let thread = std::thread::spawn(move || {
            let mut looks = 0;
            let mut open: Vec<Option<Connection>> = brokers.iter().map(|_| None).collect();
            while !told.load(Ordering::SeqCst) {
                for (address, to) in brokers.iter().zip(&mut open) {
                    if to.is_none() {
                        *to = Connection::open(*address, Duration::from_secs(5)).ok();
                    }
                    let Some(connection) = to else { continue };
                    let asked = connection.fetch(&Fetch::now(vec![Want::of(&topic, from)]));
                    // It is killed and comes back.
                    let Ok(fetched) = asked else {
                        *to = None;
                        continue;
                    };
                    looks += 1;
                    let got = fetched.only()?;
                    let values = Batch::values(&got.batches()?);
                    if let Some((offset, value)) = values.iter().find(|(_, value)| tails.contains(value)) {
                        bail!("{address} shows {value} at {offset}, which was never acknowledged by all");
                    }
                }
            }
            Ok(looks)
        });
        Self { over, thread }
    }

    /// Ends it; how often it looked.
    fn end(self) -> Result<u64> {
        self.over.store(true, Ordering::SeqCst);
        self.thread.join().map_err(|_| anyhow!("the watch panicked"))?
    }
}

fn two_flips(stage: &Stage) -> Result<String> {
    let mut cluster = stage.plan().start()?;
    cluster.create_placed(1, "t", &[vec![1, 2, 3]])?;
    let mut journal = Journal::new("t");
    let (first, _) = cluster.wait_leader(1, "t", 0, None)?;
    for _ in 0..2 {
        journal.append_to_leader(&mut cluster, 1, 0)?;
    }
    cluster.cut_from_brokers(first, true, false)?;
    let (offset, mut tails) = exposed(&mut cluster, &mut journal, first, ("t", 0))?;
    cluster.broker(first)?.kill();
    let witness = first % 3 + 1;
    let (second, _) = cluster.wait_leader(witness, "t", 0, Some(first))?;
    // Not before: what the dead one's sockets still hold would arrive.
    cluster.network.heal_all()?;
    journal.append_to_leader(&mut cluster, witness, 0)?;
    cluster.cut_from_brokers(second, true, false)?;
    tails.extend(exposed(&mut cluster, &mut journal, second, ("t", 0))?.1);
    let watch = Watch::start(&cluster, "t", offset, tails);
    // The first is back while the second still leads, and cannot hear from it.
    cluster.broker(first)?.start()?;
    cluster.broker(second)?.kill();
    let (third, _) = cluster.wait_leader(first, "t", 0, Some(second))?;
    cluster.network.heal_all()?;
    journal.append_to_leader(&mut cluster, third, 0)?;
    cluster.broker(second)?.start()?;
    all_in_sync(&mut cluster, &["t"])?;
    let looks = watch.end()?;
    // A leader without records, and one with.
    for round in 0..2 {
        let (at, _) = cluster.wait_leader(1, "t", 0, None)?;
        let witness = at % 3 + 1;
        cluster.broker(at)?.stop()?;
        cluster.wait_leader(witness, "t", 0, Some(at))?;
        if round == 1 {
            journal.append_to_leader(&mut cluster, witness, 0)?;
        }
        cluster.broker(at)?.start()?;
        cluster.wait_alive(&ALL)?;
        all_in_sync(&mut cluster, &["t"])?;
    }
    let asked = epochs(&mut cluster)?;
    journal.check(&mut cluster)?;
    cluster.all_run()?;
    let compared = stage.verify_copies(&mut cluster, 1)?;
    Ok(format!("{looks} looks at tails; {asked} epochs asked; {compared}"))
}

/// Asks the leader for the end of every epoch there was, and one more at each side; how many.
fn epochs(cluster: &mut Cluster) -> Result<i32> {
    let (leader, current) = cluster.wait_leader(1, "t", 0, None)?;
    let mut to = cluster.broker(leader)?.connect()?;
    let end = end_of(&mut to, "t")?;
    let mut starts: Vec<(i32, i64)> = Vec::new();
    for (offset, epoch, _) in stored(&mut to, "t", 0)? {
        if starts.last().is_none_or(|(last, _)| *last != epoch) {
            starts.push((epoch, offset));
        }
    }
    holds(&format!("several leaders wrote: {starts:?}"), starts.len() >= 4)?;
    for asked in -1..=current + 1 {
        let behind = starts.iter().find(|(epoch, _)| *epoch > asked).map_or(end, |(_, start)| *start);
        let expected = match starts.iter().rev().find(|(epoch, _)| *epoch <= asked) {
            _ if asked < 0 || asked > current => (-1, -1),
            Some(_) if asked == current => (current, end),
            Some((epoch, _)) => (*epoch, behind),
            None => (asked, behind),
        };
        let told = to.end_of_epoch("t", -1, asked)?;
        equal(&format!("epoch {asked} of {starts:?}"), told, (0, expected.0, expected.1))?;
    }
    equal("a stale epoch", to.end_of_epoch("t", current - 1, current)?.0, code::FENCED_LEADER_EPOCH)?;
    equal("one to come", to.end_of_epoch("t", current + 1, current)?.0, code::UNKNOWN_LEADER_EPOCH)?;
    for other in cluster.others(leader) {
        let told = cluster.broker(other)?.connect()?.end_of_epoch("t", -1, current)?.0;
        equal("at a follower", told, code::NOT_LEADER_OR_FOLLOWER)?;
    }
    Ok(current + 3)
}

/// The folders of partitions in a data directory, without those that wait to be removed.
fn folders(data: &Path) -> Result<Vec<PathBuf>> {
    let mut found = Vec::new();
    for entry in std::fs::read_dir(data)? {
        let path = entry?.path();
        if path.is_dir()
            && path.join("partition.metadata").exists()
            && !path.to_string_lossy().ends_with("-delete")
        {
            found.push(path);
        }
    }
    found.sort();
    Ok(found)
}

/// The segments in a folder with their sizes, oldest first; files come and go.
fn segments(folder: &Path) -> Vec<(PathBuf, u64)> {
    let entries = std::fs::read_dir(folder).into_iter().flatten().flatten();
    let logs =
        entries.map(|entry| entry.path()).filter(|path| path.extension().is_some_and(|end| end == "log"));
    let mut found: Vec<(PathBuf, u64)> =
        logs.filter_map(|path| Some((path.clone(), std::fs::metadata(path).ok()?.len()))).collect();
    found.sort();
    found
}

/// Takes the last 64 KiB of records off the newest segment of the largest log.
fn shorten(data: &Path) -> Result<u64> {
    let sizes = |folder: &PathBuf| segments(folder).iter().map(|(_, bytes)| *bytes).sum::<u64>();
    let folder = folders(data)?.into_iter().max_by_key(sizes).context("there is no log")?;
    let (newest, _) = segments(&folder).pop().context("there is no segment")?;
    let bytes = std::fs::read(&newest)?;
    // What was set aside for records to come is empty.
    let used = bytes.iter().rposition(|byte| *byte != 0).map_or(0, |last| last + 1);
    ensure!(used > 64 << 10, "{} has {used} bytes", newest.display());
    let left = u64::try_from(used - (64 << 10))?;
    std::fs::File::options().write(true).open(&newest)?.set_len(left)?;
    Ok(left)
}

/// Appends records of 4 KiB that must be acknowledged by all.
fn append_large(cluster: &mut Cluster, journal: &mut Journal, at: i32, count: usize) -> Result<()> {
    let (leader, _) = cluster.wait_leader(at, "t", 0, None)?;
    let mut to = served(cluster, leader)?;
    (0..count).try_for_each(|_| journal.append_filled(&mut to, 0, &"x".repeat(4_000)))
}

/// How often a follower is killed anew because another one was not in the set at that instant.
const MOST_KILLS: usize = 10;

/// Kills a follower while another one is in the set of those that may lead, and stays in it: nothing is written any more, and the set
/// does not shrink to nobody.
fn kill_beside(cluster: &mut Cluster, leader: i32, follower: i32, whole: i32) -> Result<()> {
    for _ in 0..MOST_KILLS {
        // On a busy machine the one that stays whole may have been dropped as slow; then what is cut would be the only other copy.
        all_in_sync(cluster, &["t"])?;
        cluster.broker(follower)?.kill();
        let seen = cluster.described(leader, "t")?;
        if seen.first().is_some_and(|seen| seen.isr.contains(&whole)) {
            return Ok(());
        }
        cluster.broker(follower)?.start()?;
        cluster.wait_alive(&ALL)?;
    }
    bail!("{whole} does not stay in the set of {leader}")
}

fn cut_short(stage: &Stage) -> Result<String> {
    let mut cluster = stage.plan().start()?;
    cluster.create_placed(1, "t", &[vec![1, 2, 3]])?;
    let mut journal = Journal::new("t");
    let mut returned = Vec::new();
    for _ in 0..stage.rounds(2, 50) {
        let (leader, _) = cluster.wait_leader(1, "t", 0, None)?;
        append_large(&mut cluster, &mut journal, leader, 40)?;
        let follower = leader % 3 + 1;
        let whole = follower % 3 + 1;
        kill_beside(&mut cluster, leader, follower, whole)?;
        shorten(cluster.broker(follower)?.data_dir())?;
        cluster.broker(follower)?.spawn()?;
        cluster.broker(leader)?.kill();
        let began = Instant::now();
        let (now, _) = cluster.wait_leader(whole, "t", 0, Some(leader))?;
        // The newest record is shown when the one that was cut short has it again.
        cluster.wait_serves(now, "t", &[0])?;
        journal.check_as_seen_by(&mut cluster, whole)?;
        cluster.broker(leader)?.start()?;
        cluster.broker(follower)?.wait_ready()?;
        cluster.wait_alive(&ALL)?;
        all_in_sync(&mut cluster, &["t"])?;
        returned.push(began.elapsed());
        journal.check(&mut cluster)?;
    }
    cluster.all_run()?;
    let compared = stage.verify_copies(&mut cluster, 1)?;
    Ok(format!("all in sync again {}; {compared}", shown(&returned)))
}

/// Produces a batch to partition 0 with acks=all and a timeout.
fn produce_within(to: &mut Connection, topic: &str, batch: &Batch, timeout: Duration) -> Result<Produced> {
    let timeout = i32::try_from(timeout.as_millis())?;
    let body = W::new().nstr(None).i16(-1).i32(timeout);
    let body = body.array(1).str(topic).array(1).i32(0).bytes(&batch.encode()?);
    Connection::read_produced(to.call(key::PRODUCE, 8, &body)?)
}

fn after_append(stage: &Stage) -> Result<String> {
    let mut cluster = stage.plan().start()?;
    cluster.create_placed(1, "t", &[vec![1, 2, 3]])?;
    let (leader, _) = cluster.wait_leader(1, "t", 0, None)?;
    let mut to = served(&mut cluster, leader)?;
    let (id, epoch) = to.producer_id()?;
    let batch = |value: &str, sequence| Batch::of(&[value], time()).by_producer(id, epoch, sequence);
    let second = Duration::from_secs(1);
    let first = produce_within(&mut to, "t", &batch("a", 0), second * 10)?;
    equal("the first", (first.error, first.base_offset), (code::NONE, 0))?;
    for follower in cluster.others(leader) {
        cluster.broker(follower)?.pause()?;
    }
    let began = Instant::now();
    let told = produce_within(&mut to, "t", &batch("b", 1), second)?;
    let waited = began.elapsed();
    equal("what nobody else has", told.error, code::REQUEST_TIMED_OUT)?;
    holds(&format!("not before its time: {waited:?}"), waited >= second)?;
    let unknown =
        [code::REQUEST_TIMED_OUT, code::NOT_ENOUGH_REPLICAS, code::NOT_ENOUGH_REPLICAS_AFTER_APPEND];
    one_of("the same once more", produce_within(&mut to, "t", &batch("b", 1), second)?.error, &unknown)?;
    let got = to.fetch(&Fetch::now(vec![Want::of("t", 1)]))?;
    equal("what readers see of it", got.only()?.bytes.len(), 0)?;
    cluster.wait_alive_as_seen_by(&[leader], &[leader])?;
    let told = produce_within(&mut to, "t", &batch("c", 2), second)?;
    equal("one more while nobody is there", told.error, code::NOT_ENOUGH_REPLICAS)?;
    for follower in cluster.others(leader) {
        cluster.broker(follower)?.resume()?;
    }
    for (value, sequence) in [("b", 1), ("c", 2), ("b", 1)] {
        let mut last = 0;
        let done = wait::until(&format!("{value} to be acknowledged"), AGREE * 2, || {
            let told = produce_within(&mut to, "t", &batch(value, sequence), second * 10)?;
            last = told.error;
            Ok((told.error == code::NONE).then_some(told.base_offset))
        });
        let offset = done.with_context(|| format!("error {last}"))?;
        equal(&format!("where {value} is"), offset, i64::from(sequence))?;
    }
    cluster.wait_alive(&ALL)?;
    all_in_sync(&mut cluster, &["t"])?;
    let values: Vec<String> = stored(&mut to, "t", 0)?.into_iter().map(|(_, _, value)| value).collect();
    equal("what is there", values, ["a", "b", "c"].map(str::to_owned).to_vec())?;
    cluster.all_run()?;
    let compared = stage.verify_copies(&mut cluster, 1)?;
    Ok(format!("timed out after {:.2} s; {compared}", waited.as_secs_f64()))
}

fn away_while_changed(stage: &Stage) -> Result<String> {
    let mut cluster = stage.plan().start()?;
    let placed = [vec![1, 2, 3]];
    for topic in ["trimmed", "again"] {
        cluster.create_placed(1, topic, &placed)?;
    }
    let (leader, _) = cluster.wait_leader(1, "trimmed", 0, None)?;
    equal("who leads both", cluster.wait_leader(1, "again", 0, None)?.0, leader)?;
    let values: Vec<String> = (0..100).map(|number| format!("value {number}")).collect();
    let values: Vec<&str> = values.iter().map(String::as_str).collect();
    let mut to = served(&mut cluster, leader)?;
    for (topic, values) in [("trimmed", &values[..]), ("again", &values[..10])] {
        equal(topic, produce_within(&mut to, topic, &Batch::of(values, time()), AGREE)?.error, code::NONE)?;
    }
    let away = leader % 3 + 1;
    let next = away % 3 + 1;
    cluster.broker(away)?.kill();
    equal("deleting records", to.delete_records("trimmed", 50)?, (code::NONE, 50))?;
    to.delete("again")?;
    wait::until("the topic to be gone", AGREE, || {
        Ok((!cluster.broker(next)?.connect()?.metadata()?.topics.contains_key("again")).then_some(()))
    })?;
    let (error, message) = cluster.broker(next)?.connect()?.create_on("again", -1, -1, &placed)?;
    ensure!(error == 0, "creating it again: error {error}: {message:?}");
    let mut journal = Journal::new("again");
    for _ in 0..5 {
        journal.append_to_leader(&mut cluster, next, 0)?;
    }
    cluster.broker(away)?.start()?;
    cluster.wait_alive(&ALL)?;
    for topic in ["trimmed", "again"] {
        cluster.wait_in_sync(away, topic, &ALL)?;
    }
    wait::until("the old copies to be gone", AGREE, || {
        let held = |broker: &crate::cluster::broker::Broker| -> Result<BTreeSet<Option<std::ffi::OsString>>> {
            let folders = folders(broker.data_dir())?;
            Ok(folders.iter().map(|folder| folder.file_name().map(ToOwned::to_owned)).collect())
        };
        let all = cluster.brokers().map(held).collect::<Result<Vec<_>>>()?;
        Ok(all.iter().all(|one| one.len() == 2 && *one == all[0]).then_some(()))
    })?;
    cluster.broker(leader)?.kill();
    let (now, _) = cluster.wait_leader(away, "trimmed", 0, Some(leader))?;
    cluster.wait_serves(now, "trimmed", &[0])?;
    let mut to = served(&mut cluster, now)?;
    equal("where the log begins", to.offset_at("trimmed", 0, -2)?.offset, 50)?;
    let got = to.fetch(&Fetch::now(vec![Want::of("trimmed", 50)]))?;
    let batches = got.only()?.batches()?;
    equal(
        "the batch around it",
        batches.first().map(|batch| (batch.base_offset, batch.next())),
        Some((0, 100)),
    )?;
    let below = to.fetch(&Fetch::now(vec![Want::of("trimmed", 49)]))?;
    equal("below it", below.only()?.error, code::OFFSET_OUT_OF_RANGE)?;
    let (now, _) = cluster.wait_leader(away, "again", 0, Some(leader))?;
    cluster.wait_serves(now, "again", &[0])?;
    let all = stored(&mut served(&mut cluster, now)?, "again", 0)?;
    // One that was refused after its append may be there as well.
    let new = all.iter().all(|(_, _, value)| value.starts_with("record "));
    holds(&format!("records of the new topic: {all:?}"), new && all.len() >= 5)?;
    journal.check_as_seen_by(&mut cluster, away)?;
    cluster.broker(leader)?.start()?;
    for topic in ["trimmed", "again"] {
        cluster.wait_in_sync(away, topic, &ALL)?;
    }
    cluster.all_run()?;
    Ok(stage.verify_copies(&mut cluster, 2)?.to_string())
}

fn stalled(stage: &Stage) -> Result<String> {
    const MIB: u64 = 1 << 20;
    let mut cluster = stage.plan().set("log.retention.check.interval.ms", "500").start()?;
    cluster.create_placed(1, "t", &[vec![1, 2, 3]])?;
    let (leader, _) = cluster.wait_leader(1, "t", 0, None)?;
    let mut to = served(&mut cluster, leader)?;
    for (name, value) in [("segment.bytes", "1048576"), ("retention.bytes", "2097152")] {
        equal(name, to.alter("t", name, 0, Some(value))?, code::NONE)?;
    }
    let follower = leader % 3 + 1;
    cluster.broker(follower)?.pause()?;
    let value = "x".repeat(100_000);
    let flood = stage.rounds(200, 2_000);
    let mut end = 0;
    for number in 0..flood {
        let body = Connection::produce_body(1, "t", 0, &Journal::encoded(&format!("{number} {value}"))?);
        let offset = wait::until("acks=1 to be answered", AGREE, || {
            let produced = Connection::read_produced(to.call(key::PRODUCE, 8, &body)?)?;
            one_of("acks=1", produced.error, &[code::NONE, code::NOT_LEADER_OR_FOLLOWER])?;
            Ok((produced.error == code::NONE).then_some(produced.base_offset))
        })?;
        holds(&format!("{offset} after {end}"), offset >= end)?;
        end = offset + 1;
    }
    let data = cluster.broker(leader)?.data_dir().to_path_buf();
    let kept = || -> Result<u64> {
        Ok(folders(&data)?.iter().flat_map(|folder| segments(folder)).map(|(_, bytes)| bytes).sum())
    };
    wait::until("old segments to go while the follower stands still", AGREE, || {
        Ok((kept()? <= 6 * MIB).then_some(()))
    })?;
    let there = stored(&mut to, "t", 0)?;
    // Retention may go on, and pass what was read.
    let offsets: Vec<i64> = there.iter().map(|(offset, ..)| *offset).collect();
    let start = offsets.first().copied().unwrap_or_default();
    equal("what is left has no gaps", offsets, (start..end).collect())?;
    holds("old records are gone", start > 0)?;
    let back = resumed(&mut cluster, follower)?;
    cluster.all_run()?;
    let compared = stage.verify_copies(&mut cluster, 1)?;
    Ok(format!(
        "{} of {flood} records kept; the follower back after {:.2} s; {compared}",
        there.len(),
        back.as_secs_f64()
    ))
}

fn acks_lost(stage: &Stage) -> Result<String> {
    let mut cluster = stage.plan().replicated().ways_to_brokers().start()?;
    for topic in ["t", "j"] {
        cluster.create_placed(1, topic, &each_leads())?;
    }
    let mut load = stage.loads_existing(&cluster, &BOTH, 3)?;
    all_in_sync(&mut cluster, &[OFFSETS])?;
    let mut stalls = Vec::new();
    for round in 0..stage.rounds(3, 30) {
        let (at, _) = cluster.wait_leader(1, "t", round % 3, None)?;
        load.measure()?;
        // It appends, and nobody hears of it; then it is gone.
        cluster.way_to_broker(at)?.lose(Direction::Back, true);
        load.stands_still(Duration::from_millis(400))?;
        cluster.broker(at)?.kill();
        cluster.way_to_broker(at)?.lose(Direction::Back, false);
        cluster.way_to_broker(at)?.end_all();
        cluster.wait_leader(at % 3 + 1, "t", round % 3, Some(at))?;
        load.go_on()?;
        stalls.push(load.longest_stall()?);
        cluster.broker(at)?.start()?;
        cluster.wait_alive(&ALL)?;
        all_in_sync(&mut cluster, &["t", "j", OFFSETS])?;
    }
    let sent = load.finish()?;
    cluster.all_run()?;
    let compared = stage.verify_copies(&mut cluster, 9)?;
    Ok(format!("longest stalls {}; {sent:?} records; {compared}", shown(&stalls)))
}
