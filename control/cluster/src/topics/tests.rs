use felix_protocol::ids::SessionId;

use super::*;
use crate::controller::Controller;
use crate::invariants::check_view;
use crate::testing::{World, brokers};

fn topic(name: &str, partitions: i32) -> NewTopic {
    NewTopic { name: name.to_owned(), partitions, replication_factor: 1, ..NewTopic::default() }
}

fn assigned(name: &str, assignments: &[(i32, &[i32])]) -> NewTopic {
    let assignments = assignments.iter().map(|(at, ids)| (*at, brokers(ids))).collect();
    NewTopic { assignments: Some(assignments), partitions: -1, replication_factor: -1, ..topic(name, 0) }
}

#[test]
fn names_follow_kafkas_rules() {
    let longest = "x".repeat(MAX_NAME_BYTES);
    for good in ["a", "A.b_c-9", "...", "__consumer_offsets", "-", longest.as_str()] {
        assert_eq!(check_name(good), Ok(()), "{good}");
    }
    assert_eq!(check_name(""), Err(NameError::Empty));
    assert_eq!(check_name(".."), Err(NameError::Dots("..".to_owned())));
    assert_eq!(check_name(&"x".repeat(250)), Err(NameError::Long(250)));
    for bad in ["a b", "a/b", "a,b", "\u{e9}", "a\0", "a:b", "a\n"] {
        assert!(matches!(check_name(bad), Err(NameError::Letters(_))), "{bad}");
    }
}

#[test]
fn a_topic_needs_a_free_name_partitions_and_brokers() {
    let mut world = World::with_brokers(2);
    let made = world.create(topic("a.b", 2)).unwrap();
    let refused = |world: &World, new: NewTopic| create(&world.view, TopicId::random(), &new).unwrap_err();
    assert_eq!(refused(&world, topic("a.b", 1)), CreateRefused::Exists("a.b".to_owned()));
    let collides = CreateRefused::Collides { name: "a_b".to_owned(), with: "a.b".to_owned() };
    assert_eq!(refused(&world, topic("a_b", 1)), collides);
    assert_eq!(refused(&world, topic("c", 0)), CreateRefused::Partitions(0));
    assert_eq!(refused(&world, topic("c", -1)), CreateRefused::Partitions(-1));
    assert_eq!(refused(&world, topic("c", 10_001)), CreateRefused::TooManyPartitions(10_001));
    assert_eq!(
        refused(&world, topic(CLUSTER_METADATA, 1)),
        CreateRefused::Reserved(CLUSTER_METADATA.to_owned())
    );
    for asked in [0, -2, 3] {
        let new = NewTopic { replication_factor: asked, ..topic("c", 1) };
        assert_eq!(refused(&world, new), CreateRefused::ReplicationFactor { asked, available: 2 });
    }
    assert_eq!((made.partitions, made.replication_factor), (2, 1));
    check_view(&world.view).unwrap();
}

#[test]
fn explicit_assignments_are_taken_as_they_are_or_refused() {
    let mut world = World::with_brokers(3);
    let refused = |new: NewTopic| {
        let refused = create(&world.view, TopicId::random(), &new).unwrap_err();
        let CreateRefused::Assignment(problem) = refused else { panic!("{refused}") };
        problem
    };
    assert_eq!(refused(assigned("a", &[(1, &[1])])), AssignmentError::Holes { first: 0, missing: 0 });
    assert_eq!(
        refused(assigned("a", &[(0, &[1]), (2, &[1])])),
        AssignmentError::Holes { first: 0, missing: 1 }
    );
    assert_eq!(refused(assigned("a", &[(0, &[])])), AssignmentError::Empty(0));
    let twice = AssignmentError::Twice { partition: 0, broker: BrokerId(1) };
    assert_eq!(refused(assigned("a", &[(0, &[1, 1])])), twice);
    let unknown = AssignmentError::Unknown { partition: 0, broker: BrokerId(9) };
    assert_eq!(refused(assigned("a", &[(0, &[9])])), unknown);
    let uneven = AssignmentError::Uneven { partition: 1, has: 1, others: 2 };
    assert_eq!(refused(assigned("a", &[(0, &[1, 2]), (1, &[1])])), uneven);
    let none = create(&world.view, TopicId::random(), &assigned("a", &[])).unwrap_err();
    assert_eq!(none, CreateRefused::Partitions(0));

    let made = world.create(assigned("a", &[(0, &[3, 1]), (1, &[2, 3])])).unwrap();
    assert_eq!((made.partitions, made.replication_factor), (2, 2));
    let placed: Vec<_> = world.view.partitions_of(&made.id).map(|it| it.state.replicas.clone()).collect();
    assert_eq!(placed, [brokers(&[3, 1]), brokers(&[2, 3])]);
    let leaders: Vec<_> = world.view.partitions_of(&made.id).filter_map(|it| it.leader_id()).collect();
    assert_eq!(leaders, brokers(&[3, 2]), "the first replica leads");

    let widened =
        |world: &World, given: &[Vec<BrokerId>]| widen(&world.view, "a", 3, Some(given)).map(|_| ());
    let count = WidenRefused::Assignment(AssignmentError::Count { given: 2, wanted: 1 });
    assert_eq!(widened(&world, &[brokers(&[1, 2]), brokers(&[1, 2])]), Err(count));
    let uneven = WidenRefused::Assignment(AssignmentError::Uneven { partition: 2, has: 1, others: 2 });
    assert_eq!(widened(&world, &[brokers(&[1])]), Err(uneven));
    let (decision, _) = widen(&world.view, "a", 3, Some(&[brokers(&[2, 1])])).unwrap();
    assert!(world.commit(&decision));
    world.settle();
    let last = world.view.partitions_of(&made.id).last().unwrap().state.replicas.clone();
    assert_eq!(last, brokers(&[2, 1]));
}

#[test]
fn of_two_brokers_that_create_one_name_one_wins() {
    for (one, other) in [("orders", "orders"), ("or.ders", "or_ders")] {
        let mut world = World::with_brokers(1);
        let (first, made) = create(&world.view, TopicId::random(), &topic(one, 2)).unwrap();
        let (second, _) = create(&world.view, TopicId::random(), &topic(other, 3)).unwrap();
        assert!(world.commit(&first));
        assert!(!world.commit(&second));
        world.settle();
        assert_eq!(world.view.topic_count(), 1);
        assert_eq!(world.view.partitions_of(&made.id).count(), 2);
        check_view(&world.view).unwrap();
    }
}

#[test]
fn a_topic_is_deleted_with_its_partitions_and_its_name_is_free() {
    let mut world = World::with_brokers(1);
    let made = world.create(topic("orders", 3)).unwrap();
    let (deletion, gone) = delete(&world.view, &TopicRef::Name("orders".to_owned())).unwrap();
    assert_eq!((gone.id, gone.name.as_str()), (made.id, "orders"));
    // An edit that was decided before the deletion does not bring the topic back.
    let (edit, _) = widen(&world.view, "orders", 4, None).unwrap();
    // Nor does a controller that has not heard of it yet fill anything in.
    let behind = world.view.clone();
    assert!(world.commit(&deletion));
    assert!(!world.commit(&edit));
    let mut controller = Controller::default();
    controller.note_all(&behind);
    assert_eq!(controller.decide(&behind, &Default::default(), 100), []);
    world.settle();
    assert_eq!((world.view.topic_count(), world.view.partition_count()), (0, 0));
    assert_eq!(delete(&world.view, &TopicRef::Id(made.id)), Err(UnknownTopic));
    let again = world.create(topic("orders", 1)).unwrap();
    assert_ne!(again.id, made.id);
    check_view(&world.view).unwrap();
}

#[test]
fn a_widened_topic_keeps_its_partitions() {
    let mut world = World::with_brokers(2);
    let made = world.create(NewTopic { replication_factor: 2, ..topic("orders", 2) }).unwrap();
    let refused = |total| widen(&world.view, "orders", total, None).unwrap_err();
    assert_eq!(refused(2), WidenRefused::NotMore { current: 2, asked: 2 });
    assert_eq!(refused(-1), WidenRefused::NotMore { current: 2, asked: -1 });
    assert_eq!(refused(20_000), WidenRefused::TooManyPartitions(19_998));
    assert_eq!(widen(&world.view, "other", 3, None).unwrap_err(), WidenRefused::Unknown(UnknownTopic));
    let before: Vec<_> = world.view.partitions_of(&made.id).cloned().collect();
    let (decision, _) = widen(&world.view, "orders", 5, None).unwrap();
    world.commit(&decision);
    world.settle();
    let after: Vec<_> = world.view.partitions_of(&made.id).cloned().collect();
    assert_eq!((after.len(), &after[..2]), (5, &before[..]));
    world.fence(2);
    let refused = widen(&world.view, "orders", 6, None).unwrap_err();
    assert_eq!(refused, WidenRefused::ReplicationFactor { asked: 2, available: 1 });
}

#[test]
fn a_view_answers_by_name_and_by_id() {
    let mut world = World::with_brokers(1);
    let made = world.create(topic("orders", 1)).unwrap();
    let view = &world.view;
    assert_eq!(view.topic_named("orders").map(|it| it.id), Some(made.id));
    assert_eq!(view.topics_after("orders").count(), 1);
    assert_eq!(view.topics_after("orders ").count(), 0);
    assert!(view.may_lead(BrokerId(1), world.session(1)));
    assert!(!view.may_lead(BrokerId(1), SessionId(0)));
    assert!(!view.may_lead(BrokerId(2), world.session(1)));
}
