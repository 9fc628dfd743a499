//! SyncGroup: the leader of a group brings the assignment, every member takes its part of it home.
//!
//! - 3 and later: static members. 5: the client says which protocol it believes in, and is told.
//! - The answer of everybody but the leader waits for the leader's request. The assignment is stored in
//!   `__consumer_offsets` before anybody is told.
//!
//! Differences from Apache Kafka: none known.

use std::sync::Arc;

use felix_coordinator::request::SyncGroup;
use felix_coordinator::{Reply as GroupReply, Request};
use felix_protocol::error_code::ErrorCode;
use felix_protocol::messages::{ApiKey, StrBytes, SyncGroupRequest, SyncGroupResponse};

use super::{Answer, Api, Call, Class, Handled};
use crate::node::Node;
use crate::wire_code::WireCode;

pub const API: Api =
    Api { key: ApiKey::SyncGroup, oldest: 0, newest: 5, listed_from: 0, class: Class::Groups, start: handle };

fn handle(node: &Arc<Node>, call: Call) -> Handled {
    let request: SyncGroupRequest = call.decode()?;
    let version = call.version();
    let sync = wanted(request);
    match node.coordinators.ask(&sync.group.clone(), Request::Sync(sync)) {
        Err(error) => call.answer(&refused(error.code())),
        Ok(asked) => Answer::later(async move {
            let response = match asked.await {
                Ok(GroupReply::Sync(Ok(synced))) => {
                    let text = |text: Arc<str>| StrBytes::from_string(text.to_string());
                    SyncGroupResponse::default()
                        .with_protocol_type(synced.protocol_type.filter(|_| version >= 5).map(text))
                        .with_protocol_name(synced.protocol.filter(|_| version >= 5).map(text))
                        .with_assignment(synced.assignment)
                }
                Ok(GroupReply::Sync(Err(error))) => refused(error.code()),
                Ok(_) => refused(ErrorCode::UnknownServerError),
                Err(error) => refused(error.code()),
            };
            call.reply(&response)
        }),
    }
}

fn wanted(request: SyncGroupRequest) -> SyncGroup {
    let assignments = request.assignments.into_iter();
    let assignments = assignments.map(|one| (Arc::from(&*one.member_id), one.assignment)).collect();
    SyncGroup {
        group: Arc::from(&**request.group_id),
        member: Arc::from(&*request.member_id),
        instance: request.group_instance_id.as_deref().map(Arc::from),
        generation: request.generation_id,
        protocol_type: request.protocol_type.as_deref().map(Arc::from),
        protocol: request.protocol_name.as_deref().map(Arc::from),
        assignments,
    }
}

fn refused(code: ErrorCode) -> SyncGroupResponse {
    SyncGroupResponse::default().with_error_code(code as i16)
}
