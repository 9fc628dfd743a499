//! The aborted transactions of a segment (`.txnindex`), in Apache Kafka's format: one entry for each abort
//! marker in the segment that ended a transaction with records.
//!
//! ```text
//! version i16 = 0, producer id i64, first offset i64, last offset (the marker's) i64, last stable offset i64
//! ```
//!
//! Entries stand in the order of their markers. A segment without any has no file.

use felix_protocol::ids::Offset;

/// Bytes of an entry.
pub(crate) const ENTRY: usize = 34;
const VERSION: i16 = 0;

/// A transaction whose records never count.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub struct AbortedTransaction {
    /// Whose it was.
    pub producer_id: i64,
    /// Its first record.
    pub first_offset: Offset,
    /// Its marker.
    pub last_offset: Offset,
    /// Below this offset everything was decided when the marker was written.
    pub last_stable_offset: Offset,
}

/// The content of a file.
pub(crate) fn encode(entries: &[AbortedTransaction]) -> Vec<u8> {
    let mut bytes = Vec::with_capacity(entries.len() * ENTRY);
    for entry in entries {
        bytes.extend_from_slice(&VERSION.to_be_bytes());
        bytes.extend_from_slice(&entry.producer_id.to_be_bytes());
        bytes.extend_from_slice(&entry.first_offset.to_be_bytes());
        bytes.extend_from_slice(&entry.last_offset.to_be_bytes());
        bytes.extend_from_slice(&entry.last_stable_offset.to_be_bytes());
    }
    bytes
}

/// The entries of a file, if these can be the entries of a segment that begins at `base`.
pub(crate) fn decode(base: Offset, file: &[u8]) -> Option<Vec<AbortedTransaction>> {
    if !file.len().is_multiple_of(ENTRY) {
        return None;
    }
    let mut floor = base;
    file.chunks_exact(ENTRY)
        .map(|bytes| {
            let number = |at: usize| {
                let mut number = [0; 8];
                number.copy_from_slice(&bytes[at..at + 8]);
                i64::from_be_bytes(number)
            };
            let entry = AbortedTransaction {
                producer_id: number(2),
                first_offset: number(10),
                last_offset: number(18),
                last_stable_offset: number(26),
            };
            let possible = bytes[..2] == VERSION.to_be_bytes()
                && entry.producer_id >= 0
                && entry.first_offset >= 0
                && entry.first_offset < entry.last_offset
                && entry.last_offset >= floor
                && entry.last_stable_offset <= entry.last_offset.saturating_add(1);
            floor = entry.last_offset.saturating_add(1);
            possible.then_some(entry)
        })
        .collect()
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn entries_read_back_and_nonsense_does_not() {
        let entries = [
            AbortedTransaction { producer_id: 7, first_offset: 3, last_offset: 20, last_stable_offset: 9 },
            AbortedTransaction { producer_id: 8, first_offset: 9, last_offset: 21, last_stable_offset: 22 },
        ];
        let file = encode(&entries);
        assert_eq!(decode(10, &file).unwrap(), entries);
        assert_eq!(decode(10, &[]), Some(Vec::new()));
        assert_eq!(decode(10, &file[1..]), None);
        assert_eq!(decode(21, &file), None, "a marker below the segment");
        let mut swapped = file[ENTRY..].to_vec();
        swapped.extend_from_slice(&file[..ENTRY]);
        assert_eq!(decode(10, &swapped), None);
        let mut other = file;
        other[1] = 1;
        assert_eq!(decode(10, &other), None);
    }
}
