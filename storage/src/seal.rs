//! The seal of a closed segment: `.seal` beside its `.log`, 40 bytes, and the marks behind it ([`marks`]).
//!
//! ```text
//!  0  magic       u32  "FxS1"
//!  4  version     u16  1
//!  6  flags       u16  bit 0: offsets are missing in it; bit 1: of a clean stop, the segment goes on;
//!                    bit 2: aborted transactions may be in it
//!  8  base        i64  first offset that the segment may hold: its name
//! 16  next        i64  one past its last offset
//! 24  size        u64  bytes of the .log file
//! 32  checksum    u32  CRC-32C of all of them
//! 36  own         u32  CRC-32C of the 36 bytes above
//! ```
//!
//! A batch's own checksum leaves out its first 21 bytes: base offset, length, generation, magic and the
//! checksum itself. The seal covers every byte. It comes from the checksums of the batches as they are
//! appended, so that nothing is read for it, and it is not flushed: one that a power loss took or tore fails
//! its own checksum and is made again by whoever reads the segment next.
//!
//! Whoever writes a segment anew (compaction) adds each batch it writes to a [`Running`]; removes the old seals
//! ([`discard`]) and flushes the folder before the new file takes the old one's name; and then writes the
//! content of [`Running::sealed`], `compacted` ([`write`]). Without that last step the scrub seals it.

use std::path::Path;

use felix_protocol::batch::{BatchHeader, CRC_FROM};
use felix_protocol::ids::Offset;

use crate::disk::{self, Disk, OpenMode, write_all_at};
use crate::layout::{self, Kind};

pub(crate) mod marks;

use marks::{Mark, Marks, Sealed};

/// Bytes of a seal.
pub(crate) const BYTES: usize = 40;
/// "FxS1".
const MAGIC: u32 = 0x4678_5331;
const VERSION: u16 = 1;
/// Where the seal's own checksum stands.
const OWN: usize = 36;
const GAPS: u16 = 1;
const OPEN: u16 = 2;
const ABORTED: u16 = 4;

/// What a seal says.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(crate) struct Seal {
    /// The segment's base offset.
    pub base: Offset,
    /// One past its last offset.
    pub next: Offset,
    /// Bytes of its file.
    pub size: u64,
    /// CRC-32C of these bytes.
    pub crc: u32,
    /// Offsets are missing in it: it was compacted, or copied from a log that was.
    pub gaps: bool,
    /// Written at a clean stop: the segment was the last one, and may have grown since.
    pub open: bool,
    /// Aborted transactions may be in it: if their index is not there, it was lost.
    pub aborted: bool,
}

/// What stands where a seal should be.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(crate) enum Found {
    /// A seal whose own checksum is right.
    Seal(Seal),
    /// No file, or an empty one.
    Missing,
    /// Something that is no seal of this segment.
    Bad(&'static str),
}

impl Seal {
    /// The file's content.
    pub(crate) fn encode(&self) -> Vec<u8> {
        let flag = |set, flag| if set { flag } else { 0 };
        let flags = flag(self.gaps, GAPS) | flag(self.open, OPEN) | flag(self.aborted, ABORTED);
        let mut bytes = Vec::with_capacity(BYTES);
        bytes.extend_from_slice(&MAGIC.to_be_bytes());
        bytes.extend_from_slice(&VERSION.to_be_bytes());
        bytes.extend_from_slice(&flags.to_be_bytes());
        bytes.extend_from_slice(&self.base.to_be_bytes());
        bytes.extend_from_slice(&self.next.to_be_bytes());
        bytes.extend_from_slice(&self.size.to_be_bytes());
        bytes.extend_from_slice(&self.crc.to_be_bytes());
        let own = crc32c::crc32c(&bytes);
        bytes.extend_from_slice(&own.to_be_bytes());
        bytes
    }

    /// What the first bytes of a seal's file are worth; `base` is what the file's name says.
    pub(crate) fn decode(bytes: &[u8], base: Offset) -> Found {
        if bytes.is_empty() {
            return Found::Missing;
        }
        let Some(bytes) = bytes.first_chunk::<BYTES>() else {
            return Found::Bad("it is shorter than 40 bytes");
        };
        if u32::from_be_bytes(take(bytes, 0)) != MAGIC {
            return Found::Bad("it does not begin as a seal does");
        }
        if u32::from_be_bytes(take(bytes, OWN)) != crc32c::crc32c(&bytes[..OWN]) {
            return Found::Bad("its own checksum is wrong");
        }
        if u16::from_be_bytes(take(bytes, 4)) != VERSION {
            return Found::Bad("it is of an unknown version");
        }
        let flags = u16::from_be_bytes(take(bytes, 6));
        let seal = Seal {
            base: i64::from_be_bytes(take(bytes, 8)),
            next: i64::from_be_bytes(take(bytes, 16)),
            size: u64::from_be_bytes(take(bytes, 24)),
            crc: u32::from_be_bytes(take(bytes, 32)),
            gaps: flags & GAPS != 0,
            open: flags & OPEN != 0,
            aborted: flags & ABORTED != 0,
        };
        if seal.base != base { Found::Bad("it is another segment's") } else { Found::Seal(seal) }
    }
}

fn take<const N: usize>(bytes: &[u8; BYTES], at: usize) -> [u8; N] {
    let mut out = [0; N];
    out.copy_from_slice(&bytes[at..at + N]);
    out
}

/// Looks at the seal of the segment at `base` and at what stands behind it. One that cannot be read is as good as a bad one.
pub(crate) fn read<D: Disk>(disk: &D, folder: &Path, base: Offset) -> Found {
    found(Sealed::content(disk, folder, base), |content| match Sealed::decode(content, base) {
        Some(sealed) => Found::Seal(sealed.seal),
        None => match Seal::decode(content, base) {
            Found::Seal(_) => Found::Bad("what stands behind it is wrong"),
            other @ (Found::Missing | Found::Bad(_)) => other,
        },
    })
}

/// The same, but looks at the seal alone.
pub(crate) fn read_alone<D: Disk>(disk: &D, folder: &Path, base: Offset) -> Found {
    let opened = disk.open(&layout::file_path(folder, base, Kind::Seal), OpenMode::Read);
    let content = opened.and_then(|file| disk::read_up_to(&file, BYTES, 0));
    found(content, |content| Seal::decode(content, base))
}

fn found(content: std::io::Result<Vec<u8>>, decode: impl FnOnce(&[u8]) -> Found) -> Found {
    match content {
        Ok(content) => decode(&content),
        Err(error) if error.kind() == std::io::ErrorKind::NotFound => Found::Missing,
        Err(_) => Found::Bad("it cannot be read"),
    }
}

/// Writes a seal. It need not be flushed: a torn one is found out by its own checksum, and made again.
pub(crate) fn write<D: Disk>(disk: &D, folder: &Path, content: &[u8], base: Offset) -> std::io::Result<()> {
    let path = layout::file_path(folder, base, Kind::Seal);
    let open = || disk.open(&path, OpenMode::Replace);
    let file = match open() {
        // A folder in the file's place is nobody's.
        Err(error) if error.kind() == std::io::ErrorKind::IsADirectory => {
            disk.remove_dir_all(&path)?;
            open()?
        }
        other => other?,
    };
    write_all_at(&file, content, 0)
}

/// Removes the seal of a segment whose bytes are about to change. The caller flushes the folder before they
/// do: an old seal beside new bytes would pass for damage.
#[track_caller]
pub(crate) fn discard<D: Disk>(disk: &D, folder: &Path, base: Offset) -> std::io::Result<()> {
    match disk.remove_file(&layout::file_path(folder, base, Kind::Seal)) {
        Err(error) if error.kind() == std::io::ErrorKind::NotFound => Ok(()),
        other => other,
    }
}

/// The checksum of a segment while batches are added to it.
#[derive(Clone, Debug, Default, PartialEq, Eq)]
pub(crate) struct Running {
    crc: u32,
    size: u64,
    gaps: bool,
    /// `None`: the beginning was sealed by an earlier version.
    marks: Option<Marks>,
}

impl Running {
    /// Of a segment that holds nothing.
    pub(crate) fn new() -> Running {
        Running { marks: Some(Marks::default()), ..Running::default() }
    }

    /// As a seal says, which covers the whole file.
    pub(crate) fn of(Sealed { seal, marks }: Sealed) -> Running {
        Running { crc: seal.crc, size: seal.size, gaps: seal.gaps, marks }
    }

    /// Their CRC-32C.
    pub(crate) fn crc(&self) -> u32 {
        self.crc
    }

    /// Bytes covered.
    pub(crate) fn size(&self) -> u64 {
        self.size
    }

    /// Takes in a batch whose checksum was found right: its first bytes as they stand in the file, at least
    /// [`CRC_FROM`] of them. Offsets are missing before it if it does not begin at `due`.
    pub(crate) fn add(&mut self, header: &BatchHeader, first: &[u8], due: Offset) {
        if let Some(marks) = &mut self.marks {
            marks.before(Mark { position: self.size, next: due, crc: self.crc }, header.bytes);
        }
        let head = crc32c::crc32c_append(self.crc, &first[..CRC_FROM]);
        self.crc = combine(head, header.crc, (header.bytes - CRC_FROM) as u64);
        self.size += header.bytes as u64;
        self.gaps |= header.base_offset != due;
    }

    /// The seal of what was added, of a segment without aborted transactions. `compacted` says that offsets may be
    /// missing at its end, too.
    pub(crate) fn seal(&self, base: Offset, next: Offset, compacted: bool) -> Seal {
        let gaps = self.gaps | compacted;
        Seal { base, next, size: self.size, crc: self.crc, gaps, open: false, aborted: false }
    }

    /// A seal of what was added, with what stands behind it.
    pub(crate) fn sealed(&self, seal: Seal) -> Sealed {
        Sealed { seal, marks: self.marks.clone() }
    }
}

/// The polynomial of CRC-32C, its bits reversed.
const POLYNOMIAL: u32 = 0x82F6_3B78;

/// `x^(2^n)` modulo the polynomial; bit 31 stands for `x^0`.
const POWERS: [u32; 48] = {
    let mut powers = [1 << 30; 48];
    let mut at = 1;
    while at < powers.len() {
        powers[at] = multiply(powers[at - 1], powers[at - 1]);
        at += 1;
    }
    powers
};

/// The product of two polynomials over the field of two, modulo the checksum's.
const fn multiply(a: u32, b: u32) -> u32 {
    let (mut product, mut shifted, mut bit) = (0, b, 32);
    while bit > 0 {
        bit -= 1;
        if a >> bit & 1 != 0 {
            product ^= shifted;
        }
        shifted = shifted >> 1 ^ if shifted & 1 != 0 { POLYNOMIAL } else { 0 };
    }
    product
}

/// The checksum of two pieces one after the other, from theirs and the length of the second: appending a
/// byte multiplies what came before by `x^8`.
pub(crate) fn combine(first: u32, second: u32, second_bytes: u64) -> u32 {
    let (mut moved, mut left, mut power) = (first, second_bytes, 3);
    while left > 0 && power < POWERS.len() {
        if left & 1 != 0 {
            moved = multiply(POWERS[power], moved);
        }
        left >>= 1;
        power += 1;
    }
    moved ^ second
}

#[cfg(test)]
mod tests {
    use super::*;
    use proptest::prelude::*;

    fn seal() -> Seal {
        Seal { base: 7, next: 4711, size: 1 << 33, crc: 0xdead_beef, gaps: true, open: false, aborted: true }
    }

    #[test]
    fn a_seal_reads_back_and_any_changed_byte_is_found() {
        let bytes = seal().encode();
        assert_eq!(bytes.len(), BYTES);
        assert_eq!(Seal::decode(&bytes, 7), Found::Seal(seal()));
        assert_eq!(Seal::decode(&[], 7), Found::Missing);
        assert!(matches!(Seal::decode(&bytes, 8), Found::Bad(_)));
        for at in 0..bytes.len() {
            for flip in 1..=255 {
                let mut changed = bytes.clone();
                changed[at] ^= flip;
                assert!(matches!(Seal::decode(&changed, 7), Found::Bad(_)), "byte {at} ^ {flip:#x}");
            }
            assert!(matches!(Seal::decode(&bytes[..at], 7), Found::Bad(_) | Found::Missing));
        }
    }

    proptest! {
        #[test]
        fn checksums_of_pieces_make_the_whole_ones(
            bytes in proptest::collection::vec(any::<u8>(), 0..5000),
            cut in any::<proptest::sample::Index>(),
        ) {
            let (first, second) = bytes.split_at(cut.index(bytes.len() + 1));
            let combined = combine(crc32c::crc32c(first), crc32c::crc32c(second), second.len() as u64);
            prop_assert_eq!(combined, crc32c::crc32c(&bytes));
        }
    }

    #[test]
    fn long_pieces_are_combined_too() {
        for len in [1 << 16, (1 << 24) + 12_345] {
            let second = vec![0xA5; len];
            let whole: Vec<u8> = b"first".iter().copied().chain(second.iter().copied()).collect();
            let combined = combine(crc32c::crc32c(b"first"), crc32c::crc32c(&second), len as u64);
            assert_eq!(combined, crc32c::crc32c(&whole));
        }
    }
}
