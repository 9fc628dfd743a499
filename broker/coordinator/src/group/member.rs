//! One member of a classic group.

use std::sync::Arc;

use bytes::Bytes;
use felix_protocol::time::MonoTime;

use crate::machine::Token;
use crate::request::{JoinGroup, Protocol};

use super::records::StoredMember;

/// A member. Its id is its key in the group.
#[derive(Clone, Debug)]
pub(crate) struct Member {
    pub(crate) instance: Option<Arc<str>>,
    pub(crate) client_id: Arc<str>,
    pub(crate) client_host: Arc<str>,
    pub(crate) rebalance_timeout_ms: i32,
    pub(crate) session_timeout_ms: i32,
    /// Best first.
    protocols: Vec<Protocol>,
    pub(crate) assignment: Bytes,
    /// The join that waits for the others.
    pub(crate) join: Option<Token>,
    /// The sync that waits for the leader's.
    pub(crate) sync: Option<Token>,
    /// When the member is given up: the slot of its session alarm.
    pub(crate) deadline: Option<MonoTime>,
    /// The member has not completed a join yet.
    pub(crate) new: bool,
    /// The client was never told its member id, so only the parked join connects the two.
    pub(crate) anonymous: bool,
}

impl Member {
    /// A member that has just come.
    pub(crate) fn from_request(request: &JoinGroup) -> Self {
        Member {
            instance: request.instance.clone(),
            client_id: request.client_id.clone(),
            client_host: request.client_host.clone(),
            rebalance_timeout_ms: request.rebalance_timeout_ms,
            session_timeout_ms: request.session_timeout_ms,
            protocols: owned(&request.protocols),
            assignment: Bytes::new(),
            join: None,
            sync: None,
            deadline: None,
            new: true,
            anonymous: request.member.is_empty() && request.instance.is_none(),
        }
    }

    /// A member that the log knows. Of its protocols only the one agreed on was stored.
    pub(crate) fn from_record(stored: &StoredMember, protocol: Option<&Arc<str>>) -> Self {
        let name = protocol.cloned().unwrap_or_else(|| "".into());
        Member {
            instance: stored.instance.clone(),
            client_id: stored.client_id.clone(),
            client_host: stored.client_host.clone(),
            rebalance_timeout_ms: stored.rebalance_timeout_ms,
            session_timeout_ms: stored.session_timeout_ms,
            protocols: vec![Protocol { name, metadata: stored.subscription.clone() }],
            assignment: stored.assignment.clone(),
            join: None,
            sync: None,
            deadline: None,
            new: false,
            anonymous: false,
        }
    }

    /// What the log keeps of it.
    pub(crate) fn to_record(&self, id: &Arc<str>, protocol: Option<&str>) -> StoredMember {
        StoredMember {
            member: id.clone(),
            instance: self.instance.clone(),
            client_id: self.client_id.clone(),
            client_host: self.client_host.clone(),
            rebalance_timeout_ms: self.rebalance_timeout_ms,
            session_timeout_ms: self.session_timeout_ms,
            subscription: protocol.map(|name| self.metadata(name)).unwrap_or_default(),
            assignment: self.assignment.clone(),
        }
    }

    /// The member's metadata for a protocol; empty if it does not support it.
    pub(crate) fn metadata(&self, protocol: &str) -> Bytes {
        let found = self.protocols.iter().find(|known| &*known.name == protocol);
        found.map(|known| known.metadata.clone()).unwrap_or_default()
    }

    /// Its protocols, best first.
    pub(crate) fn protocols(&self) -> &[Protocol] {
        &self.protocols
    }

    /// Whether it would join with exactly these protocols.
    pub(crate) fn matches(&self, protocols: &[Protocol]) -> bool {
        self.protocols == protocols
    }

    /// New protocols and timeouts. The group counts protocols, so only the group calls this.
    pub(super) fn update(&mut self, request: &JoinGroup) {
        self.protocols = owned(&request.protocols);
        self.rebalance_timeout_ms = request.rebalance_timeout_ms;
        self.session_timeout_ms = request.session_timeout_ms;
        self.client_id = request.client_id.clone();
        self.client_host = request.client_host.clone();
    }

    /// Whether its silence is excused: it waits for us. A new member is not excused, for its client may be
    /// gone and nobody would notice.
    pub(crate) fn is_excused(&self) -> bool {
        !self.new && (self.join.is_some() || self.sync.is_some())
    }

    /// What of it counts against the group's limit.
    pub(crate) fn bytes(&self) -> usize {
        weight(&self.protocols) + self.assignment.len()
    }
}

/// What a protocol takes besides its text, roughly.
const PROTOCOL_BYTES: usize = 64;

/// What protocols weigh against the group's limit.
pub(crate) fn weight(protocols: &[Protocol]) -> usize {
    protocols.iter().map(|protocol| PROTOCOL_BYTES + protocol.name.len() + protocol.metadata.len()).sum()
}

/// Copies, so that a member does not keep the whole request frame in memory.
fn owned(protocols: &[Protocol]) -> Vec<Protocol> {
    protocols
        .iter()
        .map(|protocol| Protocol {
            name: protocol.name.clone(),
            metadata: Bytes::copy_from_slice(&protocol.metadata),
        })
        .collect()
}
