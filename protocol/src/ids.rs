//! Identities. The only place where a [`Generation`] becomes the wire's `i32` leader epoch.

use std::fmt;

pub use uuid::Uuid;

/// A position in a partition's log. `i64` as on the wire; never negative for a stored record.
pub type Offset = i64;

/// A broker's number, stable over restarts.
#[derive(Clone, Copy, Debug, PartialEq, Eq, PartialOrd, Ord, Hash)]
pub struct BrokerId(pub i32);

impl fmt::Display for BrokerId {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        self.0.fmt(f)
    }
}

/// A topic's identity: never reused, so a topic created again under the same name is another topic.
#[derive(Clone, Copy, Debug, PartialEq, Eq, PartialOrd, Ord, Hash)]
pub struct TopicId(pub Uuid);

impl TopicId {
    /// The id that stands for "none" on the wire.
    pub const NONE: TopicId = TopicId(Uuid::nil());

    /// A new random id. Never [`TopicId::NONE`], never Kafka's reserved `__cluster_metadata` id (1), and
    /// never one whose base64 form starts with a dash (a trap for command lines).
    pub fn random() -> Self {
        loop {
            let id = TopicId(Uuid::new_v4());
            if !id.to_string().starts_with('-') {
                return id;
            }
        }
    }

    /// Parses Kafka's 22 letters of URL-safe base64.
    pub fn parse(text: &str) -> Option<Self> {
        let bytes = base64url_decode(text)?;
        Some(TopicId(Uuid::from_bytes(bytes)))
    }
}

/// Kafka's form of a uuid: 22 letters of URL-safe base64 without padding.
impl fmt::Display for TopicId {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        base64url(self.0.as_bytes()).fmt(f)
    }
}

const BASE64URL: &[u8; 64] = b"ABCDEFGHIJKLMNOPQRSTUVWXYZabcdefghijklmnopqrstuvwxyz0123456789-_";

/// URL-safe base64 without padding of 16 bytes: how Kafka prints cluster, directory and topic ids.
pub fn base64url(bytes: &[u8; 16]) -> String {
    let mut text = String::with_capacity(22);
    let value = u128::from_be_bytes(*bytes);
    // 128 bits are 21 groups of six and a last one of two, padded with four zero bits on the right.
    for group in 0..21 {
        text.push(char::from(BASE64URL[((value >> (122 - 6 * group)) & 63) as usize]));
    }
    text.push(char::from(BASE64URL[((value << 4) & 63) as usize]));
    text
}

fn base64url_decode(text: &str) -> Option<[u8; 16]> {
    if text.len() != 22 {
        return None;
    }
    let mut value: u128 = 0;
    for (at, letter) in text.bytes().enumerate() {
        let bits = BASE64URL.iter().position(|known| *known == letter)? as u128;
        if at < 21 {
            value = (value << 6) | bits;
        } else if bits & 15 == 0 {
            value = (value << 2) | (bits >> 4);
        } else {
            return None;
        }
    }
    Some(value.to_be_bytes())
}

/// One partition of one topic. Keyed by topic id, never by name.
#[derive(Clone, Copy, Debug, PartialEq, Eq, PartialOrd, Ord, Hash)]
pub struct PartitionId {
    /// The topic.
    pub topic: TopicId,
    /// The partition's number in its topic, from 0.
    pub index: i32,
}

/// The name of the partition's folder: `<topic id>-<partition>`.
impl fmt::Display for PartitionId {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        write!(f, "{}-{}", self.topic, self.index)
    }
}

/// One tenure of leadership of a partition. On the wire: the leader epoch.
///
/// Invariant: fits a non-negative `i32`; the constructor enforces it.
#[derive(Clone, Copy, Debug, PartialEq, Eq, PartialOrd, Ord, Hash)]
pub struct Generation(u32);

impl Generation {
    /// Before any leader: what a partition is created with.
    pub const ZERO: Generation = Generation(0);

    /// A generation, or `None` beyond `i32::MAX`.
    pub fn new(number: u32) -> Option<Self> {
        i32::try_from(number).ok().map(|_| Generation(number))
    }

    /// The generation after this one; `None` when the numbers are used up.
    pub fn next(self) -> Option<Self> {
        Generation::new(self.0.checked_add(1)?)
    }

    /// The plain number.
    pub fn number(self) -> u32 {
        self.0
    }

    /// The wire's form.
    pub fn leader_epoch(self) -> i32 {
        // The invariant makes this exact.
        i32::try_from(self.0).unwrap_or(i32::MAX)
    }

    /// From the wire's form; `None` for the wire's "unknown" (negative).
    pub fn from_leader_epoch(epoch: i32) -> Option<Self> {
        u32::try_from(epoch).ok().map(Generation)
    }
}

impl fmt::Display for Generation {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        self.0.fmt(f)
    }
}

/// One process's life in the control store: a random number per registration.
#[derive(Clone, Copy, Debug, PartialEq, Eq, PartialOrd, Ord, Hash)]
pub struct SessionId(pub u64);

impl fmt::Display for SessionId {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        write!(f, "{:016x}", self.0)
    }
}

/// Identity of one copy of a partition on one broker's disk (`replication.md` section 5).
#[derive(Clone, Copy, Debug, PartialEq, Eq, PartialOrd, Ord, Hash)]
pub struct LogId(pub Uuid);

impl LogId {
    /// A new copy's id.
    pub fn random() -> Self {
        LogId(Uuid::new_v4())
    }
}

impl fmt::Display for LogId {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        base64url(self.0.as_bytes()).fmt(f)
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn topic_ids_print_as_kafka_prints_them() {
        let id = TopicId(Uuid::from_u128(1));
        assert_eq!(id.to_string(), "AAAAAAAAAAAAAAAAAAAAAQ");
        for _ in 0..1000 {
            let id = TopicId::random();
            assert_eq!(TopicId::parse(&id.to_string()), Some(id));
        }
        assert_eq!(TopicId::parse("AAAAAAAAAAAAAAAAAAAAAR"), None, "stray bits");
        assert_eq!(TopicId::parse("short"), None);
    }

    #[test]
    fn a_generation_always_fits_the_wire() {
        assert_eq!(Generation::new(u32::MAX), None);
        let last = Generation::new(i32::MAX as u32).unwrap();
        assert_eq!(last.next(), None);
        assert_eq!(last.leader_epoch(), i32::MAX);
        assert_eq!(Generation::from_leader_epoch(-1), None);
    }
}
