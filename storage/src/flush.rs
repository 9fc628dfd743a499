//! Group commit: many logs made durable with few flushes.
//!
//! Few dirty files are flushed one by one (several at a time); many by one `syncfs`, which costs about as much
//! as a second log would and keeps there being one. But `syncfs` waits for every writer of the file system, so
//! it is taken only where the data directory is a file system of its own.
//!
//! A flush that failed is never tried again: the kernel may have dropped the bytes and would report success.

use std::collections::BTreeSet;
use std::path::{Path, PathBuf};
use std::sync::Arc;
use std::sync::atomic::{AtomicBool, AtomicUsize, Ordering};

use felix_protocol::ids::Offset;
use parking_lot::Mutex;

use crate::data_dir::DataDir;
use crate::disk::{Disk, DiskFile, DiskFileSystem, OpenMode};
use crate::error::{Doing, FlushError, StorageError};
use crate::layout::{self, Kind};
use crate::seal;
use crate::segment::Segment;

/// From so many dirty files on, one flush of the whole file system is cheaper.
const MANY: usize = 8;
/// Files flushed at the same time.
const PARALLEL: usize = 8;

/// `felix.flush.mode`.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq)]
pub enum FlushMode {
    /// One `syncfs` when the directory is a file system of its own and many files are dirty, else file by file.
    #[default]
    Auto,
    /// Always file by file.
    File,
    /// Always the whole file system.
    Filesystem,
}

/// A file with bytes that are not durable.
pub(crate) enum Dirty<D: Disk> {
    Segment(Arc<Segment<D>>, Held<D>),
    Other(PathBuf, Held<D>),
}

/// A dirty file, held open as long as not too many are: were it closed, an error of the write-back could go
/// unreported. One that is not held is flushed with the whole file system, whose handle is always open.
pub(crate) struct Held<D: Disk> {
    dir: DataDir<D>,
    file: Option<Arc<D::File>>,
}

impl<D: Disk> Held<D> {
    pub(crate) fn new(dir: &DataDir<D>, file: Arc<D::File>) -> Held<D> {
        let file = dir.handles().hold().then_some(file);
        Held { dir: dir.clone(), file }
    }

    #[track_caller]
    fn sync(&self, path: impl Fn() -> PathBuf) -> Result<(), FlushError> {
        let outcome = match &self.file {
            Some(file) => file.sync_data(),
            None => match self.dir.disk().open(&path(), OpenMode::Write) {
                Ok(file) => file.sync_data(),
                // Retired and removed meanwhile.
                Err(error) if error.kind() == std::io::ErrorKind::NotFound => Ok(()),
                Err(error) => Err(error),
            },
        };
        outcome.map_err(|error| failed(&path(), &error))
    }
}

impl<D: Disk> Drop for Held<D> {
    fn drop(&mut self) {
        if self.file.is_some() {
            self.dir.handles().release();
        }
    }
}

impl<D: Disk> Dirty<D> {
    #[track_caller]
    pub(crate) fn sync(&self) -> Result<(), FlushError> {
        match self {
            Dirty::Segment(segment, held) => held.sync(|| segment.path(Kind::Log)),
            Dirty::Other(path, held) => held.sync(|| path.clone()),
        }
    }

    fn is_held(&self) -> bool {
        let (Dirty::Segment(_, held) | Dirty::Other(_, held)) = self;
        held.file.is_some()
    }
}

/// A side file that is to be replaced durably.
pub(crate) struct SideWrite {
    pub name: String,
    pub content: Vec<u8>,
}

/// What of one log is not durable yet. One at a time per log: [`crate::Log::flush_job`] gives the next
/// after [`crate::Log::flushed`] was told of this one.
pub struct FlushJob<D: Disk> {
    pub(crate) dir: DataDir<D>,
    pub(crate) folder: PathBuf,
    pub(crate) end: Offset,
    pub(crate) dirty: Vec<Dirty<D>>,
    pub(crate) side: Vec<SideWrite>,
    /// Folders whose names changed.
    pub(crate) folders: Vec<PathBuf>,
    /// Set when a side file could not be replaced: the flush is good, but recovery must not rely on more
    /// than before.
    pub(crate) side_failed: Arc<AtomicBool>,
}

impl<D: Disk> FlushJob<D> {
    /// The log end that is durable once this job is done.
    pub fn end(&self) -> Offset {
        self.end
    }

    /// Makes this one job durable without a [`Flusher`], file by file.
    pub fn run(mut self) -> Result<Offset, FlushError> {
        self.write_side_files();
        for dirty in &self.dirty {
            dirty.sync()?;
        }
        if self.finish_side_files() {
            self.folders.push(self.folder.clone());
        }
        let folders: BTreeSet<&PathBuf> = self.folders.iter().collect();
        for folder in folders {
            sync_folder(self.dir.disk(), folder)?;
        }
        Ok(self.end)
    }

    /// Writes the new content of side files beside the old.
    fn write_side_files(&mut self) {
        let disk = self.dir.disk().clone();
        let mut written = Vec::new();
        for side in std::mem::take(&mut self.side) {
            if let Some((base, Kind::Seal)) = layout::parse_file_name(&side.name) {
                // It costs no flush: a seal that is lost or torn is noticed, and made again.
                let _ = seal::write(&disk, &self.folder, &side.content, base);
                continue;
            }
            match layout::write_unsynced(&disk, &self.folder, &side.name, &side.content) {
                Ok(file) => {
                    let path = self.folder.join(format!("{}{}", side.name, layout::UNFINISHED));
                    self.dirty.push(Dirty::Other(path, Held::new(&self.dir, Arc::new(file))));
                    written.push(SideWrite { name: side.name, content: Vec::new() });
                }
                Err(_) => self.side_failed.store(true, Ordering::Relaxed),
            }
        }
        self.side = written;
    }

    /// Gives them their names, once their bytes are durable. Returns whether there were any.
    fn finish_side_files(&self) -> bool {
        for side in &self.side {
            if layout::finish(self.dir.disk(), &self.folder, &side.name).is_err() {
                self.side_failed.store(true, Ordering::Relaxed);
            }
        }
        !self.side.is_empty()
    }
}

fn failed(path: &Path, error: &std::io::Error) -> FlushError {
    FlushError { path: path.to_path_buf(), reason: error.to_string() }
}

#[track_caller]
fn sync_folder<D: Disk>(disk: &D, folder: &Path) -> Result<(), FlushError> {
    match disk.sync_dir(folder) {
        // Deleted meanwhile: nothing of it needs to last.
        Err(error) if error.kind() == std::io::ErrorKind::NotFound => Ok(()),
        other => other.map_err(|error| failed(folder, &error)),
    }
}

/// Makes jobs durable, on the threads that call it.
pub struct Flusher<D: Disk> {
    dir: DataDir<D>,
    mode: FlushMode,
    system: D::FileSystem,
    own: bool,
    /// One `syncfs` at a time: an error is reported to one caller only, and every later one must hear of it.
    failure: Mutex<Option<FlushError>>,
    failed: AtomicBool,
}

impl<D: Disk> Flusher<D> {
    /// A flusher of one data directory. Make it before anything is written, and keep one: an error is
    /// reported only to handles that were open when it happened, and it remembers that a flush failed.
    pub fn new(dir: &DataDir<D>, mode: FlushMode) -> Result<Flusher<D>, StorageError> {
        let system = dir.disk().file_system(dir.path()).doing("open", dir.path())?;
        let own = system.is_own();
        Ok(Flusher {
            dir: dir.clone(),
            mode,
            system,
            own,
            failure: Mutex::new(None),
            failed: AtomicBool::new(false),
        })
    }

    /// Bytes free in the file system; `None` where that is unknown.
    pub fn free_bytes(&self) -> Option<u64> {
        self.system.free_bytes()
    }

    /// Whether so many jobs are better run together, by one flush of the whole file system, than spread over
    /// threads.
    pub fn gathers(&self, jobs: usize) -> bool {
        match self.mode {
            FlushMode::Auto => self.own && jobs >= MANY,
            FlushMode::File => false,
            FlushMode::Filesystem => true,
        }
    }

    /// Why nothing is durable any more, if a flush failed.
    pub fn failure(&self) -> Option<FlushError> {
        if self.failed.load(Ordering::Acquire) { self.failure.lock().clone() } else { None }
    }

    /// Makes all jobs durable; the answers stand in the order of the jobs: the durable end, or why not.
    /// After any error nothing of this directory can be trusted to be durable: every later call fails.
    pub fn run(&self, mut jobs: Vec<FlushJob<D>>) -> Vec<Result<Offset, FlushError>> {
        if let Some(failure) = self.failure() {
            return jobs.iter().map(|_| Err(failure.clone())).collect();
        }
        for job in &mut jobs {
            job.write_side_files();
        }
        let files: usize = jobs.iter().map(|job| job.dirty.len()).sum();
        let folders: usize = jobs.iter().map(|job| job.folders.len()).sum();
        let whole = match self.mode {
            FlushMode::Auto => {
                (self.own && files + folders >= MANY)
                    || !jobs.iter().flat_map(|job| &job.dirty).all(Dirty::is_held)
            }
            FlushMode::File => false,
            FlushMode::Filesystem => true,
        };
        let outcomes = if whole { self.run_whole(&jobs) } else { self.run_files(&jobs, files) };
        if let Some(Err(first)) = outcomes.iter().find(|outcome| outcome.is_err()) {
            self.remember(first);
        }
        outcomes
    }

    fn remember(&self, failure: &FlushError) {
        let mut kept = self.failure.lock();
        if kept.is_none() {
            *kept = Some(failure.clone());
        }
        self.failed.store(true, Ordering::Release);
    }

    fn run_whole(&self, jobs: &[FlushJob<D>]) -> Vec<Result<Offset, FlushError>> {
        let mut outcome = self.sync_whole();
        if outcome.is_ok() {
            let mut renamed = false;
            for job in jobs {
                renamed |= job.finish_side_files();
            }
            // The first flush covered the folders already; the second is for the new names only.
            if renamed {
                outcome = self.sync_whole();
            }
        }
        jobs.iter().map(|job| outcome.clone().map(|()| job.end)).collect()
    }

    #[track_caller]
    fn sync_whole(&self) -> Result<(), FlushError> {
        let mut failure = self.failure.lock();
        if let Some(failure) = &*failure {
            return Err(failure.clone());
        }
        let outcome = self.system.sync().map_err(|error| failed(self.dir.path(), &error));
        if let Err(error) = &outcome {
            *failure = Some(error.clone());
            self.failed.store(true, Ordering::Release);
        }
        outcome
    }

    fn run_files(&self, jobs: &[FlushJob<D>], files: usize) -> Vec<Result<Offset, FlushError>> {
        let mut outcomes: Vec<Result<Offset, FlushError>> = if files < MANY / 2 {
            jobs.iter().map(|job| job.dirty.iter().try_for_each(Dirty::sync).map(|()| job.end)).collect()
        } else {
            sync_in_parallel(jobs, files)
        };
        let mut folders: BTreeSet<&PathBuf> = BTreeSet::new();
        for (job, outcome) in jobs.iter().zip(&outcomes) {
            if outcome.is_ok() {
                folders.extend(&job.folders);
                if job.finish_side_files() {
                    folders.insert(&job.folder);
                }
            }
        }
        // Parents sort before children, so a folder's own name is durable before the names in it.
        for folder in folders {
            if let Err(error) = sync_folder(self.dir.disk(), folder) {
                for (job, outcome) in jobs.iter().zip(&mut outcomes) {
                    if outcome.is_ok() && (job.folder == *folder || job.folders.contains(folder)) {
                        *outcome = Err(error.clone());
                    }
                }
            }
        }
        outcomes
    }
}

/// Flushes the files of all jobs, a few at a time.
fn sync_in_parallel<D: Disk>(jobs: &[FlushJob<D>], files: usize) -> Vec<Result<Offset, FlushError>> {
    let all: Vec<(usize, &Dirty<D>)> = jobs
        .iter()
        .enumerate()
        .flat_map(|(at, job)| job.dirty.iter().map(move |dirty| (at, dirty)))
        .collect();
    let next = AtomicUsize::new(0);
    let failures: Mutex<Vec<(usize, FlushError)>> = Mutex::new(Vec::new());
    let work = || {
        while let Some((job, dirty)) = all.get(next.fetch_add(1, Ordering::Relaxed)) {
            if let Err(error) = dirty.sync() {
                failures.lock().push((*job, error));
            }
        }
    };
    std::thread::scope(|scope| {
        for _ in 1..PARALLEL.min(files / 2) {
            scope.spawn(work);
        }
        work();
    });
    let failures = failures.into_inner();
    jobs.iter()
        .enumerate()
        .map(|(at, job)| match failures.iter().find(|(failed, _)| *failed == at) {
            Some((_, error)) => Err(error.clone()),
            None => Ok(job.end),
        })
        .collect()
}
