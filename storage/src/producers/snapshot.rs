//! Producers as of an offset, in the format of Kafka's `.snapshot` files:
//!
//! ```text
//! version i16 = 1, crc u32 (CRC-32C of all that follows), count i32, then count times:
//! producer id i64, epoch i16, last sequence i32, last offset i64, offset delta i32, timestamp i64,
//! coordinator epoch i32, first offset of the open transaction i64 (-1: none)
//! ```
//!
//! Kafka writes one entry per producer, its last batch. We write up to five, oldest first, so that a retry
//! is known again after a restart; Kafka's readers keep the last of them, which is what they would have
//! written.

use felix_protocol::ids::Offset;
use felix_protocol::time::WallTime;

use super::{Producer, Producers, REMEMBERED, Remembered};

const VERSION: i16 = 1;
/// Where what the CRC covers begins.
const CRC_FROM: usize = 6;
const ENTRY: usize = 46;

/// The content of a snapshot file.
pub(crate) fn encode(producers: &Producers) -> Vec<u8> {
    let mut entries = Vec::new();
    let mut count: i32 = 0;
    for (id, producer) in producers.iter() {
        let mut put = |batch: Option<&Remembered>, timestamp: i64| {
            entries.extend_from_slice(&id.to_be_bytes());
            entries.extend_from_slice(&producer.epoch.to_be_bytes());
            entries.extend_from_slice(&batch.map_or(-1, |batch| batch.last_sequence).to_be_bytes());
            entries.extend_from_slice(&batch.map_or(-1, |batch| batch.last_offset).to_be_bytes());
            entries.extend_from_slice(&batch.map_or(0, |batch| batch.offset_delta).to_be_bytes());
            entries.extend_from_slice(&timestamp.to_be_bytes());
            entries.extend_from_slice(&producer.coordinator_epoch.to_be_bytes());
            entries.extend_from_slice(&producer.transaction_start.unwrap_or(-1).to_be_bytes());
            count += 1;
        };
        let mut batches = producer.batches.iter().flatten().peekable();
        if batches.peek().is_none() {
            put(None, producer.last_timestamp);
        }
        while let Some(batch) = batches.next() {
            // A marker may be younger than the last batch.
            let timestamp = if batches.peek().is_some() { batch.timestamp } else { producer.last_timestamp };
            put(Some(batch), timestamp);
        }
    }
    let mut body = count.to_be_bytes().to_vec();
    body.append(&mut entries);
    let mut file = VERSION.to_be_bytes().to_vec();
    file.extend_from_slice(&crc32c::crc32c(&body).to_be_bytes());
    file.append(&mut body);
    file
}

/// What one entry says.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(crate) struct Entry {
    pub producer_id: i64,
    pub epoch: i16,
    pub batch: Option<Remembered>,
    pub timestamp: i64,
    pub coordinator_epoch: i32,
    pub transaction_start: Option<Offset>,
}

/// The entries of a snapshot file, or what is wrong with it.
pub(crate) fn entries(file: &[u8]) -> Result<Vec<Entry>, &'static str> {
    let version: [u8; 2] = file.get(..2).and_then(|bytes| bytes.try_into().ok()).ok_or("too short")?;
    if i16::from_be_bytes(version) != VERSION {
        return Err("unknown version");
    }
    let crc: [u8; 4] = file.get(2..CRC_FROM).and_then(|bytes| bytes.try_into().ok()).ok_or("too short")?;
    let body = &file[CRC_FROM..];
    if crc32c::crc32c(body) != u32::from_be_bytes(crc) {
        return Err("wrong checksum");
    }
    let (count, body) = body.split_first_chunk::<4>().ok_or("too short")?;
    let count = usize::try_from(i32::from_be_bytes(*count)).map_err(|_| "negative count")?;
    if body.len() != count * ENTRY {
        return Err("length does not fit the count");
    }
    Ok(body.chunks_exact(ENTRY).map(entry).collect())
}

fn entry(bytes: &[u8]) -> Entry {
    fn take<const N: usize>(bytes: &[u8], at: usize) -> [u8; N] {
        let mut out = [0; N];
        out.copy_from_slice(&bytes[at..at + N]);
        out
    }
    let last_offset = i64::from_be_bytes(take(bytes, 14));
    let timestamp = i64::from_be_bytes(take(bytes, 26));
    let start = i64::from_be_bytes(take(bytes, 38));
    Entry {
        producer_id: i64::from_be_bytes(take(bytes, 0)),
        epoch: i16::from_be_bytes(take(bytes, 8)),
        batch: (last_offset >= 0).then(|| Remembered {
            last_sequence: i32::from_be_bytes(take(bytes, 10)),
            last_offset,
            offset_delta: i32::from_be_bytes(take(bytes, 22)),
            timestamp,
        }),
        timestamp,
        coordinator_epoch: i32::from_be_bytes(take(bytes, 34)),
        transaction_start: (start >= 0).then_some(start),
    }
}

/// The producers in a snapshot file, or what is wrong with it. When a producer was heard of is known only by
/// its records' timestamps, which may claim anything: none is taken for idle longer than half its time.
pub(crate) fn decode(file: &[u8], now: WallTime, expiry_ms: i64) -> Result<Producers, &'static str> {
    let mut producers = Producers::default();
    for entry in entries(file)? {
        let seen = WallTime(entry.timestamp.clamp(now.0.saturating_sub(expiry_ms / 2).min(now.0), now.0));
        let known = producers.get_mut(entry.producer_id);
        let mut producer = match known {
            Some(known) if known.epoch == entry.epoch => known.clone(),
            Some(_) | None => Producer {
                epoch: entry.epoch,
                batches: [None; REMEMBERED],
                coordinator_epoch: -1,
                transaction_start: None,
                last_timestamp: -1,
                seen,
            },
        };
        producer.coordinator_epoch = entry.coordinator_epoch;
        producer.transaction_start = entry.transaction_start;
        producer.last_timestamp = entry.timestamp;
        producer.seen = seen;
        if let Some(batch) = entry.batch {
            producer.remember(batch);
        }
        producers.insert(entry.producer_id, producer);
    }
    Ok(producers)
}

#[cfg(test)]
mod tests {
    use super::*;

    fn some() -> Producers {
        let mut producers = Producers::default();
        for id in [3, 9] {
            let mut producer = Producer {
                epoch: 2,
                batches: [None; REMEMBERED],
                coordinator_epoch: 4,
                transaction_start: (id == 9).then_some(55),
                last_timestamp: 900,
                seen: WallTime(900),
            };
            for at in 0..if id == 3 { 5 } else { 0 } {
                producer.remember(Remembered {
                    last_sequence: at * 10 + 9,
                    last_offset: 100 + i64::from(at),
                    offset_delta: 9,
                    timestamp: 896 + i64::from(at),
                });
            }
            producers.insert(id, producer);
        }
        producers
    }

    #[test]
    fn a_snapshot_reads_back_with_all_five_batches() {
        let file = encode(&some());
        assert_eq!(decode(&file, WallTime(1000), 1000), Ok(some()));
        assert_eq!(decode(&encode(&Producers::default()), WallTime(0), 1000), Ok(Producers::default()));
    }

    #[test]
    fn a_damaged_snapshot_is_refused() {
        let file = encode(&some());
        for cut in 0..file.len() {
            assert!(entries(&file[..cut]).is_err());
        }
        for at in 0..file.len() {
            let mut wrong = file.clone();
            wrong[at] ^= 0x40;
            assert!(entries(&wrong).is_err(), "byte {at}");
        }
    }

    #[test]
    fn claims_about_time_neither_forget_nor_keep_for_ever() {
        let file = encode(&some());
        let late = decode(&file, WallTime(1_000_000), 1000).unwrap();
        let mut kept = late.clone();
        kept.expire(WallTime(1_000_499), 1000);
        assert_eq!(kept, late, "old timestamps after a restart");
        let early = decode(&file, WallTime(10), 1000).unwrap();
        let mut gone = early.clone();
        gone.expire(WallTime(1010), 1000);
        assert_eq!(gone.len(), 1, "timestamps of the future; the open transaction stays");
    }
}
