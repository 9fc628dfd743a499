//! etcd is lost and restored from a snapshot, by etcd's own tools, and a cluster goes on with it by an operator's word.

use std::collections::BTreeMap;
use std::path::{Path, PathBuf};
use std::sync::Arc;
use std::sync::atomic::{AtomicUsize, Ordering};
use std::time::{Duration, Instant};

use felix_cluster::lease::{Clocks, Reading};
use felix_cluster::topics::NewTopic;
use felix_cluster::view::View;
use felix_control::agent::{Agent, AgentConfig, StartError};
use felix_control::clock::LeaseClock;
use felix_control::recovery::{RecoverError, Recovery};
use felix_control::store::Connect;
use felix_control::store::etcd::{Etcd, EtcdWays};
use felix_protocol::ids::{BrokerId, Uuid};
use felix_protocol::time::{Clock, MonoTime, WallTime};
use felix_storage::disk::os::OsDisk;

use crate::server::{Cluster, TIMEOUT, block_on};

const LONG: Duration = Duration::from_secs(30);
const NOW: u64 = 1_796_000_000;

#[derive(Clone)]
struct TestClock(Instant);

impl Clock for TestClock {
    fn now(&self) -> MonoTime {
        MonoTime(1).after(self.0.elapsed())
    }

    fn wall(&self) -> WallTime {
        WallTime(0)
    }
}

impl LeaseClock for TestClock {
    fn reading(&self) -> Reading {
        Reading { boottime: self.now(), raw: self.now() }
    }

    fn clocks(&self) -> Clocks {
        Clocks::Both
    }
}

/// A broker's directory, and how often all its copies got new identities.
struct Node {
    id: i32,
    directory: PathBuf,
    renewed: Arc<AtomicUsize>,
}

impl Node {
    fn new(cluster: &Cluster, id: i32) -> Node {
        let directory = cluster.folder.path().join(format!("broker{id}"));
        std::fs::create_dir(&directory).unwrap();
        Node { id, directory, renewed: Arc::default() }
    }

    async fn try_join(&self, cluster: &Cluster) -> Result<Agent, StartError> {
        let config = AgentConfig {
            directory: self.directory.clone(),
            cluster_id: None,
            node: BrokerId(self.id),
            directory_id: Uuid::from_u128(u128::try_from(self.id).unwrap()),
            boot_id: "boot".to_owned(),
            listeners: Vec::new(),
            internal: None,
            rack: None,
            version: "test".to_owned(),
            lease_ms: 1000,
            copies: 0,
            doubts_settled: false,
            fences: BTreeMap::new(),
        };
        let renewed = Arc::clone(&self.renewed);
        let renew = move || {
            renewed.fetch_add(1, Ordering::Relaxed);
            Ok(())
        };
        let ways = EtcdWays::new(cluster.config("/felix")).unwrap();
        Agent::join(OsDisk, config, ways, TestClock(Instant::now()), renew).await
    }
}

async fn join(nodes: &[Node], cluster: &Cluster) -> Vec<Agent> {
    let mut agents = Vec::new();
    for node in nodes {
        agents.push(node.try_join(cluster).await.unwrap());
    }
    agents
}

async fn stop(agents: Vec<Agent>) {
    for agent in agents {
        agent.stop().await.unwrap();
    }
}

/// Waits until all are led by somebody, and says by which generations.
async fn led(agent: &Agent) -> Vec<u32> {
    let led = |view: &View| {
        let lives = |leader: &felix_cluster::state::Leader| view.may_lead(leader.broker, leader.session);
        view.partition_count() > 0 && view.partitions().all(|one| one.leader().is_some_and(lives))
    };
    assert!(agent.wait_for(LONG, led).await, "partitions without leaders");
    agent.view().partitions().map(|one| one.generation().number()).collect()
}

async fn create(agent: &Agent, name: &str) {
    let new = NewTopic { name: name.to_owned(), partitions: 4, replication_factor: 1, ..NewTopic::default() };
    agent.create_topics(vec![new], false, Duration::ZERO).await.remove(0).unwrap();
    led(agent).await;
}

async fn recovery(cluster: &Cluster) -> Recovery<Etcd> {
    let ways = EtcdWays::new(cluster.config("/felix")).unwrap();
    Recovery::open(ways.connect(TIMEOUT).await.unwrap(), true).await.unwrap()
}

async fn refused(nodes: &[Node], cluster: &Cluster) {
    for node in nodes {
        let Err(error) = node.try_join(cluster).await else { panic!("node {} joined", node.id) };
        assert!(error.to_string().contains("felix recover store"), "{error}");
    }
}

pub fn snapshot_restored(server: &Path) -> String {
    let mut cluster = Cluster::start(server, 3);
    let nodes = [Node::new(&cluster, 1), Node::new(&cluster, 2)];
    let snapshot = cluster.folder.path().join("snapshot");
    let renewed = || nodes.iter().map(|node| node.renewed.load(Ordering::Relaxed)).collect::<Vec<_>>();
    block_on(async {
        let agents = join(&nodes, &cluster).await;
        create(&agents[0], "kept").await;
        cluster.save(&snapshot);
        create(&agents[1], "lost").await;
        stop(agents).await;
        let agents = join(&nodes, &cluster).await;
        let mut newest = led(&agents[0]).await.into_iter().max().unwrap();
        let running = recovery(&cluster).await.check_unused().await;
        assert!(matches!(running, Err(RecoverError::Running(_))), "{running:?}");
        stop(agents).await;
        // The same snapshot twice: what happened after the first time is not granted again either.
        for round in 1..=2 {
            cluster.restore(&snapshot);
            refused(&nodes, &cluster).await;
            let mut recovery = recovery(&cluster).await;
            recovery.check_unused().await.unwrap();
            let told = recovery.acknowledge(NOW + round).await.unwrap();
            recovery.close().await.unwrap();
            let agents = join(&nodes, &cluster).await;
            assert_eq!(renewed(), [usize::try_from(round).unwrap(); 2], "no copy is what it was");
            let generations = led(&agents[1]).await;
            let view = agents[1].view();
            assert!(view.topic_named("kept").is_some() && view.topic_named("lost").is_none());
            assert!(agents.iter().all(Agent::is_unverified));
            let lowest = generations.iter().min().unwrap();
            assert!(*lowest > newest && *lowest > told.floor.number(), "{generations:?} after {newest}");
            newest = *generations.iter().max().unwrap();
            stop(agents).await;
        }
        let mut recovery = recovery(&cluster).await;
        assert!(recovery.confirm().await.unwrap());
        let agents = join(&nodes, &cluster).await;
        assert_eq!(renewed(), [2, 2], "and from here on they are");
        assert!(agents.iter().all(|agent| !agent.is_unverified()));
        stop(agents).await;
        format!("restored twice, generations up to {newest}")
    })
}
