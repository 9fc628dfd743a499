//! Kafka's plain encodings, read with every length checked.

use std::sync::Arc;

use bytes::{BufMut, Bytes, BytesMut};

use super::RecordError;
use crate::settings::NAME_MAX;

pub(super) struct Reader<'a> {
    bytes: &'a [u8],
    at: usize,
}

impl<'a> Reader<'a> {
    pub(super) fn new(bytes: &'a [u8]) -> Self {
        Reader { bytes, at: 0 }
    }

    fn malformed(&self) -> RecordError {
        RecordError::Malformed { at: self.at }
    }

    fn take(&mut self, count: usize) -> Result<&'a [u8], RecordError> {
        let end = self.at.checked_add(count).ok_or_else(|| self.malformed())?;
        let taken = self.bytes.get(self.at..end).ok_or_else(|| self.malformed())?;
        self.at = end;
        Ok(taken)
    }

    fn array<const N: usize>(&mut self) -> Result<[u8; N], RecordError> {
        let mut out = [0; N];
        out.copy_from_slice(self.take(N)?);
        Ok(out)
    }

    pub(super) fn i16(&mut self) -> Result<i16, RecordError> {
        self.array().map(i16::from_be_bytes)
    }

    pub(super) fn i32(&mut self) -> Result<i32, RecordError> {
        self.array().map(i32::from_be_bytes)
    }

    pub(super) fn i64(&mut self) -> Result<i64, RecordError> {
        self.array().map(i64::from_be_bytes)
    }

    /// An unsigned varint of at most 32 bits.
    fn varint(&mut self) -> Result<u32, RecordError> {
        let mut value: u32 = 0;
        for shift in (0..32).step_by(7) {
            let byte = self.array::<1>()?[0];
            let bits = u32::from(byte & 0x7f);
            if shift == 28 && bits > 0x0f {
                break;
            }
            value |= bits << shift;
            if byte & 0x80 == 0 {
                return Ok(value);
            }
        }
        Err(self.malformed())
    }

    fn text(&mut self, length: usize) -> Result<Arc<str>, RecordError> {
        let at = self.at;
        // A compact string can be longer than what it is written back as has room for.
        if length > NAME_MAX {
            return Err(self.malformed());
        }
        let bytes = self.take(length)?;
        std::str::from_utf8(bytes).map(Arc::from).map_err(|_| RecordError::NotText { at })
    }

    pub(super) fn nullable_string(&mut self) -> Result<Option<Arc<str>>, RecordError> {
        match self.i16()? {
            -1 => Ok(None),
            length => {
                let length = usize::try_from(length).map_err(|_| self.malformed())?;
                self.text(length).map(Some)
            }
        }
    }

    pub(super) fn string(&mut self) -> Result<Arc<str>, RecordError> {
        let at = self.at;
        self.nullable_string()?.ok_or(RecordError::Null { at })
    }

    pub(super) fn bytes(&mut self) -> Result<Bytes, RecordError> {
        let length = self.i32()?;
        let length = usize::try_from(length).map_err(|_| self.malformed())?;
        self.take(length).map(Bytes::copy_from_slice)
    }

    pub(super) fn array_len(&mut self) -> Result<usize, RecordError> {
        let length = self.i32()?;
        usize::try_from(length).map_err(|_| self.malformed())
    }

    /// One less than the varint, `None` for a null.
    fn compact_length(&mut self) -> Result<Option<usize>, RecordError> {
        let length = self.varint()?;
        let length = usize::try_from(length).map_err(|_| self.malformed())?;
        Ok(length.checked_sub(1))
    }

    pub(super) fn compact_nullable_string(&mut self) -> Result<Option<Arc<str>>, RecordError> {
        match self.compact_length()? {
            None => Ok(None),
            Some(length) => self.text(length).map(Some),
        }
    }

    pub(super) fn compact_string(&mut self) -> Result<Arc<str>, RecordError> {
        let at = self.at;
        self.compact_nullable_string()?.ok_or(RecordError::Null { at })
    }

    pub(super) fn compact_bytes(&mut self) -> Result<Bytes, RecordError> {
        let at = self.at;
        let length = self.compact_length()?.ok_or(RecordError::Null { at })?;
        self.take(length).map(Bytes::copy_from_slice)
    }

    pub(super) fn compact_array_len(&mut self) -> Result<usize, RecordError> {
        let at = self.at;
        self.compact_length()?.ok_or(RecordError::Null { at })
    }

    /// Tagged fields, none of which matters here.
    pub(super) fn skip_tags(&mut self) -> Result<(), RecordError> {
        for _ in 0..self.varint()? {
            self.varint()?;
            let size = self.varint()?;
            let size = usize::try_from(size).map_err(|_| self.malformed())?;
            self.take(size)?;
        }
        Ok(())
    }
}

#[derive(Default)]
pub(super) struct Writer {
    bytes: BytesMut,
}

impl Writer {
    pub(super) fn i16(&mut self, value: i16) {
        self.bytes.put_i16(value);
    }

    pub(super) fn i32(&mut self, value: i32) {
        self.bytes.put_i32(value);
    }

    pub(super) fn i64(&mut self, value: i64) {
        self.bytes.put_i64(value);
    }

    pub(super) fn string(&mut self, text: &str) {
        // Invariant: every name was checked against NAME_MAX when its request came in.
        let length = i16::try_from(text.len()).expect("a stored name fits an i16 length");
        self.bytes.put_i16(length);
        self.bytes.put_slice(text.as_bytes());
    }

    pub(super) fn nullable_string(&mut self, text: Option<&str>) {
        match text {
            None => self.bytes.put_i16(-1),
            Some(text) => self.string(text),
        }
    }

    pub(super) fn bytes(&mut self, bytes: &[u8]) {
        self.count(bytes.len());
        self.bytes.put_slice(bytes);
    }

    /// Invariant: a group's bytes and members are bounded far below 2 GiB by the settings.
    pub(super) fn count(&mut self, count: usize) {
        self.bytes.put_i32(i32::try_from(count).expect("a stored group is far below 2 GiB"));
    }

    pub(super) fn finish(self) -> Bytes {
        self.bytes.freeze()
    }
}
