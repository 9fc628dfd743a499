//! The words and the wire.
//!
//! Everything that several packages must agree on: identities, offsets, time points, the record batch, and
//! Kafka's frames and messages, and those between brokers. Deliberately absent: sockets, files, clocks, and any state.

#![forbid(unsafe_code)]

pub mod batch;
pub mod error_code;
pub mod frame;
pub mod generation_map;
pub mod ids;
pub mod messages;
pub mod peer;
pub mod time;
