//! The partitions that this broker leads: lanes that own the copies, and the handles that others hold.
//!
//! A lane is a plain thread; there is no task, thread or timer per partition. Writes go through the lane of
//! their partition, reads go to a published snapshot and never visit it.
//!
//! | thread | what it waits for |
//! |---|---|
//! | lanes (a few) | their mailbox |
//! | flushers (a few) | the disk, for the bytes of records |
//! | upkeep (one) | the disk, for everything else |
//! | compaction (`log.cleaner.threads`) | the disk, and time |
//! | authority (one) | the cluster's view |
//! | reports (one) | lanes that have something to report |
//!
//! Which partitions are led is `reconcile`'s business: it follows the cluster's view.

mod authority;
mod compaction;
mod flusher;
mod handle;
mod lags;
mod lane;
mod led;
mod nodes;
mod rebuilds;
mod reconcile;
mod report;
mod reporting;
mod scrub;
mod settings;
mod shipping;
mod standing;
mod steady;
mod throttle;
mod upkeep;
mod wait;

use std::hash::{DefaultHasher, Hash, Hasher};
use std::io;
use std::sync::Arc;
use std::time::Duration;

use felix_cluster::config::broker::CleanerConfig;
use felix_cluster::promotion::Standing;
use felix_control::agent::Agent;
use felix_partition::Copy;
use felix_partition::append::{AppendError, Appended};
use felix_partition::following::Shipped;
use felix_partition::opening::Opener;
use felix_protocol::ids::{BrokerId, LogId, Offset, PartitionId};
use felix_replication::follower::Restart;
use felix_replication::halted::{HaltReason, Halted};
use felix_storage::disk::os::OsDisk;
use felix_storage::{DataDir, FlushError, FlushMode, Flusher, Replicas, StorageError};
use parking_lot::Mutex;
use thiserror::Error;
use tokio::sync::{oneshot, watch};

use crate::clock::SystemClock;
use crate::peers::{Lost, Peers};
use crate::tasks;
use compaction::Cleaner;
use flusher::FlushQueue;
use lane::{LaneContext, LaneSender, Message, Told};
use led::Led;
use rebuilds::Rebuilds;
use report::ControlStore;
use reporting::{Counts, Reporting};
use shipping::Ships;
use throttle::Gate;
use upkeep::Upkeep;

pub use compaction::Figures;
pub use flusher::Flushes;
pub use handle::{Answer, PartitionHandle};
pub use lags::Lag;
pub use rebuilds::Rebuilt;
pub use reconcile::{Following, follow};
pub use scrub::{Pace, Scrubbed};
pub use wait::{FetchWait, Isolation, Registration};

/// Whom a lane answers.
type Writer = oneshot::Sender<Result<Appended, AppendError>>;
/// The copies that lanes own.
type LaneCopy = Copy<OsDisk, SystemClock, Writer>;

/// Why producers were not described.
#[derive(Clone, Copy, Debug, PartialEq, Eq, Error)]
pub enum ProducersError {
    /// This broker does not lead the partition.
    #[error("this broker does not lead the partition")]
    NotLeader,
}

/// What the partitions are started with.
pub struct Setup {
    /// The locked data directory.
    pub dir: DataDir<OsDisk>,
    /// Its table of copies, with identities settled (`felix_partition::fence`).
    pub replicas: Arc<Replicas<OsDisk>>,
    /// `felix.flush.mode`.
    pub flush_mode: FlushMode,
    /// This broker.
    pub broker: BrokerId,
    /// The clock.
    pub clock: SystemClock,
    /// How many lanes.
    pub lanes: usize,
    /// How many threads wait for flushes.
    pub flushers: usize,
    /// `log.retention.check.interval.ms`.
    pub retain_every: Duration,
    /// How closed segments are looked through.
    pub scrub: Pace,
    /// `log.cleaner.*`.
    pub cleaner: CleanerConfig,
    /// Told how long each flush waited for the disk.
    pub flush_seconds: prometheus::Histogram,
}

/// Why the partitions did not start.
#[derive(Debug, Error)]
pub enum StartError {
    /// The storage refused.
    #[error(transparent)]
    Storage(#[from] StorageError),
    /// No thread could be started.
    #[error("cannot start a thread: {0}")]
    Thread(#[from] io::Error),
}

/// A thread of this module.
type Thread = std::thread::JoinHandle<Result<(), tasks::Panicked>>;

/// A copy that this broker has and cannot open.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(crate) struct Unopened {
    pub log: LogId,
    pub end: Offset,
    pub reason: HaltReason,
}

/// The partitions that this broker leads.
pub struct Partitions {
    led: Arc<Led>,
    lanes: Vec<LaneSender>,
    upkeep: Upkeep,
    scrub: Arc<scrub::Control>,
    scrubbed: Arc<scrub::Findings>,
    cleaner: Cleaner,
    flushes: Arc<flusher::Counters>,
    to_flush: Arc<FlushQueue>,
    opener: Opener<OsDisk, SystemClock>,
    ships: Arc<Ships>,
    rebuilds: Arc<Rebuilds>,
    reported: Arc<Counts>,
    threads: Mutex<Vec<Thread>>,
}

impl Partitions {
    /// Starts the threads. No partition is open yet.
    pub fn start(setup: Setup, agent: &Agent) -> Result<Arc<Partitions>, StartError> {
        Partitions::start_with(setup, Arc::new(agent.clone()))
    }

    fn start_with(setup: Setup, control: Arc<dyn ControlStore>) -> Result<Arc<Partitions>, StartError> {
        let flusher = Arc::new(Flusher::new(&setup.dir, setup.flush_mode)?);
        let led = Arc::new(Led::new(setup.broker));
        let (upkeep, keeper) =
            Upkeep::new(Arc::clone(&setup.replicas), Arc::clone(&led), setup.clock, setup.retain_every);
        let mut threads = vec![tasks::thread("felix-upkeep", keeper)?];
        let flushes = Arc::<flusher::Counters>::default();
        let to_flush = Arc::<FlushQueue>::default();
        start_flushers(&setup, &to_flush, &flusher, &flushes, &mut threads)?;
        let mut lanes = Vec::new();
        let reported = Arc::<Counts>::default();
        let (control, desk) = Reporting::new(control, setup.clock, Arc::clone(&reported));
        let control: Arc<dyn ControlStore> = Arc::new(control);
        let ships = Arc::new(Ships::new(Gate::new(setup.broker, setup.clock)));
        let rebuilds = Arc::<Rebuilds>::default();
        for number in 0..setup.lanes.max(1) {
            let context = LaneContext {
                clock: setup.clock,
                led: Arc::clone(&led),
                control: Arc::clone(&control),
                flusher: Arc::clone(&to_flush),
                upkeep: upkeep.clone(),
                ships: Arc::clone(&ships),
                rebuilds: Arc::clone(&rebuilds),
            };
            let lane = LaneSender::new(context);
            let thread = lane.clone();
            threads.push(tasks::thread(&format!("felix-lane-{number}"), move || thread.run())?);
            lanes.push(lane);
        }
        // Joined behind the lanes, with which it ends.
        threads.push(tasks::thread("felix-reports", desk)?);
        drop(control);
        let scrubbed = Arc::<scrub::Findings>::default();
        let (scrub, scrubber) = scrub::new(Arc::clone(&led), setup.clock, setup.scrub, Arc::clone(&scrubbed));
        threads.push(tasks::thread("felix-scrub", scrubber)?);
        let cleaner = Cleaner::start(
            setup.cleaner,
            lanes.clone(),
            Arc::clone(&led),
            Arc::clone(&setup.replicas),
            setup.clock,
        )?;
        let opener = Opener {
            dir: setup.dir,
            replicas: setup.replicas,
            flusher,
            broker: setup.broker,
            clock: setup.clock,
        };
        let threads = Mutex::new(threads);
        let partitions = Partitions {
            led,
            lanes,
            upkeep,
            cleaner,
            scrub,
            scrubbed,
            flushes,
            to_flush,
            opener,
            ships,
            rebuilds,
            reported,
            threads,
        };
        Ok(Arc::new(partitions))
    }

    /// Ships to followers over these connections from now on. Must be called on the runtime.
    pub fn ship_over(&self, peers: Arc<Peers>) {
        self.ships.begin(peers, self.lanes.clone());
    }

    /// The other brokers to which a connection broke.
    pub fn lost_peers(&self) -> Vec<(BrokerId, Lost)> {
        self.ships.lost()
    }

    /// Hands a leader's frame to the copy here; `told` hears what that says, or that there is none.
    pub fn follow(&self, partition: PartitionId, shipped: Shipped, told: Told) {
        self.lane_of(&partition).send(Message::Follow { partition, shipped, told });
    }

    /// Hands a leader's word to begin anew to the copy here.
    pub fn restart(&self, partition: PartitionId, restart: Restart, told: Told) {
        self.lane_of(&partition).send(Message::Restart { partition, restart, told });
    }

    /// How many reports about who may lead were made.
    pub fn reports(&self) -> u64 {
        self.reported.reports()
    }

    /// How many reports about who may lead shared a request to the control store, on average.
    pub fn reports_per_request(&self) -> f64 {
        self.reported.per_request()
    }

    /// What became of followers' copies that leaders here rebuilt.
    pub fn rebuilt(&self) -> Rebuilt {
        self.rebuilds.figures()
    }

    /// The partition's current tenure on this broker; `None` where it does not lead.
    pub fn get(&self, partition: &PartitionId) -> Option<PartitionHandle> {
        self.led.get(partition)
    }

    /// All tenures, by partition.
    pub fn all(&self) -> Vec<PartitionHandle> {
        self.led.all()
    }

    /// What is durable of this broker's copy, led or not.
    pub fn copy(&self, partition: &PartitionId) -> Option<felix_storage::Replica> {
        let row = self.opener.replicas.get(partition)?;
        // Of one that is open, more is known than the table says.
        let end = self.get(partition).map_or(row.synced, |open| open.log_end());
        Some(felix_storage::Replica { synced: row.synced.max(end), ..row })
    }

    /// How many partitions this broker leads.
    pub fn count(&self) -> usize {
        self.led.len()
    }

    /// Changes whenever a tenure begins or ends here, or a copy is halted.
    pub fn changes(&self) -> watch::Receiver<u64> {
        self.led.changes()
    }

    /// The copies that stopped for good.
    pub fn halted(&self) -> Vec<Halted> {
        self.led.all_halted()
    }

    /// A copy that is in the table and listed as halted: what it says when no lane has it.
    pub(crate) fn unopened(&self, partition: &PartitionId) -> Option<Unopened> {
        let halted = self.led.halted_here(partition)?;
        let row = self.opener.replicas.get(partition)?;
        Some(Unopened { log: row.log_id, end: row.synced, reason: halted.reason })
    }

    /// How often a copy in doubt was promoted since the start.
    pub fn losses(&self) -> u64 {
        self.led.losses()
    }

    /// Holds a value once a flush failed: the process must resign and exit, and never retry.
    pub fn fatal(&self) -> watch::Receiver<Option<FlushError>> {
        self.led.fatal_watch()
    }

    /// How often the disk was waited for.
    pub fn flushes(&self) -> Flushes {
        self.flushes.read()
    }

    /// What the scrub has done so far.
    pub fn scrubbed(&self) -> Scrubbed {
        self.scrubbed.figures()
    }

    /// What this broker says of the copy it holds, if it holds one: as the table of copies has it, which a copy in use may
    /// be ahead of by a few seconds.
    pub fn standing(&self, partition: &PartitionId) -> Option<Standing> {
        let row = self.opener.replicas.get(partition)?;
        Some(Standing { log: row.log_id, accepted: row.accepted, end: row.synced, doubt: false })
    }

    /// The lane that owns the partition, if anyone does: always the same one.
    fn lane_of(&self, partition: &PartitionId) -> &LaneSender {
        &self.lanes[lane_number(partition, self.lanes.len())]
    }

    /// What compaction did and found.
    pub fn compaction(&self) -> Figures {
        self.cleaner.figures()
    }

    /// The planned end: writers that were taken in are answered, everything is flushed, every copy is noted
    /// as closed properly. Blocks until that is done and the threads are gone.
    pub fn stop(&self) {
        self.end(false);
    }

    /// The same where others share the control store: each partition is given up first, by its leader's own word.
    pub fn resign_and_stop(&self) {
        self.end(true);
    }

    fn end(&self, resign: bool) {
        self.scrub.stop();
        self.cleaner.stop();
        let (answer, closed) = crossbeam_channel::unbounded();
        for lane in &self.lanes {
            lane.send(Message::Stop { resign, answer: answer.clone() });
        }
        drop(answer);
        let mut jobs = Vec::new();
        let mut rows = Vec::new();
        for closing in closed.iter().flatten() {
            jobs.push(closing.job);
            rows.push((closing.id, closing.row));
        }
        // Every lane has answered, so none flushes any more.
        self.to_flush.close();
        let outcomes = self.opener.flusher.run(jobs);
        let noted = rows
            .into_iter()
            .zip(outcomes)
            .filter(|(_, outcome)| outcome.is_ok())
            .map(|((partition, row), _)| self.opener.replicas.stage(partition, row))
            .last();
        self.upkeep.stop();
        if let Some(Err(error)) = noted.map(|ticket| self.opener.replicas.commit(ticket)) {
            tracing::warn!(%error, "the clean stop could not be noted; the next start reads more");
        }
        for thread in self.threads.lock().drain(..) {
            // A panic was logged and counted where it happened.
            let _ = thread.join();
        }
    }
}

fn lane_number(partition: &PartitionId, lanes: usize) -> usize {
    let mut hasher = DefaultHasher::new();
    partition.hash(&mut hasher);
    // Smaller than the number of lanes, which is a usize.
    usize::try_from(hasher.finish() % lanes as u64).unwrap_or(0)
}

fn start_flushers(
    setup: &Setup,
    queue: &Arc<FlushQueue>,
    flusher: &Arc<Flusher<OsDisk>>,
    flushes: &Arc<flusher::Counters>,
    threads: &mut Vec<Thread>,
) -> io::Result<()> {
    let count = setup.flushers.max(1);
    for number in 0..count {
        let (queue, flusher, flushes) = (Arc::clone(queue), Arc::clone(flusher), Arc::clone(flushes));
        let seconds = setup.flush_seconds.clone();
        let body = move || flusher::run(&queue, &flusher, &flushes, &seconds, count);
        threads.push(tasks::thread(&format!("felix-flush-{number}"), body)?);
    }
    Ok(())
}

#[cfg(test)]
mod tests;
