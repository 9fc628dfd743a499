//! The states of a classic group, and every legal move between them.

/// What a group is doing.
///
/// ```text
///            first join              everyone joined, or time is up
///   Empty ────────────────► PreparingRebalance ─────────────► CompletingRebalance
///     ▲                      │   ▲    ▲                          │          │
///     └──────────────────────┘   │    └── a member changes ──────┘          │ the leader's
///        nobody is left          │                                          │ sync is stored
///                                └──────────── a member changes ── Stable ◄─┘
/// ```
///
/// A group that does not exist is called Dead; deleting an empty group, or a tombstone in the log, leads
/// there from any state, and the first join or offset commit leads out.
#[derive(Clone, Copy, Debug, PartialEq, Eq, PartialOrd, Ord, Hash)]
pub enum State {
    /// No members. Offsets may be stored; they expire when the group has been empty for long enough.
    ///
    /// - Join without an id: a member is added (or given an id to come back with), and a rebalance starts
    ///   that waits `group.initial.rebalance.delay.ms` for others.
    /// - Join with an id that was given out: likewise. With any other id: UnknownMember.
    /// - Sync, heartbeat, leave of a member: UnknownMember. Leave of an id that was given out: done.
    /// - Commit without member and generation: stored. With a member: UnknownMember.
    /// - Offset delete: done. Group delete: done.
    Empty,
    /// Members are joining; each join is parked until all have joined or the longest rebalance timeout
    /// has passed.
    ///
    /// - Join without an id: a member is added, or, if its instance id is known, takes over.
    /// - Join of a member: its protocols are updated and its join is parked.
    /// - Sync: RebalanceInProgress. Heartbeat: counts, and is told RebalanceInProgress.
    /// - Leave: done; the join phase may complete.
    /// - Commit with the group generation before the rebalance: stored. Without a member: UnknownMember.
    /// - Offset delete: for topics outside the last known subscription. Group delete: NonEmptyGroup.
    PreparingRebalance,
    /// The next generation is fixed and its members know it; the leader owes the assignment.
    ///
    /// - Join without an id: a member is added, or takes over; either starts another rebalance.
    /// - Join of a member: with the same protocols it is told the generation again (its first answer was
    ///   lost); with others, another rebalance starts.
    /// - Sync of the leader: the assignment is stored, and all parked syncs are answered. Of others: parked.
    /// - Heartbeat: counts. Leave: done; another rebalance starts.
    /// - Commit of a member: RebalanceInProgress.
    /// - Offset delete: for topics outside the subscription. Group delete: NonEmptyGroup.
    CompletingRebalance,
    /// The assignment is stored.
    ///
    /// - Join without an id: a member is added and a rebalance starts; but a static member that comes back
    ///   with protocols that change nothing takes over its place and its assignment at once.
    /// - Join of the leader: a rebalance starts. Of others: with the same protocols they are told the
    ///   generation again; with others, a rebalance starts.
    /// - Sync: the stored assignment. Heartbeat: counts. Leave: done; a rebalance starts.
    /// - Commit of a member in this group generation: stored.
    /// - Offset delete: for topics outside the subscription. Group delete: NonEmptyGroup.
    Stable,
    /// The group does not exist. Never a state of a group in memory: only an answer.
    ///
    /// - Join without an id: the group is created. With an id: UnknownMember.
    /// - Sync, heartbeat, leave: UnknownMember.
    /// - Commit without member and generation: the group is created. With a generation: GroupNotFound
    ///   (before v9: IllegalGeneration).
    /// - Offset fetch: nothing stored. Offset delete, group delete: GroupNotFound.
    Dead,
}

/// Every legal move and what causes it.
pub const MOVES: [(State, State, &str); 9] = [
    (State::Empty, State::PreparingRebalance, "a first member joins"),
    (State::PreparingRebalance, State::CompletingRebalance, "all members joined, or time is up"),
    (State::PreparingRebalance, State::Empty, "no member is left"),
    (State::CompletingRebalance, State::Stable, "the leader's assignment is stored"),
    (State::CompletingRebalance, State::PreparingRebalance, "a member joins, changes, leaves or is lost"),
    (State::Stable, State::PreparingRebalance, "a member joins, changes, leaves or is lost"),
    (State::Empty, State::Dead, "the group is deleted, or nothing of it is left"),
    (State::Dead, State::Empty, "an offset is committed"),
    (State::Dead, State::PreparingRebalance, "a first member joins"),
];

impl State {
    /// All of them.
    pub const ALL: [State; 5] =
        [State::Empty, State::PreparingRebalance, State::CompletingRebalance, State::Stable, State::Dead];

    /// The name that Kafka's tools know.
    pub fn name(self) -> &'static str {
        match self {
            State::Empty => "Empty",
            State::PreparingRebalance => "PreparingRebalance",
            State::CompletingRebalance => "CompletingRebalance",
            State::Stable => "Stable",
            State::Dead => "Dead",
        }
    }

    /// Whether [`MOVES`] has it.
    pub fn may_become(self, next: State) -> bool {
        MOVES.iter().any(|(from, to, _)| *from == self && *to == next)
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn every_state_can_be_left_and_reached() {
        for state in State::ALL {
            assert!(MOVES.iter().any(|(from, ..)| *from == state), "{} can be left", state.name());
            assert!(MOVES.iter().any(|(_, to, _)| *to == state), "{} can be reached", state.name());
        }
        assert!(!State::Empty.may_become(State::Stable));
        assert!(!State::Stable.may_become(State::CompletingRebalance));
    }
}
