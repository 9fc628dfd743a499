//! Every setting that Kafka's tools know, and ours: what it is called, what it may be, what it does here.
//!
//! One [`Row`] says all about a setting, and the rest is driven by rows: parsing and checks ([`value`]), the
//! changes that AlterConfigs and CreateTopics make ([`edit`]), what DescribeConfigs answers ([`resolve`]), the
//! structs that code reads ([`topic`], [`broker`], [`group`]) and `docs/configuration.md` ([`docs`]).
//!
//! A row is honest about itself ([`State`]): honoured, accepted without effect, or refused with the reason.
//! A setting by which somebody believes himself protected is never accepted without effect.
//!
//! Deliberately absent: where values are kept (the cluster's state), how they travel (handlers), and the reading
//! of files and flags (the broker's arguments, fed by [`flags`]).

pub mod broker;
pub mod docs;
pub mod edit;
pub mod flags;
pub mod group;
pub mod layers;
pub mod resolve;
pub mod row;
pub mod table;
pub mod topic;
pub mod value;

#[cfg(test)]
mod tests;

pub use broker::BrokerConfig;
pub use edit::{Edit, EditError, Op, Scope};
pub use group::GroupConfig;
pub use layers::{Layers, Overrides, StartError, StaticConfig};
pub use resolve::{Entry, Resolved, Source, Synonym};
pub use row::{Area, Check, Dynamic, Kind, Row, State};
pub use topic::TopicConfig;
pub use value::{Problem, Value};
