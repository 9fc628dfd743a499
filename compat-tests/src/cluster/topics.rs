//! Topics of a cluster: who leads what, and what was acknowledged against what is there.

use std::collections::BTreeMap;
use std::fmt::Debug;

use anyhow::{Context, Result, bail, ensure};

use super::plan::{AGREE, Cluster};
use crate::raw::ask::code;
use crate::raw::ask::records::{Fetch, Want};
use crate::raw::ask::topics::PartitionSeen;
use crate::raw::batch::Batch;
use crate::raw::conn::{Connection, key};
use crate::raw::stage::time;
use crate::wait;

/// What a broker says that goes by without anybody's doing: on a machine that stands still for as long as a lease every leader loses its
/// lease for a moment, and a follower that was slow may be out of the set.
pub const PASSING: [i16; 4] = [
    code::NOT_LEADER_OR_FOLLOWER,
    code::REQUEST_TIMED_OUT,
    code::NOT_ENOUGH_REPLICAS,
    code::NOT_ENOUGH_REPLICAS_AFTER_APPEND,
];

impl Cluster {
    /// Asks every broker the same until all answers are equal. Who cannot say it yet is asked again.
    pub fn agreed<T: PartialEq + Debug>(
        &self,
        what: &str,
        ask: impl Fn(&mut Connection) -> Result<T>,
    ) -> Result<T> {
        let mut last = String::new();
        let agreed = wait::until(&format!("all brokers to agree on {what}"), AGREE, || {
            let ask_one = |broker: &super::broker::Broker| ask(&mut broker.connect()?);
            let answers: Vec<T> = match self.brokers().map(ask_one).collect::<Result<_>>() {
                Ok(answers) => answers,
                Err(error) => {
                    last = format!("{error:#}");
                    return Ok(None);
                }
            };
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

    /// Which partitions of a topic a broker leads, as it says itself: some.
    pub fn led_by(&mut self, at: i32, topic: &str) -> Result<Vec<i32>> {
        wait::until(&format!("broker {at} to lead something of {topic}"), AGREE, || {
            let partitions = self.partitions(at, topic)?;
            let numbers = (0..).zip(&partitions).filter(|(_, partition)| partition.leader == at);
            let numbers: Vec<i32> = numbers.map(|(number, _)| number).collect();
            Ok((!numbers.is_empty()).then_some(numbers))
        })
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

    /// Appends a record that must be acknowledged by this broker, in the end: what was refused may be in the log all the same, so that
    /// the next one has another value.
    pub fn append(&mut self, to: &mut Connection, partition: i32) -> Result<()> {
        self.append_filled(to, partition, "")
    }

    /// The same with something behind the value that makes it as long as is wanted.
    pub fn append_filled(&mut self, to: &mut Connection, partition: i32, filler: &str) -> Result<()> {
        let mut last = 0;
        let what = format!("an acknowledgement of {}/{partition} by one broker", self.topic);
        let done = wait::until(&what, AGREE, || {
            last = self.try_append_filled(to, partition, filler)?;
            match last {
                0 => Ok(Some(())),
                passing if PASSING.contains(&passing) => Ok(None),
                error => bail!("appending to {}/{partition}: error {error}", self.topic),
            }
        });
        done.with_context(|| format!("error {last}"))
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
            // A connection that breaks says as much as a timeout.
            last = self.try_append(&mut to, partition).unwrap_or(code::REQUEST_TIMED_OUT);
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

    /// The same by the leaders that a broker knows of. One that cannot be asked now, or that has not heard yet how far its log is
    /// acknowledged, is asked again; what is there must be right at once.
    pub fn check_as_seen_by(&self, cluster: &mut Cluster, at: i32) -> Result<()> {
        let partitions = i32::try_from(cluster.partitions(at, &self.topic)?.len())?;
        let beyond = self.acknowledged.keys().find(|(number, _)| *number >= partitions);
        ensure!(beyond.is_none(), "{}/{beyond:?} of {partitions} partitions", self.topic);
        for number in 0..partitions {
            let mut last = String::new();
            let what = format!("all that was acknowledged of {}/{number} to be read", self.topic);
            let checked = wait::until(&what, AGREE, || {
                let seen = cluster.partitions(at, &self.topic)?;
                let leader = seen.get(usize::try_from(number)?).map_or(-1, |seen| seen.leader);
                let told = format!("led by {leader}");
                let Some(mut to) = cluster.broker(leader).ok().and_then(|broker| broker.connect().ok())
                else {
                    last = told;
                    return Ok(None);
                };
                match read_through(&mut to, &self.topic, number)? {
                    Ok(all) => {
                        let end = all.last().map_or(0, |(offset, ..)| offset + 1);
                        let wanted = self.acknowledged.range((number, end)..=(number, i64::MAX)).next();
                        last = format!("{told}: the end is {end}, and there is not {wanted:?}");
                        self.compare(number, &all).context(told)?;
                        Ok(wanted.is_none().then_some(()))
                    }
                    Err(error) => {
                        last = format!("{told}: error {error}");
                        Ok(None)
                    }
                }
            });
            checked.context(last)?;
        }
        Ok(())
    }

    /// What is there of a partition is what was acknowledged, as far as it goes.
    fn compare(&self, number: i32, all: &[Stored]) -> Result<()> {
        for pair in all.windows(2) {
            ensure!(pair[0].1 <= pair[1].1, "the epoch falls in {}/{number}: {pair:?}", self.topic);
        }
        let found: BTreeMap<i64, &String> = all.iter().map(|(offset, _, value)| (*offset, value)).collect();
        let end = found.last_key_value().map_or(0, |(last, _)| last + 1);
        for ((_, offset), value) in self.acknowledged.range((number, 0)..(number, end)) {
            let there = found.get(offset);
            let start = |value: &str| value.chars().take(40).collect::<String>();
            ensure!(
                there == Some(&value),
                "{} was acknowledged at {}/{number}/{offset}: there is {:?}, and the end is {end}",
                start(value),
                self.topic,
                there.map(|there| start(there)),
            );
        }
        Ok(())
    }
}

/// Where partition 0 of a topic ends, as its leader says once enough copies have its newest record.
pub fn end_of(to: &mut Connection, topic: &str) -> Result<i64> {
    wait::until(&format!("the end of {topic}"), AGREE, || {
        let found = to.offset_at(topic, 0, -1)?;
        Ok((found.error == code::NONE).then_some(found.offset))
    })
}

/// All of a partition, from a broker that leads it; one that does not say so now is asked again.
pub fn stored(to: &mut Connection, topic: &str, partition: i32) -> Result<Vec<Stored>> {
    let mut last = 0;
    let read = wait::until(&format!("all of {topic}/{partition} to be read"), AGREE, || {
        let read = read_through(to, topic, partition)?;
        Ok(read.map_err(|error| last = error).ok())
    });
    read.with_context(|| format!("error {last}"))
}

/// All of a partition, or the first error code on the way.
fn read_through(to: &mut Connection, topic: &str, partition: i32) -> Result<Result<Vec<Stored>, i16>> {
    let mut all = Vec::new();
    let start = to.offset_at(topic, partition, -2)?;
    if start.error != 0 {
        return Ok(Err(start.error));
    }
    let mut next = start.offset;
    loop {
        let want = Want { partition, ..Want::of(topic, next) };
        let fetched = to.fetch(&Fetch::now(vec![want]))?;
        let got = fetched.only()?;
        if got.error != 0 {
            return Ok(Err(got.error));
        }
        let batches = got.batches()?;
        let Some(last) = batches.last() else { return Ok(Ok(all)) };
        next = last.next();
        for batch in &batches {
            let values = Batch::values(std::slice::from_ref(batch));
            all.extend(values.into_iter().map(|(offset, value)| (offset, batch.leader_epoch, value)));
        }
    }
}
