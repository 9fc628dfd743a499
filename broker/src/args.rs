//! The command line: flags, environment, file, defaults, in this order of precedence.
//!
//! The table [`FLAGS`] drives `--help`, the environment's names and the file's keys. A wrong value or an unknown key
//! is one line that says what, where from, and what is allowed; the process then ends with exit code 2. Broker
//! configs by Kafka's names come by `--set` or by the file; where a flag and a config mean the same, the flag wins,
//! from wherever it was given.

use std::collections::BTreeMap;
use std::fmt;
use std::path::PathBuf;
use std::time::Duration;

use clap::{Arg, ArgAction, ArgMatches, Command};
use felix_cluster::config::flags::{FLAGS, Flag};
use felix_cluster::config::{State, StaticConfig, layers};
use thiserror::Error;

mod endpoint;
mod etcd;
mod internal;
mod operate;

pub use endpoint::{Endpoint, parse_endpoints};
pub use etcd::EtcdSettings;
pub use internal::InternalSettings;
pub use operate::{Act, RecoverAction, StatusAction};

/// Where a value came from, for messages.
#[derive(Clone, Debug, PartialEq, Eq)]
pub enum Source {
    /// A flag on the command line.
    Flag(String),
    /// An environment variable.
    Environment(&'static str),
    /// A key of the file.
    File(PathBuf),
    /// `--set key=value`.
    Set,
    /// A broker config that means the same as the flag; where that was given.
    Config(String),
    /// Nobody said anything.
    Default,
}

impl fmt::Display for Source {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        match self {
            Source::Flag(flag) => write!(f, "flag --{flag}"),
            Source::Environment(name) => write!(f, "environment {name}"),
            Source::File(path) => write!(f, "file {}", path.display()),
            Source::Set => write!(f, "flag --set"),
            Source::Config(origin) => f.write_str(origin),
            Source::Default => write!(f, "the default"),
        }
    }
}

/// A start that cannot be, in one line.
#[derive(Debug, Error, PartialEq, Eq)]
pub enum ArgsError {
    /// A value that does not fit.
    #[error("{what} = \"{value}\" (from {source_of}): {allowed}")]
    Value {
        /// The setting.
        what: String,
        /// What was given.
        value: String,
        /// Where it was given.
        source_of: Source,
        /// What is allowed instead.
        allowed: String,
    },
    /// A file that cannot be read or is not TOML.
    #[error("cannot use the file {path} (from {source_of}): {why}")]
    File {
        /// The file.
        path: String,
        /// Where its name was given.
        source_of: Source,
        /// What is wrong with it.
        why: String,
    },
    /// `--set` without `=`.
    #[error("--set {0}: must be key=value")]
    Set(String),
    /// A broker config that cannot be.
    #[error(transparent)]
    Config(#[from] layers::StartError),
}

/// What was asked of the binary.
#[derive(Debug)]
pub enum Action {
    /// Run a broker.
    Serve(Box<Settings>),
    /// Say that the settings are good, and run nothing.
    CheckConfig(Box<Settings>),
    /// Ask the broker of these settings whether it serves clients.
    Health(Box<Settings>),
    /// Print a file, a partition's folder or a whole data directory.
    DumpLog(PathBuf),
    /// Check data directories, and compare them if there are several.
    Verify(Vec<PathBuf>),
    /// Show what a running broker knows.
    Status(StatusAction),
    /// Act on the control store by hand.
    Recover(RecoverAction),
}

/// The name of the subcommand that prints files.
const DUMP_LOG: &str = "dump-log";
/// The name of the subcommand that checks data directories.
const VERIFY: &str = "verify";
/// The name of the subcommand that asks a running broker how it is.
const HEALTH: &str = "health";
/// The flag that asks for a look at the settings alone.
const CHECK_CONFIG: &str = "check-config";
/// What `health` must know: where the broker answers, and the file that may say so.
const HEALTH_FLAGS: [&str; 2] = ["metrics-bind", "config"];

/// The node's settings, checked.
#[derive(Clone, Debug)]
pub struct Settings {
    /// Broker id.
    pub node_id: i32,
    /// The data directory.
    pub data_dir: PathBuf,
    /// Where to listen.
    pub listeners: Vec<Endpoint>,
    /// What to tell clients; one an entry of `listeners`, by name.
    pub advertised: Vec<Endpoint>,
    /// Rack, if any.
    pub rack: Option<String>,
    /// Host and port of the HTTP listener.
    pub metrics_bind: (String, u16),
    /// Lease length.
    pub lease: Duration,
    /// The control store, where it is not in the data directory.
    pub etcd: Option<EtcdSettings>,
    /// Where other brokers connect, if there can be any.
    pub internal: Option<InternalSettings>,
    /// Broker configs by Kafka's names, those that a flag means too included.
    pub fixed: StaticConfig,
    /// What was given and has no effect, with why.
    pub without_effect: Vec<(&'static str, &'static str)>,
}

/// The whole command line for clap.
pub fn command() -> Command {
    let mut serve = Command::new("serve").about("Run a broker (what felix does without a subcommand)");
    let mut felix = Command::new("felix")
        .version(env!("CARGO_PKG_VERSION"))
        .about("A Kafka-wire-compatible broker")
        .after_help(after_help())
        .disable_help_subcommand(true);
    let mut health = Command::new(HEALTH)
        .about("Ask the broker of this machine whether it serves clients, by the address of --metrics-bind")
        .after_help("Exit code: 0 it does, 1 it does not or nothing answers, 2 a setting is wrong.");
    for flag in FLAGS {
        let Some(name) = flag.flag else { continue };
        let mut argument = Arg::new(name)
            .long(name)
            .value_name(flag.value_name)
            .help(help(flag))
            .allow_negative_numbers(true);
        if name == "set" {
            argument = argument.action(ArgAction::Append);
        }
        if HEALTH_FLAGS.contains(&name) {
            health = health.arg(argument.clone());
        }
        felix = felix.arg(argument.clone());
        serve = serve.arg(argument);
    }
    let check = Arg::new(CHECK_CONFIG)
        .long(CHECK_CONFIG)
        .action(ArgAction::SetTrue)
        .help("Check all settings as a start would, say so in one line, and start nothing");
    felix = felix.arg(check.clone());
    serve = serve.arg(check);
    let dump = Command::new(DUMP_LOG)
        .about("Print what a segment, an index, a partition's folder or a data directory holds; reads only")
        .arg(Arg::new("path").value_name("DIR|FILE").required(true));
    let verify = Command::new(VERIFY)
        .about("Check data directories that no broker uses, and compare the copies in several; reads only")
        .after_help("Exit code: 0 nothing is wrong, 1 something is, 2 a directory could not be looked at.")
        .arg(Arg::new("dirs").value_name("DIR").required(true).num_args(1..).action(ArgAction::Append));
    let operate = [operate::status_command(), operate::recover_command()];
    felix.subcommand(serve).subcommand(health).subcommand(dump).subcommand(verify).subcommands(operate)
}

fn help(flag: &Flag) -> String {
    let default = flag.default.map(|value| format!(" [default: {value}]")).unwrap_or_default();
    let environment = flag.environment.map(|name| format!(" [env: {name}]")).unwrap_or_default();
    let note = match flag.state {
        State::Honoured => String::new(),
        State::Partly(what) => format!(" ({what})"),
        State::NoEffect(why) => format!(" (without effect: {why})"),
        State::Refused(why) => format!(" (not yet: {why})"),
    };
    format!("{}{note}{default}{environment}", flag.help)
}

/// What only the environment can say, and the order of precedence.
fn after_help() -> String {
    let mut text = String::from("Environment:\n");
    for flag in FLAGS.iter().filter(|flag| flag.flag.is_none()) {
        let name = flag.environment.unwrap_or_default();
        let default = flag.default.map(|value| format!(" [default: {value}]")).unwrap_or_default();
        text.push_str(&format!("  {name}=<{}>\n          {}{default}\n", flag.value_name, flag.help));
    }
    text.push_str("\nPrecedence: flag, environment, file, default.");
    text
}

/// Why a command line gives nothing to act on.
#[derive(Debug, PartialEq, Eq)]
pub enum Unparsed {
    /// It asks for a text: help or the version.
    Shown(String),
    /// It is wrong: one line that says what.
    Wrong(String),
}

/// Takes the command line apart.
pub fn parse(arguments: impl IntoIterator<Item = std::ffi::OsString>) -> Result<ArgMatches, Unparsed> {
    command().try_get_matches_from(arguments).map_err(|error| {
        let text = error.render().to_string();
        if !error.use_stderr() {
            return Unparsed::Shown(text);
        }
        // clap explains on several lines; the first says what is wrong.
        let what = text.lines().next().unwrap_or_default();
        Unparsed::Wrong(format!("{}; `felix --help` says what there is", what.trim_start_matches("error: ")))
    })
}

/// What the command line asks for, with the node's settings from all that it leads to. `environment` answers for
/// the process's variables.
pub fn resolve(
    matches: &ArgMatches,
    environment: impl Fn(&str) -> Option<String>,
) -> Result<Action, ArgsError> {
    let inner = match matches.subcommand() {
        Some((DUMP_LOG, dump)) => {
            let path = dump.get_one::<String>("path").map(PathBuf::from);
            return Ok(Action::DumpLog(path.unwrap_or_default()));
        }
        Some((VERIFY, verify)) => {
            let dirs = verify.get_many::<String>("dirs").into_iter().flatten().map(PathBuf::from);
            return Ok(Action::Verify(dirs.collect()));
        }
        Some((HEALTH, health)) => {
            let settings = settings(&Flags { inner: Some(health), outer: matches }, environment)?;
            return Ok(Action::Health(Box::new(settings)));
        }
        Some((operate::STATUS, status)) => {
            let settings = settings(&Flags { inner: None, outer: matches }, environment)?;
            return Ok(Action::Status(operate::status_action(status, &settings)));
        }
        Some((operate::RECOVER, recover)) => {
            let inner = recover.subcommand().map(|(_, act)| act);
            let settings = settings(&Flags { inner, outer: matches }, environment)?;
            return Ok(Action::Recover(operate::recover_action(recover, settings)));
        }
        other => other.map(|(_, serve)| serve),
    };
    let settings = Box::new(settings(&Flags { inner, outer: matches }, environment)?);
    let only_check = [Some(matches), inner].into_iter().flatten().any(|given| given.get_flag(CHECK_CONFIG));
    Ok(if only_check { Action::CheckConfig(settings) } else { Action::Serve(settings) })
}

/// Flags may stand before or behind the subcommand; the ones behind win. Not every subcommand knows every flag.
struct Flags<'a> {
    inner: Option<&'a ArgMatches>,
    outer: &'a ArgMatches,
}

impl Flags<'_> {
    fn get(&self, flag: &str) -> Option<String> {
        self.inner
            // Not every subcommand has every flag.
            .and_then(|inner| inner.try_get_one::<String>(flag).ok().flatten())
            .or_else(|| self.outer.get_one::<String>(flag))
            .cloned()
    }

    fn sets(&self) -> Vec<String> {
        let of = |matches: &ArgMatches| {
            let given = matches.try_get_many::<String>("set").ok().flatten();
            given.into_iter().flatten().cloned().collect::<Vec<_>>()
        };
        let mut all = of(self.outer);
        all.extend(self.inner.map(of).unwrap_or_default());
        all
    }
}

/// The value of each flag that has one, with its source.
struct Values {
    given: BTreeMap<&'static str, (String, Source)>,
}

impl Values {
    fn get(&self, flag: &str) -> Option<(&str, &Source)> {
        self.given.get(flag).map(|(value, source)| (value.as_str(), source))
    }

    fn parse<T>(
        &self,
        flag: &'static str,
        parse: impl Fn(&str) -> Result<T, String>,
    ) -> Result<Option<T>, ArgsError> {
        let Some((value, source)) = self.get(flag) else { return Ok(None) };
        parse(value).map(Some).map_err(|allowed| wrong(flag, value, source, allowed))
    }
}

fn wrong(what: &str, value: &str, source: &Source, allowed: impl Into<String>) -> ArgsError {
    ArgsError::Value {
        what: what.to_owned(),
        value: value.to_owned(),
        source_of: source.clone(),
        allowed: allowed.into(),
    }
}

fn settings(flags: &Flags<'_>, environment: impl Fn(&str) -> Option<String>) -> Result<Settings, ArgsError> {
    let from_environment = |flag: &Flag| {
        let name = flag.environment?;
        Some((environment(name)?, Source::Environment(name)))
    };
    let from_flag = |flag: &Flag| {
        let name = flag.flag.filter(|name| *name != "set")?;
        Some((flags.get(name)?, Source::Flag(name.to_owned())))
    };
    let config = FLAGS.iter().find(|flag| flag.flag == Some("config"));
    let file = match config.and_then(|config| from_flag(config).or_else(|| from_environment(config))) {
        Some((path, source)) => read_file(&path, source)?,
        None => BTreeMap::new(),
    };
    let mut fixed = fixed(&file, flags.sets())?;
    let mut given = BTreeMap::new();
    let mut without_effect = Vec::new();
    for flag in FLAGS {
        let name = flag.flag.or(flag.environment).unwrap_or_default();
        let from_file = || flag.flag.and_then(|name| file.get(name)).cloned();
        if let Some((value, source)) = from_flag(flag).or_else(|| from_environment(flag)).or_else(from_file) {
            match flag.state {
                State::Refused(why) => return Err(wrong(name, &value, &source, why)),
                State::NoEffect(why) if flag.default != Some(value.as_str()) => {
                    without_effect.push((name, why));
                }
                State::NoEffect(_) | State::Honoured | State::Partly(_) => {}
            }
            if let Some(config) = flag.config {
                fixed.set(config, &value, &source).map_err(|error| match error {
                    // Named as it was given.
                    layers::StartError::Value { problem, .. } => {
                        wrong(name, &value, &source, problem.allowed)
                    }
                    other @ (layers::StartError::Unknown { .. } | layers::StartError::Conflict(_)) => {
                        other.into()
                    }
                })?;
            }
            given.insert(name, (value, source));
        } else if let Some(config) = flag.config
            && let (Some(value), Some(origin)) = (fixed.values().get(config), fixed.origin(config))
        {
            given.insert(name, (value.clone(), Source::Config(origin.to_owned())));
        } else if let Some(default) = flag.default {
            if let Some(config @ "node.id") = flag.config {
                // Described under Kafka's older name too, as the number that it is.
                fixed.set(config, default, Source::Default)?;
            }
            given.insert(name, (default.to_owned(), Source::Default));
        }
    }
    fixed.check()?;
    check(&Values { given }, fixed, without_effect)
}

/// Broker configs: what is no flag in the file, then `--set` in order.
fn fixed(file: &BTreeMap<String, (String, Source)>, sets: Vec<String>) -> Result<StaticConfig, ArgsError> {
    let mut fixed = StaticConfig::new();
    for (key, (value, source)) in file {
        if !FLAGS.iter().any(|flag| flag.flag == Some(key.as_str())) {
            fixed.set(key, value, source)?;
        }
    }
    for set in sets {
        let Some((key, value)) = set.split_once('=') else { return Err(ArgsError::Set(set)) };
        fixed.set(key.trim(), value.trim(), Source::Set)?;
    }
    Ok(fixed)
}

fn check(
    values: &Values,
    fixed: StaticConfig,
    without_effect: Vec<(&'static str, &'static str)>,
) -> Result<Settings, ArgsError> {
    let node_id = values.parse("node-id", |text| {
        text.parse::<i32>()
            .ok()
            .filter(|id| *id >= 0)
            .ok_or_else(|| format!("must be a whole number from 0 to {}", i32::MAX))
    })?;
    let data_dir = values.parse("data-dir", |text| {
        if text.is_empty() || text.contains(',') {
            Err("must name one directory".to_owned())
        } else {
            Ok(PathBuf::from(text))
        }
    })?;
    let listeners = values.parse("listeners", |text| parse_endpoints(text, endpoint::Use::Bind))?;
    let advertised =
        values.parse("advertised-listeners", |text| parse_endpoints(text, endpoint::Use::Advertise))?;
    let listeners = listeners.unwrap_or_default();
    if let Some(advertised) = &advertised {
        let unknown =
            advertised.iter().find(|one| !listeners.iter().any(|listener| listener.name == one.name));
        if let (Some(unknown), Some((value, source))) = (unknown, values.get("advertised-listeners")) {
            let listeners = names(&listeners);
            let allowed = format!("no listener is named {}; the listeners are {listeners}", unknown.name);
            return Err(wrong("advertised-listeners", value, source, allowed));
        }
    }
    let metrics_bind = values.parse("metrics-bind", |text| {
        endpoint::split_plain(text).map(|(host, port)| (host.to_owned(), port))
    })?;
    let lease = values.parse("lease-ms", |text| {
        text.parse::<u64>()
            .ok()
            .filter(|ms| (500..=60_000).contains(ms))
            .map(Duration::from_millis)
            .ok_or_else(|| "must be a whole number of milliseconds from 500 to 60000".to_owned())
    })?;
    let etcd = etcd::settings(values)?;
    let internal = internal::settings(values, etcd.as_ref(), &listeners)?;
    let rack = values.parse("rack", |text| Ok(text.to_owned()))?.filter(|rack| !rack.is_empty());
    Ok(Settings {
        node_id: node_id.unwrap_or(1),
        data_dir: data_dir.unwrap_or_else(|| PathBuf::from("./felix-data")),
        listeners,
        advertised: advertised.unwrap_or_default(),
        rack,
        metrics_bind: metrics_bind.unwrap_or_else(|| ("127.0.0.1".to_owned(), 9644)),
        lease: lease.unwrap_or(Duration::from_secs(2)),
        etcd,
        internal,
        fixed,
        without_effect,
    })
}

fn names(listeners: &[Endpoint]) -> String {
    listeners.iter().map(|listener| listener.name.as_str()).collect::<Vec<_>>().join(", ")
}

/// Reads the file into `key → text`; nested tables are keys with dots.
fn read_file(path: &str, named_by: Source) -> Result<BTreeMap<String, (String, Source)>, ArgsError> {
    let wrong_file =
        |why: String| ArgsError::File { path: path.to_owned(), source_of: named_by.clone(), why };
    let text = std::fs::read_to_string(path).map_err(|error| wrong_file(error.to_string()))?;
    let table: toml::Table = text.parse().map_err(|error: toml::de::Error| {
        // The parser's message is a picture of several lines: keep what it says and where.
        let line = error.span().map(|span| text[..span.start.min(text.len())].matches('\n').count() + 1);
        let place = line.map(|line| format!("line {line}: ")).unwrap_or_default();
        wrong_file(format!("{place}{}", error.message()))
    })?;
    let mut flat = BTreeMap::new();
    flatten("", table, &Source::File(PathBuf::from(path)), &mut flat)?;
    Ok(flat)
}

fn flatten(
    prefix: &str,
    table: toml::Table,
    source: &Source,
    into: &mut BTreeMap<String, (String, Source)>,
) -> Result<(), ArgsError> {
    for (key, value) in table {
        let key = if prefix.is_empty() { key } else { format!("{prefix}.{key}") };
        let text = match value {
            toml::Value::Table(nested) => {
                flatten(&key, nested, source, into)?;
                continue;
            }
            toml::Value::Array(items) => {
                items.iter().map(plain).collect::<Option<Vec<_>>>().map(|all| all.join(","))
            }
            toml::Value::String(_)
            | toml::Value::Integer(_)
            | toml::Value::Float(_)
            | toml::Value::Boolean(_)
            | toml::Value::Datetime(_) => plain(&value),
        };
        let Some(text) = text else {
            return Err(wrong(
                &key,
                "[...]",
                source,
                "must be a text, a number, true, false, or a list of these",
            ));
        };
        into.insert(key, (text, source.clone()));
    }
    Ok(())
}

/// A single value as the text that a flag would have.
fn plain(value: &toml::Value) -> Option<String> {
    match value {
        toml::Value::String(text) => Some(text.clone()),
        toml::Value::Integer(number) => Some(number.to_string()),
        toml::Value::Float(number) => Some(number.to_string()),
        toml::Value::Boolean(truth) => Some(truth.to_string()),
        toml::Value::Datetime(_) | toml::Value::Array(_) | toml::Value::Table(_) => None,
    }
}

#[cfg(test)]
mod tests;
