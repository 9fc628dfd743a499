//! The scrub: one thread that looks through the closed segments of all partitions led here, one after the
//! other, at a bounded pace.
//!
//! It reads a piece, then waits as long as that piece may take. Nothing is kept per partition: which segment is
//! due, the segments know. What a scrub finds goes into the directory's book of damage, as all damage does.

use std::sync::Arc;
use std::sync::atomic::{AtomicU64, Ordering};
use std::time::Duration;

use felix_cluster::config::broker::LogsConfig;
use felix_protocol::ids::PartitionId;
use felix_protocol::time::Clock;
use felix_storage::LogReader;
use felix_storage::disk::os::OsDisk;
use felix_storage::scrub::{Outcome, Progress, STEP, Scrub};
use parking_lot::{Condvar, Mutex};

use crate::clock::SystemClock;
use crate::partitions::led::Led;

/// Longest wait between two looks for segments that are due.
const LONGEST_PAUSE: Duration = Duration::from_secs(60);
/// Shortest one, however often segments are to be looked at.
const SHORTEST_PAUSE: Duration = Duration::from_millis(100);

/// How the scrub goes about it.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub struct Pace {
    /// `felix.scrub.bytes.per.second`; `None`: there is no scrub.
    pub bytes_per_second: Option<u64>,
    /// `felix.scrub.interval.ms`.
    pub every_ms: i64,
}

impl Pace {
    /// As the broker's settings say.
    pub fn of(logs: &LogsConfig) -> Pace {
        Pace { bytes_per_second: logs.scrub_bytes_per_second, every_ms: logs.scrub_interval_ms }
    }
}

/// What the scrub has done since the process began.
#[derive(Default)]
pub(super) struct Findings {
    bytes: AtomicU64,
    segments: AtomicU64,
    seals: AtomicU64,
}

/// The scrub's figures.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq)]
pub struct Scrubbed {
    /// Bytes read.
    pub bytes: u64,
    /// Segments looked through.
    pub segments: u64,
    /// Seals made for segments that had none, or a bad one.
    pub seals: u64,
}

impl Findings {
    pub(super) fn figures(&self) -> Scrubbed {
        Scrubbed {
            bytes: self.bytes.load(Ordering::Relaxed),
            segments: self.segments.load(Ordering::Relaxed),
            seals: self.seals.load(Ordering::Relaxed),
        }
    }
}

/// How the scrub is told what to do.
pub(super) struct Control {
    told: Mutex<Told>,
    changed: Condvar,
}

#[derive(Clone, Copy)]
struct Told {
    pace: Pace,
    stop: bool,
}

impl Control {
    /// The thread ends after the piece that it reads.
    pub(super) fn stop(&self) {
        self.told.lock().stop = true;
        self.changed.notify_all();
    }

    /// From now on it goes about it this way.
    pub(super) fn configure(&self, pace: Pace) {
        let mut told = self.told.lock();
        if told.pace != pace {
            told.pace = pace;
            self.changed.notify_all();
        }
    }

    fn pace(&self) -> Pace {
        self.told.lock().pace
    }

    /// Waits so long, or until something else is asked for.
    fn wait(&self, how_long: Duration) -> Result<(), Ended> {
        let mut told = self.told.lock();
        if !told.stop && !how_long.is_zero() {
            self.changed.wait_for(&mut told, how_long);
        }
        if told.stop { Err(Ended) } else { Ok(()) }
    }
}

/// What the thread runs, and how to tell it what to do.
pub(super) fn new(
    led: Arc<Led>,
    clock: SystemClock,
    pace: Pace,
    findings: Arc<Findings>,
) -> (Arc<Control>, impl FnOnce() + Send) {
    let told = Mutex::new(Told { pace, stop: false });
    let control = Arc::new(Control { told, changed: Condvar::new() });
    let scrubber = Scrubber { led, clock, control: Arc::clone(&control), findings };
    let body = move || {
        // An end is what was asked for.
        let _ = scrubber.run();
    };
    (control, body)
}

struct Scrubber {
    led: Arc<Led>,
    clock: SystemClock,
    control: Arc<Control>,
    findings: Arc<Findings>,
}

/// The broker stops.
struct Ended;

impl Scrubber {
    fn run(&self) -> Result<(), Ended> {
        let mut buf = Vec::with_capacity(STEP);
        // Not always the same first: a broker that is restarted often gets to all of them.
        let mut first = usize::try_from(self.clock.wall().0).unwrap_or(0);
        loop {
            let pace = self.control.pace();
            let mut pause = LONGEST_PAUSE;
            if pace.bytes_per_second.is_some() {
                let handles = self.led.all();
                let count = handles.len().max(1);
                for at in 0..handles.len() {
                    let handle = &handles[(first + at) % count];
                    self.partition(&handle.id(), handle.reader(), &mut buf)?;
                }
                first = first.wrapping_add(1);
                let every = Duration::from_millis(u64::try_from(pace.every_ms).unwrap_or(0));
                pause = every.clamp(SHORTEST_PAUSE, LONGEST_PAUSE);
            }
            self.control.wait(pause)?;
        }
    }

    /// Looks through all segments of one partition that are due.
    fn partition(
        &self,
        partition: &PartitionId,
        reader: &LogReader<OsDisk>,
        buf: &mut Vec<u8>,
    ) -> Result<(), Ended> {
        while self.control.pace().bytes_per_second.is_some()
            && let Some(scrub) = reader.scrub(self.clock.wall(), self.control.pace().every_ms)
        {
            self.segment(partition, scrub, buf)?;
            if self.led.get(partition).is_none() {
                break;
            }
        }
        Ok(())
    }

    fn segment(
        &self,
        partition: &PartitionId,
        mut scrub: Scrub<OsDisk>,
        buf: &mut Vec<u8>,
    ) -> Result<(), Ended> {
        let base = scrub.base();
        loop {
            let Some(bytes_per_second) = self.control.pace().bytes_per_second else {
                scrub.give_up();
                return Ok(());
            };
            let began = self.clock.now();
            let outcome = match scrub.step(buf) {
                Ok(Progress::Read(bytes)) => {
                    self.findings.bytes.fetch_add(bytes as u64, Ordering::Relaxed);
                    let due = Duration::from_secs_f64(bytes as f64 / bytes_per_second as f64);
                    self.control.wait(due.saturating_sub(self.clock.now().since(began)))?;
                    continue;
                }
                Ok(Progress::Done(outcome)) => outcome,
                Err(error) => {
                    tracing::warn!(%partition, base, %error, "a segment cannot be scrubbed now");
                    return Ok(());
                }
            };
            self.findings.segments.fetch_add(1, Ordering::Relaxed);
            match outcome {
                Outcome::Good | Outcome::Gone => {}
                Outcome::Sealed => {
                    self.findings.seals.fetch_add(1, Ordering::Relaxed);
                    tracing::debug!(%partition, base, "a segment without a seal is right, and is sealed");
                }
                Outcome::Resealed(reason) => {
                    self.findings.seals.fetch_add(1, Ordering::Relaxed);
                    tracing::warn!(
                        %partition, base, reason,
                        "a segment's seal was wrong; every batch is right, and the seal is made anew"
                    );
                }
                // Told and settled like all damage, by the directory's book.
                Outcome::Damaged(_) => {}
            }
            return Ok(());
        }
    }
}
