//! The response of Fetch, versions 4 to 18, as pieces: what is between the records is encoded into one buffer
//! and sliced, the records themselves are passed on as they were read. The crate's encoder would copy every
//! record.
//!
//! Fields that a version does not have are left out silently, so that a handler fills in what it knows.

use bytes::{BufMut, Bytes, BytesMut};

use super::fetch_response::NodeEndpoint;
use super::{ApiKey, Encodable, TopicName};
use crate::frame::{self, FrameError};
use crate::ids::{Offset, Uuid};

/// The first version with compact lengths and tagged fields.
const FLEXIBLE: i16 = 12;

/// The response to one Fetch.
#[derive(Clone, Debug, Default)]
pub struct FetchReply {
    /// How long the client is asked to keep quiet.
    pub throttle_time_ms: i32,
    /// An error of the whole request (version 7 on).
    pub error_code: i16,
    /// The fetch session, or 0 (version 7 on).
    pub session_id: i32,
    /// What was read.
    pub topics: Vec<FetchedTopic>,
    /// Where the leaders named in the partitions are (version 16 on).
    pub node_endpoints: Vec<NodeEndpoint>,
}

/// One topic of a [`FetchReply`].
#[derive(Clone, Debug, Default)]
pub struct FetchedTopic {
    /// Its name (up to version 12).
    pub topic: TopicName,
    /// Its id (version 13 on).
    pub topic_id: Uuid,
    /// Its partitions.
    pub partitions: Vec<FetchedPartition>,
}

/// One partition of a [`FetchReply`].
#[derive(Clone, Debug)]
pub struct FetchedPartition {
    /// Its number.
    pub index: i32,
    /// What went wrong, or 0.
    pub error_code: i16,
    /// The mark.
    pub high_watermark: Offset,
    /// The last stable offset.
    pub last_stable_offset: Offset,
    /// The log start (version 5 on).
    pub log_start_offset: Offset,
    /// Where the client's log left ours: generation and its end (version 12 on).
    pub diverging_epoch: Option<(i32, Offset)>,
    /// The leader, as broker and generation, for clients that asked another (version 12 on).
    pub current_leader: Option<(i32, i32)>,
    /// Aborted transactions that overlap the records, as producer and first offset, in the order of first
    /// offsets; `None` for those who read uncommitted records.
    pub aborted: Option<Vec<(i64, Offset)>>,
    /// The replica to read from instead, or -1 (version 11 on).
    pub preferred_read_replica: i32,
    /// Whole batches, in any number of slices.
    pub records: Vec<Bytes>,
}

impl Default for FetchedPartition {
    /// No records, no error, every offset unknown (-1).
    fn default() -> Self {
        FetchedPartition {
            index: 0,
            error_code: 0,
            high_watermark: -1,
            last_stable_offset: -1,
            log_start_offset: -1,
            diverging_epoch: None,
            current_leader: None,
            aborted: None,
            preferred_read_replica: -1,
            records: Vec::new(),
        }
    }
}

impl FetchedPartition {
    /// Bytes of its records.
    pub fn record_bytes(&self) -> usize {
        self.records.iter().map(Bytes::len).sum()
    }
}

impl FetchReply {
    /// The whole frame, its length included, as pieces to be written one after another.
    pub fn encode(&self, version: i16, correlation_id: i32) -> Result<Vec<Bytes>, FrameError> {
        let mut pieces = Pieces { head: BytesMut::new(), cuts: Vec::new(), version };
        pieces.head.reserve(64 + 128 * self.topics.iter().map(|topic| topic.partitions.len()).sum::<usize>());
        pieces.head.unsplit(frame::response_head(ApiKey::Fetch, version, correlation_id, 0, 0)?);
        pieces.reply(self)?;
        pieces.finish()
    }
}

struct Pieces<'a> {
    /// Everything but the records.
    head: BytesMut,
    /// Where in `head` which records come.
    cuts: Vec<(usize, &'a Bytes)>,
    version: i16,
}

impl<'a> Pieces<'a> {
    fn finish(mut self) -> Result<Vec<Bytes>, FrameError> {
        let records: usize = self.cuts.iter().map(|(_, records)| records.len()).sum();
        let length = self.head.len() - frame::LENGTH_BYTES + records;
        let length =
            i32::try_from(length).map_err(|_| self.fail(format!("{length} bytes do not fit a frame")))?;
        self.head[..frame::LENGTH_BYTES].copy_from_slice(&length.to_be_bytes());
        let head = self.head.freeze();
        let mut pieces = Vec::with_capacity(2 * self.cuts.len() + 1);
        let mut from = 0;
        for (at, records) in self.cuts {
            if from < at {
                pieces.push(head.slice(from..at));
                from = at;
            }
            pieces.push(records.clone());
        }
        if from < head.len() {
            pieces.push(head.slice(from..));
        }
        Ok(pieces)
    }

    fn reply(&mut self, reply: &'a FetchReply) -> Result<(), FrameError> {
        self.head.put_i32(reply.throttle_time_ms);
        if self.version >= 7 {
            self.head.put_i16(reply.error_code);
            self.head.put_i32(reply.session_id);
        }
        self.count(reply.topics.len())?;
        for topic in &reply.topics {
            self.topic(topic)?;
        }
        if self.version < FLEXIBLE {
            return Ok(());
        }
        if self.version < 16 || reply.node_endpoints.is_empty() {
            self.head.put_u8(0);
            return Ok(());
        }
        let mut nodes = BytesMut::new();
        put_varint(&mut nodes, self.compact(reply.node_endpoints.len())?);
        for node in &reply.node_endpoints {
            node.encode(&mut nodes, self.version).map_err(|error| self.fail(error.to_string()))?;
        }
        self.head.put_u8(1);
        self.tagged(0, &nodes)
    }

    fn topic(&mut self, topic: &'a FetchedTopic) -> Result<(), FrameError> {
        if self.version >= 13 {
            self.head.put_slice(topic.topic_id.as_bytes());
        } else if self.version >= FLEXIBLE {
            self.count(topic.topic.len())?;
            self.head.put_slice(topic.topic.as_bytes());
        } else {
            let length = i16::try_from(topic.topic.len())
                .map_err(|_| self.fail("the topic's name is too long".to_owned()))?;
            self.head.put_i16(length);
            self.head.put_slice(topic.topic.as_bytes());
        }
        self.count(topic.partitions.len())?;
        for partition in &topic.partitions {
            self.partition(partition)?;
        }
        if self.version >= FLEXIBLE {
            self.head.put_u8(0);
        }
        Ok(())
    }

    fn partition(&mut self, partition: &'a FetchedPartition) -> Result<(), FrameError> {
        self.head.put_i32(partition.index);
        self.head.put_i16(partition.error_code);
        self.head.put_i64(partition.high_watermark);
        self.head.put_i64(partition.last_stable_offset);
        if self.version >= 5 {
            self.head.put_i64(partition.log_start_offset);
        }
        match &partition.aborted {
            None if self.version >= FLEXIBLE => self.head.put_u8(0),
            None => self.head.put_i32(-1),
            Some(aborted) => {
                self.count(aborted.len())?;
                for (producer_id, first_offset) in aborted {
                    self.head.put_i64(*producer_id);
                    self.head.put_i64(*first_offset);
                    if self.version >= FLEXIBLE {
                        self.head.put_u8(0);
                    }
                }
            }
        }
        if self.version >= 11 {
            self.head.put_i32(partition.preferred_read_replica);
        }
        self.count(partition.record_bytes())?;
        let at = self.head.len();
        self.cuts.extend(partition.records.iter().filter(|r| !r.is_empty()).map(|records| (at, records)));
        if self.version >= FLEXIBLE { self.partition_tags(partition) } else { Ok(()) }
    }

    fn partition_tags(&mut self, partition: &FetchedPartition) -> Result<(), FrameError> {
        let FetchedPartition { diverging_epoch, current_leader, .. } = partition;
        self.head.put_u8(u8::from(diverging_epoch.is_some()) + u8::from(current_leader.is_some()));
        if let Some((epoch, end_offset)) = diverging_epoch {
            let mut value = [0; 13];
            value[..4].copy_from_slice(&epoch.to_be_bytes());
            value[4..12].copy_from_slice(&end_offset.to_be_bytes());
            self.tagged(0, &value)?;
        }
        if let Some((leader, epoch)) = current_leader {
            let mut value = [0; 9];
            value[..4].copy_from_slice(&leader.to_be_bytes());
            value[4..8].copy_from_slice(&epoch.to_be_bytes());
            self.tagged(1, &value)?;
        }
        Ok(())
    }

    fn tagged(&mut self, tag: u32, value: &[u8]) -> Result<(), FrameError> {
        let size =
            u32::try_from(value.len()).map_err(|_| self.fail("a tagged field is too long".to_owned()))?;
        put_varint(&mut self.head, tag);
        put_varint(&mut self.head, size);
        self.head.put_slice(value);
        Ok(())
    }

    /// A count or length in the form of the version.
    fn count(&mut self, count: usize) -> Result<(), FrameError> {
        if self.version >= FLEXIBLE {
            let compact = self.compact(count)?;
            put_varint(&mut self.head, compact);
        } else {
            let plain = i32::try_from(count).map_err(|_| self.fail(format!("{count} is too many")))?;
            self.head.put_i32(plain);
        }
        Ok(())
    }

    fn compact(&self, count: usize) -> Result<u32, FrameError> {
        i32::try_from(count)
            .map(|count| count.cast_unsigned() + 1)
            .map_err(|_| self.fail(format!("{count} is too many")))
    }

    fn fail(&self, reason: String) -> FrameError {
        FrameError::Encode { api: ApiKey::Fetch, version: self.version, reason }
    }
}

fn put_varint(out: &mut BytesMut, mut number: u32) {
    while number >= 0x80 {
        out.put_u8((number & 0x7f) as u8 | 0x80);
        number >>= 7;
    }
    out.put_u8((number & 0x7f) as u8);
}

#[cfg(test)]
mod tests;
