//! Makes `__consumer_offsets` when the first group is looked for.

use std::time::Duration;

use felix_cluster::topics::{CONSUMER_OFFSETS, CreateRefused, consumer_offsets};
use felix_control::agent::AdminError;

use super::{Coordinators, Unavailable};

/// How long the first client waits for the partitions to open; then it is told to ask again.
const OPENING: Duration = Duration::from_secs(10);

impl Coordinators {
    /// Makes the topic unless it exists.
    pub(super) async fn make_topic(&self) -> Result<(), Unavailable> {
        let exists = || self.shared.agent.view().topic_named(CONSUMER_OFFSETS).is_some();
        if exists() {
            return Ok(());
        }
        // Whoever comes second finds it made.
        let _making = self.making.lock().await;
        if exists() {
            return Ok(());
        }
        let new = consumer_offsets(&self.shared.config(&self.shared.agent.view()).offsets);
        let made = self.shared.agent.create_topics(vec![new], false, OPENING).await;
        match made.into_iter().next() {
            Some(Ok(_) | Err(AdminError::Refused(CreateRefused::Exists(_)))) => Ok(()),
            Some(Err(error)) => {
                tracing::warn!(%error, "the topic of committed offsets cannot be made");
                Err(Unavailable::NotAvailable)
            }
            None => Err(Unavailable::NotAvailable),
        }
    }
}
