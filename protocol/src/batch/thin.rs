//! Stored batches with fewer records: what compaction makes of them.
//!
//! Records that stay are copied as they are, never built anew, so that whatever is in them stays: repeated
//! header keys, timestamps, order. The batch keeps its offsets, generation, producer and sequence, and spans
//! the offsets that it spanned before. Memory does not depend on what a batch unpacks to.

use std::io::Write;

use super::build::{BuildError, seal};
use super::compression::{Codec, Pack};
use super::reader::{BatchRecords, Limits};
use super::records::{Record, RecordFault, put_varlong, without_timestamp};
use super::{BatchHeader, CODEC, CheckedBatch, DELETE_HORIZON, HEADER_BYTES};
use crate::ids::{Generation, Offset};
use thiserror::Error;

/// Why a batch cannot be made thinner.
#[derive(Clone, Debug, PartialEq, Eq, Error)]
pub enum ThinError {
    /// Its records cannot be read.
    #[error(transparent)]
    Fault(#[from] RecordFault),
    /// What is left cannot be packed.
    #[error(transparent)]
    Build(#[from] BuildError),
}

/// Which records of a batch stay.
#[derive(Clone, Debug, Default, PartialEq, Eq)]
pub struct Selection {
    /// One bit a record, in order.
    bits: Vec<u64>,
    /// How many the batch has.
    pub records: i32,
    /// How many stay.
    pub kept: i32,
    /// Whether a record without a value stays.
    pub tombstones: bool,
    /// The greatest timestamp that stays.
    max_timestamp: i64,
}

impl Selection {
    /// Asks for each record of a batch whether it stays.
    pub fn of(
        header: &BatchHeader,
        batch: &[u8],
        limits: Limits,
        mut stays: impl FnMut(Offset, &Record<'_>) -> bool,
    ) -> Result<Selection, RecordFault> {
        let mut selection = Selection { max_timestamp: i64::MIN, ..Selection::default() };
        let mut records = BatchRecords::new(header, batch, limits)?;
        while let Some(record) = records.next() {
            let record = record?;
            let kept = stays(header.base_offset + Offset::from(record.offset_delta), &record);
            selection.push(kept);
            if kept {
                selection.tombstones |= record.value.is_none();
                let timestamp = header.timestamp(record.timestamp_delta);
                selection.max_timestamp = selection.max_timestamp.max(timestamp);
            }
        }
        Ok(selection)
    }

    /// Nothing of the batch stays; its records are not looked at.
    pub fn nothing(header: &BatchHeader) -> Selection {
        Selection { records: header.records, max_timestamp: i64::MIN, ..Selection::default() }
    }

    /// Whether nothing goes.
    pub fn is_whole(&self) -> bool {
        self.kept == self.records
    }

    fn push(&mut self, kept: bool) {
        let at = usize::try_from(self.records).unwrap_or(0);
        if at % 64 == 0 {
            self.bits.push(0);
        }
        if kept {
            self.bits[at / 64] |= 1 << (at % 64);
            self.kept += 1;
        }
        self.records += 1;
    }

    fn keeps(&self, at: usize) -> bool {
        self.bits.get(at / 64).is_some_and(|bits| bits & (1 << (at % 64)) != 0)
    }
}

/// The batch with only the selected records (at least one). With `horizon`, the time from which on its
/// tombstones may go is noted in it: it takes the place of the base timestamp.
pub fn thinned(
    header: &BatchHeader,
    batch: &[u8],
    limits: Limits,
    selection: &Selection,
    horizon: Option<i64>,
) -> Result<CheckedBatch, ThinError> {
    let codec = header.codec().ok_or(RecordFault::Codec(header.codec_bits()))?;
    let fail = |error: std::io::Error| BuildError::Pack { codec, reason: error.to_string() };
    let mut changed = *header;
    changed.records = selection.kept;
    if !header.is_log_append_time() {
        changed.max_timestamp = selection.max_timestamp;
    }
    if let Some(horizon) = horizon {
        changed.attributes |= DELETE_HORIZON;
        changed.base_timestamp = horizon;
    }
    let moved_by = header.base_timestamp.wrapping_sub(changed.base_timestamp);
    let mut behind = Vec::with_capacity(header.bytes);
    behind.resize(HEADER_BYTES, 0);
    let mut pack = Pack::new(codec, codec.default_level(), behind).map_err(fail)?;
    let mut records = BatchRecords::new(header, batch, limits)?;
    let mut at = 0;
    let mut head = Vec::with_capacity(32);
    while let Some(record) = records.next() {
        let record = record?;
        if selection.keeps(at) {
            head.clear();
            let rest = if moved_by == 0 {
                put_varlong(&mut head, length(record.body));
                record.body
            } else {
                let rest = without_timestamp(record.body)?;
                let mut fields = vec![record.body[0]];
                put_varlong(&mut fields, record.timestamp_delta.wrapping_add(moved_by));
                put_varlong(&mut head, length(&fields) + length(rest));
                head.append(&mut fields);
                rest
            };
            pack.write_all(&head).map_err(fail)?;
            pack.write_all(rest).map_err(fail)?;
        }
        at += 1;
    }
    Ok(seal(changed, pack.finish().map_err(fail)?)?)
}

/// The batch without any records: it keeps the place of its offsets, its generation and its producer's
/// sequence.
pub fn emptied(header: &BatchHeader) -> Result<CheckedBatch, BuildError> {
    let mut changed = *header;
    changed.records = 0;
    changed.attributes &= !(CODEC | DELETE_HORIZON);
    debug_assert_eq!(changed.codec(), Some(Codec::None));
    changed.base_timestamp = -1;
    seal(changed, vec![0; HEADER_BYTES])
}

/// The batch without records and without its producer: it keeps the place of its offsets and its generation
/// alone. No transaction begins or goes on with it.
pub fn placeholder(header: &BatchHeader) -> Result<CheckedBatch, BuildError> {
    emptied(&BatchHeader { producer_id: -1, producer_epoch: -1, base_sequence: -1, attributes: 0, ..*header })
}

/// A batch without records for the offsets `[base, next)`, of which nothing is left; as many as one batch can span, if that
/// is less.
pub fn filler(base: Offset, next: Offset, generation: Generation) -> Result<CheckedBatch, BuildError> {
    emptied(&BatchHeader {
        base_offset: base,
        bytes: HEADER_BYTES,
        generation: Some(generation),
        crc: 0,
        attributes: 0,
        last_offset_delta: i32::try_from(next - base - 1).unwrap_or(i32::MAX).max(0),
        base_timestamp: -1,
        max_timestamp: -1,
        producer_id: -1,
        producer_epoch: -1,
        base_sequence: -1,
        records: 0,
    })
}

fn length(bytes: &[u8]) -> i64 {
    i64::try_from(bytes.len()).unwrap_or(i64::MAX)
}

#[cfg(test)]
mod tests;
