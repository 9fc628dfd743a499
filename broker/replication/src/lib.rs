//! One partition's replication as state machines, pure: `step(event, now)` gives actions.
//!
//! Here: the leader's side ([`leader`]) with the rules it rests on, one module each: [`mark`] (how far
//! everything acknowledged reaches), [`eligible`] (who may be promoted, and what may be on its way to the
//! control store), [`waiters`] (who waits for which word), [`lease`] (may I serve at this time).
//! Deliberately absent: tokio, threads, clocks, files, sockets, logging. Whoever runs a machine carries its
//! actions out and feeds the results back as events.

#![forbid(unsafe_code)]

pub mod action;
pub mod bulk;
pub mod cursor;
pub mod eligible;
pub mod event;
pub mod follower;
pub mod halted;
pub mod invariants;
pub mod leader;
pub mod lease;
pub mod mark;
pub mod rebuild;
pub mod reconcile;
pub mod rules;
pub mod throttle;
pub mod waiters;
