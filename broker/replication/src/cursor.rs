//! One follower, seen by its leader: where it is, and what is on its way to it.
//!
//! ```text
//!             header              stored                 retry, disconnected
//!   Unknown ─────────▶ Reconciling ─────────▶ Shipping ─────────────────────▶ Unknown
//!      ▲                   │  ▲  gap, another copy │
//!      │                   │  └────────────────────┘
//!      │ stored            │ halted, empty          granted            level
//!      └── Restarting ◀────┴──────▶ Halted ──────────▶ Restarting … Shipping ──▶ the slot is given back
//! ```
//!
//! | state | is sent | a position answered |
//! |---|---|---|
//! | Unknown | nothing, then a header when connected and not resting | – |
//! | Reconciling | a header, again after NeedMap with more of the map | is where shipping begins |
//! | Shipping | what the log has beyond `next`, several frames at a time, bounded in bytes; an empty frame when the mark moved or nothing was said for a second | counts (C4) |
//! | Restarting | a bootstrap or rebuild that names the copy | is another copy's: reconciled anew |
//! | Halted | nothing, until it may be restarted | – |
//!
//! Only answers move a cursor. What it knows dies with the tenure and with the follower's log id; a machine lasts for one tenure.
//! Deliberately absent: the connection, reading the log, and who is eligible ([`crate::leader`]).

mod core;
mod words;

use std::collections::VecDeque;
use std::time::Duration;

use felix_protocol::ids::{BrokerId, Generation, LogId, Offset};
use felix_protocol::peer::ship::Said;
use felix_protocol::time::MonoTime;

pub use self::core::{Core, Learned};
pub use self::words::{Action, Event, FrameId, HEADER_ENTRIES, HeaderMap, Limits, LogFacts, State};
use crate::eligible::Pair;
use crate::halted::HaltReason;
use crate::rebuild::Pace;
use crate::rules::{AllRules, Rules};

/// A mark that moved with nothing to ship is told within this.
pub const MARK_WITHIN: Duration = Duration::from_millis(50);
/// A follower hears something at least this often.
pub const IDLE: Duration = Duration::from_secs(1);
/// Followers that are level are told what there is at the same instants for all partitions, so that thousands share a request.
const BEAT: Duration = Duration::from_millis(20);
/// First wait after "not now"; doubles up to [`LONGEST_REST`].
const FIRST_REST: Duration = Duration::from_millis(50);
/// Longest wait before a follower is tried again.
const LONGEST_REST: Duration = Duration::from_secs(1);

#[derive(Clone, Copy, Debug)]
struct Flight {
    frame: FrameId,
    kind: Kind,
    bytes: usize,
}

#[derive(Clone, Copy, Debug, PartialEq, Eq)]
enum Kind {
    Header,
    Data,
    Restart,
}

/// A restart that waits to be granted.
#[derive(Clone, Copy, Debug)]
struct Wanted {
    rebuild: bool,
    ask_at: MonoTime,
}

/// One follower's cursor.
#[derive(Clone, Debug)]
pub struct Cursor<R: Rules = AllRules> {
    core: Core<R>,
    state: State,
    limits: Limits,
    log: LogFacts,
    connected: bool,
    next_frame: u64,
    /// Where the next frame begins.
    next: Offset,
    /// A frame that is being read.
    reading: Option<FrameId>,
    flights: VecDeque<Flight>,
    flying_bytes: usize,
    header_map: HeaderMap,
    wanted: Option<Wanted>,
    /// The copy was said to have stopped, and not yet to go on.
    listed: bool,
    /// The pace of a rebuild, until it is level.
    rebuilding: Option<Pace>,
    rest_until: MonoTime,
    rest: Duration,
    last_sent_at: MonoTime,
    mark_sent: Offset,
    mark_due: MonoTime,
}

impl<R: Rules> Cursor<R> {
    /// A follower of which this tenure knows nothing.
    pub fn new(broker: BrokerId, generation: Generation, log: LogFacts, limits: Limits) -> Cursor<R> {
        Cursor {
            core: Core::new(broker, generation),
            state: State::Unknown,
            limits,
            log,
            connected: false,
            next_frame: 0,
            next: log.end,
            reading: None,
            flights: VecDeque::new(),
            flying_bytes: 0,
            header_map: HeaderMap::Newest,
            wanted: None,
            listed: false,
            rebuilding: None,
            rest_until: MonoTime(0),
            rest: FIRST_REST,
            last_sent_at: MonoTime(0),
            mark_sent: 0,
            mark_due: MonoTime::NEVER,
        }
    }

    /// The safety core.
    pub fn core(&self) -> &Core<R> {
        &self.core
    }

    /// How far it is.
    pub fn state(&self) -> State {
        self.state
    }

    /// Whether a rebuild is under way.
    pub fn is_rebuilding(&self) -> bool {
        self.rebuilding.is_some()
    }

    /// Record bytes on their way.
    pub fn flying_bytes(&self) -> usize {
        self.flying_bytes
    }

    /// When the machine wants a [`Event::Tick`].
    pub fn next_tick(&self) -> MonoTime {
        if !self.connected {
            return MonoTime::NEVER;
        }
        let asks = self.wanted.map_or(MonoTime::NEVER, |wanted| wanted.ask_at);
        match self.state {
            State::Unknown => self.rest_until,
            // The next answer says how it goes on.
            State::Shipping if self.reading.is_some() || self.flights.len() >= self.limits.frames => {
                MonoTime::NEVER
            }
            State::Shipping => {
                let paced = self.rebuilding.as_ref().filter(|_| self.next < self.log.end);
                let paced = paced.map_or(MonoTime::NEVER, Pace::ready_at);
                self.mark_due.min(self.idle_at()).min(paced)
            }
            State::Reconciling | State::Restarting | State::Halted(_) => asks,
        }
    }

    /// When a follower that is told nothing else hears of the leader: a second after what it heard last, or a beat earlier.
    fn idle_at(&self) -> MonoTime {
        on_beat(self.last_sent_at.after(IDLE))
    }

    /// Takes in one event.
    pub fn step(&mut self, event: Event, now: MonoTime) -> Vec<Action> {
        let mut actions = Vec::new();
        match event {
            Event::Connected => {
                self.lose_flights();
                self.connected = true;
                self.rest_until = now;
                self.rest = FIRST_REST;
                self.begin(now, &mut actions);
            }
            Event::Disconnected => {
                self.connected = false;
                self.give_slot_back(false, &mut actions);
                self.lose_flights();
                actions.push(Action::Lost);
            }
            Event::Log(log) => self.moved(log, now),
            Event::Sent { frame, next, bytes } => self.sent(frame, next, bytes, now),
            Event::Unreadable(frame) => {
                // What is missing is brought anew, once the follower has heard where the log begins.
                if self.reading == Some(frame) {
                    self.reading = None;
                    self.rest(now);
                }
            }
            // At once would be as often as the wire allows, with a peer that knows less than this broker.
            Event::Unanswered if self.connected => {
                self.give_slot_back(false, &mut actions);
                self.rest(now);
            }
            Event::Unanswered => {}
            Event::Answer { frame, log, generation, end, said } => {
                self.answer(frame, log, generation, end, said, now, &mut actions);
            }
            Event::Granted { bytes_per_sec } => self.granted(bytes_per_sec, now, &mut actions),
            Event::Tick => self.tick(now, &mut actions),
        }
        self.pump(now, &mut actions);
        actions
    }

    fn moved(&mut self, log: LogFacts, now: MonoTime) {
        self.log = log;
        if log.mark > self.mark_sent && self.mark_due == MonoTime::NEVER {
            self.mark_due = on_beat(now.after(MARK_WITHIN * 4 / 5));
        }
    }

    fn sent(&mut self, frame: FrameId, next: Offset, bytes: usize, now: MonoTime) {
        if self.reading != Some(frame) {
            return;
        }
        self.reading = None;
        if let Some(pace) = &mut self.rebuilding {
            pace.spend(bytes, now);
        }
        self.next = next;
        self.flying_bytes += bytes;
        self.flights.push_back(Flight { frame, kind: Kind::Data, bytes });
        self.said_something(now);
    }

    fn said_something(&mut self, now: MonoTime) {
        self.last_sent_at = now;
        self.mark_sent = self.log.mark;
        self.mark_due = MonoTime::NEVER;
    }

    /// Nothing that is on its way counts any more.
    fn lose_flights(&mut self) {
        self.flights.clear();
        self.flying_bytes = 0;
        self.reading = None;
        self.header_map = HeaderMap::Newest;
        self.wanted = None;
        self.state = State::Unknown;
    }

    fn rest(&mut self, now: MonoTime) {
        self.lose_flights();
        self.rest_until = now.after(self.rest);
        self.rest = (self.rest * 2).min(LONGEST_REST);
    }

    fn fresh_frame(&mut self, kind: Kind) -> FrameId {
        let frame = FrameId(self.next_frame);
        self.next_frame += 1;
        if kind != Kind::Data {
            self.flights.push_back(Flight { frame, kind, bytes: 0 });
        }
        frame
    }

    /// Sends the header, if the follower may be spoken to.
    fn begin(&mut self, now: MonoTime, actions: &mut Vec<Action>) {
        if self.state != State::Unknown || !self.connected || now < self.rest_until {
            return;
        }
        if self.rebuilding.as_ref().is_some_and(|pace| !pace.has_slot()) {
            // It was being rebuilt when the connection went. Its slot was given back, so it waits for another.
            self.state = State::Restarting;
            self.want(true, now, actions);
            return;
        }
        self.state = State::Reconciling;
        let frame = self.fresh_frame(Kind::Header);
        actions.push(Action::Header { frame, map: self.header_map });
        self.said_something(now);
    }

    #[expect(clippy::too_many_arguments, reason = "an answer has as many fields")]
    fn answer(
        &mut self,
        frame: FrameId,
        log: Option<LogId>,
        generation: Generation,
        end: Offset,
        said: Said,
        now: MonoTime,
        actions: &mut Vec<Action>,
    ) {
        // An answer to what is not on its way any more was overtaken: it says less than what is known.
        let Some(at) = self.flights.iter().position(|flight| flight.frame == frame) else { return };
        let Some(flight) = self.flights.remove(at) else { return };
        self.flying_bytes -= flight.bytes;
        actions.push(Action::Heard);
        let learned =
            self.core.answered(generation, log, end, said, flight.kind == Kind::Restart, self.log.end);
        if let Some(dead) = learned.dead {
            actions.push(Action::Dead(dead));
        }
        if let Some((pair, position)) = learned.confirmed {
            actions.push(Action::Confirmed { pair, position });
        }
        if let Some(newer) = learned.superseded {
            actions.push(Action::Superseded(newer));
            self.halt(HaltReason::Fenced, end, now, actions);
            return;
        }
        if learned.stale {
            // A copy that cannot be opened says so at no generation; that it has stopped is true all the same. It is asked again, because
            // its broker tries again.
            if let (Said::Halted(reason), Some(log)) = (said, log) {
                let pair = Pair { broker: self.core.broker(), log };
                actions.push(Action::Halted { pair, position: end, reason: HaltReason::numbered(reason) });
            }
            self.rest(now);
            return;
        }
        if learned.diverged {
            self.halt(HaltReason::Diverged, end, now, actions);
            return;
        }
        self.follow(flight.kind, learned.changed, end, said, now, actions);
    }

    fn follow(
        &mut self,
        kind: Kind,
        changed: bool,
        end: Offset,
        said: Said,
        now: MonoTime,
        actions: &mut Vec<Action>,
    ) {
        match said {
            Said::Stored if kind == Kind::Header => {
                self.state = State::Shipping;
                self.rest = FIRST_REST;
                self.next = end;
                self.resumed(actions);
                self.check_level(end, actions);
            }
            // Another copy than the one that was spoken to, or one that has just begun.
            Said::Stored if changed || kind == Kind::Restart => self.again(HeaderMap::Newest, now, actions),
            Said::Stored => {
                self.rest = FIRST_REST;
                self.check_level(end, actions);
            }
            Said::LogGap | Said::NeedHeader => {
                // Twice in a row is not at once: something else is wrong.
                if kind == Kind::Header {
                    self.rest(now)
                } else {
                    self.again(HeaderMap::Newest, now, actions)
                }
            }
            Said::NeedMap(since) => {
                if self.header_map == HeaderMap::Since(since) {
                    self.rest(now);
                } else {
                    self.again(HeaderMap::Since(since), now, actions);
                }
            }
            Said::Empty => {
                self.lose_flights();
                self.state = State::Restarting;
                self.want(false, now, actions);
            }
            Said::Halted(reason) => self.halt(HaltReason::numbered(reason), end, now, actions),
            Said::Retry | Said::Fenced | Said::Other(_) => self.rest(now),
            Said::Refused => {
                self.give_slot_back(false, actions);
                self.rebuilding = None;
                self.rest(now);
            }
        }
    }

    /// A header, now.
    fn again(&mut self, map: HeaderMap, now: MonoTime, actions: &mut Vec<Action>) {
        self.lose_flights();
        self.header_map = map;
        self.rest_until = now;
        self.begin(now, actions);
    }

    fn halt(&mut self, reason: HaltReason, position: Offset, now: MonoTime, actions: &mut Vec<Action>) {
        self.lose_flights();
        self.give_slot_back(false, actions);
        self.rebuilding = None;
        self.state = State::Halted(reason);
        let Some(pair) = self.core.pair() else { return };
        self.listed = true;
        actions.push(Action::Halted { pair, position, reason });
        if reason.is_rebuilt() {
            self.want(true, now, actions);
        }
    }

    fn want(&mut self, rebuild: bool, now: MonoTime, actions: &mut Vec<Action>) {
        let Some(pair) = self.core.pair() else { return };
        self.wanted = Some(Wanted { rebuild, ask_at: now.after(IDLE) });
        actions.push(Action::AskRestart { pair, rebuild });
    }

    fn granted(&mut self, bytes_per_sec: u64, now: MonoTime, actions: &mut Vec<Action>) {
        let Some(wanted) = self.wanted.take() else {
            // Nobody waits for it any more.
            actions.push(Action::ReleaseSlot { completed: false });
            return;
        };
        let Some(pair) = self.core.pair().filter(|_| self.connected) else {
            self.wanted = Some(wanted);
            actions.push(Action::ReleaseSlot { completed: false });
            return;
        };
        let going_on = wanted.rebuild && self.rebuilding.is_some();
        if wanted.rebuild {
            self.rebuilding = Some(Pace::new(bytes_per_sec, now));
        }
        if going_on {
            self.state = State::Unknown;
            self.rest_until = now;
            self.begin(now, actions);
            return;
        }
        self.resumed(actions);
        self.state = State::Restarting;
        let frame = self.fresh_frame(Kind::Restart);
        actions.push(Action::Restart { frame, log: pair.log, rebuild: wanted.rebuild });
        self.said_something(now);
    }

    fn resumed(&mut self, actions: &mut Vec<Action>) {
        if std::mem::take(&mut self.listed) {
            actions.push(Action::Resumed);
        }
    }

    fn check_level(&mut self, end: Offset, actions: &mut Vec<Action>) {
        if end >= self.log.end && self.rebuilding.is_some() {
            self.give_slot_back(true, actions);
            self.rebuilding = None;
        }
    }

    fn give_slot_back(&mut self, completed: bool, actions: &mut Vec<Action>) {
        if let Some(pace) = &mut self.rebuilding
            && pace.take_slot()
        {
            actions.push(Action::ReleaseSlot { completed });
        }
    }

    fn tick(&mut self, now: MonoTime, actions: &mut Vec<Action>) {
        if let Some(wanted) = self.wanted.filter(|wanted| self.connected && wanted.ask_at <= now) {
            self.want(wanted.rebuild, now, actions);
        } else {
            self.begin(now, actions);
        }
    }

    /// Sends as much as may be on its way.
    fn pump(&mut self, now: MonoTime, actions: &mut Vec<Action>) {
        let Some(pair) = self.core.pair().filter(|_| self.connected && self.state == State::Shipping) else {
            return;
        };
        if self.reading.is_some() || self.flights.len() >= self.limits.frames {
            return;
        }
        let room = self.limits.bytes.saturating_sub(self.flying_bytes);
        let paced = self.rebuilding.as_ref().is_some_and(|pace| pace.ready_at() > now);
        if self.next < self.log.end && room > 0 && !paced {
            let most = room.min(self.limits.frame_bytes);
            let frame = self.fresh_frame(Kind::Data);
            self.reading = Some(frame);
            actions.push(Action::Ship { frame, log: pair.log, from: self.next, most });
        } else if self.mark_due <= now || self.idle_at() <= now {
            let frame = self.fresh_frame(Kind::Data);
            self.flights.push_back(Flight { frame, kind: Kind::Data, bytes: 0 });
            actions.push(Action::Idle { frame, log: pair.log });
            self.said_something(now);
        }
    }
}

/// The last beat until then.
fn on_beat(latest: MonoTime) -> MonoTime {
    let beat = u64::try_from(BEAT.as_nanos()).unwrap_or(u64::MAX);
    MonoTime(latest.0 - latest.0 % beat)
}

#[cfg(test)]
mod tests;
