//! DeleteGroups: groups without members go, with their offsets. The answer waits until the tombstones are stored, so
//! nothing comes back after a restart.
//!
//! Differences from Apache Kafka: none known.

use std::sync::Arc;

use felix_coordinator::{Reply as GroupReply, Request};
use felix_protocol::error_code::ErrorCode;
use felix_protocol::messages::delete_groups_response::DeletableGroupResult;
use felix_protocol::messages::{ApiKey, DeleteGroupsRequest, DeleteGroupsResponse, GroupId};

use super::{Answer, Api, Call, Class, Handled};
use crate::node::Node;
use crate::wire_code::WireCode;

pub const API: Api = Api {
    key: ApiKey::DeleteGroups,
    oldest: 0,
    newest: 2,
    listed_from: 0,
    class: Class::Groups,
    start: handle,
};

fn handle(node: &Arc<Node>, call: Call) -> Handled {
    let request: DeleteGroupsRequest = call.decode()?;
    let ask = |id: GroupId| {
        let group: Arc<str> = Arc::from(&**id);
        let asked = node.coordinators.ask(&group, Request::Delete(Arc::clone(&group)));
        (id, asked)
    };
    let asked: Vec<_> = request.groups_names.into_iter().map(ask).collect();
    Answer::later(async move {
        let mut results = Vec::with_capacity(asked.len());
        for (id, asked) in asked {
            let answer = match asked {
                Ok(asked) => asked.await,
                Err(error) => Err(error),
            };
            let code = match answer {
                Ok(GroupReply::Delete(Ok(()))) => ErrorCode::None,
                Ok(GroupReply::Delete(Err(error))) => error.code(),
                Ok(_) => ErrorCode::UnknownServerError,
                Err(error) => error.code(),
            };
            results.push(DeletableGroupResult::default().with_group_id(id).with_error_code(code as i16));
        }
        call.reply(&DeleteGroupsResponse::default().with_results(results))
    })
}
