//! Load on a cluster by real clients while a case does something to it: an idempotent producer that sends numbered records to every
//! partition of a topic in turn, and two members of a group that read them.
//!
//! The program (clients/rdkafka/src/load.rs, clients/java/.../Load.java) tells how far it is, several times a second. In the end it
//! compares: every record that was sent is there exactly once, in order, at the offset that was acknowledged; the group has read every one,
//! skipped none, and never begun before what was committed. Whatever a client reports as an error that is not retried is a failure.

use std::io::{BufRead, BufReader, Write};
use std::process::{ChildStdin, ChildStdout, Command, Stdio};
use std::sync::atomic::{AtomicBool, Ordering};
use std::sync::{Arc, Mutex, MutexGuard, PoisonError};
use std::time::Duration;

use anyhow::{Context, Result, bail};
use serde::Deserialize;

use crate::process::{Process, tail};
use crate::wait;

/// How long clients may take to get on with it: a broker returns, a session of the group expires, retries back off.
const PROGRESS: Duration = Duration::from_secs(60);
/// A partition that has had no acknowledgement for so long stands still.
const LONG_MS: u64 = 300;
/// How long sending the rest, reading everything and comparing may take.
const END: Duration = Duration::from_secs(90);

/// A line of the program.
#[derive(Debug, Clone, Default, Deserialize)]
#[serde(default)]
struct Line {
    /// Records acknowledged so far.
    acked: u64,
    /// Records that the group has read so far.
    read: u64,
    /// The longest that any partition went without acknowledgement since it was asked last to measure anew, in milliseconds.
    stall_ms: u64,
    /// How long the partition that waits longest has been without acknowledgement.
    lasting_ms: u64,
    /// How often it was asked to measure anew.
    resets: u64,
    /// At the end: how many records were sent.
    done: Option<u64>,
    /// What went wrong; the program ends.
    failed: Option<String>,
}

/// Load that runs until `finish`.
pub struct Load {
    process: Process,
    stdin: ChildStdin,
    told: Arc<Mutex<Line>>,
    /// All that the program said was taken in.
    heard_all: Arc<AtomicBool>,
    resets: u64,
    log: std::path::PathBuf,
}

fn lock(told: &Mutex<Line>) -> MutexGuard<'_, Line> {
    told.lock().unwrap_or_else(PoisonError::into_inner)
}

impl Load {
    /// Starts a program with its arguments set. It says what it has to say on stdout, and the rest goes to `log`.
    pub fn start(mut command: Command, log: &std::path::Path) -> Result<Self> {
        let errors = std::fs::File::options().create(true).append(true).open(log)?;
        command.stdin(Stdio::piped()).stdout(Stdio::piped()).stderr(errors);
        let (process, pipes) = Process::spawn(&mut command)?;
        let told = Arc::new(Mutex::new(Line::default()));
        let heard_all = Arc::new(AtomicBool::new(false));
        listen(pipes.stdout.context("no stdout")?, Arc::clone(&told), Arc::clone(&heard_all));
        let stdin = pipes.stdin.context("no stdin")?;
        Ok(Self { process, stdin, told, heard_all, resets: 0, log: log.to_path_buf() })
    }

    fn line(&mut self) -> Result<Line> {
        let ended = self.process.ended();
        if ended.is_some() {
            // Its last words count, too.
            wait::until("the last words of the load", Duration::from_secs(10), || {
                Ok(self.heard_all.load(Ordering::SeqCst).then_some(()))
            })?;
        }
        let line = lock(&self.told).clone();
        if let Some(why) = &line.failed {
            bail!("the load failed: {why}");
        }
        if let Some(status) = ended.filter(|_| line.done.is_none()) {
            bail!("the load ended with {status}:\n{}", tail(&self.log, 8));
        }
        Ok(line)
    }

    /// Waits until so many more records are acknowledged and read.
    pub fn progress(&mut self, records: u64) -> Result<()> {
        let before = self.line()?;
        wait::until(&format!("{records} more records under load"), PROGRESS, || {
            let now = self.line()?;
            Ok((now.acked >= before.acked + records && now.read >= before.read + records).then_some(()))
        })
        .with_context(|| format!("{:?} before, {:?} now", before, lock(&self.told).clone()))
    }

    /// Fails if the load has.
    pub fn alive(&mut self) -> Result<()> {
        self.line().map(drop)
    }

    /// Measures the longest stall anew from here.
    pub fn measure(&mut self) -> Result<()> {
        self.say("reset")?;
        self.resets += 1;
        let wanted = self.resets;
        wait::until("the load to measure anew", Duration::from_secs(10), || {
            Ok((self.line()?.resets >= wanted).then_some(()))
        })
    }

    /// The longest that any partition went without acknowledgement since `measure`.
    pub fn longest_stall(&mut self) -> Result<Duration> {
        Ok(Duration::from_millis(self.line()?.stall_ms))
    }

    /// Waits until no partition waits for long any more.
    pub fn all_go_on(&mut self) -> Result<()> {
        wait::until("every partition to go on", PROGRESS, || {
            Ok((self.line()?.lasting_ms < LONG_MS).then_some(()))
        })
        .with_context(|| format!("{:?}", lock(&self.told).clone()))
    }

    /// Waits until some partition has stood still for so long.
    pub fn stands_still(&mut self, long: Duration) -> Result<()> {
        wait::until("a partition to stand still", PROGRESS, || {
            Ok((Duration::from_millis(self.line()?.lasting_ms) >= long).then_some(()))
        })
    }

    /// Ends the load and has everything compared; how many records were sent.
    pub fn finish(mut self) -> Result<u64> {
        self.say("stop")?;
        let sent = wait::until("the end of the load", END, || Ok(self.line()?.done))
            .with_context(|| format!("{:?}\n{}", lock(&self.told).clone(), tail(&self.log, 8)))?;
        self.process.wait(Duration::from_secs(10));
        Ok(sent)
    }

    fn say(&mut self, what: &str) -> Result<()> {
        let said = writeln!(self.stdin, "{what}").and_then(|()| self.stdin.flush());
        // What the program had to say before it went is of more interest.
        self.line()?;
        Ok(said?)
    }
}

/// Loads by several clients at the same time, each on a topic of its own.
pub struct Loads(Vec<Load>);

impl From<Vec<Load>> for Loads {
    fn from(loads: Vec<Load>) -> Self {
        Self(loads)
    }
}

impl Loads {
    /// Waits until each has had so many more records acknowledged and read.
    pub fn progress(&mut self, records: u64) -> Result<()> {
        self.0.iter_mut().try_for_each(|load| load.progress(records))
    }

    /// Fails if one has.
    pub fn alive(&mut self) -> Result<()> {
        self.0.iter_mut().try_for_each(Load::alive)
    }

    /// Measures the longest stall anew from here.
    pub fn measure(&mut self) -> Result<()> {
        self.0.iter_mut().try_for_each(Load::measure)
    }

    /// The longest that any partition of any client went without acknowledgement since `measure`.
    pub fn longest_stall(&mut self) -> Result<Duration> {
        let stalls = self.0.iter_mut().map(Load::longest_stall).collect::<Result<Vec<_>>>()?;
        Ok(stalls.into_iter().max().unwrap_or_default())
    }

    /// Waits until no partition waits for long any more.
    pub fn all_go_on(&mut self) -> Result<()> {
        self.0.iter_mut().try_for_each(Load::all_go_on)
    }

    /// Waits until each client has a partition that has stood still for so long.
    pub fn stands_still(&mut self, long: Duration) -> Result<()> {
        self.0.iter_mut().try_for_each(|load| load.stands_still(long))
    }

    /// Every partition goes on.
    pub fn go_on(&mut self) -> Result<()> {
        self.progress(30)?;
        self.all_go_on()
    }

    /// Ends them and has everything compared; how many records each client sent.
    pub fn finish(self) -> Result<Vec<u64>> {
        self.0.into_iter().map(Load::finish).collect()
    }
}

fn listen(stdout: ChildStdout, told: Arc<Mutex<Line>>, heard_all: Arc<AtomicBool>) {
    std::thread::spawn(move || {
        for line in BufReader::new(stdout).lines() {
            let Ok(line) = line else { break };
            match serde_json::from_str(&line) {
                Ok(line) => *lock(&told) = line,
                Err(error) => lock(&told).failed = Some(format!("not understood ({error}): {line}")),
            }
        }
        heard_all.store(true, Ordering::SeqCst);
    });
}
