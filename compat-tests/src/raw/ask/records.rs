//! Produce, Fetch, ListOffsets and what else concerns records.

use std::time::Duration;

use anyhow::{Context, Result, bail};

use crate::raw::ask::code;
use crate::raw::batch::Batch;
use crate::raw::conn::{Connection, key};
use crate::raw::expect::holds;
use crate::raw::wire::{R, W};
use crate::wait;

/// The bit of control batches.
const CONTROL: i16 = 1 << 5;

/// A record: offset, key, value.
pub type Keyed = (i64, String, Option<String>);

/// Answer to a produced batch.
#[derive(Debug, Clone, PartialEq, Eq)]
pub struct Produced {
    /// Error code.
    pub error: i16,
    /// Offset of the first record.
    pub base_offset: i64,
    /// Time of the append, -1 under CreateTime.
    pub append_time: i64,
    /// Start of the log.
    pub log_start: i64,
    /// Records refused one by one.
    pub record_errors: Vec<i32>,
}

/// What a fetch asks of one partition.
#[derive(Debug, Clone)]
pub struct Want {
    /// Topic.
    pub topic: String,
    /// Partition.
    pub partition: i32,
    /// From where.
    pub offset: i64,
    /// Leader epoch that the client knows, -1 none.
    pub epoch: i32,
    /// Limit for this partition.
    pub max_bytes: i32,
}

impl Want {
    /// Partition 0 of a topic from an offset on, up to 1 MiB.
    pub fn of(topic: &str, offset: i64) -> Self {
        Self { topic: topic.to_owned(), partition: 0, offset, epoch: -1, max_bytes: 1 << 20 }
    }
}

/// A fetch.
#[derive(Debug, Clone)]
pub struct Fetch {
    /// How long the broker may wait.
    pub max_wait: i32,
    /// For how many bytes.
    pub min_bytes: i32,
    /// Limit of all.
    pub max_bytes: i32,
    /// Session id.
    pub session: i32,
    /// Session epoch, -1 for none.
    pub session_epoch: i32,
    /// Isolation level.
    pub isolation: i8,
    /// Partitions, in the order sent; neighbours of one topic go into one entry.
    pub wants: Vec<Want>,
    /// Partitions to drop from the session.
    pub forget: Vec<(String, i32)>,
}

impl Fetch {
    /// A fetch without session that answers what is there.
    pub fn now(wants: Vec<Want>) -> Self {
        Self {
            max_wait: 0,
            min_bytes: 0,
            max_bytes: 50 << 20,
            session: 0,
            session_epoch: -1,
            isolation: 0,
            wants,
            forget: Vec::new(),
        }
    }

    /// Version 11.
    pub fn body(&self) -> W {
        let mut topics: Vec<(&str, Vec<&Want>)> = Vec::new();
        for want in &self.wants {
            match topics.last_mut() {
                Some((topic, wants)) if *topic == want.topic => wants.push(want),
                _ => topics.push((&want.topic, vec![want])),
            }
        }
        let mut body =
            W::new().i32(-1).i32(self.max_wait).i32(self.min_bytes).i32(self.max_bytes).i8(self.isolation);
        body = body.i32(self.session).i32(self.session_epoch).array(topics.len());
        for (topic, wants) in topics {
            body = body.str(topic).array(wants.len());
            for want in wants {
                body = body.i32(want.partition).i32(want.epoch).i64(want.offset).i64(-1).i32(want.max_bytes);
            }
        }
        body = body.array(self.forget.len());
        for (topic, partition) in &self.forget {
            body = body.str(topic).array(1).i32(*partition);
        }
        body.str("")
    }
}

/// One partition of a fetch's answer.
#[derive(Debug, Clone)]
pub struct Got {
    /// Topic.
    pub topic: String,
    /// Partition.
    pub partition: i32,
    /// Error code.
    pub error: i16,
    /// High watermark.
    pub mark: i64,
    /// Start of the log.
    pub log_start: i64,
    /// The record set as it came.
    pub bytes: Vec<u8>,
}

impl Got {
    /// The batches, whole and right.
    pub fn batches(&self) -> Result<Vec<Batch>> {
        Batch::decode_all(&self.bytes)
    }
}

/// Answer to a fetch.
#[derive(Debug, Clone)]
pub struct Fetched {
    /// Error code of all.
    pub error: i16,
    /// Session id.
    pub session: i32,
    /// Partitions in the order they came.
    pub partitions: Vec<Got>,
}

impl Fetched {
    /// Reads version 11 to its end.
    pub fn read(mut from: R) -> Result<Self> {
        from.i32()?;
        let (error, session) = (from.i16()?, from.i32()?);
        let topics = from.each(|topic| {
            let name = topic.str()?;
            topic.each(|partition| {
                let (index, error) = (partition.i32()?, partition.i16()?);
                let mark = partition.i64()?;
                // Without transactions the last stable offset is the mark.
                holds("the last stable offset is the mark", partition.i64()? == mark)?;
                let log_start = partition.i64()?;
                partition.each(|aborted| Ok((aborted.i64()?, aborted.i64()?)))?;
                holds("no preferred replica", partition.i32()? == -1)?;
                let bytes = partition.nbytes()?.context("null records")?;
                Ok(Got { topic: name.clone(), partition: index, error, mark, log_start, bytes })
            })
        })?;
        from.end()?;
        Ok(Self { error, session, partitions: topics.into_iter().flatten().collect() })
    }

    /// The only partition.
    pub fn only(&self) -> Result<&Got> {
        match (self.error, self.partitions.as_slice()) {
            (0, [only]) => Ok(only),
            (error, partitions) => {
                bail!("error {error} and {} partitions where one is due", partitions.len())
            }
        }
    }
}

/// Answer to ListOffsets for a partition.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub struct Found {
    /// Error code.
    pub error: i16,
    /// Timestamp.
    pub timestamp: i64,
    /// Offset.
    pub offset: i64,
    /// Leader epoch.
    pub epoch: i32,
}

impl Connection {
    /// A Produce request of version 8 for one partition.
    pub fn produce_body(acks: i16, topic: &str, partition: i32, records: &[u8]) -> W {
        W::new().nstr(None).i16(acks).i32(10_000).array(1).str(topic).array(1).i32(partition).bytes(records)
    }

    /// Reads the answer to it.
    pub fn read_produced(mut from: R) -> Result<Produced> {
        let mut topics = from.each(|topic| {
            topic.str()?;
            topic.each(|partition| {
                partition.i32()?;
                let error = partition.i16()?;
                let (base_offset, append_time, log_start) =
                    (partition.i64()?, partition.i64()?, partition.i64()?);
                let record_errors = partition.each(|record| {
                    let index = record.i32()?;
                    record.nstr()?;
                    Ok(index)
                })?;
                partition.nstr()?;
                Ok(Produced { error, base_offset, append_time, log_start, record_errors })
            })
        })?;
        from.i32()?;
        from.end()?;
        topics
            .pop()
            .and_then(|mut partitions| partitions.pop())
            .context("no partition in the answer to Produce")
    }

    /// Produces bytes to a partition with acks=all.
    pub fn produce_bytes(&mut self, topic: &str, partition: i32, records: &[u8]) -> Result<Produced> {
        let body = Self::produce_body(-1, topic, partition, records);
        Self::read_produced(self.call(key::PRODUCE, 8, &body)?)
    }

    /// Produces a batch to partition 0 with acks=all.
    pub fn produce(&mut self, topic: &str, batch: &Batch) -> Result<Produced> {
        self.produce_bytes(topic, 0, &batch.encode()?)
    }

    /// Produces a batch that must be taken; its base offset. A leader that has no lease at the moment, or whose followers were late, is
    /// asked again.
    pub fn append(&mut self, topic: &str, batch: &Batch) -> Result<i64> {
        wait::until(&format!("a batch to be taken by {topic}"), Duration::from_secs(20), || {
            let produced = self.produce(topic, batch)?;
            match produced.error {
                code::NONE => Ok(Some(produced.base_offset)),
                code::NOT_LEADER_OR_FOLLOWER | code::NOT_ENOUGH_REPLICAS => Ok(None),
                error => bail!("producing to {topic}: error {error}"),
            }
        })
    }

    /// Fetches.
    pub fn fetch(&mut self, fetch: &Fetch) -> Result<Fetched> {
        Fetched::read(self.call(key::FETCH, 11, &fetch.body())?)
    }

    /// Everything of partition 0 from an offset on.
    pub fn read_all(&mut self, topic: &str, from: i64) -> Result<Vec<(i64, String)>> {
        let mut values: Vec<(i64, String)> = Vec::new();
        let mut next = from;
        loop {
            let fetched = self.fetch(&Fetch::now(vec![Want::of(topic, next)]))?;
            let got = fetched.only()?;
            if got.error != 0 {
                bail!("fetching {topic} at {next}: error {}", got.error);
            }
            let batches = got.batches()?;
            let Some(last) = batches.last() else { return Ok(values) };
            values.extend(Batch::values(&batches).into_iter().filter(|(offset, _)| *offset >= next));
            next = last.base_offset + i64::from(last.last_delta) + 1;
        }
    }

    /// Every record of partition 0 between an offset and the mark: offset, key, value. Fails if an answer below the mark brings no
    /// batch that leads on.
    pub fn read_keyed(&mut self, topic: &str, from: i64) -> Result<Vec<Keyed>> {
        let mut all = Vec::new();
        let mut next = from;
        loop {
            let fetched = self.fetch(&Fetch::now(vec![Want::of(topic, next)]))?;
            let got = fetched.only()?;
            if got.error != 0 {
                bail!("fetching {topic} at {next}: error {}", got.error);
            }
            let batches = got.batches()?;
            let Some(last) = batches.last() else {
                if next < got.mark {
                    bail!("nothing at {next} of {topic}, which goes on to {}", got.mark);
                }
                return Ok(all);
            };
            for batch in batches.iter().filter(|batch| batch.attributes & CONTROL == 0) {
                for record in &batch.records {
                    let text = |bytes: &Option<Vec<u8>>| {
                        bytes.as_ref().map(|bytes| String::from_utf8_lossy(bytes).into_owned())
                    };
                    let offset = batch.base_offset + record.delta;
                    if offset >= next {
                        all.push((offset, text(&record.key).unwrap_or_default(), text(&record.value)));
                    }
                }
            }
            if last.next() <= next {
                bail!("the answer at {next} of {topic} ends at {}", last.next());
            }
            next = last.next();
        }
    }

    /// ListOffsets version 5 (7 for timestamps that it does not know) for a partition.
    pub fn offset_at(&mut self, topic: &str, partition: i32, timestamp: i64) -> Result<Found> {
        let flexible = timestamp <= -3;
        let body = W::new().i32(-1).i8(0);
        if flexible {
            let body = body.carray(1).cstr(topic).carray(1).i32(partition).i32(-1).i64(timestamp);
            let mut answer = self.call(key::LIST_OFFSETS, 7, &body.tags().tags().tags())?;
            answer.i32()?;
            let topics = answer.ceach(|topic| {
                topic.cstr()?;
                let found = topic.ceach(|partition| {
                    let found = Self::read_found(partition)?;
                    partition.tags()?;
                    Ok(found)
                })?;
                topic.tags()?;
                Ok(found)
            })?;
            answer.tags()?;
            answer.end()?;
            return topics.into_iter().flatten().next().context("no partition in the answer to ListOffsets");
        }
        let body = body.array(1).str(topic).array(1).i32(partition).i32(-1).i64(timestamp);
        let mut answer = self.call(key::LIST_OFFSETS, 5, &body)?;
        answer.i32()?;
        let topics = answer.each(|topic| {
            topic.str()?;
            topic.each(Self::read_found)
        })?;
        answer.end()?;
        topics.into_iter().flatten().next().context("no partition in the answer to ListOffsets")
    }

    fn read_found(partition: &mut R) -> Result<Found> {
        partition.i32()?;
        let error = partition.i16()?;
        Ok(Found { error, timestamp: partition.i64()?, offset: partition.i64()?, epoch: partition.i32()? })
    }

    /// The end of partition 0.
    pub fn end_of(&mut self, topic: &str) -> Result<i64> {
        Ok(self.offset_at(topic, 0, -1)?.offset)
    }

    /// A producer id with its epoch.
    pub fn producer_id(&mut self) -> Result<(i64, i16)> {
        let body = W::new().nstr(None).i32(60_000);
        wait::until("a producer id", Duration::from_secs(20), || {
            let mut answer = self.call(key::INIT_PRODUCER_ID, 1, &body)?;
            answer.i32()?;
            let (error, id, epoch) = (answer.i16()?, answer.i64()?, answer.i16()?);
            answer.end()?;
            // Kafka answers that it is loading until it has a block of ids.
            match error {
                0 => Ok(Some((id, epoch))),
                14 | 15 => Ok(None),
                other => bail!("InitProducerId: error {other}"),
            }
        })
    }

    /// OffsetForLeaderEpoch version 3: (error, epoch, end offset).
    pub fn end_of_epoch(&mut self, topic: &str, current: i32, epoch: i32) -> Result<(i16, i32, i64)> {
        let body = W::new().i32(-1).array(1).str(topic).array(1).i32(0).i32(current).i32(epoch);
        let mut answer = self.call(key::OFFSET_FOR_LEADER_EPOCH, 3, &body)?;
        answer.i32()?;
        let topics = answer.each(|topic| {
            topic.str()?;
            topic.each(|partition| {
                let error = partition.i16()?;
                partition.i32()?;
                Ok((error, partition.i32()?, partition.i64()?))
            })
        })?;
        answer.end()?;
        topics.into_iter().flatten().next().context("no partition in the answer to OffsetForLeaderEpoch")
    }

    /// DeleteRecords version 1 on partition 0: (error, low watermark).
    pub fn delete_records(&mut self, topic: &str, before: i64) -> Result<(i16, i64)> {
        let body = W::new().array(1).str(topic).array(1).i32(0).i64(before).i32(10_000);
        let mut answer = self.call(key::DELETE_RECORDS, 1, &body)?;
        answer.i32()?;
        let topics = answer.each(|topic| {
            topic.str()?;
            topic.each(|partition| {
                partition.i32()?;
                let low = partition.i64()?;
                Ok((partition.i16()?, low))
            })
        })?;
        answer.end()?;
        topics.into_iter().flatten().next().context("no partition in the answer to DeleteRecords")
    }
}
