//! Stories of copies that are opened again: after a stop, a kill, a power loss, a wipe.

use super::*;

#[test]
fn after_a_restart_the_copy_leads_again_with_all_it_had() {
    let mut world = World::new();
    let mut copy = world.leading(PartitionConfig::default());
    world.append(&mut copy, "a", append(numbered(0, 3), Acks::All));
    world.flush(&mut copy);
    let id = copy.own().log;
    drop(copy);
    for (crash, boot) in [(Crash::KeepAll, 1), (Crash::LoseUnsynced, 2)] {
        world = world.after(crash, boot);
        let copy = world.ready(1 + u32::try_from(boot).unwrap(), Some(id), PartitionConfig::default());
        let mut copy = world.lead(copy);
        assert_eq!(copy.own().log, id, "flushed bytes only were counted: no doubt");
        assert_eq!((copy.log.end(), copy.published().mark()), (3, 3));
        assert!(copy.published().settled());
        world.append(&mut copy, "retry", append(numbered(0, 3), Acks::All));
        assert!(world.answers()[0].1.as_ref().unwrap().duplicate, "sequences are known from the log");
    }
}

#[test]
fn a_clean_stop_is_remembered() {
    let mut world = World::new();
    let mut copy = world.leading(page_cache());
    world.append(&mut copy, "a", append(batch(3), Acks::All));
    let id = copy.own().log;
    let closing = copy.close(&mut world.ports).unwrap();
    world.opener.flusher.run(vec![closing.job]).pop().unwrap().unwrap();
    let ticket = world.opener.replicas.stage(closing.id, closing.row);
    world.opener.replicas.commit(ticket).unwrap();
    let world = world.after(Crash::LoseUnsynced, 2);
    let row = world.opener.replicas.get(&partition()).unwrap();
    assert!(row.clean && !row.unsynced);
    assert_eq!((row.log_id, row.mark, row.synced), (id, 3, 3));
    let Outcome::Ready(copy, report) = world.try_open(generation(2), Some(id), page_cache()) else {
        panic!("not ready");
    };
    assert_eq!((copy.log.end(), report.scanned_bytes), (3, 0), "nothing needs to be read");
    let row = world.opener.replicas.get(&partition()).unwrap();
    assert!(!row.clean && row.unsynced, "from now on it counts unflushed bytes");
}

#[test]
fn unflushed_bytes_that_were_counted_are_in_doubt_after_a_power_loss() {
    for (boot, doubted) in [(1, false), (2, true)] {
        let mut world = World::new();
        let mut copy = world.leading(page_cache());
        world.append(&mut copy, "a", append(batch(3), Acks::All));
        let id = copy.own().log;
        drop(copy);
        let world = world.after(if doubted { Crash::LoseUnsynced } else { Crash::KeepAll }, boot);
        let outcome = world.try_open(generation(2), Some(id), page_cache());
        if !doubted {
            let Outcome::Ready(copy, _) = outcome else { panic!("not ready") };
            assert_eq!(copy.log.end(), 3);
            continue;
        }
        let Outcome::Declined { reason, current, accepted, .. } = outcome else { panic!("not declined") };
        assert_eq!((reason, accepted), (Decline::Doubt, generation(1)));
        let current = current.unwrap();
        assert_ne!(current, id);
        // Named under its new identity, it leads with what is left.
        world.ready(3, Some(current), page_cache());
    }
}

#[test]
fn a_wiped_copy_declines_and_a_stale_generation_is_refused() {
    let world = World::new();
    let outcome = world.try_open(generation(1), Some(LogId::random()), page_cache());
    assert!(matches!(outcome, Outcome::Declined { reason: Decline::Wiped, current: None, .. }));
    let copy = world.ready(4, None, page_cache());
    let id = copy.own().log;
    drop(copy);
    let outcome = world.try_open(generation(3), Some(id), page_cache());
    assert!(matches!(outcome, Outcome::Stale { accepted } if accepted == generation(4)));
}

/// Found by killing a broker right after its first acknowledgement: the row said of no byte that it was flushed, and
/// a deleted folder was made again and led, empty, as if nothing had been there.
#[test]
fn a_copy_that_was_opened_once_is_wiped_when_its_folder_is_gone_whatever_its_row_says() {
    for whole_folder in [true, false] {
        let mut world = World::new();
        let mut copy = world.leading(PartitionConfig::default());
        world.append(&mut copy, "a", append(batch(3), Acks::All));
        world.flush(&mut copy);
        assert!(world.answers()[0].1.is_ok(), "acknowledged");
        let id = copy.own().log;
        let folder = world.opener.dir.folder(&partition());
        drop(copy);
        let row = world.opener.replicas.get(&partition()).unwrap();
        assert_eq!((row.synced, row.mark), (0, 0), "the row follows later");
        if whole_folder {
            world.disk.remove_dir_all(&folder).unwrap();
        } else {
            world.disk.remove_file(&folder.join("00000000000000000000.log")).unwrap();
        }
        // Again after its row is gone, and at each later start.
        for number in 2..5 {
            world = world.after(Crash::KeepAll, 1);
            let outcome = world.try_open(generation(number), Some(id), PartitionConfig::default());
            assert!(matches!(outcome, Outcome::Declined { reason: Decline::Wiped, current: None, .. }));
            assert_eq!(world.opener.replicas.get(&partition()), None);
        }
        // The decision to begin anew names no copy.
        let copy = world.ready(9, None, PartitionConfig::default());
        assert!(copy.own().log != id && copy.log.end() == 0);
    }
}

/// Before its first report, nothing can be lost: whatever a crash leaves of a new copy, it is led at the next try, and
/// what was ready to be reported is not taken for wiped.
#[test]
fn a_crash_while_a_copy_is_new_keeps_nobody_from_leading_it() {
    for seed in 0..60 {
        let crash = if seed == 0 { Crash::LoseUnsynced } else { Crash::Random(seed) };
        let world = World::new();
        let id = world.ready(1, None, PartitionConfig::default()).own().log;
        let folder = world.opener.dir.folder(&partition());
        // Ready, and so whatever was reported of it, or not, both are sound.
        let world = world.after(crash, 2);
        assert_eq!(world.ready(2, Some(id), PartitionConfig::default()).own().log, id);
        // The row alone, as a crash leaves it before the folder's name is durable.
        world.disk.remove_dir_all(&folder).unwrap();
        let world = world.after(Crash::KeepAll, 2);
        let copy = world.ready(3, None, PartitionConfig::default());
        let id = copy.own().log;
        drop(copy);
        let world = world.after(crash, 3);
        assert_eq!(world.ready(4, Some(id), PartitionConfig::default()).own().log, id);
    }
}

#[test]
fn many_partitions_open_with_a_handful_of_flushes() {
    let mut world = World::new();
    let config = Arc::new(PartitionConfig::default());
    let mut requests: Vec<_> = (0..500)
        .map(|index| OpenRequest {
            partition: PartitionId { index, ..partition() },
            generation: generation(1),
            named: None,
            unclean: false,
            config: Arc::clone(&config),
        })
        .collect();
    let (mut jobs, mut last) = (Vec::new(), None);
    for outcome in world.opener.open(&requests, &world.lease) {
        let Outcome::Ready(copy, _) = outcome else { panic!("not ready") };
        let closing = TestCopy::close(*copy, &mut world.ports).unwrap();
        last = Some(world.opener.replicas.stage(closing.id, closing.row));
        jobs.push(closing.job);
    }
    assert!(world.opener.flusher.run(jobs).iter().all(Result::is_ok));
    world.opener.replicas.commit(last.unwrap()).unwrap();
    let before = world.disk.counters();
    for request in &mut requests {
        request.generation = generation(2);
    }
    let copies: Vec<Outcome<_, _, &str>> = world.opener.open(&requests, &world.lease);
    assert!(copies.iter().all(|outcome| matches!(outcome, Outcome::Ready(..))));
    let after = world.disk.counters();
    assert!(after.file_syncs - before.file_syncs < 5, "{before:?} {after:?}");
    assert!(after.dir_syncs - before.dir_syncs < 5, "{before:?} {after:?}");
}

#[test]
fn after_a_failed_flush_what_was_written_to_comes_back_under_a_new_identity() {
    let mut world = World::new();
    let mut copy = world.leading(PartitionConfig::default());
    assert_eq!(copy.row_in_doubt(), None, "nothing was written");
    world.append(&mut copy, "a", append(batch(1), Acks::All));
    world.flush(&mut copy);
    let id = copy.own().log;
    let idle = PartitionId { index: 9, ..partition() };
    let other = copy.row();
    let ticket = world.opener.replicas.stage(idle, other);
    world.opener.replicas.commit(ticket).unwrap();
    let row = copy.row_in_doubt().unwrap();
    crate::fence::suspect(&world.opener.replicas, vec![(partition(), row)]).unwrap();
    drop(copy);
    // The same boot: a killed process alone would be no reason for doubt.
    let world = world.after(Crash::KeepAll, 1);
    assert_ne!(world.opener.replicas.get(&partition()).unwrap().log_id, id);
    assert_eq!(world.opener.replicas.get(&idle).unwrap().log_id, other.log_id, "not touched");
    let outcome = world.try_open(generation(2), Some(id), PartitionConfig::default());
    assert!(matches!(outcome, Outcome::Declined { reason: Decline::Doubt, .. }));
}
