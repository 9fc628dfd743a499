//! Runs the scripts of `testdata/cursor/`: each line is an event, and the lines behind it that begin with `>` are what the
//! cursor wants done. With `FELIX_BLESS=1` the answers are written anew.

use std::fmt::Write as _;
use std::path::Path;

use super::*;

/// `cursor at 4 end 10 mark 8`
fn begin(words: &[&str]) -> Cursor {
    let number = |at: usize| words[at].parse::<i64>().unwrap();
    let at = generation(u32::try_from(number(1)).unwrap());
    Cursor::new(BrokerId(2), at, facts(number(3), number(5)), LIMITS)
}

/// `answer 3 stored at 4 copy 1 end 12`; without a copy, `copy 0`.
fn answer(words: &[&str]) -> Event {
    let number = |name: &str| {
        let at = words.iter().position(|word| *word == name).unwrap();
        words[at + 1].parse::<i64>().unwrap()
    };
    let said = match words[1] {
        "stored" => Said::Stored,
        "fenced" => Said::Fenced,
        "gap" => Said::LogGap,
        "headerless" => Said::NeedHeader,
        "map" => Said::NeedMap(generation(u32::try_from(number("since")).unwrap())),
        "later" => Said::Retry,
        "refused" => Said::Refused,
        "empty" => Said::Empty,
        "diverged" => Said::Halted(HaltReason::Diverged.number()),
        "storage" => Said::Halted(HaltReason::Storage.number()),
        "below_mark" => Said::Halted(HaltReason::BelowMark.number()),
        other => panic!("nobody says {other}"),
    };
    let log = Some(number("copy")).filter(|copy| *copy > 0).map(|copy| log(u128::try_from(copy).unwrap()));
    let at = generation(u32::try_from(number("at")).unwrap());
    let frame = FrameId(words[0].parse().unwrap());
    Event::Answer { frame, log, generation: at, end: number("end"), said }
}

fn event(words: &[&str]) -> Event {
    let number = |at: usize| words[at].parse::<i64>().unwrap();
    match words[0] {
        "connected" => Event::Connected,
        "unanswered" => Event::Unanswered,
        "disconnected" => Event::Disconnected,
        "log" => Event::Log(facts(number(2), number(4))),
        "sent" => Event::Sent {
            frame: FrameId(words[1].parse().unwrap()),
            next: number(3),
            bytes: words[5].parse().unwrap(),
        },
        "unreadable" => Event::Unreadable(FrameId(words[1].parse().unwrap())),
        "answer" => answer(&words[1..]),
        "granted" => Event::Granted { bytes_per_sec: 0 },
        "time" => Event::Tick,
        other => panic!("no event is called {other}"),
    }
}

fn told(action: &Action) -> Option<String> {
    let copy = |log: &LogId| log.0.as_u128();
    Some(match action {
        Action::Heard | Action::Lost => return None,
        Action::Header { frame, map: HeaderMap::Newest } => format!("header {}", frame.0),
        Action::Header { frame, map: HeaderMap::Since(since) } => {
            format!("header {} with the map since {since}", frame.0)
        }
        Action::Ship { frame, log, from, most } => {
            format!("ship {} to copy {} from {from}, at most {most} bytes", frame.0, copy(log))
        }
        Action::Idle { frame, log } => format!("empty frame {} to copy {}", frame.0, copy(log)),
        Action::AskRestart { pair, rebuild } => {
            format!("may copy {} be {}?", copy(&pair.log), if *rebuild { "rebuilt" } else { "bootstrapped" })
        }
        Action::Restart { frame, log, rebuild } => {
            format!("{} {} copy {}", if *rebuild { "rebuild" } else { "bootstrap" }, frame.0, copy(log))
        }
        Action::ReleaseSlot { completed: true } => "the slot is free: level".to_owned(),
        Action::ReleaseSlot { completed: false } => "the slot is free".to_owned(),
        Action::Confirmed { pair, position } => format!("copy {} holds {position}", copy(&pair.log)),
        Action::Dead(pair) => format!("copy {} is dead", copy(&pair.log)),
        Action::Halted { pair, position, reason } => {
            format!("copy {} halted at {position}: {reason}", copy(&pair.log))
        }
        Action::Resumed => "it goes on".to_owned(),
        Action::Superseded(newer) => format!("superseded by {newer}"),
    })
}

fn play(script: &str) -> String {
    let mut told_all = String::new();
    let mut cursor: Option<Cursor> = None;
    let mut now = 0;
    for line in script.lines().filter(|line| !line.starts_with('>')) {
        told_all.push_str(line);
        told_all.push('\n');
        let words: Vec<&str> = line.split_whitespace().collect();
        match (words.first(), &mut cursor) {
            (None | Some(&"#"), _) => {}
            (Some(&"cursor"), cursor) => {
                now = 0;
                *cursor = Some(begin(&words[1..]));
            }
            (Some(first), Some(cursor)) => {
                if *first == "time" {
                    now = words[1].parse().unwrap();
                }
                for action in cursor.step(event(&words), at(now)) {
                    if let Some(told) = told(&action) {
                        writeln!(told_all, "> {told}").unwrap();
                    }
                }
            }
            (Some(_), None) => panic!("a story begins with `cursor`"),
        }
    }
    told_all
}

#[test]
fn the_stories_go_as_they_are_told() {
    let folder = Path::new(env!("CARGO_MANIFEST_DIR")).join("src/testdata/cursor");
    let mut stories = 0;
    for entry in std::fs::read_dir(folder).unwrap() {
        let path = entry.unwrap().path();
        let script = std::fs::read_to_string(&path).unwrap();
        let played = play(&script);
        if std::env::var("FELIX_BLESS").is_ok_and(|bless| bless == "1") {
            std::fs::write(&path, played).unwrap();
        } else {
            assert_eq!(played, script, "{}", path.display());
        }
        stories += 1;
    }
    assert!(stories > 0);
}
