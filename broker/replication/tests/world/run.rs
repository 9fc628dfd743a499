//! The histories: dice, the executors of all actions, and what happens to a cluster.

use std::collections::{BTreeMap, BTreeSet, VecDeque};

use felix_protocol::ids::{BrokerId, Generation, LogId, Offset, Uuid};
use felix_protocol::peer::ship::{Said, TenureHeader};
use felix_protocol::time::MonoTime;
use felix_replication::action::{Action, Vouch};
use felix_replication::cursor::{self, Cursor, FrameId, HeaderMap, Limits, LogFacts};
use felix_replication::eligible::{Last, Pair, Revision};
use felix_replication::event::{Event, Nodes, ReportAnswer};
use felix_replication::follower::{self, BatchFacts, Frame, Reply, Token};
use felix_replication::halted::HaltReason;
use felix_replication::leader::{Leader, Tenure};
use felix_replication::rules::Rules;
use felix_replication::waiters::{Ticket, Word};

use super::check::{self, Oath};
use super::disk::Disk;
use super::node::{Content, Leading, Node, Packet, Return, Role, Work};
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
}

impl Figures {
    pub fn add(&mut self, other: &Figures) {
        self.acknowledged += other.acknowledged;
        self.tenures += other.tenures;
        self.cuts += other.cuts;
        self.restarts += other.restarts;
        self.wiped += other.wiped;
        self.grown += other.grown;
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
        match self.dice.roll(1000) {
            0..380 => self.deliver(),
            380..470 => self.append(id),
            470..570 => self.flush(id),
            570..740 => self.disk_work(id),
            740..830 => self.store_work()?,
            830..890 => self.learn(id)?,
            890..940 => self.tick(),
            940..948 => {
                let choice = self.dice.roll(3);
                self.store.promote(choice);
            }
            948..951 => self.fence(id),
            951..957 => self.crash(id),
            957..970 => self.start(id),
            970..976 => self.reset(id),
            976..984 => self.node(id).disk.persist_mark(),
            984..989 => self.retain(id),
            989..998 => self.compact(id),
            998 if self.figures.wiped == 0 => self.wipe(id),
            _ => {}
        }
        self.settle()
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
        check::all(&self.oath, &self.store, &self.nodes)
    }

    // ---- what happens

    fn append(&mut self, id: BrokerId) {
        let (now, serial) = (self.now, self.fresh());
        let node = self.nodes.get_mut(&id).unwrap();
        let Role::Leading(leading) = &mut node.role else { return };
        if leading.leader.admits(Some(Word::Mark)).is_err() {
            return;
        }
        let serial = u32::try_from(serial).unwrap();
        let (offset, value) = (node.disk.end, (leading.leader.generation(), serial));
        node.disk.append(offset, value);
        leading.waiting.insert(serial, (offset, value));
        let deadline = now.after(std::time::Duration::from_secs(60));
        self.todo.push_back(Todo::Leader(id, Event::Appended { end: offset + 1 }));
        let wait = Event::Wait { ticket: Ticket(serial), word: Word::Mark, end: offset + 1, deadline };
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
    }

    fn tell_nodes(&mut self) {
        let fenced: BTreeSet<BrokerId> =
            self.store.sessions.iter().filter(|(_, session)| **session == 0).map(|(id, _)| *id).collect();
        for id in (1..=3).map(BrokerId) {
            let nodes = Nodes { fenced: fenced.clone(), ..Nodes::default() };
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
        let node = self.node(id);
        if !node.is_down() {
            if fenced {
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

    fn connect(&mut self, leader: BrokerId, follower: BrokerId) {
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
        if id == other || self.connections.remove(&(id, other)).is_none() {
            return;
        }
        self.todo.push_back(Todo::Cursor(id, other, cursor::Event::Disconnected));
        let kept = self.dice.roll(3);
        self.packets.retain(|packet| packet.from != id || packet.to != other || kept > 0);
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

    // ---- leaders

    fn leader_step(&mut self, id: BrokerId, event: Event) {
        let now = self.now;
        let Role::Leading(leading) = &mut self.node(id).role else { return };
        let actions = leading.leader.step(event, now);
        self.leader_actions(id, actions);
    }

    fn log_moved(&mut self, id: BrokerId) {
        let node = &self.nodes[&id];
        let Role::Leading(leading) = &node.role else { return };
        let facts = LogFacts { base: node.disk.start, end: node.disk.end, mark: leading.leader.mark() };
        for follower in leading.cursors.keys() {
            self.todo.push_back(Todo::Cursor(id, *follower, cursor::Event::Log(facts)));
        }
    }

    fn leader_actions(&mut self, id: BrokerId, actions: Vec<Action>) {
        for action in actions {
            let node = self.nodes.get_mut(&id).unwrap();
            let session = node.session;
            let Role::Leading(leading) = &mut node.role else { return };
            let generation = leading.leader.generation();
            match action {
                Action::Report(report) => {
                    self.store.requests.push(Request { node: id, session, generation, report });
                }
                Action::ReadKey => {
                    let key = (self.healing || !self.dice.one_in(4)).then(|| self.store.state());
                    self.todo.push_back(Todo::Leader(id, Event::KeyRead { key }));
                }
                Action::Opened => {
                    if let Err(broken) = self.oath.opened(id, &node.disk, generation) {
                        self.broken = Some(broken);
                    }
                }
                Action::Advance { mark } => {
                    if mark <= leading.mark {
                        self.broken =
                            Some(format!("I4: the mark of {id} moved from {} to {mark}", leading.mark));
                    }
                    if let Err(broken) = self.oath.commit(&node.disk, leading.mark, mark) {
                        self.broken = Some(broken);
                    }
                    leading.mark = mark;
                    node.disk.known_mark = (mark, generation);
                    self.log_moved(id);
                }
                Action::Release { tickets, vouch } => {
                    for ticket in tickets {
                        let Some((offset, value)) = leading.waiting.remove(&ticket.0) else { continue };
                        if vouch == Vouch::Mark {
                            self.oath.acknowledge(offset, value, generation);
                            self.figures.acknowledged += 1;
                        }
                    }
                }
                Action::Expire { tickets } | Action::Refuse { tickets } => {
                    for ticket in tickets {
                        leading.waiting.remove(&ticket.0);
                    }
                }
                Action::CutOff { .. } => {}
            }
        }
    }

    fn cursor_step(&mut self, leader: BrokerId, follower: BrokerId, event: cursor::Event) {
        let now = self.now;
        let Role::Leading(leading) = &mut self.node(leader).role else { return };
        let Some(cursor) = leading.cursors.get_mut(&follower) else { return };
        for action in cursor.step(event, now) {
            self.cursor_action(leader, follower, action);
        }
    }

    fn cursor_action(&mut self, leader: BrokerId, follower: BrokerId, action: cursor::Action) {
        match action {
            cursor::Action::Header { frame, map } => {
                let end = self.nodes[&leader].disk.end;
                self.ship(leader, follower, frame, None, Some(map), end, 0);
            }
            cursor::Action::Ship { frame, log, from, most } => {
                self.ship(leader, follower, frame, Some(log), None, from, most);
            }
            cursor::Action::Idle { frame, log } => {
                let end = self.nodes[&leader].disk.end;
                self.ship(leader, follower, frame, Some(log), None, end, 0);
            }
            cursor::Action::AskRestart { pair, rebuild: _ } => {
                let Role::Leading(leading) = &self.nodes[&leader].role else { return };
                if leading.leader.may_restart(&pair) {
                    let granted = cursor::Event::Granted { bytes_per_sec: 0 };
                    self.todo.push_back(Todo::Cursor(leader, follower, granted));
                }
            }
            cursor::Action::Restart { frame, log, rebuild } => {
                let generation = self.nodes[&leader].leads_at().unwrap();
                let base = self.nodes[&leader].disk.start;
                let token = Token(0);
                let restart = follower::Restart { token, generation, log, base, log_start: base, rebuild };
                self.send(leader, follower, frame, Work::Restart(restart));
            }
            cursor::Action::ReleaseSlot { .. } | cursor::Action::Resumed => {}
            cursor::Action::Heard => self.todo.push_back(Todo::Leader(leader, Event::Heard(follower))),
            cursor::Action::Confirmed { pair, position } => {
                self.todo.push_back(Todo::Leader(leader, Event::Confirmed { pair, position }));
            }
            cursor::Action::Dead(pair) => self.todo.push_back(Todo::Leader(leader, Event::Dead(pair))),
            cursor::Action::Halted { pair, .. } => {
                self.todo.push_back(Todo::Leader(leader, Event::Halted(pair)));
            }
            // It hears of it by the key, some time.
            cursor::Action::Superseded(_) => {}
        }
    }

    #[expect(clippy::too_many_arguments, reason = "a frame has as many parts")]
    fn ship(
        &mut self,
        leader: BrokerId,
        follower: BrokerId,
        frame: FrameId,
        log: Option<LogId>,
        header: Option<HeaderMap>,
        from: Offset,
        most: usize,
    ) {
        let node = &self.nodes[&leader];
        let Role::Leading(leading) = &node.role else { return };
        let disk = &node.disk;
        if from < disk.start {
            self.todo.push_back(Todo::Cursor(leader, follower, cursor::Event::Unreadable(frame)));
            return;
        }
        let records: Vec<_> =
            disk.records.range(from..).take(most).map(|(offset, value)| (*offset, *value)).collect();
        let next = records.last().map_or(if most > 0 { disk.end } else { from }, |(offset, _)| offset + 1);
        let header = header.map(|map| {
            let entries = match map {
                // Short ones, so that more has to be asked for.
                HeaderMap::Newest => disk.map.newest(2),
                HeaderMap::Since(oldest) => disk.map.since(oldest),
            };
            let shortened = entries.len() < disk.map.entries().len();
            let complete_from =
                entries.first().filter(|_| shortened).map_or(Generation::ZERO, |first| first.0);
            let (entries, base) = (entries.to_vec(), disk.start);
            TenureHeader { begins: leading.begins, base, entries, complete_from, unclean_at: None }
        });
        let batches = records.iter().map(|(offset, value)| BatchFacts {
            base: *offset,
            last: *offset,
            generation: value.0,
        });
        let part = Frame {
            token: Token(0),
            generation: leading.leader.generation(),
            log,
            header,
            mark: leading.leader.mark(),
            log_start: disk.start,
            log_end: disk.end,
            from,
            next,
            before: (from > disk.start).then(|| disk.map.generation_at(from - 1)).flatten(),
            batches: batches.collect(),
        };
        let bytes = records.len();
        self.send(leader, follower, frame, Work::Frame(part, records));
        if most > 0 {
            let sent = cursor::Event::Sent { frame, next, bytes };
            self.todo.push_back(Todo::Cursor(leader, follower, sent));
        }
    }

    // ---- the network

    fn send(&mut self, from: BrokerId, to: BrokerId, frame: FrameId, work: Work) {
        let Some(connection) = self.connections.get(&(from, to)).copied() else { return };
        let Some(generation) = self.nodes[&from].leads_at() else { return };
        let content = Content::Request { work, frame, generation };
        self.packets.push(Packet { from, to, connection, content });
    }

    fn deliver(&mut self) {
        if self.packets.is_empty() {
            return;
        }
        let chosen = self.dice.roll(self.packets.len());
        let of = |packet: &Packet| (packet.from, packet.to, packet.connection);
        let first = of(&self.packets[chosen]);
        let at = self.packets.iter().position(|packet| of(packet) == first).unwrap();
        let packet = self.packets.remove(at);
        let Packet { from, to, connection, content } = packet.clone();
        match content {
            Content::Answer { reply, frame, generation } => {
                let current = self.connections.get(&(to, from)) == Some(&connection);
                if current && self.nodes[&to].leads_at() == Some(generation) {
                    let event = cursor::Event::answer(frame, reply);
                    self.todo.push_back(Todo::Cursor(to, from, event));
                }
            }
            Content::Request { generation, frame, .. } => {
                let node = self.node(to);
                if let Some(at) = node.leads_at() {
                    if generation <= at {
                        let (log, end) = (node.disk.log, node.disk.synced);
                        let reply = Reply { generation: at, log, end, said: Said::Fenced };
                        let back = Return { to: from, connection, frame, generation };
                        self.reply(to, back, reply);
                        return;
                    }
                    node.disk.flush();
                    node.follow();
                }
                if let Role::Following(following) = &mut self.node(to).role {
                    following.queue.push_back(packet);
                    self.feed(to);
                }
            }
        }
    }

    fn reply(&mut self, from: BrokerId, back: Return, reply: Reply) {
        let Return { to, connection, frame, generation } = back;
        let content = Content::Answer { reply, frame, generation };
        self.packets.push(Packet { from, to, connection, content });
    }

    // ---- followers

    /// Gives the follower what came, while it has nothing else to do.
    fn feed(&mut self, id: BrokerId) {
        let Role::Following(following) = &mut self.node(id).role else { return };
        if following.follower.is_busy() || !following.pending.is_empty() {
            return;
        }
        let Some(packet) = following.queue.pop_front() else { return };
        let Content::Request { work, frame, generation } = packet.content else { return };
        following.next_token += 1;
        let token = Token(following.next_token);
        let back = Return { to: packet.from, connection: packet.connection, frame, generation };
        following.returns.insert(token.0, back);
        let event = match work {
            Work::Frame(frame, records) => {
                following.records.insert(token.0, records);
                follower::Event::Frame(Frame { token, ..frame })
            }
            Work::Restart(restart) => follower::Event::Restart(follower::Restart { token, ..restart }),
        };
        self.todo.push_back(Todo::Follower(id, event));
    }

    fn follower_step(&mut self, id: BrokerId, event: follower::Event) {
        let now = self.now;
        let node = self.nodes.get_mut(&id).unwrap();
        let Role::Following(following) = &mut node.role else { return };
        for action in following.follower.step(event, now) {
            match action {
                follower::Action::Accept(_)
                | follower::Action::Cut { .. }
                | follower::Action::Append { .. }
                | follower::Action::Discard { .. }
                | follower::Action::Renew => following.pending.push_back(action),
                follower::Action::AdoptMap(map) => node.disk.map = map,
                follower::Action::AdvanceMark { mark, generation } => {
                    let from = node.disk.known_mark.0;
                    node.disk.known_mark = (mark, generation);
                    if let Err(broken) = self.oath.commit(&node.disk, from, mark) {
                        self.broken = Some(broken);
                    }
                }
                follower::Action::AdvanceStart { start } => node.disk.advance_start(start),
                follower::Action::Halt(reason @ (HaltReason::Diverged | HaltReason::BelowMark)) => {
                    self.broken = Some(format!("broker {id} halts as {reason}, though nobody did wrong"));
                }
                follower::Action::Halt(_) | follower::Action::Resume => {}
                follower::Action::Answer { token, reply } => {
                    following.records.remove(&token.0);
                    if let Some(back) = following.returns.remove(&token.0) {
                        let Return { to, connection, frame, generation } = back;
                        let content = Content::Answer { reply, frame, generation };
                        self.packets.push(Packet { from: id, to, connection, content });
                    }
                }
            }
        }
        node.disk.end = node.disk.end.max(following.follower.core().bounds().2);
        self.feed(id);
    }

    /// The disk does the next thing that the follower waits for.
    fn disk_work(&mut self, id: BrokerId) {
        let new_log = LogId(Uuid::from_u128(u128::from(self.fresh())));
        let node = self.nodes.get_mut(&id).unwrap();
        let Role::Following(following) = &mut node.role else { return };
        let Some(action) = following.pending.pop_front() else { return };
        let disk = &mut node.disk;
        let event = match action {
            follower::Action::Accept(generation) => {
                disk.volatile_fence = generation;
                if R::C7_FENCES_DURABLY {
                    disk.fence = generation;
                }
                follower::Event::Accepted(generation)
            }
            follower::Action::Cut { to, mark, mark_generation } => {
                (disk.mark, disk.mark_generation) = (disk.mark.min(mark), mark_generation);
                disk.known_mark = (mark, mark_generation);
                disk.cut(to);
                self.figures.cuts += 1;
                follower::Event::Cut { end: disk.end }
            }
            follower::Action::Append { token, skip, compare } => {
                let records = &following.records[&token.0];
                let same = |(offset, value): &(Offset, _)| {
                    disk.records.get(offset) == Some(value) || self.oath.compacted.contains(offset)
                };
                if records[compare..skip].iter().all(same) {
                    for (offset, value) in &records[skip..] {
                        disk.append(*offset, *value);
                    }
                    let end = records.last().map_or(disk.end, |(offset, _)| offset + 1).max(disk.end);
                    follower::Event::Written { end }
                } else {
                    follower::Event::Differs
                }
            }
            follower::Action::Discard { base, .. } => {
                let log = if R::C12_NAMES_COPY { new_log.0.as_u128() } else { disk.log.0.as_u128() };
                let (fence, volatile) = (disk.fence, disk.volatile_fence);
                *disk = Disk::new(log, base, fence);
                disk.volatile_fence = volatile;
                self.figures.restarts += 1;
                follower::Event::Renewed { log: disk.log, start: base, end: base }
            }
            _ => {
                disk.log = new_log;
                follower::Event::Renewed { log: new_log, start: disk.start, end: disk.end }
            }
        };
        self.todo.push_back(Todo::Follower(id, event));
    }

    // ---- the end of a history

    /// Everything works again: the cluster must acknowledge a new record, and all copies must become level and eligible, unless
    /// the wiped disk was the only one that may lead.
    pub fn heal(&mut self) -> Result<(), String> {
        self.healing = true;
        for id in (1..=3).map(BrokerId) {
            self.start(id);
        }
        self.settle()?;
        let lead_by = |world: &World<R>| {
            let promotable = world.store.promotable();
            let there = |pair: &Pair| world.nodes[&pair.broker].disk.log == pair.log;
            let untouched = world.store.key.last == Last::Never && world.store.key.eligible.is_empty();
            untouched || promotable.iter().any(there)
        };
        if !lead_by(self) {
            return if self.figures.wiped > 0 { Ok(()) } else { Err("nobody may lead".to_owned()) };
        }
        let mut written = None;
        for round in 0..400 {
            for id in (1..=3).map(BrokerId) {
                self.learn(id)?;
                self.settle()?;
                for _ in 0..4 {
                    self.disk_work(id);
                    self.settle()?;
                }
                self.flush(id);
                self.settle()?;
            }
            while !self.store.requests.is_empty() {
                self.store_work()?;
                self.settle()?;
            }
            self.store.promote(round);
            for _ in 0..self.packets.len() {
                self.deliver();
                self.settle()?;
            }
            self.tick();
            self.settle()?;
            if let Some(end) = written {
                if self.is_level(end) {
                    self.figures.grown += self.store.reports;
                    return Ok(());
                }
            } else if let Some(id) = self.store.key.named.map(|named| named.broker) {
                let before = self.nodes[&id].disk.end;
                self.append(id);
                self.settle()?;
                written = (self.nodes[&id].disk.end > before).then_some(before);
            }
        }
        Err(format!("nothing goes on: {:?}, written {written:?}", self.store.key))
    }

    /// Whether the record at `offset` is acknowledged, and everybody holds it and may lead.
    fn is_level(&self, offset: Offset) -> bool {
        let held = self.nodes.values().all(|node| node.disk.synced > offset);
        held && self.oath.acknowledged.contains_key(&offset) && self.store.key.eligible.len() == 2
    }
}
