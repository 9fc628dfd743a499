//! The control side of a start: the store in the data directory, or the one that the cluster shares.

use std::io;
use std::sync::Arc;
use std::time::Duration;

use anyhow::Result;
use felix_control::agent::{Agent, AgentConfig};
use felix_control::store::etcd::{EtcdConfig, EtcdConfigError, EtcdTls, EtcdWays};
use felix_partition::fence::renew_identities;
use felix_storage::Replicas;
use felix_storage::disk::os::OsDisk;

use crate::args::EtcdSettings;
use crate::clock::SystemClock;

/// The ways to an etcd; nothing is connected yet.
pub fn etcd_ways(etcd: &EtcdSettings) -> Result<EtcdWays, EtcdConfigError> {
    let tls = (etcd.ca.is_some() || etcd.identity.is_some())
        .then(|| EtcdTls { ca: etcd.ca.clone(), identity: etcd.identity.clone() });
    EtcdWays::new(EtcdConfig {
        endpoints: etcd.endpoints.clone(),
        prefix: etcd.prefix.clone(),
        timeout: Duration::from_secs(1),
        tls,
        user: etcd.user.clone(),
    })
}

/// Registers this process, wherever the control store is.
pub(super) async fn enter(
    config: AgentConfig,
    etcd: Option<&EtcdSettings>,
    clock: SystemClock,
    replicas: &Arc<Replicas<OsDisk>>,
) -> Result<Agent> {
    let Some(etcd) = etcd else { return Ok(Agent::start(OsDisk, config).await?) };
    let ways = etcd_ways(etcd)?;
    let replicas = Arc::clone(replicas);
    let renew = move || {
        let renewed = renew_identities(&replicas).map_err(io::Error::other)?;
        if renewed > 0 {
            tracing::error!(
                copies = renewed,
                "the control store has another history than this directory (one of them was restored from a copy), or was told of \
                 a failed flush that is not noted here: the copies of partitions here get new identities"
            );
        }
        Ok(())
    };
    Ok(Agent::join(OsDisk, config, ways, clock, renew).await?)
}
