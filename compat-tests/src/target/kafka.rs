//! Starting Apache Kafka: one KRaft node, broker and controller in one process, from jars that Maven resolves.

use std::path::{Path, PathBuf};
use std::process::Command;
use std::time::Duration;

use anyhow::{Context, Result};

use super::Broker;
use crate::cache::Cache;
use crate::process::run;

/// The jars' folder and Kafka's version.
pub(super) fn find(cache: &Cache, clients: &Path) -> Result<(PathBuf, String)> {
    let jars = jars(cache, clients, "kafka-4")?;
    let version = std::fs::read_dir(&jars)?
        .filter_map(|entry| entry.ok()?.file_name().into_string().ok())
        .find_map(|name| Some(name.strip_prefix("kafka-clients-")?.strip_suffix(".jar")?.to_owned()))
        .context("no kafka-clients among the jars")?;
    Ok((jars, version))
}

/// The class path of a profile of clients/java/pom.xml, as a folder of jars in the cache.
pub fn jars(cache: &Cache, clients: &Path, profile: &str) -> Result<PathBuf> {
    let needs = [("javac", "openjdk-17-jdk-headless"), ("mvn", "maven")];
    let needs = needs.map(|(program, package)| (program.to_owned(), vec![package.to_owned()]));
    cache.packages(&[], &needs.into_iter().collect())?;
    let command = ["./jars.sh", profile].map(str::to_owned);
    cache.build(&format!("jars-{profile}"), &clients.join("java/jars"), &command)
}

/// The directory that Kafka keeps partitions in.
pub(super) fn log_dir(broker: &Broker) -> PathBuf {
    broker.data_dir().join("logs")
}

fn properties(broker: &Broker) -> String {
    let (host, port) = (broker.address().ip().to_string(), broker.port);
    let controller = broker.second_port;
    let (second, told) = match broker.second_listener() {
        Some((second, told)) => (format!(",SECOND://{second}"), format!(",SECOND://{told}")),
        None => (String::new(), String::new()),
    };
    let mut lines = vec![
        "process.roles=broker,controller".to_owned(),
        "node.id=1".to_owned(),
        format!("listeners=PLAINTEXT://{host}:{port},CONTROLLER://{host}:{controller}{second}"),
        format!("advertised.listeners=PLAINTEXT://{host}:{port},CONTROLLER://{host}:{controller}{told}"),
        "listener.security.protocol.map=PLAINTEXT:PLAINTEXT,CONTROLLER:PLAINTEXT,SECOND:PLAINTEXT".to_owned(),
        "controller.listener.names=CONTROLLER".to_owned(),
        format!("controller.quorum.bootstrap.servers={host}:{controller}"),
        format!("log.dirs={}", log_dir(broker).display()),
    ];
    let defaults = [
        ("offsets.topic.replication.factor", "1"),
        ("offsets.topic.num.partitions", "5"),
        ("transaction.state.log.replication.factor", "1"),
        ("transaction.state.log.min.isr", "1"),
        ("transaction.state.log.num.partitions", "5"),
        ("share.coordinator.state.topic.replication.factor", "1"),
        ("share.coordinator.state.topic.min.isr", "1"),
        ("group.initial.rebalance.delay.ms", "0"),
        ("log.cleaner.backoff.ms", "100"),
    ];
    lines.extend(defaults.map(|(name, default)| format!("{name}={}", broker.setting_or(name, default))));
    lines.extend(
        broker
            .settings
            .iter()
            .filter(|(name, _)| {
                !defaults.iter().any(|(known, _)| known == name) && !name.starts_with("felix.")
            })
            .map(|(name, value)| format!("{name}={value}")),
    );
    lines.join("\n") + "\n"
}

/// Writes the configuration and formats the directory, as Kafka wants it done once before the first start.
pub(super) fn format(broker: &Broker) -> Result<()> {
    let file = broker.data_dir().join("server.properties");
    std::fs::write(&file, properties(broker))?;
    let mut command = java(broker);
    command
        .args(["kafka.tools.StorageTool", "format", "--standalone", "-t", "4L6g3nShT-eMCtK--X86sw", "-c"])
        .arg(&file);
    run(&mut command, &broker.log, Duration::from_secs(60)).context("formatting Kafka's directory")
}

pub(super) fn command(broker: &Broker) -> Command {
    let mut command = java(broker);
    command.arg("kafka.Kafka").arg(broker.data_dir().join("server.properties"));
    command
}

/// A JVM that starts fast rather than runs fast: comparisons of answers are short.
fn java(broker: &Broker) -> Command {
    let mut command = broker.in_place("java");
    let jars = &broker.origin.place;
    command.args(["-Xms128m", "-Xmx768m", "-XX:+UseSerialGC", "-XX:TieredStopAtLevel=1", "-Xshare:auto"]);
    command.arg(format!("-Dlog4j2.configurationFile={}", jars.join("log4j2.properties").display()));
    command.arg("-cp").arg(format!("{}/*", jars.display()));
    command
}
