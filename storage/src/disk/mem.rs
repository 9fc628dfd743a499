//! The in-memory twin of a disk: forgets at a crash what was not synced, tears writes, fails, fills up.
//!
//! It grants nothing that POSIX does not: a name made without a sync of its folder may be gone after a
//! crash though the file's bytes were synced; bytes whose sync failed stay readable and never become durable.
//! [`legal`] says exactly which states a crash may leave; [`trace`] records what was asked of the disk, so that
//! all of them can be gone through.

use std::io::{self, IoSlice};
use std::path::Path;
use std::sync::Arc;

use felix_protocol::time::WallTime;
use parking_lot::Mutex;

use super::{Disk, DiskFile, DiskFileSystem, Entry, OpenMode};

pub mod legal;
mod nodes;
pub mod trace;

use nodes::{Dice, DirNode, DirOp, FileNode, FileOp, Node, NodeId, State, device_error, error};
use trace::{Act, Step, Trace};

/// A disk in memory; clones are the same disk.
#[derive(Clone)]
pub struct MemDisk {
    state: Arc<Mutex<State>>,
}

/// What a crash leaves.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum Crash {
    /// Only what was synced.
    LoseUnsynced,
    /// Everything, as after the end of the process alone.
    KeepAll,
    /// What was synced, and of the rest any part ([`legal`]). The number seeds the choice.
    Random(u64),
}

/// What was asked of the disk so far.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq)]
pub struct Counters {
    /// Calls that wrote.
    pub writes: u64,
    /// Bytes written.
    pub written_bytes: u64,
    /// Calls that read.
    pub reads: u64,
    /// Bytes read.
    pub read_bytes: u64,
    /// Files synced.
    pub file_syncs: u64,
    /// Folders synced.
    pub dir_syncs: u64,
    /// Whole file systems synced.
    pub system_syncs: u64,
    /// Files opened.
    pub opens: u64,
    /// Files open now.
    pub open_now: u64,
}

impl Default for MemDisk {
    fn default() -> Self {
        MemDisk::new()
    }
}

impl MemDisk {
    /// An empty disk.
    pub fn new() -> MemDisk {
        MemDisk { state: Arc::new(Mutex::new(State::new())) }
    }

    /// The disk as a machine finds it that starts again after a crash now. This one stays as it is.
    pub fn crash(&self, crash: Crash) -> MemDisk {
        let state = self.state.lock();
        let mut dice = Dice::new(match crash {
            Crash::Random(seed) => seed,
            Crash::LoseUnsynced | Crash::KeepAll => 0,
        });
        // Sometimes next to nothing or next to everything reached the disk.
        let odds = [0, 1, 4, 7, 8][dice.below(5)];
        let nodes = legal::after(&state.nodes, &mut |_| match crash {
            Crash::LoseUnsynced => false,
            Crash::KeepAll => true,
            Crash::Random(_) => dice.below(8) < odds,
        });
        MemDisk::of(state.started_again(nodes))
    }

    fn of(state: State) -> MemDisk {
        MemDisk { state: Arc::new(Mutex::new(state)) }
    }

    /// Records from now on what is asked of the disk, from its present state on. What a disk is made into by
    /// a crash is not recorded.
    pub fn record(&self) {
        let mut state = self.state.lock();
        let before = state.started_as_it_is();
        state.recorder.begin(before);
    }

    /// Entries recorded so far.
    pub fn recorded(&self) -> usize {
        self.state.lock().recorder.len()
    }

    /// What was recorded; recording ends.
    pub fn take_trace(&self) -> Option<Trace> {
        self.state.lock().recorder.take()
    }

    /// A planted mistake: this step is answered with success and not done, here and on whatever a crash of
    /// this disk leaves.
    pub fn leave_out(&self, step: Option<Step>) {
        self.state.lock().recorder.left_out = step;
    }

    /// Notes from now on which files are read.
    pub fn note_reads(&self) {
        self.state.lock().recorder.read = Some(Default::default());
    }

    /// Files whose bytes were read since [`MemDisk::note_reads`], by their path when they were opened.
    pub fn files_read(&self) -> std::collections::BTreeSet<String> {
        self.state.lock().recorder.read.clone().unwrap_or_default()
    }

    /// Looks at all files with their content and all folders, in order of their paths, as they are now.
    pub fn each(&self, mut look: impl FnMut(&str, Option<&[u8]>)) {
        let state = self.state.lock();
        let mut waiting = vec![(String::new(), nodes::ROOT)];
        while let Some((path, id)) = waiting.pop() {
            match state.nodes.get(&id) {
                Some(Node::Dir(dir)) => {
                    let names = dir.current.iter().rev();
                    waiting.extend(names.map(|(name, id)| (format!("{path}/{name}"), *id)));
                    look(&path, None);
                }
                Some(Node::File(file)) => look(&path, Some(&file.current)),
                None => {}
            }
        }
    }

    /// What was asked so far.
    pub fn counters(&self) -> Counters {
        self.state.lock().counters
    }

    /// What [`Disk::modified`] will say of files written from now on.
    pub fn set_now(&self, now: WallTime) {
        self.state.lock().now = now;
    }

    /// Bytes that fit in all; writes beyond are short or refused. `None` lifts the limit.
    pub fn set_capacity(&self, bytes: Option<u64>) {
        self.state.lock().capacity = bytes;
    }

    /// Bytes in all files.
    pub fn used(&self) -> u64 {
        self.state.lock().used()
    }

    /// Lets `good` syncs pass, then fails one.
    pub fn fail_sync_after(&self, good: u64) {
        self.state.lock().syncs_until_failure = Some(good);
    }

    /// Lets `good` writes pass, then fails all with a device error; `None` heals.
    pub fn fail_writes_after(&self, good: Option<u64>) {
        self.state.lock().writes_until_failure = good;
    }

    /// Opening files whose name ends so gives handles whose reads fail; `None` heals.
    pub fn make_unreadable(&self, suffix: Option<&str>) {
        self.state.lock().unreadable = suffix.map(str::to_string);
    }

    /// Whether reads that must not wait find nothing in memory.
    pub fn set_cold(&self, cold: bool) {
        self.state.lock().cold = cold;
    }

    /// Whether [`DiskFileSystem::is_own`].
    pub fn set_own(&self, own: bool) {
        self.state.lock().own = own;
    }

    /// The content of a file, for tests that look at bytes.
    pub fn content(&self, path: &Path) -> io::Result<Vec<u8>> {
        let state = self.state.lock();
        Ok(state.file(state.find(path)?)?.current.clone())
    }

    /// Replaces the content of a file, durably: a test's damage.
    pub fn put(&self, path: &Path, content: &[u8]) -> io::Result<()> {
        let mut state = self.state.lock();
        let (parent, name) = state.parent(path)?;
        let id = match state.dir(parent)?.current.get(&name) {
            Some(id) => *id,
            None => {
                let id = state.insert(parent, name.clone(), Node::File(FileNode::default()))?;
                state.dir_mut(parent)?.durable.insert(name, id);
                id
            }
        };
        let file = state.file_mut(id)?;
        file.current = content.to_vec();
        file.durable = content.to_vec();
        file.pending.clear();
        Ok(())
    }
}

/// An open file of a [`MemDisk`].
pub struct MemFile {
    state: Arc<Mutex<State>>,
    id: NodeId,
    path: String,
    writable: bool,
    broken: bool,
}

impl Drop for MemFile {
    fn drop(&mut self) {
        self.state.lock().counters.open_now -= 1;
    }
}

/// The lock of a [`MemDisk`]'s folder.
pub struct MemLock {
    state: Arc<Mutex<State>>,
    name: String,
}

impl Drop for MemLock {
    fn drop(&mut self) {
        self.state.lock().locks.retain(|name| *name != self.name);
    }
}

/// A [`MemDisk`] as a file system.
pub struct MemFileSystem {
    state: Arc<Mutex<State>>,
}

impl Disk for MemDisk {
    type File = MemFile;
    type Lock = MemLock;
    type FileSystem = MemFileSystem;

    fn open(&self, path: &Path, mode: OpenMode) -> io::Result<MemFile> {
        let mut state = self.state.lock();
        let (parent, name) = state.parent(path)?;
        let found = state.dir(parent)?.current.get(&name).copied();
        let make = matches!(mode, OpenMode::Create | OpenMode::CreateNew | OpenMode::Replace);
        let id = match found {
            Some(_) if mode == OpenMode::CreateNew => return Err(error(io::ErrorKind::AlreadyExists)),
            Some(id) => id,
            None if make => {
                // A full disk still makes names; that is what ext4's reserved inodes do.
                let modified = state.now.0;
                let node = Node::File(FileNode { modified, ..FileNode::default() });
                state.insert(parent, name.clone(), node)?
            }
            None => return Err(error(io::ErrorKind::NotFound)),
        };
        let file = state.file(id)?;
        if mode == OpenMode::Replace && !file.current.is_empty() {
            state.write(id, FileOp::SetLen(0))?;
        }
        let broken = state.unreadable.as_ref().is_some_and(|suffix| name.ends_with(suffix));
        state.counters.opens += 1;
        state.counters.open_now += 1;
        let path = path.display().to_string();
        Ok(MemFile { state: self.state.clone(), id, path, writable: mode != OpenMode::Read, broken })
    }

    fn read_dir(&self, path: &Path) -> io::Result<Vec<Entry>> {
        let state = self.state.lock();
        let dir = state.dir(state.find(path)?)?;
        Ok(dir
            .current
            .iter()
            .map(|(name, id)| Entry {
                name: name.clone(),
                is_dir: matches!(state.nodes.get(id), Some(Node::Dir(_))),
            })
            .collect())
    }

    fn len_of(&self, path: &Path) -> io::Result<u64> {
        let state = self.state.lock();
        Ok(state.file(state.find(path)?)?.current.len() as u64)
    }

    fn modified(&self, path: &Path) -> io::Result<WallTime> {
        let state = self.state.lock();
        Ok(WallTime(state.file(state.find(path)?)?.modified))
    }

    fn create_dir(&self, path: &Path) -> io::Result<()> {
        let mut state = self.state.lock();
        let (parent, name) = state.parent(path)?;
        if state.dir(parent)?.current.contains_key(&name) {
            return Err(error(io::ErrorKind::AlreadyExists));
        }
        state.insert(parent, name, Node::Dir(DirNode::default()))?;
        Ok(())
    }

    #[track_caller]
    fn rename(&self, from: &Path, to: &Path) -> io::Result<()> {
        let mut state = self.state.lock();
        let (from_dir, from_name) = state.parent(from)?;
        let (to_dir, to_name) = state.parent(to)?;
        let id =
            *state.dir(from_dir)?.current.get(&from_name).ok_or_else(|| error(io::ErrorKind::NotFound))?;
        if let Some(there) = state.dir(to_dir)?.current.get(&to_name)
            && let Some(Node::Dir(_)) = state.nodes.get(there)
        {
            return Err(error(io::ErrorKind::DirectoryNotEmpty));
        }
        if state.recorder.leaves_out(Act::Rename, &from.display().to_string()) {
            return Ok(());
        }
        if from_dir == to_dir {
            state.change(from_dir, DirOp::Rename(from_name, to_name, id))
        } else {
            state.change(from_dir, DirOp::Remove(from_name))?;
            state.change(to_dir, DirOp::Insert(to_name, id))
        }
    }

    #[track_caller]
    fn remove_file(&self, path: &Path) -> io::Result<()> {
        let mut state = self.state.lock();
        let (parent, name) = state.parent(path)?;
        let id = *state.dir(parent)?.current.get(&name).ok_or_else(|| error(io::ErrorKind::NotFound))?;
        // Bytes of a removed file no longer count; whoever has it open reads on until the crash.
        state.file(id)?;
        if state.recorder.leaves_out(Act::Remove, &path.display().to_string()) {
            return Ok(());
        }
        state.change(parent, DirOp::Remove(name))
    }

    fn remove_dir_all(&self, path: &Path) -> io::Result<()> {
        let mut state = self.state.lock();
        let (parent, name) = state.parent(path)?;
        let id = *state.dir(parent)?.current.get(&name).ok_or_else(|| error(io::ErrorKind::NotFound))?;
        state.empty_dir(id)?;
        state.change(parent, DirOp::Remove(name))
    }

    #[track_caller]
    fn sync_dir(&self, path: &Path) -> io::Result<()> {
        let mut state = self.state.lock();
        state.counters.dir_syncs += 1;
        let id = state.find(path)?;
        if state.recorder.leaves_out(Act::SyncDir, &path.display().to_string()) {
            return Ok(());
        }
        state.sync_names(id)
    }

    fn lock(&self, path: &Path) -> io::Result<MemLock> {
        let mut state = self.state.lock();
        let name = path.display().to_string();
        state.parent(path)?;
        if state.locks.contains(&name) {
            return Err(error(io::ErrorKind::WouldBlock));
        }
        state.locks.push(name.clone());
        Ok(MemLock { state: self.state.clone(), name })
    }

    fn file_system(&self, dir: &Path) -> io::Result<MemFileSystem> {
        let state = self.state.lock();
        state.dir(state.find(dir)?)?;
        Ok(MemFileSystem { state: self.state.clone() })
    }
}

impl MemFile {
    fn read(&self, buf: &mut Vec<u8>, max: usize, offset: u64) -> io::Result<usize> {
        if self.broken {
            return Err(device_error());
        }
        let mut state = self.state.lock();
        let file = state.file(self.id)?;
        let from = usize::try_from(offset).unwrap_or(usize::MAX).min(file.current.len());
        let to = from.saturating_add(max).min(file.current.len());
        buf.extend_from_slice(&file.current[from..to]);
        state.counters.reads += 1;
        state.counters.read_bytes += (to - from) as u64;
        if let Some(read) = &mut state.recorder.read
            && !read.contains(&self.path)
        {
            read.insert(self.path.clone());
        }
        Ok(to - from)
    }
}

impl DiskFile for MemFile {
    fn read_at(&self, buf: &mut Vec<u8>, max: usize, offset: u64) -> io::Result<usize> {
        self.read(buf, max, offset)
    }

    fn read_at_nowait(&self, buf: &mut Vec<u8>, max: usize, offset: u64) -> io::Result<usize> {
        if self.state.lock().cold {
            return Err(error(io::ErrorKind::WouldBlock));
        }
        self.read(buf, max, offset)
    }

    fn write_vectored_at(&self, pieces: &[IoSlice<'_>], offset: u64) -> io::Result<usize> {
        if !self.writable {
            return Err(error(io::ErrorKind::PermissionDenied));
        }
        let mut state = self.state.lock();
        if State::count_down(&mut state.writes_until_failure) {
            return Err(device_error());
        }
        let mut data = Vec::with_capacity(pieces.iter().map(|piece| piece.len()).sum());
        for piece in pieces {
            data.extend_from_slice(piece);
        }
        let at = usize::try_from(offset).map_err(|_| error(io::ErrorKind::InvalidInput))?;
        if let Some(capacity) = state.capacity {
            let have = state.file(self.id)?.current.len();
            let free = usize::try_from(capacity.saturating_sub(state.used())).unwrap_or(usize::MAX);
            let fits = (have + free).saturating_sub(at).min(data.len());
            if fits == 0 && !data.is_empty() {
                return Err(error(io::ErrorKind::StorageFull));
            }
            data.truncate(fits);
        }
        let written = data.len();
        state.write(self.id, FileOp::Write(at, data))?;
        state.counters.writes += 1;
        state.counters.written_bytes += written as u64;
        Ok(written)
    }

    #[track_caller]
    fn sync_data(&self) -> io::Result<()> {
        let mut state = self.state.lock();
        state.counters.file_syncs += 1;
        if state.recorder.leaves_out(Act::SyncFile, &self.path) {
            return Ok(());
        }
        state.sync_file(self.id)
    }

    #[track_caller]
    fn set_len(&self, len: u64) -> io::Result<()> {
        let mut state = self.state.lock();
        let len = usize::try_from(len).map_err(|_| error(io::ErrorKind::InvalidInput))?;
        if state.recorder.leaves_out(Act::Cut, &self.path) {
            return Ok(());
        }
        state.write(self.id, FileOp::SetLen(len))
    }

    fn set_modified(&self, time: WallTime) -> io::Result<()> {
        self.state.lock().file_mut(self.id)?.modified = time.0;
        Ok(())
    }

    fn len(&self) -> io::Result<u64> {
        Ok(self.state.lock().file(self.id)?.current.len() as u64)
    }
}

impl DiskFileSystem for MemFileSystem {
    fn is_own(&self) -> bool {
        self.state.lock().own
    }

    #[track_caller]
    fn sync(&self) -> io::Result<()> {
        let mut state = self.state.lock();
        state.counters.system_syncs += 1;
        if state.recorder.leaves_out(Act::SyncAll, "") {
            return Ok(());
        }
        state.sync_all()
    }

    fn free_bytes(&self) -> Option<u64> {
        let state = self.state.lock();
        state.capacity.map(|capacity| capacity.saturating_sub(state.used()))
    }
}

#[cfg(test)]
mod tests {
    use super::*;
    use crate::disk::write_all_at;

    #[test]
    fn a_crash_forgets_bytes_and_names_that_were_not_synced() {
        let disk = MemDisk::new();
        disk.create_dir(Path::new("/d")).unwrap();
        disk.sync_dir(Path::new("/")).unwrap();
        let synced = disk.open(Path::new("/d/a"), OpenMode::CreateNew).unwrap();
        write_all_at(&synced, b"one", 0).unwrap();
        synced.sync_data().unwrap();
        disk.sync_dir(Path::new("/d")).unwrap();
        write_all_at(&synced, b"two", 3).unwrap();
        let nameless = disk.open(Path::new("/d/b"), OpenMode::CreateNew).unwrap();
        write_all_at(&nameless, b"x", 0).unwrap();
        nameless.sync_data().unwrap();
        let after = disk.crash(Crash::LoseUnsynced);
        assert_eq!(after.content(Path::new("/d/a")).unwrap(), b"one");
        assert!(after.content(Path::new("/d/b")).is_err(), "its folder was not synced");
        assert_eq!(disk.crash(Crash::KeepAll).content(Path::new("/d/a")).unwrap(), b"onetwo");
    }

    #[test]
    fn bytes_of_a_failed_sync_never_become_durable() {
        let disk = MemDisk::new();
        let file = disk.open(Path::new("/a"), OpenMode::CreateNew).unwrap();
        disk.sync_dir(Path::new("/")).unwrap();
        write_all_at(&file, b"lost", 0).unwrap();
        disk.fail_sync_after(0);
        assert!(file.sync_data().is_err());
        assert!(file.sync_data().is_ok(), "the kernel has forgotten");
        assert_eq!(disk.content(Path::new("/a")).unwrap(), b"lost");
        assert_eq!(disk.crash(Crash::LoseUnsynced).content(Path::new("/a")).unwrap(), b"");
    }

    #[test]
    fn a_full_disk_writes_what_fits_then_refuses() {
        let disk = MemDisk::new();
        disk.set_capacity(Some(4));
        let file = disk.open(Path::new("/a"), OpenMode::CreateNew).unwrap();
        assert_eq!(file.write_vectored_at(&[IoSlice::new(b"abc"), IoSlice::new(b"def")], 0).unwrap(), 4);
        let refused = file.write_vectored_at(&[IoSlice::new(b"e")], 4).unwrap_err();
        assert!(crate::disk::is_full(&refused));
        disk.set_capacity(None);
        assert!(write_all_at(&file, b"ef", 4).is_ok());
    }
}
