//! Metrics and quotas.

use super::rows;
use crate::config::row::{Area, Row, reason};

pub(super) const ROWS: &[Row] = rows! { Area::Observe;
    Int "controller.quota.window.num" = "11", AtLeast(1), ReadOnly, Honoured =>
        "Samples kept for the limit on changes of topics: so many of them may be used up in one burst.";
    Int "controller.quota.window.size.seconds" = "1", AtLeast(1), ReadOnly, Honoured =>
        "Seconds that one such sample covers.";
    Int "kafka.metrics.polling.interval.secs" = "10", AtLeast(1), ReadOnly, NoEffect(reason::METRICS) =>
        "Seconds between two readings by metric reporters.";
    List "kafka.metrics.reporters" = "", Any, ReadOnly, NoEffect(reason::METRICS) =>
        "Classes that report metrics.";
    List "metric.reporters" = "org.apache.kafka.common.metrics.JmxReporter",
        Any, ClusterWide,
        NoEffect(reason::METRICS) =>
        "Classes that report metrics.";
    Int "metrics.num.samples" = "2", AtLeast(1), ReadOnly, NoEffect(reason::METRICS) =>
        "Samples kept for each metric.";
    String "metrics.recording.level" = "INFO", Any, ReadOnly, NoEffect(reason::METRICS) =>
        "How detailed metrics are.";
    Long "metrics.sample.window.ms" = "30000", AtLeast(1), ReadOnly, NoEffect(reason::METRICS) =>
        "Milliseconds that one such sample covers.";
    Int "quota.window.num" = "11", AtLeast(1), ReadOnly, Honoured =>
        "Samples kept for client quotas: rates are measured over all of them, the present one included.";
    Int "quota.window.size.seconds" = "1", AtLeast(1), ReadOnly, Honoured =>
        "Seconds that one such sample covers.";
    Int "telemetry.max.bytes" = "1048576", AtLeast(1), ReadOnly, NoEffect(reason::TELEMETRY) =>
        "Largest set of metrics in bytes that a client may push.";
};
