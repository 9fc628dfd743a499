//! Stories of compaction.

use felix_protocol::batch::control::TransactionEnd;

use super::{LOG, goes_on};
use crate::LogConfig;
use crate::crash::Outcome;
use crate::crash::world::upkeep::{after_rounds, compacted};
use crate::crash::world::{World, partition};
use crate::disk::mem::{Crash, MemDisk};

/// A log of segments in which keys are written over and removed, flushed and noted. The last key is in the
/// active segment.
fn with_keys(disk: &MemDisk, config: LogConfig) -> Outcome<World> {
    let mut world = World::first(disk, None, config)?;
    let log = partition(LOG);
    world.create(log, 1)?;
    write_keys(&mut world, 0)?;
    world.lead(log)?;
    write_keys(&mut world, 1)?;
    world.flush(log)?;
    world.note_row(log)?;
    Ok(world)
}

/// Some keys of every round are of that round alone, most are written over by the next.
fn write_keys(world: &mut World, round: usize) -> Outcome<()> {
    let log = partition(LOG);
    let own = format!("own {round}");
    world.put(log, &[("a", Some(300)), (&own, Some(250)), ("b", Some(200))])?;
    world.produce(log, 5, 2)?;
    world.put(log, &[("a", Some(400)), ("c", Some(100))])?;
    world.put(log, &[("b", None), ("d", Some(700))])?;
    world.put(log, &[("d", Some(800))])?;
    Ok(())
}

pub(super) fn compacted_once(disk: &MemDisk) -> Outcome<World> {
    let mut world = with_keys(disk, compacted())?;
    let log = partition(LOG);
    world.record();
    world.compact(log, after_rounds(0))?;
    world.put(log, &[("a", Some(900)), ("e", Some(900))])?;
    world.flush(log)?;
    world.note_row(log)?;
    Ok(world)
}

/// Tombstones go in the second round, and what the first one wrote is written anew.
pub(super) fn compacted_again(disk: &MemDisk) -> Outcome<World> {
    let mut world = with_keys(disk, compacted())?;
    let log = partition(LOG);
    world.compact(log, after_rounds(0))?;
    write_keys(&mut world, 2)?;
    world.flush(log)?;
    world.note_row(log)?;
    world.record();
    world.compact(log, after_rounds(1))?;
    world.fill(log, 900)?;
    world.flush(log)?;
    world.compact(log, after_rounds(2))?;
    Ok(world)
}

pub(super) fn compacted_transactions(disk: &MemDisk) -> Outcome<World> {
    let mut world = World::first(disk, None, compacted())?;
    let log = partition(LOG);
    world.create(log, 1)?;
    world.put(log, &[("a", Some(300)), ("b", Some(300))])?;
    world.within(log, 8, &[("a", Some(200)), ("x", Some(200))])?;
    world.within(log, 9, &[("b", Some(900))])?;
    world.put(log, &[("c", Some(600))])?;
    world.mark(log, 8, TransactionEnd::Abort)?;
    world.within(log, 9, &[("a", Some(600)), ("c", None)])?;
    world.mark(log, 9, TransactionEnd::Commit)?;
    world.within(log, 8, &[("b", Some(700))])?;
    world.put(log, &[("d", Some(700))])?;
    world.mark(log, 8, TransactionEnd::Abort)?;
    world.put(log, &[("d", Some(900))])?;
    world.put(log, &[("e", Some(900))])?;
    world.flush(log)?;
    world.note_row(log)?;
    world.record();
    world.compact(log, after_rounds(0))?;
    world.put(log, &[("a", Some(900))])?;
    world.flush(log)?;
    world.note_row(log)?;
    world.compact(log, after_rounds(1))?;
    Ok(world)
}

/// What lies above the mark goes, right behind what was written anew.
pub(super) fn compacted_and_cut(disk: &MemDisk) -> Outcome<World> {
    let mut world = with_keys(disk, compacted())?;
    let log = partition(LOG);
    world.record();
    world.compact(log, after_rounds(0))?;
    let end = world.log(log).end();
    world.put(log, &[("a", Some(900))])?;
    world.put(log, &[("b", Some(900))])?;
    world.truncate(log, end)?;
    goes_on(world)
}

/// `compact,delete`: what was written anew leaves by retention.
pub(super) fn compacted_and_retained(disk: &MemDisk) -> Outcome<World> {
    let mut world = with_keys(disk, LogConfig { deletes: true, ..compacted() })?;
    let log = partition(LOG);
    world.record();
    world.compact(log, after_rounds(0))?;
    let retired = world.retain(log, 1_000)?;
    world.gone(log, retired)?;
    world.put(log, &[("a", Some(900))])?;
    world.flush(log)?;
    world.note_row(log)?;
    Ok(world)
}

/// What a round did is known after the end of the process, and a clean stop keeps it.
pub(super) fn compacted_and_started(disk: &MemDisk) -> Outcome<World> {
    let mut world = with_keys(disk, compacted())?;
    let log = partition(LOG);
    world.record();
    world.compact(log, after_rounds(0))?;
    for round in 0..2 {
        if round == 1 {
            world.close(log)?;
        }
        world = world.restart()?;
        let synced = world.row(log).synced;
        let plan = world.log(log).compaction(synced, synced);
        if plan.is_some_and(|plan| plan.progress.end < plan.until) {
            return Err("another round over what was compacted".to_string());
        }
    }
    world.put(log, &[("a", Some(900))])?;
    world.flush(log)?;
    Ok(world)
}

/// Every segment that holds anything is closed, and all of it is compacted.
pub(super) fn compacted_idle(disk: &MemDisk) -> Outcome<World> {
    let mut world = with_keys(disk, compacted())?;
    let log = partition(LOG);
    world.roll(log)?;
    // What is remembered of a producer is more than what compaction leaves of it.
    for producer in [5, 6, 5, 5] {
        world.produce(log, producer, 1)?;
    }
    world.roll(log)?;
    world.flush(log)?;
    world.note_row(log)?;
    world.record();
    world.compact(log, after_rounds(0))?;
    world.produce(log, 5, 1)?;
    world.flush(log)?;
    world.note_row(log)?;
    Ok(world)
}

/// A start that finds a segment on its way to its place.
pub(super) fn swap_cut_short(disk: &MemDisk) -> Outcome<World> {
    let mut world = with_keys(disk, compacted())?;
    let log = partition(LOG);
    world.compact_half(log)?;
    let mut world = world.start_recorded(Crash::LoseUnsynced, |_| ())?;
    world.put(log, &[("a", Some(900)), ("f", Some(900))])?;
    world.flush(log)?;
    world.note_row(log)?;
    world.compact(log, after_rounds(1))?;
    Ok(world)
}
