//! OffsetCommitValue.
//!
//! ```text
//! v0  offset i64, metadata string, commit timestamp i64
//! v1  offset i64, metadata string, commit timestamp i64, expire timestamp i64
//! v2  offset i64, metadata string, commit timestamp i64
//! v3  offset i64, leader epoch i32, metadata string, commit timestamp i64
//! v4  as v3, flexible (compact string, tagged fields at the end)
//! ```

use bytes::Bytes;

use super::wire::{Reader, Writer};
use super::{RecordError, StoredOffset};

/// The value, or the version that is not known.
pub(super) fn decode(bytes: &[u8]) -> Result<Result<StoredOffset, i16>, RecordError> {
    let mut reader = Reader::new(bytes);
    let version = reader.i16()?;
    if !(0..=4).contains(&version) {
        return Ok(Err(version));
    }
    let offset = reader.i64()?;
    let leader_epoch = if version >= 3 { reader.i32()? } else { -1 };
    let metadata = if version >= 4 { reader.compact_string()? } else { reader.string()? };
    let committed_at = reader.i64()?;
    // -1 stands for "as the broker's retention says".
    let expires_at = if version == 1 { Some(reader.i64()?).filter(|at| *at != -1) } else { None };
    if version >= 4 {
        reader.skip_tags()?;
    }
    Ok(Ok(StoredOffset { offset, leader_epoch, metadata, committed_at, expires_at }))
}

pub(super) fn encode(value: &StoredOffset) -> Bytes {
    let mut writer = Writer::default();
    match value.expires_at {
        None => {
            writer.i16(3);
            writer.i64(value.offset);
            writer.i32(value.leader_epoch);
            writer.string(&value.metadata);
            writer.i64(value.committed_at);
        }
        // Only v1 has a field for it. No client that names a retention knows of leader epochs.
        Some(expires_at) => {
            writer.i16(1);
            writer.i64(value.offset);
            writer.string(&value.metadata);
            writer.i64(value.committed_at);
            writer.i64(expires_at);
        }
    }
    writer.finish()
}
