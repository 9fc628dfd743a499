//! What an open looks at of segments that are closed and flushed, without reading what is sealed.

use std::sync::Arc;

use felix_protocol::ids::Offset;

use super::super::read::may_leave_room;
use super::super::{SideFile, of_reading};
use super::Loader;
use crate::check::{self, Checker, Fault, Verdict};
use crate::disk::Disk;
use crate::error::{Doing, StorageError};
use crate::index::OffsetEntry;
use crate::layout::Kind;
use crate::seal::{self, Found};
use crate::segment::Segment;
use crate::segment::walk::{Broken, Walk};

impl<D: Disk> Loader<'_, D> {
    /// Looks at the first `count` segments. The seal says how long each is and where the next begins; one without a
    /// seal says where it ends by its last batches. Read whole is only what does not fit, and what was found damaged
    /// before: it may have been put right.
    pub(super) fn look_at_closed(&mut self, count: usize) -> Result<(), StorageError> {
        let segments = self.log.segments();
        // What lies wholly below the log start is a leftover, and may have left holes.
        let starts = segments.partition_point(|segment| segment.base() <= self.recovered.log_start);
        for (at, segment) in segments.iter().enumerate().take(count).skip(starts.saturating_sub(1)) {
            let next = segments.get(at + 1);
            let sealed = self.listing.seals.contains(&segment.base());
            let found = if sealed {
                seal::read_alone(self.log.disk(), self.log.folder(), segment.base())
            } else {
                Found::Missing
            };
            match &found {
                _ if self.listing.noted.contains(&segment.base()) => {
                    self.look_through(segment, next, &found)?;
                }
                Found::Seal(seal) if seal.open && seal.size < segment.size() => {
                    self.look_at_end(segment, next)?;
                }
                Found::Seal(seal) if seal.size == segment.size() => {
                    self.compare_joint(segment, next, seal.next);
                }
                Found::Seal(_) => self.look_through(segment, next, &found)?,
                // The scrub reads it, and seals it.
                Found::Missing | Found::Bad(_) => self.look_at_end(segment, next)?,
            }
        }
        Ok(())
    }

    /// Reads all of a segment.
    fn look_through(
        &mut self,
        segment: &Arc<Segment<D>>,
        next: Option<&Arc<Segment<D>>>,
        found: &Found,
    ) -> Result<(), StorageError> {
        let mut checker = Checker::new(segment.base(), next.map(|next| next.base()));
        let whole = check::run(segment, &mut checker).doing("read", &segment.path(Kind::Log))?;
        let verdict = match whole {
            Ok(()) => checker.judge(found),
            Err(fault) => Verdict::Damaged(fault),
        };
        match verdict {
            Verdict::Damaged(Fault { position, offset, reason }) => {
                self.found(segment.damaged(position, offset, reason));
                return Ok(());
            }
            Verdict::BadSeal(_) => {
                // What is no seal at all, the scrub replaces.
                if let Found::Seal(seal) = found {
                    self.rebuilt(SideFile::Seal);
                    self.log.stage_seal(&checker.sealed(seal.gaps));
                }
            }
            Verdict::Unsealed | Verdict::Sealed => {}
        }
        if self.compare_joint(segment, next, checker.next()) {
            self.is_right(segment);
        }
        Ok(())
    }

    /// Reads the last batches of a segment only: whether it ends where the next one begins.
    fn look_at_end(
        &mut self,
        segment: &Arc<Segment<D>>,
        next: Option<&Arc<Segment<D>>>,
    ) -> Result<(), StorageError> {
        let (path, size) = (segment.path(Kind::Log), segment.size());
        let file = segment.file().doing("open", &path)?;
        let last = segment.last_entry::<OffsetEntry>(Kind::Index).and_then(|(_, last)| last);
        let (from, mut due) = match last {
            Some(entry) if segment.agrees(&file, size, &entry).map_err(of_reading)? => {
                (u64::from(entry.position), entry.offset)
            }
            Some(_) | None => (0, segment.base()),
        };
        let mut walk = Walk::new(&*file, from, size, segment.base());
        loop {
            match walk.next_header() {
                Ok(Some(step)) => due = step.header.next_offset(),
                Ok(None) => break,
                Err(Broken::Batch { position, reason }) => {
                    self.found(segment.damaged(position, due, reason));
                    return Ok(());
                }
                Err(Broken::Io(error)) => return Err(StorageError::io("read", &path, error)),
            }
        }
        self.compare_joint(segment, next, due);
        Ok(())
    }

    /// Whether a segment that ends at `end` reaches to the next one.
    fn compare_joint(
        &mut self,
        segment: &Arc<Segment<D>>,
        next: Option<&Arc<Segment<D>>>,
        end: Offset,
    ) -> bool {
        let Some(next) = next.filter(|next| end < next.base() && !may_leave_room(Some(segment), next)) else {
            return true;
        };
        let reason = format!("segment {} follows where {end} was due", next.base());
        self.found(segment.damaged(segment.size(), end, reason));
        false
    }
}
