//! DescribeClientQuotas: who is limited, and how much.
//!
//! - Components are of a kind (user, client-id, ip) and match one name (0), the default (1) or any (2). An entity matches that has
//!   all of these kinds; with `strict` it has no others. No components match everyone, or with `strict` nobody.
//! - An entity's kinds and limits stand in one order, always the same.
//!
//! Differences from Apache Kafka: an address is found in whichever way it is spelled.

use std::sync::Arc;

use felix_cluster::quotas::{self, Filter, FilterRefused, Match, Who};
use felix_cluster::view::View;
use felix_protocol::error_code::ErrorCode;
use felix_protocol::messages::describe_client_quotas_request::ComponentData;
use felix_protocol::messages::describe_client_quotas_response::{EntityData, EntryData, ValueData};
use felix_protocol::messages::{ApiKey, DescribeClientQuotasRequest, DescribeClientQuotasResponse, StrBytes};

use super::{Api, Call, Class, Handled, text};
use crate::admin::Refused;
use crate::node::Node;
use crate::wire_code::WireCode;

pub const API: Api = Api {
    key: ApiKey::DescribeClientQuotas,
    oldest: 0,
    newest: 1,
    listed_from: 0,
    class: Class::Admin,
    start: handle,
};

/// Kafka's numbers of how a component matches.
const EXACTLY: i8 = 0;
const DEFAULT: i8 = 1;
const ANY: i8 = 2;

fn handle(node: &Arc<Node>, call: Call) -> Handled {
    let request: DescribeClientQuotasRequest = call.decode()?;
    let response = DescribeClientQuotasResponse::default().with_error_message(None);
    call.answer(&match describe(&node.view(), request.components, request.strict) {
        Ok(entries) => response.with_entries(Some(entries)),
        Err(refused) => response
            .with_error_code(refused.code as i16)
            .with_error_message(refused.message.map(text))
            .with_entries(None),
    })
}

fn describe(view: &View, components: Vec<ComponentData>, strict: bool) -> Result<Vec<EntryData>, Refused> {
    let components = components.into_iter().map(component).collect::<Result<_, _>>()?;
    let filter = Filter::new(components, strict)
        .map_err(|error: FilterRefused| Refused::new(error.code(), error.to_string()))?;
    let entries = quotas::describe(view, &filter).map(|(entity, quotas)| {
        let parts = entity.parts().into_iter().map(|(kind, name)| {
            EntityData::default()
                .with_entity_type(StrBytes::from_static_str(kind))
                .with_entity_name(name.map(text))
        });
        let values = quotas
            .limits
            .iter()
            .map(|(name, value)| ValueData::default().with_key(text(name.clone())).with_value(*value));
        EntryData::default().with_entity(parts.collect()).with_values(values.collect())
    });
    Ok(entries.collect())
}

fn component(component: ComponentData) -> Result<(String, Match), Refused> {
    let refused = |why: &str| Err(Refused::new(ErrorCode::InvalidRequest, why));
    let matching = match (component.match_type, component._match) {
        (EXACTLY, Some(name)) => Match::Exactly(Who::Named(name.to_string())),
        (EXACTLY, None) => {
            return refused("Request specified MATCH_TYPE_EXACT, but set match string to null.");
        }
        (DEFAULT, None) => Match::Exactly(Who::Default),
        (ANY, None) => Match::Any,
        (DEFAULT, Some(_)) => {
            return refused("Request specified MATCH_TYPE_DEFAULT, but also specified a match string.");
        }
        (ANY, Some(_)) => {
            return refused("Request specified MATCH_TYPE_SPECIFIED, but also specified a match string.");
        }
        (other, _) => return refused(&format!("Unknown match type {other}")),
    };
    Ok((component.entity_type.to_string(), matching))
}

#[cfg(test)]
mod tests {
    use felix_cluster::quotas::Entity;

    use super::*;
    use crate::admin::testing;

    fn named(name: &str) -> Who {
        Who::Named(name.to_owned())
    }

    fn asked(kind: &'static str, match_type: i8, name: Option<&'static str>) -> ComponentData {
        ComponentData::default()
            .with_entity_type(StrBytes::from_static_str(kind))
            .with_match_type(match_type)
            .with_match(name.map(StrBytes::from_static_str))
    }

    #[test]
    fn entities_are_found_by_what_they_are_made_of() {
        let mut view = testing::view(&[]);
        testing::limit(&mut view, &Entity::User(named("u")), "producer_byte_rate", 5.0);
        testing::limit(&mut view, &Entity::UserClient(named("u"), Who::Default), "consumer_byte_rate", 6.5);
        testing::limit(&mut view, &Entity::Ip(named("10.0.0.1")), "connection_creation_rate", 7.0);
        let find = |components: &[ComponentData], strict| {
            let found = describe(&view, components.to_vec(), strict).unwrap();
            found.iter().map(|entry| entry.values[0].value).collect::<Vec<_>>()
        };
        assert_eq!(find(&[], false), [5.0, 6.5, 7.0]);
        assert!(find(&[], true).is_empty());
        assert_eq!(find(&[asked("user", EXACTLY, Some("u"))], false), [5.0, 6.5]);
        assert_eq!(find(&[asked("user", ANY, None)], true), [5.0]);
        assert_eq!(find(&[asked("client-id", DEFAULT, None)], false), [6.5]);
        assert_eq!(find(&[asked("ip", EXACTLY, Some("::ffff:10.0.0.1"))], true), [7.0]);
        let both = [asked("user", ANY, None), asked("client-id", DEFAULT, None)];
        let entries = describe(&view, both.to_vec(), true).unwrap();
        let parts: Vec<_> = entries[0].entity.iter().map(|part| part.entity_name.as_deref()).collect();
        assert_eq!(parts, [Some("u"), None]);
    }

    #[test]
    fn what_makes_no_sense_is_refused_as_kafka_does() {
        let view = testing::view(&[]);
        let code = |components: &[ComponentData]| {
            describe(&view, components.to_vec(), false).map(|_| ()).map_err(|refused| refused.code)
        };
        let invalid = Err(ErrorCode::InvalidRequest);
        assert_eq!(code(&[asked("user", EXACTLY, None)]), invalid);
        assert_eq!(code(&[asked("user", DEFAULT, Some("u"))]), invalid);
        assert_eq!(code(&[asked("user", ANY, Some("u"))]), invalid);
        assert_eq!(code(&[asked("user", 9, None)]), invalid);
        assert_eq!(code(&[asked("", ANY, None)]), invalid);
        assert_eq!(code(&[asked("user", ANY, None), asked("user", DEFAULT, None)]), invalid);
        assert_eq!(code(&[asked("user", ANY, None), asked("ip", ANY, None)]), invalid);
        assert_eq!(code(&[asked("group", ANY, None)]), Err(ErrorCode::UnsupportedVersion));
    }
}
