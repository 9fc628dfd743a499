use proptest::prelude::*;

use super::*;

fn text() -> impl Strategy<Value = Arc<str>> {
    "\\PC{0,12}".prop_map(Arc::from)
}

fn blob() -> impl Strategy<Value = Bytes> {
    prop::collection::vec(any::<u8>(), 0..40).prop_map(Bytes::from)
}

prop_compose! {
    fn stored_offset()(offset in any::<i64>(), leader_epoch in any::<i32>(), metadata in text(),
        committed_at in any::<i64>(), expires_at in prop::option::of(0..i64::MAX)) -> StoredOffset {
        // The record with a retention has no place for a leader epoch.
        let leader_epoch = if expires_at.is_some() { -1 } else { leader_epoch };
        StoredOffset { offset, leader_epoch, metadata, committed_at, expires_at }
    }
}

prop_compose! {
    fn stored_member()(member in text(), instance in prop::option::of(text()), client_id in text(),
        client_host in text(), rebalance_timeout_ms in 0..i32::MAX, session_timeout_ms in any::<i32>(),
        subscription in blob(), assignment in blob()) -> StoredMember {
        StoredMember { member, instance, client_id, client_host, rebalance_timeout_ms, session_timeout_ms,
            subscription, assignment }
    }
}

prop_compose! {
    fn stored_group()(protocol_type in text(), generation in any::<i32>(), protocol in prop::option::of(text()),
        leader in prop::option::of(text()), since in any::<i64>(),
        members in prop::collection::vec(stored_member(), 0..4)) -> StoredGroup {
        StoredGroup { protocol_type, generation, protocol, leader, since, members }
    }
}

fn record() -> impl Strategy<Value = Record> {
    prop_oneof![
        (text(), text(), any::<i32>(), prop::option::of(stored_offset()))
            .prop_map(|(group, topic, partition, value)| Record::Offset { group, topic, partition, value }),
        (text(), prop::option::of(stored_group())).prop_map(|(group, value)| Record::Group { group, value }),
    ]
}

fn decode(raw: &RawRecord) -> Result<Record, RecordError> {
    Record::decode(&raw.key, raw.value.as_deref())
}

proptest! {
    #[test]
    fn what_is_written_is_read(record in record()) {
        prop_assert_eq!(decode(&record.encode()), Ok(record));
    }

    #[test]
    fn cut_and_twisted_records_are_refused_or_read_but_never_harm(
        record in record(), cut in any::<prop::sample::Index>(), twist in any::<prop::sample::Index>(), bits in any::<u8>()
    ) {
        let mut raw = record.encode();
        let mut key = raw.key.to_vec();
        let at = twist.index(key.len());
        key[at] ^= bits;
        let _ = Record::decode(&key, raw.value.as_deref());
        if let Some(value) = raw.value.take() {
            let short = &value[..cut.index(value.len())];
            prop_assert!(Record::decode(&raw.key, Some(short)).is_err(), "a value cut short is refused");
            let mut value = value.to_vec();
            let at = twist.index(value.len());
            value[at] ^= bits;
            let _ = Record::decode(&raw.key, Some(&value));
        }
    }

    #[test]
    fn random_bytes_do_no_harm(version in -1..5_i16, mut value in prop::collection::vec(any::<u8>(), 2..80), key in 0..3_i16) {
        value[..2].copy_from_slice(&version.to_be_bytes());
        let key = match key {
            2 => hex("0002 0001 67"),
            other => [other.to_be_bytes().to_vec(), hex("0001 67 0001 74 00000000")].concat(),
        };
        let _ = Record::decode(&key, Some(&value));
        let _ = Record::decode(&value, None);
    }
}

/// Bytes from hexadecimal digits; spaces and quoted text between them are for the reader.
fn hex(text: &str) -> Vec<u8> {
    let digits: Vec<u8> = text
        .chars()
        .filter(|letter| !letter.is_whitespace())
        .map(|digit| u8::try_from(digit.to_digit(16).unwrap()).unwrap())
        .collect();
    digits.chunks(2).map(|pair| pair[0] << 4 | pair[1]).collect()
}

#[test]
fn an_offset_is_stored_as_kafka_stores_it() {
    let record = Record::Offset {
        group: "grp".into(),
        topic: "to".into(),
        partition: 5,
        value: Some(StoredOffset {
            offset: 258,
            leader_epoch: 7,
            metadata: "m".into(),
            committed_at: 1_600_000_000_000,
            expires_at: None,
        }),
    };
    let raw = record.encode();
    // Version 1; group; topic; partition.
    assert_eq!(raw.key, hex("0001  0003 677270  0002 746f  00000005"));
    // Version 3; offset; leader epoch; metadata; commit timestamp.
    assert_eq!(raw.value.unwrap(), hex("0003  0000000000000102  00000007  0001 6d  000001748 76e8000"));
}

#[test]
fn an_offset_with_its_own_retention_is_stored_as_version_1() {
    let record = Record::Offset {
        group: "g".into(),
        topic: "t".into(),
        partition: 0,
        value: Some(StoredOffset {
            offset: 1,
            leader_epoch: -1,
            metadata: "".into(),
            committed_at: 2,
            expires_at: Some(3),
        }),
    };
    let value = record.encode().value.unwrap();
    assert_eq!(value, hex("0001  0000000000000001  0000  0000000000000002  0000000000000003"));
}

#[test]
fn a_group_is_stored_as_kafka_stores_it() {
    let record = Record::Group {
        group: "g1".into(),
        value: Some(StoredGroup {
            protocol_type: "consumer".into(),
            generation: 3,
            protocol: Some("range".into()),
            leader: Some("m-1".into()),
            since: 255,
            members: vec![
                StoredMember {
                    member: "m-1".into(),
                    instance: None,
                    client_id: "c".into(),
                    client_host: "/1".into(),
                    rebalance_timeout_ms: 300_000,
                    session_timeout_ms: 45_000,
                    subscription: Bytes::from_static(&[0, 1]),
                    assignment: Bytes::from_static(&[2]),
                },
                StoredMember {
                    member: "m-2".into(),
                    instance: Some("i".into()),
                    client_id: "".into(),
                    client_host: "/2".into(),
                    rebalance_timeout_ms: 1,
                    session_timeout_ms: 2,
                    subscription: Bytes::new(),
                    assignment: Bytes::new(),
                },
            ],
        }),
    };
    let raw = record.encode();
    // Version 2; group.
    assert_eq!(raw.key, hex("0002  0002 6731"));
    let header = "0003  0008 636f6e73756d6572  00000003  0005 72616e6765  0003 6d2d31  00000000000000ff";
    let first = "0003 6d2d31  ffff  0001 63  0002 2f31  000493e0  0000afc8  00000002 0001  00000001 02";
    let second = "0003 6d2d32  0001 69  0000  0002 2f32  00000001  00000002  00000000  00000000";
    assert_eq!(raw.value.unwrap(), hex(&format!("{header} 00000002 {first} {second}")));
}

#[test]
fn an_empty_group_has_no_protocol_and_no_leader() {
    let value = StoredGroup {
        protocol_type: "connect".into(),
        generation: 2,
        protocol: None,
        leader: None,
        since: 1,
        members: Vec::new(),
    };
    let raw = Record::Group { group: "g".into(), value: Some(value) }.encode();
    let expected = "0003  0007 636f6e6e656374  00000002  ffff  ffff  0000000000000001  00000000";
    assert_eq!(raw.value.unwrap(), hex(expected));
}

#[test]
fn tombstones_have_a_key_only() {
    let group = Record::Group { group: "g".into(), value: None }.encode();
    assert_eq!(group, RawRecord { key: hex("0002 0001 67").into(), value: None });
    let offset = Record::Offset { group: "g".into(), topic: "t".into(), partition: 1, value: None }.encode();
    assert_eq!(offset, RawRecord { key: hex("0001 0001 67 0001 74 00000001").into(), value: None });
}

#[test]
fn every_version_that_kafka_has_written_is_read() {
    let key = hex("0000 0001 67 0001 74 00000001");
    let offset = |value: &str| {
        let record = Record::decode(&key, Some(&hex(value))).unwrap();
        let Record::Offset { value: Some(value), .. } = record else { panic!("{record:?}") };
        value
    };
    let plain =
        StoredOffset { offset: 9, leader_epoch: -1, metadata: "m".into(), committed_at: 8, expires_at: None };
    assert_eq!(offset("0000 0000000000000009 0001 6d 0000000000000008"), plain);
    assert_eq!(
        offset("0001 0000000000000009 0001 6d 0000000000000008 0000000000000007"),
        StoredOffset { expires_at: Some(7), ..plain.clone() }
    );
    assert_eq!(offset("0001 0000000000000009 0001 6d 0000000000000008 ffffffffffffffff"), plain);
    assert_eq!(offset("0002 0000000000000009 0001 6d 0000000000000008"), plain);
    assert_eq!(
        offset("0004 0000000000000009 00000002 02 6d 0000000000000008 00"),
        StoredOffset { leader_epoch: 2, ..plain.clone() }
    );
    // Kafka 4.1's tagged topic id.
    assert_eq!(
        offset(
            "0004 0000000000000009 ffffffff 02 6d 0000000000000008 01 00 10 00112233445566778899aabbccddeeff"
        ),
        plain
    );

    let group = |value: &str| {
        let record = Record::decode(&hex("0002 0001 67"), Some(&hex(value))).unwrap();
        let Record::Group { value: Some(value), .. } = record else { panic!("{record:?}") };
        value
    };
    let member = StoredMember {
        member: "m".into(),
        instance: None,
        client_id: "c".into(),
        client_host: "h".into(),
        rebalance_timeout_ms: 6,
        session_timeout_ms: 6,
        subscription: Bytes::from_static(b"s"),
        assignment: Bytes::from_static(b"a"),
    };
    let full = StoredGroup {
        protocol_type: "p".into(),
        generation: 4,
        protocol: Some("r".into()),
        leader: Some("m".into()),
        since: -1,
        members: vec![member.clone()],
    };
    let tail = "00000006 00000001 73 00000001 61";
    let head = "0001 70 00000004 0001 72 0001 6d";
    assert_eq!(group(&format!("0000 {head} 00000001 0001 6d 0001 63 0001 68 {tail}")), full);
    assert_eq!(group(&format!("0001 {head} 00000001 0001 6d 0001 63 0001 68 00000006 {tail}")), full);
    assert_eq!(
        group(&format!("0002 {head} 0000000000000005 00000001 0001 6d 0001 63 0001 68 00000006 {tail}")),
        StoredGroup { since: 5, ..full.clone() }
    );
    assert_eq!(
        group(
            "0004 02 70 00000004 02 72 02 6d 0000000000000005 02 02 6d 02 69 02 63 02 68 00000006 00000006 02 73 02 61 00 00"
        ),
        StoredGroup {
            since: 5,
            members: vec![StoredMember { instance: Some("i".into()), ..member }],
            ..full
        }
    );
}

#[test]
fn other_kinds_are_skipped() {
    // KIP-848 group metadata (key 3), a value version of the future, share groups.
    assert_eq!(Record::decode(&hex("0003 0001 67"), Some(&hex("0000"))), Ok(Record::Unknown { version: 3 }));
    assert_eq!(Record::decode(&hex("000f 00"), None), Ok(Record::Unknown { version: 15 }));
    assert_eq!(
        Record::decode(&hex("0002 0001 67"), Some(&hex("0009 00"))),
        Ok(Record::Unknown { version: 9 })
    );
    assert_eq!(Record::decode(&[], None), Err(RecordError::Malformed { at: 0 }));
}
