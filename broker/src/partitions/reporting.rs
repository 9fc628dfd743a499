//! Reports of all lanes on their way to the control store: they gather while others are on their way, and those that only change
//! a set are capped for the whole broker ([`felix_cluster::reports`]).
//!
//! A thread of its own, which sleeps unless there is something to send; it ends with the last lane.

use std::sync::atomic::{AtomicU64, AtomicUsize, Ordering};
use std::sync::{Arc, Weak};

use crossbeam_channel::{Receiver, RecvTimeoutError, Sender};
use felix_cluster::reports::{Reports, Urgency};
use felix_protocol::ids::{Generation, PartitionId};
use felix_protocol::time::{Clock, MonoTime};
use felix_replication::eligible::{Claim, KeyState, Report};
use felix_replication::event::ReportAnswer;

use crate::clock::SystemClock;
use crate::partitions::report::{ControlStore, Then};

/// Reports of one request: each takes at most three operations of a transaction, of which the store allows 120.
const MOST: usize = 40;

/// How many reports were made, in how many requests.
#[derive(Default)]
pub(super) struct Counts {
    reports: AtomicU64,
    requests: AtomicU64,
}

impl Counts {
    /// Reports since the start.
    pub(super) fn reports(&self) -> u64 {
        self.reports.load(Ordering::Relaxed)
    }

    /// Reports for each request; 0 before the first.
    pub(super) fn per_request(&self) -> f64 {
        let (reports, requests) =
            (self.reports.load(Ordering::Relaxed), self.requests.load(Ordering::Relaxed));
        if requests == 0 { 0.0 } else { reports as f64 / requests as f64 }
    }
}

struct Queued {
    partition: PartitionId,
    generation: Generation,
    report: Report,
    then: Then<ReportAnswer>,
}

enum Event {
    Report(Queued),
    /// All of a request are answered.
    Answered,
}

/// The lanes' way to the control store.
pub(super) struct Reporting {
    /// Held by the lanes alone, so that the thread ends with them, whatever is still on its way.
    events: Arc<Sender<Event>>,
    store: Arc<dyn ControlStore>,
}

impl Reporting {
    /// The way, and what a thread of its own is to run.
    pub(super) fn new(
        store: Arc<dyn ControlStore>,
        clock: SystemClock,
        counts: Arc<Counts>,
    ) -> (Reporting, impl FnOnce() + Send) {
        let (sender, events) = crossbeam_channel::unbounded();
        let sender = Arc::new(sender);
        let desk = Desk {
            events,
            way: Arc::downgrade(&sender),
            store: Arc::clone(&store),
            reports: Reports::new(clock.now()),
            clock,
            counts,
        };
        (Reporting { events: sender, store }, move || desk.run())
    }
}

impl ControlStore for Reporting {
    fn report(
        &self,
        partition: PartitionId,
        generation: Generation,
        report: Report,
        then: Then<ReportAnswer>,
    ) {
        // The thread lives as long as this does.
        let _ = self.events.send(Event::Report(Queued { partition, generation, report, then }));
    }

    fn read_key(&self, partition: PartitionId, then: Then<Option<KeyState>>) {
        self.store.read_key(partition, then);
    }
}

struct Desk {
    events: Receiver<Event>,
    way: Weak<Sender<Event>>,
    store: Arc<dyn ControlStore>,
    reports: Reports<Queued>,
    clock: SystemClock,
    counts: Arc<Counts>,
}

impl Desk {
    fn run(mut self) {
        loop {
            let next = self.reports.next_tick();
            let event = if next == MonoTime::NEVER {
                self.events.recv().map_err(|_| RecvTimeoutError::Disconnected)
            } else {
                self.events.recv_timeout(next.since(self.clock.now()))
            };
            match event {
                Ok(first) => {
                    let rest: Vec<Event> = self.events.try_iter().collect();
                    std::iter::once(first).chain(rest).for_each(|event| self.take(event));
                }
                Err(RecvTimeoutError::Timeout) => {}
                // No lane is left that would hear an answer.
                Err(RecvTimeoutError::Disconnected) => return,
            }
            self.send();
        }
    }

    fn take(&mut self, event: Event) {
        match event {
            Event::Report(queued) => {
                let urgency = match queued.report.claim {
                    Claim::Opening(_) | Claim::Resigned(_) => Urgency::AtOnce,
                    Claim::Eligible { .. } => Urgency::Capped,
                };
                self.reports.push(urgency, queued);
            }
            Event::Answered => self.reports.answered(),
        }
    }

    fn send(&mut self) {
        let request = self.reports.take(MOST, self.clock.now());
        let (reports, requests) = self.reports.counts();
        self.counts.reports.store(reports, Ordering::Relaxed);
        self.counts.requests.store(requests, Ordering::Relaxed);
        let left = Arc::new(AtomicUsize::new(request.len()));
        for Queued { partition, generation, report, then } in request {
            let part = Part { left: Arc::clone(&left), way: self.way.clone() };
            let then = move |answer| {
                // Dropped behind the answer, or with it, should there never be one.
                let _part = part;
                then(answer);
            };
            self.store.report(partition, generation, report, Box::new(then));
        }
    }
}

/// One report of a request that is on its way. The last one that goes lets the next request go.
struct Part {
    left: Arc<AtomicUsize>,
    way: Weak<Sender<Event>>,
}

impl Drop for Part {
    fn drop(&mut self) {
        if self.left.fetch_sub(1, Ordering::AcqRel) == 1
            && let Some(way) = self.way.upgrade()
        {
            // The desk holds the other end for as long as there is a way.
            let _ = way.send(Event::Answered);
        }
    }
}

#[cfg(test)]
mod tests {
    use std::collections::BTreeSet;
    use std::sync::{Condvar, Mutex};
    use std::time::Duration;

    use felix_protocol::ids::{LogId, TopicId};
    use felix_replication::eligible::{Last, Revision};

    use super::*;

    /// A store that answers when it is told to.
    #[derive(Default)]
    struct Slow {
        waiting: Mutex<Vec<(i32, Then<ReportAnswer>)>>,
        more: Condvar,
    }

    impl ControlStore for Slow {
        fn report(&self, partition: PartitionId, _: Generation, _: Report, then: Then<ReportAnswer>) {
            self.waiting.lock().unwrap().push((partition.index, then));
            self.more.notify_all();
        }

        fn read_key(&self, _: PartitionId, then: Then<Option<KeyState>>) {
            then(None);
        }
    }

    impl Slow {
        /// Waits until so many are there, and takes them.
        fn wait_for(&self, count: usize) -> Vec<(i32, Then<ReportAnswer>)> {
            let (waiting, patience) = (self.waiting.lock().unwrap(), Duration::from_secs(10));
            let few = |waiting: &mut Vec<_>| waiting.len() < count;
            let (mut waiting, waited) = self.more.wait_timeout_while(waiting, patience, few).unwrap();
            assert!(!waited.timed_out(), "they never come");
            std::mem::take(&mut *waiting)
        }
    }

    fn report(claim: Claim) -> Report {
        let (revision, topic) = (Revision(1), Revision(1));
        Report { number: 0, revision, topic, eligible: BTreeSet::new(), last: Last::Never, claim }
    }

    #[test]
    fn what_gathers_behind_a_request_shares_the_next_and_who_opens_goes_first() {
        let store = Arc::<Slow>::default();
        let counts = Arc::<Counts>::default();
        let (reporting, desk) = Reporting::new(
            Arc::clone(&store) as Arc<dyn ControlStore>,
            SystemClock::start(),
            Arc::clone(&counts),
        );
        let thread = std::thread::spawn(desk);
        let (told, heard) = crossbeam_channel::unbounded();
        let send = |index: i32, claim: Claim| {
            let (partition, told) = (PartitionId { topic: TopicId::NONE, index }, told.clone());
            let then = move |answer| told.send((index, answer)).unwrap();
            reporting.report(partition, Generation::ZERO, report(claim), Box::new(then));
        };
        let changes = || Claim::Eligible { dead: BTreeSet::new(), need: 1 };
        send(1, changes());
        let first = store.wait_for(1);
        send(2, changes());
        send(3, changes());
        send(4, Claim::Opening(LogId::random()));
        for (_, then) in first {
            then(ReportAnswer::Unknown);
        }
        let second = store.wait_for(3);
        assert_eq!(second.iter().map(|(index, _)| *index).collect::<Vec<_>>(), [4, 2, 3]);
        assert!(counts.per_request() == 2.0, "four in two");
        // One that is dropped without an answer holds nobody up.
        drop(second);
        send(5, changes());
        assert_eq!(store.wait_for(1)[0].0, 5);
        assert_eq!(heard.try_iter().collect::<Vec<_>>(), [(1, ReportAnswer::Unknown)]);
        drop(reporting);
        thread.join().unwrap();
    }
}
