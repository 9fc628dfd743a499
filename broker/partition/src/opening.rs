//! Making copies ready to lead: the named identity is compared (C11), the generation is accepted durably
//! (C7), the log is opened and every byte of it is on the disk before anything is answered from it.
//!
//! Many partitions open together, so that a broker with 10,000 of them needs a handful of flushes.

use std::sync::Arc;

use felix_protocol::ids::{BrokerId, Generation, LogId, Offset, PartitionId};
use felix_protocol::time::Clock;
use felix_replication::eligible::Pair;
use felix_replication::lease::Lease;
use felix_storage::disk::Disk;
use felix_storage::replicas::Ticket;
use felix_storage::{DataDir, Flusher, LoadReport, Log, Recovered, Replica, Replicas, StorageError};

use crate::config::PartitionConfig;
use crate::copy::Copy;
use crate::fence::with_new_id;

mod adopt;

/// A partition that this broker was named to lead.
#[derive(Clone, Debug)]
pub struct OpenRequest {
    /// The partition.
    pub partition: PartitionId,
    /// The generation to lead at.
    pub generation: Generation,
    /// The copy that was named; `None` while nothing was ever acknowledged: any copy will do.
    pub named: Option<LogId>,
    /// This generation is an unclean promotion: an ambiguous tail may be cut.
    pub unclean: bool,
    /// Its settings.
    pub config: Arc<PartitionConfig>,
}

/// Why a broker declines to lead.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum Decline {
    /// The named copy is not here (any more).
    Wiped,
    /// The bytes are here, but part of what they acknowledged may be missing.
    Doubt,
}

/// What became of one request.
pub enum Outcome<D: Disk, C: Clock, W> {
    /// Ready: [`Copy::lead`] begins the tenure.
    Ready(Box<Copy<D, C, W>>, LoadReport),
    /// Another copy was named than the one here (C11).
    Declined {
        /// Why.
        reason: Decline,
        /// The identity of what is here instead.
        current: Option<LogId>,
        /// The newest generation that it accepted.
        accepted: Generation,
        /// Where it ends, as far as is known without opening it.
        end: Offset,
    },
    /// A newer generation was accepted already.
    Stale {
        /// That generation.
        accepted: Generation,
    },
    /// The storage failed; the bytes are left as they are.
    Failed(StorageError),
}

/// Opens copies of one data directory.
pub struct Opener<D: Disk, C: Clock + Clone> {
    /// The directory.
    pub dir: DataDir<D>,
    /// Its table of copies.
    pub replicas: Arc<Replicas<D>>,
    /// Its flusher.
    pub flusher: Arc<Flusher<D>>,
    /// This broker.
    pub broker: BrokerId,
    /// The clock.
    pub clock: C,
}

/// What copies are opened for.
#[derive(Clone, Copy, PartialEq, Eq)]
enum Purpose {
    Lead,
    Follow,
}

/// An opened log with its row.
type Loaded<D> = (Log<D>, Replica, LoadReport);

/// A request whose generation is accepted in the table, not yet durably.
enum Accepted<D: Disk> {
    /// Made just now.
    Created(Box<Log<D>>, Replica, Ticket),
    /// To be opened: the row as it stood, and as it stands.
    Existing(Replica, Replica, Ticket),
}

impl<D: Disk> Accepted<D> {
    fn ticket(&self) -> Ticket {
        match self {
            Accepted::Created(_, _, ticket) | Accepted::Existing(_, _, ticket) => *ticket,
        }
    }
}

impl<D: Disk, C: Clock + Clone> Opener<D, C> {
    /// Opens all, in one go, for tenures of the session with that lease; the outcomes stand in the order of the requests.
    pub fn open<W>(&self, requests: &[OpenRequest], lease: &Lease) -> Vec<Outcome<D, C, W>> {
        self.open_to(Purpose::Lead, requests, lease)
    }

    fn open_to<W>(&self, purpose: Purpose, requests: &[OpenRequest], lease: &Lease) -> Vec<Outcome<D, C, W>> {
        let unknown = self.adopt_all(requests);
        let accepted: Vec<_> = requests
            .iter()
            .zip(unknown)
            .map(|(request, failed)| match failed {
                None => self.accept(purpose, request),
                Some(error) => Err(Outcome::Failed(error)),
            })
            .collect();
        let ticket = accepted.iter().flatten().map(Accepted::ticket).max();
        if let Some(Err(error)) = ticket.map(|ticket| self.replicas.commit(ticket)) {
            // Without a durable fence nobody may lead; what was made stays for the next try.
            return accepted
                .into_iter()
                .map(|accepted| match accepted {
                    Ok(_) => Outcome::Failed(again(&error)),
                    Err(outcome) => outcome,
                })
                .collect();
        }
        let opened: Vec<_> = requests
            .iter()
            .zip(accepted)
            .map(|(request, accepted)| accepted.and_then(|accepted| self.load(request, accepted)))
            .collect();
        self.flush(purpose, requests, opened, lease)
    }

    /// Opens copies that are to follow: the generation that each accepts stays, and one that is not here is made.
    /// `renewed`: their identities are new, so that an ambiguous tail may go.
    pub fn follow<W>(
        &self,
        partitions: &[(PartitionId, Arc<PartitionConfig>)],
        lease: &Lease,
        renewed: bool,
    ) -> Vec<Outcome<D, C, W>> {
        let request = |(partition, config): &(PartitionId, Arc<PartitionConfig>)| {
            let row = self.replicas.get(partition);
            OpenRequest {
                partition: *partition,
                generation: row.map_or(Generation::ZERO, |row| row.accepted),
                named: row.map(|row| row.log_id).filter(|_| !renewed),
                unclean: false,
                config: Arc::clone(config),
            }
        };
        let requests: Vec<OpenRequest> = partitions.iter().map(request).collect();
        self.open_to(Purpose::Follow, &requests, lease)
    }

    /// Compares the identity and stages the fence. The row is durable after the next commit.
    fn accept<W>(&self, purpose: Purpose, request: &OpenRequest) -> Result<Accepted<D>, Outcome<D, C, W>> {
        let Some(row) = self.replicas.get(&request.partition) else {
            return match request.named {
                None => self.create(request),
                Some(_) => Err(declined(Decline::Wiped, None)),
            };
        };
        if row.accepted > request.generation {
            return Err(Outcome::Stale { accepted: row.accepted });
        }
        if request.named.is_some_and(|named| named != row.log_id) {
            return Err(declined(Decline::Doubt, Some(row)));
        }
        let counts_unsynced = request.config.flush.counts_unsynced();
        let accepted = Replica {
            accepted: request.generation,
            clean: false,
            unsynced: counts_unsynced || (row.unsynced && !row.clean),
            // Who leads says what is right.
            diverged: row.diverged && purpose == Purpose::Follow,
            ..row
        };
        let ticket = self.replicas.stage(request.partition, accepted);
        Ok(Accepted::Existing(row, accepted, ticket))
    }

    /// Nothing was acknowledged yet and no copy is known here: a new one, under a new identity.
    fn create<W>(&self, request: &OpenRequest) -> Result<Accepted<D>, Outcome<D, C, W>> {
        let log = self.create_log(request).map_err(Outcome::Failed)?;
        let row = Replica {
            log_id: LogId::random(),
            accepted: request.generation,
            mark: log.start(),
            mark_generation: request.generation,
            log_start: log.start(),
            synced: log.start(),
            clean: false,
            unsynced: request.config.flush.counts_unsynced(),
            diverged: false,
        };
        let ticket = self.replicas.stage(request.partition, row);
        Ok(Accepted::Created(Box::new(log), row, ticket))
    }

    fn create_log(&self, request: &OpenRequest) -> Result<Log<D>, StorageError> {
        let (partition, now) = (request.partition, self.clock.wall());
        let create = || Log::create(&self.dir, partition, request.config.log.clone(), 0, now);
        match create() {
            Err(StorageError::Exists(_)) => {
                // A crash came between making the folder and the row's commit. It is in no table, so it never
                // answered anything.
                let unknown = Recovered { cut_ambiguous: true, ..Recovered::default() };
                let config = request.config.log.clone();
                let (log, _) = Log::open(&self.dir, partition, config, unknown, now)?;
                log.delete()?.remove()?;
                create()
            }
            made => made,
        }
    }

    fn load<W>(&self, request: &OpenRequest, accepted: Accepted<D>) -> Result<Loaded<D>, Outcome<D, C, W>> {
        let (before, row) = match accepted {
            Accepted::Created(log, row, _) => return Ok((*log, row, LoadReport::default())),
            Accepted::Existing(before, row, _) => (before, row),
        };
        let recovered = Recovered {
            clean: before.clean,
            mark: before.mark,
            log_start: before.log_start,
            synced: before.synced,
            // While nothing was acknowledged, nothing can be missing.
            cut_ambiguous: request.unclean || request.named.is_none(),
            accepted: Some(row.accepted),
            made: was_made(request),
        };
        let config = request.config.log.clone();
        match Log::open(&self.dir, request.partition, config, recovered, self.clock.wall()) {
            // It holds records of a generation that the table says it never accepted: the table is of an earlier
            // time, and what it says of this copy with it.
            Ok((log, _)) if is_newer(&log, &before) && !recovered.cut_ambiguous => {
                Err(self.doubted(request, row))
            }
            Ok((_, report)) if !report.damage.is_empty() && !recovered.cut_ambiguous => {
                Err(self.doubted(request, row))
            }
            Ok((log, report)) => Ok((log, row, report)),
            // A crash came between the row and the folder; nothing was acknowledged from it.
            Err(StorageError::Missing(_)) if request.named.is_none() => self.create_again(request),
            Err(StorageError::Missing(_)) => Err(self.lost(request, row)),
            Err(StorageError::Damaged(_)) if !recovered.cut_ambiguous => Err(self.doubted(request, row)),
            Err(error) => Err(Outcome::Failed(error)),
        }
    }

    fn create_again<W>(&self, request: &OpenRequest) -> Result<Loaded<D>, Outcome<D, C, W>> {
        match self.create(request)? {
            Accepted::Created(log, row, ticket) => {
                self.replicas.commit(ticket).map_err(Outcome::Failed)?;
                Ok((*log, row, LoadReport::default()))
            }
            Accepted::Existing(..) => Err(Outcome::Failed(StorageError::Poisoned)),
        }
    }

    /// The table knows the copy, but its folder is gone.
    fn lost<W>(&self, request: &OpenRequest, row: Replica) -> Outcome<D, C, W> {
        let ticket = self.replicas.stage_removal(&request.partition);
        match self.replicas.commit(ticket) {
            Ok(()) => declined(Decline::Wiped, Some(Replica { synced: 0, ..row })),
            Err(error) => Outcome::Failed(error),
        }
    }

    /// Part of what was promised is damaged, or a power loss left a tail that cannot be told from damage. The bytes
    /// stay under a new identity.
    fn doubted<W>(&self, request: &OpenRequest, row: Replica) -> Outcome<D, C, W> {
        let row = with_new_id(row);
        let ticket = self.replicas.stage(request.partition, row);
        match self.replicas.commit(ticket) {
            Ok(()) => declined(Decline::Doubt, Some(row)),
            Err(error) => Outcome::Failed(error),
        }
    }

    /// Makes whatever recovery could not vouch for durable, all logs together, and builds the copies.
    fn flush<W>(
        &self,
        purpose: Purpose,
        requests: &[OpenRequest],
        mut opened: Vec<Result<Loaded<D>, Outcome<D, C, W>>>,
        lease: &Lease,
    ) -> Vec<Outcome<D, C, W>> {
        let mut jobs = Vec::new();
        let mut of = Vec::new();
        for (at, log) in opened.iter_mut().enumerate() {
            if let Ok((log, _, _)) = log
                && let Some(job) = log.flush_job()
            {
                jobs.push(job);
                of.push(at);
            }
        }
        let outcomes = if jobs.is_empty() { Vec::new() } else { self.flusher.run(jobs) };
        for (at, outcome) in of.into_iter().zip(outcomes) {
            if let Ok((log, _, _)) = &mut opened[at] {
                log.flushed(&outcome);
                if outcome.is_err() {
                    opened[at] = Err(Outcome::Failed(StorageError::Poisoned));
                }
            }
        }
        requests
            .iter()
            .zip(opened)
            .map(|(request, opened)| match opened {
                Ok((log, mut row, report)) => {
                    // A leader's log is opened around damage, and goes on. Who follows would vouch for what is damaged as soon as
                    // it is level: that copy waits to be begun anew.
                    row.diverged |= purpose == Purpose::Follow && !report.damage.is_empty();
                    Outcome::Ready(Box::new(self.copy(request, log, row, lease)), report)
                }
                Err(outcome) => outcome,
            })
            .collect()
    }

    fn copy<W>(&self, request: &OpenRequest, log: Log<D>, mut row: Replica, lease: &Lease) -> Copy<D, C, W> {
        // Everything is flushed now; what an earlier policy counted is not in doubt any more.
        row.unsynced = request.config.flush.counts_unsynced();
        let own = Pair { broker: self.broker, log: row.log_id };
        let (config, lease) = (Arc::clone(&request.config), lease.clone());
        Copy::new(log, own, row, config, lease, self.clock.clone())
    }
}

/// Whether the copy was ready to lead before, as far as is known. It was if it is named: only what a tenure's first
/// report said, or who joined it, is named by its log id, and [`Opener::open`] flushes the folder and all in it before
/// it hands a copy out to report anything. So that folder cannot be one that a crash kept from being made, and where it
/// is missing the copy is wiped, even if the row says of no byte that it was flushed: the row follows only every few
/// seconds, acknowledgements do not wait for it.
fn was_made(request: &OpenRequest) -> bool {
    request.named.is_some()
}

fn is_newer<D: Disk>(log: &Log<D>, row: &Replica) -> bool {
    log.generations().latest().is_some_and(|(latest, _)| latest > row.accepted)
}

fn declined<D: Disk, C: Clock, W>(reason: Decline, row: Option<Replica>) -> Outcome<D, C, W> {
    Outcome::Declined {
        reason,
        current: row.filter(|_| reason == Decline::Doubt).map(|row| row.log_id),
        accepted: row.map_or(Generation::ZERO, |row| row.accepted),
        end: row.map_or(0, |row| row.synced),
    }
}

/// The same failure for each of many: errors of the system are not `Clone`.
fn again(error: &StorageError) -> StorageError {
    if let StorageError::Full { doing, path } = error {
        StorageError::Full { doing, path: path.clone() }
    } else {
        StorageError::Poisoned
    }
}
