//! AlterConfigs: the older way to change settings. What is not named is dropped.
//!
//! - All settings of a resource are replaced at once or none; resources do not touch each other.
//! - A resource that is named twice is refused.
//! - Changes hold at once, without a restart.
//!
//! Every broker carries this out for topics, groups and the cluster; settings of one broker are changed by that
//! broker. Differences from Apache Kafka: a broker's settings must be known by name; Kafka takes any, for its plugins.

use std::sync::Arc;

use felix_protocol::messages::alter_configs_response::AlterConfigsResourceResponse;
use felix_protocol::messages::{AlterConfigsRequest, AlterConfigsResponse, ApiKey};

use super::{Answer, Api, Call, Class, Handled, text};
use crate::admin::configs::{self, Alteration, Change};
use crate::node::Node;

pub const API: Api = Api {
    key: ApiKey::AlterConfigs,
    oldest: 0,
    newest: 2,
    listed_from: 0,
    class: Class::Admin,
    start: handle,
};

fn handle(node: &Arc<Node>, call: Call) -> Handled {
    let request: AlterConfigsRequest = call.decode()?;
    let node = Arc::clone(node);
    let alterations = request.resources.into_iter().map(|resource| Alteration {
        resource_type: resource.resource_type,
        resource_name: resource.resource_name,
        change: Ok(Change::Whole(
            resource
                .configs
                .into_iter()
                .map(|config| (config.name.to_string(), config.value.map(|value| value.to_string())))
                .collect(),
        )),
    });
    let alterations = alterations.collect();
    Answer::later(async move {
        let outcomes = configs::alter(&node, alterations, request.validate_only).await;
        let responses = outcomes.into_iter().map(|(resource_type, name, outcome)| {
            let response = AlterConfigsResourceResponse::default()
                .with_resource_type(resource_type)
                .with_resource_name(name)
                .with_error_message(None);
            match outcome {
                Ok(()) => response,
                Err(refused) => response
                    .with_error_code(refused.code as i16)
                    .with_error_message(refused.message.map(text)),
            }
        });
        call.reply(&AlterConfigsResponse::default().with_responses(responses.collect()))
    })
}
