//! A tenure and the lease of its session.

use super::*;
use crate::copy::lease::LAST_WORDS;

#[test]
fn a_lease_lost_before_admission_refuses() {
    let mut world = World::new();
    let mut copy = world.leading(page_cache());
    world.lease.end();
    world.append(&mut copy, "a", append(batch(1), Acks::All));
    assert_eq!(world.answers(), [("a", Err(AppendError::NotLeader))]);
    assert_eq!(copy.published().log_end(), 0);
}

#[test]
fn a_tenure_of_another_session_stands_under_that_sessions_lease() {
    let mut world = World::new();
    let mut copy = world.leading(PartitionConfig::default());
    world.lease.end();
    // Fenced, registered anew, and named again: the same copy, in the same process.
    let next = Lease::unconfirmed();
    copy.accepted(generation(2), next.clone(), &mut world.ports);
    copy.lead(key(5, Last::Opened { pair: copy.own(), generation: generation(1) }), &mut world.ports);
    world.land_opening(&mut copy);
    copy.append(generation(2), append(batch(1), Acks::Leader), "early", &mut world.ports);
    assert_eq!(world.answers(), [("early", Err(AppendError::NotLeader))]);
    next.renewed(world.clock.now(), Duration::from_secs(9), Duration::ZERO);
    copy.append(generation(1), append(batch(1), Acks::Leader), "old", &mut world.ports);
    assert_eq!(world.answers(), [("old", Err(AppendError::NotLeader))]);
    copy.append(generation(2), append(batch(1), Acks::Leader), "new", &mut world.ports);
    world.flush(&mut copy);
    assert!(matches!(world.answers().as_slice(), [("new", Ok(_))]));
}

/// A clock at which a lease runs out between two looks.
#[test]
fn a_lease_lost_between_admission_and_the_write_keeps_the_bytes_out_of_the_log() {
    #[derive(Clone)]
    struct Running(TestClock);
    impl Clock for Running {
        fn now(&self) -> MonoTime {
            let now = self.0.now();
            self.0.advance(Duration::from_millis(60));
            now
        }
        fn wall(&self) -> WallTime {
            self.0.wall()
        }
    }
    let world = World::new();
    let ready = world.ready(1, None, page_cache());
    let lease = Lease::unconfirmed();
    let clock = Running(world.clock.clone());
    let Copy { log, own, row, config, .. } = *ready;
    let mut copy: Copy<_, _, &'static str> = Copy::new(log, own, row, config, lease.clone(), clock);
    let mut ports = TestPorts::default();
    let key = key(5, Last::Never);
    copy.lead(key, &mut ports);
    let number = ports.reports.pop().unwrap().number;
    copy.report_answered(generation(1), number, ReportAnswer::Landed(Revision(6)), &mut ports);
    // Long enough for the first look only.
    lease.renewed(world.clock.now(), Duration::from_millis(50), Duration::ZERO);
    copy.append(generation(1), append(batch(1), Acks::All), "late", &mut ports);
    assert_eq!(ports.answers, [("late", Err(AppendError::NotLeader))]);
    assert_eq!((copy.log.end(), copy.published().log_end()), (0, 0));
    // A renewed lease, and the next write takes the same offset.
    lease.renewed(world.clock.now(), Duration::from_secs(9), Duration::ZERO);
    copy.append(generation(1), append(batch(1), Acks::None), "next", &mut ports);
    assert_eq!(base(&ports.answers[1].1), 0);
}

#[test]
fn after_the_flush_the_lease_is_asked_again_for_acks_one_only() {
    let mut world = World::new();
    let mut copy = world.leading(PartitionConfig::default());
    world.append(&mut copy, "one", append(batch(1), Acks::Leader));
    world.append(&mut copy, "all", append(batch(1), Acks::All));
    world.lease.end();
    assert!(world.flush(&mut copy));
    let answers = world.answers();
    assert_eq!(answers[0], ("one", Err(AppendError::NotLeader)));
    assert_eq!((answers[1].0, base(&answers[1].1)), ("all", 1));
}

/// A leader of two members whose follower has said nothing yet.
fn leading_two(world: &mut World, config: PartitionConfig) -> Box<TestCopy> {
    let mut copy = world.ready(1, None, config);
    let follower = Pair { broker: BrokerId(2), log: LogId(Uuid::from_u128(20)) };
    let eligible = [follower].into();
    copy.lead(KeyState { eligible, ..key(5, Last::Declined) }, &mut world.ports);
    world.land_opening(&mut copy);
    copy
}

#[test]
fn whoever_waits_is_told_when_the_lease_is_over_and_not_before() {
    let mut world = World::new();
    world.lease = Lease::unconfirmed();
    world.lease.renewed(world.clock.now(), Duration::from_secs(1), Duration::ZERO);
    let mut copy = leading_two(&mut world, page_cache());
    assert!(copy.next_due() > world.lease.ends_at().after(LAST_WORDS), "nobody waits");
    world.append(&mut copy, "all", append(batch(1), Acks::All));
    assert_eq!(copy.next_due(), world.lease.ends_at().after(LAST_WORDS));

    // Renewed meanwhile: nobody is told anything, and the copy looks again when that is over.
    world.clock.advance(Duration::from_millis(900));
    world.lease.renewed(world.clock.now(), Duration::from_secs(1), Duration::ZERO);
    world.clock.advance(Duration::from_millis(150));
    copy.tick(&mut world.ports);
    assert_eq!(world.answers(), []);
    assert_eq!(copy.next_due(), world.lease.ends_at().after(LAST_WORDS));

    // Over: a moment for what is on its way, and then they are told.
    world.clock.advance(Duration::from_millis(860));
    copy.tick(&mut world.ports);
    assert_eq!(world.answers(), []);
    world.clock.advance(LAST_WORDS);
    copy.tick(&mut world.ports);
    assert_eq!(world.answers(), [("all", Err(AppendError::NotLeader))]);
    assert!(copy.leads(), "an expired lease is not the end of a tenure");

    // It comes back, and writes are taken in again.
    world.lease.renewed(world.clock.now(), Duration::from_secs(1), Duration::ZERO);
    world.append(&mut copy, "next", append(batch(1), Acks::Leader));
    assert_eq!(base(&world.answers()[0].1), 1);
}

#[test]
fn a_session_that_is_given_up_leaves_nobody_waiting() {
    let mut world = World::new();
    let mut copy = leading_two(&mut world, page_cache());
    world.append(&mut copy, "all", append(batch(1), Acks::All));
    assert_eq!(world.answers(), []);
    world.lease.end();
    assert!(copy.next_due() <= world.clock.now());
    copy.tick(&mut world.ports);
    assert_eq!(world.answers(), [("all", Err(AppendError::NotLeader))]);
}
