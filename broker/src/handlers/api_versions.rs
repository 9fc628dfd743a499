//! ApiVersions: what this broker serves.
//!
//! - The answer's header is always version 0, without tagged fields: the client cannot know yet what we speak.
//! - A version that is not served is answered in the layout of version 0 with error 35 and our own range for this
//!   API (KIP-511), before the body is looked at: clients come back with a version that both know.
//! - 3 and later: the client's software name and version are checked as Kafka does.
//! - 3: supported features from level 0 on are left out, because Java clients up to 3.8 cannot read them.
//! - Finalised are the features that are served, and no others (transaction.version and the group features are
//!   not).

use std::sync::Arc;

use bytes::Bytes;
use felix_protocol::error_code::ErrorCode;
use felix_protocol::frame;
use felix_protocol::messages::api_versions_response::{ApiVersion, FinalizedFeatureKey, SupportedFeatureKey};
use felix_protocol::messages::{ApiKey, ApiVersionsRequest, ApiVersionsResponse, StrBytes};

use super::{APIS, Api, Call, Class, Handled, Reply};
use crate::node::Node;

pub const API: Api = Api {
    key: ApiKey::ApiVersions,
    oldest: 0,
    newest: 4,
    listed_from: 0,
    class: Class::Discovery,
    start: handle,
};

/// Features that clients may be told of: name, oldest and newest level.
const FEATURES: &[(&str, i16, i16)] = &[("kraft.version", 0, 1), ("metadata.version", 7, 30)];

fn handle(node: &Arc<Node>, call: Call) -> Handled {
    let request: ApiVersionsRequest = call.decode()?;
    if call.version() >= 3
        && !(is_software_name(&request.client_software_name)
            && is_software_name(&request.client_software_version))
    {
        let code = ErrorCode::InvalidRequest as i16;
        return call.answer(&ApiVersionsResponse::default().with_error_code(code));
    }
    tracing::debug!(
        peer = %call.client.peer,
        name = %request.client_software_name,
        version = %request.client_software_version,
        "a client introduces itself"
    );
    let view = node.view();
    let features = view.features();
    let finalized = features
        .finalized
        .iter()
        .filter(|(name, level)| **level > 0 && FEATURES.iter().any(|(known, _, _)| known == name))
        .map(|(name, level)| {
            FinalizedFeatureKey::default()
                .with_name(StrBytes::from_string(name.clone()))
                .with_max_version_level(*level)
                .with_min_version_level(*level)
        });
    let mut response = ApiVersionsResponse::default().with_api_keys(APIS.iter().map(listed).collect());
    if call.version() >= 3 {
        response = response
            .with_supported_features(supported(call.version()))
            .with_finalized_features(finalized.collect())
            .with_finalized_features_epoch(features.epoch.max(0));
    }
    call.answer(&response)
}

fn supported(version: i16) -> Vec<SupportedFeatureKey> {
    FEATURES
        .iter()
        .filter(|(_, oldest, _)| version >= 4 || *oldest > 0)
        .map(|(name, oldest, newest)| {
            SupportedFeatureKey::default()
                .with_name(StrBytes::from_static_str(name))
                .with_min_version(*oldest)
                .with_max_version(*newest)
        })
        .collect()
}

fn listed(api: &Api) -> ApiVersion {
    ApiVersion::default()
        .with_api_key(api.key as i16)
        .with_min_version(api.listed_from)
        .with_max_version(api.newest)
}

/// The answer to a version of ApiVersions that is not served.
pub fn unsupported_version(correlation_id: i32) -> Reply {
    let response = ApiVersionsResponse::default()
        .with_error_code(ErrorCode::UnsupportedVersion as i16)
        .with_api_keys(APIS.iter().filter(|api| api.key == ApiKey::ApiVersions).map(listed).collect());
    match frame::encode_response(ApiKey::ApiVersions, 0, correlation_id, &response) {
        Ok(frame) => Reply::Frame(frame),
        Err(error) => Reply::Close(error.to_string()),
    }
}

/// Letters and digits, with dashes and dots between them.
fn is_software_name(text: &str) -> bool {
    let bytes = text.as_bytes();
    let ends = [bytes.first(), bytes.last()];
    ends.iter().all(|end| end.is_some_and(u8::is_ascii_alphanumeric))
        && bytes.iter().all(|byte| byte.is_ascii_alphanumeric() || *byte == b'-' || *byte == b'.')
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn software_names_follow_kafkas_pattern() {
        for good in ["a", "librdkafka", "2.0.2", "apache-kafka-java", "a..b"] {
            assert!(is_software_name(good), "{good}");
        }
        for bad in ["", "-a", "a-", ".", "a b", "a_b", "é"] {
            assert!(!is_software_name(bad), "{bad}");
        }
    }

    #[test]
    fn features_from_level_zero_wait_for_version_4() {
        let names = |version| supported(version).into_iter().map(|one| one.name.to_string()).collect::<Vec<_>>();
        assert_eq!(names(3), ["metadata.version"]);
        assert_eq!(names(4), ["kraft.version", "metadata.version"]);
    }

    #[test]
    fn an_unknown_version_is_told_ours_in_the_oldest_layout() {
        let Reply::Frame(frame) = unsupported_version(7) else { panic!("no frame") };
        let expected: Vec<u8> = [
            &(4 + 2 + 4 + 6_i32).to_be_bytes()[..],
            &7_i32.to_be_bytes(),
            &35_i16.to_be_bytes(),
            &1_i32.to_be_bytes(),
            &[0, 18, 0, 0, 0, 4],
        ]
        .concat();
        assert_eq!(frame, Bytes::from(expected));
    }
}
