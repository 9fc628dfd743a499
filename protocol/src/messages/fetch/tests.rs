use proptest::prelude::*;

use super::*;
use crate::messages::fetch_response::{
    AbortedTransaction, EpochEndOffset, FetchableTopicResponse, LeaderIdAndEpoch, PartitionData,
};
use crate::messages::{BrokerId, FetchResponse, ProducerId, StrBytes};

/// The same reply as the crate has it, without what `version` does not have.
fn by_crate(reply: &FetchReply, version: i16) -> FetchResponse {
    let since = |first: i16| version >= first;
    let mut response = FetchResponse::default().with_throttle_time_ms(reply.throttle_time_ms);
    if since(7) {
        response = response.with_error_code(reply.error_code).with_session_id(reply.session_id);
    }
    if since(16) {
        response = response.with_node_endpoints(reply.node_endpoints.clone());
    }
    let topics = reply.topics.iter().map(|topic| {
        let partitions = topic.partitions.iter().map(|partition| {
            let aborted = partition.aborted.as_ref().map(|aborted| {
                let one = |(producer, first): &(i64, i64)| {
                    AbortedTransaction::default()
                        .with_producer_id(ProducerId(*producer))
                        .with_first_offset(*first)
                };
                aborted.iter().map(one).collect()
            });
            let mut data = PartitionData::default()
                .with_partition_index(partition.index)
                .with_error_code(partition.error_code)
                .with_high_watermark(partition.high_watermark)
                .with_last_stable_offset(partition.last_stable_offset)
                .with_log_start_offset(partition.log_start_offset)
                .with_aborted_transactions(aborted)
                .with_records(Some(partition.records.concat().into()));
            if since(11) {
                data = data.with_preferred_read_replica(BrokerId(partition.preferred_read_replica));
            }
            if let (true, Some((epoch, end))) = (since(12), partition.diverging_epoch) {
                let value = EpochEndOffset::default().with_epoch(epoch).with_end_offset(end);
                data = data.with_diverging_epoch(value);
            }
            if let (true, Some((leader, epoch))) = (since(12), partition.current_leader) {
                let value =
                    LeaderIdAndEpoch::default().with_leader_id(BrokerId(leader)).with_leader_epoch(epoch);
                data = data.with_current_leader(value);
            }
            data
        });
        FetchableTopicResponse::default()
            .with_topic(topic.topic.clone())
            .with_topic_id(topic.topic_id)
            .with_partitions(partitions.collect())
    });
    response.with_responses(topics.collect())
}

fn some_partition() -> impl Strategy<Value = FetchedPartition> {
    let slices = proptest::collection::vec(proptest::collection::vec(any::<u8>(), 0..300), 0..4);
    let aborted = proptest::option::of(proptest::collection::vec((any::<i64>(), any::<i64>()), 0..4));
    let tags = (proptest::option::of((0i32..9, 0i64..99)), proptest::option::of((0i32..9, 0i32..99)));
    (any::<(i32, i16, i64, i64, i64, i32)>(), slices, aborted, tags).prop_map(
        |(numbers, slices, aborted, (diverging_epoch, current_leader))| FetchedPartition {
            index: numbers.0,
            error_code: numbers.1,
            high_watermark: numbers.2,
            last_stable_offset: numbers.3,
            log_start_offset: numbers.4,
            diverging_epoch,
            current_leader,
            aborted,
            preferred_read_replica: numbers.5,
            records: slices.into_iter().map(Bytes::from).collect(),
        },
    )
}

fn some_reply() -> impl Strategy<Value = FetchReply> {
    let topic = ("[a-z]{0,200}", any::<u128>(), proptest::collection::vec(some_partition(), 0..4)).prop_map(
        |(name, id, partitions)| FetchedTopic {
            topic: TopicName(StrBytes::from_string(name)),
            topic_id: Uuid::from_u128(id),
            partitions,
        },
    );
    let node = (any::<(i32, i32)>(), "[a-z.]{0,20}", proptest::option::of("[a-z]{0,5}")).prop_map(
        |((id, port), host, rack)| {
            NodeEndpoint::default()
                .with_node_id(BrokerId(id))
                .with_port(port)
                .with_host(StrBytes::from_string(host))
                .with_rack(rack.map(StrBytes::from_string))
        },
    );
    let topics = proptest::collection::vec(topic, 0..4);
    (any::<(i32, i16, i32)>(), topics, proptest::collection::vec(node, 0..3)).prop_map(
        |((throttle_time_ms, error_code, session_id), topics, node_endpoints)| FetchReply {
            throttle_time_ms,
            error_code,
            session_id,
            topics,
            node_endpoints,
        },
    )
}

proptest! {
    #[test]
    fn every_version_is_what_the_crate_encodes(reply in some_reply(), correlation_id: i32) {
        for version in 4..=18 {
            let pieces = reply.encode(version, correlation_id).unwrap();
            let expected = frame::encode_response(
                ApiKey::Fetch, version, correlation_id, &by_crate(&reply, version)
            );
            prop_assert_eq!(pieces.concat(), expected.unwrap(), "version {}", version);
        }
    }
}

#[test]
fn records_are_passed_on_not_copied() {
    let stored = Bytes::from(vec![7; 1000]);
    let partition = FetchedPartition {
        records: vec![stored.slice(0..600), stored.slice(600..)],
        ..FetchedPartition::default()
    };
    assert_eq!(partition.record_bytes(), 1000);
    let topic = FetchedTopic { partitions: vec![partition], ..FetchedTopic::default() };
    let reply = FetchReply { topics: vec![topic], ..FetchReply::default() };
    let pieces = reply.encode(13, 1).unwrap();
    assert_eq!(pieces.len(), 4);
    assert_eq!(pieces[1].as_ptr(), stored.as_ptr());
    assert_eq!(pieces[2].as_ptr(), stored[600..].as_ptr());
}
