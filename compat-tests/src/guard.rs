//! The guard: a second process of this program that outlives it by a moment. Its input ends when the harness ends, in whatever way (SIGTERM,
//! SIGINT, SIGKILL, a panic); then it kills every process that bears the harness's mark and removes the harness's networks and temporary folders.
//!
//! The mark is a variable of the environment: it reaches children of children, and those that made a session of their own, too. The
//! kernel's own means (a signal at the parent's death) would fire when the thread that started a child ends, and cases have threads of
//! their own.

use std::io::{Read, Write, sink};
use std::os::unix::ffi::OsStrExt;
use std::os::unix::process::CommandExt;
use std::path::{Path, PathBuf};
use std::process::{Child, ChildStdin, Command, Stdio};
use std::sync::OnceLock;
use std::time::Duration;

use anyhow::{Context, Result};
use rustix::process::{Pid, Signal, kill_process};
use tempfile::TempDir;

use crate::cluster::network;
use crate::wait;

/// The variable that marks all that the harness starts; its value is the run's folder.
const MARK: &str = "FELIX_COMPAT_RUN";

/// The folder of this run, once there is a guard to remove it.
static FOLDER: OnceLock<PathBuf> = OnceLock::new();

/// The guard as the harness sees it.
pub struct Guard {
    process: Child,
    input: Option<ChildStdin>,
}

impl Guard {
    /// Starts it.
    pub fn start() -> Result<Self> {
        let prefix = format!("felix-compat-{}-", std::process::id());
        let folder = tempfile::Builder::new().prefix(&prefix).tempdir()?.keep();
        let mut command = Command::new(std::env::current_exe()?);
        // In a process group of its own: what a terminal sends to the harness's group must not reach it.
        command.arg("--guard").arg(&folder).stdin(Stdio::piped()).stdout(Stdio::null()).process_group(0);
        let mut process = command.env_remove(MARK).spawn().context("starting the guard")?;
        let input = process.stdin.take();
        FOLDER.get_or_init(|| folder);
        Ok(Self { process, input })
    }

    /// Lets it do its work and waits for it.
    pub fn end(mut self) {
        drop(self.input.take());
        // It ends by itself, and within a bound; how it ended is not for the harness to judge.
        let _ = self.process.wait();
    }
}

/// Marks a command, so that what it starts does not outlive the harness.
pub fn mark(command: &mut Command) {
    // A package installation that is killed half-way leaves the machine broken: that one is let finish.
    if let Some(folder) = FOLDER.get().filter(|_| command.get_program() != "apt-get") {
        command.env(MARK, folder);
    }
}

/// A temporary folder, removed when it is dropped, or by the guard.
pub fn temporary(prefix: &str) -> Result<TempDir> {
    let mut builder = tempfile::Builder::new();
    builder.prefix(prefix);
    Ok(match FOLDER.get() {
        Some(folder) => builder.tempdir_in(folder)?,
        None => builder.tempdir()?,
    })
}

/// A temporary folder in memory where the machine has such a place; it goes in the same way.
pub fn in_memory(prefix: &str) -> Result<TempDir> {
    match FOLDER.get().map(|folder| memory_of(folder)) {
        Some(Some(folder)) => {
            std::fs::create_dir_all(&folder)?;
            Ok(tempfile::Builder::new().prefix(prefix).tempdir_in(folder)?)
        }
        _ => temporary(prefix),
    }
}

/// The folder in memory of the run that has this folder on the disk, where there is such a place.
fn memory_of(folder: &Path) -> Option<PathBuf> {
    let shared = Path::new("/dev/shm");
    shared.is_dir().then(|| shared.join(folder.file_name().unwrap_or_default()))
}

/// What the guard itself does: waits for the end of its input, then clears up after a harness with this folder.
pub fn watch(folder: &Path) -> Result<()> {
    let harness = folder.file_name().and_then(|name| name.to_str()?.split('-').nth(2)?.parse().ok());
    let harness: u32 = harness.with_context(|| format!("{} names no process", folder.display()))?;
    std::io::copy(&mut std::io::stdin(), &mut sink())?;
    let mut killed = 0;
    let mut quiet = 0;
    wait::until("the end of what the harness left", Duration::from_secs(20), || {
        let left = marked(folder)?;
        for pid in left.iter().filter_map(|pid| Pid::from_raw(*pid)) {
            // It may end by itself meanwhile; then there is nothing to kill.
            killed += usize::from(kill_process(pid, Signal::KILL).is_ok());
        }
        // Twice none: a process that starts another program shows no environment for a moment.
        quiet = if left.is_empty() { quiet + 1 } else { 0 };
        Ok((quiet > 1).then_some(()))
    })?;
    if killed > 0 {
        // Nobody may listen any more.
        let _ = writeln!(std::io::stderr(), "compat-tests: ended early; killed what it had started");
    }
    for mount in mounts_below(folder)? {
        Command::new("umount").arg("-l").arg(&mount).status().with_context(|| mount.display().to_string())?;
    }
    network::remove(&network::tag(harness));
    if let Some(memory) = memory_of(folder).filter(|memory| memory.is_dir()) {
        std::fs::remove_dir_all(&memory).with_context(|| memory.display().to_string())?;
    }
    std::fs::remove_dir_all(folder).with_context(|| folder.display().to_string())
}

/// The processes that bear this harness's mark.
fn marked(folder: &Path) -> Result<Vec<i32>> {
    let mark = [MARK.as_bytes(), b"=", folder.as_os_str().as_bytes()].concat();
    let mut found = Vec::new();
    for entry in std::fs::read_dir("/proc")? {
        let name = entry?.file_name();
        let Some(pid) = name.to_str().and_then(|name| name.parse().ok()) else { continue };
        let mut environment = Vec::new();
        // Processes come and go, and some show nothing of themselves.
        let read = std::fs::File::open(format!("/proc/{pid}/environ"))
            .and_then(|mut file| file.read_to_end(&mut environment));
        if read.is_ok() && environment.split(|byte| *byte == 0).any(|variable| variable == mark) {
            found.push(pid);
        }
    }
    Ok(found)
}

/// Small disks of cases that were not unmounted.
fn mounts_below(folder: &Path) -> Result<Vec<PathBuf>> {
    let mounts = std::fs::read_to_string("/proc/self/mounts")?;
    let places = mounts.lines().filter_map(|line| line.split(' ').nth(1)).map(PathBuf::from);
    Ok(places.filter(|place| place.starts_with(folder)).collect())
}
