//! What the loops of the control side show to the rest of the broker.

use std::collections::BTreeMap;
use std::sync::atomic::{AtomicBool, AtomicU64, Ordering};
use std::sync::{Arc, OnceLock};

use arc_swap::ArcSwap;
use felix_cluster::revoke::RevokeSet;
use felix_cluster::state::Revision;
use felix_cluster::view::View;
use felix_protocol::ids::{BrokerId, SessionId};
use felix_protocol::time::MonoTime;
use parking_lot::Mutex;
use tokio::sync::watch;

use crate::inquiry::Inquirer;

/// The session is over: no renewal brings its lease back.
const ENDED: u64 = 0;
/// Registered, but no beat was confirmed yet. Before every time point, so it permits nothing.
const UNCONFIRMED: u64 = 1;

/// The newest view, the revision that tells of it, and the lease.
pub(crate) struct Published {
    view: ArcSwap<View>,
    revision: watch::Sender<Revision>,
    lease: ArcSwap<LeaseView>,
    /// How many sessions there have been.
    sessions: AtomicU64,
    revoked: watch::Sender<Revoked>,
    applied: watch::Sender<Applied>,
    /// Somebody says what was applied; until then, what is published is.
    is_followed: AtomicBool,
    failure: OnceLock<String>,
    ended: watch::Sender<bool>,
    /// Whether the store may have gone back unnoticed.
    unverified: AtomicBool,
    /// How brokers are asked about their copies, once that is possible.
    inquirer: OnceLock<Arc<dyn Inquirer>>,
    /// Each node's newest beat: when it was written, and heard of.
    heard: Mutex<BTreeMap<BrokerId, (Revision, MonoTime)>>,
}

/// The lease of one session of this process, as a plain number: whoever admits writes reads it, without knowing what is
/// behind it. Another session has another: what was admitted under this one never is under that.
#[derive(Clone, Debug)]
pub struct LeaseView {
    session: SessionId,
    ends_at: Arc<AtomicU64>,
}

/// What the node is asked to give up.
#[derive(Clone, Debug, Default)]
pub struct Revoked {
    /// Rises with every other set.
    pub number: u64,
    /// The set.
    pub set: Arc<RevokeSet>,
}

/// How far the broker has come with what it was told.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq)]
pub(crate) struct Applied {
    pub(crate) revision: Revision,
    /// The newest [`Revoked::number`] that is done with.
    pub(crate) handed: u64,
}

/// Says how far the broker has come. While it does not keep up with the store, the lease is not renewed.
pub struct Applying {
    published: Arc<Published>,
}

impl Applying {
    pub(crate) fn new(published: Arc<Published>) -> Applying {
        published.is_followed.store(true, Ordering::Release);
        Applying { published }
    }

    /// Everything up to `revision` is recorded, and what was lost by it is stopped: no write of it is admitted any
    /// more. The same holds of what was asked for up to `revoked`. What was won need not be open.
    pub fn applied(&self, revision: Revision, revoked: u64) {
        self.published.applied.send_if_modified(|applied| {
            let after =
                Applied { revision: applied.revision.max(revision), handed: applied.handed.max(revoked) };
            std::mem::replace(applied, after) != after
        });
    }
}

impl LeaseView {
    /// A session whose lease is the lock on its directory.
    pub(crate) fn of_lock(session: SessionId) -> Self {
        LeaseView { session, ends_at: Arc::new(AtomicU64::new(MonoTime::NEVER.0)) }
    }

    /// A session whose first beat is not confirmed.
    pub(crate) fn unconfirmed(session: SessionId) -> Self {
        LeaseView { session, ends_at: Arc::new(AtomicU64::new(UNCONFIRMED)) }
    }

    /// Whose lease it is.
    pub fn session(&self) -> SessionId {
        self.session
    }

    /// When it ends: [`MonoTime::NEVER`] for the embedded store, whose lease is the lock on the directory,
    /// for as long as it can make decisions; zero once it is over for good.
    pub fn ends_at(&self) -> MonoTime {
        MonoTime(self.ends_at.load(Ordering::Acquire))
    }

    /// Whether it is over for good: an expired one may yet be renewed.
    pub fn is_over(&self) -> bool {
        self.ends_at.load(Ordering::Acquire) == ENDED
    }

    /// The number itself, to be shared with those who check it on every append.
    pub fn shared(&self) -> Arc<AtomicU64> {
        Arc::clone(&self.ends_at)
    }

    /// A renewal: the end only moves forward, and not at all once it is over.
    pub(crate) fn extend(&self, until: MonoTime) {
        let later = |ends_at: u64| (ends_at != ENDED).then(|| ends_at.max(until.0));
        // An error is a lease that was ended meanwhile, and stays so.
        let _ = self.ends_at.fetch_update(Ordering::AcqRel, Ordering::Acquire, later);
    }

    pub(crate) fn end(&self) {
        self.ends_at.store(ENDED, Ordering::Release);
    }
}

impl Published {
    pub(crate) fn new() -> Arc<Published> {
        let nobody = LeaseView::unconfirmed(SessionId(0));
        nobody.end();
        Arc::new(Published {
            view: ArcSwap::from_pointee(View::default()),
            revision: watch::Sender::new(Revision::ABSENT),
            lease: ArcSwap::from_pointee(nobody),
            sessions: AtomicU64::new(0),
            revoked: watch::Sender::new(Revoked::default()),
            applied: watch::Sender::new(Applied::default()),
            is_followed: AtomicBool::new(false),
            failure: OnceLock::new(),
            ended: watch::Sender::new(false),
            unverified: AtomicBool::new(false),
            inquirer: OnceLock::new(),
            heard: Mutex::default(),
        })
    }

    pub(crate) fn publish(&self, view: &View) {
        if self.view.load().revision() == view.revision() {
            return;
        }
        self.view.store(Arc::new(view.clone()));
        self.revision.send_replace(view.revision());
        if !self.is_followed.load(Ordering::Acquire) {
            let handed = self.revoked.borrow().number;
            self.applied.send_replace(Applied { revision: view.revision(), handed });
        }
    }

    pub(crate) fn view(&self) -> Arc<View> {
        self.view.load_full()
    }

    pub(crate) fn changed(&self) -> watch::Receiver<Revision> {
        self.revision.subscribe()
    }

    /// A session begins; the lease of the one before is over. To be shown before a view that knows of it.
    pub(crate) fn begin(&self, lease: LeaseView) {
        self.lease.load().end();
        self.lease.store(Arc::new(lease));
        self.sessions.fetch_add(1, Ordering::Relaxed);
        // Whoever follows looks anew, at the lease as well.
        self.revision.send_modify(|_| {});
    }

    pub(crate) fn sessions(&self) -> u64 {
        self.sessions.load(Ordering::Relaxed)
    }

    pub(crate) fn lease(&self) -> LeaseView {
        LeaseView::clone(&self.lease.load())
    }

    pub(crate) fn revoked(&self) -> watch::Receiver<Revoked> {
        self.revoked.subscribe()
    }

    pub(crate) fn revoke(&self, number: u64, set: RevokeSet) {
        self.revoked.send_replace(Revoked { number, set: Arc::new(set) });
        // Whoever follows the view learns of it by that.
        self.revision.send_modify(|_| {});
    }

    pub(crate) fn applied(&self) -> watch::Receiver<Applied> {
        self.applied.subscribe()
    }

    /// A node's beat was told, written at that revision. One that is read once more is no news.
    pub(crate) fn hear(&self, node: BrokerId, revision: Revision, now: MonoTime) {
        let mut heard = self.heard.lock();
        let before = heard.get(&node).map(|(before, _)| *before);
        if before.is_none_or(|before| before < revision) {
            heard.insert(node, (revision, now));
        }
    }

    pub(crate) fn heard(&self) -> BTreeMap<BrokerId, MonoTime> {
        self.heard.lock().iter().map(|(node, (_, at))| (*node, *at)).collect()
    }

    pub(crate) fn inquirer(&self) -> &OnceLock<Arc<dyn Inquirer>> {
        &self.inquirer
    }

    pub(crate) fn set_unverified(&self, unverified: bool) {
        self.unverified.store(unverified, Ordering::Release);
    }

    pub(crate) fn is_unverified(&self) -> bool {
        self.unverified.load(Ordering::Acquire)
    }

    /// The loop is over; the lease with it.
    pub(crate) fn end(&self, failure: Option<String>) {
        self.lease.load().end();
        if let Some(failure) = failure {
            // The first reason is the one that matters.
            let _ = self.failure.set(failure);
        }
        self.ended.send_replace(true);
    }

    pub(crate) fn failure(&self) -> Option<&str> {
        self.failure.get().map(String::as_str)
    }

    pub(crate) fn ended(&self) -> watch::Receiver<bool> {
        self.ended.subscribe()
    }
}
