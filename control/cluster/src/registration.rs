//! How a node enters the cluster (`replication.md` section 3, "Start").
//!
//! Every process registers under a session of its own. What makes that safe is knowing that the life before it
//! is over; the embedded store knows by the lock on the directory, others will know by waiting.

use felix_protocol::ids::{BrokerId, SessionId, Uuid};
use thiserror::Error;

pub use entry::{Entry, LiveElsewhere, Looked, Step};

use crate::decision::Decision;
use crate::features;
use crate::keys::Key;
use crate::state::{Beat, Cluster, Node, NodeState};
use crate::view::View;

mod entry;

/// What this process knows of its directory's earlier lives.
#[derive(Clone, Debug, Default, PartialEq, Eq)]
pub struct Past {
    /// The cluster this directory belongs to, once it has joined one.
    pub cluster: Option<String>,
    /// The last confirmed session and every one tried since.
    pub sessions: Vec<SessionId>,
    /// The directory has no identity of its own yet. A process that ended between registering and writing one
    /// down leaves it so, and the next gives it another.
    pub unnamed: bool,
    /// What was known of earlier sessions and of how far the store had come was lost, now or in an earlier life:
    /// the store's own session is taken for this directory's, and nobody can tell whether the store went back then.
    pub unverified: bool,
    /// The directory itself knows that a flush of it has failed, and gave new identities to the copies that are in doubt by that.
    pub doubts_settled: bool,
}

/// Why a node may not register.
#[derive(Clone, Debug, PartialEq, Eq, Error)]
pub enum Stranger {
    /// The store belongs to another cluster.
    #[error(
        "the control store belongs to cluster {store}, the data directory to cluster {directory}: put back the file \
         that does not belong here, control.redb or meta.properties"
    )]
    Cluster {
        /// The store's.
        store: String,
        /// The directory's.
        directory: String,
    },
    /// The directory has joined a cluster, but the store is empty.
    #[error(
        "the data directory belongs to cluster {0}, but the control store is empty: put control.redb back from a \
         copy of this directory, or begin anew in another one"
    )]
    Empty(String),
    /// The id is registered from another directory.
    #[error(
        "node {node} is registered with data directory {registered}, this one is {here}: put back the \
         meta.properties that belongs here, or move it away to have it written anew"
    )]
    Directory {
        /// The id.
        node: BrokerId,
        /// Where it is registered.
        registered: String,
        /// Here.
        here: String,
    },
    /// A session this directory never had: the store or the directory was restored from a copy.
    #[error(
        "node {0} was last registered by a process this data directory knows nothing of: \
         the control store or the directory was restored from a copy; put the files that belong together back, or \
         move control.past away to go on with what is here"
    )]
    Session(BrokerId),
}

/// Founds the cluster: its identity and first features, where there are none.
pub fn found(view: &View, id: &str, lease_ms: u64) -> Vec<Decision> {
    let mut decisions = Vec::new();
    if view.cluster().is_none() {
        let cluster = Cluster::founded(id, lease_ms);
        decisions.push(Decision::new().absent(Key::Cluster).put(Key::Cluster, &cluster));
    }
    decisions.extend(features::finalise(view));
    decisions
}

/// Whether this directory and this store belong together.
pub fn check_cluster(view: &View, past: &Past) -> Result<(), Stranger> {
    match (&past.cluster, view.cluster()) {
        (Some(directory), Some(store)) if *directory != store.value.id => {
            Err(Stranger::Cluster { store: store.value.id.clone(), directory: directory.clone() })
        }
        (Some(directory), None) => Err(Stranger::Empty(directory.clone())),
        (Some(_) | None, Some(_)) | (None, None) => Ok(()),
    }
}

/// Registers `node` in place of a predecessor that is known to be over, because this process holds the lock on
/// its directory and the store is no one else's.
pub fn take_over(view: &View, id: BrokerId, node: &Node, past: &Past) -> Result<Decision, Stranger> {
    let key = Key::Node(id);
    let mut decision = Decision::new();
    match view.broker(id) {
        None => decision = decision.absent(key.clone()),
        Some(before) => {
            if before.node.directory != node.directory && !past.unnamed {
                let name = |directory: Uuid| felix_protocol::ids::base64url(directory.as_bytes());
                let (registered, here) = (name(before.node.directory), name(node.directory));
                return Err(Stranger::Directory { node: id, registered, here });
            }
            if !past.unverified && !past.sessions.contains(&before.node.session) {
                return Err(Stranger::Session(id));
            }
            decision = decision.at(key.clone(), before.revision);
        }
    }
    let beat = Beat { session: node.session, counter: 0 };
    Ok(decision.put(key, node).put(Key::Beat(id), &beat))
}

/// The end of a session by its own word. `suspect`: a flush of its directory has failed, which the directory itself may be unable
/// to note: nothing there is vouched for until the next life has given it new identities.
pub fn end(view: &View, id: BrokerId, session: SessionId, suspect: bool) -> Option<Decision> {
    let before = view.broker(id)?;
    if before.node.session != session || before.is_fenced() {
        return None;
    }
    let key = Key::Node(id);
    let suspect = suspect || before.node.suspect;
    let after = Node { state: NodeState::Fenced, suspect, ..before.node.clone() };
    Some(Decision::new().at(key.clone(), before.revision).put(key, &after))
}

/// Changes the state of a node that is still in the hands of `session`; `None` when it is not, or has that
/// state already.
pub fn set_state(view: &View, id: BrokerId, session: SessionId, state: NodeState) -> Option<Decision> {
    let before = view.broker(id)?;
    if before.node.session != session || before.node.state == state || before.is_fenced() {
        return None;
    }
    let key = Key::Node(id);
    let after = Node { state, ..before.node.clone() };
    Some(Decision::new().at(key.clone(), before.revision).put(key, &after))
}

/// Why a node is not removed.
#[derive(Clone, Copy, Debug, PartialEq, Eq, Error)]
pub enum NotRemoved {
    /// No such node.
    #[error("node {0} is not registered")]
    Unregistered(BrokerId),
    /// Its session is not over.
    #[error("node {0} is running: only one that has stopped, or was fenced, can be unregistered")]
    Running(BrokerId),
}

/// Removes a node whose session is over, for good. Copies it has stay named where they are: what may be promoted is known
/// by its log, and a node that returns under the id finds its own or declines. What was configured for it stays as well.
pub fn unregister(view: &View, id: BrokerId) -> Result<Decision, NotRemoved> {
    let node = view.broker(id).ok_or(NotRemoved::Unregistered(id))?;
    if !node.is_fenced() {
        return Err(NotRemoved::Running(id));
    }
    let decision = Decision::new().at(Key::Node(id), node.revision);
    Ok(decision.delete(Key::Node(id)).delete(Key::Beat(id)).delete(Key::Revoke(id)))
}
