use felix_protocol::time::MonoTime;

use super::*;
use crate::lease::Clocks;
use crate::testing::World;

/// L = 1 s: W = 1001.8.. ms, a gap of 333 ms, 50 ms apart.
fn terms() -> Terms {
    Terms::new(1000, Clocks::Both)
}

fn at(milliseconds: u64) -> Reading {
    let time = MonoTime(milliseconds * 1_000_000);
    Reading { boottime: time, raw: time }
}

fn beat(node: i32, revision: u64) -> Event {
    Event::Beat { node: BrokerId(node), revision: Revision(revision) }
}

/// Node `own` of three, at time zero; it has heard of beats at revision 100.
fn observer(world: &World, own: i32) -> Observer {
    let mut observer = Observer::new(BrokerId(own), terms());
    observer.follow(&world.view, at(0));
    for node in 1..=3 {
        assert!(observer.step(beat(node, 100), at(0)).is_empty());
    }
    observer
}

/// Own beats are confirmed every 160 ms from `from` to `to`; returns what is fenced, and when.
fn run(observer: &mut Observer, own: &mut Option<Unbroken>, from: u64, to: u64) -> Vec<(u64, BrokerId)> {
    let mut fenced = Vec::new();
    for time in (from..to).step_by(10) {
        if time % 160 == 0 {
            *own = Some(Unbroken::confirmed(*own, at(time), terms()));
            fenced.extend(
                observer.step(Event::Own(*own), at(time)).into_iter().map(|fence| (time, fence.node)),
            );
        }
        fenced.extend(observer.step(Event::Tick, at(time)).into_iter().map(|fence| (time, fence.node)));
    }
    fenced
}

#[test]
fn a_silent_node_is_fenced_after_w_and_one_that_beats_is_not() {
    let world = World::with_brokers(3);
    let (mut observer, mut own) = (observer(&world, 1), None);
    assert!(run(&mut observer, &mut own, 0, 900).is_empty());
    assert!(observer.step(beat(2, 101), at(900)).is_empty());
    assert_eq!(run(&mut observer, &mut own, 900, 1900), [(1010, BrokerId(3))]);
    assert_eq!(run(&mut observer, &mut own, 1900, 2500), [(1910, BrokerId(2))]);
}

#[test]
fn it_knows_when_to_look_again() {
    let world = World::with_brokers(3);
    let mut observer = observer(&world, 1);
    assert_eq!(observer.next_tick(at(0)), None, "nothing is counted before the first own beat");
    let own = Unbroken::confirmed(None, at(100), terms());
    observer.step(Event::Own(Some(own)), at(100));
    assert_eq!(observer.next_tick(at(200)), Some(terms().wait() - Duration::from_millis(100)));
    assert_eq!(observer.next_tick(at(500)), None, "own beats have stopped");
}

#[test]
fn time_without_own_beats_does_not_count() {
    let world = World::with_brokers(3);
    let (mut observer, mut own) = (observer(&world, 1), None);
    assert!(run(&mut observer, &mut own, 0, 500).is_empty());
    for node in [2, 3] {
        assert!(observer.step(beat(node, 101), at(500)).is_empty());
    }
    assert!(run(&mut observer, &mut own, 500, 960).is_empty());
    // The store takes no beats from 800 to 4000.
    for time in (960..4000).step_by(10) {
        assert!(observer.step(Event::Tick, at(time)).is_empty(), "{time}");
    }
    let fenced = run(&mut observer, &mut own, 4000, 5500);
    assert_eq!(
        fenced,
        [(5010, BrokerId(2)), (5010, BrokerId(3))],
        "all waits began anew at the confirmed beat at 4000"
    );
}

#[test]
fn a_suspended_waiter_does_not_count_its_sleep() {
    let world = World::with_brokers(2);
    let mut observer = observer(&world, 1);
    let own = Unbroken::confirmed(None, at(100), terms());
    observer.step(Event::Own(Some(own)), at(100));
    // Ten seconds of sleep: one clock shows them.
    let awake = Reading { boottime: at(10_200).boottime, raw: at(200).raw };
    assert!(observer.step(Event::Tick, awake).is_empty());
    let own = Unbroken::confirmed(Some(own), awake, terms());
    assert!(observer.step(Event::Own(Some(own)), awake).is_empty());
}

#[test]
fn short_sleeps_do_not_add_up() {
    let world = World::with_brokers(2);
    let (mut observer, mut own) = (observer(&world, 1), None);
    // A fifth of a second each, between beats: too short to be missed, and only one clock shows them.
    let mut counted = 0;
    let fenced = loop {
        let now = Reading { boottime: at(300 * counted / 100).boottime, raw: at(counted).raw };
        own = Some(Unbroken::confirmed(own, now, terms()));
        if !observer.step(Event::Own(own), now).is_empty() {
            break counted;
        }
        counted += 100;
    };
    assert!(fenced >= 1_000, "{fenced}");
}

#[test]
fn nodes_act_one_after_another() {
    let world = World::with_brokers(3);
    for (node, time) in [(1, 1010), (2, 1060)] {
        let (mut observer, mut own) = (observer(&world, node), None);
        let fenced = run(&mut observer, &mut own, 0, 1200);
        assert!(fenced.contains(&(time, BrokerId(3))), "{fenced:?}");
    }
}

#[test]
fn a_fence_that_missed_begins_a_new_wait() {
    let world = World::with_brokers(2);
    let (mut observer, mut own) = (observer(&world, 1), None);
    assert_eq!(
        run(&mut observer, &mut own, 0, 1500),
        [(1010, BrokerId(2))],
        "once, until its outcome is known"
    );
    observer.step(Event::Missed(BrokerId(2)), at(1500));
    assert_eq!(run(&mut observer, &mut own, 1500, 3000), [(2510, BrokerId(2))]);
}

#[test]
fn it_never_fences_itself_nor_the_fenced_nor_a_session_that_it_has_not_watched() {
    let mut world = World::with_brokers(3);
    let (mut observer, mut own) = (observer(&world, 1), None);
    world.fence(2);
    observer.follow(&world.view, at(10));
    // Registered anew at 500 ms: its wait begins there.
    world.register(3);
    assert!(run(&mut observer, &mut own, 0, 500).is_empty());
    observer.follow(&world.view, at(500));
    observer.step(beat(3, 101), at(500));
    let fenced = run(&mut observer, &mut own, 500, 3000);
    assert_eq!(fenced, [(1510, BrokerId(3))]);
}

#[test]
fn the_fence_lands_only_on_the_session_and_the_beat_that_were_silent() {
    let mut world = World::with_brokers(2);
    let beat_at = world.beat_revision(2);
    let fence = Fence { node: BrokerId(2), session: world.session(2), beat: beat_at };
    let before = decide(&world.view, &fence).unwrap();
    world.beat(2);
    assert!(!world.commit(&before), "it has beaten since");
    let fence = Fence { beat: world.beat_revision(2), ..fence };
    let before = decide(&world.view, &fence).unwrap();
    world.drain(2);
    assert!(!world.commit(&before), "its key says something else by now");
    let decision = decide(&world.view, &fence).unwrap();
    assert!(world.commit(&decision));
    assert_eq!(decide(&world.view, &fence), None, "it is fenced already");
    world.register(2);
    assert_eq!(decide(&world.view, &fence), None, "another session is not meant");
}
