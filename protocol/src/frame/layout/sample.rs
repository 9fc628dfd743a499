//! Bodies made from the layouts, for tests: the same tables that the guard walks, walked in the other
//! direction.

use super::{Field, Layout, Shape};

/// How to make a body.
#[derive(Clone, Debug, Default)]
pub(in crate::frame) struct Sample {
    /// Elements of every array.
    pub elements: usize,
    /// Null wherever null is allowed.
    pub nulls: bool,
    /// With known tagged fields, and an unknown one in every structure.
    pub tags: bool,
    /// The n-th length or count is a lie: these bytes stand instead of it (16 bits, 32 bits, compact).
    pub lie: Option<(usize, Lie)>,
}

/// What stands in place of a length.
#[derive(Clone, Copy, Debug)]
pub(in crate::frame) enum Lie {
    Huge,
    Negative,
    Null,
}

/// A made body.
pub(in crate::frame) struct Made {
    pub body: Vec<u8>,
    /// How many lengths and counts it has, and whether the one that was lied about may be null.
    pub lengths: usize,
    pub lied_nullable: bool,
}

impl Sample {
    pub(in crate::frame) fn make(&self, layout: &Layout, version: i16) -> Made {
        let made = Made { body: Vec::new(), lengths: 0, lied_nullable: false };
        let mut maker =
            Maker { sample: self, version, flexible: version >= layout.flexible, made, counter: 0 };
        maker.structure(layout.fields);
        maker.made
    }
}

struct Maker<'a> {
    sample: &'a Sample,
    version: i16,
    flexible: bool,
    made: Made,
    counter: u8,
}

impl Maker<'_> {
    fn structure(&mut self, fields: &[Field]) {
        let version = self.version;
        for field in fields.iter().filter(|field| field.tag.is_none() && field.exists(version)) {
            self.field(field);
        }
        if !self.flexible {
            return;
        }
        if !self.sample.tags {
            self.varint(0);
            return;
        }
        let known: Vec<_> = fields.iter().filter(|f| f.tag.is_some() && f.exists(version)).collect();
        self.varint(known.len() as u32 + 1);
        for field in known {
            self.varint(field.tag.unwrap());
            let outer = std::mem::take(&mut self.made.body);
            // The crate leaves a tagged field out when it has its default: start on a 1.
            self.counter = 0;
            self.field(field);
            let value = std::mem::replace(&mut self.made.body, outer);
            self.varint(value.len() as u32);
            self.made.body.extend_from_slice(&value);
        }
        self.varint(4321);
        self.varint(3);
        self.made.body.extend_from_slice(b"new");
    }

    fn field(&mut self, field: &Field) {
        let nullable = field.nullable(self.version);
        // A tagged field that is null is left out when the crate encodes, so give it a value.
        let null = self.sample.nulls && nullable && field.tag.is_none();
        let elements = self.sample.elements;
        match field.shape {
            Shape::Fixed(size) => self.fixed(size),
            Shape::Text => self.text(null, nullable),
            Shape::Bytes => {
                self.length((!null).then_some(5), nullable, false);
                if !null {
                    self.made.body.extend_from_slice(b"bytes");
                }
            }
            Shape::Group(fields) => {
                if nullable {
                    self.made.body.push(if null { 0xff } else { 1 });
                }
                if !null {
                    self.structure(fields);
                }
            }
            Shape::List(_) | Shape::FixedList(_) | Shape::TextList => {
                self.length((!null).then_some(elements), nullable, false);
                for _ in 0..if null { 0 } else { elements } {
                    if let Shape::List(fields) = field.shape {
                        self.structure(fields);
                    } else if let Shape::FixedList(size) = field.shape {
                        self.fixed(size);
                    } else {
                        self.text(false, false);
                    }
                }
            }
        }
    }

    fn fixed(&mut self, size: usize) {
        // Bytes 0 and 1 only, so that a boolean survives decoding and encoding.
        self.counter ^= 1;
        self.made.body.extend(std::iter::repeat_n(self.counter, size));
    }

    fn text(&mut self, null: bool, nullable: bool) {
        self.length((!null).then_some("tëxt".len()), nullable, true);
        if !null {
            self.made.body.extend_from_slice("tëxt".as_bytes());
        }
    }

    fn length(&mut self, length: Option<usize>, nullable: bool, text: bool) {
        let at = self.made.lengths;
        self.made.lengths += 1;
        let lie = self.sample.lie.filter(|(which, _)| *which == at).map(|(_, lie)| lie);
        self.made.lied_nullable |= lie.is_some() && nullable;
        if self.flexible {
            let compact = length.map_or(0, |length| length as u32 + 1);
            match lie {
                None => self.varint(compact),
                Some(Lie::Null) => self.varint(0),
                Some(Lie::Huge) => self.varint(u32::MAX),
                // A compact length cannot be negative; a sixth byte is what comes nearest.
                Some(Lie::Negative) => self.made.body.extend_from_slice(&[0xff, 0xff, 0xff, 0xff, 0xff, 1]),
            }
            return;
        }
        let number = match lie {
            None => length.map_or(-1, |length| length as i32),
            Some(Lie::Null) => -1,
            Some(Lie::Negative) => -2,
            Some(Lie::Huge) if text => i32::from(i16::MAX),
            Some(Lie::Huge) => i32::MAX,
        };
        if text {
            self.made.body.extend_from_slice(&(number as i16).to_be_bytes());
        } else {
            self.made.body.extend_from_slice(&number.to_be_bytes());
        }
    }

    fn varint(&mut self, mut value: u32) {
        while value >= 0x80 {
            self.made.body.push(value as u8 | 0x80);
            value >>= 7;
        }
        self.made.body.push(value as u8);
    }
}
