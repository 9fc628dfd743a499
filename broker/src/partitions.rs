//! The partitions that this broker leads: lanes that own the copies, and the handles that others hold.
//!
//! A lane is a plain thread; there is no task, thread or timer per partition. Writes go through the lane of
//! their partition, reads go to a published snapshot and never visit it.

mod handle;
mod lane;
mod wait;

use std::collections::HashMap;

use felix_protocol::ids::PartitionId;
use parking_lot::RwLock;

pub use handle::{Answer, PartitionHandle};
pub use wait::{FetchWait, Isolation, Registration, TooManyWaits};

/// The partitions that this broker leads.
pub struct Partitions {
    led: RwLock<HashMap<PartitionId, PartitionHandle>>,
}

impl Partitions {
    /// The partition's current tenure on this broker; `None` where it does not lead.
    pub fn get(&self, partition: &PartitionId) -> Option<PartitionHandle> {
        self.led.read().get(partition).cloned()
    }
}
