//! The aborted transactions of one segment: in memory while it is written, in its file afterwards.

use std::io;

use super::Segment;
use crate::data_dir::SIDE_FILE_LIMIT;
use crate::disk::{self, Disk};
use crate::error::ReadError;
use crate::index::txn::{self, AbortedTransaction};
use crate::layout::Kind;
use crate::seal::{self, Found};

impl<D: Disk> Segment<D> {
    /// The entries; `None` when the file cannot be right, or is not there although the segment may have some.
    pub(crate) fn aborted(&self) -> Result<Option<Vec<AbortedTransaction>>, ReadError> {
        if let Some(entries) = &*self.aborted.lock() {
            return Ok(Some(entries.clone()));
        }
        if let Some(kept) = &*self.kept.load() {
            return Ok(Some(kept.aborted().to_vec()));
        }
        let entries = self.aborted_on_file()?;
        if entries.as_ref().is_some_and(Vec::is_empty) {
            if !self.never_aborted() {
                return Ok(None);
            }
            self.gather_aborted(Vec::new());
        }
        Ok(entries)
    }

    /// Whether the seal vouches for it that no aborted transaction is in the segment. A file that was deleted looks
    /// like one that there was no need for.
    pub(crate) fn never_aborted(&self) -> bool {
        match seal::read_alone(self.disk(), &self.home.folder, self.base) {
            Found::Seal(seal) => !seal.aborted && seal.size == self.size(),
            Found::Missing | Found::Bad(_) => false,
        }
    }

    /// What the file says: no entries where there is none; `None` when it cannot be right.
    pub(crate) fn aborted_on_file(&self) -> Result<Option<Vec<AbortedTransaction>>, ReadError> {
        match disk::read_whole(self.disk(), &self.path(Kind::TxnIndex), SIDE_FILE_LIMIT) {
            Ok(content) => Ok(txn::decode(self.base, &content)),
            Err(error) if error.kind() == io::ErrorKind::NotFound => Ok(Some(Vec::new())),
            // Too large for what it should be, or a folder in its place.
            Err(error)
                if matches!(error.kind(), io::ErrorKind::InvalidData | io::ErrorKind::IsADirectory) =>
            {
                Ok(None)
            }
            Err(error) => Err(self.io_error(Kind::TxnIndex, error)),
        }
    }

    /// Gathers entries in memory from now on, beginning with these.
    pub(crate) fn gather_aborted(&self, entries: Vec<AbortedTransaction>) {
        *self.aborted.lock() = Some(entries);
    }

    /// Adds an entry to those in memory.
    pub(crate) fn add_aborted(&self, entry: AbortedTransaction) {
        self.aborted.lock().get_or_insert_default().push(entry);
    }

    /// The entries in memory.
    pub(crate) fn gathered_aborted(&self) -> Vec<AbortedTransaction> {
        self.aborted.lock().clone().unwrap_or_default()
    }

    /// From now on the file knows.
    pub(crate) fn release_aborted(&self) {
        let mut aborted = self.aborted.lock();
        // An empty list costs nothing and saves a look at the disk.
        if aborted.as_ref().is_some_and(|entries| !entries.is_empty()) {
            *aborted = None;
        }
    }
}
