//! Goes through the states of a story.

use std::collections::BTreeSet;
use std::hash::{DefaultHasher, Hash, Hasher};
use std::rc::Rc;

use super::recovery::check;
use super::world::World;
use super::{Outcome, Story};
use crate::disk::mem::legal::Effort;
use crate::disk::mem::trace::{Step, Trace};
use crate::disk::mem::{Crash, MemDisk};

/// What was gone through.
#[derive(Debug, Default)]
pub(super) struct Tally {
    /// Fingerprints of the states.
    pub states: BTreeSet<u64>,
    /// States of recoveries that crashed themselves.
    pub nested: BTreeSet<u64>,
    pub ambiguous: usize,
    pub steps: BTreeSet<Step>,
}

/// How thoroughly.
#[derive(Clone, Copy, Debug)]
pub(super) struct Depth {
    /// At moments before a sync, where everything since the last lies in between.
    pub full: Effort,
    /// At all others.
    pub light: Effort,
    /// Every so many states the recovery itself is crashed; 0: never.
    pub nest_every: usize,
    /// Effort in the crash of a recovery.
    pub nested: Effort,
}

impl Depth {
    /// `sample` states at each full moment that has too many for all of them.
    pub(super) fn usual(sample: usize) -> Depth {
        let more = super::more();
        Depth {
            full: Effort { all_of: 4, sample: sample * more, singles: true },
            light: Effort { all_of: 1, sample: more, singles: false },
            nest_every: (150 / more).max(1),
            nested: Effort { all_of: 1, sample: 1, singles: false },
        }
    }
}

/// Runs a story on a fresh disk with one step left out, or none, and checks its states. The first that breaks a
/// promise ends it.
pub(super) fn enumerate(
    story: Story,
    left_out: Option<&Step>,
    depth: Depth,
    tally: &mut Tally,
) -> Outcome<()> {
    let disk = MemDisk::new();
    disk.leave_out(left_out.cloned());
    let world = story(&disk)?;
    let trace = world.disk.take_trace().ok_or("the story recorded nothing")?;
    tally.steps.extend(trace.steps().iter().cloned());
    let mut count = 0;
    walk(&trace, &world, depth.full, depth.light, |state, at| {
        let print = fingerprint(state);
        if !tally.states.insert(print) {
            return Ok(());
        }
        let oaths = world.ledger.at(at);
        count += 1;
        // Recovering changes the disk.
        let again =
            (depth.nest_every > 0 && count % depth.nest_every == 0).then(|| state.crash(Crash::KeepAll));
        let met = check(state, &oaths).map_err(|error| format!("crash at {at}: {error}"))?;
        tally.ambiguous += met.ambiguous;
        match again {
            Some(again) => nested(&again, &oaths, depth, tally),
            None => Ok(()),
        }
        .map_err(|error| format!("crash at {at}: {error}"))?;
        Ok(())
    })
}

/// Crashes the recovery of a state.
fn nested(state: &MemDisk, oaths: &Rc<super::oath::Oaths>, depth: Depth, tally: &mut Tally) -> Outcome<()> {
    state.record();
    let (world, _) = World::start(state, Rc::clone(oaths))?;
    let trace = state.take_trace().ok_or("nothing recorded")?;
    tally.steps.extend(trace.steps().iter().cloned());
    walk(&trace, &world, depth.nested, depth.nested, |state, at| {
        if tally.nested.insert(fingerprint(state)) {
            check(state, &world.ledger.at(at))
                .map_err(|error| format!("crash at {at} of recovery: {error}"))?;
        }
        Ok(())
    })
}

fn walk(
    trace: &Trace,
    world: &World,
    full: Effort,
    light: Effort,
    mut visit: impl FnMut(&MemDisk, usize) -> Outcome<()>,
) -> Outcome<()> {
    let mut replay = trace.replay();
    loop {
        let at = replay.at();
        let effort = if replay.is_full() || world.ledger.changes_at(at + 1) { full } else { light };
        for state in replay.states(effort) {
            visit(&state, at)?;
        }
        if !replay.advance() {
            return Ok(());
        }
    }
}

fn fingerprint(disk: &MemDisk) -> u64 {
    let mut hasher = DefaultHasher::new();
    disk.each(|path, content| {
        path.hash(&mut hasher);
        content.map(|content| (content.len(), crc32c::crc32c(content))).hash(&mut hasher);
    });
    hasher.finish()
}
