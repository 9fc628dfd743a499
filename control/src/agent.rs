//! What a broker holds of the cluster: the view, its session's lease, and every administrative write.
//!
//! An agent is a handle on one thread (`felix-control`) with a runtime of its own, which runs the executor: no
//! cold read and no busy connection can delay a decision. With the embedded store nothing in it ever wakes by
//! itself; where others share the store, a second thread (`felix-beats`) keeps the session alive.

use std::collections::{BTreeMap, BTreeSet};
use std::ops::Range;
use std::path::PathBuf;
use std::sync::Arc;
use std::time::Duration;

use felix_cluster::decision::Decision;
use felix_cluster::eligible::{self, Declined, Report, Tenure, Unlawful};
use felix_cluster::keys::Key;
use felix_cluster::overrides::{self, ConfigTarget, EditRefused};
use felix_cluster::producer_ids;
use felix_cluster::promotion::{self, StandingsOf};
use felix_cluster::registration;
use felix_cluster::state::{Listener, NodeState, Overrides, Pair, Revision};
use felix_cluster::topics::{
    self, CreateRefused, CreatedTopic, DeletedTopic, MAX_PARTITIONS_PER_REQUEST, NewTopic, TopicRef,
    UnknownTopic, WidenRefused,
};
use felix_cluster::view::{Learned, View};
use felix_protocol::ids::{BrokerId, Generation, LogId, PartitionId, SessionId, TopicId, Uuid};
use felix_protocol::time::MonoTime;
use felix_storage::disk::Disk;
use thiserror::Error;
use tokio::sync::{mpsc, oneshot, watch};

use crate::clock::LeaseClock;
use crate::executor::job::Wanted;
pub use crate::executor::{Applying, ControlError, LeaseView, Revoked};
use crate::executor::{Command, Published, Step};
use crate::inquiry::{self, Inquirer};

mod join;
mod operate;
mod start;

pub use operate::{ElectError, Limits, Target};
pub use start::StartError;

use crate::store::{Connect, Position};

/// Who this node is and where it is reached.
#[derive(Clone, Debug)]
pub struct AgentConfig {
    /// The data directory; the caller holds its lock for as long as the agent lives.
    pub directory: PathBuf,
    /// The cluster it belongs to by `meta.properties`; `None` for a directory that has none yet: the agent joins
    /// the store's cluster or founds one, and the caller writes down [`View::cluster_id`].
    pub cluster_id: Option<String>,
    /// The node's id.
    pub node: BrokerId,
    /// The directory's id.
    pub directory_id: Uuid,
    /// The machine's boot id.
    pub boot_id: String,
    /// Where clients are told to reach it.
    pub listeners: Vec<Listener>,
    /// Where peers reach it.
    pub internal: Option<Listener>,
    /// Its failure domain.
    pub rack: Option<String>,
    /// The program's version.
    pub version: String,
    /// L, for a cluster that is founded now.
    pub lease_ms: u64,
    /// How many copies of partitions the directory holds: an empty store beside them is not founded anew.
    pub copies: usize,
    /// A flush of the directory failed in an earlier life; it was noted there, and the copies in doubt have new identities.
    pub doubts_settled: bool,
    /// The generation that each copy has accepted: a store shared with others that has not granted it has gone back.
    pub fences: BTreeMap<PartitionId, Generation>,
}

/// Why an administrative write did not happen.
#[derive(Clone, Debug, PartialEq, Eq, Error)]
pub enum AdminError<R: std::error::Error> {
    /// It is not lawful.
    #[error(transparent)]
    Refused(R),
    /// It could not be written.
    #[error(transparent)]
    Control(ControlError),
}

impl<R: std::error::Error> From<ControlError> for AdminError<R> {
    fn from(error: ControlError) -> Self {
        AdminError::Control(error)
    }
}

/// Why a report did not land.
#[derive(Clone, Debug, PartialEq, Eq, Error)]
pub enum ReportError {
    /// The partition or its topic has changed since the reporter learned of it: look at the view again.
    #[error("the partition has changed since")]
    Moved,
    /// The partition is gone.
    #[error("the partition is gone")]
    Gone,
    /// It is not lawful.
    #[error(transparent)]
    Unlawful(#[from] Unlawful),
    /// It could not be written. After [`ControlError::Unknown`] only the view can tell.
    #[error(transparent)]
    Control(#[from] ControlError),
}

/// See the module. Clones are the same agent.
#[derive(Clone)]
pub struct Agent {
    node: BrokerId,
    published: Arc<Published>,
    commands: mpsc::UnboundedSender<Command>,
    /// Writes down how far the store had come, at the end.
    remember: Arc<dyn Fn(Position) -> std::io::Result<()> + Send + Sync>,
}

impl Agent {
    /// Opens the embedded store in the data directory, registers a new session and promotes what this node may
    /// lead. When it returns, the view says so and everything works.
    pub async fn start<D: Disk>(disk: D, config: AgentConfig) -> Result<Agent, StartError> {
        start::start(disk, config).await
    }

    /// Enters a cluster whose store other nodes use as well. When it returns, this node has a session whose beats are
    /// confirmed. `renew_logs` gives all copies of the directory new identities, durably.
    pub async fn join<D: Disk, C: Connect>(
        disk: D,
        config: AgentConfig,
        connect: C,
        clock: impl LeaseClock,
        renew_logs: impl FnMut() -> std::io::Result<()> + Send + 'static,
    ) -> Result<Agent, StartError> {
        join::join(disk, config, connect, Arc::new(clock), Box::new(renew_logs)).await
    }

    /// What is known now.
    pub fn view(&self) -> Arc<View> {
        self.published.view()
    }

    /// Tells of every new view by its revision.
    pub fn changed(&self) -> watch::Receiver<Revision> {
        self.published.changed()
    }

    /// Waits until the view passes `test`; false when `timeout` passed first, or the agent ended.
    pub async fn wait_for(&self, timeout: Duration, mut test: impl FnMut(&View) -> bool) -> bool {
        let mut changed = self.changed();
        let passed = async {
            loop {
                changed.mark_unchanged();
                if test(&self.view()) {
                    return true;
                }
                if changed.changed().await.is_err() {
                    return false;
                }
            }
        };
        let mut ended = self.published.ended();
        tokio::select! {
            passed = passed => passed,
            _ = ended.wait_for(|ended| *ended) => test(&self.view()),
            () = tokio::time::sleep(timeout) => test(&self.view()),
        }
    }

    /// The view once it has all that was written before: whoever asks for something may have heard of it from another node, where
    /// it was done.
    pub async fn catch_up(&self) -> Result<Arc<View>, ControlError> {
        // A refusal is given by a view that is current, and what is answered from is published.
        self.run(|_| Step::Refused(())).await?;
        Ok(self.view())
    }

    /// This node.
    pub fn node(&self) -> BrokerId {
        self.node
    }

    /// The session of this process, the newest: where others share the store, one that was ended is followed by another.
    pub fn session(&self) -> SessionId {
        self.published.lease().session()
    }

    /// The lease of that session. [`Agent::changed`] tells when there is another.
    pub fn lease(&self) -> LeaseView {
        self.published.lease()
    }

    /// How many sessions this process has had: each after the first because others ended the one before.
    pub fn sessions(&self) -> u64 {
        self.published.sessions()
    }

    /// When each node's newest beat was heard of, where others share the store. A node that was dead already when this
    /// process began counts from then.
    pub fn heard(&self) -> BTreeMap<BrokerId, MonoTime> {
        self.published.heard()
    }

    /// What this node is asked to give up. [`Agent::changed`] tells when that changes.
    pub fn revoked(&self) -> Revoked {
        self.published.revoked().borrow().clone()
    }

    /// Says from now on how far the broker has come with what the view and [`Agent::revoked`] told it. Whoever never
    /// asks for this leads nothing, or nothing that others could be given.
    pub fn applying(&self) -> Applying {
        Applying::new(Arc::clone(&self.published))
    }

    /// Whether the store may have gone back without anyone noticing: then a copy whose topic it does not know may
    /// be one that was created later, and is not to be removed.
    pub fn is_unverified(&self) -> bool {
        self.published.is_unverified() || !self.published.view().is_confirmed()
    }

    /// Has brokers asked about their copies by that from now on, where that decides who is promoted. Only the first counts.
    pub fn ask_by(&self, inquirer: Arc<dyn Inquirer>) {
        let _ = self.published.inquirer().set(inquirer);
    }

    /// What brokers say of copies of these partitions, of which any may be promoted if loss is allowed. Silence is left
    /// out.
    pub async fn standings(&self, partitions: &BTreeSet<PartitionId>) -> StandingsOf {
        let Some(inquirer) = self.published.inquirer().get().cloned() else { return StandingsOf::new() };
        let view = self.view();
        let asked = partitions.iter().filter_map(|id| {
            let state = &view.partition(id)?.state;
            let led = state.leader.is_some_and(|leader| view.may_lead(leader.broker, leader.session));
            (!led).then(|| (*id, promotion::to_ask(&view, state, true)))
        });
        inquirer.ask(inquiry::by_broker(&asked.collect()), inquiry::PATIENCE).await
    }

    /// Waits until the control side has ended; says why, if nobody asked it to. Then nothing can be decided any
    /// more and the lease is over: the broker must stop.
    pub async fn ended(&self) -> Option<String> {
        let mut ended = self.published.ended();
        // An error would mean that the sender is gone, which this agent holds.
        let _ = ended.wait_for(|ended| *ended).await;
        self.published.failure().map(str::to_owned)
    }

    /// Has `decide` carried out; `reply` is called on the control thread and must not wait.
    fn submit<R: Send + 'static>(
        &self,
        decide: impl FnMut(&View) -> Step<R> + Send + 'static,
        reply: impl FnOnce(Result<R, ControlError>) + Send + 'static,
    ) {
        // A job that cannot be sent is dropped, and answers so.
        let _ = self.commands.send(Command::Job(Wanted::boxed(decide, reply)));
    }

    async fn run<R: Send + 'static>(
        &self,
        decide: impl FnMut(&View) -> Step<R> + Send + 'static,
    ) -> Result<R, ControlError> {
        let (to, from) = oneshot::channel();
        // Whoever asked may have gone away meanwhile.
        self.submit(decide, |answer| drop(to.send(answer)));
        let stopped = || ControlError::Stopped("its loop is over".to_owned());
        from.await.unwrap_or_else(|_| Err(stopped()))
    }

    /// Creates topics, each on its own, and answers in the same order. Returns when all their partitions exist and
    /// those led here have opened, or after `wait`.
    pub async fn create_topics(
        &self,
        new: Vec<NewTopic>,
        validate_only: bool,
        wait: Duration,
    ) -> Vec<Result<CreatedTopic, AdminError<CreateRefused>>> {
        let wanted = new.iter().map(|topic| match &topic.assignments {
            Some(assignments) => i64::try_from(assignments.len()).unwrap_or(i64::MAX),
            None => i64::from(topic.partitions.max(0)),
        });
        let wanted: i64 = wanted.fold(0, i64::saturating_add);
        if wanted > i64::from(MAX_PARTITIONS_PER_REQUEST) {
            let refused = || Err(AdminError::Refused(CreateRefused::TooManyPartitions(wanted)));
            return new.iter().map(|_| refused()).collect();
        }
        let mut answers = Vec::with_capacity(new.len());
        for topic in new {
            let id = TopicId::random();
            let (to, from) = oneshot::channel();
            let decide = move |view: &View| match topics::create(view, id, &topic) {
                // An unknown outcome was read back meanwhile: it is there, under the id that only we know.
                Err(CreateRefused::Exists(_)) if view.topic(&id).is_some() => {
                    let (partitions, factor) = view
                        .topic(&id)
                        .map_or((0, 0), |made| (made.partition_count, made.replication_factor));
                    let name = topic.name.clone();
                    Step::Done(Ok(CreatedTopic { id, name, partitions, replication_factor: factor }))
                }
                Err(refused) => Step::Refused(Err(refused)),
                Ok((_, created)) if validate_only => Step::Done(Ok(created)),
                Ok((decision, created)) => Step::Write(decision, Box::new(move |_| Ok(created))),
            };
            self.submit(decide, |answer| drop(to.send(answer)));
            answers.push(from);
        }
        let mut results = Vec::with_capacity(answers.len());
        for answer in answers {
            let stopped = ControlError::Stopped("its loop is over".to_owned());
            results.push(match answer.await.unwrap_or(Err(stopped)) {
                Ok(created) => created.map_err(AdminError::Refused),
                Err(error) => Err(AdminError::Control(error)),
            });
        }
        if !validate_only {
            let made = results.iter().flatten().map(|created| created.id).collect();
            self.wait_opened(made, wait).await;
        }
        results
    }

    /// Waits until the topics' partitions exist, and those led here have opened. Topics deleted meanwhile do not
    /// count.
    async fn wait_opened(&self, mut topics: Vec<TopicId>, wait: Duration) {
        let (node, session) = (self.node, self.session());
        self.wait_for(wait, |view| {
            topics.retain(|id| !is_open(view, id, node, session));
            topics.is_empty()
        })
        .await;
    }

    /// Deletes topics and answers in the same order. Their partitions vanish from the view at once or soon after.
    pub async fn delete_topics(
        &self,
        which: Vec<TopicRef>,
    ) -> Vec<Result<DeletedTopic, AdminError<UnknownTopic>>> {
        let mut answers = Vec::with_capacity(which.len());
        for topic in which {
            let (to, from) = oneshot::channel();
            let decide = move |view: &View| match topics::delete(view, &topic) {
                Err(refused) => Step::Refused(Err(refused)),
                Ok((decision, deleted)) => Step::Write(decision, Box::new(move |_| Ok(deleted))),
            };
            self.submit(decide, |answer| drop(to.send(answer)));
            answers.push(from);
        }
        let mut results = Vec::with_capacity(answers.len());
        for answer in answers {
            let stopped = ControlError::Stopped("its loop is over".to_owned());
            results.push(match answer.await.unwrap_or(Err(stopped)) {
                Ok(deleted) => deleted.map_err(AdminError::Refused),
                Err(error) => Err(AdminError::Control(error)),
            });
        }
        results
    }

    /// Gives a topic `total` partitions; the new ones go where `assignments` says, or where there is room. Returns
    /// as [`Agent::create_topics`] does.
    pub async fn create_partitions(
        &self,
        name: &str,
        total: i32,
        assignments: Option<Vec<Vec<BrokerId>>>,
        validate_only: bool,
        wait: Duration,
    ) -> Result<(), AdminError<WidenRefused>> {
        let name = name.to_owned();
        let answer = self.run(move |view| match topics::widen(view, &name, total, assignments.as_deref()) {
            Err(refused) => Step::Refused(Err(refused)),
            Ok((_, id)) if validate_only => Step::Done(Ok(id)),
            Ok((decision, id)) => Step::Write(decision, Box::new(move |_| Ok(id))),
        });
        let id = answer.await?.map_err(AdminError::Refused)?;
        if !validate_only {
            self.wait_opened(vec![id], wait).await;
        }
        Ok(())
    }

    /// Edits the overrides of a topic, a broker, the cluster or a group. `edit` says what the present ones become, or
    /// why not; it runs again when another edit came first, so none is ever lost.
    pub async fn alter_configs(
        &self,
        target: ConfigTarget,
        validate_only: bool,
        mut edit: impl FnMut(&Overrides) -> Result<Overrides, String> + Send + 'static,
    ) -> Result<(), AdminError<EditRefused>> {
        let answer = self.run(move |view| match overrides::decide(view, &target, &mut edit) {
            Err(refused) => Step::Refused(Err(refused)),
            Ok(Some(decision)) if !validate_only => Step::Write(decision, Box::new(|_| Ok(()))),
            Ok(_) => Step::Done(Ok(())),
        });
        answer.await?.map_err(AdminError::Refused)
    }

    /// Takes a block of producer ids, which nobody else was or will be given.
    pub async fn next_producer_ids(&self) -> Result<Range<i64>, ControlError> {
        let (node, session) = (self.node, self.session());
        let answer = self.run(move |view| match producer_ids::next_block(view, node, session) {
            Err(used_up) => Step::Done(Err(used_up)),
            Ok((decision, block)) => Step::Write(decision, Box::new(move |_| Ok(block))),
        });
        answer.await?.map_err(|used_up| ControlError::Unavailable(used_up.to_string()))
    }

    /// Reports that this node has opened a partition which it was named to lead (C10), with this copy. `learned` is
    /// what [`View::learned`] said of it. Returns what is to be carried by the next report.
    pub async fn report_opened(
        &self,
        partition: PartitionId,
        generation: Generation,
        log: LogId,
        learned: Learned,
    ) -> Result<Learned, ReportError> {
        self.report(partition, generation, Report::Opened(log), learned).await
    }

    /// Reports who may be promoted besides this leader. `dead` are members dropped because their logs are known to
    /// be gone; `need` is how many copies an acknowledgement needs.
    pub async fn report_eligible(
        &self,
        partition: PartitionId,
        generation: Generation,
        pairs: BTreeSet<Pair>,
        dead: BTreeSet<Pair>,
        need: usize,
        learned: Learned,
    ) -> Result<Learned, ReportError> {
        self.report(partition, generation, Report::Eligible { pairs, dead, need }, learned).await
    }

    /// Says that this node does not lead with the copy it was named with (C11).
    pub async fn report_declined(
        &self,
        partition: PartitionId,
        generation: Generation,
        declined: Declined,
        learned: Learned,
    ) -> Result<Learned, ReportError> {
        self.report(partition, generation, Report::Declined(declined), learned).await
    }

    /// Makes a report about a tenure of this session.
    pub async fn report(
        &self,
        partition: PartitionId,
        generation: Generation,
        report: Report,
        learned: Learned,
    ) -> Result<Learned, ReportError> {
        let (to, from) = oneshot::channel();
        self.report_then(partition, generation, report, learned, |answer| drop(to.send(answer)));
        let stopped = || ControlError::Stopped("its loop is over".to_owned());
        from.await.unwrap_or_else(|_| Err(stopped().into()))
    }

    /// The same for those who do not await: `done` is called on the control thread and must not wait. Reports that
    /// are made together share a transaction.
    pub fn report_then(
        &self,
        partition: PartitionId,
        generation: Generation,
        report: Report,
        learned: Learned,
        done: impl FnOnce(Result<Learned, ReportError>) + Send + 'static,
    ) {
        let from = Tenure { broker: self.node, session: self.session(), generation };
        let decide = move |view: &View| decide_report(view, partition, &from, &report, learned);
        let flatten = |answer: Result<Result<Learned, ReportError>, ControlError>| {
            done(answer.unwrap_or_else(|error| Err(error.into())));
        };
        self.submit(decide, flatten);
    }

    /// Says that this node holds a copy again that it had given up for lost ([`eligible::returned`]); `done` hears
    /// whether that was noted. Who leads then is for the controller.
    pub fn report_returned(
        &self,
        partition: PartitionId,
        held: Declined,
        done: impl FnOnce(Result<bool, ControlError>) + Send + 'static,
    ) {
        let (node, session) = (self.node, self.session());
        let decide = move |view: &View| {
            let (Some(key), Some(learned), Some(own)) =
                (view.partition(&partition), view.learned(&partition), view.broker(node))
            else {
                return Step::Done(false);
            };
            match eligible::returned(&key.state, node, &held) {
                Some(after) if own.node.session == session => {
                    let decision = Decision::new()
                        .at(Key::Node(node), own.revision)
                        .at(Key::Topic(partition.topic), learned.topic)
                        .at(Key::Partition(partition), learned.partition)
                        .put(Key::Partition(partition), &after);
                    Step::Write(decision, Box::new(|_| true))
                }
                Some(_) | None => Step::Done(false),
            }
        };
        self.submit(decide, done);
    }

    /// First act of a planned stop: from here on this node is named only where nobody else can be. It still leads.
    pub async fn drain(&self) -> Result<(), ControlError> {
        let (node, session) = (self.node, self.session());
        self.run(move |view| match registration::set_state(view, node, session, NodeState::Draining) {
            Some(decision) => Step::Write(decision, Box::new(|_| ())),
            None => Step::Done(()),
        })
        .await
    }

    /// Last act of a planned stop, once nothing is led any more: the session ends in the store too, so that nobody
    /// has to wait for it to run out. The lease ends before that is written.
    pub async fn stop(&self) -> Result<(), ControlError> {
        self.end(false).await
    }

    /// The same after a flush has failed: the next life of this node vouches for nothing that it finds, even if the disk could not take
    /// that in.
    pub async fn stop_suspect(&self) -> Result<(), ControlError> {
        self.end(true).await
    }

    async fn end(&self, suspect: bool) -> Result<(), ControlError> {
        self.published.lease().end();
        let (node, session) = (self.node, self.session());
        let last = move |view: &View| registration::end(view, node, session, suspect);
        let (to, from) = oneshot::channel();
        let stopped = || ControlError::Stopped("its loop is over".to_owned());
        self.commands.send(Command::Stop(Box::new(last), to)).map_err(|_| stopped())?;
        let position = from.await.map_err(|_| stopped())?;
        let position = position.map_err(|error| ControlError::Unavailable(error.to_string()))?;
        (self.remember)(position).map_err(|error| ControlError::Unavailable(error.to_string()))
    }
}

fn is_open(view: &View, id: &TopicId, node: BrokerId, session: SessionId) -> bool {
    let Some(topic) = view.topic(id) else { return true };
    let mut count = 0;
    for partition in view.partitions_of(id) {
        count += 1;
        if partition.led_by(node, session).is_some() && !partition.opened() {
            return false;
        }
        if partition.leader().is_none() {
            return false;
        }
    }
    count >= topic.partition_count
}

fn decide_report(
    view: &View,
    id: PartitionId,
    from: &Tenure,
    report: &Report,
    learned: Learned,
) -> Step<Result<Learned, ReportError>> {
    let (Some(partition), Some(now)) = (view.partition(&id), view.learned(&id)) else {
        return Step::Done(Err(ReportError::Gone));
    };
    if now != learned {
        return Step::Done(match eligible::apply(&partition.state, from, report) {
            // It has landed before, with an answer that was lost.
            Ok(after) if after == partition.state => Ok(now),
            Ok(_) | Err(_) => Err(ReportError::Moved),
        });
    }
    match eligible::decide(partition, learned, from, report) {
        Err(unlawful) => Step::Done(Err(unlawful.into())),
        Ok(None) => Step::Done(Ok(now)),
        Ok(Some(decision)) => {
            let next = move |revision| Ok(Learned { partition: revision, topic: learned.topic });
            Step::Write(decision, Box::new(next))
        }
    }
}

#[cfg(test)]
mod tests;
