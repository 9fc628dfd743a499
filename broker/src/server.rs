//! One broker, built and wired; in which order it starts and stops. The only file that knows every part.
//!
//! Start: the data directory is locked, listeners are bound (so that a port in use is told before anything is
//! written), the table of copies is read, the control store is opened and this life registered, partitions are
//! opened, and only then the first connection is accepted. The stop is `stop`'s.

use std::collections::BTreeSet;
use std::path::Path;
use std::process::ExitCode;
use std::sync::Arc;
use std::sync::atomic::{AtomicBool, Ordering};
use std::time::Duration;

use anyhow::{Context, Result, anyhow, bail};
use felix_cluster::config::BrokerConfig;
use felix_cluster::config::broker::FlushMode as ConfiguredFlushMode;
use felix_cluster::config::flags::FLAGS;
use felix_cluster::state::Listener;
use felix_cluster::view::View;
use felix_control::agent::AgentConfig;
use felix_partition::fence::{knows_of_failed_flush, settle_identities};
use felix_protocol::ids::{BrokerId, TopicId, Uuid};
use felix_storage::data_dir::Identity;
use felix_storage::disk::os::OsDisk;
use felix_storage::{DataDir, FlushMode, Limits as StorageLimits, Replicas, StorageError};
use tokio::signal::unix::{SignalKind, signal};
use tokio_util::sync::CancellationToken;

use crate::admin::producer_ids::ProducerIds;
use crate::args::{Endpoint, Settings};
use crate::budget::Budget;
use crate::clock::SystemClock;
use crate::coordinators::{self, Coordinators};
use crate::descriptors::Descriptors;
use crate::fetching::readers::Readers;
use crate::fetching::session::Sessions;
use crate::metrics::Metrics;
use crate::net::{self, Bound, Census, SocketSetup};
use crate::node::{self, Node};
use crate::partitions::{self, FetchWait, Following, Isolation, PartitionHandle, Partitions};
use crate::peers::{self, Peers};
use crate::quota::Quotas;
use crate::view::Configs;
use crate::{handlers, http, tasks};

mod control;
mod directory;
mod internal;
mod pages;
mod stop;

use internal::Internal;

pub use control::etcd_ways;

/// Threads that wait for the disk in place of connections, unless configured.
const READERS: usize = 4;
/// Threads that flush, unless configured.
const FLUSHERS: usize = 4;
/// How long the first connection waits for the partitions to open; those that take longer are not led until then.
const OPENING: Duration = Duration::from_secs(10);
/// Where the addresses that are really listened on are written while the broker is ready.
const LISTENING_FILE: &str = "listening";

/// Runs a broker until it is told to stop. An error is a start that was refused.
pub fn run(settings: Settings) -> Result<ExitCode> {
    let workers = std::thread::available_parallelism().map_or(2, |count| count.get().max(2));
    let runtime = tokio::runtime::Builder::new_multi_thread()
        .worker_threads(workers)
        .thread_name("felix-net")
        .thread_stack_size(tasks::THREAD_STACK_BYTES)
        .enable_all()
        .build()
        .context("cannot start the network threads")?;
    let code = runtime.block_on(serve(settings))?;
    // Threads that still wait for the disk have nothing to say any more.
    runtime.shutdown_background();
    Ok(code)
}

async fn serve(settings: Settings) -> Result<ExitCode> {
    let mut stop = Signals::listen()?;
    let clock = SystemClock::start();
    tell_without_effect(&settings);
    let starting = Starting::new(settings, clock)?;
    let (server, sockets) = tokio::select! {
        started = starting.start() => started?,
        // Waiting for a store or for an earlier session to be over is no reason not to stop; nothing is led yet.
        () = stop.received() => return Ok(ExitCode::SUCCESS),
    };
    server.serve_http(sockets.http);
    let end = tokio::select! {
        end = server.trouble() => end,
        () = stop.received() => End::Asked,
        () = server.open_partitions() => {
            server.serve_clients(sockets.clients);
            server.announce();
            tokio::select! {
                end = server.trouble() => end,
                () = stop.received() => End::Asked,
            }
        }
    };
    Ok(server.stop(end).await)
}

/// Says which settings were given in vain.
pub fn tell_without_effect(settings: &Settings) {
    for (what, why) in &settings.without_effect {
        tracing::warn!(setting = what, why, "a setting has no effect");
    }
    // What a flag means too is what it is.
    let by_flag = |name: &str| FLAGS.iter().any(|flag| flag.config == Some(name));
    for (row, why) in settings.fixed.without_full_effect().filter(|(row, _)| !by_flag(row.name)) {
        tracing::warn!(setting = row.name, why, "a setting has no full effect");
    }
}

/// SIGTERM and SIGINT.
struct Signals {
    terminate: tokio::signal::unix::Signal,
    interrupt: tokio::signal::unix::Signal,
}

impl Signals {
    fn listen() -> Result<Signals> {
        let listen = |kind| signal(kind).context("cannot listen for signals");
        Ok(Signals {
            terminate: listen(SignalKind::terminate())?,
            interrupt: listen(SignalKind::interrupt())?,
        })
    }

    async fn received(&mut self) {
        tokio::select! {
            _ = self.terminate.recv() => {}
            _ = self.interrupt.recv() => {}
        }
    }
}

/// Why the broker stops.
enum End {
    /// It was asked to.
    Asked,
    /// It must: what the disk holds, or whether it may lead, is unknown.
    Trouble(String),
}

/// What is listened on.
struct Sockets {
    clients: Vec<Bound>,
    internal: Option<Internal>,
    http: Bound,
}

/// What is known before anything runs.
struct Starting {
    settings: Settings,
    clock: SystemClock,
    config: BrokerConfig,
    descriptors: Descriptors,
    dir: DataDir<OsDisk>,
    sockets: Sockets,
}

impl Starting {
    fn new(settings: Settings, clock: SystemClock) -> Result<Starting> {
        let configs = Configs::new(BrokerId(settings.node_id), settings.fixed.clone());
        let config = BrokerConfig::clone(&configs.broker(&View::default()));
        let descriptors = Descriptors::claim();
        let limits = StorageLimits {
            open_files: descriptors.files,
            tail_bytes: usize::try_from(config.logs.tail_bytes).unwrap_or(usize::MAX),
            ..StorageLimits::default()
        };
        let dir = DataDir::open(OsDisk, &settings.data_dir, limits).map_err(|error| {
            let path = settings.data_dir.display();
            if matches!(error, StorageError::Locked(_)) {
                return anyhow!(
                    "data-dir = \"{path}\": in use by another process; stop it or choose another"
                );
            }
            anyhow!("data-dir = \"{path}\": {error}")
        })?;
        let setup = SocketSetup::of(&config);
        let mut clients = Vec::new();
        for listener in &settings.listeners {
            clients.push(
                net::bind(&listener.name, &listener.host, listener.port, setup)
                    .with_context(|| format!("listeners = \"{listener}\""))?,
            );
        }
        let (host, port) = &settings.metrics_bind;
        let http = net::bind("metrics", host, *port, setup).context("metrics-bind")?;
        let internal = internal::bind(&settings, setup)?;
        let sockets = Sockets { clients, internal, http };
        Ok(Starting { settings, clock, config, descriptors, dir, sockets })
    }

    async fn start(self) -> Result<(Server, Sockets)> {
        let Starting { settings, clock, config, descriptors, dir, mut sockets } = self;
        let id = BrokerId(settings.node_id);
        let boot_id = boot_id()?;
        let identity = directory::identity(&dir)?;
        if let Some(identity) = &identity
            && identity.node_id != settings.node_id
        {
            bail!(
                "node-id = {}: the data directory {} belongs to node {}",
                settings.node_id,
                dir.path().display(),
                identity.node_id
            );
        }
        let directory_id = match &identity {
            Some(identity) => TopicId::parse(&identity.directory_id)
                .with_context(|| format!("meta.properties: directory.id = \"{}\"", identity.directory_id))?,
            None => TopicId::random(),
        };
        directory::tell_of_damage(&dir);
        let (replicas, report) = Replicas::open(&dir).context("the table of copies")?;
        let doubted = settle_identities(&replicas, &report, boot_id.as_u128())?;
        directory::tell_of_table(&report, &doubted);
        let replicas = Arc::new(replicas);
        let entering = AgentConfig {
            directory: dir.path().to_owned(),
            cluster_id: identity.as_ref().map(|identity| identity.cluster_id.clone()),
            node: id,
            directory_id: directory_id.0,
            boot_id: boot_id.to_string(),
            listeners: advertised(&settings, &sockets.clients),
            internal: sockets.internal.as_ref().map(|internal| internal.told.clone()),
            rack: settings.rack.clone(),
            version: env!("CARGO_PKG_VERSION").to_owned(),
            copies: dir.partitions()?.len(),
            doubts_settled: knows_of_failed_flush(&report),
            fences: replicas.all().into_iter().map(|(partition, row)| (partition, row.accepted)).collect(),
            lease_ms: u64::try_from(settings.lease.as_millis()).unwrap_or(u64::MAX),
        };
        let agent = control::enter(entering, settings.etcd.as_ref(), clock, &replicas).await?;
        if identity.is_none() {
            dir.set_identity(&Identity {
                cluster_id: agent.view().cluster_id().to_owned(),
                node_id: settings.node_id,
                directory_id: directory_id.to_string(),
            })?;
        }
        let metrics = Metrics::new()?;
        let setup = partitions::Setup {
            dir: dir.clone(),
            replicas,
            flush_mode: match config.logs.flush_mode {
                ConfiguredFlushMode::Auto => FlushMode::Auto,
                ConfiguredFlushMode::File => FlushMode::File,
                ConfiguredFlushMode::FileSystem => FlushMode::Filesystem,
            },
            broker: id,
            clock,
            lanes: config.threads.lanes.unwrap_or_else(lanes),
            flushers: config.threads.flushers.unwrap_or(FLUSHERS),
            retain_every: Duration::from_millis(config.logs.retention_check_interval_ms.max(1)),
            scrub: partitions::Pace::of(&config.logs),
            cleaner: config.logs.cleaner.clone(),
            flush_seconds: metrics.flush_seconds.clone(),
        };
        let partitions = Partitions::start(setup, &agent)?;
        let (closing, budget) = (CancellationToken::new(), Budget::of(&config.net));
        let fixed = Arc::new(settings.fixed.values().clone());
        let following = partitions::follow(Arc::clone(&partitions), agent.clone(), fixed)?;
        let coordinators = Coordinators::start(coordinators::Setup {
            agent: agent.clone(),
            partitions: Arc::clone(&partitions),
            configs: Configs::new(id, settings.fixed.clone()),
            clock,
            closing: closing.clone(),
        })?;
        let internal_address = sockets.internal.as_ref().map(|internal| internal.bound.address);
        let speaking = sockets.internal.take().map(|internal| {
            let setup = peers::Setup {
                directory: Arc::new(agent.clone()),
                tls: internal.tls,
                clock,
                timing: peers::Timing::default(),
                memory: budget.peers().clone(),
                figures: peers::Figures::of(&metrics),
            };
            handlers::peer::start(setup, internal.bound.into_listener(), &agent, &partitions)
        });
        let quotas = Arc::new(Quotas::new(&config));
        quotas.follow(agent.clone());
        let node = Arc::new(Node {
            id,
            clock,
            descriptors,
            api_metrics: node::api_metrics(&metrics),
            metrics,
            budget,
            closing,
            configs: Configs::new(id, settings.fixed),
            agent,
            partitions,
            coordinators,
            sessions: Sessions::new(),
            readers: Readers::new(config.threads.readers.unwrap_or(READERS)),
            producer_ids: ProducerIds::new(),
            quotas,
            metadata: parking_lot::Mutex::default(),
        });
        let addresses = sockets.clients.iter().chain([&sockets.http]);
        let addresses = addresses.map(|bound| format!("{} {}\n", bound.name, bound.address));
        let internal = internal_address.map(|address| format!("internal {address}\n"));
        let addresses = addresses.chain(internal).collect();
        let is_shared = settings.etcd.is_some();
        let (ready, census) = (Arc::default(), Arc::default());
        let server = Server { node, dir, following, peers: speaking, addresses, is_shared, ready, census };
        Ok((server, sockets))
    }
}

/// A lane a core, at least one.
fn lanes() -> usize {
    std::thread::available_parallelism().map_or(1, std::num::NonZero::get)
}

fn boot_id() -> Result<Uuid> {
    let path = Path::new("/proc/sys/kernel/random/boot_id");
    let text = std::fs::read_to_string(path).with_context(|| path.display().to_string())?;
    text.trim().parse().with_context(|| path.display().to_string())
}

/// What clients are told: what was said, or where we listen. A port that the system chose is told as it is.
fn advertised(settings: &Settings, bound: &[Bound]) -> Vec<Listener> {
    let one = |(listener, bound): (&Endpoint, &Bound)| {
        let said = settings.advertised.iter().find(|said| said.name == listener.name);
        let (host, port) = match said {
            Some(said) => (said.host.clone(), said.port),
            None => (reachable(&listener.host), bound.address.port()),
        };
        Listener { name: listener.name.clone(), protocol: "PLAINTEXT".to_owned(), host, port }
    };
    settings.listeners.iter().zip(bound).map(one).collect()
}

/// Every address of the machine is none that a client could dial: the host's name is.
fn reachable(host: &str) -> String {
    if !matches!(host, "" | "0.0.0.0" | "::") {
        return host.to_owned();
    }
    let name = rustix::system::uname().nodename().to_string_lossy().into_owned();
    if name.is_empty() { "localhost".to_owned() } else { name }
}

/// A broker that runs.
struct Server {
    node: Arc<Node>,
    dir: DataDir<OsDisk>,
    following: Following,
    /// The other brokers, where there can be any.
    peers: Option<Arc<Peers>>,
    addresses: String,
    /// Whether others share the control store: then there may be somebody to hand partitions over to.
    is_shared: bool,
    ready: Arc<AtomicBool>,
    census: Arc<Census>,
}

/// Waits until the mark has reached the log end of the takeover.
async fn settled(partition: &PartitionHandle) {
    while !partition.latest_known() && partition.is_leader() {
        let wait = FetchWait::new(1);
        let registered = partition.register(&wait, Isolation::ReadUncommitted);
        // It may have moved before that.
        if registered.is_err() || partition.latest_known() || !partition.is_leader() {
            return;
        }
        wait.woken().await;
    }
}

impl Server {
    fn serve_http(&self, bound: Bound) {
        let pages = Arc::new(pages::Pages {
            node: Arc::clone(&self.node),
            dir: self.dir.clone(),
            ready: Arc::clone(&self.ready),
        });
        tasks::spawn("http", http::serve(bound.into_listener(), pages, self.node.closing.clone()));
    }

    fn serve_clients(&self, listeners: Vec<Bound>) {
        for bound in listeners {
            let serve = net::serve(bound, Arc::clone(&self.node), Arc::clone(&self.census));
            tasks::spawn("listener", serve);
        }
    }

    /// Waits until every partition that this life is named to lead is open, and shows its readers what it showed
    /// them in an earlier life.
    async fn open_partitions(&self) {
        let (node, session) = (self.node.id, self.node.agent.session());
        let ready = async {
            let mut changes = self.node.partitions.changes();
            loop {
                changes.mark_unchanged();
                // One that is halted stays so: the others do not wait for it.
                let halted: BTreeSet<_> =
                    self.node.partitions.halted().iter().map(|halted| halted.partition).collect();
                let open = |view: &View| {
                    view.partitions().all(|partition| {
                        partition.led_by(node, session).is_none()
                            || partition.opened()
                            || halted.contains(&partition.id)
                    })
                };
                tokio::select! {
                    all = self.node.agent.wait_for(OPENING, open) => if all { break } else { return false },
                    _ = changes.changed() => {}
                }
            }
            for partition in self.node.partitions.all() {
                settled(&partition).await;
            }
            true
        };
        if !tokio::time::timeout(OPENING, ready).await.unwrap_or(false) {
            tracing::warn!("some partitions are still being opened; they are led once they are");
        }
    }

    /// Says that clients are served, and where.
    fn announce(&self) {
        let path = self.dir.path().join(LISTENING_FILE);
        // A folder in the file's place was put there by nobody of ours; mostly there is none.
        let _ = std::fs::remove_dir_all(&path);
        if let Err(error) = std::fs::write(&path, &self.addresses) {
            // A help for people and tests; a full disk must not keep a broker from serving reads.
            tracing::warn!(path = %path.display(), %error, "the addresses could not be written down");
        }
        self.ready.store(true, Ordering::Release);
        let addresses = self.addresses.trim_end().replace('\n', ", ");
        tracing::info!(
            version = env!("CARGO_PKG_VERSION"),
            node = %self.node.id,
            cluster = self.node.view().cluster_id(),
            data_dir = %self.dir.path().display(),
            partitions = self.node.partitions.count(),
            %addresses,
            "ready"
        );
    }

    /// Waits for what forces the broker to stop.
    async fn trouble(&self) -> End {
        let mut fatal = self.node.partitions.fatal();
        tokio::select! {
            failed = fatal.wait_for(Option::is_some) => match failed {
                Ok(error) => End::Trouble(error.as_ref().map_or_else(String::new, ToString::to_string)),
                Err(_) => End::Trouble("the partitions have stopped".to_owned()),
            },
            why = self.node.agent.ended() => {
                End::Trouble(why.unwrap_or_else(|| "the control side has ended".to_owned()))
            }
        }
    }
}
