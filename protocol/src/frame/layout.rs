//! The layouts of all requests that can be served, as tables: one entry an API, one line a field, with the
//! versions that have it. [`guard`](super::guard) walks bodies along them.
//!
//! A field is named in the order of the wire, with the versions in which it exists, with the versions in
//! which it may be null, and, when it is a tagged field, with its tag. From an API's first flexible
//! version on, lengths and counts are compact and every structure ends with tagged fields; the tables
//! do not say that again.
//!
//! Tests compare the tables with the message crate, field by field and version by version.

use crate::messages::ApiKey;

mod admin;
mod groups;
mod records;
#[cfg(test)]
#[expect(clippy::cast_possible_truncation, reason = "samples have small numbers")]
pub(super) mod sample;
mod security;

/// Of an API without flexible versions.
const NEVER: i16 = i16::MAX;

/// How one API's request looks.
#[derive(Debug)]
pub(super) struct Layout {
    pub api: ApiKey,
    pub oldest: i16,
    pub newest: i16,
    /// The first flexible version.
    pub flexible: i16,
    pub fields: &'static [Field],
}

/// One field of a structure.
#[derive(Clone, Copy, Debug)]
pub(super) struct Field {
    pub name: &'static str,
    pub shape: Shape,
    since: i16,
    until: i16,
    null_since: i16,
    pub tag: Option<u32>,
}

/// What stands in a field.
#[derive(Clone, Copy, Debug)]
pub(super) enum Shape {
    /// So many bytes.
    Fixed(usize),
    /// A string, in UTF-8.
    Text,
    /// A length of 32 bits (or compact) and so many bytes; record batches look the same.
    Bytes,
    /// A structure; when it may be null, a byte in front tells.
    Group(&'static [Field]),
    /// An array of structures.
    List(&'static [Field]),
    /// An array of fields of so many bytes.
    FixedList(usize),
    /// An array of strings.
    TextList,
}

impl Field {
    const fn new(name: &'static str, shape: Shape) -> Field {
        Field { name, shape, since: 0, until: i16::MAX, null_since: NEVER, tag: None }
    }

    const fn since(mut self, version: i16) -> Field {
        self.since = version;
        self
    }

    const fn until(mut self, version: i16) -> Field {
        self.until = version;
        self
    }

    const fn null_since(mut self, version: i16) -> Field {
        self.null_since = version;
        self
    }

    const fn or_null(self) -> Field {
        self.null_since(0)
    }

    const fn tagged(mut self, tag: u32) -> Field {
        self.tag = Some(tag);
        self
    }

    /// Whether `version` has the field.
    pub(super) fn exists(&self, version: i16) -> bool {
        self.since <= version && version <= self.until
    }

    /// Whether the field may be null in `version`.
    pub(super) fn nullable(&self, version: i16) -> bool {
        self.null_since <= version
    }
}

const fn layout(api: ApiKey, oldest: i16, newest: i16, flexible: i16, fields: &'static [Field]) -> Layout {
    Layout { api, oldest, newest, flexible, fields }
}

macro_rules! fields {
    ($($make:ident: $shape:expr;)*) => {
        $(const fn $make(name: &'static str) -> Field {
            Field::new(name, $shape)
        })*
    };
}

fields! {
    boolean: Shape::Fixed(1);
    int8: Shape::Fixed(1);
    int16: Shape::Fixed(2);
    uint16: Shape::Fixed(2);
    int32: Shape::Fixed(4);
    int64: Shape::Fixed(8);
    float64: Shape::Fixed(8);
    uuid: Shape::Fixed(16);
    text: Shape::Text;
    bytes: Shape::Bytes;
    records: Shape::Bytes;
    int8s: Shape::FixedList(1);
    int32s: Shape::FixedList(4);
    int64s: Shape::FixedList(8);
    texts: Shape::TextList;
}

const fn list(name: &'static str, fields: &'static [Field]) -> Field {
    Field::new(name, Shape::List(fields))
}

const fn group(name: &'static str, fields: &'static [Field]) -> Field {
    Field::new(name, Shape::Group(fields))
}

/// Every layout, the most frequent requests first.
pub(super) fn all() -> impl Iterator<Item = &'static Layout> {
    records::RECORDS.iter().chain(groups::GROUPS).chain(admin::ADMIN).chain(security::SECURITY)
}

/// The layout of one API's request.
pub(super) fn find(api: ApiKey) -> Option<&'static Layout> {
    all().find(|layout| layout.api == api)
}
