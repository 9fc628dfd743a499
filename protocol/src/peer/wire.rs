//! Reading and writing the pieces that peer messages are made of.

use bytes::{Buf, BufMut, Bytes, BytesMut};
use thiserror::Error;

use crate::frame::LENGTH_BYTES;
use crate::ids::{BrokerId, Generation, LogId, Offset, PartitionId, TopicId, Uuid};

/// Why a frame cannot be read or written. It is of our own making or of no broker's: the connection is closed.
#[derive(Clone, Debug, PartialEq, Eq, Error)]
pub enum PeerError {
    /// The frame ends within the field.
    #[error("{0} goes beyond the end of the frame")]
    Short(&'static str),
    /// More elements than the rest of the frame could hold.
    #[error("{field} announces {count} elements in {rest} bytes")]
    Count {
        /// Which list.
        field: &'static str,
        /// Its count.
        count: u32,
        /// Bytes left.
        rest: usize,
    },
    /// A value that the field cannot have.
    #[error("{0} has an impossible value")]
    Value(&'static str),
    /// What was to be written does not fit a frame.
    #[error("{0} does not fit a frame")]
    TooLarge(&'static str),
}

/// A frame, or a structure in it, that is read from the front.
#[derive(Clone, Debug)]
pub(super) struct In {
    rest: Bytes,
}

impl In {
    pub fn new(rest: Bytes) -> In {
        In { rest }
    }

    fn need(&self, bytes: usize, field: &'static str) -> Result<(), PeerError> {
        if self.rest.len() < bytes { Err(PeerError::Short(field)) } else { Ok(()) }
    }

    pub fn u8(&mut self, field: &'static str) -> Result<u8, PeerError> {
        self.need(1, field)?;
        Ok(self.rest.get_u8())
    }

    pub fn u16(&mut self, field: &'static str) -> Result<u16, PeerError> {
        self.need(2, field)?;
        Ok(self.rest.get_u16())
    }

    pub fn u32(&mut self, field: &'static str) -> Result<u32, PeerError> {
        self.need(4, field)?;
        Ok(self.rest.get_u32())
    }

    pub fn u64(&mut self, field: &'static str) -> Result<u64, PeerError> {
        self.need(8, field)?;
        Ok(self.rest.get_u64())
    }

    pub fn offset(&mut self, field: &'static str) -> Result<Offset, PeerError> {
        self.need(8, field)?;
        let offset = self.rest.get_i64();
        if offset < 0 { Err(PeerError::Value(field)) } else { Ok(offset) }
    }

    pub fn generation(&mut self, field: &'static str) -> Result<Generation, PeerError> {
        Generation::new(self.u32(field)?).ok_or(PeerError::Value(field))
    }

    fn uuid(&mut self, field: &'static str) -> Result<Uuid, PeerError> {
        self.need(16, field)?;
        Ok(Uuid::from_u128(self.rest.get_u128()))
    }

    pub fn log(&mut self, field: &'static str) -> Result<LogId, PeerError> {
        Ok(LogId(self.uuid(field)?))
    }

    pub fn broker(&mut self, field: &'static str) -> Result<BrokerId, PeerError> {
        self.need(4, field)?;
        Ok(BrokerId(self.rest.get_i32()))
    }

    pub fn partition(&mut self) -> Result<PartitionId, PeerError> {
        let topic = TopicId(self.uuid("topic id")?);
        self.need(4, "partition")?;
        Ok(PartitionId { topic, index: self.rest.get_i32() })
    }

    pub fn bool(&mut self, field: &'static str) -> Result<bool, PeerError> {
        match self.u8(field)? {
            0 => Ok(false),
            1 => Ok(true),
            _ => Err(PeerError::Value(field)),
        }
    }

    pub fn option<T>(
        &mut self,
        field: &'static str,
        read: impl FnOnce(&mut In) -> Result<T, PeerError>,
    ) -> Result<Option<T>, PeerError> {
        if self.bool(field)? { read(self).map(Some) } else { Ok(None) }
    }

    /// A list whose elements take at least `least` bytes each: nothing is reserved for what cannot be there.
    pub fn list<T>(
        &mut self,
        field: &'static str,
        least: usize,
        mut read: impl FnMut(&mut In) -> Result<T, PeerError>,
    ) -> Result<Vec<T>, PeerError> {
        let count = self.u32(field)?;
        let rest = self.rest.len();
        let wanted = usize::try_from(count).ok().filter(|count| *count <= rest / least.max(1));
        let wanted = wanted.ok_or(PeerError::Count { field, count, rest })?;
        let mut list = Vec::new();
        for _ in 0..wanted {
            list.push(read(self)?);
        }
        Ok(list)
    }

    /// Bytes with their length in front, not copied.
    pub fn bytes(&mut self, field: &'static str) -> Result<Bytes, PeerError> {
        let length = self.u32(field)? as usize;
        self.need(length, field)?;
        Ok(self.rest.split_to(length))
    }

    /// A structure: what a newer version has added at its end is not looked at.
    pub fn structure(&mut self, field: &'static str) -> Result<In, PeerError> {
        self.bytes(field).map(In::new)
    }

    pub fn text(&mut self, field: &'static str, most: usize) -> Result<String, PeerError> {
        let bytes = self.bytes(field)?;
        if bytes.len() > most {
            return Err(PeerError::Value(field));
        }
        std::str::from_utf8(&bytes).map(str::to_owned).map_err(|_| PeerError::Value(field))
    }
}

/// A frame that is written.
pub(super) struct Out {
    pieces: Vec<Bytes>,
    head: BytesMut,
    too_large: Option<&'static str>,
    /// What a newer version would add to every structure: tests only.
    added: &'static [u8],
}

impl Out {
    pub fn new() -> Out {
        let mut head = BytesMut::with_capacity(256);
        head.put_u32(0);
        Out { pieces: Vec::new(), head, too_large: None, added: &[] }
    }

    #[cfg(test)]
    pub fn of_newer_version(added: &'static [u8]) -> Out {
        Out { added, ..Out::new() }
    }

    pub fn u8(&mut self, value: u8) {
        self.head.put_u8(value);
    }

    pub fn u16(&mut self, value: u16) {
        self.head.put_u16(value);
    }

    pub fn u32(&mut self, value: u32) {
        self.head.put_u32(value);
    }

    pub fn u64(&mut self, value: u64) {
        self.head.put_u64(value);
    }

    pub fn offset(&mut self, offset: Offset) {
        self.head.put_i64(offset);
    }

    pub fn generation(&mut self, generation: Generation) {
        self.head.put_u32(generation.number());
    }

    pub fn log(&mut self, log: LogId) {
        self.head.put_slice(log.0.as_bytes());
    }

    pub fn broker(&mut self, broker: BrokerId) {
        self.head.put_i32(broker.0);
    }

    pub fn partition(&mut self, partition: &PartitionId) {
        self.head.put_slice(partition.topic.0.as_bytes());
        self.head.put_i32(partition.index);
    }

    pub fn bool(&mut self, value: bool) {
        self.u8(u8::from(value));
    }

    pub fn option<T>(&mut self, value: Option<T>, write: impl FnOnce(&mut Out, T)) {
        self.bool(value.is_some());
        if let Some(value) = value {
            write(self, value);
        }
    }

    fn length(&mut self, length: usize, field: &'static str) {
        let number = u32::try_from(length).unwrap_or_else(|_| {
            self.too_large = Some(field);
            0
        });
        self.head.put_u32(number);
    }

    pub fn list<T>(&mut self, field: &'static str, list: &[T], mut write: impl FnMut(&mut Out, &T)) {
        self.length(list.len(), field);
        for element in list {
            write(self, element);
        }
    }

    pub fn text(&mut self, field: &'static str, text: &str) {
        self.length(text.len(), field);
        self.head.put_slice(text.as_bytes());
    }

    /// A structure, its length in front. There are no records in it.
    pub fn structure(&mut self, field: &'static str, write: impl FnOnce(&mut Out)) {
        let at = self.head.len();
        self.head.put_u32(0);
        write(self);
        self.head.put_slice(self.added);
        match u32::try_from(self.head.len() - at - 4) {
            Ok(length) => self.head[at..at + 4].copy_from_slice(&length.to_be_bytes()),
            Err(_) => self.too_large = Some(field),
        }
    }

    /// Records, as they are.
    pub fn records(&mut self, records: &[Bytes]) {
        self.length(records.iter().map(Bytes::len).sum(), "records");
        if records.iter().all(Bytes::is_empty) {
            return;
        }
        self.pieces.push(self.head.split().freeze());
        self.pieces.extend(records.iter().filter(|piece| !piece.is_empty()).cloned());
    }

    /// The pieces, with the frame's length in front of them.
    pub fn finish(mut self) -> Result<Vec<Bytes>, PeerError> {
        if let Some(field) = self.too_large {
            return Err(PeerError::TooLarge(field));
        }
        if !self.head.is_empty() {
            self.pieces.push(self.head.freeze());
        }
        let whole: usize = self.pieces.iter().map(Bytes::len).sum();
        // Kafka's frames say their length in an i32, and the same code cuts these off.
        let length = i32::try_from(whole - LENGTH_BYTES).map_err(|_| PeerError::TooLarge("the frame"))?;
        // The first piece is the head with room for the length; small, and ours alone.
        let mut first = BytesMut::from(self.pieces[0].as_ref());
        first[..LENGTH_BYTES].copy_from_slice(&length.to_be_bytes());
        self.pieces[0] = first.freeze();
        Ok(self.pieces)
    }
}
