//! Topics of a cluster: who leads what, and what was acknowledged against what is there.

use std::collections::BTreeMap;
use std::fmt::Debug;

use anyhow::{Context, Result, bail, ensure};

use super::plan::{AGREE, Cluster};
use crate::raw::ask::records::{Fetch, Want};
use crate::raw::ask::topics::PartitionSeen;
use crate::raw::batch::Batch;
use crate::raw::conn::{Connection, key};
use crate::raw::stage::time;
use crate::wait;

impl Cluster {
    /// Asks every broker the same until all answers are equal.
    pub fn agreed<T: PartialEq + Debug>(
        &self,
        what: &str,
        ask: impl Fn(&mut Connection) -> Result<T>,
    ) -> Result<T> {
        let mut last = String::new();
        let agreed = wait::until(&format!("all brokers to agree on {what}"), AGREE, || {
            let ask_one = |broker: &super::broker::Broker| ask(&mut broker.connect()?);
            let answers: Vec<T> = self.brokers().map(ask_one).collect::<Result<_>>()?;
            let mut answers = answers.into_iter();
            let first = answers.next().context("no broker")?;
            match answers.find(|answer| *answer != first) {
                None => Ok(Some(first)),
                Some(other) => {
                    last = format!("{first:?} and {other:?}");
                    Ok(None)
                }
            }
        });
        agreed.with_context(|| last)
    }

    /// The partitions of a topic as one broker tells them; none while it does not know the topic.
    pub fn partitions(&mut self, at: i32, topic: &str) -> Result<Vec<PartitionSeen>> {
        let mut seen = self.broker(at)?.connect()?.metadata()?;
        Ok(seen.topics.remove(topic).unwrap_or_default())
    }

    /// Creates a topic with one replica a partition, and waits until all of it is led.
    pub fn create(&mut self, at: i32, topic: &str, partitions: i32) -> Result<()> {
        let (error, message) = self.broker(at)?.connect()?.create_on(topic, partitions, 1, &[])?;
        ensure!(error == 0, "creating {topic}: error {error}: {message:?}");
        self.wait_led(at, topic)
    }

    /// Waits until every partition has a leader, as a broker says, and the leader says so, too.
    pub fn wait_led(&mut self, at: i32, topic: &str) -> Result<()> {
        wait::until(&format!("leaders of {topic}"), AGREE, || {
            let partitions = self.partitions(at, topic)?;
            for (number, partition) in partitions.iter().enumerate() {
                if partition.leader < 0 || !self.serves(partition.leader, topic, i32::try_from(number)?)? {
                    return Ok(None);
                }
            }
            Ok((!partitions.is_empty()).then_some(()))
        })
    }

    /// Whether a broker says that it leads a partition; one that cannot be reached does not.
    pub fn serves(&mut self, at: i32, topic: &str, partition: i32) -> Result<bool> {
        let found = self.broker(at)?.connect().and_then(|mut to| to.offset_at(topic, partition, -1));
        Ok(found.is_ok_and(|found| found.error == 0))
    }

    /// Waits until a broker leads all of these partitions.
    pub fn wait_serves(&mut self, at: i32, topic: &str, numbers: &[i32]) -> Result<()> {
        let mut last = String::new();
        let waited = wait::until(&format!("broker {at} to lead {numbers:?}"), AGREE, || {
            self.broker(at)?.node.must_run()?;
            for number in numbers {
                let found = self.broker(at)?.connect().and_then(|mut to| to.offset_at(topic, *number, -1));
                if found.as_ref().map_or(true, |found| found.error != 0) {
                    last = format!("{number}: {found:?}");
                    return Ok(None);
                }
            }
            Ok(Some(()))
        });
        waited.context(last)
    }

    /// Which partitions of a topic a broker leads, as it says itself.
    pub fn led_by(&mut self, at: i32, topic: &str) -> Result<Vec<i32>> {
        let partitions = self.partitions(at, topic)?;
        let numbers = (0..).zip(&partitions).filter(|(_, partition)| partition.leader == at);
        let numbers: Vec<i32> = numbers.map(|(number, _)| number).collect();
        if numbers.is_empty() { bail!("broker {at} leads nothing of {topic}") } else { Ok(numbers) }
    }

    /// Waits until all others say that these partitions have no leader.
    pub fn wait_leaderless(&mut self, gone: i32, topic: &str, numbers: &[i32]) -> Result<()> {
        for at in self.ids().into_iter().filter(|at| *at != gone) {
            wait::until(&format!("broker {at} to call {numbers:?} leaderless"), AGREE, || {
                let partitions = self.partitions(at, topic)?;
                let is_led = |number: &i32| {
                    let partition = usize::try_from(*number).ok().and_then(|number| partitions.get(number));
                    partition.is_none_or(|partition| partition.leader >= 0)
                };
                Ok((!numbers.iter().any(is_led)).then_some(()))
            })?;
        }
        Ok(())
    }
}

/// What was acknowledged of a topic.
#[derive(Debug, Clone)]
pub struct Journal {
    topic: String,
    acks: i16,
    acknowledged: BTreeMap<(i32, i64), String>,
    next: u64,
}

/// A batch as it is in a log: offset of a record, leader epoch, value.
pub type Stored = (i64, i32, String);

impl Journal {
    /// Nothing was acknowledged yet. Records are sent with acks=all.
    pub fn new(topic: &str) -> Self {
        Self { topic: topic.to_owned(), acks: -1, acknowledged: BTreeMap::new(), next: 0 }
    }

    /// The same with other acks. A leader whose lease ends refuses acks=1 at once; with acks=all it cannot know whether the
    /// record will count, and says REQUEST_TIMED_OUT in the end.
    pub fn acks(mut self, acks: i16) -> Self {
        self.acks = acks;
        self
    }

    /// The next record's value.
    pub fn value(&mut self) -> String {
        self.next += 1;
        format!("record {}", self.next)
    }

    /// A record of this value as it is sent.
    pub fn encoded(value: &str) -> Result<Vec<u8>> {
        Batch::of(&[value], time()).encode()
    }

    /// Notes an acknowledgement.
    pub fn note(&mut self, partition: i32, offset: i64, value: String) -> Result<()> {
        let before = self.acknowledged.insert((partition, offset), value.clone());
        match before {
            None => Ok(()),
            Some(before) => bail!("{partition}/{offset} was acknowledged for {before} and for {value}"),
        }
    }

    /// Appends a record and notes it if it is acknowledged; the error code.
    pub fn try_append(&mut self, to: &mut Connection, partition: i32) -> Result<i16> {
        self.try_append_filled(to, partition, "")
    }

    /// The same with something behind the value that makes it as long as is wanted.
    pub fn try_append_filled(&mut self, to: &mut Connection, partition: i32, filler: &str) -> Result<i16> {
        let value = self.value() + filler;
        let body = Connection::produce_body(self.acks, &self.topic, partition, &Self::encoded(&value)?);
        let produced = Connection::read_produced(to.call(key::PRODUCE, 8, &body)?)?;
        if produced.error == 0 {
            self.note(partition, produced.base_offset, value)?;
        }
        Ok(produced.error)
    }

    /// Appends a record that must be acknowledged.
    pub fn append(&mut self, to: &mut Connection, partition: i32) -> Result<()> {
        match self.try_append(to, partition)? {
            0 => Ok(()),
            error => bail!("appending to {}/{partition}: error {error}", self.topic),
        }
    }

    /// Appends a record that must be acknowledged in the end, to whoever leads; after a timeout nobody knows whether it is there, so
    /// that the next one has another value.
    pub fn append_to_leader(&mut self, cluster: &mut Cluster, at: i32, partition: i32) -> Result<()> {
        let topic = self.topic.clone();
        let number = usize::try_from(partition)?;
        let mut last = 0;
        let done = wait::until(&format!("an acknowledgement of {topic}/{partition}"), AGREE, || {
            let seen = cluster.partitions(at, &topic)?;
            let leader = seen.get(number).map_or(-1, |seen| seen.leader);
            let Ok(mut to) = cluster.broker(leader).and_then(|broker| broker.connect()) else {
                return Ok(None);
            };
            last = self.try_append(&mut to, partition)?;
            Ok((last == 0).then_some(()))
        });
        done.with_context(|| format!("error {last}"))
    }

    /// What lies below this offset was deleted by right.
    pub fn forget_below(&mut self, partition: i32, offset: i64) {
        self.acknowledged.retain(|(number, at), _| *number != partition || *at >= offset);
    }

    /// The same of one partition alone.
    pub fn only(mut self, partition: i32) -> Self {
        self.acknowledged.retain(|(number, _), _| *number == partition);
        self
    }

    /// How many records were acknowledged.
    pub fn len(&self) -> usize {
        self.acknowledged.len()
    }

    /// Every record that was acknowledged is where it was said to be, and the epochs of a log never fall.
    pub fn check(&self, cluster: &mut Cluster) -> Result<()> {
        let ids = cluster.ids();
        self.check_as_seen_by(cluster, ids[0])
    }

    /// The same by the leaders that a broker knows of.
    pub fn check_as_seen_by(&self, cluster: &mut Cluster, at: i32) -> Result<()> {
        let partitions = cluster.partitions(at, &self.topic)?;
        for (number, partition) in (0..).zip(&partitions) {
            let stored = stored(&mut cluster.broker(partition.leader)?.connect()?, &self.topic, number)?;
            for pair in stored.windows(2) {
                ensure!(pair[0].1 <= pair[1].1, "the epoch falls in {}/{number}: {pair:?}", self.topic);
            }
            let found: BTreeMap<i64, &String> =
                stored.iter().map(|(offset, _, value)| (*offset, value)).collect();
            for ((_, offset), value) in self.acknowledged.range((number, 0)..=(number, i64::MAX)) {
                let there = found.get(offset);
                let start = |value: &str| value.chars().take(40).collect::<String>();
                ensure!(
                    there == Some(&value),
                    "{} was acknowledged at {}/{number}/{offset}: there is {:?}, and the end is {:?}, led by {} at {}",
                    start(value),
                    self.topic,
                    there.map(|there| start(there)),
                    found.last_key_value().map(|(last, _)| last + 1),
                    partition.leader,
                    partition.epoch
                );
            }
        }
        Ok(())
    }
}

/// All of a partition.
pub fn stored(to: &mut Connection, topic: &str, partition: i32) -> Result<Vec<Stored>> {
    let mut all = Vec::new();
    let start = to.offset_at(topic, partition, -2)?;
    ensure!(start.error == 0, "the start of {topic}/{partition}: error {}", start.error);
    let mut next = start.offset;
    loop {
        let want = Want { partition, ..Want::of(topic, next) };
        let fetched = to.fetch(&Fetch::now(vec![want]))?;
        let got = fetched.only()?;
        ensure!(got.error == 0, "fetching {topic}/{partition} at {next}: error {}", got.error);
        let batches = got.batches()?;
        let Some(last) = batches.last() else { return Ok(all) };
        next = last.next();
        for batch in &batches {
            let values = Batch::values(std::slice::from_ref(batch));
            all.extend(values.into_iter().map(|(offset, value)| (offset, batch.leader_epoch, value)));
        }
    }
}
