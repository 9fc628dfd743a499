//! Heartbeats, and what happens without them.

use std::sync::Arc;

use crate::error::GroupError;
use crate::group::Group;
use crate::group::state::State;
use crate::machine::{Notice, Turn};
use crate::request::Heartbeat;
use crate::timers::Alarm;

impl Group {
    pub(crate) fn heartbeat(&mut self, request: &Heartbeat, turn: &mut Turn<'_>) -> Result<(), GroupError> {
        self.validate(&request.member, request.instance.as_ref())?;
        if request.generation != self.generation {
            return Err(GroupError::IllegalGeneration);
        }
        match self.state {
            State::PreparingRebalance => {
                self.expect_heartbeat(&request.member, turn);
                Err(GroupError::RebalanceInProgress)
            }
            State::CompletingRebalance | State::Stable => {
                self.expect_heartbeat(&request.member, turn);
                Ok(())
            }
            State::Empty | State::Dead => Err(GroupError::UnknownMember),
        }
    }

    /// An alarm has rung. Its slot is cleared first: the queue has dropped it.
    pub(crate) fn ring(&mut self, alarm: Alarm, turn: &mut Turn<'_>) {
        match alarm {
            Alarm::Join => {
                self.join_at = None;
                self.join_time_is_up(turn);
            }
            Alarm::Sync => {
                self.sync_at = None;
                self.sync_time_is_up(turn);
            }
            Alarm::Pending(id) => {
                self.pending.remove(&id);
                self.maybe_complete_join(turn);
            }
            Alarm::Session(id) => {
                if let Some(member) = self.members.get_mut(&id) {
                    member.deadline = None;
                    if !member.is_excused() {
                        self.lose(&id, turn);
                    }
                }
            }
        }
    }

    fn lose(&mut self, id: &Arc<str>, turn: &mut Turn<'_>) {
        let Some(mut member) = self.take_member(id, turn) else { return };
        // A new member may still wait for its join: it will try again.
        self.refuse_parked(&mut member, GroupError::UnknownMember, turn);
        turn.out.notices.push(Notice::Lost { group: self.id.clone(), member: id.clone() });
        self.after_removal("a member was silent for too long", turn);
    }
}
