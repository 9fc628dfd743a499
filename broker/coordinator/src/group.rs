//! One group: what the log says of it ([`durable`]), and what its members are doing right now.
//!
//! The durable part changes by records only. The live part, everything else here, is rebuilt after a restart
//! from the durable one: joins that were under way start again, members of the stored generation carry on.

mod check;
pub(crate) mod classic;
mod delete;
mod describe;
pub(crate) mod durable;
mod expiry;
pub(crate) mod member;
pub(crate) mod offsets;
pub(crate) mod records;
pub mod state;
pub(crate) mod subscription;

use std::collections::{BTreeMap, BTreeSet};
use std::sync::Arc;
use std::time::Duration;

use felix_protocol::time::MonoTime;

use crate::error::GroupError;
use crate::machine::{Notice, Turn};
use crate::reply::{Joined, JoinedMember};
use crate::request::{JoinGroup, Protocol};
use crate::timers::Alarm;

pub(crate) use self::classic::leave::left_nothing;
use self::durable::Durable;
use self::member::Member;
use self::records::{Record, StoredGroup};
use self::state::State;

/// A group. `crate::invariants` says what always holds between these fields.
#[derive(Clone, Debug)]
pub(crate) struct Group {
    id: Arc<str>,
    durable: Durable,
    state: State,
    /// Since when it is in this state, milliseconds since 1970; `None` if an old record did not say.
    since: Option<i64>,
    generation: i32,
    protocol_type: Option<Arc<str>>,
    protocol: Option<Arc<str>>,
    leader: Option<Arc<str>>,
    members: BTreeMap<Arc<str>, Member>,
    /// Static members by instance id.
    instances: BTreeMap<Arc<str>, Arc<str>>,
    /// Ids given to clients that have not joined with them yet, and until when they are good.
    pending: BTreeMap<Arc<str>, Option<MonoTime>>,
    /// Members of this generation that have not asked for their assignment yet.
    unsynced: BTreeSet<Arc<str>>,
    /// How many members support each protocol.
    supported: BTreeMap<Arc<str>, usize>,
    /// How many members have a parked join.
    joined: usize,
    /// What the members weigh against the limit.
    bytes: usize,
    /// The topics that the members of this generation subscribe to; `None` if that is not known.
    subscribed: Option<BTreeSet<Arc<str>>>,
    /// Set during a rebalance that began with an empty group.
    initial: Option<Initial>,
    /// The slots of the group's own alarms.
    join_at: Option<MonoTime>,
    sync_at: Option<MonoTime>,
}

/// The first rebalance of an empty group waits a while for more members, again for each that comes.
#[derive(Clone, Copy, Debug)]
struct Initial {
    /// How long the wait under way is.
    delay: Duration,
    /// How much longer the waits may become.
    remaining: Duration,
    /// Whether a member came during the wait under way.
    grew: bool,
}

impl Group {
    /// A group that nothing is known of.
    pub(crate) fn new(id: Arc<str>) -> Self {
        Group {
            id,
            durable: Durable::default(),
            state: State::Empty,
            since: None,
            generation: 0,
            protocol_type: None,
            protocol: None,
            leader: None,
            members: BTreeMap::new(),
            instances: BTreeMap::new(),
            pending: BTreeMap::new(),
            unsynced: BTreeSet::new(),
            supported: BTreeMap::new(),
            joined: 0,
            bytes: 0,
            subscribed: None,
            initial: None,
            join_at: None,
            sync_at: None,
        }
    }

    pub(crate) fn durable(&self) -> &Durable {
        &self.durable
    }

    pub(crate) fn state(&self) -> State {
        self.state
    }

    pub(crate) fn member_count(&self) -> usize {
        self.members.len()
    }

    /// Applies a record from the log.
    pub(crate) fn replay(&mut self, record: Record) {
        self.durable.apply(record);
    }

    /// Nothing of it is in the log, and nobody is in it or about to be: it need not be remembered.
    pub(crate) fn is_nothing(&self) -> bool {
        self.durable.is_empty()
            && self.members.is_empty()
            && self.pending.is_empty()
            && self.state == State::Empty
    }

    /// Proposes a record, and changes the durable part as its replay will.
    fn write(&mut self, record: Record, turn: &mut Turn<'_>) {
        turn.out.records.push(record.encode());
        self.durable.apply(record);
    }

    /// Makes the stored generation the living one.
    pub(crate) fn restore(&mut self, turn: &mut Turn<'_>) {
        let Some(stored) = self.durable.metadata().cloned() else { return };
        self.generation = stored.generation;
        self.protocol_type = Some(stored.protocol_type.clone()).filter(|name| !name.is_empty());
        self.protocol = stored.protocol.clone();
        self.since = Some(stored.since).filter(|since| *since >= 0);
        for record in &stored.members {
            let twice =
                record.instance.as_ref().is_some_and(|instance| self.instances.contains_key(instance));
            if twice || self.members.contains_key(&record.member) {
                continue;
            }
            self.insert_member(record.member.clone(), Member::from_record(record, stored.protocol.as_ref()));
        }
        if self.members.is_empty() {
            // A record that another program wrote may name one all the same.
            self.protocol = None;
        } else {
            // Nobody has asked for a move: the group was Stable when this was written.
            self.state = State::Stable;
            if let Some(leader) = stored.leader.filter(|leader| self.members.contains_key(leader)) {
                self.leader = Some(leader);
            }
        }
        let ids: Vec<Arc<str>> = self.members.keys().cloned().collect();
        for id in ids {
            self.expect_heartbeat(&id, turn);
        }
        self.learn_subscription();
    }

    fn become_state(&mut self, next: State, turn: &Turn<'_>) {
        assert!(
            self.state.may_become(next),
            "group {} cannot become {} from {}",
            self.id,
            next.name(),
            self.state.name()
        );
        self.state = next;
        self.since = Some(turn.now.wall.0);
    }

    // Members.

    /// Adds a member that is not in the group. The first one leads it.
    fn insert_member(&mut self, id: Arc<str>, member: Member) {
        for protocol in member.protocols() {
            *self.supported.entry(protocol.name.clone()).or_default() += 1;
        }
        self.joined += usize::from(member.join.is_some());
        self.bytes += member.bytes();
        if let Some(instance) = &member.instance {
            self.instances.insert(instance.clone(), id.clone());
        }
        self.leader.get_or_insert_with(|| id.clone());
        self.members.insert(id, member);
    }

    /// Takes a member, or an id given out, from the group with its alarm. Whoever leads the group is always in
    /// it. Parked requests of the member come back with it: they must be answered.
    fn take_member(&mut self, id: &Arc<str>, turn: &mut Turn<'_>) -> Option<Member> {
        if let Some(mut deadline) = self.pending.remove(id) {
            turn.timers.cancel(&self.id, Alarm::Pending(id.clone()), &mut deadline);
        }
        let mut member = self.members.remove(id)?;
        turn.timers.cancel(&self.id, Alarm::Session(id.clone()), &mut member.deadline);
        self.uncount_protocols(&member);
        self.joined -= usize::from(member.join.is_some());
        self.bytes -= member.bytes();
        if let Some(instance) = &member.instance {
            self.instances.remove(instance);
        }
        if self.leader.as_ref() == Some(id) {
            self.leader = self.members.keys().next().cloned();
        }
        self.mark_synced(id, turn);
        Some(member)
    }

    fn uncount_protocols(&mut self, member: &Member) {
        for protocol in member.protocols() {
            if let Some(count) = self.supported.get_mut(&protocol.name) {
                *count -= 1;
                if *count == 0 {
                    self.supported.remove(&protocol.name);
                }
            }
        }
    }

    /// Gives a member the protocols and timeouts of a join.
    fn update_member(&mut self, id: &Arc<str>, request: &JoinGroup) {
        let Some(mut member) = self.members.remove(id) else { return };
        self.uncount_protocols(&member);
        self.bytes -= member.bytes();
        member.update(request);
        self.bytes += member.bytes();
        for protocol in member.protocols() {
            *self.supported.entry(protocol.name.clone()).or_default() += 1;
        }
        self.members.insert(id.clone(), member);
    }

    /// Gives a member its part of the assignment.
    fn set_assignment(&mut self, id: &Arc<str>, assignment: bytes::Bytes) {
        if let Some(member) = self.members.get_mut(id) {
            self.bytes -= member.bytes();
            member.assignment = assignment;
            self.bytes += member.bytes();
        }
    }

    /// The member has asked for its assignment, or is gone.
    fn mark_synced(&mut self, id: &Arc<str>, turn: &mut Turn<'_>) {
        if self.unsynced.remove(id) && self.unsynced.is_empty() {
            turn.timers.cancel(&self.id, Alarm::Sync, &mut self.sync_at);
        }
    }

    /// Nobody owes a sync any more.
    fn forget_unsynced(&mut self, turn: &mut Turn<'_>) {
        self.unsynced.clear();
        turn.timers.cancel(&self.id, Alarm::Sync, &mut self.sync_at);
    }

    /// The member has shown up: its session begins anew.
    fn expect_heartbeat(&mut self, id: &Arc<str>, turn: &mut Turn<'_>) {
        let Some(member) = self.members.get(id) else { return };
        let timeout = millis(member.session_timeout_ms);
        self.expect_within(id, timeout, turn);
    }

    fn expect_within(&mut self, id: &Arc<str>, timeout: Duration, turn: &mut Turn<'_>) {
        if let Some(member) = self.members.get_mut(id) {
            let at = turn.now.mono.after(timeout);
            turn.timers.set(&self.id, Alarm::Session(id.clone()), &mut member.deadline, at);
        }
    }

    /// Whether a request may speak for this member.
    fn validate(&self, member: &str, instance: Option<&Arc<str>>) -> Result<(), GroupError> {
        if let Some(instance) = instance {
            match self.instances.get(instance) {
                None => return Err(GroupError::UnknownMember),
                Some(owner) if **owner != *member => return Err(GroupError::FencedInstance),
                Some(_) => {}
            }
        }
        if self.members.contains_key(member) { Ok(()) } else { Err(GroupError::UnknownMember) }
    }

    fn is_leader(&self, id: &str) -> bool {
        self.leader.as_deref() == Some(id)
    }

    /// All members are in, and every client with an id given to it has come back.
    fn all_joined(&self) -> bool {
        self.members.len() == self.joined && self.pending.is_empty()
    }

    /// The longest time that a member may take to join again.
    fn rebalance_timeout(&self) -> Duration {
        millis(self.members.values().map(|member| member.rebalance_timeout_ms).max().unwrap_or(0))
    }

    // Protocols.

    /// Whether a client with these protocols could be a member.
    fn supports(&self, protocol_type: &str, protocols: &[Protocol]) -> bool {
        if self.members.is_empty() {
            return !protocol_type.is_empty() && !protocols.is_empty();
        }
        self.protocol_type.as_deref() == Some(protocol_type)
            && protocols
                .iter()
                .any(|protocol| self.supported.get(&protocol.name) == Some(&self.members.len()))
    }

    /// The protocol of the next generation: each member votes for the first in its list that all support.
    /// `None` if there is none, as when a member has changed its protocols.
    fn choose_protocol(&self) -> Option<Arc<str>> {
        let everyone = self.members.len();
        let mut votes: BTreeMap<&Arc<str>, usize> = BTreeMap::new();
        for member in self.members.values() {
            let vote = member
                .protocols()
                .iter()
                .find(|protocol| self.supported.get(&protocol.name) == Some(&everyone))?;
            *votes.entry(&vote.name).or_default() += 1;
        }
        votes.into_iter().max_by_key(|(_, count)| *count).map(|(name, _)| name.clone())
    }

    /// Notes what the members of this generation subscribe to.
    fn learn_subscription(&mut self) {
        self.subscribed = self.subscription();
    }

    fn subscription(&self) -> Option<BTreeSet<Arc<str>>> {
        if self.protocol_type.as_deref() != Some(subscription::CONSUMER) {
            return None;
        }
        if self.members.is_empty() {
            return Some(BTreeSet::new());
        }
        let protocol = self.protocol.as_deref()?;
        let mut all = BTreeSet::new();
        for member in self.members.values() {
            all.append(&mut subscription::topics(&member.metadata(protocol))?);
        }
        Some(all)
    }

    /// Whether the group consumes the topic. Where that cannot be known, consumers are taken at their worst.
    fn is_subscribed(&self, topic: &str) -> bool {
        match &self.subscribed {
            Some(topics) => topics.contains(topic),
            None => self.protocol_type.as_deref() == Some(subscription::CONSUMER),
        }
    }

    // What others see.

    /// The generation as the log keeps it.
    fn to_record(&self) -> StoredGroup {
        StoredGroup {
            protocol_type: self.protocol_type.clone().unwrap_or_else(|| "".into()),
            generation: self.generation,
            protocol: self.protocol.clone(),
            leader: self.leader.clone(),
            since: self.since.unwrap_or(-1),
            members: self
                .members
                .iter()
                .map(|(id, member)| member.to_record(id, self.protocol.as_deref()))
                .collect(),
        }
    }

    fn store(&mut self, turn: &mut Turn<'_>) {
        let record = Record::Group { group: self.id.clone(), value: Some(self.to_record()) };
        self.write(record, turn);
    }

    /// The answer to a completed join of this member.
    fn joined(&self, id: &Arc<str>) -> Joined {
        let leader = self.leader.clone().unwrap_or_else(|| "".into());
        Joined {
            generation: self.generation,
            protocol_type: self.protocol_type.clone(),
            protocol: self.protocol.clone(),
            members: if self.is_leader(id) { self.joined_members() } else { Vec::new() },
            leader,
            member: id.clone(),
            skip_assignment: false,
        }
    }

    fn joined_members(&self) -> Vec<JoinedMember> {
        let protocol = self.protocol.as_deref().unwrap_or("");
        self.members
            .iter()
            .map(|(id, member)| JoinedMember {
                member: id.clone(),
                instance: member.instance.clone(),
                metadata: member.metadata(protocol),
            })
            .collect()
    }

    fn notice_rebalance(&self, reason: &'static str, turn: &mut Turn<'_>) {
        let notice = Notice::Rebalancing { group: self.id.clone(), generation: self.generation, reason };
        turn.out.notices.push(notice);
    }
}

/// A timeout from the wire; less than none is none.
fn millis(timeout_ms: i32) -> Duration {
    Duration::from_millis(u64::try_from(timeout_ms).unwrap_or(0))
}
