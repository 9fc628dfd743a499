//! Asking brokers how far their copies are, before one of them is promoted.
//!
//! The control side decides whom to ask about what; how a question gets there is for whoever runs the broker. Nobody is
//! waited for longer than [`PATIENCE`]: silence ranks last, and costs nothing but the choice.

use std::collections::{BTreeMap, BTreeSet};
use std::future::Future;
use std::pin::Pin;
use std::time::Duration;

use felix_cluster::promotion::StandingsOf;
use felix_protocol::ids::{BrokerId, PartitionId};

/// How long answers are waited for. An answer takes one way there and back; a failover waits for this once where a
/// candidate is silent.
pub(crate) const PATIENCE: Duration = Duration::from_millis(250);

/// Standings, later.
pub type Told = Pin<Box<dyn Future<Output = StandingsOf> + Send>>;

/// See the module.
pub trait Inquirer: Send + Sync + 'static {
    /// Asks each broker about those partitions, all at the same time; what was not answered within that time is left out.
    fn ask(&self, questions: BTreeMap<BrokerId, Vec<PartitionId>>, within: Duration) -> Told;
}

/// The questions by broker.
pub(crate) fn by_broker(
    asked: &BTreeMap<PartitionId, BTreeSet<BrokerId>>,
) -> BTreeMap<BrokerId, Vec<PartitionId>> {
    let mut questions: BTreeMap<BrokerId, Vec<PartitionId>> = BTreeMap::new();
    for (partition, brokers) in asked {
        for broker in brokers {
            questions.entry(*broker).or_default().push(*partition);
        }
    }
    questions
}
