//! The classic group protocol: clients elect a leader among them, the leader assigns, the coordinator keeps the
//! time and the books. Every protocol type works alike, cooperative rebalancing included: what members tell
//! their leader, and what it tells them, is opaque here.

pub(crate) mod heartbeat;
pub(crate) mod join;
pub(crate) mod leave;
pub(crate) mod rebalance;
pub(crate) mod sync;
