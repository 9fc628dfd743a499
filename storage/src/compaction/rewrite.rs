//! A round: notes the newest offset of each key, then writes the segments anew.

use std::collections::VecDeque;
use std::sync::Arc;

use felix_protocol::batch::thin::{Selection, ThinError, emptied, placeholder, thinned};
use felix_protocol::batch::{BatchHeader, CheckedBatch, Limits, Record};
use felix_protocol::ids::Offset;
use felix_protocol::time::WallTime;

use super::plan::{Compaction, LastOfProducer};
use super::transactions::{Standing, Transactions};
use super::{CompactionError, OffsetMap, Pace};
use crate::disk::Disk;
use crate::error::{Doing, ReadError, StorageError};
use crate::index::txn::AbortedTransaction;
use crate::layout::{self, Kind};
use crate::seal::{self, marks::Sealed};
use crate::segment::Segment;
use crate::segment::output::{self, Kept, Output};
use crate::segment::walk::{Step, Walk};

/// What a round did.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq)]
pub struct Summary {
    /// Below this offset everything has been through a round.
    pub end: Offset,
    /// From this time on another round would free something although nothing new is written.
    pub again_at: Option<i64>,
    /// The map was full: the rest of the dirty part needs another round.
    pub map_was_full: bool,
    /// Keys in the dirty part.
    pub keys: usize,
    /// Bytes that the map took.
    pub map_bytes: usize,
    /// Bytes of batches read, both times.
    pub read_bytes: u64,
    /// Bytes of the segments before.
    pub before_bytes: u64,
    /// And after.
    pub after_bytes: u64,
    /// Records before.
    pub before_records: u64,
    /// And after.
    pub after_records: u64,
    /// Records without a key that went: nobody could ever replace them.
    pub keyless: u64,
}

/// A round under way.
pub struct Round<'m, D: Disk> {
    plan: Compaction<D>,
    map: &'m OffsetMap,
    now: WallTime,
    buffer_bytes: usize,
    groups: VecDeque<std::ops::Range<usize>>,
    transactions: Transactions,
    /// Whether the transactions were told of any segment yet.
    told: bool,
    /// Batches of aborted transactions went.
    aborted_went: bool,
    summary: Summary,
}

/// Segments that were written anew as one, not in their places yet.
pub struct Cleaned<D: Disk> {
    pub(crate) inputs: Vec<Arc<Segment<D>>>,
    pub(crate) output: Arc<Segment<D>>,
    /// Where they end.
    pub(crate) next: Offset,
    /// How often the log had been cut.
    pub(crate) cuts: u64,
    pub(crate) seal: Sealed,
    pub(crate) kept: Vec<Kept<D::File>>,
    pub(crate) committed: bool,
}

impl<D: Disk> Compaction<D> {
    /// Reads the dirty part into `map` and begins to write the segments anew, with buffers of `buffer_bytes`.
    pub fn begin<'m>(
        self,
        map: &'m mut OffsetMap,
        now: WallTime,
        buffer_bytes: usize,
        pace: &mut Pace<'_>,
    ) -> Result<Round<'m, D>, CompactionError> {
        let from = self.progress.end;
        let mut summary = Summary { end: self.until.max(from), ..Summary::default() };
        if from < self.until {
            map.start((self.until - from).unsigned_abs());
            if map.is_useless() {
                return Err(CompactionError::NoMemory);
            }
            if let Some(full_at) = self.note_keys(map, &mut summary, pace)? {
                (summary.end, summary.map_was_full) = (full_at, true);
            }
        } else {
            map.clear();
        }
        (summary.keys, summary.map_bytes) = (map.len(), map.memory());
        let groups = self.groups(summary.end).into();
        let transactions = Transactions::default();
        Ok(Round {
            plan: self,
            map,
            now,
            buffer_bytes,
            groups,
            transactions,
            told: false,
            aborted_went: false,
            summary,
        })
    }

    /// Returns the first offset whose key did not fit.
    fn note_keys(
        &self,
        map: &mut OffsetMap,
        summary: &mut Summary,
        pace: &mut Pace<'_>,
    ) -> Result<Option<Offset>, CompactionError> {
        let from = self.progress.end;
        let mut transactions = Transactions::default();
        let mut told = false;
        for at in 0..self.segments.len() {
            let segment = &self.segments[at];
            if self.next_of(at) <= from {
                continue;
            }
            // The state of transactions is needed from the beginning of the segment on, and of those that began
            // before only whether they were aborted.
            transactions.expect(self.aborted_from(at, &mut told)?);
            let mut full_at = None;
            walk(segment, pace, |step, batch| {
                let header = &step.header;
                summary.read_bytes += header.bytes as u64;
                let (standing, _) = transactions.take(header, batch);
                if header.last_offset() < from || header.is_control() || standing != Standing::Counts {
                    return Ok(Some(0));
                }
                let limits = Limits::for_packed(header.bytes);
                let seen = Selection::of(header, batch, limits, |offset, record| {
                    if let Some(key) = record.key
                        && offset >= from
                        && full_at.is_none()
                        && !map.put(key, offset)
                    {
                        full_at = Some(offset);
                    }
                    false
                });
                seen.map_err(|fault| unreadable(segment, step, fault.to_string()))?;
                Ok(full_at.is_none().then_some(0))
            })?;
            if full_at.is_some() {
                return Ok(full_at);
            }
        }
        Ok(None)
    }

    /// Aborted transactions that begin in a segment; for the first one of which anything is `told`, also those that began
    /// before it.
    fn aborted_from(&self, at: usize, told: &mut bool) -> Result<Vec<AbortedTransaction>, CompactionError> {
        let (base, next) = (self.segments[at].base(), self.next_of(at));
        // Below the log start there is nothing that anybody reads. It may have moved beyond the first segments by now: what began
        // in them and goes on is told with the next one.
        let from = base.max(self.reader.start());
        if from >= next {
            return Ok(Vec::new());
        }
        let mut entries = self.reader.aborted(from, next)?;
        // A cut may have taken a marker, and what it decided is open again.
        if self.reader.cuts() != self.cuts {
            return Err(CompactionError::Changed);
        }
        entries.retain(|entry| !*told || entry.first_offset >= base);
        *told = true;
        Ok(entries)
    }
}

impl<D: Disk> Round<'_, D> {
    /// Writes the next neighbours anew that change; `None` when the round is done.
    pub fn next_group(&mut self, pace: &mut Pace<'_>) -> Result<Option<Cleaned<D>>, CompactionError> {
        while let Some(group) = self.groups.pop_front() {
            if self.plan.reader.is_gone() {
                return Err(CompactionError::Changed);
            }
            if let Some(cleaned) = self.write_group(group, pace)? {
                return Ok(Some(cleaned));
            }
        }
        Ok(None)
    }

    /// What was done.
    pub fn summary(&self) -> Summary {
        self.summary
    }

    fn write_group(
        &mut self,
        group: std::ops::Range<usize>,
        pace: &mut Pace<'_>,
    ) -> Result<Option<Cleaned<D>>, CompactionError> {
        let inputs = self.plan.segments[group.clone()].to_vec();
        let mut output = Output::new(&inputs[0], inputs.len() == 1, self.buffer_bytes);
        let written = self.write_inputs(group.clone(), &mut output, pace);
        if let Err(error) = written {
            output.discard();
            return Err(error);
        }
        let modified = self.plan.modified(&self.plan.segments[group.end - 1])?;
        let base = inputs[0].base();
        let before: u64 = inputs.iter().map(|segment| segment.size()).sum();
        self.summary.before_bytes += before;
        let discard = || {
            let home = &self.plan.reader;
            output::discard(home.dir().disk(), home.folder(), base);
        };
        let finished = output.finish(modified).inspect_err(|_| discard())?;
        let Some(segment) = finished.segment else {
            self.summary.after_bytes += before;
            return Ok(None);
        };
        self.summary.after_bytes += segment.size();
        let mut kept = Vec::with_capacity(inputs.len());
        for input in &inputs {
            let aborted = input.aborted()?.unwrap_or_default();
            kept.push(input.open_to_keep(aborted).inspect_err(|_| discard())?);
        }
        Ok(Some(Cleaned {
            inputs,
            output: Arc::new(segment),
            next: self.plan.next_of(group.end - 1),
            cuts: self.plan.cuts,
            seal: finished.seal,
            kept,
            committed: false,
        }))
    }

    fn write_inputs(
        &mut self,
        group: std::ops::Range<usize>,
        output: &mut Output<D>,
        pace: &mut Pace<'_>,
    ) -> Result<(), CompactionError> {
        for at in group.clone() {
            let segment = self.plan.segments[at].clone();
            let entries = self.plan.aborted_from(at, &mut self.told)?;
            self.transactions.expect(entries);
            let size = segment.size();
            walk(&segment, pace, |step, batch| {
                let is_last = at + 1 == group.end && step.end() == size;
                match self.judge(&segment, step, batch, is_last, output)? {
                    Fate::Stays => {
                        output.keep(&step.header, batch)?;
                        Ok(Some(batch.len()))
                    }
                    Fate::Changes(changed) => {
                        output.replace(changed.header(), changed.bytes())?;
                        Ok(Some(changed.bytes().len()))
                    }
                    Fate::Goes => output.part().map(|()| Some(0)).map_err(CompactionError::from),
                }
            })?;
        }
        Ok(())
    }

    fn judge(
        &mut self,
        segment: &Segment<D>,
        step: &Step,
        batch: &[u8],
        is_last: bool,
        output: &mut Output<D>,
    ) -> Result<Fate, CompactionError> {
        let header = &step.header;
        self.summary.read_bytes += header.bytes as u64;
        self.summary.before_records += u64::from(header.records.unsigned_abs());
        let (standing, entry) = self.transactions.take(header, batch);
        let marks_aborted = entry.is_some();
        if let Some(entry) = entry {
            output.keep_aborted(entry);
        }
        let over = header.has_delete_horizon() && header.base_timestamp <= self.now.0;
        let fault = |fault: ThinError| CompactionError::from(unreadable(segment, step, fault.to_string()));
        let limits = Limits::for_packed(header.bytes);
        let (end, map) = (self.summary.end, self.map);
        let mut tombstones = false;
        let mut keyless = 0;
        let selection = match standing {
            Standing::Aborted => Selection::nothing(header),
            Standing::Spent if over => Selection::nothing(header),
            Standing::Counts | Standing::Spent if header.is_control() => {
                Selection::of(header, batch, limits, |_, _| true).map_err(|found| fault(found.into()))?
            }
            Standing::Counts | Standing::Spent => {
                let stays = |offset: Offset, record: &Record<'_>| {
                    if offset >= end {
                        return true;
                    }
                    let Some(key) = record.key else {
                        keyless += 1;
                        return false;
                    };
                    let newest = map.get(key).is_none_or(|newest| offset >= newest);
                    let stays = newest && (record.value.is_some() || !over);
                    tombstones |= stays && record.value.is_none();
                    stays
                };
                Selection::of(header, batch, limits, stays).map_err(|found| fault(found.into()))?
            }
        };
        self.summary.keyless += keyless;
        self.summary.after_records += u64::from(selection.kept.unsigned_abs());
        if selection.kept == 0 {
            let fate = self.without_records(header, is_last).map_err(|error| fault(error.into()))?;
            self.aborted_went |= standing == Standing::Aborted && !matches!(fate, Fate::Stays);
            return Ok(fate);
        }
        if marks_aborted && self.aborted_went {
            // In this very round records went that kept the marker.
            self.look_again(self.now.0.saturating_add(self.plan.config.delete_retention_ms));
        }
        let horizon = (tombstones || standing == Standing::Spent)
            .then(|| self.now.0.saturating_add(self.plan.config.delete_retention_ms))
            .filter(|_| !header.has_delete_horizon());
        let waits = (tombstones || standing == Standing::Spent) && header.has_delete_horizon();
        if let Some(at) = horizon.or_else(|| waits.then_some(header.base_timestamp)) {
            self.look_again(at);
        }
        if selection.is_whole() && horizon.is_none() {
            return Ok(Fate::Stays);
        }
        thinned(header, batch, limits, &selection, horizon).map(Fate::Changes).map_err(fault)
    }

    /// A batch whose records are gone stays where it carries what must not be forgotten.
    fn without_records(
        &self,
        header: &BatchHeader,
        is_last: bool,
    ) -> Result<Fate, felix_protocol::batch::build::BuildError> {
        let last_of_producer = match self.plan.last.get(&header.producer_id) {
            Some(LastOfProducer::Batch(offset)) => header.last_offset() == *offset,
            Some(LastOfProducer::Marker(epoch)) => header.is_control() && header.producer_epoch == *epoch,
            None => false,
        };
        if last_of_producer {
            return if header.records == 0 { Ok(Fate::Stays) } else { emptied(header).map(Fate::Changes) };
        }
        let begins = self.plan.begins.range(header.base_offset..=header.last_offset()).next().is_some();
        if !(is_last || begins) {
            return Ok(Fate::Goes);
        }
        let bare = header.records == 0 && !header.has_producer();
        if bare { Ok(Fate::Stays) } else { placeholder(header).map(Fate::Changes) }
    }

    /// At `at` something may go although nothing new is written; the latest such time counts, so that one
    /// round does for all.
    fn look_again(&mut self, at: i64) {
        self.summary.again_at = Some(self.summary.again_at.map_or(at, |before| before.max(at)));
    }
}

/// What becomes of a batch.
enum Fate {
    Stays,
    Changes(CheckedBatch),
    Goes,
}

/// Reads a segment batch by batch, checksums checked, until `visit` says stop (`None`) rather than how many
/// bytes it wrote. Damage is never passed over.
fn walk<D: Disk>(
    segment: &Segment<D>,
    pace: &mut Pace<'_>,
    mut visit: impl FnMut(&Step, &[u8]) -> Result<Option<usize>, CompactionError>,
) -> Result<(), CompactionError> {
    /// Bytes between two looks at the clock.
    const PACED: u64 = 256 << 10;
    let file =
        segment.file().map_err(|error| ReadError::Io { path: segment.path(Kind::Log), source: error })?;
    let mut walk = Walk::new(&*file, 0, segment.size(), segment.base());
    let mut unpaced = 0;
    while let Some(step) = walk.next_checked().map_err(|broken| segment.of_walk(broken))? {
        unpaced += step.header.bytes as u64;
        if unpaced >= PACED && !pace(std::mem::take(&mut unpaced)) {
            return Err(CompactionError::Stopped);
        }
        let batch = walk.batch(&step).map_err(|broken| segment.of_walk(broken))?;
        let Some(written) = visit(&step, batch)? else { break };
        unpaced += written as u64;
    }
    if pace(unpaced) { Ok(()) } else { Err(CompactionError::Stopped) }
}

fn unreadable<D: Disk>(segment: &Segment<D>, step: &Step, fault: String) -> StorageError {
    let reason = format!("records cannot be read: {fault}");
    StorageError::Damaged(segment.damaged(step.position, step.header.base_offset, reason))
}

impl<D: Disk> Cleaned<D> {
    /// The offsets that they span.
    pub fn range(&self) -> (Offset, Offset) {
        (self.output.base(), self.next)
    }

    /// Bytes before and after.
    pub fn bytes(&self) -> (u64, u64) {
        (self.inputs.iter().map(|segment| segment.size()).sum(), self.output.size())
    }

    /// Makes the new file the one that counts after a crash, durably. The log has agreed
    /// ([`crate::Log::claim`]). Any thread may do this.
    pub fn commit(&mut self) -> Result<(), CompactionError> {
        let (disk, folder) = (self.output.dir().disk().clone(), self.output.folder().to_path_buf());
        // Names may reach the disk in any order. Without those of its side files, the new segment would be found
        // beside the old one's.
        disk.sync_dir(&folder).doing("flush", &folder)?;
        for input in &self.inputs {
            // An old seal beside new bytes would pass for damage.
            let path = input.path(Kind::Seal);
            input.discard_seal(true).doing("remove", &path)?;
        }
        let path = self.output.path(Kind::Log);
        match disk.rename(&output::cleaned(&path), &output::swap(&path)) {
            Err(error) if error.kind() == std::io::ErrorKind::NotFound => {
                return Err(CompactionError::Changed);
            }
            other => other.doing("rename", &path)?,
        }
        disk.sync_dir(&folder).doing("flush", &folder)?;
        self.committed = true;
        Ok(())
    }

    /// Gives it up before [`Cleaned::commit`].
    pub fn discard(self) {
        output::discard(self.output.dir().disk(), self.output.folder(), self.output.base());
    }
}

/// Files that have left the log.
pub struct Replaced<D: Disk> {
    pub(crate) home: Arc<crate::segment::Home<D>>,
    pub(crate) files: Vec<std::path::PathBuf>,
    pub(crate) seal: Sealed,
    pub(crate) output: Arc<Segment<D>>,
}

impl<D: Disk> Replaced<D> {
    /// Removes them, and seals the new segment. Any thread may do this; what is left goes at the next start.
    pub fn remove(self) -> Result<(), StorageError> {
        let disk = self.home.dir.disk();
        let given_up = self.home.given_up.lock();
        if *given_up {
            return Ok(());
        }
        for path in &self.files {
            match disk.remove_file(path) {
                Err(error) if error.kind() != std::io::ErrorKind::NotFound => {
                    return Err(StorageError::io("remove", path, error));
                }
                Ok(()) | Err(_) => {}
            }
        }
        if !self.output.is_replaced() {
            let base = self.seal.seal.base;
            let path = layout::file_path(&self.home.folder, base, Kind::Seal);
            match seal::write(disk, &self.home.folder, &self.seal.encode(), base) {
                Err(error) if error.kind() == std::io::ErrorKind::NotFound => {}
                other => other.doing("write", &path)?,
            }
        }
        Ok(())
    }
}
