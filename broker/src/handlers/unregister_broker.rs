//! UnregisterBroker: removes a broker that has stopped, for good.
//!
//! - BROKER_ID_NOT_REGISTERED: there is none of that id.
//!
//! Differences from Apache Kafka: a broker that runs is refused (DUPLICATE_BROKER_REGISTRATION, "This broker ID is already in
//! use"); Kafka takes it out and it registers again. Its copies stay named where they are, as in Kafka.

use std::sync::Arc;

use felix_protocol::messages::{ApiKey, UnregisterBrokerRequest, UnregisterBrokerResponse};

use super::{Answer, Api, Call, Class, Handled, text};
use crate::admin::Refused;
use crate::node::Node;

pub const API: Api = Api {
    key: ApiKey::UnregisterBroker,
    oldest: 0,
    newest: 0,
    listed_from: 0,
    class: Class::Admin,
    start: handle,
};

fn handle(node: &Arc<Node>, call: Call) -> Handled {
    let request: UnregisterBrokerRequest = call.decode()?;
    let node = Arc::clone(node);
    Answer::later(async move {
        let removed = node.agent.unregister(felix_protocol::ids::BrokerId(request.broker_id.0)).await;
        let response = UnregisterBrokerResponse::default().with_error_message(None);
        call.reply(&match removed.map_err(|error| Refused::from_admin(&error)) {
            Ok(()) => response,
            Err(refused) => {
                response.with_error_code(refused.code as i16).with_error_message(refused.message.map(text))
            }
        })
    })
}
