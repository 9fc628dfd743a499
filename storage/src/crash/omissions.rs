//! Every step that durability rests on, left out once: the walk must notice.
//!
//! The steps are those that the stories' own traces show, by what they do, on which kind of file and where in the
//! code. So a new sync or rename has a planted mistake as soon as a story passes by, and one that nothing needs
//! fails the test: either it is work for nothing, or the stories do not ask enough.

use std::collections::BTreeMap;
use std::panic::{AssertUnwindSafe, catch_unwind};

use super::enumerate::{Depth, Tally, enumerate};
use super::{Outcome, Story, stories};
use crate::disk::mem::legal::Effort;
use crate::disk::mem::trace::Step;

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

#[test]
fn every_sync_and_rename_is_missed_when_it_is_left_out() {
    let steps: Vec<_> = passed_by().unwrap().into_iter().collect();
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
