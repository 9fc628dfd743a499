//! Running a client program: the protocol of README.md, bounds on every case, and broker restarts on request.

use std::io::{BufRead, BufReader, Write};
use std::process::{ChildStdin, Command, Stdio};
use std::sync::mpsc::{Receiver, RecvTimeoutError, channel};
use std::time::{Duration, Instant};

use anyhow::{Context, Result};
use serde::{Deserialize, Serialize};

use crate::process::{Process, tail};
use crate::raw::compacted;
use crate::raw::conn::Connection;
use crate::raw::stage::now_ms;
use crate::results::{CaseResult, Status};
use crate::target::Broker;

/// How long a program may take from its start (or from a case's result) to its next case: a JVM or an interpreter starts here.
const SILENCE_BOUND: Duration = Duration::from_secs(30);

/// How long the harness waits for an answer of the broker when it does something for a program.
const PATIENCE: Duration = Duration::from_secs(20);

/// A line of a program.
#[derive(Deserialize)]
#[serde(untagged)]
enum Line {
    Case {
        case: String,
        status: Status,
        #[serde(default)]
        detail: String,
        #[serde(default)]
        ms: f64,
    },
    Begin {
        begin: String,
    },
    Ask {
        ask: Ask,
    },
    Version {
        version: String,
    },
}

/// What a program may ask for; README.md says what each is.
#[derive(Debug, Deserialize, Clone, Copy, PartialEq, Eq)]
#[serde(rename_all = "lowercase")]
pub enum Ask {
    Restart,
    Kill,
    Stop,
    Start,
    Lossy,
    Compacted,
}

/// The answer to that.
#[derive(Serialize, Default)]
pub struct Answer {
    ok: bool,
    #[serde(skip_serializing_if = "Option::is_none")]
    error: Option<String>,
    /// Of the way on which acknowledgements get lost.
    #[serde(skip_serializing_if = "Option::is_none")]
    pub address: Option<String>,
    /// How many were.
    #[serde(skip_serializing_if = "Option::is_none")]
    pub lost: Option<u64>,
    /// That was compacted.
    #[serde(skip_serializing_if = "Option::is_none")]
    pub topic: Option<String>,
    /// What must be left of it.
    #[serde(skip_serializing_if = "Option::is_none")]
    pub survivors: Option<String>,
}

impl Answer {
    /// It is done.
    pub fn done() -> Self {
        Self { ok: true, ..Self::default() }
    }
}

/// What a program is run against.
pub trait Host {
    /// Where its clients connect to first.
    fn bootstrap(&self) -> String;
    /// Sees to it that everything runs, before a start of the program.
    fn make_ready(&mut self) -> Result<()>;
    /// Does what the program asks.
    fn obey(&mut self, ask: Ask) -> Result<Answer>;
}

/// What a run of a program is made of.
pub struct Program<'a> {
    /// Makes the command up to the arguments of the protocol.
    pub command: &'a dyn Fn() -> Command,
    /// Prefix for topics and groups.
    pub prefix: String,
    /// The log that stderr and other lines go to.
    pub log: std::path::PathBuf,
    /// The bound of a case.
    pub bound: &'a dyn Fn(&str) -> Duration,
}

impl Program<'_> {
    /// Runs `cases`, starting the program again as often as a case ends it or hangs, and hands each result to `report`. Answers the
    /// version that the program told.
    pub fn run(
        &self,
        cases: &[String],
        host: &mut dyn Host,
        report: &mut dyn FnMut(CaseResult),
    ) -> Result<Option<String>> {
        let mut left: Vec<String> = cases.to_vec();
        let mut version = None;
        let mut life = 0;
        while !left.is_empty() {
            life += 1;
            let before = left.len();
            self.one_life(life, &mut left, host, report, &mut version)?;
            debug_assert!(left.len() < before, "each life of a program must settle a case");
        }
        Ok(version)
    }

    /// One start of the program; removes from `left` what it settled, at least one case.
    fn one_life(
        &self,
        life: u32,
        left: &mut Vec<String>,
        host: &mut dyn Host,
        report: &mut dyn FnMut(CaseResult),
        version: &mut Option<String>,
    ) -> Result<()> {
        host.make_ready()?;
        let log = std::fs::File::options().create(true).append(true).open(&self.log)?;
        let mut command = (self.command)();
        command.arg("--bootstrap").arg(host.bootstrap());
        command.arg("--prefix").arg(format!("{}{life}-", self.prefix)).args(&*left);
        command.stdin(Stdio::piped()).stdout(Stdio::piped()).stderr(log.try_clone()?);
        let (mut process, pipes) = Process::spawn(&mut command)?;
        let mut stdin = pipes.stdin.context("no stdin")?;
        let lines = lines_of(pipes.stdout.context("no stdout")?, log);

        let mut current: Option<String> = None;
        let mut since = Instant::now();
        let mut deadline = since + SILENCE_BOUND;
        let ended = loop {
            let line = match lines.recv_timeout(deadline.saturating_duration_since(Instant::now())) {
                Ok(line) => line,
                Err(RecvTimeoutError::Timeout) => break format!("no result after {:?}", since.elapsed()),
                Err(RecvTimeoutError::Disconnected) => break self.how_it_ended(&mut process),
            };
            match line {
                Line::Version { version: told } => *version = Some(told),
                Line::Begin { begin } => {
                    since = Instant::now();
                    deadline = since + (self.bound)(&begin);
                    current = Some(begin);
                }
                Line::Ask { ask } => {
                    answer(&mut stdin, host.obey(ask)).context("answering the program")?;
                }
                Line::Case { case, status, detail, ms } => {
                    let Some(place) = left.iter().position(|name| *name == case) else {
                        report(CaseResult::fail(&case, "a result for a case that was not asked for", 0));
                        continue;
                    };
                    left.remove(place);
                    // Milliseconds of a test: no precision worth a fallible conversion.
                    #[expect(
                        clippy::cast_possible_truncation,
                        clippy::cast_sign_loss,
                        reason = "a duration for people"
                    )]
                    let ms = ms.max(0.0) as u64;
                    report(CaseResult { case, status, detail, ms });
                    current = None;
                    since = Instant::now();
                    deadline = since + SILENCE_BOUND;
                    if left.is_empty() {
                        break String::new();
                    }
                }
            }
        };
        if left.is_empty() {
            // All is told; a program that still hangs on to something is not waited for.
            drop(stdin);
            process.wait(Duration::from_secs(5));
        } else {
            let case = current.filter(|case| left.contains(case)).unwrap_or_else(|| left[0].clone());
            left.retain(|name| *name != case);
            let ms = u64::try_from(since.elapsed().as_millis()).unwrap_or(u64::MAX);
            report(CaseResult::fail(&case, ended, ms));
        }
        process.kill();
        Ok(())
    }

    fn how_it_ended(&self, process: &mut Process) -> String {
        let how = match process.wait(Duration::from_secs(5)) {
            Some(status) => format!("the program ended early with {status}"),
            None => "the program closed its output".to_owned(),
        };
        format!("{how}: {}", tail(&self.log, 5))
    }
}

/// Reads the program's stdout on a thread: objects to the channel, all else to the log.
fn lines_of(stdout: std::process::ChildStdout, mut log: std::fs::File) -> Receiver<Line> {
    let (sender, lines) = channel();
    std::thread::spawn(move || {
        for line in BufReader::new(stdout).lines() {
            let Ok(line) = line else { break };
            let parsed = line.starts_with('{').then(|| serde_json::from_str::<Line>(&line));
            let gone = match parsed {
                Some(Ok(parsed)) => sender.send(parsed).is_err(),
                Some(Err(error)) => writeln!(log, "not understood ({error}): {line}").is_err(),
                None => writeln!(log, "{line}").is_err(),
            };
            if gone {
                break;
            }
        }
    });
    lines
}

impl Host for Broker {
    fn bootstrap(&self) -> String {
        self.address().to_string()
    }

    fn make_ready(&mut self) -> Result<()> {
        self.start_again()
    }

    fn obey(&mut self, ask: Ask) -> Result<Answer> {
        let mut answer = Answer::done();
        match ask {
            Ask::Restart => self.restart()?,
            Ask::Kill => self.kill_and_restart()?,
            Ask::Stop => self.stop()?,
            Ask::Start => self.start_again()?,
            Ask::Lossy => {
                let lossy = self.lossy()?;
                answer.address = Some(lossy.address().to_string());
                answer.lost = Some(lossy.lost());
            }
            Ask::Compacted => {
                let mut to = Connection::open(self.address(), PATIENCE)?;
                // Programs may ask more than once in the life of a broker.
                let topic = format!("compacted-{}", now_ms());
                let survivors = compacted::prepare(&mut to, &topic)?;
                answer.topic = Some(topic);
                answer.survivors = Some(compacted::in_words(&survivors));
            }
        }
        Ok(answer)
    }
}

fn answer(stdin: &mut ChildStdin, done: Result<Answer>) -> Result<()> {
    let failed = |error| Answer { error: Some(format!("{error:#}")), ..Answer::default() };
    let answer = done.unwrap_or_else(failed);
    writeln!(stdin, "{}", serde_json::to_string(&answer)?)?;
    Ok(stdin.flush()?)
}
