//! How fast throttled copies may be sent to (KIP-73): a bucket of bytes that fills at a steady rate.
//!
//! ```text
//!   level_at   |<-- burst -->|now                  all of the burst is there
//!              |      level_at  now                some of it
//!              |             |now     level_at     overdrawn: nothing goes before level_at
//! ```
//!
//! Whoever asks while nothing is owed may take whatever it has in hand, so that a batch larger than the burst gets through; the
//! next waits until that is paid.

use std::time::Duration;

use felix_protocol::time::MonoTime;

/// So much time's worth of bytes may go at once after a rest.
const BURST_NANOS: u64 = 1_000_000_000;

/// See the module. Invariant: what it owes was taken at a rate that is neither unlimited nor nothing.
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct Bucket {
    bytes_per_sec: Option<u64>,
    level_at: MonoTime,
}

impl Bucket {
    /// A full one. `None`: no limit; 0: nothing goes.
    pub fn new(bytes_per_sec: Option<u64>) -> Bucket {
        Bucket { bytes_per_sec, level_at: MonoTime(0) }
    }

    /// Another rate from now on; what is owed stays owed.
    pub fn set_rate(&mut self, bytes_per_sec: Option<u64>, now: MonoTime) {
        if self.bytes_per_sec == bytes_per_sec {
            return;
        }
        let owed = self.level_at.since(now).as_nanos();
        let before = u128::from(self.bytes_per_sec.unwrap_or(0));
        self.bytes_per_sec = bytes_per_sec;
        self.level_at = match bytes_per_sec {
            Some(rate) if rate > 0 && owed > 0 => {
                now.after(nanos(owed.saturating_mul(before) / u128::from(rate)))
            }
            Some(_) | None => self.level_at.min(now),
        };
    }

    /// When something may go; never, at a rate of nothing.
    pub fn ready_at(&self) -> MonoTime {
        match self.bytes_per_sec {
            None => MonoTime(0),
            Some(0) => MonoTime::NEVER,
            Some(_) => self.level_at,
        }
    }

    /// So much went.
    pub fn spend(&mut self, bytes: usize, now: MonoTime) {
        let Some(rate) = self.bytes_per_sec.filter(|rate| *rate > 0) else { return };
        let full_at = MonoTime(now.0.saturating_sub(BURST_NANOS));
        let took = nanos((bytes as u128).saturating_mul(1_000_000_000) / u128::from(rate));
        self.level_at = self.level_at.max(full_at).after(took);
    }

    /// The most that one frame should have, so that several copies get their turns and nobody goes for long without a word:
    /// half a second's worth.
    pub fn frame_bytes(&self) -> usize {
        let half = self.bytes_per_sec.map_or(u64::MAX, |rate| (rate / 2).max(1));
        usize::try_from(half).unwrap_or(usize::MAX)
    }
}

fn nanos(count: u128) -> Duration {
    Duration::from_nanos(u64::try_from(count).unwrap_or(u64::MAX))
}

#[cfg(test)]
mod tests {
    use super::*;

    fn at(millis: u64) -> MonoTime {
        MonoTime(3_600_000_000_000).after(Duration::from_millis(millis))
    }

    #[test]
    fn a_burst_goes_at_once_and_then_the_rate_holds() {
        let mut bucket = Bucket::new(Some(1000));
        bucket.spend(600, at(0));
        assert!(bucket.ready_at() <= at(0), "some of the burst is left");
        bucket.spend(900, at(0));
        assert_eq!(bucket.ready_at(), at(500), "more than is left goes, and is owed");
        bucket.spend(1000, at(500));
        assert_eq!(bucket.ready_at(), at(1500));
        bucket.spend(1000, at(60_000));
        assert_eq!(bucket.ready_at(), at(60_000), "a rest saves up one burst and no more");
    }

    #[test]
    fn over_a_long_time_it_is_the_rate() {
        let (mut bucket, mut sent, mut now) = (Bucket::new(Some(250_000)), 0, at(0));
        while now < at(20_000) {
            now = now.max(bucket.ready_at());
            bucket.spend(37_123, now);
            sent += 37_123;
        }
        let expected = 250_000 * 21;
        assert!((expected - 40_000..expected + 80_000).contains(&sent), "{sent}");
    }

    #[test]
    fn without_a_limit_everything_goes_and_at_nothing_nothing() {
        let mut bucket = Bucket::new(None);
        bucket.spend(usize::MAX, at(0));
        assert_eq!((bucket.ready_at(), bucket.frame_bytes()), (MonoTime(0), usize::MAX));
        bucket.set_rate(Some(0), at(1));
        assert_eq!(bucket.ready_at(), MonoTime::NEVER);
        bucket.set_rate(Some(10), at(2));
        assert!(bucket.ready_at() <= at(2), "nothing is owed from before");
        assert_eq!(bucket.frame_bytes(), 5);
    }

    #[test]
    fn another_rate_keeps_what_is_owed() {
        let mut bucket = Bucket::new(Some(1000));
        bucket.spend(3000, at(0));
        assert_eq!(bucket.ready_at(), at(2000));
        bucket.set_rate(Some(4000), at(0));
        assert_eq!(bucket.ready_at(), at(500), "2000 bytes");
        bucket.set_rate(Some(4000), at(100));
        assert_eq!(bucket.ready_at(), at(500));
        bucket.set_rate(None, at(200));
        assert_eq!(bucket.ready_at(), MonoTime(0));
        bucket.set_rate(Some(1), at(200));
        assert!(bucket.ready_at() <= at(200));
    }
}
