//! Producer ids, given out in blocks: a broker takes a block with one write and hands its ids out from memory.
//! What is left of a block when its broker stops is never used.

use std::ops::Range;

use felix_protocol::ids::{BrokerId, SessionId};
use thiserror::Error;

use crate::decision::Decision;
use crate::keys::Key;
use crate::state::{ProducerIds, Revision};
use crate::view::View;

/// Ids in a block.
pub const BLOCK: i64 = 1000;

/// All 2^63 ids are used up.
#[derive(Clone, Copy, Debug, PartialEq, Eq, Error)]
#[error("all producer ids are used up")]
pub struct UsedUp;

/// Takes the next block.
pub fn next_block(
    view: &View,
    broker: BrokerId,
    session: SessionId,
) -> Result<(Decision, Range<i64>), UsedUp> {
    let (revision, first) =
        view.producer_ids().map_or((Revision::ABSENT, 0), |at| (at.revision, at.value.next));
    let next = first.checked_add(BLOCK).ok_or(UsedUp)?;
    let value = ProducerIds { next, broker, session };
    let decision = Decision::new().at(Key::ProducerIds, revision).put(Key::ProducerIds, &value);
    Ok((decision, first..next))
}
