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

use felix_cluster::features::SUPPORTED;
use felix_protocol::error_code::ErrorCode;
use felix_protocol::messages::api_versions::{NEWEST, Offer, is_software_text};
use felix_protocol::messages::{ApiKey, ApiVersionsRequest, StrBytes};

use super::{APIS, Answer, Api, Call, Class, Handled, Reply};
use crate::node::Node;

pub const API: Api = Api {
    key: ApiKey::ApiVersions,
    oldest: 0,
    newest: NEWEST,
    listed_from: 0,
    class: Class::Discovery,
    start: handle,
};

fn handle(node: &Arc<Node>, call: Call) -> Handled {
    let request: ApiVersionsRequest = call.decode()?;
    let (name, version) = (&request.client_software_name, &request.client_software_version);
    let mut error = ErrorCode::None;
    if call.version() >= 3 {
        if !(is_software_text(name) && is_software_text(version)) {
            error = ErrorCode::InvalidRequest;
        }
        tracing::debug!(peer = %call.client.peer, %name, %version, "a client introduces itself");
    }
    let view = node.view();
    let features = view.features();
    let served = |name: &str| SUPPORTED.iter().any(|known| known.name == name);
    let finalized = features
        .finalized
        .iter()
        .filter(|(name, level)| **level > 0 && served(name))
        .map(|(name, level)| (StrBytes::from_string(name.clone()), *level));
    let supported = SUPPORTED.iter().map(|one| (StrBytes::from_static_str(one.name), one.min, one.max));
    let offer = Offer {
        apis: ranges(),
        supported: supported.collect(),
        finalized: finalized.collect(),
        finalized_epoch: features.epoch.max(0),
    };
    encode(&offer, call.version(), call.correlation_id(), error).map(Answer::Now)
}

fn ranges() -> Vec<(i16, i16, i16)> {
    let mut ranges: Vec<_> = APIS.iter().map(|api| (api.key as i16, api.listed_from, api.newest)).collect();
    ranges.sort_unstable();
    ranges
}

/// The answer to a version of ApiVersions that is not served.
pub fn unsupported_version(version: i16, correlation_id: i32) -> Reply {
    let offer = Offer { apis: ranges(), ..Offer::default() };
    encode(&offer, version, correlation_id, ErrorCode::UnsupportedVersion).unwrap_or_else(|reply| reply)
}

fn encode(offer: &Offer, version: i16, correlation_id: i32, error: ErrorCode) -> Result<Reply, Reply> {
    match offer.encode(version, correlation_id, error, 0) {
        Ok(frame) => Ok(Reply::Frame(frame)),
        Err(error) => {
            tracing::error!(%error, "an answer could not be encoded");
            Err(Reply::Close(error.to_string()))
        }
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn an_unknown_version_is_told_ours_in_the_oldest_layout() {
        let Reply::Frame(frame) = unsupported_version(9, 7) else { panic!("no frame") };
        let expected: Vec<u8> = [
            &(4 + 2 + 4 + 6_i32).to_be_bytes()[..],
            &7_i32.to_be_bytes(),
            &35_i16.to_be_bytes(),
            &1_i32.to_be_bytes(),
            &[0, 18, 0, 0, 0, 4],
        ]
        .concat();
        assert_eq!(frame, expected);
    }
}
