//! Clients of the stories: they remember what they were told, as real ones do, and their answers read as text.

use std::collections::BTreeMap;
use std::sync::Arc;

use bytes::Bytes;
use felix_protocol::ids::Uuid;

use crate::group::records::{RawRecord, Record};
use crate::reply::{Described, PartitionResults, Reply};
use crate::request::{JoinGroup, Protocol};

/// What a client knows of its membership.
#[derive(Clone, Debug, Default)]
pub(super) struct Client {
    pub(super) member: String,
    pub(super) generation: i32,
    pub(super) instance: Option<Arc<str>>,
    pub(super) protocol: Option<Arc<str>>,
}

/// Options of a command: `key=value` words.
pub(super) type Options<'a> = BTreeMap<&'a str, &'a str>;

impl Client {
    /// The join of a client named `name`.
    pub(super) fn join(&self, name: &str, options: &Options<'_>, fresh: u128) -> JoinGroup {
        let number = |key: &str, or: i32| options.get(key).map_or(or, |text| text.parse().unwrap());
        let version = number("v", 9);
        let protocols = options.get("protocols").copied().unwrap_or("range");
        JoinGroup {
            group: options.get("group").copied().unwrap_or("g").into(),
            member: options.get("member").map_or(self.member.as_str(), |member| member).into(),
            instance: self.instance.clone(),
            client_id: name.into(),
            client_host: options.get("host").copied().unwrap_or("/h").into(),
            session_timeout_ms: number("session", 10_000),
            rebalance_timeout_ms: number("rebalance", 60_000),
            protocol_type: options.get("type").copied().unwrap_or("consumer").into(),
            protocols: protocols.split('|').filter(|text| !text.is_empty()).map(protocol).collect(),
            member_id_required: version >= 4,
            skips_assignment: version >= 9,
            fresh: Uuid::from_u128(fresh),
        }
    }

    /// The client reads an answer.
    pub(super) fn hear(&mut self, reply: &Reply) {
        #[expect(clippy::wildcard_enum_match_arm, reason = "no other answer tells who one is")]
        match reply {
            Reply::Join(Ok(joined)) => {
                self.member = joined.member.to_string();
                self.generation = joined.generation;
                self.protocol = joined.protocol.clone();
            }
            Reply::Join(Err(refused)) if !refused.member.is_empty() => {
                self.member = refused.member.to_string();
            }
            _ => {}
        }
    }
}

/// `name:topic,topic` is a consumer's subscription; `name~text` is opaque metadata.
fn protocol(text: &str) -> Protocol {
    if let Some((name, metadata)) = text.split_once('~') {
        return Protocol { name: name.into(), metadata: Bytes::copy_from_slice(metadata.as_bytes()) };
    }
    let (name, topics) = text.split_once(':').unwrap_or((text, "t"));
    let mut metadata = vec![0, 1];
    metadata.extend((topics.split(',').count() as i32).to_be_bytes());
    for topic in topics.split(',') {
        metadata.extend((topic.len() as i16).to_be_bytes());
        metadata.extend(topic.as_bytes());
    }
    Protocol { name: name.into(), metadata: metadata.into() }
}

/// Shortens member ids: `a-00000000-0000-0000-0000-000000000001` is `a#1`.
pub(super) fn short(text: &str) -> String {
    let mut out = String::new();
    let mut rest = text;
    while let Some(at) = rest.find("-00000000-0000-0000-0000-") {
        let digits = &rest[at + 25..at + 37];
        out.push_str(&rest[..at]);
        out.push_str(&format!("#{}", u64::from_str_radix(digits, 16).unwrap()));
        rest = &rest[at + 37..];
    }
    out + rest
}

fn text(bytes: &[u8]) -> String {
    String::from_utf8_lossy(bytes).replace(|letter: char| letter.is_control(), ".")
}

fn name(name: &Option<Arc<str>>) -> &str {
    name.as_deref().unwrap_or("-")
}

/// A reply as a story shows it.
pub(super) fn show(reply: &Reply) -> String {
    let shown = match reply {
        Reply::Join(Ok(joined)) => {
            let members: Vec<String> = joined
                .members
                .iter()
                .map(|member| match &member.instance {
                    Some(instance) => format!("{}({instance})", member.member),
                    None => member.member.to_string(),
                })
                .collect();
            let skip = if joined.skip_assignment { " skip-assignment" } else { "" };
            format!(
                "joined {} generation {} {}/{} led by {} members [{}]{skip}",
                joined.member,
                joined.generation,
                name(&joined.protocol_type),
                name(&joined.protocol),
                joined.leader,
                members.join(" ")
            )
        }
        Reply::Join(Err(refused)) if refused.member.is_empty() => format!("{:?}", refused.error),
        Reply::Join(Err(refused)) => format!("{:?} {}", refused.error, refused.member),
        Reply::Sync(Ok(synced)) => format!(
            "synced {}/{} [{}]",
            name(&synced.protocol_type),
            name(&synced.protocol),
            text(&synced.assignment)
        ),
        Reply::Heartbeat(Ok(())) | Reply::Delete(Ok(())) => "ok".into(),
        Reply::Leave(Ok(left)) => {
            let left: Vec<String> = left
                .iter()
                .map(|left| format!("{}({}) {}", left.member, name(&left.instance), outcome(&left.result)))
                .collect();
            format!("left {}", left.join(", "))
        }
        Reply::Commit(Ok(results)) => format!("committed {}", partitions(results)),
        Reply::DeleteOffsets(Ok(results)) => format!("deleted {}", partitions(results)),
        Reply::Fetch(Ok(topics)) => {
            let mut all = Vec::new();
            for topic in topics {
                for (index, result) in &topic.partitions {
                    all.push(match result {
                        Ok(None) => format!("{}/{index}=none", topic.topic),
                        Ok(Some(found)) => format!(
                            "{}/{index}={}@{} '{}'",
                            topic.topic, found.offset, found.leader_epoch, found.metadata
                        ),
                        Err(error) => format!("{}/{index} {error:?}", topic.topic),
                    });
                }
            }
            format!("fetched [{}]", all.join(", "))
        }
        Reply::Describe(None) => "no such group".into(),
        Reply::Describe(Some(described)) => describe(described),
        Reply::List(listed) => {
            let listed: Vec<String> = listed
                .iter()
                .map(|group| format!("{} {} {}", group.group, name(&group.protocol_type), group.state.name()))
                .collect();
            format!("listed [{}]", listed.join(", "))
        }
        Reply::Sync(Err(error))
        | Reply::Heartbeat(Err(error))
        | Reply::Leave(Err(error))
        | Reply::Commit(Err(error))
        | Reply::Fetch(Err(error))
        | Reply::DeleteOffsets(Err(error))
        | Reply::Delete(Err(error)) => format!("{error:?}"),
    };
    short(&shown)
}

fn describe(described: &Described) -> String {
    let members: Vec<String> = described
        .members
        .iter()
        .map(|member| {
            format!(
                "{}({}) {} {} '{}' [{}]",
                member.member,
                name(&member.instance),
                member.client_id,
                member.client_host,
                text(&member.metadata),
                text(&member.assignment)
            )
        })
        .collect();
    format!(
        "{} {}/{} {{{}}}",
        described.state.name(),
        name(&described.protocol_type),
        name(&described.protocol),
        members.join(", ")
    )
}

fn outcome<E: std::fmt::Debug>(result: &Result<(), E>) -> String {
    match result {
        Ok(()) => "ok".into(),
        Err(error) => format!("{error:?}"),
    }
}

fn partitions(results: &PartitionResults) -> String {
    let mut all = Vec::new();
    for (topic, partitions) in results {
        for (index, result) in partitions {
            all.push(format!("{topic}/{index} {}", outcome(result)));
        }
    }
    all.join(", ")
}

/// A record as a story shows it.
pub(super) fn show_record(raw: &RawRecord) -> String {
    let shown = match Record::decode(&raw.key, raw.value.as_deref()).unwrap() {
        Record::Offset { group, topic, partition, value: None } => {
            format!("{group} {topic}/{partition} removed")
        }
        Record::Offset { group, topic, partition, value: Some(value) } => {
            let expires = value.expires_at.map(|at| format!(" expires {at}")).unwrap_or_default();
            format!(
                "{group} {topic}/{partition}={}@{} '{}' at {}{expires}",
                value.offset, value.leader_epoch, value.metadata, value.committed_at
            )
        }
        Record::Group { group, value: None } => format!("{group} removed"),
        Record::Group { group, value: Some(value) } => {
            let members: Vec<String> = value
                .members
                .iter()
                .map(|member| {
                    let instance = member.instance.as_ref().map(|id| format!("({id})")).unwrap_or_default();
                    format!(
                        "{}{instance} {}/{} [{}]",
                        member.member,
                        member.session_timeout_ms,
                        member.rebalance_timeout_ms,
                        text(&member.assignment)
                    )
                })
                .collect();
            format!(
                "{group} generation {} {}/{} led by {} since {} {{{}}}",
                value.generation,
                value.protocol_type,
                name(&value.protocol),
                name(&value.leader),
                value.since,
                members.join(", ")
            )
        }
        unknown @ Record::Unknown { .. } => format!("{unknown:?}"),
    };
    short(&shown)
}
