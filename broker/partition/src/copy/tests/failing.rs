//! Stories of disks that fail, are full, or damage what was written.

use super::*;

#[test]
fn without_a_durable_fence_nobody_leads() {
    let mut world = World::new();
    let mut copy = world.leading(PartitionConfig::default());
    world.append(&mut copy, "a", append(batch(3), Acks::All));
    world.flush(&mut copy);
    let id = copy.own().log;
    drop(copy);
    let mut world = world.after(Crash::KeepAll, 1);
    world.disk.fail_sync_after(0);
    let new = PartitionId { index: 7, ..partition() };
    let config = Arc::new(PartitionConfig::default());
    let request = |partition, named| OpenRequest {
        partition,
        generation: generation(2),
        named,
        unclean: false,
        config: Arc::clone(&config),
    };
    let requests = [request(partition(), Some(id)), request(new, None)];
    // The commit of the table fails, and whatever is tried afterwards.
    for _ in 0..2 {
        let outcomes: Vec<Outcome<_, _, &str>> = world.opener.open(&requests, &world.lease);
        assert_eq!(outcomes.len(), 2);
        assert!(outcomes.iter().all(|outcome| matches!(outcome, Outcome::Failed(_))));
        assert!(world.opener.replicas.is_poisoned(), "the process must end, whoever looks");
    }
    // The next process has all that was acknowledged, under the same identity: nothing else was promised.
    world = world.after(Crash::LoseUnsynced, 2);
    let row = world.opener.replicas.get(&partition()).unwrap();
    assert!(row.accepted <= generation(2));
    let copy = world.ready(3, Some(id), PartitionConfig::default());
    assert_eq!((copy.log.end(), copy.own().log), (3, id));
}

#[test]
fn a_full_disk_lets_nobody_open_until_room_returns() {
    let mut world = World::new();
    let mut copy = world.leading(PartitionConfig::default());
    world.append(&mut copy, "a", append(batch(3), Acks::All));
    world.flush(&mut copy);
    let id = copy.own().log;
    drop(copy);
    let world = world.after(Crash::KeepAll, 1);
    let new = PartitionId { index: 7, ..partition() };
    let request = OpenRequest {
        partition: new,
        generation: generation(1),
        named: None,
        unclean: false,
        config: Arc::new(PartitionConfig::default()),
    };
    let open = || world.opener.open::<&str>(std::slice::from_ref(&request), &world.lease).pop().unwrap();
    world.disk.set_capacity(Some(world.disk.used()));
    for _ in 0..3 {
        let Outcome::Failed(error) = open() else { panic!("opened without room") };
        assert!(matches!(error, StorageError::Full { .. }), "{error}");
        assert!(!world.opener.replicas.is_poisoned(), "that is no reason to end");
        assert!(world.disk.read_dir(&world.opener.dir.folder(&new)).is_err(), "no half folder stays");
    }
    // What is there opens without room, and is read.
    let copy = world.ready(2, Some(id), PartitionConfig::default());
    assert_eq!(copy.log.end(), 3);
    world.disk.set_capacity(None);
    assert!(matches!(open(), Outcome::Ready(..)), "the same request, once there is room");
}

fn first_segment(world: &World) -> std::path::PathBuf {
    world.opener.dir.folder(&partition()).join("00000000000000000000.log")
}

#[test]
fn a_copy_in_which_damage_was_met_leads_again_under_a_new_identity_around_it() {
    let mut world = World::new();
    let mut copy = world.leading(PartitionConfig::default());
    for writer in ["a", "b"] {
        world.append(&mut copy, writer, append(batch(3), Acks::All));
        world.flush(&mut copy);
    }
    let id = copy.own().log;
    drop(copy);
    // After a restart nothing is in memory.
    let mut world = world.after(Crash::KeepAll, 1);
    let copy = world.ready(2, Some(id), PartitionConfig::default());
    let copy = world.lead(copy);
    // A byte of the second batch changes. Its reader is told, and so is the owner.
    let path = first_segment(&world);
    let mut bytes = world.disk.content(&path).unwrap();
    let at = bytes.len() - 3;
    bytes[at] ^= 1;
    world.disk.put(&path, &bytes).unwrap();
    world.opener.dir.damage().wake(|| ());
    copy.log.reader().read(0, 1, 6, true).unwrap();
    let error = copy.log.reader().read(3, 1, 6, true).unwrap_err();
    assert!(matches!(error, felix_storage::ReadError::Damaged(_)), "{error}");
    let met = world.opener.dir.damage().take_unsettled();
    let places = &met[&partition()];
    assert_eq!((places.len(), places[0].offset), (1, 3));
    felix_storage::damage::remember(&world.opener.dir, &places[0]).unwrap();
    let closing = copy.close(&mut world.ports).unwrap().in_doubt();
    assert_ne!(closing.row.log_id, id);
    assert_eq!((closing.row.synced, closing.row.clean), (6, true), "nothing acknowledged is cut");
    world.opener.flusher.run(vec![closing.job]).pop().unwrap().unwrap();
    let ticket = world.opener.replicas.stage(closing.id, closing.row);
    world.opener.replicas.commit(ticket).unwrap();
    let outcome = world.try_open(generation(3), Some(id), PartitionConfig::default());
    assert!(matches!(outcome, Outcome::Declined { reason: Decline::Doubt, .. }), "the old one is dead");
    // Also after a restart: named under its new identity, it cannot vouch either.
    let world = world.after(Crash::LoseUnsynced, 2);
    let named = Some(closing.row.log_id);
    let outcome = world.try_open(generation(4), named, PartitionConfig::default());
    let Outcome::Declined { reason: Decline::Doubt, current, .. } = outcome else { panic!("vouched") };
    // A loss event: it leads, around the damage.
    let request = OpenRequest {
        partition: partition(),
        generation: generation(5),
        named: current,
        unclean: true,
        config: Arc::new(PartitionConfig::default()),
    };
    let Some(Outcome::Ready(copy, report)) = world.opener.open::<&str>(&[request], &world.lease).pop() else {
        panic!("not ready");
    };
    assert_eq!(report.damage.len(), 1, "{report:?}");
    assert_eq!((copy.log.start(), copy.log.end()), (0, 6), "no offset is given twice");
    let reader = copy.log.reader();
    assert_eq!(reader.read(0, 1, 6, true).unwrap().next, 3);
    assert!(matches!(reader.read(4, 1, 6, true), Err(felix_storage::ReadError::Damaged(_))));
    assert!(world.opener.dir.damage().take_unsettled().is_empty(), "it was known");
}
