//! The cases, by subject.

mod catching_up;
mod coordinators;
mod cuts;
mod faults;
mod forming;
mod identity;
mod leader_cut;
mod links;
mod load;
mod lost;
mod moves;
mod moves_in_trouble;
mod network;
mod operating;
mod partitioned;
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
        catching_up::CASES,
        replicated_storm::CASES,
        partitioned::CASES,
        leader_cut::CASES,
        moves_in_trouble::CASES,
        links::CASES,
        faults::CASES,
    ]
    .concat()
}
