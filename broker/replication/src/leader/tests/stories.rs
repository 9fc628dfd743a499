//! Runs the scripts of `testdata/leader/`: each line is an event, and the lines behind it that begin with `>` are what the
//! leader wants done. With `FELIX_BLESS=1` the answers are written anew.

use std::fmt::Write as _;
use std::path::Path;
use std::time::Duration;

use felix_protocol::ids::SessionId;

use super::*;
use crate::eligible::{Claim, Resigned};
use crate::event::Nodes;

/// A script's names for pairs: a letter for the broker, a number for the copy; `A` leads.
fn named_pair(name: &str) -> Pair {
    let broker = i32::from(name.as_bytes()[0] - b'A') + 1;
    pair(broker, name[1..].parse().unwrap())
}

fn name_of(pair: &Pair) -> String {
    let letter = char::from(b'A' + u8::try_from(pair.broker.0 - 1).unwrap());
    format!("{letter}{}", pair.log.0.as_u128())
}

fn names_of(pairs: &BTreeSet<Pair>) -> String {
    let names: Vec<_> = pairs.iter().map(name_of).collect();
    format!("{{{}}}", names.join(" "))
}

/// `C D`
fn brokers(words: &[&str]) -> BTreeSet<BrokerId> {
    words.iter().map(|name| named_pair(&format!("{name}0")).broker).collect()
}

/// `key 7 {B1 C1} last B1@4`, with `given up` behind it when nobody leads.
fn named_key(words: &[&str], at: Generation) -> KeyState {
    let text = words.join(" ");
    let (before, behind) = text.split_once('{').unwrap();
    let (members, last) = behind.split_once('}').unwrap();
    let members: Vec<_> = members.split_whitespace().map(named_pair).collect();
    let given_up = last.ends_with("given up");
    let last = last.trim_end_matches("given up");
    let last = match last.trim().trim_start_matches("last ") {
        "never" => Last::Never,
        "declined" => Last::Declined,
        opened => {
            let (who, at) = opened.split_once('@').unwrap();
            Last::Opened { pair: named_pair(who), generation: generation(at.parse().unwrap()) }
        }
    };
    KeyState { led: !given_up, generation: at, ..key(before.trim().parse().unwrap(), &members, last) }
}

fn told(action: &Action) -> String {
    let list = |tickets: &[Ticket]| {
        let numbers: Vec<_> = tickets.iter().map(|ticket| ticket.0.to_string()).collect();
        numbers.join(" ")
    };
    match action {
        Action::Report(Report { number, revision, eligible, last, claim, .. }) => {
            let last = match last {
                Last::Never => "never".to_owned(),
                Last::Declined => "declined".to_owned(),
                Last::Opened { pair, generation } => format!("{}@{generation}", name_of(pair)),
            };
            match claim {
                Claim::Opening(_) => {
                    format!("report {number} on {}: {} last {last}", revision.0, names_of(eligible))
                }
                Claim::Eligible { dead, .. } if dead.is_empty() => {
                    format!("report {number} on {}: {}", revision.0, names_of(eligible))
                }
                Claim::Eligible { dead, .. } => {
                    let (set, dead) = (names_of(eligible), names_of(dead));
                    format!("report {number} on {}: {set}, dead {dead}", revision.0)
                }
                Claim::Resigned(Resigned { end, pairs }) => {
                    format!(
                        "report {number} on {}: resigned at {end}, held by {}",
                        revision.0,
                        names_of(pairs)
                    )
                }
            }
        }
        Action::CutOff { exposed } => format!("cut off, {exposed} records exposed"),
        Action::ReadKey => "read the key".to_owned(),
        Action::Opened => "opened".to_owned(),
        Action::Advance { mark } => format!("mark {mark}"),
        Action::Release { tickets, vouch: Vouch::Mark } => format!("answer {}", list(tickets)),
        Action::Release { tickets, vouch: Vouch::Lease } => {
            format!("answer {} if the lease holds", list(tickets))
        }
        Action::Expire { tickets } => format!("cannot vouch for {}", list(tickets)),
        Action::Refuse { tickets } => format!("not the leader, {}", list(tickets)),
    }
}

/// Begins with `lead at 5 need 2 mark 7 end 10 key ...`.
fn begin(words: &[&str]) -> (Leader, Vec<Action>) {
    let number = |at: usize| words[at].parse::<i64>().unwrap();
    let (at, end) = (generation(u32::try_from(number(1)).unwrap()), number(7));
    Leader::open(Tenure {
        generation: at,
        own: named_pair("A1"),
        need: usize::try_from(number(3)).unwrap(),
        mark: number(5),
        end,
        stored: end,
        key: named_key(&words[9..], at),
    })
}

fn event(words: &[&str], tenure: Generation) -> Event {
    let number = |at: usize| words[at].parse::<i64>().unwrap();
    match words[0] {
        "written" => Event::Appended { end: number(1) },
        "durable" => Event::Stored { end: number(1) },
        "wait" => Event::Wait {
            ticket: Ticket(words[1].parse().unwrap()),
            word: if words[2] == "mark" { Word::Mark } else { Word::Stored },
            end: number(3),
            deadline: at(words[5].parse().unwrap()),
        },
        "landed" => Event::ReportAnswered {
            number: words[1].parse().unwrap(),
            answer: ReportAnswer::Landed(Revision(words[3].parse().unwrap())),
        },
        "refused" => Event::ReportAnswered {
            number: words[1].parse().unwrap(),
            answer: ReportAnswer::Refused(named_key(&words[3..], tenure)),
        },
        "unanswered" => {
            Event::ReportAnswered { number: words[1].parse().unwrap(), answer: ReportAnswer::Unknown }
        }
        "unreadable" => Event::KeyRead { key: None },
        "key" => Event::KeyRead { key: Some(named_key(&words[1..], tenure)) },
        "confirmed" => Event::Confirmed { pair: named_pair(words[1]), position: number(2) },
        "lost" => Event::Lost(brokers(&words[1..2]).into_iter().next().unwrap()),
        "heard" => Event::Heard(brokers(&words[1..2]).into_iter().next().unwrap()),
        "dead" => Event::Dead(named_pair(words[1])),
        "halted" => Event::Halted(named_pair(words[1])),
        // `sessions C7`: broker C is in its seventh life.
        "sessions" => {
            let life = |word: &&str| (named_pair(word).broker, SessionId(word[1..].parse().unwrap()));
            let sessions = words[1..].iter().map(life).collect();
            Event::Nodes(Nodes { sessions, ..Nodes::default() })
        }
        "fenced" => Event::Nodes(Nodes { fenced: brokers(&words[1..]), ..Nodes::default() }),
        "draining" => Event::Nodes(Nodes { draining: brokers(&words[1..]), ..Nodes::default() }),
        "beating" => {
            let (after, names) = match words[1..] {
                ["for", millis, "after", "death", ref names @ ..] => (millis.parse().unwrap(), names),
                _ => (0, &words[1..]),
            };
            let beating_after_death = Duration::from_millis(after);
            Event::Nodes(Nodes { beating: brokers(names), beating_after_death, ..Nodes::default() })
        }
        "leave" => {
            let anyway = words.get(3) == Some(&"anyway");
            Event::Leave { until: at(words[2].parse().unwrap()), anyway }
        }
        "need" => Event::Need(words[1].parse().unwrap()),
        "lease" => Event::LeaseOver,
        "ended" => Event::Ended,
        "time" | "asleep" => Event::Tick,
        other => panic!("no event is called {other}"),
    }
}

fn play(script: &str) -> String {
    let mut told_all = String::new();
    let mut leader = None;
    let mut now = 0;
    for line in script.lines().filter(|line| !line.starts_with('>')) {
        told_all.push_str(line);
        told_all.push('\n');
        let words: Vec<&str> = line.split_whitespace().collect();
        let actions = match (words.first(), &mut leader) {
            (None | Some(&"#"), _) => continue,
            (Some(&"lead"), leader) => {
                now = 0;
                let (begun, actions) = begin(&words[1..]);
                *leader = Some(begun);
                actions
            }
            // `rests until 60000`: it was cut off a while ago.
            (Some(&"rests"), Some(leader)) => {
                leader.not_cut_off_before(at(words[2].parse().unwrap()));
                continue;
            }
            (Some(first), Some(leader)) => {
                let mut actions = Vec::new();
                if *first == "time" {
                    // Whoever runs it ticks it whenever it asks for that; one that was asleep did not.
                    let until = words[1].parse().unwrap();
                    while leader.next_tick() > at(now) && leader.next_tick() < at(until) {
                        actions.extend(leader.step(Event::Tick, leader.next_tick()));
                    }
                }
                if matches!(*first, "time" | "asleep") {
                    now = words[1].parse().unwrap();
                }
                actions.extend(leader.step(event(&words, leader.generation()), at(now)));
                actions
            }
            (Some(_), None) => panic!("a story begins with `lead`"),
        };
        for action in &actions {
            writeln!(told_all, "> {}", told(action)).unwrap();
        }
    }
    told_all
}

#[test]
fn the_stories_go_as_they_are_told() {
    let folder = Path::new(env!("CARGO_MANIFEST_DIR")).join("src/testdata/leader");
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
