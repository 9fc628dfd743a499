//! What a leader sent, taken apart for the copy that is to follow.

use felix_protocol::batch::scan::Batches;
use felix_protocol::batch::{BatchError, CheckedBatch};
use felix_protocol::peer::ship::Part;
use felix_replication::follower::{BatchFacts, Frame, Token};
use thiserror::Error;

use super::Shipped;

/// Why records are not taken.
#[derive(Debug, Error)]
pub enum Unfit {
    /// They are no batches.
    #[error(transparent)]
    Batch(#[from] BatchError),
    /// Nobody stored them.
    #[error("a batch has no generation")]
    Generation,
}

impl Shipped {
    /// A part with its batches, each of which is whole. The token is for whoever waits for the answer to give.
    pub fn unpack(part: Part) -> Result<Shipped, Unfit> {
        let mut batches = Vec::new();
        let mut known: Vec<BatchFacts> = Vec::new();
        for batch in part.records.into_iter().flat_map(Batches::new) {
            let batch = CheckedBatch::check(batch?.bytes)?;
            let header = batch.header();
            let generation = header.generation.ok_or(Unfit::Generation)?;
            known.push(BatchFacts { base: header.base_offset, last: header.last_offset(), generation });
            batches.push(batch);
        }
        let frame = Frame {
            token: Token(0),
            generation: part.generation,
            log: part.log,
            header: part.header,
            mark: part.mark,
            log_start: part.log_start,
            log_end: part.log_end,
            from: part.from,
            next: part.next,
            before: part.before,
            batches: known,
        };
        Ok(Shipped { frame, batches })
    }
}

#[cfg(test)]
mod tests {
    use bytes::Bytes;
    use felix_protocol::batch::{BatchBuilder, patched_head};
    use felix_protocol::ids::{Generation, PartitionId, TopicId, Uuid};

    use super::*;

    fn part(records: Vec<Bytes>) -> Part {
        let generation = Generation::new(3).unwrap();
        Part {
            partition: PartitionId { topic: TopicId(Uuid::from_u128(5)), index: 0 },
            key_revision: 1,
            generation,
            log: None,
            header: None,
            mark: 1,
            log_start: 0,
            log_end: 9,
            from: 4,
            next: 6,
            before: Some(generation),
            records,
        }
    }

    #[test]
    fn a_part_is_taken_apart_and_what_is_no_batch_is_refused() {
        let mut builder = BatchBuilder::new();
        builder.push(5, None, Some(b"value"));
        let batch = builder.build().unwrap();
        let stored = |base, generation| {
            let batch = batch.bytes();
            let head = patched_head(batch, base, Generation::new(generation).unwrap());
            Bytes::from([&head[..], &batch[head.len()..]].concat())
        };
        let shipped = Shipped::unpack(part(vec![stored(4, 2), stored(5, 3)])).unwrap();
        assert_eq!((shipped.batches.len(), shipped.frame.from, shipped.frame.next), (2, 4, 6));
        let fact = shipped.frame.batches[1];
        assert_eq!((fact.base, fact.last, fact.generation.number()), (5, 5, 3));
        let never_stored = batch.bytes().clone();
        assert!(matches!(Shipped::unpack(part(vec![never_stored])), Err(Unfit::Generation)));
        let mut changed = stored(4, 2).to_vec();
        let last = changed.len() - 1;
        changed[last] ^= 1;
        assert!(matches!(Shipped::unpack(part(vec![changed.into()])), Err(Unfit::Batch(_))));
    }
}
