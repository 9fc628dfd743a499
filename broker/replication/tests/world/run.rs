//! The histories: dice, the executors of all actions, and what happens to a cluster.

use std::collections::{BTreeMap, BTreeSet, VecDeque};

use felix_protocol::ids::{BrokerId, Generation, Offset};
use felix_protocol::time::MonoTime;
use felix_replication::cursor::{self, Cursor, Limits, LogFacts};
use felix_replication::eligible::{Last, Pair, Revision};
use felix_replication::event::{Event, Nodes, ReportAnswer};
use felix_replication::follower;
use felix_replication::leader::{Leader, Tenure};
use felix_replication::rules::Rules;
use felix_replication::waiters::{Ticket, Word};

#[path = "carry.rs"]
mod carry;
#[path = "heal.rs"]
mod heal;

use super::check::{self, Oath};
use super::disk::Disk;
use super::node::{Leading, Node, Packet, Role};
use super::store::{Named, Request, Store};

const NEED: usize = 2;
const LIMITS: Limits = Limits { frames: 3, bytes: 6, frame_bytes: 3 };

/// What happened in a history, so that one in which nothing did is noticed.
#[derive(Clone, Copy, Debug, Default)]
pub struct Figures {
    pub acknowledged: u64,
    pub tenures: u64,
    pub cuts: u64,
    pub restarts: u64,
    pub wiped: u64,
    pub grown: u64,
    pub resigned: u64,
    pub cut_off: u64,
}

impl Figures {
    pub fn add(&mut self, other: &Figures) {
        self.acknowledged += other.acknowledged;
        self.tenures += other.tenures;
        self.cuts += other.cuts;
        self.restarts += other.restarts;
        self.wiped += other.wiped;
        self.grown += other.grown;
        self.resigned += other.resigned;
        self.cut_off += other.cut_off;
    }
}

/// SplitMix64.
struct Dice(u64);

impl Dice {
    fn roll(&mut self, sides: usize) -> usize {
        self.0 = self.0.wrapping_add(0x9e37_79b9_7f4a_7c15);
        let mut mixed = self.0;
        mixed = (mixed ^ (mixed >> 30)).wrapping_mul(0xbf58_476d_1ce4_e5b9);
        mixed = (mixed ^ (mixed >> 27)).wrapping_mul(0x94d0_49bb_1331_11eb);
        usize::try_from((mixed ^ (mixed >> 31)) % sides as u64).unwrap()
    }

    fn one_in(&mut self, sides: usize) -> bool {
        self.roll(sides) == 0
    }
}

enum Todo {
    Leader(BrokerId, Event),
    Cursor(BrokerId, BrokerId, cursor::Event),
    Follower(BrokerId, follower::Event),
}

pub struct World<R: Rules> {
    dice: Dice,
    now: MonoTime,
    store: Store,
    nodes: BTreeMap<BrokerId, Node<R>>,
    packets: Vec<Packet>,
    /// The connection from a leader to a follower.
    connections: BTreeMap<(BrokerId, BrokerId), u64>,
    next_id: u64,
    todo: VecDeque<Todo>,
    oath: Oath,
    healing: bool,
    /// Something happened that may have changed a log.
    logs_changed: bool,
    /// Hears of what the store says only now and then.
    deaf: BrokerId,
    theme: u64,
    /// On its way over connections that are gone: it comes late, if ever.
    late: Vec<Packet>,
    /// Between these nothing gets through.
    cut_links: BTreeSet<(BrokerId, BrokerId)>,
    pub figures: Figures,
    broken: Option<String>,
}

impl<R: Rules> World<R> {
    pub fn new(seed: u64) -> World<R> {
        let brokers: Vec<BrokerId> = (1..=3).map(BrokerId).collect();
        let mut world = World {
            dice: Dice(seed.wrapping_mul(0x2545_f491_4f6c_dd1d)),
            now: MonoTime(1_000_000_000),
            store: Store::new(&brokers, NEED),
            nodes: BTreeMap::new(),
            packets: Vec::new(),
            connections: BTreeMap::new(),
            next_id: 1,
            todo: VecDeque::new(),
            oath: Oath::default(),
            healing: false,
            logs_changed: true,
            deaf: BrokerId(i32::try_from(seed / 4 % 4).unwrap()),
            theme: seed % 4,
            late: Vec::new(),
            cut_links: BTreeSet::new(),
            figures: Figures::default(),
            broken: None,
        };
        for broker in brokers {
            let disk = Disk::new(u128::from(world.fresh()), 0, Generation::ZERO);
            world.nodes.insert(broker, Node { disk, session: 0, role: Role::Down });
        }
        for broker in (1..=3).map(BrokerId) {
            world.start(broker);
        }
        world
    }

    fn fresh(&mut self) -> u64 {
        self.next_id += 1;
        self.next_id
    }

    fn any_node(&mut self) -> BrokerId {
        BrokerId(i32::try_from(self.dice.roll(3)).unwrap() + 1)
    }

    fn node(&mut self, id: BrokerId) -> &mut Node<R> {
        self.nodes.get_mut(&id).unwrap()
    }

    /// One thing happens, and everything that follows from it at once.
    pub fn step(&mut self) -> Result<(), String> {
        let id = self.any_node();
        let chance = self.dice.roll(1000);
        // Records appear and go only by these.
        self.logs_changed = matches!(chance, 380..470 | 570..740 | 951..957 | 984..);
        match chance {
            0..380 => self.deliver(),
            380..470 => self.append(id),
            470..570 => self.flush(id),
            570..740 => self.disk_work(id),
            740..830 => self.store_work()?,
            830..890 if id != self.deaf || self.dice.one_in(20) => self.learn(id)?,
            890..940 => self.tick(),
            940..948 => {
                let choice = self.dice.roll(3);
                self.store.promote(choice);
            }
            948..951 => self.fence(id),
            951..957 if id != self.deaf => self.crash(id),
            957..970 => self.start(id),
            970..976 => self.reset(id),
            976..984 => self.node(id).disk.persist_mark(),
            984..989 => self.retain(id),
            989..992 => self.compact(id),
            992..995 => self.toggle_link(id),
            // An operator changes another setting of the partition.
            995 => self.store.key.revision += 1,
            996 if self.dice.one_in(3) => self.store.give_back(),
            996 | 997 => self.ask_to_leave(id),
            998 if self.figures.wiped == 0 => self.wipe(id),
            _ => {}
        }
        self.settle()?;
        self.more_of_it();
        self.settle()
    }

    /// Each history has something that happens more often in it.
    fn more_of_it(&mut self) {
        if !self.dice.one_in(if self.theme == 2 { 15 } else { 40 }) {
            return;
        }
        let id = self.any_node();
        self.logs_changed = true;
        match (self.theme, self.dice.roll(4)) {
            (1, 0) => self.retain(id),
            (1, _) => self.reset(id),
            (2, 0) if id != self.deaf => self.crash(id),
            (2, 1) if self.nodes.contains_key(&self.deaf) => self.fence(self.deaf),
            (2, _) => self.start(id),
            (3, 0) => self.fence(id),
            (3, _) => {
                let choice = self.dice.roll(3);
                self.store.promote(choice);
            }
            _ => {}
        }
    }

    /// Carries out what follows from what happened, and checks the promises.
    fn settle(&mut self) -> Result<(), String> {
        while let Some(todo) = self.todo.pop_front() {
            match todo {
                Todo::Leader(id, event) => self.leader_step(id, event),
                Todo::Cursor(leader, follower, event) => self.cursor_step(leader, follower, event),
                Todo::Follower(id, event) => self.follower_step(id, event),
            }
        }
        if let Some(broken) = self.broken.take() {
            return Err(broken);
        }
        check::promotable(&self.oath, &self.store, &self.nodes)?;
        if self.logs_changed { check::logs(&self.oath, &self.nodes) } else { Ok(()) }
    }

    // ---- what happens

    fn append(&mut self, id: BrokerId) {
        let (now, serial) = (self.now, self.fresh());
        let node = self.nodes.get_mut(&id).unwrap();
        let Role::Leading(leading) = &mut node.role else { return };
        if leading.leader.admits(Some(Word::Mark), now).is_err() {
            return;
        }
        let serial = u32::try_from(serial).unwrap();
        let (offset, value) = (node.disk.end, (leading.leader.generation(), serial));
        node.disk.append(offset, value);
        leading.waiting.insert(serial, (offset, value));
        let deadline = now.after(std::time::Duration::from_secs(60));
        self.todo.push_back(Todo::Leader(id, Event::Appended { end: offset + 1 }));
        // Some ask for the leader's own word.
        let word = if serial % 4 == 0 { Word::Stored } else { Word::Mark };
        let wait = Event::Wait { ticket: Ticket(serial), word, end: offset + 1, deadline };
        self.todo.push_back(Todo::Leader(id, wait));
        self.log_moved(id);
    }

    fn flush(&mut self, id: BrokerId) {
        let node = self.node(id);
        node.disk.flush();
        let end = node.disk.synced;
        match node.role {
            Role::Down => {}
            Role::Leading(_) => self.todo.push_back(Todo::Leader(id, Event::Stored { end })),
            Role::Following(_) => self.todo.push_back(Todo::Follower(id, follower::Event::Stored { end })),
        }
    }

    fn tick(&mut self) {
        let millis = [5, 20, 60, 300, 1200][self.dice.roll(5)];
        self.now = self.now.after(std::time::Duration::from_millis(millis));
        for id in (1..=3).map(BrokerId) {
            let Role::Leading(leading) = &self.nodes[&id].role else { continue };
            let followers: Vec<BrokerId> = leading.cursors.keys().copied().collect();
            self.todo.push_back(Todo::Leader(id, Event::Tick));
            for follower in followers {
                self.todo.push_back(Todo::Cursor(id, follower, cursor::Event::Tick));
            }
        }
    }

    fn fence(&mut self, id: BrokerId) {
        self.store.sessions.insert(id, 0);
        self.tell_nodes();
        if id == self.deaf && self.nodes[&id].leads_at().is_some() {
            // It leads on for one of its followers, while the other leads or is cut off.
            let others: Vec<BrokerId> = (1..=3).map(BrokerId).filter(|other| *other != id).collect();
            let kept = others[self.dice.roll(2)];
            for other in others.into_iter().filter(|other| *other != kept) {
                if !self.cut_links.contains(&(id.min(other), id.max(other))) {
                    self.toggle(id, other);
                }
            }
        }
    }

    /// A planned move, or a broker that is about to stop.
    fn ask_to_leave(&mut self, id: BrokerId) {
        let until = self.now.after(std::time::Duration::from_millis(400));
        let anyway = self.dice.one_in(2);
        self.todo.push_back(Todo::Leader(id, Event::Leave { until, anyway }));
    }

    fn tell_nodes(&mut self) {
        let fenced: BTreeSet<BrokerId> =
            self.store.sessions.iter().filter(|(_, session)| **session == 0).map(|(id, _)| *id).collect();
        for id in (1..=3).map(BrokerId) {
            // In some histories leaders notice that nobody answers; in the others they go on.
            let live = self.store.sessions.keys().filter(|id| self.theme == 0 && !fenced.contains(id));
            let beating = live.copied().collect();
            let nodes = Nodes { fenced: fenced.clone(), beating, ..Nodes::default() };
            self.todo.push_back(Todo::Leader(id, Event::Nodes(nodes)));
        }
    }

    fn crash(&mut self, id: BrokerId) {
        let keep = self.dice.roll(4);
        let node = self.node(id);
        if node.is_down() {
            return;
        }
        let disk = &mut node.disk;
        let lost = disk.synced + Offset::try_from(keep).unwrap();
        disk.crash((keep < 3).then_some(lost));
        node.role = Role::Down;
        self.disconnect_all(id);
    }

    fn wipe(&mut self, id: BrokerId) {
        self.crash(id);
        let log = u128::from(self.fresh());
        self.node(id).disk = Disk::new(log, 0, Generation::ZERO);
        self.figures.wiped += 1;
    }

    /// The process begins, under a new session: the predecessor is dead at once.
    fn start(&mut self, id: BrokerId) {
        let session = self.fresh();
        let fenced = self.store.sessions[&id] == 0;
        let deaf = id == self.deaf && !self.dice.one_in(20);
        let node = self.node(id);
        if !node.is_down() {
            if fenced && !deaf {
                // Alive and fenced: it registers another session and drops its tenures.
                node.session = session;
                if node.leads_at().is_some() {
                    node.disk.flush();
                    node.follow();
                }
                self.store.sessions.insert(id, session);
                self.tell_nodes();
            }
            return;
        }
        node.session = session;
        node.follow();
        self.store.sessions.insert(id, session);
        self.tell_nodes();
        if !R::C6_ONE_SESSION {
            self.take_up(id);
        }
        for other in (1..=3).map(BrokerId).filter(|other| *other != id) {
            self.connect(other, id);
            self.connect(id, other);
        }
    }

    /// The mistake that C6 forbids: a new process goes on with the generation of the one before.
    fn take_up(&mut self, id: BrokerId) {
        let session = self.nodes[&id].session;
        let own = Pair { broker: id, log: self.nodes[&id].disk.log };
        let same = self.store.last_pair() == Some(own) && self.store.opened();
        let Some(named) = self.store.key.named.as_mut().filter(|named| same && named.broker == id) else {
            return;
        };
        named.session = session;
        self.store.key.revision += 1;
        let state = self.store.state();
        self.lead(id, state.generation);
        self.todo.push_back(Todo::Leader(id, Event::KeyRead { key: Some(state) }));
    }

    /// The network between two nodes breaks, or is mended.
    fn toggle_link(&mut self, id: BrokerId) {
        let other = self.any_node();
        if id != other {
            self.toggle(id, other);
        }
    }

    fn toggle(&mut self, id: BrokerId, other: BrokerId) {
        let link = (id.min(other), id.max(other));
        if self.cut_links.remove(&link) {
            self.connect(id, other);
            self.connect(other, id);
            return;
        }
        self.cut_links.insert(link);
        for (leader, follower) in [(id, other), (other, id)] {
            if self.connections.remove(&(leader, follower)).is_some() {
                self.todo.push_back(Todo::Cursor(leader, follower, cursor::Event::Disconnected));
            }
        }
    }

    fn connect(&mut self, leader: BrokerId, follower: BrokerId) {
        if self.cut_links.contains(&(leader.min(follower), leader.max(follower))) {
            return;
        }
        if self.nodes[&leader].is_down() || self.nodes[&follower].is_down() {
            return;
        }
        let connection = self.fresh();
        self.connections.insert((leader, follower), connection);
        self.todo.push_back(Todo::Cursor(leader, follower, cursor::Event::Connected));
    }

    /// The connection breaks: what is on its way to the leader is lost, what is on its way to the follower may arrive, now or
    /// later. Another follows.
    fn reset(&mut self, id: BrokerId) {
        let other = self.any_node();
        let Some(broken) = self.connections.remove(&(id, other)) else { return };
        self.todo.push_back(Todo::Cursor(id, other, cursor::Event::Disconnected));
        let kept = self.dice.roll(3);
        let (lost, packets) =
            std::mem::take(&mut self.packets).into_iter().partition(|packet| packet.connection == broken);
        self.packets = packets;
        if kept > 0 {
            self.late.extend::<Vec<Packet>>(lost);
        }
        self.connect(id, other);
    }

    fn disconnect_all(&mut self, id: BrokerId) {
        for other in (1..=3).map(BrokerId) {
            self.connections.remove(&(other, id));
            self.connections.remove(&(id, other));
            self.todo.push_back(Todo::Cursor(other, id, cursor::Event::Disconnected));
        }
        self.packets.retain(|packet| packet.to != id);
    }

    fn retain(&mut self, id: BrokerId) {
        let node = self.node(id);
        let start = node.disk.known_mark.0.min(node.disk.synced);
        let half = node.disk.start + (start - node.disk.start) / 2;
        if node.is_down() || half <= node.disk.start {
            return;
        }
        node.disk.advance_start(half);
        let event = follower::Event::Started { start: half };
        self.todo.push_back(Todo::Follower(id, event));
        self.log_moved(id);
    }

    fn compact(&mut self, id: BrokerId) {
        let choice = self.dice.roll(100);
        let disk = &mut self.node(id).disk;
        let below = disk.known_mark.0.min(disk.synced).min(disk.end - 1);
        let able: Vec<Offset> = disk.records.range(..below).map(|(offset, _)| *offset).collect();
        if let Some(offset) = able.get(choice % able.len().max(1)).copied() {
            disk.records.remove(&offset);
            self.oath.compacted.insert(offset);
        }
    }

    // ---- the control store

    fn store_work(&mut self) -> Result<(), String> {
        if self.store.requests.is_empty() {
            return Ok(());
        }
        let at = self.dice.roll(self.store.requests.len());
        let fate = if self.healing { 9 } else { self.dice.roll(10) };
        if fate < 2 {
            // No answer, and it may land yet.
            let request = self.store.requests[at].clone();
            self.answer_report(&request, ReportAnswer::Unknown);
            return Ok(());
        }
        let request = self.store.requests.swap_remove(at);
        if fate == 2 {
            self.answer_report(&request, ReportAnswer::Unknown);
            return Ok(());
        }
        let landed = self.store.apply::<R>(&request)?;
        let answer = if fate == 3 {
            ReportAnswer::Unknown
        } else if landed {
            ReportAnswer::Landed(Revision(self.store.key.revision))
        } else {
            ReportAnswer::Refused(self.store.state())
        };
        self.answer_report(&request, answer);
        Ok(())
    }

    fn answer_report(&mut self, request: &Request, answer: ReportAnswer) {
        let Request { node, generation, report, .. } = request;
        if self.nodes[node].leads_at() == Some(*generation) {
            let number = report.number;
            self.todo.push_back(Todo::Leader(*node, Event::ReportAnswered { number, answer }));
        }
    }

    /// The node hears what the store says.
    fn learn(&mut self, id: BrokerId) -> Result<(), String> {
        let (key, session) = (self.store.key.clone(), self.nodes[&id].session);
        let named = key.named.filter(|named| named.broker == id && named.session == session);
        let node = self.node(id);
        if let Some(at) = node.leads_at()
            && (key.generation > at || key.named.is_none())
        {
            node.disk.flush();
            node.follow();
        }
        let Some(Named { log, .. }) = named else { return Ok(()) };
        if node.is_down() || node.leads_at() == Some(key.generation) || self.store.opened() {
            return Ok(());
        }
        let node = self.node(id);
        let busy = matches!(&node.role, Role::Following(following) if following.follower.is_busy());
        if busy || node.disk.volatile_fence > key.generation {
            return Ok(());
        }
        if R::C11_CANDIDATE_DECIDES && log.is_some_and(|log| log != node.disk.log) {
            self.store.decline(id, key.generation);
            return Ok(());
        }
        self.lead(id, key.generation);
        Ok(())
    }

    fn lead(&mut self, id: BrokerId, generation: Generation) {
        let mut state = self.store.state();
        let now = self.now;
        if !R::C6_ONE_SESSION && self.store.opened() {
            state.revision = Revision(state.revision.0 - 1);
            state.last = Last::Declined;
        }
        let node = self.nodes.get_mut(&id).unwrap();
        let disk = &mut node.disk;
        disk.volatile_fence = generation;
        if R::C7_FENCES_DURABLY {
            disk.fence = generation;
        }
        disk.flush();
        let own = Pair { broker: id, log: disk.log };
        let (mark, end, stored) = (disk.known_mark.0, disk.end, disk.synced);
        let tenure = Tenure { generation, own, key: state, mark, end, stored, need: NEED };
        let (leader, actions) = Leader::<R>::open(tenure);
        let facts = LogFacts { base: disk.start, end, mark };
        let others = (1..=3).map(BrokerId).filter(|other| *other != id);
        let cursors = others.map(|other| (other, Cursor::new(other, generation, facts, LIMITS))).collect();
        let waiting = BTreeMap::new();
        node.role = Role::Leading(Box::new(Leading { leader, cursors, waiting, begins: end, mark }));
        self.figures.tenures += 1;
        self.leader_actions(id, actions);
        for other in (1..=3).map(BrokerId) {
            if self.connections.contains_key(&(id, other)) {
                self.todo.push_back(Todo::Cursor(id, other, cursor::Event::Connected));
            }
        }
        let _ = now;
        self.tell_nodes();
    }
}
