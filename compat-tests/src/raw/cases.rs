//! The cases, by subject.

mod admin;
mod compaction;
mod disk;
mod epochs;
mod faults;
mod fetch;
mod framing;
mod groups;
mod idempotence;
mod leaders;
mod limits;
mod metadata;
mod offsets;
mod produce;
mod quotas;
mod rebalances;
mod retention;
mod scale;
mod sessions;
mod time;

use super::Case;

/// All of them, in the order they run.
pub fn all() -> Vec<Case> {
    [
        framing::CASES,
        produce::CASES,
        idempotence::CASES,
        fetch::CASES,
        sessions::CASES,
        time::CASES,
        retention::CASES,
        compaction::CASES,
        epochs::CASES,
        groups::CASES,
        rebalances::CASES,
        offsets::CASES,
        metadata::CASES,
        admin::CASES,
        leaders::CASES,
        limits::CASES,
        quotas::CASES,
        disk::CASES,
        scale::CASES,
        faults::CASES,
    ]
    .concat()
}
