//! What handlers and connections reach: one broker's parts, wired by `server`.

use std::sync::Arc;
use std::time::Duration;

use arc_swap::ArcSwap;
use felix_cluster::view::View;
use tokio_util::sync::CancellationToken;

use crate::clock::SystemClock;
use crate::handlers;
use crate::metrics::{ApiMetrics, Metrics};
use crate::net::Budget;

/// Limits of sockets, as configured now.
#[derive(Clone, Copy, Debug)]
pub struct Limits {
    /// `socket.request.max.bytes`
    pub request_max_bytes: usize,
    /// `connections.max.idle.ms`
    pub max_idle: Duration,
    /// `max.connections`
    pub max_connections: usize,
    /// `max.connections.per.ip`
    pub max_connections_per_ip: usize,
}

/// One broker.
pub struct Node {
    /// The clock.
    pub clock: SystemClock,
    /// The metrics.
    pub metrics: Metrics,
    /// The series of each API, in the order of the list of handlers; a last one for what is none of them.
    api_metrics: Vec<ApiMetrics>,
    /// Memory for requests.
    pub budget: Budget,
    /// Cancelled when the broker stops: nothing new is taken, long waits are answered.
    pub closing: CancellationToken,
    limits: ArcSwap<Limits>,
    view: ArcSwap<View>,
}

impl Node {
    /// The limits of sockets.
    pub fn limits(&self) -> Limits {
        **self.limits.load()
    }

    /// What is known of the cluster.
    pub fn view(&self) -> Arc<View> {
        self.view.load_full()
    }

    /// The series of the API at that place in the list.
    pub fn api_metrics(&self, api: usize) -> &ApiMetrics {
        &self.api_metrics[api.min(handlers::APIS.len())]
    }
}

/// The series of every API.
pub fn api_metrics(metrics: &Metrics) -> Vec<ApiMetrics> {
    let known = handlers::APIS.iter().map(|api| handlers::name(api.key));
    known.chain(["unknown".to_owned()]).map(|name| metrics.api(&name)).collect()
}
