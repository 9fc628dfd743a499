//! How far copies are, whoever leads them: asked before somebody is promoted.

use std::collections::BTreeMap;
use std::sync::Arc;

use felix_protocol::ids::{Generation, PartitionId};
use felix_protocol::peer::standing::Standing;
use felix_storage::Replicas;
use felix_storage::disk::os::OsDisk;
use parking_lot::Mutex;

use crate::partitions::lane::Message;
use crate::partitions::{Partitions, lane_number};

/// Called with the standings.
type Then = Box<dyn FnOnce(Vec<Standing>) + Send>;

/// Standings that come in from several lanes. Complete when nobody holds it any more: what no lane knows of then is known
/// from the table of copies alone.
pub(crate) struct Gathering {
    asked: Vec<PartitionId>,
    found: Mutex<BTreeMap<PartitionId, Standing>>,
    replicas: Arc<Replicas<OsDisk>>,
    then: Mutex<Option<Then>>,
}

impl Gathering {
    /// A lane has the copy open.
    pub(crate) fn found(&self, standing: Standing) {
        self.found.lock().insert(standing.partition, standing);
    }
}

impl Drop for Gathering {
    fn drop(&mut self) {
        let mut found = std::mem::take(self.found.get_mut());
        let of = |partition: &PartitionId| {
            found.remove(partition).unwrap_or_else(|| from_table(&self.replicas, *partition))
        };
        let standings = self.asked.iter().map(of).collect();
        if let Some(then) = self.then.get_mut().take() {
            then(standings);
        }
    }
}

fn from_table(replicas: &Replicas<OsDisk>, partition: PartitionId) -> Standing {
    match replicas.get(&partition) {
        Some(row) => Standing {
            partition,
            log: Some(row.log_id),
            accepted: row.accepted,
            end: row.synced,
            doubt: false,
        },
        None => Standing { partition, log: None, accepted: Generation::ZERO, end: 0, doubt: false },
    }
}

impl Partitions {
    /// Says how far the copies here are, in the order of the question; `then` is called on a lane's thread, or here.
    pub fn standings(&self, partitions: Vec<PartitionId>, then: impl FnOnce(Vec<Standing>) + Send + 'static) {
        let mut by_lane = vec![Vec::new(); self.lanes.len()];
        for partition in &partitions {
            by_lane[lane_number(partition, self.lanes.len())].push(*partition);
        }
        let gathering = Arc::new(Gathering {
            asked: partitions,
            found: Mutex::default(),
            replicas: Arc::clone(&self.opener.replicas),
            then: Mutex::new(Some(Box::new(then))),
        });
        for (lane, partitions) in self.lanes.iter().zip(by_lane) {
            if !partitions.is_empty() {
                lane.send(Message::Standings { partitions, gathering: Arc::clone(&gathering) });
            }
        }
    }
}
