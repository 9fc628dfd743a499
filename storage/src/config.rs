//! What a log obeys. Kafka's topic configs, already resolved to numbers.

use crate::compaction::CompactionConfig;

/// Settings of one log; changed on a live log by [`crate::Log::set_config`].
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct LogConfig {
    /// `segment.bytes`: a segment is closed before it grows past this.
    pub segment_bytes: u64,
    /// `segment.ms`: a segment is closed when its records span more than this.
    pub segment_ms: i64,
    /// `segment.jitter.ms`: each segment's time is shortened by up to this, so that not all roll at once.
    pub segment_jitter_ms: i64,
    /// `index.interval.bytes`: at most one index entry for so many bytes of log.
    pub index_interval_bytes: u32,
    /// `segment.index.bytes`: a segment is closed when an index would grow past this.
    pub index_bytes: u32,
    /// `retention.bytes`; `None` is Kafka's -1.
    pub retention_bytes: Option<u64>,
    /// `retention.ms`; `None` is Kafka's -1.
    pub retention_ms: Option<i64>,
    /// `cleanup.policy` contains `delete`.
    pub deletes: bool,
    /// `cleanup.policy` contains `compact`.
    pub compacts: bool,
    /// What compaction obeys.
    pub compaction: CompactionConfig,
    /// `file.delete.delay.ms`: how long a removed segment stays on disk under another name.
    pub file_delete_delay_ms: i64,
    /// `preallocate`: reserve a segment's blocks when it is made.
    pub preallocate: bool,
    /// `producer.id.expiration.ms`: how long an idle producer's sequences are remembered.
    pub producer_expiry_ms: i64,
}

/// Kafka's defaults.
impl Default for LogConfig {
    fn default() -> Self {
        LogConfig {
            segment_bytes: 1 << 30,
            segment_ms: 7 * 24 * 60 * 60 * 1000,
            segment_jitter_ms: 0,
            index_interval_bytes: 4096,
            index_bytes: 10 << 20,
            retention_bytes: None,
            retention_ms: Some(7 * 24 * 60 * 60 * 1000),
            deletes: true,
            compacts: false,
            compaction: CompactionConfig::default(),
            file_delete_delay_ms: 60_000,
            preallocate: false,
            producer_expiry_ms: 24 * 60 * 60 * 1000,
        }
    }
}

/// Bounds that all logs of a data directory share.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub struct Limits {
    /// Most files kept open for reading and writing (dirty ones come on top: they must stay open until
    /// they are flushed, or an error of the write-back could be missed).
    pub open_files: usize,
    /// Bytes of recently appended batches kept in memory, all logs together.
    pub tail_bytes: usize,
    /// Whether batches read from disk have their CRC checked before they are served.
    pub verify_reads: bool,
}

impl Default for Limits {
    fn default() -> Self {
        Limits { open_files: 512, tail_bytes: 16 << 20, verify_reads: true }
    }
}
