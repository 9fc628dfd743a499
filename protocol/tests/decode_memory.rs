//! What the guard announces about memory, held against the allocator. A test of its own because it owns the
//! allocator of its process.

#![expect(clippy::unwrap_used, reason = "a test fails by panicking")]

use std::alloc::System;

use bytes::{BufMut, Bytes, BytesMut};
use cap::Cap;
use felix_protocol::frame::{CheckedRequest, Request, RequestBody, versions};
use felix_protocol::messages::offsets::OffsetCommit;
use felix_protocol::messages::*;

#[global_allocator]
static ALLOCATOR: Cap<System> = Cap::new(System, usize::MAX);

/// What decoding may take beyond the announcement: the message itself is on the stack, but small things
/// (an error, a header) are not worth announcing.
const SLACK_BYTES: usize = 4096;

fn checked(api: ApiKey, version: i16, body: &[u8]) -> CheckedRequest {
    let mut frame = BytesMut::new();
    frame.put_i16(api as i16);
    frame.put_i16(version);
    frame.put_i32(1);
    frame.put_i16(-1);
    if request_header_version(api, version) == 2 {
        frame.put_u8(0);
    }
    frame.extend_from_slice(body);
    Request::parse(frame.freeze()).unwrap().check().unwrap()
}

/// Decodes `body` and compares what is allocated meanwhile with what the guard announced.
fn weigh<T: RequestBody>(api: ApiKey, version: i16, body: Bytes) {
    let request = checked(api, version, &body);
    let announced = request.weight().memory;
    let before = ALLOCATOR.allocated();
    let message: T = request.decode().unwrap();
    let taken = ALLOCATOR.allocated().saturating_sub(before);
    drop(message);
    assert!(
        taken <= announced + SLACK_BYTES,
        "{api:?} {version}: {taken} bytes taken, {announced} announced, {} in the frame",
        body.len()
    );
}

fn encoded<T: ApiRequest>(message: &T, version: i16) -> Bytes {
    let mut body = BytesMut::new();
    message.encode(&mut body, version).unwrap();
    body.freeze()
}

/// The dearest elements that a byte of frame can buy, a hundred thousand each.
#[test]
fn no_request_takes_more_memory_than_announced() {
    const MANY: usize = 100_000;
    macro_rules! heavy {
        ($api:ident, $request:ident, $module:ident::$element:ident, $with:ident, |$element_arg:ident| $fill:expr) => {
            let (oldest, newest) = versions(ApiKey::$api).unwrap();
            // What is newer than the crate's newest is read by hand: see below.
            for version in [oldest, newest.min($request::VERSIONS.max)] {
                let $element_arg = $module::$element::default();
                let message = $request::default().$with(vec![$fill; MANY]);
                if let Ok(size) = message.compute_size(version)
                    && size >= MANY
                {
                    weigh::<$request>(ApiKey::$api, version, encoded(&message, version));
                }
            }
        };
    }
    heavy!(Produce, ProduceRequest, produce_request::TopicProduceData, with_topic_data, |t| t.clone());
    heavy!(Fetch, FetchRequest, fetch_request::FetchTopic, with_topics, |t| t.clone());
    heavy!(Metadata, MetadataRequest, metadata_request::MetadataRequestTopic, with_topics_some, |t| t
        .clone()
        .with_name(Some(TopicName::default())));
    heavy!(
        OffsetCommit,
        OffsetCommitRequest,
        offset_commit_request::OffsetCommitRequestTopic,
        with_topics,
        |t| t.clone()
    );
    heavy!(
        OffsetFetch,
        OffsetFetchRequest,
        offset_fetch_request::OffsetFetchRequestGroup,
        with_groups,
        |t| t.clone()
    );
    heavy!(JoinGroup, JoinGroupRequest, join_group_request::JoinGroupRequestProtocol, with_protocols, |t| t
        .clone());
    heavy!(CreateTopics, CreateTopicsRequest, create_topics_request::CreatableTopic, with_topics, |t| t
        .clone());
    heavy!(CreateAcls, CreateAclsRequest, create_acls_request::AclCreation, with_creations, |t| t.clone());
    heavy!(DeleteAcls, DeleteAclsRequest, delete_acls_request::DeleteAclsFilter, with_filters, |t| t.clone());
    heavy!(
        AddPartitionsToTxn,
        AddPartitionsToTxnRequest,
        add_partitions_to_txn_request::AddPartitionsToTxnTransaction,
        with_transactions,
        |t| t.clone()
    );
    heavy!(
        TxnOffsetCommit,
        TxnOffsetCommitRequest,
        txn_offset_commit_request::TxnOffsetCommitRequestTopic,
        with_topics,
        |t| t.clone()
    );
    heavy!(
        AlterUserScramCredentials,
        AlterUserScramCredentialsRequest,
        alter_user_scram_credentials_request::ScramCredentialUpsertion,
        with_upsertions,
        |t| t.clone()
    );

    // Partitions of one topic, the dearest elements of Fetch, with and without an unknown tagged field.
    for tags in [0, 1] {
        let mut partition = fetch_request::FetchPartition::default();
        if tags == 1 {
            partition = partition.with_unknown_tagged_field(77, Bytes::from_static(b"x"));
        }
        let count = if tags == 1 { 9_000 } else { MANY };
        let topic = fetch_request::FetchTopic::default().with_partitions(vec![partition; count]);
        let message = FetchRequest::default().with_topics(vec![topic]);
        weigh::<FetchRequest>(ApiKey::Fetch, 18, encoded(&message, 18));
    }
    let groups = DescribeGroupsRequest::default().with_groups(vec![GroupId::default(); MANY]);
    weigh::<DescribeGroupsRequest>(ApiKey::DescribeGroups, 6, encoded(&groups, 6));

    // Version 10 of OffsetCommit, read by hand: no names, 100,000 topics by id without partitions.
    let mut commit = BytesMut::from(&b"\x01\0\0\0\0\x01\0\xa1\x8d\x06"[..]);
    commit.extend_from_slice(&[[0; 16].as_slice(), &[1, 0]].concat().repeat(MANY));
    commit.put_u8(0);
    weigh::<OffsetCommit>(ApiKey::OffsetCommit, 10, commit.freeze());
}

trait WithTopics: Sized {
    fn with_topics_some(self, topics: Vec<metadata_request::MetadataRequestTopic>) -> Self;
}

impl WithTopics for MetadataRequest {
    fn with_topics_some(self, topics: Vec<metadata_request::MetadataRequestTopic>) -> Self {
        self.with_topics(Some(topics))
    }
}
