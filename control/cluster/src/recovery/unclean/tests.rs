use std::collections::BTreeSet;

use super::*;
use crate::eligible::{Declined, Report};
use crate::promotion::Standing;
use crate::state::Last;
use crate::testing::{World, brokers, generation, log, pair};
use crate::topics::NewTopic;

/// A partition on 1, 2 and 3, opened by 1; 2 is vouched for, and 3 fell behind.
fn three() -> (World, PartitionId) {
    let mut world = World::with_brokers(3);
    let assignments = [(0, brokers(&[1, 2, 3]))].into();
    let new = NewTopic { name: "t".to_owned(), assignments: Some(assignments), ..NewTopic::default() };
    let id = PartitionId { topic: world.create(new).unwrap().id, index: 0 };
    world.report(id, &Report::Opened(log(1))).unwrap();
    let pairs = BTreeSet::from([pair(2, 2)]);
    world.report(id, &Report::Eligible { pairs, dead: BTreeSet::new(), need: 2 }).unwrap();
    (world, id)
}

fn standing(number: u128, accepted: u32, end: Offset) -> Standing {
    Standing { log: log(number), accepted: generation(accepted), end, doubt: false }
}

#[test]
fn where_somebody_leads_or_may_there_is_nothing_to_do() {
    let (mut world, id) = three();
    let silent = Standings::new();
    let unknown = PartitionId { index: 7, ..id };
    assert_eq!(plan(&world.view, unknown, None, &silent, false), Err(Refused::Unknown));
    assert_eq!(plan(&world.view, id, None, &silent, false), Err(Refused::Led(BrokerId(1))));
    world.fence(1);
    // Nobody has promoted it yet, and somebody will.
    assert_eq!(plan(&world.view, id, Some(BrokerId(3)), &silent, false), Err(Refused::Clean(BrokerId(2))));
}

#[test]
fn the_only_one_left_is_named_and_everything_older_is_given_up() {
    let (mut world, id) = three();
    world.fence(1);
    world.fence(2);
    world.settle();
    let plan = plan(&world.view, id, None, &Standings::new(), false).unwrap();
    assert_eq!((plan.leader.broker, plan.leader.log, plan.loss), (BrokerId(3), None, Loss::Everything));
    let vouched: Vec<_> = plan.candidates.iter().map(|one| (one.is_there(), one.vouched)).collect();
    assert_eq!(vouched, [(false, Some(log(1))), (false, Some(log(2))), (true, None)]);
    assert!(world.commit(&plan.decision));
    let state = world.state(id).clone();
    assert_eq!((state.last, state.unclean_at), (Last::Nobody, Some(state.generation)));
    assert!(state.eligible.is_empty());
    // The others come back, and are not named any more.
    world.register(1);
    world.register(2);
    world.settle();
    assert_eq!(world.state(id), &state);
    assert!(!world.commit(&plan.decision), "and it cannot be done twice");
}

#[test]
fn who_is_named_must_be_there_and_hold_a_copy() {
    let (mut world, id) = three();
    let silent = Standings::new();
    for node in [1, 2, 3] {
        world.fence(node);
    }
    world.settle();
    let there = Refused::NobodyThere(vec![1, 2, 3]);
    assert_eq!(plan(&world.view, id, None, &silent, false), Err(there));
    assert_eq!(plan(&world.view, id, Some(BrokerId(3)), &silent, false), Err(Refused::NotThere(BrokerId(3))));
    let other = Refused::NotAReplica(BrokerId(9), vec![1, 2, 3]);
    assert_eq!(plan(&world.view, id, Some(BrokerId(9)), &silent, false), Err(other));
}

#[test]
fn with_more_than_one_choice_the_operator_chooses_and_sees_what_it_costs() {
    let (mut world, id) = three();
    world.fence(2);
    world.settle();
    // The leader's disk is replaced, so it declines for ever.
    let declined = Declined { reason: DeclineReason::Wiped, current: None, accepted: generation(0), end: 0 };
    world.fence(1);
    world.register(1);
    world.settle();
    world.report(id, &Report::Declined(declined)).unwrap();
    let choose = Refused::Choose(vec![1, 3]);
    assert_eq!(plan(&world.view, id, None, &Standings::new(), false), Err(choose));
    let told = Standings::from([
        (BrokerId(1), standing(11, 2, 0)),
        (BrokerId(2), standing(2, 2, 90)),
        (BrokerId(3), standing(3, 2, 70)),
    ]);
    let to = |broker: i32, told: &Standings| {
        let plan = plan(&world.view, id, Some(BrokerId(broker)), told, false).unwrap();
        (plan.leader.log, plan.loss)
    };
    assert_eq!(to(3, &told), (Some(log(3)), Loss::Records(20)));
    assert_eq!(to(1, &told), (Some(log(11)), Loss::Records(90)));
    let mut ahead = told.clone();
    ahead.insert(BrokerId(2), standing(2, 3, 10));
    assert_eq!(to(3, &ahead), (Some(log(3)), Loss::NewerGeneration));
    ahead.remove(&BrokerId(2));
    assert_eq!(to(3, &ahead).1, Loss::NothingKnown);
    assert_eq!(to(1, &Standings::new()), (None, Loss::Everything));
}

#[test]
fn what_a_broker_said_when_it_declined_is_known() {
    let (mut world, id) = three();
    world.fence(2);
    let declined =
        Declined { reason: DeclineReason::Doubt, current: Some(log(11)), accepted: generation(1), end: 55 };
    world.fence(1);
    world.register(1);
    world.settle();
    world.report(id, &Report::Declined(declined)).unwrap();
    let plan = plan(&world.view, id, Some(BrokerId(1)), &Standings::new(), false).unwrap();
    let holding = plan.candidates[0].holding.unwrap();
    assert_eq!((holding.log, holding.end, holding.fresh), (log(11), 55, false));
    assert_eq!(plan.candidates[0].declined, Some(DeclineReason::Doubt));
    assert_eq!(plan.leader.log, Some(log(11)));
    assert!(world.commit(&plan.decision));
    assert_eq!(world.state(id).leader.unwrap().log, Some(log(11)));
}

#[test]
fn a_choice_stands_until_it_was_carried_out() {
    let (mut world, id) = three();
    world.fence(1);
    world.fence(2);
    world.settle();
    let plan = plan(&world.view, id, None, &Standings::new(), false).unwrap();
    assert!(world.commit(&plan.decision));
    // It restarts before it has opened, and another is back before it is.
    world.fence(3);
    world.register(1);
    world.settle();
    assert_eq!(world.state(id).leader.map(|leader| leader.broker), Some(BrokerId(3)));
    world.register(3);
    world.settle();
    let state = world.state(id);
    assert_eq!(state.leader.unwrap().session, world.session(3));
    assert!(state.generation > plan.generation && state.unclean_at == Some(state.generation));
    world.report(id, &Report::Opened(log(3))).unwrap();
    // From here on it is a leader like any other.
    world.fence(3);
    world.settle();
    assert_eq!(world.state(id).leader, None);
}

#[test]
fn an_operator_may_choose_anew_while_the_chosen_one_is_down() {
    let (mut world, id) = three();
    world.fence(1);
    world.fence(2);
    world.settle();
    let first = plan(&world.view, id, None, &Standings::new(), false).unwrap();
    assert!(world.commit(&first.decision));
    world.fence(3);
    world.register(2);
    world.settle();
    let second = plan(&world.view, id, None, &Standings::new(), false).unwrap();
    assert_eq!(second.leader.broker, BrokerId(2));
    assert!(world.commit(&second.decision));
}

/// A single node whose disk was replaced: nothing is there that its store knows of, and it is stopped.
#[test]
fn a_single_node_that_is_stopped_is_named_when_it_starts() {
    let mut world = World::with_brokers(1);
    let new = NewTopic { name: "t".to_owned(), partitions: 1, replication_factor: 1, ..NewTopic::default() };
    let id = PartitionId { topic: world.create(new).unwrap().id, index: 0 };
    world.report(id, &Report::Opened(log(1))).unwrap();
    world.fence(1);
    let alone = |world: &World| plan(&world.view, id, None, &Standings::new(), true);
    assert_eq!(alone(&world), Err(Refused::Clean(BrokerId(1))), "it starts, and leads");
    world.register(1);
    world.settle();
    let declined = Declined { reason: DeclineReason::Wiped, current: None, accepted: generation(0), end: 0 };
    world.report(id, &Report::Declined(declined)).unwrap();
    assert_eq!(world.state(id).leader, None);
    world.fence(1);
    let plan = alone(&world).unwrap();
    assert!(world.commit(&plan.decision));
    world.settle();
    world.register(1);
    world.settle();
    let state = world.state(id);
    assert_eq!(state.leader.unwrap().session, world.session(1));
    assert_eq!(state.unclean_at, Some(state.generation));
}
