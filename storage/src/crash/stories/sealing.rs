//! Stories of seals and of the lists of aborted transactions.

use felix_protocol::batch::control::TransactionEnd;

use super::{LOG, goes_on, with};
use crate::crash::Outcome;
use crate::crash::world::{World, partition, small};
use crate::disk::Disk;
use crate::disk::mem::{Crash, MemDisk};
use crate::layout::{self, Kind as File};

/// Segments without seals, as a crash may leave them, are looked through; then some of them are cut, and written
/// to again in the same lengths.
pub(super) fn sealed_by_a_look(disk: &MemDisk) -> Outcome<World> {
    let mut world = with(disk, 12)?;
    let log = partition(LOG);
    let folder = world.folder(log);
    let bases: Vec<_> = world.log(log).segments().iter().map(|segment| segment.base()).collect();
    let mut world = world.start_recorded(Crash::LoseUnsynced, |disk| {
        for base in &bases {
            let _ = disk.remove_file(&layout::file_path(&folder, *base, File::Seal));
        }
        let _ = disk.sync_dir(&folder);
    })?;
    if world.scrub(log)? < 2 {
        return Err("too few closed segments".to_string());
    }
    world.truncate(log, 5)?;
    let mut world = goes_on(world)?;
    world.scrub(log)?;
    Ok(world)
}

/// What follows a cut is as long as what went: an old seal beside it would pass for damage.
pub(super) fn sealed_and_cut(disk: &MemDisk) -> Outcome<World> {
    let mut world = with(disk, 3)?;
    let log = partition(LOG);
    world.record();
    for _ in 0..2 {
        let end = world.log(log).end();
        for _ in 0..5 {
            world.fill(log, 800)?;
        }
        world.flush(log)?;
        world.note_row(log)?;
        world.truncate(log, end)?;
        world.lead(log)?;
        for _ in 0..5 {
            world.fill(log, 800)?;
        }
        world.flush(log)?;
        world.note_row(log)?;
    }
    Ok(world)
}

/// The seal of a stop describes a segment that goes on, and is cut.
pub(super) fn sealed_at_a_stop(disk: &MemDisk) -> Outcome<World> {
    let mut world = with(disk, 5)?;
    let log = partition(LOG);
    world.record();
    for round in 0..2 {
        world.fill(log, 300)?;
        world.close(log)?;
        world = world.restart()?;
        let end = world.log(log).end();
        world.truncate(log, end - 1)?;
        world.lead(log)?;
        // What the stop noted of producers at this very offset is not so any more.
        world.produce(log, 9 + round, 1)?;
        world.roll(log)?;
        world.flush(log)?;
        world.note_row(log)?;
        world.scrub(log)?;
    }
    world.fill(log, 900)?;
    world.fill(log, 900)?;
    world.flush(log)?;
    Ok(world)
}

/// Transactions over several segments, some aborted, some open.
fn transactions(world: &mut World, round: i64) -> Outcome<()> {
    let log = partition(LOG);
    world.within(log, 20, &[("a", Some(300))])?;
    world.within(log, 21, &[("b", Some(500))])?;
    world.fill(log, 700)?;
    world.mark(log, 20, TransactionEnd::Abort)?;
    world.within(log, 22 + round, &[("c", Some(600)), ("d", Some(300))])?;
    world.mark(log, 21, TransactionEnd::Commit)?;
    world.mark(log, 22 + round, TransactionEnd::Abort)?;
    world.fill(log, 900)?;
    world.within(log, 20, &[("a", Some(100))])?;
    world.mark(log, 20, TransactionEnd::Abort)?;
    Ok(())
}

/// A cut takes markers away, and others decide what they had decided.
pub(super) fn aborted_and_cut(disk: &MemDisk) -> Outcome<World> {
    let mut world = World::first(disk, None, small())?;
    let log = partition(LOG);
    world.create(log, 1)?;
    transactions(&mut world, 0)?;
    world.flush(log)?;
    world.note_row(log)?;
    world.record();
    transactions(&mut world, 1)?;
    world.flush(log)?;
    // Behind the first marker.
    world.truncate(log, 4)?;
    world.lead(log)?;
    world.mark(log, 21, TransactionEnd::Abort)?;
    transactions(&mut world, 2)?;
    world.fill(log, 1_500)?;
    world.flush(log)?;
    world.note_row(log)?;
    Ok(world)
}

/// Transactions whose beginnings leave the log; then a clean stop.
pub(super) fn aborted_and_retained(disk: &MemDisk) -> Outcome<World> {
    let mut world = World::first(disk, None, small())?;
    let log = partition(LOG);
    world.create(log, 1)?;
    transactions(&mut world, 0)?;
    world.flush(log)?;
    world.note_row(log)?;
    world.record();
    transactions(&mut world, 1)?;
    world.flush(log)?;
    let retired = world.retain(log, 3_000)?;
    world.gone(log, retired)?;
    transactions(&mut world, 2)?;
    world.close(log)?;
    world = world.restart()?;
    world.mark(log, 23, TransactionEnd::Abort)?;
    world.fill(log, 1_500)?;
    world.flush(log)?;
    world.note_row(log)?;
    Ok(world)
}
