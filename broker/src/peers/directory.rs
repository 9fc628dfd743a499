//! Who the other brokers are: what links and greetings ask of the cluster's view.

use std::collections::BTreeSet;

use felix_cluster::state::Revision;
use felix_cluster::view::View;
use felix_control::agent::Agent;
use felix_protocol::ids::{BrokerId, SessionId};
use felix_protocol::peer::hello::{Hello, OLDEST, VERSION};
use tokio::sync::watch;

/// Where a peer is, in which life.
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct Target {
    /// Its session.
    pub session: SessionId,
    /// Host name or address.
    pub host: String,
    /// Port.
    pub port: u16,
}

/// See the module.
pub trait Directory: Send + Sync + 'static {
    /// What this broker says of itself.
    fn hello(&self) -> Hello;

    /// All brokers that live, without this one.
    fn peers(&self) -> BTreeSet<BrokerId>;

    /// Where a peer is; `None` if it does not live, or cannot be dialled.
    fn target(&self, peer: BrokerId) -> Option<Target>;

    /// Whether that is a life of that broker that has not ended.
    fn lives(&self, peer: BrokerId, session: SessionId) -> bool;

    /// Tells that any of it may be different now.
    fn changed(&self) -> watch::Receiver<Revision>;
}

fn target(view: &View, peer: BrokerId) -> Option<Target> {
    let node = &view.broker(peer).filter(|node| !node.is_fenced())?.node;
    let internal = node.internal.as_ref()?;
    Some(Target { session: node.session, host: internal.host.clone(), port: internal.port })
}

impl Directory for Agent {
    fn hello(&self) -> Hello {
        let cluster = self.view().cluster_id().to_owned();
        Hello { version: VERSION, oldest: OLDEST, cluster, node: self.node(), session: self.session() }
    }

    fn peers(&self) -> BTreeSet<BrokerId> {
        self.view().brokers().map(|(id, _)| id).filter(|id| *id != self.node()).collect()
    }

    fn target(&self, peer: BrokerId) -> Option<Target> {
        target(&self.view(), peer).filter(|_| peer != self.node())
    }

    fn lives(&self, peer: BrokerId, session: SessionId) -> bool {
        let view = self.view();
        view.broker(peer).is_some_and(|node| !node.is_fenced() && node.node.session == session)
    }

    fn changed(&self) -> watch::Receiver<Revision> {
        Agent::changed(self)
    }
}
