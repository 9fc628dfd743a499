//! Makes `__consumer_offsets` when the first group is looked for.

use std::collections::BTreeMap;
use std::time::Duration;

use felix_cluster::topics::{CONSUMER_OFFSETS, CreateRefused, NewTopic};
use felix_cluster::view::View;
use felix_control::agent::AdminError;

use super::{Coordinators, Shared, Unavailable};

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
        let new = new_topic(&self.shared, &self.shared.agent.view());
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

fn new_topic(shared: &Shared, view: &View) -> NewTopic {
    let config = shared.config(view);
    let live = view.brokers().filter(|(_, broker)| !broker.is_fenced()).count();
    let live = i16::try_from(live).unwrap_or(i16::MAX).max(1);
    let factor = i16::try_from(config.offsets.topic_replication_factor).unwrap_or(i16::MAX);
    NewTopic {
        name: CONSUMER_OFFSETS.to_owned(),
        partitions: config.offsets.topic_partitions,
        // A single node cannot give what a cluster would; it grows into it later.
        replication_factor: factor.clamp(1, live),
        assignments: None,
        overrides: BTreeMap::from([
            ("cleanup.policy".to_owned(), "compact".to_owned()),
            ("compression.type".to_owned(), "producer".to_owned()),
            ("segment.bytes".to_owned(), config.offsets.topic_segment_bytes.to_string()),
        ]),
    }
}
