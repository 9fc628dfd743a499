//! What a cluster says of itself: Metadata as a whole, DescribeCluster, DescribeTopicPartitions, DescribeQuorum, coordinators.

use std::collections::BTreeMap;

use anyhow::{Context, Result, bail};

use super::code;
use super::topics::PartitionSeen;
use crate::raw::conn::{Connection, key};
use crate::raw::wire::{R, W};

/// A broker in Metadata or DescribeCluster.
#[derive(Debug, Clone, PartialEq, Eq)]
pub struct BrokerSeen {
    /// Node id.
    pub id: i32,
    /// Where clients connect to.
    pub address: String,
    /// Rack, if any.
    pub rack: Option<String>,
}

/// Metadata of everything.
#[derive(Debug, Clone, PartialEq, Eq)]
pub struct ClusterSeen {
    /// Live brokers, by id.
    pub brokers: Vec<BrokerSeen>,
    /// The cluster's id.
    pub cluster: Option<String>,
    /// Topics by name, with their partitions by number.
    pub topics: BTreeMap<String, Vec<PartitionSeen>>,
}

impl ClusterSeen {
    /// How many partitions of a topic each broker leads; -1 counts those without leader.
    pub fn led(&self, topic: &str) -> BTreeMap<i32, usize> {
        let mut led = BTreeMap::new();
        for partition in self.topics.get(topic).into_iter().flatten() {
            *led.entry(partition.leader).or_default() += 1;
        }
        led
    }
}

/// A partition in DescribeTopicPartitions.
#[derive(Debug, Clone, PartialEq, Eq)]
pub struct PartitionDescribed {
    /// Error code.
    pub error: i16,
    /// Number.
    pub index: i32,
    /// Leader, -1 none.
    pub leader: i32,
    /// Leader epoch.
    pub epoch: i32,
    /// Replicas.
    pub replicas: Vec<i32>,
    /// In-sync replicas.
    pub isr: Vec<i32>,
    /// Eligible leader replicas.
    pub elr: Vec<i32>,
    /// Replicas whose broker is not there.
    pub offline: Vec<i32>,
}

/// A partition in DescribeQuorum.
#[derive(Debug, Clone, PartialEq, Eq)]
pub struct QuorumSeen {
    /// Leader.
    pub leader: i32,
    /// Voters.
    pub voters: Vec<i32>,
    /// Observers.
    pub observers: Vec<i32>,
}

fn broker(answer: &mut R) -> Result<BrokerSeen> {
    let (id, host, port, rack) = (answer.i32()?, answer.cstr()?, answer.i32()?, answer.cnstr()?);
    answer.tags()?;
    Ok(BrokerSeen { id, address: format!("{host}:{port}"), rack })
}

fn ids(answer: &mut R) -> Result<Vec<i32>> {
    answer.ceach(|id| id.i32())
}

impl Connection {
    /// Metadata version 12 of all topics.
    pub fn metadata(&mut self) -> Result<ClusterSeen> {
        let answer = self.call(key::METADATA, 12, &W::new().uvarint(0).bool(false).bool(false).tags())?;
        Self::cluster_seen(answer)
    }

    /// A request for Metadata version 12 of one topic.
    pub fn metadata_body(topic: &str) -> W {
        // No id: it goes by the name.
        W::new().carray(1).i64(0).i64(0).cnstr(Some(topic)).tags().bool(false).bool(false).tags()
    }

    /// The answer to it.
    pub fn metadata_of(&mut self, topic: &str) -> Result<ClusterSeen> {
        let answer = self.call(key::METADATA, 12, &Self::metadata_body(topic))?;
        Self::cluster_seen(answer)
    }

    fn cluster_seen(mut answer: R) -> Result<ClusterSeen> {
        answer.i32()?;
        let mut brokers = answer.ceach(broker)?;
        brokers.sort_by_key(|broker| broker.id);
        let cluster = answer.cnstr()?;
        // The controller is whoever answers first; nothing depends on it.
        answer.i32()?;
        let topics = answer.ceach(|topic| {
            let (error, name) = (topic.i16()?, topic.cnstr()?);
            topic.uuid()?;
            topic.bool()?;
            let mut partitions = topic.ceach(|partition| {
                let error = partition.i16()?;
                let (index, leader, epoch) = (partition.i32()?, partition.i32()?, partition.i32()?);
                let replicas = ids(partition)?;
                let (_isr, _offline) = (ids(partition)?, ids(partition)?);
                partition.tags()?;
                Ok((index, PartitionSeen { error, leader, epoch, replicas }))
            })?;
            topic.i32()?;
            topic.tags()?;
            // A topic of which no partition is known yet.
            if error != 0 && error != code::LEADER_NOT_AVAILABLE {
                bail!("{name:?}: error {error}");
            }
            partitions.sort_by_key(|(index, _)| *index);
            let partitions: Vec<PartitionSeen> =
                partitions.into_iter().map(|(_, partition)| partition).collect();
            Ok((name.context("a topic without a name")?, partitions))
        })?;
        answer.tags()?;
        answer.end()?;
        Ok(ClusterSeen { brokers, cluster, topics: topics.into_iter().collect() })
    }

    /// DescribeCluster version 0: the cluster's id and its live brokers.
    pub fn describe_cluster(&mut self) -> Result<(String, Vec<BrokerSeen>)> {
        let mut answer = self.call(key::DESCRIBE_CLUSTER, 0, &W::new().bool(false).tags())?;
        answer.i32()?;
        let (error, message) = (answer.i16()?, answer.cnstr()?);
        if error != 0 {
            bail!("DescribeCluster: error {error}: {message:?}");
        }
        let cluster = answer.cstr()?;
        answer.i32()?;
        let mut brokers = answer.ceach(broker)?;
        answer.i32()?;
        answer.tags()?;
        answer.end()?;
        brokers.sort_by_key(|broker| broker.id);
        Ok((cluster, brokers))
    }

    /// DescribeTopicPartitions version 0 of one topic.
    pub fn describe_partitions(&mut self, topic: &str) -> Result<Vec<PartitionDescribed>> {
        let body = W::new().carray(1).cstr(topic).tags().i32(2_000).i8(-1).tags();
        let mut answer = self.call(key::DESCRIBE_TOPIC_PARTITIONS, 0, &body)?;
        answer.i32()?;
        let mut topics = answer.ceach(|topic| {
            let error = topic.i16()?;
            topic.cnstr()?;
            topic.uuid()?;
            topic.bool()?;
            let partitions = topic.ceach(|partition| {
                let error = partition.i16()?;
                let (index, leader, epoch) = (partition.i32()?, partition.i32()?, partition.i32()?);
                let (replicas, isr, elr) = (ids(partition)?, ids(partition)?, ids(partition)?);
                // The last known ones are of interest only without an in-sync replica.
                ids(partition)?;
                let offline = ids(partition)?;
                partition.tags()?;
                Ok(PartitionDescribed { error, index, leader, epoch, replicas, isr, elr, offline })
            })?;
            topic.i32()?;
            topic.tags()?;
            if error != 0 { bail!("DescribeTopicPartitions: error {error}") } else { Ok(partitions) }
        })?;
        topics.pop().context("no topic")
    }

    /// DescribeQuorum version 0 of the metadata partition.
    pub fn quorum(&mut self) -> Result<QuorumSeen> {
        let body = W::new().carray(1).cstr("__cluster_metadata").carray(1).i32(0).tags().tags().tags();
        let mut answer = self.call(key::DESCRIBE_QUORUM, 0, &body)?;
        let error = answer.i16()?;
        if error != 0 {
            bail!("DescribeQuorum: error {error}");
        }
        let replicas = |partition: &mut R| {
            partition.ceach(|replica| {
                let id = replica.i32()?;
                replica.i64()?;
                replica.tags()?;
                Ok(id)
            })
        };
        let mut topics = answer.ceach(|topic| {
            topic.cstr()?;
            let partitions = topic.ceach(|partition| {
                partition.i32()?;
                let error = partition.i16()?;
                if error != 0 {
                    bail!("DescribeQuorum: error {error}");
                }
                let leader = partition.i32()?;
                partition.i32()?;
                partition.i64()?;
                let (voters, observers) = (replicas(partition)?, replicas(partition)?);
                partition.tags()?;
                Ok(QuorumSeen { leader, voters, observers })
            })?;
            topic.tags()?;
            Ok(partitions)
        })?;
        answer.tags()?;
        answer.end()?;
        topics.pop().and_then(|mut partitions| partitions.pop()).context("no partition")
    }

    /// FindCoordinator version 3 for a group: error and broker.
    pub fn coordinator_of(&mut self, group: &str) -> Result<(i16, i32)> {
        let mut answer = self.call(key::FIND_COORDINATOR, 3, &W::new().cstr(group).i8(0).tags())?;
        answer.i32()?;
        let error = answer.i16()?;
        answer.cnstr()?;
        let id = answer.i32()?;
        answer.cstr()?;
        answer.i32()?;
        answer.tags()?;
        answer.end()?;
        Ok((error, id))
    }

    /// CreateTopics version 5 with a replication factor and manual placement, if there is one: error and message.
    pub fn create_on(
        &mut self,
        topic: &str,
        partitions: i32,
        factor: i16,
        placed: &[Vec<i32>],
    ) -> Result<(i16, Option<String>)> {
        let (partitions, factor) = if placed.is_empty() { (partitions, factor) } else { (-1, -1) };
        let mut body = W::new().carray(1).cstr(topic).i32(partitions).i16(factor).carray(placed.len());
        for (index, replicas) in placed.iter().enumerate() {
            body = body.i32(i32::try_from(index)?).carray(replicas.len());
            for replica in replicas {
                body = body.i32(*replica);
            }
            body = body.tags();
        }
        let body = body.carray(0).tags().i32(30_000).bool(false).tags();
        let mut answer = self.call(key::CREATE_TOPICS, 5, &body)?;
        answer.i32()?;
        let mut results = answer.ceach(|result| {
            result.cstr()?;
            let told = (result.i16()?, result.cnstr()?);
            result.i32()?;
            result.i16()?;
            result.ceach(|config| {
                config.cstr()?;
                config.cnstr()?;
                config.bool()?;
                config.i8()?;
                config.bool()?;
                config.tags()
            })?;
            result.tags()?;
            Ok(told)
        })?;
        answer.tags()?;
        answer.end()?;
        results.pop().context("no topic in the answer to CreateTopics")
    }
}
