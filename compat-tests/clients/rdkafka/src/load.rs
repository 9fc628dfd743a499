//! Load on a cluster while the harness does something to it: `program load ADDRESSES TOPIC PARTITIONS`.
//!
//! Several times a second it says how far it is, as one JSON object a line: `acked`, `read`, `stall_ms`, `lasting_ms`, `resets`. A line `reset` on stdin
//! has the longest stall measured anew, `stop` ends the load: the rest is sent and read, everything is compared, and `done` (how many records
//! were sent) or `failed` (why) is the last line.

use std::collections::BTreeMap;
use std::io::BufRead;
use std::sync::atomic::{AtomicBool, Ordering};
use std::sync::mpsc::{Receiver, RecvTimeoutError, channel};
use std::sync::{Arc, Mutex};
use std::time::{Duration, Instant};

use anyhow::{Context, Result, bail, ensure};
use rdkafka::client::ClientContext;
use rdkafka::consumer::{BaseConsumer, CommitMode, Consumer, ConsumerContext, Rebalance};
use rdkafka::error::{KafkaError, RDKafkaErrorCode};
use rdkafka::message::{DeliveryResult, Message};
use rdkafka::producer::{BaseRecord, Producer, ProducerContext, ThreadedProducer};
use rdkafka::topic_partition_list::{Offset, TopicPartitionList};
use serde_json::json;

use crate::client::{Client, From};
use crate::group::lock;

/// From one round of records, one a partition, to the next.
const ROUND: Duration = Duration::from_millis(20);
/// From one line to the next.
const TELL: Duration = Duration::from_millis(50);
/// What librdkafka says for an offset that it does not know (`RD_KAFKA_OFFSET_INVALID`).
const NO_PLACE: i64 = -1001;
/// How long the group may take to read the rest.
const READ_ALL: Duration = Duration::from_secs(45);
/// Records that are read within the patience of a client.
const READ_AT_ONCE: usize = 50_000;

/// What is known of one partition.
#[derive(Clone, Default)]
struct Known {
    /// Records that were acknowledged.
    acked: u64,
    last_ack: Option<Instant>,
    stall: Duration,
    /// One past the highest record that the group has read.
    read: u64,
    /// One past the highest offset whose commit was answered.
    committed: u64,
}

#[derive(Default)]
struct State {
    known: Mutex<BTreeMap<i32, Known>>,
    failed: Mutex<Option<String>>,
    over: AtomicBool,
}

impl State {
    fn fail(&self, why: String) {
        lock(&self.failed).get_or_insert(why);
    }

    fn sum(&self, of: impl Fn(&Known) -> u64) -> u64 {
        lock(&self.known).values().map(of).sum()
    }

    /// The longest that a partition went without acknowledgement, the one that still lasts included.
    fn stall(&self) -> Duration {
        let known = lock(&self.known);
        let lasting = |known: &Known| known.last_ack.map_or(Duration::ZERO, |last| last.elapsed());
        known.values().map(|known| known.stall.max(lasting(known))).max().unwrap_or_default()
    }

    /// How long the partition that waits longest has been without acknowledgement.
    fn lasting(&self) -> Duration {
        let known = lock(&self.known);
        let last = known.values().filter_map(|known| known.last_ack);
        last.map(|last| last.elapsed()).max().unwrap_or_default()
    }

    fn reset(&self) {
        for known in lock(&self.known).values_mut() {
            known.stall = Duration::ZERO;
            known.last_ack = known.last_ack.map(|_| Instant::now());
        }
    }
}

struct Telling(Arc<State>);

impl ClientContext for Telling {}

impl ProducerContext for Telling {
    type DeliveryOpaque = ();

    fn delivery(&self, result: &DeliveryResult<'_>, (): ()) {
        match result {
            Ok(message) => {
                let (partition, number) = (message.partition(), number_of(message.payload()));
                let mut all = lock(&self.0.known);
                let known = all.entry(partition).or_default();
                known.acked += 1;
                let now = Instant::now();
                if let Some(last) = known.last_ack.replace(now) {
                    known.stall = known.stall.max(now - last);
                }
                drop(all);
                // The next leader may be asked for two batches that both are there, and lead between the one and the other: then the
                // later one is acknowledged first. Librdkafka takes the earlier one for acknowledged then, without a place. All are read in
                // the end, each at its own.
                let offset = message.offset();
                if offset != NO_PLACE && offset != i64::try_from(number).unwrap_or(-1) {
                    self.0.fail(format!("record {number} of {partition} acknowledged at {offset}"));
                }
            }
            Err((error, message)) => {
                let (partition, number) = (message.partition(), number_of(message.payload()));
                self.0.fail(format!("record {number} of {partition} was not delivered: {error}"));
            }
        }
    }
}

fn number_of(value: Option<&[u8]>) -> u64 {
    value.and_then(|value| value.first_chunk::<8>()).map_or(u64::MAX, |first| u64::from_be_bytes(*first))
}

/// A value begins with its number; the rest makes it as long as records are.
fn value(number: u64) -> Vec<u8> {
    let mut value = number.to_be_bytes().to_vec();
    value.resize(100, b'x');
    value
}

/// A member that knows from where it may read, partition by partition, since it was given them.
struct Floors {
    state: Arc<State>,
    floors: Mutex<BTreeMap<i32, u64>>,
}

impl ClientContext for Floors {}

impl ConsumerContext for Floors {
    fn post_rebalance(&self, _: &BaseConsumer<Self>, rebalance: &Rebalance<'_>) {
        if let Rebalance::Assign(given) = rebalance {
            let known = lock(&self.state.known);
            let floor = |partition: i32| known.get(&partition).map_or(0, |known| known.committed);
            *lock(&self.floors) =
                given.elements().iter().map(|one| (one.partition(), floor(one.partition()))).collect();
        }
    }
}

/// A member of the group, until all is over.
fn member(client: &Client, topic: &str, state: &Arc<State>) -> Result<()> {
    let floors = Floors { state: Arc::clone(state), floors: Mutex::default() };
    let config = client.config(&[
        ("group.id", &format!("{topic}-group")),
        ("enable.auto.commit", "false"),
        ("auto.offset.reset", "error"),
        ("session.timeout.ms", "30000"),
        ("heartbeat.interval.ms", "500"),
        ("fetch.wait.max.ms", "100"),
        ("socket.timeout.ms", "3000"),
        ("reconnect.backoff.max.ms", "500"),
    ]);
    let consumer: BaseConsumer<Floors> = config.create_with_context(floors)?;
    consumer.subscribe(&[topic])?;
    let mut pending: BTreeMap<i32, u64> = BTreeMap::new();
    let mut commit_at = Instant::now();
    while !state.over.load(Ordering::SeqCst) {
        match consumer.poll(Duration::from_millis(50)) {
            Some(Ok(message)) => {
                let (partition, offset) = (message.partition(), u64::try_from(message.offset())?);
                ensure!(
                    number_of(message.payload()) == offset,
                    "record {} is at {partition}/{offset}",
                    number_of(message.payload())
                );
                let floor = lock(&consumer.context().floors).get(&partition).copied().unwrap_or(0);
                ensure!(offset >= floor, "{partition}/{offset} was read again: {floor} was committed");
                let mut all = lock(&state.known);
                let known = all.entry(partition).or_default();
                ensure!(offset <= known.read, "{partition}/{offset} was read, {} was skipped", known.read);
                known.read = known.read.max(offset + 1);
                pending.insert(partition, offset + 1);
            }
            Some(Err(KafkaError::MessageConsumption(code)))
                if code == RDKafkaErrorCode::AutoOffsetReset
                    || code == RDKafkaErrorCode::OffsetOutOfRange =>
            {
                // There is nothing committed at first: then the beginning is right, and only then.
                for one in consumer.assignment()?.elements() {
                    let known = lock(&state.known).get(&one.partition()).cloned().unwrap_or_default();
                    ensure!(known.committed == 0, "{}: the committed offset is gone", one.partition());
                }
                bail!("the position is gone: {code}");
            }
            // Librdkafka tells of what it tries again; what is not read in the end tells.
            Some(Err(error)) => eprintln!("member: {error}"),
            None => {}
        }
        if !pending.is_empty() && commit_at.elapsed() > Duration::from_millis(200) {
            commit_at = Instant::now();
            commit(&consumer, topic, state, &mut pending)?;
        }
    }
    Ok(())
}

fn commit(
    consumer: &BaseConsumer<Floors>,
    topic: &str,
    state: &State,
    pending: &mut BTreeMap<i32, u64>,
) -> Result<()> {
    let held: Vec<i32> = consumer.assignment()?.elements().iter().map(|one| one.partition()).collect();
    pending.retain(|partition, _| held.contains(partition));
    if pending.is_empty() {
        return Ok(());
    }
    let mut places = TopicPartitionList::new();
    for (partition, offset) in &*pending {
        places.add_partition_offset(topic, *partition, Offset::Offset(i64::try_from(*offset)?))?;
    }
    match consumer.commit(&places, CommitMode::Sync) {
        Ok(()) => {
            for (partition, offset) in std::mem::take(pending) {
                let mut all = lock(&state.known);
                let known = all.entry(partition).or_default();
                known.committed = known.committed.max(offset);
            }
        }
        // Tried again with the next record.
        Err(error) => eprintln!("member: commit: {error}"),
    }
    Ok(())
}

/// Runs the load; the arguments behind `load`.
pub fn main(arguments: &[String]) -> Result<()> {
    let [addresses, topic, partitions] = arguments else { bail!("load ADDRESSES TOPIC PARTITIONS") };
    let state = Arc::new(State::default());
    let done = run(&Client::new(addresses)?, topic, partitions.parse()?, &state);
    state.over.store(true, Ordering::SeqCst);
    let failed = lock(&state.failed).clone();
    match (done, failed) {
        (_, Some(why)) => println!("{}", json!({ "failed": why })),
        (Err(error), None) => println!("{}", json!({ "failed": format!("{error:#}") })),
        (Ok(sent), None) => println!(
            "{}",
            json!({ "done": sent, "acked": state.sum(|known| known.acked), "read": state.sum(|known| known.read),
                    "stall_ms": u64::try_from(state.stall().as_millis())? })
        ),
    }
    // Members that wait for a broker are not waited for.
    std::process::exit(0);
}

fn run(client: &Client, topic: &str, partitions: i32, state: &Arc<State>) -> Result<u64> {
    let producer: ThreadedProducer<Telling> = client
        .config(&[
            ("acks", "all"),
            ("enable.idempotence", "true"),
            ("max.in.flight.requests.per.connection", "5"),
            ("linger.ms", "1"),
            ("message.timeout.ms", "120000"),
            ("retry.backoff.ms", "20"),
            ("retry.backoff.max.ms", "200"),
            ("reconnect.backoff.ms", "20"),
            ("reconnect.backoff.max.ms", "200"),
            ("socket.timeout.ms", "3000"),
            ("topic.metadata.refresh.fast.interval.ms", "50"),
        ])
        .create_with_context(Telling(Arc::clone(state)))?;
    // The group begins at the start of each partition: that is committed before anybody reads.
    let committer: BaseConsumer = client.config(&[("group.id", &format!("{topic}-group"))]).create()?;
    let mut start = TopicPartitionList::new();
    for partition in 0..partitions {
        start.add_partition_offset(topic, partition, Offset::Offset(0))?;
    }
    crate::cases::until("the group's start to be committed", Duration::from_secs(20), || {
        Ok(committer.commit(&start, CommitMode::Sync).is_ok())
    })?;
    std::thread::scope(|scope| {
        let members: Vec<_> = (0..2)
            .map(|_| {
                scope.spawn(|| {
                    member(client, topic, state).inspect_err(|error| state.fail(format!("{error:#}")))
                })
            })
            .collect();
        let done = produce(&producer, topic, partitions, state).and_then(|sent| {
            finish(client, &producer, topic, &sent, state)?;
            Ok(sent.iter().sum())
        });
        state.over.store(true, Ordering::SeqCst);
        drop(members);
        done
    })
}

/// Sends until it is told to stop; how many records each partition got.
fn produce(
    producer: &ThreadedProducer<Telling>,
    topic: &str,
    partitions: i32,
    state: &State,
) -> Result<Vec<u64>> {
    let orders = orders();
    let mut sent = vec![0_u64; usize::try_from(partitions)?];
    let (mut resets, mut told) = (0_u64, Instant::now());
    loop {
        for (partition, number) in sent.iter_mut().enumerate() {
            let value = value(*number);
            let record: BaseRecord<'_, [u8], [u8]> =
                BaseRecord::to(topic).partition(i32::try_from(partition)?).payload(&value);
            match producer.send(record) {
                Ok(()) => *number += 1,
                Err((KafkaError::MessageProduction(RDKafkaErrorCode::QueueFull), _)) => {}
                Err((error, _)) => bail!("sending {partition}/{number}: {error}"),
            }
        }
        if told.elapsed() >= TELL {
            told = Instant::now();
            tell(state, resets)?;
        }
        if let Some(why) = lock(&state.failed).clone() {
            bail!("{why}");
        }
        // The pace, and what the harness says meanwhile.
        match orders.recv_timeout(ROUND) {
            Ok(order) if order == "reset" => {
                state.reset();
                resets += 1;
            }
            Ok(order) if order == "stop" => return Ok(sent),
            Ok(order) => bail!("not understood: {order}"),
            Err(RecvTimeoutError::Timeout) => {}
            Err(RecvTimeoutError::Disconnected) => bail!("the harness is gone"),
        }
    }
}

fn tell(state: &State, resets: u64) -> Result<()> {
    let stall = u64::try_from(state.stall().as_millis())?;
    let lasting = u64::try_from(state.lasting().as_millis())?;
    let (acked, read) = (state.sum(|known| known.acked), state.sum(|known| known.read));
    println!(
        "{}",
        json!({ "acked": acked, "read": read, "stall_ms": stall, "lasting_ms": lasting, "resets": resets })
    );
    Ok(())
}

/// The lines of stdin.
fn orders() -> Receiver<String> {
    let (sender, orders) = channel();
    std::thread::spawn(move || {
        for line in std::io::stdin().lock().lines() {
            let Ok(line) = line else { return };
            if sender.send(line).is_err() {
                return;
            }
        }
    });
    orders
}

/// Waits until all is acknowledged and read, and compares what is there with what was sent.
fn finish(
    client: &Client,
    producer: &ThreadedProducer<Telling>,
    topic: &str,
    sent: &[u64],
    state: &State,
) -> Result<()> {
    producer.flush(Duration::from_secs(60)).context("sending the rest")?;
    if let Some((code, reason)) = producer.client().fatal_error() {
        bail!("the producer failed for good: {code}: {reason}");
    }
    let total: u64 = sent.iter().sum();
    let acked = state.sum(|known| known.acked);
    ensure!(acked == total, "{acked} of {total} records acknowledged");
    crate::cases::until("the group to read everything", READ_ALL, || {
        if let Some(why) = lock(&state.failed).clone() {
            bail!("{why}");
        }
        Ok(state.sum(|known| known.read) == total)
    })?;
    for (partition, sent) in sent.iter().enumerate() {
        let partition = i32::try_from(partition)?;
        // A leader whose lease has just lapsed does not know the end, and librdkafka does not ask again.
        let mut end = 0;
        crate::cases::until("the end to be told", READ_ALL, || {
            end = client.end(topic, partition).map_or(0, |end| u64::try_from(end).unwrap_or(0));
            Ok(end >= *sent)
        })
        .with_context(|| format!("{partition} ends at {end}, {sent} were sent"))?;
        ensure!(end == *sent, "{partition} ends at {end}, {sent} were sent");
        let mut next = 0;
        while next < end {
            let count = usize::try_from(end - next)?.min(READ_AT_ONCE);
            for record in client.read(topic, partition, From::At(i64::try_from(next)?), count)? {
                let number = number_of(record.value.as_deref());
                ensure!(
                    number == next && record.offset == i64::try_from(next)?,
                    "record {number} is at {partition}/{}, {next} is due",
                    record.offset
                );
                next += 1;
            }
        }
    }
    Ok(())
}
