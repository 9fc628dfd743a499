//! LeaveGroup: members go.
//!
//! - 0 to 2: one member, whose error is the answer's. 3 and later: several, each with its own error; an operator
//!   removes static members by their instance id alone. 5: a reason, which is not used.
//!
//! Differences from Apache Kafka: none known.

use std::sync::Arc;

use felix_coordinator::reply::Left;
use felix_coordinator::request::{LeaveGroup, Leaving};
use felix_coordinator::{GroupError, Reply as GroupReply, Request};
use felix_protocol::error_code::ErrorCode;
use felix_protocol::messages::leave_group_response::MemberResponse;
use felix_protocol::messages::{ApiKey, LeaveGroupRequest, LeaveGroupResponse, StrBytes};

use super::{Answer, Api, Call, Class, Handled};
use crate::node::Node;
use crate::wire_code::WireCode;

pub const API: Api = Api {
    key: ApiKey::LeaveGroup,
    oldest: 0,
    newest: 5,
    listed_from: 0,
    class: Class::Groups,
    start: handle,
};

fn handle(node: &Arc<Node>, call: Call) -> Handled {
    let request: LeaveGroupRequest = call.decode()?;
    let version = call.version();
    let leave = wanted(&request, version);
    match node.coordinators.ask(&leave.group.clone(), Request::Leave(leave)) {
        Err(error) => call.answer(&refused(error.code())),
        Ok(asked) => Answer::later(async move {
            let response = match asked.await {
                Ok(GroupReply::Leave(Ok(left))) => answered(left, version),
                Ok(GroupReply::Leave(Err(error))) => refused(error.code()),
                Ok(_) => refused(ErrorCode::UnknownServerError),
                Err(error) => refused(error.code()),
            };
            call.reply(&response)
        }),
    }
}

fn wanted(request: &LeaveGroupRequest, version: i16) -> LeaveGroup {
    let members = if version >= 3 {
        let leaving = request.members.iter().map(|member| Leaving {
            member: Arc::from(&*member.member_id),
            instance: member.group_instance_id.as_deref().map(Arc::from),
        });
        leaving.collect()
    } else {
        vec![Leaving { member: Arc::from(&*request.member_id), instance: None }]
    };
    LeaveGroup { group: Arc::from(&**request.group_id), members }
}

fn answered(left: Vec<Left>, version: i16) -> LeaveGroupResponse {
    let code = |result: Result<(), GroupError>| result.err().map_or(ErrorCode::None, |error| error.code());
    if version < 3 {
        // The one member that there was.
        return refused(left.first().map_or(ErrorCode::None, |left| code(left.result)));
    }
    let text = |text: Arc<str>| StrBytes::from_string(text.to_string());
    let members = left.into_iter().map(|left| {
        MemberResponse::default()
            .with_member_id(text(left.member))
            .with_group_instance_id(left.instance.map(text))
            .with_error_code(code(left.result) as i16)
    });
    LeaveGroupResponse::default().with_members(members.collect())
}

fn refused(code: ErrorCode) -> LeaveGroupResponse {
    LeaveGroupResponse::default().with_error_code(code as i16)
}
