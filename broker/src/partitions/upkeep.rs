//! What must reach the disk beside records, on one plain thread that may wait for it: rows of the table of
//! copies, segments that retention took out, folders of deleted topics.
//!
//! Nothing here runs on an idle broker: lanes announce that rows changed, and only then a time is set to
//! note them. Retention is looked at every `log.retention.check.interval.ms`.

use std::collections::BTreeMap;
use std::path::PathBuf;
use std::sync::Arc;
use std::time::Duration;

use crossbeam_channel::{Receiver, RecvTimeoutError, Sender};
use felix_partition::actions::Removal;
use felix_partition::fence;
use felix_protocol::ids::PartitionId;
use felix_protocol::time::{Clock, MonoTime};
use felix_storage::disk::os::OsDisk;
use felix_storage::replicas::Ticket;
use felix_storage::{Deleted, FlushError, Replica, Replicas, Retired, StorageError, layout};

use crate::clock::SystemClock;
use crate::partitions::lane::{LaneSender, Message};
use crate::partitions::led::Led;

/// How long marks may stay unnoted.
const ROWS_EVERY: Duration = Duration::from_secs(3);
/// How long a row waits that found the disk full.
const FULL_AGAIN: Duration = Duration::from_secs(1);
/// Jobs taken together at most: their rows share one flush.
const BATCH: usize = 4096;

type Then = Box<dyn FnOnce(Result<(), &StorageError>) + Send>;

enum Job {
    RowsChanged(LaneSender),
    NoteRows(Vec<(PartitionId, Replica)>),
    NoteRowThen(PartitionId, Replica, Then),
    NoteRowAtLast(PartitionId, Replica, Then),
    Retire(PartitionId, Replica, Retired<OsDisk>),
    Remove(PartitionId, Box<Deleted<OsDisk>>, Duration),
    RemoveFolder(Box<Deleted<OsDisk>>),
    Free(Removal),
    Barrier(Sender<()>),
    LookAtTable,
    Suspect,
    NoteSuspects(Vec<(PartitionId, Replica)>),
    ForgetRow(PartitionId),
    RetainEvery(Duration),
    Stop(Sender<()>),
}

/// The way to the upkeep thread.
#[derive(Clone)]
pub(super) struct Upkeep {
    jobs: Sender<Job>,
}

impl Upkeep {
    /// The way to the thread, and what the thread runs.
    pub(super) fn new(
        replicas: Arc<Replicas<OsDisk>>,
        led: Arc<Led>,
        clock: SystemClock,
        retain_every: Duration,
    ) -> (Upkeep, impl FnOnce() + Send) {
        let (sender, jobs) = crossbeam_channel::unbounded();
        let keeper = Keeper {
            jobs,
            replicas,
            led,
            clock,
            lanes: Vec::new(),
            announced: Vec::new(),
            rows_at: MonoTime::NEVER,
            retain_every,
            retain_at: clock.now().after(retain_every),
            removals: BTreeMap::new(),
            next_removal: 0,
            owed: Vec::new(),
            full: Vec::new(),
            full_at: MonoTime::NEVER,
        };
        (Upkeep { jobs: sender }, move || keeper.run())
    }

    /// Rows of that lane changed: collect them before long.
    pub(super) fn rows_changed(&self, lane: LaneSender) {
        self.send(Job::RowsChanged(lane));
    }

    /// Rows to note, some time.
    pub(super) fn note_rows(&self, rows: Vec<(PartitionId, Replica)>) {
        if !rows.is_empty() {
            self.send(Job::NoteRows(rows));
        }
    }

    /// A row to note now; `then` hears whether it is durable.
    pub(super) fn note_row_then(
        &self,
        partition: PartitionId,
        row: Replica,
        then: impl FnOnce(Result<(), &StorageError>) + Send + 'static,
    ) {
        self.send(Job::NoteRowThen(partition, row, Box::new(then)));
    }

    /// The same, but a full disk is waited for: a copy that follows has time.
    pub(super) fn note_row_at_last(
        &self,
        partition: PartitionId,
        row: Replica,
        then: impl FnOnce(Result<(), &StorageError>) + Send + 'static,
    ) {
        self.send(Job::NoteRowAtLast(partition, row, Box::new(then)));
    }

    /// Segments left the log; they go once the row with the new log start is durable.
    pub(super) fn retire(&self, partition: PartitionId, row: Replica, retired: Retired<OsDisk>) {
        self.send(Job::Retire(partition, row, retired));
    }

    /// A log was deleted; its row goes now, its bytes after `delay`.
    pub(super) fn remove(&self, partition: PartitionId, deleted: Deleted<OsDisk>, delay: Duration) {
        self.send(Job::Remove(partition, Box::new(deleted), delay));
    }

    /// A flush failed: the next start must not trust what was written to.
    pub(super) fn suspect(&self) {
        self.send(Job::Suspect);
    }

    /// Copies that are in doubt.
    pub(super) fn note_suspects(&self, rows: Vec<(PartitionId, Replica)>) {
        self.send(Job::NoteSuspects(rows));
    }

    /// A folder that an earlier process had renamed away already.
    pub(super) fn remove_folder(&self, deleted: Deleted<OsDisk>) {
        self.send(Job::RemoveFolder(Box::new(deleted)));
    }

    /// Something that was given up goes.
    pub(super) fn free(&self, removal: Removal) {
        self.send(Job::Free(removal));
    }

    /// Returns when everything that was given to the thread before is done, rows durably; or the thread is gone.
    pub(super) fn barrier(&self) {
        let (done, wait) = crossbeam_channel::bounded(1);
        self.send(Job::Barrier(done));
        // An error means that the thread is gone.
        let _ = wait.recv();
    }

    /// The table of copies may have failed in somebody else's hands.
    pub(super) fn look_at_table(&self) {
        self.send(Job::LookAtTable);
    }

    /// A row without a copy goes.
    pub(super) fn forget_row(&self, partition: PartitionId) {
        self.send(Job::ForgetRow(partition));
    }

    /// Looks at retention this often.
    pub(super) fn retain_every(&self, every: Duration) {
        self.send(Job::RetainEvery(every));
    }

    /// Ends the thread, after everything that was given to it.
    pub(super) fn stop(&self) {
        let (done, wait) = crossbeam_channel::bounded(1);
        self.send(Job::Stop(done));
        // An error means that the thread is gone already.
        let _ = wait.recv();
    }

    fn send(&self, job: Job) {
        // The thread outlives the lanes; without it the broker has stopped.
        let _ = self.jobs.send(job);
    }
}

/// What still has to leave the disk.
enum Leaving {
    Segments(Retired<OsDisk>),
    Folder(Deleted<OsDisk>),
}

struct Keeper {
    jobs: Receiver<Job>,
    replicas: Arc<Replicas<OsDisk>>,
    led: Arc<Led>,
    clock: SystemClock,
    lanes: Vec<LaneSender>,
    /// Lanes whose rows changed since they were collected.
    announced: Vec<LaneSender>,
    rows_at: MonoTime,
    retain_every: Duration,
    retain_at: MonoTime,
    /// By time and a number that keeps equal times apart.
    removals: BTreeMap<(MonoTime, u64), Leaving>,
    next_removal: u64,
    /// Segments that left their logs while the table could not be written (a full disk, say) or they could not be
    /// renamed: they hold the very space that is missing, so it is tried again at the next look. As many at most
    /// as there are files.
    owed: Vec<(PartitionId, Retired<OsDisk>)>,
    /// Rows that found the disk full, at most one a copy, and when they are tried again.
    full: Vec<(PartitionId, Replica, Then)>,
    full_at: MonoTime,
}

/// What happens once the rows of a batch are durable, or are not.
enum After {
    Tell(Then),
    AtLast(PartitionId, Replica, Then),
    Retire(PartitionId, Retired<OsDisk>),
    Remove(PartitionId, Box<Deleted<OsDisk>>, Duration),
}

impl Keeper {
    fn run(mut self) {
        loop {
            let next = self.next_time().since(self.clock.now());
            let mut stopped = None;
            match self.jobs.recv_timeout(next) {
                Ok(first) => {
                    let batch: Vec<Job> =
                        std::iter::once(first).chain(self.jobs.try_iter().take(BATCH)).collect();
                    stopped = self.take(batch);
                }
                Err(RecvTimeoutError::Timeout) => {}
                Err(RecvTimeoutError::Disconnected) => return,
            }
            if let Some(done) = stopped {
                // Whoever stops the broker waits for this.
                let _ = done.send(());
                return;
            }
            self.on_time();
            self.look_at_table();
        }
    }

    /// A table that failed takes nothing more: no fence, no log start, no identity would be durable any more. Whoever
    /// met the failure first, this process must end.
    fn look_at_table(&self) {
        if self.replicas.is_poisoned() {
            let path = PathBuf::from(layout::REPLICAS);
            let reason = "the table of copies could not be written".to_string();
            self.led.fatal(&FlushError { path, reason });
        }
    }

    fn next_time(&self) -> MonoTime {
        let removal = self.removals.keys().next().map_or(MonoTime::NEVER, |(at, _)| *at);
        self.rows_at.min(self.retain_at).min(removal).min(self.full_at)
    }

    fn on_time(&mut self) {
        let now = self.clock.now();
        if self.rows_at <= now {
            self.rows_at = MonoTime::NEVER;
            for lane in std::mem::take(&mut self.announced) {
                lane.send(Message::CollectRows);
            }
        }
        if self.retain_at <= now {
            self.retain();
        }
        if self.full_at <= now {
            self.full_at = MonoTime::NEVER;
            let again = std::mem::take(&mut self.full);
            let again =
                again.into_iter().map(|(partition, row, then)| Job::NoteRowAtLast(partition, row, then));
            // None of them stops the thread.
            let _ = self.take(again.collect());
        }
        while let Some(entry) = self.removals.first_entry()
            && entry.key().0 <= now
        {
            remove(entry.remove());
        }
    }

    fn retain(&mut self) {
        self.retain_at = self.clock.now().after(self.retain_every);
        self.hide_owed();
        for lane in &self.lanes {
            lane.send(Message::Retain);
        }
    }

    /// Stages all rows of a batch, makes them durable with one flush, and does what waited for that.
    fn take(&mut self, batch: Vec<Job>) -> Option<Sender<()>> {
        let mut ticket = None;
        let mut after = Vec::new();
        let mut stopped = None;
        for job in batch {
            match job {
                Job::RowsChanged(lane) => self.rows_changed(lane),
                Job::NoteRows(rows) => {
                    for (partition, row) in rows {
                        ticket = Some(self.stage(partition, row));
                    }
                }
                Job::NoteRowThen(partition, row, then) => {
                    ticket = Some(self.stage(partition, row));
                    after.push(After::Tell(then));
                }
                Job::NoteRowAtLast(partition, row, then) => {
                    ticket = Some(self.stage(partition, row));
                    after.push(After::AtLast(partition, row, then));
                }
                Job::Retire(partition, row, retired) => {
                    ticket = Some(self.stage(partition, row));
                    after.push(After::Retire(partition, retired));
                }
                Job::Remove(partition, deleted, delay) => {
                    ticket = Some(self.replicas.stage_removal(&partition));
                    after.push(After::Remove(partition, deleted, delay));
                }
                Job::Suspect => {
                    for lane in &self.lanes {
                        lane.send(Message::Suspect);
                    }
                }
                Job::NoteSuspects(rows) => {
                    let copies = rows.len();
                    match fence::suspect(&self.replicas, rows) {
                        Ok(()) => tracing::error!(copies, "copies are in doubt and get new identities"),
                        Err(error) => {
                            tracing::error!(copies, %error, "that copies are in doubt is not noted")
                        }
                    }
                }
                // It is looked at after every batch.
                Job::LookAtTable => {}
                Job::RemoveFolder(deleted) => remove(Leaving::Folder(*deleted)),
                Job::Free(removal) => told(removal()),
                Job::Barrier(done) => after.push(After::Tell(Box::new(move |_| {
                    // Whoever waits may have given up.
                    let _ = done.send(());
                }))),
                Job::ForgetRow(partition) => ticket = Some(self.replicas.stage_removal(&partition)),
                Job::RetainEvery(every) => {
                    self.retain_every = every;
                    self.retain_at = self.clock.now().after(every);
                }
                Job::Stop(done) => stopped = Some(done),
            }
        }
        let noted = ticket.map_or(Ok(()), |ticket| self.replicas.commit(ticket));
        if let Err(error) = &noted {
            tracing::warn!(%error, "the table of copies could not be written; recovery would read more");
        }
        for then in after {
            self.after(then, noted.as_ref().copied());
        }
        stopped
    }

    /// A fence never moves back, whoever has moved it meanwhile; and a row that was removed stays so.
    fn stage(&self, partition: PartitionId, row: Replica) -> Ticket {
        self.replicas.stage_with(&partition, |now| {
            *now = Replica { accepted: row.accepted.max(now.accepted), ..row };
        })
    }

    fn rows_changed(&mut self, lane: LaneSender) {
        if !self.lanes.iter().any(|known| known.same(&lane)) {
            self.lanes.push(lane.clone());
        }
        self.announced.push(lane);
        self.rows_at = self.rows_at.min(self.clock.now().after(ROWS_EVERY));
    }

    fn after(&mut self, after: After, noted: Result<(), &StorageError>) {
        match after {
            After::Tell(then) => then(noted),
            After::AtLast(partition, row, then) => match noted {
                Err(StorageError::Full { .. }) => {
                    self.full.push((partition, row, then));
                    self.full_at = self.clock.now().after(FULL_AGAIN);
                }
                noted => then(noted),
            },
            // The files are hidden only when no restart can come back to an older log start.
            After::Retire(partition, retired) if noted.is_ok() => self.hide(partition, retired),
            After::Retire(partition, retired) => self.owed.push((partition, retired)),
            // The folder has another name already; the row without a folder is removed at the next start.
            After::Remove(partition, deleted, delay) => {
                tracing::debug!(%partition, "a deleted partition leaves the disk");
                self.remove_later(delay, Leaving::Folder(*deleted));
            }
        }
    }

    fn hide(&mut self, partition: PartitionId, mut retired: Retired<OsDisk>) {
        match retired.hide() {
            Ok(()) => self.remove_later(retired.delay, Leaving::Segments(retired)),
            Err(error) => {
                tracing::warn!(%partition, %error, "old segments could not be renamed; it is tried again");
                self.owed.push((partition, retired));
            }
        }
    }

    /// Tries once more to get rid of what is owed. The newest row of each copy says at least as much as the one that
    /// could not be written.
    fn hide_owed(&mut self) {
        let owed = std::mem::take(&mut self.owed);
        let ticket = owed.iter().map(|(partition, _)| self.replicas.stage_with(partition, |_| {})).max();
        match ticket.map_or(Ok(()), |ticket| self.replicas.commit(ticket)) {
            Ok(()) => {
                for (partition, retired) in owed {
                    self.hide(partition, retired);
                }
            }
            Err(error) => {
                tracing::warn!(segments = owed.len(), %error, "old segments still stay on the disk");
                self.owed = owed;
            }
        }
    }

    fn remove_later(&mut self, delay: Duration, removal: Leaving) {
        let at = self.clock.now().after(delay);
        self.removals.insert((at, self.next_removal), removal);
        self.next_removal += 1;
    }
}

fn remove(removal: Leaving) {
    told(match removal {
        Leaving::Segments(retired) => retired.remove(),
        Leaving::Folder(deleted) => deleted.remove(),
    });
}

fn told(removed: Result<(), StorageError>) {
    if let Err(error) = removed {
        tracing::warn!(%error, "old files stay on the disk until the next start");
    }
}
