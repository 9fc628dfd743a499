use super::*;
use crate::testing::World;

fn part(kind: &str, name: Option<&str>) -> (String, Option<String>) {
    (kind.to_owned(), name.map(str::to_owned))
}

fn named(name: &str) -> Who {
    Who::Named(name.to_owned())
}

fn set(world: &mut World, entity: &Entity, ops: &[(&str, Option<f64>)]) -> Result<bool, Refused> {
    let ops: Vec<_> = ops.iter().map(|(name, value)| ((*name).to_owned(), *value)).collect();
    match alter(&world.view, entity, &ops)? {
        Some(decision) => Ok(world.commit(&decision)),
        None => Ok(false),
    }
}

#[test]
fn entities_are_users_clients_both_or_addresses() {
    let of = |parts: &[(String, Option<String>)]| Entity::of(parts);
    assert_eq!(of(&[part(USER, Some("a"))]), Ok(Entity::User(named("a"))));
    assert_eq!(of(&[part(CLIENT_ID, None)]), Ok(Entity::Client(Who::Default)));
    let both = [part(CLIENT_ID, Some("c")), part(USER, None)];
    assert_eq!(of(&both), Ok(Entity::UserClient(Who::Default, named("c"))));
    assert_eq!(of(&[part(IP, Some("::FFFF:10.0.0.1"))]), Ok(Entity::Ip(named("10.0.0.1"))));
    assert_eq!(of(&[]), Err(Refused::Nobody));
    assert_eq!(of(&[part("group", Some("a"))]), Err(Refused::Kind("group".to_owned())));
    assert_eq!(of(&[part(USER, Some(""))]), Err(Refused::Empty(USER.to_owned())));
    assert_eq!(of(&[part(USER, None), part(USER, None)]), Err(Refused::KindTwice(USER.to_owned())));
    assert_eq!(of(&[part(USER, None), part(IP, None)]), Err(Refused::Combination));
    assert_eq!(of(&[part(IP, Some("localhost"))]), Err(Refused::Address("localhost".to_owned())));
    let long = "x".repeat(MOST_NAME_BYTES + 1);
    assert_eq!(of(&[part(USER, Some(&long))]), Err(Refused::Long(USER.to_owned())));
    let twice = entities(&[both.to_vec(), vec![], both.to_vec()]);
    assert_eq!(twice[1..], [Err(Refused::Nobody), Err(Refused::EntityTwice)]);
}

#[test]
fn limits_are_set_changed_and_removed_with_their_last() {
    let mut world = World::with_brokers(1);
    let user = Entity::User(named("a/b \u{e9}"));
    assert_eq!(set(&mut world, &user, &[("producer_byte_rate", None)]), Ok(false));
    assert_eq!(set(&mut world, &user, &[("producer_byte_rate", Some(1024.0))]), Ok(true));
    assert_eq!(set(&mut world, &user, &[("producer_byte_rate", Some(1024.0))]), Ok(false));
    assert_eq!(set(&mut world, &user, &[("request_percentage", Some(0.1 + 0.2))]), Ok(true));
    let at = world.view.quotas_of(&user).unwrap();
    let seen: Vec<_> = at.value.limits.iter().map(|(name, value)| (name.as_str(), *value)).collect();
    assert_eq!(seen, [("producer_byte_rate", 1024.0), ("request_percentage", 0.1 + 0.2)]);
    let gone = [("producer_byte_rate", None), ("request_percentage", None)];
    let stale = world.view.clone();
    assert_eq!(set(&mut world, &user, &gone), Ok(true));
    assert_eq!(world.view.quotas().count(), 0);
    assert!(!world.listed().iter().any(|entry| entry.key.starts_with("/quotas")));
    // What was decided from an older view does not land.
    let late = alter(&stale, &user, &[("consumer_byte_rate".to_owned(), Some(1.0))]).unwrap().unwrap();
    assert!(!world.commit(&late));
    let changes = world.view.changes_since(&stale);
    assert!(changes.quotas && !changes.configs);
}

#[test]
fn limits_are_checked() {
    let mut world = World::with_brokers(1);
    let (user, ip) = (Entity::User(Who::Default), Entity::Ip(Who::Default));
    let mut refused = |entity: &Entity, name: &str, value| set(&mut world, entity, &[(name, Some(value))]);
    let name = |name: &str| name.to_owned();
    assert_eq!(refused(&user, "bytes", 1.0), Err(Refused::Limit(name("bytes"))));
    let rate = "connection_creation_rate";
    assert_eq!(refused(&user, rate, 1.0), Err(Refused::Limit(name(rate))));
    assert_eq!(refused(&ip, rate, 2_147_483_648.0), Err(Refused::Large(name(rate))));
    assert_eq!(refused(&ip, rate, 2_147_483_647.0), Ok(true));
    let produced = "producer_byte_rate";
    assert_eq!(refused(&ip, produced, 1.0), Err(Refused::Limit(name(produced))));
    for value in [0.0, -1.0, f64::NAN, f64::NEG_INFINITY] {
        assert_eq!(refused(&user, produced, value), Err(Refused::NotPositive(name(produced))));
    }
    assert_eq!(refused(&user, produced, 0.5), Err(Refused::Fraction(name(produced))));
    assert_eq!(refused(&user, produced, 1e19), Err(Refused::Large(name(produced))));
    assert_eq!(refused(&user, "request_percentage", 0.5), Ok(true));
    assert_eq!(
        refused(&user, "request_percentage", f64::INFINITY),
        Err(Refused::Large(name("request_percentage")))
    );
    let twice = [(produced, Some(1.0)), (produced, None)];
    assert_eq!(set(&mut world, &user, &twice), Err(Refused::LimitTwice(name(produced))));
}

/// One of each, with its place in the list as its limit.
fn all_kinds() -> World {
    let mut world = World::with_brokers(1);
    let (a, c) = (named("a"), named("c"));
    let entities = [
        Entity::UserClient(a.clone(), c.clone()),
        Entity::UserClient(a.clone(), Who::Default),
        Entity::User(a),
        Entity::UserClient(Who::Default, c.clone()),
        Entity::UserClient(Who::Default, Who::Default),
        Entity::User(Who::Default),
        Entity::Client(c),
        Entity::Client(Who::Default),
    ];
    for (entity, value) in entities.iter().zip(1_u32..) {
        set(&mut world, entity, &[("consumer_byte_rate", Some(value.into()))]).unwrap();
    }
    for (ip, value) in [(named("10.0.0.1"), 1.0), (Who::Default, 2.0)] {
        set(&mut world, &Entity::Ip(ip), &[("connection_creation_rate", Some(value))]).unwrap();
    }
    world
}

#[test]
fn the_nearest_entity_binds() {
    let mut world = all_kinds();
    for expected in 1_u32..=8 {
        let (entity, value) = binding(&world.view, "a", "c", "consumer_byte_rate").unwrap();
        assert_eq!(value, f64::from(expected));
        set(&mut world, &entity, &[("consumer_byte_rate", None)]).unwrap();
    }
    assert_eq!(binding(&world.view, "a", "c", "consumer_byte_rate"), None);
    let bound = |ip: &str| {
        binding_address(&world.view, ip.parse().unwrap(), "connection_creation_rate").map(|(_, value)| value)
    };
    assert_eq!(
        (bound("10.0.0.1"), bound("::ffff:10.0.0.1"), bound("::1")),
        (Some(1.0), Some(1.0), Some(2.0))
    );
}

#[test]
fn descriptions_match_by_kind_and_name() {
    let world = all_kinds();
    let count = |components: &[(&str, Match)], strict| {
        let components = components.iter().map(|(kind, matching)| ((*kind).to_owned(), matching.clone()));
        let filter = Filter::new(components.collect(), strict)?;
        Ok(describe(&world.view, &filter).count())
    };
    let exactly = |name: &str| Match::Exactly(named(name));
    assert_eq!(count(&[], false), Ok(10));
    assert_eq!(count(&[], true), Ok(0));
    assert_eq!(count(&[(USER, exactly("a"))], false), Ok(3));
    assert_eq!(count(&[(USER, exactly("a"))], true), Ok(1));
    assert_eq!(count(&[(USER, Match::Any)], false), Ok(6));
    assert_eq!(count(&[(USER, Match::Any), (CLIENT_ID, Match::Exactly(Who::Default))], true), Ok(2));
    assert_eq!(count(&[(CLIENT_ID, Match::Exactly(Who::Default))], true), Ok(1));
    assert_eq!(count(&[(IP, Match::Any)], true), Ok(2));
    assert_eq!(count(&[(USER, exactly("nobody"))], false), Ok(0));
    assert_eq!(count(&[("", Match::Any)], false), Err(FilterRefused::Empty));
    assert_eq!(count(&[("group", Match::Any)], false), Err(FilterRefused::Kind("group".to_owned())));
    let twice = [(USER, Match::Any), (USER, exactly("a"))];
    assert_eq!(count(&twice, false), Err(FilterRefused::Twice(USER.to_owned())));
    assert_eq!(count(&[(USER, Match::Any), (IP, Match::Any)], false), Err(FilterRefused::Combination));
}
