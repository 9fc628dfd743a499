//! What a data directory remembers of the control store: `control-past.json`.
//!
//! Which cluster it joined, how far the store had come, and under which sessions its processes registered or
//! tried to. Written, durably, before each registration: a session in the store that is not listed here belongs to a
//! process that never had this directory.

use std::io;
use std::path::Path;

use felix_cluster::registration::Past;
use felix_cluster::state::Revision;
use felix_protocol::ids::SessionId;
use felix_storage::disk::{Disk, OpenMode, read_whole, write_all_at};
use serde::{Deserialize, Serialize};

/// The file's name in the data directory.
pub(crate) const FILE_NAME: &str = "control-past.json";

const LIMIT_BYTES: u64 = 64 << 10;

/// The past with the highest revision ever seen.
#[derive(Clone, Debug, Default, PartialEq, Eq)]
pub(crate) struct Memory {
    pub(crate) past: Past,
    pub(crate) revision: Revision,
}

#[derive(Serialize, Deserialize)]
struct Stored {
    cluster: Option<String>,
    revision: Revision,
    /// Hexadecimal, as in the store.
    sessions: Vec<String>,
}

impl Memory {
    /// Reads it; a directory without the file remembers nothing.
    pub(crate) fn read<D: Disk>(disk: &D, directory: &Path) -> io::Result<Memory> {
        let path = directory.join(FILE_NAME);
        let bytes = match read_whole(disk, &path, LIMIT_BYTES) {
            Ok(bytes) => bytes,
            Err(error) if error.kind() == io::ErrorKind::NotFound => return Ok(Memory::default()),
            Err(error) => return Err(error),
        };
        let invalid = |what: String| {
            io::Error::new(io::ErrorKind::InvalidData, format!("{} cannot be read: {what}", path.display()))
        };
        let stored: Stored = serde_json::from_slice(&bytes).map_err(|error| invalid(error.to_string()))?;
        let sessions = stored.sessions.iter().map(|text| u64::from_str_radix(text, 16).map(SessionId));
        let sessions: Result<Vec<SessionId>, _> = sessions.collect();
        let sessions = sessions.map_err(|error| invalid(error.to_string()))?;
        Ok(Memory { past: Past { cluster: stored.cluster, sessions }, revision: stored.revision })
    }

    /// Replaces the file, durably.
    pub(crate) fn write<D: Disk>(&self, disk: &D, directory: &Path) -> io::Result<()> {
        let stored = Stored {
            cluster: self.past.cluster.clone(),
            revision: self.revision,
            sessions: self.past.sessions.iter().map(|session| format!("{:016x}", session.0)).collect(),
        };
        let new = directory.join(format!("{FILE_NAME}.new"));
        let file = disk.open(&new, OpenMode::Replace)?;
        let bytes = serde_json::to_vec(&stored).map_err(io::Error::other)?;
        write_all_at(&file, &bytes, 0)?;
        felix_storage::disk::DiskFile::sync_data(&file)?;
        disk.rename(&new, &directory.join(FILE_NAME))?;
        disk.sync_dir(directory)
    }
}

#[cfg(test)]
mod tests {
    use std::path::PathBuf;

    use felix_storage::disk::mem::{Crash, MemDisk};

    use super::*;

    #[test]
    fn it_survives_a_power_cut_and_damage_is_told() {
        let disk = MemDisk::new();
        let directory = PathBuf::from("/");
        assert_eq!(Memory::read(&disk, &directory).unwrap(), Memory::default());
        let past = Past { cluster: Some("c".to_owned()), sessions: vec![SessionId(1), SessionId(u64::MAX)] };
        let memory = Memory { past, revision: Revision(7) };
        memory.write(&disk, &directory).unwrap();
        let after = disk.crash(Crash::LoseUnsynced);
        assert_eq!(Memory::read(&after, &directory).unwrap(), memory);
        after.put(&directory.join(FILE_NAME), b"{}").unwrap();
        assert!(Memory::read(&after, &directory).unwrap_err().to_string().contains(FILE_NAME));
    }
}
