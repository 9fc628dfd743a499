//! Copies that have stopped until they are begun anew, and how that goes on a disk that is full.

use felix_protocol::peer::ship::Said;

use super::following::{Side, after, again, carry, shipped};
use super::*;

/// A follower with three records, of which its leader then says that they are others.
fn diverged() -> Side {
    let mut two = Side::new(2);
    let mut first = shipped(1, 0, 3, 3);
    let mut other = shipped(2, 0, 3, 2);
    (first.frame.mark, other.frame.mark) = (0, 0);
    two.copy.follow(first, &mut two.world.ports);
    two.run();
    two.run();
    let before = two.copy.own();
    two.world.ports.told.clear();
    two.copy.follow(other, &mut two.world.ports);
    assert!(two.world.ports.told.is_empty(), "nothing is said before the new identity is durable");
    two.run();
    let (_, reply) = two.world.ports.told.pop().unwrap();
    assert_eq!(reply.said, Said::Halted(HaltReason::Diverged.number()));
    assert_ne!(reply.log, before.log);
    two
}

#[test]
fn a_copy_that_has_diverged_is_so_after_a_restart_until_it_is_rebuilt() {
    let mut two = diverged();
    let log = two.copy.own().log;
    for crash in [Crash::KeepAll, Crash::LoseUnsynced] {
        two = after(two, 2, crash);
        assert_eq!(two.copy.stopped(), Some(HaltReason::Diverged));
        assert!(two.copy.standing().doubt);
        assert_eq!((two.copy.own().log, two.copy.bounds()), (log, (0, 3)), "the bytes are kept");
    }
    let mut one = Side::new(1);
    one.lead(1, 2);
    one.write(3);
    let said = carry(&mut one, &mut two);
    assert!(said.iter().all(|said| *said == Said::Halted(HaltReason::Diverged.number())), "{said:?}");
    one.world.ports.slots = true;
    one.wait(Duration::from_secs(1));
    carry(&mut one, &mut two);
    assert!(one.all() == two.all());
    for _ in 0..2 {
        assert_eq!(two.copy.stopped(), None);
        assert!(!two.world.opener.replicas.get(&partition()).unwrap().diverged);
        two = again(two, 2);
    }
}

#[test]
fn a_copy_that_has_diverged_and_leads_after_all_has_not() {
    let Side { mut world, copy } = diverged();
    let log = copy.own().log;
    drop(copy);
    world = world.after(Crash::KeepAll, 1);
    let request = OpenRequest {
        partition: partition(),
        generation: generation(2),
        named: Some(log),
        unclean: true,
        config: Arc::default(),
    };
    let outcome: Outcome<_, _, &'static str> = world.opener.open(&[request], &world.lease).pop().unwrap();
    let Outcome::Ready(copy, _) = outcome else { panic!("not opened") };
    assert_eq!(copy.stopped(), None);
    assert!(!world.opener.replicas.get(&partition()).unwrap().diverged);
}

#[test]
fn who_follows_with_damage_in_its_log_waits_to_be_rebuilt() {
    let log = LogConfig { segment_bytes: 1_000, ..LogConfig::default() };
    let config = PartitionConfig { log, ..PartitionConfig::default() };
    let (mut one, mut two) = (Side::new(1), Side::configured(2, config));
    one.lead(1, 2);
    for _ in 0..5 {
        one.write(6);
    }
    carry(&mut one, &mut two);
    let before = two.copy.own();
    let Side { world, mut copy } = two;
    let replicas = &world.opener.replicas;
    replicas.commit(replicas.stage(partition(), copy.take_changed_row().unwrap())).unwrap();
    drop(copy);
    let first = world.opener.dir.folder(&partition()).join("00000000000000000000.log");
    let content = world.disk.content(&first).unwrap();
    world.disk.put(&first, &content[..content.len() - 9]).unwrap();
    let mut world = world.after(Crash::KeepAll, 1);
    world.opener.broker = BrokerId(2);
    let wanted = [(partition(), Arc::default())];
    let open = |renewed| -> Outcome<_, _, &'static str> {
        world.opener.follow(&wanted, &world.lease, renewed).pop().unwrap()
    };
    assert!(matches!(open(false), Outcome::Declined { reason: Decline::Doubt, .. }));
    let Outcome::Ready(copy, report) = open(true) else { panic!("not opened") };
    assert_eq!(report.damage.len(), 1);
    assert_ne!(copy.own(), before);
    assert_eq!(copy.stopped(), Some(HaltReason::Diverged));
    let mut two = Side { world, copy };
    one.reconnect(2);
    let said = carry(&mut one, &mut two);
    assert_eq!(said, [Said::Halted(HaltReason::Diverged.number())]);
    one.world.ports.slots = true;
    one.wait(Duration::from_secs(1));
    carry(&mut one, &mut two);
    assert_eq!(two.copy.stopped(), None);
    assert!(one.all() == two.all());
}

#[test]
fn a_copy_that_cannot_be_begun_anew_on_a_full_disk_is_as_soon_as_there_is_room() {
    let (mut one, mut two) = (Side::new(1), Side::new(2));
    one.lead(1, 2);
    one.world.ports.shipments.clear();
    one.write(3);
    one.begin_at(3);
    one.write(2);
    one.reconnect(2);
    // Nothing is here, so nothing is given back either.
    let used = two.world.disk.used();
    two.world.disk.set_capacity(Some(used));
    carry(&mut one, &mut two);
    assert!(two.world.ports.halted.is_empty() && two.copy.halted().is_none());
    assert_eq!(two.copy.next_due(), two.world.clock.now().after(Duration::from_secs(1)));
    two.wait(Duration::from_secs(1));
    two.run();
    assert_eq!(two.copy.next_due(), two.world.clock.now().after(Duration::from_secs(1)), "still full");
    two.world.disk.set_capacity(None);
    two.wait(Duration::from_millis(900));
    assert!(two.world.ports.notes.is_empty(), "not asked for all the time");
    two.wait(Duration::from_millis(100));
    two.run();
    assert_eq!(two.world.ports.told.pop().unwrap().1.said, Said::Stored, "begun");
    one.reconnect(2);
    carry(&mut one, &mut two);
    assert_eq!((two.copy.bounds(), two.copy.next_due()), ((3, 5), MonoTime::NEVER));
    assert!(one.all() == two.all());
    // The same with its process gone in between.
    assert_eq!(again(two, 2).copy.bounds(), (3, 5));
}

#[test]
fn a_process_that_ends_while_its_copy_cannot_be_begun_anew_makes_a_new_one() {
    let (mut one, mut two) = (Side::new(1), Side::new(2));
    one.lead(1, 2);
    one.world.ports.shipments.clear();
    one.write(3);
    one.begin_at(3);
    one.reconnect(2);
    let before = two.copy.own();
    two.world.disk.set_capacity(Some(two.world.disk.used()));
    carry(&mut one, &mut two);
    two.world.disk.set_capacity(None);
    let Side { world, copy } = two;
    drop(copy);
    let mut world = world.after(Crash::LoseUnsynced, 2);
    world.opener.broker = BrokerId(2);
    let wanted = [(partition(), Arc::default())];
    let open = |renewed| -> Outcome<_, _, &'static str> {
        world.opener.follow(&wanted, &world.lease, renewed).pop().unwrap()
    };
    assert!(matches!(open(false), Outcome::Declined { reason: Decline::Wiped, .. }));
    let Outcome::Ready(copy, _) = open(true) else { panic!("not opened") };
    assert_ne!(copy.own(), before);
    let mut two = Side { world, copy };
    one.reconnect(2);
    carry(&mut one, &mut two);
    assert_eq!(two.copy.bounds(), (3, 3));
}

/// Whoever is level is reported eligible, and named by its identity: what an empty copy stands on must be durable, too, or a
/// power loss makes a wiped one of it (decision 12).
#[test]
fn an_empty_copy_that_is_level_is_there_after_a_power_loss() {
    let (mut one, mut two) = (Side::new(1), Side::new(2));
    one.lead(1, 2);
    one.world.ports.shipments.clear();
    one.write(3);
    one.begin_at(3);
    one.reconnect(2);
    carry(&mut one, &mut two);
    assert_eq!(two.copy.bounds(), (3, 3));
    let own = two.copy.own();
    let two = after(two, 2, Crash::LoseUnsynced);
    assert_eq!((two.copy.own(), two.copy.bounds()), (own, (3, 3)));
}
