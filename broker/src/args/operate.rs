//! `felix status` and `felix recover`: what an operator asks of a cluster that runs, or does not.

use clap::{Arg, ArgAction, ArgMatches, Command};
use felix_cluster::config::flags::FLAGS;

use super::Settings;

/// The name of the subcommand that shows what is going on.
pub(super) const STATUS: &str = "status";
/// The name of the subcommand that acts on the control store by hand.
pub(super) const RECOVER: &str = "recover";

/// Flags that say where the control store is.
const PLACES: &[&str] = &["etcd", "cluster-prefix", "data-dir", "config"];

/// `felix status`.
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct StatusAction {
    /// Metrics listeners to ask.
    pub servers: Vec<String>,
    /// As JSON.
    pub json: bool,
    /// All rows of each list.
    pub all: bool,
}

/// `felix recover`.
#[derive(Debug)]
pub struct RecoverAction {
    /// What is to be done.
    pub act: Act,
    /// Only then is anything written.
    pub yes: bool,
    /// Where the control store is.
    pub settings: Box<Settings>,
}

/// What is to be recovered from.
#[derive(Clone, Debug, PartialEq, Eq)]
pub enum Act {
    /// The control store was restored from a backup.
    Store,
    /// Copies that it does not know may be removed.
    Confirm,
    /// Nobody may lead these.
    Partitions {
        /// `TOPIC-NUMBER`, or `TOPIC` for all of its partitions that nobody leads.
        names: Vec<String>,
        /// Who is to.
        to: Option<i32>,
        /// Metrics listeners of brokers that are asked what they hold.
        ask: Vec<String>,
    },
}

pub(super) fn status_command() -> Command {
    Command::new(STATUS)
        .about("Show nodes, leases, partitions and what is wrong, as a running broker knows it")
        .after_help("Exit code: 0 nothing is wrong, 1 something is, 2 no broker could be asked.")
        .arg(
            Arg::new("server")
                .long("server")
                .value_name("host:port")
                .action(ArgAction::Append)
                .help("Metrics listener of a broker to ask; several are asked for their own copies [default: metrics-bind]"),
        )
        .arg(flag("json", "Print the answer as JSON"))
        .arg(flag("all", "All rows of each list, not only the first"))
}

pub(super) fn recover_command() -> Command {
    let store = Command::new("store")
        .about("Take a control store for good that was restored from a backup. All brokers must be stopped");
    let confirm = Command::new("confirm")
        .about("After `recover store`: let brokers remove copies that the control store does not know");
    let partition = Command::new("partition")
        .about("Give partitions that nobody may lead a leader that may lack acknowledged records")
        .arg(
            Arg::new("names")
                .value_name("TOPIC[-NUMBER]")
                .required(true)
                .num_args(1..)
                .action(ArgAction::Append)
                .help("A partition; a topic stands for all its partitions without a leader"),
        )
        .arg(
            Arg::new("to")
                .long("to")
                .value_name("id")
                .value_parser(clap::value_parser!(i32))
                .help("The broker that is to lead; needed where more than one could"),
        )
        .arg(
            Arg::new("ask")
                .long("ask")
                .value_name("host:port")
                .action(ArgAction::Append)
                .help("Metrics listener of a broker to be asked what it holds; repeatable"),
        );
    let acts = [store, confirm, partition].map(|act| {
        let places = FLAGS.iter().filter(|flag| flag.flag.is_some_and(|name| PLACES.contains(&name)));
        let places = places.filter_map(|flag| {
            let name = flag.flag?;
            Some(Arg::new(name).long(name).value_name(flag.value_name).help(super::help(flag)))
        });
        act.args(places).arg(flag("yes", "Do it. Without this, only what would be done is shown"))
    });
    Command::new(RECOVER)
        .about("Decide by hand what Felix may not decide: shows what it would do, and does it with --yes")
        .after_help("Exit code: 0 done, or shown; 1 not everything could be done; 2 nothing could.")
        .subcommand_required(true)
        .subcommands(acts)
}

fn flag(name: &'static str, help: &'static str) -> Arg {
    Arg::new(name).long(name).action(ArgAction::SetTrue).help(help)
}

pub(super) fn status_action(matches: &ArgMatches, settings: &Settings) -> StatusAction {
    let mut servers: Vec<String> = all(matches, "server");
    if servers.is_empty() {
        let (host, port) = &settings.metrics_bind;
        // Every address of this machine is none to dial.
        let host = match host.as_str() {
            "" | "0.0.0.0" | "::" => "127.0.0.1",
            host => host,
        };
        servers.push(if host.contains(':') { format!("[{host}]:{port}") } else { format!("{host}:{port}") });
    }
    StatusAction { servers, json: matches.get_flag("json"), all: matches.get_flag("all") }
}

pub(super) fn recover_action(matches: &ArgMatches, settings: Settings) -> RecoverAction {
    let act = match matches.subcommand() {
        Some(("confirm", _)) => Act::Confirm,
        Some(("partition", partition)) => Act::Partitions {
            names: all(partition, "names"),
            to: partition.get_one::<i32>("to").copied(),
            ask: all(partition, "ask"),
        },
        // clap lets no other word pass.
        Some(_) | None => Act::Store,
    };
    let yes = matches.subcommand().is_some_and(|(_, act)| act.get_flag("yes"));
    RecoverAction { act, yes, settings: Box::new(settings) }
}

fn all(matches: &ArgMatches, name: &str) -> Vec<String> {
    matches.get_many::<String>(name).into_iter().flatten().cloned().collect()
}
