//! `/nodes/<id>/revoke`: what a node is asked to give up.
//!
//! A set of (partition, generation), kept in binary because a node that is drained is asked for all it leads: 24 bytes
//! an entry. The controller adds, only the node removes; it reads the set with every beat. Deliberately absent: who is
//! asked for what, and what follows (planned moves).

use std::collections::BTreeSet;

use felix_protocol::ids::{Generation, PartitionId, TopicId, Uuid};
use thiserror::Error;

/// The most entries of one node.
pub const MOST_ENTRIES: usize = 8_192;

/// The layout's number, its first byte.
const LAYOUT: u8 = 1;
/// Topic id, partition number, generation.
const ENTRY_BYTES: usize = 16 + 4 + 4;

/// One tenure that is to end.
#[derive(Clone, Copy, Debug, PartialEq, Eq, PartialOrd, Ord, Hash)]
pub struct Revocation {
    /// The partition.
    pub partition: PartitionId,
    /// The tenure: a later one is not meant.
    pub generation: Generation,
}

/// See the module.
///
/// Invariant: at most [`MOST_ENTRIES`].
#[derive(Clone, Debug, Default, PartialEq, Eq)]
pub struct RevokeSet {
    entries: BTreeSet<Revocation>,
}

/// No more entries fit: those that are there are to be given up first.
#[derive(Clone, Copy, Debug, PartialEq, Eq, Error)]
#[error("a node is asked to give up at most {MOST_ENTRIES} partitions at a time")]
pub struct Full;

/// A value that is no revoke set.
#[derive(Clone, Copy, Debug, PartialEq, Eq, Error)]
#[error("{0}")]
pub struct Unreadable(&'static str);

impl RevokeSet {
    /// Asks for one more.
    pub fn add(&mut self, entry: Revocation) -> Result<(), Full> {
        if self.entries.len() >= MOST_ENTRIES && !self.entries.contains(&entry) {
            return Err(Full);
        }
        self.entries.insert(entry);
        Ok(())
    }

    /// One was given up, or is not wanted any more.
    pub fn remove(&mut self, entry: &Revocation) -> bool {
        self.entries.remove(entry)
    }

    /// Whether that tenure is to end.
    pub fn contains(&self, entry: &Revocation) -> bool {
        self.entries.contains(entry)
    }

    /// Whether nothing is asked for.
    pub fn is_empty(&self) -> bool {
        self.entries.is_empty()
    }

    /// How much is asked for.
    pub fn len(&self) -> usize {
        self.entries.len()
    }

    /// What is asked for, in order.
    pub fn iter(&self) -> impl Iterator<Item = &Revocation> {
        self.entries.iter()
    }

    /// The stored form.
    pub fn encode(&self) -> Vec<u8> {
        let mut bytes = Vec::with_capacity(1 + self.entries.len() * ENTRY_BYTES);
        bytes.push(LAYOUT);
        for Revocation { partition, generation } in &self.entries {
            bytes.extend_from_slice(partition.topic.0.as_bytes());
            bytes.extend_from_slice(&partition.index.to_be_bytes());
            bytes.extend_from_slice(&generation.number().to_be_bytes());
        }
        bytes
    }

    /// Reads a stored form back; nothing at all is the empty set.
    pub fn decode(bytes: &[u8]) -> Result<RevokeSet, Unreadable> {
        let Some((layout, rest)) = bytes.split_first() else { return Ok(RevokeSet::default()) };
        if *layout != LAYOUT {
            return Err(Unreadable("the revoke set has a layout of another version"));
        }
        let (entries, []) = rest.as_chunks::<ENTRY_BYTES>() else {
            return Err(Unreadable("the revoke set ends in the middle of an entry"));
        };
        if entries.len() > MOST_ENTRIES {
            return Err(Unreadable("the revoke set has too many entries"));
        }
        let entries = entries.iter().map(|entry| read(entry).ok_or(Unreadable("a generation is too large")));
        Ok(RevokeSet { entries: entries.collect::<Result<_, _>>()? })
    }
}

fn read(entry: &[u8; ENTRY_BYTES]) -> Option<Revocation> {
    let (topic, numbers) = entry.split_first_chunk::<16>()?;
    let (index, generation) = numbers.split_first_chunk::<4>()?;
    let topic = TopicId(Uuid::from_bytes(*topic));
    let partition = PartitionId { topic, index: i32::from_be_bytes(*index) };
    let generation = u32::from_be_bytes(generation.try_into().ok()?);
    Some(Revocation { partition, generation: Generation::new(generation)? })
}

#[cfg(test)]
mod tests {
    use proptest::prelude::*;

    use super::*;
    use crate::testing::generation;

    fn entry(index: i32) -> Revocation {
        let partition = PartitionId { topic: TopicId(Uuid::from_u128(7)), index };
        Revocation { partition, generation: generation(3) }
    }

    #[test]
    fn a_full_set_survives_the_store_and_takes_no_more() {
        let mut set = RevokeSet::default();
        for index in 0..8_192 {
            set.add(entry(index)).unwrap();
        }
        assert_eq!(set.add(entry(8_192)), Err(Full));
        assert_eq!(set.add(entry(5)), Ok(()), "it is there already");
        let bytes = set.encode();
        assert_eq!(bytes.len(), 1 + 8_192 * 24);
        assert_eq!(RevokeSet::decode(&bytes).unwrap(), set);
        assert!(set.remove(&entry(5)) && !set.remove(&entry(5)));
        assert!(!set.contains(&entry(5)) && set.contains(&entry(6)));
    }

    #[test]
    fn nothing_is_the_empty_set() {
        assert!(RevokeSet::decode(&[]).unwrap().is_empty());
        assert!(RevokeSet::decode(&RevokeSet::default().encode()).unwrap().is_empty());
        assert!(RevokeSet::decode(&[2]).is_err());
        assert!(RevokeSet::decode(&[1, 0]).is_err());
        assert!(RevokeSet::decode(&[1; 1 + 8_193 * 24]).is_err());
        assert!(RevokeSet::decode(&[0xff; 25]).is_err());
    }

    proptest! {
        #[test]
        fn no_bytes_make_it_fall_over(bytes in prop::collection::vec(any::<u8>(), 0..100)) {
            if let Ok(set) = RevokeSet::decode(&bytes) {
                prop_assert_eq!(RevokeSet::decode(&set.encode()).unwrap(), set);
            }
        }
    }
}
