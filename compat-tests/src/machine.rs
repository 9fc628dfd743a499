//! Whether the machine ran. Leases are times: where a virtual machine is not given a processor for longer than a lease, a broker loses
//! its leases without anybody's fault. A failure says so if that happened meanwhile: it is where to look first.

use std::sync::Mutex;
use std::time::{Duration, Instant};

/// How long the watch sleeps at a time.
const STEP: Duration = Duration::from_millis(20);
/// What counts as standing still: far above what two busy cores do to a thread that only sleeps.
const STILL: Duration = Duration::from_millis(250);
/// How many of the last pauses are kept.
const KEPT: usize = 1_000;

static PAUSES: Mutex<Vec<(Instant, Duration)>> = Mutex::new(Vec::new());

/// Starts the watch, which goes on until the program ends.
pub fn watch() {
    std::thread::spawn(|| {
        loop {
            let before = Instant::now();
            #[expect(clippy::disallowed_methods, reason = "it watches how long a sleep really takes")]
            std::thread::sleep(STEP);
            let now = Instant::now();
            let pause = now - before;
            if pause >= STILL
                && let Ok(mut pauses) = PAUSES.lock()
            {
                if pauses.len() == KEPT {
                    pauses.remove(0);
                }
                pauses.push((now, pause));
            }
        }
    });
}

/// How long the machine stood still at most while something took the last `span`; not at all if it ran.
pub fn stood_still(span: Duration) -> Option<Duration> {
    let pauses = PAUSES.lock().ok()?;
    longest(&pauses, Instant::now(), span)
}

fn longest(pauses: &[(Instant, Duration)], now: Instant, span: Duration) -> Option<Duration> {
    let during = pauses.iter().filter(|(ended, _)| now.duration_since(*ended) <= span);
    during.map(|(_, pause)| *pause).max()
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn only_pauses_of_the_span_count() {
        let start = Instant::now();
        let at = |seconds| start + Duration::from_secs(seconds);
        let pauses = [(at(1), Duration::from_secs(1)), (at(6), Duration::from_millis(300))];
        assert_eq!(longest(&pauses, at(10), Duration::from_secs(2)), None);
        assert_eq!(longest(&pauses, at(10), Duration::from_secs(5)), Some(Duration::from_millis(300)));
        assert_eq!(longest(&pauses, at(10), Duration::from_secs(10)), Some(Duration::from_secs(1)));
    }
}
