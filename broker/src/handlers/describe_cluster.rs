//! DescribeCluster: the cluster's id and its brokers.
//!
//! - 1: only brokers can be asked for; there are no controllers to be reached.
//! - 2: fenced brokers too, if asked for.

use std::sync::Arc;

use felix_protocol::error_code::ErrorCode;
use felix_protocol::messages::describe_cluster_response::DescribeClusterBroker;
use felix_protocol::messages::{ApiKey, BrokerId, DescribeClusterRequest, DescribeClusterResponse};

use super::{Api, Call, Class, Handled, text};
use crate::admin::CLUSTER_OPERATIONS;
use crate::node::Node;

pub const API: Api = Api {
    key: ApiKey::DescribeCluster,
    oldest: 0,
    newest: 2,
    listed_from: 0,
    class: Class::Discovery,
    start: handle,
};

/// Kafka's numbers of what can be asked for.
const BROKERS: i8 = 1;
const CONTROLLERS: i8 = 2;

fn handle(node: &Arc<Node>, call: Call) -> Handled {
    let request: DescribeClusterRequest = call.decode()?;
    if let Err((code, message)) = check(request.endpoint_type) {
        let refused = DescribeClusterResponse::default()
            .with_error_code(code as i16)
            .with_error_message(Some(text(message)));
        return call.answer(&refused);
    }
    let view = node.view();
    let fenced = call.version() >= 2 && request.include_fenced_brokers;
    let brokers = view.nodes().filter(|(_, found)| fenced || !found.is_fenced()).filter_map(|(id, found)| {
        let listener = found.listener(&call.client.listener)?;
        let broker = DescribeClusterBroker::default()
            .with_broker_id(BrokerId(id.0))
            .with_host(text(listener.host.clone()))
            .with_port(i32::from(listener.port))
            .with_rack(found.node.rack.clone().map(text));
        Some(if call.version() >= 2 { broker.with_is_fenced(found.is_fenced()) } else { broker })
    });
    let mut response = DescribeClusterResponse::default()
        .with_cluster_id(text(view.cluster_id().to_owned()))
        .with_controller_id(BrokerId(view.controller().map_or(-1, |id| id.0)))
        .with_brokers(brokers.collect());
    if request.include_cluster_authorized_operations {
        response = response.with_cluster_authorized_operations(CLUSTER_OPERATIONS);
    }
    call.answer(&response)
}

fn check(endpoint_type: i8) -> Result<(), (ErrorCode, String)> {
    match endpoint_type {
        BROKERS => Ok(()),
        CONTROLLERS => Err((
            ErrorCode::MismatchedEndpointType,
            "The request was sent to an endpoint of type BROKER, but we wanted an endpoint of type CONTROLLER"
                .to_owned(),
        )),
        other => Err((ErrorCode::UnsupportedEndpointType, format!("Unsupported endpoint type {other}"))),
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn only_brokers_can_be_asked_for() {
        assert!(check(1).is_ok());
        assert_eq!(check(2).unwrap_err().0, ErrorCode::MismatchedEndpointType);
        assert_eq!(check(3).unwrap_err().0, ErrorCode::UnsupportedEndpointType);
    }
}
