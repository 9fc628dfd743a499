//! A bucket of tokens: they come back at a steady rate up to a burst, and may once go below nothing. No clock.
//!
//! Changes of topics come in lumps (a topic of a thousand partitions is one), for which rates over windows are too coarse:
//! whoever has a token left gets the whole lump, and then waits until the bucket is level again.

use std::time::Duration;

use felix_protocol::time::MonoTime;

/// A bucket, full at first.
#[derive(Clone, Debug, PartialEq)]
pub struct Tokens {
    left: f64,
    at: MonoTime,
}

impl Tokens {
    /// A bucket that nothing was taken from.
    pub fn full(burst: f64, now: MonoTime) -> Tokens {
        Tokens { left: burst, at: now }
    }

    /// Takes so many, even if there are fewer. To be refused before, if at all: see [`Tokens::owed`].
    pub fn take(&mut self, count: f64, rate: f64, burst: f64, now: MonoTime) {
        self.refill(rate, burst, now);
        self.left = (self.left - count).min(burst);
    }

    /// How long until the bucket is level.
    pub fn owed(&mut self, rate: f64, burst: f64, now: MonoTime) -> Duration {
        self.refill(rate, burst, now);
        if self.left >= 0.0 {
            return Duration::ZERO;
        }
        Duration::try_from_secs_f64(-self.left / rate).unwrap_or(Duration::MAX)
    }

    /// Whether it is full again: then nothing is lost with it.
    pub fn is_idle(&mut self, rate: f64, burst: f64, now: MonoTime) -> bool {
        self.refill(rate, burst, now);
        self.left >= burst
    }

    fn refill(&mut self, rate: f64, burst: f64, now: MonoTime) {
        let elapsed = now.since(self.at).as_secs_f64();
        self.at = self.at.max(now);
        self.left = (self.left + elapsed * rate).min(burst);
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    fn at(millis: u64) -> MonoTime {
        MonoTime(7).after(Duration::from_millis(millis))
    }

    #[test]
    fn a_lump_is_taken_whole_and_paid_back() {
        // Two a second, ten at once.
        let (rate, burst) = (2.0, 10.0);
        let mut tokens = Tokens::full(burst, at(0));
        tokens.take(9.0, rate, burst, at(0));
        assert_eq!(tokens.owed(rate, burst, at(0)), Duration::ZERO, "one is left");
        tokens.take(5.0, rate, burst, at(0));
        assert_eq!(tokens.owed(rate, burst, at(0)), Duration::from_secs(2));
        assert_eq!(tokens.owed(rate, burst, at(1_500)), Duration::from_millis(500));
        assert_eq!(tokens.owed(rate, burst, at(2_000)), Duration::ZERO);
        assert!(!tokens.is_idle(rate, burst, at(2_000)));
        assert!(tokens.is_idle(rate, burst, at(7_000)));
        tokens.take(11.0, rate, burst, at(60_000));
        assert_eq!(
            tokens.owed(rate, burst, at(60_000)),
            Duration::from_millis(500),
            "never more than the burst"
        );
    }

    #[test]
    fn another_limit_holds_from_now_on() {
        let mut tokens = Tokens::full(10.0, at(0));
        tokens.take(12.0, 1.0, 10.0, at(0));
        assert_eq!(tokens.owed(1.0, 10.0, at(0)), Duration::from_secs(2));
        assert_eq!(tokens.owed(4.0, 40.0, at(0)), Duration::from_millis(500));
        assert_eq!(tokens.owed(1e-300, 1e-299, at(0)), Duration::MAX);
    }
}
