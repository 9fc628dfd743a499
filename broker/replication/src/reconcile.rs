//! The map rule: how much of a follower's log its new leader shares, and what becomes of the rest
//! (`docs/replication.md`, T2, T3 and T5).
//!
//! Every generation has one leader, which wrote its records in order. So two logs that both hold records of a
//! generation hold the same records up to the point where the shorter of the two leaves that generation:
//!
//! ```text
//!   leader     |1 1 1 1 1 1|3 3 3 3|6 6 6          map {1→0, 3→6, 6→10}
//!   follower   |1 1 1 1 1 1|3 3 3 3 3 3|5          map {1→0, 3→6, 5→12}
//!                                  ↑
//!               g = 3, the newest generation that both know
//!               t = min(end of 3 in the leader's log = 10, end of 3 in the follower's = 12) = 10
//!
//!   leader     |1 1 1 1 1 1|6 6 6                  g = 1, t = min(6, 4) = 4: what the leader lacks goes,
//!   follower   |1 1 1 1|2 2 2|4                    and what the follower lacks is shipped
//! ```
//!
//! What the follower holds at or above t is cut, but never below its mark: records there were acknowledged, and
//! a leader that lacks them is the wrong one, unless an operator has accepted a loss since (`unclean_at`).
//!
//! Deliberately absent: fences (they are compared before), and carrying anything out.

use felix_protocol::generation_map::GenerationMap;
use felix_protocol::ids::{Generation, Offset};

/// What a leader says of its log at the beginning of a tenure (T1).
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub struct Offer<'a> {
    /// The tenure.
    pub generation: Generation,
    /// The leader's log end when it began: the first offset that the tenure may write.
    pub begins: Offset,
    /// Entries of the leader's map, oldest first.
    pub entries: &'a [(Generation, Offset)],
    /// Older entries are left out: only generations at or above this one are complete.
    pub complete_from: Generation,
    /// The first offset that the leader can ship from: its log start, or the beginning of the batch that lies around it.
    pub base: Offset,
    /// One past the leader's last record.
    pub log_end: Offset,
    /// The newest unclean promotion.
    pub unclean_at: Option<Generation>,
}

/// What a follower holds.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub struct Held<'a> {
    /// Its map.
    pub map: &'a GenerationMap,
    /// First offset of its log.
    pub log_start: Offset,
    /// One past its last record.
    pub log_end: Offset,
    /// Its mark.
    pub mark: Offset,
    /// The generation of the leader that it learned the mark from.
    pub mark_generation: Generation,
}

/// What follows.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum Verdict {
    /// Both logs are the same below `to`: what is there beyond goes. The mark stands at `mark` then.
    Keep {
        /// Where the follower's log ends from now on.
        to: Offset,
        /// Where its mark stands: lower than before only across an accepted loss.
        mark: Offset,
    },
    /// No generation of the entries that were sent is known here, and older ones were left out (T5), or ones that tell of what is
    /// to be copied: all since this one are needed.
    NeedMap(Generation),
    /// The leader no longer holds what comes next.
    NeedsBootstrap,
    /// Following would cut the log below its own mark.
    BelowMark,
}

/// Applies the rule.
pub fn reconcile(offer: &Offer<'_>, held: &Held<'_>) -> Verdict {
    let shared = match shared_end(offer, held) {
        Shared::Below(end) => end,
        Shared::Unknown(oldest) => return Verdict::NeedMap(oldest),
        // Nothing in common, and the beginning of the leader's log is gone: whoever has a mark beyond it cannot tell
        // a leader that moved on from one that lost everything.
        Shared::Nothing if held.mark <= offer.base => return Verdict::NeedsBootstrap,
        Shared::Nothing => return Verdict::BelowMark,
    };
    let loss_accepted = offer.unclean_at.is_some_and(|at| held.mark_generation < at);
    if shared < held.mark && !loss_accepted {
        return Verdict::BelowMark;
    }
    if shared < offer.base || shared < held.log_start {
        return Verdict::NeedsBootstrap;
    }
    // What is copied from here on is known by the leader's map alone where compaction left no record of a generation.
    let omitted = offer.complete_from > Generation::ZERO;
    if omitted && offer.entries.first().is_none_or(|(_, first)| *first > shared) {
        return Verdict::NeedMap(Generation::ZERO);
    }
    Verdict::Keep { to: shared, mark: held.mark.min(shared) }
}

/// The follower's map once its log is the same as the leader's below `to`: a map that was rebuilt from a compacted log
/// lacks generations that left no record, and gets them here (T0).
pub fn adopted(offer: &Offer<'_>, map: &GenerationMap, to: Offset) -> GenerationMap {
    map.joined(offer.entries, to)
}

enum Shared {
    /// The logs are the same below this offset.
    Below(Offset),
    /// As above, but the leader left out what it takes to say.
    Unknown(Generation),
    /// No record is in both.
    Nothing,
}

fn shared_end(offer: &Offer<'_>, held: &Held<'_>) -> Shared {
    if held.log_start == held.log_end {
        // Without records there is nothing to disagree about; where the log begins is what counts.
        let reached = (offer.base..=offer.log_end).contains(&held.log_end);
        return match (reached, offer.base) {
            (true, _) => Shared::Below(held.log_end),
            (false, 0) => Shared::Below(offer.log_end.min(held.log_end)),
            (false, _) => Shared::Nothing,
        };
    }
    if held.map.latest().is_some_and(|(latest, _)| latest == offer.generation) {
        // What came in this tenure came from this leader, which never cuts its own log: a header that says less is one
        // that was overtaken by later frames.
        return Shared::Below(held.log_end);
    }
    let own = held.map.entries();
    let common = own.iter().rposition(|(generation, _)| {
        offer.entries.binary_search_by_key(generation, |(known, _)| *known).is_ok()
    });
    let Some(at) = common else {
        return match own.first() {
            Some((oldest, _)) if *oldest < offer.complete_from => Shared::Unknown(*oldest),
            _ if offer.base == 0 => Shared::Below(0),
            _ => Shared::Nothing,
        };
    };
    let generation = own[at].0;
    let own_end = own.get(at + 1).map_or(held.log_end, |(_, first)| *first);
    let next = offer.entries.partition_point(|(known, _)| *known <= generation);
    // The tenure itself has no entry before its first record, and no end.
    let newest = if generation == offer.generation { offer.log_end } else { offer.begins };
    let leaders_end = offer.entries.get(next).map_or(newest, |(_, first)| *first);
    Shared::Below(own_end.min(leaders_end))
}

#[cfg(test)]
mod tests;
