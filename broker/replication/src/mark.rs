//! The mark rule, by itself: up to which offset is everything acknowledged safe?
//!
//! ```text
//!   leader     ────────────────────────●  stored = 24
//!   B (id 1)   ──────────────────●        confirmed = 18   ┐ both in maximal eligible
//!   C (id 7)   ───────────────────────●   confirmed = 23   ┘
//!                                ↑
//!                                mark = 18, if known eligible ∪ {leader} has at least `need` members
//! ```
//!
//! A member without a confirmed position holds the mark where it is: "unknown" is not "everything".

use felix_protocol::ids::Offset;

/// What the rule looks at.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub struct MarkRule {
    /// Where the mark stands. It never moves back (I4).
    pub mark: Offset,
    /// One past the last record that is durable on the leader, as its flush policy counts.
    pub stored: Offset,
    /// Members of the *known* eligible set and the leader, counted once (C8).
    pub members: usize,
    /// How many members an acknowledgement needs.
    pub need: usize,
}

impl MarkRule {
    /// Where the mark may stand: `confirmed` gives one position for each pair of the *maximal* eligible set
    /// (C2), `None` where nothing was confirmed at this generation under that log id (C4).
    pub fn mark(&self, confirmed: impl IntoIterator<Item = Option<Offset>>) -> Offset {
        if self.members < self.need {
            return self.mark;
        }
        let mut reach = self.stored;
        for position in confirmed {
            match position {
                Some(position) => reach = reach.min(position),
                None => return self.mark,
            }
        }
        self.mark.max(reach)
    }
}

/// How many members an acknowledgement needs: `min.insync.replicas` where the operator set it, else the
/// majority of the replicas; never more than there are.
pub fn need(replicas: usize, min_insync_replicas: Option<usize>) -> usize {
    let replicas = replicas.max(1);
    min_insync_replicas.unwrap_or(replicas / 2 + 1).clamp(1, replicas)
}

#[cfg(test)]
mod tests {
    use super::*;

    fn rule(mark: Offset, stored: Offset, members: usize, need: usize) -> MarkRule {
        MarkRule { mark, stored, members, need }
    }

    #[test]
    fn alone_the_leader_decides() {
        assert_eq!(rule(3, 10, 1, 1).mark([]), 10);
    }

    #[test]
    fn the_slowest_member_of_the_maximal_set_decides() {
        assert_eq!(rule(3, 24, 3, 2).mark([Some(18), Some(23)]), 18);
        assert_eq!(rule(3, 24, 3, 2).mark([Some(30), Some(40)]), 24, "nothing beyond the leader's own disk");
    }

    #[test]
    fn a_member_that_confirmed_nothing_stops_it() {
        assert_eq!(rule(3, 24, 3, 2).mark([Some(18), None]), 3);
    }

    #[test]
    fn too_few_members_stop_it() {
        assert_eq!(rule(3, 24, 1, 2).mark([]), 3);
    }

    #[test]
    fn it_never_moves_back() {
        assert_eq!(rule(20, 24, 2, 2).mark([Some(18)]), 20);
        assert_eq!(rule(20, 5, 1, 1).mark([]), 20);
    }

    #[test]
    fn need_is_the_majority_unless_the_operator_chose() {
        for (replicas, majority) in [(1, 1), (2, 2), (3, 2), (4, 3), (5, 3)] {
            assert_eq!(need(replicas, None), majority, "{replicas} replicas");
        }
        assert_eq!(need(3, Some(1)), 1);
        assert_eq!(need(1, Some(2)), 1, "never more than there are");
        assert_eq!(need(3, Some(0)), 1);
        assert_eq!(need(0, None), 1);
    }
}
