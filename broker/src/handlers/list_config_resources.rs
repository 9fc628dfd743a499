//! ListConfigResources: the names of what settings can be asked of.
//!
//! - 0 lists subscriptions to client metrics only. 1 takes the types that are wanted; none means all.
//! - Groups and subscriptions are listed where something was set on them; topics and brokers always.
//!
//! Differences from Apache Kafka: there are no loggers to describe, so none are listed.

use std::sync::Arc;

use felix_cluster::view::View;
use felix_protocol::error_code::ErrorCode;
use felix_protocol::messages::list_config_resources_response::ConfigResource;
use felix_protocol::messages::{ApiKey, ListConfigResourcesRequest, ListConfigResourcesResponse};

use super::{Api, Call, Class, Handled, text};
use crate::admin::configs::{BROKER, BROKER_LOGGER, CLIENT_METRICS, GROUP, TOPIC};
use crate::node::Node;

pub const API: Api = Api {
    key: ApiKey::ListConfigResources,
    oldest: 0,
    newest: 1,
    listed_from: 0,
    class: Class::Admin,
    start: handle,
};

/// All types, in the order of the answer.
const TYPES: [i8; 5] = [GROUP, CLIENT_METRICS, BROKER_LOGGER, BROKER, TOPIC];

fn handle(node: &Arc<Node>, call: Call) -> Handled {
    let request: ListConfigResourcesRequest = call.decode()?;
    let wanted: &[i8] = match call.version() {
        0 => &[CLIENT_METRICS],
        _ if request.resource_types.is_empty() => &TYPES,
        _ => &request.resource_types,
    };
    if wanted.iter().any(|one| !TYPES.contains(one)) {
        let code = ErrorCode::UnsupportedVersion as i16;
        return call.answer(&ListConfigResourcesResponse::default().with_error_code(code));
    }
    let view = node.view();
    let listed = TYPES.into_iter().filter(|one| wanted.contains(one)).flat_map(|one| {
        names(&view, one)
            .into_iter()
            .map(move |name| ConfigResource::default().with_resource_type(one).with_resource_name(text(name)))
    });
    call.answer(&ListConfigResourcesResponse::default().with_config_resources(listed.collect()))
}

fn names(view: &View, resource_type: i8) -> Vec<String> {
    match resource_type {
        TOPIC => view.topics().map(|topic| topic.name.to_string()).collect(),
        BROKER => view.brokers().map(|(id, _)| id.to_string()).collect(),
        GROUP => view.groups_with_overrides().map(|(name, _)| name.to_owned()).collect(),
        CLIENT_METRICS => view.client_metrics().map(|(name, _)| name.to_owned()).collect(),
        _ => Vec::new(),
    }
}

#[cfg(test)]
mod tests {
    use felix_cluster::view::ConfigScope;

    use super::*;
    use crate::admin::testing;

    #[test]
    fn topics_and_brokers_are_always_listed() {
        let view = testing::view(&["b", "a"]);
        assert_eq!(names(&view, TOPIC), ["a", "b"]);
        assert_eq!(names(&view, BROKER), ["1"]);
        assert!(names(&view, GROUP).is_empty());
        assert!(names(&view, CLIENT_METRICS).is_empty());
        assert!(names(&view, BROKER_LOGGER).is_empty());
    }

    #[test]
    fn what_was_set_makes_a_group_known() {
        let mut view = testing::view(&[]);
        testing::set(&mut view, &ConfigScope::Group("g".to_owned()), "a", "1");
        testing::set(&mut view, &ConfigScope::ClientMetrics("m".to_owned()), "a", "1");
        assert_eq!(names(&view, GROUP), ["g"]);
        assert_eq!(names(&view, CLIENT_METRICS), ["m"]);
    }
}
