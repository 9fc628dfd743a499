//! Who should be eligible: the pacing around C5 and C9.
//!
//! ```text
//!             behind for 4 × usual (50 to 500 ms), halted, draining; fenced, where writes go on
//!   member ────────────────────────────────────────────────────────────────▶ out
//!      ▲                                                                      │ level again for 1 s, doubled
//!      │  swapped in at once for one that must go; at once, too, while        │ with each flap up to 60 s (4 s
//!      │                                                                      │ where its broker was away or is another process)
//!      └─────────────────────────────────── fewer than needed are in ◀────────┘
//! ```
//!
//! Everything is measured against the *trail*: when the leader's own disk had passed which offset. A follower is behind since
//! the first passing that it has not confirmed.

use std::collections::{BTreeMap, BTreeSet, VecDeque};
use std::time::Duration;

use felix_protocol::ids::{BrokerId, Offset};
use felix_protocol::time::MonoTime;

use super::Core;
use crate::eligible::Pair;
use crate::event::Nodes;
use crate::rules::Rules;

/// A member that is usually quick may be behind for this long.
pub const LEAST_SLOW: Duration = Duration::from_millis(50);
/// No member may be behind for longer.
pub const MOST_SLOW: Duration = Duration::from_millis(500);
/// How long a follower must have been level before it is added, at first.
pub const FIRST_LEVEL: Duration = Duration::from_secs(1);
/// The same after many flaps.
pub const LONGEST_LEVEL: Duration = Duration::from_secs(60);
/// Nor than this where its broker was away meanwhile, fenced or draining, or was started anew before anybody missed it: restarts and pauses cost the others at most [`MOST_SLOW`] each,
/// and whoever restarts one broker after the other waits for each to be back in the set.
pub const LONGEST_RETURN: Duration = Duration::from_secs(4);
/// A partition that was written to so recently will be again: whoever is fenced is dropped at once, not when the next write waits for it.
/// Of one that rests the fenced stay in the set: they hold all of it, and could lead when they come back first.
pub const IN_USE: Duration = Duration::from_secs(60);
/// What was taken for usual is forgotten after twice this.
pub const OF_LATE: Duration = Duration::from_secs(10);
/// Passings closer together are one.
const TRAIL_STEP: Duration = Duration::from_millis(5);
/// Passings that are remembered: more than cover [`MOST_SLOW`].
const TRAIL_LENGTH: usize = 128;
/// A passing that the mark is beyond is remembered for so long, since followers outside the set are measured against it.
const TRAIL_KEPT: Duration = Duration::from_secs(1);

/// When the leader's disk had passed which offset.
#[derive(Clone, Debug, Default)]
pub(super) struct Trail {
    /// Invariant: both rise.
    passed: VecDeque<(Offset, MonoTime)>,
    /// The newest passing that is not remembered any more.
    forgotten: Option<(Offset, MonoTime)>,
}

impl Trail {
    pub fn pass(&mut self, end: Offset, now: MonoTime) {
        match self.passed.back_mut() {
            Some((last, at)) if now.since(*at) < TRAIL_STEP => *last = (*last).max(end),
            Some((last, _)) if *last >= end => {}
            Some(_) | None => {
                if self.passed.len() >= TRAIL_LENGTH {
                    // The oldest says since when the mark stands; those behind it are older than anybody may be behind.
                    self.passed.remove(1);
                }
                self.passed.push_back((end, now));
            }
        }
    }

    /// What the mark is beyond is of no interest any more, once it is as old as nobody may be behind.
    pub fn forget(&mut self, mark: Offset, now: MonoTime) {
        let old = |at: MonoTime| now.since(at) >= TRAIL_KEPT;
        while let Some(passing) = self.passed.front().copied().filter(|(end, at)| *end <= mark && old(*at)) {
            self.forgotten = Some(passing);
            self.passed.pop_front();
        }
        if self.passed.is_empty() && self.passed.capacity() > 16 {
            self.passed = VecDeque::new();
        }
    }

    /// Gives the memory of passings back that everybody who matters has confirmed, if those are all.
    pub fn give_back(&mut self, mark: Offset) {
        if self.passed.back().is_some_and(|(end, _)| *end <= mark) {
            self.forgotten = self.passed.back().copied();
            self.passed = VecDeque::new();
        }
    }

    /// Since when whoever has confirmed `position` is behind.
    pub fn behind_since(&self, position: Offset) -> Option<MonoTime> {
        if let Some((_, at)) = self.forgotten.filter(|(end, _)| position < *end) {
            return Some(at);
        }
        let at = self.passed.partition_point(|(end, _)| *end <= position);
        self.passed.get(at).map(|(_, at)| *at)
    }
}

/// How long a follower usually takes to confirm: the longest of late, so that the hiccups of its machine and disk are usual. By a mean,
/// everybody with a busy neighbour would be slow now and then, leave the set, and have to keep up without a hiccup for longer and longer.
#[derive(Clone, Copy, Debug, Default)]
struct Usual {
    /// Since when, and the longest since then.
    newest: Option<(MonoTime, Duration)>,
    /// The longest in the time before that.
    before: Option<Duration>,
}

impl Usual {
    fn took(&mut self, took: Duration, now: MonoTime) {
        if took > MOST_SLOW {
            // It was away, and is no slower for that.
            return;
        }
        match &mut self.newest {
            Some((since, longest)) if now.since(*since) < OF_LATE => *longest = took.max(*longest),
            newest => {
                self.before = newest.map(|(_, longest)| longest);
                *newest = Some((now, took));
            }
        }
    }

    fn longest(&self) -> Option<Duration> {
        self.newest.map(|(_, longest)| longest).max(self.before)
    }
}

/// What is known of one follower's pace.
#[derive(Clone, Debug)]
struct Pacing {
    /// The copy that answered last.
    pair: Pair,
    usual: Usual,
    /// It has stopped.
    halted: bool,
    /// Nothing was confirmed since its connection ended. What it confirmed before still counts where it is a member; it becomes none by that,
    /// for its broker may not be able to open the copy any more.
    lost: bool,
    /// Since when it has kept up, while it is not a member.
    level_since: Option<MonoTime>,
    /// How long it must have been level.
    level_wait: Duration,
    /// When it was last found to be a member.
    member_since: Option<MonoTime>,
    /// Its broker was away since it last became a member: fenced, draining, or another process by now.
    was_away: bool,
}

impl Pacing {
    fn slow_after(&self) -> Duration {
        self.usual.longest().map_or(MOST_SLOW, |usual| (usual * 4).clamp(LEAST_SLOW, MOST_SLOW))
    }
}

/// The followers' pace, and when to look at the set again.
#[derive(Clone, Debug)]
pub(super) struct Members {
    trail: Trail,
    followers: BTreeMap<BrokerId, Pacing>,
    nodes: Nodes,
    heard: BTreeMap<BrokerId, MonoTime>,
    /// Something happened that may change the set.
    dirty: bool,
    review_at: MonoTime,
    /// A follower that has kept up for long enough and is a little behind the mark at the moment: the mark waits for it.
    awaited: Option<Pair>,
    /// When the leader's disk passed anything last, in this tenure.
    written_at: Option<MonoTime>,
}

impl Default for Members {
    fn default() -> Self {
        Members {
            trail: Trail::default(),
            followers: BTreeMap::new(),
            nodes: Nodes::default(),
            heard: BTreeMap::new(),
            dirty: true,
            review_at: MonoTime::NEVER,
            awaited: None,
            written_at: None,
        }
    }
}

impl Members {
    /// When to look again.
    pub fn review_at(&self) -> MonoTime {
        self.review_at
    }

    pub fn is_due(&self, now: MonoTime) -> bool {
        self.dirty || self.review_at <= now
    }

    pub fn look_again(&mut self) {
        self.dirty = true;
    }

    pub fn set_nodes(&mut self, nodes: Nodes) {
        for (broker, follower) in &mut self.followers {
            let (before, now) = (self.nodes.sessions.get(broker), nodes.sessions.get(broker));
            // Killed, and back before anybody missed it.
            follower.was_away |= before.is_some() && now.is_some() && before != now;
        }
        self.nodes = nodes;
        self.dirty = true;
    }

    pub fn nodes(&self) -> &Nodes {
        &self.nodes
    }

    pub fn heard(&mut self, broker: BrokerId, now: MonoTime) {
        self.heard.insert(broker, now);
    }

    /// When anything was last heard of one of these.
    pub fn last_heard(&self, pairs: &BTreeSet<Pair>) -> Option<MonoTime> {
        pairs.iter().filter_map(|pair| self.heard.get(&pair.broker).copied()).max()
    }

    /// The leader's disk has passed what the core says.
    pub fn passed<R: Rules>(&mut self, core: &Core<R>, now: MonoTime) {
        if core.is_followed() {
            self.trail.pass(core.stored, now);
            self.written_at = Some(now);
            // Nobody can be too slow any earlier; but who is fenced is not waited for at all.
            let fenced = &self.nodes.fenced;
            self.dirty |= core.known().eligible.iter().any(|pair| fenced.contains(&pair.broker));
            self.review_at = self.review_at.min(now.after(LEAST_SLOW));
        }
    }

    pub fn give_back(&mut self, mark: Offset) {
        self.trail.give_back(mark);
    }

    pub fn marked(&mut self, mark: Offset, now: MonoTime) {
        self.trail.forget(mark, now);
    }

    /// Whom the mark waits for although it is no member.
    pub fn awaited(&self) -> Option<Pair> {
        self.awaited
    }

    /// Called before the core hears of it.
    pub fn confirmed<R: Rules>(&mut self, core: &Core<R>, pair: Pair, position: Offset, now: MonoTime) {
        self.heard.insert(pair.broker, now);
        let trail = &self.trail;
        let follower = self.followers.entry(pair.broker).or_insert_with(|| Pacing {
            pair,
            usual: Usual::default(),
            halted: false,
            lost: false,
            level_since: None,
            level_wait: FIRST_LEVEL,
            member_since: None,
            was_away: false,
        });
        if follower.pair != pair || follower.halted || follower.lost {
            // Another copy, or one that goes on: what was known of its pace stays.
            (follower.pair, follower.halted, follower.lost) = (pair, false, false);
            follower.level_since = None;
            self.dirty = true;
        }
        let before = core.confirmed.get(&pair).copied();
        // Measured as it is judged: from the first passing that it had not confirmed.
        if let Some(since) =
            before.filter(|before| *before < position).and_then(|before| trail.behind_since(before))
        {
            follower.usual.took(now.since(since), now);
        }
        let member = core.eligible.known().eligible.contains(&pair);
        let reached = core.mark.max(core.takeover);
        let news = follower.level_since.is_none() || before.is_none_or(|before| before < reached);
        self.dirty |= !member && news;
    }

    pub fn halted(&mut self, pair: Pair) {
        if let Some(follower) = self.followers.get_mut(&pair.broker) {
            (follower.pair, follower.halted) = (pair, true);
        } else {
            let halted = Pacing {
                pair,
                usual: Usual::default(),
                halted: true,
                lost: false,
                level_since: None,
                level_wait: FIRST_LEVEL,
                member_since: None,
                was_away: false,
            };
            self.followers.insert(pair.broker, halted);
        }
        self.dirty = true;
    }

    /// See [`Pacing::lost`].
    pub fn lost(&mut self, broker: BrokerId) {
        if let Some(follower) = self.followers.get_mut(&broker) {
            (follower.lost, follower.level_since) = (true, None);
            self.dirty = true;
        }
    }

    /// Whether the copy of this broker that spoke last has stopped.
    pub fn has_halted(&self, broker: BrokerId) -> bool {
        self.followers.get(&broker).is_some_and(|follower| follower.halted)
    }

    /// Whether that copy of the broker has stopped.
    pub fn is_halted(&self, pair: &Pair) -> bool {
        self.followers.get(&pair.broker).is_some_and(|follower| follower.halted && follower.pair == *pair)
    }

    /// What the set should be, if that is something else than it is.
    pub fn review<R: Rules>(&mut self, core: &Core<R>, now: MonoTime) -> Option<BTreeSet<Pair>> {
        self.dirty = false;
        self.review_at = MonoTime::NEVER;
        self.awaited = None;
        let known = &core.eligible.known().eligible;
        let leaving: BTreeSet<Pair> =
            known.iter().filter(|pair| self.must_go(core, pair, now)).copied().collect();
        let mut ready = BTreeSet::new();
        let mut able = BTreeSet::new();
        for (broker, follower) in &mut self.followers {
            if known.contains(&follower.pair) {
                if follower.member_since.is_none() {
                    (follower.member_since, follower.was_away) = (Some(now), false);
                }
                follower.level_since = None;
                continue;
            }
            if let Some(since) = follower.member_since.take() {
                // One that comes and goes is waited for longer each time.
                let steady = now.since(since) >= LONGEST_LEVEL;
                follower.level_wait =
                    if steady { FIRST_LEVEL } else { (follower.level_wait * 2).min(LONGEST_LEVEL) };
            }
            let position = core.confirmed.get(&follower.pair).copied().unwrap_or(-1);
            let behind = self.trail.behind_since(position);
            let slow = behind.is_some_and(|since| now.since(since) >= follower.slow_after());
            let gone = self.nodes.fenced.contains(broker) || self.nodes.draining.contains(broker);
            follower.was_away |= gone;
            if follower.was_away {
                follower.level_wait = follower.level_wait.min(LONGEST_RETURN);
            }
            if follower.halted || follower.lost || slow || gone || core.dead.contains(&follower.pair) {
                follower.level_since = None;
                continue;
            }
            let may_add = core.may_add(&follower.pair);
            if may_add {
                able.insert(follower.pair);
            }
            // A mark that moves all the time is a little ahead of whoever is not waited for: keeping up is what counts.
            let since = *follower.level_since.get_or_insert(now);
            let ready_at = since.after(follower.level_wait);
            if ready_at > now {
                self.review_at = self.review_at.min(ready_at);
            } else if may_add {
                ready.insert(follower.pair);
            } else if let Some(since) = behind.filter(|_| self.awaited.is_none()) {
                self.awaited = Some(follower.pair);
                self.review_at = self.review_at.min(since.after(follower.slow_after()));
            }
        }
        let facts = Facts { known, dead: &core.dead, leaving: &leaving, able: &able, ready: &ready };
        let target = facts.target(core.floor(), core.need.saturating_sub(1));
        (target != *known).then_some(target)
    }

    /// Whether a member is to be dropped or swapped, if C9 allows; notes when it will have to.
    fn must_go<R: Rules>(&mut self, core: &Core<R>, pair: &Pair, now: MonoTime) -> bool {
        let broker = &pair.broker;
        let replica = core.eligible.known().replicas.contains(broker);
        if !replica || self.is_halted(pair) || self.nodes.draining.contains(broker) {
            return true;
        }
        let is_fenced = self.nodes.fenced.contains(broker);
        if is_fenced && self.written_at.is_some_and(|at| now.since(at) < IN_USE) {
            return true;
        }
        let position = core.confirmed.get(pair).copied().unwrap_or(-1);
        let Some(since) = self.trail.behind_since(position) else { return false };
        if is_fenced {
            return true;
        }
        let follower = self.followers.get(broker).filter(|follower| follower.pair == *pair);
        let until = since.after(follower.map_or(MOST_SLOW, Pacing::slow_after));
        if until > now {
            self.review_at = self.review_at.min(until);
        }
        until <= now
    }
}

/// What the choice is made from.
struct Facts<'a> {
    known: &'a BTreeSet<Pair>,
    /// Known dead: dropped whatever is left.
    dead: &'a BTreeSet<Pair>,
    /// Members that should go.
    leaving: &'a BTreeSet<Pair>,
    /// Followers that may be added (C5).
    able: &'a BTreeSet<Pair>,
    /// Those of them that have been level for long enough.
    ready: &'a BTreeSet<Pair>,
}

impl Facts<'_> {
    /// The set that should be. `floor`: below it nobody is dropped who lives (C9). `wanted`: below it, whoever may be added is,
    /// since nothing can be acknowledged anyhow.
    fn target(&self, floor: usize, wanted: usize) -> BTreeSet<Pair> {
        let whole = self.without(self.leaving, floor, wanted);
        let dropped = self.known.difference(&whole).any(|pair| !self.dead.contains(pair));
        if dropped && whole.len() < self.known.len() && whole.len() < floor {
            // The dead first: in one write with them, others could not be dropped.
            return self.without(&BTreeSet::new(), floor, wanted);
        }
        whole
    }

    fn without(&self, leaving: &BTreeSet<Pair>, floor: usize, wanted: usize) -> BTreeSet<Pair> {
        let mut set: BTreeSet<Pair> = self.known.difference(self.dead).copied().collect();
        for member in leaving.iter().filter(|pair| !self.dead.contains(pair)) {
            set.remove(member);
            if let Some(other) = self.able.iter().find(|pair| is_free(&set, pair)) {
                set.insert(*other);
            } else if set.len() < floor {
                set.insert(*member);
            }
        }
        for pair in self.able {
            if is_free(&set, pair) && (set.len() < wanted || self.ready.contains(pair)) {
                set.insert(*pair);
            }
        }
        set
    }
}

/// C13: at most one pair a broker.
fn is_free(set: &BTreeSet<Pair>, pair: &Pair) -> bool {
    set.iter().all(|member| member.broker != pair.broker)
}

#[cfg(test)]
mod tests {
    use super::*;
    use felix_protocol::ids::{LogId, Uuid};

    fn pairs(brokers: &[i32]) -> BTreeSet<Pair> {
        brokers.iter().map(|id| Pair { broker: BrokerId(*id), log: LogId(Uuid::nil()) }).collect()
    }

    fn target(known: &[i32], dead: &[i32], leaving: &[i32], able: &[i32], floor: usize) -> BTreeSet<Pair> {
        let (known, dead, leaving, able) = (pairs(known), pairs(dead), pairs(leaving), pairs(able));
        let ready = BTreeSet::new();
        Facts { known: &known, dead: &dead, leaving: &leaving, able: &able, ready: &ready }
            .target(floor, floor)
    }

    #[test]
    fn who_must_go_is_swapped_or_dropped_but_not_below_the_floor() {
        assert_eq!(
            target(&[2, 3], &[], &[], &[4], 1),
            pairs(&[2, 3]),
            "enough, and nobody waited long enough"
        );
        assert_eq!(target(&[2, 3], &[], &[3], &[], 1), pairs(&[2]));
        assert_eq!(target(&[2], &[], &[2], &[], 1), pairs(&[2]), "C9");
        assert_eq!(target(&[2], &[], &[2], &[3], 1), pairs(&[3]), "one write");
        assert_eq!(target(&[2, 3], &[], &[2, 3], &[4], 2), pairs(&[3, 4]));
        assert_eq!(target(&[2], &[2], &[2], &[], 1), pairs(&[]), "known dead");
        assert_eq!(target(&[], &[], &[], &[3], 1), pairs(&[3]), "too few: at once");
    }

    #[test]
    fn the_dead_go_first_where_both_could_not_go_at_once() {
        assert_eq!(target(&[2, 3], &[2], &[3], &[4], 2), pairs(&[3, 4]));
        assert_eq!(target(&[2, 3], &[2], &[3], &[], 2), pairs(&[3]));
    }

    #[test]
    fn hiccups_are_usual_and_forgotten_after_a_while() {
        let at = |millis: u64| MonoTime(millis * 1_000_000);
        let (quick, hiccup) = (Duration::from_millis(2), Duration::from_millis(70));
        let mut usual = Usual::default();
        assert_eq!(usual.longest(), None);
        for millis in 0..20 {
            usual.took(quick, at(millis));
        }
        assert_eq!(usual.longest(), Some(quick));
        usual.took(hiccup, at(20));
        for millis in (21..20_000).step_by(7) {
            usual.took(quick, at(millis));
            assert_eq!(usual.longest(), Some(hiccup), "{millis} ms");
        }
        usual.took(quick, at(20_100));
        assert_eq!(usual.longest(), Some(quick));
        usual.took(Duration::from_secs(30), at(20_200));
        assert_eq!(usual.longest(), Some(quick), "it stood still");
    }

    #[test]
    fn behind_counts_from_the_first_passing_that_is_not_confirmed() {
        let at = |millis: u64| MonoTime(millis * 1_000_000);
        let mut trail = Trail::default();
        for (end, millis) in [(10, 0), (11, 2), (20, 10), (20, 15), (30, 30)] {
            trail.pass(end, at(millis));
        }
        assert_eq!(trail.behind_since(9), Some(at(0)));
        assert_eq!(trail.behind_since(11), Some(at(10)), "what comes close together is one");
        assert_eq!(trail.behind_since(30), None);
        trail.forget(11, at(30));
        assert_eq!(trail.behind_since(0), Some(at(0)), "somebody outside the set may be behind the mark");
        trail.forget(11, at(1000));
        assert_eq!(trail.behind_since(0), Some(at(0)));
        assert_eq!(trail.behind_since(11), Some(at(10)));
        for end in 31..1000 {
            trail.pass(end, at(100 * u64::try_from(end).unwrap()));
        }
        assert!(trail.passed.len() <= TRAIL_LENGTH);
        assert_eq!(trail.behind_since(998), trail.passed.back().map(|(_, at)| *at));
        let newest = trail.passed.back().map(|(_, at)| *at);
        trail.give_back(998);
        assert!(!trail.passed.is_empty(), "somebody who matters has not confirmed it");
        trail.give_back(999);
        assert!(trail.passed.capacity() == 0 && trail.behind_since(999).is_none());
        assert_eq!(trail.behind_since(998), newest);
    }
}
