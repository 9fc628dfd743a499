//! Control stores and the executor of the cluster machines.
//!
//! [`agent::Agent`] is what a broker holds: the view, its session's lease, and every administrative write.
//! Behind it one thread runs the [`executor`] against a [`store`], and where others share the store another sends beats;
//! the broker's own work never waits in them and they never wait in the broker's. Deliberately absent: any decision (those are `felix-cluster`'s).

pub mod agent;
mod beats;
pub mod clock;
pub mod executor;
pub mod inquiry;
mod membership;
mod past;
pub mod recovery;
pub mod store;
