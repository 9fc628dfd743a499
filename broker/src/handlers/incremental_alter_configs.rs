//! IncrementalAlterConfigs: changes single settings and leaves the others as they are.
//!
//! - Operations: set (0), delete (1), append to a list (2), take out of a list (3). The last two are refused for what
//!   is no list, and start from what is in force where the resource has no value of its own.
//! - All changes of a resource are made or none; resources do not touch each other. Two clients that change one
//!   resource at the same time both succeed.
//! - Changes hold at once, without a restart.
//!
//! Every broker carries this out for topics, groups and the cluster; settings of one broker are changed by that
//! broker. Differences from Apache Kafka: there are no loggers to change (BROKER_LOGGER is refused), and a broker's
//! settings must be known by name: Kafka takes any, for its plugins.

use std::sync::Arc;

use felix_cluster::config::{Edit, Op};
use felix_protocol::error_code::ErrorCode;
use felix_protocol::messages::incremental_alter_configs_request::AlterableConfig;
use felix_protocol::messages::incremental_alter_configs_response::AlterConfigsResourceResponse;
use felix_protocol::messages::{ApiKey, IncrementalAlterConfigsRequest, IncrementalAlterConfigsResponse};

use super::alter_configs::carry_out;
use super::{Api, Call, Class, Handled};
use crate::admin::Refused;
use crate::admin::configs::{Alteration, Change};
use crate::node::Node;

pub const API: Api = Api {
    key: ApiKey::IncrementalAlterConfigs,
    oldest: 0,
    newest: 1,
    listed_from: 0,
    class: Class::Admin,
    start: handle,
};

fn handle(node: &Arc<Node>, call: Call) -> Handled {
    let request: IncrementalAlterConfigsRequest = call.decode()?;
    let alterations = request.resources.into_iter().map(|resource| Alteration {
        resource_type: resource.resource_type,
        resource_name: resource.resource_name,
        change: resource.configs.into_iter().map(edit).collect::<Result<_, _>>().map(Change::Steps),
    });
    carry_out(node, call, alterations.collect(), request.validate_only, |altered| {
        let responses = altered.into_iter().map(|one| {
            AlterConfigsResourceResponse::default()
                .with_resource_type(one.resource_type)
                .with_resource_name(one.resource_name)
                .with_error_code(one.code)
                .with_error_message(one.message)
        });
        IncrementalAlterConfigsResponse::default().with_responses(responses.collect())
    })
}

fn edit(config: AlterableConfig) -> Result<Edit, Refused> {
    let op = match config.config_operation {
        0 => Op::Set,
        1 => Op::Delete,
        2 => Op::Append,
        3 => Op::Subtract,
        other => {
            let why = format!("Unknown operations type {other}");
            return Err(Refused::new(ErrorCode::InvalidRequest, why));
        }
    };
    Ok(Edit { name: config.name.to_string(), op, value: config.value.map(|value| value.to_string()) })
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn operations_are_kafkas_numbers() {
        let op = |number| edit(AlterableConfig::default().with_config_operation(number)).map(|edit| edit.op);
        assert_eq!(op(0).unwrap(), Op::Set);
        assert_eq!(op(1).unwrap(), Op::Delete);
        assert_eq!(op(2).unwrap(), Op::Append);
        assert_eq!(op(3).unwrap(), Op::Subtract);
        assert_eq!(op(4).unwrap_err().code, ErrorCode::InvalidRequest);
        assert_eq!(op(-1).unwrap_err().code, ErrorCode::InvalidRequest);
    }
}
