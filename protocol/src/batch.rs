//! A record batch (format v2), seen in place. Records are checked on the way to the log, and copied only
//! where the batch must change.
//!
//! [`validate`](validate::validate) takes what a producer sent; [`build`] makes the broker's own batches;
//! [`scan`] goes over stored ones, [`reader`] over the records of one, [`thin`] takes records out,
//! [`control`] knows transaction markers.

use bytes::Bytes;
use thiserror::Error;

use crate::ids::{Generation, Offset};

pub mod build;
pub mod compression;
pub mod control;
pub mod reader;
pub mod records;
pub mod scan;
pub mod thin;
pub mod validate;

pub use build::BatchBuilder;
pub use compression::Codec;
pub use reader::{BatchRecords, Limits};
pub use records::{Header, Record, RecordFault};

/// Attribute bits 0 to 2.
const CODEC: i16 = 0x07;
/// Attribute bit 3.
const LOG_APPEND_TIME: i16 = 0x08;
/// Attribute bit 4.
const TRANSACTIONAL: i16 = 0x10;
/// Attribute bit 5.
const CONTROL: i16 = 0x20;
/// Attribute bit 6.
const DELETE_HORIZON: i16 = 0x40;

/// Bytes before the records of a v2 batch.
pub const HEADER_BYTES: usize = 61;
/// Bytes of the header that the broker may rewrite without touching the CRC: base offset, length,
/// leader epoch.
pub const PATCH_BYTES: usize = 16;
/// Where the bytes that the CRC covers begin.
pub const CRC_FROM: usize = 21;

/// Bytes that the length in the header does not count: base offset and the length itself.
const LENGTH_FROM: usize = 12;

/// The header of a v2 batch, decoded. Offsets of the fields: KIP-98, "message format v2".
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub struct BatchHeader {
    /// Offset of the first record.
    pub base_offset: Offset,
    /// The whole batch in bytes, the header's first 12 included.
    pub bytes: usize,
    /// Generation that stored it; `None` while the producer still owns it (wire: -1).
    pub generation: Option<Generation>,
    /// CRC-32C of everything from the attributes on.
    pub crc: u32,
    /// Codec, timestamp type, transactional and control bits.
    pub attributes: i16,
    /// Offset of the last record less the base offset.
    pub last_offset_delta: i32,
    /// Timestamp of the first record, milliseconds since 1970.
    pub base_timestamp: i64,
    /// Greatest timestamp of the batch.
    pub max_timestamp: i64,
    /// The producer, or -1.
    pub producer_id: i64,
    /// Its epoch, or -1.
    pub producer_epoch: i16,
    /// Sequence of the first record, or -1.
    pub base_sequence: i32,
    /// Number of records.
    pub records: i32,
}

/// Why bytes are not a batch.
#[derive(Clone, Copy, Debug, PartialEq, Eq, Error)]
pub enum BatchError {
    /// Fewer bytes than a header, or than the header says.
    #[error("batch is cut short: {have} of {need} bytes")]
    Short {
        /// Bytes there.
        have: usize,
        /// Bytes needed.
        need: usize,
    },
    /// A message format that is not v2.
    #[error("message format {0} is not supported, only 2")]
    Magic(i8),
    /// A length that no batch can have.
    #[error("impossible batch length {0}")]
    Length(i32),
    /// The checksum does not match the bytes.
    #[error("batch checksum is {found:#010x}, its bytes give {computed:#010x}")]
    Crc {
        /// What the header says.
        found: u32,
        /// What the bytes give.
        computed: u32,
    },
}

fn array<const N: usize>(bytes: &[u8], at: usize) -> [u8; N] {
    let mut out = [0; N];
    out.copy_from_slice(&bytes[at..at + N]);
    out
}

impl BatchHeader {
    /// Reads the header at the start of `bytes`, which may go on behind the batch or end before the
    /// batch does: only the header itself must be there.
    pub fn parse(bytes: &[u8]) -> Result<BatchHeader, BatchError> {
        // The magic byte stands at the same place in every format, so tell an old format first.
        if let Some(magic) = bytes.get(16)
            && *magic != 2
        {
            return Err(BatchError::Magic(i8::from_be_bytes([*magic])));
        }
        if bytes.len() < HEADER_BYTES {
            return Err(BatchError::Short { have: bytes.len(), need: HEADER_BYTES });
        }
        let length = i32::from_be_bytes(array(bytes, 8));
        let size = usize::try_from(length)
            .ok()
            .map(|length| length + LENGTH_FROM)
            .filter(|size| *size >= HEADER_BYTES);
        let Some(size) = size else { return Err(BatchError::Length(length)) };
        Ok(BatchHeader {
            base_offset: i64::from_be_bytes(array(bytes, 0)),
            bytes: size,
            generation: Generation::from_leader_epoch(i32::from_be_bytes(array(bytes, 12))),
            crc: u32::from_be_bytes(array(bytes, 17)),
            attributes: i16::from_be_bytes(array(bytes, 21)),
            last_offset_delta: i32::from_be_bytes(array(bytes, 23)),
            base_timestamp: i64::from_be_bytes(array(bytes, 27)),
            max_timestamp: i64::from_be_bytes(array(bytes, 35)),
            producer_id: i64::from_be_bytes(array(bytes, 43)),
            producer_epoch: i16::from_be_bytes(array(bytes, 51)),
            base_sequence: i32::from_be_bytes(array(bytes, 53)),
            records: i32::from_be_bytes(array(bytes, 57)),
        })
    }

    /// Offset of the last record (or of the last that was there before compaction).
    pub fn last_offset(&self) -> Offset {
        self.base_offset + Offset::from(self.last_offset_delta)
    }

    /// One past [`Self::last_offset`].
    pub fn next_offset(&self) -> Offset {
        self.last_offset() + 1
    }

    /// Whether a producer numbers its batches (idempotence).
    pub fn has_producer(&self) -> bool {
        self.producer_id >= 0
    }

    /// Attribute bit 4.
    pub fn is_transactional(&self) -> bool {
        self.attributes & TRANSACTIONAL != 0
    }

    /// Attribute bit 5: written by a broker, not by a producer.
    pub fn is_control(&self) -> bool {
        self.attributes & CONTROL != 0
    }

    /// Attribute bit 3: timestamps are the broker's append time.
    pub fn is_log_append_time(&self) -> bool {
        self.attributes & LOG_APPEND_TIME != 0
    }

    /// Attribute bits 0 to 2: 0 none, 1 gzip, 2 snappy, 3 lz4, 4 zstd.
    pub fn codec_bits(&self) -> i16 {
        self.attributes & CODEC
    }

    /// How the records are packed; `None` when the bits have no meaning.
    pub fn codec(&self) -> Option<Codec> {
        Codec::from_bits(self.codec_bits())
    }

    /// Attribute bit 6: the base timestamp says from when on compaction may drop the batch's tombstones (and
    /// marker).
    pub fn has_delete_horizon(&self) -> bool {
        self.attributes & DELETE_HORIZON != 0
    }

    /// The timestamp of the record with this delta.
    pub fn timestamp(&self, delta: i64) -> i64 {
        if self.is_log_append_time() { self.max_timestamp } else { self.base_timestamp.wrapping_add(delta) }
    }

    /// Marks the records as packed with `codec`.
    fn set_codec(&mut self, codec: Codec) {
        self.attributes = (self.attributes & !CODEC) | codec.bits();
    }

    /// Writes the header over the front of `batch`, which is the whole batch, with the checksum that goes
    /// with it. Both learn the checksum.
    fn write(&mut self, batch: &mut [u8]) {
        // The caller made sure that the length fits.
        let length = i32::try_from(self.bytes - LENGTH_FROM).unwrap_or(i32::MAX);
        let generation = self.generation.map_or(-1, Generation::leader_epoch);
        batch[0..8].copy_from_slice(&self.base_offset.to_be_bytes());
        batch[8..12].copy_from_slice(&length.to_be_bytes());
        batch[12..16].copy_from_slice(&generation.to_be_bytes());
        batch[16] = 2;
        batch[21..23].copy_from_slice(&self.attributes.to_be_bytes());
        batch[23..27].copy_from_slice(&self.last_offset_delta.to_be_bytes());
        batch[27..35].copy_from_slice(&self.base_timestamp.to_be_bytes());
        batch[35..43].copy_from_slice(&self.max_timestamp.to_be_bytes());
        batch[43..51].copy_from_slice(&self.producer_id.to_be_bytes());
        batch[51..53].copy_from_slice(&self.producer_epoch.to_be_bytes());
        batch[53..57].copy_from_slice(&self.base_sequence.to_be_bytes());
        batch[57..61].copy_from_slice(&self.records.to_be_bytes());
        self.crc = crc32c::crc32c(&batch[CRC_FROM..]);
        batch[17..21].copy_from_slice(&self.crc.to_be_bytes());
    }

    /// Sequence of the last record; sequences wrap from 2^31-1 to 0.
    pub fn last_sequence(&self) -> i32 {
        if self.base_sequence < 0 {
            return self.base_sequence;
        }
        // Kafka's DefaultRecordBatch.incrementSequence: both operands are non-negative, so the sum fits 32
        // bits.
        let sum = i64::from(self.base_sequence) + i64::from(self.last_offset_delta);
        i32::try_from(sum & i64::from(i32::MAX)).unwrap_or(0)
    }
}

/// Checks the CRC of one whole batch (`bytes` exactly that batch).
pub fn verify_crc(header: &BatchHeader, bytes: &[u8]) -> Result<(), BatchError> {
    if bytes.len() < header.bytes {
        return Err(BatchError::Short { have: bytes.len(), need: header.bytes });
    }
    let computed = crc32c::crc32c(&bytes[CRC_FROM..header.bytes]);
    if computed == header.crc { Ok(()) } else { Err(BatchError::Crc { found: header.crc, computed }) }
}

/// The first [`PATCH_BYTES`] of `batch` with the broker's base offset and generation in place. They lie
/// outside the CRC, so the other bytes go to the log as received.
pub fn patched_head(batch: &[u8], base_offset: Offset, generation: Generation) -> [u8; PATCH_BYTES] {
    let mut head: [u8; PATCH_BYTES] = array(batch, 0);
    head[0..8].copy_from_slice(&base_offset.to_be_bytes());
    head[12..16].copy_from_slice(&generation.leader_epoch().to_be_bytes());
    head
}

/// One batch that was validated for append: whole, of format v2, with a right CRC. Made by
/// [`validate`](validate::validate) (for producers) and by [`BatchBuilder`] (for the broker itself); the log
/// takes nothing else.
#[derive(Clone, Debug)]
pub struct CheckedBatch {
    header: BatchHeader,
    bytes: Bytes,
}

impl CheckedBatch {
    /// Checks length, format and CRC of `bytes`, which must be exactly one batch.
    pub fn check(bytes: Bytes) -> Result<CheckedBatch, BatchError> {
        let header = BatchHeader::parse(&bytes)?;
        if header.bytes != bytes.len() {
            return Err(BatchError::Short { have: bytes.len(), need: header.bytes });
        }
        verify_crc(&header, &bytes)?;
        Ok(CheckedBatch { header, bytes })
    }

    /// The header as the producer sent it.
    pub fn header(&self) -> &BatchHeader {
        &self.header
    }

    /// The bytes as the producer sent them.
    pub fn bytes(&self) -> &Bytes {
        &self.bytes
    }
}
