use felix_cluster::config::StaticConfig;
use felix_cluster::quotas::{Entity, Who};
use felix_protocol::ids::BrokerId;

use super::*;
use crate::admin::testing;
use crate::view::Configs;

fn named(name: &str) -> Who {
    Who::Named(name.to_owned())
}

fn at(millis: u64) -> MonoTime {
    MonoTime(1_000_000_000_000).after(Duration::from_millis(millis))
}

/// A broker of 4 windows of a second, and the limits that its cluster knows.
struct Cluster {
    quotas: Quotas,
    view: View,
}

impl Cluster {
    fn new() -> Cluster {
        let mut fixed = StaticConfig::new();
        fixed.set("quota.window.num", "4", "test").unwrap();
        fixed.set("controller.quota.window.num", "5", "test").unwrap();
        let config = Configs::new(BrokerId(1), fixed).broker(&View::default());
        Cluster { quotas: Quotas::new(&config), view: testing::view(&[]) }
    }

    fn limit(&mut self, entity: Entity, kind: Kind, value: f64) {
        testing::limit(&mut self.view, &entity, kind.name(), value);
        self.quotas.learn(&self.view);
    }

    fn count(&self, kind: Kind, client: &str, amount: f64, now: u64) -> u128 {
        self.quotas.count(&self.view, kind, (USER, client), amount, at(now)).as_millis()
    }
}

#[test]
fn nobody_is_measured_where_nobody_is_limited() {
    let mut cluster = Cluster::new();
    assert!(!cluster.quotas.any());
    assert_eq!(cluster.count(Kind::Produce, "c", 1e9, 0), 0);
    cluster.limit(Entity::Client(named("other")), Kind::Produce, 1.0);
    assert!(cluster.quotas.any() && !cluster.quotas.limits(Kind::Fetch));
    assert_eq!(cluster.count(Kind::Produce, "c", 1e9, 0), 0);
    assert_eq!(cluster.count(Kind::Fetch, "other", 1e9, 0), 0);
    assert_eq!(cluster.quotas.measured(), 0);
    assert_eq!(cluster.quotas.reading(&cluster.view, (USER, "other"), at(0)), Reading::Free);
    testing::limit(&mut cluster.view, &Entity::Client(named("other")), "unknown", 1.0);
    cluster.quotas.learn(&cluster.view);
    assert!(!cluster.quotas.any(), "a limit that was taken away");
}

#[test]
fn a_producer_rests_until_it_is_within_its_rate_and_others_do_not() {
    let mut cluster = Cluster::new();
    cluster.limit(Entity::Client(named("slow")), Kind::Produce, 100.0);
    assert_eq!(cluster.count(Kind::Produce, "slow", 300.0, 0), 0, "what the past windows allow");
    assert_eq!(cluster.count(Kind::Produce, "slow", 50.0, 0), 500);
    assert_eq!(cluster.count(Kind::Produce, "fast", 1e9, 0), 0);
    assert_eq!(cluster.count(Kind::Produce, "slow", 50.0, 500), 500);
    cluster.limit(Entity::Client(named("slow")), Kind::Produce, 1_000.0);
    assert_eq!(cluster.count(Kind::Produce, "slow", 50.0, 500), 0, "another limit holds at once");
}

#[test]
fn those_who_are_named_together_share_and_those_under_a_default_do_not() {
    let mut cluster = Cluster::new();
    cluster.limit(Entity::User(named(USER)), Kind::Produce, 100.0);
    assert_eq!(cluster.count(Kind::Produce, "a", 300.0, 0), 0);
    assert_eq!(cluster.count(Kind::Produce, "b", 100.0, 0), 1_000, "one user, whatever its clients");
    let mut cluster = Cluster::new();
    cluster.limit(Entity::Client(Who::Default), Kind::Produce, 100.0);
    assert_eq!(cluster.count(Kind::Produce, "a", 300.0, 0), 0);
    assert_eq!(cluster.count(Kind::Produce, "b", 300.0, 0), 0, "each client its own");
    // The nearest entity counts: both together, before the user, before the client.
    cluster.limit(Entity::User(Who::Default), Kind::Produce, 10.0);
    assert_eq!(cluster.count(Kind::Produce, "a", 40.0, 0), 1_000);
    cluster.limit(Entity::UserClient(named(USER), named("a")), Kind::Produce, 1.0);
    assert_eq!(cluster.count(Kind::Produce, "a", 4.0, 0), 1_000);
    assert_eq!(cluster.quotas.measured(), 4);
}

#[test]
fn a_consumer_over_its_quota_gets_nothing_and_never_more_than_all_windows_allow() {
    let mut cluster = Cluster::new();
    cluster.limit(Entity::Client(named("c")), Kind::Fetch, 100.0);
    let reading = |cluster: &Cluster, now| cluster.quotas.reading(&cluster.view, (USER, "c"), at(now));
    assert_eq!(reading(&cluster, 0), Reading::AtMost(300));
    // One batch is given whatever its size.
    assert_eq!(cluster.count(Kind::Fetch, "c", 1_000.0, 0), 7_000);
    assert_eq!(reading(&cluster, 3_999), Reading::Resting);
    assert_eq!(reading(&cluster, 4_000), Reading::AtMost(300), "the windows have passed");
}

#[test]
fn time_of_threads_is_paid_back_in_one_window_at_most() {
    let mut cluster = Cluster::new();
    cluster.limit(Entity::Client(named("c")), Kind::Request, 10.0);
    assert_eq!(cluster.count(Kind::Request, "c", 30.0, 0), 0);
    assert_eq!(cluster.count(Kind::Request, "c", 5.0, 0), 500);
    assert_eq!(cluster.count(Kind::Request, "c", 500.0, 0), 1_000);
}

#[test]
fn changes_of_topics_are_refused_only_to_those_who_understand() {
    let mut cluster = Cluster::new();
    cluster.limit(Entity::Client(named("c")), Kind::Mutation, 2.0);
    let change = |cluster: &Cluster, count, strict, now| {
        cluster.quotas.change(&cluster.view, (USER, "c"), count, strict, at(now))
    };
    let owed = |cluster: &Cluster, now| cluster.quotas.changed(&cluster.view, (USER, "c"), at(now)).as_secs();
    assert!(change(&cluster, 9, true, 0), "ten at once, two a second");
    assert!(change(&cluster, 5, true, 0), "one is left, and the lump is let through");
    assert_eq!(owed(&cluster, 0), 2);
    assert!(!change(&cluster, 1, true, 1_000));
    assert_eq!(owed(&cluster, 1_000), 1, "a refusal costs nothing");
    assert!(change(&cluster, 2, false, 1_000));
    assert_eq!(owed(&cluster, 1_000), 2);
    assert!(change(&cluster, 1, true, 3_000));
    assert!(cluster.quotas.change(&cluster.view, (USER, "other"), 1_000, true, at(0)));
}

#[test]
fn connections_wait_in_line_or_are_turned_away() {
    let mut cluster = Cluster::new();
    let (one, other) = (IpAddr::from([10, 0, 0, 1]), IpAddr::from([10, 0, 0, 2]));
    cluster.limit(Entity::Ip(named("10.0.0.1")), Kind::Connection, 1.0);
    let connect = |address, now| cluster.quotas.connect(&cluster.view, address, at(now)).as_secs();
    let waits: Vec<u64> = (0..16).map(|_| connect(one, 0)).collect();
    assert_eq!(
        waits,
        [0, 0, 0, 1, 2, 3, 4, 5, 6, 7, 8, 9, 10, 11, 11, 11],
        "who is turned away is not counted"
    );
    assert_eq!(connect(other, 0), 0);
    assert_eq!(connect("::ffff:10.0.0.1".parse().unwrap(), 0), 11);
}
