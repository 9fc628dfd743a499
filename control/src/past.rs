//! What a data directory remembers of the control store: `control.past`.
//!
//! Which cluster it joined, how far the store had come, and under which sessions its processes registered or
//! tried to. Written, durably, before each registration: a session in the store that is not listed here belongs to a
//! process that never had this directory.
//!
//! The file has two places, written in turn and in place: a torn write leaves the other one, and a full disk has
//! nothing to refuse.

use std::io;
use std::path::Path;

use felix_cluster::registration::Past;
use felix_cluster::state::Revision;
use felix_protocol::ids::SessionId;
use felix_storage::disk::{Disk, DiskFile, OpenMode, read_whole, write_all_at};
use serde::{Deserialize, Serialize};

/// The file's name in the data directory.
pub(crate) const FILE_NAME: &str = "control.past";

/// One place: a line of text, filled up with spaces.
const PLACE_BYTES: usize = 4096;
/// In hexadecimal, at the start of a place.
const SUM_BYTES: usize = 8;

/// The past with the highest revision ever seen.
#[derive(Clone, Debug, Default, PartialEq, Eq)]
pub(crate) struct Memory {
    pub(crate) past: Past,
    pub(crate) revision: Revision,
    /// How often it was written.
    turn: u64,
}

#[derive(Serialize, Deserialize)]
struct Stored {
    turn: u64,
    cluster: Option<String>,
    revision: Revision,
    /// Hexadecimal, as in the store.
    sessions: Vec<String>,
}

impl Memory {
    /// Reads it; a directory without the file remembers nothing.
    pub(crate) fn read<D: Disk>(disk: &D, directory: &Path) -> io::Result<Memory> {
        let path = directory.join(FILE_NAME);
        let bytes = match read_whole(disk, &path, 2 * PLACE_BYTES as u64) {
            Ok(bytes) => bytes,
            Err(error) if error.kind() == io::ErrorKind::NotFound => return Ok(Memory::default()),
            Err(error) => return Err(error),
        };
        // A file whose very first write was torn has nothing to remember: no session was tried before it.
        let empty = bytes.len() < 2 * PLACE_BYTES;
        let newest = bytes.chunks(PLACE_BYTES).filter_map(parse).max_by_key(|memory| memory.turn);
        match newest {
            Some(memory) => Ok(memory),
            None if empty => Ok(Memory::default()),
            None => Err(io::Error::new(io::ErrorKind::InvalidData, "neither of its two places can be read")),
        }
    }

    /// Writes it down, durably.
    pub(crate) fn write<D: Disk>(&mut self, disk: &D, directory: &Path) -> io::Result<()> {
        self.turn += 1;
        let stored = Stored {
            turn: self.turn,
            cluster: self.past.cluster.clone(),
            revision: self.revision,
            sessions: self.past.sessions.iter().map(|session| format!("{:016x}", session.0)).collect(),
        };
        let text = serde_json::to_string(&stored).map_err(io::Error::other)?;
        let mut place = format!("{:08x}{text}", crc32c::crc32c(text.as_bytes())).into_bytes();
        if place.len() >= PLACE_BYTES {
            return Err(io::Error::new(io::ErrorKind::InvalidData, "too many sessions to remember"));
        }
        place.resize(PLACE_BYTES - 1, b' ');
        place.push(b'\n');
        let file = disk.open(&directory.join(FILE_NAME), OpenMode::Create)?;
        let at = if self.turn.is_multiple_of(2) { PLACE_BYTES as u64 } else { 0 };
        write_all_at(&file, &place, at)?;
        let first = self.turn <= 2;
        if first && self.turn == 1 {
            // The other place too, so that its first use needs no room either.
            write_all_at(&file, &vec![b' '; PLACE_BYTES], PLACE_BYTES as u64)?;
        }
        file.sync_data()?;
        if first { disk.sync_dir(directory) } else { Ok(()) }
    }
}

fn parse(place: &[u8]) -> Option<Memory> {
    let text = std::str::from_utf8(place).ok()?.trim_end();
    let (sum, text) = text.split_at_checked(SUM_BYTES)?;
    if u32::from_str_radix(sum, 16).ok()? != crc32c::crc32c(text.as_bytes()) {
        return None;
    }
    let stored: Stored = serde_json::from_str(text).ok()?;
    let sessions = stored.sessions.iter().map(|text| u64::from_str_radix(text, 16).map(SessionId));
    let sessions = sessions.collect::<Result<Vec<SessionId>, _>>().ok()?;
    let past = Past { cluster: stored.cluster, sessions, unnamed: false };
    Some(Memory { past, revision: stored.revision, turn: stored.turn })
}

#[cfg(test)]
mod tests {
    use std::path::PathBuf;

    use felix_storage::disk::mem::{Crash, MemDisk};

    use super::*;

    fn root() -> PathBuf {
        PathBuf::from("/")
    }

    fn memory(number: u64) -> Memory {
        let sessions = vec![SessionId(number), SessionId(u64::MAX)];
        let past = Past { cluster: Some("c".to_owned()), sessions, unnamed: false };
        Memory { past, revision: Revision(number), turn: 0 }
    }

    #[test]
    fn what_was_written_is_read_after_a_power_cut() {
        let disk = MemDisk::new();
        assert_eq!(Memory::read(&disk, &root()).unwrap(), Memory::default());
        let mut written = memory(7);
        for _ in 0..5 {
            written.write(&disk, &root()).unwrap();
            let after = disk.crash(Crash::LoseUnsynced);
            assert_eq!(Memory::read(&after, &root()).unwrap(), written);
        }
    }

    #[test]
    fn a_write_that_fails_or_tears_leaves_the_one_before() {
        for seed in 0..200 {
            let disk = MemDisk::new();
            let mut before = memory(7);
            for _ in 0..=seed % 3 {
                before.write(&disk, &root()).unwrap();
            }
            let mut after = Memory { turn: before.turn, ..memory(8) };
            disk.fail_sync_after(0);
            assert!(after.write(&disk, &root()).is_err());
            let disk = disk.crash(Crash::Random(seed));
            let found = Memory::read(&disk, &root()).unwrap();
            assert!(found == before || found == after, "{found:?}");
        }
    }

    #[test]
    fn damage_is_told() {
        let disk = MemDisk::new();
        memory(7).write(&disk, &root()).unwrap();
        disk.put(&root().join(FILE_NAME), &[b'x'; 2 * PLACE_BYTES]).unwrap();
        assert!(Memory::read(&disk, &root()).is_err());
    }
}
