//! The store on etcd, against real etcd servers that this program starts, kills, freezes and sets back. It is not run
//! by a plain `cargo test`, because that cannot bring etcd along: `compat-tests/run --client etcd` builds both
//! servers and runs it against each (`compat-tests/clients/etcd`), speaking the protocol of the harness.
//!
//! `etcd SERVER [--bootstrap X] [--prefix Y] CASE...`: prints one line of JSON as each case begins and ends.

#![expect(
    clippy::unwrap_used,
    clippy::panic,
    clippy::print_stdout,
    reason = "it is a test; its results go to stdout"
)]

use std::panic::{AssertUnwindSafe, catch_unwind};
use std::path::{Path, PathBuf};
use std::time::Instant;

#[path = "etcd/back.rs"]
mod back;
#[path = "etcd/faults.rs"]
mod faults;
#[path = "etcd/load.rs"]
mod load;
#[path = "etcd/proxy.rs"]
mod proxy;
#[path = "etcd/restored.rs"]
mod restored;
#[path = "etcd/security.rs"]
mod security;
#[path = "etcd/server.rs"]
mod server;
#[path = "store/suite.rs"]
mod suite;

/// A case: says what it measured, or panics.
type Case = fn(&Path) -> String;

const CASES: &[(&str, Case)] = &[
    ("conformance", faults::conformance),
    ("conformance-of-three", faults::conformance_of_three),
    ("members-killed", faults::members_killed),
    ("leader-moves", faults::leader_moves),
    ("member-frozen", faults::member_frozen),
    ("majority-lost", faults::majority_lost),
    ("compaction", faults::compaction),
    ("answers-lost", faults::answers_lost),
    ("full", back::full),
    ("goes-back", back::goes_back),
    ("snapshot-restored", restored::snapshot_restored),
    ("tls-and-password", security::tls_and_password),
    ("ten-thousand", load::ten_thousand),
];

fn main() {
    let mut arguments = std::env::args().skip(1);
    let server = PathBuf::from(arguments.next().expect("the path of an etcd server"));
    let mut wanted = Vec::new();
    while let Some(argument) = arguments.next() {
        if argument.starts_with("--") {
            // The harness's broker is not used.
            arguments.next();
        } else {
            wanted.push(argument);
        }
    }
    server::sweep();
    say(&serde_json::json!({ "version": server::version(&server) }));
    let mut failed = 0;
    for (name, case) in CASES {
        if !wanted.is_empty() && !wanted.iter().any(|wanted| wanted == name) {
            continue;
        }
        say(&serde_json::json!({ "begin": name }));
        let began = Instant::now();
        let ended = catch_unwind(AssertUnwindSafe(|| case(&server)));
        let (status, detail) = match ended {
            Ok(detail) => ("pass", detail),
            Err(panic) => {
                failed += 1;
                let text = panic.downcast_ref::<String>().cloned();
                let text = text.or_else(|| panic.downcast_ref::<&str>().map(|text| (*text).to_owned()));
                ("fail", text.unwrap_or_else(|| "it panicked".to_owned()))
            }
        };
        let ms = u64::try_from(began.elapsed().as_millis()).unwrap_or(u64::MAX);
        say(&serde_json::json!({ "case": name, "status": status, "detail": detail, "ms": ms }));
    }
    std::process::exit(i32::from(failed > 0));
}

fn say(line: &serde_json::Value) {
    println!("{line}");
}
