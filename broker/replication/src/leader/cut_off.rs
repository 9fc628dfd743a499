//! A leader that nobody answers any more: it gives the partition up, so that somebody leads who is heard.
//!
//! Its peers are alive by their beats, enough of them to acknowledge, and a writer waits for their word; only this leader does
//! not hear of any eligible one. It resigns without shipping and names nobody: the next leader is asked what it holds, and the
//! resigner comes last. Records that were acknowledged on its word alone may be lost by that: a loss event.

use std::time::Duration;

use felix_protocol::time::MonoTime;

use super::{Leader, Leaving};
use crate::action::Action;
use crate::rules::Rules;
use crate::waiters::Word;

/// No eligible peer answers for so long, while their beats move: the leader is cut off.
pub const CUT_OFF_AFTER: Duration = Duration::from_secs(2);
/// A copy that resigned because it was cut off does not do so again for as long.
pub const CUT_OFF_REST: Duration = Duration::from_secs(60);

impl<R: Rules> Leader<R> {
    /// When the tenure counts as cut off if nothing is heard until then; `None` while it cannot be.
    pub(super) fn cut_off_at(&self) -> Option<MonoTime> {
        let eligible = &self.core.eligible.known().eligible;
        if eligible.is_empty() || !self.waiters.awaits(Word::Mark) {
            return None;
        }
        let beating = &self.members.nodes().beating;
        let alive = eligible.iter().filter(|pair| beating.contains(&pair.broker)).count();
        if alive == 0 || alive + 1 < self.core.need {
            return None;
        }
        let heard = self.members.last_heard(eligible).unwrap_or(self.open_since).max(self.open_since);
        Some(heard.after(CUT_OFF_AFTER).max(self.cut_off_from))
    }

    pub(super) fn notice_cut_off(&mut self, now: MonoTime, actions: &mut Vec<Action>) {
        if self.cut_off_at().is_none_or(|at| at > now) {
            return;
        }
        actions.push(Action::CutOff { exposed: self.core.end - self.core.mark });
        self.leaving = Some(Leaving { until: MonoTime::NEVER, is_late: true, anyway: true, cut_off: true });
        self.core.leave();
        self.resign_if_ready(now, actions);
    }
}
