//! Whether the lists of aborted transactions (`.txnindex`) say what the markers in the batches say.

use std::collections::BTreeMap;
use std::path::Path;

use felix_protocol::batch::BatchHeader;
use felix_protocol::batch::control::{Marker, TransactionEnd};
use felix_protocol::ids::Offset;

use super::{Report, Weight};
use crate::data_dir::SIDE_FILE_LIMIT;
use crate::disk::{self, Disk};
use crate::index::txn::{self, AbortedTransaction};
use crate::layout::{self, Kind};
use crate::producers::snapshot;

/// A transaction that is open where the reading is.
#[derive(Clone, Copy, Debug)]
struct Open {
    first_offset: Offset,
    /// A record of it was met.
    has_records: bool,
}

/// What an abort marker says, as far as the batches before it tell.
#[derive(Clone, Copy, Debug)]
struct Met {
    marker: Offset,
    producer_id: i64,
    open: Option<Open>,
    last_stable_offset: Offset,
}

/// A copy's transactions, while its batches go by.
pub(super) struct Aborted {
    /// Below this offset nothing was read.
    start: Offset,
    /// Which transactions were open there is known.
    complete: bool,
    open: BTreeMap<i64, Open>,
    met: Vec<Met>,
    /// Batches lack records: compaction was here, and may have taken what markers speak of.
    thinned: bool,
}

impl Aborted {
    /// Of a log whose first segment begins at `start`: a snapshot there tells of transactions that began before.
    pub(super) fn new<D: Disk>(disk: &D, folder: &Path, start: Offset) -> Aborted {
        let path = layout::file_path(folder, start, Kind::Snapshot);
        let known = disk::read_whole(disk, &path, SIDE_FILE_LIMIT).ok();
        let known = known.and_then(|content| snapshot::entries(&content).ok());
        let complete = known.is_some() || start == 0;
        let open = known.unwrap_or_default().into_iter().filter_map(|entry| {
            let first_offset = entry.transaction_start?;
            Some((entry.producer_id, Open { first_offset, has_records: true }))
        });
        Aborted { start, complete, open: open.collect(), met: Vec::new(), thinned: false }
    }

    /// A batch that is right; of a control batch also its bytes.
    pub(super) fn see(&mut self, header: &BatchHeader, control: Option<&[u8]>) {
        self.thinned |= i64::from(header.records) != i64::from(header.last_offset_delta) + 1;
        if !header.has_producer() {
            return;
        }
        let Some(control) = control else {
            if header.is_transactional() {
                let open = self.open.entry(header.producer_id);
                let first = Open { first_offset: header.base_offset, has_records: false };
                open.or_insert(first).has_records |= header.records > 0;
            }
            return;
        };
        let Some(marker) = Marker::of(header, control) else { return };
        let open = self.open.remove(&header.producer_id);
        if marker.end == TransactionEnd::Abort {
            let marker = header.last_offset();
            let undecided = self.open.values().map(|open| open.first_offset).min();
            let last_stable_offset = undecided.unwrap_or(marker + 1);
            self.met.push(Met { marker, producer_id: header.producer_id, open, last_stable_offset });
        }
    }

    /// A segment that begins at `base` has ended, all its batches seen. `gaps`: offsets are missing by right.
    pub(super) fn finish<D: Disk>(
        &mut self,
        disk: &D,
        folder: &Path,
        base: Offset,
        gaps: bool,
        weight: Weight,
        report: &mut Report<'_>,
    ) {
        let met = std::mem::take(&mut self.met);
        let path = layout::file_path(folder, base, Kind::TxnIndex);
        let entries = match disk::read_whole(disk, &path, SIDE_FILE_LIMIT) {
            Ok(content) => match txn::decode(base, &content) {
                Some(entries) => entries,
                None => {
                    let meaning = "it is no list of aborted transactions by rising markers";
                    return report.find(weight, &path, None, meaning);
                }
            },
            Err(error) if error.kind() == std::io::ErrorKind::NotFound => Vec::new(),
            Err(error) => return report.find(weight, &path, None, format!("it cannot be read: {error}")),
        };
        let exact = self.complete && !gaps && !self.thinned;
        if let Some((at, wrong)) = self.wrong(&entries, &met, exact) {
            let position = at.map(|at| at as u64 * txn::ENTRY as u64);
            report.find(weight, &path, position, wrong);
        }
    }

    /// A segment could not be read to its end: of the rest nothing is known any more.
    pub(super) fn lose_track(&mut self) {
        self.met.clear();
        self.open.clear();
        self.complete = false;
    }

    /// The first thing that is wrong with the entries, and which one it is.
    fn wrong(
        &self,
        entries: &[AbortedTransaction],
        met: &[Met],
        exact: bool,
    ) -> Option<(Option<usize>, String)> {
        for (at, entry) in entries.iter().enumerate() {
            let (marker, producer) = (entry.last_offset, entry.producer_id);
            let said = met.iter().find(|met| met.marker == marker && met.producer_id == producer);
            let wrong = match said {
                None => {
                    Some(format!("no marker at offset {marker} aborts a transaction of producer {producer}"))
                }
                Some(met) => self.contradiction(entry, met, exact),
            };
            if let Some(wrong) = wrong {
                return Some((Some(at), format!("entry {at}: {wrong}")));
            }
        }
        let missing = met.iter().find(|met| {
            let due = met.open.is_some_and(|open| open.has_records || exact);
            due && !entries.iter().any(|entry| entry.last_offset == met.marker)
        })?;
        let Met { marker, producer_id, .. } = missing;
        let meaning = format!(
            "the transaction of producer {producer_id} that the marker at offset {marker} aborts is missing: \
             its records would be shown as committed"
        );
        Some((None, meaning))
    }

    fn contradiction(&self, entry: &AbortedTransaction, met: &Met, exact: bool) -> Option<String> {
        let said = entry.first_offset;
        match met.open {
            Some(open) if said > open.first_offset || exact && said < open.first_offset => {
                Some(format!("the transaction begins at offset {}, not {said}", open.first_offset))
            }
            None if exact || self.complete && !self.thinned && said >= self.start => {
                Some(format!("the marker at offset {} ends no transaction with records", met.marker))
            }
            Some(_) | None if exact && entry.last_stable_offset != met.last_stable_offset => Some(format!(
                "everything below offset {} was decided at the marker, not {}",
                met.last_stable_offset, entry.last_stable_offset
            )),
            Some(_) | None => None,
        }
    }
}
