use std::collections::BTreeMap;
use std::sync::Arc;

use felix_cluster::invariants::check_view;
use felix_cluster::promotion::{Standing, StandingsOf};
use felix_cluster::registration;
use felix_cluster::state::{Last, Leader, Node, NodeState, Pair, Partition, Topic};
use felix_cluster::topics::{self, NewTopic};
use felix_protocol::ids::{BrokerId, Generation, LogId, PartitionId, SessionId, TopicId, Uuid};
use felix_storage::disk::mem::MemDisk;
use parking_lot::Mutex;
use proptest::prelude::*;
use tokio::sync::oneshot;

use super::*;
use crate::executor::job::Wanted;
use crate::inquiry::{Inquirer, Told};
use crate::store::embedded::{Embedded, EmbeddedWatch};
use crate::store::memory::{Fate, Server};
use crate::store::{After, BatchLimit, Committed, Entry, Exchanged, Page, Position};

/// A store that loses answers: by the next number of the script a transaction goes well (0), is refused (1), happens
/// without a word (2), or does not happen without a word (3). It takes few operations at once, as etcd does.
struct Lossy {
    inner: Embedded<MemDisk>,
    script: Vec<u8>,
    commits: usize,
}

impl Store for Lossy {
    type Watch = EmbeddedWatch;

    async fn get(&mut self, key: &str) -> Result<Option<Entry>, StoreError> {
        self.inner.get(key).await
    }

    async fn list(&mut self, prefix: &str, after: Option<&After>, limit: usize) -> Result<Page, StoreError> {
        self.inner.list(prefix, after, limit.min(7)).await
    }

    async fn watch(&mut self, prefix: &str, after: Revision) -> Result<EmbeddedWatch, StoreError> {
        self.inner.watch(prefix, after).await
    }

    async fn commit(&mut self, decisions: &[Decision]) -> Result<Committed, StoreError> {
        let operations: usize = decisions.iter().map(Decision::operations).sum();
        assert!(operations <= self.batch_limit().operations, "{operations} operations at once");
        let fate = self.script.pop().unwrap_or(0);
        self.commits += 1;
        match fate {
            1 => Err(StoreError::Unavailable("scripted".to_owned())),
            2 => {
                self.inner.commit(decisions).await?;
                Err(StoreError::Unknown("scripted".to_owned()))
            }
            3 => Err(StoreError::Unknown("scripted".to_owned())),
            _ => self.inner.commit(decisions).await,
        }
    }

    async fn exchange(&mut self, decision: &Decision, reads: &[&str]) -> Result<Exchanged, StoreError> {
        self.inner.exchange(decision, reads).await
    }

    fn batch_limit(&self) -> BatchLimit {
        BatchLimit { decisions: 24, operations: 24, bytes: 4096 }
    }

    fn position(&self) -> Position {
        self.inner.position()
    }

    async fn close(&mut self) -> Result<(), StoreError> {
        self.inner.close().await
    }
}

fn node(session: u64) -> Node {
    Node {
        session: SessionId(session),
        state: NodeState::Live,
        directory: Uuid::nil(),
        suspect: false,
        boot: String::new(),
        listeners: Vec::new(),
        internal: None,
        rack: None,
        version: String::new(),
    }
}

async fn entered(script: Vec<u8>) -> Executor<Lossy> {
    let disk = MemDisk::new();
    let inner = Embedded::open(disk, "/".as_ref()).unwrap();
    let mut store = Lossy { inner, script: Vec::new(), commits: 0 };
    let view = View::default();
    let mut decisions = registration::found(&view, "cluster", 2000);
    decisions.push(registration::take_over(&view, BrokerId(1), &node(1), &Default::default()).unwrap());
    store.inner.commit(&decisions).await.unwrap();
    let mut executor = Executor::load(store, Published::new()).await.unwrap();
    executor.store.script = script;
    executor
}

fn create(
    executor: &mut Executor<Lossy>,
    name: &str,
    partitions: i32,
) -> oneshot::Receiver<Result<bool, ControlError>> {
    let (to, from) = oneshot::channel();
    let new = NewTopic { name: name.to_owned(), partitions, replication_factor: 1, ..NewTopic::default() };
    let id = TopicId::random();
    let decide = move |view: &View| match topics::create(view, id, &new) {
        Ok((decision, _)) => Step::Write(decision, Box::new(|_| true)),
        Err(_) => Step::Done(view.topic(&id).is_some()),
    };
    executor.jobs.push(Wanted::boxed(decide, |answer| drop(to.send(answer))));
    from
}

/// Settles as the serving loop does, without its pauses.
async fn settle(executor: &mut Executor<Lossy>) {
    for _ in 0..200 {
        match executor.settle().await {
            Ok(()) => return,
            Err(StoreError::Unavailable(_) | StoreError::Unknown(_)) => {}
            Err(other) => panic!("{other}"),
        }
    }
    panic!("it never settles");
}

fn block_on<F: Future>(future: F) -> F::Output {
    tokio::runtime::Builder::new_current_thread().enable_time().build().unwrap().block_on(future)
}

proptest! {
    #![proptest_config(ProptestConfig::with_cases(200))]

    /// Whatever answers are lost: what was acknowledged is there, everything placed is led, once, and nothing that
    /// was refused for good came to be.
    #[test]
    fn lost_answers_neither_lose_nor_double(script in prop::collection::vec(0..4_u8, 0..24), partitions in 1..30) {
        block_on(async {
            let mut executor = entered(script).await;
            let answers: Vec<_> = (0..4)
                .map(|at| create(&mut executor, &format!("topic{}", at % 3), partitions + at))
                .collect();
            settle(&mut executor).await;
            let view = executor.view().clone();
            check_view(&view).unwrap();
            let mut made = 0;
            for answer in answers {
                made += usize::from(answer.await.unwrap() == Ok(true));
            }
            // Two of the four share a name.
            assert!(made <= view.topic_count() && view.topic_count() <= 3);
            for partition in view.partitions() {
                assert_eq!(partition.led_by(BrokerId(1), SessionId(1)).map(|it| it.number()), Some(1));
            }
            // The store says the same as the view, and there is nothing left to do.
            let commits = executor.store.commits;
            settle(&mut executor).await;
            assert_eq!(executor.store.commits, commits);
            let (listed, revision) = list_all(&mut executor.store, "/").await.unwrap();
            assert!(relist::changes(&view, listed, revision).is_empty());
        });
    }
}

#[test]
fn independent_decisions_share_transactions() {
    block_on(async {
        let mut executor = entered(Vec::new()).await;
        let answers: Vec<_> = (0..6).map(|at| create(&mut executor, &format!("topic{at}"), 1)).collect();
        settle(&mut executor).await;
        for answer in answers {
            assert_eq!(answer.await.unwrap(), Ok(true));
        }
        // 6 creations of 4 operations, 6 placements of 3 and 6 promotions of 3, at most 24 at once.
        assert!(executor.store.commits <= 6, "{}", executor.store.commits);
    });
}

#[test]
fn a_job_that_always_loses_is_given_up() {
    block_on(async {
        let mut executor = entered(Vec::new()).await;
        let (to, from) = oneshot::channel();
        let impossible = || Decision::new().at(Key::Cluster, Revision(99)).delete(Key::Cluster);
        let decide = move |_: &View| Step::Write(impossible(), Box::new(|_| ()));
        executor.jobs.push(Wanted::boxed(decide, |answer| drop(to.send(answer))));
        settle(&mut executor).await;
        assert!(matches!(from.await.unwrap(), Err(ControlError::Contended(_))));
    });
}

#[test]
fn an_answer_comes_with_a_view_that_shows_what_was_written() {
    block_on(async {
        let mut executor = entered(Vec::new()).await;
        let published = Arc::clone(&executor.published);
        let (to, from) = oneshot::channel();
        let id = TopicId::random();
        let new =
            NewTopic { name: "seen".to_owned(), partitions: 1, replication_factor: 1, ..NewTopic::default() };
        let decide = move |view: &View| match topics::create(view, id, &new) {
            Ok((decision, _)) => Step::Write(decision, Box::new(|_| ())),
            Err(_) => Step::Done(()),
        };
        let reply = move |_| to.send(published.view().topic(&id).is_some()).unwrap();
        executor.jobs.push(Wanted::boxed(decide, reply));
        settle(&mut executor).await;
        assert!(from.await.unwrap());
    });
}

#[test]
fn an_outcome_that_is_read_back_has_its_own_revision() {
    block_on(async {
        let server = Server::new();
        let store = server.connect();
        store.link().script([Fate::AnswerLost]);
        let mut executor = Executor::load(store, Published::new()).await.unwrap();
        // Somebody else's write comes between the lost one and the reading back.
        let mut other = server.connect();
        other.link().script([Fate::Late(1)]);
        other.commit(&[Decision::new().put(Key::ProducerIds, &1)]).await.unwrap_err();
        let (to, from) = oneshot::channel();
        let decide = |_: &View| {
            let decision = Decision::new().absent(Key::Features).put(Key::Features, &1);
            Step::Write(decision, Box::new(|revision| revision))
        };
        executor.jobs.push(Wanted::boxed(decide, |answer| drop(to.send(answer))));
        executor.settle().await.unwrap();
        let found = other.get(&Key::Features.to_string()).await.unwrap().unwrap();
        assert_eq!(from.await.unwrap(), Ok(found.revision));
        assert!(executor.view().revision() > found.revision);
    });
}

/// Partitions by the broker that was asked about them.
type Questions = BTreeMap<BrokerId, Vec<PartitionId>>;

/// Brokers that say where their copies end.
struct Ends {
    log: LogId,
    ends: BTreeMap<BrokerId, i64>,
    asked: Arc<Mutex<Vec<Questions>>>,
}

impl Ends {
    /// Has them told to whoever asks for that executor, and answers what was asked.
    fn tell(
        executor: &Executor<Lossy>,
        log: LogId,
        ends: BTreeMap<BrokerId, i64>,
    ) -> Arc<Mutex<Vec<Questions>>> {
        let asked = Arc::default();
        let ends = Ends { log, ends, asked: Arc::clone(&asked) };
        assert!(executor.published.inquirer().set(Arc::new(ends)).is_ok());
        asked
    }
}

impl Inquirer for Ends {
    fn ask(&self, questions: Questions, _within: Duration) -> Told {
        let mut told = StandingsOf::new();
        for (broker, partitions) in &questions {
            let Some(end) = self.ends.get(broker).copied() else { continue };
            let standing = Standing { log: self.log, accepted: Generation::ZERO, end, doubt: false };
            for id in partitions {
                told.entry(*id).or_default().insert(*broker, standing);
            }
        }
        self.asked.lock().push(questions);
        Box::pin(std::future::ready(told))
    }
}

#[test]
fn brokers_are_asked_once_about_all_partitions_together_and_the_one_furthest_ahead_leads() {
    block_on(async {
        let mut executor = entered(Vec::new()).await;
        let log = LogId(Uuid::from_u128(7));
        let mut partition = Partition::placed([1, 2, 3].map(BrokerId).to_vec());
        partition.eligible = [1, 2, 3].map(|id| Pair { broker: BrokerId(id), log }).into();
        partition.last = Last::Nobody;
        let id = TopicId::random();
        let topic = Topic {
            name: "many".to_owned(),
            partitions: 30,
            replication_factor: 3,
            overrides: Default::default(),
            assignments: Default::default(),
        };
        let mut decision = Decision::new().put(Key::Topic(id), &topic);
        for broker in [2, 3] {
            decision = decision.put(Key::Node(BrokerId(broker)), &node(1));
        }
        executor.store.inner.commit(&[decision]).await.unwrap();
        for index in 0..30 {
            let key = Key::Partition(PartitionId { topic: id, index });
            executor.store.inner.commit(&[Decision::new().put(key, &partition)]).await.unwrap();
        }
        let asked = Ends::tell(&executor, log, [(BrokerId(1), 5), (BrokerId(3), 9)].into());
        executor.watch = None;
        settle(&mut executor).await;
        let led: Vec<_> = executor.view().partitions().map(|it| it.state.leader.unwrap().broker.0).collect();
        assert_eq!(led, [3; 30], "2 is silent, and 1 holds less");
        let asked = asked.lock();
        assert_eq!(asked.len(), 1, "all at once");
        assert!(asked[0].values().all(|partitions| partitions.len() == 30) && asked[0].len() == 3);
    });
}

#[test]
fn what_was_not_asked_while_the_leader_lived_is_asked_when_it_is_gone() {
    block_on(async {
        let mut executor = entered(Vec::new()).await;
        let log = LogId(Uuid::from_u128(7));
        let pair = |id| Pair { broker: BrokerId(id), log };
        let mut partition = Partition::placed([2, 1, 3].map(BrokerId).to_vec());
        partition.eligible = [pair(1), pair(3)].into();
        partition.leader = Some(Leader { broker: BrokerId(2), session: SessionId(1), log: Some(log) });
        partition.last = Last::Opened { pair: pair(2), generation: partition.generation };
        let topic = Topic {
            name: "led".to_owned(),
            partitions: 1,
            replication_factor: 3,
            overrides: Default::default(),
            assignments: Default::default(),
        };
        let id = TopicId::random();
        let key = Key::Partition(PartitionId { topic: id, index: 0 });
        let mut decision = Decision::new().put(Key::Topic(id), &topic).put(key, &partition);
        for broker in [2, 3] {
            decision = decision.put(Key::Node(BrokerId(broker)), &node(1));
        }
        executor.store.inner.commit(&[decision]).await.unwrap();
        let asked = Ends::tell(&executor, log, [(BrokerId(1), 5), (BrokerId(3), 9)].into());
        executor.watch = None;
        settle(&mut executor).await;
        assert!(asked.lock().is_empty(), "its leader lives");
        let fenced = Node { state: NodeState::Fenced, ..node(1) };
        let fence = Decision::new().put(Key::Node(BrokerId(2)), &fenced);
        executor.store.inner.commit(&[fence]).await.unwrap();
        executor.watch = None;
        settle(&mut executor).await;
        let leader = executor.view().partitions().next().unwrap().state.leader.unwrap();
        assert_eq!(leader.broker, BrokerId(3), "it holds more than the one that comes first");
        assert_eq!(asked.lock().len(), 1);
    });
}
