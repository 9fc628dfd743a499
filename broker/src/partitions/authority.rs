//! Which tenures this session has, as far as the broker has taken the store's word in: those that are lost end here, at
//! once, and only then may the lease be renewed on the strength of what was taken in. Those that it is asked for admit
//! nothing more from then on, and resign when what they had taken in is done.
//!
//! A thread of its own, because opening what was won may take seconds, and giving up what was lost must not wait for it.
//! The one that opens asks here before it hands a copy to its lane ([`Authority::give`]): either the loss is known by
//! then, and the copy is not handed over, or it is in the lane's mailbox before the order to end it.

use std::collections::BTreeMap;
use std::sync::Arc;
use std::sync::atomic::{AtomicBool, Ordering};
use std::time::Duration;

use felix_cluster::moves;
use felix_cluster::revoke::{Revocation, RevokeSet};
use felix_cluster::view::View;
use felix_control::agent::{Agent, Applying, LeaseView, Revoked};
use felix_protocol::ids::{BrokerId, Generation, PartitionId};
use felix_protocol::time::Clock;
use parking_lot::{Condvar, Mutex};
use tokio::runtime::Handle;
use tokio::sync::watch;

use crate::partitions::lane::Message;
use crate::partitions::{Partitions, Thread, lane_number};
use crate::tasks;

/// What was taken in.
#[derive(Clone)]
pub(super) struct Known {
    pub(super) view: Arc<View>,
    pub(super) lease: LeaseView,
    revoked: Revoked,
}

impl Known {
    /// What the agent says now. A session is shown before any view that knows of it, so that the session looked at after
    /// the view is no older than the view.
    pub(super) fn of(agent: &Agent) -> Known {
        let (revoked, view) = (agent.revoked(), agent.view());
        Known { view, lease: agent.lease(), revoked }
    }

    /// The tenure of that partition, if this session has it.
    fn tenure(&self, node: BrokerId, partition: PartitionId) -> Option<Tenure> {
        self.view.topic(&partition.topic)?;
        let generation = self.view.partition(&partition)?.led_by(node, self.lease.session())?;
        let is_asked_for = self.asked(node).any(|set| set.contains(&Revocation { partition, generation }));
        Some(Tenure { generation, is_asked_for })
    }

    /// What this node is asked to give up: as the newest renewal says, and as the view does, which may know of it earlier.
    fn asked(&self, node: BrokerId) -> impl Iterator<Item = &RevokeSet> {
        self.view.revocations(node).map(|at| &at.value).into_iter().chain([&*self.revoked.set])
    }
}

#[derive(Clone, Copy, PartialEq, Eq)]
struct Tenure {
    generation: Generation,
    is_asked_for: bool,
}

/// See the module.
pub(super) struct Authority {
    node: BrokerId,
    /// `None` once nothing more is taken in.
    known: Mutex<Option<Known>>,
    /// Tenures given up because that was asked for: never taken again, even if nobody asks any more. Kept while the view
    /// still has them.
    given_up: Mutex<BTreeMap<PartitionId, Generation>>,
    moved: Condvar,
    /// What is over is being taken off the list of what this node is asked for.
    is_tidying: Arc<AtomicBool>,
}

/// The thread that keeps it.
pub(super) struct Keeping {
    stop: watch::Sender<bool>,
    thread: Thread,
}

impl Keeping {
    /// Nothing is ended, and nothing is said to be taken in, after this.
    pub(super) fn stop(self) {
        self.stop.send_replace(true);
        // A panic was logged and counted where it happened.
        let _ = self.thread.join();
    }
}

impl Authority {
    /// Takes over from the agent what was taken in, before anything is led.
    pub(super) fn start(
        partitions: Arc<Partitions>,
        agent: Agent,
        runtime: Handle,
    ) -> std::io::Result<(Arc<Authority>, Keeping)> {
        let applying = agent.applying();
        let (node, known) = (agent.node(), Mutex::new(Some(Known::of(&agent))));
        let given_up = Mutex::default();
        let authority =
            Arc::new(Authority { node, known, given_up, moved: Condvar::new(), is_tidying: Arc::default() });
        let (stop, stopped) = watch::channel(false);
        let kept = Arc::clone(&authority);
        let body = move || {
            let _over = Over(&kept);
            kept.keep(&partitions, &agent, &applying, &runtime, stopped);
        };
        let thread = tasks::thread("felix-authority", body)?;
        Ok((authority, Keeping { stop, thread }))
    }

    /// Hands a tenure that `seen` speaks of over by `give`, if its session still has it at that generation.
    pub(super) fn give(
        &self,
        seen: &Known,
        partition: PartitionId,
        generation: Generation,
        give: impl FnOnce(),
    ) -> bool {
        let mut guard = self.known.lock();
        // What is not taken in here yet will be in a moment.
        while guard.as_ref().is_some_and(|known| known.view.revision() < seen.view.revision()) {
            self.moved.wait(&mut guard);
        }
        let session = seen.lease.session();
        let has = guard.as_ref().is_some_and(|known| {
            let wanted = Tenure { generation, is_asked_for: false };
            known.lease.session() == session && known.tenure(self.node, partition) == Some(wanted)
        });
        let has = has && self.given_up.lock().get(&partition) != Some(&generation);
        if has {
            give();
        }
        has
    }

    fn keep(
        &self,
        partitions: &Partitions,
        agent: &Agent,
        applying: &Applying,
        runtime: &Handle,
        mut stopped: watch::Receiver<bool>,
    ) {
        let mut changed = agent.changed();
        loop {
            changed.mark_unchanged();
            let after = Known::of(agent);
            self.note_given_up(&after);
            let before = self.known.lock().replace(after.clone());
            self.moved.notify_all();
            if let Some(before) = before {
                self.end_lost(partitions, &before, &after);
            }
            applying.applied(after.view.revision(), after.revoked.number);
            self.tidy(agent, &after);
            let go_on = runtime.block_on(async {
                tokio::select! {
                    changed = changed.changed() => changed.is_ok(),
                    _ = stopped.wait_for(|stop| *stop) => false,
                }
            });
            if !go_on {
                return;
            }
        }
    }

    fn note_given_up(&self, after: &Known) {
        let mut given_up = self.given_up.lock();
        for Revocation { partition, generation } in after.asked(self.node).flat_map(RevokeSet::iter) {
            // The two may be of different times.
            let newest = given_up.entry(*partition).or_insert(*generation);
            *newest = (*generation).max(*newest);
        }
        let generation = |partition: &PartitionId| after.view.partition(partition).map(|it| it.generation());
        given_up.retain(|partition, given_up| generation(partition) == Some(*given_up));
    }

    /// Ends what `before` had and `after` has not, or is asked for; returns when no write of it is admitted any more.
    fn end_lost(&self, partitions: &Partitions, before: &Known, after: &Known) {
        // The controller waits for L before it cancels.
        let lease = Duration::from_millis(after.view.lease_ms());
        let until = partitions.opener.clock.now().after(lease / 2);
        let mut lost = BTreeMap::new();
        let mut look = |partition: PartitionId| {
            let Some(had) = before.tenure(self.node, partition) else { return };
            let generation = had.generation;
            match after.tenure(self.node, partition).filter(|has| has.generation == generation) {
                Some(has) if has.is_asked_for && !had.is_asked_for => {
                    lost.insert(partition, Message::Leave { partition, generation, until });
                }
                Some(_) => {}
                None => {
                    lost.insert(partition, Message::End { partition, generation });
                }
            }
        };
        if before.lease.session() == after.lease.session() {
            after.view.changes_since(&before.view).partitions.into_iter().for_each(&mut look);
            let asked = after.asked(self.node).flat_map(RevokeSet::iter);
            asked.map(|revocation| revocation.partition).for_each(&mut look);
        } else {
            before.view.partitions().map(|partition| partition.id).for_each(&mut look);
        }
        let mut lanes = vec![false; partitions.lanes.len()];
        for (partition, message) in lost {
            let lane = lane_number(&partition, lanes.len());
            partitions.lanes[lane].send(message);
            lanes[lane] = true;
        }
        let (answer, done) = crossbeam_channel::unbounded();
        for (lane, _) in partitions.lanes.iter().zip(lanes).filter(|(_, concerned)| *concerned) {
            lane.send(Message::Barrier { answer: answer.clone() });
        }
        drop(answer);
        // Each lane answers, or is gone and admits nothing.
        done.iter().for_each(drop);
    }

    /// Has what is over taken off the list of what this node is asked for; one write at a time.
    fn tidy(&self, agent: &Agent, after: &Known) {
        let nothing_is_over = moves::tidy(&after.view, self.node).is_none();
        if nothing_is_over || self.is_tidying.swap(true, Ordering::AcqRel) {
            return;
        }
        let is_tidying = Arc::clone(&self.is_tidying);
        agent.tidy_revocations_then(move |done| {
            is_tidying.store(false, Ordering::Release);
            if let Err(error) = done {
                // The next view brings it up again.
                tracing::debug!(%error, "what this node has given up is still on its list");
            }
        });
    }
}

/// Nobody waits for what is not taken in any more.
struct Over<'a>(&'a Authority);

impl Drop for Over<'_> {
    fn drop(&mut self) {
        *self.0.known.lock() = None;
        self.0.moved.notify_all();
    }
}
