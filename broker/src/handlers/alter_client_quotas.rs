//! AlterClientQuotas: sets and removes limits of users, client ids, both together, and addresses.
//!
//! - Each entity is changed whole or not at all, and does not touch the others. A limit without a value is removed.
//! - All limits of Apache Kafka are known and enforced: `producer_byte_rate`, `consumer_byte_rate`, `request_percentage`,
//!   `controller_mutation_rate`, and of addresses `connection_creation_rate`. Anything else is INVALID_REQUEST.
//! - With `validate_only` everything is checked and nothing changed.
//!
//! Every broker carries this out. Differences from Apache Kafka: an address must be one, not the name of a host; an entity that is
//! asked for twice is changed by its first entry; each is answered by itself, in the order of the request.

use std::sync::Arc;

use felix_cluster::quotas;
use felix_control::agent::AdminError;
use felix_protocol::messages::alter_client_quotas_request::{EntityData as AskedPart, EntryData as Asked};
use felix_protocol::messages::alter_client_quotas_response::{EntityData, EntryData};
use felix_protocol::messages::{AlterClientQuotasRequest, AlterClientQuotasResponse, ApiKey};

use super::{Answer, Api, Call, Class, Handled, Reply, text};
use crate::admin::Refused;
use crate::node::Node;

pub const API: Api = Api {
    key: ApiKey::AlterClientQuotas,
    oldest: 0,
    newest: 1,
    listed_from: 0,
    class: Class::Admin,
    start: handle,
};

fn handle(node: &Arc<Node>, call: Call) -> Handled {
    let request: AlterClientQuotasRequest = call.decode()?;
    let node = Arc::clone(node);
    Answer::later(async move { alter(&node, &call, request).await })
}

async fn alter(node: &Node, call: &Call, request: AlterClientQuotasRequest) -> Result<Reply, Reply> {
    let parts: Vec<Vec<(String, Option<String>)>> = request.entries.iter().map(parts).collect();
    let entities = quotas::entities(&parts);
    let mut wanted = Vec::new();
    let mut checked = Vec::with_capacity(entities.len());
    for (entity, entry) in entities.into_iter().zip(&request.entries) {
        checked.push(entity.map(|entity| wanted.push((entity, limits(entry)))));
    }
    let mut altered = node.agent.alter_quotas(wanted, request.validate_only).await.into_iter();
    let entries = request.entries.into_iter().zip(checked).map(|(entry, checked)| {
        let outcome = match checked {
            Ok(()) => altered.next().unwrap_or(Ok(())),
            Err(refused) => Err(AdminError::Refused(refused)),
        };
        let echoed = EntryData::default().with_error_message(None).with_entity(entity(entry.entity));
        match outcome {
            Ok(()) => echoed,
            Err(error) => {
                let refused = Refused::from_admin(&error);
                echoed.with_error_code(refused.code as i16).with_error_message(refused.message.map(text))
            }
        }
    });
    call.reply(&AlterClientQuotasResponse::default().with_entries(entries.collect()))
}

fn parts(entry: &Asked) -> Vec<(String, Option<String>)> {
    let part =
        |part: &AskedPart| (part.entity_type.to_string(), part.entity_name.as_ref().map(ToString::to_string));
    entry.entity.iter().map(part).collect()
}

fn limits(entry: &Asked) -> Vec<(String, Option<f64>)> {
    entry.ops.iter().map(|op| (op.key.to_string(), (!op.remove).then_some(op.value))).collect()
}

fn entity(parts: Vec<AskedPart>) -> Vec<EntityData> {
    let echo = |part: AskedPart| {
        EntityData::default().with_entity_type(part.entity_type).with_entity_name(part.entity_name)
    };
    parts.into_iter().map(echo).collect()
}
