//! Control stores and the executor of the cluster machines.
//!
//! [`agent::Agent`] is what a broker holds: the view, its session's lease, and every administrative write.
//! Behind it one thread runs the [`executor`] against a [`store`]; the broker's own work never waits in it and it
//! never waits in the broker's. Deliberately absent: any decision (those are `felix-cluster`'s).

pub mod agent;
pub mod executor;
mod past;
pub mod store;
