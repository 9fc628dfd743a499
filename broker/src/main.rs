//! The Felix broker: one binary that Kafka clients and tools can use.
//!
//! Modules import to the right only: `main`, `server`, `net`, `handlers`, then `coordinators`, `fetching` and
//! `admin`, then `partitions`, `view`, and last `clock`, `tasks`, `metrics` and `wire_code`.

mod args;
mod clock;
mod handlers;
mod http;
mod metrics;
mod net;
mod node;
mod pages;
mod partitions;
mod tasks;

fn main() {}
