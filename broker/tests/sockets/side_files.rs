//! Every file that the data directory keeps beside the partitions' folders, missing, emptied, cut, replaced: the
//! broker starts and has every acknowledged record, or refuses in one line that says what to do; and the right file
//! put back heals.

use std::fs;
use std::path::Path;

use crate::broker::{Broker, Client, FETCH, METADATA, PRODUCE, fetch, metadata, produce};

/// What becomes of a file.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
enum Harm {
    Missing,
    Empty,
    OneByte,
    Garbage,
    Half,
    Flipped,
    Earlier,
    Folder,
}

const HARMS: [Harm; 8] = [
    Harm::Missing,
    Harm::Empty,
    Harm::OneByte,
    Harm::Garbage,
    Harm::Half,
    Harm::Flipped,
    Harm::Earlier,
    Harm::Folder,
];

fn harm(path: &Path, harm: Harm, earlier: &Path) {
    let before = fs::read(path).unwrap_or_default();
    if path.exists() {
        fs::remove_file(path).unwrap();
    }
    match harm {
        Harm::Missing => {}
        Harm::Empty => fs::write(path, b"").unwrap(),
        Harm::OneByte => fs::write(path, b"x").unwrap(),
        Harm::Garbage => fs::write(path, vec![0xA5; before.len().max(100)]).unwrap(),
        Harm::Half => fs::write(path, &before[..before.len() / 2]).unwrap(),
        Harm::Flipped => {
            let mut bytes = before;
            let last = bytes.iter().rposition(|byte| *byte != 0).unwrap_or(0);
            if let Some(byte) = bytes.get_mut(last / 2) {
                *byte ^= 0x40;
            }
            fs::write(path, bytes).unwrap();
        }
        Harm::Earlier => {
            if earlier.is_file() {
                fs::copy(earlier, path).map(drop).unwrap();
            }
        }
        Harm::Folder => fs::create_dir(path).unwrap(),
    }
}

pub fn copy(from: &Path, to: &Path) {
    fs::create_dir_all(to).unwrap();
    for entry in fs::read_dir(from).unwrap() {
        let (entry, to) = (entry.unwrap(), to.to_owned());
        let to = to.join(entry.file_name());
        if entry.file_type().unwrap().is_dir() {
            copy(&entry.path(), &to);
        } else {
            fs::copy(entry.path(), to).unwrap();
        }
    }
}

const TOPICS: [&str; 2] = ["first", "second"];

fn write(client: &mut Client, records: std::ops::Range<u8>) {
    for topic in TOPICS {
        for at in records.clone() {
            let answer = client.ask(PRODUCE, 3, 2, &produce(topic, -1, &value(topic, at)));
            assert_eq!(answer[4 + 2 + topic.len() + 4 + 4..][..2], [0, 0], "{answer:?}");
        }
    }
}

fn value(topic: &str, at: u8) -> Vec<u8> {
    format!("{topic}-{at:03}").into_bytes()
}

/// Whether every record up to `count` of every topic can be read.
fn holds_all(broker: &Broker, count: u8) -> bool {
    let mut client = broker.connect();
    TOPICS.iter().all(|topic| {
        let answer = client.ask(FETCH, 4, 1, &fetch(topic, 0, 0, 0));
        (0..count).all(|at| {
            let wanted = value(topic, at);
            answer.windows(wanted.len()).any(|window| window == wanted)
        })
    })
}

/// A directory with records, as it was at an earlier stop and at the end: after a stop in order, or a kill.
struct Scene {
    earlier: tempfile::TempDir,
    now: tempfile::TempDir,
}

const RECORDS: u8 = 6;

fn scene(killed: bool) -> Scene {
    let mut broker = Broker::start(&[]);
    let mut client = broker.connect();
    for topic in TOPICS {
        let at = 4 + 4 + 2 + topic.len() + 4 + 4;
        client.ask(METADATA, 1, 1, &metadata(topic));
        broker.eventually("the new topic is led", |broker| {
            broker.connect().ask(FETCH, 4, 2, &fetch(topic, 0, 0, 0))[at..at + 2] == [0, 0]
        });
    }
    write(&mut client, 0..3);
    drop(client);
    assert_eq!(broker.terminate().code(), Some(0));
    let earlier = tempfile::tempdir().unwrap();
    copy(&broker.data(), earlier.path());
    let directory = std::mem::replace(&mut broker.directory, tempfile::tempdir().unwrap());
    let mut broker = Broker::start_in(directory, &[]);
    write(&mut broker.connect(), 3..RECORDS);
    let now = tempfile::tempdir().unwrap();
    if killed {
        let directory = broker.kill();
        copy(&directory.path().join("data"), now.path());
    } else {
        assert_eq!(broker.terminate().code(), Some(0));
        copy(&broker.data(), now.path());
    }
    Scene { earlier, now }
}

/// Starts in a copy of the scene with one file harmed, and says what came of it.
fn after(scene: &Scene, file: &str, how: Harm) -> (Result<(Broker, String), String>, tempfile::TempDir) {
    let directory = tempfile::tempdir().unwrap();
    copy(scene.now.path(), &directory.path().join("data"));
    harm(&directory.path().join("data").join(file), how, &scene.earlier.path().join(file));
    // Kept beside, for the second start.
    let again = tempfile::tempdir().unwrap();
    copy(&directory.path().join("data"), &again.path().join("data"));
    (Broker::try_start(directory, &[]), again)
}

/// A refusal: exit code 2, one line for people, the file and a way out named, and nothing of the partitions touched.
fn is_clear(log: &str, file: &str) {
    let lines: Vec<&str> = log.lines().filter(|line| line.starts_with("felix: ")).collect();
    assert_eq!(lines.len(), 1, "{log}");
    assert!(log.ends_with("exit code Some(2)"), "{log}");
    assert!(lines[0].contains(file), "{} does not name {file}", lines[0]);
    assert!(["put ", "move ", "remove "].iter().any(|word| lines[0].contains(word)), "{}", lines[0]);
}

fn partitions(data: &Path) -> usize {
    let logs = |folder: &Path| {
        fs::read_dir(folder).is_ok_and(|mut files| {
            files.any(|file| file.is_ok_and(|file| file.file_name().to_string_lossy().ends_with(".log")))
        })
    };
    fs::read_dir(data).unwrap().filter(|entry| entry.as_ref().is_ok_and(|entry| logs(&entry.path()))).count()
}

#[test]
fn no_file_of_the_directory_keeps_the_broker_from_its_records() {
    for killed in [false, true] {
        let scene = scene(killed);
        for file in
            ["replicas.table", "control.past", "meta.properties", "control.reserve", "listening", ".lock"]
        {
            for how in HARMS {
                let case = format!("{file} {how:?}, killed: {killed}");
                let (started, _) = after(&scene, file, how);
                // Of the lock only the name matters; a folder in its place cannot be locked. What a session before
                // last is known by says that something was put back that does not belong here.
                let may_refuse = (file == ".lock" && how == Harm::Folder)
                    || (file == "control.past" && how == Harm::Earlier);
                match started {
                    Ok((broker, log)) => {
                        assert!(!may_refuse, "{case}: {log}");
                        broker.eventually(&case, |broker| holds_all(broker, RECORDS));
                        let mut client = broker.connect();
                        write(&mut client, RECORDS..RECORDS + 1);
                        assert!(holds_all(&broker, RECORDS + 1), "{case}");
                        assert!(broker.page("/healthz").starts_with("HTTP/1.1 200"), "{case}");
                        assert_eq!(partitions(&broker.data()), TOPICS.len(), "{case}");
                    }
                    Err(log) => {
                        assert!(may_refuse, "{case}: {log}");
                        is_clear(&log, file);
                    }
                }
            }
        }
    }
}

#[test]
fn a_lost_table_of_copies_is_told_counted_and_heals() {
    let scene = scene(true);
    let (started, _) = after(&scene, "replicas.table", Harm::Missing);
    let (broker, log) = started.unwrap();
    assert!(log.contains("ERROR") && log.contains("replicas.table"), "{log}");
    broker.eventually("all records", |broker| holds_all(broker, RECORDS));
    assert_eq!(broker.metric("felix_broker_loss_events_total"), i64::try_from(TOPICS.len()).unwrap());
    // The right one put back afterwards names identities that were given up: told apart, and served again.
    let directory = broker.kill();
    fs::copy(scene.now.path().join("replicas.table"), directory.path().join("data/replicas.table")).unwrap();
    let broker = Broker::start_in(directory, &[]);
    broker.eventually("all records, with the old table", |broker| holds_all(broker, RECORDS));
    // And everything is as usual from the next start on.
    let broker = Broker::start_in(broker.kill(), &[]);
    broker.eventually("all records, at the next start", |broker| holds_all(broker, RECORDS));
    assert_eq!(broker.metric("felix_broker_loss_events_total"), 0);
}

#[test]
fn a_lost_control_store_is_refused_in_one_line_and_costs_nothing() {
    for killed in [false, true] {
        let scene = scene(killed);
        for how in HARMS {
            let case = format!("{how:?}, killed: {killed}");
            let (started, again) = after(&scene, "control.redb", how);
            match started {
                // A flipped byte may hit what is not in use.
                Ok((broker, _)) => {
                    assert_eq!(how, Harm::Flipped, "{case}");
                    broker.eventually(&case, |broker| holds_all(broker, RECORDS));
                }
                Err(log) => is_clear(&log, "control.redb"),
            }
            // The right file heals, also after the refused start.
            let data = again.path().join("data");
            let (refused, _) = after(&scene, "control.redb", how);
            drop(refused);
            let store = data.join("control.redb");
            if store.is_dir() {
                fs::remove_dir(&store).unwrap();
            }
            fs::copy(scene.now.path().join("control.redb"), store).unwrap();
            let broker = Broker::start_in(again, &[]);
            broker.eventually(&case, |broker| holds_all(broker, RECORDS));
        }
        // Without any of its three memories the directory is still not taken for an empty one.
        let directory = tempfile::tempdir().unwrap();
        let data = directory.path().join("data");
        copy(scene.now.path(), &data);
        for file in ["control.redb", "control.past", "meta.properties"] {
            fs::remove_file(data.join(file)).unwrap();
        }
        let kept = tempfile::tempdir().unwrap();
        copy(&data, &kept.path().join("data"));
        let Err(log) = Broker::try_start(directory, &[]) else { panic!("an empty cluster was founded") };
        is_clear(&log, "control.redb");
        assert_eq!(partitions(&kept.path().join("data")), TOPICS.len());
    }
}

#[test]
fn an_older_control_store_is_refused_until_the_operator_says_otherwise_and_then_loses_no_folder() {
    let scene = scene(true);
    // A topic that the older store does not know.
    let directory = tempfile::tempdir().unwrap();
    copy(scene.now.path(), &directory.path().join("data"));
    let broker = Broker::start_in(directory, &[]);
    broker.connect().ask(METADATA, 1, 1, &metadata("third"));
    broker.eventually("the third topic has a folder", |broker| partitions(&broker.data()) == 3);
    let directory = broker.kill();
    let data = directory.path().join("data");
    fs::copy(scene.earlier.path().join("control.redb"), data.join("control.redb")).unwrap();
    let again = tempfile::tempdir().unwrap();
    copy(&data, &again.path().join("data"));
    let Err(log) = Broker::try_start(directory, &[]) else { panic!("it went back unnoticed") };
    is_clear(&log, "control.redb");
    fs::remove_file(again.path().join("data/control.past")).unwrap();
    let mut directory = again;
    for _ in 0..2 {
        let broker = Broker::start_in(directory, &[]);
        broker.eventually("records of topics that it knows", |broker| holds_all(broker, RECORDS));
        assert_eq!(partitions(&broker.data()), 3, "what it does not know is kept");
        directory = broker.kill();
    }
}

#[test]
fn a_folder_that_went_is_shown_and_heals_when_it_is_put_back() {
    let scene = scene(true);
    let directory = tempfile::tempdir().unwrap();
    let data = directory.path().join("data");
    copy(scene.now.path(), &data);
    let is_copy = |entry: &fs::DirEntry| entry.path().join("partition.metadata").exists();
    let folder = fs::read_dir(&data).unwrap().flatten().find(is_copy).unwrap().path();
    let away = directory.path().join("away");
    fs::rename(&folder, &away).unwrap();
    let mut directory = directory;
    for _ in 0..2 {
        let broker = Broker::start_in(directory, &[]);
        broker.eventually("shown", |broker| broker.page("/healthz").starts_with("HTTP/1.1 503"));
        assert!(!holds_all(&broker, RECORDS));
        directory = broker.kill();
    }
    fs::rename(
        directory.path().join("away"),
        directory.path().join("data").join(folder.file_name().unwrap()),
    )
    .unwrap();
    let broker = Broker::start_in(directory, &[]);
    broker.eventually("all records are back", |broker| holds_all(broker, RECORDS));
    broker.eventually("healthy", |broker| broker.page("/healthz").starts_with("HTTP/1.1 200"));
}

/// The error code of a fetch of the topic's only partition.
fn code(answer: &[u8], topic: &str) -> i16 {
    let at = 4 + 4 + 2 + topic.len() + 4 + 4;
    i16::from_be_bytes([answer[at], answer[at + 1]])
}

#[test]
fn damaged_records_are_shown_and_everything_else_is_served_and_a_file_put_back_heals() {
    const CORRUPT_MESSAGE: i16 = 2;
    let scene = scene(false);
    for how in [Harm::Flipped, Harm::Half, Harm::Garbage, Harm::Missing] {
        let directory = tempfile::tempdir().unwrap();
        let data = directory.path().join("data");
        copy(scene.now.path(), &data);
        // One of the two topics; which one is seen by what it holds.
        let folder = fs::read_dir(&data)
            .unwrap()
            .flatten()
            .find(|entry| entry.path().join("partition.metadata").exists());
        let log = folder.unwrap().path().join("00000000000000000000.log");
        let right = fs::read(&log).unwrap();
        let hit = TOPICS
            .iter()
            .find(|topic| right.windows(topic.len()).any(|window| window == topic.as_bytes()))
            .unwrap();
        let whole = TOPICS.iter().find(|topic| *topic != hit).unwrap();
        harm(&log, how, Path::new("/nowhere"));
        let broker = Broker::start_in(directory, &[]);
        let case = format!("{how:?}");
        broker.eventually(&case, |broker| {
            let last = i64::from(RECORDS) - 1;
            code(&broker.connect().ask(FETCH, 4, 1, &fetch(hit, last, 0, 0)), hit) == CORRUPT_MESSAGE
                || code(&broker.connect().ask(FETCH, 4, 1, &fetch(hit, 3, 0, 0)), hit) == CORRUPT_MESSAGE
                || code(&broker.connect().ask(FETCH, 4, 1, &fetch(hit, 2, 0, 0)), hit) == CORRUPT_MESSAGE
        });
        let page = broker.page("/healthz");
        assert!(page.starts_with("HTTP/1.1 503") && page.contains("damaged"), "{case}: {page}");
        assert!(broker.metric("felix_damaged_places") > 0, "{case}");
        let other = broker.connect().ask(FETCH, 4, 1, &fetch(whole, 0, 0, 0));
        assert_eq!(code(&other, whole), 0, "{case}");
        // Behind the damage it goes on, at the next offset.
        let answer = broker.connect().ask(PRODUCE, 3, 2, &produce(hit, -1, b"behind"));
        let at = 4 + 2 + hit.len() + 4 + 4;
        assert_eq!(answer[at..at + 2], [0, 0], "{case}: {answer:?}");
        assert_eq!(answer[at + 2..at + 10], i64::from(RECORDS).to_be_bytes(), "{case}");
        let directory = broker.kill();
        // What was begun behind the damage stays where it is.
        if how == Harm::Half {
            let log = directory.path().join("data").join(log.strip_prefix(&data).unwrap());
            fs::write(log, &right).unwrap();
            let broker = Broker::start_in(directory, &[]);
            broker.eventually("all records are back", |broker| holds_all(broker, RECORDS));
            let page = broker.page("/healthz");
            assert!(page.starts_with("HTTP/1.1 200"), "{page}");
        }
    }
}
