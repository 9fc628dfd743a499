//! One node's disk: what is written, what of it is durable, and what a crash leaves.

use std::collections::BTreeMap;

use felix_protocol::generation_map::GenerationMap;
use felix_protocol::ids::{Generation, LogId, Offset, Uuid};
use felix_replication::follower::Held;

/// A record: who wrote it, and a number that is never used again.
pub type Value = (Generation, u32);

#[derive(Clone, Debug)]
pub struct Disk {
    pub log: LogId,
    pub fence: Generation,
    /// The fence as the running process knows it; the same, unless C7 is left out.
    pub volatile_fence: Generation,
    pub start: Offset,
    pub end: Offset,
    pub synced: Offset,
    pub records: BTreeMap<Offset, Value>,
    pub map: GenerationMap,
    /// As persisted: lazily.
    pub mark: Offset,
    pub mark_generation: Generation,
    /// The mark in memory.
    pub known_mark: (Offset, Generation),
}

impl Disk {
    pub fn new(log: u128, start: Offset, fence: Generation) -> Disk {
        Disk {
            log: LogId(Uuid::from_u128(log)),
            fence,
            volatile_fence: fence,
            start,
            end: start,
            synced: start,
            records: BTreeMap::new(),
            map: GenerationMap::default(),
            mark: start,
            mark_generation: fence,
            known_mark: (start, fence),
        }
    }

    pub fn append(&mut self, offset: Offset, value: Value) {
        assert!(offset >= self.end, "{offset} behind {}", self.end);
        self.map.begin(value.0, offset);
        self.records.insert(offset, value);
        self.end = offset + 1;
    }

    /// A batch without records up to there.
    pub fn fill(&mut self, next: Offset, generation: Generation) {
        if next > self.end {
            self.map.begin(generation, self.end);
            self.end = next;
        }
    }

    pub fn cut(&mut self, to: Offset) {
        self.records.split_off(&to);
        self.map.cut(to);
        self.end = self.end.min(to);
        self.synced = self.end;
        self.mark = self.mark.min(to);
    }

    pub fn flush(&mut self) {
        self.synced = self.end;
    }

    pub fn advance_start(&mut self, start: Offset) {
        self.start = self.start.max(start);
        self.records = self.records.split_off(&self.start);
        self.map.trim(self.start);
    }

    pub fn persist_mark(&mut self) {
        let (mark, generation) = self.known_mark;
        if mark >= self.mark {
            (self.mark, self.mark_generation) = (mark.min(self.synced), generation);
        }
    }

    /// The process dies; with the power, what was not synced may go from `keep` on.
    pub fn crash(&mut self, keep: Option<Offset>) {
        if let Some(keep) = keep {
            let end = keep.clamp(self.synced, self.end);
            self.records.split_off(&end);
            self.map.cut(end);
            self.end = end;
        }
        self.volatile_fence = self.fence;
        // Every start flushes before anything is answered.
        self.synced = self.end;
        self.known_mark = (self.mark, self.mark_generation);
    }

    pub fn held(&self) -> Held {
        Held {
            log: self.log,
            accepted: self.volatile_fence,
            start: self.start,
            end: self.end,
            stored: self.synced,
            mark: self.known_mark.0,
            mark_generation: self.known_mark.1,
            map: self.map.clone(),
            halted: None,
        }
    }

    /// Whether the record is there for good, or was dropped by retention after it was committed.
    pub fn keeps(&self, offset: Offset, value: &Value) -> bool {
        offset < self.start || (offset < self.synced && self.records.get(&offset) == Some(value))
    }
}
