//! What a leader sends to its followers: the one executor of the cursors' actions.
//!
//! A cursor says what is to be sent; the bytes are read, and sent, by whoever runs the copy, off the thread that owns it. What a
//! cursor learns it tells the leader here.

use std::collections::{BTreeMap, BTreeSet};

use felix_protocol::ids::{BrokerId, Generation, LogId, Offset};
use felix_protocol::peer::bootstrap::Restart;
use felix_protocol::peer::ship::{Part, TenureHeader};
use felix_protocol::time::{Clock, MonoTime};
use felix_replication::cursor::{
    Action, Cursor, Event, FrameId, HEADER_ENTRIES, HeaderMap, Limits, LogFacts,
};
use felix_replication::eligible::Pair;
use felix_replication::event::Event as LeaderEvent;
use felix_replication::leader::Phase;
use felix_storage::disk::Disk;

use crate::actions::Ports;
use crate::copy::Copy;

/// Something to send to one follower.
#[derive(Clone, Debug)]
pub struct Shipment {
    /// Whose answer it is that comes back.
    pub frame: FrameId,
    /// What is said. Without records, if they are to be read.
    pub part: Part,
    /// So many bytes of records are to be read from the part's beginning on, at least one batch; and that they were comes back
    /// by [`Copy::shipped`].
    pub most: Option<usize>,
    /// The follower is a member of the eligible set: what it is sent is waited for.
    pub is_member: bool,
    /// Not a part is to be sent, but word to begin anew.
    pub restart: Option<Restarting>,
}

impl Shipment {
    /// One without records.
    fn word(frame: FrameId, part: Part) -> Shipment {
        Shipment { frame, part, most: None, is_member: false, restart: None }
    }
}

/// A bootstrap or a rebuild.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub struct Restarting {
    /// What is said.
    pub restart: Restart,
    /// Which of the two.
    pub rebuild: bool,
}

/// The cursors of one tenure.
#[derive(Default)]
pub(crate) struct Cursors {
    cursors: BTreeMap<BrokerId, Cursor>,
    told: Option<LogFacts>,
    /// A log start, and where the batch begins that it lies in.
    base: Option<(Offset, Offset)>,
}

impl Cursors {
    pub(crate) fn next_tick(&self) -> MonoTime {
        self.cursors.values().map(Cursor::next_tick).min().unwrap_or(MonoTime::NEVER)
    }
}

impl<D: Disk, C: Clock, W> Copy<D, C, W> {
    fn log_facts(&self) -> LogFacts {
        LogFacts { base: self.log.start(), end: self.log.end(), mark: self.published.mark() }
    }

    /// A cursor for everyone who holds a copy, as far as the leader knows. `is_up`: to whom there is a connection.
    pub fn ship_to_replicas(&mut self, is_up: impl Fn(BrokerId) -> bool, ports: &mut impl Ports<Writer = W>) {
        let Some(leader) = self.leader.as_ref().filter(|leader| leader.phase() != Phase::Ended) else {
            return;
        };
        let replicas: BTreeSet<BrokerId> = leader.key().replicas.clone();
        let (own, generation, facts) = (self.own().broker, self.row.accepted, self.log_facts());
        let id = self.id;
        for (broker, cursor) in self.cursors.cursors.extract_if(.., |broker, _| !replicas.contains(broker)) {
            if cursor.is_rebuilding() {
                ports.rebuilt(id, broker, false);
            }
        }
        for broker in replicas.iter().copied().filter(|broker| *broker != own) {
            if self.cursors.cursors.contains_key(&broker) {
                continue;
            }
            let cursor = Cursor::new(broker, generation, facts, Limits::default());
            self.cursors.cursors.insert(broker, cursor);
            if is_up(broker) {
                self.step_cursor(broker, Event::Connected, ports);
            }
        }
    }

    /// The tenure is over, and with it whatever was under way to its followers.
    pub(crate) fn drop_cursors(&mut self, ports: &mut impl Ports<Writer = W>) {
        for (broker, cursor) in std::mem::take(&mut self.cursors).cursors {
            if cursor.is_rebuilding() {
                ports.rebuilt(self.id, broker, false);
            }
        }
    }

    /// The followers of this tenure.
    pub fn followers(&self) -> impl Iterator<Item = BrokerId> + '_ {
        self.cursors.cursors.keys().copied()
    }

    /// There is a connection to that broker, another than before, or there is none any more.
    pub fn connected(&mut self, broker: BrokerId, is_up: bool, ports: &mut impl Ports<Writer = W>) {
        self.step_cursor(broker, if is_up { Event::Connected } else { Event::Disconnected }, ports);
    }

    /// What became of a shipment of that tenure.
    pub fn shipped(
        &mut self,
        broker: BrokerId,
        generation: Generation,
        event: Event,
        ports: &mut impl Ports<Writer = W>,
    ) {
        if self.leads() && self.row.accepted == generation {
            self.step_cursor(broker, event, ports);
        }
    }

    /// Tells the cursors how far the log has come, if it has.
    pub(crate) fn ship_on(&mut self, ports: &mut impl Ports<Writer = W>) {
        if self.cursors.cursors.is_empty() || !self.leads() {
            return;
        }
        let facts = self.log_facts();
        if self.cursors.told == Some(facts) {
            return;
        }
        self.cursors.told = Some(facts);
        let brokers: Vec<BrokerId> = self.followers().collect();
        for broker in brokers {
            self.step_cursor(broker, Event::Log(facts), ports);
        }
    }

    pub(crate) fn tick_cursors(&mut self, ports: &mut impl Ports<Writer = W>) {
        let now = self.clock.now();
        let due = self.cursors.cursors.iter().filter(|(_, cursor)| cursor.next_tick() <= now);
        let due: Vec<BrokerId> = due.map(|(broker, _)| *broker).collect();
        for broker in due {
            self.step_cursor(broker, Event::Tick, ports);
        }
    }

    fn step_cursor(&mut self, broker: BrokerId, event: Event, ports: &mut impl Ports<Writer = W>) {
        let now = self.clock.now();
        // However a tenure ended: its cursors would speak at the generation that this copy accepts by then, and be taken for those of
        // whoever leads at it.
        if !self.leads() {
            self.drop_cursors(ports);
            return;
        }
        let Some(cursor) = self.cursors.cursors.get_mut(&broker) else { return };
        for action in cursor.step(event, now) {
            self.carry_out_cursor(broker, action, ports);
        }
    }

    fn carry_out_cursor(&mut self, broker: BrokerId, action: Action, ports: &mut impl Ports<Writer = W>) {
        match action {
            Action::Header { frame, map } => {
                let header = self.header(map);
                let end = self.log.end();
                let part = self.part(None, Some(header), end);
                ports.ship(self.id, broker, Shipment::word(frame, part));
            }
            Action::Ship { frame, log, from, most } => {
                let part = self.part(Some(log), None, from);
                let is_member = self.is_member(Pair { broker, log });
                let shipment = Shipment { most: Some(most), is_member, ..Shipment::word(frame, part) };
                ports.ship(self.id, broker, shipment);
            }
            Action::Idle { frame, log } => {
                let end = self.log.end();
                let part = self.part(Some(log), None, end);
                ports.ship(self.id, broker, Shipment::word(frame, part));
            }
            Action::Heard => self.tell_leader(LeaderEvent::Heard(broker), ports),
            Action::Lost => self.tell_leader(LeaderEvent::Lost(broker), ports),
            Action::Confirmed { pair, position } => {
                self.tell_leader(LeaderEvent::Confirmed { pair, position }, ports);
            }
            Action::Dead(pair) => self.tell_leader(LeaderEvent::Dead(pair), ports),
            Action::Halted { pair, .. } => self.tell_leader(LeaderEvent::Halted(pair), ports),
            Action::AskRestart { pair, rebuild } => {
                // C12: not while it counts. One that has stopped is dropped from the set, where C9 allows.
                let may = self.leader.as_ref().is_some_and(|leader| leader.may_restart(&pair));
                let granted = may.then(|| ports.may_restart(self.id, broker, rebuild)).flatten();
                if let Some(bytes_per_sec) = granted {
                    self.step_cursor(broker, Event::Granted { bytes_per_sec }, ports);
                }
            }
            Action::Restart { frame, log, rebuild } => self.ship_restart(broker, frame, log, rebuild, ports),
            Action::ReleaseSlot { completed } => ports.rebuilt(self.id, broker, completed),
            // The follower's own broker lists it; and that somebody else leads is learned from the control store.
            Action::Resumed | Action::Superseded(_) => {}
        }
    }

    fn is_member(&self, pair: Pair) -> bool {
        self.leader.as_ref().is_some_and(|leader| leader.key().eligible.contains(&pair))
    }

    fn ship_restart(
        &mut self,
        broker: BrokerId,
        frame: FrameId,
        log: LogId,
        rebuild: bool,
        ports: &mut impl Ports<Writer = W>,
    ) {
        let (base, log_start) = (self.base(), self.log.start());
        let (partition, generation, key_revision) = (self.id, self.row.accepted, self.key_revision());
        let restart = Restart { partition, key_revision, generation, log, base, log_start };
        let part = self.part(Some(log), None, base);
        let restart = Some(Restarting { restart, rebuild });
        ports.ship(self.id, broker, Shipment { restart, ..Shipment::word(frame, part) });
    }

    /// The first offset that can be shipped: where the batch around the log start begins. What cannot be read is taken to begin at
    /// the log start; shipping it fails in the same way then.
    fn base(&mut self) -> Offset {
        let start = self.log.start();
        match self.cursors.base {
            Some((of, base)) if of == start => base,
            _ => {
                let base = self.log.base().unwrap_or(start);
                self.cursors.base = Some((start, base));
                base
            }
        }
    }

    fn tell_leader(&mut self, event: LeaderEvent, ports: &mut impl Ports<Writer = W>) {
        self.step(|_| Some(event), ports);
    }

    fn takeover(&self) -> Offset {
        self.leader.as_ref().map_or(0, |leader| leader.takeover())
    }

    fn key_revision(&self) -> u64 {
        self.leader.as_ref().map_or(0, |leader| leader.key().revision.0)
    }

    fn header(&mut self, wanted: HeaderMap) -> TenureHeader {
        let base = self.base();
        let (entries, complete_from) = wanted.of(self.log.generations(), HEADER_ENTRIES);
        let (begins, unclean_at) = (self.takeover(), self.unclean_at);
        TenureHeader { begins, base, entries, complete_from, unclean_at }
    }

    fn part(&self, log: Option<LogId>, header: Option<TenureHeader>, from: Offset) -> Part {
        let before =
            if from > self.log.start() { self.log.generations().generation_at(from - 1) } else { None };
        Part {
            partition: self.id,
            key_revision: self.key_revision(),
            generation: self.row.accepted,
            log,
            header,
            mark: self.published.mark(),
            log_start: self.log.start(),
            log_end: self.log.end(),
            from,
            next: from,
            before,
            records: Vec::new(),
        }
    }
}
