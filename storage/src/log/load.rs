//! Opening a log that exists.
//!
//! After a clean stop the files are believed: names, lengths, and of the last segment the few batches behind
//! its last index entry. After anything else every segment that reaches above what was flushed is read and
//! its checksums are checked: the first batch that is not whole ends the log, provided that nothing was
//! promised there and nothing readable follows. Side files are derived from the batches, so a bad one is
//! built again and never stops anything; a disk too full to write one is no reason either.

use std::collections::BTreeSet;
use std::io;
use std::sync::Arc;
use std::sync::atomic::Ordering;

use felix_protocol::generation_map::GenerationMap;
use felix_protocol::ids::{Offset, PartitionId};
use felix_protocol::time::WallTime;

use super::{LoadReport, Log, Recovered, SHORT, SideFile, home, of_reading};
use crate::compaction::checkpoint;
use crate::config::LogConfig;
use crate::data_dir::{DataDir, SIDE_FILE_LIMIT};
use crate::disk::{self, Disk};
use crate::error::{Damaged, Doing, ReadError, StorageError};
use crate::index::{OffsetEntry, TimeEntry};
use crate::layout::{self, Kind};
use crate::producers::{Producers, snapshot};
use crate::seal::marks::Sealed;
use crate::seal::{self, Running};
use crate::segment::walk::{Broken, Step, Walk};
use crate::segment::{Home, Segment};
use beginning::Beginning;

mod adopt;
mod beginning;
mod closed;
mod damage;
mod scan;
mod swap;

/// What the folder holds.
#[derive(Default)]
struct Listing {
    segments: Vec<Offset>,
    snapshots: BTreeSet<Offset>,
    seals: BTreeSet<Offset>,
    /// Segments that were found damaged.
    noted: BTreeSet<Offset>,
    has_map: bool,
    has_metadata: bool,
    /// Compaction noted how far it was.
    has_checkpoint: bool,
    /// Segments that compaction was writing anew.
    has_rewritten: bool,
    /// Any segment has aborted transactions.
    has_aborted: bool,
}

impl<D: Disk> Log<D> {
    /// Opens an existing log. Unless [`Recovered::clean`], [`Log::flush_job`] then covers every byte that
    /// was not known to be flushed: run it before any end is answered.
    ///
    /// A folder that is missing though nothing was ever promised of it is made, unless [`Recovered::made`]: its
    /// creation was cut short.
    pub fn open(
        dir: &DataDir<D>,
        partition: PartitionId,
        config: LogConfig,
        recovered: Recovered,
        now: WallTime,
    ) -> Result<(Log<D>, LoadReport), StorageError> {
        let home = home(dir, partition, &config);
        // Below the log start nothing is promised any more.
        let promised = recovered.mark.max(recovered.synced);
        let promised = if promised > recovered.log_start { promised } else { 0 };
        let listed = list(&home).and_then(|listing| {
            // Nobody else is at this log yet.
            if listing.has_rewritten {
                swap::finish_swaps(&home).and_then(|()| list(&home))
            } else {
                Ok(listing)
            }
        });
        let listing = match listed {
            Ok(listing) => listing,
            Err(StorageError::Io { source, .. }) if source.kind() == io::ErrorKind::NotFound => {
                if promised > 0 || recovered.made {
                    return Err(StorageError::Missing(home.folder.clone()));
                }
                let log = Log::create(dir, partition, config, recovered.log_start, now)?;
                return Ok((log, LoadReport::default()));
            }
            Err(error) => return Err(error),
        };
        let mut bases = listing.segments.clone();
        drop_below_start(&home, &mut bases, &listing, recovered.log_start);
        if bases.is_empty() {
            if promised > 0 {
                return damage::begin_behind(home, config, &recovered, promised, now);
            }
            // How far it went is not known, so an offset could be given twice. Once the log start has moved, a crash
            // may leave this, too: all segments left the log, and the name of the new one is not durable before the
            // next flush.
            if recovered.made && recovered.log_start == 0 {
                return Err(StorageError::Missing(home.folder.clone()));
            }
            let log = Log::begin(home, config, recovered.log_start, now)?;
            return Ok((log, LoadReport::default()));
        }
        let mut segments = Vec::with_capacity(bases.len());
        for base in bases {
            let path = layout::file_path(&home.folder, base, Kind::Log);
            let size = home.dir.disk().len_of(&path).doing("look at", &path)?;
            segments.push(Arc::new(Segment::existing(home.clone(), base, size)));
        }
        let end = segments.last().map_or(0, |last| last.base());
        let mut log = Log::assemble(home, config, segments, end, now);
        let mut loader = Loader {
            log: &mut log,
            recovered,
            promised,
            listing,
            now,
            good: 0,
            report: LoadReport::default(),
        };
        loader.load()?;
        let report = loader.report;
        Ok((log, report))
    }

    /// Producers as of the log end, from the newest good snapshot and the batches behind it.
    pub(super) fn reload_producers(&mut self, now: WallTime) -> Result<(), StorageError> {
        let listing = list(&self.shared.home)?;
        let (producers, from) = self.snapshot_below(&listing.snapshots, self.end, now);
        self.producers = producers;
        self.replay(from, self.end, now).map(drop)
    }

    /// The newest snapshot at or below `offset` that can be read, and its offset.
    fn snapshot_below(
        &self,
        snapshots: &BTreeSet<Offset>,
        offset: Offset,
        now: WallTime,
    ) -> (Producers, Option<Offset>) {
        for at in snapshots.range(..=offset).rev() {
            let path = layout::file_path(self.folder(), *at, Kind::Snapshot);
            let read = disk::read_whole(self.disk(), &path, SIDE_FILE_LIMIT);
            if let Ok(content) = read
                && let Ok(producers) = snapshot::decode(&content, now, self.config.producer_expiry_ms)
            {
                return (producers, Some(*at));
            }
        }
        (Producers::default(), None)
    }

    /// Takes the batches of `[from, to)` into the producers; from the beginning where no snapshot was found.
    /// Segments last written so long ago that every producer in them would be forgotten are left out.
    /// Returns whether there was anything to read.
    fn replay(&mut self, from: Option<Offset>, to: Offset, now: WallTime) -> Result<bool, StorageError> {
        let segments = self.segments();
        let from = from.unwrap_or(0);
        let mut any = false;
        for (at, segment) in segments.iter().enumerate() {
            let next = segments.get(at + 1).map_or(to, |next| next.base());
            if next <= from || segment.base() >= to {
                continue;
            }
            let path = segment.path(Kind::Log);
            let written = self.disk().modified(&path).doing("look at", &path)?;
            if now.0.saturating_sub(written.0) > self.config.producer_expiry_ms {
                continue;
            }
            let file = segment.file().doing("open", &path)?;
            let position = if from > segment.base() { segment.position_for(from) } else { Ok(0) };
            let position = match position {
                // Met again, and noted, on the way from the beginning.
                Err(ReadError::Damaged(_)) => 0,
                other => other.map_err(of_reading)?,
            };
            let mut walk = Walk::new(&*file, position, segment.size(), segment.base());
            while let Some(step) = self.next_header(segment, &mut walk)? {
                let header = step.header;
                if header.last_offset() < from {
                    continue;
                }
                if header.base_offset >= to {
                    break;
                }
                any = true;
                if header.is_control() {
                    let bytes = walk.batch_bytes(&step).map_err(|broken| of_walk(segment, broken))?;
                    self.producers.record(&header, &bytes, now);
                } else {
                    self.producers.record(&header, &[], now);
                }
            }
        }
        Ok(any)
    }

    /// The generation map as the batches of all segments say.
    pub(super) fn map_from_batches(&self) -> Result<GenerationMap, StorageError> {
        let mut map = GenerationMap::default();
        for segment in self.segments().iter() {
            let path = segment.path(Kind::Log);
            let file = segment.file().doing("open", &path)?;
            let mut walk = Walk::new(&*file, 0, segment.size(), segment.base());
            while let Some(step) = self.next_header(segment, &mut walk)? {
                if let Some(generation) = step.header.generation {
                    map.begin(generation, step.header.base_offset);
                }
            }
        }
        Ok(map)
    }

    /// The next batch of a segment; none behind damage, which is noted: it must not keep the rest from opening.
    fn next_header(
        &self,
        segment: &Segment<D>,
        walk: &mut Walk<'_, D::File>,
    ) -> Result<Option<Step>, StorageError> {
        match walk.next_header() {
            Ok(step) => Ok(step),
            Err(broken @ Broken::Io(_)) => Err(of_walk(segment, broken)),
            Err(Broken::Batch { position, reason }) => {
                self.shared.home.dir.damage().note(&segment.damaged(position, segment.base(), reason));
                Ok(None)
            }
        }
    }
}

fn of_walk<D: Disk>(segment: &Segment<D>, broken: Broken) -> StorageError {
    match broken {
        Broken::Io(error) => StorageError::io("read", &segment.path(Kind::Log), error),
        Broken::Batch { position, reason } => segment.damaged(position, segment.base(), reason).into(),
    }
}

/// What is in the folder; leftovers are removed on the way.
fn list<D: Disk>(home: &Home<D>) -> Result<Listing, StorageError> {
    let disk = home.dir.disk();
    let mut listing = Listing::default();
    for entry in disk.read_dir(&home.folder).doing("list", &home.folder)? {
        let path = home.folder.join(&entry.name);
        if entry.name.ends_with(layout::DELETED) || entry.name.ends_with(layout::UNFINISHED) {
            // One that cannot be removed now goes at a later start.
            let _ = if entry.is_dir { disk.remove_dir_all(&path) } else { disk.remove_file(&path) };
            continue;
        }
        match layout::parse_file_name(&entry.name) {
            Some((offset, Kind::Log)) => listing.segments.push(offset),
            // A folder in a side file's place is as good as no file; whoever writes the file removes it.
            Some((offset, Kind::Snapshot)) if !entry.is_dir => {
                listing.snapshots.insert(offset);
            }
            Some((offset, Kind::Seal)) if !entry.is_dir => {
                listing.seals.insert(offset);
            }
            Some((offset, Kind::Damage)) if !entry.is_dir => {
                listing.noted.insert(offset);
            }
            Some((_, Kind::TxnIndex)) => listing.has_aborted = true,
            Some(_) => {}
            None if entry.is_dir => {}
            None => {
                listing.has_map |= entry.name == layout::EPOCH_CHECKPOINT;
                listing.has_metadata |= entry.name == layout::PARTITION_METADATA;
                listing.has_checkpoint |= entry.name == checkpoint::NAME;
                listing.has_rewritten |= swap::is_rewritten(&entry.name);
            }
        }
    }
    listing.segments.sort_unstable();
    // Of segments that left while their seal was being written.
    for orphan in listing.seals.iter().filter(|sealed| listing.segments.binary_search(sealed).is_err()) {
        let _ = seal::discard(disk, &home.folder, *orphan);
    }
    // Of segments that were damaged, and left.
    for orphan in listing.noted.iter().filter(|noted| listing.segments.binary_search(noted).is_err()) {
        let _ = disk.remove_file(&layout::file_path(&home.folder, *orphan, Kind::Damage));
    }
    Ok(listing)
}

/// Removes segments that lie wholly below the log start: they left the log, their files did not. They stay
/// (for the next retention) while only they know the producers of what follows.
fn drop_below_start<D: Disk>(home: &Home<D>, bases: &mut Vec<Offset>, listing: &Listing, start: Offset) {
    let below = bases.partition_point(|base| *base <= start).saturating_sub(1);
    let Some(first) = bases.get(below).filter(|first| below > 0 && listing.snapshots.contains(first)) else {
        return;
    };
    let path = layout::file_path(&home.folder, *first, Kind::Snapshot);
    let known = disk::read_whole(home.dir.disk(), &path, SIDE_FILE_LIMIT);
    if !known.is_ok_and(|content| snapshot::entries(&content).is_ok()) {
        return;
    }
    for base in bases.drain(..below) {
        for kind in Kind::ALL {
            let _ = home.dir.disk().remove_file(&layout::file_path(&home.folder, base, kind));
        }
    }
}

struct Loader<'a, D: Disk> {
    log: &'a mut Log<D>,
    recovered: Recovered,
    /// Everything below must be there.
    promised: Offset,
    listing: Listing,
    now: WallTime,
    /// Where the readable part of the last segment ends, if a scan found that it does not end with the file.
    good: u64,
    report: LoadReport,
}

impl<D: Disk> Loader<'_, D> {
    fn load(&mut self) -> Result<(), StorageError> {
        self.metadata();
        let begins = self.beginning()?;
        let (Beginning::At(start) | Beginning::Hole(start)) = begins;
        self.log.shared.start.store(start, Ordering::Release);
        if matches!(begins, Beginning::Hole(_)) {
            self.cut_behind_hole(start)?;
        } else {
            self.look_at_segments(start)?;
        }
        self.log.shared.end.store(self.log.end, Ordering::Release);
        let end = self.log.end;
        if self.log.generations.cut(end) {
            self.log.pending.map_changed = true;
        }
        if self.log.generations.trim(start) {
            self.log.pending.map_changed = true;
        }
        self.log.publish_map();
        if self.listing.has_checkpoint {
            self.log.load_progress(&self.recovered);
        }
        Ok(())
    }

    /// Reads of the segments what has to be read; the log then ends where they do.
    fn look_at_segments(&mut self, start: Offset) -> Result<(), StorageError> {
        let noted = self.listing.noted.contains(&self.log.active.base());
        let trusted = self.recovered.clean && !noted && self.trust_last_segment()?;
        let closed = self.log.segments().len() - 1;
        let flushed = if trusted { closed } else { self.scan()? };
        self.log.closed = self.log.segments().get(flushed).map_or(0, |open| open.base());
        self.look_at_closed(flushed)?;
        self.remove_stray_snapshots();
        if self.log.end < self.promised {
            self.go_on_behind(self.ends_early())?;
        }
        if self.log.end < start {
            self.restart_at(start)?;
        }
        Ok(())
    }

    /// Nothing at or above the log start survived: the log goes on, empty, from there.
    fn restart_at(&mut self, start: Offset) -> Result<(), StorageError> {
        self.log.end = start;
        self.log.roll(start, self.now)?;
        let segments = self.log.segments();
        for old in segments.iter().filter(|segment| segment.base() != start) {
            old.close_files();
            for kind in Kind::ALL {
                let _ = self.log.disk().remove_file(&old.path(kind));
            }
        }
        self.log.drop_staged_seals(|_| false);
        self.log.shared.segments.store(Arc::new(vec![self.log.active.clone()]));
        self.log.shared.bytes.store(0, Ordering::Relaxed);
        Ok(())
    }

    /// Each clean stop leaves a snapshot at the end there was; once the log has grown, only those at the
    /// beginnings of segments and the newest are of use.
    fn remove_stray_snapshots(&self) {
        let mut kept = self.log.segments().iter().map(|segment| segment.base()).collect::<BTreeSet<_>>();
        kept.extend(self.listing.snapshots.range(..=self.log.end).next_back());
        for stray in self.listing.snapshots.range(..=self.log.end).filter(|at| !kept.contains(at)) {
            let path = layout::file_path(self.log.folder(), *stray, Kind::Snapshot);
            // One that cannot be removed now goes at a later start.
            let _ = self.log.disk().remove_file(&path);
        }
    }

    fn ends_early(&self) -> Damaged {
        Damaged {
            segment: self.log.active.path(Kind::Log),
            position: self.log.position,
            offset: self.log.end,
            promised: true,
            reason: format!("the log ends there, {} was promised", self.promised),
        }
    }

    fn rebuilt(&mut self, side: SideFile) {
        if !self.report.rebuilt.contains(&side) {
            self.report.rebuilt.push(side);
        }
    }

    /// The folder's name says which topic; the file is for Kafka's tools.
    fn metadata(&mut self) {
        let topic = self.log.partition().topic;
        let path = self.log.folder().join(layout::PARTITION_METADATA);
        let right = self.listing.has_metadata
            && disk::read_whole(self.log.disk(), &path, SIDE_FILE_LIMIT).is_ok_and(|content| {
                layout::parse_partition_metadata(&String::from_utf8_lossy(&content)) == Some(topic)
            });
        if !right {
            // Not told of as rebuilt: it is never flushed, and nothing trusts it.
            let text = layout::format_partition_metadata(topic);
            let (disk, folder) = (self.log.disk(), self.log.folder());
            let _ = layout::write_loosely(disk, folder, layout::PARTITION_METADATA, text.as_bytes());
        }
    }

    /// The map's file; `None` when it is missing or nonsense.
    fn stored_map(&self) -> Option<GenerationMap> {
        if !self.listing.has_map {
            return None;
        }
        let path = self.log.folder().join(layout::EPOCH_CHECKPOINT);
        let content = disk::read_whole(self.log.disk(), &path, SIDE_FILE_LIMIT).ok()?;
        layout::parse_epoch_checkpoint(&String::from_utf8_lossy(&content))
    }

    /// Replaces a map that lies at once: what it says of sealed segments is not questioned after a crash.
    fn repair_map(&mut self) {
        let text = layout::format_epoch_checkpoint(&self.log.generations);
        let disk = self.log.disk();
        let written =
            layout::write_durably(disk, self.log.folder(), layout::EPOCH_CHECKPOINT, text.as_bytes());
        self.log.pending.map_owed |= written.is_err();
    }

    // ---- after a clean stop ----

    /// Takes the files at their word; false when the last segment does not bear it out.
    fn trust_last_segment(&mut self) -> Result<bool, StorageError> {
        let active = self.log.active.clone();
        let size = active.size();
        let mut end = active.base();
        let mut newest = None;
        let aborts;
        if size <= SHORT {
            match active.build_in_memory() {
                Ok((last, running, has_aborts)) => {
                    aborts = has_aborts;
                    if let Some(last) = last {
                        (end, newest) = (last.next_offset(), last.generation);
                    }
                    self.log.running = Some(running);
                }
                Err(Broken::Batch { .. }) => return Ok(false),
                Err(Broken::Io(error)) => {
                    return Err(StorageError::io("read", &active.path(Kind::Log), error));
                }
            }
        } else {
            let path = active.path(Kind::Log);
            let file = active.file().doing("open", &path)?;
            // A short segment has no entries, and then no file either.
            let (offsets, last) = active.last_entry::<OffsetEntry>(Kind::Index).unwrap_or((0, None));
            let Some((times, latest)) = active.last_entry::<TimeEntry>(Kind::TimeIndex) else {
                return Ok(false);
            };
            let from = match last {
                Some(entry) if active.agrees(&file, size, &entry).map_err(of_reading)? => {
                    u64::from(entry.position)
                }
                Some(_) => return Ok(false),
                None => 0,
            };
            active.adopt_indexes(offsets, times, latest);
            let interval = u64::from(self.log.config.index_interval_bytes);
            let mut walk = Walk::new(&*file, from, size, active.base());
            let mut since = 0;
            let mut has_entry = last.is_some();
            loop {
                match walk.next_header() {
                    Ok(Some(step)) => {
                        if since > interval && !has_entry {
                            // The offset index lost its end.
                            return Ok(false);
                        }
                        has_entry = false;
                        since += step.header.bytes as u64;
                        active.adopt_since(&step.header);
                        end = step.header.next_offset();
                        newest = step.header.generation;
                    }
                    Ok(None) => break,
                    Err(Broken::Batch { .. }) => return Ok(false),
                    Err(Broken::Io(error)) => return Err(StorageError::io("read", &path, error)),
                }
            }
            // A time index that lost its end, or that of an earlier life of the file.
            let max = active.max_timestamp().map_err(of_reading)?;
            if max != latest {
                return Ok(false);
            }
            aborts = !active.never_aborted();
            let sealed = Sealed::read(self.log.disk(), self.log.folder(), active.base());
            // Without it, the scrub seals the segment once it is closed.
            let sealed = sealed.filter(|sealed| sealed.seal.size == size);
            self.log.running = sealed.map(Running::of);
        }
        if end < self.promised || self.is_too_new(newest) {
            return Ok(false);
        }
        let aborted = if self.listing.has_aborted {
            active.aborted_on_file().map_err(of_reading)?
        } else {
            Some(Vec::new())
        };
        match aborted {
            // None are told of, and some may be there.
            Some(entries) if entries.is_empty() && aborts => {
                let segments = self.log.segments();
                match self.log.shared.aborted_from_batches(&segments, segments.len() - 1) {
                    Ok(entries) => active.gather_aborted(entries),
                    Err(ReadError::Damaged(_)) => return Ok(false),
                    Err(error) => return Err(of_reading(error)),
                }
            }
            Some(entries) if entries.last().is_none_or(|last| last.last_offset < end) => {
                active.gather_aborted(entries);
            }
            Some(_) | None => return Ok(false),
        }
        self.log.end = end;
        (self.log.durable, self.log.synced) = (end, end);
        // What lies below the log start has left the map.
        let newest = newest.filter(|_| end > self.recovered.log_start);
        self.believe_map(newest)?;
        let (producers, at) = self.log.snapshot_below(&self.listing.snapshots, end, self.now);
        self.log.producers = producers;
        if at != Some(end) {
            let before = self.log.producers.clone();
            self.log.replay(at, end, self.now)?;
            if self.log.producers != before {
                self.rebuilt(SideFile::ProducerSnapshot);
            }
        }
        Ok(true)
    }

    /// Takes over the stored map if the newest batch agrees with it, and builds it again otherwise.
    fn believe_map(&mut self, newest: Option<felix_protocol::ids::Generation>) -> Result<(), StorageError> {
        let end = self.log.end;
        let stored = self.stored_map().map(|mut map| {
            map.cut(end);
            map
        });
        let empty = self.log.segments().iter().all(|segment| segment.size() == 0);
        match stored {
            Some(map) if newest.is_none() || map.latest().map(|(generation, _)| generation) == newest => {
                self.log.generations = map;
            }
            None if empty => {}
            Some(_) | None => {
                self.log.generations = self.log.map_from_batches()?;
                self.rebuilt(SideFile::GenerationMap);
                self.repair_map();
            }
        }
        Ok(())
    }
}
