//! Random histories of a few logs: leaders that come and go, ship some of what they have, cut, compact, drop their
//! beginning and send shortened maps. The rule must keep the logs equal wherever they say that they are (I3), and cut
//! nothing that was acknowledged. Rules that are wrong on purpose must be found out by the same histories.

use std::collections::BTreeMap;

use proptest::prelude::*;
use proptest::test_runner::{Config, RngAlgorithm, TestRng, TestRunner};

use super::*;

type Rule = fn(&Offer<'_>, &Held<'_>) -> Verdict;

/// The value of a record is its generation and a number that is never used again.
#[derive(Clone, Debug)]
struct Copy {
    start: Offset,
    end: Offset,
    records: BTreeMap<Offset, (Generation, u32)>,
    map: GenerationMap,
    mark: Offset,
    mark_generation: Generation,
}

impl Copy {
    fn new(start: Offset) -> Copy {
        let (records, map) = (BTreeMap::new(), GenerationMap::default());
        Copy { start, end: start, records, map, mark: start, mark_generation: Generation::ZERO }
    }

    fn cut(&mut self, to: Offset) {
        self.records.split_off(&to);
        self.map.cut(to);
        self.end = self.end.min(to);
    }
}

#[derive(Clone, Debug)]
enum Move {
    /// Somebody leads at the next generation; if the flag is set, although it may lack acknowledged records.
    Lead(usize, bool),
    Append(i64),
    /// The leader ships to a follower: a header with so many map entries, and so many records.
    Ship(usize, usize, i64),
    /// The mark moves as far as a majority has got.
    Mark,
    /// A record below the mark is compacted away in one log.
    Compact(usize, i64),
    /// One log drops its beginning, up to that share of what is below the mark.
    Retain(usize, i64),
}

fn moves() -> impl Strategy<Value = Move> {
    prop_oneof![
        3 => (0..3usize, prop::bool::weighted(0.1)).prop_map(|(who, unclean)| Move::Lead(who, unclean)),
        4 => (1..5i64).prop_map(Move::Append),
        8 => (0..3usize, 1..4usize, 0..8i64).prop_map(|(to, entries, records)| Move::Ship(to, entries, records)),
        3 => Just(Move::Mark),
        1 => (0..3usize, 0..20i64).prop_map(|(who, at)| Move::Compact(who, at)),
        1 => (0..3usize, 0..4i64).prop_map(|(who, share)| Move::Retain(who, share)),
    ]
}

struct World {
    rule: Rule,
    copies: [Copy; 3],
    generation: Generation,
    leader: usize,
    begins: Offset,
    unclean_at: Option<Generation>,
    /// Who was reconciled in this tenure, and so counts for the mark.
    reconciled: [bool; 3],
    /// What was acknowledged, and not given up by an operator.
    acknowledged: BTreeMap<Offset, (Generation, u32)>,
    next_value: u32,
}

impl World {
    fn new(rule: Rule) -> World {
        World {
            rule,
            copies: [Copy::new(0), Copy::new(0), Copy::new(0)],
            generation: generation(1),
            leader: 0,
            begins: 0,
            unclean_at: None,
            reconciled: [true, false, false],
            acknowledged: BTreeMap::new(),
            next_value: 0,
        }
    }

    fn step(&mut self, next: &Move) -> Result<(), String> {
        match *next {
            Move::Lead(who, unclean) => self.lead(who, unclean),
            Move::Append(count) => self.append(count),
            Move::Ship(to, entries, records) => self.ship(to, entries, records)?,
            Move::Mark => self.mark(),
            Move::Compact(who, at) => {
                let copy = &mut self.copies[who];
                if at < copy.mark {
                    copy.records.remove(&at);
                }
            }
            Move::Retain(who, share) => {
                let copy = &mut self.copies[who];
                copy.start += (copy.mark - copy.start) * share / 4;
                let start = copy.start;
                copy.records = copy.records.split_off(&start);
                copy.map.trim(start);
            }
        }
        self.check()
    }

    fn holds_all(&self, who: usize) -> bool {
        let copy = &self.copies[who];
        let reaches = self.acknowledged.keys().next_back().is_none_or(|last| *last < copy.end);
        reaches && self.lacks_none(copy)
    }

    /// Whether a copy has what was acknowledged, except what was dropped or compacted there.
    fn lacks_none(&self, copy: &Copy) -> bool {
        self.acknowledged
            .range(copy.start..copy.end)
            .all(|(offset, value)| copy.records.get(offset).map_or(*offset < copy.mark, |held| held == value))
    }

    fn lead(&mut self, who: usize, unclean: bool) {
        // Clean promotion is given to who holds everything; that is the eligible set's business, not this rule's.
        if !unclean && !self.holds_all(who) {
            return;
        }
        self.generation = self.generation.next().unwrap();
        self.leader = who;
        self.begins = self.copies[who].end;
        self.reconciled = [false; 3];
        self.reconciled[who] = true;
        if unclean {
            self.unclean_at = Some(self.generation);
            let copy = &self.copies[who];
            self.acknowledged.retain(|offset, value| copy.records.get(offset) == Some(value));
        }
    }

    fn append(&mut self, count: i64) {
        let copy = &mut self.copies[self.leader];
        copy.map.begin(self.generation, copy.end);
        for _ in 0..count {
            copy.records.insert(copy.end, (self.generation, self.next_value));
            self.next_value += 1;
            copy.end += 1;
        }
    }

    fn ship(&mut self, to: usize, entries: usize, records: i64) -> Result<(), String> {
        if to == self.leader {
            return Ok(());
        }
        let whole = self.copies.iter().all(|copy| copy.start == 0);
        let source = self.copies[self.leader].clone();
        let copy = &mut self.copies[to];
        let mut known = source.map.newest(entries);
        let mut asked = None;
        for _ in 0..3 {
            let shortened = known.len() < source.map.entries().len();
            let oldest = asked.or_else(|| known.first().map(|first| first.0));
            let complete_from = oldest.filter(|_| shortened).unwrap_or(Generation::ZERO);
            let offer = Offer {
                generation: self.generation,
                begins: self.begins,
                entries: known,
                complete_from,
                base: source.start,
                log_end: source.end,
                unclean_at: self.unclean_at,
            };
            let held = Held {
                map: &copy.map,
                log_start: copy.start,
                log_end: copy.end,
                mark: copy.mark,
                mark_generation: copy.mark_generation,
            };
            match (self.rule)(&offer, &held) {
                Verdict::NeedMap(oldest) => {
                    if asked == Some(oldest) {
                        return Err(format!("the map since {oldest} is asked for twice"));
                    }
                    asked = Some(oldest);
                    known = source.map.since(oldest);
                    continue;
                }
                // Where no loss was accepted and every log is whole, nobody is ever stopped.
                Verdict::BelowMark | Verdict::NeedsBootstrap if self.unclean_at.is_none() && whole => {
                    return Err(format!("broker {to} is stopped"));
                }
                Verdict::BelowMark => return Ok(()),
                Verdict::NeedsBootstrap => {
                    *copy = Copy::new(source.start);
                    self.reconciled[to] = true;
                }
                Verdict::Keep { to: end, mark } => {
                    if end < copy.mark && self.unclean_at.is_none_or(|at| copy.mark_generation >= at) {
                        return Err(format!("cut to {end}, below its mark {}", copy.mark));
                    }
                    if end > copy.end {
                        return Err(format!("kept {end} of a log that ends at {}", copy.end));
                    }
                    let adopted = adopted(&offer, &copy.map, end);
                    copy.cut(end);
                    copy.map = adopted;
                    if copy.mark > mark {
                        (copy.mark, copy.mark_generation) = (mark, self.generation);
                    }
                    self.reconciled[to] = true;
                }
            }
            break;
        }
        if self.reconciled[to] {
            let until = source.end.min(copy.end + records);
            for (offset, (generation, value)) in source.records.range(copy.end.min(until)..until) {
                copy.map.begin(*generation, *offset);
                copy.records.insert(*offset, (*generation, *value));
            }
            copy.end = copy.end.max(until);
            // Of a generation whose records are all compacted away by now, only the map tells (T0).
            copy.map = copy.map.joined(source.map.entries(), copy.end);
            let mark = source.mark.min(copy.end);
            if mark >= copy.mark {
                (copy.mark, copy.mark_generation) = (mark, self.generation);
            }
        }
        Ok(())
    }

    fn mark(&mut self) {
        let mut ends: Vec<Offset> =
            (0..3).map(|who| if self.reconciled[who] { self.copies[who].end } else { 0 }).collect();
        ends.sort_unstable();
        let copy = &mut self.copies[self.leader];
        copy.mark = copy.mark.max(ends[1].min(copy.end));
        copy.mark_generation = self.generation;
        for (offset, value) in copy.records.range(..copy.mark) {
            self.acknowledged.insert(*offset, *value);
        }
    }

    /// I3, with gaps below the marks: where both hold a record of the same generation at the same offset, whatever is below
    /// is the same.
    fn check(&self) -> Result<(), String> {
        for (at, one) in self.copies.iter().enumerate() {
            for other in &self.copies[at + 1..] {
                let equal = |(offset, value): &(&Offset, &(Generation, u32))| {
                    other.records.get(*offset).is_some_and(|held| held.0 == value.0)
                };
                let Some((last, _)) = one.records.iter().rev().find(equal) else { continue };
                for offset in one.start.max(other.start)..=*last {
                    let (held, there) = (one.records.get(&offset), other.records.get(&offset));
                    let gap =
                        |copy: &Copy, held: &Option<&(Generation, u32)>| held.is_none() && offset < copy.mark;
                    if held != there && !gap(one, &held) && !gap(other, &there) {
                        return Err(format!("at {offset} {held:?} and {there:?}, although equal at {last}"));
                    }
                }
            }
        }
        Ok(())
    }
}

fn history() -> impl Strategy<Value = Vec<Move>> {
    prop::collection::vec(moves(), 1..80)
}

fn play(rule: Rule, script: &[Move]) -> Result<(), String> {
    let mut world = World::new(rule);
    script.iter().try_for_each(|next| world.step(next))
}

proptest! {
    #![proptest_config(Config { cases: 3000, ..Config::default() })]

    #[test]
    fn logs_stay_equal_where_they_say_so(script in history()) {
        prop_assert_eq!(play(reconcile, &script), Ok(()));
    }
}

/// Whether the histories find out a rule, within so many of them.
fn is_found_out(rule: Rule, cases: u32) -> bool {
    let config = Config { cases, failure_persistence: None, ..Config::default() };
    let mut runner = TestRunner::new_with_rng(config, TestRng::deterministic_rng(RngAlgorithm::ChaCha));
    runner
        .run(&history(), |script| {
            prop_assert_eq!(play(rule, &script), Ok(()));
            Ok(())
        })
        .is_err()
}

#[test]
fn a_wrong_rule_is_found_out() {
    fn keep_all(_: &Offer<'_>, held: &Held<'_>) -> Verdict {
        Verdict::Keep { to: held.log_end, mark: held.mark }
    }
    /// Before KIP-101: back to the mark, whatever that is.
    fn cut_to_the_mark(_: &Offer<'_>, held: &Held<'_>) -> Verdict {
        Verdict::Keep { to: held.mark, mark: held.mark }
    }
    /// T2 with the leader's end alone, and with the follower's alone.
    fn leaders_end(offer: &Offer<'_>, held: &Held<'_>) -> Verdict {
        let common =
            held.map.entries().iter().rev().find(|(known, _)| offer.entries.iter().any(|at| at.0 == *known));
        let Some((known, _)) = common else { return reconcile(offer, held) };
        let next = offer.entries.iter().find(|(at, _)| at > known).map_or(offer.log_end, |(_, first)| *first);
        Verdict::Keep { to: next.min(held.log_end), mark: held.mark.min(next) }
    }
    /// T3 without its guard.
    fn cut_below_the_mark(offer: &Offer<'_>, held: &Held<'_>) -> Verdict {
        reconcile(offer, &Held { mark: held.log_start, ..*held })
    }
    /// T5: what was left out is taken for not there, which loses nothing but stops copies for no reason.
    fn never_ask(offer: &Offer<'_>, held: &Held<'_>) -> Verdict {
        reconcile(&Offer { complete_from: Generation::ZERO, ..*offer }, held)
    }
    let rules: [(&str, Rule); 5] = [
        ("keep all", keep_all),
        ("cut to the mark", cut_to_the_mark),
        ("the leader's end", leaders_end),
        ("below the mark", cut_below_the_mark),
        ("never ask", never_ask),
    ];
    for (name, rule) in rules {
        assert!(is_found_out(rule, 3000), "{name}");
    }
}
