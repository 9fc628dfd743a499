//! Cases on raw sockets: what known faults of systems like ours and Kafka's own rules say about single requests and answers.
//!
//! Every case runs against Apache Kafka too; where a right answer is in doubt, that is the judge. The encoder (`wire`, `batch`, `ask`) is
//! written by hand here: one that shared `felix-protocol` would share its mistakes.

pub mod ask;
pub mod batch;
mod cases;
pub mod compacted;
pub mod conn;
pub mod expect;
pub mod small_disk;
pub mod stage;
pub mod wire;

use std::collections::BTreeMap;
use std::sync::mpsc::channel;
use std::time::{Duration, Instant};

use anyhow::Result;

use crate::cache::Cache;
use crate::process::Strand;
use crate::results::{CaseResult, PartResult};
use crate::target::{Broker, Kind, Origin};
use stage::{Skipped, Stage};

/// The bound of a case.
const BOUND: Duration = Duration::from_secs(180);

/// A case.
#[derive(Clone, Copy)]
pub struct Case {
    /// Its name.
    pub name: &'static str,
    /// What a pass proves; names the fault or pitfall it comes from.
    pub proves: &'static str,
    /// Carries it out.
    pub run: fn(&mut Stage) -> Result<()>,
}

/// All cases in order.
pub fn cases() -> Vec<Case> {
    cases::all()
}

/// Runs the cases whose names are wanted.
pub fn run(origin: &Origin, cache: &Cache, full: bool, wanted: &dyn Fn(&str) -> bool) -> Result<PartResult> {
    let mut part = PartResult::new("raw", "raw sockets", "own encoder", &origin.title());
    if wanted("flush-before-answer") {
        cache.packages(&["strace".to_owned()], &BTreeMap::new())?;
    }
    let mut stage: Option<Stage> = None;
    for case in cases().into_iter().filter(|case| wanted(case.name)) {
        let ready = match stage.take() {
            Some(ready) => Ok(ready),
            None => {
                Broker::start(origin, "raw", &[]).and_then(|broker| Stage::new(broker, origin.clone(), full))
            }
        };
        match ready {
            Ok(ready) => {
                let (result, back) = run_one(case, ready);
                part.push(result);
                stage = back;
            }
            Err(error) => part.push(CaseResult::fail(case.name, format!("{error:#}"), 0)),
        }
    }
    Ok(part)
}

/// Runs one case on a thread of its own, so that one that hangs costs only itself and its broker. Answers the stage for the next case,
/// if it is still of use.
fn run_one(case: Case, mut stage: Stage) -> (CaseResult, Option<Stage>) {
    let started = Instant::now();
    let mut bound = if stage.full { BOUND * 10 } else { BOUND };
    if stage.broker.kind() == Kind::Kafka {
        // A restart of Apache Kafka takes ten seconds.
        bound *= 3;
    }
    let (sender, done) = channel();
    let strand = Strand::current();
    std::thread::spawn(move || {
        strand.enter();
        stage.begin(case.name);
        let outcome = std::panic::catch_unwind(std::panic::AssertUnwindSafe(|| (case.run)(&mut stage)));
        // When the bound has passed nobody listens; the stage is dropped here.
        let _ = sender.send((outcome, stage));
    });
    let outcome = done.recv_timeout(bound);
    let ms = u64::try_from(started.elapsed().as_millis()).unwrap_or(u64::MAX);
    let (outcome, mut stage) = match outcome {
        Ok(done) => done,
        Err(_) => {
            // The thread keeps the stage; without its broker it comes to an end soon.
            strand.kill();
            return (CaseResult::fail(case.name, format!("not done within {bound:?}"), ms), None);
        }
    };
    let result = match outcome {
        Ok(Ok(())) => CaseResult { ms, ..CaseResult::pass(case.name) },
        Ok(Err(error)) => match error.downcast_ref::<Skipped>() {
            Some(skipped) => CaseResult::skip(case.name, skipped.0.clone()),
            None => CaseResult::fail(case.name, format!("{error:#}"), ms),
        },
        Err(panic) => {
            let text = panic.downcast_ref::<String>().cloned();
            let text = text.or_else(|| panic.downcast_ref::<&str>().map(|text| (*text).to_owned()));
            CaseResult::fail(case.name, format!("the case panicked: {}", text.unwrap_or_default()), ms)
        }
    };
    if stage.broker.runs() {
        return (result, Some(stage));
    }
    let log = crate::process::tail(stage.broker.log(), 5);
    let ended = CaseResult::fail(case.name, format!("{}; and the broker is gone: {log}", result.detail), ms);
    (ended, None)
}
