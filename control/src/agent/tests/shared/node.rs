//! Nodes of a cluster in one process: each with its own directory, clock and way to the store that they share.

use std::sync::Arc;
use std::time::Duration;

use felix_cluster::lease::{Clocks, Reading};
use felix_protocol::time::{Clock, WallTime};
use felix_storage::disk::mem::MemDisk;
use parking_lot::Mutex;
use tokio::time::Instant;

use super::super::*;
use crate::store::StoreError;
use crate::store::memory::{Fate, Link, Memory, Reach, Server};

/// L of these clusters.
pub(super) const LEASE: Duration = Duration::from_millis(1000);

/// A clock of the test's runtime.
#[derive(Clone)]
pub(super) struct TestClock {
    started: Instant,
}

impl Clock for TestClock {
    fn now(&self) -> MonoTime {
        MonoTime(1).after(self.started.elapsed())
    }

    fn wall(&self) -> WallTime {
        WallTime(0)
    }
}

impl LeaseClock for TestClock {
    fn reading(&self) -> Reading {
        Reading { boottime: self.now(), raw: self.now() }
    }

    fn clocks(&self) -> Clocks {
        Clocks::Both
    }
}

/// All of a node's ways to the store, those that it opens later included.
#[derive(Clone)]
pub(super) struct Ways {
    server: Server,
    shared: Arc<Mutex<(Reach, Vec<Link>)>>,
}

impl Ways {
    pub(super) fn set_reach(&self, reach: Reach) {
        let mut shared = self.shared.lock();
        shared.0 = reach;
        shared.1.iter().for_each(|link| link.set_reach(reach));
    }

    /// Whether watches are told nothing for the time being.
    pub(super) fn hold_watches(&self, held: bool) {
        self.shared.lock().1.iter().for_each(|link| link.hold_watches(held));
    }

    /// How often the store was read so far.
    pub(super) fn reads(&self) -> usize {
        self.shared.lock().1.iter().map(|link| link.counts().reads).sum()
    }

    /// What becomes of the next transactions on each way.
    pub(super) fn script(&self, fates: &[Fate]) {
        self.shared.lock().1.iter().for_each(|link| link.script(fates.iter().copied()));
    }
}

impl Connect for Ways {
    type Store = Memory;

    async fn connect(&self, _attempt: Duration) -> Result<Memory, StoreError> {
        let memory = self.server.connect();
        let mut shared = self.shared.lock();
        memory.link().set_reach(shared.0);
        shared.1.push(memory.link());
        Ok(memory)
    }
}

/// A node's directory and what leads to the store; its process comes and goes.
pub(super) struct Node {
    pub(super) disk: MemDisk,
    pub(super) config: AgentConfig,
    pub(super) ways: Ways,
    pub(super) clock: TestClock,
    /// How often all copies got new identities.
    pub(super) renewed: Arc<Mutex<usize>>,
}

impl Node {
    pub(super) fn new(server: &Server, id: i32) -> Node {
        let disk = MemDisk::new();
        disk.create_dir("/data".as_ref()).unwrap();
        disk.sync_dir("/".as_ref()).unwrap();
        let directory_id = Uuid::from_u128(id as u128);
        let lease_ms = u64::try_from(LEASE.as_millis()).unwrap();
        let config =
            AgentConfig { node: BrokerId(id), directory_id, lease_ms, ..config(PathBuf::from("/data")) };
        let ways =
            Ways { server: server.clone(), shared: Arc::new(Mutex::new((Reach::Everything, Vec::new()))) };
        Node { disk, config, ways, clock: TestClock { started: Instant::now() }, renewed: Arc::default() }
    }

    pub(super) async fn try_join(&self) -> Result<Agent, StartError> {
        let renewed = Arc::clone(&self.renewed);
        let renew = move || {
            *renewed.lock() += 1;
            Ok(())
        };
        let (disk, config) = (self.disk.clone(), self.config.clone());
        Agent::join(disk, config, self.ways.clone(), self.clock.clone(), renew).await
    }

    pub(super) async fn join(&self) -> Agent {
        self.try_join().await.unwrap()
    }

    /// Whether the lease of that agent holds now.
    pub(super) fn holds(&self, agent: &Agent) -> bool {
        agent.lease().ends_at() > self.clock.now()
    }
}

/// Waits for something that no view tells.
pub(super) async fn eventually(what: &str, mut test: impl FnMut() -> bool) {
    for _ in 0..2000 {
        if test() {
            return;
        }
        tokio::time::sleep(Duration::from_millis(5)).await;
    }
    panic!("it never happens: {what}");
}
