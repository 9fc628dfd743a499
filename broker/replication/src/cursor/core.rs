//! The cursor's safety core: which answers say something about which copy.

use std::collections::BTreeSet;

use felix_protocol::ids::{BrokerId, Generation, LogId, Offset};
use felix_protocol::peer::ship::Said;

use crate::eligible::Pair;
use crate::rules::Rules;

/// What one tenure knows of one follower. A model checker drives this alone.
#[derive(Clone, Debug, PartialEq, Eq, PartialOrd, Ord, Hash)]
pub struct Core<R: Rules> {
    rules: R,
    broker: BrokerId,
    generation: Generation,
    log: Option<LogId>,
    /// The greatest position that `log` has confirmed.
    confirmed: Option<Offset>,
    /// Log ids that are known dead. A broker makes a new one only when it is wiped, rebuilt or in doubt, so there are few;
    /// the newest are kept.
    dead: BTreeSet<LogId>,
}

/// As many dead ids are remembered of a broker.
const MOST_DEAD: usize = 64;

/// What an answer said.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq)]
pub struct Learned {
    /// The answer is about an older tenure, or there is no copy: nothing is known.
    pub stale: bool,
    /// A newer tenure was accepted.
    pub superseded: Option<Generation>,
    /// This pair is known dead.
    pub dead: Option<Pair>,
    /// This pair confirmed this.
    pub confirmed: Option<(Pair, Offset)>,
    /// The answer came from another copy than the one before.
    pub changed: bool,
    /// The copy says what cannot be: it is not to be counted on.
    pub diverged: bool,
}

impl<R: Rules> Core<R> {
    pub(super) fn new(broker: BrokerId, generation: Generation) -> Core<R> {
        Core { rules: R::default(), broker, generation, log: None, confirmed: None, dead: BTreeSet::new() }
    }

    /// Whose copy it is.
    pub fn broker(&self) -> BrokerId {
        self.broker
    }

    /// The copy that answered last.
    pub fn pair(&self) -> Option<Pair> {
        self.log.map(|log| Pair { broker: self.broker, log })
    }

    /// What it confirmed.
    pub fn confirmed(&self) -> Option<Offset> {
        self.confirmed
    }

    /// Takes in an answer to a frame that was on its way. `restart`: the frame told the copy to begin anew, so its position is one
    /// that was never compared. `leaders_end`: more than that nobody has of this tenure.
    pub(super) fn answered(
        &mut self,
        generation: Generation,
        log: Option<LogId>,
        end: Offset,
        said: Said,
        restart: bool,
        leaders_end: Offset,
    ) -> Learned {
        if generation > self.generation {
            return Learned { superseded: Some(generation), ..Learned::default() };
        }
        let Some(log) = log.filter(|_| generation == self.generation || !R::C4_NAMES_COPY) else {
            return Learned { stale: true, ..Learned::default() };
        };
        let mut learned = Learned::default();
        if self.log != Some(log) {
            // Its broker holds another copy by now: the one before is gone for good.
            learned.dead = self.log.filter(|_| R::C4_NAMES_COPY).map(|log| self.kill(log));
            learned.changed = true;
            self.log = Some(log);
            self.confirmed = self.confirmed.filter(|_| !R::C4_NAMES_COPY);
        }
        let pair = Pair { broker: self.broker, log };
        if self.dead.contains(&log) {
            learned.diverged = true;
            return learned;
        }
        if said != Said::Stored || restart {
            return learned;
        }
        // A disk that was rolled back under a running process confirms less than before. And nobody has more of this tenure
        // than its leader.
        if self.confirmed.is_some_and(|confirmed| end < confirmed) || end > leaders_end {
            learned.dead = Some(self.kill(log));
            learned.diverged = true;
            return learned;
        }
        self.confirmed = Some(end);
        learned.confirmed = Some((pair, end));
        learned
    }

    fn kill(&mut self, log: LogId) -> Pair {
        if self.dead.len() >= MOST_DEAD {
            self.dead.pop_first();
        }
        self.dead.insert(log);
        Pair { broker: self.broker, log }
    }
}
