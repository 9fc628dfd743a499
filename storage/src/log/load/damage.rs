//! Opening a log that is damaged where it was promised: what is damaged stays as it is and is told, the rest is
//! opened around it. No offset that was promised is ever given again.

use std::sync::Arc;

use felix_protocol::ids::Offset;

use super::super::read::may_leave_room;
use super::Loader;
use crate::disk::{Disk, DiskFile};
use crate::error::{Damaged, Doing, StorageError};
use crate::layout::{self, Kind};
use crate::producers::Producers;
use crate::seal::Seal;
use crate::segment::Segment;
use crate::segment::walk::valid_batch_at_or_after;

impl<D: Disk> Loader<'_, D> {
    /// Notes what cannot be read. The log opens nevertheless.
    pub(super) fn found(&mut self, damaged: Damaged) {
        self.log.shared.home.dir.damage().note(&damaged);
        self.report.damage.push(damaged);
    }

    /// Where the log begins. If its first segment is gone, that is still where it did begin: whoever reads there is
    /// told, and not sent on.
    pub(super) fn first_offset(&mut self) -> Offset {
        let (told, found) = (self.recovered.log_start, self.log.start());
        if found <= told || self.promised <= told {
            return told.max(found);
        }
        self.found(Damaged {
            segment: layout::file_path(self.log.folder(), told, Kind::Log),
            position: 0,
            offset: told,
            promised: true,
            reason: format!("the first segment begins at {found}"),
        });
        told
    }

    /// Whether a closed segment reaches to the one behind it, by its seal.
    pub(super) fn compare_joint(
        &mut self,
        segment: &Arc<Segment<D>>,
        next: Option<&Arc<Segment<D>>>,
        seal: &Seal,
    ) {
        let Some(next) = next else { return };
        if !seal.open && seal.next < next.base() && !may_leave_room(Some(segment), next) {
            let reason = format!("segment {} follows where {} was due", next.base(), seal.next);
            self.found(segment.damaged(segment.size(), seal.next, reason));
        }
    }

    /// What was promised behind the log's end is damaged or gone: the log goes on behind it, in a new segment, if
    /// the caller allows that.
    pub(super) fn go_on_behind(&mut self, damaged: Damaged) -> Result<(), StorageError> {
        if !self.recovered.cut_ambiguous {
            return Err(damaged.into());
        }
        let end = self.readable_end()?.max(self.promised);
        if !self.report.damage.iter().any(|found| found.offset == damaged.offset) {
            self.found(damaged);
        }
        // What they wrote last may be among what is lost: they begin anew rather than be refused.
        self.log.producers = Producers::default();
        self.log.running = None;
        self.log.end = end;
        self.log.roll(end, self.now)
    }

    /// One past the last batch that can be read anywhere in the last segment.
    fn readable_end(&self) -> Result<Offset, StorageError> {
        let segment = &self.log.active;
        let path = segment.path(Kind::Log);
        let file = segment.file().doing("open", &path)?;
        let size = segment.size().min(file.len().doing("look at", &path)?);
        let mut end = self.log.end;
        // Each look begins behind the batch that the last one found: the file is read once.
        let mut from = self.good;
        while let Some(found) = valid_batch_at_or_after(&*file, from, size, end).doing("read", &path)? {
            (from, end) = (found.position + found.header.bytes as u64, found.header.next_offset());
        }
        Ok(end)
    }
}
