//! One copy: its segments batch by batch, and every file beside them against the batches.

use std::collections::BTreeSet;
use std::path::{Path, PathBuf};

use felix_protocol::batch::BatchHeader;
use felix_protocol::generation_map::GenerationMap;
use felix_protocol::ids::{Offset, PartitionId};

use super::aborted::Aborted;
use super::indexes::Indexes;
use super::producers::Snapshots;
use super::{Report, Weight};
use crate::check::{Checker, Fault, Verdict};
use crate::data_dir::SIDE_FILE_LIMIT;
use crate::disk::{self, Disk, DiskFile, OpenMode};
use crate::error::{Doing, StorageError};
use crate::layout::{self, Kind};
use crate::replicas::Replica;
use crate::seal::{self, Found};
use crate::segment::walk::valid_batch_after;

/// Bytes fetched at once.
const CHUNK: usize = 1 << 20;

/// A copy that is looked through.
struct Copy<'a, 'r, D: Disk> {
    disk: &'a D,
    folder: PathBuf,
    row: Option<Replica>,
    report: &'a mut Report<'r>,
    /// The generation map's file, until a batch has contradicted it.
    map: Option<GenerationMap>,
    snapshots: Snapshots,
    aborted: Aborted,
    /// One past the last offset that is there.
    end: Offset,
    /// Where offsets are missing by right.
    gaps: bool,
    /// Every batch was read.
    whole: bool,
}

/// Checks one copy of `dir`, of which the table of copies says `row`.
pub(super) fn check<D: Disk>(
    disk: &D,
    dir: &Path,
    partition: PartitionId,
    row: Option<&Replica>,
    report: &mut Report<'_>,
) -> Result<(), StorageError> {
    let folder = dir.join(partition.to_string());
    report.summary.partitions += 1;
    let mut bases = Vec::new();
    let mut beside = Vec::new();
    for entry in disk.read_dir(&folder).doing("list", &folder)? {
        match layout::parse_file_name(&entry.name) {
            Some(_) if entry.is_dir => {
                report.find(Weight::Wrong, &folder.join(&entry.name), None, "a folder in a file's place");
            }
            Some((base, Kind::Log)) => bases.push(base),
            Some(named) => beside.push(named),
            None => {}
        }
    }
    bases.sort_unstable();
    beside.sort_unstable();
    metadata(disk, &folder, partition, report);
    for (base, kind) in &beside {
        if *kind != Kind::Snapshot && bases.binary_search(base).is_err() {
            let path = layout::file_path(&folder, *base, *kind);
            report.find(Weight::Note, &path, None, "it belongs to no segment");
        }
    }
    let snapshots: Vec<Offset> =
        beside.iter().filter(|(_, kind)| *kind == Kind::Snapshot).map(|(at, _)| *at).collect();
    let start = bases.first().copied().unwrap_or(0);
    let map = map(disk, &folder, report);
    let expected = Snapshots::read(disk, &folder, &snapshots, start, report);
    if row.is_none() {
        report.find(
            Weight::Note,
            &folder,
            None,
            "the table of copies does not know it: nothing was promised",
        );
    }
    let aborted = Aborted::new(disk, &folder, start);
    let mut copy = Copy {
        disk,
        folder,
        row: row.copied(),
        report,
        map,
        snapshots: expected,
        aborted,
        end: start,
        gaps: false,
        whole: true,
    };
    for (at, base) in bases.iter().enumerate() {
        copy.segment(*base, bases.get(at + 1).copied())?;
    }
    copy.promises(&bases);
    copy.finish(&snapshots);
    Ok(())
}

fn metadata<D: Disk>(disk: &D, folder: &Path, partition: PartitionId, report: &mut Report<'_>) {
    let path = folder.join(layout::PARTITION_METADATA);
    match disk::read_whole(disk, &path, SIDE_FILE_LIMIT) {
        Ok(content) => match layout::parse_partition_metadata(&String::from_utf8_lossy(&content)) {
            Some(topic) if topic == partition.topic => {}
            Some(topic) => {
                report.find(
                    Weight::Wrong,
                    &path,
                    None,
                    format!("it names topic {topic}, the folder another"),
                );
            }
            None => report.find(Weight::Wrong, &path, None, "it names no topic"),
        },
        Err(error) => report.find(Weight::Note, &path, None, format!("it cannot be read: {error}")),
    }
}

fn map<D: Disk>(disk: &D, folder: &Path, report: &mut Report<'_>) -> Option<GenerationMap> {
    let path = folder.join(layout::EPOCH_CHECKPOINT);
    match disk::read_whole(disk, &path, SIDE_FILE_LIMIT) {
        Ok(content) => {
            let map = layout::parse_epoch_checkpoint(&String::from_utf8_lossy(&content));
            if map.is_none() {
                report.find(Weight::Wrong, &path, None, "it is no list of rising generations and offsets");
            }
            map
        }
        // A log that no generation has written to yet has none.
        Err(error) if error.kind() == std::io::ErrorKind::NotFound => None,
        Err(error) => {
            report.find(Weight::Wrong, &path, None, format!("it cannot be read: {error}"));
            None
        }
    }
}

/// The bytes of a control batch. One that is far larger than a marker tells nothing of transactions.
fn control<F: DiskFile>(file: &F, position: u64, header: &BatchHeader) -> std::io::Result<Option<Vec<u8>>> {
    const MOST: usize = 4 << 10;
    if !header.is_control() {
        return Ok(None);
    }
    disk::read_up_to(file, header.bytes.min(MOST), position).map(Some)
}

impl<D: Disk> Copy<'_, '_, D> {
    fn is_clean(&self) -> bool {
        self.row.is_some_and(|row| row.clean)
    }

    /// Whether a segment that ends at `until` lies wholly below the log start.
    fn has_left(&self, until: Option<Offset>) -> bool {
        until.is_some_and(|until| self.row.is_some_and(|row| until <= row.log_start))
    }

    fn promised(&self) -> Offset {
        self.row.map_or(0, |row| row.mark.max(row.synced))
    }

    fn segment(&mut self, base: Offset, until: Option<Offset>) -> Result<(), StorageError> {
        let path = layout::file_path(&self.folder, base, Kind::Log);
        let file = self.disk.open(&path, OpenMode::Read).doing("open", &path)?;
        let size = file.len().doing("look at", &path)?;
        self.report.summary.segments += 1;
        let beside = |kind| layout::file_path(&self.folder, base, kind);
        let mut indexes = Indexes::read(self.disk, beside(Kind::Index), beside(Kind::TimeIndex), base);
        let found = seal::read(self.disk, &self.folder, base);
        let mut checker = Checker::new(base, until);
        let outcome = self.read(&path, &file, size, &mut checker, &mut indexes)?;
        self.end = checker.next();
        self.report.summary.batches += checker.batches();
        self.report.summary.bytes += checker.size();
        // What the last segment's files say is believed only after a clean stop; what those of a segment say that
        // has left the log, never.
        let counts = !self.has_left(until) && (until.is_some() || self.is_clean());
        let weight = if counts { Weight::Wrong } else { Weight::Note };
        let whole = outcome.is_ok();
        match outcome {
            Ok(()) => self.sealing(&path, &checker, &found, until, size),
            Err(fault) => self.broken(&path, &file, size, until, fault)?,
        }
        indexes.finish(whole, counts && size > 0, weight, self.report);
        if whole {
            self.aborted.finish(self.disk, &self.folder, base, self.gaps, weight, self.report);
        } else {
            self.aborted.lose_track();
        }
        Ok(())
    }

    /// Reads all batches of a segment, as far as they hold together.
    fn read(
        &mut self,
        path: &Path,
        file: &D::File,
        size: u64,
        checker: &mut Checker,
        indexes: &mut Indexes,
    ) -> Result<Result<(), Fault>, StorageError> {
        let mut buf = Vec::with_capacity(CHUNK);
        while checker.size() < size {
            buf.clear();
            let want = usize::try_from(size - checker.size()).unwrap_or(CHUNK).min(CHUNK);
            if file.read_at(&mut buf, want, checker.size()).doing("read", path)? == 0 {
                break;
            }
            let mut unread = None;
            let fed = checker.feed(&buf, &mut |position, header| {
                indexes.see(position, header);
                self.snapshots.see(header, self.report);
                self.generation(header);
                match control(file, position, header) {
                    Ok(control) => self.aborted.see(header, control.as_deref()),
                    Err(error) => unread = Some(error),
                }
            });
            if let Some(error) = unread {
                return Err(error).doing("read", path);
            }
            if fed.is_err() {
                return Ok(fed);
            }
        }
        Ok(checker.finish())
    }

    /// Whether the map says of a batch what the batch says itself; the first contradiction is told.
    fn generation(&mut self, header: &BatchHeader) {
        let Some(map) = &self.map else { return };
        let (start, synced, clean) =
            self.row.map_or((0, 0, false), |row| (row.log_start, row.synced, row.clean));
        // Below the log start the map has forgotten, above what was flushed it may not know yet.
        if header.base_offset < start || !clean && header.base_offset >= synced {
            return;
        }
        let said = map.generation_at(header.base_offset);
        if said != header.generation {
            let word = |generation: Option<felix_protocol::ids::Generation>| {
                generation.map_or_else(|| "none".to_string(), |generation| generation.to_string())
            };
            let (offset, said, found) = (header.base_offset, word(said), word(header.generation));
            let path = self.folder.join(layout::EPOCH_CHECKPOINT);
            self.report.find(
                Weight::Wrong,
                &path,
                None,
                format!("offset {offset} is of generation {found} in the log, of {said} here"),
            );
            self.map = None;
        }
    }

    /// Every batch of a segment is right: whether it is as it was sealed.
    fn sealing(&mut self, path: &Path, checker: &Checker, found: &Found, until: Option<Offset>, size: u64) {
        let seal_path = path.with_extension("seal");
        let sealed = match found {
            Found::Seal(seal) => Some(*seal),
            Found::Missing | Found::Bad(_) => None,
        };
        let gaps = sealed.map_or(checker.has_gaps(), |seal| seal.gaps);
        self.gaps |= gaps;
        if until.is_none() {
            // Only the seal of a clean stop says anything of a segment that is written to.
            let Some(seal) = sealed.filter(|seal| seal.open && seal.size == size && self.is_clean()) else {
                return;
            };
            if let Verdict::Damaged(fault) = checker.judge(&Found::Seal(seal)) {
                self.damaged(path, fault);
            }
            return;
        }
        match checker.judge(found) {
            Verdict::Sealed => {}
            Verdict::Unsealed => self.report.find(
                Weight::Note,
                &seal_path,
                None,
                "the segment is closed and not sealed yet; a running broker does that after a look through it",
            ),
            Verdict::BadSeal(why) => self.report.find(
                Weight::Wrong,
                &seal_path,
                None,
                format!("{why}; every batch is right, and a running broker makes the seal anew"),
            ),
            Verdict::Damaged(fault) => self.damaged(path, fault),
        }
        // Segments that have left the log go in any order.
        if let Some((next, until)) = checker.hole().filter(|_| !gaps && !self.has_left(until)) {
            let meaning = format!("offsets {next} to {until} are missing before the next segment");
            self.report.find(Weight::Damage, path, Some(size), meaning);
        }
    }

    fn damaged(&mut self, path: &Path, fault: Fault) {
        let Fault { position, offset, reason } = fault;
        self.whole = false;
        let meaning = format!("records from offset {offset} on cannot be trusted: {reason}");
        self.report.find(Weight::Damage, path, Some(position), meaning);
    }

    /// Batches end before the file does: damage, or a tail that a crash tore.
    fn broken(
        &mut self,
        path: &Path,
        file: &D::File,
        size: u64,
        until: Option<Offset>,
        fault: Fault,
    ) -> Result<(), StorageError> {
        self.end = fault.offset;
        let torn = until.is_none()
            && fault.offset >= self.promised()
            && valid_batch_after(file, fault.position + 1, size, fault.offset).doing("read", path)?.is_none();
        if torn {
            let meaning = format!(
                "a torn tail, which the next start cuts at offset {}: {}",
                fault.offset, fault.reason
            );
            self.report.find(Weight::Note, path, Some(fault.position), meaning);
        } else {
            self.damaged(path, fault);
        }
        Ok(())
    }

    /// Whether everything is there that the table of copies promises.
    fn promises(&mut self, bases: &[Offset]) {
        let Some(row) = self.row else { return };
        let promised = self.promised();
        let first = bases.first().copied();
        let folder = self.folder.clone();
        if let Some(first) = first.filter(|first| *first > row.log_start) {
            let start = row.log_start;
            let meaning = format!("offsets {start} to {first} are missing: no segment holds them");
            self.report.find(Weight::Damage, &folder, None, meaning);
        }
        if self.end < promised && promised > row.log_start && self.whole {
            let end = self.end;
            let path = match bases.last() {
                Some(base) => layout::file_path(&folder, *base, Kind::Log),
                None => folder,
            };
            let meaning = format!("the log ends at offset {end}, {promised} was promised");
            self.report.find(Weight::Damage, &path, None, meaning);
        }
    }

    fn finish(self, snapshots: &[Offset]) {
        let weight = if self.is_clean() { Weight::Wrong } else { Weight::Note };
        for beyond in snapshots.iter().filter(|at| **at > self.end && self.whole).collect::<BTreeSet<_>>() {
            let path = layout::file_path(&self.folder, *beyond, Kind::Snapshot);
            self.report.find(weight, &path, None, format!("the log ends at offset {}", self.end));
        }
        if self.whole {
            self.snapshots.finish(self.end, self.gaps, self.report);
        }
    }
}
