//! Whether it is this node's turn to decide as controller, and what it must have asked before.

use std::time::Duration;

use felix_cluster::promotion::StandingsOf;
use felix_protocol::ids::PartitionId;
use felix_protocol::time::MonoTime;

use super::Executor;
use crate::inquiry;
use crate::store::Store;

/// What was said longer ago is not believed any more.
const BELIEVED: Duration = Duration::from_secs(1);

/// What brokers said of their copies, of partitions that wait for a decision. Whoever had nothing to say is not asked twice for the same one.
#[derive(Default)]
pub(super) struct Asked {
    standings: StandingsOf,
    since: Option<MonoTime>,
}

impl Asked {
    pub(super) fn standings(&self) -> &StandingsOf {
        &self.standings
    }

    /// Keeps what was said of partitions that wait yet. What was said of one that was looked at is about a moment that is over: a copy
    /// may have lost something by the next.
    pub(super) fn keep(&mut self, waits: impl Fn(&PartitionId) -> bool) {
        self.standings.retain(|id, _| waits(id));
        if self.standings.is_empty() {
            self.forget();
        }
    }

    fn forget(&mut self) {
        *self = Asked::default();
    }
}

impl<S: Store> Executor<S> {
    /// Whether this node decides now what a controller decides.
    pub(super) fn is_controllers_turn(&mut self) -> bool {
        let now = self.sessions.as_ref().map(|sessions| sessions.clock.now());
        if let Some(now) = now {
            self.controller.tick(&self.view, now);
            if self.asked.since.is_some_and(|since| now.since(since) >= BELIEVED) {
                self.asked.forget();
            }
        }
        let is_quiet = self.controller.is_quiet();
        if is_quiet {
            // What was said is about a moment that is over.
            self.asked.forget();
        }
        let sessions = self.sessions.as_mut();
        sessions.is_none_or(|sessions| sessions.is_controllers_turn(&self.view, is_quiet))
    }

    /// Asks those whose word decides who is promoted, about all partitions together that are to be looked at. Nothing else
    /// goes on here meanwhile, so it is short.
    pub(super) async fn inquire(&mut self) {
        let Some(inquirer) = self.published.inquirer().get().cloned() else { return };
        let known = &self.asked.standings;
        let to_ask = self.controller.to_ask(&self.view, |id| known.contains_key(id));
        if to_ask.is_empty() {
            return;
        }
        self.asked.since = self.asked.since.or(self.sessions.as_ref().map(|sessions| sessions.clock.now()));
        let questions = inquiry::by_broker(&to_ask);
        self.asked.standings.extend(to_ask.into_keys().map(|id| (id, Default::default())));
        self.asked.standings.extend(inquirer.ask(questions, inquiry::PATIENCE).await);
    }
}
