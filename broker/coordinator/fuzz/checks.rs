//! What must hold whatever stands in `__consumer_offsets`, and whatever members say about themselves. Called by
//! `../tests/fuzz.rs` over a corpus and by the cargo-fuzz targets.

use std::collections::BTreeSet;
use std::sync::Arc;
use std::time::Duration;

use bytes::Bytes;
use felix_coordinator::request::{
    CommitOffsets, CommitPartition, DeleteOffsets, FetchOffsets, Heartbeat, JoinGroup, LeaveGroup, Leaving,
    ListGroups, Protocol, SyncGroup,
};
use felix_coordinator::{Event, Now, Outcome, RawRecord, Reply, Request, Settings, Shard, Token, invariants};
use felix_protocol::ids::Uuid;
use felix_protocol::time::{MonoTime, WallTime};

const WALL: i64 = 1_700_000_000_000;

fn settings() -> Settings {
    Settings { initial_rebalance_delay: Duration::ZERO, ..Settings::default() }
}

/// A shard with what it said so far.
struct World {
    shard: Shard,
    now_ms: u64,
    written: Vec<RawRecord>,
    token: u64,
}

impl World {
    fn new(records: &[RawRecord]) -> World {
        let mut shard = Shard::new(settings());
        for record in records {
            // The host skips what makes no sense, and says so.
            let _ = shard.replay(&record.key, record.value.as_deref());
        }
        let mut world = World { shard, now_ms: 1_000, written: Vec::new(), token: 0 };
        let now = world.now();
        world.shard.start(now);
        world.check();
        world
    }

    fn now(&self) -> Now {
        let wall = WALL + i64::try_from(self.now_ms).expect("a short time");
        Now { mono: MonoTime(self.now_ms * 1_000_000), wall: WallTime(wall) }
    }

    fn check(&self) {
        if let Err(broken) = invariants::check(&self.shard) {
            panic!("{broken}");
        }
    }

    fn step(&mut self, event: Event) -> Outcome {
        let now = self.now();
        let outcome = self.shard.step(event, now);
        self.written.extend(outcome.records.iter().cloned());
        self.check();
        outcome
    }

    fn ask(&mut self, request: Request) -> Option<Reply> {
        self.token += 1;
        let token = Token(self.token);
        let outcome = self.step(Event::Request(token, request));
        outcome.replies.into_iter().find(|answer| answer.token == token).map(|answer| answer.reply)
    }

    /// Lets time pass, alarm by alarm; no more than so many of them.
    fn pass(&mut self, millis: u64) {
        let until = self.now_ms + millis;
        for _ in 0..200 {
            let Some(due) = self.shard.next_deadline().map(|at| at.0.div_ceil(1_000_000)) else { break };
            if due > until {
                break;
            }
            self.now_ms = self.now_ms.max(due);
            self.step(Event::Tick);
        }
        self.now_ms = until;
    }

    /// The groups, and what is committed for each.
    fn visible(&mut self) -> Vec<(Arc<str>, Reply)> {
        let Some(Reply::List(groups)) = self.ask(Request::List(ListGroups::default())) else {
            panic!("a list is answered at once");
        };
        let mut seen = Vec::new();
        for group in groups {
            let fetch = FetchOffsets { group: group.group.clone(), topics: None, require_stable: false };
            let reply = self.ask(Request::Fetch(fetch)).expect("a fetch is answered at once");
            seen.push((group.group, reply));
        }
        seen
    }
}

/// Records: each a key with a length of 16 bits, and a value with one, of which -1 is a tombstone.
pub fn records(input: &[u8]) -> Vec<RawRecord> {
    let mut records = Vec::new();
    let mut rest = input;
    while let Some((length, behind)) = rest.split_first_chunk::<2>() {
        let (key, behind) = cut(behind, usize::from(u16::from_be_bytes(*length)));
        let Some((length, behind)) = behind.split_first_chunk::<2>() else { break };
        let length = u16::from_be_bytes(*length);
        let (value, behind) =
            if length == u16::MAX { (None, behind) } else { some(cut(behind, usize::from(length))) };
        rest = behind;
        records
            .push(RawRecord { key: Bytes::copy_from_slice(key), value: value.map(Bytes::copy_from_slice) });
    }
    records
}

fn cut(bytes: &[u8], at: usize) -> (&[u8], &[u8]) {
    bytes.split_at(at.min(bytes.len()))
}

fn some<'a>((value, behind): (&'a [u8], &'a [u8])) -> (Option<&'a [u8]>, &'a [u8]) {
    (Some(value), behind)
}

/// [`records`], the other way.
pub fn written(records: &[RawRecord]) -> Vec<u8> {
    let mut input = Vec::new();
    let length = |length: usize| u16::try_from(length).expect("inputs have small records").to_be_bytes();
    for RawRecord { key, value } in records {
        input.extend(length(key.len()));
        input.extend_from_slice(key);
        match value {
            None => input.extend(u16::MAX.to_be_bytes()),
            Some(value) => {
                input.extend(length(value.len()));
                input.extend_from_slice(value);
            }
        }
    }
    input
}

/// A log of groups: it is replayed, lived with, and what that writes leads to the same again.
pub fn offsets(input: &[u8]) {
    let mut log = records(input);
    let mut world = World::new(&log);
    let groups = world.visible();
    assert!(groups.len() <= log.len());
    for (group, _) in groups.iter().take(8) {
        operated(&mut world, group);
    }
    let topics: BTreeSet<Arc<str>> = world.shard.committed_topics();
    world.step(Event::TopicsGone(topics.into_iter().take(2).collect()));
    world.pass(3_600_000);
    log.append(&mut world.written);
    assert_eq!(World::new(&log).visible().len(), world.visible().len());
    assert_eq!(World::new(&log).visible(), world.visible(), "the log says what memory said");
    world.pass(30 * 24 * 3_600_000);
}

/// Everything that can be asked of a group that came from a log.
fn operated(world: &mut World, group: &Arc<str>) {
    let Some(Reply::Describe(described)) = world.ask(Request::Describe(group.clone())) else {
        panic!("a description is answered at once");
    };
    let members = described.map_or_else(Vec::new, |described| described.members);
    for member in members.iter().take(4) {
        let (member, instance) = (member.member.clone(), member.instance.clone());
        for generation in [0, i32::MAX, -1] {
            let (group, member, instance) = (group.clone(), member.clone(), instance.clone());
            world.ask(Request::Heartbeat(Heartbeat { group, member, instance, generation }));
        }
        joins(world, group, &member, instance.clone(), b"\0\0\0\0\0\0");
        let left = Leaving { member, instance };
        world.ask(Request::Leave(LeaveGroup { group: group.clone(), members: vec![left] }));
    }
    joins(world, group, &Arc::from(""), None, b"\0\0\0\0\0\x01\0\x01t");
    world.pass(400_000);
    commit(world, group, "t");
    let topics = vec![(Arc::from("t"), vec![0])];
    world.ask(Request::DeleteOffsets(DeleteOffsets { group: group.clone(), topics }));
    world.ask(Request::Delete(group.clone()));
}

fn commit(world: &mut World, group: &Arc<str>, topic: &str) {
    let partition = CommitPartition { partition: 0, offset: 5, leader_epoch: -1, metadata: Arc::from("m") };
    world.ask(Request::Commit(CommitOffsets {
        group: group.clone(),
        member: Arc::from(""),
        instance: None,
        generation: -1,
        retention_ms: None,
        knows_group_not_found: true,
        topics: vec![(Arc::from(topic), vec![partition])],
    }));
}

/// Joins, and syncs where the join is answered.
fn joins(
    world: &mut World,
    group: &Arc<str>,
    member: &Arc<str>,
    instance: Option<Arc<str>>,
    metadata: &[u8],
) -> bool {
    let protocol = Protocol { name: Arc::from("range"), metadata: Bytes::copy_from_slice(metadata) };
    let reply = world.ask(Request::Join(JoinGroup {
        group: group.clone(),
        member: member.clone(),
        instance: instance.clone(),
        client_id: Arc::from("client"),
        client_host: Arc::from("/127.0.0.1"),
        session_timeout_ms: 10_000,
        rebalance_timeout_ms: 60_000,
        protocol_type: Arc::from("consumer"),
        protocols: vec![protocol],
        member_id_required: false,
        skips_assignment: true,
        fresh: Uuid::from_u128(u128::from(world.token)),
    }));
    let Some(Reply::Join(Ok(joined))) = reply else { return false };
    let reply = world.ask(Request::Sync(SyncGroup {
        group: group.clone(),
        member: joined.member.clone(),
        instance,
        generation: joined.generation,
        protocol_type: None,
        protocol: None,
        assignments: vec![(joined.member, Bytes::copy_from_slice(metadata))],
    }));
    matches!(reply, Some(Reply::Sync(Ok(_))))
}

/// What a consumer says about its subscription: opaque, but for the topics whose offsets must not go.
pub fn metadata(input: &[u8]) {
    let mut world = World::new(&[]);
    let group: Arc<str> = Arc::from("g");
    commit(&mut world, &group, "t");
    assert!(joins(&mut world, &group, &Arc::from(""), None, input), "metadata is opaque");
    commit(&mut world, &group, "t");
    let topics = vec![(Arc::from("t"), vec![0])];
    world.ask(Request::DeleteOffsets(DeleteOffsets { group: group.clone(), topics }));
    let Some(Reply::Describe(Some(described))) = world.ask(Request::Describe(group.clone())) else {
        panic!("the group is there");
    };
    assert_eq!(described.members.len(), 1);
    assert_eq!(described.members[0].metadata, input, "byte for byte");
    assert_eq!(described.members[0].assignment, input, "byte for byte");
    // The same after a restart.
    let mut again = World::new(&world.written);
    let Some(Reply::Describe(Some(restored))) = again.ask(Request::Describe(group)) else {
        panic!("the group is there");
    };
    assert_eq!(restored.members, described.members);
    assert_eq!(again.visible(), world.visible());
    // The member is silent and goes; the offsets follow, unless they are not to.
    again.pass(30 * 24 * 3_600_000);
}
