//! The arithmetic of leases: how long a holder may believe in its own, and how long everyone else waits for it to be
//! over (`replication.md` section 3).
//!
//! ```text
//!  holder   sent ---------------- stops: sent + L − ε, by the clock that ran further
//!             \ beat               |
//!  store       +------.            |
//!                      \           |
//!  waiter               arrived ------------------------ fences: arrived + W, by the clock that ran less
//! ```
//!
//! Nobody compares clocks with anybody: both sides measure how much time passed on their own, and W is long enough
//! whatever the two clocks did within their bound. Deliberately absent: who measures (`heartbeat`, `observe`).

use std::time::Duration;

use felix_protocol::time::MonoTime;

/// The least L that a cluster may use.
pub const LEAST_MS: u64 = 500;
/// The largest.
pub const MOST_MS: u64 = 60_000;

/// How far a clock may run from true time, in millionths, while both are there.
const RHO_BOTH: u128 = 1_000;
/// The same where one of them is missing: nobody tells then whether the other was bent or stopped.
const RHO_ONE: u128 = 100_000;
const MILLION: u128 = 1_000_000;

/// One look at both clocks of a machine: the one that counts suspended time but is bent by NTP, and the one that is not
/// bent but stands still in suspension. Where one is missing, both are the other.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub struct Reading {
    /// CLOCK_BOOTTIME.
    pub boottime: MonoTime,
    /// CLOCK_MONOTONIC_RAW.
    pub raw: MonoTime,
}

impl Reading {
    /// The most that may have passed since `earlier`: what a holder believes of its own lease.
    pub fn longest_since(self, earlier: Reading) -> Duration {
        self.boottime.since(earlier.boottime).max(self.raw.since(earlier.raw))
    }

    /// The least that has passed since `earlier`: what a waiter counts.
    pub fn shortest_since(self, earlier: Reading) -> Duration {
        self.boottime.since(earlier.boottime).min(self.raw.since(earlier.raw))
    }
}

/// Which clocks a machine has.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum Clocks {
    /// Both.
    Both,
    /// Only one of the two.
    One,
}

impl Clocks {
    fn rho(self) -> u128 {
        match self {
            Clocks::Both => RHO_BOTH,
            Clocks::One => RHO_ONE,
        }
    }
}

/// What follows from the length of a lease, on a machine with these clocks.
///
/// Invariant: the length is within [`LEAST_MS`] and [`MOST_MS`].
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub struct Terms {
    length: Duration,
    clocks: Clocks,
}

impl Terms {
    /// Terms of leases of `lease_ms`; what is out of bounds is taken to the nearest that is not.
    pub fn new(lease_ms: u64, clocks: Clocks) -> Terms {
        Terms { length: Duration::from_millis(lease_ms.clamp(LEAST_MS, MOST_MS)), clocks }
    }

    /// L.
    pub fn length(&self) -> Duration {
        self.length
    }

    /// ε: what the holder gives away, so that bytes on their way to the disk when it last looked arrive in time.
    pub fn allowance(&self) -> Duration {
        self.length / 10
    }

    /// How long after sending a confirmed beat the holder may still write: L − ε. A holder that has only one clock may be
    /// slower than every waiter assumes, and gives that away as well.
    pub fn holds(&self) -> Duration {
        let nominal = self.length - self.allowance();
        let holds = nominal.as_nanos() * (MILLION - self.clocks.rho()) / (MILLION - RHO_BOTH);
        nanoseconds(holds)
    }

    /// W: how long a beat must have been seen unchanged before its sender cannot believe in its lease any more.
    pub fn wait(&self) -> Duration {
        let nominal = (self.length - self.allowance()).as_nanos();
        let rho = self.clocks.rho();
        let wait = (nominal * (MILLION + rho)).div_ceil(MILLION - rho);
        nanoseconds(wait) + self.margin()
    }

    fn margin(&self) -> Duration {
        self.length / 10
    }

    /// From one beat to the next.
    pub fn beat_every(&self) -> Duration {
        self.length / 6
    }

    /// How long a beat's answer is waited for; another is sent then.
    pub fn answer_within(&self) -> Duration {
        self.length / 3
    }

    /// Own beats that are further apart than this do not vouch for the time between them.
    pub fn gap(&self) -> Duration {
        self.length / 3
    }

    /// How far what was done about the store's changes may lag behind a renewal that is to count.
    pub fn lag(&self) -> Duration {
        self.length / 2
    }

    /// By how much nodes that would do the same thing at the same time are set apart.
    pub fn stagger(&self) -> Duration {
        self.length / 20
    }
}

fn nanoseconds(count: u128) -> Duration {
    // A minute at most, and some.
    Duration::from_nanos(u64::try_from(count).unwrap_or(u64::MAX))
}

#[cfg(test)]
mod tests {
    use proptest::prelude::*;

    use super::*;

    fn reading(boottime: u64, raw: u64) -> Reading {
        Reading { boottime: MonoTime(boottime), raw: MonoTime(raw) }
    }

    #[test]
    fn the_numbers_of_two_seconds() {
        let terms = Terms::new(2000, Clocks::Both);
        assert_eq!(terms.holds(), Duration::from_millis(1800));
        assert_eq!(terms.wait(), Duration::from_nanos(2_003_603_604));
        assert_eq!(terms.beat_every().as_millis(), 333);
        assert_eq!(terms.gap().as_millis(), 666);
        let poor = Terms::new(2000, Clocks::One);
        assert_eq!(poor.wait(), Duration::from_millis(2400));
        assert!(poor.holds() < Duration::from_millis(1622));
    }

    #[test]
    fn lengths_out_of_bounds_are_taken_to_the_nearest() {
        assert_eq!(Terms::new(0, Clocks::Both).length(), Duration::from_millis(500));
        assert_eq!(Terms::new(u64::MAX, Clocks::Both).length(), Duration::from_secs(60));
    }

    #[test]
    fn suspension_counts_for_the_holder_and_not_for_the_waiter() {
        let (before, after) = (reading(100, 90), reading(5100, 190));
        assert_eq!(after.longest_since(before), Duration::from_nanos(5000));
        assert_eq!(after.shortest_since(before), Duration::from_nanos(100));
        assert_eq!(before.longest_since(after), Duration::ZERO);
    }

    /// True time in which a clock that is off by `ppm` millionths shows `shown`.
    fn truly(shown: Duration, ppm: f64) -> f64 {
        shown.as_secs_f64() / (1.0 + ppm / 1e6)
    }

    proptest! {
        /// Whatever the clocks do within their bounds: the holder has stopped, by true time, before the waiter acts.
        #[test]
        fn the_holder_stops_before_the_waiter_acts(
            lease_ms in LEAST_MS..=MOST_MS,
            one_holds: bool,
            one_waits: bool,
            slow in 0.0..=1.0_f64,
            fast in 0.0..=1.0_f64,
        ) {
            let clocks = |one| if one { Clocks::One } else { Clocks::Both };
            let bound = |one| if one { 100_000.0 } else { 1_000.0 };
            let (holder, waiter) = (Terms::new(lease_ms, clocks(one_holds)), Terms::new(lease_ms, clocks(one_waits)));
            let stops = truly(holder.holds(), -bound(one_holds) * slow);
            let acts = truly(waiter.wait(), bound(one_waits) * fast);
            prop_assert!(stops < acts, "{stops} {acts}");
            // What a stalled write may take before it reaches the disk.
            prop_assert!(acts - stops >= lease_ms as f64 / 1000.0 * 0.09);
        }
    }
}
