//! The records of `__consumer_offsets`, exactly Kafka's: kafka-consumer-groups, Burrow, kminion and Kafka's own
//! console formatters read them.
//!
//! Offsets are written as OffsetCommitValue v3 (v1 when the commit names its own retention, as Kafka does): v4
//! broke Burrow and kminion. Groups are written as GroupMetadataValue v3. Everything that Kafka has ever
//! written for classic groups is read; records of other kinds are skipped.

mod group_value;
mod offset_value;
mod wire;

use std::sync::Arc;

use bytes::Bytes;
use felix_protocol::ids::Offset;
use thiserror::Error;

use self::wire::{Reader, Writer};

/// A record as it stands in the log: a key, and a value or a tombstone.
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct RawRecord {
    /// The key.
    pub key: Bytes,
    /// The value; `None` is a tombstone.
    pub value: Option<Bytes>,
}

/// A record understood.
#[derive(Clone, Debug, PartialEq, Eq)]
pub enum Record {
    /// An offset, or its removal.
    Offset {
        /// The group.
        group: Arc<str>,
        /// The topic.
        topic: Arc<str>,
        /// The partition.
        partition: i32,
        /// What was stored; `None` removes it.
        value: Option<StoredOffset>,
    },
    /// A group, or its removal.
    Group {
        /// The group.
        group: Arc<str>,
        /// Its latest generation; `None` removes it.
        value: Option<StoredGroup>,
    },
    /// A key or value of a kind or version that is not known here (KIP-848 groups, share groups, or newer):
    /// skipped, and left in the log.
    Unknown {
        /// The version that the key, or the value, begins with.
        version: i16,
    },
}

/// A committed offset.
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct StoredOffset {
    /// The next record to read.
    pub offset: Offset,
    /// The leader epoch of the last record read, -1 if unknown.
    pub leader_epoch: i32,
    /// What the client stored with it.
    pub metadata: Arc<str>,
    /// When it was committed, milliseconds since 1970.
    pub committed_at: i64,
    /// When it goes whatever the group does; `None` for the broker's retention.
    pub expires_at: Option<i64>,
}

/// One generation of a group, with its members and their assignments.
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct StoredGroup {
    /// What its members are; empty for none.
    pub protocol_type: Arc<str>,
    /// The group generation.
    pub generation: i32,
    /// What they agreed on.
    pub protocol: Option<Arc<str>>,
    /// Who made the assignment.
    pub leader: Option<Arc<str>>,
    /// Since when the group is in its state, milliseconds since 1970; -1 if unknown.
    pub since: i64,
    /// The members.
    pub members: Vec<StoredMember>,
}

/// A member of a stored generation.
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct StoredMember {
    /// Its id.
    pub member: Arc<str>,
    /// Its instance id.
    pub instance: Option<Arc<str>>,
    /// Its client id.
    pub client_id: Arc<str>,
    /// Where it connects from.
    pub client_host: Arc<str>,
    /// How long it may take to join again.
    pub rebalance_timeout_ms: i32,
    /// How long it may be silent.
    pub session_timeout_ms: i32,
    /// Its metadata for the protocol agreed on.
    pub subscription: Bytes,
    /// Its assignment.
    pub assignment: Bytes,
}

/// Why the bytes of a record make no sense.
#[derive(Clone, Copy, Debug, PartialEq, Eq, Error)]
pub enum RecordError {
    /// They end too early, or a length in them is impossible.
    #[error("the record ends early, or a length in it is impossible, at byte {at}")]
    Malformed {
        /// Where.
        at: usize,
    },
    /// A string is not UTF-8.
    #[error("a string of the record is not UTF-8, at byte {at}")]
    NotText {
        /// Where.
        at: usize,
    },
    /// A field that must not be null is.
    #[error("a field of the record is null, at byte {at}")]
    Null {
        /// Where.
        at: usize,
    },
}

/// Key versions: Kafka tells the kinds of records apart by them.
const OFFSET_KEY_OLD: i16 = 0;
const OFFSET_KEY: i16 = 1;
const GROUP_KEY: i16 = 2;

impl Record {
    /// Understands a record. Unknown kinds and versions are no error.
    pub fn decode(key: &[u8], value: Option<&[u8]>) -> Result<Record, RecordError> {
        let mut reader = Reader::new(key);
        let version = reader.i16()?;
        match version {
            OFFSET_KEY_OLD | OFFSET_KEY => {
                let group = reader.string()?;
                let topic = reader.string()?;
                let partition = reader.i32()?;
                let value = match value.map(offset_value::decode).transpose()? {
                    None => None,
                    Some(Ok(value)) => Some(value),
                    Some(Err(version)) => return Ok(Record::Unknown { version }),
                };
                Ok(Record::Offset { group, topic, partition, value })
            }
            GROUP_KEY => {
                let group = reader.string()?;
                let value = match value.map(group_value::decode).transpose()? {
                    None => None,
                    Some(Ok(value)) => Some(value),
                    Some(Err(version)) => return Ok(Record::Unknown { version }),
                };
                Ok(Record::Group { group, value })
            }
            version => Ok(Record::Unknown { version }),
        }
    }

    /// The bytes to store. Names must fit [`NAME_MAX`](crate::settings::NAME_MAX), which requests are checked
    /// for.
    pub(crate) fn encode(&self) -> RawRecord {
        let mut key = Writer::default();
        let value = match self {
            Record::Offset { group, topic, partition, value } => {
                key.i16(OFFSET_KEY);
                key.string(group);
                key.string(topic);
                key.i32(*partition);
                value.as_ref().map(offset_value::encode)
            }
            Record::Group { group, value } => {
                key.i16(GROUP_KEY);
                key.string(group);
                value.as_ref().map(group_value::encode)
            }
            Record::Unknown { .. } => unreachable!("records of unknown kinds are never written"),
        };
        RawRecord { key: key.finish(), value }
    }
}

#[cfg(test)]
mod tests;
