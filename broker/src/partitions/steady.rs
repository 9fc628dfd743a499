//! The wall clock as retention believes it.
//!
//! Retention deletes by the wall clock, and a wall clock may be wrong for a while: set forward by hand, by a bad time
//! server, by a battery that died. What it deleted in that while would be gone. So a leap forward, seen against the
//! clock that nobody sets, is believed only once it has lasted. A leap back is believed at once: it only keeps
//! records longer. Deliberately absent: any memory of earlier lives; a clock that is wrong when the broker starts
//! is taken for right.

use std::time::Duration;

use felix_protocol::time::{MonoTime, WallTime};

/// How long a leap forward must last.
const HOLD: Duration = Duration::from_secs(60 * 60);
/// What two looks may drift apart without being a leap.
const DRIFT_MS: i64 = 60_000;

/// See the module. Times are told as the wall's distance from the other clock.
#[derive(Debug)]
pub(super) struct Steady {
    /// The distance that is believed.
    believed: i64,
    /// A greater one that is seen, and since when.
    leap: Option<(i64, MonoTime)>,
}

impl Steady {
    /// The clocks at the start, when the wall is believed.
    pub(super) fn new(now: MonoTime, wall: WallTime) -> Steady {
        Steady { believed: distance(now, wall), leap: None }
    }

    /// What time it is for retention.
    pub(super) fn time(&mut self, now: MonoTime, wall: WallTime) -> WallTime {
        let seen = distance(now, wall);
        if seen <= self.believed.saturating_add(DRIFT_MS) {
            self.believed = seen;
            self.leap = None;
            return wall;
        }
        let since = match self.leap {
            // Further forward: what has lasted is believed, the rest has yet to last.
            Some((to, since)) if seen > to.saturating_add(DRIFT_MS) => {
                if now.since(since) >= HOLD {
                    self.believed = to;
                }
                now
            }
            // Much the same, or back part of the way: so far it has lasted.
            Some((_, since)) => since,
            None => now,
        };
        if now.since(since) >= HOLD {
            self.believed = seen;
            self.leap = None;
            return wall;
        }
        self.leap = Some((seen, since));
        WallTime(self.believed.saturating_add(millis(now)))
    }

    /// By how much the wall is ahead of what is believed.
    pub(super) fn doubted_ms(&self) -> i64 {
        self.leap.map_or(0, |(to, _)| to.saturating_sub(self.believed))
    }
}

fn millis(now: MonoTime) -> i64 {
    i64::try_from(now.0 / 1_000_000).unwrap_or(i64::MAX)
}

fn distance(now: MonoTime, wall: WallTime) -> i64 {
    wall.0.saturating_sub(millis(now))
}

#[cfg(test)]
mod tests {
    use super::*;

    const MINUTE: i64 = 60_000;
    const START: i64 = 1_700_000_000_000;

    /// Looks every five minutes at a wall that is `ahead` of the true time; what is believed is told as the distance
    /// from the true time.
    fn looks(steady: &mut Steady, from: i64, ahead: &[i64]) -> Vec<i64> {
        let look = |(at, ahead): (usize, &i64)| {
            let true_minutes = from + 5 * i64::try_from(at).unwrap();
            let now = MonoTime(u64::try_from(true_minutes * MINUTE).unwrap() * 1_000_000);
            let wall = WallTime(START + (true_minutes + ahead) * MINUTE);
            (steady.time(now, wall).0 - START) / MINUTE - true_minutes
        };
        ahead.iter().enumerate().map(look).collect()
    }

    fn steady() -> Steady {
        Steady::new(MonoTime(0), WallTime(START))
    }

    #[test]
    fn a_steady_clock_is_believed_as_it_is() {
        assert_eq!(looks(&mut steady(), 5, &[0; 30]), [0; 30]);
    }

    #[test]
    fn a_leap_that_is_taken_back_in_time_never_counts() {
        let mut clock = steady();
        assert_eq!(looks(&mut clock, 5, &[0, 50_000, 50_000, 50_000, 0, 0]), [0; 6]);
        assert_eq!(looks(&mut clock, 35, &[50_000; 12]), [0; 12], "it begins anew");
        assert_eq!(clock.doubted_ms(), 50_000 * MINUTE);
    }

    #[test]
    fn a_leap_that_lasts_is_believed_after_an_hour() {
        let mut clock = steady();
        assert_eq!(looks(&mut clock, 5, &[50_000; 12]), [0; 12]);
        assert_eq!(looks(&mut clock, 65, &[50_000; 3]), [50_000; 3]);
        assert_eq!(clock.doubted_ms(), 0);
    }

    #[test]
    fn leap_after_leap_cannot_stop_the_clock_for_ever() {
        let mut clock = steady();
        let ever_further: Vec<i64> = (1..50).map(|step| step * 1_000).collect();
        let believed = looks(&mut clock, 5, &ever_further);
        assert_eq!(believed[48], 0, "no single one of them has lasted");
        assert_eq!(looks(&mut clock, 250, &[49_000; 13])[12], 49_000);
        let mut clock = steady();
        let now_and_then: Vec<i64> = (0..60).map(|step| (step / 15) * 1_000).collect();
        let believed = looks(&mut clock, 5, &now_and_then);
        assert_eq!(believed[45..], [2_000; 12].into_iter().chain([3_000; 3]).collect::<Vec<_>>());
    }

    #[test]
    fn a_clock_set_back_is_believed_at_once() {
        let mut clock = steady();
        assert_eq!(looks(&mut clock, 5, &[0, -50_000, -50_000]), [0, -50_000, -50_000]);
        assert_eq!(looks(&mut clock, 20, &[0; 12]), [-50_000; 12], "forward again is a leap");
        assert_eq!(looks(&mut clock, 80, &[0]), [0]);
    }

    #[test]
    fn clocks_at_the_ends_of_time_do_not_overflow() {
        let mut clock = Steady::new(MonoTime(u64::MAX), WallTime(i64::MIN));
        clock.time(MonoTime(u64::MAX), WallTime(i64::MAX));
        clock.time(MonoTime::NEVER, WallTime(i64::MIN));
        clock.time(MonoTime(0), WallTime(i64::MAX));
        assert!(clock.doubted_ms() >= 0);
    }
}
