//! What clients can take of the broker's memory, and what others notice of it.

use std::io::{Read, Write};
use std::time::Duration;

use crate::broker::{
    API_VERSIONS, Broker, Client, DESCRIBE_CONFIGS, FETCH, PRODUCE, fetch, fetch_upto, produce,
};
use crate::connections::{now, topic};

const MIB: i64 = 1 << 20;

/// The system keeps little of an answer that is not taken, so the rest stays with the broker.
const SMALL_BUFFER: [&str; 2] = ["--set", "socket.send.buffer.bytes=65536"];

/// A client that will not read.
fn deaf(broker: &Broker, requests: &[u8]) -> Client {
    let mut client = broker.connect();
    client.stream.write_all(requests).unwrap();
    client
}

#[test]
fn answers_that_nobody_takes_stay_within_their_memory_and_a_reader_goes_on() {
    let limit = format!("felix.answer.bytes={}", 16 * MIB);
    let broker = Broker::start(&[&["--set", &limit], &SMALL_BUFFER[..]].concat());
    let mut client = broker.connect();
    topic(&mut client, "t");
    for _ in 0..40 {
        client.ask(PRODUCE, 3, 2, &produce("t", 1, &vec![7; 900_000]));
    }
    assert_eq!(broker.metric("felix_answer_limit_bytes"), 16 * MIB);
    assert_eq!(broker.metric("felix_answer_bytes"), 0);
    let before = broker.resident();
    // 36 MB an answer, on 40 connections.
    let wish = crate::broker::request(FETCH, 4, 1, &fetch_upto("t", 0, 0, 1, 50 << 20));
    let asking: Vec<Client> = (0..40).map(|_| deaf(&broker, &wish)).collect();
    broker.eventually("most memory taken", |broker| broker.metric("felix_answer_bytes") > 8 * MIB);
    broker.eventually("less is given", |broker| broker.metric("felix_answers_shortened_total") > 10);
    // Never more than the limit, and a batch for each connection.
    let held = broker.metric("felix_answer_bytes");
    assert!(held <= (16 + 40) * MIB, "{} MiB are held", held / MIB);
    let more = broker.resident().saturating_sub(before);
    assert!(more < 120 << 20, "{} MiB more are resident", more >> 20);
    // Whoever reads gets on: at least a batch each time.
    let began = now();
    for offset in 0..40 {
        let answer = client.ask(FETCH, 4, 3, &fetch_upto("t", offset, 0, 1, 50 << 20));
        assert!(answer.len() > 900_000 || offset == 0, "{} bytes at {offset}", answer.len());
    }
    assert!(began.elapsed() < Duration::from_secs(10), "{:?}", began.elapsed());
    drop(asking);
    broker.eventually("all given back", |broker| broker.metric("felix_answer_bytes") == 0);
}

#[test]
fn whoever_takes_no_answers_is_dropped_sooner_while_memory_is_short() {
    let broker = Broker::start(&[&["--set", "felix.answer.bytes=1000000"], &SMALL_BUFFER[..]].concat());
    let mut client = broker.connect();
    topic(&mut client, "t");
    for _ in 0..14 {
        client.ask(PRODUCE, 3, 2, &produce("t", 1, &vec![7; 950_000]));
    }
    let began = now();
    // More than the system keeps for a connection.
    let wishes: Vec<u8> = (1..13)
        .flat_map(|offset| crate::broker::request(FETCH, 4, 1, &fetch_upto("t", offset, 0, 1, 1)))
        .collect();
    let _asking: Vec<Client> = (0..3).map(|_| deaf(&broker, &wishes)).collect();
    broker.eventually("asked", |broker| broker.metric("felix_connections") == 4);
    broker.eventually("dropped", |broker| broker.metric("felix_connections") == 1);
    assert!(began.elapsed() > Duration::from_secs(4), "{:?}", began.elapsed());
    client.ask(API_VERSIONS, 0, 9, &[]);
    broker.eventually("all given back", |broker| broker.metric("felix_answer_bytes") == 0);
}

#[test]
fn parked_requests_hold_little_and_nothing_once_their_sockets_are_gone() {
    let broker = Broker::start(&[]);
    let mut client = broker.connect();
    topic(&mut client, "t");
    client.ask(PRODUCE, 3, 2, &produce("t", 1, &vec![7; 500_000]));
    // Half a megabyte is there, more is asked for: it is not held while the rest is waited for.
    let wish = crate::broker::request(FETCH, 4, 1, &fetch("t", 0, 60_000, 1 << 20));
    let parked: Vec<Client> = (0..200).map(|_| deaf(&broker, &wish)).collect();
    broker.eventually("parked", |broker| broker.metric("felix_answer_bytes") >= 200 * 100);
    broker.eventually("little held", |broker| broker.metric("felix_answer_bytes") < 200 * 1_000);
    drop(parked);
    broker.eventually("nothing held", |broker| broker.metric("felix_answer_bytes") == 0);
}

#[test]
fn frames_that_drip_keep_no_memory_from_others() {
    let limit = "queued.max.request.bytes=2000000";
    let broker = Broker::start(&["--set", limit, "--set", "socket.request.max.bytes=2000000"]);
    let mut client = broker.connect();
    topic(&mut client, "t");
    // Each announces almost all there is and sends a twelfth of it: what was announced would leave nothing to others.
    let drip = |count: usize| {
        let mut frame = 1_900_000_i32.to_be_bytes().to_vec();
        frame.resize(count, 0);
        deaf(&broker, &frame)
    };
    let mut dripping: Vec<Client> = (0..4).map(|_| drip(150_000)).collect();
    let began = now();
    for id in 0..5 {
        client.ask(PRODUCE, 3, id, &produce("t", 1, &vec![1; 500_000]));
    }
    assert!(began.elapsed() < Duration::from_secs(5), "{:?}", began.elapsed());
    for client in &mut dripping {
        client.stream.write_all(&[0; 10]).unwrap();
    }
    client.ask(API_VERSIONS, 0, 9, &[]);
}

#[test]
fn a_healthy_broker_lists_no_halted_copies() {
    let broker = Broker::start(&[]);
    let page = broker.page("/replication/halted");
    assert!(page.starts_with("HTTP/1.1 200") && page.ends_with("\r\n\r\n[]\n"), "{page}");
}

/// DescribeConfigs of so many groups that nobody has heard of: an answer a hundred times as large.
fn describe_groups(count: i32) -> Vec<u8> {
    let mut body = count.to_be_bytes().to_vec();
    for number in 0..count {
        let name = format!("group-{number}");
        body.push(32);
        body.extend(i16::try_from(name.len()).unwrap().to_be_bytes());
        body.extend(name.as_bytes());
        body.extend((-1_i32).to_be_bytes());
    }
    body.push(1);
    body
}

#[test]
fn large_lists_take_turns_and_nobody_else_feels_them() {
    let limit = format!("felix.answer.bytes={}", 16 * MIB);
    let broker = Broker::start(&[&["--set", &limit], &SMALL_BUFFER[..]].concat());
    let mut client = broker.connect();
    let one = i64::try_from(client.ask(DESCRIBE_CONFIGS, 1, 1, &describe_groups(3_000)).len()).unwrap();
    assert!(one > 4 * MIB, "{one} bytes");
    let before = broker.resident();
    // Thirty such answers, eight times the limit in all, and nobody reads one.
    let wish = crate::broker::request(DESCRIBE_CONFIGS, 1, 1, &describe_groups(3_000));
    let asking: Vec<Client> = (0..30).map(|_| deaf(&broker, &wish)).collect();
    broker.eventually("most memory taken", |broker| broker.metric("felix_answer_bytes") > 12 * MIB);
    // Others are answered meanwhile, and one more large list is, too: whoever reads nothing is dropped.
    let began = now();
    let mut longest = Duration::ZERO;
    for number in 0..200 {
        let asked = now();
        client.ask(API_VERSIONS, 0, number, &[]);
        longest = longest.max(asked.elapsed());
        let held = broker.metric("felix_answer_bytes");
        assert!(held <= 12 * MIB + 5 * one, "{} MiB are held", held / MIB);
    }
    assert!(longest < Duration::from_secs(3), "{longest:?}");
    let more = broker.resident().saturating_sub(before);
    assert!(more < 250 << 20, "{} MiB more are resident", more >> 20);
    // A list for which there is no memory left in the middle of it ends its connection; whoever comes again gets it.
    let read = |_| {
        let mut client = broker.connect();
        client.stream.set_read_timeout(Some(Duration::from_secs(60))).unwrap();
        client.send(DESCRIBE_CONFIGS, 1, 2, &describe_groups(3_000));
        let mut answer = vec![0; usize::try_from(one).unwrap()];
        client.stream.read_exact(&mut answer).is_ok()
    };
    assert!((0..30).any(read), "never answered");
    assert!(began.elapsed() < Duration::from_secs(180), "{:?}", began.elapsed());
    drop(asking);
    broker.eventually("all given back", |broker| broker.metric("felix_answer_bytes") == 0);
}
