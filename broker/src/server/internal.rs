//! The listener for other brokers, bound before anything is written.

use anyhow::{Context, Result};
use felix_cluster::state::Listener;
use felix_protocol::ids::BrokerId;

use super::reachable;
use crate::args::Settings;
use crate::net::{self, Bound, SocketSetup};
use crate::peers::Tls;

/// What it is called where addresses are told.
const NAME: &str = "internal";

/// See the module.
pub(super) struct Internal {
    pub(super) bound: Bound,
    pub(super) tls: Option<Tls>,
    /// What peers are told.
    pub(super) told: Listener,
}

/// Binds it, where there can be other brokers.
pub(super) fn bind(settings: &Settings, setup: SocketSetup) -> Result<Option<Internal>> {
    let Some(internal) = &settings.internal else { return Ok(None) };
    let tls = match &internal.tls {
        Some(tls) => {
            let made = Tls::new(BrokerId(settings.node_id), &tls.cert, &tls.key, &tls.ca);
            Some(made.context("internal-tls-cert, internal-tls-key, internal-tls-ca")?)
        }
        None => None,
    };
    let (host, port) = (&internal.host, internal.port);
    let bound = match net::bind(NAME, host, port, setup) {
        // Peers learn the port from the control store, so any will do where nobody asked for this one.
        Err(error) if internal.is_default && error.is_in_use() => {
            let bound = net::bind(NAME, host, 0, setup).context("internal-listener")?;
            tracing::info!(address = %bound.address, "{error}; other brokers are told another port instead");
            bound
        }
        bound => bound.with_context(|| format!("internal-listener = \"{host}:{port}\""))?,
    };
    let (host, port) = internal.advertised.clone().unwrap_or_else(|| (reachable(host), bound.address.port()));
    let protocol = if tls.is_some() { "SSL" } else { "PLAINTEXT" }.to_owned();
    let told = Listener { name: NAME.to_uppercase(), protocol, host, port };
    Ok(Some(Internal { bound, tls, told }))
}
