//! Stories of the table of copies.

use felix_protocol::ids::{LogId, Uuid};

use super::{LOG, with};
use crate::crash::Outcome;
use crate::crash::world::{World, partition};
use crate::disk::mem::MemDisk;
use crate::layout;

fn with_rows(disk: &MemDisk, rows: u128) -> Outcome<World> {
    let mut world = with(disk, 3)?;
    let like = world.row(partition(LOG));
    world.commit(|replicas| {
        for number in 0..rows {
            replicas.stage(partition(100 + number), like);
        }
    })?;
    Ok(world)
}

pub(super) fn marks_noted(disk: &MemDisk) -> Outcome<World> {
    let mut world = with_rows(disk, 60)?;
    let log = partition(LOG);
    world.record();
    for round in 0..9 {
        if round % 3 == 0 {
            world.fill(log, 200)?;
            world.flush(log)?;
        }
        world.note_row(log)?;
        world.commit(|replicas| {
            for number in 0..60 {
                replicas.stage_with(&partition(100 + number), |row| {
                    row.mark += 7;
                    row.synced = row.mark;
                });
            }
        })?;
    }
    Ok(world)
}

pub(super) fn table_changed(disk: &MemDisk) -> Outcome<World> {
    let mut world = with_rows(disk, 60)?;
    world.record();
    for round in 0..6_u128 {
        world.commit(|replicas| {
            for number in 0..60 {
                let renewed = LogId(Uuid::from_u128(1_000 * round + number));
                replicas.stage_with(&partition(100 + number), |row| row.log_id = renewed);
            }
        })?;
        world.commit(|replicas| {
            for number in 0..12 {
                replicas.stage_removal(&partition(100 + 4 * round + number));
            }
        })?;
        world.commit_boot(100 + round)?;
        if round == 2 {
            world = world.restart()?;
        }
    }
    Ok(world)
}

/// The file has grown to several times what it says.
pub(super) fn table_outgrown(disk: &MemDisk) -> Outcome<World> {
    let mut world = with_rows(disk, 12)?;
    let log = partition(LOG);
    let change = |world: &mut World| {
        world.commit(|replicas| {
            for number in 0..12 {
                replicas.stage_with(&partition(100 + number), |row| row.mark += 1);
            }
        })
    };
    while world.disk.content(&world.dir.path().join(layout::REPLICAS)).map_err(|e| e.to_string())?.len()
        < 64 << 10
    {
        change(&mut world)?;
    }
    world.record();
    for _ in 0..8 {
        change(&mut world)?;
    }
    world.fill(log, 200)?;
    world.flush(log)?;
    world.note_row(log)?;
    Ok(world)
}
