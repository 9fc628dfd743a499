//! OffsetCommit and OffsetFetch requests up to version 10, which name topics by id (KIP-848). The crate has the
//! fields, and the responses of version 10, but its requests end at version 9.

use bytes::{Buf, Bytes};

use super::offset_commit_request::{OffsetCommitRequestPartition, OffsetCommitRequestTopic};
use super::offset_fetch_request::{OffsetFetchRequestGroup, OffsetFetchRequestTopics};
use super::{ApiKey, Decodable, OffsetCommitRequest, OffsetFetchRequest, StrBytes};
use crate::frame::RequestBody;
use crate::ids::Uuid;

/// The last version that names topics, and whose other parts version 10 shares.
const BY_NAME: i16 = 9;

/// An [`OffsetCommitRequest`] of any version; from 10 on its topics have an id and no name.
#[derive(Clone, Debug, PartialEq)]
pub struct OffsetCommit(pub OffsetCommitRequest);

/// An [`OffsetFetchRequest`] of any version; from 10 on its topics have an id and no name.
#[derive(Clone, Debug, PartialEq)]
pub struct OffsetFetch(pub OffsetFetchRequest);

impl RequestBody for OffsetCommit {
    const KEY: i16 = ApiKey::OffsetCommit as i16;

    fn take(body: &mut Bytes, version: i16) -> Result<Self, String> {
        if version <= BY_NAME {
            return OffsetCommitRequest::take(body, version).map(Self);
        }
        let mut request = OffsetCommitRequest::default();
        request.group_id = text(body)?.unwrap_or_default().into();
        request.generation_id_or_member_epoch = i32(body)?;
        request.member_id = text(body)?.unwrap_or_default();
        request.group_instance_id = text(body)?;
        request.topics = list(body, |body| {
            let mut topic = OffsetCommitRequestTopic::default();
            topic.topic_id = uuid(body)?;
            topic.partitions = list(body, |body| {
                OffsetCommitRequestPartition::decode(body, BY_NAME).map_err(|error| error.to_string())
            })?
            .unwrap_or_default();
            skip_tags(body)?;
            Ok(topic)
        })?
        .unwrap_or_default();
        skip_tags(body)?;
        Ok(Self(request))
    }
}

impl RequestBody for OffsetFetch {
    const KEY: i16 = ApiKey::OffsetFetch as i16;

    fn take(body: &mut Bytes, version: i16) -> Result<Self, String> {
        if version <= BY_NAME {
            return OffsetFetchRequest::take(body, version).map(Self);
        }
        let mut request = OffsetFetchRequest::default();
        request.groups = list(body, |body| {
            let mut group = OffsetFetchRequestGroup::default();
            group.group_id = text(body)?.unwrap_or_default().into();
            group.member_id = text(body)?;
            group.member_epoch = i32(body)?;
            group.topics = list(body, |body| {
                let mut topic = OffsetFetchRequestTopics::default();
                topic.topic_id = uuid(body)?;
                topic.partition_indexes = list(body, i32)?.unwrap_or_default();
                skip_tags(body)?;
                Ok(topic)
            })?;
            skip_tags(body)?;
            Ok(group)
        })?
        .unwrap_or_default();
        request.require_stable = part(body, 1)?.get_u8() != 0;
        skip_tags(body)?;
        Ok(Self(request))
    }
}

fn part(body: &mut Bytes, length: usize) -> Result<Bytes, String> {
    if body.len() < length {
        return Err(format!("{length} bytes are wanted, {} are left", body.len()));
    }
    Ok(body.split_to(length))
}

fn i32(body: &mut Bytes) -> Result<i32, String> {
    Ok(part(body, 4)?.get_i32())
}

fn uuid(body: &mut Bytes) -> Result<Uuid, String> {
    Ok(Uuid::from_u128(part(body, 16)?.get_u128()))
}

fn varint(body: &mut Bytes) -> Result<usize, String> {
    let mut value = 0u64;
    for shift in (0..35).step_by(7) {
        let byte = part(body, 1)?.get_u8();
        value |= u64::from(byte & 0x7f) << shift;
        if byte & 0x80 == 0 {
            return usize::try_from(value).map_err(|error| error.to_string());
        }
    }
    Err("a varint is longer than five bytes".to_owned())
}

/// A compact string; null is `None`.
fn text(body: &mut Bytes) -> Result<Option<StrBytes>, String> {
    let Some(length) = varint(body)?.checked_sub(1) else { return Ok(None) };
    StrBytes::from_utf8(part(body, length)?).map(Some).map_err(|_| "a string is not UTF-8".to_owned())
}

/// A compact array; null is `None`. No element is shorter than a byte, which bounds what is reserved.
fn list<T>(
    body: &mut Bytes,
    mut element: impl FnMut(&mut Bytes) -> Result<T, String>,
) -> Result<Option<Vec<T>>, String> {
    let Some(count) = varint(body)?.checked_sub(1) else { return Ok(None) };
    let mut elements = Vec::with_capacity(count.min(body.len()));
    for _ in 0..count {
        elements.push(element(body)?);
    }
    Ok(Some(elements))
}

/// Skips tagged fields: none is known here.
fn skip_tags(body: &mut Bytes) -> Result<(), String> {
    for _ in 0..varint(body)? {
        varint(body)?;
        let length = varint(body)?;
        part(body, length)?;
    }
    Ok(())
}

#[cfg(test)]
mod tests {
    use bytes::{BufMut, BytesMut};

    use super::*;
    use crate::frame::guard;

    const TOPIC: u128 = 0x0123_4567_89ab_cdef_0123_4567_89ab_cdef;

    /// group "g", generation 3, member "m", no instance, one topic with partition 7 at offset 42.
    fn commit() -> Bytes {
        let mut body = BytesMut::new();
        body.put_slice(&[2, b'g']);
        body.put_i32(3);
        body.put_slice(&[2, b'm', 0, 2]);
        body.put_u128(TOPIC);
        body.put_u8(2);
        body.put_i32(7);
        body.put_i64(42);
        body.put_i32(-1);
        body.put_slice(&[5, b'm', b'e', b't', b'a', 0, 0, 0]);
        body.freeze()
    }

    /// One group "g", no member, one topic with partitions 1 and 2; stable offsets wanted.
    fn fetch() -> Bytes {
        let mut body = BytesMut::new();
        body.put_slice(&[2, 2, b'g', 0]);
        body.put_i32(-1);
        body.put_u8(2);
        body.put_u128(TOPIC);
        body.put_u8(3);
        body.put_i32(1);
        body.put_i32(2);
        body.put_slice(&[0, 0, 1, 0]);
        body.freeze()
    }

    #[test]
    fn version_10_names_topics_by_id() {
        let mut body = commit();
        guard::check(ApiKey::OffsetCommit, 10, &body).unwrap();
        let OffsetCommit(request) = OffsetCommit::take(&mut body, 10).unwrap();
        assert!(body.is_empty());
        assert_eq!((request.generation_id_or_member_epoch, request.group_id.as_str()), (3, "g"));
        let topic = &request.topics[0];
        assert_eq!((topic.topic_id.as_u128(), topic.name.as_str()), (TOPIC, ""));
        assert_eq!((topic.partitions[0].partition_index, topic.partitions[0].committed_offset), (7, 42));
        assert_eq!(topic.partitions[0].committed_metadata.as_deref(), Some("meta"));

        let mut body = fetch();
        guard::check(ApiKey::OffsetFetch, 10, &body).unwrap();
        let OffsetFetch(request) = OffsetFetch::take(&mut body, 10).unwrap();
        assert!(body.is_empty() && request.require_stable);
        let topics = request.groups[0].topics.as_ref().unwrap();
        assert_eq!(topics[0].topic_id.as_u128(), TOPIC);
        assert_eq!(topics[0].partition_indexes, [1, 2]);
    }

    #[test]
    fn every_cut_is_refused_by_guard_and_decoder() {
        for at in 0..commit().len() {
            let cut = commit().slice(..at);
            assert!(guard::check(ApiKey::OffsetCommit, 10, &cut).is_err());
            assert!(OffsetCommit::take(&mut cut.clone(), 10).is_err());
        }
        for at in 0..fetch().len() {
            let cut = fetch().slice(..at);
            assert!(guard::check(ApiKey::OffsetFetch, 10, &cut).is_err());
            assert!(OffsetFetch::take(&mut cut.clone(), 10).is_err());
        }
    }
}
