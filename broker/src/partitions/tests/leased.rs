//! The data path of a broker that shares its control store: its lease runs out, its session is ended and followed by
//! another, in one process.

use std::sync::Arc;

use felix_cluster::decision::Decision;
use felix_cluster::keys::Key;
use felix_cluster::revoke::{Revocation, RevokeSet};
use felix_cluster::view::View;
use felix_control::agent::AgentConfig;
use felix_control::store::memory::{Link, Memory, Reach, Server};
use felix_control::store::{Connect, Store, StoreError};
use felix_protocol::ids::SessionId;
use felix_protocol::time::Clock;
use parking_lot::Mutex;

use super::following::LONG;
use super::*;

/// L of these clusters, in milliseconds.
const LEASE_MS: u64 = 1000;

/// A broker's ways to the store.
#[derive(Clone)]
struct Ways {
    server: Server,
    links: Arc<Mutex<Vec<Link>>>,
}

impl Connect for Ways {
    type Store = Memory;

    async fn connect(&self, _attempt: Duration) -> Result<Memory, StoreError> {
        let memory = self.server.connect();
        self.links.lock().push(memory.link());
        Ok(memory)
    }
}

/// A broker in a cluster of several.
pub(super) struct Member {
    pub(super) broker: Broker,
    pub(super) agent: Agent,
    following: Following,
    ways: Ways,
    clock: SystemClock,
    place: TempDir,
}

impl Member {
    fn start(server: &Server, id: i32) -> Member {
        Member::start_in(server, id, TempDir::new().unwrap(), "boot", LEASE_MS)
    }

    fn start_in(server: &Server, id: i32, place: TempDir, boot: &str, lease_ms: u64) -> Member {
        Member::start_with(server, id, place, boot, lease_ms, None)
    }

    /// One that the others reach, and that reaches them.
    pub(super) fn with_peers(server: &Server, id: i32, place: TempDir) -> Member {
        let listener = std::net::TcpListener::bind("127.0.0.1:0").unwrap();
        listener.set_nonblocking(true).unwrap();
        Member::start_with(server, id, place, "boot", LEASE_MS, Some(listener))
    }

    fn start_with(
        server: &Server,
        id: i32,
        place: TempDir,
        boot: &str,
        lease_ms: u64,
        peers: Option<std::net::TcpListener>,
    ) -> Member {
        let internal = peers.as_ref().map(|listener| felix_cluster::state::Listener {
            name: "INTERNAL".to_owned(),
            protocol: "PLAINTEXT".to_owned(),
            host: "127.0.0.1".to_owned(),
            port: listener.local_addr().unwrap().port(),
        });
        let runtime = runtime();
        let dir = DataDir::open(OsDisk, place.path(), Limits::default()).unwrap();
        let (replicas, _) = Replicas::open(&dir).unwrap();
        let config = AgentConfig {
            directory: place.path().to_owned(),
            cluster_id: None,
            node: BrokerId(id),
            directory_id: Uuid::from_u128(id as u128),
            boot_id: boot.to_owned(),
            listeners: Vec::new(),
            internal,
            rack: None,
            version: "0".to_owned(),
            lease_ms,
            copies: 0,
            doubts_settled: false,
            fences: std::collections::BTreeMap::new(),
        };
        let clock = SystemClock::start();
        let ways = Ways { server: server.clone(), links: Arc::default() };
        let join = Agent::join(OsDisk, config, ways.clone(), clock, || Ok(()));
        let agent = runtime.block_on(join).unwrap();
        let setup = Setup { broker: BrokerId(id), clock, ..setup(dir, replicas) };
        let partitions = Partitions::start(setup, &agent).unwrap();
        let inside = runtime.enter();
        let following = follow(Arc::clone(&partitions), agent.clone(), Arc::default()).unwrap();
        if let Some(listener) = peers {
            let setup = crate::peers::Setup {
                directory: Arc::new(agent.clone()),
                tls: None,
                clock,
                timing: crate::peers::Timing::default(),
                memory: crate::budget::Receiving::new(64 << 20),
                figures: crate::peers::Figures::of(&crate::metrics::Metrics::new().unwrap()),
            };
            let listener = tokio::net::TcpListener::from_std(listener).unwrap();
            crate::handlers::peer::start(setup, listener, &agent, &partitions);
        }
        drop(inside);
        let broker = Broker { partitions, control: Arc::default(), runtime };
        Member { broker, agent, following, ways, clock, place }
    }

    fn reach(&self, reach: Reach) {
        self.ways.links.lock().iter().for_each(|link| link.set_reach(reach));
    }

    pub(super) fn wait_for(&self, test: impl FnMut(&View) -> bool) {
        assert!(self.broker.runtime.block_on(self.agent.wait_for(LONG, test)));
    }

    /// Waits until a session leads the partition with an open copy, and returns its handle.
    pub(super) fn led(&self, partition: PartitionId, session: SessionId) -> PartitionHandle {
        let node = self.agent.node();
        self.wait_for(|view| {
            let led =
                |it: &felix_cluster::view::PartitionView| it.led_by(node, session).is_some() && it.opened();
            view.partition(&partition).is_some_and(|it| led(it))
        });
        let generation = self.agent.view().partition(&partition).unwrap().generation();
        self.eventually(|| {
            let handle = self.broker.partitions.get(&partition);
            handle.filter(|it| it.generation() == generation && it.stage() == Stage::Open)
        })
    }

    pub(super) fn eventually<T>(&self, mut test: impl FnMut() -> Option<T>) -> T {
        self.broker.runtime.block_on(async {
            for _ in 0..4000 {
                if let Some(found) = test() {
                    return found;
                }
                tokio::time::sleep(Duration::from_millis(5)).await;
            }
            panic!("it never happens");
        })
    }

    /// A planned stop, in the order of the server.
    pub(super) fn stop(self) -> TempDir {
        self.following.stop(|| self.broker.partitions.resign_and_stop());
        self.broker.runtime.block_on(self.agent.stop()).unwrap();
        self.place
    }
}

/// A topic whose one partition the broker leads.
fn topic_of(member: &Member) -> PartitionId {
    let new = felix_cluster::topics::NewTopic {
        name: "t".to_owned(),
        partitions: 1,
        replication_factor: 1,
        assignments: Some([(0, vec![member.agent.node()])].into()),
        overrides: Default::default(),
    };
    let created = member.broker.runtime.block_on(member.agent.create_topics(vec![new], false, LONG));
    PartitionId { topic: created.into_iter().next().unwrap().unwrap().id, index: 0 }
}

#[test]
fn a_lease_that_runs_out_stops_writes_and_not_reads_and_comes_back() {
    let server = Server::new();
    let member = Member::start(&server, 1);
    let partition = topic_of(&member);
    let handle = member.led(partition, member.agent.session());
    member.broker.append(&handle, append(batch(3), Acks::Leader)).unwrap();
    member.reach(Reach::Nothing);
    member.eventually(|| (!handle.is_leader()).then_some(()));
    let refused = member.broker.append(&handle, append(batch(1), Acks::Leader));
    assert_eq!(refused, Err(AppendError::NotLeader));
    assert!(handle.may_read() && handle.mark() == 3);
    assert_eq!(handle.log_end(), 3, "nothing of it reached the log");
    // Nobody was there to fence it: the same tenure goes on.
    member.reach(Reach::Everything);
    member.eventually(|| handle.is_leader().then_some(()));
    assert_eq!(member.broker.append(&handle, append(batch(1), Acks::All)).unwrap().base_offset, 3);
    drop(handle);
    member.stop();
}

#[test]
fn what_it_is_asked_to_give_up_stops_before_the_lease_goes_on_and_is_resigned() {
    let server = Server::new();
    let long_ms = 20 * LEASE_MS;
    let member = Member::start_in(&server, 1, TempDir::new().unwrap(), "boot", long_ms);
    let partition = topic_of(&member);
    let handle = member.led(partition, member.agent.session());
    member.broker.append(&handle, append(batch(3), Acks::All)).unwrap();
    let mut set = RevokeSet::default();
    set.add(Revocation { partition, generation: handle.generation() }).unwrap();
    let asks = Decision::new().put_bytes(Key::Revoke(BrokerId(1)), set.encode());
    let committed = member.broker.runtime.block_on(server.connect().commit(&[asks])).unwrap();
    assert_eq!(committed.landed, [true]);
    let (asked_at, ends_at) = (member.clock.now(), member.agent.lease().ends_at());
    member.eventually(|| (handle.stage() == Stage::Closed).then_some(()));
    assert_eq!(member.broker.append(&handle, append(batch(1), Acks::Leader)), Err(AppendError::NotLeader));
    // It resigns, and as nobody else holds the partition, it is named again: L would be for one that is silent.
    let next = handle.generation().next();
    member.wait_for(|view| view.partition(&partition).is_some_and(|it| Some(it.generation()) == next));
    let again = member.led(partition, member.agent.session());
    assert!(member.clock.now().since(asked_at) < Duration::from_millis(long_ms / 2));
    assert_eq!(member.broker.append(&again, append(batch(1), Acks::All)).unwrap().base_offset, 3);
    // What is over is taken off the list, and the lease goes on.
    member.wait_for(|view| view.revocations(BrokerId(1)).is_some_and(|set| set.value.is_empty()));
    member.eventually(|| (member.agent.lease().ends_at() > ends_at).then_some(()));
    assert_eq!(again.stage(), Stage::Open);
    drop((handle, again));
    member.stop();
}

#[test]
fn one_that_stops_resigns_and_its_next_life_waits_for_nobody() {
    let server = Server::new();
    let long_ms = 20 * LEASE_MS;
    let start = |id, place, boot: &str| Member::start_in(&server, id, place, boot, long_ms);
    let one = start(1, TempDir::new().unwrap(), "boot");
    let two = start(2, TempDir::new().unwrap(), "boot");
    let partition = topic_of(&two);
    let handle = two.led(partition, two.agent.session());
    two.broker.append(&handle, append(batch(3), Acks::All)).unwrap();
    let generation = handle.generation();
    drop(handle);
    two.broker.runtime.block_on(two.agent.drain()).unwrap();
    let place = two.stop();
    one.wait_for(|view| view.broker(BrokerId(2)).is_some_and(|node| node.is_fenced()));
    let left = one.agent.view().partition(&partition).unwrap().state.clone();
    let resigned = left.resigned.unwrap();
    assert_eq!((left.leader, left.generation, resigned.end), (None, generation, 3));
    // The machine may have been started anew meanwhile: the stop was clean.
    let began_at = one.clock.now();
    let two = start(2, place, "later");
    let again = two.led(partition, two.agent.session());
    assert!(one.clock.now().since(began_at) < Duration::from_millis(long_ms / 2));
    assert_eq!(Some(again.generation()), generation.next());
    assert_eq!(two.broker.append(&again, append(batch(1), Acks::All)).unwrap().base_offset, 3);
    drop(again);
    two.stop();
    one.stop();
}

#[test]
fn a_fenced_session_is_followed_by_another_that_leads_the_same_copies() {
    let server = Server::new();
    let (one, two) = (Member::start(&server, 1), Member::start(&server, 2));
    let partition = topic_of(&two);
    let (session, lease) = (two.agent.session(), two.agent.lease());
    let handle = two.led(partition, session);
    two.broker.append(&handle, append(batch(3), Acks::All)).unwrap();
    two.reach(Reach::Nothing);
    one.wait_for(|view| view.broker(BrokerId(2)).is_some_and(|node| node.is_fenced()));
    assert!(!handle.is_leader(), "its lease was over before that");
    two.reach(Reach::Everything);
    two.eventually(|| (two.agent.session() != session).then_some(()));
    let again = two.led(partition, two.agent.session());
    assert!(lease.is_over());
    assert_eq!(again.generation(), handle.generation().next().unwrap());
    // Its lease begins with the first confirmed beat.
    two.eventually(|| again.is_leader().then_some(()));
    assert_eq!(two.broker.append(&again, append(batch(1), Acks::All)).unwrap().base_offset, 3);
    assert_eq!(two.broker.append(&handle, append(batch(1), Acks::Leader)), Err(AppendError::NotLeader));
    assert!(!handle.is_leader() && !handle.may_read());
    drop((handle, again));
    two.stop();
    one.stop();
}

#[test]
fn a_copy_that_was_moved_to_others_leaves_the_disk_and_comes_back_as_another() {
    let server = Server::new();
    let (one, two) = (Member::start(&server, 1), Member::start(&server, 2));
    let new = felix_cluster::topics::NewTopic {
        name: "moved".to_owned(),
        partitions: 1,
        replication_factor: 2,
        assignments: Some([(0, vec![BrokerId(2), BrokerId(1)])].into()),
        overrides: Default::default(),
    };
    let created = two.broker.runtime.block_on(two.agent.create_topics(vec![new], false, LONG));
    let partition = PartitionId { topic: created.into_iter().next().unwrap().unwrap().id, index: 0 };
    let handle = two.led(partition, two.agent.session());
    let opener = &one.broker.partitions.opener;
    let before = one.eventually(|| opener.replicas.get(&partition));
    let folder = opener.dir.folder(&partition);
    assert!(folder.exists(), "it follows");
    let move_to = |target: &[i32]| {
        let target = target.iter().copied().map(BrokerId).collect();
        let moved = two.agent.alter_reassignments(vec![(partition, Some(target))], true);
        assert!(two.broker.runtime.block_on(moved)[0].is_ok());
    };
    move_to(&[2]);
    one.eventually(|| (!folder.exists() && opener.replicas.get(&partition).is_none()).then_some(()));
    assert!(handle.is_leader(), "the one that stays goes on");
    move_to(&[2, 1]);
    let after = one.eventually(|| opener.replicas.get(&partition));
    assert_ne!(after.log_id, before.log_id);
    one.eventually(|| folder.exists().then_some(()));
    drop(handle);
    two.stop();
    one.stop();
}
