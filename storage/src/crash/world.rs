//! A broker's storage as stories drive it: the order in which rows, logs and files change is the broker's own
//! (`broker/partition/src/opening.rs`, `copy/upkeep.rs`, `broker/src/partitions/upkeep.rs`).

use std::collections::BTreeMap;
use std::path::{Path, PathBuf};
use std::rc::Rc;

use felix_protocol::batch::control::{Marker, TransactionEnd};
use felix_protocol::batch::{BatchBuilder, CheckedBatch};
use felix_protocol::ids::{Generation, LogId, Offset, PartitionId, TopicId, Uuid};

use super::oath::{Ledger, Oaths, Presence, Setup, Stored, Table};
use super::{NOW, Outcome};
use crate::config::Limits;
use crate::data_dir::Identity;
use crate::disk::Disk;
use crate::disk::mem::{Crash, MemDisk};
use crate::flush::{FlushJob, Flusher};
use crate::layout;
use crate::log::Retired;
use crate::replicas::{Replica, Replicas};
use crate::{DataDir, FlushError, FlushMode, Log, LogConfig, StorageError};

pub(super) mod upkeep;

pub(super) const DATA: &str = "/data";

pub(super) fn told(error: StorageError) -> String {
    error.to_string()
}

pub(super) fn partition(number: u128) -> PartitionId {
    PartitionId { topic: TopicId(Uuid::from_u128(0x0C4A_54ED << 96 | number)), index: 0 }
}

pub(super) fn generation(number: u32) -> Generation {
    Generation::new(number).unwrap()
}

/// Small segments and dense indexes, so that few batches make many of each.
pub(super) fn small() -> LogConfig {
    LogConfig {
        segment_bytes: 2_000,
        index_interval_bytes: 300,
        retention_ms: None,
        file_delete_delay_ms: 10,
        ..LogConfig::default()
    }
}

fn new_row(number: u32) -> Replica {
    Replica {
        log_id: LogId(Uuid::from_u128(1)),
        accepted: generation(number),
        mark: 0,
        mark_generation: generation(number),
        log_start: 0,
        synced: 0,
        clean: false,
        unsynced: false,
        diverged: false,
    }
}

pub(super) struct World {
    pub disk: MemDisk,
    pub dir: DataDir<MemDisk>,
    pub replicas: Replicas<MemDisk>,
    flusher: Flusher<MemDisk>,
    pub logs: BTreeMap<PartitionId, Log<MemDisk>>,
    pub ledger: Ledger,
    pub setup: Rc<Setup>,
}

impl World {
    /// The first start on an empty disk, recorded if the story is about that.
    pub(super) fn first(disk: &MemDisk, mode: Option<FlushMode>, config: LogConfig) -> Outcome<World> {
        let setup = Setup { config, mode, every_time: false };
        let ledger = Ledger::new(disk, Rc::new(Oaths::new(setup)));
        let dir = DataDir::open(disk.clone(), Path::new(DATA), Limits::default()).map_err(told)?;
        let (replicas, _) = Replicas::open(&dir).map_err(told)?;
        World::around(disk, dir, replicas, ledger)
    }

    /// The usual beginning: a directory in use, nothing recorded yet.
    pub(super) fn small(disk: &MemDisk) -> Outcome<World> {
        World::first(disk, None, small())
    }

    pub(super) fn around(
        disk: &MemDisk,
        dir: DataDir<MemDisk>,
        replicas: Replicas<MemDisk>,
        ledger: Ledger,
    ) -> Outcome<World> {
        let setup = Rc::clone(&ledger.now().setup);
        let flusher = Flusher::new(&dir, setup.mode.unwrap_or_default()).map_err(told)?;
        Ok(World { disk: disk.clone(), dir, replicas, flusher, logs: BTreeMap::new(), ledger, setup })
    }

    /// The story begins: what happens from here on is recorded.
    pub(super) fn record(&mut self) {
        self.disk.record();
        self.ledger.begin();
    }

    pub(super) fn set_up(&mut self, change: impl FnOnce(&mut Setup)) {
        let mut setup = self.setup.as_ref().clone();
        change(&mut setup);
        self.setup = Rc::new(setup);
        let shared = Rc::clone(&self.setup);
        self.ledger.update(|oaths| oaths.setup = shared);
        for log in self.logs.values_mut() {
            log.set_config(self.setup.config.clone());
        }
    }

    pub(super) fn folder(&self, partition: PartitionId) -> PathBuf {
        self.dir.folder(&partition)
    }

    pub(super) fn log(&mut self, partition: PartitionId) -> &mut Log<MemDisk> {
        self.logs.get_mut(&partition).unwrap()
    }

    pub(super) fn row(&self, partition: PartitionId) -> Replica {
        self.replicas.get(&partition).unwrap()
    }

    // ---- the table ----

    pub(super) fn table(&self) -> Table {
        self.replicas.all().into_iter().collect()
    }

    /// Stages by `stage` and commits: until that is done, the old table may be found, or the new one.
    pub(super) fn commit(&mut self, stage: impl FnOnce(&Replicas<MemDisk>)) -> Outcome<()> {
        let before = self.ledger.now().boots.clone();
        stage(&self.replicas);
        let table = Rc::new(self.table());
        let on_its_way = Rc::clone(&table);
        self.ledger.update(|oaths| oaths.tables.push(on_its_way));
        let ticket = self.replicas.stage_with(&partition(u128::MAX), |_| ());
        self.replicas.commit(ticket).map_err(told)?;
        self.ledger.update(|oaths| {
            oaths.tables = vec![table];
            oaths.boots = before.last().copied().into_iter().collect();
        });
        Ok(())
    }

    pub(super) fn commit_boot(&mut self, boot: u128) -> Outcome<()> {
        self.ledger.update(|oaths| oaths.boots.push(Some(boot)));
        self.commit(|replicas| {
            replicas.stage_boot_id(boot);
        })
    }

    pub(super) fn commit_row(
        &mut self,
        partition: PartitionId,
        change: impl FnOnce(&mut Replica),
    ) -> Outcome<()> {
        let mut row = self.row(partition);
        change(&mut row);
        self.commit(|replicas| {
            replicas.stage(partition, row);
        })
    }

    /// Notes where the log stands, as the upkeep does every few seconds.
    pub(super) fn note_row(&mut self, partition: PartitionId) -> Outcome<()> {
        let log = self.log(partition);
        let (start, synced) = (log.start(), log.synced());
        self.commit_row(partition, |row| {
            row.mark = row.mark.max(synced);
            row.mark_generation = row.accepted;
            row.log_start = start;
            row.synced = synced;
        })
    }

    // ---- logs ----

    /// A new log, led at `number`.
    pub(super) fn create(&mut self, partition: PartitionId, number: u32) -> Outcome<()> {
        self.ledger.update_log(partition, |_| ());
        let config = self.setup.config.clone();
        let make = || Log::create(&self.dir, partition, config.clone(), 0, NOW);
        let log = match make() {
            Err(StorageError::Exists(_)) => {
                let unknown = crate::Recovered { cut_ambiguous: true, ..crate::Recovered::default() };
                let (log, _) = Log::open(&self.dir, partition, config.clone(), unknown, NOW).map_err(told)?;
                log.delete().and_then(crate::Deleted::remove).map_err(told)?;
                make()
            }
            made => made,
        };
        self.logs.insert(partition, log.map_err(told)?);
        let row = new_row(number);
        self.commit(|replicas| {
            replicas.stage(partition, row);
        })?;
        self.flush(partition)?;
        self.ledger.update_log(partition, |oath| oath.presence = Presence::Must);
        Ok(())
    }

    /// A new log whose first flush is still to come.
    pub(super) fn create_unflushed(&mut self, partition: PartitionId) -> Outcome<()> {
        self.ledger.update_log(partition, |_| ());
        let log = Log::create(&self.dir, partition, self.setup.config.clone(), 0, NOW).map_err(told)?;
        self.logs.insert(partition, log);
        self.commit(|replicas| {
            replicas.stage(partition, new_row(1));
        })
    }

    /// An append that is expected to fail.
    pub(super) fn refused(&mut self, partition: PartitionId, size: usize) -> Outcome<()> {
        let before = self.ledger.now().logs[&partition].may.clone();
        let outcome = self.fill(partition, size);
        if outcome.is_err() {
            self.ledger.update_log(partition, |oath| oath.may = before);
        }
        outcome
    }

    /// Several new logs, opened together as a broker opens what it is named to lead.
    pub(super) fn create_together(&mut self, partitions: &[PartitionId]) -> Outcome<()> {
        for partition in partitions {
            self.ledger.update_log(*partition, |_| ());
            let log = Log::create(&self.dir, *partition, self.setup.config.clone(), 0, NOW).map_err(told)?;
            self.logs.insert(*partition, log);
        }
        // One commit for all.
        self.commit(|replicas| {
            for partition in partitions {
                replicas.stage(*partition, new_row(1));
            }
        })?;
        self.flush_all()?;
        for partition in partitions {
            self.ledger.update_log(*partition, |oath| oath.presence = Presence::Must);
        }
        Ok(())
    }

    pub(super) fn identify(&mut self) -> Outcome<()> {
        let identity =
            Identity { cluster_id: "cluster".to_string(), node_id: 1, directory_id: "directory".to_string() };
        self.dir.set_identity(&identity).map_err(told)?;
        self.ledger.update(|oaths| oaths.identity = Some(identity));
        Ok(())
    }

    /// Accepts a newer generation, as for a new tenure in the same process.
    pub(super) fn lead(&mut self, partition: PartitionId) -> Outcome<()> {
        self.commit_row(partition, |row| row.accepted = generation(row.accepted.number() + 1))
    }

    /// Ends and starts again on the same disk.
    pub(super) fn restart(self) -> Outcome<World> {
        let World { disk, dir, replicas, flusher, logs, ledger, .. } = self;
        drop((logs, flusher, replicas, dir));
        Ok(World::start_with(&disk, ledger)?.0)
    }

    /// A start on what is left of this one's disk, recorded.
    pub(super) fn start_recorded(self, crash: Crash, harm: impl FnOnce(&MemDisk)) -> Outcome<World> {
        let disk = self.disk.crash(crash);
        harm(&disk);
        disk.record();
        Ok(World::start(&disk, self.ledger.now())?.0)
    }

    pub(super) fn append(
        &mut self,
        partition: PartitionId,
        batch: &CheckedBatch,
        times: &[i64],
    ) -> Outcome<()> {
        let accepted = self.row(partition).accepted;
        let base = self.log(partition).end();
        let stored = Stored::of(batch, base, accepted, times);
        self.ledger.update_log(partition, |oath| {
            Rc::make_mut(&mut oath.may).push(stored);
            oath.loose = true;
        });
        self.log(partition).append(batch, accepted, NOW).map_err(told)?;
        Ok(())
    }

    /// A batch of one record of `size` bytes.
    pub(super) fn fill(&mut self, partition: PartitionId, size: usize) -> Outcome<()> {
        let end = self.log(partition).end();
        let mut builder = BatchBuilder::new();
        let fill = u8::try_from(end % 200 + 1).unwrap();
        builder.push(1_000 + end, None, Some(&vec![fill; size]));
        self.append(partition, &builder.build().unwrap(), &[1_000 + end])
    }

    /// A batch of an idempotent producer, with the sequence that is due.
    pub(super) fn produce(&mut self, partition: PartitionId, producer: i64, records: i64) -> Outcome<()> {
        let (end, sequence) = (self.log(partition).end(), self.due(partition, producer));
        let mut builder = BatchBuilder::new().producer(producer, 0, sequence);
        let times: Vec<i64> = (0..records).map(|at| 1_000 + end + at).collect();
        for time in &times {
            builder.push(*time, None, Some(&[7; 90]));
        }
        self.append(partition, &builder.build().unwrap(), &times)
    }

    /// A transaction of one record, and the marker that commits it.
    pub(super) fn transact(&mut self, partition: PartitionId, producer: i64) -> Outcome<()> {
        self.within(partition, producer, &[("within", Some(1))])?;
        self.mark(partition, producer, TransactionEnd::Commit)
    }

    /// Records of a producer's transaction, each a key and the size of its value; without one a tombstone.
    pub(super) fn within(
        &mut self,
        partition: PartitionId,
        producer: i64,
        records: &[(&str, Option<usize>)],
    ) -> Outcome<()> {
        let sequence = self.due(partition, producer);
        let builder = BatchBuilder::new().producer(producer, 0, sequence).transactional();
        self.push(partition, builder, records)
    }

    /// Records of nobody in particular.
    pub(super) fn put(&mut self, partition: PartitionId, records: &[(&str, Option<usize>)]) -> Outcome<()> {
        self.push(partition, BatchBuilder::new(), records)
    }

    fn push(
        &mut self,
        partition: PartitionId,
        mut builder: BatchBuilder,
        records: &[(&str, Option<usize>)],
    ) -> Outcome<()> {
        let end = self.log(partition).end();
        let times: Vec<i64> = (1_000 + end..).take(records.len()).collect();
        for (time, (key, size)) in times.iter().zip(records) {
            let value = size.map(|size| vec![u8::try_from(time % 200 + 1).unwrap(); size]);
            builder.push(*time, Some(key.as_bytes()), value.as_deref());
        }
        self.append(partition, &builder.build().unwrap(), &times)
    }

    /// The marker that ends a producer's transaction.
    pub(super) fn mark(&mut self, partition: PartitionId, producer: i64, end: TransactionEnd) -> Outcome<()> {
        let time = 1_000 + self.log(partition).end();
        let marker = Marker { end, coordinator_epoch: 3 }.batch(producer, 0, time).unwrap();
        self.append(partition, &marker, &[time])
    }

    /// The next sequence of a producer.
    fn due(&mut self, partition: PartitionId, producer: i64) -> i32 {
        let known = self.log(partition).producers().describe();
        known.iter().find(|known| known.producer_id == producer).map_or(0, |known| known.last_sequence + 1)
    }

    pub(super) fn run(&self, job: FlushJob<MemDisk>) -> Result<Offset, FlushError> {
        match self.setup.mode {
            None => job.run(),
            Some(_) => self.flusher.run(vec![job]).pop().unwrap(),
        }
    }

    /// Flushes what is there: acknowledged from then on.
    pub(super) fn flush(&mut self, partition: PartitionId) -> Outcome<()> {
        while let Some(job) = self.log(partition).flush_job() {
            self.finish(partition, job)?;
        }
        Ok(())
    }

    /// Runs a job that was taken before.
    pub(super) fn finish(&mut self, partition: PartitionId, job: FlushJob<MemDisk>) -> Outcome<()> {
        let outcome = self.run(job);
        let log = self.log(partition);
        log.flushed(&outcome);
        outcome.map_err(|error| error.to_string())?;
        let (durable, end) = (log.durable(), log.end());
        self.ledger.update_log(partition, |oath| {
            oath.must = durable;
            oath.loose = durable < end;
        });
        Ok(())
    }

    /// All logs in one go, as the flusher gathers them.
    pub(super) fn flush_all(&mut self) -> Outcome<()> {
        let partitions: Vec<PartitionId> = self.logs.keys().copied().collect();
        let mut jobs = Vec::new();
        let mut of = Vec::new();
        for partition in partitions {
            if let Some(job) = self.log(partition).flush_job() {
                jobs.push(job);
                of.push(partition);
            }
        }
        let outcomes = self.flusher.run(jobs);
        for (partition, outcome) in of.into_iter().zip(outcomes) {
            let log = self.log(partition);
            log.flushed(&outcome);
            outcome.map_err(|error| error.to_string())?;
            let durable = log.durable();
            self.ledger.update_log(partition, |oath| (oath.must, oath.loose) = (durable, false));
        }
        Ok(())
    }

    /// Cuts, in the order that [`Log::truncate`] asks for.
    pub(super) fn truncate(&mut self, partition: PartitionId, to: Offset) -> Outcome<()> {
        self.ledger.update_log(partition, |oath| {
            let whole = oath.may.iter().map(Stored::next).filter(|next| *next <= to).max();
            oath.must = oath.must.min(whole.unwrap_or(0));
        });
        self.commit_row(partition, |row| {
            row.mark = row.mark.min(to);
            row.synced = row.synced.min(to);
        })?;
        let end = self.log(partition).truncate(to, NOW).map_err(told)?;
        // Durable on return, whatever of it was flushed before.
        self.ledger.update_log(partition, |oath| {
            Rc::make_mut(&mut oath.may).retain(|batch| batch.next() <= end);
            for rewritten in &mut oath.rewritten {
                let rewritten = Rc::make_mut(rewritten);
                rewritten.batches.retain(|batch| batch.next() <= end);
                rewritten.until = rewritten.until.min(end);
            }
            oath.must = end;
            oath.loose = false;
            oath.presence = Presence::Must;
        });
        Ok(())
    }

    /// Retention: the row first, then the names, then the bytes.
    pub(super) fn retain(&mut self, partition: PartitionId, bytes: u64) -> Outcome<Retired<MemDisk>> {
        let mark = self.log(partition).durable();
        let config = self.setup.config.clone();
        let log = self.log(partition);
        log.set_config(LogConfig { retention_bytes: Some(bytes), ..config.clone() });
        let retired = log.retain(mark, NOW);
        log.set_config(config);
        let mut retired = retired.map_err(told)?;
        self.note_row(partition)?;
        retired.hide().map_err(told)?;
        Ok(retired)
    }

    /// Removes what retention took: nothing of it stays.
    pub(super) fn gone(&mut self, partition: PartitionId, retired: Retired<MemDisk>) -> Outcome<()> {
        retired.remove().map_err(told)?;
        let first = self.log(partition).segments().first().map_or(0, |first| first.base());
        let folder = self.folder(partition);
        let left = self.disk.read_dir(&folder).map_err(|error| error.to_string())?;
        let stays = left.iter().find(|entry| {
            let name = entry.name.trim_end_matches(layout::DELETED);
            layout::parse_file_name(name).is_some_and(|(offset, _)| offset < first)
        });
        stays.map_or(Ok(()), |entry| Err(format!("{} stays", entry.name)))
    }

    pub(super) fn advance(&mut self, partition: PartitionId, to: Offset) -> Outcome<()> {
        self.log(partition).advance_start(to).map_err(told)?;
        self.note_row(partition)
    }

    /// The planned end of one log.
    pub(super) fn close(&mut self, partition: PartitionId) -> Outcome<()> {
        self.flush(partition)?;
        let log = self.logs.remove(&partition).unwrap();
        let (start, end) = (log.start(), log.end());
        let job = log.close_clean(NOW).map_err(told)?;
        self.run(job).map_err(|error| error.to_string())?;
        self.commit_row(partition, |row| {
            (row.mark, row.log_start, row.synced, row.clean) = (end, start, end, true);
        })
    }

    /// The topic is gone: the folder's name, the row, the bytes.
    pub(super) fn delete(&mut self, partition: PartitionId) -> Outcome<()> {
        self.ledger.update_log(partition, |oath| oath.presence = Presence::May);
        let deleted = self.logs.remove(&partition).unwrap().delete().map_err(told)?;
        self.ledger.update_log(partition, |oath| oath.presence = Presence::MustNot);
        self.commit(|replicas| {
            replicas.stage_removal(&partition);
        })?;
        deleted.remove().map_err(told)
    }
}
