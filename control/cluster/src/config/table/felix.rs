//! Our own broker settings.

use super::rows;
use crate::config::row::{Area, Row};

pub(super) const ROWS: &[Row] = rows! { Area::Felix;
    Long "felix.answer.bytes" = "0", AtLeast(0), ReadOnly, Honoured =>
        "Bytes of memory for the answers of all connections together, until their clients have taken them. The \
         less is left, the less one fetch brings, but always one batch. 0 lets the broker choose: a sixteenth of \
         the machine's memory, at least 64 MiB and at most 512 MiB.";
    String "felix.consistency" = "acks", OneOf(&["acks", "quorum"]), ClusterWide, Honoured =>
        "Default of the topic config of the same name.";
    String "felix.flush.mode" = "auto", OneOf(&["auto", "file", "filesystem"]), ReadOnly, Honoured =>
        "How appended records are made durable: `file` flushes each changed file, `filesystem` flushes the \
         data directory's file system in one go, `auto` takes the second when the directory is a file \
         system of its own and many files have changed.";
    Int "felix.flush.threads" = "0", AtLeast(0), ReadOnly, Honoured =>
        "Threads that flush logs; 0 lets the broker choose by the number of processors.";
    Int "felix.lane.threads" = "0", AtLeast(0), ReadOnly, Honoured =>
        "Lanes: threads that own partitions and append to their logs; 0 lets the broker choose by the \
         number of processors.";
    Long "felix.publish.quorum.timeout.ms" = null, AtLeast(1), ReadOnly, Honoured =>
        "Most milliseconds that an acks=all write waits for its acknowledgement, whatever the producer's \
         own timeout; unset means that only the producer's timeout counts. Running out says that the write \
         cannot be vouched for, not that it failed.";
    Int "felix.read.threads" = "0", AtLeast(0), ReadOnly, Honoured =>
        "Threads that read records from disk for consumers that are far behind; 0 lets the broker choose \
         by the number of processors.";
    Long "felix.replication.rebuild.bytes.per.sec" = "0",
        AtLeast(0), ClusterWide, Honoured =>
        "Bytes per second sent to each copy that is being rebuilt; 0 means no limit.";
    Int "felix.replication.rebuild.max.concurrent" = "1",
        AtLeast(0), ClusterWide, Honoured =>
        "How many halted copies are rebuilt at one time; 0 leaves rebuilding to the operator.";
    Long "felix.scrub.bytes.per.second" = "10485760", AtLeast(0), ClusterWide, Honoured =>
        "Bytes per second at which closed segments are read again in the background, to find what a disk has \
         changed before a consumer does; 0 means that this is never done.";
    Long "felix.scrub.interval.ms" = "604800000", AtLeast(100), ClusterWide, Honoured =>
        "Milliseconds after which a closed segment is looked through again. A restart begins anew.";
    Long "felix.tail.bytes" = "33554432", AtLeast(0), ReadOnly, Honoured =>
        "Bytes of memory for the newest records of all partitions together, from which consumers that keep \
         up are served without reading the disk.";
};
