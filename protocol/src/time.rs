//! Time points. Pure code receives them; only the broker's clock makes them.

use std::time::Duration;

/// A point on this process's monotonic clock, in nanoseconds from an arbitrary start.
#[derive(Clone, Copy, Debug, PartialEq, Eq, PartialOrd, Ord, Hash)]
pub struct MonoTime(pub u64);

impl MonoTime {
    /// Later than every other: a deadline that never comes.
    pub const NEVER: MonoTime = MonoTime(u64::MAX);

    /// This point, `by` later; saturates at [`MonoTime::NEVER`].
    #[must_use]
    pub fn after(self, by: Duration) -> MonoTime {
        let by = u64::try_from(by.as_nanos()).unwrap_or(u64::MAX);
        MonoTime(self.0.saturating_add(by))
    }

    /// How long from `earlier` to this point; zero if `earlier` is later.
    pub fn since(self, earlier: MonoTime) -> Duration {
        Duration::from_nanos(self.0.saturating_sub(earlier.0))
    }
}

/// Wall-clock time in milliseconds since 1970 (UTC), as records carry it.
#[derive(Clone, Copy, Debug, PartialEq, Eq, PartialOrd, Ord, Hash)]
pub struct WallTime(pub i64);

/// Where a component that must not own a clock asks for the time.
pub trait Clock: Send + Sync + 'static {
    /// The monotonic clock, for deadlines and leases.
    fn now(&self) -> MonoTime;
    /// The wall clock, for records, retention and expiry that outlives the process.
    fn wall(&self) -> WallTime;
}
