//! Carries out what an operator decides with `felix recover`, against a store that no broker of his uses at the time, or
//! (for a partition that nobody may lead) beside the brokers that do.
//!
//! What is decided, and what may be, is in [`felix_cluster::recovery`].

use std::collections::BTreeSet;

use felix_cluster::decision::Decision;
use felix_cluster::lease::{Clocks, Terms};
use felix_cluster::promotion::Standings;
use felix_cluster::recovery::unclean::{self, Plan, Refused};
use felix_cluster::recovery::{self, Acknowledged, NotAcknowledged};
use felix_cluster::view::View;
use felix_protocol::ids::{BrokerId, PartitionId};
use thiserror::Error;

use crate::executor::{Executor, Published};
use crate::store::{Position, Store, StoreError, list_all};

/// Why a recovery did not happen.
#[derive(Debug, Error)]
pub enum RecoverError {
    /// The store does not answer.
    #[error(transparent)]
    Store(#[from] StoreError),
    /// It cannot be acknowledged.
    #[error(transparent)]
    NotAcknowledged(#[from] NotAcknowledged),
    /// Brokers use it.
    #[error("brokers {} use this control store now: stop all brokers of the cluster first", list(.0))]
    Running(Vec<BrokerId>),
    /// Nobody is promoted.
    #[error(transparent)]
    Refused(#[from] Refused),
    /// Somebody else has written.
    #[error("something has changed meanwhile, and nothing was written: look again")]
    Changed,
}

fn list(ids: &[BrokerId]) -> String {
    ids.iter().map(ToString::to_string).collect::<Vec<_>>().join(", ")
}

/// What somebody sees of a store who acts on it by hand.
pub struct Recovery<S: Store> {
    executor: Executor<S>,
    /// Whether brokers on other machines could use it.
    is_shared: bool,
}

impl<S: Store> Recovery<S> {
    /// Reads everything there is. A store that is not shared is the caller's by the lock on its directory.
    pub async fn open(store: S, is_shared: bool) -> Result<Recovery<S>, StoreError> {
        Ok(Recovery { executor: Executor::load(store, Published::new()).await?, is_shared })
    }

    /// What is known now.
    pub fn view(&self) -> &View {
        self.executor.view()
    }

    /// How far the store has come.
    pub fn position(&mut self) -> Position {
        self.executor.store().position()
    }

    /// Makes sure that no broker uses the store: none beats for as long as a lease lasts.
    pub async fn check_unused(&mut self) -> Result<(), RecoverError> {
        if !self.is_shared {
            return Ok(());
        }
        let cluster = self.view().cluster().map(|at| at.value.lease_ms.max(at.value.lease_in_force_ms));
        let before = list_all(self.executor.store(), "/nodes/").await?.0;
        // Clocks that run badly only make it shorter than it should be, and what follows is safe then as well.
        tokio::time::sleep(Terms::new(cluster.unwrap_or(0), Clocks::One).wait()).await;
        let after = list_all(self.executor.store(), "/nodes/").await?.0;
        let running = recovery::running(&before, &after);
        if running.is_empty() { Ok(()) } else { Err(RecoverError::Running(running)) }
    }

    /// What an acknowledgement would do now.
    pub fn plan_acknowledge(&self, now_s: u64) -> Result<Acknowledged, RecoverError> {
        Ok(recovery::acknowledge(self.view(), now_s)?.1)
    }

    /// Takes a store that was restored from a backup for good.
    pub async fn acknowledge(&mut self, now_s: u64) -> Result<Acknowledged, RecoverError> {
        let (mut decisions, told) = recovery::acknowledge(self.view(), now_s)?;
        let first = decisions.remove(0);
        self.write(&first).await?;
        // What is left out here is found by whoever recovers once more.
        let limit = self.executor.store().batch_limit().decisions;
        for batch in decisions.chunks(limit.max(1)) {
            self.executor.commit(batch).await?;
        }
        Ok(told)
    }

    /// Lets brokers remove copies that the store does not know; false where they may already.
    pub async fn confirm(&mut self) -> Result<bool, RecoverError> {
        let Some(decision) = recovery::confirm(self.view()) else { return Ok(false) };
        self.write(&decision).await?;
        Ok(true)
    }

    /// Plans the promotion of a partition that nobody may lead.
    pub fn plan(
        &self,
        id: PartitionId,
        to: Option<BrokerId>,
        standings: &Standings,
    ) -> Result<Plan, RecoverError> {
        Ok(unclean::plan(self.view(), id, to, standings, !self.is_shared)?)
    }

    /// Carries a plan out, if nothing of what it was made from has changed.
    pub async fn promote(&mut self, plan: &Plan) -> Result<(), RecoverError> {
        self.write(&plan.decision).await
    }

    /// Partitions without a leader that lives.
    pub fn leaderless(&self) -> BTreeSet<PartitionId> {
        let view = self.view();
        let led = |id: &BrokerId, session| view.may_lead(*id, session);
        let lacks = |one: &&std::sync::Arc<felix_cluster::view::PartitionView>| {
            !one.leader().is_some_and(|leader| led(&leader.broker, leader.session))
        };
        view.partitions().filter(lacks).map(|one| one.id).collect()
    }

    async fn write(&mut self, decision: &Decision) -> Result<(), RecoverError> {
        let outcome = self.executor.commit(std::slice::from_ref(decision)).await?;
        if outcome.landed == [true] { Ok(()) } else { Err(RecoverError::Changed) }
    }

    /// Lets go of the store, durably.
    pub async fn close(mut self) -> Result<(), StoreError> {
        self.executor.store().close().await
    }
}
