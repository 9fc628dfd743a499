//! A harness that ends in the middle of its work, in whatever way, leaves no process and no folder behind.

use std::os::unix::fs::PermissionsExt;
use std::path::Path;
use std::process::{Command, Stdio};
use std::time::{Duration, Instant};

use rustix::process::{Pid, Signal, kill_process};

/// A broker that never gets ready, with a child in a session of its own: a harness that works with it is busy waiting.
const BROKER: &str = r#"#!/bin/sh
if [ "$1" = --version ]; then echo "felix of a test"; exit; fi
setsid sleep 600 &
echo "$! $$ $PWD" > "$(dirname "$0")/started.new"
mv "$(dirname "$0")/started.new" "$(dirname "$0")/started"
exec sleep 600
"#;

fn until(what: &str, mut condition: impl FnMut() -> bool) {
    let deadline = Instant::now() + Duration::from_secs(20);
    while !condition() {
        assert!(Instant::now() < deadline, "{what}");
        // The pace of asking, not a time to wait for.
        #[expect(clippy::disallowed_methods, reason = "this is the loop that waits for a condition")]
        std::thread::sleep(Duration::from_millis(10));
    }
}

/// Whether a process is there and more than a corpse that nobody has taken away yet.
fn lives(pid: i32) -> bool {
    let stat = std::fs::read_to_string(format!("/proc/{pid}/stat")).unwrap_or_default();
    stat.rsplit_once(") ").is_some_and(|(_, rest)| !rest.starts_with('Z'))
}

#[test]
fn nothing_outlives_the_harness() {
    for signal in [Signal::TERM, Signal::INT, Signal::KILL] {
        let folder = tempfile::tempdir().unwrap();
        let broker = folder.path().join("felix");
        std::fs::write(&broker, BROKER).unwrap();
        std::fs::set_permissions(&broker, PermissionsExt::from_mode(0o755)).unwrap();
        let mut harness = Command::new(env!("CARGO_BIN_EXE_compat-tests"));
        harness.args(["--client", "raw", "--case", "metadata-endpoint", "--felix"]).arg(&broker);
        harness.arg("--output").arg(folder.path().join("output")).env("FELIX_CACHE", folder.path());
        let mut harness = harness.stdout(Stdio::null()).stderr(Stdio::null()).spawn().unwrap();
        let started = folder.path().join("started");
        until("the broker does not start", || started.exists());
        let started = std::fs::read_to_string(started).unwrap();
        let words: Vec<&str> = started.split_whitespace().collect();
        let (child, broker): (i32, i32) = (words[0].parse().unwrap(), words[1].parse().unwrap());
        assert!(lives(child) && lives(broker) && Path::new(words[2]).is_dir());

        kill_process(Pid::from_child(&harness), signal).unwrap();
        assert!(!harness.wait().unwrap().success());
        until("the broker outlives the harness", || !lives(broker));
        until("a child of the broker outlives the harness", || !lives(child));
        until("the broker's folder is left", || !Path::new(words[2]).exists());
    }
}
