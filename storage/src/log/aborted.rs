//! Which transactions were aborted: what a reader of committed records only must be told beside the batches.

use felix_protocol::batch::control::TransactionEnd;
use felix_protocol::ids::Offset;
use felix_protocol::time::WallTime;

use super::read::LogReader;
use super::{Log, Shared};
use crate::data_dir::SIDE_FILE_LIMIT;
use crate::disk::{self, Disk};
use crate::error::ReadError;
use crate::flush::SideWrite;
use crate::index::txn::{self, AbortedTransaction};
use crate::layout::{self, Kind};
use crate::producers::{Ended, Producers, snapshot};
use crate::segment::Segment;
use crate::segment::walk::Walk;

impl<D: Disk> LogReader<D> {
    /// The aborted transactions with an offset in `[from, to)`, by their markers. Ask for the range that was
    /// read.
    pub fn aborted(&self, from: Offset, to: Offset) -> Result<Vec<AbortedTransaction>, ReadError> {
        let shared = self.shared();
        shared.stable(|_| shared.aborted(from, to), from)
    }
}

impl<D: Disk> Shared<D> {
    fn aborted(&self, from: Offset, to: Offset) -> Result<Vec<AbortedTransaction>, ReadError> {
        let segments = self.segments.load();
        let mut found = Vec::new();
        let first = segments.partition_point(|segment| segment.base() <= from).saturating_sub(1);
        for at in first..segments.len() {
            for entry in self.aborted_of(&segments, at)? {
                if entry.last_offset >= from && entry.first_offset < to {
                    found.push(entry);
                }
                // Whatever was written later began later, too.
                if entry.last_stable_offset >= to {
                    return Ok(found);
                }
            }
        }
        Ok(found)
    }

    /// The entries of one segment, built again when its file cannot be right.
    pub(super) fn aborted_of(
        &self,
        segments: &[std::sync::Arc<Segment<D>>],
        at: usize,
    ) -> Result<Vec<AbortedTransaction>, ReadError> {
        let segment = &segments[at];
        if let Some(entries) = segment.aborted()? {
            return Ok(entries);
        }
        let entries = self.aborted_from_batches(segments, at)?;
        let disk = self.home.dir.disk();
        // That there is nothing needs no file, but one that says something else must not stay.
        let is_told = entries.is_empty() && segment.aborted_on_file()?.is_some_and(|told| told.is_empty());
        let name = layout::file_name(segment.base(), Kind::TxnIndex);
        // What no file says (on a full disk, say) is remembered until the next start.
        if is_told || layout::write_durably(disk, &self.home.folder, &name, &txn::encode(&entries)).is_err() {
            segment.gather_aborted(entries.clone());
        }
        Ok(entries)
    }

    pub(super) fn aborted_from_batches(
        &self,
        segments: &[std::sync::Arc<Segment<D>>],
        at: usize,
    ) -> Result<Vec<AbortedTransaction>, ReadError> {
        let base = segments[at].base();
        let path = layout::file_path(&self.home.folder, base, Kind::Snapshot);
        let known = disk::read_whole(self.home.dir.disk(), &path, SIDE_FILE_LIMIT)
            .ok()
            .and_then(|content| snapshot::decode(&content, WallTime(0), i64::MAX).ok());
        // Without a snapshot only the batches before know which transactions were open.
        let first = if known.is_some() { at } else { 0 };
        let mut producers = known.unwrap_or_default();
        let mut entries = Vec::new();
        for segment in &segments[first..=at] {
            let file = segment.file().map_err(|error| segment.log_error(error))?;
            let mut walk = Walk::new(&*file, 0, segment.size(), segment.base());
            while let Some(step) = walk.next_header().map_err(|broken| segment.of_walk(broken))? {
                let bytes = if step.header.is_control() {
                    walk.batch_bytes(&step).map_err(|broken| segment.of_walk(broken))?
                } else {
                    bytes::Bytes::new()
                };
                let ended = producers.record(&step.header, &bytes, WallTime(0));
                if segment.base() == base {
                    entries.extend(aborted(&producers, ended, step.header.last_offset()));
                }
            }
        }
        Ok(entries)
    }
}

/// What the marker at `marker` adds to the index: nothing unless it aborted a transaction with records.
pub(super) fn aborted(
    producers: &Producers,
    ended: Option<Ended>,
    marker: Offset,
) -> Option<AbortedTransaction> {
    let ended = ended.filter(|ended| ended.end == TransactionEnd::Abort)?;
    Some(AbortedTransaction {
        producer_id: ended.producer_id,
        first_offset: ended.first_offset?,
        last_offset: marker,
        last_stable_offset: producers.first_open_transaction().unwrap_or(marker + 1),
    })
}

impl<D: Disk> Log<D> {
    /// Puts the aborted transactions of a segment that is not written any more among the side files of the
    /// next flush.
    pub(super) fn stage_aborted(&mut self, segment: &Segment<D>) {
        let content = segment.gathered_aborted();
        if !content.is_empty() {
            let name = layout::file_name(segment.base(), Kind::TxnIndex);
            self.pending.side.retain(|side| side.name != name);
            self.pending.side.push(SideWrite { name, content: txn::encode(&content) });
        }
    }

    /// Forgets what is in files by now.
    pub(super) fn release_aborted(&self) {
        for pair in self.segments().windows(2) {
            if pair[1].base() <= self.closed {
                pair[0].release_aborted();
            }
        }
    }
}
