//! Clusters of brokers and etcd members as real processes, each in a network namespace of its own, and what is done to them. README.md says
//! how to write a case.

mod broker;
mod cases;
mod etcd;
pub mod load;
pub mod network;
mod node;
mod page;
mod plan;
mod proxy;
mod replicas;
mod stage;
mod topics;

use std::collections::BTreeMap;
use std::path::{Path, PathBuf};
use std::sync::mpsc::channel;
use std::time::{Duration, Instant};

use anyhow::{Context, Result};

use crate::cache::Cache;
use crate::manifest::{Client, Manifests};
use crate::process::{Strand, tail};
use crate::raw::stage::Skipped;
use crate::results::{CaseResult, PartResult, Status};
use crate::target::{Kind, Origin};
use stage::{Built, Stage};

/// A case. It starts a cluster of its own.
#[derive(Clone, Copy)]
pub struct Case {
    /// Its name.
    pub name: &'static str,
    /// What a pass proves.
    pub proves: &'static str,
    /// In how many seconds it is done even on a busy machine. Its bound is four times that, or ten times with `--full`: what waits
    /// for something inside it should be the first to give up, as it can say for what.
    pub seconds: u64,
    /// Carries it out; what it answers is shown beside the result: figures, if it has any.
    pub run: fn(&Stage) -> Result<String>,
}

/// All cases in order.
pub fn cases() -> Vec<Case> {
    cases::all()
}

/// Installs and builds what cases need, and answers where it is.
pub fn prepare(cache: &Cache, manifests: &Manifests) -> Result<Built> {
    let ip = BTreeMap::from([("ip".to_owned(), vec!["iproute2".to_owned()])]);
    cache.packages(&[], &ip)?;
    let build = |name: &str| -> Result<(PathBuf, Client)> {
        let client = manifests.clients.iter().find(|client| client.name == name);
        let client = client.with_context(|| format!("there is no client {name}"))?;
        cache.packages(&client.apt, &client.needs)?;
        Ok((cache.build(&client.name, &client.source, &client.build)?, client.clone()))
    };
    let (etcd, _) = build("etcd-3.6")?;
    let (rdkafka, _) = build("rdkafka")?;
    let (java, java_client) = build("java-4")?;
    // Some cases run its program; what has to be built for that is not to be waited for inside them.
    build("franz-go")?;
    Ok(Built {
        etcd: etcd.join("etcd"),
        rdkafka: rdkafka.join("target/release/program"),
        java: (java, java_client.source),
        cache: cache.root().to_path_buf(),
    })
}

/// Runs the cases whose names are wanted.
pub fn run(
    origin: &Origin,
    cache: &Cache,
    manifests: &Manifests,
    full: bool,
    wanted: &dyn Fn(&str) -> bool,
) -> Result<PartResult> {
    let mut part = PartResult::new("cluster", "clusters on etcd", "3.6.14", &origin.title());
    let chosen: Vec<Case> = cases().into_iter().filter(|case| wanted(case.name)).collect();
    if chosen.is_empty() {
        return Ok(part);
    }
    if origin.kind() == Kind::Kafka {
        for case in chosen {
            part.push(CaseResult::skip(case.name, "these cases are about Felix on etcd"));
        }
        return Ok(part);
    }
    network::sweep();
    let built = prepare(cache, manifests)?;
    for case in chosen {
        let logs = origin.logs().join("cluster").join(case.name);
        if logs.is_dir() {
            std::fs::remove_dir_all(&logs)?;
        }
        std::fs::create_dir_all(&logs)?;
        let stage = Stage::new(origin.binary().to_path_buf(), built.clone(), logs.clone(), full);
        let result = run_one(case, stage);
        let failed = result.status == Status::Fail;
        part.push(result);
        if failed {
            show_logs(&logs);
        }
    }
    Ok(part)
}

/// Runs one case on a thread of its own, so that one that hangs costs only itself.
fn run_one(case: Case, stage: Stage) -> CaseResult {
    let started = Instant::now();
    let bound = Duration::from_secs(case.seconds * if stage.full { 10 } else { 4 });
    let (sender, done) = channel();
    let strand = Strand::current();
    std::thread::spawn(move || {
        strand.enter();
        let outcome = std::panic::catch_unwind(std::panic::AssertUnwindSafe(|| (case.run)(&stage)));
        // When the bound has passed nobody listens.
        let _ = sender.send(outcome);
    });
    let outcome = done.recv_timeout(bound);
    let ms = u64::try_from(started.elapsed().as_millis()).unwrap_or(u64::MAX);
    match outcome {
        Err(_) => {
            // Without its processes the thread comes to an end soon.
            strand.kill();
            CaseResult::fail(case.name, format!("not done within {bound:?}"), ms)
        }
        Ok(Ok(Ok(detail))) => CaseResult { ms, detail, ..CaseResult::pass(case.name) },
        Ok(Ok(Err(error))) => match error.downcast_ref::<Skipped>() {
            Some(skipped) => CaseResult::skip(case.name, skipped.0.clone()),
            None => CaseResult::fail(case.name, format!("{error:#}"), ms),
        },
        Ok(Err(panic)) => {
            let text = panic.downcast_ref::<String>().cloned();
            let text = text.or_else(|| panic.downcast_ref::<&str>().map(|text| (*text).to_owned()));
            CaseResult::fail(case.name, format!("the case panicked: {}", text.unwrap_or_default()), ms)
        }
    }
}

/// The ends of the logs of a case that failed.
#[expect(clippy::print_stdout, reason = "the harness reports on stdout")]
fn show_logs(logs: &Path) {
    let mut files: Vec<PathBuf> =
        std::fs::read_dir(logs).into_iter().flatten().flatten().map(|entry| entry.path()).collect();
    files.sort();
    for file in files {
        println!("  {}:", file.display());
        for line in tail(&file, 8).lines() {
            println!("    {}", line.chars().take(300).collect::<String>());
        }
    }
}
