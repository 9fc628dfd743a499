//! The durable table of all copies of a data directory: what must survive about each copy beside its log.
//!
//! One file for all of them, so that a failover of 10,000 partitions costs a handful of flushes. Changes are
//! staged in memory and appended together; callers at the same time share a flush. When the file has grown to
//! several times what it says, it is written anew.
//!
//! A full disk must not stop a start: opening needs no space, and some is kept in reserve for changes.

use std::collections::{BTreeMap, BTreeSet};
use std::io;
use std::path::Path;
use std::sync::Arc;

use felix_protocol::ids::{Generation, LogId, Offset, PartitionId};
use parking_lot::Mutex;

use crate::data_dir::{DataDir, SIDE_FILE_LIMIT};
use crate::disk::{self, Disk, DiskFile, OpenMode, write_all_at};
use crate::error::{Doing, StorageError};
use crate::layout;

mod frame;

use frame::{Change, UNIT};

/// The file grows by so much at once, in zeros: an overwrite is cheaper to flush than a growing file, and what
/// is written already needs no space on a full disk.
/// Less in tests of this package, which make the file thousands of times.
const RESERVE: usize = if cfg!(test) { 4 << 10 } else { 64 << 10 };

/// What must be durable about one copy.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub struct Replica {
    /// Identity of the copy.
    pub log_id: LogId,
    /// The generation it accepts: the fence.
    pub accepted: Generation,
    /// The mark, persisted lazily, never above what is flushed.
    pub mark: Offset,
    /// The generation at which that mark was learned.
    pub mark_generation: Generation,
    /// First offset that readers may have.
    pub log_start: Offset,
    /// Everything below was flushed: recovery trusts it, and takes damage there for damage.
    pub synced: Offset,
    /// Closed properly: the files can be trusted without reading them. Cleared, durably, before the log is
    /// written again.
    pub clean: bool,
    /// Counts bytes that are not flushed in answers, mark or acknowledgements.
    pub unsynced: bool,
    /// Was found to hold something else than its leader, or damage: it confirms nothing before it is begun anew, although
    /// nothing else in the table or in the log may say so.
    pub diverged: bool,
}

/// Names a staged change: [`Replicas::commit`] makes it and all before it durable.
#[derive(Clone, Copy, Debug, PartialEq, Eq, PartialOrd, Ord)]
pub struct Ticket(u64);

/// What opening the table found.
#[derive(Clone, Debug, Default, PartialEq, Eq)]
pub struct ReplicasReport {
    /// Changes read.
    pub records: usize,
    /// Commits that are unreadable although they were written: not a torn tail but damage. What they said is lost.
    pub damaged: usize,
    /// Copies of which nothing was read that is newer than the damage: what they say may be outdated.
    pub outdated: Vec<PartitionId>,
    /// The boot id that the last user of the table noted.
    pub boot_id: Option<u128>,
    /// Why there is no table although the directory holds copies: none of them can vouch for itself.
    pub lost: Option<&'static str>,
}

/// The table. Any number of threads may use it.
pub struct Replicas<D: Disk> {
    dir: DataDir<D>,
    staged: Mutex<Staged>,
    /// Held during a write and flush; whoever waits for it usually finds its change durable then.
    file: Mutex<TableFile<D>>,
}

#[derive(Default)]
struct Staged {
    rows: BTreeMap<PartitionId, Replica>,
    boot_id: Option<u128>,
    /// Rows that changed since the last commit; `None`: removed.
    changed: BTreeMap<PartitionId, Option<Replica>>,
    boot_changed: bool,
    /// Number of the newest staged change.
    newest: u64,
}

struct TableFile<D: Disk> {
    /// `None` until the first write, when there was no file.
    file: Option<Arc<D::File>>,
    /// Where the next frame goes.
    at: u64,
    /// The file's length.
    len: u64,
    sequence: u64,
    /// Changes up to this number are durable.
    durable: u64,
    failed: bool,
    /// Leftovers of an unfinished frame may follow: write the file anew before anything else, if possible.
    stale: bool,
}

impl<D: Disk> Replicas<D> {
    /// Reads the table of a data directory. A missing one is empty; one that says nothing is put aside and begun
    /// anew, since losing one file must not keep the broker from its records.
    pub fn open(dir: &DataDir<D>) -> Result<(Replicas<D>, ReplicasReport), StorageError> {
        let path = dir.path().join(layout::REPLICAS);
        let mut lost = Some("it is missing");
        let (mut content, mut file) = match disk::read_whole(dir.disk(), &path, 16 * SIDE_FILE_LIMIT) {
            Ok(content) => {
                let file = dir.disk().open(&path, OpenMode::Write).doing("open", &path)?;
                lost = content.is_empty().then_some("it is empty");
                (content, Some(Arc::new(file)))
            }
            Err(error) if error.kind() == io::ErrorKind::NotFound => (Vec::new(), None),
            Err(error) if error.kind() == io::ErrorKind::IsADirectory => {
                dir.disk().remove_dir_all(&path).doing("remove", &path)?;
                lost = Some("a folder was in its place");
                (Vec::new(), None)
            }
            Err(error) => return Err(StorageError::io("read", &path, error)),
        };
        let mut staged = Staged::default();
        let mut report = ReplicasReport::default();
        let (at, sequence) = read_frames(&content, &mut staged, &mut report);
        if sequence == 0 && content.iter().any(|byte| *byte != 0) {
            lost = Some("nothing in it can be read; it was put aside");
            put_aside(dir, &path)?;
            (content, file) = (Vec::new(), None);
        }
        // Without copies there is nothing that it should have said.
        report.lost = lost
            .or(Some("there is nothing in it"))
            .filter(|_| sequence == 0 && dir.partitions().is_ok_and(|found| !found.is_empty()));
        // A boot that was noted before the damage may not be the last.
        report.boot_id = staged.boot_id.filter(|_| report.damaged == 0);
        let table = TableFile {
            stale: file.is_some(),
            file,
            at: at as u64,
            len: content.len() as u64,
            sequence,
            durable: 0,
            failed: false,
        };
        let replicas = Replicas { dir: dir.clone(), staged: Mutex::new(staged), file: Mutex::new(table) };
        // What reads back may still not be on the disk (a flush that failed is forgotten by the page cache),
        // so it is written anew before anybody relies on it. Not what is damaged, though: that would be forgotten
        // if the process ended before the new identities are durable, which the next commit writes with the rest.
        if report.damaged == 0 && report.lost.is_none() {
            replicas.refresh(&mut replicas.file.lock())?;
        }
        Ok((replicas, report))
    }

    /// One copy, as last staged.
    pub fn get(&self, partition: &PartitionId) -> Option<Replica> {
        self.staged.lock().rows.get(partition).copied()
    }

    /// All copies, as last staged, in order.
    pub fn all(&self) -> Vec<(PartitionId, Replica)> {
        self.staged.lock().rows.iter().map(|(partition, replica)| (*partition, *replica)).collect()
    }

    /// Changes one copy's row in memory; [`Replicas::commit`] makes it durable.
    pub fn stage(&self, partition: PartitionId, replica: Replica) -> Ticket {
        let mut staged = self.staged.lock();
        if staged.rows.insert(partition, replica) != Some(replica) {
            staged.changed.insert(partition, Some(replica));
            staged.newest += 1;
        }
        Ticket(staged.newest)
    }

    /// Changes one copy's row by a function, in memory and as one step; nothing happens when it has no row.
    pub fn stage_with(&self, partition: &PartitionId, change: impl FnOnce(&mut Replica)) -> Ticket {
        let mut staged = self.staged.lock();
        if let Some(row) = staged.rows.get_mut(partition) {
            let before = *row;
            change(row);
            let after = *row;
            if after != before {
                staged.changed.insert(*partition, Some(after));
                staged.newest += 1;
            }
        }
        Ticket(staged.newest)
    }

    /// Removes one copy's row in memory.
    pub fn stage_removal(&self, partition: &PartitionId) -> Ticket {
        let mut staged = self.staged.lock();
        if staged.rows.remove(partition).is_some() {
            staged.changed.insert(*partition, None);
            staged.newest += 1;
        }
        Ticket(staged.newest)
    }

    /// Notes this boot of the machine in memory.
    pub fn stage_boot_id(&self, boot_id: u128) -> Ticket {
        let mut staged = self.staged.lock();
        if staged.boot_id != Some(boot_id) {
            staged.boot_id = Some(boot_id);
            staged.boot_changed = true;
            staged.newest += 1;
        }
        Ticket(staged.newest)
    }

    /// Waits until everything staged up to `ticket` is durable; callers at the same time share one flush.
    /// After [`StorageError::Full`] the changes stay staged and a later call tries again; after any other
    /// error the table is [`StorageError::Poisoned`] for good.
    pub fn commit(&self, ticket: Ticket) -> Result<(), StorageError> {
        let mut file = self.file.lock();
        if file.durable >= ticket.0 {
            return Ok(());
        }
        if file.failed {
            return Err(StorageError::Poisoned);
        }
        if file.stale {
            self.refresh(&mut file)?;
            if file.durable >= ticket.0 {
                return Ok(());
            }
        }
        let (changes, newest) = {
            let mut staged = self.staged.lock();
            (staged.take_changes(), staged.newest)
        };
        match self.append(&mut file, &changes) {
            Ok(()) => {
                file.durable = newest;
                let rows = self.staged.lock().rows.len();
                let grown = file.at > (4 * rows as u64 * UNIT as u64).max(16 * RESERVE as u64);
                if grown {
                    self.refresh(&mut file)?;
                }
                Ok(())
            }
            Err(error) => {
                self.staged.lock().put_back(&changes);
                file.failed = !matches!(error, StorageError::Full { .. });
                Err(error)
            }
        }
    }

    /// Whether a write or flush failed for good: nothing can be committed any more.
    pub fn is_poisoned(&self) -> bool {
        self.file.lock().failed
    }

    fn append(&self, table: &mut TableFile<D>, changes: &[Change]) -> Result<(), StorageError> {
        let path = self.dir.path().join(layout::REPLICAS);
        let made = table.file.is_none();
        let file = match &table.file {
            Some(file) => file.clone(),
            None => {
                let file = self.dir.disk().open(&path, OpenMode::Create).doing("create", &path)?;
                table.file.insert(Arc::new(file)).clone()
            }
        };
        let mut bytes = frame::encode(table.sequence + 1, changes);
        let used = bytes.len() as u64;
        if table.at + used > table.len {
            let with_reserve = (table.at + used + RESERVE as u64).next_multiple_of(RESERVE as u64);
            bytes.resize(usize::try_from(with_reserve - table.at).unwrap_or(bytes.len()), 0);
        }
        write_all_at(&*file, &bytes, table.at).doing("write", &path)?;
        file.sync_data().doing("flush", &path).inspect_err(|_| table.failed = true)?;
        if made {
            self.dir.disk().sync_dir(self.dir.path()).doing("flush", self.dir.path())?;
        }
        table.len = table.len.max(table.at + bytes.len() as u64);
        table.at += used;
        table.sequence += 1;
        Ok(())
    }

    /// Writes the whole table to a new file. On a full disk the old one stays in use.
    fn refresh(&self, table: &mut TableFile<D>) -> Result<(), StorageError> {
        if table.file.is_none() {
            table.stale = false;
            return Ok(());
        }
        let (changes, newest) = {
            let staged = self.staged.lock();
            let rows = staged.rows.iter().map(|(partition, row)| Change::Row(*partition, *row));
            let boot = staged.boot_id.map(Change::Boot);
            (rows.chain(boot).collect::<Vec<_>>(), staged.newest)
        };
        let mut bytes = frame::encode(table.sequence + 1, &changes);
        let used = bytes.len();
        bytes.resize((used + RESERVE).next_multiple_of(RESERVE), 0);
        let path = self.dir.path().join(layout::REPLICAS);
        match layout::write_durably(self.dir.disk(), self.dir.path(), layout::REPLICAS, &bytes) {
            Ok(()) => {}
            Err(StorageError::Full { .. }) => {
                let unfinished = format!("{}{}", layout::REPLICAS, layout::UNFINISHED);
                let _ = self.dir.disk().remove_file(&self.dir.path().join(unfinished));
                return Ok(());
            }
            Err(error) => {
                table.failed = true;
                return Err(error);
            }
        }
        table.file = Some(Arc::new(self.dir.disk().open(&path, OpenMode::Write).doing("open", &path)?));
        table.at = used as u64;
        table.len = bytes.len() as u64;
        table.sequence += 1;
        table.durable = newest;
        table.stale = false;
        let mut staged = self.staged.lock();
        if staged.newest == newest {
            staged.changed.clear();
            staged.boot_changed = false;
        }
        Ok(())
    }
}

impl Staged {
    fn take_changes(&mut self) -> Vec<Change> {
        let boot = self.boot_changed.then_some(self.boot_id).flatten().map(Change::Boot);
        self.boot_changed = false;
        std::mem::take(&mut self.changed)
            .into_iter()
            .map(|(partition, row)| match row {
                Some(row) => Change::Row(partition, row),
                None => Change::Removal(partition),
            })
            .chain(boot)
            .collect()
    }

    /// Changes that did not become durable stay staged, unless newer ones were staged meanwhile.
    fn put_back(&mut self, changes: &[Change]) {
        for change in changes {
            match change {
                Change::Row(partition, row) => {
                    self.changed.entry(*partition).or_insert(Some(*row));
                }
                Change::Removal(partition) => {
                    self.changed.entry(*partition).or_insert(None);
                }
                Change::Boot(_) => self.boot_changed = true,
            }
        }
    }
}

/// Keeps what nobody can read for whoever wants to look at it.
fn put_aside<D: Disk>(dir: &DataDir<D>, path: &Path) -> Result<(), StorageError> {
    let aside = dir.path().join(format!("{}{}", layout::REPLICAS, layout::ASIDE));
    let disk = dir.disk();
    match disk.rename(path, &aside) {
        Err(error) if layout::is_folder(&error) => {
            disk.remove_dir_all(&aside).doing("remove", &aside)?;
            disk.rename(path, &aside).doing("rename", path)?;
        }
        renamed => renamed.doing("rename", path)?,
    }
    disk.sync_dir(dir.path()).doing("flush", dir.path())
}

/// The rows that the bytes of a table say, without opening it.
pub(crate) fn rows(content: &[u8]) -> (Vec<(PartitionId, Replica)>, ReplicasReport) {
    let mut staged = Staged::default();
    let mut report = ReplicasReport::default();
    read_frames(content, &mut staged, &mut report);
    report.boot_id = staged.boot_id.filter(|_| report.damaged == 0);
    (staged.rows.into_iter().collect(), report)
}

/// Takes in all frames; returns where the next one goes and the last sequence.
fn read_frames(content: &[u8], staged: &mut Staged, report: &mut ReplicasReport) -> (usize, u64) {
    let (mut at, mut end, mut sequence) = (0, 0, 0);
    let mut written_since = BTreeSet::new();
    while at + UNIT <= content.len() {
        let Some((number, changes, len)) = frame::decode(&content[at..]).filter(|frame| frame.0 > sequence)
        else {
            // Usually the zeros behind the last frame; whatever stands behind them decides.
            at += UNIT;
            continue;
        };
        if at > end {
            report.damaged += 1;
            written_since.clear();
        }
        for change in changes {
            report.records += 1;
            match change {
                Change::Row(partition, row) => {
                    staged.rows.insert(partition, row);
                    written_since.insert(partition);
                }
                Change::Removal(partition) => {
                    staged.rows.remove(&partition);
                }
                Change::Boot(id) => staged.boot_id = Some(id),
            }
        }
        sequence = number;
        at += len;
        end = at;
    }
    if frame::was_whole(content, end) {
        report.damaged += 1;
        written_since.clear();
    }
    if report.damaged > 0 {
        report.outdated =
            staged.rows.keys().filter(|partition| !written_since.contains(partition)).copied().collect();
    }
    (end, sequence)
}

#[cfg(test)]
mod tests;
