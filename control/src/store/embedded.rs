//! The control store of a single node: one file, `control.redb`, in the data directory.
//!
//! Only decisions touch the disk, each transaction with one flush, so an idle node writes nothing. The file
//! belongs to whoever holds the lock on the directory; that lock is also the node's lease. What a transaction did
//! after a failed *write* is read back from the file itself; after a failed *flush* nothing in the file can be
//! trusted, and the store fails for good (a flush is never retried).
//!
//! On a full disk a decision may still have to be made, above all the one that lets a node restart. For that some
//! room is kept in a file beside ([`RESERVE_NAME`]), which is given up when a write finds none.

use std::collections::VecDeque;
use std::panic::{AssertUnwindSafe, catch_unwind};
use std::path::{Path, PathBuf};
use std::sync::Arc;
use std::sync::atomic::{AtomicBool, Ordering};

use felix_cluster::decision::{Change, Decision, Write};
use felix_cluster::state::Revision;
use felix_storage::disk::{Disk, DiskFile, OpenMode, is_full};
use redb::{Builder, Database, DatabaseError, ReadableDatabase, TableDefinition, TableError};
use tokio::sync::mpsc;

use super::judge::judge;
use super::{
    After, Batch, BatchLimit, Committed, Entry, Exchanged, Page, Position, Store, StoreError, Watch,
};

mod backend;

use backend::Backend;

/// The file's name in the data directory.
pub const FILE_NAME: &str = "control.redb";

/// The file that keeps room for decisions on a full disk.
pub const RESERVE_NAME: &str = "control.reserve";
/// How much at least; more where the store itself is larger, since one transaction may rewrite all of it.
const RESERVE_BYTES: u64 = 1 << 20;

/// Enough for the upper levels of the tree; the view holds what is read often.
const CACHE_BYTES: usize = 1 << 20;
/// What the file is written by; a later layout gets another number.
const FORMAT: u64 = 1;
const FORMAT_KEY: &str = "format";
const REVISION_KEY: &str = "revision";
/// Key to revision (8 bytes, big-endian) and value.
const ENTRIES: TableDefinition<&str, &[u8]> = TableDefinition::new("entries");
const META: TableDefinition<&str, u64> = TableDefinition::new("meta");
/// Transactions kept for watches that begin in the past.
const HISTORY_BATCHES: usize = 64;
/// And their bytes.
const HISTORY_BYTES: usize = 64 << 10;
/// Transactions that a watch may lag behind before it has to list anew.
const WATCH_BATCHES: usize = 1024;

/// See the module.
pub struct Embedded<D: Disk> {
    disk: D,
    path: PathBuf,
    database: Option<Database>,
    flush_failed: Arc<AtomicBool>,
    revision: Revision,
    watchers: Vec<Watcher>,
    history: VecDeque<Arc<Batch>>,
    history_bytes: usize,
    /// Every transaction after this one is in the history.
    history_after: Revision,
}

struct Watcher {
    prefix: String,
    to: mpsc::Sender<Arc<Batch>>,
}

impl<D: Disk> Embedded<D> {
    /// Opens the store in `directory`, which the caller has locked; makes it when it is missing.
    pub fn open(disk: D, directory: &Path) -> Result<Self, StoreError> {
        let mut store = Embedded {
            disk,
            path: directory.join(FILE_NAME),
            database: None,
            flush_failed: Arc::default(),
            revision: Revision::ABSENT,
            watchers: Vec::new(),
            history: VecDeque::new(),
            history_bytes: 0,
            history_after: Revision::ABSENT,
        };
        store.database()?;
        store.make_reserve();
        Ok(store)
    }

    /// Keeps room for later, where there is some now. It is not missed on a disk that does not give it.
    fn make_reserve(&self) {
        let path = self.path.with_file_name(RESERVE_NAME);
        let wanted = self.disk.len_of(&self.path).unwrap_or(0).max(RESERVE_BYTES);
        if self.disk.len_of(&path).is_ok_and(|len| len >= wanted) {
            return;
        }
        let made = self.disk.open(&path, OpenMode::Create).and_then(|file| {
            file.reserve(wanted)?;
            file.set_len(wanted)
        });
        if let Err(error) = made {
            tracing::debug!(%error, "no room is kept for the control store");
            self.give_up_reserve();
        }
    }

    /// Gives the kept room to whoever needs it; whether there was some.
    fn give_up_reserve(&self) -> bool {
        self.disk.remove_file(&self.path.with_file_name(RESERVE_NAME)).is_ok()
    }

    /// The database, opened (again) if need be.
    fn database(&mut self) -> Result<&Database, StoreError> {
        if self.flush_failed.load(Ordering::Acquire) {
            return Err(StoreError::Failed(format!("a flush of {} failed", self.path.display())));
        }
        if self.database.is_none() {
            let loaded = match self.load() {
                // Opening may itself have to write.
                Err(StoreError::Unavailable(_)) if self.give_up_reserve() => self.load(),
                loaded => loaded,
            };
            let (database, revision) = loaded?;
            self.database = Some(database);
            self.revision = revision;
            // What was not told before is not told any more: watches begin anew.
            self.watchers.clear();
            self.history.clear();
            self.history_bytes = 0;
            self.history_after = revision;
        }
        self.database.as_ref().ok_or_else(|| StoreError::Unavailable("not open".to_owned()))
    }

    fn load(&self) -> Result<(Database, Revision), StoreError> {
        let shown = self.path.display();
        let unavailable = |error| StoreError::Unavailable(format!("{shown}: {error}"));
        let fresh = match self.disk.len_of(&self.path) {
            Ok(len) => len == 0,
            Err(error) if error.kind() == std::io::ErrorKind::NotFound => true,
            Err(error) if error.kind() == std::io::ErrorKind::IsADirectory => {
                return Err(StoreError::Damaged(format!("{shown} is a folder")));
            }
            Err(error) => return Err(unavailable(error)),
        };
        let file = self.disk.open(&self.path, OpenMode::Create).map_err(unavailable)?;
        let backend = Backend::new(file, Arc::clone(&self.flush_failed));
        let open = || {
            let mut builder = Builder::new();
            builder.set_cache_size(CACHE_BYTES);
            // The file is small; reading it whole at the start finds damage while it can still be told plainly.
            builder.set_check_integrity_on_open(!fresh);
            let database = builder.create_with_backend(backend).map_err(|error| self.opening(error))?;
            let revision = prepare(&database, fresh).map_err(|error| self.damaged(&error))?;
            Ok((database, revision))
        };
        // Some kinds of damage make the crate panic rather than answer.
        let opened = catch_unwind(AssertUnwindSafe(open))
            .unwrap_or_else(|_| Err(StoreError::Damaged(format!("{shown} makes no sense"))))?;
        if fresh && let Some(directory) = self.path.parent() {
            self.disk.sync_dir(directory).map_err(|error| {
                StoreError::Failed(format!("the name of {shown} could not be made durable: {error}"))
            })?;
        }
        Ok(opened)
    }

    fn opening(&self, error: DatabaseError) -> StoreError {
        if matches!(error, DatabaseError::DatabaseAlreadyOpen) {
            let shown = self.path.display();
            return StoreError::Unavailable(format!("{shown} is in use by another process"));
        }
        self.damaged(&redb::Error::from(error))
    }

    fn damaged(&self, error: &redb::Error) -> StoreError {
        let shown = self.path.display();
        if self.flush_failed.load(Ordering::Acquire) {
            return StoreError::Failed(format!("{shown}: {error}"));
        }
        let device = matches!(error, redb::Error::Io(io) if io.kind() != std::io::ErrorKind::InvalidData);
        if device || matches!(error, redb::Error::PreviousIo) {
            StoreError::Unavailable(format!("{shown}: {error}"))
        } else {
            StoreError::Damaged(format!("{shown}: {error}"))
        }
    }

    /// A read failed: the database is opened anew before the next access.
    fn give_up(&mut self, error: &redb::Error) -> StoreError {
        self.database = None;
        self.damaged(error)
    }

    fn tell(&mut self, changes: Vec<Change>) {
        let batch = Arc::new(Batch { revision: self.revision, changes });
        // A watch that does not keep up loses its sender, and learns from that to list anew.
        self.watchers.retain(|watcher| watcher.to.try_send(batch.narrowed(&watcher.prefix)).is_ok());
        self.history_bytes += weight(&batch);
        self.history.push_back(batch);
        while self.history.len() > HISTORY_BATCHES || self.history_bytes > HISTORY_BYTES {
            let Some(oldest) = self.history.pop_front() else { break };
            self.history_bytes -= weight(&oldest);
            self.history_after = oldest.revision;
        }
    }
}

fn weight(batch: &Batch) -> usize {
    let bytes = |change: &Change| change.key.len() + change.value.as_ref().map_or(0, Vec::len) + 64;
    batch.changes.iter().map(bytes).sum()
}

/// Makes the tables of a new file, checks those of an old one; returns the newest revision.
fn prepare(database: &Database, fresh: bool) -> Result<Revision, redb::Error> {
    if fresh {
        let txn = database.begin_write()?;
        {
            txn.open_table(ENTRIES)?;
            let mut meta = txn.open_table(META)?;
            meta.insert(FORMAT_KEY, FORMAT)?;
            meta.insert(REVISION_KEY, 0)?;
        }
        txn.commit()?;
        return Ok(Revision::ABSENT);
    }
    let txn = database.begin_read()?;
    let meta = match txn.open_table(META) {
        Ok(meta) => meta,
        // The process ended between making the file and its first transaction.
        Err(TableError::TableDoesNotExist(_)) => {
            drop(txn);
            return prepare(database, true);
        }
        Err(error) => return Err(error.into()),
    };
    let format = meta.get(FORMAT_KEY)?.map(|format| format.value());
    if format != Some(FORMAT) {
        let what = format!("its layout is {format:?}, this program knows {FORMAT}");
        return Err(redb::Error::Corrupted(what));
    }
    let revision = meta.get(REVISION_KEY)?.map_or(0, |revision| revision.value());
    Ok(Revision(revision))
}

fn split(stored: &[u8]) -> Result<Entry, redb::Error> {
    let (revision, value) = stored
        .split_first_chunk::<8>()
        .ok_or_else(|| redb::Error::Corrupted("a value has no revision".to_owned()))?;
    Ok(Entry { value: value.to_vec(), revision: Revision(u64::from_be_bytes(*revision)) })
}

fn read(database: &Database, key: &str) -> Result<Option<Entry>, redb::Error> {
    let entries = database.begin_read()?.open_table(ENTRIES)?;
    let found = entries.get(key)?;
    found.map(|stored| split(stored.value())).transpose()
}

fn page(
    database: &Database,
    prefix: &str,
    after: Option<&After>,
    limit: usize,
) -> Result<(Vec<Change>, bool), redb::Error> {
    use std::ops::Bound;
    let entries = database.begin_read()?.open_table(ENTRIES)?;
    let from = after.map_or(Bound::Included(prefix), |after| Bound::Excluded(after.key.as_str()));
    let mut found = Vec::new();
    for item in entries.range::<&str>((from, Bound::Unbounded))? {
        let (key, stored) = item?;
        if !key.value().starts_with(prefix) {
            break;
        }
        if found.len() == limit {
            return Ok((found, true));
        }
        let Entry { value, revision } = split(stored.value())?;
        found.push(Change { key: key.value().to_owned(), value: Some(value), revision });
    }
    Ok((found, false))
}

/// Which decisions land on what the file holds now.
fn judged(database: &Database, decisions: &[Decision]) -> Result<Vec<bool>, redb::Error> {
    let entries = database.begin_read()?.open_table(ENTRIES)?;
    judge(decisions, |key| entries.get(key)?.map(|stored| split(stored.value())).transpose())
}

/// Writes decisions that have won; returns what changed.
fn write(database: &Database, winners: &[&Decision], revision: Revision) -> Result<Vec<Change>, redb::Error> {
    let mut changes = Vec::new();
    let txn = database.begin_write()?;
    {
        let mut entries = txn.open_table(ENTRIES)?;
        let mut stored = Vec::new();
        for write in winners.iter().flat_map(|decision| decision.writes()) {
            let key = write.key().to_string();
            let value = match write {
                Write::Put(_, value) => {
                    stored.clear();
                    stored.extend_from_slice(&revision.0.to_be_bytes());
                    stored.extend_from_slice(value);
                    entries.insert(key.as_str(), stored.as_slice())?;
                    Some(value.clone())
                }
                Write::Delete(_) => {
                    if entries.remove(key.as_str())?.is_none() {
                        continue;
                    }
                    None
                }
            };
            changes.push(Change { key, value, revision });
        }
        txn.open_table(META)?.insert(REVISION_KEY, revision.0)?;
    }
    txn.commit()?;
    Ok(changes)
}

impl<D: Disk> Store for Embedded<D> {
    type Watch = EmbeddedWatch;

    async fn get(&mut self, key: &str) -> Result<Option<Entry>, StoreError> {
        read(self.database()?, key).map_err(|error| self.give_up(&error))
    }

    async fn list(&mut self, prefix: &str, after: Option<&After>, limit: usize) -> Result<Page, StoreError> {
        self.database()?;
        let revision = self.revision;
        // Older revisions are not kept, so a listing that a write interrupts begins anew.
        if let Some(after) = after
            && after.revision != revision
        {
            return Err(StoreError::Compacted(after.revision));
        }
        let (entries, more) =
            page(self.database()?, prefix, after, limit).map_err(|error| self.give_up(&error))?;
        Ok(Page { entries, revision, more })
    }

    async fn watch(&mut self, prefix: &str, after: Revision) -> Result<EmbeddedWatch, StoreError> {
        self.database()?;
        if after < self.history_after {
            return Err(StoreError::Compacted(after));
        }
        let (to, from) = mpsc::channel(WATCH_BATCHES);
        for batch in self.history.iter().filter(|batch| batch.revision > after) {
            // The history is shorter than the channel.
            to.try_send(batch.narrowed(prefix)).map_err(|_| StoreError::Compacted(after))?;
        }
        self.watchers.push(Watcher { prefix: prefix.to_owned(), to });
        Ok(EmbeddedWatch { from, told: after })
    }

    async fn commit(&mut self, decisions: &[Decision]) -> Result<Committed, StoreError> {
        let landed = judged(self.database()?, decisions).map_err(|error| self.give_up(&error))?;
        let winners: Vec<&Decision> =
            decisions.iter().zip(&landed).filter(|(_, landed)| **landed).map(|(won, _)| won).collect();
        if winners.iter().all(|winner| winner.writes().is_empty()) {
            return Ok(Committed { revision: self.revision, landed });
        }
        let revision = Revision(self.revision.0 + 1);
        match write(self.database()?, &winners, revision) {
            Ok(changes) => {
                self.revision = revision;
                self.tell(changes);
                Ok(Committed { revision, landed })
            }
            Err(error) => {
                self.database = None;
                let what = format!("{}: {error}", self.path.display());
                if self.flush_failed.load(Ordering::Acquire) {
                    return Err(StoreError::Failed(what));
                }
                if matches!(&error, redb::Error::Io(io) if is_full(io)) && self.give_up_reserve() {
                    tracing::warn!("the disk is full; the room kept for the control store is used up now");
                }
                Err(StoreError::Unknown(what))
            }
        }
    }

    async fn exchange(&mut self, decision: &Decision, reads: &[&str]) -> Result<Exchanged, StoreError> {
        let committed = self.commit(std::slice::from_ref(decision)).await?;
        let mut found = Vec::with_capacity(reads.len());
        for key in reads {
            // Nobody writes in between. What was written stays so where the reading fails.
            let read = self.get(key).await;
            found.push(read.map_err(|error| StoreError::Unknown(error.to_string()))?);
        }
        Ok(Exchanged { committed, found })
    }

    fn batch_limit(&self) -> BatchLimit {
        // Enough for a flush to weigh little, and little enough that what ten thousand partitions need in passing does not
        // stay with the allocator.
        BatchLimit { decisions: 4_096, operations: 4_096, bytes: 2 << 20 }
    }

    fn position(&self) -> Position {
        Position { store: 0, revision: self.revision }
    }

    async fn close(&mut self) -> Result<(), StoreError> {
        self.watchers.clear();
        let Some(database) = self.database.take() else { return Ok(()) };
        database.close().map_err(|error| self.opening(error))
    }
}

/// A watch of the embedded store.
pub struct EmbeddedWatch {
    from: mpsc::Receiver<Arc<Batch>>,
    told: Revision,
}

impl Watch for EmbeddedWatch {
    async fn next(&mut self) -> Result<Arc<Batch>, StoreError> {
        let batch = self.from.recv().await.ok_or(StoreError::Compacted(self.told))?;
        self.told = batch.revision;
        Ok(batch)
    }
}

#[cfg(test)]
mod tests;
