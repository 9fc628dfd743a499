//! The guard against the message crate: what one makes the other must read, and lies must not pass.

use std::panic::{AssertUnwindSafe, catch_unwind};

use bytes::{Bytes, BytesMut};
use proptest::prelude::*;

use super::*;
use crate::frame::RequestBody;
use crate::frame::layout::sample::{Lie, Sample};
use crate::messages::*;

include!("../../../fuzz/requests.rs");

/// Decodes with the crate, to the last byte, and encodes again.
fn through_crate(api: ApiKey, version: i16, body: &[u8]) -> Result<Bytes, String> {
    fn through<T: ApiRequest>(api: ApiKey, version: i16, body: &[u8]) -> Result<Bytes, String> {
        assert_eq!(T::KEY, api as i16);
        let layout = request_layout(api, version);
        let mut rest = Bytes::copy_from_slice(body);
        let message = T::decode(&mut rest, layout).map_err(|error| error.to_string())?;
        if !rest.is_empty() {
            return Err(format!("{} bytes are left", rest.len()));
        }
        let mut again = BytesMut::new();
        message.encode(&mut again, layout).map_err(|error| error.to_string())?;
        Ok(again.freeze())
    }
    macro_rules! dispatch {
        ($($name:ident: $request:ident,)*) => {
            match api {
                $(ApiKey::$name => through::<$request>(api, version, body),)*
                _ => Err("no such request".into()),
            }
        };
    }
    let read_by_hand = |rest: &mut Bytes| match (api, version) {
        (ApiKey::OffsetCommit, 10) => Some(offsets::OffsetCommit::take(rest, version).map(|_| ())),
        (ApiKey::OffsetFetch, 10) => Some(offsets::OffsetFetch::take(rest, version).map(|_| ())),
        _ => None,
    };
    let mut rest = Bytes::copy_from_slice(body);
    match read_by_hand(&mut rest) {
        // Not written by anything here: that it is read to the last byte must do.
        Some(Ok(())) if rest.is_empty() => Ok(Bytes::copy_from_slice(body)),
        Some(Ok(())) => Err(format!("{} bytes are left", rest.len())),
        Some(Err(error)) => Err(error),
        None => requests!(dispatch),
    }
}

/// Calls `visit` for every API in every version.
fn every_version(mut visit: impl FnMut(&'static Layout, i16)) {
    for layout in layout::all() {
        for version in layout.oldest..=layout.newest {
            visit(layout, version);
        }
    }
}

#[test]
fn the_tables_cover_the_apis_that_can_be_served() {
    let keys: Vec<i16> = (0..=3)
        .chain(8..=51)
        .chain([55, 57, 60, 61, 64, 65, 66, 68, 69, 71, 72])
        .chain(74..=81)
        .chain(90..=92)
        .collect();
    for key in &keys {
        assert!(versions(ApiKey::try_from(*key).unwrap()).is_some(), "{key}");
    }
    assert_eq!(layout::all().count(), keys.len());
    assert_eq!(versions(ApiKey::Vote), None);
}

#[test]
fn versions_and_headers_agree_with_the_crate() {
    fn compare<T: ApiRequest>(api: ApiKey) {
        let layout = layout::find(api).unwrap();
        let (request, response) = (T::VERSIONS, <T::Response as Message>::VERSIONS);
        assert_eq!(layout.oldest, request.min.max(response.min), "{api:?}");
        // Newer where the layout is known here, older where Kafka does not serve it.
        let known_here = [
            (ApiKey::ListOffsets, 11),
            (ApiKey::DescribeLogDirs, 5),
            (ApiKey::InitProducerId, 5),
            (ApiKey::OffsetCommit, 10),
            (ApiKey::OffsetFetch, 10),
        ];
        let known = known_here.into_iter().find(|(known, _)| *known == api);
        let newest = known.map_or(request.max.min(response.max), |(_, newest)| newest);
        assert_eq!(layout.newest, newest, "{api:?}");
        for version in layout.oldest..=layout.newest {
            assert_eq!(
                request_header_version(api, version) >= 2,
                version >= layout.flexible,
                "{api:?} {version}"
            );
        }
        if api != ApiKey::ApiVersions {
            for version in layout.oldest..=layout.newest {
                let flexible = response_header_version(api, version) >= 1;
                assert_eq!(flexible, version >= layout.flexible, "{api:?} {version}");
            }
        }
    }
    macro_rules! all {
        ($($name:ident: $request:ident,)*) => { $(compare::<$request>(ApiKey::$name);)* };
    }
    requests!(all);
}

#[test]
fn default_requests_of_the_crate_pass() {
    fn pass<T: ApiRequest + Default>(api: ApiKey) {
        let layout = layout::find(api).unwrap();
        for version in layout.oldest..=layout.newest {
            if request_layout(api, version) > T::VERSIONS.max {
                continue;
            }
            let mut body = BytesMut::new();
            T::default().encode(&mut body, request_layout(api, version)).unwrap();
            let weight =
                check(api, version, &body).unwrap_or_else(|error| panic!("{api:?} {version}: {error}"));
            assert_eq!((weight.elements, weight.tags), (0, 0), "{api:?} {version}");
        }
    }
    macro_rules! all {
        ($($name:ident: $request:ident,)*) => { $(pass::<$request>(ApiKey::$name);)* };
    }
    requests!(all);
}

#[test]
fn full_requests_pass_and_the_crate_reads_the_same() {
    let samples = [
        Sample { elements: 0, ..Sample::default() },
        Sample { elements: 1, ..Sample::default() },
        Sample { elements: 3, tags: true, ..Sample::default() },
        Sample { elements: 2, nulls: true, tags: true, ..Sample::default() },
    ];
    every_version(|layout, version| {
        for sample in &samples {
            let body = sample.make(layout, version).body;
            let weight = check(layout.api, version, &body);
            let weight =
                weight.unwrap_or_else(|error| panic!("{:?} {version} {sample:?}: {error}", layout.api));
            let again = through_crate(layout.api, version, &body)
                .unwrap_or_else(|error| panic!("{:?} {version} {sample:?}: {error}", layout.api));
            assert_eq!(again, body, "{:?} {version} {sample:?}", layout.api);
            if sample.tags && version >= layout.flexible {
                assert!(weight.tags > 0);
            }
        }
    });
}

#[test]
fn every_lie_about_a_length_is_refused() {
    every_version(|layout, version| {
        let honest = Sample { elements: 2, tags: true, ..Sample::default() };
        let lengths = honest.make(layout, version).lengths;
        for at in 0..lengths {
            for lie in [Lie::Huge, Lie::Negative, Lie::Null] {
                let made = Sample { lie: Some((at, lie)), ..honest.clone() }.make(layout, version);
                let verdict = check(layout.api, version, &made.body);
                // A null that is allowed shortens the field: something behind it does not fit, or is left over.
                let fits = verdict.as_ref().is_ok_and(|weight| weight.beyond == 0);
                assert!(!fits, "{:?} {version} length {at} {lie:?}", layout.api);
                if matches!(lie, Lie::Null) && !made.lied_nullable {
                    assert!(
                        matches!(verdict, Err(Refusal::Null(_) | Refusal::TagSize(_))),
                        "{:?} {version} length {at}: {verdict:?}",
                        layout.api
                    );
                }
            }
        }
    });
}

#[test]
fn cut_bodies_are_refused_and_prolonged_ones_are_not() {
    every_version(|layout, version| {
        let made = Sample { elements: 2, tags: true, ..Sample::default() }.make(layout, version);
        for end in 0..made.body.len() {
            assert!(check(layout.api, version, &made.body[..end]).is_err(), "{:?} {version}", layout.api);
        }
        let mut longer = made.body;
        longer.push(0);
        assert_eq!(check(layout.api, version, &longer).unwrap().beyond, 1, "{:?}", layout.api);
    });
}

#[test]
fn all_topics_as_librdkafka_asks_for_them() {
    // Metadata v13 of librdkafka 2.16: no topics (null), two flags and no tags, and three bytes left over.
    let weight = check(ApiKey::Metadata, 13, &[0, 0, 0, 0, 0, 0, 0]).unwrap();
    assert_eq!(weight.beyond, 3);
}

#[test]
fn the_body_that_ended_the_process() {
    // A count of 2^31-1 and nothing behind it.
    let body = i32::MAX.to_be_bytes();
    let refusal = check(ApiKey::Metadata, 0, &body).unwrap_err();
    assert_eq!(refusal, Refusal::Count { field: "topics", count: i32::MAX as u32, rest: 0 });
}

#[test]
fn elements_and_tags_are_limited_over_the_whole_frame() {
    // DescribeGroups v0: an array of strings, each two bytes when empty.
    let mut body = (MAX_ELEMENTS as i32).to_be_bytes().to_vec();
    body.resize(4 + 2 * MAX_ELEMENTS, 0);
    assert_eq!(check(ApiKey::DescribeGroups, 0, &body).unwrap().elements, MAX_ELEMENTS);
    let mut body = (MAX_ELEMENTS as i32 + 1).to_be_bytes().to_vec();
    body.resize(4 + 2 * (MAX_ELEMENTS + 1), 0);
    assert_eq!(check(ApiKey::DescribeGroups, 0, &body), Err(Refusal::Elements("groups")));

    // Heartbeat v4 with empty strings, and 10,001 empty tagged fields.
    let mut body = vec![1, 0, 0, 0, 0, 1, 0, 0x91, 0x4e];
    body.extend((0..10_001).flat_map(|_| [5, 0]));
    assert_eq!(check(ApiKey::Heartbeat, 4, &body), Err(Refusal::Tags));
}

#[test]
fn a_tagged_field_of_a_later_version_is_refused_as_kafka_does() {
    // Fetch v12, which knows tag 0 only; tag 1 (the replica's state) came with v15.
    let layout = layout::find(ApiKey::Fetch).unwrap();
    let mut body = Sample::default().make(layout, 12).body;
    assert_eq!(body.pop(), Some(0), "no tagged fields");
    let mut newer = body.clone();
    newer.extend([1, 1, 1, 0]);
    assert_eq!(check(ApiKey::Fetch, 12, &newer), Err(Refusal::TagVersion("replica_state")));
    body.extend([1, 9, 1, 0]);
    assert!(check(ApiKey::Fetch, 12, &body).is_ok(), "tag 9 is not known at all");
}

#[test]
fn text_that_is_not_utf8_is_refused() {
    let body = [0, 0, 0, 1, 0, 2, 0xff, 0xfe];
    assert_eq!(check(ApiKey::DescribeGroups, 0, &body), Err(Refusal::Text("groups")));
}

/// Whatever passes the guard must decode without panic. (That it then fits the announced memory is shown by
/// `tests/decode_memory.rs`, which owns its allocator.)
fn never_surprises(api: ApiKey, version: i16, body: &[u8]) {
    if let Ok(weight) = check(api, version, body) {
        let body = &body[..body.len() - weight.beyond];
        let outcome = catch_unwind(AssertUnwindSafe(|| through_crate(api, version, body)));
        let outcome = outcome.unwrap_or_else(|_| panic!("{api:?} {version} panics on {body:02x?}"));
        assert!(outcome.is_ok(), "{api:?} {version} {body:02x?}: {outcome:?}");
    }
}

proptest! {
    #[test]
    fn random_bytes_never_surprise(body in proptest::collection::vec(any::<u8>(), 0..200)) {
        every_version(|layout, version| never_surprises(layout.api, version, &body));
    }

    #[test]
    fn damaged_requests_never_surprise(
        which in any::<prop::sample::Index>(),
        (elements, nulls, tags) in (0usize..4, any::<bool>(), any::<bool>()),
        damage in proptest::collection::vec((any::<prop::sample::Index>(), any::<u8>()), 0..4),
    ) {
        let mut all = Vec::new();
        every_version(|layout, version| all.push((layout, version)));
        let (layout, version) = all[which.index(all.len())];
        let mut body = Sample { elements, nulls, tags, lie: None }.make(layout, version).body;
        for (at, byte) in damage {
            if !body.is_empty() {
                let at = at.index(body.len());
                body[at] = byte;
            }
        }
        never_surprises(layout.api, version, &body);
    }
}
