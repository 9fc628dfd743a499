//! What happens to closed segments behind the back of writers: rounds of compaction and looks through segments, in
//! the order of the broker's threads (`broker/src/partitions/compaction.rs`, `scrub.rs`).

use std::rc::Rc;

use felix_protocol::ids::{Offset, PartitionId};
use felix_protocol::time::WallTime;

use super::super::oath::{self, Rewritten, Stored};
use super::super::{NOW, Outcome};
use super::{World, small, told};
use crate::compaction::{Cleaned, CompactionConfig, CompactionError, OffsetMap};
use crate::disk::Disk;
use crate::disk::mem::MemDisk;
use crate::layout::{self, Kind};
use crate::segment::output;
use crate::{LogConfig, StorageError, scrub};

/// Tombstones and markers stay for so long after the round that found them due.
const RETENTION_MS: i64 = 1_000;

/// Any dirty record is worth a round.
pub(in crate::crash) fn compacted() -> LogConfig {
    let compaction = CompactionConfig {
        delete_retention_ms: RETENTION_MS,
        min_dirty_millionths: 0,
        ..CompactionConfig::default()
    };
    LogConfig { compacts: true, deletes: false, compaction, ..small() }
}

/// Late enough for everything that the round before left for later.
pub(in crate::crash) fn after_rounds(rounds: i64) -> WallTime {
    WallTime(NOW.0 + rounds * (RETENTION_MS + 1))
}

fn failed(error: CompactionError) -> String {
    error.to_string()
}

impl World {
    /// Closes the active segment, as `segment.ms` does.
    pub(in crate::crash) fn roll(&mut self, partition: PartitionId) -> Outcome<()> {
        let config = self.setup.config.clone();
        let log = self.log(partition);
        log.set_config(LogConfig { segment_ms: 1, ..config.clone() });
        let rolled = log.roll_if_due(NOW);
        log.set_config(config);
        if rolled.map_err(told)? { Ok(()) } else { Err("the segment is not due".to_string()) }
    }

    /// One round over a log that has something to compact.
    pub(in crate::crash) fn compact(&mut self, partition: PartitionId, now: WallTime) -> Outcome<()> {
        // What the round relies on is durable.
        self.commit(|_| ())?;
        let (mark, synced) = (self.log(partition).durable(), self.row(partition).synced);
        let plan = self.log(partition).compaction_round(mark, synced);
        let mut plan = plan.ok_or("nothing to compact")?;
        if !plan.assess(now).map_err(|error| error.to_string())?.is_worth_it() {
            return Err("not worth a round".to_string());
        }
        let mut map = OffsetMap::new(1 << 12, 0.9);
        let mut round = plan.begin(&mut map, now, 700, &mut |_| true).map_err(failed)?;
        while let Some(cleaned) = round.next_group(&mut |_| true).map_err(failed)? {
            self.put_in_place(partition, cleaned)?;
        }
        let summary = round.summary();
        self.ledger.update_log(partition, |oath| {
            Rc::make_mut(&mut oath.rewritten[0]).until = summary.end;
        });
        let content = self.log(partition).compacted(&summary).ok_or("nothing to note")?;
        self.log(partition).reader().note_compaction(&content).map_err(told)
    }

    /// Begins a round and ends it where its first segment counts and has not got its place yet.
    pub(in crate::crash) fn compact_half(&mut self, partition: PartitionId) -> Outcome<()> {
        let (mark, synced) = (self.log(partition).durable(), self.row(partition).synced);
        let plan = self.log(partition).compaction_round(mark, synced).ok_or("nothing to compact")?;
        let mut map = OffsetMap::new(1 << 12, 0.9);
        let mut round = plan.begin(&mut map, NOW, 700, &mut |_| true).map_err(failed)?;
        let cleaned = round.next_group(&mut |_| true).map_err(failed)?.ok_or("nothing to write anew")?;
        self.make_count(partition, cleaned).map(drop)
    }

    fn make_count(
        &mut self,
        partition: PartitionId,
        mut cleaned: Cleaned<MemDisk>,
    ) -> Outcome<Cleaned<MemDisk>> {
        let (from, to) = cleaned.range();
        if !self.log(partition).claim(&cleaned) {
            return Err("the segments could not be claimed".to_string());
        }
        let rewritten = Rc::new(self.rewritten(partition, from, to)?);
        self.ledger.update_log(partition, |oath| oath.rewritten.push(Rc::clone(&rewritten)));
        cleaned.commit().map_err(failed)?;
        // From here on the old segments must not come back.
        self.ledger.update_log(partition, |oath| oath.rewritten = vec![rewritten]);
        Ok(cleaned)
    }

    fn put_in_place(&mut self, partition: PartitionId, cleaned: Cleaned<MemDisk>) -> Outcome<()> {
        let (from, to) = cleaned.range();
        let cleaned = self.make_count(partition, cleaned)?;
        let replaced = self.log(partition).swap(cleaned).map_err(told)?.ok_or("cut meanwhile")?;
        replaced.remove().map_err(told)?;
        for entry in self.disk.read_dir(&self.folder(partition)).map_err(|error| error.to_string())? {
            let name = entry.name.as_str();
            let replaced = layout::parse_file_name(name).is_some_and(|(at, _)| from < at && at < to);
            let between = [layout::CLEANED, layout::SWAP, layout::DELETED];
            if replaced || between.iter().any(|ending| name.ends_with(ending)) {
                return Err(format!("{name} stays"));
            }
        }
        Ok(())
    }

    /// What a round wrote for `[from, to)`, with what stands around it. Nobody misses anything in it.
    fn rewritten(&self, partition: PartitionId, from: Offset, to: Offset) -> Outcome<Rewritten> {
        let path = output::cleaned(&layout::file_path(&self.folder(partition), from, Kind::Log));
        let content = self.disk.content(&path).map_err(|error| error.to_string())?;
        let written = Stored::all_of(content.into())?;
        let oath = &self.ledger.now().logs[&partition];
        let before = oath.rewritten[0].of(&oath.may);
        let is_within = |batch: &&Stored| (from..to).contains(&batch.header.base_offset);
        if written.iter().any(|batch| !is_within(&batch)) {
            return Err(format!("[{from}, {to}) became {written:?}"));
        }
        let below = to.max(oath.rewritten[0].below);
        let mut batches = before.clone();
        batches.retain(|batch| batch.header.base_offset < below && !is_within(&batch));
        batches.extend(written);
        batches.sort_by_key(|batch| batch.header.base_offset);
        let rewritten = Rewritten { below, batches, until: oath.rewritten[0].until };
        let (wanted, found) = (oath::newest_of(&oath.may)?, oath::newest_of(&rewritten.of(&oath.may))?);
        if found != wanted {
            return Err(format!("the newest records are {found:?}, they were {wanted:?}"));
        }
        Ok(rewritten)
    }

    /// Looks through all closed segments, which seals them. Returns how many there were.
    pub(in crate::crash) fn scrub(&mut self, partition: PartitionId) -> Outcome<usize> {
        let reader = self.log(partition).reader();
        let later = WallTime(NOW.0 + 1);
        let mut looked = 0;
        while let Some(mut scrub) = reader.scrub(later, 1) {
            let mut buf = Vec::new();
            let outcome = loop {
                match scrub.step(&mut buf).map_err(|error| error.to_string())? {
                    scrub::Progress::Read(_) => {}
                    scrub::Progress::Done(outcome) => break outcome,
                }
            };
            match outcome {
                scrub::Outcome::Good | scrub::Outcome::Sealed | scrub::Outcome::Resealed(_) => looked += 1,
                scrub::Outcome::Damaged(damaged) => return Err(StorageError::from(damaged).to_string()),
                scrub::Outcome::Gone => return Err("a segment went while it was looked through".to_string()),
            }
        }
        Ok(looked)
    }
}
