//! Snappy as Java's library frames it: a header of 16 bytes, then chunks, each a length of 32 bits and a raw
//! block. Input without the header is one raw block (librdkafka sends such).

use std::io::{self, Read, Write};

use super::invalid;

/// What the Java library writes in front, with its version and the oldest that can read it.
const HEADER: [u8; 16] = [0x82, b'S', b'N', b'A', b'P', b'P', b'Y', 0, 0, 0, 0, 1, 0, 0, 0, 1];
const MAGIC_BYTES: usize = 8;
/// The Java library's own chunk size.
const CHUNK_BYTES: usize = 32 * 1024;
/// Snappy's densest element is a copy of 64 bytes in 3.
const DENSEST: usize = 64;

pub(in crate::batch) struct Reader<'a> {
    packed: &'a [u8],
    framed: bool,
    chunk: Vec<u8>,
    taken: usize,
}

impl<'a> Reader<'a> {
    pub(super) fn new(packed: &'a [u8]) -> Reader<'a> {
        let framed = packed.len() >= HEADER.len() && packed.starts_with(&HEADER[..MAGIC_BYTES]);
        Reader { packed, framed, chunk: Vec::new(), taken: 0 }
    }

    pub(super) fn unread(&self) -> usize {
        self.packed.len()
    }

    /// Unpacks the next chunk; `false` at the end.
    fn fill(&mut self) -> io::Result<bool> {
        if !self.framed {
            let block = std::mem::take(&mut self.packed);
            return if block.is_empty() { Ok(false) } else { self.block(block).map(|()| true) };
        }
        // Streams one after another are legal: a header may stand where a chunk could.
        while self.packed.starts_with(&HEADER[..MAGIC_BYTES]) {
            self.packed = self.packed.get(HEADER.len()..).ok_or_else(|| invalid("cut snappy header"))?;
        }
        if self.packed.is_empty() {
            return Ok(false);
        }
        let (length, rest) =
            self.packed.split_first_chunk::<4>().ok_or_else(|| invalid("cut snappy chunk length"))?;
        let length = u32::from_be_bytes(*length) as usize;
        let (block, rest) = rest.split_at_checked(length).ok_or_else(|| invalid("cut snappy chunk"))?;
        self.packed = rest;
        self.block(block).map(|()| true)
    }

    fn block(&mut self, block: &[u8]) -> io::Result<()> {
        self.taken = 0;
        self.chunk.clear();
        let length = snap::raw::decompress_len(block)?;
        // The length is only a promise: allocate no more than so many packed bytes can hold.
        if length > block.len().saturating_mul(DENSEST) {
            return Err(invalid("impossible snappy length"));
        }
        self.chunk.resize(length, 0);
        let written = snap::raw::Decoder::new().decompress(block, &mut self.chunk)?;
        self.chunk.truncate(written);
        Ok(())
    }
}

impl Read for Reader<'_> {
    fn read(&mut self, buffer: &mut [u8]) -> io::Result<usize> {
        // A chunk may be empty, and an empty read would look like the end.
        while self.taken == self.chunk.len() {
            if !self.fill()? {
                return Ok(0);
            }
        }
        let read = (&self.chunk[self.taken..]).read(buffer)?;
        self.taken += read;
        Ok(read)
    }
}

pub(in crate::batch) struct Writer {
    packed: Vec<u8>,
    chunk: Vec<u8>,
}

impl Writer {
    pub(super) fn new(mut behind: Vec<u8>) -> Writer {
        behind.extend_from_slice(&HEADER);
        Writer { packed: behind, chunk: Vec::with_capacity(CHUNK_BYTES) }
    }

    pub(super) fn written(&self) -> usize {
        self.packed.len()
    }

    fn end_chunk(&mut self) -> io::Result<()> {
        if self.chunk.is_empty() {
            return Ok(());
        }
        let at = self.packed.len();
        let most = snap::raw::max_compress_len(self.chunk.len());
        self.packed.resize(at + 4 + most, 0);
        let length = snap::raw::Encoder::new().compress(&self.chunk, &mut self.packed[at + 4..])?;
        self.packed.truncate(at + 4 + length);
        let length = u32::try_from(length).map_err(io::Error::other)?;
        self.packed[at..at + 4].copy_from_slice(&length.to_be_bytes());
        self.chunk.clear();
        Ok(())
    }

    pub(super) fn finish(mut self) -> io::Result<Vec<u8>> {
        self.end_chunk()?;
        Ok(self.packed)
    }
}

impl Write for Writer {
    fn write(&mut self, bytes: &[u8]) -> io::Result<usize> {
        let taken = bytes.len().min(CHUNK_BYTES - self.chunk.len());
        self.chunk.extend_from_slice(&bytes[..taken]);
        if self.chunk.len() == CHUNK_BYTES {
            self.end_chunk()?;
        }
        Ok(taken)
    }

    fn flush(&mut self) -> io::Result<()> {
        Ok(())
    }
}
