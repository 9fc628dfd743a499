//! The coordinators on a real log, a real store and real lanes.

use std::path::{Path, PathBuf};
use std::sync::Arc;
use std::time::Duration;

use bytes::Bytes;
use felix_cluster::config::StaticConfig;
use felix_cluster::state::Listener;
use felix_cluster::topics::{CONSUMER_OFFSETS, NewTopic, TopicRef};
use felix_control::agent::{Agent, AgentConfig};
use felix_coordinator::reply::Joined;
use felix_coordinator::request::{
    CommitOffsets, CommitPartition, FetchOffsets, Heartbeat, JoinGroup, LeaveGroup, Leaving, ListGroups,
    Protocol, SyncGroup,
};
use felix_coordinator::{GroupError, Reply, Request, State};
use felix_partition::fence::settle_identities;
use felix_protocol::ids::{BrokerId, Uuid};
use felix_storage::disk::os::OsDisk;
use felix_storage::{DataDir, FlushMode, Limits, Replicas};
use tempfile::TempDir;
use tokio_util::sync::CancellationToken;

use super::*;
use crate::partitions::{self, Following};

const LONG: Duration = Duration::from_secs(20);

struct Broker {
    path: PathBuf,
    agent: Agent,
    partitions: Arc<Partitions>,
    following: Option<Following>,
    coordinators: Arc<Coordinators>,
    closing: CancellationToken,
}

impl Broker {
    async fn start(path: &Path) -> Broker {
        let mut fixed = StaticConfig::new();
        fixed.set("offsets.topic.num.partitions", "3", "test").unwrap();
        fixed.set("group.initial.rebalance.delay.ms", "0", "test").unwrap();
        let clock = SystemClock::start();
        let id = BrokerId(1);
        // The threads of the broker before may still be about to let go of it.
        let mut dir = None;
        until(|| {
            dir = DataDir::open(OsDisk, path, Limits::default()).ok();
            dir.is_some()
        })
        .await;
        let dir = dir.unwrap();
        let (replicas, report) = Replicas::open(&dir).unwrap();
        settle_identities(&replicas, &report, 1).unwrap();
        let listener = Listener { name: "L".into(), protocol: "PLAINTEXT".into(), host: "h".into(), port: 1 };
        let config = AgentConfig {
            directory: path.to_owned(),
            cluster_id: None,
            node: id,
            directory_id: Uuid::from_u128(5),
            boot_id: "boot".into(),
            listeners: vec![listener],
            internal: None,
            rack: None,
            version: "test".into(),
            lease_ms: 10_000,
            copies: 0,
            doubts_settled: false,
            fences: std::collections::BTreeMap::new(),
        };
        let agent = Agent::start(OsDisk, config).await.unwrap();
        let setup = partitions::Setup {
            dir,
            replicas: Arc::new(replicas),
            flush_mode: FlushMode::Auto,
            broker: id,
            clock,
            lanes: 1,
            flushers: 1,
            retain_every: Duration::from_secs(300),
            scrub: partitions::Pace { bytes_per_second: None, every_ms: 1 },
            cleaner: felix_cluster::config::BrokerConfig::default().logs.cleaner,
            flush_seconds: crate::metrics::Metrics::new().unwrap().flush_seconds,
        };
        let partitions = Partitions::start(setup, &agent).unwrap();
        let overrides = Arc::new(fixed.values().clone());
        let following = partitions::follow(Arc::clone(&partitions), agent.clone(), overrides).unwrap();
        let closing = CancellationToken::new();
        let coordinators = Coordinators::start(Setup {
            agent: agent.clone(),
            partitions: Arc::clone(&partitions),
            configs: Configs::new(id, fixed),
            clock,
            closing: closing.clone(),
        })
        .unwrap();
        Broker { path: path.to_owned(), agent, partitions, following: Some(following), coordinators, closing }
    }

    /// Stops as it should.
    async fn stop(self) {
        self.crash().await;
    }

    /// What a process that dies at this moment leaves behind: a copy of the directory. Then stops.
    async fn crash(mut self) -> TempDir {
        self.closing.cancel();
        let (following, partitions) = (self.following.take().unwrap(), Arc::clone(&self.partitions));
        let path = self.path.clone();
        self.agent.stop().await.unwrap();
        let stopping = tasks::blocking("stop", move || {
            following.stop(|| {});
            let left = TempDir::new().unwrap();
            copy(&path, left.path());
            partitions.stop();
            left
        });
        stopping.await.unwrap().unwrap()
    }

    /// Asks until the groups have been read.
    async fn ask(&self, request: Request) -> Reply {
        let group = group_of(&request);
        self.ready(&group).await;
        self.coordinators.ask(&group, request).unwrap().await.unwrap()
    }

    /// Waits until the group's partition answers.
    async fn ready(&self, group: &str) {
        self.coordinators.find(group).await.unwrap();
        until(|| self.coordinators.host_of(group).is_ok_and(|host| host.is_ready())).await;
    }

    async fn create(&self, topic: &str) {
        let new =
            NewTopic { name: topic.into(), partitions: 2, replication_factor: 1, ..NewTopic::default() };
        for made in self.agent.create_topics(vec![new], false, LONG).await {
            made.unwrap();
        }
    }

    async fn commit(&self, group: &str, topic: &str, offset: i64) -> Reply {
        self.ready(group).await;
        let topic: Arc<str> = topic.into();
        let position = CommitPartition { partition: 0, offset, leader_epoch: 3, metadata: "m".into() };
        let name: Arc<str> = group.into();
        let commit = CommitOffsets {
            group: Arc::clone(&name),
            member: "".into(),
            instance: None,
            generation: -1,
            retention_ms: None,
            knows_group_not_found: true,
            topics: vec![(topic, vec![position])],
        };
        self.coordinators.commit(&name, |_| commit).unwrap().await.unwrap()
    }

    /// What is stored for partition 0 of the topic.
    async fn committed(&self, group: &str, topic: &str) -> Option<i64> {
        let topics = Some(vec![(topic.into(), vec![0])]);
        let request = FetchOffsets { group: group.into(), topics, require_stable: true };
        let Reply::Fetch(Ok(topics)) = self.ask(Request::Fetch(request)).await else { panic!("not fetched") };
        topics[0].partitions[0].1.clone().unwrap().map(|found| found.offset)
    }

    async fn join(&self, group: &str) -> Joined {
        let reply = self.ask(Request::Join(join(group, ""))).await;
        let Reply::Join(Ok(joined)) = reply else { panic!("{reply:?}") };
        joined
    }

    async fn sync(&self, group: &str, joined: &Joined) -> Bytes {
        let reply = self.ask(sync(group, joined)).await;
        let Reply::Sync(Ok(synced)) = reply else { panic!("{reply:?}") };
        synced.assignment
    }

    async fn beat(&self, group: &str, joined: &Joined) -> Result<(), GroupError> {
        let beat = Heartbeat {
            group: group.into(),
            member: Arc::clone(&joined.member),
            instance: None,
            generation: joined.generation,
        };
        let reply = self.ask(Request::Heartbeat(beat)).await;
        let Reply::Heartbeat(result) = reply else { panic!("{reply:?}") };
        result
    }

    async fn listed(&self) -> Vec<(String, State)> {
        for index in 0..3 {
            until(|| self.coordinators.hosts.read().by_index.get(&index).is_some_and(|host| host.is_ready()))
                .await;
        }
        let listed = self.coordinators.list(&ListGroups::default()).await.unwrap();
        let mut listed: Vec<_> = listed.iter().map(|group| (group.group.to_string(), group.state)).collect();
        listed.sort();
        listed
    }
}

fn group_of(request: &Request) -> Arc<str> {
    match request {
        Request::Join(request) => Arc::clone(&request.group),
        Request::Sync(request) => Arc::clone(&request.group),
        Request::Heartbeat(request) => Arc::clone(&request.group),
        Request::Leave(request) => Arc::clone(&request.group),
        Request::Commit(request) => Arc::clone(&request.group),
        Request::Fetch(request) => Arc::clone(&request.group),
        Request::DeleteOffsets(request) => Arc::clone(&request.group),
        Request::Describe(group) | Request::Delete(group) => Arc::clone(group),
        Request::List(_) => panic!("a list is not about one group"),
    }
}

fn join(group: &str, member: &str) -> JoinGroup {
    JoinGroup {
        group: group.into(),
        member: member.into(),
        instance: None,
        client_id: "c".into(),
        client_host: "/h".into(),
        session_timeout_ms: 10_000,
        rebalance_timeout_ms: 60_000,
        protocol_type: "consumer".into(),
        protocols: vec![Protocol { name: "range".into(), metadata: Bytes::from_static(b"\0\0\0\0\0\0") }],
        member_id_required: false,
        skips_assignment: true,
        fresh: Uuid::new_v4(),
    }
}

fn sync(group: &str, joined: &Joined) -> Request {
    Request::Sync(SyncGroup {
        group: group.into(),
        member: Arc::clone(&joined.member),
        instance: None,
        generation: joined.generation,
        protocol_type: None,
        protocol: None,
        assignments: vec![(Arc::clone(&joined.member), Bytes::from_static(b"everything"))],
    })
}

fn copy(from: &Path, to: &Path) {
    for entry in std::fs::read_dir(from).unwrap() {
        let entry = entry.unwrap();
        let to = to.join(entry.file_name());
        if entry.file_type().unwrap().is_dir() {
            std::fs::create_dir(&to).unwrap();
            copy(&entry.path(), &to);
        } else {
            std::fs::copy(entry.path(), to).unwrap();
        }
    }
}

/// Waits for a condition that another thread makes true.
async fn until(mut holds: impl FnMut() -> bool) {
    let wait = async {
        while !holds() {
            tokio::time::sleep(Duration::from_millis(2)).await;
        }
    };
    tokio::time::timeout(LONG, wait).await.expect("the condition comes true");
}

#[tokio::test(flavor = "multi_thread", worker_threads = 2)]
async fn members_and_offsets_survive_a_restart_and_a_crash() {
    let mut dir = TempDir::new().unwrap();
    let mut joined = None;
    for crashes in [false, true, true, false] {
        let broker = Broker::start(dir.path()).await;
        let member = match joined.take() {
            // The same generation and member are still good.
            Some(member) => {
                broker.beat("g", &member).await.unwrap();
                assert_eq!(broker.sync("g", &member).await, "everything");
                assert_eq!(broker.committed("s", "t").await, Some(7));
                member
            }
            None => {
                assert_eq!(broker.coordinators.find("g").await, Ok(BrokerId(1)));
                let view = broker.agent.view();
                let topic = view.topic_named(CONSUMER_OFFSETS).unwrap();
                assert_eq!((topic.partition_count, topic.replication_factor), (3, 1));
                assert_eq!(topic.overrides["cleanup.policy"], "compact");
                broker.create("t").await;
                let member = broker.join("g").await;
                assert_eq!(broker.sync("g", &member).await, "everything");
                let stored = broker.commit("s", "t", 7).await;
                assert_eq!(stored, Reply::Commit(Ok(vec![("t".into(), vec![(0, Ok(()))])])));
                member
            }
        };
        let listed = broker.listed().await;
        assert_eq!(listed, [("g".to_owned(), State::Stable), ("s".to_owned(), State::Empty)]);
        joined = Some(member);
        if crashes {
            dir = broker.crash().await;
        } else {
            broker.stop().await;
        }
    }
}

#[tokio::test(flavor = "multi_thread", worker_threads = 2)]
async fn what_was_deleted_stays_deleted() {
    let dir = TempDir::new().unwrap();
    let broker = Broker::start(dir.path()).await;
    broker.create("t").await;
    broker.create("u").await;
    broker.commit("g", "t", 1).await;
    broker.commit("h", "t", 2).await;
    broker.commit("h", "u", 3).await;
    assert_eq!(broker.ask(Request::Delete("g".into())).await, Reply::Delete(Ok(())));
    // A topic goes, and with it what was committed for it; one made again under its name begins without.
    for deleted in broker.agent.delete_topics(vec![TopicRef::Name("t".into())]).await {
        deleted.unwrap();
    }
    broker.create("t").await;
    assert_eq!(broker.committed("h", "t").await, None);
    assert_eq!(broker.commit("h", "t", 9).await, Reply::Commit(Ok(vec![("t".into(), vec![(0, Ok(()))])])));
    let dir = broker.crash().await;

    let broker = Broker::start(dir.path()).await;
    assert_eq!(broker.listed().await, [("h".to_owned(), State::Empty)]);
    assert_eq!(broker.committed("g", "t").await, None);
    assert_eq!(broker.committed("h", "t").await, Some(9));
    assert_eq!(broker.committed("h", "u").await, Some(3));
    // A topic that went while nobody looked after the group is found out when the group is read.
    let gone = broker.agent.view().topic_named("u").unwrap().id;
    broker.closing.cancel();
    until(|| broker.coordinators.host_of("h").is_ok_and(|host| !host.is_ready())).await;
    for deleted in broker.agent.delete_topics(vec![TopicRef::Id(gone)]).await {
        deleted.unwrap();
    }
    broker.stop().await;
    let broker = Broker::start(dir.path()).await;
    assert_eq!(broker.committed("h", "u").await, None);
    assert_eq!(broker.committed("h", "t").await, Some(9));
    broker.stop().await;
}

#[tokio::test(flavor = "multi_thread", worker_threads = 2)]
async fn clients_that_wait_are_answered_whatever_happens() {
    let dir = TempDir::new().unwrap();
    let broker = Broker::start(dir.path()).await;
    let first = broker.join("g").await;
    broker.sync("g", &first).await;
    let host = broker.coordinators.host_of("g").unwrap();
    let group: Arc<str> = "g".into();

    // A second member waits for the first; its client disconnects, and the group goes on without it.
    let second = broker.coordinators.ask(&group, Request::Join(join("g", ""))).unwrap();
    assert_eq!(host.waiting(), 1);
    drop(second);
    assert_eq!(host.waiting(), 0);
    let Reply::Join(Ok(again)) = broker.ask(Request::Join(join("g", &first.member))).await else {
        panic!("the first member is alone again")
    };
    assert_eq!((again.generation, again.members.len()), (2, 1));
    broker.sync("g", &again).await;

    // An append fails: who waits is told to try again, and the machine is read anew.
    let waits = broker.coordinators.ask(&group, Request::Join(join("g", ""))).unwrap();
    host.fail();
    assert_eq!(waits.await, Err(Unavailable::NotAvailable));
    broker.ready("g").await;
    broker.beat("g", &again).await.unwrap();
    let figures = broker.coordinators.figures();
    assert_eq!((figures.groups, figures.rebalances, figures.reloads), (1, 3, 1));

    // The broker stops.
    let waits = broker.coordinators.ask(&group, Request::Join(join("g", ""))).unwrap();
    broker.closing.cancel();
    assert_eq!(waits.await, Err(Unavailable::NotCoordinator));
    until(|| !host.is_ready()).await;
    let refused = broker.coordinators.ask(&group, Request::Describe("g".into()));
    assert_eq!(refused.err(), Some(Unavailable::NotCoordinator));
    broker.stop().await;
}

#[tokio::test(flavor = "multi_thread", worker_threads = 2)]
async fn without_a_lease_nobody_waits_for_others() {
    let dir = TempDir::new().unwrap();
    let broker = Broker::start(dir.path()).await;
    let first = broker.join("g").await;
    broker.sync("g", &first).await;
    let host = broker.coordinators.host_of("g").unwrap();
    let group: Arc<str> = "g".into();
    let waits = broker.coordinators.ask(&group, Request::Join(join("g", ""))).unwrap();
    host.lapse();
    assert_eq!(host.waiting(), 1, "the lease is good");
    broker.agent.stop().await.unwrap();
    until(|| !host.handle().is_leader()).await;
    host.lapse();
    let refused = tokio::time::timeout(LONG, waits).await.unwrap();
    assert_eq!(refused, Err(Unavailable::NotCoordinator));
    let refused = broker.coordinators.ask(&group, Request::Describe("g".into()));
    assert_eq!(refused.err(), Some(Unavailable::NotCoordinator));
}

#[tokio::test(flavor = "multi_thread", worker_threads = 2)]
async fn time_passes_for_members_and_nobody_wakes_for_nothing() {
    let dir = TempDir::new().unwrap();
    let broker = Broker::start(dir.path()).await;
    broker.ready("g").await;
    assert_eq!(
        broker.coordinators.shared.deadlines.next(),
        None,
        "without groups there is nothing to wait for"
    );
    let joined = broker.join("g").await;
    let at = broker.coordinators.shared.deadlines.next().unwrap();
    let session = Duration::from_secs(10);
    assert!(at <= broker.coordinators.shared.clock.now().after(session), "the session ends in time");
    let leave = LeaveGroup {
        group: "g".into(),
        members: vec![Leaving { member: Arc::clone(&joined.member), instance: None }],
    };
    let Reply::Leave(Ok(left)) = broker.ask(Request::Leave(leave)).await else { panic!("not left") };
    assert_eq!(left[0].result, Ok(()));
    broker.stop().await;
}

#[tokio::test(flavor = "multi_thread", worker_threads = 2)]
async fn many_members_commit_at_once_and_nothing_is_lost() {
    let dir = TempDir::new().unwrap();
    let broker = Broker::start(dir.path()).await;
    broker.create("t").await;
    broker.ready("g").await;
    let mut waits = Vec::new();
    for offset in 0..500 {
        let group: Arc<str> = format!("g{}", offset % 7).into();
        broker.ready(&group).await;
        let position = CommitPartition { partition: 1, offset, leader_epoch: -1, metadata: "".into() };
        let commit = CommitOffsets {
            group: Arc::clone(&group),
            member: "".into(),
            instance: None,
            generation: -1,
            retention_ms: None,
            knows_group_not_found: true,
            topics: vec![("t".into(), vec![position])],
        };
        waits.push(broker.coordinators.commit(&group, |_| commit).unwrap());
    }
    for wait in waits {
        assert_eq!(wait.await, Ok(Reply::Commit(Ok(vec![("t".into(), vec![(1, Ok(()))])]))));
    }
    let dir = broker.crash().await;
    let broker = Broker::start(dir.path()).await;
    for group in 0..7 {
        let request = FetchOffsets { group: format!("g{group}").into(), topics: None, require_stable: false };
        let Reply::Fetch(Ok(topics)) = broker.ask(Request::Fetch(request)).await else {
            panic!("not fetched")
        };
        let last = (0..500).rfind(|offset| offset % 7 == group).unwrap();
        assert_eq!(topics[0].partitions[0].1.clone().unwrap().unwrap().offset, last);
    }
    broker.stop().await;
}

#[test]
fn without_the_topic_nobody_keeps_a_group() {
    assert_eq!(place(&View::default(), "g"), None);
}
