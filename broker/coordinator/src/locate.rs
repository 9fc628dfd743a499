//! Which partition of `__consumer_offsets` keeps a group.
//!
//! Clients and tools (Burrow, kafka-consumer-groups through the broker, operators with a dump) compute the
//! same place, so it is exactly Kafka's: Java's `String.hashCode`, made non-negative, modulo the count.

/// The partition for `group` among `partitions`.
///
/// Panics if `partitions` is not positive.
pub fn locate(group: &str, partitions: i32) -> i32 {
    assert!(partitions > 0, "a topic has at least one partition, not {partitions}");
    // Kafka's Utils.abs maps the one value without a positive counterpart to 0, and so does the mask only
    // for that value; for every other negative hash the absolute value is meant.
    let hash = java_hash(group);
    let positive = if hash == i32::MIN { 0 } else { hash.abs() };
    positive % partitions
}

/// Java's `String.hashCode`: over UTF-16 units, so that letters outside the basic plane count as two.
fn java_hash(text: &str) -> i32 {
    text.encode_utf16().fold(0_i32, |hash, unit| hash.wrapping_mul(31).wrapping_add(i32::from(unit)))
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn hashes_are_javas() {
        // From jshell: "".hashCode() and so on.
        assert_eq!(java_hash(""), 0);
        assert_eq!(java_hash("hello"), 99_162_322);
        assert_eq!(java_hash("polygenelubricants"), i32::MIN);
        assert_eq!(java_hash("\u{1F600}"), 1_772_899, "a surrogate pair is two units");
    }

    #[test]
    fn the_hash_without_a_positive_counterpart_is_zero() {
        assert_eq!(locate("polygenelubricants", 50), 0);
        assert_eq!(locate("hello", 50), 22);
        assert_eq!(locate("", 50), 0);
    }
}
