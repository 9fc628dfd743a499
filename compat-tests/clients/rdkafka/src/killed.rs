//! kill -9 at random moments under load: what was acknowledged is compared with what is there.

use std::collections::BTreeMap;
use std::sync::atomic::{AtomicBool, Ordering};
use std::sync::{Arc, Mutex};
use std::time::{Duration, Instant};

use anyhow::{Context, Result, bail, ensure};
use rdkafka::client::ClientContext;
use rdkafka::consumer::{BaseConsumer, CommitMode, Consumer};
use rdkafka::error::{KafkaError, RDKafkaErrorCode};
use rdkafka::message::{DeliveryResult, Message};
use rdkafka::producer::{BaseRecord, Producer, ProducerContext, ThreadedProducer};
use rdkafka::topic_partition_list::Offset;

use crate::cases::until;
use crate::client::{Client, From};
use crate::group::lock;

const PARTITIONS: i32 = 3;
/// How long the short form goes on killing.
const SHORT: Duration = Duration::from_secs(20);
/// Kills of the full form.
const KILLS: u32 = 50;

/// Records that are read within the patience of a client.
const READ_AT_ONCE: usize = 100_000;

/// What one producer was told: offset by partition and number.
#[derive(Default)]
struct Told {
    acknowledged: Mutex<BTreeMap<(i32, u64), i64>>,
    failed: Mutex<Vec<String>>,
}

struct Telling(Arc<Told>);

impl ClientContext for Telling {}

impl ProducerContext for Telling {
    type DeliveryOpaque = ();

    fn delivery(&self, result: &DeliveryResult<'_>, (): ()) {
        match result {
            Ok(message) => {
                let number = message.payload().map_or(u64::MAX, number_of);
                lock(&self.0.acknowledged).insert((message.partition(), number), message.offset());
            }
            Err((error, _)) => lock(&self.0.failed).push(error.to_string()),
        }
    }
}

/// A value begins with its number, and the rest follows from it, so that every byte can be checked.
fn value(number: u64) -> Vec<u8> {
    let length = 20 + usize::try_from(number * 37 % 900).unwrap_or(0);
    let mut value = number.to_be_bytes().to_vec();
    value.extend((0..length).map(|at| number.wrapping_mul(31).wrapping_add(at as u64).to_be_bytes()[7]));
    value
}

fn number_of(value: &[u8]) -> u64 {
    value.first_chunk::<8>().map_or(u64::MAX, |first| u64::from_be_bytes(*first))
}

/// A producer that sends numbered records to all partitions in turn until it is told to stop, and how many it sent.
fn load(producer: &ThreadedProducer<Telling>, topic: &str, stop: &AtomicBool) -> Result<u64> {
    let mut number = 0;
    while !stop.load(Ordering::SeqCst) {
        let value = value(number);
        let partition = i32::try_from(number % 3)?;
        let record: BaseRecord<'_, [u8], [u8]> = BaseRecord::to(topic).partition(partition).payload(&value);
        match producer.send(record) {
            Ok(()) => number += 1,
            // Full while the broker is away: as much as is kept is enough.
            Err((KafkaError::MessageProduction(RDKafkaErrorCode::QueueFull), _)) => {
                producer.flush(Duration::from_millis(200)).or_else(|error| match error {
                    KafkaError::Flush(RDKafkaErrorCode::OperationTimedOut) => Ok(()),
                    other => Err(other),
                })?;
            }
            Err((error, _)) => bail!("sending {number}: {error}"),
        }
    }
    Ok(number)
}

/// `acks` as librdkafka names it; an idempotent producer asks for all.
pub fn kills(client: &Client, topic: &str, acks: &str) -> Result<()> {
    let idempotent = acks == "all";
    let full = std::env::var_os("FELIX_FULL").is_some();
    client.create_with(topic, PARTITIONS, &[("segment.bytes", "1048576"), ("retention.ms", "-1")])?;
    let told = Arc::new(Told::default());
    let config = client.config(&[
        ("acks", acks),
        ("enable.idempotence", if idempotent { "true" } else { "false" }),
        ("max.in.flight.requests.per.connection", "5"),
        ("linger.ms", "2"),
        ("queue.buffering.max.messages", "5000"),
        ("message.timeout.ms", "300000"),
        ("retry.backoff.ms", "10"),
        ("reconnect.backoff.ms", "10"),
        ("reconnect.backoff.max.ms", "100"),
    ]);
    let producer: ThreadedProducer<Telling> = config.create_with_context(Telling(Arc::clone(&told)))?;
    let group = format!("{topic}-group");
    let committer: BaseConsumer = client.config(&[("group.id", &group)]).create()?;
    let stop = AtomicBool::new(false);
    let begun = Instant::now();
    let mut dice = std::process::id();
    let (mut killed, mut committed) = (0, 0);
    let sent = std::thread::scope(|scope| {
        let loading = scope.spawn(|| load(&producer, topic, &stop));
        let killing = (|| -> Result<()> {
            while if full { killed < KILLS } else { begun.elapsed() < SHORT } {
                // Between one acknowledgement and some hundreds: anywhere in a flush, a roll, or the reading at the start.
                dice = dice.wrapping_mul(1_664_525).wrapping_add(1_013_904_223);
                let due = lock(&told.acknowledged).len() + 1 + usize::try_from((dice >> 16) % 2_000)?;
                until("records to be acknowledged", Duration::from_secs(30), || {
                    ensure!(!loading.is_finished(), "the producer has ended");
                    Ok(lock(&told.acknowledged).len() >= due)
                })?;
                if dice >> 8 & 1 == 0 {
                    let mut place = rdkafka::TopicPartitionList::new();
                    place.add_partition_offset(topic, 0, Offset::Offset(i64::from(killed) + 1))?;
                    committer.commit(&place, CommitMode::Sync).context("committing an offset")?;
                    committed = i64::from(killed) + 1;
                }
                crate::ask("kill")?;
                killed += 1;
                // What was committed is there at once.
                let found = client.committed(&group, topic, 0)?;
                let found = found.filter(|offset| *offset >= 0).unwrap_or(0);
                ensure!(found == committed, "committed {committed}, found {found} after kill {killed}");
            }
            Ok(())
        })();
        stop.store(true, Ordering::SeqCst);
        let sent = loading.join().map_err(|_| anyhow::anyhow!("the producer panicked"))?;
        killing.and(sent)
    })?;
    producer.flush(Duration::from_secs(60))?;
    if let Some((code, reason)) = producer.client().fatal_error() {
        bail!("the producer failed for good: {code}: {reason}");
    }
    crate::ask("kill")?;
    eprintln!("{killed} kills, {sent} records sent with acks={acks}");
    compared(client, topic, sent, &told, idempotent)
}

/// Every record that was acknowledged is at its offset, byte for byte. With idempotence every record that was sent is there, once and in
/// order; without it one may be there again behind, where a retry followed an acknowledgement that was lost.
fn compared(client: &Client, topic: &str, sent: u64, told: &Told, idempotent: bool) -> Result<()> {
    let failed = lock(&told.failed);
    ensure!(failed.is_empty(), "{} records failed, the first: {}", failed.len(), failed[0]);
    let acknowledged = lock(&told.acknowledged);
    ensure!(acknowledged.len() as u64 == sent, "{} of {sent} records acknowledged", acknowledged.len());
    for partition in 0..PARTITIONS {
        let end = client.end(topic, partition)?;
        let mut read = Vec::new();
        while let Some(left) = usize::try_from(end)?.checked_sub(read.len()).filter(|left| *left > 0) {
            let from = From::At(i64::try_from(read.len())?);
            read.extend(client.read(topic, partition, from, left.min(READ_AT_ONCE))?);
        }
        let mut found: BTreeMap<i64, u64> = BTreeMap::new();
        let mut before = None;
        for record in &read {
            let bytes = record.value.as_deref().unwrap_or_default();
            let number = number_of(bytes);
            ensure!(
                bytes == value(number),
                "record {number} at {partition}/{} is not as sent",
                record.offset
            );
            if idempotent {
                let due = before.map_or(u64::try_from(partition)?, |before: u64| before + 3);
                ensure!(
                    number == due,
                    "record {number} where {due} is due, at {partition}/{}",
                    record.offset
                );
            }
            before = Some(number);
            found.insert(record.offset, number);
        }
        for ((_, number), offset) in acknowledged.range((partition, 0)..=(partition, u64::MAX)) {
            let there = found.get(offset);
            ensure!(
                there == Some(number),
                "record {number} was acknowledged at {partition}/{offset}: {there:?}"
            );
        }
    }
    Ok(())
}
