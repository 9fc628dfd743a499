//! The Felix broker: one binary that Kafka clients and tools can use.
//!
//! Modules import to the right only: `main`, `server`, `net`, `handlers` with the `node` they reach, then
//! `fetching` and `admin`, then `partitions`, then `peers` and `view`, and last `clock`, `tasks`, `budget`,
//! `chatter`, `metrics` and `wire_code`.

use std::io::{BufWriter, ErrorKind, IsTerminal, Write};
use std::path::{Path, PathBuf};
use std::process::ExitCode;

use felix_storage::disk::os::OsDisk;
use felix_storage::verify::Finding;
use tikv_jemallocator::Jemalloc;
use tracing_subscriber::EnvFilter;

use args::Action;

mod admin;
mod args;
mod budget;
mod chatter;
mod clock;
mod coordinators;
mod descriptors;
mod fetching;
mod handlers;
mod http;
mod metrics;
mod net;
mod node;
mod pages;
mod partitions;
mod peers;
mod quota;
mod recover;
mod server;
mod status;
mod tasks;
mod view;
mod wire_code;

/// Gives memory back to the system that was needed in passing, and keeps less for ten thousand partitions (decision 16).
#[global_allocator]
static ALLOCATOR: Jemalloc = Jemalloc;

/// A start that cannot be: wrong settings, a directory or port in use.
const REFUSED: u8 = 2;

fn main() -> ExitCode {
    let matches = match args::parse(std::env::args_os()) {
        Ok(matches) => matches,
        Err(args::Unparsed::Shown(text)) => {
            // `--help` into a closed pipe is no failure.
            let _ = write!(std::io::stdout(), "{text}");
            return ExitCode::SUCCESS;
        }
        Err(args::Unparsed::Wrong(line)) => {
            complain(&line);
            return ExitCode::from(REFUSED);
        }
    };
    let action = start_log().and_then(|()| {
        args::resolve(&matches, |name| std::env::var(name).ok()).map_err(|error| error.to_string())
    });
    let done = action.and_then(|action| match action {
        Action::Serve(settings) => server::run(*settings).map_err(|error| format!("{error:#}")),
        Action::CheckConfig(settings) => {
            server::tell_without_effect(&settings);
            Ok(say("the settings are good"))
        }
        Action::Health(settings) => Ok(health(&settings)),
        Action::DumpLog(path) => dump(&path),
        Action::Verify(dirs) => verify(&dirs),
        Action::Status(action) => status::run(&action),
        Action::Recover(action) => recover::run(&action),
    });
    match done {
        Ok(code) => code,
        Err(line) => {
            complain(&line);
            ExitCode::from(REFUSED)
        }
    }
}

/// One line for people, for whom the exit code is the answer.
fn say(line: &str) -> ExitCode {
    let _ = writeln!(std::io::stdout(), "felix: {line}");
    ExitCode::SUCCESS
}

/// Asks the broker that these settings are for.
fn health(settings: &args::Settings) -> ExitCode {
    let (host, port) = &settings.metrics_bind;
    match http::probe::ask(host, *port) {
        Ok(said) => say(&said),
        Err(why) => {
            complain(&why);
            ExitCode::from(WRONG)
        }
    }
}

/// Prints files for people.
fn dump(path: &Path) -> Result<ExitCode, String> {
    let mut out = BufWriter::new(std::io::stdout().lock());
    match felix_storage::dump::dump(&OsDisk, path, &mut out).and_then(|()| out.flush()) {
        Ok(()) => Ok(ExitCode::SUCCESS),
        // Whoever reads has seen enough.
        Err(error) if error.kind() == ErrorKind::BrokenPipe => Ok(ExitCode::SUCCESS),
        Err(error) => Err(format!("dump-log {}: {error}", path.display())),
    }
}

/// Something is wrong with what was checked.
const WRONG: u8 = 1;

/// Checks data directories, each by itself and then all together.
fn verify(dirs: &[PathBuf]) -> Result<ExitCode, String> {
    let mut out = BufWriter::new(std::io::stdout().lock());
    let mut good = true;
    let mut guards = Vec::new();
    for dir in dirs {
        let failed = |error| format!("verify {}: {error}", dir.display());
        guards.push(felix_storage::verify::guard(&OsDisk, dir).map_err(failed)?);
        // Whoever reads has seen enough when writing fails; the exit code still says how it went.
        let mut tell = |finding: &Finding| drop(writeln!(out, "{finding}"));
        let summary = felix_storage::verify::verify(&OsDisk, dir, &mut tell).map_err(failed)?;
        let _ = writeln!(out, "{}: {summary}", dir.display());
        good &= summary.is_good();
    }
    if dirs.len() > 1 {
        let mut tell = |finding: &Finding| drop(writeln!(out, "{finding}"));
        let summary = felix_storage::verify::compare(&OsDisk, dirs, &mut tell)
            .map_err(|error| format!("verify: {error}"))?;
        let _ = writeln!(out, "compared: {summary}");
        good &= summary.is_good();
    }
    let _ = out.flush();
    Ok(if good { ExitCode::SUCCESS } else { ExitCode::from(WRONG) })
}

/// One line for whoever started the process, in whatever form the log has.
fn complain(line: &str) {
    // If even that cannot be written, the exit code has to do.
    let _ = writeln!(std::io::stderr(), "felix: {line}");
}

/// Logs go to stderr: `FELIX_LOG` says how much, `FELIX_LOG_FORMAT` in which form.
fn start_log() -> Result<(), String> {
    let level = std::env::var("FELIX_LOG").unwrap_or_else(|_| "info".to_owned());
    let filter = EnvFilter::try_new(&level).map_err(|_| {
        format!(
            "FELIX_LOG = \"{level}\" (from environment FELIX_LOG): must be error, warn, info, debug, trace, or a \
             filter such as felix=debug"
        )
    })?;
    let log = tracing_subscriber::fmt()
        .with_env_filter(filter)
        .with_writer(std::io::stderr)
        .with_ansi(std::io::stderr().is_terminal());
    match std::env::var("FELIX_LOG_FORMAT").as_deref() {
        Ok("json") => log.json().init(),
        Ok("text" | "") | Err(_) => log.init(),
        Ok(other) => {
            return Err(format!(
                "FELIX_LOG_FORMAT = \"{other}\" (from environment FELIX_LOG_FORMAT): must be text or json"
            ));
        }
    }
    // In the log's own form, so that whoever reads it by machine sees panics too. Which task it was is told by
    // whoever catches it.
    std::panic::set_hook(Box::new(|panic| {
        let thread = std::thread::current();
        let (thread, trace) = (thread.name().unwrap_or_default(), std::backtrace::Backtrace::capture());
        tracing::error!(thread, %panic, %trace, "panic");
    }));
    Ok(())
}
