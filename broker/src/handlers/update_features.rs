//! UpdateFeatures: finalises feature levels, all that are asked for or none.
//!
//! - 0: a level goes down only with `allow_downgrade`. 1 and later: 1 is up, 2 a safe and 3 an unsafe downgrade; `validate_only`.
//! - What is wrong with one stands at the top of the answer, for all: INVALID_UPDATE_VERSION. Below version 2 the answer names each
//!   feature when all went well.
//! - No level that is served needs anything to be deleted, so that a downgrade is never unsafe.
//!
//! Every broker carries this out; when the answer comes, ApiVersions here shows the new levels and their epoch.

use std::sync::Arc;

use felix_cluster::features::{Direction, Update};
use felix_protocol::error_code::ErrorCode;
use felix_protocol::messages::update_features_request::FeatureUpdateKey;
use felix_protocol::messages::update_features_response::UpdatableFeatureResult;
use felix_protocol::messages::{ApiKey, StrBytes, UpdateFeaturesRequest, UpdateFeaturesResponse};

use super::{Answer, Api, Call, Class, Handled, Reply, text};
use crate::admin::Refused;
use crate::node::Node;

pub const API: Api = Api {
    key: ApiKey::UpdateFeatures,
    oldest: 0,
    newest: 2,
    listed_from: 0,
    class: Class::Admin,
    start: handle,
};

/// Kafka's numbers of how a level may change.
const UPGRADE: i8 = 1;
const SAFE_DOWNGRADE: i8 = 2;
const UNSAFE_DOWNGRADE: i8 = 3;

fn handle(node: &Arc<Node>, call: Call) -> Handled {
    let request: UpdateFeaturesRequest = call.decode()?;
    let node = Arc::clone(node);
    Answer::later(async move { update(&node, &call, request).await })
}

async fn update(node: &Node, call: &Call, request: UpdateFeaturesRequest) -> Result<Reply, Reply> {
    let version = call.version();
    let wanted = request.feature_updates.iter().map(|one| wanted(one, version)).collect();
    let outcome = match wanted {
        Ok(wanted) => {
            let updated = node.agent.update_features(wanted, request.validate_only).await;
            updated.map_err(|error| Refused::from_admin(&error))
        }
        Err(refused) => Err(refused),
    };
    let response = UpdateFeaturesResponse::default().with_error_message(None);
    call.reply(&match outcome {
        Ok(()) if version < 2 => {
            let named = request.feature_updates.into_iter().map(|one| {
                UpdatableFeatureResult::default().with_feature(one.feature).with_error_message(None)
            });
            response.with_results(named.collect())
        }
        Ok(()) => response,
        Err(refused) => {
            let why = refused.message.unwrap_or_default();
            response.with_error_code(refused.code as i16).with_error_message(Some(text(format!(
                "The update failed for all features since the following feature had an error: {why}"
            ))))
        }
    })
}

fn wanted(update: &FeatureUpdateKey, version: i16) -> Result<Update, Refused> {
    let direction = match (version, update.upgrade_type) {
        (0, _) if update.allow_downgrade => Direction::Downgrade,
        (0, _) | (_, UPGRADE) => Direction::Upgrade,
        (_, SAFE_DOWNGRADE | UNSAFE_DOWNGRADE) => Direction::Downgrade,
        _ => {
            let (level, name): (i16, &StrBytes) = (update.max_version_level, &update.feature);
            let why = format!(
                "Invalid update version {level} for feature {name}. The controller does not support the given upgrade type."
            );
            return Err(Refused::new(ErrorCode::InvalidUpdateVersion, why));
        }
    };
    Ok(Update { name: update.feature.to_string(), level: update.max_version_level, direction })
}

#[cfg(test)]
mod tests {
    use super::*;

    fn asked(upgrade_type: i8, allow_downgrade: bool) -> FeatureUpdateKey {
        FeatureUpdateKey::default().with_upgrade_type(upgrade_type).with_allow_downgrade(allow_downgrade)
    }

    #[test]
    fn directions_are_kafkas_numbers() {
        let direction = |version, upgrade_type, down| {
            wanted(&asked(upgrade_type, down), version).map(|update| update.direction)
        };
        assert_eq!(direction(0, 1, false), Ok(Direction::Upgrade));
        assert_eq!(direction(0, 1, true), Ok(Direction::Downgrade));
        assert_eq!(direction(1, 1, false), Ok(Direction::Upgrade));
        assert_eq!(direction(2, 2, false), Ok(Direction::Downgrade));
        assert_eq!(direction(1, 3, false), Ok(Direction::Downgrade));
        for unknown in [0, 4, -1] {
            let refused = direction(1, unknown, false).unwrap_err();
            assert_eq!(refused.code, ErrorCode::InvalidUpdateVersion);
        }
    }
}
