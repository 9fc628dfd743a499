//! Opening a log that was not closed properly: what is not known to be flushed is read and checked.

use std::io;
use std::sync::Arc;
use std::sync::atomic::Ordering;

use felix_protocol::generation_map::GenerationMap;
use felix_protocol::ids::{Generation, Offset};

use super::super::aborted::aborted;
use super::super::{SideFile, of_reading};
use super::{Loader, of_walk};
use crate::data_dir::SIDE_FILE_LIMIT;
use crate::disk::{self, Disk, DiskFile, OpenMode, read_up_to, write_all_at};
use crate::error::{Damaged, Doing, StorageError};
use crate::flush::{Dirty, Held, SideWrite};
use crate::layout::{self, Kind};
use crate::producers::{Producers, snapshot};
use crate::seal::{self, Found, Running, Seal};
use crate::segment::Segment;
use crate::segment::walk::{Broken, Walk, valid_batch_after};

impl<D: Disk> Loader<'_, D> {
    /// Returns how many segments from the first on were flushed, and not read.
    pub(super) fn scan(&mut self) -> Result<usize, StorageError> {
        let segments = self.log.segments();
        // The first segment that is not known to be flushed, completed indexes and all: it is when something
        // in the next one is.
        let first = (1..segments.len())
            .find(|next| segments[*next].base() >= self.recovered.synced)
            .map_or(segments.len() - 1, |next| next - 1);
        // Segments below the log start are leftovers, and may have left holes.
        let starts = segments.partition_point(|segment| segment.base() <= self.recovered.log_start);
        let first = first.max(starts.saturating_sub(1));
        let base = segments[first].base();
        self.map_below(base)?;
        let mut expected = base;
        self.log.end = base;
        self.producers_below(base)?;
        let mut stopped = None;
        let mut checksums = Vec::with_capacity(segments.len() - first);
        for (at, segment) in segments.iter().enumerate().skip(first) {
            // Only a leap in offsets that no one segment could hold leaves room between two.
            let leap = segment.base() - segments[at.saturating_sub(1)].base() > i64::from(i32::MAX);
            if segment.base() != expected && at > first && !(leap && segment.base() > expected) {
                let reason = format!("segment {} follows where {expected} was due", segment.base());
                if !self.passes_over(expected, Some(segment)) {
                    stopped = Some((at - 1, segments[at - 1].size(), reason));
                    break;
                }
                self.found(segments[at - 1].damaged(segments[at - 1].size(), expected, reason));
                self.log.producers = Producers::default();
                expected = segment.base();
            }
            if at > first {
                self.snapshot_at(segment.base());
            }
            let leapt = at > first && segment.base() != expected;
            let (mut running, mut broken) = self.scan_segment(segment, &mut expected)?;
            if broken.is_none() && self.is_not_as_sealed(segment, &running) {
                (running, expected) = (Running::new(), segment.base());
                broken = Some("the segment's checksum is not the one that was sealed".to_string());
            }
            // The batch that a leap was made for never came to the disk: the log ends before it.
            let nothing = leapt && running.size() == 0;
            let broken =
                broken.or_else(|| nothing.then(|| "nothing stands behind a leap in offsets".to_string()));
            let Some(reason) = broken else {
                checksums.push((Some(running), expected));
                self.is_right(segment);
                if segments.get(at + 1).is_some_and(|next| next.base() == expected) {
                    self.believe_snapshot(expected);
                }
                continue;
            };
            let next = segments.get(at + 1);
            if !self.passes_over(expected, next) {
                stopped = Some(if nothing {
                    (at - 1, segments[at - 1].size(), reason)
                } else {
                    (at, running.size(), reason)
                });
                checksums.push((Some(running), expected));
                break;
            }
            checksums.push((None, expected));
            self.found(segment.damaged(running.size(), expected, reason));
            self.log.producers = Producers::default();
            match next {
                Some(next) => expected = next.base(),
                None => self.good = running.size(),
            }
        }
        self.log.end = expected;
        let mut last = segments.len() - 1;
        if let Some((at, good, reason)) = stopped {
            last = at;
            self.cut_tail(&segments, at, good, expected, reason)?;
        }
        let active = segments[last].clone();
        self.log.shared.segments.store(Arc::new(segments[..=last].to_vec()));
        let bytes = segments[..=last].iter().map(|segment| segment.size()).sum();
        self.log.shared.bytes.store(bytes, Ordering::Relaxed);
        self.log.position = active.size();
        self.log.active = active;
        self.log.synced = self.recovered.synced.min(expected);
        self.log.durable = self.log.synced;
        // The next crash may find all but the last segment flushed, and then asks the map's file about them.
        if last > 0 && self.stored_map().as_ref() != Some(&self.log.generations) {
            self.log.pending.map_owed = true;
        }
        self.log.pending.folders.push(self.log.folder().to_path_buf());
        self.log.pending.folders.push(self.log.shared.home.dir.path().to_path_buf());
        // What an earlier life noted of offsets that are not reached now would mislead a later one.
        if self.listing.snapshots.last().is_some_and(|newest| *newest > expected) {
            self.log.remove_snapshots_above(expected)?;
        }
        for (segment, (running, next)) in segments[first..last].iter().zip(&checksums) {
            let indexes = segment.complete_indexes();
            self.log.mark_others_dirty(indexes);
            if let Some(running) = running {
                let aborted = !segment.gathered_aborted().is_empty();
                let seal = Seal { aborted, ..running.seal(segment.base(), *next, false) };
                self.log.stage_seal(&running.sealed(seal));
            }
            self.log.stage_aborted(segment);
        }
        for segment in &segments[first..=last] {
            if segment.base() == segments[last].base() || segment.gathered_aborted().is_empty() {
                // Of an earlier life; one that cannot go now is no longer looked at in this one.
                let _ = self.log.disk().remove_file(&segment.path(Kind::TxnIndex));
            }
        }
        self.log.running = checksums.into_iter().nth(last - first).and_then(|(running, _)| running);
        self.log.touched = true;
        if self.listing.seals.contains(&segments[last].base()) {
            // It is written to again; a seal that came back later would describe other bytes.
            let path = segments[last].path(Kind::Seal);
            seal::discard(self.log.disk(), self.log.folder(), segments[last].base())
                .doing("remove", &path)?;
        }
        Ok(first)
    }

    /// Whether a segment below what was promised, each of whose batches is right, is not as it was sealed: then a byte
    /// changed that the batches' own checksums leave out.
    fn is_not_as_sealed(&self, segment: &Segment<D>, running: &Running) -> bool {
        let base = segment.base();
        if base >= self.promised || !self.listing.seals.contains(&base) {
            return false;
        }
        match seal::read(self.log.disk(), self.log.folder(), base) {
            Found::Seal(seal) => seal.size == running.size() && seal.crc != running.crc(),
            Found::Missing | Found::Bad(_) => false,
        }
    }

    /// Whether damage at `offset` is left as it is, and opening goes on with the segment behind it: what was
    /// promised is never cut, and the caller knows that this copy cannot vouch for it.
    fn passes_over(&self, offset: Offset, next: Option<&Arc<Segment<D>>>) -> bool {
        self.recovered.cut_ambiguous
            && offset < self.promised
            && next.is_none_or(|next| next.base() >= offset)
    }

    /// The map of what lies below the scanned part.
    fn map_below(&mut self, base: Offset) -> Result<(), StorageError> {
        let segments = self.log.segments();
        let anything_below = segments.first().is_some_and(|first| first.base() < base);
        match self.stored_map() {
            Some(mut map) => {
                map.cut(base);
                // Its newest must not be beyond what the scanned part begins with.
                let begins = self.first_generation_from(base)?;
                let lies = map.latest().is_some_and(|(latest, _)| begins.is_some_and(|first| latest > first));
                let short = anything_below && map.latest().is_none();
                self.log.generations = map;
                if lies || short {
                    self.build_map_below(base)?;
                }
            }
            None if anything_below => self.build_map_below(base)?,
            None => {
                if self.log.size_bytes() > 0 {
                    self.rebuilt(SideFile::GenerationMap);
                }
            }
        }
        self.log.pending.map_changed = true;
        Ok(())
    }

    fn first_generation_from(&self, base: Offset) -> Result<Option<Generation>, StorageError> {
        let segments = self.log.segments();
        let Some(segment) = segments.iter().find(|segment| segment.base() == base) else { return Ok(None) };
        let file = segment.file().doing("open", &segment.path(Kind::Log))?;
        let header = segment.header_at(&file, segment.size(), 0).map_err(of_reading)?;
        Ok(header.and_then(|header| header.generation))
    }

    fn build_map_below(&mut self, base: Offset) -> Result<(), StorageError> {
        let mut map = GenerationMap::default();
        for segment in self.log.segments().iter().take_while(|segment| segment.base() < base) {
            let file = segment.file().doing("open", &segment.path(Kind::Log))?;
            let mut walk = Walk::new(&*file, 0, segment.size(), segment.base());
            while let Some(step) = self.log.next_header(segment, &mut walk)? {
                if let Some(generation) = step.header.generation {
                    map.begin(generation, step.header.base_offset);
                }
            }
        }
        self.log.generations = map;
        self.rebuilt(SideFile::GenerationMap);
        Ok(())
    }

    fn producers_below(&mut self, base: Offset) -> Result<(), StorageError> {
        let (producers, at) = self.log.snapshot_below(&self.listing.snapshots, base, self.now);
        self.log.producers = producers;
        if at != Some(base) && self.log.replay(at, base, self.now)? {
            self.rebuilt(SideFile::ProducerSnapshot);
            // Before retention may take what they were built from.
            self.snapshot_at(base);
        }
        Ok(())
    }

    /// Compaction leaves the last batch of a producer and no more; what was written at the roll knows all of them.
    /// One of another history cannot stand there: a cut takes those above it away before anything is appended.
    fn believe_snapshot(&mut self, at: Offset) {
        if !self.listing.snapshots.contains(&at) {
            return;
        }
        let path = layout::file_path(self.log.folder(), at, Kind::Snapshot);
        let content = disk::read_whole(self.log.disk(), &path, SIDE_FILE_LIMIT);
        let expiry_ms = self.log.config.producer_expiry_ms;
        if let Ok(content) = content
            && let Ok(producers) = snapshot::decode(&content, self.now, expiry_ms)
        {
            self.log.producers = producers;
        }
    }

    fn snapshot_at(&mut self, base: Offset) {
        self.log.pending.side.push(SideWrite {
            name: layout::file_name(base, Kind::Snapshot),
            content: snapshot::encode(&self.log.producers),
        });
    }

    /// Checks every batch of a segment, builds its indexes anew and writes again what may not be on the
    /// disk. Returns the checksum of its good part, and why that ends if not with the file.
    fn scan_segment(
        &mut self,
        segment: &Arc<Segment<D>>,
        expected: &mut Offset,
    ) -> Result<(Running, Option<String>), StorageError> {
        let path = segment.path(Kind::Log);
        let file = segment.file().doing("open", &path)?;
        segment.start_empty_indexes();
        // A short last segment's are not written again before it is closed, and until then what a crash left of
        // them would mislead whoever looks at the files.
        segment.empty_indexes();
        segment.gather_aborted(Vec::new());
        let size = segment.size();
        let mut walk = Walk::new(&*file, 0, size, segment.base());
        let mut running = Running::new();
        let mut unsynced_from = None;
        let broken = loop {
            match walk.next_checked() {
                Ok(Some(step)) => {
                    let header = step.header;
                    if header.last_offset() - segment.base() > i64::from(i32::MAX) {
                        break Some(format!("offset {} does not fit the segment", header.last_offset()));
                    }
                    if self.is_too_new(header.generation) {
                        break Some(format!("generation {:?} was never given", header.generation));
                    }
                    if let Some(generation) = header.generation {
                        if self.log.generations.latest().is_some_and(|(latest, _)| latest > generation) {
                            break Some(format!("generation {generation} after a newer one"));
                        }
                        self.log.generations.begin(generation, header.base_offset);
                    }
                    let bytes = walk.batch(&step).map_err(|broken| of_walk(segment, broken))?;
                    let ended = self.log.producers.record(&header, bytes, self.now);
                    if let Some(first) = ended.and_then(|ended| ended.first_offset) {
                        self.log.decided.note(header.last_offset(), first);
                    }
                    if let Some(entry) = aborted(&self.log.producers, ended, header.last_offset()) {
                        segment.add_aborted(entry);
                    }
                    running.add(&header, bytes, if step.position == 0 { segment.base() } else { *expected });
                    segment.index(&header, step.position);
                    *expected = header.next_offset();
                    if *expected > self.recovered.synced && unsynced_from.is_none() {
                        unsynced_from = Some(step.position);
                    }
                }
                Ok(None) => break None,
                Err(Broken::Batch { reason, .. }) => break Some(reason),
                Err(Broken::Io(error)) => return Err(StorageError::io("read", &path, error)),
            }
        };
        let good = running.size();
        self.report.scanned_bytes += good;
        if let Some(from) = unsynced_from {
            rewrite(&*file, from, good).doing("write", &path)?;
        }
        if unsynced_from.is_some() || broken.is_some() || good == 0 {
            let held = Held::new(&self.log.shared.home.dir, file);
            self.log.pending.dirty.push(Dirty::Segment(segment.clone(), held));
        }
        Ok((running, broken))
    }

    /// The log ends in segment `at` behind `good` bytes, at offset `end`: cuts the rest, unless it may be
    /// damage rather than a torn tail.
    fn cut_tail(
        &mut self,
        segments: &[Arc<Segment<D>>],
        at: usize,
        good: u64,
        end: Offset,
        reason: String,
    ) -> Result<(), StorageError> {
        let segment = &segments[at];
        let path = segment.path(Kind::Log);
        let damaged = |promised| Damaged {
            segment: path.clone(),
            position: good,
            offset: end,
            promised,
            reason: reason.clone(),
        };
        if end < self.promised {
            return Err(damaged(true).into());
        }
        if !self.recovered.cut_ambiguous {
            for (follower, from) in
                std::iter::once((segment, good + 1)).chain(segments[at + 1..].iter().map(|s| (s, 0)))
            {
                let file = follower.file().doing("open", &follower.path(Kind::Log))?;
                let found = valid_batch_after(&*file, from, follower.size(), end)
                    .doing("read", &follower.path(Kind::Log))?;
                if found.is_some() {
                    return Err(damaged(false).into());
                }
            }
        }
        let disk = self.log.disk().clone();
        // Gone for good with the flush that follows an open; one that comes back in a crash before that is as
        // much in doubt as it was.
        for later in segments[at + 1..].iter().rev() {
            self.report.cut_bytes += later.size();
            later.close_files();
            for kind in Kind::ALL {
                let _ = disk.remove_file(&later.path(kind));
            }
        }
        self.log.pending.dirty.retain(|dirty| match dirty {
            Dirty::Segment(dirty, _) => segments[..=at].iter().any(|kept| Arc::ptr_eq(kept, dirty)),
            Dirty::Other(..) => true,
        });
        self.log
            .pending
            .side
            .retain(|side| layout::parse_file_name(&side.name).is_none_or(|(offset, _)| offset <= end));
        if segment.size() > good {
            self.report.cut_bytes += segment.size() - good;
            let file = disk.open(&path, OpenMode::Write).doing("open", &path)?;
            file.set_len(good).doing("cut", &path)?;
            segment.publish(good);
        }
        Ok(())
    }
}

/// Writes bytes again that may have failed to reach the disk although they read back: the page cache forgets
/// that a write-back failed.
fn rewrite<F: DiskFile>(file: &F, from: u64, to: u64) -> io::Result<()> {
    const CHUNK: u64 = 1 << 20;
    let mut at = from;
    while at < to {
        let len = usize::try_from((to - at).min(CHUNK)).unwrap_or(0);
        let bytes = read_up_to(file, len, at)?;
        if bytes.is_empty() {
            break;
        }
        match write_all_at(file, &bytes, at) {
            // The blocks are there already on most file systems; a full one must not stop the start.
            Err(error) if disk::is_full(&error) => return Ok(()),
            other => other?,
        }
        at += bytes.len() as u64;
    }
    Ok(())
}
