//! What the loop does about sessions where others share its store: it watches every other node's beats and fences the
//! silent ones, takes its turn as controller, and registers anew when its own session was lost.

use std::future::Future;
use std::sync::Arc;
use std::time::Duration;

use felix_cluster::decision::{Change, Decision};
use felix_cluster::keys::Key;
use felix_cluster::lease::Terms;
use felix_cluster::observe::{self, Event, Fence, Observer};
use felix_cluster::view::View;
use felix_protocol::ids::BrokerId;
use felix_protocol::time::MonoTime;

use crate::beats::{Beats, LostSession};
use crate::clock::LeaseClock;
use crate::executor::Published;

/// How often everything is read anew, in case the watch has lost something.
const RELIST_EVERY: Duration = Duration::from_secs(60);
/// Controllers that are set apart; the others act together.
const MOST_RANKS: u32 = 4;

/// See the module.
pub(crate) struct Sessions {
    node: BrokerId,
    pub(crate) clock: Arc<dyn LeaseClock>,
    pub(crate) beats: Beats,
    observer: Observer,
    lease_ms: u64,
    /// Longest L in force, in milliseconds: what is waited for.
    wait_ms: u64,
    fences: Vec<Fence>,
    /// The own session, once it is over.
    pub(crate) lost: Option<LostSession>,
    /// Since when there is something for a controller to do.
    undecided_since: Option<MonoTime>,
    /// Decides at once, whoever's turn it is.
    pub(crate) is_urgent: bool,
    relist_at: MonoTime,
}

impl Sessions {
    pub(crate) fn new(node: BrokerId, clock: Arc<dyn LeaseClock>, beats: Beats) -> Sessions {
        let (lease_ms, wait_ms) = (0, 0);
        let observer = Observer::new(node, Terms::new(wait_ms, clock.clocks()));
        let relist_at = clock.now().after(RELIST_EVERY);
        Sessions {
            node,
            clock,
            beats,
            observer,
            lease_ms,
            wait_ms,
            fences: Vec::new(),
            lost: None,
            undecided_since: None,
            is_urgent: false,
            relist_at,
        }
    }

    /// What the own waits go by.
    pub(crate) fn terms(&self) -> Terms {
        Terms::new(self.wait_ms, self.clock.clocks())
    }

    /// The view has taken these changes in.
    pub(crate) fn follow(&mut self, view: &View, changes: &[Change], published: &Published) {
        let now = self.clock.reading();
        if let Some(cluster) = view.cluster().map(|cluster| &cluster.value) {
            let (lease_ms, wait_ms) = (cluster.lease_ms, cluster.lease_ms.max(cluster.lease_in_force_ms));
            if wait_ms != self.wait_ms {
                self.wait_ms = wait_ms;
                let terms = self.terms();
                self.fences.extend(self.observer.step(Event::Terms(terms), now));
            }
            if lease_ms != self.lease_ms {
                self.lease_ms = lease_ms;
                self.beats.lease_ms.send_replace(lease_ms);
            }
        }
        self.observer.follow(view, now);
        for change in changes.iter().filter(|change| change.value.is_some()) {
            if let Some(Key::Beat(node)) = Key::parse(&change.key) {
                published.hear(node, change.revision, self.clock.now());
                let beat = Event::Beat { node, revision: change.revision };
                self.fences.extend(self.observer.step(beat, now));
            }
        }
    }

    /// Looks at the own beats and the time. Called before each transaction: a long row of them must not keep a silent node
    /// from being fenced, or a lost session from being noticed.
    pub(crate) fn look(&mut self) {
        let own = *self.beats.own.borrow_and_update();
        let reading = self.clock.reading();
        self.fences.extend(self.observer.step(Event::Own(own), reading));
        if let Ok(lost) = self.beats.lost.try_recv() {
            self.lost = Some(lost);
        }
    }

    /// The fences that are due, as decisions, with the nodes they concern.
    pub(crate) fn take_fences(&mut self, view: &View) -> Vec<(Decision, BrokerId)> {
        let mut decisions = Vec::new();
        for fence in std::mem::take(&mut self.fences) {
            match observe::decide(view, &fence) {
                Some(decision) => {
                    tracing::warn!(
                        node = %fence.node, session = %fence.session,
                        "a node has been silent for longer than its lease; it is fenced"
                    );
                    decisions.push((decision, fence.node));
                }
                None => self.missed(fence.node),
            }
        }
        decisions
    }

    /// A fence did not land.
    pub(crate) fn missed(&mut self, node: BrokerId) {
        let now = self.clock.reading();
        self.fences.extend(self.observer.step(Event::Missed(node), now));
    }

    /// Whether this node is to decide now what a controller decides. Compares make it safe whoever does; the live node
    /// with the lowest id does it at once, the others only what is still undone after a while.
    pub(crate) fn is_controllers_turn(&mut self, view: &View, is_quiet: bool) -> bool {
        if is_quiet {
            self.undecided_since = None;
            return false;
        }
        let since = *self.undecided_since.get_or_insert(self.clock.now());
        if self.is_urgent || self.clock.now() >= self.turn_at(view, since) {
            self.undecided_since = None;
            return true;
        }
        false
    }

    fn turn_at(&self, view: &View, since: MonoTime) -> MonoTime {
        let before = view.brokers().filter(|(id, _)| *id < self.node).count();
        let rank = u32::try_from(before).unwrap_or(MOST_RANKS).min(MOST_RANKS);
        since.after(self.terms().length() / 2 * rank)
    }

    /// Whether it is time to read everything anew.
    pub(crate) fn is_relist_due(&mut self) -> bool {
        let now = self.clock.now();
        let is_due = now >= self.relist_at;
        if is_due {
            self.relist_at = now.after(RELIST_EVERY);
        }
        is_due
    }

    /// Waits until there is something to look at: an own beat, an end of the own session, or time. At `controllers` the
    /// controller wants to look again.
    pub(crate) fn woken(&mut self, view: &View, controllers: MonoTime) -> impl Future<Output = ()> {
        let reading = self.clock.reading();
        let now = self.clock.now();
        let mut left = self.relist_at.min(controllers).since(now);
        if let Some(since) = self.undecided_since {
            left = left.min(self.turn_at(view, since).since(now));
        }
        if let Some(tick) = self.observer.next_tick(reading) {
            left = left.min(tick);
        }
        async move {
            tokio::select! {
                // Both ends live as long as the heartbeat thread; when that is gone, the control side has ended.
                Ok(()) = self.beats.own.changed() => {}
                Some(lost) = self.beats.lost.recv() => self.lost = Some(lost),
                () = tokio::time::sleep(left) => {}
            }
            self.look();
        }
    }
}
