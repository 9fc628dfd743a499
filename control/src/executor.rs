//! Runs the cluster machines against a store: decides, commits, applies, until nothing is left to decide.
//!
//! One loop owns the store, its watch and the view. What others want written arrives as [`Job`]s; what the
//! controller wants follows from what changed. Independent decisions share a transaction. The view changes only
//! by what the watch tells, so it is the same whether this process wrote or another; an answer is given only when
//! the view that is published contains what was written.

use std::collections::BTreeSet;
use std::sync::Arc;
use std::time::Duration;

use felix_cluster::controller::Controller;
use felix_cluster::decision::{Change, Decision, Write};
use felix_cluster::keys::Key;
use felix_cluster::relist;
use felix_cluster::state::Revision;
use felix_cluster::view::View;
use felix_protocol::ids::{BrokerId, SessionId};
use thiserror::Error;

use crate::membership::{EnterError, Membership};
use crate::store::{Batch, Position, Store, StoreError, Watch, list_all};

pub(crate) mod job;
mod published;
mod round;
mod serving;
mod sessions;
mod turn;

pub(crate) use job::{Job, Step};
pub(crate) use published::Published;
pub use published::{Applying, LeaseView, Revoked};
pub(crate) use sessions::Sessions;

use job::{Decided, guarded};
use round::Round;
use turn::Asked;

/// How long the watch may take to tell of what this node has written; then everything is read anew.
const TOLD_WITHIN: Duration = Duration::from_secs(2);
/// How often in a row a store may refuse to write before those who wait are told.
const REFUSALS: u32 = 3;
/// What a controller's decision costs at most, in operations.
const CONTROLLER_OPERATIONS: usize = 4;

/// Why the control side did not do what it was asked.
#[derive(Clone, Debug, PartialEq, Eq, Error)]
pub enum ControlError {
    /// The store does not answer; nothing was written.
    #[error("the control store is not available: {0}")]
    Unavailable(String),
    /// It is not known whether it was written.
    #[error("the control store did not say whether it wrote: {0}")]
    Unknown(String),
    /// Others kept changing the same key.
    #[error("gave up after {0} attempts against concurrent changes")]
    Contended(u32),
    /// The control side has stopped.
    #[error("the control side has stopped: {0}")]
    Stopped(String),
    /// Deciding it panicked; nothing was written for it, and nothing else is touched.
    #[error("the request could not be decided: a fault of the broker, see its log")]
    Broken,
}

/// What is said when [`felix_cluster::recovery::acknowledge`] was written under a process: what it knows, and the ids
/// of its copies, are of the history before.
pub(crate) const RECOVERED: &str = "an operator has taken a control store that went back for good (felix recover \
                                    store): this process knows the one before, and must be started anew";

/// Why the loop ended although nobody asked it to.
#[derive(Clone, Debug, PartialEq, Eq, Error)]
pub(crate) enum Over {
    /// The store failed for good.
    #[error(transparent)]
    Store(#[from] StoreError),
    /// The session was lost to another process.
    #[error("node {node} is running elsewhere: session {session} has taken the place of this one")]
    Superseded {
        /// The id.
        node: BrokerId,
        /// Who has it now.
        session: SessionId,
    },
    /// An operator has begun a new history of the store.
    #[error("{RECOVERED}")]
    Recovered,
    /// The session was lost, and there cannot be another.
    #[error("this node's session was lost, and it cannot register anew: {0}")]
    Refused(String),
}

/// A decision that is made from the newest view, or none.
pub(crate) type Last = Box<dyn FnOnce(&View) -> Option<Decision> + Send>;

/// What reaches the loop from outside.
pub(crate) enum Command {
    /// Something to be written.
    Job(Box<dyn Job>),
    /// A last decision, if there is still one to make, and the end.
    Stop(Last, tokio::sync::oneshot::Sender<Result<Position, StoreError>>),
}

/// What became of a transaction.
pub(crate) struct Outcome {
    /// Which decisions landed.
    pub(crate) landed: Vec<bool>,
    /// Each at which revision, where it landed.
    pub(crate) revisions: Vec<Revision>,
    /// What the store said instead of an answer, if the outcome had to be read back.
    pub(crate) failure: Option<String>,
}

/// See the module.
pub(crate) struct Executor<S: Store> {
    store: S,
    watch: Option<S::Watch>,
    view: View,
    /// The control epoch at the start: it does not change in the life of a process.
    epoch: u64,
    controller: Controller,
    published: Arc<Published>,
    asked: Asked,
    jobs: Vec<Box<dyn Job>>,
    /// Where others share the store.
    sessions: Option<Sessions>,
    membership: Option<Membership>,
}

impl<S: Store> Executor<S> {
    /// Reads everything there is; nothing is published yet.
    pub(crate) async fn load(store: S, published: Arc<Published>) -> Result<Self, StoreError> {
        let mut executor = Executor {
            store,
            watch: None,
            view: View::default(),
            epoch: 0,
            controller: Controller::default(),
            published,
            asked: Asked::default(),
            jobs: Vec::new(),
            sessions: None,
            membership: None,
        };
        executor.relist().await?;
        executor.epoch = executor.view.control_epoch();
        Ok(executor)
    }

    /// From here on others share the store. What the list said of their beats is read once more.
    pub(crate) fn share(&mut self, sessions: Sessions) {
        self.sessions = Some(sessions);
        self.watch = None;
    }

    /// The store, for reads that no view can answer.
    pub(crate) fn store(&mut self) -> &mut S {
        &mut self.store
    }

    /// Begins the session that `membership` has registered, now and again whenever it is lost.
    pub(crate) async fn enter(&mut self, mut membership: Membership) -> Result<(), EnterError> {
        let entered = membership.enter(self).await;
        self.membership = Some(membership);
        let registered = entered?;
        self.published.begin(registered.lease.clone());
        if let Some(sessions) = &mut self.sessions {
            sessions.beats.sessions.send_replace(Some(registered));
            // What this node led before, and may lead again, need not wait for anybody's turn.
            sessions.is_urgent = true;
        }
        self.controller.note_all(&self.view);
        let settled = self.settle().await;
        if let Some(sessions) = &mut self.sessions {
            sessions.is_urgent = false;
        }
        Ok(settled?)
    }

    /// Whether an operator has begun a new history of the store since the start.
    pub(crate) fn is_recovered(&self) -> bool {
        self.view.control_epoch() != self.epoch
    }

    /// What is known now.
    pub(crate) fn view(&self) -> &View {
        &self.view
    }

    /// Commits decisions made from the present view in one transaction and takes the outcome in. An unknown outcome
    /// is resolved by reading back.
    pub(crate) async fn commit(&mut self, decisions: &[Decision]) -> Result<Outcome, StoreError> {
        match self.store.commit(decisions).await {
            Ok(committed) => {
                // Also where all lost: what they lost against must be known before anything is decided anew.
                self.catch_up(committed.revision).await?;
                let revisions = vec![committed.revision; decisions.len()];
                Ok(Outcome { landed: committed.landed, revisions, failure: None })
            }
            Err(StoreError::Unknown(what)) => {
                tracing::warn!(%what, "a control transaction has an unknown outcome; reading back");
                self.relist().await.map_err(unresolved)?;
                let (mut landed, mut revisions) = (Vec::new(), Vec::new());
                for decision in decisions {
                    let at = self.landed_at(decision).await?;
                    landed.push(at.is_some());
                    revisions.push(at.unwrap_or_default());
                }
                Ok(Outcome { landed, revisions, failure: Some(what) })
            }
            Err(error) => Err(error),
        }
    }

    /// At which revision the decision was written, if the store holds exactly that. Values that could be written by two
    /// parties carry the writer's session. Others may have written since, so the newest revision says nothing of it.
    async fn landed_at(&mut self, decision: &Decision) -> Result<Option<Revision>, StoreError> {
        let mut written = None;
        for write in decision.writes() {
            let found = self.store.get(&write.key().to_string()).await.map_err(unresolved)?;
            match (write, found) {
                (Write::Put(_, value), Some(entry))
                    if entry.value == *value && written.is_none_or(|at| at == entry.revision) =>
                {
                    written = Some(entry.revision);
                }
                (Write::Delete(_), None) => {}
                (Write::Put(..) | Write::Delete(_), _) => return Ok(None),
            }
        }
        Ok(Some(written.unwrap_or(self.view.revision())))
    }

    /// Waits until the watch has told everything up to `revision`.
    async fn catch_up(&mut self, revision: Revision) -> Result<(), StoreError> {
        while self.view.revision() < revision {
            let Some(watch) = &mut self.watch else { return self.relist().await };
            match tokio::time::timeout(TOLD_WITHIN, watch.next()).await {
                Ok(Ok(batch)) => self.apply(&batch),
                // A watch only wakes: what it does not tell can be read.
                Ok(Err(StoreError::Compacted(_) | StoreError::Unavailable(_))) | Err(_) => {
                    return self.relist().await;
                }
                Ok(Err(error)) => return Err(error),
            }
        }
        Ok(())
    }

    fn apply(&mut self, batch: &Batch) {
        let before = self.view.clone();
        for change in &batch.changes {
            if let Err(problem) = self.view.apply(change) {
                // What is known of that key stays as it was: one bad value must not stop the others.
                tracing::error!(%problem, "a control value was passed over");
            }
        }
        self.view.advance(batch.revision);
        if let Some(sessions) = &mut self.sessions {
            sessions.follow(&self.view, &batch.changes, &self.published);
        }
        self.note(&before);
    }

    fn note(&mut self, before: &View) {
        let changes = self.view.changes_since(before);
        self.controller.note(&changes, &self.view);
        #[cfg(debug_assertions)]
        self.check(before, &changes);
    }

    /// Invariants of every step, where they are wanted.
    #[cfg(debug_assertions)]
    fn check(&self, before: &View, changes: &felix_cluster::view::Changes) {
        use felix_cluster::invariants::{check_partition, check_step};
        for id in &changes.partitions {
            let Some(after) = self.view.partition(id) else { continue };
            if let Err(broken) = check_partition(&after.state) {
                debug_assert!(false, "{id}: {broken}");
            }
            let Some(earlier) = before.partition(id) else { continue };
            if let Err(broken) = check_step(&earlier.state, &after.state) {
                debug_assert!(false, "{id}: {broken}");
            }
        }
    }

    /// Reads everything anew and watches from there.
    async fn relist(&mut self) -> Result<(), StoreError> {
        self.watch = None;
        let (listed, revision) = list_all(&mut self.store, "/").await?;
        let watch = self.store.watch("/", revision).await?;
        // With nothing known yet, an unreadable value means that this is no store of ours.
        let first = self.view.revision() == Revision::ABSENT;
        let before = self.view.clone();
        let beats = |change: &&Change| matches!(Key::parse(&change.key), Some(Key::Beat(_)));
        let beats: Vec<Change> = listed.iter().filter(beats).cloned().collect();
        for change in relist::changes(&before, listed, revision) {
            match self.view.apply(&change) {
                Ok(()) => {}
                Err(problem) if first => return Err(StoreError::Damaged(problem.to_string())),
                Err(problem) => tracing::error!(%problem, "a control value was passed over"),
            }
        }
        self.view.advance(revision);
        self.watch = Some(watch);
        if let Some(sessions) = &mut self.sessions {
            sessions.follow(&self.view, &beats, &self.published);
        }
        // Between two lists more than one step may have been taken, so steps are not checked here.
        self.controller.note_all(&self.view);
        Ok(())
    }

    /// Publishes what is known.
    pub(crate) fn publish(&self) {
        self.published.publish(&self.view);
    }

    /// Decides and commits until nothing is left; jobs are answered on the way.
    pub(crate) async fn settle(&mut self) -> Result<(), StoreError> {
        let mut refusals = 0;
        // Where nobody else writes, nothing can be missing.
        let mut is_current = self.sessions.is_none();
        loop {
            if self.watch.is_none() {
                self.relist().await?;
            }
            // What follows is for processes of the new history.
            if self.is_recovered() {
                return Ok(());
            }
            if let Some(sessions) = &mut self.sessions {
                sessions.look();
                // First a session, then decisions.
                if sessions.lost.is_some() {
                    return Ok(());
                }
            }
            let is_turn = self.is_controllers_turn();
            if is_turn {
                self.inquire().await;
            }
            // First: whoever is answered without a write may look at what is known here.
            self.publish();
            let round = self.gather(is_turn, is_current);
            if round.decisions.is_empty() {
                if !round.is_doubted {
                    return Ok(());
                }
                let newest = self.store.list(&Key::Cluster.to_string(), None, 1).await?.revision;
                self.catch_up(newest).await?;
                is_current = true;
                continue;
            }
            match self.commit(&round.decisions).await {
                Ok(Outcome { landed, failure: Some(what), .. }) if !landed.contains(&true) => {
                    // Nothing was lost against others: the store refused the write. What reading back took in is
                    // decided anew, but not for ever.
                    refusals += 1;
                    if refusals == REFUSALS {
                        // What was sent may still be carried out, so nobody is told that it was not.
                        let error = StoreError::Unknown(what);
                        self.refuse(&round, &error);
                        return Err(error);
                    }
                }
                Ok(outcome) => {
                    // A transaction is answered from the newest state, and that was caught up with.
                    is_current = true;
                    self.publish();
                    self.answer(&round, &outcome);
                }
                Err(error) => {
                    // The same holds for what an earlier try of this round's jobs sent.
                    let error = if refusals > 0 { unresolved(error) } else { error };
                    self.refuse(&round, &error);
                    return Err(error);
                }
            }
        }
    }

    /// The next transaction: the controller's decisions, if it is its turn, and the jobs', as many as fit, no key written
    /// twice.
    fn gather(&mut self, is_turn: bool, is_current: bool) -> Round {
        let limit = self.store.batch_limit();
        let mut round =
            Round { slots: limit.decisions, room: limit.operations, bytes: limit.bytes, ..Round::default() };
        if let Some(sessions) = &mut self.sessions {
            for (decision, node) in sessions.take_fences(&self.view) {
                round.take(decision);
                round.fences.push(node);
            }
        }
        // Jobs must not starve behind a long list of promotions.
        let most = (limit.operations / CONTROLLER_OPERATIONS).min(limit.decisions);
        let share = if self.jobs.is_empty() { most } else { most / 2 };
        if is_turn {
            for decision in self.controller.decide(&self.view, self.asked.standings(), share.max(1)) {
                round.take(decision);
            }
            let controller = &self.controller;
            self.asked.keep(|id| controller.is_waiting(id));
        }
        round.controllers = round.decisions.len();
        for mut job in std::mem::take(&mut self.jobs) {
            let decided = guarded(job.as_mut(), |job| job.decide(&self.view, is_current));
            match decided {
                Err(_) | Ok(Decided::Answered) => continue,
                Ok(Decided::Doubted) => round.is_doubted = true,
                Ok(Decided::Write(decision)) if round.fits(&decision) => {
                    round.take(decision);
                    round.jobs.push(self.jobs.len());
                }
                Ok(Decided::Write(_)) => {}
            }
            self.jobs.push(job);
        }
        round
    }

    fn answer(&mut self, round: &Round, outcome: &Outcome) {
        for (node, landed) in round.fences.iter().zip(&outcome.landed) {
            if let Some(sessions) = self.sessions.as_mut().filter(|_| !landed) {
                sessions.missed(*node);
            }
        }
        let mut finished = BTreeSet::new();
        let outcomes = outcome.landed.iter().zip(&outcome.revisions).skip(round.controllers);
        for (job, (landed, revision)) in round.jobs.iter().zip(outcomes) {
            let settled = guarded(self.jobs[*job].as_mut(), |job| job.settled(*landed, *revision));
            // One that panicked is over as well.
            if settled.unwrap_or(true) {
                finished.insert(*job);
            }
        }
        self.drop_jobs(&finished);
    }

    /// The transaction failed: its jobs are told, and the controller will look again.
    fn refuse(&mut self, round: &Round, error: &StoreError) {
        for job in &round.jobs {
            self.jobs[*job].fail(told(error));
        }
        self.drop_jobs(&round.jobs.iter().copied().collect());
        if let Some(sessions) = &mut self.sessions {
            round.fences.iter().for_each(|node| sessions.missed(*node));
        }
        self.controller.note_all(&self.view);
        self.watch = None;
    }

    fn drop_jobs(&mut self, finished: &BTreeSet<usize>) {
        let mut at = 0;
        self.jobs.retain(|_| {
            at += 1;
            !finished.contains(&(at - 1))
        });
    }
}

/// What those are told who wait for something that the store did not say.
fn told(error: &StoreError) -> ControlError {
    match error {
        StoreError::Unknown(what) => ControlError::Unknown(what.clone()),
        StoreError::Unavailable(what) => ControlError::Unavailable(what.clone()),
        StoreError::Compacted(_)
        | StoreError::Damaged(_)
        | StoreError::Failed(_)
        | StoreError::WentBack { .. } => ControlError::Unavailable(error.to_string()),
    }
}

/// While a transaction's outcome is open, a store that does not answer leaves it open.
fn unresolved(error: StoreError) -> StoreError {
    if let StoreError::Unavailable(what) = error { StoreError::Unknown(what) } else { error }
}

#[cfg(test)]
mod tests;
