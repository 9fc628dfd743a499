//! Two real brokers' listeners, and strangers of every kind.

use std::collections::BTreeSet;
use std::net::SocketAddr;
use std::sync::atomic::AtomicUsize;

use bytes::Bytes;
use felix_cluster::state::Revision;
use felix_protocol::ids::{Generation, PartitionId, SessionId, TopicId};
use felix_protocol::peer::hello::{Hello, OLDEST, VERSION};
use felix_protocol::peer::ship::{Part, Ship};
use felix_protocol::peer::standing::StandingAnswers;
use felix_protocol::peer::{self, Received};
use tokio::net::TcpListener;

use super::tls::TlsError;
use super::*;

mod lively;
mod strangers;
mod trust;

/// Longer than anything takes; a test that waits for so long fails.
const LONG: Duration = Duration::from_secs(30);

/// Who lives where, as one broker knows it.
struct Town {
    own: Mutex<(BrokerId, SessionId, String)>,
    known: Mutex<BTreeMap<BrokerId, Target>>,
    changed: watch::Sender<Revision>,
}

impl Town {
    fn new(own: i32) -> Arc<Town> {
        let own = Mutex::new((BrokerId(own), SessionId(own.unsigned_abs().into()), "cluster".to_owned()));
        Arc::new(Town { own, known: Mutex::default(), changed: watch::Sender::new(Revision(1)) })
    }

    fn knows(&self, peer: i32, session: u64, address: SocketAddr) {
        let target =
            Target { session: SessionId(session), host: address.ip().to_string(), port: address.port() };
        self.known.lock().insert(BrokerId(peer), target);
        self.changed.send_modify(|revision| revision.0 += 1);
    }

    fn registers(&self, session: u64) {
        self.own.lock().1 = SessionId(session);
        self.changed.send_modify(|revision| revision.0 += 1);
    }
}

impl Directory for Town {
    fn hello(&self) -> Hello {
        let (node, session, cluster) = self.own.lock().clone();
        Hello { version: VERSION, oldest: OLDEST, cluster, node, session }
    }

    fn peers(&self) -> BTreeSet<BrokerId> {
        self.known.lock().keys().copied().collect()
    }

    fn target(&self, peer: BrokerId) -> Option<Target> {
        self.known.lock().get(&peer).cloned()
    }

    fn lives(&self, peer: BrokerId, session: SessionId) -> bool {
        self.target(peer).is_some_and(|target| target.session == session)
    }

    fn changed(&self) -> watch::Receiver<Revision> {
        self.changed.subscribe()
    }
}

/// Keeps what it is asked until the test answers.
#[derive(Default)]
struct Desk {
    asked: Mutex<Vec<(BrokerId, Message, Reply)>>,
    count: AtomicUsize,
    /// Answers at once what can be.
    prompt: bool,
}

impl Handler for Desk {
    fn handle(&self, from: &Hello, request: Message, reply: Reply) {
        self.count.fetch_add(1, Ordering::Relaxed);
        if self.prompt {
            reply.send(&standings(&request));
            return;
        }
        self.asked.lock().push((from.node, request, reply));
    }
}

/// As many standings as were asked for.
fn standings(question: &Message) -> Message {
    let Message::StandingQuery(query) = question else { panic!("{question:?}") };
    let standing = |partition: &PartitionId| felix_protocol::peer::standing::Standing {
        partition: *partition,
        log: None,
        accepted: Generation::ZERO,
        end: i64::from(partition.index),
        doubt: false,
    };
    Message::StandingAnswers(StandingAnswers { standings: query.partitions.iter().map(standing).collect() })
}

fn partition(index: i32) -> PartitionId {
    PartitionId { topic: TopicId::NONE, index }
}

fn question(index: i32) -> Message {
    Message::StandingQuery(StandingQuery { partitions: vec![partition(index)] })
}

fn shipment(bytes: Bytes) -> Message {
    let part = Part {
        partition: partition(1),
        key_revision: 1,
        generation: Generation::ZERO,
        log: None,
        header: None,
        mark: 0,
        log_start: 0,
        log_end: 1,
        from: 0,
        next: 1,
        before: None,
        records: vec![bytes],
    };
    Message::Ship(Ship { parts: vec![part] })
}

/// One broker.
struct Host {
    town: Arc<Town>,
    peers: Arc<Peers>,
    desk: Arc<Desk>,
    address: SocketAddr,
}

fn fast() -> Timing {
    Timing {
        greeting: Duration::from_secs(1),
        first_retry: Duration::from_millis(5),
        longest_retry: Duration::from_millis(50),
        ping_after: Duration::from_millis(50),
        dead_after: Duration::from_secs(20),
        look_every: Duration::from_millis(10),
    }
}

async fn host(id: i32, desk: Desk, tls: Option<Tls>) -> Host {
    host_with(id, desk, tls, fast()).await
}

async fn host_with(id: i32, desk: Desk, tls: Option<Tls>, timing: Timing) -> Host {
    let listener = TcpListener::bind("127.0.0.1:0").await.unwrap();
    let address = listener.local_addr().unwrap();
    let (town, desk) = (Town::new(id), Arc::new(desk));
    let peers = Peers::start(Setup {
        directory: Arc::clone(&town) as Arc<dyn Directory>,
        tls,
        clock: SystemClock::start(),
        timing,
        memory: Receiving::new(64 << 20),
        figures: Figures::of(&Metrics::new().unwrap()),
    });
    tasks::spawn("test", Arc::clone(&peers).serve(listener, Arc::clone(&desk) as Arc<dyn Handler>));
    Host { town, peers, desk, address }
}

impl Drop for Host {
    fn drop(&mut self) {
        self.peers.stop();
    }
}

/// Two that know each other.
async fn pair(desk: Desk) -> (Host, Host) {
    let (one, two) = (host(1, Desk::default(), None).await, host(2, desk, None).await);
    two.town.knows(1, 1, one.address);
    one.town.knows(2, 2, two.address);
    (one, two)
}

impl Host {
    async fn link(&self, peer: i32) -> Arc<Link> {
        let mut linked = self.peers.linked();
        loop {
            if let Some(link) = self.peers.link(BrokerId(peer)) {
                return link;
            }
            bounded(linked.changed()).await.unwrap();
        }
    }

    /// Waits until there is a connection, other than `than`.
    async fn up(&self, peer: i32, than: Option<Up>) -> Up {
        let mut up = self.link(peer).await.up();
        bounded(up.wait_for(|up| up.is_some() && *up != than)).await.unwrap().unwrap()
    }

    /// Waits until there is none.
    async fn down(&self, peer: i32) {
        let mut up = self.link(peer).await.up();
        bounded(up.wait_for(Option::is_none)).await.unwrap();
    }

    /// Waits until so many questions lie on the desk.
    async fn asked(&self, count: usize) {
        bounded(async {
            while self.desk.asked.lock().len() < count {
                tokio::time::sleep(Duration::from_millis(1)).await;
            }
        })
        .await;
    }
}

async fn bounded<T>(future: impl Future<Output = T>) -> T {
    tokio::time::timeout(LONG, future).await.expect("it takes too long")
}
