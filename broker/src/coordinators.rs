//! The coordinators: the groups of every partition of `__consumer_offsets` that this broker leads.
//!
//! The rules are in `felix_coordinator`, which has no clock and no I/O; here its machines are hosted. One
//! [`Host`] a partition: it hands the machine events under a lock, appends the records that it proposes (inside
//! the lock, so that they stand in the log in the order in which they were proposed; a submission never waits),
//! and answers clients when the append is acknowledged by all. Nothing is done under the lock that could wait.
//!
//! - `host`: one partition. `parked`: who waits for an answer. `load`: reading a machine back from its log.
//! - `timers`: all deadlines of all partitions, with one sleep for the earliest. While nothing is due, nothing
//!   wakes up.
//! - `topic`: where a group belongs, and making `__consumer_offsets` when the first one is looked for.
//!
//! An append that fails leaves the machine ahead of its log. Its host then throws it away, tells all that wait
//! to try again, and reads another from the log.

mod host;
mod load;
mod parked;
mod replicas;
#[cfg(test)]
mod tests;
mod timers;
mod topic;

use std::collections::BTreeMap;
use std::io;
use std::sync::Arc;
use std::sync::atomic::{AtomicU64, Ordering};
use std::time::Duration;

use felix_cluster::config::BrokerConfig;
use felix_cluster::moves;
use felix_cluster::topics::CONSUMER_OFFSETS;
use felix_cluster::view::View;
use felix_control::agent::Agent;
use felix_coordinator::reply::Listed;
use felix_coordinator::request::{CommitOffsets, ListGroups};
use felix_coordinator::{Reply, Request, Settings, locate};
use felix_protocol::ids::{BrokerId, PartitionId, TopicId};
use felix_protocol::time::{Clock, MonoTime};
use parking_lot::RwLock;
use thiserror::Error;
use tokio::sync::Notify;
use tokio::time::error::Elapsed;
use tokio_util::sync::CancellationToken;

use crate::clock::SystemClock;
use crate::partitions::Partitions;
use crate::tasks;
use crate::view::Configs;

use self::host::Host;
use self::load::Loader;
use self::timers::Deadlines;

pub use self::parked::Asked;

/// How long FindCoordinator and ListGroups wait for machines that are still being read, before they say so.
const WAIT_FOR_LOADING: Duration = Duration::from_millis(500);

/// The lease is looked at this often at most.
const LOOK_AT_LEASE: Duration = Duration::from_millis(250);

/// Why the coordinator of a group cannot answer. All of it passes: clients look again, or try again.
#[derive(Clone, Copy, Debug, PartialEq, Eq, Error)]
pub enum Unavailable {
    /// Another broker coordinates this group.
    #[error("another broker coordinates this group")]
    NotCoordinator,
    /// The groups are being read from the log.
    #[error("the groups are being read from the log")]
    Loading,
    /// The log takes no more writes now, or did not acknowledge one in time.
    #[error("the log of the groups does not take writes now")]
    NotAvailable,
}

/// What the coordinators are made of.
pub struct Setup {
    /// Who knows the cluster.
    pub agent: Agent,
    /// The partitions that this broker leads.
    pub partitions: Arc<Partitions>,
    /// The settings in force.
    pub configs: Configs,
    /// The clock.
    pub clock: SystemClock,
    /// Cancelled when the broker stops.
    pub closing: CancellationToken,
}

/// Numbers for an operator.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq)]
pub struct Figures {
    /// Groups that this broker coordinates.
    pub groups: usize,
    /// Partitions whose groups are being read from the log.
    pub loading: usize,
    /// Rebalances begun.
    pub rebalances: u64,
    /// Machines thrown away, because an append failed or a promise was broken, and read anew.
    pub reloads: u64,
}

/// What all hosts share.
struct Shared {
    agent: Agent,
    partitions: Arc<Partitions>,
    configs: Configs,
    clock: SystemClock,
    deadlines: Deadlines,
    loader: Loader,
    /// Told each time that a machine has been read from its log.
    loaded: Notify,
    rebalances: AtomicU64,
    reloads: AtomicU64,
}

impl Shared {
    fn config(&self, view: &View) -> Arc<BrokerConfig> {
        self.configs.broker(view)
    }

    /// What the machines are told of the configuration.
    fn settings(&self, view: &View) -> Settings {
        let config = self.config(view);
        let (groups, offsets) = (&config.groups, &config.offsets);
        let millis = |number: i64| Duration::from_millis(u64::try_from(number).unwrap_or(0));
        let defaults = Settings::default();
        let segment = usize::try_from(offsets.topic_segment_bytes).unwrap_or(usize::MAX);
        Settings {
            min_session_timeout_ms: groups.min_session_timeout_ms,
            max_session_timeout_ms: groups.max_session_timeout_ms,
            initial_rebalance_delay: millis(i64::from(groups.initial_rebalance_delay_ms)),
            max_members: usize::try_from(groups.max_size).unwrap_or(usize::MAX),
            offsets_retention: millis(offsets.retention_ms),
            retention_check_interval: Duration::from_millis(offsets.retention_check_interval_ms.max(1)),
            offset_metadata_max: usize::try_from(offsets.metadata_max_bytes).unwrap_or(usize::MAX),
            // A group is stored as one record, which must fit a segment.
            group_bytes_max: defaults.group_bytes_max.min(segment / 2),
            ..defaults
        }
    }

    /// How long an append may take to be acknowledged.
    fn commit_timeout(&self, view: &View) -> Duration {
        Duration::from_millis(self.config(view).offsets.commit_timeout_ms)
    }
}

/// The hosts of the topic's partitions that are led here.
#[derive(Default)]
struct Hosts {
    topic: Option<TopicId>,
    by_index: BTreeMap<i32, Arc<Host>>,
}

/// The coordinators of this broker.
pub struct Coordinators {
    shared: Arc<Shared>,
    hosts: RwLock<Hosts>,
    /// Held while the topic is being made, so that it is asked for once.
    making: tokio::sync::Mutex<()>,
}

impl Coordinators {
    /// Starts them. Must be called on the runtime.
    pub fn start(setup: Setup) -> io::Result<Arc<Coordinators>> {
        let Setup { agent, partitions, configs, clock, closing } = setup;
        let loader = Loader::start()?;
        let deadlines = Deadlines::default();
        let (rebalances, reloads) = (AtomicU64::new(0), AtomicU64::new(0));
        let loaded = Notify::new();
        let shared =
            Shared { agent, partitions, configs, clock, deadlines, loader, loaded, rebalances, reloads };
        let coordinators = Arc::new(Coordinators {
            shared: Arc::new(shared),
            hosts: RwLock::default(),
            making: tokio::sync::Mutex::default(),
        });
        tasks::spawn(
            "replicas of committed offsets",
            Arc::clone(&coordinators).add_replicas(closing.clone()),
        );
        tasks::spawn("coordinators", Arc::clone(&coordinators).run(closing));
        Ok(coordinators)
    }

    /// Asks the machine that keeps the group. The request is handed over before this returns, so requests of one
    /// connection reach a group in their order. Dropping the answer tells the machine that the client is gone.
    pub fn ask(&self, group: &Arc<str>, request: Request) -> Result<Asked, Unavailable> {
        self.host_of(group)?.ask(group, |_| request)
    }

    /// Stores offsets. `request` is made from the view that tells which topics exist, and made under the lock under
    /// which topics that vanish are forgotten: so no offset of a topic that is gone can stay behind.
    pub fn commit(
        &self,
        group: &Arc<str>,
        request: impl FnOnce(&View) -> CommitOffsets,
    ) -> Result<Asked, Unavailable> {
        self.host_of(group)?.ask(group, |view| Request::Commit(request(view)))
    }

    /// All groups that pass the filter. Groups of partitions led elsewhere are listed there; while some are still
    /// being read, the list would not be whole, so there is none.
    pub async fn list(&self, filter: &ListGroups) -> Result<Vec<Listed>, Unavailable> {
        let all_known =
            || self.all().len() >= self.named() && self.all().iter().all(|host| host.group_count().is_some());
        // Running out of time is told below, by whichever machine is not there yet.
        let _ = self.wait_for_loading(all_known).await;
        let hosts = self.all();
        if hosts.len() < self.named() {
            return Err(Unavailable::Loading);
        }
        let mut asked = Vec::with_capacity(hosts.len());
        let nobody: Arc<str> = "".into();
        for host in hosts {
            match host.ask(&nobody, |_| Request::List(filter.clone())) {
                Ok(answer) => asked.push(answer),
                Err(Unavailable::NotCoordinator) => {}
                Err(error) => return Err(error),
            }
        }
        let mut all = Vec::new();
        for answer in asked {
            match answer.await {
                Ok(Reply::List(listed)) => all.extend(listed),
                Ok(_) | Err(Unavailable::NotCoordinator) => {}
                Err(error) => return Err(error),
            }
        }
        Ok(all)
    }

    /// Which broker coordinates a group; makes the topic if it does not exist yet.
    pub async fn find(&self, group: &str) -> Result<BrokerId, Unavailable> {
        self.make_topic().await?;
        let view = self.shared.agent.view();
        let partition = place(&view, group).ok_or(Unavailable::NotAvailable)?;
        let leader = stays(&view, &partition).ok_or(Unavailable::NotAvailable)?;
        // A client that is sent here at once would be told "loading" by its next request. That is legal, but
        // librdkafka before 1.9 hands it to its user, where it tries again after "not available".
        if leader == self.shared.agent.node() {
            let answers = || self.host_of(group).is_ok_and(|host| host.group_count().is_some());
            self.wait_for_loading(answers).await.map_err(|_| Unavailable::NotAvailable)?;
        }
        Ok(leader)
    }

    /// Waits, for a bounded time, until machines have been read from their logs so that `enough` holds.
    async fn wait_for_loading(&self, enough: impl Fn() -> bool) -> Result<(), Elapsed> {
        let waiting = async {
            loop {
                // Registered before the look, so that what is read in between is not missed.
                let mut told = std::pin::pin!(self.shared.loaded.notified());
                told.as_mut().enable();
                if enough() {
                    return;
                }
                told.await;
            }
        };
        tokio::time::timeout(WAIT_FOR_LOADING, waiting).await
    }

    /// How many partitions this broker is named to lead; those that are not open yet have no host.
    fn named(&self) -> usize {
        let (view, node) = (self.shared.agent.view(), self.shared.agent.node());
        let Some(topic) = view.topic_named(CONSUMER_OFFSETS) else { return 0 };
        view.partitions_of(&topic.id).filter(|partition| partition.leader_id() == Some(node)).count()
    }

    /// What there is and what happened since the start.
    pub fn figures(&self) -> Figures {
        let mut figures =
            Figures { rebalances: self.shared.rebalances.load(Ordering::Relaxed), ..Figures::default() };
        figures.reloads = self.shared.reloads.load(Ordering::Relaxed);
        for host in self.all() {
            match host.group_count() {
                Some(groups) => figures.groups += groups,
                None => figures.loading += 1,
            }
        }
        figures
    }

    fn host_of(&self, group: &str) -> Result<Arc<Host>, Unavailable> {
        let view = self.shared.agent.view();
        let partition = place(&view, group).ok_or(Unavailable::NotCoordinator)?;
        let hosts = self.hosts.read();
        if let Some(host) =
            hosts.by_index.get(&partition.index).filter(|_| hosts.topic == Some(partition.topic))
        {
            return Ok(Arc::clone(host));
        }
        // Named to lead, but not opened yet: it will be in a moment.
        let named = stays(&view, &partition);
        Err(if named == Some(self.shared.agent.node()) {
            Unavailable::Loading
        } else {
            Unavailable::NotCoordinator
        })
    }

    /// Hosts for the partitions that are led here now, none for others.
    fn reconcile(&self) {
        let view = self.shared.agent.view();
        let topic = view.topic_named(CONSUMER_OFFSETS);
        let mut hosts = self.hosts.write();
        let id = topic.map(|topic| topic.id);
        let same_topic = hosts.topic == id;
        hosts.topic = id;
        hosts.by_index.retain(|_, host| {
            let tenure = self.shared.partitions.get(&host.handle().id()).map(|handle| handle.generation());
            let stays = same_topic && host.leads() && tenure == Some(host.handle().generation());
            if !stays {
                host.close();
            }
            stays
        });
        let Some(topic) = topic else { return };
        for index in 0..topic.partition_count {
            let partition = PartitionId { topic: topic.id, index };
            if let Some(handle) = self.shared.partitions.get(&partition)
                && !hosts.by_index.contains_key(&index)
                && let Some(host) = Host::open(&self.shared, handle)
            {
                hosts.by_index.insert(index, host);
            }
        }
    }

    /// The one task of all coordinators: follows leadership and the cluster's view, and lets time pass.
    async fn run(self: Arc<Self>, closing: CancellationToken) {
        let mut led = self.shared.partitions.changes();
        let mut view = self.shared.agent.changed();
        // What changes from here on is told.
        self.reconcile();
        let mut lease_at = self.lease_ends_at();
        loop {
            let now = self.shared.clock.now();
            let rest = self.shared.deadlines.next().map(|at| at.since(now));
            let lease_rest = (lease_at != MonoTime::NEVER).then(|| lease_at.since(now));
            tokio::select! {
                () = closing.cancelled() => break,
                changed = led.changed() => {
                    if changed.is_err() {
                        break;
                    }
                    self.reconcile();
                }
                changed = view.changed() => {
                    if changed.is_err() {
                        break;
                    }
                    self.follow();
                }
                () = self.shared.deadlines.moved() => {}
                () = timers::rest(rest) => self.tick(),
                () = timers::rest(lease_rest) => {
                    let (ends_at, now) = (self.lease_ends_at(), self.shared.clock.now());
                    if ends_at <= now {
                        self.all().iter().for_each(Host::lapse);
                    }
                    lease_at = ends_at.max(now.after(LOOK_AT_LEASE));
                }
            }
        }
        for host in self.all() {
            host.close();
        }
    }

    fn lease_ends_at(&self) -> MonoTime {
        self.shared.agent.lease().ends_at()
    }

    fn all(&self) -> Vec<Arc<Host>> {
        self.hosts.read().by_index.values().cloned().collect()
    }

    /// The cluster's view has changed: topics may be gone, settings may be others.
    fn follow(&self) {
        let topic = self.shared.agent.view().topic_named(CONSUMER_OFFSETS).map(|topic| topic.id);
        if self.hosts.read().topic != topic {
            self.reconcile();
        }
        for host in self.all() {
            host.follow();
        }
    }

    fn tick(&self) {
        let due = self.shared.deadlines.take_due(self.shared.clock.now());
        for index in due {
            let host = self.hosts.read().by_index.get(&index).cloned();
            if let Some(host) = host {
                host.tick();
            }
        }
    }
}

/// Who leads that partition, and is not asked to give it up.
fn stays(view: &View, partition: &PartitionId) -> Option<BrokerId> {
    let found = view.partition(partition)?;
    view.leader(found).filter(|_| moves::asked(view, found).is_none())
}

/// The partition that keeps a group, once the topic exists.
fn place(view: &View, group: &str) -> Option<PartitionId> {
    let topic = view.topic_named(CONSUMER_OFFSETS)?;
    let index = (topic.partition_count > 0).then(|| locate(group, topic.partition_count))?;
    Some(PartitionId { topic: topic.id, index })
}
