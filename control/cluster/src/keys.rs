//! The key table (`replication.md` section 2): which keys there are and how they are spelled.

use std::fmt;

use felix_protocol::ids::{BrokerId, PartitionId, TopicId};

use crate::quotas::{Entity, Who};

/// One key of the control store, without the cluster's prefix.
#[derive(Clone, Debug, PartialEq, Eq, PartialOrd, Ord, Hash)]
pub enum Key {
    /// Identity and lease parameters of the cluster.
    Cluster,
    /// One node's registration.
    Node(BrokerId),
    /// Its heartbeat.
    Beat(BrokerId),
    /// What it is asked to give up.
    Revoke(BrokerId),
    /// One topic.
    Topic(TopicId),
    /// The index that makes names unique. Holds the *folded* name ([`folded`]), so that the compare "this
    /// key is absent" also refuses two names that differ only in `.` and `_`.
    TopicName(String),
    /// One partition.
    Partition(PartitionId),
    /// Overrides of one broker.
    BrokerConfigs(BrokerId),
    /// Overrides of all brokers.
    ClusterConfigs,
    /// Overrides of one group.
    GroupConfigs(String),
    /// Overrides of one subscription to the metrics of clients.
    ClientMetricsConfigs(String),
    /// An entity's quotas.
    Quotas(Entity),
    /// Where the next block of producer ids begins.
    ProducerIds,
    /// The agreed feature levels.
    Features,
}

/// The name under which a topic's name is unique: names that differ only in `.` and `_` would collide in
/// the names of metrics, so Kafka refuses the second.
pub fn folded(name: &str) -> String {
    name.replace('.', "_")
}

impl fmt::Display for Key {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        match self {
            Key::Cluster => f.write_str("/cluster"),
            Key::Node(node) => write!(f, "/nodes/{node}"),
            Key::Beat(node) => write!(f, "/nodes/{node}/beat"),
            Key::Revoke(node) => write!(f, "/nodes/{node}/revoke"),
            Key::Topic(topic) => write!(f, "/topics/{topic}"),
            Key::TopicName(name) => write!(f, "/topic-names/{name}"),
            Key::Partition(id) => write!(f, "/partitions/{}/{}", id.topic, id.index),
            Key::BrokerConfigs(node) => write!(f, "/configs/brokers/{node}"),
            Key::ClusterConfigs => f.write_str("/configs/cluster"),
            Key::GroupConfigs(group) => write!(f, "/configs/groups/{}", Escaped(group)),
            Key::ClientMetricsConfigs(name) => write!(f, "/configs/client-metrics/{}", Escaped(name)),
            Key::Quotas(entity) => match entity {
                Entity::User(user) => write!(f, "/quotas/users/{}", Spelled(user)),
                Entity::Client(client) => write!(f, "/quotas/clients/{}", Spelled(client)),
                Entity::UserClient(user, client) => {
                    write!(f, "/quotas/users/{}/clients/{}", Spelled(user), Spelled(client))
                }
                Entity::Ip(ip) => write!(f, "/quotas/ips/{}", Spelled(ip)),
            },
            Key::ProducerIds => f.write_str("/producer-ids"),
            Key::Features => f.write_str("/features"),
        }
    }
}

impl Key {
    /// The key that is spelled so; `None` for what a newer version may have added.
    pub fn parse(text: &str) -> Option<Key> {
        let mut parts = text.strip_prefix('/')?.split('/');
        let key = match parts.next()? {
            "cluster" => Key::Cluster,
            "nodes" => {
                let node = BrokerId(parts.next()?.parse().ok()?);
                match parts.next() {
                    None => Key::Node(node),
                    Some("beat") => Key::Beat(node),
                    Some("revoke") => Key::Revoke(node),
                    Some(_) => return None,
                }
            }
            "topics" => Key::Topic(TopicId::parse(parts.next()?)?),
            "topic-names" => Key::TopicName(parts.next()?.to_owned()),
            "partitions" => {
                let topic = TopicId::parse(parts.next()?)?;
                Key::Partition(PartitionId { topic, index: parts.next()?.parse().ok()? })
            }
            "configs" => match parts.next()? {
                "brokers" => Key::BrokerConfigs(BrokerId(parts.next()?.parse().ok()?)),
                "cluster" => Key::ClusterConfigs,
                "groups" => Key::GroupConfigs(unescaped(parts.next()?)?),
                "client-metrics" => Key::ClientMetricsConfigs(unescaped(parts.next()?)?),
                _ => return None,
            },
            "quotas" => Key::Quotas(quota_entity(&mut parts)?),
            "producer-ids" => Key::ProducerIds,
            "features" => Key::Features,
            _ => return None,
        };
        parts.next().is_none().then_some(key)
    }
}

fn quota_entity<'a>(parts: &mut impl Iterator<Item = &'a str>) -> Option<Entity> {
    let (kind, who) = (parts.next()?, unspelled(parts.next()?)?);
    match (kind, parts.next()) {
        ("users", Some("clients")) => Some(Entity::UserClient(who, unspelled(parts.next()?)?)),
        ("users", None) => Some(Entity::User(who)),
        ("clients", None) => Some(Entity::Client(who)),
        ("ips", None) => Some(Entity::Ip(who)),
        _ => None,
    }
}

/// The default as a word that no escaped name can be.
const DEFAULT: &str = "<default>";

struct Spelled<'a>(&'a Who);

impl fmt::Display for Spelled<'_> {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        match self.0 {
            Who::Default => f.write_str(DEFAULT),
            Who::Named(name) => Escaped(name).fmt(f),
        }
    }
}

fn unspelled(text: &str) -> Option<Who> {
    if text == DEFAULT { Some(Who::Default) } else { unescaped(text).map(Who::Named) }
}

/// A group, a subscription or a user may be called anything: letters outside Kafka's topic alphabet are written as `%` and two digits.
struct Escaped<'a>(&'a str);

impl fmt::Display for Escaped<'_> {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        for byte in self.0.bytes() {
            if byte.is_ascii_alphanumeric() || matches!(byte, b'.' | b'_' | b'-') {
                write!(f, "{}", char::from(byte))?;
            } else {
                write!(f, "%{byte:02X}")?;
            }
        }
        Ok(())
    }
}

fn unescaped(text: &str) -> Option<String> {
    let mut bytes = Vec::with_capacity(text.len());
    let mut rest = text.as_bytes();
    while let Some((first, behind)) = rest.split_first() {
        if *first == b'%' {
            let digits = std::str::from_utf8(behind.get(..2)?).ok()?;
            bytes.push(u8::from_str_radix(digits, 16).ok()?);
            rest = &behind[2..];
        } else {
            bytes.push(*first);
            rest = behind;
        }
    }
    String::from_utf8(bytes).ok()
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn every_key_reads_back() {
        let topic = TopicId::random();
        let keys = [
            Key::Cluster,
            Key::Node(BrokerId(1)),
            Key::Beat(BrokerId(1)),
            Key::Revoke(BrokerId(17)),
            Key::Topic(topic),
            Key::TopicName("orders_v1".to_owned()),
            Key::Partition(PartitionId { topic, index: 12 }),
            Key::BrokerConfigs(BrokerId(0)),
            Key::ClusterConfigs,
            Key::GroupConfigs("a/b c%\u{e9}".to_owned()),
            Key::ClientMetricsConfigs("a/b c%\u{e9}".to_owned()),
            Key::GroupConfigs(String::new()),
            Key::Quotas(Entity::User(Who::Default)),
            Key::Quotas(Entity::User(Who::Named("<default>".to_owned()))),
            Key::Quotas(Entity::Client(Who::Named("a/b%".to_owned()))),
            Key::Quotas(Entity::UserClient(Who::Named("clients".to_owned()), Who::Default)),
            Key::Quotas(Entity::Ip(Who::Named("::1".to_owned()))),
            Key::ProducerIds,
            Key::Features,
        ];
        for key in keys {
            assert_eq!(Key::parse(&key.to_string()), Some(key));
        }
        for strange in [
            "",
            "/",
            "/nodes",
            "/nodes/x",
            "/nodes/1/other",
            "/cluster/more",
            "/later/1",
            "cluster",
            "/quotas/users",
            "/quotas/groups/a",
            "/quotas/clients/a/users/b",
        ] {
            assert_eq!(Key::parse(strange), None, "{strange}");
        }
    }

    #[test]
    fn names_that_collide_fold_to_one() {
        assert_eq!(folded("a.b_c"), folded("a_b.c"));
        assert_ne!(folded("a.b"), folded("ab"));
    }
}
