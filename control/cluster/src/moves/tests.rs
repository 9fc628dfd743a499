//! Stories: leaders that are asked to go, go, or do not.

use super::*;
use crate::eligible::{Report, Unlawful};
use crate::state::{Pair, Resigned};
use crate::testing::{World, brokers, generation, log, pair};
use crate::topics::NewTopic;

/// A topic whose partitions are on `replicas`, led and opened by the first; all copies are level.
fn topic(world: &mut World, replicas: &[i32], partitions: i32) -> Vec<PartitionId> {
    let assignments = (0..partitions).map(|index| (index, brokers(replicas))).collect();
    let name = format!("t{}", world.view.topic_count());
    let new = NewTopic { name, assignments: Some(assignments), ..NewTopic::default() };
    let topic = world.create(new).unwrap().id;
    let ids: Vec<PartitionId> = (0..partitions).map(|index| PartitionId { topic, index }).collect();
    for id in &ids {
        open(world, *id);
        let pairs: Vec<Pair> = replicas[1..].iter().map(|broker| own(*broker)).collect();
        level(world, *id, &pairs);
    }
    ids
}

fn own(broker: i32) -> Pair {
    pair(broker, broker.unsigned_abs().into())
}

fn open(world: &mut World, id: PartitionId) {
    let broker = world.state(id).leader.unwrap().broker.0;
    world.report(id, &Report::Opened(own(broker).log)).unwrap();
}

fn level(world: &mut World, id: PartitionId, pairs: &[Pair]) {
    let pairs = pairs.iter().copied().collect();
    world.report(id, &Report::Eligible { pairs, dead: BTreeSet::new(), need: 1 }).unwrap();
}

fn led(world: &World, id: PartitionId) -> Option<(i32, u32)> {
    let state = world.state(id);
    state.leader.map(|leader| (leader.broker.0, state.generation.number()))
}

fn in_flight(world: &World, node: i32) -> usize {
    world.view.revocations(BrokerId(node)).map_or(0, |set| {
        set.value.iter().filter(|tenure| is_open(&world.view, BrokerId(node), tenure)).count()
    })
}

#[test]
fn a_broker_that_drains_gives_up_what_others_can_lead_slice_by_slice() {
    let mut world = World::with_brokers(3);
    let ids = topic(&mut world, &[1, 2, 3], 300);
    let alone = topic(&mut world, &[1], 2);
    let session = world.session(1);
    world.drain(1);
    world.settle();
    assert_eq!(drain(&world.view, BrokerId(1), session), Drain { leads: 302, movable: 300, follows: 0 });
    let mut slices = Vec::new();
    while world.give_up(1) > 0 {
        let left = drain(&world.view, BrokerId(1), session).movable;
        slices.push(300 - left);
        assert!(in_flight(&world, 1) <= SLICE);
    }
    assert_eq!(slices.last(), Some(&300), "{slices:?}");
    assert!(slices[0] <= SLICE && slices.len() >= 3, "{slices:?}");
    // They are led by the next replica that stays; what nobody else holds is not asked for.
    assert!(ids.iter().all(|id| led(&world, *id) == Some((2, 2))));
    assert!(alone.iter().all(|id| led(&world, *id) == Some((1, 1))));
    assert_eq!(drain(&world.view, BrokerId(1), session), Drain { leads: 2, movable: 0, follows: 0 });
    assert!(world.view.revocations(BrokerId(1)).unwrap().value.is_empty());
}

#[test]
fn a_leader_that_does_not_resign_in_time_leads_on_and_is_left_alone_for_a_while() {
    let mut world = World::with_brokers(3);
    let id = topic(&mut world, &[1, 2], 1)[0];
    world.tick(0);
    world.drain(1);
    world.settle();
    assert_eq!(in_flight(&world, 1), 1);
    let stale = world.view.learned(&id).unwrap();
    let before = world.view.partition(&id).unwrap().clone();
    world.tick(1);
    world.tick(2_000);
    world.settle();
    assert_eq!(led(&world, id), Some((1, 1)), "L counts from when it was seen");
    world.tick(2_001);
    world.settle();
    assert_eq!(led(&world, id), Some((1, 2)));
    // Its late word does not count.
    let tenure =
        crate::eligible::Tenure { broker: BrokerId(1), session: world.session(1), generation: generation(1) };
    let resigned = Report::Resigned(Resigned { end: 9, pairs: [own(2)].into() });
    let late = crate::eligible::decide(&before, stale, &tenure, &resigned).unwrap().unwrap();
    assert!(!world.commit(&late));
    // It opens anew, and is asked again only after a rest.
    open(&mut world, id);
    world.tidy(1);
    world.settle();
    assert_eq!(in_flight(&world, 1), 0);
    assert_eq!(world.controller.next_tick(), felix_protocol::time::MonoTime(12_001_000_000));
    world.tick(12_001);
    world.settle();
    assert_eq!(in_flight(&world, 1), 1);
    world.give_up(1);
    assert_eq!(led(&world, id), Some((2, 3)));
}

#[test]
fn who_resigned_is_followed_by_one_that_holds_all_of_it() {
    let mut world = World::with_brokers(3);
    let id = topic(&mut world, &[1, 2, 3], 1)[0];
    // Broker 2 comes first, but has not got the end of the log.
    world.resign(id, &[own(3)]).unwrap();
    assert_eq!(led(&world, id), Some((3, 2)));
    assert_eq!(world.state(id).resigned, None);
    open(&mut world, id);
    assert_eq!(world.state(id).eligible, [own(1), own(2)].into());
}

#[test]
fn when_none_of_those_it_named_lives_the_ordinary_rule_holds_and_it_may_return() {
    let mut world = World::with_brokers(3);
    let id = topic(&mut world, &[1, 2, 3], 1)[0];
    level(&mut world, id, &[own(3)]);
    world.fence(3);
    world.resign(id, &[own(3)]).unwrap();
    assert_eq!(led(&world, id), Some((1, 2)));
}

#[test]
fn who_resigned_for_want_of_followers_comes_last() {
    let mut world = World::with_brokers(3);
    let id = topic(&mut world, &[1, 2, 3], 1)[0];
    world.drain(3);
    level(&mut world, id, &[own(3)]);
    world.resign(id, &[]).unwrap();
    assert_eq!(led(&world, id), Some((3, 2)), "even one that is about to go comes first");
    let mut world = World::with_brokers(3);
    let id = topic(&mut world, &[1, 2], 1)[0];
    world.fence(2);
    world.resign(id, &[]).unwrap();
    assert_eq!(led(&world, id), Some((1, 2)));
}

#[test]
fn only_who_opened_resigns_and_names_only_eligible_copies() {
    let mut world = World::with_brokers(3);
    let id = topic(&mut world, &[1, 2], 1)[0];
    assert_eq!(world.resign(id, &[pair(2, 99)]), Err(Unlawful::Member(BrokerId(2))));
    assert_eq!(world.resign(id, &[own(3)]), Err(Unlawful::Member(BrokerId(3))));
    world.resign(id, &[own(2)]).unwrap();
    assert_eq!(world.resign(id, &[]), Err(Unlawful::Opening));
}

#[test]
fn who_does_not_open_is_replaced_and_the_next_is_tried() {
    let mut world = World::with_brokers(3);
    let id = topic(&mut world, &[1, 2, 3], 1)[0];
    world.fence(1);
    world.settle();
    world.tick(100);
    assert_eq!(led(&world, id), Some((2, 2)));
    world.tick(2_099);
    assert_eq!(world.settle(), 0);
    world.tick(2_100);
    world.settle();
    assert_eq!(led(&world, id), Some((3, 3)));
    // Its pair is kept, and when all were tried they are tried once more.
    world.tick(2_101);
    world.tick(4_101);
    world.settle();
    assert_eq!(led(&world, id), Some((2, 4)));
    open(&mut world, id);
    assert_eq!(world.state(id).eligible, [own(1), own(3)].into());
    world.tick(99_999);
    assert_eq!(world.settle(), 0);
}

#[test]
fn one_that_is_busy_opening_gets_the_time_for_it() {
    let mut world = World::with_brokers(3);
    let ids = topic(&mut world, &[1, 2, 3], 3);
    world.fence(1);
    world.settle();
    world.tick(0);
    for (at, id) in [(1_500, ids[0]), (3_000, ids[1])] {
        open(&mut world, id);
        world.tick(at);
        world.settle();
        assert_eq!(led(&world, ids[2]), Some((2, 2)));
    }
    world.tick(4_999);
    world.settle();
    assert_eq!(led(&world, ids[2]), Some((2, 2)));
    world.tick(5_000);
    world.settle();
    assert_eq!(led(&world, ids[2]), Some((3, 3)));
}

#[test]
fn one_that_drains_before_it_opens_is_asked_when_it_has() {
    let mut world = World::with_brokers(3);
    let id = topic(&mut world, &[1, 2, 3], 1)[0];
    world.fence(1);
    world.settle();
    world.drain(2);
    world.settle();
    assert_eq!(led(&world, id), Some((2, 2)));
    assert!(world.view.revocations(BrokerId(2)).is_none());
    open(&mut world, id);
    assert_eq!(world.give_up(2), 1);
    assert_eq!(led(&world, id), Some((3, 3)));
}

#[test]
fn one_that_was_given_its_partition_back_is_replaced_only_when_it_must_have_heard() {
    let mut world = World::with_brokers(3);
    let id = topic(&mut world, &[1, 2], 1)[0];
    world.drain(1);
    world.settle();
    world.tick(0);
    world.tick(2_000);
    world.settle();
    // Broker 1 may be writing at generation 1 still, as far as anybody else can know.
    assert_eq!(led(&world, id), Some((1, 2)));
    world.tick(2_001);
    world.tick(6_000);
    world.settle();
    assert_eq!(led(&world, id), Some((1, 2)));
    world.tick(6_001);
    world.settle();
    assert_eq!(led(&world, id), Some((2, 3)));
}

#[test]
fn a_leader_alone_is_neither_asked_nor_replaced() {
    let mut world = World::with_brokers(2);
    let id = topic(&mut world, &[1], 1)[0];
    world.drain(1);
    world.register(1);
    world.settle();
    world.tick(0);
    world.tick(60_000);
    assert_eq!(world.settle(), 0, "it is not opened, and there is nobody else");
    assert_eq!(led(&world, id), Some((1, 2)));
}

#[test]
fn a_node_takes_off_only_what_is_over() {
    let mut world = World::with_brokers(2);
    let ids = topic(&mut world, &[1, 2], 3);
    assert_eq!(tidy(&world.view, BrokerId(1)), None);
    let decision = slice(&world.view, BrokerId(1), ids.iter()).unwrap();
    assert!(world.commit(&decision));
    assert!(!world.commit(&decision), "it compares the set");
    assert_eq!(slice(&world.view, BrokerId(1), ids.iter()), None, "all are asked for");
    assert_eq!(tidy(&world.view, BrokerId(1)), None);
    world.resign(ids[1], &[own(2)]).unwrap();
    world.tidy(1);
    let set = &world.view.revocations(BrokerId(1)).unwrap().value;
    let left: Vec<PartitionId> = set.iter().map(|tenure| tenure.partition).collect();
    assert_eq!(left, [ids[0], ids[2]]);
    assert_eq!(log(1), own(1).log);
}

#[test]
fn a_leader_alone_that_resigns_leads_on_unless_its_broker_goes_away() {
    let mut world = World::with_brokers(2);
    let id = topic(&mut world, &[1], 1)[0];
    world.resign(id, &[]).unwrap();
    assert_eq!(led(&world, id), Some((1, 2)), "at once, by nobody's clock");
    open(&mut world, id);
    world.drain(1);
    world.resign(id, &[]).unwrap();
    assert_eq!(led(&world, id), None);
    assert!(world.state(id).resigned.is_some(), "visibly leaderless");
    world.fence(1);
    world.settle();
    assert_eq!(led(&world, id), None);
    // Its next life leads at once.
    world.register(1);
    world.settle();
    assert_eq!(led(&world, id), Some((1, 3)));
}

#[test]
fn who_goes_away_is_followed_by_those_that_hold_everything_acknowledged() {
    let mut world = World::with_brokers(3);
    let id = topic(&mut world, &[1, 2], 1)[0];
    world.drain(1);
    // Broker 2 has not got the end of the log.
    world.resign(id, &[]).unwrap();
    assert_eq!(led(&world, id), Some((2, 2)));
    // And if that one is lost before it opens, the broker that left is asked once more, while it is there, and in its next
    // life.
    world.fence(2);
    world.settle();
    assert_eq!(led(&world, id), Some((1, 3)));
    world.fence(1);
    world.settle();
    assert_eq!(led(&world, id), None);
    world.register(1);
    world.settle();
    assert_eq!(led(&world, id), Some((1, 4)));
}

#[test]
fn a_broker_that_drains_leaves_the_sets_in_which_it_follows_as_far_as_c9_allows() {
    let mut world = World::with_brokers(4);
    let three = topic(&mut world, &[1, 2, 3], 1)[0];
    let two = topic(&mut world, &[1, 2], 1)[0];
    let own_led = topic(&mut world, &[2, 1], 1)[0];
    let stale = world.view.learned(&three).unwrap();
    world.drain(2);
    let session = world.session(2);
    assert_eq!(drain(&world.view, BrokerId(2), session), Drain { leads: 1, movable: 1, follows: 1 });
    world.settle();
    // Of three one may go; of two the other one is needed: there the broker goes as it is.
    assert_eq!(world.state(three).eligible, [own(3)].into());
    assert_eq!(world.state(two).eligible, [own(2)].into());
    assert_eq!(led(&world, own_led), Some((2, 1)));
    let left = drain(&world.view, BrokerId(2), session);
    assert_eq!((left.follows, left.is_done()), (0, false));
    assert_eq!(world.give_up(2), 1);
    assert_eq!(led(&world, own_led), Some((1, 2)));
    assert!(drain(&world.view, BrokerId(2), session).is_done());
    // What the leader reports on what it knew before does not land.
    let tenure =
        crate::eligible::Tenure { broker: BrokerId(1), session: world.session(1), generation: generation(1) };
    let report = Report::Eligible { pairs: [own(2), own(3)].into(), dead: BTreeSet::new(), need: 2 };
    let partition = world.view.partition(&three).unwrap().clone();
    let late = crate::eligible::decide(&partition, stale, &tenure, &report).unwrap().unwrap();
    assert!(!world.commit(&late));
    // Two that drain at once leave no fewer than are needed.
    world.register(2);
    level(&mut world, three, &[own(2), own(3)]);
    world.drain(2);
    world.drain(3);
    world.settle();
    assert_eq!(world.state(three).eligible.len(), 1);
}
