//! A child process whose end is awaited on a channel, whose signals go to its pid, and whose output is kept in a file.

use std::cell::Cell;
use std::collections::BTreeMap;
use std::fs::File;
use std::os::unix::process::CommandExt;
use std::path::{Path, PathBuf};
use std::process::{Child, ChildStdin, ChildStdout, Command, ExitStatus, Stdio};
use std::sync::mpsc::{Receiver, RecvTimeoutError, channel};
use std::sync::{Mutex, MutexGuard, PoisonError};
use std::time::Duration;

use anyhow::{Context, Result, bail};
use rustix::process::{Pid, Signal, kill_process, kill_process_group};

use crate::guard;

/// Parts of a run that go on side by side: a case that hangs costs the strand that it is part of its processes, and no other.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub struct Strand(usize);

thread_local! {
    static STRAND: Cell<Strand> = const { Cell::new(Strand(0)) };
}

impl Strand {
    /// One of several.
    pub fn new(number: usize) -> Self {
        Self(number)
    }

    /// That of the thread that asks. One that was not told is part of the first.
    pub fn current() -> Self {
        STRAND.get()
    }

    /// Makes the thread that asks part of it.
    pub fn enter(self) {
        STRAND.set(self);
    }

    /// Kills all its children that are still there, with all that they started.
    pub fn kill(self) {
        kill(|strand| strand == self);
    }
}

/// Children that have not ended, so that none outlives the harness, not even one whose owner hangs.
static LIVING: Mutex<BTreeMap<i32, Strand>> = Mutex::new(BTreeMap::new());

fn living() -> MutexGuard<'static, BTreeMap<i32, Strand>> {
    LIVING.lock().unwrap_or_else(PoisonError::into_inner)
}

/// Kills every child that is still there, with all that it started.
pub fn kill_all() {
    kill(|_| true);
}

fn kill(is_meant: impl Fn(Strand) -> bool) {
    let living = living();
    for pid in
        living.iter().filter(|(_, strand)| is_meant(**strand)).filter_map(|(pid, _)| Pid::from_raw(*pid))
    {
        // It may end by itself meanwhile; then there is nothing to kill.
        let _ = kill_process_group(pid, Signal::KILL);
    }
}

/// The ends of a child's pipes that are ours.
pub struct Pipes {
    /// What it reads.
    pub stdin: Option<ChildStdin>,
    /// What it writes.
    pub stdout: Option<ChildStdout>,
}

/// A running (or ended) child, leader of its own process group.
pub struct Process {
    pid: Pid,
    ended: Receiver<ExitStatus>,
    status: Option<ExitStatus>,
}

impl Process {
    /// Starts `command` with stdout and stderr appended to `log`.
    pub fn spawn_logged(command: &mut Command, log: &Path) -> Result<Self> {
        let out =
            File::options().create(true).append(true).open(log).with_context(|| log.display().to_string())?;
        command.stdin(Stdio::null()).stdout(out.try_clone()?).stderr(out);
        Ok(Self::spawn(command)?.0)
    }

    /// Starts `command` with its streams as they are set, as leader of a process group of its own and under the guard's eye;
    /// its pipes are for the caller.
    pub fn spawn(command: &mut Command) -> Result<(Self, Pipes)> {
        guard::mark(command);
        let mut child = command.process_group(0).spawn().with_context(|| format!("starting {command:?}"))?;
        let pipes = Pipes { stdin: child.stdin.take(), stdout: child.stdout.take() };
        Ok((Self::adopt(child)?, pipes))
    }

    fn adopt(mut child: Child) -> Result<Self> {
        let pid = Pid::from_raw(i32::try_from(child.id())?).context("a child without a pid")?;
        let (sender, ended) = channel();
        let number = pid.as_raw_nonzero().get();
        living().insert(number, Strand::current());
        std::thread::spawn(move || {
            let status = child.wait();
            living().remove(&number);
            if let Ok(status) = status {
                // Nobody listens any more when the owner was dropped first; the child is reaped all the same.
                let _ = sender.send(status);
            }
        });
        Ok(Self { pid, ended, status: None })
    }

    /// The process id.
    pub fn pid(&self) -> i32 {
        self.pid.as_raw_nonzero().get()
    }

    /// Sends it a signal, and nobody else.
    pub fn signal(&self, signal: Signal) -> Result<()> {
        Ok(kill_process(self.pid, signal)?)
    }

    /// How it ended, if it has.
    pub fn ended(&mut self) -> Option<ExitStatus> {
        self.wait(Duration::ZERO)
    }

    /// Waits for the end, at most `bound`.
    pub fn wait(&mut self, bound: Duration) -> Option<ExitStatus> {
        if self.status.is_none() {
            match self.ended.recv_timeout(bound) {
                Ok(status) => self.status = Some(status),
                Err(RecvTimeoutError::Timeout | RecvTimeoutError::Disconnected) => {}
            }
        }
        self.status
    }

    /// Asks it to end (SIGTERM) and waits at most `bound`.
    pub fn terminate(&mut self, bound: Duration) -> Result<ExitStatus> {
        if let Some(status) = self.ended() {
            return Ok(status);
        }
        kill_process(self.pid, Signal::TERM)?;
        match self.wait(bound) {
            Some(status) => Ok(status),
            None => {
                self.kill();
                bail!("still running {bound:?} after SIGTERM; killed")
            }
        }
    }

    /// Kills it and everything it started, at once.
    pub fn kill(&mut self) {
        if self.ended().is_none() {
            // The group may be gone between the look and the signal; then there is nothing to kill.
            let _ = kill_process_group(self.pid, Signal::KILL);
            self.wait(Duration::from_secs(10));
        }
    }
}

impl Drop for Process {
    fn drop(&mut self) {
        self.kill();
    }
}

/// The last lines of a log, for a message about what went wrong.
pub fn tail(log: &Path, lines: usize) -> String {
    let text = std::fs::read(log).unwrap_or_default();
    let text = String::from_utf8_lossy(&text);
    let all: Vec<&str> = text.lines().collect();
    all[all.len().saturating_sub(lines)..].join("\n")
}

/// Runs a command to its end, output to `log`, within `bound`; fails with the end of the log.
pub fn run(command: &mut Command, log: &Path, bound: Duration) -> Result<()> {
    let mut process = Process::spawn_logged(command, log)?;
    match process.wait(bound) {
        Some(status) if status.success() => Ok(()),
        Some(status) => bail!("{command:?} ended with {status}:\n{}", tail(log, 20)),
        None => bail!("{command:?} not done within {bound:?}:\n{}", tail(log, 20)),
    }
}

/// Where a program of this name is on PATH.
pub fn on_path(program: &str) -> Option<PathBuf> {
    std::env::split_paths(&std::env::var_os("PATH")?)
        .map(|folder| folder.join(program))
        .find(|path| path.is_file())
}
