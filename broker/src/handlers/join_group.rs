//! JoinGroup: a client becomes a member of a group, or takes part in its rebalance.
//!
//! - 0 is listed and answered although it is old: librdkafka before 2.11 takes its absence for a broker without
//!   groups (KAFKA-19444). It has no rebalance timeout: the session timeout stands for it.
//! - 4 and later: a dynamic member without an id is told one and asked to come back with it (MEMBER_ID_REQUIRED).
//! - 5: static members (group.instance.id). 7: the answer has the protocol type. 8: a reason, which is not used.
//! - 9: a static leader that comes back is told that nothing is to be assigned.
//! - The answer waits for the other members. The connection may send further requests meanwhile; they are answered
//!   after it, as the order of requests demands.
//!
//! Differences from Apache Kafka: a static member that comes back takes its new client id, host and timeouts with
//! it, and is stored before it is answered, in every state of the group. A client that disconnects while it waits
//! and does not know its member id yet is forgotten at once.

use std::sync::Arc;

use felix_coordinator::reply::Joined;
use felix_coordinator::request::{JoinGroup, Protocol};
use felix_coordinator::{Reply as GroupReply, Request};
use felix_protocol::error_code::ErrorCode;
use felix_protocol::ids::Uuid;
use felix_protocol::messages::join_group_response::JoinGroupResponseMember;
use felix_protocol::messages::{ApiKey, JoinGroupRequest, JoinGroupResponse, StrBytes};

use super::{Answer, Api, Call, Class, Handled};
use crate::node::Node;
use crate::wire_code::WireCode;

pub const API: Api =
    Api { key: ApiKey::JoinGroup, oldest: 0, newest: 9, listed_from: 0, class: Class::Groups, start: handle };

fn handle(node: &Arc<Node>, call: Call) -> Handled {
    let request: JoinGroupRequest = call.decode()?;
    let version = call.version();
    let member = request.member_id.clone();
    let join = wanted(&request, &call);
    match node.coordinators.ask(&join.group.clone(), Request::Join(join)) {
        Err(error) => call.answer(&refused(error.code(), member, version)),
        Ok(asked) => Answer::later(async move {
            let response = match asked.await {
                Ok(GroupReply::Join(Ok(joined))) => accepted(joined, version),
                Ok(GroupReply::Join(Err(refusal))) => {
                    refused(refusal.error.code(), StrBytes::from_string(refusal.member.to_string()), version)
                }
                Ok(_) => refused(ErrorCode::UnknownServerError, member, version),
                Err(error) => refused(error.code(), member, version),
            };
            call.reply(&response)
        }),
    }
}

fn wanted(request: &JoinGroupRequest, call: &Call) -> JoinGroup {
    let version = call.version();
    let protocols = request
        .protocols
        .iter()
        .map(|protocol| Protocol { name: Arc::from(&*protocol.name), metadata: protocol.metadata.clone() });
    JoinGroup {
        group: Arc::from(&**request.group_id),
        member: Arc::from(&*request.member_id),
        instance: request.group_instance_id.as_deref().map(Arc::from),
        client_id: Arc::from(call.client_id()),
        // As Kafka's tools print an address: a host name that nobody looked up, a slash, the address.
        client_host: format!("/{}", call.client.peer.ip()).into(),
        session_timeout_ms: request.session_timeout_ms,
        rebalance_timeout_ms: if version >= 1 {
            request.rebalance_timeout_ms
        } else {
            request.session_timeout_ms
        },
        protocol_type: Arc::from(&*request.protocol_type),
        protocols: protocols.collect(),
        member_id_required: version >= 4,
        skips_assignment: version >= 9,
        fresh: Uuid::new_v4(),
    }
}

fn accepted(joined: Joined, version: i16) -> JoinGroupResponse {
    let text = |text: Arc<str>| StrBytes::from_string(text.to_string());
    let members = joined.members.into_iter().map(|member| {
        let instance = member.instance.filter(|_| version >= 5).map(text);
        JoinGroupResponseMember::default()
            .with_member_id(text(member.member))
            .with_group_instance_id(instance)
            .with_metadata(member.metadata)
    });
    JoinGroupResponse::default()
        .with_generation_id(joined.generation)
        .with_protocol_type(joined.protocol_type.filter(|_| version >= 7).map(text))
        .with_protocol_name(nullable(joined.protocol.map(text), version))
        .with_leader(text(joined.leader))
        .with_skip_assignment(joined.skip_assignment && version >= 9)
        .with_member_id(text(joined.member))
        .with_members(members.collect())
}

fn refused(code: ErrorCode, member: StrBytes, version: i16) -> JoinGroupResponse {
    JoinGroupResponse::default()
        .with_error_code(code as i16)
        .with_generation_id(-1)
        .with_protocol_type(None)
        .with_protocol_name(nullable(None, version))
        .with_member_id(member)
}

/// The protocol may be null from version 7 on; before, none is a string without letters.
fn nullable(protocol: Option<StrBytes>, version: i16) -> Option<StrBytes> {
    if version < 7 { Some(protocol.unwrap_or_default()) } else { protocol }
}

#[cfg(test)]
mod tests {
    use super::*;
    use bytes::BytesMut;
    use felix_protocol::messages::Encodable;

    #[test]
    fn a_refusal_reads_as_kafkas_in_every_version() {
        // Recorded from Kafka: code 79, generation -1, (type,) protocol, leader, (skip,) member "m", no members.
        let expected: [(i16, &[u8]); 5] = [
            (1, b"\0\x4f\xff\xff\xff\xff\0\0\0\0\0\x01m\0\0\0\0"),
            (5, b"\0\0\0\0\0\x4f\xff\xff\xff\xff\0\0\0\0\0\x01m\0\0\0\0"),
            (6, b"\0\0\0\0\0\x4f\xff\xff\xff\xff\x01\x01\x02m\x01\0"),
            (7, b"\0\0\0\0\0\x4f\xff\xff\xff\xff\0\0\x01\x02m\x01\0"),
            (9, b"\0\0\0\0\0\x4f\xff\xff\xff\xff\0\0\x01\0\x02m\x01\0"),
        ];
        for (version, bytes) in expected {
            let mut out = BytesMut::new();
            refused(ErrorCode::MemberIdRequired, StrBytes::from_static_str("m"), version)
                .encode(&mut out, version)
                .unwrap();
            assert_eq!(out, bytes, "version {version}");
        }
    }
}
