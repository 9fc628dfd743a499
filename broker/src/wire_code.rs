//! Every domain error to its Kafka code. Exhaustive on purpose: a new error must be given a code here before it
//! can reach a client.

use felix_cluster::elect::NotElected;
use felix_cluster::features::UpdateRefused;
use felix_cluster::overrides::EditRefused;
use felix_cluster::quotas;
use felix_cluster::reassign;
use felix_cluster::registration::NotRemoved;
use felix_cluster::topics::{CreateRefused, UnknownTopic, WidenRefused};
use felix_control::agent::{AdminError, ControlError, ElectError};
use felix_coordinator::GroupError;
use felix_partition::append::AppendError;
use felix_partition::copy::DeleteRecordsError;
use felix_protocol::batch::validate::Rejection;
use felix_protocol::error_code::ErrorCode;
use felix_storage::error::ReadError;

use crate::coordinators::Unavailable;
use crate::fetching::session::SessionError;
use crate::partitions::ProducersError;

/// What a client is told.
pub trait WireCode {
    /// Kafka's code for it.
    fn code(&self) -> ErrorCode;
}

impl WireCode for AppendError {
    fn code(&self) -> ErrorCode {
        match self {
            AppendError::NotLeader | AppendError::OtherGeneration { .. } => ErrorCode::NotLeaderOrFollower,
            AppendError::NotEnoughReplicas { .. } => ErrorCode::NotEnoughReplicas,
            // Both are worth sending again; an idempotent producer's retry is recognised.
            AppendError::TimedOut | AppendError::Busy => ErrorCode::RequestTimedOut,
            AppendError::OutOfOrderSequence { .. } => ErrorCode::OutOfOrderSequenceNumber,
            AppendError::StaleProducerEpoch { .. } => ErrorCode::InvalidProducerEpoch,
            AppendError::TransactionOpen { .. } => ErrorCode::InvalidTxnState,
            AppendError::Unfit(_) => ErrorCode::InvalidRecord,
            AppendError::LargerThanSegment { .. } => ErrorCode::RecordListTooLarge,
            AppendError::DiskFull | AppendError::Storage(_) | AppendError::Halted(_) => {
                ErrorCode::KafkaStorageError
            }
        }
    }
}

impl WireCode for Rejection {
    fn code(&self) -> ErrorCode {
        match self {
            Rejection::Empty
            | Rejection::Magic(_)
            | Rejection::Cut
            | Rejection::Several(_)
            | Rejection::BaseOffset(_)
            | Rejection::Count { .. }
            | Rejection::Control
            | Rejection::Sequence { .. }
            | Rejection::Fault { .. }
            | Rejection::OffsetDelta { .. } => ErrorCode::InvalidRecord,
            Rejection::Length(_) | Rejection::Crc => ErrorCode::CorruptMessage,
            Rejection::ZstdUnknown => ErrorCode::UnsupportedCompressionType,
            Rejection::TooLarge { .. } => ErrorCode::MessageTooLarge,
            Rejection::Records(refused) if refused.timestamp => ErrorCode::InvalidTimestamp,
            Rejection::Records(_) => ErrorCode::InvalidRecord,
            Rejection::Pack { .. } => ErrorCode::UnknownServerError,
        }
    }
}

impl WireCode for ReadError {
    fn code(&self) -> ErrorCode {
        match self {
            ReadError::BelowStart { .. } | ReadError::BeyondEnd { .. } => ErrorCode::OffsetOutOfRange,
            // Consumers tell their application, which may go on behind the damage; a storage error they would repeat
            // for ever.
            ReadError::Damaged(_) => ErrorCode::CorruptMessage,
            ReadError::Io { .. } => ErrorCode::KafkaStorageError,
            // Never asked for by those who answer clients.
            ReadError::WouldBlock => ErrorCode::UnknownServerError,
            ReadError::Gone => ErrorCode::NotLeaderOrFollower,
        }
    }
}

impl WireCode for SessionError {
    fn code(&self) -> ErrorCode {
        match self {
            SessionError::NotFound => ErrorCode::FetchSessionIdNotFound,
            SessionError::WrongEpoch => ErrorCode::InvalidFetchSessionEpoch,
            SessionError::OtherNaming => ErrorCode::FetchSessionTopicIdError,
        }
    }
}

impl WireCode for ControlError {
    fn code(&self) -> ErrorCode {
        match self {
            // Worth trying again, here or elsewhere; the write may have happened.
            ControlError::Unavailable(_) | ControlError::Unknown(_) | ControlError::Contended(_) => {
                ErrorCode::RequestTimedOut
            }
            ControlError::Stopped(_) => ErrorCode::NotController,
            ControlError::Broken => ErrorCode::UnknownServerError,
        }
    }
}

impl<R: std::error::Error + WireCode> WireCode for AdminError<R> {
    fn code(&self) -> ErrorCode {
        match self {
            AdminError::Refused(refused) => refused.code(),
            AdminError::Control(error) => error.code(),
        }
    }
}

impl WireCode for CreateRefused {
    fn code(&self) -> ErrorCode {
        match self {
            CreateRefused::Name(_) | CreateRefused::Collides { .. } => ErrorCode::InvalidTopicException,
            CreateRefused::Reserved(_) => ErrorCode::InvalidRequest,
            CreateRefused::Exists(_) => ErrorCode::TopicAlreadyExists,
            CreateRefused::Partitions(_) => ErrorCode::InvalidPartitions,
            CreateRefused::TooManyPartitions(_) => ErrorCode::PolicyViolation,
            CreateRefused::ReplicationFactor { .. } => ErrorCode::InvalidReplicationFactor,
            CreateRefused::Assignment(_) => ErrorCode::InvalidReplicaAssignment,
        }
    }
}

impl WireCode for UnknownTopic {
    fn code(&self) -> ErrorCode {
        ErrorCode::UnknownTopicOrPartition
    }
}

impl WireCode for WidenRefused {
    fn code(&self) -> ErrorCode {
        match self {
            WidenRefused::Unknown(unknown) => unknown.code(),
            WidenRefused::NotMore { .. } => ErrorCode::InvalidPartitions,
            WidenRefused::TooManyPartitions(_) => ErrorCode::PolicyViolation,
            WidenRefused::Assignment(_) => ErrorCode::InvalidReplicaAssignment,
            WidenRefused::ReplicationFactor { .. } => ErrorCode::InvalidReplicationFactor,
        }
    }
}

impl WireCode for EditRefused {
    fn code(&self) -> ErrorCode {
        match self {
            EditRefused::Unknown(unknown) => unknown.code(),
            EditRefused::Refused(_) => ErrorCode::InvalidConfig,
        }
    }
}

impl WireCode for quotas::Refused {
    fn code(&self) -> ErrorCode {
        match self {
            quotas::Refused::Nobody
            | quotas::Refused::KindTwice(_)
            | quotas::Refused::Kind(_)
            | quotas::Refused::Combination
            | quotas::Refused::Empty(_)
            | quotas::Refused::Long(_)
            | quotas::Refused::Address(_)
            | quotas::Refused::EntityTwice
            | quotas::Refused::LimitTwice(_)
            | quotas::Refused::Limit(_)
            | quotas::Refused::NotPositive(_)
            | quotas::Refused::Large(_)
            | quotas::Refused::Fraction(_) => ErrorCode::InvalidRequest,
            quotas::Refused::Full => ErrorCode::PolicyViolation,
        }
    }
}

impl WireCode for quotas::FilterRefused {
    fn code(&self) -> ErrorCode {
        match self {
            quotas::FilterRefused::Empty
            | quotas::FilterRefused::Twice(_)
            | quotas::FilterRefused::Combination => ErrorCode::InvalidRequest,
            quotas::FilterRefused::Kind(_) => ErrorCode::UnsupportedVersion,
        }
    }
}

impl WireCode for UpdateRefused {
    fn code(&self) -> ErrorCode {
        match self {
            UpdateRefused::Twice(_) => ErrorCode::InvalidRequest,
            UpdateRefused::Negative { .. }
            | UpdateRefused::Unsupported { .. }
            | UpdateRefused::Downgrade { .. }
            | UpdateRefused::Upgrade { .. } => ErrorCode::InvalidUpdateVersion,
        }
    }
}

impl WireCode for reassign::Refused {
    fn code(&self) -> ErrorCode {
        match self {
            reassign::Refused::Unknown => ErrorCode::UnknownTopicOrPartition,
            reassign::Refused::Target(_) => ErrorCode::InvalidReplicaAssignment,
            reassign::Refused::Factor { .. } => ErrorCode::InvalidReplicationFactor,
            reassign::Refused::NotInProgress => ErrorCode::NoReassignmentInProgress,
        }
    }
}

impl WireCode for ElectError {
    fn code(&self) -> ErrorCode {
        match self {
            ElectError::NotElected(NotElected::Unknown) => ErrorCode::UnknownTopicOrPartition,
            ElectError::NotElected(NotElected::NotNeeded) => ErrorCode::ElectionNotNeeded,
            ElectError::NotElected(NotElected::PreferredNotAvailable) => {
                ErrorCode::PreferredLeaderNotAvailable
            }
            ElectError::NotElected(NotElected::EligibleNotAvailable) => {
                ErrorCode::EligibleLeadersNotAvailable
            }
            ElectError::TimedOut => ErrorCode::RequestTimedOut,
            ElectError::Control(error) => error.code(),
        }
    }
}

impl WireCode for NotRemoved {
    fn code(&self) -> ErrorCode {
        match self {
            NotRemoved::Unregistered(_) => ErrorCode::BrokerIdNotRegistered,
            // Kafka has none that fits better; tools show its text, "This broker ID is already in use."
            NotRemoved::Running(_) => ErrorCode::DuplicateBrokerRegistration,
        }
    }
}

impl WireCode for DeleteRecordsError {
    fn code(&self) -> ErrorCode {
        match self {
            DeleteRecordsError::NotLeader => ErrorCode::NotLeaderOrFollower,
            DeleteRecordsError::OutOfRange { .. } => ErrorCode::OffsetOutOfRange,
            DeleteRecordsError::Compacted => ErrorCode::PolicyViolation,
            DeleteRecordsError::Storage(_) => ErrorCode::KafkaStorageError,
        }
    }
}

impl WireCode for ProducersError {
    fn code(&self) -> ErrorCode {
        match self {
            ProducersError::NotLeader => ErrorCode::NotLeaderOrFollower,
        }
    }
}

impl WireCode for Unavailable {
    fn code(&self) -> ErrorCode {
        match self {
            Unavailable::NotCoordinator => ErrorCode::NotCoordinator,
            Unavailable::Loading => ErrorCode::CoordinatorLoadInProgress,
            Unavailable::NotAvailable => ErrorCode::CoordinatorNotAvailable,
        }
    }
}

impl WireCode for GroupError {
    fn code(&self) -> ErrorCode {
        match self {
            GroupError::InvalidGroupId => ErrorCode::InvalidGroupId,
            GroupError::InvalidRequest => ErrorCode::InvalidRequest,
            GroupError::GroupNotFound => ErrorCode::GroupIdNotFound,
            GroupError::UnknownMember => ErrorCode::UnknownMemberId,
            GroupError::MemberIdRequired => ErrorCode::MemberIdRequired,
            GroupError::IllegalGeneration => ErrorCode::IllegalGeneration,
            GroupError::RebalanceInProgress => ErrorCode::RebalanceInProgress,
            GroupError::FencedInstance => ErrorCode::FencedInstanceId,
            GroupError::InconsistentProtocol => ErrorCode::InconsistentGroupProtocol,
            GroupError::InvalidSessionTimeout => ErrorCode::InvalidSessionTimeout,
            GroupError::GroupFull => ErrorCode::GroupMaxSizeReached,
            GroupError::NonEmptyGroup => ErrorCode::NonEmptyGroup,
            GroupError::SubscribedToTopic => ErrorCode::GroupSubscribedToTopic,
            GroupError::MetadataTooLarge => ErrorCode::OffsetMetadataTooLarge,
            GroupError::UnstableOffset => ErrorCode::UnstableOffsetCommit,
            // As Kafka answers a group whose record does not fit.
            GroupError::GroupTooLarge => ErrorCode::UnknownServerError,
            GroupError::TooManyGroups => ErrorCode::CoordinatorNotAvailable,
        }
    }
}
