//! Checks data directories offline: `felix verify`. Reads only, and follows every byte back to a batch.
//!
//! Batches are the truth. Whatever is derived from them (seals, indexes, lists of aborted transactions,
//! snapshots, the generation map) must say what they say, and the table of copies must not promise more than they hold.
//!
//! Several directories are compared as well: what two copies of a partition hold below both their marks must
//! be the same.

use std::fmt;
use std::io;
use std::path::{Path, PathBuf};

use felix_protocol::ids::PartitionId;

use crate::data_dir::SIDE_FILE_LIMIT;
use crate::disk::{self, Disk};
use crate::error::{Doing, StorageError};
use crate::layout;
use crate::replicas::{self, Replica};

mod aborted;
mod compare;
mod indexes;
mod partition;
mod producers;

pub use compare::{Comparison, compare};

/// How bad a finding is.
#[derive(Clone, Copy, Debug, PartialEq, Eq, PartialOrd, Ord)]
pub enum Weight {
    /// Nothing is wrong.
    Note,
    /// A derived file says what is not so; the broker makes it anew.
    Wrong,
    /// Records are damaged or gone, or copies differ.
    Damage,
}

impl fmt::Display for Weight {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        f.write_str(match self {
            Weight::Note => "note",
            Weight::Wrong => "WRONG",
            Weight::Damage => "DAMAGE",
        })
    }
}

/// One thing that was found.
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct Finding {
    /// How bad it is.
    pub weight: Weight,
    /// In which file or folder.
    pub path: PathBuf,
    /// At which byte.
    pub position: Option<u64>,
    /// What it means.
    pub meaning: String,
}

/// One line.
impl fmt::Display for Finding {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        write!(f, "{}: {}", self.weight, self.path.display())?;
        if let Some(position) = self.position {
            write!(f, " at byte {position}")?;
        }
        write!(f, ": {}", self.meaning)
    }
}

/// What was looked at.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq)]
pub struct Summary {
    /// Copies of partitions.
    pub partitions: u64,
    /// Segments.
    pub segments: u64,
    /// Batches whose checksum was computed.
    pub batches: u64,
    /// Bytes of batches.
    pub bytes: u64,
    /// Findings of each weight: notes, wrong, damage.
    pub findings: [u64; 3],
}

impl Summary {
    /// Whether anything is wrong.
    pub fn is_good(&self) -> bool {
        self.findings[1] == 0 && self.findings[2] == 0
    }
}

impl fmt::Display for Summary {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        let [notes, wrong, damage] = self.findings;
        write!(
            f,
            "{} partitions, {} segments, {} batches, {} bytes: {damage} damaged, {wrong} wrong, {notes} notes",
            self.partitions, self.segments, self.batches, self.bytes
        )
    }
}

/// Where findings go, and what has been looked at so far.
pub(crate) struct Report<'a> {
    summary: Summary,
    tell: &'a mut dyn FnMut(&Finding),
}

impl Report<'_> {
    fn find(&mut self, weight: Weight, path: &Path, position: Option<u64>, meaning: impl Into<String>) {
        self.summary.findings[weight as usize] += 1;
        (self.tell)(&Finding { weight, path: path.to_path_buf(), position, meaning: meaning.into() });
    }
}

/// The rows of a directory's table of copies.
pub(crate) type Rows = std::collections::BTreeMap<PartitionId, Replica>;

/// Keeps brokers from opening a directory while it is looked at.
pub struct Guard<D: Disk> {
    _lock: Option<D::Lock>,
}

/// Makes sure that no broker uses `dir`, now or until the guard goes.
pub fn guard<D: Disk>(disk: &D, dir: &Path) -> Result<Guard<D>, StorageError> {
    match disk.lock_shared(&dir.join(layout::LOCK)) {
        Ok(lock) => Ok(Guard { _lock: lock }),
        Err(error) if error.kind() == io::ErrorKind::WouldBlock => {
            Err(StorageError::Locked(dir.to_path_buf()))
        }
        Err(error) => Err(StorageError::io("lock", dir, error)),
    }
}

/// Checks one data directory; `tell` hears of each finding. An error means that it could not be looked at.
pub fn verify<D: Disk>(
    disk: &D,
    dir: &Path,
    tell: &mut dyn FnMut(&Finding),
) -> Result<Summary, StorageError> {
    let mut report = Report { summary: Summary::default(), tell };
    let mut entries = disk.read_dir(dir).doing("list", dir)?;
    entries.sort();
    let rows = table(disk, dir, &mut report)?;
    identity(disk, dir, &mut report);
    let mut found = Vec::new();
    for entry in &entries {
        let path = dir.join(&entry.name);
        match layout::parse_folder_name(&entry.name) {
            Some(partition) if entry.is_dir => found.push(partition),
            Some(_) => {
                report.find(Weight::Wrong, &path, None, "a file with the name of a partition's folder")
            }
            None if entry.is_dir && entry.name.ends_with(layout::DELETED_FOLDER) => {
                report.find(Weight::Note, &path, None, "a deleted copy that waits to be removed");
            }
            None => {}
        }
    }
    for partition in &found {
        partition::check(disk, dir, *partition, rows.get(partition), &mut report)?;
    }
    for (partition, row) in rows.iter().filter(|(partition, _)| !found.contains(partition)) {
        let promised = row.mark.max(row.synced);
        let path = dir.join(partition.to_string());
        if promised > row.log_start {
            let from = row.log_start;
            report.find(
                Weight::Damage,
                &path,
                None,
                format!("the folder is missing; offsets {from} to {promised} were promised"),
            );
        } else {
            report.find(
                Weight::Note,
                &path,
                None,
                "the table of copies has a row of a copy without a folder",
            );
        }
    }
    Ok(report.summary)
}

fn table<D: Disk>(disk: &D, dir: &Path, report: &mut Report<'_>) -> Result<Rows, StorageError> {
    let path = dir.join(layout::REPLICAS);
    match disk::read_whole(disk, &path, 16 * SIDE_FILE_LIMIT) {
        Ok(content) => {
            let (rows, read) = replicas::rows(&content);
            if read.damaged > 0 {
                let meaning = format!("{} commits cannot be read though later ones can", read.damaged);
                report.find(Weight::Damage, &path, None, meaning);
            }
            Ok(rows.into_iter().collect())
        }
        Err(error) if error.kind() == io::ErrorKind::NotFound => {
            report.find(Weight::Note, &path, None, "there is no table of copies: nothing was promised");
            Ok(Rows::new())
        }
        Err(error) => Err(StorageError::io("read", &path, error)),
    }
}

fn identity<D: Disk>(disk: &D, dir: &Path, report: &mut Report<'_>) {
    let path = dir.join(layout::META_PROPERTIES);
    match disk::read_whole(disk, &path, SIDE_FILE_LIMIT) {
        Ok(content) => {
            if let Err(reason) = layout::parse_meta_properties(&String::from_utf8_lossy(&content)) {
                report.find(Weight::Wrong, &path, None, reason);
            }
        }
        Err(error) => report.find(Weight::Note, &path, None, format!("it cannot be read: {error}")),
    }
}
