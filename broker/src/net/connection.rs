//! One client connection: one task that reads requests, starts them, and sends the answers in the order of the
//! requests.
//!
//! Everything happens in one poll loop, so an idle connection is one small future. The next request is read and
//! started while earlier ones wait; how many may wait is bounded, and so is what the peer has not yet read:
//! when answers pile up, no more requests are taken from it. A request that panics ends this task, which is
//! this connection and nothing else.

use std::collections::VecDeque;
use std::future::Future;
use std::pin::Pin;
use std::sync::Arc;
use std::task::{Context, Poll};
use std::time::Duration;

use felix_protocol::time::{Clock, MonoTime};
use tokio::net::TcpStream;
use tokio::time::{Instant, Sleep, sleep};
use tokio_util::sync::WaitForCancellationFutureOwned;

use super::incoming::{Frame, Incoming, Received};
use super::muting::{Charge, Muting};
use super::outgoing::Outgoing;
use crate::budget::answers::{Account, FLOOR_BYTES, Held};
use crate::budget::{Paid, SMALL_FRAME_BYTES, Share, Wait};
use crate::handlers::{self, Answer, Arrival, Client, Reply, Waiting};
use crate::node::Node;

/// Requests of one connection that may be under way at one time.
const MOST_IN_FLIGHT: usize = 64;
/// Bytes of requests that may be under way at one time: enough to keep a fast disk busy.
const MOST_IN_FLIGHT_BYTES: usize = 16 * 1024 * 1024;
/// Requests of one connection that may be parked at one time: consumers have one long poll with a broker.
const MOST_PARKED: usize = 4;
/// Memory that its answers may hold before no more requests are taken from this peer; less when memory is short.
const MOST_HELD_BYTES: usize = 4 * 1024 * 1024;
/// How long a peer may let a large frame rest, for which memory is set aside, or its answers.
const STALLED: Duration = Duration::from_secs(30);
/// The same for answers while memory for them is short.
const STALLED_SHORT: Duration = Duration::from_secs(5);
/// A large frame that takes longer than [`STALLED`] arrives at least as fast, in bytes a second, while memory for
/// frames is short.
const LEAST_PACE: u64 = 64 * 1024;

/// Why a connection ended.
#[derive(Debug)]
pub enum Ended {
    /// The peer closed it.
    Peer,
    /// The socket failed.
    Socket(std::io::Error),
    /// The peer sent what cannot be answered.
    Refused(String),
    /// Silence for longer than `connections.max.idle.ms`, or a frame that never came to its end.
    Idle,
    /// The broker stops.
    Stopping,
}

impl Ended {
    /// The metric's label.
    pub fn reason(&self) -> &'static str {
        match self {
            Ended::Peer => "peer",
            Ended::Socket(_) => "socket",
            Ended::Refused(_) => "refused",
            Ended::Idle => "idle",
            Ended::Stopping => "stopping",
        }
    }
}

/// A request under way, in its place in the order.
struct Slot {
    api: usize,
    started_at: MonoTime,
    answer: Progress,
    /// What the request holds until its answer is there.
    load: Load,
    /// What it is held to, if anybody is limited.
    charge: Option<Box<Charge>>,
}

/// What a request under way weighs. A parked one has let go of it.
#[derive(Default)]
struct Load {
    /// Bytes of the frame.
    bytes: usize,
    parked: bool,
    _paid: Paid,
    _share: Option<Share>,
}

enum Progress {
    Pending(Waiting),
    /// The memory of a plain frame stands beside it.
    Ready(Reply, Option<Held>),
}

/// A request that waits for memory before it is started.
struct Parked {
    request: handlers::Checked,
    paid: Paid,
    wait: Wait,
}

/// The state of one connection.
pub struct Connection {
    stream: TcpStream,
    node: Arc<Node>,
    client: Arc<Client>,
    incoming: Incoming,
    outgoing: Outgoing,
    slots: VecDeque<Slot>,
    /// Memory of this connection's answers, from before they are made until they are sent.
    account: Arc<Account>,
    /// Bytes of the requests that are under way.
    in_flight_bytes: usize,
    /// Requests that are parked.
    parked_requests: usize,
    parked: Option<Box<Parked>>,
    /// The rest that a quota asks for.
    muting: Muting,
    /// No more requests are read: one was refused, and the connection ends in its place in the order.
    refused: bool,
    /// Set once: the connection ends when what is owed is sent.
    ending: Option<Ended>,
    active_at: MonoTime,
    /// When answers last began to be due, or bytes of them went.
    taken_at: MonoTime,
    /// Since when memory is set aside for a frame.
    frame_since: Option<MonoTime>,
    /// The alarm was set for a peer that memory is held for.
    hurried: bool,
    alarm: Pin<Box<Sleep>>,
    closing: Pin<Box<WaitForCancellationFutureOwned>>,
    // Of the moment when it was accepted: neither can be changed while the broker runs.
    request_max_bytes: usize,
    max_idle: Duration,
}

impl Connection {
    /// A connection that has just been accepted.
    pub fn new(stream: TcpStream, node: Arc<Node>, client: Client) -> Connection {
        let now = node.clock.now();
        let limits = node.limits();
        let alarm = Box::pin(sleep(limits.max_idle));
        let closing = Box::pin(node.closing.clone().cancelled_owned());
        let account = node.budget.answers().account();
        Connection {
            stream,
            node,
            client: Arc::new(client),
            incoming: Incoming::new(),
            outgoing: Outgoing::default(),
            slots: VecDeque::new(),
            account,
            in_flight_bytes: 0,
            parked_requests: 0,
            parked: None,
            muting: Muting::default(),
            refused: false,
            ending: None,
            active_at: now,
            taken_at: now,
            frame_since: None,
            hurried: false,
            alarm,
            closing,
            request_max_bytes: limits.request_max_bytes,
            max_idle: limits.max_idle,
        }
    }

    /// Serves until it ends.
    pub async fn run(mut self) -> Ended {
        std::future::poll_fn(|context| self.poll(context)).await
    }

    fn poll(&mut self, context: &mut Context<'_>) -> Poll<Ended> {
        if self.ending.is_none() && self.closing.as_mut().poll(context).is_ready() {
            self.ending = Some(Ended::Stopping);
        }
        self.poll_slots(context);
        loop {
            self.release();
            let sent = match self.poll_send(context) {
                Ok(sent) => sent,
                Err(error) => return Poll::Ready(Ended::Socket(error)),
            };
            if self.ending.is_some() {
                if self.slots.is_empty() && self.outgoing.is_empty() {
                    // Set, so there is something to take.
                    return Poll::Ready(self.ending.take().unwrap_or(Ended::Peer));
                }
                if !sent {
                    break;
                }
            } else if !self.poll_requests(context) && !sent {
                break;
            }
        }
        self.rest();
        if self.poll_alarm(context) { Poll::Ready(Ended::Idle) } else { Poll::Pending }
    }

    /// Lets every request that waits go on.
    fn poll_slots(&mut self, context: &mut Context<'_>) {
        for slot in &mut self.slots {
            let Progress::Pending(waiting) = &mut slot.answer else { continue };
            let began = slot.charge.as_ref().and_then(|charge| charge.begin(&self.node));
            let polled = waiting.as_mut().poll(context);
            if let Some(charge) = &mut slot.charge {
                charge.pause(&self.node, began);
            }
            if let Poll::Ready(reply) = polled {
                slot.answer = due(&self.account, reply);
                let load = std::mem::take(&mut slot.load);
                self.in_flight_bytes -= load.bytes;
                self.parked_requests -= usize::from(load.parked);
            }
        }
    }

    /// Moves the answers that are due to the way out.
    fn release(&mut self) {
        while let Some(Slot { answer: Progress::Ready(..), .. }) = self.slots.front() {
            let Some(slot) = self.slots.pop_front() else { return };
            let Progress::Ready(reply, held) = slot.answer else { return };
            let metrics = self.node.api_metrics(slot.api);
            let now = self.node.clock.now();
            metrics.requests.inc();
            metrics.seconds.observe(now.since(slot.started_at).as_secs_f64());
            if self.outgoing.is_empty() {
                self.taken_at = now;
            }
            let reply = match slot.charge {
                Some(charge) => {
                    let (owed, reply) = charge.settle(&self.node, reply, now);
                    self.mute(owed, now);
                    reply
                }
                None => reply,
            };
            match reply {
                Reply::Frame(frame) => {
                    let held = held.unwrap_or_else(|| self.account.count(frame.len()));
                    self.outgoing.push([frame], held);
                }
                Reply::Pieces(pieces, held) => self.outgoing.push(pieces, held),
                Reply::None => {}
                Reply::Close(reason) => return self.end(Ended::Refused(reason)),
            }
        }
    }

    /// Ends the connection once the answers that are ready in order are sent. Whatever still waits is dropped.
    fn end(&mut self, ended: Ended) {
        self.ending = Some(ended);
        self.parked = None;
        let due = self
            .slots
            .iter()
            .position(
                |slot| !matches!(&slot.answer, Progress::Ready(reply, _) if !matches!(reply, Reply::Close(_))),
            )
            .unwrap_or(self.slots.len());
        self.slots.truncate(due);
        self.alarm.as_mut().reset(Instant::now_after(STALLED));
    }

    /// Sends what is due; whether any bytes went.
    fn poll_send(&mut self, context: &mut Context<'_>) -> std::io::Result<bool> {
        let mut any = false;
        while !self.outgoing.is_empty() {
            match self.outgoing.poll_send(&mut self.stream, context) {
                Poll::Ready(sent) => {
                    self.node.metrics.sent_bytes.inc_by(sent? as u64);
                    self.active_at = self.node.clock.now();
                    self.taken_at = self.active_at;
                    any = true;
                }
                Poll::Pending => {
                    self.hurry();
                    break;
                }
            }
        }
        Ok(any)
    }

    /// Memory is held for a peer that does not do its part: the alarm rings sooner, once.
    fn hurry(&mut self) {
        if !self.hurried {
            self.hurried = true;
            self.alarm.as_mut().reset(Instant::now_after(STALLED_SHORT));
        }
    }

    /// Whether another request may be taken from this peer.
    fn has_room(&self) -> bool {
        self.slots.len() < MOST_IN_FLIGHT
            && self.in_flight_bytes < MOST_IN_FLIGHT_BYTES
            && self.parked_requests < MOST_PARKED
            && self.account.has_room(MOST_HELD_BYTES)
            && !self.muting.is_on()
            && !self.refused
            && self.ending.is_none()
    }

    /// Reads nothing for so long; never longer than a silent peer would be kept.
    fn mute(&mut self, owed: Duration, now: MonoTime) {
        self.muting.extend(owed.min(self.max_idle), now);
    }

    /// Starts the requests that are here and reads more; whether anything was done.
    fn poll_requests(&mut self, context: &mut Context<'_>) -> bool {
        let mut any = false;
        if let Some(mut parked) = self.parked.take() {
            match parked.wait.as_mut().poll(context) {
                Poll::Ready(share) => {
                    self.start(parked.request, parked.paid, share, context);
                    any = true;
                }
                Poll::Pending => {
                    self.parked = Some(parked);
                    return false;
                }
            }
        }
        if self.muting.poll_over(context).is_ready() {
            // The time in which it was not read from does not count.
            self.active_at = self.node.clock.now();
            self.frame_since = self.frame_since.map(|_| self.active_at);
        }
        let max = self.request_max_bytes;
        while self.has_room() {
            match self.incoming.frame(max) {
                Ok(Some(frame)) => {
                    any = true;
                    self.arrive(frame, context);
                    if self.parked.is_some() {
                        return true;
                    }
                }
                Ok(None) => return self.poll_receive(context) || any,
                Err(error) => {
                    self.end_after(error.to_string());
                    return true;
                }
            }
        }
        any
    }

    /// Reads once; whether anything came.
    fn poll_receive(&mut self, context: &mut Context<'_>) -> bool {
        let waits = &self.node.metrics.memory_waits;
        let receiving = self.node.budget.receiving();
        let held = self.incoming.holds_memory();
        let waited = self.incoming.is_waiting();
        let received = self.incoming.poll_receive(&mut self.stream, receiving, || waits.inc(), context);
        if !held && self.incoming.holds_memory() {
            self.alarm.as_mut().reset(Instant::now_after(STALLED));
            self.frame_since = Some(self.node.clock.now());
        } else if waited && !self.incoming.is_waiting() {
            // The time in which it was not read from does not count.
            self.active_at = self.node.clock.now();
            self.frame_since = self.frame_since.map(|_| self.active_at);
        }
        match received {
            Poll::Ready(Ok(Received::Bytes(count))) => {
                self.node.metrics.received_bytes.inc_by(count as u64);
                self.active_at = self.node.clock.now();
            }
            Poll::Ready(Ok(Received::End)) => self.end(Ended::Peer),
            Poll::Ready(Err(error)) => self.end(Ended::Socket(error)),
            Poll::Pending => return false,
        }
        true
    }

    /// Checks a whole frame and starts it, or parks it until there is memory for it.
    fn arrive(&mut self, frame: Frame, context: &mut Context<'_>) {
        let Frame { bytes: frame, backing, paid } = frame;
        self.frame_since = None;
        let frame_bytes = if frame.len() <= SMALL_FRAME_BYTES { frame.len() } else { 0 };
        let request = match handlers::check(frame, backing) {
            Ok(Arrival::Request(request)) => request,
            Ok(Arrival::Answer { api, reply }) => {
                self.push_ready(api, reply);
                return;
            }
            Err(refusal) => return self.end_after(refusal.to_string()),
        };
        let bytes = frame_bytes + request.memory();
        let purse = self.node.budget.working();
        match purse.take(bytes) {
            Some(share) => self.start(request, paid, Some(share), context),
            None => {
                self.node.metrics.memory_waits.inc();
                self.parked = Some(Box::new(Parked { request, paid, wait: purse.wait(bytes) }));
            }
        }
    }

    /// A request that cannot be answered: those before it still are, then the connection ends.
    fn end_after(&mut self, reason: String) {
        self.refused = true;
        self.push_ready(handlers::UNKNOWN_API, Reply::Close(reason));
    }

    fn start(
        &mut self,
        request: handlers::Checked,
        paid: Paid,
        share: Option<Share>,
        context: &mut Context<'_>,
    ) {
        let api = request.index();
        let bytes = request.bytes();
        let mut charge = Charge::of(&self.node, &request);
        if let Some(charge) = &charge {
            self.mute(charge.owed(), self.node.clock.now());
        }
        self.client.asks.notify_waiters();
        let began = charge.as_ref().and_then(|charge| charge.begin(&self.node));
        let started = handlers::start(&self.node, &self.client, &self.account, request);
        let (answer, load) = match started {
            Answer::Now(reply) => (due(&self.account, reply), Load::default()),
            Answer::Later(waiting) => {
                self.first_poll(waiting, Load { bytes, parked: false, _paid: paid, _share: share }, context)
            }
            Answer::Parked(waiting) => {
                self.first_poll(waiting, Load { parked: true, ..Load::default() }, context)
            }
        };
        if let Some(charge) = &mut charge {
            charge.pause(&self.node, began);
        }
        self.slots.push_back(Slot { api, started_at: self.active_at, answer, load, charge });
    }

    /// Starts what may have to wait.
    fn first_poll(
        &mut self,
        mut waiting: Waiting,
        load: Load,
        context: &mut Context<'_>,
    ) -> (Progress, Load) {
        match waiting.as_mut().poll(context) {
            Poll::Ready(reply) => (due(&self.account, reply), Load::default()),
            Poll::Pending => {
                self.in_flight_bytes += load.bytes;
                self.parked_requests += usize::from(load.parked);
                (Progress::Pending(waiting), load)
            }
        }
    }

    fn push_ready(&mut self, api: usize, reply: Reply) {
        let (started_at, answer) = (self.active_at, due(&self.account, reply));
        self.slots.push_back(Slot { api, started_at, answer, load: Load::default(), charge: None });
    }

    /// Before going to sleep: an idle connection keeps no memory that it does not need.
    fn rest(&mut self) {
        if self.slots.is_empty() && self.slots.capacity() > 0 {
            self.slots = VecDeque::new();
        }
        self.outgoing.shrink();
    }

    /// Whether the connection has been silent for too long. The timer is only touched when it rings, so a busy
    /// connection pays nothing for it.
    fn poll_alarm(&mut self, context: &mut Context<'_>) -> bool {
        while self.alarm.as_mut().poll(context).is_ready() {
            let now = self.node.clock.now();
            let takes = !self.outgoing.is_empty();
            self.hurried = self.incoming.holds_memory() || self.ending.is_some() || takes;
            // Whoever does not take its answers is idle, whatever else it sends.
            let silent = now.since(if takes { self.taken_at } else { self.active_at });
            let limit = match self.hurried {
                true if takes && self.answers_are_short() => STALLED_SHORT,
                true => STALLED,
                false => self.max_idle,
            };
            let limit = limit.min(self.max_idle);
            // Whoever waits for an answer, or for memory, is not.
            let waits = !self.slots.is_empty() && !takes;
            let waits = waits || self.parked.is_some() || self.incoming.is_waiting() || self.muting.is_on();
            if (silent >= limit && !waits) || self.is_slow(now) {
                return true;
            }
            let rest = limit.saturating_sub(silent).max(Duration::from_millis(100));
            let rest = if waits { limit } else { rest };
            let rest = if takes { rest.min(STALLED_SHORT) } else { rest };
            self.alarm.as_mut().reset(Instant::now_after(rest));
        }
        false
    }

    /// Whether others lack the memory that this connection's answers hold.
    fn answers_are_short(&self) -> bool {
        self.account.held() > FLOOR_BYTES && self.node.budget.answers().is_short()
    }

    /// Whether a frame that memory is set aside for comes so slowly that others should have it.
    fn is_slow(&self, now: MonoTime) -> bool {
        let Some(since) = self.frame_since.filter(|_| !self.incoming.is_waiting()) else { return false };
        let elapsed = now.since(since);
        if elapsed < STALLED || !self.node.budget.receiving().is_short() {
            return false;
        }
        self.incoming.is_last() || (self.incoming.arrived() as u64) < LEAST_PACE * elapsed.as_secs()
    }
}

/// An answer that is ready, with the memory that it holds.
fn due(account: &Arc<Account>, reply: Reply) -> Progress {
    let held = match &reply {
        Reply::Frame(frame) => Some(account.count(frame.len())),
        Reply::Pieces(..) | Reply::None | Reply::Close(_) => None,
    };
    Progress::Ready(reply, held)
}

/// Tokio's timers have a clock of their own, of which only "from now" is used.
trait NowAfter {
    fn now_after(wait: Duration) -> Instant;
}

impl NowAfter for Instant {
    fn now_after(wait: Duration) -> Instant {
        Instant::now() + wait
    }
}
