//! Makes batches: for what the broker itself writes, for compaction, and for tests.

use std::io::Write;

use bytes::Bytes;
use thiserror::Error;

use super::compression::{Codec, Pack};
use super::records::{Header, put_varlong, varlong_bytes};
use super::{BatchHeader, CONTROL, CheckedBatch, HEADER_BYTES, LOG_APPEND_TIME, TRANSACTIONAL};
use crate::ids::{Generation, Offset};

/// Why no batch can be made.
#[derive(Clone, Debug, PartialEq, Eq, Error)]
pub enum BuildError {
    /// No records.
    #[error("a batch needs a record")]
    Empty,
    /// More bytes or offsets than the format can number.
    #[error("too much for one batch")]
    TooLarge,
    /// The codec failed.
    #[error("{codec} cannot pack the batch: {reason}")]
    Pack {
        /// Which codec.
        codec: Codec,
        /// Its words.
        reason: String,
    },
}

/// A batch in the making. Records are added in the order of their offsets.
#[derive(Clone, Debug)]
pub struct BatchBuilder {
    header: BatchHeader,
    level: i32,
    records: Vec<u8>,
    /// The offset delta of the next record that is pushed without one.
    next_delta: i32,
    too_large: bool,
}

impl Default for BatchBuilder {
    fn default() -> Self {
        BatchBuilder::new()
    }
}

impl BatchBuilder {
    /// An empty batch: base offset 0, no producer, uncompressed, create times.
    pub fn new() -> BatchBuilder {
        let header = BatchHeader {
            base_offset: 0,
            bytes: 0,
            generation: None,
            crc: 0,
            attributes: 0,
            last_offset_delta: -1,
            base_timestamp: -1,
            max_timestamp: -1,
            producer_id: -1,
            producer_epoch: -1,
            base_sequence: -1,
            records: 0,
        };
        BatchBuilder { header, level: 0, records: Vec::new(), next_delta: 0, too_large: false }
    }

    /// Sets the base offset. The log gives its own on append; compaction keeps the one there is.
    #[must_use]
    pub fn base_offset(mut self, offset: Offset) -> BatchBuilder {
        self.header.base_offset = offset;
        self
    }

    /// Sets the generation (leader epoch).
    #[must_use]
    pub fn generation(mut self, generation: Generation) -> BatchBuilder {
        self.header.generation = Some(generation);
        self
    }

    /// Sets producer, its epoch and the sequence of the first record.
    #[must_use]
    pub fn producer(mut self, id: i64, epoch: i16, base_sequence: i32) -> BatchBuilder {
        self.header.producer_id = id;
        self.header.producer_epoch = epoch;
        self.header.base_sequence = base_sequence;
        self
    }

    /// Marks the records as part of a transaction.
    #[must_use]
    pub fn transactional(mut self) -> BatchBuilder {
        self.header.attributes |= TRANSACTIONAL;
        self
    }

    /// Marks the batch as one that only brokers write.
    #[must_use]
    pub fn control(mut self) -> BatchBuilder {
        self.header.attributes |= CONTROL;
        self
    }

    /// Says that the timestamps are the broker's append time.
    #[must_use]
    pub fn append_time(mut self) -> BatchBuilder {
        self.header.attributes |= LOG_APPEND_TIME;
        self
    }

    /// Packs the records with `codec` at `level` (see [`Codec::default_level`]).
    #[must_use]
    pub fn codec(mut self, codec: Codec, level: i32) -> BatchBuilder {
        self.header.set_codec(codec);
        self.level = level;
        self
    }

    /// Adds a record at the next offset.
    pub fn push(&mut self, timestamp: i64, key: Option<&[u8]>, value: Option<&[u8]>) {
        self.push_at(self.next_delta, timestamp, key, value, std::iter::empty());
    }

    /// Adds a record at `offset_delta`, with headers. Deltas must rise.
    pub fn push_at<'a>(
        &mut self,
        offset_delta: i32,
        timestamp: i64,
        key: Option<&[u8]>,
        value: Option<&[u8]>,
        headers: impl Iterator<Item = Header<'a>> + Clone,
    ) {
        debug_assert!(offset_delta > self.header.last_offset_delta, "offset deltas must rise");
        if self.header.records == 0 {
            self.header.base_timestamp = timestamp;
            self.header.max_timestamp = timestamp;
        }
        self.header.max_timestamp = self.header.max_timestamp.max(timestamp);
        self.header.last_offset_delta = offset_delta;
        self.header.records += 1;
        let timestamp_delta = timestamp.wrapping_sub(self.header.base_timestamp);

        let count = headers.clone().count();
        let size = 1
            + varlong_bytes(timestamp_delta)
            + varlong_bytes(i64::from(offset_delta))
            + nullable_bytes(key)
            + nullable_bytes(value)
            + varlong_bytes(signed(count))
            + headers.clone().map(|h| nullable_bytes(Some(h.key)) + nullable_bytes(h.value)).sum::<usize>();
        let out = &mut self.records;
        put_varlong(out, signed(size));
        out.push(0);
        put_varlong(out, timestamp_delta);
        put_varlong(out, i64::from(offset_delta));
        put_nullable(out, key);
        put_nullable(out, value);
        put_varlong(out, signed(count));
        for header in headers {
            put_nullable(out, Some(header.key));
            put_nullable(out, header.value);
        }
        match offset_delta.checked_add(1) {
            Some(next) => self.next_delta = next,
            None => self.too_large = true,
        }
        self.too_large |= self.records.len() > i32::MAX as usize - HEADER_BYTES;
    }

    /// Makes the batch span offsets up to `delta`, though its last record may stand before (compaction keeps
    /// the range of the batch it thins out).
    pub fn span(&mut self, delta: i32) {
        debug_assert!(delta >= self.header.last_offset_delta, "a batch spans its records");
        self.header.last_offset_delta = delta;
    }

    /// Records so far.
    pub fn len(&self) -> usize {
        usize::try_from(self.header.records).unwrap_or(0)
    }

    /// Whether there are none.
    pub fn is_empty(&self) -> bool {
        self.header.records == 0
    }

    /// What the batch would take uncompressed.
    pub fn bytes(&self) -> usize {
        HEADER_BYTES + self.records.len()
    }

    /// The batch.
    pub fn build(self) -> Result<CheckedBatch, BuildError> {
        if self.is_empty() {
            return Err(BuildError::Empty);
        }
        if self.too_large {
            return Err(BuildError::TooLarge);
        }
        let codec = self.header.codec().unwrap_or(Codec::None);
        let fail = |error: std::io::Error| BuildError::Pack { codec, reason: error.to_string() };
        let mut behind = Vec::with_capacity(self.bytes());
        behind.resize(HEADER_BYTES, 0);
        let mut pack = Pack::new(codec, self.level, behind).map_err(fail)?;
        pack.write_all(&self.records).map_err(fail)?;
        seal(self.header, pack.finish().map_err(fail)?)
    }
}

/// Writes `header` into the place that is free for it at the front of `bytes`, with the right length and
/// checksum.
pub(super) fn seal(mut header: BatchHeader, mut bytes: Vec<u8>) -> Result<CheckedBatch, BuildError> {
    if bytes.len() < HEADER_BYTES || i32::try_from(bytes.len()).is_err() {
        return Err(BuildError::TooLarge);
    }
    header.bytes = bytes.len();
    header.write(&mut bytes);
    Ok(CheckedBatch { header, bytes: Bytes::from(bytes) })
}

fn signed(length: usize) -> i64 {
    i64::try_from(length).unwrap_or(i64::MAX)
}

fn nullable_bytes(bytes: Option<&[u8]>) -> usize {
    bytes.map_or(1, |bytes| varlong_bytes(signed(bytes.len())) + bytes.len())
}

fn put_nullable(out: &mut Vec<u8>, bytes: Option<&[u8]>) {
    match bytes {
        None => put_varlong(out, -1),
        Some(bytes) => {
            put_varlong(out, signed(bytes.len()));
            out.extend_from_slice(bytes);
        }
    }
}

#[cfg(test)]
mod tests;
