//! Says in an answer that is encoded already how long its client should rest.
//!
//! Whether a client went over a limit is known when its answer is done, and answers may be shared by many: so the time is put into
//! the finished frame. Almost every answer begins with it.

use bytes::{Buf, Bytes, BytesMut};

use super::{LENGTH_BYTES, encode_response};
use crate::messages::{self, ApiKey, ApiVersionsResponse, Decodable, Message, ProduceResponse, VersionRange};

/// Where the time stands.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
enum Place {
    /// Nowhere.
    Absent,
    /// So many bytes into the body.
    At(usize),
    /// Behind what is of no fixed length.
    Behind,
}

/// Answers that do not begin with it in every version: since when they have it, and where.
const OTHERS: &[(ApiKey, i16, Place)] = &[
    (ApiKey::Produce, 1, Place::Behind),
    (ApiKey::ApiVersions, 1, Place::Behind),
    (ApiKey::OffsetDelete, 0, Place::At(2)),
    (ApiKey::Metadata, 3, Place::At(0)),
    (ApiKey::OffsetCommit, 3, Place::At(0)),
    (ApiKey::OffsetFetch, 3, Place::At(0)),
    (ApiKey::ListOffsets, 2, Place::At(0)),
    (ApiKey::JoinGroup, 2, Place::At(0)),
    (ApiKey::CreateTopics, 2, Place::At(0)),
    (ApiKey::OffsetForLeaderEpoch, 2, Place::At(0)),
    (ApiKey::Fetch, 1, Place::At(0)),
    (ApiKey::FindCoordinator, 1, Place::At(0)),
    (ApiKey::Heartbeat, 1, Place::At(0)),
    (ApiKey::LeaveGroup, 1, Place::At(0)),
    (ApiKey::SyncGroup, 1, Place::At(0)),
    (ApiKey::DescribeGroups, 1, Place::At(0)),
    (ApiKey::ListGroups, 1, Place::At(0)),
    (ApiKey::DeleteTopics, 1, Place::At(0)),
    (ApiKey::DescribeQuorum, 0, Place::Absent),
    (ApiKey::SaslHandshake, 0, Place::Absent),
    (ApiKey::SaslAuthenticate, 0, Place::Absent),
    (ApiKey::WriteTxnMarkers, 0, Place::Absent),
    // Not served.
    (ApiKey::CreateDelegationToken, 0, Place::Absent),
    (ApiKey::RenewDelegationToken, 0, Place::Absent),
    (ApiKey::ExpireDelegationToken, 0, Place::Absent),
    (ApiKey::DescribeDelegationToken, 0, Place::Absent),
];

fn place(api: ApiKey, version: i16) -> Place {
    let other = OTHERS.iter().find(|(one, ..)| *one == api);
    let (since, place) = other.map_or((0, Place::At(0)), |(_, since, place)| (*since, *place));
    if version >= since { place } else { Place::Absent }
}

/// The frame of an answer, with the time in it. The pieces are those of one whole frame, its length included. Where the version
/// has no place for it, nothing changes.
pub fn put(api: ApiKey, version: i16, pieces: Vec<Bytes>, throttle_ms: i32) -> Vec<Bytes> {
    let head = LENGTH_BYTES + 4 + usize::from(messages::response_header_version(api, version) >= 1);
    match place(api, version) {
        Place::Absent => pieces,
        Place::At(at) => put_at(pieces, head + at, throttle_ms),
        Place::Behind if api == ApiKey::Produce => {
            anew::<ProduceResponse>(api, version, pieces, head, |response| {
                response.throttle_time_ms = throttle_ms;
            })
        }
        Place::Behind => anew::<ApiVersionsResponse>(api, version, pieces, head, |response| {
            response.throttle_time_ms = throttle_ms;
        }),
    }
}

/// Replaces four bytes. What stands before them is copied, being short; the rest stays where it is.
fn put_at(mut pieces: Vec<Bytes>, at: usize, number: i32) -> Vec<Bytes> {
    let end = at + 4;
    if pieces.iter().map(Bytes::len).sum::<usize>() < end {
        return pieces;
    }
    let mut front = BytesMut::with_capacity(end);
    for piece in &mut pieces {
        let taken = piece.split_to(piece.len().min(end - front.len()));
        front.extend_from_slice(&taken);
        if front.len() == end {
            break;
        }
    }
    front[at..].copy_from_slice(&number.to_be_bytes());
    pieces.retain(|piece| !piece.is_empty());
    pieces.insert(0, front.freeze());
    pieces
}

/// Decodes an answer of ours and encodes it anew. Rare, and small: no records are in it.
fn anew<T: Decodable + messages::Encodable + Message>(
    api: ApiKey,
    version: i16,
    pieces: Vec<Bytes>,
    head: usize,
    change: impl FnOnce(&mut T),
) -> Vec<Bytes> {
    let VersionRange { min, max } = T::VERSIONS;
    let whole: BytesMut = pieces.iter().fold(BytesMut::new(), |mut whole, piece| {
        whole.extend_from_slice(piece);
        whole
    });
    if whole.len() < head || !(min..=max).contains(&version) {
        return pieces;
    }
    let correlation_id = (&whole[LENGTH_BYTES..]).get_i32();
    let mut body = whole.freeze().slice(head..);
    let Ok(mut response) = T::decode(&mut body, version) else { return pieces };
    change(&mut response);
    encode_response(api, version, correlation_id, &response).map_or(pieces, |frame| vec![frame])
}

#[cfg(test)]
mod tests {
    use super::super::{layout, response_head};
    use super::*;
    use crate::messages::produce_response::{NodeEndpoint, PartitionProduceResponse, TopicProduceResponse};
    use crate::messages::*;

    const CORRELATION: i32 = 0x0102_0304;

    fn frame<T: Encodable>(api: ApiKey, version: i16, response: &T) -> Bytes {
        let layout = messages::response_layout(api, version);
        let mut body = BytesMut::new();
        response.encode(&mut body, layout).unwrap();
        let mut whole = response_head(api, version, CORRELATION, body.len(), 0).unwrap();
        whole.extend_from_slice(&body);
        whole.freeze()
    }

    fn joined(pieces: &[Bytes]) -> Vec<u8> {
        pieces.concat()
    }

    macro_rules! compare {
        ($($api:ident $response:ident;)*) => {{
            $(
                let api = ApiKey::$api;
                let VersionRange { min, max } = $response::VERSIONS;
                for version in min..=max {
                    let plain = frame(api, version, &$response::default());
                    let expected = frame(api, version, &$response::default().with_throttle_time_ms(77));
                    for cut in 1..plain.len() {
                        let pieces = vec![plain.slice(..cut), plain.slice(cut..)];
                        assert_eq!(joined(&put(api, version, pieces, 77)), expected, "{api:?} {version}");
                    }
                    assert_eq!(joined(&put(api, version, vec![plain], 77)), expected, "{api:?} {version}");
                }
            )*
            [$(ApiKey::$api),*]
        }};
    }

    #[test]
    fn every_answer_says_it_where_its_layout_has_it() {
        let seen = compare! {
            Produce ProduceResponse; Fetch FetchResponse; ListOffsets ListOffsetsResponse; Metadata MetadataResponse;
            OffsetCommit OffsetCommitResponse; OffsetFetch OffsetFetchResponse; FindCoordinator FindCoordinatorResponse;
            JoinGroup JoinGroupResponse; Heartbeat HeartbeatResponse; LeaveGroup LeaveGroupResponse; SyncGroup SyncGroupResponse;
            DescribeGroups DescribeGroupsResponse; ListGroups ListGroupsResponse; ApiVersions ApiVersionsResponse;
            CreateTopics CreateTopicsResponse; DeleteTopics DeleteTopicsResponse; DeleteRecords DeleteRecordsResponse;
            InitProducerId InitProducerIdResponse; OffsetForLeaderEpoch OffsetForLeaderEpochResponse;
            AddPartitionsToTxn AddPartitionsToTxnResponse; AddOffsetsToTxn AddOffsetsToTxnResponse; EndTxn EndTxnResponse;
            TxnOffsetCommit TxnOffsetCommitResponse; DescribeAcls DescribeAclsResponse; CreateAcls CreateAclsResponse;
            DeleteAcls DeleteAclsResponse; DescribeConfigs DescribeConfigsResponse; AlterConfigs AlterConfigsResponse;
            AlterReplicaLogDirs AlterReplicaLogDirsResponse; DescribeLogDirs DescribeLogDirsResponse;
            CreatePartitions CreatePartitionsResponse; DeleteGroups DeleteGroupsResponse; ElectLeaders ElectLeadersResponse;
            IncrementalAlterConfigs IncrementalAlterConfigsResponse;
            AlterPartitionReassignments AlterPartitionReassignmentsResponse;
            ListPartitionReassignments ListPartitionReassignmentsResponse; OffsetDelete OffsetDeleteResponse;
            DescribeClientQuotas DescribeClientQuotasResponse; AlterClientQuotas AlterClientQuotasResponse;
            DescribeUserScramCredentials DescribeUserScramCredentialsResponse;
            AlterUserScramCredentials AlterUserScramCredentialsResponse; UpdateFeatures UpdateFeaturesResponse;
            DescribeCluster DescribeClusterResponse; DescribeProducers DescribeProducersResponse;
            UnregisterBroker UnregisterBrokerResponse; DescribeTransactions DescribeTransactionsResponse;
            ListTransactions ListTransactionsResponse; ConsumerGroupHeartbeat ConsumerGroupHeartbeatResponse;
            ConsumerGroupDescribe ConsumerGroupDescribeResponse; ListConfigResources ListConfigResourcesResponse;
            DescribeTopicPartitions DescribeTopicPartitionsResponse; AddRaftVoter AddRaftVoterResponse;
            RemoveRaftVoter RemoveRaftVoterResponse; ShareGroupHeartbeat ShareGroupHeartbeatResponse;
            ShareGroupDescribe ShareGroupDescribeResponse; ShareFetch ShareFetchResponse;
            ShareAcknowledge ShareAcknowledgeResponse; DescribeShareGroupOffsets DescribeShareGroupOffsetsResponse;
            AlterShareGroupOffsets AlterShareGroupOffsetsResponse; DeleteShareGroupOffsets DeleteShareGroupOffsetsResponse;
            GetTelemetrySubscriptions GetTelemetrySubscriptionsResponse; PushTelemetry PushTelemetryResponse;
        };
        let without: Vec<ApiKey> =
            layout::all().map(|layout| layout.api).filter(|api| !seen.contains(api)).collect();
        for api in without {
            assert_eq!(place(api, 0), Place::Absent, "{api:?} has its time somewhere else");
        }
    }

    #[test]
    fn what_else_an_answer_says_stays_as_it_is() {
        for version in 3..=13 {
            let mut partition = PartitionProduceResponse::default().with_base_offset(5);
            if version >= 8 {
                partition = partition.with_error_message(Some(StrBytes::from_static_str("no")));
            }
            let topic = TopicProduceResponse::default().with_partition_responses(vec![partition]);
            let mut response = ProduceResponse::default().with_responses(vec![topic]);
            if version >= 10 {
                let endpoint = NodeEndpoint::default().with_host(StrBytes::from_static_str("h")).with_port(3);
                response = response.with_node_endpoints(vec![endpoint]);
            }
            let plain = frame(ApiKey::Produce, version, &response);
            let expected = frame(ApiKey::Produce, version, &response.with_throttle_time_ms(900));
            assert_eq!(joined(&put(ApiKey::Produce, version, vec![plain], 900)), expected, "{version}");
        }
    }
}
