//! The broker's only clock. Everything else is handed time points.
//!
//! CLOCK_MONOTONIC stands still while the machine sleeps and is bent by NTP, so it is not asked. Two other
//! clocks are: CLOCK_BOOTTIME counts sleep but is bent (at most 500 ppm), CLOCK_MONOTONIC_RAW is not bent
//! but stands still in sleep. The time is what the one that ran further says: a lease holder must never believe that less
//! time passed than did (`replication.md` section 3). Further since when? In a day one may get a minute ahead of the
//! other, and would then hide a minute of sleep; so they are compared from the last [`LeaseClock::reading`] on, which
//! every beat begins with.

use felix_cluster::lease::{Clocks, Reading};
use felix_control::clock::LeaseClock;
use felix_protocol::time::{Clock, MonoTime, WallTime};
use parking_lot::Mutex;
use rustix::time::{ClockId, DynamicClockId, clock_gettime, clock_gettime_dynamic};
use std::sync::atomic::{AtomicU64, Ordering, fence};

/// The machine's clocks.
#[derive(Clone, Copy, Debug)]
pub struct SystemClock {
    /// Made once a process, and never freed: everything has a copy of the clock.
    shared: &'static Shared,
}

#[derive(Debug)]
struct Shared {
    /// Which of the two there are; the other stands in for one that is missing.
    boottime: ClockId,
    raw: ClockId,
    /// What both showed at the start.
    start: Reading,
    /// Where the two were last compared. Written by one at a time, read by many: odd while it is written.
    version: AtomicU64,
    compared_boottime: AtomicU64,
    compared_raw: AtomicU64,
    compared_shown: AtomicU64,
    writer: Mutex<()>,
}

fn nanoseconds(clock: ClockId) -> u64 {
    let time = clock_gettime(clock);
    let seconds = u64::try_from(time.tv_sec).unwrap_or(0);
    let rest = u64::try_from(time.tv_nsec).unwrap_or(0);
    seconds.saturating_mul(1_000_000_000).saturating_add(rest)
}

/// Whether the machine has that clock.
fn exists(clock: ClockId) -> bool {
    clock_gettime_dynamic(DynamicClockId::Known(clock)).is_ok()
}

impl Shared {
    fn read(&self) -> Reading {
        let since_start = |clock, start: MonoTime| MonoTime(nanoseconds(clock).saturating_sub(start.0));
        Reading {
            boottime: since_start(self.boottime, self.start.boottime),
            raw: since_start(self.raw, self.start.raw),
        }
    }

    /// Where the clocks were last compared, and what was shown then.
    fn compared(&self) -> (Reading, u64) {
        loop {
            let before = self.version.load(Ordering::Acquire);
            let boottime = MonoTime(self.compared_boottime.load(Ordering::Relaxed));
            let raw = MonoTime(self.compared_raw.load(Ordering::Relaxed));
            let shown = self.compared_shown.load(Ordering::Relaxed);
            fence(Ordering::Acquire);
            if before.is_multiple_of(2) && before == self.version.load(Ordering::Relaxed) {
                return (Reading { boottime, raw }, shown);
            }
            std::hint::spin_loop();
        }
    }

    fn compare(&self) -> Reading {
        let _alone = self.writer.lock();
        let (before, shown) = self.compared();
        let now = self.read();
        let shown = shown.saturating_add(elapsed(now, before));
        let version = self.version.load(Ordering::Relaxed);
        self.version.store(version + 1, Ordering::Relaxed);
        fence(Ordering::Release);
        self.compared_boottime.store(now.boottime.0, Ordering::Relaxed);
        self.compared_raw.store(now.raw.0, Ordering::Relaxed);
        self.compared_shown.store(shown, Ordering::Relaxed);
        self.version.store(version + 2, Ordering::Release);
        now
    }
}

fn elapsed(now: Reading, before: Reading) -> u64 {
    u64::try_from(now.longest_since(before).as_nanos()).unwrap_or(u64::MAX)
}

impl SystemClock {
    /// Starts both clocks. Once a process: time points of two clocks do not compare.
    pub fn start() -> SystemClock {
        let boottime = if exists(ClockId::Boottime) { ClockId::Boottime } else { ClockId::MonotonicRaw };
        let raw = if exists(ClockId::MonotonicRaw) { ClockId::MonotonicRaw } else { ClockId::Boottime };
        let start = Reading { boottime: MonoTime(nanoseconds(boottime)), raw: MonoTime(nanoseconds(raw)) };
        let shared = Shared {
            boottime,
            raw,
            start,
            version: AtomicU64::new(0),
            compared_boottime: AtomicU64::new(0),
            compared_raw: AtomicU64::new(0),
            compared_shown: AtomicU64::new(0),
            writer: Mutex::new(()),
        };
        SystemClock { shared: Box::leak(Box::new(shared)) }
    }
}

impl Clock for SystemClock {
    fn now(&self) -> MonoTime {
        let (compared, shown) = self.shared.compared();
        MonoTime(shown.saturating_add(elapsed(self.shared.read(), compared)))
    }

    fn wall(&self) -> WallTime {
        let time = clock_gettime(ClockId::Realtime);
        WallTime(time.tv_sec.saturating_mul(1000).saturating_add(time.tv_nsec / 1_000_000))
    }
}

impl LeaseClock for SystemClock {
    fn reading(&self) -> Reading {
        self.shared.compare()
    }

    fn clocks(&self) -> Clocks {
        if self.shared.boottime == self.shared.raw { Clocks::One } else { Clocks::Both }
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

    #[test]
    fn comparing_the_clocks_moves_time_neither_back_nor_ahead() {
        let clock = SystemClock::start();
        let stop = std::sync::atomic::AtomicBool::new(false);
        std::thread::scope(|scope| {
            for _ in 0..2 {
                scope.spawn(|| {
                    let mut before = clock.now();
                    while !stop.load(Ordering::Relaxed) {
                        let now = clock.now();
                        assert!(now >= before);
                        before = now;
                    }
                });
            }
            let mut before = clock.reading();
            for _ in 0..10_000 {
                let now = clock.reading();
                assert!(now.shortest_since(before) <= now.longest_since(before));
                before = now;
            }
            stop.store(true, Ordering::Relaxed);
        });
        // Nobody slept meanwhile: it is what either clock shows, or a little more.
        let (now, reading) = (clock.now(), clock.reading());
        let least = reading.boottime.max(reading.raw);
        assert!(now.0.abs_diff(least.0) < 50_000_000, "{now:?} {reading:?}");
        assert_eq!(clock.clocks(), Clocks::Both);
    }

    #[test]
    fn sleep_is_not_hidden_by_a_clock_that_ran_ahead_before() {
        // As of the last comparison one clock is a minute ahead of the other.
        let ahead = MonoTime(60_000_000_000);
        let before = Reading { boottime: MonoTime(0), raw: ahead };
        let after = Reading { boottime: MonoTime(30_000_000_000), raw: ahead };
        assert_eq!(elapsed(after, before), 30_000_000_000);
    }
}
