//! The holding side of a lease: may this process serve, at this time on its own clock?
//!
//! A lease belongs to one session and covers every partition the session leads. It is one number behind an
//! atomic, because it is read twice an append (once at admission, once right before the bytes go to the
//! log) and written a few times a second by the heartbeat.
//!
//! ```text
//!        sent         answered                sent + length − allowance      sent + length
//!   ------|--------------|-----------------------------|---------------------------|------> own clock
//!         | anchored here|  extended here              | stops serving here        | others may move on
//! ```
//!
//! The anchor is the instant *before sending*: a slow answer eats the holder's own time, never the waiter's.

use std::sync::Arc;
use std::sync::atomic::{AtomicU64, Ordering};
use std::time::Duration;

use felix_protocol::time::MonoTime;

/// The session is over: no renewal brings it back.
const ENDED: u64 = 0;
/// Registered, but nothing was confirmed yet. Before every time point, so it permits nothing.
const UNCONFIRMED: u64 = 1;

/// How long what cannot change is shown after a lease expired.
pub const READ_ON: Duration = Duration::from_secs(60);

/// One session's lease, as its holder sees it. Clones share it.
///
/// Invariant: the end only moves forward, until the lease is ended for good; then it permits nothing.
#[derive(Clone, Debug)]
pub struct Lease {
    ends_at: Arc<AtomicU64>,
}

impl Lease {
    /// A session whose first beat is not confirmed.
    pub fn unconfirmed() -> Lease {
        Lease::shared(Arc::new(AtomicU64::new(UNCONFIRMED)))
    }

    /// A lease whose end somebody else keeps, in nanoseconds of the same clock: zero once it is over for good,
    /// [`MonoTime::NEVER`] while nothing but the end of the process can end it.
    pub fn shared(ends_at: Arc<AtomicU64>) -> Lease {
        Lease { ends_at }
    }

    /// The embedded control store's lease is the lock on its directory: held while the process lives, so no
    /// beat and no clock can end it. [`Lease::end`] still does.
    pub fn of_lock() -> Lease {
        Lease::shared(Arc::new(AtomicU64::new(MonoTime::NEVER.0)))
    }

    /// A renewal that was *sent* at `sent_at` has been confirmed, for `length`, of which the holder gives
    /// away `allowance` (the design's ε). Returns whether the lease is alive; an answer that arrives out of
    /// order never shortens it.
    pub fn renewed(&self, sent_at: MonoTime, length: Duration, allowance: Duration) -> bool {
        let until = sent_at.after(length.saturating_sub(allowance)).0;
        let extend = |ends_at: u64| (ends_at != ENDED).then(|| ends_at.max(until));
        self.ends_at.fetch_update(Ordering::AcqRel, Ordering::Acquire, extend).is_ok()
    }

    /// Gives the session up for good: it was fenced, or the process stops.
    pub fn end(&self) {
        self.ends_at.store(ENDED, Ordering::Release);
    }

    /// First check, at admission: may a write be taken in at `now`?
    pub fn may_admit(&self, now: MonoTime) -> bool {
        self.holds(now)
    }

    /// Second check, right before the bytes go to the log, and once more before an answer that rests on the
    /// lease alone: may this process still speak for its partitions at `now`?
    pub fn may_commit(&self, now: MonoTime) -> bool {
        self.holds(now)
    }

    /// May records below the known mark still be shown at `now`? They cannot change whoever leads by then, so readers go on
    /// for [`READ_ON`] after an expiry; what else there may be, this process does not know.
    pub fn may_read(&self, now: MonoTime) -> bool {
        let ends_at = self.ends_at();
        ends_at.0 > UNCONFIRMED && (now < ends_at.after(READ_ON) || ends_at == MonoTime::NEVER)
    }

    /// When the lease ends, as known now.
    pub fn ends_at(&self) -> MonoTime {
        MonoTime(self.ends_at.load(Ordering::Acquire))
    }

    fn holds(&self, now: MonoTime) -> bool {
        // `UNCONFIRMED` and `ENDED` are no real time points: a clock that starts at zero must not fall
        // under them.
        let ends_at = self.ends_at();
        ends_at.0 > UNCONFIRMED && (now < ends_at || ends_at == MonoTime::NEVER)
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    const SECOND: Duration = Duration::from_secs(1);
    const TENTH: Duration = Duration::from_millis(100);

    fn at(milliseconds: u64) -> MonoTime {
        MonoTime(milliseconds * 1_000_000)
    }

    #[test]
    fn nothing_is_permitted_before_the_first_confirmed_beat() {
        let lease = Lease::unconfirmed();
        assert!(!lease.may_admit(MonoTime(0)));
        assert!(!lease.may_admit(at(5)));
        assert!(lease.renewed(at(5), SECOND, TENTH));
        assert!(lease.may_admit(at(6)));
    }

    #[test]
    fn it_ends_counted_from_the_sending_less_the_allowance() {
        let lease = Lease::unconfirmed();
        // Sent at 100, answered late: the answer's own time plays no part.
        lease.renewed(at(100), SECOND, TENTH);
        assert!(lease.may_commit(at(999)));
        assert!(!lease.may_commit(at(1000)));
        assert!(!lease.may_commit(at(5000)));
    }

    #[test]
    fn a_late_answer_of_an_older_beat_does_not_shorten_it() {
        let lease = Lease::unconfirmed();
        lease.renewed(at(500), SECOND, TENTH);
        lease.renewed(at(100), SECOND, TENTH);
        assert!(lease.may_commit(at(1399)));
        assert!(!lease.may_commit(at(1400)));
    }

    #[test]
    fn reading_goes_on_for_a_while_after_an_expiry_and_not_after_an_end() {
        let lease = Lease::unconfirmed();
        assert!(!lease.may_read(at(5)));
        lease.renewed(at(100), SECOND, TENTH);
        assert!(!lease.may_admit(at(1001)) && lease.may_read(at(1001)));
        assert!(lease.may_read(at(60_999)) && !lease.may_read(at(61_000)));
        lease.end();
        assert!(!lease.may_read(at(1001)));
        assert!(Lease::of_lock().may_read(MonoTime::NEVER));
    }

    #[test]
    fn a_session_that_was_given_up_never_serves_again() {
        for lease in [Lease::unconfirmed(), Lease::of_lock()] {
            lease.end();
            assert!(!lease.renewed(at(100), SECOND, TENTH));
            assert!(!lease.may_admit(MonoTime(0)));
            assert!(!lease.may_commit(at(101)));
        }
    }

    #[test]
    fn the_lock_needs_no_clock() {
        let lease = Lease::of_lock();
        assert!(lease.may_commit(MonoTime(0)));
        assert!(lease.may_commit(MonoTime::NEVER));
    }
}
