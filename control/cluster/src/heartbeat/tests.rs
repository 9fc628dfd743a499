use felix_protocol::ids::{PartitionId, TopicId, Uuid};

use super::*;
use crate::lease::Clocks;
use crate::revoke::Revocation;
use crate::testing::generation;

/// L = 1.2 s: a beat every 200 ms, ε = 120 ms, a lease holds 1080 ms, the lag may be 600 ms.
fn terms() -> Terms {
    Terms::new(1200, Clocks::Both)
}

fn at(milliseconds: u64) -> MonoTime {
    MonoTime(milliseconds * 1_000_000)
}

fn node(session: u64, state: NodeState) -> Node {
    Node {
        session: SessionId(session),
        state,
        directory: Uuid::nil(),
        suspect: false,
        boot: String::new(),
        listeners: Vec::new(),
        internal: None,
        rack: None,
        version: String::new(),
    }
}

fn landed(revision: u64) -> Answer {
    Answer::Landed { revision: Revision(revision), revoked: RevokeSet::default() }
}

fn applied(revision: u64) -> Event {
    Event::Applied { revision: Revision(revision), handed: 0 }
}

/// A machine whose registration was sent at 1 s and landed at revision 10.
fn registered() -> Heartbeat {
    Heartbeat::new(SessionId(7), Revision(10), at(1000), terms())
}

/// Sends the next beat at that time and returns its number.
fn send(machine: &mut Heartbeat, time: u64) -> u64 {
    match machine.step(Event::Tick, at(time)).as_slice() {
        [Action::Send { number, .. }] => *number,
        other => panic!("{other:?}"),
    }
}

#[test]
fn the_first_beat_goes_out_at_once_and_the_lease_counts_from_its_sending() {
    let mut machine = registered();
    assert_eq!(machine.next_tick(), at(0));
    let sent = machine.step(Event::Tick, at(1010));
    let beat = Beat { session: SessionId(7), counter: 1 };
    let within = Duration::from_millis(400);
    assert_eq!(sent, [Action::Send { number: 1, node: Revision(10), beat, within }]);
    assert_eq!(machine.next_tick(), MonoTime::NEVER, "an answer is awaited");
    // Answered 190 ms later, which is at the holder's expense.
    let actions = machine.step(Event::Answered(1, landed(11)), at(1200));
    assert_eq!(actions, [Action::Confirmed, Action::Extend(at(1010 + 1080))]);
    assert_eq!(machine.next_tick(), at(1210), "a beat every sixth of L, counted from the last sending");
}

#[test]
fn an_answer_that_never_comes_extends_nothing_and_stops_nothing() {
    let mut machine = registered();
    let first = send(&mut machine, 1000);
    // The wait of 400 ms is over, the next beat's time has come long ago: it goes out at once.
    let actions = machine.step(Event::Answered(first, Answer::Unknown), at(1400));
    assert!(matches!(actions.as_slice(), [Action::Send { number: 2, beat: Beat { counter: 2, .. }, .. }]));
    assert!(
        machine.step(Event::Answered(first, landed(11)), at(1401)).is_empty(),
        "too late: it is given up"
    );
    let actions = machine.step(Event::Answered(2, landed(12)), at(1500));
    assert_eq!(actions, [Action::Confirmed, Action::Extend(at(1400 + 1080))]);
}

#[test]
fn who_hears_nothing_for_a_whole_lease_is_silent_until_it_hears_again() {
    let mut machine = registered();
    let mut number = send(&mut machine, 1000);
    machine.step(Event::Answered(number, landed(11)), at(1010));
    // Beats that land without anybody telling: the lease is over at 1000 + 1080.
    let mut time = 1200;
    number = send(&mut machine, time);
    while time + 400 < 2080 {
        time += 400;
        let actions = machine.step(Event::Answered(number, Answer::Unknown), at(time));
        let [Action::Send { number: next, .. }] = actions.as_slice() else { panic!("{actions:?}") };
        number = *next;
    }
    let silent = [Action::ReadBack { within: Duration::from_millis(400) }];
    assert_eq!(machine.step(Event::Answered(number, Answer::Unknown), at(2400)), silent);
    assert!(machine.step(Event::ReadFailed, at(2800)).is_empty());
    assert_eq!(machine.step(Event::Tick, machine.next_tick()), silent);
    // Nobody has ended the session meanwhile: it goes on.
    let found = Some((Revision(10), node(7, NodeState::Live)));
    let actions = machine.step(Event::ReadBack(found), at(3100));
    let [Action::Send { number, .. }] = actions.as_slice() else { panic!("{actions:?}") };
    let actions = machine.step(Event::Answered(*number, landed(30)), at(3110));
    assert!(actions.contains(&Action::Confirmed));
}

#[test]
fn who_registers_and_hears_nothing_more_is_silent_a_lease_later() {
    let mut machine = registered();
    let first = send(&mut machine, 1000);
    let actions = machine.step(Event::Answered(first, Answer::Unknown), at(2079));
    assert!(matches!(actions.as_slice(), [Action::Send { .. }]));
    let actions = machine.step(Event::Answered(2, Answer::Unknown), at(2300));
    assert!(matches!(actions.as_slice(), [Action::ReadBack { .. }]));
}

#[test]
fn an_answer_that_is_refused_at_once_does_not_make_it_hurry() {
    let mut machine = registered();
    let first = send(&mut machine, 1000);
    assert!(machine.step(Event::Answered(first, Answer::Unknown), at(1001)).is_empty());
    assert_eq!(machine.next_tick(), at(1200));
    assert!(machine.step(Event::Tick, at(1199)).is_empty());
    assert_eq!(send(&mut machine, 1200), 2);
}

#[test]
fn a_key_that_others_wrote_is_read_back_and_the_beat_sent_again_from_there() {
    let mut machine = registered();
    let first = send(&mut machine, 1000);
    let actions = machine.step(Event::Answered(first, Answer::Refused), at(1010));
    assert_eq!(actions, [Action::ReadBack { within: Duration::from_millis(400) }]);
    let found = Some((Revision(15), node(7, NodeState::Draining)));
    let actions = machine.step(Event::ReadBack(found), at(1050));
    assert!(matches!(actions.as_slice(), [Action::Send { number: 2, node: Revision(15), .. }]));
    // Anchored at the new sending.
    let actions = machine.step(Event::Answered(2, landed(16)), at(1060));
    assert!(actions.contains(&Action::Extend(at(1050 + 1080))));
}

#[test]
fn a_session_that_was_fenced_or_replaced_is_over_for_good() {
    let cases = [
        (Some((Revision(15), node(7, NodeState::Fenced))), Lost::Fenced),
        (Some((Revision(15), node(8, NodeState::Live))), Lost::Superseded(SessionId(8))),
        (None, Lost::Removed),
    ];
    for (found, why) in cases {
        let mut machine = registered();
        let first = send(&mut machine, 1000);
        machine.step(Event::Answered(first, Answer::Refused), at(1010));
        assert_eq!(machine.step(Event::ReadBack(found), at(1050)), [Action::Lost(why)]);
        assert_eq!(machine.next_tick(), MonoTime::NEVER);
        for event in [Event::Tick, Event::Answered(2, landed(17)), applied(99)] {
            assert!(machine.step(event, at(5000)).is_empty());
        }
    }
}

#[test]
fn a_read_back_that_fails_is_tried_again_at_the_pace_of_beats() {
    let mut machine = registered();
    let first = send(&mut machine, 1000);
    machine.step(Event::Answered(first, Answer::Refused), at(1010));
    assert!(machine.step(Event::ReadFailed, at(1410)).is_empty());
    assert_eq!(machine.next_tick(), at(1610));
    assert!(matches!(machine.step(Event::Tick, at(1610)).as_slice(), [Action::ReadBack { .. }]));
}

#[test]
fn a_renewal_counts_only_while_what_the_store_said_is_taken_in() {
    let mut machine = registered();
    // Up to half an L after the last revision that was taken in (that of the registration, sent at 1000).
    for (number, time) in [(1, 1200), (2, 1400), (3, 1600)] {
        assert_eq!(send(&mut machine, time), number);
        let actions = machine.step(Event::Answered(number, landed(20 + number)), at(time + 10));
        assert!(actions.contains(&Action::Extend(at(time + 1080))), "{time}");
    }
    // Later ones are confirmed, but not used.
    for (number, time) in [(4, 1800), (5, 2000)] {
        assert_eq!(send(&mut machine, time), number);
        let actions = machine.step(Event::Answered(number, landed(20 + number)), at(time + 10));
        assert_eq!(actions, [Action::Confirmed], "{time}");
    }
    // Until the broker has caught up, if only in part.
    assert_eq!(machine.step(applied(22), at(2100)), [Action::Extend(at(2000 + 1080))]);
    assert!(machine.step(applied(25), at(2110)).is_empty(), "it is used already");
}

#[test]
fn a_renewal_that_asks_for_something_counts_once_that_is_given_up() {
    let mut machine = registered();
    let first = send(&mut machine, 1000);
    let partition = PartitionId { topic: TopicId(Uuid::from_u128(5)), index: 0 };
    let mut set = RevokeSet::default();
    set.add(Revocation { partition, generation: generation(3) }).unwrap();
    let asking = |revision| Answer::Landed { revision: Revision(revision), revoked: set.clone() };
    let actions = machine.step(Event::Answered(first, asking(11)), at(1010));
    assert_eq!(actions, [Action::Confirmed, Action::GiveUp { number: 1, set: set.clone() }]);
    // The next says the same, and hands nothing on.
    let second = send(&mut machine, 1200);
    assert_eq!(machine.step(Event::Answered(second, asking(12)), at(1210)), [Action::Confirmed]);
    assert!(machine.step(applied(12), at(1220)).is_empty(), "the view alone is not enough");
    let done = Event::Applied { revision: Revision(12), handed: 1 };
    assert_eq!(machine.step(done, at(1230)), [Action::Extend(at(1200 + 1080))]);
}

#[test]
fn other_terms_hold_from_the_next_beat_on() {
    let mut machine = registered();
    let first = send(&mut machine, 1000);
    machine.step(Event::Terms(Terms::new(6000, Clocks::Both)), at(1001));
    let actions = machine.step(Event::Answered(first, landed(11)), at(1010));
    assert!(actions.contains(&Action::Extend(at(1000 + 1080))));
    let second = send(&mut machine, 1200);
    let actions = machine.step(Event::Answered(second, landed(12)), at(1210));
    assert!(actions.contains(&Action::Extend(at(1200 + 5400))));
    assert_eq!(machine.next_tick(), at(2200));
}
