//! What the cases need of rdkafka.

use std::time::{Duration, Instant};

use anyhow::{Context, Result, bail, ensure};
use rdkafka::admin::{AdminClient, AdminOptions, NewTopic, TopicReplication};
use rdkafka::client::DefaultClientContext;
use rdkafka::consumer::{BaseConsumer, Consumer};
use rdkafka::error::{KafkaError, RDKafkaErrorCode};
use rdkafka::message::{BorrowedMessage, Header, Headers, Message, OwnedHeaders};
use rdkafka::producer::{FutureProducer, FutureRecord};
use rdkafka::topic_partition_list::Offset;
use rdkafka::{ClientConfig, TopicPartitionList};
use tokio::runtime::Runtime;

/// How long anything may take that a case waits for.
pub const PATIENCE: Duration = Duration::from_secs(15);

/// What a case sends and reads.
#[derive(Debug, Clone, Default, PartialEq)]
pub struct Record {
    pub key: Option<Vec<u8>>,
    pub value: Option<Vec<u8>>,
    pub headers: Vec<(String, Option<Vec<u8>>)>,
    pub timestamp: Option<i64>,
    pub partition: i32,
    pub offset: i64,
}

impl Record {
    pub fn value(value: impl Into<Vec<u8>>) -> Self {
        Self { value: Some(value.into()), ..Self::default() }
    }

    pub fn of(message: &BorrowedMessage<'_>) -> Self {
        let headers = message.headers().map(|headers| {
            headers.iter().map(|header| (header.key.to_owned(), header.value.map(<[u8]>::to_vec))).collect()
        });
        Self {
            key: message.key().map(<[u8]>::to_vec),
            value: message.payload().map(<[u8]>::to_vec),
            headers: headers.unwrap_or_default(),
            timestamp: message.timestamp().to_millis(),
            partition: message.partition(),
            offset: message.offset(),
        }
    }
}

/// Where a reader starts.
#[derive(Debug, Clone, Copy)]
pub enum From {
    Start,
    End,
    At(i64),
}

/// What a producer is told beyond the address.
pub type Settings<'a> = &'a [(&'a str, &'a str)];

/// How most cases send: the way is not what they are about.
pub const PLAIN: Settings<'static> = &[("linger.ms", "50")];

pub struct Client {
    bootstrap: String,
    runtime: Runtime,
    admin: AdminClient<DefaultClientContext>,
}

impl Client {
    pub fn new(bootstrap: &str) -> Result<Self> {
        let runtime = tokio::runtime::Builder::new_current_thread().enable_time().build()?;
        let admin = ClientConfig::new().set("bootstrap.servers", bootstrap).create()?;
        Ok(Self { bootstrap: bootstrap.to_owned(), runtime, admin })
    }

    pub fn config(&self, settings: Settings<'_>) -> ClientConfig {
        let mut config = ClientConfig::new();
        config.set("bootstrap.servers", &self.bootstrap);
        for (name, value) in settings {
            config.set(*name, *value);
        }
        config
    }

    /// Answers whether the topic is new.
    pub fn create(&self, topic: &str, partitions: i32) -> Result<bool> {
        self.create_with(topic, partitions, &[])
    }

    /// The same with settings of the topic.
    pub fn create_with(&self, topic: &str, partitions: i32, settings: Settings<'_>) -> Result<bool> {
        let new = NewTopic::new(topic, partitions, TopicReplication::Fixed(1));
        let topics = [settings.iter().fold(new, |new, (name, value)| new.set(name, value))];
        let results = self.runtime.block_on(self.admin.create_topics(&topics, &AdminOptions::new()))?;
        match results.first().context("no answer for the topic")? {
            Ok(_) => Ok(true),
            Err((_, RDKafkaErrorCode::TopicAlreadyExists)) => Ok(false),
            Err((_, code)) => bail!("creating the topic: {code}"),
        }
    }

    pub fn delete(&self, topic: &str) -> Result<()> {
        let results = self.runtime.block_on(self.admin.delete_topics(&[topic], &AdminOptions::new()))?;
        match results.first().context("no answer for the topic")? {
            Ok(_) => Ok(()),
            Err((_, code)) => bail!("deleting the topic: {code}"),
        }
    }

    /// The number of partitions, if there is such a topic.
    pub fn partitions(&self, topic: &str) -> Result<Option<usize>> {
        let metadata = self.admin.inner().fetch_metadata(None, PATIENCE)?;
        let found = metadata.topics().iter().find(|found| found.name() == topic);
        Ok(found.map(|found| found.partitions().len()))
    }

    /// Sends all records, to a partition or where their keys belong; answers their offsets. `Ok(None)`: refused as too large.
    pub fn try_produce(
        &self,
        topic: &str,
        records: &[Record],
        partition: Option<i32>,
        settings: Settings<'_>,
    ) -> Result<Option<Vec<i64>>> {
        let producer: FutureProducer = self.config(settings).create()?;
        let mut deliveries = Vec::new();
        for record in records {
            let mut sent: FutureRecord<'_, [u8], [u8]> = FutureRecord::to(topic);
            sent.key = record.key.as_deref();
            sent.payload = record.value.as_deref();
            sent.partition = partition;
            sent.timestamp = record.timestamp;
            if !record.headers.is_empty() {
                sent.headers =
                    Some(record.headers.iter().fold(OwnedHeaders::new(), |headers, (key, value)| {
                        headers.insert(Header { key, value: value.as_deref() })
                    }));
            }
            deliveries.push(producer.send_result(sent).map_err(|(error, _)| error)?);
        }
        let mut offsets = Vec::new();
        for delivery in deliveries {
            let bounded = async { tokio::time::timeout(PATIENCE, delivery).await };
            let delivered = self.runtime.block_on(bounded).context("no delivery report in time")?;
            match delivered.context("the producer is gone")? {
                Ok(delivery) => offsets.push(delivery.offset),
                Err((KafkaError::MessageProduction(RDKafkaErrorCode::MessageSizeTooLarge), _)) => {
                    return Ok(None);
                }
                Err((error, _)) => return Err(error.into()),
            }
        }
        Ok(Some(offsets))
    }

    pub fn produce(
        &self,
        topic: &str,
        records: &[Record],
        partition: Option<i32>,
        settings: Settings<'_>,
    ) -> Result<Vec<i64>> {
        self.try_produce(topic, records, partition, settings)?.context("refused as too large")
    }

    fn reader(&self) -> Result<BaseConsumer> {
        let settings =
            [("group.id", "unused"), ("enable.auto.commit", "false"), ("enable.partition.eof", "true")];
        Ok(self.config(&settings).create()?)
    }

    pub fn read(&self, topic: &str, partition: i32, from: From, count: usize) -> Result<Vec<Record>> {
        self.read_when_placed(topic, partition, from, count, None)
    }

    /// `placed` is called when the consumer stands at the end, from where it is to read.
    pub fn read_when_placed(
        &self,
        topic: &str,
        partition: i32,
        from: From,
        count: usize,
        mut placed: Option<&dyn Fn() -> Result<()>>,
    ) -> Result<Vec<Record>> {
        let consumer = self.reader()?;
        let mut place = TopicPartitionList::new();
        let offset = match from {
            From::Start => Offset::Beginning,
            From::End => Offset::End,
            From::At(offset) => Offset::Offset(offset),
        };
        place.add_partition_offset(topic, partition, offset)?;
        consumer.assign(&place)?;
        let mut records = Vec::new();
        let begun = Instant::now();
        while records.len() < count {
            ensure!(begun.elapsed() < PATIENCE, "read {} of {count} records in time", records.len());
            match consumer.poll(Duration::from_millis(200)) {
                Some(Ok(message)) => {
                    ensure!(placed.is_none(), "a record before the end was reached");
                    records.push(Record::of(&message));
                }
                Some(Err(KafkaError::PartitionEOF(_))) => placed.take().map_or(Ok(()), |placed| placed())?,
                Some(Err(error)) => return Err(error.into()),
                None => {}
            }
        }
        Ok(records)
    }

    pub fn end(&self, topic: &str, partition: i32) -> Result<i64> {
        Ok(self.reader()?.fetch_watermarks(topic, partition, PATIENCE)?.1)
    }

    /// The first offset at or after a time, if there is one.
    pub fn offset_at(&self, topic: &str, partition: i32, timestamp: i64) -> Result<Option<i64>> {
        let mut place = TopicPartitionList::new();
        place.add_partition_offset(topic, partition, Offset::Offset(timestamp))?;
        let found = self.reader()?.offsets_for_times(place, PATIENCE)?;
        match found.elements().first().context("no answer for the partition")?.offset() {
            Offset::Offset(offset) => Ok(Some(offset)),
            Offset::End => Ok(None),
            other => bail!("an odd offset: {other:?}"),
        }
    }

    pub fn committed(&self, group: &str, topic: &str, partition: i32) -> Result<Option<i64>> {
        let consumer: BaseConsumer = self.config(&[("group.id", group)]).create()?;
        let mut place = TopicPartitionList::new();
        place.add_partition(topic, partition);
        let found = consumer.committed_offsets(place, PATIENCE)?;
        Ok(found.elements().first().context("no answer for the partition")?.offset().to_raw())
    }
}
