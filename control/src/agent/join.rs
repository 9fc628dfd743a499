//! Entering a cluster whose store other nodes use as well.

use std::future::Future;
use std::sync::Arc;
use std::time::Duration;

use felix_cluster::recovery::{self, Place, Verdict};
use felix_cluster::state::{Node, NodeState};
use felix_protocol::ids::{SessionId, TopicId};
use felix_storage::disk::Disk;
use tokio::sync::{mpsc, oneshot};

use super::start::{Started, thread_main};
use super::{Agent, AgentConfig, StartError};
use crate::beats;
use crate::clock::LeaseClock;
use crate::executor::{Command, Executor, Published, Sessions};
use crate::membership::{Membership, RenewLogs};
use crate::past::Memory;
use crate::store::{Connect, Position, Store, StoreError};

/// How long a store that does not answer is asked again at the start.
const GIVE_UP_AFTER: Duration = Duration::from_secs(30);
/// From one try to the next.
const RETRY: Duration = Duration::from_millis(500);
/// How long one attempt at one place of the store may take.
const ATTEMPT: Duration = Duration::from_secs(3);
/// How long a start waits for its first confirmed beat; it comes later then.
const FIRST_BEAT: Duration = Duration::from_secs(5);

pub(super) async fn join<D: Disk, C: Connect>(
    disk: D,
    config: AgentConfig,
    connect: C,
    clock: Arc<dyn LeaseClock>,
    renew_logs: RenewLogs,
) -> Result<Agent, StartError> {
    let node = config.node;
    let published = Published::new();
    let (commands, receiver) = mpsc::unbounded_channel();
    let (to, from) = oneshot::channel();
    let remember = {
        let (disk, directory) = (disk.clone(), config.directory.clone());
        move |position: Position| {
            let mut memory = Memory::read(&disk, &directory)?;
            memory.revision = memory.revision.max(position.revision);
            memory.store = Some(position.store);
            memory.write(&disk, &directory)
        }
    };
    let joining =
        Joining { disk, config, connect: Arc::new(connect), clock, published: Arc::clone(&published) };
    let thread = std::thread::Builder::new().name("felix-control".to_owned());
    thread.spawn(move || joining.run(renew_logs, receiver, to)).map_err(StartError::Thread)?;
    let ended = || StartError::Ended(published.failure().unwrap_or("without a word").to_owned());
    from.await.map_err(|_| ended())??;
    Ok(Agent { node, published, commands, remember: Arc::new(remember) })
}

struct Joining<D, C> {
    disk: D,
    config: AgentConfig,
    connect: Arc<C>,
    clock: Arc<dyn LeaseClock>,
    published: Arc<Published>,
}

impl<D: Disk, C: Connect> Joining<D, C> {
    fn run(
        self,
        renew_logs: RenewLogs,
        commands: mpsc::UnboundedReceiver<Command>,
        started: oneshot::Sender<Started>,
    ) {
        let published = Arc::clone(&self.published);
        thread_main(&published, commands, started, async || self.enter(renew_logs).await);
    }

    /// Connects, reads everything, checks, registers, promotes, and waits for the first beat.
    async fn enter(self, renew_logs: RenewLogs) -> Result<Executor<C::Store>, StartError> {
        let memory_failed = |source| StartError::Memory { source };
        let Joining { disk, config, connect, clock, published } = self;
        let mut memory = Memory::read(&disk, &config.directory).map_err(memory_failed)?;
        let load = async || Executor::load(connect.connect(ATTEMPT).await?, Arc::clone(&published)).await;
        let mut executor = patiently(&*clock, load).await?;
        let found = executor.store().position();
        let seen = Position { store: memory.store.unwrap_or(found.store), revision: memory.revision };
        let epoch = executor.view().control_epoch();
        let place = Place { epoch, store: Some(found.store), revision: found.revision };
        let verdict = memory.meet(&place).map_err(|_| StoreError::WentBack { seen, found })?;
        check(&executor, &config, &memory)?;
        recovery::check_fences(executor.view(), &config.fences)?;
        if verdict == Verdict::Anew && memory.past.cluster.is_some() {
            tracing::warn!(
                epoch,
                "an operator has taken a control store that went back for good; all copies here get new identities"
            );
        }
        if let Some(why) = memory.lost.filter(|_| executor.view().cluster().is_some() && config.copies > 0) {
            tracing::warn!(
                file = crate::past::FILE_NAME,
                why,
                "what this directory remembered of the control store is lost; copies that the store does not know are kept"
            );
            memory.past.unverified = true;
        }
        published.set_unverified(memory.past.unverified);
        memory.past.doubts_settled = config.doubts_settled;
        let beats = beats::start(config.node, connect, Arc::clone(&clock), Arc::clone(&published));
        let beats = beats.map_err(StartError::Thread)?;
        let mut own = beats.own.clone();
        executor.share(Sessions::new(config.node, Arc::clone(&clock), beats));
        let mut membership = membership(disk, config, memory, clock, renew_logs);
        membership.is_anew = verdict == Verdict::Anew;
        executor.enter(membership).await?;
        executor.publish();
        // Its answer may be late, then the lease begins later. An error is an end that is told elsewhere.
        let _ = tokio::time::timeout(FIRST_BEAT, own.wait_for(Option::is_some)).await;
        Ok(executor)
    }
}

fn membership<D: Disk>(
    disk: D,
    config: AgentConfig,
    memory: Memory,
    clock: Arc<dyn LeaseClock>,
    renew_logs: RenewLogs,
) -> Membership {
    let directory = config.directory;
    Membership {
        id: config.node,
        node: Node {
            session: SessionId(0),
            state: NodeState::Live,
            directory: config.directory_id,
            suspect: false,
            boot: config.boot_id,
            listeners: config.listeners,
            internal: config.internal,
            rack: config.rack,
            version: config.version,
        },
        cluster: config.cluster_id.unwrap_or_else(|| TopicId::random().to_string()),
        lease_ms: config.lease_ms,
        memory,
        is_anew: false,
        remember: Box::new(move |memory| memory.write(&disk, &directory)),
        renew_logs,
        clock,
    }
}

/// Tries for a while, and says so once.
async fn patiently<T, F: Future<Output = Result<T, StoreError>>>(
    clock: &dyn LeaseClock,
    mut attempt: impl FnMut() -> F,
) -> Result<T, StoreError> {
    let began_at = clock.now();
    let mut is_told = false;
    loop {
        match attempt().await {
            Err(StoreError::Unavailable(what) | StoreError::Unknown(what)) => {
                if clock.now().since(began_at) >= GIVE_UP_AFTER {
                    let within = GIVE_UP_AFTER.as_secs();
                    return Err(StoreError::Unavailable(format!("no answer within {within} s: {what}")));
                }
                if !std::mem::replace(&mut is_told, true) {
                    tracing::warn!(%what, within = ?GIVE_UP_AFTER, "the control store does not answer yet; trying again");
                }
            }
            done => return done,
        }
        tokio::time::sleep(RETRY).await;
    }
}

/// Whether this directory and this store belong together.
fn check<S: Store>(executor: &Executor<S>, config: &AgentConfig, memory: &Memory) -> Result<(), StartError> {
    let joined = config.cluster_id.as_ref().filter(|_| config.copies > 0).or(memory.past.cluster.as_ref());
    match (executor.view().cluster(), joined) {
        (None, Some(directory)) => Err(StartError::NoCluster(directory.clone())),
        (None, None) if config.copies > 0 => Err(StartError::Unknown(config.copies)),
        (None, None) => Ok(()),
        (Some(store), _) => {
            let known = config.cluster_id.as_ref().or(memory.past.cluster.as_ref());
            match known.filter(|known| **known != store.value.id) {
                Some(directory) => {
                    let (store, directory) = (store.value.id.clone(), directory.clone());
                    Err(StartError::OtherCluster { store, directory })
                }
                None => Ok(()),
            }
        }
    }
}
