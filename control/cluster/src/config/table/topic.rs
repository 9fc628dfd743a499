//! What topics can be told: every topic config.

use super::rows;
use crate::config::row::{Area, Row, reason};

pub(super) const ROWS: &[Row] = rows! { Area::Topic;
    List "cleanup.policy" = "delete",
        EachOf(&["compact", "delete"]), ClusterWide,
        Honoured =>
        "What happens to old records: `delete` drops whole segments by age and size, `compact` keeps the \
         newest record of each key, both may be listed, an empty list keeps everything.";
    Int "compression.gzip.level" = "-1", MinusOneOr(1, 9), ClusterWide, Honoured =>
        "Level used when the broker itself compresses with gzip: 1 (fast) to 9 (small), -1 for the codec's \
         own choice.";
    Int "compression.lz4.level" = "9", Between(1, 17), ClusterWide, Honoured =>
        "Level used when the broker itself compresses with lz4: 1 (fast) to 17 (small).";
    String "compression.type" = "producer",
        OneOf(&["uncompressed", "zstd", "lz4", "snappy", "gzip", "producer"]), ClusterWide,
        Honoured =>
        "Codec in which batches are stored. `producer` keeps the bytes as they were sent; any other value \
         makes the broker compress batches that came in another codec again.";
    Int "compression.zstd.level" = "3", Between(-131_072, 22), ClusterWide, Honoured =>
        "Level used when the broker itself compresses with zstd: negative values are faster, up to 22 is \
         smaller.";
    Long "delete.retention.ms" = "86400000", AtLeast(0), ClusterWide, Honoured =>
        "How long, in milliseconds, compaction keeps the marker of a deleted key so that slow readers \
         still see it.";
    Boolean "errors.deadletterqueue.group.enable" = "false", Any, ClusterWide, NoEffect(reason::SHARE) =>
        "Whether share groups may use this topic as the place for records that they could not process.";
    String "felix.consistency" = "acks", OneOf(&["acks", "quorum"]), ClusterWide, Honoured =>
        "When an acks=1 write is acknowledged: `acks` as the producer asked, `quorum` only when the mark \
         has passed it, like acks=all. A change takes effect at once.";
    Long "file.delete.delay.ms" = "60000", AtLeast(0), ClusterWide, Honoured =>
        "Milliseconds between taking a segment out of the log and removing its files, so that reads in \
         progress can finish.";
    Long "flush.messages" = "1", AtLeast(1), ClusterWide, Honoured =>
        "How many records may be appended before they are flushed to disk. 1 makes every acknowledgement \
         wait for a flush that covers it (many share one); 9223372036854775807 leaves flushing to the \
         operating system.";
    Long "flush.ms" = "9223372036854775807", AtLeast(0), ClusterWide, Honoured =>
        "Longest time in milliseconds that an appended record stays unflushed, beside what \
         `flush.messages` asks for.";
    List "follower.replication.throttled.replicas" = "", Replicas, ClusterWide, Honoured =>
        "Copies whose catching up is throttled by what their broker may be sent: a list of `partition:broker`, or `*` for all.";
    Int "index.interval.bytes" = "4096", AtLeast(0), ClusterWide, Honoured =>
        "How many bytes of records lie between two entries of the offset index. Smaller finds a record \
         faster and makes a larger index.";
    #internal Int "internal.segment.bytes" = null, Any, ClusterWide, Honoured =>
        "Segment size below the usual minimum, for tests only; it wins over `segment.bytes`.";
    List "leader.replication.throttled.replicas" = "", Replicas, ClusterWide, Honoured =>
        "Copies of which their broker, leading, sends throttled to followers that are not in sync: a list of \
         `partition:broker`, or `*` for all.";
    Long "local.retention.bytes" = "-2", AtLeast(-2), ClusterWide, NoEffect(reason::TIERED) =>
        "Bytes of a partition that stay on local disk once copied to remote storage; -2 means as \
         `retention.bytes`.";
    Long "local.retention.ms" = "-2", AtLeast(-2), ClusterWide, NoEffect(reason::TIERED) =>
        "Milliseconds that records stay on local disk once copied to remote storage; -2 means as \
         `retention.ms`.";
    Long "max.compaction.lag.ms" = "9223372036854775807",
        AtLeast(1), ClusterWide,
        Honoured =>
        "Longest time in milliseconds that a record may stay out of compaction's reach.";
    Int "max.decompressed.message.bytes" = "2147483639",
        Between(1, 2_147_483_639), ClusterWide,
        Partly("applied where the broker decompresses, that is when it changes the codec") =>
        "Upper bound in bytes on what one compressed batch may unpack to; larger ones are refused.";
    Int "max.message.bytes" = "1048588", AtLeast(0), ClusterWide, Honoured =>
        "Largest batch, in bytes after compression, that the topic takes. A larger one is answered with an \
         error that clients understand.";
    Long "message.timestamp.after.max.ms" = "3600000", AtLeast(0), ClusterWide, Honoured =>
        "How far in the future, in milliseconds, a producer's timestamp may lie when the topic keeps \
         producers' timestamps. Records beyond it are refused.";
    Long "message.timestamp.before.max.ms" = "9223372036854775807", AtLeast(0), ClusterWide, Honoured =>
        "How far in the past, in milliseconds, a producer's timestamp may lie when the topic keeps \
         producers' timestamps. Records beyond it are refused.";
    String "message.timestamp.type" = "CreateTime",
        OneOf(&["CreateTime", "LogAppendTime"]), ClusterWide,
        Honoured =>
        "`CreateTime` keeps the producers' timestamps, `LogAppendTime` stamps each batch with the broker's \
         clock. Retention by time and lookup by time go by these timestamps, so with `CreateTime` a wrong \
         producer clock shortens or prolongs retention.";
    Double "min.cleanable.dirty.ratio" = "0.5", Share(0.0, 1.0), ClusterWide, Honoured =>
        "Share of a log, between 0 and 1, that must be uncompacted before compaction is worth a pass.";
    Long "min.compaction.lag.ms" = "0", AtLeast(0), ClusterWide, Honoured =>
        "Milliseconds for which a new record is left out of compaction. Must not exceed \
         `max.compaction.lag.ms`.";
    Int "min.insync.replicas" = "1", AtLeast(1), ClusterWide, Honoured =>
        "How many copies must be in sync for a write with acks=all to be taken; with fewer it is refused. \
         Where nobody has set it, the majority of the copies counts, and tools show that number.";
    Boolean "preallocate" = "false", Any, ClusterWide, Honoured =>
        "Whether the file of a new segment gets its full size at once.";
    Long "remote.copy.lag.bytes" = "-1", AtLeast(-1), ClusterWide, NoEffect(reason::TIERED) =>
        "Bytes of newest records that are not yet copied to remote storage; -1 means as local retention.";
    Long "remote.copy.lag.ms" = "0", AtLeast(-1), ClusterWide, NoEffect(reason::TIERED) =>
        "Milliseconds before records are copied to remote storage; -1 means as local retention.";
    Boolean "remote.log.copy.disable" = "false", Any, ClusterWide, NoEffect(reason::TIERED) =>
        "Whether the topic's remote data becomes read-only.";
    Boolean "remote.log.delete.on.disable" = "false", Any, ClusterWide, NoEffect(reason::TIERED) =>
        "Whether turning remote storage off deletes what is stored there.";
    Boolean "remote.storage.enable" = "false", Any, ClusterWide, Refused(reason::TIERED) =>
        "Whether old segments move to remote storage.";
    Long "retention.bytes" = "-1", Any, ClusterWide, Honoured =>
        "Most bytes that one partition keeps before its oldest segments are dropped; negative means no \
         limit. Needs `delete` in `cleanup.policy`.";
    Long "retention.ms" = "604800000", AtLeast(-1), ClusterWide, Honoured =>
        "How long records are kept, in milliseconds by their timestamps; -1 means for ever. Only whole \
         segments are dropped, each when its newest record is old enough; the one being written is closed for that \
         when all of it is. Records without a timestamp, or with one that has not come yet, are as old as their \
         file. Needs `delete` in `cleanup.policy`.";
    Int "segment.bytes" = "1073741824", AtLeast(1_048_576), ClusterWide, Honoured =>
        "Size in bytes at which a log starts a new segment file. Retention drops whole segments.";
    Int "segment.index.bytes" = "10485760", AtLeast(4), ClusterWide, Honoured =>
        "Largest size in bytes of a segment's index files; a full index ends the segment.";
    Long "segment.jitter.ms" = "0", AtLeast(0), ClusterWide, Honoured =>
        "Random milliseconds taken off `segment.ms`, so that many partitions do not start segments at \
         once.";
    Long "segment.ms" = "604800000", AtLeast(1), ClusterWide, Honoured =>
        "Age in milliseconds at which a log starts a new segment even when the file is not full.";
    Boolean "unclean.leader.election.enable" = "false", Any, ClusterWide, NoEffect(reason::UNCLEAN) =>
        "Whether a copy that may lack acknowledged records may lead when no other is left.";
};
