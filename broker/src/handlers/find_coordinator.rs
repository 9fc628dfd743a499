//! FindCoordinator: which broker keeps a group.
//!
//! - 0: groups only. 1 and later: a kind of key. 4 and later: several keys, each with its own answer; below, one.
//! - The first look for a group makes `__consumer_offsets`; the answer waits until its partitions are open.
//! - Not ready yet is COORDINATOR_NOT_AVAILABLE, which clients try again; so is a coordinator that would be this broker, whose lease has
//!   run out (B063).
//! - Keys of transactions are answered with this broker, so that the client goes on to InitProducerId and reads there
//!   why transactions are refused; any error here would be tried again for ever. Share groups (6) are not served:
//!   INVALID_REQUEST, as where they are switched off.
//!
//! Differences from Apache Kafka: Kafka answers the very first look with COORDINATOR_NOT_AVAILABLE.

use std::sync::Arc;

use felix_cluster::view::View;
use felix_protocol::error_code::ErrorCode;
use felix_protocol::messages::find_coordinator_response::Coordinator;
use felix_protocol::messages::{ApiKey, BrokerId, FindCoordinatorRequest, FindCoordinatorResponse, StrBytes};

use super::{Answer, Api, Call, Class, Handled};
use crate::node::{Node, Place};
use crate::wire_code::WireCode;

pub const API: Api = Api {
    key: ApiKey::FindCoordinator,
    oldest: 0,
    newest: 6,
    listed_from: 0,
    class: Class::Groups,
    start: handle,
};

const GROUP: i8 = 0;
const TRANSACTION: i8 = 1;

fn handle(node: &Arc<Node>, call: Call) -> Handled {
    let request: FindCoordinatorRequest = call.decode()?;
    let version = call.version();
    let keys = if version >= 4 { request.coordinator_keys } else { vec![request.key] };
    let node = Arc::clone(node);
    Answer::later(async move {
        let mut found = Vec::with_capacity(keys.len());
        for key in keys {
            let place = find(&node, request.key_type, &key, &call.client.listener).await;
            found.push((key, place));
        }
        call.reply(&if version >= 4 { many(found) } else { one(found, version) })
    })
}

type Found = Result<(felix_protocol::ids::BrokerId, Place), ErrorCode>;

async fn find(node: &Node, kind: i8, key: &str, listener: &str) -> Found {
    let broker = match kind {
        GROUP => node.coordinators.find(key).await.map_err(|error| error.code())?,
        TRANSACTION => node.id,
        _ => return Err(ErrorCode::InvalidRequest),
    };
    let view: Arc<View> = node.view();
    // It would answer NOT_COORDINATOR, or nothing, and whoever asks here again would come back to it.
    if kind == GROUP && node.not_leading(&view).contains(&broker) {
        return Err(ErrorCode::CoordinatorNotAvailable);
    }
    let place = Node::endpoint(&view, broker, listener).ok_or(ErrorCode::CoordinatorNotAvailable)?;
    Ok((broker, place))
}

fn many(found: Vec<(StrBytes, Found)>) -> FindCoordinatorResponse {
    let coordinators = found.into_iter().map(|(key, found)| {
        // Kafka says nothing here, in a string without letters.
        let answer = Coordinator::default().with_key(key).with_error_message(Some(StrBytes::default()));
        match found {
            Ok((broker, place)) => answer
                .with_node_id(BrokerId(broker.0))
                .with_host(StrBytes::from_string(place.host))
                .with_port(i32::from(place.port)),
            Err(code) => answer.with_node_id(BrokerId(-1)).with_port(-1).with_error_code(code as i16),
        }
    });
    FindCoordinatorResponse::default().with_coordinators(coordinators.collect())
}

fn one(found: Vec<(StrBytes, Found)>, version: i16) -> FindCoordinatorResponse {
    let message = |code: ErrorCode| Some(StrBytes::from_static_str(code.name())).filter(|_| version >= 1);
    let answer = FindCoordinatorResponse::default();
    match found.into_iter().next().map(|(_, found)| found) {
        Some(Ok((broker, place))) => answer
            .with_node_id(BrokerId(broker.0))
            .with_host(StrBytes::from_string(place.host))
            .with_port(i32::from(place.port))
            .with_error_message(message(ErrorCode::None)),
        Some(Err(code)) => answer
            .with_node_id(BrokerId(-1))
            .with_port(-1)
            .with_error_code(code as i16)
            .with_error_message(message(code)),
        None => answer.with_node_id(BrokerId(-1)).with_port(-1),
    }
}
