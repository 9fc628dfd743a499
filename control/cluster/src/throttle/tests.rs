//! Stories of throttled moves.

use super::*;
use crate::eligible::Report;
use crate::overrides::{self, ConfigTarget};
use crate::reassign;
use crate::testing::{World, brokers, log, pair};
use crate::topics::NewTopic;
use crate::view::ConfigScope;

fn overrides(pairs: &[(&str, &str)]) -> Overrides {
    pairs.iter().map(|(name, value)| ((*name).to_owned(), (*value).to_owned())).collect()
}

/// Four brokers, and a topic on them whose partitions are led by their first brokers.
fn world(placed: &[&[i32]], configs: &[(&str, &str)]) -> (World, Vec<PartitionId>) {
    let mut world = World::with_brokers(4);
    let assignments = (0..).zip(placed).map(|(at, ids)| (at, brokers(ids))).collect();
    let new = NewTopic {
        name: "t".to_owned(),
        assignments: Some(assignments),
        overrides: overrides(configs),
        ..NewTopic::default()
    };
    let topic = world.create(new).unwrap().id;
    let ids = (0..).zip(placed).map(|(index, _)| PartitionId { topic, index });
    let ids: Vec<PartitionId> = ids.collect();
    for id in &ids {
        world.report(*id, &Report::Opened(log(1))).unwrap();
    }
    (world, ids)
}

/// Sets how much a broker may be sent.
fn receive(world: &mut World, broker: BrokerId, rate: &str) {
    let target = ConfigTarget::Scope(ConfigScope::Broker(broker));
    let set = overrides(&[("follower.replication.throttled.rate", rate)]);
    let decision = overrides::decide(&world.view, &target, &mut |_| Ok(set.clone())).unwrap().unwrap();
    assert!(world.commit(&decision));
}

fn throttled(world: &World) -> Throttled {
    let mut throttled = Throttled::default();
    let topics: Vec<TopicId> = world.view.topics().map(|topic| topic.id).collect();
    throttled.take_in(&world.view, &topics);
    throttled
}

#[test]
fn lists_name_copies_or_all_of_them() {
    let configs = [(SENDING, "0:1, 1:2"), (RECEIVING, "*")];
    let (world, ids) = world(&[&[1], &[1]], &configs);
    let throttled = throttled(&world);
    let sends = |at: usize, broker| throttled.sends(&ids[at], BrokerId(broker));
    assert_eq!([sends(0, 1), sends(0, 2), sends(1, 1), sends(1, 2)], [true, false, false, true]);
    assert!(throttled.receives(&ids[1], BrokerId(4)));
    let other = PartitionId { topic: TopicId::random(), index: 0 };
    assert!(!throttled.sends(&other, BrokerId(1)) && !throttled.receives(&other, BrokerId(1)));
    assert_eq!(Listed::parse(""), None);
    assert_eq!(Listed::parse("x"), None);
}

#[test]
fn what_is_not_said_any_more_is_forgotten() {
    let (world, ids) = world(&[&[1]], &[(SENDING, "0:1")]);
    let mut throttled = throttled(&world);
    assert!(!throttled.is_empty());
    throttled.take_in(&View::default(), [&ids[0].topic]);
    assert!(throttled.is_empty(), "the topic is gone");
}

#[test]
fn leaders_share_what_a_follower_may_be_sent() {
    let (mut world, ids) = world(&[&[1], &[2], &[2], &[3]], &[(RECEIVING, "0:4,1:4,2:4")]);
    let throttled = throttled(&world);
    let follower = BrokerId(4);
    assert_eq!(throttled.share(&world.view, follower), None, "no rate was set");
    receive(&mut world, follower, "1000");
    assert_eq!(throttled.share(&world.view, follower), Some(1000), "nobody has anything to send");
    assert_eq!(throttled.share(&world.view, BrokerId(1)), None, "another broker");
    for id in &ids {
        let leads = world.state(*id).replicas[0].0;
        let decision = reassign::begin(&world.view, *id, &brokers(&[leads, 4]), true).unwrap().unwrap();
        assert!(world.commit(&decision));
    }
    assert_eq!(throttled.share(&world.view, follower), Some(500), "brokers 1 and 2; 3's is not listed");
    let pairs: BTreeSet<_> = [pair(4, 44)].into();
    world.report(ids[0], &Report::Eligible { pairs, dead: BTreeSet::new(), need: 1 }).unwrap();
    assert_eq!(throttled.share(&world.view, follower), Some(1000), "what is level does not count");
    receive(&mut world, follower, "0");
    assert_eq!(throttled.share(&world.view, follower), Some(0), "nothing is nothing");
}
