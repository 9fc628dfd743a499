//! The join phase: how a rebalance starts, waits and completes.

use std::sync::Arc;
use std::time::Duration;

use crate::error::GroupError;
use crate::group::state::State;
use crate::group::{Group, Initial};
use crate::machine::{Notice, Turn};
use crate::reply::Reply;
use crate::timers::Alarm;

/// The shortest wait for members of whom none has come, however short their own timeouts are.
const NO_BUSY_LOOP: Duration = Duration::from_secs(1);

impl Group {
    /// A member has come, changed or gone: the group must agree anew, unless it is doing so already.
    pub(super) fn rebalance_or_complete(&mut self, reason: &'static str, turn: &mut Turn<'_>) {
        if self.state.may_become(State::PreparingRebalance) {
            self.prepare_rebalance(reason, turn);
        } else {
            self.maybe_complete_join(turn);
        }
    }

    /// The same, after a member was removed. A group that was not rebalancing and is left without members goes
    /// through an empty rebalance, so that its end is stored.
    pub(super) fn after_removal(&mut self, reason: &'static str, turn: &mut Turn<'_>) {
        match self.state {
            State::Stable | State::CompletingRebalance => self.prepare_rebalance(reason, turn),
            State::PreparingRebalance => self.maybe_complete_join(turn),
            State::Empty | State::Dead => {}
        }
    }

    pub(super) fn prepare_rebalance(&mut self, reason: &'static str, turn: &mut Turn<'_>) {
        if self.state == State::CompletingRebalance {
            self.abandon_syncs(turn);
        }
        self.forget_unsynced(turn);
        self.notice_rebalance(reason, turn);
        let was_empty = self.state == State::Empty;
        self.become_state(State::PreparingRebalance, turn);
        let delay = turn.settings.initial_rebalance_delay;
        if was_empty && !delay.is_zero() {
            let remaining = self.rebalance_timeout().saturating_sub(delay);
            self.initial = Some(Initial { delay, remaining, grew: false });
            self.wait_for_joins(delay, turn);
        } else if was_empty || self.all_joined() {
            self.complete_join(turn);
        } else {
            self.wait_for_joins(self.rebalance_timeout(), turn);
        }
    }

    fn wait_for_joins(&mut self, wait: Duration, turn: &mut Turn<'_>) {
        let at = turn.now.mono.after(wait);
        turn.timers.set(&self.id, Alarm::Join, &mut self.join_at, at);
    }

    /// Completes the join phase if nobody is missing. The first one of an empty group takes its time.
    pub(super) fn maybe_complete_join(&mut self, turn: &mut Turn<'_>) {
        if self.state == State::PreparingRebalance && self.initial.is_none() && self.all_joined() {
            self.complete_join(turn);
        }
    }

    /// The time for joining is up.
    pub(super) fn join_time_is_up(&mut self, turn: &mut Turn<'_>) {
        if self.state != State::PreparingRebalance {
            return;
        }
        if let Some(initial) = self.initial
            && initial.grew
            && !initial.remaining.is_zero()
        {
            let delay = turn.settings.initial_rebalance_delay.min(initial.remaining);
            let remaining = initial.remaining.saturating_sub(initial.delay);
            self.initial = Some(Initial { delay, remaining, grew: false });
            self.wait_for_joins(delay, turn);
        } else {
            self.complete_join(turn);
        }
    }

    /// The next generation consists of those who have joined, and of static members, who may be restarting.
    fn complete_join(&mut self, turn: &mut Turn<'_>) {
        turn.timers.cancel(&self.id, Alarm::Join, &mut self.join_at);
        let missing: Vec<Arc<str>> = self
            .members
            .iter()
            .filter(|(_, member)| member.join.is_none() && member.instance.is_none())
            .map(|(id, _)| id.clone())
            .collect();
        for id in missing {
            self.take_member(&id, turn);
        }
        if !self.members.is_empty() && !self.elect_leader() {
            // Only static members, and none has come: wait for them, or for their sessions to end.
            self.initial = None;
            self.wait_for_joins(self.rebalance_timeout().max(NO_BUSY_LOOP), turn);
            return;
        }
        self.initial = None;
        // Kafka lets it wrap; a group that rebalances once a second gets there in 68 years.
        self.generation = self.generation.wrapping_add(1);
        self.forget_unsynced(turn);
        if self.members.is_empty() {
            self.become_empty(turn);
        } else {
            self.become_complete(turn);
        }
    }

    fn become_empty(&mut self, turn: &mut Turn<'_>) {
        self.protocol = None;
        self.learn_subscription();
        self.become_state(State::Empty, turn);
        // A group whose first generation never came about is better forgotten.
        if !self.durable.is_empty() || self.generation > 1 {
            self.store(turn);
        }
        let notice = Notice::Empty { group: self.id.clone(), generation: self.generation };
        turn.out.notices.push(notice);
    }

    fn become_complete(&mut self, turn: &mut Turn<'_>) {
        self.protocol = self.choose_protocol();
        self.learn_subscription();
        self.become_state(State::CompletingRebalance, turn);
        let ids: Vec<Arc<str>> = self.members.keys().cloned().collect();
        for id in ids {
            // What it was assigned before is over.
            self.set_assignment(&id, bytes::Bytes::new());
            let joined = self.joined(&id);
            if let Some(member) = self.members.get_mut(&id) {
                member.new = false;
                if let Some(token) = member.join.take() {
                    self.joined -= 1;
                    turn.reply(token, Reply::Join(Ok(joined)));
                }
            }
            self.expect_heartbeat(&id, turn);
            self.unsynced.insert(id);
        }
        let at = turn.now.mono.after(self.rebalance_timeout());
        turn.timers.set(&self.id, Alarm::Sync, &mut self.sync_at, at);
    }

    /// Makes sure that the leader is one that has joined; whether there is one.
    fn elect_leader(&mut self) -> bool {
        let has_joined = |id: &Arc<str>| self.members.get(id).is_some_and(|member| member.join.is_some());
        if self.leader.as_ref().is_some_and(has_joined) {
            return true;
        }
        let joined = self.members.iter().find(|(_, member)| member.join.is_some());
        match joined.map(|(id, _)| id.clone()) {
            Some(id) => {
                self.leader = Some(id);
                true
            }
            None => false,
        }
    }

    /// The assignment that was awaited will not come.
    fn abandon_syncs(&mut self, turn: &mut Turn<'_>) {
        let ids: Vec<Arc<str>> = self.members.keys().cloned().collect();
        for id in ids {
            let token = self.members.get_mut(&id).and_then(|member| member.sync.take());
            if let Some(token) = token {
                turn.reply_now(token, Reply::Sync(Err(GroupError::RebalanceInProgress)));
                // Its alarm may have rung, and been excused, while it waited.
                self.expect_heartbeat(&id, turn);
            }
        }
    }

    /// Members that know the generation and never asked for their part of it are gone.
    pub(super) fn sync_time_is_up(&mut self, turn: &mut Turn<'_>) {
        let late: Vec<Arc<str>> = self.unsynced.iter().cloned().collect();
        for id in &late {
            if let Some(mut member) = self.take_member(id, turn) {
                self.refuse_parked(&mut member, GroupError::UnknownMember, turn);
            }
        }
        if !late.is_empty() {
            self.after_removal("members did not ask for their assignment", turn);
        }
    }
}
