//! Flushers: the threads that wait for the disk, so that lanes do not.
//!
//! Group commit needs no timer: while one pass waits for the disk, everything written meanwhile gathers, and
//! the next pass makes all of it durable. One log has at most one job under way.

use std::sync::atomic::{AtomicU64, Ordering};

use crossbeam_channel::{Receiver, Sender};
use felix_protocol::ids::{Offset, PartitionId};
use felix_storage::disk::os::OsDisk;
use felix_storage::{FlushError, FlushJob, Flusher};

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

/// Where lanes put flushes.
pub(super) fn queue() -> (Sender<ToFlush>, Receiver<ToFlush>) {
    crossbeam_channel::unbounded()
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

/// Runs one flusher thread until every lane is gone. `threads` of them share the queue.
pub(super) fn run(queue: &Receiver<ToFlush>, flusher: &Flusher<OsDisk>, counters: &Counters, threads: usize) {
    while let Ok(first) = queue.recv() {
        let waiting = queue.len() + 1;
        let share = if flusher.gathers(waiting) { MAX_PASS } else { share(waiting, threads) };
        let mut lanes = vec![(first.lane, first.partition)];
        let mut jobs = vec![first.job];
        while jobs.len() < share
            && let Ok(next) = queue.try_recv()
        {
            lanes.push((next.lane, next.partition));
            jobs.push(next.job);
        }
        counters.passes.fetch_add(1, Ordering::Relaxed);
        counters.logs.fetch_add(jobs.len() as u64, Ordering::Relaxed);
        let outcomes = flusher.run(jobs);
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
