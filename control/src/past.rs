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

use felix_cluster::recovery::{self, Place, Verdict, WentBack};
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
    /// Which store that was, where it is not the directory's own.
    pub(crate) store: Option<u64>,
    /// In which of its histories.
    pub(crate) epoch: u64,
    /// Why there is nothing to remember, where that is so: the file is missing or says nothing.
    pub(crate) lost: Option<&'static str>,
    /// How often it was written.
    turn: u64,
}

#[derive(Serialize, Deserialize)]
struct Stored {
    turn: u64,
    cluster: Option<String>,
    revision: Revision,
    #[serde(default, skip_serializing_if = "Option::is_none")]
    store: Option<u64>,
    #[serde(default)]
    epoch: u64,
    /// Hexadecimal, as in the store.
    sessions: Vec<String>,
    /// The memory was lost once, so that the store may have gone back then.
    #[serde(default, skip_serializing_if = "std::ops::Not::not")]
    unverified: bool,
}

impl Memory {
    /// Takes in where the store is now: refused where that is not where it was left, unless an operator has begun a new
    /// history of it since.
    pub(crate) fn meet(&mut self, found: &Place) -> Result<Verdict, WentBack> {
        let verdict = recovery::judge(&self.seen(), found)?;
        (self.epoch, self.store, self.revision) = (found.epoch, found.store, found.revision);
        Ok(verdict)
    }

    fn seen(&self) -> Place {
        Place { epoch: self.epoch, store: self.store, revision: self.revision }
    }

    /// Reads it. A directory whose file is missing, or whose file says nothing, remembers nothing: what was known
    /// of the store is lost, which must not keep the broker from its records.
    pub(crate) fn read<D: Disk>(disk: &D, directory: &Path) -> io::Result<Memory> {
        let path = directory.join(FILE_NAME);
        let bytes = match read_whole(disk, &path, 2 * PLACE_BYTES as u64) {
            Ok(bytes) => bytes,
            Err(error) if error.kind() == io::ErrorKind::NotFound => {
                return Ok(Memory::lost("it is missing"));
            }
            Err(error) if error.kind() == io::ErrorKind::IsADirectory => {
                return Ok(Memory::lost("a folder is in its place"));
            }
            // Longer than it ever is.
            Err(error) if error.kind() == io::ErrorKind::InvalidData => Vec::new(),
            Err(error) => return Err(error),
        };
        let newest = bytes.chunks(PLACE_BYTES).filter_map(parse).max_by_key(|memory| memory.turn);
        Ok(newest.unwrap_or_else(|| Memory::lost("neither of its two places can be read")))
    }

    fn lost(why: &'static str) -> Memory {
        Memory { lost: Some(why), ..Memory::default() }
    }

    /// Writes it down, durably.
    pub(crate) fn write<D: Disk>(&mut self, disk: &D, directory: &Path) -> io::Result<()> {
        self.turn += 1;
        let stored = Stored {
            turn: self.turn,
            cluster: self.past.cluster.clone(),
            revision: self.revision,
            store: self.store,
            epoch: self.epoch,
            sessions: self.past.sessions.iter().map(|session| format!("{:016x}", session.0)).collect(),
            unverified: self.past.unverified,
        };
        let text = serde_json::to_string(&stored).map_err(io::Error::other)?;
        let mut place = format!("{:08x}{text}", crc32c::crc32c(text.as_bytes())).into_bytes();
        if place.len() >= PLACE_BYTES {
            return Err(io::Error::new(io::ErrorKind::InvalidData, "too many sessions to remember"));
        }
        place.resize(PLACE_BYTES - 1, b' ');
        place.push(b'\n');
        let path = directory.join(FILE_NAME);
        let file = match disk.open(&path, OpenMode::Create) {
            // A folder in the file's place was put there by nobody of ours.
            Err(error) if error.kind() == io::ErrorKind::IsADirectory => {
                disk.remove_dir_all(&path)?;
                disk.open(&path, OpenMode::Create)?
            }
            opened => opened?,
        };
        // What is longer was never ours.
        if file.len()? > 2 * PLACE_BYTES as u64 {
            file.set_len(2 * PLACE_BYTES as u64)?;
        }
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
    let past = Past { cluster: stored.cluster, sessions, unverified: stored.unverified, ..Past::default() };
    let Stored { turn, revision, store, epoch, .. } = stored;
    Some(Memory { past, revision, store, epoch, lost: None, turn })
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
        let past = Past { cluster: Some("c".to_owned()), sessions, ..Past::default() };
        Memory { past, revision: Revision(number), store: Some(number), epoch: number, ..Memory::default() }
    }

    #[test]
    fn what_was_written_is_read_after_a_power_cut() {
        let disk = MemDisk::new();
        assert!(Memory::read(&disk, &root()).unwrap().lost.is_some());
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
    fn a_file_that_says_nothing_is_told_and_written_anew() {
        let path = root().join(FILE_NAME);
        for content in [&b""[..], b"x", &[b'x'; 2 * PLACE_BYTES], &[0; 3 * PLACE_BYTES]] {
            let disk = MemDisk::new();
            memory(7).write(&disk, &root()).unwrap();
            disk.put(&path, content).unwrap();
            let mut found = Memory::read(&disk, &root()).unwrap();
            assert!(found.lost.is_some());
            assert_eq!(found.revision, Revision(0));
            found.write(&disk, &root()).unwrap();
            assert_eq!(Memory::read(&disk, &root()).unwrap().lost, None);
        }
        let disk = MemDisk::new();
        disk.create_dir(&path).unwrap();
        let mut found = Memory::read(&disk, &root()).unwrap();
        assert!(found.lost.is_some());
        found.write(&disk, &root()).unwrap();
        assert_eq!(Memory::read(&disk, &root()).unwrap().lost, None);
    }

    #[test]
    fn half_a_file_still_remembers() {
        let disk = MemDisk::new();
        let mut written = memory(7);
        for _ in 0..3 {
            written.write(&disk, &root()).unwrap();
        }
        let path = root().join(FILE_NAME);
        let whole = disk.content(&path).unwrap();
        disk.put(&path, &whole[..PLACE_BYTES]).unwrap();
        let found = Memory::read(&disk, &root()).unwrap();
        assert!(found.lost.is_none() && found.past.sessions == written.past.sessions);
    }
}
