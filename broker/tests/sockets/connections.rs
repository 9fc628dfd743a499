//! Connections as a hostile or clumsy client sees them: framing, order, limits, silence.

use std::io::{Read, Write};
use std::time::{Duration, Instant};

use crate::broker::{
    API_VERSIONS, Broker, Client, FETCH, METADATA, PRODUCE, fetch, metadata, produce, request,
};

#[expect(clippy::disallowed_methods, reason = "the test measures from outside")]
pub fn now() -> Instant {
    Instant::now()
}

/// Creates a topic by asking for it, and waits until it takes records.
pub fn topic(client: &mut Client, name: &str) {
    // Array of topics, name, array of partitions, index, error.
    let at = 4 + 2 + name.len() + 4 + 4;
    let began = now();
    loop {
        client.ask(METADATA, 1, 1, &metadata(name));
        let answer = client.ask(PRODUCE, 3, 2, &produce(name, -1, b"first"));
        match answer[at..at + 2] {
            [0, 0] => return,
            // Not known yet, no leader yet, not led yet: what a new topic may answer for a moment.
            [0, 3 | 5 | 6] if began.elapsed() < Duration::from_secs(10) => {}
            _ => panic!("{answer:?}"),
        }
    }
}

#[test]
fn answers_come_in_the_order_of_the_requests_without_those_that_want_none() {
    let broker = Broker::start(&[]);
    let mut client = broker.connect();
    topic(&mut client, "t");
    let began = now();
    client.send(FETCH, 4, 10, &fetch("t", 1, 1_000, 1 << 20));
    client.send(METADATA, 1, 11, &metadata("t"));
    client.send(PRODUCE, 3, 12, &produce("t", 0, b"unanswered"));
    client.send(API_VERSIONS, 0, 13, &[]);
    client.send(PRODUCE, 3, 14, &produce("t", -1, b"answered"));
    let ids: Vec<i32> = (0..4).map(|_| client.receive().0).collect();
    assert_eq!(ids, [10, 11, 13, 14]);
    assert!(began.elapsed() >= Duration::from_millis(990), "the fetch waited for its time");
    // All three were appended while the fetch waited, in their order.
    let answer = client.ask(FETCH, 4, 15, &fetch("t", 0, 0, 0));
    let at = |text: &[u8]| answer.windows(text.len()).position(|window| window == text).unwrap();
    assert!(at(b"first") < at(b"unanswered") && at(b"unanswered") < at(b"answered\0"));
}

#[test]
fn a_long_poll_wakes_for_data_and_for_nothing_else() {
    let broker = Broker::start(&[]);
    let mut reader = broker.connect();
    let mut writer = broker.connect();
    topic(&mut writer, "t");
    let began = now();
    let empty = reader.ask(FETCH, 4, 1, &fetch("t", 1, 300, 1));
    assert!((295..2_000).contains(&began.elapsed().as_millis()), "{:?}", began.elapsed());
    assert!(!empty.windows(4).any(|window| window == b"wake"));
    reader.send(FETCH, 4, 2, &fetch("t", 1, 15_000, 1));
    writer.ask(PRODUCE, 3, 3, &produce("t", 1, b"wake"));
    let began = now();
    let (_, woken) = reader.receive();
    assert!(began.elapsed() < Duration::from_secs(5));
    assert!(woken.windows(4).any(|window| window == b"wake"));
}

#[test]
fn what_cannot_be_answered_closes_its_own_connection_only() {
    let broker = Broker::start(&[]);
    let mut bystander = broker.connect();
    let wrong: &[(&str, Vec<u8>)] = &[
        ("an unknown key", request(999, 0, 1, &[])),
        ("a version too new", request(METADATA, 99, 1, &[])),
        ("a version listed for old clients' sake", request(PRODUCE, 2, 1, &[])),
        ("a length beyond the limit", i32::MAX.to_be_bytes().to_vec()),
        ("a negative length", (-1_i32).to_be_bytes().to_vec()),
        ("an empty frame", 0_i32.to_be_bytes().to_vec()),
        ("a hostile count", request(METADATA, 1, 1, &i32::MAX.to_be_bytes())),
        ("text", b"GET / HTTP/1.1\r\nHost: localhost\r\n\r\n".to_vec()),
    ];
    for (what, bytes) in wrong {
        let mut client = broker.connect();
        client.stream.write_all(bytes).unwrap();
        assert!(client.is_closed(), "{what}");
        bystander.ask(API_VERSIONS, 0, 7, &[]);
    }
    // What came before still is answered.
    let mut client = broker.connect();
    let two = [request(API_VERSIONS, 0, 1, &[]), request(999, 0, 2, &[])].concat();
    client.stream.write_all(&two).unwrap();
    assert_eq!(client.receive().0, 1);
    assert!(client.is_closed());
}

#[test]
fn api_versions_too_new_is_told_what_we_speak() {
    let broker = Broker::start(&[]);
    let mut client = broker.connect();
    let answer = client.ask(API_VERSIONS, 9, 1, b"\0whatever stands here");
    assert_eq!(answer, [0, 35, 0, 0, 0, 1, 0, 18, 0, 0, 0, 4]);
    client.ask(API_VERSIONS, 0, 2, &[]);
}

#[test]
fn silent_connections_are_cheap_and_claimed_lengths_cost_nothing() {
    let broker = Broker::start(&[]);
    let warm: Vec<Client> = (0..50).map(|_| broker.connect()).collect();
    broker.eventually("connected", |broker| broker.metric("felix_connections") == 50);
    let before = broker.resident();
    const COUNT: u32 = 1_000;
    let silent: Vec<Client> = (0..COUNT).map(|_| broker.connect()).collect();
    broker.eventually("connected", |broker| broker.metric("felix_connections") == 1_050);
    let each = broker.resident().saturating_sub(before) / u64::from(COUNT);
    assert!(each < 8 * 1024, "{each} bytes a silent connection");
    let mut claiming = silent;
    for client in &mut claiming {
        client.stream.write_all(&100_000_000_i32.to_be_bytes()).unwrap();
    }
    warm.into_iter().for_each(|mut client| drop(client.ask(API_VERSIONS, 0, 1, &[])));
    let each = broker.resident().saturating_sub(before) / u64::from(COUNT);
    assert!(each < 32 * 1024, "{each} bytes a connection that claims much");
    drop(claiming);
    broker.eventually("all gone", |broker| broker.metric("felix_connections") == 0);
}

#[test]
fn whoever_never_reads_stalls_only_himself() {
    let broker = Broker::start(&[]);
    let mut writer = broker.connect();
    topic(&mut writer, "t");
    let value = vec![7; 500_000];
    writer.ask(PRODUCE, 3, 3, &produce("t", 1, &value));
    let before = broker.resident();
    let mut deaf = broker.connect();
    deaf.stream.set_write_timeout(Some(Duration::from_millis(500))).unwrap();
    let requests = request(FETCH, 4, 1, &fetch("t", 0, 0, 1)).repeat(1_000);
    let mut sent = 0;
    // Until the broker takes no more, or everything is sent: 20,000 answers of half a megabyte are never made.
    for _ in 0..20 {
        match deaf.stream.write(&requests) {
            Ok(count) => sent += count,
            Err(_) => break,
        }
    }
    assert!(sent > 0);
    writer.ask(PRODUCE, 3, 4, &produce("t", 1, b"goes on"));
    let more = broker.resident().saturating_sub(before);
    assert!(more < 32 << 20, "{more} bytes for a client that never reads");
}

#[test]
fn parked_polls_end_with_their_sockets() {
    let broker = Broker::start(&[]);
    let mut writer = broker.connect();
    topic(&mut writer, "t");
    let parked: Vec<Client> = (0..500)
        .map(|_| {
            let mut client = broker.connect();
            client.send(FETCH, 4, 1, &fetch("t", 1, 60_000, 1));
            client
        })
        .collect();
    broker.eventually("connected", |broker| broker.metric("felix_connections") == 501);
    drop(parked);
    broker.eventually("released", |broker| broker.metric("felix_connections") == 1);
}

#[test]
fn silence_ends_a_connection_but_waiting_is_not_silence() {
    let broker = Broker::start(&["--set", "connections.max.idle.ms=1000"]);
    let mut waiting = broker.connect();
    topic(&mut waiting, "t");
    let began = now();
    let mut silent = broker.connect();
    waiting.send(FETCH, 4, 5, &fetch("t", 1, 2_500, 1));
    assert_eq!(silent.stream.read(&mut [0; 1]).unwrap(), 0, "a clean end");
    assert!((900..3_000).contains(&began.elapsed().as_millis()), "{:?}", began.elapsed());
    assert_eq!(waiting.receive().0, 5);
    assert!(began.elapsed() >= Duration::from_millis(2_450));
}

#[test]
fn one_address_has_its_limit() {
    let broker = Broker::start(&["--set", "max.connections.per.ip=2"]);
    let (mut one, mut two) = (broker.connect(), broker.connect());
    one.ask(API_VERSIONS, 0, 1, &[]);
    two.ask(API_VERSIONS, 0, 1, &[]);
    assert!(broker.connect().is_closed());
    drop(one);
    broker.eventually("a free place", |broker| broker.metric("felix_connections") == 1);
    broker.connect().ask(API_VERSIONS, 0, 1, &[]);
}

#[test]
fn large_frames_arrive_whole_however_they_are_cut() {
    let broker = Broker::start(&["--set", "message.max.bytes=8000000"]);
    let mut client = broker.connect();
    topic(&mut client, "t");
    for size in [100_000, 1_000_000, 5_000_000] {
        let value: Vec<u8> = (0..size).map(|at: u32| u8::try_from(at % 251).unwrap()).collect();
        let frame = request(PRODUCE, 3, 9, &produce("t", 1, &value));
        for piece in frame.chunks(70_001) {
            client.stream.write_all(piece).unwrap();
        }
        let (id, answer) = client.receive();
        assert_eq!(id, 9);
        assert_eq!(answer[4 + 3 + 4 + 4..][..2], [0, 0], "{size} bytes: {answer:?}");
    }
}
