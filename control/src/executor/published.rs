//! What the loop shows to the rest of the broker.

use std::sync::atomic::{AtomicBool, AtomicU64, Ordering};
use std::sync::{Arc, OnceLock};

use arc_swap::ArcSwap;
use felix_cluster::state::Revision;
use felix_cluster::view::View;
use felix_protocol::ids::SessionId;
use felix_protocol::time::MonoTime;
use tokio::sync::watch;

/// The newest view, the revision that tells of it, and the lease.
pub(crate) struct Published {
    view: ArcSwap<View>,
    revision: watch::Sender<Revision>,
    /// The lease's end in nanoseconds of the broker's monotonic clock; see [`LeaseView`].
    lease: Arc<AtomicU64>,
    failure: OnceLock<String>,
    ended: watch::Sender<bool>,
    /// Whether the store may have gone back unnoticed.
    unverified: AtomicBool,
}

/// The lease of this process's session, as a plain number: whoever admits writes reads it, without knowing
/// what is behind it.
#[derive(Clone, Debug)]
pub struct LeaseView {
    session: SessionId,
    ends_at: Arc<AtomicU64>,
}

impl LeaseView {
    pub(crate) fn new(session: SessionId, ends_at: Arc<AtomicU64>) -> Self {
        LeaseView { session, ends_at }
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

    /// The number itself, to be shared with those who check it on every append.
    pub fn shared(&self) -> Arc<AtomicU64> {
        Arc::clone(&self.ends_at)
    }
}

impl Published {
    pub(crate) fn new() -> Arc<Published> {
        Arc::new(Published {
            view: ArcSwap::from_pointee(View::default()),
            revision: watch::Sender::new(Revision::ABSENT),
            lease: Arc::new(AtomicU64::new(0)),
            failure: OnceLock::new(),
            ended: watch::Sender::new(false),
            unverified: AtomicBool::new(false),
        })
    }

    pub(crate) fn publish(&self, view: &View) {
        if self.view.load().revision() == view.revision() {
            return;
        }
        self.view.store(Arc::new(view.clone()));
        self.revision.send_replace(view.revision());
    }

    pub(crate) fn view(&self) -> Arc<View> {
        self.view.load_full()
    }

    pub(crate) fn changed(&self) -> watch::Receiver<Revision> {
        self.revision.subscribe()
    }

    pub(crate) fn set_unverified(&self, unverified: bool) {
        self.unverified.store(unverified, Ordering::Release);
    }

    pub(crate) fn is_unverified(&self) -> bool {
        self.unverified.load(Ordering::Acquire)
    }

    pub(crate) fn lease(&self) -> &Arc<AtomicU64> {
        &self.lease
    }

    /// The loop is over; the lease with it.
    pub(crate) fn end(&self, failure: Option<String>) {
        self.lease.store(0, Ordering::Release);
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
