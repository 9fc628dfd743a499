//! Lanes: a few plain threads, each owning the copies pinned to it.
//!
//! A lane's thread drains the mailbox in batches, appends, acknowledges what needs no flush, and hands dirty
//! logs to the flushers. Time is kept for the whole lane, in an ordered set of the copies that wait for something,
//! which is empty on an idle lane: then the thread sleeps until a message comes.
//!
//! Handing a message to another thread and back costs more than a small append does. So while a lane has
//! nothing to do, a small append is carried out in place, on the thread that brings it, and the outcome of a
//! flush on the flusher that waited for it; the lane's state is behind a lock that these only ever *try*. Order
//! is kept because nothing is done in place while a message is queued, and because the lane's thread takes a
//! message out of the queue only when it holds the lock.

use std::sync::atomic::{AtomicBool, AtomicU64, AtomicUsize, Ordering};
use std::sync::{Arc, OnceLock};
use std::thread::Thread;

use crossbeam_channel::{Receiver, Sender};
use felix_partition::append::{Append, AppendError};
use felix_protocol::ids::{Generation, PartitionId};
use felix_protocol::time::MonoTime;
use parking_lot::Mutex;

use crate::partitions::Writer;
use crate::partitions::flusher::Flushed;

mod compaction;
mod message;
mod ports;
mod replicating;
mod retention;
mod state;

pub(super) use compaction::Step;
pub(super) use message::Message;
pub(crate) use replicating::Told;
pub(super) use state::LaneContext;
use state::State;

/// Messages taken in before flushes are started and answers go out.
const BATCH: usize = 256;
/// Appends that may be queued for one lane.
const MAX_QUEUED_APPENDS: usize = 16_384;
/// Larger batches are left to the lane's thread: writing them takes longer than handing them over.
const IN_PLACE_BYTES: usize = 16 * 1024;

/// The way to a lane. Order is kept; appends are bounded in number, everything else is bounded by what
/// causes it.
#[derive(Clone)]
pub(crate) struct LaneSender {
    lane: Arc<Lane>,
}

/// One lane.
struct Lane {
    /// `None` once the lane has stopped.
    state: Mutex<Option<State>>,
    mailbox: Sender<Message>,
    /// Taken from only by whoever holds the lock on the state.
    messages: Receiver<Message>,
    queued_appends: AtomicUsize,
    thread: OnceLock<Thread>,
    /// The thread is about to sleep, or does: whoever queues a message wakes it.
    asleep: AtomicBool,
    /// Until when it sleeps without being woken; written under the lock.
    sleeps_until: AtomicU64,
    /// Nobody works for the lane any more.
    ended: AtomicBool,
}

impl LaneSender {
    /// A lane, whose thread is to call [`LaneSender::run`].
    pub(super) fn new(context: LaneContext) -> LaneSender {
        let sender = LaneSender { lane: Arc::new(Lane::empty()) };
        *sender.lane.state.lock() = Some(State::new(sender.clone(), context));
        sender
    }

    /// A lane that nobody works for.
    #[cfg(test)]
    pub(super) fn unserved() -> LaneSender {
        LaneSender { lane: Arc::new(Lane::empty()) }
    }

    /// How many messages wait.
    #[cfg(test)]
    pub(super) fn queued(&self) -> usize {
        self.lane.messages.len()
    }

    /// Works until a stop message has been carried out.
    pub(super) fn run(&self) {
        let lane = &self.lane;
        let _ended = End(lane);
        // Nobody else sets it.
        let _ = lane.thread.set(std::thread::current());
        while let Some((due, now)) = lane.work() {
            if due <= now {
                continue;
            }
            lane.asleep.store(true, Ordering::SeqCst);
            // Whoever queued before that saw a thread awake, and did not wake it.
            if lane.messages.is_empty() {
                if due == MonoTime::NEVER {
                    std::thread::park();
                } else {
                    std::thread::park_timeout(due.since(now));
                }
            }
            lane.asleep.store(false, Ordering::SeqCst);
        }
    }

    /// Takes a write: carries it out, queues it, or answers it at once when too many wait.
    pub(crate) fn append(
        &self,
        partition: PartitionId,
        generation: Generation,
        append: Append,
        answer: Writer,
    ) {
        let small = append.batch.bytes().len() <= IN_PLACE_BYTES;
        let message = Message::Append { partition, generation, append, answer };
        let message = if small { self.lane.in_place(message, true) } else { Some(message) };
        let Some(message) = message else { return };
        if self.lane.queued_appends.fetch_add(1, Ordering::Relaxed) >= MAX_QUEUED_APPENDS {
            self.lane.queued_appends.fetch_sub(1, Ordering::Relaxed);
            if let Message::Append { answer, .. } = message {
                // The writer may be gone; then nobody needs the answer.
                let _ = answer.send(Err(AppendError::Busy));
            }
            return;
        }
        self.send(message);
    }

    /// Takes the outcomes of flushes; in what order with other messages does not matter.
    pub(super) fn flushed(&self, flushed: Vec<Flushed>) {
        if let Some(message) = self.lane.in_place(Message::Flushed(flushed), false) {
            self.send(message);
        }
    }

    /// Whether both lead to the same lane.
    pub(crate) fn same(&self, other: &LaneSender) -> bool {
        Arc::ptr_eq(&self.lane, &other.lane)
    }

    /// Queues a message. A lane that is gone has stopped with the broker: then it is dropped, and its answer
    /// with it.
    pub(crate) fn send(&self, message: Message) {
        // The lane holds a receiver itself: this cannot fail.
        let _ = self.lane.mailbox.send(message);
        if self.lane.asleep.swap(false, Ordering::SeqCst) {
            self.lane.wake();
        }
        if self.lane.ended.load(Ordering::SeqCst) {
            self.lane.drop_messages();
        }
    }
}

/// Leaves no message behind when the lane's thread ends, be it by a panic: whoever waits for an answer notices
/// that it was dropped.
struct End<'a>(&'a Lane);

impl Drop for End<'_> {
    fn drop(&mut self) {
        // Breaks the circle of a lane whose state knows the way to itself.
        let state = self.0.state.lock().take();
        self.0.ended.store(true, Ordering::SeqCst);
        self.0.drop_messages();
        drop(state);
    }
}

impl Lane {
    fn empty() -> Lane {
        let (mailbox, messages) = crossbeam_channel::unbounded();
        Lane {
            state: Mutex::new(None),
            mailbox,
            messages,
            queued_appends: AtomicUsize::new(0),
            thread: OnceLock::new(),
            asleep: AtomicBool::new(false),
            sleeps_until: AtomicU64::new(0),
            ended: AtomicBool::new(false),
        }
    }

    fn drop_messages(&self) {
        while self.messages.try_recv().is_ok() {}
    }

    /// Wakes the thread, or keeps it from falling asleep once.
    fn wake(&self) {
        if let Some(thread) = self.thread.get() {
            thread.unpark();
        }
    }

    /// The thread's share: a batch of messages and whatever is due. Says when the next thing is due, and what
    /// time it is; `None` once the lane has stopped.
    fn work(&self) -> Option<(MonoTime, MonoTime)> {
        let mut guard = self.state.lock();
        let state = guard.as_mut()?;
        let mut taken = 0;
        while taken < BATCH
            && let Ok(message) = self.messages.try_recv()
        {
            if matches!(message, Message::Append { .. }) {
                self.queued_appends.fetch_sub(1, Ordering::Relaxed);
            }
            state.take(message);
            taken += 1;
        }
        state.keep_time();
        state.finish_batch();
        if state.stopped() {
            return None;
        }
        let due = if taken == BATCH { MonoTime(0) } else { state.due() };
        self.sleeps_until.store(due.0, Ordering::Relaxed);
        Some((due, state.now()))
    }

    /// Carries a message out here and now, if nobody works for the lane at the moment; gives it back if not.
    /// With `ordered`, nothing that was queued before is overtaken.
    fn in_place(&self, message: Message, ordered: bool) -> Option<Message> {
        let Some(mut guard) = self.state.try_lock() else { return Some(message) };
        let Some(state) = guard.as_mut() else { return Some(message) };
        if ordered && !self.messages.is_empty() {
            return Some(message);
        }
        state.take(message);
        state.finish_batch();
        // The thread may sleep longer than what has become due now; and it alone ends a lane that stops.
        let due = state.due();
        let early = due.0 < self.sleeps_until.load(Ordering::Relaxed);
        let wake = early || state.is_stopping();
        if early {
            self.sleeps_until.store(due.0, Ordering::Relaxed);
        }
        drop(guard);
        if wake {
            self.wake();
        }
        None
    }
}
