//! What a case of a cluster works with.

use std::path::{Path, PathBuf};
use std::process::{Command, ExitStatus};
use std::sync::atomic::{AtomicU32, Ordering};
use std::time::{Duration, Instant};

use anyhow::{Context, Result};

use super::broker::Broker;
use super::load::{Load, Loads};
use super::plan::{Cluster, Plan};
use crate::cache::Cache;
use crate::manifest::Manifests;
use crate::process::{Process, run};
use crate::program::{Host, Program};
use crate::raw::ask::code;
use crate::results::Status;

/// How long a tool may take, the start of a JVM included.
const TOOL: Duration = Duration::from_secs(120);
/// Kafka's tools that were run, so that each has a log of its own.
static TOOLS: AtomicU32 = AtomicU32::new(0);

/// How long looking through all data may take.
const VERIFY: Duration = Duration::from_secs(60);

/// Programs that were built for the cases.
#[derive(Debug, Clone)]
pub struct Built {
    /// etcd's server.
    pub etcd: PathBuf,
    /// The program of the client rdkafka.
    pub rdkafka: PathBuf,
    /// Output and source of the Java client.
    pub java: (PathBuf, PathBuf),
    /// The cache.
    pub cache: PathBuf,
}

/// See the module.
pub struct Stage {
    felix: PathBuf,
    built: Built,
    logs: PathBuf,
    /// Long cases in full.
    pub full: bool,
}

/// Which client makes the load.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub enum Loader {
    /// librdkafka.
    Rdkafka,
    /// Apache Kafka's Java client.
    Java,
}

impl Stage {
    /// A stage whose logs go to a folder.
    pub fn new(felix: PathBuf, built: Built, logs: PathBuf, full: bool) -> Self {
        Self { felix, built, logs, full }
    }

    /// A cluster to be ordered.
    pub fn plan(&self) -> Plan {
        Plan::new(&self.felix, &self.built.etcd, &self.logs)
    }

    /// How often something is tried: a few times, or as often as `--full` wants it.
    pub fn rounds(&self, short: usize, full: usize) -> usize {
        if self.full { full } else { short }
    }

    /// A log of the case.
    pub fn log(&self, name: &str) -> PathBuf {
        self.logs.join(name)
    }

    /// The program.
    pub fn felix_command(&self) -> Command {
        Command::new(&self.felix)
    }

    /// Stops all brokers in order and has `felix verify` look through what they leave.
    pub fn verify(&self, cluster: &mut Cluster) -> Result<()> {
        for id in cluster.ids() {
            cluster.broker(id)?.stop()?;
        }
        let mut command = Command::new(&self.felix);
        command.arg("verify").args(cluster.brokers().map(Broker::data_dir));
        run(&mut command, &self.logs.join("verify.log"), VERIFY)
    }

    /// Runs one of Kafka's tools by its main class: how it ended, and what it printed.
    pub fn tool(&self, class: &str, words: &[&str]) -> Result<(ExitStatus, String)> {
        let log = self.logs.join(format!("tool-{}.log", TOOLS.fetch_add(1, Ordering::Relaxed)));
        ended(self.java(class).args(words), &log)
    }

    /// Runs `felix` as an operator does: how it ended, and what it printed. The log has the last one only, because cases wait
    /// for an answer by asking again and again.
    pub fn felix(&self, words: &[&str]) -> Result<(ExitStatus, String)> {
        let log = self.logs.join("felix.log");
        drop(std::fs::File::create(&log)?);
        ended(Command::new(&self.felix).args(words), &log)
    }

    fn java(&self, class: &str) -> Command {
        let (out, source) = &self.built.java;
        let mut command = Command::new(source.join("program.sh"));
        command.args(["kafka-4", class]);
        command.env("OUT", out).env("SRC", source).env("FELIX_CACHE", &self.built.cache);
        command
    }

    /// Runs one case of a client's own program (clients/, README.md) against a host; fails as the case does. Topics of its own begin
    /// with `{prefix}1-`.
    pub fn client_case(&self, client: &str, case: &str, prefix: &str, host: &mut dyn Host) -> Result<()> {
        let clients = self.built.java.1.parent().context("no folder of clients")?;
        let manifests = Manifests::read(clients)?;
        let client = manifests.clients.iter().find(|one| one.name == client).context("no such client")?;
        let cache = Cache::open(&self.logs)?;
        cache.packages(&client.apt, &client.needs)?;
        let out = cache.build(&client.name, &client.source, &client.build)?;
        let command = || {
            let mut command = client.command(&out);
            cache.environment(&mut command, &client.source, &out);
            if self.full {
                command.env("FELIX_FULL", "1");
            }
            command
        };
        let bound = |case: &str| manifests.bound(client, case, self.full);
        let log = self.logs.join(format!("{}-{case}.log", client.name));
        let program = Program { command: &command, prefix: prefix.to_owned(), log, bound: &bound };
        let mut told = None;
        program.run(&[case.to_owned()], host, &mut |result| told = Some(result))?;
        let result = told.context("nothing came of it")?;
        match result.status {
            Status::Pass => Ok(()),
            Status::Fail | Status::Skip => anyhow::bail!("{} {case}: {}", client.name, result.detail),
        }
    }

    /// Makes a topic with so many partitions and loads all of them; returns when records are acknowledged and read.
    pub fn load(&self, cluster: &Cluster, loader: Loader, topic: &str, partitions: i32) -> Result<Load> {
        let first = cluster.brokers().next();
        let mut to = first.map_or_else(|| anyhow::bail!("there is no broker"), |broker| broker.connect())?;
        let (error, message) = to.create_on(topic, partitions, 1, &[])?;
        if error != code::NONE {
            anyhow::bail!("creating {topic}: error {error}: {message:?}");
        }
        self.load_existing(cluster, loader, topic, partitions)
    }

    /// Loads a topic that is there and empty.
    pub fn load_existing(
        &self,
        cluster: &Cluster,
        loader: Loader,
        topic: &str,
        partitions: i32,
    ) -> Result<Load> {
        let mut load = self.begin_load(cluster, loader, topic, partitions)?;
        load.progress(10)?;
        Ok(load)
    }

    /// The same by several clients at the same time, on a topic each.
    pub fn loads_existing(
        &self,
        cluster: &Cluster,
        loaded: &[(Loader, &str)],
        partitions: i32,
    ) -> Result<Loads> {
        let begin = |(loader, topic): &(Loader, &str)| self.begin_load(cluster, *loader, topic, partitions);
        let mut loads = Loads::from(loaded.iter().map(begin).collect::<Result<Vec<_>>>()?);
        loads.progress(10)?;
        Ok(loads)
    }

    fn begin_load(&self, cluster: &Cluster, loader: Loader, topic: &str, partitions: i32) -> Result<Load> {
        let mut command = match loader {
            Loader::Rdkafka => {
                let mut command = Command::new(&self.built.rdkafka);
                command.arg("load");
                command
            }
            Loader::Java => self.java("felix.compat.Load"),
        };
        command.args([&cluster.bootstrap(), topic, &partitions.to_string()]);
        let name = format!("{loader:?}").to_lowercase();
        Load::start(command, &self.logs.join(format!("load-{name}-{topic}.log")))
    }
}

/// Runs a tool to its end.
fn ended(command: &mut Command, log: &Path) -> Result<(ExitStatus, String)> {
    let mut process = Process::spawn_logged(command, log)?;
    let status = process.wait(TOOL).with_context(|| format!("{command:?} does not come to an end"))?;
    Ok((status, std::fs::read_to_string(log)?))
}

/// The middle of some durations.
pub fn median(mut durations: Vec<Duration>) -> Duration {
    durations.sort();
    durations.get(durations.len() / 2).copied().unwrap_or_default()
}

/// Durations for people.
pub fn shown(durations: &[Duration]) -> String {
    let all: Vec<String> = durations.iter().map(|one| format!("{:.2}", one.as_secs_f64())).collect();
    format!("median {:.2} s of {}", median(durations.to_vec()).as_secs_f64(), all.join(", "))
}

/// Runs something and tells how long it took.
pub fn timed<T>(work: impl FnOnce() -> Result<T>) -> Result<(T, Duration)> {
    let began = Instant::now();
    let done = work()?;
    Ok((done, began.elapsed()))
}
