//! The promises of `docs/invariants.md` that one leader can check on itself, by their numbers.
//!
//! Debug builds check them after every step; property tests and the simulator call the same function.

use crate::leader::{Core, Phase};
use crate::rules::Rules;

/// A promise that does not hold.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum Broken {
    /// I1: the mark stands above what a pair that may be promoted has confirmed in this tenure.
    I1MarkAbovePair,
    /// I6: the mark or the durable end stands above what was written.
    I6ClaimsUnwritten,
    /// C10: the tenure counts as opened, but the key was never seen to say so.
    C10NotOpened,
}

/// Checks one leader's claims.
pub fn check<R: Rules>(core: &Core<R>) -> Result<(), Broken> {
    if core.mark > core.stored || core.stored > core.end {
        return Err(Broken::I6ClaimsUnwritten);
    }
    // What was acknowledged before the takeover rests on others' word; what this tenure added rests on these
    // positions.
    let behind = |pair| core.confirmed.get(pair).is_none_or(|position| *position < core.mark);
    if core.mark > core.takeover && core.maximal().iter().any(behind) {
        return Err(Broken::I1MarkAbovePair);
    }
    if core.phase == Phase::Open && core.opened_at.is_none() {
        return Err(Broken::C10NotOpened);
    }
    Ok(())
}
