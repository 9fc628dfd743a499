//! May a write be taken in? Asked twice: when the write arrives, and right before its bytes go to the log.
//!
//! Authority to lead a partition at a generation (`docs/replication.md`, section 3) is: the lease has not
//! expired, the control store names this session at this generation, it was not asked to give the partition
//! up, and the local copy is open at exactly this generation. The last three end the tenure when they
//! change, so here they are "the tenure has not ended"; the lease is a number that is read each time.

use felix_protocol::ids::Generation;
use felix_protocol::time::MonoTime;
use felix_replication::leader::{Leader, Refusal};
use felix_replication::lease::Lease;
use felix_replication::waiters::Word;

use crate::append::{AppendError, Origin};

/// First check. Cheap: nothing is looked up, nothing is allocated.
pub(crate) fn admit(
    leader: Option<&Leader>,
    lease: &Lease,
    now: MonoTime,
    asked: Generation,
    origin: Origin,
    word: Option<Word>,
) -> Result<Generation, AppendError> {
    let leader = leader.ok_or(AppendError::NotLeader)?;
    let generation = leader.generation();
    // The handle that the writer used belongs to another tenure.
    if asked != generation || !lease.may_admit(now) {
        return Err(AppendError::NotLeader);
    }
    if let Origin::Broker { generation: expected } = origin
        && expected != generation
    {
        return Err(AppendError::OtherGeneration { expected, found: generation });
    }
    leader.admits(word, now).map_err(|refusal| match refusal {
        Refusal::Ended => AppendError::NotLeader,
        Refusal::TooFewMembers { have, need } => AppendError::NotEnoughReplicas { have, need },
        Refusal::Full => AppendError::Busy,
    })?;
    Ok(generation)
}
