//! Recently appended batches, kept in memory: consumers and followers at the tail cost no system call.
//!
//! All logs of a data directory share one budget; the oldest batch of any log goes first. A batch that is a
//! small part of a large buffer is copied, so that what is counted is what is held.

use std::collections::VecDeque;
use std::sync::atomic::{AtomicUsize, Ordering};
use std::sync::{Arc, Weak};

use bytes::{Bytes, BytesMut};
use felix_protocol::batch::PATCH_BYTES;
use felix_protocol::ids::Offset;
use parking_lot::Mutex;

use crate::log::Read;

/// What a kept batch costs beside its bytes.
const OVERHEAD: usize = 160;
/// Batches up to this size are handed out copied together: one piece is cheaper to send than many.
const JOINED: usize = 2048;

/// The memory that all tails share.
pub(crate) struct TailBudget {
    limit: usize,
    used: AtomicUsize,
    /// Oldest first: which log's tail, and up to which of its batches.
    queue: Mutex<VecDeque<(Weak<Tail>, u64)>>,
}

/// One log's tail.
pub(crate) struct Tail {
    ring: Mutex<Ring>,
}

#[derive(Default)]
struct Ring {
    batches: VecDeque<Kept>,
    /// Number of the first batch in the ring; numbers rise for ever.
    first: u64,
}

struct Kept {
    base: Offset,
    next: Offset,
    /// The patched head, or nothing when `body` is the whole batch.
    head: Bytes,
    body: Bytes,
    cost: usize,
}

impl Kept {
    fn len(&self) -> usize {
        self.head.len() + self.body.len()
    }
}

impl TailBudget {
    pub(crate) fn new(limit: usize) -> Arc<TailBudget> {
        Arc::new(TailBudget { limit, used: AtomicUsize::new(0), queue: Mutex::new(VecDeque::new()) })
    }

    /// Bytes held now.
    pub(crate) fn used(&self) -> usize {
        self.used.load(Ordering::Relaxed)
    }

    fn release(&self, cost: usize) {
        self.used.fetch_sub(cost, Ordering::Relaxed);
    }
}

impl Tail {
    pub(crate) fn new() -> Arc<Tail> {
        Arc::new(Tail { ring: Mutex::new(Ring::default()) })
    }

    /// Keeps a batch that was just appended: `head` in place of the first bytes of `batch`, which is a slice
    /// of a buffer of `frame` bytes.
    pub(crate) fn push(
        self: &Arc<Self>,
        budget: &TailBudget,
        (base, next): (Offset, Offset),
        head: &[u8; PATCH_BYTES],
        batch: &Bytes,
        frame: usize,
    ) {
        if batch.len() + OVERHEAD > budget.limit / 4 {
            // One batch must not push out everybody's; the ring must stay without gaps.
            self.clear(budget);
            return;
        }
        // By reference only where the batch is most of its buffer, and large enough for it to matter.
        let shared = batch.len() >= JOINED && batch.len() >= frame / 2;
        let (head, body) = if shared {
            (Bytes::copy_from_slice(head), batch.slice(PATCH_BYTES..))
        } else {
            let mut whole = Vec::with_capacity(batch.len());
            whole.extend_from_slice(head);
            whole.extend_from_slice(&batch[PATCH_BYTES..]);
            (Bytes::new(), Bytes::from(whole))
        };
        let cost = if shared { frame } else { batch.len() } + OVERHEAD;
        let number = {
            let mut ring = self.ring.lock();
            if ring.batches.capacity() == 0 {
                // Most of many logs keep one batch, if any.
                ring.batches.reserve_exact(1);
            }
            ring.batches.push_back(Kept { base, next, head, body, cost });
            ring.first + ring.batches.len() as u64 - 1
        };
        let used = budget.used.fetch_add(cost, Ordering::Relaxed) + cost;
        let mut queue = budget.queue.lock();
        queue.push_back((Arc::downgrade(self), number));
        let mut excess = used.saturating_sub(budget.limit);
        while excess > 0 {
            let Some((tail, upto)) = queue.pop_front() else { break };
            let freed = tail.upgrade().map_or(0, |tail| tail.ring.lock().drop_through(upto));
            budget.release(freed);
            excess = excess.saturating_sub(freed);
        }
    }

    /// Forgets everything.
    pub(crate) fn clear(&self, budget: &TailBudget) {
        let freed = {
            let mut ring = self.ring.lock();
            let last = ring.first + ring.batches.len() as u64;
            ring.drop_through(last)
        };
        budget.release(freed);
    }

    /// Forgets batches below `offset`.
    pub(crate) fn drop_below(&self, budget: &TailBudget, offset: Offset) {
        let freed = {
            let mut ring = self.ring.lock();
            let below = ring.batches.partition_point(|batch| batch.next <= offset) as u64;
            if below == 0 {
                0
            } else {
                let last = ring.first + below - 1;
                ring.drop_through(last)
            }
        };
        budget.release(freed);
    }

    /// Whether a read at `from` would be served.
    pub(crate) fn covers(&self, from: Offset) -> bool {
        self.ring.lock().at(from).is_some()
    }

    /// Reads as [`crate::LogReader::read`] does; `None` when `from` is not in memory.
    pub(crate) fn read(
        &self,
        from: Offset,
        max_bytes: usize,
        limit: Offset,
        at_least_one: bool,
    ) -> Option<Read> {
        let ring = self.ring.lock();
        let mut at = ring.at(from)?;
        let mut read = Read { next: from, ..Read::default() };
        while let Some(batch) = ring.batches.get(at) {
            let fits = read.bytes + batch.len() <= max_bytes || (at_least_one && read.bytes == 0);
            if batch.next > limit || !fits {
                break;
            }
            let more = ring.small_run(at, limit, max_bytes.saturating_sub(read.bytes));
            if more > 1 {
                let run = ring.batches.range(at..at + more);
                let mut joined = BytesMut::with_capacity(run.clone().map(Kept::len).sum());
                for batch in run {
                    joined.extend_from_slice(&batch.head);
                    joined.extend_from_slice(&batch.body);
                    read.next = batch.next;
                }
                read.bytes += joined.len();
                read.held += joined.len();
                read.slices.push(joined.freeze());
                at += more;
            } else {
                if !batch.head.is_empty() {
                    read.slices.push(batch.head.clone());
                }
                read.slices.push(batch.body.clone());
                read.bytes += batch.len();
                read.held += batch.cost;
                read.next = batch.next;
                at += 1;
            }
        }
        Some(read)
    }
}

impl Ring {
    /// Where the batch that contains `from`, or else the first behind it, stands.
    fn at(&self, from: Offset) -> Option<usize> {
        let first = self.batches.front()?;
        if from < first.base {
            return None;
        }
        let at = self.batches.partition_point(|batch| batch.next <= from);
        (at < self.batches.len()).then_some(at)
    }

    /// How many small batches from `at` on fit together.
    fn small_run(&self, at: usize, limit: Offset, mut room: usize) -> usize {
        self.batches
            .range(at..)
            .take_while(|batch| {
                let fits = batch.len() <= JOINED.min(room) && batch.next <= limit;
                room = room.saturating_sub(batch.len());
                fits
            })
            .count()
    }

    /// Drops batches up to the one numbered `upto`; returns what they cost.
    fn drop_through(&mut self, upto: u64) -> usize {
        let mut freed = 0;
        while self.first <= upto
            && let Some(batch) = self.batches.pop_front()
        {
            freed += batch.cost;
            self.first += 1;
        }
        if self.batches.is_empty() && freed > 0 {
            // Pushed out by other logs, or cleared: ten thousand idle ones keep no ring.
            self.batches = VecDeque::new();
        }
        freed
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    fn batch(len: usize, fill: u8) -> Bytes {
        Bytes::from(vec![fill; len])
    }

    fn joined(read: &Read) -> Vec<u8> {
        read.slices.iter().flat_map(|slice| slice.iter().copied()).collect()
    }

    #[test]
    fn reads_stop_at_the_limit_and_at_the_size() {
        let budget = TailBudget::new(1 << 20);
        let tail = Tail::new();
        for at in 0..10_u8 {
            let base = Offset::from(at) * 10;
            tail.push(&budget, (base, base + 10), &[at; 16], &batch(100, 9), 100);
        }
        assert!(tail.read(100, 1000, 100, true).is_none(), "the end is not in memory");
        let read = tail.read(25, 1000, 60, false).unwrap();
        assert_eq!((read.bytes, read.next), (400, 60));
        assert_eq!(read.slices.len(), 1, "small batches come together");
        assert_eq!(joined(&read)[0], 2);
        let read = tail.read(25, 250, 100, false).unwrap();
        assert_eq!((read.bytes, read.next), (200, 40));
        assert_eq!(tail.read(25, 1, 100, false).unwrap().bytes, 0);
        assert_eq!(tail.read(25, 1, 100, true).unwrap().bytes, 100);
    }

    #[test]
    fn a_large_batch_is_shared_and_a_small_part_of_a_frame_is_copied() {
        let budget = TailBudget::new(1 << 20);
        let tail = Tail::new();
        let large = batch(10_000, 1);
        tail.push(&budget, (0, 1), &[7; 16], &large, 10_100);
        let read = tail.read(0, 1 << 20, 1, false).unwrap();
        assert_eq!(read.slices.len(), 2);
        assert_eq!(read.slices[1].as_ptr(), large[16..].as_ptr());
        tail.push(&budget, (1, 2), &[7; 16], &large, 100_000);
        let read = tail.read(1, 1 << 20, 2, false).unwrap();
        assert_ne!(read.slices[0][16..].as_ptr(), large[16..].as_ptr());
        assert_eq!(read.bytes, 10_000);
    }

    #[test]
    fn the_budget_holds_over_all_logs_and_is_given_back() {
        let budget = TailBudget::new(64 << 10);
        let tails: Vec<_> = (0..8).map(|_| Tail::new()).collect();
        for at in 0..1000 {
            let tail = &tails[(at % 8) as usize];
            tail.push(&budget, (at, at + 1), &[0; 16], &batch(500, 0), 500);
            assert!(budget.used() <= 64 << 10);
        }
        assert!(tails[7].covers(999));
        assert!(!tails[0].covers(0));
        for tail in &tails {
            tail.clear(&budget);
        }
        assert_eq!(budget.used(), 0);
        tails[0].push(&budget, (2000, 2001), &[0; 16], &batch(60 << 10, 0), 60 << 10);
        assert!(!tails[0].covers(2000), "one batch must not take it all");
    }
}
