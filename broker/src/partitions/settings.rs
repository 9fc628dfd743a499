//! From a topic's configs, wherever they were said, to what its copies obey.

use std::collections::HashSet;
use std::sync::Arc;
use std::time::Duration;

use felix_cluster::config::broker::LogsConfig;
use felix_cluster::config::resolve;
use felix_cluster::config::topic::{Consistency, TopicConfig};
use felix_cluster::config::{Layers, Overrides, Problem};
use felix_cluster::eligible;
use felix_cluster::state::Partition;
use felix_cluster::view::{TopicView, View};
use felix_partition::config::{FlushPolicy, PartitionConfig};
use felix_protocol::ids::BrokerId;
use felix_storage::LogConfig;
use felix_storage::compaction::CompactionConfig;

/// Resolves the settings of topics for one broker.
pub(super) struct Settings {
    broker: BrokerId,
    /// What the broker was started with.
    fixed: Arc<Overrides>,
    producer_expiry_ms: i64,
    /// The newest result: most topics of a broker obey the same, and share it.
    newest: Arc<PartitionConfig>,
    /// What was logged of stored values that are passed over, so that each is told once.
    told: HashSet<String>,
}

/// Passed over values that are remembered; more of them would be logged again.
const MOST_TOLD: usize = 1000;

impl Settings {
    pub(super) fn new(broker: BrokerId, fixed: Arc<Overrides>) -> Settings {
        let newest = Arc::<PartitionConfig>::default();
        Settings {
            broker,
            fixed,
            producer_expiry_ms: newest.log.producer_expiry_ms,
            newest,
            told: HashSet::new(),
        }
    }

    fn layers<'a>(&'a self, view: &'a View) -> Layers<'a> {
        Layers {
            broker: view.broker_overrides(self.broker),
            cluster: view.cluster_overrides(),
            fixed: &self.fixed,
        }
    }

    fn tell(&mut self, of: &str, problems: &[Problem]) {
        for problem in problems {
            if self.told.len() >= MOST_TOLD {
                self.told.clear();
            }
            let Problem { name, value, allowed, .. } = problem;
            if self.told.insert(format!("{of} {name}={value}")) {
                tracing::warn!(of, config = name, value, allowed, "a stored config is passed over");
            }
        }
    }

    /// Takes in what is said for the broker as a whole. Returns what is said of all logs.
    pub(super) fn refresh(&mut self, view: &View) -> LogsConfig {
        let resolved = resolve::broker(&self.layers(view));
        self.tell("the broker", &resolved.problems);
        let config = resolved.config;
        self.producer_expiry_ms = config.producers.expiration_ms;
        config.logs
    }

    /// What a partition of that topic obeys.
    pub(super) fn of(&mut self, view: &View, topic: &TopicView, state: &Partition) -> Arc<PartitionConfig> {
        let layers = self.layers(view);
        let resolved = resolve::topic(&topic.overrides, &layers);
        self.tell(&topic.name, &resolved.problems);
        let need = eligible::need(state, resolved.config.min_insync_replicas).max(1);
        let config = partition_config(&resolved.config, need, self.producer_expiry_ms);
        if *self.newest != config {
            self.newest = Arc::new(config);
        }
        Arc::clone(&self.newest)
    }
}

fn compaction(topic: &felix_cluster::config::topic::CompactionConfig) -> CompactionConfig {
    #[expect(clippy::cast_possible_truncation, clippy::cast_sign_loss, reason = "a share between 0 and 1")]
    let min_dirty_millionths = (topic.min_dirty_ratio.clamp(0.0, 1.0) * 1e6) as u32;
    CompactionConfig {
        delete_retention_ms: topic.delete_retention_ms,
        min_lag_ms: topic.min_lag_ms,
        max_lag_ms: topic.max_lag_ms,
        min_dirty_millionths,
    }
}

fn partition_config(topic: &TopicConfig, need: usize, producer_expiry_ms: i64) -> PartitionConfig {
    PartitionConfig {
        log: LogConfig {
            segment_bytes: topic.segment_bytes,
            segment_ms: topic.segment_ms,
            segment_jitter_ms: topic.segment_jitter_ms,
            index_interval_bytes: topic.index_interval_bytes,
            index_bytes: topic.segment_index_bytes,
            retention_bytes: topic.retention_bytes,
            retention_ms: topic.retention_ms,
            deletes: topic.deletes,
            compacts: topic.compacts,
            compaction: compaction(&topic.compaction),
            file_delete_delay_ms: topic.file_delete_delay_ms,
            preallocate: topic.preallocate,
            producer_expiry_ms,
        },
        flush: FlushPolicy {
            messages: topic
                .flush_messages
                .map_or(i64::MAX, |messages| i64::try_from(messages).unwrap_or(i64::MAX)),
            within: topic.flush_ms.map(Duration::from_millis),
        },
        quorum: topic.consistency == Consistency::Quorum,
        need,
    }
}
