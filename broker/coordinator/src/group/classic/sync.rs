//! SyncGroup: the leader's assignment is stored and handed out.

use std::collections::BTreeMap;
use std::sync::Arc;

use bytes::Bytes;

use crate::error::GroupError;
use crate::group::Group;
use crate::group::state::State;
use crate::machine::{Notice, Token, Turn};
use crate::reply::{Reply, Synced};
use crate::request::SyncGroup;

impl Group {
    pub(crate) fn sync(&mut self, token: Token, request: &SyncGroup, turn: &mut Turn<'_>) {
        if let Err(error) = self.check_sync(request) {
            turn.reply_now(token, Reply::Sync(Err(error)));
            return;
        }
        match self.state {
            State::Stable => {
                self.mark_synced(&request.member, turn);
                let synced = self.synced(&request.member);
                turn.reply(token, Reply::Sync(Ok(synced)));
            }
            State::CompletingRebalance if self.is_leader(&request.member) => {
                self.assign(token, request, turn);
            }
            State::CompletingRebalance => self.park_sync(token, &request.member, turn),
            State::PreparingRebalance => {
                turn.reply_now(token, Reply::Sync(Err(GroupError::RebalanceInProgress)));
            }
            State::Empty | State::Dead => {
                turn.reply_now(token, Reply::Sync(Err(GroupError::UnknownMember)));
            }
        }
    }

    fn check_sync(&self, request: &SyncGroup) -> Result<(), GroupError> {
        self.validate(&request.member, request.instance.as_ref())?;
        if request.generation != self.generation {
            return Err(GroupError::IllegalGeneration);
        }
        let differs = |told: &Option<Arc<str>>, known: &Option<Arc<str>>| {
            told.as_ref().zip(known.as_ref()).is_some_and(|(told, known)| told != known)
        };
        if differs(&request.protocol_type, &self.protocol_type) || differs(&request.protocol, &self.protocol)
        {
            return Err(GroupError::InconsistentProtocol);
        }
        Ok(())
    }

    fn park_sync(&mut self, token: Token, id: &Arc<str>, turn: &mut Turn<'_>) {
        self.mark_synced(id, turn);
        let Some(member) = self.members.get_mut(id) else { return };
        if let Some(old) = member.sync.replace(token) {
            turn.reply_now(old, Reply::Sync(Err(GroupError::RebalanceInProgress)));
        }
    }

    /// The leader brings the assignment. A member that it forgot gets an empty one.
    fn assign(&mut self, token: Token, request: &SyncGroup, turn: &mut Turn<'_>) {
        let given: BTreeMap<&Arc<str>, &Bytes> =
            request.assignments.iter().map(|(member, assignment)| (member, assignment)).collect();
        let weight: usize = given.values().map(|assignment| assignment.len()).sum();
        if self.bytes + weight > turn.settings.group_bytes_max {
            turn.reply_now(token, Reply::Sync(Err(GroupError::GroupTooLarge)));
            return;
        }
        self.park_sync(token, &request.member, turn);
        let ids: Vec<Arc<str>> = self.members.keys().cloned().collect();
        for id in &ids {
            let assignment = given.get(id).map(|assignment| Bytes::copy_from_slice(assignment));
            self.set_assignment(id, assignment.unwrap_or_default());
        }
        self.become_state(State::Stable, turn);
        self.store(turn);
        for id in &ids {
            let token = self.members.get_mut(id).and_then(|member| member.sync.take());
            if let Some(token) = token {
                let synced = self.synced(id);
                turn.reply(token, Reply::Sync(Ok(synced)));
                // Its alarm may have rung, and been excused, while it waited.
                self.expect_heartbeat(id, turn);
            }
        }
        turn.out.notices.push(Notice::Stable {
            group: self.id.clone(),
            generation: self.generation,
            members: self.members.len(),
        });
    }

    fn synced(&self, id: &Arc<str>) -> Synced {
        Synced {
            protocol_type: self.protocol_type.clone(),
            protocol: self.protocol.clone(),
            assignment: self.members.get(id).map(|member| member.assignment.clone()).unwrap_or_default(),
        }
    }
}
