//! Marks: places between two batches of a closed segment, a quarter of a MiB apart or one batch, each with the checksum of all bytes
//! before it. They stand behind the seal in its file, so that a reader who begins in the middle, and one who cannot hold a whole
//! segment, compares what it has read with the seal before it gives any of it away.
//!
//! ```text
//! 40  count      u32
//! 44  marks      12 bytes each: position u32, next offset due less the segment's base u32, checksum u32
//!     own        u32  CRC-32C of the seal's own checksum and all from 40 on
//! ```
//!
//! Between two marks, as between the first byte and the first mark, and the last mark and the segment's end, is less than twice the
//! distance, or one batch. A segment that is shorter than that needs no marks, and then nothing stands behind its seal. Nor does in an
//! earlier version: a longer segment that was sealed by it is read batch by batch.

use std::io;
use std::path::Path;

use felix_protocol::ids::Offset;

use super::{BYTES, Found, OWN, Seal};
use crate::disk::{self, Disk};
use crate::layout::{self, Kind};

/// Bytes between two marks.
pub(crate) const STRIDE: u64 = 256 << 10;
/// Positions are 32 bits, so there are no more.
const MOST: usize = 1 << 14;
const MARK_BYTES: usize = 12;
/// The largest file of a seal.
const MOST_BYTES: usize = BYTES + 4 + MOST * MARK_BYTES + 4;

/// One of them.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(crate) struct Mark {
    /// A batch begins there.
    pub position: u64,
    /// One past the batch before.
    pub next: Offset,
    /// Of all bytes before.
    pub crc: u32,
}

/// Those of one segment. Invariant: positions rise, and fit 32 bits.
#[derive(Clone, Debug, Default, PartialEq, Eq)]
pub(crate) struct Marks(Vec<Mark>);

impl Marks {
    /// A batch of so many bytes is about to be added at `here`.
    pub(crate) fn before(&mut self, here: Mark, batch_bytes: usize) {
        let since = here.position - self.0.last().map_or(0, |last| last.position);
        let is_due = since >= STRIDE || since > 0 && batch_bytes as u64 >= STRIDE;
        if is_due && u32::try_from(here.position).is_ok() && self.0.len() < MOST {
            self.0.push(here);
        }
    }

    /// How many they are.
    pub(crate) fn len(&self) -> usize {
        self.0.len()
    }
}

/// A seal, and what stands behind it.
#[derive(Clone, Debug, PartialEq, Eq)]
pub(crate) struct Sealed {
    pub seal: Seal,
    /// `None`: of an earlier version.
    pub marks: Option<Marks>,
}

/// Bytes that are read at once, and how they are known to be right.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(crate) struct Span {
    /// Where a batch begins, and the checksum of all before it.
    pub from: Mark,
    /// Where the last one ends, and the checksum there.
    pub to: Mark,
    /// That is the segment's end.
    pub is_last: bool,
}

impl Span {
    pub(crate) fn bytes(&self) -> usize {
        usize::try_from(self.to.position - self.from.position).unwrap_or(usize::MAX)
    }

    /// Whether these are the bytes that were sealed.
    pub(crate) fn is_right(&self, bytes: &[u8]) -> bool {
        bytes.len() == self.bytes() && crc32c::crc32c_append(self.from.crc, bytes) == self.to.crc
    }
}

impl Sealed {
    /// The file's content.
    pub(crate) fn encode(&self) -> Vec<u8> {
        let mut bytes = self.seal.encode();
        let Some(Marks(marks)) = &self.marks else { return bytes };
        if marks.is_empty() && self.seal.size < 2 * STRIDE {
            return bytes;
        }
        let own = own(&bytes);
        bytes.extend_from_slice(&short(marks.len()).to_be_bytes());
        for mark in marks {
            bytes.extend_from_slice(&short(mark.position).to_be_bytes());
            bytes.extend_from_slice(&short(mark.next - self.seal.base).to_be_bytes());
            bytes.extend_from_slice(&mark.crc.to_be_bytes());
        }
        let own = crc32c::crc32c_append(own, &bytes[BYTES..]);
        bytes.extend_from_slice(&own.to_be_bytes());
        bytes
    }

    /// What such a file says, unless something about it is wrong.
    pub(crate) fn decode(bytes: &[u8], base: Offset) -> Option<Sealed> {
        let Found::Seal(seal) = Seal::decode(bytes, base) else { return None };
        let (head, behind) = bytes.split_at(BYTES);
        if behind.is_empty() {
            let marks = (seal.size < 2 * STRIDE).then(Marks::default);
            return Some(Sealed { seal, marks });
        }
        let (body, found) = behind.split_last_chunk::<4>()?;
        if u32::from_be_bytes(*found) != crc32c::crc32c_append(own(head), body) {
            return None;
        }
        let (count, body) = body.split_first_chunk::<4>()?;
        let (marks, rest) = body.as_chunks::<MARK_BYTES>();
        if !rest.is_empty() || u32::from_be_bytes(*count) != short(marks.len()) {
            return None;
        }
        let marks = marks.iter().map(|mark| {
            let word =
                |at: usize| mark[at..].first_chunk().map_or(0, |word: &[u8; 4]| u32::from_be_bytes(*word));
            Mark { position: u64::from(word(0)), next: base + i64::from(word(4)), crc: word(8) }
        });
        let marks: Vec<Mark> = marks.collect();
        let rises = marks.windows(2).all(|pair| pair[0].position < pair[1].position);
        let fits = marks.last().is_none_or(|last| last.position < seal.size) && marks.len() <= MOST;
        (rises && fits).then_some(Sealed { seal, marks: Some(Marks(marks)) })
    }

    /// Such a file's content.
    pub(crate) fn content<D: Disk>(disk: &D, folder: &Path, base: Offset) -> io::Result<Vec<u8>> {
        disk::read_whole(disk, &layout::file_path(folder, base, Kind::Seal), MOST_BYTES as u64)
    }

    /// Reads such a file; `None` if it cannot be read, or something about it is wrong.
    pub(crate) fn read<D: Disk>(disk: &D, folder: &Path, base: Offset) -> Option<Sealed> {
        Sealed::content(disk, folder, base).ok().and_then(|content| Sealed::decode(&content, base))
    }

    /// What to read for whoever has everything below `from` and wants so many bytes, of batches below `limit`: whole distances
    /// between marks, more than was asked for only where the first is. Nothing where no batch of this segment is wanted, or
    /// nobody noted where to compare.
    pub(crate) fn span(&self, from: Offset, max_bytes: usize, limit: Offset) -> Option<Span> {
        let Seal { base, next, size, crc, .. } = self.seal;
        let Marks(marks) = self.marks.as_ref()?;
        if !(base..next).contains(&from) {
            return None;
        }
        let begin = Mark { position: 0, next: base, crc: 0 };
        let end = Mark { position: size, next, crc };
        let at = marks.partition_point(|mark| mark.next <= from);
        let from = if at == 0 { begin } else { marks[at - 1] };
        let fits = |to: &Mark| to.position - from.position <= max_bytes as u64 && to.next <= limit;
        let rest = &marks[at..];
        let whole = rest.partition_point(fits);
        let (to, is_last) = if whole == rest.len() && (fits(&end) || whole == 0) {
            (end, true)
        } else {
            (rest[whole.max(1) - 1], false)
        };
        (to.next <= limit).then_some(Span { from, to, is_last })
    }
}

/// A seal's own checksum.
fn own(seal: &[u8]) -> u32 {
    seal.get(OWN..).and_then(<[u8]>::first_chunk).map_or(0, |own| u32::from_be_bytes(*own))
}

fn short(number: impl TryInto<u32>) -> u32 {
    number.try_into().unwrap_or(u32::MAX)
}

#[cfg(test)]
mod tests {
    use proptest::prelude::*;

    use super::*;

    const BASE: Offset = 1_000;

    /// A segment of batches of these sizes and numbers of records, and its seal with marks. Offsets are missing before some.
    fn sealed(batches: &[(usize, i64, bool)]) -> (Vec<(Offset, u64, Offset)>, Vec<u8>, Sealed) {
        let (mut placed, mut bytes, mut marks) = (Vec::new(), Vec::new(), Marks::default());
        let mut next = BASE;
        for (at, (size, records, hole)) in batches.iter().enumerate() {
            let crc = crc32c::crc32c(&bytes);
            marks.before(Mark { position: bytes.len() as u64, next, crc }, *size);
            let base = next + if *hole { 5 } else { 0 };
            placed.push((base, bytes.len() as u64, base + records));
            bytes.resize(bytes.len() + size, u8::try_from(at % 251).unwrap());
            next = base + records;
        }
        let (size, crc) = (bytes.len() as u64, crc32c::crc32c(&bytes));
        let seal = Seal { base: BASE, next, size, crc, gaps: false, open: false, aborted: false };
        (placed, bytes, Sealed { seal, marks: Some(marks) })
    }

    fn sizes() -> impl Strategy<Value = Vec<(usize, i64, bool)>> {
        let size = prop_oneof![100..20_000usize, 100_000..700_000usize];
        proptest::collection::vec((size, 1..50i64, any::<bool>()), 1..40)
    }

    #[test]
    fn it_reads_back_and_any_changed_byte_is_found() {
        let (_, _, sealed) = sealed(&[(200_000, 3, false); 9]);
        assert_eq!(sealed.marks.as_ref().unwrap().len(), 4);
        let bytes = sealed.encode();
        assert_eq!(Sealed::decode(&bytes, BASE), Some(sealed.clone()));
        for at in 0..bytes.len() {
            for flip in [1, 0x80, 0xFF] {
                let mut changed = bytes.clone();
                changed[at] ^= flip;
                assert_eq!(Sealed::decode(&changed, BASE), None, "byte {at} ^ {flip:#x}");
            }
            let cut = Sealed::decode(&bytes[..at], BASE);
            assert!(cut.is_none() || at == BYTES, "{at} bytes: {cut:?}");
        }
        let other = Sealed { seal: Seal { crc: 5, ..sealed.seal }, marks: None }.encode();
        assert_eq!(
            Sealed::decode(&[&other[..BYTES], &bytes[BYTES..]].concat(), BASE),
            None,
            "another's marks"
        );
    }

    proptest! {
        /// The safety of reading by marks: what is read begins with the batch wanted, or in front of it, ends with a batch, and is
        /// right just if no byte of it has changed.
        #[test]
        fn what_is_read_is_what_was_sealed(
            batches in sizes(), from in any::<prop::sample::Index>(), most in 0..3_000_000usize,
            flip in any::<prop::sample::Index>(),
        ) {
            let (placed, bytes, sealed) = sealed(&batches);
            let sealed = Sealed::decode(&sealed.encode(), BASE).unwrap();
            let from = BASE + i64::try_from(from.index(usize::try_from(sealed.seal.next - BASE).unwrap())).unwrap();
            let span = sealed.span(from, most, Offset::MAX).unwrap();
            let wanted = placed.iter().find(|(_, _, next)| *next > from).unwrap();
            prop_assert!(span.from.position <= wanted.1 && wanted.1 < span.to.position);
            prop_assert!(span.from.next <= from && from < span.to.next);
            let ends = placed.iter().find(|(_, at, _)| *at == span.to.position);
            prop_assert!(ends.is_some() || span.is_last && span.to.position == bytes.len() as u64);
            let inside = placed.iter().filter(|(_, at, _)| (span.from.position..span.to.position).contains(at));
            prop_assert!(span.bytes() <= most || span.bytes() < 2 * 262_144 || inside.count() == 1);
            let at = usize::try_from(span.from.position).unwrap();
            let mut read = bytes[at..at + span.bytes()].to_vec();
            prop_assert!(span.is_right(&read));
            let changed = flip.index(read.len());
            read[changed] ^= 0x10;
            prop_assert!(!span.is_right(&read));
            prop_assert!(!span.is_right(&read[1..]));
        }

        /// One distance after the other, a reader comes to the end, and has read each byte once.
        #[test]
        fn reading_on_reads_everything_once(batches in sizes(), most in 0..3_000_000usize) {
            let (_, bytes, sealed) = sealed(&batches);
            let (mut from, mut read) = (BASE, 0);
            while from < sealed.seal.next {
                let span = sealed.span(from, most, Offset::MAX).unwrap();
                prop_assert_eq!(span.from.position, read);
                (from, read) = (span.to.next, span.to.position);
                prop_assert_eq!(span.is_last, from == sealed.seal.next);
            }
            prop_assert_eq!(read, bytes.len() as u64);
        }
    }

    #[test]
    fn nothing_at_or_past_the_limit_is_read() {
        let (_, _, sealed) = sealed(&[(200_000, 10, false); 9]);
        let (from, next) = (BASE, sealed.seal.next);
        assert_eq!(sealed.span(from, usize::MAX, next).unwrap().to.next, next);
        assert_eq!(sealed.span(from, usize::MAX, next - 1).unwrap().to.next, BASE + 80);
        assert_eq!(sealed.span(from, usize::MAX, BASE + 19), None);
        assert_eq!(sealed.span(next, usize::MAX, Offset::MAX), None);
        assert_eq!(sealed.span(BASE - 1, usize::MAX, Offset::MAX), None);
    }

    #[test]
    fn a_seal_without_marks_serves_short_segments_only() {
        let (_, _, short) = sealed(&[(100_000, 10, false); 5]);
        let short = Sealed::decode(&short.seal.encode(), BASE).unwrap();
        assert!(short.span(BASE + 7, 0, Offset::MAX).unwrap().is_last);
        let long = Seal { size: 600_000, ..short.seal }.encode();
        let long = Sealed::decode(&long, BASE).unwrap();
        assert_eq!(long.marks, None);
        assert_eq!(long.span(BASE, usize::MAX, Offset::MAX), None);
    }
}
