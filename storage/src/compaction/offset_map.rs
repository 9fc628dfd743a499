//! The newest offset of each key, in memory of a fixed size.
//!
//! Keys are known by 128 bits of a keyed hash (SipHash-2-4 with a random key for each map). Two keys with the
//! same hash would cost a record, so nobody may be able to choose such keys: an unkeyed hash, even a
//! cryptographic one that has been broken since, would let a producer do that. By chance it happens among ten
//! million keys once in about 10^24 maps.

use felix_protocol::ids::{Offset, Uuid};
use siphasher::sip128::SipHasher24;

/// Bytes of an entry: the hash, and the offset.
const ENTRY: usize = 24;

/// See the module.
pub struct OffsetMap {
    hasher: SipHasher24,
    /// Hash (two words) and offset plus one; zero is an empty slot. Memory that was never written to is not
    /// taken from the system.
    slots: Vec<[u64; 3]>,
    used: usize,
    most: usize,
    /// What the slots may take.
    bytes: usize,
    load_factor: f64,
}

impl OffsetMap {
    /// A map that takes at most `bytes` and is filled up to `load_factor` (between 0 and 1).
    pub fn new(bytes: usize, load_factor: f64) -> OffsetMap {
        let load_factor = if load_factor > 0.0 && load_factor <= 0.99 { load_factor } else { 0.9 };
        let hasher = SipHasher24::new_with_key(Uuid::new_v4().as_bytes());
        OffsetMap { hasher, slots: Vec::new(), used: 0, most: 0, bytes, load_factor }
    }

    /// Empties the map and makes it as large as `keys` need, or as large as it may become.
    pub(super) fn start(&mut self, keys: u64) {
        let possible = self.bytes / ENTRY;
        #[expect(clippy::cast_precision_loss, reason = "an estimate")]
        let wanted = (keys as f64 / self.load_factor).ceil() + 1.0;
        #[expect(clippy::cast_possible_truncation, clippy::cast_sign_loss, reason = "saturates")]
        let slots = possible.min(wanted as usize);
        self.slots = vec![[0; 3]; slots];
        self.used = 0;
        #[expect(clippy::cast_precision_loss, reason = "far below 2^52")]
        #[expect(clippy::cast_possible_truncation, clippy::cast_sign_loss, reason = "a part of a usize")]
        let most = (slots as f64 * self.load_factor) as usize;
        // One slot stays empty, so that looking for a key ends.
        self.most = most.min(slots.saturating_sub(1));
    }

    /// Gives the memory back.
    pub fn clear(&mut self) {
        self.slots = Vec::new();
        (self.used, self.most) = (0, 0);
    }

    /// Bytes that the slots take now.
    pub fn memory(&self) -> usize {
        self.slots.len() * ENTRY
    }

    /// How many keys it holds.
    pub fn len(&self) -> usize {
        self.used
    }

    /// Whether it holds none.
    pub fn is_empty(&self) -> bool {
        self.used == 0
    }

    /// Whether it can hold any key.
    pub(super) fn is_useless(&self) -> bool {
        self.most == 0
    }

    fn hash(&self, key: &[u8]) -> [u64; 2] {
        let hash = self.hasher.hash(key);
        [hash.h1, hash.h2]
    }

    /// The slot of a hash, or the empty one where it belongs.
    fn slot(&self, hash: [u64; 2]) -> usize {
        let slots = self.slots.len();
        let scaled = (u128::from(hash[0]) * slots as u128) >> 64;
        let mut at = usize::try_from(scaled).unwrap_or(0);
        loop {
            let slot = &self.slots[at];
            if slot[2] == 0 || (slot[0] == hash[0] && slot[1] == hash[1]) {
                return at;
            }
            at = if at + 1 == slots { 0 } else { at + 1 };
        }
    }

    /// Notes that `key` was written at `offset`, which is above all noted before. Returns false, and notes
    /// nothing, when there is no room for another key.
    pub(super) fn put(&mut self, key: &[u8], offset: Offset) -> bool {
        if self.slots.is_empty() {
            return false;
        }
        let hash = self.hash(key);
        let at = self.slot(hash);
        if self.slots[at][2] == 0 {
            if self.used >= self.most {
                return false;
            }
            self.used += 1;
        }
        self.slots[at] = [hash[0], hash[1], offset.cast_unsigned() + 1];
        true
    }

    /// The newest offset of `key`, if it was noted.
    pub(super) fn get(&self, key: &[u8]) -> Option<Offset> {
        if self.used == 0 {
            return None;
        }
        let slot = self.slots[self.slot(self.hash(key))];
        (slot[2] > 0).then(|| (slot[2] - 1).cast_signed())
    }
}

#[cfg(test)]
mod tests {
    use std::collections::BTreeMap;

    use super::*;
    use proptest::prelude::*;

    proptest! {
        #[test]
        fn it_is_a_map_until_it_is_full(
            keys in prop::collection::vec(0..400_u16, 1..900),
            slots in 2..300_usize,
            factor in 0.05..1.0_f64,
        ) {
            let mut map = OffsetMap::new(slots * ENTRY, factor);
            map.start(u64::MAX);
            prop_assert_eq!(map.memory(), slots * ENTRY);
            let mut model = BTreeMap::new();
            for (at, key) in keys.iter().enumerate() {
                let offset = Offset::try_from(at).unwrap() * 3;
                let room = model.len() < map.most || model.contains_key(key);
                prop_assert_eq!(map.put(&key.to_be_bytes(), offset), room);
                if room {
                    model.insert(*key, offset);
                }
            }
            prop_assert_eq!(map.len(), model.len());
            for key in 0..400_u16 {
                prop_assert_eq!(map.get(&key.to_be_bytes()), model.get(&key).copied());
            }
        }
    }

    #[test]
    fn it_takes_what_it_needs_and_no_more_than_it_may() {
        let mut map = OffsetMap::new(1 << 30, 0.9);
        map.start(90);
        assert_eq!(map.slots.len(), 101);
        assert!(map.most >= 90);
        map.start(0);
        assert!(map.is_useless() && map.get(b"key").is_none());
        let mut small = OffsetMap::new(ENTRY, 0.9);
        small.start(10);
        assert!(small.is_useless() && !small.put(b"key", 1));
        map.clear();
        assert_eq!(map.memory(), 0);
    }
}
