//! Beginning a copy where the leader's log begins.

use super::wire::{In, Out, PeerError};
use crate::ids::{Generation, LogId, Offset, PartitionId};

/// The leader no longer holds what a copy would have to begin with. A copy that holds nothing begins at `base` instead,
/// under a new log id; any other refuses. Answered like a part of a ship request.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub struct Bootstrap(pub Restart);

/// Which copy is to begin anew, and where.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub struct Restart {
    /// The partition.
    pub partition: PartitionId,
    /// As in [`super::ship::Part`].
    pub key_revision: u64,
    /// The tenure.
    pub generation: Generation,
    /// The copy that is meant (C12): a message that comes twice finds another.
    pub log: LogId,
    /// The new log's first offset: where the leader's first batch begins.
    pub base: Offset,
    /// The first offset that readers may have: in that batch, or at its beginning.
    pub log_start: Offset,
}

impl Restart {
    pub(super) fn put(&self, out: &mut Out) {
        out.structure("restart", |out| {
            out.partition(&self.partition);
            out.u64(self.key_revision);
            out.generation(self.generation);
            out.log(self.log);
            out.offset(self.base);
            out.offset(self.log_start);
        });
    }

    pub(super) fn take(input: &mut In) -> Result<Restart, PeerError> {
        let mut fields = input.structure("restart")?;
        let restart = Restart {
            partition: fields.partition()?,
            key_revision: fields.u64("key revision")?,
            generation: fields.generation("generation")?,
            log: fields.log("log id")?,
            base: fields.offset("base")?,
            log_start: fields.offset("log start")?,
        };
        if restart.log_start < restart.base { Err(PeerError::Value("log start")) } else { Ok(restart) }
    }
}

impl Bootstrap {
    pub(super) fn put(&self, out: &mut Out) -> Result<(), PeerError> {
        self.0.put(out);
        Ok(())
    }

    pub(super) fn take(input: &mut In) -> Result<Bootstrap, PeerError> {
        Restart::take(input).map(Bootstrap)
    }
}
