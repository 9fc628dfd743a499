//! Groups and their offsets as a state machine: Kafka's classic group protocol.
//!
//! Pure: no clock, no randomness, no I/O, no threads, no Kafka numbers. The broker hosts one [`Shard`] for each
//! partition of `__consumer_offsets` that it leads. Deliberately absent for now: transactions, and the groups of
//! KIP-848 and later.

pub mod error;
mod group;
pub mod invariants;
pub mod locate;
pub mod machine;
pub mod reply;
pub mod request;
pub mod settings;
mod timers;

#[cfg(test)]
mod stories;

pub use error::GroupError;
pub use group::records::{RawRecord, RecordError};
pub use group::state::{MOVES, State};
pub use locate::locate;
pub use machine::{Answer, Event, Notice, Now, Outcome, Replayed, Shard, Token, When};
pub use reply::Reply;
pub use request::Request;
pub use settings::Settings;
