//! Whether the machine ran. Leases are times: where a virtual machine is not given a processor for longer than a lease, a broker loses
//! its leases without anybody's fault, and a failure of that moment means something else than one on a machine that ran.

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

/// What is to be said about the machine for something that took the last `span`; nothing if it ran.
pub fn said(span: Duration) -> Option<String> {
    let pauses = PAUSES.lock().ok()?;
    tell(&pauses, Instant::now(), span)
}

fn tell(pauses: &[(Instant, Duration)], now: Instant, span: Duration) -> Option<String> {
    let during = pauses.iter().filter(|(ended, _)| now.duration_since(*ended) <= span);
    let (count, longest) =
        during.fold((0, Duration::ZERO), |(count, longest), (_, pause)| (count + 1, longest.max(*pause)));
    let longest = longest.as_secs_f64();
    (count > 0)
        .then(|| format!("the machine stood still {count} times meanwhile, for {longest:.2} s at most"))
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn only_pauses_of_the_span_are_told() {
        let start = Instant::now();
        let at = |seconds| start + Duration::from_secs(seconds);
        let pauses = [(at(1), Duration::from_secs(1)), (at(6), Duration::from_millis(300))];
        assert_eq!(tell(&pauses, at(10), Duration::from_secs(2)), None);
        let told = tell(&pauses, at(10), Duration::from_secs(5)).unwrap_or_default();
        assert!(told.contains("1 times") && told.contains("0.30 s"), "{told}");
        let told = tell(&pauses, at(10), Duration::from_secs(10)).unwrap_or_default();
        assert!(told.contains("2 times") && told.contains("1.00 s"), "{told}");
    }
}
