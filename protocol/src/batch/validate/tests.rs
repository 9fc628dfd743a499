use proptest::prelude::*;

use super::*;
use crate::batch::{BatchBuilder, Header};

const NOW: WallTime = WallTime(1_000_000);

fn rules() -> Rules {
    Rules {
        max_message_bytes: 1 << 20,
        limits: Limits::for_packed(1 << 20),
        keys: false,
        timestamps: Timestamps::Create { before_max_ms: i64::MAX, after_max_ms: 3_600_000 },
        storage: Storage::AsProduced,
        zstd: true,
    }
}

fn batch(timestamps: &[i64]) -> BatchBuilder {
    let mut batch = BatchBuilder::new();
    for timestamp in timestamps {
        batch.push(*timestamp, Some(b"key"), Some(b"value"));
    }
    batch
}

fn sent(batch: BatchBuilder) -> Bytes {
    batch.build().unwrap().bytes().clone()
}

/// `bytes` with other header fields and the checksum that goes with them.
fn with_header(bytes: &Bytes, change: impl FnOnce(&mut BatchHeader)) -> Bytes {
    let mut header = BatchHeader::parse(bytes).unwrap();
    change(&mut header);
    let mut bytes = bytes.to_vec();
    header.write(&mut bytes);
    bytes.into()
}

/// A batch with these record bytes and a header that fits them.
fn with_records(count: i32, records: &[u8]) -> Bytes {
    let bytes = sent(batch(&[5]));
    let mut whole = bytes[..HEADER_BYTES].to_vec();
    whole.extend_from_slice(records);
    let whole = Bytes::from(whole);
    with_header(&whole, |header| {
        header.bytes = HEADER_BYTES + records.len();
        header.records = count;
        header.last_offset_delta = count - 1;
    })
}

fn rejection(bytes: &Bytes, rules: &Rules) -> Rejection {
    validate(bytes, rules, NOW).map(|validated| validated.batch).unwrap_err()
}

fn each_codec(mut visit: impl FnMut(Codec)) {
    Codec::ALL.into_iter().for_each(&mut visit);
}

#[test]
fn a_good_batch_is_stored_byte_for_byte() {
    each_codec(|codec| {
        let bytes = sent(batch(&[10, 30, 20]).codec(codec, codec.default_level()).producer(4, 0, 9));
        let validated = validate(&bytes, &rules(), NOW).unwrap();
        assert_eq!(validated.batch.bytes(), &bytes);
        assert_eq!(validated.batch.bytes().as_ptr(), bytes.as_ptr(), "not even copied");
        assert_eq!((validated.appended_at, validated.repacked), (None, false));
        assert_eq!(validated.batch.header().max_timestamp, 30);
    });
}

#[test]
fn exactly_one_whole_batch_of_format_2() {
    let good = sent(batch(&[1]));
    assert_eq!(rejection(&Bytes::new(), &rules()), Rejection::Empty);
    assert_eq!(rejection(&good.slice(..10), &rules()), Rejection::Cut);
    assert_eq!(rejection(&good.slice(..60), &rules()), Rejection::Cut);
    assert_eq!(rejection(&good.slice(..good.len() - 1), &rules()), Rejection::Cut);
    let two = Bytes::from([&good[..], &good[..]].concat());
    assert_eq!(rejection(&two, &rules()), Rejection::Several(good.len()));
    let junk = Bytes::from([&good[..], b"junk"].concat());
    assert_eq!(rejection(&junk, &rules()), Rejection::Several(4));
    for magic in [0, 1, 3] {
        let mut old = good.to_vec();
        old[16] = magic;
        assert_eq!(rejection(&old.into(), &rules()), Rejection::Magic(magic.cast_signed()));
    }
    let mut short = good.to_vec();
    short[8..12].copy_from_slice(&10i32.to_be_bytes());
    assert_eq!(rejection(&short.into(), &rules()), Rejection::Length(10));
}

#[test]
fn size_is_checked_before_the_checksum_and_both_before_records() {
    let mut bytes = sent(batch(&[1])).to_vec();
    bytes[61] ^= 1;
    let small = Rules { max_message_bytes: bytes.len() - 1, ..rules() };
    let exact = Rules { max_message_bytes: bytes.len(), ..rules() };
    let bytes = Bytes::from(bytes);
    assert_eq!(rejection(&bytes, &small), Rejection::TooLarge { bytes: bytes.len(), max: bytes.len() - 1 });
    assert_eq!(rejection(&bytes, &exact), Rejection::Crc);
}

#[test]
fn header_fields_that_clients_must_not_send() {
    let good = sent(batch(&[1, 2]));
    let with = |change: fn(&mut BatchHeader)| rejection(&with_header(&good, change), &rules());
    assert_eq!(with(|h| h.base_offset = 7), Rejection::BaseOffset(7));
    assert_eq!(with(|h| h.records = 3), Rejection::Count { records: 3, offsets: 2 });
    assert_eq!(with(|h| h.records = 0), Rejection::Count { records: 0, offsets: 2 });
    assert_eq!(with(|h| h.last_offset_delta = -1), Rejection::Count { records: 2, offsets: 0 });
    assert_eq!(
        with(|h| (h.records, h.last_offset_delta) = (i32::MIN, i32::MAX)),
        Rejection::Count { records: i32::MIN, offsets: 1 << 31 }
    );
    assert_eq!(with(|h| h.attributes |= CONTROL_BIT), Rejection::Control);
    assert_eq!(
        with(|h| (h.producer_id, h.base_sequence) = (9, -1)),
        Rejection::Sequence { producer_id: 9, sequence: -1 }
    );
    assert_eq!(with(|h| h.attributes |= 5), Rejection::Fault { index: 0, fault: RecordFault::Codec(5) });
}

const CONTROL_BIT: i16 = 0x20;

#[test]
fn zstd_needs_a_version_that_knows_it() {
    let bytes = sent(batch(&[1]).codec(Codec::Zstd, 3));
    assert_eq!(rejection(&bytes, &Rules { zstd: false, ..rules() }), Rejection::ZstdUnknown);
}

#[test]
fn offset_deltas_must_be_dense() {
    each_codec(|codec| {
        for deltas in [[1, 2], [0, 2], [0, 5]] {
            let mut gaps = BatchBuilder::new().codec(codec, codec.default_level());
            for delta in deltas {
                gaps.push_at(delta, 1, None, None, std::iter::empty());
            }
            let bytes = with_header(&sent(gaps), |header| header.last_offset_delta = 1);
            let index = i32::from(deltas[0] == 0);
            let delta = deltas[index as usize];
            assert_eq!(rejection(&bytes, &rules()), Rejection::OffsetDelta { index, delta }, "{codec}");
        }
    });
}

#[test]
fn records_must_be_records() {
    let one = [12, 0, 0, 0, 1, 1, 0];
    let fault = |count, records: &[u8]| {
        let rejection = rejection(&with_records(count, records), &rules());
        let Rejection::Fault { index, fault } = rejection else { panic!("{rejection:?}") };
        (index, fault)
    };
    assert!(validate(&with_records(1, &one), &rules(), NOW).is_ok());
    assert_eq!(fault(1, &[]), (0, RecordFault::Short));
    assert_eq!(fault(2, &one), (1, RecordFault::Short));
    assert_eq!(fault(1, &[&one[..], &one].concat()), (0, RecordFault::Remaining));
    assert_eq!(fault(1, &[14, 0, 0, 0, 1, 1, 0, 0]), (0, RecordFault::Fields(7)));
    assert_eq!(fault(1, &[12, 0, 0, 0, 1, 1, 2]), (0, RecordFault::Headers(1)));
    assert_eq!(fault(1, &[11, 0]), (0, RecordFault::Length(-6)));
}

#[test]
fn timestamps_are_bounded_on_both_sides() {
    let rules =
        Rules { timestamps: Timestamps::Create { before_max_ms: 1000, after_max_ms: 500 }, ..rules() };
    let refused = |stamps: &[i64]| match validate(&sent(batch(stamps)), &rules, NOW) {
        Err(Rejection::Records(refused)) => {
            assert!(refused.timestamp);
            refused.errors.iter().map(|error| error.index).collect()
        }
        Err(other) => panic!("{other:?}"),
        Ok(_) => vec![],
    };
    let now = NOW.0;
    assert_eq!(refused(&[now, now - 1000, now + 500, -1]), Vec::<i32>::new());
    assert_eq!(refused(&[now - 1001, now, now + 501]), [0, 2]);
    assert_eq!(refused(&[i64::MIN, now, i64::MAX]), [0, 2]);
    // Without a lower bound even the oldest passes.
    assert!(validate(&sent(batch(&[0, 1])), &self::rules(), NOW).is_ok());
}

#[test]
fn compacted_topics_need_keys() {
    each_codec(|codec| {
        let mut keyless = BatchBuilder::new().codec(codec, codec.default_level());
        keyless.push(1, Some(b""), None);
        keyless.push(1, None, Some(b"v"));
        keyless.push(1, Some(b"k"), Some(b"v"));
        keyless.push(1, None, None);
        let bytes = sent(keyless);
        assert!(validate(&bytes, &rules(), NOW).is_ok());
        let Rejection::Records(refused) = rejection(&bytes, &Rules { keys: true, ..rules() }) else {
            panic!("{codec}")
        };
        let error = |index| RecordError { index, reason: Reason::NoKey };
        let expected = Refused { errors: vec![error(1), error(3)], count: 2, timestamp: false };
        assert_eq!(refused, expected, "{codec}");
    });
}

#[test]
fn refusals_are_counted_all_and_listed_to_a_limit() {
    let mut keyless = BatchBuilder::new();
    for _ in 0..LISTED_ERRORS + 5 {
        keyless.push(1, None, None);
    }
    let Rejection::Records(refused) = rejection(&sent(keyless), &Rules { keys: true, ..rules() }) else {
        panic!()
    };
    assert_eq!((refused.errors.len(), refused.count), (LISTED_ERRORS, LISTED_ERRORS + 5));
}

#[test]
fn a_wrong_greatest_timestamp_is_put_right() {
    each_codec(|codec| {
        let honest = sent(batch(&[10, 30, 20]).codec(codec, codec.default_level()).producer(1, 2, 3));
        for lie in [-1, 20, 31, i64::MAX] {
            let bytes = with_header(&honest, |header| header.max_timestamp = lie);
            let validated = validate(&bytes, &rules(), NOW).unwrap();
            assert_eq!(validated.batch.bytes(), &honest, "{codec}");
            assert!(CheckedBatch::check(validated.batch.bytes().clone()).is_ok());
        }
    });
}

#[test]
fn append_time_topics_stamp_the_batch() {
    let rules = Rules { timestamps: Timestamps::Append, ..rules() };
    each_codec(|codec| {
        let bytes = sent(batch(&[10, 30]).codec(codec, codec.default_level()));
        let validated = validate(&bytes, &rules, NOW).unwrap();
        assert_eq!(validated.appended_at, Some(NOW));
        let stored = CheckedBatch::check(validated.batch.bytes().clone()).unwrap();
        let header = stored.header();
        assert_eq!(header, validated.batch.header());
        assert!(header.is_log_append_time());
        assert_eq!((header.max_timestamp, header.base_timestamp), (NOW.0, 10));
        assert_eq!(header.timestamp(20), NOW.0);
        assert_eq!(stored.bytes()[HEADER_BYTES..], bytes[HEADER_BYTES..]);

        // A producer that claims append times is refused, record by record.
        let claimed = with_header(&bytes, |header| header.attributes |= LOG_APPEND_TIME);
        let Rejection::Records(refused) = rejection(&claimed, &rules) else { panic!() };
        assert_eq!(refused.errors[1], RecordError { index: 1, reason: Reason::AppendTime });
        assert!(refused.timestamp);
    });
}

#[test]
fn create_time_topics_take_claimed_append_times_for_what_they_are() {
    let bytes = sent(batch(&[10, 30]));
    let claimed = with_header(&bytes, |header| header.attributes |= LOG_APPEND_TIME);
    assert_eq!(validate(&claimed, &rules(), NOW).unwrap().batch.bytes(), &bytes);
    let claimed = with_header(&claimed, |header| header.max_timestamp = -1);
    assert!(matches!(rejection(&claimed, &rules()), Rejection::Records(_)));
}

#[test]
fn what_unpacks_to_too_much_is_refused() {
    each_codec(|codec| {
        let mut bomb = BatchBuilder::new().codec(codec, codec.default_level());
        for _ in 0..10 {
            bomb.push(1, None, Some(&[0; 100_000]));
        }
        let bytes = sent(bomb);
        let limits = Limits { batch_bytes: 500_000, ..Limits::NONE };
        let verdict = validate(&bytes, &Rules { limits, ..rules() }, NOW);
        if codec == Codec::None {
            assert!(verdict.is_ok(), "nothing to unpack");
        } else {
            let Err(Rejection::Fault { index, fault }) = verdict else { panic!("{codec}") };
            assert_eq!(fault, RecordFault::BatchTooLarge { max: 500_000 });
            assert!(index < 6);
        }
        let limits = Limits { record_bytes: 99_999, ..Limits::NONE };
        if codec != Codec::None {
            let fault = rejection(&bytes, &Rules { limits, ..rules() });
            let Rejection::Fault { index: 0, fault: RecordFault::RecordTooLarge { max: 99_999, .. } } = fault
            else {
                panic!("{codec}: {fault:?}")
            };
        }
        // Packing anew stops as soon as the result is too large.
        let storage = Storage::Packed { codec: Codec::None, level: 0 };
        let rules = Rules { storage, max_message_bytes: bytes.len().max(300_000), ..rules() };
        if codec != Codec::None {
            let Rejection::TooLarge { bytes: at, .. } = rejection(&bytes, &rules) else { panic!("{codec}") };
            assert!(at < 500_000, "{codec} {at}");
        }
    });
}

#[test]
fn packed_bytes_behind_the_last_record_are_refused() {
    each_codec(|codec| {
        let mut longer = BatchBuilder::new().codec(codec, codec.default_level());
        longer.push(1, None, Some(b"seen"));
        longer.push(1, None, Some(b"hidden"));
        let hidden = with_header(&sent(longer), |header| {
            header.records = 1;
            header.last_offset_delta = 0;
        });
        let fault = rejection(&hidden, &rules());
        assert_eq!(fault, Rejection::Fault { index: 0, fault: RecordFault::Remaining }, "{codec}");

        let good = sent(batch(&[1]).codec(codec, codec.default_level()));
        let mut trailing = good.to_vec();
        trailing.extend_from_slice(b"trailing");
        let trailing = with_header(&trailing.into(), |header| header.bytes += 8);
        assert!(validate(&trailing, &rules(), NOW).is_err(), "{codec}");
    });
}

type Parts = (i64, Option<Vec<u8>>, Option<Vec<u8>>, Vec<(Vec<u8>, Option<Vec<u8>>)>);

fn parts(batch: &CheckedBatch) -> Vec<Parts> {
    let mut records = BatchRecords::new(batch.header(), batch.bytes(), Limits::NONE).unwrap();
    let mut all = Vec::new();
    while let Some(record) = records.next() {
        let record = record.unwrap();
        all.push((
            batch.header().timestamp(record.timestamp_delta),
            record.key.map(Vec::from),
            record.value.map(Vec::from),
            record.headers.map(|h| (h.key.to_vec(), h.value.map(Vec::from))).collect(),
        ));
    }
    all
}

fn some_parts() -> impl Strategy<Value = Vec<Parts>> {
    let bytes = || proptest::option::of(proptest::collection::vec(any::<u8>(), 0..40));
    // Few different keys, so that headers repeat.
    let header = (proptest::collection::vec(b'a'..=b'b', 0..2), bytes());
    let record = (0i64..2_000_000, bytes(), bytes(), proptest::collection::vec(header, 0..5));
    proptest::collection::vec(record, 1..30)
}

proptest! {
    #[test]
    fn packing_anew_loses_nothing(
        records in some_parts(),
        from in 0usize..5,
        to in 0usize..5,
        append: bool,
    ) {
        let (from, to) = (Codec::ALL[from], Codec::ALL[to]);
        let mut builder = BatchBuilder::new().codec(from, from.default_level()).producer(5, 6, 7).transactional();
        for (delta, (timestamp, key, value, headers)) in (0..).zip(&records) {
            let headers = headers.iter().map(|(key, value)| Header { key, value: value.as_deref() });
            builder.push_at(delta, *timestamp, key.as_deref(), value.as_deref(), headers);
        }
        let original = builder.build().unwrap();
        prop_assert_eq!(&parts(&original), &records);

        let timestamps = if append { Timestamps::Append } else { rules().timestamps };
        let storage = Storage::Packed { codec: to, level: to.default_level() };
        let validated = validate(original.bytes(), &Rules { storage, timestamps, ..rules() }, NOW).unwrap();
        prop_assert_eq!(validated.repacked, from != to);
        let stored = CheckedBatch::check(validated.batch.bytes().clone()).unwrap();
        prop_assert_eq!(stored.header(), validated.batch.header());
        prop_assert_eq!(stored.header().codec(), Some(to));
        prop_assert_eq!(stored.header().producer_id, 5);
        prop_assert!(stored.header().is_transactional());
        let expected = records.into_iter().map(|mut record| {
            if append {
                record.0 = NOW.0;
            }
            record
        });
        prop_assert_eq!(parts(&stored), expected.collect::<Vec<_>>());
    }

    #[test]
    fn damaged_batches_never_panic(
        records in some_parts(),
        codec in 0usize..5,
        damage in proptest::collection::vec((any::<prop::sample::Index>(), any::<u8>()), 1..5),
        fix: bool,
    ) {
        let codec = Codec::ALL[codec];
        let mut builder = BatchBuilder::new().codec(codec, codec.default_level());
        for (timestamp, key, value, _) in &records {
            builder.push(*timestamp, key.as_deref(), value.as_deref());
        }
        let mut bytes = sent(builder).to_vec();
        for (at, byte) in damage {
            let at = at.index(bytes.len());
            bytes[at] = byte;
        }
        if fix {
            // A checksum that matches lets the damage through to what comes behind.
            let crc = crc32c::crc32c(&bytes[21..]);
            bytes[17..21].copy_from_slice(&crc.to_be_bytes());
        }
        let bytes = Bytes::from(bytes);
        if let Ok(validated) = validate(&bytes, &rules(), NOW) {
            // What passes is a batch of dense records that everyone can read.
            let stored = CheckedBatch::check(validated.batch.bytes().clone()).unwrap();
            prop_assert_eq!(parts(&stored).len(), stored.header().records as usize);
        }
    }

    #[test]
    fn random_bytes_never_panic(bytes in proptest::collection::vec(any::<u8>(), 0..200)) {
        prop_assert!(validate(&bytes.into(), &rules(), NOW).is_err());
    }
}
