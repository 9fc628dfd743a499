//! Who speaks, in which versions.

use thiserror::Error;

use super::wire::{In, Out, PeerError};
use crate::ids::{BrokerId, SessionId};

/// The version that this program speaks.
pub const VERSION: u16 = 1;
/// The oldest version of a peer that it gets along with.
pub const OLDEST: u16 = 1;
/// More is no cluster id.
const LONGEST_CLUSTER: usize = 64;

/// The first message each way.
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct Hello {
    /// The version that the speaker would like.
    pub version: u16,
    /// The oldest that it gets along with.
    pub oldest: u16,
    /// Its cluster.
    pub cluster: String,
    /// Its node id. With TLS it must be the name in its certificate.
    pub node: BrokerId,
    /// Its life: a restarted process has another.
    pub session: SessionId,
}

/// Why two brokers do not go on talking.
#[derive(Clone, Debug, PartialEq, Eq, Error)]
pub enum Disagree {
    /// No version in common.
    #[error("the peer speaks versions {oldest} to {version}, this broker {OLDEST} to {VERSION}")]
    Version {
        /// The peer's oldest.
        oldest: u16,
        /// The peer's newest.
        version: u16,
    },
    /// Another cluster's broker.
    #[error("the peer belongs to cluster {theirs}, this broker to {ours}")]
    Cluster {
        /// The peer's.
        theirs: String,
        /// This broker's.
        ours: String,
    },
    /// Not who was called, or who the certificate names.
    #[error("the peer says that it is broker {says}, but broker {expected} was expected")]
    Node {
        /// Who it says it is.
        says: BrokerId,
        /// Who it should be.
        expected: BrokerId,
    },
}

impl Hello {
    /// The version to speak with whoever said `self`, for a broker of `cluster` that expects `node` (`None`: anybody).
    pub fn agree(&self, cluster: &str, node: Option<BrokerId>) -> Result<u16, Disagree> {
        let version = self.version.min(VERSION);
        if version < self.oldest.max(OLDEST) {
            return Err(Disagree::Version { oldest: self.oldest, version: self.version });
        }
        if self.cluster != cluster {
            return Err(Disagree::Cluster { theirs: self.cluster.clone(), ours: cluster.to_owned() });
        }
        match node {
            Some(expected) if expected != self.node => Err(Disagree::Node { says: self.node, expected }),
            Some(_) | None => Ok(version),
        }
    }

    pub(super) fn put(&self, out: &mut Out) -> Result<(), PeerError> {
        if self.cluster.len() > LONGEST_CLUSTER {
            return Err(PeerError::TooLarge("cluster id"));
        }
        out.structure("hello", |out| {
            out.u16(self.version);
            out.u16(self.oldest);
            out.text("cluster id", &self.cluster);
            out.broker(self.node);
            out.u64(self.session.0);
        });
        Ok(())
    }

    pub(super) fn take(input: &mut In) -> Result<Hello, PeerError> {
        let mut fields = input.structure("hello")?;
        Ok(Hello {
            version: fields.u16("version")?,
            oldest: fields.u16("oldest version")?,
            cluster: fields.text("cluster id", LONGEST_CLUSTER)?,
            node: fields.broker("node id")?,
            session: SessionId(fields.u64("session")?),
        })
    }
}
