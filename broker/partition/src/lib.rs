//! A copy: one log, its machine, admission, and the executor of its actions.
//!
//! Synchronous, generic over `Disk` and `Clock`: the broker's lanes and the simulator run the same code.
//! Deliberately absent: threads, sockets, and any decision that a machine of `felix-replication` makes.

#![forbid(unsafe_code)]

mod admission;
mod pending;
mod visible;

pub mod actions;
pub mod append;
pub mod config;
pub mod copy;
pub mod fence;
pub mod following;
pub mod opening;
pub mod published;
pub mod shipping;

pub use copy::Copy;
