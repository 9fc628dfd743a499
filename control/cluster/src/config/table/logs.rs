//! Logs on disk: defaults of topic configs, and housekeeping.

use super::rows;
use crate::config::row::{Area, Row, reason};

pub(super) const ROWS: &[Row] = rows! { Area::Logs;
    Int "background.threads" = "10", AtLeast(1), ClusterWide, NoEffect(reason::THREADS) =>
        "Threads for background work.";
    Int "compression.gzip.level" = "-1", MinusOneOr(1, 9), ClusterWide, Honoured =>
        "Default of the topic config of the same name.";
    Int "compression.lz4.level" = "9", Between(1, 17), ClusterWide, Honoured =>
        "Default of the topic config of the same name.";
    String "compression.type" = "producer",
        OneOf(&["uncompressed", "zstd", "lz4", "snappy", "gzip", "producer"]), ClusterWide,
        Honoured =>
        "Default of the topic config of the same name.";
    Int "compression.zstd.level" = "3", Between(-131_072, 22), ClusterWide, Honoured =>
        "Default of the topic config of the same name.";
    List "cordoned.log.dirs" = "", Any, PerBroker, NoEffect(reason::ONE_DIR) =>
        "Data directories that take no new partitions.";
    Long "log.cleaner.backoff.ms" = "15000", AtLeast(0), ClusterWide, Honoured =>
        "Milliseconds that compaction rests when there is nothing to do.";
    Long "log.cleaner.dedupe.buffer.size" = "134217728", Any, ClusterWide, Honoured =>
        "Bytes of memory for the keys of compaction rounds, shared by its threads; each takes its share only while \
         a round runs, and only as much as the keys need, but may take 1 MiB in any case.";
    Long "log.cleaner.delete.retention.ms" = "86400000",
        AtLeast(0), ClusterWide,
        Honoured =>
        "Default of the topic config `delete.retention.ms`.";
    Boolean "log.cleaner.enable" = "true", Any, ReadOnly, Honoured =>
        "Whether compaction runs at all.";
    Double "log.cleaner.io.buffer.load.factor" = "0.9", Any, ClusterWide, Honoured =>
        "How full the key table of compaction may become, between 0 and 1.";
    Int "log.cleaner.io.buffer.size" = "524288",
        AtLeast(0), ClusterWide,
        Partly("one half is for writing; reading goes in pieces of 128 KiB") =>
        "Bytes of the read and write buffers of compaction.";
    Double "log.cleaner.io.max.bytes.per.second" = "1.7976931348623157E308",
        Any, ClusterWide,
        Honoured =>
        "Bytes per second that compaction may read and write in all.";
    Long "log.cleaner.max.compaction.lag.ms" = "9223372036854775807",
        AtLeast(1), ClusterWide,
        Honoured =>
        "Default of the topic config `max.compaction.lag.ms`.";
    Double "log.cleaner.min.cleanable.ratio" = "0.5",
        Share(0.0, 1.0), ClusterWide,
        Honoured =>
        "Default of the topic config `min.cleanable.dirty.ratio`.";
    Long "log.cleaner.min.compaction.lag.ms" = "0", AtLeast(0), ClusterWide, Honoured =>
        "Default of the topic config `min.compaction.lag.ms`.";
    Int "log.cleaner.threads" = "1", AtLeast(0), ClusterWide, Honoured =>
        "Threads that compact logs.";
    List "log.cleanup.policy" = "delete",
        EachOf(&["compact", "delete"]), ClusterWide,
        Honoured =>
        "Default of the topic config `cleanup.policy`.";
    List "log.dir" = "./felix-data", Any, ReadOnly, Honoured =>
        "Where partitions are kept: one directory, several are refused. The same as the flag `--data-dir`, \
         which wins; `log.dirs` goes before it.";
    Long "log.dir.failure.timeout.ms" = "30000", AtLeast(1), ReadOnly, NoEffect(reason::ONE_DIR) =>
        "Milliseconds for which a broker tries to report a failed data directory before it stops.";
    List "log.dirs" = null, Any, ReadOnly, Honoured =>
        "Where partitions are kept: one directory, several are refused. The same as the flag `--data-dir`, \
         which wins.";
    Long "log.flush.interval.messages" = "1", AtLeast(1), ClusterWide, Honoured =>
        "Default of the topic config `flush.messages`.";
    Long "log.flush.interval.ms" = null, Any, ClusterWide, Honoured =>
        "Default of the topic config `flush.ms`; when unset, `log.flush.scheduler.interval.ms` counts.";
    Int "log.flush.offset.checkpoint.interval.ms" = "60000",
        AtLeast(0), ReadOnly,
        NoEffect(reason::OWN_TABLE) =>
        "Milliseconds between two writes of the file that says how far logs are flushed.";
    Long "log.flush.scheduler.interval.ms" = "9223372036854775807", Any, ReadOnly, Honoured =>
        "Default of the topic config `flush.ms` where `log.flush.interval.ms` is unset.";
    Int "log.flush.start.offset.checkpoint.interval.ms" = "60000",
        AtLeast(0), ReadOnly,
        NoEffect(reason::OWN_TABLE) =>
        "Milliseconds between two writes of the file that says where logs start.";
    Int "log.index.interval.bytes" = "4096", AtLeast(0), ClusterWide, Honoured =>
        "Default of the topic config `index.interval.bytes`.";
    Int "log.index.size.max.bytes" = "10485760", AtLeast(4), ClusterWide, Honoured =>
        "Default of the topic config `segment.index.bytes`.";
    #internal Long "log.initial.task.delay.ms" = "30000", AtLeast(0), ReadOnly, NoEffect(reason::OWN_PACE) =>
        "Milliseconds after the start before housekeeping of logs begins.";
    Long "log.local.retention.bytes" = "-2", AtLeast(-2), ClusterWide, NoEffect(reason::TIERED) =>
        "Default of the topic config `local.retention.bytes`.";
    Long "log.local.retention.ms" = "-2", AtLeast(-2), ClusterWide, NoEffect(reason::TIERED) =>
        "Default of the topic config `local.retention.ms`.";
    Long "log.message.timestamp.after.max.ms" = "3600000", AtLeast(0), ClusterWide, Honoured =>
        "Default of the topic config `message.timestamp.after.max.ms`.";
    Long "log.message.timestamp.before.max.ms" = "9223372036854775807", AtLeast(0), ClusterWide, Honoured =>
        "Default of the topic config `message.timestamp.before.max.ms`.";
    String "log.message.timestamp.type" = "CreateTime",
        OneOf(&["CreateTime", "LogAppendTime"]), ClusterWide,
        Honoured =>
        "Default of the topic config `message.timestamp.type`.";
    Boolean "log.preallocate" = "false", Any, ClusterWide, Honoured =>
        "Default of the topic config `preallocate`.";
    Long "log.remote.copy.lag.bytes" = "-1", AtLeast(-1), ClusterWide, NoEffect(reason::TIERED) =>
        "Default of the topic config `remote.copy.lag.bytes`.";
    Long "log.remote.copy.lag.ms" = "0", AtLeast(-1), ClusterWide, NoEffect(reason::TIERED) =>
        "Default of the topic config `remote.copy.lag.ms`.";
    Long "log.retention.bytes" = "-1", Any, ClusterWide, Honoured =>
        "Default of the topic config `retention.bytes`; it counts per partition.";
    Long "log.retention.check.interval.ms" = "300000", AtLeast(1), ReadOnly, Honoured =>
        "Milliseconds between two looks for segments that retention may drop.";
    Int "log.retention.hours" = "168", Any, ReadOnly, Honoured =>
        "Default of the topic config `retention.ms`, in hours; counts when neither milliseconds nor \
         minutes are set.";
    Int "log.retention.minutes" = null, Any, ReadOnly, Honoured =>
        "Default of the topic config `retention.ms`, in minutes; counts when milliseconds are not set.";
    Long "log.retention.ms" = null, Any, ClusterWide, Honoured =>
        "Default of the topic config `retention.ms`; wins over the minutes and hours.";
    Int "log.roll.hours" = "168", AtLeast(1), ReadOnly, Honoured =>
        "Default of the topic config `segment.ms`, in hours; counts when milliseconds are not set.";
    Int "log.roll.jitter.hours" = "0", AtLeast(0), ReadOnly, Honoured =>
        "Default of the topic config `segment.jitter.ms`, in hours; counts when milliseconds are not set.";
    Long "log.roll.jitter.ms" = null, Any, ClusterWide, Honoured =>
        "Default of the topic config `segment.jitter.ms`; wins over the hours.";
    Long "log.roll.ms" = null, Any, ClusterWide, Honoured =>
        "Default of the topic config `segment.ms`; wins over the hours.";
    Int "log.segment.bytes" = "1073741824", AtLeast(1_048_576), ClusterWide, Honoured =>
        "Default of the topic config `segment.bytes`.";
    Long "log.segment.delete.delay.ms" = "60000", AtLeast(0), ClusterWide, Honoured =>
        "Default of the topic config `file.delete.delay.ms`.";
    Int "max.decompressed.message.bytes" = "2147483639",
        Between(1, 2_147_483_639), ClusterWide,
        Partly("applied where the broker decompresses, that is when it changes the codec") =>
        "Default of the topic config of the same name.";
    Int "message.max.bytes" = "1048588", AtLeast(0), ClusterWide, Honoured =>
        "Default of the topic config `max.message.bytes`.";
    Int "num.recovery.threads.per.data.dir" = "2", AtLeast(1), ClusterWide, NoEffect(reason::THREADS) =>
        "Threads that check logs after an unclean stop.";
};
