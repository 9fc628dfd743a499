//! Flushers: the threads that wait for the disk, so that lanes do not.
//!
//! Group commit needs no timer: while one pass waits for the disk, everything written meanwhile gathers, and
//! the next pass makes all of it durable. One log has at most one job under way.

use std::cell::Cell;
use std::collections::VecDeque;
use std::sync::atomic::{AtomicU64, Ordering};

use felix_protocol::ids::{Offset, PartitionId};
use felix_storage::disk::os::OsDisk;
use felix_storage::{FlushError, FlushJob, Flusher};
use parking_lot::{Condvar, Mutex};
use prometheus::Histogram;

use crate::partitions::lane::LaneSender;

/// One log's flush for one lane.
pub(super) struct ToFlush {
    pub(super) lane: LaneSender,
    pub(super) partition: PartitionId,
    pub(super) job: FlushJob<OsDisk>,
}

/// The outcome of one log's flush.
pub(crate) struct Flushed {
    pub(super) partition: PartitionId,
    pub(super) outcome: Result<Offset, FlushError>,
}

/// Jobs that one pass takes at most; the rest go to the next pass or another thread.
const MAX_PASS: usize = 1024;

/// Where lanes put flushes. Bounded by the number of logs: each has one job under way.
///
/// A plain list under a lock, so that handing a job over costs one wake-up and waiting costs no spinning.
#[derive(Default)]
pub(crate) struct FlushQueue {
    waiting: Mutex<Waiting>,
    more: Condvar,
}

#[derive(Default)]
struct Waiting {
    jobs: VecDeque<ToFlush>,
    closed: bool,
}

impl FlushQueue {
    /// One more job.
    pub(super) fn push(&self, job: ToFlush) {
        let mut waiting = self.waiting.lock();
        waiting.jobs.push_back(job);
        // A flusher that hands an outcome to its lane looks for more right after: it takes the first itself.
        let taken_here = waiting.jobs.len() == 1 && FLUSHES.get();
        drop(waiting);
        if !taken_here {
            self.more.notify_one();
        }
    }

    /// Lets the flushers end, once nothing waits any more.
    pub(super) fn close(&self) {
        self.waiting.lock().closed = true;
        self.more.notify_all();
    }

    /// Waits for jobs and takes as many as `share` says of those that wait; `None` at the end.
    fn take(&self, share: impl Fn(usize) -> usize) -> Option<Vec<ToFlush>> {
        let mut waiting = self.waiting.lock();
        while waiting.jobs.is_empty() {
            if waiting.closed {
                return None;
            }
            self.more.wait(&mut waiting);
        }
        let count = waiting.jobs.len();
        Some(waiting.jobs.drain(..share(count).clamp(1, count)).collect())
    }
}

thread_local! {
    /// Whether this thread is a flusher.
    static FLUSHES: Cell<bool> = const { Cell::new(false) };
}

/// What flushers have done since the start.
#[derive(Debug, Default)]
pub(super) struct Counters {
    passes: AtomicU64,
    logs: AtomicU64,
}

/// How many flushes there were.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub struct Flushes {
    /// Waits for the disk, each for one or more logs.
    pub passes: u64,
    /// Logs made durable, counted each time.
    pub logs: u64,
}

impl Counters {
    pub(super) fn read(&self) -> Flushes {
        Flushes { passes: self.passes.load(Ordering::Relaxed), logs: self.logs.load(Ordering::Relaxed) }
    }
}

/// Runs one flusher thread until the queue is closed. `threads` of them share it; `seconds` is told how long each pass
/// waited.
pub(super) fn run(
    queue: &FlushQueue,
    flusher: &Flusher<OsDisk>,
    counters: &Counters,
    seconds: &Histogram,
    threads: usize,
) {
    FLUSHES.set(true);
    let share = |waiting| if flusher.gathers(waiting) { MAX_PASS } else { share(waiting, threads) };
    while let Some(taken) = queue.take(share) {
        let (mut lanes, mut jobs) = (Vec::with_capacity(taken.len()), Vec::with_capacity(taken.len()));
        for ToFlush { lane, partition, job } in taken {
            lanes.push((lane, partition));
            jobs.push(job);
        }
        counters.passes.fetch_add(1, Ordering::Relaxed);
        counters.logs.fetch_add(jobs.len() as u64, Ordering::Relaxed);
        let timer = seconds.start_timer();
        let outcomes = flusher.run(jobs);
        timer.observe_duration();
        report(lanes, outcomes);
    }
}

/// One thread's share of the flushes that wait: file by file, several threads are faster than one.
fn share(waiting: usize, threads: usize) -> usize {
    waiting.div_ceil(threads.max(1)).clamp(1, MAX_PASS)
}

/// Tells each lane of its outcomes, in one message where they stand together.
fn report(lanes: Vec<(LaneSender, PartitionId)>, outcomes: Vec<Result<Offset, FlushError>>) {
    let mut all = lanes.into_iter().zip(outcomes).peekable();
    while let Some(((lane, partition), outcome)) = all.next() {
        let mut flushed = vec![Flushed { partition, outcome }];
        while let Some(((_, partition), outcome)) = all.next_if(|((next, _), _)| next.same(&lane)) {
            flushed.push(Flushed { partition, outcome });
        }
        lane.flushed(flushed);
    }
}
