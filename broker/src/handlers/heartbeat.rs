//! Heartbeat: a member lives, and hears whether its group rebalances.
//!
//! - 3 and later: static members.
//! - While the groups of the partition are being read from the log, the answer is "all is well", as in Kafka: the
//!   Java client takes COORDINATOR_LOAD_IN_PROGRESS here for a fault, and members get a whole session timeout
//!   when reading is done.
//!
//! Differences from Apache Kafka: none known.

use std::sync::Arc;

use felix_coordinator::request::Heartbeat;
use felix_coordinator::{Reply as GroupReply, Request};
use felix_protocol::error_code::ErrorCode;
use felix_protocol::messages::{ApiKey, HeartbeatRequest, HeartbeatResponse};

use super::{Answer, Api, Call, Class, Handled};
use crate::coordinators::Unavailable;
use crate::node::Node;
use crate::wire_code::WireCode;

pub const API: Api =
    Api { key: ApiKey::Heartbeat, oldest: 0, newest: 4, listed_from: 0, class: Class::Groups, start: handle };

fn handle(node: &Arc<Node>, call: Call) -> Handled {
    let request: HeartbeatRequest = call.decode()?;
    let group: Arc<str> = Arc::from(&**request.group_id);
    if group.is_empty() {
        return call.answer(&told(ErrorCode::InvalidGroupId));
    }
    let beat = Heartbeat {
        group: Arc::clone(&group),
        member: Arc::from(&*request.member_id),
        instance: request.group_instance_id.as_deref().map(Arc::from),
        generation: request.generation_id,
    };
    match node.coordinators.ask(&group, Request::Heartbeat(beat)) {
        Err(error) => call.answer(&told(unavailable(error))),
        Ok(asked) => Answer::later(async move {
            let code = match asked.await {
                Ok(GroupReply::Heartbeat(Ok(()))) => ErrorCode::None,
                Ok(GroupReply::Heartbeat(Err(error))) => error.code(),
                Ok(_) => ErrorCode::UnknownServerError,
                Err(error) => unavailable(error),
            };
            call.reply(&told(code))
        }),
    }
}

fn unavailable(error: Unavailable) -> ErrorCode {
    match error {
        Unavailable::Loading => ErrorCode::None,
        Unavailable::NotCoordinator | Unavailable::NotAvailable => error.code(),
    }
}

fn told(code: ErrorCode) -> HeartbeatResponse {
    HeartbeatResponse::default().with_error_code(code as i16)
}
