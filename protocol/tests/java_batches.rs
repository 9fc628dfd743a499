//! Batches that Apache Kafka's own library (4.4.0) made, in `testdata/batches`: every codec, headers with the
//! same key, nulls, a record larger than any window, and both transaction markers.

#![expect(clippy::unwrap_used, clippy::cast_possible_truncation, reason = "a test fails by panicking")]

use std::path::Path;

use bytes::Bytes;
use felix_protocol::batch::control::{Marker, TransactionEnd};
use felix_protocol::batch::validate::{Rules, Storage, Timestamps, validate};
use felix_protocol::batch::{BatchRecords, CheckedBatch, Codec, Limits, PATCH_BYTES};
use felix_protocol::time::WallTime;

fn java(name: &str) -> Bytes {
    let path =
        Path::new(env!("CARGO_MANIFEST_DIR")).join("testdata/batches").join(format!("java-{name}.batch"));
    std::fs::read(path).unwrap().into()
}

fn rules(storage: Storage) -> Rules {
    Rules {
        max_message_bytes: 1 << 20,
        limits: Limits::for_packed(1 << 20),
        keys: false,
        timestamps: Timestamps::Create { before_max_ms: i64::MAX, after_max_ms: 3_600_000 },
        storage,
        zstd: true,
    }
}

const NAMES: [(&str, Codec); 5] = [
    ("none", Codec::None),
    ("gzip", Codec::Gzip),
    ("snappy", Codec::Snappy),
    ("lz4", Codec::Lz4),
    ("zstd", Codec::Zstd),
];

fn assert_records(batch: &CheckedBatch, big: bool) {
    let header = batch.header();
    assert_eq!((header.producer_id, header.producer_epoch, header.base_sequence), (77, 5, 10));
    assert_eq!((header.base_timestamp, header.max_timestamp), (1000, 3000));
    let mut records = BatchRecords::new(header, batch.bytes(), Limits::NONE).unwrap();

    let first = records.next().unwrap().unwrap();
    assert_eq!((first.key, first.value), (Some(&b"k0"[..]), Some(&b"v0"[..])));
    let headers: Vec<_> = first.headers.map(|header| (header.key, header.value)).collect();
    assert_eq!(headers, [(&b"a"[..], Some(&b"1"[..])), (b"a", None), (b"", Some(b""))]);
    let second = records.next().unwrap().unwrap();
    assert_eq!((second.key, second.value, second.timestamp_delta), (None, None, 2000));
    let third = records.next().unwrap().unwrap();
    assert_eq!((third.key, third.value, third.offset_delta), (Some(&[][..]), Some(&[][..]), 2));
    if big {
        let fourth = records.next().unwrap().unwrap();
        let value = fourth.value.unwrap();
        assert_eq!(value.len(), 100_000);
        assert!(value.iter().enumerate().all(|(at, byte)| *byte == (at / 1000) as u8));
    }
    assert!(records.next().is_none());
}

#[test]
fn every_codec_is_read_as_java_packs_it() {
    for (name, codec) in NAMES {
        let bytes = java(name);
        let validated = validate(&bytes, &rules(Storage::AsProduced), WallTime(5000)).unwrap();
        assert_eq!(validated.batch.bytes(), &bytes);
        assert_eq!(validated.batch.header().codec(), Some(codec));
        assert_records(&validated.batch, codec != Codec::None);
    }
}

#[test]
fn every_codec_is_packed_anew_into_every_other() {
    for (name, from) in NAMES {
        for to in Codec::ALL {
            let storage = Storage::Packed { codec: to, level: to.default_level() };
            let validated = validate(&java(name), &rules(storage), WallTime(5000)).unwrap();
            assert_eq!(validated.repacked, from != to);
            let stored = CheckedBatch::check(validated.batch.bytes().clone()).unwrap();
            assert_eq!(stored.header().codec(), Some(to));
            assert_records(&stored, from != Codec::None);
        }
    }
}

#[test]
fn markers_are_those_of_java() {
    for (name, end) in [("commit", TransactionEnd::Commit), ("abort", TransactionEnd::Abort)] {
        let theirs = CheckedBatch::check(java(name)).unwrap();
        let marker = Marker { end, coordinator_epoch: 9 };
        assert_eq!(Marker::of(theirs.header(), theirs.bytes()), Some(marker));
        let ours = marker.batch(77, 5, 1234).unwrap();
        assert_eq!(ours.bytes()[PATCH_BYTES..], theirs.bytes()[PATCH_BYTES..]);
    }
}
