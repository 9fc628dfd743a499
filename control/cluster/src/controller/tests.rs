//! Random histories: whatever brokers, clients and controllers do at once, from views of any age, every invariant
//! holds after each step and a settled cluster is whole.

use std::collections::BTreeMap;

use felix_protocol::ids::BrokerId;
use proptest::prelude::*;

use super::*;
use crate::elect::{self, Election};
use crate::eligible::{self, Declined, Report, Tenure};
use crate::invariants::check_view;
use crate::registration;
use crate::relist;
use crate::state::{DeclineReason, Leader, Pair, Resigned};
use crate::testing::{World, brokers, log};
use crate::topics::{self, NewTopic, TopicRef};

/// One thing that happens. Indexes are taken modulo what there is.
#[derive(Clone, Debug)]
enum Act {
    Create {
        name: usize,
        partitions: i32,
        factor: i16,
    },
    Delete {
        topic: usize,
    },
    Widen {
        topic: usize,
        by: i32,
    },
    Fence {
        node: usize,
    },
    Register {
        node: usize,
    },
    Drain {
        node: usize,
    },
    Controller {
        limit: usize,
    },
    Open {
        partition: usize,
        log: u128,
    },
    Vouch {
        partition: usize,
        with: Vec<(i32, u128)>,
        need: usize,
    },
    Decline {
        partition: usize,
        wiped: bool,
    },
    Reassign {
        partition: usize,
        target: Vec<i32>,
        factor: bool,
    },
    Cancel {
        partition: usize,
    },
    /// A leader resigns, asked or not.
    Resign {
        partition: usize,
        pairs: usize,
    },
    Elect {
        partition: usize,
        unclean: bool,
    },
    /// A node does what it is asked for.
    GiveUp {
        node: usize,
    },
    Unregister {
        node: usize,
    },
    /// Time passes, for the controller that sees everything.
    Time {
        ms: u64,
    },
    /// One of the three deciders looks again.
    Look {
        who: usize,
    },
    /// All do, and a controller finishes its work: without this, histories seldom get far.
    Settle,
}

fn acts() -> impl Strategy<Value = Vec<Act>> {
    let act = prop_oneof![
        2 => (0..4_usize, 1..4, 1..4_i16).prop_map(|(name, partitions, factor)| Act::Create { name, partitions, factor }),
        1 => (0..9_usize).prop_map(|topic| Act::Delete { topic }),
        1 => (0..4_usize, 1..3).prop_map(|(topic, by)| Act::Widen { topic, by }),
        2 => (0..4_usize).prop_map(|node| Act::Fence { node }),
        3 => (0..4_usize).prop_map(|node| Act::Register { node }),
        1 => (0..4_usize).prop_map(|node| Act::Drain { node }),
        1 => (0..4_usize).prop_map(|node| Act::Unregister { node }),
        4 => (0..12_usize, prop::sample::subsequence(vec![1, 2, 3, 4], 1..4).prop_shuffle(), any::<bool>())
            .prop_map(|(partition, target, factor)| Act::Reassign { partition, target, factor }),
        1 => (0..12_usize).prop_map(|partition| Act::Cancel { partition }),
        2 => (0..12_usize, 0..3_usize).prop_map(|(partition, pairs)| Act::Resign { partition, pairs }),
        2 => (0..12_usize, prop::bool::weighted(0.2))
            .prop_map(|(partition, unclean)| Act::Elect { partition, unclean }),
        3 => (0..4_usize).prop_map(|node| Act::GiveUp { node }),
        2 => (0..3_000_u64).prop_map(|ms| Act::Time { ms }),
        4 => (1..6_usize).prop_map(|limit| Act::Controller { limit }),
        9 => (0..12_usize, 0..4_u128).prop_map(|(partition, log)| Act::Open { partition, log }),
        8 => (0..12_usize, prop::collection::vec((1..5, 0..2_u128), 0..4), 1..3_usize)
            .prop_map(|(partition, with, need)| Act::Vouch { partition, with, need }),
        1 => (0..12_usize, any::<bool>()).prop_map(|(partition, wiped)| Act::Decline { partition, wiped }),
        4 => (0..3_usize).prop_map(|who| Act::Look { who }),
        8 => Just(Act::Settle),
    ];
    prop::collection::vec(act, 1..100)
}

/// A log id that belongs to one broker alone.
fn log_of(broker: i32, number: u128) -> felix_protocol::ids::LogId {
    log(u128::from(broker.unsigned_abs()) * 100 + number)
}

/// Three deciders, each with a view of its own age, on one store.
struct Cluster {
    world: World,
    seen: Vec<View>,
    now_ms: u64,
}

impl Cluster {
    fn act(&mut self, act: &Act) {
        let names = ["a.b", "a_b", "c", "d"];
        match act {
            Act::Look { who } => self.seen[*who] = self.world.view.clone(),
            Act::Settle => {
                self.world.settle();
                self.seen.fill(self.world.view.clone());
            }
            Act::Create { name, partitions, factor } => {
                let new = NewTopic {
                    name: names[*name].to_owned(),
                    partitions: *partitions,
                    replication_factor: *factor,
                    ..NewTopic::default()
                };
                if let Ok((decision, _)) = topics::create(&self.seen[0], TopicId::random(), &new) {
                    self.world.commit(&decision);
                }
            }
            Act::Delete { topic } => {
                if let Ok((decision, _)) = topics::delete(
                    &self.seen[1],
                    &TopicRef::Name(names.get(*topic).map_or("none", |name| name).to_owned()),
                ) {
                    self.world.commit(&decision);
                }
            }
            Act::Widen { topic, by } => {
                let Some(now) = self.seen[0].topic_named(names[*topic]) else { return };
                if let Ok((decision, _)) =
                    topics::widen(&self.seen[0], names[*topic], now.partition_count + by, None)
                {
                    self.world.commit(&decision);
                }
            }
            Act::Reassign { partition, target, factor } => {
                let Some(id) = self.nth(0, *partition) else { return };
                if let Ok(Some(decision)) = reassign::begin(&self.seen[0], id, &brokers(target), *factor) {
                    self.world.commit(&decision);
                }
            }
            Act::Cancel { partition } => {
                let Some(id) = self.nth(1, *partition) else { return };
                if let Ok(Some(decision)) = reassign::cancel(&self.seen[1], id) {
                    self.world.commit(&decision);
                }
            }
            Act::Resign { partition, pairs } => {
                let Some(id) = self.nth(partition % 3, *partition) else { return };
                let eligible = self.seen[partition % 3].partition(&id).unwrap().state.eligible.clone();
                let pairs = eligible.into_iter().take(*pairs).collect();
                self.report(*partition, |_, _| Report::Resigned(Resigned { end: 5, pairs }));
            }
            Act::Elect { partition, unclean } => {
                let Some(id) = self.nth(0, *partition) else { return };
                let election = if *unclean { Election::Unclean } else { Election::Preferred };
                let (decisions, _) = elect::begin(&self.seen[0], &[id].into(), election, &BTreeMap::new());
                for decision in decisions {
                    self.world.commit(&decision);
                }
            }
            Act::GiveUp { node } => {
                self.world.give_up(1 + i32::try_from(*node).unwrap());
            }
            Act::Unregister { node } => {
                let id = BrokerId(1 + i32::try_from(*node).unwrap());
                if let Ok(decision) = registration::unregister(&self.seen[1], id) {
                    self.world.commit(&decision);
                }
            }
            Act::Time { ms } => {
                self.now_ms += ms;
                self.world.tick(self.now_ms);
                self.world.settle();
            }
            Act::Fence { node } => self.world.fence(1 + i32::try_from(*node).unwrap()),
            Act::Register { node } => self.world.register(1 + i32::try_from(*node).unwrap()),
            Act::Drain { node } => self.world.drain(1 + i32::try_from(*node).unwrap()),
            // A controller that sees only what it saw last, and has everything to look at.
            Act::Controller { limit } => {
                let mut controller = Controller::default();
                controller.note_all(&self.seen[2]);
                for decision in controller.decide(&self.seen[2], &StandingsOf::new(), *limit) {
                    self.world.commit(&decision);
                }
            }
            Act::Open { partition, log } => {
                // With the named copy, or, sometimes, another.
                self.report(*partition, |leader, _| match leader.log {
                    Some(named) if *log > 0 => Report::Opened(named),
                    _ => Report::Opened(log_of(leader.broker.0, *log)),
                });
            }
            Act::Vouch { partition, with, need } => self.report(*partition, |_, _| Report::Eligible {
                pairs: with
                    .iter()
                    .map(|(id, log)| Pair { broker: BrokerId(*id), log: log_of(*id, *log) })
                    .collect(),
                dead: BTreeSet::new(),
                need: *need,
            }),
            Act::Decline { partition, wiped } => self.report(*partition, |leader, generation| {
                let reason = if *wiped { DeclineReason::Wiped } else { DeclineReason::Doubt };
                let current = (!wiped).then(|| log_of(leader.broker.0, 50));
                Report::Declined(Declined { reason, current, accepted: generation, end: 3 })
            }),
        }
    }

    fn nth(&self, who: usize, partition: usize) -> Option<PartitionId> {
        let seen = &self.seen[who];
        seen.partitions().nth(partition % seen.partition_count().max(1)).map(|partition| partition.id)
    }

    /// A leader reports from what it learned last, which may be long ago.
    fn report(
        &mut self,
        partition: usize,
        report: impl FnOnce(Leader, felix_protocol::ids::Generation) -> Report,
    ) {
        let seen = &self.seen[partition % 3];
        let count = seen.partition_count().max(1);
        let Some(partition) = seen.partitions().nth(partition % count).cloned() else { return };
        let (Some(leader), Some(learned)) = (partition.leader().copied(), seen.learned(&partition.id)) else {
            return;
        };
        let from =
            Tenure { broker: leader.broker, session: leader.session, generation: partition.generation() };
        let report = report(leader, partition.generation());
        if let Ok(Some(decision)) = eligible::decide(&partition, learned, &from, &report) {
            self.world.commit(&decision);
        }
    }
}

/// Leaders open, make every live replica eligible, and resign when asked, until nothing changes.
fn do_all_duties(world: &mut World) {
    for _ in 0..20 {
        let before = world.view.revision();
        let ids: Vec<PartitionId> = world.view.partitions().map(|partition| partition.id).collect();
        for id in ids {
            let state = world.state(id).clone();
            let Some(leader) = state.leader else { continue };
            if !state.opened() {
                let log = leader.log.unwrap_or(log_of(leader.broker.0, 9));
                world.report(id, &Report::Opened(log)).unwrap();
            }
            let state = world.state(id).clone();
            let Some(leader) = state.leader.filter(|_| state.opened()) else { continue };
            let mut pairs = state.eligible.clone();
            for id in state.replicas.iter().filter(|id| **id != leader.broker) {
                if !pairs.iter().any(|pair| pair.broker == *id) {
                    pairs.insert(Pair { broker: *id, log: log_of(id.0, 9) });
                }
            }
            world.report(id, &Report::Eligible { pairs, dead: BTreeSet::new(), need: 1 }).unwrap();
        }
        for node in 1..=4 {
            world.give_up(node);
        }
        world.settle();
        if world.view.revision() == before {
            return;
        }
    }
    panic!("leaders never come to rest");
}

proptest! {
    #![proptest_config(ProptestConfig::with_cases(400))]

    /// `World::commit` checks each step; here the end is checked.
    #[test]
    fn random_histories_keep_every_invariant(acts in acts()) {
        let world = World::with_brokers(4);
        let seen = vec![world.view.clone(); 3];
        let mut cluster = Cluster { world, seen, now_ms: 0 };
        for act in &acts {
            cluster.act(act);
        }
        let (mut world, now_ms) = (cluster.world, cluster.now_ms);
        world.settle();
        // With all brokers back, whatever was never in doubt is led; and nothing is left to decide.
        for node in 1..=4 {
            world.register(node);
        }
        world.settle();
        do_all_duties(&mut world);
        // What was given back and left alone is asked for once more.
        world.tick(now_ms + 60_000);
        world.settle();
        do_all_duties(&mut world);
        check_view(&world.view).unwrap();
        for partition in world.view.partitions() {
            let lost = partition.state.promotable().is_empty() && !partition.state.untouched();
            prop_assert!(lost || partition.leader().is_some(), "{partition:?}");
            // Whatever was begun has come to its end.
            prop_assert!(lost || !reassign::in_progress(&partition.state), "{partition:?}");
        }
        world.controller.note_all(&world.view.clone());
        prop_assert_eq!(world.settle(), 0);
        // A view that followed and one that reads everything anew are the same.
        let mut anew = View::default();
        for change in relist::changes(&anew.clone(), world.listed(), world.view.revision()) {
            anew.apply(&change).unwrap();
        }
        anew.advance(world.view.revision());
        prop_assert!(anew.changes_since(&world.view).is_empty());
        prop_assert_eq!(anew.keys(), world.view.keys());
    }

    /// A watch that lost any part of the story is healed by one list.
    #[test]
    fn a_list_heals_what_a_watch_lost(acts in acts(), kept in 0..60_usize) {
        let world = World::with_brokers(4);
        let mut cluster = Cluster { seen: vec![world.view.clone(); 3], world, now_ms: 0 };
        let mut behind = cluster.world.view.clone();
        for (at, act) in acts.iter().enumerate() {
            cluster.act(act);
            if at == kept {
                behind = cluster.world.view.clone();
            }
        }
        let now = cluster.world.view.revision();
        for change in relist::changes(&behind.clone(), cluster.world.listed(), now) {
            behind.apply(&change).unwrap();
        }
        prop_assert!(behind.changes_since(&cluster.world.view).is_empty());
    }
}

#[test]
fn nodes_that_return_are_given_what_nobody_leads() {
    let mut world = World::with_brokers(1);
    let new = NewTopic { name: "t".to_owned(), partitions: 3, replication_factor: 1, ..NewTopic::default() };
    world.create(new).unwrap();
    world.fence(1);
    // Each loses its leader, visibly; then there is nothing to do.
    assert_eq!(world.settle(), 3);
    assert_eq!(world.settle(), 0);
    world.register(1);
    assert_eq!(world.settle(), 3);
    assert!(world.view.partitions().all(|it| it.generation().number() == 2));
}

#[test]
fn a_topic_made_while_nobody_is_live_waits_for_somebody() {
    let mut world = World::with_brokers(1);
    let new = NewTopic { name: "t".to_owned(), partitions: 2, replication_factor: 1, ..NewTopic::default() };
    let (creation, _) = topics::create(&world.view, TopicId::random(), &new).unwrap();
    world.fence(1);
    assert!(world.commit(&creation));
    world.settle();
    assert_eq!(world.view.partition_count(), 0);
    world.register(1);
    world.settle();
    check_view(&world.view).unwrap();
}
