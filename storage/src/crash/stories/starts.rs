//! Stories of ends and beginnings: clean stops, deleted logs, recoveries that crash themselves.

use super::{LOG, with};
use crate::LogConfig;
use crate::crash::Outcome;
use crate::crash::world::{World, partition, small};
use crate::disk::mem::{Crash, MemDisk};
use crate::layout::{self, Kind as File};

// ---- clean stop ----

pub(super) fn stopped(disk: &MemDisk) -> Outcome<World> {
    let mut world = with(disk, 8)?;
    let log = partition(LOG);
    world.fill(log, 500)?;
    world.lead(log)?;
    world.record();
    world.produce(log, 6, 2)?;
    world.fill(log, 600)?;
    world.close(log)?;
    Ok(world)
}

pub(super) fn stopped_and_started(disk: &MemDisk) -> Outcome<World> {
    let mut world = with(disk, 5)?;
    let log = partition(LOG);
    world.record();
    for producer in 10..13 {
        world.produce(log, producer, 2)?;
        world.close(log)?;
        world = world.restart()?;
        world.fill(log, 600)?;
        world.fill(log, 800)?;
        world.flush(log)?;
    }
    Ok(world)
}

/// A last segment that is described by side files.
pub(super) fn stopped_with_a_long_segment(disk: &MemDisk) -> Outcome<World> {
    let config = LogConfig { segment_bytes: 1 << 20, index_interval_bytes: 1_000, ..small() };
    let mut world = World::first(disk, None, config)?;
    let log = partition(LOG);
    world.create(log, 1)?;
    for _ in 0..14 {
        world.fill(log, 5_000)?;
    }
    world.flush(log)?;
    world.note_row(log)?;
    world.record();
    world.produce(log, 6, 2)?;
    world.fill(log, 2_000)?;
    world.close(log)?;
    world = world.restart()?;
    world.fill(log, 600)?;
    world.close(log)?;
    Ok(world)
}

// ---- delete a log ----

pub(super) fn deleted(disk: &MemDisk) -> Outcome<World> {
    let mut world = with(disk, 12)?;
    world.create(partition(2), 1)?;
    world.fill(partition(2), 10)?;
    world.flush(partition(2))?;
    world.record();
    world.fill(partition(LOG), 300)?;
    world.delete(partition(LOG))?;
    world.fill(partition(2), 700)?;
    world.flush(partition(2))?;
    Ok(world)
}

pub(super) fn deleted_and_made_again(disk: &MemDisk) -> Outcome<World> {
    let mut world = with(disk, 7)?;
    world.record();
    world.delete(partition(LOG))?;
    world.create(partition(2), 1)?;
    world.fill(partition(2), 700)?;
    world.flush(partition(2))?;
    world.delete(partition(2))?;
    Ok(world)
}

// ---- recover ----

/// Goes on after a recovery, so that what it left behind is built upon.
pub(super) fn works_on(mut world: World) -> Outcome<World> {
    let log = partition(LOG);
    world.produce(log, 5, 2)?;
    world.fill(log, 900)?;
    world.flush(log)?;
    world.note_row(log)?;
    world.fill(log, 900)?;
    world.fill(log, 900)?;
    world.flush(log)?;
    world.note_row(log)?;
    Ok(world)
}

pub(super) fn tail_torn(disk: &MemDisk) -> Outcome<World> {
    let mut world = with(disk, 5)?;
    let log = partition(LOG);
    world.fill(log, 300)?;
    world.produce(log, 7, 6)?;
    let active = world.log(log).segments().last().map_or(0, |segment| segment.base());
    let path = layout::file_path(&world.folder(log), active, File::Log);
    let recovered = world.start_recorded(Crash::KeepAll, |disk| {
        let whole = disk.content(&path).unwrap();
        disk.put(&path, &whole[..whole.len() - 200]).unwrap();
    })?;
    works_on(recovered)
}

/// A torn batch with whole segments behind it.
pub(super) fn segments_torn(disk: &MemDisk) -> Outcome<World> {
    let mut world = with(disk, 5)?;
    let log = partition(LOG);
    let (end, base) = (world.log(log).end(), world.log(log).segments().last().map_or(0, |last| last.base()));
    for _ in 0..8 {
        world.fill(log, 700)?;
    }
    let path = layout::file_path(&world.folder(log), base, File::Log);
    let flushed = world.ledger.now().logs[&log].may.clone();
    let upto: usize = flushed
        .iter()
        .filter(|batch| batch.header.base_offset >= base && batch.next() <= end)
        .map(|batch| batch.bytes.len())
        .sum();
    let recovered = world.start_recorded(Crash::KeepAll, |disk| {
        let mut content = disk.content(&path).unwrap();
        let from = upto.next_multiple_of(512);
        let to = (from + 512).min(content.len());
        content[from..to].fill(0);
        disk.put(&path, &content).unwrap();
    })?;
    works_on(recovered)
}

/// A cut that stopped half way, then the recovery.
pub(super) fn cut_half_done(disk: &MemDisk) -> Outcome<World> {
    let mut world = with(disk, 16)?;
    let log = partition(LOG);
    // The row, then one folder for each segment that goes; the batches' file comes next.
    disk.fail_sync_after(5);
    if world.truncate(log, 5).is_ok() {
        return Err("the cut was to stop half way".to_string());
    }
    works_on(world.start_recorded(Crash::KeepAll, |_| ())?)
}

/// A map that says what is not so, although the log was closed properly.
pub(super) fn map_lied(disk: &MemDisk) -> Outcome<World> {
    let mut world = with(disk, 5)?;
    let log = partition(LOG);
    world.lead(log)?;
    world.fill(log, 900)?;
    world.close(log)?;
    let path = world.folder(log).join(layout::EPOCH_CHECKPOINT);
    // Tolerated: it is what a start after a clean stop repairs.
    world.ledger.update(|oaths| oaths.harmed = true);
    let recovered = world.start_recorded(Crash::KeepAll, |disk| disk.put(&path, b"0\n1\n1 0\n").unwrap())?;
    works_on(recovered)
}

/// An index that was lost is built again when it is needed.
pub(super) fn file_lost(disk: &MemDisk) -> Outcome<World> {
    let config = LogConfig { segment_bytes: 9_000, index_interval_bytes: 1, ..small() };
    let mut world = World::first(disk, None, config)?;
    let log = partition(LOG);
    world.create(log, 1)?;
    world.set_up(|setup| setup.every_time = true);
    for _ in 0..125 {
        world.fill(log, 5)?;
    }
    world.flush(log)?;
    world.note_row(log)?;
    world.ledger.update(|oaths| oaths.harmed = true);
    let paths = [File::Index, File::TimeIndex].map(|kind| layout::file_path(&world.folder(log), 0, kind));
    let recovered = world.start_recorded(Crash::KeepAll, |disk| {
        paths.iter().for_each(|path| disk.put(path, b"").unwrap());
    })?;
    let recovered = works_on(recovered)?;
    for path in paths {
        if recovered.disk.content(&path).is_ok_and(|content| content.is_empty()) {
            return Err("the index was not built again".to_string());
        }
    }
    Ok(recovered)
}
