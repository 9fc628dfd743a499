//! Clusters as cases order them.

use std::collections::BTreeMap;
use std::net::{Ipv4Addr, SocketAddrV4};
use std::path::{Path, PathBuf};
use std::time::Duration;

use anyhow::{Context, Result};
use tempfile::TempDir;

use super::broker::{Addresses, Broker};
use super::etcd::{self, Member};
use super::network::{Kind, Network, Place};
use super::node::Node;
use super::proxy::Proxy;
use crate::lossy::Lossy;
use crate::{guard, ports, wait};

/// How long a cluster may take to agree on something.
pub const AGREE: Duration = Duration::from_secs(20);

/// What a cluster is to be like.
pub struct Plan {
    felix: PathBuf,
    etcd: PathBuf,
    logs: PathBuf,
    kind: Kind,
    brokers: i32,
    members: usize,
    lease: Duration,
    etcd_on_disk: bool,
    ways_to_etcd: bool,
    ways_to_brokers: bool,
    ways_between_brokers: bool,
    lossy: bool,
    flags: Vec<(i32, String, String)>,
    settings: Vec<(String, String)>,
}

impl Plan {
    /// Three brokers on one member of etcd, in namespaces, with a lease of one second.
    pub fn new(felix: &Path, etcd: &Path, logs: &Path) -> Self {
        Self {
            felix: felix.to_path_buf(),
            etcd: etcd.to_path_buf(),
            logs: logs.to_path_buf(),
            kind: Kind::Namespaces,
            brokers: 3,
            members: 1,
            lease: Duration::from_secs(1),
            etcd_on_disk: false,
            ways_to_etcd: false,
            ways_to_brokers: false,
            ways_between_brokers: false,
            lossy: false,
            flags: Vec::new(),
            settings: Vec::new(),
        }
    }

    /// So many brokers, with ids from 1 on.
    pub fn brokers(mut self, count: i32) -> Self {
        self.brokers = count;
        self
    }

    /// So many members of etcd, counted from 0.
    pub fn etcd(mut self, count: usize) -> Self {
        self.members = count;
        self
    }

    /// All on 127.0.0.1.
    pub fn loopback(mut self) -> Self {
        self.kind = Kind::Loopback;
        self
    }

    /// Another lease.
    pub fn lease(mut self, lease: Duration) -> Self {
        self.lease = lease;
        self
    }

    /// etcd's data on the disk: for cases about crashes of etcd. Otherwise it is in memory.
    pub fn etcd_on_disk(mut self) -> Self {
        self.etcd_on_disk = true;
        self
    }

    /// Brokers reach etcd through ways of ours, see `Cluster::way_to_etcd`.
    pub fn ways_to_etcd(mut self) -> Self {
        self.ways_to_etcd = true;
        self
    }

    /// Clients are told to come through ways of ours, see `Cluster::way_to_broker`.
    pub fn ways_to_brokers(mut self) -> Self {
        self.ways_to_brokers = true;
        self
    }

    /// Clients are told to come through ways on which every seventh answer to a Produce gets lost, see `Cluster::lost_answers`.
    pub fn lossy(mut self) -> Self {
        self.lossy = true;
        self
    }

    /// Brokers reach each other through ways of ours, see `Cluster::way_between`. Not on loopback, where their ports are not known before.
    pub fn ways_between_brokers(mut self) -> Self {
        self.ways_between_brokers = true;
        self
    }

    /// A flag of one broker.
    pub fn flag_of(mut self, broker: i32, name: &str, value: &str) -> Self {
        self.flags.push((broker, name.to_owned(), value.to_owned()));
        self
    }

    /// A config of every broker, by Kafka's name.
    pub fn set(mut self, name: &str, value: &str) -> Self {
        self.settings.push((name.to_owned(), value.to_owned()));
        self
    }

    /// Groups keep their offsets in three copies, too.
    pub fn replicated(self) -> Self {
        self.set("offsets.topic.replication.factor", "3")
    }

    /// Starts it and waits until every broker knows of all.
    pub fn start(self) -> Result<Cluster> {
        let count = usize::try_from(self.brokers)?;
        let mut cluster = self.start_etcd()?;
        cluster.add_brokers(count)?;
        Ok(cluster)
    }

    /// Starts etcd alone.
    pub fn start_etcd(self) -> Result<Cluster> {
        std::fs::create_dir_all(&self.logs)?;
        let mut network = Network::open(self.kind)?;
        let folder = guard::temporary("cluster-")?;
        let memory = if self.etcd_on_disk { guard::temporary("etcd-")? } else { guard::in_memory("etcd-")? };
        let mut etcd = etcd::members(&mut network, &self.etcd, self.members, memory.path(), &self.logs)?;
        for member in &mut etcd {
            member.spawn()?;
        }
        for member in &mut etcd {
            member.wait_ready()?;
        }
        Ok(Cluster {
            brokers: BTreeMap::new(),
            etcd,
            ways_to_etcd: BTreeMap::new(),
            ways_to_brokers: BTreeMap::new(),
            lossy_ways: Vec::new(),
            ways_between: BTreeMap::new(),
            network,
            plan: self,
            folder,
            _memory: memory,
        })
    }
}

/// Brokers and their etcd. Ends with all that belongs to it.
pub struct Cluster {
    brokers: BTreeMap<i32, Broker>,
    /// The members, counted from 0.
    pub etcd: Vec<Member>,
    ways_to_etcd: BTreeMap<(i32, usize), Proxy>,
    ways_to_brokers: BTreeMap<i32, Proxy>,
    lossy_ways: Vec<Lossy>,
    ways_between: BTreeMap<i32, Proxy>,
    /// Who reaches whom.
    pub network: Network,
    plan: Plan,
    folder: TempDir,
    _memory: TempDir,
}

impl Cluster {
    /// A broker by its id.
    pub fn broker(&mut self, id: i32) -> Result<&mut Broker> {
        self.brokers.get_mut(&id).with_context(|| format!("there is no broker {id}"))
    }

    /// All brokers.
    pub fn brokers(&self) -> impl Iterator<Item = &Broker> {
        self.brokers.values()
    }

    /// Their ids.
    pub fn ids(&self) -> Vec<i32> {
        self.brokers.keys().copied().collect()
    }

    /// The ids of those whose process is there.
    pub fn brokers_that_run(&mut self) -> Vec<i32> {
        self.brokers.values_mut().filter_map(|broker| broker.node.runs().then(|| broker.id())).collect()
    }

    /// A folder for what a case needs.
    pub fn folder(&self) -> &Path {
        self.folder.path()
    }

    /// The lease.
    pub fn lease(&self) -> Duration {
        self.plan.lease
    }

    /// How long the others wait at most until they end a session that says nothing, by the formula of the design:
    /// (L - L/10)(1 + rho)/(1 - rho) + L/10, and the turns that they take.
    pub fn longest_wait(&self) -> Duration {
        self.lease().mul_f64(1.5) + Duration::from_secs(1)
    }

    /// The next broker, not started: the caller may change its flags.
    pub fn prepare_broker(&mut self) -> Result<i32> {
        let id = self.brokers.keys().max().map_or(1, |last| last + 1);
        let data = self.folder.path().join(format!("broker-{id}"));
        self.prepare(id, id, &data)?;
        Ok(id)
    }

    /// Another process that says it is `claims`, at a place of its own, known here as broker `key`; not started.
    pub fn prepare_impostor(&mut self, key: i32, claims: i32) -> Result<()> {
        let data = self.folder.path().join(format!("broker-{key}"));
        self.prepare(key, claims, &data)
    }

    /// Forgets a broker that has ended.
    pub fn forget(&mut self, key: i32) {
        self.brokers.remove(&key);
    }

    fn prepare(&mut self, key: i32, id: i32, data: &Path) -> Result<()> {
        let place = Place::Broker(key);
        let host = self.network.add(place)?;
        let shared = host == Ipv4Addr::LOCALHOST;
        let port = |usual| if shared { ports::free() } else { Ok(usual) };
        let clients = SocketAddrV4::new(host, port(9092)?);
        let pages = SocketAddrV4::new(host, port(9644)?);
        let mut told = clients;
        if self.plan.ways_to_brokers {
            let way = Proxy::open(self.network.address(Place::Clients)?, clients)?;
            told = way.address();
            self.ways_to_brokers.insert(key, way);
        }
        if self.plan.lossy {
            let way = Lossy::open(SocketAddrV4::new(self.network.address(Place::Clients)?, 0), clients)?;
            told = way.address();
            self.lossy_ways.push(way);
        }
        let node = Node::new(
            &format!("broker-{key}"),
            &self.plan.felix,
            self.network.prefix(place)?,
            &self.plan.logs,
        );
        let mut broker = Broker::new(id, node, Addresses { clients, told, pages }, data.to_path_buf());
        if self.plan.ways_between_brokers {
            let listens = SocketAddrV4::new(host, super::broker::INTERNAL_PORT);
            let way = Proxy::open(self.network.address(Place::Clients)?, listens)?;
            broker.flag("internal-advertise", &way.address().to_string());
            self.ways_between.insert(key, way);
        }
        let mut endpoints = Vec::new();
        for (at, member) in self.etcd.iter().enumerate() {
            let mut address = member.address();
            if self.plan.ways_to_etcd {
                let way = Proxy::open(self.network.address(Place::Clients)?, address)?;
                address = way.address();
                self.ways_to_etcd.insert((key, at), way);
            }
            endpoints.push(address.to_string());
        }
        broker.flag("etcd", &endpoints.join(","));
        broker.flag("lease-ms", &self.plan.lease.as_millis().to_string());
        // Groups of cases would only wait for members that do not come.
        broker.set("group.initial.rebalance.delay.ms", "0");
        broker.set("offsets.topic.num.partitions", "3");
        broker.set("offsets.topic.replication.factor", "1");
        for (name, value) in &self.plan.settings {
            broker.set(name, value);
        }
        for (_, name, value) in self.plan.flags.iter().filter(|(whose, ..)| *whose == key) {
            broker.flag(name, value);
        }
        self.brokers.insert(key, broker);
        Ok(())
    }

    /// Adds so many brokers, starts them at the same time, and waits until every broker knows of all.
    pub fn add_brokers(&mut self, count: usize) -> Result<()> {
        let mut added = Vec::new();
        for _ in 0..count {
            added.push(self.prepare_broker()?);
        }
        for id in &added {
            self.broker(*id)?.spawn()?;
        }
        for id in &added {
            self.broker(*id)?.wait_ready()?;
        }
        let ids = self.ids();
        self.wait_alive(&ids)
    }

    /// Waits until exactly these brokers are alive, as each of them says.
    pub fn wait_alive(&self, ids: &[i32]) -> Result<()> {
        self.wait_alive_as_seen_by(ids, ids)
    }

    /// Waits until exactly these brokers are alive, as some of them say.
    pub fn wait_alive_as_seen_by(&self, ids: &[i32], witnesses: &[i32]) -> Result<()> {
        let mut last = String::new();
        let waited = wait::until(&format!("{witnesses:?} to say that {ids:?} are alive"), AGREE, || {
            for id in witnesses {
                let seen = self.brokers.get(id).context("no such broker")?.connect()?.metadata()?;
                let alive: Vec<i32> = seen.brokers.iter().map(|broker| broker.id).collect();
                if alive != ids {
                    last = format!("broker {id} knows of {alive:?}");
                    return Ok(None);
                }
            }
            Ok(Some(()))
        });
        waited.context(last)
    }

    /// Addresses for clients.
    pub fn bootstrap(&self) -> String {
        let addresses: Vec<String> = self.brokers.values().map(|broker| broker.told().to_string()).collect();
        addresses.join(",")
    }

    /// The way by which a broker reaches a member of etcd.
    pub fn way_to_etcd(&self, broker: i32, member: usize) -> Result<&Proxy> {
        self.ways_to_etcd.get(&(broker, member)).context("the plan does not say `ways_to_etcd`")
    }

    /// The way by which clients reach a broker.
    pub fn way_to_broker(&self, broker: i32) -> Result<&Proxy> {
        self.ways_to_brokers.get(&broker).context("the plan does not say `ways_to_brokers`")
    }

    /// How many answers to Produce were lost.
    pub fn lost_answers(&self) -> u64 {
        self.lossy_ways.iter().map(Lossy::lost).sum()
    }

    /// The way by which the other brokers reach a broker: `There` is what they ask of it and ship to it, `Back` what it answers.
    pub fn way_between(&self, to: i32) -> Result<&Proxy> {
        self.ways_between.get(&to).context("the plan does not say `ways_between_brokers`")
    }

    /// Which member of etcd leads, once one does.
    pub fn etcd_leader(&self) -> Result<usize> {
        wait::until("a leader of etcd", AGREE, || Ok(self.etcd.iter().position(Member::leads)))
    }

    /// All members of etcd stand still, or are killed.
    pub fn take_etcd_away(&mut self, killed: bool) -> Result<()> {
        for member in &mut self.etcd {
            if killed {
                member.kill();
            } else {
                member.pause()?;
            }
        }
        Ok(())
    }

    /// They go on, or are started again.
    pub fn bring_etcd_back(&mut self, killed: bool) -> Result<()> {
        for member in &mut self.etcd {
            if killed {
                member.spawn()?;
            } else {
                member.resume()?;
            }
        }
        Ok(())
    }

    /// Cuts a broker off from every member of etcd, so that nothing of the broker arrives there, or the other way round, or both.
    pub fn cut_from_etcd(&mut self, broker: i32, there: bool, back: bool) -> Result<()> {
        for at in 0..self.etcd.len() {
            let (broker, etcd) = (Place::Broker(broker), Place::Etcd(at));
            if there {
                self.network.cut(broker, etcd)?;
            }
            if back {
                self.network.cut(etcd, broker)?;
            }
        }
        Ok(())
    }

    /// Cuts a broker off from every other one, so that nothing of the broker arrives there, or the other way round, or both.
    pub fn cut_from_brokers(&mut self, broker: i32, there: bool, back: bool) -> Result<()> {
        for other in self.ids().into_iter().filter(|other| *other != broker) {
            let (one, other) = (Place::Broker(broker), Place::Broker(other));
            if there {
                self.network.cut(one, other)?;
            }
            if back {
                self.network.cut(other, one)?;
            }
        }
        Ok(())
    }

    /// What ended by itself is a failure, even if no case noticed.
    pub fn all_run(&mut self) -> Result<()> {
        for broker in self.brokers.values_mut() {
            broker.node.must_run()?;
        }
        for member in &mut self.etcd {
            member.node.must_run()?;
        }
        Ok(())
    }
}
