//! Compacted segments whose way to their places a crash cut short.

use felix_protocol::ids::Offset;

use super::super::compact::take_place;
use crate::disk::{Disk, DiskFile, OpenMode};
use crate::error::{Damaged, Doing, StorageError};
use crate::layout::{self, Kind};
use crate::segment::Home;
use crate::segment::walk::{Broken, Walk};

/// Brings committed segments to their places, and removes what was never committed.
pub(super) fn finish_swaps<D: Disk>(home: &Home<D>) -> Result<(), StorageError> {
    let disk = home.dir.disk();
    let entries = disk.read_dir(&home.folder).doing("list", &home.folder)?;
    let named = |ending: &str| {
        let cut = entries.iter().filter_map(|entry| entry.name.strip_suffix(ending)).collect::<Vec<_>>();
        cut.into_iter().filter_map(layout::parse_file_name).collect::<Vec<_>>()
    };
    for (base, kind) in named(layout::SWAP) {
        if kind != Kind::Log {
            continue;
        }
        let next = end_of(home, base)?;
        let others: Vec<Offset> = entries
            .iter()
            .filter_map(|entry| layout::parse_file_name(&entry.name))
            .filter(|(other, kind)| *kind == Kind::Log && *other > base && *other < next)
            .map(|(other, _)| other)
            .collect();
        for other in std::iter::once(&base).chain(&others) {
            let path = layout::file_path(&home.folder, *other, Kind::Seal);
            crate::seal::discard(disk, &home.folder, *other).doing("remove", &path)?;
        }
        // Its last step need not be durable: until it is, every start takes it again.
        take_place(disk, &home.folder, base, &others)?;
    }
    for (base, kind) in named(layout::CLEANED) {
        let path = crate::segment::output::cleaned(&layout::file_path(&home.folder, base, kind));
        // One that cannot be removed now goes at a later start.
        let _ = disk.remove_file(&path);
    }
    Ok(())
}

/// One past the last offset of a segment that was written anew.
fn end_of<D: Disk>(home: &Home<D>, base: Offset) -> Result<Offset, StorageError> {
    let path = crate::segment::output::swap(&layout::file_path(&home.folder, base, Kind::Log));
    let file = home.dir.disk().open(&path, OpenMode::Read).doing("open", &path)?;
    let size = file.len().doing("look at", &path)?;
    let mut walk = Walk::new(&file, 0, size, base);
    let mut next = base;
    loop {
        match walk.next_header() {
            Ok(Some(step)) => next = step.header.next_offset(),
            Ok(None) => return Ok(next),
            Err(Broken::Io(error)) => return Err(StorageError::io("read", &path, error)),
            Err(Broken::Batch { position, reason }) => {
                // It was durable before it counted.
                return Err(Damaged { segment: path, position, offset: next, promised: true, reason }.into());
            }
        }
    }
}

/// Whether a name is one of a segment that compaction was writing anew.
pub(super) fn is_rewritten(name: &str) -> bool {
    name.ends_with(layout::SWAP) || name.ends_with(layout::CLEANED)
}
