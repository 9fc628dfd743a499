//! Ids for producers, from blocks that the control store gives to one broker alone.

use std::ops::Range;

use felix_control::agent::{Agent, ControlError};

/// The rest of the newest block.
pub struct ProducerIds {
    // A tokio mutex: whoever finds the block empty fetches the next one, and the others wait for it.
    left: tokio::sync::Mutex<Range<i64>>,
}

impl ProducerIds {
    /// No block yet.
    pub fn new() -> ProducerIds {
        ProducerIds { left: tokio::sync::Mutex::new(0..0) }
    }

    /// An id that no producer has had.
    pub async fn next(&self, agent: &Agent) -> Result<i64, ControlError> {
        let mut left = self.left.lock().await;
        if left.is_empty() {
            *left = agent.next_producer_ids().await?;
        }
        let id = left.start;
        left.start += 1;
        Ok(id)
    }
}
