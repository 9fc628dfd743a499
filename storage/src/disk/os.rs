//! The real file system.

use std::fs::{self, File, OpenOptions};
use std::io::{self, IoSlice};
use std::os::unix::fs::MetadataExt;
use std::path::{Path, PathBuf};
use std::time::UNIX_EPOCH;

use felix_protocol::time::WallTime;
use rustix::fs::{Advice, FallocateFlags, FlockOperation};
use rustix::io::{Errno, ReadWriteFlags};

use super::{Disk, DiskFile, DiskFileSystem, Entry, OpenMode};

/// The operating system's files.
#[derive(Clone, Copy, Debug, Default)]
pub struct OsDisk;

/// An open file of [`OsDisk`].
#[derive(Debug)]
pub struct OsFile(File);

/// The lock on a data directory: released when dropped, and by the kernel when the process dies.
#[derive(Debug)]
pub struct OsLock {
    _file: File,
}

/// A file system of [`OsDisk`].
#[derive(Debug)]
pub struct OsFileSystem {
    dir: File,
    own: bool,
}

impl Disk for OsDisk {
    type File = OsFile;
    type Lock = OsLock;
    type FileSystem = OsFileSystem;

    fn open(&self, path: &Path, mode: OpenMode) -> io::Result<OsFile> {
        let mut options = OpenOptions::new();
        options.read(true);
        match mode {
            OpenMode::Read => {}
            OpenMode::Write => {
                options.write(true);
            }
            OpenMode::Create => {
                options.write(true).create(true).truncate(false);
            }
            OpenMode::CreateNew => {
                options.write(true).create_new(true);
            }
            OpenMode::Replace => {
                options.write(true).create(true).truncate(true);
            }
        }
        let file = options.open(path)?;
        // A folder can be opened for reading; it must never pass for a file.
        if mode == OpenMode::Read && file.metadata()?.is_dir() {
            return Err(io::ErrorKind::IsADirectory.into());
        }
        Ok(OsFile(file))
    }

    fn read_dir(&self, path: &Path) -> io::Result<Vec<Entry>> {
        let mut entries = Vec::new();
        for entry in fs::read_dir(path)? {
            let entry = entry?;
            if let Ok(name) = entry.file_name().into_string() {
                entries.push(Entry { name, is_dir: entry.file_type()?.is_dir() });
            }
        }
        Ok(entries)
    }

    fn len_of(&self, path: &Path) -> io::Result<u64> {
        let metadata = fs::metadata(path)?;
        if metadata.is_dir() { Err(io::ErrorKind::IsADirectory.into()) } else { Ok(metadata.len()) }
    }

    fn modified(&self, path: &Path) -> io::Result<WallTime> {
        let since = fs::metadata(path)?.modified()?.duration_since(UNIX_EPOCH).unwrap_or_default();
        Ok(WallTime(i64::try_from(since.as_millis()).unwrap_or(i64::MAX)))
    }

    fn create_dir(&self, path: &Path) -> io::Result<()> {
        fs::create_dir(path)
    }

    fn rename(&self, from: &Path, to: &Path) -> io::Result<()> {
        fs::rename(from, to)
    }

    fn remove_file(&self, path: &Path) -> io::Result<()> {
        fs::remove_file(path)
    }

    fn remove_dir_all(&self, path: &Path) -> io::Result<()> {
        fs::remove_dir_all(path)
    }

    fn sync_dir(&self, path: &Path) -> io::Result<()> {
        // Not fdatasync: the names themselves are what must last.
        File::open(path)?.sync_all()
    }

    fn lock(&self, path: &Path) -> io::Result<OsLock> {
        let file = OpenOptions::new().read(true).write(true).create(true).truncate(false).open(path)?;
        rustix::fs::flock(&file, FlockOperation::NonBlockingLockExclusive)?;
        Ok(OsLock { _file: file })
    }

    fn lock_shared(&self, path: &Path) -> io::Result<Option<OsLock>> {
        let file = match File::open(path) {
            Err(error) if error.kind() == io::ErrorKind::NotFound => return Ok(None),
            other => other?,
        };
        rustix::fs::flock(&file, FlockOperation::NonBlockingLockShared)?;
        Ok(Some(OsLock { _file: file }))
    }

    fn file_system(&self, dir: &Path) -> io::Result<OsFileSystem> {
        let file = File::open(dir)?;
        let here = file.metadata()?;
        let whole = fs::canonicalize(dir)?;
        let parent = whole.parent().map_or_else(|| PathBuf::from("/"), Path::to_path_buf);
        // A mount point lies on another device than its parent. The root is shared with everybody.
        let own = whole != parent && fs::metadata(parent)?.dev() != here.dev();
        Ok(OsFileSystem { dir: file, own })
    }
}

impl DiskFile for OsFile {
    fn read_at(&self, buf: &mut Vec<u8>, max: usize, offset: u64) -> io::Result<usize> {
        read(&self.0, buf, max, offset, ReadWriteFlags::empty())
    }

    fn read_at_nowait(&self, buf: &mut Vec<u8>, max: usize, offset: u64) -> io::Result<usize> {
        match read(&self.0, buf, max, offset, ReadWriteFlags::NOWAIT) {
            // File systems without RWF_NOWAIT cannot tell, so the caller must be ready to wait.
            Err(error) if error.raw_os_error() == Some(Errno::OPNOTSUPP.raw_os_error()) => {
                Err(io::ErrorKind::WouldBlock.into())
            }
            other => other,
        }
    }

    fn read_once_at(&self, buf: &mut Vec<u8>, max: usize, offset: u64) -> io::Result<usize> {
        // What is in memory is somebody's; it stays.
        match read(&self.0, buf, max, offset, ReadWriteFlags::NOWAIT) {
            Ok(got) if got > 0 => return Ok(got),
            Ok(_) | Err(_) => {}
        }
        // Without this, the kernel reads on ahead, and that would pass for somebody's the next time.
        let _ = rustix::fs::fadvise(&self.0, offset, None, Advice::Random);
        let got = read(&self.0, buf, max, offset, ReadWriteFlags::empty())?;
        let len = std::num::NonZeroU64::new(got as u64);
        if len.is_some() {
            let _ = rustix::fs::fadvise(&self.0, offset, len, Advice::DontNeed);
        }
        Ok(got)
    }

    fn write_vectored_at(&self, pieces: &[IoSlice<'_>], offset: u64) -> io::Result<usize> {
        Ok(rustix::io::pwritev(&self.0, pieces, offset)?)
    }

    fn sync_data(&self) -> io::Result<()> {
        self.0.sync_data()
    }

    fn set_len(&self, len: u64) -> io::Result<()> {
        self.0.set_len(len)
    }

    fn len(&self) -> io::Result<u64> {
        Ok(self.0.metadata()?.len())
    }

    fn set_modified(&self, time: WallTime) -> io::Result<()> {
        let since = std::time::Duration::from_millis(u64::try_from(time.0).unwrap_or(0));
        self.0.set_modified(std::time::UNIX_EPOCH + since)
    }

    fn reserve(&self, len: u64) -> io::Result<()> {
        Ok(rustix::fs::fallocate(&self.0, FallocateFlags::KEEP_SIZE, 0, len)?)
    }
}

/// Reads straight into the spare room of `buf`: nothing is zeroed first.
fn read(file: &File, buf: &mut Vec<u8>, max: usize, offset: u64, flags: ReadWriteFlags) -> io::Result<usize> {
    buf.reserve(max);
    let spare = &mut buf.spare_capacity_mut()[..max];
    let got = if flags.is_empty() {
        rustix::io::pread(file, spare, offset)?.0.len()
    } else {
        // `preadv2` has no form for uninitialised memory: a short zeroing only where it is asked for.
        let at = buf.len();
        buf.resize(at + max, 0);
        let outcome = rustix::io::preadv2(file, &mut [io::IoSliceMut::new(&mut buf[at..])], offset, flags);
        buf.truncate(at + outcome.unwrap_or(0));
        return Ok(outcome?);
    };
    // SAFETY: `pread` initialised the first `got` bytes of the spare room.
    #[expect(unsafe_code, reason = "the only way to take over bytes read into spare room")]
    unsafe {
        buf.set_len(buf.len() + got);
    }
    Ok(got)
}

impl DiskFileSystem for OsFileSystem {
    fn is_own(&self) -> bool {
        self.own
    }

    fn sync(&self) -> io::Result<()> {
        Ok(rustix::fs::syncfs(&self.dir)?)
    }

    fn free_bytes(&self) -> Option<u64> {
        let stat = rustix::fs::fstatvfs(&self.dir).ok()?;
        Some(stat.f_bavail.saturating_mul(stat.f_frsize))
    }
}
