//! Stories of elections that an operator asks for.

use felix_protocol::ids::TopicId;

use super::*;
use crate::eligible::{Declined, Report};
use crate::state::{DeclineReason, Pair};
use crate::testing::{World, brokers, generation, log, pair};
use crate::topics::NewTopic;

fn placed(replicas: &[i32]) -> (World, PartitionId) {
    let mut world = World::with_brokers(3);
    let assignments = [(0, brokers(replicas))].into();
    let new = NewTopic { name: "t".to_owned(), assignments: Some(assignments), ..NewTopic::default() };
    let id = PartitionId { topic: world.create(new).unwrap().id, index: 0 };
    (world, id)
}

fn own(broker: i32) -> Pair {
    pair(broker, broker.unsigned_abs().into())
}

fn open(world: &mut World, id: PartitionId) {
    let broker = world.state(id).leader.unwrap().broker.0;
    world.report(id, &Report::Opened(own(broker).log)).unwrap();
}

fn level(world: &mut World, id: PartitionId, brokers: &[i32]) {
    let pairs = brokers.iter().copied().map(own).collect();
    world.report(id, &Report::Eligible { pairs, dead: BTreeSet::new(), need: 1 }).unwrap();
}

/// Broker 1 led and was lost, 2 leads and has opened; 1 is back.
fn led_by_another() -> (World, PartitionId) {
    let (mut world, id) = placed(&[1, 2, 3]);
    open(&mut world, id);
    level(&mut world, id, &[2, 3]);
    world.fence(1);
    world.settle();
    open(&mut world, id);
    world.register(1);
    world.settle();
    (world, id)
}

fn elect(world: &mut World, id: PartitionId, election: Election) -> Result<(), NotElected> {
    let (decisions, refused) = begin(&world.view, &[id].into(), election, &BTreeMap::new());
    for decision in decisions {
        assert!(world.commit(&decision));
    }
    world.settle();
    refused.get(&id).map_or(Ok(()), |reason| Err(*reason))
}

fn leader(world: &World, id: PartitionId) -> Option<i32> {
    world.state(id).leader.map(|leader| leader.broker.0)
}

#[test]
fn the_preferred_leader_returns_by_a_planned_move() {
    let (mut world, id) = led_by_another();
    let from = world.state(id).generation;
    assert_eq!(elect(&mut world, id, Election::Preferred), Ok(()));
    assert_eq!(leader(&world, id), Some(2), "it has been asked");
    assert_eq!(ended(&world.view, id, Election::Preferred, from), None);
    // Asked again, the same move goes on.
    assert_eq!(elect(&mut world, id, Election::Preferred), Ok(()));
    assert_eq!(world.give_up(2), 1);
    assert_eq!(leader(&world, id), Some(1));
    assert_eq!(ended(&world.view, id, Election::Preferred, from), Some(Ok(())));
    assert_eq!(elect(&mut world, id, Election::Preferred), Err(NotElected::NotNeeded));
}

#[test]
fn a_preferred_leader_must_be_there_and_level() {
    let (mut world, id) = led_by_another();
    level(&mut world, id, &[3]);
    let refused = Err(NotElected::PreferredNotAvailable);
    assert_eq!(elect(&mut world, id, Election::Preferred), refused);
    level(&mut world, id, &[1, 3]);
    world.drain(1);
    assert_eq!(elect(&mut world, id, Election::Preferred), refused);
    world.fence(1);
    assert_eq!(elect(&mut world, id, Election::Preferred), refused);
    let stranger = PartitionId { topic: TopicId::random(), index: 0 };
    assert_eq!(elect(&mut world, stranger, Election::Preferred), Err(NotElected::Unknown));
}

#[test]
fn a_move_that_ends_elsewhere_says_so() {
    let (mut world, id) = led_by_another();
    let from = world.state(id).generation;
    assert_eq!(elect(&mut world, id, Election::Preferred), Ok(()));
    world.resign(id, &[own(3)]).unwrap();
    assert_eq!(leader(&world, id), Some(3));
    let refused = Some(Err(NotElected::PreferredNotAvailable));
    assert_eq!(ended(&world.view, id, Election::Preferred, from), refused);
}

#[test]
fn who_has_not_opened_is_replaced_at_once() {
    let (mut world, id) = placed(&[1, 2, 3]);
    world.fence(1);
    world.settle();
    world.register(1);
    world.settle();
    assert_eq!(leader(&world, id), Some(2));
    assert_eq!(elect(&mut world, id, Election::Preferred), Ok(()));
    assert_eq!(leader(&world, id), Some(1));
    assert_eq!(world.state(id).generation, generation(3));
}

#[test]
fn an_unclean_election_needs_a_partition_without_leader_and_a_replica() {
    let (mut world, id) = placed(&[1, 2]);
    open(&mut world, id);
    assert_eq!(elect(&mut world, id, Election::Unclean), Err(NotElected::NotNeeded));
    let from = world.state(id).generation;
    world.fence(1);
    world.fence(2);
    world.settle();
    assert_eq!(elect(&mut world, id, Election::Unclean), Err(NotElected::EligibleNotAvailable));
    assert_eq!(ended(&world.view, id, Election::Unclean, from), None);
    world.register(2);
    world.settle();
    assert_eq!(leader(&world, id), None, "its copy was never vouched for");
    assert_eq!(elect(&mut world, id, Election::Unclean), Ok(()));
    assert_eq!(leader(&world, id), Some(2));
    assert_eq!(world.state(id).unclean_at, Some(generation(2)));
    assert_eq!(ended(&world.view, id, Election::Unclean, from), Some(Ok(())));
}

#[test]
fn an_unclean_election_takes_the_copy_that_comes_nearest() {
    let (mut world, id) = placed(&[1, 2, 3]);
    open(&mut world, id);
    world.register(1);
    world.settle();
    let wiped = Declined { reason: DeclineReason::Wiped, current: None, accepted: generation(0), end: 0 };
    world.report(id, &Report::Declined(wiped)).unwrap();
    assert_eq!(leader(&world, id), None);
    let says = |number: u128, accepted: u32, end: i64| promotion::Standing {
        log: log(number),
        accepted: generation(accepted),
        end,
        doubt: false,
    };
    let told = Standings::from([(BrokerId(2), says(22, 1, 9)), (BrokerId(3), says(33, 1, 12))]);
    let standings = [(id, told)].into();
    let (decisions, refused) = begin(&world.view, &[id].into(), Election::Unclean, &standings);
    assert!(refused.is_empty());
    assert!(world.commit(&decisions[0]));
    let named = world.state(id).leader.unwrap();
    assert_eq!((named.broker, named.log), (BrokerId(3), Some(log(33))));
}

#[test]
fn many_are_moved_slice_by_slice() {
    let mut world = World::with_brokers(2);
    let assignments = (0..200).map(|index| (index, brokers(&[1, 2]))).collect();
    let new = NewTopic { name: "t".to_owned(), assignments: Some(assignments), ..NewTopic::default() };
    let topic = world.create(new).unwrap().id;
    let ids: BTreeSet<PartitionId> = (0..200).map(|index| PartitionId { topic, index }).collect();
    for id in &ids {
        open(&mut world, *id);
        level(&mut world, *id, &[2]);
    }
    world.fence(1);
    world.settle();
    for id in &ids {
        open(&mut world, *id);
    }
    world.register(1);
    world.settle();
    let mut rounds = 0;
    loop {
        let (decisions, refused) = begin(&world.view, &ids, Election::Preferred, &BTreeMap::new());
        if refused.len() == 200 {
            assert!(refused.values().all(|reason| *reason == NotElected::NotNeeded));
            break;
        }
        for decision in decisions {
            assert!(world.commit(&decision));
        }
        assert!(world.give_up(2) <= moves::SLICE);
        rounds += 1;
    }
    assert_eq!(rounds, 2);
}
