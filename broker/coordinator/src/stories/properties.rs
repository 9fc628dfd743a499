//! Random events: the invariants hold, the log says what memory says, and everybody is answered once.

use std::collections::{BTreeMap, BTreeSet};
use std::sync::Arc;
use std::time::Duration;

use bytes::Bytes;
use felix_protocol::ids::Uuid;
use felix_protocol::time::{MonoTime, WallTime};
use proptest::prelude::*;

use crate::error::GroupError;
use crate::group::records::RawRecord;
use crate::invariants;
use crate::machine::{Event, Now, Outcome, Shard, Token};
use crate::reply::Reply;
use crate::request::*;
use crate::settings::Settings;

/// What may happen. Numbers choose among what the world knows, so that most requests make sense.
#[derive(Clone, Debug)]
enum Act {
    Join { who: usize, known: bool, version: u8, protocols: u8, fixed: bool },
    Sync { who: usize, generation: i8 },
    Beat { who: usize, generation: i8 },
    Leave { who: usize },
    Commit { who: usize, topic: u8, simple: bool, retention: bool },
    DeleteOffsets { group: usize, topic: u8 },
    Delete { group: usize },
    Look { group: usize },
    Gone { which: usize },
    TopicGone { topic: u8 },
    Pass { millis: u32 },
    Restart,
}

fn act() -> impl Strategy<Value = Act> {
    let who = 0..8_usize;
    let off = prop_oneof![8 => Just(0_i8), 1 => -1..2_i8];
    prop_oneof![
        8 => (who.clone(), any::<bool>(), 0..10_u8, 0..4_u8, any::<bool>())
            .prop_map(|(who, known, version, protocols, fixed)| Act::Join { who, known, version, protocols, fixed }),
        6 => (who.clone(), off.clone()).prop_map(|(who, generation)| Act::Sync { who, generation }),
        4 => (who.clone(), off).prop_map(|(who, generation)| Act::Beat { who, generation }),
        2 => who.clone().prop_map(|who| Act::Leave { who }),
        3 => (who, 0..3_u8, any::<bool>(), any::<bool>())
            .prop_map(|(who, topic, simple, retention)| Act::Commit { who, topic, simple, retention }),
        1 => (0..2_usize, 0..3_u8).prop_map(|(group, topic)| Act::DeleteOffsets { group, topic }),
        1 => (0..2_usize).prop_map(|group| Act::Delete { group }),
        1 => (0..2_usize).prop_map(|group| Act::Look { group }),
        1 => (0..8_usize).prop_map(|which| Act::Gone { which }),
        1 => (0..3_u8).prop_map(|topic| Act::TopicGone { topic }),
        5 => (0..15_000_u32).prop_map(|millis| Act::Pass { millis }),
        1 => (3_600_000..900_000_000_u32).prop_map(|millis| Act::Pass { millis }),
        1 => Just(Act::Restart),
    ]
}

#[derive(Clone, Debug, Default)]
struct Known {
    member: Arc<str>,
    generation: i32,
}

struct World {
    settings: Settings,
    shard: Shard,
    now_ms: u64,
    next: u64,
    clients: Vec<Known>,
    /// Who waits for an answer, by token.
    waiting: BTreeMap<Token, usize>,
    given_up: BTreeSet<Token>,
    log: Vec<RawRecord>,
    /// The greatest group generation that was told, by group, since the last restart.
    told: BTreeMap<usize, i32>,
}

/// Clients 0 to 3 use one group, the others another.
fn group_of(who: usize) -> usize {
    who / 4
}

fn group(index: usize) -> Arc<str> {
    format!("group-{index}").into()
}

fn topic(index: u8) -> Arc<str> {
    format!("t{index}").into()
}

impl World {
    fn new(delay_ms: u64, max_members: usize) -> Self {
        let settings = Settings {
            initial_rebalance_delay: Duration::from_millis(delay_ms),
            max_members,
            ..Settings::default()
        };
        World {
            shard: Shard::new(settings.clone()),
            settings,
            now_ms: 1_000,
            next: 0,
            clients: vec![Known::default(); 8],
            waiting: BTreeMap::new(),
            given_up: BTreeSet::new(),
            log: Vec::new(),
            told: BTreeMap::new(),
        }
    }

    fn now(&self) -> Now {
        Now { mono: MonoTime(self.now_ms * 1_000_000), wall: WallTime(self.now_ms as i64) }
    }

    fn ask(&mut self, who: usize, request: Request) {
        self.next += 1;
        let token = Token(self.next);
        self.waiting.insert(token, who);
        let parks = matches!(&request, Request::Join(_) | Request::Sync(_));
        let outcome = self.shard.step(Event::Request(token, request), self.now());
        self.take(outcome);
        assert!(parks || !self.waiting.contains_key(&token), "only joins and syncs are parked");
    }

    fn take(&mut self, outcome: Outcome) {
        invariants::check(&self.shard).unwrap();
        self.log.extend(outcome.records);
        // A group that is forgotten may begin anew.
        let (groups, ..) = self.shard.parts();
        self.told.retain(|index, _| groups.contains_key(&group(*index)));
        for answer in outcome.replies {
            if self.given_up.remove(&answer.token) {
                continue;
            }
            let who = self.waiting.remove(&answer.token).expect("everybody is answered once");
            self.hear(who, answer.reply);
        }
    }

    fn hear(&mut self, who: usize, reply: Reply) {
        #[expect(clippy::wildcard_enum_match_arm, reason = "no other answer changes what a client knows")]
        match reply {
            Reply::Join(Ok(joined)) => {
                let told = self.told.entry(group_of(who)).or_insert(0);
                assert!(joined.generation >= *told, "group generations do not fall");
                *told = joined.generation;
                assert!(joined.protocol.is_some(), "a generation has a protocol");
                assert!(
                    joined.members.is_empty() || joined.leader == joined.member,
                    "only the leader hears of the others"
                );
                self.clients[who] = Known { member: joined.member, generation: joined.generation };
            }
            #[expect(clippy::wildcard_enum_match_arm, reason = "other errors are tried again")]
            Reply::Join(Err(refused)) => match refused.error {
                GroupError::MemberIdRequired => self.clients[who].member = refused.member,
                GroupError::UnknownMember | GroupError::FencedInstance => {
                    self.clients[who] = Known::default()
                }
                _ => {}
            },
            _ => {}
        }
    }

    fn join(&self, who: usize, known: bool, version: u8, protocols: u8, fixed: bool) -> JoinGroup {
        let all = [&["range"][..], &["sticky", "range"], &["range", "sticky"], &["other"]];
        let topics: &[u8] = if fixed { b"\0\0\0\0\0\x01\0\x02t0" } else { b"\0\0\0\0\0\x01\0\x02t1" };
        JoinGroup {
            group: group(group_of(who)),
            member: if known { self.clients[who].member.clone() } else { "".into() },
            instance: (who.is_multiple_of(4)).then(|| format!("static-{who}").into()),
            client_id: format!("c{who}").into(),
            client_host: "/h".into(),
            session_timeout_ms: 6_000 + 1_000 * who as i32,
            rebalance_timeout_ms: 5_000 * who as i32,
            protocol_type: "consumer".into(),
            protocols: all[usize::from(protocols)]
                .iter()
                .map(|name| Protocol { name: (*name).into(), metadata: Bytes::from_static(topics) })
                .collect(),
            member_id_required: version >= 4,
            skips_assignment: version >= 9,
            fresh: Uuid::from_u128(u128::from(self.next + 1)),
        }
    }

    fn act(&mut self, act: Act) {
        match act {
            Act::Join { who, known, version, protocols, fixed } => {
                let request = self.join(who, known, version, protocols, fixed);
                self.ask(who, Request::Join(request));
            }
            Act::Sync { who, generation } => {
                let group_clients = group_of(who) * 4..group_of(who) * 4 + 4;
                let assignments = group_clients.map(|other| {
                    (self.clients[other].member.clone(), Bytes::from(format!("part of {other}")))
                });
                let request = SyncGroup {
                    group: group(group_of(who)),
                    member: self.clients[who].member.clone(),
                    instance: (who.is_multiple_of(4)).then(|| format!("static-{who}").into()),
                    generation: self.clients[who].generation + i32::from(generation),
                    protocol_type: None,
                    protocol: None,
                    assignments: assignments.collect(),
                };
                self.ask(who, Request::Sync(request));
            }
            Act::Beat { who, generation } => {
                let request = Heartbeat {
                    group: group(group_of(who)),
                    member: self.clients[who].member.clone(),
                    instance: None,
                    generation: self.clients[who].generation + i32::from(generation),
                };
                self.ask(who, Request::Heartbeat(request));
            }
            Act::Leave { who } => {
                let members = vec![Leaving { member: self.clients[who].member.clone(), instance: None }];
                self.ask(who, Request::Leave(LeaveGroup { group: group(group_of(who)), members }));
            }
            Act::Commit { who, topic: index, simple, retention } => {
                let commit = CommitPartition {
                    partition: who as i32,
                    offset: self.now_ms as i64,
                    leader_epoch: 3,
                    metadata: "m".into(),
                };
                let request = CommitOffsets {
                    group: group(group_of(who)),
                    member: if simple { "".into() } else { self.clients[who].member.clone() },
                    instance: None,
                    generation: if simple { -1 } else { self.clients[who].generation },
                    retention_ms: retention.then_some(60_000),
                    knows_group_not_found: true,
                    topics: vec![(topic(index), vec![commit])],
                };
                self.ask(who, Request::Commit(request));
            }
            Act::DeleteOffsets { group: index, topic: of } => {
                let topics = vec![(topic(of), (0..8).collect())];
                self.ask(0, Request::DeleteOffsets(DeleteOffsets { group: group(index), topics }));
            }
            Act::Delete { group: index } => {
                self.ask(0, Request::Delete(group(index)));
            }
            Act::Look { group: index } => {
                self.ask(0, Request::Describe(group(index)));
                self.ask(0, Request::List(ListGroups::default()));
                let request = FetchOffsets { group: group(index), topics: None, require_stable: true };
                self.ask(0, Request::Fetch(request));
            }
            Act::Gone { which } => {
                if let Some((token, who)) = self.waiting.iter().nth(which).map(|(token, who)| (*token, *who))
                {
                    self.waiting.remove(&token);
                    self.given_up.insert(token);
                    let outcome = self.shard.step(Event::Gone(group(group_of(who)), token), self.now());
                    self.take(outcome);
                }
            }
            Act::TopicGone { topic: index } => {
                let outcome = self.shard.step(Event::TopicsGone(vec![topic(index)]), self.now());
                self.take(outcome);
                assert!(!self.shard.committed_topics().contains(&topic(index)));
            }
            Act::Pass { millis } => self.pass(u64::from(millis)),
            Act::Restart => self.restart(),
        }
    }

    fn pass(&mut self, millis: u64) {
        let until = self.now_ms + millis;
        while let Some(due) = self.shard.next_deadline().map(|at| at.0.div_ceil(1_000_000)) {
            if due > until {
                break;
            }
            self.now_ms = self.now_ms.max(due);
            let outcome = self.shard.step(Event::Tick, self.now());
            self.take(outcome);
            let next = self.shard.next_deadline();
            assert!(next.is_none_or(|next| next > self.now().mono), "a tick leaves nothing that is due");
        }
        self.now_ms = until;
    }

    fn replayed(&self) -> Shard {
        let mut shard = Shard::new(self.settings.clone());
        for record in &self.log {
            shard.replay(&record.key, record.value.as_deref()).unwrap();
        }
        shard
    }

    fn restart(&mut self) {
        let mut shard = self.replayed();
        assert_eq!(
            invariants::durable(&shard),
            invariants::durable(&self.shard),
            "the log says what memory said"
        );
        shard.start(self.now());
        invariants::check(&shard).unwrap();
        self.shard = shard;
        self.waiting.clear();
        self.given_up.clear();
        self.told.clear();
    }
}

proptest! {
    #![proptest_config(ProptestConfig { failure_persistence: None, ..ProptestConfig::default() })]

    #[test]
    fn whatever_happens(
        delay in prop_oneof![Just(0_u64), Just(3_000)],
        max_members in prop_oneof![Just(3_usize), Just(100)],
        acts in prop::collection::vec(act(), 1..120)
    ) {
        let mut world = World::new(delay, max_members);
        for act in acts {
            world.act(act);
        }
        // In the end everybody is answered, and everybody is forgotten.
        world.pass(3_600_000);
        prop_assert!(world.waiting.is_empty(), "still waiting: {:?}", world.waiting);
        let log = world.replayed();
        prop_assert_eq!(invariants::durable(&log), invariants::durable(&world.shard));
        world.pass(20 * 24 * 3_600_000);
        prop_assert_eq!(world.shard.group_count(), 0, "everything expires");
        prop_assert_eq!(world.shard.next_deadline(), None, "and nothing wakes us any more");
    }
}
