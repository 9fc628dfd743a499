//! The clocks that leases need; the broker has them, and tests bring their own.

use felix_cluster::lease::{Clocks, Reading};
use felix_protocol::time::Clock;

/// A clock for both sides of a lease: [`Clock::now`] is the holder's time, which never runs less than either of the two
/// clocks behind it, and [`LeaseClock::reading`] is for waiters.
pub trait LeaseClock: Clock {
    /// Both clocks as they stand. Also the moment from which on [`Clock::now`] compares the two: called before each
    /// beat, so that the one that ran further since is the one that counts.
    fn reading(&self) -> Reading;

    /// Which clocks there are.
    fn clocks(&self) -> Clocks;
}
