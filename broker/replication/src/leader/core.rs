//! The leader's safety core: what it may claim, without time and without record bytes.

use std::collections::{BTreeMap, BTreeSet};

use felix_protocol::ids::{Generation, Offset};

use crate::eligible::{
    Claim, Eligible, KeyState, Last, Learned, Pair, Report, Resigned, Revision, opening_set,
};
use crate::mark::MarkRule;
use crate::rules::Rules;

/// What a tenure starts from. The copy's accepted generation is durable before this exists (C7).
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct Tenure {
    /// The generation led at.
    pub generation: Generation,
    /// This broker's copy.
    pub own: Pair,
    /// The partition's key, as it was when the control store named this leader.
    pub key: KeyState,
    /// Where the copy's mark stands.
    pub mark: Offset,
    /// One past the copy's last record: the takeover's log end.
    pub end: Offset,
    /// Up to where the copy is durable, as its flush policy counts.
    pub stored: Offset,
    /// How many members an acknowledgement needs.
    pub need: usize,
}

/// How far the tenure has come.
#[derive(Clone, Copy, Debug, PartialEq, Eq, PartialOrd, Ord, Hash)]
pub enum Phase {
    /// The opening report has not landed.
    Opening,
    /// It has.
    Open,
    /// Asked to give the partition up: nothing is written any more, and what is written is still answered for.
    Leaving,
    /// Over, for good (C6).
    Ended,
}

/// What a leader may claim. A model checker drives this alone.
#[derive(Clone, Debug, PartialEq, Eq, PartialOrd, Ord, Hash)]
pub struct Core<R: Rules> {
    rules: R,
    pub(crate) generation: Generation,
    pub(crate) own: Pair,
    pub(crate) eligible: Eligible,
    pub(crate) phase: Phase,
    /// The revision at which the key first named this tenure as the newest that opened.
    pub(crate) opened_at: Option<Revision>,
    pub(crate) need: usize,
    /// Invariant: mark ≤ stored ≤ end, and each only rises (the mark once it is past the takeover).
    pub(crate) mark: Offset,
    pub(crate) stored: Offset,
    pub(crate) end: Offset,
    /// The log end when the tenure began (C5).
    pub(crate) takeover: Offset,
    /// Positions answered in this tenure (C4); it dies with the tenure.
    pub(crate) confirmed: BTreeMap<Pair, Offset>,
    /// Pairs that are known dead: C9 does not hold them.
    pub(crate) dead: BTreeSet<Pair>,
    /// Somebody who is about to become a member: the mark waits for it, too, so that it is not always a little ahead (C5).
    pub(crate) awaited: Option<Pair>,
}

/// So many dead pairs are remembered; a copy gets a new name only when it was wiped, rebuilt or in doubt.
const MOST_DEAD: usize = 256;

impl<R: Rules> Core<R> {
    /// A tenure that must open before it acknowledges anything.
    pub fn new(tenure: Tenure) -> Core<R> {
        Core {
            rules: R::default(),
            generation: tenure.generation,
            own: tenure.own,
            eligible: Eligible::new(tenure.key),
            phase: Phase::Opening,
            opened_at: None,
            need: tenure.need,
            mark: tenure.mark.min(tenure.stored).min(tenure.end),
            stored: tenure.stored.min(tenure.end),
            end: tenure.end,
            takeover: tenure.end,
            confirmed: BTreeMap::new(),
            dead: BTreeSet::new(),
            awaited: None,
        }
    }

    /// How far the tenure has come.
    pub fn phase(&self) -> Phase {
        self.phase
    }

    /// Whether an acknowledgement may be given at all: opened (C10), and not over.
    pub fn may_acknowledge(&self) -> bool {
        match self.phase {
            Phase::Open | Phase::Leaving => true,
            Phase::Opening => !R::C10_OPENS_FIRST,
            Phase::Ended => false,
        }
    }

    /// Members that stand for an acknowledgement: the known set and the leader (C8).
    pub fn members(&self) -> usize {
        // The leader's own pair is never in the set, but must not count twice if it were.
        let others = self.eligible.known().eligible.iter().filter(|pair| **pair != self.own).count();
        others + 1
    }

    /// The opening report, on the revision last learned.
    pub fn propose_opening(&mut self) -> Report {
        let set = opening_set(self.eligible.known(), self.own, R::C10_KEEPS_LAST);
        let last = Last::Opened { pair: self.own, generation: self.generation };
        self.eligible.propose(set, last, Claim::Opening(self.own.log))
    }

    /// Whether there is anybody to ship to.
    pub fn is_followed(&self) -> bool {
        self.eligible.known().replicas.iter().any(|broker| *broker != self.own.broker)
    }

    /// C5: whether this pair may be added. C13: only a replica, and never the leader's own.
    pub fn may_add(&self, pair: &Pair) -> bool {
        let reached = self.mark.max(self.takeover);
        let position = self.confirmed.get(pair).copied();
        let level = position.is_some_and(|position| position >= reached || !R::C5_LEVEL_FIRST);
        let replica = self.eligible.known().replicas.contains(&pair.broker);
        level && replica && pair.broker != self.own.broker && !self.dead.contains(pair)
    }

    /// C9: how small the set may become.
    pub fn floor(&self) -> usize {
        if R::C9_KEEPS_FLOOR { self.need.saturating_sub(1) } else { 0 }
    }

    /// C12: whether this copy may be told to begin anew.
    pub fn may_restart(&self, pair: &Pair) -> bool {
        !R::C12_NAMES_COPY || !self.eligible.maximal().contains(pair)
    }

    /// A report that makes this the set. Lawful: who is added may be (C5, C13), and no more is dropped than may be (C9).
    pub fn propose_set(&mut self, set: BTreeSet<Pair>) -> Report {
        let known = self.eligible.known();
        debug_assert!(set.difference(&known.eligible).all(|pair| self.may_add(pair)), "C5, C13");
        let dropped = known.eligible.difference(&set);
        let dead: BTreeSet<Pair> = dropped.filter(|pair| self.dead.contains(pair)).copied().collect();
        let drops_living = known.eligible.difference(&set).any(|pair| !dead.contains(pair));
        let kept = set.len() >= known.eligible.len() || set.len() >= self.floor();
        debug_assert!(!drops_living || kept, "C9");
        let last = known.last;
        let claim = Claim::Eligible { dead, need: self.need };
        self.eligible.propose(set, last, claim)
    }

    /// Whether the key says that the tenure is over: given up, or another has begun.
    pub fn is_over(&self) -> bool {
        let known = self.eligible.known();
        known.generation > self.generation || (known.generation == self.generation && !known.led)
    }

    /// This pair does not hold any more what it confirmed.
    pub fn dead(&mut self, pair: Pair) {
        if self.dead.len() >= MOST_DEAD {
            self.dead.pop_first();
        }
        self.confirmed.remove(&pair);
        self.dead.insert(pair);
    }

    /// A report landed. Returns whether that opened the tenure.
    pub fn landed(&mut self, number: u64, revision: Revision) -> bool {
        let resigns = self.eligible.resigns(number);
        let counts = self.eligible.landed(number, revision);
        if counts && resigns {
            self.end();
        }
        counts && self.open_if_reported()
    }

    /// The tenure is to end; only one that opened has anything to hand over.
    pub fn leave(&mut self) {
        debug_assert_eq!(self.phase, Phase::Open);
        self.awaited = None;
        self.phase = Phase::Leaving;
    }

    /// Whether everything that was written is durable here.
    pub fn is_settled(&self) -> bool {
        self.stored >= self.end
    }

    /// Eligible pairs that have confirmed everything, as of the key last learned.
    pub fn level(&self) -> BTreeSet<Pair> {
        let level = |pair: &&Pair| self.confirmed.get(*pair).is_some_and(|position| *position >= self.end);
        self.eligible.known().eligible.iter().filter(level).copied().collect()
    }

    /// Whether each eligible pair has confirmed everything.
    pub fn is_level(&self) -> bool {
        self.level().len() == self.eligible.known().eligible.len()
    }

    /// The last report, on the revision last learned: where the log ends, and who holds all of it. To be made when nothing
    /// is written any more and everything is durable here.
    /// Cut off, it names nobody, whoever may have been level once.
    pub fn propose_resigning(&mut self, cut_off: bool) -> Report {
        debug_assert!(self.phase == Phase::Leaving && self.is_settled());
        let (end, pairs) = (self.end, if cut_off { BTreeSet::new() } else { self.level() });
        self.eligible.propose_resigning(Resigned { end, pairs })
    }

    /// The key was seen. Returns whether that opened the tenure: an opening report whose answer got lost
    /// shows itself in the key.
    pub fn observed(&mut self, key: KeyState) -> (Learned, bool) {
        let learned = self.eligible.observed(key);
        (learned, learned == Learned::Newer && self.open_if_reported())
    }

    /// Opened ⇔ the key names this tenure as the newest leader that opened.
    fn open_if_reported(&mut self) -> bool {
        let last = Last::Opened { pair: self.own, generation: self.generation };
        let opens = self.phase == Phase::Opening && self.eligible.known().last == last;
        if opens {
            self.phase = Phase::Open;
            self.opened_at = Some(self.eligible.known().revision);
        }
        opens
    }

    /// The log was written up to `end`.
    pub fn appended(&mut self, end: Offset) {
        self.end = self.end.max(end);
    }

    /// The log is durable up to `end`; nothing beyond what was written counts.
    pub fn stored(&mut self, end: Offset) {
        self.stored = self.stored.max(end.min(self.end));
    }

    /// A pair confirmed a position. Positions of one pair never go back; one that does comes from a disk
    /// that was rolled back, and whoever receives answers deals with that before it gets here.
    pub fn confirmed(&mut self, pair: Pair, position: Offset) {
        if self.dead.contains(&pair) {
            return;
        }
        let known = self.confirmed.entry(pair).or_insert(position);
        *known = (*known).max(position);
    }

    /// Moves the mark as far as the rule allows. Returns whether it moved.
    pub fn advance(&mut self) -> bool {
        if !self.may_acknowledge() {
            return false;
        }
        let counted = if R::C2_COUNTS_REPORTS_IN_FLIGHT {
            self.eligible.maximal()
        } else {
            self.eligible.known().eligible.clone()
        };
        let need = if R::C8_NEEDS_MEMBERS { self.need } else { 1 };
        let rule = MarkRule { mark: self.mark, stored: self.stored, members: self.members(), need };
        let waited_for = counted.iter().chain(&self.awaited);
        let mark = rule.mark(waited_for.map(|pair| self.confirmed.get(pair).copied()));
        let moved = mark > self.mark;
        self.mark = mark;
        moved
    }

    /// The key as last learned.
    pub fn known(&self) -> &KeyState {
        self.eligible.known()
    }

    /// The maximal eligible set, for checks.
    pub fn maximal(&self) -> BTreeSet<Pair> {
        self.eligible.maximal()
    }

    /// The tenure is over.
    pub fn end(&mut self) {
        self.phase = Phase::Ended;
    }
}
