//! Carries out the heartbeat machine: one thread, with a runtime and a way to the store of its own, so that no decision,
//! no long list and no cold read can cost a lease.

use std::panic::{AssertUnwindSafe, catch_unwind};
use std::sync::Arc;
use std::time::Duration;

use felix_cluster::heartbeat::{self, Action, Answer, Event, Heartbeat, Lost};
use felix_cluster::keys::Key;
use felix_cluster::lease::{Clocks, Terms};
use felix_cluster::observe::Unbroken;
use felix_cluster::revoke::RevokeSet;
use felix_cluster::state::{Beat, Node, Revision, decode};
use felix_protocol::ids::{BrokerId, SessionId};
use felix_protocol::time::MonoTime;
use tokio::sync::{mpsc, watch};

use crate::clock::LeaseClock;
use crate::executor::{LeaseView, Published};
use crate::store::{Connect, Store, StoreError};

/// A session that has just registered.
#[derive(Clone, Debug)]
pub(crate) struct Registered {
    /// Its lease, which is to be kept alive.
    pub(crate) lease: LeaseView,
    /// When the node's key was written.
    pub(crate) revision: Revision,
    /// When the transaction that did it was sent.
    pub(crate) sent_at: MonoTime,
    /// L.
    pub(crate) lease_ms: u64,
}

/// A session that is over, and why.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(crate) struct LostSession {
    pub(crate) session: SessionId,
    pub(crate) why: Lost,
}

/// The other side's ends, for whoever registers and decides.
pub(crate) struct Beats {
    /// Whose beats are to be sent.
    pub(crate) sessions: watch::Sender<Option<Registered>>,
    /// How long own beats have been confirmed.
    pub(crate) own: watch::Receiver<Option<Unbroken>>,
    /// L in milliseconds, when it changes.
    pub(crate) lease_ms: watch::Sender<u64>,
    /// Sessions that are over.
    pub(crate) lost: mpsc::Receiver<LostSession>,
}

struct Loop<C> {
    node: BrokerId,
    connect: Arc<C>,
    clock: Arc<dyn LeaseClock>,
    published: Arc<Published>,
    sessions: watch::Receiver<Option<Registered>>,
    own: watch::Sender<Option<Unbroken>>,
    lease_ms: watch::Receiver<u64>,
    lost: mpsc::Sender<LostSession>,
}

/// Starts the thread. It sends nothing before there is a session, and ends with the control side.
pub(crate) fn start<C: Connect>(
    node: BrokerId,
    connect: Arc<C>,
    clock: Arc<dyn LeaseClock>,
    published: Arc<Published>,
) -> std::io::Result<Beats> {
    let (sessions, from) = watch::channel(None);
    let (own, own_from) = watch::channel(None);
    let (lease_ms, lease_from) = watch::channel(0);
    // One session is lost at a time; the next begins only after that was heard.
    let (lost, lost_from) = mpsc::channel(4);
    let beats = Beats { sessions, own: own_from, lease_ms, lost: lost_from };
    let body = Loop { node, connect, clock, published, sessions: from, own, lease_ms: lease_from, lost };
    std::thread::Builder::new().name("felix-beats".to_owned()).spawn(move || {
        let published = Arc::clone(&body.published);
        let ended = catch_unwind(AssertUnwindSafe(|| -> std::io::Result<()> {
            let runtime = tokio::runtime::Builder::new_current_thread().enable_all().build()?;
            runtime.block_on(body.run());
            Ok(())
        }));
        let failure = match ended {
            Ok(Ok(())) => return,
            Ok(Err(error)) => format!("the heartbeat thread does not start: {error}"),
            Err(_) => "the heartbeat thread panicked".to_owned(),
        };
        // Nobody renews the lease any more: better an end that is seen.
        tracing::error!(%failure, "the control side ended");
        published.end(Some(failure));
    })?;
    Ok(beats)
}

/// What a session's beats are sent with.
struct Run<'a> {
    machine: Heartbeat,
    lease: LeaseView,
    clock: &'a dyn LeaseClock,
    published: &'a Published,
    own: &'a watch::Sender<Option<Unbroken>>,
    terms: Terms,
    /// Sets of revocations that earlier sessions were handed.
    handed_before: u64,
}

/// What is asked of the store.
enum Request {
    Beat { number: u64, node: Revision, beat: Beat, within: Duration },
    ReadBack { within: Duration },
}

impl<C: Connect> Loop<C> {
    async fn run(mut self) {
        let mut ended = self.published.ended();
        tokio::select! {
            () = self.serve() => {}
            // An error would mean that the sender is gone, which is held here.
            _ = ended.wait_for(|ended| *ended) => {}
        }
    }

    async fn serve(&mut self) {
        let mut store = None;
        loop {
            let session = self.sessions.borrow_and_update().clone();
            if let Some(registered) = session {
                self.beat_for(registered, &mut store).await;
            } else if self.sessions.changed().await.is_err() {
                return;
            }
        }
    }

    /// Beats for one session until another takes its place; after it is lost, only waits for that.
    async fn beat_for(&mut self, registered: Registered, store: &mut Option<C::Store>) {
        let Loop { node, connect, clock, published, sessions, own, lease_ms, lost } = self;
        let clocks = clock.clocks();
        let terms = Terms::new(registered.lease_ms, clocks);
        let Registered { lease, revision, sent_at, .. } = registered;
        let machine = Heartbeat::new(lease.session(), revision, sent_at, terms);
        let handed_before = published.revoked().borrow().number;
        own.send_replace(None);
        let mut run = Run { machine, lease, clock: &**clock, published, own, terms, handed_before };
        let mut applied = published.applied();
        let mut event = Event::Tick;
        loop {
            let asked = match run.step(event) {
                Ok(asked) => asked,
                Err(why) => {
                    // Whoever hears of it registers anew; one that is gone ends everything anyway.
                    let _ = lost.send(LostSession { session: run.lease.session(), why }).await;
                    if sessions.changed().await.is_err() {
                        std::future::pending::<()>().await;
                    }
                    return;
                }
            };
            let next_tick = run.machine.next_tick();
            let asking = async {
                match asked {
                    Some(request) => ask(*node, &**connect, store, request).await,
                    None => until(&**clock, next_tick).await,
                }
            };
            tokio::pin!(asking);
            // What comes in between may let a renewal count that is confirmed already.
            event = loop {
                tokio::select! {
                    biased;
                    event = &mut asking => break event,
                    Ok(()) = applied.changed() => {
                        let now = *applied.borrow_and_update();
                        run.machine_applied(now.revision, now.handed);
                    }
                    Ok(()) = lease_ms.changed() => run.set_terms(*lease_ms.borrow_and_update(), clocks),
                    changed = sessions.changed() => {
                        if changed.is_err() {
                            std::future::pending::<()>().await;
                        }
                        return;
                    }
                }
            };
        }
    }
}

impl Run<'_> {
    /// Steps the machine and carries out what needs no answer; returns what is to be asked of the store.
    fn step(&mut self, event: Event) -> Result<Option<Request>, Lost> {
        let reading = self.clock.reading();
        let now = self.clock.now();
        let mut asked = None;
        for action in self.machine.step(event, now) {
            match action {
                Action::Send { number, node, beat, within } => {
                    asked = Some(Request::Beat { number, node, beat, within });
                }
                Action::ReadBack { within } => asked = Some(Request::ReadBack { within }),
                Action::Extend(until) => self.lease.extend(until),
                Action::Confirmed => {
                    self.own.send_modify(|own| *own = Some(Unbroken::confirmed(*own, reading, self.terms)));
                }
                Action::GiveUp { number, set } => self.published.revoke(self.handed_before + number, set),
                Action::Lost(why) => {
                    self.lease.end();
                    self.own.send_replace(None);
                    return Err(why);
                }
            }
        }
        Ok(asked)
    }

    fn machine_applied(&mut self, revision: Revision, handed: u64) {
        let handed = handed.saturating_sub(self.handed_before);
        // Being told so asks for nothing: it may only let the lease run on.
        let asked = self.step(Event::Applied { revision, handed });
        debug_assert!(matches!(asked, Ok(None)));
    }

    fn set_terms(&mut self, lease_ms: u64, clocks: Clocks) {
        self.terms = Terms::new(lease_ms, clocks);
        let asked = self.step(Event::Terms(self.terms));
        debug_assert!(matches!(asked, Ok(None)));
    }
}

/// Waits until that time on the holder's clock.
async fn until(clock: &dyn LeaseClock, at: MonoTime) -> Event {
    loop {
        let left = at.since(clock.now());
        if left.is_zero() {
            return Event::Tick;
        }
        tokio::time::sleep(left).await;
    }
}

/// Asks the store, and says what came of it in time.
async fn ask<C: Connect>(
    node: BrokerId,
    connect: &C,
    kept: &mut Option<C::Store>,
    request: Request,
) -> Event {
    match request {
        Request::Beat { number, node: at, beat, within } => {
            let decision = heartbeat::decision(node, at, &beat);
            let exchange = async {
                let store = connected(connect, kept, within / 2).await?;
                store.exchange(&decision, &[&Key::Revoke(node).to_string()]).await
            };
            let answer = match tokio::time::timeout(within, exchange).await {
                Ok(Ok(done)) if done.committed.landed == [true] => {
                    let found = done.found.into_iter().next().flatten();
                    landed(done.committed.revision, found.as_ref().map_or(&[], |entry| &entry.value))
                }
                Ok(Ok(_)) => Answer::Refused,
                Ok(Err(error)) => {
                    tracing::debug!(%error, "a beat has no answer");
                    Answer::Unknown
                }
                Err(_) => Answer::Unknown,
            };
            Event::Answered(number, answer)
        }
        Request::ReadBack { within } => {
            let read = async {
                let store = connected(connect, kept, within / 2).await?;
                store.get(&Key::Node(node).to_string()).await
            };
            match tokio::time::timeout(within, read).await {
                Ok(Ok(None)) => Event::ReadBack(None),
                Ok(Ok(Some(entry))) => match decode::<Node>(&Key::Node(node).to_string(), &entry.value) {
                    Ok(node) => Event::ReadBack(Some((entry.revision, node))),
                    Err(error) => {
                        tracing::error!(%error, "the node's own key cannot be read");
                        Event::ReadFailed
                    }
                },
                Ok(Err(_)) | Err(_) => Event::ReadFailed,
            }
        }
    }
}

async fn connected<'a, C: Connect>(
    connect: &C,
    kept: &'a mut Option<C::Store>,
    attempt: Duration,
) -> Result<&'a mut C::Store, StoreError> {
    if kept.is_none() {
        // A beat that finds its place dead still has time for another.
        *kept = Some(connect.connect(attempt).await?);
    }
    kept.as_mut().ok_or_else(|| StoreError::Unavailable("not connected".to_owned()))
}

/// A set that cannot be read is no renewal: nobody knows what is to be given up.
fn landed(revision: Revision, revoked: &[u8]) -> Answer {
    match RevokeSet::decode(revoked) {
        Ok(revoked) => Answer::Landed { revision, revoked },
        Err(error) => {
            tracing::error!(%error, "what this node is asked to give up cannot be read; its lease is not renewed");
            Answer::Unknown
        }
    }
}
