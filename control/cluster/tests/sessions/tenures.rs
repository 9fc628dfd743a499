//! Partitions in the simulated world: who leads, who is asked to go, and who believes that it may write.
//!
//! Each process runs a controller, opens what it is given, and resigns what it is asked for; copies are level at once. What it
//! wants written goes out as everything else does: late, lost, or without an answer. After every event at most one process
//! believes that it may write to a partition (I5).

use std::collections::BTreeMap;

use felix_cluster::controller::Controller;
use felix_cluster::decision::Decision;
use felix_cluster::eligible::{self, Report, Tenure};
use felix_cluster::keys::Key;
use felix_cluster::moves;
use felix_cluster::promotion::StandingsOf;
use felix_cluster::registration;
use felix_cluster::revoke::{Revocation, RevokeSet};
use felix_cluster::state::{Cluster, NodeState, Pair, Partition, Resigned, Topic, TopicName, encode};
use felix_cluster::view::{Changes, PartitionView};
use felix_protocol::ids::{BrokerId, Generation, LogId, PartitionId, SessionId, TopicId, Uuid};

use super::{Happens, Life, Process, Request, World};

/// Decisions that a controller sends off at a time.
const AT_ONCE: usize = 8;

/// What one process knows of its tenures.
#[derive(Default)]
pub struct Tenures {
    controller: Controller,
    /// The newest set that came with a beat, and its number.
    asked: RevokeSet,
    pub handed: u64,
    /// Those under which writes are acknowledged.
    leads: BTreeMap<PartitionId, Generation>,
    given_up: BTreeMap<PartitionId, Generation>,
}

/// The one copy that each broker has.
fn own(broker: BrokerId) -> Pair {
    Pair { broker, log: LogId(Uuid::from_u128(broker.0.unsigned_abs().into())) }
}

fn session(process: &Process) -> Option<SessionId> {
    match &process.life {
        Life::Beating(heartbeat) => Some(heartbeat.session()),
        Life::Entering { .. } | Life::Dead => None,
    }
}

impl World {
    /// A topic with so many partitions, on every node in turn.
    pub fn create_topic(&mut self, partitions: i32) {
        let (id, nodes) = (TopicId(Uuid::from_u128(9)), self.setup.nodes);
        let topic = Topic {
            name: "t".to_owned(),
            partitions,
            replication_factor: 3,
            overrides: BTreeMap::new(),
            assignments: BTreeMap::new(),
        };
        let name = TopicName { name: "t".to_owned(), topic: id };
        self.put(Key::Cluster, encode(&Cluster::founded("c", self.setup.lease_ms)));
        self.put(Key::Topic(id), encode(&topic));
        self.put(Key::TopicName("t".to_owned()), encode(&name));
        for index in 0..partitions {
            let replicas = (0..nodes).map(|at| BrokerId(1 + (index + at) % nodes)).collect();
            self.put(Key::Partition(PartitionId { topic: id, index }), encode(&Partition::placed(replicas)));
        }
    }

    /// A node that drains at some time, and later does not any more: leaders go, and may come back.
    pub fn drain_somewhen(&mut self) {
        let (at, id) = (self.somewhen(), BrokerId(1 + self.dice.roll(self.setup.nodes as u64) as i32));
        let until = at + self.length() + self.dice.roll(4 * self.length());
        self.happens(at, Happens::Turns { id, to: NodeState::Draining });
        self.happens(until, Happens::Turns { id, to: NodeState::Live });
    }

    /// The same after so many L, for long enough that its leaders are gone.
    pub fn drain(&mut self, id: i32, after: u64) {
        let (at, id) = (after * self.length(), BrokerId(id));
        self.happens(at, Happens::Turns { id, to: NodeState::Draining });
        self.happens(at + 4 * self.length(), Happens::Turns { id, to: NodeState::Live });
    }

    /// How many partitions have a leader that opened.
    pub fn led(&self) -> usize {
        let found = self.store.iter().filter(|(key, _)| matches!(Key::parse(key), Some(Key::Partition(_))));
        let open = |value: &[u8]| felix_cluster::state::decode::<Partition>("p", value).unwrap().opened();
        found.filter(|(_, (_, value))| open(value)).count()
    }

    pub(super) fn turn(&mut self, id: BrokerId, to: NodeState) {
        for who in 0..self.processes.len() {
            let process = &self.processes[who];
            let Some(session) = session(process).filter(|_| process.id == id) else { continue };
            if let Some(decision) = registration::set_state(&process.view, id, session, to) {
                self.ask(who, decision);
            }
        }
    }

    fn ask(&mut self, who: usize, decision: Decision) {
        self.send(who, Request::Decide(decision), self.terms.answer_within());
    }

    /// The view has changed, or time has passed.
    pub(super) fn lead(&mut self, who: usize, changes: Option<&Changes>) {
        let now = self.processes[who].clock.now(self.now);
        let mut wanted = Vec::new();
        let process = &mut self.processes[who];
        let Process { tenures, view, .. } = process;
        match changes {
            Some(changes) => tenures.controller.note(changes, view),
            None => {
                tenures.controller.tick(view, now);
                wanted.extend(tenures.controller.decide(view, &StandingsOf::new(), AT_ONCE));
            }
        }
        match session(process) {
            Some(session) => wanted.extend(process.follow_tenures(session)),
            None => process.tenures.leads.clear(),
        }
        for decision in wanted {
            self.ask(who, decision);
        }
        self.check_leaders();
    }

    /// A decision did not land, or nobody knows.
    pub(super) fn decide_anew(&mut self, who: usize) {
        let Process { tenures, view, .. } = &mut self.processes[who];
        tenures.controller.note_all(view);
    }

    /// Something came with a beat that is to be given up.
    pub(super) fn give_up(&mut self, who: usize, number: u64, set: RevokeSet) {
        let tenures = &mut self.processes[who].tenures;
        tenures.asked = set;
        self.lead(who, None);
        self.processes[who].tenures.handed = number;
    }

    /// I5.
    pub(super) fn check_leaders(&mut self) {
        let now = self.now;
        let mut writers: BTreeMap<PartitionId, BrokerId> = BTreeMap::new();
        for process in self.processes.iter_mut().filter(|process| process.paused_until <= now) {
            if session(process).is_none() || process.clock.now(now) >= process.until {
                continue;
            }
            for id in process.tenures.leads.keys() {
                let other = writers.insert(*id, process.id);
                assert!(other.is_none(), "I5: brokers {other:?} and {} both write to {id}", process.id);
                self.written += 1;
            }
        }
    }
}

impl Process {
    /// Takes up and gives up what the view and the newest beat say; returns what is to be written about it.
    fn follow_tenures(&mut self, session: SessionId) -> Vec<Decision> {
        let Process { id: node, tenures, view, .. } = self;
        let mut wanted = Vec::new();
        let of_view = view.revocations(*node).map(|at| &at.value);
        for asked in of_view.into_iter().chain([&tenures.asked]).flat_map(RevokeSet::iter) {
            let newest = tenures.given_up.entry(asked.partition).or_insert(asked.generation);
            *newest = asked.generation.max(*newest);
        }
        let mut named = BTreeMap::new();
        for partition in view.partitions() {
            let Some(generation) = partition.led_by(*node, session) else { continue };
            let tenure = Revocation { partition: partition.id, generation };
            let is_asked = tenures.given_up.get(&tenure.partition) == Some(&generation);
            // Before it has opened it acknowledges nothing, and may be replaced by compare alone.
            if !is_asked && partition.opened() {
                named.insert(partition.id, generation);
            }
            let report = if !partition.opened() {
                (!is_asked).then(|| Report::Opened(own(*node).log))
            } else if is_asked {
                let pairs = partition.state.eligible.clone();
                Some(Report::Resigned(Resigned { end: 1, pairs }))
            } else {
                level(view, *node, partition)
            };
            let from = Tenure { broker: *node, session, generation };
            let learned = view.learned(&partition.id).unwrap();
            let decided = report.map(|report| eligible::decide(partition, learned, &from, &report).unwrap());
            wanted.extend(decided.flatten());
        }
        tenures.leads = named;
        wanted.extend(moves::tidy(view, *node));
        wanted
    }
}

/// All replicas on nodes that live and stay, where that is not what is known.
fn level(view: &felix_cluster::view::View, node: BrokerId, partition: &PartitionView) -> Option<Report> {
    let stays = |id: &&BrokerId| {
        **id != node && view.broker(**id).is_some_and(|found| found.node.state == NodeState::Live)
    };
    let pairs = partition.state.replicas.iter().filter(stays).map(|id| own(*id)).collect();
    let is_so = pairs == partition.state.eligible;
    (!is_so).then(|| Report::Eligible { pairs, dead: partition.state.eligible.clone(), need: 1 })
}
