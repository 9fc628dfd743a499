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
use crate::machine;
use crate::manifest::{Client, Manifests};
use crate::process::{Strand, tail};
use crate::raw::stage::Skipped;
use crate::results::{CaseResult, PartResult, Status};
use crate::target::{Kind, Origin};
use stage::{Built, Stage};

/// Half of the lease that cases have: brokers renew theirs six times in it, and what a machine that stands still for longer does to
/// them is nobody's fault.
const TOO_STILL: Duration = Duration::from_millis(500);
/// How often a case is run for that reason.
const MOST_RUNS: usize = 3;

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
        let run = || -> Result<CaseResult> {
            if logs.is_dir() {
                std::fs::remove_dir_all(&logs)?;
            }
            std::fs::create_dir_all(&logs)?;
            let stage = Stage::new(origin.binary().to_path_buf(), built.clone(), logs.clone(), full);
            let result = run_one(case, stage);
            if result.status == Status::Fail {
                show_logs(&logs);
            }
            Ok(result)
        };
        let result = until_it_counts(run, machine::stood_still)?;
        part.push(result);
    }
    Ok(part)
}

/// Runs a case, and again if it failed while the machine stood still for so long that leases ran out by themselves: such a run shows
/// something else than what the case asks. On a machine that runs, every failure counts.
#[expect(clippy::print_stdout, reason = "the harness reports on stdout")]
fn until_it_counts(
    mut run: impl FnMut() -> Result<CaseResult>,
    stood_still: impl Fn(Duration) -> Option<Duration>,
) -> Result<CaseResult> {
    for _ in 1..MOST_RUNS {
        let result = run()?;
        let pause = stood_still(Duration::from_millis(result.ms)).unwrap_or_default();
        if result.status != Status::Fail || pause < TOO_STILL {
            return Ok(result);
        }
        let (name, pause) = (&result.case, pause.as_secs_f64());
        println!("void cluster/{name}: the machine stood still for {pause:.2} s: {}", result.detail);
    }
    run()
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

#[cfg(test)]
mod tests {
    use super::*;

    fn runs(fails: usize, pause: u64) -> Result<(usize, Status)> {
        let mut runs = 0;
        let run = || {
            runs += 1;
            let fails = runs <= fails;
            Ok(if fails { CaseResult::fail("c", "so", 1) } else { CaseResult::pass("c") })
        };
        let result = until_it_counts(run, |_| Some(Duration::from_millis(pause)))?;
        Ok((runs, result.status))
    }

    #[test]
    fn only_a_failure_on_a_machine_that_stood_still_is_run_again() -> Result<()> {
        assert_eq!(runs(1, 499)?, (1, Status::Fail));
        assert_eq!(runs(1, 500)?, (2, Status::Pass));
        assert_eq!(runs(0, 500)?, (1, Status::Pass));
        assert_eq!(runs(9, 500)?, (3, Status::Fail));
        Ok(())
    }
}
