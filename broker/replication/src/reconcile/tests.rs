//! The rule in words, and over random histories.

use super::*;

mod histories;

fn generation(number: u32) -> Generation {
    Generation::new(number).unwrap()
}

/// `1:0 3:6 end 10`, and more words that the caller knows.
struct Side<'a> {
    map: GenerationMap,
    words: Vec<(&'a str, i64)>,
}

impl Side<'_> {
    fn new(text: &str) -> Side<'_> {
        let mut map = GenerationMap::default();
        let mut words = Vec::new();
        let mut parts = text.split_whitespace();
        while let Some(part) = parts.next() {
            match part.split_once(':') {
                Some((number, first)) => {
                    assert!(map.begin(generation(number.parse().unwrap()), first.parse().unwrap()));
                }
                None => words.push((part, parts.next().unwrap().parse().unwrap())),
            }
        }
        Side { map, words }
    }

    fn get(&self, word: &str) -> Option<i64> {
        self.words.iter().find(|(known, _)| *known == word).map(|(_, number)| *number)
    }

    fn generation(&self, word: &str) -> Option<Generation> {
        self.get(word).map(|number| generation(u32::try_from(number).unwrap()))
    }
}

/// The leader: `at` its generation, `end` (and where the tenure `begins`, if that is not the end), `start`, `since` the
/// oldest generation that is not left out, `unclean`. The follower: `end`, `start`, `mark`, `learned`.
fn rule(leader: &str, follower: &str) -> String {
    let (leader, follower) = (Side::new(leader), Side::new(follower));
    let log_end = leader.get("end").unwrap();
    let since = leader.generation("since").unwrap_or(Generation::ZERO);
    let offer = Offer {
        generation: leader.generation("at").unwrap(),
        begins: leader.get("begins").unwrap_or(log_end),
        entries: leader.map.since(since),
        complete_from: since,
        base: leader.get("start").unwrap_or(0),
        log_end,
        unclean_at: leader.generation("unclean"),
    };
    let held = Held {
        map: &follower.map,
        log_start: follower.get("start").unwrap_or(0),
        log_end: follower.get("end").unwrap(),
        mark: follower.get("mark").unwrap_or(0),
        mark_generation: follower.generation("learned").unwrap_or(Generation::ZERO),
    };
    match reconcile(&offer, &held) {
        Verdict::Keep { to, mark } => format!("keep {to}, mark {mark}"),
        Verdict::NeedMap(oldest) => format!("need the map since {oldest}"),
        Verdict::NeedsBootstrap => "needs bootstrap".to_owned(),
        Verdict::BelowMark => "below mark".to_owned(),
    }
}

#[test]
fn the_newest_common_generation_says_how_much_is_shared() {
    for (leader, follower, verdict) in [
        // The pictures of the module.
        ("at 6 1:0 3:6 6:10 end 13 begins 10", "1:0 3:6 5:12 end 13 mark 6", "keep 10, mark 6"),
        ("at 6 1:0 6:6 end 9 begins 6", "1:0 2:4 end 6 mark 4", "keep 4, mark 4"),
        // A new leader that has written nothing yet, and a follower with a longer tail of its predecessor.
        ("at 4 1:0 3:6 end 10", "1:0 3:6 end 12 mark 8", "keep 10, mark 8"),
        ("at 4 1:0 3:6 end 10", "1:0 3:6 end 7 mark 7", "keep 7, mark 7"),
        // The follower led at 5 and was alone with it.
        ("at 6 1:0 end 10", "1:0 5:8 end 20 mark 8", "keep 8, mark 8"),
        // Three leader changes away, and a generation between that only the follower saw.
        ("at 9 1:0 4:8 7:9 end 11", "1:0 2:6 4:8 end 30 mark 8", "keep 9, mark 8"),
        // Level.
        ("at 4 1:0 3:6 end 10", "1:0 3:6 end 10 mark 10", "keep 10, mark 10"),
    ] {
        assert_eq!(rule(leader, follower), verdict, "{leader} | {follower}");
    }
}

#[test]
fn a_header_that_was_overtaken_cuts_nothing_of_its_own_tenure() {
    assert_eq!(rule("at 4 1:0 4:10 end 12 begins 10", "1:0 4:10 end 20 mark 18"), "keep 20, mark 18");
    // No fence lets an older leader speak to a copy of a newer generation. The rule does not rely on it.
    assert_eq!(rule("at 4 1:0 4:10 end 12 begins 10", "1:0 4:10 5:11 end 20 mark 9"), "keep 11, mark 9");
}

#[test]
fn nothing_below_the_mark_is_cut_unless_a_loss_was_accepted_since() {
    let leader = "at 6 1:0 6:5 end 6 begins 5";
    assert_eq!(rule(leader, "1:0 end 9 mark 7 learned 3"), "below mark");
    let accepted = "at 6 1:0 6:5 end 6 begins 5 unclean 4";
    assert_eq!(rule(accepted, "1:0 end 9 mark 7 learned 3"), "keep 5, mark 5");
    assert_eq!(rule(accepted, "1:0 end 9 mark 7 learned 4"), "below mark", "learned after the loss");
    assert_eq!(rule("at 6 end 0", "1:0 end 9 mark 7"), "below mark", "a wiped leader must not spread");
}

#[test]
fn without_a_common_generation_the_beginning_decides() {
    assert_eq!(rule("at 6 5:0 end 6", "1:0 end 3"), "keep 0, mark 0", "nothing was acknowledged");
    assert_eq!(rule("at 6 5:0 end 6", "1:0 end 3 mark 1"), "below mark");
    assert_eq!(rule("at 6 5:40 start 40 end 60", "1:0 end 30 mark 30"), "needs bootstrap");
    assert_eq!(rule("at 6 5:40 start 40 end 60", "1:0 end 50 mark 41"), "below mark");
}

#[test]
fn what_the_leader_dropped_must_be_brought_anew() {
    let leader = "at 6 3:40 5:50 start 40 end 60";
    assert_eq!(rule(leader, "3:0 end 30 mark 30"), "needs bootstrap", "it ends below the leader's start");
    assert_eq!(rule(leader, "3:0 end 45 mark 30"), "keep 45, mark 30");
    assert_eq!(
        rule("at 6 3:0 5:50 end 60", "3:45 4:55 start 52 end 57 mark 52 learned 3"),
        "below mark",
        "a log that begins behind the common part"
    );
    assert_eq!(
        rule("at 6 3:0 5:50 end 60 unclean 5", "3:45 4:55 start 52 end 57 mark 52 learned 3"),
        "needs bootstrap"
    );
}

#[test]
fn an_empty_copy_goes_on_where_it_begins() {
    assert_eq!(rule("at 6 3:0 end 60", "end 0"), "keep 0, mark 0");
    assert_eq!(rule("at 6 3:40 start 40 end 60", "end 0"), "needs bootstrap");
    assert_eq!(rule("at 6 3:40 start 40 end 60", "start 40 end 40 mark 40"), "keep 40, mark 40");
    assert_eq!(rule("at 6 3:45 start 45 end 60", "start 40 end 40 mark 40"), "needs bootstrap");
    assert_eq!(rule("at 6 3:0 end 30", "start 40 end 40 mark 40"), "below mark", "the leader ends below it");
}

#[test]
fn omitted_entries_are_asked_for_only_when_they_matter() {
    let leader = "at 9 1:0 2:10 5:20 8:30 end 40 since 5";
    assert_eq!(rule(leader, "1:0 2:10 5:20 end 25 mark 20"), "keep 25, mark 20");
    assert_eq!(rule(leader, "1:0 2:10 end 15 mark 10"), "need the map since 1");
    assert_eq!(rule("at 9 1:0 2:10 5:20 8:30 end 40", "1:0 2:10 end 15 mark 10"), "keep 15, mark 10");
    // All that the follower knows was sent, and none of it is the leader's.
    assert_eq!(
        rule(leader, "6:0 end 15 mark 0"),
        "need the map since 0",
        "to copy what is older, it takes the map"
    );
    assert_eq!(rule(leader, "end 0"), "need the map since 0");
    assert_eq!(rule("at 9 5:20 8:30 start 20 end 40 since 5", "start 20 end 20 mark 20"), "keep 20, mark 20");
    assert_eq!(rule(leader, "6:0 end 15 mark 3"), "below mark");
}

#[test]
fn a_map_that_lacks_generations_is_completed() {
    let (leader, follower) = (Side::new("1:0 2:10 5:20 8:30"), Side::new("1:4 5:20"));
    let offer = Offer {
        generation: generation(9),
        begins: 40,
        entries: leader.map.entries(),
        complete_from: Generation::ZERO,
        base: 0,
        log_end: 40,
        unclean_at: None,
    };
    let adopted = adopted(&offer, &follower.map, 25);
    assert_eq!(adopted, Side::new("1:0 2:10 5:20").map);
}
