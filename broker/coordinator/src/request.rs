//! What can be asked of a group. No wire types: the handlers translate.

use std::sync::Arc;

use bytes::Bytes;
use felix_protocol::ids::{Offset, Uuid};

/// One request about one group, or about all groups of the partition.
#[derive(Clone, Debug, PartialEq, Eq)]
pub enum Request {
    /// A client joins, or joins again.
    Join(JoinGroup),
    /// A member asks for its assignment; the leader brings all of them.
    Sync(SyncGroup),
    /// A member is alive.
    Heartbeat(Heartbeat),
    /// Members leave, or are removed by an operator.
    Leave(LeaveGroup),
    /// Offsets are stored.
    Commit(CommitOffsets),
    /// Stored offsets are read.
    Fetch(FetchOffsets),
    /// Stored offsets are removed.
    DeleteOffsets(DeleteOffsets),
    /// One group in detail.
    Describe(Arc<str>),
    /// All groups of this partition.
    List(ListGroups),
    /// A group and its offsets are removed.
    Delete(Arc<str>),
}

/// JoinGroup.
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct JoinGroup {
    /// The group.
    pub group: Arc<str>,
    /// The member id, empty for a client that has none yet.
    pub member: Arc<str>,
    /// `group.instance.id` of a static member.
    pub instance: Option<Arc<str>>,
    /// From the request header; part of a new member id.
    pub client_id: Arc<str>,
    /// Where the client connects from, as tools print it (`/127.0.0.1`).
    pub client_host: Arc<str>,
    /// How long the member may be silent.
    pub session_timeout_ms: i32,
    /// How long the member needs to join again in a rebalance.
    pub rebalance_timeout_ms: i32,
    /// `consumer`, `connect`, or whatever the clients agree on.
    pub protocol_type: Arc<str>,
    /// The protocols that the client supports, best first.
    pub protocols: Vec<Protocol>,
    /// Whether this version of the request makes a client without an id join twice (v4 and later).
    pub member_id_required: bool,
    /// Whether this version can tell a leader that no assignment is due (v9 and later).
    pub skips_assignment: bool,
    /// Makes a new member's id unique. Given with the request so that the machine has no dice.
    pub fresh: Uuid,
}

/// One protocol that a member supports. Its metadata is opaque here.
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct Protocol {
    /// Its name, such as `range` or `cooperative-sticky`.
    pub name: Arc<str>,
    /// What the leader needs to know of the member (a consumer's subscription).
    pub metadata: Bytes,
}

/// SyncGroup.
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct SyncGroup {
    /// The group.
    pub group: Arc<str>,
    /// The member.
    pub member: Arc<str>,
    /// Its instance id.
    pub instance: Option<Arc<str>>,
    /// The group generation that it joined.
    pub generation: i32,
    /// What it believes the protocol type is (v5 and later).
    pub protocol_type: Option<Arc<str>>,
    /// What it believes the protocol is (v5 and later).
    pub protocol: Option<Arc<str>>,
    /// The leader's assignments by member id; empty from everybody else.
    pub assignments: Vec<(Arc<str>, Bytes)>,
}

/// Heartbeat.
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct Heartbeat {
    /// The group.
    pub group: Arc<str>,
    /// The member.
    pub member: Arc<str>,
    /// Its instance id.
    pub instance: Option<Arc<str>>,
    /// The group generation that it belongs to.
    pub generation: i32,
}

/// LeaveGroup.
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct LeaveGroup {
    /// The group.
    pub group: Arc<str>,
    /// Who leaves.
    pub members: Vec<Leaving>,
}

/// One member that leaves.
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct Leaving {
    /// The member id; empty when an operator removes a static member.
    pub member: Arc<str>,
    /// The instance id.
    pub instance: Option<Arc<str>>,
}

/// OffsetCommit.
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct CommitOffsets {
    /// The group.
    pub group: Arc<str>,
    /// The member id; empty for an operator or a consumer that assigns itself.
    pub member: Arc<str>,
    /// Its instance id.
    pub instance: Option<Arc<str>>,
    /// The group generation, -1 with an empty member id.
    pub generation: i32,
    /// Keep the offsets this long whatever happens to the group (v2 to v4).
    pub retention_ms: Option<i64>,
    /// Whether this version knows the answer [`GroupNotFound`](crate::GroupError::GroupNotFound) (v9 and later).
    pub knows_group_not_found: bool,
    /// What to store.
    pub topics: Vec<(Arc<str>, Vec<CommitPartition>)>,
}

/// One offset to store.
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct CommitPartition {
    /// The partition.
    pub partition: i32,
    /// The next record to read.
    pub offset: Offset,
    /// The leader epoch of the last record read, -1 if unknown.
    pub leader_epoch: i32,
    /// Whatever the client wants to find again.
    pub metadata: Arc<str>,
}

/// OffsetFetch of one group.
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct FetchOffsets {
    /// The group.
    pub group: Arc<str>,
    /// Which partitions, or all with an offset.
    pub topics: Option<Vec<(Arc<str>, Vec<i32>)>>,
    /// Refuse partitions with an open transaction instead of answering the offset before it.
    pub require_stable: bool,
}

/// OffsetDelete.
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct DeleteOffsets {
    /// The group.
    pub group: Arc<str>,
    /// Which partitions.
    pub topics: Vec<(Arc<str>, Vec<i32>)>,
}

/// ListGroups. An empty filter lets everything pass.
#[derive(Clone, Debug, Default, PartialEq, Eq)]
pub struct ListGroups {
    /// Names of states, in any case.
    pub states: Vec<String>,
    /// Names of group types, in any case.
    pub types: Vec<String>,
}
