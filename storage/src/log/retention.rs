//! What leaves the log at its beginning, by Kafka's rules, and the deletion of whole logs.

use std::path::PathBuf;
use std::sync::Arc;
use std::sync::atomic::Ordering;
use std::time::Duration;

use felix_protocol::batch::{BatchHeader, HEADER_BYTES};
use felix_protocol::ids::Offset;
use felix_protocol::time::WallTime;

use super::Log;
use crate::data_dir::DataDir;
use crate::disk::Disk;
use crate::error::{Doing, StorageError};
use crate::layout::{self, Kind};
use crate::producers::snapshot;
use crate::segment::{Home, Segment};

/// Segments that left the log. Two steps, both free to run on another thread: [`Retired::hide`] once the new
/// log start is durable in [`crate::Replicas`], [`Retired::remove`] `delay` later. A crash in
/// between leaves files that the next open removes.
pub struct Retired<D: Disk> {
    /// Log start now.
    pub start: Offset,
    /// How many segments left.
    pub segments: usize,
    /// How many bytes they hold.
    pub bytes: u64,
    /// How long they stay on the disk under another name (`file.delete.delay.ms`).
    pub delay: Duration,
    home: Arc<Home<D>>,
    files: Vec<PathBuf>,
    hidden: bool,
}

impl<D: Disk> Retired<D> {
    /// Whether nothing left.
    pub fn is_empty(&self) -> bool {
        self.segments == 0
    }

    /// Renames the files, so that no later open takes them for the log's.
    pub fn hide(&mut self) -> Result<(), StorageError> {
        let home = self.home.clone();
        let given_up = home.given_up.lock();
        if *given_up {
            // They went with the folder. What has their names now is another log's.
            self.files.clear();
        }
        if self.hidden {
            return Ok(());
        }
        // Those that an earlier try got to have their new names already.
        let visible =
            |path: &&mut PathBuf| !path.as_os_str().as_encoded_bytes().ends_with(layout::DELETED.as_bytes());
        for path in self.files.iter_mut().filter(visible) {
            let hidden = deleted_name(path);
            match self.home.dir.disk().rename(path, &hidden) {
                Ok(()) => *path = hidden,
                // Side files need not be there, and the whole folder may have been deleted.
                Err(error) if error.kind() == std::io::ErrorKind::NotFound => {}
                Err(error) => return Err(StorageError::io("rename", path, error)),
            }
        }
        self.hidden = true;
        Ok(())
    }

    /// Removes the files.
    pub fn remove(self) -> Result<(), StorageError> {
        let given_up = self.home.given_up.lock();
        for path in self.files.iter().filter(|_| !*given_up) {
            match self.home.dir.disk().remove_file(path) {
                Err(error) if error.kind() != std::io::ErrorKind::NotFound => {
                    return Err(StorageError::io("remove", path, error));
                }
                Ok(()) | Err(_) => {}
            }
        }
        Ok(())
    }
}

fn deleted_name(path: &std::path::Path) -> PathBuf {
    let mut name = path.as_os_str().to_os_string();
    name.push(layout::DELETED);
    PathBuf::from(name)
}

/// A deleted log: its folder has another name already; [`Deleted::remove`] frees the space.
pub struct Deleted<D: Disk> {
    dir: DataDir<D>,
    folder: PathBuf,
}

impl<D: Disk> Deleted<D> {
    pub(crate) fn new(dir: DataDir<D>, folder: PathBuf) -> Deleted<D> {
        Deleted { dir, folder }
    }

    /// The folder's present name.
    pub fn folder(&self) -> &std::path::Path {
        &self.folder
    }

    /// Removes the folder and all that is in it; one that is gone already is no failure.
    pub fn remove(self) -> Result<(), StorageError> {
        match self.dir.disk().remove_dir_all(&self.folder) {
            Err(error) if error.kind() == std::io::ErrorKind::NotFound => Ok(()),
            removed => removed.doing("remove", &self.folder),
        }
    }
}

impl<D: Disk> Log<D> {
    /// Applies retention by size, time and log start; nothing at or above `mark` goes. The active segment
    /// goes too when all of it is due: an empty one takes its place.
    pub fn retain(&mut self, mark: Offset, now: WallTime) -> Result<Retired<D>, StorageError> {
        if self.poisoned {
            return Err(StorageError::Poisoned);
        }
        let count = self.due(mark, now)?;
        if count > 0 && count == self.segments().len() {
            self.cut_ragged()?;
            self.roll(self.end, now)?;
        }
        if count > 0 {
            self.keep_producers(count)?;
        }
        Ok(self.retire(count))
    }

    /// Producers outlive their batches: what is known of them at the first segment that stays is made durable
    /// before the ones below go, unless it is long since.
    fn keep_producers(&mut self, count: usize) -> Result<(), StorageError> {
        let Some(base) = self.segments().get(count).map(|first| first.base()) else { return Ok(()) };
        let name = layout::file_name(base, Kind::Snapshot);
        let waiting = self.pending.side.iter().find(|side| side.name == name);
        let content = match waiting {
            Some(side) => side.content.clone(),
            None if base == self.end && !self.producers.is_empty() => snapshot::encode(&self.producers),
            None => return Ok(()),
        };
        if self.producers.is_empty() {
            return Ok(());
        }
        match layout::write_durably(self.disk(), self.folder(), &name, &content) {
            // Retention is what makes room: better to forget producers than to stay full.
            Err(StorageError::Full { .. }) => Ok(()),
            other => other,
        }
    }

    /// How many segments from the first on are due.
    fn due(&self, mark: Offset, now: WallTime) -> Result<usize, StorageError> {
        let segments = self.segments();
        let start = self.start();
        let excess = match self.config.retention_bytes {
            Some(most) if self.config.deletes => self.size_bytes().saturating_sub(most),
            Some(_) | None => 0,
        };
        let age = if self.config.deletes { self.config.retention_ms } else { None };
        let mut freed = 0;
        let mut count = 0;
        for (at, segment) in segments.iter().enumerate() {
            let next = segments.get(at + 1).map(|next| next.base());
            let last_and_empty = next.is_none() && segment.size() == 0;
            let claimed = self.claim.is_some_and(|claim| segment.base() >= claim.from);
            if last_and_empty || claimed || next.unwrap_or(self.end) > mark {
                break;
            }
            let below_start = next.is_some_and(|next| next <= start);
            let by_size = excess >= freed + segment.size() && excess > 0;
            let due = below_start || by_size || self.is_aged(segment, age, now)?;
            if !due {
                break;
            }
            freed += segment.size();
            count += 1;
        }
        Ok(count)
    }

    /// Records say how old they are. Those that say nothing, and those that claim to be of the future, are as old
    /// as their file: nothing can be newer than its last write, and one wrong clock must not keep a log for ever.
    /// Asked only of such segments, the file's time cannot take what the records' own time keeps.
    fn is_aged(&self, segment: &Segment<D>, age: Option<i64>, now: WallTime) -> Result<bool, StorageError> {
        let Some(age) = age else { return Ok(false) };
        // A damaged segment keeps its place until somebody has looked at it; size still counts.
        if segment.damage().is_some() {
            return Ok(false);
        }
        let latest = match segment.max_timestamp() {
            Ok(Some(max)) if max.timestamp <= now.0 => max.timestamp,
            Ok(Some(_) | None) => {
                let path = segment.path(Kind::Log);
                self.disk().modified(&path).doing("look at", &path)?.0
            }
            Err(_) => return Ok(false),
        };
        Ok(now.0.saturating_sub(latest) > age)
    }

    fn retire(&mut self, count: usize) -> Retired<D> {
        let segments = self.segments();
        let (gone, kept) = segments.split_at(count);
        let files =
            gone.iter().flat_map(|segment| Kind::ALL.into_iter().map(|kind| segment.path(kind))).collect();
        let bytes = gone.iter().map(|segment| segment.size()).sum();
        if count > 0 {
            let base = kept.first().map_or(self.end, |first| first.base());
            self.drop_staged_seals(|sealed| sealed >= base);
            if base > self.start() {
                self.set_start(base);
            }
            self.shared.bytes.fetch_sub(bytes, Ordering::Relaxed);
            self.shared.segments.store(Arc::new(kept.to_vec()));
            // Files that are open serve the readers that hold them, and then close.
            for segment in gone {
                segment.close_files();
                self.shared.home.dir.damage().forget(&segment.path(Kind::Log));
            }
        }
        Retired {
            start: self.start(),
            segments: count,
            bytes,
            delay: Duration::from_millis(u64::try_from(self.config.file_delete_delay_ms).unwrap_or(0)),
            home: self.shared.home.clone(),
            files,
            hidden: false,
        }
    }

    fn set_start(&mut self, start: Offset) {
        self.shared.start.store(start, Ordering::Release);
        if self.generations.trim(start) {
            self.pending.map_changed = true;
            self.publish_map();
        }
    }

    /// Moves the log start up to exactly `to` (DeleteRecords), also into the middle of a batch. Lower values
    /// change nothing. Returns the log start; segments below it go with the next [`Log::retain`].
    pub fn advance_start(&mut self, to: Offset) -> Result<Offset, StorageError> {
        let start = self.start();
        if to > self.end || to < 0 {
            return Err(StorageError::OutOfRange { offset: to, start, end: self.end });
        }
        if to > start {
            self.set_start(to);
        }
        Ok(self.start())
    }

    /// Gives up everything that is here: the folder has another name, durably, and readers find the log gone. It takes nothing more
    /// before [`Log::begin_anew`]. No flush job and no claim may be out.
    pub fn give_up(&mut self) -> Result<Deleted<D>, StorageError> {
        if self.pending.running || self.claim.is_some() {
            return Err(StorageError::Poisoned);
        }
        let home = self.shared.home.clone();
        let deleted = self.rename_away(&home)?;
        self.poisoned = true;
        Ok(deleted)
    }

    /// Begins an empty log at `start` in the place of one that was given up; durable on return. After a failure it may be tried
    /// again: a full disk has room one day, the more so when what was given up is removed.
    pub fn begin_anew(&mut self, start: Offset, now: WallTime) -> Result<(), StorageError> {
        let home = self.shared.home.clone();
        debug_assert!(*home.given_up.lock(), "a log that counts is given up first");
        let mut log = Log::create(&home.dir, home.partition, self.config.clone(), start, now)?;
        if let Some(job) = log.flush_job() {
            let outcome = job.run();
            log.flushed(&outcome);
            outcome.map_err(|error| {
                StorageError::io("flush", &error.path, std::io::Error::other(error.reason))
            })?;
        }
        *self = log;
        Ok(())
    }

    fn rename_away(&self, home: &Arc<Home<D>>) -> Result<Deleted<D>, StorageError> {
        let mut given_up = home.given_up.lock();
        let deleted = delete_folder(&home.dir, &home.folder)?;
        *given_up = true;
        drop(given_up);
        self.shared.gone.store(true, Ordering::Release);
        for segment in self.segments().iter() {
            segment.close_files();
        }
        self.shared.tail.clear(home.dir.tail());
        Ok(deleted)
    }

    /// The first offset that can be read whole: the log start, or where the batch begins that it lies inside of. Reads from the
    /// disk only where the log start was moved into a segment.
    pub fn base(&self) -> Result<Offset, StorageError> {
        let start = self.start();
        if start >= self.end || self.segments().iter().any(|segment| segment.base() == start) {
            return Ok(start);
        }
        let read = self.reader().read(start, 1, self.end, true).map_err(super::of_reading)?;
        let head: Vec<u8> = read.slices.iter().flatten().copied().take(HEADER_BYTES).collect();
        // Where compaction took the batch out that the start lay inside of, the next one begins behind it.
        Ok(BatchHeader::parse(&head).map_or(start, |header| header.base_offset.min(start)))
    }

    /// Renames the folder away, durably; readers find the log gone.
    pub fn delete(self) -> Result<Deleted<D>, StorageError> {
        self.rename_away(&self.shared.home)
    }
}

/// Gives a copy's folder a name that no open takes for a partition's, durably. One that is gone already is
/// [`StorageError::Missing`].
pub(crate) fn delete_folder<D: Disk>(
    dir: &DataDir<D>,
    folder: &std::path::Path,
) -> Result<Deleted<D>, StorageError> {
    let random = felix_protocol::ids::Uuid::new_v4().simple();
    let mut name = folder.as_os_str().to_os_string();
    name.push(format!(".{random}{}", layout::DELETED_FOLDER));
    let to = PathBuf::from(name);
    match dir.disk().rename(folder, &to) {
        Err(error) if error.kind() == std::io::ErrorKind::NotFound => {
            return Err(StorageError::Missing(folder.to_path_buf()));
        }
        renamed => renamed.doing("rename", folder)?,
    }
    dir.damage().forget(folder);
    dir.disk().sync_dir(dir.path()).doing("flush", dir.path())?;
    Ok(Deleted::new(dir.clone(), to))
}
