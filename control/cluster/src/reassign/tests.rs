//! Stories: a partition moves, and everything that may get in its way.

use felix_protocol::ids::TopicId;

use super::*;
use crate::eligible::Report;
use crate::state::{Last, Pair};
use crate::testing::{World, brokers, generation, log, pair};
use crate::topics::NewTopic;

/// Six brokers, a partition on `replicas`.
fn placed(replicas: &[i32]) -> (World, PartitionId) {
    let mut world = World::with_brokers(6);
    let assignments = [(0, brokers(replicas))].into();
    let new = NewTopic { name: "t".to_owned(), assignments: Some(assignments), ..NewTopic::default() };
    let id = PartitionId { topic: world.create(new).unwrap().id, index: 0 };
    (world, id)
}

/// The same, opened by broker 1 with log 1.
fn opened(replicas: &[i32]) -> (World, PartitionId) {
    let (mut world, id) = placed(replicas);
    world.report(id, &Report::Opened(log(1))).unwrap();
    (world, id)
}

fn level(world: &mut World, id: PartitionId, pairs: &[Pair]) {
    let pairs: BTreeSet<_> = pairs.iter().copied().collect();
    world.report(id, &Report::Eligible { pairs, dead: BTreeSet::new(), need: 1 }).unwrap();
}

fn begin_to(world: &mut World, id: PartitionId, target: &[i32]) {
    let decision = begin(&world.view, id, &brokers(target), true).unwrap().unwrap();
    assert!(world.commit(&decision));
    world.settle();
}

fn cancel_it(world: &mut World, id: PartitionId) {
    let decision = cancel(&world.view, id).unwrap().unwrap();
    assert!(world.commit(&decision));
    world.settle();
}

/// Replicas, those added, those removed.
fn lists(world: &World, id: PartitionId) -> [Vec<i32>; 3] {
    let numbers = |ids: &[BrokerId]| ids.iter().map(|id| id.0).collect();
    let state = world.state(id);
    [numbers(&state.replicas), numbers(&state.adding), numbers(&state.removing)]
}

#[test]
fn one_replica_moves_when_its_copy_is_level() {
    let (mut world, id) = opened(&[1]);
    begin_to(&mut world, id, &[2]);
    assert_eq!(lists(&world, id), [vec![2, 1], vec![2], vec![1]]);
    assert_eq!(list(&world.view).map(|partition| partition.id).collect::<Vec<_>>(), [id]);
    assert_eq!(crate::eligible::need(world.state(id), None), 1, "the staged copy does not count");
    assert_eq!(world.give_up(1), 0, "there is nobody to hand over to yet");
    level(&mut world, id, &[pair(2, 22)]);
    // Now the leader is asked for it, and the new one completes the move by opening.
    assert_eq!(world.give_up(1), 1);
    assert_eq!(world.state(id).leader.unwrap().broker, BrokerId(2));
    assert_eq!(lists(&world, id), [vec![2, 1], vec![2], vec![1]]);
    world.report(id, &Report::Opened(log(22))).unwrap();
    assert_eq!(lists(&world, id), [vec![2], vec![], vec![]]);
    let state = world.state(id);
    assert_eq!(state.generation, generation(2));
    assert_eq!(state.last, Last::Opened { pair: pair(2, 22), generation: generation(2) });
    assert!(state.eligible.is_empty());
    assert_eq!(list(&world.view).count(), 0);
}

#[test]
fn a_partition_that_nobody_wrote_to_moves_at_once() {
    let (mut world, id) = placed(&[1]);
    begin_to(&mut world, id, &[2, 3]);
    assert_eq!(lists(&world, id), [vec![2, 3], vec![], vec![]]);
    // Broker 1 had been named, and is not any more.
    assert_eq!(world.state(id).leader.unwrap().broker, BrokerId(2));
    assert_eq!(world.state(id).generation, generation(2));
    // Not to where nobody is, though.
    for gone in [4, 5] {
        world.fence(gone);
    }
    begin_to(&mut world, id, &[4, 5]);
    assert_eq!(lists(&world, id), [vec![4, 5, 2, 3], vec![4, 5], vec![2, 3]]);
    world.register(5);
    world.settle();
    assert_eq!(lists(&world, id), [vec![4, 5], vec![], vec![]]);
    assert_eq!(world.state(id).leader.unwrap().broker, BrokerId(5));
}

#[test]
fn a_move_waits_for_every_new_copy_that_lives() {
    let (mut world, id) = opened(&[1, 2, 3]);
    level(&mut world, id, &[pair(2, 2), pair(3, 3)]);
    begin_to(&mut world, id, &[1, 4, 5]);
    assert_eq!(lists(&world, id), [vec![1, 4, 5, 2, 3], vec![4, 5], vec![2, 3]]);
    level(&mut world, id, &[pair(2, 2), pair(3, 3), pair(4, 4)]);
    assert_eq!(lists(&world, id)[1], [4, 5], "broker 5 is not level");
    world.fence(5);
    world.settle();
    assert_eq!(lists(&world, id), [vec![1, 4, 5], vec![], vec![]], "and does not live");
    assert_eq!(world.state(id).eligible, [pair(4, 4)].into(), "{:?}", world.state(id));
}

#[test]
fn fewer_replicas_are_left_only_if_they_suffice() {
    let (mut world, id) = opened(&[1, 2, 3, 4, 5]);
    level(&mut world, id, &[pair(4, 4), pair(5, 5)]);
    for gone in [2, 3] {
        world.fence(gone);
    }
    begin_to(&mut world, id, &[1, 2, 3]);
    assert_eq!(lists(&world, id)[2], [4, 5], "broker 1 alone is no majority of three");
    world.register(2);
    world.settle();
    level(&mut world, id, &[pair(4, 4), pair(5, 5), pair(2, 2)]);
    assert_eq!(lists(&world, id), [vec![1, 2, 3], vec![], vec![]]);
    assert_eq!(world.state(id).eligible, [pair(2, 2)].into());
}

#[test]
fn what_the_operator_set_is_what_suffices() {
    let (mut world, id) = opened(&[1, 2, 3]);
    level(&mut world, id, &[pair(2, 2), pair(3, 3)]);
    let set = |world: &mut World, value: &str| {
        let topic = world.view.topic(&id.topic).unwrap();
        let key = Key::Topic(topic.id);
        let mut after = topic.value();
        after.overrides.insert("min.insync.replicas".to_owned(), value.to_owned());
        let decision = Decision::new().at(key.clone(), topic.revision).put(key, &after);
        assert!(world.commit(&decision));
        world.settle();
    };
    set(&mut world, "3");
    world.fence(4);
    begin_to(&mut world, id, &[1, 2, 4]);
    assert_eq!(lists(&world, id)[2], [3], "two of three are fewer than the operator asks for");
    set(&mut world, "2");
    assert_eq!(lists(&world, id), [vec![1, 2, 4], vec![], vec![]]);
}

#[test]
fn another_order_is_another_preferred_leader_and_nothing_else() {
    let (mut world, id) = opened(&[1, 2]);
    begin_to(&mut world, id, &[2, 1]);
    assert_eq!(lists(&world, id), [vec![2, 1], vec![], vec![]]);
    assert_eq!(world.state(id).leader.unwrap().broker, BrokerId(1));
    assert_eq!(begin(&world.view, id, &brokers(&[2, 1]), true), Ok(None));
}

#[test]
fn cancelled_before_a_copy_is_level_it_is_over_at_once() {
    let (mut world, id) = opened(&[1, 2]);
    // Broker 2 lags, which is why the operator gives up.
    begin_to(&mut world, id, &[3, 4]);
    cancel_it(&mut world, id);
    assert_eq!(lists(&world, id), [vec![1, 2], vec![], vec![]]);
    assert_eq!(cancel(&world.view, id), Err(Refused::NotInProgress));
}

#[test]
fn cancelled_late_it_goes_all_the_way_back() {
    let (mut world, id) = opened(&[1]);
    begin_to(&mut world, id, &[2]);
    level(&mut world, id, &[pair(2, 22)]);
    world.give_up(1);
    // Broker 2 leads, and has not opened: the copy on 1 is still the one that counts.
    cancel_it(&mut world, id);
    assert_eq!(lists(&world, id), [vec![1, 2], vec![2], vec![2]]);
    assert_eq!(cancel(&world.view, id), Ok(None), "it is being cancelled");
    world.report(id, &Report::Opened(log(22))).unwrap();
    assert_eq!(world.state(id).eligible, [pair(1, 1)].into());
    assert_eq!(world.give_up(2), 1);
    world.report(id, &Report::Opened(log(1))).unwrap();
    assert_eq!(lists(&world, id), [vec![1], vec![], vec![]]);
    assert_eq!(world.state(id).generation, generation(3));
}

#[test]
fn a_move_is_replaced_by_another() {
    let (mut world, id) = opened(&[1, 2]);
    level(&mut world, id, &[pair(2, 2)]);
    begin_to(&mut world, id, &[3, 4]);
    level(&mut world, id, &[pair(2, 2), pair(4, 4)]);
    begin_to(&mut world, id, &[1, 5]);
    // Broker 3 had only begun; broker 4's copy counts by now, and leaves with the others.
    assert_eq!(lists(&world, id), [vec![1, 5, 4, 2], vec![5, 4], vec![4, 2]]);
    assert_eq!(old_set(world.state(id)), brokers(&[1, 2]));
    assert_eq!(new_set(world.state(id)), brokers(&[1, 5]));
    assert_eq!(world.view.replication_factor(&id.topic), 2);
    assert_eq!(world.view.counted_replicas(&id.topic), 2);
    level(&mut world, id, &[pair(2, 2), pair(4, 4), pair(5, 5)]);
    assert_eq!(lists(&world, id), [vec![1, 5], vec![], vec![]]);
    assert_eq!(world.state(id).eligible, [pair(5, 5)].into());
}

#[test]
fn what_is_being_added_does_not_count_until_it_is_there() {
    let (mut world, id) = opened(&[1]);
    begin_to(&mut world, id, &[2, 3, 4]);
    assert_eq!(world.view.replication_factor(&id.topic), 3);
    assert_eq!(world.view.counted_replicas(&id.topic), 1);
    level(&mut world, id, &[pair(2, 22), pair(3, 33), pair(4, 44)]);
    world.give_up(1);
    world.report(id, &Report::Opened(log(22))).unwrap();
    level(&mut world, id, &[pair(3, 33), pair(4, 44)]);
    assert_eq!(lists(&world, id), [vec![2, 3, 4], vec![], vec![]]);
    assert_eq!(world.view.counted_replicas(&id.topic), 3);
}

#[test]
fn a_leader_that_dies_on_the_way_is_followed_by_any_eligible_copy() {
    let (mut world, id) = opened(&[1, 2]);
    level(&mut world, id, &[pair(2, 2)]);
    begin_to(&mut world, id, &[3, 4]);
    world.fence(1);
    world.settle();
    assert_eq!(world.state(id).leader.unwrap().broker, BrokerId(2), "the staged copies are not level");
    world.report(id, &Report::Opened(log(2))).unwrap();
    level(&mut world, id, &[pair(1, 1), pair(3, 3), pair(4, 4)]);
    world.give_up(2);
    assert_eq!(world.state(id).leader.unwrap().broker, BrokerId(3), "the first of the new set");
    world.report(id, &Report::Opened(log(3))).unwrap();
    assert_eq!(lists(&world, id), [vec![3, 4], vec![], vec![]]);
    assert_eq!(world.state(id).eligible, [pair(4, 4)].into());
}

#[test]
fn lists_that_cannot_be_are_refused() {
    let (world, id) = opened(&[1, 2]);
    let refused = |target: &[i32], factor| begin(&world.view, id, &brokers(target), factor).unwrap_err();
    assert_eq!(refused(&[], true), Refused::Target(TargetError::Empty));
    assert_eq!(refused(&[3, 3], true), Refused::Target(TargetError::Twice(BrokerId(3))));
    assert_eq!(refused(&[3, 9], true), Refused::Target(TargetError::Unregistered(BrokerId(9))));
    assert_eq!(refused(&[3, -1], true), Refused::Target(TargetError::Unregistered(BrokerId(-1))));
    assert_eq!(refused(&[3], false), Refused::Factor { from: 2, to: 1 });
    assert_eq!(cancel(&world.view, id), Err(Refused::NotInProgress));
    let stranger = PartitionId { topic: TopicId::random(), index: 0 };
    assert_eq!(begin(&world.view, stranger, &brokers(&[1]), true), Err(Refused::Unknown));
    assert_eq!(cancel(&world.view, stranger), Err(Refused::Unknown));
}

#[test]
fn what_was_decided_before_something_changed_does_not_land() {
    let (mut world, id) = opened(&[1, 2]);
    let decided = begin(&world.view, id, &brokers(&[1, 3]), true).unwrap().unwrap();
    level(&mut world, id, &[pair(2, 2)]);
    assert!(!world.commit(&decided));
}
