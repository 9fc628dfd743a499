//! The rules that a model checker may break on purpose, as types.
//!
//! A machine is generic over its rules; the broker, the simulator and the story tests run [`AllRules`]. A
//! checker shows that each rule is needed by running a machine without it and finding the loss. Machines
//! with a rule missing are declared beside the checker, never here, so none can be built by accident.

use std::fmt::Debug;
use std::hash::Hash;

/// Which rules a machine obeys.
pub trait Rules: Clone + Debug + PartialEq + Eq + PartialOrd + Ord + Hash + Default {
    /// C1: a report's compares are the revisions that its sender last learned. Whoever carries reports obeys.
    const C1_COMPARES_LEARNED: bool = true;
    /// C6: a generation belongs to one session. Whoever starts machines obeys.
    const C6_ONE_SESSION: bool = true;
    /// C11: the candidate compares the named log id with its own. Whoever opens copies obeys.
    const C11_CANDIDATE_DECIDES: bool = true;
    /// C2: sets that may still land count as eligible when the mark is computed.
    const C2_COUNTS_REPORTS_IN_FLIGHT: bool = true;
    /// C8: the mark moves only while the known set and the leader are at least `need`.
    const C8_NEEDS_MEMBERS: bool = true;
    /// C3: a report without an answer counts until a newer revision is seen.
    const C3_TIMEOUT_RESOLVES_NOTHING: bool = true;
    /// C4: a position counts only at this generation and under the log id that answered it.
    const C4_NAMES_COPY: bool = true;
    /// C5: only who has reached the mark and the takeover's log end is added.
    const C5_LEVEL_FIRST: bool = true;
    /// C7: a follower answers at a generation, and a leader opens at it, only once it is durable here.
    const C7_FENCES_DURABLY: bool = true;
    /// C9: the set is not shrunk below need - 1.
    const C9_KEEPS_FLOOR: bool = true;
    /// C12: what discards a copy names it, and what comes after it is another copy.
    const C12_NAMES_COPY: bool = true;
    /// T1: nothing is taken from a leader before its header was compared.
    const T1_HEADER_FIRST: bool = true;
    /// T2: what the leader does not share is cut.
    const T2_CUTS: bool = true;
    /// T3: never below the mark.
    const T3_KEEPS_MARK: bool = true;
    /// T3: the leader's mark says something about this log only after the cut.
    const T3_CUTS_BEFORE_MARK: bool = true;
    /// T4: what a frame overlaps must be the same.
    const T4_COMPARES: bool = true;
    /// C10: the opening report keeps the pair of the tenure opened last in the eligible set.
    const C10_KEEPS_LAST: bool = true;
    /// C10: nothing is acknowledged before the opening report has landed.
    const C10_OPENS_FIRST: bool = true;
}

/// Every rule: what runs.
#[derive(Clone, Debug, Default, PartialEq, Eq, PartialOrd, Ord, Hash)]
pub struct AllRules;

impl Rules for AllRules {}
