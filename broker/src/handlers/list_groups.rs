//! ListGroups: the groups that this broker coordinates. Clients ask every broker.
//!
//! - 4 and later: a filter by state, and states are told. 5: a filter by type, and types are told; there is only
//!   "classic" so far.
//! - While the groups of a partition led here are still being read, the list would not be whole:
//!   COORDINATOR_LOAD_IN_PROGRESS.
//!
//! Differences from Apache Kafka: a group whose first generation never came about is not listed.

use std::sync::Arc;

use felix_coordinator::machine::GROUP_TYPE;
use felix_coordinator::request::ListGroups;
use felix_protocol::messages::list_groups_response::ListedGroup;
use felix_protocol::messages::{ApiKey, GroupId, ListGroupsRequest, ListGroupsResponse, StrBytes};

use super::{Answer, Api, Call, Class, Handled};
use crate::node::Node;
use crate::wire_code::WireCode;

pub const API: Api = Api {
    key: ApiKey::ListGroups,
    oldest: 0,
    newest: 5,
    listed_from: 0,
    class: Class::Groups,
    start: handle,
};

fn handle(node: &Arc<Node>, call: Call) -> Handled {
    let request: ListGroupsRequest = call.decode()?;
    let version = call.version();
    let filter = ListGroups {
        states: request.states_filter.iter().map(ToString::to_string).collect(),
        types: request.types_filter.iter().map(ToString::to_string).collect(),
    };
    let coordinators = Arc::clone(&node.coordinators);
    Answer::later(async move {
        let response = match coordinators.list(&filter).await {
            Err(error) => ListGroupsResponse::default().with_error_code(error.code() as i16),
            Ok(listed) => {
                let text = |text: Arc<str>| StrBytes::from_string(text.to_string());
                let groups = listed.into_iter().map(|group| {
                    let listed = ListedGroup::default()
                        .with_group_id(GroupId(text(group.group)))
                        .with_protocol_type(group.protocol_type.map(text).unwrap_or_default());
                    let listed = if version >= 4 {
                        listed.with_group_state(StrBytes::from_static_str(group.state.name()))
                    } else {
                        listed
                    };
                    if version >= 5 {
                        listed.with_group_type(StrBytes::from_static_str(GROUP_TYPE))
                    } else {
                        listed
                    }
                });
                ListGroupsResponse::default().with_groups(groups.collect())
            }
        };
        call.reply(&response)
    })
}
