//! The cache outside the clone: installed packages, class paths, built client programs. It may be absent at any start.

use std::collections::BTreeSet;
use std::hash::{DefaultHasher, Hash, Hasher};
use std::path::{Path, PathBuf};
use std::process::{Command, Stdio};
use std::time::Duration;

use anyhow::{Context, Result, bail};

use crate::process::run;

/// Builds of other people's code from source may take this long on a cold cache.
const BUILD_BOUND: Duration = Duration::from_secs(1500);

/// The cache, and where the logs of what it does go.
pub struct Cache {
    root: PathBuf,
    logs: PathBuf,
}

impl Cache {
    /// Opens (and makes) the cache of `$FELIX_CACHE`, or `~/.cache/felix-compat`.
    pub fn open(logs: &Path) -> Result<Self> {
        let root = match std::env::var_os("FELIX_CACHE") {
            Some(root) => PathBuf::from(root),
            None => PathBuf::from(std::env::var_os("HOME").context("neither FELIX_CACHE nor HOME is set")?)
                .join(".cache/felix-compat"),
        };
        std::fs::create_dir_all(&root).with_context(|| root.display().to_string())?;
        std::fs::create_dir_all(logs).with_context(|| logs.display().to_string())?;
        Ok(Self { root: root.canonicalize()?, logs: logs.to_path_buf() })
    }

    /// Installs the Debian packages that are missing.
    pub fn packages(&self, packages: &BTreeSet<String>) -> Result<()> {
        let missing: Vec<&String> = packages.iter().filter(|package| !installed(package)).collect();
        if missing.is_empty() {
            return Ok(());
        }
        let log = self.logs.join("apt.log");
        let mut install = Command::new("apt-get");
        install.env("DEBIAN_FRONTEND", "noninteractive");
        install.args(["install", "-y", "--no-install-recommends"]).args(&missing);
        // The package lists may be old or empty: ask for them only when the first try failed.
        if run(&mut install, &log, BUILD_BOUND).is_err() {
            run(Command::new("apt-get").args(["update", "-q"]), &log, BUILD_BOUND)?;
            run(&mut install, &log, BUILD_BOUND).with_context(|| format!("installing {missing:?}"))?;
        }
        Ok(())
    }

    /// The output folder of a build: runs `command` in `source` when the folder's content or the command has changed since the
    /// last good build.
    pub fn build(&self, name: &str, source: &Path, command: &[String]) -> Result<PathBuf> {
        let out = self.root.join(name);
        std::fs::create_dir_all(&out)?;
        let Some((program, arguments)) = command.split_first() else { return Ok(out) };
        let stamp_file = out.join(".built");
        let stamp = format!("{:016x}", fingerprint(source, command)?);
        if std::fs::read_to_string(&stamp_file).is_ok_and(|old| old == stamp) {
            return Ok(out);
        }
        let log = self.logs.join(format!("build-{name}.log"));
        std::fs::write(&log, "")?;
        let mut build = Command::new(program);
        build.args(arguments).current_dir(source);
        self.environment(&mut build, source, &out);
        run(&mut build, &log, BUILD_BOUND)
            .with_context(|| format!("building {name}, see {}", log.display()))?;
        std::fs::write(&stamp_file, stamp)?;
        Ok(out)
    }

    /// The variables that builds and programs of clients see.
    pub fn environment(&self, command: &mut Command, source: &Path, out: &Path) {
        command.env("FELIX_CACHE", &self.root).env("SRC", source).env("OUT", out);
    }
}

fn installed(package: &str) -> bool {
    Command::new("dpkg-query")
        .args(["-W", "-f", "${Status}", package])
        .stderr(Stdio::null())
        .output()
        .is_ok_and(|output| output.stdout == b"install ok installed")
}

/// A number for the content of a folder and a command. Changes only cost a rebuild, so a fast hash does.
fn fingerprint(source: &Path, command: &[String]) -> Result<u64> {
    let mut files = BTreeSet::new();
    collect(source, &mut files)?;
    let mut hasher = DefaultHasher::new();
    command.hash(&mut hasher);
    for file in files {
        file.strip_prefix(source)?.hash(&mut hasher);
        std::fs::read(&file)?.hash(&mut hasher);
    }
    Ok(hasher.finish())
}

fn collect(folder: &Path, files: &mut BTreeSet<PathBuf>) -> Result<()> {
    for entry in std::fs::read_dir(folder).with_context(|| folder.display().to_string())? {
        let entry = entry?;
        let name = entry.file_name();
        if name == "node_modules" || name == "__pycache__" || name == "target" || name == "client.toml" {
            continue;
        }
        let kind = entry.file_type()?;
        if kind.is_dir() {
            collect(&entry.path(), files)?;
        } else if kind.is_file() {
            files.insert(entry.path());
        }
    }
    if files.len() > 10_000 {
        bail!("{} holds more than 10,000 files: build into $OUT, not here", folder.display());
    }
    Ok(())
}
