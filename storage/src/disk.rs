//! The one door to the file system. Everything that storage does to a disk goes through [`Disk`] and
//! [`DiskFile`], so that the in-memory twin ([`mem::MemDisk`]) can lose, tear and refuse what a real disk
//! may lose, tear and refuse.
//!
//! The contract is POSIX's, not that of a friendly file system: bytes written are durable only after
//! [`DiskFile::sync_data`]; a name made, renamed or removed is durable only after [`Disk::sync_dir`] of its
//! folder; an error of a sync is final (the pages may have been dropped) and must never be retried.

use std::io::{self, IoSlice};
use std::path::Path;

use felix_protocol::time::WallTime;

pub mod mem;
pub mod os;

/// How a file is opened. All modes but [`OpenMode::Read`] read and write.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum OpenMode {
    /// Existing, for reading only.
    Read,
    /// Existing, for reading and writing.
    Write,
    /// Made when it is missing.
    Create,
    /// Made; an existing one is an error.
    CreateNew,
    /// Made when it is missing, emptied when it is not.
    Replace,
}

/// One name in a folder.
#[derive(Clone, Debug, PartialEq, Eq, PartialOrd, Ord)]
pub struct Entry {
    /// The name, without its folder. Names that are not UTF-8 are not ours and are left out.
    pub name: String,
    /// Whether it is a folder.
    pub is_dir: bool,
}

/// A file system, as far as storage needs one.
pub trait Disk: Clone + Send + Sync + 'static {
    /// An open file.
    type File: DiskFile;
    /// Held while this process owns a data directory.
    type Lock: Send + Sync + 'static;
    /// A handle on a whole file system, kept open so that errors since it was opened are reported.
    type FileSystem: DiskFileSystem;

    /// Opens a file.
    fn open(&self, path: &Path, mode: OpenMode) -> io::Result<Self::File>;
    /// The names in a folder, in no particular order.
    fn read_dir(&self, path: &Path) -> io::Result<Vec<Entry>>;
    /// Length of a file in bytes.
    fn len_of(&self, path: &Path) -> io::Result<u64>;
    /// When the file was last written.
    fn modified(&self, path: &Path) -> io::Result<WallTime>;
    /// Makes one folder; its parent must exist.
    fn create_dir(&self, path: &Path) -> io::Result<()>;
    /// Renames a file or folder, replacing a file of that name.
    fn rename(&self, from: &Path, to: &Path) -> io::Result<()>;
    /// Removes a file.
    fn remove_file(&self, path: &Path) -> io::Result<()>;
    /// Removes a folder and all that is in it.
    fn remove_dir_all(&self, path: &Path) -> io::Result<()>;
    /// Makes the names in a folder durable.
    fn sync_dir(&self, path: &Path) -> io::Result<()>;
    /// Takes the lock file `path` for this process, or fails with [`io::ErrorKind::WouldBlock`].
    fn lock(&self, path: &Path) -> io::Result<Self::Lock>;
    /// Makes sure that nobody holds or takes the lock file `path` until the answer is dropped, or fails with
    /// [`io::ErrorKind::WouldBlock`]; any number may do so at once. Writes nothing: `None` where there is no
    /// such file, and where locks cannot be shared.
    fn lock_shared(&self, _path: &Path) -> io::Result<Option<Self::Lock>> {
        Ok(None)
    }
    /// Opens the file system that holds `dir`.
    fn file_system(&self, dir: &Path) -> io::Result<Self::FileSystem>;
}

/// An open file. All calls name their offset, so any number of threads may share it.
pub trait DiskFile: Send + Sync + 'static {
    /// Reads up to `max` bytes at `offset` and appends them to `buf`; 0 at the end of the file. May
    /// return fewer.
    fn read_at(&self, buf: &mut Vec<u8>, max: usize, offset: u64) -> io::Result<usize>;
    /// The same, but fails with [`io::ErrorKind::WouldBlock`] rather than wait for the device.
    fn read_at_nowait(&self, buf: &mut Vec<u8>, max: usize, offset: u64) -> io::Result<usize>;
    /// The same as [`DiskFile::read_at`] for bytes that are read once: none stay in the page cache that were
    /// not there. Best effort.
    fn read_once_at(&self, buf: &mut Vec<u8>, max: usize, offset: u64) -> io::Result<usize> {
        self.read_at(buf, max, offset)
    }
    /// Writes the pieces one after another at `offset`, in one system call. May write fewer bytes.
    fn write_vectored_at(&self, pieces: &[IoSlice<'_>], offset: u64) -> io::Result<usize>;
    /// Makes all bytes written so far durable.
    fn sync_data(&self) -> io::Result<()>;
    /// Cuts or extends the file.
    fn set_len(&self, len: u64) -> io::Result<()>;
    /// Length in bytes.
    fn len(&self) -> io::Result<u64>;
    /// Whether the file has no bytes.
    fn is_empty(&self) -> io::Result<bool> {
        Ok(self.len()? == 0)
    }
    /// Sets what [`Disk::modified`] will say of the file; best effort.
    fn set_modified(&self, _time: WallTime) -> io::Result<()> {
        Ok(())
    }
    /// Reserves blocks up to `len` without changing the length; best effort.
    fn reserve(&self, _len: u64) -> io::Result<()> {
        Ok(())
    }
}

/// A whole file system.
pub trait DiskFileSystem: Send + Sync + 'static {
    /// Whether the folder it was opened by is a file system of its own, so that flushing all of it waits
    /// for nobody else's writes.
    fn is_own(&self) -> bool;
    /// Makes everything written to the file system durable.
    fn sync(&self) -> io::Result<()>;
    /// Bytes still free for us; `None` where that is unknown.
    fn free_bytes(&self) -> Option<u64>;
}

/// Writes all of `bytes` at `offset`.
pub fn write_all_at<F: DiskFile>(file: &F, bytes: &[u8], offset: u64) -> io::Result<()> {
    let mut done = 0;
    while done < bytes.len() {
        match file.write_vectored_at(&[IoSlice::new(&bytes[done..])], offset + done as u64) {
            Ok(0) => return Err(io::ErrorKind::WriteZero.into()),
            Ok(written) => done += written,
            Err(error) if error.kind() == io::ErrorKind::Interrupted => {}
            Err(error) => return Err(error),
        }
    }
    Ok(())
}

/// Reads `len` bytes at `offset`, fewer only where the file ends.
pub fn read_up_to<F: DiskFile>(file: &F, len: usize, offset: u64) -> io::Result<Vec<u8>> {
    let mut buf = Vec::with_capacity(len);
    while buf.len() < len {
        let have = buf.len();
        match file.read_at(&mut buf, len - have, offset + have as u64) {
            Ok(0) => break,
            Ok(_) => {}
            Err(error) if error.kind() == io::ErrorKind::Interrupted => {}
            Err(error) => return Err(error),
        }
    }
    Ok(buf)
}

/// The whole content of a file, refused beyond `limit` bytes: side files are small, and one that is not
/// is not ours.
pub fn read_whole<D: Disk>(disk: &D, path: &Path, limit: u64) -> io::Result<Vec<u8>> {
    let file = disk.open(path, OpenMode::Read)?;
    let len = file.len()?;
    if len > limit {
        return Err(io::Error::new(
            io::ErrorKind::InvalidData,
            format!("{len} bytes, at most {limit} expected"),
        ));
    }
    let len = usize::try_from(len).map_err(|_| io::Error::from(io::ErrorKind::InvalidData))?;
    read_up_to(&file, len, 0)
}

/// Whether an error says that the device is full (or a quota used up): writes may work again later.
pub fn is_full(error: &io::Error) -> bool {
    matches!(error.kind(), io::ErrorKind::StorageFull | io::ErrorKind::QuotaExceeded)
}
