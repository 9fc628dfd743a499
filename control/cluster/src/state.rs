//! The values of the control store, as every broker reads and writes them (`replication.md` section 2).
//!
//! They are kept as JSON: an operator can read them with the store's own tools, and a later version can add
//! fields. Deliberately absent: how they are kept (`control`) and who may change them (`decision`,
//! `eligible`, `promotion`).

use std::collections::{BTreeMap, BTreeSet};
use std::fmt;

use felix_protocol::ids::{BrokerId, Generation, LogId, Offset, SessionId, TopicId, Uuid};
use serde::{Deserialize, Serialize};
use thiserror::Error;

mod stored;

/// When a key was last written, in the store's own count. Every transaction has one, larger than all before.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq, PartialOrd, Ord, Hash, Serialize, Deserialize)]
pub struct Revision(pub u64);

impl Revision {
    /// The revision of a key that is not there.
    pub const ABSENT: Revision = Revision(0);
}

impl fmt::Display for Revision {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        self.0.fmt(f)
    }
}

/// Configs that were set on a topic, a broker or a group: only what an operator asked for, never a
/// default. What the names and values mean is the config table's business.
pub type Overrides = BTreeMap<String, String>;

/// `/cluster`: written once by the first node, changed only by an operator.
#[derive(Clone, Debug, PartialEq, Eq, Serialize, Deserialize)]
pub struct Cluster {
    /// The cluster's identity, Kafka's 22 letters.
    pub id: String,
    /// Rises when an operator restores the store or otherwise breaks its history.
    pub control_epoch: u64,
    /// L, milliseconds.
    pub lease_ms: u64,
    /// The largest L that a live session may still be using.
    pub lease_in_force_ms: u64,
    /// New tenures begin above it: what lies below may have been granted by a store of which this one is a backup.
    #[serde(default = "stored::zero", skip_serializing_if = "stored::is_zero", with = "stored::generation")]
    pub generation_floor: Generation,
    /// Up to which control epoch an operator has said that copies may be removed which the store does not know.
    #[serde(default, skip_serializing_if = "stored::is_none")]
    pub confirmed_epoch: u64,
}

impl Cluster {
    /// As it is founded.
    pub fn founded(id: &str, lease_ms: u64) -> Cluster {
        Cluster {
            id: id.to_owned(),
            control_epoch: 0,
            lease_ms,
            lease_in_force_ms: lease_ms,
            generation_floor: Generation::ZERO,
            confirmed_epoch: 0,
        }
    }
}

/// Where a node is in its life.
#[derive(Clone, Copy, Debug, PartialEq, Eq, Serialize, Deserialize)]
#[serde(rename_all = "lowercase")]
pub enum NodeState {
    /// Its session may lead.
    Live,
    /// It is about to stop: still leads what it leads, is named only as a last resort.
    Draining,
    /// Its session is over and can never renew. Written by others who waited, or by the node itself as the
    /// last act of a clean stop.
    Fenced,
}

/// A listener, as clients (or peers) are told to reach it.
#[derive(Clone, Debug, PartialEq, Eq, Serialize, Deserialize)]
pub struct Listener {
    /// Its name, `PLAINTEXT` when the operator gave none.
    pub name: String,
    /// The security protocol spoken there.
    pub protocol: String,
    /// Host name or address.
    pub host: String,
    /// Port.
    pub port: u16,
}

/// `/nodes/<id>`.
#[derive(Clone, Debug, PartialEq, Eq, Serialize, Deserialize)]
pub struct Node {
    /// The life that holds this id now.
    #[serde(with = "stored::session")]
    pub session: SessionId,
    /// Whether that session may lead.
    pub state: NodeState,
    /// The data directory's identity: another one under the same node id is a wiped broker.
    #[serde(with = "stored::uuid")]
    pub directory: Uuid,
    /// An fsync failed there; its logs need new ids before it may serve.
    #[serde(default, skip_serializing_if = "std::ops::Not::not")]
    pub suspect: bool,
    /// The machine's boot, so that a restart of the process can be told from a power loss.
    pub boot: String,
    /// Where clients reach it.
    pub listeners: Vec<Listener>,
    /// Where peers reach it; none on a single node.
    #[serde(default, skip_serializing_if = "Option::is_none")]
    pub internal: Option<Listener>,
    /// Failure domain, for placement.
    #[serde(default, skip_serializing_if = "Option::is_none")]
    pub rack: Option<String>,
    /// Version of the program.
    pub version: String,
}

impl Node {
    /// Whether this session may be named leader.
    pub fn may_lead(&self, session: SessionId) -> bool {
        self.session == session && self.state != NodeState::Fenced
    }
}

/// `/nodes/<id>/beat`: written with the node key at registration and by every beat.
#[derive(Clone, Debug, PartialEq, Eq, Serialize, Deserialize)]
pub struct Beat {
    /// Who beats.
    #[serde(with = "stored::session")]
    pub session: SessionId,
    /// How often it has.
    pub counter: u64,
}

/// `/topics/<topic id>`.
#[derive(Clone, Debug, PartialEq, Eq, Serialize, Deserialize)]
pub struct Topic {
    /// The name clients use.
    pub name: String,
    /// How many partitions there are to be; never falls.
    pub partitions: i32,
    /// How many replicas a partition gets that has no explicit assignment.
    pub replication_factor: i16,
    /// What the operator set.
    #[serde(default, skip_serializing_if = "BTreeMap::is_empty")]
    pub overrides: Overrides,
    /// Replicas that a client asked for explicitly, by partition.
    #[serde(default, skip_serializing_if = "BTreeMap::is_empty", with = "stored::assignments")]
    pub assignments: BTreeMap<i32, Vec<BrokerId>>,
}

/// `/topic-names/<folded name>`: makes a name unique.
#[derive(Clone, Debug, PartialEq, Eq, Serialize, Deserialize)]
pub struct TopicName {
    /// The topic's name as it was given.
    pub name: String,
    /// The topic.
    #[serde(with = "stored::topic")]
    pub topic: TopicId,
}

/// One copy of a partition: a broker and the identity of the log it holds. The same broker under another
/// log id is another copy.
#[derive(Clone, Copy, Debug, PartialEq, Eq, PartialOrd, Ord, Hash, Serialize, Deserialize)]
pub struct Pair {
    /// Who holds it.
    #[serde(with = "stored::broker")]
    pub broker: BrokerId,
    /// Which log.
    #[serde(with = "stored::log")]
    pub log: LogId,
}

/// Who leads a partition.
#[derive(Clone, Copy, Debug, PartialEq, Eq, PartialOrd, Ord, Hash, Serialize, Deserialize)]
pub struct Leader {
    /// The broker.
    #[serde(with = "stored::broker")]
    pub broker: BrokerId,
    /// The life of it that was named. A named session that is not the node's current one is dead.
    #[serde(with = "stored::session")]
    pub session: SessionId,
    /// The copy it must lead with. `None` only while nothing was ever acknowledged: any copy will do.
    #[serde(default, skip_serializing_if = "Option::is_none", with = "stored::log_option")]
    pub log: Option<LogId>,
}

/// The newest leader that opened.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq, PartialOrd, Ord, Hash, Serialize, Deserialize)]
#[serde(rename_all = "lowercase")]
pub enum Last {
    /// No leader ever opened. With an empty eligible set: nothing was acknowledged.
    #[default]
    Never,
    /// The last one that did has declined or was given up by an operator.
    Nobody,
    /// This copy, at this generation.
    Opened {
        /// The copy.
        pair: Pair,
        /// Its tenure.
        #[serde(with = "stored::generation")]
        generation: Generation,
    },
}

impl Last {
    /// The copy, if there is one.
    pub fn pair(&self) -> Option<Pair> {
        match self {
            Last::Opened { pair, .. } => Some(*pair),
            Last::Never | Last::Nobody => None,
        }
    }
}

/// Why a candidate declined to lead.
#[derive(Clone, Copy, Debug, PartialEq, Eq, PartialOrd, Ord, Hash, Serialize, Deserialize)]
#[serde(rename_all = "lowercase")]
pub enum DeclineReason {
    /// The copy that was named is not there any more.
    Wiped,
    /// It is there, but part of what it acknowledged may be missing.
    Doubt,
}

/// A copy that declined since the last leader opened.
#[derive(Clone, Copy, Debug, PartialEq, Eq, PartialOrd, Ord, Hash, Serialize, Deserialize)]
pub struct Gone {
    /// The copy that was named.
    #[serde(flatten)]
    pub pair: Pair,
    /// Why it declined.
    pub reason: DeclineReason,
    /// What the broker holds now in its place, if anything.
    #[serde(default, skip_serializing_if = "Option::is_none", with = "stored::log_option")]
    pub current: Option<LogId>,
    /// The newest generation which that copy accepted.
    #[serde(with = "stored::generation")]
    pub accepted: Generation,
    /// Where it ends.
    pub end: Offset,
}

/// A leader's parting word.
#[derive(Clone, Debug, PartialEq, Eq, PartialOrd, Ord, Hash, Serialize, Deserialize)]
pub struct Resigned {
    /// Where its log ended.
    pub end: Offset,
    /// The copies that hold all of it; a subset of the eligible ones.
    pub pairs: BTreeSet<Pair>,
}

/// `/partitions/<topic id>/<p>`.
#[derive(Clone, Debug, PartialEq, Eq, PartialOrd, Ord, Hash, Serialize, Deserialize)]
pub struct Partition {
    /// The newest tenure. Invariant: never falls.
    #[serde(with = "stored::generation")]
    pub generation: Generation,
    /// Who has it.
    #[serde(default, skip_serializing_if = "Option::is_none")]
    pub leader: Option<Leader>,
    /// The newest leader that opened.
    pub last: Last,
    /// Who holds copies.
    #[serde(with = "stored::brokers")]
    pub replicas: Vec<BrokerId>,
    /// Those of them that are staged and not counted yet.
    #[serde(default, skip_serializing_if = "Vec::is_empty", with = "stored::brokers")]
    pub adding: Vec<BrokerId>,
    /// Those that leave when the reassignment completes.
    #[serde(default, skip_serializing_if = "Vec::is_empty", with = "stored::brokers")]
    pub removing: Vec<BrokerId>,
    /// The copies that hold everything acknowledged, besides the leader's. Invariant: at most one a
    /// broker, and never the opened leader's.
    #[serde(default, skip_serializing_if = "BTreeSet::is_empty")]
    pub eligible: BTreeSet<Pair>,
    /// Copies that declined since the last leader opened.
    #[serde(default, skip_serializing_if = "Vec::is_empty")]
    pub gone: Vec<Gone>,
    /// What the last leader left when it resigned.
    #[serde(default, skip_serializing_if = "Option::is_none")]
    pub resigned: Option<Resigned>,
    /// The generation of the newest unclean promotion.
    #[serde(default, skip_serializing_if = "Option::is_none", with = "stored::generation_option")]
    pub unclean_at: Option<Generation>,
}

impl Partition {
    /// A partition as it is created: placed, and nothing else.
    pub fn placed(replicas: Vec<BrokerId>) -> Partition {
        Partition {
            generation: Generation::ZERO,
            leader: None,
            last: Last::Never,
            replicas,
            adding: Vec::new(),
            removing: Vec::new(),
            eligible: BTreeSet::new(),
            gone: Vec::new(),
            resigned: None,
            unclean_at: None,
        }
    }

    /// Whether the leader has opened: only then may anything be acknowledged.
    pub fn opened(&self) -> bool {
        match self.last {
            Last::Opened { generation, .. } => self.leader.is_some() && generation == self.generation,
            Last::Never | Last::Nobody => false,
        }
    }

    /// Whether nothing can have been acknowledged yet.
    pub fn untouched(&self) -> bool {
        self.last == Last::Never && self.eligible.is_empty()
    }

    /// The copies that may be promoted: eligible ∪ {last}.
    pub fn promotable(&self) -> BTreeSet<Pair> {
        self.eligible.iter().copied().chain(self.last.pair()).collect()
    }
}

/// `/producer-ids`: where the next block begins.
#[derive(Clone, Debug, PartialEq, Eq, Serialize, Deserialize)]
pub struct ProducerIds {
    /// The first id never given to anyone.
    pub next: i64,
    /// Who took the newest block; tells one's own write from another's after an unknown outcome.
    #[serde(with = "stored::broker")]
    pub broker: BrokerId,
    /// Its session.
    #[serde(with = "stored::session")]
    pub session: SessionId,
}

/// `/features`: the levels the cluster has agreed on.
#[derive(Clone, Debug, Default, PartialEq, Eq, Serialize, Deserialize)]
pub struct FinalizedFeatures {
    /// Level by feature name; a feature at level 0 is absent.
    pub levels: BTreeMap<String, i16>,
}

/// `/quotas/...`: an entity's limits.
#[derive(Clone, Debug, Default, PartialEq, Serialize, Deserialize)]
pub struct Quotas {
    /// Number by Kafka's name of the limit. Kept as text: that reads back as exactly the same number.
    #[serde(with = "stored::limits")]
    pub limits: BTreeMap<String, f64>,
}

/// A value that is not what its key promises.
#[derive(Clone, Debug, PartialEq, Eq, Error)]
#[error("{key} holds something unreadable: {problem}")]
pub struct Unreadable {
    /// The key.
    pub key: String,
    /// What is wrong with its value.
    pub problem: String,
}

/// The stored form of a value.
pub fn encode<T: Serialize>(value: &T) -> Vec<u8> {
    // None of the types above can fail to serialise: no map has keys other than strings.
    serde_json::to_vec(value).unwrap_or_default()
}

/// Reads a stored value back.
pub fn decode<'a, T: Deserialize<'a>>(key: &str, bytes: &'a [u8]) -> Result<T, Unreadable> {
    serde_json::from_slice(bytes)
        .map_err(|problem| Unreadable { key: key.to_owned(), problem: problem.to_string() })
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn a_partition_survives_the_store() {
        let pair = Pair { broker: BrokerId(2), log: LogId(Uuid::from_u128(7)) };
        let generation = Generation::new(9).unwrap();
        let mut partition = Partition::placed(vec![BrokerId(1), BrokerId(2)]);
        let bytes = encode(&partition);
        assert_eq!(
            String::from_utf8(bytes.clone()).unwrap(),
            r#"{"generation":0,"last":"never","replicas":[1,2]}"#
        );
        assert_eq!(decode::<Partition>("p", &bytes).unwrap(), partition);
        partition.generation = generation;
        partition.leader =
            Some(Leader { broker: BrokerId(1), session: SessionId(u64::MAX), log: Some(LogId::random()) });
        partition.last = Last::Opened { pair, generation };
        partition.eligible.insert(pair);
        partition.gone.push(Gone {
            pair,
            reason: DeclineReason::Doubt,
            current: Some(LogId::random()),
            accepted: generation,
            end: 17,
        });
        partition.resigned = Some(Resigned { end: 17, pairs: BTreeSet::from([pair]) });
        partition.unclean_at = Some(generation);
        assert_eq!(decode::<Partition>("p", &encode(&partition)).unwrap(), partition);
    }

    #[test]
    fn a_topic_survives_the_store() {
        let topic = Topic {
            name: "orders".to_owned(),
            partitions: 2,
            replication_factor: 1,
            overrides: Overrides::from([("retention.ms".to_owned(), "-1".to_owned())]),
            assignments: BTreeMap::from([(1, vec![BrokerId(3)])]),
        };
        assert_eq!(decode::<Topic>("t", &encode(&topic)).unwrap(), topic);
        let problem = decode::<Topic>("/topics/x", b"{").unwrap_err();
        assert!(problem.to_string().starts_with("/topics/x holds something unreadable"));
    }
}
