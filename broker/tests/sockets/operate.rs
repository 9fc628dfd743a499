//! `felix status` and `felix recover`, the real binary, on a single node.

use std::fs;
use std::path::Path;
use std::process::{Command, Output};

use crate::broker::{Broker, FETCH, METADATA, PRODUCE, command, fetch, metadata, produce};
use crate::side_files;

fn felix(arguments: &[&str]) -> (Option<i32>, String) {
    let mut felix = Command::new(env!("CARGO_BIN_EXE_felix"));
    for (name, _) in std::env::vars().filter(|(name, _)| name.starts_with("FELIX_")) {
        felix.env_remove(name);
    }
    let Output { status, stdout, stderr } = felix.args(arguments).output().unwrap();
    let text = |bytes: &[u8]| String::from_utf8_lossy(bytes).into_owned();
    (status.code(), text(&stdout) + &text(&stderr))
}

fn status(broker: &Broker, more: &[&str]) -> (Option<i32>, String) {
    let server = broker.http.to_string();
    let line: Vec<&str> = ["status", "--server", &server].iter().chain(more).copied().collect();
    felix(&line)
}

fn recover(data: &Path, line: &[&str]) -> (Option<i32>, String) {
    let data = data.to_str().unwrap();
    let line: Vec<&str> = ["recover"].iter().chain(line).copied().chain(["--data-dir", data]).collect();
    felix(&line)
}

fn create(broker: &Broker, topic: &str) {
    broker.connect().ask(METADATA, 1, 1, &metadata(topic));
    broker.eventually("the topic has a leader", |broker| {
        let (_, text) = status(broker, &["--json", "--all"]);
        let page: serde_json::Value = serde_json::from_str(&text).unwrap();
        page["partitions"]["total"] != 0 && page["opening"]["count"] == 0 && page["leaderless"]["count"] == 0
    });
}

#[test]
fn status_tells_a_sound_broker_from_none() {
    let broker = Broker::start(&[]);
    create(&broker, "orders");
    let (code, text) = status(&broker, &[]);
    assert_eq!(code, Some(0), "{text}");
    assert!(text.contains("1 topics, 1 partitions") && text.contains("nothing is wrong"), "{text}");
    let (code, text) = status(&broker, &["--server", "127.0.0.1:1"]);
    assert!(code == Some(1) && text.contains("127.0.0.1:1: "), "{code:?} {text}");
    let (code, text) = felix(&["status", "--server", "127.0.0.1:1"]);
    assert_eq!(code, Some(2), "{text}");
    // Another service is told from a broker.
    let (code, text) = felix(&["status", "--server", &broker.address.to_string()]);
    assert_eq!(code, Some(2), "{text}");
}

#[test]
fn a_restored_store_goes_on_by_recover_and_unknown_copies_go_only_when_that_is_confirmed() {
    let mut broker = Broker::start(&[]);
    create(&broker, "before");
    broker.terminate();
    let directory = broker.kill();
    let data = directory.path().join("data");
    let backup = std::fs::read(data.join("control.redb")).unwrap();
    let mut broker = Broker::start_in(directory, &[]);
    create(&broker, "after");
    let (code, text) = recover(&data, &["store"]);
    assert!(code == Some(2) && text.contains("stop the broker first"), "{text}");
    broker.terminate();
    let directory = broker.kill();
    std::fs::write(data.join("control.redb"), &backup).unwrap();
    let refused = command(directory.path()).output().unwrap();
    let text = String::from_utf8_lossy(&refused.stderr).into_owned();
    assert!(refused.status.code() == Some(2) && text.contains("felix recover store"), "{text}");

    let (code, text) = recover(&data, &["store"]);
    assert!(code == Some(0) && text.contains("Nothing was written"), "{text}");
    assert_eq!(command(directory.path()).output().unwrap().status.code(), Some(2), "and nothing was");
    let (code, text) = recover(&data, &["store", "--yes"]);
    assert!(code == Some(0) && text.contains("Done: control epoch"), "{text}");
    let mut broker = Broker::start_in(directory, &[]);
    let (code, text) = status(&broker, &[]);
    assert!(code == Some(1) && text.contains("1 copies here are unknown"), "{text}");
    assert_eq!(copies(&data), 2);
    broker.terminate();
    let (code, text) = recover(&data, &["confirm", "--yes"]);
    assert!(code == Some(0) && text.contains("Done."), "{text}");
    let broker = Broker::start_in(broker.kill(), &[]);
    broker.eventually("the unknown copy goes", |_| copies(&data) == 1);
    let (code, text) = status(&broker, &[]);
    assert_eq!(code, Some(0), "{text}");
}

#[test]
fn a_copy_that_is_gone_for_good_is_begun_anew_by_recover() {
    let mut broker = Broker::start(&[]);
    create(&broker, "orders");
    broker.connect().ask(PRODUCE, 3, 1, &produce("orders", 1, b"x"));
    broker.terminate();
    let directory = broker.kill();
    let data = directory.path().join("data");
    let folder = std::fs::read_dir(&data).unwrap().flatten().find(|entry| is_copy(&entry.path())).unwrap();
    std::fs::remove_dir_all(folder.path()).unwrap();
    let mut broker = Broker::start_in(directory, &[]);
    broker.eventually("nobody leads it", |broker| {
        status(broker, &[]).1.contains("1 partitions have no leader")
    });
    broker.terminate();
    let (code, text) = recover(&data, &["partition", "orders-0", "nothing-7"]);
    assert_eq!(code, Some(1), "{text}");
    assert!(
        text.contains("there is no such partition") && text.contains("LOST: perhaps everything"),
        "{text}"
    );
    let (code, text) = recover(&data, &["partition", "orders", "--yes"]);
    assert_eq!(code, Some(0), "{text}");
    let broker = Broker::start_in(broker.kill(), &[]);
    broker.eventually("it is sound", |broker| status(broker, &[]).0 == Some(0));
    assert_eq!(broker.metric("felix_broker_loss_events_total"), 1);
}

/// The table of copies follows what was flushed by some seconds; until then it says nothing of the first records.
#[test]
fn a_copy_that_went_right_after_its_first_record_is_not_led_empty() {
    for whole_folder in [true, false] {
        let broker = Broker::start(&[]);
        create(&broker, "orders");
        let answer = broker.connect().ask(PRODUCE, 3, 1, &produce("orders", -1, b"acknowledged"));
        assert_eq!(error_of(&answer), 0, "{answer:?}");
        let mut directory = broker.kill();
        let data = directory.path().join("data");
        let away = directory.path().join("away");
        let folder = fs::read_dir(&data).unwrap().flatten().find(|entry| is_copy(&entry.path()));
        let folder = folder.unwrap().path();
        side_files::copy(&folder, &away);
        if whole_folder {
            fs::remove_dir_all(&folder).unwrap();
        } else {
            fs::remove_file(folder.join("00000000000000000000.log")).unwrap();
        }
        for killed in [true, false] {
            let mut broker = Broker::start_in(directory, &[]);
            broker.eventually("it is shown", |broker| {
                broker.page("/healthz").starts_with("HTTP/1.1 503")
                    && broker.page("/replication/halted").contains("wiped")
            });
            let (code, text) = status(&broker, &[]);
            assert!(code == Some(1) && text.contains("1 partitions have no leader"), "{text}");
            let answer = broker.connect().ask(PRODUCE, 3, 1, &produce("orders", -1, b"too early"));
            assert_ne!(error_of(&answer), 0, "{answer:?}");
            assert_eq!(whole_folder, !folder.exists(), "nothing was made there");
            if !killed {
                assert_eq!(broker.terminate().code(), Some(0));
            }
            directory = broker.kill();
        }
        // Put back, it heals; beyond recovery, it begins anew, by decision.
        let again = tempfile::tempdir().unwrap();
        side_files::copy(&data, &again.path().join("data"));
        side_files::copy(&away, &again.path().join("data").join(folder.file_name().unwrap()));
        let broker = Broker::start_in(again, &[]);
        broker.eventually("the record is back", |broker| {
            let answer = broker.connect().ask(FETCH, 4, 1, &fetch("orders", 0, 0, 0));
            answer.windows(12).any(|window| window == b"acknowledged")
        });
        drop(broker);
        let (code, text) = recover(&data, &["partition", "orders", "--yes"]);
        assert!(code == Some(0) && text.contains("LOST: perhaps everything"), "{text}");
        let broker = Broker::start_in(directory, &[]);
        broker.eventually("it is sound", |broker| status(broker, &[]).0 == Some(0));
        assert_eq!(broker.metric("felix_broker_loss_events_total"), 1);
        let answer = broker.connect().ask(PRODUCE, 3, 1, &produce("orders", -1, b"anew"));
        assert_eq!(error_of(&answer), 0, "{answer:?}");
    }
}

/// The error code of a produce of the only partition of the topic `orders`.
fn error_of(answer: &[u8]) -> i16 {
    let at = 4 + 2 + "orders".len() + 4 + 4;
    i16::from_be_bytes([answer[at], answer[at + 1]])
}

#[test]
fn recover_makes_no_store_where_there_is_none() {
    let directory = tempfile::tempdir().unwrap();
    let (code, text) = recover(directory.path(), &["store", "--yes"]);
    assert!(code == Some(2) && text.contains("holds no control store"), "{text}");
    assert_eq!(std::fs::read_dir(directory.path()).unwrap().count(), 0);
    let missing = directory.path().join("missing");
    assert_eq!(recover(&missing, &["store", "--yes"]).0, Some(2));
    assert!(!missing.exists());
}

fn is_copy(path: &Path) -> bool {
    path.join("partition.metadata").exists()
}

fn copies(data: &Path) -> usize {
    std::fs::read_dir(data).unwrap().flatten().filter(|entry| is_copy(&entry.path())).count()
}
