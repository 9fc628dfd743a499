//! ApiVersions: the one exchange in which client and broker do not yet know what the other speaks.
//!
//! Its rules differ from all others: the response header is always version 0; a request of a version that is
//! too new is answered in version 0 with UNSUPPORTED_VERSION and the range of ApiVersions itself (KIP-511),
//! and its body must not be decoded; at version 3 no feature may be offered whose range begins at 0
//! (KAFKA-17011: Java clients up to 3.8 refuse the whole response).

use bytes::Bytes;

use super::api_versions_response::{ApiVersion, FinalizedFeatureKey, SupportedFeatureKey};
use super::{ApiKey, ApiVersionsResponse, StrBytes};
use crate::error_code::ErrorCode;
use crate::frame::{self, FrameError};

/// The newest version that is answered in full.
pub const NEWEST: i16 = 4;

/// What a broker offers.
#[derive(Clone, Debug, Default, PartialEq, Eq)]
pub struct Offer {
    /// Keys with their oldest and newest versions, in the order of the keys.
    pub apis: Vec<(i16, i16, i16)>,
    /// Features with the levels that this broker can work at.
    pub supported: Vec<(StrBytes, i16, i16)>,
    /// Features with the level that the cluster works at.
    pub finalized: Vec<(StrBytes, i16)>,
    /// When `finalized` last changed; clients ignore it below 0.
    pub finalized_epoch: i64,
}

impl Offer {
    /// The response frame to a request of `version`, with `error` (INVALID_REQUEST for a name or version of
    /// the client's software that is none, see [`is_software_text`]).
    pub fn encode(
        &self,
        version: i16,
        correlation_id: i32,
        error: ErrorCode,
        throttle_time_ms: i32,
    ) -> Result<Bytes, FrameError> {
        let response = ApiVersionsResponse::default();
        if !(0..=NEWEST).contains(&version) {
            let api = ApiKey::ApiVersions as i16;
            let itself = self.apis.iter().filter(|(key, _, _)| *key == api);
            let response = response
                .with_error_code(ErrorCode::UnsupportedVersion.code())
                .with_api_keys(itself.map(api_version).collect());
            return frame::encode_response(ApiKey::ApiVersions, 0, correlation_id, &response);
        }
        let mut response = response
            .with_error_code(error.code())
            .with_throttle_time_ms(throttle_time_ms)
            .with_api_keys(self.apis.iter().map(api_version).collect());
        if version >= 3 {
            let supported = self.supported.iter().filter(|(_, min, _)| version >= 4 || *min > 0);
            let supported = supported.map(|(name, min, max)| {
                SupportedFeatureKey::default()
                    .with_name(name.clone())
                    .with_min_version(*min)
                    .with_max_version(*max)
            });
            let finalized = self.finalized.iter().map(|(name, level)| {
                FinalizedFeatureKey::default()
                    .with_name(name.clone())
                    .with_min_version_level(*level)
                    .with_max_version_level(*level)
            });
            response = response
                .with_supported_features(supported.collect())
                .with_finalized_features(finalized.collect())
                .with_finalized_features_epoch(self.finalized_epoch);
        }
        frame::encode_response(ApiKey::ApiVersions, version, correlation_id, &response)
    }
}

fn api_version((key, min, max): &(i16, i16, i16)) -> ApiVersion {
    ApiVersion::default().with_api_key(*key).with_min_version(*min).with_max_version(*max)
}

/// Whether `text` may be the name or the version of a client's software: letters, digits, and between them
/// dots and dashes.
pub fn is_software_text(text: &str) -> bool {
    let outer = |letter: u8| letter.is_ascii_alphanumeric();
    match text.as_bytes() {
        [] => false,
        [only] => outer(*only),
        [first, inner @ .., last] => {
            outer(*first)
                && outer(*last)
                && inner.iter().all(|letter| outer(*letter) || matches!(letter, b'.' | b'-'))
        }
    }
}

#[cfg(test)]
#[expect(clippy::cast_possible_truncation, reason = "the frames are small")]
mod tests {
    use super::*;
    use crate::messages::Decodable;

    fn offer() -> Offer {
        let text = StrBytes::from_static_str;
        Offer {
            apis: vec![(0, 0, 13), (18, 0, 4)],
            supported: vec![(text("kraft.version"), 0, 1), (text("metadata.version"), 7, 30)],
            finalized: vec![(text("metadata.version"), 30)],
            finalized_epoch: 9,
        }
    }

    fn decoded(version: i16, layout: i16) -> ApiVersionsResponse {
        let mut frame = offer().encode(version, 77, ErrorCode::None, 5).unwrap();
        assert_eq!(frame[..4], (frame.len() as i32 - 4).to_be_bytes());
        assert_eq!(frame[4..8], 77i32.to_be_bytes());
        // No tagged fields behind the correlation id, in any version.
        let mut body = frame.split_off(8);
        let response = ApiVersionsResponse::decode(&mut body, layout).unwrap();
        assert!(body.is_empty());
        response
    }

    #[test]
    fn every_version_gets_what_it_can_read() {
        for version in 0..=NEWEST {
            let response = decoded(version, version);
            assert_eq!(response.api_keys.len(), 2);
            assert_eq!(response.throttle_time_ms, if version >= 1 { 5 } else { 0 });
            let supported = [0, 0, 0, 1, 2][version as usize];
            assert_eq!(response.supported_features.len(), supported, "version {version}");
            assert_eq!(response.finalized_features.len(), usize::from(version >= 3));
            assert_eq!(response.finalized_features_epoch, if version >= 3 { 9 } else { -1 });
        }
    }

    #[test]
    fn a_version_that_is_too_new_is_answered_in_version_0() {
        for version in [5, 100, i16::MAX, -1] {
            let response = decoded(version, 0);
            assert_eq!(response.error_code, 35);
            assert_eq!(response.api_keys, [api_version(&(18, 0, 4))]);
        }
    }

    #[test]
    fn software_names() {
        for good in ["a", "librdkafka", "2.11.1-RC1", "apache-kafka-java"] {
            assert!(is_software_text(good), "{good}");
        }
        for bad in ["", "-", ".a", "a.", "a b", "a/b", "ä", "a\n"] {
            assert!(!is_software_text(bad), "{bad}");
        }
    }
}
