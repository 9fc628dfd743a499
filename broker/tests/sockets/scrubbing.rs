//! A byte that a disk changes in an old segment: found by the running broker and by `felix verify`.

use std::fs::OpenOptions;
use std::os::unix::fs::FileExt;
use std::path::{Path, PathBuf};
use std::process::{Command, Output};

use crate::broker::{Broker, Client, FETCH, PRODUCE, fetch, produce};
use crate::start::new_topic;

const SETTINGS: &[&str] = &[
    "--set",
    "log.segment.bytes=1048576",
    "--set",
    "felix.tail.bytes=0",
    "--set",
    "felix.scrub.interval.ms=200",
    "--set",
    "felix.scrub.bytes.per.second=1000000000",
];
const CORRUPT_MESSAGE: i16 = 2;
const FIRST: &str = "00000000000000000000";

/// The folder of the only partition that has more than one segment.
fn cold(data: &Path) -> PathBuf {
    let mut folders = std::fs::read_dir(data).unwrap().map(|entry| entry.unwrap().path());
    folders.find(|folder| folder.join("00000000000000000001.log").exists()).unwrap()
}

fn flip(path: &Path, at: u64) {
    let file = OpenOptions::new().read(true).write(true).open(path).unwrap();
    let mut byte = [0];
    file.read_exact_at(&mut byte, at).unwrap();
    file.write_all_at(&[byte[0] ^ 0x20], at).unwrap();
}

fn verify(data: &Path) -> (Option<i32>, String) {
    let Output { status, stdout, stderr } =
        Command::new(env!("CARGO_BIN_EXE_felix")).arg("verify").arg(data).output().unwrap();
    let text = [stdout, stderr].concat();
    (status.code(), String::from_utf8(text).unwrap())
}

/// The error code of a fetch of one record.
fn fetched(client: &mut Client, topic: &str, offset: i64) -> i16 {
    let at = 4 + 4 + 2 + topic.len() + 4 + 4;
    let answer = client.ask(FETCH, 4, 9, &fetch(topic, offset, 0, 0));
    i16::from_be_bytes(answer[at..at + 2].try_into().unwrap())
}

/// A broker with three segments of one topic, two of them closed, and one record of another.
fn filled() -> Broker {
    let broker = Broker::start(SETTINGS);
    let mut client = broker.connect();
    new_topic(&mut client, "cold");
    new_topic(&mut client, "other");
    for _ in 0..3 {
        client.ask(PRODUCE, 3, 1, &produce("cold", -1, &vec![7; 700_000]));
    }
    client.ask(PRODUCE, 3, 1, &produce("other", -1, b"small"));
    broker
}

#[test]
fn a_changed_byte_is_found_while_the_broker_runs_and_only_its_readers_notice() {
    let mut broker = filled();
    let (data, folder) = (broker.data(), cold(&broker.data()));
    broker.eventually("a look at old segments", |broker| broker.metric("felix_scrubbed_segments_total") >= 2);
    assert_eq!(broker.metric("felix_damaged_places"), 0);
    assert!(broker.page("/healthz").contains("200 OK"));
    let log = folder.join(FIRST).with_extension("log");
    flip(&log, 300_000);
    broker.eventually("the damage is seen", |broker| broker.metric("felix_damaged_places") == 1);
    let is_told = |broker: &Broker| {
        let page = broker.page("/healthz");
        page.contains("503") && page.contains(log.to_str().unwrap()) && page.contains("byte 0")
    };
    assert!(is_told(&broker), "{}", broker.page("/healthz"));
    // The copy cannot vouch for what it promised: it leads again under a new identity, as nobody holds more.
    broker.eventually("a loss event", |broker| broker.metric("felix_broker_loss_events_total") == 1);
    broker.eventually("led again", |broker| fetched(&mut broker.connect(), "cold", 1) == 0);
    let mut client = broker.connect();
    assert_eq!(fetched(&mut client, "cold", 0), CORRUPT_MESSAGE);
    assert_eq!(fetched(&mut client, "other", 0), 0);
    client.ask(PRODUCE, 3, 1, &produce("cold", -1, b"goes on"));
    assert_eq!(fetched(&mut client, "cold", 3), 0);
    assert_eq!(broker.metric("felix_broker_loss_events_total"), 1, "settled once");
    // The next start knows without a scrub.
    assert_eq!(broker.terminate().code(), Some(0));
    let broker = Broker::start_in(broker.kill(), &["--set", "felix.scrub.bytes.per.second=0"]);
    broker.eventually("known at the start", is_told);
    broker.eventually("led", |broker| fetched(&mut broker.connect(), "cold", 1) == 0);
    assert_eq!(fetched(&mut broker.connect(), "cold", 0), CORRUPT_MESSAGE);
    // And so does one that finds the byte put right, and forgets it.
    let directory = broker.kill();
    flip(&log, 300_000);
    let mut broker = Broker::start_in(directory, SETTINGS);
    broker.eventually("all is back", |broker| fetched(&mut broker.connect(), "cold", 0) == 0);
    assert!(broker.page("/healthz").contains("200 OK"));
    flip(&log, 300_000);
    broker.eventually("the damage is seen again", is_told);
    let (code, text) = verify(&data);
    assert_eq!(code, Some(2), "a directory in use is not looked at: {text}");
    assert!(text.contains("locked"), "{text}");
    assert_eq!(broker.terminate().code(), Some(0));
    let (code, text) = verify(&data);
    assert_eq!(code, Some(1), "{text}");
    let line = text.lines().find(|line| line.starts_with("DAMAGE")).unwrap();
    assert!(line.contains(log.to_str().unwrap()) && line.contains("at byte 0"), "{line}");
}

#[test]
fn a_byte_changed_while_the_broker_was_away_is_found_after_its_start() {
    let mut broker = filled();
    assert_eq!(broker.terminate().code(), Some(0));
    let (data, folder) = (broker.data(), cold(&broker.data()));
    let (code, text) = verify(&data);
    assert_eq!(code, Some(0), "{text}");
    // A byte that no batch's checksum covers: the generation.
    let log = folder.join(FIRST).with_extension("log");
    flip(&log, 14);
    let directory = broker.kill();
    let mut broker = Broker::start_in(directory, SETTINGS);
    broker.eventually("the damage is seen", |broker| broker.metric("felix_damaged_places") == 1);
    assert!(broker.page("/healthz").contains(log.to_str().unwrap()));
    assert_eq!(fetched(&mut broker.connect(), "other", 0), 0);
    assert_eq!(broker.terminate().code(), Some(0));
    assert_eq!(verify(&data).0, Some(1));
    // The byte is put right, and now the seal lies.
    flip(&log, 14);
    flip(&folder.join(FIRST).with_extension("seal"), 33);
    let (code, text) = verify(&data);
    assert_eq!(code, Some(1), "{text}");
    assert!(text.lines().any(|line| line.starts_with("WRONG") && line.contains(".seal")), "{text}");
    let mut broker = Broker::start_in(broker.kill(), SETTINGS);
    broker.eventually("the seal is made anew", |broker| broker.metric("felix_seals_made_total") == 1);
    assert!(broker.page("/healthz").contains("200 OK"));
    assert_eq!(broker.terminate().code(), Some(0));
    let (code, text) = verify(&data);
    assert_eq!(code, Some(0), "{text}");
}

/// Sets a cluster-wide default, by IncrementalAlterConfigs.
fn set(client: &mut Client, name: &str, value: &str) {
    let text = |text: &str| [&u16::try_from(text.len()).unwrap().to_be_bytes(), text.as_bytes()].concat();
    let one = 1_i32.to_be_bytes();
    let body = [&one[..], &[4], &text(""), &one, &text(name), &[0], &text(value), &[0]].concat();
    let answer = client.ask(44, 0, 5, &body);
    // Behind the throttle time and the count.
    assert_eq!(answer[8..10], [0, 0], "{answer:?}");
}

#[test]
fn the_pace_changes_while_the_broker_runs() {
    let broker =
        Broker::start(&["--set", "log.segment.bytes=1048576", "--set", "felix.scrub.bytes.per.second=0"]);
    let mut client = broker.connect();
    new_topic(&mut client, "cold");
    for _ in 0..3 {
        client.ask(PRODUCE, 3, 1, &produce("cold", -1, &vec![7; 700_000]));
    }
    let looked = |broker: &Broker| broker.metric("felix_scrubbed_segments_total");
    assert_eq!(looked(&broker), 0);
    set(&mut client, "felix.scrub.interval.ms", "200");
    set(&mut client, "felix.scrub.bytes.per.second", "1000000000");
    broker.eventually("looks, over and over", |broker| looked(broker) >= 6);
    set(&mut client, "felix.scrub.bytes.per.second", "0");
    // The look that was under way ends; then the figure stands still for more than two intervals.
    let (last, same) = (std::cell::Cell::new(-1), std::cell::Cell::new(0));
    broker.eventually("no more looks", |broker| {
        let stood = last.replace(looked(broker)) == last.get();
        same.set(if stood { same.get() + 1 } else { 0 });
        same.get() == 10
    });
}
