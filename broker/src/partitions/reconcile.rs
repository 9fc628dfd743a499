//! Follows the cluster's view: opens what this session is named to lead, deletes what is gone, and hands on settings that
//! changed. What is lost is ended elsewhere (`authority`), at once.
//!
//! One plain thread, woken by new views. It looks only at what differs between two views, so that one change
//! among 10,000 partitions costs one look. Opening goes in batches, several at a time: each batch shares the
//! flush of its fences and of whatever recovery had to rewrite.

use std::collections::{BTreeMap, BTreeSet};
use std::sync::Arc;
use std::time::Duration;

use felix_cluster::config::Overrides;
use felix_cluster::eligible::{self, Declined, Report};
use felix_cluster::state::{self as stored, DeclineReason, Revision};
use felix_cluster::throttle::Throttled;
use felix_cluster::view::{Changes, View};
use felix_control::agent::Agent;
use felix_partition::config::PartitionConfig;
use felix_partition::opening::{Decline, OpenRequest, Outcome};
use felix_protocol::ids::{Generation, LogId, Offset, PartitionId, SessionId, TopicId};
use felix_protocol::time::{Clock, MonoTime};
use felix_replication::halted::HaltReason;
use felix_replication::lease::Lease;
use felix_storage::disk::os::OsDisk;
use felix_storage::disk::{Disk, DiskFileSystem};
use felix_storage::{Deleted, StorageError};
use tokio::runtime::Handle;
use tokio::sync::{Notify, watch};

use crate::clock::SystemClock;
use crate::partitions::authority::{Authority, Keeping, Known};
use crate::partitions::lane::Message;
use crate::partitions::nodes;
use crate::partitions::report::key_state;
use crate::partitions::scrub::Pace;
use crate::partitions::settings::Settings;
use crate::partitions::throttle::Rates;
use crate::partitions::{Partitions, Writer};
use crate::tasks;
use retries::Retries;

mod damaged;
mod following;
mod halted;
mod retries;
mod room;

/// Partitions opened together.
const BATCH: usize = 256;
/// Batches opened at the same time.
const PARALLEL: usize = 4;

/// What a lane owns, as far as it was told.
struct Held {
    /// The newest tenure it was given.
    generation: Generation,
    /// Replicas that its settings were made for: how many of them an acknowledgement needs follows from that.
    counted: usize,
    config: Arc<PartitionConfig>,
}

/// See the module.
struct Reconciler {
    partitions: Arc<Partitions>,
    agent: Agent,
    settings: Settings,
    authority: Arc<Authority>,
    seen: Arc<View>,
    session: SessionId,
    held: BTreeMap<PartitionId, Held>,
    /// To be opened, which the system did not let us.
    retry: Retries,
    /// Copies that are throttled, and what this broker may send of them.
    throttled: Throttled,
    sending: Option<u64>,
    /// Rung when damage was met in a copy in use.
    damaged: Arc<Notify>,
}

/// Ends the following.
pub struct Following {
    stop: watch::Sender<bool>,
    thread: std::thread::JoinHandle<Result<(), tasks::Panicked>>,
    keeping: Keeping,
}

impl Following {
    /// No partition is opened or deleted from here on; blocks while one is. Then runs `last`, while the lease can still
    /// be renewed, and after that nothing is ended any more either.
    pub fn stop(self, last: impl FnOnce()) {
        self.stop.send_replace(true);
        // A panic was logged and counted where it happened.
        let _ = self.thread.join();
        last();
        self.keeping.stop();
    }
}

/// Follows the agent's view from now on, on a thread of its own. `fixed` is what the broker was started
/// with. Must be called on the runtime.
pub fn follow(
    partitions: Arc<Partitions>,
    agent: Agent,
    fixed: Arc<Overrides>,
) -> std::io::Result<Following> {
    let (stop, stopped) = watch::channel(false);
    let damaged = Arc::new(Notify::new());
    let rings = Arc::clone(&damaged);
    partitions.opener.dir.damage().wake(move || rings.notify_one());
    let runtime = Handle::current();
    let telling =
        nodes::watch(partitions.lanes.clone(), partitions.opener.clock, agent.clone(), stopped.clone());
    tasks::spawn("telling leaders of nodes", telling);
    let (authority, keeping) = Authority::start(Arc::clone(&partitions), agent.clone(), runtime.clone())?;
    let reconciler = Reconciler {
        damaged,
        settings: Settings::new(agent.node(), fixed),
        partitions,
        authority,
        session: agent.session(),
        agent,
        seen: Arc::default(),
        held: BTreeMap::new(),
        retry: Retries::new(),
        throttled: Throttled::default(),
        sending: None,
    };
    let thread = tasks::thread("felix-reconcile", move || reconciler.run(&runtime, stopped))?;
    Ok(Following { stop, thread, keeping })
}

/// The copy that the present leader leads with: the one that was named, or the one that it opened when any would do.
/// Replicas of a partition that count for what an acknowledgement needs.
fn counted(view: &View, partition: &PartitionId) -> usize {
    view.partition(partition).map_or(0, |partition| eligible::counted(&partition.state))
}

fn named(state: &stored::Partition) -> Option<LogId> {
    let opened = || state.last.pair().filter(|_| state.opened()).map(|pair| pair.log);
    state.leader?.log.or_else(opened)
}

impl Reconciler {
    fn run(mut self, runtime: &Handle, mut stopped: watch::Receiver<bool>) {
        let mut changed = self.agent.changed();
        self.clean_up();
        loop {
            changed.mark_unchanged();
            self.take_in(&Known::of(&self.agent));
            self.settle_damage();
            let retry = self.retry.ask_again(self.now());
            let go_on = runtime.block_on(async {
                let wait = async {
                    match retry {
                        Some(wait) => tokio::time::sleep(wait).await,
                        None => std::future::pending().await,
                    }
                };
                tokio::select! {
                    changed = changed.changed() => changed.is_ok(),
                    _ = stopped.wait_for(|stop| *stop) => false,
                    () = wait => true,
                    () = self.damaged.notified() => true,
                    () = self.partitions.led.halting() => true,
                }
            });
            if !go_on {
                return;
            }
        }
    }

    fn now(&self) -> MonoTime {
        self.partitions.opener.clock.now()
    }

    /// What could not be opened before and is to be tried again now.
    fn due_again(&mut self) -> BTreeSet<PartitionId> {
        let dir = &self.partitions.opener.dir;
        let free = || dir.disk().file_system(dir.path()).ok().and_then(|system| system.free_bytes());
        self.retry.take_due(self.partitions.opener.clock.now(), free)
    }

    /// What earlier processes left behind: copies of topics that are gone by now, and half-removed folders.
    /// The view is a complete list, read after this node's registration.
    fn clean_up(&self) {
        let view = self.agent.view();
        if view.revision() == Revision::ABSENT {
            return;
        }
        let opener = &self.partitions.opener;
        let gone = |partition: &PartitionId| view.topic(&partition.topic).is_none();
        match opener.dir.partitions() {
            Ok(folders) => {
                for partition in folders.into_iter().filter(gone) {
                    if self.agent.is_unverified() {
                        tracing::warn!(
                            %partition,
                            "the control store does not know this copy's topic, and may have gone back; the copy is kept"
                        );
                        continue;
                    }
                    tracing::info!(%partition, "a copy of a deleted topic is removed");
                    self.removed(partition, Some(opener.dir.discard(&partition)), Duration::ZERO);
                }
            }
            Err(error) => tracing::warn!(%error, "the data directory cannot be listed"),
        }
        match opener.dir.leftovers() {
            Ok(leftovers) => {
                for deleted in leftovers {
                    self.partitions.upkeep.remove_folder(deleted);
                }
            }
            Err(error) => tracing::warn!(%error, "the data directory cannot be listed"),
        }
        for (partition, _) in opener.replicas.all() {
            if gone(&partition) && !self.agent.is_unverified() {
                self.partitions.upkeep.forget_row(partition);
            }
        }
    }

    fn take_in(&mut self, known: &Known) {
        let view = &known.view;
        let mut changes = view.changes_since(&self.seen);
        if std::mem::replace(&mut self.session, known.lease.session()) != self.session {
            // It may be named already in a view that was looked at under the session before.
            changes.look_at(view.partitions().map(|partition| partition.id));
        }
        let first = self.seen.revision() == Revision::ABSENT;
        self.seen = Arc::clone(view);
        changes.look_at(self.due_again());
        let halted = self.partitions.led.take_newly_halted();
        changes.look_at(halted.into_iter().filter(|partition| self.held.contains_key(partition)));
        if changes.is_empty() {
            return;
        }
        if first || changes.configs {
            let logs = self.settings.refresh(view);
            let every = Duration::from_millis(logs.retention_check_interval_ms.max(1));
            self.partitions.upkeep.retain_every(every);
            self.partitions.scrub.configure(Pace::of(&logs));
            self.partitions.rebuilds.configure(logs.rebuild.most, logs.rebuild.bytes_per_second);
            self.sending = logs.throttle.sending;
            if let Err(error) = self.partitions.cleaner.configure(logs.cleaner) {
                tracing::warn!(%error, "not all threads that compact logs could be started");
            }
        }
        self.throttle(view, &changes);
        self.follow_tenures(known, &changes);
        self.follow_settings(view, &changes);
    }

    /// What is throttled while it catches up. Shares depend on who leads what, so they are counted anew with every change,
    /// where anything is listed.
    fn throttle(&mut self, view: &View, changes: &Changes) {
        self.throttled.take_in(view, &changes.topics);
        let share = |id| Some((id, self.throttled.share(view, id)?));
        let is_listed = !self.throttled.is_empty();
        let followers = view.nodes().filter(|_| is_listed).filter_map(|(id, _)| share(id)).collect();
        let rates = Rates { own: self.sending, followers };
        self.partitions.ships.gate().configure(&self.throttled, rates);
    }

    fn follow_tenures(&mut self, known: &Known, changes: &Changes) {
        let view = &known.view;
        let (node, session) = (self.agent.node(), known.lease.session());
        let mut to_open = Vec::new();
        let mut to_follow = Vec::new();
        let mut to_leave = Vec::new();
        let mut gone = Vec::new();
        for partition in &changes.partitions {
            let named = view.partition(partition).filter(|_| view.topic(&partition.topic).is_some());
            let Some(state) = named else {
                gone.push(*partition);
                continue;
            };
            match (state.led_by(node, session), self.held.get(partition)) {
                (Some(generation), None) => to_open.push((*partition, generation)),
                (Some(generation), Some(held)) if held.generation < generation => {
                    // Led before in this process: the lane's copy goes on from where it is.
                    self.lead_again(known, *partition, generation);
                }
                (_, held) if following::left(&state.state, node) => {
                    if held.is_some() || self.partitions.opener.replicas.get(partition).is_some() {
                        to_leave.push(*partition);
                    }
                }
                // Somebody else may have written the key: another set of replicas, say.
                (Some(generation), Some(_)) => {
                    if !self.give_up_halted(view, *partition, generation) {
                        self.tell_of_key(view, *partition, generation);
                    }
                }
                // Lost, and ended by now.
                (None, Some(_)) => {}
                (None, None) if state.state.replicas.len() > 1 && state.state.replicas.contains(&node) => {
                    to_follow.push(*partition);
                }
                (None, None) => self.look_for_lost(view, *partition, &state.state),
            }
        }
        self.delete(gone);
        self.leave(view, to_leave);
        self.open(known, to_open);
        self.follow_leaders(known, to_follow);
    }

    /// Opens in batches, a few of them at the same time.
    fn open(&mut self, known: &Known, to_open: Vec<(PartitionId, Generation)>) {
        let (view, lease) = (&known.view, Lease::shared(known.lease.shared()));
        let mut requests = Vec::new();
        for (partition, generation) in to_open {
            let (Some(topic), Some(state)) = (view.topic(&partition.topic), view.partition(&partition))
            else {
                continue;
            };
            requests.push(OpenRequest {
                partition,
                generation,
                named: named(&state.state),
                unclean: state.state.unclean_at == Some(generation),
                config: self.settings.of(view, topic, &state.state),
            });
        }
        for round in requests.chunks(BATCH * PARALLEL) {
            let (partitions, lease) = (&self.partitions, &lease);
            let outcomes: Vec<Outcome<OsDisk, SystemClock, Writer>> = std::thread::scope(|scope| {
                let batches: Vec<_> = round
                    .chunks(BATCH)
                    .skip(1)
                    .map(|batch| scope.spawn(move || partitions.opener.open(batch, lease)))
                    .collect();
                let first = partitions.opener.open(&round[..round.len().min(BATCH)], lease);
                let rest = batches.into_iter().flat_map(|batch| match batch.join() {
                    Ok(outcomes) => outcomes,
                    Err(panic) => std::panic::resume_unwind(panic),
                });
                first.into_iter().chain(rest).collect()
            });
            for (request, outcome) in round.iter().zip(outcomes) {
                self.opened(known, request, outcome);
            }
        }
    }

    fn opened(
        &mut self,
        known: &Known,
        request: &OpenRequest,
        outcome: Outcome<OsDisk, SystemClock, Writer>,
    ) {
        let view = &known.view;
        let (partition, generation) = (request.partition, request.generation);
        match outcome {
            Outcome::Ready(copy, report) => {
                if report.cut_bytes > 0 || !report.rebuilt.is_empty() {
                    let (cut, rebuilt) = (report.cut_bytes, &report.rebuilt);
                    tracing::info!(%partition, cut_bytes = cut, ?rebuilt, "a log was recovered");
                }
                let Some(key) = key_state(view, &partition) else { return };
                let mut copy = copy;
                copy.lost_at(view.partition(&partition).and_then(|it| it.state.unclean_at));
                let bounds = copy.bounds();
                let lane = self.partitions.lane_of(&partition);
                let adopt = || lane.send(Message::Adopt { copy, key });
                // Lost while it was opened: the bytes stay for another time.
                if !self.authority.give(known, partition, generation, adopt) {
                    return;
                }
                if request.unclean {
                    self.partitions.led.lossy(&partition, generation, bounds.0, bounds.1);
                }
                let config = Arc::clone(&request.config);
                let counted = counted(view, &partition);
                self.held.insert(partition, Held { generation, counted, config });
            }
            Outcome::Declined { reason, current, accepted, end } => {
                let reason = match reason {
                    Decline::Wiped => DeclineReason::Wiped,
                    Decline::Doubt => DeclineReason::Doubt,
                };
                self.decline(view, partition, generation, Declined { reason, current, accepted, end });
            }
            Outcome::Stale { accepted } => {
                tracing::error!(
                    %partition, %generation, %accepted,
                    "named to lead at a generation older than the one accepted here: the control store went back"
                );
                // The next promotion is at a later one; before long it is late enough.
                if let (Some(current), Some(row)) =
                    (request.named, self.partitions.opener.replicas.get(&partition))
                {
                    let (reason, current) = (DeclineReason::Doubt, Some(current));
                    let declined = Declined { reason, current, accepted, end: row.synced };
                    self.decline(view, partition, generation, declined);
                }
            }
            Outcome::Failed(error @ (StorageError::Full { .. } | StorageError::Io { .. })) => {
                tracing::warn!(%partition, %error, "a partition cannot be opened now; trying again");
                self.later(partition, generation, &error);
                self.partitions.upkeep.look_at_table();
            }
            Outcome::Failed(error) => {
                self.partitions.upkeep.look_at_table();
                tracing::error!(%partition, %error, "a partition cannot be opened");
                self.partitions.led.halted(&partition, generation, 0, HaltReason::Storage);
            }
        }
    }

    /// A copy could not be opened, and is tried again. Space comes and goes; anything else that the system refuses is for somebody to see
    /// to, and shown until a try succeeds.
    fn later(&mut self, partition: PartitionId, generation: Generation, error: &StorageError) {
        if !matches!(error, StorageError::Full { .. }) {
            let row = self.partitions.opener.replicas.get(&partition);
            let position = row.map_or(0, |row| row.synced);
            self.partitions.led.halted(&partition, generation, position, HaltReason::Storage);
        }
        self.retry.add(partition);
    }

    /// A partition that nobody leads, because the copy here was given up: shows that, or says that it is back.
    fn look_for_lost(&mut self, view: &View, partition: PartitionId, state: &stored::Partition) {
        let node = self.agent.node();
        let Some(gone) = state.gone.iter().find(|gone| gone.pair.broker == node) else { return };
        let Some(topic) = view.topic(&partition.topic).filter(|_| state.leader.is_none()) else { return };
        let config = self.settings.of(view, topic, state);
        match self.partitions.opener.take_back(&partition, gone.pair.log, gone.current, &config) {
            Ok(Some(row)) => {
                tracing::warn!(%partition, "a copy that was given up for lost is back, under a new identity");
                let (reason, current) = (DeclineReason::Doubt, Some(row.log_id));
                let held = Declined { reason, current, accepted: row.accepted, end: row.synced };
                self.agent.report_returned(partition, held, move |noted| {
                    if let Err(error) = noted {
                        tracing::warn!(%partition, %error, "a copy's return was not noted; the next start does it");
                    }
                });
            }
            Ok(None) if gone.current.is_none() => {
                self.partitions.led.halted(&partition, state.generation, 0, HaltReason::Wiped);
            }
            Ok(None) => {}
            Err(error) => tracing::error!(%partition, %error, "a copy that was given up cannot be looked at"),
        }
    }

    fn decline(&self, view: &View, partition: PartitionId, generation: Generation, declined: Declined) {
        tracing::error!(
            %partition, %generation, reason = ?declined.reason,
            "another copy was named than the one here: this broker declines to lead it"
        );
        let Some(learned) = view.learned(&partition) else { return };
        let report = Report::Declined(declined);
        self.agent.report_then(partition, generation, report, learned, move |answer| {
            if let Err(error) = answer {
                tracing::warn!(%partition, %error, "declining was not noted; the next view decides");
            }
        });
    }

    fn lead_again(&mut self, known: &Known, partition: PartitionId, generation: Generation) {
        let view = &known.view;
        let replicas = &self.partitions.opener.replicas;
        let Some(row) = replicas.get(&partition) else { return };
        let named = view.partition(&partition).and_then(|state| named(&state.state));
        if named.is_some_and(|named| named != row.log_id) {
            let (reason, current) = (DeclineReason::Doubt, Some(row.log_id));
            let declined = Declined { reason, current, accepted: row.accepted, end: row.synced as Offset };
            self.decline(view, partition, generation, declined);
            return;
        }
        if row.accepted > generation {
            // The next promotion is at a later one.
            tracing::warn!(%partition, %generation, accepted = %row.accepted, "a newer leader was accepted here meanwhile");
            return;
        }
        // It may follow, and accept another generation, at this very moment.
        let ticket = replicas.stage_with(&partition, |row| {
            row.accepted = row.accepted.max(generation);
            // Who leads says what is right.
            row.diverged = false;
        });
        if let Err(error) = replicas.commit(ticket) {
            tracing::warn!(%partition, %error, "a generation could not be accepted; trying again");
            self.retry.add(partition);
            return;
        }
        let Some(key) = key_state(view, &partition) else { return };
        let (lane, lease) = (self.partitions.lane_of(&partition), Lease::shared(known.lease.shared()));
        let unclean_at = view.partition(&partition).and_then(|it| it.state.unclean_at);
        let lead = || lane.send(Message::Lead { partition, generation, lease, key, unclean_at });
        if self.authority.give(known, partition, generation, lead)
            && let Some(held) = self.held.get_mut(&partition)
        {
            held.generation = generation;
        }
    }

    /// The topics are gone. What is written to them meanwhile is refused from the moment the lanes hear of it;
    /// the files go on this thread, so that no lane waits for them.
    fn delete(&mut self, partitions: Vec<PartitionId>) {
        let mut given_up = Vec::new();
        for partition in partitions {
            let Some(held) = self.held.remove(&partition) else {
                self.partitions.led.forget(&partition);
                continue;
            };
            let (answer, copy) = crossbeam_channel::bounded(1);
            self.partitions.lane_of(&partition).send(Message::GiveUp { partition, answer });
            given_up.push((partition, copy, held.config.log.file_delete_delay_ms));
        }
        for (partition, copy, delay_ms) in given_up {
            let delay = Duration::from_millis(u64::try_from(delay_ms).unwrap_or(0));
            // An error means that the lane is gone: the next start deletes the copy.
            let copy = copy.recv();
            // Only now: whoever sees that the partition is not led any more sees its writes refused, too.
            self.partitions.led.forget(&partition);
            if let Ok(copy) = copy {
                self.removed(partition, copy.map(|copy| copy.delete()), delay);
            }
        }
    }

    fn removed(
        &self,
        partition: PartitionId,
        deleted: Option<Result<Deleted<OsDisk>, StorageError>>,
        delay: Duration,
    ) {
        match deleted {
            Some(Ok(deleted)) => self.partitions.upkeep.remove(partition, deleted, delay),
            Some(Err(StorageError::Missing(_))) | None => self.partitions.upkeep.forget_row(partition),
            Some(Err(error)) => {
                tracing::warn!(%partition, %error, "a deleted partition stays on the disk until the next start");
            }
        }
    }

    /// Hands on settings of topics that changed; all of them where the broker's own did, and of those partitions alone that got
    /// more replicas or fewer.
    fn follow_settings(&mut self, view: &View, changes: &Changes) {
        for id in &changes.partitions {
            let counted = counted(view, id);
            if self.held.get(id).is_some_and(|held| held.counted != counted) {
                self.configure(view, id);
            }
        }
        let mut topics: BTreeSet<TopicId> = changes.topics.iter().copied().collect();
        if changes.configs {
            topics.extend(self.held.keys().map(|partition| partition.topic));
        }
        for id in topics {
            for partition in view.partitions_of(&id) {
                self.configure(view, &partition.id);
            }
        }
    }

    /// Hands on what a partition obeys, if it is held and that is something new.
    fn configure(&mut self, view: &View, id: &PartitionId) {
        let (Some(partition), Some(topic)) = (view.partition(id), view.topic(&id.topic)) else { return };
        let Some(held) = self.held.get_mut(id) else { return };
        held.counted = eligible::counted(&partition.state);
        let config = self.settings.of(view, topic, &partition.state);
        if *held.config != *config {
            held.config = Arc::clone(&config);
            self.partitions.lane_of(id).send(Message::Configure { partition: *id, config });
        }
    }
}
