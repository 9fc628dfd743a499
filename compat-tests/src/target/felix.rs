//! Starting `felix`.

use std::path::PathBuf;
use std::process::Command;

use anyhow::{Context, Result, bail};

use super::Broker;

/// The binary and what it says of its version. The `run` script builds it into the folder of the harness itself.
pub(super) fn find(given: Option<PathBuf>) -> Result<(PathBuf, String)> {
    let binary = match given {
        Some(given) => given,
        None => std::env::current_exe()?.with_file_name("felix"),
    };
    if !binary.is_file() {
        bail!(
            "{} is not there: build it with `cargo build --profile compat -p felix-broker`",
            binary.display()
        );
    }
    let binary = binary.canonicalize()?;
    let output =
        Command::new(&binary).arg("--version").output().with_context(|| binary.display().to_string())?;
    let version = String::from_utf8_lossy(&output.stdout).trim().to_owned();
    Ok((binary, if version.is_empty() { "felix (no version)".to_owned() } else { version }))
}

pub(super) fn command(broker: &Broker) -> Command {
    let mut command = broker.in_place(&broker.origin.place.to_string_lossy());
    command.arg("serve");
    command.arg("--node-id").arg("1");
    command.arg("--data-dir").arg(broker.data_dir());
    match broker.second_listener() {
        Some((second, told)) => {
            let first = broker.address();
            command.arg("--listeners").arg(format!("PLAINTEXT://{first},SECOND://{second}"));
            command.arg("--advertised-listeners").arg(format!("PLAINTEXT://{first},SECOND://{told}"));
            command.arg("--set").arg("listener.security.protocol.map=PLAINTEXT:PLAINTEXT,SECOND:PLAINTEXT");
        }
        None => {
            command.arg("--listeners").arg(format!("PLAINTEXT://{}", broker.address()));
        }
    }
    command.arg("--metrics-bind").arg(format!("127.0.0.1:{}", broker.second_port));
    // Groups of tests would only wait for members that do not come, and compaction for its next look.
    let defaults = [("group.initial.rebalance.delay.ms", "0"), ("log.cleaner.backoff.ms", "100")];
    for (name, default) in defaults {
        command.arg("--set").arg(format!("{name}={}", broker.setting_or(name, default)));
    }
    for (name, value) in &broker.settings {
        if !defaults.iter().any(|(known, _)| known == name) {
            command.arg("--set").arg(format!("{name}={value}"));
        }
    }
    command
}
