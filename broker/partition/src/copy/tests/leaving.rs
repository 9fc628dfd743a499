//! Copies whose leaders are asked to go.

use felix_replication::event::Nodes;

use super::following::{Side, carry};
use super::*;

fn leave(world: &mut World, copy: &mut TestCopy) {
    copy.leave(world.clock.now().after(Duration::from_secs(1)), false, &mut world.ports);
}

#[test]
fn what_was_taken_in_is_finished_and_nothing_else_is_taken_in() {
    let mut world = World::new();
    let mut copy = world.leading(PartitionConfig::default());
    world.append(&mut copy, "first", append(batch(3), Acks::Leader));
    world.append(&mut copy, "all", append(batch(2), Acks::All));
    let changed = world.ports.changed;
    leave(&mut world, &mut copy);
    assert!(world.ports.changed > changed, "readers are told");
    assert_eq!(copy.published().stage(), Stage::Closed);
    world.append(&mut copy, "late", append(batch(1), Acks::Leader));
    assert_eq!(world.answers(), [("late", Err(AppendError::NotLeader))]);
    let deleted = copy.delete_records(DeleteTo::Offset(1), &mut world.ports);
    assert_eq!(deleted, Err(DeleteRecordsError::NotLeader));
    assert!(world.ports.reports.is_empty() && !copy.is_quiet());
    assert!(world.flush(&mut copy));
    let answers = world.answers();
    assert!(answers.iter().all(|(_, answer)| answer.is_ok()) && answers.len() == 2, "{answers:?}");
    let report = world.ports.reports.pop().unwrap();
    let resigned = report.resigned().unwrap().clone();
    assert_eq!((resigned.end, resigned.pairs.len()), (5, 0));
    let landed = ReportAnswer::Landed(Revision(7));
    copy.report_answered(generation(1), report.number, landed, &mut world.ports);
    assert!(copy.is_quiet() && !copy.is_leaving());
    assert_eq!(copy.published().stage(), Stage::Closed);
}

#[test]
fn where_the_page_cache_is_enough_it_is_enough_for_the_last_word() {
    let mut world = World::new();
    let mut copy = world.leading(page_cache());
    world.append(&mut copy, "a", append(batch(3), Acks::All));
    assert!(world.answers().iter().all(|(_, answer)| answer.is_ok()));
    leave(&mut world, &mut copy);
    assert_eq!(world.ports.reports.pop().unwrap().resigned().unwrap().clone().end, 3);
}

#[test]
fn asked_while_opening_it_goes_when_that_has_landed_and_is_never_shown_as_open() {
    let mut world = World::new();
    let mut copy = world.ready(1, None, PartitionConfig::default());
    copy.lead(key(5, Last::Never), &mut world.ports);
    leave(&mut world, &mut copy);
    assert!(copy.is_leaving());
    world.land_opening(&mut copy);
    assert_eq!((copy.published().stage(), world.ports.opened), (Stage::Closed, 0));
    assert!(world.ports.reports.pop().unwrap().resigned().is_some());
    // A newer generation of the same session takes its place.
    let lease = world.lease.clone();
    copy.accepted(generation(2), lease, &mut world.ports);
    assert!(!copy.is_leaving());
}

#[test]
fn who_has_a_full_disk_hands_over_to_a_follower_that_has_everything() {
    let (mut one, mut two) = (Side::new(1), Side::new(2));
    one.lead(1, 2);
    one.write(3);
    let refused = |one: &mut Side| {
        one.world.disk.set_capacity(Some(one.world.disk.used()));
        one.world.append(&mut one.copy, "full", append(batch(9), Acks::All));
        let told = one.world.answers().pop().unwrap().1;
        one.world.disk.set_capacity(None);
        told
    };
    let known = one.copy.own();
    let seen = |revision, two: &Side| {
        let last = Last::Opened { pair: known, generation: generation(1) };
        let replicas = [BrokerId(1), BrokerId(2)].into();
        let eligible = [two.copy.own()].into();
        KeyState { replicas, eligible, generation: generation(1), ..key(revision, last) }
    };
    let resigned =
        |one: &mut Side| one.world.ports.reports.drain(..).find_map(|report| report.resigned().cloned());
    assert_eq!(refused(&mut one), Err(AppendError::DiskFull));
    assert!(resigned(&mut one).is_none() && !one.copy.is_leaving(), "nobody may lead instead");
    carry(&mut one, &mut two);
    one.copy.key_seen(generation(1), seen(7, &two), &mut one.world.ports);
    let nodes = Nodes { beating: [BrokerId(2)].into(), ..Nodes::default() };
    one.copy.nodes(&nodes, &mut one.world.ports);
    one.write(1);
    assert_eq!(refused(&mut one), Err(AppendError::DiskFull));
    assert!(resigned(&mut one).is_none(), "the other one lacks records");
    carry(&mut one, &mut two);
    assert_eq!(refused(&mut one), Err(AppendError::DiskFull));
    assert_eq!(resigned(&mut one).unwrap().pairs, [two.copy.own()].into());
    assert_eq!(refused(&mut one), Err(AppendError::NotLeader));
}
