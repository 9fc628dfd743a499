//! The records of any batch, compressed or not, one at a time.
//!
//! Uncompressed records are read in place. Compressed ones stream through a window that holds one record at a
//! time, so that memory does not depend on what the batch unpacks to.

use std::io::Read;

use super::compression::{Codec, Unpack};
use super::records::{Record, RecordFault, Records, varint};
use super::{BatchHeader, HEADER_BYTES};

/// What one batch may unpack to.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub struct Limits {
    /// All records together. Bounds the time that a small batch can cost.
    pub batch_bytes: u64,
    /// One record. Bounds the memory. Kafka's `max.decompressed.message.bytes`.
    pub record_bytes: usize,
}

impl Limits {
    /// For batches that the broker itself has already checked.
    pub const NONE: Limits = Limits { batch_bytes: u64::MAX, record_bytes: i32::MAX as usize };

    /// Far beyond what honest data packs to, and still done in a second: 64 MiB, or 300 times the packed size
    /// where that is more.
    pub fn for_packed(bytes: usize) -> Limits {
        let batch_bytes = (64 << 20).max((bytes as u64).saturating_mul(300));
        Limits { batch_bytes, ..Limits::NONE }
    }
}

/// Reads the records of one batch in order. Not an `Iterator`: a record lives until the next is asked for.
pub struct BatchRecords<'a> {
    source: Source<'a>,
}

enum Source<'a> {
    Plain(Records<'a>),
    Packed(Box<Stream<'a>>),
}

impl<'a> BatchRecords<'a> {
    /// The records of `batch`, which `header` was read from and which must be whole.
    pub fn new(
        header: &BatchHeader,
        batch: &'a [u8],
        limits: Limits,
    ) -> Result<BatchRecords<'a>, RecordFault> {
        let packed = batch.get(HEADER_BYTES..header.bytes).ok_or(RecordFault::Short)?;
        let codec = header.codec().ok_or(RecordFault::Codec(header.codec_bits()))?;
        let count = u32::try_from(header.records);
        let count = count.map_err(|_| RecordFault::Length(i64::from(header.records)))?;
        let source = match codec {
            Codec::None => Source::Plain(Records::new(packed, count)),
            // A batch that compaction emptied has no records, and nothing to unpack.
            Codec::Gzip | Codec::Snappy | Codec::Lz4 | Codec::Zstd if count == 0 && packed.is_empty() => {
                Source::Plain(Records::new(packed, 0))
            }
            Codec::Gzip | Codec::Snappy | Codec::Lz4 | Codec::Zstd => {
                Source::Packed(Box::new(Stream::new(codec, packed, count, limits)?))
            }
        };
        Ok(BatchRecords { source })
    }

    /// The next record. `None` after the last, when nothing is left behind it.
    #[expect(clippy::should_implement_trait, reason = "the record borrows from the reader")]
    pub fn next(&mut self) -> Option<Result<Record<'_>, RecordFault>> {
        match &mut self.source {
            Source::Plain(records) => records.next(),
            Source::Packed(stream) => stream.next(),
        }
    }
}

/// A window over unpacked bytes: `window[from..to]` is read and not yet used.
struct Stream<'a> {
    codec: Codec,
    unpack: Unpack<'a>,
    window: Vec<u8>,
    from: usize,
    to: usize,
    unpacked: u64,
    left: u32,
    limits: Limits,
}

const WINDOW_BYTES: usize = 16 * 1024;
/// The longest length of a record.
const LENGTH_BYTES: usize = 5;

impl<'a> Stream<'a> {
    fn new(codec: Codec, packed: &'a [u8], left: u32, limits: Limits) -> Result<Stream<'a>, RecordFault> {
        let unpack = Unpack::new(codec, packed)
            .map_err(|error| RecordFault::Unpack { codec, reason: error.to_string() })?;
        let window = vec![0; WINDOW_BYTES];
        Ok(Stream { codec, unpack, window, from: 0, to: 0, unpacked: 0, left, limits })
    }

    fn next(&mut self) -> Option<Result<Record<'_>, RecordFault>> {
        if self.left == 0 {
            return None;
        }
        self.left -= 1;
        let body = match self.body() {
            Ok(body) => body,
            Err(fault) => {
                self.left = 0;
                return Some(Err(fault));
            }
        };
        let record = Record::parse(&self.window[body.0..body.1]);
        if record.is_err() {
            self.left = 0;
        }
        Some(record)
    }

    /// Brings the next record into the window and says where its body is.
    fn body(&mut self) -> Result<(usize, usize), RecordFault> {
        self.want(LENGTH_BYTES)?;
        let mut rest = &self.window[self.from..self.to];
        let before = rest.len();
        let length = varint(&mut rest)?;
        self.from += before - rest.len();
        let length = usize::try_from(length).map_err(|_| RecordFault::Length(i64::from(length)))?;
        if length > self.limits.record_bytes {
            return Err(RecordFault::RecordTooLarge { bytes: length, max: self.limits.record_bytes });
        }
        self.want(length)?;
        if self.to - self.from < length {
            return Err(RecordFault::Short);
        }
        let body = (self.from, self.from + length);
        self.from += length;
        if self.left == 0 {
            self.end()?;
        }
        Ok(body)
    }

    /// Behind the last record there must be nothing, unpacked or packed.
    fn end(&mut self) -> Result<(), RecordFault> {
        if self.from < self.to {
            return Err(RecordFault::Remaining);
        }
        let mut one = [0];
        // Reading the end also lets the codec check its own checksum.
        if self.read(&mut one)? == 0 && self.unpack.unread() == 0 {
            Ok(())
        } else {
            Err(RecordFault::Remaining)
        }
    }

    /// Has at least `bytes` in the window, or all that is left. The window grows only by what really came: a
    /// length that lies costs nothing.
    fn want(&mut self, bytes: usize) -> Result<(), RecordFault> {
        if self.to - self.from >= bytes {
            return Ok(());
        }
        self.window.copy_within(self.from..self.to, 0);
        self.to -= self.from;
        self.from = 0;
        while self.to < bytes {
            if self.to == self.window.len() {
                let room = (self.window.len() * 2).min(bytes.max(WINDOW_BYTES));
                self.window.resize(room, 0);
            }
            let mut window = std::mem::take(&mut self.window);
            let read = self.read(&mut window[self.to..]);
            self.window = window;
            match read? {
                0 => break,
                read => self.to += read,
            }
        }
        Ok(())
    }

    fn read(&mut self, buffer: &mut [u8]) -> Result<usize, RecordFault> {
        let read = self
            .unpack
            .read(buffer)
            .map_err(|error| RecordFault::Unpack { codec: self.codec, reason: error.to_string() })?;
        self.unpacked += read as u64;
        if self.unpacked > self.limits.batch_bytes {
            return Err(RecordFault::BatchTooLarge { max: self.limits.batch_bytes });
        }
        Ok(read)
    }
}

#[cfg(test)]
#[expect(clippy::cast_possible_truncation, reason = "the tests choose small numbers")]
mod tests;
