use super::*;
use crate::batch::{BatchRecords, Limits};

#[test]
fn the_smallest_batch_byte_by_byte() {
    let mut batch = BatchBuilder::new();
    batch.push(0x0102, None, Some(b"v"));
    assert_eq!(batch.bytes(), 61 + 8);
    let batch = batch.build().unwrap();
    let bytes = batch.bytes();
    assert_eq!(bytes.len(), 69);
    assert_eq!(bytes[8..12], 57i32.to_be_bytes());
    assert_eq!(bytes[12..17], [0xff, 0xff, 0xff, 0xff, 2]);
    assert_eq!(bytes[17..21], crc32c::crc32c(&bytes[21..]).to_be_bytes());
    assert_eq!(bytes[61..], [14, 0, 0, 0, 1, 2, b'v', 0]);
    assert_eq!(batch.header(), &BatchHeader::parse(bytes).unwrap());
    assert!(CheckedBatch::check(bytes.clone()).is_ok());
}

#[test]
fn a_batch_may_be_thinned_out_and_keep_its_range() {
    let mut batch = BatchBuilder::new().base_offset(100).generation(Generation::new(3).unwrap());
    assert!(batch.is_empty());
    batch.push_at(2, 20, Some(b"a"), None, std::iter::empty());
    batch.push_at(5, 10, Some(b"b"), None, std::iter::empty());
    batch.span(9);
    assert_eq!(batch.len(), 2);
    let batch = batch.build().unwrap();
    let header = batch.header();
    assert_eq!((header.base_offset, header.last_offset(), header.records), (100, 109, 2));
    assert_eq!((header.base_timestamp, header.max_timestamp), (20, 20));
    assert_eq!(header.generation, Generation::new(3));
    let mut records = BatchRecords::new(header, batch.bytes(), Limits::NONE).unwrap();
    let mut deltas = Vec::new();
    while let Some(record) = records.next() {
        let record = record.unwrap();
        deltas.push((record.offset_delta, header.timestamp(record.timestamp_delta)));
    }
    assert_eq!(deltas, [(2, 20), (5, 10)]);
}

#[test]
fn an_empty_batch_is_none() {
    assert_eq!(BatchBuilder::new().build().unwrap_err(), BuildError::Empty);
}
