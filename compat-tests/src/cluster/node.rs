//! A process at a place of the network, that is started again and again.

use std::path::{Path, PathBuf};
use std::process::{Command, ExitStatus};
use std::time::Duration;

use anyhow::{Context, Result, bail};
use rustix::process::Signal;

use crate::process::{Process, tail};
use crate::wait;

/// How long a process may take to stand still.
const STANDS_STILL: Duration = Duration::from_secs(10);

/// See the module.
pub struct Node {
    /// For messages, and the name of its log.
    name: String,
    program: PathBuf,
    /// The words in front of the program that bring it to its place.
    prefix: Vec<String>,
    log: PathBuf,
    process: Option<Process>,
}

impl Node {
    /// One that has not been started.
    pub fn new(name: &str, program: &Path, prefix: Vec<String>, logs: &Path) -> Self {
        let log = logs.join(format!("{name}.log"));
        Self { name: name.to_owned(), program: program.to_path_buf(), prefix, log, process: None }
    }

    /// For messages.
    pub fn name(&self) -> &str {
        &self.name
    }

    /// Starts the process with these arguments; its output goes behind that of the one before.
    pub fn spawn(&mut self, arguments: &[String], environment: &[(&str, &str)]) -> Result<()> {
        if self.runs() {
            bail!("{} runs already", self.name);
        }
        let program = self.program.to_string_lossy().into_owned();
        let words = [&self.prefix[..], &[program], arguments].concat();
        let (first, rest) = words.split_first().context("no program")?;
        let mut command = Command::new(first);
        command.args(rest).envs(environment.iter().copied());
        self.process = Some(Process::spawn_logged(&mut command, &self.log)?);
        Ok(())
    }

    /// Whether the process is there, paused or not.
    pub fn runs(&mut self) -> bool {
        self.process.as_mut().is_some_and(|process| process.ended().is_none())
    }

    /// Its pid.
    pub fn pid(&self) -> Option<i32> {
        self.process.as_ref().map(Process::pid)
    }

    /// Fails with the end of its log when it has ended.
    pub fn must_run(&mut self) -> Result<()> {
        match self.process.as_mut() {
            None => bail!("{} was not started", self.name),
            Some(process) => match process.ended() {
                None => Ok(()),
                Some(status) => bail!("{} ended with {status}:\n{}", self.name, tail(&self.log, 12)),
            },
        }
    }

    /// SIGTERM, and waits for the end.
    pub fn terminate(&mut self, bound: Duration) -> Result<ExitStatus> {
        let mut process = self.process.take().with_context(|| format!("{} does not run", self.name))?;
        process.terminate(bound).with_context(|| self.name.clone())
    }

    /// Waits for it to end by itself.
    pub fn wait_end(&mut self, bound: Duration) -> Result<ExitStatus> {
        let process = self.process.as_mut().with_context(|| format!("{} does not run", self.name))?;
        let status = process.wait(bound).with_context(|| format!("{} runs on after {bound:?}", self.name))?;
        self.process = None;
        Ok(status)
    }

    /// SIGKILL, and waits for the end.
    pub fn kill(&mut self) {
        if let Some(mut process) = self.process.take() {
            process.kill();
        }
    }

    /// SIGSTOP, and waits until every thread stands still: one that runs on another processor may go on for a moment.
    pub fn pause(&mut self) -> Result<()> {
        self.signal(Signal::STOP)?;
        let pid = self.pid().with_context(|| format!("{} does not run", self.name))?;
        wait::until(&format!("{} to stand still", self.name), STANDS_STILL, || {
            for thread in std::fs::read_dir(format!("/proc/{pid}/task"))? {
                let stat = std::fs::read_to_string(thread?.path().join("stat")).unwrap_or_default();
                let state = stat.rsplit_once(") ").map_or("", |(_, state)| state);
                if !state.is_empty() && !state.starts_with('T') {
                    return Ok(None);
                }
            }
            Ok(Some(()))
        })
    }

    /// SIGCONT.
    pub fn resume(&mut self) -> Result<()> {
        self.signal(Signal::CONT)
    }

    fn signal(&self, signal: Signal) -> Result<()> {
        let process = self.process.as_ref().with_context(|| format!("{} does not run", self.name))?;
        process.signal(signal).with_context(|| self.name.clone())
    }

    /// Its log.
    pub fn log(&self) -> &Path {
        &self.log
    }

    /// Its log's text, from a position on.
    pub fn log_from(&self, from: usize) -> String {
        let bytes = std::fs::read(&self.log).unwrap_or_default();
        String::from_utf8_lossy(bytes.get(from..).unwrap_or_default()).into_owned()
    }

    /// How long its log is.
    pub fn log_len(&self) -> usize {
        std::fs::metadata(&self.log).map_or(0, |meta| usize::try_from(meta.len()).unwrap_or(usize::MAX))
    }
}
