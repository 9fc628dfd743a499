//! The two sparse indexes of a segment, in Kafka's formats. An index only ever says where to begin to
//! look: whoever follows an entry checks the batch it finds there, so a lying index costs time, not truth.

use std::io;

use felix_protocol::ids::Offset;

use crate::disk::{DiskFile, read_up_to};

pub(crate) mod txn;

/// Bytes of an entry of the offset index: relative offset, position (both `i32`).
pub(crate) const OFFSET_ENTRY: usize = 8;
/// Bytes of an entry of the time index: timestamp (`i64`), relative offset (`i32`).
pub(crate) const TIME_ENTRY: usize = 12;

/// The batch that ends at `offset` begins at `position`.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(crate) struct OffsetEntry {
    pub offset: Offset,
    pub position: u32,
}

/// Up to the batch that ends at `offset`, and in it, `timestamp` is the greatest.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(crate) struct TimeEntry {
    pub timestamp: i64,
    pub offset: Offset,
}

/// An entry of fixed size that knows its base offset only from outside.
pub(crate) trait IndexEntry: Copy {
    const BYTES: usize;
    fn encode(&self, base: Offset, out: &mut Vec<u8>);
    fn decode(base: Offset, bytes: &[u8]) -> Self;
}

fn relative(base: Offset, offset: Offset) -> [u8; 4] {
    // A segment is closed before an offset leaves the range (`roll`).
    u32::try_from(offset - base).unwrap_or(u32::MAX).to_be_bytes()
}

fn be32(bytes: &[u8]) -> u32 {
    let mut out = [0; 4];
    out.copy_from_slice(&bytes[..4]);
    u32::from_be_bytes(out)
}

impl IndexEntry for OffsetEntry {
    const BYTES: usize = OFFSET_ENTRY;

    fn encode(&self, base: Offset, out: &mut Vec<u8>) {
        out.extend_from_slice(&relative(base, self.offset));
        out.extend_from_slice(&self.position.to_be_bytes());
    }

    fn decode(base: Offset, bytes: &[u8]) -> Self {
        let offset = base.saturating_add(Offset::from(be32(bytes)));
        OffsetEntry { offset, position: be32(&bytes[4..]) }
    }
}

impl IndexEntry for TimeEntry {
    const BYTES: usize = TIME_ENTRY;

    fn encode(&self, base: Offset, out: &mut Vec<u8>) {
        out.extend_from_slice(&self.timestamp.to_be_bytes());
        out.extend_from_slice(&relative(base, self.offset));
    }

    fn decode(base: Offset, bytes: &[u8]) -> Self {
        let mut timestamp = [0; 8];
        timestamp.copy_from_slice(&bytes[..8]);
        let offset = base.saturating_add(Offset::from(be32(&bytes[8..])));
        TimeEntry { timestamp: i64::from_be_bytes(timestamp), offset }
    }
}

/// The entries `[from, to)` of an index file.
pub(crate) fn read_entries<E: IndexEntry, F: DiskFile>(
    file: &F,
    base: Offset,
    from: usize,
    to: usize,
) -> io::Result<Vec<E>> {
    let bytes = read_up_to(file, (to - from) * E::BYTES, (from * E::BYTES) as u64)?;
    Ok(bytes.chunks_exact(E::BYTES).map(|entry| E::decode(base, entry)).collect())
}

/// The last of `count` entries in an index file for which `keep` holds, where `keep` holds for a prefix.
/// A few small reads; nothing of the file stays in memory.
pub(crate) fn last_where<E: IndexEntry, F: DiskFile>(
    file: &F,
    base: Offset,
    count: usize,
    keep: impl Fn(&E) -> bool,
) -> io::Result<Option<E>> {
    /// Entries that are fetched in one read rather than halved further.
    const BLOCK: usize = 512;
    let (mut low, mut high) = (0, count);
    // Invariant: entries below `low` are kept, entries from `high` on are not.
    while high - low > BLOCK {
        let middle = low + (high - low) / 2;
        match read_entries::<E, F>(file, base, middle, middle + 1)?.first() {
            Some(entry) if keep(entry) => low = middle + 1,
            _ => high = middle,
        }
    }
    let from = low.saturating_sub(1);
    let block = read_entries::<E, F>(file, base, from, high)?;
    Ok(block[..block.partition_point(keep)].last().copied())
}

#[cfg(test)]
mod tests {
    use std::path::Path;

    use super::*;
    use crate::disk::mem::MemDisk;
    use crate::disk::{Disk, OpenMode, write_all_at};

    #[test]
    fn the_last_entry_below_is_found_in_files_of_any_length() {
        let disk = MemDisk::new();
        for count in [0, 1, 2, 511, 512, 513, 1025, 5000] {
            let file = disk.open(Path::new("/i"), OpenMode::Replace).unwrap();
            let mut bytes = Vec::new();
            for at in 0..count {
                OffsetEntry { offset: 100 + 10 * at, position: u32::try_from(at).unwrap() }
                    .encode(100, &mut bytes);
            }
            write_all_at(&file, &bytes, 0).unwrap();
            for target in [0, 99, 100, 105, 110, 5_111, 5_120, 5_230, 60_000] {
                let found: Option<OffsetEntry> =
                    last_where(&file, 100, usize::try_from(count).unwrap(), |e: &OffsetEntry| {
                        e.offset <= target
                    })
                    .unwrap();
                let wanted = (0..count).map(|at| 100 + 10 * at).filter(|offset| *offset <= target).max();
                assert_eq!(found.map(|entry| entry.offset), wanted, "{count} {target}");
            }
        }
    }
}
