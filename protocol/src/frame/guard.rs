//! The guard: walks a request's body along its layout before anything is decoded.
//!
//! The decoder allocates by the counts that it reads, so a body of four bytes could ask for 150 GB and end
//! the process. Here every length must lie within the frame, every element of every array must really be
//! there, text must be UTF-8, nothing may be null that must not be, and the body must end where its layout
//! ends. Walking allocates nothing. What passes also says how much memory the message will take, so that the
//! broker can budget it.

use thiserror::Error;

use super::layout::{self, Field, Layout, Shape};
use crate::messages::ApiKey;

/// Elements of arrays that one request may have in all (Kafka's own limit since 4.4).
pub const MAX_ELEMENTS: usize = 1_000_000;
/// Tagged fields that one request may have in all (Kafka's own limit since 4.4).
pub const MAX_TAGS: usize = 10_000;

/// What a structure of a decoded message may take, a string, and an unknown tagged field (the first in its
/// structure brings a tree node with room for eleven).
const STRUCTURE_BYTES: usize = 256;
const TEXT_BYTES: usize = 32;
const TAG_BYTES: usize = 512;

/// What a request amounts to.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq)]
pub struct Weight {
    /// Elements of all arrays together.
    pub elements: usize,
    /// Tagged fields, known or not.
    pub tags: usize,
    /// Bytes that the decoded message may take besides the frame that it refers to.
    pub memory: usize,
    /// Bytes behind the last field.
    pub beyond: usize,
}

/// Why a body does not follow its layout.
#[derive(Clone, Copy, Debug, PartialEq, Eq, Error)]
pub enum Refusal {
    /// No layout for this API and version.
    #[error("the version is not supported")]
    Version,
    /// The body ends within the field, or its length points beyond the end.
    #[error("{0} goes beyond the end of the frame")]
    Short(&'static str),
    /// A length below -1.
    #[error("{field} has length {length}")]
    Length {
        /// Which field.
        field: &'static str,
        /// What it says.
        length: i32,
    },
    /// Null where the version allows none.
    #[error("{0} must not be null")]
    Null(&'static str),
    /// More elements than the rest of the frame could hold.
    #[error("{field} announces {count} elements in {rest} bytes")]
    Count {
        /// Which field.
        field: &'static str,
        /// Its count.
        count: u32,
        /// Bytes left in the frame.
        rest: usize,
    },
    /// More than [`MAX_ELEMENTS`].
    #[error("more than {MAX_ELEMENTS} elements, at {0}")]
    Elements(&'static str),
    /// More than [`MAX_TAGS`].
    #[error("more than {MAX_TAGS} tagged fields")]
    Tags,
    /// Text that is not UTF-8.
    #[error("{0} is not UTF-8")]
    Text(&'static str),
    /// A variable-length number of more than 32 bits.
    #[error("{0} has a length of more than 32 bits")]
    Varint(&'static str),
    /// A tagged field whose value is longer or shorter than it says.
    #[error("tagged field {0} does not have the size it announces")]
    TagSize(&'static str),
    /// A tagged field that other versions of the request have, but not this one.
    #[error("tagged field {0} is not one of this version")]
    TagVersion(&'static str),
    /// The byte in front of a structure that may be null is neither 1 nor -1.
    #[error("{0} is neither there nor null")]
    Marker(&'static str),
}

/// The versions of `api` that this package can read requests of and write responses for; `None` for APIs
/// that it does not know. What is served is the broker's choice within these.
pub fn versions(api: ApiKey) -> Option<(i16, i16)> {
    layout::find(api).map(|layout| (layout.oldest, layout.newest))
}

/// Walks `body` along the layout of `api` in `version`. Bytes behind the last field are counted and otherwise
/// ignored, as Kafka does: librdkafka asks for the metadata of all topics with three bytes too many.
pub fn check(api: ApiKey, version: i16, body: &[u8]) -> Result<Weight, Refusal> {
    let layout = layout::find(api)
        .filter(|layout| (layout.oldest..=layout.newest).contains(&version))
        .ok_or(Refusal::Version)?;
    let mut walk = Walk::new(layout, version, body);
    walk.structure(layout.fields)?;
    Ok(Weight { beyond: walk.rest.len(), ..walk.weight })
}

/// Skips the tagged fields at the start of `bytes`; returns how many bytes are left behind them.
pub(super) fn skip_tags(bytes: &[u8]) -> Result<usize, Refusal> {
    let mut walk = Walk { version: 0, flexible: true, rest: bytes, weight: Weight::default() };
    walk.tags(&[])?;
    Ok(walk.rest.len())
}

/// What an array is made of.
#[derive(Clone, Copy)]
enum Element {
    Structure(&'static [Field]),
    Fixed(usize),
    Text,
}

struct Walk<'a> {
    version: i16,
    flexible: bool,
    rest: &'a [u8],
    weight: Weight,
}

impl<'a> Walk<'a> {
    fn new(layout: &Layout, version: i16, body: &'a [u8]) -> Walk<'a> {
        let weight = Weight { memory: STRUCTURE_BYTES, ..Weight::default() };
        Walk { version, flexible: version >= layout.flexible, rest: body, weight }
    }

    /// All fields of one structure, its tagged fields last.
    fn structure(&mut self, fields: &'static [Field]) -> Result<(), Refusal> {
        for field in fields {
            if field.tag.is_none() && field.exists(self.version) {
                self.field(field)?;
            }
        }
        if self.flexible { self.tags(fields) } else { Ok(()) }
    }

    fn field(&mut self, field: &'static Field) -> Result<(), Refusal> {
        match field.shape {
            Shape::Fixed(size) => self.take(size, field.name).map(drop),
            Shape::Text => match self.text_length(field.name)? {
                Some(length) => self.text(length, field.name),
                None => self.null(field),
            },
            Shape::Bytes => match self.long_length(field.name)? {
                Some(length) => self.take(length as usize, field.name).map(drop),
                None => self.null(field),
            },
            Shape::Group(fields) => self.group(field, fields),
            Shape::List(fields) => self.array(field, Element::Structure(fields)),
            Shape::FixedList(size) => self.array(field, Element::Fixed(size)),
            Shape::TextList => self.array(field, Element::Text),
        }
    }

    fn array(&mut self, field: &'static Field, element: Element) -> Result<(), Refusal> {
        match self.long_length(field.name)? {
            Some(count) => self.elements(field.name, count, element),
            None => self.null(field),
        }
    }

    /// A structure; a byte in front of one that may be null says whether it is there.
    fn group(&mut self, field: &'static Field, fields: &'static [Field]) -> Result<(), Refusal> {
        if field.nullable(self.version) {
            match self.take(1, field.name)? {
                [0xff] => return Ok(()),
                [1] => {}
                _ => return Err(Refusal::Marker(field.name)),
            }
        }
        self.structure(fields)
    }

    /// The elements of an array that says it has `count` of them.
    fn elements(&mut self, name: &'static str, count: u32, element: Element) -> Result<(), Refusal> {
        let (least, memory) = match element {
            Element::Structure(_) => (1, STRUCTURE_BYTES),
            Element::Fixed(size) => (size, size),
            Element::Text => (1, TEXT_BYTES),
        };
        // An element takes at least a byte, so no count beyond the rest can be honest. This comes before the
        // walk so that a lie costs nothing.
        if (self.rest.len() / least) < count as usize {
            return Err(Refusal::Count { field: name, count, rest: self.rest.len() });
        }
        self.weight.elements += count as usize;
        if self.weight.elements > MAX_ELEMENTS {
            return Err(Refusal::Elements(name));
        }
        self.weight.memory += count as usize * memory;
        match element {
            Element::Structure(fields) => (0..count).try_for_each(|_| self.structure(fields)),
            Element::Fixed(size) => self.take(count as usize * size, name).map(drop),
            Element::Text => (0..count).try_for_each(|_| {
                let length = self.text_length(name)?.ok_or(Refusal::Null(name))?;
                self.text(length, name)
            }),
        }
    }

    /// The tagged fields at the end of a structure: known ones are walked, others skipped.
    fn tags(&mut self, fields: &'static [Field]) -> Result<(), Refusal> {
        const NAME: &str = "a tagged field";
        let count = self.varint(NAME)?;
        self.weight.tags = self.weight.tags.saturating_add(count as usize);
        if self.weight.tags > MAX_TAGS {
            return Err(Refusal::Tags);
        }
        for _ in 0..count {
            let tag = self.varint(NAME)?;
            let size = self.varint(NAME)? as usize;
            let behind = self.rest.len().checked_sub(size).ok_or(Refusal::Short(NAME))?;
            match fields.iter().find(|field| field.tag == Some(tag)) {
                // Not an unknown tag but a known one out of its place: the decoder refuses it, as Kafka's does.
                Some(field) if !field.exists(self.version) => return Err(Refusal::TagVersion(field.name)),
                Some(field) => {
                    // The decoder reads the value without regard to its announced size.
                    self.field(field)?;
                    if self.rest.len() != behind {
                        return Err(Refusal::TagSize(field.name));
                    }
                }
                None => {
                    self.weight.memory += TAG_BYTES;
                    self.take(size, NAME)?;
                }
            }
        }
        Ok(())
    }

    fn null(&self, field: &Field) -> Result<(), Refusal> {
        if field.nullable(self.version) { Ok(()) } else { Err(Refusal::Null(field.name)) }
    }

    fn text(&mut self, length: usize, name: &'static str) -> Result<(), Refusal> {
        let bytes = self.take(length, name)?;
        std::str::from_utf8(bytes).map(drop).map_err(|_| Refusal::Text(name))
    }

    /// The length of a string; `None` for null.
    fn text_length(&mut self, name: &'static str) -> Result<Option<usize>, Refusal> {
        if self.flexible {
            return Ok(self.varint(name)?.checked_sub(1).map(|length| length as usize));
        }
        let mut two = [0; 2];
        two.copy_from_slice(self.take(2, name)?);
        let length = i16::from_be_bytes(two);
        match usize::try_from(length) {
            Ok(length) => Ok(Some(length)),
            Err(_) if length == -1 => Ok(None),
            Err(_) => Err(Refusal::Length { field: name, length: i32::from(length) }),
        }
    }

    /// The length of bytes or the count of an array; `None` for null.
    fn long_length(&mut self, name: &'static str) -> Result<Option<u32>, Refusal> {
        if self.flexible {
            return Ok(self.varint(name)?.checked_sub(1));
        }
        let mut four = [0; 4];
        four.copy_from_slice(self.take(4, name)?);
        let length = i32::from_be_bytes(four);
        match u32::try_from(length) {
            Ok(length) => Ok(Some(length)),
            Err(_) if length == -1 => Ok(None),
            Err(_) => Err(Refusal::Length { field: name, length }),
        }
    }

    fn varint(&mut self, name: &'static str) -> Result<u32, Refusal> {
        let mut value: u32 = 0;
        for at in 0..5 {
            let byte = *self.rest.first().ok_or(Refusal::Short(name))?;
            self.rest = &self.rest[1..];
            if at == 4 && byte > 0x0f {
                return Err(Refusal::Varint(name));
            }
            value |= u32::from(byte & 0x7f) << (7 * at);
            if byte < 0x80 {
                return Ok(value);
            }
        }
        Err(Refusal::Varint(name))
    }

    fn take(&mut self, size: usize, name: &'static str) -> Result<&'a [u8], Refusal> {
        let (taken, rest) = self.rest.split_at_checked(size).ok_or(Refusal::Short(name))?;
        self.rest = rest;
        Ok(taken)
    }
}

#[cfg(test)]
#[expect(clippy::cast_possible_truncation, reason = "the tests choose small numbers")]
mod tests;
