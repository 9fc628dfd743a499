//! The cases, by subject.

mod coordinators;
mod cuts;
mod forming;
mod identity;
mod load;
mod lost;
mod moves;
mod network;
mod operating;
mod reassigning;
mod replicated;
mod replicated_logs;
mod replicated_storm;
mod store;
mod takeover;
mod truth;

use super::Case;

/// All of them, in the order they run.
pub fn all() -> Vec<Case> {
    [
        network::CASES,
        forming::CASES,
        identity::CASES,
        lost::CASES,
        cuts::CASES,
        store::CASES,
        moves::CASES,
        reassigning::CASES,
        takeover::CASES,
        truth::CASES,
        operating::CASES,
        load::CASES,
        coordinators::CASES,
        replicated::CASES,
        replicated_logs::CASES,
        replicated_storm::CASES,
    ]
    .concat()
}
