//! The cache outside the clone: installed packages, class paths, built client programs. It may be absent at any start.

use std::collections::{BTreeMap, BTreeSet};
use std::hash::{DefaultHasher, Hash, Hasher};
use std::path::{Path, PathBuf};
use std::process::{Command, Stdio};
use std::sync::{Arc, Mutex, PoisonError};
use std::time::{Duration, Instant};

use anyhow::{Context, Result, bail};

use crate::process::{on_path, run};

/// Builds of other people's code from source may take this long on a cold cache.
const BUILD_BOUND: Duration = Duration::from_secs(1500);

/// A build that failed within this time is tried once more.
const RETRY_BOUND: Duration = Duration::from_secs(300);

/// The cache, and where the logs of what it does go.
pub struct Cache {
    root: PathBuf,
    logs: PathBuf,
    /// A lock for each folder of sources: clients that share one may share what comes of it.
    building: Mutex<BTreeMap<PathBuf, Arc<Mutex<()>>>>,
    /// Debian's packages are everybody's.
    installing: Mutex<()>,
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
        Ok(Self {
            root: root.canonicalize()?,
            logs: logs.to_path_buf(),
            building: Mutex::default(),
            installing: Mutex::new(()),
        })
    }

    /// Where it is.
    pub fn root(&self) -> &Path {
        &self.root
    }

    /// Installs the Debian packages that are missing, and those of programs that are.
    pub fn packages(&self, packages: &[String], needs: &BTreeMap<String, Vec<String>>) -> Result<()> {
        let _installing = self.installing.lock().unwrap_or_else(PoisonError::into_inner);
        let mut missing: BTreeSet<&String> = packages.iter().filter(|package| !installed(package)).collect();
        for (_, providers) in needs.iter().filter(|(program, _)| !present(program)) {
            missing.extend(providers);
        }
        if missing.is_empty() {
            return Ok(());
        }
        if on_path("apt-get").is_none() || !rustix::process::geteuid().is_root() {
            bail!("missing: {missing:?}; they can be installed by root on a Debian system, or by you");
        }
        let log = self.logs.join("apt.log");
        std::fs::write(&log, "")?;
        let apt = |arguments: &[&str]| {
            let mut command = Command::new("apt-get");
            // Somebody else may be installing; that takes a while, but not for ever.
            command.args(["-o", "DPkg::Lock::Timeout=180", "-o", "Acquire::Retries=2"]).args(arguments);
            command.env("DEBIAN_FRONTEND", "noninteractive");
            command
        };
        let mut install = apt(&["install", "-y", "--no-install-recommends"]);
        install.args(&missing);
        // The package lists may be old or empty: ask for them only when the first try failed.
        if run(&mut install, &log, BUILD_BOUND).is_err() {
            let again = run(&mut apt(&["update", "-q"]), &log, BUILD_BOUND);
            again.and_then(|()| run(&mut install, &log, BUILD_BOUND)).with_context(|| {
                let locked =
                    std::fs::read_to_string(&log).is_ok_and(|text| text.contains("Could not get lock"));
                let why =
                    if locked { "another program holds apt's lock: wait for it and run again; " } else { "" };
                format!("{why}installing {missing:?}, see {}", log.display())
            })?;
        }
        Ok(())
    }

    /// The output folder of a build: runs `command` in `source` when the folder's content or the command has changed since the
    /// last good build.
    pub fn build(&self, name: &str, source: &Path, command: &[String]) -> Result<PathBuf> {
        let lock = {
            let mut locks = self.building.lock().unwrap_or_else(PoisonError::into_inner);
            Arc::clone(locks.entry(source.to_path_buf()).or_default())
        };
        let _building = lock.lock().unwrap_or_else(PoisonError::into_inner);
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
        let began = Instant::now();
        if let Err(error) = run(&mut build, &log, BUILD_BOUND) {
            // Registries hiccup: one more try, unless the first one took so long that it was not that.
            if began.elapsed() > RETRY_BOUND {
                return Err(error.context(format!("building {name}, see {}", log.display())));
            }
            run(&mut build, &log, BUILD_BOUND)
                .with_context(|| format!("building {name} (second try), see {}", log.display()))?;
        }
        std::fs::write(&stamp_file, stamp)?;
        Ok(out)
    }

    /// The variables that builds and programs of clients see.
    pub fn environment(&self, command: &mut Command, source: &Path, out: &Path) {
        command.env("FELIX_CACHE", &self.root).env("SRC", source).env("OUT", out);
    }
}

/// Whether a program is on the PATH, or a command of several words succeeds.
fn present(program: &str) -> bool {
    match program.split_once(' ') {
        None => on_path(program).is_some(),
        Some((program, arguments)) => {
            let mut command = Command::new(program);
            let command = command.args(arguments.split(' ')).stdout(Stdio::null()).stderr(Stdio::null());
            command.status().is_ok_and(|status| status.success())
        }
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
