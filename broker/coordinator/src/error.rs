//! Why a group request was refused. No Kafka numbers here: the broker maps each to its code.

use thiserror::Error;

/// Why a request about a group was refused, as a whole or for one member or partition.
#[derive(Clone, Copy, Debug, PartialEq, Eq, Hash, Error)]
pub enum GroupError {
    /// An empty group id where a real one is needed, or one too long to store.
    #[error("the group id is empty or too long")]
    InvalidGroupId,
    /// A name in the request (instance id, protocol, client id) is too long to store.
    #[error("a name in the request is too long")]
    InvalidRequest,
    /// Nothing is known of this group.
    #[error("no such group")]
    GroupNotFound,
    /// The member is not, or no longer, in the group.
    #[error("no such member")]
    UnknownMember,
    /// The client must join again with the member id that the answer carries.
    #[error("join again with the member id given")]
    MemberIdRequired,
    /// The request belongs to another group generation.
    #[error("another group generation")]
    IllegalGeneration,
    /// Members are joining: join again.
    #[error("the group is rebalancing")]
    RebalanceInProgress,
    /// Another member has taken over this group instance id.
    #[error("the group instance id belongs to another member now")]
    FencedInstance,
    /// No protocol type or protocol in common with the group.
    #[error("no protocol in common with the group")]
    InconsistentProtocol,
    /// The session timeout is outside the configured bounds.
    #[error("the session timeout is out of bounds")]
    InvalidSessionTimeout,
    /// The group has as many members as it may have.
    #[error("the group is full")]
    GroupFull,
    /// Members are in the group, so it cannot be deleted.
    #[error("the group has members")]
    NonEmptyGroup,
    /// Offsets of a topic that the group consumes cannot be deleted.
    #[error("the group consumes this topic")]
    SubscribedToTopic,
    /// The metadata of a committed offset is too long.
    #[error("the metadata of the offset is too long")]
    MetadataTooLarge,
    /// A transaction that would change this offset has not ended.
    #[error("a transaction on this offset is open")]
    UnstableOffset,
    /// The members' metadata and assignments are too large to store as one record.
    #[error("the group is too large to store")]
    GroupTooLarge,
    /// The partition keeps as many groups as it may; try again later.
    #[error("too many groups without members are waiting")]
    TooManyGroups,
}
