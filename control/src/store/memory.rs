//! A control store in memory, for the tests of everything above a store: many nodes share it, and it fails on request.
//!
//! It is as etcd is: revisions move by what others write too, old ones are kept until they are compacted, a
//! transaction that times out may be carried out later. It grants nothing that etcd does not, except that it needs
//! no network: what a network does is asked for, node by node, through [`Link`].
//!
//! Deliberately absent: threads, and time, unless delays are asked for.

use std::sync::Arc;

use felix_cluster::decision::{Change, Decision, Write};
use felix_cluster::state::Revision;
use parking_lot::Mutex;
use tokio::sync::watch;

use super::etcd::LIMIT;
use super::judge::judge;
use super::{
    After, Batch, BatchLimit, Committed, Entry, Exchanged, Page, Position, Store, StoreError, Watch,
};

mod link;
mod state;

pub use link::{Counts, Fate, Link, Reach};
pub use state::Snapshot;

use state::State;

/// The store itself; clones are the same store.
#[derive(Clone)]
pub struct Server {
    state: Arc<Mutex<State>>,
    /// Wakes the watches: something was written, or a link has changed.
    woken: watch::Sender<u64>,
}

impl Default for Server {
    fn default() -> Self {
        Server::new()
    }
}

impl Server {
    /// An empty store.
    pub fn new() -> Server {
        Server { state: Arc::new(Mutex::new(State::new())), woken: watch::Sender::new(0) }
    }

    /// A node's way to it.
    pub fn connect(&self) -> Memory {
        let link = Link::new(self.woken.clone());
        Memory { server: self.clone(), link, seen: None, limit: LIMIT }
    }

    /// The newest revision.
    pub fn revision(&self) -> Revision {
        self.state.lock().revision()
    }

    /// Somebody else writes something that is none of our keys: the revision moves, no watch tells of it.
    pub fn write_elsewhere(&self) {
        self.state.lock().write(&[]);
    }

    /// Forgets all history: listings of older revisions end, and so do watches that have not been told all of it.
    pub fn compact(&self) {
        self.state.lock().compact();
        self.wake();
    }

    /// Carries out what has been on its way for so long that nobody waits for it any more ([`Fate::Late`]).
    pub fn deliver(&self) {
        self.state.lock().deliver_all();
        self.wake();
    }

    /// Everything there is, for [`Server::restore`].
    pub fn snapshot(&self) -> Snapshot {
        self.state.lock().snapshot()
    }

    /// Goes back to an earlier state, as an operator's backup would.
    pub fn restore(&self, snapshot: &Snapshot) {
        self.state.lock().restore(snapshot);
        self.wake();
    }

    /// Everything is as before, but it says that it is another store.
    pub fn become_another(&self) {
        self.state.lock().become_another();
    }

    fn wake(&self) {
        self.woken.send_modify(|count| *count += 1);
    }
}

/// A node's handle. [`Memory::link`] says what becomes of its requests.
pub struct Memory {
    server: Server,
    link: Link,
    seen: Option<Position>,
    limit: BatchLimit,
}

impl Memory {
    /// The way between this node and the store.
    pub fn link(&self) -> Link {
        self.link.clone()
    }

    /// Takes less at once, to have transactions that share it filled up sooner.
    pub fn set_batch_limit(&mut self, limit: BatchLimit) {
        self.limit = limit;
    }

    /// A node that remembers a store from before its start.
    pub fn remember(&mut self, seen: Position) {
        self.seen = Some(seen);
    }

    fn follow(&mut self, found: Position) -> Result<(), StoreError> {
        self.seen.get_or_insert(found).follow(found)
    }

    /// A read: on its way there and back.
    async fn read<T>(&mut self, read: impl FnOnce(&State) -> Result<T, StoreError>) -> Result<T, StoreError> {
        self.link.count_read();
        self.link.travel().await;
        self.link.reaches(Reach::ReadOnly)?;
        let (answer, position) = {
            let mut state = self.server.state.lock();
            if state.tick() {
                self.server.wake();
            }
            (read(&state), state.position())
        };
        self.link.return_trip().await;
        self.link.reaches(Reach::ReadOnly)?;
        self.follow(position)?;
        answer
    }

    /// A transaction: on its way there and back, or wherever its fate takes it.
    async fn transact(&mut self, decisions: &[Decision], reads: &[&str]) -> Result<Exchanged, StoreError> {
        let operations: usize = decisions.iter().map(Decision::operations).sum();
        let fits = decisions.len() <= self.limit.decisions && operations <= self.limit.operations;
        assert!(fits || decisions.len() == 1, "{} decisions of {operations} operations", decisions.len());
        let fate = self.link.next_fate();
        self.link.travel().await;
        self.link.reaches(Reach::Everything)?;
        let lost = || StoreError::Unknown("scripted".to_owned());
        let (answer, position) = {
            let mut state = self.server.state.lock();
            let late = state.tick();
            let answer = match fate {
                Fate::Refused => Err(StoreError::Unavailable("scripted".to_owned())),
                Fate::RequestLost => Err(lost()),
                Fate::Late(requests) => {
                    state.postpone(decisions.to_vec(), requests);
                    Err(lost())
                }
                Fate::Answered => Ok(transaction(&mut state, decisions, reads)),
                Fate::AnswerLost => {
                    transaction(&mut state, decisions, reads);
                    Err(lost())
                }
            };
            let position = state.position();
            drop(state);
            if late || !matches!(fate, Fate::Refused | Fate::RequestLost | Fate::Late(_)) {
                self.server.wake();
            }
            (answer, position)
        };
        self.link.return_trip().await;
        let answer = answer?;
        // It has happened by now, whatever becomes of the answer.
        self.link.reaches(Reach::Everything).map_err(|error| StoreError::Unknown(error.to_string()))?;
        self.follow(position)?;
        Ok(answer)
    }
}

/// Judges and writes.
fn transaction(state: &mut State, decisions: &[Decision], reads: &[&str]) -> Exchanged {
    let newest = state.revision();
    let judged: Result<Vec<bool>, std::convert::Infallible> =
        judge(decisions, |key| Ok(state.entry(key, newest)));
    let Ok(landed) = judged;
    let winners = decisions.iter().zip(&landed).filter(|(_, landed)| **landed);
    let writes: Vec<&Write> = winners.flat_map(|(winner, _)| winner.writes()).collect();
    // What changes nothing is no revision.
    let absent = |write: &Write| matches!(write, Write::Delete(key) if state.entry(&key.to_string(), newest).is_none());
    let writes: Vec<&Write> = writes.into_iter().filter(|write| !absent(write)).collect();
    if !writes.is_empty() {
        state.write(&writes);
    }
    let revision = state.revision();
    let found = reads.iter().map(|key| state.entry(key, revision)).collect();
    Exchanged { committed: Committed { revision, landed }, found }
}

impl Store for Memory {
    type Watch = MemoryWatch;

    async fn get(&mut self, key: &str) -> Result<Option<Entry>, StoreError> {
        self.read(|state| Ok(state.entry(key, state.revision()))).await
    }

    async fn list(&mut self, prefix: &str, after: Option<&After>, limit: usize) -> Result<Page, StoreError> {
        let limit = limit.min(self.link.page());
        self.read(|state| state.page(prefix, after, limit)).await
    }

    async fn watch(&mut self, prefix: &str, after: Revision) -> Result<MemoryWatch, StoreError> {
        self.read(|state| state.reachable(after)).await?;
        let (link, epoch) = (self.link.clone(), self.link.epoch());
        let woken = self.server.woken.subscribe();
        Ok(MemoryWatch {
            server: self.server.clone(),
            link,
            epoch,
            woken,
            prefix: prefix.to_owned(),
            told: after,
        })
    }

    async fn commit(&mut self, decisions: &[Decision]) -> Result<Committed, StoreError> {
        Ok(self.transact(decisions, &[]).await?.committed)
    }

    async fn exchange(&mut self, decision: &Decision, reads: &[&str]) -> Result<Exchanged, StoreError> {
        self.transact(std::slice::from_ref(decision), reads).await
    }

    fn batch_limit(&self) -> BatchLimit {
        self.limit
    }

    fn position(&self) -> Position {
        self.seen.unwrap_or_else(|| self.server.state.lock().position())
    }

    async fn close(&mut self) -> Result<(), StoreError> {
        Ok(())
    }
}

/// A watch of the store in memory.
pub struct MemoryWatch {
    server: Server,
    link: Link,
    /// Watches of an earlier epoch of the link have been broken.
    epoch: u64,
    woken: watch::Receiver<u64>,
    prefix: String,
    told: Revision,
}

impl Watch for MemoryWatch {
    async fn next(&mut self) -> Result<Arc<Batch>, StoreError> {
        loop {
            self.woken.mark_unchanged();
            if self.epoch != self.link.epoch() {
                return Err(StoreError::Unavailable("the watch broke".to_owned()));
            }
            if self.link.tells() {
                let next = self.server.state.lock().after(self.told)?;
                if let Some(batch) = next {
                    self.told = batch.revision;
                    return Ok(batch.narrowed(&self.prefix));
                }
            }
            let over = |_| StoreError::Unavailable("the store is gone".to_owned());
            self.woken.changed().await.map_err(over)?;
        }
    }
}

fn change(key: &str, value: Option<Vec<u8>>, revision: Revision) -> Change {
    Change { key: key.to_owned(), value, revision }
}

#[cfg(test)]
mod tests;
