//! The broker's only clock. Everything else is handed time points.
//!
//! CLOCK_MONOTONIC stands still while the machine sleeps and is bent by NTP, so it is not asked. Two other
//! clocks are: CLOCK_BOOTTIME counts sleep but is bent (at most 500 ppm), CLOCK_MONOTONIC_RAW is not bent
//! but stands still in sleep. The one that ran further since the process began is the time: a lease
//! holder must never believe that less time passed than did (`replication.md` section 3), and whoever waits
//! for another's lease counts only while its own beats are confirmed, so sleep cannot shorten a wait.

use felix_protocol::time::{Clock, MonoTime, WallTime};
use rustix::time::{ClockId, clock_gettime};

/// The machine's clocks.
#[derive(Clone, Copy, Debug)]
pub struct SystemClock {
    boottime_at_start: u64,
    raw_at_start: u64,
}

fn nanoseconds(clock: ClockId) -> u64 {
    let time = clock_gettime(clock);
    let seconds = u64::try_from(time.tv_sec).unwrap_or(0);
    let rest = u64::try_from(time.tv_nsec).unwrap_or(0);
    seconds.saturating_mul(1_000_000_000).saturating_add(rest)
}

impl SystemClock {
    /// Starts both clocks. Once a process: time points of two clocks do not compare.
    pub fn start() -> SystemClock {
        SystemClock {
            boottime_at_start: nanoseconds(ClockId::Boottime),
            raw_at_start: nanoseconds(ClockId::MonotonicRaw),
        }
    }
}

impl Clock for SystemClock {
    fn now(&self) -> MonoTime {
        let boottime = nanoseconds(ClockId::Boottime).saturating_sub(self.boottime_at_start);
        let raw = nanoseconds(ClockId::MonotonicRaw).saturating_sub(self.raw_at_start);
        MonoTime(boottime.max(raw))
    }

    fn wall(&self) -> WallTime {
        let time = clock_gettime(ClockId::Realtime);
        WallTime(time.tv_sec.saturating_mul(1000).saturating_add(time.tv_nsec / 1_000_000))
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn time_starts_near_zero_and_never_goes_back() {
        let clock = SystemClock::start();
        let mut before = clock.now();
        assert!(before.0 < 1_000_000_000, "the clock starts with the process");
        for _ in 0..1000 {
            let now = clock.now();
            assert!(now >= before);
            before = now;
        }
        assert!(clock.wall().0 > 1_700_000_000_000, "milliseconds since 1970");
    }
}
