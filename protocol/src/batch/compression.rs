//! The five codecs of record batches, streaming in both directions.
//!
//! Reading never holds more than a window of the decompressed bytes, so a batch that unpacks to gigabytes
//! costs time (which its reader bounds, see [`Limits`](super::Limits)) but no memory.
//!
//! What is peculiar to Kafka: snappy comes in the chunks of the Java library (librdkafka sends one raw block,
//! and both must be read), lz4 is the frame format with independent blocks only (Java clients refuse others),
//! and gzip may have several members.

use std::fmt;
use std::io::{self, Read, Write};

use flate2::bufread::MultiGzDecoder;
use flate2::write::GzEncoder;
use lz4_flex::frame::{BlockMode, BlockSize, FrameDecoder, FrameEncoder, FrameInfo};

mod snappy;

/// The greatest zstd window that is accepted: what zstd itself allows by default, and what its highest level
/// uses.
const ZSTD_WINDOW_LOG_MAX: u32 = 27;
/// Every lz4 frame begins with it.
const LZ4_MAGIC: [u8; 4] = [0x04, 0x22, 0x4d, 0x18];
/// In the byte behind: "blocks do not depend on each other".
const LZ4_INDEPENDENT: u8 = 0x20;

/// How the records of a batch are compressed: the low three bits of its attributes.
#[derive(Clone, Copy, Debug, PartialEq, Eq, PartialOrd, Ord, Hash)]
pub enum Codec {
    /// Not at all.
    None,
    /// Deflate with the header of gzip.
    Gzip,
    /// Snappy.
    Snappy,
    /// The frame format of lz4.
    Lz4,
    /// Zstandard.
    Zstd,
}

impl Codec {
    /// All of them, in the order of their numbers.
    pub const ALL: [Codec; 5] = [Codec::None, Codec::Gzip, Codec::Snappy, Codec::Lz4, Codec::Zstd];

    /// The codec with this number; `None` for 5, 6 and 7, which nobody has given a meaning.
    pub fn from_bits(bits: i16) -> Option<Codec> {
        usize::try_from(bits).ok().and_then(|at| Codec::ALL.get(at)).copied()
    }

    /// Its number.
    pub fn bits(self) -> i16 {
        match self {
            Codec::None => 0,
            Codec::Gzip => 1,
            Codec::Snappy => 2,
            Codec::Lz4 => 3,
            Codec::Zstd => 4,
        }
    }

    /// Kafka's name for it in `compression.type`.
    pub fn name(self) -> &'static str {
        match self {
            Codec::None => "uncompressed",
            Codec::Gzip => "gzip",
            Codec::Snappy => "snappy",
            Codec::Lz4 => "lz4",
            Codec::Zstd => "zstd",
        }
    }

    /// The level that Kafka uses unless told otherwise. Snappy has none.
    pub fn default_level(self) -> i32 {
        match self {
            Codec::None | Codec::Snappy => 0,
            Codec::Gzip => -1,
            Codec::Lz4 => 9,
            Codec::Zstd => 3,
        }
    }
}

impl fmt::Display for Codec {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        f.write_str(self.name())
    }
}

/// Reads what a codec packed.
pub(super) enum Unpack<'a> {
    Plain(&'a [u8]),
    Gzip(Box<MultiGzDecoder<&'a [u8]>>),
    Snappy(snappy::Reader<'a>),
    Lz4(Box<FrameDecoder<&'a [u8]>>),
    Zstd(Box<zstd::stream::read::Decoder<'static, &'a [u8]>>),
}

impl<'a> Unpack<'a> {
    pub(super) fn new(codec: Codec, packed: &'a [u8]) -> io::Result<Unpack<'a>> {
        Ok(match codec {
            Codec::None => Unpack::Plain(packed),
            Codec::Gzip => Unpack::Gzip(Box::new(MultiGzDecoder::new(packed))),
            Codec::Snappy => Unpack::Snappy(snappy::Reader::new(packed)),
            Codec::Lz4 => {
                let independent = packed.get(4).is_some_and(|flags| flags & LZ4_INDEPENDENT != 0);
                if !packed.starts_with(&LZ4_MAGIC) || !independent {
                    return Err(invalid("not an lz4 frame of independent blocks"));
                }
                Unpack::Lz4(Box::new(FrameDecoder::new(packed)))
            }
            Codec::Zstd => {
                let mut decoder = zstd::stream::read::Decoder::with_buffer(packed)?;
                decoder.window_log_max(ZSTD_WINDOW_LOG_MAX)?;
                Unpack::Zstd(Box::new(decoder))
            }
        })
    }

    /// Packed bytes that were not read. Asked when the unpacked end was reached: some are junk then.
    pub(super) fn unread(&self) -> usize {
        match self {
            Unpack::Plain(rest) => rest.len(),
            Unpack::Gzip(decoder) => decoder.get_ref().len(),
            Unpack::Snappy(reader) => reader.unread(),
            Unpack::Lz4(decoder) => decoder.get_ref().len(),
            Unpack::Zstd(decoder) => decoder.get_ref().len(),
        }
    }
}

impl Read for Unpack<'_> {
    fn read(&mut self, buffer: &mut [u8]) -> io::Result<usize> {
        match self {
            Unpack::Plain(rest) => rest.read(buffer),
            Unpack::Gzip(decoder) => decoder.read(buffer),
            Unpack::Snappy(reader) => reader.read(buffer),
            Unpack::Lz4(decoder) => decoder.read(buffer),
            Unpack::Zstd(decoder) => decoder.read(buffer),
        }
    }
}

/// Packs with a codec, behind bytes that are already there.
pub(super) enum Pack {
    Plain(Vec<u8>),
    Gzip(GzEncoder<Vec<u8>>),
    Snappy(snappy::Writer),
    Lz4(Box<FrameEncoder<Vec<u8>>>),
    Zstd(zstd::stream::write::Encoder<'static, Vec<u8>>),
}

impl Pack {
    /// Levels are Kafka's: for gzip 1 to 9 or -1, for zstd -131072 to 22, for lz4 1 to 17 (of which the
    /// library here knows only the fastest). Levels beyond are brought within.
    pub(super) fn new(codec: Codec, level: i32, behind: Vec<u8>) -> io::Result<Pack> {
        Ok(match codec {
            Codec::None => Pack::Plain(behind),
            Codec::Gzip => {
                let level = match u32::try_from(level) {
                    Ok(level) => flate2::Compression::new(level.clamp(1, 9)),
                    Err(_) => flate2::Compression::default(),
                };
                Pack::Gzip(GzEncoder::new(behind, level))
            }
            Codec::Snappy => Pack::Snappy(snappy::Writer::new(behind)),
            Codec::Lz4 => {
                let info = FrameInfo::new().block_mode(BlockMode::Independent).block_size(BlockSize::Max64KB);
                Pack::Lz4(Box::new(FrameEncoder::with_frame_info(info, behind)))
            }
            Codec::Zstd => {
                let range = zstd::compression_level_range();
                let level = level.clamp(*range.start(), *range.end());
                Pack::Zstd(zstd::stream::write::Encoder::new(behind, level)?)
            }
        })
    }

    /// Bytes written so far, with those that were there before. A codec may hold some back.
    pub(super) fn written(&self) -> usize {
        match self {
            Pack::Plain(bytes) => bytes.len(),
            Pack::Gzip(encoder) => encoder.get_ref().len(),
            Pack::Snappy(writer) => writer.written(),
            Pack::Lz4(encoder) => encoder.get_ref().len(),
            Pack::Zstd(encoder) => encoder.get_ref().len(),
        }
    }

    /// Ends the packed stream; what was behind it comes first.
    pub(super) fn finish(self) -> io::Result<Vec<u8>> {
        match self {
            Pack::Plain(bytes) => Ok(bytes),
            Pack::Gzip(encoder) => encoder.finish(),
            Pack::Snappy(writer) => writer.finish(),
            Pack::Lz4(encoder) => encoder.finish().map_err(io::Error::other),
            Pack::Zstd(encoder) => encoder.finish(),
        }
    }
}

impl Write for Pack {
    fn write(&mut self, bytes: &[u8]) -> io::Result<usize> {
        match self {
            Pack::Plain(all) => all.write(bytes),
            Pack::Gzip(encoder) => encoder.write(bytes),
            Pack::Snappy(writer) => writer.write(bytes),
            Pack::Lz4(encoder) => encoder.write(bytes),
            Pack::Zstd(encoder) => encoder.write(bytes),
        }
    }

    fn flush(&mut self) -> io::Result<()> {
        Ok(())
    }
}

fn invalid(what: &'static str) -> io::Error {
    io::Error::new(io::ErrorKind::InvalidData, what)
}

#[cfg(test)]
#[expect(clippy::cast_possible_truncation, reason = "the tests want bytes")]
mod tests {
    use super::*;
    use proptest::prelude::*;

    fn pack(codec: Codec, level: i32, plain: &[u8]) -> Vec<u8> {
        let mut pack = Pack::new(codec, level, Vec::new()).unwrap();
        // In uneven pieces, as records come.
        for piece in plain.chunks(777) {
            pack.write_all(piece).unwrap();
        }
        pack.finish().unwrap()
    }

    fn unpack(codec: Codec, packed: &[u8]) -> io::Result<Vec<u8>> {
        let mut unpack = Unpack::new(codec, packed)?;
        let mut plain = Vec::new();
        unpack.read_to_end(&mut plain)?;
        if unpack.unread() == 0 { Ok(plain) } else { Err(invalid("junk")) }
    }

    fn some_text(bytes: usize) -> Vec<u8> {
        (0..bytes).map(|at| ((at * at / 7) % 251) as u8 & 0x1f).collect()
    }

    #[test]
    fn every_codec_gives_back_what_it_was_given() {
        for codec in Codec::ALL {
            assert_eq!(Codec::from_bits(codec.bits()), Some(codec));
            for bytes in [0, 1, 5, 1000, 32 * 1024, 32 * 1024 + 1, 300_000] {
                let plain = some_text(bytes);
                let packed = pack(codec, codec.default_level(), &plain);
                assert_eq!(unpack(codec, &packed).unwrap(), plain, "{codec} {bytes}");
            }
        }
        assert_eq!(Codec::from_bits(5), None);
        assert_eq!(Codec::from_bits(-1), None);
    }

    #[test]
    fn levels_out_of_range_are_brought_within() {
        for (codec, level) in [(Codec::Gzip, 100), (Codec::Gzip, -7), (Codec::Zstd, 99), (Codec::Zstd, -5)] {
            let plain = some_text(10_000);
            assert_eq!(unpack(codec, &pack(codec, level, &plain)).unwrap(), plain);
        }
    }

    #[test]
    fn a_raw_snappy_block_is_read_too() {
        let plain = some_text(100_000);
        let packed = snap::raw::Encoder::new().compress_vec(&plain).unwrap();
        assert_eq!(unpack(Codec::Snappy, &packed).unwrap(), plain);
    }

    #[test]
    fn gzip_members_one_after_another_are_read_as_one() {
        let mut packed = pack(Codec::Gzip, 1, b"one ");
        packed.extend(pack(Codec::Gzip, 9, b"two"));
        assert_eq!(unpack(Codec::Gzip, &packed).unwrap(), b"one two");
    }

    #[test]
    fn lz4_blocks_that_depend_on_each_other_are_refused_as_java_does() {
        let info = FrameInfo::new().block_mode(BlockMode::Linked);
        let mut encoder = FrameEncoder::with_frame_info(info, Vec::new());
        encoder.write_all(&some_text(200_000)).unwrap();
        let packed = encoder.finish().unwrap();
        assert!(unpack(Codec::Lz4, &packed).is_err());
    }

    #[test]
    fn a_snappy_block_cannot_promise_more_than_it_could_hold() {
        // A length of 2^32 - 1 in front of nothing.
        let packed = [0xff, 0xff, 0xff, 0xff, 0x0f, 0x00];
        assert!(unpack(Codec::Snappy, &packed).is_err());
    }

    #[test]
    fn cut_streams_are_errors_or_short_never_longer() {
        for codec in Codec::ALL.into_iter().skip(1) {
            let plain = some_text(70_000);
            let packed = pack(codec, codec.default_level(), &plain);
            for end in [0, 1, 3, 10, packed.len() / 2, packed.len() - 1] {
                if let Ok(read) = unpack(codec, &packed[..end]) {
                    assert!(read.len() <= plain.len() && plain.starts_with(&read), "{codec} cut at {end}");
                }
            }
        }
    }

    proptest! {
        #[test]
        fn random_bytes_never_panic(packed in proptest::collection::vec(any::<u8>(), 0..300)) {
            for codec in Codec::ALL {
                let _ = unpack(codec, &packed);
            }
        }

        #[test]
        fn damaged_streams_never_panic(
            plain in proptest::collection::vec(any::<u8>(), 0..3000),
            at in any::<prop::sample::Index>(),
            byte in any::<u8>(),
        ) {
            for codec in Codec::ALL {
                let mut packed = pack(codec, codec.default_level(), &plain);
                if !packed.is_empty() {
                    let at = at.index(packed.len());
                    packed[at] = byte;
                }
                let _ = unpack(codec, &packed);
            }
        }
    }
}
