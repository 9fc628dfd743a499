//! Kafka's primitive types, written and read by hand. Small on purpose: what it encodes is meant to be checked against Kafka's protocol
//! guide by eye, and it shares nothing with `felix-protocol`.

#![expect(
    clippy::cast_possible_truncation,
    reason = "lengths here are those of small requests, and varints are cut on purpose"
)]

use anyhow::{Context, Result, bail};

/// Bytes of a request being written. Methods chain.
#[derive(Debug, Clone, Default)]
pub struct W(Vec<u8>);

impl W {
    /// Nothing yet.
    pub fn new() -> Self {
        Self::default()
    }

    /// What was written.
    pub fn done(self) -> Vec<u8> {
        self.0
    }

    /// How many bytes were written.
    pub fn len(&self) -> usize {
        self.0.len()
    }

    /// Bytes as they are.
    pub fn raw(mut self, bytes: &[u8]) -> Self {
        self.0.extend_from_slice(bytes);
        self
    }

    /// A boolean.
    pub fn bool(self, value: bool) -> Self {
        self.raw(&[u8::from(value)])
    }

    /// A signed byte.
    pub fn i8(self, value: i8) -> Self {
        self.raw(&value.to_be_bytes())
    }

    /// Two bytes.
    pub fn i16(self, value: i16) -> Self {
        self.raw(&value.to_be_bytes())
    }

    /// Four bytes.
    pub fn i32(self, value: i32) -> Self {
        self.raw(&value.to_be_bytes())
    }

    /// Eight bytes.
    pub fn i64(self, value: i64) -> Self {
        self.raw(&value.to_be_bytes())
    }

    /// An unsigned varint.
    pub fn uvarint(mut self, mut value: u32) -> Self {
        while value >= 0x80 {
            self.0.push((value & 0x7f) as u8 | 0x80);
            value >>= 7;
        }
        self.0.push(value as u8);
        self
    }

    /// A zigzag varint of up to 64 bits.
    pub fn varint(mut self, value: i64) -> Self {
        let mut zigzag = ((value << 1) ^ (value >> 63)) as u64;
        while zigzag >= 0x80 {
            self.0.push((zigzag & 0x7f) as u8 | 0x80);
            zigzag >>= 7;
        }
        self.0.push(zigzag as u8);
        self
    }

    /// The number of elements of a classic array (they follow).
    pub fn array(self, count: usize) -> Self {
        self.i32(count as i32)
    }

    /// The number of elements of a compact array.
    pub fn carray(self, count: usize) -> Self {
        self.uvarint(count as u32 + 1)
    }

    /// A classic string.
    pub fn str(self, value: &str) -> Self {
        self.i16(value.len() as i16).raw(value.as_bytes())
    }

    /// A classic nullable string.
    pub fn nstr(self, value: Option<&str>) -> Self {
        match value {
            Some(value) => self.str(value),
            None => self.i16(-1),
        }
    }

    /// A compact string.
    pub fn cstr(self, value: &str) -> Self {
        self.uvarint(value.len() as u32 + 1).raw(value.as_bytes())
    }

    /// A compact nullable string.
    pub fn cnstr(self, value: Option<&str>) -> Self {
        match value {
            Some(value) => self.cstr(value),
            None => self.uvarint(0),
        }
    }

    /// Classic bytes.
    pub fn bytes(self, value: &[u8]) -> Self {
        self.i32(value.len() as i32).raw(value)
    }

    /// Compact bytes.
    pub fn cbytes(self, value: &[u8]) -> Self {
        self.uvarint(value.len() as u32 + 1).raw(value)
    }

    /// No tagged fields.
    pub fn tags(self) -> Self {
        self.uvarint(0)
    }
}

/// A response being read. Every method fails at the end of the bytes.
#[derive(Debug, Clone)]
pub struct R {
    bytes: Vec<u8>,
    at: usize,
}

impl R {
    /// Reads these bytes.
    pub fn new(bytes: Vec<u8>) -> Self {
        Self { bytes, at: 0 }
    }

    /// How many bytes are left.
    pub fn left(&self) -> usize {
        self.bytes.len() - self.at
    }

    /// Fails unless everything was read.
    pub fn end(&self) -> Result<()> {
        if self.left() != 0 {
            bail!("{} bytes follow the response", self.left());
        }
        Ok(())
    }

    /// Some bytes as they are.
    pub fn raw(&mut self, count: usize) -> Result<&[u8]> {
        let end = self.at.checked_add(count).filter(|end| *end <= self.bytes.len());
        let end = end.with_context(|| format!("{count} bytes wanted, {} left", self.left()))?;
        let slice = &self.bytes[self.at..end];
        self.at = end;
        Ok(slice)
    }

    fn fixed<const N: usize>(&mut self) -> Result<[u8; N]> {
        Ok(self.raw(N)?.try_into()?)
    }

    /// A boolean, as strict as Kafka writes it.
    pub fn bool(&mut self) -> Result<bool> {
        match self.i8()? {
            0 => Ok(false),
            1 => Ok(true),
            other => bail!("{other} is no boolean"),
        }
    }

    /// A signed byte.
    pub fn i8(&mut self) -> Result<i8> {
        Ok(i8::from_be_bytes(self.fixed()?))
    }

    /// Two bytes.
    pub fn i16(&mut self) -> Result<i16> {
        Ok(i16::from_be_bytes(self.fixed()?))
    }

    /// Four bytes.
    pub fn i32(&mut self) -> Result<i32> {
        Ok(i32::from_be_bytes(self.fixed()?))
    }

    /// Eight bytes.
    pub fn i64(&mut self) -> Result<i64> {
        Ok(i64::from_be_bytes(self.fixed()?))
    }

    /// A topic id.
    pub fn uuid(&mut self) -> Result<[u8; 16]> {
        self.fixed()
    }

    /// An unsigned varint.
    pub fn uvarint(&mut self) -> Result<u32> {
        let mut value = 0_u32;
        for shift in (0..35).step_by(7) {
            let byte = self.fixed::<1>()?[0];
            value |= u32::from(byte & 0x7f).checked_shl(shift).unwrap_or(0);
            if byte & 0x80 == 0 {
                return Ok(value);
            }
        }
        bail!("a varint of more than five bytes")
    }

    /// A zigzag varint.
    pub fn varint(&mut self) -> Result<i64> {
        let mut zigzag = 0_u64;
        for shift in (0..70).step_by(7) {
            let byte = self.fixed::<1>()?[0];
            zigzag |= u64::from(byte & 0x7f).checked_shl(shift).unwrap_or(0);
            if byte & 0x80 == 0 {
                return Ok((zigzag >> 1) as i64 ^ -((zigzag & 1) as i64));
            }
        }
        bail!("a varint of more than ten bytes")
    }

    fn sized(&mut self, length: i64) -> Result<Option<String>> {
        match length {
            -1 => Ok(None),
            0.. => Ok(Some(String::from_utf8(self.raw(length as usize)?.to_vec())?)),
            _ => bail!("a length of {length}"),
        }
    }

    /// A classic nullable string.
    pub fn nstr(&mut self) -> Result<Option<String>> {
        let length = i64::from(self.i16()?);
        self.sized(length)
    }

    /// A classic string.
    pub fn str(&mut self) -> Result<String> {
        self.nstr()?.context("null where a string must be")
    }

    /// A compact nullable string.
    pub fn cnstr(&mut self) -> Result<Option<String>> {
        let length = i64::from(self.uvarint()?) - 1;
        self.sized(length)
    }

    /// A compact string.
    pub fn cstr(&mut self) -> Result<String> {
        self.cnstr()?.context("null where a string must be")
    }

    /// Classic nullable bytes.
    pub fn nbytes(&mut self) -> Result<Option<Vec<u8>>> {
        match self.i32()? {
            -1 => Ok(None),
            length @ 0.. => Ok(Some(self.raw(length as usize)?.to_vec())),
            length => bail!("a length of {length}"),
        }
    }

    /// Compact nullable bytes.
    pub fn cnbytes(&mut self) -> Result<Option<Vec<u8>>> {
        match self.uvarint()? {
            0 => Ok(None),
            length => Ok(Some(self.raw(length as usize - 1)?.to_vec())),
        }
    }

    /// The number of elements of a classic array; null counts as none.
    pub fn array(&mut self) -> Result<usize> {
        match self.i32()? {
            -1 => Ok(0),
            count @ 0.. => Ok(count as usize),
            count => bail!("{count} elements"),
        }
    }

    /// The number of elements of a compact array; null counts as none.
    pub fn carray(&mut self) -> Result<usize> {
        Ok((self.uvarint()? as usize).saturating_sub(1))
    }

    /// Elements of a classic array.
    pub fn each<T>(&mut self, mut element: impl FnMut(&mut Self) -> Result<T>) -> Result<Vec<T>> {
        let count = self.array()?;
        (0..count).map(|_| element(self)).collect()
    }

    /// Elements of a compact array.
    pub fn ceach<T>(&mut self, mut element: impl FnMut(&mut Self) -> Result<T>) -> Result<Vec<T>> {
        let count = self.carray()?;
        (0..count).map(|_| element(self)).collect()
    }

    /// Tagged fields, as (tag, content).
    pub fn tags(&mut self) -> Result<Vec<(u32, Vec<u8>)>> {
        let count = self.uvarint()?;
        (0..count)
            .map(|_| {
                let tag = self.uvarint()?;
                let size = self.uvarint()? as usize;
                Ok((tag, self.raw(size)?.to_vec()))
            })
            .collect()
    }
}
