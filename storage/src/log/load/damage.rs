//! Opening a log that is damaged where it was promised: what is damaged stays as it is and is told, the rest is
//! opened around it. No offset that was promised is ever given again.

use std::sync::Arc;
use std::sync::atomic::Ordering;

use felix_protocol::ids::{Generation, Offset};
use felix_protocol::time::WallTime;

use super::super::{LoadReport, Log, Recovered};
use super::Loader;
use crate::config::LogConfig;
use crate::damage::remember;
use crate::disk::{Disk, DiskFile};
use crate::error::{Damaged, Doing, StorageError};
use crate::layout::{self, Kind};
use crate::producers::Producers;
use crate::segment::walk::valid_batch_at_or_after;
use crate::segment::{Home, Segment};

/// The folder is there, and none of the segments that were promised: the log goes on behind them, if the caller
/// allows that.
pub(super) fn begin_behind<D: Disk>(
    home: Arc<Home<D>>,
    config: LogConfig,
    recovered: &Recovered,
    promised: Offset,
    now: WallTime,
) -> Result<(Log<D>, LoadReport), StorageError> {
    let damaged = Damaged {
        segment: layout::file_path(&home.folder, recovered.log_start, Kind::Log),
        position: 0,
        offset: recovered.log_start,
        promised: true,
        reason: "there is no segment".to_string(),
    };
    home.dir.damage().note(&damaged);
    if !recovered.cut_ambiguous {
        return Err(damaged.into());
    }
    let log = Log::begin(home, config, promised, now)?;
    log.shared.start.store(recovered.log_start, Ordering::Release);
    Ok((log, LoadReport { damage: vec![damaged], ..LoadReport::default() }))
}

impl<D: Disk> Loader<'_, D> {
    /// Notes what cannot be read, for readers and for the opens to come. The log opens nevertheless.
    pub(super) fn found(&mut self, damaged: Damaged) {
        let home = self.log.shared.home.clone();
        home.dir.damage().note(&damaged);
        let segments = self.log.segments();
        if let Some(segment) = segments.iter().find(|segment| segment.path(Kind::Log) == damaged.segment) {
            segment.condemn(damaged.clone());
            if self.listing.noted.insert(segment.base()) {
                // A disk that takes no note now: what is damaged is found again.
                let _ = remember(&home.dir, &damaged);
            }
        }
        self.report.damage.push(damaged);
    }

    /// A segment that may have been found damaged before has been looked through, and is right.
    pub(super) fn is_right(&mut self, segment: &Segment<D>) {
        if self.listing.noted.remove(&segment.base()) {
            // One that cannot be removed now costs the next open another look.
            let _ = self.log.disk().remove_file(&segment.path(Kind::Damage));
            self.log.shared.home.dir.damage().forget(&segment.path(Kind::Log));
        }
    }

    /// Whether a batch is of a generation that was never given away, as the caller knows.
    pub(super) fn is_too_new(&self, generation: Option<Generation>) -> bool {
        let newest = self.recovered.accepted.filter(|_| self.recovered.cut_ambiguous);
        generation.zip(newest).is_some_and(|(generation, newest)| generation > newest)
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
