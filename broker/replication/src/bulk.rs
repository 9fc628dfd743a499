//! How much may be on its way at once of what a follower lacks that is far behind.
//!
//! A follower answers when its disk has what it was sent, and what others are sent meanwhile waits for the same disk. So the time
//! that an answer takes tells what the tail suffers. Alone, a request takes what the disk and the way take; if it takes much longer with
//! others beside it, they queue there, and more of them would only make the queue longer.
//!
//! ```text
//!   size   1  alone: 8 ms         1 → 2 → 3 …   up to `most`       every answer within 2 × 8 + 10 ms, and 25 ms for a MiB
//!          …  one takes 60 ms     8 → 4
//!          …  ten seconds         → 1                              what alone means is learned anew
//! ```
//!
//! Only what was sent after a change says whether it was right. A disk that is slow whatever it is given has a long time alone, and is given as much as any other; one that is slow by the byte gets
//! little at once.

use std::time::Duration;

use felix_protocol::time::MonoTime;

/// What an answer may take beside twice what it takes alone.
const SLACK: Duration = Duration::from_millis(10);
/// And for each MiB of the request: the one that was alone may have been a small one.
const PER_MIB: Duration = Duration::from_millis(25);
/// After so long it is learned anew what one takes alone.
const ANEW: Duration = Duration::from_secs(10);

/// See the module. Invariant: 1 ≤ `size` ≤ `most`.
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct Window {
    most: usize,
    size: usize,
    /// The least that one took that was sent with no other on its way.
    alone: Option<Duration>,
    since: MonoTime,
    /// What was sent before says nothing about the present size.
    changed_at: MonoTime,
}

impl Window {
    /// At most so many requests, and one at first.
    pub fn new(most: usize, now: MonoTime) -> Window {
        Window { most: most.max(1), size: 1, alone: None, since: now, changed_at: now }
    }

    /// So many requests may be without an answer.
    pub fn size(&self) -> usize {
        self.size
    }

    /// A request of so many bytes was answered. `was_alone`: no other was on its way when it was sent.
    pub fn answered(&mut self, sent_at: MonoTime, was_alone: bool, bytes: usize, now: MonoTime) {
        if now.since(self.since) >= ANEW {
            *self = Window::new(self.most, now);
            return;
        }
        let took = now.since(sent_at);
        if was_alone && sent_at >= self.since {
            self.alone = Some(self.alone.map_or(took, |least| least.min(took)));
        }
        let Some(alone) = self.alone.filter(|_| sent_at >= self.changed_at) else { return };
        let for_bytes = PER_MIB.mul_f64(bytes as f64 / f64::from(1 << 20));
        if took <= alone * 2 + SLACK + for_bytes {
            self.size = (self.size + 1).min(self.most);
        } else {
            self.size = (self.size / 2).max(1);
        }
        self.changed_at = now;
    }
}

#[cfg(test)]
mod tests {
    use std::collections::VecDeque;

    use proptest::prelude::*;

    use super::*;

    const START: MonoTime = MonoTime(3_600_000_000_000);

    /// A disk that makes one MiB after the other durable, each in so many milliseconds, and tells of it so many milliseconds later. What
    /// went through in a minute, in MiB a second, and the longest that one waited once ten seconds had passed.
    fn run(per_mib: u64, later: u64) -> (f64, Duration) {
        let ms = Duration::from_millis;
        let (mut window, mut now, mut free_at) = (Window::new(8, START), START, START);
        let (mut under_way, mut done, mut longest) = (VecDeque::new(), 0, Duration::ZERO);
        while now.since(START) < Duration::from_secs(60) {
            while under_way.len() < window.size() {
                free_at = free_at.max(now).after(ms(per_mib));
                under_way.push_back((now, under_way.is_empty(), free_at.after(ms(later))));
            }
            let Some((sent_at, was_alone, answered_at)) = under_way.pop_front() else { break };
            now = answered_at;
            done += 1;
            if now.since(START) > Duration::from_secs(10) {
                longest = longest.max(now.since(sent_at));
            }
            window.answered(sent_at, was_alone, 1 << 20, now);
            assert!((1..=8).contains(&window.size()));
        }
        (f64::from(done) / 60.0, longest)
    }

    #[test]
    fn a_fast_disk_is_given_all_it_takes() {
        let (rate, longest) = run(3, 1);
        assert!(rate > 300.0 && longest < Duration::from_millis(40), "{rate} MiB/s, {longest:?}");
    }

    #[test]
    fn a_disk_that_is_slow_by_the_byte_has_no_queue_of_all_that_may_wait() {
        let (rate, longest) = run(50, 1);
        assert!(rate > 18.0, "it is kept busy: {rate} of 20 MiB/s");
        assert!(
            longest <= Duration::from_millis(250),
            "with eight on their way it would be 400 ms: {longest:?}"
        );
    }

    #[test]
    fn a_way_that_is_long_is_filled() {
        let (rate, _) = run(1, 100);
        assert!(rate > 60.0, "one at a time would be 10 MiB/s: {rate} of at most 79");
    }

    #[test]
    fn a_small_one_alone_does_not_make_large_ones_late() {
        let at = |ms| START.after(Duration::from_millis(ms));
        let mut window = Window::new(8, START);
        window.answered(START, true, 1_000, at(3));
        assert_eq!(window.size(), 2);
        window.answered(at(3), false, 1 << 20, at(40));
        assert_eq!(window.size(), 3);
        window.answered(at(39), false, 1 << 20, at(200));
        assert_eq!(window.size(), 3, "it was sent before the last change");
        window.answered(at(40), false, 1 << 20, at(100));
        assert_eq!(window.size(), 1);
    }

    proptest! {
        #[test]
        fn it_neither_starves_nor_floods(per_mib in 1..200u64, later in 0..200u64) {
            let (rate, longest) = run(per_mib, later);
            // What is possible with eight on their way.
            let best = (1000.0 / per_mib as f64).min(8000.0 / (per_mib + later) as f64);
            prop_assert!(rate > best / 2.0, "{} of {} MiB/s", rate, best);
            let alone = Duration::from_millis(per_mib + later);
            let one = Duration::from_millis(per_mib);
            prop_assert!(longest <= alone * 2 + SLACK + PER_MIB + one * 2, "{:?} where one takes {:?}", longest, alone);
        }
    }
}
