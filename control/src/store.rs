//! The control store, as far as anything here cares: a linearizable register of keys with revisions.
//!
//! Watches only wake; every decision is a transaction that compares the revisions it was decided from. The
//! contract is the intersection of what etcd and one local file can promise, so that nothing above this line
//! knows which of the two it has.

use std::fmt;
use std::future::Future;
use std::sync::Arc;
use std::time::Duration;

use felix_cluster::decision::{Change, Decision};
use felix_cluster::state::Revision;
use thiserror::Error;

pub mod embedded;
pub mod etcd;
mod judge;
pub mod memory;

/// Why a store did not answer.
#[derive(Clone, Debug, PartialEq, Eq, Error)]
pub enum StoreError {
    /// Nothing happened, and nothing is known; it may work later.
    #[error("the control store is not available: {0}")]
    Unavailable(String),
    /// A transaction may or may not have happened. Never retried blindly: read back and compare.
    #[error("the control store did not say whether it wrote: {0}")]
    Unknown(String),
    /// The wanted revision is not kept any more: list anew.
    #[error("the control store no longer keeps revision {0}")]
    Compacted(Revision),
    /// What it holds cannot be read.
    #[error("the control store is damaged: {0}")]
    Damaged(String),
    /// It cannot be trusted any more in this process's life: bytes that it was told to keep may be lost.
    #[error("the control store failed: {0}")]
    Failed(String),
    /// It is older than what it has told before, or another one. What was decided since may be lost, so nothing
    /// more is decided.
    #[error(
        "the control store went back: it is {found} now and was {seen} before; it was restored from a backup, or the \
         endpoints lead to another store"
    )]
    WentBack {
        /// The furthest that was seen.
        seen: Position,
        /// What it says now.
        found: Position,
    },
}

/// Which store answers, and how far it has come. Neither changes for the worse in the life of a cluster.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub struct Position {
    /// Which store: etcd's cluster id; 0 for the embedded one, which its directory names.
    pub store: u64,
    /// Its newest revision.
    pub revision: Revision,
}

impl fmt::Display for Position {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        write!(f, "store {:016x} at revision {}", self.store, self.revision)
    }
}

impl Position {
    /// Takes in what an answer says; refused where that is less than `self` (of before the request was sent).
    fn follow(&mut self, found: Position) -> Result<(), StoreError> {
        if found.store != self.store || found.revision < self.revision {
            return Err(StoreError::WentBack { seen: *self, found });
        }
        self.revision = found.revision;
        Ok(())
    }
}

/// A key's value with its revision.
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct Entry {
    /// The value.
    pub value: Vec<u8>,
    /// When it was written.
    pub revision: Revision,
}

/// A part of a prefix, read at one revision.
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct Page {
    /// Keys with their values, in order.
    pub entries: Vec<Change>,
    /// The revision the whole listing is read at.
    pub revision: Revision,
    /// Whether more follow.
    pub more: bool,
}

/// Where a page begins.
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct After {
    /// The last key of the page before.
    pub key: String,
    /// That page's revision.
    pub revision: Revision,
}

/// What a transaction did.
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct Committed {
    /// Its revision; where it wrote nothing, the store's at that moment, or a later one.
    pub revision: Revision,
    /// Which decisions landed, in their order.
    pub landed: Vec<bool>,
}

/// What an exchange did and found.
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct Exchanged {
    /// What became of its decision.
    pub committed: Committed,
    /// The keys that were asked for, in their order, as they are after it.
    pub found: Vec<Option<Entry>>,
}

/// The changes of one transaction.
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct Batch {
    /// Its revision.
    pub revision: Revision,
    /// What it wrote.
    pub changes: Vec<Change>,
}

impl Batch {
    /// What a watch of `prefix` is told of it.
    fn narrowed(self: &Arc<Batch>, prefix: &str) -> Arc<Batch> {
        let concerns = |change: &&Change| change.key.starts_with(prefix);
        if self.changes.iter().all(|change| concerns(&change)) {
            return Arc::clone(self);
        }
        let changes = self.changes.iter().filter(concerns).cloned().collect();
        Arc::new(Batch { revision: self.revision, changes })
    }
}

/// How much one transaction may carry.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub struct BatchLimit {
    /// Decisions.
    pub decisions: usize,
    /// Compares and writes, over all decisions.
    pub operations: usize,
    /// Bytes of values.
    pub bytes: usize,
}

/// A control store. One caller at a time; keys begin with `/` and are spelled as in the key table.
pub trait Store {
    /// Its watches.
    type Watch: Watch;

    /// Reads one key, linearizably.
    fn get(&mut self, key: &str) -> impl Future<Output = Result<Option<Entry>, StoreError>>;

    /// Reads a prefix in pages of at most `limit` keys, all at the revision of the first page.
    fn list(
        &mut self,
        prefix: &str,
        after: Option<&After>,
        limit: usize,
    ) -> impl Future<Output = Result<Page, StoreError>>;

    /// Watches a prefix for transactions after `after`.
    fn watch(
        &mut self,
        prefix: &str,
        after: Revision,
    ) -> impl Future<Output = Result<Self::Watch, StoreError>>;

    /// Carries out several independent decisions at once, each if its own compares hold at the state *before* the
    /// transaction; one that loses fails none of the others. One that writes what an earlier one of them writes
    /// loses, whatever became of the earlier one.
    fn commit(&mut self, decisions: &[Decision]) -> impl Future<Output = Result<Committed, StoreError>>;

    /// Carries out one decision and reads a few keys in the same transaction: as they are right after it, whether it
    /// landed or not.
    fn exchange(
        &mut self,
        decision: &Decision,
        reads: &[&str],
    ) -> impl Future<Output = Result<Exchanged, StoreError>>;

    /// How much one transaction may carry.
    fn batch_limit(&self) -> BatchLimit;

    /// How far the answers of this handle have shown the store to have come. To be remembered over restarts: a store
    /// that is behind it is not to be believed.
    fn position(&self) -> Position;

    /// Lets go of everything, durably.
    fn close(&mut self) -> impl Future<Output = Result<(), StoreError>>;
}

/// Ways to one control store: each thread makes its own, on its own runtime.
pub trait Connect: Send + Sync + 'static {
    /// What it leads to.
    type Store: Store;

    /// A new handle, on which one attempt at one place takes at most `attempt`: then the next place is tried.
    fn connect(&self, attempt: Duration) -> impl Future<Output = Result<Self::Store, StoreError>>;
}

/// A running watch.
pub trait Watch {
    /// The next transaction. Every revision that a commit or an exchange of this process has returned is reached by
    /// every watch of it, without changes where nothing under the prefix was written. An error ends the watch: list
    /// anew.
    ///
    /// Cancel-safe: a batch is lost only if it was returned.
    fn next(&mut self) -> impl Future<Output = Result<Arc<Batch>, StoreError>>;
}

/// Reads a whole prefix, page by page, starting over where the store forgot the revision in between.
pub async fn list_all<S: Store>(store: &mut S, prefix: &str) -> Result<(Vec<Change>, Revision), StoreError> {
    const PAGE: usize = 1000;
    const TRIES: usize = 8;
    let mut tries = 0;
    'anew: loop {
        tries += 1;
        let mut all = Vec::new();
        let mut after: Option<After> = None;
        loop {
            let page = match store.list(prefix, after.as_ref(), PAGE).await {
                Ok(page) => page,
                Err(StoreError::Compacted(_)) if tries < TRIES => continue 'anew,
                Err(error) => return Err(error),
            };
            let revision = page.revision;
            all.extend(page.entries);
            if !page.more {
                return Ok((all, revision));
            }
            after = all.last().map(|last| After { key: last.key.clone(), revision });
        }
    }
}
