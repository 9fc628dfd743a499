//! A segment that is written anew beside the ones it will take the place of.
//!
//! Its files end in `.cleaned` until then. While nothing of a single segment has changed, nothing is written.

use std::io;
use std::path::{Path, PathBuf};
use std::sync::Arc;

use felix_protocol::batch::BatchHeader;
use felix_protocol::ids::Offset;
use felix_protocol::time::WallTime;

use super::{Home, Indexes, Segment, encoded};
use crate::disk::{Disk, DiskFile, OpenMode, read_up_to, write_all_at};
use crate::error::{Damaged, Doing, StorageError};
use crate::index::txn::{self, AbortedTransaction};
use crate::layout::{self, Kind};
use crate::seal::marks::Sealed;
use crate::seal::{Running, Seal};

pub(crate) struct Output<D: Disk> {
    home: Arc<Home<D>>,
    base: Offset,
    /// `None` while everything is as it was in `source`.
    file: Option<D::File>,
    source: Option<Arc<Segment<D>>>,
    buffer: Vec<u8>,
    buffer_bytes: usize,
    /// Bytes in the file.
    flushed: u64,
    indexes: Indexes,
    running: Running,
    /// One past the last batch.
    next: Offset,
    aborted: Vec<AbortedTransaction>,
}

/// What became of an output.
pub(crate) struct Finished<D: Disk> {
    /// `None`: there was nothing to change.
    pub segment: Option<Segment<D>>,
    pub seal: Sealed,
}

impl<D: Disk> Output<D> {
    /// The segment that begins with `first`; with `alone` it takes that one's place only.
    pub(crate) fn new(first: &Arc<Segment<D>>, alone: bool, buffer_bytes: usize) -> Output<D> {
        Output {
            home: first.home.clone(),
            base: first.base(),
            file: None,
            source: alone.then(|| first.clone()),
            buffer: Vec::new(),
            buffer_bytes: buffer_bytes.max(4 << 10),
            flushed: 0,
            indexes: Indexes::anew(),
            running: Running::new(),
            next: first.base(),
            aborted: Vec::new(),
        }
    }

    fn path(&self, kind: Kind) -> PathBuf {
        cleaned(&layout::file_path(&self.home.folder, self.base, kind))
    }

    /// Takes over a batch as it is.
    pub(crate) fn keep(&mut self, header: &BatchHeader, batch: &[u8]) -> Result<(), StorageError> {
        self.note(header, batch);
        if self.source.is_some() { Ok(()) } else { self.write(batch) }
    }

    /// Takes in another batch where one was.
    pub(crate) fn replace(&mut self, header: &BatchHeader, batch: &[u8]) -> Result<(), StorageError> {
        self.part()?;
        self.note(header, batch);
        self.write(batch)
    }

    /// Notes an aborted transaction of which something is left.
    pub(crate) fn keep_aborted(&mut self, entry: AbortedTransaction) {
        self.aborted.push(entry);
    }

    /// The output is no longer what its source is: a batch is about to be left out or changed.
    pub(crate) fn part(&mut self) -> Result<(), StorageError> {
        let Some(source) = self.source.take() else { return Ok(()) };
        let path = source.path(Kind::Log);
        let file = source.file().doing("open", &path)?;
        let same = self.running.size();
        let mut at = 0;
        while at < same {
            let len = usize::try_from(same - at).unwrap_or(usize::MAX).min(self.buffer_bytes);
            let bytes = read_up_to(&*file, len, at).doing("read", &path)?;
            if bytes.len() < len {
                return Err(Damaged {
                    segment: path,
                    position: at + bytes.len() as u64,
                    offset: self.base,
                    promised: true,
                    reason: "the file became shorter".to_string(),
                }
                .into());
            }
            self.write(&bytes)?;
            at += len as u64;
        }
        Ok(())
    }

    fn note(&mut self, header: &BatchHeader, batch: &[u8]) {
        let interval = self.home.interval.load(std::sync::atomic::Ordering::Relaxed);
        self.indexes.add(header, self.running.size(), interval);
        self.running.add(header, batch, self.next);
        self.next = header.next_offset();
    }

    fn write(&mut self, bytes: &[u8]) -> Result<(), StorageError> {
        self.buffer.extend_from_slice(bytes);
        if self.buffer.len() >= self.buffer_bytes { self.flush() } else { Ok(()) }
    }

    fn flush(&mut self) -> Result<(), StorageError> {
        let path = self.path(Kind::Log);
        let file = match &self.file {
            Some(file) => file,
            None => {
                let file = self.home.dir.disk().open(&path, OpenMode::Replace).doing("create", &path)?;
                self.file.insert(file)
            }
        };
        write_all_at(file, &self.buffer, self.flushed).doing("write", &path)?;
        self.flushed += self.buffer.len() as u64;
        self.buffer.clear();
        Ok(())
    }

    /// Makes the files durable, under their present names.
    pub(crate) fn finish(mut self, modified: WallTime) -> Result<Finished<D>, StorageError> {
        let seal =
            Seal { aborted: !self.aborted.is_empty(), ..self.running.seal(self.base, self.next, true) };
        let seal = self.running.sealed(seal);
        if self.source.is_some() {
            return Ok(Finished { segment: None, seal });
        }
        self.flush()?;
        let path = self.path(Kind::Log);
        if let Some(file) = self.file.take() {
            // Retention goes by the age of the records, not by that of the file they were moved to.
            let _ = file.set_modified(modified);
            file.sync_data().doing("flush", &path)?;
        }
        self.indexes.add_time();
        let indexes = std::mem::take(&mut self.indexes);
        self.side(Kind::Index, &encoded(&indexes.offsets, self.base))?;
        self.side(Kind::TimeIndex, &encoded(&indexes.times, self.base))?;
        // Also when there are none: it takes the place of one that may have some.
        self.side(Kind::TxnIndex, &txn::encode(&self.aborted))?;
        let segment = Segment::existing(self.home.clone(), self.base, self.flushed);
        *segment.indexes.lock() = Indexes {
            ready: true,
            offsets_on_file: indexes.offsets.len(),
            times_on_file: indexes.times.len(),
            max: indexes.max,
            indexed_time: indexes.indexed_time,
            ..Indexes::default()
        };
        if self.aborted.is_empty() {
            segment.gather_aborted(Vec::new());
        }
        Ok(Finished { segment: Some(segment), seal })
    }

    fn side(&self, kind: Kind, content: &[u8]) -> Result<(), StorageError> {
        let path = self.path(kind);
        let file = self.home.dir.disk().open(&path, OpenMode::Replace).doing("create", &path)?;
        write_all_at(&file, content, 0).doing("write", &path)?;
        file.sync_data().doing("flush", &path)
    }

    /// Removes what was written.
    pub(crate) fn discard(&self) {
        discard(self.home.dir.disk(), &self.home.folder, self.base);
    }
}

/// The name of a file that is being written anew.
pub(crate) fn cleaned(path: &Path) -> PathBuf {
    with_ending(path, layout::CLEANED)
}

/// The name of a segment written anew that counts after a crash.
pub(crate) fn swap(path: &Path) -> PathBuf {
    with_ending(path, layout::SWAP)
}

pub(crate) fn with_ending(path: &Path, ending: &str) -> PathBuf {
    let mut name = path.as_os_str().to_os_string();
    name.push(ending);
    PathBuf::from(name)
}

/// Removes what was written anew at `base` and is not wanted; the next open removes what cannot be now.
pub(crate) fn discard<D: Disk>(disk: &D, folder: &Path, base: Offset) {
    for kind in Kind::ALL {
        let _ = disk.remove_file(&cleaned(&layout::file_path(folder, base, kind)));
    }
}

/// The files of a segment that has left its place, held open for readers that are still at it.
pub(crate) struct Kept<F> {
    log: Arc<F>,
    offsets: Option<Arc<F>>,
    times: Option<Arc<F>>,
    aborted: Vec<AbortedTransaction>,
}

impl<F> Kept<F> {
    pub(super) fn log(&self) -> Arc<F> {
        self.log.clone()
    }

    pub(super) fn index(&self, kind: Kind) -> io::Result<Arc<F>> {
        let file = if kind == Kind::Index { &self.offsets } else { &self.times };
        file.clone().ok_or_else(|| io::ErrorKind::NotFound.into())
    }

    pub(super) fn aborted(&self) -> &[AbortedTransaction] {
        &self.aborted
    }
}

impl<D: Disk> Segment<D> {
    /// Opens the files that readers will need once others have their names. Indexes are made usable first,
    /// so that nobody builds them later under these names.
    pub(crate) fn open_to_keep(
        &self,
        aborted: Vec<AbortedTransaction>,
    ) -> Result<Kept<D::File>, crate::error::ReadError> {
        self.max_timestamp()?;
        let log = self.file().map_err(|error| self.log_error(error))?;
        let index = |kind| self.index_file(kind, OpenMode::Write).ok();
        Ok(Kept { log, offsets: index(Kind::Index), times: index(Kind::TimeIndex), aborted })
    }

    /// From now on the files are not found by their names any more.
    pub(crate) fn keep_files(&self, kept: Kept<D::File>) {
        // Nobody is building indexes, and nobody will write them.
        let _repair = self.repair.lock();
        self.kept.store(Some(Arc::new(kept)));
    }

    /// Whether another segment has taken this one's place.
    pub(crate) fn is_replaced(&self) -> bool {
        self.kept.load().is_some()
    }
}
