//! Crash consistency, enumerated: stories of everything that storage does are told on a disk in memory that
//! records them; at each moment of each story the machine stops in every way that [`crate::disk::mem::legal`]
//! allows; whatever is left is recovered as the broker does and compared with what was promised.
//!
//! - [`oath`]: what was promised and what was written, moment by moment.
//! - [`world`]: the operations, in the broker's order.
//! - [`stories`]: the kinds of operations and their stories; **a new operation is a row there**.
//! - [`recovery`]: a start on what a crash left, and the checks.
//! - [`enumerate`]: the walk over the states of a story.
//! - [`omissions`]: every sync, rename and removal left out once, which the walk must notice.
//!
//! The normal run takes a sample where there are too many states for all of them. `FELIX_CRASH_STATES=20` makes
//! it about twenty times as large.

use std::sync::atomic::{AtomicUsize, Ordering};

use felix_protocol::time::WallTime;
use parking_lot::Mutex;

use crate::disk::mem::MemDisk;
use crate::disk::mem::legal::Effort;

mod enumerate;
mod oath;
mod omissions;
mod recovery;
mod stories;
mod world;

use enumerate::{Depth, Tally, enumerate};
use world::World;

const NOW: WallTime = WallTime(1_000_000);

type Outcome<T> = Result<T, String>;

/// Does something on an empty disk, and records the part of it that is to be crashed.
type Story = fn(&MemDisk) -> Outcome<World>;

/// A kind of operation.
struct Kind {
    name: &'static str,
    /// How many are tried at each moment that has too many for all of them.
    sample: usize,
    /// There, each part is also left out, and kept, alone. Stories whose moments have many parts are many states
    /// without that; what is missed then, the planted mistakes show.
    singles: bool,
    stories: &'static [Story],
}

/// How many times as large a sample is asked for.
fn more() -> usize {
    std::env::var("FELIX_CRASH_STATES").ok().and_then(|more| more.parse().ok()).unwrap_or(1).clamp(1, 1_000)
}

/// Does `work` on each of `items`, on as many threads as there are cores; the answers stand in their order.
fn in_parallel<T: Sync, A: Send>(items: &[T], work: impl Fn(&T) -> A + Sync) -> Vec<A> {
    let threads = std::thread::available_parallelism().map_or(1, usize::from);
    let next = AtomicUsize::new(0);
    let answers = Mutex::new(Vec::new());
    std::thread::scope(|scope| {
        for _ in 0..threads {
            scope.spawn(|| {
                loop {
                    let at = next.fetch_add(1, Ordering::Relaxed);
                    let Some(item) = items.get(at) else { break };
                    let answer = work(item);
                    answers.lock().push((at, answer));
                }
            });
        }
    });
    let mut answers = answers.into_inner();
    answers.sort_by_key(|(at, _)| *at);
    answers.into_iter().map(|(_, answer)| answer).collect()
}

#[test]
fn every_state_that_a_crash_may_leave_keeps_what_was_promised() {
    let tallies = in_parallel(stories::KINDS, |kind| {
        let (mut tally, usual) = (Tally::default(), Depth::usual(kind.sample));
        for (at, story) in kind.stories.iter().enumerate() {
            enumerate(
                *story,
                None,
                Depth { full: Effort { singles: kind.singles, ..usual.full }, ..usual },
                &mut tally,
            )
            .map_err(|error| format!("{}, story {at}: {error}", kind.name))?;
        }
        Ok::<_, String>(tally)
    });
    let (mut all, mut failed) = (0, Vec::<String>::new());
    for (kind, tally) in stories::KINDS.iter().zip(tallies) {
        let Ok(tally) = tally.inspect_err(|error| failed.push(error.clone())) else { continue };
        let (states, nested) = (tally.states.len(), tally.nested.len());
        println!("{}: {states} states, {nested} of recoveries, {} ambiguous", kind.name, tally.ambiguous);
        if states < 500 {
            failed.push(format!("{}: {states} states", kind.name));
        }
        all += states;
    }
    println!("{all} states");
    assert!(failed.is_empty(), "{failed:#?}");
    assert!(all >= 10_000, "{all} states");
}
