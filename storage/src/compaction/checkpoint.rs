//! `compaction-checkpoint` in a partition's folder: how far the log is compacted.
//!
//! ```text
//! 0
//! <offset> <generation that wrote the record before it> <when to look again, or -1>
//! ```
//!
//! It is not flushed: losing it costs a round over the whole log. A log that was cut below the offset and written
//! to again has another generation there, and then the file says nothing.

use felix_protocol::generation_map::GenerationMap;
use felix_protocol::ids::{Generation, Offset};

use super::Progress;

/// The file's name.
pub(crate) const NAME: &str = "compaction-checkpoint";

/// The file's content; `None` where there is nothing to note.
pub(crate) fn format(progress: &Progress, generations: &GenerationMap) -> Option<String> {
    let generation = generations.generation_at(progress.end - 1)?;
    let again = progress.again_at.unwrap_or(-1);
    Some(format!("0\n{} {} {again}\n", progress.end, generation.leader_epoch()))
}

/// What the file says of a log that ends at `end`.
pub(crate) fn parse(text: &str, generations: &GenerationMap, end: Offset) -> Option<Progress> {
    let mut lines = text.lines();
    if lines.next()?.trim() != "0" {
        return None;
    }
    let mut fields = lines.next()?.split_ascii_whitespace();
    let offset: Offset = fields.next()?.parse().ok().filter(|offset| (1..=end).contains(offset))?;
    let generation = Generation::from_leader_epoch(fields.next()?.parse().ok()?)?;
    let again: i64 = fields.next()?.parse().ok()?;
    (generations.generation_at(offset - 1) == Some(generation))
        .then_some(Progress { end: offset, again_at: (again >= 0).then_some(again) })
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn it_reads_back_and_says_nothing_of_another_history() {
        let generation = |number| Generation::new(number).unwrap();
        let mut map = GenerationMap::default();
        map.begin(generation(1), 0);
        map.begin(generation(4), 50);
        for progress in [Progress { end: 50, again_at: None }, Progress { end: 77, again_at: Some(5) }] {
            let text = format(&progress, &map).unwrap();
            assert_eq!(parse(&text, &map, 77), Some(progress));
            assert_eq!(parse(&text, &map, 49), None, "beyond the end");
            let mut other = map.clone();
            other.cut(40);
            other.begin(generation(5), 40);
            assert_eq!(parse(&text, &other, 100), None);
        }
        for wrong in ["", "0", "0\n", "0\n50\n", "0\n50 x -1\n", "1\n50 1 -1\n", "0\n0 1 -1\n"] {
            assert_eq!(parse(wrong, &map, 77), None, "{wrong:?}");
        }
    }
}
