//! Topics: which names are legal, and the decisions that create, delete and widen them.
//!
//! A topic is created by writing its key and its name; partitions follow, written by the controller. The
//! caller has resolved Kafka's "-1: the broker's default" and checked the configs against their table.

use std::collections::{BTreeMap, BTreeSet};

use felix_protocol::ids::{BrokerId, TopicId};
use thiserror::Error;

use crate::config::broker::OffsetsConfig;
use crate::decision::Decision;
use crate::keys::{Key, folded};
use crate::state::{Overrides, Topic, TopicName};
use crate::view::{TopicView, View};

/// The longest name: with a partition's suffix it still is a file name.
pub const MAX_NAME_BYTES: usize = 249;
/// How many partitions one request may create, as in Kafka.
pub const MAX_PARTITIONS_PER_REQUEST: i32 = 10_000;
/// Where groups keep their offsets.
pub const CONSUMER_OFFSETS: &str = "__consumer_offsets";
/// Where transactions keep their state.
pub const TRANSACTION_STATE: &str = "__transaction_state";
/// Where share groups keep their state.
pub const SHARE_GROUP_STATE: &str = "__share_group_state";
/// Kafka's own metadata log: here there is none, and nobody may pretend there were.
pub const CLUSTER_METADATA: &str = "__cluster_metadata";

/// Whether the broker itself owns a topic of that name.
pub fn is_internal(name: &str) -> bool {
    matches!(name, CONSUMER_OFFSETS | TRANSACTION_STATE | SHARE_GROUP_STATE)
}

/// Why a name is no topic's name.
#[derive(Clone, Debug, PartialEq, Eq, Error)]
pub enum NameError {
    /// Nothing there.
    #[error("the empty string is not a topic name")]
    Empty,
    /// `.` and `..` mean folders.
    #[error("'{0}' is not a topic name")]
    Dots(String),
    /// Too long.
    #[error("a topic name has at most {MAX_NAME_BYTES} letters, this one has {0}")]
    Long(usize),
    /// A letter outside the alphabet.
    #[error("'{0}' contains letters other than ASCII alphanumerics, '.', '_' and '-'")]
    Letters(String),
}

/// Kafka's rules for names.
pub fn check_name(name: &str) -> Result<(), NameError> {
    if name.is_empty() {
        return Err(NameError::Empty);
    }
    if name == "." || name == ".." {
        return Err(NameError::Dots(name.to_owned()));
    }
    if name.len() > MAX_NAME_BYTES {
        return Err(NameError::Long(name.len()));
    }
    if !name.bytes().all(|byte| byte.is_ascii_alphanumeric() || matches!(byte, b'.' | b'_' | b'-')) {
        return Err(NameError::Letters(name.to_owned()));
    }
    Ok(())
}

/// A topic to be created.
#[derive(Clone, Debug, Default, PartialEq, Eq)]
pub struct NewTopic {
    /// Its name.
    pub name: String,
    /// How many partitions; not looked at where there are assignments.
    pub partitions: i32,
    /// How many replicas each; not looked at where there are assignments.
    pub replication_factor: i16,
    /// Which brokers hold which partition, if the client said so.
    pub assignments: Option<BTreeMap<i32, Vec<BrokerId>>>,
    /// Its configs.
    pub overrides: Overrides,
}

/// `__consumer_offsets` as brokers make it when the first group is looked for. It begins with one replica, whatever factor is
/// configured: the first group is mostly there before the last broker, and a topic that must wait for brokers lets nobody
/// consume. Others are added as brokers join.
pub fn consumer_offsets(config: &OffsetsConfig) -> NewTopic {
    NewTopic {
        name: CONSUMER_OFFSETS.to_owned(),
        partitions: config.topic_partitions,
        replication_factor: 1,
        assignments: None,
        overrides: Overrides::from([
            ("cleanup.policy".to_owned(), "compact".to_owned()),
            ("compression.type".to_owned(), "producer".to_owned()),
            ("segment.bytes".to_owned(), config.topic_segment_bytes.to_string()),
        ]),
    }
}

/// Why a topic is not created.
#[derive(Clone, Debug, PartialEq, Eq, Error)]
pub enum CreateRefused {
    /// Not a legal name.
    #[error(transparent)]
    Name(#[from] NameError),
    /// The name is kept for Kafka's own metadata.
    #[error("topic '{0}' cannot be created by clients")]
    Reserved(String),
    /// It is there.
    #[error("topic '{0}' already exists")]
    Exists(String),
    /// Another one differs only in `.` and `_`.
    #[error("topic '{name}' collides with the existing topic '{with}'")]
    Collides {
        /// The new name.
        name: String,
        /// The one that is there.
        with: String,
    },
    /// A number of partitions that cannot be.
    #[error("the number of partitions must be larger than 0, not {0}")]
    Partitions(i32),
    /// More than one request may create.
    #[error("one request may create at most {MAX_PARTITIONS_PER_REQUEST} partitions, not {0}")]
    TooManyPartitions(i64),
    /// A number of replicas that cannot be.
    #[error(
        "the replication factor must be larger than 0 and at most the {available} live broker(s), not {asked}"
    )]
    ReplicationFactor {
        /// Asked for.
        asked: i16,
        /// Live brokers.
        available: usize,
    },
    /// An explicit assignment that makes no sense.
    #[error("{0}")]
    Assignment(#[from] AssignmentError),
}

/// What is wrong with an explicit assignment.
#[derive(Clone, Debug, PartialEq, Eq, Error)]
pub enum AssignmentError {
    /// Partition numbers with holes.
    #[error("assigned partitions must be numbered from {first} without holes; {missing} is missing")]
    Holes {
        /// The first number expected.
        first: i32,
        /// The first one absent.
        missing: i32,
    },
    /// A partition without replicas.
    #[error("partition {0} is assigned to no broker")]
    Empty(i32),
    /// A broker twice.
    #[error("partition {partition} is assigned to broker {broker} twice")]
    Twice {
        /// The partition.
        partition: i32,
        /// The broker.
        broker: BrokerId,
    },
    /// A broker that is not there.
    #[error("partition {partition} is assigned to broker {broker}, which is not registered")]
    Unknown {
        /// The partition.
        partition: i32,
        /// The broker.
        broker: BrokerId,
    },
    /// Factors that differ.
    #[error("partition {partition} has {has} replica(s) where the others have {others}")]
    Uneven {
        /// The partition.
        partition: i32,
        /// Its replicas.
        has: usize,
        /// The others'.
        others: usize,
    },
    /// A list whose length is not the number of new partitions.
    #[error("{given} assignment(s) for {wanted} new partition(s)")]
    Count {
        /// Given.
        given: usize,
        /// Needed.
        wanted: i32,
    },
}

/// A topic's shape, once created.
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct CreatedTopic {
    /// Its id.
    pub id: TopicId,
    /// Its name.
    pub name: String,
    /// Its partitions.
    pub partitions: i32,
    /// Replicas of each.
    pub replication_factor: i16,
}

/// Creates a topic under `id`: its key and its name, if both are free.
pub fn create(view: &View, id: TopicId, new: &NewTopic) -> Result<(Decision, CreatedTopic), CreateRefused> {
    check_name(&new.name)?;
    if new.name == CLUSTER_METADATA {
        return Err(CreateRefused::Reserved(new.name.clone()));
    }
    if view.topic_named(&new.name).is_some() {
        return Err(CreateRefused::Exists(new.name.clone()));
    }
    let name_key = Key::TopicName(folded(&new.name));
    if let Some(other) = colliding(view, &new.name) {
        return Err(CreateRefused::Collides { name: new.name.clone(), with: other.name.to_string() });
    }
    let (partitions, replication_factor) = match &new.assignments {
        Some(assignments) => {
            let factor = check_assignments(view, 0, assignments, None)?;
            let count = i32::try_from(assignments.len()).unwrap_or(i32::MAX);
            (count, i16::try_from(factor).unwrap_or(i16::MAX))
        }
        None => (new.partitions, new.replication_factor),
    };
    if partitions <= 0 {
        return Err(CreateRefused::Partitions(partitions));
    }
    if partitions > MAX_PARTITIONS_PER_REQUEST {
        return Err(CreateRefused::TooManyPartitions(i64::from(partitions)));
    }
    let available = view.brokers().count();
    let enough = usize::try_from(replication_factor).is_ok_and(|asked| asked > 0 && asked <= available);
    if !enough && new.assignments.is_none() {
        return Err(CreateRefused::ReplicationFactor { asked: replication_factor, available });
    }
    let value = Topic {
        name: new.name.clone(),
        partitions,
        replication_factor,
        overrides: new.overrides.clone(),
        assignments: new.assignments.clone().unwrap_or_default(),
    };
    let decision = Decision::new()
        .absent(name_key.clone())
        .absent(Key::Topic(id))
        .put(name_key, &TopicName { name: new.name.clone(), topic: id })
        .put(Key::Topic(id), &value);
    Ok((decision, CreatedTopic { id, name: new.name.clone(), partitions, replication_factor }))
}

/// The topic whose name differs from `name` only in `.` and `_`.
fn colliding<'a>(view: &'a View, name: &str) -> Option<&'a TopicView> {
    let wanted = folded(name);
    if view.folded_name(&wanted) == crate::state::Revision::ABSENT {
        return None;
    }
    view.topics().map(AsRef::as_ref).find(|topic| folded(&topic.name) == wanted)
}

/// Checks explicit assignments of partitions numbered from `first` on; returns the number of replicas.
fn check_assignments(
    view: &View,
    first: i32,
    assignments: &BTreeMap<i32, Vec<BrokerId>>,
    factor: Option<usize>,
) -> Result<usize, AssignmentError> {
    let mut factor = factor;
    for (expected, (partition, replicas)) in (first..).zip(assignments) {
        let partition = *partition;
        if partition != expected {
            return Err(AssignmentError::Holes { first, missing: expected });
        }
        if replicas.is_empty() {
            return Err(AssignmentError::Empty(partition));
        }
        let mut seen = BTreeSet::new();
        for broker in replicas.iter().copied() {
            if !seen.insert(broker) {
                return Err(AssignmentError::Twice { partition, broker });
            }
            if view.broker(broker).is_none() {
                return Err(AssignmentError::Unknown { partition, broker });
            }
        }
        let others = *factor.get_or_insert(replicas.len());
        if others != replicas.len() {
            return Err(AssignmentError::Uneven { partition, has: replicas.len(), others });
        }
    }
    Ok(factor.unwrap_or(0))
}

/// Which topic a client means.
#[derive(Clone, Debug, PartialEq, Eq)]
pub enum TopicRef {
    /// By name.
    Name(String),
    /// By id.
    Id(TopicId),
}

impl TopicRef {
    /// The topic, if it is there.
    pub fn find<'a>(&self, view: &'a View) -> Option<&'a TopicView> {
        match self {
            TopicRef::Name(name) => view.topic_named(name).map(AsRef::as_ref),
            TopicRef::Id(id) => view.topic(id).map(AsRef::as_ref),
        }
    }
}

/// A topic that is gone.
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct DeletedTopic {
    /// Its id.
    pub id: TopicId,
    /// The name it had.
    pub name: String,
}

/// There is no such topic.
#[derive(Clone, Copy, Debug, PartialEq, Eq, Error)]
#[error("there is no such topic")]
pub struct UnknownTopic;

/// Deletes a topic: its key and its name. Leaders stop; a controller removes the partitions.
pub fn delete(view: &View, which: &TopicRef) -> Result<(Decision, DeletedTopic), UnknownTopic> {
    let topic = which.find(view).ok_or(UnknownTopic)?;
    let name_key = Key::TopicName(folded(&topic.name));
    let decision = Decision::new()
        .at(Key::Topic(topic.id), topic.revision)
        .at(name_key.clone(), view.folded_name(&folded(&topic.name)))
        .delete(Key::Topic(topic.id))
        .delete(name_key);
    Ok((decision, DeletedTopic { id: topic.id, name: topic.name.to_string() }))
}

/// Why a topic gets no more partitions.
#[derive(Clone, Debug, PartialEq, Eq, Error)]
pub enum WidenRefused {
    /// There is no such topic.
    #[error(transparent)]
    Unknown(#[from] UnknownTopic),
    /// Partitions never become fewer.
    #[error("the topic has {current} partition(s) already; {asked} is not more")]
    NotMore {
        /// It has.
        current: i32,
        /// Asked for.
        asked: i32,
    },
    /// More than one request may create.
    #[error("one request may create at most {MAX_PARTITIONS_PER_REQUEST} partitions, not {0}")]
    TooManyPartitions(i64),
    /// An explicit assignment that makes no sense.
    #[error("{0}")]
    Assignment(#[from] AssignmentError),
    /// Too few brokers for the topic's replication factor.
    #[error("the topic has {asked} replicas a partition, but only {available} broker(s) are live")]
    ReplicationFactor {
        /// The topic's.
        asked: i16,
        /// Live brokers.
        available: usize,
    },
}

/// Gives a topic `total` partitions.
pub fn widen(
    view: &View,
    name: &str,
    total: i32,
    assignments: Option<&[Vec<BrokerId>]>,
) -> Result<(Decision, TopicId), WidenRefused> {
    let topic = view.topic_named(name).ok_or(UnknownTopic)?;
    let current = topic.partition_count;
    if total <= current {
        return Err(WidenRefused::NotMore { current, asked: total });
    }
    let wanted = total - current;
    if wanted > MAX_PARTITIONS_PER_REQUEST {
        return Err(WidenRefused::TooManyPartitions(i64::from(wanted)));
    }
    let factor = view.replication_factor(&topic.id);
    let mut value = topic.value();
    value.partitions = total;
    match assignments {
        Some(given) => {
            if i32::try_from(given.len()) != Ok(wanted) {
                return Err(AssignmentError::Count { given: given.len(), wanted }.into());
            }
            let numbered = (current..).zip(given.iter().cloned()).collect();
            check_assignments(view, current, &numbered, usize::try_from(factor).ok())?;
            value.assignments.extend(numbered);
        }
        None => {
            let available = view.brokers().count();
            if usize::try_from(factor).is_ok_and(|asked| asked > available) {
                return Err(WidenRefused::ReplicationFactor { asked: factor, available });
            }
        }
    }
    let key = Key::Topic(topic.id);
    Ok((Decision::new().at(key.clone(), topic.revision).put(key, &value), topic.id))
}

#[cfg(test)]
mod tests;
