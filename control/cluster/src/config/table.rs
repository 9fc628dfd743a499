//! All rows, by what they belong to: topics, brokers, groups, subscriptions to client metrics.
//!
//! The rows themselves stand in one file an area. A row reads: kind, name, default, allowed values, where it can be
//! changed, what it does here, and its documentation.

use std::sync::LazyLock;

use super::row::Row;

mod access;
mod client_metrics;
mod cluster;
mod connections;
mod consumer_groups;
mod felix;
mod group;
mod groups;
mod logs;
mod observe;
mod remote;
mod replication;
mod sasl;
mod share_groups;
mod streams_groups;
mod synonyms;
mod tls;
mod topic;
mod topics;
mod transactions;

pub use synonyms::{BrokerName, broker_names_of_group, broker_names_of_row, broker_names_of_topic};

/// Builds the rows of one area.
macro_rules! rows {
    ($area:expr; $( $(#$internal:ident)? $kind:ident $name:literal = $default:tt, $check:expr, $dynamic:ident, $state:expr
        => $doc:literal; )*) => {{
        use crate::config::row::{Check::*, Dynamic::*, State::*};
        &[$( Row {
            name: $name,
            kind: crate::config::row::Kind::$kind,
            default: rows!(@default $default),
            check: $check,
            dynamic: $dynamic,
            state: $state,
            area: $area,
            internal: rows!(@internal $($internal)?),
            doc: $doc,
        } ),*]
    }};
    (@default null) => { None };
    (@default $default:literal) => { Some($default) };
    (@internal) => { false };
    (@internal internal) => { true };
}
use rows;

/// What settings belong to.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum Resource {
    /// One topic.
    Topic,
    /// One broker, or all of them.
    Broker,
    /// One group.
    Group,
    /// One subscription to client metrics.
    ClientMetrics,
}

impl Resource {
    /// The word for it in messages.
    pub fn name(self) -> &'static str {
        match self {
            Resource::Topic => "topic",
            Resource::Broker => "broker",
            Resource::Group => "group",
            Resource::ClientMetrics => "client metrics",
        }
    }

    /// All its rows, sorted by name.
    pub fn rows(self) -> &'static [Row] {
        match self {
            Resource::Topic => topic::ROWS,
            Resource::Broker => &BROKER,
            Resource::Group => group::ROWS,
            Resource::ClientMetrics => client_metrics::ROWS,
        }
    }

    /// The row of a name.
    pub fn row(self, name: &str) -> Option<&'static Row> {
        let rows = self.rows();
        rows.binary_search_by(|row| row.name.cmp(name)).ok().map(|at| &rows[at])
    }
}

/// The broker's areas, each sorted by name.
const BROKER_AREAS: &[&[Row]] = &[
    access::ROWS,
    cluster::ROWS,
    connections::ROWS,
    consumer_groups::ROWS,
    felix::ROWS,
    groups::ROWS,
    logs::ROWS,
    observe::ROWS,
    remote::ROWS,
    replication::ROWS,
    sasl::ROWS,
    share_groups::ROWS,
    streams_groups::ROWS,
    tls::ROWS,
    topics::ROWS,
    transactions::ROWS,
];

static BROKER: LazyLock<Vec<Row>> = LazyLock::new(|| {
    let mut rows = BROKER_AREAS.concat();
    rows.sort_by_key(|row| row.name);
    rows
});

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn every_file_is_sorted_and_no_name_appears_twice() {
        let sorted = |rows: &[Row]| rows.windows(2).all(|pair| pair[0].name < pair[1].name);
        for rows in BROKER_AREAS.iter().copied().chain([topic::ROWS, group::ROWS, client_metrics::ROWS]) {
            assert!(sorted(rows), "near {}", rows[0].name);
        }
        assert!(sorted(&BROKER), "a broker row appears in two areas");
    }

    #[test]
    fn a_row_is_found_by_its_name_alone() {
        assert_eq!(Resource::Topic.row("retention.ms").unwrap().name, "retention.ms");
        assert_eq!(Resource::Broker.row("log.retention.ms").unwrap().name, "log.retention.ms");
        assert!(Resource::Topic.row("log.retention.ms").is_none());
        assert!(Resource::Broker.row("").is_none());
    }
}
