//! Bytes recorded from Apache Kafka go through our own framing, guard, decoder and encoder, and come out as they were.

#![expect(clippy::unwrap_used, reason = "all of this file is a test")]

use std::path::{Path, PathBuf};

use bytes::{Buf, Bytes, BytesMut};
use felix_protocol::frame::{Request, RequestBody, encode_response};
use felix_protocol::messages::offsets::{OffsetCommit, OffsetFetch};
use felix_protocol::messages::{self, ApiKey, ApiRequest, Decodable, Encodable, response_header_version};

/// Every recorded file with this ending, with the API's folder name and the version.
fn recorded(ending: &str) -> Vec<(String, i16, Bytes)> {
    let root = Path::new(env!("CARGO_MANIFEST_DIR")).join("fixtures");
    let mut found = Vec::new();
    for folder in paths(&root).into_iter().filter(|path| path.is_dir()) {
        for file in paths(&folder) {
            let name = file.file_name().unwrap().to_str().unwrap();
            let Some(version) = name.strip_suffix(ending) else { continue };
            let api = folder.file_name().unwrap().to_str().unwrap().to_owned();
            let version = version.trim_start_matches('v').parse().unwrap();
            found.push((api, version, unhex(&std::fs::read_to_string(&file).unwrap())));
        }
    }
    assert!(found.len() > 150, "only {} fixtures", found.len());
    found
}

fn paths(folder: &Path) -> Vec<PathBuf> {
    let mut paths: Vec<PathBuf> =
        std::fs::read_dir(folder).unwrap().map(|entry| entry.unwrap().path()).collect();
    paths.sort();
    paths
}

fn unhex(text: &str) -> Bytes {
    let digits: Vec<u8> = text.bytes().filter(u8::is_ascii_hexdigit).collect();
    digits.chunks(2).map(|pair| u8::from_str_radix(std::str::from_utf8(pair).unwrap(), 16).unwrap()).collect()
}

/// A request through parser, guard, decoder and encoder.
fn request<T: ApiRequest + RequestBody>(version: i16, frame: Bytes) -> Result<(), String> {
    let key = <T as ApiRequest>::KEY;
    let parsed = Request::parse(frame).map_err(|error| error.to_string())?;
    assert_eq!((parsed.header.api as i16, parsed.header.version), (key, version));
    assert_eq!(parsed.header.client_id.as_deref(), Some("fixture"));
    let body = parsed.body.clone();
    let checked = parsed.check().map_err(|error| error.to_string())?;
    // Version 10 of these two is read by hand and never written by a broker.
    match (key, version) {
        (8, 10) => return checked.decode::<OffsetCommit>().map(|_| ()).map_err(|error| error.to_string()),
        (9, 10) => return checked.decode::<OffsetFetch>().map(|_| ()).map_err(|error| error.to_string()),
        _ => {}
    }
    let message: T = checked.decode().map_err(|error| error.to_string())?;
    let layout = match (key, version) {
        (2, 11) => 10,
        (35, 5) => 4,
        _ => version,
    };
    let mut again = BytesMut::new();
    message.encode(&mut again, layout).map_err(|error| error.to_string())?;
    same(&body, &again)
}

/// A response through decoder and encoder, the frame's length included.
fn response<T: ApiRequest>(version: i16, frame: Bytes) -> Result<(), String>
where
    T::Response: Decodable + Encodable,
{
    let api = ApiKey::try_from(T::KEY).unwrap();
    let mut body = frame.clone();
    assert_eq!(body.get_i32(), 7, "correlation id");
    if response_header_version(api, version) >= 1 {
        assert_eq!(body.get_u8(), 0, "tagged fields in the header");
    }
    let layout = match (T::KEY, version) {
        // Version 11 looks like 10.
        (2, 11) => 10,
        // Version 5 is written by hand and never read by a broker; Kafka's classes read it in the case of that name.
        (35, 5) => return Ok(()),
        _ => version,
    };
    let message = T::Response::decode(&mut body, layout).map_err(|error| error.to_string())?;
    if body.has_remaining() {
        return Err(format!("{} bytes are left", body.remaining()));
    }
    let again = encode_response(api, version, 7, &message).map_err(|error| error.to_string())?;
    assert_eq!(again.len() - 4, usize::try_from(i32::from_be_bytes(*again.first_chunk().unwrap())).unwrap());
    same(&frame, &again[4..])
}

fn same(recorded: &[u8], again: &[u8]) -> Result<(), String> {
    if recorded == again { Ok(()) } else { Err(format!("comes back as {again:02x?}, was {recorded:02x?}")) }
}

/// One line an API that has fixtures; the test fails on a folder that is not here.
macro_rules! by_api {
    ($function:ident, $name:expr, $version:expr, $frame:expr, $($api:ident $request:ident),* $(,)?) => {
        match $name {
            $(stringify!($api) => $function::<messages::$request>($version, $frame),)*
            other => panic!("{other} is not listed in {}", file!()),
        }
    };
}

macro_rules! through {
    ($function:ident, $name:expr, $version:expr, $frame:expr) => {
        by_api!(
            $function, $name, $version, $frame,
            AlterClientQuotas AlterClientQuotasRequest,
            AlterConfigs AlterConfigsRequest,
            AlterPartitionReassignments AlterPartitionReassignmentsRequest,
            ApiVersions ApiVersionsRequest,
            CreatePartitions CreatePartitionsRequest,
            CreateTopics CreateTopicsRequest,
            DeleteGroups DeleteGroupsRequest,
            DeleteRecords DeleteRecordsRequest,
            DeleteTopics DeleteTopicsRequest,
            DescribeAcls DescribeAclsRequest,
            DescribeClientQuotas DescribeClientQuotasRequest,
            DescribeCluster DescribeClusterRequest,
            DescribeConfigs DescribeConfigsRequest,
            DescribeGroups DescribeGroupsRequest,
            DescribeLogDirs DescribeLogDirsRequest,
            DescribeProducers DescribeProducersRequest,
            DescribeQuorum DescribeQuorumRequest,
            DescribeTopicPartitions DescribeTopicPartitionsRequest,
            DescribeUserScramCredentials DescribeUserScramCredentialsRequest,
            ElectLeaders ElectLeadersRequest,
            Fetch FetchRequest,
            FindCoordinator FindCoordinatorRequest,
            Heartbeat HeartbeatRequest,
            IncrementalAlterConfigs IncrementalAlterConfigsRequest,
            InitProducerId InitProducerIdRequest,
            JoinGroup JoinGroupRequest,
            LeaveGroup LeaveGroupRequest,
            ListConfigResources ListConfigResourcesRequest,
            ListGroups ListGroupsRequest,
            ListOffsets ListOffsetsRequest,
            ListPartitionReassignments ListPartitionReassignmentsRequest,
            Metadata MetadataRequest,
            OffsetCommit OffsetCommitRequest,
            OffsetDelete OffsetDeleteRequest,
            OffsetFetch OffsetFetchRequest,
            OffsetForLeaderEpoch OffsetForLeaderEpochRequest,
            Produce ProduceRequest,
            SyncGroup SyncGroupRequest,
            UnregisterBroker UnregisterBrokerRequest,
            UpdateFeatures UpdateFeaturesRequest,
        )
    };
}

#[test]
fn recorded_requests_pass_the_guard_and_come_back_byte_for_byte() {
    let mut wrong = Vec::new();
    for (name, version, frame) in recorded(".request.hex") {
        if let Err(error) = through!(request, name.as_str(), version, frame) {
            wrong.push(format!("{name} v{version}: {error}"));
        }
    }
    assert!(wrong.is_empty(), "{}", wrong.join("\n"));
}

#[test]
fn recorded_responses_come_back_byte_for_byte() {
    let mut wrong = Vec::new();
    for (name, version, frame) in recorded(".response.hex") {
        if let Err(error) = through!(response, name.as_str(), version, frame) {
            wrong.push(format!("{name} v{version}: {error}"));
        }
    }
    assert!(wrong.is_empty(), "{}", wrong.join("\n"));
}

/// A recorded request with its last byte cut off is refused in every version; bytes behind it are ignored, as Kafka ignores them
/// (librdkafka sends three of them in one of its requests).
#[test]
fn cut_requests_are_refused_and_lengthened_ones_read() {
    for (name, version, frame) in recorded(".request.hex") {
        let empty_body = Request::parse(frame.clone()).unwrap().body.is_empty();
        let mut longer = BytesMut::from(&frame[..]);
        longer.extend_from_slice(&[0, 1, 2]);
        assert!(
            Request::parse(longer.freeze()).unwrap().check().is_ok(),
            "{name} v{version} with bytes behind"
        );
        if !empty_body {
            let cut = Request::parse(frame.slice(..frame.len() - 1));
            assert!(cut.is_err() || cut.unwrap().check().is_err(), "{name} v{version} cut");
        }
    }
}
