use std::collections::BTreeMap;

use felix_cluster::eligible::Declined;
use felix_cluster::invariants::check_view;
use felix_cluster::overrides::{ConfigOp, incremental};
use felix_cluster::state::DeclineReason;
use felix_cluster::view::ConfigScope;
use felix_protocol::time::MonoTime;
use felix_storage::disk::mem::{Crash, MemDisk};
use felix_storage::disk::os::OsDisk;

use super::*;

mod restart;
mod scale;
mod shared;

const SHORT: Duration = Duration::from_millis(200);
const LONG: Duration = Duration::from_secs(20);

/// A data directory on some disk, and what the broker would know of it.
struct Place<D: Disk> {
    disk: D,
    config: AgentConfig,
    _folder: Option<tempfile::TempDir>,
}

fn config(directory: PathBuf) -> AgentConfig {
    AgentConfig {
        directory,
        cluster_id: None,
        node: BrokerId(1),
        directory_id: Uuid::from_u128(5),
        boot_id: "boot".to_owned(),
        listeners: vec![Listener {
            name: "PLAINTEXT".to_owned(),
            protocol: "PLAINTEXT".to_owned(),
            host: "127.0.0.1".to_owned(),
            port: 9092,
        }],
        internal: None,
        rack: None,
        version: "0.1.0".to_owned(),
        lease_ms: 2000,
        copies: 0,
        doubts_settled: false,
        fences: BTreeMap::new(),
    }
}

fn on_disk() -> Place<OsDisk> {
    let folder = tempfile::tempdir().unwrap();
    Place { disk: OsDisk, config: config(folder.path().to_owned()), _folder: Some(folder) }
}

fn in_memory() -> Place<MemDisk> {
    let disk = MemDisk::new();
    disk.create_dir("/data".as_ref()).unwrap();
    disk.sync_dir("/".as_ref()).unwrap();
    Place { disk, config: config(PathBuf::from("/data")), _folder: None }
}

impl<D: Disk> Place<D> {
    async fn start(&self) -> Agent {
        Agent::start(self.disk.clone(), self.config.clone()).await.unwrap()
    }
}

impl Place<MemDisk> {
    /// The same directory after a power cut.
    fn after(&self, crash: Crash) -> Place<MemDisk> {
        Place { disk: self.disk.crash(crash), config: self.config.clone(), _folder: None }
    }
}

/// Ends as a killed process would: nothing is written any more.
async fn kill(agent: Agent) {
    let published = Arc::clone(&agent.published);
    let mut ended = published.ended();
    drop(agent);
    ended.wait_for(|ended| *ended).await.unwrap();
}

fn topic(name: &str, partitions: i32) -> NewTopic {
    NewTopic { name: name.to_owned(), partitions, replication_factor: 1, ..NewTopic::default() }
}

async fn create(agent: &Agent, new: NewTopic, wait: Duration) -> CreatedTopic {
    agent.create_topics(vec![new], false, wait).await.remove(0).unwrap()
}

/// Creates a topic and waits until its partitions are led, though not opened.
async fn create_led(agent: &Agent, new: NewTopic) -> CreatedTopic {
    let made = create(agent, new, Duration::ZERO).await;
    let count = usize::try_from(made.partitions).unwrap();
    let led = |view: &View| {
        let led =
            view.partitions_of(&made.id).filter(|it| it.led_by(agent.node(), agent.session()).is_some());
        led.count() == count
    };
    assert!(agent.wait_for(LONG, led).await);
    made
}

/// What a broker does with the partitions it is given: opens each with its one copy and says so. The copies are
/// remembered over restarts in `logs`, as folders would be.
async fn open_all(agent: &Agent, logs: &mut BTreeMap<PartitionId, LogId>) {
    let view = agent.view();
    let mut waiting = Vec::new();
    for partition in view.partitions() {
        let Some(generation) = partition.led_by(agent.node(), agent.session()) else { continue };
        if partition.opened() {
            continue;
        }
        let log = *logs.entry(partition.id).or_insert_with(LogId::random);
        assert!(partition.leader().unwrap().log.is_none_or(|named| named == log));
        let (to, from) = oneshot::channel();
        let learned = view.learned(&partition.id).unwrap();
        agent.report_then(partition.id, generation, Report::Opened(log), learned, |answer| {
            to.send(answer).unwrap();
        });
        waiting.push(from);
    }
    for from in waiting {
        from.await.unwrap().unwrap();
    }
}

fn generations(view: &View) -> Vec<u32> {
    view.partitions().map(|partition| partition.generation().number()).collect()
}

#[tokio::test]
async fn a_node_starts_on_an_empty_directory() {
    let place = on_disk();
    let agent = place.start().await;
    let view = agent.view();
    assert_eq!(view.cluster_id().len(), 22);
    assert_eq!(view.controller(), Some(BrokerId(1)));
    assert_eq!(view.features().finalized["metadata.version"], 25);
    assert!(view.features().epoch > 0);
    assert_eq!(agent.lease().ends_at(), MonoTime::NEVER);
    assert_eq!(agent.lease().session(), view.broker(BrokerId(1)).unwrap().node.session);
    let lease = agent.lease();
    agent.drain().await.unwrap();
    assert_eq!(agent.view().brokers().count(), 1, "it still serves");
    agent.stop().await.unwrap();
    assert_eq!(lease.ends_at(), MonoTime(0));
    assert_eq!(agent.ended().await, None);
    assert!(matches!(agent.next_producer_ids().await, Err(ControlError::Stopped(_))));
}

#[tokio::test]
async fn a_topic_lives_from_creation_to_deletion() {
    let place = on_disk();
    let agent = place.start().await;
    let mut logs = BTreeMap::new();
    // Nobody opens the partitions: the answer comes after the bounded wait.
    let created = create(&agent, topic("orders", 3), SHORT).await;
    assert_eq!((created.partitions, created.replication_factor), (3, 1));
    let view = agent.view();
    check_view(&view).unwrap();
    assert_eq!(view.topic_named("orders").unwrap().id, created.id);
    assert_eq!(generations(&view), [1, 1, 1]);
    let first = view.partition(&PartitionId { topic: created.id, index: 0 }).unwrap();
    assert_eq!((first.opened(), view.isr(first)), (false, vec![BrokerId(1)]));
    open_all(&agent, &mut logs).await;
    assert!(agent.view().partitions().all(|partition| partition.opened()));

    // Somebody opens them as they come: the answer says so.
    let opener = agent.clone();
    let opening = async move {
        let mut logs = BTreeMap::new();
        let mut changed = opener.changed();
        while opener
            .view()
            .topic_named("later")
            .is_none_or(|later| !is_open(&opener.view(), &later.id, opener.node(), opener.session()))
        {
            open_all(&opener, &mut logs).await;
            changed.changed().await.unwrap();
        }
    };
    let (later, ()) = tokio::join!(create(&agent, topic("later", 2), LONG), opening);
    assert!(agent.view().partitions_of(&later.id).all(|partition| partition.opened()));

    agent.create_partitions("orders", 5, None, false, SHORT).await.unwrap();
    assert_eq!(agent.view().partitions_of(&created.id).count(), 5);
    let refused = agent.create_partitions("orders", 5, None, false, SHORT).await;
    assert_eq!(refused, Err(AdminError::Refused(WidenRefused::NotMore { current: 5, asked: 5 })));

    let which =
        vec![TopicRef::Name("orders".to_owned()), TopicRef::Id(later.id), TopicRef::Name("no".to_owned())];
    let deleted = agent.delete_topics(which).await;
    assert_eq!(deleted[0].as_ref().unwrap().id, created.id);
    assert_eq!(deleted[1].as_ref().unwrap().name, "later");
    assert_eq!(deleted[2], Err(AdminError::Refused(UnknownTopic)));
    assert!(agent.wait_for(LONG, |view| view.partition_count() == 0).await);
    assert_eq!(agent.view().topic_count(), 0);
    // The name is free again, for another topic.
    let again = create(&agent, topic("orders", 1), SHORT).await;
    assert_ne!(again.id, created.id);
}

#[tokio::test]
async fn creation_is_refused_with_reasons() {
    let agent = in_memory().start().await;
    create(&agent, topic("a.b", 1), Duration::ZERO).await;
    let wide = NewTopic { replication_factor: 3, ..topic("wide", 1) };
    let there = CreateRefused::Exists("a.b".to_owned());
    let collides = CreateRefused::Collides { name: "a_b".to_owned(), with: "a.b".to_owned() };
    let factor = CreateRefused::ReplicationFactor { asked: 3, available: 1 };
    // Of two that collide with one another in one request, the first is created.
    let asked = vec![topic("a.b", 1), topic("a_b", 1), wide, topic("x.y", 1), topic("x_y", 1), topic("z", 0)];
    let answers = agent.create_topics(asked, false, Duration::ZERO).await;
    assert_eq!(answers[0], Err(AdminError::Refused(there)));
    assert_eq!(answers[1], Err(AdminError::Refused(collides)));
    assert_eq!(answers[2], Err(AdminError::Refused(factor)));
    assert_eq!(answers[3].as_ref().unwrap().name, "x.y");
    assert!(matches!(answers[4], Err(AdminError::Refused(CreateRefused::Collides { .. }))));
    assert_eq!(answers[5], Err(AdminError::Refused(CreateRefused::Partitions(0))));
    let tried = agent.create_topics(vec![topic("tried", 2)], true, LONG).await;
    assert_eq!(tried[0].as_ref().unwrap().partitions, 2);
    assert!(agent.view().topic_named("tried").is_none());
    let many = agent.create_topics(vec![topic("m1", 6000), topic("m2", 6000)], false, Duration::ZERO).await;
    assert!(
        many.iter()
            .all(|answer| *answer == Err(AdminError::Refused(CreateRefused::TooManyPartitions(12_000))))
    );
}

#[tokio::test]
async fn concurrent_edits_are_not_lost() {
    let agent = in_memory().start().await;
    create(&agent, topic("orders", 1), Duration::ZERO).await;
    let target = || ConfigTarget::Topic("orders".to_owned());
    let edits = (0..50).map(|at| {
        let step = [(format!("key{at:02}"), ConfigOp::Set(at.to_string()))];
        agent.alter_configs(target(), false, move |before| Ok(incremental(before, &step)))
    });
    let mut edits: Vec<_> = edits.map(Box::pin).collect();
    // All are submitted before any is answered.
    std::future::poll_fn(|context| {
        edits.retain_mut(|edit| edit.as_mut().poll(context).is_pending());
        if edits.is_empty() { std::task::Poll::Ready(()) } else { std::task::Poll::Pending }
    })
    .await;
    assert_eq!(agent.view().topic_named("orders").unwrap().overrides.len(), 50);
    let refused = agent.alter_configs(target(), false, |_| Err("no".to_owned())).await;
    assert_eq!(refused, Err(AdminError::Refused(EditRefused::Refused("no".to_owned()))));
    let unknown =
        agent.alter_configs(ConfigTarget::Topic("x".to_owned()), true, |_| Ok(Overrides::new())).await;
    assert_eq!(unknown, Err(AdminError::Refused(EditRefused::Unknown(UnknownTopic))));
    let replaced = Overrides::from([("a".to_owned(), "b".to_owned())]);
    let with = replaced.clone();
    agent.alter_configs(target(), false, move |_| Ok(with.clone())).await.unwrap();
    assert_eq!(*agent.view().topic_named("orders").unwrap().overrides, replaced);
    for scope in
        [ConfigScope::Cluster, ConfigScope::Broker(BrokerId(1)), ConfigScope::Group("g/1".to_owned())]
    {
        let with = replaced.clone();
        let target = || ConfigTarget::Scope(scope.clone());
        agent
            .alter_configs(target(), true, |_| Ok(Overrides::from([("x".to_owned(), String::new())])))
            .await
            .unwrap();
        assert!(agent.view().overrides(&scope).is_empty(), "only tried");
        agent.alter_configs(target(), false, move |_| Ok(with.clone())).await.unwrap();
        assert_eq!(*agent.view().overrides(&scope), replaced);
        agent.alter_configs(target(), false, |_| Ok(Overrides::new())).await.unwrap();
        assert!(agent.view().overrides(&scope).is_empty());
    }
}

#[tokio::test]
async fn reports_are_held_to_what_their_sender_learned() {
    let agent = in_memory().start().await;
    let id = PartitionId { topic: create(&agent, topic("orders", 1), Duration::ZERO).await.id, index: 0 };
    assert!(
        agent
            .wait_for(LONG, |view| view.partition(&id).is_some_and(|partition| partition.leader().is_some()))
            .await
    );
    let (log, generation) = (LogId::random(), Generation::new(1).unwrap());
    let learned = agent.view().learned(&id).unwrap();
    let early = agent.report_eligible(id, generation, BTreeSet::new(), BTreeSet::new(), 1, learned).await;
    assert_eq!(early, Err(ReportError::Unlawful(Unlawful::Opening)));
    let other = agent.report_opened(id, Generation::new(2).unwrap(), log, learned).await;
    assert_eq!(other, Err(ReportError::Unlawful(Unlawful::NotLeader)));
    let next = agent.report_opened(id, generation, log, learned).await.unwrap();
    assert_eq!(agent.view().learned(&id), Some(next));
    // Said twice, as after a lost answer: it is so already.
    assert_eq!(agent.report_opened(id, generation, log, learned).await, Ok(next));
    let stale = agent.report_opened(id, generation, LogId::random(), learned).await;
    assert_eq!(stale, Err(ReportError::Moved));
    // The topic's key counts too.
    let set = Overrides::from([("a".to_owned(), "b".to_owned())]);
    agent
        .alter_configs(ConfigTarget::Topic("orders".to_owned()), false, move |_| Ok(set.clone()))
        .await
        .unwrap();
    let stranger = BTreeSet::from([Pair { broker: BrokerId(2), log }]);
    let stale = agent.report_eligible(id, generation, stranger.clone(), BTreeSet::new(), 1, next).await;
    assert_eq!(stale, Err(ReportError::Moved));
    let learned = agent.view().learned(&id).unwrap();
    let unlawful = agent.report_eligible(id, generation, stranger, BTreeSet::new(), 1, learned).await;
    assert_eq!(unlawful, Err(ReportError::Unlawful(Unlawful::Member(BrokerId(2)))));
    agent.delete_topics(vec![TopicRef::Id(id.topic)]).await.remove(0).unwrap();
    assert!(agent.wait_for(LONG, |view| view.partition(&id).is_none()).await);
    assert_eq!(agent.report_opened(id, generation, log, learned).await, Err(ReportError::Gone));
}

#[tokio::test]
async fn producer_ids_are_never_given_twice() {
    let place = in_memory();
    let mut given = BTreeSet::new();
    for _ in 0..3 {
        let agent = place.start().await;
        let (first, second, third) =
            tokio::join!(agent.next_producer_ids(), agent.next_producer_ids(), agent.next_producer_ids());
        for block in [first, second, third] {
            for id in block.unwrap() {
                assert!(given.insert(id), "{id} was given before");
            }
        }
        kill(agent).await;
    }
    assert_eq!((given.len(), given.first()), (9000, Some(&0)));
}
