//! Goes over stored batches: one by one, or looking for a timestamp.

use bytes::Bytes;

use super::reader::{BatchRecords, Limits};
use super::records::RecordFault;
use super::{BatchError, BatchHeader};
use crate::ids::{Generation, Offset};

/// One whole batch within larger bytes.
#[derive(Clone, Debug)]
pub struct Batch {
    /// Its header.
    pub header: BatchHeader,
    /// Its bytes, a slice of where it was found.
    pub bytes: Bytes,
}

impl Batch {
    /// The batch's records.
    pub fn records(&self, limits: Limits) -> Result<BatchRecords<'_>, RecordFault> {
        BatchRecords::new(&self.header, &self.bytes, limits)
    }
}

/// Iterates over batches that stand one behind another. Bytes at the end that are less than a batch give an
/// error, after which nothing more comes. Checks no checksums.
#[derive(Clone, Debug)]
pub struct Batches {
    rest: Bytes,
}

impl Batches {
    /// Over `bytes`, which begin with a batch.
    pub fn new(bytes: Bytes) -> Batches {
        Batches { rest: bytes }
    }
}

impl Iterator for Batches {
    type Item = Result<Batch, BatchError>;

    fn next(&mut self) -> Option<Self::Item> {
        if self.rest.is_empty() {
            return None;
        }
        let batch = BatchHeader::parse(&self.rest).and_then(|header| {
            if self.rest.len() < header.bytes {
                return Err(BatchError::Short { have: self.rest.len(), need: header.bytes });
            }
            Ok(Batch { header, bytes: self.rest.split_to(header.bytes) })
        });
        if batch.is_err() {
            self.rest.clear();
        }
        Some(batch)
    }
}

/// A record that was looked for.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub struct Found {
    /// Its offset.
    pub offset: Offset,
    /// Its timestamp.
    pub timestamp: i64,
    /// The generation that wrote it.
    pub generation: Option<Generation>,
}

/// The first record of `batch`, at or behind `from`, whose timestamp is at or after `timestamp`. Opens the
/// batch only when it can have one.
pub fn first_since(batch: &Batch, from: Offset, timestamp: i64) -> Result<Option<Found>, RecordFault> {
    if batch.header.max_timestamp < timestamp || batch.header.last_offset() < from {
        return Ok(None);
    }
    let mut records = batch.records(Limits::NONE)?;
    while let Some(record) = records.next() {
        let record = record?;
        let found = found(&batch.header, record.offset_delta, record.timestamp_delta);
        if found.offset >= from && found.timestamp >= timestamp {
            return Ok(Some(found));
        }
    }
    Ok(None)
}

/// The first of the records of `batch` that have its greatest timestamp; `None` when it has no records.
pub fn latest(batch: &Batch) -> Result<Option<Found>, RecordFault> {
    let mut latest: Option<Found> = None;
    let mut records = batch.records(Limits::NONE)?;
    while let Some(record) = records.next() {
        let record = record?;
        let found = found(&batch.header, record.offset_delta, record.timestamp_delta);
        if latest.is_none_or(|latest| latest.timestamp < found.timestamp) {
            latest = Some(found);
        }
        // No other can be greater, and the rest need not be unpacked.
        if found.timestamp == batch.header.max_timestamp {
            break;
        }
    }
    Ok(latest)
}

fn found(header: &BatchHeader, offset_delta: i32, timestamp_delta: i64) -> Found {
    Found {
        offset: header.base_offset + Offset::from(offset_delta),
        timestamp: header.timestamp(timestamp_delta),
        generation: header.generation,
    }
}

#[cfg(test)]
mod tests;
