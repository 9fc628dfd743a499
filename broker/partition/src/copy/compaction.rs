//! Compaction, as far as the copy's owner takes part: see `felix_storage::compaction`.

use felix_protocol::ids::Offset;
use felix_protocol::time::Clock;
use felix_storage::StorageError;
use felix_storage::compaction::{Cleaned, Compaction, Replaced, Summary};
use felix_storage::disk::Disk;

use crate::copy::Copy;

impl<D: Disk, C: Clock, W> Copy<D, C, W> {
    /// What a round could work on, judged by the row that was noted last.
    pub fn compaction(&self) -> Option<Compaction<D>> {
        if self.halted.is_some() {
            return None;
        }
        self.log.compaction(self.published.mark(), self.row.synced)
    }

    /// The plan of a round. The table of copies says durably that everything below `synced` is flushed.
    pub fn compaction_round(&self, synced: Offset) -> Option<Compaction<D>> {
        if self.halted.is_some() {
            return None;
        }
        self.log.compaction_round(self.published.mark(), synced)
    }

    /// Whether the segments may be put in place; retention leaves them alone from now on.
    pub fn claim(&mut self, cleaned: &Cleaned<D>) -> bool {
        self.halted.is_none() && self.log.claim(cleaned)
    }

    /// Whether segments are about to be put in place.
    pub fn is_claimed(&self) -> bool {
        self.log.is_claimed()
    }

    /// They will not be put in place after all.
    pub fn unclaim(&mut self) {
        self.log.unclaim();
    }

    /// Puts them in place. After an error the copy must be halted.
    pub fn swap(&mut self, cleaned: Cleaned<D>) -> Result<Option<Replaced<D>>, StorageError> {
        self.log.swap(cleaned)
    }

    /// Notes how far a round came; what comes back goes to [`felix_storage::LogReader::note_compaction`].
    pub fn compacted(&mut self, summary: &Summary) -> Option<String> {
        self.log.compacted(summary)
    }
}
