//! A watch of etcd: kept up over failing endpoints, and made to reach every revision that this process has heard of.
//!
//! etcd tells a watch only of transactions that changed something below its prefix. A revision at which nothing of
//! ours changed would never come; for that one, a key that nobody reads is written below the prefix
//! ([`super::NUDGE`]), whose event comes behind everything older. (etcd's own progress messages would be cheaper, but
//! before 3.4.25 and 3.5.8 they could overtake events.)
//!
//! A stream that is alive and tells nothing, because its member is cut off or lags, is given up for the next endpoint
//! when something is known to have been written and does not come.

use std::sync::Arc;
use std::time::Duration;

use etcd_client::proto::PbEvent;
use etcd_client::{EventType, WatchOptions, WatchResponse};
use felix_cluster::decision::Change;
use felix_cluster::state::Revision;
use tokio::sync::{mpsc, watch};
use tokio::task::JoinSet;
use tokio::time::sleep;

use super::way::{Failure, Way};
use super::{Etcd, Expected, NUDGE, Shared, behind, named, number, revision};
use crate::store::{Batch, Position, StoreError, Watch};

/// Transactions that are kept for a reader who is slow; behind them etcd waits.
const BATCHES: usize = 64;
/// How long a revision that was heard of may be missing before the nudge is written. Where our own keys change all
/// the time, as with beats, the next change says the same.
const NUDGE_AFTER: Duration = Duration::from_millis(30);
/// How long it may be missing then before the stream is believed to be stuck. A view that lags for longer costs a lease.
const STUCK_AFTER: Duration = Duration::from_millis(500);

/// A watch of etcd. Ends when it is dropped.
pub struct EtcdWatch {
    from: mpsc::Receiver<Result<Arc<Batch>, StoreError>>,
    /// The task that feeds it.
    _feed: JoinSet<()>,
}

impl EtcdWatch {
    /// The connection is made in the background; what is wrong with it is told by [`Watch::next`].
    pub(super) fn start(store: &Etcd, prefix: &str, after: Revision) -> EtcdWatch {
        let (to, from) = mpsc::channel(BATCHES);
        let feed = Feed {
            way: store.way.clone(),
            nudger: store.way.clone(),
            root: store.prefix.clone(),
            prefix: prefix.to_owned(),
            told: after,
            pieces: Vec::new(),
            expected: store.shared.expected.subscribe(),
            shared: Arc::clone(&store.shared),
            store: store.shared.seen.lock().store,
            to,
        };
        let mut tasks = JoinSet::new();
        tasks.spawn(feed.run());
        EtcdWatch { from, _feed: tasks }
    }
}

impl Watch for EtcdWatch {
    async fn next(&mut self) -> Result<Arc<Batch>, StoreError> {
        let over = || StoreError::Unavailable("the watch has ended".to_owned());
        self.from.recv().await.ok_or_else(over)?
    }
}

struct Feed {
    way: Way,
    nudger: Way,
    /// The cluster's prefix; all of it is watched.
    root: String,
    /// What is told of it.
    prefix: String,
    told: Revision,
    /// Of one answer that has not come to its end.
    pieces: Vec<PbEvent>,
    expected: watch::Receiver<Expected>,
    shared: Arc<Shared>,
    /// Which store it is.
    store: u64,
    to: mpsc::Sender<Result<Arc<Batch>, StoreError>>,
}

/// Why a stream ended.
enum End {
    /// Nobody listens any more.
    Unwanted,
    /// The way failed.
    Failed(Failure),
    /// It cannot go on from where it was.
    Fatal(StoreError),
}

impl From<Failure> for End {
    fn from(failure: Failure) -> Self {
        End::Failed(failure)
    }
}

/// How much longer to wait for what is missing.
#[derive(Clone, Copy, PartialEq, Eq)]
enum Patience {
    /// Nothing is missing.
    Calm,
    /// Something is, since a moment ago.
    Waiting,
    /// The nudge has been written, where that was of use.
    Nudged,
}

impl Feed {
    async fn run(mut self) {
        let error = match self.follow().await {
            Some(error) => error,
            None => return,
        };
        // Nobody listening is no problem.
        let _ = self.to.send(Err(error)).await;
    }

    /// One stream after the other; gives up when every endpoint has failed since something was heard.
    async fn follow(&mut self) -> Option<StoreError> {
        let mut failures = 0;
        loop {
            let before = self.told;
            let failure = match self.stream().await {
                End::Unwanted => return None,
                End::Fatal(error) => return Some(error),
                End::Failed(failure) => failure,
            };
            self.pieces.clear();
            failures = if self.told > before { 1 } else { failures + 1 };
            tracing::debug!(?failure, told = %self.told, "a watch of etcd goes on elsewhere");
            match failure {
                Failure::Compacted => return Some(StoreError::Compacted(self.told)),
                Failure::Refused(what) => return Some(StoreError::Unavailable(what)),
                Failure::Token(what) if failures > self.way.endpoints() => {
                    return Some(StoreError::Unavailable(what));
                }
                Failure::Token(_) => self.way.forget_token(),
                Failure::Elsewhere(what) | Failure::Open(what) | Failure::TooLarge(what) => {
                    if failures > self.way.endpoints() {
                        return Some(StoreError::Unavailable(what));
                    }
                    self.way.move_on();
                }
            }
        }
    }

    /// Follows one stream to its end.
    async fn stream(&mut self) -> End {
        let root = format!("{}/", self.root).into_bytes();
        let options = WatchOptions::new()
            .with_range(behind(&root))
            .with_start_revision(number(self.told).saturating_add(1))
            .with_fragment();
        let mut stream = match self.way.watch(&root, &options).await {
            Ok(stream) => stream,
            Err(failure) => return End::Failed(failure),
        };
        let mut patience = Patience::Calm;
        let timer = sleep(Duration::ZERO);
        tokio::pin!(timer);
        loop {
            let expected = *self.expected.borrow_and_update();
            let missing = expected.written.max(expected.reached) > self.told;
            if !missing {
                patience = Patience::Calm;
            } else if patience == Patience::Calm {
                patience = Patience::Waiting;
                timer.set(sleep(NUDGE_AFTER));
            }
            tokio::select! {
                message = stream.message() => {
                    let before = self.told;
                    let told = match message {
                        Ok(Some(answer)) => self.take(answer).await,
                        Ok(None) => Err(Failure::Open("the watch was ended".to_owned()).into()),
                        Err(error) => Err(super::way::classify(&error).into()),
                    };
                    match told {
                        Ok(()) => {}
                        Err(End::Failed(failure)) => return End::Failed(self.way.placed(failure)),
                        Err(end) => return end,
                    }
                    if self.told > before {
                        patience = Patience::Calm;
                    }
                }
                () = self.to.closed() => return End::Unwanted,
                // The shared half lives as long as this task: it holds it.
                _ = self.expected.changed() => {}
                () = &mut timer, if patience == Patience::Waiting || patience == Patience::Nudged => {
                    if patience == Patience::Nudged {
                        let missing = expected.written.max(expected.reached);
                        let what = format!("nothing was told of revision {missing}");
                        return End::Failed(self.way.placed(Failure::Open(what)));
                    }
                    if expected.reached > self.told.max(expected.written) {
                        self.nudge().await;
                    }
                    patience = Patience::Nudged;
                    timer.set(sleep(STUCK_AFTER));
                }
            }
        }
    }

    /// Takes one message in, and hands on what is complete.
    async fn take(&mut self, answer: WatchResponse) -> Result<(), End> {
        if let Some(header) = answer.header()
            && header.cluster_id() != self.store
        {
            let seen = Position { store: self.store, revision: self.told };
            let found = super::position(header);
            return Err(End::Fatal(StoreError::WentBack { seen, found }));
        }
        // As etcd spells it: the crate's own words for an answer do not tell whether more of it follows, and panic on an event
        // of an unknown kind.
        let answer = answer.0;
        if answer.compact_revision > 0 {
            return Err(Failure::Compacted.into());
        }
        if answer.canceled {
            return Err(canceled(answer.cancel_reason).into());
        }
        self.pieces.extend(answer.events);
        if answer.fragment {
            return Ok(());
        }
        let mut batch: Option<Batch> = None;
        for event in std::mem::take(&mut self.pieces) {
            let deleted = event.r#type == EventType::Delete as i32;
            let Some(kv) = event.kv else { continue };
            let at = revision(kv.mod_revision);
            if at <= self.told {
                continue;
            }
            if batch.as_ref().is_some_and(|batch| batch.revision != at)
                && let Some(complete) = batch.take()
            {
                self.hand_on(complete).await?;
            }
            let batch = batch.get_or_insert_with(|| Batch { revision: at, changes: Vec::new() });
            if let Some(key) = named(&self.root, kv.key)
                && key.starts_with(&self.prefix)
            {
                let value = (!deleted).then_some(kv.value);
                batch.changes.push(Change { key, value, revision: at });
            }
        }
        match batch {
            Some(last) => self.hand_on(last).await,
            None => Ok(()),
        }
    }

    async fn hand_on(&mut self, batch: Batch) -> Result<(), End> {
        let revision = batch.revision;
        self.to.send(Ok(Arc::new(batch))).await.map_err(|_| End::Unwanted)?;
        self.told = revision;
        Ok(())
    }

    async fn nudge(&mut self) {
        let key = format!("{}{NUDGE}", self.root).into_bytes();
        match self.nudger.touch(&key).await.map(|answer| answer.header().map(super::position)) {
            Ok(Some(position)) => self.shared.expect_written(position.revision),
            // It may have been written all the same. If not, the stream counts as stuck after a while.
            Ok(None) => {}
            Err(failure) => tracing::debug!(?failure, "a watch of etcd could not be nudged"),
        }
    }
}

/// A watch that the server ended, by its reason.
fn canceled(reason: String) -> Failure {
    let what = if reason.is_empty() { "the watch was refused".to_owned() } else { reason };
    if what.contains("invalid auth token") || what.contains("revision of auth store is old") {
        Failure::Token(what)
    } else if what.contains("required revision has been compacted") {
        Failure::Compacted
    } else if what.contains("permission denied") || what.contains("user name is empty") {
        Failure::Refused(what)
    } else {
        Failure::Open(what)
    }
}
