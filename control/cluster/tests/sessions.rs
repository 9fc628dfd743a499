//! Sessions in simulated true time: processes with clocks of their own, a store that is reached late, or not at all, or
//! whose answers are lost, watches that lag, pauses and suspensions, and second processes of one id. Whatever happens,
//! when the store ends a session its holder has stopped believing in it (S1), and an outage of the store ends none (S2). The
//! same with partitions, whose leaders are lost, asked to go, and resign: at most one believes that it may write (I5).

#![expect(clippy::unwrap_used, clippy::cast_possible_truncation, reason = "all of this is a test")]

#[path = "sessions/world.rs"]
mod world;

use proptest::prelude::*;
use world::{Setup, World};

const MILLISECOND: u64 = 1_000_000;

proptest! {
    #![proptest_config(ProptestConfig::with_cases(150))]

    #[test]
    fn no_session_is_ended_while_its_holder_believes_in_it(
        seed: u64,
        lease_ms in prop::sample::select(vec![500_u64, 1000, 2000]),
        lost in 0..30_u64,
        slow in 0..60_u64,
        pauses in 0..6_u64,
        outages in 0..4_u64,
        impostors in 0..2_u64,
    ) {
        let setup = Setup { seed, lease_ms, nodes: 3, lost_percent: lost, slow_percent: slow };
        let mut world = World::new(setup);
        for _ in 0..pauses {
            world.pause_someone();
        }
        for _ in 0..outages {
            world.outage_somewhen(true);
        }
        for _ in 0..impostors {
            world.impostor_somewhen();
        }
        world.run(20 * lease_ms * MILLISECOND);
    }
}

proptest! {
    #![proptest_config(ProptestConfig::with_cases(40))]

    #[test]
    fn at_most_one_writes_to_a_partition(
        seed: u64,
        lease_ms in prop::sample::select(vec![500_u64, 2000]),
        lost in 0..30_u64,
        slow in 0..60_u64,
        pauses in 0..6_u64,
        outages in 0..3_u64,
        drains in 0..6_u64,
    ) {
        let setup = Setup { seed, lease_ms, nodes: 3, lost_percent: lost, slow_percent: slow };
        let mut world = World::new(setup);
        world.create_topic(3);
        for _ in 0..pauses {
            world.pause_someone();
        }
        for _ in 0..outages {
            world.outage_somewhen(true);
        }
        for _ in 0..drains {
            world.drain_somewhen();
        }
        world.run(20 * lease_ms * MILLISECOND);
    }
}

proptest! {
    // These say what does happen, so fewer histories tell as much.
    #![proptest_config(ProptestConfig::with_cases(24))]

    #[test]
    fn an_outage_of_the_store_fences_nobody(
        seed: u64,
        lease_ms in prop::sample::select(vec![500_u64, 1000, 2000, 60_000]),
        outages in 1..4_u64,
    ) {
        let setup = Setup { seed, lease_ms, nodes: 5, lost_percent: 0, slow_percent: 0 };
        let mut world = World::new(setup);
        for at in 0..outages {
            // Apart, so that each is one; of any length, of writes only or of everything.
            world.outage(3 + at * 8, at % 2 == 0);
        }
        world.run(40 * lease_ms * MILLISECOND);
        prop_assert_eq!(world.ended, 0);
        prop_assert!(world.extended > 100);
        // And all hold leases again.
        prop_assert_eq!(world.holders(), 5);
    }

    #[test]
    fn leaders_that_are_asked_to_go_are_followed_by_others(seed: u64) {
        let setup = Setup { seed, lease_ms: 1000, nodes: 3, lost_percent: 0, slow_percent: 0 };
        let mut world = World::new(setup);
        world.create_topic(6);
        // One after the other: somebody leads, and there is somebody to go to.
        for (id, after) in [(1, 3), (2, 10), (3, 17)] {
            world.drain(id, after);
        }
        world.run(30 * 1000 * MILLISECOND);
        prop_assert_eq!(world.ended, 0);
        prop_assert_eq!(world.led(), 6);
        prop_assert!(world.resigned > 0 && world.written > 1000);
    }

    #[test]
    fn a_dead_node_is_fenced_soon(seed: u64, lease_ms in prop::sample::select(vec![500_u64, 2000])) {
        let setup = Setup { seed, lease_ms, nodes: 3, lost_percent: 0, slow_percent: 0 };
        let mut world = World::new(setup);
        let length = lease_ms * MILLISECOND;
        world.run(3 * length);
        world.kill(1);
        // W counts from its last beat as others heard of it; then one turn of three.
        world.run(4 * length + length / 6);
        prop_assert_eq!(world.ended, 1);
        prop_assert_eq!(world.holders(), 2);
    }
}
