//! Records that a disk changed or lost while the broker was away, by segment and with and without its seal: readers
//! of them are told, nothing else suffers, the next start knows, and the file put back heals.

use std::fs;
use std::path::{Path, PathBuf};

use crate::broker::{Broker, FETCH, PRODUCE, fetch, produce};
use crate::side_files::copy;
use crate::start::new_topic;

/// Nothing is served from memory, and nothing is found by the scrub.
const SETTINGS: &[&str] = &[
    "--set",
    "log.segment.bytes=1048576",
    "--set",
    "felix.tail.bytes=0",
    "--set",
    "felix.scrub.bytes.per.second=0",
];
const CORRUPT_MESSAGE: i16 = 2;
/// Two records a segment: 0 and 1, 2 and 3, and in the last, which is not closed, 4 and 5.
const RECORDS: i64 = 6;

/// What becomes of a segment's file.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
enum Harm {
    /// A byte of its first batch is another.
    Flipped,
    /// A block within the first batch is zeros.
    Zeroed,
    /// It ends within its second batch.
    Torn,
    /// It ends behind its first batch.
    Cut,
    Gone,
}

/// The file, the harm, and the records that are lost with it.
type Case = (i64, Harm, std::ops::Range<i64>);

const CASES: [Case; 9] = [
    (0, Harm::Gone, 0..2),
    (2, Harm::Flipped, 2..4),
    (2, Harm::Zeroed, 2..4),
    (2, Harm::Torn, 3..4),
    (2, Harm::Cut, 3..4),
    (2, Harm::Gone, 2..4),
    (4, Harm::Flipped, 4..6),
    (4, Harm::Zeroed, 4..6),
    (4, Harm::Gone, 4..6),
];

fn harm(path: &Path, how: Harm) {
    let mut bytes = fs::read(path).unwrap();
    let half = bytes.len() / 2;
    match how {
        Harm::Flipped => bytes[100_000] ^= 4,
        Harm::Zeroed => bytes[100_000..104_096].fill(0),
        Harm::Torn => bytes.truncate(half + 50_000),
        Harm::Cut => bytes.truncate(half),
        Harm::Gone => return fs::remove_file(path).unwrap(),
    }
    fs::write(path, bytes).unwrap();
}

fn segment(folder: &Path, base: i64) -> PathBuf {
    folder.join(format!("{base:020}.log"))
}

fn code(broker: &Broker, topic: &str, offset: i64) -> i16 {
    let at = 4 + 4 + 2 + topic.len() + 4 + 4;
    let answer = broker.connect().ask(FETCH, 4, 9, &fetch(topic, offset, 0, 0));
    i16::from_be_bytes([answer[at], answer[at + 1]])
}

/// Where a record was stored, or the error.
fn write(broker: &Broker, topic: &str, value: &[u8]) -> Result<i64, i16> {
    let at = 4 + 2 + topic.len() + 4 + 4;
    let answer = broker.connect().ask(PRODUCE, 3, 1, &produce(topic, -1, value));
    match i16::from_be_bytes([answer[at], answer[at + 1]]) {
        0 => Ok(i64::from_be_bytes(answer[at + 2..at + 10].try_into().unwrap())),
        error => Err(error),
    }
}

fn is_sick(broker: &Broker) -> bool {
    let page = broker.page("/healthz");
    page.starts_with("HTTP/1.1 503") && page.contains("damaged") && broker.metric("felix_damaged_places") > 0
}

/// A directory after a stop in order, or (`killed`) after a start and a kill, and the folder that holds the records.
fn scene(killed: bool) -> (tempfile::TempDir, PathBuf) {
    let mut broker = Broker::start(SETTINGS);
    for topic in ["hit", "other"] {
        new_topic(&mut broker.connect(), topic);
    }
    for at in 0..RECORDS {
        assert_eq!(write(&broker, "hit", &vec![7; 400_000]), Ok(at));
    }
    assert_eq!(write(&broker, "other", b"small"), Ok(0));
    assert_eq!(broker.terminate().code(), Some(0));
    let mut directory = broker.kill();
    if killed {
        let broker = Broker::start_in(directory, SETTINGS);
        broker.eventually("led", |broker| code(broker, "hit", 0) == 0 && code(broker, "other", 0) == 0);
        directory = broker.kill();
    }
    let data = directory.path().join("data");
    let mut folders = fs::read_dir(&data).unwrap().map(|entry| entry.unwrap().path());
    let folder = folders.find(|folder| segment(folder, 2).exists()).unwrap();
    let name = PathBuf::from("data").join(folder.file_name().unwrap());
    (directory, name)
}

fn holds(broker: &Broker, records: std::ops::Range<i64>) {
    for offset in records {
        broker.eventually(&format!("{offset} is there"), |broker| code(broker, "hit", offset) == 0);
    }
}

fn case(kept: &Path, folder: &Path, (base, how, lost): &Case, sealed: bool, killed: bool) {
    let name = format!("{how:?} at {base}, sealed: {sealed}, killed: {killed}");
    let directory = tempfile::tempdir().unwrap();
    copy(kept, directory.path());
    let log = segment(&directory.path().join(folder), *base);
    harm(&log, *how);
    if !sealed {
        for entry in fs::read_dir(directory.path().join(folder)).unwrap() {
            let path = entry.unwrap().path();
            if path.extension().is_some_and(|ending| ending == "seal") {
                fs::remove_file(path).unwrap();
            }
        }
    }
    let broker = Broker::start_in(directory, SETTINGS);
    // Whoever reads it is told, the first reader included, and from then on everybody sees it.
    for offset in lost.clone() {
        broker.eventually(&name, |broker| code(broker, "hit", offset) == CORRUPT_MESSAGE);
    }
    broker.eventually(&name, is_sick);
    // It leads again, under a new identity: a loss event, and one only.
    broker.eventually(&name, |broker| broker.metric("felix_broker_loss_events_total") == 1);
    holds(&broker, 0..lost.start);
    holds(&broker, lost.end..RECORDS);
    assert_eq!(code(&broker, "other", 0), 0, "{name}");
    // Writes go on, and no offset is given twice.
    assert_eq!(write(&broker, "hit", b"behind"), Ok(RECORDS), "{name}");
    assert_eq!(write(&broker, "other", b"more"), Ok(1), "{name}");
    assert_eq!(code(&broker, "hit", RECORDS), 0, "{name}");
    assert_eq!(broker.metric("felix_broker_loss_events_total"), 1, "{name}");
    // The next start knows although nobody reads, after a kill and after a stop.
    let mut directory = broker.kill();
    for stopped in [true, false] {
        let mut broker = Broker::start_in(directory, SETTINGS);
        broker.eventually(&format!("{name}, known"), is_sick);
        broker.eventually(&name, |broker| code(broker, "hit", lost.start) == CORRUPT_MESSAGE);
        assert_eq!(code(&broker, "hit", RECORDS), 0, "{name}");
        if stopped {
            assert_eq!(broker.terminate().code(), Some(0));
        }
        directory = broker.kill();
    }
    // The file put back heals.
    fs::copy(segment(&kept.join(folder), *base), segment(&directory.path().join(folder), *base)).unwrap();
    for turn in 0..2 {
        let broker = Broker::start_in(directory, SETTINGS);
        holds(&broker, 0..RECORDS + 1);
        let page = broker.page("/healthz");
        assert!(page.starts_with("HTTP/1.1 200"), "{name}, turn {turn}: {page}");
        assert_eq!(broker.metric("felix_damaged_places"), 0, "{name}");
        assert_eq!(write(&broker, "hit", b"on"), Ok(RECORDS + 1 + turn), "{name}");
        directory = broker.kill();
    }
}

fn all_cases(killed: bool) {
    let (kept, folder) = scene(killed);
    for at in &CASES {
        for sealed in [true, false] {
            case(kept.path(), &folder, at, sealed, killed);
        }
    }
}

#[test]
fn damage_after_a_clean_stop_is_told_and_everything_else_is_served() {
    all_cases(false);
}

#[test]
fn damage_after_a_kill_is_told_and_everything_else_is_served() {
    all_cases(true);
}

#[test]
fn damage_that_a_reader_meets_while_the_broker_runs_is_settled() {
    let (kept, folder) = scene(false);
    for base in [2, 4] {
        let directory = tempfile::tempdir().unwrap();
        copy(kept.path(), directory.path());
        let log = segment(&directory.path().join(&folder), base);
        let broker = Broker::start_in(directory, SETTINGS);
        holds(&broker, 0..RECORDS);
        assert_eq!(write(&broker, "hit", b"acknowledged"), Ok(RECORDS));
        // In place: the broker may have the file open.
        let mut bytes = fs::read(&log).unwrap();
        bytes[100_000] ^= 4;
        fs::write(&log, &bytes).unwrap();
        broker.eventually("met", |broker| code(broker, "hit", base) == CORRUPT_MESSAGE);
        broker.eventually("told", is_sick);
        broker.eventually("settled", |broker| broker.metric("felix_broker_loss_events_total") == 1);
        holds(&broker, 0..base);
        broker.eventually("still told", |broker| code(broker, "hit", base) == CORRUPT_MESSAGE);
        assert_eq!(write(&broker, "hit", b"behind"), Ok(RECORDS + 1));
        assert_eq!(code(&broker, "hit", RECORDS + 1), 0);
        assert_eq!(broker.metric("felix_broker_loss_events_total"), 1);
        let directory = broker.kill();
        bytes[100_000] ^= 4;
        fs::write(&log, &bytes).unwrap();
        let broker = Broker::start_in(directory, SETTINGS);
        holds(&broker, 0..RECORDS + 2);
        assert!(broker.page("/healthz").starts_with("HTTP/1.1 200"));
    }
}
