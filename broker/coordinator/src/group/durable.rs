//! What the log says of a group. Only records change it: while a shard loads, those read from the log, and
//! afterwards those that its own answers propose.

use std::collections::BTreeMap;
use std::sync::Arc;

use super::records::{Record, StoredGroup, StoredOffset};

/// The durable part of a group.
#[derive(Clone, Debug, Default, PartialEq, Eq)]
pub(crate) struct Durable {
    metadata: Option<StoredGroup>,
    offsets: BTreeMap<Arc<str>, BTreeMap<i32, StoredOffset>>,
}

impl Durable {
    /// The only way in. The record must be about this group.
    pub(crate) fn apply(&mut self, record: Record) {
        match record {
            Record::Offset { topic, partition, value: Some(value), .. } => {
                self.offsets.entry(topic).or_default().insert(partition, value);
            }
            Record::Offset { topic, partition, value: None, .. } => {
                if let Some(partitions) = self.offsets.get_mut(&topic) {
                    partitions.remove(&partition);
                    if partitions.is_empty() {
                        self.offsets.remove(&topic);
                    }
                }
            }
            Record::Group { value, .. } => self.metadata = value,
            Record::Unknown { .. } => {}
        }
    }

    /// The generation stored last.
    pub(crate) fn metadata(&self) -> Option<&StoredGroup> {
        self.metadata.as_ref()
    }

    /// The offsets stored, by topic and partition.
    pub(crate) fn offsets(&self) -> &BTreeMap<Arc<str>, BTreeMap<i32, StoredOffset>> {
        &self.offsets
    }

    /// Whether the log has nothing of this group.
    pub(crate) fn is_empty(&self) -> bool {
        self.metadata.is_none() && self.offsets.is_empty()
    }
}
