//! What handlers and connections reach: one broker's parts, wired by `server`.

use std::collections::BTreeMap;
use std::net::IpAddr;
use std::sync::Arc;
use std::time::Duration;

use felix_cluster::config::BrokerConfig;
use felix_cluster::view::View;
use felix_control::agent::Agent;
use felix_protocol::ids::BrokerId;
use felix_protocol::time::{Clock, MonoTime};
use parking_lot::Mutex;
use tokio_util::sync::CancellationToken;

use crate::admin::producer_ids::ProducerIds;
use crate::budget::Budget;
use crate::clock::SystemClock;
use crate::coordinators::Coordinators;
use crate::descriptors::Descriptors;
use crate::fetching::readers::Readers;
use crate::fetching::session::Sessions;
use crate::handlers;
use crate::metrics::{ApiMetrics, Metrics};
use crate::partitions::Partitions;
use crate::peers::Lost;
use crate::quota::Quotas;
use crate::view::Configs;

/// Limits of sockets, as configured now.
#[derive(Clone, Debug)]
pub struct Limits {
    /// `socket.request.max.bytes`
    pub request_max_bytes: usize,
    /// `connections.max.idle.ms`
    pub max_idle: Duration,
    /// `max.connections`
    pub max_connections: usize,
    /// `max.connections.per.ip`
    pub max_connections_per_ip: usize,
    /// `max.connections.per.ip.overrides`
    pub max_connections_per_ip_overrides: Vec<(IpAddr, u32)>,
}

/// What stands for "never" where a timer needs a number.
const NEVER: Duration = Duration::from_secs(365 * 24 * 3600);

impl Limits {
    /// What a config says of sockets.
    pub fn of(config: &BrokerConfig) -> Limits {
        let net = &config.net;
        Limits {
            request_max_bytes: net.request_max_bytes as usize,
            max_idle: net.max_idle_ms.map_or(NEVER, Duration::from_millis).min(NEVER),
            max_connections: net.max_connections as usize,
            max_connections_per_ip: net.max_connections_per_ip as usize,
            max_connections_per_ip_overrides: net.max_connections_per_ip_overrides.clone(),
        }
    }

    /// How many connections one address may have.
    pub fn max_connections_from(&self, address: IpAddr) -> usize {
        let own = self.max_connections_per_ip_overrides.iter().find(|(of, _)| *of == address);
        own.map_or(self.max_connections_per_ip, |(_, most)| *most as usize)
    }
}

/// One broker.
pub struct Node {
    /// This broker's id.
    pub id: BrokerId,
    /// The clock.
    pub clock: SystemClock,
    /// What the process may have open.
    pub descriptors: Descriptors,
    /// The metrics.
    pub metrics: Metrics,
    /// The series of each API, in the order of the list of handlers; a last one for what is none of them.
    pub api_metrics: Vec<ApiMetrics>,
    /// Memory for requests and answers.
    pub budget: Budget,
    /// Cancelled when the broker stops: nothing new is taken, long waits are answered.
    pub closing: CancellationToken,
    /// The settings in force.
    pub configs: Configs,
    /// What is known of the cluster, and every administrative write.
    pub agent: Agent,
    /// The partitions that this broker leads.
    pub partitions: Arc<Partitions>,
    /// The groups that this broker coordinates.
    pub coordinators: Arc<Coordinators>,
    /// Fetch sessions.
    pub sessions: Sessions,
    /// Threads that may wait for the disk in place of a connection.
    pub readers: Readers,
    /// Ids for idempotent producers.
    pub producer_ids: ProducerIds,
    /// Who is over a limit.
    pub quotas: Arc<Quotas>,
    /// Answers about all topics, shared by everyone who asks the same.
    pub metadata: Mutex<handlers::metadata::Cache>,
}

/// Where a client reaches a broker.
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct Place {
    /// Host name or address.
    pub host: String,
    /// Port.
    pub port: u16,
    /// The broker's rack.
    pub rack: Option<String>,
}

impl Node {
    /// The limits of sockets.
    pub fn limits(&self) -> Limits {
        let limits = Limits::of(&self.config());
        let max_connections = limits.max_connections.min(self.descriptors.connections);
        Limits { max_connections, ..limits }
    }

    /// What is known of the cluster.
    pub fn view(&self) -> Arc<View> {
        self.agent.view()
    }

    /// What this broker obeys.
    pub fn config(&self) -> Arc<BrokerConfig> {
        self.configs.broker(&self.view())
    }

    /// This broker's own id while its lease has run out. What the control store says it leads it does not lead then, and a
    /// client that is told otherwise would come here in vain until the others have noticed.
    pub fn without_lease(&self) -> Option<BrokerId> {
        (self.agent.lease().ends_at() <= self.clock.now()).then_some(self.id)
    }

    /// The brokers that lead nothing now, whatever the control store says: this one without its lease, and those that have
    /// [`gone`]. Clients that look for a leader are told that there is none: they would only go there in vain.
    pub fn not_leading(&self, view: &View) -> Vec<BrokerId> {
        let mut not_leading: Vec<BrokerId> = self.without_lease().into_iter().collect();
        let lost = self.partitions.lost_peers();
        if !lost.is_empty() {
            not_leading.extend(gone(view, &lost, &self.agent.heard()));
        }
        not_leading
    }

    /// This broker's own id when its lease has been over for so long that the others, if they are there, have ended its session. What it
    /// knows is old then, and clients had better ask another one. librdkafka asks the broker that it used last, again and
    /// again, for as long as that broker tells of itself.
    pub fn left_out(&self) -> Option<BrokerId> {
        let lease = Duration::from_millis(self.view().lease_ms());
        (self.agent.lease().ends_at().after(lease) <= self.clock.now()).then_some(self.id)
    }

    /// The brokers that clients of that listener are told of, without the one that is left out, unless it is the only one.
    pub fn listed(view: &View, listener: &str, left_out: Option<BrokerId>) -> Vec<(BrokerId, Place)> {
        let reached = view.brokers().filter_map(|(id, _)| Some((id, Self::endpoint(view, id, listener)?)));
        let mut listed: Vec<_> = reached.collect();
        if listed.len() > 1 {
            listed.retain(|(id, _)| Some(*id) != left_out);
        }
        listed
    }

    /// Where clients of that listener reach a broker; `None` if it is fenced or has no such listener.
    pub fn endpoint(view: &View, broker: BrokerId, listener: &str) -> Option<Place> {
        let found = view.broker(broker).filter(|found| !found.is_fenced())?;
        let listener = found.listener(listener)?;
        Some(Place { host: listener.host.clone(), port: listener.port, rack: found.node.rack.clone() })
    }

    /// The series of the API at that place in the list.
    pub fn api_metrics(&self, api: usize) -> &ApiMetrics {
        &self.api_metrics[api.min(handlers::APIS.len())]
    }
}

/// Which brokers have gone, as far as one can see before their lease is over: they have closed their connection and refuse
/// another one, and their beats have stopped. A beat that was on its way at that moment is not counted.
fn gone(
    view: &View,
    lost: &[(BrokerId, Lost)],
    heard: &BTreeMap<BrokerId, MonoTime>,
) -> impl Iterator<Item = BrokerId> {
    let on_its_way = Duration::from_millis(view.lease_ms() / 12);
    lost.iter().filter_map(move |(id, lost)| {
        let is_named = view.broker(*id).is_some_and(|broker| broker.node.session == lost.session);
        let beats = heard.get(id).is_some_and(|at| *at > lost.at.after(on_its_way));
        (is_named && !beats).then_some(*id)
    })
}

/// The series of every API.
pub fn api_metrics(metrics: &Metrics) -> Vec<ApiMetrics> {
    let known = handlers::APIS.iter().map(|api| metrics.api(&handlers::name(api.key), api.class.name()));
    known.chain([metrics.api("unknown", "none")]).collect()
}

#[cfg(test)]
mod tests {
    use felix_cluster::config::StaticConfig;

    use super::*;
    use crate::admin::testing;

    #[test]
    fn a_broker_that_lost_touch_is_told_of_only_where_there_is_no_other() {
        let mut view = testing::view(&["a"]);
        let ids = |view: &View, left_out| -> Vec<i32> {
            Node::listed(view, "PLAINTEXT", left_out).iter().map(|(id, _)| id.0).collect()
        };
        assert_eq!(ids(&view, Some(BrokerId(1))), [1]);
        testing::node(&mut view, BrokerId(2), felix_cluster::state::NodeState::Live);
        assert_eq!(ids(&view, None), [1, 2]);
        assert_eq!(ids(&view, Some(BrokerId(1))), [2]);
        assert!(Node::listed(&view, "OTHER", None).is_empty());
    }

    #[test]
    fn who_closed_its_connection_has_gone_unless_it_beats() {
        let mut view = testing::view(&["a"]);
        testing::node(&mut view, BrokerId(2), felix_cluster::state::NodeState::Live);
        let session = view.broker(BrokerId(2)).unwrap().node.session;
        let at = MonoTime(10_000_000_000);
        let later = |ms: u64| at.after(Duration::from_millis(view.lease_ms() / 12 + ms));
        let gone = |id, session, heard: &[(i32, MonoTime)]| -> Vec<i32> {
            let heard = heard.iter().map(|(id, at)| (BrokerId(*id), *at)).collect();
            super::gone(&view, &[(BrokerId(id), Lost { session, at })], &heard).map(|id| id.0).collect()
        };
        assert_eq!(gone(2, session, &[(2, MonoTime(at.0 - 1)), (1, later(900))]), [2]);
        assert_eq!(gone(2, session, &[]), [2]);
        assert_eq!(gone(2, session, &[(2, later(0))]), [2], "this beat was on its way");
        assert!(gone(2, session, &[(2, later(1))]).is_empty(), "it lives, and only the way there is gone");
        let before = felix_protocol::ids::SessionId(session.0 + 1);
        assert!(gone(2, before, &[]).is_empty(), "that life was over anyway");
        assert!(gone(3, session, &[]).is_empty());
    }

    #[test]
    fn an_address_may_have_a_limit_of_its_own() {
        let mut fixed = StaticConfig::new();
        fixed.set("max.connections.per.ip", "5", "test").unwrap();
        fixed.set("max.connections.per.ip.overrides", "10.0.0.1:7,[::1]:9", "test").unwrap();
        let configs = Configs::new(BrokerId(1), fixed);
        let limits = Limits::of(&configs.broker(&View::default()));
        assert_eq!(limits.max_connections_from("10.0.0.1".parse().unwrap()), 7);
        assert_eq!(limits.max_connections_from("::1".parse().unwrap()), 9);
        assert_eq!(limits.max_connections_from("10.0.0.2".parse().unwrap()), 5);
    }
}
