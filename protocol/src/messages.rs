//! Kafka's messages. The only file that names the crate which has most of them; what the crate lacks, or
//! would copy records for, is written by hand in the modules below.
//!
//! Traps of the crate, for those who fill responses in:
//! - about fifty response fields make encoding fail when they differ from their default in a version that
//!   does not have them (`current_leader`, `node_endpoints`, `session_id`, `coordinators`, …): set them
//!   only where the version has them;
//! - a few others are dropped silently instead (`throttle_time_ms`, `topic_id` against `name`);
//! - its records codec is not used: it merges record headers that have the same key. See
//!   [`batch`](crate::batch);
//! - it must never decode bytes that [`frame::guard`](crate::frame::guard) has not walked, because it
//!   allocates by the counts that it reads.

pub mod api_versions;
pub mod fetch;
pub mod log_dirs;
pub mod offsets;

pub use kafka_protocol::messages::*;
/// What ties a request to its key and to its response. Named so to leave `Request` to the frame.
pub use kafka_protocol::protocol::Request as ApiRequest;
pub use kafka_protocol::protocol::{Decodable, Encodable, HeaderVersion, Message, StrBytes, VersionRange};

/// The version of the request header that goes with `version` of `api`.
pub fn request_header_version(api: ApiKey, version: i16) -> i16 {
    api.request_header_version(version)
}

/// The version of the response header that goes with `version` of `api`. Always 0 for ApiVersions: its
/// client cannot know yet what the broker speaks.
pub fn response_header_version(api: ApiKey, version: i16) -> i16 {
    api.response_header_version(version)
}

/// The version under which the crate knows the layout of a request of `version`.
pub(crate) fn request_layout(api: ApiKey, version: i16) -> i16 {
    match (api, version) {
        // Version 11 has the layout of 10; it only promises to know timestamp -6.
        (ApiKey::ListOffsets, 11) => 10,
        // What is new in version 5 stands in the response.
        (ApiKey::DescribeLogDirs, 5) => 4,
        _ => version,
    }
}

/// The version under which the crate knows the layout of a response of `version`.
pub(crate) fn response_layout(api: ApiKey, version: i16) -> i16 {
    match (api, version) {
        (ApiKey::ListOffsets, 11) => 10,
        _ => version,
    }
}
