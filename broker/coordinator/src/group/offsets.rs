//! Committed offsets: stored, read, removed.

use std::sync::Arc;

use crate::error::GroupError;
use crate::machine::Turn;
use crate::reply::{Fetched, FetchedTopic, PartitionResults};
use crate::request::{CommitOffsets, CommitPartition, DeleteOffsets, FetchOffsets};
use crate::settings::{NAME_MAX, Settings};

use super::Group;
use super::records::{Record, StoredOffset};
use super::state::State;
use super::subscription::CONSUMER;

impl Group {
    /// Stores offsets. `existed`: whether the group was there before this request.
    pub(crate) fn commit(
        &mut self,
        request: &CommitOffsets,
        existed: bool,
        turn: &mut Turn<'_>,
    ) -> Result<PartitionResults, GroupError> {
        self.check_commit(request, existed)?;
        // A commit shows that the member lives, where Kafka lets it count.
        if matches!(self.state, State::Stable | State::PreparingRebalance) {
            self.expect_heartbeat(&request.member, turn);
        }
        let committed_at = turn.now.wall.0;
        let expires_at = request.retention_ms.map(|retention| committed_at.saturating_add(retention));
        let mut results = Vec::with_capacity(request.topics.len());
        for (topic, partitions) in &request.topics {
            let mut of_topic = Vec::with_capacity(partitions.len());
            for commit in partitions {
                let result = check_partition(topic, commit, turn.settings);
                if result.is_ok() {
                    let value = StoredOffset {
                        offset: commit.offset,
                        // The record with its own retention has no place for it, so it must not be
                        // remembered either: memory and log say the same.
                        leader_epoch: if expires_at.is_some() { -1 } else { commit.leader_epoch.max(-1) },
                        metadata: commit.metadata.clone(),
                        committed_at,
                        expires_at,
                    };
                    self.write_offset(topic, commit.partition, Some(value), turn);
                }
                of_topic.push((commit.partition, result));
            }
            results.push((topic.clone(), of_topic));
        }
        Ok(results)
    }

    fn check_commit(&self, request: &CommitOffsets, existed: bool) -> Result<(), GroupError> {
        if !existed && request.generation >= 0 {
            return Err(if request.knows_group_not_found {
                GroupError::GroupNotFound
            } else {
                GroupError::IllegalGeneration
            });
        }
        // An operator, or a consumer that assigns itself: only while nobody else is at work.
        if request.generation < 0 && self.state == State::Empty {
            return Ok(());
        }
        if request.generation < 0 && request.member.is_empty() && request.instance.is_none() {
            return Err(GroupError::UnknownMember);
        }
        self.validate(&request.member, request.instance.as_ref())?;
        if request.generation != self.generation {
            return Err(GroupError::IllegalGeneration);
        }
        if self.state == State::CompletingRebalance {
            return Err(GroupError::RebalanceInProgress);
        }
        Ok(())
    }

    fn write_offset(
        &mut self,
        topic: &Arc<str>,
        partition: i32,
        value: Option<StoredOffset>,
        turn: &mut Turn<'_>,
    ) {
        let record = Record::Offset { group: self.id.clone(), topic: topic.clone(), partition, value };
        self.write(record, turn);
    }

    /// Removes offsets that an operator names.
    pub(crate) fn delete_offsets(
        &mut self,
        request: &DeleteOffsets,
        turn: &mut Turn<'_>,
    ) -> Result<PartitionResults, GroupError> {
        // Only of consumers is known what they consume.
        if self.state != State::Empty && self.protocol_type.as_deref() != Some(CONSUMER) {
            return Err(GroupError::NonEmptyGroup);
        }
        let mut results = Vec::with_capacity(request.topics.len());
        for (topic, partitions) in &request.topics {
            let subscribed = self.is_subscribed(topic);
            let result = if subscribed { Err(GroupError::SubscribedToTopic) } else { Ok(()) };
            if !subscribed {
                for partition in partitions {
                    self.remove_offset(topic, *partition, turn);
                }
            }
            let of_topic = partitions.iter().map(|partition| (*partition, result)).collect();
            results.push((topic.clone(), of_topic));
        }
        Ok(results)
    }

    pub(super) fn remove_offset(&mut self, topic: &Arc<str>, partition: i32, turn: &mut Turn<'_>) {
        let stored = self.durable.offsets().get(topic);
        if stored.is_some_and(|partitions| partitions.contains_key(&partition)) {
            self.write_offset(topic, partition, None, turn);
        }
    }

    /// The topics do not exist any more, so their offsets mean nothing: a topic created again under the same
    /// name must not be read from them.
    pub(crate) fn forget_topics(&mut self, topics: &[Arc<str>], turn: &mut Turn<'_>) {
        for topic in topics {
            self.remove_topic(topic, turn);
        }
    }

    pub(super) fn remove_topic(&mut self, topic: &Arc<str>, turn: &mut Turn<'_>) {
        let partitions = self.durable.offsets().get(topic);
        let partitions: Vec<i32> =
            partitions.into_iter().flatten().map(|(partition, _)| *partition).collect();
        for partition in partitions {
            self.write_offset(topic, partition, None, turn);
        }
    }
}

fn check_partition(topic: &str, commit: &CommitPartition, settings: &Settings) -> Result<(), GroupError> {
    if topic.len() > NAME_MAX {
        return Err(GroupError::InvalidRequest);
    }
    let metadata = &commit.metadata;
    // As many bytes can never be more letters.
    let fits = metadata.len() <= settings.offset_metadata_max
        || metadata.encode_utf16().count() <= settings.offset_metadata_max;
    if fits && metadata.len() <= NAME_MAX { Ok(()) } else { Err(GroupError::MetadataTooLarge) }
}

/// The stored offsets of a group. A group that does not exist has none. Nothing is unstable yet: offsets are not
/// part of transactions so far, so `require_stable` changes nothing.
pub(crate) fn fetch(group: Option<&Group>, request: &FetchOffsets) -> Vec<FetchedTopic> {
    let stored = group.map(|group| group.durable().offsets());
    let fetched = |value: &StoredOffset| Fetched {
        offset: value.offset,
        leader_epoch: value.leader_epoch,
        metadata: value.metadata.clone(),
    };
    match &request.topics {
        None => stored
            .into_iter()
            .flatten()
            .map(|(topic, partitions)| FetchedTopic {
                topic: topic.clone(),
                partitions: partitions
                    .iter()
                    .map(|(index, value)| (*index, Ok(Some(fetched(value)))))
                    .collect(),
            })
            .collect(),
        Some(topics) => topics
            .iter()
            .map(|(topic, partitions)| {
                let stored = stored.and_then(|stored| stored.get(topic));
                let find = |index: &i32| stored.and_then(|stored| stored.get(index)).map(fetched);
                let partitions = partitions.iter().map(|index| (*index, Ok(find(index)))).collect();
                FetchedTopic { topic: topic.clone(), partitions }
            })
            .collect(),
    }
}
