//! DescribeGroups: groups in detail, from the broker that coordinates them.
//!
//! - Up to 5 a group that does not exist is "Dead" without an error; 6 and later say GROUP_ID_NOT_FOUND.
//! - 3 and later: permitted operations on request; nobody is refused anything yet, so it is all of them. 4: instance
//!   ids.
//! - Metadata, assignments and the protocol are told of stable groups only.
//!
//! Differences from Apache Kafka: a group whose first generation never came about is not remembered; one that is named
//! twice is described once.

use std::sync::Arc;

use felix_coordinator::reply::Described;
use felix_coordinator::{Reply as GroupReply, Request, State};
use felix_protocol::error_code::ErrorCode;
use felix_protocol::messages::describe_groups_response::{DescribedGroup, DescribedGroupMember};
use felix_protocol::messages::{ApiKey, DescribeGroupsRequest, DescribeGroupsResponse, GroupId, StrBytes};
use indexmap::IndexSet;

use super::{Answer, Api, Call, Class, Handled};
use crate::node::Node;
use crate::wire_code::WireCode;

pub const API: Api = Api {
    key: ApiKey::DescribeGroups,
    oldest: 0,
    newest: 6,
    listed_from: 0,
    class: Class::Groups,
    start: handle,
};

/// READ, DELETE, DESCRIBE, DESCRIBE_CONFIGS and ALTER_CONFIGS: what there is to permit on a group.
const GROUP_OPERATIONS: i32 = 1 << 3 | 1 << 6 | 1 << 8 | 1 << 10 | 1 << 11;

fn handle(node: &Arc<Node>, call: Call) -> Handled {
    let request: DescribeGroupsRequest = call.decode()?;
    let version = call.version();
    let operations = request.include_authorized_operations && version >= 3;
    let ask = |id: GroupId| {
        let group: Arc<str> = Arc::from(&**id);
        let asked = node.coordinators.ask(&group, Request::Describe(Arc::clone(&group)));
        (id, asked)
    };
    // Once each is enough: a small request must not ask for a huge answer.
    let groups: IndexSet<GroupId> = request.groups.into_iter().collect();
    let asked: Vec<_> = groups.into_iter().map(ask).collect();
    Answer::later(async move {
        let mut groups = Vec::with_capacity(asked.len());
        for (id, asked) in asked {
            let answer = match asked {
                Ok(asked) => asked.await,
                Err(error) => Err(error),
            };
            let group = DescribedGroup::default().with_group_id(id);
            groups.push(match answer {
                Ok(GroupReply::Describe(Some(described))) => {
                    let group = told(group, described, version);
                    if operations { group.with_authorized_operations(GROUP_OPERATIONS) } else { group }
                }
                Ok(GroupReply::Describe(None)) => unknown(group, version),
                Ok(_) => group.with_error_code(ErrorCode::UnknownServerError as i16),
                Err(error) => group.with_error_code(error.code() as i16),
            });
        }
        call.reply(&DescribeGroupsResponse::default().with_groups(groups))
    })
}

fn told(group: DescribedGroup, described: Described, version: i16) -> DescribedGroup {
    let text = |text: Arc<str>| StrBytes::from_string(text.to_string());
    let members = described.members.into_iter().map(|member| {
        DescribedGroupMember::default()
            .with_member_id(text(member.member))
            .with_group_instance_id(member.instance.filter(|_| version >= 4).map(text))
            .with_client_id(text(member.client_id))
            .with_client_host(text(member.client_host))
            .with_member_metadata(member.metadata)
            .with_member_assignment(member.assignment)
    });
    group
        .with_group_state(StrBytes::from_static_str(described.state.name()))
        .with_protocol_type(described.protocol_type.map(text).unwrap_or_default())
        .with_protocol_data(described.protocol.map(text).unwrap_or_default())
        .with_members(members.collect())
}

fn unknown(group: DescribedGroup, version: i16) -> DescribedGroup {
    let message = format!("Group {} not found.", group.group_id.0);
    let group = group.with_group_state(StrBytes::from_static_str(State::Dead.name()));
    if version < 6 {
        return group;
    }
    group
        .with_error_code(ErrorCode::GroupIdNotFound as i16)
        .with_error_message(Some(StrBytes::from_string(message)))
}
