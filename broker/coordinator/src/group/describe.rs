//! What operators see of a group.

use bytes::Bytes;

use crate::reply::{Described, DescribedMember, Listed};

use super::Group;
use super::state::State;

impl Group {
    /// In detail. Metadata and assignments are told of a stable group only: before, they are about to change.
    pub(crate) fn describe(&self) -> Described {
        let stable = self.state == State::Stable;
        let protocol = self.protocol.clone().filter(|_| stable);
        let members = self
            .members
            .iter()
            .map(|(id, member)| DescribedMember {
                member: id.clone(),
                instance: member.instance.clone(),
                client_id: member.client_id.clone(),
                client_host: member.client_host.clone(),
                metadata: protocol.as_deref().map(|name| member.metadata(name)).unwrap_or_default(),
                assignment: if stable { member.assignment.clone() } else { Bytes::new() },
            })
            .collect();
        Described { state: self.state, protocol_type: self.protocol_type.clone(), protocol, members }
    }

    /// In the list.
    pub(crate) fn listed(&self) -> Listed {
        Listed { group: self.id.clone(), protocol_type: self.protocol_type.clone(), state: self.state }
    }
}
