//! Stories of one follower, and random ones.

use felix_protocol::ids::Uuid;

use super::*;

mod stories;

fn generation(number: u32) -> Generation {
    Generation::new(number).unwrap()
}

fn log(number: u128) -> LogId {
    LogId(Uuid::from_u128(number))
}

fn map(entries: &[(u32, Offset)]) -> GenerationMap {
    let mut map = GenerationMap::default();
    for (number, first) in entries {
        assert!(map.begin(generation(*number), *first));
    }
    map
}

/// A copy with twelve records of generations 1 and 3, eight of them below its mark.
fn held() -> Held {
    Held {
        log: log(1),
        accepted: generation(3),
        start: 0,
        end: 12,
        stored: 12,
        mark: 8,
        mark_generation: generation(3),
        halted: None,
        map: map(&[(1, 0), (3, 6)]),
    }
}

fn frame(number: u64, at: u32, from: Offset, next: Offset) -> Frame {
    Frame {
        token: Token(number),
        generation: generation(at),
        log: None,
        header: None,
        mark: 0,
        log_start: 0,
        log_end: next,
        from,
        next,
        before: None,
        batches: Vec::new(),
    }
}

#[test]
fn how_far_behind_it_is_is_known_only_while_it_hears_of_its_leader() {
    let second = Duration::from_secs(1);
    let at = |millis: u64| MonoTime(millis * 1_000_000);
    let mut follower: Follower = Follower::new(held());
    assert_eq!(follower.lag(at(0), second), None);
    let header = TenureHeader {
        begins: 10,
        base: 0,
        entries: map(&[(1, 0), (3, 6)]).entries().to_vec(),
        complete_from: Generation::ZERO,
        unclean_at: None,
    };
    let first = Frame { header: Some(header), log_end: 15, ..frame(1, 4, 10, 10) };
    follower.step(Event::Frame(first), at(10));
    follower.step(Event::Accepted(generation(4)), at(11));
    assert_eq!(follower.lag(at(11), second), None, "not reconciled yet");
    follower.step(Event::Cut { end: 10 }, at(12));
    assert_eq!(follower.lag(at(1010), second), Some(5));
    assert_eq!(follower.lag(at(1011), second), None, "silent for too long");
    let idle = Frame { log_end: 10, ..frame(2, 4, 10, 10) };
    follower.step(Event::Frame(idle), at(2000));
    assert_eq!(follower.lag(at(2000), second), Some(0));
    follower.step(Event::Failed, at(2000));
    assert_eq!(follower.lag(at(2000), second), None, "halted");
}

#[test]
fn while_something_is_under_way_a_frame_comes_again_later() {
    let mut follower: Follower = Follower::new(held());
    let now = MonoTime(0);
    assert_eq!(follower.step(Event::Frame(frame(1, 4, 12, 12)), now), [Action::Accept(generation(4))]);
    assert!(follower.is_busy());
    let reply = Reply { generation: generation(3), log: log(1), end: 12, said: Said::Retry };
    assert_eq!(
        follower.step(Event::Frame(frame(2, 4, 12, 12)), now),
        [Action::Answer { token: Token(2), reply }]
    );
    assert_eq!(follower.step(Event::Cut { end: 3 }, now), [], "nobody asked for that");
    assert_eq!(follower.core().bounds(), (0, 12, 12));
}
