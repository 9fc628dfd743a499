//! Producers and transactions.

use super::rows;
use crate::config::row::{Area, Row, reason};

pub(super) const ROWS: &[Row] = rows! { Area::Transactions;
    Int "add.partitions.to.txn.retry.backoff.max.ms" = "100", AtLeast(0), ReadOnly, NoEffect(reason::TXN) =>
        "Longest pause in milliseconds between tries to add a partition to a transaction on a client's \
         behalf.";
    Int "add.partitions.to.txn.retry.backoff.ms" = "20", AtLeast(1), ReadOnly, NoEffect(reason::TXN) =>
        "First pause in milliseconds between tries to add a partition to a transaction on a client's \
         behalf.";
    #internal Int "producer.id.expiration.check.interval.ms" = "600000",
        AtLeast(1), ReadOnly,
        NoEffect(reason::OWN_PACE) =>
        "Milliseconds between two looks for forgotten producers.";
    Int "producer.id.expiration.ms" = "86400000", AtLeast(1), ClusterWide, Honoured =>
        "Milliseconds after its last record for which a partition remembers an idempotent producer, and so \
         recognises its retries.";
    Int "transaction.abort.timed.out.transaction.cleanup.interval.ms" = "10000",
        AtLeast(1), ReadOnly,
        NoEffect(reason::TXN) =>
        "Milliseconds between two looks for transactions that have run out of time.";
    Int "transaction.max.timeout.ms" = "900000", AtLeast(1), ReadOnly, NoEffect(reason::TXN) =>
        "Longest transaction timeout in milliseconds that a producer may ask for.";
    Boolean "transaction.partition.verification.enable" = "true", Any, ClusterWide, NoEffect(reason::TXN) =>
        "Whether a partition asks the coordinator if it belongs to a transaction before it takes its \
         records.";
    Int "transaction.remove.expired.transaction.cleanup.interval.ms" = "3600000",
        AtLeast(1), ReadOnly,
        NoEffect(reason::TXN) =>
        "Milliseconds between two looks for transactional ids that have expired.";
    Int "transaction.state.log.load.buffer.size" = "5242880", AtLeast(1), ReadOnly, NoEffect(reason::TXN) =>
        "Bytes read at a time while transactions are loaded.";
    Int "transaction.state.log.min.isr" = "2", AtLeast(1), ReadOnly, NoEffect(reason::TXN) =>
        "`min.insync.replicas` of `__transaction_state`.";
    Int "transaction.state.log.num.partitions" = "50", AtLeast(1), ReadOnly, NoEffect(reason::TXN) =>
        "Partitions of `__transaction_state`.";
    Short "transaction.state.log.replication.factor" = "3", AtLeast(1), ReadOnly, NoEffect(reason::TXN) =>
        "Copies of `__transaction_state`.";
    Int "transaction.state.log.segment.bytes" = "104857600", AtLeast(1), ReadOnly, NoEffect(reason::TXN) =>
        "Segment size in bytes of `__transaction_state`.";
    Boolean "transaction.two.phase.commit.enable" = "false", Any, ReadOnly, Refused(reason::TXN) =>
        "Whether producers may leave a prepared transaction open without a time limit.";
    Int "transactional.id.expiration.ms" = "604800000", AtLeast(1), ReadOnly, NoEffect(reason::TXN) =>
        "Milliseconds after its last use for which a transactional id is remembered.";
};
