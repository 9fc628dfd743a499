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

/// No eligible peer answers for so long, while their beats move: the leader is cut off. Longer with leases so long that the beats of the
/// dead seem to move for as long: those must not be taken for deaf.
pub const CUT_OFF_AFTER: Duration = Duration::from_secs(2);
/// A copy that resigned because it was cut off does not do so again for as long.
pub const CUT_OFF_REST: Duration = Duration::from_secs(60);

/// So often it is looked at whether everything still points to it. When twice as much has passed, this process stood still itself, and
/// what it did not hear meanwhile proves nothing.
const LOOK: Duration = Duration::from_millis(250);

/// Everything points to being cut off.
#[derive(Clone, Copy, Debug)]
pub(super) struct Silence {
    /// Since when, without a gap: followers that were away and are back have had no time to answer before.
    since: MonoTime,
    looked_at: MonoTime,
}

impl<R: Rules> Leader<R> {
    /// When to look again; never, while nothing points to it.
    pub(super) fn look_for_silence_at(&self) -> MonoTime {
        self.silence.map_or(MonoTime::NEVER, |silence| {
            self.cut_off_at(&silence).min(silence.looked_at.after(LOOK)).max(silence.looked_at)
        })
    }

    /// When it counts as cut off if nothing is heard until then.
    fn cut_off_at(&self, silence: &Silence) -> MonoTime {
        let heard = self.members.last_heard(&self.core.eligible.known().eligible);
        let patience = CUT_OFF_AFTER.max(self.members.nodes().beating_after_death);
        heard.unwrap_or(silence.since).max(silence.since).after(patience).max(self.cut_off_from)
    }

    /// Whether somebody waits for the mark, and enough of those that may give it are alive by their beats.
    fn may_be_cut_off(&self) -> bool {
        let eligible = &self.core.eligible.known().eligible;
        let beating = &self.members.nodes().beating;
        let alive = eligible.iter().filter(|pair| beating.contains(&pair.broker)).count();
        alive > 0 && alive + 1 >= self.core.need && self.waiters.awaits(Word::Mark)
    }

    pub(super) fn notice_cut_off(&mut self, now: MonoTime, actions: &mut Vec<Action>) {
        if !self.may_be_cut_off() {
            self.silence = None;
            return;
        }
        let before = self.silence.filter(|silence| now.since(silence.looked_at) <= LOOK * 2);
        let silence = Silence { since: before.map_or(now, |silence| silence.since), looked_at: now };
        self.silence = Some(silence);
        if self.cut_off_at(&silence) > now {
            return;
        }
        actions.push(Action::CutOff { exposed: self.core.end - self.core.mark });
        self.leaving = Some(Leaving { until: MonoTime::NEVER, is_late: true, anyway: true, cut_off: true });
        self.core.leave();
        self.resign_if_ready(now, actions);
    }
}
