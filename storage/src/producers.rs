//! What the log knows of each idempotent producer: its epoch and its last five batches, and the
//! transaction it has open.
//!
//! The rules are Apache Kafka's. A producer of whom nothing is known (a new one, or one forgotten after
//! `producer.id.expiration.ms`) may begin with any sequence: refusing it would be fatal for clients.

use std::collections::BTreeMap;

use felix_protocol::batch::BatchHeader;
use felix_protocol::batch::control::{Marker, TransactionEnd};
use felix_protocol::ids::Offset;
use felix_protocol::time::WallTime;

pub(crate) mod snapshot;

/// Batches remembered per producer: as many as a client has in flight.
pub const REMEMBERED: usize = 5;

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

/// A remembered batch.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(crate) struct Remembered {
    pub last_sequence: i32,
    pub last_offset: Offset,
    pub offset_delta: i32,
    pub timestamp: i64,
}

impl Remembered {
    /// Sequences wrap from 2^31-1 to 0, and a batch has a sequence for every offset.
    fn first_sequence(&self) -> i32 {
        let first = i64::from(self.last_sequence) - i64::from(self.offset_delta);
        i32::try_from(if first < 0 { first + (1 << 31) } else { first }).unwrap_or(0)
    }
}

#[derive(Clone, Debug, PartialEq, Eq)]
pub(crate) struct Producer {
    pub epoch: i16,
    /// Oldest first.
    pub batches: [Option<Remembered>; REMEMBERED],
    pub coordinator_epoch: i32,
    pub transaction_start: Option<Offset>,
    pub last_timestamp: i64,
    /// When it was last heard of by the wall clock: what records claim of time must not make the broker
    /// forget a live producer, or remember a dead one for ever.
    pub seen: WallTime,
}

impl Producer {
    fn new(epoch: i16, now: WallTime) -> Producer {
        Producer {
            epoch,
            batches: [None; REMEMBERED],
            coordinator_epoch: -1,
            transaction_start: None,
            last_timestamp: -1,
            seen: now,
        }
    }

    pub(crate) fn last(&self) -> Option<&Remembered> {
        self.batches.iter().rev().flatten().next()
    }

    fn remember(&mut self, batch: Remembered) {
        if self.batches[REMEMBERED - 1].is_some() {
            self.batches.rotate_left(1);
            self.batches[REMEMBERED - 1] = None;
        }
        if let Some(free) = self.batches.iter_mut().find(|batch| batch.is_none()) {
            *free = Some(batch);
        }
    }
}

/// A transaction that a marker ended.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(crate) struct Ended {
    pub producer_id: i64,
    /// Its first record; `None` when it had none here.
    pub first_offset: Option<Offset>,
    pub end: TransactionEnd,
}

/// The producers of one log.
#[derive(Clone, Debug, Default, PartialEq, Eq)]
pub struct Producers {
    by_id: BTreeMap<i64, Producer>,
}

impl Producers {
    /// Whether a batch of these header fields may be appended now. Changes nothing.
    pub fn check(&self, header: &BatchHeader) -> Verdict {
        if !header.has_producer() || header.is_control() {
            return Verdict::Append;
        }
        let Some(known) = self.by_id.get(&header.producer_id) else { return Verdict::Append };
        if header.producer_epoch < known.epoch {
            return Verdict::StaleEpoch { current: known.epoch, found: header.producer_epoch };
        }
        let found = header.base_sequence;
        if header.producer_epoch > known.epoch {
            if found != 0 {
                return Verdict::OutOfOrder { expected: 0, found };
            }
        } else {
            let last_sequence = header.last_sequence();
            let same = known
                .batches
                .iter()
                .flatten()
                .find(|batch| batch.first_sequence() == found && batch.last_sequence == last_sequence);
            if let Some(batch) = same {
                return Verdict::Duplicate {
                    base_offset: batch.last_offset - Offset::from(batch.offset_delta),
                    last_offset: batch.last_offset,
                    timestamp: batch.timestamp,
                };
            }
            let expected = match known.last().map(|batch| batch.last_sequence) {
                None | Some(i32::MAX) => 0,
                Some(last) => last + 1,
            };
            if found != expected {
                return Verdict::OutOfOrder { expected, found };
            }
        }
        if known.transaction_start.is_some() && !header.is_transactional() {
            return Verdict::TransactionOpen;
        }
        Verdict::Append
    }

    /// Takes in a batch that is in the log: `header` with its offsets there, `batch` its bytes (looked at
    /// only for markers). Returns the transaction that it ends.
    pub(crate) fn record(&mut self, header: &BatchHeader, batch: &[u8], now: WallTime) -> Option<Ended> {
        if !header.has_producer() {
            return None;
        }
        if header.is_control() {
            return Marker::of(header, batch).map(|marker| self.end_transaction(header, marker, now));
        }
        let known =
            self.by_id.entry(header.producer_id).or_insert_with(|| Producer::new(header.producer_epoch, now));
        if header.producer_epoch != known.epoch {
            known.epoch = header.producer_epoch;
            known.batches = [None; REMEMBERED];
        }
        known.seen = now;
        known.last_timestamp = header.max_timestamp;
        if header.base_sequence >= 0 {
            known.remember(Remembered {
                last_sequence: header.last_sequence(),
                last_offset: header.last_offset(),
                offset_delta: header.last_offset_delta,
                timestamp: header.max_timestamp,
            });
        }
        if header.is_transactional() && known.transaction_start.is_none() {
            known.transaction_start = Some(header.base_offset);
        }
        None
    }

    fn end_transaction(&mut self, header: &BatchHeader, marker: Marker, now: WallTime) -> Ended {
        let known =
            self.by_id.entry(header.producer_id).or_insert_with(|| Producer::new(header.producer_epoch, now));
        if header.producer_epoch > known.epoch {
            known.epoch = header.producer_epoch;
            known.batches = [None; REMEMBERED];
        }
        known.seen = now;
        known.last_timestamp = header.max_timestamp;
        known.coordinator_epoch = marker.coordinator_epoch;
        let first_offset = known.transaction_start.take();
        Ended { producer_id: header.producer_id, first_offset, end: marker.end }
    }

    /// All producers, by id.
    pub fn describe(&self) -> Vec<ProducerDescription> {
        self.by_id
            .iter()
            .map(|(id, producer)| ProducerDescription {
                producer_id: *id,
                epoch: producer.epoch,
                last_sequence: producer.last().map_or(-1, |batch| batch.last_sequence),
                last_timestamp: producer.last_timestamp,
                coordinator_epoch: producer.coordinator_epoch,
                transaction_start: producer.transaction_start,
            })
            .collect()
    }

    /// First offset of the oldest open transaction: the last stable offset cannot pass it.
    pub fn first_open_transaction(&self) -> Option<Offset> {
        self.by_id.values().filter_map(|producer| producer.transaction_start).min()
    }

    /// How many producers are known.
    pub fn len(&self) -> usize {
        self.by_id.len()
    }

    /// Whether none is known.
    pub fn is_empty(&self) -> bool {
        self.by_id.is_empty()
    }

    /// Forgets producers that were last heard of `expiry_ms` ago and have no transaction open.
    pub(crate) fn expire(&mut self, now: WallTime, expiry_ms: i64) {
        self.by_id.retain(|_, producer| {
            producer.transaction_start.is_some() || now.0.saturating_sub(producer.seen.0) < expiry_ms
        });
    }

    pub(crate) fn iter(&self) -> impl Iterator<Item = (i64, &Producer)> {
        self.by_id.iter().map(|(id, producer)| (*id, producer))
    }

    pub(crate) fn insert(&mut self, id: i64, producer: Producer) {
        self.by_id.insert(id, producer);
    }

    pub(crate) fn get_mut(&mut self, id: i64) -> Option<&mut Producer> {
        self.by_id.get_mut(&id)
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    fn batch(
        producer_id: i64,
        epoch: i16,
        base_sequence: i32,
        records: i32,
        base_offset: Offset,
    ) -> BatchHeader {
        BatchHeader {
            base_offset,
            bytes: 100,
            generation: None,
            crc: 0,
            attributes: 0,
            last_offset_delta: records - 1,
            base_timestamp: 5,
            max_timestamp: 5,
            producer_id,
            producer_epoch: epoch,
            base_sequence,
            records,
        }
    }

    fn append(producers: &mut Producers, header: &BatchHeader) {
        assert_eq!(producers.check(header), Verdict::Append);
        producers.record(header, &[], WallTime(1000));
    }

    #[test]
    fn the_last_five_batches_are_known_again() {
        let mut producers = Producers::default();
        for at in 0..7 {
            append(&mut producers, &batch(1, 0, at * 10, 10, 100 + Offset::from(at) * 10));
        }
        for at in 2..7 {
            assert_eq!(
                producers.check(&batch(1, 0, at * 10, 10, 0)),
                Verdict::Duplicate {
                    base_offset: 100 + Offset::from(at) * 10,
                    last_offset: 109 + Offset::from(at) * 10,
                    timestamp: 5
                }
            );
        }
        let old = producers.check(&batch(1, 0, 10, 10, 0));
        assert_eq!(old, Verdict::OutOfOrder { expected: 70, found: 10 });
        let other_length = producers.check(&batch(1, 0, 60, 5, 0));
        assert_eq!(other_length, Verdict::OutOfOrder { expected: 70, found: 60 });
        let gap = producers.check(&batch(1, 0, 80, 1, 0));
        assert_eq!(gap, Verdict::OutOfOrder { expected: 70, found: 80 });
    }

    #[test]
    fn sequences_wrap() {
        let mut producers = Producers::default();
        append(&mut producers, &batch(1, 0, 2_147_483_640, 8, 0));
        append(&mut producers, &batch(1, 0, 0, 1, 8));
        append(&mut producers, &batch(2, 0, 2_147_483_646, 4, 9));
        assert_eq!(
            producers.check(&batch(2, 0, 3, 1, 0)),
            Verdict::OutOfOrder { expected: 2, found: 3 },
            "the batch ended at 1"
        );
        let again = producers.check(&batch(2, 0, 2_147_483_646, 4, 0));
        assert_eq!(again, Verdict::Duplicate { base_offset: 9, last_offset: 12, timestamp: 5 });
        append(&mut producers, &batch(2, 0, 2, 1, 13));
    }

    #[test]
    fn epochs_rise_and_begin_at_zero() {
        let mut producers = Producers::default();
        append(&mut producers, &batch(1, 3, 500, 1, 0));
        let stale = producers.check(&batch(1, 2, 501, 1, 0));
        assert_eq!(stale, Verdict::StaleEpoch { current: 3, found: 2 });
        let not_zero = producers.check(&batch(1, 5, 501, 1, 0));
        assert_eq!(not_zero, Verdict::OutOfOrder { expected: 0, found: 501 });
        append(&mut producers, &batch(1, 5, 0, 1, 1));
        let before = producers.check(&batch(1, 3, 500, 1, 0));
        assert_eq!(before, Verdict::StaleEpoch { current: 5, found: 3 });
    }

    #[test]
    fn idle_producers_are_forgotten_and_may_come_back_with_any_sequence() {
        let mut producers = Producers::default();
        append(&mut producers, &batch(1, 0, 0, 1, 0));
        producers.expire(WallTime(1999), 1000);
        assert_eq!(producers.len(), 1);
        producers.expire(WallTime(2000), 1000);
        assert!(producers.is_empty());
        append(&mut producers, &batch(1, 0, 77, 1, 1));
    }

    #[test]
    fn an_open_transaction_holds_the_stable_offset_until_its_marker() {
        let mut producers = Producers::default();
        let mut header = batch(1, 0, 0, 2, 10);
        header.attributes = 0x10;
        append(&mut producers, &header);
        assert_eq!(producers.first_open_transaction(), Some(10));
        assert_eq!(producers.check(&batch(1, 0, 2, 1, 0)), Verdict::TransactionOpen);
        producers.expire(WallTime(i64::MAX), 1);
        assert_eq!(producers.len(), 1, "an open transaction is not forgotten");
        let marker = Marker { end: TransactionEnd::Commit, coordinator_epoch: 9 }.batch(1, 0, 7).unwrap();
        producers.record(marker.header(), marker.bytes(), WallTime(1));
        assert_eq!(producers.first_open_transaction(), None);
        assert_eq!(producers.describe()[0].coordinator_epoch, 9);
    }
}
