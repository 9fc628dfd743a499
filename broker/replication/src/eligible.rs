//! Who may be promoted: the standing eligible set, and the reports that may change it.
//!
//! The leader knows the set as of the key revision it last learned. What it sent since may land at any time
//! until a newer revision is seen, so it lives with a *range* of sets. The mark must be right in each of
//! them, which is why it is computed over their union:
//!
//! ```text
//!   known at revision 7   {B1}
//!   report 3 on 7         {B1, C1}     sent, no answer        maximal = {B1, C1, D1}
//!   report 4 on 7         {B1, D1}     sent, timed out
//! ```
//!
//! At most one of reports 3 and 4 can land, since both compare revision 7. Once a revision above 7 is seen,
//! whatever it was, none of them can (C3).

use std::collections::BTreeSet;

use felix_protocol::ids::{BrokerId, Generation, LogId, Offset};

/// One broker's copy: (B, id1) and (B, id2) are two members.
#[derive(Clone, Copy, Debug, PartialEq, Eq, PartialOrd, Ord, Hash)]
pub struct Pair {
    /// The broker.
    pub broker: BrokerId,
    /// The identity of its copy.
    pub log: LogId,
}

/// A revision of the partition's key in the control store: rises with every write to it.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq, PartialOrd, Ord, Hash)]
pub struct Revision(pub u64);

/// The newest leader that opened, as the partition's key names it.
#[derive(Clone, Copy, Debug, PartialEq, Eq, PartialOrd, Ord, Hash)]
pub enum Last {
    /// No leader ever opened.
    Never,
    /// Its pair declined since.
    Declined,
    /// This one, at this generation.
    Opened {
        /// Its pair.
        pair: Pair,
        /// Its generation.
        generation: Generation,
    },
}

/// What the partition's key says, as far as a leader needs it.
#[derive(Clone, Debug, PartialEq, Eq, PartialOrd, Ord, Hash)]
pub struct KeyState {
    /// The revision of the partition's key.
    pub revision: Revision,
    /// The revision of its topic's key, read at the same time.
    pub topic: Revision,
    /// The eligible set.
    pub eligible: BTreeSet<Pair>,
    /// The newest leader that opened.
    pub last: Last,
    /// Who holds copies, those that are being added among them.
    pub replicas: BTreeSet<BrokerId>,
    /// The newest tenure.
    pub generation: Generation,
    /// Whether somebody has it: not so once it was given up.
    pub led: bool,
}

/// What a report is about.
#[derive(Clone, Debug, PartialEq, Eq, PartialOrd, Ord, Hash)]
pub enum Claim {
    /// The tenure opens, with this copy (C10).
    Opening(LogId),
    /// The leader vouches for another set.
    Eligible {
        /// Members that it drops because they are known dead (C9).
        dead: BTreeSet<Pair>,
        /// How many members an acknowledgement needs.
        need: usize,
    },
    /// The leader's parting word: with it nobody leads.
    Resigned(Resigned),
}

/// One report: a compare-and-set on the partition's key.
#[derive(Clone, Debug, PartialEq, Eq, PartialOrd, Ord, Hash)]
pub struct Report {
    /// Tells its answer from others'. Rises within a tenure.
    pub number: u64,
    /// The revision of the partition's key that the leader last learned: a compare. Nobody substitutes one
    /// read later (C1).
    pub revision: Revision,
    /// The same of its topic's key: the other compare.
    pub topic: Revision,
    /// The set it proposes.
    pub eligible: BTreeSet<Pair>,
    /// What it proposes as the newest leader that opened.
    pub last: Last,
    /// What it is about.
    pub claim: Claim,
}

impl Report {
    /// The leader's parting word, if it is one.
    pub fn resigned(&self) -> Option<&Resigned> {
        match &self.claim {
            Claim::Resigned(resigned) => Some(resigned),
            Claim::Opening(_) | Claim::Eligible { .. } => None,
        }
    }
}

/// What a leader leaves to whoever follows it.
#[derive(Clone, Debug, PartialEq, Eq, PartialOrd, Ord, Hash)]
pub struct Resigned {
    /// Where its log ends.
    pub end: Offset,
    /// The eligible pairs that hold all of it.
    pub pairs: BTreeSet<Pair>,
}

/// The known set and the reports that may still land.
#[derive(Clone, Debug, PartialEq, Eq, PartialOrd, Ord, Hash)]
pub struct Eligible {
    known: KeyState,
    /// Invariant: each was sent on the two revisions that are known; older ones cannot land any more.
    in_flight: Vec<Report>,
    next_number: u64,
}

/// What an observation of the key did.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum Learned {
    /// A newer revision: reports on the older one are dead.
    Newer,
    /// Nothing that was not known. Reports in flight may still land.
    Nothing,
}

impl Eligible {
    /// As the key was when the tenure began.
    pub fn new(known: KeyState) -> Eligible {
        Eligible { known, in_flight: Vec::new(), next_number: 0 }
    }

    /// The key as last learned.
    pub fn known(&self) -> &KeyState {
        &self.known
    }

    /// Whether a report may still land.
    pub fn has_reports_in_flight(&self) -> bool {
        !self.in_flight.is_empty()
    }

    /// Every pair that is eligible or may become so by a report in flight (C2).
    pub fn maximal(&self) -> BTreeSet<Pair> {
        let sent = self.in_flight.iter().flat_map(|report| &report.eligible);
        self.known.eligible.iter().chain(sent).copied().collect()
    }

    /// Makes a report on the revision last learned (C1). It counts from now on, before it is even sent. The
    /// same proposal while the first is unresolved is the same report: sent twice, it lands once.
    pub fn propose(&mut self, eligible: BTreeSet<Pair>, last: Last, claim: Claim) -> Report {
        self.send(eligible, last, claim)
    }

    /// The last report of a tenure: the set and who led stay as they are.
    pub fn propose_resigning(&mut self, resigned: Resigned) -> Report {
        let (eligible, last) = (self.known.eligible.clone(), self.known.last);
        self.send(eligible, last, Claim::Resigned(resigned))
    }

    /// Whether that report, still in flight, is the last one of the tenure.
    pub fn resigns(&self, number: u64) -> bool {
        self.in_flight.iter().any(|report| report.number == number && report.resigned().is_some())
    }

    /// Whether any is that may land yet.
    pub fn has_resigned(&self) -> bool {
        self.in_flight.iter().any(|report| report.resigned().is_some())
    }

    fn send(&mut self, eligible: BTreeSet<Pair>, last: Last, claim: Claim) -> Report {
        let same =
            |report: &&Report| report.eligible == eligible && report.last == last && report.claim == claim;
        if let Some(report) = self.in_flight.iter().find(same) {
            return report.clone();
        }
        let KeyState { revision, topic, .. } = self.known;
        let report = Report { number: self.next_number, revision, topic, eligible, last, claim };
        self.next_number += 1;
        self.in_flight.push(report.clone());
        report
    }

    /// The sets that may still become the one.
    pub fn proposed(&self) -> impl Iterator<Item = &BTreeSet<Pair>> {
        self.in_flight.iter().map(|report| &report.eligible)
    }

    /// A report that may still land, to be sent once more: the newest.
    pub fn unresolved(&self) -> Option<&Report> {
        self.in_flight.last()
    }

    /// Sent without an answer, and taken for dead: what C3 forbids.
    pub(crate) fn forget(&mut self, number: u64) {
        self.in_flight.retain(|report| report.number != number);
    }

    /// The report landed and the key is now at `revision`. False when it was dead already: a newer revision
    /// was seen before this answer, and says more than the answer does.
    pub fn landed(&mut self, number: u64, revision: Revision) -> bool {
        let Some(at) = self.in_flight.iter().position(|report| report.number == number) else {
            return false;
        };
        let report = self.in_flight.swap_remove(at);
        if revision <= self.known.revision {
            // It said what was so already, and nothing was written: the others may still land (C3).
            return false;
        }
        self.known.revision = revision;
        self.known.led &= report.resigned().is_none();
        self.known.eligible = report.eligible;
        self.known.last = report.last;
        self.in_flight.clear();
        true
    }

    /// A linearizable read (or a refused compare, which carries one) showed the two keys. A newer revision of
    /// either makes every compare of an older report fail.
    pub fn observed(&mut self, key: KeyState) -> Learned {
        let known = (self.known.revision, self.known.topic);
        if key.revision < known.0 || key.topic < known.1 || (key.revision, key.topic) == known {
            return Learned::Nothing;
        }
        self.known = key;
        self.in_flight.clear();
        Learned::Newer
    }
}

/// C10: what a new leader's first report proposes. The pair that led last holds everything that it alone
/// acknowledged, so it stays a member until the new leader swaps it out; the leader's own pair never is one.
pub fn opening_set(known: &KeyState, own: Pair, keep_last: bool) -> BTreeSet<Pair> {
    let mut set = known.eligible.clone();
    if let Last::Opened { pair, .. } = known.last
        && keep_last
    {
        set.insert(pair);
    }
    // At most one pair a broker, never the leader's broker: an older id of this broker is a copy that is gone.
    set.retain(|pair| pair.broker != own.broker);
    set
}

#[cfg(test)]
mod tests {
    use super::*;
    use felix_protocol::ids::Uuid;

    fn pair(broker: i32, log: u128) -> Pair {
        Pair { broker: BrokerId(broker), log: LogId(Uuid::from_u128(log)) }
    }

    fn key(revision: u64, eligible: &[Pair]) -> KeyState {
        KeyState {
            revision: Revision(revision),
            topic: Revision(1),
            eligible: eligible.iter().copied().collect(),
            last: Last::Never,
            replicas: (1..5).map(BrokerId).collect(),
            generation: Generation::ZERO,
            led: true,
        }
    }

    fn change() -> Claim {
        Claim::Eligible { dead: BTreeSet::new(), need: 2 }
    }

    fn set(pairs: &[Pair]) -> BTreeSet<Pair> {
        pairs.iter().copied().collect()
    }

    #[test]
    fn a_report_counts_until_a_newer_revision_is_seen() {
        let (b, c, d) = (pair(2, 1), pair(3, 1), pair(4, 1));
        let mut eligible = Eligible::new(key(7, &[b]));
        let third = eligible.propose(set(&[b, c]), Last::Never, change());
        let fourth = eligible.propose(set(&[b, d]), Last::Never, change());
        assert_eq!((third.revision, fourth.revision), (Revision(7), Revision(7)), "C1");
        assert_eq!(eligible.maximal(), set(&[b, c, d]), "C2");
        // A read at the revision they were sent on resolves nothing (C3).
        assert_eq!(eligible.observed(key(7, &[b])), Learned::Nothing);
        assert_eq!(eligible.maximal(), set(&[b, c, d]));
        // Somebody else's write resolves both.
        assert_eq!(eligible.observed(key(9, &[b])), Learned::Newer);
        assert_eq!(eligible.maximal(), set(&[b]));
        assert!(!eligible.landed(third.number, Revision(8)), "an answer about the past changes nothing");
        assert_eq!(eligible.known(), &key(9, &[b]));
    }

    #[test]
    fn a_newer_topic_key_kills_reports_too() {
        let mut eligible = Eligible::new(key(7, &[]));
        let first = eligible.propose(set(&[pair(2, 1)]), Last::Never, change());
        let edited = KeyState { topic: Revision(9), ..key(7, &[]) };
        assert_eq!(eligible.observed(edited), Learned::Newer);
        assert_eq!(eligible.maximal(), set(&[]));
        let again = eligible.propose(set(&[pair(2, 1)]), Last::Never, change());
        assert_eq!((first.topic, again.topic), (Revision(1), Revision(9)));
        assert_eq!(eligible.observed(key(8, &[])), Learned::Nothing, "a read from before the edit");
    }

    #[test]
    fn success_resolves_everything_on_that_revision() {
        let (b, c) = (pair(2, 1), pair(3, 1));
        let mut eligible = Eligible::new(key(7, &[b]));
        eligible.propose(set(&[b, c]), Last::Never, change());
        let shrink = eligible.propose(set(&[]), Last::Never, change());
        assert!(eligible.landed(shrink.number, Revision(8)));
        assert_eq!(eligible.maximal(), set(&[]));
        assert!(!eligible.has_reports_in_flight());
    }

    #[test]
    fn an_answer_without_a_write_resolves_nothing() {
        let b = pair(2, 1);
        let mut eligible = Eligible::new(key(7, &[]));
        eligible.propose(set(&[b]), Last::Never, change());
        // The set as it is: the store writes nothing, and the first may land yet (C3).
        let same = eligible.propose(set(&[]), Last::Never, change());
        assert!(!eligible.landed(same.number, Revision(7)));
        assert_eq!(eligible.maximal(), set(&[b]));
    }

    #[test]
    fn the_same_proposal_again_is_the_same_report() {
        let mut eligible = Eligible::new(key(7, &[]));
        let first = eligible.propose(set(&[pair(2, 1)]), Last::Never, change());
        assert_eq!(eligible.propose(set(&[pair(2, 1)]), Last::Never, change()), first);
        assert_ne!(eligible.propose(set(&[pair(2, 2)]), Last::Never, change()).number, first.number);
    }

    #[test]
    fn two_copies_of_one_broker_are_two_members() {
        let mut eligible = Eligible::new(key(1, &[pair(2, 1)]));
        eligible.propose(set(&[pair(2, 2)]), Last::Never, change());
        assert_eq!(eligible.maximal().len(), 2);
    }

    #[test]
    fn opening_keeps_who_led_last_and_drops_the_leader_itself() {
        let generation = Generation::new(4).unwrap();
        let (own, own_before, b, c) = (pair(1, 10), pair(1, 9), pair(2, 1), pair(3, 1));
        let mut known = key(7, &[own, own_before, b]);
        known.last = Last::Opened { pair: c, generation };
        assert_eq!(opening_set(&known, own, true), set(&[b, c]));
        assert_eq!(opening_set(&known, own, false), set(&[b]));
        known.last = Last::Opened { pair: own, generation };
        assert_eq!(opening_set(&known, own, true), set(&[b]));
        known.last = Last::Declined;
        assert_eq!(opening_set(&known, own, true), set(&[b]));
    }
}
