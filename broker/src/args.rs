//! The command line: flags, environment, file, defaults, in this order of precedence.
//!
//! One table of settings drives `--help`, the environment names, the file's keys and the errors. A wrong value
//! or an unknown key is one line that says what, where from, and what is allowed; the process then ends with
//! exit code 2. Rows of the broker's config table (Kafka's names) come by `--set` or by the file and are only
//! collected here: `felix_cluster::config` knows them.

use std::collections::BTreeMap;
use std::fmt;
use std::path::PathBuf;
use std::time::Duration;

use clap::{Arg, ArgAction, ArgMatches, Command};
use thiserror::Error;

mod endpoint;

pub use endpoint::{Endpoint, parse_endpoints};

/// One setting of the node itself.
struct Setting {
    flag: &'static str,
    value_name: &'static str,
    environment: &'static str,
    default: Option<&'static str>,
    help: &'static str,
}

/// Every setting, in the order of `--help`. The file's key is the flag's name.
const SETTINGS: &[Setting] = &[
    Setting {
        flag: "node-id",
        value_name: "NUMBER",
        environment: "FELIX_NODE_ID",
        default: Some("1"),
        help: "Broker id, stable over restarts",
    },
    Setting {
        flag: "data-dir",
        value_name: "DIR",
        environment: "FELIX_DATA_DIR",
        default: Some("./felix-data"),
        help: "Where everything is kept; created if missing, locked while in use",
    },
    Setting {
        flag: "listeners",
        value_name: "LIST",
        environment: "FELIX_LISTENERS",
        default: Some("PLAINTEXT://127.0.0.1:9092"),
        help: "Where clients connect, in Kafka's syntax; several are separated by commas",
    },
    Setting {
        flag: "advertised-listeners",
        value_name: "LIST",
        environment: "FELIX_ADVERTISED_LISTENERS",
        default: None,
        help: "What clients are told to connect to [default: the listeners]",
    },
    Setting {
        flag: "internal-listener",
        value_name: "HOST:PORT",
        environment: "FELIX_INTERNAL_BIND",
        default: None,
        help: "Port for other brokers [default: none on a single node]",
    },
    Setting {
        flag: "internal-advertise",
        value_name: "HOST:PORT",
        environment: "FELIX_INTERNAL_ADVERTISE",
        default: None,
        help: "What other brokers dial [default: the internal listener]",
    },
    Setting {
        flag: "etcd",
        value_name: "LIST",
        environment: "FELIX_ETCD_ENDPOINTS",
        default: None,
        help: "etcd endpoints [default: none, a control store in the data directory]",
    },
    Setting {
        flag: "cluster-prefix",
        value_name: "PREFIX",
        environment: "FELIX_CLUSTER_PREFIX",
        default: Some("/felix"),
        help: "Key prefix in etcd, so that clusters can share one",
    },
    Setting {
        flag: "rack",
        value_name: "NAME",
        environment: "FELIX_RACK",
        default: None,
        help: "Rack of this node, for placement and client.rack [default: none]",
    },
    Setting {
        flag: "metrics-bind",
        value_name: "HOST:PORT",
        environment: "FELIX_BROKER_METRICS_BIND",
        default: Some("127.0.0.1:9644"),
        help: "HTTP with /metrics, /healthz and /readyz",
    },
    Setting {
        flag: "lease-ms",
        value_name: "MS",
        environment: "FELIX_LEASE_MS",
        default: Some("2000"),
        help: "Lease length, 500 to 60000; cluster-wide, the first node writes it",
    },
];

/// The file's own setting, which the file itself cannot give.
const CONFIG: Setting = Setting {
    flag: "config",
    value_name: "FILE",
    environment: "FELIX_CONFIG",
    default: None,
    help: "TOML file with any of these settings and any broker config",
};

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
}

/// What was asked of the binary.
#[derive(Debug)]
pub enum Action {
    /// Run a broker.
    Serve(Box<Settings>),
    /// Print what a segment, an index or a copy's folder holds.
    DumpLog(PathBuf),
}

/// A broker config given by Kafka's name, unchecked.
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct Override {
    /// Kafka's name.
    pub key: String,
    /// The value as text.
    pub value: String,
    /// Where it came from.
    pub source: Source,
}

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
    pub metrics_bind: String,
    /// Lease length.
    pub lease: Duration,
    /// Broker configs by Kafka's names: file entries first, then `--set` in order.
    pub overrides: Vec<Override>,
}

/// The whole command line for clap.
pub fn command() -> Command {
    let mut serve = Command::new("serve").about("Run a broker (what felix does without a subcommand)");
    let mut felix = Command::new("felix")
        .version(env!("CARGO_PKG_VERSION"))
        .about("A Kafka-wire-compatible broker")
        .after_help(
            "Precedence: flag, environment, file, default. Logs go to stderr; FELIX_LOG sets the level \
             (error, warn, info, debug, trace, or a filter such as felix=debug), FELIX_LOG_FORMAT=json the form.",
        )
        .disable_help_subcommand(true);
    for setting in SETTINGS.iter().chain([&CONFIG]) {
        felix = felix.arg(argument(setting));
        serve = serve.arg(argument(setting));
    }
    let set = Arg::new("set")
        .long("set")
        .value_name("KEY=VALUE")
        .action(ArgAction::Append)
        .help("Any broker config by Kafka's name, e.g. log.retention.ms=600000; repeatable");
    let dump = Command::new("dump-log")
        .about("Print what a segment, an index or a partition's folder holds")
        .arg(Arg::new("path").value_name("DIR|FILE").required(true));
    felix.arg(set.clone()).subcommand(serve.arg(set)).subcommand(dump)
}

fn argument(setting: &Setting) -> Arg {
    let default = setting.default.map(|value| format!("[default: {value}] ")).unwrap_or_default();
    let help = format!("{} {default}[env: {}]", setting.help, setting.environment);
    Arg::new(setting.flag).long(setting.flag).value_name(setting.value_name).help(help)
}

/// Reads the command line and what it leads to. `environment` answers for the process's variables.
pub fn resolve(
    matches: &ArgMatches,
    environment: impl Fn(&str) -> Option<String>,
) -> Result<Action, ArgsError> {
    match matches.subcommand() {
        Some(("dump-log", dump)) => {
            let path = dump.get_one::<String>("path").map(PathBuf::from).unwrap_or_default();
            Ok(Action::DumpLog(path))
        }
        Some((_, serve)) => {
            let flags = Flags { inner: Some(serve), outer: matches };
            Ok(Action::Serve(Box::new(settings(&flags, environment)?)))
        }
        None => {
            let flags = Flags { inner: None, outer: matches };
            Ok(Action::Serve(Box::new(settings(&flags, environment)?)))
        }
    }
}

/// Flags may stand before or behind `serve`; the ones behind win.
struct Flags<'a> {
    inner: Option<&'a ArgMatches>,
    outer: &'a ArgMatches,
}

impl Flags<'_> {
    fn get(&self, flag: &str) -> Option<String> {
        self.inner
            .and_then(|inner| inner.get_one::<String>(flag))
            .or_else(|| self.outer.get_one::<String>(flag))
            .cloned()
    }

    fn sets(&self) -> Vec<String> {
        let of = |matches: &ArgMatches| {
            matches.get_many::<String>("set").into_iter().flatten().cloned().collect::<Vec<_>>()
        };
        let mut all = of(self.outer);
        all.extend(self.inner.map(of).unwrap_or_default());
        all
    }
}

/// The values of [`SETTINGS`], each with its source.
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

fn settings(
    flags: &Flags<'_>,
    environment: impl Fn(&str) -> Option<String>,
) -> Result<Settings, ArgsError> {
    let from_flag_or_environment = |setting: &Setting| {
        flags.get(setting.flag).map(|value| (value, Source::Flag(setting.flag.to_owned()))).or_else(|| {
            environment(setting.environment).map(|value| (value, Source::Environment(setting.environment)))
        })
    };
    let file = match from_flag_or_environment(&CONFIG) {
        Some((path, source)) => read_file(&path, source)?,
        None => BTreeMap::new(),
    };
    let mut given = BTreeMap::new();
    for setting in SETTINGS {
        let value = from_flag_or_environment(setting)
            .or_else(|| file.get(setting.flag).cloned())
            .or_else(|| setting.default.map(|value| (value.to_owned(), Source::Default)));
        if let Some(value) = value {
            given.insert(setting.flag, value);
        }
    }
    let overrides = overrides(&file, flags.sets())?;
    check(&Values { given }, overrides)
}

/// What is not a setting of the node is a broker config.
fn overrides(
    file: &BTreeMap<String, (String, Source)>,
    sets: Vec<String>,
) -> Result<Vec<Override>, ArgsError> {
    let mut all = Vec::new();
    for (key, (value, source)) in file {
        if !SETTINGS.iter().any(|setting| setting.flag == key) {
            all.push(Override { key: key.clone(), value: value.clone(), source: source.clone() });
        }
    }
    for set in sets {
        let Some((key, value)) = set.split_once('=') else { return Err(ArgsError::Set(set)) };
        let (key, value) = (key.trim().to_owned(), value.trim().to_owned());
        all.push(Override { key, value, source: Source::Set });
    }
    Ok(all)
}

fn check(values: &Values, overrides: Vec<Override>) -> Result<Settings, ArgsError> {
    if let Some((value, source)) = values.get("etcd") {
        let allowed = "clusters over etcd are not supported by this version; leave it out to run a single node";
        return Err(wrong("etcd", value, source, allowed));
    }
    for flag in ["internal-listener", "internal-advertise"] {
        if let Some((value, source)) = values.get(flag) {
            let allowed = "only a cluster over etcd has other brokers, which this version does not support; leave it out";
            return Err(wrong(flag, value, source, allowed));
        }
    }
    let node_id = values.parse("node-id", |text| {
        text.parse::<i32>()
            .ok()
            .filter(|id| *id >= 0)
            .ok_or_else(|| format!("must be a whole number from 0 to {}", i32::MAX))
    })?;
    let data_dir = values.parse("data-dir", |text| {
        if text.is_empty() { Err("must name a directory".to_owned()) } else { Ok(PathBuf::from(text)) }
    })?;
    let listeners = values.parse("listeners", |text| parse_endpoints(text, endpoint::Use::Bind))?;
    let advertised =
        values.parse("advertised-listeners", |text| parse_endpoints(text, endpoint::Use::Advertise))?;
    let listeners = listeners.unwrap_or_default();
    if let Some(advertised) = &advertised {
        let unknown =
            advertised.iter().find(|one| !listeners.iter().any(|listener| listener.name == one.name));
        if let (Some(unknown), Some((value, source))) = (unknown, values.get("advertised-listeners")) {
            let allowed = format!("no listener is named {}; the listeners are {}", unknown.name, names(&listeners));
            return Err(wrong("advertised-listeners", value, source, allowed));
        }
    }
    let metrics_bind = values.parse("metrics-bind", |text| endpoint::check_host_port(text).map(str::to_owned))?;
    let lease = values.parse("lease-ms", |text| {
        text.parse::<u64>()
            .ok()
            .filter(|ms| (500..=60_000).contains(ms))
            .map(Duration::from_millis)
            .ok_or_else(|| "must be a whole number of milliseconds from 500 to 60000".to_owned())
    })?;
    let rack = values.parse("rack", |text| Ok(text.to_owned()))?.filter(|rack| !rack.is_empty());
    Ok(Settings {
        node_id: node_id.unwrap_or(1),
        data_dir: data_dir.unwrap_or_else(|| PathBuf::from("./felix-data")),
        listeners,
        advertised: advertised.unwrap_or_default(),
        rack,
        metrics_bind: metrics_bind.unwrap_or_default(),
        lease: lease.unwrap_or(Duration::from_secs(2)),
        overrides,
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
            toml::Value::Array(items) => items.iter().map(plain).collect::<Option<Vec<_>>>().map(|all| all.join(",")),
            toml::Value::String(_)
            | toml::Value::Integer(_)
            | toml::Value::Float(_)
            | toml::Value::Boolean(_)
            | toml::Value::Datetime(_) => plain(&value),
        };
        let Some(text) = text else {
            return Err(wrong(&key, "[...]", source, "must be a text, a number, true, false, or a list of these"));
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
