//! Starting an agent: the store is opened and checked, a session registered, and what this node may lead promoted.

use std::panic::{AssertUnwindSafe, catch_unwind};
use std::sync::Arc;

use felix_cluster::recovery::{FenceAhead, Place, Verdict};
use felix_cluster::registration::{self, Past, Stranger};
use felix_cluster::state::{Node, NodeState, Revision};
use felix_protocol::ids::{SessionId, TopicId};
use felix_storage::disk::Disk;
use thiserror::Error;
use tokio::sync::{mpsc, oneshot};

use super::{Agent, AgentConfig};
use crate::executor::{Command, Executor, LeaseView, Outcome, Published};
use crate::membership::{EnterError, random_session};
use crate::past::Memory;
use crate::store::embedded::Embedded;
use crate::store::{Position, Store, StoreError};

/// Why the control side did not start.
#[derive(Debug, Error)]
pub enum StartError {
    /// The store does not open.
    #[error("{0}{after}", after = remedy(.0))]
    Store(StoreError),
    /// The store is empty, and beside it are copies of partitions: without it nobody knows whose they are.
    #[error(
        "the control store is empty, but the data directory holds {0} copies of partitions: put control.redb back \
         from a copy of this directory (nothing was changed), or begin anew in another directory"
    )]
    Orphans(usize),
    /// The store of this directory is another node's.
    #[error("node {here}: the control store in this data directory is that of node {registered}")]
    OtherNode {
        /// Who is registered.
        registered: felix_protocol::ids::BrokerId,
        /// Who starts.
        here: felix_protocol::ids::BrokerId,
    },
    /// Store and directory do not belong together.
    #[error(transparent)]
    Stranger(#[from] Stranger),
    /// The store is older than what this directory has seen.
    #[error(
        "the control store is at revision {store}, but this data directory has seen revision {seen}: control.redb was \
         restored from an older copy; put the newer one back, or go on without what was decided since by `felix \
         recover store`"
    )]
    WentBack {
        /// The store's revision.
        store: Revision,
        /// The directory's.
        seen: Revision,
    },
    /// The same, seen by what the copies here have accepted.
    #[error(
        "the control store went back: {0}; it was restored from a backup, and what was decided since is lost: put a \
         newer one back, or go on without that by `felix recover store`"
    )]
    Ahead(#[from] FenceAhead),
    /// What the directory remembers cannot be read or written.
    #[error("{path}: {source}", path = crate::past::FILE_NAME)]
    Memory {
        /// Why.
        source: std::io::Error,
    },
    /// Another process wrote the same node's key in between.
    #[error("another process registered as node {0} at the same time")]
    Raced(felix_protocol::ids::BrokerId),
    /// The node cannot enter a cluster whose store others use.
    #[error(transparent)]
    Enter(#[from] EnterError),
    /// Another cluster's store.
    #[error(
        "the control store holds cluster {store}, the data directory belongs to cluster {directory}: etcd, \
         cluster-prefix or data-dir names that of another"
    )]
    OtherCluster {
        /// The store's.
        store: String,
        /// The directory's.
        directory: String,
    },
    /// A store without a cluster, though the directory belongs to one.
    #[error(
        "the data directory belongs to cluster {0}, but the control store holds no cluster: etcd or cluster-prefix is \
         another one's, or the store was lost and is to be restored from its backup"
    )]
    NoCluster(String),
    /// A store without a cluster, though there are copies of partitions.
    #[error(
        "the control store holds no cluster, but the data directory holds {0} copies of partitions: etcd or \
         cluster-prefix is another one's, or the store was lost and is to be restored from its backup"
    )]
    Unknown(usize),
    /// No thread.
    #[error("the control thread does not start: {0}")]
    Thread(std::io::Error),
    /// The control thread ended at the start.
    #[error("the control thread ended: {0}")]
    Ended(String),
}

/// It says itself what the store said: that is not told once more as its source.
impl From<StoreError> for StartError {
    fn from(error: StoreError) -> Self {
        StartError::Store(error)
    }
}

/// What to do about a store that does not open, where that is not said already.
fn remedy(error: &StoreError) -> &'static str {
    match error {
        StoreError::Damaged(_) => {
            "; put control.redb back from a copy of this directory (nothing else was changed), or begin anew in \
             another directory"
        }
        StoreError::Unavailable(_)
        | StoreError::Unknown(_)
        | StoreError::Compacted(_)
        | StoreError::Failed(_) => "",
        StoreError::WentBack { .. } => {
            "; put a newer one back, or go on without what was decided since by `felix recover store`"
        }
    }
}

pub(super) type Started = Result<(), StartError>;

pub(super) async fn start<D: Disk>(disk: D, config: AgentConfig) -> Result<Agent, StartError> {
    let node = config.node;
    let published = Published::new();
    let (commands, receiver) = mpsc::unbounded_channel();
    let (to, from) = oneshot::channel();
    let remember = {
        let (disk, directory) = (disk.clone(), config.directory.clone());
        move |position: Position| {
            let mut memory = Memory::read(&disk, &directory)?;
            memory.revision = memory.revision.max(position.revision);
            memory.write(&disk, &directory)
        }
    };
    let shared = Arc::clone(&published);
    let thread = std::thread::Builder::new().name("felix-control".to_owned());
    let run = move || thread_main(&shared, receiver, to, async || enter_alone(&disk, &config, &shared).await);
    thread.spawn(run).map_err(StartError::Thread)?;
    let ended = || StartError::Ended(published.failure().unwrap_or("without a word").to_owned());
    from.await.map_err(|_| ended())??;
    Ok(Agent { node, published, commands, remember: Arc::new(remember) })
}

/// What the control thread does: enters the cluster, says so, and serves until it is told to end.
pub(super) fn thread_main<S: Store>(
    published: &Arc<Published>,
    commands: mpsc::UnboundedReceiver<Command>,
    started: oneshot::Sender<Started>,
    enter: impl AsyncFnOnce() -> Result<Executor<S>, StartError>,
) {
    let body = || -> Result<(), String> {
        let runtime = tokio::runtime::Builder::new_current_thread().enable_all().build();
        let runtime = runtime.map_err(|error| error.to_string())?;
        runtime.block_on(async {
            let executor = match enter().await {
                Ok(executor) => {
                    if started.send(Ok(())).is_err() {
                        return Ok(());
                    }
                    executor
                }
                Err(error) => {
                    // Whoever started us is told; if nobody listens, nobody needs to know.
                    let _ = started.send(Err(error));
                    return Ok(());
                }
            };
            executor.serve(commands).await.map_err(|over| over.to_string())
        })
    };
    let failure = match catch_unwind(AssertUnwindSafe(body)) {
        Ok(ended) => ended.err(),
        Err(_) => Some("the control thread panicked".to_owned()),
    };
    if let Some(failure) = &failure {
        tracing::error!(%failure, "the control side ended");
    }
    published.end(failure);
}

/// The only node there is: the lock on its directory is its lease.
async fn enter_alone<D: Disk>(
    disk: &D,
    config: &AgentConfig,
    published: &Arc<Published>,
) -> Result<Executor<Embedded<D>>, StartError> {
    let (executor, session) = enter(disk, config, published).await?;
    published.begin(LeaseView::of_lock(session));
    executor.publish();
    Ok(executor)
}

/// Opens, checks, registers, promotes.
async fn enter<D: Disk>(
    disk: &D,
    config: &AgentConfig,
    published: &Arc<Published>,
) -> Result<(Executor<Embedded<D>>, SessionId), StartError> {
    let memory_failed = |source| StartError::Memory { source };
    let mut memory = Memory::read(disk, &config.directory).map_err(memory_failed)?;
    let store = Embedded::open(disk.clone(), &config.directory)?;
    let mut executor = Executor::load(store, Arc::clone(published)).await?;
    let seen = executor.view().revision();
    let was = memory.revision;
    let place = Place { epoch: executor.view().control_epoch(), store: None, revision: seen };
    if let Some(why) = memory.lost.filter(|_| executor.view().cluster().is_some()) {
        tracing::warn!(
            file = crate::past::FILE_NAME,
            why,
            "what this directory remembered of its control store is lost; the store beside it is believed, and copies \
             that it does not know are kept"
        );
        memory.past.unverified = true;
    }
    let verdict = memory.meet(&place).map_err(|_| StartError::WentBack { store: seen, seen: was })?;
    published.set_unverified(memory.past.unverified);
    memory.past.unnamed = config.cluster_id.is_none();
    check(&executor, config, &memory.past)?;

    // Before the try, so that a later process knows this session whether or not the try succeeded. Of the older
    // ones only the store's own can still matter.
    let session = random_session();
    let confirmed = executor.view().broker(config.node).map(|node| node.node.session);
    if verdict == Verdict::Anew {
        // An operator has vouched for the store, so its session is one of this directory's.
        memory.past.sessions.extend(confirmed);
    }
    memory.past.sessions.retain(|known| Some(*known) == confirmed);
    memory.past.sessions.push(session);
    let id = match (executor.view().cluster(), &config.cluster_id) {
        (Some(cluster), _) => cluster.value.id.clone(),
        (None, Some(id)) => id.clone(),
        (None, None) => TopicId::random().to_string(),
    };
    // An empty store is only founded in this transaction; until it has landed, the directory belongs nowhere.
    memory.past.cluster = executor.view().cluster().map(|_| id.clone());
    memory.write(disk, &config.directory).map_err(memory_failed)?;

    let node = Node {
        session,
        state: NodeState::Live,
        directory: config.directory_id,
        suspect: false,
        boot: config.boot_id.clone(),
        listeners: config.listeners.clone(),
        internal: config.internal.clone(),
        rack: config.rack.clone(),
        version: config.version.clone(),
    };
    register(&mut executor, config, &id, &node, &memory.past).await?;
    executor.settle().await?;
    // A store of before this life is told from this one from now on.
    memory.past.cluster = Some(id);
    memory.revision = executor.view().revision();
    memory.write(disk, &config.directory).map_err(memory_failed)?;
    Ok((executor, session))
}

/// Founds the cluster, if it is not there yet, and registers, in one transaction.
async fn register<S: Store>(
    executor: &mut Executor<S>,
    config: &AgentConfig,
    cluster: &str,
    node: &Node,
    past: &Past,
) -> Result<(), StartError> {
    const TRIES: u32 = 3;
    let mut refused = String::new();
    for _ in 0..TRIES {
        let mut decisions = registration::found(executor.view(), cluster, config.lease_ms);
        decisions.push(registration::take_over(executor.view(), config.node, node, past)?);
        let Outcome { landed, failure, .. } = executor.commit(&decisions).await?;
        match failure {
            _ if !landed.contains(&false) => return Ok(()),
            // Nothing was written, and nobody else has written: the store had no room, perhaps has some now.
            Some(what) => refused = what,
            None => return Err(StartError::Raced(config.node)),
        }
    }
    Err(StoreError::Unavailable(refused).into())
}

fn check<S: Store>(executor: &Executor<S>, config: &AgentConfig, past: &Past) -> Result<(), StartError> {
    let view = executor.view();
    registration::check_cluster(view, past)?;
    if view.cluster().is_none() && config.copies > 0 {
        return Err(StartError::Orphans(config.copies));
    }
    // The store in a directory knows one node: the directory's.
    if view.broker(config.node).is_none()
        && let Some(other) = view.nodes().next()
    {
        return Err(StartError::OtherNode { registered: other.0, here: config.node });
    }
    // `meta.properties` may have been written before the cluster was founded, never the other way round.
    if let (Some(directory), Some(cluster)) = (&config.cluster_id, view.cluster())
        && *directory != cluster.value.id
    {
        let (store, directory) = (cluster.value.id.clone(), directory.clone());
        return Err(Stranger::Cluster { store, directory }.into());
    }
    Ok(())
}
