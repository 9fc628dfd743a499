//! Compares the copies of partitions in several directories below their marks: what has the same generation
//! and offset must be the same bytes. The first difference of each pair of copies is told.
//!
//! Every copy is held against every other one: of three, one may be new, with nothing below its mark yet, and the other two must
//! be the same all the same.

use std::collections::BTreeSet;
use std::fmt;
use std::path::{Path, PathBuf};

use felix_protocol::batch::{BatchHeader, HEADER_BYTES};
use felix_protocol::ids::{Offset, PartitionId};

use super::{Report, Summary, Weight, table};
use crate::disk::{Disk, DiskFile, OpenMode, read_up_to};
use crate::error::{Doing, StorageError};
use crate::layout::{self, Kind};
use crate::replicas::Replica;
use crate::seal::{self, Found};
use crate::segment::walk::has_sound_offsets;

/// What was compared.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq)]
pub struct Comparison {
    /// Partitions with more than one copy.
    pub partitions: u64,
    /// Their copies.
    pub copies: u64,
    /// Pairs of copies that were held against each other.
    pub pairs: u64,
    /// Pairs of batches that were.
    pub batches: u64,
    /// Their bytes, those of one copy each.
    pub bytes: u64,
    /// Batches of those copies above their own mark: nobody has promised them, and they may differ.
    pub above: u64,
    /// Pairs of copies that differ.
    pub different: u64,
}

impl Comparison {
    /// Whether no copies differ.
    pub fn is_good(&self) -> bool {
        self.different == 0
    }
}

impl fmt::Display for Comparison {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        write!(
            f,
            "{} partitions in {} copies, {} batches and {} bytes below the marks of {} pairs: {} pairs differ; {} batches lie above \
             a mark",
            self.partitions, self.copies, self.batches, self.bytes, self.pairs, self.different, self.above
        )
    }
}

/// A copy: its directory, and its row there.
type Copy<'a> = (&'a Path, Replica);

/// Compares every partition that lies in more than one of `dirs`. Whether each copy is sound in itself,
/// [`super::verify`] says.
pub fn compare<D: Disk>(
    disk: &D,
    dirs: &[PathBuf],
    tell: &mut dyn FnMut(&super::Finding),
) -> Result<Comparison, StorageError> {
    let mut report = Report { summary: Summary::default(), tell };
    let mut rows = Vec::with_capacity(dirs.len());
    for dir in dirs {
        // Its own findings were told when the directory was checked.
        let mut silent = Report { summary: Summary::default(), tell: &mut |_| {} };
        rows.push((dir.as_path(), table(disk, dir, &mut silent)?));
    }
    let mut compared = Comparison::default();
    let partitions: BTreeSet<PartitionId> = rows.iter().flat_map(|(_, rows)| rows.keys().copied()).collect();
    for partition in partitions {
        let copies: Vec<Copy<'_>> =
            rows.iter().filter_map(|(dir, rows)| Some((*dir, *rows.get(&partition)?))).collect();
        if copies.len() < 2 {
            continue;
        }
        compared.partitions += 1;
        compared.copies += copies.len() as u64;
        for (dir, row) in &copies {
            let mut cursor = Cursor::open(disk, dir, partition, row)?;
            while let Some(batch) = cursor.next()? {
                compared.above += u64::from(batch.header.base_offset >= row.mark);
            }
        }
        for (at, (first, of_first)) in copies.iter().enumerate() {
            for (other, of_other) in &copies[at + 1..] {
                let mut left = Cursor::open(disk, first, partition, of_first)?;
                let mut right = Cursor::open(disk, other, partition, of_other)?;
                let range = (of_first.log_start.max(of_other.log_start), of_first.mark.min(of_other.mark));
                difference(&mut left, &mut right, range, &mut report)?;
                compared.pairs += 1;
            }
        }
    }
    let Summary { batches, bytes, findings, .. } = report.summary;
    Ok(Comparison { batches, bytes, different: findings.iter().sum(), ..compared })
}

/// Goes through both copies from the first offset that both must have up to the lower mark.
fn difference<D: Disk>(
    left: &mut Cursor<'_, D>,
    right: &mut Cursor<'_, D>,
    (start, mark): (Offset, Offset),
    report: &mut Report<'_>,
) -> Result<(), StorageError> {
    let (mut a, mut b) = (left.next_from(start)?, right.next_from(start)?);
    loop {
        let below =
            |found: &Option<Batch>| found.as_ref().filter(|found| found.header.base_offset < mark).copied();
        let (x, y) = match (below(&a), below(&b)) {
            (None, None) => return Ok(()),
            (Some(x), Some(y)) => (x, y),
            (Some(_), None) if right.compacted => {
                a = left.next()?;
                continue;
            }
            (None, Some(_)) if left.compacted => {
                b = right.next()?;
                continue;
            }
            (Some(x), None) => return lacks(left, right, &x, report),
            (None, Some(y)) => return lacks(right, left, &y, report),
        };
        let (at, other) = (x.header.base_offset, y.header.base_offset);
        let compacted = left.compacted || right.compacted;
        // A compacted copy may lack any batch, and hold a shorter one in its place.
        if at < other {
            if !compacted {
                return lacks(left, right, &x, report);
            }
            a = left.next()?;
            continue;
        }
        if other < at {
            if !compacted {
                return lacks(right, left, &y, report);
            }
            b = right.next()?;
            continue;
        }
        report.summary.batches += 1;
        report.summary.bytes += x.header.bytes as u64;
        if x.header.generation != y.header.generation {
            let word = |header: &BatchHeader| {
                header.generation.map_or_else(|| "none".to_string(), |generation| generation.to_string())
            };
            let (mine, theirs) = (word(&x.header), word(&y.header));
            let meaning = format!(
                "offset {at} is of generation {mine}, and of generation {theirs} in {}: the copies have parted",
                right.path().display()
            );
            report.find(Weight::Damage, &left.path(), Some(x.position), meaning);
            return Ok(());
        }
        if !compacted && !same(&x.header, &y.header) {
            let meaning = format!(
                "the batch of offset {at} has checksum {:#010x} and {} bytes; in {}, at byte {}, {:#010x} and {}",
                x.header.crc,
                x.header.bytes,
                right.path().display(),
                y.position,
                y.header.crc,
                y.header.bytes
            );
            report.find(Weight::Damage, &left.path(), Some(x.position), meaning);
            return Ok(());
        }
        (a, b) = (left.next()?, right.next()?);
    }
}

fn same(one: &BatchHeader, other: &BatchHeader) -> bool {
    one.crc == other.crc && one.bytes == other.bytes && one.last_offset_delta == other.last_offset_delta
}

fn lacks<D: Disk>(
    has: &Cursor<'_, D>,
    lacks: &Cursor<'_, D>,
    found: &Batch,
    report: &mut Report<'_>,
) -> Result<(), StorageError> {
    let offset = found.header.base_offset;
    let meaning = format!("a batch of offset {offset} stands here; {} has none", lacks.folder.display());
    report.find(Weight::Damage, &has.path(), Some(found.position), meaning);
    Ok(())
}

/// A batch, and where it stands in the cursor's segment.
#[derive(Clone, Copy)]
struct Batch {
    position: u64,
    header: BatchHeader,
}

/// Goes over the headers of a copy's batches.
struct Cursor<'a, D: Disk> {
    disk: &'a D,
    folder: PathBuf,
    bases: Vec<Offset>,
    /// The segment that is open.
    at: usize,
    file: Option<(D::File, u64)>,
    position: u64,
    /// Offsets are missing by right.
    compacted: bool,
}

impl<'a, D: Disk> Cursor<'a, D> {
    fn open(
        disk: &'a D,
        dir: &Path,
        partition: PartitionId,
        row: &Replica,
    ) -> Result<Cursor<'a, D>, StorageError> {
        let folder = dir.join(partition.to_string());
        let mut bases: Vec<Offset> = match disk.read_dir(&folder) {
            Ok(entries) => entries
                .iter()
                .filter_map(|entry| layout::parse_file_name(&entry.name))
                .filter(|(_, kind)| *kind == Kind::Log)
                .map(|(base, _)| base)
                .collect(),
            Err(error) if error.kind() == std::io::ErrorKind::NotFound => Vec::new(),
            Err(error) => return Err(StorageError::io("list", &folder, error)),
        };
        bases.sort_unstable();
        let compacted = bases
            .iter()
            .any(|base| matches!(seal::read(disk, &folder, *base), Found::Seal(seal) if seal.gaps));
        let below = bases.partition_point(|base| *base <= row.log_start).saturating_sub(1);
        bases.drain(..below);
        Ok(Cursor { disk, folder, bases, at: 0, file: None, position: 0, compacted })
    }

    fn path(&self) -> PathBuf {
        match self.bases.get(self.at) {
            Some(base) => layout::file_path(&self.folder, *base, Kind::Log),
            None => self.folder.clone(),
        }
    }

    fn next_from(&mut self, start: Offset) -> Result<Option<Batch>, StorageError> {
        loop {
            match self.next()? {
                Some(found) if found.header.last_offset() < start => {}
                other => return Ok(other),
            }
        }
    }

    /// The next batch; the copy ends where one cannot be read.
    fn next(&mut self) -> Result<Option<Batch>, StorageError> {
        loop {
            if self.at >= self.bases.len() {
                return Ok(None);
            }
            let path = self.path();
            let (file, size) = match self.file.take() {
                Some(open) => open,
                None => {
                    let file = self.disk.open(&path, OpenMode::Read).doing("open", &path)?;
                    let size = file.len().doing("look at", &path)?;
                    self.position = 0;
                    (file, size)
                }
            };
            if self.position >= size {
                self.at += 1;
                continue;
            }
            let bytes = read_up_to(&file, HEADER_BYTES, self.position).doing("read", &path)?;
            let header = BatchHeader::parse(&bytes).ok().filter(has_sound_offsets);
            let Some(header) = header.filter(|header| header.bytes as u64 <= size - self.position) else {
                self.at = self.bases.len();
                return Ok(None);
            };
            let found = Batch { position: self.position, header };
            self.position += header.bytes as u64;
            self.file = Some((file, size));
            return Ok(Some(found));
        }
    }
}
