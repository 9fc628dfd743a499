//! The simulated world: true time in nanoseconds, one queue of what happens next.

use std::collections::{BTreeMap, VecDeque};
use std::time::Duration;

use felix_cluster::decision::{Change, Compare, Decision, Write};
use felix_cluster::heartbeat::{self, Action, Answer, Heartbeat};
use felix_cluster::invariants::{check_ended_session, check_fence, check_partition, check_step};
use felix_cluster::keys::Key;
use felix_cluster::lease::{Clocks, Reading, Terms};
use felix_cluster::observe::{self, Observer, Unbroken};
use felix_cluster::registration::{Entry, Looked, Past, Step};
use felix_cluster::revoke::RevokeSet;
use felix_cluster::state::{Node, NodeState, Partition, Revision, decode};
use felix_cluster::view::View;
use felix_protocol::ids::{BrokerId, SessionId, Uuid};
use felix_protocol::time::MonoTime;

#[path = "tenures.rs"]
mod tenures;

use tenures::Tenures;

pub struct Setup {
    pub seed: u64,
    pub lease_ms: u64,
    pub nodes: i32,
    pub lost_percent: u64,
    pub slow_percent: u64,
}

/// Dice that fall the same way for the same seed.
struct Dice(u64);

impl Dice {
    fn roll(&mut self, below: u64) -> u64 {
        self.0 = self.0.wrapping_add(0x9e37_79b9_7f4a_7c15);
        let mut mixed = self.0;
        mixed = (mixed ^ (mixed >> 30)).wrapping_mul(0xbf58_476d_1ce4_e5b9);
        mixed = (mixed ^ (mixed >> 27)).wrapping_mul(0x94d0_49bb_1331_11eb);
        (mixed ^ (mixed >> 31)) % below.max(1)
    }
}

/// Two clocks, each off by at most a thousandth, and the holder's time that the two make.
struct ClockPair {
    boottime_ppm: i64,
    raw_ppm: i64,
    suspended: u64,
    folded: (Reading, u64),
}

impl ClockPair {
    fn reading(&self, truly: u64) -> Reading {
        let off = |time: u64, ppm: i64| {
            MonoTime((i128::from(time) * i128::from(1_000_000 + ppm) / 1_000_000) as u64)
        };
        Reading { boottime: off(truly, self.boottime_ppm), raw: off(truly - self.suspended, self.raw_ppm) }
    }

    fn now(&mut self, truly: u64) -> MonoTime {
        let reading = self.reading(truly);
        let (before, shown) = self.folded;
        self.folded = (reading, shown + reading.longest_since(before).as_nanos() as u64);
        MonoTime(self.folded.1)
    }
}

enum Life {
    Entering { entry: Box<Entry>, session: SessionId },
    Beating(Box<Heartbeat>),
    Dead,
}

struct Process {
    id: BrokerId,
    directory: Uuid,
    clock: ClockPair,
    life: Life,
    past: Past,
    until: MonoTime,
    own: Option<Unbroken>,
    observer: Observer,
    view: View,
    paused_until: u64,
    watched_at: u64,
    request: u64,
    tenures: Tenures,
}

#[derive(Clone)]
enum Request {
    Beat(u64, Decision),
    ReadBack,
    Look,
    Register(SessionId, u64, Decision),
    Fence(BrokerId, Decision),
    Decide(Decision),
}

impl Request {
    /// Whether other things are asked meanwhile.
    fn is_apart(&self) -> bool {
        matches!(self, Request::Fence(..) | Request::Decide(_))
    }
}

enum Happens {
    Wakes(usize),
    Arrives { from: usize, number: u64, request: Request },
    Answered { to: usize, number: u64, request: Request, answer: Option<Stored> },
    Watched { by: usize, changes: Vec<Change>, revision: Revision },
    Starts { id: BrokerId },
    Turns { id: BrokerId, to: NodeState },
}

#[derive(Clone)]
enum Stored {
    Committed(bool, Revision),
    Beaten(Revision, RevokeSet),
    Found(Box<Looked>),
}

pub struct World {
    setup: Setup,
    terms: Terms,
    dice: Dice,
    now: u64,
    sequence: u64,
    queue: BTreeMap<(u64, u64), Happens>,
    store: BTreeMap<String, (Revision, Vec<u8>)>,
    revision: Revision,
    sessions: u64,
    processes: Vec<Process>,
    /// From, to, and whether reads fail, too.
    outages: Vec<(u64, u64, bool)>,
    /// From, to, which process, whether its machine sleeps.
    pauses: VecDeque<(u64, u64, usize, bool)>,
    pub ended: usize,
    pub extended: usize,
    /// How often somebody believed that it may write to some partition.
    pub written: usize,
    /// How many tenures ended by their leader's own word.
    pub resigned: usize,
}

impl World {
    pub fn new(setup: Setup) -> World {
        let terms = Terms::new(setup.lease_ms, Clocks::Both);
        let mut world = World {
            terms,
            dice: Dice(setup.seed),
            now: 0,
            sequence: 0,
            queue: BTreeMap::new(),
            store: BTreeMap::new(),
            revision: Revision(1),
            sessions: 0,
            processes: Vec::new(),
            outages: Vec::new(),
            pauses: VecDeque::new(),
            ended: 0,
            extended: 0,
            written: 0,
            resigned: 0,
            setup,
        };
        for id in 1..=world.setup.nodes {
            world.happens(0, Happens::Starts { id: BrokerId(id) });
        }
        world
    }

    fn length(&self) -> u64 {
        self.setup.lease_ms * 1_000_000
    }

    fn somewhen(&mut self) -> u64 {
        self.length() + self.dice.roll(15 * self.length())
    }

    pub fn pause_someone(&mut self) {
        let from = self.somewhen();
        let to = from + self.dice.roll(3 * self.length());
        let (who, sleeps) = (self.dice.roll(self.setup.nodes as u64) as usize, self.dice.roll(2) == 0);
        self.pauses.push_back((from, to, who, sleeps));
    }

    pub fn outage_somewhen(&mut self, reads_too: bool) {
        let from = self.somewhen();
        let to = from + self.dice.roll(3 * self.length());
        self.outages.push((from, to, reads_too));
    }

    /// One that begins after so many L.
    pub fn outage(&mut self, after: u64, reads_too: bool) {
        let from = after * self.length() + self.dice.roll(self.length());
        let to = from + self.dice.roll(5 * self.length());
        self.outages.push((from, to, reads_too));
    }

    /// A second process of some id, from a copy of its directory.
    pub fn impostor_somewhen(&mut self) {
        let (at, id) = (self.somewhen(), BrokerId(1 + self.dice.roll(self.setup.nodes as u64) as i32));
        self.happens(at, Happens::Starts { id });
    }

    pub fn kill(&mut self, id: i32) {
        for process in self.processes.iter_mut().filter(|process| process.id == BrokerId(id)) {
            process.life = Life::Dead;
        }
    }

    /// How many processes believe in their leases.
    pub fn holders(&mut self) -> usize {
        let now = self.now;
        let holds = |process: &mut Process| {
            matches!(process.life, Life::Beating(_)) && process.clock.now(now) < process.until
        };
        self.processes.iter_mut().map(holds).filter(|holds| *holds).count()
    }

    fn happens(&mut self, at: u64, what: Happens) {
        self.sequence += 1;
        self.queue.insert((at.max(self.now), self.sequence), what);
    }

    /// Runs until that true time.
    pub fn run(&mut self, until: u64) {
        while let Some(entry) = self.queue.first_entry() {
            if entry.key().0 > until {
                break;
            }
            let ((at, _), what) = entry.remove_entry();
            self.now = at;
            self.sleep_due();
            // What reaches a paused process waits in its socket.
            let reaches = match &what {
                Happens::Wakes(to) | Happens::Answered { to, .. } | Happens::Watched { by: to, .. } => {
                    Some(*to)
                }
                Happens::Arrives { .. } | Happens::Starts { .. } | Happens::Turns { .. } => None,
            };
            match reaches {
                Some(to) if self.processes[to].paused_until > at => {
                    self.happens(self.processes[to].paused_until, what);
                }
                Some(to) if matches!(self.processes[to].life, Life::Dead) => {}
                _ => self.take(what),
            }
        }
        self.now = until;
    }

    fn sleep_due(&mut self) {
        while let Some((from, to, who, sleeps)) = self.pauses.pop_front() {
            if from > self.now || who >= self.processes.len() {
                self.pauses.push_front((from, to, who, sleeps));
                return;
            }
            let process = &mut self.processes[who];
            if self.now < to && process.paused_until <= self.now {
                process.paused_until = to;
                if sleeps {
                    // Its clocks are read again only when it is awake.
                    process.clock.suspended += to - self.now;
                }
            }
        }
    }

    fn take(&mut self, what: Happens) {
        match what {
            Happens::Starts { id } => self.start(id),
            Happens::Turns { id, to } => self.turn(id, to),
            Happens::Wakes(who) => self.wake(who),
            Happens::Arrives { from, number, request } => self.arrive(from, number, request),
            Happens::Answered { to, number, request, answer } => {
                // An answer after the wait for it is dropped; so is what a lost one left.
                if self.processes[to].request == number || request.is_apart() {
                    self.answer(to, request, answer);
                }
            }
            Happens::Watched { by, changes, revision } => self.watch(by, &changes, revision),
        }
    }

    fn start(&mut self, id: BrokerId) {
        let ppm = |dice: &mut Dice| dice.roll(2_001) as i64 - 1_000;
        // Clocks that run fast or slow from a start long ago.
        let mut clock = ClockPair {
            boottime_ppm: ppm(&mut self.dice),
            raw_ppm: ppm(&mut self.dice),
            suspended: 0,
            folded: (Reading { boottime: MonoTime(0), raw: MonoTime(0) }, 0),
        };
        clock.folded.0 = clock.reading(self.now);
        let who = self.processes.len();
        let mut view = View::default();
        let listed: Vec<Change> = self
            .store
            .iter()
            .map(|(key, (revision, value))| Change {
                key: key.clone(),
                value: Some(value.clone()),
                revision: *revision,
            })
            .collect();
        for change in &listed {
            view.apply(change).unwrap();
        }
        view.advance(self.revision);
        let mut observer = Observer::new(id, self.terms);
        observer.follow(&view, clock.reading(self.now));
        let directory = Uuid::from_u128(who as u128);
        let entry = Entry::new(id, directory, &format!("boot{who}"), self.terms);
        self.sessions += 1;
        let session = SessionId(self.sessions);
        let past = Past { sessions: vec![session], ..Past::default() };
        self.processes.push(Process {
            id,
            directory,
            clock,
            life: Life::Entering { entry: Box::new(entry), session },
            past,
            until: MonoTime(0),
            own: None,
            observer,
            view,
            paused_until: 0,
            watched_at: self.now,
            request: 0,
            tenures: Tenures::default(),
        });
        self.observe_listed(who, &listed);
        self.send(who, Request::Look, self.terms.answer_within());
    }

    fn observe_listed(&mut self, who: usize, changes: &[Change]) {
        for change in changes {
            let Some(Key::Beat(node)) = Key::parse(&change.key) else { continue };
            let reading = self.processes[who].clock.reading(self.now);
            let event = observe::Event::Beat { node, revision: change.revision };
            let fences = self.processes[who].observer.step(event, reading);
            self.fence(who, fences);
        }
    }

    /// A request goes out; it may be lost, late, or its answer may be. Without an answer in time, that is the answer.
    fn send(&mut self, who: usize, request: Request, within: Duration) {
        self.sequence += 1;
        let number = self.sequence;
        if !request.is_apart() {
            self.processes[who].request = number;
        }
        let late = self.now + within.as_nanos() as u64;
        self.happens(late, Happens::Answered { to: who, number, request: request.clone(), answer: None });
        if self.dice.roll(100) >= self.setup.lost_percent {
            let at = self.now + self.way();
            self.happens(at, Happens::Arrives { from: who, number, request });
        }
    }

    /// How long something takes on its way.
    fn way(&mut self) -> u64 {
        if self.dice.roll(100) < self.setup.slow_percent {
            return self.dice.roll(2 * self.length());
        }
        1 + self.dice.roll(self.length() / 40)
    }

    fn arrive(&mut self, from: usize, number: u64, request: Request) {
        let reads = matches!(request, Request::ReadBack | Request::Look);
        let fails = |(begins, ends, reads_too): &(u64, u64, bool)| {
            (*begins..*ends).contains(&self.now) && (!reads || *reads_too)
        };
        if self.outages.iter().any(fails) {
            return;
        }
        let answer = match &request {
            Request::Beat(_, decision) if self.commit(decision) => {
                let set = self.store.get(&Key::Revoke(self.processes[from].id).to_string());
                let set = set.map_or_else(RevokeSet::default, |(_, set)| RevokeSet::decode(set).unwrap());
                Stored::Beaten(self.revision, set)
            }
            Request::Beat(..) => Stored::Committed(false, self.revision),
            Request::Register(_, _, decision) | Request::Fence(_, decision) | Request::Decide(decision) => {
                let landed = self.commit(decision);
                Stored::Committed(landed, self.revision)
            }
            Request::ReadBack | Request::Look => {
                let id = self.processes[from].id;
                let node = self.store.get(&Key::Node(id).to_string());
                let node = node.map(|(at, value)| (*at, decode::<Node>("node", value).unwrap()));
                let beat = self.store.get(&Key::Beat(id).to_string()).map_or(Revision::ABSENT, |(at, _)| *at);
                Stored::Found(Box::new(Looked { node, beat }))
            }
        };
        if self.dice.roll(100) >= self.setup.lost_percent {
            let at = self.now + self.way();
            self.happens(at, Happens::Answered { to: from, number, request, answer: Some(answer) });
        }
    }

    fn commit(&mut self, decision: &Decision) -> bool {
        let holds = decision.compares().iter().all(|compare| match compare {
            Compare::Revision(key, wanted) => {
                self.store.get(&key.to_string()).map_or(Revision::ABSENT, |(at, _)| *at) == *wanted
            }
            Compare::Value(..) => unreachable!("sessions compare revisions"),
        });
        if !holds {
            return false;
        }
        self.revision.0 += 1;
        let mut changes = Vec::new();
        for write in decision.writes() {
            let Write::Put(key, value) = write else { unreachable!("nothing is deleted") };
            if let Key::Node(_) = key {
                self.node_written(key, value);
            }
            if let Key::Partition(_) = key {
                self.partition_written(key, value);
            }
            self.store.insert(key.to_string(), (self.revision, value.clone()));
            changes.push(Change {
                key: key.to_string(),
                value: Some(value.clone()),
                revision: self.revision,
            });
        }
        for by in 0..self.processes.len() {
            let at = (self.now + self.way()).max(self.processes[by].watched_at);
            self.processes[by].watched_at = at;
            self.happens(at, Happens::Watched { by, changes: changes.clone(), revision: self.revision });
        }
        true
    }

    fn partition_written(&mut self, key: &Key, value: &[u8]) {
        let read = |value: &[u8]| decode::<Partition>("partition", value).unwrap();
        let after = read(value);
        check_partition(&after).unwrap();
        self.resigned += usize::from(after.resigned.is_some());
        if let Some((_, before)) = self.store.get(&key.to_string()) {
            check_step(&read(before), &after).unwrap();
        }
    }

    /// Something that is there from the beginning.
    fn put(&mut self, key: Key, value: Vec<u8>) {
        self.revision.0 += 1;
        self.store.insert(key.to_string(), (self.revision, value));
    }

    /// S1, at the moment at which the store ends a session.
    fn node_written(&mut self, key: &Key, value: &[u8]) {
        let Some((_, before)) = self.store.get(&key.to_string()) else { return };
        let (before, after) =
            (decode::<Node>("node", before).unwrap(), decode::<Node>("node", value).unwrap());
        let ends = before.state != NodeState::Fenced
            && (after.session != before.session || after.state == NodeState::Fenced);
        if !ends {
            return;
        }
        self.ended += 1;
        let now = self.now;
        for process in &mut self.processes {
            if let Life::Beating(heartbeat) = &process.life
                && heartbeat.session() == before.session
                && process.paused_until <= now
            {
                check_ended_session(before.session, process.until, process.clock.now(now)).unwrap();
            }
        }
    }

    fn is_ended(&self, id: BrokerId, session: SessionId) -> bool {
        let stored = self.store.get(&Key::Node(id).to_string());
        stored.is_none_or(|(_, value)| !decode::<Node>("node", value).unwrap().may_lead(session))
    }

    fn wake(&mut self, who: usize) {
        let process = &mut self.processes[who];
        let (now, reading) = (process.clock.now(self.now), process.clock.reading(self.now));
        let fences = process.observer.step(observe::Event::Tick, reading);
        let actions = match &mut process.life {
            Life::Beating(heartbeat) => heartbeat.step(heartbeat::Event::Tick, now),
            Life::Entering { .. } | Life::Dead => Vec::new(),
        };
        self.fence(who, fences);
        self.act(who, actions);
        self.lead(who, None);
        // Looked at often; a real loop sleeps for as long as the machines say.
        let process = &mut self.processes[who];
        let mut sleep = self.terms.beat_every() / 8;
        if let Life::Beating(heartbeat) = &process.life
            && heartbeat.next_tick() > now
        {
            sleep = sleep.min(heartbeat.next_tick().since(now));
        }
        if !matches!(process.life, Life::Entering { .. }) {
            let at = self.now + (sleep.as_nanos() as u64).max(100_000);
            self.happens(at, Happens::Wakes(who));
        }
    }

    fn fence(&mut self, who: usize, fences: Vec<observe::Fence>) {
        for fence in fences {
            let process = &self.processes[who];
            let last = process.own.unwrap();
            check_fence(last.last(), process.clock.reading(self.now), self.terms).unwrap();
            assert_ne!(fence.node, process.id);
            match observe::decide(&process.view, &fence) {
                Some(decision) => {
                    self.send(who, Request::Fence(fence.node, decision), self.terms.answer_within());
                }
                None => self.missed(who, fence.node),
            }
        }
    }

    fn missed(&mut self, who: usize, node: BrokerId) {
        let process = &mut self.processes[who];
        let reading = process.clock.reading(self.now);
        let fences = process.observer.step(observe::Event::Missed(node), reading);
        self.fence(who, fences);
    }

    fn watch(&mut self, who: usize, changes: &[Change], revision: Revision) {
        let process = &mut self.processes[who];
        let reading = process.clock.reading(self.now);
        let before = process.view.clone();
        for change in changes {
            process.view.apply(change).unwrap();
        }
        process.view.advance(revision);
        process.observer.follow(&process.view, reading);
        let differs = process.view.changes_since(&before);
        self.observe_listed(who, changes);
        self.lead(who, Some(&differs));
        let handed = self.processes[who].tenures.handed;
        self.beat_step(who, heartbeat::Event::Applied { revision, handed });
    }

    fn beat_step(&mut self, who: usize, event: heartbeat::Event) {
        let process = &mut self.processes[who];
        let now = process.clock.now(self.now);
        if let Life::Beating(heartbeat) = &mut process.life {
            let actions = heartbeat.step(event, now);
            self.act(who, actions);
        }
    }

    fn act(&mut self, who: usize, actions: Vec<Action>) {
        for action in actions {
            let process = &mut self.processes[who];
            match action {
                Action::Send { number, node, beat, within } => {
                    let decision = heartbeat::decision(process.id, node, &beat);
                    self.send(who, Request::Beat(number, decision), within);
                }
                Action::ReadBack { within } => self.send(who, Request::ReadBack, within),
                Action::Extend(until) => {
                    process.until = until;
                    self.extended += 1;
                    let Life::Beating(heartbeat) = &process.life else { continue };
                    let (id, session) = (process.id, heartbeat.session());
                    if self.is_ended(id, session) {
                        let now = self.processes[who].clock.now(self.now);
                        check_ended_session(session, until, now).unwrap();
                    }
                }
                Action::Confirmed => {
                    let reading = process.clock.reading(self.now);
                    process.own = Some(Unbroken::confirmed(process.own, reading, self.terms));
                    let fences = process.observer.step(observe::Event::Own(process.own), reading);
                    self.fence(who, fences);
                }
                Action::GiveUp { number, set } => {
                    self.give_up(who, number, set);
                    let process = &self.processes[who];
                    let (revision, handed) = (process.view.revision(), process.tenures.handed);
                    self.beat_step(who, heartbeat::Event::Applied { revision, handed });
                }
                Action::Lost(heartbeat::Lost::Superseded(_)) => process.life = Life::Dead,
                Action::Lost(_) => self.enter_again(who),
            }
        }
    }

    fn enter_again(&mut self, who: usize) {
        self.sessions += 1;
        let session = SessionId(self.sessions);
        let process = &mut self.processes[who];
        process.until = MonoTime(0);
        process.own = None;
        process.tenures = Tenures::default();
        process.past.sessions.push(session);
        let entry = Entry::new(process.id, process.directory, &format!("boot{who}"), self.terms);
        process.life = Life::Entering { entry: Box::new(entry), session };
        let reading = process.clock.reading(self.now);
        process.observer.step(observe::Event::Own(None), reading);
        self.send(who, Request::Look, self.terms.answer_within());
    }

    fn answer(&mut self, who: usize, request: Request, answer: Option<Stored>) {
        let terms = self.terms;
        match (request, answer) {
            (Request::Beat(number, _), answer) => {
                self.processes[who].request = 0;
                let answer = match answer {
                    Some(Stored::Beaten(revision, revoked)) => Answer::Landed { revision, revoked },
                    Some(Stored::Committed(..)) => Answer::Refused,
                    Some(Stored::Found(_)) | None => Answer::Unknown,
                };
                self.beat_step(who, heartbeat::Event::Answered(number, answer));
            }
            (Request::ReadBack, Some(Stored::Found(looked))) => {
                self.processes[who].request = 0;
                self.beat_step(who, heartbeat::Event::ReadBack(looked.node));
            }
            (Request::ReadBack, _) => {
                self.processes[who].request = 0;
                self.beat_step(who, heartbeat::Event::ReadFailed);
            }
            (Request::Look, Some(Stored::Found(looked))) => self.looked(who, *looked),
            // Asked again at once: the wait was long enough.
            (Request::Look, _) => self.send(who, Request::Look, terms.answer_within()),
            (Request::Register(session, sent, _), Some(Stored::Committed(true, revision))) => {
                let process = &mut self.processes[who];
                process.request = 0;
                let heartbeat = Heartbeat::new(session, revision, MonoTime(sent), terms);
                process.life = Life::Beating(Box::new(heartbeat));
                self.happens(self.now, Happens::Wakes(who));
            }
            // Lost, or unknown: look again. If it landed after all, it shows.
            (Request::Register(..), _) => self.send(who, Request::Look, terms.answer_within()),
            (Request::Fence(..), Some(Stored::Committed(true, _))) => {}
            (Request::Fence(node, _), _) => self.missed(who, node),
            (Request::Decide(_), Some(Stored::Committed(true, _))) => {}
            (Request::Decide(_), _) => self.decide_anew(who),
        }
    }

    fn looked(&mut self, who: usize, looked: Looked) {
        let now = self.now;
        let terms = self.terms;
        let process = &mut self.processes[who];
        let (reading, sent) = (process.clock.reading(now), process.clock.now(now));
        let Life::Entering { entry, session } = &mut process.life else { return };
        match entry.step(looked, &process.past, reading) {
            Err(_) => process.life = Life::Dead,
            // The pace of looks does not matter here, as long as there is no gap.
            Ok(Step::Look(_)) => self.send(who, Request::Look, terms.answer_within()),
            Ok(Step::Register { .. }) => {
                let node = Node {
                    session: *session,
                    state: NodeState::Live,
                    directory: process.directory,
                    suspect: false,
                    boot: format!("boot{who}"),
                    listeners: Vec::new(),
                    internal: None,
                    rack: None,
                    version: String::new(),
                };
                let decision = entry.decide(&node);
                let request = Request::Register(*session, sent.0, decision);
                self.send(who, request, terms.answer_within());
            }
        }
    }
}
