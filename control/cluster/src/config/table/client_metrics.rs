//! What a subscription to client metrics can be told.

use super::rows;
use crate::config::row::{Area, Row, reason};

pub(super) const ROWS: &[Row] = rows! { Area::ClientMetrics;
    Int "interval.ms" = "300000", Between(100, 3_600_000), ClusterWide, NoEffect(reason::TELEMETRY) =>
        "Milliseconds between two pushes of metrics by a client that matches.";
    List "match" = "", ClientMatch, ClusterWide, NoEffect(reason::TELEMETRY) =>
        "Which clients are asked: a list of `selector=pattern`, such as `client_id=app.*`.";
    List "metrics" = "", Any, ClusterWide, NoEffect(reason::TELEMETRY) =>
        "Prefixes of the names of metrics that clients push; `*` means all.";
};
