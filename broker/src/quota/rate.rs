//! How fast somebody goes, and how long they must rest: a rate over the last few windows of time. No clock.
//!
//! ```text
//!  windows     │  40  │   0  │  30  │ 10   │      4 windows of 1 s, now in the middle of the last
//!              0      1      2      3  now 4      80 over 3.5 s; a bound of 20 a second allows 70 in that time
//!                                                 80 are allowed after 4 s: half a second of rest is owed
//! ```
//!
//! The rest is what makes the sum lawful when nothing more comes meanwhile. What falls out of the windows is forgotten, so
//! somebody who was silent for all of them may begin with everything that they allow at once.

use std::collections::VecDeque;
use std::time::Duration;

use felix_protocol::time::MonoTime;

/// Over which time a rate is taken.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub struct Windows {
    /// How many windows, the present one included; at least one.
    pub count: u32,
    /// What each covers; more than nothing.
    pub size: Duration,
}

impl Windows {
    /// All of them together.
    pub fn whole(self) -> Duration {
        self.size.saturating_mul(self.count)
    }

    /// Those that are over: a rate is always taken over these at least.
    pub fn past(self) -> Duration {
        self.size.saturating_mul(self.count.saturating_sub(1))
    }

    fn nanos(self) -> u64 {
        u64::try_from(self.size.as_nanos()).unwrap_or(u64::MAX).max(1)
    }

    fn number(self, now: MonoTime) -> u64 {
        now.0 / self.nanos()
    }

    fn covered(self, now: MonoTime) -> Duration {
        self.past().saturating_add(Duration::from_nanos(now.0 % self.nanos()))
    }
}

/// What was counted in each window in which anything was: never more than there are windows.
#[derive(Clone, Debug, Default, PartialEq)]
pub struct Rate {
    sums: VecDeque<(u64, f64)>,
}

impl Rate {
    /// Counts.
    pub fn add(&mut self, amount: f64, windows: Windows, now: MonoTime) {
        self.forget(windows, now);
        let number = windows.number(now);
        match self.sums.back_mut() {
            // A clock that was read before another thread's is at most in the window before.
            Some((last, sum)) if *last >= number => *sum += amount,
            Some(_) | None => self.sums.push_back((number, amount)),
        }
    }

    /// How long nothing may come until the rate is at most `bound` a second.
    pub fn owed(&mut self, bound: f64, windows: Windows, now: MonoTime) -> Duration {
        self.forget(windows, now);
        let sum: f64 = self.sums.iter().map(|(_, sum)| sum).sum();
        let lawful = Duration::try_from_secs_f64(sum / bound).unwrap_or(Duration::MAX);
        lawful.saturating_sub(windows.covered(now))
    }

    /// Whether all that was counted is forgotten: then nothing is lost with it.
    pub fn is_idle(&mut self, windows: Windows, now: MonoTime) -> bool {
        self.forget(windows, now);
        self.sums.is_empty()
    }

    fn forget(&mut self, windows: Windows, now: MonoTime) {
        let first = (windows.number(now) + 1).saturating_sub(u64::from(windows.count));
        while self.sums.front().is_some_and(|(number, _)| *number < first) {
            self.sums.pop_front();
        }
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    const FOUR: Windows = Windows { count: 4, size: Duration::from_secs(1) };

    fn at(millis: u64) -> MonoTime {
        MonoTime(1_000_000_000_000).after(Duration::from_millis(millis))
    }

    fn millis(rate: &mut Rate, bound: f64, now: u64) -> u128 {
        rate.owed(bound, FOUR, at(now)).as_millis()
    }

    #[test]
    fn the_picture_above() {
        let mut rate = Rate::default();
        rate.add(40.0, FOUR, at(10));
        rate.add(30.0, FOUR, at(2_999));
        rate.add(10.0, FOUR, at(3_500));
        assert_eq!(millis(&mut rate, 20.0, 3_500), 500);
        assert_eq!(millis(&mut rate, 20.0, 3_900), 100, "rest that was taken is not owed any more");
        assert_eq!(millis(&mut rate, 20.0, 3_999), 1);
        assert_eq!(millis(&mut rate, 40.0, 3_500), 0);
        assert_eq!(millis(&mut rate, 20.0, 4_000), 0, "the first window is forgotten");
    }

    #[test]
    fn the_first_burst_is_what_the_past_windows_allow() {
        let mut rate = Rate::default();
        rate.add(300.0, FOUR, at(0));
        assert_eq!(millis(&mut rate, 100.0, 0), 0);
        rate.add(100.0, FOUR, at(0));
        assert_eq!(millis(&mut rate, 100.0, 0), 1_000);
    }

    #[test]
    fn whoever_rests_as_long_as_is_owed_keeps_to_the_bound() {
        // Pieces of 50 as fast as is allowed, with a bound of 100 a second.
        let (mut rate, mut now, mut sum) = (Rate::default(), 0_u64, 0.0);
        while now < 60_000 {
            rate.add(50.0, FOUR, at(now));
            sum += 50.0;
            let owed = u64::try_from(millis(&mut rate, 100.0, now)).unwrap();
            // Half a second for the piece, and a window: a rate is taken over 3 to 4 s.
            assert!(owed <= 1_500, "{owed} ms for one piece");
            now += owed.max(1);
        }
        let a_second = sum / 60.0;
        assert!((99.0..=130.0).contains(&a_second), "{a_second}");
    }

    #[test]
    fn what_is_very_slow_rests_long_and_nothing_overflows() {
        let mut rate = Rate::default();
        rate.add(1e12, FOUR, at(0));
        assert_eq!(rate.owed(1.0, FOUR, at(0)), Duration::from_secs(1_000_000_000_000 - 3));
        assert_eq!(rate.owed(f64::MIN_POSITIVE, FOUR, at(0)), Duration::MAX - FOUR.past());
        assert_eq!(rate.owed(f64::MAX, FOUR, at(0)), Duration::ZERO);
    }

    #[test]
    fn memory_is_a_number_a_window_and_vanishes() {
        let mut rate = Rate::default();
        for now in 0..20_000 {
            rate.add(1.0, FOUR, at(now));
            assert!(rate.sums.len() <= 4);
        }
        assert!(!rate.is_idle(FOUR, at(22_999)));
        assert!(rate.is_idle(FOUR, at(23_000)));
        // A thread that looked at the clock a moment earlier.
        rate.add(1.0, FOUR, at(30_000));
        rate.add(1.0, FOUR, at(29_999));
        assert_eq!(rate.sums.len(), 1);
    }

    #[test]
    fn one_window_is_enough() {
        let one = Windows { count: 1, size: Duration::from_secs(1) };
        let mut rate = Rate::default();
        rate.add(10.0, one, at(0));
        assert_eq!(rate.owed(100.0, one, at(0)), Duration::from_millis(100));
        assert_eq!(rate.owed(100.0, one, at(100)), Duration::ZERO);
        assert!(rate.is_idle(one, at(1_000)));
    }
}
