//! Cluster state and every control decision, pure.
//!
//! [`state`] are the values of the control store and [`keys`] their names; a [`view`] is a snapshot of them, and a
//! [`decision`] what is to be written if nothing it was made from has changed. The other modules make decisions.
//! Deliberately absent: stores, clocks, tasks and everything that waits; those belong to `felix-control`.
#![forbid(unsafe_code)]

pub mod config;
pub mod controller;
pub mod decision;
pub mod elect;
pub mod eligible;
pub mod features;
pub mod heartbeat;
pub mod invariants;
pub mod keys;
pub mod lease;
pub mod moves;
pub mod observe;
pub mod overrides;
pub mod placement;
pub mod producer_ids;
pub mod promotion;
pub mod quotas;
pub mod reassign;
pub mod recovery;
pub mod registration;
pub mod relist;
pub mod reports;
pub mod revoke;
pub mod state;
pub mod throttle;
pub mod topics;
pub mod view;

#[cfg(test)]
pub(crate) mod testing;
