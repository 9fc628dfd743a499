//! Tells a story: carries out its commands and compares what the machine does with what is written below them.

use std::collections::BTreeMap;
use std::path::PathBuf;
use std::sync::Arc;
use std::time::Duration;

use bytes::Bytes;
use felix_protocol::time::{MonoTime, WallTime};

use super::client::{Client, Options, short, show, show_record};
use crate::invariants;
use crate::machine::{Event, Now, Outcome, Shard, Token, When};
use crate::request::{
    CommitOffsets, CommitPartition, DeleteOffsets, FetchOffsets, Heartbeat, LeaveGroup, Leaving, ListGroups,
    Request, SyncGroup,
};
use crate::settings::Settings;
use crate::{RawRecord, reply::Reply};

/// Tells the story in `stories/<name>.txt`.
pub(super) fn tell(name: &str) {
    let path = PathBuf::from(env!("CARGO_MANIFEST_DIR")).join(format!("src/stories/{name}.txt"));
    let story = std::fs::read_to_string(&path).unwrap();
    let told = Stage::new().play(&story);
    if std::env::var_os("UPDATE_STORIES").is_some() {
        std::fs::write(&path, &told).unwrap();
    } else {
        for (number, (written, happened)) in story.lines().zip(told.lines()).enumerate() {
            assert_eq!(written, happened, "{name}.txt, line {}", number + 1);
        }
        assert_eq!(story.lines().count(), told.lines().count(), "{name}.txt has another end");
    }
}

struct Stage {
    settings: Settings,
    shard: Shard,
    /// Milliseconds since the story began; the wall clock says the same.
    now_ms: u64,
    clients: BTreeMap<String, Client>,
    waiting: BTreeMap<Token, String>,
    next: u64,
    log: Vec<RawRecord>,
}

impl Stage {
    fn new() -> Self {
        let settings = Settings { initial_rebalance_delay: Duration::ZERO, ..Settings::default() };
        let shard = Shard::new(settings.clone());
        Stage {
            settings,
            shard,
            now_ms: 0,
            clients: BTreeMap::new(),
            waiting: BTreeMap::new(),
            next: 0,
            log: Vec::new(),
        }
    }

    fn play(&mut self, story: &str) -> String {
        let mut told = String::new();
        for line in story.lines() {
            if line.is_empty() || line.starts_with('#') {
                told += &format!("{line}\n");
            } else if let Some(command) = line.strip_prefix("> ") {
                told += &format!("{line}\n");
                // The part in brackets is a remark.
                let command = command.split(" (").next().unwrap_or(command);
                for happened in self.perform(command) {
                    told += &format!("  {happened}\n");
                }
            }
        }
        told
    }

    fn now(&self) -> Now {
        Now { mono: MonoTime(self.now_ms * 1_000_000), wall: WallTime(i64::try_from(self.now_ms).unwrap()) }
    }

    fn step(&mut self, event: Event) -> Vec<String> {
        let outcome = self.shard.step(event, self.now());
        invariants::check(&self.shard).unwrap();
        self.show(outcome)
    }

    fn show(&mut self, outcome: Outcome) -> Vec<String> {
        let mut lines: Vec<String> =
            outcome.records.iter().map(|record| format!("log: {}", show_record(record))).collect();
        self.log.extend(outcome.records);
        for answer in outcome.replies {
            let who = self.waiting.remove(&answer.token).unwrap_or_else(|| "nobody".into());
            if let Some(client) = self.clients.get_mut(&who) {
                client.hear(&answer.reply);
            }
            assert!(
                answer.when == When::Durable
                    || !matches!(&answer.reply, Reply::Sync(Ok(_)) | Reply::Commit(_)),
                "an answer that rests on records waits for them"
            );
            lines.push(format!("{who}: {}", show(&answer.reply)));
        }
        lines.extend(outcome.notices.iter().map(|notice| format!("note: {}", short(&format!("{notice:?}")))));
        lines
    }

    fn ask(&mut self, who: &str, request: Request) -> Vec<String> {
        self.next += 1;
        let token = Token(self.next);
        self.waiting.insert(token, who.into());
        self.step(Event::Request(token, request))
    }

    fn perform(&mut self, command: &str) -> Vec<String> {
        let words: Vec<&str> = command.split_whitespace().collect();
        let options: Options<'_> = words.iter().filter_map(|word| word.split_once('=')).collect();
        let group: Arc<str> = options.get("group").copied().unwrap_or("g").into();
        let (who, verb) = (words[0], words.get(1).copied().unwrap_or(""));
        match (who, verb) {
            ("time", "passes") => self.pass(words[2]),
            ("restart", _) => self.restart(),
            ("set", _) => self.set(&options),
            ("topics", "gone") => {
                self.step(Event::TopicsGone(words[2..].iter().map(|word| Arc::from(*word)).collect()))
            }
            ("describe", _) => self.ask("operator", Request::Describe(group)),
            ("list", _) => {
                let filter = |key: &str| options.get(key).iter().map(ToString::to_string).collect();
                let request = ListGroups { states: filter("state"), types: filter("type") };
                self.ask("operator", Request::List(request))
            }
            ("delete", "group") => self.ask("operator", Request::Delete(group)),
            ("delete", "offsets") => {
                let topics =
                    partitions(&words[2..]).into_iter().map(|(topic, index, _)| (topic, vec![index]));
                self.ask(
                    "operator",
                    Request::DeleteOffsets(DeleteOffsets { group, topics: topics.collect() }),
                )
            }
            ("fetch", "all") => {
                let request = FetchOffsets { group, topics: None, require_stable: false };
                self.ask("operator", Request::Fetch(request))
            }
            ("fetch", _) => {
                let topics =
                    partitions(&words[1..]).into_iter().map(|(topic, index, _)| (topic, vec![index]));
                let request = FetchOffsets { group, topics: Some(topics.collect()), require_stable: true };
                self.ask("operator", Request::Fetch(request))
            }
            _ => self.client(who, verb, &words, &options, group),
        }
    }

    fn client(
        &mut self,
        who: &str,
        verb: &str,
        words: &[&str],
        options: &Options<'_>,
        group: Arc<str>,
    ) -> Vec<String> {
        let client = self.clients.entry(who.into()).or_default();
        if let Some(instance) = options.get("static") {
            client.instance = Some((*instance).into());
        }
        let client = client.clone();
        let member: Arc<str> = options.get("member").map_or(client.member.as_str(), |id| id).into();
        let generation = options.get("generation").map_or(client.generation, |text| text.parse().unwrap());
        let instance = client.instance.clone();
        match verb {
            // A new process under the same name.
            "starts" => {
                self.clients.insert(who.into(), Client { instance, ..Client::default() });
                Vec::new()
            }
            "joins" => {
                let fresh = u128::from(self.next + 1);
                self.ask(who, Request::Join(client.join(who, options, fresh)))
            }
            "syncs" => {
                let ids: BTreeMap<&str, &str> = self
                    .clients
                    .iter()
                    .map(|(name, client)| (name.as_str(), client.member.as_str()))
                    .collect();
                let assignments = words[2..]
                    .iter()
                    .filter_map(|word| word.split_once(":="))
                    .map(|(name, part)| (Arc::from(ids[name]), Bytes::copy_from_slice(part.as_bytes())));
                let request = SyncGroup {
                    group,
                    member,
                    instance,
                    generation,
                    protocol_type: options.get("type").map(|name| Arc::from(*name)),
                    protocol: options.get("protocol").map(|name| Arc::from(*name)).or(client.protocol),
                    assignments: assignments.collect(),
                };
                self.ask(who, Request::Sync(request))
            }
            "beats" => self.ask(who, Request::Heartbeat(Heartbeat { group, member, instance, generation })),
            "leaves" => {
                let instance = instance.or(options.get("instance").map(|id| Arc::from(*id)));
                let members = vec![Leaving { member, instance }];
                self.ask(who, Request::Leave(LeaveGroup { group, members }))
            }
            "commits" => {
                let topics = partitions(&words[2..]).into_iter().map(|(topic, partition, rest)| {
                    let (offset, metadata) = rest.split_once(':').unwrap_or((rest, ""));
                    let offset = offset.parse().unwrap();
                    (
                        topic,
                        vec![CommitPartition {
                            partition,
                            offset,
                            leader_epoch: 7,
                            metadata: metadata.into(),
                        }],
                    )
                });
                let request = CommitOffsets {
                    group,
                    member,
                    instance,
                    generation,
                    retention_ms: options.get("retention").map(|text| text.parse().unwrap()),
                    knows_group_not_found: !options.contains_key("old"),
                    topics: topics.collect(),
                };
                self.ask(who, Request::Commit(request))
            }
            "disconnects" => {
                let token = self.waiting.iter().find(|(_, waiting)| *waiting == who).map(|(token, _)| *token);
                let token = token.expect("a request of this client is parked");
                self.waiting.remove(&token);
                self.step(Event::Gone(group, token))
            }
            other => panic!("no such verb: {other}"),
        }
    }

    /// Time passes, with a tick whenever the machine asks for one.
    fn pass(&mut self, much: &str) -> Vec<String> {
        let (number, unit) = much.split_at(much.find(|letter: char| letter.is_alphabetic()).unwrap());
        let unit_ms =
            BTreeMap::from([("ms", 1), ("s", 1000), ("min", 60_000), ("h", 3_600_000), ("d", 86_400_000)])
                [unit];
        let until = self.now_ms + number.parse::<u64>().unwrap() * unit_ms;
        let mut lines = Vec::new();
        while let Some(due) = self.shard.next_deadline().map(|at| at.0 / 1_000_000).filter(|at| *at <= until)
        {
            self.now_ms = self.now_ms.max(due);
            let happened = self.step(Event::Tick);
            lines.extend(happened.into_iter().map(|line| format!("after {} ms {line}", self.now_ms)));
        }
        self.now_ms = until;
        lines
    }

    /// The broker dies and comes back: whoever waited hears nothing, and the log is all there is.
    fn restart(&mut self) -> Vec<String> {
        let before = invariants::durable(&self.shard);
        self.waiting.clear();
        self.shard = Shard::new(self.settings.clone());
        for record in &self.log {
            self.shard.replay(&record.key, record.value.as_deref()).unwrap();
        }
        let now = self.now();
        self.shard.start(now);
        assert_eq!(invariants::durable(&self.shard), before, "the log says what memory said");
        invariants::check(&self.shard).unwrap();
        Vec::new()
    }

    fn set(&mut self, options: &Options<'_>) -> Vec<String> {
        for (key, value) in options {
            let number: usize = value.parse().unwrap();
            let millis = Duration::from_millis(number as u64);
            match *key {
                "delay" => self.settings.initial_rebalance_delay = millis,
                "members" => self.settings.max_members = number,
                "bytes" => self.settings.group_bytes_max = number,
                "pending" => self.settings.pending_members_max = number,
                "unstored" => self.settings.unstored_groups_max = number,
                "retention" => self.settings.offsets_retention = millis,
                "metadata" => self.settings.offset_metadata_max = number,
                other => panic!("no such setting: {other}"),
            }
        }
        self.shard.configure(self.settings.clone());
        Vec::new()
    }
}

/// `topic/0=rest` words.
fn partitions<'a>(words: &[&'a str]) -> Vec<(Arc<str>, i32, &'a str)> {
    let split = |word: &'a str| {
        let (topic, rest) = word.split_once('/')?;
        let (index, rest) = rest.split_once('=').unwrap_or((rest, ""));
        Some((Arc::from(topic), index.parse().ok()?, rest))
    };
    words.iter().filter_map(|word| split(word)).collect()
}
