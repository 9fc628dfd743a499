//! A producer at a fixed rate, whose every record is timed from when it was to be sent: what waits because an earlier one had no answer
//! counts, too.

use std::net::SocketAddrV4;
use std::sync::Arc;
use std::sync::atomic::{AtomicUsize, Ordering};
use std::sync::mpsc::{RecvTimeoutError, Sender, channel};
use std::thread::JoinHandle;
use std::time::{Duration, Instant};

use anyhow::{Result, bail};

use crate::raw::batch::Batch;
use crate::raw::conn::{Connection, key};
use crate::raw::stage::time;

/// Time between two records.
const EVERY: Duration = Duration::from_millis(5);
/// How long an answer may take.
const PATIENCE: Duration = Duration::from_secs(30);
/// Bytes of a record's value.
const VALUE_BYTES: usize = 1_000;
/// When nobody has taken a record for so long something is broken.
const NOBODY: Duration = Duration::from_secs(60);

/// When a record was to be sent, and how long after that it was acknowledged.
type Sample = (Instant, Duration);

/// See the module. It runs until [`Pulse::stop`].
pub struct Pulse {
    phase: Arc<AtomicUsize>,
    stop: Sender<()>,
    thread: JoinHandle<Result<Vec<(usize, Sample)>>>,
}

impl Pulse {
    /// Begins, in phase 0: a record to partition 0 of the topic every 5 ms, with acks=all, to whichever of these brokers takes it.
    pub fn start(brokers: Vec<SocketAddrV4>, topic: &str) -> Self {
        let phase = Arc::new(AtomicUsize::new(0));
        let (stop, stopped) = channel();
        let (seen, topic) = (Arc::clone(&phase), topic.to_owned());
        let thread = std::thread::spawn(move || {
            let mut to = Rotating { brokers, at: 0, open: None };
            let batch = Batch::of(&[&"p".repeat(VALUE_BYTES)], time()).encode()?;
            let body = Connection::produce_body(-1, &topic, 0, &batch);
            let (mut due, mut samples) = (Instant::now(), Vec::new());
            loop {
                match stopped.recv_timeout(due.saturating_duration_since(Instant::now())) {
                    Err(RecvTimeoutError::Timeout) => {}
                    Ok(()) | Err(RecvTimeoutError::Disconnected) => return Ok(samples),
                }
                let phase = seen.load(Ordering::Relaxed);
                while let Err(error) = to.append(&body) {
                    if due.elapsed() > NOBODY {
                        bail!("nobody takes records of {topic}: {error:#}");
                    }
                }
                samples.push((phase, (due, due.elapsed())));
                due += EVERY;
            }
        });
        Self { phase, stop, thread }
    }

    /// What is sent from now on belongs to that phase.
    pub fn enter(&self, phase: usize) {
        self.phase.store(phase, Ordering::Relaxed);
    }

    /// Ends it; the waits of each phase.
    pub fn stop(self, phases: usize) -> Result<Vec<Waits>> {
        // It may have failed before.
        let _ = self.stop.send(());
        let samples = match self.thread.join() {
            Ok(samples) => samples?,
            Err(_) => bail!("a producer panicked"),
        };
        let of = |phase| samples.iter().filter(|(at, _)| *at == phase).map(|(_, sample)| *sample).collect();
        Ok((0..phases).map(|phase| Waits::of(of(phase))).collect())
    }
}

struct Rotating {
    brokers: Vec<SocketAddrV4>,
    at: usize,
    open: Option<Connection>,
}

impl Rotating {
    fn append(&mut self, body: &crate::raw::wire::W) -> Result<()> {
        let outcome = self.try_append(body);
        if outcome.is_err() {
            self.open = None;
            self.at = (self.at + 1) % self.brokers.len();
        }
        outcome
    }

    fn try_append(&mut self, body: &crate::raw::wire::W) -> Result<()> {
        let mut to = match self.open.take() {
            Some(open) => open,
            None => Connection::open(self.brokers[self.at], PATIENCE)?,
        };
        let produced = Connection::read_produced(to.call(key::PRODUCE, 8, body)?)?;
        self.open = Some(to);
        if produced.error == 0 { Ok(()) } else { bail!("error {}", produced.error) }
    }
}

/// How long acknowledgements took.
#[derive(Debug, Clone, Copy, Default)]
pub struct Waits {
    /// How many there were.
    pub count: usize,
    /// The middle one.
    pub p50: Duration,
    /// Of a hundred, one took longer.
    pub p99: Duration,
    /// The longest.
    pub longest: Duration,
    /// How long after the first record that one was to be sent.
    pub longest_at: Duration,
}

impl Waits {
    /// Of these.
    pub fn of(samples: Vec<Sample>) -> Self {
        let first = samples.first().map(|(due, _)| *due);
        let last = samples.iter().max_by_key(|(_, wait)| *wait).map(|(due, _)| *due);
        let longest_at = last.zip(first).map(|(last, first)| last - first).unwrap_or_default();
        let mut waits: Vec<Duration> = samples.into_iter().map(|(_, wait)| wait).collect();
        waits.sort();
        let at = |part: usize| waits.get(waits.len() * part / 100).copied().unwrap_or_default();
        Self {
            count: waits.len(),
            p50: at(50),
            p99: at(99),
            longest: waits.last().copied().unwrap_or_default(),
            longest_at,
        }
    }
}

impl std::fmt::Display for Waits {
    fn fmt(&self, f: &mut std::fmt::Formatter<'_>) -> std::fmt::Result {
        let ms = |wait: Duration| wait.as_secs_f64() * 1e3;
        let at = self.longest_at.as_secs_f64();
        write!(
            f,
            "{:.1}/{:.1}/{:.0} ms at {at:.1} s of {}",
            ms(self.p50),
            ms(self.p99),
            ms(self.longest),
            self.count
        )
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn parts_of_waits_are_told() {
        let now = Instant::now();
        let due = |at: u64| now + Duration::from_secs(200 - at);
        let waits = Waits::of((1..=200).rev().map(|at| (due(at), Duration::from_millis(at))).collect());
        assert_eq!((waits.count, waits.p50.as_millis(), waits.p99.as_millis()), (200, 101, 199));
        assert_eq!(waits.to_string(), "101.0/199.0/200 ms at 0.0 s of 200");
        assert_eq!(Waits::of(Vec::new()).longest, Duration::ZERO);
    }
}
