//! What placements have in common, whatever the brokers, racks, factors and topics.

use std::collections::BTreeSet;

use proptest::prelude::*;

use super::*;
use crate::testing::World;
use crate::topics::NewTopic;

fn loads(racks: &[Option<&str>]) -> Loads {
    let brokers = racks
        .iter()
        .zip(1..)
        .map(|(rack, id)| (BrokerId(id), Load { rack: rack.map(str::to_owned), ..Load::default() }));
    Loads { brokers: brokers.collect(), topic: None }
}

fn topic(number: u128) -> TopicId {
    TopicId(felix_protocol::ids::Uuid::from_u128(number))
}

fn place_topic(loads: &mut Loads, number: u128, partitions: i32, count: usize) -> Vec<Vec<BrokerId>> {
    let (topic, view) = (topic(number), View::default());
    (0..partitions).map(|index| loads.place(&view, PartitionId { topic, index }, count)).collect()
}

/// Between the broker that carries most and the one that carries least.
fn spread(loads: &Loads, of: impl Fn(&Load) -> usize) -> usize {
    let live = || loads.brokers.values().filter(|load| load.standing == Standing::Live).map(&of);
    live().max().unwrap() - live().min().unwrap()
}

#[test]
fn replicas_and_leaders_are_even_within_one() {
    for brokers in 1..8_usize {
        for count in 1..=brokers {
            let mut loads = loads(&vec![None; brokers]);
            let view = View::default();
            for index in 0..97 {
                loads.place(&view, PartitionId { topic: topic(5), index }, count);
                let seen = || format!("{brokers} brokers, factor {count}, {index}: {loads:?}");
                assert!(spread(&loads, |load| load.all.replicas) <= 1, "{}", seen());
                assert!(spread(&loads, |load| load.all.preferred) <= 1, "{}", seen());
            }
        }
    }
}

#[test]
fn a_broker_that_is_new_gets_its_share_of_what_is_new() {
    let mut loads = loads(&[None, None, None]);
    place_topic(&mut loads, 1, 60, 2);
    loads.brokers.insert(BrokerId(4), Load::default());
    // It carries less than all others, but a topic is not to sit on it alone.
    let placed = place_topic(&mut loads, 2, 8, 2);
    let on_it = placed.iter().filter(|replicas| replicas.contains(&BrokerId(4))).count();
    assert_eq!(on_it, 4);
    assert_eq!(loads.brokers[&BrokerId(4)].all.preferred, 2);
    // Where one topic does not decide, the cluster does.
    let single = (3..23).map(|number| place_topic(&mut loads, number, 1, 1)[0][0]);
    assert!(single.into_iter().all(|broker| broker == BrokerId(4)));
}

#[test]
fn a_topic_that_is_widened_goes_where_it_is_not() {
    let mut world = World::with_brokers(2);
    let new = NewTopic { name: "t".to_owned(), partitions: 4, replication_factor: 1, ..NewTopic::default() };
    world.create(new).unwrap();
    world.register(3);
    world.register(4);
    let (decision, id) = crate::topics::widen(&world.view, "t", 8, None).unwrap();
    assert!(world.commit(&decision));
    world.settle();
    let placed: Vec<i32> = world.view.partitions_of(&id).skip(4).map(|it| it.state.replicas[0].0).collect();
    assert_eq!(placed.iter().filter(|id| **id == 3).count(), 2, "{placed:?}");
    assert_eq!(placed.iter().filter(|id| **id == 4).count(), 2, "{placed:?}");
}

#[test]
fn brokers_that_leave_or_are_gone_get_nothing_while_others_suffice() {
    let mut loads = loads(&[None, None, None, None]);
    loads.brokers.get_mut(&BrokerId(1)).unwrap().standing = Standing::Draining;
    loads.brokers.get_mut(&BrokerId(2)).unwrap().standing = Standing::Fenced;
    for replicas in place_topic(&mut loads, 1, 20, 2) {
        assert!(replicas.iter().all(|id| id.0 > 2), "{replicas:?}");
    }
    for replicas in place_topic(&mut loads, 2, 20, 4) {
        assert!(replicas[0].0 > 2, "they do not lead either: {replicas:?}");
    }
    for load in loads.brokers.values_mut() {
        load.standing = Standing::Fenced;
    }
    assert_eq!(place_topic(&mut loads, 3, 1, 1), [Vec::new()]);
}

proptest! {
    #[test]
    fn any_topics_are_even_each_and_together(
        brokers in 1..9_usize,
        topics in prop::collection::vec((1..12, 1..5_usize), 1..40),
    ) {
        let mut loads = loads(&vec![None; brokers]);
        for (number, (partitions, factor)) in topics.into_iter().enumerate() {
            let placed = place_topic(&mut loads, number as u128, partitions, factor);
            for replicas in placed {
                prop_assert_eq!(replicas.len(), factor.min(brokers));
                let distinct: BTreeSet<_> = replicas.iter().collect();
                prop_assert_eq!(distinct.len(), replicas.len());
            }
            prop_assert!(spread(&loads, |load| load.topic.replicas) <= 1);
            prop_assert!(spread(&loads, |load| load.topic.preferred) <= 2);
            prop_assert!(spread(&loads, |load| load.all.replicas) <= 1);
            // Where topics have different factors, even replicas come before even leaders, of whom some are then owed; that
            // does not add up with the number of topics.
            prop_assert!(spread(&loads, |load| load.all.preferred) <= 4);
        }
    }

    /// As many racks as there can be, and no rack twice before all have one.
    #[test]
    fn replicas_are_spread_over_racks(
        racks in prop::collection::vec(prop::option::of(0..4_usize), 1..9),
        partitions in 1..30,
        factor in 1..9_usize,
    ) {
        let names = ["a", "b", "c", "d"];
        let named: Vec<_> = racks.iter().map(|rack| rack.map(|rack| names[rack])).collect();
        let mut loads = loads(&named);
        let rack_of = |id: &BrokerId| racks[usize::try_from(id.0).unwrap() - 1];
        let there: BTreeSet<usize> = racks.iter().flatten().copied().collect();
        for replicas in place_topic(&mut loads, 1, partitions, factor) {
            prop_assert_eq!(replicas.len(), factor.min(racks.len()));
            let used: Vec<usize> = replicas.iter().filter_map(rack_of).collect();
            let distinct: BTreeSet<usize> = used.iter().copied().collect();
            // A rack is shared only where every rack has one, and every broker without a rack.
            let unracked = replicas.len() - used.len();
            if distinct.len() < used.len() {
                prop_assert_eq!(&distinct, &there);
                prop_assert_eq!(unracked, racks.len() - racks.iter().flatten().count());
            }
        }
        // Racks of one size come out even.
        let sizes: BTreeSet<usize> = there.iter().map(|rack| racks.iter().flatten().filter(|it| *it == rack).count()).collect();
        if sizes.len() == 1 && racks.iter().all(Option::is_some) {
            prop_assert!(spread(&loads, |load| load.all.replicas) <= 2, "{:?}", loads);
            prop_assert!(spread(&loads, |load| load.all.preferred) <= 2, "{:?}", loads);
        }
    }

    #[test]
    fn everyone_comes_to_the_same(brokers in 1..9_usize, partitions in 1..30, factor in 1..5_usize) {
        let (mut one, mut other) = (loads(&vec![None; brokers]), loads(&vec![None; brokers]));
        prop_assert_eq!(place_topic(&mut one, 1, partitions, factor), place_topic(&mut other, 1, partitions, factor));
    }
}
