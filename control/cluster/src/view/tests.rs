//! What clients are told of partitions whose brokers come and go.

use std::collections::BTreeSet;

use felix_protocol::ids::{BrokerId, PartitionId, TopicId, Uuid};

use crate::eligible::Report;
use crate::testing::{World, brokers, log, pair};
use crate::topics::NewTopic;
use crate::view::Changes;

/// Leader, in sync, promotable though down, and down.
type Told = (Option<i32>, Vec<i32>, Vec<i32>, Vec<i32>);

fn told(world: &World, id: PartitionId) -> Told {
    let partition = world.view.partition(&id).unwrap();
    let plain = |ids: Vec<BrokerId>| ids.into_iter().map(|id| id.0).collect();
    let view = &world.view;
    (
        view.leader(partition).map(|id| id.0),
        plain(view.isr(partition)),
        plain(view.elr(partition)),
        plain(view.offline(partition)),
    )
}

fn placed(world: &mut World, replicas: &[i32]) -> PartitionId {
    let assignments = Some([(0, brokers(replicas))].into());
    let name = format!("t{}", world.view.topic_count());
    let topic = world.create(NewTopic { name, assignments, ..NewTopic::default() }).unwrap().id;
    PartitionId { topic, index: 0 }
}

#[test]
fn in_sync_are_the_leader_and_those_eligible_that_live() {
    let mut world = World::with_brokers(3);
    let id = placed(&mut world, &[2, 1, 3]);
    world.report(id, &Report::Opened(log(2))).unwrap();
    assert_eq!(told(&world, id), (Some(2), vec![2], vec![], vec![]));
    let pairs: BTreeSet<_> = [pair(1, 1), pair(3, 3)].into();
    world.report(id, &Report::Eligible { pairs, dead: BTreeSet::new(), need: 2 }).unwrap();
    assert_eq!(told(&world, id), (Some(2), vec![2, 1, 3], vec![], vec![]));
    world.fence(3);
    assert_eq!(told(&world, id), (Some(2), vec![2, 1], vec![3], vec![3]));
    // Nobody has taken its place yet, and clients are not sent to it all the same.
    world.fence(2);
    assert_eq!(told(&world, id), (None, vec![1], vec![2, 3], vec![2, 3]));
    world.settle();
    assert_eq!(told(&world, id), (Some(1), vec![1], vec![2, 3], vec![2, 3]));
}

#[test]
fn a_lost_only_replica_is_promotable_and_down() {
    let mut world = World::with_brokers(2);
    let id = placed(&mut world, &[2]);
    world.report(id, &Report::Opened(log(2))).unwrap();
    world.drain(2);
    assert_eq!(told(&world, id), (Some(2), vec![2], vec![], vec![]));
    world.resign(id, &[]).unwrap();
    assert_eq!(told(&world, id), (None, vec![], vec![2], vec![]));
    world.fence(2);
    world.settle();
    assert_eq!(told(&world, id), (None, vec![], vec![2], vec![2]));
    // Another life of it is named at once; a broker that was removed for good is as one that is down.
    world.register(2);
    assert_eq!(told(&world, id).0, None);
    world.settle();
    assert_eq!(told(&world, id), (Some(2), vec![2], vec![], vec![]));
    world.fence(2);
    world.settle();
    let removed = crate::registration::unregister(&world.view, BrokerId(2)).unwrap();
    assert!(world.commit(&removed));
    assert_eq!(told(&world, id), (None, vec![], vec![2], vec![2]));
}

#[test]
fn administrators_are_sent_to_one_that_stays() {
    let mut world = World::with_brokers(3);
    assert_eq!(world.view.controller(), Some(BrokerId(1)));
    world.drain(1);
    assert_eq!(world.view.controller(), Some(BrokerId(2)));
    world.fence(2);
    world.fence(3);
    assert_eq!(world.view.controller(), Some(BrokerId(1)), "better than nobody");
    world.fence(1);
    assert_eq!(world.view.controller(), None);
}

#[test]
fn a_partition_that_has_changed_and_is_to_be_tried_again_is_met_once() {
    let partition = |index| PartitionId { topic: TopicId(Uuid::from_u128(1)), index };
    let mut changes = Changes { partitions: vec![partition(2), partition(0)], ..Changes::default() };
    changes.look_at([partition(2), partition(1), partition(2)]);
    changes.look_at([]);
    assert_eq!(changes.partitions, [partition(0), partition(1), partition(2)]);
}
