//! What the enumeration crashes: for each kind of operation some stories. A new kind is one row of [`KINDS`].

use super::world::{World, partition, small};
use super::{Kind, Outcome};
use crate::disk::mem::MemDisk;
use crate::{FlushMode, LogConfig};

mod compacting;
mod sealing;
mod starts;
mod table;

use compacting::{
    compacted_again, compacted_and_cut, compacted_and_retained, compacted_and_started, compacted_idle,
    compacted_once, compacted_transactions, swap_cut_short,
};
use sealing::{aborted_and_cut, aborted_and_retained, sealed_and_cut, sealed_at_a_stop, sealed_by_a_look};
use starts::{
    cut_half_done, deleted, deleted_and_made_again, file_lost, map_lied, segments_torn, stopped,
    stopped_and_started, stopped_with_a_long_segment, tail_torn,
};
use table::{marks_noted, table_changed, table_outgrown};

const LOG: u128 = 1;

/// Every kind of operation.
pub(super) const KINDS: &[Kind] = &[
    Kind {
        name: "create a log",
        sample: 16,
        singles: true,
        stories: &[created, created_first, created_together, created_by_flusher, created_by_syncfs],
    },
    Kind {
        name: "append",
        sample: 8,
        singles: true,
        stories: &[appended, appended_while_flushing, appended_on_a_full_disk],
    },
    Kind {
        name: "roll",
        sample: 2,
        singles: true,
        stories: &[rolled, rolled_with_long_indexes, rolled_by_syncfs, rolled_by_flusher],
    },
    Kind {
        name: "truncate",
        sample: 2,
        singles: true,
        stories: &[cut_within, cut_across, cut_unflushed, cut_new, cut_to_nothing],
    },
    Kind {
        name: "retain",
        sample: 6,
        singles: true,
        stories: &[retained, retained_producers, retained_everything],
    },
    Kind {
        name: "delete records",
        sample: 14,
        singles: true,
        stories: &[records_deleted, records_deleted_to_the_end],
    },
    Kind {
        name: "generation map",
        sample: 5,
        singles: true,
        stories: &[many_generations, a_generation_a_segment],
    },
    Kind { name: "mark", sample: 26, singles: true, stories: &[marks_noted] },
    Kind { name: "table of copies", sample: 45, singles: true, stories: &[table_changed, table_outgrown] },
    Kind {
        name: "producer snapshot",
        sample: 5,
        singles: true,
        stories: &[producers_noted, producers_within_transactions],
    },
    Kind {
        name: "clean stop",
        sample: 3,
        singles: true,
        stories: &[stopped, stopped_and_started, stopped_with_a_long_segment],
    },
    Kind { name: "delete a log", sample: 40, singles: true, stories: &[deleted, deleted_and_made_again] },
    Kind {
        name: "recover",
        sample: 5,
        singles: true,
        stories: &[tail_torn, segments_torn, cut_half_done, map_lied, file_lost],
    },
    Kind {
        name: "compact",
        sample: 6,
        singles: false,
        stories: &[
            compacted_once,
            compacted_again,
            compacted_transactions,
            compacted_and_cut,
            compacted_and_retained,
            compacted_and_started,
            compacted_idle,
            swap_cut_short,
        ],
    },
    Kind {
        name: "seal",
        sample: 6,
        singles: false,
        stories: &[sealed_by_a_look, sealed_and_cut, sealed_at_a_stop],
    },
    Kind {
        name: "aborted transactions",
        sample: 6,
        singles: false,
        stories: &[aborted_and_cut, aborted_and_retained],
    },
];

/// A directory with one log of `flushed` batches, noted.
fn with(disk: &MemDisk, flushed: usize) -> Outcome<World> {
    let mut world = World::small(disk)?;
    let log = partition(LOG);
    world.create(log, 1)?;
    for at in 0..flushed {
        if at % 3 == 2 {
            world.produce(log, 5, 3)?;
        } else {
            world.fill(log, 400)?;
        }
    }
    world.flush(log)?;
    world.note_row(log)?;
    Ok(world)
}

// ---- create ----

fn created(disk: &MemDisk) -> Outcome<World> {
    let mut world = World::small(disk)?;
    world.create(partition(7), 1)?;
    world.record();
    world.create(partition(LOG), 1)?;
    world.fill(partition(LOG), 300)?;
    world.flush(partition(LOG))?;
    Ok(world)
}

/// The very first start of a broker.
fn created_first(disk: &MemDisk) -> Outcome<World> {
    disk.record();
    let mut world = World::small(disk)?;
    world.identify()?;
    world.commit_boot(1)?;
    world.create(partition(LOG), 1)?;
    world.fill(partition(LOG), 300)?;
    world.flush(partition(LOG))?;
    world.note_row(partition(LOG))?;
    Ok(world)
}

fn created_together(disk: &MemDisk) -> Outcome<World> {
    let mut world = World::small(disk)?;
    world.record();
    world.create_together(&[partition(1), partition(2), partition(3)])?;
    for number in 1..4 {
        world.fill(partition(number), 700)?;
    }
    world.create_together(&[partition(4), partition(5)])?;
    world.flush_all()?;
    Ok(world)
}

fn created_by_flusher(disk: &MemDisk) -> Outcome<World> {
    let mut world = World::first(disk, Some(FlushMode::File), small())?;
    world.create(partition(7), 1)?;
    world.record();
    world.create_together(&[partition(1), partition(2)])?;
    world.fill(partition(LOG), 300)?;
    world.flush_all()?;
    Ok(world)
}

fn created_by_syncfs(disk: &MemDisk) -> Outcome<World> {
    let mut world = World::first(disk, Some(FlushMode::Filesystem), small())?;
    world.record();
    world.create_together(&[partition(1), partition(2), partition(3)])?;
    world.fill(partition(LOG), 300)?;
    world.flush_all()?;
    Ok(world)
}

// ---- append ----

fn appended(disk: &MemDisk) -> Outcome<World> {
    let mut world = with(disk, 3)?;
    let log = partition(LOG);
    world.record();
    for round in 0..4 {
        world.fill(log, 600)?;
        world.produce(log, 5, 4)?;
        if round % 2 == 1 {
            world.fill(log, 10)?;
        }
        world.flush(log)?;
        if round == 2 {
            world.note_row(log)?;
        }
    }
    Ok(world)
}

fn appended_while_flushing(disk: &MemDisk) -> Outcome<World> {
    let mut world = World::first(disk, None, LogConfig { segment_bytes: 1 << 20, ..small() })?;
    let log = partition(LOG);
    world.create(log, 1)?;
    world.record();
    for producer in 6..9 {
        world.fill(log, 700)?;
        let job = world.log(log).flush_job().ok_or("nothing to flush")?;
        world.transact(log, producer)?;
        world.fill(log, 200)?;
        world.finish(log, job)?;
    }
    Ok(world)
}

/// A write that stopped in the middle, and a roll behind it.
fn appended_on_a_full_disk(disk: &MemDisk) -> Outcome<World> {
    let mut world = with(disk, 3)?;
    let log = partition(LOG);
    world.record();
    for room in [70, 300] {
        disk.set_capacity(Some(disk.used() + room));
        if world.refused(log, 600).is_ok() {
            return Err("the disk took more than it has".to_string());
        }
        disk.set_capacity(None);
        world.fill(log, 700)?;
        world.fill(log, 900)?;
        world.flush(log)?;
    }
    Ok(world)
}

// ---- roll ----

fn rolled(disk: &MemDisk) -> Outcome<World> {
    let mut world = with(disk, 3)?;
    let log = partition(LOG);
    world.record();
    for round in 0..3 {
        world.fill(log, 700)?;
        world.produce(log, 5, 3)?;
        world.fill(log, 900)?;
        if round > 0 {
            world.fill(log, 800)?;
        }
        world.flush(log)?;
    }
    world.note_row(log)?;
    world.fill(log, 100)?;
    world.flush(log)?;
    Ok(world)
}

/// Index files of several sectors: a torn one has good ends.
fn rolled_with_long_indexes(disk: &MemDisk) -> Outcome<World> {
    let config = LogConfig { segment_bytes: 9_000, index_interval_bytes: 1, ..small() };
    let mut world = World::first(disk, None, config)?;
    let log = partition(LOG);
    world.create(log, 1)?;
    world.set_up(|setup| setup.every_time = true);
    for _ in 0..108 {
        world.fill(log, 5)?;
    }
    world.flush(log)?;
    world.note_row(log)?;
    world.record();
    for _ in 0..14 {
        world.fill(log, 5)?;
    }
    world.flush(log)?;
    world.note_row(log)?;
    Ok(world)
}

fn rolled_by_syncfs(disk: &MemDisk) -> Outcome<World> {
    let mut world = World::first(disk, Some(FlushMode::Filesystem), small())?;
    world.create(partition(LOG), 1)?;
    world.record();
    for _ in 0..4 {
        world.fill(partition(LOG), 900)?;
        world.produce(partition(LOG), 5, 3)?;
    }
    world.flush_all()?;
    world.note_row(partition(LOG))?;
    world.lead(partition(LOG))?;
    for _ in 0..3 {
        world.fill(partition(LOG), 900)?;
    }
    world.flush_all()?;
    world.note_row(partition(LOG))?;
    Ok(world)
}

fn rolled_by_flusher(disk: &MemDisk) -> Outcome<World> {
    let mut world = World::first(disk, Some(FlushMode::File), small())?;
    world.create(partition(LOG), 1)?;
    world.fill(partition(LOG), 10)?;
    world.flush_all()?;
    world.record();
    for _ in 0..2 {
        world.fill(partition(LOG), 900)?;
        world.fill(partition(LOG), 900)?;
        world.fill(partition(LOG), 900)?;
        world.flush_all()?;
        world.note_row(partition(LOG))?;
        world.lead(partition(LOG))?;
    }
    Ok(world)
}

// ---- truncate ----

/// After a cut the log goes on another way, over the offsets that were cut.
fn goes_on(mut world: World) -> Outcome<World> {
    let log = partition(LOG);
    world.lead(log)?;
    world.produce(log, 8, 3)?;
    world.fill(log, 950)?;
    world.flush(log)?;
    world.fill(log, 950)?;
    world.fill(log, 950)?;
    world.flush(log)?;
    world.note_row(log)?;
    Ok(world)
}

fn cut_within(disk: &MemDisk) -> Outcome<World> {
    let mut world = with(disk, 9)?;
    world.record();
    let to = world.log(partition(LOG)).end() - 4;
    world.truncate(partition(LOG), to)?;
    goes_on(world)
}

fn cut_across(disk: &MemDisk) -> Outcome<World> {
    let mut world = with(disk, 16)?;
    world.record();
    world.truncate(partition(LOG), 5)?;
    goes_on(world)
}

fn cut_unflushed(disk: &MemDisk) -> Outcome<World> {
    let mut world = with(disk, 4)?;
    let log = partition(LOG);
    for _ in 0..5 {
        world.fill(log, 600)?;
    }
    world.record();
    let to = world.log(log).end() - 2;
    world.truncate(log, to)?;
    goes_on(world)
}

/// A log that no flush has covered yet.
fn cut_new(disk: &MemDisk) -> Outcome<World> {
    let mut world = World::small(disk)?;
    let log = partition(LOG);
    world.create(partition(7), 1)?;
    world.create_unflushed(log)?;
    for _ in 0..4 {
        world.fill(log, 300)?;
    }
    world.record();
    world.truncate(log, 3)?;
    goes_on(world)
}

fn cut_to_nothing(disk: &MemDisk) -> Outcome<World> {
    let mut world = with(disk, 7)?;
    world.record();
    world.truncate(partition(LOG), 0)?;
    goes_on(world)
}

// ---- retain ----

fn retained(disk: &MemDisk) -> Outcome<World> {
    let mut world = with(disk, 16)?;
    let log = partition(LOG);
    world.record();
    let retired = world.retain(log, 3_000)?;
    world.fill(log, 700)?;
    world.flush(log)?;
    world.gone(log, retired)?;
    world.fill(log, 700)?;
    world.fill(log, 900)?;
    world.flush(log)?;
    Ok(world)
}

/// Only the snapshots know the producers of what went.
fn retained_producers(disk: &MemDisk) -> Outcome<World> {
    let mut world = World::small(disk)?;
    let log = partition(LOG);
    world.create(log, 1)?;
    for producer in 0..6 {
        world.produce(log, producer, 4)?;
        world.fill(log, 500)?;
    }
    world.flush(log)?;
    world.note_row(log)?;
    world.record();
    world.fill(log, 900)?;
    world.fill(log, 900)?;
    let retired = world.retain(log, 2_500)?;
    world.gone(log, retired)?;
    let retired = world.retain(log, 1)?;
    world.gone(log, retired)?;
    world.flush(log)?;
    world.note_row(log)?;
    Ok(world)
}

/// The active segment goes too: an empty one takes its place.
fn retained_everything(disk: &MemDisk) -> Outcome<World> {
    let mut world = World::small(disk)?;
    let log = partition(LOG);
    world.create(log, 1)?;
    for _ in 0..9 {
        world.fill(log, 500)?;
    }
    world.flush(log)?;
    world.note_row(log)?;
    world.record();
    let retired = world.retain(log, 0)?;
    world.gone(log, retired)?;
    world.fill(log, 300)?;
    // Later segments may come to the disk without the first.
    for _ in 0..4 {
        world.fill(log, 900)?;
    }
    world.flush(log)?;
    Ok(world)
}

// ---- delete records ----

fn records_deleted(disk: &MemDisk) -> Outcome<World> {
    let mut world = with(disk, 14)?;
    let log = partition(LOG);
    world.record();
    world.advance(log, 3)?;
    world.advance(log, 11)?;
    let retired = world.retain(log, 1 << 30)?;
    world.fill(log, 800)?;
    world.flush(log)?;
    world.gone(log, retired)?;
    world.advance(log, 17)?;
    let retired = world.retain(log, 1 << 30)?;
    world.gone(log, retired)?;
    Ok(world)
}

fn records_deleted_to_the_end(disk: &MemDisk) -> Outcome<World> {
    let mut world = with(disk, 10)?;
    let log = partition(LOG);
    world.record();
    let end = world.log(log).end();
    world.advance(log, end)?;
    let retired = world.retain(log, 1 << 30)?;
    world.gone(log, retired)?;
    world.fill(log, 800)?;
    world.fill(log, 900)?;
    world.flush(log)?;
    world.note_row(log)?;
    Ok(world)
}

// ---- generation map ----

/// A map of more than one sector.
fn many_generations(disk: &MemDisk) -> Outcome<World> {
    let mut world = World::first(disk, None, LogConfig { segment_bytes: 9_000, ..small() })?;
    let log = partition(LOG);
    world.create(log, 1_000_000)?;
    for _ in 0..75 {
        world.lead(log)?;
        world.fill(log, 10)?;
    }
    world.flush(log)?;
    world.note_row(log)?;
    world.record();
    for _ in 0..6 {
        world.lead(log)?;
        world.fill(log, 900)?;
    }
    world.flush(log)?;
    world.note_row(log)?;
    Ok(world)
}

fn a_generation_a_segment(disk: &MemDisk) -> Outcome<World> {
    let mut world = with(disk, 2)?;
    let log = partition(LOG);
    world.record();
    for round in 0..4 {
        world.lead(log)?;
        world.fill(log, 1_200)?;
        world.fill(log, 600)?;
        if round % 2 == 1 {
            world.flush(log)?;
            world.note_row(log)?;
        }
    }
    Ok(world)
}

// ---- producers ----

/// A snapshot of more than one sector.
fn producers_noted(disk: &MemDisk) -> Outcome<World> {
    let mut world = World::small(disk)?;
    let log = partition(LOG);
    world.create(log, 1)?;
    for producer in 0..14 {
        world.produce(log, producer, 1)?;
    }
    world.flush(log)?;
    world.note_row(log)?;
    world.record();
    for round in 0..2 {
        for producer in 0..7 {
            world.produce(log, 2 * producer + round, 3)?;
        }
        world.flush(log)?;
        world.note_row(log)?;
    }
    Ok(world)
}

fn producers_within_transactions(disk: &MemDisk) -> Outcome<World> {
    let mut world = with(disk, 3)?;
    let log = partition(LOG);
    world.record();
    for producer in 20..23 {
        world.transact(log, producer)?;
        world.fill(log, 700)?;
        world.produce(log, 5, 2)?;
        world.fill(log, 600)?;
        world.flush(log)?;
    }
    world.note_row(log)?;
    Ok(world)
}
