//! A decision: what must still be true, and what is then written. Nothing is ever written otherwise, so
//! that two brokers can decide at the same time and at most one of two contradicting decisions lands.

use serde::Serialize;

use crate::keys::Key;
use crate::state::{Revision, encode};

/// What must hold at the moment of the write.
#[derive(Clone, Debug, PartialEq, Eq)]
pub enum Compare {
    /// The key was last written at this revision; [`Revision::ABSENT`]: it is not there.
    Revision(Key, Revision),
    /// The key holds exactly this.
    Value(Key, Vec<u8>),
}

impl Compare {
    /// The key that is looked at.
    pub fn key(&self) -> &Key {
        match self {
            Compare::Revision(key, _) | Compare::Value(key, _) => key,
        }
    }
}

/// One write.
#[derive(Clone, Debug, PartialEq, Eq)]
pub enum Write {
    /// The key gets this value.
    Put(Key, Vec<u8>),
    /// The key goes.
    Delete(Key),
}

impl Write {
    /// The key that is written.
    pub fn key(&self) -> &Key {
        match self {
            Write::Put(key, _) | Write::Delete(key) => key,
        }
    }
}

/// All of `writes` happen if all of `compares` hold, else none.
///
/// Invariant: no key is written twice.
#[derive(Clone, Debug, Default, PartialEq, Eq)]
pub struct Decision {
    compares: Vec<Compare>,
    writes: Vec<Write>,
}

impl Decision {
    /// Nothing, under no condition.
    pub fn new() -> Decision {
        Decision::default()
    }

    /// Only if `key` was last written at `revision`.
    #[must_use]
    pub fn at(mut self, key: Key, revision: Revision) -> Decision {
        self.compares.push(Compare::Revision(key, revision));
        self
    }

    /// Only if `key` is not there.
    #[must_use]
    pub fn absent(self, key: Key) -> Decision {
        self.at(key, Revision::ABSENT)
    }

    /// Only if `key` holds exactly `value`.
    #[must_use]
    pub fn holds(mut self, key: Key, value: Vec<u8>) -> Decision {
        self.compares.push(Compare::Value(key, value));
        self
    }

    /// Then `key` gets `value`.
    #[must_use]
    pub fn put<T: Serialize>(mut self, key: Key, value: &T) -> Decision {
        debug_assert!(self.writes.iter().all(|write| *write.key() != key), "{key} is written twice");
        self.writes.push(Write::Put(key, encode(value)));
        self
    }

    /// Then `key` gets bytes that are no JSON.
    #[must_use]
    pub fn put_bytes(mut self, key: Key, value: Vec<u8>) -> Decision {
        debug_assert!(self.writes.iter().all(|write| *write.key() != key), "{key} is written twice");
        self.writes.push(Write::Put(key, value));
        self
    }

    /// Then `key` goes.
    #[must_use]
    pub fn delete(mut self, key: Key) -> Decision {
        debug_assert!(self.writes.iter().all(|write| *write.key() != key), "{key} is written twice");
        self.writes.push(Write::Delete(key));
        self
    }

    /// The conditions.
    pub fn compares(&self) -> &[Compare] {
        &self.compares
    }

    /// The writes.
    pub fn writes(&self) -> &[Write] {
        &self.writes
    }

    /// How many operations a store counts for it.
    pub fn operations(&self) -> usize {
        self.compares.len() + self.writes.len()
    }
}

/// What a store tells of a key: written or, without a value, deleted.
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct Change {
    /// The key, as the store spells it.
    pub key: String,
    /// Its value now.
    pub value: Option<Vec<u8>>,
    /// The transaction that did it.
    pub revision: Revision,
}
