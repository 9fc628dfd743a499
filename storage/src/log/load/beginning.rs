//! Where a log begins, and what it means when its first segment begins behind that.
//!
//! Retention makes the new log start durable in the table before it takes a segment away, so a log whose first
//! segment begins behind the log start that the table knows has lost what stood in between: it never came to the disk
//! before the power went, although later segments did. Taking the first segment's base for the log start would hide
//! that loss, and let the copy claim an end up to which it does not hold everything. So it is a hole like any other,
//! and the log ends before it.

use std::sync::Arc;

use felix_protocol::ids::Offset;

use super::super::Log;
use super::Loader;
use crate::disk::Disk;
use crate::error::{Damaged, Doing, StorageError};
use crate::layout::{self, Kind};
use crate::segment::Segment;
use crate::segment::walk::valid_batch_at_or_after;

/// Where a log begins.
pub(super) enum Beginning {
    /// There, as far as anybody knows.
    At(Offset),
    /// There, and nothing of what followed is left; what is there begins behind a hole.
    Hole(Offset),
}

impl<D: Disk> Loader<'_, D> {
    /// Where the log begins. If its first segment is gone, that is still where it did begin: whoever reads there is
    /// told, and not sent on.
    pub(super) fn beginning(&mut self) -> Result<Beginning, StorageError> {
        let (told, found) = (self.recovered.log_start, self.log.start());
        if found <= told {
            return Ok(Beginning::At(told));
        }
        let reason = format!("the first segment begins at {found}");
        let gone = |promised| Damaged {
            segment: layout::file_path(self.log.folder(), told, Kind::Log),
            position: 0,
            offset: told,
            promised,
            reason: reason.clone(),
        };
        if self.promised > told {
            let damaged = gone(true);
            self.found(damaged);
            return Ok(Beginning::At(told));
        }
        let segments = self.log.segments();
        // A batch that began further on than one segment reaches took an empty first one away (`Log::roll_for`).
        let leapt = found - told > i64::from(i32::MAX) && holds_anything(&segments[..1], found)?;
        if leapt || self.is_older_than_log(found) {
            return Ok(Beginning::At(found));
        }
        if !self.recovered.cut_ambiguous && holds_anything(&segments, told)? {
            return Err(gone(false).into());
        }
        Ok(Beginning::Hole(told))
    }

    /// The table may be of an earlier time than the log. What the log's own map says is durable with the names of the
    /// segments: once its first entry lies in the first segment, nothing stood before.
    fn is_older_than_log(&self, found: Offset) -> bool {
        let map = self.stored_map();
        map.is_some_and(|map| map.entries().first().is_some_and(|(_, first)| *first >= found))
    }

    /// The log is empty: what lies behind the hole goes, newest first, so that a crash leaves no second hole.
    pub(super) fn cut_behind_hole(&mut self, start: Offset) -> Result<(), StorageError> {
        let home = self.log.shared.home.clone();
        for segment in self.log.segments().iter().rev() {
            self.report.cut_bytes += segment.size();
            segment.close_files();
            for kind in Kind::ALL {
                // One that cannot be removed now is a segment behind a hole again at the next start.
                let _ = home.dir.disk().remove_file(&segment.path(kind));
            }
            home.dir.damage().forget(&segment.path(Kind::Log));
        }
        *self.log = Log::begin(home, self.log.config.clone(), start, self.now)?;
        self.log.pending.map_owed = true;
        self.log.remove_snapshots_above(start)
    }
}

/// Whether a whole batch is in any of the segments.
fn holds_anything<D: Disk>(segments: &[Arc<Segment<D>>], floor: Offset) -> Result<bool, StorageError> {
    for segment in segments {
        let path = segment.path(Kind::Log);
        let file = segment.file().doing("open", &path)?;
        if valid_batch_at_or_after(&*file, 0, segment.size(), floor).doing("read", &path)?.is_some() {
            return Ok(true);
        }
    }
    Ok(false)
}
