//! Transactions that were decided lately. A marker at or above the mark may still be cut off, and then what it
//! decided is undecided again: compaction must not have acted on it.

use std::collections::VecDeque;

use felix_protocol::ids::Offset;

/// Entries kept; beyond, the oldest two become one.
const MOST: usize = 256;

/// The newest decisions, by their markers.
#[derive(Clone, Debug, Default)]
pub(super) struct Decided {
    /// Marker, and the first offset that it decided. Older entries may stand for several transactions: their
    /// last marker and their lowest offset.
    entries: VecDeque<(Offset, Offset)>,
}

impl Decided {
    /// Notes a marker.
    pub(super) fn note(&mut self, marker: Offset, first: Offset) {
        self.entries.push_back((marker, first));
        if self.entries.len() > MOST
            && let Some((_, oldest)) = self.entries.pop_front()
            && let Some(next) = self.entries.front_mut()
        {
            next.1 = next.1.min(oldest);
        }
    }

    /// The lowest offset that only markers at or above `mark` decided.
    pub(super) fn first_above(&self, mark: Offset) -> Option<Offset> {
        self.entries.iter().filter(|(marker, _)| *marker >= mark).map(|(_, first)| *first).min()
    }

    /// The log was cut: markers behind the end are gone, and what they decided is open again.
    pub(super) fn cut(&mut self, end: Offset) {
        let keep = self.entries.partition_point(|(marker, _)| *marker < end);
        // The oldest may stand for others that are left.
        self.entries.truncate(keep.max(1));
        if keep == 0
            && let Some(oldest) = self.entries.front_mut()
        {
            oldest.0 = end - 1;
        }
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn what_is_forgotten_counts_as_undecided_for_longer() {
        let mut decided = Decided::default();
        for at in 0..1000 {
            decided.note(at * 10 + 5, at * 10);
        }
        assert_eq!(decided.first_above(9_996), None);
        assert_eq!(decided.first_above(9_995), Some(9_990));
        assert_eq!(decided.first_above(9_000), Some(9_000));
        assert_eq!(decided.first_above(100), Some(0));
        assert!(decided.entries.len() <= MOST);
        decided.cut(9_500);
        assert_eq!(decided.first_above(9_496), None);
        assert_eq!(decided.first_above(9_495), Some(9_490));
        decided.cut(50);
        assert_eq!(decided.first_above(50), None);
        assert_eq!(decided.first_above(49), Some(0));
    }
}
