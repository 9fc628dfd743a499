//! How this process comes by a session in a store that others use, at its start and whenever it has lost one.
//!
//! Every session is written down in the data directory before it is tried, so that a later process of this directory
//! knows whose it was.

use std::io;
use std::sync::Arc;
use std::time::Duration;

use felix_cluster::keys::Key;
use felix_cluster::lease::Terms;
use felix_cluster::registration::{self, Entry, LiveElsewhere, Looked, Step};
use felix_cluster::state::{Node, Revision, decode};
use felix_protocol::ids::{BrokerId, SessionId, Uuid};
use felix_protocol::time::MonoTime;
use thiserror::Error;

use crate::beats::Registered;
use crate::clock::LeaseClock;
use crate::executor::{Executor, LeaseView};
use crate::past::Memory;
use crate::store::{Store, StoreError};

/// How long the store may fail before entering is given up.
const GIVE_UP_AFTER: Duration = Duration::from_secs(30);

/// Why a node did not register.
#[derive(Debug, Error)]
pub enum EnterError {
    /// The id is in use.
    #[error(transparent)]
    Live(#[from] LiveElsewhere),
    /// The store does not answer.
    #[error(transparent)]
    Store(#[from] StoreError),
    /// What the directory remembers cannot be written.
    #[error("{path}: {source}", path = crate::past::FILE_NAME)]
    Memory {
        /// Why.
        source: io::Error,
    },
    /// An operator has begun a new history of the store meanwhile.
    #[error("{}", crate::executor::RECOVERED)]
    Recovered,
    /// The copies here could not be given new identities.
    #[error("the copies in the data directory could not be given new identities: {0}")]
    Renew(io::Error),
}

/// Writes down what the directory remembers, durably.
pub(crate) type Remember = Box<dyn FnMut(&mut Memory) -> io::Result<()> + Send>;
/// Gives all copies of the directory new log ids, durably.
pub(crate) type RenewLogs = Box<dyn FnMut() -> io::Result<()> + Send>;

/// See the module.
pub(crate) struct Membership {
    pub(crate) id: BrokerId,
    /// The node's key, but for the session.
    pub(crate) node: Node,
    /// What a cluster that is founded now is called.
    pub(crate) cluster: String,
    /// L of a cluster that is founded now.
    pub(crate) lease_ms: u64,
    pub(crate) memory: Memory,
    /// The store has another history than the one that was known here, by an operator's word: whatever it says of the
    /// copies here, they get new identities before the first registration.
    pub(crate) is_anew: bool,
    pub(crate) remember: Remember,
    pub(crate) renew_logs: RenewLogs,
    pub(crate) clock: Arc<dyn LeaseClock>,
}

impl Membership {
    /// Registers a new session, as soon as the one before is known to be over, and founds the cluster where there is
    /// none.
    pub(crate) async fn enter<S: Store>(
        &mut self,
        executor: &mut Executor<S>,
    ) -> Result<Registered, EnterError> {
        let clock = Arc::clone(&self.clock);
        let session = random_session();
        let terms = waiting_terms(executor, self.lease_ms, &*clock);
        let mut entry = Entry::new(self.id, self.node.directory, &self.node.boot, terms);
        let mut is_known = false;
        let mut is_told = false;
        let mut answered_at = clock.now();
        loop {
            let step = match look(executor.store(), self.id).await {
                Ok(looked) => {
                    answered_at = clock.now();
                    entry.step(looked, &self.memory.past, clock.reading())?
                }
                Err(error) => {
                    self.bear(error, answered_at)?;
                    Step::Look(terms.beat_every())
                }
            };
            let renew_logs = match step {
                Step::Look(after) => {
                    if let Some(session) = entry.waits_for().filter(|_| !is_told) {
                        let (node, within) = (self.id, terms.wait());
                        tracing::info!(%node, %session, ?within, "waiting for this node's last session to be over");
                        is_told = true;
                    }
                    tokio::time::sleep(after).await;
                    continue;
                }
                Step::Register { renew_logs } => renew_logs,
            };
            if renew_logs || self.is_anew {
                (self.renew_logs)().map_err(EnterError::Renew)?;
            }
            // From here on they have them, and what is written below says so.
            self.is_anew = false;
            if !is_known {
                self.note(executor, session)?;
                is_known = true;
            }
            // Compared from here on, and taken before anything is sent.
            clock.reading();
            let sent_at = clock.now();
            match self.register(executor, &entry, session).await {
                Ok(Some(revision)) => return self.entered(executor, session, revision, sent_at),
                Ok(None) if executor.is_recovered() => return Err(EnterError::Recovered),
                // Somebody else has written: look again.
                Ok(None) => {}
                Err(error) => self.bear(error, answered_at)?,
            }
        }
    }

    /// A store that does not answer may yet.
    fn bear(&self, error: StoreError, answered_at: MonoTime) -> Result<(), StoreError> {
        let passing = matches!(error, StoreError::Unavailable(_) | StoreError::Unknown(_));
        if !passing || self.clock.now().since(answered_at) > GIVE_UP_AFTER {
            return Err(error);
        }
        tracing::debug!(%error, "the control store does not answer; trying again");
        Ok(())
    }

    /// Writes the session down before it is tried.
    fn note<S: Store>(&mut self, executor: &Executor<S>, session: SessionId) -> Result<(), EnterError> {
        let confirmed = executor.view().broker(self.id).map(|node| node.node.session);
        self.memory.past.sessions.retain(|known| Some(*known) == confirmed);
        self.memory.past.sessions.push(session);
        (self.remember)(&mut self.memory).map_err(|source| EnterError::Memory { source })
    }

    async fn register<S: Store>(
        &self,
        executor: &mut Executor<S>,
        entry: &Entry,
        session: SessionId,
    ) -> Result<Option<Revision>, StoreError> {
        let node = Node { session, ..self.node.clone() };
        // In no other history than the one that was looked at.
        let cluster = executor.view().revision_of(&Key::Cluster);
        let mut decisions = vec![entry.decide(&node).at(Key::Cluster, cluster)];
        decisions.extend(registration::found(executor.view(), &self.cluster, self.lease_ms));
        let outcome = executor.commit(&decisions).await?;
        let registered = executor.view().broker(self.id).filter(|node| node.node.session == session);
        let revision = registered.map(|node| node.revision);
        Ok(revision.filter(|_| outcome.landed.first() == Some(&true)))
    }

    fn entered<S: Store>(
        &mut self,
        executor: &Executor<S>,
        session: SessionId,
        revision: Revision,
        sent_at: MonoTime,
    ) -> Result<Registered, EnterError> {
        let view = executor.view();
        self.memory.past.cluster = Some(view.cluster_id().to_owned());
        self.memory.revision = view.revision();
        (self.remember)(&mut self.memory).map_err(|source| EnterError::Memory { source })?;
        let lease = LeaseView::unconfirmed(session);
        Ok(Registered { lease, revision, sent_at, lease_ms: view.lease_ms() })
    }

    /// How far the store has come, for the next start.
    pub(crate) fn remember_revision(&mut self, revision: Revision) {
        self.memory.revision = self.memory.revision.max(revision);
        if let Err(error) = (self.remember)(&mut self.memory) {
            tracing::warn!(%error, file = crate::past::FILE_NAME, "how far the control store came is not noted");
        }
    }
}

fn waiting_terms<S: Store>(executor: &Executor<S>, founded: u64, clock: &dyn LeaseClock) -> Terms {
    let cluster = executor.view().cluster().map(|cluster| &cluster.value);
    let lease_ms = cluster.map_or(founded, |cluster| cluster.lease_ms.max(cluster.lease_in_force_ms));
    Terms::new(lease_ms, clock.clocks())
}

async fn look<S: Store>(store: &mut S, id: BrokerId) -> Result<Looked, StoreError> {
    let key = Key::Node(id).to_string();
    let node = match store.get(&key).await? {
        Some(entry) => {
            let node = decode::<Node>(&key, &entry.value);
            Some((entry.revision, node.map_err(|error| StoreError::Damaged(error.to_string()))?))
        }
        None => None,
    };
    let beat = store.get(&Key::Beat(id).to_string()).await?;
    Ok(Looked { node, beat: beat.map_or(Revision::ABSENT, |entry| entry.revision) })
}

pub(crate) fn random_session() -> SessionId {
    let (high, low) = Uuid::new_v4().as_u64_pair();
    // Version and variant bits are fixed in either half, not in both at the same place.
    SessionId(high ^ low.rotate_left(32))
}
