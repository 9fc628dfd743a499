//! Whether snapshots of producers say what the batches say.

use std::collections::BTreeMap;
use std::path::{Path, PathBuf};

use felix_protocol::batch::BatchHeader;
use felix_protocol::ids::Offset;

use super::{Report, Weight};
use crate::data_dir::SIDE_FILE_LIMIT;
use crate::disk::{self, Disk};
use crate::layout::{self, Kind};
use crate::producers::snapshot::{self, Entry};

/// What snapshots say of batches that have not gone by yet, by the batch's last offset.
pub(super) struct Snapshots {
    due: BTreeMap<Offset, Vec<(PathBuf, Entry)>>,
    told: Vec<PathBuf>,
}

impl Snapshots {
    /// Reads the snapshots at these offsets of a log that begins at `start`.
    pub(super) fn read<D: Disk>(
        disk: &D,
        folder: &Path,
        at: &[Offset],
        start: Offset,
        report: &mut Report<'_>,
    ) -> Snapshots {
        let mut snapshots = Snapshots { due: BTreeMap::new(), told: Vec::new() };
        for offset in at {
            let path = layout::file_path(folder, *offset, Kind::Snapshot);
            let content = match disk::read_whole(disk, &path, SIDE_FILE_LIMIT) {
                Ok(content) => content,
                Err(error) => {
                    report.find(Weight::Wrong, &path, None, format!("it cannot be read: {error}"));
                    continue;
                }
            };
            match snapshot::entries(&content) {
                Ok(entries) => {
                    for entry in entries {
                        snapshots.expect(&path, *offset, start, entry, report);
                    }
                }
                Err(why) => report.find(Weight::Wrong, &path, None, why),
            }
        }
        snapshots
    }

    fn expect(&mut self, path: &Path, at: Offset, start: Offset, entry: Entry, report: &mut Report<'_>) {
        let Some(batch) = entry.batch else { return };
        let producer = entry.producer_id;
        if batch.last_offset >= at {
            let last = batch.last_offset;
            self.tell(
                path,
                report,
                format!("producer {producer}: offset {last} is not before the snapshot's"),
            );
        } else if batch.last_offset >= start {
            self.due.entry(batch.last_offset).or_default().push((path.to_path_buf(), entry));
        }
    }

    fn tell(&mut self, path: &Path, report: &mut Report<'_>, meaning: String) {
        if !self.told.iter().any(|told| told == path) {
            self.told.push(path.to_path_buf());
            report.find(Weight::Wrong, path, None, meaning);
        }
    }

    /// A batch that is right.
    pub(super) fn see(&mut self, header: &BatchHeader, report: &mut Report<'_>) {
        let Some(expected) = self.due.remove(&header.last_offset()) else { return };
        if header.records == 0 && !header.has_producer() {
            // Compaction emptied it; whose it was, the batch does not say any more.
            return;
        }
        for (path, entry) in expected {
            let right = header.producer_id == entry.producer_id
                && header.producer_epoch == entry.epoch
                && entry.batch.is_some_and(|batch| batch.last_sequence == header.last_sequence());
            if !right {
                let (last, producer) = (header.last_offset(), entry.producer_id);
                let meaning = format!(
                    "producer {producer}: the batch that ends with offset {last} is of producer {}, epoch {}, \
                     last sequence {}",
                    header.producer_id,
                    header.producer_epoch,
                    header.last_sequence()
                );
                self.tell(&path, report, meaning);
            }
        }
    }

    /// Batches up to `end` have gone by and all were read: what was not among them is nowhere. Where offsets
    /// are missing by right (a compacted log), nothing can be said.
    pub(super) fn finish(mut self, end: Offset, gaps: bool, report: &mut Report<'_>) {
        if gaps {
            return;
        }
        let missing = self.due.split_off(&Offset::MIN);
        for (last, expected) in missing.into_iter().take_while(|(last, _)| *last < end) {
            for (path, entry) in expected {
                let producer = entry.producer_id;
                self.tell(&path, report, format!("producer {producer}: no batch ends with offset {last}"));
            }
        }
    }
}
