//! Whether the entries of a segment's two indexes say what its batches say.

use std::path::PathBuf;

use felix_protocol::batch::BatchHeader;
use felix_protocol::ids::Offset;

use super::{Report, Weight};
use crate::data_dir::SIDE_FILE_LIMIT;
use crate::disk::{self, Disk};
use crate::index::{IndexEntry, OffsetEntry, TimeEntry};
use crate::segment::dates;

/// The entries of an index file that the batches have not reached yet.
struct Entries<E> {
    path: PathBuf,
    entries: Vec<E>,
    at: usize,
    /// The first thing that is wrong: the entry's number, and what.
    wrong: Option<(usize, String)>,
    /// Why nothing can be said about entries.
    unread: Option<String>,
    missing: bool,
}

impl<E: IndexEntry> Entries<E> {
    fn read<D: Disk>(disk: &D, path: PathBuf, base: Offset) -> Entries<E> {
        let (mut unread, mut missing) = (None, false);
        let content = match disk::read_whole(disk, &path, SIDE_FILE_LIMIT) {
            Ok(content) => content,
            Err(error) => {
                missing = error.kind() == std::io::ErrorKind::NotFound;
                unread = Some(format!("it cannot be read: {error}"));
                Vec::new()
            }
        };
        let chunks = content.chunks_exact(E::BYTES);
        if !chunks.remainder().is_empty() {
            unread = Some(format!("{} bytes are no whole number of entries", content.len()));
        }
        let entries = chunks.map(|entry| E::decode(base, entry)).collect();
        Entries { path, entries, at: 0, wrong: None, unread, missing }
    }

    fn due(&self) -> Option<&E> {
        self.entries.get(self.at)
    }

    fn pass(&mut self, wrong: Option<String>) {
        if let Some(wrong) = wrong {
            self.wrong.get_or_insert((self.at, wrong));
        }
        self.at += 1;
    }

    fn tell(self, weight: Weight, report: &mut Report<'_>) {
        if self.missing {
            let meaning = "it is missing; it is made anew when somebody needs it";
            return report.find(Weight::Note, &self.path, None, meaning);
        }
        if let Some(unread) = self.unread {
            return report.find(weight, &self.path, None, unread);
        }
        if let Some((at, wrong)) = self.wrong {
            report.find(weight, &self.path, Some((at * E::BYTES) as u64), format!("entry {at}: {wrong}"));
        }
    }
}

/// Both indexes of a segment, while its batches go by.
pub(super) struct Indexes {
    offsets: Entries<OffsetEntry>,
    times: Entries<TimeEntry>,
    latest: i64,
}

impl Indexes {
    pub(super) fn read<D: Disk>(disk: &D, index: PathBuf, time_index: PathBuf, base: Offset) -> Indexes {
        let offsets = Entries::read(disk, index, base);
        let times = Entries::read(disk, time_index, base);
        Indexes { offsets, times, latest: -1 }
    }

    /// A batch that is right begins at `position`.
    pub(super) fn see(&mut self, position: u64, header: &BatchHeader) {
        if dates(header) {
            self.latest = self.latest.max(header.max_timestamp);
        }
        while let Some(entry) = self.offsets.due()
            && u64::from(entry.position) <= position
        {
            let wrong = if u64::from(entry.position) < position {
                Some(format!("no batch begins at byte {}", entry.position))
            } else {
                (entry.offset != header.last_offset()).then(|| {
                    let (at, last, said) = (entry.position, header.last_offset(), entry.offset);
                    format!("the batch at byte {at} ends with offset {last}, not {said}")
                })
            };
            self.offsets.pass(wrong);
        }
        while let Some(entry) = self.times.due()
            && entry.offset <= header.last_offset()
        {
            let wrong = if entry.offset < header.last_offset() {
                Some(format!("no batch ends with offset {}", entry.offset))
            } else {
                (entry.timestamp != header.max_timestamp || entry.timestamp != self.latest).then(|| {
                    let (offset, said) = (entry.offset, entry.timestamp);
                    format!("the greatest timestamp up to offset {offset} is {}, not {said}", self.latest)
                })
            };
            self.times.pass(wrong);
        }
    }

    /// The batches have ended. `whole` says that all of them were seen, `closed` that the time index must
    /// know the greatest timestamp.
    pub(super) fn finish(mut self, whole: bool, closed: bool, weight: Weight, report: &mut Report<'_>) {
        if whole {
            if self.offsets.due().is_some() {
                self.offsets.pass(Some("it points behind the last batch".to_string()));
            }
            if self.times.due().is_some() {
                self.times.pass(Some("it points behind the last batch".to_string()));
            }
            let last = self.times.entries.last().map_or(-1, |entry| entry.timestamp);
            if closed && self.times.unread.is_none() && last != self.latest {
                let wrong =
                    format!("the last timestamp is {last}, the segment's greatest is {}", self.latest);
                self.times.wrong.get_or_insert((self.times.entries.len().saturating_sub(1), wrong));
            }
        }
        self.offsets.tell(weight, report);
        self.times.tell(weight, report);
    }
}
