//! How far copies are behind, as their lanes know it.

use std::time::Duration;

use felix_protocol::ids::PartitionId;

use crate::partitions::Partitions;
use crate::partitions::lane::Message;

/// A follower's leader that was silent for longer says nothing of the lag any more.
pub(super) const SILENCE: Duration = Duration::from_secs(2);
/// Lanes that do not answer within this of the one before are left out.
const WAIT: Duration = Duration::from_secs(1);

/// One copy.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub struct Lag {
    /// The partition.
    pub partition: PartitionId,
    /// It leads: `records` is what its slowest follower lacks, and else what the copy itself lacks.
    pub leads: bool,
    /// `None`: nobody knows.
    pub records: Option<i64>,
    /// Its log's bytes.
    pub bytes: u64,
}

impl Partitions {
    /// All copies that are open here, by partition. Blocks for a moment.
    pub fn lags(&self) -> Vec<Lag> {
        let (answer, answers) = crossbeam_channel::unbounded();
        for lane in &self.lanes {
            lane.send(Message::Lags { answer: answer.clone() });
        }
        drop(answer);
        let mut all = Vec::new();
        while let Ok(lags) = answers.recv_timeout(WAIT) {
            all.extend(lags);
        }
        all.sort_by_key(|lag: &Lag| lag.partition);
        all
    }
}
