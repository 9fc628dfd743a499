//! One peer as this broker asks it: what is on its way to it, and the connection that is dialled for it.
//!
//! ```text
//!   no target ──▶ dialling ──▶ up ──▶ down ──▶ (back-off) dialling …
//!                    ▲                              a new session or address: at once
//! ```
//!
//! A request is numbered, and answered under its number: once, or as often as whoever asked expects. Requests and their
//! bytes are bounded; whoever wants to send more waits. Nothing is kept for a peer that is not there.

use std::collections::BTreeMap;
use std::sync::Arc;
use std::time::Duration;

use bytes::Bytes;
use felix_protocol::ids::{BrokerId, SessionId};
use felix_protocol::peer::{self, Message, Received};
use felix_protocol::time::{Clock, MonoTime};
use parking_lot::Mutex;
use tokio::sync::{OwnedSemaphorePermit, Semaphore, mpsc, watch};

use super::Unanswered;
use crate::clock::SystemClock;

/// Requests without an answer.
const MOST_REQUESTS: usize = 64;
/// Their bytes.
const MOST_BYTES: u32 = 16 * 1024 * 1024;

/// A connection that is up.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub struct Up {
    /// Rises with each connection.
    pub number: u64,
    /// The peer's life.
    pub session: SessionId,
}

/// A connection that broke, and was not to be had again since: the other end closed it, and refuses new ones. So does the
/// machine of a process that was killed.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub struct Lost {
    /// The peer's life that it led to.
    pub session: SessionId,
    /// When it broke.
    pub at: MonoTime,
}

/// Told of each answer, and why there is none. Says whether it was the last; after an error it always was. Called on the
/// network's threads, and must not wait.
pub type Answered = Box<dyn FnMut(Result<Message, Unanswered>) -> bool + Send>;

/// Room for one request.
pub struct Room {
    _request: OwnedSemaphorePermit,
    _bytes: OwnedSemaphorePermit,
}

struct Pending {
    kind: &'static str,
    answered: Answered,
    deadline: MonoTime,
    /// Given back when the request is over.
    _room: Room,
}

struct Live {
    up: Up,
    outgoing: mpsc::UnboundedSender<Vec<Bytes>>,
    pending: BTreeMap<u64, Pending>,
}

/// See the module.
pub struct Link {
    peer: BrokerId,
    clock: SystemClock,
    live: Mutex<Option<Live>>,
    next: std::sync::atomic::AtomicU64,
    requests: Arc<Semaphore>,
    bytes: Arc<Semaphore>,
    up: watch::Sender<Option<Up>>,
    lost: Mutex<Option<Lost>>,
}

/// What became of a request, for the metric.
pub type Outcome<'a> = &'a mut dyn FnMut(&'static str, &'static str);

impl Link {
    /// `first`: numbers from here on are no other link's.
    pub(super) fn new(peer: BrokerId, clock: SystemClock, first: u64) -> Link {
        Link {
            peer,
            clock,
            live: Mutex::new(None),
            next: std::sync::atomic::AtomicU64::new(first),
            requests: Arc::new(Semaphore::new(MOST_REQUESTS)),
            bytes: Arc::new(Semaphore::new(MOST_BYTES as usize)),
            up: watch::Sender::new(None),
            lost: Mutex::new(None),
        }
    }

    /// Who it leads to.
    pub fn peer(&self) -> BrokerId {
        self.peer
    }

    /// Tells of every connection, and of its end.
    pub fn up(&self) -> watch::Receiver<Option<Up>> {
        self.up.subscribe()
    }

    /// The connection that broke, if that is how things are.
    pub fn lost(&self) -> Option<Lost> {
        *self.lost.lock()
    }

    /// Waits for room for a request of so many bytes. One that is larger than all there is takes all there is.
    pub async fn room(&self, bytes: usize) -> Option<Room> {
        let bytes = u32::try_from(bytes).unwrap_or(u32::MAX).clamp(1, MOST_BYTES);
        // Neither semaphore is ever closed.
        let request = Arc::clone(&self.requests).acquire_owned().await.ok()?;
        let bytes = Arc::clone(&self.bytes).acquire_many_owned(bytes).await.ok()?;
        Some(Room { _request: request, _bytes: bytes })
    }

    /// Room for a small request, if there is any.
    pub fn try_room(&self) -> Option<Room> {
        let request = Arc::clone(&self.requests).try_acquire_owned().ok()?;
        let bytes = Arc::clone(&self.bytes).try_acquire_owned().ok()?;
        Some(Room { _request: request, _bytes: bytes })
    }

    /// Sends `message` now. `answered` is called, unless an error comes back from here. `on` is the connection that must
    /// still be up.
    pub fn post(
        &self,
        message: &Message,
        room: Room,
        on: Option<Up>,
        within: Duration,
        answered: Answered,
    ) -> Result<(), Unanswered> {
        let correlation = self.next.fetch_add(1, std::sync::atomic::Ordering::Relaxed);
        let pieces = peer::encode(correlation, message)?;
        let deadline = self.clock.now().after(within);
        let mut live = self.live.lock();
        let live = live.as_mut().filter(|live| on.is_none_or(|on| on == live.up));
        let Some(live) = live else { return Err(Unanswered::NotConnected(self.peer)) };
        let pending = Pending { kind: name(message), answered, deadline, _room: room };
        live.pending.insert(correlation, pending);
        // The connection takes this back when it ends.
        let _ = live.outgoing.send(pieces);
        Ok(())
    }

    /// A connection is up; what is to be sent on it comes out of the receiver.
    pub(super) fn begin(&self, session: SessionId) -> mpsc::UnboundedReceiver<Vec<Bytes>> {
        let (outgoing, receiver) = mpsc::unbounded_channel();
        let number = self.next.fetch_add(1, std::sync::atomic::Ordering::Relaxed);
        let up = Up { number, session };
        *self.live.lock() = Some(Live { up, outgoing, pending: BTreeMap::new() });
        *self.lost.lock() = None;
        self.up.send_replace(Some(up));
        receiver
    }

    /// The connection is down, or could not be made: nobody will answer what was sent on it. `broke`: the other end would
    /// have none of it ([`Lost`]).
    pub(super) fn end(&self, broke: bool, outcome: Outcome<'_>) {
        let taken = self.live.lock().take();
        let mut lost = self.lost.lock();
        *lost = match &taken {
            _ if !broke => None,
            Some(live) => Some(Lost { session: live.up.session, at: self.clock.now() }),
            None => *lost,
        };
        drop(lost);
        let Some(live) = taken else { return };
        self.up.send_replace(None);
        for (_, mut pending) in live.pending {
            outcome(pending.kind, "disconnected");
            (pending.answered)(Err(Unanswered::Disconnected(self.peer)));
        }
    }

    /// Something was received.
    pub(super) fn received(&self, correlation: u64, received: Received, outcome: Outcome<'_>) {
        let taken = self.live.lock().as_mut().and_then(|live| live.pending.remove(&correlation));
        // It may have been given up.
        let Some(mut pending) = taken else { return };
        let answer = match received {
            Received::Message(Message::UnsupportedKind(kind)) => Err(Unanswered::Unsupported(kind)),
            Received::Message(message) => Ok(message),
            // An answer of a kind that is not known here is none.
            Received::Unknown(kind) => Err(Unanswered::Unsupported(kind)),
        };
        let is_refused = answer.is_err();
        if (pending.answered)(answer) || is_refused {
            outcome(pending.kind, if is_refused { "unsupported" } else { "answered" });
            return;
        }
        match self.live.lock().as_mut() {
            Some(live) => drop(live.pending.insert(correlation, pending)),
            None => drop((pending.answered)(Err(Unanswered::Disconnected(self.peer)))),
        }
    }

    /// Gives up what has waited for too long.
    pub(super) fn expire(&self, outcome: Outcome<'_>) {
        let now = self.clock.now();
        let mut expired = Vec::new();
        if let Some(live) = self.live.lock().as_mut() {
            expired.extend(live.pending.extract_if(.., |_, pending| pending.deadline <= now));
        }
        for (_, mut pending) in expired {
            outcome(pending.kind, "timed_out");
            (pending.answered)(Err(Unanswered::TimedOut(self.peer)));
        }
    }
}

#[cfg(test)]
impl Link {
    /// One that leads to nobody, and what is sent on it. Requests are numbered from two on.
    pub(crate) fn to_nobody(peer: BrokerId) -> (Arc<Link>, Up, mpsc::UnboundedReceiver<Vec<Bytes>>) {
        let link = Arc::new(Link::new(peer, SystemClock::start(), 1));
        let sent = link.begin(SessionId(7));
        let up = (*link.up().borrow()).unwrap_or(Up { number: 1, session: SessionId(7) });
        (link, up, sent)
    }

    /// Nobody refuses a request.
    pub(crate) fn refuse(&self, correlation: u64) {
        self.received(correlation, Received::Unknown(999), &mut |_, _| {});
    }
}

/// What a request is called in metrics.
pub fn name(message: &Message) -> &'static str {
    match message {
        Message::Hello(_) => "hello",
        Message::UnsupportedKind(_) => "unsupported",
        Message::Ship(_) => "ship",
        Message::Answers(_) => "answers",
        Message::Bootstrap(_) => "bootstrap",
        Message::Rebuild(_) => "rebuild",
        Message::StandingQuery(_) => "standing",
        Message::StandingAnswers(_) => "standings",
    }
}

/// Waits between tries: doubling, with a random half.
pub(super) struct BackOff {
    first: Duration,
    longest: Duration,
    next: Duration,
}

impl BackOff {
    pub(super) fn new(first: Duration, longest: Duration) -> BackOff {
        BackOff { first, longest, next: first }
    }

    pub(super) fn reset(&mut self) {
        self.next = self.first;
    }

    pub(super) fn next(&mut self) -> Duration {
        let wait = self.next;
        self.next = (wait * 2).min(self.longest);
        // So that brokers which lost each other at one instant do not meet again at one.
        let dice = std::hash::BuildHasher::hash_one(&std::hash::RandomState::new(), wait);
        let half = u64::try_from(wait.as_nanos() / 2).unwrap_or(u64::MAX).max(1);
        Duration::from_nanos(half + dice % half)
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn a_connection_that_broke_is_lost_until_there_is_another_or_something_else_is_in_its_way() {
        let link = Link::new(BrokerId(2), SystemClock::start(), 1);
        let mut outcome = |_, _| {};
        link.end(true, &mut outcome);
        assert_eq!(link.lost(), None, "it was never up: nobody is missed");
        let _sent = link.begin(SessionId(7));
        link.end(true, &mut outcome);
        let lost = link.lost().unwrap();
        assert_eq!(lost.session, SessionId(7));
        link.end(true, &mut outcome);
        assert_eq!(link.lost(), Some(lost), "refused again: it is still the same");
        let _sent = link.begin(SessionId(7));
        assert_eq!(link.lost(), None);
        link.end(true, &mut outcome);
        link.end(false, &mut outcome);
        assert_eq!(link.lost(), None, "a network in between says nothing of the peer");
    }

    #[test]
    fn waits_double_and_differ() {
        let mut waits = BackOff::new(Duration::from_millis(100), Duration::from_secs(1));
        let mut limit = Duration::from_millis(100);
        for _ in 0..6 {
            let wait = waits.next();
            assert!(wait >= limit / 2 && wait <= limit, "{wait:?} of {limit:?}");
            limit = (limit * 2).min(Duration::from_secs(1));
        }
        waits.reset();
        assert!(waits.next() <= Duration::from_millis(100));
    }
}
