//! Real clients against the real binary.
//!
//! The harness starts `felix` (or Apache Kafka, to compare) as a process of its own, runs client programs and raw-socket cases against it,
//! and reports a line a case. README.md says how to run it and how to add a client.

mod cache;
mod cluster;
mod guard;
mod lossy;
mod machine;
mod manifest;
mod page;
mod ports;
mod process;
mod program;
mod raw;
mod results;
mod target;
mod wait;

use std::collections::BTreeSet;
use std::path::{Path, PathBuf};
use std::process::ExitCode;
use std::time::Instant;

use anyhow::{Context, Result, anyhow, bail};
use clap::Parser;

use cache::Cache;
use guard::Guard;
use manifest::{Client, Manifests};
use process::Strand;
use program::Program;
use results::{CaseResult, PartResult, Status};
use target::{Broker, Kind, Origin};

/// Runs real Kafka clients and raw-socket cases against Felix, or against Apache Kafka.
#[derive(Parser)]
struct Args {
    /// Parts to run (repeatable or comma list); all when none is named.
    #[arg(long, value_delimiter = ',')]
    client: Vec<String>,
    /// Cases to run (repeatable or comma list, `*` stands for anything).
    #[arg(long, value_delimiter = ',')]
    case: Vec<String>,
    /// The broker under test.
    #[arg(long, value_enum, default_value = "felix")]
    against: Kind,
    /// The `felix` binary, if not the one beside the harness.
    #[arg(long)]
    felix: Option<PathBuf>,
    /// Long cases in full.
    #[arg(long)]
    full: bool,
    /// Lists parts and cases.
    #[arg(long)]
    list: bool,
    /// Writes docs/compatibility.md from the last results, after the run if one was asked for.
    #[arg(long)]
    write_docs: bool,
    /// Installs and builds what the parts need, and runs nothing.
    #[arg(long)]
    prepare: bool,
    /// Where logs and results go, if not to target/compat-run.
    #[arg(long)]
    output: Option<PathBuf>,
    /// Clears up after a harness whose folder this is, when its input ends.
    #[arg(long, hide = true)]
    guard: Option<PathBuf>,
}

/// Folders of the clone.
struct Places {
    package: PathBuf,
    clients: PathBuf,
    output: PathBuf,
}

impl Places {
    fn new(output: Option<PathBuf>) -> Self {
        let package = PathBuf::from(env!("CARGO_MANIFEST_DIR"));
        let output = output.unwrap_or_else(|| package.join("../target/compat-run"));
        Self { clients: package.join("clients"), package, output }
    }
}

/// Parts that the harness carries out itself.
const RAW: &str = "raw";
const CLUSTER: &str = "cluster";

fn main() -> ExitCode {
    let args = Args::parse();
    let done = match &args.guard {
        Some(folder) => guard::watch(folder).map(|()| ExitCode::SUCCESS),
        None => run_guarded(&args),
    };
    match done {
        Ok(code) => code,
        Err(error) => {
            #[expect(clippy::print_stderr, reason = "the harness reports on its streams")]
            {
                eprintln!("compat-tests: {error:#}");
            }
            ExitCode::from(2)
        }
    }
}

fn run_guarded(args: &Args) -> Result<ExitCode> {
    let guard = Guard::start()?;
    machine::watch();
    let done = run(args);
    process::kill_all();
    guard.end();
    done
}

#[expect(clippy::print_stdout, reason = "the harness reports on stdout")]
fn run(args: &Args) -> Result<ExitCode> {
    let places = Places::new(args.output.clone());
    let manifests = Manifests::read(&places.clients)?;
    let results = places.output.join("results");
    if args.list {
        list(&manifests);
        return Ok(ExitCode::SUCCESS);
    }
    let chosen = chosen(args, &manifests)?;
    let only_docs = args.write_docs && args.client.is_empty() && args.case.is_empty() && results.is_dir();
    let mut code = ExitCode::SUCCESS;
    if !only_docs {
        let parts = run_parts(args, &places, &manifests, &chosen, &results)?;
        let total = |status| parts.iter().map(|part| part.count(status)).sum::<usize>();
        let failed = total(Status::Fail);
        // Again at the end: whoever has only the last page of a long log needs to see what it was.
        parts.iter().for_each(PartResult::show_failures);
        println!("{} passed, {failed} failed, {} skipped", total(Status::Pass), total(Status::Skip));
        if failed > 0 {
            code = ExitCode::FAILURE;
        }
    }
    if args.write_docs {
        let raw = raw::cases().iter().map(|case| (case.name.to_owned(), case.proves.to_owned())).collect();
        let cluster =
            cluster::cases().iter().map(|case| (case.name.to_owned(), case.proves.to_owned())).collect();
        let own = [(RAW.to_owned(), raw), (CLUSTER.to_owned(), cluster)];
        let page = page::render(&manifests, &own, &results, &places.package)?;
        std::fs::write(places.package.join("../docs/compatibility.md"), page)?;
    }
    Ok(code)
}

#[expect(clippy::print_stdout, reason = "the harness reports on stdout")]
fn list(manifests: &Manifests) {
    for case in raw::cases() {
        println!("{RAW}/{}: {}", case.name, case.proves);
    }
    for case in cluster::cases() {
        println!("{CLUSTER}/{}: {}", case.name, case.proves);
    }
    for client in &manifests.clients {
        println!(
            "{} ({} {}): {}",
            client.name,
            client.title,
            client.version,
            manifests.cases(client).join(" ")
        );
    }
}

/// The parts to run, in order.
fn chosen(args: &Args, manifests: &Manifests) -> Result<Vec<String>> {
    let mut all = vec![RAW.to_owned(), CLUSTER.to_owned()];
    all.extend(manifests.clients.iter().map(|client| client.name.clone()));
    if let Some(unknown) = args.client.iter().find(|name| !all.contains(name)) {
        bail!("there is no client {unknown}; there are {}", all.join(", "));
    }
    all.retain(|name| args.client.is_empty() || args.client.contains(name));
    Ok(all)
}

#[expect(clippy::print_stdout, reason = "the harness reports on stdout")]
fn run_parts(
    args: &Args,
    places: &Places,
    manifests: &Manifests,
    chosen: &[String],
    results: &Path,
) -> Result<Vec<PartResult>> {
    let target = args.against.folder();
    let logs = places.output.join("logs").join(target);
    let cache = Cache::open(&logs)?;
    let origin = Origin::find(args.against, &cache, args.felix.clone(), &places.clients, &logs)?;
    println!("against {}", origin.title());
    let wanted = |case: &str| args.case.is_empty() || args.case.iter().any(|pattern| matches(pattern, case));
    let stage = Stage { args, cache: &cache, manifests, origin: &origin, logs: &logs };
    let strand = |names: Vec<&String>| -> Result<Vec<PartResult>> {
        let mut parts = Vec::new();
        for name in names {
            let started = Instant::now();
            let Some(part) = stage.run_part(name, &wanted)? else { continue };
            println!("{name}: {} cases in {:.1} s", part.cases.len(), started.elapsed().as_secs_f64());
            part.save(&results.join(target), !args.case.is_empty())?;
            parts.push(part);
        }
        Ok(parts)
    };
    // Clusters mostly wait, for leases and for brokers that are away: everything else is run beside them.
    let (clusters, others) = chosen.iter().partition(|name| *name == CLUSTER);
    let beside = |number, names| {
        Strand::new(number).enter();
        strand(names)
    };
    let (clusters, others) = std::thread::scope(|scope| {
        let clusters = scope.spawn(|| beside(1, clusters));
        let others = beside(0, others);
        (clusters.join(), others)
    });
    let clusters = clusters.map_err(|_| anyhow!("what runs the clusters panicked"))?;
    let parts = [others?, clusters?].concat();
    if parts.is_empty() && !args.prepare {
        bail!("no case has such a name; --list shows all");
    }
    Ok(parts)
}

/// What running a client needs.
struct Stage<'a> {
    args: &'a Args,
    cache: &'a Cache,
    manifests: &'a Manifests,
    origin: &'a Origin,
    logs: &'a Path,
}

impl Stage<'_> {
    /// Runs a part; nothing comes of one without such cases, nor of preparing.
    fn run_part(&self, name: &str, wanted: &dyn Fn(&str) -> bool) -> Result<Option<PartResult>> {
        let Self { args, cache, manifests, origin, .. } = self;
        let part = match manifests.clients.iter().find(|client| client.name == name) {
            Some(client) => self.run_client(client, wanted)?,
            None if args.prepare && name == CLUSTER => {
                cluster::prepare(cache, manifests)?;
                return Ok(None);
            }
            None if args.prepare => return Ok(None),
            None if name == CLUSTER => cluster::run(origin, cache, manifests, args.full, wanted)?,
            None => raw::run(origin, cache, args.full, wanted)?,
        };
        Ok((!args.prepare && !part.cases.is_empty()).then_some(part))
    }

    /// Prepares a client and runs its cases on a broker of its own. What cannot be built or started is a failure of every case of that
    /// client, not the end of the run.
    fn run_client(&self, client: &Client, wanted: &dyn Fn(&str) -> bool) -> Result<PartResult> {
        let mut part = PartResult::new(&client.name, &client.title, &client.version, &self.origin.title());
        let cases: Vec<String> =
            self.manifests.cases(client).into_iter().filter(|case| wanted(case)).collect();
        let mut left = Vec::new();
        for case in cases {
            match client.skip.get(&case) {
                Some(reason) => part.push(CaseResult::skip(&case, reason)),
                None => left.push(case),
            }
        }
        if left.is_empty() {
            return Ok(part);
        }
        if let Err(error) = self.try_client(client, &left, &mut part) {
            let settled: BTreeSet<String> = part.cases.iter().map(|case| case.case.clone()).collect();
            if self.args.prepare {
                return Err(error);
            }
            let mut why = format!("{error:#}");
            for case in left.iter().filter(|case| !settled.contains(*case)) {
                part.push(CaseResult::fail(case, std::mem::replace(&mut why, "as before".to_owned()), 0));
            }
            if why != "as before" {
                part.push(CaseResult::fail("broker", why, 0));
            }
        }
        Ok(part)
    }

    fn try_client(&self, client: &Client, cases: &[String], part: &mut PartResult) -> Result<()> {
        self.cache.packages(&client.apt, &client.needs)?;
        let out = self.cache.build(&client.name, &client.source, &client.build)?;
        if self.args.prepare {
            return Ok(());
        }
        let settings: Vec<(String, String)> =
            client.broker.iter().map(|(name, value)| (name.clone(), value.clone())).collect();
        let mut broker = if client.lossy {
            Broker::start_lossy(self.origin, &client.name, &settings)?
        } else {
            Broker::start(self.origin, &client.name, &settings)?
        };
        let (source, full) = (&client.source, self.args.full);
        let data = broker.data_dir().to_path_buf();
        let against = self.args.against.folder();
        let command = || {
            let mut command = client.command(&out);
            self.cache.environment(&mut command, source, &out);
            command.env("DATA_DIR", &data).env("FELIX_AGAINST", against);
            if full {
                command.env("FELIX_FULL", "1");
            }
            command
        };
        let log = self.logs.join(format!("client-{}.log", client.name));
        std::fs::write(&log, "")?;
        let program = Program {
            command: &command,
            prefix: format!("{}-", client.name),
            log,
            bound: &|case| self.manifests.bound(client, case, full),
        };
        let told = program.run(cases, &mut broker, &mut |result| part.push(result));
        if let Some(version) = told.context("running the client program")? {
            part.version = version;
        }
        // A broker that fell over or cannot stop in order is a failure even if no case noticed.
        if broker.runs() {
            broker.stop().context("stopping the broker after the last case")?;
        } else {
            bail!("the broker ended by itself:\n{}", process::tail(broker.log(), 15));
        }
        Ok(())
    }
}

/// Whether a name fits a pattern with at most a few `*`.
fn matches(pattern: &str, name: &str) -> bool {
    match pattern.split_once('*') {
        None => pattern == name,
        Some((start, rest)) => name.strip_prefix(start).is_some_and(|left| {
            (0..=left.len()).filter(|at| left.is_char_boundary(*at)).any(|at| matches(rest, &left[at..]))
        }),
    }
}
