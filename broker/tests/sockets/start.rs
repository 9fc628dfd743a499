//! Starting and stopping: what is refused, in which words, with which exit code.

use std::process::{Output, Stdio};

use crate::broker::{
    API_VERSIONS, Broker, Client, FETCH, METADATA, PRODUCE, command, fetch, metadata, produce,
};

fn refused(arguments: &[&str], environment: &[(&str, &str)]) -> String {
    let directory = tempfile::tempdir().unwrap();
    let mut command = command(directory.path());
    let Output { status, stderr, .. } =
        command.args(arguments).envs(environment.iter().copied()).output().unwrap();
    let text = String::from_utf8(stderr).unwrap();
    assert_eq!(status.code(), Some(2), "{text}");
    let lines: Vec<&str> = text.lines().filter(|line| line.starts_with("felix: ")).collect();
    assert_eq!(lines.len(), 1, "{text}");
    lines[0].to_owned()
}

/// Creates a topic by asking for it, and asks until it is led, as any client does.
pub fn new_topic(client: &mut Client, name: &str) {
    // Throttle time, array of topics, name, array of partitions, index, error.
    let at = 4 + 4 + 2 + name.len() + 4 + 4;
    for _ in 0..100_000 {
        client.ask(METADATA, 1, 1, &metadata(name));
        if client.ask(FETCH, 4, 2, &fetch(name, 0, 0, 0))[at..at + 2] == [0, 0] {
            return;
        }
    }
    panic!("{name} is never led");
}

#[test]
fn a_wrong_start_is_one_line_and_exit_code_2() {
    let line = refused(&["--set", "num.partitions=many"], &[]);
    assert!(line.contains("num.partitions") && line.contains("--set") && line.contains("many"), "{line}");
    let line = refused(&["--set", "no.such.config=1"], &[]);
    assert!(line.contains("no.such.config"), "{line}");
    let line = refused(&[], &[("FELIX_NODE_ID", "-1")]);
    assert!(line.contains("FELIX_NODE_ID"), "{line}");
    let line = refused(&["--etcd", "127.0.0.1"], &[]);
    assert!(line.contains("etcd"), "{line}");
    let line = refused(&[], &[("FELIX_LOG_FORMAT", "xml")]);
    assert!(line.contains("text or json"), "{line}");
    let line = refused(&["--config", "/does/not/exist.toml"], &[]);
    assert!(line.contains("/does/not/exist.toml"), "{line}");
}

#[test]
fn settings_are_checked_without_starting() {
    let directory = tempfile::tempdir().unwrap();
    let mut check = command(directory.path());
    check.stdout(Stdio::piped()).args(["--check-config", "--set", "num.partitions=3", "--lease-ms", "700"]);
    let Output { status, stdout, stderr } = check.output().unwrap();
    assert!(status.success(), "{}", String::from_utf8_lossy(&stderr));
    assert_eq!(String::from_utf8(stdout).unwrap(), "felix: the settings are good\n");
    assert!(!directory.path().join("data").exists(), "nothing was started");
    let line = refused(&["--check-config", "--lease-ms", "7"], &[]);
    assert!(line.contains("lease-ms") && line.contains("500"), "{line}");
}

#[test]
fn a_broker_can_be_asked_how_it_is() {
    let health = |address: &str| {
        let mut health = std::process::Command::new(env!("CARGO_BIN_EXE_felix"));
        let Output { status, stdout, stderr } =
            health.args(["health", "--metrics-bind", address]).output().unwrap();
        (status.code(), String::from_utf8([stdout, stderr].concat()).unwrap())
    };
    let mut broker = Broker::start(&[]);
    let address = broker.http.to_string();
    assert_eq!(health(&address), (Some(0), "felix: ready\n".to_owned()));
    assert_eq!(health(&format!("0.0.0.0:{}", broker.http.port())).0, Some(0));
    assert_eq!(broker.terminate().code(), Some(0));
    let (code, said) = health(&address);
    assert!(code == Some(1) && said.contains(&address), "{said}");
    let (code, said) = health("nonsense");
    assert!(code == Some(2) && said.contains("metrics-bind"), "{said}");
}

#[test]
fn the_figures_of_disk_and_cluster_are_served() {
    let broker = Broker::start(&[]);
    let mut client = broker.connect();
    new_topic(&mut client, "t");
    client.ask(PRODUCE, 3, 2, &produce("t", 1, b"flushed"));
    assert_eq!((broker.metric("felix_live_brokers"), broker.metric("felix_leaderless_partitions")), (1, 0));
    let (all, free) = (broker.metric("felix_disk_bytes"), broker.metric("felix_disk_free_bytes"));
    assert!(0 < free && free < all, "{free} of {all}");
    assert!(broker.metric("felix_flush_seconds_count") > 0);
}

#[test]
fn a_directory_or_a_port_in_use_is_told() {
    let broker = Broker::start(&[]);
    let port = broker.address.port();
    let line = refused(
        &["--set", "num.partitions=1", "serve", "--listeners", &format!("PLAINTEXT://127.0.0.1:{port}")],
        &[],
    );
    assert!(line.contains(&port.to_string()), "{line}");
    let taken = broker.data();
    let line = refused(&["serve", "--data-dir", taken.to_str().unwrap()], &[]);
    assert!(line.contains("in use"), "{line}");
}

#[test]
fn another_nodes_directory_is_refused() {
    let mut broker = Broker::start(&[]);
    assert_eq!(broker.terminate().code(), Some(0));
    let data = broker.data();
    let line = refused(&["serve", "--data-dir", data.to_str().unwrap(), "--node-id", "2"], &[]);
    assert!(line.contains("node 1"), "{line}");
}

#[test]
fn help_and_version_are_complete() {
    let help = std::process::Command::new(env!("CARGO_BIN_EXE_felix")).arg("--help").output().unwrap();
    assert!(help.status.success());
    let text = String::from_utf8(help.stdout).unwrap();
    for word in [
        "--node-id",
        "FELIX_NODE_ID",
        "--set",
        "--check-config",
        "FELIX_LOG_FORMAT",
        "Precedence",
        "serve",
        "health",
    ] {
        assert!(text.contains(word), "{word} in {text}");
    }
    let version = std::process::Command::new(env!("CARGO_BIN_EXE_felix")).arg("--version").output().unwrap();
    assert!(String::from_utf8(version.stdout).unwrap().starts_with("felix 0."));
}

#[test]
fn a_planned_stop_answers_what_waits_and_keeps_everything() {
    let mut broker = Broker::start(&[]);
    let mut client = broker.connect();
    new_topic(&mut client, "t");
    client.ask(PRODUCE, 3, 2, &produce("t", -1, b"kept"));
    let mut parked = broker.connect();
    parked.send(FETCH, 4, 3, &fetch("t", 1, 60_000, 1));
    parked.send(API_VERSIONS, 0, 4, &[]);
    // Both are on their way once the other connection has been answered again.
    client.ask(API_VERSIONS, 0, 5, &[]);
    let stopped = std::thread::scope(|scope| {
        let answers = scope.spawn(|| (parked.receive().0, parked.receive().0, parked.is_closed()));
        let stopped = broker.terminate();
        assert_eq!(answers.join().unwrap(), (3, 4, true));
        stopped
    });
    assert_eq!(stopped.code(), Some(0));
    assert!(!broker.data().join("listening").exists());
    let directory = std::mem::replace(&mut broker.directory, tempfile::tempdir().unwrap());
    let broker = Broker::start_in(directory, &[]);
    let answer = broker.connect().ask(FETCH, 4, 1, &fetch("t", 0, 0, 0));
    assert!(answer.windows(4).any(|window| window == b"kept"));
    assert!(broker.page("/readyz").starts_with("HTTP/1.1 200"));
}

#[test]
fn a_killed_broker_keeps_what_it_acknowledged() {
    let broker = Broker::start(&[]);
    let mut client = broker.connect();
    new_topic(&mut client, "t");
    for at in 0..20_u8 {
        let answer = client.ask(PRODUCE, 3, 2, &produce("t", 1, &[b'a' + at; 8]));
        assert_eq!(answer[4 + 3 + 4 + 4..][..2], [0, 0], "{answer:?}");
    }
    let broker = Broker::start_in(broker.kill(), &[]);
    let answer = broker.connect().ask(FETCH, 4, 1, &fetch("t", 0, 0, 0));
    for at in 0..20_u8 {
        assert!(answer.windows(8).any(|window| window == [b'a' + at; 8]), "record {at} of {answer:?}");
    }
}

#[test]
fn what_is_on_the_disk_can_be_printed() {
    let broker = Broker::start(&[]);
    let mut client = broker.connect();
    new_topic(&mut client, "t");
    client.ask(PRODUCE, 3, 2, &produce("t", 1, b"printed"));
    let dump = |path: &std::path::Path| {
        std::process::Command::new(env!("CARGO_BIN_EXE_felix")).arg("dump-log").arg(path).output().unwrap()
    };
    let output = dump(&broker.data());
    assert!(output.status.success());
    let text = String::from_utf8(output.stdout).unwrap();
    assert!(text.contains(".log") && text.contains("meta.properties"), "{text}");
    assert_eq!(dump(std::path::Path::new("/does/not/exist")).status.code(), Some(2));
}

#[test]
fn each_listener_tells_its_own_endpoint() {
    let broker = Broker::start(&[
        "serve",
        "--listeners",
        "PLAINTEXT://127.0.0.1:0,INSIDE://localhost:0",
        "--advertised-listeners",
        "INSIDE://inside.example:1234",
    ]);
    let none = 0_i32.to_be_bytes();
    let has = |answer: &[u8], text: &str| answer.windows(text.len()).any(|window| window == text.as_bytes());
    let outside = broker.connect().ask(METADATA, 1, 1, &none);
    assert!(has(&outside, "127.0.0.1") && !has(&outside, "inside.example"));
    let port = i32::from(broker.address.port()).to_be_bytes();
    assert!(outside.windows(4).any(|window| window == port), "a port that the system chose is told");
    let listening = std::fs::read_to_string(broker.data().join("listening")).unwrap();
    let inside = listening.lines().find_map(|line| line.strip_prefix("INSIDE ")).unwrap().parse().unwrap();
    let inside = crate::broker::Client::connect(inside).ask(METADATA, 1, 1, &none);
    assert!(has(&inside, "inside.example") && !has(&inside, "127.0.0.1"));
}

#[test]
fn ipv6_is_served_where_the_machine_has_it() {
    if std::net::TcpListener::bind("[::1]:0").is_err() {
        return;
    }
    let broker = Broker::start(&["serve", "--listeners", "PLAINTEXT://[::1]:0"]);
    assert!(broker.address.is_ipv6());
    let answer = broker.connect().ask(METADATA, 1, 1, &0_i32.to_be_bytes());
    assert!(answer.windows(3).any(|window| window == b"::1"));
}
