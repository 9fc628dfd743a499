//! Who leads, and where replicas are, as an operator wants it.

use std::ops::Range;

use anyhow::{Result, ensure};

use crate::raw::conn::{Connection, key};
use crate::raw::wire::{R, W};

impl Connection {
    /// AlterPartitionReassignments version 0: moves the partitions below `count` of a topic to these replicas, or cancels that. Fails
    /// unless all are taken.
    pub fn reassign(&mut self, topic: &str, count: i32, replicas: Option<&[i32]>) -> Result<()> {
        self.reassign_these(topic, 0..count, replicas)
    }

    /// The same of one partition.
    pub fn reassign_one(&mut self, topic: &str, partition: i32, replicas: &[i32]) -> Result<()> {
        self.reassign_these(topic, partition..partition + 1, Some(replicas))
    }

    fn reassign_these(&mut self, topic: &str, these: Range<i32>, replicas: Option<&[i32]>) -> Result<()> {
        let mut body = W::new().i32(10_000).carray(1).cstr(topic).carray(these.len());
        for partition in these {
            body = match replicas {
                None => body.i32(partition).uvarint(0),
                Some(ids) => ids.iter().fold(body.i32(partition).carray(ids.len()), |body, id| body.i32(*id)),
            };
            body = body.tags();
        }
        let mut answer = self.call(key::ALTER_PARTITION_REASSIGNMENTS, 0, &body.tags().tags())?;
        answer.i32()?;
        ensure!(answer.i16()? == 0, "the reassignment as a whole was refused");
        answer.cnstr()?;
        let codes = answer.ceach(|topic| {
            topic.cstr()?;
            let codes = topic.ceach(|partition| {
                partition.i32()?;
                let told = (partition.i16()?, partition.cnstr()?);
                partition.tags()?;
                Ok(told)
            })?;
            topic.tags()?;
            Ok(codes)
        })?;
        let refused = codes.iter().flatten().find(|(code, _)| *code != 0);
        ensure!(refused.is_none(), "moving {topic} to {replicas:?}: {refused:?}");
        Ok(())
    }

    /// ListPartitionReassignments version 0: how many partitions are being moved.
    pub fn reassigning(&mut self) -> Result<usize> {
        let mut answer =
            self.call(key::LIST_PARTITION_REASSIGNMENTS, 0, &W::new().i32(10_000).uvarint(0).tags())?;
        answer.i32()?;
        ensure!(answer.i16()? == 0, "listing what is moved was refused");
        answer.cnstr()?;
        let ids = |partition: &mut R| partition.ceach(|id| id.i32());
        let topics = answer.ceach(|topic| {
            topic.cstr()?;
            let partitions = topic.ceach(|partition| {
                partition.i32()?;
                for _ in ["replicas", "adding", "removing"] {
                    ids(partition)?;
                }
                partition.tags()
            })?;
            topic.tags()?;
            Ok(partitions.len())
        })?;
        Ok(topics.into_iter().sum())
    }

    /// ElectLeaders version 2 by preference for one partition: its error code.
    pub fn elect_preferred(&mut self, topic: &str, partition: i32) -> Result<i16> {
        let body = W::new().i8(0).carray(1).cstr(topic).carray(1).i32(partition).tags();
        let mut answer = self.call(key::ELECT_LEADERS, 2, &body.i32(20_000).tags())?;
        answer.i32()?;
        let error = answer.i16()?;
        let codes = partition_codes(&mut answer)?;
        answer.tags()?;
        answer.end()?;
        Ok(codes.into_iter().flatten().next().unwrap_or(error))
    }
}

/// The error codes of an answer's partitions, topic by topic, as ElectLeaders and AlterPartitionReassignments write them.
pub fn partition_codes(answer: &mut R) -> Result<Vec<Vec<i16>>> {
    answer.ceach(|topic| {
        topic.cstr()?;
        let codes = topic.ceach(|partition| {
            partition.i32()?;
            let code = partition.i16()?;
            partition.cnstr()?;
            partition.tags()?;
            Ok(code)
        })?;
        topic.tags()?;
        Ok(codes)
    })
}
