//! Quotas as connections feel them.

use std::cell::RefCell;
use std::time::Duration;

use crate::broker::{API_VERSIONS, Broker, Client, METADATA, PRODUCE, metadata, produce, request};
use crate::connections::{now, topic};

const ALTER_CLIENT_QUOTAS: i16 = 49;

/// Two windows of a second: one second's worth may come at once.
const WINDOWS: &[&str] = &["--set", "quota.window.num=2"];

/// Sets a limit of the default entity of a kind.
fn limit(broker: &Broker, kind: &str, name: &str, value: f64) {
    let string = |text: &str| {
        let length = i16::try_from(text.len()).unwrap().to_be_bytes();
        [&length[..], text.as_bytes()].concat()
    };
    let body = [
        &1_i32.to_be_bytes()[..],
        &1_i32.to_be_bytes(),
        &string(kind),
        &(-1_i16).to_be_bytes(),
        &1_i32.to_be_bytes(),
        &string(name),
        &value.to_be_bytes(),
        &[0, 0],
    ]
    .concat();
    let answer = broker.connect().ask(ALTER_CLIENT_QUOTAS, 0, 1, &body);
    // Throttle time, number of entries, error.
    assert_eq!(answer[8..10], [0, 0], "{answer:?}");
}

/// The throttle time at the end of an answer to Produce, version 3.
fn throttle(answer: &[u8]) -> Duration {
    let last = answer[answer.len() - 4..].try_into().unwrap();
    Duration::from_millis(u64::try_from(i32::from_be_bytes(last)).unwrap())
}

#[test]
fn a_producer_cannot_send_ahead_of_its_rest() {
    let broker = Broker::start(WINDOWS);
    topic(&mut broker.connect(), "t");
    let value = vec![b'x'; 10_000];
    limit(&broker, "client-id", "producer_byte_rate", 20_000.0);
    let client = RefCell::new(broker.connect());
    // What the limit is known by: it holds from some moment on.
    broker.eventually("the limit holds", |broker| {
        let answer = client.borrow_mut().ask(PRODUCE, 3, 1, &produce("t", -1, &value));
        !throttle(&answer).is_zero() && broker.metric("felix_quota_entries") == 1
    });
    let mut client = client.into_inner();
    // Six at once: each is half a second, and the first rest must be over before the second is read.
    let mut all = Vec::new();
    for id in 0..6 {
        all.extend_from_slice(&request(PRODUCE, 3, id, &produce("t", -1, &value)));
    }
    let began = now();
    std::io::Write::write_all(&mut client.stream, &all).unwrap();
    let mut times = Vec::new();
    for id in 0..6 {
        let (got, answer) = client.receive();
        assert_eq!(got, id);
        times.push((began.elapsed(), throttle(&answer)));
    }
    let whole = times[5].0;
    assert!((Duration::from_millis(1_200)..Duration::from_secs(8)).contains(&whole), "{times:?}");
    assert!(times.iter().filter(|(_, told)| !told.is_zero()).count() >= 3, "{times:?}");
    // The last answer did not wait for its own rest; the next request does.
    let began = now();
    client.ask(API_VERSIONS, 0, 7, &[]);
    let (rested, told) = (began.elapsed(), times[5].1);
    assert!(rested + Duration::from_millis(50) >= told, "{rested:?} of {told:?}");
}

#[test]
fn time_of_threads_is_limited_too() {
    let broker = Broker::start(WINDOWS);
    topic(&mut broker.connect(), "t");
    limit(&broker, "user", "request_percentage", 0.001);
    let client = RefCell::new(broker.connect());
    // A thousandth of a percent is ten microseconds a second.
    broker.eventually("a rest", |broker| {
        client.borrow_mut().ask(METADATA, 1, 1, &metadata("t"));
        broker.page("/metrics").contains("felix_throttled_total{quota=\"request_percentage\"}")
    });
    let mut client = client.into_inner();
    let began = now();
    client.ask(METADATA, 1, 2, &metadata("t"));
    let rested = began.elapsed();
    assert!((Duration::from_millis(200)..Duration::from_secs(3)).contains(&rested), "{rested:?}");
}

#[test]
fn connections_of_one_address_wait_for_their_turn() {
    let broker = Broker::start(WINDOWS);
    limit(&broker, "ip", "connection_creation_rate", 4.0);
    let ask = |client: &mut Client| client.ask(API_VERSIONS, 0, 1, &[]);
    broker.eventually("the limit holds", |broker| {
        ask(&mut broker.connect());
        broker.metric("felix_quota_entries") == 1
    });
    let began = now();
    let mut clients: Vec<Client> = (0..12).map(|_| broker.connect()).collect();
    for client in &mut clients {
        ask(client);
    }
    let took = began.elapsed();
    // Four at once, eight in two seconds; the windows may have room for four more.
    assert!((Duration::from_millis(900)..Duration::from_secs(6)).contains(&took), "{took:?}");
}
