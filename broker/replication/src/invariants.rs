//! The promises of `docs/invariants.md` that one leader or follower can check on itself, by their numbers.
//!
//! Of the others, C1 to C3 are the shape of [`crate::eligible::Eligible`]; C4 is `cursor::Core::answered`; C5, C9 and C12 are asked
//! where a set or a restart is proposed (`leader::Core`); C6, C7 and C11 are of whoever opens copies; C8 is the mark's
//! rule; T1 to T5 are the follower's and [`crate::reconcile`]'s. Each has a mistake that random histories find out
//! (`tests/world/mistakes.rs`) or stories (`testdata`).
//!
//! Debug builds check them after every step; property tests and the simulator call the same function.

use std::collections::BTreeSet;

use felix_protocol::ids::BrokerId;

use crate::eligible::Pair;
use crate::follower;
use crate::leader::{Core, Phase};
use crate::rules::Rules;

/// A promise that does not hold.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum Broken {
    /// I1: the mark stands above what a pair that may be promoted has confirmed in this tenure.
    I1MarkAbovePair,
    /// I6: the mark or the durable end stands above what was written.
    I6ClaimsUnwritten,
    /// C13: a set names two copies of one broker, or the leader's own.
    C13Member,
    /// C10: the tenure counts as opened, but the key was never seen to say so.
    C10NotOpened,
    /// I4: a follower's mark stands above its own disk.
    I4MarkAboveDisk,
    /// I7: a copy that stopped still takes part.
    I7HaltedFollows,
    /// T0: the map says something about offsets that are not in the log.
    T0MapBeyondLog,
}

/// Checks one follower's claims.
pub fn check_follower<R: Rules>(core: &follower::Core<R>) -> Result<(), Broken> {
    if core.stored > core.end {
        return Err(Broken::I6ClaimsUnwritten);
    }
    if core.mark > core.stored {
        return Err(Broken::I4MarkAboveDisk);
    }
    if core.halted.is_some() && core.reconciled {
        return Err(Broken::I7HaltedFollows);
    }
    let beyond = |(_, first): (_, _)| first >= core.end.max(core.start + 1);
    if core.map.latest().is_some_and(beyond) {
        return Err(Broken::T0MapBeyondLog);
    }
    Ok(())
}

/// Checks one leader's claims.
pub fn check<R: Rules>(core: &Core<R>) -> Result<(), Broken> {
    if core.mark > core.stored || core.stored > core.end {
        return Err(Broken::I6ClaimsUnwritten);
    }
    if core.phase == Phase::Ended {
        // It claims nothing any more, and may have read what the next leader wrote.
        return Ok(());
    }
    let lawful = |set: &BTreeSet<Pair>| {
        let brokers: BTreeSet<BrokerId> = set.iter().map(|pair| pair.broker).collect();
        brokers.len() == set.len() && !brokers.contains(&core.own.broker)
    };
    if !core.eligible.proposed().all(lawful) {
        return Err(Broken::C13Member);
    }
    // What was acknowledged before the takeover rests on others' word; what this tenure added rests on these
    // positions. A pair that is known dead holds nothing any more, and nobody names it.
    let behind = |pair| {
        !core.dead.contains(pair) && core.confirmed.get(pair).is_none_or(|position| *position < core.mark)
    };
    if core.mark > core.takeover && core.maximal().iter().any(behind) {
        return Err(Broken::I1MarkAbovePair);
    }
    if matches!(core.phase, Phase::Open | Phase::Leaving) && core.opened_at.is_none() {
        return Err(Broken::C10NotOpened);
    }
    Ok(())
}
