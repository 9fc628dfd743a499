//! A whole data path under a real agent: topics are created, changed and deleted, processes start again.

use felix_cluster::state::{Listener, Overrides};
use felix_cluster::topics::{NewTopic, TopicRef};
use felix_cluster::view::View;
use felix_control::agent::AgentConfig;

use super::*;

pub(super) const LONG: Duration = Duration::from_secs(60);

/// One life of a broker.
struct Life {
    broker: Broker,
    agent: Agent,
    following: Following,
}

impl Life {
    fn start(path: &Path, boot: u128) -> Life {
        let runtime = runtime();
        let dir = DataDir::open(OsDisk, path, Limits::default()).unwrap();
        let (replicas, report) = Replicas::open(&dir).unwrap();
        fence::settle_identities(&replicas, &report, boot).unwrap();
        let listener = Listener {
            name: "PLAINTEXT".to_owned(),
            protocol: "PLAINTEXT".to_owned(),
            host: "127.0.0.1".to_owned(),
            port: 9092,
        };
        let config = AgentConfig {
            directory: path.to_owned(),
            cluster_id: None,
            node: BrokerId(1),
            directory_id: Uuid::from_u128(5),
            boot_id: boot.to_string(),
            listeners: vec![listener],
            internal: None,
            rack: None,
            version: "0".to_owned(),
            lease_ms: 2000,
            copies: 0,
            doubts_settled: false,
            fences: std::collections::BTreeMap::new(),
        };
        let agent = runtime.block_on(Agent::start(OsDisk, config)).unwrap();
        let partitions = Partitions::start(setup(dir, replicas), &agent).unwrap();
        let _inside = runtime.enter();
        let following = follow(Arc::clone(&partitions), agent.clone(), Arc::default()).unwrap();
        drop(_inside);
        let broker = Broker { partitions, control: Arc::default(), runtime };
        Life { broker, agent, following }
    }

    fn create(&self, name: &str, partitions: i32, overrides: &[(&str, &str)]) -> TopicId {
        let new = NewTopic {
            name: name.to_owned(),
            partitions,
            replication_factor: 1,
            assignments: None,
            overrides: overrides.iter().map(|(key, value)| (key.to_string(), value.to_string())).collect(),
        };
        let mut created = self.broker.runtime.block_on(self.agent.create_topics(vec![new], false, LONG));
        created.pop().unwrap().unwrap().id
    }

    fn wait_for(&self, test: impl FnMut(&View) -> bool) {
        assert!(self.broker.runtime.block_on(self.agent.wait_for(LONG, test)));
    }

    /// Waits until every partition that this life is named to lead has opened.
    fn wait_open(&self) {
        let (node, session) = (self.agent.node(), self.agent.session());
        self.wait_for(|view| {
            view.partitions().all(|partition| partition.led_by(node, session).is_none() || partition.opened())
        });
    }

    fn get(&self, topic: TopicId, index: i32) -> PartitionHandle {
        let handle = self.broker.partitions.get(&PartitionId { topic, index }).unwrap();
        // The view may show the opening a moment before the lane hears of it.
        let wait = FetchWait::new(1);
        let _kept = handle.register(&wait, Isolation::ReadUncommitted).unwrap();
        self.broker.runtime.block_on(async {
            while !(handle.latest_known() && handle.stage() == Stage::Open) {
                wait.woken().await;
            }
        });
        handle
    }

    /// A clean stop, in the order of the server.
    fn stop(self) {
        self.following.stop(|| self.broker.partitions.stop());
        self.broker.runtime.block_on(self.agent.stop()).unwrap();
    }

    /// Ends as far as a process can end within another: nothing is written any more, nothing is closed.
    fn kill(self) {
        self.following.stop(|| {});
        for lane in &self.broker.partitions.lanes {
            lane.send(Message::Abandon);
        }
        self.broker.partitions.to_flush.close();
        self.broker.partitions.upkeep.stop();
        self.broker.partitions.scrub.stop();
        for thread in self.broker.partitions.threads.lock().drain(..) {
            thread.join().unwrap().unwrap();
        }
        let mut lost = self.agent.changed();
        drop(self.agent);
        // The control thread lets go of its file when the last agent is gone.
        let Broker { partitions, runtime, .. } = self.broker;
        drop(partitions);
        runtime.block_on(async { while lost.changed().await.is_ok() {} });
    }
}

#[test]
fn topics_come_serve_and_go() {
    let place = TempDir::new().unwrap();
    let life = Life::start(place.path(), 1);
    let orders = life.create("orders", 3, &[]);
    let other = life.create("other", 1, &[]);
    for index in 0..3 {
        let handle = life.get(orders, index);
        assert_eq!(handle.stage(), Stage::Open, "CreateTopics answers when the partitions have opened");
        assert_eq!(life.broker.append(&handle, append(batch(2), Acks::All)).unwrap().base_offset, 0);
    }
    assert_eq!(life.broker.partitions.count(), 4);
    let folder = life.broker.partitions.opener.dir.folder(&PartitionId { topic: orders, index: 1 });
    assert!(folder.exists());
    let handle = life.get(orders, 1);
    let gone = life.broker.runtime.block_on(life.agent.delete_topics(vec![TopicRef::Id(orders)]));
    assert!(gone[0].is_ok());
    let mut changes = life.broker.partitions.changes();
    life.broker.runtime.block_on(async {
        while life.broker.partitions.count() > 1 {
            changes.changed().await.unwrap();
        }
    });
    assert_eq!(life.broker.append(&handle, append(batch(1), Acks::All)), Err(AppendError::NotLeader));
    assert!(life.broker.append(&life.get(other, 0), append(batch(1), Acks::All)).is_ok());
    life.stop();
    assert!(!folder.exists(), "renamed away before the reconciler ended");
}

#[test]
fn settings_reach_live_partitions() {
    let place = TempDir::new().unwrap();
    let life = Life::start(place.path(), 1);
    let topic = life.create("t", 1, &[("flush.messages", "9223372036854775807")]);
    let handle = life.get(topic, 0);
    life.broker.append(&handle, append(batch(1), Acks::All)).unwrap();
    assert_eq!(handle.mark(), 1);
    let flushes = || life.broker.partitions.flushes().logs;
    let before = flushes();
    life.broker.append(&handle, append(batch(1), Acks::All)).unwrap();
    assert_eq!(flushes(), before, "the page cache is enough");
    let target = felix_cluster::overrides::ConfigTarget::Topic("t".to_owned());
    let edit = |_: &Overrides| Ok(Overrides::from([("flush.messages".to_owned(), "1".to_owned())]));
    life.broker.runtime.block_on(life.agent.alter_configs(target, false, edit)).unwrap();
    // The reconciler hands it on in its own time.
    for attempt in 0.. {
        assert!(attempt < 100_000, "the setting never arrived");
        life.broker.append(&handle, append(batch(1), Acks::All)).unwrap();
        if flushes() > before {
            break;
        }
    }
    life.stop();
}

#[test]
fn a_clean_stop_and_a_kill_lose_nothing_and_move_the_generation_on() {
    let place = TempDir::new().unwrap();
    let life = Life::start(place.path(), 1);
    let topic = life.create("t", 2, &[]);
    let first = life.get(topic, 0).generation();
    for index in 0..2 {
        life.broker.append(&life.get(topic, index), append(batch(5), Acks::All)).unwrap();
    }
    life.stop();

    let life = Life::start(place.path(), 1);
    life.wait_open();
    let handle = life.get(topic, 0);
    assert_eq!((handle.mark(), handle.log_end(), handle.latest_known()), (5, 5, true));
    assert!(handle.generation() > first);
    let second = handle.generation();
    life.broker.append(&handle, append(batch(1), Acks::All)).unwrap();
    drop(handle);
    life.kill();

    // The machine lost its power, too: everything that was acknowledged had been flushed.
    let life = Life::start(place.path(), 2);
    life.wait_open();
    let handle = life.get(topic, 0);
    assert_eq!((handle.mark(), handle.log_end()), (6, 6));
    assert!(handle.generation() > second);
    assert_eq!(life.get(topic, 1).mark(), 5);
    assert_eq!(life.broker.append(&handle, append(batch(1), Acks::All)).unwrap().base_offset, 6);
    drop(handle);
    life.stop();
}

#[test]
fn what_was_deleted_while_this_broker_was_away_leaves_its_disk() {
    let place = TempDir::new().unwrap();
    let life = Life::start(place.path(), 1);
    let topic = life.create("t", 1, &[]);
    let partition = PartitionId { topic, index: 0 };
    let folder = life.broker.partitions.opener.dir.folder(&partition);
    life.stop();
    // Another life, without partitions, deletes the topic.
    let life = Life::start(place.path(), 1);
    life.wait_open();
    life.broker.partitions.opener.replicas.get(&partition).unwrap();
    life.following.stop(|| {});
    let gone = life.broker.runtime.block_on(life.agent.delete_topics(vec![TopicRef::Id(topic)]));
    assert!(gone[0].is_ok());
    life.broker.partitions.stop();
    life.broker.runtime.block_on(life.agent.stop()).unwrap();
    assert!(folder.exists());
    drop(life.broker);

    let life = Life::start(place.path(), 1);
    life.create("next", 1, &[]);
    assert!(!folder.exists(), "cleaned up before anything was opened");
    // The upkeep has taken the row out when it answers this.
    life.following.stop(|| {});
    life.broker.partitions.stop();
    assert_eq!(life.broker.partitions.opener.replicas.get(&partition), None);
}

#[test]
fn unflushed_records_lost_with_the_power_cost_a_loss_event_not_the_partition() {
    let place = TempDir::new().unwrap();
    let life = Life::start(place.path(), 1);
    let topic = life.create("t", 1, &[("flush.messages", "9223372036854775807")]);
    life.broker.append(&life.get(topic, 0), append(batch(5), Acks::All)).unwrap();
    life.kill();
    // Another boot: the copy counted bytes that no flush covered, so it is in doubt, declines, and being the only
    // one is named again under its new identity.
    let life = Life::start(place.path(), 2);
    life.wait_for(|view| view.partitions().all(|partition| partition.opened()));
    let partition = PartitionId { topic, index: 0 };
    let view = life.agent.view();
    let state = &view.partition(&partition).unwrap().state;
    assert_eq!(state.unclean_at, Some(state.generation));
    let handle = life.get(topic, 0);
    assert!(life.broker.append(&handle, append(batch(1), Acks::All)).is_ok());
    drop(handle);
    life.stop();
}
