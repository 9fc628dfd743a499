//! A start on whatever a crash left, as the broker does it, and what must hold then.

use std::collections::{BTreeMap, BTreeSet};
use std::path::Path;
use std::rc::Rc;

use felix_protocol::ids::{LogId, Offset, PartitionId, Uuid};

use super::oath::{self, Ledger, Oath, Oaths, Presence, Rewritten, Stored};
use super::world::{DATA, World, generation, told};
use super::{NOW, Outcome};
use crate::config::Limits;
use crate::disk::mem::{Crash, MemDisk};
use crate::layout::{self, Kind};
use crate::log::LoadReport;
use crate::producers::snapshot;
use crate::replicas::{Replica, Replicas};
use crate::seal::{self, Found};
use crate::verify::{self, Weight};
use crate::{AbortedTransaction, DataDir, Log, Recovered, StorageError};

/// What a recovery met, for the record.
#[derive(Clone, Copy, Debug, Default)]
pub(super) struct Met {
    /// Logs whose tail could not be told from damage.
    pub ambiguous: usize,
    /// Bytes cut.
    pub cut: u64,
}

impl World {
    /// Starts on a disk of which that was promised, and checks that it is kept.
    pub(super) fn start(disk: &MemDisk, oaths: Rc<Oaths>) -> Outcome<(World, Met)> {
        World::start_with(disk, Ledger::new(disk, oaths))
    }

    /// The same with a ledger that goes on.
    pub(super) fn start_with(disk: &MemDisk, mut ledger: Ledger) -> Outcome<(World, Met)> {
        let oaths = ledger.now();
        disk.note_reads();
        let dir = DataDir::open(disk.clone(), Path::new(DATA), Limits::default()).map_err(told)?;
        let identity = dir.identity().map_err(told)?;
        if oaths.identity.is_some() && identity != oaths.identity {
            return Err(format!("identity {identity:?}"));
        }
        let (replicas, report) = Replicas::open(&dir).map_err(told)?;
        if report.damaged > 0 || !oaths.boots.contains(&report.boot_id) {
            return Err(format!("the table of copies: {report:?}, boots {:?}", oaths.boots));
        }
        let found = replicas.all().into_iter().collect();
        let Some(table) = oaths.tables.iter().find(|table| ***table == found) else {
            return Err(format!("table {found:?} of {:?}", oaths.tables));
        };
        let table = Rc::clone(table);
        ledger.update(|oaths| {
            oaths.tables = vec![Rc::clone(&table)];
            oaths.boots = vec![report.boot_id];
        });
        let mut world = World::around(disk, dir, replicas, ledger)?;
        world.commit_boot(report.boot_id.map_or(1, |boot| boot + 1))?;
        let mut met = Met::default();
        for deleted in world.dir.leftovers().map_err(told)? {
            deleted.remove().map_err(told)?;
        }
        let folders: BTreeSet<PartitionId> = world.dir.partitions().map_err(told)?.into_iter().collect();
        for (partition, oath) in &oaths.logs {
            let has_folder = folders.contains(partition);
            if oath.presence == Presence::MustNot && has_folder {
                return Err(format!("{partition} was deleted and is back"));
            }
            match table.get(partition) {
                // Its folder went first: the broker knows that the topic is gone.
                Some(_) if oath.presence == Presence::May && oath.must > 0 && !has_folder => {
                    world.commit(|replicas| {
                        replicas.stage_removal(partition);
                    })?;
                }
                Some(row) => world.open(*partition, oath, *row, has_folder, &mut met)?,
                None if oath.presence == Presence::Must => {
                    return Err(format!("{partition} has no row"));
                }
                // Nobody knows of it: a half-made or half-deleted copy.
                None if has_folder => {
                    let deleted = world.dir.discard(partition).map_err(told)?;
                    deleted.remove().map_err(told)?;
                }
                None => {}
            }
        }
        Ok((world, met))
    }

    /// Accepts a newer generation, opens the log, flushes it and looks at all of it.
    fn open(
        &mut self,
        partition: PartitionId,
        oath: &Oath,
        before: Replica,
        has_folder: bool,
        met: &mut Met,
    ) -> Outcome<()> {
        self.commit_row(partition, |row| {
            row.accepted = generation(row.accepted.number() + 1);
            row.clean = false;
        })?;
        let recovered = Recovered {
            clean: before.clean,
            mark: before.mark,
            log_start: before.log_start,
            synced: before.synced,
            made: oath.presence == Presence::Must,
            ..Recovered::default()
        };
        let (dir, config) = (self.dir.clone(), self.setup.config.clone());
        let open = |recovered| Log::open(&dir, partition, config.clone(), recovered, NOW);
        let (log, report) = match open(recovered) {
            Ok(opened) => opened,
            Err(StorageError::Missing(_)) if oath.presence != Presence::Must && !has_folder => {
                return self.commit(|replicas| {
                    replicas.stage_removal(&partition);
                });
            }
            Err(StorageError::Damaged(damage)) if !damage.promised && oath.loose => {
                // The broker declines under a new identity; an operator lets it lead all the same.
                met.ambiguous += 1;
                let renewed = LogId(Uuid::from_u128(before.log_id.0.as_u128() + 1));
                self.commit_row(partition, |row| {
                    row.log_id = renewed;
                    row.mark = row.log_start;
                })?;
                open(Recovered { cut_ambiguous: true, ..recovered }).map_err(told)?
            }
            Err(error) => return Err(format!("{partition} does not open: {error}")),
        };
        met.cut += report.cut_bytes;
        self.sealed_is_left_alone(&log, before, &report)?;
        self.logs.insert(partition, log);
        let (written, rewritten) = self.is_kept(partition, oath, before)?;
        self.flush(partition)?;
        let end = self.log(partition).end();
        self.ledger.update_log(partition, |oath| {
            (oath.may, oath.must, oath.loose) = (Rc::new(written), end, false);
            (oath.rewritten, oath.presence) = (vec![rewritten], Presence::Must);
        });
        self.side_files_are_right(partition)
    }

    /// What was flushed, completed files and all, is not read at a start, as long as its seal is there.
    fn sealed_is_left_alone(&self, log: &Log<MemDisk>, before: Replica, report: &LoadReport) -> Outcome<()> {
        if self.ledger.now().harmed {
            return Ok(());
        }
        if before.clean && *report != LoadReport::default() {
            return Err(format!("after a clean stop: {report:?}"));
        }
        let segments = log.segments();
        let read = self.disk.files_read();
        for pair in segments.windows(2) {
            let path = pair[0].path(Kind::Log).display().to_string();
            // At the base itself, the files that a roll completes may be missing yet.
            let sealed = before.clean || pair[1].base() < before.synced;
            // A crash may take the seal; then the last batches say where the segment ends.
            let found = seal::read(&self.disk, log.reader().folder(), pair[0].base());
            let sealed = sealed && matches!(found, Found::Seal(_));
            if sealed && pair[1].base() > log.start() && read.contains(&path) {
                return Err(format!("{path} is sealed and was read: {report:?}, synced {}", before.synced));
            }
        }
        Ok(())
    }

    /// Everything acknowledged is there, byte for byte, and nothing that was not written; what is derived agrees.
    /// Returns what was written of the log that is there, and what compaction made of it.
    fn is_kept(
        &self,
        partition: PartitionId,
        oath: &Oath,
        row: Replica,
    ) -> Outcome<(Vec<Stored>, Rc<Rewritten>)> {
        let log = &self.logs[&partition];
        let (start, end) = (log.start(), log.end());
        if start != row.log_start {
            return Err(format!("log start {start}, the row says {}", row.log_start));
        }
        if end < oath.must {
            return Err(format!("log end {end}, acknowledged {}", oath.must));
        }
        if row.mark > end {
            return Err(format!("mark {} above the end {end}", row.mark));
        }
        let Some(written) = oath::beginning(&oath.may, end) else {
            return Err(format!("log end {end} is no batch's: {}", ends(&oath.may)));
        };
        let newest = written.last().and_then(|batch| batch.header.generation);
        if newest > Some(row.accepted) {
            return Err(format!("generation {newest:?} in the log, {} accepted", row.accepted));
        }
        let writes = self.disk.counters().writes;
        // The newest first: the older one is there only while the newer is on its way.
        let mut other = String::new();
        let found = oath.rewritten.iter().rev().find_map(|rewritten| {
            let batches = rewritten.of(written);
            match has_batches(log, &batches) {
                Ok(()) => Some((batches, rewritten)),
                Err(difference) => {
                    other = difference;
                    None
                }
            }
        });
        let Some((batches, rewritten)) = found else { return Err(other) };
        let (said, until) = (log.compacted_until(), rewritten.until);
        if said > until.max(start) {
            return Err(format!("compacted up to {said}, it says; in truth up to {until}"));
        }
        let map = oath::map_of(&batches, start, end);
        let mut found_map = log.generations().clone();
        found_map.cut(end);
        if found_map != map {
            return Err(format!("generation map {found_map:?}, the log says {map:?}"));
        }
        // Compaction takes away batches, and nothing of what is known of producers.
        let producers = oath::producers_of(written);
        if oath::told(log.producers()) != producers {
            return Err(format!("producers {:?}, the log says {producers:?}", log.producers()));
        }
        has_aborted(log, written, &batches, rewritten.below)?;
        self.has_times(log, &batches)?;
        if self.disk.counters().writes > writes && !self.ledger.now().harmed {
            return Err("an index was lost with a segment that is sealed".to_string());
        }
        Ok((written.to_vec(), Rc::clone(rewritten)))
    }

    /// Lookups by time find what batches say.
    fn has_times(&self, log: &Log<MemDisk>, batches: &[Stored]) -> Outcome<()> {
        let (reader, start) = (log.reader(), log.start());
        let times: Vec<(Offset, i64)> = batches
            .iter()
            .flat_map(|batch| &batch.times)
            .copied()
            .filter(|(offset, _)| *offset >= start)
            .collect();
        let step = if self.setup.every_time { 1 } else { times.len() / 6 + 1 };
        for (_, time) in times.iter().step_by(step) {
            let wanted = times.iter().find(|(_, other)| other >= time).map(|(offset, _)| *offset);
            let found = reader.offset_for_timestamp(*time, Offset::MAX).map_err(|e| e.to_string())?;
            if found.map(|found| found.offset) != wanted {
                return Err(format!("time {time} is at {wanted:?}, found {found:?}"));
            }
        }
        let latest = times.iter().map(|(_, time)| *time).max();
        let found = reader.max_timestamp(Offset::MAX).map_err(|error| error.to_string())?;
        if found.map(|found| found.timestamp) != latest {
            return Err(format!("greatest time {latest:?}, found {found:?}"));
        }
        Ok(())
    }

    /// Snapshots that stay say what the log says up to there, for whoever trusts them later.
    fn side_files_are_right(&mut self, partition: PartitionId) -> Outcome<()> {
        let oaths = self.ledger.now();
        let batches = &oaths.logs[&partition].may;
        let end = self.log(partition).end();
        let folder = self.folder(partition).display().to_string();
        let mut snapshots = Vec::new();
        self.disk.each(|path, content| {
            let name = path.strip_prefix(&folder).and_then(|name| name.strip_prefix('/'));
            if let (Some((offset, Kind::Snapshot)), Some(content)) =
                (name.and_then(layout::parse_file_name), content)
                && let Ok(found) = snapshot::decode(content, NOW, i64::MAX)
            {
                snapshots.push((offset, found));
            }
        });
        for (offset, found) in snapshots {
            let upto = batches.partition_point(|batch| batch.next() <= offset);
            let wanted = oath::producers_of(&batches[..upto]);
            if offset > end || oath::told(&found) != wanted {
                return Err(format!("snapshot at {offset} of {end}: {found:?}, the log says {wanted:?}"));
            }
        }
        Ok(())
    }
}

/// Readers get exactly these batches from the log start on.
fn has_batches(log: &Log<MemDisk>, batches: &[Stored]) -> Outcome<()> {
    let reader = log.reader();
    let mut at = log.start();
    for batch in batches.iter().filter(|batch| batch.next() > log.start()) {
        let read = reader.read(at, batch.bytes.len(), Offset::MAX, true).map_err(|e| e.to_string())?;
        if read.slices.concat() != batch.bytes || read.next != batch.next() {
            return Err(format!("at {at} there is something else than what was written"));
        }
        at = read.next;
    }
    Ok(())
}

/// Readers are told of every aborted transaction of which a record is there, and of no other. Above `below`,
/// where no compaction has been, all of them have.
fn has_aborted(log: &Log<MemDisk>, written: &[Stored], batches: &[Stored], below: Offset) -> Outcome<()> {
    let mut wanted = oath::aborted_of(written);
    wanted.retain(|entry| entry.last_offset >= log.start());
    let found = log.reader().aborted(log.start(), Offset::MAX).map_err(|error| error.to_string())?;
    let is_due = |entry: &&AbortedTransaction| {
        entry.last_offset >= below
            || batches.iter().any(|batch| {
                batch.header.is_transactional()
                    && !batch.header.is_control()
                    && batch.header.records > 0
                    && batch.header.producer_id == entry.producer_id
                    && (entry.first_offset..entry.last_offset).contains(&batch.header.base_offset)
            })
    };
    let missing = wanted.iter().filter(is_due).find(|entry| !found.contains(entry));
    let false_one = found.iter().find(|entry| !wanted.contains(entry));
    if missing.is_some() || false_one.is_some() {
        return Err(format!("aborted transactions {found:?}, the log says {wanted:?}"));
    }
    Ok(())
}

fn ends(batches: &[Stored]) -> String {
    batches.iter().map(|batch| format!("{} ", batch.next())).collect()
}

/// One state: recovered, recovered again, written to, and opened once more.
pub(super) fn check(disk: &MemDisk, oaths: &Rc<Oaths>) -> Outcome<Met> {
    let (world, met) = World::start(disk, Rc::clone(oaths)).map_err(|error| format!("first: {error}"))?;
    // A second crash right behind it: nothing that the first recovery settled is open again.
    let settled = world.disk.crash(Crash::LoseUnsynced);
    let before = of_partitions(&settled);
    let (mut world, again) =
        World::start(&settled, world.ledger.now()).map_err(|error| format!("second: {error}"))?;
    if again.cut > 0 || again.ambiguous > 0 {
        return Err(format!("second: {again:?}"));
    }
    let after = of_partitions(&world.disk.crash(Crash::LoseUnsynced));
    if let Some(changed) = changed(&before, &after, &world) {
        return Err(format!("second: changed {changed}"));
    }
    let partitions: Vec<PartitionId> = world.logs.keys().copied().collect();
    for partition in partitions {
        world.produce(partition, 900, 2)?;
        world.flush(partition)?;
        world.note_row(partition)?;
    }
    let (world, _) = World::start(&world.disk.crash(Crash::LoseUnsynced), world.ledger.now())
        .map_err(|error| format!("third: {error}"))?;
    is_in_order(world).map_err(|error| format!("in the end: {error}"))?;
    Ok(met)
}

/// Every segment is as its seal says, and after a clean stop everything in the directory says the same.
fn is_in_order(mut world: World) -> Outcome<()> {
    let partitions: Vec<PartitionId> = world.logs.keys().copied().collect();
    for partition in &partitions {
        world.scrub(*partition)?;
        world.close(*partition)?;
    }
    let folders: Vec<_> = partitions.iter().map(|partition| world.folder(*partition)).collect();
    if world.ledger.now().harmed {
        return Ok(());
    }
    let World { disk, dir, replicas, logs, .. } = world;
    drop((replicas, dir, logs));
    let mut wrong = Vec::new();
    verify::verify(&disk, Path::new(DATA), &mut |finding| {
        // Some stories have rows of copies that were never made.
        let is_ours = folders.iter().any(|folder| finding.path.starts_with(folder));
        if finding.weight > Weight::Note && is_ours {
            wrong.push(finding.to_string());
        }
    })
    .map_err(told)?;
    if wrong.is_empty() { Ok(()) } else { Err(wrong.join("; ")) }
}

type Image = BTreeMap<String, Option<Vec<u8>>>;

/// What lies in partitions' folders. The table is written anew at every start, the topic's id where it is missing.
fn of_partitions(disk: &MemDisk) -> Image {
    let mut image = Image::new();
    disk.each(|path, content| {
        let name = path.strip_prefix(DATA).and_then(|path| path.strip_prefix('/')).unwrap_or("");
        let derived = name.ends_with(layout::PARTITION_METADATA);
        if !derived && name.split('/').next().and_then(layout::parse_folder_name).is_some() {
            image.insert(path.to_string(), content.map(<[u8]>::to_vec));
        }
    });
    image
}

/// What is not as it was. Files below the log start may go at any start that finds their producers elsewhere, and
/// snapshots, seals and the files beside the last segment, for which only a start after a clean stop had a use.
fn changed(before: &Image, after: &Image, world: &World) -> Option<String> {
    let may_go = |path: &str| {
        let (folder, name) = path.rsplit_once('/').unwrap_or(("", path));
        let partition = folder.rsplit('/').next().and_then(layout::parse_folder_name);
        let log = partition.and_then(|partition| world.logs.get(&partition));
        let start = log.map_or(0, Log::start);
        let last = log.and_then(|log| log.segments().last().map(|last| last.base()));
        layout::parse_file_name(name).is_some_and(|(offset, kind)| match kind {
            Kind::Snapshot | Kind::Seal => true,
            Kind::Index | Kind::TimeIndex | Kind::TxnIndex if Some(offset) == last => true,
            Kind::Log | Kind::Index | Kind::TimeIndex | Kind::TxnIndex | Kind::Damage => offset < start,
        })
    };
    let mut names: BTreeSet<&String> = before.keys().chain(after.keys()).collect();
    names.retain(|name| before.get(*name) != after.get(*name));
    let says_nothing = |name: &str| after.get(name).is_none_or(|now| now.as_ref().is_some_and(Vec::is_empty));
    names.retain(|name| !(may_go(name) && says_nothing(name)));
    let len = |image: &Image, name: &str| image.get(name).map(|content| content.as_ref().map(Vec::len));
    (!names.is_empty()).then(|| {
        names
            .iter()
            .map(|name| format!("{name}: {:?} to {:?}; ", len(before, name), len(after, name)))
            .collect()
    })
}
