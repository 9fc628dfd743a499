//! Walks the batches of a segment's file, header by header.

use std::io;

use bytes::Bytes;
use felix_protocol::batch::{self, BatchHeader, HEADER_BYTES};
use felix_protocol::ids::Offset;

use crate::disk::DiskFile;

/// Bytes fetched at once.
const CHUNK: usize = 128 << 10;

/// Walks from a position that is the beginning of a batch up to `end`.
pub(crate) struct Walk<'a, F: DiskFile> {
    file: &'a F,
    /// Where the next batch begins.
    position: u64,
    end: u64,
    /// Lowest offset that the next batch may begin with.
    floor: Offset,
    buf: Vec<u8>,
    buf_at: u64,
}

/// A batch found.
#[derive(Clone, Copy, Debug)]
pub(crate) struct Step {
    pub position: u64,
    pub header: BatchHeader,
}

impl Step {
    pub(crate) fn end(&self) -> u64 {
        self.position + self.header.bytes as u64
    }
}

/// Why a walk stopped early.
#[derive(Debug)]
pub(crate) enum Broken {
    /// The file system refused.
    Io(io::Error),
    /// No whole, valid batch begins here.
    Batch { position: u64, reason: String },
}

impl From<io::Error> for Broken {
    fn from(error: io::Error) -> Self {
        Broken::Io(error)
    }
}

impl<'a, F: DiskFile> Walk<'a, F> {
    pub(crate) fn new(file: &'a F, position: u64, end: u64, floor: Offset) -> Walk<'a, F> {
        Walk { file, position, end, floor, buf: Vec::new(), buf_at: position }
    }

    /// The next batch's header, its bytes not looked at; `None` at the end.
    pub(crate) fn next_header(&mut self) -> Result<Option<Step>, Broken> {
        let position = self.position;
        if position >= self.end {
            return Ok(None);
        }
        let left = self.end - position;
        let want = usize::try_from(left).unwrap_or(usize::MAX).min(HEADER_BYTES);
        let head = self.bytes(position, want)?;
        let broken = |reason: String| Broken::Batch { position, reason };
        let header = BatchHeader::parse(head).map_err(|error| broken(error.to_string()))?;
        if header.bytes as u64 > left {
            return Err(broken(format!("batch is cut short: {left} of {} bytes", header.bytes)));
        }
        if header.base_offset < self.floor || !has_sound_offsets(&header) {
            return Err(broken(format!(
                "batch of offset {} and {} more where {} or more was due",
                header.base_offset, header.last_offset_delta, self.floor
            )));
        }
        self.floor = header.next_offset();
        self.position = position + header.bytes as u64;
        Ok(Some(Step { position, header }))
    }

    /// The next batch with its CRC checked.
    pub(crate) fn next_checked(&mut self) -> Result<Option<Step>, Broken> {
        let floor = self.floor;
        let Some(step) = self.next_header()? else { return Ok(None) };
        let bytes = self.batch(&step)?;
        if let Err(error) = batch::verify_crc(&step.header, bytes) {
            self.position = step.position;
            self.floor = floor;
            return Err(Broken::Batch { position: step.position, reason: error.to_string() });
        }
        Ok(Some(step))
    }

    /// The bytes of a batch found.
    pub(crate) fn batch(&mut self, step: &Step) -> Result<&[u8], Broken> {
        self.bytes(step.position, step.header.bytes)
    }

    /// The bytes of a batch found, to keep.
    pub(crate) fn batch_bytes(&mut self, step: &Step) -> Result<Bytes, Broken> {
        Ok(Bytes::copy_from_slice(self.batch(step)?))
    }

    fn bytes(&mut self, at: u64, len: usize) -> Result<&[u8], Broken> {
        let inside = at >= self.buf_at && at + len as u64 <= self.buf_at + self.buf.len() as u64;
        if !inside {
            let left = usize::try_from(self.end - at).unwrap_or(usize::MAX);
            let want = len.max(CHUNK.min(left));
            self.buf.clear();
            self.buf_at = at;
            while self.buf.len() < want {
                let have = self.buf.len();
                match self.file.read_at(&mut self.buf, want - have, at + have as u64) {
                    Ok(0) => break,
                    Ok(_) => {}
                    Err(error) if error.kind() == io::ErrorKind::Interrupted => {}
                    Err(error) => return Err(Broken::Io(error)),
                }
            }
            if self.buf.len() < len {
                return Err(Broken::Batch {
                    position: at,
                    reason: format!("file ends after {} of {len} bytes", self.buf.len()),
                });
            }
        }
        let from = usize::try_from(at - self.buf_at).unwrap_or(usize::MAX);
        Ok(&self.buf[from..from + len])
    }
}

/// Whether the offsets of a header that was read from a disk can be computed with.
pub(crate) fn has_sound_offsets(header: &BatchHeader) -> bool {
    header.base_offset >= 0
        && header.last_offset_delta >= 0
        && header.base_offset < Offset::MAX - i64::from(i32::MAX)
}

/// Looks for a whole, valid batch anywhere in `[from, end)` whose offsets are at or above `floor`: what
/// tells damage in the middle of a log from a torn tail.
pub(crate) fn valid_batch_after<F: DiskFile>(
    file: &F,
    from: u64,
    end: u64,
    floor: Offset,
) -> io::Result<Option<Offset>> {
    let found = valid_batch_at_or_after(file, from, end, floor)?;
    Ok(found.map(|step| step.header.base_offset))
}

/// The same, with where it is.
pub(crate) fn valid_batch_at_or_after<F: DiskFile>(
    file: &F,
    from: u64,
    end: u64,
    floor: Offset,
) -> io::Result<Option<Step>> {
    /// Bytes whose CRC is computed at most: garbage that looks like headers must not cost a start.
    const EFFORT: u64 = 256 << 20;
    let mut effort = 0;
    let mut at = from;
    let mut buf = Vec::new();
    while at < end {
        buf.clear();
        let want = usize::try_from(end - at).unwrap_or(usize::MAX).min(CHUNK);
        while buf.len() < want {
            let have = buf.len();
            if file.read_at(&mut buf, want - have, at + have as u64)? == 0 {
                break;
            }
        }
        if buf.len() < HEADER_BYTES {
            return Ok(None);
        }
        let starts = buf.len() - HEADER_BYTES + 1;
        for start in 0..starts {
            if buf[start + 16] != 2 {
                continue;
            }
            let Ok(header) = BatchHeader::parse(&buf[start..]) else { continue };
            let fits = at + start as u64 + header.bytes as u64 <= end;
            let plausible = header.base_offset >= floor
                && has_sound_offsets(&header)
                && header.records >= 0
                && header.generation.is_some();
            if !fits || !plausible {
                continue;
            }
            effort += header.bytes as u64;
            if effort > EFFORT {
                // Cannot tell; the safe answer is that something follows.
                return Ok(Some(Step { position: at + start as u64, header }));
            }
            let whole = crate::disk::read_up_to(file, header.bytes, at + start as u64)?;
            if batch::verify_crc(&header, &whole).is_ok() {
                return Ok(Some(Step { position: at + start as u64, header }));
            }
        }
        at += starts as u64;
    }
    Ok(None)
}
