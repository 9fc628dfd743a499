//! Control records: what brokers write between the records of producers. Only transaction markers are
//! interpreted; a log copied from elsewhere may hold others.

use super::build::{BatchBuilder, BuildError};
use super::reader::{BatchRecords, Limits};
use super::{BatchHeader, CheckedBatch};

/// A marker is far smaller. A control batch is no producer's, so nobody has bounded what it unpacks to.
const LIMITS: Limits = Limits { batch_bytes: 64 << 10, record_bytes: 4 << 10 };

/// How a transaction ended.
#[derive(Clone, Copy, Debug, PartialEq, Eq, Hash)]
pub enum TransactionEnd {
    /// Its records never count.
    Abort,
    /// Its records count.
    Commit,
}

/// The marker that ends a transaction on one partition.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub struct Marker {
    /// How it ended.
    pub end: TransactionEnd,
    /// Generation of the coordinator's partition that decided it.
    pub coordinator_epoch: i32,
}

impl Marker {
    /// The key of the record: a version (0) and the type, 16 bits each.
    fn key(self) -> [u8; 4] {
        match self.end {
            TransactionEnd::Abort => [0, 0, 0, 0],
            TransactionEnd::Commit => [0, 0, 0, 1],
        }
    }

    /// The value of the record: a version (0, 16 bits) and the coordinator's epoch.
    fn value(self) -> [u8; 6] {
        let mut value = [0; 6];
        value[2..].copy_from_slice(&self.coordinator_epoch.to_be_bytes());
        value
    }

    /// Reads key and value of a control record; `None` when it is not a transaction marker. Newer versions
    /// may append fields, so only the beginnings count.
    pub fn parse(key: &[u8], value: &[u8]) -> Option<Marker> {
        let [_, _, kind @ ..] = key.first_chunk::<4>()?;
        let end = match i16::from_be_bytes(*kind) {
            0 => TransactionEnd::Abort,
            1 => TransactionEnd::Commit,
            _ => return None,
        };
        let [_, _, epoch @ ..] = value.first_chunk::<6>()?;
        Some(Marker { end, coordinator_epoch: i32::from_be_bytes(*epoch) })
    }

    /// The marker in a stored batch; `None` when the batch is not a control batch, was emptied by compaction,
    /// or holds another control record.
    pub fn of(header: &BatchHeader, batch: &[u8]) -> Option<Marker> {
        if !header.is_control() {
            return None;
        }
        let mut records = BatchRecords::new(header, batch, LIMITS).ok()?;
        let record = records.next()?.ok()?;
        Marker::parse(record.key?, record.value?)
    }

    /// The batch that carries the marker for one producer: one record, one offset.
    pub fn batch(
        self,
        producer_id: i64,
        producer_epoch: i16,
        timestamp: i64,
    ) -> Result<CheckedBatch, BuildError> {
        let mut batch =
            BatchBuilder::new().producer(producer_id, producer_epoch, -1).transactional().control();
        batch.push(timestamp, Some(&self.key()), Some(&self.value()));
        batch.build()
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn markers_are_read_as_they_are_written() {
        for end in [TransactionEnd::Abort, TransactionEnd::Commit] {
            let marker = Marker { end, coordinator_epoch: 7 };
            let batch = marker.batch(1000, 3, 5).unwrap();
            let header = batch.header();
            assert_eq!((header.records, header.last_offset_delta, header.base_sequence), (1, 0, -1));
            assert!(header.is_control() && header.is_transactional());
            assert_eq!((header.producer_id, header.producer_epoch, header.max_timestamp), (1000, 3, 5));
            assert_eq!(Marker::of(header, batch.bytes()), Some(marker));
        }
    }

    #[test]
    fn other_control_records_are_left_alone() {
        assert_eq!(Marker::parse(&[0, 0, 0, 2], &[0; 6]), None);
        assert_eq!(Marker::parse(&[0, 0, 0], &[0; 6]), None);
        assert_eq!(Marker::parse(&[0, 0, 0, 1], &[0; 5]), None);
        let newer = Marker::parse(&[0, 1, 0, 1, 9], &[0, 1, 0, 0, 0, 2, 9, 9]);
        assert_eq!(newer, Some(Marker { end: TransactionEnd::Commit, coordinator_epoch: 2 }));
    }
}
