use bytes::BufMut;
use proptest::collection::vec;
use proptest::prelude::*;

use super::bootstrap::Restart;
use super::hello::Disagree;
use super::ship::{Answer, Part, Said, TenureHeader};
use super::standing::Standing;
use super::*;
use crate::frame::{self, Split};
use crate::ids::{BrokerId, Generation, LogId, PartitionId, SessionId, TopicId, Uuid};

const MOST: usize = 1 << 20;

fn generations() -> impl Strategy<Value = Generation> {
    (0..=i32::MAX as u32).prop_map(|number| Generation::new(number).unwrap())
}

fn logs() -> impl Strategy<Value = LogId> {
    any::<u128>().prop_map(|number| LogId(Uuid::from_u128(number)))
}

fn partitions() -> impl Strategy<Value = PartitionId> {
    (any::<u128>(), any::<i32>())
        .prop_map(|(topic, index)| PartitionId { topic: TopicId(Uuid::from_u128(topic)), index })
}

fn headers() -> impl Strategy<Value = TenureHeader> {
    let starts = (0..i64::MAX, 0..i64::MAX);
    (starts, vec((generations(), 0..i64::MAX), 0..5), generations(), proptest::option::of(generations()))
        .prop_map(|((begins, base), entries, complete_from, unclean_at)| TenureHeader {
            begins,
            base,
            entries,
            complete_from,
            unclean_at,
        })
}

fn parts() -> impl Strategy<Value = Part> {
    let whose = (partitions(), any::<u64>(), generations(), proptest::option::of(logs()));
    let where_it_is = (0..i64::MAX, 0..i64::MAX, 0..i64::MAX, 0..1_000_000i64, 0..1_000_000i64);
    let what =
        (proptest::option::of(headers()), proptest::option::of(generations()), vec(any::<u8>(), 0..50));
    (whose, where_it_is, what).prop_map(|(whose, where_it_is, what)| {
        let (partition, key_revision, generation, log) = whose;
        let (mark, log_start, log_end, from, behind) = where_it_is;
        let (header, before, records) = what;
        let records = if records.is_empty() { Vec::new() } else { vec![Bytes::from(records)] };
        let next = from + behind;
        Part {
            partition,
            key_revision,
            generation,
            log,
            header,
            mark,
            log_start,
            log_end,
            from,
            next,
            before,
            records,
        }
    })
}

fn answers() -> impl Strategy<Value = Answer> {
    let said = prop_oneof![
        Just(Said::Stored),
        Just(Said::Fenced),
        Just(Said::LogGap),
        Just(Said::NeedHeader),
        generations().prop_map(Said::NeedMap),
        Just(Said::Retry),
        any::<u8>().prop_map(Said::Halted),
        Just(Said::Refused),
        Just(Said::Empty),
        (9..=u8::MAX).prop_map(Said::Other),
    ];
    (partitions(), generations(), proptest::option::of(logs()), 0..i64::MAX, said)
        .prop_map(|(partition, generation, log, end, said)| Answer { partition, generation, log, end, said })
}

fn restarts() -> impl Strategy<Value = Restart> {
    (partitions(), any::<u64>(), generations(), logs(), 0..i64::MAX / 2, 0..1000i64).prop_map(
        |(partition, key_revision, generation, log, base, within)| Restart {
            partition,
            key_revision,
            generation,
            log,
            base,
            log_start: base + within,
        },
    )
}

fn standings() -> impl Strategy<Value = Standing> {
    (partitions(), proptest::option::of(logs()), generations(), 0..i64::MAX, any::<bool>())
        .prop_map(|(partition, log, accepted, end, doubt)| Standing { partition, log, accepted, end, doubt })
}

fn messages() -> impl Strategy<Value = Message> {
    let hello = (any::<u16>(), any::<u16>(), "[a-zA-Z0-9_-]{0,22}", any::<i32>(), any::<u64>()).prop_map(
        |(version, oldest, cluster, node, session)| Hello {
            version,
            oldest,
            cluster,
            node: BrokerId(node),
            session: SessionId(session),
        },
    );
    prop_oneof![
        hello.prop_map(Message::Hello),
        any::<u16>().prop_map(Message::UnsupportedKind),
        vec(parts(), 0..4).prop_map(|parts| Message::Ship(Ship { parts })),
        vec(answers(), 0..4).prop_map(|answers| Message::Answers(Answers { answers })),
        restarts().prop_map(|restart| Message::Bootstrap(Bootstrap(restart))),
        restarts().prop_map(|restart| Message::Rebuild(Rebuild(restart))),
        vec(partitions(), 0..4).prop_map(|partitions| Message::StandingQuery(StandingQuery { partitions })),
        vec(standings(), 0..4).prop_map(|standings| Message::StandingAnswers(StandingAnswers { standings })),
    ]
}

/// The frame as a socket would bring it, cut off the way it is there.
fn over_the_wire(pieces: &[Bytes]) -> Bytes {
    let mut buffer = BytesMut::new();
    for piece in pieces {
        buffer.put_slice(piece);
    }
    match frame::split(&mut buffer, MOST).unwrap() {
        Split::Frame(frame) => {
            assert!(buffer.is_empty());
            frame
        }
        Split::Missing(missing) => panic!("{missing} bytes are missing"),
    }
}

proptest! {
    #[test]
    fn messages_come_as_they_went(correlation in any::<u64>(), message in messages()) {
        let frame = over_the_wire(&encode(correlation, &message).unwrap());
        prop_assert_eq!(decode(frame), Ok((correlation, Received::Message(message))));
    }

    /// A peer one version newer adds fields at the end of every structure: this one does not even notice.
    #[test]
    fn what_a_newer_version_adds_is_passed_over(message in messages()) {
        let pieces = written(7, &message, Out::of_newer_version(b"more than is known")).unwrap();
        prop_assert_eq!(decode(over_the_wire(&pieces)), Ok((7, Received::Message(message))));
    }

    #[test]
    fn a_frame_that_ends_early_is_refused(message in messages()) {
        let frame = over_the_wire(&encode(1, &message).unwrap());
        for end in 0..frame.len() {
            prop_assert!(decode(frame.slice(..end)).is_err(), "cut at {end}");
        }
    }

    #[test]
    fn no_bytes_make_it_fall_over(kind in 0..20u16, bytes in vec(any::<u8>(), 0..300)) {
        let mut frame = BytesMut::new();
        frame.put_u16(kind);
        frame.put_u64(1);
        frame.put_slice(&bytes);
        let _ = decode(frame.freeze());
        let _ = decode(Bytes::from(bytes));
    }
}

#[test]
fn an_unknown_kind_is_named_under_its_correlation_id() {
    let mut frame = BytesMut::new();
    frame.put_u16(999);
    frame.put_u64(42);
    frame.put_slice(b"whatever");
    let (correlation, received) = decode(frame.freeze()).unwrap();
    assert_eq!((correlation, received), (42, Received::Unknown(999)));
    let refusal = over_the_wire(&encode(42, &Message::UnsupportedKind(999)).unwrap());
    assert_eq!(decode(refusal), Ok((42, Received::Message(Message::UnsupportedKind(999)))));
}

#[test]
fn records_are_never_copied() {
    let (first, second) = (Bytes::from(vec![1; 100]), Bytes::from(vec![2; 50]));
    let part = Part {
        partition: PartitionId { topic: TopicId::NONE, index: 0 },
        key_revision: 1,
        generation: Generation::ZERO,
        log: None,
        header: None,
        mark: 0,
        log_start: 0,
        log_end: 20,
        from: 0,
        next: 10,
        before: None,
        records: vec![first.clone(), second.clone()],
    };
    let other = Part { from: 10, next: 20, records: vec![second.clone()], ..part.clone() };
    let pieces = encode(1, &Message::Ship(Ship { parts: vec![part, other] })).unwrap();
    let at = |bytes: &Bytes| pieces.iter().filter(|piece| piece.as_ptr() == bytes.as_ptr()).count();
    assert_eq!((at(&first), at(&second)), (1, 2), "sent from where they were");
    let frame = over_the_wire(&pieces);
    let Ok((_, Received::Message(Message::Ship(ship)))) = decode(frame.clone()) else { panic!() };
    let inside = frame.as_ptr_range();
    for part in &ship.parts {
        assert!(inside.contains(&part.records[0].as_ptr()), "read where they came");
    }
    assert_eq!(ship.parts[0].records[0].as_ref(), [first, second].concat());
}

#[test]
fn hostile_lengths_reserve_nothing() {
    for kind in [kind::SHIP, kind::ANSWERS, kind::STANDING_QUERY, kind::STANDING_ANSWERS] {
        let mut frame = BytesMut::new();
        frame.put_u16(kind);
        frame.put_u64(1);
        frame.put_u32(u32::MAX);
        frame.put_slice(&[0; 64]);
        let refused = decode(frame.freeze()).unwrap_err();
        assert!(matches!(refused, PeerError::Count { count: u32::MAX, rest: 64, .. }), "{refused}");
    }
}

#[test]
fn only_brokers_of_the_same_cluster_that_are_who_they_should_be_go_on() {
    let hello =
        Hello { version: 1, oldest: 1, cluster: "here".to_owned(), node: BrokerId(3), session: SessionId(9) };
    assert_eq!(hello.agree("here", Some(BrokerId(3))), Ok(1));
    assert_eq!(hello.agree("here", None), Ok(1));
    assert!(matches!(hello.agree("there", None), Err(Disagree::Cluster { .. })));
    assert!(matches!(hello.agree("here", Some(BrokerId(4))), Err(Disagree::Node { .. })));
    let newer = Hello { version: 9, ..hello.clone() };
    assert_eq!(newer.agree("here", None), Ok(1), "it still speaks ours");
    let much_newer = Hello { version: 9, oldest: 8, ..hello.clone() };
    assert!(matches!(much_newer.agree("here", None), Err(Disagree::Version { .. })));
    let older = Hello { version: 0, oldest: 0, ..hello };
    assert!(matches!(older.agree("here", None), Err(Disagree::Version { .. })));
}

#[test]
fn a_client_that_took_the_port_for_its_own_is_told_apart() {
    let mut buffer = BytesMut::from(&MAGIC[..5]);
    assert_eq!(take_magic(&mut buffer), None);
    buffer.put_slice(&MAGIC[5..]);
    buffer.put_slice(b"rest");
    assert_eq!(take_magic(&mut buffer), Some(Ok(())));
    assert_eq!(&buffer[..], b"rest");
    let mut request = BytesMut::from(&b"\0\0\0\x23\0\x12\0\x04\0\0\0\x01"[..]);
    assert!(matches!(take_magic(&mut request), Some(Err(_))));
    // As a length in front of a request, the first bytes would be refused by Kafka as well.
    assert!(frame::frame_length(MAGIC[..4].try_into().unwrap(), MOST).is_err());
}
