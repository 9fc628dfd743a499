//! Waiting for a partition to show more: what a Fetch long poll sleeps on.
//!
//! One [`FetchWait`] is registered on every partition that the Fetch names. When a partition's mark (or last
//! stable offset) moves, only the waits registered on that partition are looked at, and only those that have
//! got all their bytes are woken. Dropping the [`Registration`] takes the wait off the list.

use std::sync::Arc;
use std::sync::atomic::{AtomicI64, Ordering};

use parking_lot::Mutex;
use thiserror::Error;
use tokio::sync::Notify;

/// Waits that one partition keeps at most.
const MAX_WAITS: usize = 16_384;

/// One Fetch that sleeps until enough bytes became visible over all its partitions, or something else
/// happened to one of them that it must tell its client.
#[derive(Debug)]
pub struct FetchWait {
    woken: Notify,
    /// Bytes still missing; zero or less wakes.
    missing: AtomicI64,
}

impl FetchWait {
    /// A wait for `bytes` more bytes (at least one).
    pub fn new(bytes: u64) -> Arc<Self> {
        let missing = i64::try_from(bytes.max(1)).unwrap_or(i64::MAX);
        Arc::new(FetchWait { woken: Notify::new(), missing: AtomicI64::new(missing) })
    }

    /// Bytes became visible on one of the partitions.
    fn saw(&self, bytes: u64) {
        let bytes = i64::try_from(bytes).unwrap_or(i64::MAX);
        let before = self.missing.fetch_sub(bytes, Ordering::AcqRel);
        if before > 0 && before.saturating_sub(bytes) <= 0 {
            self.woken.notify_one();
        }
    }

    /// Wakes whatever is missing: leadership moved, the copy halted, the log start passed the reader.
    fn wake(&self) {
        self.woken.notify_one();
    }

    /// Sleeps until woken. Never misses a wake that came after the registration.
    pub async fn woken(&self) {
        self.woken.notified().await;
    }
}

/// Which offset a reader may read up to.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum Isolation {
    /// Up to the mark.
    ReadUncommitted,
    /// Up to the last stable offset.
    ReadCommitted,
}

/// A partition has as many waits as it keeps.
#[derive(Clone, Copy, Debug, PartialEq, Eq, Error)]
#[error("too many fetches wait on this partition")]
pub struct TooManyWaits;

/// The waits of one partition.
#[derive(Debug, Default)]
pub(crate) struct Waits {
    list: Mutex<WaitList>,
}

#[derive(Debug, Default)]
struct WaitList {
    /// Free places are `None`; a registration knows its place.
    places: Vec<Option<(Isolation, Arc<FetchWait>)>>,
    free: Vec<usize>,
}

impl Waits {
    pub(crate) fn register(
        self: &Arc<Self>,
        wait: &Arc<FetchWait>,
        isolation: Isolation,
    ) -> Result<Registration, TooManyWaits> {
        let mut list = self.list.lock();
        let entry = Some((isolation, Arc::clone(wait)));
        let place = match list.free.pop() {
            Some(place) => {
                list.places[place] = entry;
                place
            }
            None if list.places.len() >= MAX_WAITS => return Err(TooManyWaits),
            None => {
                list.places.push(entry);
                list.places.len() - 1
            }
        };
        Ok(Registration { waits: Arc::clone(self), place })
    }

    /// The mark or the last stable offset moved over this many bytes.
    pub(crate) fn moved(&self, mark_bytes: u64, stable_bytes: u64) {
        let list = self.list.lock();
        if list.places.len() == list.free.len() {
            return;
        }
        for (isolation, wait) in list.places.iter().flatten() {
            let bytes = match isolation {
                Isolation::ReadUncommitted => mark_bytes,
                Isolation::ReadCommitted => stable_bytes,
            };
            if bytes > 0 {
                wait.saw(bytes);
            }
        }
    }

    /// Something happened that every waiting reader must hear of.
    pub(crate) fn wake_all(&self) {
        for (_, wait) in self.list.lock().places.iter().flatten() {
            wait.wake();
        }
    }

    #[cfg(test)]
    fn len(&self) -> usize {
        let list = self.list.lock();
        list.places.len() - list.free.len()
    }
}

/// One wait's place on one partition's list. Dropping it gives the place back.
#[derive(Debug)]
#[must_use = "dropping it ends the wait"]
pub struct Registration {
    waits: Arc<Waits>,
    place: usize,
}

impl Drop for Registration {
    fn drop(&mut self) {
        let mut list = self.waits.list.lock();
        list.places[self.place] = None;
        list.free.push(self.place);
        if list.free.len() == list.places.len() {
            // The last one gives the memory back too: 10,000 idle partitions keep no lists.
            *list = WaitList::default();
        }
    }
}

#[cfg(test)]
mod tests {
    use super::*;
    use std::future::Future;
    use std::pin::pin;
    use std::task::{Context, Poll, Waker};

    fn is_woken(wait: &FetchWait) -> bool {
        let mut context = Context::from_waker(Waker::noop());
        pin!(wait.woken()).as_mut().poll(&mut context) == Poll::Ready(())
    }

    #[test]
    fn only_a_wait_that_has_its_bytes_is_woken() {
        let (first, second) = (Arc::new(Waits::default()), Arc::new(Waits::default()));
        let small = FetchWait::new(1);
        let large = FetchWait::new(100);
        let committed = FetchWait::new(1);
        let _small = first.register(&small, Isolation::ReadUncommitted).unwrap();
        let _large_a = first.register(&large, Isolation::ReadUncommitted).unwrap();
        let _large_b = second.register(&large, Isolation::ReadUncommitted).unwrap();
        let _committed = first.register(&committed, Isolation::ReadCommitted).unwrap();
        first.moved(60, 0);
        assert!(is_woken(&small));
        assert!(!is_woken(&large));
        assert!(!is_woken(&committed));
        second.moved(40, 40);
        assert!(is_woken(&large), "bytes of both partitions count together");
        first.moved(0, 60);
        assert!(is_woken(&committed));
        assert!(!is_woken(&small), "a wait is woken once");
    }

    #[test]
    fn a_dropped_wait_leaves_nothing_behind() {
        let waits = Arc::new(Waits::default());
        let wait = FetchWait::new(1);
        for _ in 0..3 {
            let many: Vec<_> =
                (0..1000).map(|_| waits.register(&wait, Isolation::ReadUncommitted).unwrap()).collect();
            assert_eq!(waits.len(), 1000);
            drop(many);
            assert_eq!(waits.len(), 0);
            assert_eq!(waits.list.lock().places.capacity(), 0);
        }
    }

    #[test]
    fn a_list_is_bounded() {
        let waits = Arc::new(Waits::default());
        let wait = FetchWait::new(1);
        let mut kept: Vec<_> =
            (0..MAX_WAITS).map(|_| waits.register(&wait, Isolation::ReadUncommitted).unwrap()).collect();
        assert_eq!(waits.register(&wait, Isolation::ReadUncommitted).unwrap_err(), TooManyWaits);
        kept.pop();
        kept.push(waits.register(&wait, Isolation::ReadUncommitted).unwrap());
        waits.wake_all();
        assert!(is_woken(&wait));
    }
}
