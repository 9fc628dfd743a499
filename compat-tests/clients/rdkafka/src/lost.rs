//! Acknowledgements that get lost on the way.

use std::sync::Arc;
use std::sync::atomic::{AtomicUsize, Ordering};
use std::time::Duration;

use anyhow::{Context, Result, bail, ensure};
use rdkafka::client::ClientContext;
use rdkafka::error::{KafkaError, RDKafkaErrorCode};
use rdkafka::message::DeliveryResult;
use rdkafka::producer::{BaseRecord, Producer, ProducerContext, ThreadedProducer};

use crate::cases::{same, until};
use crate::client::{Client, From};

/// Counts what became of the records. Their order is looked for in the log: librdkafka sends the requests that it
/// repeats in any order, so it may hear of a later batch first, from Apache Kafka as well.
#[derive(Default)]
struct Counts {
    acknowledged: AtomicUsize,
    failed: AtomicUsize,
}

struct Counting(Arc<Counts>);

impl ClientContext for Counting {}

impl ProducerContext for Counting {
    type DeliveryOpaque = ();

    fn delivery(&self, result: &DeliveryResult<'_>, (): ()) {
        match result {
            Ok(_) => {
                self.0.acknowledged.fetch_add(1, Ordering::SeqCst);
            }
            Err((error, _)) => {
                eprintln!("delivery: {error}");
                self.0.failed.fetch_add(1, Ordering::SeqCst);
            }
        }
    }
}

/// Every seventh acknowledgement is lost with its connection, and the broker is killed three times: each record is there once and in order.
pub fn acks(client: &Client, topic: &str) -> Result<()> {
    let count: usize = if std::env::var_os("FELIX_FULL").is_some() { 20_000 } else { 6_000 };
    client.create(topic, 1)?;
    let address = crate::ask("lossy")?["address"].as_str().context("no address")?.to_owned();
    let counts = Arc::new(Counts::default());
    let mut config = client.config(&[
        ("enable.idempotence", "true"),
        ("max.in.flight.requests.per.connection", "5"),
        ("batch.num.messages", "20"),
        ("linger.ms", "1"),
        ("retry.backoff.ms", "10"),
        ("reconnect.backoff.ms", "10"),
        ("reconnect.backoff.max.ms", "100"),
    ]);
    config.set("bootstrap.servers", address);
    let producer: ThreadedProducer<Counting> = config.create_with_context(Counting(Arc::clone(&counts)))?;
    for number in 0..count {
        let value = number.to_string();
        loop {
            let record: BaseRecord<'_, [u8], str> = BaseRecord::to(topic).partition(0).payload(&value);
            match producer.send(record) {
                Ok(()) => break,
                Err((KafkaError::MessageProduction(RDKafkaErrorCode::QueueFull), _)) => {
                    producer.flush(Duration::from_secs(30))?;
                }
                Err((error, _)) => bail!("sending {number}: {error}"),
            }
        }
        if number % (count / 3) == count / 6 {
            let due = counts.acknowledged.load(Ordering::SeqCst) + 1;
            until("records to be acknowledged", Duration::from_secs(30), || {
                Ok(counts.acknowledged.load(Ordering::SeqCst) >= due)
            })?;
            crate::ask("kill")?;
        }
    }
    producer.flush(Duration::from_secs(60))?;
    if let Some((code, reason)) = producer.client().fatal_error() {
        bail!("the producer failed for good: {code}: {reason}");
    }
    same(counts.failed.load(Ordering::SeqCst), 0).context("records that failed")?;
    same(counts.acknowledged.load(Ordering::SeqCst), count).context("records acknowledged")?;
    let lost = crate::ask("lossy")?["lost"].as_u64().unwrap_or(0);
    ensure!(lost >= 20, "only {lost} acknowledgements were lost");
    let read = client.read(topic, 0, From::Start, count)?;
    for (number, record) in read.iter().enumerate() {
        let value = String::from_utf8_lossy(record.value.as_deref().unwrap_or_default());
        ensure!(value == number.to_string(), "record {number} is {value}");
    }
    same(client.end(topic, 0)?, i64::try_from(count)?)
}
