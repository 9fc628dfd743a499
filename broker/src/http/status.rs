//! `/status`: what this broker knows of the cluster, and what is wrong with it. `felix status` prints it, `felix recover`
//! asks it what a broker holds.
//!
//! Lists are cut after a few rows, because an outage makes them as long as there are partitions; `/status?all` has all
//! rows. `/status?copies=TOPIC-NUMBER,...` says what this broker holds of partitions, led or not.

use std::collections::BTreeMap;
use std::time::Duration;

use felix_cluster::reassign;
use felix_cluster::state::{DeclineReason, NodeState};
use felix_cluster::view::{PartitionView, View};
use felix_protocol::ids::{BrokerId, PartitionId, SessionId};
use felix_protocol::time::MonoTime;
use felix_storage::Replica;
use serde::{Deserialize, Serialize};

/// Rows of each list, unless all are asked for.
const ROWS: usize = 20;
/// Copies that can be asked about at once.
const COPIES: usize = 256;
/// A node whose beats were not heard of for so many leases is shown as silent.
const SILENT_LEASES: u32 = 2;

/// The page.
#[derive(Clone, Debug, PartialEq, Eq, Serialize, Deserialize)]
pub struct Status {
    /// Nothing is wrong.
    pub healthy: bool,
    /// What is, one line each.
    pub problems: Vec<String>,
    /// The cluster.
    pub cluster: Cluster,
    /// The broker that was asked.
    pub asked: Asked,
    /// All nodes that ever registered and were not removed.
    pub nodes: Vec<Node>,
    /// How many partitions are in which state.
    pub partitions: Counts,
    /// Nobody leads them.
    pub leaderless: List<Row>,
    /// Somebody is named to lead them who has not opened them yet.
    pub opening: List<Row>,
    /// Fewer copies than there are to be hold everything that was acknowledged.
    pub under_replicated: List<Row>,
    /// Their replicas are being changed.
    pub moving: List<Row>,
    /// Copies on the asked broker that stopped for good.
    pub halted: List<Halted>,
    /// Copies on the asked broker that the control store does not know. They are kept until `felix recover confirm`.
    pub unknown_copies: List<String>,
    /// What the asked broker holds of the partitions that were asked about.
    #[serde(default, skip_serializing_if = "Vec::is_empty")]
    pub copies: Vec<Copy>,
}

/// The beginning of a list.
#[derive(Clone, Debug, PartialEq, Eq, Serialize, Deserialize)]
pub struct List<T> {
    /// How long it is.
    pub count: usize,
    /// Its first rows.
    pub first: Vec<T>,
}

impl<T> List<T> {
    fn of(rows: impl Iterator<Item = T>, limit: usize) -> List<T> {
        let mut list = List { count: 0, first: Vec::new() };
        for row in rows {
            list.count += 1;
            if list.first.len() < limit {
                list.first.push(row);
            }
        }
        list
    }
}

/// The cluster as a whole.
#[derive(Clone, Debug, PartialEq, Eq, Serialize, Deserialize)]
pub struct Cluster {
    /// Its identity.
    pub id: String,
    /// L.
    pub lease_ms: u64,
    /// How far the control store has come.
    pub revision: u64,
    /// Rises with `felix recover store`.
    pub control_epoch: u64,
    /// False from `felix recover store` to `felix recover confirm`.
    pub confirmed: bool,
}

/// The broker that answers.
#[derive(Clone, Debug, PartialEq, Eq, Serialize, Deserialize)]
pub struct Asked {
    /// Its id.
    pub node: i32,
    /// Its program's version.
    pub version: String,
    /// Its session.
    pub session: String,
    /// What is left of its lease; negative: it has run out. Null: the lock on the data directory is the lease.
    pub lease_left_ms: Option<i64>,
    /// How many sessions its process has had.
    pub sessions: u64,
    /// Whether it serves clients.
    pub ready: bool,
}

/// A node.
#[derive(Clone, Debug, PartialEq, Eq, Serialize, Deserialize)]
pub struct Node {
    /// Its id.
    pub id: i32,
    /// live, draining or fenced.
    pub state: NodeState,
    /// Its session.
    pub session: String,
    /// How long ago the asked broker heard of a beat of it; null where it never did, or nobody beats.
    pub heard_ms_ago: Option<u64>,
    /// Its failure domain.
    pub rack: Option<String>,
    /// Where clients reach it.
    pub address: String,
    /// Its program's version.
    pub version: String,
    /// A flush failed on its disk.
    pub suspect: bool,
    /// Partitions that it leads.
    pub leads: usize,
    /// Partitions of which it has a replica.
    pub replicas: usize,
    /// Partitions that it is asked to give up.
    pub to_give_up: usize,
}

/// Partitions by their state.
#[derive(Clone, Copy, Debug, PartialEq, Eq, Serialize, Deserialize)]
pub struct Counts {
    /// Topics.
    pub topics: usize,
    /// Partitions.
    pub total: usize,
}

/// A partition that is not as it should be.
#[derive(Clone, Debug, PartialEq, Eq, Serialize, Deserialize)]
pub struct Row {
    /// Topic and number.
    pub partition: String,
    /// Its newest tenure.
    pub generation: u32,
    /// Who has it.
    pub leader: Option<i32>,
    /// Who holds copies.
    pub replicas: Vec<i32>,
    /// Whose copies hold everything that was acknowledged, besides a leader's.
    pub eligible: Vec<i32>,
    /// Who declined to lead it, and why.
    #[serde(default, skip_serializing_if = "BTreeMap::is_empty")]
    pub declined: BTreeMap<i32, DeclineReason>,
}

/// A copy that stopped for good.
#[derive(Clone, Debug, PartialEq, Eq, Serialize, Deserialize)]
pub struct Halted {
    /// Topic and number.
    pub partition: String,
    /// Why.
    pub reason: String,
    /// What to do.
    pub remedy: String,
}

/// What a broker holds of a partition.
#[derive(Clone, Debug, PartialEq, Eq, Serialize, Deserialize)]
pub struct Copy {
    /// Topic and number.
    pub partition: String,
    /// Its identity; null: it holds none.
    pub log: Option<String>,
    /// The newest generation that it accepted.
    pub accepted: u32,
    /// Where it ends, at least.
    pub end: i64,
}

/// What the page is made of.
pub struct Facts<'a> {
    /// What is known of the cluster.
    pub view: &'a View,
    /// The broker itself.
    pub node: BrokerId,
    /// Its session.
    pub session: SessionId,
    /// How many there were.
    pub sessions: u64,
    /// When its lease ends.
    pub lease_ends_at: MonoTime,
    /// Now.
    pub now: MonoTime,
    /// When it heard of each node's beats.
    pub heard: BTreeMap<BrokerId, MonoTime>,
    /// Whether it serves clients.
    pub ready: bool,
    /// What keeps it from being whole.
    pub sick: Option<String>,
    /// Its halted copies.
    pub halted: Vec<felix_replication::halted::Halted>,
    /// Copies in its directory that the store does not know.
    pub unknown: Vec<PartitionId>,
    /// Tells what it holds.
    pub holds: &'a dyn Fn(&PartitionId) -> Option<Replica>,
}

/// What is asked for behind the `?`.
#[derive(Clone, Debug, Default, PartialEq, Eq)]
pub struct Query {
    all: bool,
    copies: Vec<String>,
}

impl Query {
    /// Takes the part of a request apart that is behind the `?`; what is unknown is passed over.
    pub fn parse(text: &str) -> Query {
        let mut query = Query::default();
        for part in text.split('&') {
            match part.split_once('=') {
                None => query.all |= part == "all",
                Some(("copies", names)) => {
                    query.copies = names.split(',').take(COPIES).map(str::to_owned).collect();
                }
                Some(_) => {}
            }
        }
        query
    }
}

/// The page as text.
pub fn page(facts: &Facts<'_>, query: &Query) -> String {
    // Numbers and texts only: there is nothing that could not be written.
    let mut page = serde_json::to_string_pretty(&status(facts, query)).unwrap_or_default();
    page.push('\n');
    page
}

/// The partition of that name, `TOPIC-NUMBER`.
pub fn partition_named(view: &View, name: &str) -> Option<PartitionId> {
    let (topic, index) = name.rsplit_once('-')?;
    let topic = view.topic_named(topic)?;
    let id = PartitionId { topic: topic.id, index: index.parse().ok()? };
    view.partition(&id).map(|partition| partition.id)
}

/// A partition as people call it; by its topic's id where that has no name any more.
pub fn name(view: &View, id: &PartitionId) -> String {
    match view.topic(&id.topic) {
        Some(topic) => format!("{}-{}", topic.name, id.index),
        None => id.to_string(),
    }
}

fn status(facts: &Facts<'_>, query: &Query) -> Status {
    let view = facts.view;
    let limit = if query.all { usize::MAX } else { ROWS };
    let list = |wanted: &dyn Fn(&PartitionView) -> bool| {
        let wanted = view.partitions().filter(|partition| wanted(partition));
        List::of(wanted.map(|partition| row(view, partition)), limit)
    };
    let is_led =
        |one: &PartitionView| one.leader().is_some_and(|leader| view.may_lead(leader.broker, leader.session));
    let lease_left_ms = (facts.lease_ends_at != MonoTime::NEVER).then(|| {
        let ms = |time: Duration| i64::try_from(time.as_millis()).unwrap_or(i64::MAX);
        ms(facts.lease_ends_at.since(facts.now)) - ms(facts.now.since(facts.lease_ends_at))
    });
    let halted = |one: &felix_replication::halted::Halted| Halted {
        partition: name(view, &one.partition),
        reason: one.reason.to_string(),
        remedy: one.reason.remedy().to_owned(),
    };
    let cluster = Cluster {
        id: view.cluster_id().to_owned(),
        lease_ms: view.lease_ms(),
        revision: view.revision().0,
        control_epoch: view.control_epoch(),
        confirmed: view.is_confirmed(),
    };
    let asked = Asked {
        node: facts.node.0,
        version: env!("CARGO_PKG_VERSION").to_owned(),
        session: facts.session.to_string(),
        lease_left_ms,
        sessions: facts.sessions,
        ready: facts.ready,
    };
    let mut status = Status {
        healthy: true,
        problems: Vec::new(),
        cluster,
        asked,
        nodes: nodes(facts),
        partitions: Counts { topics: view.topic_count(), total: view.partition_count() },
        leaderless: list(&|one| !is_led(one)),
        opening: list(&|one| is_led(one) && !one.opened()),
        under_replicated: list(&|one| is_led(one) && one.opened() && is_short(view, one)),
        moving: list(&|one| reassign::in_progress(&one.state)),
        halted: List::of(facts.halted.iter().map(halted), limit),
        unknown_copies: List::of(facts.unknown.iter().map(PartitionId::to_string), limit),
        copies: query.copies.iter().map(|name| copy(facts, name)).collect(),
    };
    status.problems = problems(facts, &status);
    status.healthy = status.problems.is_empty();
    status
}

fn copy(facts: &Facts<'_>, name: &str) -> Copy {
    let held = partition_named(facts.view, name).and_then(|id| (facts.holds)(&id));
    Copy {
        partition: name.to_owned(),
        log: held.map(|row| row.log_id.to_string()),
        accepted: held.map_or(0, |row| row.accepted.number()),
        end: held.map_or(0, |row| row.synced),
    }
}

/// Whether fewer live copies hold everything than there are to be.
fn is_short(view: &View, partition: &PartitionView) -> bool {
    let state = &partition.state;
    let live = |id: BrokerId| view.broker(id).is_some_and(|node| !node.is_fenced());
    let level = 1 + state.eligible.iter().filter(|pair| live(pair.broker)).count();
    level < state.replicas.len() - state.adding.len()
}

fn row(view: &View, partition: &PartitionView) -> Row {
    let state = &partition.state;
    Row {
        partition: name(view, &partition.id),
        generation: state.generation.number(),
        leader: state.leader.map(|leader| leader.broker.0),
        replicas: state.replicas.iter().map(|id| id.0).collect(),
        eligible: state.promotable().iter().map(|pair| pair.broker.0).collect(),
        declined: state.gone.iter().map(|gone| (gone.pair.broker.0, gone.reason)).collect(),
    }
}

fn nodes(facts: &Facts<'_>) -> Vec<Node> {
    let view = facts.view;
    let (mut leads, mut replicas) = (BTreeMap::new(), BTreeMap::new());
    for partition in view.partitions() {
        if let Some(leader) = partition.leader_id() {
            *leads.entry(leader).or_insert(0) += 1;
        }
        for replica in &partition.state.replicas {
            *replicas.entry(*replica).or_insert(0) += 1;
        }
    }
    let one = |(id, node): (BrokerId, &std::sync::Arc<felix_cluster::view::NodeView>)| Node {
        id: id.0,
        state: node.node.state,
        session: node.node.session.to_string(),
        heard_ms_ago: facts.heard.get(&id).map(|at| ms(facts.now.since(*at))),
        rack: node.node.rack.clone(),
        address: node.node.listeners.first().map(|at| format!("{}:{}", at.host, at.port)).unwrap_or_default(),
        version: node.node.version.clone(),
        suspect: node.node.suspect,
        leads: leads.get(&id).copied().unwrap_or(0),
        replicas: replicas.get(&id).copied().unwrap_or(0),
        to_give_up: view.revocations(id).map_or(0, |set| set.value.iter().count()),
    };
    view.nodes().map(one).collect()
}

fn ms(time: Duration) -> u64 {
    u64::try_from(time.as_millis()).unwrap_or(u64::MAX)
}

/// One line each. What passes by itself in a moment (openings, moves) is none.
fn problems(facts: &Facts<'_>, status: &Status) -> Vec<String> {
    let mut problems = Vec::new();
    let asked = status.asked.node;
    if !status.asked.ready {
        problems.push(format!("broker {asked} does not serve clients yet, or not any more"));
    }
    if status.asked.lease_left_ms.is_some_and(|left| left <= 0) {
        problems.push(format!("broker {asked} has no lease: it does not reach the control store in time"));
    }
    problems.extend(facts.sick.iter().map(|sick| format!("broker {asked}: {sick}")));
    let silent = status.cluster.lease_ms.saturating_mul(u64::from(SILENT_LEASES));
    for node in &status.nodes {
        let ago = node.heard_ms_ago.map(|ms| format!(", last heard of {} s ago", ms / 1000));
        let ago = ago.unwrap_or_default();
        if node.suspect {
            problems.push(format!("node {}: a flush failed on its disk", node.id));
        }
        if node.state == NodeState::Fenced {
            problems.push(format!("node {} is down: its session was ended{ago}", node.id));
        } else if node.heard_ms_ago.is_some_and(|ms| ms > silent) && node.id != asked {
            problems.push(format!("node {} is silent{ago}", node.id));
        }
    }
    for (count, what) in [
        (status.leaderless.count, "have no leader: nothing can be read or written there"),
        (status.under_replicated.count, "have fewer copies that hold everything than they should"),
    ] {
        if count > 0 {
            problems.push(format!("{count} partitions {what}"));
        }
    }
    if !status.cluster.confirmed {
        problems.push(
            "the control store was recovered from a backup; copies that it does not know are kept until `felix recover \
             confirm`"
                .to_owned(),
        );
    }
    problems
}

#[cfg(test)]
mod tests;
