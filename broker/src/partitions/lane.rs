//! Lanes: a few plain threads, each owning the copies pinned to it.

use felix_partition::append::{Append, AppendError, Appended};
use felix_protocol::ids::{Generation, PartitionId};
use tokio::sync::oneshot;

/// What a lane is asked.
pub(super) enum Message {
    Append {
        partition: PartitionId,
        generation: Generation,
        append: Append,
        answer: oneshot::Sender<Result<Appended, AppendError>>,
    },
}

/// Where requests for the partitions of one lane go.
#[derive(Clone)]
pub(super) struct LaneSender {
    queue: crossbeam_channel::Sender<Message>,
}

impl LaneSender {
    pub(super) fn send(&self, message: Message) {
        if let Err(refused) = self.queue.try_send(message) {
            let busy = matches!(refused, crossbeam_channel::TrySendError::Full(_));
            match refused.into_inner() {
                Message::Append { answer, .. } => {
                    // The writer may be gone; then nobody needs the answer.
                    let _ = answer.send(Err(if busy { AppendError::Busy } else { AppendError::NotLeader }));
                }
            }
        }
    }
}
