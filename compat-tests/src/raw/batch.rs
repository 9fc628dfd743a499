//! Record batches (magic 2), built field by field so that a case can get any of them wrong, and read back strictly.

#![expect(clippy::cast_possible_truncation, reason = "batches of cases are small")]

use std::io::{Read, Write};

use anyhow::{Context, Result, bail};

use super::wire::{R, W};

/// Bytes in front of the part that the checksum covers.
const CRC_AT: usize = 17;

/// A record.
#[derive(Debug, Clone, PartialEq, Eq)]
pub struct Record {
    /// Offset delta in the batch.
    pub delta: i64,
    /// Absolute timestamp.
    pub timestamp: i64,
    /// Key.
    pub key: Option<Vec<u8>>,
    /// Value.
    pub value: Option<Vec<u8>>,
    /// Headers, in order.
    pub headers: Vec<(String, Option<Vec<u8>>)>,
}

/// A batch, as a client sends it or a broker returns it.
#[derive(Debug, Clone)]
pub struct Batch {
    /// Offset of the first record.
    pub base_offset: i64,
    /// Leader epoch.
    pub leader_epoch: i32,
    /// Magic byte.
    pub magic: i8,
    /// Attribute bits.
    pub attributes: i16,
    /// Delta of the last offset.
    pub last_delta: i32,
    /// Timestamp of the first record.
    pub first_timestamp: i64,
    /// Greatest timestamp.
    pub max_timestamp: i64,
    /// Producer id.
    pub producer_id: i64,
    /// Producer epoch.
    pub producer_epoch: i16,
    /// First sequence number.
    pub sequence: i32,
    /// The count that the header tells.
    pub count: i32,
    /// The records.
    pub records: Vec<Record>,
}

impl Batch {
    /// A batch of these values, timestamps all alike, no producer.
    pub fn of(values: &[&str], timestamp: i64) -> Self {
        let stamped: Vec<(i64, &str)> = values.iter().map(|value| (timestamp, *value)).collect();
        Self::stamped(&stamped)
    }

    /// A batch of these timestamps and values.
    pub fn stamped(values: &[(i64, &str)]) -> Self {
        let records: Vec<Record> = values
            .iter()
            .enumerate()
            .map(|(delta, (timestamp, value))| Record {
                delta: delta as i64,
                timestamp: *timestamp,
                key: None,
                value: Some(value.as_bytes().to_vec()),
                headers: Vec::new(),
            })
            .collect();
        Self {
            base_offset: 0,
            leader_epoch: -1,
            magic: 2,
            attributes: 0,
            last_delta: records.len() as i32 - 1,
            first_timestamp: records.first().map_or(-1, |record| record.timestamp),
            max_timestamp: records.iter().map(|record| record.timestamp).max().unwrap_or(-1),
            producer_id: -1,
            producer_epoch: -1,
            sequence: -1,
            count: records.len() as i32,
            records,
        }
    }

    /// A batch of keyed records, all of one time; no value is a tombstone.
    pub fn keyed(records: &[(&str, Option<&str>)], timestamp: i64) -> Self {
        let values: Vec<(i64, &str)> = records.iter().map(|_| (timestamp, "")).collect();
        let mut batch = Self::stamped(&values);
        for (record, (key, value)) in batch.records.iter_mut().zip(records) {
            record.key = Some(key.as_bytes().to_vec());
            record.value = value.map(|value| value.as_bytes().to_vec());
        }
        batch
    }

    /// The offset behind the batch.
    pub fn next(&self) -> i64 {
        self.base_offset + i64::from(self.last_delta) + 1
    }

    /// The same from an idempotent producer.
    pub fn by_producer(mut self, id: i64, epoch: i16, sequence: i32) -> Self {
        (self.producer_id, self.producer_epoch, self.sequence) = (id, epoch, sequence);
        self
    }

    /// The same with a codec (0 none, 1 gzip, 2 snappy, 3 lz4, 4 zstd).
    pub fn codec(mut self, codec: i16) -> Self {
        self.attributes = self.attributes & !7 | codec;
        self
    }

    /// The batch's bytes.
    pub fn encode(&self) -> Result<Vec<u8>> {
        let mut records = W::new();
        for record in &self.records {
            let mut body =
                W::new().i8(0).varint(record.timestamp - self.first_timestamp).varint(record.delta);
            body = sized(sized(body, record.key.as_deref()), record.value.as_deref());
            body = body.varint(record.headers.len() as i64);
            for (name, value) in &record.headers {
                body = sized(sized(body, Some(name.as_bytes())), value.as_deref());
            }
            records = records.varint(body.len() as i64).raw(&body.done());
        }
        let records = compress(self.attributes & 7, &records.done())?;
        let covered = W::new()
            .i16(self.attributes)
            .i32(self.last_delta)
            .i64(self.first_timestamp)
            .i64(self.max_timestamp)
            .i64(self.producer_id)
            .i16(self.producer_epoch)
            .i32(self.sequence)
            .i32(self.count)
            .raw(&records)
            .done();
        let head = W::new()
            .i64(self.base_offset)
            .i32(covered.len() as i32 + 9)
            .i32(self.leader_epoch)
            .i8(self.magic);
        Ok(head.raw(&crc32c::crc32c(&covered).to_be_bytes()).raw(&covered).done())
    }

    /// All batches of a fetched record set, each with a right checksum. A cut one at the end is legal (clients drop it), unless it is
    /// the only one.
    pub fn decode_all(bytes: &[u8]) -> Result<Vec<Self>> {
        let mut batches = Vec::new();
        let mut left = bytes;
        while !left.is_empty() {
            if left.len() < 12 && !batches.is_empty() {
                break;
            }
            let mut reader = R::new(left.to_vec());
            let base_offset = reader.i64()?;
            let length = usize::try_from(reader.i32()?)?;
            if reader.left() < length && !batches.is_empty() {
                break;
            }
            if reader.left() < length {
                bail!("the batch at {base_offset} is cut: {} of {length} bytes", reader.left());
            }
            let (batch, rest) = left.split_at(12 + length);
            batches
                .push(Self::decode(base_offset, batch).with_context(|| format!("batch at {base_offset}"))?);
            left = rest;
        }
        Ok(batches)
    }

    fn decode(base_offset: i64, bytes: &[u8]) -> Result<Self> {
        let mut reader = R::new(bytes.to_vec());
        reader.raw(12)?;
        let leader_epoch = reader.i32()?;
        let magic = reader.i8()?;
        let crc = reader.i32()? as u32;
        if crc32c::crc32c(&bytes[CRC_AT + 4..]) != crc {
            bail!("wrong checksum");
        }
        let attributes = reader.i16()?;
        let last_delta = reader.i32()?;
        let (first_timestamp, max_timestamp) = (reader.i64()?, reader.i64()?);
        let (producer_id, producer_epoch, sequence) = (reader.i64()?, reader.i16()?, reader.i32()?);
        let count = reader.i32()?;
        let payload = reader.raw(reader.left())?.to_vec();
        let mut inner = R::new(decompress(attributes & 7, &payload)?);
        let records = (0..count).map(|_| record(&mut inner, first_timestamp)).collect::<Result<_>>()?;
        inner.end()?;
        Ok(Self {
            base_offset,
            leader_epoch,
            magic,
            attributes,
            last_delta,
            first_timestamp,
            max_timestamp,
            producer_id,
            producer_epoch,
            sequence,
            count,
            records,
        })
    }

    /// Offsets and values of all records.
    pub fn values(batches: &[Self]) -> Vec<(i64, String)> {
        let each = |batch: &Self| {
            let base = batch.base_offset;
            let pairs: Vec<(i64, String)> = batch
                .records
                .iter()
                .map(|record| {
                    let value =
                        String::from_utf8_lossy(record.value.as_deref().unwrap_or_default()).into_owned();
                    (base + record.delta, value)
                })
                .collect();
            pairs
        };
        batches.iter().flat_map(each).collect()
    }
}

fn sized(out: W, bytes: Option<&[u8]>) -> W {
    match bytes {
        Some(bytes) => out.varint(bytes.len() as i64).raw(bytes),
        None => out.varint(-1),
    }
}

fn unsized_bytes(from: &mut R) -> Result<Option<Vec<u8>>> {
    match from.varint()? {
        -1 => Ok(None),
        length => Ok(Some(from.raw(usize::try_from(length)?)?.to_vec())),
    }
}

fn record(from: &mut R, first_timestamp: i64) -> Result<Record> {
    let length = usize::try_from(from.varint()?)?;
    let before = from.left();
    from.i8()?;
    let timestamp = first_timestamp + from.varint()?;
    let delta = from.varint()?;
    let key = unsized_bytes(from)?;
    let value = unsized_bytes(from)?;
    let count = from.varint()?;
    let headers = (0..count)
        .map(|_| {
            let name = String::from_utf8(unsized_bytes(from)?.context("a header without name")?)?;
            Ok((name, unsized_bytes(from)?))
        })
        .collect::<Result<_>>()?;
    if before - from.left() != length {
        bail!("a record of {} bytes says {length}", before - from.left());
    }
    Ok(Record { delta, timestamp, key, value, headers })
}

/// The frame that Java's snappy library puts around blocks.
const XERIAL: &[u8] = &[0x82, b'S', b'N', b'A', b'P', b'P', b'Y', 0, 0, 0, 0, 1, 0, 0, 0, 1];

fn compress(codec: i16, bytes: &[u8]) -> Result<Vec<u8>> {
    Ok(match codec {
        0 => bytes.to_vec(),
        1 => {
            let mut out = flate2::write::GzEncoder::new(Vec::new(), flate2::Compression::default());
            out.write_all(bytes)?;
            out.finish()?
        }
        2 => {
            let block = snap::raw::Encoder::new().compress_vec(bytes)?;
            W::new().raw(XERIAL).bytes(&block).done()
        }
        3 => {
            let mut out = lz4_flex::frame::FrameEncoder::new(Vec::new());
            out.write_all(bytes)?;
            out.finish()?
        }
        4 => zstd::encode_all(bytes, 3)?,
        // Cases send codecs that do not exist, too.
        _ => bytes.to_vec(),
    })
}

fn decompress(codec: i16, bytes: &[u8]) -> Result<Vec<u8>> {
    let mut out = Vec::new();
    match codec {
        0 => out.extend_from_slice(bytes),
        1 => {
            flate2::read::MultiGzDecoder::new(bytes).read_to_end(&mut out)?;
        }
        2 => {
            let mut blocks = R::new(bytes.strip_prefix(XERIAL).unwrap_or_default().to_vec());
            if blocks.left() == 0 {
                return Ok(snap::raw::Decoder::new().decompress_vec(bytes)?);
            }
            while blocks.left() > 0 {
                let block = blocks.nbytes()?.context("a null block")?;
                out.extend(snap::raw::Decoder::new().decompress_vec(&block)?);
            }
        }
        3 => {
            lz4_flex::frame::FrameDecoder::new(bytes).read_to_end(&mut out)?;
        }
        4 => out = zstd::decode_all(bytes)?,
        other => bail!("codec {other}"),
    }
    Ok(out)
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn every_codec_comes_back() {
        for codec in 0..=4 {
            let batch = Batch::stamped(&[(5, "one"), (7, "two")]).codec(codec).by_producer(9, 1, 3);
            let back = Batch::decode_all(&batch.encode().unwrap()).unwrap();
            assert_eq!(back[0].records, batch.records, "codec {codec}");
            assert_eq!((back[0].producer_id, back[0].sequence, back[0].max_timestamp), (9, 3, 7));
        }
    }
}
