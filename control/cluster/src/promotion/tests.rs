//! Stories: who leads after what.

use std::collections::BTreeSet;

use felix_protocol::ids::PartitionId;

use super::*;
use crate::eligible::{Declined, Report};
use crate::testing::{World, brokers, generation, log, pair};
use crate::topics::NewTopic;

/// A partition on brokers 1, 2, 3, led by 1 with log 1.
fn three() -> (World, PartitionId) {
    let mut world = World::with_brokers(3);
    let assignments = [(0, brokers(&[1, 2, 3]))].into();
    let new = NewTopic { name: "t".to_owned(), assignments: Some(assignments), ..NewTopic::default() };
    let id = PartitionId { topic: world.create(new).unwrap().id, index: 0 };
    (world, id)
}

fn open(world: &mut World, id: PartitionId, number: u128) {
    world.report(id, &Report::Opened(log(number))).unwrap();
}

fn vouch(world: &mut World, id: PartitionId, pairs: &[crate::state::Pair]) {
    let pairs: BTreeSet<_> = pairs.iter().copied().collect();
    world.report(id, &Report::Eligible { pairs, dead: BTreeSet::new(), need: 2 }).unwrap();
}

fn decline(world: &mut World, id: PartitionId, reason: DeclineReason, current: Option<u128>, end: i64) {
    let current = current.map(log);
    let declined = Declined { reason, current, accepted: generation(1), end };
    world.report(id, &Report::Declined(declined)).unwrap();
}

fn led(world: &World, id: PartitionId) -> Option<(i32, u32, Option<LogId>)> {
    let state = world.state(id);
    state.leader.map(|leader| (leader.broker.0, state.generation.number(), leader.log))
}

#[test]
fn a_new_partition_is_led_by_its_first_live_replica_with_any_copy() {
    let (mut world, id) = three();
    assert_eq!(led(&world, id), Some((1, 1, None)));
    world.fence(1);
    world.settle();
    // Nothing was acknowledged: another may lead with nothing.
    assert_eq!(led(&world, id), Some((2, 2, None)));
    world.drain(3);
    world.fence(2);
    world.settle();
    assert_eq!(led(&world, id), Some((3, 3, None)), "a draining one where there is no other");
}

#[test]
fn only_a_copy_that_holds_everything_is_named() {
    let (mut world, id) = three();
    open(&mut world, id, 1);
    vouch(&mut world, id, &[pair(3, 33)]);
    world.fence(1);
    world.settle();
    assert_eq!(led(&world, id), Some((3, 2, Some(log(33)))));
    open(&mut world, id, 33);
    // The old leader's copy held everything too, and still does.
    assert_eq!(world.state(id).eligible, [pair(1, 1)].into());
    world.fence(3);
    world.settle();
    // Broker 2 is alive and never named: it was never vouched for.
    assert_eq!(led(&world, id), None);
    assert_eq!(world.state(id).generation, generation(2));
    world.register(2);
    world.settle();
    assert_eq!(led(&world, id), None);
    world.register(1);
    world.settle();
    assert_eq!(led(&world, id), Some((1, 3, Some(log(1)))));
}

#[test]
fn an_heir_lives_holds_everything_and_is_not_the_leader() {
    let (mut world, id) = three();
    let has_heir = |world: &World| has_heir(&world.view, world.state(id));
    assert!(!has_heir(&world), "nothing was opened that could be given up");
    open(&mut world, id, 1);
    assert!(!has_heir(&world), "brokers 2 and 3 live, and nobody vouched for what they hold");
    vouch(&mut world, id, &[pair(3, 33)]);
    assert!(has_heir(&world));
    world.fence(3);
    assert!(!has_heir(&world));
    world.register(3);
    assert!(has_heir(&world));
    // Given up in favour of nobody in particular: the heir leads, and the one before it is the last resort.
    world.resign(id, &[]).unwrap();
    assert!(!has_heir(&world), "nobody leads");
    world.settle();
    assert_eq!(led(&world, id), Some((3, 2, Some(log(33)))));
    assert!(!has_heir(&world), "it has not opened");
    open(&mut world, id, 33);
    assert!(has_heir(&world), "the old leader's copy");
}

#[test]
fn a_leader_that_never_opened_changes_nothing_of_who_may_follow_it() {
    let (mut world, id) = three();
    open(&mut world, id, 1);
    vouch(&mut world, id, &[pair(2, 22), pair(3, 33)]);
    world.fence(1);
    world.settle();
    assert_eq!(led(&world, id), Some((2, 2, Some(log(22)))));
    world.fence(2);
    world.settle();
    assert_eq!(led(&world, id), Some((3, 3, Some(log(33)))));
    open(&mut world, id, 33);
    assert_eq!(world.state(id).eligible, [pair(1, 1), pair(2, 22)].into());
}

#[test]
fn the_one_furthest_ahead_is_named_and_silence_ranks_last() {
    let (mut world, id) = three();
    open(&mut world, id, 1);
    vouch(&mut world, id, &[pair(2, 22), pair(3, 33)]);
    world.fence(1);
    let named = |standings: &Standings| {
        let next = next(&world.view, world.state(id), standings, false);
        let Next::Lead { leader, unclean: false, .. } = next else { panic!("{next:?}") };
        leader.broker.0
    };
    let says =
        |number: u128, end: i64| Standing { log: log(number), accepted: generation(1), end, doubt: false };
    let standings = |told: &[(i32, Standing)]| told.iter().map(|(id, told)| (BrokerId(*id), *told)).collect();
    assert_eq!(named(&Standings::new()), 2);
    assert_eq!(named(&standings(&[(2, says(22, 5)), (3, says(33, 9))])), 3);
    assert_eq!(named(&standings(&[(3, says(33, 1))])), 3);
    assert_eq!(named(&standings(&[(3, says(99, 9))])), 2, "another log's word does not count");
    let doubt = Standing { doubt: true, ..says(33, 9) };
    assert_eq!(named(&standings(&[(2, says(22, 5)), (3, doubt)])), 2);
}

#[test]
fn nobody_is_asked_where_there_is_no_choice() {
    const NONE: [i32; 0] = [];
    let asked = |world: &World, id, unclean| {
        let asked = to_ask(&world.view, world.state(id), unclean);
        asked.into_iter().map(|broker| broker.0).collect::<Vec<_>>()
    };
    let (mut world, id) = three();
    assert_eq!(asked(&world, id, false), NONE, "nothing was acknowledged yet");
    open(&mut world, id, 1);
    assert_eq!(asked(&world, id, false), NONE, "the leader's copy alone");
    vouch(&mut world, id, &[pair(2, 22), pair(3, 33)]);
    world.fence(1);
    assert_eq!(asked(&world, id, false), [2, 3], "the dead one is not asked");
    world.fence(2);
    assert_eq!(asked(&world, id, true), NONE, "one that holds everything will do");
    world.fence(3);
    assert_eq!(asked(&world, id, true), NONE);
    let (mut world, id) = three();
    open(&mut world, id, 1);
    world.fence(1);
    assert_eq!(asked(&world, id, false), NONE, "nobody may lead whatever they say");
    assert_eq!(asked(&world, id, true), [2, 3], "an operator allows a loss: who holds most?");
}

#[test]
fn a_suspect_directory_is_not_named() {
    let (mut world, id) = three();
    open(&mut world, id, 1);
    vouch(&mut world, id, &[pair(2, 22)]);
    let key = Key::Node(BrokerId(2));
    let node = world.view.broker(BrokerId(2)).unwrap().clone();
    let suspect = crate::state::Node { suspect: true, ..node.node.clone() };
    assert!(world.commit(&Decision::new().at(key.clone(), node.revision).put(key, &suspect)));
    world.fence(1);
    world.settle();
    assert_eq!(led(&world, id), None);
}

#[test]
fn one_that_declines_makes_room_for_the_next() {
    let (mut world, id) = three();
    open(&mut world, id, 1);
    vouch(&mut world, id, &[pair(2, 22), pair(3, 33)]);
    world.fence(1);
    world.settle();
    decline(&mut world, id, DeclineReason::Wiped, None, 0);
    assert_eq!(led(&world, id), Some((3, 3, Some(log(33)))));
    open(&mut world, id, 33);
    assert_eq!(world.state(id).eligible, [pair(1, 1)].into(), "the wiped copy counts no more");
    assert_eq!(world.state(id).gone, []);
}

#[test]
fn when_all_that_held_everything_are_in_doubt_the_nearest_leads_and_the_loss_is_marked() {
    let (mut world, id) = three();
    open(&mut world, id, 1);
    vouch(&mut world, id, &[pair(2, 22)]);
    world.register(1);
    world.settle();
    // The leader's node returned after a power cut: its copy is under a new id. Broker 2 is next.
    let first = led(&world, id).unwrap().0;
    let (one, other) = if first == 1 { ((111, 5), (222, 9)) } else { ((222, 9), (111, 5)) };
    decline(&mut world, id, DeclineReason::Doubt, Some(one.0), one.1);
    assert_eq!(world.state(id).unclean_at, None);
    decline(&mut world, id, DeclineReason::Doubt, Some(other.0), other.1);
    assert_eq!(led(&world, id), Some((2, 4, Some(log(222)))), "broker 2 reached 9, broker 1 only 5");
    assert_eq!(world.state(id).unclean_at, Some(generation(4)));
    assert_eq!(world.state(id).eligible, BTreeSet::new());
    open(&mut world, id, 222);
    assert_eq!(world.state(id).gone, []);
}

#[test]
fn a_wiped_copy_waits_for_an_operator() {
    let (mut world, id) = three();
    open(&mut world, id, 1);
    world.register(1);
    world.settle();
    decline(&mut world, id, DeclineReason::Wiped, None, 0);
    world.settle();
    assert_eq!(led(&world, id), None);
    let allowed = next(&world.view, world.state(id), &Standings::new(), true);
    assert!(
        matches!(allowed, Next::Lead { unclean: true, leader, .. } if leader.log.is_none()),
        "{allowed:?}"
    );
    let decision = decide(&world.view, world.view.partition(&id).unwrap(), &allowed).unwrap();
    assert!(world.commit(&decision));
    assert_eq!(world.state(id).last, Last::Nobody);
}

#[test]
fn a_promotion_decided_before_something_changed_does_not_land() {
    let (mut world, id) = three();
    open(&mut world, id, 1);
    vouch(&mut world, id, &[pair(2, 22)]);
    let before = world.view.clone();
    world.fence(1);
    // The candidate stops, and comes back as another session, before the promotion is written.
    let seen = world.view.clone();
    let decided = next(&seen, world.state(id), &Standings::new(), false);
    let promotion = decide(&seen, seen.partition(&id).unwrap(), &decided).unwrap();
    world.register(2);
    assert!(!world.commit(&promotion));
    // Nor when the dead leader's broker is back: who leads is to be decided anew.
    let seen = world.view.clone();
    let decided = next(&seen, world.state(id), &Standings::new(), false);
    let promotion = decide(&seen, seen.partition(&id).unwrap(), &decided).unwrap();
    world.register(1);
    assert!(!world.commit(&promotion));
    // And one that was decided while the leader was alive says nothing at all.
    let alive = next(&before, &before.partition(&id).unwrap().state, &Standings::new(), true);
    assert_eq!(alive, Next::Keep);
}

#[test]
fn generations_run_out_visibly() {
    let (mut world, id) = three();
    open(&mut world, id, 1);
    world.fence(1);
    world.register(1);
    let mut last = world.state(id).clone();
    last.generation = generation(i32::MAX as u32);
    assert_eq!(next(&world.view, &last, &Standings::new(), true), Next::Nobody);
}
