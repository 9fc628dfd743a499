//! How many bytes become visible when the mark and the last stable offset move: what waiting readers count.

use std::collections::VecDeque;

use felix_protocol::ids::Offset;

/// The batches above the last stable offset, oldest first.
#[derive(Debug, Default)]
pub(crate) struct Visible {
    batches: VecDeque<(Offset, u32)>,
    /// How many of them the mark has passed already.
    below_mark: usize,
}

impl Visible {
    /// Gives memory back while everything is visible.
    pub fn give_back(&mut self) {
        if self.batches.is_empty() {
            self.batches = VecDeque::new();
        }
    }

    /// A batch was appended.
    pub fn push(&mut self, end: Offset, bytes: usize) {
        self.batches.push_back((end, u32::try_from(bytes).unwrap_or(u32::MAX)));
    }

    /// The two moved: the bytes that became visible below each.
    pub fn moved(&mut self, mark: Offset, last_stable: Offset) -> (u64, u64) {
        let mut mark_bytes = 0;
        while let Some((end, bytes)) = self.batches.get(self.below_mark)
            && *end <= mark
        {
            mark_bytes += u64::from(*bytes);
            self.below_mark += 1;
        }
        let mut stable_bytes = 0;
        while let Some((end, bytes)) = self.batches.front()
            && *end <= last_stable
            && self.below_mark > 0
        {
            stable_bytes += u64::from(*bytes);
            self.batches.pop_front();
            self.below_mark -= 1;
        }
        if self.batches.is_empty() && self.batches.capacity() > 64 {
            self.batches = VecDeque::new();
        }
        (mark_bytes, stable_bytes)
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn each_byte_becomes_visible_once_to_each_kind_of_reader() {
        let mut visible = Visible::default();
        for end in [10, 20, 30, 40] {
            visible.push(end, 100);
        }
        assert_eq!(visible.moved(5, 5), (0, 0));
        assert_eq!(visible.moved(10, 10), (100, 100));
        assert_eq!(visible.moved(30, 10), (200, 0), "an open transaction holds the stable offset");
        assert_eq!(visible.moved(35, 20), (0, 100));
        assert_eq!(visible.moved(40, 40), (100, 200));
        assert!(visible.batches.is_empty());
    }
}
