//! Reports on their way to the control store: group commit, without a timer.
//!
//! ```text
//!   queued     P1 P2 P3            while a request is on its way, reports gather;
//!   request    ────────────▶       the next request takes all of them, as many as fit, each with its own compares
//!   answered   P4                  and goes as soon as the one before is answered
//! ```
//!
//! Alone, a report goes at once; under load, requests carry many. In the steady state there is none at all. Opening and parting
//! reports are never held back; the others of a node are capped, so that followers that come and go over thousands of
//! partitions do not crowd out what keeps partitions available. Deliberately absent: what a report says (`eligible`), and
//! resolving an unknown outcome (each leader's own, C3).

use std::collections::VecDeque;
use std::time::Duration;

use felix_protocol::time::MonoTime;

/// So many reports that only change a set may go each second, for the whole node.
pub const PER_SECOND: u32 = 1_000;
/// So many at once after a rest.
pub const BURST: u32 = 2_000;

/// How urgent a report is.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum Urgency {
    /// Somebody waits for it to be available: a tenure that opens, declines or resigns.
    AtOnce,
    /// It changes the set of a partition that works.
    Capped,
}

/// The queue. `T` is a report with whatever carries its answer.
///
/// Invariant: at most one request is on its way.
#[derive(Debug)]
pub struct Reports<T> {
    urgent: VecDeque<T>,
    capped: VecDeque<T>,
    in_flight: bool,
    /// What the cap still allows, in parts of a report.
    allowance: Duration,
    counted_at: MonoTime,
    reports: u64,
    requests: u64,
}

/// What one report takes of the allowance.
const SHARE: Duration = Duration::from_nanos(1_000_000_000 / PER_SECOND as u64);

impl<T> Reports<T> {
    /// Nothing queued.
    pub fn new(now: MonoTime) -> Reports<T> {
        Reports {
            urgent: VecDeque::new(),
            capped: VecDeque::new(),
            in_flight: false,
            allowance: SHARE * BURST,
            counted_at: now,
            reports: 0,
            requests: 0,
        }
    }

    /// One more is to go. One leader has at most a few on their way, so the partitions that this node leads are the limit.
    pub fn push(&mut self, urgency: Urgency, report: T) {
        match urgency {
            Urgency::AtOnce => self.urgent.push_back(report),
            Urgency::Capped => self.capped.push_back(report),
        }
    }

    /// The next request: at most `limit` reports, the urgent first; empty while one is on its way or nothing may go.
    /// [`Reports::answered`] follows.
    pub fn take(&mut self, limit: usize, now: MonoTime) -> Vec<T> {
        if self.in_flight {
            return Vec::new();
        }
        self.earn(now);
        let mut request: Vec<T> = self.urgent.drain(..self.urgent.len().min(limit)).collect();
        while request.len() < limit && self.allowance >= SHARE {
            let Some(report) = self.capped.pop_front() else { break };
            self.allowance -= SHARE;
            request.push(report);
        }
        if !request.is_empty() {
            self.in_flight = true;
            self.requests += 1;
            self.reports += request.len() as u64;
        }
        request
    }

    /// The request was answered, or will never be.
    pub fn answered(&mut self) {
        self.in_flight = false;
    }

    /// When something that is held back may go; never, if nothing is.
    pub fn next_tick(&self) -> MonoTime {
        if self.in_flight || self.capped.is_empty() {
            return MonoTime::NEVER;
        }
        self.counted_at.after(SHARE.saturating_sub(self.allowance))
    }

    /// Reports and requests so far: their quotient is `felix_broker_replica_reports_per_request`.
    pub fn counts(&self) -> (u64, u64) {
        (self.reports, self.requests)
    }

    fn earn(&mut self, now: MonoTime) {
        self.allowance = (self.allowance + now.since(self.counted_at)).min(SHARE * BURST);
        self.counted_at = self.counted_at.max(now);
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    fn at(millis: u64) -> MonoTime {
        MonoTime(millis * 1_000_000)
    }

    #[test]
    fn what_gathers_behind_a_request_goes_with_the_next() {
        let mut reports = Reports::new(at(0));
        reports.push(Urgency::Capped, 1);
        assert_eq!(reports.take(40, at(0)), [1], "alone it goes at once");
        for report in 2..5 {
            reports.push(Urgency::Capped, report);
        }
        reports.push(Urgency::AtOnce, 9);
        assert_eq!(reports.take(40, at(1)), [0; 0], "one request at a time");
        reports.answered();
        assert_eq!(reports.take(3, at(1)), [9, 2, 3], "as many as fit, the urgent first");
        reports.answered();
        assert_eq!(reports.take(3, at(1)), [4]);
        reports.answered();
        assert_eq!(reports.take(3, at(1)), [0; 0]);
        assert_eq!(reports.counts(), (5, 3));
        assert_eq!(reports.next_tick(), MonoTime::NEVER, "without reports there is no time");
    }

    #[test]
    fn those_that_keep_nothing_available_are_capped() {
        let mut reports = Reports::new(at(0));
        for report in 0..BURST + 500 {
            reports.push(Urgency::Capped, report);
        }
        let mut gone = 0;
        loop {
            let request = reports.take(40, at(0)).len();
            reports.answered();
            gone += request;
            if request == 0 {
                break;
            }
        }
        assert_eq!(gone, BURST as usize);
        assert_eq!(reports.next_tick(), at(1));
        reports.push(Urgency::AtOnce, 0);
        assert_eq!(reports.take(40, at(0)).len(), 1, "opening is never held back");
        reports.answered();
        assert_eq!(reports.take(400, at(100)).len(), 100);
    }
}
