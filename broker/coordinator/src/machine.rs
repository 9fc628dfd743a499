//! One partition of `__consumer_offsets` with the groups that belong to it.
//!
//! [`Shard::step`] takes an event and answers with records to append and replies to give. The machine changes
//! itself at once, and the host keeps a reply marked [`When::Durable`] until every record proposed so far is
//! durable: so nobody ever learns anything that a crash could take back. If an append fails, the host throws
//! the shard away and reads another from the log.
//!
//! Deliberately absent: clocks, randomness (both come with the event), I/O, wire types, transactions (later).

use std::collections::{BTreeMap, BTreeSet};
use std::ops::Bound;
use std::sync::Arc;

use felix_protocol::time::{MonoTime, WallTime};

use crate::error::GroupError;
use crate::group::Group;
use crate::group::records::{RawRecord, Record, RecordError};
use crate::group::state::State;
use crate::reply::{JoinRefused, Listed, Reply};
use crate::request::{JoinGroup, ListGroups, Request};
use crate::settings::{NAME_MAX, Settings};
use crate::timers::Timers;

/// Stands for the client that a reply belongs to. The host makes them up; each is answered once.
#[derive(Clone, Copy, Debug, PartialEq, Eq, PartialOrd, Ord, Hash)]
pub struct Token(pub u64);

/// Both clocks at the time of an event.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub struct Now {
    /// For deadlines.
    pub mono: MonoTime,
    /// For what is stored.
    pub wall: WallTime,
}

/// What happens to a shard.
#[derive(Clone, Debug)]
pub enum Event {
    /// A client asks.
    Request(Token, Request),
    /// The client of a request about this group is gone before it was answered.
    Gone(Arc<str>, Token),
    /// These topics do not exist (any more): offsets stored for them go.
    TopicsGone(Vec<Arc<str>>),
    /// Time has passed; see [`Shard::next_deadline`].
    Tick,
}

/// Until when the host keeps a reply.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum When {
    /// It may go out.
    Now,
    /// Until all records proposed up to and including this step are durable.
    Durable,
}

/// One reply.
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct Answer {
    /// To whom.
    pub token: Token,
    /// Not before.
    pub when: When,
    /// What.
    pub reply: Reply,
}

/// Something that an operator may want to read in the log.
#[derive(Clone, Debug, PartialEq, Eq)]
pub enum Notice {
    /// A rebalance begins.
    Rebalancing {
        /// The group.
        group: Arc<str>,
        /// The generation that ends.
        generation: i32,
        /// Why.
        reason: &'static str,
    },
    /// A generation is complete.
    Stable {
        /// The group.
        group: Arc<str>,
        /// The generation.
        generation: i32,
        /// How many members it has.
        members: usize,
    },
    /// The last member is gone.
    Empty {
        /// The group.
        group: Arc<str>,
        /// The generation.
        generation: i32,
    },
    /// A member was removed for its silence.
    Lost {
        /// The group.
        group: Arc<str>,
        /// The member.
        member: Arc<str>,
    },
    /// Offsets or the whole group went for their age.
    Expired {
        /// The group.
        group: Arc<str>,
        /// How many offsets.
        offsets: usize,
    },
}

/// What a step asks of the host.
#[derive(Clone, Debug, Default)]
pub struct Outcome {
    /// To append, in this order.
    pub records: Vec<RawRecord>,
    /// To answer.
    pub replies: Vec<Answer>,
    /// To log.
    pub notices: Vec<Notice>,
}

/// What a group needs while it handles an event.
pub(crate) struct Turn<'a> {
    pub(crate) settings: &'a Settings,
    pub(crate) timers: &'a mut Timers,
    pub(crate) now: Now,
    pub(crate) out: &'a mut Outcome,
}

impl Turn<'_> {
    /// A reply that rests on nothing that a crash could take back.
    pub(crate) fn reply_now(&mut self, token: Token, reply: Reply) {
        self.out.replies.push(Answer { token, when: When::Now, reply });
    }

    /// A reply that rests on records.
    pub(crate) fn reply(&mut self, token: Token, reply: Reply) {
        self.out.replies.push(Answer { token, when: When::Durable, reply });
    }
}

/// How many records one sweep for expired offsets writes before it makes a pause.
const SWEEP_RECORDS: usize = 10_000;

/// Debug builds check the invariants of a group of so many members after every step,
const CHECKED_ALWAYS: usize = 50;
/// and of a larger one after every so many steps.
const CHECKED_EVERY: u64 = 64;

/// The machine.
#[derive(Clone, Debug)]
pub struct Shard {
    settings: Settings,
    groups: BTreeMap<Arc<str>, Group>,
    timers: Timers,
    /// When to look for expired offsets next, and behind which group to go on.
    sweep_at: Option<MonoTime>,
    sweep_after: Option<Arc<str>>,
    /// Groups that the log does not know yet.
    unstored: usize,
    /// Steps taken, to check large groups only now and then in debug builds.
    steps: u64,
}

impl Shard {
    /// A shard to replay a log into. [`Shard::start`] makes it ready.
    pub fn new(settings: Settings) -> Self {
        Shard {
            settings,
            groups: BTreeMap::new(),
            timers: Timers::default(),
            sweep_at: None,
            sweep_after: None,
            unstored: 0,
            steps: 0,
        }
    }

    /// Applies a record read from the log. Call it for every record in the order of the log, before
    /// [`Shard::start`].
    pub fn replay(&mut self, key: &[u8], value: Option<&[u8]>) -> Result<Replayed, RecordError> {
        let record = Record::decode(key, value)?;
        let (group, removes) = match &record {
            Record::Unknown { version } => return Ok(Replayed::Skipped { version: *version }),
            Record::Offset { group, value, .. } => (group.clone(), value.is_none()),
            Record::Group { group, value } => (group.clone(), value.is_none()),
        };
        if removes && !self.groups.contains_key(&group) {
            return Ok(Replayed::Applied);
        }
        let entry = self.groups.entry(group.clone()).or_insert_with(|| Group::new(group.clone()));
        entry.replay(record);
        if entry.is_nothing() {
            self.groups.remove(&group);
        }
        Ok(Replayed::Applied)
    }

    /// The log has been read: members of stored groups are members again, each with a whole session
    /// timeout to show up.
    pub fn start(&mut self, now: Now) {
        let mut out = Outcome::default();
        let mut turn = Turn { settings: &self.settings, timers: &mut self.timers, now, out: &mut out };
        for group in self.groups.values_mut() {
            group.restore(&mut turn);
        }
        self.plan_sweep(now);
    }

    /// New settings count from the next event on; deadlines already set stay.
    pub fn configure(&mut self, settings: Settings) {
        self.settings = settings;
    }

    /// When [`Event::Tick`] is due; `None` while nothing waits.
    pub fn next_deadline(&self) -> Option<MonoTime> {
        [self.timers.next(), self.sweep_at].into_iter().flatten().min()
    }

    /// The topics that offsets are stored for, so that the host can tell which of them are gone.
    pub fn committed_topics(&self) -> BTreeSet<Arc<str>> {
        self.groups.values().flat_map(|group| group.durable().offsets().keys().cloned()).collect()
    }

    /// How many groups there are.
    pub fn group_count(&self) -> usize {
        self.groups.len()
    }

    /// Groups by state, for metrics.
    pub fn states(&self) -> BTreeMap<State, usize> {
        let mut states = BTreeMap::new();
        for group in self.groups.values() {
            *states.entry(group.state()).or_default() += 1;
        }
        states
    }

    /// Handles one event.
    pub fn step(&mut self, event: Event, now: Now) -> Outcome {
        let mut out = Outcome::default();
        match event {
            Event::Request(token, request) => self.request(token, request, now, &mut out),
            Event::Gone(group, token) => {
                self.with_group(&group, now, &mut out, |group, turn| group.client_gone(token, turn));
            }
            Event::TopicsGone(topics) => {
                for group in self.group_ids() {
                    self.with_group(&group, now, &mut out, |group, turn| group.forget_topics(&topics, turn));
                }
            }
            Event::Tick => self.tick(now, &mut out),
        }
        self.plan_sweep(now);
        out
    }

    fn request(&mut self, token: Token, request: Request, now: Now, out: &mut Outcome) {
        match request {
            Request::Join(request) => self.join(token, request, now, out),
            Request::Sync(request) => {
                let group = named(&request.group);
                let found = self.with_found(group, now, out, |group, turn| group.sync(token, &request, turn));
                if let Err(error) = found {
                    let error = absent_member(error);
                    out.replies.push(Answer { token, when: When::Now, reply: Reply::Sync(Err(error)) });
                }
            }
            Request::Heartbeat(request) => {
                let group = named(&request.group);
                let found = self.with_found(group, now, out, |group, turn| group.heartbeat(&request, turn));
                let result = found.map_err(absent_member).and_then(|result| result);
                out.replies.push(Answer { token, when: When::Now, reply: Reply::Heartbeat(result) });
            }
            Request::Leave(request) => {
                let group = named(&request.group);
                let found =
                    self.with_found(group, now, out, |group, turn| group.leave(&request.members, turn));
                let result = match found {
                    Err(GroupError::GroupNotFound) => Ok(crate::group::left_nothing(&request.members)),
                    found => found,
                };
                out.replies.push(Answer { token, when: When::Durable, reply: Reply::Leave(result) });
            }
            Request::Commit(request) => {
                let group = request.group.clone();
                let result = if group.len() > NAME_MAX {
                    Err(GroupError::InvalidGroupId)
                } else {
                    let exists = self.groups.contains_key(&group);
                    self.create(&group);
                    self.with_group(&group, now, out, |group, turn| group.commit(&request, exists, turn))
                        .unwrap_or(Err(GroupError::GroupNotFound))
                };
                out.replies.push(Answer { token, when: When::Durable, reply: Reply::Commit(result) });
            }
            Request::Fetch(request) => {
                let topics = crate::group::offsets::fetch(self.groups.get(&request.group), &request);
                out.replies.push(Answer { token, when: When::Durable, reply: Reply::Fetch(Ok(topics)) });
            }
            Request::DeleteOffsets(request) => {
                let group = named(&request.group);
                let found =
                    self.with_found(group, now, out, |group, turn| group.delete_offsets(&request, turn));
                let result = found.and_then(|result| result);
                out.replies.push(Answer { token, when: When::Durable, reply: Reply::DeleteOffsets(result) });
            }
            Request::Describe(group) => {
                let described = self.groups.get(&group).map(Group::describe);
                out.replies.push(Answer { token, when: When::Durable, reply: Reply::Describe(described) });
            }
            Request::List(filter) => {
                let listed = self.list(&filter);
                out.replies.push(Answer { token, when: When::Durable, reply: Reply::List(listed) });
            }
            Request::Delete(group) => {
                let found = self.with_found(Ok(&group), now, out, |group, turn| group.delete(turn));
                let result = found.and_then(|result| result);
                out.replies.push(Answer { token, when: When::Durable, reply: Reply::Delete(result) });
            }
        }
    }

    fn join(&mut self, token: Token, mut request: JoinGroup, now: Now, out: &mut Outcome) {
        // Protocols are told apart by name, and members are counted by it: naming one twice is naming it once.
        let mut seen = BTreeSet::new();
        request.protocols.retain(|protocol| seen.insert(protocol.name.clone()));
        let refused = self.refuse_join(&request);
        if let Some(error) = refused {
            let reply = Reply::Join(Err(JoinRefused { error, member: request.member.clone() }));
            out.replies.push(Answer { token, when: When::Now, reply });
            return;
        }
        let group = request.group.clone();
        self.create(&group);
        self.with_group(&group, now, out, |group, turn| group.join(token, &request, turn));
    }

    /// What is wrong with a join whatever the group's state is.
    fn refuse_join(&self, request: &JoinGroup) -> Option<GroupError> {
        if let Err(error) = named(&request.group) {
            return Some(error);
        }
        let bounds = self.settings.min_session_timeout_ms..=self.settings.max_session_timeout_ms;
        if !bounds.contains(&request.session_timeout_ms) {
            return Some(GroupError::InvalidSessionTimeout);
        }
        let names = [
            request.instance.as_ref(),
            Some(&request.client_id),
            Some(&request.client_host),
            Some(&request.protocol_type),
        ];
        let names = names.into_iter().flatten().chain(request.protocols.iter().map(|known| &known.name));
        if names.into_iter().any(|name| name.len() > NAME_MAX) {
            return Some(GroupError::InvalidRequest);
        }
        if !self.groups.contains_key(&request.group) {
            if !request.member.is_empty() {
                return Some(GroupError::UnknownMember);
            }
            if self.unstored >= self.settings.unstored_groups_max {
                return Some(GroupError::TooManyGroups);
            }
        }
        None
    }

    fn list(&self, filter: &ListGroups) -> Vec<Listed> {
        let passes = |wanted: &[String], name: &str| {
            wanted.is_empty() || wanted.iter().any(|wanted| wanted.eq_ignore_ascii_case(name))
        };
        if !passes(&filter.types, GROUP_TYPE) {
            return Vec::new();
        }
        self.groups
            .values()
            .filter(|group| passes(&filter.states, group.state().name()))
            .map(Group::listed)
            .collect()
    }

    fn tick(&mut self, now: Now, out: &mut Outcome) {
        while let Some((group, alarm)) = self.timers.pop_due(now.mono) {
            self.with_group(&group, now, out, |group, turn| group.ring(alarm, turn));
        }
        if self.sweep_at.is_some_and(|at| at <= now.mono) {
            self.sweep(now, out);
        }
    }

    /// Looks for expired offsets, group by group, until it has written much.
    fn sweep(&mut self, now: Now, out: &mut Outcome) {
        let from = self.sweep_after.take().map_or(Bound::Unbounded, Bound::Excluded);
        let groups: Vec<Arc<str>> =
            self.groups.range((from, Bound::Unbounded)).map(|(id, _)| id.clone()).collect();
        for id in groups {
            self.with_group(&id, now, out, |group, turn| group.expire(turn));
            if out.records.len() >= SWEEP_RECORDS {
                self.sweep_after = Some(id);
                self.sweep_at = Some(now.mono.after(std::time::Duration::from_secs(1)));
                return;
            }
        }
        self.sweep_at = None;
    }

    /// A sweep is planned while there is something that may expire.
    fn plan_sweep(&mut self, now: Now) {
        if self.groups.is_empty() {
            self.sweep_at = None;
            self.sweep_after = None;
        } else if self.sweep_at.is_none() {
            self.sweep_at = Some(now.mono.after(self.settings.retention_check_interval));
        }
    }

    fn group_ids(&self) -> Vec<Arc<str>> {
        self.groups.keys().cloned().collect()
    }

    fn create(&mut self, group: &Arc<str>) {
        if !self.groups.contains_key(group) {
            self.groups.insert(group.clone(), Group::new(group.clone()));
            self.unstored += 1;
        }
    }

    fn with_found<T>(
        &mut self,
        group: Result<&Arc<str>, GroupError>,
        now: Now,
        out: &mut Outcome,
        act: impl FnOnce(&mut Group, &mut Turn<'_>) -> T,
    ) -> Result<T, GroupError> {
        self.with_group(group?, now, out, act).ok_or(GroupError::GroupNotFound)
    }

    /// Lets a group act, if it exists, and removes it if nothing is left of it then.
    fn with_group<T>(
        &mut self,
        id: &Arc<str>,
        now: Now,
        out: &mut Outcome,
        act: impl FnOnce(&mut Group, &mut Turn<'_>) -> T,
    ) -> Option<T> {
        let group = self.groups.get_mut(id)?;
        let was_unstored = group.durable().is_empty();
        let mut turn = Turn { settings: &self.settings, timers: &mut self.timers, now, out };
        let result = act(group, &mut turn);
        let is_unstored = group.durable().is_empty();
        let is_nothing = group.is_nothing();
        // Checking walks all members: in a large group that would be felt.
        self.steps += 1;
        let due = group.member_count() <= CHECKED_ALWAYS || self.steps.is_multiple_of(CHECKED_EVERY);
        if cfg!(debug_assertions) && due {
            let checked = crate::invariants::check_group(group, turn.timers);
            assert!(checked.is_ok(), "{checked:?}");
        }
        if is_nothing {
            self.groups.remove(id);
        }
        match (was_unstored, is_unstored && !is_nothing) {
            (true, false) => self.unstored -= 1,
            (false, true) => self.unstored += 1,
            (true, true) | (false, false) => {}
        }
        Some(result)
    }

    pub(crate) fn parts(&self) -> (&BTreeMap<Arc<str>, Group>, &Timers, usize) {
        (&self.groups, &self.timers, self.unstored)
    }
}

/// What a record read from the log was.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum Replayed {
    /// Known, and applied.
    Applied,
    /// Of a kind that is not known here.
    Skipped {
        /// Its version.
        version: i16,
    },
}

/// The type that all groups here have, in the list's filter.
pub const GROUP_TYPE: &str = "classic";

/// Membership needs a group with a name. (Offsets may be stored for the group without one, as old clients do.)
fn named(group: &Arc<str>) -> Result<&Arc<str>, GroupError> {
    if group.is_empty() || group.len() > NAME_MAX { Err(GroupError::InvalidGroupId) } else { Ok(group) }
}

/// A member of a group that does not exist is an unknown member.
fn absent_member(error: GroupError) -> GroupError {
    if error == GroupError::GroupNotFound { GroupError::UnknownMember } else { error }
}
