//! The cases, by subject.

mod after_failover;
mod catching_up;
mod coordinator_moves;
mod coordinators;
mod cuts;
mod etcd_and_replicas;
mod faults;
mod forming;
mod full_disks;
mod halts;
mod identity;
mod leader_cut;
mod leases;
mod links;
mod load;
mod lost;
mod moves;
mod moves_in_trouble;
mod moves_past_retention;
mod network;
mod operating;
mod partitioned;
mod programs;
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
        moves_past_retention::CASES,
        links::CASES,
        faults::CASES,
        after_failover::CASES,
        coordinator_moves::CASES,
        etcd_and_replicas::CASES,
        full_disks::CASES,
        halts::CASES,
        leases::CASES,
        programs::CASES,
    ]
    .concat()
}
