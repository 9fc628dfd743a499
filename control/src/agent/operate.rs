//! What operators ask of a cluster besides topics and configs: moved replicas, other leaders, removed nodes, client quotas,
//! feature levels; and what a node does about what it is asked to give up.

use std::collections::{BTreeMap, BTreeSet};
use std::time::Duration;

use felix_cluster::decision::Decision;
use felix_cluster::elect::{self, Election, NotElected, Start};
use felix_cluster::features::{self, Update, UpdateRefused};
use felix_cluster::moves::{self, Drain};
use felix_cluster::promotion::Standings;
use felix_cluster::quotas::{self, Entity};
use felix_cluster::reassign;
use felix_cluster::registration::{self, NotRemoved};
use felix_cluster::view::View;
use felix_protocol::ids::{BrokerId, Generation, PartitionId};
use thiserror::Error;
use tokio::sync::oneshot;

use super::{AdminError, Agent};
use crate::executor::{ControlError, Step};

/// Where a partition's replicas are to go; `None`: back, the move under way is cancelled.
pub type Target = Option<Vec<BrokerId>>;
/// Limits of one entity; those without a value are removed.
pub type Limits = Vec<(String, Option<f64>)>;

/// Why a partition did not get the leader that was asked for.
#[derive(Clone, Debug, PartialEq, Eq, Error)]
pub enum ElectError {
    /// It cannot have one.
    #[error(transparent)]
    NotElected(#[from] NotElected),
    /// It goes on, but nobody waits any more.
    #[error("the election has begun and is not over yet")]
    TimedOut,
    /// It could not be written.
    #[error(transparent)]
    Control(#[from] ControlError),
}

impl Agent {
    /// Moves replicas, or cancels that, each partition on its own, and answers in the same order. What was begun goes on by
    /// itself.
    pub async fn alter_reassignments(
        &self,
        wanted: Vec<(PartitionId, Target)>,
        may_change_factor: bool,
    ) -> Vec<Result<(), AdminError<reassign::Refused>>> {
        let decide = move |view: &View, (id, target): &(PartitionId, Target)| match target {
            Some(target) => reassign::begin(view, *id, target, may_change_factor),
            None => reassign::cancel(view, *id),
        };
        self.each(wanted, decide).await
    }

    /// Sets limits of entities, each on its own, and answers in the same order.
    pub async fn alter_quotas(
        &self,
        wanted: Vec<(Entity, Limits)>,
        validate_only: bool,
    ) -> Vec<Result<(), AdminError<quotas::Refused>>> {
        let decide = move |view: &View, (entity, limits): &(Entity, Limits)| {
            quotas::alter(view, entity, limits).map(|decision| decision.filter(|_| !validate_only))
        };
        self.each(wanted, decide).await
    }

    /// Changes feature levels, all or none.
    pub async fn update_features(
        &self,
        updates: Vec<Update>,
        validate_only: bool,
    ) -> Result<(), AdminError<UpdateRefused>> {
        let decide = move |view: &View, updates: &Vec<Update>| {
            features::update(view, updates).map(|decision| decision.filter(|_| !validate_only))
        };
        self.each(vec![updates], decide).await.remove(0)
    }

    /// Removes a node whose session is over.
    pub async fn unregister(&self, node: BrokerId) -> Result<(), AdminError<NotRemoved>> {
        let answer = self.run(move |view| match registration::unregister(view, node) {
            Err(refused) => Step::Refused(Err(refused)),
            Ok(decision) => Step::Write(decision, Box::new(|_| Ok(()))),
        });
        answer.await?.map_err(AdminError::Refused)
    }

    async fn each<T: Send + 'static, R: std::error::Error + Send + 'static>(
        &self,
        wanted: Vec<T>,
        decide: impl Fn(&View, &T) -> Result<Option<Decision>, R> + Clone + Send + 'static,
    ) -> Vec<Result<(), AdminError<R>>> {
        let mut answers = Vec::with_capacity(wanted.len());
        for one in wanted {
            let (to, from) = oneshot::channel();
            let decide = decide.clone();
            let step = move |view: &View| match decide(view, &one) {
                Err(refused) => Step::Refused(Err(refused)),
                Ok(None) => Step::Done(Ok(())),
                Ok(Some(decision)) => Step::Write(decision, Box::new(|_| Ok(()))),
            };
            self.submit(step, |answer| drop(to.send(answer)));
            answers.push(from);
        }
        let mut results = Vec::with_capacity(answers.len());
        for answer in answers {
            let stopped = ControlError::Stopped("its loop is over".to_owned());
            results.push(match answer.await.unwrap_or(Err(stopped)) {
                Ok(done) => done.map_err(AdminError::Refused),
                Err(error) => Err(AdminError::Control(error)),
            });
        }
        results
    }

    /// Elects leaders, slice by slice, and answers when each partition is through or after `wait`. `standings` is what
    /// brokers said of their copies where an unclean election may need it.
    pub async fn elect_leaders(
        &self,
        ids: BTreeSet<PartitionId>,
        election: Election,
        standings: BTreeMap<PartitionId, Standings>,
        wait: Duration,
    ) -> BTreeMap<PartitionId, Result<(), ElectError>> {
        let mut results = BTreeMap::new();
        let mut pending: BTreeMap<PartitionId, Generation> = BTreeMap::new();
        let view = self.view();
        for id in ids {
            let told = standings.get(&id).cloned().unwrap_or_default();
            match elect::start(&view, id, election, &told) {
                Ok(_) => {
                    let from =
                        view.partition(&id).map_or(Generation::ZERO, |partition| partition.generation());
                    pending.insert(id, from);
                }
                Err(reason) => {
                    results.insert(id, Err(reason.into()));
                }
            }
        }
        let until = tokio::time::Instant::now() + wait;
        while !pending.is_empty() {
            if let Err(error) = self.begin_elections(&pending, election, &standings).await {
                results.extend(pending.keys().map(|id| (*id, Err(error.clone().into()))));
                break;
            }
            let left = until.saturating_duration_since(tokio::time::Instant::now());
            let over = |view: &View| {
                pending.iter().any(|(id, from)| elect::ended(view, *id, election, *from).is_some())
            };
            let is_timely = self.wait_for(left, over).await;
            let view = self.view();
            pending.retain(|id, from| match elect::ended(&view, *id, election, *from) {
                Some(result) => {
                    results.insert(*id, result.map_err(ElectError::from));
                    false
                }
                None => true,
            });
            if !is_timely {
                results.extend(pending.keys().map(|id| (*id, Err(ElectError::TimedOut))));
                break;
            }
        }
        results
    }

    /// Begins what can be begun of these now.
    async fn begin_elections(
        &self,
        pending: &BTreeMap<PartitionId, Generation>,
        election: Election,
        standings: &BTreeMap<PartitionId, Standings>,
    ) -> Result<(), ControlError> {
        let view = self.view();
        let mut moving: BTreeMap<BrokerId, Vec<PartitionId>> = BTreeMap::new();
        for (id, from) in pending {
            let (id, from) = (*id, *from);
            let told = standings.get(&id).cloned().unwrap_or_default();
            match elect::start(&view, id, election, &told) {
                Ok(Start::Move(node)) => moving.entry(node).or_default().push(id),
                Ok(Start::Promote(_)) => {
                    self.run(move |view| match elect::start(view, id, election, &told) {
                        // Not a second time, where somebody was promoted meanwhile.
                        Ok(Start::Promote(decision))
                            if view.partition(&id).is_some_and(|now| now.generation() == from) =>
                        {
                            Step::Write(decision, Box::new(|_| ()))
                        }
                        Ok(_) | Err(_) => Step::Done(()),
                    })
                    .await?;
                }
                // What it came to is seen in the view.
                Err(_) => {}
            }
        }
        for (node, ids) in moving {
            self.run(move |view| {
                let unasked = |id: &&PartitionId| {
                    view.partition(id).is_some_and(|partition| moves::asked(view, partition).is_none())
                };
                match moves::slice(view, node, ids.iter().filter(unasked)) {
                    Some(decision) => Step::Write(decision, Box::new(|_| ())),
                    None => Step::Done(()),
                }
            })
            .await?;
        }
        Ok(())
    }

    /// Takes what is over off the list of what this node is asked to give up. To be called when something was given up.
    pub async fn tidy_revocations(&self) -> Result<(), ControlError> {
        let (to, from) = oneshot::channel();
        self.tidy_revocations_then(|done| drop(to.send(done)));
        let stopped = || ControlError::Stopped("its loop is over".to_owned());
        from.await.unwrap_or_else(|_| Err(stopped()))
    }

    /// The same for those who do not await: `done` is called on the control thread and must not wait.
    pub fn tidy_revocations_then(&self, done: impl FnOnce(Result<(), ControlError>) + Send + 'static) {
        let node = self.node();
        let decide = move |view: &View| match moves::tidy(view, node) {
            Some(decision) => Step::Write(decision, Box::new(|_| ())),
            None => Step::Done(()),
        };
        self.submit(decide, done);
    }

    /// How far the draining of this node is.
    pub fn drained(&self) -> Drain {
        moves::drain(&self.view(), self.node(), self.session())
    }
}
