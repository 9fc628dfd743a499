//! Which generation wrote which offsets of a log: {generation → first offset}. Kafka keeps it in
//! `leader-epoch-checkpoint`; reconciling a follower rests on it (`replication.md` section 6).

use crate::ids::{Generation, Offset};

/// Invariant: generations strictly rise, and so do their first offsets (an entry whose range would be
/// empty is replaced by the next). The methods keep it.
#[derive(Clone, Debug, Default, PartialEq, Eq, PartialOrd, Ord, Hash)]
pub struct GenerationMap {
    entries: Vec<(Generation, Offset)>,
}

/// The answer to "where did this generation end?": the largest known generation at or below the asked
/// one, and the offset at which the next known one began (or the log end).
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub struct GenerationEnd {
    /// The generation found; `None` when nothing at or below the asked one is known.
    pub generation: Option<Generation>,
    /// One past its last record.
    pub end: Offset,
}

impl GenerationMap {
    /// A map of these entries, oldest first; `None` unless both numbers strictly rise and no offset is negative.
    pub fn from_entries(entries: Vec<(Generation, Offset)>) -> Option<GenerationMap> {
        let rises = entries.windows(2).all(|pair| pair[0].0 < pair[1].0 && pair[0].1 < pair[1].1);
        let counted = entries.first().is_none_or(|(_, first)| *first >= 0);
        (rises && counted).then_some(GenerationMap { entries })
    }

    /// The entries, oldest first.
    pub fn entries(&self) -> &[(Generation, Offset)] {
        &self.entries
    }

    /// The newest generation with its first offset.
    pub fn latest(&self) -> Option<(Generation, Offset)> {
        self.entries.last().copied()
    }

    /// Notes that `generation` writes from `first` on. Returns whether the map changed (and must be made
    /// durable). Entries that start at or beyond `first` had no record there and go; an older or equal
    /// generation changes nothing.
    pub fn begin(&mut self, generation: Generation, first: Offset) -> bool {
        if self.latest().is_some_and(|(latest, _)| latest >= generation) {
            return false;
        }
        while self.latest().is_some_and(|(_, at)| at >= first) {
            self.entries.pop();
        }
        // Few maps ever have more than one, and there are many maps.
        if self.entries.is_empty() {
            self.entries.reserve_exact(1);
        }
        self.entries.push((generation, first));
        true
    }

    /// Drops entries at or beyond `end`: the log was cut there.
    pub fn cut(&mut self, end: Offset) -> bool {
        let keep = self.entries.partition_point(|(_, first)| *first < end);
        let cut = keep < self.entries.len();
        self.entries.truncate(keep);
        cut
    }

    /// The log now starts at `start`: keeps one entry at or below it, moved up to it, as Kafka does.
    pub fn trim(&mut self, start: Offset) -> bool {
        let below = self.entries.partition_point(|(_, first)| *first <= start);
        if below == 0 {
            return false;
        }
        let covering = self.entries[below - 1];
        let changed = below > 1 || covering.1 != start;
        self.entries.drain(..below - 1);
        self.entries[0].1 = start;
        changed
    }

    /// The entries of generations at or above `oldest`.
    pub fn since(&self, oldest: Generation) -> &[(Generation, Offset)] {
        &self.entries[self.entries.partition_point(|(generation, _)| *generation < oldest)..]
    }

    /// The newest `most` entries.
    pub fn newest(&self, most: usize) -> &[(Generation, Offset)] {
        &self.entries[self.entries.len().saturating_sub(most)..]
    }

    /// Whether the map has an entry of that generation.
    pub fn knows(&self, generation: Generation) -> bool {
        self.entries.binary_search_by_key(&generation, |(known, _)| *known).is_ok()
    }

    /// The map of a log whose part below `end` is the same as that of the log whose entries `others` are: everything that
    /// either knows of that part. Where they name different first offsets, one log begins later than the other, and
    /// the smaller offset is the true one.
    #[must_use]
    pub fn joined(&self, others: &[(Generation, Offset)], end: Offset) -> GenerationMap {
        let mut all: std::collections::BTreeMap<Generation, Offset> = std::collections::BTreeMap::new();
        for (generation, first) in self.entries.iter().chain(others).filter(|(_, first)| *first < end) {
            let known = all.entry(*generation).or_insert(*first);
            *known = (*known).min(*first);
        }
        let mut joined = GenerationMap::default();
        for (generation, first) in all {
            joined.begin(generation, first);
        }
        joined
    }

    /// Which generation wrote `offset`, as far as the map knows.
    pub fn generation_at(&self, offset: Offset) -> Option<Generation> {
        let below = self.entries.partition_point(|(_, first)| *first <= offset);
        below.checked_sub(1).map(|at| self.entries[at].0)
    }

    /// Where `asked` ended, in a log that ends at `log_end` (Kafka's OffsetForLeaderEpoch):
    /// the current generation ends at the log end; one older than all known answers itself and the first
    /// known offset; one newer than all known, or an empty map, answers nothing.
    pub fn end_of(&self, asked: Generation, log_end: Offset) -> Option<GenerationEnd> {
        let (latest, _) = self.latest()?;
        if asked > latest {
            return None;
        }
        if asked == latest {
            return Some(GenerationEnd { generation: Some(asked), end: log_end });
        }
        let above = self.entries.partition_point(|(generation, _)| *generation <= asked);
        let end = self.entries[above].1;
        let generation = above.checked_sub(1).map(|at| self.entries[at].0);
        Some(GenerationEnd { generation, end })
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    fn generation(number: u32) -> Generation {
        Generation::new(number).unwrap()
    }

    fn map(entries: &[(u32, Offset)]) -> GenerationMap {
        let mut map = GenerationMap::default();
        for (number, first) in entries {
            assert!(map.begin(generation(*number), *first));
        }
        map
    }

    #[test]
    fn a_generation_without_records_is_replaced() {
        let map = map(&[(1, 0), (2, 10), (3, 10)]);
        assert_eq!(map.entries(), [(generation(1), 0), (generation(3), 10)]);
    }

    #[test]
    fn ends_follow_kafkas_table() {
        // Generations 0, 1 and 3 wrote; the log ends at 30.
        let map = map(&[(0, 0), (1, 10), (3, 20)]);
        let end = |asked| map.end_of(generation(asked), 30);
        let some = |number, end| Some(GenerationEnd { generation: Some(generation(number)), end });
        assert_eq!(end(0), some(0, 10));
        assert_eq!(end(1), some(1, 20));
        assert_eq!(end(2), some(1, 20));
        assert_eq!(end(3), some(3, 30));
        assert_eq!(end(4), None);
        let late = self::map(&[(2, 5)]);
        assert_eq!(late.end_of(generation(1), 9), Some(GenerationEnd { generation: None, end: 5 }));
    }

    #[test]
    fn only_rising_entries_are_a_map() {
        let entries = |entries: &[(u32, Offset)]| {
            let entries = entries.iter().map(|(number, first)| (generation(*number), *first)).collect();
            GenerationMap::from_entries(entries)
        };
        assert_eq!(entries(&[(1, 0), (2, 10)]), Some(map(&[(1, 0), (2, 10)])));
        assert_eq!(entries(&[]), Some(GenerationMap::default()));
        for wrong in [&[(2, 0), (1, 10)][..], &[(1, 5), (2, 5)], &[(1, -1)]] {
            assert_eq!(entries(wrong), None, "{wrong:?}");
        }
    }

    #[test]
    fn two_maps_of_one_history_are_joined() {
        // The first log begins at 4; the second knows of generation 2, whose records were compacted away in the first.
        let (first, second) = (map(&[(1, 4), (3, 20)]), map(&[(1, 0), (2, 10), (3, 20), (5, 30)]));
        assert_eq!(first.joined(second.entries(), 25), map(&[(1, 0), (2, 10), (3, 20)]));
        assert_eq!(second.newest(2), [(generation(3), 20), (generation(5), 30)]);
        assert_eq!(second.since(generation(3)), second.newest(2));
        assert!(second.knows(generation(2)) && !first.knows(generation(2)));
    }

    #[test]
    fn cutting_and_trimming_keep_the_covering_entry() {
        let mut map = map(&[(0, 0), (1, 10), (3, 20)]);
        assert!(map.cut(20));
        assert_eq!(map.latest(), Some((generation(1), 10)));
        assert!(map.trim(15));
        assert_eq!(map.entries(), [(generation(1), 15)]);
        assert_eq!(map.generation_at(14), None);
        assert_eq!(map.generation_at(15), Some(generation(1)));
    }
}
