//! A compacted topic with every kind of hole that clients were seen to stumble over, and what must be left of it.

use std::collections::BTreeMap;
use std::time::Duration;

use anyhow::{Context, Result};

use super::ask::records::Keyed;
use super::batch::Batch;
use super::conn::Connection;
use super::stage::now_ms;
use crate::wait;

/// Within this, a small log has been compacted.
pub const SOON: Duration = Duration::from_secs(40);
/// A batch that is so much younger than the first of its segment begins another one.
const SEGMENT_MS: i64 = 10_000;
/// Offsets in the widest hole.
const WIDE: usize = 1_000_000;

/// The settings of a topic that is compacted as soon as a segment is closed.
pub fn settings() -> [(&'static str, &'static str); 6] {
    [
        ("cleanup.policy", "compact"),
        ("segment.bytes", "1048576"),
        ("segment.ms", "10000"),
        ("min.cleanable.dirty.ratio", "0.0001"),
        ("min.compaction.lag.ms", "0"),
        ("delete.retention.ms", "86400000"),
    ]
}

/// Writes keyed records to partition 0 of a topic, and remembers them.
pub struct Writer {
    topic: String,
    time: i64,
    written: Vec<Keyed>,
    /// So many of them are in closed segments.
    closed: usize,
}

impl Writer {
    /// Of an empty topic.
    pub fn new(topic: &str) -> Self {
        Self { topic: topic.to_owned(), time: now_ms() - 600_000, written: Vec::new(), closed: 0 }
    }

    /// Sends a batch of these records; no value is a tombstone.
    pub fn send(&mut self, to: &mut Connection, codec: i16, records: &[(&str, Option<&str>)]) -> Result<()> {
        self.time += 10;
        let base = to.append(&self.topic, &Batch::keyed(records, self.time).codec(codec))?;
        let kept = (base..).zip(records);
        self.written
            .extend(kept.map(|(offset, (key, value))| (offset, (*key).to_owned(), value.map(str::to_owned))));
        Ok(())
    }

    /// The next batch begins a new segment.
    pub fn close_segment(&mut self) {
        self.time += SEGMENT_MS + 1;
        self.closed = self.written.len();
    }

    /// Closes the segment and begins the next one, which no compaction looks at, with a key of its own.
    pub fn close(&mut self, to: &mut Connection) -> Result<()> {
        self.close_segment();
        self.send(to, 0, &[("last", Some("one"))])
    }

    /// Every record in order.
    pub fn written(&self) -> &[Keyed] {
        &self.written
    }

    /// What a whole compaction leaves: of each key the newest record in a closed segment, and all in the open one.
    pub fn survivors(&self) -> Vec<Keyed> {
        let (closed, open) = self.written.split_at(self.closed);
        let newest: BTreeMap<&str, i64> =
            closed.iter().map(|(offset, key, _)| (key.as_str(), *offset)).collect();
        let is_newest = |record: &&Keyed| newest[record.1.as_str()] == record.0;
        closed.iter().filter(is_newest).chain(open).cloned().collect()
    }

    /// Waits until exactly the survivors are left.
    pub fn wait_compacted(&self, to: &mut Connection) -> Result<Vec<Keyed>> {
        let survivors = self.survivors();
        let mut last = 0;
        wait::until(&format!("{} records to be left of {}", survivors.len(), self.topic), SOON, || {
            let read = to.read_keyed(&self.topic, 0)?;
            last = read.len();
            Ok((read == survivors).then_some(()))
        })
        .with_context(|| format!("{last} are left"))?;
        Ok(survivors)
    }
}

fn ten<'a>(keys: &'a [String], value: &'a str) -> Vec<(&'a str, Option<&'a str>)> {
    keys.iter().map(|key| (key.as_str(), Some(value))).collect()
}

/// Creates the topic, writes to it and waits until it is compacted. What is left.
pub fn prepare(to: &mut Connection, topic: &str) -> Result<Vec<Keyed>> {
    to.create(topic, 1, &settings())?;
    let mut writer = Writer::new(topic);
    write(to, &mut writer)?;
    writer.wait_compacted(to)
}

/// Holes at the head of a batch, at its tail and all over it, at the end of a segment, over a whole segment, and over a million offsets; in
/// every codec, with tombstones.
pub fn write(to: &mut Connection, writer: &mut Writer) -> Result<()> {
    let keys = |name: &str| -> Vec<String> { (0..10).map(|at| format!("{name}{at}")).collect() };
    let (head, tail, all, whole, end) = (keys("head"), keys("tail"), keys("all"), keys("whole"), keys("end"));
    writer.send(to, 0, &ten(&head, "first"))?;
    writer.send(to, 1, &ten(&tail, "first"))?;
    writer.send(to, 2, &ten(&all, "first"))?;
    writer.close_segment();
    for codec in [3, 4] {
        writer.send(to, codec, &ten(&whole, "first"))?;
    }
    writer.close_segment();
    writer.send(to, 4, &ten(&end[..5], "stays"))?;
    writer.send(to, 3, &ten(&end[5..], "first"))?;
    writer.close_segment();
    let wide = vec![("wide", Some("x")); WIDE / 50];
    for at in 0..50 {
        // A million records of one key, over several segments.
        if at % 10 == 9 {
            writer.close_segment();
        }
        writer.send(to, if at % 3 == 0 { 0 } else { 4 }, &wide)?;
    }
    writer.close_segment();
    writer.send(to, 1, &ten(&head[..5], "second"))?;
    writer.send(to, 2, &ten(&tail[5..], "second"))?;
    writer.send(to, 3, &ten(&all, "second"))?;
    let tombstones: Vec<_> = whole[..4].iter().map(|key| (key.as_str(), None)).collect();
    writer.send(to, 4, &tombstones)?;
    writer.send(to, 0, &ten(&whole[4..], "second"))?;
    writer.close_segment();
    writer.send(to, 0, &ten(&end[5..], "second"))?;
    // Written over once more, and a tombstone that a value follows.
    writer.send(
        to,
        1,
        &[("all0", Some("third")), ("whole0", Some("again")), ("all1", None), ("wide", Some("last"))],
    )?;
    writer.close(to)
}

/// The form that client programs compare.
pub fn in_words(records: &[Keyed]) -> String {
    let word = |(offset, key, value): &Keyed| format!("{offset} {key} {}", value.as_deref().unwrap_or("-"));
    records.iter().map(word).collect::<Vec<_>>().join(";")
}
