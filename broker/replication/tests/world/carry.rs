//! Carries out what the machines want done.

use felix_protocol::ids::{BrokerId, Generation, LogId, Offset, Uuid};
use felix_protocol::peer::ship::{Said, TenureHeader};
use felix_replication::action::{Action, Vouch};
use felix_replication::cursor::{self, FrameId, HeaderMap, LogFacts};
use felix_replication::event::Event;
use felix_replication::follower::{self, BatchFacts, Frame, Reply, Token};
use felix_replication::halted::HaltReason;
use felix_replication::rules::Rules;

use super::super::check;
use super::super::disk::{Disk, Value};
use super::super::node::{Content, Packet, Return, Role, Work};
use super::super::store::Request;
use super::{NEED, Todo, World};

impl<R: Rules> World<R> {
    // ---- leaders

    pub(super) fn leader_step(&mut self, id: BrokerId, event: Event) {
        let now = self.now;
        let Role::Leading(leading) = &mut self.node(id).role else { return };
        let actions = leading.leader.step(event, now);
        self.leader_actions(id, actions);
    }

    pub(super) fn log_moved(&mut self, id: BrokerId) {
        let node = &self.nodes[&id];
        let Role::Leading(leading) = &node.role else { return };
        let facts = LogFacts { base: node.disk.start, end: node.disk.end, mark: leading.leader.mark() };
        for follower in leading.cursors.keys() {
            self.todo.push_back(Todo::Cursor(id, *follower, cursor::Event::Log(facts)));
        }
    }

    pub(super) fn leader_actions(&mut self, id: BrokerId, actions: Vec<Action>) {
        let mut released = Vec::new();
        self.carry_out(id, actions, &mut released);
        for (offset, value, generation) in released {
            // A disk that was wiped had the record when it said so.
            let need = NEED - usize::from(self.figures.wiped > 0);
            if let Err(broken) = check::is_held(&self.oath, &self.nodes, offset, &value, need) {
                self.broken = Some(broken);
            }
            self.oath.acknowledge(offset, value, generation);
            self.figures.acknowledged += 1;
        }
    }

    pub(super) fn carry_out(
        &mut self,
        id: BrokerId,
        actions: Vec<Action>,
        released: &mut Vec<(Offset, Value, Generation)>,
    ) {
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
                        if !self.store.tenures.contains(&generation) {
                            self.broken =
                                Some(format!("C10: a word is given at {generation}, which never opened"));
                        }
                        if vouch == Vouch::Mark {
                            released.push((offset, value, generation));
                        }
                    }
                }
                Action::Expire { tickets } | Action::Refuse { tickets } => {
                    for ticket in tickets {
                        leading.waiting.remove(&ticket.0);
                    }
                }
                Action::CutOff { .. } => self.figures.cut_off += 1,
            }
        }
    }

    pub(super) fn cursor_step(&mut self, leader: BrokerId, follower: BrokerId, event: cursor::Event) {
        let now = self.now;
        let Role::Leading(leading) = &mut self.node(leader).role else { return };
        let Some(cursor) = leading.cursors.get_mut(&follower) else { return };
        for action in cursor.step(event, now) {
            self.cursor_action(leader, follower, action);
        }
    }

    pub(super) fn cursor_action(&mut self, leader: BrokerId, follower: BrokerId, action: cursor::Action) {
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
                // The connection broke behind it, say, and it comes again, late.
                if self.dice.one_in(2) {
                    self.late.extend(self.packets.last().cloned());
                }
            }
            cursor::Action::ReleaseSlot { .. } | cursor::Action::Resumed => {}
            cursor::Action::Lost => self.todo.push_back(Todo::Leader(leader, Event::Lost(follower))),
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
    pub(super) fn ship(
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
            // Short ones, so that more has to be asked for.
            let ((entries, complete_from), base) = (map.of(&disk.map, 2), disk.start);
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

    pub(super) fn send(&mut self, from: BrokerId, to: BrokerId, frame: FrameId, work: Work) {
        let Some(connection) = self.connections.get(&(from, to)).copied() else { return };
        let Some(generation) = self.nodes[&from].leads_at() else { return };
        let content = Content::Request { work, frame, generation };
        self.packets.push(Packet { from, to, connection, content });
    }

    pub(super) fn deliver(&mut self) {
        if !self.late.is_empty() && self.dice.one_in(100) {
            self.packets.insert(0, self.late.remove(0));
        }
        if self.packets.is_empty() {
            return;
        }
        let chosen = self.dice.roll(self.packets.len());
        let of = |packet: &Packet| (packet.from, packet.to, packet.connection);
        let first = of(&self.packets[chosen]);
        let at = self.packets.iter().position(|packet| of(packet) == first).unwrap();
        self.deliver_at(at);
    }

    pub(super) fn deliver_at(&mut self, at: usize) {
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

    pub(super) fn reply(&mut self, from: BrokerId, back: Return, reply: Reply) {
        let Return { to, connection, frame, generation } = back;
        let content = Content::Answer { reply, frame, generation };
        self.packets.push(Packet { from, to, connection, content });
    }

    // ---- followers

    /// Gives the follower what came, while it has nothing else to do.
    pub(super) fn feed(&mut self, id: BrokerId) {
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

    pub(super) fn follower_step(&mut self, id: BrokerId, event: follower::Event) {
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
                    let core = following.follower.core();
                    self.broken =
                        Some(format!("broker {id} halts as {reason}, though nobody did wrong: {core:?}"));
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
        self.feed(id);
    }

    /// The disk does the next thing that the follower waits for.
    pub(super) fn disk_work(&mut self, id: BrokerId) {
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
            follower::Action::Append { token, skip, compare, holes } => {
                let records = &following.records[&token.0];
                let same = |(offset, value): &(Offset, _)| {
                    disk.records.get(offset) == Some(value) || self.oath.compacted.contains(offset)
                };
                if records[compare..skip].iter().all(same) {
                    for (offset, value) in &records[skip..] {
                        disk.append(*offset, *value);
                    }
                    for hole in holes {
                        disk.fill(hole.next, hole.generation);
                    }
                    follower::Event::Written { end: disk.end }
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
            // Renewing; nothing else is put off.
            follower::Action::Renew
            | follower::Action::AdoptMap(_)
            | follower::Action::AdvanceMark { .. }
            | follower::Action::AdvanceStart { .. }
            | follower::Action::Halt(_)
            | follower::Action::Resume
            | follower::Action::Answer { .. } => {
                disk.log = new_log;
                follower::Event::Renewed { log: new_log, start: disk.start, end: disk.end }
            }
        };
        self.todo.push_back(Todo::Follower(id, event));
    }
}
