//! JoinGroup: who may be a member, and when a join starts a rebalance.

use std::sync::Arc;

use crate::error::GroupError;
use crate::group::Group;
use crate::group::member::{Member, weight};
use crate::group::records::Record;
use crate::group::state::State;
use crate::machine::{Token, Turn};
use crate::reply::{JoinRefused, Reply};
use crate::request::JoinGroup;
use crate::timers::Alarm;

/// The longest part of a client id that goes into a member id: with the uuid it must still fit a stored name.
const CLIENT_ID_IN_MEMBER_ID: usize = 1024;

fn refused(error: GroupError, member: Arc<str>) -> Reply {
    Reply::Join(Err(JoinRefused { error, member }))
}

impl Group {
    pub(crate) fn join(&mut self, token: Token, request: &JoinGroup, turn: &mut Turn<'_>) {
        if !self.has_room(request, turn) {
            turn.reply_now(token, refused(GroupError::GroupFull, "".into()));
            // Kafka drops a member that comes back to find the group full, so that the others can go on.
            if let Some(mut member) = self.take_member(&request.member, turn) {
                self.refuse_parked(&mut member, GroupError::GroupFull, turn);
                self.after_removal("a member found the group full", turn);
            }
            return;
        }
        if !self.supports(&request.protocol_type, &request.protocols) {
            turn.reply_now(token, refused(GroupError::InconsistentProtocol, request.member.clone()));
        } else if request.member.is_empty() {
            self.join_new(token, request, turn);
        } else {
            self.join_known(token, request, turn);
        }
    }

    /// Whether there is room for this join. While members are joining, those that wait count: the last to
    /// come back are the ones without a place if the limit was lowered.
    fn has_room(&self, request: &JoinGroup, turn: &Turn<'_>) -> bool {
        let old = self.members.get(&request.member);
        let grown = self.bytes - old.map_or(0, Member::bytes) + weight(&request.protocols);
        if grown > turn.settings.group_bytes_max {
            return false;
        }
        let most = turn.settings.max_members;
        match self.state {
            State::Empty | State::Dead => true,
            State::PreparingRebalance => {
                old.is_some_and(|member| member.join.is_some()) || self.joined < most
            }
            State::CompletingRebalance | State::Stable => {
                let replaces = request.instance.as_ref().is_some_and(|id| self.instances.contains_key(id));
                old.is_some() || replaces || self.members.len() < most
            }
        }
    }

    /// A client without a member id.
    fn join_new(&mut self, token: Token, request: &JoinGroup, turn: &mut Turn<'_>) {
        let member = new_member_id(request);
        match &request.instance {
            Some(instance) => match self.instances.get(instance).cloned() {
                Some(old) => self.take_over(token, request, &old, member, turn),
                None => self.add(token, request, member, "a static member joined", turn),
            },
            None if request.member_id_required => {
                if self.pending.len() >= turn.settings.pending_members_max {
                    turn.reply_now(token, refused(GroupError::GroupFull, "".into()));
                    return;
                }
                let mut slot = None;
                let at = turn.now.mono.after(super::super::millis(request.session_timeout_ms));
                turn.timers.set(&self.id, Alarm::Pending(member.clone()), &mut slot, at);
                self.pending.insert(member.clone(), slot);
                turn.reply_now(token, refused(GroupError::MemberIdRequired, member));
            }
            None => self.add(token, request, member, "a member joined", turn),
        }
    }

    /// A client that names its member id.
    fn join_known(&mut self, token: Token, request: &JoinGroup, turn: &mut Turn<'_>) {
        let id = request.member.clone();
        if self.pending.contains_key(&id) {
            // Ids are given out to dynamic members only.
            if request.instance.is_some() {
                turn.reply_now(token, refused(GroupError::UnknownMember, id));
            } else {
                self.add(token, request, id, "a member joined", turn);
            }
            return;
        }
        if let Err(error) = self.validate(&id, request.instance.as_ref()) {
            turn.reply_now(token, refused(error, id));
            return;
        }
        let unchanged = self.members.get(&id).is_some_and(|member| member.matches(&request.protocols));
        match self.state {
            State::PreparingRebalance => self.rejoin(token, request, "a member joined again", turn),
            State::CompletingRebalance if unchanged => self.tell_generation(token, &id, turn),
            State::CompletingRebalance => self.rejoin(token, request, "a member changed", turn),
            // The leader may know of something that no metadata shows, such as new partitions.
            State::Stable if self.is_leader(&id) => {
                self.rejoin(token, request, "the leader joined again", turn)
            }
            State::Stable if unchanged => self.tell_generation(token, &id, turn),
            State::Stable => self.rejoin(token, request, "a member changed", turn),
            State::Empty | State::Dead => turn.reply_now(token, refused(GroupError::UnknownMember, id)),
        }
    }

    /// Its first answer was lost, or it only wants to sync again.
    fn tell_generation(&mut self, token: Token, id: &Arc<str>, turn: &mut Turn<'_>) {
        let mut joined = self.joined(id);
        if self.state == State::Stable {
            joined.members.clear();
        }
        turn.reply(token, Reply::Join(Ok(joined)));
    }

    /// A new member waits for the others.
    fn add(
        &mut self,
        token: Token,
        request: &JoinGroup,
        id: Arc<str>,
        reason: &'static str,
        turn: &mut Turn<'_>,
    ) {
        if let Some(mut deadline) = self.pending.remove(&id) {
            turn.timers.cancel(&self.id, Alarm::Pending(id.clone()), &mut deadline);
        }
        if self.members.is_empty() {
            self.protocol_type = Some(request.protocol_type.clone());
        }
        if let Some(initial) = &mut self.initial {
            initial.grew = true;
        }
        let mut member = Member::from_request(request);
        member.join = Some(token);
        self.insert_member(id.clone(), member);
        // It cannot send heartbeats: it may not know its id, and its connection waits for this answer.
        self.expect_within(&id, turn.settings.new_member_join_timeout, turn);
        self.rebalance_or_complete(reason, turn);
    }

    /// A member waits for the others, perhaps with new protocols.
    fn rejoin(&mut self, token: Token, request: &JoinGroup, reason: &'static str, turn: &mut Turn<'_>) {
        self.update_member(&request.member, request);
        self.park_join(&request.member, token, turn);
        self.rebalance_or_complete(reason, turn);
    }

    /// Parks a member's join. One that it had parked before is answered: its client has given up on it.
    fn park_join(&mut self, id: &Arc<str>, token: Token, turn: &mut Turn<'_>) {
        let Some(member) = self.members.get_mut(id) else { return };
        match member.join.replace(token) {
            Some(old) => turn.reply_now(old, refused(GroupError::RebalanceInProgress, id.clone())),
            None => self.joined += 1,
        }
    }

    /// A static member is back under its instance id: it takes the place of its old self, which is fenced from
    /// now on. What it replaces in the log is stored before it is answered, so no failover can revive the old.
    fn take_over(
        &mut self,
        token: Token,
        request: &JoinGroup,
        old: &Arc<str>,
        new: Arc<str>,
        turn: &mut Turn<'_>,
    ) {
        let led_by = self.leader.clone();
        let owed_sync = self.unsynced.contains(old);
        let Some(mut member) = self.take_member(old, turn) else { return };
        self.refuse_parked(&mut member, GroupError::FencedInstance, turn);
        let leads = led_by.as_ref() == Some(old);
        member.new = false;
        self.insert_member(new.clone(), member);
        if leads {
            self.leader = Some(new.clone());
        }
        if owed_sync && self.sync_at.is_some() {
            self.unsynced.insert(new.clone());
        }
        self.update_member(&new, request);
        self.expect_heartbeat(&new, turn);
        match self.state {
            State::Stable if self.choose_protocol() == self.protocol => {
                // Nothing changes for the others.
                self.learn_subscription();
                self.store(turn);
                let mut joined = self.joined(&new);
                if request.skips_assignment {
                    joined.skip_assignment = leads;
                } else {
                    // An old client that hears it leads would assign, and an assignment made of it alone
                    // would not be taken: let it believe that its former self leads.
                    joined.leader = led_by.unwrap_or_else(|| "".into());
                    joined.members.clear();
                }
                turn.reply(token, Reply::Join(Ok(joined)));
            }
            State::Stable => {
                self.park_join(&new, token, turn);
                self.store_takeover(old, &new, turn);
                self.rebalance_or_complete("a static member came back with other protocols", turn);
            }
            State::CompletingRebalance => {
                // The leader may be assigning to the old id right now.
                self.park_join(&new, token, turn);
                self.store_takeover(old, &new, turn);
                self.prepare_rebalance("a static member came back", turn);
            }
            State::PreparingRebalance => {
                self.park_join(&new, token, turn);
                self.store_takeover(old, &new, turn);
                self.maybe_complete_join(turn);
            }
            State::Empty | State::Dead => unreachable!("a group with a static member is not empty"),
        }
    }

    /// Puts the new id in the place of the old one in the generation that the log has, if it is there.
    fn store_takeover(&mut self, old: &Arc<str>, new: &Arc<str>, turn: &mut Turn<'_>) {
        let Some(mut stored) = self.durable.metadata().cloned() else { return };
        let Some(record) = stored.members.iter_mut().find(|member| member.member == *old) else { return };
        if let Some(member) = self.members.get(new) {
            record.client_id = member.client_id.clone();
            record.client_host = member.client_host.clone();
            record.rebalance_timeout_ms = member.rebalance_timeout_ms;
            record.session_timeout_ms = member.session_timeout_ms;
        }
        record.member = new.clone();
        if stored.leader.as_ref() == Some(old) {
            stored.leader = Some(new.clone());
        }
        self.write(Record::Group { group: self.id.clone(), value: Some(stored) }, turn);
    }

    /// Answers what a member that is taken from the group has parked.
    pub(crate) fn refuse_parked(&self, member: &mut Member, error: GroupError, turn: &mut Turn<'_>) {
        if let Some(token) = member.join.take() {
            turn.reply_now(token, refused(error, "".into()));
        }
        if let Some(token) = member.sync.take() {
            turn.reply_now(token, Reply::Sync(Err(error)));
        }
    }

    /// The client of a parked request is gone. A member that knows its id may come back for the answer; one
    /// that does not never can, and would hold up every rebalance until its timeout.
    pub(crate) fn client_gone(&mut self, token: Token, turn: &mut Turn<'_>) {
        let lost = self
            .members
            .iter()
            .find(|(_, member)| member.join == Some(token) && member.new && member.anonymous)
            .map(|(id, _)| id.clone());
        if let Some(id) = lost {
            self.take_member(&id, turn);
            self.after_removal("a joining client disconnected", turn);
        }
    }
}

/// `<client id or instance id>-<uuid>`, as Kafka forms it.
fn new_member_id(request: &JoinGroup) -> Arc<str> {
    let stem = request.instance.as_ref().unwrap_or(&request.client_id);
    let mut end = stem.len().min(CLIENT_ID_IN_MEMBER_ID);
    while !stem.is_char_boundary(end) {
        end -= 1;
    }
    format!("{}-{}", &stem[..end], request.fresh).into()
}
