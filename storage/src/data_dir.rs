//! A data directory: locked by one process, with its identity and what all its logs share.

use std::io;
use std::path::{Path, PathBuf};
use std::sync::Arc;

use felix_protocol::ids::PartitionId;

use crate::config::Limits;
use crate::damage::DamageBook;
use crate::disk::{self, Disk};
use crate::error::{Doing, StorageError};
use crate::handles::Handles;
use crate::layout;
use crate::log::Deleted;
use crate::tail::TailBudget;

/// Side files are far smaller than this.
pub(crate) const SIDE_FILE_LIMIT: u64 = 64 << 20;

/// Who a data directory belongs to; kept in Kafka's `meta.properties`.
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct Identity {
    /// `cluster.id`: 22 letters of URL-safe base64.
    pub cluster_id: String,
    /// `node.id`.
    pub node_id: i32,
    /// `directory.id`: 22 letters of URL-safe base64.
    pub directory_id: String,
}

/// A locked data directory; clones share it, the last one dropped releases the lock.
pub struct DataDir<D: Disk> {
    inner: Arc<Inner<D>>,
}

struct Inner<D: Disk> {
    disk: D,
    path: PathBuf,
    limits: Limits,
    handles: Handles<D>,
    tail: Arc<TailBudget>,
    damage: DamageBook,
    _lock: D::Lock,
}

impl<D: Disk> Clone for DataDir<D> {
    fn clone(&self) -> Self {
        DataDir { inner: self.inner.clone() }
    }
}

impl<D: Disk> DataDir<D> {
    /// Makes the folder (and missing parents) and locks it.
    pub fn open(disk: D, path: &Path, limits: Limits) -> Result<DataDir<D>, StorageError> {
        create_dirs(&disk, path)?;
        let lock = match disk.lock(&path.join(layout::LOCK)) {
            Ok(lock) => lock,
            Err(error) if error.kind() == io::ErrorKind::WouldBlock => {
                return Err(StorageError::Locked(path.to_path_buf()));
            }
            Err(error) if error.kind() == io::ErrorKind::IsADirectory => {
                let reason = "a folder is in the place of the lock; remove it".to_string();
                return Err(StorageError::Identity { path: path.join(layout::LOCK), reason });
            }
            Err(error) => return Err(StorageError::io("lock", path, error)),
        };
        Ok(DataDir {
            inner: Arc::new(Inner {
                disk,
                path: path.to_path_buf(),
                limits,
                handles: Handles::new(limits.open_files),
                tail: TailBudget::new(limits.tail_bytes),
                damage: DamageBook::default(),
                _lock: lock,
            }),
        })
    }

    /// The identity written by [`DataDir::set_identity`]; `None` in a fresh directory.
    pub fn identity(&self) -> Result<Option<Identity>, StorageError> {
        let path = self.inner.path.join(layout::META_PROPERTIES);
        let content = match disk::read_whole(&self.inner.disk, &path, SIDE_FILE_LIMIT) {
            Ok(content) => content,
            Err(error) if error.kind() == io::ErrorKind::NotFound => return Ok(None),
            Err(error) if error.kind() == io::ErrorKind::IsADirectory => {
                return Err(StorageError::Identity { path, reason: "a folder is in its place".to_string() });
            }
            Err(error) => return Err(StorageError::io("read", &path, error)),
        };
        match layout::parse_meta_properties(&String::from_utf8_lossy(&content)) {
            Ok(identity) => Ok(Some(identity)),
            Err(reason) => Err(StorageError::Identity { path, reason }),
        }
    }

    /// Writes `meta.properties`, durably.
    pub fn set_identity(&self, identity: &Identity) -> Result<(), StorageError> {
        let text = layout::format_meta_properties(identity);
        layout::write_durably(&self.inner.disk, &self.inner.path, layout::META_PROPERTIES, text.as_bytes())
    }

    /// The partition copies that have a folder here, in order.
    pub fn partitions(&self) -> Result<Vec<PartitionId>, StorageError> {
        let entries = self.inner.disk.read_dir(&self.inner.path).doing("list", &self.inner.path)?;
        let mut found: Vec<PartitionId> = entries
            .iter()
            .filter(|entry| entry.is_dir)
            .filter_map(|entry| layout::parse_folder_name(&entry.name))
            .collect();
        found.sort();
        Ok(found)
    }

    /// Folders of deleted copies that an earlier process did not come to remove.
    pub fn leftovers(&self) -> Result<Vec<Deleted<D>>, StorageError> {
        let entries = self.inner.disk.read_dir(&self.inner.path).doing("list", &self.inner.path)?;
        Ok(entries
            .iter()
            .filter(|entry| entry.is_dir && entry.name.ends_with(layout::DELETED_FOLDER))
            .map(|entry| Deleted::new(self.clone(), self.inner.path.join(&entry.name)))
            .collect())
    }

    /// Gives up a copy without opening its log: renames its folder away, durably.
    pub fn discard(&self, partition: &PartitionId) -> Result<Deleted<D>, StorageError> {
        crate::log::delete_folder(self, &self.folder(partition))
    }

    /// The folder of one partition's copy.
    pub fn folder(&self, partition: &PartitionId) -> PathBuf {
        self.inner.path.join(partition.to_string())
    }

    /// The directory itself.
    pub fn path(&self) -> &Path {
        &self.inner.path
    }

    /// The disk it lies on.
    pub fn disk(&self) -> &D {
        &self.inner.disk
    }

    /// The bounds shared by its logs.
    pub fn limits(&self) -> Limits {
        self.inner.limits
    }

    /// What was found damaged in it.
    pub fn damage(&self) -> &DamageBook {
        &self.inner.damage
    }

    /// Bytes of recent batches held in memory.
    pub fn tail_bytes(&self) -> usize {
        self.inner.tail.used()
    }

    pub(crate) fn handles(&self) -> &Handles<D> {
        &self.inner.handles
    }

    pub(crate) fn tail(&self) -> &TailBudget {
        &self.inner.tail
    }
}

fn create_dirs<D: Disk>(disk: &D, path: &Path) -> Result<(), StorageError> {
    match disk.create_dir(path) {
        Ok(()) => {}
        Err(error) if error.kind() == io::ErrorKind::AlreadyExists => return Ok(()),
        Err(error) if error.kind() == io::ErrorKind::NotFound => {
            let Some(parent) = path.parent() else { return Err(StorageError::io("create", path, error)) };
            create_dirs(disk, parent)?;
            match disk.create_dir(path) {
                // `made/..` is there as soon as `made` is.
                Err(error) if error.kind() == io::ErrorKind::AlreadyExists => return Ok(()),
                made => made.doing("create", path)?,
            }
        }
        Err(error) => return Err(StorageError::io("create", path, error)),
    }
    match path.parent() {
        Some(parent) if !parent.as_os_str().is_empty() => disk.sync_dir(parent).doing("flush", parent),
        _ => disk.sync_dir(Path::new(".")).doing("flush", Path::new(".")),
    }
}
