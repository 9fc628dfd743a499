//! AlterConfigs: the older way to change settings. What is not named is dropped.
//!
//! - All settings of a resource are replaced at once or none; resources do not touch each other.
//! - A resource that is named twice is refused.
//! - Changes hold at once, without a restart.
//!
//! Every broker carries this out for topics, groups and the cluster; settings of one broker are changed by that
//! broker. Differences from Apache Kafka: a broker's settings must be known by name; Kafka takes any, for its plugins.

use std::sync::Arc;

use felix_protocol::error_code::ErrorCode;
use felix_protocol::frame::ResponseBody;
use felix_protocol::messages::alter_configs_response::AlterConfigsResourceResponse;
use felix_protocol::messages::{AlterConfigsRequest, AlterConfigsResponse, ApiKey, StrBytes};

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
    carry_out(node, call, alterations.collect(), request.validate_only, |altered| {
        let responses = altered.into_iter().map(|one| {
            AlterConfigsResourceResponse::default()
                .with_resource_type(one.resource_type)
                .with_resource_name(one.resource_name)
                .with_error_code(one.code)
                .with_error_message(one.message)
        });
        AlterConfigsResponse::default().with_responses(responses.collect())
    })
}

/// What became of one resource, as both APIs that alter configs tell it.
pub(super) struct Altered {
    pub(super) resource_type: i8,
    pub(super) resource_name: StrBytes,
    pub(super) code: i16,
    pub(super) message: Option<StrBytes>,
}

/// Makes the changes and answers what became of them; the same for both APIs but for the answer's type.
pub(super) fn carry_out<T: ResponseBody + 'static>(
    node: &Arc<Node>,
    call: Call,
    alterations: Vec<Alteration>,
    validate_only: bool,
    response: fn(Vec<Altered>) -> T,
) -> Handled {
    let node = Arc::clone(node);
    Answer::later(async move {
        let outcomes = configs::alter(&node, alterations, validate_only).await;
        let altered = outcomes.into_iter().map(|(resource_type, resource_name, outcome)| {
            let (code, message) = match outcome {
                Ok(()) => (ErrorCode::None, None),
                Err(refused) => (refused.code, refused.message.map(text)),
            };
            Altered { resource_type, resource_name, code: code as i16, message }
        });
        call.reply(&response(altered.collect()))
    })
}
