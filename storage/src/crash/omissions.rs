//! Every step that durability rests on, left out once: the walk must notice.
//!
//! The steps are those that the stories' own traces show, by what they do, on which kind of file and where in the
//! code. So a new sync or rename has a planted mistake as soon as a story passes by, and one that nothing needs
//! fails the test: either it is work for nothing, or the stories do not ask enough. Of removals, those that only tidy up
//! are left alone.

use std::collections::BTreeMap;
use std::panic::{AssertUnwindSafe, catch_unwind};

use super::enumerate::{Depth, Tally, enumerate};
use super::{Outcome, Story, stories};
use crate::disk::mem::legal::Effort;
use crate::disk::mem::trace::{Act, Step};
use crate::layout;

/// Which stories pass by which step.
pub(super) fn passed_by() -> Outcome<BTreeMap<Step, Vec<Story>>> {
    let mut steps: BTreeMap<Step, Vec<Story>> = BTreeMap::new();
    for kind in stories::KINDS {
        for story in kind.stories {
            let world = story(&crate::disk::mem::MemDisk::new())?;
            let trace = world.disk.take_trace().ok_or("the story recorded nothing")?;
            for step in trace.steps() {
                steps.entry(step.clone()).or_default().push(*story);
            }
        }
    }
    Ok(steps)
}

/// How a story shows that the step is missing; `None`: it does not.
pub(super) fn noticed(step: &Step, stories: &[Story]) -> Option<String> {
    let quick = Effort { all_of: 1, sample: 1, singles: false };
    let usual = Depth::usual(6);
    let passes = [
        Depth { full: quick, light: quick, nest_every: 0, nested: quick },
        Depth { full: usual.full, nest_every: 0, ..usual },
        Depth { nest_every: 4, ..usual },
    ];
    passes.iter().find_map(|depth| {
        stories.iter().find_map(|story| {
            let mut tally = Tally::default();
            // Without the step, asserts may give way too.
            catch_unwind(AssertUnwindSafe(|| enumerate(*story, Some(step), *depth, &mut tally)))
                .unwrap_or_else(|_| Err("a panic".to_string()))
                .err()
        })
    })
}

/// Whether something rests on the step. A removal may be mere tidying: an open makes nothing of what is derived from
/// batches that are gone, or makes it anew. Batches that go must go, and so must what waits to be removed, and the seal of
/// a segment whose bytes are about to change.
fn is_needed(step: &Step) -> bool {
    let seal_of_changed = step.on == "<offset>.seal" && step.site.starts_with("segment.rs");
    step.act != Act::Remove
        || step.on == "<offset>.log"
        || step.on.ends_with(layout::DELETED)
        || seal_of_changed
}

#[test]
fn every_sync_rename_and_removal_is_missed_when_it_is_left_out() {
    let mut steps: Vec<_> = passed_by().unwrap().into_iter().collect();
    steps.retain(|(step, _)| is_needed(step));
    for on in ["<offset>.log", "<offset>.log.deleted", "<offset>.seal"] {
        let removes = |step: &Step| step.act == Act::Remove && step.on == on;
        assert!(steps.iter().any(|(step, _)| removes(step)), "no story removes a {on}");
    }
    let noticed = super::in_parallel(&steps, |(step, stories)| noticed(step, stories));
    let mut unmissed = Vec::new();
    for ((step, _), how) in steps.iter().zip(noticed) {
        match how {
            Some(how) => println!("{step}: {how:.160}"),
            None => unmissed.push(step.to_string()),
        }
    }
    assert!(unmissed.is_empty(), "needless, or not asked for: {unmissed:#?}");
}
