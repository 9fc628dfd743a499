use proptest::prelude::*;

use super::*;
use crate::batch::records::Header;
use crate::batch::{BatchBuilder, verify_crc};
use crate::ids::Generation;

type Owned = (Offset, i64, Option<Vec<u8>>, Option<Vec<u8>>, Vec<(Vec<u8>, Option<Vec<u8>>)>);

fn owned(header: &BatchHeader, batch: &[u8]) -> Vec<Owned> {
    let mut all = Vec::new();
    let mut records = BatchRecords::new(header, batch, Limits::NONE).unwrap();
    while let Some(record) = records.next() {
        let record = record.unwrap();
        all.push((
            header.base_offset + i64::from(record.offset_delta),
            header.timestamp(record.timestamp_delta),
            record.key.map(<[u8]>::to_vec),
            record.value.map(<[u8]>::to_vec),
            record.headers.map(|h| (h.key.to_vec(), h.value.map(<[u8]>::to_vec))).collect(),
        ));
    }
    all
}

fn some(codec: Codec, records: i32, append_time: bool) -> CheckedBatch {
    let mut builder = BatchBuilder::new()
        .base_offset(1000)
        .generation(Generation::new(7).unwrap())
        .producer(5, 3, 40)
        .transactional()
        .codec(codec, codec.default_level());
    if append_time {
        builder = builder.append_time();
    }
    for at in 0..records {
        // Disordered times, repeated header keys, and a value less now and then.
        let time = 5_000 + i64::from(at * 37 % 11);
        let value = format!("value {at}");
        let headers = [Header { key: b"a", value: Some(b"1") }, Header { key: b"a", value: None }];
        builder.push_at(
            at,
            time,
            Some(format!("key {at}").as_bytes()),
            (at % 5 != 0).then_some(value.as_bytes()),
            headers.into_iter().take(usize::try_from(at % 3).unwrap()),
        );
    }
    builder.build().unwrap()
}

proptest! {
    #[test]
    fn what_stays_is_what_it_was(
        codec in 0..5_usize,
        keep in prop::collection::vec(any::<bool>(), 1..150),
        horizon in prop::option::of(0..100_000_i64),
        append_time: bool,
    ) {
        let batch = some(Codec::ALL[codec], i32::try_from(keep.len()).unwrap(), append_time);
        let (header, bytes) = (batch.header(), batch.bytes());
        let at = |offset: Offset| usize::try_from(offset - 1000).unwrap();
        let selection = Selection::of(header, bytes, Limits::NONE, |offset, _| keep[at(offset)]).unwrap();
        let before = owned(header, bytes);
        let wanted: Vec<_> = before.into_iter().filter(|record| keep[at(record.0)]).collect();
        prop_assert_eq!(usize::try_from(selection.kept).unwrap(), wanted.len());
        prop_assert_eq!(selection.is_whole(), keep.iter().all(|keep| *keep));
        prop_assert_eq!(selection.tombstones, wanted.iter().any(|record| record.3.is_none()));
        if wanted.is_empty() {
            return Ok(());
        }
        let less = thinned(header, bytes, Limits::NONE, &selection, horizon).unwrap();
        let after = less.header();
        verify_crc(after, less.bytes()).unwrap();
        let max = wanted.iter().map(|record| record.1).max().unwrap();
        prop_assert_eq!(after.max_timestamp, if append_time { header.max_timestamp } else { max });
        prop_assert_eq!(owned(after, less.bytes()), wanted);
        prop_assert_eq!(after.has_delete_horizon(), horizon.is_some());
        prop_assert_eq!(after.base_timestamp, horizon.unwrap_or(header.base_timestamp));
        let same = BatchHeader {
            bytes: after.bytes,
            crc: after.crc,
            records: after.records,
            max_timestamp: after.max_timestamp,
            base_timestamp: after.base_timestamp,
            attributes: after.attributes & !DELETE_HORIZON,
            ..*header
        };
        prop_assert_eq!(BatchHeader { attributes: after.attributes & !DELETE_HORIZON, ..*after }, same);
        prop_assert_eq!(after.attributes & !DELETE_HORIZON, header.attributes);
    }
}

#[test]
fn an_emptied_batch_keeps_its_place() {
    let batch = some(Codec::Zstd, 20, false);
    let empty = emptied(batch.header()).unwrap();
    let (before, after) = (batch.header(), empty.header());
    assert_eq!(after.bytes, HEADER_BYTES);
    assert_eq!((after.base_offset, after.last_offset()), (before.base_offset, before.last_offset()));
    assert_eq!(after.generation, before.generation);
    assert_eq!((after.producer_id, after.producer_epoch), (before.producer_id, before.producer_epoch));
    assert_eq!((after.base_sequence, after.last_sequence()), (40, before.last_sequence()));
    assert!(after.is_transactional());
    assert_eq!((after.records, after.codec(), after.base_timestamp), (0, Some(Codec::None), -1));
    assert!(owned(after, empty.bytes()).is_empty());
    assert_eq!(emptied(after).unwrap().bytes(), empty.bytes());
    let place = placeholder(before).unwrap();
    assert!(!place.header().has_producer() && !place.header().is_transactional());
    assert_eq!((place.header().base_offset, place.header().last_offset()), (1000, before.last_offset()));
    assert_eq!(placeholder(place.header()).unwrap().bytes(), place.bytes());
}

#[test]
fn a_filler_spans_what_it_is_asked_for_and_no_more_than_a_batch_can() {
    let generation = Generation::new(7).unwrap();
    for (base, next, spanned) in [(5, 6, 6), (5, 900, 900), (0, 1 << 40, 1 << 31)] {
        let batch = filler(base, next, generation).unwrap();
        let header = *CheckedBatch::check(batch.bytes().clone()).unwrap().header();
        assert_eq!((header.base_offset, header.next_offset()), (base, spanned));
        assert_eq!((header.generation, header.records, header.max_timestamp), (Some(generation), 0, -1));
        assert!(!header.has_producer() && header.attributes == 0);
    }
}

#[test]
fn records_that_cannot_be_read_are_never_dropped_in_silence() {
    let batch = some(Codec::None, 5, false);
    let mut bytes = batch.bytes().to_vec();
    let last = bytes.len() - 1;
    bytes.truncate(last);
    let header = BatchHeader { bytes: last, ..*batch.header() };
    assert!(Selection::of(&header, &bytes, Limits::NONE, |_, _| true).is_err());
}
