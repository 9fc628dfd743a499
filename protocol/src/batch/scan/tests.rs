use super::*;
use crate::batch::{BatchBuilder, Codec};

fn batch(base_offset: Offset, codec: Codec, timestamps: &[i64]) -> Batch {
    let mut batch = BatchBuilder::new()
        .base_offset(base_offset)
        .generation(Generation::new(4).unwrap())
        .codec(codec, codec.default_level());
    for timestamp in timestamps {
        batch.push(*timestamp, None, Some(b"value"));
    }
    let batch = batch.build().unwrap();
    Batch { header: *batch.header(), bytes: batch.bytes().clone() }
}

#[test]
fn batches_come_whole_or_not_at_all() {
    let (one, two) = (batch(0, Codec::None, &[1, 2]), batch(2, Codec::Zstd, &[3]));
    let both = Bytes::from([&one.bytes[..], &two.bytes[..]].concat());
    let offsets: Vec<_> = Batches::new(both.clone()).map(|batch| batch.unwrap().header.base_offset).collect();
    assert_eq!(offsets, [0, 2]);
    let mut cut = Batches::new(both.slice(..both.len() - 1));
    assert!(cut.next().unwrap().is_ok());
    assert!(matches!(cut.next(), Some(Err(BatchError::Short { .. }))));
    assert!(cut.next().is_none());
    assert!(Batches::new(Bytes::new()).next().is_none());
}

/// Known fault B012: timestamps out of order, single records inside batches, all codecs.
#[test]
fn the_first_record_at_or_after_a_timestamp() {
    let stamps = [2, 8, 4, 6, 8, 3];
    for codec in Codec::ALL {
        let batch = batch(10, codec, &stamps);
        for from in 9..17 {
            for timestamp in 0..10 {
                let brute = (10..).zip(stamps).find(|(at, stamp)| *at >= from && *stamp >= timestamp);
                let found = first_since(&batch, from, timestamp).unwrap();
                let brute = brute.map(|(offset, timestamp)| Found {
                    offset,
                    timestamp,
                    generation: Generation::new(4),
                });
                assert_eq!(found, brute, "{codec} from {from} at {timestamp}");
            }
        }
    }
}

/// Known fault B047: the first of the records that have the greatest timestamp, not the last of the batch.
#[test]
fn the_record_with_the_greatest_timestamp() {
    for codec in Codec::ALL {
        let found = latest(&batch(10, codec, &[10, 30, 20, 30])).unwrap().unwrap();
        assert_eq!((found.offset, found.timestamp), (11, 30), "{codec}");

        let mut stamped =
            BatchBuilder::new().base_offset(7).append_time().codec(codec, codec.default_level());
        stamped.push(10, None, None);
        stamped.push(30, None, None);
        let stamped = stamped.build().unwrap();
        let stamped = Batch { header: *stamped.header(), bytes: stamped.bytes().clone() };
        let found = latest(&stamped).unwrap().unwrap();
        assert_eq!((found.offset, found.timestamp), (7, 30), "{codec}, append time");
        assert_eq!(first_since(&stamped, 8, 20).unwrap().unwrap().offset, 8);
    }
}
