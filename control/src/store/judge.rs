//! Which decisions of a transaction land. The stores that we write ourselves ask this; etcd is held to the same by
//! the conformance suite.

use std::collections::BTreeSet;

use felix_cluster::decision::{Compare, Decision, Write};
use felix_cluster::state::Revision;

use super::Entry;

/// Judges each decision by the state before all of them, which `find` looks up by a key's spelling. One that writes
/// what an earlier one writes loses, whatever became of the earlier one.
pub(super) fn judge<E>(
    decisions: &[Decision],
    mut find: impl FnMut(&str) -> Result<Option<Entry>, E>,
) -> Result<Vec<bool>, E> {
    let mut landed = Vec::with_capacity(decisions.len());
    for (decision, first) in decisions.iter().zip(firsts(decisions)) {
        let mut holds = first;
        for compare in decision.compares() {
            holds &= holds_for(compare, find(&compare.key().to_string())?.as_ref());
        }
        landed.push(holds);
    }
    Ok(landed)
}

/// For each decision, whether no earlier one writes one of its keys.
pub(super) fn firsts(decisions: &[Decision]) -> Vec<bool> {
    let mut written = BTreeSet::new();
    let mut first = |decision: &Decision| {
        let free = decision.writes().iter().all(|write| !written.contains(write.key()));
        written.extend(decision.writes().iter().map(|write| Write::key(write).clone()));
        free
    };
    decisions.iter().map(&mut first).collect()
}

fn holds_for(compare: &Compare, found: Option<&Entry>) -> bool {
    match compare {
        Compare::Revision(_, wanted) => found.map_or(Revision::ABSENT, |entry| entry.revision) == *wanted,
        Compare::Value(_, wanted) => found.is_some_and(|entry| entry.value == *wanted),
    }
}
