//! What a topic obeys, as code reads it.

use super::resolve::Reader;

/// The settings of one topic that count, wherever they were said.
#[derive(Clone, Debug, PartialEq)]
pub struct TopicConfig {
    /// Whether `cleanup.policy` drops old segments.
    pub deletes: bool,
    /// Whether `cleanup.policy` keeps the newest record of each key.
    pub compacts: bool,
    /// `compression.type` with its level.
    pub compression: Compression,
    /// What compaction obeys.
    pub compaction: CompactionConfig,
    /// `file.delete.delay.ms`.
    pub file_delete_delay_ms: i64,
    /// `flush.messages`; `None` where it can never be reached and flushing is left to the operating system.
    pub flush_messages: Option<u64>,
    /// `flush.ms`; `None` where it can never be reached.
    pub flush_ms: Option<u64>,
    /// `index.interval.bytes`.
    pub index_interval_bytes: u32,
    /// `max.decompressed.message.bytes`.
    pub max_decompressed_bytes: u64,
    /// `max.message.bytes`: the largest batch.
    pub max_message_bytes: u32,
    /// `message.timestamp.type`.
    pub timestamps: Timestamps,
    /// `message.timestamp.before.max.ms`; means nothing with [`Timestamps::Append`].
    pub timestamp_before_max_ms: i64,
    /// `message.timestamp.after.max.ms`; means nothing with [`Timestamps::Append`].
    pub timestamp_after_max_ms: i64,
    /// `min.insync.replicas`, where anybody has set it; elsewhere the majority counts.
    pub min_insync_replicas: Option<usize>,
    /// `preallocate`.
    pub preallocate: bool,
    /// `retention.bytes`; `None`: no limit.
    pub retention_bytes: Option<u64>,
    /// `retention.ms`; `None`: for ever.
    pub retention_ms: Option<i64>,
    /// `segment.bytes`, or `internal.segment.bytes` where set.
    pub segment_bytes: u64,
    /// `segment.index.bytes`.
    pub segment_index_bytes: u32,
    /// `segment.ms`; not more than [`CompactionConfig::max_lag_ms`] where the topic compacts.
    pub segment_ms: i64,
    /// `segment.jitter.ms`.
    pub segment_jitter_ms: i64,
    /// `felix.consistency`.
    pub consistency: Consistency,
}

/// What compaction obeys.
#[derive(Clone, Debug, PartialEq)]
pub struct CompactionConfig {
    /// `delete.retention.ms`.
    pub delete_retention_ms: i64,
    /// `min.compaction.lag.ms`.
    pub min_lag_ms: i64,
    /// `max.compaction.lag.ms`.
    pub max_lag_ms: i64,
    /// `min.cleanable.dirty.ratio`.
    pub min_dirty_ratio: f64,
}

/// The codec in which batches are stored.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum Compression {
    /// As the producer sent them.
    Producer,
    /// Not compressed.
    Uncompressed,
    /// gzip; `None`: the codec's own level.
    Gzip(Option<u32>),
    /// Snappy.
    Snappy,
    /// LZ4 at a level.
    Lz4(i32),
    /// Zstandard at a level.
    Zstd(i32),
}

/// Whose timestamps a batch carries.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum Timestamps {
    /// The producer's.
    Create,
    /// The broker's, of the moment of the append.
    Append,
}

/// When an acks=1 write is acknowledged.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum Consistency {
    /// As the producer asked.
    Acks,
    /// When the mark has passed it.
    Quorum,
}

impl TopicConfig {
    pub(super) fn read(reader: &mut Reader<'_>) -> TopicConfig {
        let policy = reader.list("cleanup.policy");
        let compacts = policy.iter().any(|item| item == "compact");
        let compaction = CompactionConfig {
            delete_retention_ms: reader.number("delete.retention.ms"),
            min_lag_ms: reader.number("min.compaction.lag.ms"),
            max_lag_ms: reader.number("max.compaction.lag.ms"),
            min_dirty_ratio: reader.fraction("min.cleanable.dirty.ratio"),
        };
        let segment_ms = reader.number("segment.ms");
        let retention_ms = reader.number("retention.ms");
        TopicConfig {
            deletes: policy.iter().any(|item| item == "delete"),
            compacts,
            compression: compression(reader),
            file_delete_delay_ms: reader.number("file.delete.delay.ms"),
            flush_messages: reachable(reader.number("flush.messages")),
            flush_ms: reachable(reader.number("flush.ms")),
            index_interval_bytes: reader.size32("index.interval.bytes"),
            max_decompressed_bytes: reader.size("max.decompressed.message.bytes"),
            max_message_bytes: reader.size32("max.message.bytes"),
            timestamps: match reader.text("message.timestamp.type").as_str() {
                "LogAppendTime" => Timestamps::Append,
                _ => Timestamps::Create,
            },
            timestamp_before_max_ms: reader.number("message.timestamp.before.max.ms"),
            timestamp_after_max_ms: reader.number("message.timestamp.after.max.ms"),
            min_insync_replicas: reader
                .int_if_said("min.insync.replicas")
                .and_then(|count| usize::try_from(count).ok()),
            preallocate: reader.flag("preallocate"),
            retention_bytes: reader.limit("retention.bytes"),
            retention_ms: (retention_ms >= 0).then_some(retention_ms),
            segment_bytes: reader
                .limit("internal.segment.bytes")
                .unwrap_or_else(|| reader.size("segment.bytes")),
            segment_index_bytes: reader.size32("segment.index.bytes"),
            segment_ms: if compacts { segment_ms.min(compaction.max_lag_ms) } else { segment_ms },
            segment_jitter_ms: reader.number("segment.jitter.ms"),
            consistency: match reader.text("felix.consistency").as_str() {
                "quorum" => Consistency::Quorum,
                _ => Consistency::Acks,
            },
            compaction,
        }
    }
}

/// Kafka's defaults, but for `flush.messages`, which is 1.
impl Default for TopicConfig {
    fn default() -> Self {
        super::resolve::topic(&super::Overrides::new(), &super::Layers::DEFAULTS).config
    }
}

fn compression(reader: &mut Reader<'_>) -> Compression {
    match reader.text("compression.type").as_str() {
        "uncompressed" => Compression::Uncompressed,
        "gzip" => Compression::Gzip(u32::try_from(reader.number("compression.gzip.level")).ok()),
        "snappy" => Compression::Snappy,
        "lz4" => Compression::Lz4(reader.int("compression.lz4.level")),
        "zstd" => Compression::Zstd(reader.int("compression.zstd.level")),
        _ => Compression::Producer,
    }
}

/// Kafka writes "never" as the largest number.
fn reachable(number: i64) -> Option<u64> {
    if number == i64::MAX { None } else { u64::try_from(number).ok() }
}
