//! A broker of a cluster.

use std::collections::BTreeMap;
use std::net::SocketAddrV4;
use std::path::{Path, PathBuf};
use std::process::ExitStatus;
use std::time::Duration;

use anyhow::{Context, Result, bail, ensure};

use super::node::Node;
use super::page;
use crate::process::tail;
use crate::raw::conn::Connection;
use crate::wait;

/// How long a broker may take until it serves.
const READY: Duration = Duration::from_secs(30);
/// How long it may take to stop.
const STOP: Duration = Duration::from_secs(30);
/// The patience of connections and pages.
const PATIENCE: Duration = Duration::from_secs(20);

/// Where it listens for other brokers, in a namespace of its own.
pub const INTERNAL_PORT: u16 = 9192;

/// Addresses of a broker.
#[derive(Debug, Clone, Copy)]
pub struct Addresses {
    /// The client listener.
    pub clients: SocketAddrV4,
    /// What clients are told.
    pub told: SocketAddrV4,
    /// The HTTP listener.
    pub pages: SocketAddrV4,
}

/// See the module.
pub struct Broker {
    /// Its process.
    pub node: Node,
    id: i32,
    addresses: Addresses,
    data: PathBuf,
    flags: BTreeMap<String, String>,
    settings: BTreeMap<String, String>,
}

impl Broker {
    /// One that has not been started.
    pub fn new(id: i32, node: Node, addresses: Addresses, data: PathBuf) -> Self {
        let folder = data.to_string_lossy().into_owned();
        let mut broker =
            Self { node, id, addresses, data, flags: BTreeMap::new(), settings: BTreeMap::new() };
        broker.flag("node-id", &id.to_string());
        broker.flag("data-dir", &folder);
        broker.flag("listeners", &format!("PLAINTEXT://{}", addresses.clients));
        if addresses.told != addresses.clients {
            broker.flag("advertised-listeners", &format!("PLAINTEXT://{}", addresses.told));
        }
        broker.flag("metrics-bind", &addresses.pages.to_string());
        let own = addresses.clients.ip();
        if own.is_loopback() {
            broker.flag("internal-listener", &format!("{own}:0"));
        } else {
            // A namespace of its own: the port is free, and nobody else comes by there.
            broker.flag("internal-listener", &format!("{own}:{INTERNAL_PORT}"));
            broker.flag("internal-plaintext", "true");
        }
        broker
    }

    /// Sets a flag of the command line, without its dashes; takes effect with the next start.
    pub fn flag(&mut self, name: &str, value: &str) {
        self.flags.insert(name.to_owned(), value.to_owned());
    }

    /// Takes a flag away.
    pub fn without_flag(&mut self, name: &str) {
        self.flags.remove(name);
    }

    /// Sets a broker config by Kafka's name; takes effect with the next start.
    pub fn set(&mut self, name: &str, value: &str) {
        self.settings.insert(name.to_owned(), value.to_owned());
    }

    /// Its node id.
    pub fn id(&self) -> i32 {
        self.id
    }

    /// What clients are told.
    pub fn told(&self) -> SocketAddrV4 {
        self.addresses.told
    }

    /// Its HTTP listener.
    pub fn pages(&self) -> SocketAddrV4 {
        self.addresses.pages
    }

    /// Its data directory.
    pub fn data_dir(&self) -> &Path {
        &self.data
    }

    /// Starts it and does not wait.
    pub fn spawn(&mut self) -> Result<()> {
        std::fs::create_dir_all(&self.data)?;
        let mut arguments = vec!["serve".to_owned()];
        for (name, value) in &self.flags {
            arguments.extend([format!("--{name}"), value.clone()]);
        }
        for (name, value) in &self.settings {
            arguments.extend(["--set".to_owned(), format!("{name}={value}")]);
        }
        self.node.spawn(&arguments, &[])
    }

    /// Waits until it serves clients.
    pub fn wait_ready(&mut self) -> Result<()> {
        wait::until(&format!("the readiness of {}", self.node.name()), READY, || {
            self.node.must_run()?;
            Ok(self.ready().then_some(()))
        })
        .with_context(|| tail(self.node.log(), 6))
    }

    /// Starts it and waits until it serves clients.
    pub fn start(&mut self) -> Result<()> {
        self.spawn()?;
        self.wait_ready()
    }

    /// Whether it says that it serves clients.
    pub fn ready(&self) -> bool {
        page::get(self.addresses.pages, "/readyz", Duration::from_secs(1))
            .is_ok_and(|(status, _)| status == 200)
    }

    /// SIGTERM; it must end in order.
    pub fn stop(&mut self) -> Result<()> {
        let status = self.node.terminate(STOP)?;
        if !status.success() {
            bail!("{} ended with {status} on SIGTERM:\n{}", self.node.name(), tail(self.node.log(), 12));
        }
        Ok(())
    }

    /// SIGKILL.
    pub fn kill(&mut self) {
        self.node.kill();
    }

    /// SIGSTOP.
    pub fn pause(&mut self) -> Result<()> {
        self.node.pause()
    }

    /// SIGCONT.
    pub fn resume(&mut self) -> Result<()> {
        self.node.resume()
    }

    /// Starts it where it must not come up, and waits for its end.
    pub fn refuses_to_start(&mut self) -> Result<(ExitStatus, String)> {
        let before = self.node.log_len();
        self.spawn()?;
        let status = self.node.wait_end(Duration::from_secs(60))?;
        Ok((status, self.node.log_from(before)))
    }

    /// Removes all its data; it must not run.
    pub fn wipe(&mut self) -> Result<()> {
        if self.node.runs() {
            bail!("{} runs", self.node.name());
        }
        std::fs::remove_dir_all(&self.data)?;
        Ok(std::fs::create_dir_all(&self.data)?)
    }

    /// A connection to it.
    pub fn connect(&self) -> Result<Connection> {
        self.connect_with(PATIENCE)
    }

    /// A connection whose reads and writes wait so long.
    pub fn connect_with(&self, patience: Duration) -> Result<Connection> {
        Connection::open(self.addresses.clients, patience).with_context(|| self.node.name().to_owned())
    }

    /// The page of its halted copies: a list of rows.
    pub fn halted(&self) -> Result<Vec<serde_json::Value>> {
        let (status, page) = page::get(self.addresses.pages, "/replication/halted", PATIENCE)?;
        ensure!(status == 200, "{}: /replication/halted: {status}: {page}", self.node.name());
        Ok(serde_json::from_str(&page)?)
    }

    /// A number on its metrics page.
    pub fn metric(&self, name: &str) -> Result<f64> {
        let (_, page) = page::get(self.addresses.pages, "/metrics", PATIENCE)?;
        page::metric(&page, name).with_context(|| format!("{}: no metric {name}", self.node.name()))
    }
}
