//! Cutting the log at its end: a follower giving up what its leader does not have.

use std::io;
use std::sync::Arc;
use std::sync::atomic::Ordering;

use felix_protocol::ids::Offset;
use felix_protocol::time::WallTime;

use super::fill::{LONGEST, is_filler};
use super::{Log, of_reading};
use crate::disk::{Disk, DiskFile};
use crate::error::{Doing, StorageError};
use crate::flush::Dirty;
use crate::layout::{self, Kind};
use crate::seal::Running;
use crate::segment::Segment;
use crate::segment::walk::{Broken, Step, Walk};

impl<D: Disk> Log<D> {
    /// Cuts the log to end at `to`, or before the batch that `to` lies inside of; durable on return. Returns
    /// the new end, which is where the log ends after a restart, too, also where compaction left a hole there ([`Log::fill`]).
    ///
    /// No flush job may be out. The caller lowers [`crate::Replica::synced`] and its mark to `to` or below, durably, *before*: after a
    /// crash in between, an open would take what is missing for damage.
    pub fn truncate(&mut self, to: Offset, now: WallTime) -> Result<Offset, StorageError> {
        if self.poisoned || self.pending.running {
            return Err(StorageError::Poisoned);
        }
        let start = self.start();
        if to < start {
            return Err(StorageError::OutOfRange { offset: to, start, end: self.end });
        }
        self.cut_ragged()?;
        if to >= self.end {
            return Ok(self.end);
        }
        self.cut_compaction(to);
        let segments = self.segments();
        let keep = segments.partition_point(|segment| segment.base() <= to).max(1);
        let last = segments[keep - 1].clone();
        let Boundary { position, kept, end } = self.boundary(&last, to)?;
        if end < start {
            // The log start lies inside of the batch that would have to go.
            return Err(StorageError::OutOfRange { offset: to, start, end: self.end });
        }
        let map = self.generations.clone();
        let outcome =
            self.cut(&segments, keep, position, kept, now).and_then(|()| self.fill_durably(end, &map, now));
        if outcome.is_err() {
            // Half cut: what the disk holds is known again only after the next open.
            self.poisoned = true;
        }
        outcome.map(|()| end)
    }

    /// Where in `segment` to cut so that no batch reaches to or past `to`.
    fn boundary(&self, segment: &Segment<D>, to: Offset) -> Result<Boundary, StorageError> {
        let from = segment.position_for(to).map_err(of_reading)?;
        let file = segment.file().doing("open", &segment.path(Kind::Log))?;
        let mut position = from;
        let mut kept = (from == 0).then(|| segment.base());
        let mut end = to;
        let mut walk = Walk::new(&*file, from, segment.size(), segment.base());
        while let Some(step) = header_of(segment, walk.next_header(), to)? {
            let next = step.header.next_offset();
            if next > to {
                // What only takes the place of a hole is not one with the batch that a leader may have there.
                if !is_filler(&step.header) {
                    end = to.min(step.header.base_offset);
                }
                break;
            }
            (position, kept) = (step.end(), Some(next));
        }
        let mut walk = Walk::new(&*file, 0, position, segment.base());
        while kept.is_none()
            && let Some(step) = header_of(segment, walk.next_header(), to)?
        {
            kept = (step.end() == position).then(|| step.header.next_offset());
        }
        let kept = kept.unwrap_or(end).min(end);
        // Of a leap in offsets that nobody could fill, nothing is claimed.
        let end = if end - kept > LONGEST { kept } else { end };
        Ok(Boundary { position, kept, end })
    }

    fn cut(
        &mut self,
        segments: &[Arc<Segment<D>>],
        keep: usize,
        position: u64,
        end: Offset,
        now: WallTime,
    ) -> Result<(), StorageError> {
        let last = segments[keep - 1].clone();
        let was_active = keep == segments.len();
        // Readers first: from here on nobody begins to read what goes.
        let shared = self.shared.clone();
        shared.end.store(end, Ordering::Release);
        last.publish(position);
        shared.segments.store(Arc::new(segments[..keep].to_vec()));
        shared.tail.clear(shared.home.dir.tail());
        let bytes: u64 = segments[..keep].iter().map(|segment| segment.size()).sum();
        shared.bytes.store(bytes, Ordering::Relaxed);
        shared.cuts.fetch_add(1, Ordering::AcqRel);
        for segment in &segments[keep - 1..] {
            segment.clear_hints();
        }
        // Newest first and each durably, so that a crash leaves no hole.
        let disk = self.disk().clone();
        let folder = self.folder().to_path_buf();
        for segment in segments[keep..].iter().rev() {
            segment.close_files();
            remove_segment(&disk, segment)?;
            shared.home.dir.damage().forget(&segment.path(Kind::Log));
            disk.sync_dir(&folder).doing("flush", &folder)?;
        }
        self.pending.dirty.retain(|dirty| match dirty {
            Dirty::Segment(segment, _) => segments[..keep].iter().any(|kept| Arc::ptr_eq(kept, segment)),
            Dirty::Other(..) => true,
        });
        let path = last.path(Kind::Log);
        let mut aborted = self.shared.aborted_of(segments, keep - 1).map_err(of_reading)?;
        aborted.retain(|entry| entry.last_offset < end);
        last.gather_aborted(aborted);
        // It is written again when the segment is closed.
        remove_if_there(&disk, &last.path(Kind::TxnIndex))?;
        let file = last.file().doing("open", &path)?;
        // The segment is the last one now: an open after a crash removes its seal without looking at it. It is
        // gone for good with the map's flush below, before anything is written behind the cut.
        last.discard_seal(false).doing("remove", &last.path(Kind::Seal))?;
        file.set_len(position).doing("cut", &path)?;
        // Everything that stays becomes durable here, so `synced` may be believed at the new end.
        for dirty in std::mem::take(&mut self.pending.dirty) {
            if !matches!(&dirty, Dirty::Segment(segment, _) if Arc::ptr_eq(segment, &last)) {
                dirty.sync().map_err(|error| {
                    StorageError::io("flush", &error.path, io::Error::other(error.reason))
                })?;
            }
        }
        file.sync_data().doing("flush", &path)?;
        self.end = end;
        self.position = position;
        self.closed = self.closed.min(last.base());
        self.active = last;
        self.pending.active_dirty = false;
        self.first_timestamp = None;
        if !was_active {
            self.active_since = now;
        }
        // Then what is derived from it.
        if self.generations.cut(end) {
            self.publish_map();
        }
        let map = layout::format_epoch_checkpoint(&self.generations);
        layout::write_durably(&disk, &folder, layout::EPOCH_CHECKPOINT, map.as_bytes())?;
        self.pending.map_changed = false;
        self.pending.map_owed = false;
        // What belongs to segments that stay is still to be written.
        let base = self.active.base();
        self.pending.side.retain(|side| match layout::parse_file_name(&side.name) {
            Some((offset, Kind::Snapshot)) => offset <= end,
            Some((offset, Kind::Seal | Kind::TxnIndex)) => offset < base,
            Some(_) | None => false,
        });
        self.running = (position == 0).then(Running::new);
        self.touched = true;
        self.pending.folders.clear();
        disk.sync_dir(shared.home.dir.path()).doing("flush", shared.home.dir.path())?;
        self.active.cut_indexes(position).map_err(of_reading)?;
        self.remove_snapshots_above(end)?;
        (self.durable, self.synced) = (end, end);
        self.write_aborted_now();
        self.reload_producers(now)
    }

    /// Nothing below `synced` is read after a crash, so what only a file will know then must be in it.
    fn write_aborted_now(&mut self) {
        let (disk, folder) = (self.disk().clone(), self.folder().to_path_buf());
        for side in std::mem::take(&mut self.pending.side) {
            match layout::parse_file_name(&side.name) {
                Some((base, Kind::TxnIndex)) => {
                    if layout::write_durably(&disk, &folder, &side.name, &side.content).is_err() {
                        self.synced = self.synced.min(base);
                        self.pending.side.push(side);
                    }
                }
                Some(_) | None => self.pending.side.push(side),
            }
        }
    }

    /// Removes snapshots of offsets that the log does not reach.
    pub(super) fn remove_snapshots_above(&self, end: Offset) -> Result<(), StorageError> {
        let folder = self.folder();
        let mut any = false;
        for entry in self.disk().read_dir(folder).doing("list", folder)? {
            if let Some((offset, Kind::Snapshot)) = layout::parse_file_name(&entry.name)
                && offset > end
            {
                let path = folder.join(&entry.name);
                self.disk().remove_file(&path).doing("remove", &path)?;
                any = true;
            }
        }
        if any {
            self.disk().sync_dir(folder).doing("flush", folder)?;
        }
        Ok(())
    }
}

/// Where a log is cut.
struct Boundary {
    /// Behind the last batch that stays.
    position: u64,
    /// One past that batch.
    kept: Offset,
    /// Where the log is to end. Above `kept` where it lies in, or behind, a hole that compaction left.
    end: Offset,
}

fn header_of<D: Disk>(
    segment: &Segment<D>,
    found: Result<Option<Step>, Broken>,
    to: Offset,
) -> Result<Option<Step>, StorageError> {
    found.map_err(|broken| match broken {
        Broken::Io(error) => StorageError::io("read", &segment.path(Kind::Log), error),
        Broken::Batch { position, reason } => segment.damaged(position, to, reason).into(),
    })
}

/// Removes a segment's files, the batches last.
fn remove_segment<D: Disk>(disk: &D, segment: &Segment<D>) -> Result<(), StorageError> {
    let side = [Kind::Seal, Kind::Damage, Kind::Snapshot, Kind::TxnIndex, Kind::TimeIndex, Kind::Index];
    for kind in side.into_iter().chain([Kind::Log]) {
        remove_if_there(disk, &segment.path(kind))?;
    }
    Ok(())
}

#[track_caller]
fn remove_if_there<D: Disk>(disk: &D, path: &std::path::Path) -> Result<(), StorageError> {
    match disk.remove_file(path) {
        Err(error) if error.kind() != io::ErrorKind::NotFound => Err(StorageError::io("remove", path, error)),
        Ok(()) | Err(_) => Ok(()),
    }
}
