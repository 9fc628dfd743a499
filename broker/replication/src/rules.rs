//! The rules that a model checker may break on purpose, as types.
//!
//! A machine is generic over its rules; the broker, the simulator and the story tests run [`AllRules`]. A
//! checker shows that each rule is needed by running a machine without it and finding the loss. Machines
//! with a rule missing are declared beside the checker, never here, so none can be built by accident.

use std::fmt::Debug;
use std::hash::Hash;

/// Which rules a machine obeys.
pub trait Rules: Clone + Debug + PartialEq + Eq + PartialOrd + Ord + Hash + Default {
    /// C2: sets that may still land count as eligible when the mark is computed.
    const C2_COUNTS_REPORTS_IN_FLIGHT: bool = true;
    /// C8: the mark moves only while the known set and the leader are at least `need`.
    const C8_NEEDS_MEMBERS: bool = true;
    /// C10: the opening report keeps the pair of the tenure opened last in the eligible set.
    const C10_KEEPS_LAST: bool = true;
    /// C10: nothing is acknowledged before the opening report has landed.
    const C10_OPENS_FIRST: bool = true;
}

/// Every rule: what runs.
#[derive(Clone, Debug, Default, PartialEq, Eq, PartialOrd, Ord, Hash)]
pub struct AllRules;

impl Rules for AllRules {}
