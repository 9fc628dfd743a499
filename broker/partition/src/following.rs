//! A copy that follows: the one executor of a follower's actions.
//!
//! The machine says what is to be done; what must be durable first (a fence, a lowered mark, another identity) is given to
//! whoever keeps the table of copies and comes back by [`Copy::row_noted`], so that no lane waits for it. Meanwhile the machine
//! is busy and later frames wait here.
//!
//! A log is begun anew (bootstrap and rebuild) in three steps, so that no crash leaves an identity with bytes that it does not
//! stand for: the old bytes get the new identity, durably; the folder is replaced; the row says where the new log begins.

use std::collections::VecDeque;
use std::time::Duration;

use felix_protocol::batch::{BatchHeader, CheckedBatch, HEADER_BYTES};
use felix_protocol::ids::{Generation, Offset};
use felix_protocol::peer::ship::Said;
use felix_protocol::time::{Clock, MonoTime};
use felix_replication::follower::{Action, Event, Follower, Frame, Held, Hole, Reply, Restart, Token};
use felix_replication::halted::HaltReason;
use felix_storage::disk::Disk;
use felix_storage::{Replica, StorageError};

use crate::actions::Ports;
use crate::copy::Copy;
use crate::fence::with_new_id;
use crate::published::{Published, Stage};

mod unpacked;

pub use unpacked::Unfit;

/// Frames that may wait for one copy: more than any leader has under way.
const MOST_QUEUED: usize = 64;

/// What was asked to be made durable of a copy's row.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum Noted {
    /// The fence.
    Accepted(Generation),
    /// That the log may end there.
    Cut(Offset),
    /// Another identity.
    Renewed,
    /// Another identity for what is about to give way to a log that begins there.
    Discarding(Offset),
}

/// A frame with its batches, which its facts are about.
#[derive(Clone, Debug)]
pub struct Shipped {
    /// What it says.
    pub frame: Frame,
    /// The batches, checked.
    pub batches: Vec<CheckedBatch>,
}

/// What waits for the machine.
enum Queued {
    Frame(Shipped),
    Restart(Restart),
}

/// What a copy keeps while it follows.
pub(crate) struct Following {
    machine: Follower,
    /// Frames that came while the machine was busy.
    queue: VecDeque<Queued>,
    /// Batches of the frame that the machine works on.
    batches: Vec<CheckedBatch>,
    /// The log is about to end here: nothing above may be noted as flushed.
    pub(crate) cutting: Option<Offset>,
    /// The row is noted; the cut waits for a flush to end.
    cut_is_due: bool,
    /// The old log has its new identity; one that begins there takes its place as soon as nothing is under way.
    anew_at: Option<Offset>,
    /// The old log is gone; the disk was too full to begin the new one, which is tried again then.
    anew_due: Option<MonoTime>,
}

/// How long a full disk is left alone before a log is begun on it again.
const FULL_AGAIN: Duration = Duration::from_secs(1);

impl Following {
    /// The mark, and the generation at which it was learned.
    pub(crate) fn mark(&self) -> (Offset, Generation) {
        self.machine.core().mark()
    }

    pub(crate) fn lag(&self, now: MonoTime, silence: Duration) -> Option<i64> {
        self.machine.lag(now, silence)
    }

    pub(crate) fn wants_flush(&self) -> bool {
        self.machine.wants_flush()
    }

    /// When something is to be tried again.
    pub(crate) fn next_tick(&self) -> MonoTime {
        self.anew_due.unwrap_or(MonoTime::NEVER)
    }
}

impl<D: Disk, C: Clock, W> Copy<D, C, W> {
    /// Takes a leader's frame in; the answer goes through `ports` under the frame's token.
    pub fn follow(&mut self, shipped: Shipped, ports: &mut impl Ports<Writer = W>) {
        let (token, generation) = (shipped.frame.token, shipped.frame.generation);
        self.queue(token, generation, Queued::Frame(shipped), ports);
    }

    /// A leader wants the copy to begin anew; answered in the same way.
    pub fn restart(&mut self, restart: Restart, ports: &mut impl Ports<Writer = W>) {
        self.queue(restart.token, restart.generation, Queued::Restart(restart), ports);
    }

    fn queue(
        &mut self,
        token: Token,
        generation: Generation,
        queued: Queued,
        ports: &mut impl Ports<Writer = W>,
    ) {
        let leads = self.leads();
        if self.halted().is_some() {
            self.refuse_frame(token, Said::Halted(HaltReason::Storage.number()), ports);
        } else if leads && generation <= self.row.accepted {
            self.refuse_frame(token, Said::Fenced, ports);
        } else if self.following.as_ref().is_some_and(|following| following.queue.len() >= MOST_QUEUED) {
            self.refuse_frame(token, Said::Retry, ports);
        } else {
            // Somebody leads at a newer generation: this broker does not any more, whatever it has heard so far.
            self.end_tenure(ports);
            let held = self.held();
            let following = self.following.get_or_insert_with(|| {
                Box::new(Following {
                    machine: Follower::new(held),
                    queue: VecDeque::new(),
                    batches: Vec::new(),
                    cutting: None,
                    cut_is_due: false,
                    anew_at: None,
                    anew_due: None,
                })
            });
            following.queue.push_back(queued);
            self.go_on(ports);
        }
    }

    fn held(&self) -> Held {
        let (start, end) = self.bounds();
        Held {
            log: self.own().log,
            accepted: self.row.accepted,
            start,
            end,
            stored: self.stored(),
            mark: self.published.mark(),
            mark_generation: self.row.mark_generation,
            map: self.log.generations().clone(),
            halted: self.row.diverged.then_some(HaltReason::Diverged),
        }
    }

    fn refuse_frame(&self, token: Token, said: Said, ports: &mut impl Ports<Writer = W>) {
        let (log, end) = (self.own().log, self.stored());
        ports.told(token, Reply { generation: self.row.accepted, log, end, said });
    }

    /// Feeds the machine for as long as it takes more.
    fn go_on(&mut self, ports: &mut impl Ports<Writer = W>) {
        while let Some(following) = &mut self.following
            && !following.machine.is_busy()
            && let Some(queued) = following.queue.pop_front()
        {
            let event = match queued {
                Queued::Frame(Shipped { frame, batches }) => {
                    following.batches = batches;
                    Event::Frame(frame)
                }
                Queued::Restart(restart) => Event::Restart(restart),
            };
            self.step_following(event, ports);
        }
    }

    fn step_following(&mut self, event: Event, ports: &mut impl Ports<Writer = W>) {
        let mut events = VecDeque::from([event]);
        while let Some(event) = events.pop_front() {
            let now = self.clock.now();
            let Some(following) = &mut self.following else { return };
            for action in following.machine.step(event, now) {
                events.extend(self.carry_out_following(action, ports));
            }
        }
    }

    fn carry_out_following(&mut self, action: Action, ports: &mut impl Ports<Writer = W>) -> Option<Event> {
        match action {
            Action::Accept(generation) => {
                // Every later row says so too. The machine answers at it when this one is durable.
                self.row.accepted = generation;
                self.show(self.published.mark().min(self.stored()));
                ports.note(self.id, self.row(), Noted::Accepted(generation));
                None
            }
            Action::Cut { to, mark, mark_generation } => {
                if let Some(following) = &mut self.following {
                    following.cutting = Some(to);
                }
                (self.row.mark, self.row.mark_generation) = (mark, mark_generation);
                self.show(mark);
                self.row.synced = self.row.synced.min(to);
                ports.note(self.id, self.row(), Noted::Cut(to));
                None
            }
            Action::AdoptMap(map) => {
                self.log.adopt_generations(map);
                None
            }
            Action::Append { skip, compare, holes, .. } => {
                Some(self.append_shipped(skip, compare, &holes, ports))
            }
            Action::AdvanceMark { mark, .. } => {
                let last_stable = self.last_stable(mark);
                self.published.advance(mark, last_stable, 0);
                None
            }
            Action::AdvanceStart { start } => match self.log.advance_start(start) {
                Ok(start) => {
                    self.published.set_log_start(start);
                    None
                }
                Err(error) => Some(self.refused(&error, ports)),
            },
            Action::Renew => {
                // Of the same bytes, of which a restart must not make more than they are.
                self.row = Replica { diverged: true, ..with_new_id(self.row()) };
                self.renew(self.row.log_id);
                self.show(self.row.mark);
                ports.note(self.id, self.row, Noted::Renewed);
                None
            }
            // Readers are let in by the log start that the frames tell, once the mark is there.
            Action::Discard { base, .. } => {
                let row = with_new_id(self.row());
                self.row = Replica { synced: row.log_start, ..row };
                self.renew(self.row.log_id);
                self.show(self.row.mark);
                ports.note(self.id, self.row, Noted::Discarding(base));
                None
            }
            Action::Halt(reason) => {
                ports.halted(self.id, self.row.accepted, self.log.end(), reason);
                None
            }
            Action::Resume => {
                ports.resumed(self.id);
                None
            }
            Action::Answer { token, reply } => {
                ports.told(token, reply);
                None
            }
        }
    }

    /// Nobody reads here; the row comes from what is shown.
    fn show(&mut self, mark: Offset) {
        let (start, end) = self.bounds();
        self.published = std::sync::Arc::new(Published::new(self.row.accepted, start, mark, end));
        self.published.set_stage(Stage::Closed);
    }

    /// The disk refused something: that is told, and the copy stops.
    fn refused(&self, why: &dyn std::fmt::Display, ports: &mut impl Ports<Writer = W>) -> Event {
        ports.failed(self.id, &why.to_string());
        Event::Failed
    }

    /// Compares what is here already, and writes the rest.
    fn append_shipped(
        &mut self,
        skip: usize,
        compare: usize,
        holes: &[Hole],
        ports: &mut impl Ports<Writer = W>,
    ) -> Event {
        let Some(following) = &mut self.following else { return Event::Failed };
        let batches = std::mem::take(&mut following.batches);
        let (here, new) = batches.split_at(skip.min(batches.len()));
        for batch in here.iter().skip(compare) {
            match self.is_here(batch) {
                Ok(true) => {}
                Ok(false) => return Event::Differs,
                Err(error) => return self.refused(&error, ports),
            }
        }
        let now = self.clock.now();
        let mut outcome = None;
        for (written, batch) in new.iter().enumerate() {
            match self.log.append_stored(batch, self.clock.wall()) {
                Ok(stored) => self.wrote(stored.rolled, now),
                Err(StorageError::Full { .. }) => {
                    outcome = Some(Event::NoRoom { written, end: self.log.end() });
                    break;
                }
                Err(error) => return self.refused(&error, ports),
            }
        }
        for hole in holes {
            if outcome.is_some() {
                break;
            }
            match self.log.fill(hole.next, hole.generation, self.clock.wall()) {
                Ok(rolled) => self.wrote(rolled, now),
                Err(StorageError::Full { .. }) => {
                    outcome = Some(Event::NoRoom { written: new.len(), end: self.log.end() });
                }
                Err(error) => return self.refused(&error, ports),
            }
        }
        self.published.set_log_end(self.log.end());
        outcome.unwrap_or(Event::Written { end: self.log.end() })
    }

    /// Whether the same bytes stand here.
    fn is_here(&self, batch: &CheckedBatch) -> Result<bool, felix_storage::ReadError> {
        let header = batch.header();
        let read = self.log.reader().read(header.base_offset, header.bytes, header.next_offset(), true)?;
        let stored: Vec<u8> = read.slices.iter().flatten().copied().take(HEADER_BYTES).collect();
        Ok(BatchHeader::parse(&stored).is_ok_and(|stored| {
            (stored.base_offset, stored.bytes, stored.crc) == (header.base_offset, header.bytes, header.crc)
        }))
    }

    /// A row that [`Ports::note`] was given is durable, or cannot be made so.
    pub fn row_noted(&mut self, noted: Noted, durable: bool, ports: &mut impl Ports<Writer = W>) {
        if self.following.is_none() {
            return;
        }
        let (log, (start, end)) = (self.own().log, self.bounds());
        match noted {
            _ if !durable => self.step_following(Event::Failed, ports),
            Noted::Accepted(generation) => self.step_following(Event::Accepted(generation), ports),
            Noted::Cut(_) => {
                if let Some(following) = &mut self.following {
                    following.cut_is_due = true;
                }
                self.cut_if_due(ports);
            }
            Noted::Discarding(base) => {
                if let Some(following) = &mut self.following {
                    following.anew_at = Some(base);
                }
                self.begin_anew_if_due(ports);
            }
            Noted::Renewed => self.step_following(Event::Renewed { log, start, end }, ports),
        }
        self.go_on(ports);
    }

    /// Cuts the log, unless a flush is under way: its end comes by here.
    pub(crate) fn cut_if_due(&mut self, ports: &mut impl Ports<Writer = W>) {
        let flushing = self.is_flushing();
        let Some(following) = self.following.as_mut().filter(|following| following.cut_is_due && !flushing)
        else {
            return;
        };
        following.cut_is_due = false;
        let Some(to) = following.cutting else { return };
        let cut = self.log.truncate(to, self.clock.wall());
        if let Some(following) = &mut self.following {
            following.cutting = None;
        }
        let event = match cut {
            Ok(end) => {
                self.nothing_is_dirty();
                self.published.set_log_end(end);
                Event::Cut { end }
            }
            Err(error) => self.refused(&error, ports),
        };
        self.step_following(event, ports);
        self.go_on(ports);
    }

    /// Has an empty log take the place of the one that is here, unless a flush or a round of compaction is at it: their ends come
    /// by here.
    pub(crate) fn begin_anew_if_due(&mut self, ports: &mut impl Ports<Writer = W>) {
        if self.is_flushing() || self.log.is_claimed() {
            return;
        }
        let Some(following) = &mut self.following else { return };
        let Some(base) = following.anew_at else { return };
        let now = self.clock.now();
        if following.anew_due.is_some_and(|due| due > now) {
            return;
        }
        // Only once: a try that found the disk full has done that.
        if following.anew_due.is_none() {
            match self.log.give_up() {
                Ok(deleted) => ports.discarded(Box::new(move || deleted.remove())),
                Err(error) => return self.cannot_begin_anew(&error, ports),
            }
        }
        match self.log.begin_anew(base, self.clock.wall()) {
            Ok(()) => {
                if let Some(following) = &mut self.following {
                    (following.anew_at, following.anew_due) = (None, None);
                }
                let generation = self.row.accepted;
                (self.row.mark, self.row.mark_generation) = (base, generation);
                (self.row.log_start, self.row.synced) = (base, base);
                self.row.diverged = false;
                self.nothing_is_dirty();
                self.show(base);
                ports.note(self.id, self.row, Noted::Renewed);
            }
            // What was given up makes room.
            Err(StorageError::Full { .. }) => {
                if let Some(following) = &mut self.following {
                    following.anew_due = Some(now.after(FULL_AGAIN));
                }
            }
            Err(error) => self.cannot_begin_anew(&error, ports),
        }
    }

    fn cannot_begin_anew(&mut self, why: &dyn std::fmt::Display, ports: &mut impl Ports<Writer = W>) {
        ports.failed(self.id, &why.to_string());
        if let Some(following) = &mut self.following {
            (following.anew_at, following.anew_due) = (None, None);
        }
        self.step_following(Event::Failed, ports);
        self.go_on(ports);
    }

    /// Retention has moved the log start.
    pub(crate) fn started(&mut self, start: Offset, ports: &mut impl Ports<Writer = W>) {
        self.step_following(Event::Started { start }, ports);
    }

    /// Tells the machine what is durable.
    pub(crate) fn settle_following(&mut self, ports: &mut impl Ports<Writer = W>) {
        self.begin_anew_if_due(ports);
        let end = self.stored();
        let stored = self.following.as_ref().map(|following| following.machine.core().bounds().1);
        if stored.is_some_and(|stored| stored < end) {
            self.step_following(Event::Stored { end }, ports);
            self.go_on(ports);
        }
    }
}
