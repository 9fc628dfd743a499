//! What was promised, and what was written at all, at each moment of a story.

use std::collections::BTreeMap;
use std::rc::Rc;

use bytes::Bytes;
use felix_protocol::batch::control::{Marker, TransactionEnd};
use felix_protocol::batch::scan::Batches;
use felix_protocol::batch::{BatchHeader, BatchRecords, CheckedBatch, Limits, PATCH_BYTES, patched_head};
use felix_protocol::generation_map::GenerationMap;
use felix_protocol::ids::{Generation, Offset, PartitionId};

use super::{NOW, Outcome};
use crate::AbortedTransaction;
use crate::data_dir::Identity;
use crate::disk::mem::MemDisk;
use crate::replicas::Replica;
use crate::{FlushMode, LogConfig, Producers};

/// A batch as it stands in a log.
#[derive(Clone, Debug)]
pub(super) struct Stored {
    pub header: BatchHeader,
    pub bytes: Bytes,
    /// Timestamps of its records, by offset.
    pub times: Vec<(Offset, i64)>,
}

impl Stored {
    pub(super) fn of(batch: &CheckedBatch, base: Offset, generation: Generation, times: &[i64]) -> Stored {
        let mut header = *batch.header();
        header.base_offset = base;
        header.generation = Some(generation);
        let mut bytes = patched_head(batch.bytes(), base, generation).to_vec();
        bytes.extend_from_slice(&batch.bytes()[PATCH_BYTES..]);
        let times = (base..).zip(times.iter().copied()).collect();
        Stored { header, bytes: bytes.into(), times }
    }

    /// What a file holds.
    pub(super) fn all_of(content: Bytes) -> Outcome<Vec<Stored>> {
        let mut all = Vec::new();
        for batch in Batches::new(content) {
            let batch = batch.map_err(|error| error.to_string())?;
            let mut times = Vec::new();
            let mut records = BatchRecords::new(&batch.header, &batch.bytes, Limits::NONE)
                .map_err(|fault| fault.to_string())?;
            while let Some(record) = records.next() {
                let record = record.map_err(|fault| fault.to_string())?;
                let offset = batch.header.base_offset + Offset::from(record.offset_delta);
                times.push((offset, batch.header.timestamp(record.timestamp_delta)));
            }
            all.push(Stored { header: batch.header, bytes: batch.bytes, times });
        }
        Ok(all)
    }

    pub(super) fn next(&self) -> Offset {
        self.header.next_offset()
    }
}

/// What compaction made of a log: what may be found in place of what was written.
#[derive(Clone, Debug, Default)]
pub(super) struct Rewritten {
    /// From here on batches are as they were written.
    pub below: Offset,
    /// The batches below.
    pub batches: Vec<Stored>,
    /// Rounds have been through everything below.
    pub until: Offset,
}

impl Rewritten {
    /// All batches, of those that were written.
    pub(super) fn of(&self, written: &[Stored]) -> Vec<Stored> {
        let rest = written.iter().filter(|batch| batch.header.base_offset >= self.below);
        self.batches.iter().chain(rest).cloned().collect()
    }
}

/// Whether a log is there.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(super) enum Presence {
    Must,
    May,
    MustNot,
}

/// Of one log.
#[derive(Clone, Debug)]
pub(super) struct Oath {
    pub presence: Presence,
    /// Every batch that was written, from offset 0 on: what is found is a beginning of it.
    pub may: Rc<Vec<Stored>>,
    /// What stands in its place where a round of compaction has been; two while one is being put there.
    pub rewritten: Vec<Rc<Rewritten>>,
    /// Everything below was acknowledged.
    pub must: Offset,
    /// Batches are in the file that no flush covers, so a readable one may follow a torn one.
    pub loose: bool,
}

pub(super) type Table = BTreeMap<PartitionId, Replica>;

/// How stories flush, and with which settings.
#[derive(Clone, Debug)]
pub(super) struct Setup {
    pub config: LogConfig,
    /// `None`: each job by itself.
    pub mode: Option<FlushMode>,
    /// Every timestamp is looked up after a recovery, instead of a few.
    pub every_time: bool,
}

/// Of a whole data directory.
#[derive(Clone, Debug)]
pub(super) struct Oaths {
    pub setup: Rc<Setup>,
    pub logs: BTreeMap<PartitionId, Oath>,
    /// The tables that may be found: the last one that was committed, and one that is on its way.
    pub tables: Vec<Rc<Table>>,
    pub boots: Vec<Option<u128>>,
    /// Side files were harmed by hand: that something is rebuilt is no fault.
    pub harmed: bool,
    /// Must be found; `None`: may be anything that was ever given.
    pub identity: Option<Identity>,
}

impl Oaths {
    pub(super) fn new(setup: Setup) -> Oaths {
        Oaths {
            setup: Rc::new(setup),
            logs: BTreeMap::new(),
            tables: vec![Rc::default()],
            boots: vec![None],
            harmed: false,
            identity: None,
        }
    }
}

/// The promises of a story, each with the moment from which it holds.
pub(super) struct Ledger {
    disk: MemDisk,
    entries: Vec<(usize, Rc<Oaths>)>,
}

impl Ledger {
    pub(super) fn new(disk: &MemDisk, oaths: Rc<Oaths>) -> Ledger {
        Ledger { disk: disk.clone(), entries: vec![(disk.recorded(), oaths)] }
    }

    /// Everything from now on is recorded: what was promised before holds at the beginning.
    pub(super) fn begin(&mut self) {
        let now = self.now();
        self.entries = vec![(0, now)];
    }

    pub(super) fn now(&self) -> Rc<Oaths> {
        Rc::clone(&self.entries[self.entries.len() - 1].1)
    }

    /// What holds before the entry `at` of the trace.
    pub(super) fn at(&self, at: usize) -> Rc<Oaths> {
        let upto = self.entries.partition_point(|(from, _)| *from <= at);
        Rc::clone(&self.entries[upto - 1].1)
    }

    /// Whether promises change at that moment.
    pub(super) fn changes_at(&self, at: usize) -> bool {
        self.entries.iter().any(|(from, _)| *from == at)
    }

    pub(super) fn update(&mut self, change: impl FnOnce(&mut Oaths)) {
        let mut oaths = self.now().as_ref().clone();
        change(&mut oaths);
        let at = self.disk.recorded();
        if self.entries.last().is_some_and(|(from, _)| *from == at) {
            self.entries.pop();
        }
        self.entries.push((at, Rc::new(oaths)));
    }

    pub(super) fn update_log(&mut self, partition: PartitionId, change: impl FnOnce(&mut Oath)) {
        self.update(|oaths| {
            let oath = oaths.logs.entry(partition).or_insert_with(|| Oath {
                presence: Presence::May,
                may: Rc::default(),
                rewritten: vec![Rc::default()],
                must: 0,
                loose: false,
            });
            change(oath);
        });
    }
}

/// The batches of a beginning that ends at `end`; `None` if no batch ends there.
pub(super) fn beginning(batches: &[Stored], end: Offset) -> Option<&[Stored]> {
    let upto = batches.partition_point(|batch| batch.next() <= end);
    (batches[..upto].last().map_or(0, Stored::next) == end).then_some(&batches[..upto])
}

pub(super) fn map_of(batches: &[Stored], start: Offset, end: Offset) -> GenerationMap {
    let mut map = GenerationMap::default();
    for batch in batches {
        if let Some(generation) = batch.header.generation {
            map.begin(generation, batch.header.base_offset);
        }
    }
    map.trim(start);
    map.cut(end);
    map
}

/// The transactions that markers among these batches aborted, and that had records.
pub(super) fn aborted_of(batches: &[Stored]) -> Vec<AbortedTransaction> {
    let mut open: BTreeMap<i64, Offset> = BTreeMap::new();
    let mut aborted = Vec::new();
    for batch in batches {
        let (header, producer_id) = (&batch.header, batch.header.producer_id);
        match Marker::of(header, &batch.bytes) {
            Some(marker) => {
                let first = open.remove(&producer_id);
                if let Some(first_offset) = first.filter(|_| marker.end == TransactionEnd::Abort) {
                    let last_offset = header.base_offset;
                    let last_stable_offset = open.values().min().copied().unwrap_or(last_offset + 1);
                    let entry =
                        AbortedTransaction { producer_id, first_offset, last_offset, last_stable_offset };
                    aborted.push(entry);
                }
            }
            None if header.is_transactional() => {
                open.entry(producer_id).or_insert(header.base_offset);
            }
            None => {}
        }
    }
    aborted
}

/// The newest record of each key that a reader of committed records comes to: where, and with which value.
pub(super) fn newest_of(batches: &[Stored]) -> Outcome<BTreeMap<Bytes, (Offset, Bytes)>> {
    let aborted = aborted_of(batches);
    let mut newest = BTreeMap::new();
    for batch in batches.iter().filter(|batch| !batch.header.is_control()) {
        let (header, producer) = (&batch.header, batch.header.producer_id);
        let is_aborted = header.is_transactional()
            && aborted.iter().any(|entry| {
                entry.producer_id == producer
                    && (entry.first_offset..entry.last_offset).contains(&header.base_offset)
            });
        if is_aborted {
            continue;
        }
        let mut records =
            BatchRecords::new(header, &batch.bytes, Limits::NONE).map_err(|fault| fault.to_string())?;
        while let Some(record) = records.next() {
            let record = record.map_err(|fault| fault.to_string())?;
            let Some(key) = record.key.map(Bytes::copy_from_slice) else { continue };
            let offset = header.base_offset + Offset::from(record.offset_delta);
            match record.value {
                Some(value) => newest.insert(key, (offset, Bytes::copy_from_slice(value))),
                None => newest.remove(&key),
            };
        }
    }
    Ok(newest)
}

/// What batches tell of producers.
pub(super) fn producers_of(batches: &[Stored]) -> Producers {
    let mut producers = Producers::default();
    for batch in batches {
        producers.record(&batch.header, &batch.bytes, NOW);
    }
    told(&producers)
}

/// Producers without what a snapshot cannot hold: when they were heard of, and the time of a batch that was the
/// last one when a marker followed.
pub(super) fn told(producers: &Producers) -> Producers {
    let mut told = Producers::default();
    for (id, producer) in producers.iter() {
        let mut producer = producer.clone();
        producer.seen = NOW;
        let ended = producer.coordinator_epoch >= 0;
        for batch in producer.batches.iter_mut().flatten().filter(|_| ended) {
            batch.timestamp = 0;
        }
        told.insert(id, producer);
    }
    told
}
