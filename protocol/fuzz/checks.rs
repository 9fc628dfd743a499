//! What must hold for any bytes that come from a socket. Called by `../tests/fuzz.rs` over a corpus and by the
//! cargo-fuzz targets.

use bytes::{Bytes, BytesMut};
use felix_protocol::batch::control::Marker;
use felix_protocol::batch::scan::{self, Batch, Batches};
use felix_protocol::batch::validate::{self, Rules, Storage, Timestamps, Validated};
use felix_protocol::batch::{
    self, BatchBuilder, BatchHeader, BatchRecords, CRC_FROM, CheckedBatch, Codec, HEADER_BYTES, Header,
    Limits,
};
use felix_protocol::frame::{self, CheckedRequest, Request, Split, guard};
use felix_protocol::messages::offsets::{OffsetCommit, OffsetFetch};
use felix_protocol::messages::*;
use felix_protocol::peer::{self, Message, Received};
use felix_protocol::time::WallTime;

include!("requests.rs");

/// What one input may unpack to. Small, so that a bomb is met often.
const LIMITS: Limits = Limits { batch_bytes: 1 << 20, record_bytes: 256 << 10 };
const MAX_MESSAGE_BYTES: usize = 64 << 10;
const NOW: WallTime = WallTime(1_700_000_000_000);

/// A batch as a producer sends it, the first byte choosing what the topic asks for. The checksum is set right
/// in a second pass, as whoever means harm would do.
pub fn batch(input: &[u8]) {
    let Some((choice, sent)) = input.split_first() else { return };
    let rules = rules(*choice);
    validated(sent, &rules);
    let mut sealed = sent.to_vec();
    if seal(&mut sealed) {
        validated(&sealed, &rules);
    }
}

fn rules(choice: u8) -> Rules {
    let timestamps = if choice & 1 == 0 {
        Timestamps::Create { before_max_ms: i64::MAX, after_max_ms: 3_600_000 }
    } else {
        Timestamps::Append
    };
    let storage = match Codec::from_bits(i16::from(choice >> 2 & 7)) {
        Some(codec) => Storage::Packed { codec, level: codec.default_level() },
        None => Storage::AsProduced,
    };
    Rules {
        max_message_bytes: MAX_MESSAGE_BYTES,
        limits: LIMITS,
        keys: choice & 2 != 0,
        timestamps,
        storage,
        zstd: choice & 0x20 == 0,
    }
}

/// Gives a batch the length and checksum that its bytes have; false when it is too short for one.
pub fn seal(batch: &mut [u8]) -> bool {
    if batch.len() < HEADER_BYTES {
        return false;
    }
    let length = u32::try_from(batch.len() - 12).expect("inputs are small");
    batch[8..12].copy_from_slice(&length.to_be_bytes());
    batch[16] = 2;
    let crc = crc32c::crc32c(&batch[CRC_FROM..]);
    batch[17..21].copy_from_slice(&crc.to_be_bytes());
    true
}

/// What is accepted must be a sound batch with the very records that were sent, and acceptable again.
fn validated(sent: &[u8], rules: &Rules) {
    let sent = Bytes::copy_from_slice(sent);
    let Ok(accepted) = validate::validate(&sent, rules, NOW) else { return };
    let Validated { batch, appended_at, repacked } = &accepted;
    let header = batch.header();
    let checked = CheckedBatch::check(batch.bytes().clone()).expect("what is stored is whole");
    assert_eq!(checked.header(), header);
    assert_eq!(BatchHeader::parse(batch.bytes()).as_ref(), Ok(header));
    assert_eq!(header.base_offset, 0);
    assert_eq!(i64::from(header.last_offset_delta) + 1, i64::from(header.records));
    assert!(header.bytes <= MAX_MESSAGE_BYTES);
    assert_eq!(appended_at.is_some(), rules.timestamps == Timestamps::Append);
    assert_eq!(header.is_log_append_time(), appended_at.is_some());
    let sent_header = BatchHeader::parse(&sent).expect("it was accepted");
    let wanted = kept(&sent_header, &sent);
    let stored = kept(header, batch.bytes());
    assert_eq!(stored, wanted, "the records are those that were sent");
    // As in Apache Kafka, the greatest timestamp is never below "none" (-1), though those of records may be.
    let latest = stored.iter().map(|record| header.timestamp(record.timestamp_delta)).max();
    assert_eq!(Some(header.max_timestamp), latest.map(|latest| latest.max(-1)));
    if !repacked && header == &sent_header {
        assert_eq!(batch.bytes(), &sent, "what need not change is not changed");
    }
    if appended_at.is_none() {
        // The topic may store zstd although the request's version does not know it.
        let rules = Rules { zstd: true, ..*rules };
        let again = validate::validate(batch.bytes(), &rules, NOW).expect("accepted once, accepted again");
        assert_eq!(again.batch.bytes(), batch.bytes());
        assert!(!again.repacked);
    }
    rebuilt(header, &stored);
}

/// A record, to keep.
#[derive(Debug, PartialEq, Eq)]
struct Kept {
    offset_delta: i32,
    timestamp_delta: i64,
    key: Option<Vec<u8>>,
    value: Option<Vec<u8>>,
    headers: Vec<(Vec<u8>, Option<Vec<u8>>)>,
}

fn kept(header: &BatchHeader, batch: &[u8]) -> Vec<Kept> {
    let mut records = BatchRecords::new(header, batch, LIMITS).expect("it was accepted");
    let mut kept = Vec::new();
    while let Some(record) = records.next() {
        let record = record.expect("it was accepted");
        assert_eq!(record.headers.count(), record.headers.len());
        let headers = record.headers.map(|Header { key, value }| (key.to_vec(), value.map(<[u8]>::to_vec)));
        kept.push(Kept {
            offset_delta: record.offset_delta,
            timestamp_delta: record.timestamp_delta,
            key: record.key.map(<[u8]>::to_vec),
            value: record.value.map(<[u8]>::to_vec),
            headers: headers.collect(),
        });
    }
    kept
}

/// Written by our own builder, the records read the same.
fn rebuilt(header: &BatchHeader, wanted: &[Kept]) {
    let mut builder = BatchBuilder::new();
    for record in wanted {
        let headers = record.headers.iter().map(|(key, value)| Header { key, value: value.as_deref() });
        let (key, value) = (record.key.as_deref(), record.value.as_deref());
        let timestamp = header.base_timestamp.wrapping_add(record.timestamp_delta);
        builder.push_at(record.offset_delta, timestamp, key, value, headers);
    }
    let batch = builder.build().expect("it fitted before");
    let read = kept(batch.header(), batch.bytes());
    let first = header.base_timestamp.wrapping_add(wanted.first().map_or(0, |record| record.timestamp_delta));
    assert_eq!(batch.header().base_timestamp, first);
    assert_eq!(read.len(), wanted.len());
    for (read, wanted) in read.iter().zip(wanted) {
        let (was, is) = (
            header.base_timestamp.wrapping_add(wanted.timestamp_delta),
            first.wrapping_add(read.timestamp_delta),
        );
        assert_eq!(was, is);
        assert_eq!(
            (read.offset_delta, &read.key, &read.value),
            (wanted.offset_delta, &wanted.key, &wanted.value)
        );
        assert_eq!(read.headers, wanted.headers);
    }
}

/// Packed or plain records behind a header that says what it likes: the first byte is the codec and whether
/// the batch is a control batch, then come 4 bytes of count and the records. And the same bytes as a log's.
pub fn records(input: &[u8]) {
    stored(&Bytes::copy_from_slice(input));
    let Some((choice, rest)) = input.split_first() else { return };
    let Some((count, packed)) = rest.split_first_chunk::<4>() else { return };
    let mut batch = vec![0; HEADER_BYTES];
    batch[21] = 0;
    batch[22] = choice & 0x27;
    batch[57..61].copy_from_slice(count);
    batch.extend_from_slice(packed);
    assert!(seal(&mut batch));
    let header = BatchHeader::parse(&batch).expect("a header was made");
    let mut bytes = 0;
    if let Ok(mut records) = BatchRecords::new(&header, &batch, LIMITS) {
        let mut left = header.records;
        while let Some(record) = records.next() {
            left -= 1;
            assert!(left >= 0, "no more records than were announced");
            let Ok(record) = record else { break };
            if header.codec() != Some(Codec::None) {
                assert!(record.body.len() <= LIMITS.record_bytes);
            }
            bytes += record.body.len() as u64;
            assert_eq!(record.headers.count(), record.headers.len());
        }
    }
    assert!(bytes <= LIMITS.batch_bytes.max(batch.len() as u64));
    let _ = Marker::of(&header, &batch);
}

/// Bytes as they may stand in a log.
fn stored(bytes: &Bytes) {
    let mut behind = 0;
    for found in Batches::new(bytes.clone()) {
        let Ok(found) = found else { break };
        assert_eq!(found.bytes.len(), found.header.bytes);
        behind += found.bytes.len();
        looked_through(&found);
    }
    assert!(behind <= bytes.len());
}

fn looked_through(found: &Batch) {
    let header = &found.header;
    // Whoever scans a log has checked the checksum and that offsets can be computed with.
    let computable = header.base_offset >= 0
        && header.base_offset < i64::MAX - i64::from(i32::MAX)
        && header.last_offset_delta >= 0;
    if !computable || batch::verify_crc(header, &found.bytes).is_err() {
        return;
    }
    let latest = scan::latest(found);
    if let Ok(Some(found_latest)) = latest {
        let first = scan::first_since(found, header.base_offset, found_latest.timestamp);
        if header.max_timestamp >= found_latest.timestamp && header.last_offset() >= header.base_offset {
            let first = first.expect("it was read already").expect("the latest is there");
            assert!(first.timestamp >= found_latest.timestamp);
        }
    }
}

/// A frame: header, guard, decoder, and back.
pub fn frame(input: &[u8]) {
    split(input);
    let Ok(request) = Request::parse(Bytes::copy_from_slice(input)) else { return };
    let (api, version) = (request.header.api, request.header.version);
    let Ok(checked) = request.check() else { return };
    let weight = checked.weight();
    assert!(weight.elements <= guard::MAX_ELEMENTS && weight.tags <= guard::MAX_TAGS);
    assert!(checked.body().len() <= input.len());
    decoded(api, version, &checked);
}

/// However the bytes come, frames are cut off whole, within the limit, and none is invented.
fn split(input: &[u8]) {
    const MAX: usize = 1 << 20;
    let mut buffer = BytesMut::from(input);
    let mut taken = 0;
    loop {
        match frame::split(&mut buffer, MAX) {
            Ok(Split::Frame(found)) => {
                assert!(found.len() <= MAX);
                taken += frame::LENGTH_BYTES + found.len();
            }
            Ok(Split::Missing(missing)) => {
                assert!(missing > 0 && missing <= MAX);
                break;
            }
            Err(_) => break,
        }
    }
    assert_eq!(taken + buffer.len(), input.len());
}

/// The version under which the message crate knows a request's layout.
fn layout(api: ApiKey, version: i16) -> i16 {
    match (api, version) {
        (ApiKey::ListOffsets, 11) => 10,
        (ApiKey::DescribeLogDirs, 5) => 4,
        (_, version) => version,
    }
}

fn decoded(api: ApiKey, version: i16, checked: &CheckedRequest) {
    fn there_and_back<T: ApiRequest>(version: i16, checked: &CheckedRequest) {
        let message: T = checked.decode().expect("what the guard lets through can be decoded");
        // The message crate cannot always write unknown tagged fields back. Nobody here asks it to: brokers write
        // no requests.
        if checked.weight().tags > 0 {
            return;
        }
        let mut once = BytesMut::new();
        message.encode(&mut once, version).expect("what was decoded can be encoded");
        let once = once.freeze();
        let mut rest = once.clone();
        let again = T::decode(&mut rest, version).expect("what was encoded can be decoded");
        assert!(rest.is_empty());
        let mut twice = BytesMut::new();
        again.encode(&mut twice, version).expect("what was decoded can be encoded");
        assert_eq!(once, twice, "decoding and encoding lose nothing");
    }
    match (api, version) {
        // These two are read by hand and never written by a broker.
        (ApiKey::OffsetCommit, 10) => {
            drop(checked.decode::<OffsetCommit>().expect("the guard let it through"))
        }
        (ApiKey::OffsetFetch, 10) => drop(checked.decode::<OffsetFetch>().expect("the guard let it through")),
        _ => {
            let layout = layout(api, version);
            macro_rules! dispatch {
                ($($name:ident: $request:ident,)*) => {
                    match api {
                        $(ApiKey::$name => there_and_back::<$request>(layout, checked),)*
                        _ => panic!("the guard let {api:?} through, which is not in the list"),
                    }
                };
            }
            requests!(dispatch);
        }
    }
}

/// A frame between brokers: what can be read can be written, and reads the same again.
pub fn peer(input: &[u8]) {
    let frame = Bytes::copy_from_slice(input);
    let Ok((correlation, received)) = peer::decode(frame.clone()) else { return };
    let Received::Message(message) = received else { return };
    if let Message::Ship(ship) = &message {
        let inside = frame.as_ptr_range();
        for part in &ship.parts {
            assert!(part.next >= part.from);
            assert!(part.records.iter().all(|records| inside.contains(&records.as_ptr())), "not copied");
        }
    }
    let pieces = peer::encode(correlation, &message).expect("what was read can be written");
    let mut buffer = BytesMut::new();
    for piece in &pieces {
        buffer.extend_from_slice(piece);
    }
    match frame::split(&mut buffer, 1 << 20) {
        Ok(Split::Frame(again)) => {
            assert_eq!(peer::decode(again), Ok((correlation, Received::Message(message))));
        }
        other => panic!("{other:?}"),
    }
}
