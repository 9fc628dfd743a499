//! Stories of one cursor.

use felix_protocol::generation_map::GenerationMap;
use felix_protocol::ids::Uuid;

use super::*;

mod stories;

const LIMITS: Limits = Limits { frames: 3, bytes: 100, frame_bytes: 60 };

fn log(number: u128) -> LogId {
    LogId(Uuid::from_u128(number))
}

fn at(millis: u64) -> MonoTime {
    MonoTime(millis * 1_000_000)
}

fn generation(number: u32) -> Generation {
    Generation::new(number).unwrap()
}

fn facts(end: Offset, mark: Offset) -> LogFacts {
    LogFacts { base: 0, end, mark }
}

fn stored(frame: u64, log_number: u128, end: Offset) -> Event {
    let frame = FrameId(frame);
    Event::Answer { frame, log: Some(log(log_number)), generation: generation(4), end, said: Said::Stored }
}

/// Level at 10, with nothing on its way.
fn shipping() -> Cursor {
    let mut cursor: Cursor = Cursor::new(BrokerId(2), generation(4), facts(10, 10), LIMITS);
    cursor.step(Event::Connected, at(0));
    cursor.step(stored(0, 1, 10), at(1));
    cursor
}

#[test]
fn memory_of_what_is_on_its_way_is_bounded() {
    let mut cursor = shipping();
    let mut frames = Vec::new();
    let mut actions = cursor.step(Event::Log(facts(1000, 10)), at(2));
    while let Some(Action::Ship { frame, from, most, .. }) = actions.first().copied() {
        assert!(cursor.flying_bytes() + most <= LIMITS.bytes);
        frames.push(frame);
        let next = from + Offset::try_from(most).unwrap();
        actions = cursor.step(Event::Sent { frame, next, bytes: most }, at(2));
    }
    assert_eq!((frames.len(), cursor.flying_bytes()), (2, 100));
    assert_eq!(cursor.next_tick(), on_beat(at(2).after(IDLE)), "nothing to do before an answer");
    let actions = cursor.step(stored(1, 1, 70), at(3));
    assert!(matches!(actions.last(), Some(Action::Ship { from: 110, most: 60, .. })), "{actions:?}");
}

#[test]
fn a_mark_that_moved_is_told_soon_and_an_idle_follower_hears_something_each_second() {
    let mut cursor = shipping();
    assert_eq!(cursor.next_tick(), at(1000));
    assert_eq!(cursor.step(Event::Log(facts(10, 11)), at(100)), []);
    let due = cursor.next_tick();
    assert!(due > at(100) && due <= at(100).after(MARK_WITHIN));
    let actions = cursor.step(Event::Tick, due);
    assert!(matches!(actions.as_slice(), [Action::Idle { .. }]), "{actions:?}");
    assert_eq!(cursor.next_tick(), due.after(IDLE), "what is said on a beat is said on one again");
    let mut other = shipping();
    other.step(Event::Log(facts(10, 11)), at(117));
    assert_eq!(other.next_tick(), due, "with other partitions");
    // A data frame carries the mark as well.
    cursor.step(Event::Log(facts(20, 12)), at(200));
    cursor.step(Event::Sent { frame: FrameId(2), next: 20, bytes: 10 }, at(200));
    assert_eq!(cursor.next_tick(), at(200).after(IDLE));
    // A follower that never answers is not buried under empty frames.
    for second in 2..10 {
        cursor.step(Event::Tick, at(second * 1000));
    }
    assert!(cursor.flights.len() <= LIMITS.frames);
    assert_eq!(cursor.next_tick(), MonoTime::NEVER);
}

#[test]
fn a_rebuild_is_paced_and_gives_its_slot_back_when_level() {
    let mut cursor = shipping();
    let halted = Event::Answer {
        frame: FrameId(1),
        log: Some(log(2)),
        generation: generation(4),
        end: 10,
        said: Said::Halted(HaltReason::Diverged.number()),
    };
    cursor.step(Event::Log(facts(20, 10)), at(2));
    cursor.step(Event::Sent { frame: FrameId(1), next: 20, bytes: 10 }, at(2));
    cursor.step(halted, at(3));
    assert_eq!(cursor.state(), State::Halted(HaltReason::Diverged));
    cursor.step(Event::Granted { bytes_per_sec: 1000 }, at(4));
    cursor.step(stored(2, 3, 0), at(5));
    cursor.step(stored(3, 3, 0), at(6));
    assert!(cursor.is_rebuilding());
    let sent = Event::Sent { frame: FrameId(4), next: 12, bytes: 50 };
    assert_eq!(cursor.step(sent, at(7)), [], "50 bytes take 50 ms");
    assert_eq!(cursor.next_tick(), at(57));
    let actions = cursor.step(Event::Tick, at(57));
    assert!(matches!(actions.as_slice(), [Action::Ship { from: 12, .. }]), "{actions:?}");
    // The connection goes, and the slot with it; another is waited for before anything is shipped.
    let actions = cursor.step(Event::Disconnected, at(58));
    assert_eq!(actions, [Action::ReleaseSlot { completed: false }, Action::Lost]);
    let actions = cursor.step(Event::Connected, at(60));
    assert!(matches!(actions.as_slice(), [Action::AskRestart { rebuild: true, .. }]), "{actions:?}");
    let actions = cursor.step(Event::Granted { bytes_per_sec: 0 }, at(61));
    assert!(matches!(actions.as_slice(), [Action::Header { .. }]), "{actions:?}");
    let actions = cursor.step(stored(6, 3, 20), at(62));
    assert!(actions.contains(&Action::ReleaseSlot { completed: true }), "{actions:?}");
    assert!(!cursor.is_rebuilding());
}

#[test]
fn a_header_says_from_where_on_its_map_is_whole() {
    let entries = [(1, 0), (3, 6), (8, 9)].map(|(number, first)| (generation(number), first)).to_vec();
    let map = GenerationMap::from_entries(entries.clone()).unwrap();
    assert_eq!(HeaderMap::Newest.of(&map, 64), (entries.clone(), Generation::ZERO));
    assert_eq!(HeaderMap::Newest.of(&map, 2), (entries[1..].to_vec(), generation(3)));
    assert_eq!(HeaderMap::Since(generation(2)).of(&map, 2), (entries[1..].to_vec(), generation(2)));
    assert_eq!(HeaderMap::Since(generation(1)).of(&map, 2), (entries, Generation::ZERO));
    assert_eq!(HeaderMap::Newest.of(&GenerationMap::default(), 2), (Vec::new(), Generation::ZERO));
}

#[test]
fn a_grant_that_nobody_waits_for_is_given_back() {
    let mut cursor = shipping();
    let actions = cursor.step(Event::Granted { bytes_per_sec: 0 }, at(2));
    assert_eq!(actions, [Action::ReleaseSlot { completed: false }]);
}
