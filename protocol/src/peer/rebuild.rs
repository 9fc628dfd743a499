//! Giving up a halted copy and beginning it anew.

use super::bootstrap::Restart;
use super::wire::{In, Out, PeerError};

/// A copy that has stopped as diverged, or that lacks what the leader no longer holds, discards its log and begins at the
/// leader's start under a new log id. Only copies outside the maximal eligible set are asked (C12).
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub struct Rebuild(pub Restart);

impl Rebuild {
    pub(super) fn put(&self, out: &mut Out) -> Result<(), PeerError> {
        self.0.put(out);
        Ok(())
    }

    pub(super) fn take(input: &mut In) -> Result<Rebuild, PeerError> {
        Restart::take(input).map(Rebuild)
    }
}
