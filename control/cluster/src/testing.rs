//! A store in a map, for tests: decisions land or lose exactly as in the real ones.

use std::collections::BTreeMap;

use felix_protocol::ids::{BrokerId, Generation, LogId, PartitionId, SessionId, TopicId, Uuid};
use felix_protocol::time::MonoTime;

use crate::controller::Controller;
use crate::decision::{Change, Compare, Decision, Write};
use crate::eligible::{self, Report, Tenure, Unlawful};
use crate::heartbeat;
use crate::invariants::{check_partition, check_step};
use crate::keys::Key;
use crate::moves;
use crate::promotion::StandingsOf;
use crate::registration::{self, Past};
use crate::state::{Beat, Node, NodeState, Pair, Partition, Resigned, Revision, decode};
use crate::topics::{self, CreateRefused, CreatedTopic, NewTopic};
use crate::view::View;

/// Brokers by number.
pub(crate) fn brokers(ids: &[i32]) -> Vec<BrokerId> {
    ids.iter().copied().map(BrokerId).collect()
}

/// A log id by number.
pub(crate) fn log(number: u128) -> LogId {
    LogId(Uuid::from_u128(number))
}

/// A copy by numbers.
pub(crate) fn pair(broker: i32, number: u128) -> Pair {
    Pair { broker: BrokerId(broker), log: log(number) }
}

/// A generation by number.
pub(crate) fn generation(number: u32) -> Generation {
    Generation::new(number).unwrap()
}

/// A reassignment that completes leaves as many copies as an acknowledgement needs, by the majority: no test here sets
/// anything else.
fn check_quorum(before: &Partition, after: &Partition) {
    let dropped = before.eligible.iter().any(|pair| !after.replicas.contains(&pair.broker));
    let need = (after.replicas.len() - after.adding.len()) / 2 + 1;
    assert!(!dropped || after.eligible.len() + 1 >= need, "{before:?} became {after:?}");
}

/// A store, a view that follows it, and a controller.
#[derive(Clone, Default)]
pub(crate) struct World {
    stored: BTreeMap<String, (Revision, Vec<u8>)>,
    revision: Revision,
    pub(crate) view: View,
    pub(crate) controller: Controller,
    sessions: u64,
}

impl World {
    /// A cluster whose nodes 1 to `count` are registered.
    pub(crate) fn with_brokers(count: i32) -> World {
        let mut world = World::default();
        for decision in registration::found(&world.view, "cluster", 2000) {
            assert!(world.commit(&decision));
        }
        for id in 1..=count {
            world.register(id);
        }
        world
    }

    /// Registers a node under a new session, its predecessor being dead.
    pub(crate) fn register(&mut self, id: i32) {
        self.sessions += 1;
        let node = Node {
            session: SessionId(self.sessions),
            state: NodeState::Live,
            directory: Uuid::nil(),
            suspect: false,
            boot: "boot".to_owned(),
            listeners: Vec::new(),
            internal: None,
            rack: None,
            version: String::new(),
        };
        let known = self.view.broker(BrokerId(id)).map(|before| before.node.session);
        let past = Past { sessions: known.into_iter().collect(), ..Past::default() };
        let decision = registration::take_over(&self.view, BrokerId(id), &node, &past).unwrap();
        assert!(self.commit(&decision));
    }

    /// The node's session.
    pub(crate) fn session(&self, id: i32) -> SessionId {
        self.view.broker(BrokerId(id)).unwrap().node.session
    }

    /// When the node's newest beat was written.
    pub(crate) fn beat_revision(&self, id: i32) -> Revision {
        self.stored[&Key::Beat(BrokerId(id)).to_string()].0
    }

    /// The node beats once more.
    pub(crate) fn beat(&mut self, id: i32) {
        let (key, node) = (Key::Beat(BrokerId(id)).to_string(), self.view.broker(BrokerId(id)).unwrap());
        let mut beat: Beat = decode(&key, &self.stored[&key].1).unwrap();
        beat.counter += 1;
        let decision = heartbeat::decision(BrokerId(id), node.revision, &beat);
        assert!(self.commit(&decision));
    }

    fn set_state(&mut self, id: i32, state: NodeState) {
        let Some(session) = self.view.broker(BrokerId(id)).map(|node| node.node.session) else { return };
        if let Some(decision) = registration::set_state(&self.view, BrokerId(id), session, state) {
            assert!(self.commit(&decision));
        }
    }

    /// Ends a node's session.
    pub(crate) fn fence(&mut self, id: i32) {
        self.set_state(id, NodeState::Fenced);
    }

    /// Begins a node's planned stop.
    pub(crate) fn drain(&mut self, id: i32) {
        self.set_state(id, NodeState::Draining);
    }

    /// Commits as a store does; the view follows at once, and every step is checked.
    pub(crate) fn commit(&mut self, decision: &Decision) -> bool {
        let holds = decision.compares().iter().all(|compare| {
            let found = self.stored.get(&compare.key().to_string());
            match compare {
                Compare::Revision(_, wanted) => found.map_or(Revision::ABSENT, |(at, _)| *at) == *wanted,
                Compare::Value(_, wanted) => found.is_some_and(|(_, value)| value == wanted),
            }
        });
        if !holds {
            return false;
        }
        self.revision.0 += 1;
        let before = self.view.clone();
        for write in decision.writes() {
            let key = write.key().to_string();
            let value = match write {
                Write::Put(_, value) => {
                    self.stored.insert(key.clone(), (self.revision, value.clone()));
                    Some(value.clone())
                }
                Write::Delete(_) => {
                    self.stored.remove(&key);
                    None
                }
            };
            self.view.apply(&Change { key, value, revision: self.revision }).unwrap();
        }
        let changes = self.view.changes_since(&before);
        for id in &changes.partitions {
            let Some(after) = self.view.partition(id) else { continue };
            check_partition(&after.state).unwrap();
            if let Some(before) = before.partition(id) {
                check_step(&before.state, &after.state).unwrap();
                check_quorum(&before.state, &after.state);
            }
        }
        self.controller.note(&changes, &self.view);
        true
    }

    /// Time passes for the controller.
    pub(crate) fn tick(&mut self, now_ms: u64) {
        self.controller.tick(&self.view, MonoTime(now_ms * 1_000_000));
    }

    /// Whoever leads resigns: these hold all of its log.
    pub(crate) fn resign(&mut self, id: PartitionId, pairs: &[Pair]) -> Result<(), Unlawful> {
        let resigned = Resigned { end: 7, pairs: pairs.iter().copied().collect() };
        self.report(id, &Report::Resigned(resigned))
    }

    /// What a node does about what it is asked for: every leader resigns, naming all that are eligible and live, and what
    /// is over is taken off the set. Returns how many resigned.
    pub(crate) fn give_up(&mut self, node: i32) -> usize {
        let asked: Vec<PartitionId> = self
            .view
            .revocations(BrokerId(node))
            .into_iter()
            .flat_map(|set| set.value.iter().map(|tenure| tenure.partition))
            .collect();
        let mut count = 0;
        for id in asked {
            // Of a topic that was deleted meanwhile there is nothing to report.
            let Some(partition) = self.view.partition(&id).cloned() else { continue };
            if self.view.learned(&id).is_none() {
                continue;
            }
            if partition.leader_id() != Some(BrokerId(node)) || moves::asked(&self.view, &partition).is_none()
            {
                continue;
            }
            let live = |pair: &&Pair| self.view.broker(pair.broker).is_some_and(|node| !node.is_fenced());
            let pairs: Vec<Pair> = partition.state.eligible.iter().filter(live).copied().collect();
            self.resign(id, &pairs).unwrap();
            count += 1;
        }
        self.tidy(node);
        count
    }

    /// The node takes what is over off its set.
    pub(crate) fn tidy(&mut self, node: i32) {
        if let Some(decision) = moves::tidy(&self.view, BrokerId(node)) {
            assert!(self.commit(&decision));
        }
    }

    /// Lets the controller work until it is quiet; returns how many decisions landed.
    pub(crate) fn settle(&mut self) -> usize {
        let mut landed = 0;
        for _ in 0..1000 {
            let decisions = self.controller.decide(&self.view.clone(), &StandingsOf::new(), 7);
            if decisions.is_empty() && self.controller.is_quiet() {
                return landed;
            }
            for decision in decisions {
                landed += usize::from(self.commit(&decision));
            }
        }
        panic!("the controller never becomes quiet");
    }

    /// Creates a topic and lets the controller place it.
    pub(crate) fn create(&mut self, new: NewTopic) -> Result<CreatedTopic, CreateRefused> {
        let (decision, created) = topics::create(&self.view, TopicId::random(), &new)?;
        assert!(self.commit(&decision));
        self.settle();
        Ok(created)
    }

    /// One partition's state.
    pub(crate) fn state(&self, id: PartitionId) -> &Partition {
        &self.view.partition(&id).unwrap().state
    }

    /// Makes a report for whoever leads.
    pub(crate) fn report(&mut self, id: PartitionId, report: &Report) -> Result<(), Unlawful> {
        let partition = self.view.partition(&id).unwrap().clone();
        let leader = partition.leader().copied().ok_or(Unlawful::NotLeader)?;
        let from =
            Tenure { broker: leader.broker, session: leader.session, generation: partition.generation() };
        let learned = self.view.learned(&id).unwrap();
        if let Some(decision) = eligible::decide(&partition, learned, &from, report)? {
            assert!(self.commit(&decision));
        }
        self.settle();
        Ok(())
    }

    /// Everything that is stored, for comparing with a view.
    pub(crate) fn listed(&self) -> Vec<Change> {
        let entry = |(key, (revision, value)): (&String, &(Revision, Vec<u8>))| Change {
            key: key.clone(),
            value: Some(value.clone()),
            revision: *revision,
        };
        self.stored.iter().map(entry).collect()
    }
}
