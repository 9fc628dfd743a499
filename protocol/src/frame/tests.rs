use proptest::prelude::*;

use super::*;
use crate::messages::*;

/// A request frame, without its length.
fn framed<T: ApiRequest>(version: i16, message: &T) -> Bytes {
    let api = ApiKey::try_from(T::KEY).unwrap();
    let mut frame = BytesMut::new();
    frame.put_i16(T::KEY);
    frame.put_i16(version);
    frame.put_i32(42);
    frame.put_i16(2);
    frame.put_slice(b"me");
    if request_header_version(api, version) >= 2 {
        // One unknown tagged field.
        frame.put_slice(&[1, 9, 2, 0xaa, 0xbb]);
    }
    message.encode(&mut frame, version).unwrap();
    frame.freeze()
}

#[test]
fn frames_come_whole_and_uncopied() {
    let mut buffer = BytesMut::from(&[0, 0, 0][..]);
    assert_eq!(split(&mut buffer, 100), Ok(Split::Missing(1)));
    buffer.put_slice(&[3, b'a']);
    assert_eq!(split(&mut buffer, 100), Ok(Split::Missing(2)));
    buffer.put_slice(b"bcnext");
    let at = buffer[4..].as_ptr();
    let Ok(Split::Frame(frame)) = split(&mut buffer, 100) else { panic!() };
    assert_eq!((&frame[..], frame.as_ptr()), (&b"abc"[..], at));
    assert_eq!(&buffer[..], b"next");
}

#[test]
fn lengths_beyond_the_limit_are_refused_before_they_are_waited_for() {
    for (length, max) in [(-1, 100), (i32::MIN, 100), (101, 100), (i32::MAX, 100 << 20)] {
        let mut buffer = BytesMut::from(&length.to_be_bytes()[..]);
        assert_eq!(split(&mut buffer, max), Err(FrameError::Length { length, max }));
    }
    assert_eq!(frame_length(100i32.to_be_bytes(), 100), Ok(100));
}

#[test]
fn headers_of_both_versions() {
    for version in [3, 12] {
        let request = Request::parse(framed(version, &MetadataRequest::default())).unwrap();
        let header = &request.header;
        assert_eq!((header.api, header.version, header.correlation_id), (ApiKey::Metadata, version, 42));
        assert_eq!(header.client_id.as_deref(), Some("me"));
        let message: MetadataRequest = request.check().unwrap().decode().unwrap();
        assert_eq!(message, MetadataRequest::default());
    }
}

#[test]
fn headers_that_are_none() {
    let frame =
        |bytes: &'static [u8]| Request::parse(Bytes::from_static(bytes)).map(|request| request.header);
    assert_eq!(frame(&[0, 3, 0, 0]), Err(FrameError::Short(4)));
    assert_eq!(frame(&[0, 3, 0, 0, 0, 0, 0, 1]), Err(FrameError::Short(8)));
    assert_eq!(frame(&[0, 3, 0, 0, 0, 0, 0, 1, 0, 5, b'a']), Err(FrameError::Short(11)));
    let negative = FrameError::Header("the client id has a negative length");
    assert_eq!(frame(&[0, 3, 0, 0, 0, 0, 0, 1, 0xff, 0xfe]), Err(negative));
    let unknown = |key, version| Err(FrameError::UnknownApi { key, version });
    assert_eq!(frame(&[0x7f, 0, 0, 9, 0, 0, 0, 1, 0, 0]), unknown(0x7f00, 9));
    assert_eq!(frame(&[0xff, 0xff, 0, 0, 0, 0, 0, 1, 0, 0]), unknown(-1, 0));
    // Version 12 of Metadata: tagged fields that are not there.
    let tags = FrameError::Header("bad tagged fields");
    assert_eq!(frame(&[0, 3, 0, 12, 0, 0, 0, 1, 0xff, 0xff]), Err(tags));
    // No client id, and one that is not UTF-8.
    assert_eq!(frame(&[0, 3, 0, 0, 0, 0, 0, 1, 0xff, 0xff]).unwrap().client_id, None);
    let odd = frame(&[0, 3, 0, 0, 0, 0, 0, 1, 0, 1, 0xff]).unwrap().client_id;
    assert_eq!(odd.as_deref(), Some("\u{fffd}"));
}

#[test]
fn an_api_versions_request_from_the_future_is_parsed_and_not_decoded() {
    // Version 90, with a header like version 3 and a body that nobody knows.
    let frame = Bytes::from_static(&[0, 18, 0, 90, 0, 0, 0, 7, 0xff, 0xff, 0, 1, 2, 3]);
    let request = Request::parse(frame).unwrap();
    assert_eq!((request.header.version, request.header.correlation_id), (90, 7));
    let refusal = request.check().unwrap_err();
    assert_eq!(
        refusal,
        FrameError::Body { api: ApiKey::ApiVersions, version: 90, refusal: Refusal::Version }
    );
}

#[test]
fn produced_records_are_slices_of_the_frame() {
    let records = Bytes::from(vec![1; 500]);
    for version in [3, 9, 13] {
        let partition = produce_request::PartitionProduceData::default().with_records(Some(records.clone()));
        let topic = produce_request::TopicProduceData::default().with_partition_data(vec![partition]);
        let frame = framed(version, &ProduceRequest::default().with_topic_data(vec![topic]));
        let within = frame.as_ptr_range();
        let request = Request::parse(frame.clone()).unwrap().check().unwrap();
        let message: ProduceRequest = request.decode().unwrap();
        let decoded = message.topic_data[0].partition_data[0].records.as_ref().unwrap();
        assert_eq!(decoded, &records);
        assert!(within.contains(&decoded.as_ptr()), "version {version}");
    }
}

#[test]
fn newer_versions_with_old_layouts_are_read_and_written() {
    let list = ListOffsetsRequest::default().with_timeout_ms(5);
    let mut frame = framed(10, &list).to_vec();
    frame[3] = 11;
    let request = Request::parse(frame.into()).unwrap().check().unwrap();
    assert_eq!(request.decode::<ListOffsetsRequest>().unwrap(), list);
    let response = ListOffsetsResponse::default();
    let ten = encode_response(ApiKey::ListOffsets, 10, 1, &response).unwrap();
    assert_eq!(encode_response(ApiKey::ListOffsets, 11, 1, &response).unwrap(), ten);
    assert!(encode_response(ApiKey::ListOffsets, 12, 1, &response).is_err());

    let mut frame = framed(4, &DescribeLogDirsRequest::default()).to_vec();
    frame[3] = 5;
    let request = Request::parse(frame.into()).unwrap().check().unwrap();
    assert!(request.decode::<DescribeLogDirsRequest>().is_ok());
}

#[test]
fn a_request_is_decoded_as_what_it_is() {
    let request = Request::parse(framed(1, &HeartbeatRequest::default())).unwrap().check().unwrap();
    assert!(matches!(request.decode::<LeaveGroupRequest>(), Err(FrameError::Decode { .. })));
}

#[test]
fn responses_carry_length_correlation_id_and_tags() {
    let response = HeartbeatResponse::default().with_error_code(27);
    let old = encode_response(ApiKey::Heartbeat, 0, 9, &response).unwrap();
    assert_eq!(old[..], [0, 0, 0, 6, 0, 0, 0, 9, 0, 27]);
    let new = encode_response(ApiKey::Heartbeat, 4, 9, &response).unwrap();
    assert_eq!(new[..], [0, 0, 0, 12, 0, 0, 0, 9, 0, 0, 0, 0, 0, 0, 27, 0]);
}

#[test]
fn what_a_version_cannot_carry_is_an_error_of_ours() {
    let response = FetchResponse::default().with_session_id(5);
    let error = encode_response(ApiKey::Fetch, 4, 1, &response).unwrap_err();
    assert!(matches!(error, FrameError::Encode { api: ApiKey::Fetch, version: 4, .. }));
}

proptest! {
    #[test]
    fn random_frames_never_panic(bytes in proptest::collection::vec(any::<u8>(), 0..100), key in 0i16..95) {
        let mut frame = key.to_be_bytes().to_vec();
        frame.extend(&bytes);
        if let Ok(request) = Request::parse(frame.into()) {
            let _ = request.check();
        }
    }
}
