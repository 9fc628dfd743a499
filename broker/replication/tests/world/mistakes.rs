//! Machines that lack a rule, each found out by the histories: so they can fail, and the rule is needed. C4 and C13 are premises;
//! T1, T4 and the guard of T3 keep harm off that only a wrong leader or a damaged disk does, so they have stories
//! (`testdata/follower`), and T5 is found out by the histories of the map rule.

use felix_replication::rules::{AllRules, Rules};

use super::play;
use super::run::World;

/// A mistake is found within so many histories.
const MOST: u64 = 3_000;

/// The first history from `from` on that finds the mistake. Rare ones are looked for where they were found before, so that a
/// normal run is quick; a change of the world only makes the search longer.
fn found<R: Rules>(name: &str, from: u64) -> (u64, String) {
    for seed in from..from + MOST {
        let outcome = std::panic::catch_unwind(|| play::<R>(seed, false));
        match outcome {
            Ok(Ok(_)) => {}
            Ok(Err(broken)) => return (seed, broken),
            Err(_) => return (seed, "an assertion of the machines".to_owned()),
        }
    }
    panic!("{name} is not found out in {MOST} histories");
}

macro_rules! mistakes {
    ($($test:ident: $lacks:ident lacks $rule:ident from $from:literal;)*) => {
        $(
            #[derive(Clone, Debug, Default, PartialEq, Eq, PartialOrd, Ord, Hash)]
            struct $lacks;

            impl Rules for $lacks {
                const $rule: bool = false;
            }

            #[test]
            fn $test() {
                let (seed, broken) = found::<$lacks>(stringify!($rule), $from);
                println!("{} is found out by history {seed}: {broken}", stringify!($rule));
            }
        )*
    };
}

mistakes! {
    without_c1: LacksC1 lacks C1_COMPARES_LEARNED from 252;
    without_c2: LacksC2 lacks C2_COUNTS_REPORTS_IN_FLIGHT from 17;
    without_c3: LacksC3 lacks C3_TIMEOUT_RESOLVES_NOTHING from 650;
    without_c5: LacksC5 lacks C5_LEVEL_FIRST from 0;
    without_c6: LacksC6 lacks C6_ONE_SESSION from 0;
    without_c8: LacksC8 lacks C8_NEEDS_MEMBERS from 0;
    without_c9: LacksC9 lacks C9_KEEPS_FLOOR from 0;
    without_c10_last: LacksC10Last lacks C10_KEEPS_LAST from 0;
    without_c10_first: LacksC10First lacks C10_OPENS_FIRST from 0;
    without_c11: LacksC11 lacks C11_CANDIDATE_DECIDES from 0;
    without_c12: LacksC12 lacks C12_NAMES_COPY from 381;
    without_t2: LacksT2 lacks T2_CUTS from 0;
    without_t3: LacksT3 lacks T3_CUTS_BEFORE_MARK from 0;
}

#[derive(Clone, Debug, Default, PartialEq, Eq, PartialOrd, Ord, Hash)]
struct LacksC7;

impl Rules for LacksC7 {
    const C7_FENCES_DURABLY: bool = false;
}

/// It takes an old leader that has heard of nothing, a follower that dies at the right time, and the older of two headers to come
/// first: so rare by chance that the scene is set.
#[test]
fn without_c7() {
    World::<AllRules>::new(7).an_old_leader_speaks_first().unwrap();
    let broken = World::<LacksC7>::new(7).an_old_leader_speaks_first().unwrap_err();
    assert!(broken.starts_with("I8"), "{broken}");
}
