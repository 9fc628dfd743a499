//! The table's file, byte by byte.
//!
//! A sequence of frames on a grid of 96-byte units, in zero-filled space. One frame is one commit:
//!
//! ```text
//! head unit: magic u32 "FxR1", sequence u64, count u32, CRC-32C u32 of all that follows the magic but itself; zeros
//! count units, each:
//!   kind u8 (1 row, 2 removal, 3 boot id), flags u8 (1 clean, 2 unsynced, 4 diverged), u16 zero,
//!   topic id 16 bytes, partition i32, log id 16 bytes (or the boot id), accepted u32, mark generation u32,
//!   mark i64, log start i64, synced i64; zeros
//! ```
//!
//! A frame counts as a whole or not at all. The next is begun only when the one before is durable, so a bad
//! frame behind which a good one stands was damaged later; a bad one at the end was never finished.

use felix_protocol::ids::{Generation, LogId, PartitionId, TopicId, Uuid};

use super::Replica;

/// Everything stands on a grid of so many bytes.
pub(crate) const UNIT: usize = 96;
const MAGIC: u32 = 0x4678_5231;
const CRC_AT: usize = 16;
const HEAD_FIELDS: usize = 20;

/// One change.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(crate) enum Change {
    Row(PartitionId, Replica),
    Removal(PartitionId),
    Boot(u128),
}

/// The bytes of a frame.
pub(crate) fn encode(sequence: u64, changes: &[Change]) -> Vec<u8> {
    let count = u32::try_from(changes.len()).unwrap_or(u32::MAX);
    let mut frame = Vec::with_capacity((changes.len() + 1) * UNIT);
    frame.extend_from_slice(&MAGIC.to_be_bytes());
    frame.extend_from_slice(&sequence.to_be_bytes());
    frame.extend_from_slice(&count.to_be_bytes());
    frame.resize(UNIT, 0);
    for change in changes {
        encode_change(change, &mut frame);
    }
    let crc = checksum(&frame);
    frame[CRC_AT..HEAD_FIELDS].copy_from_slice(&crc.to_be_bytes());
    frame
}

fn checksum(frame: &[u8]) -> u32 {
    crc32c::crc32c_append(crc32c::crc32c(&frame[4..CRC_AT]), &frame[HEAD_FIELDS..])
}

fn encode_change(change: &Change, frame: &mut Vec<u8>) {
    let end = frame.len() + UNIT;
    let (kind, flags) = match change {
        Change::Row(_, replica) => {
            let flags = [replica.clean, replica.unsynced, replica.diverged];
            (1, (0..).zip(flags).map(|(bit, flag)| u8::from(flag) << bit).sum())
        }
        Change::Removal(_) => (2, 0),
        Change::Boot(_) => (3, 0),
    };
    frame.extend_from_slice(&[kind, flags, 0, 0]);
    match change {
        Change::Row(partition, _) | Change::Removal(partition) => {
            frame.extend_from_slice(partition.topic.0.as_bytes());
            frame.extend_from_slice(&partition.index.to_be_bytes());
        }
        Change::Boot(_) => frame.extend_from_slice(&[0; 20]),
    }
    match change {
        Change::Row(_, replica) => {
            frame.extend_from_slice(replica.log_id.0.as_bytes());
            frame.extend_from_slice(&replica.accepted.number().to_be_bytes());
            frame.extend_from_slice(&replica.mark_generation.number().to_be_bytes());
            frame.extend_from_slice(&replica.mark.to_be_bytes());
            frame.extend_from_slice(&replica.log_start.to_be_bytes());
            frame.extend_from_slice(&replica.synced.to_be_bytes());
        }
        Change::Removal(_) => {}
        Change::Boot(id) => frame.extend_from_slice(&id.to_be_bytes()),
    }
    frame.resize(end, 0);
}

/// What stands at the beginning of `bytes`: a frame's sequence, its changes and its length.
pub(crate) fn decode(bytes: &[u8]) -> Option<(u64, Vec<Change>, usize)> {
    let head = bytes.get(..UNIT)?;
    if u32::from_be_bytes(take(head, 0)) != MAGIC {
        return None;
    }
    let sequence = u64::from_be_bytes(take(head, 4));
    let count = usize::try_from(u32::from_be_bytes(take(head, 12))).ok()?;
    let len = count.checked_add(1)?.checked_mul(UNIT)?;
    let frame = bytes.get(..len)?;
    if u32::from_be_bytes(take(head, CRC_AT)) != checksum(frame) {
        return None;
    }
    let changes = frame[UNIT..].chunks_exact(UNIT).map(decode_change).collect::<Option<_>>()?;
    Some((sequence, changes, len))
}

/// What a device writes as one.
const SECTOR: usize = 512;

/// Whether a frame at `at` that cannot be read was once written as a whole, and so damaged later: its head says
/// how long it is, and no piece of it that a device writes as one is blank. A commit that was never finished
/// leaves at least one such piece as it was: zeros.
pub(crate) fn was_whole(content: &[u8], at: usize) -> bool {
    let Some(head) = content.get(at..at + UNIT) else { return false };
    if head.iter().all(|byte| *byte == 0) {
        return false;
    }
    let count = usize::try_from(u32::from_be_bytes(take(head, 12))).unwrap_or(usize::MAX);
    let len = count.saturating_add(1).saturating_mul(UNIT);
    // One that the file is too short for was cut off by a full disk, or its head was hit itself.
    let Some(end) = at.checked_add(len).filter(|end| *end <= content.len()) else { return false };
    (at / SECTOR..end.div_ceil(SECTOR)).all(|piece| {
        let from = (piece * SECTOR).max(at);
        let to = ((piece + 1) * SECTOR).min(end);
        content[from..to].iter().any(|byte| *byte != 0)
    })
}

fn decode_change(unit: &[u8]) -> Option<Change> {
    let partition = PartitionId {
        topic: TopicId(Uuid::from_bytes(take(unit, 4))),
        index: i32::from_be_bytes(take(unit, 20)),
    };
    match unit[0] {
        1 => Some(Change::Row(
            partition,
            Replica {
                log_id: LogId(Uuid::from_bytes(take(unit, 24))),
                accepted: Generation::new(u32::from_be_bytes(take(unit, 40)))?,
                mark_generation: Generation::new(u32::from_be_bytes(take(unit, 44)))?,
                mark: i64::from_be_bytes(take(unit, 48)),
                log_start: i64::from_be_bytes(take(unit, 56)),
                synced: i64::from_be_bytes(take(unit, 64)),
                clean: unit[1] & 1 != 0,
                unsynced: unit[1] & 2 != 0,
                diverged: unit[1] & 4 != 0,
            },
        )),
        2 => Some(Change::Removal(partition)),
        3 => Some(Change::Boot(u128::from_be_bytes(take(unit, 24)))),
        _ => None,
    }
}

fn take<const N: usize>(bytes: &[u8], at: usize) -> [u8; N] {
    let mut out = [0; N];
    out.copy_from_slice(&bytes[at..at + N]);
    out
}
