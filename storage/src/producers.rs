//! What the log knows of each idempotent producer: its epoch and last five batches.
use felix_protocol::batch::BatchHeader;
use felix_protocol::ids::Offset;

/// What [`Producers::check`] says of a batch that a client wants appended.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum Verdict {
    /// In order, or nothing is known of the producer.
    Append,
    /// Stored already: answer success with what it got then.
    Duplicate {
        /// Its first offset.
        base_offset: Offset,
        /// Its last offset.
        last_offset: Offset,
        /// Its greatest timestamp (the append time where the topic says so).
        timestamp: i64,
    },
    /// A gap, an old batch, or a new epoch that does not begin at 0.
    OutOfOrder {
        /// The sequence that would have fitted.
        expected: i32,
        /// The batch's.
        found: i32,
    },
    /// An epoch below the newest seen.
    StaleEpoch {
        /// The newest seen.
        current: i16,
        /// The batch's.
        found: i16,
    },
    /// A batch outside of a transaction while one of this producer is open.
    TransactionOpen,
}

/// One producer, as DescribeProducers shows it.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub struct ProducerDescription {
    /// The producer.
    pub producer_id: i64,
    /// Its newest epoch.
    pub epoch: i16,
    /// Sequence of its last record, or -1.
    pub last_sequence: i32,
    /// Greatest timestamp of its last batch, or -1.
    pub last_timestamp: i64,
    /// Epoch of the coordinator that wrote its last marker, or -1.
    pub coordinator_epoch: i32,
    /// First offset of its open transaction.
    pub transaction_start: Option<Offset>,
}

/// The producers of one log.
#[derive(Clone, Debug, Default, PartialEq, Eq)]
pub struct Producers {}

impl Producers {
    /// Whether a batch of these header fields may be appended now. Changes nothing.
    pub fn check(&self, _header: &BatchHeader) -> Verdict {
        Verdict::Append
    }

    /// All producers, by id.
    pub fn describe(&self) -> Vec<ProducerDescription> {
        Vec::new()
    }

    /// First offset of the oldest open transaction: the last stable offset cannot pass it.
    pub fn first_open_transaction(&self) -> Option<Offset> {
        None
    }
}
