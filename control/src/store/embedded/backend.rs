//! Where the database's bytes go: through the [`Disk`](felix_storage::disk::Disk) trait, like all others, so
//! that tests can lose, tear and refuse them.

use std::fmt;
use std::io;
use std::sync::Arc;
use std::sync::atomic::{AtomicBool, Ordering};

use felix_storage::disk::{DiskFile, read_up_to, write_all_at};
use redb::StorageBackend;

pub(super) struct Backend<F> {
    file: F,
    flush_failed: Arc<AtomicBool>,
}

impl<F> Backend<F> {
    pub(super) fn new(file: F, flush_failed: Arc<AtomicBool>) -> Self {
        Backend { file, flush_failed }
    }
}

impl<F> fmt::Debug for Backend<F> {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        f.debug_struct("Backend").finish_non_exhaustive()
    }
}

impl<F: DiskFile> StorageBackend for Backend<F> {
    fn len(&self) -> io::Result<u64> {
        self.file.len()
    }

    fn read(&self, offset: u64, out: &mut [u8]) -> io::Result<()> {
        let bytes = read_up_to(&self.file, out.len(), offset)?;
        if bytes.len() != out.len() {
            return Err(io::ErrorKind::UnexpectedEof.into());
        }
        out.copy_from_slice(&bytes);
        Ok(())
    }

    fn set_len(&self, len: u64) -> io::Result<()> {
        // Growing may be refused; a write to what the file already has should not be.
        if len > self.file.len()? {
            self.file.reserve(len)?;
        }
        self.file.set_len(len)
    }

    fn sync_data(&self) -> io::Result<()> {
        let synced = self.file.sync_data();
        if synced.is_err() {
            self.flush_failed.store(true, Ordering::Release);
        }
        synced
    }

    fn write(&self, offset: u64, data: &[u8]) -> io::Result<()> {
        write_all_at(&self.file, data, offset)
    }
}
