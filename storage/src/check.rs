//! Checks a segment's bytes as they come by, in pieces of any size: every batch's checksum, offsets that only
//! rise, generations that never fall, and the checksum of the whole, which the seal knows.
//!
//! Nothing is kept but one batch header, however large the batches are.

use std::io;

use felix_protocol::batch::{BatchHeader, CRC_FROM, HEADER_BYTES};
use felix_protocol::ids::{Generation, Offset};

use crate::disk::{Disk, DiskFile};
use crate::seal::marks::{Mark, Marks, Sealed};
use crate::seal::{Found, Seal};
use crate::segment::Segment;
use crate::segment::walk::has_sound_offsets;

/// Where bytes cannot be what was written.
#[derive(Clone, Debug, PartialEq, Eq)]
pub(crate) struct Fault {
    /// Where the batch begins that does not hold together.
    pub position: u64,
    /// The first offset that cannot be trusted.
    pub offset: Offset,
    pub reason: String,
}

/// A segment that is being looked through.
pub(crate) struct Checker {
    base: Offset,
    /// First offset of the segment that follows, if one does.
    until: Option<Offset>,
    /// Where the batch that is looked at began.
    batch_at: u64,
    head: Vec<u8>,
    /// Its header, once that is complete, and how many of its bytes are still to come.
    batch: Option<(BatchHeader, usize)>,
    batch_crc: u32,
    /// One past the last whole batch.
    next: Offset,
    generation: Option<Generation>,
    whole: u32,
    size: u64,
    /// Checksum of all before the batch that is looked at.
    whole_before: u32,
    marks: Marks,
    /// Where offsets are missing first: position, and the offset that was due.
    gap: Option<(u64, Offset)>,
    /// A transaction ended in it, one way or the other.
    markers: bool,
    batches: u64,
}

/// What a whole segment is worth.
#[derive(Clone, Debug, PartialEq, Eq)]
pub(crate) enum Verdict {
    /// As it was sealed.
    Sealed,
    /// Every batch is right, and there is no seal that says so.
    Unsealed,
    /// Every batch is right, but the seal is not; why.
    BadSeal(String),
    /// The segment is not what was written.
    Damaged(Fault),
}

impl Checker {
    /// Of the segment at `base`, in front of one that begins at `until`.
    pub(crate) fn new(base: Offset, until: Option<Offset>) -> Checker {
        Checker {
            base,
            until,
            batch_at: 0,
            head: Vec::with_capacity(HEADER_BYTES),
            batch: None,
            batch_crc: 0,
            next: base,
            generation: None,
            whole: 0,
            size: 0,
            whole_before: 0,
            marks: Marks::default(),
            gap: None,
            markers: false,
            batches: 0,
        }
    }

    /// Bytes seen.
    pub(crate) fn size(&self) -> u64 {
        self.size
    }

    /// One past the last offset seen.
    pub(crate) fn next(&self) -> Offset {
        self.next
    }

    /// Whole batches seen.
    pub(crate) fn batches(&self) -> u64 {
        self.batches
    }

    fn fault<T>(&self, reason: String) -> Result<T, Fault> {
        Err(Fault { position: self.batch_at, offset: self.next, reason })
    }

    /// Takes in what follows. `seen` is told of each whole batch that is right, and where it begins.
    pub(crate) fn feed(
        &mut self,
        mut bytes: &[u8],
        seen: &mut impl FnMut(u64, &BatchHeader),
    ) -> Result<(), Fault> {
        self.size += bytes.len() as u64;
        while !bytes.is_empty() {
            match self.batch {
                None => {
                    if self.head.is_empty() {
                        self.whole_before = self.whole;
                    }
                    let take = (HEADER_BYTES - self.head.len()).min(bytes.len());
                    self.whole = crc32c::crc32c_append(self.whole, &bytes[..take]);
                    self.head.extend_from_slice(&bytes[..take]);
                    bytes = &bytes[take..];
                    if self.head.len() == HEADER_BYTES {
                        self.begin()?;
                    }
                }
                Some((header, left)) => {
                    let take = left.min(bytes.len());
                    self.whole = crc32c::crc32c_append(self.whole, &bytes[..take]);
                    self.batch_crc = crc32c::crc32c_append(self.batch_crc, &bytes[..take]);
                    bytes = &bytes[take..];
                    self.batch = Some((header, left - take));
                }
            }
            if let Some((header, 0)) = self.batch {
                self.end(&header)?;
                seen(self.batch_at, &header);
                self.batch_at += header.bytes as u64;
                self.next = header.next_offset();
                self.batches += 1;
            }
        }
        Ok(())
    }

    fn begin(&mut self) -> Result<(), Fault> {
        let header = match BatchHeader::parse(&self.head) {
            Ok(header) => header,
            Err(error) => return self.fault(error.to_string()),
        };
        if header.base_offset < self.next || !has_sound_offsets(&header) {
            return self.fault(format!(
                "a batch of offset {} and {} more where {} or more was due",
                header.base_offset, header.last_offset_delta, self.next
            ));
        }
        if header.last_offset() - self.base > i64::from(i32::MAX) {
            return self.fault(format!("offset {} does not fit the segment", header.last_offset()));
        }
        if let Some(until) = self.until.filter(|until| header.last_offset() >= *until) {
            let last = header.last_offset();
            return self.fault(format!("offset {last} reaches into the segment that begins at {until}"));
        }
        if let Some((generation, newest)) = header.generation.zip(self.generation)
            && generation < newest
        {
            return self.fault(format!("generation {generation} follows the newer {newest}"));
        }
        let here = Mark { position: self.batch_at, next: self.next, crc: self.whole_before };
        self.marks.before(here, header.bytes);
        if header.base_offset != self.next {
            self.gap.get_or_insert((self.batch_at, self.next));
        }
        self.generation = header.generation.or(self.generation);
        self.markers |= header.is_control();
        self.batch_crc = crc32c::crc32c(&self.head[CRC_FROM..]);
        self.batch = Some((header, header.bytes - HEADER_BYTES));
        Ok(())
    }

    fn end(&mut self, header: &BatchHeader) -> Result<(), Fault> {
        if self.batch_crc != header.crc {
            let (found, computed) = (header.crc, self.batch_crc);
            return self.fault(format!("batch checksum is {found:#010x}, its bytes give {computed:#010x}"));
        }
        self.head.clear();
        self.batch = None;
        Ok(())
    }

    /// After the last byte: whether it was the end of a batch.
    pub(crate) fn finish(&self) -> Result<(), Fault> {
        if self.batch_at == self.size {
            return Ok(());
        }
        self.fault(format!("the file ends {} bytes into a batch", self.size - self.batch_at))
    }

    /// The seal of what was seen.
    pub(crate) fn seal(&self, known_gaps: bool) -> Seal {
        Seal {
            base: self.base,
            next: self.next,
            size: self.size,
            crc: self.whole,
            gaps: known_gaps || self.gap.is_some() || self.hole().is_some(),
            open: false,
            aborted: self.markers,
        }
    }

    /// The seal with what stands behind it.
    pub(crate) fn sealed(&self, known_gaps: bool) -> Sealed {
        Sealed { seal: self.seal(known_gaps), marks: Some(self.marks.clone()) }
    }

    /// Whether offsets are missing between its batches.
    pub(crate) fn has_gaps(&self) -> bool {
        self.gap.is_some()
    }

    /// Offsets that are missing between the last batch and the next segment, and that no leap explains.
    pub(crate) fn hole(&self) -> Option<(Offset, Offset)> {
        let until = self.until.filter(|until| *until > self.next)?;
        (until - self.base <= i64::from(i32::MAX)).then_some((self.next, until))
    }

    /// What a closed segment is worth, all of whose batches were found right, given what stands in its
    /// seal's place.
    ///
    /// A seal with a wrong checksum of its own says nothing. One that is intact was written of other bytes:
    /// then a byte changed that no batch's checksum covers, or batches are missing. Only where nothing is
    /// missing and the length differs is the seal itself out of date.
    pub(crate) fn judge(&self, found: &Found) -> Verdict {
        if let Err(fault) = self.finish() {
            return Verdict::Damaged(fault);
        }
        let seal = match found {
            Found::Missing => return Verdict::Unsealed,
            Found::Bad(why) => return Verdict::BadSeal((*why).to_string()),
            // It speaks of the beginning only; the segment was written to after a stop.
            Found::Seal(seal) if seal.open && seal.size < self.size => return Verdict::Unsealed,
            Found::Seal(seal) => seal,
        };
        let (size, sealed) = (self.size, seal.size);
        if size != sealed {
            let whole = self.gap.is_none() && self.hole().is_none();
            if whole && self.until.is_some() {
                return Verdict::BadSeal(format!("it is of {sealed} bytes, there are {size}"));
            }
            let reason = format!("the file has {size} bytes, {sealed} were sealed");
            return Verdict::Damaged(Fault { position: size.min(sealed), offset: self.next, reason });
        }
        if seal.crc == self.whole && seal.next == self.next {
            return if seal.open { Verdict::Unsealed } else { Verdict::Sealed };
        }
        let gap = self.gap.filter(|_| !seal.gaps);
        let (position, offset) = gap.unwrap_or((0, self.base));
        let place = if gap.is_some() { "offsets are missing here" } else { "somewhere from here on" };
        let reason = format!(
            "the segment's checksum is {:#010x}, {:#010x} was sealed, and every batch's own checksum is right: \
             a byte changed that these leave out (a batch's base offset, length, generation or format); {place}",
            self.whole, seal.crc
        );
        Verdict::Damaged(Fault { position, offset, reason })
    }
}

/// Feeds all of a segment's file to a checker, as far as the bytes hold together.
pub(crate) fn run<D: Disk>(segment: &Segment<D>, checker: &mut Checker) -> io::Result<Result<(), Fault>> {
    /// Bytes fetched at once.
    const CHUNK: usize = 256 << 10;
    let file = segment.file()?;
    let mut buf = Vec::with_capacity(CHUNK);
    loop {
        buf.clear();
        let left = segment.size().saturating_sub(checker.size());
        let want = usize::try_from(left).unwrap_or(CHUNK).min(CHUNK);
        if want == 0 || file.read_at(&mut buf, want, checker.size())? == 0 {
            return Ok(checker.finish());
        }
        if let Err(fault) = checker.feed(&buf, &mut |_, _| {}) {
            return Ok(Err(fault));
        }
    }
}

#[cfg(test)]
mod tests {
    use felix_protocol::batch::{BatchBuilder, patched_head};
    use proptest::prelude::*;

    use super::*;
    use crate::seal::Running;

    const BASE: Offset = 100;

    /// A segment of batches of one to five records, and its seal as the writer makes it.
    fn segment(batches: i64) -> (Vec<u8>, Seal) {
        let (mut bytes, mut running, mut next) = (Vec::new(), Running::new(), BASE);
        for at in 0..batches {
            let mut builder = BatchBuilder::new();
            for record in 0..=at % 5 {
                builder.push(at + record, None, Some(&[7; 40]));
            }
            let batch = builder.build().unwrap();
            let generation = Generation::new(u32::try_from(1 + at / 4).unwrap()).unwrap();
            let at = bytes.len();
            bytes.extend_from_slice(&patched_head(batch.bytes(), next, generation));
            bytes.extend_from_slice(&batch.bytes()[16..]);
            let header = BatchHeader::parse(&bytes[at..]).unwrap();
            running.add(&header, &bytes[at..], next);
            next = header.next_offset();
        }
        let seal = running.seal(BASE, next, false);
        (bytes, seal)
    }

    fn judged(bytes: &[u8], piece: usize, until: Offset, found: &Found) -> Verdict {
        let mut checker = Checker::new(BASE, Some(until));
        for piece in bytes.chunks(piece) {
            if let Err(fault) = checker.feed(piece, &mut |_, _| {}) {
                return Verdict::Damaged(fault);
            }
        }
        checker.judge(found)
    }

    #[test]
    fn the_writers_seal_is_the_readers_in_pieces_of_any_size() {
        let (bytes, seal) = segment(9);
        for piece in [1, 60, 61, 62, 1000, 1 << 20] {
            assert_eq!(judged(&bytes, piece, seal.next, &Found::Seal(seal)), Verdict::Sealed);
            assert_eq!(judged(&bytes, piece, seal.next, &Found::Missing), Verdict::Unsealed);
        }
        let mut checker = Checker::new(BASE, Some(seal.next));
        checker.feed(&bytes, &mut |_, _| {}).unwrap();
        assert_eq!((checker.seal(false), checker.batches()), (seal, 9));
    }

    #[test]
    fn a_changed_byte_is_found_wherever_it_is() {
        let (bytes, seal) = segment(9);
        let mut changed = bytes.clone();
        for at in 0..bytes.len() {
            for flip in [1, 0x80, 0xFF] {
                changed[at] ^= flip;
                let verdict = judged(&changed, 512, seal.next, &Found::Seal(seal));
                assert!(matches!(verdict, Verdict::Damaged(_)), "byte {at} ^ {flip:#x}: {verdict:?}");
                changed[at] ^= flip;
            }
        }
    }

    #[test]
    fn a_lost_end_is_damage_and_an_old_seal_is_not() {
        let (bytes, seal) = segment(9);
        for cut in 1..bytes.len() {
            let verdict = judged(&bytes[..bytes.len() - cut], 512, seal.next, &Found::Seal(seal));
            assert!(matches!(verdict, Verdict::Damaged(_)), "{cut} bytes less: {verdict:?}");
        }
        let (_, earlier) = segment(8);
        assert!(matches!(judged(&bytes, 512, seal.next, &Found::Seal(earlier)), Verdict::BadSeal(_)));
        let open = Seal { open: true, ..earlier };
        assert_eq!(judged(&bytes, 512, seal.next, &Found::Seal(open)), Verdict::Unsealed);
        assert!(matches!(judged(&bytes, 512, seal.next, &Found::Bad("x")), Verdict::BadSeal(_)));
    }

    proptest! {
        #[test]
        fn no_bytes_make_it_panic(bytes in proptest::collection::vec(any::<u8>(), 0..400), piece in 1..400usize) {
            let _ = judged(&bytes, piece, Offset::MAX, &Found::Missing);
        }

        #[test]
        fn no_changed_header_makes_it_panic(at in 0..200usize, with in any::<[u8; 8]>()) {
            let (mut bytes, seal) = segment(5);
            bytes[at..at + 8].copy_from_slice(&with);
            let _ = judged(&bytes, 100, seal.next, &Found::Seal(seal));
        }
    }
}
