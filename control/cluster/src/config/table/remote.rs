//! Remote storage.

use super::rows;
use crate::config::row::{Area, Row, reason};

pub(super) const ROWS: &[Row] = rows! { Area::Remote;
    Int "remote.fetch.max.wait.ms" = "500", AtLeast(1), ClusterWide, NoEffect(reason::TIERED) =>
        "Milliseconds that a fetch may wait for remote storage.";
    Long "remote.list.offsets.request.timeout.ms" = "30000",
        AtLeast(1), ClusterWide,
        NoEffect(reason::TIERED) =>
        "Milliseconds that a lookup by time may wait for remote storage.";
    Long "remote.log.index.file.cache.total.size.bytes" = "1073741824",
        AtLeast(1), ClusterWide,
        NoEffect(reason::TIERED) =>
        "Bytes of indexes of remote segments kept on local disk.";
    #internal Long "remote.log.index.file.cache.ttl.ms" = "900000",
        AtLeast(-1), ReadOnly,
        NoEffect(reason::TIERED) =>
        "Milliseconds for which such an index is kept unused.";
    Int "remote.log.manager.copier.thread.pool.size" = "10",
        AtLeast(1), ClusterWide,
        NoEffect(reason::TIERED) =>
        "Threads that copy segments to remote storage.";
    Long "remote.log.manager.copy.max.bytes.per.second" = "9223372036854775807",
        AtLeast(1), ClusterWide,
        NoEffect(reason::TIERED) =>
        "Bytes per second copied to remote storage.";
    Int "remote.log.manager.copy.quota.window.num" = "11", AtLeast(1), ReadOnly, NoEffect(reason::TIERED) =>
        "Samples kept for the limit on copying.";
    Int "remote.log.manager.copy.quota.window.size.seconds" = "1",
        AtLeast(1), ReadOnly,
        NoEffect(reason::TIERED) =>
        "Seconds that one such sample covers.";
    Int "remote.log.manager.expiration.thread.pool.size" = "10",
        AtLeast(1), ClusterWide,
        NoEffect(reason::TIERED) =>
        "Threads that delete expired remote segments.";
    Long "remote.log.manager.fetch.max.bytes.per.second" = "9223372036854775807",
        AtLeast(1), ClusterWide,
        NoEffect(reason::TIERED) =>
        "Bytes per second read from remote storage.";
    Int "remote.log.manager.fetch.quota.window.num" = "11", AtLeast(1), ReadOnly, NoEffect(reason::TIERED) =>
        "Samples kept for the limit on reading.";
    Int "remote.log.manager.fetch.quota.window.size.seconds" = "1",
        AtLeast(1), ReadOnly,
        NoEffect(reason::TIERED) =>
        "Seconds that one such sample covers.";
    Int "remote.log.manager.follower.thread.pool.size" = "2",
        AtLeast(1), ClusterWide,
        NoEffect(reason::TIERED) =>
        "Threads that follow remote segments on followers.";
    Long "remote.log.manager.task.interval.ms" = "30000", AtLeast(1), ReadOnly, NoEffect(reason::TIERED) =>
        "Milliseconds between two looks for segments to copy or delete.";
    #internal Long "remote.log.manager.task.retry.backoff.max.ms" = "30000",
        AtLeast(1), ReadOnly,
        NoEffect(reason::TIERED) =>
        "Longest pause in milliseconds after a failed copy.";
    #internal Long "remote.log.manager.task.retry.backoff.ms" = "500",
        AtLeast(1), ReadOnly,
        NoEffect(reason::TIERED) =>
        "First pause in milliseconds after a failed copy.";
    #internal Double "remote.log.manager.task.retry.jitter" = "0.2",
        Share(0.0, 0.5), ReadOnly,
        NoEffect(reason::TIERED) =>
        "Share of randomness in such a pause.";
    Int "remote.log.manager.thread.pool.size" = "2", AtLeast(1), ReadOnly, NoEffect(reason::TIERED) =>
        "Threads for remote storage in all.";
    Int "remote.log.metadata.custom.metadata.max.bytes" = "128",
        AtLeast(0), ReadOnly,
        NoEffect(reason::TIERED) =>
        "Most bytes that a storage plug-in may note for a segment.";
    String "remote.log.metadata.manager.class.name" = "org.apache.kafka.server.log.remote.metadata.storage.TopicBasedRemoteLogMetadataManager",
        NotEmpty, ReadOnly,
        NoEffect(reason::TIERED) =>
        "Class that keeps the list of remote segments.";
    String "remote.log.metadata.manager.class.path" = null, Any, ReadOnly, NoEffect(reason::TIERED) =>
        "Where that class is loaded from.";
    String "remote.log.metadata.manager.impl.prefix" = "rlmm.config.",
        NotEmpty, ReadOnly,
        NoEffect(reason::TIERED) =>
        "Prefix of that class's own settings.";
    String "remote.log.metadata.manager.listener.name" = null, NotEmpty, ReadOnly, NoEffect(reason::TIERED) =>
        "Listener that that class connects to.";
    Int "remote.log.reader.max.pending.tasks" = "100", AtLeast(1), ReadOnly, NoEffect(reason::TIERED) =>
        "Reads of remote storage that may wait.";
    Int "remote.log.reader.threads" = "10", AtLeast(1), ClusterWide, NoEffect(reason::TIERED) =>
        "Threads that read remote storage.";
    String "remote.log.storage.manager.class.name" = null, NotEmpty, ReadOnly, Refused(reason::TIERED) =>
        "Class that stores remote segments.";
    String "remote.log.storage.manager.class.path" = null, Any, ReadOnly, NoEffect(reason::TIERED) =>
        "Where that class is loaded from.";
    String "remote.log.storage.manager.impl.prefix" = "rsm.config.",
        NotEmpty, ReadOnly,
        NoEffect(reason::TIERED) =>
        "Prefix of that class's own settings.";
    Boolean "remote.log.storage.system.enable" = "false", Any, ReadOnly, Refused(reason::TIERED) =>
        "Whether remote storage may be used at all.";
};
