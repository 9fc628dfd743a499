//! Metadata, topics and configurations.

use std::time::Duration;

use anyhow::{Context, Result, bail};

use super::code;
use crate::raw::conn::{Connection, key};
use crate::raw::wire::{R, W};
use crate::wait;

/// A partition in Metadata.
#[derive(Debug, Clone, PartialEq, Eq)]
pub struct PartitionSeen {
    /// Error code.
    pub error: i16,
    /// Leader, -1 none.
    pub leader: i32,
    /// Leader epoch.
    pub epoch: i32,
    /// Replicas.
    pub replicas: Vec<i32>,
}

/// A topic in Metadata.
#[derive(Debug, Clone)]
pub struct TopicSeen {
    /// Error code.
    pub error: i16,
    /// Name, null for an unknown id.
    pub name: Option<String>,
    /// Id.
    pub id: [u8; 16],
    /// Partitions.
    pub partitions: Vec<PartitionSeen>,
}

/// Reads an answer to Metadata, versions 9 to 12, up to its topics.
pub fn before_topics(answer: &mut R) -> Result<()> {
    answer.i32()?;
    answer.ceach(|broker| {
        broker.i32()?;
        broker.cstr()?;
        broker.i32()?;
        broker.cnstr()?;
        broker.tags()
    })?;
    answer.cnstr()?;
    answer.i32()?;
    Ok(())
}

impl Connection {
    /// Metadata version 12 of one topic, by name or (with a null name) by id.
    pub fn topic(&mut self, name: Option<&str>, id: [u8; 16], auto_create: bool) -> Result<TopicSeen> {
        let body = W::new().carray(1).raw(&id).cnstr(name).tags().bool(auto_create).bool(false).tags();
        let mut answer = self.call(key::METADATA, 12, &body)?;
        before_topics(&mut answer)?;
        let mut topics = answer.ceach(|topic| {
            let (error, name, id) = (topic.i16()?, topic.cnstr()?, topic.uuid()?);
            topic.bool()?;
            let partitions = topic.ceach(|partition| {
                let error = partition.i16()?;
                partition.i32()?;
                let (leader, epoch) = (partition.i32()?, partition.i32()?);
                let replicas = partition.ceach(|replica| replica.i32())?;
                partition.ceach(|replica| replica.i32())?;
                partition.ceach(|replica| replica.i32())?;
                partition.tags()?;
                Ok(PartitionSeen { error, leader, epoch, replicas })
            })?;
            topic.i32()?;
            topic.tags()?;
            Ok(TopicSeen { error, name, id, partitions })
        })?;
        answer.tags()?;
        answer.end()?;
        match topics.len() {
            1 => topics.pop().context("no topic"),
            count => bail!("{count} topics where one was asked for"),
        }
    }

    /// CreateTopics version 4: the error code.
    pub fn try_create(&mut self, topic: &str, partitions: i32, configs: &[(&str, &str)]) -> Result<i16> {
        let mut body = W::new().array(1).str(topic).i32(partitions).i16(1).array(0).array(configs.len());
        for (name, value) in configs {
            body = body.str(name).nstr(Some(value));
        }
        let mut answer = self.call(key::CREATE_TOPICS, 4, &body.i32(10_000).bool(false))?;
        answer.i32()?;
        let topics = answer.each(|topic| {
            topic.str()?;
            let error = topic.i16()?;
            topic.nstr()?;
            Ok(error)
        })?;
        answer.end()?;
        topics.first().copied().context("no topic in the answer to CreateTopics")
    }

    /// Creates a topic and waits until its partitions are led; its id.
    pub fn create(&mut self, topic: &str, partitions: i32, configs: &[(&str, &str)]) -> Result<[u8; 16]> {
        match self.try_create(topic, partitions, configs)? {
            code::NONE => self.wait_led(topic, usize::try_from(partitions)?),
            error => bail!("creating {topic}: error {error}"),
        }
    }

    /// Waits until every partition of a topic has a leader that answers; the topic's id.
    pub fn wait_led(&mut self, topic: &str, partitions: usize) -> Result<[u8; 16]> {
        wait::until(&format!("leaders of {topic}"), Duration::from_secs(20), || {
            let seen = self.topic(Some(topic), [0; 16], false)?;
            let led = seen.error == 0
                && seen.partitions.len() == partitions
                && seen.partitions.iter().all(|partition| partition.error == 0 && partition.leader >= 0);
            if !led {
                return Ok(None);
            }
            for partition in 0..i32::try_from(partitions)? {
                if self.offset_at(topic, partition, -1)?.error != 0 {
                    return Ok(None);
                }
            }
            Ok(Some(seen.id))
        })
    }

    /// DeleteTopics version 3, and waits until the name is free.
    pub fn delete(&mut self, topic: &str) -> Result<()> {
        let mut answer = self.call(key::DELETE_TOPICS, 3, &W::new().array(1).str(topic).i32(10_000))?;
        answer.i32()?;
        let topics = answer.each(|topic| {
            topic.str()?;
            topic.i16()
        })?;
        answer.end()?;
        if topics != [0] {
            bail!("deleting {topic}: {topics:?}");
        }
        wait::until(&format!("the end of {topic}"), Duration::from_secs(20), || {
            let seen = self.topic(Some(topic), [0; 16], false)?;
            Ok((seen.error == code::UNKNOWN_TOPIC_OR_PARTITION).then_some(()))
        })
    }

    /// IncrementalAlterConfigs version 0 on a topic: the error code. Operations: 0 set, 1 delete, 2 append, 3 subtract.
    pub fn alter(&mut self, topic: &str, name: &str, operation: i8, value: Option<&str>) -> Result<i16> {
        self.alter_of(2, topic, name, operation, value)
    }

    /// The same on a broker by its number, or on all of them ("").
    pub fn alter_broker(
        &mut self,
        broker: &str,
        name: &str,
        operation: i8,
        value: Option<&str>,
    ) -> Result<i16> {
        self.alter_of(4, broker, name, operation, value)
    }

    fn alter_of(
        &mut self,
        kind: i8,
        resource: &str,
        name: &str,
        operation: i8,
        value: Option<&str>,
    ) -> Result<i16> {
        let body = W::new().array(1).i8(kind).str(resource).array(1);
        let body = body.str(name).i8(operation).nstr(value).bool(false);
        let mut answer = self.call(key::INCREMENTAL_ALTER_CONFIGS, 0, &body)?;
        answer.i32()?;
        let results = answer.each(|result| {
            let error = result.i16()?;
            result.nstr()?;
            result.i8()?;
            result.str()?;
            Ok(error)
        })?;
        answer.end()?;
        results.first().copied().context("no result of IncrementalAlterConfigs")
    }

    /// DescribeConfigs version 3 of one resource (2 topic, 4 broker): (name, value, source, type) of every entry.
    #[expect(clippy::type_complexity, reason = "read in one place and taken apart in the next")]
    pub fn configs(&mut self, kind: i8, name: &str) -> Result<Vec<(String, Option<String>, i8, i8)>> {
        let body = W::new().array(1).i8(kind).str(name).i32(-1).bool(true).bool(true);
        let mut answer = self.call(key::DESCRIBE_CONFIGS, 3, &body)?;
        answer.i32()?;
        let mut results = answer.each(|result| {
            let error = result.i16()?;
            result.nstr()?;
            result.i8()?;
            result.str()?;
            let configs = result.each(|config| {
                let (name, value) = (config.str()?, config.nstr()?);
                config.bool()?;
                let source = config.i8()?;
                config.bool()?;
                config.each(|synonym| Ok((synonym.str()?, synonym.nstr()?, synonym.i8()?)))?;
                let kind = config.i8()?;
                config.nstr()?;
                Ok((name, value, source, kind))
            })?;
            if error != 0 { bail!("DescribeConfigs: error {error}") } else { Ok(configs) }
        })?;
        answer.end()?;
        results.pop().context("no result of DescribeConfigs")
    }
}
