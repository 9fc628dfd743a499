//! `clients/cases.toml` and the `client.toml` of every client.

use std::collections::BTreeMap;
use std::path::{Path, PathBuf};
use std::process::Command;
use std::time::Duration;

use anyhow::{Context, Result, bail};
use serde::Deserialize;

/// The bound of a client's own case that names none.
const OWN_CASE_BOUND: u64 = 30;

/// A case that every client runs.
#[derive(Debug, Clone, Deserialize)]
#[serde(deny_unknown_fields)]
pub struct CommonCase {
    /// Its name.
    pub name: String,
    /// Its bound in seconds.
    pub seconds: u64,
    /// What a pass proves.
    pub proves: String,
}

#[derive(Deserialize)]
#[serde(deny_unknown_fields)]
struct CaseFile {
    case: Vec<CommonCase>,
}

/// One client as its manifest describes it; see README.md.
#[derive(Debug, Clone, Deserialize)]
#[serde(deny_unknown_fields)]
pub struct Client {
    /// What `--client` takes.
    pub name: String,
    /// For people.
    pub title: String,
    /// The pinned version.
    pub version: String,
    /// Debian packages to have.
    #[serde(default)]
    pub apt: Vec<String>,
    /// Programs to have on the PATH (or commands that must succeed), wherever they come from; the Debian packages where one is missing.
    #[serde(default)]
    pub needs: BTreeMap<String, Vec<String>>,
    /// Build command, run in the client's folder.
    #[serde(default)]
    pub build: Vec<String>,
    /// Run command.
    pub run: Vec<String>,
    /// Cases, `common` standing for all common ones.
    pub cases: Vec<String>,
    /// Cases that cannot be run, with the reason.
    #[serde(default)]
    pub skip: BTreeMap<String, String>,
    /// What a case leaves out or does for this client's sake.
    #[serde(default)]
    pub remarks: BTreeMap<String, String>,
    /// Bounds that differ.
    #[serde(default)]
    pub seconds: BTreeMap<String, u64>,
    /// What the client's own cases prove.
    #[serde(default)]
    pub proves: BTreeMap<String, String>,
    /// Broker settings that the cases need.
    #[serde(default)]
    pub broker: BTreeMap<String, String>,
    /// Whether a case asks for the way on which answers get lost.
    #[serde(default)]
    pub lossy: bool,
    /// The folder of the manifest.
    #[serde(skip)]
    pub source: PathBuf,
}

#[derive(Deserialize)]
#[serde(deny_unknown_fields)]
struct ClientFile {
    client: Vec<Client>,
}

/// All manifests.
pub struct Manifests {
    /// The common cases in order.
    pub common: Vec<CommonCase>,
    /// The clients, by folder and then in the order of their file.
    pub clients: Vec<Client>,
}

impl Client {
    /// Its program, up to the arguments of the protocol, where `out` has what was built.
    pub fn command(&self, out: &Path) -> Command {
        let place = |word: &String| {
            word.replace("{src}", &self.source.to_string_lossy()).replace("{out}", &out.to_string_lossy())
        };
        let mut words = self.run.iter().map(place);
        let mut command = Command::new(words.next().unwrap_or_default());
        command.args(words).current_dir(out);
        command
    }
}

impl Manifests {
    /// Reads them from `clients/`.
    pub fn read(folder: &Path) -> Result<Self> {
        let common = read_toml::<CaseFile>(&folder.join("cases.toml"))?.case;
        let mut sources: Vec<PathBuf> =
            std::fs::read_dir(folder)?.map(|entry| Ok(entry?.path())).collect::<Result<_>>()?;
        sources.sort();
        let mut clients: Vec<Client> = Vec::new();
        for source in sources.iter().filter(|path| path.join("client.toml").is_file()) {
            let file = source.join("client.toml");
            for mut client in read_toml::<ClientFile>(&file)?.client {
                if clients.iter().any(|other| other.name == client.name) {
                    bail!("{}: the name {} is taken", file.display(), client.name);
                }
                client.source = source.clone();
                clients.push(client);
            }
        }
        Ok(Self { common, clients })
    }

    /// A client's cases in order, `common` spelled out.
    pub fn cases(&self, client: &Client) -> Vec<String> {
        let mut cases = Vec::new();
        for case in &client.cases {
            if case == "common" {
                cases.extend(self.common.iter().map(|case| case.name.clone()));
            } else {
                cases.push(case.clone());
            }
        }
        cases
    }

    /// How long a case of a client may take before it is ended: three times what it takes at most on a busy machine, or ten with
    /// `--full`.
    pub fn bound(&self, client: &Client, case: &str, full: bool) -> Duration {
        let common = self.common.iter().find(|common| common.name == case).map(|common| common.seconds);
        let seconds = client.seconds.get(case).copied().or(common).unwrap_or(OWN_CASE_BOUND);
        Duration::from_secs(seconds * if full { 10 } else { 3 })
    }
}

fn read_toml<T: for<'de> Deserialize<'de>>(file: &Path) -> Result<T> {
    let text = std::fs::read_to_string(file).with_context(|| file.display().to_string())?;
    toml::from_str(&text).with_context(|| file.display().to_string())
}

#[cfg(test)]
mod tests {
    use super::*;

    /// Every committed manifest can be read, every case is described, and nothing is skipped or bounded that does not exist.
    #[test]
    fn manifests_are_whole() {
        let folder = Path::new(env!("CARGO_MANIFEST_DIR")).join("clients");
        let manifests = Manifests::read(&folder).unwrap();
        for client in &manifests.clients {
            let cases = manifests.cases(client);
            for case in &cases {
                let described = client.proves.contains_key(case)
                    || manifests.common.iter().any(|common| common.name == *case);
                assert!(described, "{}: {case} is not described", client.name);
            }
            let named = client.skip.keys().chain(client.seconds.keys()).chain(client.proves.keys());
            for named in named.chain(client.remarks.keys()) {
                assert!(cases.contains(named), "{}: {named} is not one of its cases", client.name);
            }
        }
    }
}
