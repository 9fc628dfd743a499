//! The broker under test: Felix, or Apache Kafka for comparison. Both are started on free ports with a fresh data directory, can be
//! stopped, killed and started again on the same directory and ports, and keep their log.

mod felix;
mod kafka;

use std::net::{Ipv4Addr, SocketAddrV4};
use std::path::{Path, PathBuf};
use std::process::Command;
use std::time::Duration;

use anyhow::{Context, Result, bail};
use clap::ValueEnum;
use tempfile::TempDir;

use crate::cache::Cache;
use crate::lossy::Lossy;
use crate::process::{Process, tail};
use crate::raw::conn::Connection;
use crate::{guard, ports, wait};

/// How long a broker may take to stop when asked to.
const STOP_BOUND: Duration = Duration::from_secs(30);

/// Which broker.
#[derive(Debug, Clone, Copy, PartialEq, Eq, ValueEnum)]
pub enum Kind {
    /// The `felix` binary of this clone.
    Felix,
    /// Apache Kafka from Maven jars.
    Kafka,
}

impl Kind {
    /// The name of folders for this kind; what `--against` takes.
    pub fn folder(self) -> &'static str {
        match self {
            Self::Felix => "felix",
            Self::Kafka => "kafka",
        }
    }
}

/// Where brokers of one kind come from, found once a run.
#[derive(Debug, Clone)]
pub struct Origin {
    kind: Kind,
    /// The binary, or the folder of jars.
    place: PathBuf,
    version: String,
    logs: PathBuf,
}

impl Origin {
    /// Finds (for Kafka: fetches) what is needed to start brokers.
    pub fn find(
        kind: Kind,
        cache: &Cache,
        felix: Option<PathBuf>,
        clients: &Path,
        logs: &Path,
    ) -> Result<Self> {
        let (place, version) = match kind {
            Kind::Felix => felix::find(felix)?,
            Kind::Kafka => kafka::find(cache, clients)?,
        };
        Ok(Self { kind, place, version, logs: logs.to_path_buf() })
    }

    /// The kind of brokers.
    pub fn kind(&self) -> Kind {
        self.kind
    }

    /// The binary, or the folder of jars.
    pub fn binary(&self) -> &Path {
        &self.place
    }

    /// Where logs go.
    pub fn logs(&self) -> &Path {
        &self.logs
    }

    /// Name and version, as pages and lines show it.
    pub fn title(&self) -> String {
        match self.kind {
            Kind::Felix => self.version.clone(),
            Kind::Kafka => format!("Apache Kafka {}", self.version),
        }
    }
}

/// A broker, running or stopped.
pub struct Broker {
    origin: Origin,
    settings: Vec<(String, String)>,
    environment: Vec<(String, String)>,
    /// How many descriptors the process may have at most.
    descriptors: Option<u32>,
    port: u16,
    second_port: u16,
    data: DataDir,
    log: PathBuf,
    process: Option<Process>,
    second: Option<Second>,
}

/// A second listener, and the port that clients who come by it are told: that of the way on which answers get lost.
struct Second {
    port: u16,
    told: u16,
    lossy: Option<Lossy>,
}

/// A directory of our own that goes with the broker, or one that somebody else keeps.
enum DataDir {
    Own(TempDir),
    Given(PathBuf),
}

impl Broker {
    /// Starts a broker on a fresh directory with these settings (Kafka's names) and waits until it answers.
    pub fn start(origin: &Origin, label: &str, settings: &[(String, String)]) -> Result<Self> {
        let own = guard::temporary("data-")?;
        Self::start_in(origin, label, settings, DataDir::Own(own), &[], None)
    }

    /// The same with a second listener, whose clients go by a way on which answers get lost.
    pub fn start_lossy(origin: &Origin, label: &str, settings: &[(String, String)]) -> Result<Self> {
        let own = guard::temporary("data-")?;
        let second = Second { port: ports::free()?, told: ports::free()?, lossy: None };
        Self::start_in(origin, label, settings, DataDir::Own(own), &[], Some(second))
    }

    /// The same on a directory that the caller keeps, with variables of the environment.
    pub fn start_on(
        origin: &Origin,
        label: &str,
        settings: &[(String, String)],
        data: &Path,
        environment: &[(String, String)],
    ) -> Result<Self> {
        Self::start_in(origin, label, settings, DataDir::Given(data.to_path_buf()), environment, None)
    }

    /// From its next start on, the process may have so many descriptors at most.
    pub fn limit_descriptors(&mut self, most: u32) {
        self.descriptors = Some(most);
    }

    fn start_in(
        origin: &Origin,
        label: &str,
        settings: &[(String, String)],
        data: DataDir,
        environment: &[(String, String)],
        second: Option<Second>,
    ) -> Result<Self> {
        let log = origin.logs.join(format!("broker-{label}.log"));
        // A log of the run before would only confuse.
        if log.exists() {
            std::fs::remove_file(&log)?;
        }
        let mut broker = Self {
            origin: origin.clone(),
            settings: settings.to_vec(),
            environment: environment.to_vec(),
            descriptors: None,
            port: ports::free()?,
            second_port: ports::free()?,
            data,
            log,
            process: None,
            second,
        };
        if origin.kind == Kind::Kafka {
            kafka::format(&broker)?;
        }
        broker.start_again()?;
        Ok(broker)
    }

    /// Where the data is.
    pub fn data_dir(&self) -> &Path {
        match &self.data {
            DataDir::Own(own) => own.path(),
            DataDir::Given(given) => given,
        }
    }

    /// The folder that holds a partition's files, found by Kafka's name for it or by the topic's id.
    pub fn partition_dir(&self, topic: &str, topic_id: &str, partition: i32) -> Result<PathBuf> {
        let root = match self.origin.kind {
            Kind::Felix => self.data_dir().to_path_buf(),
            Kind::Kafka => kafka::log_dir(self),
        };
        for name in [topic, topic_id] {
            let folder = root.join(format!("{name}-{partition}"));
            if folder.is_dir() {
                return Ok(folder);
            }
        }
        bail!("no folder for {topic}-{partition} ({topic_id}) in {}", root.display())
    }

    /// The kind.
    pub fn kind(&self) -> Kind {
        self.origin.kind
    }

    /// Where it listens.
    pub fn address(&self) -> SocketAddrV4 {
        SocketAddrV4::new(Ipv4Addr::LOCALHOST, self.port)
    }

    /// Its pid while it runs.
    pub fn pid(&self) -> Option<i32> {
        self.process.as_ref().map(Process::pid)
    }

    /// Its log file.
    pub fn log(&self) -> &Path {
        &self.log
    }

    /// Whether the process is there.
    pub fn runs(&mut self) -> bool {
        self.process.as_mut().is_some_and(|process| process.ended().is_none())
    }

    /// Starts the process on the same directory and ports and waits until it answers.
    pub fn start_again(&mut self) -> Result<()> {
        if self.runs() {
            return Ok(());
        }
        let mut command = match self.origin.kind {
            Kind::Felix => felix::command(self),
            Kind::Kafka => kafka::command(self),
        };
        if let Some(most) = self.descriptors {
            let inner = command;
            command = self.in_place("prlimit");
            command.arg(format!("--nofile={most}:{most}")).arg(inner.get_program()).args(inner.get_args());
        }
        command.envs(self.environment.iter().map(|(name, value)| (name, value)));
        self.process = Some(Process::spawn_logged(&mut command, &self.log)?);
        self.wait_ready()
    }

    fn wait_ready(&mut self) -> Result<()> {
        let bound = match self.origin.kind {
            Kind::Felix => Duration::from_secs(20),
            Kind::Kafka => Duration::from_secs(90),
        };
        let (address, log) = (self.address(), self.log.clone());
        let process = self.process.as_mut().context("no process")?;
        wait::until("the broker's readiness", bound, || {
            if let Some(status) = process.ended() {
                bail!("the broker ended with {status} at its start:\n{}", tail(&log, 15));
            }
            let seen =
                Connection::open(address, Duration::from_secs(5)).and_then(|mut to| to.sees_a_broker());
            Ok(seen.is_ok_and(|seen| seen).then_some(()))
        })
        .with_context(|| format!("see {}", log.display()))
    }

    /// The program (of Felix), for its other commands.
    pub fn binary(&self) -> &Path {
        &self.origin.place
    }

    /// Waits until it ends by itself; `None` when it does not within `bound`.
    pub fn wait_end(&mut self, bound: Duration) -> Option<std::process::ExitStatus> {
        self.process.as_mut()?.wait(bound)
    }

    /// Stops it with SIGTERM.
    pub fn stop(&mut self) -> Result<()> {
        if let Some(mut process) = self.process.take() {
            let status = process.terminate(STOP_BOUND)?;
            // Java reports 143 for an orderly end on SIGTERM.
            if !status.success() && status.code() != Some(143) {
                bail!("the broker ended with {status} on SIGTERM:\n{}", tail(&self.log, 15));
            }
        }
        Ok(())
    }

    /// Kills it with SIGKILL.
    pub fn kill(&mut self) {
        if let Some(mut process) = self.process.take() {
            process.kill();
        }
    }

    /// Stops and starts it.
    pub fn restart(&mut self) -> Result<()> {
        self.stop()?;
        self.start_again()
    }

    /// Kills and starts it.
    pub fn kill_and_restart(&mut self) -> Result<()> {
        self.kill();
        self.start_again()
    }

    /// The way on which every seventh answer to a Produce gets lost, opened when it is asked for first.
    pub fn lossy(&mut self) -> Result<&Lossy> {
        let second = self.second.as_mut().context("the client's manifest does not say `lossy = true`")?;
        if second.lossy.is_none() {
            let at = |port| SocketAddrV4::new(Ipv4Addr::LOCALHOST, port);
            second.lossy = Some(Lossy::open(at(second.told), at(second.port))?);
        }
        second.lossy.as_ref().context("no way")
    }

    /// The second listener: where it listens, and the address that its clients are told.
    pub fn second_listener(&self) -> Option<(SocketAddrV4, SocketAddrV4)> {
        let at = |port| SocketAddrV4::new(Ipv4Addr::LOCALHOST, port);
        self.second.as_ref().map(|second| (at(second.port), at(second.told)))
    }

    fn setting_or(&self, name: &str, default: &str) -> String {
        let given = self.settings.iter().find(|(key, _)| key == name);
        given.map_or_else(|| default.to_owned(), |(_, value)| value.clone())
    }

    fn in_place(&self, program: &str) -> Command {
        let mut command = Command::new(program);
        command.current_dir(self.data_dir());
        command
    }
}
