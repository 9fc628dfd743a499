//! The real binary, asked by raw sockets.
#![expect(clippy::unwrap_used, clippy::panic, reason = "a test that cannot go on says so and ends")]

mod broker;
mod connections;
mod damage;
mod memory;
mod operate;
mod quotas;
mod scrubbing;
mod side_files;
mod start;
