//! Small file systems in memory, for brokers whose disk fills up.

use std::io::Write;
use std::path::{Path, PathBuf};
use std::process::Command;
use std::time::Duration;

use anyhow::Result;

use super::stage::skip;
use crate::process::run;

/// A small file system in memory, unmounted at the end.
pub struct SmallDisk(pub PathBuf);

impl SmallDisk {
    /// Mounts one on a folder of its own.
    pub fn mount(mebibytes: u32, log: &Path) -> Result<Self> {
        Self::mount_on(crate::guard::temporary("disk-")?.keep(), mebibytes, log)
    }

    /// Mounts one on an empty folder, which goes with it.
    pub fn mount_on(folder: PathBuf, mebibytes: u32, log: &Path) -> Result<Self> {
        let size = format!("size={mebibytes}m");
        let mut mount = Command::new("mount");
        mount.args(["-t", "tmpfs", "-o", &size, "felix-compat"]).arg(&folder);
        match run(&mut mount, log, Duration::from_secs(10)) {
            Ok(()) => Ok(Self(folder)),
            Err(error) => {
                // Containers without the right to mount cannot try this.
                std::fs::remove_dir(&folder)?;
                skip(&format!("cannot mount a small disk: {error}"))
            }
        }
    }

    /// Bytes that are free.
    pub fn free(&self) -> Result<u64> {
        let figures = rustix::fs::statvfs(&self.0)?;
        Ok(figures.f_bavail * figures.f_frsize)
    }

    /// A file that takes up all space but so many bytes; one that is there grows, and gives nothing back meanwhile.
    pub fn fill(&self, but: u64) -> Result<PathBuf> {
        let balloon = self.0.join("balloon");
        let mut file = std::fs::File::options().create(true).append(true).open(&balloon)?;
        loop {
            let more = usize::try_from(self.free()?.saturating_sub(but).min(1 << 20))?;
            match file.write_all(&vec![1; more]) {
                Ok(()) if more > 0 => {}
                // Somebody else wrote meanwhile: then it is as full as can be.
                Err(error) if error.kind() != std::io::ErrorKind::StorageFull => return Err(error.into()),
                _ => return Ok(balloon),
            }
        }
    }
}

impl Drop for SmallDisk {
    fn drop(&mut self) {
        let unmounted = Command::new("umount").arg("-l").arg(&self.0).status();
        if unmounted.is_ok_and(|status| status.success()) {
            // Nothing is in it any more.
            let _ = std::fs::remove_dir(&self.0);
        }
    }
}
