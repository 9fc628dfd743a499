//! Which transaction a batch belongs to, while a log is read from its beginning: the state goes on over
//! segments and groups of them, for as long as the round does.

use std::collections::{BTreeMap, BTreeSet};

use felix_protocol::batch::BatchHeader;
use felix_protocol::batch::control::{Marker, TransactionEnd};
use felix_protocol::ids::Offset;

use crate::index::txn::AbortedTransaction;

/// What a batch is.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(super) enum Standing {
    /// Records that count, or a marker of a transaction of which something is left.
    Counts,
    /// Records that never counted.
    Aborted,
    /// A marker of a transaction of which nothing is left.
    Spent,
}

#[derive(Default)]
pub(super) struct Transactions {
    /// Aborted ones that are still to come, by first offset and producer.
    ahead: BTreeMap<(Offset, i64), AbortedTransaction>,
    /// The aborted one of each producer that is open where the reading is, and whether a batch of it was met.
    aborted: BTreeMap<i64, (AbortedTransaction, bool)>,
    /// Producers of which a batch was met in a transaction that was not aborted.
    committed: BTreeSet<i64>,
}

impl Transactions {
    /// Tells of aborted transactions before their first offset is reached. Each is told once.
    pub(super) fn expect(&mut self, entries: impl IntoIterator<Item = AbortedTransaction>) {
        self.ahead.extend(entries.into_iter().map(|entry| ((entry.first_offset, entry.producer_id), entry)));
    }

    /// Takes in the next batch. With a marker that ends an aborted transaction of which something is left
    /// comes the entry of that transaction, which must stay in the index.
    pub(super) fn take(
        &mut self,
        header: &BatchHeader,
        batch: &[u8],
    ) -> (Standing, Option<AbortedTransaction>) {
        while let Some(entry) = self.ahead.first_entry()
            && entry.key().0 <= header.last_offset()
        {
            let entry = entry.remove();
            self.aborted.entry(entry.producer_id).or_insert((entry, false));
        }
        if !header.is_control() {
            return (self.data(header), None);
        }
        let Some(marker) = Marker::of(header, batch) else {
            // One that lost its record has nothing left to say; others are not ours to judge.
            let standing = if header.records == 0 { Standing::Spent } else { Standing::Counts };
            return (standing, None);
        };
        match marker.end {
            TransactionEnd::Abort => match self.aborted.remove(&header.producer_id) {
                Some((entry, true)) => (Standing::Counts, Some(entry)),
                Some((_, false)) | None => (Standing::Spent, None),
            },
            TransactionEnd::Commit if self.committed.remove(&header.producer_id) => (Standing::Counts, None),
            TransactionEnd::Commit => (Standing::Spent, None),
        }
    }

    fn data(&mut self, header: &BatchHeader) -> Standing {
        if !header.is_transactional() {
            return Standing::Counts;
        }
        match self.aborted.get_mut(&header.producer_id) {
            Some((_, met)) => {
                *met = true;
                Standing::Aborted
            }
            None => {
                self.committed.insert(header.producer_id);
                Standing::Counts
            }
        }
    }
}
