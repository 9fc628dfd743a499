//! What a producer may append, and how its batch looks when it is stored.
//!
//! The checks and their order follow Apache Kafka (`ProduceRequest.validateRecords`, `UnifiedLog` and
//! `LogValidator`), with these differences, all on the strict side:
//! - offset deltas must be dense from 0 in every batch; Kafka does not look at those of an uncompressed batch,
//!   and repairs those of a compressed one;
//! - each record must fill its announced size, also in compressed batches, where Kafka skips that check;
//! - bytes behind the batch that are not a whole batch are refused, where Kafka drops them;
//! - a batch that calls its timestamps append times on a topic that keeps create times has its real create
//!   times checked, and is stored with those.

use std::fmt;
use std::io::Write;

use bytes::{Bytes, BytesMut};
use thiserror::Error;

use super::build::seal;
use super::compression::{Codec, Pack};
use super::reader::{BatchRecords, Limits};
use super::records::{Record, RecordFault, put_varlong};
use super::{BatchError, BatchHeader, CheckedBatch, HEADER_BYTES, LOG_APPEND_TIME, verify_crc};
use crate::time::WallTime;

/// The wire's "no timestamp".
const NO_TIMESTAMP: i64 = -1;
/// Refused records that are listed one by one. Each takes a place in the response, and a batch can have
/// millions.
const LISTED_ERRORS: usize = 10_000;

/// What the topic asks of a batch.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub struct Rules {
    /// The largest batch, as the client packed it and as it is stored (`max.message.bytes`).
    pub max_message_bytes: usize,
    /// What it may unpack to.
    pub limits: Limits,
    /// Whether every record needs a key (`cleanup.policy` has `compact`).
    pub keys: bool,
    /// Whose clock the timestamps are (`message.timestamp.type`).
    pub timestamps: Timestamps,
    /// How the batch is stored (`compression.type`).
    pub storage: Storage,
    /// Whether the request's version knows zstd (Produce from 7 on).
    pub zstd: bool,
}

/// Whose clock a topic's timestamps are.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum Timestamps {
    /// The producer's, within bounds around the broker's.
    Create {
        /// How far behind (`message.timestamp.before.max.ms`).
        before_max_ms: i64,
        /// How far ahead (`message.timestamp.after.max.ms`).
        after_max_ms: i64,
    },
    /// The broker's.
    Append,
}

/// In which compression a topic stores its batches.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum Storage {
    /// As the producer sent them.
    AsProduced,
    /// Always so.
    Packed {
        /// With this codec (or none).
        codec: Codec,
        /// At this level.
        level: i32,
    },
}

/// A batch that may be appended.
#[derive(Clone, Debug)]
pub struct Validated {
    /// The batch as it is to be stored.
    pub batch: CheckedBatch,
    /// The time that all its records got, when the topic keeps append times.
    pub appended_at: Option<WallTime>,
    /// Whether it was packed anew because the topic asks for another codec.
    pub repacked: bool,
}

/// Why a batch may not be appended.
#[derive(Clone, Debug, PartialEq, Eq, Error)]
pub enum Rejection {
    /// No batch at all.
    #[error("there is no batch")]
    Empty,
    /// A message format before v2.
    #[error("message format {0} is not supported, only 2")]
    Magic(i8),
    /// Fewer bytes than the batch says it has.
    #[error("the batch is cut short")]
    Cut,
    /// A length that no batch can have.
    #[error("impossible batch length {0}")]
    Length(i32),
    /// More than one batch, or bytes behind it.
    #[error("a partition takes exactly one batch a request, {0} bytes follow the first")]
    Several(usize),
    /// Zstd in a request whose version does not know it.
    #[error("this version of the request does not know zstd")]
    ZstdUnknown,
    /// A base offset: only brokers give offsets.
    #[error("the base offset must be 0, not {0}")]
    BaseOffset(i64),
    /// Larger than the topic allows.
    #[error("a batch of {bytes} bytes, at most {max} are allowed")]
    TooLarge {
        /// Its size.
        bytes: usize,
        /// The limit.
        max: usize,
    },
    /// The checksum does not match.
    #[error("the batch's checksum does not match its bytes")]
    Crc,
    /// The number of records does not match the offsets.
    #[error("{records} records for {offsets} offsets")]
    Count {
        /// Records, as the header says.
        records: i32,
        /// Offsets, as the header says.
        offsets: i64,
    },
    /// A control batch: only brokers write these.
    #[error("clients must not write control records")]
    Control,
    /// A producer id without a sequence.
    #[error("producer {producer_id} sends sequence {sequence}")]
    Sequence {
        /// The producer.
        producer_id: i64,
        /// Its sequence.
        sequence: i32,
    },
    /// Bytes that are not records.
    #[error("record {index}: {fault}")]
    Fault {
        /// Where in the batch.
        index: i32,
        /// What is wrong.
        fault: RecordFault,
    },
    /// An offset delta that leaves a gap or goes back.
    #[error("record {index} has offset delta {delta}")]
    OffsetDelta {
        /// Where in the batch.
        index: i32,
        /// The delta, which should equal the index.
        delta: i32,
    },
    /// Some records may not be in this topic.
    #[error("{} records are refused, the first because {}", .0.count, .0.first())]
    Records(Refused),
    /// The codec that the topic asks for failed.
    #[error("cannot pack the batch with {codec}: {reason}")]
    Pack {
        /// Which codec.
        codec: Codec,
        /// Its words.
        reason: String,
    },
}

/// The records that may not be in the topic.
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct Refused {
    /// One by one, in order; the first ten thousand of them.
    pub errors: Vec<RecordError>,
    /// How many there are in all.
    pub count: usize,
    /// Whether a timestamp is among the reasons. Kafka then answers INVALID_TIMESTAMP, else INVALID_RECORD.
    pub timestamp: bool,
}

impl Refused {
    fn first(&self) -> String {
        self.errors.first().map_or_else(String::new, |error| error.reason.to_string())
    }
}

/// One record that is refused.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub struct RecordError {
    /// Its place in the batch (the wire's `batch_index`).
    pub index: i32,
    /// Why. Displays as the message for the client.
    pub reason: Reason,
}

/// Why a record may not be in a topic.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum Reason {
    /// A compacted topic needs keys.
    NoKey,
    /// The timestamp is too far from the broker's clock.
    Timestamp {
        /// The record's.
        timestamp: i64,
        /// The earliest that is taken.
        earliest: i128,
        /// The latest that is taken.
        latest: i128,
    },
    /// The producer calls its timestamps append times.
    AppendTime,
}

impl fmt::Display for Reason {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        match self {
            Reason::NoKey => f.write_str("a compacted topic takes no record without a key"),
            Reason::Timestamp { timestamp, earliest, latest } => {
                write!(f, "timestamp {timestamp} is not within {earliest} to {latest}")
            }
            Reason::AppendTime => f.write_str("a producer must not set append times"),
        }
    }
}

/// Checks what a producer sent for one partition, and makes of it what is to be stored. Copies nothing unless
/// the header must change (append times, or a wrong greatest timestamp) or another codec is asked for.
pub fn validate(sent: &Bytes, rules: &Rules, now: WallTime) -> Result<Validated, Rejection> {
    let header = one_batch(sent, rules)?;
    check_header(&header)?;
    let mut walk = Walk::new(&header, rules, now)?;
    let fault = |index, fault| Rejection::Fault { index, fault };
    let mut records = BatchRecords::new(&header, sent, rules.limits).map_err(|error| fault(0, error))?;
    let mut index = 0;
    while let Some(record) = records.next() {
        let record = record.map_err(|error| fault(index, error))?;
        walk.record(index, &record)?;
        index += 1;
    }
    walk.finish(sent)
}

/// The header of the one batch that `sent` must be, with a checksum that matches.
fn one_batch(sent: &Bytes, rules: &Rules) -> Result<BatchHeader, Rejection> {
    if sent.is_empty() {
        return Err(Rejection::Empty);
    }
    let header = BatchHeader::parse(sent).map_err(|error| match error {
        BatchError::Magic(magic) => Rejection::Magic(magic),
        BatchError::Length(length) => Rejection::Length(length),
        BatchError::Short { .. } => Rejection::Cut,
        BatchError::Crc { .. } => Rejection::Crc,
    })?;
    if header.codec() == Some(Codec::Zstd) && !rules.zstd {
        return Err(Rejection::ZstdUnknown);
    }
    if header.bytes > rules.max_message_bytes {
        return Err(Rejection::TooLarge { bytes: header.bytes, max: rules.max_message_bytes });
    }
    match sent.len().checked_sub(header.bytes) {
        None => return Err(Rejection::Cut),
        Some(0) => {}
        Some(more) => return Err(Rejection::Several(more)),
    }
    if header.base_offset != 0 {
        return Err(Rejection::BaseOffset(header.base_offset));
    }
    verify_crc(&header, sent).map_err(|_| Rejection::Crc)?;
    Ok(header)
}

fn check_header(header: &BatchHeader) -> Result<(), Rejection> {
    let offsets = i64::from(header.last_offset_delta) + 1;
    if header.records <= 0 || offsets != i64::from(header.records) {
        return Err(Rejection::Count { records: header.records, offsets });
    }
    if header.is_control() {
        return Err(Rejection::Control);
    }
    if header.has_producer() && header.base_sequence < 0 {
        return Err(Rejection::Sequence { producer_id: header.producer_id, sequence: header.base_sequence });
    }
    Ok(())
}

/// What is learnt on the way through the records.
struct Walk<'a> {
    header: &'a BatchHeader,
    rules: &'a Rules,
    now: WallTime,
    max_timestamp: i64,
    refused: Refused,
    pack: Option<Pack>,
    /// The codec of `pack`.
    codec: Codec,
    prefix: Vec<u8>,
}

impl<'a> Walk<'a> {
    fn new(header: &'a BatchHeader, rules: &'a Rules, now: WallTime) -> Result<Walk<'a>, Rejection> {
        let (codec, pack) = match rules.storage {
            Storage::Packed { codec, level } if header.codec() != Some(codec) => {
                // The header's place is left free in front.
                let mut behind = Vec::with_capacity(header.bytes);
                behind.resize(HEADER_BYTES, 0);
                let pack = Pack::new(codec, level, behind);
                (codec, Some(pack.map_err(|error| Rejection::Pack { codec, reason: error.to_string() })?))
            }
            Storage::Packed { codec, .. } => (codec, None),
            Storage::AsProduced => (Codec::None, None),
        };
        let refused = Refused { errors: Vec::new(), count: 0, timestamp: false };
        Ok(Walk {
            header,
            rules,
            now,
            max_timestamp: NO_TIMESTAMP,
            refused,
            pack,
            codec,
            prefix: Vec::with_capacity(10),
        })
    }

    fn record(&mut self, index: i32, record: &Record<'_>) -> Result<(), Rejection> {
        if record.offset_delta != index {
            return Err(Rejection::OffsetDelta { index, delta: record.offset_delta });
        }
        let timestamp = self.header.base_timestamp.wrapping_add(record.timestamp_delta);
        let reason = if self.rules.keys && record.key.is_none() {
            Some(Reason::NoKey)
        } else {
            self.refuse_timestamp(timestamp)
        };
        if let Some(reason) = reason {
            self.refuse(index, reason);
            return Ok(());
        }
        self.max_timestamp = self.max_timestamp.max(timestamp);
        if let Some(pack) = &mut self.pack {
            // The record as it is: packing anew loses nothing.
            self.prefix.clear();
            put_varlong(&mut self.prefix, i64::try_from(record.body.len()).unwrap_or(i64::MAX));
            let written = pack.write_all(&self.prefix).and_then(|()| pack.write_all(record.body));
            written.map_err(|error| Rejection::Pack { codec: self.codec, reason: error.to_string() })?;
            // Not only at the end: what unpacks to much more than is allowed must not be collected first.
            let (bytes, max) = (pack.written(), self.rules.max_message_bytes);
            if bytes > max {
                return Err(Rejection::TooLarge { bytes, max });
            }
        }
        Ok(())
    }

    fn refuse_timestamp(&self, timestamp: i64) -> Option<Reason> {
        let called_append = self.header.is_log_append_time();
        match self.rules.timestamps {
            Timestamps::Append => called_append.then_some(Reason::AppendTime),
            Timestamps::Create { .. } if called_append && self.header.max_timestamp == NO_TIMESTAMP => {
                Some(Reason::AppendTime)
            }
            Timestamps::Create { .. } if timestamp == NO_TIMESTAMP => None,
            Timestamps::Create { before_max_ms, after_max_ms } => {
                let now = i128::from(self.now.0);
                let (earliest, latest) = (now - i128::from(before_max_ms), now + i128::from(after_max_ms));
                let within = (earliest..=latest).contains(&i128::from(timestamp));
                (!within).then_some(Reason::Timestamp { timestamp, earliest, latest })
            }
        }
    }

    fn refuse(&mut self, index: i32, reason: Reason) {
        self.refused.count += 1;
        self.refused.timestamp |= !matches!(reason, Reason::NoKey);
        if self.refused.errors.len() < LISTED_ERRORS {
            self.refused.errors.push(RecordError { index, reason });
        }
        // Nothing of this batch will be stored.
        self.pack = None;
    }

    fn finish(self, sent: &Bytes) -> Result<Validated, Rejection> {
        if self.refused.count > 0 {
            return Err(Rejection::Records(self.refused));
        }
        let mut header = *self.header;
        let appended_at = match self.rules.timestamps {
            Timestamps::Create { .. } => {
                header.attributes &= !LOG_APPEND_TIME;
                header.max_timestamp = self.max_timestamp;
                None
            }
            Timestamps::Append => {
                header.attributes |= LOG_APPEND_TIME;
                header.max_timestamp = self.now.0;
                Some(self.now)
            }
        };
        if let Some(pack) = self.pack {
            let codec = self.codec;
            let fail = |reason: String| Rejection::Pack { codec, reason };
            let bytes = pack.finish().map_err(|error| fail(error.to_string()))?;
            if bytes.len() > self.rules.max_message_bytes {
                let max = self.rules.max_message_bytes;
                return Err(Rejection::TooLarge { bytes: bytes.len(), max });
            }
            header.set_codec(codec);
            let batch = seal(header, bytes).map_err(|error| fail(error.to_string()))?;
            return Ok(Validated { batch, appended_at, repacked: true });
        }
        let batch = if header == *self.header {
            CheckedBatch { header, bytes: sent.clone() }
        } else {
            let mut bytes = BytesMut::with_capacity(sent.len());
            bytes.extend_from_slice(sent);
            header.write(&mut bytes);
            CheckedBatch { header, bytes: bytes.freeze() }
        };
        Ok(Validated { batch, appended_at, repacked: false })
    }
}

#[cfg(test)]
mod tests;
