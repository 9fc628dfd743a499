//! Compaction on the log's own thread: what a round may work on, and putting in place what it wrote. Nothing
//! here waits for the disk.

use std::collections::{BTreeMap, BTreeSet};
use std::sync::Arc;
use std::sync::atomic::Ordering;

use felix_protocol::ids::Offset;

use super::{Log, Recovered};
use crate::compaction::{Cleaned, Compaction, LastOfProducer, Progress, Replaced, Summary, checkpoint};
use crate::data_dir::SIDE_FILE_LIMIT;
use crate::disk::{self, Disk};
use crate::error::{Doing, StorageError};
use crate::layout::{self, Kind};
use crate::segment::output;

/// Segments that a round is about to put in place: retention leaves them alone meanwhile.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(super) struct Claim {
    pub from: Offset,
    pub to: Offset,
}

impl<D: Disk> Log<D> {
    /// What a round could work on; `None` when there is nothing to do. `mark` and `synced` are bounds: nothing
    /// at or above them is touched, nor anything that an undecided transaction may be part of. `synced` must
    /// be durable ([`crate::Replica::synced`]): recovery believes everything below it. Good for
    /// [`Compaction::assess`] only.
    pub fn compaction(&self, mark: Offset, synced: Offset) -> Option<Compaction<D>> {
        if !self.config.compacts || self.poisoned || self.claim.is_some() {
            return None;
        }
        let undecided = self.producers.first_open_transaction().unwrap_or(Offset::MAX);
        let undecided = self.decided.first_above(mark).unwrap_or(Offset::MAX).min(undecided);
        let bound = mark.min(synced).min(self.synced).min(self.closed).min(undecided);
        let all = self.segments();
        let start = self.start();
        // What lies wholly below the log start is retention's.
        let first = all.partition_point(|segment| segment.base() <= start).saturating_sub(1);
        let whole = all.windows(2).skip(first).take_while(|pair| pair[1].base() <= bound).count();
        let until = all.get(first + whole)?.base();
        let progress = Progress { end: self.progress.end.max(all[first].base()), ..self.progress };
        // What is damaged stays as it is, and so does what stands beside it.
        if all[first..first + whole].iter().any(|segment| segment.damage().is_some()) {
            return None;
        }
        if whole == 0 || (until <= progress.end && progress.again_at.is_none()) {
            return None;
        }
        Some(Compaction {
            reader: self.reader(),
            cuts: self.shared.cuts.load(Ordering::Relaxed),
            segments: all[first..first + whole].to_vec(),
            until,
            progress,
            config: self.config.compaction,
            segment_bytes: self.config.segment_bytes,
            index_bytes: u64::from(self.config.index_bytes),
            index_interval: u64::from(self.config.index_interval_bytes).max(1),
            last: BTreeMap::new(),
            begins: self.generations.entries().iter().map(|(_, first)| *first).collect::<BTreeSet<_>>(),
        })
    }

    /// The same for a round: with what must stay of producers.
    pub fn compaction_round(&self, mark: Offset, synced: Offset) -> Option<Compaction<D>> {
        let mut compaction = self.compaction(mark, synced)?;
        compaction.last = self.last_of_producers();
        Some(compaction)
    }

    fn last_of_producers(&self) -> BTreeMap<i64, LastOfProducer> {
        self.producers
            .iter()
            .map(|(id, producer)| {
                let last = match producer.last() {
                    Some(batch) => LastOfProducer::Batch(batch.last_offset),
                    None => LastOfProducer::Marker(producer.epoch),
                };
                (id, last)
            })
            .collect()
    }

    /// Whether the segments that were written anew are still the log's. From then until [`Log::swap`] or
    /// [`Log::unclaim`], retention leaves them alone; a cut through them ends the claim.
    pub fn claim(&mut self, cleaned: &Cleaned<D>) -> bool {
        let cut = self.shared.cuts.load(Ordering::Relaxed) != cleaned.cuts;
        if self.poisoned || cut || self.claim.is_some() || self.place_of(cleaned).is_none() {
            return false;
        }
        let (from, to) = cleaned.range();
        self.claim = Some(Claim { from, to });
        true
    }

    /// Whether segments that were written anew are about to be put in place.
    pub fn is_claimed(&self) -> bool {
        self.claim.is_some()
    }

    /// The segments will not be put in place after all.
    pub fn unclaim(&mut self) {
        if let Some(claim) = self.claim.take() {
            self.forget_rewritten(&claim);
        }
    }

    /// Where in the list the segments stand, if they still do and none of them is being written.
    fn place_of(&self, cleaned: &Cleaned<D>) -> Option<usize> {
        let segments = self.segments();
        let first = cleaned.inputs.first()?;
        let at = segments.iter().position(|segment| Arc::ptr_eq(segment, first))?;
        let same = segments[at..].iter().zip(&cleaned.inputs).all(|(have, input)| Arc::ptr_eq(have, input));
        let closed = segments.get(at + cleaned.inputs.len()).is_some_and(|next| next.base() == cleaned.next);
        (same && closed).then_some(at)
    }

    /// Puts claimed and committed segments in place. Readers that are at the old ones go on with their files.
    /// `None` when a cut ended the claim.
    pub fn swap(&mut self, cleaned: Cleaned<D>) -> Result<Option<Replaced<D>>, StorageError> {
        let (from, to) = cleaned.range();
        let claimed = self.claim == Some(Claim { from, to }) && cleaned.committed;
        let Some(at) = self.place_of(&cleaned).filter(|_| claimed && !self.poisoned) else {
            return Ok(None);
        };
        self.claim = None;
        let count = cleaned.inputs.len();
        for (input, kept) in cleaned.inputs.iter().zip(cleaned.kept) {
            input.keep_files(kept);
        }
        let files = match take_place(self.disk(), self.folder(), from, &bases(&cleaned.inputs[1..])) {
            Ok(files) => files,
            Err(error) => {
                // Half in place: the next open brings the rest.
                self.poisoned = true;
                return Err(error);
            }
        };
        let mut segments = self.segments().as_ref().clone();
        let before: u64 = cleaned.inputs.iter().map(|segment| segment.size()).sum();
        segments.splice(at..at + count, [cleaned.output.clone()]);
        let shared = &self.shared;
        shared.segments.store(Arc::new(segments));
        shared.bytes.fetch_add(cleaned.output.size(), Ordering::Relaxed);
        shared.bytes.fetch_sub(before, Ordering::Relaxed);
        // What is remembered of recent batches may be gone from the log.
        shared.tail.drop_below(shared.home.dir.tail(), to);
        Ok(Some(Replaced { home: shared.home.clone(), files, seal: cleaned.seal, output: cleaned.output }))
    }

    /// Notes how far a round came. Returns the content of the file that says so, for
    /// [`crate::LogReader::note_compaction`].
    pub fn compacted(&mut self, summary: &Summary) -> Option<String> {
        let end = summary.end.min(self.end);
        self.progress = Progress { end, again_at: summary.again_at };
        checkpoint::format(&self.progress, &self.generations)
    }

    /// The log was cut at `end`.
    pub(super) fn cut_compaction(&mut self, end: Offset) {
        self.progress.end = self.progress.end.min(end);
        self.decided.cut(end);
        if let Some(claim) = self.claim.take_if(|claim| claim.to > end) {
            self.forget_rewritten(&claim);
        }
    }

    /// What was written anew must not come back with the next open. First the name that a commit starts
    /// from, then the one it leads to.
    fn forget_rewritten(&self, claim: &Claim) {
        output::discard(self.disk(), self.folder(), claim.from);
        let swap = output::swap(&layout::file_path(self.folder(), claim.from, Kind::Log));
        let _ = self.disk().remove_file(&swap);
    }

    /// How far compaction was, as the file says.
    pub(super) fn load_progress(&mut self, recovered: &Recovered) {
        let path = self.folder().join(checkpoint::NAME);
        let content = disk::read_whole(self.disk(), &path, SIDE_FILE_LIMIT).unwrap_or_default();
        let known = checkpoint::parse(&String::from_utf8_lossy(&content), &self.generations, self.end);
        self.progress = known.unwrap_or(Progress { end: recovered.log_start.max(0), again_at: None });
    }
}

#[cfg(test)]
impl<D: Disk> Log<D> {
    /// Rounds have been through everything below, as far as it is remembered.
    pub(crate) fn compacted_until(&self) -> Offset {
        self.progress.end
    }
}

fn bases<D: Disk>(segments: &[Arc<crate::segment::Segment<D>>]) -> Vec<Offset> {
    segments.iter().map(|segment| segment.base()).collect()
}

/// Gives a committed segment its place: its side files get their names, the segments that it replaces beside
/// the first (`others`) lose theirs, and last it takes the first one's name. May be repeated from any state that
/// a crash leaves. Returns files that are left to remove.
pub(super) fn take_place<D: Disk>(
    disk: &D,
    folder: &std::path::Path,
    base: Offset,
    others: &[Offset],
) -> Result<Vec<std::path::PathBuf>, StorageError> {
    let mut left = Vec::new();
    let gone = |path: &std::path::Path, outcome: std::io::Result<()>| match outcome {
        Err(error) if error.kind() != std::io::ErrorKind::NotFound => {
            Err(StorageError::io("replace", path, error))
        }
        Ok(()) | Err(_) => Ok(()),
    };
    for kind in [Kind::Index, Kind::TimeIndex, Kind::TxnIndex] {
        let path = layout::file_path(folder, base, kind);
        match disk.rename(&output::cleaned(&path), &path) {
            // A folder in a side file's place is nobody's.
            Err(error)
                if matches!(
                    error.kind(),
                    std::io::ErrorKind::IsADirectory | std::io::ErrorKind::DirectoryNotEmpty
                ) =>
            {
                disk.remove_dir_all(&path).doing("remove", &path)?;
                gone(&path, disk.rename(&output::cleaned(&path), &path))?;
            }
            outcome => gone(&path, outcome)?,
        }
    }
    for other in others {
        for kind in [Kind::Index, Kind::TimeIndex, Kind::TxnIndex, Kind::Snapshot, Kind::Seal] {
            let path = layout::file_path(folder, *other, kind);
            // One that cannot be removed belongs to nothing, and an open passes it over.
            let _ = disk.remove_file(&path);
        }
        let path = layout::file_path(folder, *other, Kind::Log);
        let deleted = output::with_ending(&path, layout::DELETED);
        gone(&path, disk.rename(&path, &deleted))?;
        left.push(deleted);
    }
    // Names may reach the disk in any order, and once the last one has its place nothing tells of the others: one
    // that came back then would overlap.
    disk.sync_dir(folder).doing("flush", folder)?;
    let path = layout::file_path(folder, base, Kind::Log);
    gone(&path, disk.rename(&output::swap(&path), &path))?;
    Ok(left)
}
