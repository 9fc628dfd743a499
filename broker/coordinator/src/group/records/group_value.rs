//! GroupMetadataValue.
//!
//! ```text
//! protocol type string, group generation i32, protocol nullable string, leader nullable string,
//! since v2: state timestamp i64,
//! members: member id string, since v3: instance id nullable string, client id string, client host string,
//!          since v1: rebalance timeout i32, session timeout i32, subscription bytes, assignment bytes
//! v4  as v3, flexible
//! ```

use bytes::Bytes;

use super::wire::{Reader, Writer};
use super::{RecordError, StoredGroup, StoredMember};

/// The value, or the version that is not known.
pub(super) fn decode(bytes: &[u8]) -> Result<Result<StoredGroup, i16>, RecordError> {
    let mut reader = Reader::new(bytes);
    let version = reader.i16()?;
    if !(0..=4).contains(&version) {
        return Ok(Err(version));
    }
    let flexible = version >= 4;
    let protocol_type = if flexible { reader.compact_string()? } else { reader.string()? };
    let generation = reader.i32()?;
    let mut nullable = || if flexible { reader.compact_nullable_string() } else { reader.nullable_string() };
    let protocol = nullable()?;
    let leader = nullable()?;
    let since = if version >= 2 { reader.i64()? } else { -1 };
    let count = if flexible { reader.compact_array_len()? } else { reader.array_len()? };
    // The count is only believed as far as bytes follow: each member takes some.
    let mut members = Vec::new();
    for _ in 0..count {
        members.push(if flexible { flexible_member(&mut reader)? } else { member(&mut reader, version)? });
    }
    if flexible {
        reader.skip_tags()?;
    }
    Ok(Ok(StoredGroup { protocol_type, generation, protocol, leader, since, members }))
}

fn member(reader: &mut Reader<'_>, version: i16) -> Result<StoredMember, RecordError> {
    let member = reader.string()?;
    let instance = if version >= 3 { reader.nullable_string()? } else { None };
    let client_id = reader.string()?;
    let client_host = reader.string()?;
    let rebalance_timeout_ms = if version >= 1 { reader.i32()? } else { -1 };
    let session_timeout_ms = reader.i32()?;
    let subscription = reader.bytes()?;
    let assignment = reader.bytes()?;
    Ok(StoredMember {
        member,
        instance,
        client_id,
        client_host,
        // Before v1 a member had one timeout for both.
        rebalance_timeout_ms: if rebalance_timeout_ms == -1 {
            session_timeout_ms
        } else {
            rebalance_timeout_ms
        },
        session_timeout_ms,
        subscription,
        assignment,
    })
}

fn flexible_member(reader: &mut Reader<'_>) -> Result<StoredMember, RecordError> {
    let member = StoredMember {
        member: reader.compact_string()?,
        instance: reader.compact_nullable_string()?,
        client_id: reader.compact_string()?,
        client_host: reader.compact_string()?,
        rebalance_timeout_ms: reader.i32()?,
        session_timeout_ms: reader.i32()?,
        subscription: reader.compact_bytes()?,
        assignment: reader.compact_bytes()?,
    };
    reader.skip_tags()?;
    Ok(member)
}

pub(super) fn encode(value: &StoredGroup) -> Bytes {
    let mut writer = Writer::default();
    writer.i16(3);
    writer.string(&value.protocol_type);
    writer.i32(value.generation);
    writer.nullable_string(value.protocol.as_deref());
    writer.nullable_string(value.leader.as_deref());
    writer.i64(value.since);
    writer.count(value.members.len());
    for member in &value.members {
        writer.string(&member.member);
        writer.nullable_string(member.instance.as_deref());
        writer.string(&member.client_id);
        writer.string(&member.client_host);
        writer.i32(member.rebalance_timeout_ms);
        writer.i32(member.session_timeout_ms);
        writer.bytes(&member.subscription);
        writer.bytes(&member.assignment);
    }
    writer.finish()
}
