//! Topics that come into being because somebody asks for them.

use std::sync::Arc;
use std::time::Duration;

use felix_cluster::config::BrokerConfig;
use felix_cluster::topics::{CONSUMER_OFFSETS, CreateRefused, CreatedTopic, NewTopic, consumer_offsets};
use felix_cluster::view::View;
use felix_control::agent::AdminError;

use crate::node::Node;

/// How long a creation waits for its partitions to be led.
const OPENING: Duration = Duration::from_secs(5);

/// The topic as it is created when nobody says how.
fn by_default(config: &BrokerConfig, view: &View, name: &str) -> NewTopic {
    let live = i32::try_from(view.brokers().count()).unwrap_or(i32::MAX).max(1);
    let replicas = |asked: i32| i16::try_from(asked.min(live)).unwrap_or(i16::MAX);
    if name == CONSUMER_OFFSETS {
        return consumer_offsets(&config.offsets);
    }
    NewTopic {
        name: name.to_owned(),
        partitions: config.topics.partitions,
        replication_factor: replicas(config.topics.replication_factor),
        ..NewTopic::default()
    }
}

/// Creates topics as nobody said how, and waits until they are led.
pub async fn create_by_default(
    node: &Arc<Node>,
    names: &[&str],
) -> Vec<Result<CreatedTopic, AdminError<CreateRefused>>> {
    let view = node.view();
    let config = node.configs.broker(&view);
    let new = names.iter().map(|name| by_default(&config, &view, name)).collect();
    drop(view);
    node.agent.create_topics(new, false, OPENING).await
}
