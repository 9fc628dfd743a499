//! Runs the scripts of `testdata/follower/`: each line is an event, and the lines behind it that begin with `>` are what the
//! follower wants done. With `FELIX_BLESS=1` the answers are written anew.

use std::fmt::Write as _;
use std::path::Path;
use std::str::SplitWhitespace;

use super::*;

/// The words of a line, taken one by one.
struct Words<'a>(std::iter::Peekable<SplitWhitespace<'a>>);

impl<'a> Words<'a> {
    fn new(line: &'a str) -> Words<'a> {
        Words(line.split_whitespace().peekable())
    }

    fn word(&mut self) -> &'a str {
        self.0.next().unwrap()
    }

    fn number(&mut self) -> i64 {
        self.word().parse().unwrap()
    }

    fn generation(&mut self) -> Generation {
        generation(self.word().parse().unwrap())
    }

    /// `name 5`, if that comes next.
    fn named(&mut self, name: &str) -> Option<i64> {
        (self.0.peek() == Some(&name)).then(|| {
            self.word();
            self.number()
        })
    }

    fn named_generation(&mut self, name: &str) -> Option<Generation> {
        self.named(name).map(|number| generation(u32::try_from(number).unwrap()))
    }

    /// `1:0 3:6`
    fn entries(&mut self) -> Vec<(Generation, Offset)> {
        let mut entries = Vec::new();
        while let Some((number, first)) = self.0.peek().and_then(|word| word.split_once(':')) {
            entries.push((generation(number.parse().unwrap()), first.parse().unwrap()));
            self.word();
        }
        entries
    }
}

/// `copy 1 accepts 3 start 0 end 12 mark 8 learned 3 map 1:0 3:6`
fn begin(words: &mut Words) -> Follower {
    let held = Held {
        log: log(u128::try_from(words.number()).unwrap()),
        accepted: words.named_generation("accepts").unwrap(),
        start: words.named("start").unwrap_or(0),
        end: words.named("end").unwrap(),
        stored: 0,
        mark: words.named("mark").unwrap_or(0),
        halted: None,
        mark_generation: words.named_generation("learned").unwrap_or(Generation::ZERO),
        map: {
            words.word();
            GenerationMap::from_entries(words.entries()).unwrap()
        },
    };
    Follower::new(Held { stored: held.end, ..held })
}

/// `frame 1 at 4 [copy 1] mark 8 [start 0] end 15 [header begins 10 base 0 since 0 unclean 2 map 1:0 3:6]
/// [range 10 15 before 3 batches 10-12@4 13-14@4]`
fn frame_of(words: &mut Words) -> Frame {
    let mut frame = super::frame(u64::try_from(words.number()).unwrap(), 0, 0, 0);
    frame.generation = words.named_generation("at").unwrap();
    frame.log = words.named("copy").map(|number| log(u128::try_from(number).unwrap()));
    frame.mark = words.named("mark").unwrap();
    frame.log_start = words.named("start").unwrap_or(0);
    frame.log_end = words.named("end").unwrap();
    if words.0.next_if_eq(&"header").is_some() {
        frame.header = Some(TenureHeader {
            begins: words.named("begins").unwrap(),
            base: words.named("base").unwrap_or(0),
            complete_from: words.named_generation("since").unwrap_or(Generation::ZERO),
            unclean_at: words.named_generation("unclean"),
            entries: {
                words.word();
                words.entries()
            },
        });
    }
    if words.0.next_if_eq(&"range").is_some() {
        (frame.from, frame.next) = (words.number(), words.number());
        frame.before = words.named_generation("before");
        words.0.next_if_eq(&"batches");
        for batch in words.0.by_ref() {
            let (range, at) = batch.split_once('@').unwrap();
            let (base, last) = range.split_once('-').unwrap();
            frame.batches.push(BatchFacts {
                base: base.parse().unwrap(),
                last: last.parse().unwrap(),
                generation: generation(at.parse().unwrap()),
            });
        }
    } else {
        (frame.from, frame.next) = (frame.log_end, frame.log_end);
    }
    frame
}

/// `rebuild 7 at 4 copy 1 base 40 [start 45]`
fn restart(words: &mut Words, rebuild: bool) -> Restart {
    let token = Token(u64::try_from(words.number()).unwrap());
    let generation = words.named_generation("at").unwrap();
    let log = log(u128::try_from(words.named("copy").unwrap()).unwrap());
    let base = words.named("base").unwrap();
    Restart { token, generation, log, base, log_start: words.named("start").unwrap_or(base), rebuild }
}

fn event(line: &str) -> Event {
    let words = &mut Words::new(line);
    match words.word() {
        "frame" => Event::Frame(frame_of(words)),
        "rebuild" => Event::Restart(restart(words, true)),
        "bootstrap" => Event::Restart(restart(words, false)),
        "accepted" => Event::Accepted(words.generation()),
        "cut" => Event::Cut { end: words.number() },
        "written" => Event::Written { end: words.number() },
        "full" => Event::NoRoom {
            written: usize::try_from(words.number()).unwrap(),
            end: words.named("end").unwrap(),
        },
        "differs" => Event::Differs,
        "durable" => Event::Stored { end: words.number() },
        "renewed" => Event::Renewed {
            log: log(u128::try_from(words.number()).unwrap()),
            start: words.named("start").unwrap(),
            end: words.named("end").unwrap(),
        },
        "failed" => Event::Failed,
        other => panic!("no event is called {other}"),
    }
}

fn entries_of(map: &GenerationMap) -> String {
    let entries: Vec<_> = map.entries().iter().map(|(at, first)| format!("{at}:{first}")).collect();
    entries.join(" ")
}

fn told(action: &Action) -> String {
    match action {
        Action::Accept(generation) => format!("accept {generation} durably"),
        Action::Cut { to, mark, mark_generation } => {
            format!("cut to {to}, mark {mark} learned at {mark_generation}")
        }
        Action::AdoptMap(map) => format!("the map is {}", entries_of(map)),
        Action::Append { token, skip, compare, holes } => {
            let mut told = if compare < skip {
                format!("append {}, comparing {compare} to {skip}", token.0)
            } else {
                format!("append {} from batch {skip}", token.0)
            };
            for hole in holes {
                write!(told, ", nothing of {} to {}", hole.generation, hole.next).unwrap();
            }
            told
        }
        Action::AdvanceMark { mark, generation } => format!("mark {mark} learned at {generation}"),
        Action::AdvanceStart { start } => format!("begin at {start}"),
        Action::Discard { base, log_start } => format!("discard, begin at {base}, readable from {log_start}"),
        Action::Renew => "get a new identity".to_owned(),
        Action::Halt(reason) => format!("halt: {reason}"),
        Action::Resume => "go on".to_owned(),
        Action::Answer { token, reply: Reply { generation, log, end, said } } => {
            let said = match said {
                Said::Stored => "stored".to_owned(),
                Said::Fenced => "fenced".to_owned(),
                Said::LogGap => "gap".to_owned(),
                Said::NeedHeader => "need a header".to_owned(),
                Said::NeedMap(since) => format!("need the map since {since}"),
                Said::Retry => "later".to_owned(),
                Said::Halted(reason) => format!("halted, {}", HaltReason::numbered(*reason)),
                Said::Refused => "refused".to_owned(),
                Said::Empty => "empty".to_owned(),
                Said::Other(number) => format!("number {number}"),
            };
            format!("answer {}: {said}, at {generation} copy {} durable to {end}", token.0, log.0.as_u128())
        }
    }
}

fn play(script: &str) -> String {
    let mut told_all = String::new();
    let mut follower: Option<Follower> = None;
    for line in script.lines().filter(|line| !line.starts_with('>')) {
        told_all.push_str(line);
        told_all.push('\n');
        let first = line.split_whitespace().next();
        match (first, &mut follower) {
            (None | Some("#"), _) => {}
            (Some("copy"), follower) => *follower = Some(begin(&mut Words::new(&line[5..]))),
            (Some(_), Some(follower)) => {
                for action in follower.step(event(line), MonoTime(0)) {
                    writeln!(told_all, "> {}", told(&action)).unwrap();
                }
            }
            (Some(_), None) => panic!("a story begins with `copy`"),
        }
    }
    told_all
}

#[test]
fn the_stories_go_as_they_are_told() {
    let folder = Path::new(env!("CARGO_MANIFEST_DIR")).join("src/testdata/follower");
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
