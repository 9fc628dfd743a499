//! Which topics a group of consumers subscribes to, as far as its members' metadata says.
//!
//! Metadata is opaque to a coordinator, with this one exception: offsets of a topic that a group consumes must
//! neither expire nor be deleted. All versions of the consumer protocol begin as version 0 does: a version and
//! an array of topic names. Whatever does not read so is "unknown", and unknown counts as subscribed.

use std::collections::BTreeSet;
use std::sync::Arc;

/// The protocol type of consumers.
pub(crate) const CONSUMER: &str = "consumer";

/// The topics in one member's metadata; `None` if it does not read as a subscription.
pub(crate) fn topics(metadata: &[u8]) -> Option<BTreeSet<Arc<str>>> {
    let mut rest = metadata;
    let version = i16::from_be_bytes(take(&mut rest)?);
    if version < 0 {
        return None;
    }
    let count = i32::from_be_bytes(take(&mut rest)?);
    let mut topics = BTreeSet::new();
    // Each name takes bytes, so the loop ends with them however large the count.
    for _ in 0..u32::try_from(count).ok()? {
        let length = usize::try_from(i16::from_be_bytes(take(&mut rest)?)).ok()?;
        let (name, behind) = rest.split_at_checked(length)?;
        rest = behind;
        topics.insert(Arc::from(std::str::from_utf8(name).ok()?));
    }
    Some(topics)
}

fn take<const N: usize>(rest: &mut &[u8]) -> Option<[u8; N]> {
    let (head, behind) = rest.split_first_chunk::<N>()?;
    *rest = behind;
    Some(*head)
}

#[cfg(test)]
mod tests {
    use super::*;

    fn names(metadata: &[u8]) -> Option<Vec<String>> {
        topics(metadata).map(|topics| topics.iter().map(ToString::to_string).collect())
    }

    #[test]
    fn the_common_beginning_of_all_versions_is_read() {
        let subscription = b"\0\x03\0\0\0\x02\0\x01b\0\x01a\xff\xff\xff\xffwhatever comes later";
        assert_eq!(names(subscription), Some(vec!["a".into(), "b".into()]));
        assert_eq!(names(b"\0\0\0\0\0\0\xff\xff\xff\xff"), Some(vec![]));
    }

    #[test]
    fn anything_else_is_unknown() {
        assert_eq!(names(b""), None);
        assert_eq!(names(b"\xff\xff\0\0\0\0"), None);
        assert_eq!(names(b"\0\0\x7f\xff\xff\xff\0\x01a"), None);
        assert_eq!(names(b"\0\0\xff\xff\xff\xff"), None);
        assert_eq!(names(b"\0\0\0\0\0\x01\xff\xff"), None);
        assert_eq!(names(b"\0\0\0\0\0\x01\0\x02a"), None);
        assert_eq!(names(b"\0\0\0\0\0\x01\0\x01\xff"), None);
    }
}
