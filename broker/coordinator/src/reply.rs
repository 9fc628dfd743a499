//! What is answered.

use std::sync::Arc;

use bytes::Bytes;
use felix_protocol::ids::Offset;

use crate::error::GroupError;
use crate::group::state::State;

/// A result for each partition of each topic, in the order of the request.
pub type PartitionResults = Vec<(Arc<str>, Vec<(i32, Result<(), GroupError>)>)>;

/// One answer, of the kind that the request asked for.
#[derive(Clone, Debug, PartialEq, Eq)]
pub enum Reply {
    /// To a join.
    Join(Result<Joined, JoinRefused>),
    /// To a sync.
    Sync(Result<Synced, GroupError>),
    /// To a heartbeat.
    Heartbeat(Result<(), GroupError>),
    /// To a leave: one result a member.
    Leave(Result<Vec<Left>, GroupError>),
    /// To a commit.
    Commit(Result<PartitionResults, GroupError>),
    /// To an offset fetch.
    Fetch(Result<Vec<FetchedTopic>, GroupError>),
    /// To an offset delete.
    DeleteOffsets(Result<PartitionResults, GroupError>),
    /// To a describe: `None` for a group that does not exist.
    Describe(Option<Described>),
    /// To a list.
    List(Vec<Listed>),
    /// To a delete.
    Delete(Result<(), GroupError>),
}

/// The join completed.
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct Joined {
    /// The group generation.
    pub generation: i32,
    /// What all members are.
    pub protocol_type: Option<Arc<str>>,
    /// What they agreed on.
    pub protocol: Option<Arc<str>>,
    /// Who makes the assignment.
    pub leader: Arc<str>,
    /// The id of the member that is answered.
    pub member: Arc<str>,
    /// The leader need not make an assignment: the stored one still holds.
    pub skip_assignment: bool,
    /// All members, for the leader only.
    pub members: Vec<JoinedMember>,
}

/// What the leader is told of a member.
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct JoinedMember {
    /// Its id.
    pub member: Arc<str>,
    /// Its instance id.
    pub instance: Option<Arc<str>>,
    /// Its metadata for the protocol agreed on.
    pub metadata: Bytes,
}

/// The join was refused.
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct JoinRefused {
    /// Why.
    pub error: GroupError,
    /// The member id that the answer carries: with
    /// [`MemberIdRequired`](GroupError::MemberIdRequired) the one to come back with.
    pub member: Arc<str>,
}

/// A member's assignment.
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct Synced {
    /// What all members are.
    pub protocol_type: Option<Arc<str>>,
    /// What they agreed on.
    pub protocol: Option<Arc<str>>,
    /// The leader's word, opaque here.
    pub assignment: Bytes,
}

/// What became of one member's leave.
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct Left {
    /// The member id of the request.
    pub member: Arc<str>,
    /// The instance id of the request.
    pub instance: Option<Arc<str>>,
    /// Whether it left.
    pub result: Result<(), GroupError>,
}

/// The stored offsets of a topic.
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct FetchedTopic {
    /// Its name.
    pub topic: Arc<str>,
    /// Each partition asked for; `Ok(None)` where nothing is stored.
    pub partitions: Vec<(i32, Result<Option<Fetched>, GroupError>)>,
}

/// One stored offset.
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct Fetched {
    /// The next record to read.
    pub offset: Offset,
    /// The leader epoch stored with it, or -1.
    pub leader_epoch: i32,
    /// What the client stored with it.
    pub metadata: Arc<str>,
}

/// A group in detail.
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct Described {
    /// Its state.
    pub state: State,
    /// What its members are.
    pub protocol_type: Option<Arc<str>>,
    /// What they agreed on; told in a stable group only.
    pub protocol: Option<Arc<str>>,
    /// Its members.
    pub members: Vec<DescribedMember>,
}

/// A member in detail.
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct DescribedMember {
    /// Its id.
    pub member: Arc<str>,
    /// Its instance id.
    pub instance: Option<Arc<str>>,
    /// Its client id.
    pub client_id: Arc<str>,
    /// Where it connects from.
    pub client_host: Arc<str>,
    /// Its metadata for the protocol agreed on; empty unless the group is stable.
    pub metadata: Bytes,
    /// Its assignment; empty unless the group is stable.
    pub assignment: Bytes,
}

/// A group in the list.
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct Listed {
    /// The group.
    pub group: Arc<str>,
    /// What its members are.
    pub protocol_type: Option<Arc<str>>,
    /// Its state.
    pub state: State,
}
