//! A cluster of machines in one thread: leaders, followers and cursors over disks in memory, a control store whose answers get
//! lost and come late, connections that break, crashes with and without what was not flushed, one wiped disk, retention and
//! compaction. No lease: whoever was replaced goes on until it hears of it, so that what must hold rests on compares and durable
//! fences alone.
//!
//! After every step the promises are checked; then all is healed, and the cluster must acknowledge again. The same histories must
//! find out machines that lack a rule. `FELIX_WORLD_SEEDS` makes the run longer.

#![expect(clippy::unwrap_used, clippy::panic, reason = "all of this file is a test")]

#[path = "world/check.rs"]
mod check;
#[path = "world/disk.rs"]
mod disk;
#[path = "world/mistakes.rs"]
mod mistakes;
#[path = "world/node.rs"]
mod node;
#[path = "world/run.rs"]
mod run;
#[path = "world/store.rs"]
mod store;

use felix_replication::rules::{AllRules, Rules};

use run::World;

/// Steps of one history, before it is healed.
const STEPS: usize = 1200;
/// Histories of the normal run.
const SEEDS: u64 = 500;

fn seeds() -> u64 {
    std::env::var("FELIX_WORLD_SEEDS").ok().and_then(|seeds| seeds.parse().ok()).unwrap_or(SEEDS)
}

/// To play one history again.
fn first() -> u64 {
    std::env::var("FELIX_WORLD_FIRST").ok().and_then(|seed| seed.parse().ok()).unwrap_or(0)
}

/// Plays one history; an error says what broke, and when.
fn play<R: Rules>(seed: u64, heal: bool) -> Result<run::Figures, String> {
    let mut world = World::<R>::new(seed);
    for step in 0..STEPS {
        world.step().map_err(|broken| format!("seed {seed}, step {step}: {broken}"))?;
    }
    if heal {
        world.heal().map_err(|broken| format!("seed {seed}, healing: {broken}\n{}", world.portrait()))?;
    }
    Ok(world.figures)
}

#[test]
fn what_must_hold_holds_in_random_histories() {
    let mut total = run::Figures::default();
    for seed in first()..seeds() {
        let outcome = std::panic::catch_unwind(|| play::<AllRules>(seed, true));
        match outcome.unwrap_or_else(|_| Err(format!("seed {seed}: an assertion of the machines"))) {
            Ok(figures) => total.add(&figures),
            Err(broken) => panic!("{broken}"),
        }
    }
    println!("{total:?}");
    // Histories in which nothing happens show nothing.
    let run::Figures { acknowledged, tenures, cuts, restarts, wiped, grown, resigned, .. } = total;
    for (what, count) in [
        ("acknowledged records", acknowledged),
        ("tenures", tenures),
        ("cut logs", cuts),
        ("copies begun anew", restarts),
        ("wiped disks", wiped),
        ("reports", grown),
        ("resignations", resigned),
    ] {
        let histories = seeds() - first();
        assert!(count >= histories / 10, "only {count} {what} in {histories} histories");
    }
}
